//! Where a value comes from that is not in the payload.

use serde::Deserialize;
use waystation_plugin::json::to_text;
use waystation_plugin::{Place, Record};

const NAMES: &str = "\"subject\", \"subject.N\", \"header.NAME\", \"time\", \"time_unix_ms\", \"seq\", \"agent\", \
    \"source\", \"pipeline\" or \"sink\"";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Subject,
    /// A token of the subject, counted from 0.
    Token(usize),
    Header(String),
    Time,
    UnixMillis,
    Seq,
    Agent,
    Source,
    Pipeline,
    Sink,
}

impl Origin {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "subject" => Self::Subject,
            "time" => Self::Time,
            "time_unix_ms" => Self::UnixMillis,
            "seq" => Self::Seq,
            "agent" => Self::Agent,
            "source" => Self::Source,
            "pipeline" => Self::Pipeline,
            "sink" => Self::Sink,
            _ => match text.split_once('.')? {
                ("subject", number) => Self::Token(number.parse::<usize>().ok()?.checked_sub(1)?),
                ("header", name) if !name.is_empty() => Self::Header(name.to_owned()),
                _ => return None,
            },
        })
    }

    /// The value as JSON text; none when the record has no such token or header.
    pub(crate) fn value(&self, record: &Record, place: &Place) -> Option<String> {
        Some(match self {
            Self::Subject => to_text(&record.subject),
            Self::Token(at) => to_text(record.subject.split('.').nth(*at)?),
            Self::Header(name) => {
                let header = record.headers.iter().find(|header| header.name == *name)?;
                to_text(&header.value)
            }
            Self::Time => to_text(&rfc3339(record.time)),
            Self::UnixMillis => record.time.div_euclid(1_000_000).to_string(),
            Self::Seq => record.seq.to_string(),
            Self::Agent => to_text(&place.agent),
            Self::Source => to_text(&place.source),
            Self::Pipeline => to_text(&place.pipeline),
            Self::Sink => to_text(&place.sink),
        })
    }
}

impl<'de> Deserialize<'de> for Origin {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("\"{text}\" is not {NAMES}")))
    }
}

/// Nanoseconds since 1970 as a time in UTC, with as many digits of the second as are needed, by threes.
fn rfc3339(time: i64) -> String {
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

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in ["", "subject.0", "subject.x", "header.", "now", "time.x"] {
            assert_eq!(Origin::parse(text), None, "{text}");
        }
        assert_eq!(Origin::parse("subject.2"), Some(Origin::Token(1)));
        assert_eq!(Origin::parse("header.a.b"), Some(Origin::Header("a.b".to_owned())));
    }
}
