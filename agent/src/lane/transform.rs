//! Runs a range of records, or the call of a timer, through the transforms of a lane. Blocks; one thread at a time.
//!
//! A run is repeated from its first state until it is clean: a record that a plugin faults on is looked for by halving the
//! call, set aside as a dead letter, and the whole batch is run again without it. So what is sealed was made by one
//! undisturbed pass, and a crash before the seal has changed nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::LaneError;
use super::output::Output;
use super::stage::{SetAside, Stage, Transform};
use super::status::LaneStatus;
use crate::clock::{SharedClock, Timestamp};
use crate::limits::FAULTY_RECORDS_MAX;
use crate::plugin::config::OnError;
use crate::plugin::{CallError, Fault, FaultKind, StateDelta};
use crate::record::batch::{FrameBlock, LanePlace};
use crate::record::codec::{CodecError, FrameBuffer, FrameReader};
use crate::record::id::{BatchNumber, Epoch, Seq, write_record_identity};
use crate::record::subject::SubjectPattern;
use crate::record::{HeadersBuffer, Origin, Path, PathBuffer, RecordView};
use crate::tasks::Shutdown;

/// Why records of a stage are not given to its plugin in the next pass.
#[derive(Debug, Clone)]
enum Verdict {
    /// They become dead letters, with class and reason.
    Letter(&'static str, String),
    Drop,
}

/// What is decided about records before a pass: by stage, for single records by identity or for all.
#[derive(Debug, Default)]
struct Verdicts {
    single: HashMap<(usize, String), Verdict>,
    whole: HashMap<usize, Verdict>,
}

impl Verdicts {
    fn is_empty(&self) -> bool {
        self.single.is_empty() && self.whole.is_empty()
    }

    fn find(&self, stage: usize, identity: &str) -> Option<&Verdict> {
        let single = self.single.get(&(stage, identity.to_owned()));
        single.or_else(|| self.whole.get(&stage))
    }
}

/// What a run is made of.
pub(super) enum Input<'a> {
    /// Records.
    Blocks {
        /// The stage that dead letters fell out of, which they run from. A range of the stream runs from the first, as far as
        /// the pipeline takes it.
        from: Option<usize>,
        /// Gives the batch's blocks anew for each pass.
        blocks: &'a mut dyn FnMut() -> Box<dyn Iterator<Item = Result<FrameBlock, LaneError>>>,
    },
    /// Nothing: a stage with a timer is called.
    Tick {
        stage: usize,
        /// Whose records get its number.
        batch: BatchNumber,
        epoch: Epoch,
        /// The last seq that is sealed.
        seq: Seq,
    },
}

impl Input<'_> {
    /// The first stage that takes part.
    fn first(&self) -> usize {
        match self {
            Self::Blocks { from, .. } => from.unwrap_or(0),
            Self::Tick { stage, .. } => *stage,
        }
    }
}

/// Why a pass ended early.
enum Stop {
    /// A call failed: on which stage, on what, and how.
    Call {
        stage: usize,
        error: CallError,
        suspects: Option<FrameBuffer>,
    },
    Lane(LaneError),
}

impl<E: Into<LaneError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Lane(error.into())
    }
}

/// The transforms of one lane, with their instances and state.
pub(super) struct Transforms {
    stages: Vec<Stage>,
    /// What the pipeline takes; everything when empty.
    subjects: Arc<[SubjectPattern]>,
    place: Arc<LanePlace>,
    status: Arc<LaneStatus>,
    clock: SharedClock,
    shutdown: Shutdown,
}

impl Transforms {
    /// `state`: what the journal holds for each component of this lane.
    pub(super) fn new(
        transforms: Vec<Transform>,
        subjects: Arc<[SubjectPattern]>,
        place: Arc<LanePlace>,
        mut state: crate::journal::PluginState,
        status: Arc<LaneStatus>,
        clock: SharedClock,
        shutdown: Shutdown,
    ) -> Self {
        let stages = transforms.into_iter().map(|transform| {
            let stored = state.remove(transform.config.id.as_str()).unwrap_or_default();
            Stage::new(transform, stored)
        });
        Self { stages: stages.collect(), subjects, place, status, clock, shutdown }
    }

    /// Whether the pipeline takes records of this subject.
    pub(super) fn take(&self, subject: &str) -> bool {
        self.subjects.is_empty() || self.subjects.iter().any(|pattern| pattern.matches(subject))
    }

    /// Whether the pipeline takes everything.
    pub(super) fn take_all(&self) -> bool {
        self.subjects.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Passes a batch through all stages into `output`, as often as it takes for a clean pass.
    ///
    /// Returns what was set aside and what the plugins changed; the changes count only once they are given to [`Self::keep`].
    pub(super) fn run(
        &mut self,
        now: Timestamp,
        mut input: Input<'_>,
        output: &mut Output,
        output_bytes_max: usize,
    ) -> Result<(SetAside, Vec<StateDelta>), LaneError> {
        let mut verdicts = Verdicts::default();
        let mut faults = 0;
        loop {
            output.restart(output_bytes_max)?;
            let mut aside = SetAside::default();
            match self.pass(now, &mut input, output, &verdicts, &mut aside) {
                Ok(deltas) => return Ok((aside, deltas)),
                Err(Stop::Lane(error)) => return Err(error),
                Err(Stop::Call { stage, error, suspects }) => {
                    self.forget_instances();
                    if let CallError::Fault(fault) = &error {
                        faults += 1;
                        self.status.counters.plugin_faults.fetch_add(1, Ordering::Relaxed);
                        self.tell(stage, fault);
                    }
                    self.judge(now, stage, error, suspects, faults, &mut verdicts)?;
                }
            }
        }
    }

    /// Makes the changes of a run, which is being sealed, the state of the next one.
    pub(super) fn keep(&mut self, deltas: Vec<StateDelta>) {
        for (stage, delta) in self.stages.iter_mut().zip(deltas) {
            if !delta.is_empty() {
                Arc::make_mut(&mut stage.state).apply(delta);
            }
        }
    }

    /// Says in the status what keeps the lane: looking for the record that is to blame can take many deadlines.
    fn tell(&self, stage: usize, fault: &Fault) {
        let transform = &self.stages[stage].transform.config.id;
        let reason = format!(
            "transform \"{transform}\" breaks down, looking for the records that do it: {fault}"
        );
        self.status.hold("plugin", reason, &*self.clock);
    }

    /// Decides what the next pass does differently, or ends the run.
    fn judge(
        &mut self,
        now: Timestamp,
        stage: usize,
        error: CallError,
        suspects: Option<FrameBuffer>,
        faults: usize,
        verdicts: &mut Verdicts,
    ) -> Result<(), LaneError> {
        let config = &self.stages[stage].transform.config;
        let (transform, on_error) = (config.id.clone(), config.on_error);
        match error {
            CallError::Retryable(reason) => Err(LaneError::Later { transform, reason }),
            CallError::Host(source) => {
                let reason = format!("the plugin host failed: {source}");
                Err(LaneError::Later { transform, reason })
            }
            CallError::Permanent(reason) => {
                if suspects.is_none() {
                    tracing::warn!(
                        transform = %transform, reason,
                        "Timer of a plugin failed for good, what it has to give waits for the next time"
                    );
                }
                let verdict = match on_error {
                    OnError::Hold => return Err(LaneError::Parked { transform, reason }),
                    OnError::DeadLetter => Verdict::Letter("permanent", reason),
                    OnError::Drop => Verdict::Drop,
                };
                verdicts.whole.insert(stage, verdict);
                Ok(())
            }
            // A call without records has none to blame; what took too long is tried once more, in case the host was busy.
            CallError::Fault(fault)
                if suspects.is_none() && faults == 1 && fault.kind == FaultKind::Deadline =>
            {
                Ok(())
            }
            CallError::Fault(fault) => {
                let Some(suspects) = suspects.filter(|_| faults <= FAULTY_RECORDS_MAX) else {
                    return Err(LaneError::Parked { transform, reason: fault.to_string() });
                };
                let Some((identity, fault)) = self.find_culprit(now, stage, &suspects, fault)?
                else {
                    // No single record repeats it: the call was too much, or the host was. Another pass, in smaller calls.
                    let calls = &mut self.stages[stage].call_records_max;
                    *calls = (*calls).min(suspects.count() as usize).div_ceil(2);
                    return Ok(());
                };
                tracing::warn!(
                    transform = %transform, record = %identity, fault = %fault,
                    "Plugin breaks down on a record, which is to be set aside"
                );
                let verdict = Verdict::Letter(fault.kind.as_str(), fault.text);
                verdicts.single.insert((stage, identity), verdict);
                Ok(())
            }
        }
    }

    /// Halves a failed call until one record fails alone, each time with a new instance. `None` when none does.
    fn find_culprit(
        &mut self,
        now: Timestamp,
        stage: usize,
        suspects: &FrameBuffer,
        mut fault: Fault,
    ) -> Result<Option<(String, Fault)>, LaneError> {
        let records = records_in(suspects)?;
        let (mut low, mut high) = (0, records.len());
        // A single record is repeated once before it is blamed for the time that it took.
        let mut confirmed = fault.kind != FaultKind::Deadline;
        while high - low > 1 || !confirmed {
            self.go_on()?;
            let middle = if high - low > 1 { low + (high - low) / 2 } else { high };
            if let Some(found) = self.fault_of(now, stage, &records[low..middle])? {
                confirmed |= high - low == 1 || found.kind != FaultKind::Deadline;
                (fault, high) = (found, middle);
                continue;
            }
            if middle == high {
                return Ok(None);
            }
            let Some(found) = self.fault_of(now, stage, &records[middle..high])? else {
                return Ok(None);
            };
            confirmed |= found.kind != FaultKind::Deadline;
            (fault, low) = (found, middle);
        }
        let mut identity = String::new();
        write_record_identity(&mut identity, &self.place.lane, &records[low]);
        Ok(Some((identity, fault)))
    }

    /// The fault of a new instance on these records, if it has one.
    fn fault_of(
        &mut self,
        now: Timestamp,
        stage: usize,
        records: &[RecordView<'_>],
    ) -> Result<Option<Fault>, LaneError> {
        let stage = &mut self.stages[stage];
        let result =
            stage.fresh(&self.place).and_then(|mut instance| instance.process(now, records));
        match result {
            Err(CallError::Fault(fault)) => Ok(Some(fault)),
            Err(CallError::Host(source)) => {
                let transform = stage.transform.config.id.clone();
                let reason = format!("the plugin host failed: {source}");
                Err(LaneError::Later { transform, reason })
            }
            Ok(_) | Err(CallError::Retryable(_) | CallError::Permanent(_)) => Ok(None),
        }
    }

    fn forget_instances(&mut self) {
        for stage in &mut self.stages {
            stage.instance = None;
        }
    }

    fn pass(
        &mut self,
        now: Timestamp,
        input: &mut Input<'_>,
        output: &mut Output,
        verdicts: &Verdicts,
        aside: &mut SetAside,
    ) -> Result<Vec<StateDelta>, Stop> {
        for (index, stage) in self.stages.iter_mut().enumerate().skip(input.first()) {
            stage.begin(&self.place).map_err(|error| Stop::Call {
                stage: index,
                error,
                suspects: None,
            })?;
        }
        match input {
            Input::Blocks { from, blocks } => {
                self.pass_blocks((now, *from), blocks(), output, verdicts, aside)?;
            }
            Input::Tick { stage, batch, epoch, seq } => {
                let made = self.tick(now, (*stage, *batch), (*epoch, *seq), verdicts)?;
                self.pass_on(now, *stage + 1, made, output, verdicts, aside)?;
            }
        }
        Ok(self.stages.iter_mut().map(Stage::end).collect())
    }

    fn pass_blocks(
        &mut self,
        (now, from): (Timestamp, Option<usize>),
        blocks: Box<dyn Iterator<Item = Result<FrameBlock, LaneError>>>,
        output: &mut Output,
        verdicts: &Verdicts,
        aside: &mut SetAside,
    ) -> Result<(), Stop> {
        let (records_max, bytes_max) = self.call_bounds(from.unwrap_or(0));
        let mut gathered = Vec::new();
        let (mut records, mut bytes) = (0, 0);
        for block in blocks {
            self.go_on()?;
            let block = block?;
            records += block.take as usize;
            bytes += block.bytes.len();
            gathered.push(block);
            if records >= records_max || bytes >= bytes_max {
                self.call((now, from), &gathered, output, verdicts, aside)?;
                gathered.clear();
                (records, bytes) = (0, 0);
            }
        }
        if !gathered.is_empty() {
            self.call((now, from), &gathered, output, verdicts, aside)?;
        }
        Ok(())
    }

    /// Calls a stage with a timer, and gives what it made. One whose plugin has said `permanent` is left out.
    fn tick(
        &mut self,
        now: Timestamp,
        (index, batch): (usize, BatchNumber),
        (epoch, seq): (Epoch, Seq),
        verdicts: &Verdicts,
    ) -> Result<FrameBuffer, Stop> {
        let mut made = FrameBuffer::default();
        if verdicts.whole.contains_key(&index) {
            return Ok(made);
        }
        let drafts = self.stages[index].tick(now);
        let drafts = drafts.map_err(|error| Stop::Call { stage: index, error, suspects: None })?;
        let (mut path, mut headers) = (PathBuffer::default(), HeadersBuffer::default());
        for (number, draft) in (0..).zip(&drafts) {
            path.set(Path::default(), number);
            headers.clear();
            draft.headers.iter().for_each(|(name, value)| headers.push(name, value));
            made.push(&RecordView {
                epoch,
                seq,
                origin: Origin { tick: Some(batch.0), path: path.as_path(), repair: 0 },
                time: draft.time.unwrap_or(now),
                subject: &draft.subject,
                headers: headers.as_headers(),
                payload: &draft.payload,
            });
        }
        Ok(made)
    }

    /// Whether to go on with the run.
    fn go_on(&self) -> Result<(), LaneError> {
        if self.shutdown.is_requested() { Err(LaneError::Interrupted) } else { Ok(()) }
    }

    /// How much is gathered before the first stage is called.
    fn call_bounds(&self, first: usize) -> (usize, usize) {
        let first = &self.stages[first];
        (first.call_records_max, first.transform.config.call_bytes_max.as_usize())
    }

    /// Takes some blocks through all stages, or those from the one that they fell out of.
    fn call(
        &mut self,
        (now, from): (Timestamp, Option<usize>),
        blocks: &[FrameBlock],
        output: &mut Output,
        verdicts: &Verdicts,
        aside: &mut SetAside,
    ) -> Result<(), Stop> {
        let mut records = Vec::new();
        for block in blocks {
            for record in block.records() {
                let record = record?;
                if from.is_some() || self.take(record.subject) {
                    records.push(record);
                } else {
                    aside.not_taken += 1;
                }
            }
        }
        let (first, last) = (from.unwrap_or(0), self.stages.len() - 1);
        let mut between = FrameBuffer::default();
        self.stage(first, now, &records, verdicts, aside, &mut |record| {
            if last == first { output.push(record) } else { push(&mut between, record) }
        })?;
        self.pass_on(now, first + 1, between, output, verdicts, aside)
    }

    /// Takes what a stage made through the next one and those behind it; behind the last one it is output.
    fn pass_on(
        &mut self,
        now: Timestamp,
        next: usize,
        mut made: FrameBuffer,
        output: &mut Output,
        verdicts: &Verdicts,
        aside: &mut SetAside,
    ) -> Result<(), Stop> {
        let last = self.stages.len() - 1;
        for index in next..=last {
            let records = records_in(&made)?;
            let mut between = FrameBuffer::default();
            self.stage(index, now, &records, verdicts, aside, &mut |record| {
                if index == last { output.push(record) } else { push(&mut between, record) }
            })?;
            made = between;
        }
        Ok(records_in(&made)?.iter().try_for_each(|record| output.push(record))?)
    }

    /// Takes records through one stage, in calls within its bounds.
    fn stage(
        &mut self,
        index: usize,
        now: Timestamp,
        records: &[RecordView<'_>],
        verdicts: &Verdicts,
        aside: &mut SetAside,
        next: &mut dyn FnMut(&RecordView<'_>) -> Result<(), LaneError>,
    ) -> Result<(), Stop> {
        let kept;
        let records = if verdicts.is_empty() {
            records
        } else {
            kept = self.apply_verdicts(index, records, verdicts, aside);
            &kept
        };
        let Self { stages, place, .. } = self;
        let stage = &mut stages[index];
        let mut rest = records;
        while !rest.is_empty() {
            let (now_called, later) = rest.split_at(stage.call_length(rest));
            rest = later;
            let outcomes = match stage.process(now, now_called) {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    let mut suspects = FrameBuffer::default();
                    now_called.iter().for_each(|record| suspects.push(record));
                    return Err(Stop::Call { stage: index, error, suspects: Some(suspects) });
                }
            };
            for (record, outcome) in now_called.iter().zip(outcomes) {
                stage.pass_on(place, record, outcome, aside, next)?;
            }
        }
        Ok(())
    }

    /// The records that this stage's plugin still gets; the others are set aside or dropped as decided.
    fn apply_verdicts<'a>(
        &self,
        index: usize,
        records: &[RecordView<'a>],
        verdicts: &Verdicts,
        aside: &mut SetAside,
    ) -> Vec<RecordView<'a>> {
        let mut identity = String::new();
        let stage = &self.stages[index];
        let kept = records.iter().filter(|record| {
            write_record_identity(&mut identity, &self.place.lane, record);
            match verdicts.find(index, &identity) {
                None => true,
                Some(Verdict::Drop) => false,
                Some(Verdict::Letter(class, reason)) => {
                    aside.letters.push(stage.letter(&identity, record, class, reason.clone()));
                    false
                }
            }
        });
        kept.copied().collect()
    }
}

fn records_in(frames: &FrameBuffer) -> Result<Vec<RecordView<'_>>, CodecError> {
    FrameReader::new(frames.bytes(), frames.count(), Epoch::default(), Seq(1)).collect()
}

fn push(frames: &mut FrameBuffer, record: &RecordView<'_>) -> Result<(), LaneError> {
    frames.push(record);
    Ok(())
}
