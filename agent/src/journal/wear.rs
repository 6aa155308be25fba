//! What the journal costs the disk, over all its runs, and how long the disk takes.
//!
//! The costs are kept with the high-water marks and as good as those: a row in the database would itself be written with every commit. A
//! kill loses the last second of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Upper bounds of what commits are counted by, in microseconds: from a disk with a battery to a card that does its own
/// housekeeping. One more count is of those beyond the last.
pub const COMMIT_MICROS_BOUNDS: [u64; 12] = [
    500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
    5_000_000,
];

/// How long this run's commits took, which is writing the WAL and syncing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitTimes {
    /// Commits up to each of [`COMMIT_MICROS_BOUNDS`] and over the one before it, and those beyond the last.
    pub counts: [u64; COMMIT_MICROS_BOUNDS.len() + 1],
    /// All of them together.
    pub sum: Duration,
}

impl CommitTimes {
    fn add(&mut self, took: Duration) {
        let bound =
            COMMIT_MICROS_BOUNDS.partition_point(|bound| u128::from(*bound) < took.as_micros());
        self.counts[bound] += 1;
        self.sum += took;
    }
}

/// Counts since the journal was made, or since the file that keeps them was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Wear {
    /// Transactions committed.
    pub commits: u64,
    /// Bytes of the records that were taken in: payloads, headers and subjects, and about four bytes for each record.
    pub appended_bytes: u64,
    /// Bytes that the writer's thread has sent to storage for them: WAL, checkpoints, ballast and this file, as the kernel
    /// counts them. A file system in memory counts none.
    pub written_bytes: u64,
}

impl Wear {
    /// Bytes written for each byte taken in; nothing before the first.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn write_amplification(&self) -> Option<f64> {
        (self.appended_bytes > 0).then(|| self.written_bytes as f64 / self.appended_bytes as f64)
    }
}

/// Counts what this run adds.
#[derive(Debug)]
pub(super) struct WearMeter {
    /// What earlier runs had.
    before: Wear,
    /// What the thread had written when it was seen last.
    thread_bytes: u64,
    commits: u64,
    times: CommitTimes,
    appended_bytes: u64,
}

impl WearMeter {
    pub(super) fn new(before: Wear) -> Self {
        Self {
            before,
            thread_bytes: 0,
            commits: 0,
            times: CommitTimes::default(),
            appended_bytes: 0,
        }
    }

    pub(super) fn committed(&mut self, took: Duration) {
        self.commits += 1;
        self.times.add(took);
    }

    pub(super) fn appended(&mut self, bytes: u64) {
        self.appended_bytes += bytes;
    }

    /// Commits of this run.
    pub(super) fn commits(&self) -> u64 {
        self.commits
    }

    pub(super) fn commit_times(&self) -> CommitTimes {
        self.times
    }

    /// Asks the kernel what the calling thread has written. Only the writer's thread calls it.
    pub(super) fn look(&mut self) {
        let text = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
        // A kernel without this accounting has no such file.
        self.thread_bytes = count.unwrap_or(self.thread_bytes);
    }

    /// Of all runs.
    pub(super) fn wear(&self) -> Wear {
        Wear {
            commits: self.before.commits + self.commits,
            appended_bytes: self.before.appended_bytes + self.appended_bytes,
            written_bytes: self.before.written_bytes + self.thread_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_counts_to_the_least_bound_that_it_does_not_exceed() {
        let mut times = CommitTimes::default();
        let micros = [0, 500, 501, 1_000_000, 5_000_000, 5_000_001, u64::MAX / 2];
        micros.into_iter().for_each(|micros| times.add(Duration::from_micros(micros)));
        let mut wanted = [0; COMMIT_MICROS_BOUNDS.len() + 1];
        (wanted[0], wanted[1], wanted[10], wanted[11], wanted[12]) = (2, 1, 1, 1, 2);
        assert_eq!(times.counts, wanted);
        assert_eq!(times.sum, micros.into_iter().map(Duration::from_micros).sum::<Duration>());
    }
}
