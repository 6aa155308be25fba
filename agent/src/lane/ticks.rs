//! When transforms with a timer are due.
//!
//! Each is called between two batches, every `tick` of its config by the monotonic clock. What fell into a time without the
//! lane, or into a long batch or hold, is one call and not many; so the first is due as soon as the lane runs, and a window
//! that ended while the agent was off does not wait for another `tick`. A call that fails stays due.

use std::time::Duration;

use tokio::time::Instant;

use super::stage::Transform;

/// The timers of a lane, over all its sessions.
#[derive(Debug)]
pub(super) struct Ticks(Vec<Tick>);

#[derive(Debug)]
struct Tick {
    /// Which transform of the lane.
    stage: usize,
    every: Duration,
    due: Instant,
    /// It was called behind the last record.
    ended: bool,
}

impl Ticks {
    pub(super) fn new(transforms: &[Transform]) -> Self {
        let due = Instant::now();
        let ticks = transforms.iter().enumerate().filter_map(|(stage, transform)| {
            let every = transform.config.tick?;
            Some(Tick { stage, every, due, ended: false })
        });
        Self(ticks.collect())
    }

    /// Waits for the next that is due; of several the one that has waited longest, in the order of the transforms.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn due(&self) -> usize {
        match self.0.iter().min_by_key(|tick| tick.due) {
            None => std::future::pending().await,
            Some(tick) => {
                // A timer that has run out is seen only at the next turn of the clock, and a batch would go in front.
                if tick.due > Instant::now() {
                    tokio::time::sleep_until(tick.due).await;
                }
                tick.stage
            }
        }
    }

    /// The next that was not called behind the last record.
    pub(super) fn last(&self) -> Option<usize> {
        self.0.iter().find(|tick| !tick.ended).map(|tick| tick.stage)
    }

    /// It was called, and what came of it is being sealed. `is_last`: no record will come any more.
    pub(super) fn called(&mut self, stage: usize, is_last: bool) {
        for tick in self.0.iter_mut().filter(|tick| tick.stage == stage) {
            let now = Instant::now();
            // One that takes longer than its time leaves as much to the records.
            let next = tick.due + tick.every;
            tick.due = if next > now { next } else { now + tick.every };
            tick.ended |= is_last;
        }
    }
}
