//! How a lane is, for status, metrics and readiness. Written by the lane, read by anybody.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{Clock, Monotonic, Timestamp};
use crate::journal::LetterClass;
use crate::limits::ATTEMPTS_SHOWN_MAX;
use crate::sinks::{Class, Delivered, Throttle};

/// What a lane is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaneState {
    /// It opens itself in the journal.
    Starting,
    /// Records are moving, or there are none.
    Running,
    /// The last attempt failed; the same batch goes again after a wait.
    Retrying {
        /// Of which class the failure was.
        class: Class,
        /// What the sink saw.
        reason: String,
        /// Since when no attempt has succeeded.
        since: Timestamp,
    },
    /// It waits on purpose; nothing is lost while it does.
    Holding {
        /// One of [`HOLD_CAUSES`].
        cause: &'static str,
        /// What was seen.
        reason: String,
        /// Since when.
        since: Timestamp,
    },
    /// It delivered everything and has ended.
    Drained,
    /// It was asked to stop.
    Stopped,
}

impl LaneState {
    /// The word in status and metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Retrying { .. } => "retrying",
            Self::Holding { .. } => "holding",
            Self::Drained => "drained",
            Self::Stopped => "stopped",
        }
    }

    /// Cause (or class), reason and since when, if it does not just run.
    #[must_use]
    pub fn trouble(&self) -> Option<(&'static str, &str, Timestamp)> {
        match self {
            Self::Retrying { class, reason, since } => Some((class.as_str(), reason, *since)),
            Self::Holding { cause, reason, since } => Some((cause, reason, *since)),
            _ => None,
        }
    }
}

/// Why a lane may hold. The destination: `unreachable`. Somebody decides: `conflict`, `exhausted`, `storm`. Room is made:
/// `dead_letters`. The operator's doing: `paused`. What keeps it from sealing: `plugin`, `journal`, `name`, `internal`.
pub const HOLD_CAUSES: [&str; 10] = [
    "unreachable",
    "conflict",
    "exhausted",
    "storm",
    "dead_letters",
    "paused",
    "plugin",
    "journal",
    "name",
    "internal",
];

/// Causes of a hold that end with the next seal.
pub(super) const SEAL_CAUSES: &[&str] = &["plugin", "journal", "name", "internal", "dead_letters"];

/// Counters of one lane since this run of the agent began.
#[derive(Debug, Default)]
pub struct LaneCounters {
    /// Output records that were delivered.
    pub records_delivered: AtomicU64,
    /// Of those, how many the destination had already.
    pub records_already: AtomicU64,
    /// Bytes that went out.
    pub bytes_delivered: AtomicU64,
    /// Files that were written.
    pub files_written: AtomicU64,
    /// Records stored behind one that failed at first.
    pub records_reordered: AtomicU64,
    /// Records that were sent again though the destination may have had them.
    pub records_resent: AtomicU64,
    /// Attempts that failed, by class: unreachable, retryable, rejected, conflict.
    pub attempts_failed: [AtomicU64; 4],
    /// Calls of plugins that broke down.
    pub plugin_faults: AtomicU64,
    /// Records that a destination refused by name, while it took the others of their batch.
    pub records_refused: AtomicU64,
    /// Batches, and halves, that were cut in half.
    pub batches_cut: AtomicU64,
    /// Batches that spent their retry budget.
    pub budgets_spent: AtomicU64,
    /// Records that became dead letters at delivery, by [`LetterClass::index`].
    pub letters: [AtomicU64; 3],
    /// How often the lane began to hold, in the order of [`HOLD_CAUSES`].
    pub holds: [AtomicU64; HOLD_CAUSES.len()],
}

impl LaneCounters {
    pub(super) fn delivered(&self, delivered: &Delivered) {
        self.records_delivered.fetch_add(delivered.records, Ordering::Relaxed);
        self.records_already.fetch_add(delivered.already, Ordering::Relaxed);
        self.bytes_delivered.fetch_add(delivered.bytes, Ordering::Relaxed);
        self.files_written.fetch_add(delivered.files, Ordering::Relaxed);
        self.records_reordered.fetch_add(delivered.reordered, Ordering::Relaxed);
        self.records_resent.fetch_add(delivered.resent, Ordering::Relaxed);
    }

    pub(super) fn cut(&self) {
        self.batches_cut.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn budget_spent(&self) {
        self.budgets_spent.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that became dead letters at delivery.
    pub(super) fn gave_up(&self, class: LetterClass, records: u64, is_named: bool) {
        self.letters[class.index()].fetch_add(records, Ordering::Relaxed);
        if is_named {
            self.records_refused.fetch_add(records, Ordering::Relaxed);
        }
    }

    pub(super) fn failed(&self, class: Class) {
        self.attempts_failed[class_index(class)].fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a class stands in [`LaneCounters::attempts_failed`].
#[must_use]
pub fn class_index(class: Class) -> usize {
    match class {
        Class::Unreachable => 0,
        Class::Retryable => 1,
        Class::Rejected => 2,
        Class::Conflict => 3,
    }
}

/// The batch that a lane is sending, and how its latest attempts went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentBatch {
    /// Its identity.
    pub identity: String,
    /// Attempts of this session.
    pub attempts: u32,
    /// The latest of them, at most [`ATTEMPTS_SHOWN_MAX`], the oldest first.
    pub recent: VecDeque<Attempt>,
}

/// An attempt that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// When it began.
    pub at: Timestamp,
    /// How long it took, with the waits for a limiter.
    pub took: Duration,
    /// What the sink saw, if it failed.
    pub failure: Option<(Class, String)>,
}

/// The shared face of one lane.
#[derive(Debug)]
pub struct LaneStatus {
    state: Mutex<LaneState>,
    /// The time that earlier sessions have waited for the limiter, and the way of this one to it.
    limited: Mutex<(Duration, Throttle)>,
    batch: Mutex<Option<CurrentBatch>>,
    /// Counters.
    pub counters: LaneCounters,
    pub(super) letters_said: LettersSaid,
}

impl Default for LaneStatus {
    fn default() -> Self {
        Self {
            state: Mutex::new(LaneState::Starting),
            limited: Mutex::default(),
            batch: Mutex::default(),
            counters: LaneCounters::default(),
            letters_said: LettersSaid::default(),
        }
    }
}

/// Dead letters are said in the log once a minute at most, with their number since.
#[derive(Debug, Default)]
pub(super) struct LettersSaid(Mutex<(Option<Monotonic>, u64)>);

/// How often the log says that records went to the dead letters.
const LETTERS_SAID_EVERY: Duration = Duration::from_secs(60);

impl LettersSaid {
    /// `count` records more, the last of them this one.
    pub(super) fn say(
        &self,
        clock: &dyn Clock,
        count: u64,
        class: &str,
        record: &str,
        reason: &str,
    ) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, unsaid) = &mut *said;
        *unsaid += count;
        let now = clock.monotonic();
        if at.is_some_and(|at| now.since(at) < LETTERS_SAID_EVERY) {
            return;
        }
        tracing::warn!(
            count = *unsaid,
            class,
            record,
            reason,
            "Records went to the dead letters, the last one for this reason"
        );
        (*at, *unsaid) = (Some(now), 0);
    }
}

impl LaneStatus {
    /// What the lane is doing.
    #[must_use]
    pub fn state(&self) -> LaneState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The batch that the lane is sending, once an attempt with it has ended.
    #[must_use]
    pub fn batch(&self) -> Option<CurrentBatch> {
        self.batch.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An attempt has ended.
    pub(super) fn attempted(&self, identity: &str, attempts: u32, attempt: Attempt) {
        let mut batch = self.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let known = batch.take().filter(|known| known.identity == identity);
        let mut current = known.unwrap_or_else(|| CurrentBatch {
            identity: identity.to_owned(),
            attempts: 0,
            recent: VecDeque::new(),
        });
        current.attempts = attempts;
        current.recent.push_back(attempt);
        if current.recent.len() > ATTEMPTS_SHOWN_MAX {
            current.recent.pop_front();
        }
        *batch = Some(current);
    }

    /// The batch has its outcome, or is another from now on.
    pub(super) fn batch_is_over(&self) {
        *self.batch.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// For how long the lane has waited for its limiter.
    #[must_use]
    pub fn limited(&self) -> Duration {
        let limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
        limited.0 + limited.1.held()
    }

    /// A session begins, whose sink pays through this.
    pub(super) fn throttled_by(&self, throttle: Throttle) {
        let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
        let held = limited.1.held();
        limited.0 += held;
        limited.1 = throttle;
    }

    /// A batch was sealed: whatever kept the lane from that is over. What keeps it from delivering is not.
    pub(super) fn sealed(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let over = match &*state {
            LaneState::Starting => true,
            LaneState::Holding { cause, .. } => SEAL_CAUSES.contains(cause),
            _ => false,
        };
        if over {
            *state = LaneState::Running;
        }
    }

    /// The lane is open in the journal. One that holds goes on holding until something succeeds.
    pub(super) fn opened(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == LaneState::Starting {
            *state = LaneState::Running;
        }
    }

    /// Holds for a reason, since the trouble began; says whether that is another kind of state than before.
    pub(super) fn hold(&self, cause: &'static str, reason: String, clock: &dyn Clock) -> bool {
        let since = self.state().trouble().map_or_else(|| clock.now(), |(_, _, since)| since);
        self.hold_since(cause, reason, since)
    }

    /// Holds for a reason; says whether for another cause than before, or not at all before.
    pub(super) fn hold_since(&self, cause: &'static str, reason: String, since: Timestamp) -> bool {
        let held = match self.state() {
            LaneState::Holding { cause, .. } => Some(cause),
            _ => None,
        };
        self.set(LaneState::Holding { cause, reason, since });
        let is_other = held != Some(cause);
        if let Some(index) = HOLD_CAUSES.iter().position(|known| *known == cause)
            && is_other
        {
            self.counters.holds[index].fetch_add(1, Ordering::Relaxed);
        }
        is_other
    }

    /// Sets the state; says whether it is of another kind than before, which is when a line is logged.
    pub(super) fn set(&self, new: LaneState) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = std::mem::discriminant(&*state) != std::mem::discriminant(&new);
        *state = new;
        changed
    }
}
