//! What a failed attempt means for the next one. Pure: observation and counts in, decision out.

use std::time::Duration;

use crate::clock::{Monotonic, Timestamp};
use crate::journal::LetterClass;
use crate::sinks::config::{GiveUp, RetryConfig};
use crate::sinks::{Class, SinkError};

/// Answered attempts that a half gets whose batch has spent the budget.
const HALF_ATTEMPTS: u32 = 3;

/// What the lane does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Wait, then send the same batch again.
    Again(Duration),
    /// Hold; wait, then ask the sink whether it would take a batch, and send only when it would.
    Probe(Duration),
    /// Hold for this cause until somebody has acted; wait, then see whether they have by sending again.
    Hold(&'static str, Duration),
    /// Cut the batch in half; `spent` when it is for its budget.
    Cut { spent: bool },
    /// Its records go to the dead letters.
    GiveUp(LetterClass),
}

/// What is decided about a sink's batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) retry: RetryConfig,
    pub(super) on_conflict: GiveUp,
}

/// How the attempts of one batch went so far, in this session.
///
/// The budget runs while the destination answers: what counts is the time between two answers in a row, less what the first
/// of them asked to wait. Silence in between stops it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// It came out of a batch that has spent the budget.
    after_budget: bool,
    records: u64,
    pub(super) attempts: u32,
    pub(super) first_at: Timestamp,
    pub(super) last_at: Timestamp,
    answers: u32,
    used: Duration,
    last_answer: Option<(Monotonic, Duration)>,
    /// Batches of other lanes that the destination had taken when the first attempt failed.
    others_served: Option<u64>,
}

impl Trial {
    pub(super) fn new(records: u64, after_budget: bool, now: Timestamp) -> Self {
        Self {
            after_budget,
            records,
            attempts: 0,
            first_at: now,
            last_at: now,
            answers: 0,
            used: Duration::ZERO,
            last_answer: None,
            others_served: None,
        }
    }

    /// Another attempt begins.
    pub(super) fn begin(&mut self, now: Timestamp) {
        if self.attempts == 0 {
            self.first_at = now;
        }
        self.attempts = self.attempts.saturating_add(1);
        self.last_at = now;
    }

    /// The class of a failure, with its doubt settled: an outage, as long as nobody else is served.
    pub(super) fn class(&mut self, error: &SinkError, others_served: u64) -> Class {
        let at_first = *self.others_served.get_or_insert(others_served);
        match error.class {
            Class::Unreachable | Class::Retryable if error.doubtful => {
                if others_served > at_first {
                    Class::Retryable
                } else {
                    Class::Unreachable
                }
            }
            class => class,
        }
    }

    /// Counts a failed attempt against the budget.
    pub(super) fn failed(&mut self, error: &SinkError, class: Class, now: Monotonic) {
        // An outage spends none, whoever says that there is one.
        if !error.answered || class == Class::Unreachable {
            self.last_answer = None;
            return;
        }
        if let Some((last, asked)) = self.last_answer {
            self.used += now.since(last).saturating_sub(asked);
        }
        self.last_answer = Some((now, error.retry_after.unwrap_or_default()));
        self.answers = self.answers.saturating_add(1);
    }

    fn is_spent(&self, budget: Duration) -> bool {
        if self.after_budget { self.answers >= HALF_ATTEMPTS } else { self.used >= budget }
    }
}

/// Decides after the `failures`-th failure in a row, from 1, which the trial has counted.
pub(super) fn decide(
    class: Class,
    error: &SinkError,
    trial: &Trial,
    failures: u32,
    rules: &Rules,
) -> Decision {
    let backoff = &rules.retry.backoff;
    let wait = backoff.wait(failures);
    let wait = error.retry_after.map_or(wait, |asked| asked.max(wait));
    // Nothing but somebody's doing changes these; they are looked at again at the slowest pace.
    let slowest = backoff.ceiling(u32::MAX);
    let give_up = |policy, class: LetterClass| match policy {
        GiveUp::DeadLetter => Decision::GiveUp(class),
        GiveUp::Hold => Decision::Hold(class.as_str(), slowest),
    };
    match class {
        Class::Unreachable => Decision::Probe(wait),
        Class::Retryable if error.answered && trial.is_spent(rules.retry.budget) => {
            if trial.records > 1 {
                Decision::Cut { spent: true }
            } else {
                give_up(rules.retry.on_exhausted, LetterClass::Exhausted)
            }
        }
        Class::Retryable => Decision::Again(wait),
        Class::Rejected if trial.records > 1 => Decision::Cut { spent: trial.after_budget },
        Class::Rejected => Decision::GiveUp(LetterClass::Rejected),
        Class::Conflict => give_up(rules.on_conflict, LetterClass::Conflict),
    }
}

/// What becomes of the decision about a replay: it holds nobody up, and what it does not deliver is a dead letter again.
pub(super) fn decide_replay(
    decision: Decision,
    class: Class,
    error: &SinkError,
    trial: &Trial,
) -> Decision {
    match (decision, class) {
        (Decision::Hold(..), Class::Conflict) => Decision::GiveUp(LetterClass::Conflict),
        (Decision::Hold(..), _) | (Decision::Cut { .. }, Class::Retryable) => {
            Decision::GiveUp(LetterClass::Exhausted)
        }
        // What may be an outage may be this batch's own fault too.
        (Decision::Probe(_) | Decision::Again(_), _)
            if error.doubtful && trial.attempts >= HALF_ATTEMPTS =>
        {
            Decision::GiveUp(LetterClass::Exhausted)
        }
        _ => decision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backoff::{Backoff, Jitter};

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn rules() -> Rules {
        let retry = RetryConfig {
            backoff: Backoff::new(ms(100), ms(30_000), Jitter::None).unwrap(),
            attempt_timeout: ms(30_000),
            budget: ms(2_000),
            on_exhausted: GiveUp::DeadLetter,
        };
        Rules { retry, on_conflict: GiveUp::Hold }
    }

    fn trial(records: u64) -> Trial {
        Trial::new(records, false, Timestamp(0))
    }

    fn at(milliseconds: u64) -> Monotonic {
        Monotonic(milliseconds * 1_000_000)
    }

    #[test]
    fn each_class_has_its_own_next_step_and_a_wish_to_wait_is_honoured() {
        let decide = |class, retry_after| {
            let error = SinkError { retry_after, ..SinkError::new(class, "x") };
            decide(class, &error, &trial(10), 2, &rules())
        };
        assert_eq!(decide(Class::Unreachable, None), Decision::Probe(ms(200)));
        assert_eq!(decide(Class::Retryable, None), Decision::Again(ms(200)));
        assert_eq!(decide(Class::Retryable, Some(ms(900))), Decision::Again(ms(900)));
        assert_eq!(decide(Class::Retryable, Some(ms(1))), Decision::Again(ms(200)));
        assert_eq!(decide(Class::Rejected, None), Decision::Cut { spent: false });
        assert_eq!(decide(Class::Conflict, None), Decision::Hold("conflict", ms(30_000)));
    }

    #[test]
    fn a_single_record_goes_by_what_the_config_says() {
        let one = trial(1);
        let mut rules = rules();
        rules.on_conflict = GiveUp::DeadLetter;
        let error = |class| SinkError::new(class, "x").answered();
        let rejected = decide(Class::Rejected, &error(Class::Rejected), &one, 1, &rules);
        assert_eq!(rejected, Decision::GiveUp(LetterClass::Rejected));
        let conflict = decide(Class::Conflict, &error(Class::Conflict), &one, 1, &rules);
        assert_eq!(conflict, Decision::GiveUp(LetterClass::Conflict));
    }

    #[test]
    fn only_answers_spend_the_budget_and_silence_stops_it() {
        let answer = SinkError::new(Class::Retryable, "500").answered();
        let silence = SinkError::new(Class::Retryable, "no answer");
        let mut trial = trial(10);
        let mut step = |error: &SinkError, now| {
            trial.failed(error, Class::Retryable, at(now));
            decide(Class::Retryable, error, &trial, 1, &rules())
        };
        let again = Decision::Again(ms(100));
        // An hour of silence between the answers.
        assert_eq!(step(&answer, 0), again);
        assert_eq!(step(&silence, 1_000), again);
        assert_eq!(step(&answer, 3_600_000), again);
        assert_eq!(step(&answer, 3_601_999), again);
        assert_eq!(step(&silence, 3_700_000), again);
        assert_eq!(step(&answer, 3_800_000), again);
        assert_eq!(step(&answer, 3_800_001), Decision::Cut { spent: true });
    }

    #[test]
    fn what_a_destination_asks_to_wait_is_not_spent() {
        let mut throttled = SinkError::new(Class::Retryable, "429").answered();
        throttled.retry_after = Some(ms(5_000));
        let mut trial = trial(1);
        for n in 0..100 {
            trial.failed(&throttled, Class::Retryable, at(5_010 * n));
            let next = decide(Class::Retryable, &throttled, &trial, 1, &rules());
            assert_eq!(next, Decision::Again(ms(5_000)), "{n}");
        }
    }

    #[test]
    fn halves_of_a_spent_batch_get_three_attempts_and_a_record_is_exhausted() {
        let answer = SinkError::new(Class::Retryable, "500").answered();
        let mut half = Trial::new(2, true, Timestamp(0));
        let mut one = Trial::new(1, true, Timestamp(0));
        let mut rules = rules();
        for n in 1..=2 {
            half.failed(&answer, Class::Retryable, at(n));
            one.failed(&answer, Class::Retryable, at(n));
            let next = decide(Class::Retryable, &answer, &half, 1, &rules);
            assert_eq!(next, Decision::Again(ms(100)));
        }
        half.failed(&answer, Class::Retryable, at(3));
        one.failed(&answer, Class::Retryable, at(3));
        let of = |trial: &Trial, rules: &Rules| decide(Class::Retryable, &answer, trial, 1, rules);
        assert_eq!(of(&half, &rules), Decision::Cut { spent: true });
        assert_eq!(of(&one, &rules), Decision::GiveUp(LetterClass::Exhausted));
        rules.retry.on_exhausted = GiveUp::Hold;
        assert_eq!(of(&one, &rules), Decision::Hold("exhausted", ms(30_000)));
    }

    #[test]
    fn a_replay_holds_nobody_up() {
        let rules = rules();
        let of = |class, trial: &Trial| {
            let error = SinkError::new(class, "x").answered();
            decide_replay(decide(class, &error, trial, 1, &rules), class, &error, trial)
        };
        let mut replay = Trial::new(10, true, Timestamp(0));
        assert_eq!(of(Class::Conflict, &replay), Decision::GiveUp(LetterClass::Conflict));
        assert_eq!(of(Class::Rejected, &replay), Decision::Cut { spent: true });
        assert_eq!(of(Class::Retryable, &replay), Decision::Again(ms(100)));
        assert_eq!(of(Class::Unreachable, &replay), Decision::Probe(ms(100)));
        let answer = SinkError::new(Class::Retryable, "500").answered();
        for at_ms in 0..3 {
            replay.begin(Timestamp(0));
            replay.failed(&answer, Class::Retryable, at(at_ms));
        }
        assert_eq!(of(Class::Retryable, &replay), Decision::GiveUp(LetterClass::Exhausted));
        assert_eq!(of(Class::Unreachable, &replay), Decision::Probe(ms(100)));
        let silence = SinkError::new(Class::Unreachable, "silence").doubtful();
        let probe = Decision::Probe(ms(100));
        let decision = decide_replay(probe, Class::Unreachable, &silence, &replay);
        assert_eq!(decision, Decision::GiveUp(LetterClass::Exhausted));
        // Also where others are served meanwhile, so that it is no outage.
        let again = Decision::Again(ms(100));
        let decision = decide_replay(again, Class::Retryable, &silence, &replay);
        assert_eq!(decision, Decision::GiveUp(LetterClass::Exhausted));
    }

    #[test]
    fn doubt_is_an_outage_until_others_are_served() {
        let doubtful = SinkError::new(Class::Retryable, "503").answered().doubtful();
        let mut trial = trial(10);
        // What was served before the first failure says nothing.
        assert_eq!(trial.class(&doubtful, 5), Class::Unreachable);
        assert_eq!(trial.class(&doubtful, 5), Class::Unreachable);
        assert_eq!(trial.class(&doubtful, 6), Class::Retryable);
        let sure = SinkError::new(Class::Rejected, "400").doubtful();
        assert_eq!(trial.class(&sure, 6), Class::Rejected);
    }
}
