//! The store of dead letters: its rows, how much they take, and what is done when there is no room for more.
//!
//! What it holds is kept in mind and counted anew whenever the state is loaded. A letter that has no room is never left out
//! silently: with `on_full = "hold"` whatever it belongs to (a batch's ack, a seal, an append) does not happen and is asked
//! again later; with `drop_oldest` the oldest letters make room and are counted.
//!
//! A letter that somebody discards goes, payload and all; what it was, when that was, and the note stay in `dispositions`, the
//! newest of them. An id is never given twice, so that who has seen a list can name what was on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::oneshot;

use super::appender::SourceLetter;
use super::apply::Group;
use super::config::LettersOnFull;
use super::error::JournalError;
use super::lanes::StageLetter;
use super::outcome::SinkLetters;
use super::quota::FullState;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::limits::{DISPOSITIONS_MAX, LETTER_ROW_BYTES};
use crate::record::RecordView;
use crate::record::id::{LaneNumber, Seq};
use crate::units::human_bytes;

/// Bytes of the limit for each row that a ring for people may have.
const RING_ROW_SHARE_BYTES: u64 = 8 * 1024;

/// Letters that are looked at together when the oldest make room.
const DROPPED_AT_ONCE: usize = 64;

/// A record that a lane gives up, as it was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterRecord {
    /// Why, in the words of the plugin or the destination, or the fault.
    pub reason: String,
    /// The record's identity.
    pub identity: String,
    /// The input that it was made from, or the last one before the tick that made it.
    pub seq: Seq,
    /// A tick made it, so it is of no input.
    pub is_of_tick: bool,
    /// Its event time.
    pub time: Timestamp,
    /// Its subject.
    pub subject: String,
    /// Its headers, encoded.
    pub headers: Vec<u8>,
    /// Its payload, as it was in front of the transform or as it was sealed.
    pub payload: Vec<u8>,
}

/// How full the store of dead letters is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LettersRoom {
    /// Bytes of all letters: payload, headers and texts, and a fixed share for each.
    pub bytes: u64,
    /// `dead_letters.max_bytes`.
    pub bytes_max: u64,
    /// Letters.
    pub count: u64,
}

/// The same for status and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LettersSnapshot {
    /// What it holds.
    pub room: LettersRoom,
    /// `dead_letters.on_full`.
    pub on_full: LettersOnFull,
    /// Something waits for room, and why.
    pub full: Option<FullState>,
    /// Letters that were dropped since this run began, to make room.
    pub dropped: u64,
    /// Letters that were discarded since this run began, as asked.
    pub discarded: u64,
    /// How often since this run began letters had no room, and what they belong to did not happen.
    pub write_failures: u64,
    /// When the oldest became a letter.
    pub oldest: Option<Timestamp>,
    /// All of them by where they are from and why.
    pub by_class: Vec<LettersCount>,
}

/// Letters of one lane, or of what a source refused, with one class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LettersCount {
    /// Their source.
    pub source: String,
    /// The name of their lane; none for what a source refused.
    pub lane: Option<String>,
    /// Their class.
    pub class: String,
    /// How many.
    pub letters: u64,
}

/// Source, lane and class.
type Kind = (String, Option<u16>, String);

/// What all letters take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct LettersState {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) oldest: Option<Timestamp>,
    by_class: BTreeMap<Kind, u64>,
    /// The largest id that was ever given, as far as it is known.
    last_id: i64,
}

/// A letter that goes.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) bytes: u64,
    kind: Kind,
    record: Option<String>,
    /// The input that it is of.
    pub(super) seq: Option<Seq>,
    pub(super) batch: Option<String>,
    /// Its input stays dead-lettered, whatever becomes of other letters of it.
    pub(super) stays: bool,
}

impl Gone {
    pub(super) fn lane(&self) -> Option<LaneNumber> {
        self.kind.1.map(LaneNumber)
    }
}

/// Bytes of a letter's row, in SQL. The same as [`LetterRow::bytes`].
pub(super) const BYTES: &str =
    "(octet_length(payload) + octet_length(headers) + octet_length(subject)
    + octet_length(reason) + coalesce(octet_length(record), octet_length(place), 0)
    + coalesce(octet_length(batch), 0))";

impl LettersState {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let query = format!(
            "SELECT source, lane, class, count(*), sum({BYTES}), max(id) FROM dead_letters
             GROUP BY source, lane, class"
        );
        let mut statement = connection.prepare(&query)?;
        let mut rows = statement.query([])?;
        let mut state = Self::default();
        while let Some(row) = rows.next()? {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            state.by_class.insert((row.get(0)?, row.get(1)?, row.get(2)?), count(3)?);
            state.count += count(3)?;
            state.bytes += count(4)? + count(3)? * LETTER_ROW_BYTES;
            state.last_id = state.last_id.max(row.get(5)?);
        }
        let known =
            "SELECT coalesce(max(CAST(value AS INTEGER)), 0) FROM meta WHERE key = 'letters'";
        state.last_id = state.last_id.max(connection.query_row(known, [], |row| row.get(0))?);
        if super::schema::has_table(connection, "dispositions")? {
            let query = "SELECT coalesce(max(letter), 0) FROM dispositions";
            let gone = connection.query_row(query, [], |row| row.get(0))?;
            state.last_id = state.last_id.max(gone);
        }
        state.oldest = oldest(connection)?;
        Ok(state)
    }

    fn takes(&mut self, row: &LetterRow<'_>) {
        self.bytes += row.bytes();
        self.count += 1;
        let (source, class) = (row.source.to_owned(), row.class.to_owned());
        *self.by_class.entry((source, row.lane.map(|lane| lane.0), class)).or_default() += 1;
        self.oldest.get_or_insert(row.last_at);
    }

    /// A letter has become another: its class, reason or payload.
    pub(super) fn changes(&mut self, before: &Gone, after: &Gone) {
        self.gives(before);
        self.bytes += after.bytes;
        self.count += 1;
        *self.by_class.entry(after.kind.clone()).or_default() += 1;
    }

    pub(super) fn gives(&mut self, gone: &Gone) {
        self.bytes = self.bytes.saturating_sub(gone.bytes);
        self.count = self.count.saturating_sub(1);
        if let Some(count) = self.by_class.get_mut(&gone.kind) {
            *count = count.saturating_sub(1);
        }
        self.by_class.retain(|_, count| *count > 0);
    }
}

pub(super) fn oldest(connection: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let query = "SELECT last_at FROM dead_letters ORDER BY id LIMIT 1";
    Ok(super::state::value(connection, query, [])?.map(Timestamp))
}

/// What the writer knows of the store beside its size.
#[derive(Debug, Clone, Default)]
pub(super) struct LettersQuota {
    pub(super) bytes_max: u64,
    pub(super) on_full: LettersOnFull,
    /// Somebody waits for room.
    pub(super) full: Option<FullState>,
    /// Bytes of letters of appends that this transaction has let in and not written yet.
    pub(super) admitted: u64,
    pub(super) dropped: u64,
    pub(super) discarded: u64,
    pub(super) write_failures: u64,
}

/// Letters that somebody wants gone.
#[derive(Debug)]
pub(super) struct DiscardOperation {
    pub(super) ids: Vec<i64>,
    pub(super) note: Option<String>,
    pub(super) reply: oneshot::Sender<Result<Discarded, JournalError>>,
}

/// What a discard has come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discarded {
    /// Letters that are gone.
    pub discarded: u64,
    /// Those that are left.
    pub left: Vec<LetterUnderWay>,
}

/// A letter that is being replayed by a lane that runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is being replayed as {batch}: wait for its outcome")]
pub struct LetterUnderWay {
    /// The letter.
    pub letter: i64,
    /// The batch that it goes out in.
    pub batch: String,
}

/// A letter on its way into its row.
#[derive(Debug, Clone, Copy)]
pub(super) struct LetterRow<'a> {
    pub(super) stage: &'a str,
    pub(super) source: &'a str,
    pub(super) lane: Option<LaneNumber>,
    pub(super) batch: Option<&'a str>,
    /// The record's identity, or the place where a source found it.
    pub(super) record: Option<&'a str>,
    pub(super) place: Option<&'a str>,
    pub(super) seq: Option<Seq>,
    /// A tick made the record, so its seq is no input.
    pub(super) is_of_tick: bool,
    pub(super) plugin_sha256: Option<&'a [u8; 32]>,
    pub(super) class: &'a str,
    pub(super) reason: &'a str,
    pub(super) attempts: u32,
    pub(super) first_at: Timestamp,
    pub(super) last_at: Timestamp,
    pub(super) time: Timestamp,
    pub(super) subject: &'a str,
    pub(super) headers: &'a [u8],
    pub(super) payload: &'a [u8],
    pub(super) size_bytes: u64,
    pub(super) whole: u64,
    /// Its input was counted as dead-lettered before.
    pub(super) is_counted: bool,
}

impl<'a> LetterRow<'a> {
    pub(super) fn of_stage(
        letter: &'a StageLetter,
        source: &'a str,
        lane: LaneNumber,
        batch: &'a str,
        at: Timestamp,
    ) -> Self {
        let row = Self::of_record(&letter.record, (&letter.stage, source, lane), batch);
        Self {
            plugin_sha256: Some(&letter.plugin_sha256),
            class: letter.class,
            first_at: at,
            last_at: at,
            ..row
        }
    }

    pub(super) fn of_sink(
        record: &'a LetterRecord,
        letters: &SinkLetters,
        place: (&'a str, &'a str, LaneNumber),
        batch: &'a str,
    ) -> Self {
        Self {
            class: letters.class.as_str(),
            attempts: letters.attempts,
            first_at: letters.first_at,
            last_at: letters.last_at,
            ..Self::of_record(record, place, batch)
        }
    }

    /// Of a record that a lane gave up, at its first attempt.
    fn of_record(
        record: &'a LetterRecord,
        (stage, source, lane): (&'a str, &'a str, LaneNumber),
        batch: &'a str,
    ) -> Self {
        Self {
            stage,
            source,
            lane: Some(lane),
            batch: Some(batch),
            record: Some(&record.identity),
            place: None,
            seq: Some(record.seq),
            is_of_tick: record.is_of_tick,
            plugin_sha256: None,
            class: "",
            reason: &record.reason,
            attempts: 1,
            first_at: Timestamp(0),
            last_at: Timestamp(0),
            time: record.time,
            subject: &record.subject,
            headers: &record.headers,
            payload: &record.payload,
            size_bytes: record.payload.len() as u64,
            whole: 0,
            is_counted: false,
        }
    }

    pub(super) fn of_source(letter: &'a SourceLetter, source: &'a str, at: Timestamp) -> Self {
        Self {
            stage: "source",
            source,
            lane: None,
            batch: None,
            record: None,
            place: Some(&letter.place),
            seq: None,
            is_of_tick: false,
            plugin_sha256: None,
            class: "rejected",
            reason: &letter.reason,
            attempts: 0,
            first_at: at,
            last_at: at,
            time: letter.time,
            subject: &letter.subject,
            headers: &[],
            payload: &letter.payload,
            size_bytes: letter.size_bytes,
            whole: 0,
            is_counted: false,
        }
    }

    /// What it takes of the store.
    pub(super) fn bytes(&self) -> u64 {
        let texts = self.subject.len() + self.reason.len();
        let name = self.record.or(self.place).map_or(0, str::len);
        let batch = self.batch.map_or(0, str::len);
        (self.payload.len() + self.headers.len() + texts + name + batch) as u64 + LETTER_ROW_BYTES
    }
}

impl LetterRecord {
    /// A record as it is given up, with its identity and the reason.
    #[must_use]
    pub fn new(record: &RecordView<'_>, identity: String, reason: String) -> Self {
        Self {
            reason,
            identity,
            seq: record.seq,
            is_of_tick: record.origin.tick.is_some(),
            time: record.time,
            subject: record.subject.to_owned(),
            headers: record.headers.as_bytes().to_vec(),
            payload: record.payload.to_vec(),
        }
    }

    /// What it takes of the store.
    #[must_use]
    pub fn stored_bytes(&self, batch: &str) -> u64 {
        LetterRow::of_record(self, ("", "", LaneNumber(0)), batch).bytes()
    }
}

impl Writer {
    pub(super) fn letters_room(&self) -> LettersRoom {
        let (letters, quota) = (&self.state.letters, &self.letters);
        LettersRoom { bytes: letters.bytes, bytes_max: quota.bytes_max, count: letters.count }
    }

    pub(super) fn letters_snapshot(&self) -> LettersSnapshot {
        LettersSnapshot {
            room: self.letters_room(),
            on_full: self.letters.on_full,
            full: self.letters.full.clone(),
            dropped: self.letters.dropped,
            discarded: self.letters.discarded,
            write_failures: self.letters.write_failures,
            oldest: self.state.letters.oldest,
            by_class: self
                .state
                .letters
                .by_class
                .iter()
                .map(|kind| self.letters_count(kind))
                .collect(),
        }
    }

    fn letters_count(&self, ((source, lane, class), letters): (&Kind, &u64)) -> LettersCount {
        let lane = lane.and_then(|lane| self.state.lanes.get(&LaneNumber(lane)));
        LettersCount {
            source: source.clone(),
            lane: lane.map(|lane| lane.name.to_string()),
            class: class.clone(),
            letters: *letters,
        }
    }

    /// Tells everybody how full the store is.
    pub(super) fn publish_letters(&self) {
        let room = self.letters_room();
        self.published.letters.send_if_modified(|known| {
            let changed = *known != room;
            *known = room;
            changed
        });
    }

    /// Whether the store has room for this much more in place of `instead` bytes that go, as it is.
    pub(super) fn letters_fit(&self, bytes: u64, instead: u64) -> bool {
        let taken = self.state.letters.bytes + self.letters.admitted;
        bytes == 0 || taken + bytes <= self.letters.bytes_max + instead
    }

    /// Makes room for letters by the store's policy, in place of `instead` bytes of letters that are under way and go when
    /// these are there.
    pub(super) fn make_room_for_letters(
        &mut self,
        transaction: &Connection,
        bytes: u64,
        instead: u64,
    ) -> Result<Option<JournalError>, JournalError> {
        if self.letters_fit(bytes, instead) {
            return Ok(None);
        }
        let most = self.letters.bytes_max + instead;
        if self.letters.on_full == LettersOnFull::DropOldest
            && self.under_way_bytes(transaction)? + self.letters.admitted + bytes <= most
        {
            self.drop_oldest_letters(transaction, bytes, instead)?;
            // The one with the largest id may have gone without a trace.
            let keep = "INSERT INTO meta VALUES ('letters', CAST(?1 AS TEXT))
                        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            let last = self.state.letters.last_id;
            self.execute(transaction, "keeping the last id of a letter", keep, [last])?;
        }
        // Also where what is left is under way again.
        let fit = self.letters_fit(bytes, instead);
        Ok((!fit).then(|| self.letters_become_full(bytes.saturating_sub(instead))))
    }

    /// Makes room for letters by the store's policy, or says why there is none.
    pub(super) fn make_letters_fit(
        &mut self,
        transaction: &Connection,
        bytes: u64,
        count: usize,
    ) -> Result<Option<JournalError>, JournalError> {
        if count == 0 {
            return Ok(None);
        }
        if let Some(error) = self.make_room_for_letters(transaction, bytes, 0)? {
            return Ok(Some(error));
        }
        if let Some(error) = self.letters_lack_pages(bytes) {
            return Ok(Some(error));
        }
        if self.letters.full.take().is_some() {
            tracing::info!("Dead letters have room again");
            self.dirty = true;
            self.publish_room();
        }
        Ok(None)
    }

    /// Takes pages for letters of this transaction, or says that there are none: above `max_page_count` they would fail
    /// everybody's commit.
    pub(super) fn letters_lack_pages(&mut self, bytes: u64) -> Option<JournalError> {
        let needed = super::budget::row_bytes(usize::try_from(bytes).unwrap_or(usize::MAX / 2));
        if needed > self.quota.parts_left {
            self.letters.write_failures += 1;
            self.becomes_full();
            let why = format!("dead letters of {} have no room in it", human_bytes(bytes));
            return Some(JournalError::NoRoom { path: self.path.clone(), why });
        }
        self.quota.parts_left -= needed;
        None
    }

    /// Letters have gone: whoever waits for room looks again.
    pub(super) fn letters_have_room_again(&mut self) {
        self.quota.look_again = true;
        self.letters.full = None;
        self.publish_room();
    }

    /// Says once that letters have no room, and gives the error for whoever brought them.
    pub(super) fn letters_become_full(&mut self, bytes: u64) -> JournalError {
        self.letters.write_failures += 1;
        self.dirty = true;
        let error = self.letters_have_no_room(bytes);
        if self.letters.full.is_none() {
            tracing::warn!(reason = %error, "Dead letters are full");
            let (reason, since) = (error.to_string(), self.clock.now());
            self.letters.full = Some(FullState { reason, since });
            self.publish_room();
        }
        error
    }

    /// The error for whoever brings so much too much.
    pub(super) fn letters_have_no_room(&self, bytes: u64) -> JournalError {
        let room = self.letters_room();
        let why = if bytes > room.bytes_max {
            format!("they take {} at once, more than max_bytes", human_bytes(bytes))
        } else {
            format!(
                "{} are in use, {} more are needed",
                human_bytes(room.bytes),
                human_bytes(bytes)
            )
        };
        JournalError::LettersFull { why, bytes_max: human_bytes(room.bytes_max) }
    }

    /// What the letters take that are under way again in lanes that run, and do not go.
    pub(super) fn under_way_bytes(&self, transaction: &Connection) -> Result<u64, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "measuring dead letters", source);
        let query = format!(
            "SELECT replaying.lane, sum({BYTES}) + count(*) * {LETTER_ROW_BYTES}
             FROM replaying JOIN dead_letters ON id = letter GROUP BY replaying.lane"
        );
        let lanes: Vec<(u16, i64)> = transaction
            .prepare_cached(&query)
            .and_then(|mut statement| {
                statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
            })
            .map_err(failed)?;
        let running = lanes.into_iter().filter(|(lane, _)| self.runs(LaneNumber(*lane)));
        Ok(running.map(|(_, bytes)| bytes.cast_unsigned()).sum())
    }

    /// The oldest letters go until `bytes` fit, but for those that are under way again. Where the others are not enough, replays
    /// of lanes that do not run are cancelled: nobody knows when those would end.
    fn drop_oldest_letters(
        &mut self,
        transaction: &Connection,
        bytes: u64,
        instead: u64,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "dropping dead letters", source);
        let query = "SELECT id FROM dead_letters WHERE id NOT IN (SELECT letter FROM replaying)
                     ORDER BY id LIMIT ?1";
        let limit = i64::try_from(DROPPED_AT_ONCE).expect("a few letters");
        while !self.letters_fit(bytes, instead) {
            let first: Vec<i64> = transaction
                .prepare_cached(query)
                .map_err(failed)?
                .query_map([limit], |row| row.get(0))
                .map_err(failed)?
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            if first.is_empty() && !self.cancel_idle_replay(transaction)? {
                return Ok(());
            }
            for id in first {
                if self.letters_fit(bytes, instead) {
                    break;
                }
                if let Some(gone) = self.forget_letter(transaction, id)? {
                    self.input_stays(transaction, &gone)?;
                }
                self.quota.giving_up.letters += 1;
            }
        }
        Ok(())
    }

    /// Cancels the oldest replay of a lane that does not run; says whether there was one.
    fn cancel_idle_replay(&mut self, transaction: &Connection) -> Result<bool, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "looking for replays", source);
        let letters: Vec<(i64, u16)> = transaction
            .prepare_cached(
                "SELECT min(letter), lane FROM replaying GROUP BY lane, number ORDER BY 1",
            )
            .and_then(|mut statement| {
                statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
            })
            .map_err(failed)?;
        let idle = letters.into_iter().find(|(_, lane)| !self.runs(LaneNumber(*lane)));
        let Some((letter, _)) = idle else { return Ok(false) };
        let Some((lane, number, batch)) = self.replay_of(transaction, letter)? else {
            return Ok(false);
        };
        self.cancel_replay(transaction, lane, number, &batch)?;
        Ok(true)
    }

    /// Keeps a letter. What the other letters of its input know of it, it knows too: that one of them was given up for good.
    /// One whose input was counted before, and has no letter any more, has lost those so: else it would not be counted now.
    pub(super) fn write_letter(
        &mut self,
        transaction: &Connection,
        row: &LetterRow<'_>,
    ) -> Result<(), JournalError> {
        let insert =
            "INSERT INTO dead_letters (id, stage, source, lane, batch, record, seq, plugin_sha256,
            class, reason, attempts, first_at, last_at, time, subject, headers, payload, size_bytes,
            place, whole, of_tick, stays)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21,
            coalesce((SELECT max(stays) FROM dead_letters WHERE lane = ?4 AND seq = ?7 AND of_tick = ?21), ?22))";
        let id = self.state.letters.last_id + 1;
        let parameters = params![
            id,
            row.stage,
            row.source,
            row.lane.map(|lane| lane.0),
            row.batch,
            row.record,
            row.seq.map(|seq| seq.0.cast_signed()),
            row.plugin_sha256,
            row.class,
            row.reason,
            row.attempts,
            row.first_at.0,
            row.last_at.0,
            row.time.0,
            row.subject,
            row.headers,
            row.payload,
            row.size_bytes.cast_signed(),
            row.place,
            row.whole.cast_signed(),
            row.is_of_tick,
            row.is_counted,
        ];
        self.execute(transaction, "keeping a dead letter", insert, parameters)?;
        self.state.letters.last_id = id;
        self.state.letters.takes(row);
        Ok(())
    }

    /// Deletes letters that nobody wants any more. Those that are under way again stay, unless their lane does not run: then
    /// their replay is cancelled, because nobody knows when it would end.
    pub(super) fn discard_letters(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: DiscardOperation,
    ) -> Result<(), JournalError> {
        let DiscardOperation { ids, note, reply } = operation;
        let discarded = self.delete_letters(transaction, &ids, note.as_deref());
        if let Ok(Discarded { discarded, .. }) = &discarded {
            self.quota.giving_up.discarded += *discarded;
            self.letters_have_room_again();
        }
        group.answer_with(reply, discarded)
    }

    fn delete_letters(
        &mut self,
        transaction: &Connection,
        ids: &[i64],
        note: Option<&str>,
    ) -> Result<Discarded, JournalError> {
        let mut done = Discarded::default();
        for id in ids {
            if let Some((lane, number, batch)) = self.replay_of(transaction, *id)? {
                if self.runs(lane) {
                    done.left.push(LetterUnderWay { letter: *id, batch });
                    continue;
                }
                self.cancel_replay(transaction, lane, number, &batch)?;
            }
            let Some(gone) = self.forget_letter(transaction, *id)? else { continue };
            self.input_stays(transaction, &gone)?;
            self.note_disposition(transaction, *id, &gone, ("discarded", note))?;
            done.discarded += 1;
        }
        self.forget_dispositions(transaction)?;
        Ok(done)
    }

    /// Remembers what was decided about a letter that has gone, by whom or what, and why.
    pub(super) fn note_disposition(
        &self,
        transaction: &Connection,
        id: i64,
        gone: &Gone,
        (what, note): (&str, Option<&str>),
    ) -> Result<(), JournalError> {
        let insert = "INSERT INTO dispositions (letter, lane, record, class, what, at, note)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let (_, lane, class) = &gone.kind;
        let parameters = params![id, lane, gone.record, class, what, self.clock.now().0, note];
        self.execute(transaction, "noting a disposition", insert, parameters).map(drop)
    }

    /// Keeps the newest, and the one that knows the largest id.
    pub(super) fn forget_dispositions(&self, transaction: &Connection) -> Result<(), JournalError> {
        let most = self.ring_rows(DISPOSITIONS_MAX).cast_signed();
        let forget = "DELETE FROM dispositions
            WHERE id <= (SELECT max(id) FROM dispositions) - ?1
            AND letter < (SELECT max(letter) FROM dispositions)";
        self.execute(transaction, "forgetting dispositions", forget, [most]).map(drop)
    }

    /// Rows of a ring for people: fewer where the journal is small.
    pub(super) fn ring_rows(&self, most: u64) -> u64 {
        ring_rows(most, self.quota.budget.limit)
    }

    /// What appenders are told while a source's letter waits for room.
    pub(super) fn letters_in_the_way(&self) -> Option<Arc<str>> {
        self.letters.full.as_ref().map(|full| Arc::from(full.reason.as_str()))
    }
}

/// Rows of a ring for people in a journal with this limit.
pub(super) fn ring_rows(most: u64, limit: u64) -> u64 {
    most.min(limit / RING_ROW_SHARE_BYTES)
}

/// A letter as far as the store counts it.
pub(super) fn look_at(connection: &Connection, id: i64) -> rusqlite::Result<Option<Gone>> {
    let query = format!(
        "SELECT {BYTES}, source, lane, class, record, iif(of_tick, NULL, seq), batch, stays
         FROM dead_letters WHERE id = ?1"
    );
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Gone {
            bytes: row.get::<_, i64>(0)?.cast_unsigned() + LETTER_ROW_BYTES,
            kind: (row.get(1)?, row.get(2)?, row.get(3)?),
            record: row.get(4)?,
            seq: row.get::<_, Option<i64>>(5)?.map(|seq| Seq(seq.cast_unsigned())),
            batch: row.get(6)?,
            stays: row.get(7)?,
        })
    };
    connection.prepare_cached(&query)?.query_row([id], row).optional()
}
