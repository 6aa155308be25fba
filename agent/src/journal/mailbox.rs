//! Looking into the dead letters: pages of a list, and single ones with their payload.

use rusqlite::types::ToSql;

use super::Journal;
use super::error::JournalError;
use super::inspect::Inspection;
use super::reader::Readers;
use crate::clock::Timestamp;
use crate::limits::LETTERS_PAGE_MAX;

/// Which dead letters are wanted. What is `None` does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LettersFilter {
    /// The name of their lane.
    pub lane: Option<String>,
    /// Where they were given up: a transform, a sink, or `source`.
    pub stage: Option<String>,
    /// Why.
    pub class: Option<String>,
    /// Only those that became letters before this.
    pub before: Option<Timestamp>,
    /// Only those that became letters at this time or later.
    pub since: Option<Timestamp>,
    /// Only those with a larger id: the last one of the page before.
    pub after: i64,
    /// Letters of one page, at most [`LETTERS_PAGE_MAX`].
    pub limit: usize,
}

/// A dead letter, but for its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its number; younger ones have larger ones.
    pub id: i64,
    /// Where it was given up: a transform, a sink, or `source`.
    pub stage: String,
    /// The source.
    pub source: String,
    /// The lane's name; none for what a source refused.
    pub lane: Option<String>,
    /// The identity of its batch.
    pub batch: Option<String>,
    /// The record's identity.
    pub record: Option<String>,
    /// The input's seq.
    pub seq: Option<u64>,
    /// Digest of the plugin that gave it up.
    pub plugin_sha256: Option<Vec<u8>>,
    /// Why, in a word.
    pub class: String,
    /// Why, for people.
    pub reason: String,
    /// How often its batch was sent.
    pub attempts: u32,
    /// When it was tried first.
    pub first_at: Timestamp,
    /// When it was tried last.
    pub last_at: Timestamp,
    /// Its event time.
    pub time: Timestamp,
    /// Its subject.
    pub subject: String,
    /// Its headers, encoded.
    pub headers: Vec<u8>,
    /// Bytes of the payload that is kept.
    pub payload_bytes: u64,
    /// Bytes of the record's payload, of which a source may keep only the beginning.
    pub size_bytes: u64,
    /// Where a source found it.
    pub place: Option<String>,
    /// What was done about it while it stays.
    pub disposition: Option<String>,
    /// Records of its batch, when all of them were given up together and nothing was delivered; else 0.
    pub whole: u64,
    /// It is being replayed.
    pub is_under_way: bool,
}

/// What somebody decided about a letter, which is gone since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disposed {
    /// The id that it had.
    pub letter: i64,
    /// Its lane's name; none for what a source refused.
    pub lane: Option<String>,
    /// The record's identity; none for what a source refused.
    pub record: Option<String>,
    /// Why it was a letter.
    pub class: String,
    /// What was decided: `discarded`.
    pub what: String,
    /// When.
    pub at: Timestamp,
    /// Why, in the operator's words.
    pub note: Option<String>,
}

const COLUMNS: &str =
    "letter.id, letter.stage, letter.source, lanes.name, letter.batch, letter.record,
    letter.seq, letter.plugin_sha256, letter.class, letter.reason, letter.attempts, letter.first_at,
    letter.last_at, letter.time, letter.subject, letter.headers, octet_length(letter.payload),
    letter.size_bytes, letter.place, letter.disposition, letter.whole,
    letter.id IN (SELECT letter FROM replaying)";
const TABLES: &str = "FROM dead_letters AS letter LEFT JOIN lanes ON lanes.number = letter.lane";

fn letter(row: &rusqlite::Row<'_>) -> rusqlite::Result<Letter> {
    let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
    Ok(Letter {
        id: row.get(0)?,
        stage: row.get(1)?,
        source: row.get(2)?,
        lane: row.get(3)?,
        batch: row.get(4)?,
        record: row.get(5)?,
        seq: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
        plugin_sha256: row.get(7)?,
        class: row.get(8)?,
        reason: row.get(9)?,
        attempts: row.get(10)?,
        first_at: Timestamp(row.get(11)?),
        last_at: Timestamp(row.get(12)?),
        time: Timestamp(row.get(13)?),
        subject: row.get(14)?,
        headers: row.get(15)?,
        payload_bytes: count(16)?,
        size_bytes: count(17)?,
        place: row.get(18)?,
        disposition: row.get(19)?,
        whole: count(20)?,
        is_under_way: row.get(21)?,
    })
}

/// A page of the letters.
fn page<T>(filter: &LettersFilter, read: impl FnOnce(&str, &[&dyn ToSql]) -> T) -> T {
    let limit = i64::try_from(filter.limit.min(LETTERS_PAGE_MAX)).unwrap_or(0);
    let query = format!(
        "SELECT {COLUMNS} {TABLES} WHERE letter.id > ?1 AND (?2 IS NULL OR lanes.name = ?2)
         AND (?3 IS NULL OR letter.stage = ?3) AND (?4 IS NULL OR letter.class = ?4)
         AND (?5 IS NULL OR letter.last_at < ?5) AND (?6 IS NULL OR letter.last_at >= ?6)
         ORDER BY letter.id LIMIT ?7"
    );
    let (before, since) = (filter.before.map(|t| t.0), filter.since.map(|t| t.0));
    read(
        &query,
        &[&filter.after, &filter.lane, &filter.stage, &filter.class, &before, &since, &limit],
    )
}

fn with_payload(row: &rusqlite::Row<'_>) -> rusqlite::Result<(Letter, Vec<u8>)> {
    Ok((letter(row)?, row.get(22)?))
}

fn one() -> String {
    format!("SELECT {COLUMNS}, letter.payload {TABLES} WHERE letter.id = ?1")
}

impl Journal {
    /// A page of the dead letters, oldest first. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letters(&self, filter: &LettersFilter) -> Result<Vec<Letter>, JournalError> {
        page(filter, |query, parameters| self.readers.query_rows(query, parameters, letter))
    }

    /// Those of some dead letters that are there, in the order in which they are named. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letters_of(&self, ids: &[i64]) -> Result<Vec<Letter>, JournalError> {
        let query = format!("SELECT {COLUMNS} {TABLES} WHERE letter.id = ?1");
        let found = ids.iter().map(|id| self.readers.query_rows(&query, &[id], letter));
        Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// One dead letter with its payload. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letter(&self, id: i64) -> Result<Option<(Letter, Vec<u8>)>, JournalError> {
        letter_of(&self.readers, id)
    }
}

/// One dead letter with its payload.
pub(super) fn letter_of(
    readers: &Readers,
    id: i64,
) -> Result<Option<(Letter, Vec<u8>)>, JournalError> {
    Ok(readers.query_rows(&one(), &[&id], with_payload)?.pop())
}

impl Inspection {
    /// A page of the dead letters, oldest first.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letters(&self, filter: &LettersFilter) -> Result<Vec<Letter>, JournalError> {
        page(filter, |query, parameters| {
            self.query_rows(&self.as_it_is(query)?, parameters, letter)
        })
    }

    /// A query for the columns that a journal which is only looked into has.
    fn as_it_is(&self, query: &str) -> Result<String, JournalError> {
        let is_old = self.schema()? < 2;
        Ok(if is_old {
            let query = query.replace("letter.whole", "0");
            query.replace("letter.id IN (SELECT letter FROM replaying)", "0")
        } else {
            query.to_owned()
        })
    }

    /// One dead letter with its payload.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn letter(&self, id: i64) -> Result<Option<(Letter, Vec<u8>)>, JournalError> {
        Ok(self.query_rows(&self.as_it_is(&one())?, &[&id], with_payload)?.pop())
    }

    /// What somebody decided about letters of these: the newest decisions, the latest one first.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn dispositions(&self, letter: Option<i64>) -> Result<Vec<Disposed>, JournalError> {
        if !self.has_table("dispositions")? {
            return Ok(Vec::new());
        }
        let query =
            "SELECT gone.letter, lanes.name, gone.record, gone.class, gone.what, gone.at, gone.note
            FROM dispositions AS gone LEFT JOIN lanes ON lanes.number = gone.lane
            WHERE ?1 IS NULL OR gone.letter = ?1 ORDER BY gone.id DESC";
        self.query_rows(query, &[&letter], |row| {
            Ok(Disposed {
                letter: row.get(0)?,
                lane: row.get(1)?,
                record: row.get(2)?,
                class: row.get(3)?,
                what: row.get(4)?,
                at: Timestamp(row.get(5)?),
                note: row.get(6)?,
            })
        })
    }
}
