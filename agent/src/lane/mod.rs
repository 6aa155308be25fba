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
//! # When a delivery fails
//!
//! The sink says what it saw, in one of four classes; what is done about it is decided here (`retry.rs`, `deliver.rs`):
//!
//! - *unreachable*: hold and probe, for ever if need be. So is what may be an outage (502 to 504, silence), as long as the sink
//!   has not served another lane meanwhile.
//! - *retryable*: the same batch again. Answers spend `retry.budget`; then the batch is cut, halves get three attempts, and a
//!   single record goes the way of `on_exhausted`.
//! - *rejected*: the records that the sink names become dead letters at the first attempt. Where it names none, the batch is cut
//!   in half, durably before a half is sent, until the record is found.
//! - *conflict*: hold, or dead letters.
//!
//! Dead letters are part of the batch's ack: without room for them nothing of it happens. When they are too large a share of
//! the recent records, the lane holds instead (`storm.rs`). What an operator may tell a lane stands in `control.rs`.
//!
//! # How
//!
//! Two halves of one task: *run and seal* works up to four batches ahead on a blocking thread, *deliver and ack* follows in
//! order. Anything that fails beyond a delivery attempt ends the session; the lane then opens itself anew from what the
//! journal holds. Lanes know nothing of each other.

mod ahead;
pub mod config;
mod content;
mod control;
mod deliver;
mod error;
mod feed;
mod memory;
mod output;
pub mod replay;
mod retry;
mod seal;
mod served;
mod stage;
pub mod status;
mod storm;
mod ticks;
mod transform;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

pub use control::{Desk, Resolution, ResolveError};
pub use error::LaneError;
pub use served::Served;
pub use stage::Transform;

use crate::backoff::{Backoff, Jitter};
use crate::clock::{SharedClock, SteadyTime};
use crate::error_chain::Chain;
use crate::journal::{
    BatchKey, Disposition, Journal, LaneJournal, LaneSpec, OpenedLane, PendingSeal, StoredBatch,
};
use crate::limits::SEALED_AHEAD_MAX;
use crate::record::batch::LanePlace;
use crate::record::id::{BatchNumber, Epoch, Seq};
use crate::record::subject::SubjectPattern;
use crate::sinks::config::{BatchConfig, GiveUp, RetryConfig};
use crate::sinks::{Sink, SinkBuilder};
use crate::tasks::Shutdown;
use ahead::Ahead;
use config::StormConfig;
use deliver::{Deliverer, Settled, holds_deliveries};
use feed::{Feed, Gather, Next};
use memory::LaneMemory;
use output::Output;
use replay::{Carried, PlanBounds, ReplayError};
use retry::Rules;
use seal::{SealedRun, Sealer};
use status::{LaneState, LaneStatus};
use storm::Breaker;
use ticks::Ticks;
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
    /// `on_conflict` of the sink.
    pub on_conflict: GiveUp,
    /// `dead_letters.storm`.
    pub storm: StormConfig,
    /// Whom the sink serves: one for each sink, shared by its lanes.
    pub served: Arc<Served>,
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
    /// Where the operator's orders for it lie.
    pub desk: Arc<Desk>,
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

/// Runs a lane until it is drained or asked to stop. A session that fails is followed by another. Whoever runs it ends its
/// desk afterwards, unless the lane goes on with other parts.
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
    control.desk.begin();
    let mut lasting = Lasting {
        breaker: Arc::new(Mutex::new(Breaker::new(parts.storm))),
        ticks: Ticks::new(&parts.transforms),
        _held_open: None,
    };
    loop {
        let ended = session(&parts, &journal, &control, &status, &mut lasting).await;
        let error = match ended {
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
                tracing::info!(reason = %Chain(&error), "Lane opens itself anew");
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
        let mut room = journal.letters_room();
        let go_on = tokio::select! {
            go_on = control.shutdown.sleep(wait) => go_on,
            () = control.desk.wanted_again() => true,
            () = control.desk.replay_ordered() => true,
            _ = room.changed(), if cause == "dead_letters" => true,
        };
        if !go_on {
            status.set(LaneState::Stopped);
            return LaneEnd::Stopped;
        }
    }
}

/// What of a lane outlasts its sessions.
struct Lasting {
    breaker: Arc<Mutex<Breaker>>,
    ticks: Ticks,
    /// The lane runs also between two of its sessions.
    _held_open: Option<LaneJournal>,
}

/// One session: from what the journal holds until the end or the first failure.
async fn session(
    parts: &LaneParts,
    journal: &Arc<Journal>,
    control: &LaneControl,
    status: &Arc<LaneStatus>,
    lasting: &mut Lasting,
) -> Result<LaneEnd, LaneError> {
    let (lane, mut opened) = journal.lane(parts.spec.clone()).await?;
    lasting._held_open = Some(lane.clone());
    let place = Arc::new(LanePlace {
        lane: opened.name.clone(),
        agent: parts.spec.agent.clone(),
        source: parts.spec.source.clone(),
        pipeline: parts.spec.pipeline.clone(),
        sink: parts.spec.sink.clone(),
    });
    if let Some(key) = control.desk.to_rename() {
        rename(parts, &lane, &place, &mut opened, &key).await?;
    }
    take_over(parts, &lane, &place, &mut opened).await?;
    let run_shutdown = control.shutdown.child();
    let mut sealer = Box::new(sealer(parts, &lane, &opened, &place, status, &run_shutdown));
    let mut replays: Vec<_> = opened.replays.drain(..).map(|batch| (batch, true)).collect();
    if replays.is_empty() {
        let made;
        (sealer, made) = take_order(parts, journal, &lane, control, status, sealer).await?;
        // What a letter was given up with may have arrived, and what waits behind it may have, too.
        replays = made.into_iter().map(|batch| (batch, true)).collect();
    }
    // One that waits with a batch goes on doing so.
    let holds = holds_deliveries(&status.state()) && !opened.unacked.is_empty();
    let (holding, held) = watch::channel(holds);
    let deliverer = Deliverer {
        sink: make_sink(parts, &lane, &place, &opened, status),
        builder: Arc::clone(&parts.sink),
        rules: Rules { retry: parts.retry, on_conflict: parts.on_conflict },
        lane: lane.clone(),
        place: Arc::clone(&place),
        status: Arc::clone(status),
        clock: Arc::clone(&parts.clock),
        holding,
        desk: Arc::clone(&control.desk),
        pauses: control.desk.pauses(),
        breaker: Arc::clone(&lasting.breaker),
        served: Arc::clone(&parts.served),
        served_here: 0,
        failures: 0,
        failing_since: None,
        outside: None,
        shutdown: control.shutdown.clone(),
    };
    // A run that fails still lets what is sealed go out; a journal that fails stops the run too.
    let (sealed, to_deliver) = mpsc::channel(SEALED_AHEAD_MAX - 1);
    let ahead = Ahead::new(opened.unacked.len() + replays.len());
    let gather = Gather::new(lane, opened.sealed_seq, parts.batch, control);
    status.opened();
    let feed = Feed { gather, ticks: &mut lasting.ticks, held };
    let run = run_and_seal(sealer, feed, sealed, &ahead, status, &run_shutdown);
    let deliver = async {
        let queue = waiting(replays, &mut opened);
        let end = deliver_and_ack(deliverer, opened.sealed_seq, queue, to_deliver, &ahead).await;
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
    place: &Arc<LanePlace>,
    opened: &OpenedLane,
    status: &LaneStatus,
) -> Box<dyn Sink> {
    let mut sink = parts.sink.build();
    let state = opened.plugin_state.get(deliver::SINK_COMPONENT).into_iter().flatten();
    let state = state.map(|(key, value)| (key.clone(), value.as_slice().into()));
    sink.join(place, state.collect());
    sink.remember(Arc::new(LaneMemory::new(lane.clone(), opened.sink_note.clone())));
    status.throttled_by(sink.throttle());
    sink
}

fn sealer(
    parts: &LaneParts,
    lane: &LaneJournal,
    opened: &OpenedLane,
    place: &Arc<LanePlace>,
    status: &Arc<LaneStatus>,
    shutdown: &Shutdown,
) -> Sealer {
    Sealer {
        journal: lane.clone(),
        transforms: Transforms::new(
            parts.transforms.clone(),
            Arc::clone(&parts.subjects),
            Arc::clone(place),
            opened.plugin_state.clone(),
            Arc::clone(status),
            Arc::clone(&parts.clock),
            shutdown.clone(),
        ),
        output: Output::new(
            lane.clone(),
            tokio::runtime::Handle::current(),
            parts.sink.partition_by(),
        ),
        sink: Arc::clone(&parts.sink),
        place: Arc::clone(place),
        transform_names: parts.transforms.iter().map(|t| t.config.id.to_string()).collect(),
        epoch: parts.epoch,
        next_batch: opened.next_batch,
        clock: Arc::clone(&parts.clock),
        time: SteadyTime::default(),
        status: Arc::clone(status),
        runtime: tokio::runtime::Handle::current(),
    }
}

/// Makes what a sink of another kind has sealed ready for this one.
async fn take_over(
    parts: &LaneParts,
    lane: &LaneJournal,
    place: &Arc<LanePlace>,
    opened: &mut OpenedLane,
) -> Result<(), LaneError> {
    for index in 0..opened.unacked.len() {
        let batch = &opened.unacked[index];
        if batch.records > 0 && !parts.sink.takes(&batch.fixed) {
            let key = BatchKey::from(batch);
            tracing::warn!(batch = %batch.number, "A sink of another kind has sealed the batch, it is made ready for this one");
            rename(parts, lane, place, opened, &key).await?;
        }
    }
    Ok(())
}

/// Gives a batch the next number of this run, and all that follows from it: one that the destination holds other content for,
/// or that another kind of sink has sealed.
async fn rename(
    parts: &LaneParts,
    lane: &LaneJournal,
    place: &Arc<LanePlace>,
    opened: &mut OpenedLane,
    key: &BatchKey,
) -> Result<(), LaneError> {
    let batch = opened.unacked.iter_mut().find(|batch| BatchKey::from(&**batch) == *key);
    let Some(batch) = batch else { return Ok(()) };
    let (epoch, number) = (parts.epoch, opened.next_batch);
    let suffix = String::new();
    batch.variant.shown = Some(crate::journal::Shown { epoch, number, suffix });
    let mut facts = content::facts(batch, place);
    if let Some(by) = parts.sink.partition_by() {
        let (batch, lane) = (batch.clone(), lane.clone());
        let read = tokio::task::spawn_blocking(move || content::partitions(&batch, &lane, by));
        facts.partitions = read.await.map_err(|error| LaneError::Broken(error.to_string()))??;
    }
    let fixed = parts.sink.fix(&facts);
    let fixed = fixed.map_err(|source| LaneError::Fix { batch: number, source })?;
    batch.fixed = fixed.to_string();
    lane.rename(batch, epoch, number, batch.fixed.clone()).await?;
    opened.next_batch = BatchNumber(number.0 + 1);
    Ok(())
}

/// Seals batches ahead of their delivery, until nothing more will come or the lane is asked to stop.
async fn run_and_seal(
    mut sealer: Box<Sealer>,
    mut feed: Feed<'_>,
    sealed: mpsc::Sender<(SealedRun, PendingSeal)>,
    ahead: &Ahead,
    status: &LaneStatus,
    shutdown: &Shutdown,
) -> Result<(), LaneError> {
    loop {
        let next = tokio::select! {
            () = shutdown.requested() => return Ok(()),
            next = async {
                // A place among the batches sealed ahead, and a lane that does not hold.
                let place = sealed.reserve().await.ok()?;
                ahead.has_room(&mut feed.gather.pace).await?;
                feed.held.wait_for(|holds| !holds).await.ok()?;
                let next = feed.next().await?;
                drop(place);
                Some(next)
            } => next,
        };
        let Some(next) = next else { return Ok(()) };
        let ran = tokio::task::spawn_blocking(move || {
            let result = match next {
                Next::Range(range) => sealer.run(range).map(Some),
                Next::Tick { stage, sealed, .. } => sealer.tick(stage, sealed),
            };
            (sealer, result)
        });
        let (returned, result) = ran.await.map_err(|error| LaneError::Broken(error.to_string()))?;
        sealer = returned;
        let made = match result {
            Err(LaneError::Interrupted) => return Ok(()),
            result => result?,
        };
        feed.done(next, made.as_ref().map(|(run, _)| run.batch.last_seq));
        // What keeps the lane from delivering is not over with a seal.
        if !*feed.held.borrow() {
            status.sealed();
        }
        let Some((run, pending)) = made else { continue };
        ahead.sealed(run.stored_bytes);
        // The receiver is gone only when the session ends.
        if sealed.send((run, pending)).await.is_err() {
            return Ok(());
        }
    }
}

/// A batch or half on its way out, and what its going gives back of the journal.
struct Piece {
    batch: StoredBatch,
    stored_bytes: u64,
    /// Something of it may have been sent before.
    earlier: bool,
}

/// Seals what an order asks for, if there is one.
async fn take_order(
    parts: &LaneParts,
    journal: &Arc<Journal>,
    lane: &LaneJournal,
    control: &LaneControl,
    status: &LaneStatus,
    mut sealer: Box<Sealer>,
) -> Result<(Box<Sealer>, Vec<StoredBatch>), LaneError> {
    let Some((selection, answer)) = control.desk.to_replay() else {
        return Ok((sealer, Vec::new()));
    };
    let bounds = PlanBounds::new(parts.batch, *lane.pace().borrow());
    let (before, journal) = (status.state(), Arc::clone(journal));
    let ran = tokio::task::spawn_blocking(move || {
        let done = sealer.replay(&selection, &journal, bounds);
        (sealer, done)
    });
    let (sealer, done) = ran.await.map_err(|error| LaneError::Broken(error.to_string()))?;
    // Looking for a record that a plugin breaks down on has said so.
    status.set(before);
    // Whoever asked may have given up waiting; what is sealed goes out all the same.
    match done {
        Ok(Carried { replayed, batches, ended }) => {
            let _unheard = answer.send(Ok(replayed));
            ended.map_or(Ok((sealer, batches)), Err)
        }
        Err(error) => {
            let _unheard = answer.send(Err(ReplayError::Failed(Chain(&error).to_string())));
            Err(error)
        }
    }
}

/// What waits when a session begins: replays, and then what earlier sessions have left in the order.
fn waiting(replays: Vec<(StoredBatch, bool)>, opened: &mut OpenedLane) -> VecDeque<Piece> {
    let unacked = opened.unacked.drain(..).map(|batch| (batch, true));
    let pieces = replays.into_iter().chain(unacked);
    pieces.map(|(batch, earlier)| Piece { batch, stored_bytes: 0, earlier }).collect()
}

/// Settles batches: replays, then in their order those of earlier sessions and what is sealed now.
async fn deliver_and_ack(
    mut deliverer: Deliverer,
    sealed_seq: Seq,
    mut queue: VecDeque<Piece>,
    mut to_deliver: mpsc::Receiver<(SealedRun, PendingSeal)>,
    ahead: &Ahead,
) -> Result<LaneEnd, LaneError> {
    let desk = Arc::clone(&deliverer.desk);
    let first = queue.iter().find(|piece| !piece.batch.variant.replay);
    desk.settled(first.map_or(sealed_seq, |piece| piece.batch.first_seq.before()));
    if queue.front().is_some_and(|piece| piece.batch.variant.replay) {
        deliverer.begin_outside();
    }
    loop {
        if !queue.front().is_some_and(|piece| piece.batch.variant.replay) {
            deliverer.end_outside(!queue.is_empty());
        }
        let Piece { batch, stored_bytes, earlier } = match queue.pop_front() {
            Some(piece) => piece,
            None => match next_sealed(&mut deliverer, &mut to_deliver).await? {
                Some((SealedRun { batch, stored_bytes }, pending)) => {
                    pending.durable().await?;
                    Piece { batch, stored_bytes, earlier: false }
                }
                None if deliverer.shutdown.is_requested() => return Ok(LaneEnd::Stopped),
                None => return Ok(LaneEnd::Drained),
            },
        };
        // One without output was acked with its seal.
        let settled = if batch.records == 0 {
            Settled::Done
        } else {
            deliverer.settle(&batch, earlier).await?
        };
        match settled {
            Settled::Done => {
                ahead.acked(stored_bytes);
                if batch.variant.replay {
                    continue;
                }
                if desk.wants_replay() {
                    return Err(LaneError::Ordered);
                }
                if queue.front().is_none_or(|next| next.batch.number != batch.number) {
                    desk.settled(batch.last_seq);
                }
            }
            Settled::Cut(halves) => {
                let [first, second] = *halves;
                ahead.cut();
                queue.push_front(Piece { batch: second, stored_bytes, earlier: true });
                queue.push_front(Piece { batch: first, stored_bytes: 0, earlier: true });
            }
            Settled::Ordered => return Err(LaneError::Ordered),
            Settled::Stopped => return Ok(LaneEnd::Stopped),
            Settled::Over => return Ok(LaneEnd::Over),
        }
    }
}

/// The next batch that was sealed, when the lane is not paused. `None` when none will come.
async fn next_sealed(
    deliverer: &mut Deliverer,
    to_deliver: &mut mpsc::Receiver<(SealedRun, PendingSeal)>,
) -> Result<Option<(SealedRun, PendingSeal)>, LaneError> {
    let desk = Arc::clone(&deliverer.desk);
    loop {
        if !deliverer.unpaused().await {
            return Ok(None);
        }
        tokio::select! {
            sealed = to_deliver.recv() => return Ok(sealed),
            () = desk.replay_wanted() => return Err(LaneError::Ordered),
            () = deliverer.pause_changed() => {}
        }
    }
}
