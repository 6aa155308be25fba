//! A `[transforms.NAME]` table.

use std::path::PathBuf;
use std::time::Duration;

use crate::record::id::TransformId;
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

/// Settings of one transform.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformConfig {
    /// The table's name.
    pub id: TransformId,
    /// `plugin`: the component, already resolved against the folder of the config file.
    pub plugin: PathBuf,
    /// `sha256`: the digest that the file must have; default none.
    pub sha256: Option<[u8; 32]>,
    /// `config`: handed to the plugin as JSON text; default `{}`.
    pub config: String,
    /// `memory_max`: linear memory of an instance; default `"64MiB"`, 1 MiB to 4 GiB.
    pub memory_max: ByteSize,
    /// `deadline`: wall time of one call; default `"1s"`, 10 ms to 10 min.
    pub deadline: Duration,
    /// `on_error`, default `"dead_letter"`.
    pub on_error: OnError,
    /// `instance`, default `"per_batch"`.
    pub instance: InstanceLife,
    /// `call.records_max`: records of one call; default 1000, 1 to 100 000.
    pub call_records_max: u32,
    /// `call.bytes_max`: bytes of one call's records; default `"1MiB"`; one record is always let through.
    pub call_bytes_max: ByteSize,
}
