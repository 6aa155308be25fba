//! Which records of a batch a stream has confirmed, over all attempts of one sink instance.
//!
//! Kept in memory only: after a restart the whole batch is sent again, and the stream recognises what it has.

/// The records of one batch.
#[derive(Debug)]
pub(super) struct Progress {
    batch: String,
    confirmed: Vec<bool>,
    /// Confirmed in the attempt that runs, in the order of their answers.
    fresh: Vec<usize>,
    /// Whether every record is known to fit the server's limits.
    pub(super) checked_for: Option<usize>,
    /// Confirmed as repeats.
    pub(super) already: u64,
    /// Stored behind a record that had failed.
    pub(super) reordered: u64,
    /// Bytes sent.
    pub(super) bytes: u64,
    /// A subject that no stream has taken.
    pub(super) no_stream_for: Option<async_nats::Subject>,
}

impl Progress {
    pub(super) fn new(batch: String, records: usize) -> Self {
        Self {
            batch,
            confirmed: vec![false; records],
            fresh: Vec::new(),
            checked_for: None,
            already: 0,
            reordered: 0,
            bytes: 0,
            no_stream_for: None,
        }
    }

    pub(super) fn is_of(&self, batch: &str) -> bool {
        self.batch == batch
    }

    /// Whether this record needs no sending. Records behind the end do, and are refused elsewhere.
    pub(super) fn is_confirmed(&self, index: usize) -> bool {
        self.confirmed.get(index).copied().unwrap_or(false)
    }

    pub(super) fn confirm(&mut self, index: usize, duplicate: bool) {
        if let Some(confirmed @ false) = self.confirmed.get_mut(index) {
            *confirmed = true;
            self.fresh.push(index);
            self.already += u64::from(duplicate);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.confirmed.iter().all(|confirmed| *confirmed)
    }

    /// Ends an attempt, also one that was cut off: what it got confirmed behind the first record that is not, was reordered.
    pub(super) fn settle(&mut self) {
        let first_missing = self.confirmed.iter().position(|confirmed| !confirmed);
        if let Some(missing) = first_missing {
            let behind = self.fresh.iter().filter(|index| **index > missing).count();
            self.reordered += behind as u64;
        }
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
}
