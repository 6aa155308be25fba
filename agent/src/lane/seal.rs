//! From a range of the stream to a sealed batch: the blocking half of a lane.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::content;
use super::error::LaneError;
use super::output::{Made, Output};
use super::replay::state_changes;
use super::stage::SetAside;
use super::status::LaneStatus;
use super::transform::{Input, Transforms};
use crate::clock::{SharedClock, SteadyTime, Timestamp};
use crate::journal::{
    JournalError, LaneJournal, PendingSeal, Seal, StageLetter, StoredBatch, Variant, cut,
};
use crate::limits::{PLUGIN_OUTPUT_BYTES_MIN, PLUGIN_OUTPUT_FACTOR};
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

/// A batch on its way to be sealed.
#[derive(Debug)]
pub(super) struct SealedRun {
    pub(super) batch: StoredBatch,
    /// What its parts take of the journal.
    pub(super) stored_bytes: u64,
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
    pub(super) status: Arc<LaneStatus>,
    pub(super) runtime: Handle,
}

impl Sealer {
    /// Runs a range and hands the seal over. The range may end earlier than asked, at `bytes_max` or in front of a gap. Where
    /// it begins with a gap, that counts as a batch without records.
    pub(super) fn run(&mut self, range: Range) -> Result<(SealedRun, PendingSeal), LaneError> {
        match self.run_records(range) {
            Err(LaneError::Journal(JournalError::Missing { .. })) => {
                let (last, pending) = self.journal.step_over(range.first, &self.runtime)?;
                let batch = StoredBatch {
                    number: self.next_batch,
                    epoch: self.epoch,
                    first_seq: range.first,
                    last_seq: last,
                    sealed_at: self.clock.now(),
                    records: 0,
                    parts: 0,
                    sha256: [0; 32],
                    fixed: String::new(),
                    variant: Variant::default(),
                };
                Ok((SealedRun { batch, stored_bytes: 0 }, pending))
            }
            ran => ran,
        }
    }

    /// Calls a transform with a timer behind the last record that is sealed, and hands over the seal of what it made. `None`
    /// when it made nothing and changed nothing. The batch covers an empty range: it begins behind its last seq.
    pub(super) fn tick(
        &mut self,
        stage: usize,
        sealed: Seq,
    ) -> Result<Option<(SealedRun, PendingSeal)>, LaneError> {
        let now = self.now();
        self.output.begin(self.next_batch, self.epoch, sealed.next());
        // What one call makes cannot be cut shorter.
        self.output.of_single_input(true);
        let (batch, epoch) = (self.next_batch, self.epoch);
        let input = Input::Tick { stage, batch, epoch, seq: sealed };
        let bytes_max = PLUGIN_OUTPUT_BYTES_MIN * PLUGIN_OUTPUT_FACTOR;
        let (aside, deltas) = self.transforms.run(now, input, &mut self.output, bytes_max)?;
        let made = self.output.finish()?;
        let changes = deltas.iter().any(|delta| !delta.is_empty());
        if made.records == 0 && aside.letters.is_empty() && !changes {
            return Ok(None);
        }
        self.hand_over((sealed.next(), sealed), now, made, aside, deltas).map(Some)
    }

    fn now(&mut self) -> Timestamp {
        let (now, stepped_back) = self.time.next(&*self.clock);
        if let Some(by) = stepped_back {
            tracing::warn!(by_s = by.as_secs(), "The clock stepped back, which is taken over");
        }
        now
    }

    fn run_records(&mut self, range: Range) -> Result<(SealedRun, PendingSeal), LaneError> {
        let now = self.now();
        self.output.begin(self.next_batch, self.epoch, range.first);
        let mut range = range;
        let (last, aside, deltas) = loop {
            match self.run_range(range, now) {
                // What a single record makes beyond all bounds holds the lane.
                Err(LaneError::OutputTooLarge) if range.last > range.first => {
                    range.last = Seq(range.first.0 + (range.last.0 - range.first.0) / 2);
                }
                // The batch ends before the record; one that makes too many by itself is a batch of its own.
                Err(LaneError::TooManyPartitions { seq }) if range.last > range.first => {
                    range.last = seq.before().max(range.first);
                }
                made => break made?,
            }
        };
        let made = self.output.finish()?;
        self.hand_over((range.first, last), now, made, aside, deltas)
    }

    /// Hands the seal of a run over, which moves the lane on.
    fn hand_over(
        &mut self,
        range: (Seq, Seq),
        now: Timestamp,
        mut made: Made,
        aside: SetAside,
        deltas: Vec<StateDelta>,
    ) -> Result<(SealedRun, PendingSeal), LaneError> {
        let stored_bytes = made.stored_bytes;
        let (batch, variant) = (self.next_batch, Variant::default());
        let mut batch = StoredBatch {
            number: batch,
            epoch: self.epoch,
            first_seq: range.0,
            last_seq: range.1,
            sealed_at: now,
            records: made.records,
            parts: made.parts,
            sha256: made.sha256,
            fixed: String::new(),
            variant,
        };
        if made.records > 0 {
            let partitions = std::mem::take(&mut made.partitions);
            let facts = BatchFacts { partitions, ..content::facts(&batch, &self.place) };
            let fixed = self.sink.fix(&facts);
            let failed = |source| LaneError::Fix { batch: batch.number, source };
            batch.fixed = fixed.map_err(failed)?.to_string();
        }
        let seal = self.seal_of(batch, &made.inputs, aside, &deltas);
        if let Some(StageLetter { class, record, .. }) = seal.letters.last() {
            let count = seal.letters.len() as u64;
            self.status.letters_said.say(
                &*self.clock,
                count,
                class,
                &record.identity,
                &record.reason,
            );
        }
        let batch = seal.batch.clone();
        let pending = self.runtime.block_on(self.journal.seal(seal))?;
        self.transforms.keep(deltas);
        self.next_batch = BatchNumber(self.next_batch.0 + 1);
        Ok((SealedRun { batch, stored_bytes }, pending))
    }

    /// Runs a range into the output. Returns the last record that it came to, what was set aside, and what plugins changed.
    fn run_range(
        &mut self,
        range: Range,
        now: Timestamp,
    ) -> Result<(Seq, SetAside, Vec<StateDelta>), LaneError> {
        self.output.of_single_input(range.first == range.last);
        let reached = Rc::new(Cell::new(None));
        let mut blocks = || -> Box<dyn Iterator<Item = Result<FrameBlock, LaneError>>> {
            Box::new(Blocks::new(&self.journal, range, &reached))
        };
        let (aside, deltas) = if self.transforms.is_empty() {
            (self.run_plain(&mut blocks())?, Vec::new())
        } else {
            let bytes_max = range.bytes_max.saturating_mul(PLUGIN_OUTPUT_FACTOR);
            let bytes_max = bytes_max.max(PLUGIN_OUTPUT_BYTES_MIN);
            let input = Input::Blocks { from: None, blocks: &mut blocks };
            self.transforms.run(now, input, &mut self.output, bytes_max)?
        };
        Ok((reached.get().unwrap_or(range.first), aside, deltas))
    }

    /// Runs records through no transform at all. Where all of them are taken, the range itself is the content.
    fn run_plain(
        &mut self,
        blocks: &mut dyn Iterator<Item = Result<FrameBlock, LaneError>>,
    ) -> Result<SetAside, LaneError> {
        let mut aside = SetAside::default();
        self.output.restart(usize::MAX)?;
        for block in blocks {
            for record in block?.records() {
                let record = record?;
                if self.transforms.take_all() {
                    self.output.count(&record)?;
                } else if self.transforms.take(record.subject) {
                    self.output.push(&record)?;
                } else {
                    aside.not_taken += 1;
                }
            }
        }
        Ok(aside)
    }

    fn seal_of(
        &self,
        mut batch: StoredBatch,
        inputs: &[Seq],
        aside: SetAside,
        deltas: &[StateDelta],
    ) -> Seal {
        // An input is dead-lettered when any of its outputs is, delivered when all that it became is, else dropped. What a
        // timer made has none.
        let inputs = if batch.is_of_tick() { &[] } else { inputs };
        let letters = aside.letters.iter().filter(|letter| !letter.record.is_of_tick);
        let dead: BTreeSet<Seq> = letters.map(|letter| letter.record.seq).collect();
        let counted: Vec<_> = inputs.iter().filter(|seq| dead.contains(seq)).copied().collect();
        let delivered = (inputs.len() - counted.len()) as u64;
        batch.variant.counted = counted;
        let read = batch.last_seq.0 + 1 - batch.first_seq.0;
        Seal {
            batch,
            dropped: read - aside.not_taken - delivered - dead.len() as u64,
            not_taken: aside.not_taken,
            dead_lettered: dead.len() as u64,
            letters: aside.letters,
            state: state_changes(&self.transform_names, deltas),
        }
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
                // What is in front of a gap is a range of its own.
                let ends_here = matches!(error, LaneError::Journal(JournalError::Missing { .. }))
                    && self.reached.get().is_some();
                if ends_here { None } else { Some(Err(error)) }
            }
        }
    }
}
