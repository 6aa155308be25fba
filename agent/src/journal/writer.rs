//! The single writer: one thread, one connection, group commit. *When is data safe?* Here, after `COMMIT`.
//!
//! 1. Take operations from a bounded queue until it is empty or the transaction is full.
//! 2. Apply them in one IMMEDIATE transaction; records of one stream become as few chunks as fit.
//! 3. COMMIT, which syncs.
//! 4. Only then answer whoever waits, and publish the new heads to the lanes.
//!
//! When anything of a group fails, nothing of it is acknowledged, the state is read anew, and the sessions of all streams and
//! lanes in it end: what was queued behind a failed append must not become durable without it. `reopen.rs` has what an I/O
//! error asks for beyond that.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::appender::{Append, SharedError};
use super::apply::Group;
use super::chunk::Encoder;
use super::error::JournalError;
use super::gaps::{Damage, LoseOperation};
use super::high_water::{HighWater, Marks};
use super::lane_orders::LaneOperation;
use super::lanes::{LaneSpec, OpenedLane, PartOperation, SealOperation};
use super::letters::{DiscardOperation, LettersQuota, LettersRoom};
use super::notes::NoteOperation;
use super::open::DirectoryLock;
use super::outcome::{AckOperation, CutOperation, RenameOperation};
use super::quota::{Admission, GivenUp, Pace, Quota};
use super::reader::{HotTail, Readers};
use super::reopen::Trouble;
use super::replay::ReplayOperation;
use super::snapshot::Snapshot;
use super::state::State;
use super::wear::WearMeter;
use crate::clock::{ClockQuality, Monotonic, SharedClock, Timestamp};
use crate::limits::{
    ACK_DELAY_MS_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_OPERATIONS_MAX, WRITER_QUEUE_BYTES_MAX,
    WRITER_QUEUE_OPERATIONS_MAX,
};
use crate::record::id::{Epoch, LaneNumber, Seq, SourceId, StreamNumber};

/// How often the high-water file and the snapshot are renewed, at most.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);
/// The pause between two looks of a writer that has nothing to do: each one wakes the machine.
const REST: Duration = Duration::from_secs(10);
/// Waits after a failed group, so that a full disk is not asked a thousand times a second.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

type Reply<T> = oneshot::Sender<Result<T, JournalError>>;

/// An append on its way through the queue.
#[derive(Debug)]
pub(super) struct AppendOperation {
    pub(super) stream: StreamNumber,
    pub(super) session: u64,
    pub(super) append: Append,
    /// Whether it waits while the journal is full, where `on_full` has appends wait.
    pub(super) waits: bool,
    pub(super) wall: Timestamp,
    pub(super) quality: ClockQuality,
    pub(super) monotonic: Monotonic,
    /// Its share of the queue's room, kept until it is applied or refused.
    pub(super) _room: Option<OwnedSemaphorePermit>,
    pub(super) reply: Reply<()>,
}

/// What an opened stream tells its appender.
#[derive(Debug)]
pub(super) struct OpenedStream {
    pub(super) number: StreamNumber,
    pub(super) session: u64,
    pub(super) positions: std::collections::BTreeMap<String, Vec<u8>>,
}

/// Everything that changes the journal.
#[derive(Debug)]
pub(super) enum Operation {
    Append(AppendOperation),
    OpenStream { source: SourceId, reply: Reply<OpenedStream> },
    OpenLane { spec: LaneSpec, runs: Weak<()>, reply: Reply<OpenedLane> },
    Part(PartOperation),
    DiscardParts { lane: LaneNumber, session: u64 },
    Seal(Box<SealOperation>),
    Ack(Box<AckOperation>),
    Cut(Box<CutOperation>),
    Rename(Box<RenameOperation>),
    Replay(Box<ReplayOperation>),
    DiscardLetters(DiscardOperation),
    Lose(LoseOperation),
    Lane(LaneOperation),
    Note(NoteOperation),
    PutCompiled { key: String, sha256: [u8; 32], reply: Reply<()> },
    Stop { reply: Reply<()> },
}

impl Operation {
    /// Whether it may wait for a transaction that something else needs.
    fn can_wait(&self) -> bool {
        match self {
            Self::Ack(ack) => ack.can_wait(),
            Self::Note(note) => note.reply.is_none(),
            _ => false,
        }
    }
}

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// Its newest durable record.
    pub seq: Seq,
    /// Bytes of frames appended since this run began.
    pub bytes: u64,
}

/// What the writer tells everybody else.
pub(super) struct Published {
    pub(super) hot: HotTail,
    pub(super) heads: std::sync::Mutex<HashMap<StreamNumber, watch::Sender<Head>>>,
    pub(super) snapshot: watch::Sender<Arc<Snapshot>>,
    pub(super) admission: watch::Sender<Admission>,
    pub(super) pace: watch::Sender<Pace>,
    pub(super) letters: watch::Sender<LettersRoom>,
    pub(super) floors: std::sync::Mutex<HashMap<LaneNumber, Seq>>,
    pub(super) closing: std::sync::atomic::AtomicBool,
    pub(super) damage: Damage,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}

impl Published {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            hot: HotTail::default(),
            heads: std::sync::Mutex::default(),
            snapshot: watch::channel(Arc::default()).0,
            admission: watch::channel(Admission::default()).0,
            pace: watch::channel(Pace::default()).0,
            letters: watch::channel(LettersRoom::default()).0,
            floors: std::sync::Mutex::default(),
            closing: std::sync::atomic::AtomicBool::new(false),
            damage: Damage::in_directory(directory),
        }
    }

    /// The head of a stream, now and later.
    pub(super) fn head(&self, stream: StreamNumber) -> watch::Receiver<Head> {
        let mut heads = self.heads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        heads.entry(stream).or_insert_with(|| watch::channel(Head::default()).0).subscribe()
    }

    /// The heads that were published as durable.
    pub(super) fn durable(&self) -> Vec<(StreamNumber, Seq)> {
        let heads = self.heads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        heads.iter().map(|(stream, head)| (*stream, head.borrow().seq)).collect()
    }

    /// The last record that a policy has moved a lane past in this run.
    pub(super) fn floor(&self, lane: LaneNumber) -> Seq {
        let floors = self.floors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        floors.get(&lane).copied().unwrap_or_default()
    }

    pub(super) fn move_floor(&self, lane: LaneNumber, seq: Seq) {
        let mut floors = self.floors.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        floors.insert(lane, seq);
    }

    fn publish_head(&self, stream: StreamNumber, seq: Seq, bytes: u64) {
        let mut heads = self.heads.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sender = heads.entry(stream).or_insert_with(|| watch::channel(Head::default()).0);
        sender.send_modify(|head| *head = Head { seq, bytes: head.bytes + bytes });
    }
}

struct Queued {
    operation: Operation,
    bytes: usize,
    room: OwnedSemaphorePermit,
}

/// The way to the writer. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct WriterHandle {
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
    /// Appends have their own room: those that wait for space must not keep a seal or an ack out.
    append_room: Arc<Semaphore>,
}

impl Queued {
    /// The operation; an append takes its room along.
    fn taken(self) -> Operation {
        match self.operation {
            Operation::Append(append) => {
                Operation::Append(AppendOperation { _room: Some(self.room), ..append })
            }
            other => other,
        }
    }
}

impl fmt::Debug for Queued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.operation.fmt(f)
    }
}

impl WriterHandle {
    /// Queues an operation that holds `bytes`, waiting for room.
    pub(super) async fn send(
        &self,
        operation: Operation,
        bytes: usize,
    ) -> Result<(), JournalError> {
        // In KiB, so that the count fits; the largest record takes all the room there is.
        let kibibytes = (bytes / 1024 + 1).min(WRITER_QUEUE_BYTES_MAX / 1024);
        let kibibytes = u32::try_from(kibibytes).expect("the queue is a few thousand KiB");
        let is_append = matches!(operation, Operation::Append(_));
        let room = if is_append { &self.append_room } else { &self.room };
        let room = Arc::clone(room).acquire_many_owned(kibibytes).await;
        let room = room.map_err(|_| JournalError::Closed)?;
        let queued = Queued { operation, bytes, room };
        self.queue.send(queued).await.map_err(|_| JournalError::Closed)
    }

    /// Waits until the writer is gone.
    pub(super) async fn closed(&self) {
        self.queue.closed().await;
    }

    /// Queues a small operation and waits for its answer, which comes after the commit.
    pub(super) async fn ask<T>(
        &self,
        operation: impl FnOnce(Reply<T>) -> Operation,
    ) -> Result<T, JournalError> {
        let (reply, answer) = oneshot::channel();
        self.send(operation(reply), 0).await?;
        answer.await.unwrap_or(Err(JournalError::Closed))
    }
}

/// Everything the writer thread owns.
pub(super) struct Writer {
    /// `None` while a transaction borrows it, and while the journal is held.
    pub(super) connection: Option<Connection>,
    pub(super) path: PathBuf,
    pub(super) state: State,
    pub(super) sessions: HashMap<Session, u64>,
    /// Lanes that were opened: gone when nobody has them open any more.
    pub(super) running: HashMap<LaneNumber, Weak<()>>,
    pub(super) encoder: Encoder,
    pub(super) epoch: Epoch,
    pub(super) boot: [u8; 16],
    pub(super) clock: SharedClock,
    pub(super) published: Arc<Published>,
    pub(super) commit_interval: Duration,
    pub(super) trouble: Trouble,
    pub(super) wear: WearMeter,
    pub(super) high_water: HighWater,
    pub(super) last_commit: Monotonic,
    pub(super) last_housekeeping: Option<Monotonic>,
    pub(super) dirty: bool,
    pub(super) quota: Quota,
    pub(super) letters: LettersQuota,
    pub(super) readers: Arc<Readers>,
    /// Nobody else opens the directory before this thread has closed the database.
    pub(super) _lock: DirectoryLock,
}

/// Whose operations end together when one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Session {
    Stream(StreamNumber),
    Lane(LaneNumber),
}

/// A queue to a writer that is yet to be started.
pub(super) fn queue() -> (WriterHandle, WriterQueue) {
    let (sender, receiver) = mpsc::channel(WRITER_QUEUE_OPERATIONS_MAX);
    let room = Arc::new(Semaphore::new(WRITER_QUEUE_BYTES_MAX / 1024));
    let append_room = Arc::new(Semaphore::new(WRITER_QUEUE_BYTES_MAX / 1024));
    (WriterHandle { queue: sender, room, append_room }, WriterQueue(receiver))
}

/// The writer's end of the queue.
pub(super) struct WriterQueue(mpsc::Receiver<Queued>);

impl Writer {
    /// Runs until it is told to stop or all handles are gone; then the WAL is checkpointed and the database closed.
    pub(super) fn run(mut self, mut queue: WriterQueue) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let Ok(runtime) = runtime else {
            tracing::error!("Journal writer has no timer, the journal is closed");
            return;
        };
        for stream in self.state.streams.keys() {
            self.published.publish_head(*stream, self.head(*stream), 0);
        }
        let mut stop = None;
        while stop.is_none() {
            let operations = runtime.block_on(collect(&mut queue.0, &self));
            let Some(operations) = operations else { break };
            self.wait_for_interval();
            let commits = self.wear.commits();
            stop = self.commit_group(operations);
            self.checkpoint_if_due(self.wear.commits() != commits);
            self.claim_ballast();
            self.look_for_room();
            self.shrink_when_worth_it();
            self.housekeeping(queue.0.is_empty());
        }
        queue.0.close();
        for append in std::mem::take(&mut self.quota.waiting) {
            super::apply::refuse(Operation::Append(append), JournalError::Closed);
        }
        // Whoever still waits in the queue hears that the journal is closed.
        drop(queue);
        let closed = self.close();
        if let Some(reply) = stop {
            // The one who asked may have given up waiting.
            let _unheard = reply.send(closed);
        }
    }

    pub(super) fn head(&self, stream: StreamNumber) -> Seq {
        self.state.streams.get(&stream).map_or(Seq(0), |stream| Seq(stream.next_seq.0 - 1))
    }

    /// Whether somebody has a lane open, and delivers what it has sealed.
    pub(super) fn runs(&self, lane: LaneNumber) -> bool {
        self.running.get(&lane).is_some_and(|runs| runs.strong_count() > 0)
    }

    /// A journal that is held has nothing to do by itself.
    fn has_deletes_left(&self) -> bool {
        self.connection.is_some() && self.state.streams.values().any(|stream| stream.deletes_left)
    }

    /// Whether there is nothing to do that nobody asks for, now and while nothing is committed.
    fn is_at_rest(&self) -> bool {
        let Quota { full, ballast, max_age, checkpointer, .. } = &self.quota;
        self.connection.is_some()
            && !self.dirty
            && full.is_none()
            && ballast.lacking() == 0
            && max_age.is_none()
            && !checkpointer.is_blocked()
            && !self.quota.is_volume_short()
            && self.has_looked_idly()
    }

    /// `journal.commit_interval`: the wear knob.
    fn wait_for_interval(&self) {
        let since = self.clock.monotonic().since(self.last_commit);
        if let Some(wait) = self.commit_interval.checked_sub(since) {
            std::thread::sleep(wait);
        }
    }

    /// Applies and commits; answers everybody; returns the reply of a stop.
    fn commit_group(&mut self, operations: Vec<Operation>) -> Option<Reply<()>> {
        let mut group = Group::default();
        let mut stop = None;
        let mut rest = VecDeque::with_capacity(operations.len());
        for operation in operations {
            match operation {
                Operation::Stop { reply } => stop = Some(reply),
                operation => rest.push_back(operation),
            }
        }
        let has_work =
            !rest.is_empty() || self.has_aged() || self.quota.has_work() || self.has_deletes_left();
        if !has_work {
            return stop;
        }
        if let Err(error) = self.ready() {
            self.refuse_rest(rest, &error);
            return stop;
        }
        // Taken out for the transaction, so that the rest of the writer can be changed along with it.
        let Some(connection) = self.connection.take() else { return stop };
        let letters = (self.letters.clone(), self.quota.letters_block);
        let result = self.transact(&connection, &mut group, &mut rest);
        self.connection = Some(connection);
        self.last_commit = self.clock.monotonic();
        match result {
            Ok(took) => {
                self.wear.committed(took);
                self.tell_given_up();
                self.publish_letters();
                self.dirty = true;
                self.trouble.is_over();
                for (stream, block) in group.committed_chunks() {
                    let bytes = block.bytes.len() as u64;
                    self.wear.appended(bytes);
                    let last = Seq(block.first_seq.0 + u64::from(block.count) - 1);
                    self.published.hot.push(stream, block);
                    self.published.publish_head(stream, last, bytes);
                }
                group.answer_all();
            }
            Err(error) => {
                let is_full = error.is_full();
                self.quota.giving_up = GivenUp::default();
                // Who waits for room still does.
                (self.letters, self.quota.letters_block) = letters;
                self.publish_room();
                self.group_failed(group, rest, error);
                if is_full {
                    self.met_full();
                }
            }
        }
        stop
    }

    /// Returns how long the commit took.
    fn transact(
        &mut self,
        connection: &Connection,
        group: &mut Group,
        rest: &mut VecDeque<Operation>,
    ) -> Result<Duration, JournalError> {
        let path = self.path.clone();
        let failed = |source| JournalError::sqlite(&path, "committing", source);
        let transaction = self.begin(connection)?;
        self.admit(&transaction, rest)?;
        while let Some(operation) = rest.pop_front() {
            self.apply(&transaction, group, operation)?;
        }
        self.finish(&transaction, group)?;
        self.expire(&transaction)?;
        let begun = self.clock.monotonic();
        transaction.commit().map_err(failed)?;
        Ok(self.clock.monotonic().since(begun))
    }

    /// Nothing of the group is believed: the state is what the database says, and the sessions of the group end.
    fn group_failed(&mut self, group: Group, rest: VecDeque<Operation>, error: JournalError) {
        self.published.damage.note(&error);
        let error: SharedError = Arc::new(error);
        tracing::error!(
            error = %crate::error_chain::Chain(&*error),
            operations = group.len() + rest.len(),
            "Journal commit failed, nothing of it is acknowledged"
        );
        for session in group.sessions() {
            *self.sessions.entry(session).or_default() += 1;
        }
        // The files first, so that whoever hears of it and comes back finds them in order.
        self.recover(&error);
        group.refuse_all(&error);
        self.refuse_rest(rest, &error);
        std::thread::sleep(FAILURE_PAUSE);
    }

    /// Refuses what was not applied, and ends its sessions: nothing behind it may become durable without it.
    fn refuse_rest(&mut self, rest: VecDeque<Operation>, error: &SharedError) {
        for operation in rest {
            if let Some(session) = session_of(&operation) {
                *self.sessions.entry(session).or_default() += 1;
            }
            super::apply::refuse(operation, JournalError::Group(Arc::clone(error)));
        }
    }

    /// Renews what others see of the journal: at once when there is nothing else to do, once a second under load.
    fn housekeeping(&mut self, idle: bool) {
        // While the journal is held, its state holds what was not committed.
        if self.connection.is_none() {
            return;
        }
        let now = self.clock.monotonic();
        let due = self.last_housekeeping.is_none_or(|last| now.since(last) >= HOUSEKEEPING_EVERY);
        if self.dirty && due {
            self.wear.look();
        }
        if self.dirty && (idle || due) {
            self.published.snapshot.send_replace(Arc::new(self.snapshot()));
        }
        if self.dirty && due {
            self.last_housekeeping = Some(now);
            self.high_water.write(&self.marks());
            self.dirty = false;
        }
    }

    fn marks(&self) -> Marks {
        Marks::of(&self.state).with(self.wear.wear(), &self.quota.snapshot(&*self.clock))
    }

    fn close(&mut self) -> Result<(), JournalError> {
        self.ready().map_err(JournalError::Group)?;
        let Some(connection) = self.connection.take() else { return Ok(()) };
        let failed = |source| JournalError::sqlite(&self.path, "closing", source);
        let moved = self.quota.checkpointer.everything(&connection);
        self.wear.look();
        self.high_water.write(&self.marks());
        moved?;
        connection.close().map_err(|(_, source)| failed(source))?;
        let free = super::budget::volume(&self.path).map_or(0, |volume| volume.free);
        if self.quota.budget.is_scarce(free) {
            self.quota.ballast.keep_for_start(self.quota.budget.wal_extent, free);
        }
        Ok(())
    }
}

pub(super) fn session_of(operation: &Operation) -> Option<Session> {
    match operation {
        Operation::Append(append) => Some(Session::Stream(append.stream)),
        Operation::Part(part) => Some(Session::Lane(part.lane)),
        Operation::DiscardParts { lane, .. } => Some(Session::Lane(*lane)),
        Operation::Seal(seal) => Some(Session::Lane(seal.lane)),
        Operation::Ack(ack) => Some(Session::Lane(ack.lane)),
        Operation::Cut(cut) => Some(Session::Lane(cut.lane)),
        Operation::Rename(rename) => Some(Session::Lane(rename.lane)),
        Operation::Replay(replay) => Some(Session::Lane(replay.lane)),
        Operation::Lose(lose) => Some(Session::Lane(lose.lane)),
        Operation::Note(note) => Some(Session::Lane(note.lane)),
        _ => None,
    }
}

/// Takes what one transaction shall hold. Waits for something that cannot wait itself, or until the oldest that can has
/// waited long enough. `None` when all handles are gone and nothing is left; an empty list when left-over work is due.
async fn collect(queue: &mut mpsc::Receiver<Queued>, writer: &Writer) -> Option<Vec<Operation>> {
    let mut operations = Vec::new();
    let mut bytes = 0;
    let bytes_max =
        usize::try_from(writer.quota.budget.transaction).unwrap_or(TRANSACTION_BYTES_MAX);
    let mut urgent = writer.quota.has_work() || writer.has_deletes_left();
    let pause = if writer.is_at_rest() { REST } else { Duration::from_millis(ACK_DELAY_MS_MAX) };
    let mut deadline = tokio::time::Instant::now() + pause;
    while operations.len() < TRANSACTION_OPERATIONS_MAX && bytes < bytes_max {
        let next = if urgent {
            match queue.try_recv() {
                Ok(queued) => Some(queued),
                Err(_) => break,
            }
        } else {
            // With nothing in hand this is the pause for housekeeping.
            match tokio::time::timeout_at(deadline, queue.recv()).await {
                Ok(next) => next,
                Err(_) => break,
            }
        };
        let Some(queued) = next else {
            return (!operations.is_empty()).then_some(operations);
        };
        if operations.is_empty() {
            deadline = tokio::time::Instant::now() + Duration::from_millis(ACK_DELAY_MS_MAX);
        }
        urgent |= !queued.operation.can_wait();
        bytes += queued.bytes;
        operations.push(queued.taken());
    }
    Some(operations)
}
