//! The storm breaker: a wave of refused records is an outage in disguise, and is not emptied into the dead letters.
//!
//! Recent are the records that got their outcome within the window, and at least the last `records_min`. Fewer than those
//! count as so many, so that one bad record among three is no storm.

use std::collections::VecDeque;

use super::config::StormConfig;
use crate::clock::Monotonic;
use crate::record::id::BatchNumber;

/// Entries that are kept at most; older ones are put together.
const ENTRIES_MAX: usize = 256;
/// Parts of the window that one entry stands for.
const WINDOW_PARTS: u32 = 64;

/// What came of some records at about one time.
#[derive(Debug, Clone, Copy)]
struct Entry {
    at: Monotonic,
    records: u64,
    letters: u64,
}

/// Watches the outcomes of one lane.
#[derive(Debug)]
pub(super) struct Breaker {
    config: StormConfig,
    entries: VecDeque<Entry>,
    /// Somebody has decided that the dead letters of this batch are none too many.
    waived: Option<BatchNumber>,
}

impl Breaker {
    pub(super) fn new(config: StormConfig) -> Self {
        Self { config, entries: VecDeque::new(), waived: None }
    }

    /// Lets all dead letters of one batch pass.
    pub(super) fn waive(&mut self, batch: BatchNumber) {
        self.waived = Some(batch);
    }

    /// Whether `letters` of the next `records` may go to the dead letters.
    pub(super) fn allows(
        &mut self,
        now: Monotonic,
        batch: BatchNumber,
        records: u64,
        letters: u64,
    ) -> bool {
        self.forget_old(now);
        let known_records: u64 = self.entries.iter().map(|entry| entry.records).sum();
        let known_letters: u64 = self.entries.iter().map(|entry| entry.letters).sum();
        let recent = (known_records + records).max(u64::from(self.config.records_min));
        #[expect(clippy::cast_precision_loss, reason = "a share of at most some billions")]
        let (letters, recent) = ((known_letters + letters) as f64, recent as f64);
        self.waived == Some(batch) || letters <= self.config.share * recent
    }

    /// Takes an outcome in.
    pub(super) fn note(&mut self, now: Monotonic, records: u64, letters: u64) {
        let part = self.config.window / WINDOW_PARTS;
        match self.entries.back_mut() {
            Some(last) if now.since(last.at) < part => {
                last.records += records;
                last.letters += letters;
            }
            _ => self.entries.push_back(Entry { at: now, records, letters }),
        }
        self.forget_old(now);
        if self.entries.len() > ENTRIES_MAX
            && let Some(oldest) = self.entries.pop_front()
            && let Some(next) = self.entries.front_mut()
        {
            next.records += oldest.records;
            next.letters += oldest.letters;
        }
    }

    fn forget_old(&mut self, now: Monotonic) {
        let mut records: u64 = self.entries.iter().map(|entry| entry.records).sum();
        while let Some(oldest) = self.entries.front() {
            records -= oldest.records;
            let is_recent = now.since(oldest.at) <= self.config.window;
            if is_recent || records < u64::from(self.config.records_min) {
                return;
            }
            self.entries.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic(seconds * 1_000_000_000)
    }

    fn breaker() -> Breaker {
        Breaker::new(StormConfig::default())
    }

    #[test]
    fn a_few_letters_of_a_quiet_lane_are_no_storm_and_a_wave_is() {
        let mut breaker = breaker();
        let batch = BatchNumber(1);
        assert!(breaker.allows(at(1), batch, 3, 3));
        assert!(breaker.allows(at(1), batch, 20, 20));
        assert!(!breaker.allows(at(1), batch, 21, 21));
        assert!(breaker.allows(at(1), batch, 1000, 200));
        assert!(!breaker.allows(at(1), batch, 1000, 201));
    }

    #[test]
    fn letters_that_trickle_are_a_storm_too() {
        let mut breaker = breaker();
        let allowed = (0..1000)
            .take_while(|n| {
                let now = at(100 * n);
                let allowed = breaker.allows(now, BatchNumber(1), 1, 1);
                if allowed {
                    breaker.note(now, 1, 1);
                }
                allowed
            })
            .count();
        assert_eq!(allowed, 20);
    }

    #[test]
    fn what_is_past_counts_no_more() {
        let mut breaker = breaker();
        breaker.note(at(1), 100, 20);
        assert!(!breaker.allows(at(2), BatchNumber(1), 1, 1));
        for second in 2..5 {
            breaker.note(at(second), 100, 0);
        }
        assert!(breaker.allows(at(5), BatchNumber(1), 1, 1));
        assert!(!breaker.allows(at(5), BatchNumber(1), 100, 90));
        assert!(breaker.allows(at(100), BatchNumber(1), 100, 40));
        assert!(!breaker.allows(at(100), BatchNumber(1), 100, 41));
    }

    #[test]
    fn a_batch_may_be_let_pass() {
        let mut breaker = breaker();
        breaker.waive(BatchNumber(7));
        assert!(breaker.allows(at(1), BatchNumber(7), 1000, 1000));
        assert!(!breaker.allows(at(1), BatchNumber(8), 1000, 1000));
    }

    #[test]
    fn memory_is_bounded_whatever_comes() {
        let config = StormConfig { records_min: 1_000_000, ..StormConfig::default() };
        let mut breaker = Breaker::new(config);
        for second in 0..10_000 {
            breaker.note(at(second * 2), 1, 0);
        }
        assert!(breaker.entries.len() <= ENTRIES_MAX);
        assert_eq!(breaker.entries.iter().map(|entry| entry.records).sum::<u64>(), 10_000);
    }
}
