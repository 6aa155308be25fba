//! The author's cases: one JSON object a line.
//!
//! ```json
//! {"name": "warm", "records": [{"payload": {"t": 21}}], "expect": [{"payload": {"t": 69.8}}]}
//! ```
//!
//! | key | meaning |
//! |---|---|
//! | `name` | shown in the table |
//! | `config` | the `config` table; default that of `--config`, else `{}` |
//! | `now` | what the plugin is told the time is; RFC 3339 or nanoseconds since 1970; default 2026-01-01T00:00:00Z |
//! | `records` | what goes in, in one call: `payload` (a text, or any other JSON value) or `payload_base64`; `subject` (default `"test"`), `headers` (`{"name": "value"}`, or `[["name", "value"], …]` where names repeat), `time` (default as `now`). Their seqs are 1, 2, … |
//! | `expect` | one for each record: `"keep"`, `"drop"`, `{"reject": "part of the reason"}`, a record, or a list of records. Of a record the keys that are given are compared; a `payload` that is no text as JSON, whatever the order of keys and the spelling of numbers |
//! | `error` | instead of `expect`: part of the reason why `init` or the call fails |
//!
//! Empty lines and lines that begin with `#` are skipped.

use std::path::Path;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::cli::plugin::listed;
use crate::cli::{ExitCode, Failure};
use crate::clock::Timestamp;
use crate::limits::PLUGIN_CASES_BYTES_MAX;
use crate::record::HeadersBuffer;
use crate::record::codec::FrameBuffer;
use crate::units::human_bytes;

/// 2026-01-01T00:00:00Z: a time that is the same in every run.
pub(super) const NOW: Timestamp = Timestamp(1_767_225_600_000_000_000);

const SUBJECT: &str = "test";
const CASE_KEYS: &[&str] = &["name", "config", "now", "records", "expect", "error"];
const CONTENT_KEYS: &[&str] = &["payload", "payload_base64", "subject", "headers", "time"];

/// One line of the file.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) line: usize,
    /// As JSON text.
    pub(super) config: Option<String>,
    pub(super) now: Timestamp,
    pub(super) records: FrameBuffer,
    pub(super) expected: Expected,
}

/// What a case expects of its call.
#[derive(Debug)]
pub(super) enum Expected {
    /// One for each record.
    Each(Vec<Expectation>),
    /// That it fails, with this in the reason.
    Error(String),
}

/// What a case expects of a record.
#[derive(Debug)]
pub(super) enum Expectation {
    Keep,
    /// With this in the reason.
    Reject(String),
    /// These records; none for one that is dropped.
    Records(Vec<Content>),
}

/// A record, as far as it is given.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) payload: Option<Payload>,
    pub(super) subject: Option<String>,
    pub(super) headers: Option<Vec<(String, String)>>,
    pub(super) time: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) enum Payload {
    Bytes(Vec<u8>),
    Json(Value),
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Json(value) => value.to_string().into_bytes(),
        }
    }
}

/// Reads a file of cases.
///
/// # Errors
/// All problems at once, each with its line and key.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Case>> {
    let cannot = || format!("cannot read {}", path.display());
    let size = std::fs::metadata(path).with_context(cannot)?.len();
    let text = if size <= PLUGIN_CASES_BYTES_MAX {
        std::fs::read_to_string(path).with_context(cannot)?
    } else {
        let limit = human_bytes(PLUGIN_CASES_BYTES_MAX);
        return Err(failure(path, &[format!("it is larger than {limit}")]));
    };
    parse(&text).map_err(|problems| failure(path, &problems))
}

fn failure(path: &Path, problems: &[String]) -> anyhow::Error {
    let message = listed(&format!("the cases in {} cannot be used", path.display()), problems);
    let hint = "`waystation plugin test --help` says what a case is made of".to_owned();
    Failure { code: ExitCode::Failed, message, hint: Some(hint) }.into()
}

fn parse(text: &str) -> Result<Vec<Case>, Vec<String>> {
    let mut problems = Vec::new();
    let mut cases = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut reader = Reader { line: number, problems: &mut problems };
        match serde_json::from_str::<Value>(line) {
            Ok(value) => cases.extend(reader.case(&value)),
            Err(error) => reader.problem("", format!("it is no JSON: {error}")),
        }
    }
    if problems.is_empty() { Ok(cases) } else { Err(problems) }
}

/// Reads one line, and collects what is wrong with it.
struct Reader<'a> {
    line: usize,
    problems: &'a mut Vec<String>,
}

impl Reader<'_> {
    fn problem(&mut self, key: &str, problem: impl AsRef<str>) {
        let key = if key.is_empty() { String::new() } else { format!("{key}: ") };
        self.problems.push(format!("line {}: {key}{}", self.line, problem.as_ref()));
    }

    /// The object, whose keys must be these.
    fn object<'v>(
        &mut self,
        at: &str,
        value: &'v Value,
        keys: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let Value::Object(object) = value else {
            self.problem(at, "must be an object");
            return None;
        };
        for key in object.keys().filter(|key| !keys.contains(&key.as_str())) {
            let near = keys.iter().find(|known| strsim::damerau_levenshtein(key, known) <= 2);
            let known = match near {
                Some(near) => format!("did you mean {near}?"),
                None => format!("there are {}", keys.join(", ")),
            };
            self.problem(&below(at, key), format!("there is no such key; {known}"));
        }
        Some(object)
    }

    fn text(&mut self, at: &str, value: &Value) -> Option<String> {
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.problem(at, "must be a text");
        }
        text
    }

    fn list<'v>(&mut self, at: &str, value: &'v Value) -> &'v [Value] {
        match value {
            Value::Array(values) => values,
            _ => {
                self.problem(at, "must be a list");
                &[]
            }
        }
    }

    fn time(&mut self, at: &str, value: &Value) -> Option<Timestamp> {
        let time = match value {
            Value::Number(number) => number.as_i64(),
            Value::String(text) => text
                .parse::<jiff::Timestamp>()
                .ok()
                .and_then(|time| i64::try_from(time.as_nanosecond()).ok()),
            _ => None,
        };
        if time.is_none() {
            self.problem(at, "must be a time as 2026-01-31T12:00:00Z, or nanoseconds since 1970");
        }
        time.map(Timestamp)
    }

    fn case(&mut self, value: &Value) -> Option<Case> {
        let object = self.object("", value, CASE_KEYS)?;
        let name = match object.get("name") {
            Some(name) => self.text("name", name),
            None => Some(format!("line {}", self.line)),
        };
        let config = object.get("config").and_then(|config| {
            if !config.is_object() {
                self.problem("config", "must be an object");
            }
            config.is_object().then(|| config.to_string())
        });
        let now = object.get("now").and_then(|now| self.time("now", now)).unwrap_or(NOW);
        let inputs = match object.get("records") {
            Some(records) => self.list("records", records),
            None => &[],
        };
        let mut records = FrameBuffer::default();
        for (index, input) in inputs.iter().enumerate() {
            self.input(&format!("records[{index}]"), input, now, &mut records);
        }
        let expected = self.expected(object, inputs.len());
        Some(Case { name: name?, line: self.line, config, now, records, expected: expected? })
    }

    fn input(&mut self, at: &str, value: &Value, now: Timestamp, records: &mut FrameBuffer) {
        let Some(content) = self.content(at, value) else { return };
        let Some(payload) = &content.payload else {
            self.problem(at, "has no payload; give payload or payload_base64");
            return;
        };
        let mut headers = HeadersBuffer::default();
        content.headers.iter().flatten().for_each(|(name, value)| headers.push(name, value));
        let subject = content.subject.as_deref().unwrap_or(SUBJECT);
        let time = content.time.unwrap_or(now);
        records.push_new(time, subject, headers.as_headers(), &payload.bytes());
    }

    fn expected(&mut self, case: &Map<String, Value>, records: usize) -> Option<Expected> {
        match (case.get("expect"), case.get("error")) {
            (None, Some(error)) => self.text("error", error).map(Expected::Error),
            (Some(expect), None) => {
                let values = self.list("expect", expect);
                if values.len() != records && expect.is_array() {
                    let problem = format!("has {} outcomes for {records} records", values.len());
                    self.problem("expect", problem);
                }
                let each = values.iter().enumerate();
                let each: Vec<_> = each
                    .filter_map(|(index, value)| {
                        self.expectation(&format!("expect[{index}]"), value)
                    })
                    .collect();
                Some(Expected::Each(each))
            }
            _ => {
                self.problem("", "give expect, one outcome for each record, or error");
                None
            }
        }
    }

    fn expectation(&mut self, at: &str, value: &Value) -> Option<Expectation> {
        match value {
            Value::String(word) if word == "keep" => Some(Expectation::Keep),
            Value::String(word) if word == "drop" => Some(Expectation::Records(Vec::new())),
            Value::Object(object) if object.contains_key("reject") => {
                let object = self.object(at, value, &["reject"])?;
                let reason = self.text(&below(at, "reject"), object.get("reject")?)?;
                Some(Expectation::Reject(reason))
            }
            Value::Object(_) => Some(Expectation::Records(vec![self.content(at, value)?])),
            Value::Array(parts) => {
                let parts = parts.iter().enumerate();
                let parts: Vec<_> = parts
                    .filter_map(|(index, part)| self.content(&format!("{at}[{index}]"), part))
                    .collect();
                Some(Expectation::Records(parts))
            }
            _ => {
                let problem =
                    "must be \"keep\", \"drop\", {\"reject\": …}, a record, or a list of records";
                self.problem(at, problem);
                None
            }
        }
    }

    fn content(&mut self, at: &str, value: &Value) -> Option<Content> {
        let object = self.object(at, value, CONTENT_KEYS)?;
        let mut content = Content::default();
        let encoded = object.get("payload_base64");
        content.payload = match (object.get("payload"), encoded) {
            (Some(_), Some(_)) => {
                self.problem(at, "has both payload and payload_base64");
                None
            }
            (Some(Value::String(text)), None) => Some(Payload::Bytes(text.clone().into_bytes())),
            (Some(value), None) => Some(Payload::Json(value.clone())),
            (None, Some(encoded)) => {
                let at = below(at, "payload_base64");
                let text = self.text(&at, encoded)?;
                let bytes = STANDARD.decode(text);
                if bytes.is_err() {
                    self.problem(&at, "is no base64");
                }
                bytes.ok().map(Payload::Bytes)
            }
            (None, None) => None,
        };
        let get = |key: &str| Some((below(at, key), object.get(key)?));
        let (subject, headers, time) = (get("subject"), get("headers"), get("time"));
        content.subject = subject.and_then(|(at, value)| self.text(&at, value));
        content.headers = headers.map(|(at, value)| self.headers(&at, value));
        content.time = time.and_then(|(at, value)| self.time(&at, value));
        Some(content)
    }

    fn headers(&mut self, at: &str, value: &Value) -> Vec<(String, String)> {
        let pairs: Vec<_> = match value {
            Value::Object(object) => {
                object.iter().map(|(name, value)| (Some(name.clone()), value.as_str())).collect()
            }
            Value::Array(pairs) => pairs
                .iter()
                .map(|pair| match pair.as_array().map(Vec::as_slice) {
                    Some([name, value]) => (name.as_str().map(str::to_owned), value.as_str()),
                    _ => (None, None),
                })
                .collect(),
            _ => vec![(None, None)],
        };
        let pairs: Option<Vec<_>> =
            pairs.into_iter().map(|(name, value)| Some((name?, value?.to_owned()))).collect();
        if pairs.is_none() {
            let problem = "must be {\"name\": \"value\"} or a list of [\"name\", \"value\"]";
            self.problem(at, problem);
        }
        pairs.unwrap_or_default()
    }
}

fn below(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_with_its_comments_and_everything_that_a_case_may_have() {
        let text = r##"
# What the plugin does to one sensor.
{"name":"one","records":[{"payload":{"t":21.50}},{"payload":"text","subject":"s","headers":{"a":"b"},"time":"1970-01-01T00:00:01Z"}],"expect":["keep",{"reject":"no JSON"}]}

{"config":{"field":"t"},"now":5,"records":[{"payload_base64":"AP8=","headers":[["a","1"],["a","2"]]},{"payload":""},{"payload":""}],"expect":["drop",[{"payload":"x"},{"time":7}],{"payload":null,"subject":"s"}]}
{"name":"refused","config":{"no":1},"error":"unknown field"}
"##;
        let cases = parse(text).unwrap();
        let names: Vec<_> = cases.iter().map(|case| (case.name.as_str(), case.line)).collect();
        assert_eq!(names, [("one", 3), ("line 5", 5), ("refused", 6)]);
        assert_eq!((cases[0].now, cases[1].now), (NOW, Timestamp(5)));
        assert_eq!(cases[1].config.as_deref(), Some(r#"{"field":"t"}"#));
        assert_eq!((cases[0].records.count(), cases[1].records.count()), (2, 3));
        let Expected::Each(each) = &cases[1].expected else { panic!() };
        assert!(matches!(&each[0], Expectation::Records(none) if none.is_empty()));
        let Expectation::Records(two) = &each[1] else { panic!() };
        assert_eq!((two.len(), two[1].time), (2, Some(Timestamp(7))));
        assert!(matches!(&cases[2].expected, Expected::Error(part) if part == "unknown field"));
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once_with_line_and_key() {
        let text = r#"
{"name":"a","recrods":[],"records":[{"paylod":"x","colour":1},{"payload":"x","payload_base64":"eA=="},{"payload_base64":"?","time":"noon","headers":{"a":1}}],"expect":["keep"]}
{"records":[{"payload":"x"}],"expect":["kept"]}
{"records":[{"payload":"x"}],"expect":[{"reject":1}]}
{"records":3,"config":[],"name":7,"expect":[]}
{"name":"b"}
[]
{"name":
"#;
        let expected = [
            "line 2: recrods: there is no such key; did you mean records?",
            "line 2: records[0].paylod: there is no such key; did you mean payload?",
            "line 2: records[0].colour: there is no such key; there are payload, payload_base64, subject, headers, time",
            "line 2: records[0]: has no payload; give payload or payload_base64",
            "line 2: records[1]: has both payload and payload_base64",
            "line 2: records[1]: has no payload; give payload or payload_base64",
            "line 2: records[2].payload_base64: is no base64",
            "line 2: records[2].headers: must be {\"name\": \"value\"} or a list of [\"name\", \"value\"]",
            "line 2: records[2].time: must be a time as 2026-01-31T12:00:00Z, or nanoseconds since 1970",
            "line 2: records[2]: has no payload; give payload or payload_base64",
            "line 2: expect: has 1 outcomes for 3 records",
            "line 3: expect[0]: must be \"keep\", \"drop\", {\"reject\": …}, a record, or a list of records",
            "line 4: expect[0].reject: must be a text",
            "line 5: name: must be a text",
            "line 5: config: must be an object",
            "line 5: records: must be a list",
            "line 6: give expect, one outcome for each record, or error",
            "line 7: must be an object",
        ];
        let problems = parse(text).unwrap_err();
        assert_eq!(problems[..expected.len()], expected);
        assert!(problems[expected.len()].starts_with("line 8: it is no JSON: EOF"), "{problems:?}");
        assert_eq!(problems.len(), expected.len() + 1);
    }
}
