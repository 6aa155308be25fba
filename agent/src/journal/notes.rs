//! One short text for each lane that its sink keeps over restarts, such as where a lookup in the destination begins.
//!
//! What stands in it is the sink's own. A salvage does not take notes over: they say where to look, not what is.

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use super::apply::Group;
use super::error::JournalError;
use super::lanes::LaneJournal;
use super::writer::{Operation, Writer};
use crate::record::id::LaneNumber;

#[derive(Debug)]
pub(super) struct NoteOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    pub(super) text: String,
    /// `None`: it rides with what comes next.
    pub(super) reply: Option<oneshot::Sender<Result<(), JournalError>>>,
}

impl LaneJournal {
    /// Keeps the note of the lane's sink. Waited for if it has to be `durable`; otherwise it rides with the next commit, after
    /// what the lane has handed over before.
    ///
    /// # Errors
    /// When it is not durable, or the journal is closed.
    pub async fn keep_note(&self, text: &str, durable: bool) -> Result<(), JournalError> {
        let (reply, answer) = oneshot::channel();
        let note = NoteOperation {
            lane: self.number,
            session: self.session,
            text: text.to_owned(),
            reply: durable.then_some(reply),
        };
        self.writer.send(Operation::Note(note), text.len()).await?;
        if durable { answer.await.unwrap_or(Err(JournalError::Closed)) } else { Ok(()) }
    }
}

impl Writer {
    pub(super) fn keep_note(
        &self,
        transaction: &Connection,
        group: &mut Group,
        operation: NoteOperation,
    ) -> Result<(), JournalError> {
        let NoteOperation { lane, text, reply, .. } = operation;
        let put =
            "INSERT INTO sink_notes VALUES (?1, ?2) ON CONFLICT (lane) DO UPDATE SET note = ?2";
        let kept = self.execute(transaction, "keeping a note", put, params![lane.0, text]);
        match reply {
            Some(reply) => group.answer_with(reply, kept.map(drop)),
            None => kept.map(drop),
        }
    }
}

/// The note of a lane's sink, if there is one.
pub(super) fn note(transaction: &Connection, lane: LaneNumber) -> rusqlite::Result<Option<String>> {
    let query = "SELECT note FROM sink_notes WHERE lane = ?1";
    transaction.query_row(query, [lane.0], |row| row.get(0)).optional()
}
