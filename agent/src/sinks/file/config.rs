//! A `[sinks.NAME]` table with `type = "file"`.

use std::path::PathBuf;

use crate::sinks::config::LineFormat;

/// Settings of a file sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSinkConfig {
    /// `root`: the folder that all files lie in, already resolved against the folder of the config file.
    pub root: PathBuf,
    /// `path`: the name template below `root`, with `{agent}`, `{source}`, `{pipeline}`, `{sink}`, `{epoch}`, `{batch}`,
    /// `{first_seq}`, `{last_seq}`, `{date}` and `{hour}`; default
    /// `"{source}/{date}/{source}-{epoch}-{batch}-{first_seq}-{last_seq}.ndjson"`, with `.zst` when compressed.
    pub path: String,
    /// `format`, default `"lines"`.
    pub format: LineFormat,
    /// `compression.level` with `compression.codec = "zstd"`, 1 to 19, default 3; without the table files are plain.
    pub zstd_level: Option<i32>,
    /// `root_must_exist`: a missing root is an absent mount, not a folder to make; default false.
    pub root_must_exist: bool,
}
