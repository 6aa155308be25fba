//! A `[sources.NAME]` table: its kind, and what several kinds have in common.

use std::time::Duration;

use super::file::config::FileSourceConfig;
use crate::record::id::SourceId;
use crate::units::ByteSize;

/// What becomes of a record over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOversize {
    /// Its first bytes become a dead letter of stage `source`, with true size and position.
    #[default]
    DeadLetter,
    /// Its first bytes go on, with the headers `waystation-truncated: true` and `waystation-size: N`.
    Truncate,
    /// It is left out and counted.
    Drop,
}

/// How long a line may be, and what happens to a longer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    /// `record_bytes_max`, default `"1MiB"`, 1 B to 64 MiB.
    pub record_bytes_max: ByteSize,
    /// `on_oversize`, default `"dead_letter"`.
    pub on_oversize: OnOversize,
}

/// Settings of a source that makes records up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateSourceConfig {
    /// `records`: how many; default none, without end (refused with `--once`).
    pub records: Option<u64>,
    /// `every`: time between two; default `"1s"`; `"0ms"` makes them as fast as they are taken.
    pub every: Duration,
    /// `payload`: a template with `{n}` (from 1) and `{time}` (RFC 3339); default `{"n":{n},"time":"{time}"}`.
    pub payload: String,
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
}

/// Settings of a source that reads lines from standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdinSourceConfig {
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

/// The kinds of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// Lines of files.
    File(FileSourceConfig),
    /// Made-up records.
    Generate(GenerateSourceConfig),
    /// Lines of standard input.
    Stdin(StdinSourceConfig),
}

/// Settings of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The table's name.
    pub id: SourceId,
    /// What stands under it, by `type`.
    pub kind: SourceKind,
}
