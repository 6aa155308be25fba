//! How far a lane has sealed ahead of its deliveries, and whether it may go further.

use tokio::sync::watch;

use crate::journal::Pace;

/// Batches that are sealed and not acked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Count {
    batches: usize,
    bytes: u64,
}

/// Counted up by the half of the lane that seals, and down by the one that delivers.
#[derive(Debug)]
pub(super) struct Ahead(watch::Sender<Count>);

impl Ahead {
    /// Begins with the batches that earlier sessions have left.
    pub(super) fn new(batches: usize) -> Self {
        Self(watch::channel(Count { batches, bytes: 0 }).0)
    }

    pub(super) fn sealed(&self, bytes: u64) {
        self.0.send_modify(|count| {
            count.batches += 1;
            count.bytes += bytes;
        });
    }

    /// A batch has become two.
    pub(super) fn cut(&self) {
        self.0.send_modify(|count| count.batches += 1);
    }

    pub(super) fn acked(&self, bytes: u64) {
        self.0.send_modify(|count| {
            count.batches -= 1;
            count.bytes -= bytes;
        });
    }

    /// Waits until another batch may be sealed. `None` when the journal is gone.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub(super) async fn has_room(&self, pace: &mut watch::Receiver<Pace>) -> Option<()> {
        let mut counts = self.0.subscribe();
        loop {
            let (pace_now, count) = (*pace.borrow_and_update(), *counts.borrow_and_update());
            // One is always allowed.
            let further = !pace_now.tight && count.bytes < pace_now.ahead_bytes_max;
            if count.batches == 0 || further {
                return Some(());
            }
            tokio::select! {
                changed = pace.changed() => changed.ok()?,
                changed = counts.changed() => changed.ok()?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_full_journal_allows_one_batch_and_a_roomy_one_an_eighth() {
        let roomy = Pace { batch_bytes_max: 100, ahead_bytes_max: 100, ..Pace::default() };
        let (sender, mut pace) = watch::channel(roomy);
        let ahead = Ahead::new(0);
        let may = |ahead: &Ahead, pace: &mut watch::Receiver<Pace>| {
            ahead.has_room(pace).now_or_never().is_some()
        };
        ahead.sealed(60);
        assert!(may(&ahead, &mut pace));
        ahead.sealed(60);
        assert!(!may(&ahead, &mut pace));
        ahead.acked(60);
        sender.send_replace(Pace { tight: true, ..roomy });
        assert!(!may(&ahead, &mut pace));
        ahead.acked(60);
        assert!(may(&ahead, &mut pace));
    }
}
