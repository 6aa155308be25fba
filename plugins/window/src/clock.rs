//! Which windows are closed, by the times of the records and, when they stand still, by the host's clock.
//!
//! The time of the records, the *watermark*, is the largest that one of the lane had. While they come, only that closes
//! windows: an agent that catches up on hours of backlog has a clock that is hours ahead of its records, and would close their
//! windows half full. When the watermark has not moved between two ticks, the source is quiet, and its time goes on by as much
//! as the host's clock does. A window is closed by that only when the tick after says the same: one that follows on a hold, in
//! which nothing ran, closes nothing that the next batch could still fill.

use crate::open::Head;

/// No time at all.
pub(crate) const NEVER: i64 = i64::MIN;
/// A clock that is before 2020-01-01T00:00:00Z has not been set.
const SET_AFTER: i64 = 1_577_836_800_000_000_000;

pub(crate) struct Clock {
    pub(crate) lateness: i64,
    pub(crate) ahead_max: i64,
}

impl Clock {
    /// Takes back what a clock that was ahead has closed. Without that, everything would be late until it is as late as that.
    pub(crate) fn set(&self, head: &mut Head, now: i64) {
        if let Some(ahead) = self.ahead(now).filter(|ahead| head.watermark > *ahead) {
            head.watermark = ahead;
            head.closed = head.closed.min(ahead.saturating_sub(self.lateness));
        }
    }

    /// The latest time that moves the watermark; none while the host's clock is not set.
    pub(crate) fn ahead(&self, now: i64) -> Option<i64> {
        (now >= SET_AFTER).then(|| now.saturating_add(self.ahead_max))
    }

    /// Moves the watermark by the time of a record.
    pub(crate) fn see(&self, head: &mut Head, now: i64, time: i64) {
        if time > head.watermark && time <= now.saturating_add(self.ahead_max) {
            head.watermark = time;
            head.closed = head.closed.max(time.saturating_sub(self.lateness));
        }
    }

    /// Closes windows of a quiet source. `ends` are those of the open windows, in their order.
    pub(crate) fn tick(&self, head: &mut Head, now: i64, ends: impl Iterator<Item = i64>) {
        if now < SET_AFTER {
            return;
        }
        if head.seen != Some(head.watermark) || now < head.quiet_from {
            head.seen = Some(head.watermark);
            head.quiet_from = now;
            head.confirmed = false;
            return;
        }
        let time = match head.watermark {
            // All records were ahead of the clock.
            NEVER => now,
            watermark => watermark.saturating_add(now - head.quiet_from),
        };
        let bound = time.saturating_sub(self.lateness);
        let end = ends.take_while(|end| *end <= bound).last().filter(|end| *end > head.closed);
        match end {
            // Not to the bound: what nobody has opened can still come.
            Some(end) if head.confirmed => head.closed = end,
            Some(_) => head.confirmed = true,
            None => head.confirmed = false,
        }
    }
}
