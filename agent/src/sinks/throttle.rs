//! A sink's way to its limiter, and the time that its attempts spend there.
//!
//! The time that an attempt may take says how long the destination may; waiting for a limiter is our own doing, so that clock
//! stands still meanwhile.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::limiter::Limiter;

/// How long an attempt that waits for its limiter is left alone before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What one lane's sink pays through; the default lets everything pass. Clones belong to the same lane.
#[derive(Debug, Clone, Default)]
pub struct Throttle {
    limiter: Option<Arc<Limiter>>,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    total: Duration,
    /// Since when somebody waits, and how many do.
    since: Option<Instant>,
    count: usize,
}

/// Counts as waiting until it is dropped, also when the wait is given up.
struct Waiting<'a>(&'a Mutex<Held>);

impl<'a> Waiting<'a> {
    fn begin(held: &'a Mutex<Held>) -> Self {
        let mut now = held.lock().unwrap_or_else(PoisonError::into_inner);
        now.count += 1;
        now.since.get_or_insert_with(Instant::now);
        Self(held)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.count -= 1;
        if held.count == 0
            && let Some(since) = held.since.take()
        {
            held.total += since.elapsed();
        }
    }
}

impl Throttle {
    /// One that pays at this limiter, if there is one.
    #[must_use]
    pub fn new(limiter: Option<Arc<Limiter>>) -> Self {
        Self { limiter, held: Arc::default() }
    }

    /// Waits until this much may go out.
    ///
    /// # Cancel safety
    /// As [`Limiter::pay`].
    pub async fn pay(&self, bytes: u64, records: u64) {
        if let Some(limiter) = &self.limiter {
            let _waiting = Waiting::begin(&self.held);
            limiter.pay(bytes, records).await;
        }
    }

    /// Whether anything is ever waited for.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.limiter.is_some()
    }

    /// For how long the lane has waited for its limiter so far.
    #[must_use]
    pub fn held(&self) -> Duration {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.total + held.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Runs an attempt for at most `limit`, without the time that it waits for the limiter. `None` when it took longer.
    ///
    /// # Cancel safety
    /// As the attempt.
    pub async fn within<T>(&self, limit: Duration, attempt: impl Future<Output = T>) -> Option<T> {
        let (begun, held) = (Instant::now(), self.held());
        tokio::pin!(attempt);
        loop {
            let spent = begun.elapsed().saturating_sub(self.held().saturating_sub(held));
            let left = limit.saturating_sub(spent);
            if left.is_zero() {
                return None;
            }
            let left = if self.is_limited() { left.max(LOOK_AGAIN) } else { left };
            if let Ok(done) = tokio::time::timeout(left, &mut attempt).await {
                return Some(done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::Rate;

    #[tokio::test(start_paused = true)]
    async fn the_time_of_an_attempt_stands_still_while_it_waits_for_the_limiter() {
        let begun = Instant::now();
        let rate = Rate { bytes: Some((1000, 500)), records: None };
        let limiter = Limiter::new(rate, Arc::new(move || begun.elapsed()));
        let throttle = Throttle::new(Some(Arc::new(limiter)));
        let limit = Duration::from_secs(2);
        let slow = |work: Duration| {
            let throttle = throttle.clone();
            async move {
                throttle.pay(60_000, 1).await;
                tokio::time::sleep(work).await;
            }
        };
        let done = throttle.within(limit, slow(Duration::from_millis(1900))).await;
        assert!(done.is_some() && begun.elapsed() > Duration::from_secs(60));
        assert!(throttle.within(limit, slow(Duration::from_millis(2200))).await.is_none());
        let held = throttle.held().as_secs_f64();
        assert!((118.0..121.0).contains(&held), "{held}");
        let none = Throttle::default();
        none.pay(u64::MAX, u64::MAX).await;
        let begun = Instant::now();
        assert!(none.within(limit, std::future::pending::<()>()).await.is_none());
        assert_eq!(begun.elapsed().as_secs(), 2);
    }
}
