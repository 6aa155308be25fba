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
/// Frames that were read last and are kept in memory, over all streams: small batches take many reads to get through a chunk.
pub const READ_RECENT_BYTES_MAX: usize = 1024 * 1024;
/// Read-only connections kept open.
pub const READERS_MAX: usize = 4;
/// Attempts of the batch that a lane is sending that its status shows.
pub const ATTEMPTS_SHOWN_MAX: usize = 8;
/// Finished batches remembered for `explain`; fewer where the journal is small.
pub const FINISHED_BATCHES_MAX: u64 = 10_000;
/// Acked batches of a lane whose rows go to those together.
pub const ACKED_ROWS_MAX: usize = 16;
/// Least that `journal.max_bytes` may be.
pub const JOURNAL_BYTES_MIN: u64 = 1024 * 1024;
/// Most that `journal.max_bytes` may be.
pub const JOURNAL_BYTES_MAX: u64 = 1 << 44;
/// The WAL is extended to this size in advance and not made smaller while the agent runs; at most an eighth of the limit.
pub const WAL_EXTENT_BYTES: u64 = 8 * 1024 * 1024;
/// Bytes of the WAL after which the writer checkpoints; at most a quarter of the limit.
pub const WAL_CHECKPOINT_BYTES: u64 = 16 * 1024 * 1024;
/// What lies ready for seals, acks and deletes when the volume is full; at most an eighth of the limit.
pub const BALLAST_BYTES: u64 = 8 * 1024 * 1024;
/// What the index of the WAL takes beside it.
pub const WAL_INDEX_BYTES: u64 = 32 * 1024;
/// Rows that remember losses; the oldest go first.
pub const LOSSES_MAX: u64 = 10_000;
/// What a dead letter counts in their store beside its payload, headers and texts.
pub const LETTER_ROW_BYTES: u64 = 128;
/// Most that `dead_letters.max_bytes` is when the config does not say; at most an eighth of the journal's limit.
pub const LETTERS_BYTES_MAX_DEFAULT: u64 = 256 * 1024 * 1024;
/// Least that `dead_letters.max_bytes` may be.
pub const LETTERS_BYTES_MIN: u64 = 64 * 1024;
/// Most bytes of the dead letters of one ack, unless it is a single one: a batch with more is cut first.
pub const LETTERS_ACK_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Letters that one order replays; more take another order, and those of one batch are not taken apart below this.
pub const REPLAY_LETTERS_MAX: usize = 10_000;
/// Orders for replays that may wait for a lane.
pub const REPLAYS_WAITING_MAX: usize = 4;
/// Replays whose outcome is remembered; the oldest go first.
pub const REPLAYS_MAX: u64 = 1000;
/// Most letters that one page of a list has, and that are discarded at once.
pub const LETTERS_PAGE_MAX: usize = 1000;
/// Discarded letters of which it is remembered who wanted it why; fewer where the journal is small.
pub const DISPOSITIONS_MAX: u64 = 1000;
/// Most bytes of an operator's note.
pub const NOTE_BYTES_MAX: usize = 512;
/// Pages of the database that must be free, beside their share of it, before the file is made smaller.
pub const SHRINK_FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Most bytes in use of a database that is made smaller: they are copied, while the writer waits.
pub const SHRINK_LIVE_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Most bytes of one row of a small table that is salvaged from a page: a dead letter with the largest record.
pub const SALVAGED_ROW_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;
/// Damaged rows and lost ranges that a salvage report lists; more are counted.
pub const SALVAGE_LISTED_MAX: usize = 1000;
/// Time that a start takes to go through the keys of the tables, so that what cannot be read is found before it is needed.
pub const START_CHECK_MS_MAX: u64 = 500;
/// Salvages of the journal that one process does before it ends: a disk that damages every journal is nothing to go on with.
pub const SALVAGES_A_RUN_MAX: u32 = 3;
/// Pauses between two looks for room by an agent that cannot start without.
pub const START_ROOM_LOOK_MS: u64 = 2_000;
/// How often a long salvage says how far it is.
pub const SALVAGE_PROGRESS_MS: u64 = 2_000;

/// Batches a lane seals ahead of their delivery.
pub const SEALED_AHEAD_MAX: usize = 4;
/// Most input records of one batch that a config may ask for.
pub const BATCH_RECORDS_MAX: u32 = 1_000_000;
/// Most input bytes of one batch that a config may ask for.
pub const BATCH_BYTES_MAX: u64 = 1 << 30;
/// Times one batch is run again for one more record that a plugin faults on, before the plugin is parked.
pub const FAULTY_RECORDS_MAX: usize = 8;
/// Parts of one batch.
pub const BATCH_PARTS_MAX: u64 = 1 << 14;

/// Bytes that a source reads at once.
pub const READ_BLOCK_BYTES: usize = 256 * 1024;
/// Bytes that a file source reads of one file before it turns to the next.
pub const FILE_TURN_BYTES: usize = 4 * 1024 * 1024;
/// Files that a file source holds open.
pub const FILES_OPEN_MAX: usize = 256;
/// Files that a file source follows; more are left out, with a warning.
pub const FILES_FOLLOWED_MAX: usize = 64 * 1024;
/// What was read of files that were removed or cut, remembered for an hour in case a copy of it turns up.
pub const FILE_CONTENTS_KEPT_MAX: usize = 1024;
/// Earlier marks in the position of a file, by which a copy of its first part is recognised.
pub const FILE_MARKS_MAX: usize = 6;
/// Window of a zstd archive that is read, as the exponent of two: what the `zstd` tool reads unasked. One archive is read at a time.
pub const FILE_ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Names that are tried for a file that is moved after it was read.
pub const FILE_MOVED_NAMES_MAX: u32 = 1000;
/// Files and patterns that a source names when it could not read them; more are counted.
pub const FILES_UNREAD_NAMED_MAX: usize = 20;
/// Appends of a source that may wait to become durable.
pub const APPENDS_PENDING_MAX: usize = 64;
/// Bytes of appends that a source keeps until they are durable, when it cannot read them again; one is always let through.
pub const APPENDS_KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most bytes of the path or name in `time_from`.
pub const TIME_FROM_BYTES_MAX: usize = 1024;
/// How often a source says that its records have no time, at most.
pub const TIME_WARNINGS_EVERY_MS: u64 = 10 * 60 * 1000;
/// Headers and properties of a foreign message that become headers of its record; more are left out.
pub const FOREIGN_HEADERS_MAX: usize = 64;

/// Largest MQTT packet that is read where `record_bytes_max` asks for less: a payload over that limit has to be read to be cut,
/// kept or counted. One over this ends the connection, before it is read.
pub const MQTT_PACKET_BYTES_MIN: usize = 16 * 1024 * 1024;
/// What an MQTT packet may have beside its payload: a topic and properties.
pub const MQTT_BESIDE_BYTES_MAX: usize = 256 * 1024;
/// Bytes that are read from an MQTT broker at once.
pub const MQTT_READ_BYTES: usize = 64 * 1024;
/// Answers to an MQTT broker that wait to be sent, after which nothing more is read.
pub const MQTT_ANSWERS_BYTES_MAX: usize = 64 * 1024;
/// Messages without an answer that a broker may send by MQTT 5; by 3.1.1 that is the broker's own setting.
pub const MQTT_RECEIVE_MAX: u16 = 1024;
/// Topic filters of one source.
pub const MQTT_TOPICS_MAX: usize = 256;
/// Most bytes of an MQTT client id.
pub const MQTT_CLIENT_ID_BYTES_MAX: usize = 256;
/// How long connecting to an MQTT broker may take, TLS included, and its answer to CONNECT.
pub const MQTT_CONNECT_MS_MAX: u64 = 10_000;
/// How long a broker may take to answer SUBSCRIBE.
pub const MQTT_SUBSCRIBE_MS_MAX: u64 = 10_000;
/// How long an MQTT source that is to end waits for a journal that takes nothing; what it has not answered comes again.
pub const MQTT_STOP_MS_MAX: u64 = 2_000;

/// Files that a batch is taken apart into; a batch ends before the record that would make one more.
pub const PARTITIONS_MAX: usize = 100;
/// Most bytes that a value takes in the name of a file, escaped.
pub const PARTITION_VALUE_BYTES_MAX: usize = 100;
/// Tokens of a subject that a name may ask for.
pub const SUBJECT_TOKENS_MAX: usize = 64;
/// Bytes that a sink gathers before it writes to a file.
pub const FILE_WRITE_BYTES: usize = 128 * 1024;

/// Most bytes of a NATS subject: a line of the protocol may have 4096, with the inbox for the answer and the sizes.
pub const NATS_SUBJECT_BYTES_MAX: usize = 3 * 1024;
/// Messages that a lookup in a stream asks for at once.
pub const NATS_LOOKUP_MESSAGES: usize = 1000;
/// Messages of one NATS subscription that wait in the client; of what is not asked for piece by piece more are dropped.
pub const NATS_SUBSCRIPTION_MESSAGES_MAX: usize = 4 * 1024;
/// Messages that a source has asked a consumer for and has not answered.
pub const NATS_UNANSWERED_MAX: usize = 2 * 1024;
/// Bytes that one request to a consumer asks for; more only where the server lets a single message be larger. A source that
/// holds so many bytes which the journal does not take asks for none.
pub const NATS_FETCH_BYTES: usize = 4 * 1024 * 1024;
/// How long a request to a consumer stands.
pub const NATS_FETCH_MS: u64 = 30_000;
/// How often the server says that a request stands; twice without a word ends the session.
pub const NATS_HEARTBEAT_MS: u64 = 5_000;
/// Pieces of the set of sequences that are stored above one that is not. What would make one more is not taken; it comes again.
pub const NATS_STORED_PIECES_MAX: usize = 512;
/// Subjects of one core subscription.
pub const NATS_SUBJECTS_MAX: usize = 256;
/// Bytes of a core subscription that wait for the journal; what comes then is dropped, and counted.
pub const NATS_WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a NATS source that is to end waits for a journal that takes nothing.
pub const NATS_STOP_MS_MAX: u64 = 2_000;
/// Commands that may wait for a NATS connection, and publishes that may wait for an answer, over all lanes of a sink.
pub const NATS_COMMANDS_MAX: usize = 16 * 1024;

/// Bytes of a request's body that are made and handed to the connection at once.
pub const HTTP_PIECE_BYTES: usize = 128 * 1024;
/// Bytes of a request's body that are kept in memory; a longer one is made once to be measured and again while it is sent.
pub const HTTP_BODY_KEPT_BYTES_MAX: u64 = 1024 * 1024;
/// Records of one batch that an HTTP sink refuses by name; beyond that it refuses the batch.
pub const HTTP_REFUSED_MAX: usize = 10_000;
/// Headers that a config may add to requests.
pub const HTTP_HEADERS_MAX: usize = 64;
/// Statuses that a config may declare to be conflicts.
pub const HTTP_CONFLICTS_MAX: usize = 16;
/// Most bytes of an answer's body that are read, so that its connection can be used again.
pub const HTTP_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long an answer's body is read once its status is known.
pub const HTTP_ANSWER_MS_MAX: u64 = 2_000;
/// Most bytes of an answer's body that an error shows.
pub const HTTP_EXCERPT_BYTES_MAX: usize = 256;
/// The longest wait that a destination may ask for.
pub const RETRY_AFTER_MS_MAX: u64 = 60 * 60 * 1000;
/// How long connecting to an HTTP server may take, TLS and proxy included; at most half an attempt.
pub const HTTP_CONNECT_MS_MAX: u64 = 10_000;
/// How long a request for a token may take; at most half an attempt.
pub const HTTP_TOKEN_MS_MAX: u64 = 10_000;
/// How long before its end a token is replaced, at most; a tenth of its life if that is less.
pub const HTTP_TOKEN_MARGIN_MS_MAX: u64 = 60_000;
/// Most bytes of a token.
pub const HTTP_TOKEN_BYTES_MAX: usize = 32 * 1024;
/// Idle connections that one HTTP client keeps to one server.
pub const HTTP_CONNECTIONS_IDLE_MAX: usize = 8;
/// How long an idle HTTP connection is kept: less than the 60 s after which balancers forget it.
pub const HTTP_IDLE_MS_MAX: u64 = 55_000;
/// How often a silent HTTP connection is asked whether it lives.
pub const HTTP_PING_MS: u64 = 20_000;
/// Disks, interfaces or sensors of a host that are measured; more are left out, with a warning.
pub const METRICS_ENTRIES_MAX: usize = 64;
/// How long measuring a host may take.
pub const METRICS_MS_MAX: u64 = 10_000;

/// Connections of one socket source; whoever comes then is closed.
pub const SOCKET_CONNECTIONS_MAX: usize = 256;
/// Of those, the ones from one address.
pub const SOCKET_CONNECTIONS_PER_CLIENT_MAX: usize = 64;
/// Connections that wait to be accepted.
pub const SOCKET_BACKLOG: i32 = 128;
/// Bytes that the kernel is asked to buffer for one connection; it takes twice as much, for what it needs itself.
pub const SOCKET_KERNEL_BYTES: u32 = 256 * 1024;
/// Bytes that are read from a connection at once.
pub const SOCKET_READ_BYTES: usize = 16 * 1024;
/// Bytes of records of one connection after which they are handed over.
pub const SOCKET_APPEND_BYTES: usize = 64 * 1024;
/// Appends of all connections of a source that wait for its run.
pub const SOCKET_APPENDS_WAITING_MAX: usize = 8;
/// Bytes of a frame that has begun which each connection may keep; of larger ones only so many are kept at once.
pub const SOCKET_FRAME_KEPT_BYTES: usize = 64 * 1024;
/// Bytes of all large frames that are kept at once, each counted with `record_bytes_max`; one may be kept in any case.
pub const SOCKET_LARGE_BYTES: usize = 16 * 1024 * 1024;
/// How often a connection within a large frame is looked at.
pub const SOCKET_LARGE_LOOK_MS: u64 = 10_000;
/// What must have come between two looks.
pub const SOCKET_LARGE_LOOK_BYTES_MIN: usize = 4 * 1024;
/// How long the TLS handshake of a connection may take.
pub const SOCKET_HANDSHAKE_MS_MAX: u64 = 15_000;
/// Silence after which TCP asks whether the other end is still there.
pub const SOCKET_KEEPALIVE_MS: u64 = 60_000;
/// How often TCP asks then.
pub const SOCKET_KEEPALIVE_EVERY_MS: u64 = 15_000;
/// How long a stopping socket source waits for its connections, and twice as long for the journal.
pub const SOCKET_STOP_MS_MAX: u64 = 2_000;
/// Room for one datagram: more than UDP can carry.
pub const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// Bytes of datagrams that the kernel is asked to buffer.
pub const DATAGRAMS_KERNEL_BYTES: usize = 4 * 1024 * 1024;
/// How often the kernel is asked what it has dropped.
pub const DATAGRAMS_LOOK_MS: u64 = 10_000;
/// Most bytes of the structured data of a syslog message that becomes a header.
pub const SYSLOG_STRUCTURED_DATA_BYTES_MAX: usize = 8 * 1024;
/// Most bytes that are kept of one datagram of a socket in the file system, or `record_bytes_max` if that is less: more than a
/// sender can send whom nobody has given a larger buffer.
pub const SOCKET_FILE_DATAGRAM_BYTES_MAX: usize = 512 * 1024;
/// Datagrams of a socket in the file system that are still taken when the source stops.
pub const SOCKET_FILE_LAST_DATAGRAMS_MAX: usize = 4096;
/// How long the folder of a socket is waited for while somebody else makes one in it.
pub const SOCKET_FILE_LOCK_MS_MAX: u64 = 1_000;
/// Units that a source of journald may name.
pub const JOURNALD_UNITS_MAX: usize = 64;
/// Most bytes of the name of a unit: what systemd allows.
pub const JOURNALD_UNIT_BYTES_MAX: usize = 255;
/// Bytes that are read from journalctl at once.
pub const JOURNALD_READ_BYTES: usize = 64 * 1024;
/// Bytes of records of journald after which they are handed over, though more can be read.
pub const JOURNALD_APPEND_BYTES: usize = 128 * 1024;
/// Most bytes of the name of a field of journald: what it allows.
pub const JOURNALD_NAME_BYTES_MAX: usize = 64;
/// Most bytes of a field of journald that becomes a header; of a message, `record_bytes_max` are kept.
pub const JOURNALD_FIELD_BYTES_MAX: usize = 4 * 1024;
/// Most bytes that are kept of what journalctl says.
pub const JOURNALD_SAID_BYTES_MAX: usize = 1024;
/// How long journalctl may take to say what the newest entry is.
pub const JOURNALD_NEWEST_MS_MAX: u64 = 30_000;
/// Networks that a source may name as those who may send.
pub const PEERS_MAX: usize = 256;

/// Tokens of one listener.
pub const TOKENS_MAX: usize = 64;
/// How long tokens count as they were read.
pub const TOKENS_FRESH_MS: u64 = 1_000;

/// Connections of one HTTP source; whoever comes then is told to come again.
pub const INGEST_CONNECTIONS_MAX: usize = 512;
/// Of those, the ones from one address.
pub const INGEST_CONNECTIONS_PER_CLIENT_MAX: usize = 256;
/// Connections over these limits that are told so; more are closed without a word.
pub const INGEST_TURNED_AWAY_MAX: usize = 32;
/// Most bytes of the head of a request to an HTTP source.
pub const INGEST_HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long the head of a request may take, and how long a connection may be idle between two; also its TLS handshake.
pub const INGEST_HEAD_MS_MAX: u64 = 15_000;
/// How often the progress of a body is looked at.
pub const INGEST_BODY_LOOK_MS: u64 = 10_000;
/// What must have come of a body between two looks.
pub const INGEST_BODY_LOOK_BYTES_MIN: usize = 4 * 1024;
/// Bytes of all bodies that are on their way, beside the largest one that is allowed.
pub const INGEST_BODIES_BYTES: usize = 8 * 1024 * 1024;
/// How long a request waits for room among the bodies that are on their way.
pub const INGEST_ROOM_MS_MAX: u64 = 10_000;
/// Bodies that are expanded at once.
pub const INGEST_DECODERS_MAX: usize = 2;
/// Bytes of an expanded body over which it is one of the large ones, of which there is one at a time.
pub const INGEST_LARGE_BYTES: usize = 1024 * 1024;
/// Window of a zstd body, as the exponent of two: what RFC 9659 allows on the web.
pub const INGEST_ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// How long a request waits for its commit.
pub const INGEST_COMMIT_MS_MAX: u64 = 30_000;
/// What is read and thrown away of a body that is refused, so that its client sees the answer.
pub const INGEST_REFUSED_BYTES_MAX: usize = 1024 * 1024;
/// How long it is read for.
pub const INGEST_REFUSED_MS_MAX: u64 = 2_000;
/// How long a stopping HTTP source waits for requests that are on their way.
pub const INGEST_STOP_MS_MAX: u64 = 5_000;
/// Most bytes of an `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Most keys that a config may ask to remember.
pub const IDEMPOTENCY_KEYS_MAX: u64 = 100_000;
/// Keys that are forgotten with one append.
pub const IDEMPOTENCY_FORGOTTEN_MAX: usize = 16;

/// Most bytes of a file of certificates or keys.
pub const PEM_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Number of streams the chunk key has room for.
pub const STREAMS_MAX: u16 = i16::MAX as u16;
/// Number of lanes the part key has room for.
pub const LANES_MAX: u16 = (1 << 13) - 1;

/// Most bytes of a plugin's file.
pub const PLUGIN_BYTES_MAX: u64 = 128 * 1024 * 1024;
/// Linear memory of a guest, where nothing else is said.
pub const PLUGIN_MEMORY_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Linear memories of former instances that are kept for new ones, and no more than there are CPUs.
pub const PLUGIN_KEPT_MEMORIES_MAX: usize = 8;
/// Bytes of pages in all of them.
pub const PLUGIN_KEPT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Size of a memory that is kept, most of which was never touched.
pub const PLUGIN_KEPT_MEMORY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of its pages: clearing more would take longer than new ones.
pub const PLUGIN_KEPT_TOUCHED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long they are kept while no guest runs.
pub const PLUGIN_KEPT_MS: u64 = 1000;
/// Data that a component may bring for its instances to have kept memories: it is written into each one, and pages of a file are not.
pub const PLUGIN_KEPT_DATA_BYTES_MAX: usize = 256 * 1024;
/// Bytes of stack that a guest may use.
pub const PLUGIN_STACK_BYTES: usize = 512 * 1024;
/// How often running guests are looked at.
pub const PLUGIN_TICK_MS: u64 = 10;
/// Time that instantiating a guest and its `init` may take.
pub const PLUGIN_INIT_MS_MAX: u64 = 10_000;
/// What a call may hand over, as a multiple of what it was given.
pub const PLUGIN_OUTPUT_FACTOR: usize = 4;
/// What a call may hand over in any case.
pub const PLUGIN_OUTPUT_BYTES_MIN: usize = 16 * 1024 * 1024;
/// Records that a plugin's timer may hand over at once.
pub const PLUGIN_TICK_RECORDS_MAX: usize = 10_000;
/// Core instances in one guest.
pub const PLUGIN_INSTANCES_MAX: usize = 64;
/// Memories in one guest.
pub const PLUGIN_MEMORIES_MAX: usize = 8;
/// Tables in one guest.
pub const PLUGIN_TABLES_MAX: usize = 32;
/// Elements of all tables of one guest.
pub const PLUGIN_TABLE_ELEMENTS_MAX: usize = 200_000;
/// Most bytes of a plugin's log line, and of a reason that it gives.
pub const PLUGIN_TEXT_BYTES_MAX: usize = 1024;
/// Log lines that a plugin may write in a second.
pub const PLUGIN_LOG_LINES_PER_SECOND_MAX: u32 = 100;
/// Origins that one plugin may send requests to.
pub const PLUGIN_ORIGINS_MAX: usize = 32;
/// Networks that one plugin may reach beside the public ones.
pub const PLUGIN_NETWORKS_MAX: usize = 32;
/// What a plugin is given of the body of an answer; the rest is left out.
pub const PLUGIN_ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// How long an instance of a sink lives at most, so that nothing it hoards stays for ever.
pub const PLUGIN_SINK_INSTANCE_MS_MAX: u64 = 60 * 60 * 1000;
/// Addresses of one name that are looked at.
pub const ADDRESSES_MAX: usize = 32;
/// Most bytes of a key in plugin state.
pub const STATE_KEY_BYTES_MAX: usize = 512;
/// Most bytes of a value in plugin state.
pub const STATE_VALUE_BYTES_MAX: usize = 1024 * 1024;
/// Most bytes of the state of one plugin in one lane.
pub const STATE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// What an entry of plugin state counts beside its key and value, so that small ones are bounded too.
pub const STATE_ENTRY_BYTES: usize = 64;
/// Time that compiling one plugin may take.
pub const COMPILE_MS_MAX: u64 = 120_000;
/// Address space of the process that compiles a plugin.
pub const COMPILE_ADDRESS_SPACE_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Threads of the process that compiles a plugin; each takes address space.
pub const COMPILE_THREADS_MAX: usize = 4;
/// Most bytes of a compiled plugin.
pub const COMPILED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Compiled plugins that are kept.
pub const COMPILED_FILES_MAX: usize = 64;
/// Most bytes of a file of cases for `plugin test`.
pub const PLUGIN_CASES_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Records that `plugin test` runs at once and in cuts.
pub const PLUGIN_TEST_RECORDS: usize = 1000;
/// Most bytes of a record of the cases that is run so often.
pub const PLUGIN_TEST_POOL_RECORD_BYTES_MAX: usize = 4 * 1024;
/// Batches that `plugin test` gives one instance to see whether memory stays flat.
pub const PLUGIN_TEST_BATCHES: usize = 10_000;
/// After how many of them it has what it needs.
pub const PLUGIN_TEST_WARM_BATCHES: usize = 2_000;
/// What a guest may grow by after that: collectors of garbage breathe.
pub const PLUGIN_TEST_GUEST_GROWTH_BYTES_MAX: usize = 256 * 1024;
/// What the process may grow by meanwhile.
pub const PLUGIN_TEST_HOST_GROWTH_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Rounds of `plugin bench`, of which the median counts.
pub const PLUGIN_BENCH_ROUNDS: u32 = 5;

/// Most bytes of a file of payloads for `plugin certify`, and of a request that its destination takes.
pub const PLUGIN_CERTIFY_REQUEST_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most records of the batch that `plugin certify` has delivered.
pub const PLUGIN_CERTIFY_RECORDS_MAX: usize = 1000;
/// Most requests of a batch at which each of the faults is tried.
pub const PLUGIN_CERTIFY_FAULTS_MAX: usize = 8;
/// Attempts after which a batch has to be delivered once its destination is well.
pub const PLUGIN_CERTIFY_ATTEMPTS_MAX: u32 = 3;
/// Batches that `plugin certify` gives one instance to see whether memory stays flat.
pub const PLUGIN_CERTIFY_BATCHES: usize = 2_000;

/// Threads for async work: what blocks has its own.
pub const ASYNC_THREADS_MAX: usize = 4;
/// Threads for plugins, files and reads of the journal; each file source keeps one, each lane up to two.
pub const BLOCKING_THREADS_MAX: usize = 512;

/// Most bytes of the config file.
pub const CONFIG_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most drop-ins of a config.
pub const CONFIG_DROP_INS_MAX: usize = 64;
/// Problems of the config file that are kept and shown; more are counted.
pub const CONFIG_PROBLEMS_MAX: usize = 200;
/// How long reading and checking a config may take before a reload gives up.
pub const RELOAD_READ_MS_MAX: u64 = 30_000;
/// How long a reload asks a new destination whether it would take a batch. One that is down keeps nothing from changing.
pub const RELOAD_PROBE_MS_MAX: u64 = 1_000;
/// For how long the files of the config must stay as they are before they are read: whoever writes several is let finish.
pub const CONFIG_QUIET_MS: u64 = 200;
/// How long files that change all the time are waited for.
pub const CONFIG_QUIET_MS_MAX: u64 = 1_000;
/// How often the files of the config are looked at while the system tells of changes: it does not on every file system.
pub const CONFIG_LOOK_MS: u64 = 30_000;
/// How often they are looked at where it tells of none.
pub const CONFIG_POLL_MS: u64 = 2_000;
/// How often it is looked how much waits in each lane, and since when.
pub const WAITING_LOOK_MS: u64 = 10_000;
/// Times the config file is parsed again without the lines that are no TOML.
pub const CONFIG_PARSES_MAX: usize = 8;
/// Time a client waits for the agent's answer, beyond what it asks for.
pub const ADMIN_CLIENT_TIMEOUT_MS: u64 = 5_000;
/// Connections the admin server holds at once, over the socket and over TCP together.
pub const ADMIN_CONNECTIONS_MAX: usize = 64;
/// Connections to the admin socket that wait to be accepted.
pub const ADMIN_SOCKET_BACKLOG: i32 = 128;
/// How long a connection to the admin server may live: the whole of one request and its answer.
pub const ADMIN_REQUEST_MS_MAX: u64 = 10_000;
/// How long a stopping admin server waits for answers that are on their way.
pub const ADMIN_STOP_MS_MAX: u64 = 1_000;
/// Most bytes of a request's head that the admin server reads.
pub const ADMIN_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Orders that are carried out at once; more are refused.
pub const ADMIN_ORDERS_MAX: usize = 8;
/// Most bytes of an order.
pub const ADMIN_BODY_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of the body of an order for a replay, which may bring a payload.
pub const ADMIN_REPLAY_BODY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The longest that a flush may wait.
pub const ADMIN_FLUSH_MS_MAX: u64 = 60 * 60 * 1000;
/// Most bytes of an answer that a client reads.
pub const ADMIN_ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of the path of a Unix socket: what the kernel takes, less the zero at its end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

const _: () = assert!(CHUNK_BYTES_MAX <= TRANSACTION_BYTES_MAX);
const _: () = assert!(BALLAST_BYTES >= 4 * TRANSACTION_BYTES_MAX as u64);
const _: () = assert!(JOURNAL_BYTES_MIN <= JOURNAL_BYTES_MAX);
const _: () = assert!(TRANSACTION_BYTES_MAX <= WRITER_QUEUE_BYTES_MAX);
const _: () = assert!(HOT_TAIL_BYTES_MAX >= 2 * CHUNK_BYTES_MAX);
const _: () = assert!(READ_RECENT_BYTES_MAX >= 2 * CHUNK_BYTES_MAX);
const _: () = assert!(RECORD_BYTES_MAX_DEFAULT <= RECORD_BYTES_MAX as u64);
const _: () = assert!(RECORD_BYTES_MAX < u32::MAX as usize);
// A datagram over IPv6 has at most so many bytes beside its header.
const _: () = assert!(DATAGRAM_BYTES_MAX > 65_527);
const _: () = assert!(SOCKET_APPEND_BYTES + SOCKET_READ_BYTES < CHUNK_BYTES_MAX);
// All that a source has asked for fits where it waits, beside what the server says of the requests.
const _: () = assert!(2 * NATS_UNANSWERED_MAX <= NATS_SUBSCRIPTION_MESSAGES_MAX);
// A piece is at most two numbers of 20 digits, with their commas.
const _: () = assert!(NATS_STORED_PIECES_MAX * 42 < POSITIONS_BYTES_MAX / 2);
// MQTT says lengths in 28 bits.
const _: () = assert!(RECORD_BYTES_MAX + MQTT_BESIDE_BYTES_MAX < 1 << 28);
// The largest order: a page of ids, and a note in which every byte is escaped.
const _: () = assert!(LETTERS_PAGE_MAX * 21 + NOTE_BYTES_MAX * 6 < ADMIN_BODY_BYTES_MAX / 2);
const _: () = assert!(LANES_MAX < 1 << 13 && BATCH_PARTS_MAX <= 1 << 14);
const _: () = assert!(STATE_KEY_BYTES_MAX + STATE_VALUE_BYTES_MAX < STATE_BYTES_MAX);
const _: () = assert!(STATE_VALUE_BYTES_MAX + STATE_KEY_BYTES_MAX <= PLUGIN_OUTPUT_BYTES_MIN);
