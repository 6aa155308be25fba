//! Spans of time as the config writes them.

use serde::Deserialize;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
/// Longest span: a year.
const NANOS_MAX: u64 = 366 * 86_400_000_000_000;

/// A span in nanoseconds, more than none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) u64);

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let unit = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(unit);
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let nanos = number.parse::<u64>().ok()?.checked_mul(*nanos)?;
        (1..=NANOS_MAX).contains(&nanos).then_some(Self(nanos))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "\"{text}\" is no time from 1ms to 366d; write it as 500ms, 10s, 5m, 1h or 1d"
            ))
        })
    }
}

#[cfg(test)]
impl schemars::JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        for (text, nanos) in [("1ms", 1_000_000), ("10s", 10_000_000_000), ("366d", NANOS_MAX)] {
            assert_eq!(Span::parse(text), Some(Span(nanos)), "{text}");
        }
        for text in
            ["", "10", "s", "0s", "-1s", "1.5s", "1 s", "1w", "367d", "99999999999999999999s"]
        {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }
}
