//! Exponential backoff with jitter, as a validated value.

use std::time::Duration;

/// How a wait is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jitter {
    /// Evenly between zero and the full wait: a fleet that lost one server does not come back at once.
    Full,
    /// Always the full wait.
    None,
}

/// Waits that double from `base` to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    jitter: Jitter,
}

/// Why two durations make no backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BackoffError {
    /// The first wait would be none at all: a retry loop without a pause.
    #[error("backoff must be longer than zero")]
    BaseIsZero,
    /// The cap lies under the first wait.
    #[error("backoff_max must not be shorter than backoff")]
    MaxUnderBase,
}

impl Backoff {
    /// Checks and makes a backoff.
    ///
    /// # Errors
    /// When `base` is zero or above `max`.
    pub fn new(base: Duration, max: Duration, jitter: Jitter) -> Result<Self, BackoffError> {
        if base.is_zero() {
            return Err(BackoffError::BaseIsZero);
        }
        if max < base {
            return Err(BackoffError::MaxUnderBase);
        }
        Ok(Self { base, max, jitter })
    }

    /// The wait after the `failures`-th failure in a row, from 1, before jitter.
    #[must_use]
    pub fn ceiling(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(63);
        self.base.saturating_mul(1u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(self.max)
    }

    /// A drawn wait after the `failures`-th failure in a row, from 1; never zero.
    #[must_use]
    pub fn wait(&self, failures: u32) -> Duration {
        let ceiling = self.ceiling(failures);
        match self.jitter {
            Jitter::None => ceiling,
            Jitter::Full => ceiling.mul_f64(fastrand::f64()).max(Duration::from_millis(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_never_overflow() {
        let backoff =
            Backoff::new(Duration::from_millis(200), Duration::from_secs(30), Jitter::None)
                .unwrap();
        assert_eq!(backoff.wait(1), Duration::from_millis(200));
        assert_eq!(backoff.wait(4), Duration::from_millis(1600));
        assert_eq!(backoff.wait(9), Duration::from_secs(30));
        assert_eq!(backoff.wait(u32::MAX), Duration::from_secs(30));
    }

    #[test]
    fn full_jitter_spreads_over_the_whole_wait() {
        let backoff =
            Backoff::new(Duration::from_millis(100), Duration::from_secs(1), Jitter::Full).unwrap();
        let waits: Vec<_> = (0..200).map(|_| backoff.wait(1)).collect();
        assert!(waits.iter().all(|wait| *wait <= Duration::from_millis(100) && !wait.is_zero()));
        assert!(waits.iter().any(|wait| *wait < Duration::from_millis(50)));
        assert!(waits.iter().any(|wait| *wait > Duration::from_millis(50)));
    }

    #[test]
    fn senseless_durations_are_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(
            Backoff::new(Duration::ZERO, second, Jitter::Full),
            Err(BackoffError::BaseIsZero)
        );
        assert_eq!(
            Backoff::new(second, Duration::ZERO, Jitter::Full),
            Err(BackoffError::MaxUnderBase)
        );
    }
}
