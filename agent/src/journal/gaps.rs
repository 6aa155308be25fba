//! Records that are not there any more: lanes step over them and count them as lost, so that delivery goes on.
//!
//! A gap is left by a salvage (or by whoever else takes chunks in front of a lane). What a lane meets instead, a chunk that is
//! there and is not what was written, is another matter: its pages may be linked with those of others, so nothing is deleted
//! any more before the journal was salvaged. [`Damage`] asks for that, and a file beside the database sees to it that the next
//! start does it if this process ends before.

use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::apply::Group;
use super::error::JournalError;
use super::lanes::{LaneJournal, PendingSeal};
use super::losses::Why;
use super::reader::Readers;
use super::soundness;
use super::state::{chunk_key, key_seq};
use super::writer::{Operation, Writer};
use crate::error_chain::Chain;
use crate::record::id::{LaneNumber, Seq, StreamNumber};

const MARK_NAME: &str = "journal.damaged";

/// Whether damage was met while running.
#[derive(Debug)]
pub(super) struct Damage {
    mark: PathBuf,
    met: watch::Sender<Option<String>>,
}

impl Damage {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { mark: mark_path(directory), met: watch::channel(None).0 }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Option<String>> {
        self.met.subscribe()
    }

    /// Takes note of an error, if it says that the files are damaged.
    pub(super) fn note(&self, error: &JournalError) {
        let error = if let JournalError::Group(cause) = error { cause } else { error };
        if soundness::is_damage(error) {
            self.report(&Chain(error).to_string());
        }
    }

    fn report(&self, reason: &str) {
        let is_first = self.met.send_if_modified(|met| {
            let is_first = met.is_none();
            met.get_or_insert_with(|| reason.to_owned());
            is_first
        });
        if is_first && let Err(error) = std::fs::write(&self.mark, reason) {
            // The salvage of this process does not need it.
            tracing::warn!(error = %error, "Damage of the journal cannot be noted for the next start");
        }
    }
}

/// The file that says that damage was met.
pub(super) fn mark_path(directory: &Path) -> PathBuf {
    directory.join(MARK_NAME)
}

/// What an earlier run, or this one, met and has not salvaged.
pub(super) fn marked(directory: &Path) -> Option<String> {
    std::fs::read_to_string(mark_path(directory)).ok()
}

#[derive(Debug)]
pub(super) struct LoseOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    first: Seq,
    last: Seq,
    pub(super) reply: oneshot::Sender<Result<(), JournalError>>,
}

impl Readers {
    /// The last seq of the gap that begins with `from`.
    fn gap_end(&self, stream: StreamNumber, from: Seq, head: Seq) -> Result<Seq, JournalError> {
        let query = "SELECT min(key) FROM chunks WHERE key > ?1 AND key <= ?2";
        let keys = [chunk_key(stream, from), chunk_key(stream, head)];
        let next: Option<i64> = self.query_value(query, keys)?;
        Ok(next.map_or(head, |key| key_seq(key).before()))
    }
}

impl LaneJournal {
    /// Steps over records that are not there, from the lane's cursor to the next one that is: they count as lost. Gives the
    /// last of them. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read or is closed.
    pub fn step_over(
        &self,
        from: Seq,
        runtime: &tokio::runtime::Handle,
    ) -> Result<(Seq, PendingSeal), JournalError> {
        let head = self.head.borrow().seq;
        let last = self.readers.gap_end(self.stream, from, head)?;
        let (reply, answer) = oneshot::channel();
        let (lane, session) = (self.number, self.session);
        let operation = Operation::Lose(LoseOperation { lane, session, first: from, last, reply });
        runtime.block_on(self.writer.send(operation, 0))?;
        Ok((last, PendingSeal::of(answer)))
    }
}

impl Writer {
    /// Moves a lane over records that are lost.
    pub(super) fn lose(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: LoseOperation,
    ) -> Result<(), JournalError> {
        let LoseOperation { lane: number, first, last, reply, .. } = operation;
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        if first != lane.sealed_seq.next() || last < first {
            let (name, batch) = (lane.name.clone(), lane.next_batch);
            let why = format!("{first} to {last} are lost, sealed is {}", lane.sealed_seq);
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(JournalError::Misfit { lane: name, batch, why })));
            return Ok(());
        }
        let records = last.0 + 1 - first.0;
        lane.sealed_seq = last;
        lane.totals.lost += records;
        let (stream, name) = (lane.stream, lane.name.clone());
        tracing::error!(
            lane = %name, first = first.0, last = last.0, records,
            "Records are missing in the journal, they count as lost"
        );
        self.write_loss(transaction, stream, Some(number), (first, last), Why::Damage)?;
        group.answer(reply, ());
        self.write_lane(transaction, number)
    }
}
