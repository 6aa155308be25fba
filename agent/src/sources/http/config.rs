//! A `[sources.NAME]` table with `type = "http"`.

use std::time::Duration;

use crate::limits::IDEMPOTENCY_KEYS_MAX;
use crate::net::listen::ListenConfig;
use crate::settings::{Complaint, Table};
use crate::sources::config::{LineLimits, SourceKind, read_subject};
use crate::units::ByteSize;

/// Settings of a source that takes posts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSourceConfig {
    /// `listen`, `tls`, `tokens` and `insecure`.
    pub listen: ListenConfig,
    /// `path`: the only path that is served; default `"/"`.
    pub path: String,
    /// `body_max`: most bytes of a body, as it is sent and expanded; default `"16MiB"`, 1 KiB to 256 MiB.
    pub body_max: ByteSize,
    /// `idempotency`: how keys are remembered.
    pub idempotency: IdempotencyConfig,
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

/// How the keys of posts are remembered, so that a post that is sent again is not stored again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdempotencyConfig {
    /// `keep`: how long after the post, counted anew at each start; default `"24h"`, 1 s to 30 days.
    pub keep: Duration,
    /// `keys_max`: how many; the oldest go first; default 10 000, 1 to 100 000.
    pub keys_max: u64,
}

impl HttpSourceConfig {
    /// Reads what stands beside `type = "http"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let listen = ListenConfig::read(table);
        let path = table
            .text("path", "The only path that is served.")
            .check(|path| check_path(path))
            .or("/".to_owned());
        let body_max = table
            .size("body_max", "Most bytes of a body, as it is sent and expanded.")
            .within(ByteSize(1 << 10)..=ByteSize(256 << 20))
            .or(ByteSize(16 << 20));
        let keys = table.table("idempotency");
        let keep = keys
            .duration("keep", "How long the key of a post is remembered.")
            .within(Duration::from_secs(1)..=Duration::from_hours(30 * 24))
            .or(Duration::from_hours(24));
        let keys_max = keys
            .integer::<u64>("keys_max", "How many keys are remembered.")
            .within(1..=IDEMPOTENCY_KEYS_MAX)
            .or(10_000);
        let idempotency = IdempotencyConfig { keep, keys_max };
        let subject = read_subject(table, &["source"], "{source}");
        let limits = LineLimits::read(table);
        let listen = listen?;
        Some(SourceKind::Http(Self { listen, path, body_max, idempotency, subject, limits }))
    }
}

fn check_path(path: &str) -> Result<(), Complaint> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '%');
    if path.starts_with('/') && path.chars().all(is_plain) {
        return Ok(());
    }
    let message = format!("\"{path}\" is no path that can be served");
    Err(Complaint::new(message).hint("write it as \"/ingest\": without query, spaces and escapes"))
}
