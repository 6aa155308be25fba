//! The `[journal]` table.

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
