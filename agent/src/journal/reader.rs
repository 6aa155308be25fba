//! Reading: a few read-only connections, and the newest chunks in memory.
//!
//! A query reads a few rows and is done with before anything is sent anywhere, so that no read transaction lasts.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rusqlite::Connection;

use super::batches::{StoredBatch, Variant};
use super::chunk::{Decoder, Kind};
use super::error::{JournalError, gap};
use super::lanes::LaneJournal;
use super::open::connect_reader;
use super::state::{chunk_key, part_key};
use super::writer::Published;
use crate::limits::{HOT_TAIL_BYTES_MAX, READ_CHUNKS_MAX, READ_RECENT_BYTES_MAX, READERS_MAX};
use crate::record::batch::{BlockReader, FrameBlock, ReadError};
use crate::record::id::{BatchNumber, LaneNumber, Seq, SourceId, StreamNumber};

/// How long a pause of the readers is waited for.
const PAUSE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Bytes of frames after which a read takes no further chunk.
const READ_BYTES: usize = 512 * 1024;

/// The newest chunks of all streams, up to [`HOT_TAIL_BYTES_MAX`], so that a lane that keeps up reads nothing from disk.
#[derive(Debug, Default)]
pub(super) struct HotTail(Mutex<Hot>);

#[derive(Debug, Default)]
struct Hot {
    streams: HashMap<StreamNumber, VecDeque<FrameBlock>>,
    // In the order of their commits, so that the oldest goes first whatever its stream.
    order: VecDeque<StreamNumber>,
    bytes: usize,
}

impl HotTail {
    pub(super) fn push(&self, stream: StreamNumber, block: FrameBlock) {
        let mut hot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hot.bytes += block.bytes.len();
        hot.streams.entry(stream).or_default().push_back(block);
        hot.order.push_back(stream);
        while hot.bytes > HOT_TAIL_BYTES_MAX {
            let Some(oldest) = hot.order.pop_front() else { break };
            let gone = hot.streams.get_mut(&oldest).and_then(VecDeque::pop_front);
            hot.bytes -= gone.map_or(0, |block| block.bytes.len());
        }
    }

    /// Chunks from the one that holds `from`, if that is here.
    fn read(&self, stream: StreamNumber, from: Seq) -> Option<Vec<FrameBlock>> {
        let hot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let blocks = hot.streams.get(&stream)?;
        let (first, last) = (blocks.front()?, blocks.back()?);
        if from < first.first_seq || from >= last.first_seq.plus(u64::from(last.count)) {
            return None;
        }
        let holds = blocks.partition_point(|block| block.first_seq <= from) - 1;
        let mut bytes = 0;
        let few = blocks.range(holds..).take_while(|block| {
            let takes = bytes < READ_BYTES;
            bytes += block.bytes.len();
            takes
        });
        Some(few.cloned().collect())
    }
}

/// The chunks that were read last, oldest first, up to [`READ_RECENT_BYTES_MAX`]: a lane with small batches would otherwise
/// read and unpack a chunk once for each of them.
#[derive(Debug, Default)]
struct Recent {
    blocks: VecDeque<(StreamNumber, FrameBlock)>,
    bytes: usize,
}

impl Recent {
    fn push(&mut self, stream: StreamNumber, block: FrameBlock) {
        // One that has grown takes the place of what it was.
        let same = |(of, known): &(StreamNumber, FrameBlock)| {
            *of == stream && known.first_seq == block.first_seq
        };
        if let Some(at) = self.blocks.iter().position(same)
            && let Some((_, known)) = self.blocks.remove(at)
        {
            self.bytes -= known.bytes.len();
        }
        self.bytes += block.bytes.len();
        self.blocks.push_back((stream, block));
        while self.bytes > READ_RECENT_BYTES_MAX {
            let Some((_, oldest)) = self.blocks.pop_front() else { break };
            self.bytes -= oldest.bytes.len();
        }
    }

    fn find(&self, stream: StreamNumber, seq: Seq) -> Option<&FrameBlock> {
        let blocks = self.blocks.iter().filter(|(of, _)| *of == stream).map(|(_, block)| block);
        blocks.into_iter().find(|block| holds(block, seq))
    }
}

fn holds(block: &FrameBlock, seq: Seq) -> bool {
    block.first_seq <= seq && seq < block.first_seq.plus(u64::from(block.count))
}

/// Connections that read.
pub(super) struct Readers {
    path: PathBuf,
    published: Arc<Published>,
    recent: Mutex<Recent>,
    pool: Mutex<Pool>,
    returned: Condvar,
}

#[derive(Default)]
pub(super) struct Pool {
    idle: Vec<Reader>,
    open: usize,
}

struct Reader {
    connection: Connection,
    decoder: Decoder,
}

impl std::fmt::Debug for Readers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Readers {
    pub(super) fn new(path: PathBuf, published: Arc<Published>) -> Self {
        let (recent, pool) = (Mutex::default(), Mutex::default());
        Self { path, published, recent, pool, returned: Condvar::new() }
    }

    pub(super) fn floor(&self, lane: LaneNumber) -> Seq {
        self.published.floor(lane)
    }

    /// Closes the idle connections, so that the writer's is the last one.
    pub(super) fn close(&self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.open -= pool.idle.len();
        pool.idle.clear();
    }

    /// Closes all connections and keeps new ones from being opened until the guard goes. `None` when one stays in use.
    pub(super) fn pause(&self) -> Option<std::sync::MutexGuard<'_, Pool>> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = |pool: &mut Pool| pool.open > pool.idle.len();
        let waited = self.returned.wait_timeout_while(pool, PAUSE_WAIT, busy);
        pool = waited.unwrap_or_else(PoisonError::into_inner).0;
        if pool.open > pool.idle.len() {
            return None;
        }
        pool.idle.clear();
        pool.open = 0;
        Some(pool)
    }

    fn with<T>(
        &self,
        read: impl FnOnce(&mut Reader) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut reader = self.take()?;
        let result = read(&mut reader);
        if let Err(error) = &result
            && !matches!(error, JournalError::Missing { .. })
        {
            self.published.damage.note(error);
        }
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.idle.push(reader);
        self.returned.notify_one();
        result
    }

    fn take(&self) -> Result<Reader, JournalError> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(reader) = pool.idle.pop() {
                return Ok(reader);
            }
            if pool.open < READERS_MAX {
                let connection = connect_reader(&self.path)?;
                pool.open += 1;
                return Ok(Reader { connection, decoder: Decoder::new() });
            }
            pool = self.returned.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn chunks(
        &self,
        stream: StreamNumber,
        source: &SourceId,
        from: Seq,
    ) -> Result<Vec<FrameBlock>, JournalError> {
        if let Some(blocks) = self.published.hot.read(stream, from) {
            return Ok(blocks);
        }
        let recent = || self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = recent().find(stream, from) {
            return Ok(vec![block.clone()]);
        }
        let blocks = self.with(|reader| {
            // Usually `from` begins a chunk; where it does not, the chunk before holds it.
            let blocks = self.query_chunks(reader, stream, source, from)?;
            if blocks.first().is_some_and(|block| block.first_seq == from) {
                return Ok(blocks);
            }
            let query = "SELECT max(key) FROM chunks WHERE key BETWEEN ?1 AND ?2";
            let keys = [chunk_key(stream, Seq(0)), chunk_key(stream, from)];
            let holder: Option<i64> = reader
                .connection
                .prepare_cached(query)
                .and_then(|mut statement| statement.query_row(keys, |row| row.get(0)))
                .map_err(|error| JournalError::sqlite(&self.path, "reading", error))?;
            match holder {
                Some(key) => self.query_chunks(reader, stream, source, super::state::key_seq(key)),
                None => Ok(Vec::new()),
            }
        })?;
        if blocks.first().is_some_and(|block| holds(block, from)) {
            let mut recent = recent();
            blocks.iter().for_each(|block| recent.push(stream, block.clone()));
            drop(recent);
            Ok(blocks)
        } else {
            Err(JournalError::Missing { path: self.path.clone(), what: gap(source, from) })
        }
    }

    fn query_chunks(
        &self,
        reader: &mut Reader,
        stream: StreamNumber,
        source: &SourceId,
        from: Seq,
    ) -> Result<Vec<FrameBlock>, JournalError> {
        let failed = |error| JournalError::sqlite(&self.path, "reading", error);
        let to = chunk_key(StreamNumber(stream.0 + 1), Seq(0));
        let limit = i64::try_from(READ_CHUNKS_MAX).expect("a handful");
        let mut statement = reader
            .connection
            .prepare_cached(
                "SELECT key, data FROM chunks WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
            )
            .map_err(failed)?;
        let mut rows = statement.query([chunk_key(stream, from), to, limit]).map_err(failed)?;
        let (mut blocks, mut bytes) = (Vec::new(), 0);
        while bytes < READ_BYTES {
            let Some(row) = rows.next().map_err(failed)? else { break };
            let seq = super::state::key_seq(row.get(0).map_err(failed)?);
            let data = row.get_ref(1).and_then(|data| Ok(data.as_blob()?)).map_err(failed)?;
            let damaged = |error| JournalError::ChunkDamaged {
                path: self.path.clone(),
                what: format!("the chunk with {}", gap(source, seq)),
                source: error,
            };
            // Behind a gap the caller asks anew.
            let is_next = |last: &FrameBlock| last.first_seq.plus(last.count.into()) == seq;
            if !blocks.last().is_none_or(is_next) {
                break;
            }
            let (header, block) = match reader.decoder.frames(data) {
                Ok(decoded) => decoded,
                // What stands in front of a damaged chunk is good.
                Err(_) if !blocks.is_empty() => break,
                Err(error) => return Err(damaged(error)),
            };
            if header.label.kind != (Kind::Chunk { stream: stream.0 }) || block.first_seq != seq {
                return Err(damaged(super::error::ChunkError::Field("key")));
            }
            bytes += block.bytes.len();
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn part(
        &self,
        lane: LaneNumber,
        batch: BatchNumber,
        part: u64,
    ) -> Result<FrameBlock, JournalError> {
        let what = || format!("part {part} of batch {batch} of lane number {lane}");
        self.with(|reader| {
            let key = part_key(lane, batch, part);
            let decoder = &mut reader.decoder;
            let result = reader
                .connection
                .prepare_cached("SELECT data FROM batch_parts WHERE key = ?1")
                .and_then(|mut statement| {
                    statement.query_row([key], |row| Ok(decoder.frames(row.get_ref(0)?.as_blob()?)))
                });
            match result {
                Ok(Ok((_, block))) => Ok(block),
                Ok(Err(source)) => {
                    let (path, what) = (self.path.clone(), what());
                    Err(JournalError::ChunkDamaged { path, what, source })
                }
                Err(rusqlite::Error::QueryReturnedNoRows) => {
                    Err(JournalError::Missing { path: self.path.clone(), what: what() })
                }
                Err(error) => Err(JournalError::sqlite(&self.path, "reading", error)),
            }
        })
    }
}

impl LaneJournal {
    /// Reads records from `from` on: the chunk that holds it and perhaps some behind. Blocks.
    ///
    /// # Errors
    /// When the record is not there, or its chunk is damaged.
    pub fn read(&self, from: Seq) -> Result<Vec<FrameBlock>, JournalError> {
        let result = self.readers.chunks(self.stream, &self.source, from);
        let floor = self.floor();
        match result {
            Err(JournalError::Missing { .. }) if from <= floor => {
                Err(JournalError::Overtaken { lane: self.name.clone(), seq: floor })
            }
            result => result,
        }
    }

    /// Reads what a sealed batch sends, from front to back. Its calls block.
    #[must_use]
    pub fn open_batch(&self, batch: &StoredBatch) -> Box<dyn BlockReader> {
        if batch.parts == 0 {
            let (next, last) = (batch.first_seq, batch.last_seq);
            Box::new(RangeReader { lane: self.clone(), next, last, blocks: VecDeque::new() })
        } else {
            let (number, parts) = (batch.number, batch.parts);
            let window = Window::of(batch);
            Box::new(PartsReader { lane: self.clone(), batch: number, parts, next: 0, window })
        }
    }
}

/// Reads a range of the stream as the content of a batch.
struct RangeReader {
    lane: LaneJournal,
    next: Seq,
    last: Seq,
    blocks: VecDeque<FrameBlock>,
}

impl BlockReader for RangeReader {
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError> {
        if self.next > self.last {
            return Ok(None);
        }
        if self.blocks.is_empty() {
            let read = self.lane.read(self.next);
            // What is sealed must be there.
            self.blocks = read.inspect_err(|error| self.lane.readers.note(error))?.into();
        }
        let Some(block) = self.blocks.pop_front() else { return Ok(None) };
        let block = cut(block, self.next, self.last);
        self.next = self.next.plus(u64::from(block.take));
        Ok(Some(block))
    }
}

/// Leaves of a chunk what lies between two records, of which it holds at least the first.
pub fn cut(mut block: FrameBlock, first: Seq, last: Seq) -> FrameBlock {
    let skip = first.0 - block.first_seq.0;
    let wanted = (last.0 + 1 - first.0).min(u64::from(block.count) - skip);
    block.skip = u32::try_from(skip).expect("less than the chunk holds");
    block.take = u32::try_from(wanted).expect("no more than the chunk holds");
    block
}

/// Which records of the output that the parts of a batch hold are meant: all of them, or those of a half.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The number of the next record that is read.
    at: u64,
    from: u64,
    to: u64,
}

impl Window {
    pub(super) fn of(batch: &StoredBatch) -> Self {
        let Variant { suffix, first_record, .. } = &batch.variant;
        Self::new(!suffix.is_empty(), *first_record, batch.records)
    }

    /// Of a half, so many from this record on.
    pub(super) fn new(is_half: bool, from: u64, records: u64) -> Self {
        if is_half {
            Self { at: 0, from, to: from.saturating_add(records) }
        } else {
            Self { at: 0, from: 0, to: u64::MAX }
        }
    }

    /// Whether everything was read that is meant.
    pub(super) fn is_past(&self) -> bool {
        self.at >= self.to
    }

    /// Leaves of the next block what is meant; `None` when that is nothing.
    pub(super) fn trim(&mut self, mut block: FrameBlock) -> Option<FrameBlock> {
        let (begin, end) = (self.at, self.at + u64::from(block.take));
        self.at = end;
        let (from, to) = (self.from.clamp(begin, end), self.to.clamp(begin, end));
        if from == to {
            return None;
        }
        block.skip += u32::try_from(from - begin).expect("less than the block holds");
        block.take = u32::try_from(to - from).expect("no more than the block holds");
        Some(block)
    }
}

/// Reads the stored parts of a batch.
struct PartsReader {
    lane: LaneJournal,
    batch: BatchNumber,
    parts: u64,
    next: u64,
    window: Window,
}

impl BlockReader for PartsReader {
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError> {
        while self.next < self.parts && !self.window.is_past() {
            let readers = &self.lane.readers;
            let block = readers.part(self.lane.number, self.batch, self.next);
            let block = block.inspect_err(|error| readers.note(error))?;
            self.next += 1;
            if let Some(block) = self.window.trim(block) {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

impl Readers {
    pub(super) fn compiled_digest(&self, key: &str) -> Result<Option<[u8; 32]>, JournalError> {
        self.with(|reader| {
            let query = "SELECT sha256 FROM compiled WHERE key = ?1";
            super::state::value(&reader.connection, query, [key])
                .map_err(|error| JournalError::sqlite(&self.path, "reading a digest", error))
        })
    }

    /// A query of one row with one column that may be null.
    pub(super) fn query_value(
        &self,
        query: &str,
        keys: [i64; 2],
    ) -> Result<Option<i64>, JournalError> {
        self.with(|reader| {
            reader
                .connection
                .prepare_cached(query)
                .and_then(|mut statement| statement.query_row(keys, |row| row.get(0)))
                .map_err(|error| JournalError::sqlite(&self.path, "reading", error))
        })
    }

    /// Reads through a connection of ours.
    pub(super) fn ask<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, JournalError> {
        let failed = |error| JournalError::sqlite(&self.path, "reading", error);
        self.with(|reader| read(&reader.connection).map_err(failed))
    }

    /// A few rows of a small table.
    pub(super) fn query_rows<T>(
        &self,
        query: &str,
        parameters: &[&dyn rusqlite::ToSql],
        mut of_row: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, JournalError> {
        self.with(|reader| {
            let mut read = || {
                let mut statement = reader.connection.prepare_cached(query)?;
                let rows = statement.query_map(parameters, &mut of_row)?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            };
            read().map_err(|error| JournalError::sqlite(&self.path, "reading", error))
        })
    }

    fn note(&self, error: &JournalError) {
        self.published.damage.note(error);
    }
}
