//! Applies operations to the tables, inside the writer's transaction.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::appender::{Append, SharedError, visible};
use super::chunk::{self, Kind, Label, Stamp};
use super::error::JournalError;
use super::letters::LetterRow;
use super::notes::NoteOperation;
use super::state::{PositionState, StreamState, chunk_key, key_seq, value};
use super::writer::{AppendOperation, OpenedStream, Operation, Session, Writer, session_of};
use crate::limits::{
    CHUNK_BYTES_MAX, DELETED_CHUNKS_MAX, POSITIONS_CHECKPOINT_CHUNKS, STREAMS_MAX,
};
use crate::record::batch::FrameBlock;
use crate::record::id::{Seq, SourceId, StreamNumber};

type Answer = Box<dyn FnOnce(Result<(), JournalError>) + Send>;

/// The operations of one transaction: whom to answer, and what was built on the way.
#[derive(Default)]
pub(super) struct Group {
    answers: Vec<Answer>,
    sessions: Vec<Session>,
    building: HashMap<StreamNumber, Building>,
    committed: Vec<(StreamNumber, FrameBlock)>,
    operations: usize,
}

/// A chunk that still takes records.
struct Building {
    first_seq: Seq,
    count: u32,
    frames: Vec<u8>,
    positions: Vec<u8>,
    stamp: Stamp,
}

impl Group {
    pub(super) fn len(&self) -> usize {
        self.operations
    }

    pub(super) fn sessions(&self) -> Vec<Session> {
        self.sessions.clone()
    }

    pub(super) fn committed_chunks(&mut self) -> impl Iterator<Item = (StreamNumber, FrameBlock)> {
        std::mem::take(&mut self.committed).into_iter()
    }

    pub(super) fn answer_all(self) {
        for answer in self.answers {
            answer(Ok(()));
        }
    }

    pub(super) fn refuse_all(self, error: &SharedError) {
        for answer in self.answers {
            answer(Err(JournalError::Group(Arc::clone(error))));
        }
    }

    /// Answers with `value` once the group is committed. Whoever asked may have given up waiting; the commit stands.
    pub(super) fn answer<T: Send + 'static>(
        &mut self,
        reply: tokio::sync::oneshot::Sender<Result<T, JournalError>>,
        value: T,
    ) {
        self.answers.push(Box::new(move |result| {
            let _unheard = reply.send(result.map(|()| value));
        }));
    }
}

impl Group {
    /// Answers as [`Self::answer`], or, where the operation itself failed, with the group's failure.
    pub(super) fn answer_with<T: Send + 'static>(
        &mut self,
        reply: tokio::sync::oneshot::Sender<Result<T, JournalError>>,
        result: Result<T, JournalError>,
    ) -> Result<(), JournalError> {
        match result {
            Ok(value) => {
                self.answer(reply, value);
                Ok(())
            }
            Err(error) => {
                self.answers.push(Box::new(move |result| {
                    let _unheard = reply.send(Err(result.err().unwrap_or(JournalError::Closed)));
                }));
                Err(error)
            }
        }
    }
}

/// Refuses one operation.
pub(super) fn refuse(operation: Operation, error: JournalError) {
    // Whoever asked may have given up waiting.
    match operation {
        Operation::Append(append) => drop(append.reply.send(Err(error))),
        Operation::OpenStream { reply, .. } => drop(reply.send(Err(error))),
        Operation::OpenLane { reply, .. } => drop(reply.send(Err(error))),
        Operation::Seal(seal) => drop(seal.reply.send(Err(error))),
        Operation::Lose(lose) => drop(lose.reply.send(Err(error))),
        Operation::Note(NoteOperation { reply: Some(reply), .. }) => drop(reply.send(Err(error))),
        Operation::PutCompiled { reply, .. } | Operation::Stop { reply } => {
            drop(reply.send(Err(error)));
        }
        Operation::Ack(ack) => ack.refuse(error),
        Operation::Cut(cut) => drop(cut.reply.send(Err(error))),
        Operation::Rename(rename) => drop(rename.reply.send(Err(error))),
        Operation::Replay(replay) => drop(replay.reply.send(Err(error))),
        Operation::DiscardLetters(discard) => drop(discard.reply.send(Err(error))),
        Operation::Lane(order) => drop(order.reply.send(Err(error))),
        // A lane hears of these with its next seal, whose session has ended with them.
        Operation::Part(_) | Operation::DiscardParts { .. } | Operation::Note(_) => {}
    }
}

impl Writer {
    /// Applies one operation. An error fails the whole group; what only this operation did wrong is answered to it alone.
    pub(super) fn apply(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: Operation,
    ) -> Result<(), JournalError> {
        group.operations += 1;
        if let Some(session) = session_of(&operation) {
            let ended = match &operation {
                Operation::Append(append) => self.has_ended(session, append.session),
                Operation::Part(part) => self.has_ended(session, part.session),
                Operation::DiscardParts { session: number, .. } => self.has_ended(session, *number),
                Operation::Seal(seal) => self.has_ended(session, seal.session),
                Operation::Ack(ack) => self.has_ended(session, ack.session),
                Operation::Cut(cut) => self.has_ended(session, cut.session),
                Operation::Rename(rename) => self.has_ended(session, rename.session),
                Operation::Replay(replay) => self.has_ended(session, replay.session),
                Operation::Lose(lose) => self.has_ended(session, lose.session),
                Operation::Note(note) => self.has_ended(session, note.session),
                _ => false,
            };
            if ended {
                refuse(operation, JournalError::SessionEnded(self.session_name(session)));
                return Ok(());
            }
            if group.sessions.last() != Some(&session) {
                group.sessions.push(session);
            }
        }
        match operation {
            Operation::Append(append) => self.append(transaction, group, append),
            Operation::OpenStream { source, reply } => {
                let opened = self.open_stream(transaction, source);
                group.answer_with(reply, opened)
            }
            Operation::OpenLane { spec, runs, reply } => {
                // A new lane looks for the oldest record in the table.
                let written = self.write_building(transaction, group);
                let opened = written.and_then(|()| self.open_lane(transaction, spec, runs));
                group.answer_with(reply, opened)
            }
            Operation::Part(part) => self.store_or_refuse_part(transaction, &part),
            Operation::DiscardParts { lane, .. } => self.discard_unsealed(transaction, lane),
            Operation::Seal(seal) => self.seal(transaction, group, *seal),
            Operation::Ack(ack) => self.ack(transaction, group, *ack),
            Operation::Cut(cut) => self.cut(transaction, group, *cut),
            Operation::Rename(rename) => self.rename(transaction, group, *rename),
            Operation::Replay(replay) => self.seal_replay(transaction, group, *replay),
            Operation::DiscardLetters(discard) => self.discard_letters(transaction, group, discard),
            Operation::Lose(lose) => self.lose(transaction, group, lose),
            Operation::Lane(order) => self.order_lane(transaction, group, order),
            Operation::Note(note) => self.keep_note(transaction, group, note),
            Operation::PutCompiled { key, sha256, reply } => {
                let put = "INSERT INTO compiled VALUES (?1, ?2)
                           ON CONFLICT (key) DO UPDATE SET sha256 = ?2";
                let kept = self.execute(transaction, "keeping a digest", put, params![key, sha256]);
                group.answer_with(reply, kept.map(drop))
            }
            Operation::Stop { .. } => Ok(()),
        }
    }

    /// Writes what is still being built and deletes what nobody needs.
    pub(super) fn finish(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
    ) -> Result<(), JournalError> {
        self.write_building(transaction, group)?;
        let releasing: Vec<_> = self
            .state
            .streams
            .iter()
            .filter(|(_, stream)| stream.deletes_left)
            .map(|(number, _)| *number)
            .collect();
        let mut room = DELETED_CHUNKS_MAX;
        for stream in releasing {
            room -= self.delete_released(transaction, stream, room)?;
        }
        Ok(())
    }

    fn write_building(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
    ) -> Result<(), JournalError> {
        let building: Vec<_> = group.building.drain().collect();
        for (stream, chunk) in building {
            self.write_chunk(transaction, group, stream, chunk)?;
        }
        Ok(())
    }

    pub(super) fn execute(
        &self,
        transaction: &Connection,
        doing: &'static str,
        statement: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<usize, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, doing, source);
        transaction.prepare_cached(statement).map_err(failed)?.execute(parameters).map_err(failed)
    }

    pub(super) fn has_ended(&self, session: Session, number: u64) -> bool {
        self.sessions.get(&session).copied().unwrap_or_default() != number
    }

    fn session_name(&self, session: Session) -> String {
        match session {
            Session::Stream(number) => self
                .state
                .streams
                .get(&number)
                .map(|stream| format!("source \"{}\"", stream.source)),
            Session::Lane(number) => {
                self.state.lanes.get(&number).map(|lane| format!("lane {}", lane.name))
            }
        }
        .unwrap_or_default()
    }

    pub(super) fn new_session(&mut self, session: Session) -> u64 {
        let number = self.sessions.entry(session).or_default();
        *number += 1;
        *number
    }

    fn open_stream(
        &mut self,
        transaction: &Connection,
        source: SourceId,
    ) -> Result<OpenedStream, JournalError> {
        let known = self.state.streams.iter().find(|(_, stream)| stream.source == source);
        let number = match known {
            Some((number, _)) => *number,
            None => self.make_stream(transaction, source)?,
        };
        let session = self.new_session(Session::Stream(number));
        let positions = visible(&self.state.streams[&number].positions);
        Ok(OpenedStream { number, session, positions })
    }

    pub(super) fn make_stream(
        &mut self,
        transaction: &Connection,
        source: SourceId,
    ) -> Result<StreamNumber, JournalError> {
        let number = self.state.streams.keys().map(|number| number.0).max().unwrap_or(0) + 1;
        if number > STREAMS_MAX {
            return Err(JournalError::NoNumberLeft(format!("source \"{source}\"")));
        }
        let insert = "INSERT INTO streams (number, source) VALUES (?1, ?2)";
        self.execute(transaction, "making a stream", insert, params![number, source.as_str()])?;
        let stream = StreamState {
            source,
            next_seq: Seq(1),
            positions: std::collections::BTreeMap::new(),
            chunks_unchecked: 0,
            released: Seq(0),
            deletes_left: false,
        };
        self.state.streams.insert(StreamNumber(number), stream);
        Ok(StreamNumber(number))
    }

    fn append(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: AppendOperation,
    ) -> Result<(), JournalError> {
        let AppendOperation { stream: number, append, wall, monotonic, quality, reply, .. } =
            operation;
        let Append { mut frames, positions, letters } = append;
        let count = frames.count();
        let stamp = Stamp { wall, boot: self.boot, monotonic, quality };
        // A chunk that has no room for these frames is complete.
        let full = group
            .building
            .get(&number)
            .is_some_and(|chunk| chunk.frames.len() + frames.len() > CHUNK_BYTES_MAX);
        if full && let Some(chunk) = group.building.remove(&number) {
            self.write_chunk(transaction, group, number, chunk)?;
        }
        let Some(stream) = self.state.streams.get_mut(&number) else {
            refuse_missing(reply, number);
            return Ok(());
        };
        group.answer(reply, ());
        let first_seq = stream.next_seq;
        stream.next_seq = first_seq.plus(u64::from(count));
        let last = Seq(stream.next_seq.0 - 1);
        if count > 0 {
            let chunk = group.building.entry(number).or_insert_with(|| Building {
                first_seq,
                count: 0,
                frames: Vec::new(),
                positions: Vec::new(),
                stamp,
            });
            if chunk.count == 0 {
                chunk.frames = frames.take();
            } else {
                chunk.frames.extend_from_slice(frames.bytes());
            }
            chunk.count += count;
        }
        // Without a chunk to travel in: straight into the table. One that is still being built must hold them, because its
        // last record may be younger than they are.
        let building = group.building.get_mut(&number);
        let stored = building.is_none();
        if let Some(chunk) = building {
            for position in &positions {
                let value = position.value.as_deref();
                chunk::write_position(&mut chunk.positions, &position.key, value);
            }
        }
        for position in positions {
            let state = PositionState { value: position.value, seq: last, stored };
            if stored {
                write_position(transaction, &self.path, number, &position.key, &state)?;
            }
            stream.positions.insert(position.key, state);
        }
        let source = stream.source.clone();
        for letter in &letters {
            let row = LetterRow::of_source(letter, source.as_str(), wall);
            self.letters.admitted = self.letters.admitted.saturating_sub(row.bytes());
            self.write_letter(transaction, &row)?;
        }
        Ok(())
    }

    fn write_chunk(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        number: StreamNumber,
        chunk: Building,
    ) -> Result<(), JournalError> {
        let kind = Kind::Chunk { stream: number.0 };
        let Building { first_seq, count, frames, positions, stamp } = chunk;
        let label = Label { kind, epoch: self.epoch, first_seq, count, stamp };
        let row = self.encoder.encode(label, &frames, &positions);
        let insert = "INSERT INTO chunks (key, data) VALUES (?1, ?2)";
        let key = chunk_key(number, first_seq);
        self.execute(transaction, "appending", insert, params![key, row])?;
        let block = FrameBlock {
            epoch: self.epoch,
            first_seq,
            count,
            skip: 0,
            take: count,
            bytes: Bytes::from(frames),
        };
        group.committed.push((number, block));
        let Some(stream) = self.state.streams.get_mut(&number) else { return Ok(()) };
        stream.chunks_unchecked += 1;
        if stream.chunks_unchecked >= POSITIONS_CHECKPOINT_CHUNKS {
            self.checkpoint_positions(transaction, number)?;
        }
        Ok(())
    }

    /// Writes all positions to their table, so that a start need not read older chunks.
    pub(super) fn checkpoint_positions(
        &mut self,
        transaction: &Connection,
        number: StreamNumber,
    ) -> Result<(), JournalError> {
        let Some(stream) = self.state.streams.get_mut(&number) else { return Ok(()) };
        for (key, position) in stream.positions.iter_mut().filter(|(_, p)| !p.stored) {
            write_position(transaction, &self.path, number, key, position)?;
            position.stored = true;
        }
        stream.chunks_unchecked = 0;
        let checked = stream.next_seq.0 - 1;
        let update = "UPDATE streams SET positions_seq = ?2 WHERE number = ?1";
        let parameters = params![number.0, checked.cast_signed()];
        self.execute(transaction, "keeping positions", update, parameters)?;
        Ok(())
    }

    /// Deletes up to `room` chunks that every lane has passed, never the newest. Positions that only they hold go to the
    /// table first.
    fn delete_released(
        &mut self,
        transaction: &Connection,
        number: StreamNumber,
        room: usize,
    ) -> Result<usize, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "deleting", source);
        let Some(stream) = self.state.streams.get_mut(&number) else { return Ok(0) };
        let base = chunk_key(number, Seq(0));
        // A chunk may go when the one behind it begins no later than the first record that is needed.
        let needed = chunk_key(number, stream.released.next());
        let limit = i64::try_from(room + 1).expect("a few chunks");
        let keys: Vec<i64> = transaction
            .prepare_cached(
                "SELECT key FROM chunks WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT ?3",
            )
            .map_err(failed)?
            .query_map([base, needed, limit], |row| row.get(0))
            .map_err(failed)?
            .collect::<Result<_, _>>()
            .map_err(failed)?;
        if self.quota.full.is_some()
            && stream.released.next() == stream.next_seq
            && (1..=room).contains(&keys.len())
        {
            return self.delete_emptied(transaction, number, &keys);
        }
        let Some((keep, gone)) = keys.split_last() else {
            stream.deletes_left = false;
            return Ok(0);
        };
        stream.deletes_left = gone.len() == room;
        if gone.is_empty() {
            return Ok(0);
        }
        let first_kept = key_seq(*keep);
        let lost = stream.positions.iter_mut().filter(|(_, p)| !p.stored && p.seq < first_kept);
        for (key, position) in lost {
            write_position(transaction, &self.path, number, key, position)?;
            position.stored = true;
        }
        // A removal that is older than every chunk left has nothing to hide any more.
        let removed: Vec<_> = stream
            .positions
            .extract_if(.., |_, p| p.value.is_none() && p.seq < first_kept)
            .map(|(key, _)| key)
            .collect();
        for key in removed {
            let delete = "DELETE FROM positions WHERE stream = ?1 AND key = ?2";
            self.execute(transaction, "forgetting a position", delete, params![number.0, key])?;
        }
        let delete = "DELETE FROM chunks WHERE key >= ?1 AND key < ?2";
        self.execute(transaction, "deleting", delete, [base, *keep])
    }

    /// One value, for the parts of the writer in other files.
    pub(super) fn value<T: rusqlite::types::FromSql>(
        &self,
        transaction: &Connection,
        doing: &'static str,
        query: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<Option<T>, JournalError> {
        value(transaction, query, parameters)
            .map_err(|source| JournalError::sqlite(&self.path, doing, source))
    }
}

fn refuse_missing(
    reply: tokio::sync::oneshot::Sender<Result<(), JournalError>>,
    number: StreamNumber,
) {
    let error = JournalError::SessionEnded(format!("stream {number}"));
    // Whoever asked may have given up waiting.
    drop(reply.send(Err(error)));
}

fn write_position(
    transaction: &Connection,
    path: &std::path::Path,
    stream: StreamNumber,
    key: &str,
    position: &PositionState,
) -> Result<(), JournalError> {
    let failed = |source| JournalError::sqlite(path, "keeping a position", source);
    // A removed one stays as a row without value until its removal is older than every chunk that could set it.
    let put = "INSERT INTO positions (stream, key, seq, value) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (stream, key) DO UPDATE SET seq = ?3, value = ?4";
    transaction
        .prepare_cached(put)
        .map_err(failed)?
        .execute(params![stream.0, key, position.seq.0.cast_signed(), position.value])
        .map_err(failed)?;
    Ok(())
}
