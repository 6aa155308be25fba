//! Sends what was sealed, one batch after the other: attempt, class, wait, cut or give up, until it has its outcome.
//!
//! Each batch goes through steps; what a step finds decides the next one. Nothing is cut or given up before that is durable,
//! and nothing counts as delivered but through an ack.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::content::{self, Which};
use super::control::{Desk, Resolution, ResolveError};
use super::error::LaneError;
use super::replay::goes_while_held;
use super::retry::{Decision, Rules, Trial, decide, decide_replay};
use super::served::Served;
use super::status::{Attempt, LaneState, LaneStatus, SEAL_CAUSES};
use super::storm::Breaker;
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::error_chain::Chain;
use crate::journal::{
    BatchKey, Finish, JournalError, LaneJournal, LetterClass, LetterRecord, SinkLetters,
    StateChange, StoredBatch,
};
use crate::limits::LETTERS_ACK_BYTES_MAX;
use crate::record::batch::{LanePlace, SealedBatch};
use crate::sinks::{Class, Delivered, Sink, SinkBuilder, SinkError, StateChanges, Throttle};
use crate::tasks::Shutdown;

/// The name of a sink's state among that of the lane's plugins: no transform can have it, and it goes along when a lane moves to
/// a sink of another name.
pub(super) const SINK_COMPONENT: &str = "@sink";

/// The delivering half of a lane.
pub(super) struct Deliverer {
    pub(super) sink: Box<dyn Sink>,
    pub(super) builder: Arc<dyn SinkBuilder>,
    pub(super) rules: Rules,
    pub(super) lane: LaneJournal,
    pub(super) place: Arc<LanePlace>,
    pub(super) status: Arc<LaneStatus>,
    pub(super) clock: SharedClock,
    /// True while the lane holds: nothing more is sealed then.
    pub(super) holding: watch::Sender<bool>,
    pub(super) desk: Arc<Desk>,
    pub(super) pauses: watch::Receiver<bool>,
    pub(super) breaker: Arc<Mutex<Breaker>>,
    pub(super) served: Arc<Served>,
    /// What this lane's session has added to that.
    pub(super) served_here: u64,
    pub(super) failures: u32,
    pub(super) failing_since: Option<Timestamp>,
    /// While replays are settled: how the lane was before.
    pub(super) outside: Option<LaneState>,
    pub(super) shutdown: Shutdown,
}

/// What came of a batch.
#[derive(Debug)]
pub(super) enum Settled {
    /// It has its outcome.
    Done,
    /// It was cut: these are to be settled, in order.
    Cut(Box<[StoredBatch; 2]>),
    /// An order is to be carried out, for which the lane opens itself anew; the batch waits.
    Ordered,
    /// The lane was asked to stop; the batch waits.
    Stopped,
    /// Nobody will take anything any more; the batch waits.
    Over,
}

/// Records that go to the dead letters.
#[derive(Debug, Clone)]
struct GivenUp {
    class: LetterClass,
    which: Which,
    /// What was delivered of the same batch.
    delivered: Option<Delivered>,
    /// It is decided: no storm keeps it from happening.
    is_decided: bool,
}

/// A wait of a lane that holds.
#[derive(Debug)]
struct Hold {
    cause: &'static str,
    /// What happens if somebody decides for the dead letters.
    undecided: Option<GivenUp>,
    /// What is tried again afterwards, instead of sending.
    retries: Option<GivenUp>,
}

/// What is done next about a batch.
#[derive(Debug)]
enum Step {
    Send,
    Wait { pause: Duration, probe: bool, hold: Option<Hold> },
    GiveUp(GivenUp),
    End(Settled),
}

/// What ended a wait.
enum Woken {
    Time,
    Stop,
    Ordered,
    Resolved(Resolution, oneshot::Sender<Result<(), ResolveError>>),
}

/// A batch that is being settled.
struct Current<'b> {
    batch: &'b StoredBatch,
    sealed: SealedBatch,
    trial: Trial,
}

impl Deliverer {
    /// Sees to it that a batch gets its outcome, however long it takes.
    ///
    /// # Errors
    /// When the journal fails; the lane opens itself anew.
    pub(super) async fn settle(
        &mut self,
        batch: &StoredBatch,
        earlier: bool,
    ) -> Result<Settled, LaneError> {
        let mut current = Current {
            batch,
            sealed: content::sealed_batch(batch, earlier, &self.lane, &self.place),
            trial: Trial::new(
                batch.records,
                batch.variant.spent || batch.variant.replay,
                self.clock.now(),
            ),
        };
        let mut step = match batch.variant.verdict {
            Some(class) => Step::GiveUp(GivenUp {
                class,
                which: Which::All("it was decided before its batch was cut".to_owned()),
                delivered: None,
                is_decided: true,
            }),
            None => Step::Send,
        };
        loop {
            step = match step {
                Step::Send => self.send(&mut current).await?,
                Step::Wait { pause, probe, hold } => {
                    self.wait(&mut current, pause, probe, hold).await?
                }
                Step::GiveUp(given_up) => self.give_up(&current, given_up).await?,
                Step::End(settled) => {
                    self.status.batch_is_over();
                    return Ok(settled);
                }
            };
        }
    }

    /// Waits out a pause of the operator's. False when asked to stop meanwhile.
    pub(super) async fn unpaused(&mut self) -> bool {
        if self.shutdown.is_requested() {
            return false;
        }
        if !*self.pauses.borrow_and_update() {
            return true;
        }
        let before = self.status.state();
        let reason = "as somebody ordered".to_owned();
        self.hold("paused", reason, self.clock.now());
        let mut pauses = self.pauses.clone();
        let ended = tokio::select! {
            () = self.shutdown.requested() => false,
            ended = pauses.wait_for(|paused| !paused) => ended.is_ok(),
        };
        let holds = matches!(before, LaneState::Holding { .. });
        self.status.set(before);
        self.holding.send_replace(holds);
        ended
    }

    /// Waits until the operator pauses or resumes the lane.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn pause_changed(&mut self) {
        let mut pauses = self.pauses.clone();
        if pauses.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn send(&mut self, current: &mut Current<'_>) -> Result<Step, LaneError> {
        if !self.unpaused().await {
            return Ok(Step::End(Settled::Stopped));
        }
        current.trial.begin(self.clock.now());
        let throttle = self.sink.throttle();
        let begun = self.clock.monotonic();
        let attempt = self.sink.deliver(&current.sealed, current.trial.attempts);
        let result = within(self.rules.retry.attempt_timeout, &throttle, attempt).await;
        self.attempted(current, begun, result.as_ref().err());
        match result {
            Ok(delivered) if delivered.refused.is_empty() => {
                if current.batch.variant.replay {
                    let class = LetterClass::Rejected;
                    self.acknowledge(current, class, Vec::new(), Some(&delivered)).await?;
                } else {
                    let had_all = delivered.already >= current.batch.records;
                    let finish = if had_all { Finish::Already } else { Finish::Delivered };
                    let (attempts, state) = (current.trial.attempts, changes(&delivered.state));
                    self.lane.ack_with_state(current.batch, finish, attempts, state).await?;
                    self.breaker().note(self.clock.monotonic(), current.batch.records, 0);
                }
                self.count_served();
                self.succeeded(&delivered);
                self.sink.keep(delivered.state);
                Ok(Step::End(Settled::Done))
            }
            Ok(mut delivered) => {
                let refused = std::mem::take(&mut delivered.refused);
                Ok(Step::GiveUp(GivenUp {
                    class: LetterClass::Rejected,
                    which: Which::Named(refused),
                    delivered: Some(delivered),
                    is_decided: false,
                }))
            }
            Err(error) if error.is_final => {
                tracing::info!(reason = %error, "Lane ends, its records stay queued");
                Ok(Step::End(Settled::Over))
            }
            Err(error) => self.failed(current, &error).await,
        }
    }

    /// Shows how an attempt went.
    fn attempted(&self, current: &Current<'_>, begun: Monotonic, error: Option<&SinkError>) {
        let Trial { attempts, last_at, .. } = current.trial;
        let failure = error.map(|error| (error.class, Chain(error).to_string()));
        let took = self.clock.monotonic().since(begun);
        let attempt = Attempt { at: last_at, took, failure };
        self.status.attempted(&current.sealed.facts.identity(), attempts, attempt);
    }

    /// Decides after a failed attempt or probe, and says so.
    async fn failed(
        &mut self,
        current: &mut Current<'_>,
        error: &SinkError,
    ) -> Result<Step, LaneError> {
        self.failures = self.failures.saturating_add(1);
        let others = self.served.count().saturating_sub(self.served_here);
        let class = current.trial.class(error, others);
        self.status.counters.failed(class);
        current.trial.failed(error, class, self.clock.monotonic());
        let mut decision = decide(class, error, &current.trial, self.failures, &self.rules);
        if current.batch.variant.replay {
            decision = decide_replay(decision, class, error, &current.trial);
        }
        let reason = Chain(error).to_string();
        let identity = current.sealed.facts.identity();
        tracing::debug!(
            batch = identity, class = class.as_str(), failures = self.failures,
            error = %Chain(error), ?decision, "Delivery failed"
        );
        let since = *self.failing_since.get_or_insert_with(|| self.clock.now());
        let all = |class| GivenUp {
            class,
            which: Which::All(reason.clone()),
            delivered: None,
            is_decided: false,
        };
        Ok(match decision {
            Decision::Again(pause) => {
                let state = LaneState::Retrying { class, reason: reason.clone(), since };
                if self.status.set(state) {
                    tracing::warn!(batch = identity, class = class.as_str(), error = %Chain(error), "Delivery failed, the batch stays queued");
                }
                self.holds_no_more();
                Step::Wait { pause, probe: false, hold: None }
            }
            Decision::Probe(pause) => {
                self.hold(class.as_str(), reason.clone(), since);
                let hold = Hold { cause: class.as_str(), undecided: None, retries: None };
                Step::Wait { pause, probe: true, hold: Some(hold) }
            }
            Decision::Hold(cause, pause) => {
                self.hold(cause, reason.clone(), since);
                let class = match class {
                    Class::Conflict => LetterClass::Conflict,
                    _ => LetterClass::Exhausted,
                };
                let hold = Hold { cause, undecided: Some(all(class)), retries: None };
                Step::Wait { pause, probe: false, hold: Some(hold) }
            }
            Decision::Cut { spent } => {
                if spent && !current.batch.variant.spent {
                    self.status.counters.budget_spent();
                }
                tracing::warn!(batch = identity, class = class.as_str(), spent, error = %Chain(error), "Batch is cut in half");
                self.cut(current.batch, spent, None).await?
            }
            Decision::GiveUp(class) => Step::GiveUp(all(class)),
        })
    }

    /// Holds, and logs it when it did not before.
    fn hold(&self, cause: &'static str, reason: String, since: Timestamp) {
        self.holding.send_replace(true);
        let is_other = self.status.hold_since(cause, reason.clone(), since);
        if is_other {
            tracing::warn!(cause, reason, "Lane holds, its records stay queued");
        }
    }

    async fn wait(
        &mut self,
        current: &mut Current<'_>,
        pause: Duration,
        probe: bool,
        hold: Option<Hold>,
    ) -> Result<Step, LaneError> {
        let is_undecided = hold.as_ref().is_some_and(|hold| hold.undecided.is_some());
        let for_room = hold.as_ref().is_some_and(|hold| hold.cause == "dead_letters");
        let lets_replay = hold.as_ref().is_none_or(|hold| goes_while_held(hold.cause))
            && !current.batch.variant.replay;
        self.desk.set_undecided(is_undecided);
        let woken = self.woken(pause, is_undecided, for_room, lets_replay).await;
        self.desk.set_undecided(false);
        match (woken, hold) {
            (Woken::Stop, _) => Ok(Step::End(Settled::Stopped)),
            (Woken::Ordered, _) => Ok(Step::End(Settled::Ordered)),
            (Woken::Resolved(resolution, answer), Some(Hold { undecided: Some(given_up), .. })) => {
                let step = self.resolve(current, resolution, given_up).await;
                let _unheard = answer.send(Ok(()));
                step
            }
            (_, Some(Hold { retries: Some(given_up), .. })) => Ok(Step::GiveUp(given_up)),
            _ if probe => {
                if !self.unpaused().await {
                    return Ok(Step::End(Settled::Stopped));
                }
                let timeout = self.rules.retry.attempt_timeout;
                match within(timeout, &Throttle::default(), self.sink.probe()).await {
                    Ok(()) => Ok(Step::Send),
                    // Only an attempt with the batch can say that of it.
                    Err(error) if matches!(error.class, Class::Rejected | Class::Conflict) => {
                        Ok(Step::Send)
                    }
                    Err(error) => self.failed(current, &error).await,
                }
            }
            _ => Ok(Step::Send),
        }
    }

    async fn woken(
        &mut self,
        pause: Duration,
        is_undecided: bool,
        for_room: bool,
        lets_replay: bool,
    ) -> Woken {
        let mut room = self.lane.letters_room();
        tokio::select! {
            () = self.shutdown.requested() => Woken::Stop,
            () = tokio::time::sleep(pause) => Woken::Time,
            () = self.desk.wanted_again() => Woken::Time,
            () = self.desk.replay_wanted(), if lets_replay => Woken::Ordered,
            _ = room.changed(), if for_room => Woken::Time,
            (resolution, answer) = self.desk.resolution(), if is_undecided => {
                Woken::Resolved(resolution, answer)
            }
        }
    }

    /// Does what somebody has decided about the batch.
    async fn resolve(
        &mut self,
        current: &Current<'_>,
        resolution: Resolution,
        given_up: GivenUp,
    ) -> Result<Step, LaneError> {
        let (batch, identity) = (current.batch, current.sealed.facts.identity());
        tracing::warn!(batch = identity, ?resolution, "Batch is resolved as asked");
        match resolution {
            Resolution::Accept => {
                self.acknowledge(current, LetterClass::Rejected, Vec::new(), None).await?;
                let records = batch.records;
                self.succeeded(&Delivered { records, already: records, ..Delivered::default() });
                Ok(Step::End(Settled::Done))
            }
            Resolution::DeadLetter => {
                self.breaker().waive(batch.number);
                Ok(Step::GiveUp(GivenUp { is_decided: true, ..given_up }))
            }
            Resolution::ResendAsNew => {
                self.desk.rename(BatchKey::from(batch));
                Ok(Step::End(Settled::Ordered))
            }
        }
    }

    async fn cut(
        &mut self,
        batch: &StoredBatch,
        spent: bool,
        verdict: Option<LetterClass>,
    ) -> Result<Step, LaneError> {
        let (whole, lane, place) = (batch.clone(), self.lane.clone(), Arc::clone(&self.place));
        let sink = Arc::clone(&self.builder);
        let work = move || content::halves(&whole, &lane, &place, &*sink, spent, verdict);
        let halves = blocking(work).await?;
        let both = Box::new(halves.halves.clone());
        self.lane.cut(batch, halves).await?;
        self.status.counters.cut();
        Ok(Step::End(Settled::Cut(both)))
    }

    /// Sends records to the dead letters, unless they are too many at once or have no room.
    async fn give_up(
        &mut self,
        current: &Current<'_>,
        given_up: GivenUp,
    ) -> Result<Step, LaneError> {
        let batch = current.batch;
        let count = given_up.which.count(batch.records);
        let now = self.clock.monotonic();
        // What comes back of a replay was given up before.
        let is_decided = given_up.is_decided || batch.variant.replay;
        if !is_decided && !self.breaker().allows(now, batch.number, batch.records, count) {
            return Ok(self.hold_for_storm(count, batch.records, given_up));
        }
        let pace = *self.lane.pace().borrow();
        let room = *self.lane.letters_room().borrow();
        let bytes_max = LETTERS_ACK_BYTES_MAX.min(room.bytes_max).min(pace.batch_bytes_max);
        let (whole, lane, which) = (batch.clone(), self.lane.clone(), given_up.which.clone());
        let name = self.place.lane.clone();
        let read = move || content::letters(&whole, &lane, &name, &which, bytes_max);
        let Some(letters) = blocking(read).await? else {
            // What is decided for all of it is so for its halves.
            let all = matches!(given_up.which, Which::All(_)) && given_up.is_decided;
            let verdict =
                (all || given_up.class == LetterClass::Conflict).then_some(given_up.class);
            return self.cut(batch, batch.variant.spent, verdict).await;
        };
        let written = letters.len() as u64;
        let last = letters.last().map(|letter| (letter.identity.clone(), letter.reason.clone()));
        let delivered = given_up.delivered.as_ref();
        match self.acknowledge(current, given_up.class, letters, delivered).await {
            Ok(()) => {
                let state = delivered.map(|delivered| delivered.state.clone());
                self.sink.keep(state.unwrap_or_default());
            }
            Err(error) if error.is_letters_full() || error.is_full() => {
                let reason = Chain(&error).to_string();
                let since = *self.failing_since.get_or_insert_with(|| self.clock.now());
                self.hold("dead_letters", reason, since);
                let pause = self.rules.retry.backoff.ceiling(u32::MAX);
                let hold = Hold { cause: "dead_letters", undecided: None, retries: Some(given_up) };
                return Ok(Step::Wait { pause, probe: false, hold: Some(hold) });
            }
            Err(error) => return Err(error.into()),
        }
        if !batch.variant.replay {
            self.breaker().note(now, batch.records, written);
            let is_named = given_up.delivered.is_some();
            self.status.counters.gave_up(given_up.class, written, is_named);
            if let Some((record, reason)) = last {
                let class = given_up.class.as_str();
                self.status.letters_said.say(&*self.clock, written, class, &record, &reason);
            }
        }
        match given_up.delivered {
            Some(delivered) if delivered.records > 0 => {
                self.count_served();
                self.succeeded(&delivered);
            }
            // An answer, but no delivery: the backoff goes on from where it is.
            _ => {
                self.status.set(LaneState::Running);
                self.holds_no_more();
            }
        }
        Ok(Step::End(Settled::Done))
    }

    fn hold_for_storm(&mut self, count: u64, records: u64, given_up: GivenUp) -> Step {
        let why = match &given_up.which {
            Which::All(reason) => reason.as_str(),
            Which::Named(refused) => refused.last().map_or("", |last| last.reason.as_str()),
        };
        let reason = format!(
            "{count} of {records} records more would go to the dead letters, too many of the recent ones: {why}"
        );
        let since = *self.failing_since.get_or_insert_with(|| self.clock.now());
        self.hold("storm", reason, since);
        let pause = self.rules.retry.backoff.ceiling(u32::MAX);
        let hold = Hold { cause: "storm", undecided: Some(given_up), retries: None };
        Step::Wait { pause, probe: false, hold: Some(hold) }
    }

    /// Records the batch's outcome durably.
    async fn acknowledge(
        &mut self,
        current: &Current<'_>,
        class: LetterClass,
        letters: Vec<LetterRecord>,
        delivered: Option<&Delivered>,
    ) -> Result<(), JournalError> {
        let Trial { attempts, first_at, last_at, .. } = current.trial;
        let already = delivered.map_or(0, |delivered| delivered.already);
        let state = delivered.map(|delivered| changes(&delivered.state)).unwrap_or_default();
        let letters = SinkLetters { class, attempts, first_at, last_at, letters, state };
        if current.batch.variant.replay {
            self.lane.ack_replay(current.batch, letters, already).await
        } else {
            self.lane.ack_with_letters(current.batch, letters).await
        }
    }

    /// Replays are settled from now on.
    pub(super) fn begin_outside(&mut self) {
        self.outside = Some(self.status.state());
    }

    /// No more replays: the lane is as it was before. It holds for its destination only with a batch that waits for that; what
    /// kept it from sealing is tried again.
    pub(super) fn end_outside(&mut self, has_batch: bool) {
        let Some(before) = self.outside.take() else { return };
        self.failures = 0;
        self.failing_since = before.trouble().map(|(_, _, since)| since);
        let holds = has_batch && holds_deliveries(&before);
        let is_over = !has_batch && matches!(before, LaneState::Holding { .. });
        self.holding.send_replace(holds);
        self.status.set(if is_over { LaneState::Running } else { before });
    }

    /// More may be sealed; what a replay meets changes nothing about that.
    fn holds_no_more(&self) {
        if self.outside.is_none() {
            self.holding.send_replace(false);
        }
    }

    fn breaker(&self) -> std::sync::MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The destination has taken something: what fails for the other lanes of the sink meanwhile is no outage.
    fn count_served(&mut self) {
        self.served.add();
        self.served_here += 1;
    }

    /// A delivery was confirmed, by the destination or by whoever decided so.
    fn succeeded(&mut self, delivered: &Delivered) {
        self.status.counters.delivered(delivered);
        if let Some(since) = self.failing_since.take() {
            let outage_s = self.clock.now().since(since).as_secs();
            tracing::info!(failures = self.failures, outage_s, "Destination takes batches again");
        }
        self.failures = 0;
        self.status.set(LaneState::Running);
        self.holds_no_more();
    }
}

/// What a sink has changed in its state, for the journal.
fn changes(state: &StateChanges) -> Vec<StateChange> {
    let changes = state.iter().map(|(key, value)| StateChange {
        component: SINK_COMPONENT.to_owned(),
        key: key.clone(),
        value: value.as_ref().map(|value| value.to_vec()),
    });
    changes.collect()
}

/// Whether a lane in this state waits with a batch, so that it seals no more.
pub(super) fn holds_deliveries(state: &LaneState) -> bool {
    matches!(state, LaneState::Holding { cause, .. } if !is_cause_of_seal(cause))
}

/// Room for dead letters may be what a batch waits for, or a seal.
fn is_cause_of_seal(cause: &str) -> bool {
    SEAL_CAUSES.contains(&cause) && cause != "dead_letters"
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LaneError> + Send + 'static,
) -> Result<T, LaneError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| LaneError::Broken(error.to_string()))?
}

async fn within<T>(
    timeout: Duration,
    throttle: &Throttle,
    attempt: impl Future<Output = Result<T, SinkError>>,
) -> Result<T, SinkError> {
    match throttle.within(timeout, attempt).await {
        Some(result) => result,
        None => {
            let timeout = crate::units::format_duration(timeout);
            let reason = format!("no answer within {timeout}, the outcome is unknown");
            Err(SinkError::new(Class::Retryable, reason).doubtful())
        }
    }
}
