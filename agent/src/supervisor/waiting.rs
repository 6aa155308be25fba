//! How much waits in each lane, since when, and how long it will take: looked at from time to time, since it takes a read of the
//! journal, and a status waits for nobody.
//!
//! How long it will take: as long as what waits takes at the rate at which records got their outcomes between two looks. The older
//! of the two is up to a minute old, so that a pause between two batches does not count as a standstill. What comes in meanwhile
//! goes out behind what waits now, so it makes the estimate no longer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::handle::Face;
use super::status::{Drain, LaneWaiting};
use crate::clock::Monotonic;
use crate::error_chain::Chain;
use crate::journal::{LaneSnapshot, LaneTotals, Waiting};
use crate::limits::WAITING_LOOK_MS;
use crate::record::id::LaneName;

/// Looks that are kept of a lane's queue.
const LOOKS_MAX: usize = 6;
/// What of its time the agent spends with looking, at most.
const SHARE_MAX: u32 = 100;

/// What the last look has found, by lane.
#[derive(Debug, Default)]
pub(super) struct Looks(BTreeMap<LaneName, Look>);

#[derive(Debug, Default)]
struct Look {
    waiting: Waiting,
    /// How many records had their outcome, and when; the oldest first.
    outcomes: VecDeque<(Monotonic, u64)>,
}

impl Looks {
    /// What waits in a lane with so many records in its queue now.
    pub(super) fn of(&self, lane: &LaneName, queued: u64) -> LaneWaiting {
        // Nothing waits now, whatever the last look has found.
        if queued == 0 {
            return LaneWaiting { bytes: 0, oldest: None, drain: Some(Drain::In(Duration::ZERO)) };
        }
        self.0.get(lane).map_or_else(LaneWaiting::default, |look| LaneWaiting {
            bytes: look.waiting.bytes,
            oldest: look.waiting.oldest,
            drain: look.drain(queued),
        })
    }

    fn take(&mut self, now: Monotonic, found: Vec<(LaneSnapshot, Waiting)>) {
        let mut before = std::mem::take(&mut self.0);
        for (lane, waiting) in found {
            let mut look = before.remove(&lane.name).unwrap_or_default();
            look.waiting = waiting;
            // A change of the config is a reason to look in between.
            if look.outcomes.back().is_none_or(|(at, _)| now.since(*at) >= every() / 2) {
                let LaneTotals { delivered, dropped, dead_lettered, lost, .. } = lane.totals;
                look.outcomes.push_back((now, delivered + dropped + dead_lettered + lost));
            }
            if look.outcomes.len() > LOOKS_MAX {
                look.outcomes.pop_front();
            }
            self.0.insert(lane.name, look);
        }
    }
}

impl Look {
    fn drain(&self, queued: u64) -> Option<Drain> {
        let ((begun, before), (now, after)) = (*self.outcomes.front()?, *self.outcomes.back()?);
        let elapsed = now.since(begun);
        if elapsed.is_zero() {
            return None;
        }
        // A replay takes dead letters back.
        let done = after.saturating_sub(before);
        let seconds = elapsed.as_secs_f64() * queued as f64 / done as f64;
        Some(Duration::try_from_secs_f64(seconds).map_or(Drain::Never, Drain::In))
    }
}

fn every() -> Duration {
    Duration::from_millis(WAITING_LOOK_MS)
}

/// Looks from time to time, for as long as the agent runs.
pub(super) async fn watch(face: Arc<Face>) {
    loop {
        let begun = tokio::time::Instant::now();
        look(&face).await;
        tokio::time::sleep(every().max(begun.elapsed() * SHARE_MAX)).await;
    }
}

/// Looks into the journal now.
pub(super) async fn look(face: &Face) {
    let (journal, snapshot) = (Arc::clone(&face.journal), face.snapshots.borrow().clone());
    let lanes: Vec<_> = snapshot.lanes.iter().filter(|lane| lane.queued > 0).cloned().collect();
    let is_idle = lanes.is_empty();
    let read = move || {
        let found = lanes.into_iter().map(|lane| match journal.waiting(&lane) {
            Ok(waiting) => (lane, waiting),
            Err(error) => {
                let error = Chain(&error).to_string();
                tracing::debug!(lane = %lane.name, error, "What waits in a lane cannot be read");
                (lane, Waiting::default())
            }
        });
        found.collect::<Vec<_>>()
    };
    // An idle agent wakes no thread for it.
    let found = if is_idle { Ok(Vec::new()) } else { tokio::task::spawn_blocking(read).await };
    if let Ok(found) = found {
        let now = face.clock.monotonic();
        face.looks().take(now, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(outcomes: &[(u64, u64)]) -> Look {
        let at = |(seconds, count): &(u64, u64)| (Monotonic(seconds * 1_000_000_000), *count);
        Look { outcomes: outcomes.iter().map(at).collect(), ..Look::default() }
    }

    #[test]
    fn what_waits_takes_as_long_as_it_takes_at_the_rate_of_the_last_minute() {
        let seconds = |seconds| Some(Drain::In(Duration::from_secs(seconds)));
        assert_eq!(look(&[]).drain(7), None);
        assert_eq!(look(&[(5, 100)]).drain(7), None);
        assert_eq!(look(&[(0, 100), (10, 100), (20, 300)]).drain(1000), seconds(100));
        assert_eq!(look(&[(0, 100), (10, 100)]).drain(1000), Some(Drain::Never));
        assert_eq!(look(&[(0, 100), (10, 90)]).drain(1000), Some(Drain::Never));
    }
}
