//! The only place that reads time.
//!
//! Wall time names and stamps; it may step in either direction at any moment. Waiting and measuring use the monotonic time,
//! which counts while the host sleeps and starts anew at every boot. Timers are tokio's.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970-01-01T00:00:00Z, by the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// The time from `earlier` to this one; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Time since boot, counting sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Monotonic(pub u64);

impl Monotonic {
    /// The time from `earlier` to this one; zero when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// No clock that says less is right: a host without a battery begins in 1970.
pub const PLAUSIBLE: Timestamp = Timestamp(1_700_000_000_000_000_000);

/// How far the wall clock is to be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClockQuality {
    /// Nobody says.
    #[default]
    Unknown,
    /// Something keeps it right: the kernel has heard of a time server or another clock lately.
    Synced,
    /// Nothing does, or it says a time that cannot be.
    Unsynced,
}

impl ClockQuality {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Synced => "synced",
            Self::Unsynced => "unsynced",
        }
    }

    /// What is left of it at a time: a clock that cannot be right is not kept right by anybody.
    fn at(self, now: Timestamp) -> Self {
        if now < PLAUSIBLE { Self::Unsynced } else { self }
    }
}

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall time.
    fn now(&self) -> Timestamp;
    /// Monotonic time.
    fn monotonic(&self) -> Monotonic;
    /// How far wall time is to be trusted now.
    fn quality(&self) -> ClockQuality {
        ClockQuality::Unknown.at(self.now())
    }
}

/// A clock shared by the parts.
pub type SharedClock = Arc<dyn Clock>;

/// The host's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let time = clock_gettime(ClockId::Realtime);
        Timestamp(time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec))
    }

    fn monotonic(&self) -> Monotonic {
        let time = clock_gettime(ClockId::Boottime);
        let nanoseconds = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
        Monotonic(u64::try_from(nanoseconds).unwrap_or(0))
    }

    fn quality(&self) -> ClockQuality {
        kernel_quality().at(self.now())
    }
}

/// What the kernel says of its clock. It counts on its own that nobody has set it for long.
#[expect(unsafe_code, reason = "the kernel's word on its clock has no other way in")]
fn kernel_quality() -> ClockQuality {
    // SAFETY: zeroes are a valid `timex`. With `modes` of zero the call changes nothing, and it writes into the struct only.
    let (state, status) = unsafe {
        let mut found: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut found), found.status)
    };
    match state {
        // It may be forbidden, as in some containers.
        ..0 => ClockQuality::Unknown,
        libc::TIME_ERROR => ClockQuality::Unsynced,
        _ if status & libc::STA_UNSYNC != 0 => ClockQuality::Unsynced,
        _ => ClockQuality::Synced,
    }
}

/// A clock that a test moves.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicI64,
    monotonic: AtomicU64,
    is_synced: AtomicBool,
}

impl ManualClock {
    /// Starts at `wall`, with a monotonic time of one second.
    #[must_use]
    pub fn new(wall: Timestamp) -> Self {
        Self {
            wall: AtomicI64::new(wall.0),
            monotonic: AtomicU64::new(1_000_000_000),
            is_synced: AtomicBool::new(false),
        }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let nanoseconds = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        self.monotonic.fetch_add(nanoseconds, Ordering::SeqCst);
        self.wall.fetch_add(i64::try_from(nanoseconds).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// From now on, or no longer, something keeps the wall clock right.
    pub fn sync(&self, is_synced: bool) {
        self.is_synced.store(is_synced, Ordering::SeqCst);
    }

    /// Sets the wall clock, as a time server or an operator does.
    pub fn step(&self, to: Timestamp) {
        self.wall.store(to.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.wall.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Monotonic {
        Monotonic(self.monotonic.load(Ordering::SeqCst))
    }

    fn quality(&self) -> ClockQuality {
        let is_synced = self.is_synced.load(Ordering::SeqCst);
        let quality = if is_synced { ClockQuality::Synced } else { ClockQuality::Unsynced };
        quality.at(self.now())
    }
}

/// Wall time for plugins and names: it stands still when the clock steps back a little.
///
/// A step back of less than five minutes is waited out; a larger one is taken over. Owned by one lane.
#[derive(Debug, Default)]
pub struct SteadyTime {
    last: Option<Timestamp>,
}

/// The largest step back that is waited out.
const STEP_BACK_IGNORED: Duration = Duration::from_secs(300);

impl SteadyTime {
    /// The time to use now, and by how much the clock has stepped back when that is taken over.
    pub fn next(&mut self, clock: &dyn Clock) -> (Timestamp, Option<Duration>) {
        let now = clock.now();
        let Some(last) = self.last else {
            self.last = Some(now);
            return (now, None);
        };
        let back = last.since(now);
        if back.is_zero() {
            self.last = Some(now);
            (now, None)
        } else if back < STEP_BACK_IGNORED {
            (last, None)
        } else {
            self.last = Some(now);
            (now, Some(back))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_time_waits_out_small_steps_back_and_takes_over_large_ones() {
        let second = 1_000_000_000;
        let clock = ManualClock::new(Timestamp(1000 * second));
        let mut steady = SteadyTime::default();
        assert_eq!(steady.next(&clock), (Timestamp(1000 * second), None));
        clock.step(Timestamp(990 * second));
        assert_eq!(steady.next(&clock), (Timestamp(1000 * second), None));
        clock.step(Timestamp(500 * second));
        assert_eq!(steady.next(&clock), (Timestamp(500 * second), Some(Duration::from_secs(500))));
        clock.advance(Duration::from_secs(1));
        assert_eq!(steady.next(&clock), (Timestamp(501 * second), None));
    }
}
