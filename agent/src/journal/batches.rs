//! Sealed batches as they stand in their table: what was sealed, halves of it, and what goes out under another identity.

use rusqlite::{Connection, params};

use super::acked::acked_batches;
use super::error::JournalError;
use super::finished::{Finish, FinishedRow};
use super::schema::has_column;
use super::state::UnackedState;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::record::codec::{read_varint, write_varint};
use crate::record::id::{BatchNumber, Epoch, LaneName, LaneNumber, Seq};

/// A batch that an earlier run, or this one, sealed and did not see acked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBatch {
    /// Its number. Its parts are stored under it, whatever identity it goes out under.
    pub number: BatchNumber,
    /// The run that sealed it.
    pub epoch: Epoch,
    /// First seq of its range; behind its last one for what a tick made, which covers no record.
    pub first_seq: Seq,
    /// Last seq of its range, or sealed before the tick. A half begins where the one before it ends, or at the same seq when
    /// that input lies on both sides of the cut.
    pub last_seq: Seq,
    /// When it was sealed.
    pub sealed_at: Timestamp,
    /// Output records.
    pub records: u64,
    /// Parts that hold the output; 0 when the range itself is the content. Halves share those of their batch.
    pub parts: u64,
    /// Hash over the output.
    pub sha256: [u8; 32],
    /// What the sink fixed.
    pub fixed: String,
    /// What makes it other than a batch as it was sealed.
    pub variant: Variant,
}

/// What makes a batch other than one as it was sealed; the default makes it nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Variant {
    /// `.0` or `.1` for each cut that it came out of, in its row.
    pub suffix: String,
    /// The first of its records within the output that the parts hold, from 0.
    pub first_record: u64,
    /// Inputs of its records that were counted as dead-lettered before, ascending.
    pub counted: Vec<Seq>,
    /// It was cut because the retry budget was spent.
    pub spent: bool,
    /// Its records are to go to the dead letters as this class, without being sent again.
    pub verdict: Option<LetterClass>,
    /// The identity that it goes out under, if not its own.
    pub shown: Option<Shown>,
    /// It is made of dead letters: outside the order of its lane.
    pub replay: bool,
    /// The note of the lane's sink when those were given up, where they may have been sent. Stands with the letters.
    pub sink_note: Option<String>,
}

/// An identity within a lane, before the suffix of cuts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The run.
    pub epoch: Epoch,
    /// The number.
    pub number: BatchNumber,
    /// What stands behind the number.
    pub suffix: String,
}

/// Why a lane gave up a record that was sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LetterClass {
    /// The destination refuses it for good.
    Rejected,
    /// The retry budget was spent.
    Exhausted,
    /// The destination holds other content under its batch's identity.
    Conflict,
}

impl LetterClass {
    /// All of them, in the order of [`Self::index`].
    pub const ALL: [Self; 3] = [Self::Rejected, Self::Exhausted, Self::Conflict];

    /// The word in rows, logs and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Exhausted => "exhausted",
            Self::Conflict => "conflict",
        }
    }

    /// Where it stands in counters by class.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Rejected => 0,
            Self::Exhausted => 1,
            Self::Conflict => 2,
        }
    }

    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == word)
    }
}

impl Shown {
    pub(super) fn to_text(&self) -> String {
        format!("{}/b{}{}", self.epoch, self.number, self.suffix)
    }

    /// Takes the identity of a batch of this lane apart; `None` when it is none.
    #[must_use]
    pub fn of_identity(lane: &LaneName, identity: &str) -> Option<Self> {
        Self::parse(identity.strip_prefix(lane.as_str())?.strip_prefix('/')?)
    }

    fn parse(text: &str) -> Option<Self> {
        let (epoch, rest) = text.split_once("/b")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(digits);
        let (epoch, number) = (epoch.parse().ok()?, BatchNumber(number.parse().ok()?));
        Some(Self { epoch, number, suffix: suffix.to_owned() })
    }
}

impl StoredBatch {
    /// The run, number and suffix of the identity that it goes out under.
    #[must_use]
    pub fn shown(&self) -> Shown {
        let base = self.variant.shown.clone();
        let mut shown = base.unwrap_or_else(|| Shown {
            epoch: self.epoch,
            number: self.number,
            suffix: String::new(),
        });
        shown.suffix.push_str(&self.variant.suffix);
        shown
    }

    /// Whether a tick made it.
    #[must_use]
    pub fn is_of_tick(&self) -> bool {
        self.first_seq > self.last_seq
    }

    /// Its identity, `LANE/EPOCH/bBATCH` and what stands behind it.
    #[must_use]
    pub fn identity(&self, lane: &LaneName) -> String {
        format!("{lane}/{}", self.shown().to_text())
    }

    /// What is remembered of it when it has ended.
    pub(super) fn finished(&self, finish: Finish, attempts: u32) -> FinishedRow {
        FinishedRow {
            batch: self.shown().to_text(),
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            records: self.records,
            finish,
            attempts,
            sealed_at: self.sealed_at,
        }
    }

    /// What the writer keeps of it in mind.
    pub(super) fn unacked(&self, inputs: u64) -> UnackedState {
        UnackedState {
            number: self.number,
            suffix: self.variant.suffix.clone(),
            first_seq: self.first_seq,
            last_seq: self.last_seq,
            inputs,
            records: self.records,
            parts: self.parts,
            counted: self.variant.counted.clone(),
        }
    }
}

pub(super) fn counted_bytes(seqs: &[Seq]) -> Vec<u8> {
    let mut bytes = Vec::new();
    seqs.iter().for_each(|seq| write_varint(&mut bytes, seq.0));
    bytes
}

fn counted_seqs(mut bytes: &[u8]) -> Vec<Seq> {
    let mut seqs = Vec::new();
    while !bytes.is_empty() {
        let Some(seq) = read_varint(&mut bytes) else { break };
        seqs.push(Seq(seq));
    }
    seqs
}

/// The columns that schema 2 added; their defaults where a journal that is only looked into does not have them yet.
fn variant_columns(connection: &Connection) -> rusqlite::Result<&'static str> {
    Ok(if has_column(connection, "batches", "replay")? {
        "first_record, counted, spent, verdict, shown, replay"
    } else {
        "0, x'', 0, '', '', 0"
    })
}

/// Batches of a lane that wait for their outcome, in the order of their delivery, with their inputs.
pub(super) fn stored_batches(
    connection: &Connection,
    lane: LaneNumber,
) -> rusqlite::Result<Vec<(StoredBatch, u64)>> {
    let acked = acked_batches(connection, lane)?;
    let mut batches = every_batch(connection, lane)?;
    batches.retain(|(batch, _)| !acked.iter().any(|done| done.is(batch)));
    Ok(batches)
}

/// The same with those that are acked while their rows are still there.
pub(super) fn every_batch(
    connection: &Connection,
    lane: LaneNumber,
) -> rusqlite::Result<Vec<(StoredBatch, u64)>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT number, epoch, first_seq, last_seq, sealed_at, records, parts, sha256, fixed,
                inputs, suffix, {} FROM batches WHERE lane = ?1 ORDER BY number, suffix",
        variant_columns(connection)?
    ))?;
    statement
        .query_map([lane.0], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            let epoch: String = row.get(1)?;
            let (counted, verdict): (Vec<u8>, String) = (row.get(12)?, row.get(14)?);
            let shown: String = row.get(15)?;
            let variant = Variant {
                suffix: row.get(10)?,
                first_record: count(11)?,
                counted: counted_seqs(&counted),
                spent: row.get(13)?,
                verdict: LetterClass::of_word(&verdict),
                shown: Shown::parse(&shown),
                replay: row.get(16)?,
                sink_note: None,
            };
            let batch = StoredBatch {
                number: BatchNumber(count(0)?),
                epoch: epoch.parse().map_err(|error| {
                    let kind = rusqlite::types::Type::Text;
                    rusqlite::Error::FromSqlConversionFailure(1, kind, Box::new(error))
                })?,
                first_seq: Seq(count(2)?),
                last_seq: Seq(count(3)?),
                sealed_at: Timestamp(row.get(4)?),
                records: count(5)?,
                parts: count(6)?,
                sha256: row.get(7)?,
                fixed: row.get(8)?,
                variant,
            };
            Ok((batch, count(9)?))
        })?
        .collect()
}

impl Writer {
    pub(super) fn insert_batch(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        batch: &StoredBatch,
        inputs: u64,
    ) -> Result<(), JournalError> {
        let insert =
            "INSERT INTO batches (lane, number, suffix, epoch, first_seq, last_seq, sealed_at,
            inputs, records, parts, sha256, fixed, first_record, counted, spent, verdict, shown, replay)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18)";
        let variant = &batch.variant;
        let parameters = params![
            lane.0,
            batch.number.0.cast_signed(),
            variant.suffix,
            batch.epoch.to_string(),
            batch.first_seq.0.cast_signed(),
            batch.last_seq.0.cast_signed(),
            batch.sealed_at.0,
            inputs.cast_signed(),
            batch.records.cast_signed(),
            batch.parts.cast_signed(),
            batch.sha256,
            batch.fixed,
            variant.first_record.cast_signed(),
            counted_bytes(&variant.counted),
            variant.spent,
            variant.verdict.map_or("", LetterClass::as_str),
            variant.shown.as_ref().map(Shown::to_text).unwrap_or_default(),
            variant.replay,
        ];
        self.execute(transaction, "sealing", insert, parameters)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_that_is_shown_comes_back_as_it_was() {
        for text in ["00001abcde/b7", "00001abcde/b7.0.1", "00001abcde/b12.0/r9"] {
            assert_eq!(Shown::parse(text).unwrap().to_text(), text);
        }
        assert_eq!(Shown::parse(""), None);
        assert_eq!(Shown::parse("00001abcde/t7"), None);
    }

    #[test]
    fn counted_seqs_come_back_as_they_were() {
        let seqs = [Seq(1), Seq(300), Seq(1 << 46)];
        assert_eq!(counted_seqs(&counted_bytes(&seqs)), seqs);
    }
}
