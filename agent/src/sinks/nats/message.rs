//! One record as a JetStream message: subject, headers with the record identity, size, and what NATS cannot carry.

use async_nats::HeaderMap;
use async_nats::header::{HeaderName, HeaderValue};
use bytes::Bytes;

use super::subject::write_subject;
use crate::limits::NATS_SUBJECT_BYTES_MAX;
use crate::record::RecordView;
use crate::record::id::{LaneName, write_record_identity};
use crate::record::template::Template;
use crate::sinks::{Class, SinkError};

/// The server deduplicates by this header; its value is the record identity.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The server refuses the message when its subject belongs to another stream, instead of storing it there.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Headers with this prefix are commands to the server (`Nats-Rollup` empties a stream).
const RESERVED_PREFIX: &str = "Nats-";

/// Makes messages of one batch. Its buffers are used again for each record.
pub(super) struct Messages<'a> {
    template: &'a Template,
    lane: &'a LaneName,
    stream: Option<&'a str>,
    identity: String,
    subject: String,
}

/// A message, ready to be published.
pub(super) struct Message {
    pub(super) subject: async_nats::Subject,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    /// Subject, headers and payload.
    pub(super) bytes: u64,
    /// Headers and payload, which the server bounds.
    pub(super) size: usize,
}

/// How large a message may be, headers included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SizeBounds {
    /// The server's `max_payload`.
    pub(super) server: usize,
    /// The stream's `max_msg_size` and its name, where they are known.
    pub(super) stream: Option<(usize, String)>,
}

impl SizeBounds {
    fn check(&self, size: usize) -> Result<(), String> {
        if size > self.server {
            let max = self.server;
            return Err(format!("exceeds server max_payload {max} (size incl. headers {size})"));
        }
        match &self.stream {
            Some((max, stream)) if size > *max => Err(format!(
                "exceeds max_msg_size {max} of stream {stream} (size incl. headers {size})"
            )),
            _ => Ok(()),
        }
    }
}

impl<'a> Messages<'a> {
    pub(super) fn new(template: &'a Template, lane: &'a LaneName, stream: Option<&'a str>) -> Self {
        Self { template, lane, stream, identity: String::new(), subject: String::new() }
    }

    /// Checks that NATS and the stream can carry the record.
    ///
    /// # Errors
    /// Says what is wrong with it, without its content.
    pub(super) fn check(
        &mut self,
        record: &RecordView<'_>,
        bounds: &SizeBounds,
    ) -> Result<(), String> {
        self.set(record);
        if self.subject.len() > NATS_SUBJECT_BYTES_MAX {
            let size = self.subject.len();
            return Err(format!(
                "the subject has {size} bytes, the limit is {NATS_SUBJECT_BYTES_MAX}"
            ));
        }
        for (name, value) in record.headers {
            if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic() || c == ':') {
                return Err(format!("{name:?} is no header name in NATS"));
            }
            if name
                .get(..RESERVED_PREFIX.len())
                .is_some_and(|p| p.eq_ignore_ascii_case(RESERVED_PREFIX))
            {
                return Err(format!("the header {name} is a command to the server"));
            }
            if value.contains(['\r', '\n']) {
                return Err(format!("the header {name} holds a line break"));
            }
        }
        bounds.check(self.headers_bytes(record) + record.payload.len())
    }

    /// The identity of a record within its lane.
    pub(super) fn identity_in_lane(&mut self, record: &RecordView<'_>) -> &str {
        write_record_identity(&mut self.identity, self.lane, record);
        let lane = self.lane.as_str();
        self.identity.strip_prefix(lane).unwrap_or(&self.identity).trim_start_matches('/')
    }

    /// Makes the message of a record that was checked. The payload stays where it is, in the block.
    ///
    /// # Errors
    /// [`Class::Rejected`], as [`Self::check`] would have said.
    pub(super) fn make(
        &mut self,
        record: &RecordView<'_>,
        block: &Bytes,
    ) -> Result<Message, SinkError> {
        self.set(record);
        let mut headers = HeaderMap::new();
        headers.insert(MESSAGE_ID, self.value(&self.identity)?);
        if let Some(stream) = self.stream {
            headers.insert(EXPECTED_STREAM, self.value(stream)?);
        }
        for (name, value) in record.headers {
            let name: HeaderName =
                name.parse().map_err(|_| self.rejected("a header name is none in NATS"))?;
            headers.append(name, self.value(value)?);
        }
        let size = self.headers_bytes(record) + record.payload.len();
        Ok(Message {
            bytes: (self.subject.len() + size) as u64,
            subject: self.subject.as_str().into(),
            headers,
            payload: block.slice_ref(record.payload),
            size,
        })
    }

    fn set(&mut self, record: &RecordView<'_>) {
        write_record_identity(&mut self.identity, self.lane, record);
        write_subject(self.template, record.subject, &mut self.subject);
    }

    fn value(&self, text: &str) -> Result<HeaderValue, SinkError> {
        text.parse().map_err(|_| self.rejected("a header value holds a line break"))
    }

    /// What the headers take on the wire, which the server counts as payload.
    fn headers_bytes(&self, record: &RecordView<'_>) -> usize {
        let line = |name: &str, value: &str| name.len() + ": ".len() + value.len() + "\r\n".len();
        let ours = line(MESSAGE_ID, &self.identity)
            + self.stream.map_or(0, |stream| line(EXPECTED_STREAM, stream));
        let theirs: usize = record.headers.iter().map(|(name, value)| line(name, value)).sum();
        "NATS/1.0\r\n".len() + ours + theirs + "\r\n".len()
    }

    fn rejected(&self, why: &str) -> SinkError {
        SinkError::new(Class::Rejected, format!("record {} cannot be sent: {why}", self.identity))
    }
}
