//! Every hard bound of the agent, with its unit in its name, and the relations that must hold between them.
//!
//! What an operator may change is in the parts' `config.rs`; the bounds here are what the formats and the memory budget
//! were designed for.

/// Most bytes of frames in one chunk or batch part, before compression.
pub const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Most bytes a payload may have anywhere; `record_bytes_max` of a source may be lower, never higher.
pub const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What `record_bytes_max` is when a source does not say.
pub const RECORD_BYTES_MAX_DEFAULT: u64 = 1024 * 1024;
/// Most bytes of a subject.
pub const SUBJECT_BYTES_MAX: usize = 4 * 1024;
/// Most bytes of all headers of one record, encoded.
pub const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// Most characters in the name of a component or agent.
pub const NAME_BYTES_MAX: usize = 63;

/// Most operations in one journal transaction.
pub const TRANSACTION_OPERATIONS_MAX: usize = 1024;
/// Bytes after which a journal transaction takes no further operation.
pub const TRANSACTION_BYTES_MAX: usize = 1024 * 1024;
/// Operations that may wait for the journal's writer.
pub const WRITER_QUEUE_OPERATIONS_MAX: usize = 256;
/// Bytes of appends that may wait for the journal's writer; one append is always let through.
pub const WRITER_QUEUE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most chunks that one transaction deletes.
pub const DELETED_CHUNKS_MAX: usize = 64;
/// How long an ack may wait for a transaction that something else needs.
pub const ACK_DELAY_MS_MAX: u64 = 1_000;
/// Newest frames kept in memory for the lanes that keep up, over all streams.
pub const HOT_TAIL_BYTES_MAX: usize = 1024 * 1024;
/// Chunks of a stream that may pass before its positions are written to their table.
pub const POSITIONS_CHECKPOINT_CHUNKS: u64 = 64;
/// Most bytes of all positions of one append.
pub const POSITIONS_BYTES_MAX: usize = 64 * 1024;
/// Most chunks one read returns.
pub const READ_CHUNKS_MAX: usize = 8;
/// Read-only connections kept open.
pub const READERS_MAX: usize = 4;
/// Finished batches remembered for `explain`.
pub const FINISHED_BATCHES_MAX: u64 = 10_000;
/// The WAL is extended to this size in advance and not made smaller while the agent runs.
pub const WAL_EXTENT_BYTES: u64 = 8 * 1024 * 1024;
/// WAL frames after which the writer checkpoints.
pub const WAL_CHECKPOINT_PAGES: u32 = 4000;

/// Batches a lane seals ahead of their delivery.
pub const SEALED_AHEAD_MAX: usize = 4;
/// Times one batch is run again for one more record that a plugin faults on, before the plugin is parked.
pub const FAULTY_RECORDS_MAX: usize = 8;
/// Parts of one batch.
pub const BATCH_PARTS_MAX: u64 = 1 << 14;

/// Number of streams the chunk key has room for.
pub const STREAMS_MAX: u16 = i16::MAX as u16;
/// Number of lanes the part key has room for.
pub const LANES_MAX: u16 = (1 << 13) - 1;

/// Most bytes of the config file.
pub const CONFIG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Time a `status` client waits for the agent.
pub const ADMIN_CLIENT_TIMEOUT_MS: u64 = 5_000;
/// Connections the admin server holds at once.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;

const _: () = assert!(CHUNK_BYTES_MAX <= TRANSACTION_BYTES_MAX);
const _: () = assert!(TRANSACTION_BYTES_MAX <= WRITER_QUEUE_BYTES_MAX);
const _: () = assert!(HOT_TAIL_BYTES_MAX >= 2 * CHUNK_BYTES_MAX);
const _: () = assert!(RECORD_BYTES_MAX_DEFAULT <= RECORD_BYTES_MAX as u64);
const _: () = assert!(RECORD_BYTES_MAX < u32::MAX as usize);
const _: () = assert!(LANES_MAX < 1 << 13 && BATCH_PARTS_MAX <= 1 << 14);
