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
//! # What comes of it (`returns.rs`)
//!
//! - What is not delivered is a letter again, durably with the replay's ack: the same row with the new batch, class, reason,
//!   time and attempts, and `replayed` as its disposition. Such letters are always taken, however full the store is: they were
//!   in it before.
//! - Where transforms have made other records of a letter, those are new rows. They have the room of the letters that they
//!   were made of, which go with the last piece, and what the store has beside; a replay of which not all could be letters
//!   again is not begun, and one for which the store has become too full since waits for room as any other batch does.
//! - With the last piece of the replay all other letters of it go. The outcome stays in `replays`, the last ones of which are
//!   kept, and in the log.
//! - An input counts as dead-lettered as long as there is a letter of it, and then for what the replay made of it: delivered,
//!   or dropped by a plugin. One of which another letter was discarded stays dead-lettered. One of which something still waits
//!   in the order is given back to that.
//!
//! A crash before the seal has changed nothing; one behind it sends the same bytes under the same identity.

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::Journal;
use super::apply::Group;
use super::batches::StoredBatch;
use super::config::LettersOnFull;
use super::error::JournalError;
use super::inspect::Inspection;
use super::lanes::{LaneJournal, StageLetter, StateChange};
use super::letters::{LetterRecord, LetterRow};
use super::mailbox::Letter;
use super::outcome::SinkLetters;
use super::quota::Pace;
use super::returns::End;
use super::state::part_key;
use super::writer::{Operation, Writer};
use crate::clock::Timestamp;
use crate::limits::BATCH_PARTS_MAX;
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
    /// The note of the lane's sink when it gave them up, where it may have sent them.
    pub sink_note: Option<String>,
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
    /// What the records that plugins made would take as dead letters; 0 where the records are those of its letters.
    pub made_bytes: u64,
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
        super::mailbox::letter_of(&self.readers, id)
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
        let query = "SELECT first_seq, last_seq, sealed_at, sha256, fixed, replays, sink_note
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
                sink_note: Some(row.get::<_, String>(6)?).filter(|note| !note.is_empty()),
            })
        });
        Ok(found?.pop())
    }
}

/// The note that goes with a replay that waits: that of the batch that its letters fell out of.
pub(super) fn sink_note(
    connection: &Connection,
    lane: LaneNumber,
    number: BatchNumber,
) -> rusqlite::Result<Option<String>> {
    let query = "SELECT known.sink_note FROM replaying JOIN dead_letters AS letter ON letter.id = letter
                 JOIN letter_batches AS known ON known.lane = letter.lane AND known.batch = letter.batch
                 WHERE replaying.lane = ?1 AND replaying.number = ?2
                 AND letter.plugin_sha256 IS NULL AND known.sink_note <> '' LIMIT 1";
    super::state::value(connection, query, params![lane.0, number.0.cast_signed()])
}

/// Replays behind one of them.
fn listed<T>(after: i64, read: impl FnOnce(&str, &[&dyn rusqlite::ToSql]) -> T) -> T {
    let query = "SELECT replays.id, coalesce(lanes.name, ''), batch, stage, letters, began_at,
                        ended_at, replays.delivered, already, replays.dropped, returned, class
                 FROM replays LEFT JOIN lanes ON lanes.number = replays.lane
                 WHERE replays.id > ?1 ORDER BY replays.id";
    read(query, &[&after])
}

fn replay(row: &rusqlite::Row<'_>) -> rusqlite::Result<Replay> {
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
}

impl Inspection {
    /// As [`Journal::replays`].
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn replays(&self, after: i64) -> Result<Vec<Replay>, JournalError> {
        listed(after, |query, parameters| self.query_rows(query, parameters, replay))
    }
}

impl Journal {
    /// What lanes may do ahead of their deliveries now.
    #[must_use]
    pub fn pace(&self) -> Pace {
        *self.published.pace.borrow()
    }

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

    /// Replays with a larger number than `after`, oldest first: those under way, and the last
    /// [`REPLAYS_MAX`](crate::limits::REPLAYS_MAX) that ended. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn replays(&self, after: i64) -> Result<Vec<Replay>, JournalError> {
        listed(after, |query, parameters| self.readers.query_rows(query, parameters, replay))
    }
}

impl Writer {
    pub(super) fn seal_replay(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: ReplayOperation,
    ) -> Result<(), JournalError> {
        let ReplayOperation { lane: number, seal, reply, .. } = operation;
        let refused = match self.replay_misfit(transaction, number, &seal) {
            Ok(None) => self.replay_fits(transaction, number, &seal),
            misfit => misfit,
        };
        let sealed = match refused {
            Ok(None) => self.write_replay(transaction, number, &seal),
            Ok(Some(error)) => {
                // Whoever asked may have given up waiting.
                drop(reply.send(Err(error)));
                return Ok(());
            }
            Err(error) => Err(error),
        };
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
        let further = seal.further.iter().map(|letter| letter.record.stored_bytes(&identity)).sum();
        let own = self.replaced_bytes(transaction, number, batch.number)?;
        // It was seen before that they can have room.
        drop(self.make_room_for_letters(transaction, further, own)?);
        for letter in &seal.further {
            let row = LetterRow::of_stage(letter, &source, number, &identity, at);
            self.write_letter(transaction, &row)?;
        }
        self.change_states(transaction, number, state)?;
        self.take_away(transaction, &seal.without_output, (End::Dropped, &identity))?;
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
            self.end_replay(transaction, number, batch.number, &identity)?;
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
            let count = "INSERT INTO letter_batches VALUES (?1, ?2, 0, 0, 0, x'', '', ?3, '')
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
        let is_range = batch.first_seq <= batch.last_seq.next() && batch.last_seq <= sealed;
        if !is_range || !batch.variant.replay {
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
        let size = |letter: &StageLetter| letter.record.stored_bytes(&identity);
        let further = seal.further.iter().map(size).sum::<u64>();
        let returned = seal.returned.iter().map(|(_, letter)| letter);
        if let Some(error) = self.made_fit(transaction, seal, further + seal.made_bytes)? {
            return Ok(Some(error));
        }
        if let Some(Repair { letter, payload, .. }) = &seal.repair {
            let query = "SELECT octet_length(payload) FROM dead_letters WHERE id = ?1";
            let before: Option<i64> =
                self.value(transaction, "reading a dead letter", query, [letter])?;
            let more = (payload.len() as u64).saturating_sub(before.unwrap_or(0).cast_unsigned());
            if !self.letters_fit(more, 0) {
                return Ok(Some(self.letters_have_no_room(more)));
            }
        }
        let repaired = seal.repair.as_ref().map_or(0, |repair| repair.payload.len() as u64);
        let updated = updated_bytes(returned.map(|letter| &letter.record), &identity);
        Ok(self.letters_lack_pages(further + updated + repaired))
    }

    /// Whether the store can hold all that plugins made of the letters in their place, whatever comes of it. What does not
    /// fit is not begun: a lane that waits with it for room would hold its other records up.
    fn made_fit(
        &self,
        transaction: &Connection,
        seal: &ReplaySeal,
        made: u64,
    ) -> Result<Option<JournalError>, JournalError> {
        if made == 0 {
            return Ok(None);
        }
        let mut own = 0;
        for letter in &seal.letters {
            own += self.look_at_letter(transaction, *letter)?.map_or(0, |letter| letter.bytes);
        }
        let fit = match self.letters.on_full {
            LettersOnFull::Hold => made <= own || self.letters_fit(made, own),
            // All but what is under way would be dropped.
            LettersOnFull::DropOldest => {
                self.under_way_bytes(transaction)? + made.max(own) <= self.letters.bytes_max
            }
        };
        Ok((!fit).then(|| self.letters_have_no_room(made.saturating_sub(own))))
    }
}

/// What rows take for a moment that become letters of a batch again: each is written anew before its old pages are free, and
/// those of the one before it are then.
pub(super) fn updated_bytes<'a>(
    records: impl Iterator<Item = &'a LetterRecord>,
    batch: &str,
) -> u64 {
    let (mut largest, mut texts) = (0, 0);
    for record in records {
        largest = largest.max(record.stored_bytes(batch));
        // In its row and in the index.
        texts += (record.reason.len() + 2 * batch.len()) as u64;
    }
    largest + texts
}

pub(super) fn part_keys(lane: LaneNumber, batch: BatchNumber) -> [i64; 2] {
    [part_key(lane, batch, 0), part_key(lane, batch, BATCH_PARTS_MAX - 1)]
}
