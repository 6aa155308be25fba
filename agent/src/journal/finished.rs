//! The ring of finished batches, for `explain`: what became of the newest of them. Where a row would be the only one of its
//! transaction it comes later, with others (`acked.rs`).
//!
//! It is left out while the journal is full, and a salvage does not take the ring over: it is for people, and nothing depends
//! on it.

use rusqlite::{Connection, params};

use super::error::JournalError;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::limits::FINISHED_BATCHES_MAX;
use crate::record::id::{LaneNumber, Seq};

/// So many rows are forgotten at once, so that the other end of the ring is not written with every ack.
const FORGOTTEN_AT_ONCE: i64 = 64;

/// How a batch came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The destination took it.
    Delivered,
    /// The destination had it already.
    Already,
    /// Somebody decided that it counts as delivered.
    Accepted,
    /// Some of its records became dead letters, the others were delivered.
    Partly,
    /// All of its records became dead letters.
    GivenUp,
    /// It has no output: its records were left out by transforms, given up by them, or not taken.
    Empty,
}

impl Finish {
    /// All of them. The place of each is written down, so new ones come last.
    const ALL: [Self; 6] =
        [Self::Delivered, Self::Already, Self::Accepted, Self::Partly, Self::GivenUp, Self::Empty];

    pub(super) fn index(self) -> u64 {
        Self::ALL.iter().position(|finish| *finish == self).map_or(0, |index| index as u64)
    }

    pub(super) fn of_index(index: u64) -> Option<Self> {
        usize::try_from(index).ok().and_then(|index| Self::ALL.get(index)).copied()
    }

    /// The word in rows and answers.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Already => "already",
            Self::Accepted => "accepted",
            Self::Partly => "partly",
            Self::GivenUp => "given_up",
            Self::Empty => "empty",
        }
    }
}

/// A batch with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FinishedRow {
    /// `EPOCH/bNUMBER` and what stands behind it.
    pub(super) batch: String,
    pub(super) first_seq: Seq,
    pub(super) last_seq: Seq,
    pub(super) records: u64,
    pub(super) finish: Finish,
    pub(super) attempts: u32,
    pub(super) sealed_at: Timestamp,
}

impl Writer {
    /// Remembers the end of a batch.
    pub(super) fn remember_finished(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        row: &FinishedRow,
        at: Timestamp,
    ) -> Result<(), JournalError> {
        if self.quota.full.is_some() {
            return Ok(());
        }
        let insert = "INSERT INTO finished
            (lane, batch, first_seq, last_seq, records, finish, attempts, sealed_at, at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let parameters = params![
            lane.0,
            row.batch,
            row.first_seq.0.cast_signed(),
            row.last_seq.0.cast_signed(),
            row.records.cast_signed(),
            row.finish.as_str(),
            row.attempts,
            row.sealed_at.0,
            at.0,
        ];
        self.execute(transaction, "remembering a batch", insert, parameters)?;
        let id = transaction.last_insert_rowid();
        if id % FORGOTTEN_AT_ONCE != 0 {
            return Ok(());
        }
        let most = self.ring_rows(FINISHED_BATCHES_MAX).cast_signed();
        let forget = "DELETE FROM finished WHERE id <= ?1";
        self.execute(transaction, "forgetting batches", forget, [id - most]).map(drop)
    }
}
