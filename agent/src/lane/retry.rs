//! What a failed attempt means for the next one. Pure: observation and counts in, decision out.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::sinks::{Class, SinkError};

/// What the lane does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Wait, then send the same batch again.
    Again(Duration),
    /// Hold; wait, then ask the sink whether it would take a batch, and send only when it would.
    Probe(Duration),
    /// Hold until somebody has acted; wait, then see whether they have by sending again.
    Hold(Duration),
}

/// Decides after the `failures`-th failure in a row, from 1.
pub(super) fn decide(error: &SinkError, failures: u32, backoff: &Backoff) -> Decision {
    let wait = backoff.wait(failures);
    match error.class {
        Class::Unreachable => {
            Decision::Probe(error.retry_after.map_or(wait, |asked| asked.max(wait)))
        }
        Class::Retryable => {
            Decision::Again(error.retry_after.map_or(wait, |asked| asked.max(wait)))
        }
        // Nothing but an operator's doing changes these; they are looked at again at the slowest pace.
        Class::Rejected | Class::Conflict => Decision::Hold(backoff.ceiling(u32::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::Jitter;

    #[test]
    fn each_class_has_its_own_next_step_and_a_wish_to_wait_is_honoured() {
        let backoff =
            Backoff::new(Duration::from_millis(100), Duration::from_secs(30), Jitter::None)
                .unwrap();
        let decide = |class, retry_after| {
            let error = SinkError { retry_after, ..SinkError::new(class, "x") };
            decide(&error, 2, &backoff)
        };
        let ms = Duration::from_millis;
        assert_eq!(decide(Class::Unreachable, None), Decision::Probe(ms(200)));
        assert_eq!(decide(Class::Retryable, None), Decision::Again(ms(200)));
        assert_eq!(decide(Class::Retryable, Some(ms(900))), Decision::Again(ms(900)));
        assert_eq!(decide(Class::Retryable, Some(ms(1))), Decision::Again(ms(200)));
        assert_eq!(decide(Class::Rejected, None), Decision::Hold(ms(30_000)));
        assert_eq!(decide(Class::Conflict, None), Decision::Hold(ms(30_000)));
    }
}
