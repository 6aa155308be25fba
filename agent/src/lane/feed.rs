//! What a lane does next: when a batch has enough records, and when a timer is due.

use std::sync::Arc;

use tokio::sync::watch;

use super::LaneControl;
use super::control::Desk;
use super::seal::Range;
use super::ticks::Ticks;
use crate::journal::{Head, LaneJournal, Pace};
use crate::record::id::Seq;
use crate::sinks::config::BatchConfig;

/// What a lane does next.
#[derive(Debug, Clone, Copy)]
pub(super) enum Next {
    Range(Range),
    /// A transform with a timer is called.
    Tick {
        stage: usize,
        /// The last record that is sealed.
        sealed: Seq,
        /// No record will come any more.
        is_last: bool,
    },
}

/// Decides what a lane does next: ranges of its stream, and between them the timers of its transforms.
pub(super) struct Feed<'a> {
    pub(super) gather: Gather,
    pub(super) ticks: &'a mut Ticks,
    pub(super) held: watch::Receiver<bool>,
}

impl Feed<'_> {
    /// Waits for the next; `None` when the lane drains and nothing is left.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<Next> {
        let mut pace = self.gather.pace.clone();
        let (stage, is_last) = loop {
            // In a full journal records go first: sealing them gives room back, and what a tick makes takes some.
            let is_tight = pace.borrow_and_update().tight;
            tokio::select! {
                biased;
                stage = self.ticks.due(), if !is_tight => break (stage, false),
                range = self.gather.next_range() => match range {
                    Some(range) => return Some(Next::Range(range)),
                    None => break (self.ticks.last()?, true),
                },
                changed = pace.changed(), if is_tight => changed.ok()?,
            }
        };
        Some(Next::Tick { stage, sealed: self.gather.sealed(), is_last })
    }

    /// What was next is being sealed, as far as this record, or came to nothing.
    pub(super) fn done(&mut self, next: Next, last: Option<Seq>) {
        match (next, last) {
            (Next::Range(_), Some(last)) => self.gather.took(last),
            (Next::Range(_), None) => {}
            (Next::Tick { stage, is_last, .. }, _) => self.ticks.called(stage, is_last),
        }
    }
}

/// Decides when a batch has enough records.
pub(super) struct Gather {
    head: watch::Receiver<Head>,
    next: Seq,
    /// Records up to this one were there when the session began: they have lingered long enough.
    waited_for: Seq,
    /// Bytes appended in this run before the next record, as far as known.
    bytes_before: u64,
    /// When the next batch has waited long enough, once it has a record.
    lingered: Option<tokio::time::Instant>,
    batch: BatchConfig,
    drain: watch::Receiver<bool>,
    flushes: watch::Receiver<u64>,
    desk: Arc<Desk>,
    pub(super) pace: watch::Receiver<Pace>,
    lane: LaneJournal,
}

impl Gather {
    /// Begins behind the last record that is sealed.
    pub(super) fn new(
        lane: LaneJournal,
        sealed: Seq,
        batch: BatchConfig,
        control: &LaneControl,
    ) -> Self {
        Self {
            head: lane.head(),
            next: sealed.next(),
            waited_for: lane.head().borrow().seq,
            bytes_before: 0,
            lingered: None,
            batch,
            drain: control.drain.clone(),
            flushes: control.desk.flushes(),
            desk: Arc::clone(&control.desk),
            pace: lane.pace(),
            lane,
        }
    }

    /// Waits for the next range; `None` when the lane drains and nothing is left.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    async fn next_range(&mut self) -> Option<Range> {
        loop {
            // What a policy has given up is stepped over.
            self.next = self.sealed().next();
            self.begin_flush();
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
                changed = self.flushes.changed() => {
                    changed.ok()?;
                    self.flushes.mark_changed();
                }
            }
        }
        // A tick in between does not begin the wait anew.
        let from = tokio::time::Instant::now();
        let until = *self.lingered.get_or_insert(from + self.batch.linger);
        let linger = tokio::time::sleep_until(until);
        tokio::pin!(linger);
        while !self.is_enough() {
            tokio::select! {
                () = &mut linger => break,
                changed = self.head.changed() => changed.ok()?,
                changed = self.drain.changed() => changed.ok()?,
                changed = self.pace.changed() => changed.ok()?,
                changed = self.flushes.changed() => {
                    changed.ok()?;
                    self.flushes.mark_changed();
                    self.begin_flush();
                }
            }
        }
        let head = self.head.borrow().seq;
        let last = self.next.plus(u64::from(self.batch.records_max)).before().min(head);
        let bytes_max = self.batch.bytes_max.0.min(self.pace.borrow().batch_bytes_max);
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        Some(Range { first: self.next, last, bytes_max })
    }

    /// The last record that is sealed, or that a policy has given up.
    fn sealed(&mut self) -> Seq {
        self.next = self.next.max(self.lane.floor().next());
        self.next.before()
    }

    /// What is there now has lingered long enough, if somebody wants it out.
    fn begin_flush(&mut self) {
        if self.flushes.has_changed().unwrap_or(false) {
            let number = *self.flushes.borrow_and_update();
            self.waited_for = self.head.borrow().seq;
            self.desk.flush_begun(number, self.waited_for);
        }
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
        self.lingered = None;
    }
}
