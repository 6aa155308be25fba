//! What travels: records, their identities, and the frames that hold them in memory and on disk.
//!
//! A [`RecordView`] borrows from a block of frames; nothing is copied or allocated per record on the way from the journal
//! to a plugin or a sink. The encoding is in [`codec`], who is who in [`id`], what a sink is given in [`batch`].

pub mod batch;
pub mod codec;
pub mod id;
pub mod partition;
pub mod subject;
pub mod template;
pub mod time;

use std::fmt;

use crate::clock::Timestamp;
use id::{Epoch, Seq};

/// One record, borrowed from the frames that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView<'a> {
    /// The run of the agent that appended the record (or, for what a tick made, sealed it).
    pub epoch: Epoch,
    /// Position in the stream of its source; for what a tick made, the last one before it.
    pub seq: Seq,
    /// Which part of a split, and whether a tick made it.
    pub origin: Origin<'a>,
    /// Event time.
    pub time: Timestamp,
    /// Routing string.
    pub subject: &'a str,
    /// Names may repeat; order is kept.
    pub headers: Headers<'a>,
    /// The content. Any bytes.
    pub payload: &'a [u8],
}

impl RecordView<'_> {
    /// Bytes that count towards the bounds of calls and batches: subject, headers and payload.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.subject.len() + self.headers.0.len() + self.payload.len()
    }
}

/// Where an output record comes from, beyond its seq.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin<'a> {
    /// The batch whose tick made the record; `None` for a record that a source handed in.
    pub tick: Option<u64>,
    /// One number for each splitting stage, from 0.
    pub path: Path<'a>,
    /// How often its payload was replaced by hand; 0 for what a source handed in and what plugins made of that.
    pub repair: u64,
}

/// The numbers of the splits that a record went through, encoded as LEB128.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path<'a>(pub(crate) &'a [u8]);

impl Path<'_> {
    /// The numbers in the order of the stages.
    pub fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        let mut rest = self.0;
        std::iter::from_fn(move || codec::read_varint(&mut rest))
    }
}

/// Headers in their encoded form: for each, length and bytes of the name, then of the value.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers<'a>(pub(crate) &'a [u8]);

impl<'a> Headers<'a> {
    /// Name and value, in order.
    #[must_use]
    pub fn iter(&self) -> HeadersIter<'a> {
        HeadersIter(self.0)
    }

    /// The first value under `name`, which is compared without regard to ASCII case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Headers that were stored in their encoded form; `None` when these bytes are none.
    #[must_use]
    pub fn checked(bytes: &'a [u8]) -> Option<Self> {
        codec::checked_headers(bytes)
    }

    /// The encoded form.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> IntoIterator for Headers<'a> {
    type Item = (&'a str, &'a str);
    type IntoIter = HeadersIter<'a>;

    fn into_iter(self) -> HeadersIter<'a> {
        self.iter()
    }
}

/// Prints the names only: values may be secret or payload.
impl fmt::Debug for Headers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// Iterates over headers. Made by [`Headers::iter`].
#[derive(Debug, Clone)]
pub struct HeadersIter<'a>(&'a [u8]);

impl<'a> Iterator for HeadersIter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let name = codec::read_text(&mut self.0)?;
        let value = codec::read_text(&mut self.0)?;
        Some((name, value))
    }
}

/// Headers being put together, to be borrowed as [`Headers`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeadersBuffer(Vec<u8>);

impl HeadersBuffer {
    /// Adds one header at the end.
    pub fn push(&mut self, name: &str, value: &str) {
        for text in [name, value] {
            codec::write_varint(&mut self.0, text.len() as u64);
            self.0.extend_from_slice(text.as_bytes());
        }
    }

    /// Takes all out, keeping the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The headers so far.
    #[must_use]
    pub fn as_headers(&self) -> Headers<'_> {
        Headers(&self.0)
    }
}

/// A path of split numbers being put together, to be borrowed as [`Path`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathBuffer(Vec<u8>);

impl PathBuffer {
    /// The path that a part of a split record gets: that of the record, and its number.
    pub fn set(&mut self, parent: Path<'_>, number: u64) {
        self.0.clear();
        self.0.extend_from_slice(parent.0);
        codec::write_varint(&mut self.0, number);
    }

    /// The path so far.
    #[must_use]
    pub fn as_path(&self) -> Path<'_> {
        Path(&self.0)
    }
}
