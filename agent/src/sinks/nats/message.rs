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
const MESSAGE_ID: &str = "Nats-Msg-Id";
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
    pub(super) bytes: u64,
}

impl<'a> Messages<'a> {
    pub(super) fn new(template: &'a Template, lane: &'a LaneName, stream: Option<&'a str>) -> Self {
        Self { template, lane, stream, identity: String::new(), subject: String::new() }
    }

    /// Checks that NATS can carry the record, in at most `payload_max` bytes of headers and payload.
    ///
    /// # Errors
    /// [`Class::Rejected`], naming the record and what is wrong with it.
    pub(super) fn check(
        &mut self,
        record: &RecordView<'_>,
        payload_max: usize,
    ) -> Result<(), SinkError> {
        self.set(record);
        if self.subject.len() > NATS_SUBJECT_BYTES_MAX {
            let size = self.subject.len();
            return Err(self.rejected(&format!(
                "its subject has {size} bytes, the limit is {NATS_SUBJECT_BYTES_MAX}"
            )));
        }
        for (name, value) in record.headers {
            if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic() || c == ':') {
                return Err(self.rejected(&format!("{name:?} is no header name in NATS")));
            }
            if name
                .get(..RESERVED_PREFIX.len())
                .is_some_and(|p| p.eq_ignore_ascii_case(RESERVED_PREFIX))
            {
                return Err(self.rejected(&format!("the header {name} is a command to the server")));
            }
            if value.contains(['\r', '\n']) {
                return Err(self.rejected(&format!("its header {name} holds a line break")));
            }
        }
        let size = self.headers_bytes(record) + record.payload.len();
        if size > payload_max {
            return Err(self.rejected(&format!(
                "it has {size} bytes with headers, the server takes {payload_max}"
            )));
        }
        Ok(())
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
        let bytes = self.subject.len() + self.headers_bytes(record) + record.payload.len();
        Ok(Message {
            subject: self.subject.as_str().into(),
            headers,
            payload: block.slice_ref(record.payload),
            bytes: bytes as u64,
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
