//! Dead letters on their way again: the batches that are made of them, and what comes of those.
//!
//! # What a replay is
//!
//! 1. A batch of its own in the lane, sealed as any other: parts, row, plugin state and cursor of numbers in one transaction.
//!    Its letters stay as they are and are *under way* (`replaying`): nobody discards or replays them meanwhile, and no policy
//!    drops them.
//! 2. It stands outside the order: lanes keep replays beside the queue of their other batches and settle them first.
//! 3. It goes out under the identity of the batch that its letters fell out of when they are all of what that held and nothing
//!    of it was delivered, with what the sink had fixed for it, so that a destination which has it all the same recognises it.
//!    Otherwise it is `BATCH/rN`, where N counts the replays of that batch's letters (`letter_batches`). Records keep their
//!    identities; one whose payload is replaced gets another, and its letter becomes that record with the seal.
//!
//! # What comes of it
//!
//! - What is not delivered is a letter again, durably with the replay's ack: the same row with the new batch, class, reason,
//!   time and attempts, and `replayed` as its disposition; or a new row where transforms have made other records of the old
//!   one. Such letters are always taken, however full the store is: they were in it before.
//! - With the last piece of the replay all other letters of it go. The outcome stays in `replays`, the last ones of which are
//!   kept, and in the log.
//! - An input counts as dead-lettered as long as there is a letter of it, and then for what the replay made of it: delivered,
//!   or dropped by a plugin. One of which another letter was discarded stays dead-lettered. One of which something still waits
//!   in the order is given back to that.
//!
//! A crash before the seal has changed nothing; one behind it sends the same bytes under the same identity.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use super::Journal;
use super::apply::Group;
use super::batches::{Shown, StoredBatch, counted_bytes};
use super::error::JournalError;
use super::lanes::{LaneJournal, StageLetter, StateChange};
use super::letters::{BYTES, LetterRow};
use super::mailbox::Letter;
use super::outcome::{AckOperation, SinkLetters};
use super::state::part_key;
use super::writer::{Operation, Writer};
use crate::clock::Timestamp;
use crate::limits::{BATCH_PARTS_MAX, LETTER_ROW_BYTES, REPLAYS_MAX};
use crate::record::id::{BatchNumber, LaneNumber, Seq};

/// A batch that letters fell out of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterBatch {
    /// First seq of its range.
    pub first_seq: Seq,
    /// Last seq of its range.
    pub last_seq: Seq,
    /// When it was sealed.
    pub sealed_at: Timestamp,
    /// Hash over its output.
    pub sha256: [u8; 32],
    /// What the sink fixed.
    pub fixed: String,
    /// Replays of some of its letters so far.
    pub replays: u64,
}

/// A letter whose record gets another payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The letter.
    pub letter: i64,
    /// The record's new identity.
    pub identity: String,
    /// The new payload.
    pub payload: Vec<u8>,
}

/// A replay to seal: everything that it changes, together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplaySeal {
    /// The batch, as it will be read back. One without records ends with its seal.
    pub batch: StoredBatch,
    /// Where its letters were given up: a transform or the sink.
    pub stage: String,
    /// The identity of the batch that they fell out of.
    pub of: String,
    /// Which replay of that batch's letters it is, from 1; 0 when it is that batch itself.
    pub replays: u64,
    /// Its letters.
    pub letters: Vec<i64>,
    /// Those of them that nothing was made of; they are over with the seal.
    pub without_output: Vec<i64>,
    /// Those of them that their transform gives up again.
    pub returned: Vec<(i64, StageLetter)>,
    /// Records made of them that a later transform gives up.
    pub further: Vec<StageLetter>,
    /// The letter whose payload is replaced.
    pub repair: Option<Repair>,
    /// What the plugins changed.
    pub state: Vec<StateChange>,
}

/// A replay that is under way, or what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// Its number; younger ones have larger ones.
    pub id: i64,
    /// The lane's name.
    pub lane: String,
    /// The identity that it goes out under.
    pub batch: String,
    /// Where its letters were given up: a transform or the sink.
    pub stage: String,
    /// Letters that it began with.
    pub letters: u64,
    /// When it was sealed.
    pub began_at: Timestamp,
    /// When it had its outcome; none while it is under way.
    pub ended_at: Option<Timestamp>,
    /// Records that the destination has.
    pub delivered: u64,
    /// Of those, how many it had already.
    pub already: u64,
    /// Letters that plugins left nothing of.
    pub dropped: u64,
    /// Records that are dead letters again.
    pub returned: u64,
    /// Why those are, in a word: that of the last ones.
    pub class: String,
}

type Reply<T> = oneshot::Sender<Result<T, JournalError>>;

#[derive(Debug)]
pub(super) struct ReplayOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    seal: ReplaySeal,
    pub(super) reply: Reply<i64>,
}

impl LaneJournal {
    /// Seals a replay durably, and gives its number.
    ///
    /// # Errors
    /// [`JournalError::Misfit`] when a letter of it is not there or under way already: nothing has changed then. Others as ever.
    pub async fn seal_replay(&self, seal: ReplaySeal) -> Result<i64, JournalError> {
        let letters = seal.returned.iter().map(|(_, letter)| letter).chain(&seal.further);
        let bytes = letters.map(|letter| letter.record.payload.len()).sum::<usize>()
            + seal.repair.as_ref().map_or(0, |repair| repair.payload.len());
        let (reply, answer) = oneshot::channel();
        let (lane, session) = (self.number, self.session);
        let operation = ReplayOperation { lane, session, seal, reply };
        self.writer.send(Operation::Replay(Box::new(operation)), bytes).await?;
        answer.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Records durably that a replay, or a piece of one, was delivered but for these records. `already`: records that the
    /// destination had before.
    ///
    /// # Errors
    /// When the journal cannot commit, has no room or is closed: nothing has changed then.
    pub async fn ack_replay(
        &self,
        batch: &StoredBatch,
        letters: SinkLetters,
        already: u64,
    ) -> Result<(), JournalError> {
        self.ack_and_wait(batch, letters, already).await
    }

    /// A dead letter with its payload. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letter(&self, id: i64) -> Result<Option<(Letter, Vec<u8>)>, JournalError> {
        self.readers.letter(id)
    }

    /// What is known of a batch of this lane that letters fell out of. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letter_batch(&self, batch: &str) -> Result<Option<LetterBatch>, JournalError> {
        self.readers.letter_batch(self.name.as_str(), batch)
    }
}

impl super::reader::Readers {
    fn letter_batch(&self, lane: &str, batch: &str) -> Result<Option<LetterBatch>, JournalError> {
        let query = "SELECT first_seq, last_seq, sealed_at, sha256, fixed, replays
                     FROM letter_batches JOIN lanes ON lanes.number = lane
                     WHERE lanes.name = ?1 AND batch = ?2";
        let found = self.query_rows(query, &[&lane, &batch], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok(LetterBatch {
                first_seq: Seq(count(0)?),
                last_seq: Seq(count(1)?),
                sealed_at: Timestamp(row.get(2)?),
                sha256: row.get::<_, Vec<u8>>(3)?.try_into().unwrap_or_default(),
                fixed: row.get(4)?,
                replays: count(5)?,
            })
        });
        Ok(found?.pop())
    }
}

impl Journal {
    /// What is known of a batch that letters fell out of. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letter_batch(
        &self,
        lane: &str,
        batch: &str,
    ) -> Result<Option<LetterBatch>, JournalError> {
        self.readers.letter_batch(lane, batch)
    }

    /// Replays with a larger number than `after`, oldest first: those under way, and the last [`REPLAYS_MAX`] that ended. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn replays(&self, after: i64) -> Result<Vec<Replay>, JournalError> {
        let query = "SELECT replays.id, coalesce(lanes.name, ''), batch, stage, letters, began_at,
                            ended_at, replays.delivered, already, replays.dropped, returned, class
                     FROM replays LEFT JOIN lanes ON lanes.number = replays.lane
                     WHERE replays.id > ?1 ORDER BY replays.id";
        self.readers.query_rows(query, &[&after], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok(Replay {
                id: row.get(0)?,
                lane: row.get(1)?,
                batch: row.get(2)?,
                stage: row.get(3)?,
                letters: count(4)?,
                began_at: Timestamp(row.get(5)?),
                ended_at: row.get::<_, Option<i64>>(6)?.map(Timestamp),
                delivered: count(7)?,
                already: count(8)?,
                dropped: count(9)?,
                returned: count(10)?,
                class: row.get(11)?,
            })
        })
    }
}

/// What an input counts as once no letter of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Delivered,
    Dropped,
}

/// A letter that has gone.
#[derive(Debug)]
pub(super) struct Gone {
    lane: Option<LaneNumber>,
    seq: Option<Seq>,
    batch: Option<String>,
    /// Its input stays dead-lettered, whatever becomes of other letters of it.
    stays: bool,
}

impl Writer {
    pub(super) fn seal_replay(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: ReplayOperation,
    ) -> Result<(), JournalError> {
        let ReplayOperation { lane: number, seal, reply, .. } = operation;
        let refused = match self.replay_misfit(transaction, number, &seal)? {
            None => self.replay_fits(transaction, number, &seal)?,
            misfit => misfit,
        };
        if let Some(error) = refused {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(error)));
            return Ok(());
        }
        let sealed = self.write_replay(transaction, number, &seal);
        group.answer_with(reply, sealed)
    }

    fn write_replay(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        seal: &ReplaySeal,
    ) -> Result<i64, JournalError> {
        let ReplaySeal { batch, repair, state, .. } = seal;
        if let Some(repair) = repair {
            self.repair_letter(transaction, repair)?;
        }
        let identity = batch.identity(&self.state.lanes[&number].name);
        let id = self.insert_replay(transaction, number, seal, &identity)?;
        let (source, at) = (self.source_of(number), batch.sealed_at);
        for (letter, again) in &seal.returned {
            let row = LetterRow::of_stage(again, &source, number, &identity, at);
            self.return_letter(transaction, *letter, &row)?;
        }
        for letter in &seal.further {
            let row = LetterRow::of_stage(letter, &source, number, &identity, at);
            self.write_letter(transaction, &row)?;
        }
        for change in state {
            self.change_state(transaction, number, change)?;
        }
        self.take_away(transaction, &seal.without_output, End::Dropped)?;
        if batch.records > 0 {
            self.insert_batch(transaction, number, batch, 0)?;
        }
        if let Some(lane) = self.state.lanes.get_mut(&number) {
            lane.next_batch = BatchNumber(batch.number.0 + 1);
            if batch.records > 0 {
                lane.replays.push_back(batch.unacked(0));
            }
        }
        if batch.records == 0 {
            self.end_replay(transaction, number, batch.number)?;
        }
        self.write_lane(transaction, number)?;
        Ok(id)
    }

    /// Writes the row of a replay, and marks its letters.
    fn insert_replay(
        &self,
        transaction: &Connection,
        number: LaneNumber,
        seal: &ReplaySeal,
        identity: &str,
    ) -> Result<i64, JournalError> {
        let ReplaySeal { batch, stage, of, letters, .. } = seal;
        if seal.replays > 0 {
            let count = "INSERT INTO letter_batches VALUES (?1, ?2, 0, 0, 0, x'', '', ?3)
                         ON CONFLICT (lane, batch) DO UPDATE SET replays = ?3";
            let parameters = params![number.0, of, seal.replays.cast_signed()];
            self.execute(transaction, "counting replays", count, parameters)?;
        }
        let again = seal.returned.iter().map(|(_, letter)| letter).chain(&seal.further);
        let (returned, class) =
            again.fold((0_i64, ""), |(count, _), letter| (count + 1, letter.class));
        let insert =
            "INSERT INTO replays (lane, number, batch, stage, letters, began_at, dropped, returned, class)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let parameters = params![
            number.0,
            batch.number.0.cast_signed(),
            identity,
            stage,
            (letters.len() as u64).cast_signed(),
            self.clock.now().0,
            (seal.without_output.len() as u64).cast_signed(),
            returned,
            class
        ];
        self.execute(transaction, "keeping a replay", insert, parameters)?;
        let id = transaction.last_insert_rowid();
        for letter in letters {
            let mark = "INSERT INTO replaying VALUES (?1, ?2, ?3)";
            let parameters = params![letter, number.0, batch.number.0.cast_signed()];
            self.execute(transaction, "marking a dead letter", mark, parameters)?;
        }
        Ok(id)
    }

    /// What of a replay does not fit the journal.
    fn replay_misfit(
        &self,
        transaction: &Connection,
        number: LaneNumber,
        seal: &ReplaySeal,
    ) -> Result<Option<JournalError>, JournalError> {
        let Some(lane) = self.state.lanes.get(&number) else {
            return Ok(Some(JournalError::SessionEnded(format!("lane number {number}"))));
        };
        let batch = &seal.batch;
        let (name, sealed) = (lane.name.clone(), lane.sealed_seq);
        let misfit = |why: String| {
            let (lane, batch) = (name.clone(), batch.number);
            Ok(Some(JournalError::Misfit { lane, batch, why }))
        };
        if batch.number != lane.next_batch {
            return misfit(format!("the next batch is {}", lane.next_batch));
        }
        if batch.last_seq > sealed || batch.first_seq > batch.last_seq || !batch.variant.replay {
            return misfit(format!("{} to {} is no range of letters", batch.first_seq, sealed));
        }
        let query = "SELECT count(*) FROM batch_parts WHERE key BETWEEN ?1 AND ?2";
        let keys = part_keys(number, batch.number);
        let parts: i64 = self.value(transaction, "counting parts", query, keys)?.unwrap_or(0);
        if parts.cast_unsigned() != batch.parts {
            return misfit(format!("{parts} of its {} parts are stored", batch.parts));
        }
        for letter in &seal.letters {
            let query =
                "SELECT count(*) FROM dead_letters WHERE id = ?1 AND lane = ?2 AND batch = ?3
                         AND id NOT IN (SELECT letter FROM replaying)";
            let parameters = params![letter, number.0, seal.of];
            let open: Option<i64> =
                self.value(transaction, "looking for a dead letter", query, parameters)?;
            if open != Some(1) {
                return misfit(format!("dead letter {letter} is not there any more, or under way"));
            }
        }
        Ok(None)
    }

    /// Whether there is room for what a replay brings at once.
    fn replay_fits(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        seal: &ReplaySeal,
    ) -> Result<Option<JournalError>, JournalError> {
        let identity = seal.batch.identity(&self.state.lanes[&number].name);
        let letters = seal.returned.iter().map(|(_, letter)| letter).chain(&seal.further);
        let bytes: u64 = letters.map(|letter| letter.record.stored_bytes(&identity)).sum();
        if let Some(Repair { letter, payload, .. }) = &seal.repair {
            let query = "SELECT octet_length(payload) FROM dead_letters WHERE id = ?1";
            let before: Option<i64> =
                self.value(transaction, "reading a dead letter", query, [letter])?;
            let more = (payload.len() as u64).saturating_sub(before.unwrap_or(0).cast_unsigned());
            if !self.letters_fit(more) {
                return Ok(Some(self.letters_have_no_room(more)));
            }
        }
        let repaired = seal.repair.as_ref().map_or(0, |repair| repair.payload.len() as u64);
        Ok(self.letters_lack_pages(bytes + repaired))
    }

    /// Whether a batch is a replay that waits for its outcome.
    pub(super) fn is_replay(&self, lane: LaneNumber, number: BatchNumber) -> bool {
        let lane = self.state.lanes.get(&lane);
        lane.is_some_and(|lane| lane.replays.iter().any(|batch| batch.number == number))
    }

    pub(super) fn settle_replay(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: AckOperation,
    ) -> Result<(), JournalError> {
        let bytes = operation.letters_bytes();
        let AckOperation { lane: number, batch: key, identity, letters, already, .. } = operation;
        let Some((letters, reply)) = letters else {
            tracing::error!("Ack of a replay without word of its letters, not taken");
            return Ok(());
        };
        if !letters.letters.is_empty()
            && let Some(error) = self.letters_lack_pages(bytes)
        {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(error)));
            return Ok(());
        }
        group.answer(reply, ());
        let given_up = letters.letters.len() as u64;
        self.return_letters(transaction, number, key.number(), &identity, &letters)?;
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        let Some(done) = lane.replays.pop_front() else { return Ok(()) };
        let delivered = done.records.saturating_sub(given_up);
        lane.totals.outputs_delivered += delivered;
        let is_last = lane.replays.front().is_none_or(|next| next.number != done.number);
        self.delete_batch(transaction, number, &key)?;
        let class = if given_up > 0 { letters.class.as_str() } else { "" };
        let count = "UPDATE replays SET delivered = delivered + ?3, already = already + ?4,
                        returned = returned + ?5, class = CASE ?6 WHEN '' THEN class ELSE ?6 END
                     WHERE lane = ?1 AND number = ?2";
        let parameters = params![
            number.0,
            done.number.0.cast_signed(),
            delivered.cast_signed(),
            already.min(delivered).cast_signed(),
            given_up.cast_signed(),
            class
        ];
        self.execute(transaction, "counting a replay", count, parameters)?;
        if is_last {
            let delete = "DELETE FROM batch_parts WHERE key BETWEEN ?1 AND ?2";
            let keys = part_keys(number, done.number);
            self.execute(transaction, "deleting parts", delete, keys)?;
            self.end_replay(transaction, number, done.number)?;
        }
        self.write_lane(transaction, number)
    }

    /// Makes letters again of what a replay did not deliver.
    fn return_letters(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        batch: BatchNumber,
        identity: &str,
        letters: &SinkLetters,
    ) -> Result<(), JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "reading a replay", source);
        // A record of a letter that a transform gave up is another one than the letter's, whatever its identity.
        let query = "SELECT record, id FROM replaying JOIN dead_letters ON id = letter
                     WHERE replaying.lane = ?1 AND number = ?2 AND plugin_sha256 IS NULL";
        let known: BTreeMap<String, i64> = transaction
            .prepare_cached(query)
            .and_then(|mut statement| {
                let rows = statement
                    .query_map(params![number.0, batch.0.cast_signed()], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })?;
                rows.collect()
            })
            .map_err(failed)?;
        let records = self.state.lanes.get(&number).and_then(|lane| lane.replays.front());
        let is_whole = records.is_some_and(|batch| batch.records == letters.letters.len() as u64);
        let whole = if is_whole { letters.letters.len() as u64 } else { 0 };
        if whole > 0 {
            self.keep_letter_batch(transaction, number, batch, identity)?;
        }
        let source = self.source_of(number);
        let stage = self.state.lanes.get(&number).map(|lane| lane.sink.to_string());
        let stage = stage.unwrap_or_default();
        for letter in &letters.letters {
            let row = LetterRow::of_sink(letter, letters, (&stage, &source, number), identity);
            let row = LetterRow { whole, ..row };
            match known.get(&letter.identity) {
                Some(id) => self.return_letter(transaction, *id, &row)?,
                None => self.write_letter(transaction, &row)?,
            }
        }
        Ok(())
    }

    /// A letter is open again, for another reason. What its record is stays.
    fn return_letter(
        &mut self,
        transaction: &Connection,
        id: i64,
        row: &LetterRow<'_>,
    ) -> Result<(), JournalError> {
        let before = self.letter_bytes(transaction, id)?;
        let update = "UPDATE dead_letters SET batch = ?2, class = ?3, reason = ?4,
                        attempts = attempts + ?5, last_at = ?6, whole = ?7, plugin_sha256 = ?8,
                        disposition = 'replayed' WHERE id = ?1";
        let parameters = params![
            id,
            row.batch,
            row.class,
            row.reason,
            row.attempts,
            row.last_at.0,
            row.whole.cast_signed(),
            row.plugin_sha256
        ];
        let old: Option<Option<String>> = self.value(
            transaction,
            "reading a dead letter",
            "SELECT batch FROM dead_letters WHERE id = ?1",
            [id],
        )?;
        self.execute(transaction, "updating a dead letter", update, parameters)?;
        self.count_letter_bytes(transaction, id, before)?;
        let open = "DELETE FROM replaying WHERE letter = ?1";
        self.execute(transaction, "opening a dead letter", open, [id])?;
        if let (Some(lane), Some(Some(old))) = (row.lane, old) {
            self.forget_letter_batch(transaction, lane, &old)?;
        }
        Ok(())
    }

    /// Replaces the record of a letter.
    fn repair_letter(
        &mut self,
        transaction: &Connection,
        repair: &Repair,
    ) -> Result<(), JournalError> {
        let Repair { letter, identity, payload } = repair;
        let before = self.letter_bytes(transaction, *letter)?;
        let update = "UPDATE dead_letters SET record = ?2, payload = ?3, size_bytes = ?4, whole = 0
                      WHERE id = ?1";
        let parameters = params![letter, identity, payload, payload.len().cast_signed()];
        self.execute(transaction, "repairing a dead letter", update, parameters)?;
        self.count_letter_bytes(transaction, *letter, before)
    }

    fn letter_bytes(&self, transaction: &Connection, id: i64) -> Result<u64, JournalError> {
        let query = format!("SELECT {BYTES} FROM dead_letters WHERE id = ?1");
        let bytes: Option<i64> = self.value(transaction, "reading a dead letter", &query, [id])?;
        Ok(bytes.unwrap_or(0).cast_unsigned())
    }

    fn count_letter_bytes(
        &mut self,
        transaction: &Connection,
        id: i64,
        before: u64,
    ) -> Result<(), JournalError> {
        let after = self.letter_bytes(transaction, id)?;
        let letters = &mut self.state.letters;
        letters.bytes = (letters.bytes + after).saturating_sub(before);
        Ok(())
    }

    /// A replay has its outcome: what is left of its letters goes.
    fn end_replay(
        &mut self,
        transaction: &Connection,
        lane: LaneNumber,
        number: BatchNumber,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "reading a replay", source);
        let key = params![lane.0, number.0.cast_signed()];
        let query = "SELECT letter FROM replaying WHERE lane = ?1 AND number = ?2";
        let delivered: Vec<i64> = transaction
            .prepare_cached(query)
            .and_then(|mut statement| statement.query_map(key, |row| row.get(0))?.collect())
            .map_err(failed)?;
        self.take_away(transaction, &delivered, End::Delivered)?;
        let end = "UPDATE replays SET ended_at = ?3 WHERE lane = ?1 AND number = ?2";
        let parameters = params![lane.0, number.0.cast_signed(), self.clock.now().0];
        self.execute(transaction, "ending a replay", end, parameters)?;
        // The oldest go, but for those that are under way.
        let bound = "DELETE FROM replays WHERE ended_at IS NOT NULL
                     AND id <= (SELECT max(id) FROM replays) - ?1";
        self.execute(transaction, "forgetting replays", bound, [REPLAYS_MAX.cast_signed()])?;
        let query = "SELECT batch, delivered, already, dropped, returned, class FROM replays
                     WHERE lane = ?1 AND number = ?2";
        let told = transaction
            .prepare_cached(query)
            .and_then(|mut statement| {
                let read = statement.query_row(key, |row| {
                    let count = |index| row.get::<_, i64>(index);
                    let batch: String = row.get(0)?;
                    let class: String = row.get(5)?;
                    Ok((batch, count(1)?, count(2)?, count(3)?, count(4)?, class))
                });
                read.optional()
            })
            .map_err(failed)?;
        if let Some((batch, delivered, already, dropped, returned, class)) = told {
            tracing::info!(
                batch,
                delivered,
                already,
                dropped,
                returned,
                class,
                "Replay of dead letters has its outcome"
            );
        }
        // Whoever waits for room looks again.
        self.letters_have_room_again();
        Ok(())
    }

    /// Deletes letters of a replay, and counts their inputs for what became of them.
    fn take_away(
        &mut self,
        transaction: &Connection,
        letters: &[i64],
        end: End,
    ) -> Result<(), JournalError> {
        let mut inputs: BTreeMap<(LaneNumber, Seq), bool> = BTreeMap::new();
        for id in letters {
            let Some(gone) = self.forget_letter(transaction, *id)? else { continue };
            if let (Some(lane), Some(seq)) = (gone.lane, gone.seq) {
                *inputs.entry((lane, seq)).or_default() |= gone.stays;
            }
        }
        for ((lane, seq), stays) in inputs {
            let query = "SELECT count(*) FROM dead_letters WHERE lane = ?1 AND seq = ?2";
            let parameters = params![lane.0, seq.0.cast_signed()];
            let left: Option<i64> =
                self.value(transaction, "looking for dead letters", query, parameters)?;
            if !stays && left == Some(0) {
                self.count_again(transaction, lane, seq, end)?;
            }
        }
        Ok(())
    }

    /// An input is dead-lettered no more. Where batches of the lane still have records of it, the last of them counts it.
    fn count_again(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        seq: Seq,
        end: End,
    ) -> Result<(), JournalError> {
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        if lane.totals.dead_lettered == 0 {
            // What a salvage has made of the totals knows nothing of it.
            return Ok(());
        }
        lane.totals.dead_lettered -= 1;
        let mut changed = Vec::new();
        for (at, batch) in lane.unacked.iter_mut().enumerate() {
            if let Ok(place) = batch.counted.binary_search(&seq) {
                batch.counted.remove(place);
                changed.push(at);
            }
        }
        match changed.last() {
            Some(last) => lane.unacked[*last].inputs += 1,
            None if end == End::Delivered => lane.totals.delivered += 1,
            None => lane.totals.dropped += 1,
        }
        let changed: Vec<_> = changed.into_iter().map(|at| lane.unacked[at].clone()).collect();
        for batch in changed {
            self.write_inputs(transaction, number, &batch)?;
        }
        Ok(())
    }

    /// Deletes a letter. What other letters of its input are to know, whoever deletes it says.
    pub(super) fn forget_letter(
        &mut self,
        transaction: &Connection,
        id: i64,
    ) -> Result<Option<Gone>, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "reading a dead letter", source);
        let query =
            format!("SELECT {BYTES}, lane, seq, batch, stays FROM dead_letters WHERE id = ?1");
        let found = transaction.prepare_cached(&query).and_then(|mut statement| {
            let mut rows = statement.query([id])?;
            let Some(row) = rows.next()? else { return Ok(None) };
            let lane: Option<i64> = row.get(1)?;
            let gone = Gone {
                lane: lane.and_then(|lane| u16::try_from(lane).ok()).map(LaneNumber),
                seq: row.get::<_, Option<i64>>(2)?.map(|seq| Seq(seq.cast_unsigned())),
                batch: row.get(3)?,
                stays: row.get(4)?,
            };
            Ok(Some((row.get::<_, i64>(0)?, gone)))
        });
        let Some((bytes, gone)) = found.map_err(failed)? else { return Ok(None) };
        let delete = "DELETE FROM dead_letters WHERE id = ?1";
        self.execute(transaction, "deleting a dead letter", delete, [id])?;
        let mark = "DELETE FROM replaying WHERE letter = ?1";
        self.execute(transaction, "deleting a dead letter", mark, [id])?;
        let letters = &mut self.state.letters;
        let freed = bytes.cast_unsigned() + LETTER_ROW_BYTES;
        letters.bytes = letters.bytes.saturating_sub(freed);
        letters.count = letters.count.saturating_sub(1);
        if let (Some(lane), Some(batch)) = (gone.lane, &gone.batch) {
            self.forget_letter_batch(transaction, lane, batch)?;
        }
        Ok(Some(gone))
    }

    /// A letter was given up for good: the input that it is of stays dead-lettered, whatever becomes of others.
    pub(super) fn input_stays(
        &self,
        transaction: &Connection,
        gone: &Gone,
    ) -> Result<(), JournalError> {
        let (Some(lane), Some(seq)) = (gone.lane, gone.seq) else { return Ok(()) };
        let stay = "UPDATE dead_letters SET stays = 1 WHERE lane = ?1 AND seq = ?2 AND stays = 0";
        let parameters = params![lane.0, seq.0.cast_signed()];
        self.execute(transaction, "marking dead letters", stay, parameters).map(drop)
    }

    /// Keeps what a batch was that becomes letters as a whole.
    pub(super) fn keep_letter_batch(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        number: BatchNumber,
        identity: &str,
    ) -> Result<(), JournalError> {
        let keep = "INSERT INTO letter_batches
                    SELECT lane, ?4, first_seq, last_seq, sealed_at, sha256, fixed, 0 FROM batches
                    WHERE lane = ?1 AND number = ?2 AND suffix = ?3
                    ON CONFLICT (lane, batch) DO UPDATE SET first_seq = excluded.first_seq,
                        last_seq = excluded.last_seq, sealed_at = excluded.sealed_at,
                        sha256 = excluded.sha256, fixed = excluded.fixed";
        let front = self.state.lanes.get(&lane).map(|lane| {
            let queues = [lane.replays.front(), lane.unacked.front()];
            let batch = queues.into_iter().flatten().find(|batch| batch.number == number);
            batch.map_or(String::new(), |batch| batch.suffix.clone())
        });
        let parameters =
            params![lane.0, number.0.cast_signed(), front.unwrap_or_default(), identity];
        self.execute(transaction, "keeping a batch of letters", keep, parameters).map(drop)
    }

    /// Forgets a batch that no letter fell out of any more.
    fn forget_letter_batch(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        batch: &str,
    ) -> Result<(), JournalError> {
        // Such a batch may still wait in the order, and leave letters later: what was counted of it must not begin anew.
        let waits = self.state.lanes.get(&lane).is_some_and(|lane| {
            Shown::of_identity(&lane.name, batch)
                .is_none_or(|shown| lane.unacked.iter().any(|batch| batch.number == shown.number))
        });
        if waits {
            return Ok(());
        }
        let forget = "DELETE FROM letter_batches WHERE lane = ?1 AND batch = ?2 AND NOT EXISTS
                      (SELECT 1 FROM dead_letters WHERE lane = ?1 AND batch = ?2)";
        let parameters = params![lane.0, batch];
        self.execute(transaction, "forgetting a batch of letters", forget, parameters).map(drop)
    }

    /// Forgets what was kept of batches that waited when their last letter went.
    pub(super) fn forget_letter_batches(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
    ) -> Result<(), JournalError> {
        let waits = self.state.lanes.get(&lane).is_some_and(|lane| !lane.unacked.is_empty());
        if waits {
            return Ok(());
        }
        let forget = "DELETE FROM letter_batches WHERE lane = ?1 AND NOT EXISTS (SELECT 1
                      FROM dead_letters AS letter WHERE letter.lane = ?1 AND letter.batch = letter_batches.batch)";
        self.execute(transaction, "forgetting batches of letters", forget, [lane.0]).map(drop)
    }

    /// Writes what a batch of the order counts.
    pub(super) fn write_inputs(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        batch: &super::state::UnackedState,
    ) -> Result<(), JournalError> {
        let update = "UPDATE batches SET inputs = ?4, counted = ?5
                      WHERE lane = ?1 AND number = ?2 AND suffix = ?3";
        let parameters = params![
            lane.0,
            batch.number.0.cast_signed(),
            batch.suffix,
            batch.inputs.cast_signed(),
            counted_bytes(&batch.counted)
        ];
        self.execute(transaction, "counting inputs", update, parameters).map(drop)
    }

    /// The first of some letters that is under way, and in which batch.
    pub(super) fn letter_under_way(
        &self,
        transaction: &Connection,
        ids: &[i64],
    ) -> Result<Option<(i64, String)>, JournalError> {
        let query = "SELECT coalesce(replays.batch, '') FROM replaying
                     LEFT JOIN replays USING (lane, number) WHERE letter = ?1";
        let ids: BTreeSet<_> = ids.iter().collect();
        for id in ids {
            let batch: Option<String> =
                self.value(transaction, "looking for replays", query, [id])?;
            if let Some(batch) = batch {
                return Ok(Some((*id, batch)));
            }
        }
        Ok(None)
    }
}

fn part_keys(lane: LaneNumber, batch: BatchNumber) -> [i64; 2] {
    [part_key(lane, batch, 0), part_key(lane, batch, BATCH_PARTS_MAX - 1)]
}
