//! The `[journal]` table.

use crate::settings::Table;
use std::time::Duration;

/// What a commit promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Synced to disk before a producer hears "accepted".
    #[default]
    Full,
    /// Written, not synced: a power cut may lose the last commits; a killed agent loses nothing.
    Relaxed,
}

/// Settings of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JournalConfig {
    /// `durability`, default `"full"`.
    pub durability: Durability,
    /// `commit_interval`: the least time between two commits; default `"0ms"`, 50 to 100 ms spares flash. At most 10 s.
    pub commit_interval: Duration,
}

/// Least and most of `commit_interval`.
const COMMIT_INTERVAL: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(10));

impl JournalConfig {
    /// Reads `[journal]`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        table.later(&["max_bytes", "on_full", "max_age"]);
        let words = [("full", Durability::Full), ("relaxed", Durability::Relaxed)];
        Self {
            durability: table
                .choice(
                    "durability",
                    "What a commit promises: with \"relaxed\", a power cut may lose the last ones.",
                    &words,
                )
                .or(Durability::default()),
            commit_interval: table
                .duration(
                    "commit_interval",
                    "The least time between two commits; 50 to 100 ms spares flash.",
                )
                .within(COMMIT_INTERVAL.0..=COMMIT_INTERVAL.1)
                .or(Duration::ZERO),
        }
    }
}
