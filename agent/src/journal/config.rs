//! The `[journal]` table.

use crate::limits::{
    JOURNAL_BYTES_MAX, JOURNAL_BYTES_MIN, LETTERS_BYTES_MAX_DEFAULT, LETTERS_BYTES_MIN,
};
use crate::settings::Table;
use crate::units::ByteSize;
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

/// What becomes of new records when the journal is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFull {
    /// Sources wait until there is room. Nothing is refused and nothing is lost.
    #[default]
    Block,
    /// They are refused at once, with the reason: a producer that is answered hears it.
    Reject,
    /// The oldest records make room. Each range that a lane loses so is kept as a row, and counted.
    DropOldest,
}

impl OnFull {
    /// The word in the config.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Reject => "reject",
            Self::DropOldest => "drop_oldest",
        }
    }
}

/// What becomes of a dead letter when their store is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LettersOnFull {
    /// What it belongs to waits: its batch stays unacknowledged and its lane holds, a source waits as for a full journal.
    #[default]
    Hold,
    /// The oldest dead letters make room, and are counted.
    DropOldest,
}

impl LettersOnFull {
    /// The word in the config.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::DropOldest => "drop_oldest",
        }
    }
}

/// Settings of the store of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LettersConfig {
    /// `dead_letters.max_bytes`; default: the smaller of 256 MiB and an eighth of `journal.max_bytes`; at least 64 KiB.
    pub max_bytes: Option<ByteSize>,
    /// `dead_letters.on_full`, default `"hold"`.
    pub on_full: LettersOnFull,
}

/// Settings of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalConfig {
    /// `durability`, default `"full"`.
    pub durability: Durability,
    /// `commit_interval`: the least time between two commits; default `"0ms"`, 50 to 100 ms spares flash. At most 10 s.
    pub commit_interval: Duration,
    /// `max_bytes`: what the journal may take on disk: database, WAL and reserve; default `"2GiB"`, at least `"1MiB"`.
    pub max_bytes: ByteSize,
    /// `on_full`: what becomes of new records then; default `"block"`.
    pub on_full: OnFull,
    /// `max_age`: records that were accepted longer ago are given up; none by default. A second to ten years.
    pub max_age: Option<Duration>,
    /// `[dead_letters]`, as far as it is about their store.
    pub letters: LettersConfig,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            commit_interval: Duration::ZERO,
            max_bytes: MAX_BYTES_DEFAULT,
            on_full: OnFull::default(),
            max_age: None,
            letters: LettersConfig::default(),
        }
    }
}

/// What `max_bytes` is when the config does not say.
const MAX_BYTES_DEFAULT: ByteSize = ByteSize(2 << 30);
/// Least and most of `max_age`.
const MAX_AGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(10 * 365 * 24));

/// Least and most of `commit_interval`.
const COMMIT_INTERVAL: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(10));

impl JournalConfig {
    /// What all dead letters may take.
    #[must_use]
    pub fn letters_bytes_max(&self) -> ByteSize {
        let default = ByteSize(LETTERS_BYTES_MAX_DEFAULT.min(self.max_bytes.0 / 8));
        self.letters.max_bytes.unwrap_or(default)
    }

    /// Reads `[journal]`, and of `[dead_letters]` what is about their store.
    #[must_use]
    pub fn read(table: &Table<'_>, dead_letters: &Table<'_>) -> Self {
        let mut config = Self::read_own(table);
        let default = config.letters_bytes_max();
        config.letters.max_bytes = Some(
            dead_letters
                .size("max_bytes", "What all dead letters together may take.")
                .within(ByteSize(LETTERS_BYTES_MIN)..=ByteSize(JOURNAL_BYTES_MAX))
                .or(default),
        );
        config.letters.on_full = dead_letters
            .choice(
                "on_full",
                "What becomes of a dead letter when there is no room for it.",
                &[("hold", LettersOnFull::Hold), ("drop_oldest", LettersOnFull::DropOldest)],
            )
            .or(LettersOnFull::default());
        config
    }

    fn read_own(table: &Table<'_>) -> Self {
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
            max_bytes: table
                .size("max_bytes", "What the journal may take on disk: database, WAL and reserve.")
                .within(ByteSize(JOURNAL_BYTES_MIN)..=ByteSize(JOURNAL_BYTES_MAX))
                .or(MAX_BYTES_DEFAULT),
            on_full: table
                .choice(
                    "on_full",
                    "What becomes of new records when the journal is full.",
                    &[
                        ("block", OnFull::Block),
                        ("reject", OnFull::Reject),
                        ("drop_oldest", OnFull::DropOldest),
                    ],
                )
                .or(OnFull::default()),
            max_age: table
                .duration("max_age", "Records that were accepted longer ago are given up.")
                .within(MAX_AGE.0..=MAX_AGE.1)
                .optional(),
            letters: LettersConfig::default(),
        }
    }
}
