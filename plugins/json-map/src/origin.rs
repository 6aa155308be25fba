//! Where a value comes from that is not in the payload.

use serde::Deserialize;
use waystation_plugin::json::to_text;
use waystation_plugin::time::rfc3339;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_origin_is_refused() {
        for text in ["", "subject.0", "subject.x", "header.", "now", "time.x"] {
            assert_eq!(Origin::parse(text), None, "{text}");
        }
        assert_eq!(Origin::parse("subject.2"), Some(Origin::Token(1)));
        assert_eq!(Origin::parse("header.a.b"), Some(Origin::Header("a.b".to_owned())));
    }
}
