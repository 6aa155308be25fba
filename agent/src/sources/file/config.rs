//! A `[sources.NAME]` table with `type = "file"`.

use crate::sources::config::LineLimits;

/// Where a file that was never seen before is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// Its first byte.
    #[default]
    Beginning,
    /// Its end at that moment.
    End,
}

/// Settings of a file source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSourceConfig {
    /// `paths`: glob patterns, already resolved against the folder of the config file; at least one.
    pub paths: Vec<String>,
    /// `start_at`, default `"beginning"`.
    pub start_at: StartAt,
    /// `subject`: a template with `{file_stem}`, `{file_name}` and `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}
