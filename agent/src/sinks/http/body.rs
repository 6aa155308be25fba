//! From a sealed batch to the bytes of a request, piece by piece.
//!
//! The bytes follow from the records and from what was fixed when the batch was sealed, however the journal cuts the batch
//! into blocks and whatever the config says by now: every attempt sends the same ones. (The bytes of a compressed body are
//! those of this version's codec; a later one may make others of the same content.)
//!
//! A body's length is known before it is sent, because many servers want it. One that fits into
//! [`HTTP_BODY_KEPT_BYTES_MAX`] is kept from the pass that measures it; a longer one is made again while it is sent, so that
//! memory does not depend on the size of a batch. Each piece is made on a blocking thread, which ends with it.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::write::GzEncoder;
use http_body::{Body, Frame, SizeHint};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::config::{BodyFormat, Compression, HttpSinkConfig};
use crate::limits::{HTTP_BODY_KEPT_BYTES_MAX, HTTP_PIECE_BYTES, HTTP_REFUSED_MAX};
use crate::record::RecordView;
use crate::record::batch::{BlockReader, ReadError, SealedBatch};
use crate::record::id::write_record_identity;
use crate::sinks::config::LineFormat;
use crate::sinks::format::LineEncoder;
use crate::sinks::{Class, Refused, SinkError};

/// Pieces that are made on one visit to a blocking thread while a body is measured.
const PIECES_A_TURN: usize = 16;

/// What is fixed for a batch when it is sealed. Stored: fields may be added, none may change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Fixed {
    format: String,
    envelope: bool,
    codec: Option<String>,
    level: Option<u8>,
}

/// What makes the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Encoding {
    format: BodyFormat,
    envelope: bool,
    compression: Option<Compression>,
}

impl Encoding {
    pub(super) fn of_config(config: &HttpSinkConfig) -> Self {
        let HttpSinkConfig { format, envelope, compression, .. } = *config;
        Self { format, envelope, compression }
    }

    /// What goes into the seal.
    pub(super) fn fix(self) -> String {
        let parts = self.compression.map(Compression::parts);
        let fixed = Fixed {
            format: self.format.as_str().to_owned(),
            envelope: self.envelope,
            codec: parts.map(|(codec, _)| codec.to_owned()),
            level: parts.map(|(_, level)| level),
        };
        serde_json::to_string(&fixed).expect("texts and numbers are always JSON")
    }

    /// What was sealed.
    pub(super) fn fixed(text: &str) -> Result<Self, SinkError> {
        let unusable =
            || SinkError::new(Class::Rejected, "what was fixed for the HTTP body is unusable");
        let fixed: Fixed = serde_json::from_str(text).map_err(|_| unusable())?;
        let formats = [BodyFormat::Ndjson, BodyFormat::Json];
        let format = formats.into_iter().find(|format| format.as_str() == fixed.format);
        let compression = match (fixed.codec.as_deref(), fixed.level) {
            (None, _) => None,
            (Some("zstd"), Some(level)) => Some(Compression::Zstd { level }),
            (Some("gzip"), Some(level)) => Some(Compression::Gzip { level }),
            (Some(_), _) => return Err(unusable()),
        };
        let format = format.ok_or_else(unusable)?;
        Ok(Self { format, envelope: fixed.envelope, compression })
    }

    /// For `Content-Type`.
    pub(super) fn content_type(self) -> &'static str {
        match self.format {
            BodyFormat::Ndjson => "application/x-ndjson",
            BodyFormat::Json => "application/json",
        }
    }

    /// For `Content-Encoding`.
    pub(super) fn content_encoding(self) -> Option<&'static str> {
        self.compression.map(|compression| compression.parts().0)
    }
}

/// A body that was made once.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Bytes of the whole body.
    pub(super) length: u64,
    /// Records in it.
    pub(super) records: u64,
    /// Records that do not fit into it.
    pub(super) refused: Vec<Refused>,
    /// All of it, if it is short.
    kept: Option<Bytes>,
}

impl Measured {
    /// Makes the body of a batch.
    ///
    /// # Errors
    /// When the batch cannot be read, or so many records do not fit that they are not named.
    ///
    /// # Cancel safety
    /// Dropping the future stops the work after a few pieces.
    pub(super) async fn make(batch: &SealedBatch, encoding: Encoding) -> Result<Self, SinkError> {
        let mut producer = Producer::new(batch.clone(), encoding)?;
        let (mut length, mut kept) = (0, Some(Vec::new()));
        loop {
            let turn = tokio::task::spawn_blocking(move || {
                let mut pieces = Vec::new();
                while pieces.len() < PIECES_A_TURN {
                    match producer.next_piece() {
                        Ok(Some(piece)) => pieces.push(piece),
                        Ok(None) => break,
                        Err(error) => return Err(error),
                    }
                }
                Ok((producer, pieces))
            });
            let (used, pieces) = turn.await.map_err(died)??;
            producer = used;
            if pieces.is_empty() {
                break;
            }
            for piece in pieces {
                length += piece.len() as u64;
                if length > HTTP_BODY_KEPT_BYTES_MAX {
                    kept = None;
                } else if let Some(kept) = &mut kept {
                    kept.extend_from_slice(&piece);
                }
            }
        }
        let (records, refused) = (producer.records, producer.refused);
        Ok(Self { length, records, refused, kept: kept.map(Bytes::from) })
    }

    /// The body of a request, and where it leaves word of what went wrong in making it.
    pub(super) fn body(
        &self,
        batch: &SealedBatch,
        encoding: Encoding,
    ) -> Result<(reqwest::Body, Failure), SinkError> {
        let failure = Failure::default();
        if let Some(kept) = &self.kept {
            return Ok((kept.clone().into(), failure));
        }
        let producer = Producer::new(batch.clone(), encoding)?;
        let next = Some(make_next(producer));
        let streamed = Streamed { next, left: self.length, failure: failure.clone() };
        Ok((reqwest::Body::wrap(streamed), failure))
    }
}

/// Why a body could not be made to its end, for whoever sees only that a request has failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<SinkError>>>);

impl Failure {
    fn set(&self, error: SinkError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    pub(super) fn take(&self) -> Option<SinkError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

type Made = (Producer, Result<Option<Bytes>, SinkError>);

fn make_next(mut producer: Producer) -> JoinHandle<Made> {
    tokio::task::spawn_blocking(move || {
        let piece = producer.next_piece();
        (producer, piece)
    })
}

/// A body that is made while it is sent, one piece ahead of the connection.
struct Streamed {
    next: Option<JoinHandle<Made>>,
    left: u64,
    failure: Failure,
}

impl Streamed {
    fn fail(&mut self, error: SinkError) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.next = None;
        self.failure.set(error);
        Poll::Ready(Some(Err(io::Error::other("the body cannot be made"))))
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(next) = &mut self.next else { return Poll::Ready(None) };
        let (producer, piece) = match std::task::ready!(Pin::new(next).poll(context)) {
            Ok(made) => made,
            Err(error) => return self.fail(died(error)),
        };
        match piece {
            Err(error) => self.fail(error),
            Ok(Some(piece)) if piece.len() as u64 <= self.left => {
                self.left -= piece.len() as u64;
                self.next = Some(make_next(producer));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Ok(None) if self.left == 0 => {
                self.next = None;
                Poll::Ready(None)
            }
            Ok(_) => {
                let batch = producer.batch.facts.identity();
                let reason = format!("batch {batch} reads unlike the first time");
                self.fail(SinkError::new(Class::Retryable, reason))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Makes a body from front to back. Blocks.
struct Producer {
    batch: SealedBatch,
    encoding: Encoding,
    /// `None` behind the last block.
    reader: Option<Box<dyn BlockReader>>,
    /// Encoded, not yet compressed.
    plain: Vec<u8>,
    writer: Writer,
    /// Records seen so far.
    seen: u64,
    /// Records encoded so far.
    records: u64,
    refused: Vec<Refused>,
}

impl Producer {
    fn new(batch: SealedBatch, encoding: Encoding) -> Result<Self, SinkError> {
        let reader = Some(batch.content.open());
        let writer = Writer::new(encoding.compression).map_err(uncompressed)?;
        let (plain, refused) = (Vec::new(), Vec::new());
        Ok(Self { batch, encoding, reader, plain, writer, seen: 0, records: 0, refused })
    }

    /// The next bytes, or `None` at the end.
    fn next_piece(&mut self) -> Result<Option<Bytes>, SinkError> {
        while self.reader.is_some() {
            if let Some(piece) = self.writer.take(HTTP_PIECE_BYTES) {
                return Ok(Some(piece));
            }
            self.next_block()?;
        }
        Ok(self.writer.take(1))
    }

    /// Encodes one block, or ends the body.
    fn next_block(&mut self) -> Result<(), SinkError> {
        let Self { batch, encoding, reader, plain, writer, .. } = self;
        let Some(blocks) = reader else { return Ok(()) };
        let facts = &batch.facts;
        let Some(block) = blocks.next_block().map_err(|error| unreadable(batch, error))? else {
            if self.seen != facts.records {
                let (batch, seen, records) = (facts.identity(), self.seen, facts.records);
                let reason =
                    format!("batch {batch} has {seen} of its {records} records in the journal");
                return Err(SinkError::new(Class::Retryable, reason));
            }
            if encoding.format == BodyFormat::Json && self.records > 0 {
                plain.extend_from_slice(b"]\n");
            }
            *reader = None;
            return writer.finish(plain).map_err(uncompressed);
        };
        let mut lines = LineEncoder::new(LineFormat::Json, &facts.place.lane);
        for record in block.records() {
            let record = record.map_err(|error| unreadable(batch, error.into()))?;
            let start = plain.len();
            if encoding.format == BodyFormat::Json {
                plain.push(if self.records == 0 { b'[' } else { b',' });
            }
            match encode(*encoding, &mut lines, batch, &record, plain) {
                Ok(()) => self.records += 1,
                Err(reason) => {
                    plain.truncate(start);
                    if self.refused.len() == HTTP_REFUSED_MAX {
                        let reason = format!("too many records do not fit; the first: {reason}");
                        return Err(SinkError::new(Class::Rejected, reason));
                    }
                    self.refused.push(Refused { index: self.seen, reason });
                }
            }
            self.seen += 1;
            writer.write_whole_pieces(plain).map_err(uncompressed)?;
        }
        Ok(())
    }
}

/// Appends one record and a newline. The error says why it does not fit, with its identity.
fn encode(
    encoding: Encoding,
    lines: &mut LineEncoder<'_>,
    batch: &SealedBatch,
    record: &RecordView<'_>,
    out: &mut Vec<u8>,
) -> Result<(), String> {
    if encoding.envelope {
        return lines.encode(record, out).map_err(|error| error.reason);
    }
    let misfit = match encoding.format {
        BodyFormat::Ndjson => memchr::memchr(b'\n', record.payload)
            .map(|_| "holds a newline, which format = \"ndjson\" cannot keep"),
        BodyFormat::Json => {
            (!is_json(record.payload)).then_some("is no JSON, which format = \"json\" needs")
        }
    };
    if let Some(misfit) = misfit {
        let mut identity = String::new();
        write_record_identity(&mut identity, &batch.facts.place.lane, record);
        return Err(format!("the payload of record {identity} {misfit}"));
    }
    out.extend_from_slice(record.payload);
    out.push(b'\n');
    Ok(())
}

/// Whether this is one JSON value. One that nests deeper than 128 counts as none: readers have such bounds, too.
fn is_json(payload: &[u8]) -> bool {
    std::str::from_utf8(payload).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Compresses, or does not. What it is given at once is always the same for the same body, so that a codec that goes by it
/// makes the same bytes.
enum Writer {
    Plain(Vec<u8>),
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
    Finished(Vec<u8>),
}

impl Writer {
    fn new(compression: Option<Compression>) -> io::Result<Self> {
        Ok(match compression {
            None => Self::Plain(Vec::new()),
            Some(Compression::Zstd { level }) => {
                let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level.into())?;
                encoder.include_checksum(true)?;
                Self::Zstd(Box::new(encoder))
            }
            Some(Compression::Gzip { level }) => {
                let level = flate2::Compression::new(level.into());
                Self::Gzip(Box::new(GzEncoder::new(Vec::new(), level)))
            }
        })
    }

    /// Takes as many whole pieces as there are.
    fn write_whole_pieces(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        if plain.len() < HTTP_PIECE_BYTES {
            return Ok(());
        }
        let whole = plain.len() - plain.len() % HTTP_PIECE_BYTES;
        for piece in plain.chunks_exact(HTTP_PIECE_BYTES) {
            self.write_all(piece)?;
        }
        plain.drain(..whole);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Plain(out) | Self::Finished(out) => out.extend_from_slice(bytes),
            Self::Zstd(encoder) => encoder.write_all(bytes)?,
            Self::Gzip(encoder) => encoder.write_all(bytes)?,
        }
        Ok(())
    }

    /// Takes the rest.
    fn finish(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        self.write_whole_pieces(plain)?;
        self.write_all(plain)?;
        plain.clear();
        let out = match std::mem::replace(self, Self::Finished(Vec::new())) {
            Self::Plain(out) | Self::Finished(out) => out,
            Self::Zstd(encoder) => encoder.finish()?,
            Self::Gzip(encoder) => encoder.finish()?,
        };
        *self = Self::Finished(out);
        Ok(())
    }

    /// What has come out so far, if it is at least this much.
    fn take(&mut self, least: usize) -> Option<Bytes> {
        let out = match self {
            Self::Plain(out) | Self::Finished(out) => out,
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
        };
        (out.len() >= least).then(|| std::mem::take(out).into())
    }
}

fn unreadable(batch: &SealedBatch, error: ReadError) -> SinkError {
    let reason = format!("cannot read batch {}", batch.facts.identity());
    SinkError::new(Class::Retryable, reason).caused_by(error)
}

fn uncompressed(error: io::Error) -> SinkError {
    SinkError::new(Class::Retryable, "the body cannot be compressed").caused_by(error)
}

fn died(error: tokio::task::JoinError) -> SinkError {
    SinkError::new(Class::Retryable, "the thread that makes the body died").caused_by(error)
}
