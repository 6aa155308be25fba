//! What became of one record, by its identity: read out of the journal, beside a running agent and on a stopped one.
//!
//! Exact for what is queued, sealed or in the dead letters. What was delivered is known from the ring of finished batches
//! (`finished.rs`) by the range that its batch covers: whether a transform left a record of that range out is not kept.

use serde::Serialize;

use super::StoredBatch;
use super::acked::AckedBatch;
use super::error::JournalError;
use super::inspect::{InspectedLane, Inspection, rfc3339};
use crate::clock::Timestamp;
use crate::record::id::{RecordId, RecordPlace, Seq, write_record_identity};

/// All that the journal knows of a record.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// The identity that was asked for.
    pub id: String,
    /// Its lane.
    pub lane: String,
    /// One of `queued`, `sealed`, `dead_letter`, `discarded`, `replayed`, `delivered`, `already`, `accepted`, `partly`,
    /// `given_up`, `left_out`, `lost`, `before_the_lane`, `unknown_run`, `not_there` and `long_ago`.
    pub outcome: &'static str,
    /// The record as its source handed it in, while the journal has it.
    pub record: Option<ExplainedRecord>,
    /// The batch that it is or was in.
    pub batch: Option<ExplainedBatch>,
    /// Ids of its dead letters: a record that was split may have several.
    pub letters: Vec<i64>,
    /// What was decided about a letter that is gone.
    pub disposition: Option<ExplainedDisposition>,
    /// When and why it was lost.
    pub loss: Option<ExplainedLoss>,
}

/// The record itself.
#[derive(Debug, Serialize)]
pub struct ExplainedRecord {
    /// Its source.
    pub source: String,
    /// When it was accepted.
    pub accepted_at: String,
    /// Its event time.
    pub time: String,
    /// Its subject.
    pub subject: String,
    /// Bytes of its payload.
    pub payload_bytes: u64,
}

/// A batch.
#[derive(Debug, Serialize)]
pub struct ExplainedBatch {
    /// Its identity.
    pub identity: String,
    /// The first record of its range.
    pub first_seq: u64,
    /// The last record of its range.
    pub last_seq: u64,
    /// Output records.
    pub records: u64,
    /// When it was sealed.
    pub sealed_at: String,
    /// How often it was sent by the run that ended it; none while it waits.
    pub attempts: Option<u32>,
    /// When it had its outcome.
    pub finished_at: Option<String>,
}

/// A decision about a letter.
#[derive(Debug, Serialize)]
pub struct ExplainedDisposition {
    /// The id that the letter had.
    pub letter: i64,
    /// What was decided.
    pub what: String,
    /// When.
    pub at: String,
    /// Why, in the operator's words.
    pub note: Option<String>,
}

/// A noted loss.
#[derive(Debug, Serialize)]
pub struct ExplainedLoss {
    /// When.
    pub at: String,
    /// Why.
    pub why: String,
}

/// A row of the ring.
struct Finished {
    batch: ExplainedBatch,
    finish: String,
}

impl Inspection {
    /// What the journal knows of a record. `None` when it has no such lane.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn explain(&self, id: &RecordId) -> Result<Option<Explanation>, JournalError> {
        let Some(lane) = self.lane(id.lane.as_str())? else { return Ok(None) };
        let mut found = Explanation {
            id: id.to_string(),
            lane: id.lane.to_string(),
            outcome: "long_ago",
            record: None,
            batch: None,
            letters: self.letters_of(id)?,
            disposition: None,
            loss: None,
        };
        if let RecordPlace::Seq(seq) = id.place {
            match self.record_at(&lane, id, seq)? {
                At::Record(record) => found.record = Some(record),
                At::OtherRun => found.outcome = "unknown_run",
                At::Nowhere => {}
            }
        }
        if found.outcome != "unknown_run" {
            self.find_outcome(&lane, id, &mut found)?;
        }
        Ok(Some(found))
    }

    fn find_outcome(
        &self,
        lane: &InspectedLane,
        id: &RecordId,
        found: &mut Explanation,
    ) -> Result<(), JournalError> {
        if !found.letters.is_empty() {
            found.outcome = "dead_letter";
        } else if let Some(gone) = self.disposition_of(id)? {
            found.outcome = match gone.what.as_str() {
                "discarded" => "discarded",
                "replayed" => "replayed",
                _ => "left_out",
            };
            found.disposition = Some(gone);
        }
        let waiting = lane.batches.iter().filter(|batch| id.may_be_in(batch)).collect::<Vec<_>>();
        for batch in &waiting {
            if self.holds(lane, batch, id)? {
                found.outcome = "sealed";
                found.batch = Some(ExplainedBatch::waiting(batch, lane));
                return Ok(());
            }
        }
        let finished = self.finished(lane, id)?;
        let is_open = found.letters.is_empty() && found.disposition.is_none();
        if let Some(Finished { batch, finish }) = finished {
            found.batch = Some(batch);
            if is_open {
                found.outcome = FINISHES
                    .iter()
                    .find(|(word, _)| *word == finish)
                    .map_or("delivered", |(_, outcome)| outcome);
            }
        } else if is_open && !waiting.is_empty() {
            found.outcome = "left_out";
        } else if is_open {
            self.find_by_seq(lane, id, found)?;
        }
        Ok(())
    }

    /// What its place in the stream says, where no batch is known.
    fn find_by_seq(
        &self,
        lane: &InspectedLane,
        id: &RecordId,
        found: &mut Explanation,
    ) -> Result<(), JournalError> {
        let seq = match id.place {
            RecordPlace::Seq(seq) => seq,
            RecordPlace::Tick(number) | RecordPlace::Batch(number) => {
                if number >= lane.next_batch() {
                    found.outcome = "not_there";
                }
                return Ok(());
            }
        };
        found.loss = self.loss_of(lane, seq)?;
        found.outcome = if seq > lane.head() || seq == Seq(0) {
            "not_there"
        } else if seq <= lane.start() {
            "before_the_lane"
        } else if found.loss.is_some() {
            "lost"
        } else if seq > lane.sealed() {
            "queued"
        } else {
            "long_ago"
        };
        Ok(())
    }

    fn letters_of(&self, id: &RecordId) -> Result<Vec<i64>, JournalError> {
        // Those of a lane stand together in their index; what a tick made stands under the seq before it.
        let query =
            "SELECT letter.id FROM dead_letters AS letter JOIN lanes ON lanes.number = letter.lane
            WHERE lanes.name = ?1 AND (?2 IS NULL OR letter.seq = ?2)
            AND (letter.record = ?3 OR substr(letter.record, 1, length(?3) + 1) IN (?3 || '.', ?3 || '~'))
            ORDER BY letter.id LIMIT 100";
        let seq = match id.place {
            RecordPlace::Seq(seq) => Some(seq.0.cast_signed()),
            _ => None,
        };
        let (lane, record) = (id.lane.as_str(), id.to_string());
        self.query_rows(query, &[&lane, &seq, &record], |row| row.get(0))
    }

    fn disposition_of(&self, id: &RecordId) -> Result<Option<ExplainedDisposition>, JournalError> {
        let record = id.to_string();
        let is_part = |name: &str| name.strip_prefix(&record).is_some_and(is_of);
        let all = self.dispositions(None)?;
        let gone = all.into_iter().find(|gone| gone.record.as_deref().is_some_and(is_part));
        Ok(gone.map(|gone| ExplainedDisposition {
            letter: gone.letter,
            what: gone.what,
            at: rfc3339(gone.at),
            note: gone.note,
        }))
    }

    /// Whether a batch that waits has the record in its output, or, for the identity of a batch, is it.
    fn holds(
        &self,
        lane: &InspectedLane,
        batch: &StoredBatch,
        id: &RecordId,
    ) -> Result<bool, JournalError> {
        if matches!(id.place, RecordPlace::Batch(_)) {
            return Ok(batch.identity(lane.name()) == id.to_string());
        }
        let wanted = id.to_string();
        let (mut holds, mut identity) = (false, String::new());
        self.each_batch_block(lane, batch, |block| {
            for record in block.records().flatten() {
                write_record_identity(&mut identity, lane.name(), &record);
                holds |= identity.strip_prefix(&wanted).is_some_and(is_of);
            }
        })?;
        Ok(holds)
    }

    fn finished(
        &self,
        lane: &InspectedLane,
        id: &RecordId,
    ) -> Result<Option<Finished>, JournalError> {
        let (seq, text) = match &id.place {
            RecordPlace::Seq(seq) => (*seq, String::new()),
            RecordPlace::Tick(number) | RecordPlace::Batch(number) => {
                (Seq(0), format!("{}/b{number}", id.epoch))
            }
        };
        // Those that wait for the ring first: they may have come into it when the ring is read.
        for (batch, done) in self.acked(lane)? {
            if (batch.first_seq..=batch.last_seq).contains(&seq) || batch.shown().to_text() == text
            {
                let finish = done.finish.as_str().to_owned();
                return Ok(Some(Finished {
                    batch: ExplainedBatch::done(&batch, lane, &done),
                    finish,
                }));
            }
        }
        if !self.has_table("finished")? {
            return Ok(None);
        }
        let name = lane.name().to_string();
        let query = "SELECT done.batch, done.first_seq, done.last_seq, done.records, done.finish,
            done.attempts, done.sealed_at, done.at
            FROM finished AS done JOIN lanes ON lanes.number = done.lane
            WHERE lanes.name = ?1 AND (done.first_seq <= ?2 AND done.last_seq >= ?2 AND done.first_seq <= done.last_seq
                OR done.batch = ?3 OR substr(done.batch, 1, length(?3) + 1) = ?3 || '.')
            ORDER BY done.id DESC LIMIT 1";
        let rows = self.query_rows(query, &[&name, &seq.0.cast_signed(), &text], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            let batch = ExplainedBatch {
                identity: format!("{name}/{}", row.get::<_, String>(0)?),
                first_seq: count(1)?.min(count(2)?),
                last_seq: count(2)?,
                records: count(3)?,
                sealed_at: rfc3339(Timestamp(row.get(6)?)),
                attempts: Some(row.get(5)?),
                finished_at: Some(rfc3339(Timestamp(row.get(7)?))),
            };
            Ok(Finished { batch, finish: row.get(4)? })
        })?;
        Ok(rows.into_iter().next())
    }

    fn loss_of(
        &self,
        lane: &InspectedLane,
        seq: Seq,
    ) -> Result<Option<ExplainedLoss>, JournalError> {
        let query = "SELECT lost.at, lost.why FROM losses AS lost
            LEFT JOIN lanes ON lanes.number = lost.lane
            WHERE lost.stream = ?1 AND (lost.lane IS NULL OR lanes.name = ?2)
            AND lost.first_seq <= ?3 AND lost.last_seq >= ?3 ORDER BY lost.id DESC LIMIT 1";
        let (stream, name, seq) = (lane.stream().0, lane.name().as_str(), seq.0.cast_signed());
        let rows = self.query_rows(query, &[&stream, &name, &seq], |row| {
            Ok(ExplainedLoss { at: rfc3339(Timestamp(row.get(0)?)), why: row.get(1)? })
        })?;
        Ok(rows.into_iter().next())
    }

    /// The record in its stream, if a chunk still holds it.
    fn record_at(&self, lane: &InspectedLane, id: &RecordId, seq: Seq) -> Result<At, JournalError> {
        let mut found = At::Nowhere;
        let mut begins = seq;
        self.each_chunk::<JournalError>(lane.stream(), seq, |block| {
            // A damaged chunk tells nothing here; `verify` tells of it.
            let Ok(block) = block else { return Ok(false) };
            begins = block.first_seq;
            if let Some(record) = block.records().flatten().find(|record| record.seq == seq) {
                found = if record.epoch == id.epoch {
                    At::Record(ExplainedRecord {
                        source: lane.source().to_string(),
                        accepted_at: String::new(),
                        time: rfc3339(record.time),
                        subject: record.subject.to_owned(),
                        payload_bytes: record.payload.len() as u64,
                    })
                } else {
                    At::OtherRun
                };
            }
            Ok(false)
        })?;
        if let At::Record(record) = &mut found {
            let accepted = self.accepted_at_chunk(lane.stream(), begins)?;
            record.accepted_at = accepted.map(rfc3339).unwrap_or_default();
        }
        Ok(found)
    }
}

/// Whether what stands behind an identity means the same record, a piece of it, or what it was repaired to.
fn is_of(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with(['.', '~'])
}

/// What stands at a seq.
enum At {
    Record(ExplainedRecord),
    /// A record that another run appended.
    OtherRun,
    Nowhere,
}

/// How a batch was finished, and what that says of its records.
const FINISHES: [(&str, &str); 6] = [
    ("delivered", "delivered"),
    ("already", "already"),
    ("accepted", "accepted"),
    ("partly", "partly"),
    ("given_up", "given_up"),
    ("empty", "left_out"),
];

impl ExplainedBatch {
    fn waiting(batch: &StoredBatch, lane: &InspectedLane) -> Self {
        Self {
            identity: batch.identity(lane.name()),
            first_seq: batch.first_seq.min(batch.last_seq).0,
            last_seq: batch.last_seq.0,
            records: batch.records,
            sealed_at: rfc3339(batch.sealed_at),
            attempts: None,
            finished_at: None,
        }
    }

    fn done(batch: &StoredBatch, lane: &InspectedLane, done: &AckedBatch) -> Self {
        Self {
            attempts: Some(done.attempts),
            finished_at: Some(rfc3339(done.at)),
            ..Self::waiting(batch, lane)
        }
    }
}

impl RecordId {
    /// Whether a batch that waits may hold it, by what is known without reading it.
    fn may_be_in(&self, batch: &StoredBatch) -> bool {
        match &self.place {
            RecordPlace::Seq(seq) => (batch.first_seq..=batch.last_seq).contains(seq),
            RecordPlace::Tick(number) => batch.epoch == self.epoch && batch.number == *number,
            RecordPlace::Batch(_) => true,
        }
    }
}
