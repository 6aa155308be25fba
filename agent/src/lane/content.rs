//! A sealed batch as its sink is given it, and what else is read out of it: where to cut it, and the records that are given up.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::LaneError;
use crate::journal::{Halves, LaneJournal, LetterClass, LetterRecord, StoredBatch, Variant};
use crate::record::RecordView;
use crate::record::batch::{
    BatchContent, BatchFacts, BlockReader, ContentHash, LanePlace, SealedBatch,
};
use crate::record::id::{LaneName, Seq, write_record_identity};
use crate::record::partition::{PartitionBy, Partitions};
use crate::sinks::{Refused, SinkBuilder};

/// `earlier`: something of it may have been sent before, by an earlier session or as a part of what was cut.
pub(super) fn sealed_batch(
    batch: &StoredBatch,
    earlier: bool,
    lane: &LaneJournal,
    place: &Arc<LanePlace>,
) -> SealedBatch {
    let content = StoredContent { lane: lane.clone(), batch: batch.clone() };
    SealedBatch {
        facts: facts(batch, place),
        fixed: batch.fixed.as_str().into(),
        sha256: batch.sha256,
        earlier,
        note: batch.variant.sink_note.as_deref().map(Arc::from),
        content: Arc::new(content),
    }
}

/// What a sink goes by: the identity that the batch is shown under.
pub(super) fn facts(batch: &StoredBatch, place: &Arc<LanePlace>) -> BatchFacts {
    let shown = batch.shown();
    BatchFacts {
        place: Arc::clone(place),
        epoch: shown.epoch,
        number: shown.number,
        // What a tick made stands at the last record before it.
        first_seq: batch.first_seq.min(batch.last_seq),
        last_seq: batch.last_seq,
        sealed_at: batch.sealed_at,
        records: batch.records,
        suffix: shown.suffix.into(),
        partitions: Vec::new(),
    }
}

/// The keys that a sink takes the batch apart by. Blocks.
pub(super) fn partitions(
    batch: &StoredBatch,
    lane: &LaneJournal,
    by: Arc<PartitionBy>,
) -> Result<Vec<String>, LaneError> {
    let content = StoredContent { lane: lane.clone(), batch: batch.clone() };
    let mut partitions = Partitions::new(by);
    each_record(&content, |_, record| {
        // What was sealed is within its bound.
        partitions.note(record, usize::MAX);
    })?;
    Ok(partitions.take())
}

/// A sealed batch as the journal holds it.
#[derive(Debug)]
struct StoredContent {
    lane: LaneJournal,
    batch: StoredBatch,
}

impl BatchContent for StoredContent {
    fn open(&self) -> Box<dyn BlockReader> {
        self.lane.open_batch(&self.batch)
    }
}

/// Calls `each` with every record of a batch and its index. Blocks.
fn each_record(
    content: &dyn BatchContent,
    mut each: impl FnMut(u64, &RecordView<'_>),
) -> Result<(), LaneError> {
    let mut reader = content.open();
    let mut index = 0;
    while let Some(block) = reader.next_block().map_err(LaneError::Read)? {
        for record in block.records() {
            each(index, &record?);
            index += 1;
        }
    }
    Ok(())
}

/// Where a batch is cut: as near to its middle as two inputs meet, or in its middle when it is all of one.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Records of the first half.
    at: u64,
    /// Input of the last record of the first half, and of the first of the second.
    meet: (Seq, Seq),
}

fn place_of_cut(content: &dyn BatchContent, records: u64) -> Result<Place, LaneError> {
    let middle = records / 2;
    let mut best: Option<Place> = None;
    let mut at_middle = Place { at: middle, meet: (Seq(0), Seq(0)) };
    let mut before = None;
    each_record(content, |index, record| {
        if let Some(seq) = before {
            let place = Place { at: index, meet: (seq, record.seq) };
            let nearer = |best: &Place| index.abs_diff(middle) < best.at.abs_diff(middle);
            if seq != record.seq && best.as_ref().is_none_or(nearer) {
                best = Some(place);
            } else if index == middle {
                at_middle = place;
            }
        }
        before = Some(record.seq);
    })?;
    Ok(best.unwrap_or(at_middle))
}

/// Works out the halves of a batch with at least two records. Blocks.
///
/// # Errors
/// When the content cannot be read, or the sink finds no name for a half.
pub(super) fn halves(
    batch: &StoredBatch,
    lane: &LaneJournal,
    lane_place: &Arc<LanePlace>,
    sink: &dyn SinkBuilder,
    spent: bool,
    verdict: Option<LetterClass>,
) -> Result<Halves, LaneError> {
    let content = StoredContent { lane: lane.clone(), batch: batch.clone() };
    let Place { at, meet: (last, next) } = place_of_cut(&content, batch.records)?;
    let mut hashes = [ContentHash::default(), ContentHash::default()];
    let counted = &batch.variant.counted;
    let (mut inputs, mut before) = (0, None);
    each_record(&content, |index, record| {
        hashes[usize::from(index >= at)].update(record);
        // The half with an input's last record counts it.
        let is_new = before != Some(record.seq);
        let is_counted = || counted.binary_search(&record.seq).is_ok();
        // What a replay is made of counts as dead-lettered until it is over, and what a tick made is of no input.
        let is_input = is_new && !batch.variant.replay && !batch.is_of_tick();
        if index < at && is_input && record.seq != next && !is_counted() {
            inputs += 1;
        }
        before = Some(record.seq);
    })?;
    let shares = last == next;
    let (last, begins) = match batch.is_of_tick() {
        true => (batch.last_seq, batch.first_seq),
        false => (last, if shares { last } else { last.next() }),
    };
    let half = |number: usize, (first_seq, last_seq), records: u64, sha256| {
        let variant = &batch.variant;
        let skipped = if number == 0 || batch.parts == 0 { 0 } else { at };
        let within = |seq: &&Seq| (first_seq..=last_seq).contains(*seq);
        StoredBatch {
            first_seq,
            last_seq,
            records,
            sha256,
            variant: Variant {
                suffix: format!("{}.{number}", variant.suffix),
                first_record: variant.first_record + skipped,
                counted: variant.counted.iter().filter(within).copied().collect(),
                spent,
                verdict,
                ..variant.clone()
            },
            ..batch.clone()
        }
    };
    let [first_hash, second_hash] = hashes;
    let mut halves = [
        half(0, (batch.first_seq, last), at, first_hash.finish()),
        half(1, (begins, batch.last_seq), batch.records - at, second_hash.finish()),
    ];
    for half in &mut halves {
        let facts = facts(half, lane_place);
        let fixed = sink.fix_half(&facts, &batch.fixed);
        let fixed = fixed.map_err(|source| LaneError::Fix { batch: batch.number, source })?;
        half.fixed = fixed.to_string();
    }
    Ok(Halves { halves, first_inputs: inputs })
}

/// Which records of a batch are given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Which {
    /// All of them, for one reason.
    All(String),
    /// These, each for its own.
    Named(Vec<Refused>),
}

impl Which {
    /// How many of so many.
    pub(super) fn count(&self, records: u64) -> u64 {
        match self {
            Self::All(_) => records,
            Self::Named(refused) => refused.len() as u64,
        }
    }
}

/// Reads the records that are given up. `None` when they take more than `bytes_max` and are several. Blocks.
pub(super) fn letters(
    batch: &StoredBatch,
    lane: &LaneJournal,
    name: &LaneName,
    which: &Which,
    bytes_max: u64,
) -> Result<Option<Vec<LetterRecord>>, LaneError> {
    let content = StoredContent { lane: lane.clone(), batch: batch.clone() };
    let named: BTreeMap<u64, &str> = match which {
        Which::All(_) => BTreeMap::new(),
        Which::Named(refused) => {
            refused.iter().map(|refused| (refused.index, refused.reason.as_str())).collect()
        }
    };
    let identity = batch.identity(name);
    let (mut letters, mut bytes) = (Vec::new(), 0);
    each_record(&content, |index, record| {
        let reason = match which {
            Which::All(reason) => Some(reason.as_str()),
            Which::Named(_) => named.get(&index).copied(),
        };
        let Some(reason) = reason else { return };
        // Once they are over the bound the batch is cut, and nothing more is kept in memory.
        if bytes > bytes_max && !letters.is_empty() {
            return;
        }
        let mut record_identity = String::new();
        write_record_identity(&mut record_identity, name, record);
        let letter = LetterRecord::new(record, record_identity, reason.to_owned());
        bytes += letter.stored_bytes(&identity);
        letters.push(letter);
    })?;
    Ok((bytes <= bytes_max || batch.records == 1).then_some(letters))
}
