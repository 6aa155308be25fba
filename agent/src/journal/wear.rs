//! What the journal costs the disk, over all its runs.
//!
//! Kept with the high-water marks and as good as those: a row in the database would itself be written with every commit. A
//! kill loses the last second of it.

use serde::{Deserialize, Serialize};

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
    appended_bytes: u64,
}

impl WearMeter {
    pub(super) fn new(before: Wear) -> Self {
        Self { before, thread_bytes: 0, commits: 0, appended_bytes: 0 }
    }

    pub(super) fn committed(&mut self) {
        self.commits += 1;
    }

    pub(super) fn appended(&mut self, bytes: u64) {
        self.appended_bytes += bytes;
    }

    /// Commits of this run.
    pub(super) fn commits(&self) -> u64 {
        self.commits
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
