//! Which records of a batch a stream has confirmed, over all attempts of one sink instance.
//!
//! Kept in memory only: after a restart the whole batch is sent again, less what a lookup finds in the stream.

use std::collections::{BTreeMap, HashSet};

use super::message::SizeBounds;
use crate::clock::Monotonic;
use crate::sinks::Refused;

/// What is known of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It was not sent, or the server has answered that it did not take it.
    Open,
    /// It was sent and nothing was heard of it.
    Asked,
    /// The stream has it.
    Confirmed,
    /// It is refused for good.
    Refused,
}

/// The records of one batch.
#[derive(Debug)]
pub(super) struct Progress {
    batch: String,
    records: Vec<Known>,
    /// Confirmed in the attempt that runs, and whether as repeats. A stream of several servers answers a repeat at once, and
    /// what it stores only when they agree: the order of the answers says nothing.
    fresh: Vec<(usize, bool)>,
    refused: BTreeMap<usize, String>,
    /// Since when something was asked of which nothing was heard.
    unknown_since: Option<Monotonic>,
    /// For which bounds every record was checked.
    pub(super) checked_for: Option<SizeBounds>,
    /// Whether it was looked for in the stream, where that had to be done once.
    pub(super) looked: bool,
    /// What a lookup has found: identities within the lane.
    pub(super) found: Option<HashSet<String>>,
    /// Confirmed as repeats.
    pub(super) already: u64,
    /// Sent again though the stream may have had them.
    pub(super) resent: u64,
    /// Stored behind a record that had failed.
    pub(super) reordered: u64,
    /// Bytes sent.
    pub(super) bytes: u64,
    /// A subject that no stream has taken.
    pub(super) no_stream_for: Option<async_nats::Subject>,
    /// The highest sequence in the stream that was answered.
    pub(super) sequence: u64,
}

impl Progress {
    pub(super) fn new(batch: String, records: usize) -> Self {
        Self {
            batch,
            records: vec![Known::Open; records],
            fresh: Vec::new(),
            refused: BTreeMap::new(),
            unknown_since: None,
            checked_for: None,
            looked: false,
            found: None,
            already: 0,
            resent: 0,
            reordered: 0,
            bytes: 0,
            no_stream_for: None,
            sequence: 0,
        }
    }

    pub(super) fn is_of(&self, batch: &str) -> bool {
        self.batch == batch
    }

    /// Whether this record needs no sending. Records behind the end do, and are refused elsewhere.
    pub(super) fn is_settled(&self, index: usize) -> bool {
        let known = self.records.get(index);
        known.is_some_and(|known| matches!(known, Known::Confirmed | Known::Refused))
    }

    pub(super) fn asked(&mut self, index: usize, now: Monotonic) {
        if let Some(known @ Known::Open) = self.records.get_mut(index) {
            *known = Known::Asked;
            self.unknown_since.get_or_insert(now);
        }
    }

    /// The server has answered that it did not take the record.
    pub(super) fn not_taken(&mut self, index: usize) {
        if let Some(known @ Known::Asked) = self.records.get_mut(index) {
            *known = Known::Open;
        }
    }

    pub(super) fn confirm(&mut self, index: usize, duplicate: bool) {
        if let Some(known) = self.records.get_mut(index)
            && *known != Known::Confirmed
        {
            *known = Known::Confirmed;
            self.already += u64::from(duplicate);
            self.fresh.push((index, duplicate));
        }
    }

    pub(super) fn refuse(&mut self, index: usize, reason: String) {
        if let Some(known) = self.records.get_mut(index) {
            *known = Known::Refused;
            self.refused.insert(index, reason);
        }
    }

    /// The bounds have changed: what was refused may be taken now.
    pub(super) fn forget_refused(&mut self) {
        for index in std::mem::take(&mut self.refused).into_keys() {
            self.records[index] = Known::Open;
        }
    }

    /// What is refused, in the order of the batch.
    pub(super) fn refused(&self) -> Vec<Refused> {
        let refused = self.refused.iter();
        refused
            .map(|(index, reason)| Refused { index: *index as u64, reason: reason.clone() })
            .collect()
    }

    pub(super) fn is_complete(&self) -> bool {
        (0..self.records.len()).all(|index| self.is_settled(index))
    }

    /// Records that were sent and not heard of.
    pub(super) fn unknown(&self) -> u64 {
        self.records.iter().filter(|known| **known == Known::Asked).count() as u64
    }

    /// Records that are neither confirmed nor refused.
    pub(super) fn open(&self) -> u64 {
        (0..self.records.len()).filter(|index| !self.is_settled(*index)).count() as u64
    }

    /// Since when something was asked of which nothing was heard.
    pub(super) fn unknown_since(&self) -> Option<Monotonic> {
        self.unknown_since.filter(|_| self.unknown() > 0)
    }

    /// Nothing is unknown any more: it was looked for, or it is sent again whatever became of it.
    pub(super) fn settle_unknown(&mut self) {
        self.unknown_since = None;
        for known in &mut self.records {
            if *known == Known::Asked {
                *known = Known::Open;
            }
        }
    }

    /// Ends an attempt, also one that was cut off: what it got confirmed behind the first record that is not, was reordered. So
    /// was a repeat behind a record that only this attempt has stored: an earlier one had stored it, and not that one. The client
    /// may send in a new session what it could not write in the one before, and what it had written there last is gone.
    pub(super) fn settle(&mut self) {
        let missing = (0..self.records.len()).find(|index| !self.is_settled(*index));
        let stored = self.fresh.iter().filter(|(_, is_repeat)| !is_repeat);
        let stored_from = stored.map(|(index, _)| *index).min();
        let is_behind =
            |index: usize, first: Option<usize>| first.is_some_and(|first| first < index);
        let reordered = self.fresh.iter().filter(|(index, is_repeat)| {
            is_behind(*index, missing) || *is_repeat && is_behind(*index, stored_from)
        });
        self.reordered += reordered.count() as u64;
        self.fresh.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_behind_a_failure_is_counted_once() {
        let mut progress = Progress::new("b".to_owned(), 4);
        progress.confirm(0, false);
        progress.confirm(2, false);
        progress.confirm(2, true);
        progress.settle();
        progress.settle();
        assert_eq!((progress.reordered, progress.already, progress.is_complete()), (1, 0, false));
        progress.confirm(1, true);
        progress.confirm(3, false);
        progress.confirm(9, false);
        progress.settle();
        assert_eq!((progress.reordered, progress.already, progress.is_complete()), (1, 1, true));
    }

    #[test]
    fn a_repeat_that_is_answered_before_what_is_stored_in_front_of_it_was_reordered() {
        let mut progress = Progress::new("b".to_owned(), 4);
        progress.confirm(0, true);
        progress.confirm(2, true);
        progress.confirm(3, true);
        progress.confirm(1, false);
        progress.settle();
        assert_eq!((progress.reordered, progress.already, progress.is_complete()), (2, 3, true));
    }

    #[test]
    fn a_repeat_behind_what_is_stored_only_now_was_reordered() {
        let mut progress = Progress::new("b".to_owned(), 6);
        progress.confirm(0, true);
        progress.confirm(1, false);
        progress.confirm(2, false);
        progress.confirm(3, true);
        progress.settle();
        assert_eq!((progress.reordered, progress.already), (1, 2));
        // Another attempt stores nothing in front of it.
        progress.confirm(4, true);
        progress.confirm(5, false);
        progress.settle();
        assert_eq!((progress.reordered, progress.already, progress.is_complete()), (1, 3, true));
    }

    #[test]
    fn only_what_was_asked_and_not_answered_is_unknown() {
        let mut progress = Progress::new("b".to_owned(), 4);
        assert_eq!(progress.unknown_since(), None);
        for index in 0..3 {
            progress.asked(index, Monotonic(7 + index as u64));
        }
        progress.not_taken(0);
        progress.confirm(1, false);
        assert_eq!((progress.unknown(), progress.open()), (1, 3));
        assert_eq!(progress.unknown_since(), Some(Monotonic(7)));
        progress.settle_unknown();
        assert_eq!((progress.unknown(), progress.unknown_since()), (0, None));
        progress.refuse(3, "too large".to_owned());
        assert_eq!(progress.refused(), [Refused { index: 3, reason: "too large".to_owned() }]);
        assert!(progress.is_settled(3) && !progress.is_complete());
        progress.forget_refused();
        assert!(!progress.is_settled(3));
    }
}
