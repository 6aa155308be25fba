//! What became of a record, against what a case expects, and both in words.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::super::cases::{Content, Expectation, Payload};
use crate::clock::Timestamp;
use crate::plugin::{Draft, Outcome};
use crate::record::RecordView;

/// Most characters of a payload that are shown.
const SHOWN_CHARACTERS: usize = 400;

/// What became of a record: as the lane would pass it on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Got {
    /// None: it was dropped.
    Records(Vec<Made>),
    Reject(String),
}

/// A record that comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Made {
    time: Timestamp,
    subject: String,
    headers: Vec<(String, String)>,
    payload: Vec<u8>,
}

impl Got {
    pub(super) fn new(record: &RecordView<'_>, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Keep => Self::Records(vec![Made::kept(record)]),
            Outcome::Drop => Self::Records(Vec::new()),
            Outcome::Payload(payload) => {
                Self::Records(vec![Made { payload, ..Made::kept(record) }])
            }
            Outcome::Replace(draft) => Self::Records(vec![Made::drafted(record, draft)]),
            Outcome::Split(drafts) => {
                let made = drafts.into_iter().map(|draft| Made::drafted(record, draft));
                Self::Records(made.collect())
            }
            Outcome::Reject(reason) => Self::Reject(reason),
        }
    }

    /// In words, a line for each record.
    pub(super) fn shown(&self) -> Vec<String> {
        match self {
            Self::Reject(reason) => vec![format!("rejected: {reason}")],
            Self::Records(made) if made.is_empty() => vec!["dropped".to_owned()],
            Self::Records(made) => made.iter().map(Made::shown).collect(),
        }
    }
}

impl Made {
    pub(super) fn kept(record: &RecordView<'_>) -> Self {
        let headers = record.headers.iter();
        Self {
            time: record.time,
            subject: record.subject.to_owned(),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            payload: record.payload.to_vec(),
        }
    }

    fn drafted(record: &RecordView<'_>, draft: Draft) -> Self {
        Self {
            time: draft.time.unwrap_or(record.time),
            subject: draft.subject,
            headers: draft.headers,
            payload: draft.payload,
        }
    }

    fn shown(&self) -> String {
        let mut text = payload(&self.payload);
        text.push_str(&format!(" (subject {}, time {}", self.subject, time(self.time)));
        if !self.headers.is_empty() {
            text.push_str(&format!(", headers {}", headers(&self.headers)));
        }
        text + ")"
    }

    fn is(&self, expected: &Content) -> bool {
        let payload = match &expected.payload {
            None => true,
            Some(Payload::Bytes(bytes)) => *bytes == self.payload,
            Some(Payload::Json(value)) => serde_json::from_slice::<Value>(&self.payload)
                .is_ok_and(|payload| same_json(value, &payload)),
        };
        payload
            && expected.subject.as_ref().is_none_or(|subject| *subject == self.subject)
            && expected.headers.as_ref().is_none_or(|headers| *headers == self.headers)
            && expected.time.is_none_or(|time| time == self.time)
    }
}

/// `None` when the record became what is expected; else both in words, line by line.
pub(super) fn difference(
    record: &RecordView<'_>,
    expected: &Expectation,
    got: &Got,
) -> Option<Vec<String>> {
    let good = match (expected, got) {
        (Expectation::Reject(part), Got::Reject(reason)) => reason.contains(part),
        (Expectation::Keep, Got::Records(made)) => *made == [Made::kept(record)],
        (Expectation::Records(expected), Got::Records(made)) => {
            made.len() == expected.len()
                && made.iter().zip(expected).all(|(made, expected)| made.is(expected))
        }
        _ => false,
    };
    if good {
        return None;
    }
    let mut lines = vec![format!("record {}", record.seq)];
    let heads = |head| std::iter::once(head).chain(std::iter::repeat(""));
    let mut add = |head: &'static str, values: Vec<String>| {
        let lines_of = heads(head).zip(values);
        lines.extend(lines_of.map(|(head, value)| format!("  {head:<8}  {value}")));
    };
    add("expected", expectation(record, expected));
    add("got", got.shown());
    Some(lines)
}

fn expectation(record: &RecordView<'_>, expected: &Expectation) -> Vec<String> {
    match expected {
        Expectation::Keep => vec![Made::kept(record).shown()],
        Expectation::Reject(part) => vec![format!("rejected: …{part}…")],
        Expectation::Records(records) if records.is_empty() => vec!["dropped".to_owned()],
        Expectation::Records(records) => records.iter().map(content).collect(),
    }
}

fn content(content: &Content) -> String {
    let mut parts = Vec::new();
    parts.extend(content.subject.as_ref().map(|subject| format!("subject {subject}")));
    parts.extend(content.time.map(|at| format!("time {}", time(at))));
    parts.extend(content.headers.as_ref().map(|pairs| format!("headers {}", headers(pairs))));
    let text = match &content.payload {
        None => "a record".to_owned(),
        Some(Payload::Bytes(bytes)) => payload(bytes),
        Some(Payload::Json(value)) => payload(value.to_string().as_bytes()),
    };
    if parts.is_empty() { text } else { format!("{text} ({})", parts.join(", ")) }
}

/// A payload in one line of a terminal.
fn payload(bytes: &[u8]) -> String {
    let (text, kind) = match std::str::from_utf8(bytes) {
        Ok(text) => {
            let safe =
                |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
            (text.chars().take(SHOWN_CHARACTERS + 1).map(safe).collect::<String>(), "")
        }
        // Three bytes make four characters.
        Err(_) => (STANDARD.encode(&bytes[..bytes.len().min(SHOWN_CHARACTERS)]), "base64 "),
    };
    if bytes.is_empty() {
        return "an empty payload".to_owned();
    }
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => {
            let (head, _) = text.split_at(end);
            format!("{kind}{head}… of {} bytes", bytes.len())
        }
        None => format!("{kind}{text}"),
    }
}

fn time(time: Timestamp) -> String {
    jiff::Timestamp::from_nanosecond(time.0.into())
        .map_or_else(|_| time.0.to_string(), |time| time.to_string())
}

fn headers(headers: &[(String, String)]) -> String {
    let pairs = headers.iter().map(|(name, value)| format!("{name}={value}"));
    pairs.collect::<Vec<_>>().join(" ").escape_debug().to_string()
}

/// Whether two JSON values say the same: keys in any order, numbers however they are written.
fn same_json(one: &Value, two: &Value) -> bool {
    match (one, two) {
        (Value::Number(one), Value::Number(two)) => {
            // Beyond 53 bits only whole numbers are told apart.
            one == two || ((one.is_f64() || two.is_f64()) && one.as_f64() == two.as_f64())
        }
        (Value::Array(one), Value::Array(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| same_json(one, two))
        }
        (Value::Object(one), Value::Object(two)) => {
            one.len() == two.len()
                && one.iter().all(|(key, one)| two.get(key).is_some_and(|two| same_json(one, two)))
        }
        _ => one == two,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_is_compared_by_what_it_says() {
        assert!(same_json(&json!({"a": 1, "b": [70.0]}), &json!({"b": [70], "a": 1.0})));
        assert!(!same_json(&json!({"a": 1}), &json!({"a": 1, "b": null})));
        assert!(!same_json(&json!([1, 2]), &json!([2, 1])));
        assert!(!same_json(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
        assert!(!same_json(&json!("1"), &json!(1)));
    }

    #[test]
    fn a_payload_is_shown_on_one_line_whatever_it_holds() {
        assert_eq!(payload(b""), "an empty payload");
        assert_eq!(payload(b"a\nb\x1b[1m"), "a\\nb\\u{1b}[1m");
        assert_eq!(payload(b"\xff\xfe"), "base64 //4=");
        assert!(payload(&[b'x'; 1000]).ends_with("x… of 1000 bytes"));
        assert!(payload(&[0xff; 1000]).ends_with("… of 1000 bytes"));
    }
}
