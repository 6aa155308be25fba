//! How a record stands in a file or on standard output.
//!
//! `lines` is the payload and a newline; a payload that holds a newline is refused, because it would come back as two
//! records. `json` is one object a line:
//!
//! ```json
//! {"id":"gw/s/p/k/00001abcde/42","time":"2026-01-02T03:04:05.000000006Z","subject":"s","headers":[["name","value"]],"payload":"text"}
//! ```
//!
//! `headers` is an array of pairs, because names may repeat and their order counts; it is there when it is empty, too.
//! `payload` is a string when it is UTF-8, otherwise `payload_base64` stands in its place (standard alphabet, padded).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::config::LineFormat;
use super::{Class, SinkError};
use crate::record::RecordView;
use crate::record::id::{LaneName, write_record_identity};
use crate::record::time::push_rfc3339;

impl LineFormat {
    /// The word for `format` in the config and in what a sink fixes.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Json => "json",
        }
    }

    /// The format under this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Lines, Self::Json].into_iter().find(|format| format.as_str() == word)
    }
}

/// Appends records of one lane to a buffer. Allocates nothing per record once its buffers have grown.
#[derive(Debug)]
pub(super) struct LineEncoder<'a> {
    format: LineFormat,
    lane: &'a LaneName,
    identity: String,
}

impl<'a> LineEncoder<'a> {
    pub(super) fn new(format: LineFormat, lane: &'a LaneName) -> Self {
        Self { format, lane, identity: String::new() }
    }

    /// Appends one record and its newline.
    ///
    /// # Errors
    /// [`Class::Rejected`] for a payload with a newline under `lines`, naming the record.
    pub(super) fn encode(
        &mut self,
        record: &RecordView<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), SinkError> {
        match self.format {
            LineFormat::Lines => {
                if memchr::memchr(b'\n', record.payload).is_some() {
                    write_record_identity(&mut self.identity, self.lane, record);
                    return Err(SinkError::new(
                        Class::Rejected,
                        format!(
                            "the payload of record {} holds a newline, which format = \"lines\" cannot keep",
                            self.identity
                        ),
                    ));
                }
                out.extend_from_slice(record.payload);
            }
            LineFormat::Json => {
                write_record_identity(&mut self.identity, self.lane, record);
                encode_json(record, &self.identity, out);
            }
        }
        out.push(b'\n');
        Ok(())
    }
}

fn encode_json(record: &RecordView<'_>, identity: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    push_string(identity, out);
    out.extend_from_slice(b",\"time\":\"");
    push_rfc3339(record.time, &mut *out);
    out.extend_from_slice(b"\",\"subject\":");
    push_string(record.subject, out);
    out.extend_from_slice(b",\"headers\":[");
    for (index, (name, value)) in record.headers.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"[" } else { b",[" });
        push_string(name, out);
        out.push(b',');
        push_string(value, out);
        out.push(b']');
    }
    if let Ok(text) = std::str::from_utf8(record.payload) {
        out.extend_from_slice(b"],\"payload\":");
        push_string(text, out);
        out.push(b'}');
    } else {
        out.extend_from_slice(b"],\"payload_base64\":\"");
        let start = out.len();
        out.resize(start + record.payload.len().div_ceil(3) * 4, 0);
        STANDARD
            .encode_slice(record.payload, &mut out[start..])
            .expect("the room was made for exactly this");
        out.extend_from_slice(b"\"}");
    }
}

fn push_string(text: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, text).expect("a string is always JSON, and a vector takes all");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::record::id::{Epoch, Seq};
    use crate::record::{HeadersBuffer, Origin};

    fn encoded(format: LineFormat, payload: &[u8]) -> Result<String, SinkError> {
        let mut headers = HeadersBuffer::default();
        headers.push("a", "1");
        headers.push("a", "\"2\"");
        let record = RecordView {
            epoch: Epoch::new(1, 2),
            seq: Seq(3),
            origin: Origin::default(),
            time: Timestamp(1_500_000_000_000_000_007),
            subject: "s.t",
            headers: headers.as_headers(),
            payload,
        };
        let mut out = Vec::new();
        LineEncoder::new(format, &LaneName::stored("gw/s/p/k")).encode(&record, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn json_shows_the_identity_and_keeps_repeated_headers() {
        assert_eq!(
            encoded(LineFormat::Json, b"a\nb\0").unwrap(),
            "{\"id\":\"gw/s/p/k/0000100002/3\",\"time\":\"2017-07-14T02:40:00.000000007Z\",\"subject\":\"s.t\",\
             \"headers\":[[\"a\",\"1\"],[\"a\",\"\\\"2\\\"\"]],\"payload\":\"a\\nb\\u0000\"}\n"
        );
        assert!(
            encoded(LineFormat::Json, b"\xff\xfe")
                .unwrap()
                .ends_with("\"payload_base64\":\"//4=\"}\n")
        );
    }

    #[test]
    fn a_newline_in_a_line_is_refused_by_identity_and_any_other_byte_is_kept() {
        assert_eq!(encoded(LineFormat::Lines, b"a\rb\0").unwrap(), "a\rb\0\n");
        let error = encoded(LineFormat::Lines, b"secret\n").unwrap_err();
        assert_eq!(error.class, Class::Rejected);
        assert!(error.reason.contains("gw/s/p/k/0000100002/3"));
        assert!(!error.reason.contains("secret"));
    }
}
