//! The source that makes records up, for trials and tests.
//!
//! How many it has made is its position: started again it goes on counting where it was, and a source that has made its
//! `records` is at its end for good.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::collect::Collector;
use super::config::{GenerateSourceConfig, LineLimits, OnOversize};
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions, Times};
use crate::clock::SharedClock;
use crate::journal::Appender;
use crate::limits::RECORD_BYTES_MAX;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::record::time::push_rfc3339;
use crate::tasks::Shutdown;
use crate::units::ByteSize;

const POSITION: &str = "made";
const FIELDS: &[&str] = &["n", "time"];
/// Records that are made before the task lets others run.
const TURN_RECORDS: u64 = 1000;

pub(super) struct GenerateSource {
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    times: Option<Arc<Times>>,
    records: Option<u64>,
    every: Duration,
    payload: Template,
    subject: String,
}

impl GenerateSource {
    pub(super) fn new(
        id: SourceId,
        config: &GenerateSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once && config.records.is_none() {
            let hint = "; set records";
            return Err(SourceError::Endless { source_id: id, hint });
        }
        let subject = Template::parse(&config.subject, &["source"])
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?
            .render(&[id.as_str()]);
        Ok(Self {
            clock: Arc::clone(&options.clock),
            counters: Arc::clone(&options.counters),
            times: options.times.clone(),
            records: config.records,
            every: config.every,
            payload: Template::parse_lenient(&config.payload, FIELDS),
            subject,
        })
    }

    /// Makes the next `count` records after `made`, and pushes what fills a chunk.
    async fn make(
        &self,
        made: u64,
        count: u64,
        collector: &mut Collector,
        feed: &mut Feed,
    ) -> Result<(), SourceError> {
        let now = self.clock.now();
        let mut time = String::new();
        push_rfc3339(now, &mut time);
        let mut payload = String::new();
        for n in made + 1..=made + count {
            payload.clear();
            self.payload.render_into(&mut payload, |field, out| match field {
                0 => out.push_str(&n.to_string()),
                _ => out.push_str(&time),
            });
            if !collector.has_room(payload.len(), self.subject.len()) {
                push(n - 1, collector, feed).await?;
            }
            collector.record(now, &self.subject, payload.as_bytes());
        }
        Ok(())
    }
}

async fn push(made: u64, collector: &mut Collector, feed: &mut Feed) -> Result<(), SourceError> {
    collector.position(POSITION.to_owned(), Some(made.to_string().into_bytes()));
    if let Some(append) = collector.take() {
        feed.push(append).await?;
    }
    Ok(())
}

#[async_trait]
impl Source for GenerateSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let saved = appender.positions().get(POSITION);
        let mut made: u64 = saved
            .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
            .unwrap_or_default();
        let mut feed = Feed::new(appender, Arc::clone(&self.counters));
        let limits = LineLimits {
            record_bytes_max: ByteSize(RECORD_BYTES_MAX as u64),
            on_oversize: OnOversize::Truncate,
        };
        let mut collector =
            Collector::new(limits, Arc::clone(&self.counters)).timed(self.times.as_ref());
        let end = self.records.unwrap_or(u64::MAX);
        let every = u64::try_from(self.every.as_nanos()).unwrap_or(u64::MAX);
        let (began, made_before) = (self.clock.monotonic(), made);
        while made < end && !shutdown.is_requested() {
            let due = match every {
                0 => TURN_RECORDS,
                // The first one at once, then one for each period that has passed.
                _ => {
                    let passed = self.clock.monotonic().0.saturating_sub(began.0) / every + 1;
                    passed.saturating_sub(made - made_before).min(TURN_RECORDS)
                }
            };
            let count = due.min(end - made);
            self.make(made, count, &mut collector, &mut feed).await?;
            made += count;
            if every > 0 {
                push(made, &mut collector, &mut feed).await?;
                if due < TURN_RECORDS {
                    let next = began.0.saturating_add((made - made_before).saturating_mul(every));
                    let wait = next.saturating_sub(self.clock.monotonic().0);
                    feed.drain().await?;
                    shutdown.sleep(Duration::from_nanos(wait).max(Duration::from_millis(1))).await;
                }
            } else {
                tokio::task::yield_now().await;
            }
        }
        push(made, &mut collector, &mut feed).await?;
        feed.drain().await?;
        Ok(if made >= end { Finished::End } else { Finished::Stopped })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sources::tests::{open, options, payloads, records, source_id};

    fn config(records: Option<u64>, every: Duration) -> GenerateSourceConfig {
        GenerateSourceConfig {
            records,
            every,
            payload: r#"{"n":{n}}"#.to_owned(),
            subject: "made.{source}".to_owned(),
        }
    }

    async fn run(journal: &crate::journal::Journal, config: &GenerateSourceConfig) -> Finished {
        let mut source =
            Box::new(GenerateSource::new(source_id(), config, &options(true)).unwrap());
        let appender = journal.appender(&source_id()).await.unwrap();
        source.run(appender, Shutdown::new()).await.unwrap()
    }

    #[tokio::test]
    async fn it_makes_as_many_as_asked_and_none_again() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        assert_eq!(run(&journal, &config(Some(30_000), Duration::ZERO)).await, Finished::End);
        assert_eq!(run(&journal, &config(Some(30_000), Duration::ZERO)).await, Finished::End);
        assert_eq!(
            run(&journal, &config(Some(30_003), Duration::from_millis(1))).await,
            Finished::End
        );
        let made = records(&journal).await;
        assert_eq!(made.len(), 30_003);
        assert_eq!(made[0].0, "made.src");
        for (index, (_, _, payload)) in made.iter().enumerate() {
            assert_eq!(payload, format!(r#"{{"n":{}}}"#, index + 1).as_bytes());
        }
    }

    #[tokio::test]
    async fn an_endless_one_is_refused_once_and_stops_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let endless = config(None, Duration::from_micros(100));
        let refused = GenerateSource::new(source_id(), &endless, &options(true)).err().unwrap();
        assert!(refused.to_string().contains("never ends"));
        let mut source =
            Box::new(GenerateSource::new(source_id(), &endless, &options(false)).unwrap());
        let counters = source.counters();
        let appender = journal.appender(&source_id()).await.unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let ask = async {
            while counters.records.load(Ordering::Relaxed) < 50 {
                tokio::task::yield_now().await;
            }
            asked.request();
        };
        let (finished, ()) = tokio::join!(source.run(appender, shutdown), ask);
        assert_eq!(finished.unwrap(), Finished::Stopped);
        assert_eq!(payloads(&journal).await.len() as u64, counters.records.load(Ordering::Relaxed));
    }
}
