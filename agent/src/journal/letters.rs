//! The store of dead letters: its rows, how much they take, and what is done when there is no room for more.
//!
//! What it holds is kept in mind and counted anew whenever the state is loaded. A letter that has no room is never left out
//! silently: with `on_full = "hold"` whatever it belongs to (a batch's ack, a seal, an append) does not happen and is asked
//! again later; with `drop_oldest` the oldest letters make room and are counted.

use std::sync::Arc;

use rusqlite::{Connection, params};

use super::appender::SourceLetter;
use super::apply::Group;
use super::config::LettersOnFull;
use super::error::JournalError;
use super::lanes::StageLetter;
use super::outcome::SinkLetters;
use super::quota::FullState;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::limits::LETTER_ROW_BYTES;
use crate::record::RecordView;
use crate::record::id::{LaneNumber, Seq};
use crate::units::human_bytes;

/// Letters that are looked at together when the oldest make room.
const DROPPED_AT_ONCE: usize = 64;

/// A record that a lane gives up, as it was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterRecord {
    /// Why, in the words of the plugin or the destination, or the fault.
    pub reason: String,
    /// The record's identity.
    pub identity: String,
    /// The input that it was made from.
    pub seq: Seq,
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
}

/// What all letters take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LettersState {
    pub(super) bytes: u64,
    pub(super) count: u64,
}

/// Bytes of a letter's row, in SQL. The same as [`LetterRow::bytes`].
pub(super) const BYTES: &str =
    "(octet_length(payload) + octet_length(headers) + octet_length(subject)
    + octet_length(reason) + coalesce(octet_length(record), octet_length(place), 0)
    + coalesce(octet_length(batch), 0))";

impl LettersState {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let query = format!("SELECT count(*), coalesce(sum({BYTES}), 0) FROM dead_letters");
        connection.query_row(&query, [], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok(Self { bytes: count(1)? + count(0)? * LETTER_ROW_BYTES, count: count(0)? })
        })
    }
}

/// What the writer knows of the store beside its size.
#[derive(Debug, Default)]
pub(super) struct LettersQuota {
    pub(super) bytes_max: u64,
    pub(super) on_full: LettersOnFull,
    /// Somebody waits for room.
    pub(super) full: Option<FullState>,
    /// Bytes of letters of appends that this transaction has let in and not written yet.
    pub(super) admitted: u64,
    pub(super) dropped: u64,
    pub(super) discarded: u64,
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
        let (letters, quota) = (self.state.letters, &self.letters);
        LettersRoom { bytes: letters.bytes, bytes_max: quota.bytes_max, count: letters.count }
    }

    pub(super) fn letters_snapshot(&self) -> LettersSnapshot {
        LettersSnapshot {
            room: self.letters_room(),
            on_full: self.letters.on_full,
            full: self.letters.full.clone(),
            dropped: self.letters.dropped,
            discarded: self.letters.discarded,
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

    /// Whether the store has room for this much more, as it is.
    pub(super) fn letters_fit(&self, bytes: u64) -> bool {
        let taken = self.state.letters.bytes + self.letters.admitted;
        bytes == 0 || taken + bytes <= self.letters.bytes_max
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
        if !self.letters_fit(bytes) {
            if self.letters.on_full == LettersOnFull::DropOldest && bytes <= self.letters.bytes_max
            {
                self.drop_oldest_letters(transaction, bytes)?;
            }
            // Also where what is left is under way again.
            if !self.letters_fit(bytes) {
                return Ok(Some(self.letters_become_full(bytes)));
            }
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
        let error = self.letters_have_no_room(bytes);
        if self.letters.full.is_none() {
            tracing::warn!(reason = %error, "Dead letters are full");
            let (reason, since) = (error.to_string(), self.clock.now());
            self.letters.full = Some(FullState { reason, since });
            self.dirty = true;
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

    /// The oldest letters go until `bytes` fit, but for those that are under way again.
    fn drop_oldest_letters(
        &mut self,
        transaction: &Connection,
        bytes: u64,
    ) -> Result<(), JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "dropping dead letters", source);
        let query = "SELECT id FROM dead_letters WHERE id NOT IN (SELECT letter FROM replaying)
                     ORDER BY id LIMIT ?1";
        let limit = i64::try_from(DROPPED_AT_ONCE).expect("a few letters");
        while !self.letters_fit(bytes) {
            let oldest: Vec<i64> = transaction
                .prepare_cached(query)
                .map_err(failed)?
                .query_map([limit], |row| row.get(0))
                .map_err(failed)?
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            if oldest.is_empty() {
                return Ok(());
            }
            for id in oldest {
                if self.letters_fit(bytes) {
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

    pub(super) fn write_letter(
        &mut self,
        transaction: &Connection,
        row: &LetterRow<'_>,
    ) -> Result<(), JournalError> {
        let insert =
            "INSERT INTO dead_letters (stage, source, lane, batch, record, seq, plugin_sha256,
            class, reason, attempts, first_at, last_at, time, subject, headers, payload, size_bytes,
            place, whole)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
        let parameters = params![
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
        ];
        self.execute(transaction, "keeping a dead letter", insert, parameters)?;
        self.state.letters.bytes += row.bytes();
        self.state.letters.count += 1;
        Ok(())
    }

    /// Deletes letters that nobody wants any more, unless one of them is under way again.
    pub(super) fn discard_letters(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        ids: &[i64],
        reply: tokio::sync::oneshot::Sender<Result<u64, JournalError>>,
    ) -> Result<(), JournalError> {
        match self.letter_under_way(transaction, ids) {
            Ok(None) => {}
            Ok(Some((letter, batch))) => {
                // Whoever asked may have given up waiting.
                drop(reply.send(Err(JournalError::Replaying { letter, batch })));
                return Ok(());
            }
            Err(error) => return group.answer_with(reply, Err(error)),
        }
        let discarded = self.delete_letters(transaction, ids);
        if let Ok(count) = &discarded {
            self.quota.giving_up.discarded += *count;
            self.letters_have_room_again();
        }
        group.answer_with(reply, discarded)
    }

    fn delete_letters(
        &mut self,
        transaction: &Connection,
        ids: &[i64],
    ) -> Result<u64, JournalError> {
        let mut count = 0;
        for id in ids {
            let Some(gone) = self.forget_letter(transaction, *id)? else { continue };
            self.input_stays(transaction, &gone)?;
            count += 1;
        }
        Ok(count)
    }

    /// What appenders are told while a source's letter waits for room.
    pub(super) fn letters_in_the_way(&self) -> Option<Arc<str>> {
        self.letters.full.as_ref().map(|full| Arc::from(full.reason.as_str()))
    }
}
