//! What an operator may tell a running lane, and how the lane hears of it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::replay::{Order, ReplayError, Replayed, Selection};
use crate::journal::BatchKey;
use crate::limits::REPLAYS_WAITING_MAX;
use crate::record::id::Seq;

/// Resolutions that may wait for the lane; more are refused.
const RESOLUTIONS_MAX: usize = 4;

/// What becomes of a batch that a lane holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// It counts as delivered: the destination has what matters.
    Accept,
    /// Its records go to the dead letters.
    DeadLetter,
    /// It goes out once more under a new number, which the destination does not know. What identifies the batch changes (the
    /// key of an HTTP request, the name of a file); its records keep their identities, so a destination that goes by those
    /// still recognises them.
    ResendAsNew,
}

/// Why a resolution was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// The lane holds for nothing that is to be decided.
    #[error(
        "the lane holds for nothing that is to be decided: only conflict, exhausted and storm are"
    )]
    NotHeld,
    /// The lane has ended, or ends.
    #[error("the lane has ended")]
    Ended,
}

type Answer = oneshot::Sender<Result<(), ResolveError>>;

/// Where orders for one lane lie until it takes them. Lasts as long as the lane, over all its sessions; what was ordered is
/// forgotten with the process.
#[derive(Debug)]
pub struct Desk {
    paused: watch::Sender<bool>,
    again: Notify,
    /// Whether there is something to decide: then what is sent is taken.
    undecided: Mutex<bool>,
    resolutions: mpsc::Sender<(Resolution, Answer)>,
    to_resolve: tokio::sync::Mutex<mpsc::Receiver<(Resolution, Answer)>>,
    /// A batch that gets a new number when the lane opens itself anew.
    renamed: Mutex<Option<BatchKey>>,
    /// Orders for replays, and how many they are.
    orders: Mutex<VecDeque<Order>>,
    ordered: watch::Sender<usize>,
    flushes: watch::Sender<u64>,
    /// The last flush that was begun, and the record that it goes to.
    flushing: watch::Sender<(u64, Seq)>,
    /// Everything up to this record has its outcome.
    settled: watch::Sender<Seq>,
    ended: watch::Sender<bool>,
}

impl Default for Desk {
    fn default() -> Self {
        let (resolutions, to_resolve) = mpsc::channel(RESOLUTIONS_MAX);
        Self {
            paused: watch::channel(false).0,
            again: Notify::new(),
            undecided: Mutex::new(false),
            resolutions,
            to_resolve: tokio::sync::Mutex::new(to_resolve),
            renamed: Mutex::default(),
            orders: Mutex::default(),
            ordered: watch::channel(0).0,
            flushes: watch::channel(0).0,
            flushing: watch::channel((0, Seq(0))).0,
            settled: watch::channel(Seq(0)).0,
            ended: watch::channel(false).0,
        }
    }
}

impl Desk {
    /// Has the lane hold after the attempt that is under way, with cause `paused`, until [`Self::resume`].
    pub fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Ends a pause, and has a lane that waits try again at once.
    pub fn resume(&self) {
        self.paused.send_replace(false);
        // Whoever does not wait now has nothing to be woken from.
        self.again.notify_waiters();
    }

    /// Decides about the batch that the lane holds for.
    ///
    /// # Errors
    /// When it does not hold for a conflict, an exhausted budget or a storm, or has ended.
    ///
    /// # Cancel safety
    /// Dropped, the decision may be carried out all the same.
    pub async fn resolve(&self, resolution: Resolution) -> Result<(), ResolveError> {
        let (answer, answered) = oneshot::channel();
        {
            let undecided = self.undecided.lock().unwrap_or_else(PoisonError::into_inner);
            if !*undecided {
                return Err(ResolveError::NotHeld);
            }
            self.resolutions.try_send((resolution, answer)).map_err(|_| ResolveError::NotHeld)?;
        }
        answered.await.unwrap_or(Err(ResolveError::Ended))
    }

    /// Seals all records that are there now without waiting for more, and waits until they have their outcome: as long as that
    /// takes.
    ///
    /// # Errors
    /// When the lane ends before.
    ///
    /// # Cancel safety
    /// Dropped, the records are sealed and delivered all the same.
    pub async fn flush(&self) -> Result<(), ResolveError> {
        let mut flushing = self.flushing.subscribe();
        let mut settled = self.settled.subscribe();
        let mut ended = self.ended.subscribe();
        let mut number = 0;
        self.flushes.send_modify(|flushes| {
            *flushes += 1;
            number = *flushes;
        });
        // The senders are our own: they do not go while this waits.
        let done = async {
            let to = flushing.wait_for(|(begun, _)| *begun >= number).await.ok()?.1;
            settled.wait_for(|settled| *settled >= to).await.ok().map(drop)
        };
        tokio::select! {
            done = done => done.ok_or(ResolveError::Ended),
            _ = ended.wait_for(|ended| *ended) => Err(ResolveError::Ended),
        }
    }

    /// Puts an order for a replay down, and waits until the lane has carried it out.
    pub(super) async fn replay(&self, selection: Selection) -> Result<Replayed, ReplayError> {
        let (answer, answered) = oneshot::channel();
        {
            let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
            if *self.ended.borrow() {
                return Err(ReplayError::Ended);
            }
            if orders.len() >= REPLAYS_WAITING_MAX {
                return Err(ReplayError::Busy);
            }
            orders.push_back((selection, answer));
            self.ordered.send_replace(orders.len());
        }
        answered.await.unwrap_or(Err(ReplayError::Ended))
    }

    /// The oldest order that somebody still waits for.
    pub(super) fn to_replay(&self) -> Option<Order> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.retain(|(_, answer)| !answer.is_closed());
        let order = orders.pop_front();
        self.ordered.send_replace(orders.len());
        order
    }

    /// Waits until an order for a replay is put down. One that lies there already does not count: whoever could not carry it
    /// out would try again without a pause.
    pub(super) async fn replay_ordered(&self) {
        let mut ordered = self.ordered.subscribe();
        // The sender is our own: it does not go while this waits.
        while ordered.changed().await.is_ok() {
            if *ordered.borrow() > 0 {
                return;
            }
        }
    }

    /// Waits until there is an order for a replay.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn replay_wanted(&self) {
        // The sender is our own: it does not go while this waits.
        let mut ordered = self.ordered.subscribe();
        let waiting = ordered.wait_for(|orders| *orders > 0).await;
        drop(waiting);
    }

    pub(super) fn wants_replay(&self) -> bool {
        *self.ordered.borrow() > 0
    }

    pub(super) fn pauses(&self) -> watch::Receiver<bool> {
        self.paused.subscribe()
    }

    /// Hears of flushes from now on, and at once of one that was ordered between two sessions.
    pub(super) fn flushes(&self) -> watch::Receiver<u64> {
        let mut flushes = self.flushes.subscribe();
        if self.flushing.borrow().0 < *flushes.borrow() {
            flushes.mark_changed();
        }
        flushes
    }

    /// A flush has begun, which goes to this record.
    pub(super) fn flush_begun(&self, number: u64, to: Seq) {
        self.flushing.send_replace((number, to));
    }

    /// The lane works, perhaps anew.
    pub(super) fn begin(&self) {
        self.ended.send_replace(false);
    }

    /// The lane has ended, and does not go on with other parts: nobody waits for it any more.
    pub fn end(&self) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.send_replace(true);
        // Whoever waits hears of it.
        orders.clear();
    }

    pub(super) fn settled(&self, to: Seq) {
        self.settled.send_replace(to);
    }

    /// Waits until somebody wants the lane to try again.
    pub(super) async fn wanted_again(&self) {
        self.again.notified().await;
    }

    /// The next resolution. Only a lane that holds for something to be decided asks.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn resolution(&self) -> (Resolution, Answer) {
        let received = self.to_resolve.lock().await.recv().await;
        match received {
            Some(resolution) => resolution,
            None => std::future::pending().await,
        }
    }

    /// From now on there is something to decide, or nothing any more: then whoever was too late hears of it.
    pub(super) fn set_undecided(&self, is: bool) {
        let mut undecided = self.undecided.lock().unwrap_or_else(PoisonError::into_inner);
        *undecided = is;
        // The lane itself is the only one that waits for resolutions, and does not wait now.
        if !is && let Ok(mut waiting) = self.to_resolve.try_lock() {
            while let Ok((_, answer)) = waiting.try_recv() {
                let _unheard = answer.send(Err(ResolveError::NotHeld));
            }
        }
    }

    pub(super) fn rename(&self, batch: BatchKey) {
        *self.renamed.lock().unwrap_or_else(PoisonError::into_inner) = Some(batch);
    }

    pub(super) fn to_rename(&self) -> Option<BatchKey> {
        self.renamed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
