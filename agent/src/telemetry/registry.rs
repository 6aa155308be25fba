//! The text in which metrics are told: Prometheus 0.0.4, made anew for each scrape.
//!
//! Nothing is registered and nothing is kept between scrapes: a family is written from the numbers that the parts keep anyway,
//! so that a series is gone with its lane, and no number stands in two places.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, prometheus_text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// The media type of an exposition.
pub const CONTENT_TYPE: &str = prometheus_text::CONTENT_TYPE;

/// In front of every name.
const PREFIX: &str = "waystation";

/// Takes families, one after the other.
#[derive(Debug)]
pub struct Families<'e>(DescriptorEncoder<'e>);

impl Families<'_> {
    /// Writes numbers that only grow. `_total` is added to the name.
    ///
    /// # Errors
    /// Only what the text that is written to says, which never fails.
    pub fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in series {
            family
                .encode_family(&labels)?
                .encode_counter::<[(&str, &str); 0], _, u64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes numbers that go up and down.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes how many of something were up to each bound and over the one before it, without labels. The last bound is
    /// infinite.
    ///
    /// # Errors
    /// As [`Self::counter`].
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        sum: f64,
        buckets: &[(f64, u64)],
    ) -> fmt::Result {
        let none: [(&str, &str); 0] = [];
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        family
            .encode_family(&none)?
            .encode_histogram::<[(&str, &str); 0]>(sum, count, buckets, None)
    }
}

/// The text of the families that `write` writes.
///
/// # Errors
/// Those of `write`.
pub fn exposition<F>(write: F) -> Result<String, fmt::Error>
where
    F: Fn(&mut Families<'_>) -> fmt::Result + Send + Sync + 'static,
{
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Scrape(write)));
    let mut text = String::new();
    prometheus_text::encode(&mut text, &registry)?;
    Ok(text)
}

struct Scrape<F>(F);

impl<F> fmt::Debug for Scrape<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl<F> Collector for Scrape<F>
where
    F: Fn(&mut Families<'_>) -> fmt::Result + Send + Sync + 'static,
{
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Families(encoder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_with_prefix_labels_and_escapes() {
        let text = exposition(|families| {
            families.counter(
                "source_bytes",
                "Bytes",
                [([("source", "a\"b\\c")], 1_u64 << 53), ([("source", "d")], 0)],
            )?;
            families.gauge("agent_ready", "Ready", [([("", ""); 0], 1.0)])?;
            families.histogram("commit_seconds", "Time", 1.5, &[(0.5, 2), (f64::INFINITY, 1)])
        });
        assert_eq!(
            text.unwrap(),
            "# HELP waystation_source_bytes_total Bytes\n\
             # TYPE waystation_source_bytes_total counter\n\
             waystation_source_bytes_total{source=\"a\\\"b\\\\c\"} 9007199254740992\n\
             waystation_source_bytes_total{source=\"d\"} 0\n\
             # HELP waystation_agent_ready Ready\n\
             # TYPE waystation_agent_ready gauge\n\
             waystation_agent_ready 1.0\n\
             # HELP waystation_commit_seconds Time\n\
             # TYPE waystation_commit_seconds histogram\n\
             waystation_commit_seconds_bucket{le=\"0.5\"} 2\n\
             waystation_commit_seconds_bucket{le=\"+Inf\"} 3\n\
             waystation_commit_seconds_sum 1.5\n\
             waystation_commit_seconds_count 3\n"
        );
    }
}
