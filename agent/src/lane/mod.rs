//! A lane takes the records of one source through one pipeline to one sink.
//!
//! # The guarantee
//!
//! What is sent was stored first. For each range of its stream a lane runs the transforms, *seals* what they made (output,
//! identity, plugin state, dead letters and cursor in one durable transaction), sends exactly that under that identity until
//! the destination has it, and only then acks. A crash before the seal has sent nothing and changed nothing: the range is run
//! anew. A crash after it sends the same bytes under the same identity again. So processing is exactly once, and delivery is
//! exactly once wherever the destination can recognise an identity.
//!
//! # How
//!
//! Two halves of one task: *run and seal* works up to four batches ahead on a blocking thread, *deliver and ack* follows in
//! order. Anything that fails beyond a delivery attempt ends the session; the lane then opens itself anew from what the
//! journal holds. Lanes know nothing of each other.

mod ahead;
pub mod config;
mod deliver;
mod error;
mod memory;
mod output;
mod retry;
mod seal;
mod stage;
pub mod status;
mod transform;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

pub use error::LaneError;
pub use stage::Transform;

use crate::backoff::{Backoff, Jitter};
use crate::clock::{SharedClock, SteadyTime};
use crate::error_chain::Chain;
use crate::journal::{
    Disposition, Head, Journal, LaneJournal, LaneSpec, OpenedLane, Pace, PendingSeal, StoredBatch,
};
use crate::limits::SEALED_AHEAD_MAX;
use crate::record::batch::{BatchContent, BatchFacts, BlockReader, LanePlace, SealedBatch};
use crate::record::id::{Epoch, Seq};
use crate::record::subject::SubjectPattern;
use crate::sinks::config::{BatchConfig, RetryConfig};
use crate::sinks::{Sink, SinkBuilder};
use crate::tasks::Shutdown;
use ahead::Ahead;
use deliver::Deliverer;
use memory::LaneMemory;
use output::Output;
use seal::{Range, SealedRun, Sealer};
use status::{LaneState, LaneStatus};
use transform::Transforms;

/// Pauses between two sessions of a lane whose session failed.
const SESSION_BACKOFF_MS: (u64, u64) = (200, 30_000);

/// Everything that a lane is made of. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LaneParts {
    /// Which lane it is in the journal.
    pub spec: LaneSpec,
    /// Subjects that it takes; all when empty.
    pub subjects: Arc<[SubjectPattern]>,
    /// Its transforms, in order.
    pub transforms: Vec<Transform>,
    /// Its sink.
    pub sink: Arc<dyn SinkBuilder>,
    /// `batch` of the sink.
    pub batch: BatchConfig,
    /// `retry` of the sink.
    pub retry: RetryConfig,
    /// This run of the agent.
    pub epoch: Epoch,
    /// Time.
    pub clock: SharedClock,
}

/// What a lane is told while it runs.
#[derive(Debug, Clone)]
pub struct LaneControl {
    /// Stop between two batches.
    pub shutdown: Shutdown,
    /// No record will come any more: do not linger, end when everything is delivered.
    pub drain: watch::Receiver<bool>,
}

/// How a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneEnd {
    /// Everything was delivered.
    Drained,
    /// It was asked to stop.
    Stopped,
    /// Nobody will take anything any more while this process lives; what is queued stays so.
    Over,
}

/// Runs a lane until it is drained or asked to stop. A session that fails is followed by another.
pub async fn run(
    parts: LaneParts,
    journal: Arc<Journal>,
    control: LaneControl,
    status: Arc<LaneStatus>,
) -> LaneEnd {
    let (base, max) = SESSION_BACKOFF_MS;
    let backoff =
        Backoff::new(Duration::from_millis(base), Duration::from_millis(max), Jitter::Full)
            .expect("the constants are in order");
    let mut failures = 0;
    loop {
        let error = match session(&parts, &journal, &control, &status).await {
            Ok(end) => {
                let state = match end {
                    LaneEnd::Drained => LaneState::Drained,
                    LaneEnd::Stopped | LaneEnd::Over => LaneState::Stopped,
                };
                status.set(state);
                return end;
            }
            // A policy has given up what the lane was at: it goes on behind that, at once.
            Err(error) if error.is_overtaken() => {
                tracing::info!(error = %Chain(&error), "Lane goes on behind what was given up");
                continue;
            }
            Err(error) => error,
        };
        // One that was well until now begins with the shortest pause.
        if status.state() == LaneState::Running {
            failures = 0;
        }
        failures += 1;
        let cause = error.cause();
        let reason = Chain(&error).to_string();
        if status.hold(cause, reason, &*parts.clock) {
            tracing::error!(error = %Chain(&error), "Lane holds, its records stay queued");
        }
        let wait = match error.disposition() {
            Disposition::Retry => backoff.wait(failures),
            // Only somebody's doing changes it; then a look at the slowest pace finds out.
            Disposition::Fatal => backoff.ceiling(u32::MAX),
        };
        if !control.shutdown.sleep(wait).await {
            status.set(LaneState::Stopped);
            return LaneEnd::Stopped;
        }
    }
}

/// One session: from what the journal holds until the end or the first failure.
async fn session(
    parts: &LaneParts,
    journal: &Journal,
    control: &LaneControl,
    status: &Arc<LaneStatus>,
) -> Result<LaneEnd, LaneError> {
    let (lane, opened) = journal.lane(parts.spec.clone()).await?;
    let place = Arc::new(LanePlace {
        lane: opened.name.clone(),
        agent: parts.spec.agent.clone(),
        source: parts.spec.source.clone(),
        pipeline: parts.spec.pipeline.clone(),
        sink: parts.spec.sink.clone(),
    });
    let (holding, held) = watch::channel(false);
    let deliverer = Deliverer {
        sink: make_sink(parts, &lane, &opened, status),
        retry: parts.retry,
        status: Arc::clone(status),
        clock: Arc::clone(&parts.clock),
        holding,
        failures: 0,
        failing_since: None,
    };
    // A run that fails still lets what is sealed go out; a journal that fails stops the run too.
    let run_shutdown = control.shutdown.child();
    let (sealed, to_deliver) = mpsc::channel(SEALED_AHEAD_MAX - 1);
    let ahead = Ahead::new(opened.unacked.len());
    let runtime = tokio::runtime::Handle::current();
    let sealer = Box::new(Sealer {
        journal: lane.clone(),
        transforms: Transforms::new(
            parts.transforms.clone(),
            Arc::clone(&parts.subjects),
            Arc::clone(&place),
            opened.plugin_state.clone(),
            Arc::clone(status),
            Arc::clone(&parts.clock),
            run_shutdown.clone(),
        ),
        output: Output::new(lane.clone(), runtime.clone(), parts.sink.partition_by()),
        sink: Arc::clone(&parts.sink),
        place: Arc::clone(&place),
        transform_names: parts.transforms.iter().map(|t| t.config.id.to_string()).collect(),
        epoch: parts.epoch,
        next_batch: opened.next_batch,
        clock: Arc::clone(&parts.clock),
        time: SteadyTime::default(),
        letters: seal::LettersSaid::default(),
        runtime,
    });
    let gather = Gather {
        head: lane.head(),
        next: opened.sealed_seq.next(),
        waited_for: lane.head().borrow().seq,
        bytes_before: 0,
        batch: parts.batch,
        drain: control.drain.clone(),
        pace: lane.pace(),
        lane: lane.clone(),
    };
    status.opened();
    let run = run_and_seal(sealer, gather, held, sealed, &ahead, status, &run_shutdown);
    let deliver = async {
        let deliver =
            deliver_and_ack(deliverer, lane, opened, place, to_deliver, &ahead, &control.shutdown);
        let end = deliver.await;
        run_shutdown.request();
        end
    };
    let (ran, end) = tokio::join!(run, deliver);
    ran?;
    end
}

/// The lane's way to its destination, with what it remembers.
fn make_sink(
    parts: &LaneParts,
    lane: &LaneJournal,
    opened: &OpenedLane,
    status: &LaneStatus,
) -> Box<dyn Sink> {
    let mut sink = parts.sink.build();
    sink.remember(Arc::new(LaneMemory::new(lane.clone(), opened.sink_note.clone())));
    status.throttled_by(sink.throttle());
    sink
}

/// Seals batches ahead of their delivery, until nothing more will come or the lane is asked to stop.
async fn run_and_seal(
    mut sealer: Box<Sealer>,
    mut gather: Gather,
    mut held: watch::Receiver<bool>,
    sealed: mpsc::Sender<(SealedRun, PendingSeal)>,
    ahead: &Ahead,
    status: &LaneStatus,
    shutdown: &Shutdown,
) -> Result<(), LaneError> {
    loop {
        let range = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            range = async {
                // A place among the batches sealed ahead, and a lane that does not hold.
                let place = sealed.reserve().await.ok()?;
                ahead.has_room(&mut gather.pace).await?;
                held.wait_for(|holds| !holds).await.ok()?;
                let range = gather.next_range().await?;
                drop(place);
                Some(range)
            } => range,
        };
        let Some(range) = range else { return Ok(()) };
        let ran = tokio::task::spawn_blocking(move || {
            let result = sealer.run(range);
            (sealer, result)
        });
        let (returned, result) = ran.await.map_err(|error| LaneError::Broken(error.to_string()))?;
        sealer = returned;
        let (run, pending) = match result {
            Err(LaneError::Interrupted) => return Ok(()),
            result => result?,
        };
        gather.took(run.batch.last_seq);
        ahead.sealed(run.stored_bytes);
        status.sealed();
        // The receiver is gone only when the session ends.
        if sealed.send((run, pending)).await.is_err() {
            return Ok(());
        }
    }
}

/// Delivers batches in order and acks each: first those of earlier runs, then what is sealed now.
async fn deliver_and_ack(
    mut deliverer: Deliverer,
    lane: LaneJournal,
    opened: OpenedLane,
    place: Arc<LanePlace>,
    mut to_deliver: mpsc::Receiver<(SealedRun, PendingSeal)>,
    ahead: &Ahead,
    shutdown: &Shutdown,
) -> Result<LaneEnd, LaneError> {
    let mut waiting = opened.unacked.into_iter();
    loop {
        let (SealedRun { batch, stored_bytes }, earlier) = match waiting.next() {
            Some(batch) => (SealedRun { batch, stored_bytes: 0 }, true),
            None => match to_deliver.recv().await {
                Some((run, pending)) => {
                    pending.durable().await?;
                    (run, false)
                }
                None if shutdown.is_requested() => return Ok(LaneEnd::Stopped),
                None => return Ok(LaneEnd::Drained),
            },
        };
        // One without output was acked with its seal.
        if batch.records == 0 {
            ahead.acked(stored_bytes);
            continue;
        }
        let number = batch.number;
        let sealed = sealed_batch(batch, earlier, &lane, &place);
        if deliverer.deliver(&sealed, shutdown).await.is_none() {
            let asked = shutdown.is_requested();
            return Ok(if asked { LaneEnd::Stopped } else { LaneEnd::Over });
        }
        lane.ack(number).await?;
        ahead.acked(stored_bytes);
    }
}

fn sealed_batch(
    batch: StoredBatch,
    earlier: bool,
    lane: &LaneJournal,
    place: &Arc<LanePlace>,
) -> SealedBatch {
    SealedBatch {
        facts: BatchFacts {
            place: Arc::clone(place),
            epoch: batch.epoch,
            number: batch.number,
            first_seq: batch.first_seq,
            last_seq: batch.last_seq,
            sealed_at: batch.sealed_at,
            records: batch.records,
            partitions: Vec::new(),
        },
        fixed: batch.fixed.as_str().into(),
        sha256: batch.sha256,
        earlier,
        content: Arc::new(StoredContent { lane: lane.clone(), batch }),
    }
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

/// Decides when a batch has enough records.
struct Gather {
    head: watch::Receiver<Head>,
    next: Seq,
    /// Records up to this one were there when the session began: they have lingered long enough.
    waited_for: Seq,
    /// Bytes appended in this run before the next record, as far as known.
    bytes_before: u64,
    batch: BatchConfig,
    drain: watch::Receiver<bool>,
    pace: watch::Receiver<Pace>,
    lane: LaneJournal,
}

impl Gather {
    /// Waits for the next range; `None` when the lane drains and nothing is left.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    async fn next_range(&mut self) -> Option<Range> {
        loop {
            // What a policy has given up is stepped over.
            self.next = self.next.max(self.lane.floor().next());
            let draining = *self.drain.borrow_and_update();
            if self.head.borrow_and_update().seq >= self.next {
                break;
            }
            if draining {
                return None;
            }
            tokio::select! {
                changed = self.head.changed() => changed.ok()?,
                changed = self.drain.changed() => changed.ok()?,
            }
        }
        let linger = tokio::time::sleep(self.batch.linger);
        tokio::pin!(linger);
        while !self.is_enough() {
            tokio::select! {
                () = &mut linger => break,
                changed = self.head.changed() => changed.ok()?,
                changed = self.drain.changed() => changed.ok()?,
                changed = self.pace.changed() => changed.ok()?,
            }
        }
        let head = self.head.borrow().seq;
        let last = self.next.plus(u64::from(self.batch.records_max)).before().min(head);
        let bytes_max = self.batch.bytes_max.0.min(self.pace.borrow().batch_bytes_max);
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Some(Range { first: self.next, last, bytes_max })
    }

    fn is_enough(&self) -> bool {
        let head = *self.head.borrow();
        *self.drain.borrow()
            || self.next <= self.waited_for
            || self.pace.borrow().tight
            || head.seq.0 + 1 - self.next.0 >= u64::from(self.batch.records_max)
            || head.bytes - self.bytes_before >= self.batch.bytes_max.0
    }

    fn took(&mut self, last: Seq) {
        let head = *self.head.borrow();
        let before = head.seq.0 + 1 - self.next.0;
        let left = head.seq.0 - last.0;
        // What is left is taken to be of the same size as what was taken.
        let bytes = head.bytes.saturating_sub(self.bytes_before);
        let bytes_left = u128::from(bytes) * u128::from(left) / u128::from(before.max(1));
        self.bytes_before = head.bytes - u64::try_from(bytes_left).unwrap_or(0).min(head.bytes);
        self.next = last.next();
    }
}
