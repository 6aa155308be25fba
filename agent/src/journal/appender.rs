//! What a source is given of the journal: a way to append, and the positions to resume from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{oneshot, watch};

use super::error::{AppendError, JournalError};
use super::letters::LetterRow;
use super::quota::Admission;
use super::writer::{AppendOperation, Operation, WriterHandle};
use crate::clock::{SharedClock, Timestamp};
use crate::limits::CHUNK_BYTES_MAX;
use crate::record::codec::FrameBuffer;
use crate::record::id::{SourceId, StreamNumber};

/// One step of a source: records, the positions that they move, and what was refused on the way. All of it or nothing.
#[derive(Debug, Default)]
pub struct Append {
    /// New records, in order.
    pub frames: FrameBuffer,
    /// Positions, as of behind the last record.
    pub positions: Vec<Position>,
    /// What the source refused.
    pub letters: Vec<SourceLetter>,
}

/// Where a source resumes, under a key of its own choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The key.
    pub key: String,
    /// The position; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// A record that a source refused, to be kept as a dead letter of stage `source`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLetter {
    /// Why.
    pub reason: String,
    /// How large the record was.
    pub size_bytes: u64,
    /// Where it stood, for instance file and offset.
    pub place: String,
    /// The subject it would have had.
    pub subject: String,
    /// Its event time.
    pub time: Timestamp,
    /// Its first bytes.
    pub payload: Vec<u8>,
}

impl SourceLetter {
    /// What it takes of the store of dead letters.
    pub(super) fn stored_bytes(&self) -> u64 {
        LetterRow::of_source(self, "", Timestamp(0)).bytes()
    }
}

/// Appends to one stream. There is one for each running source; a new one ends the old one's session.
#[derive(Debug)]
pub struct Appender {
    pub(super) writer: WriterHandle,
    pub(super) source: SourceId,
    pub(super) stream: StreamNumber,
    pub(super) session: u64,
    pub(super) positions: BTreeMap<String, Vec<u8>>,
    pub(super) clock: SharedClock,
    pub(super) admission: watch::Receiver<Admission>,
    pub(super) path: PathBuf,
}

/// An append on its way to the disk. Dropping it does not take the append back.
#[derive(Debug)]
#[must_use = "an append counts as accepted only when it is durable"]
pub struct Pending {
    source: SourceId,
    reply: oneshot::Receiver<Result<(), JournalError>>,
}

impl Appender {
    /// The source.
    #[must_use]
    pub fn source(&self) -> &SourceId {
        &self.source
    }

    /// Where the source resumes: what was durable when this appender was made.
    #[must_use]
    pub fn positions(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.positions
    }

    /// Why the journal is full, while it is. A source whose producer waits for an answer says no instead of waiting.
    #[must_use]
    pub fn full(&self) -> Option<Arc<str>> {
        self.admission.borrow().full.clone()
    }

    /// Why an append is refused at once: the journal is full and `on_full = "reject"`. The session goes on.
    fn refusal(&self) -> Option<Arc<str>> {
        let admission = self.admission.borrow();
        admission.full.clone().filter(|_| admission.refuses)
    }

    /// Hands an append over, waiting while the journal is behind, or full with `on_full = "block"`.
    ///
    /// # Errors
    /// When the journal is closed or the append is larger than a chunk (a single record may be). Then, or when it turns out
    /// not to become durable, nothing of it and of later appends is taken: the source starts anew with a new appender.
    ///
    /// # Cancel safety
    /// When dropped while waiting for room, nothing was handed over.
    pub async fn submit(&self, append: Append) -> Result<Pending, AppendError> {
        if let Some(why) = self.refusal() {
            return Err(self.no_room(&why));
        }
        self.hand_over(append, true).await
    }

    /// Hands an append over, as [`Self::submit`]; where the journal is full it is refused instead of waiting, whatever
    /// `on_full` says: for a producer that waits for its answer.
    ///
    /// # Errors
    /// As [`Self::submit`], and when the journal is full or becomes it on this append.
    ///
    /// # Cancel safety
    /// When dropped while waiting for room in the queue, nothing was handed over.
    pub async fn submit_at_once(&self, append: Append) -> Result<Pending, AppendError> {
        let mut admission = self.admission.clone();
        let full = admission.wait_for(|admission| admission.full.is_some());
        tokio::select! {
            biased;
            full = full => match full.as_deref().map(|admission| admission.full.as_deref()) {
                Ok(Some(why)) => Err(self.no_room(why)),
                Ok(None) | Err(_) => Err(self.failed(JournalError::Closed)),
            },
            pending = self.hand_over(append, false) => pending,
        }
    }

    fn failed(&self, source: JournalError) -> AppendError {
        AppendError::Journal { source_id: self.source.clone(), source }
    }

    fn no_room(&self, why: &str) -> AppendError {
        self.failed(JournalError::NoRoom { path: self.path.clone(), why: why.to_owned() })
    }

    async fn hand_over(&self, append: Append, waits: bool) -> Result<Pending, AppendError> {
        let bytes = append.frames.len();
        if bytes > CHUNK_BYTES_MAX && append.frames.count() > 1 {
            let (source_id, bytes_max) = (self.source.clone(), CHUNK_BYTES_MAX);
            return Err(AppendError::TooLarge { source_id, bytes, bytes_max });
        }
        let letters: usize = append.letters.iter().map(|letter| letter.payload.len()).sum();
        let (sender, reply) = oneshot::channel();
        let operation = Operation::Append(AppendOperation {
            stream: self.stream,
            session: self.session,
            append,
            waits,
            wall: self.clock.now(),
            quality: self.clock.quality(),
            monotonic: self.clock.monotonic(),
            _room: None,
            reply: sender,
        });
        self.writer.send(operation, bytes + letters).await.map_err(|source| self.failed(source))?;
        Ok(Pending { source: self.source.clone(), reply })
    }

    /// Hands an append over and waits until it is durable.
    ///
    /// # Errors
    /// As [`Self::submit`] and [`Pending::durable`].
    pub async fn append(&self, append: Append) -> Result<(), AppendError> {
        self.submit(append).await?.durable().await
    }
}

impl Pending {
    /// Waits until the append is committed and synced.
    ///
    /// # Errors
    /// When it is not: then nothing of it is there, and nothing that was submitted after it.
    ///
    /// # Cancel safety
    /// Dropping it does not take the append back.
    pub async fn durable(self) -> Result<(), AppendError> {
        let answer = self.reply.await.unwrap_or(Err(JournalError::Closed));
        answer.map_err(|source| AppendError::Journal { source_id: self.source, source })
    }
}

/// The positions of a stream that exist, as a source sees them.
pub(super) fn visible(
    positions: &BTreeMap<String, super::state::PositionState>,
) -> BTreeMap<String, Vec<u8>> {
    let existing = positions.iter().filter_map(|(key, position)| {
        position.value.as_ref().map(|value| (key.clone(), value.clone()))
    });
    existing.collect()
}

/// Shared by all handles: ends with the writer.
pub(super) type SharedError = Arc<JournalError>;
