//! What comes of a replay: letters that go, letters that are open again, and what their inputs count as. See `replay.rs`.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};

use super::apply::Group;
use super::batches::{Shown, counted_bytes};
use super::error::JournalError;
use super::letters::{self, BYTES, Gone, LetterRow};
use super::outcome::{AckOperation, SinkLetters};
use super::replay::{Repair, part_keys, updated_bytes};
use super::writer::Writer;
use crate::limits::{LETTER_ROW_BYTES, REPLAYS_MAX};
use crate::record::id::{BatchNumber, LaneNumber, Seq};

/// What an input counts as once no letter of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Delivered,
    Dropped,
}

impl End {
    /// The word for what was done about the letter.
    fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "replayed",
            Self::Dropped => "replayed and dropped by a plugin",
        }
    }
}

/// Letters of a replay whose records go as they are, by the identities of those.
type KnownLetters = BTreeMap<String, i64>;

impl Writer {
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
        let AckOperation {
            lane: number,
            batch: key,
            identity,
            finished,
            letters,
            already,
            state,
            ..
        } = operation;
        let Some((letters, reply)) = letters else {
            tracing::error!("Ack of a replay without word of its letters, not taken");
            return Ok(());
        };
        let known = match self.returns_fit(transaction, number, key.number(), &identity, &letters) {
            Ok(Ok(known)) => known,
            Ok(Err(error)) => {
                // Whoever asked may have given up waiting.
                drop(reply.send(Err(error)));
                return Ok(());
            }
            Err(error) => return group.answer_with(reply, Err(error)),
        };
        group.answer(reply, ());
        let given_up = letters.letters.len() as u64;
        self.return_letters(transaction, (number, key.number()), &identity, &letters, &known)?;
        self.change_states(transaction, number, &state)?;
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        let Some(done) = lane.replays.pop_front() else { return Ok(()) };
        let delivered = done.records.saturating_sub(given_up);
        lane.totals.outputs_delivered += delivered;
        let is_last = lane.replays.front().is_none_or(|next| next.number != done.number);
        self.delete_batch(transaction, number, &key)?;
        // A part of a batch covers a range that others stand in, too: only what was one batch is told as such.
        let name = self.state.lanes.get(&number).map_or("", |lane| lane.name.as_str());
        let is_whole = identity.strip_prefix(name).is_some_and(|rest| !rest.contains("/r"));
        if is_whole {
            self.remember_finished(transaction, number, &finished, self.clock.now())?;
        }
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
            self.end_replay(transaction, number, done.number, &identity)?;
        }
        self.write_lane(transaction, number)
    }

    /// The letters that records of a replay are, or why those that are none have no room as new ones.
    fn returns_fit(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        batch: BatchNumber,
        identity: &str,
        letters: &SinkLetters,
    ) -> Result<Result<KnownLetters, JournalError>, JournalError> {
        if letters.letters.is_empty() {
            return Ok(Ok(KnownLetters::new()));
        }
        let known = self.known_letters(transaction, number, batch)?;
        let (old, new): (Vec<_>, Vec<_>) =
            letters.letters.iter().partition(|letter| known.contains_key(&letter.identity));
        let bytes = new.iter().map(|letter| letter.stored_bytes(identity)).sum();
        let own = self.replaced_bytes(transaction, number, batch)?;
        if let Some(error) = self.make_room_for_letters(transaction, bytes, own)? {
            return Ok(Err(error));
        }
        let updated = updated_bytes(old.into_iter(), identity);
        Ok(self.letters_lack_pages(bytes + updated).map_or(Ok(known), Err))
    }

    /// What the letters of a replay take that are replaced by what transforms made of them.
    pub(super) fn replaced_bytes(
        &self,
        transaction: &Connection,
        number: LaneNumber,
        batch: BatchNumber,
    ) -> Result<u64, JournalError> {
        let query = format!(
            "SELECT coalesce(sum({BYTES}), 0) + count(*) * {LETTER_ROW_BYTES} FROM dead_letters
             WHERE plugin_sha256 IS NOT NULL
             AND id IN (SELECT letter FROM replaying WHERE lane = ?1 AND number = ?2)"
        );
        let key = params![number.0, batch.0.cast_signed()];
        let bytes: Option<i64> = self.value(transaction, "measuring dead letters", &query, key)?;
        Ok(bytes.unwrap_or(0).cast_unsigned())
    }

    fn known_letters(
        &self,
        transaction: &Connection,
        number: LaneNumber,
        batch: BatchNumber,
    ) -> Result<KnownLetters, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "reading a replay", source);
        // A record of a letter that a transform gave up is another one than the letter's, whatever its identity.
        let query = "SELECT record, id FROM replaying JOIN dead_letters ON id = letter
                     WHERE replaying.lane = ?1 AND number = ?2 AND plugin_sha256 IS NULL";
        transaction
            .prepare_cached(query)
            .and_then(|mut statement| {
                let rows = statement
                    .query_map(params![number.0, batch.0.cast_signed()], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })?;
                rows.collect()
            })
            .map_err(failed)
    }

    /// Makes letters again of what a replay did not deliver.
    fn return_letters(
        &mut self,
        transaction: &Connection,
        (number, batch): (LaneNumber, BatchNumber),
        identity: &str,
        letters: &SinkLetters,
        known: &KnownLetters,
    ) -> Result<(), JournalError> {
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
        if letters.may_be_sent() {
            self.note_letter_batch(transaction, number, identity, None)?;
        }
        Ok(())
    }

    /// Notes where the sink would look for letters of a batch that it may have sent: where it would have looked for those of
    /// `before`, out of which they fell first, or as it does now. The earliest note stays.
    pub(super) fn note_letter_batch(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        batch: &str,
        before: Option<&str>,
    ) -> Result<(), JournalError> {
        let (from, key) = match before {
            Some(_) => (
                "SELECT sink_note AS note FROM letter_batches WHERE lane = ?1 AND batch = ?3",
                before,
            ),
            None => ("SELECT note FROM sink_notes WHERE lane = ?1 AND ?3 IS NULL", None),
        };
        let note = format!(
            "INSERT INTO letter_batches SELECT ?1, ?2, 0, 0, 0, x'', '', 0, note FROM ({from}) WHERE note <> ''
             ON CONFLICT (lane, batch) DO UPDATE SET sink_note = excluded.sink_note WHERE sink_note = ''"
        );
        let parameters = params![lane.0, batch, key];
        self.execute(transaction, "noting where letters may be", &note, parameters).map(drop)
    }

    /// A letter is open again, for another reason. What its record is stays.
    pub(super) fn return_letter(
        &mut self,
        transaction: &Connection,
        id: i64,
        row: &LetterRow<'_>,
    ) -> Result<(), JournalError> {
        let before = self.look_at_letter(transaction, id)?;
        let old = before.as_ref().and_then(|letter| letter.batch.clone());
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
        self.execute(transaction, "updating a dead letter", update, parameters)?;
        self.count_change(transaction, id, before)?;
        let open = "DELETE FROM replaying WHERE letter = ?1";
        self.execute(transaction, "opening a dead letter", open, [id])?;
        if let (Some(lane), Some(old), Some(new)) = (row.lane, old, row.batch) {
            if row.plugin_sha256.is_none() && old != new {
                self.note_letter_batch(transaction, lane, new, Some(&old))?;
            }
            self.forget_letter_batch(transaction, lane, &old)?;
        }
        Ok(())
    }

    /// Replaces the record of a letter.
    pub(super) fn repair_letter(
        &mut self,
        transaction: &Connection,
        repair: &Repair,
    ) -> Result<(), JournalError> {
        let Repair { letter, identity, payload } = repair;
        let before = self.look_at_letter(transaction, *letter)?;
        let update = "UPDATE dead_letters SET record = ?2, payload = ?3, size_bytes = ?4, whole = 0
                      WHERE id = ?1";
        let parameters = params![letter, identity, payload, payload.len().cast_signed()];
        self.execute(transaction, "repairing a dead letter", update, parameters)?;
        self.count_change(transaction, *letter, before)
    }

    /// Counts what a letter has become.
    fn count_change(
        &mut self,
        transaction: &Connection,
        id: i64,
        before: Option<Gone>,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "reading a dead letter", source);
        let after = letters::look_at(transaction, id).map_err(failed)?;
        if let (Some(before), Some(after)) = (before, after) {
            self.state.letters.changes(&before, &after);
        }
        self.state.letters.oldest = letters::oldest(transaction).map_err(failed)?;
        Ok(())
    }

    pub(super) fn look_at_letter(
        &self,
        transaction: &Connection,
        id: i64,
    ) -> Result<Option<Gone>, JournalError> {
        letters::look_at(transaction, id)
            .map_err(|source| JournalError::sqlite(&self.path, "reading a dead letter", source))
    }

    /// A replay has its outcome: what is left of its letters goes.
    pub(super) fn end_replay(
        &mut self,
        transaction: &Connection,
        lane: LaneNumber,
        number: BatchNumber,
        identity: &str,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "reading a replay", source);
        let key = params![lane.0, number.0.cast_signed()];
        let query = "SELECT letter FROM replaying WHERE lane = ?1 AND number = ?2";
        let delivered: Vec<i64> = transaction
            .prepare_cached(query)
            .and_then(|mut statement| statement.query_map(key, |row| row.get(0))?.collect())
            .map_err(failed)?;
        self.take_away(transaction, &delivered, (End::Delivered, identity))?;
        self.write_end(transaction, lane, number)?;
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

    /// Says when a replay had its outcome, and forgets the oldest ones.
    fn write_end(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        number: BatchNumber,
    ) -> Result<(), JournalError> {
        // Later than all others, whatever the clock says: by that it is seen which ended first.
        let end = "UPDATE replays SET ended_at =
                     max(?3, coalesce((SELECT max(ended_at) + 1 FROM replays), 0))
                   WHERE lane = ?1 AND number = ?2";
        let parameters = params![lane.0, number.0.cast_signed(), self.clock.now().0];
        self.execute(transaction, "ending a replay", end, parameters)?;
        // Those that ended first go. The largest id stays, so that it is not given again.
        let bound = "DELETE FROM replays WHERE ended_at <
                       (SELECT ended_at FROM replays WHERE ended_at IS NOT NULL
                        ORDER BY ended_at DESC LIMIT 1 OFFSET ?1)
                     AND id < (SELECT max(id) FROM replays)";
        let most = self.ring_rows(REPLAYS_MAX).cast_signed();
        self.execute(transaction, "forgetting replays", bound, [most - 1]).map(drop)
    }

    /// Deletes letters of a replay, and counts their inputs for what became of them.
    pub(super) fn take_away(
        &mut self,
        transaction: &Connection,
        letters: &[i64],
        (end, batch): (End, &str),
    ) -> Result<(), JournalError> {
        let mut inputs: BTreeMap<(LaneNumber, Seq), bool> = BTreeMap::new();
        for id in letters {
            let Some(gone) = self.forget_letter(transaction, *id)? else { continue };
            self.note_disposition(transaction, *id, &gone, (end.as_str(), Some(batch)))?;
            if let (Some(lane), Some(seq)) = (gone.lane(), gone.seq) {
                *inputs.entry((lane, seq)).or_default() |= gone.stays;
            }
        }
        for ((lane, seq), stays) in inputs {
            let query =
                "SELECT count(*) FROM dead_letters WHERE lane = ?1 AND seq = ?2 AND of_tick = 0";
            let parameters = params![lane.0, seq.0.cast_signed()];
            let left: Option<i64> =
                self.value(transaction, "looking for dead letters", query, parameters)?;
            if !stays && left == Some(0) {
                self.count_again(transaction, lane, seq, end)?;
            }
        }
        self.forget_dispositions(transaction)
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
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "reading a dead letter", source);
        let Some(gone) = letters::look_at(transaction, id).map_err(failed)? else {
            return Ok(None);
        };
        let delete = "DELETE FROM dead_letters WHERE id = ?1";
        self.execute(transaction, "deleting a dead letter", delete, [id])?;
        let mark = "DELETE FROM replaying WHERE letter = ?1";
        self.execute(transaction, "deleting a dead letter", mark, [id])?;
        self.state.letters.gives(&gone);
        self.state.letters.oldest = letters::oldest(transaction).map_err(failed)?;
        if let (Some(lane), Some(batch)) = (gone.lane(), &gone.batch) {
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
        let (Some(lane), Some(seq)) = (gone.lane(), gone.seq) else { return Ok(()) };
        let stay = "UPDATE dead_letters SET stays = 1
                    WHERE lane = ?1 AND seq = ?2 AND of_tick = 0 AND stays = 0";
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
                    SELECT lane, ?4, first_seq, last_seq, sealed_at, sha256, fixed, 0, '' FROM batches
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
        &mut self,
        transaction: &Connection,
        lane: LaneNumber,
        batch: &str,
    ) -> Result<(), JournalError> {
        // Such a batch may still wait in the order, and leave letters later: what was counted of it must not begin anew.
        let row = self.state.lanes.get_mut(&lane);
        let waiting = row.filter(|row| {
            let shown = Shown::of_identity(&row.name, batch);
            shown.is_none_or(|shown| row.unacked.iter().any(|batch| batch.number == shown.number))
        });
        if let Some(row) = waiting {
            row.has_idle_letter_batches = true;
            return Ok(());
        }
        let forget = "DELETE FROM letter_batches WHERE lane = ?1 AND batch = ?2 AND NOT EXISTS
                      (SELECT 1 FROM dead_letters WHERE lane = ?1 AND batch = ?2)";
        let parameters = params![lane.0, batch];
        self.execute(transaction, "forgetting a batch of letters", forget, parameters).map(drop)
    }

    /// Forgets what was kept of batches that waited when their last letter went, and wait no more.
    pub(super) fn forget_letter_batches(
        &mut self,
        transaction: &Connection,
        lane: LaneNumber,
    ) -> Result<(), JournalError> {
        let query = "SELECT batch FROM letter_batches WHERE lane = ?1 AND NOT EXISTS (SELECT 1
                     FROM dead_letters AS letter WHERE letter.lane = ?1 AND letter.batch = letter_batches.batch)";
        let idle: Vec<String> = transaction
            .prepare_cached(query)
            .and_then(|mut statement| statement.query_map([lane.0], |row| row.get(0))?.collect())
            .map_err(|source| {
                JournalError::sqlite(&self.path, "reading batches of letters", source)
            })?;
        if let Some(row) = self.state.lanes.get_mut(&lane) {
            row.has_idle_letter_batches = false;
        }
        idle.iter().try_for_each(|batch| self.forget_letter_batch(transaction, lane, batch))
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

    /// The replay that a letter is under way in: its lane, its number there, and the identity that it goes out under.
    pub(super) fn replay_of(
        &self,
        transaction: &Connection,
        letter: i64,
    ) -> Result<Option<(LaneNumber, BatchNumber, String)>, JournalError> {
        let query = "SELECT replaying.lane, replaying.number, coalesce(replays.batch, '')
                     FROM replaying LEFT JOIN replays USING (lane, number) WHERE letter = ?1";
        let row = |row: &rusqlite::Row<'_>| {
            let number = BatchNumber(row.get::<_, i64>(1)?.cast_unsigned());
            Ok((LaneNumber(row.get(0)?), number, row.get(2)?))
        };
        transaction
            .prepare_cached(query)
            .and_then(|mut statement| statement.query_row([letter], row).optional())
            .map_err(|source| JournalError::sqlite(&self.path, "looking for replays", source))
    }

    /// Ends a replay whose lane does not run, so that nobody delivers it: all of its letters are open again.
    pub(super) fn cancel_replay(
        &mut self,
        transaction: &Connection,
        lane: LaneNumber,
        number: BatchNumber,
        identity: &str,
    ) -> Result<(), JournalError> {
        let key = params![lane.0, number.0.cast_signed()];
        let Some(row) = self.state.lanes.get_mut(&lane) else { return Ok(()) };
        let was_cut =
            row.replays.iter().any(|piece| piece.number == number && !piece.suffix.is_empty());
        row.replays.retain(|piece| piece.number != number);
        if was_cut {
            // The destination may have a piece of it: nothing of it goes out again as what was one batch.
            let part = "UPDATE dead_letters SET whole = 0 WHERE id IN
                        (SELECT letter FROM replaying WHERE lane = ?1 AND number = ?2)";
            self.execute(transaction, "opening dead letters", part, key)?;
        }
        let end = "UPDATE replays SET class = 'cancelled', returned = returned +
                     (SELECT count(*) FROM replaying WHERE lane = ?1 AND number = ?2)
                   WHERE lane = ?1 AND number = ?2";
        self.execute(transaction, "ending a replay", end, key)?;
        let open = "DELETE FROM replaying WHERE lane = ?1 AND number = ?2";
        self.execute(transaction, "opening dead letters", open, key)?;
        let delete = "DELETE FROM batches WHERE lane = ?1 AND number = ?2";
        self.execute(transaction, "deleting a batch", delete, key)?;
        let delete = "DELETE FROM batch_parts WHERE key BETWEEN ?1 AND ?2";
        self.execute(transaction, "deleting parts", delete, part_keys(lane, number))?;
        tracing::warn!(batch = identity, "Replay of a lane that does not run is cancelled");
        self.write_end(transaction, lane, number)
    }
}
