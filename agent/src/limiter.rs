//! Limits what goes out: bytes and records per second, with a burst, shared by whoever holds the limiter.
//!
//! Invariants:
//! - Over any time, no more is let through than the rate gives in it and one burst (and one item, as an item is never cut).
//! - Whoever asks first is served first, over all that share the limiter.
//! - What is larger than the burst is paid for in pieces before it passes; nothing is ever refused or dropped.
//! - A limiter begins empty: a process that is started again and again gets no burst each time.
//!
//! It does not know what is sent, nor where. Time comes from whoever makes it.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use tokio::sync::{Notify, Semaphore};

/// The largest rate and the largest burst, in bytes or records.
pub const RATE_MAX: u64 = 1 << 30;
/// The bucket counts in cells that come at most this often a second: rounding their period to nanoseconds then changes a
/// rate by less than a part in ten thousand.
const CELLS_PER_SECOND_MAX: u64 = 10_000;
/// The shortest wait: what timers tell apart.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Monotonic time since any fixed moment.
pub type Time = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How much may pass. Zeros count as ones, and what is over [`RATE_MAX`] as that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Bytes a second, and how many may pass at once after a pause; `None` for any number.
    pub bytes: Option<(u64, u64)>,
    /// Records a second; as many may pass at once after a pause. `None` for any number.
    pub records: Option<u64>,
}

/// A limiter. Its rate can be changed while it is in use.
pub struct Limiter {
    time: Time,
    /// Held by the one who pays; the semaphore hands it on in the order of asking.
    turn: Semaphore,
    buckets: Mutex<Buckets>,
    /// The rate has changed: whoever waits looks again.
    changed: Notify,
}

struct Buckets {
    rate: Rate,
    bytes: Option<Bucket>,
    records: Option<Bucket>,
}

#[derive(Debug, Clone, Copy)]
enum What {
    Bytes,
    Records,
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("rate", &self.rate()).finish_non_exhaustive()
    }
}

impl Limiter {
    /// Makes a limiter, empty.
    #[must_use]
    pub fn new(rate: Rate, time: Time) -> Self {
        let buckets = Mutex::new(Buckets::new(rate, &time));
        Self { time, turn: Semaphore::new(1), buckets, changed: Notify::new() }
    }

    /// The rate as it is now.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner).rate
    }

    /// Changes the rate, for those who wait already, too. A rate that differs begins empty.
    pub fn set(&self, rate: Rate) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.rate != rate {
            *buckets = Buckets::new(rate, &self.time);
            self.changed.notify_one();
        }
    }

    /// Waits until this much may pass. What is paid counts at once.
    ///
    /// # Cancel safety
    /// Dropping it gives up the place in the queue. What was paid until then is not given back.
    pub async fn pay(&self, bytes: u64, records: u64) {
        // The semaphore is never closed.
        let _turn = self.turn.acquire().await;
        self.settle(What::Bytes, bytes).await;
        self.settle(What::Records, records).await;
    }

    async fn settle(&self, what: What, amount: u64) {
        let mut left = amount;
        while let Some(wait) = self.take(what, &mut left) {
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Takes what the bucket has; how long to wait for the rest.
    fn take(&self, what: What, left: &mut u64) -> Option<Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = match what {
            What::Bytes => buckets.bytes.as_mut(),
            What::Records => buckets.records.as_mut(),
        };
        bucket.and_then(|bucket| bucket.take(left))
    }
}

impl Buckets {
    fn new(rate: Rate, time: &Time) -> Self {
        Self {
            rate,
            bytes: rate.bytes.map(|(rate, burst)| Bucket::new(rate, burst, time)),
            records: rate.records.map(|rate| Bucket::new(rate, rate, time)),
        }
    }
}

/// The time as `governor` asks for it.
#[derive(Clone)]
struct Watch(Time);

impl governor::clock::Clock for Watch {
    type Instant = Duration;

    fn now(&self) -> Duration {
        (self.0)()
    }
}

/// A bucket of cells, each worth `unit` bytes or records.
struct Bucket {
    cells: RateLimiter<NotKeyed, InMemoryState, Watch, NoOpMiddleware<Duration>>,
    watch: Watch,
    unit: u64,
    /// Most that is taken at once.
    piece: u64,
    /// Taken and not yet paid for, less than a cell.
    owed: u64,
}

impl Bucket {
    fn new(per_second: u64, burst: u64, time: &Time) -> Self {
        let (per_second, burst) = (per_second.clamp(1, RATE_MAX), burst.clamp(1, RATE_MAX));
        let unit = (per_second / CELLS_PER_SECOND_MAX).max(1);
        // Rounded up, so that it is never faster than it says.
        let period = (unit * 1_000_000_000).div_ceil(per_second);
        let burst_cells = u32::try_from(burst / unit).unwrap_or(u32::MAX);
        let burst_cells = NonZeroU32::new(burst_cells).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(Duration::from_nanos(period))
            .expect("a rate within its bounds has a period")
            .allow_burst(burst_cells);
        let watch = Watch(Arc::clone(time));
        let cells = RateLimiter::direct_with_clock(quota, watch.clone());
        let emptied = cells.check_n(burst_cells);
        assert!(matches!(emptied, Ok(Ok(()))), "a new bucket holds its burst");
        // Halves, so that what a late timer leaves in the bucket finds room there and is not lost.
        let piece = u64::from(burst_cells.get()).div_ceil(2) * unit;
        Self { cells, watch, unit, piece, owed: 0 }
    }

    fn take(&mut self, left: &mut u64) -> Option<Duration> {
        while *left > 0 {
            let taken = (*left).min(self.piece);
            let debt = self.owed + taken;
            let cells = u32::try_from(debt / self.unit).unwrap_or(u32::MAX);
            if let Some(cells) = NonZeroU32::new(cells) {
                let checked = self.cells.check_n(cells).expect("a piece is no more than the burst");
                if let Err(until) = checked {
                    let now = governor::clock::Clock::now(&self.watch);
                    return Some(until.wait_time_from(now).max(WAIT_MIN));
                }
            }
            self.owed = debt % self.unit;
            *left -= taken;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// The simulated time of the runtime.
    fn time() -> Time {
        let begun = Instant::now();
        Arc::new(move || begun.elapsed())
    }

    fn limiter(rate: u64, burst: u64) -> Arc<Limiter> {
        Arc::new(Limiter::new(Rate { bytes: Some((rate, burst)), records: None }, time()))
    }

    /// What passes when somebody sends items of this size for this long: seconds and bytes.
    async fn passing(limiter: &Limiter, size: u64, lasting: Duration) -> Vec<(f64, u64)> {
        let begun = Instant::now();
        let mut passed = Vec::new();
        while begun.elapsed() < lasting {
            limiter.pay(size, 1).await;
            passed.push((begun.elapsed().as_secs_f64(), size));
        }
        passed
    }

    /// In every window no more than the rate gives in it, the burst, and one item.
    fn assert_within(passed: &[(f64, u64)], rate: u64, burst: u64) {
        for window in [0.001, 0.05, 1.0, 7.0, 60.0] {
            let (mut from, mut sum) = (0, 0);
            for (at, size) in passed {
                sum += size;
                while passed[from].0 < at - window {
                    sum -= passed[from].1;
                    from += 1;
                }
                let allowed = rate as f64 * window + (burst + size) as f64;
                assert!(sum as f64 <= allowed * 1.001, "{sum} in {window} s until {at}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn d_33_a_limiter_holds_its_rate_and_lets_the_large_one_through_in_its_turn() {
        let (rate, burst) = (1000, 500);
        let limiter = limiter(rate, burst);
        let begun = Instant::now();
        let mut at = Vec::new();
        for size in [100, 2000, 100] {
            limiter.pay(size, 1).await;
            at.push(begun.elapsed().as_secs_f64());
        }
        println!("100, 2000 and 100 bytes passed after {at:?} s");
        for (at, expected) in at.iter().zip([0.1, 2.1, 2.2]) {
            assert!((at - expected).abs() < 0.02, "{at} instead of {expected}");
        }
        let passed = passing(&limiter, 100, Duration::from_secs(600)).await;
        let mean = passed.iter().map(|(_, size)| size).sum::<u64>() as f64 / 600.0;
        let first: u64 = passed.iter().filter(|(at, _)| *at <= 1.0).map(|(_, size)| size).sum();
        println!("ten-minute mean {mean:.1} B/s of {rate}, first second {first} B");
        assert!((mean / rate as f64 - 1.0).abs() < 0.02, "{mean}");
        assert!(first <= rate + burst + 100, "{first}");
        assert_within(&passed, rate, burst);
    }

    #[tokio::test(start_paused = true)]
    async fn rates_from_a_byte_to_a_gigabyte_are_kept_within_two_percent() {
        for (rate, burst, size) in [
            (1, 1, 3),
            (7, 500, 1),
            (64 << 10, 256 << 10, 777),
            (999_983, 10_007, 4_001),
            (600_000_000, 7_000_000, 1_000_003),
            (RATE_MAX, RATE_MAX, 13_000_000),
        ] {
            let limiter = limiter(rate, burst);
            let passed = passing(&limiter, size, Duration::from_secs(60)).await;
            let sum: u64 = passed.iter().map(|(_, size)| size).sum();
            let mean = sum as f64 / passed.last().unwrap().0;
            println!("{rate} B/s, burst {burst}, items of {size}: {mean:.1} B/s");
            assert!((mean / rate as f64 - 1.0).abs() < 0.02, "{mean} instead of {rate}");
            assert_within(&passed, rate, burst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_pause_a_burst_passes_at_once_and_a_new_one_begins_empty() {
        let limiter = limiter(1000, 500);
        let begun = Instant::now();
        limiter.pay(500, 1).await;
        assert!(begun.elapsed() >= Duration::from_millis(499), "{:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let begun = Instant::now();
        limiter.pay(500, 1).await;
        assert!(begun.elapsed() < Duration::from_millis(1), "{:?}", begun.elapsed());
        limiter.pay(100, 1).await;
        assert!(begun.elapsed() >= Duration::from_millis(99), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_limited_beside_bytes() {
        let rate = Rate { bytes: Some((1_000_000, 1_000_000)), records: Some(50) };
        let limiter = Limiter::new(rate, time());
        let passed = passing(&limiter, 10, Duration::from_secs(20)).await;
        assert!((980..=1001).contains(&passed.len()), "{}", passed.len());
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_share_it_are_served_in_the_order_of_asking_and_one_who_leaves_blocks_nobody()
    {
        let limiter = limiter(1000, 100);
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut group = crate::tasks::TaskGroup::default();
        for (number, size) in [(0, 700), (1, 10), (2, 300), (3, 10)] {
            let (limiter, served) = (Arc::clone(&limiter), Arc::clone(&served));
            group.spawn(number.to_string(), tracing::Span::none(), async move {
                let paid = limiter.pay(size, 1);
                // The first two give up: one while it pays, one while it waits for its turn.
                let limit = Duration::from_millis(if number < 2 { 300 } else { 60_000 });
                if tokio::time::timeout(limit, paid).await.is_ok() {
                    served.lock().unwrap().push(number);
                }
            });
            tokio::task::yield_now().await;
        }
        let (ended, _) = group.drain(Duration::from_secs(60)).await;
        assert_eq!(ended.len(), 4);
        assert_eq!(*served.lock().unwrap(), [2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_rate_counts_for_the_one_who_waits_and_the_same_rate_changes_nothing() {
        let limiter = limiter(1, 1);
        let begun = Instant::now();
        let waiting = limiter.pay(1000, 1);
        let changing = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            limiter.set(limiter.rate());
            tokio::time::sleep(Duration::from_secs(10)).await;
            limiter.set(Rate { bytes: Some((1000, 500)), records: None });
        };
        tokio::join!(waiting, changing);
        let took = begun.elapsed().as_secs_f64();
        assert!((20.9..21.1).contains(&took), "{took}");
        limiter.set(Rate { bytes: None, records: None });
        limiter.pay(u64::MAX, u64::MAX).await;
        assert!(begun.elapsed().as_secs_f64() - took < 0.01);
    }
}
