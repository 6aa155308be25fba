//! Looking into a journal without an agent's help: beside a running one, and when it is stopped. Nothing is written.
//!
//! - Beside a running agent: a read-only connection like those of its own readers; queries of a few rows.
//! - Stopped, without a WAL: the file is opened as one that nobody changes, and no file is made beside it.
//! - Stopped, with a WAL, as a killed agent leaves it: SQLite needs its index of the WAL and makes `-shm` for it; that is
//!   removed again, and closing does not move the WAL into the database.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::Serialize;

use super::acked::{AckedBatch, acked_batches};
use super::batches::every_batch;
use super::chunk::Decoder;
use super::error::JournalError;
use super::high_water::{HighWater, Marks, QuotaMark};
use super::open::{self, DATABASE_NAME, connect_bystander, connect_immutable, wal_path};
use super::reader::Window;
use super::salvage::{SalvageReport, earlier_reports};
use super::soundness;
use super::state::{LANE_BITS, LaneRow, SEQ_BITS, SEQ_MASK, State, chunk_key, key_seq, part_key};
use super::waiting::{Needed, Waiting, accepted_at};
use super::wal::{self, WalCheck};
use super::wear::Wear;
use super::{LaneTotals, StoredBatch};
use crate::clock::Timestamp;
use crate::error_chain::Chain;
use crate::record::batch::{ContentHash, FrameBlock};
use crate::record::id::{BatchNumber, LaneName, LaneNumber, Seq, SourceId, StreamNumber};

/// Rows that one query reads: short enough for any disk.
const ROWS_A_QUERY: usize = 64;
/// How often the kernel's list of locks is looked through for one.
const HOLDER_LOOKS: u32 = 8;

/// A journal that is looked into.
#[derive(Debug)]
pub struct Inspection {
    connection: Connection,
    directory: PathBuf,
    path: PathBuf,
    /// The process that has it open.
    agent_pid: Option<u32>,
    /// To be removed at the end: it was not there before.
    made: Option<PathBuf>,
}

/// What a journal holds.
#[derive(Debug, Serialize)]
pub struct JournalInfo {
    /// The database file.
    pub path: PathBuf,
    /// Whose journal it is.
    pub agent: Option<String>,
    /// The process that has it open.
    pub running_pid: Option<u32>,
    /// `user_version`.
    pub schema: i64,
    /// Bytes of the database file.
    pub database_bytes: u64,
    /// Of those, in pages that hold nothing.
    pub free_bytes: u64,
    /// Bytes of the WAL.
    pub wal_bytes: u64,
    /// What it has cost the disk; nothing where the file that keeps it is missing.
    pub wear: Wear,
    /// `wear.written_bytes` for each of `wear.appended_bytes`.
    pub write_amplification: Option<f64>,
    /// How full it was when an agent wrote it down last, at most a second before it stopped.
    pub quota: QuotaMark,
    /// All streams.
    pub streams: Vec<StreamInfo>,
    /// All lanes, dropped ones too.
    pub lanes: Vec<LaneInfo>,
    /// Dead letters.
    pub dead_letters: u64,
    /// Noted losses: ranges, by policy or damage.
    pub losses: u64,
    /// Salvages whose damaged files still lie there.
    pub salvages: Vec<SalvageReport>,
}

/// A stream.
#[derive(Debug, Serialize)]
pub struct StreamInfo {
    /// Its source.
    pub source: String,
    /// The oldest record that is kept.
    pub oldest: Option<u64>,
    /// The newest record.
    pub head: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// A lane.
#[derive(Debug, Serialize)]
pub struct LaneInfo {
    /// Its name.
    pub name: String,
    /// Its source.
    pub source: String,
    /// Its pipeline, which `lane move` may have changed since it was named.
    pub pipeline: String,
    /// Its sink, likewise.
    pub sink: String,
    /// Whether it was dropped: then only its name is kept.
    pub dropped: bool,
    /// Records without an outcome.
    pub queued: u64,
    /// Bytes of the chunks and parts that hold them.
    pub queued_bytes: u64,
    /// When the oldest of them was accepted, RFC 3339.
    pub oldest_at: Option<String>,
    /// Nanoseconds since 1970 of the same.
    #[serde(skip)]
    pub oldest: Option<Timestamp>,
    /// The last record that is sealed.
    pub sealed: u64,
    /// Batches that wait for their ack.
    pub batches: u64,
    /// Totals.
    pub delivered: u64,
    /// Left out by a plugin.
    pub dropped_records: u64,
    /// In the dead letters.
    pub dead_lettered: u64,
    /// Lost.
    pub lost: u64,
}

/// What a verification found.
#[derive(Debug, Default, Serialize)]
pub struct Verification {
    /// Chunks that were read.
    pub chunks: u64,
    /// Records in them.
    pub records: u64,
    /// Parts of batches that were read.
    pub parts: u64,
    /// Sealed batches whose hash was made anew.
    pub batches: u64,
    /// Whether SQLite's own check was made.
    pub structure_checked: bool,
    /// What is wrong.
    pub problems: Vec<String>,
}

impl Inspection {
    /// Opens the journal in a data directory.
    ///
    /// # Errors
    /// When there is none, it is none of ours, or SQLite cannot open it.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let path = directory.join(DATABASE_NAME);
        let metadata = fs::metadata(&path).map_err(|source| JournalError::File {
            path: path.clone(),
            doing: "read",
            source,
        })?;
        let agent_pid = holder(directory);
        let log = wal_path(&path);
        let read_wal = wal::check(&log).map_err(|source| JournalError::File {
            path: log,
            doing: "read",
            source,
        })?;
        let mut made = None;
        let connection = if agent_pid.is_none() && read_wal == WalCheck::Empty {
            connect_immutable(&path)?
        } else {
            let shared_memory = path.with_extension("db-shm");
            made = (agent_pid.is_none() && !shared_memory.exists()).then_some(shared_memory);
            connect_bystander(&path)?
        };
        if metadata.len() == 0 {
            return Err(JournalError::Missing { path, what: "the journal".to_owned() });
        }
        let inspection =
            Self { connection, directory: directory.to_owned(), path, agent_pid, made };
        let application: i64 = inspection.pragma("application_id")?;
        if application != super::schema::APPLICATION_ID {
            return Err(JournalError::Foreign { path: inspection.path.clone() });
        }
        Ok(inspection)
    }

    /// The process that has the journal open.
    #[must_use]
    pub fn agent_pid(&self) -> Option<u32> {
        self.agent_pid
    }

    /// What the journal holds, by one look at its tables.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn info(&self) -> Result<JournalInfo, JournalError> {
        let state = self.state()?;
        let page_bytes: i64 = self.pragma("page_size")?;
        let free: i64 = self.pragma("freelist_count")?;
        let bytes = |path: &Path| fs::metadata(path).map_or(0, |metadata| metadata.len());
        let mut streams = Vec::new();
        for (number, stream) in &state.streams {
            let (chunks, bytes) = self.sizes("chunks", stream_keys(*number, Seq(0)))?;
            let oldest = self.first_key(stream_keys(*number, Seq(0)))?.map(|key| key_seq(key).0);
            let (source, head) = (stream.source.to_string(), stream.next_seq.before().0);
            streams.push(StreamInfo { source, oldest, head, chunks, bytes });
        }
        streams.sort_by(|a, b| a.source.cmp(&b.source));
        let mut lanes = Vec::new();
        for (number, lane) in &state.lanes {
            lanes.push(self.lane_info(&state, *number, lane)?);
        }
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        let Marks { wear, quota, .. } = HighWater::in_directory(&self.directory).read();
        Ok(JournalInfo {
            wear,
            write_amplification: wear.write_amplification(),
            quota,
            agent: self.value("SELECT value FROM meta WHERE key = 'agent'")?,
            running_pid: self.agent_pid,
            schema: self.schema()?,
            database_bytes: bytes(&self.path),
            free_bytes: (page_bytes * free).cast_unsigned(),
            wal_bytes: bytes(&wal_path(&self.path)),
            streams,
            lanes,
            dead_letters: self.count("dead_letters")?,
            losses: self.count("losses")?,
            salvages: earlier_reports(&self.directory),
            path: self.path.clone(),
        })
    }

    fn lane_info(
        &self,
        state: &State,
        number: LaneNumber,
        lane: &LaneRow,
    ) -> Result<LaneInfo, JournalError> {
        let head = state.streams.get(&lane.stream).map_or(Seq(0), |s| s.next_seq.before());
        let waiting: u64 = lane.unacked.iter().map(|batch| batch.inputs).sum();
        let needed = Needed::by(state, number, lane);
        let look = |needed: Needed| needed.look(&self.connection);
        let found = needed.map(look).transpose().map_err(|error| self.failed(error))?;
        let Waiting { bytes: queued_bytes, oldest } = found.unwrap_or_default();
        let LaneTotals { delivered, dropped, dead_lettered, lost, .. } = lane.totals;
        Ok(LaneInfo {
            name: lane.name.to_string(),
            source: state
                .streams
                .get(&lane.stream)
                .map_or_else(String::new, |s| s.source.to_string()),
            pipeline: lane.pipeline.to_string(),
            sink: lane.sink.to_string(),
            dropped: lane.dropped,
            queued: (head.0 + waiting).saturating_sub(lane.sealed_seq.0),
            queued_bytes,
            oldest_at: oldest.map(rfc3339),
            oldest,
            sealed: lane.sealed_seq.0,
            batches: (lane.unacked.len() + lane.replays.len()) as u64,
            delivered,
            dropped_records: dropped,
            dead_lettered,
            lost,
        })
    }

    /// When the records of the chunk that begins with this one were accepted, if it is still there.
    pub(super) fn accepted_at_chunk(
        &self,
        stream: StreamNumber,
        first: Seq,
    ) -> Result<Option<Timestamp>, JournalError> {
        let key = chunk_key(stream, first);
        accepted_at(&self.connection, key, key).map_err(|error| self.failed(error))
    }

    pub(super) fn has_table(&self, name: &str) -> Result<bool, JournalError> {
        super::schema::has_table(&self.connection, name).map_err(|error| self.failed(error))
    }

    /// Checks every checksum, the hashes of sealed batches, cursors and positions, and with `structure` SQLite's own check,
    /// which keeps one read transaction open while it lasts. `progress` hears of the rows done.
    ///
    /// # Errors
    /// When the journal cannot be read at all; what is wrong with its content is in the result.
    pub fn verify(
        &self,
        structure: bool,
        mut progress: impl FnMut(u64),
    ) -> Result<Verification, JournalError> {
        let mut found = Verification { structure_checked: structure, ..Default::default() };
        if let Ok(WalCheck::Damaged { frame, commits_behind }) = wal::check(&wal_path(&self.path)) {
            found.problems.push(format!(
                "frame {frame} of the WAL is broken and {commits_behind} commits stand behind it"
            ));
        }
        let mut decoder = Decoder::new();
        for (table, bits) in [("chunks", SEQ_BITS), ("batch_parts", LANE_BITS)] {
            let checked = self.verify_rows(table, bits, &mut found, &mut decoder, &mut progress);
            if let Err(error) = checked {
                found.problems.push(format!("{table}: {}", Chain(&error)));
            }
        }
        match self.state() {
            Err(error) => found.problems.push(Chain(&error).to_string()),
            Ok(state) => {
                if let Some(what) = soundness::what_cannot_be(&state) {
                    found.problems.push(format!("{what} cannot be"));
                }
                self.verify_batches(&state, &mut found)?;
            }
        }
        if structure {
            self.check_structure(&mut found)?;
        }
        Ok(found)
    }

    fn verify_rows(
        &self,
        table: &str,
        bits: u32,
        found: &mut Verification,
        decoder: &mut Decoder,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), JournalError> {
        for (mut next, last) in self.ranges(table, bits)? {
            loop {
                let rows = self.rows(table, (next, last), ROWS_A_QUERY)?;
                let Some((newest, _)) = rows.last() else { break };
                next = newest + 1;
                for (key, row) in &rows {
                    found.check_row(decoder, table, *key, row);
                }
                progress(found.chunks + found.parts);
            }
        }
        Ok(())
    }

    /// The first and last key of each stream or lane, whose number stands above so many bits, as they are now: what is written
    /// while somebody reads must not keep the reader from its end.
    fn ranges(&self, table: &str, bits: u32) -> Result<Vec<(i64, i64)>, JournalError> {
        let first = format!("SELECT min(key) FROM {table} WHERE key BETWEEN ?1 AND ?2");
        let last = format!("SELECT max(key) FROM {table} WHERE key BETWEEN ?1 AND ?2");
        let (mut ranges, mut next) = (Vec::new(), 0);
        while let Some(begin) = self.value_of(&first, [next, i64::MAX])? {
            let highest = begin | ((1 << bits) - 1);
            ranges.push((begin, self.value_of(&last, [begin, highest])?.unwrap_or(begin)));
            let Some(following) = highest.checked_add(1) else { break };
            next = following;
        }
        Ok(ranges)
    }

    fn verify_batches(&self, state: &State, found: &mut Verification) -> Result<(), JournalError> {
        for (number, lane) in &state.lanes {
            for batch in self.batches(*number)? {
                found.batches += 1;
                let mut hash = ContentHash::default();
                let read = self.each_block(lane, *number, &batch, |block| {
                    block.records().flatten().for_each(|record| hash.update(&record));
                });
                let identity = batch.identity(&lane.name);
                match read {
                    Ok(()) if hash.finish() == batch.sha256 => {}
                    Ok(()) => found.problems.push(format!(
                        "batch {identity} does not have the content that was sealed"
                    )),
                    Err(error) => {
                        found.problems.push(format!("batch {identity}: {}", Chain(&error)));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_structure(&self, found: &mut Verification) -> Result<(), JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "checking the structure", source);
        let mut check = self.connection.prepare("PRAGMA integrity_check").map_err(failed)?;
        let rows = check.query_map([], |row| row.get::<_, String>(0)).map_err(failed)?;
        for row in rows {
            match row {
                Ok(line) if line == "ok" => {}
                Ok(line) => found.problems.push(format!("SQLite: {line}")),
                Err(error) => {
                    found.problems.push(format!("SQLite: {error}"));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Streams by name. Reads no chunk, so that what is good of a damaged journal can be read.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn streams(&self) -> Result<Vec<(StreamNumber, SourceId)>, JournalError> {
        let read = || {
            let mut query = self.connection.prepare("SELECT number, source FROM streams")?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        let rows = read().map_err(|error| self.failed(error))?;
        let named = rows.into_iter().filter_map(|(number, source)| {
            source.parse::<SourceId>().ok().map(|source| (StreamNumber(number), source))
        });
        let mut streams: Vec<_> = named.collect();
        streams.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(streams)
    }

    /// The names of all lanes, dropped ones too.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn lane_names(&self) -> Result<Vec<String>, JournalError> {
        self.query_rows("SELECT name FROM lanes ORDER BY name", &[], |row| row.get(0))
    }

    /// A lane by its name: its stream, the last record in front of what it has not delivered, and its unacked batches.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn lane(&self, name: &str) -> Result<Option<InspectedLane>, JournalError> {
        let state = self.state()?;
        let State { streams, lanes, .. } = state;
        let known = lanes.into_iter().find(|(_, lane)| lane.name.as_str() == name);
        let Some((number, row)) = known else { return Ok(None) };
        let batches = self.batches(number)?;
        let stream = streams.get(&row.stream);
        let head = stream.map_or(Seq(0), |stream| stream.next_seq.before());
        let source = stream.map(|stream| stream.source.clone());
        Ok(Some(InspectedLane { number, row, head, source, batches }))
    }

    /// Gives the blocks of a stream from `from` on, in order, as far as it goes now; a damaged chunk is given as its error.
    /// `Ok(false)` ends it.
    ///
    /// # Errors
    /// When the journal cannot be read, or `each` fails.
    pub fn each_chunk<E: From<JournalError>>(
        &self,
        stream: StreamNumber,
        from: Seq,
        mut each: impl FnMut(Result<FrameBlock, JournalError>) -> Result<bool, E>,
    ) -> Result<(), E> {
        if from.0 > SEQ_MASK {
            return Ok(());
        }
        let mut decoder = Decoder::new();
        let (_, to) = stream_keys(stream, from);
        let begin = [chunk_key(stream, Seq(0)), chunk_key(stream, from)];
        let holds = "SELECT max(key) FROM chunks WHERE key BETWEEN ?1 AND ?2";
        let mut next = self.value_of(holds, begin)?.unwrap_or(begin[1]);
        // What is appended while this reads must not keep it from its end.
        let Some(to) = self.value_of(holds, [next, to])? else { return Ok(()) };
        loop {
            let rows = self.rows("chunks", (next, to), ROWS_A_QUERY)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            next = last + 1;
            for (key, row) in &rows {
                let block = decoder.frames(row).map(|(_, block)| block);
                let block = block.map_err(|source| JournalError::ChunkDamaged {
                    path: self.path.clone(),
                    what: format!("the chunk with record {}", key_seq(*key)),
                    source,
                });
                if !each(block)? {
                    return Ok(());
                }
            }
        }
    }

    /// Gives the blocks of a sealed batch, in order.
    ///
    /// # Errors
    /// When something of it is damaged or missing.
    pub fn each_batch_block(
        &self,
        lane: &InspectedLane,
        batch: &StoredBatch,
        each: impl FnMut(FrameBlock),
    ) -> Result<(), JournalError> {
        self.each_block(&lane.row, lane.number, batch, each)
    }

    fn each_block(
        &self,
        lane: &LaneRow,
        number: LaneNumber,
        batch: &StoredBatch,
        mut each: impl FnMut(FrameBlock),
    ) -> Result<(), JournalError> {
        let missing = |what: String| JournalError::Missing { path: self.path.clone(), what };
        if batch.parts == 0 {
            let mut next = batch.first_seq;
            self.each_chunk::<JournalError>(lane.stream, batch.first_seq, |block| {
                let block = block?;
                let end = block.first_seq.plus(block.count.into());
                if block.first_seq > next || end <= next {
                    return Ok(false);
                }
                let block = super::cut(block, next, batch.last_seq);
                next = next.plus(block.take.into());
                each(block);
                Ok(next <= batch.last_seq)
            })?;
            return if next > batch.last_seq {
                Ok(())
            } else {
                Err(missing(format!("record {next} of lane {}", lane.name)))
            };
        }
        let mut decoder = Decoder::new();
        let mut window = Window::of(batch);
        for part in 0..batch.parts {
            let key = part_key(number, batch.number, part);
            let rows = self.rows("batch_parts", (key, key), 1)?;
            let what = || format!("part {part} of batch {} of lane {}", batch.number, lane.name);
            let Some((_, row)) = rows.first() else { return Err(missing(what())) };
            let (_, block) = decoder.frames(row).map_err(|source| JournalError::ChunkDamaged {
                path: self.path.clone(),
                what: what(),
                source,
            })?;
            if let Some(block) = window.trim(block) {
                each(block);
            }
        }
        Ok(())
    }

    /// Batches of a lane that are done and not yet in the ring of those, the newest first.
    pub(super) fn acked(
        &self,
        lane: &InspectedLane,
    ) -> Result<Vec<(StoredBatch, AckedBatch)>, JournalError> {
        let read = || {
            let acked = acked_batches(&self.connection, lane.number)?;
            let rows = every_batch(&self.connection, lane.number)?.into_iter().rev();
            let done = |batch: &StoredBatch| acked.iter().find(|done| done.is(batch)).copied();
            Ok(rows.filter_map(|(batch, _)| done(&batch).map(|done| (batch, done))).collect())
        };
        read().map_err(|error| self.failed(error))
    }

    fn batches(&self, lane: LaneNumber) -> Result<Vec<StoredBatch>, JournalError> {
        let batches = super::batches::stored_batches(&self.connection, lane)
            .map_err(|source| JournalError::sqlite(&self.path, "reading batches", source))?;
        Ok(batches.into_iter().map(|(batch, _)| batch).collect())
    }

    fn state(&self) -> Result<State, JournalError> {
        State::load(&self.connection, &self.path)
    }

    /// A few rows of a small table.
    pub(super) fn query_rows<T>(
        &self,
        query: &str,
        parameters: &[&dyn rusqlite::ToSql],
        of_row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, JournalError> {
        let read = || {
            let mut statement = self.connection.prepare_cached(query)?;
            statement.query_map(parameters, of_row)?.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(|error| self.failed(error))
    }

    fn failed(&self, source: rusqlite::Error) -> JournalError {
        JournalError::sqlite(&self.path, "looking into it", source)
    }

    pub(super) fn schema(&self) -> Result<i64, JournalError> {
        self.pragma("user_version")
    }

    fn pragma(&self, name: &str) -> Result<i64, JournalError> {
        let value = self.connection.pragma_query_value(None, name, |row| row.get(0));
        value.map_err(|error| self.failed(error))
    }

    fn value(&self, query: &str) -> Result<Option<String>, JournalError> {
        super::state::value(&self.connection, query, []).map_err(|error| self.failed(error))
    }

    fn value_of(&self, query: &str, keys: [i64; 2]) -> Result<Option<i64>, JournalError> {
        let value = self.connection.query_row(query, keys, |row| row.get(0));
        value.map_err(|error| self.failed(error))
    }

    fn first_key(&self, keys: (i64, i64)) -> Result<Option<i64>, JournalError> {
        self.value_of("SELECT min(key) FROM chunks WHERE key BETWEEN ?1 AND ?2", keys.into())
    }

    fn count(&self, table: &str) -> Result<u64, JournalError> {
        let query = format!("SELECT count(*) FROM {table}");
        let count = self.connection.query_row(&query, [], |row| row.get::<_, i64>(0));
        count.map(i64::cast_unsigned).map_err(|error| self.failed(error))
    }

    /// Rows and bytes. The length of a row stands beside its key, so content is not read.
    fn sizes(&self, table: &str, keys: (i64, i64)) -> Result<(u64, u64), JournalError> {
        let query = format!(
            "SELECT count(*), coalesce(sum(length(data)), 0) FROM {table} WHERE key BETWEEN ?1 AND ?2"
        );
        let sizes = self.connection.query_row(&query, keys, |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()))
        });
        sizes.map_err(|error| self.failed(error))
    }

    fn rows(
        &self,
        table: &str,
        keys: (i64, i64),
        limit: usize,
    ) -> Result<Vec<(i64, Vec<u8>)>, JournalError> {
        let query = format!(
            "SELECT key, data FROM {table} WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT {limit}"
        );
        let read = || {
            let mut statement = self.connection.prepare_cached(&query)?;
            let rows = statement.query_map(keys, |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<_>, _>>()
        };
        read().map_err(|error| self.failed(error))
    }
}

impl Drop for Inspection {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            // Somebody else may have done it.
            let _gone = fs::remove_file(made);
        }
    }
}

/// A lane that is looked into.
#[derive(Debug)]
pub struct InspectedLane {
    number: LaneNumber,
    row: LaneRow,
    head: Seq,
    source: Option<SourceId>,
    /// Its sealed batches without an ack.
    pub batches: Vec<StoredBatch>,
}

impl InspectedLane {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &LaneName {
        &self.row.name
    }

    /// Its stream.
    #[must_use]
    pub fn stream(&self) -> StreamNumber {
        self.row.stream
    }

    /// Its source.
    #[must_use]
    pub fn source(&self) -> &str {
        self.source.as_ref().map_or("", SourceId::as_str)
    }

    /// The newest record of its stream.
    #[must_use]
    pub fn head(&self) -> Seq {
        self.head
    }

    /// The last record that was there before the lane.
    #[must_use]
    pub fn start(&self) -> Seq {
        self.row.start_seq
    }

    /// The last record that it sealed.
    #[must_use]
    pub fn sealed(&self) -> Seq {
        self.row.sealed_seq
    }

    /// The number that its next batch gets.
    #[must_use]
    pub fn next_batch(&self) -> BatchNumber {
        self.row.next_batch
    }

    /// The last record in front of what has no outcome.
    #[must_use]
    pub fn acked(&self) -> Seq {
        self.row.acked()
    }
}

impl Verification {
    fn check_row(&mut self, decoder: &mut Decoder, table: &str, key: i64, row: &[u8]) {
        let is_chunk = table == "chunks";
        if is_chunk {
            self.chunks += 1;
        } else {
            self.parts += 1;
        }
        let wrong = match decoder.frames(row) {
            Err(error) => Some(error.to_string()),
            Ok((_, block)) => {
                self.records += if is_chunk { u64::from(block.count) } else { 0 };
                let bad = block.records().find_map(Result::err);
                bad.map(|error| error.to_string()).or_else(|| {
                    (is_chunk && block.first_seq != key_seq(key))
                        .then(|| "it stands under another key".to_owned())
                })
            }
        };
        if let Some(wrong) = wrong {
            self.problems.push(format!("{table}: row {key} (record {}): {wrong}", key_seq(key)));
        }
    }
}

/// The process that holds the data directory's lock. Asked of the kernel, not of the lock: trying it would keep an agent
/// that starts at this moment from getting it.
fn holder(directory: &Path) -> Option<u32> {
    let inode = fs::metadata(directory.join(open::LOCK_NAME)).ok()?.ino().to_string();
    let look = |_| {
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", pid, place, ..] = fields[..] else { return None };
            (place.rsplit(':').next() == Some(inode.as_str())).then(|| pid.parse().ok())?
        })
    };
    // The kernel gives the list page by page, and a lock that goes in between makes it step over another one.
    (0..HOLDER_LOOKS).find_map(look)
}

fn stream_keys(stream: StreamNumber, from: Seq) -> (i64, i64) {
    (chunk_key(stream, from), chunk_key(StreamNumber(stream.0 + 1), Seq(0)) - 1)
}

pub(super) fn rfc3339(time: Timestamp) -> String {
    let mut text = String::new();
    crate::record::time::push_rfc3339(time, &mut text);
    text
}
