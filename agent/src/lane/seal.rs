//! From a range of the stream to a sealed batch: the blocking half of a lane.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::error::LaneError;
use super::output::{Made, Output};
use super::transform::{SetAside, Transforms};
use crate::clock::{SharedClock, SteadyTime};
use crate::journal::{LaneJournal, PendingSeal, Seal, StateChange, StoredBatch, cut};
use crate::plugin::StateDelta;
use crate::record::batch::{BatchFacts, FrameBlock, LanePlace};
use crate::record::id::{BatchNumber, Epoch, Seq};
use crate::sinks::SinkBuilder;

/// What the next batch may cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: Seq,
    /// The last record that is there and within `batch.records_max`.
    pub(super) last: Seq,
    pub(super) bytes_max: usize,
}

/// Makes batches. Owned by a lane, moved to a blocking thread for each run.
pub(super) struct Sealer {
    pub(super) journal: LaneJournal,
    pub(super) transforms: Transforms,
    pub(super) output: Output,
    pub(super) sink: Arc<dyn SinkBuilder>,
    pub(super) place: Arc<LanePlace>,
    pub(super) transform_names: Vec<String>,
    pub(super) epoch: Epoch,
    pub(super) next_batch: BatchNumber,
    pub(super) clock: SharedClock,
    pub(super) time: SteadyTime,
    pub(super) runtime: Handle,
}

impl Sealer {
    /// Runs a range and hands the seal over. The range may end earlier than asked, at `bytes_max`.
    pub(super) fn run(&mut self, range: Range) -> Result<(StoredBatch, PendingSeal), LaneError> {
        let (now, stepped_back) = self.time.next(&*self.clock);
        if let Some(by) = stepped_back {
            tracing::warn!(by_s = by.as_secs(), "The clock stepped back, which is taken over");
        }
        self.output.begin(self.next_batch, self.epoch, range.first);
        let reached = Rc::new(Cell::new(None));
        let mut blocks = || -> Box<dyn Iterator<Item = Result<FrameBlock, LaneError>>> {
            Box::new(Blocks::new(&self.journal, range, &reached))
        };
        let (aside, deltas) = if self.transforms.is_empty() {
            for block in blocks() {
                for record in block?.records() {
                    self.output.count(&record?);
                }
            }
            (SetAside::default(), Vec::new())
        } else {
            self.transforms.run(now, &mut blocks, &mut self.output)?
        };
        let last = reached.get().unwrap_or(range.first);
        let made = self.output.finish()?;
        let facts = BatchFacts {
            place: Arc::clone(&self.place),
            epoch: self.epoch,
            number: self.next_batch,
            first_seq: range.first,
            last_seq: last,
            sealed_at: now,
            records: made.records,
        };
        let seal = self.seal_of(&facts, made, aside, &deltas)?;
        let batch = seal.batch.clone();
        let pending = self.runtime.block_on(self.journal.seal(seal))?;
        self.transforms.keep(deltas);
        self.next_batch = BatchNumber(self.next_batch.0 + 1);
        Ok((batch, pending))
    }

    fn seal_of(
        &self,
        facts: &BatchFacts,
        made: Made,
        aside: SetAside,
        deltas: &[StateDelta],
    ) -> Result<Seal, LaneError> {
        // An input is dead-lettered when any of its outputs is, delivered when all that it became is, else dropped.
        let dead: BTreeSet<Seq> = aside.letters.iter().map(|letter| letter.seq).collect();
        let delivered = made.inputs.iter().filter(|seq| !dead.contains(seq)).count() as u64;
        let taken = facts.last_seq.0 + 1 - facts.first_seq.0;
        let fixed = if made.records == 0 {
            String::new()
        } else {
            let batch = facts.number;
            let fixed = self.sink.fix(facts);
            fixed.map_err(|source| LaneError::Fix { batch, source })?.to_string()
        };
        let changes = self.transform_names.iter().zip(deltas).flat_map(|(component, delta)| {
            delta.iter().map(|(key, value)| StateChange {
                component: component.clone(),
                key: key.clone(),
                value: value.as_ref().map(|value| value.to_vec()),
            })
        });
        Ok(Seal {
            batch: StoredBatch {
                number: facts.number,
                epoch: facts.epoch,
                first_seq: facts.first_seq,
                last_seq: facts.last_seq,
                sealed_at: facts.sealed_at,
                records: made.records,
                parts: made.parts,
                sha256: made.sha256,
                fixed,
            },
            dropped: taken - delivered - dead.len() as u64,
            dead_lettered: dead.len() as u64,
            letters: aside.letters,
            state: changes.collect(),
        })
    }
}

/// Reads a range of the stream block by block, up to its bytes; the first record is always within them.
struct Blocks {
    journal: LaneJournal,
    next: Seq,
    last: Seq,
    bytes_left: usize,
    read: std::vec::IntoIter<FrameBlock>,
    /// The last record that was given. Set once the range is read, and the range of every later pass.
    reached: Rc<Cell<Option<Seq>>>,
}

impl Blocks {
    fn new(journal: &LaneJournal, range: Range, reached: &Rc<Cell<Option<Seq>>>) -> Self {
        let (last, bytes_left) = match reached.get() {
            Some(last) => (last, usize::MAX),
            None => (range.last, range.bytes_max),
        };
        Self {
            journal: journal.clone(),
            next: range.first,
            last,
            bytes_left,
            read: Vec::new().into_iter(),
            reached: Rc::clone(reached),
        }
    }

    fn read(&mut self) -> Result<FrameBlock, LaneError> {
        if let Some(block) = self.read.next() {
            return Ok(block);
        }
        self.read = self.journal.read(self.next)?.into_iter();
        let block = self.read.next();
        Ok(block.expect("a read that succeeds gives the chunk that was asked for"))
    }

    /// Leaves of a block what is within the bytes; says whether all of it is.
    fn within_bytes(&mut self, block: &mut FrameBlock) -> Result<bool, LaneError> {
        if block.bytes.len() <= self.bytes_left {
            self.bytes_left -= block.bytes.len();
            return Ok(true);
        }
        let mut fitting = 0;
        for record in block.records() {
            let size = record?.size_bytes();
            if size > self.bytes_left {
                break;
            }
            self.bytes_left -= size;
            fitting += 1;
        }
        let is_first = self.reached.get().is_none();
        let all = fitting == block.take;
        block.take = fitting.max(u32::from(is_first));
        Ok(all)
    }
}

impl Iterator for Blocks {
    type Item = Result<FrameBlock, LaneError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next > self.last {
            return None;
        }
        let block = self.read().and_then(|block| {
            let mut block = cut(block, self.next, self.last);
            if !self.within_bytes(&mut block)? {
                // The batch ends here.
                self.last = Seq(self.next.0 + u64::from(block.take)).before();
            }
            Ok(block)
        });
        match block {
            Ok(block) if block.take == 0 => None,
            Ok(block) => {
                self.next = self.next.plus(u64::from(block.take));
                self.reached.set(Some(self.next.before()));
                Some(Ok(block))
            }
            Err(error) => {
                self.last = self.next.before();
                Some(Err(error))
            }
        }
    }
}
