//! Times as a config and a record write them.

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

/// A span of time in nanoseconds, as a config writes it: `500ms`, `10s`, `5m`, `1h` or `1d`, up to a year.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub u64);

impl Span {
    fn parse(text: &str) -> Option<Self> {
        let unit = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(unit);
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let nanos = number.parse::<u64>().ok()?.checked_mul(*nanos)?;
        (nanos <= NANOS_MAX).then_some(Self(nanos))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "\"{text}\" is no time from 0s to 366d; write it as 500ms, 10s, 5m, 1h or 1d"
            ))
        })
    }
}

#[cfg(feature = "testing")]
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

/// Nanoseconds since 1970 as a time in UTC, with as many digits of the second as are needed, by threes.
#[must_use]
pub fn rfc3339(time: i64) -> String {
    let (seconds, nanos) = (time.div_euclid(1_000_000_000), time.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match nanos {
        0 => String::new(),
        _ if nanos % 1_000_000 == 0 => format!(".{:03}", nanos / 1_000_000),
        _ if nanos % 1000 == 0 => format!(".{:06}", nanos / 1000),
        _ => format!(".{nanos:09}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// The date of a day counted from 1970-01-01. Years are taken to begin in March, so that a leap day is the last of its year.
fn date(days: i64) -> (i64, i64, i64) {
    const CYCLE: i64 = 146_097;
    let from_march = days + 719_468;
    let (cycle, day) = (from_march.div_euclid(CYCLE), from_march.rem_euclid(CYCLE));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (cycle * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        for (text, nanos) in
            [("0s", 0), ("1ms", 1_000_000), ("10s", 10_000_000_000), ("366d", NANOS_MAX)]
        {
            assert_eq!(Span::parse(text), Some(Span(nanos)), "{text}");
        }
        for text in ["", "10", "s", "-1s", "1.5s", "1 s", "1w", "367d", "99999999999999999999s"] {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_what_the_calendar_says() {
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (1_767_225_599, 500_000_000, "2025-12-31T23:59:59.500Z"),
            (1_767_225_600, 1_000, "2026-01-01T00:00:00.000001Z"),
            (4_107_542_400, 1, "2100-03-01T00:00:00.000000001Z"),
            (-1, 0, "1969-12-31T23:59:59Z"),
            (-9_223_372_036, 0, "1677-09-21T00:12:44Z"),
        ] {
            assert_eq!(rfc3339(seconds * 1_000_000_000 + nanos), expected);
        }
    }
}
