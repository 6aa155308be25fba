//! A `[transforms.NAME]` table, and what it has in common with that of a sink that is a plugin.

use crate::settings::{Complaint, Table};
use std::path::PathBuf;
use std::time::Duration;

use crate::limits::PLUGIN_MEMORY_BYTES_DEFAULT;
use crate::record::id::TransformId;
use crate::secret::SecretJson;
use crate::units::ByteSize;

/// What happens to a batch when the plugin says `permanent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Its records become dead letters.
    #[default]
    DeadLetter,
    /// The lane holds.
    Hold,
    /// Its records are dropped, and counted as dropped.
    Drop,
}

/// How long an instance lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InstanceLife {
    /// A new instance for each batch.
    #[default]
    PerBatch,
    /// One instance until it traps.
    Reuse,
}

/// What every table with a plugin has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestConfig {
    /// `plugin`: the component, already resolved against the folder of the config file.
    pub plugin: PathBuf,
    /// `sha256`: the digest that the file must have; default none.
    pub sha256: Option<[u8; 32]>,
    /// `config`: handed to the plugin as JSON text; default `{}`. A table in it that is nothing but `{ env = "NAME" }` or
    /// `{ file = "PATH" }` stands for the secret that it names.
    pub config: SecretJson,
    /// `memory_max`: linear memory of an instance; default `"64MiB"`, 1 MiB to 4 GiB.
    pub memory_max: ByteSize,
    /// `deadline`: wall time of one call, for a sink without the time that its requests take; default `"1s"`, 10 ms to
    /// 10 min.
    pub deadline: Duration,
}

/// Settings of one transform.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformConfig {
    /// The table's name.
    pub id: TransformId,
    /// What every plugin has.
    pub guest: GuestConfig,
    /// `tick`: time between two calls of a plugin with a timer, between batches; default none, 100 ms to 24 h.
    pub tick: Option<Duration>,
    /// `on_error`, default `"dead_letter"`.
    pub on_error: OnError,
    /// `instance`, default `"per_batch"`.
    pub instance: InstanceLife,
    /// `call.records_max`: records of one call; default 1000, 1 to 100 000.
    pub call_records_max: u32,
    /// `call.bytes_max`: bytes of one call's records; default `"1MiB"`, 1 B to 64 MiB; one record is always let through.
    pub call_bytes_max: ByteSize,
}

const MEMORY: (ByteSize, ByteSize) = (ByteSize(1 << 20), ByteSize(4 << 30));
const DEADLINE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_mins(10));
const TICK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_hours(24));
const CALL_BYTES: (ByteSize, ByteSize) = (ByteSize(1), ByteSize(64 << 20));

impl GuestConfig {
    /// Reads the keys that every plugin has. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<Self> {
        let plugin = table.file_path("plugin", "The WebAssembly component.").required();
        let sha256 = table
            .parsed("sha256", "The digest that the file must have.", "64 hex digits", |text| {
                Digest::parse(text).ok_or_else(|| {
                    Complaint::new("`sha256` must be 64 hex digits")
                        .hint("`sha256sum FILE` prints them")
                })
            })
            .optional();
        let config =
            table.json("config", "Handed to the plugin as JSON.").or(SecretJson::default());
        let memory_max = table
            .size("memory_max", "Linear memory of an instance.")
            .within(MEMORY.0..=MEMORY.1)
            .or(ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT));
        let deadline = table
            .duration("deadline", "Wall time of one call.")
            .within(DEADLINE.0..=DEADLINE.1)
            .or(Duration::from_secs(1));
        let sha256 = sha256.map(|digest| digest.0);
        Some(Self { plugin: plugin?, sha256, config, memory_max, deadline })
    }
}

impl TransformConfig {
    /// Reads `[transforms.ID]`. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(id: Option<TransformId>, table: &Table<'_>) -> Option<Self> {
        let guest = GuestConfig::read(table);
        let tick = table
            .duration("tick", "Time between two calls of a plugin with a timer, between batches.")
            .within(TICK.0..=TICK.1)
            .optional();
        let on_error = table
            .choice(
                "on_error",
                "What happens to a batch when the plugin says `permanent`.",
                &[
                    ("dead_letter", OnError::DeadLetter),
                    ("hold", OnError::Hold),
                    ("drop", OnError::Drop),
                ],
            )
            .or(OnError::default());
        let lives = [("per_batch", InstanceLife::PerBatch), ("reuse", InstanceLife::Reuse)];
        let instance = table
            .choice("instance", "How long an instance lives.", &lives)
            .or(InstanceLife::default());
        let call = table.table("call");
        let call_records_max =
            call.integer("records_max", "Records of one call.").within(1..=100_000).or(1000);
        let call_bytes_max = call
            .size("bytes_max", "Bytes of one call's records; one record is always let through.")
            .within(CALL_BYTES.0..=CALL_BYTES.1)
            .or(ByteSize(1 << 20));
        Some(Self {
            id: id?,
            guest: guest?,
            tick,
            on_error,
            instance,
            call_records_max,
            call_bytes_max,
        })
    }
}

/// A SHA-256 as people write it.
struct Digest([u8; 32]);

impl Digest {
    fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(index * 2..index * 2 + 2)?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
