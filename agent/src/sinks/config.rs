//! A `[sinks.NAME]` table: its kind, and what all kinds have in common.

use std::time::Duration;

use super::file::config::FileSinkConfig;
use super::nats::config::NatsSinkConfig;
use crate::backoff::Backoff;
use crate::record::id::SinkId;
use crate::units::ByteSize;

/// When a lane stops adding to a batch. Whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConfig {
    /// `batch.records_max`: input records; default 1000, for files 50 000.
    pub records_max: u32,
    /// `batch.bytes_max`: bytes of the input records; default `"1MiB"`, for files `"8MiB"`; one record is always taken.
    pub bytes_max: ByteSize,
    /// `batch.linger`: how long the first record may wait for more; default `"1s"`, for files `"30s"`.
    pub linger: Duration,
}

/// How a lane repeats a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// `retry.backoff` (default `"200ms"`), `retry.backoff_max` (default `"30s"`) and `retry.jitter` (default `"full"`).
    pub backoff: Backoff,
    /// `retry.attempt_timeout`: after this an attempt has failed with unknown outcome; default `"30s"`.
    pub attempt_timeout: Duration,
}

/// How a record stands in a file or on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineFormat {
    /// The payload and a newline.
    #[default]
    Lines,
    /// A JSON object with `id`, `time`, `subject`, `headers`, and `payload` or `payload_base64`.
    Json,
}

/// Settings of a sink that prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StdoutSinkConfig {
    /// `format`, default `"lines"`.
    pub format: LineFormat,
}

/// The kinds of sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkKind {
    /// Files.
    File(FileSinkConfig),
    /// NATS JetStream.
    Nats(NatsSinkConfig),
    /// Standard output.
    Stdout(StdoutSinkConfig),
}

/// Settings of one sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// The table's name.
    pub id: SinkId,
    /// `batch`.
    pub batch: BatchConfig,
    /// `retry`.
    pub retry: RetryConfig,
    /// What stands under it, by `type`.
    pub kind: SinkKind,
}
