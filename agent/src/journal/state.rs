//! What the writer knows by heart: streams with their heads and positions, lanes with their cursors.
//!
//! It is loaded from the database, changed along with a transaction, and loaded anew when a transaction fails, so that it
//! never says more than what is committed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _};

use super::acked::{AckedBatch, acked_batches};
use super::batches::{StoredBatch, stored_batches};
use super::chunk;
use super::error::{JournalError, gap};
use super::letters::LettersState;
use crate::limits::POSITIONS_CHECKPOINT_CHUNKS;
use crate::record::id::{
    BatchNumber, LaneName, LaneNumber, PipelineId, Seq, SinkId, SourceId, StreamNumber,
};

/// Bits of a chunk's key below the number of its stream.
pub(super) const SEQ_BITS: u32 = 47;
/// Bits of a part's key below the number of its lane.
pub(super) const LANE_BITS: u32 = 50;
/// The largest seq.
pub(super) const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

/// The row key of a chunk: stream number in the high bits, first seq in the low 47.
pub(super) fn chunk_key(stream: StreamNumber, seq: Seq) -> i64 {
    assert!(seq.0 <= SEQ_MASK, "a stream of 2^47 records would take centuries");
    ((u64::from(stream.0) << SEQ_BITS) | seq.0).cast_signed()
}

/// The first seq of the chunk with this key.
pub(super) fn key_seq(key: i64) -> Seq {
    Seq(key.cast_unsigned() & SEQ_MASK)
}

/// The row key of a batch part.
pub(super) fn part_key(lane: LaneNumber, batch: BatchNumber, part: u64) -> i64 {
    assert!(
        batch.0 < 1 << 36 && part < 1 << 14,
        "a lane's batches and a batch's parts are bounded"
    );
    ((u64::from(lane.0) << LANE_BITS) | (batch.0 << 14) | part).cast_signed()
}

/// A position as last set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PositionState {
    pub(super) value: Option<Vec<u8>>,
    /// The last record when it was set.
    pub(super) seq: Seq,
    /// Whether the positions table has it.
    pub(super) stored: bool,
}

#[derive(Debug)]
pub(super) struct StreamState {
    pub(super) source: SourceId,
    /// The seq that the next record gets.
    pub(super) next_seq: Seq,
    pub(super) positions: BTreeMap<String, PositionState>,
    /// Chunks since all positions were last written to their table.
    pub(super) chunks_unchecked: u64,
    /// Chunks up to this seq may go.
    pub(super) released: Seq,
    /// Deletes are left over from an earlier transaction.
    pub(super) deletes_left: bool,
}

/// A batch that is sealed and not acked, as far as cursors go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnackedState {
    pub(super) number: BatchNumber,
    pub(super) suffix: String,
    pub(super) first_seq: Seq,
    pub(super) last_seq: Seq,
    /// Input records that become delivered with the ack: of halves that share one, the last one counts it.
    pub(super) inputs: u64,
    pub(super) records: u64,
    pub(super) parts: u64,
    /// Inputs of its records that were counted as dead-lettered before.
    pub(super) counted: Vec<Seq>,
}

/// Totals of a lane since it was made. Inputs, but for `outputs_delivered`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneTotals {
    /// Records that the destination has.
    pub delivered: u64,
    /// Records that a plugin left out.
    pub dropped: u64,
    /// Records that went to the dead letters.
    pub dead_lettered: u64,
    /// Records lost by a policy or by damage.
    pub lost: u64,
    /// Records that the pipeline does not take.
    pub not_taken: u64,
    /// Output records that the destination has.
    pub outputs_delivered: u64,
}

#[derive(Debug, Clone)]
pub(super) struct LaneRow {
    pub(super) name: LaneName,
    pub(super) stream: StreamNumber,
    pub(super) pipeline: PipelineId,
    pub(super) sink: SinkId,
    pub(super) dropped: bool,
    pub(super) start_seq: Seq,
    pub(super) sealed_seq: Seq,
    pub(super) next_batch: BatchNumber,
    pub(super) unacked: VecDeque<UnackedState>,
    /// Those that are done while their rows are there.
    pub(super) acked: Vec<AckedBatch>,
    /// Those made of dead letters, which stand outside the order.
    pub(super) replays: VecDeque<UnackedState>,
    pub(super) totals: LaneTotals,
    /// Something may be kept of batches that no letter fell out of any more: it goes when they do.
    pub(super) has_idle_letter_batches: bool,
}

impl UnackedState {
    /// Whether a tick made it: its records are made of no input.
    pub(super) fn is_of_tick(&self) -> bool {
        self.first_seq > self.last_seq
    }
}

impl LaneRow {
    /// The queue that the batch of this number waits in for its outcome.
    pub(super) fn queue(&mut self, number: BatchNumber) -> &mut VecDeque<UnackedState> {
        let is_replay = self.replays.iter().any(|batch| batch.number == number);
        if is_replay { &mut self.replays } else { &mut self.unacked }
    }

    /// Moves the cursors over batches that were sealed since the row was written. Each goes on where the one before it ends;
    /// what does not is left to the checks of the start.
    fn follow_batches(&mut self) {
        for batch in &self.unacked {
            if batch.number == self.next_batch && batch.first_seq == self.sealed_seq.next() {
                self.sealed_seq = batch.last_seq;
                self.next_batch = BatchNumber(batch.number.0 + 1);
            }
        }
    }

    /// The last seq in front of the oldest batch that waits for its ack.
    pub(super) fn acked(&self) -> Seq {
        self.unacked.front().map_or(self.sealed_seq, |batch| batch.first_seq.before())
    }

    /// Chunks up to this seq are not needed by the lane: what it sealed is stored, unless the range itself is the content.
    pub(super) fn released(&self) -> Seq {
        let held = self.unacked.iter().find(|batch| batch.parts == 0);
        held.map_or(self.sealed_seq, |batch| Seq(batch.first_seq.0 - 1))
    }
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) streams: HashMap<StreamNumber, StreamState>,
    pub(super) lanes: HashMap<LaneNumber, LaneRow>,
    /// What all dead letters take.
    pub(super) letters: LettersState,
}

impl State {
    /// Reads everything from the tables and, for what is newer than their checkpoints, from the chunks.
    pub(super) fn load(connection: &Connection, path: &Path) -> Result<Self, JournalError> {
        let mut state = Self {
            streams: streams(connection, path)?,
            lanes: lanes(connection, path)?,
            letters: LettersState::load(connection)
                .map_err(|source| JournalError::sqlite(path, "counting dead letters", source))?,
        };
        let numbers: Vec<_> = state.streams.keys().copied().collect();
        for number in numbers {
            state.update_released(number);
        }
        Ok(state)
    }

    /// Works out up to where the chunks of a stream may go; says whether that moved.
    pub(super) fn update_released(&mut self, number: StreamNumber) -> bool {
        let lanes = || self.lanes.values().filter(|lane| lane.stream == number);
        let needed = lanes().filter(|lane| !lane.dropped).map(LaneRow::released).min();
        let is_given_up = needed.is_none() && lanes().next().is_some();
        let Some(stream) = self.streams.get_mut(&number) else { return false };
        // What only dropped lanes have taken nobody waits for.
        let head = if is_given_up { stream.next_seq.before() } else { Seq(0) };
        let released = needed.unwrap_or(head);
        let moved = released > stream.released;
        stream.released = released;
        moved
    }
}

fn streams(
    connection: &Connection,
    path: &Path,
) -> Result<HashMap<StreamNumber, StreamState>, JournalError> {
    let failed = |source| JournalError::sqlite(path, "reading the streams", source);
    let mut statement =
        connection.prepare("SELECT number, source, positions_seq FROM streams").map_err(failed)?;
    let rows = statement
        .query_map([], |row| {
            let source: String = row.get(1)?;
            Ok((StreamNumber(row.get(0)?), source, row.get::<_, i64>(2)?))
        })
        .map_err(failed)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    let mut streams = HashMap::new();
    for (number, source, positions_seq) in rows {
        let source = source.parse().map_err(|_| JournalError::Missing {
            path: path.to_owned(),
            what: format!("a proper name of stream {number}"),
        })?;
        let checked = Seq(positions_seq.cast_unsigned());
        streams.insert(number, stream(connection, path, number, source, checked)?);
    }
    Ok(streams)
}

fn stream(
    connection: &Connection,
    path: &Path,
    number: StreamNumber,
    source: SourceId,
    checked: Seq,
) -> Result<StreamState, JournalError> {
    let failed = |error| JournalError::sqlite(path, "reading a stream", error);
    let mut positions = BTreeMap::new();
    let mut statement = connection
        .prepare_cached("SELECT key, seq, value FROM positions WHERE stream = ?1")
        .map_err(failed)?;
    let mut rows = statement.query([number.0]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let seq = Seq(row.get::<_, i64>(1).map_err(failed)?.cast_unsigned());
        let value = row.get(2).map_err(failed)?;
        let key: String = row.get(0).map_err(failed)?;
        positions.insert(key, PositionState { value, seq, stored: true });
    }
    let mut next_seq = None;
    let mut chunks_unchecked = 0;
    // The newest chunk always stays, so it tells the head even when all positions are in their table.
    let newest: Option<i64> = connection
        .query_row(
            "SELECT max(key) FROM chunks WHERE key BETWEEN ?1 AND ?2",
            [chunk_key(number, Seq(0)), chunk_key(number, Seq(SEQ_MASK))],
            |row| row.get(0),
        )
        .map_err(failed)?;
    if let Some(newest) = newest {
        let from = chunk_key(number, checked.next()).min(newest);
        let mut statement = connection
            .prepare_cached("SELECT key, data FROM chunks WHERE key BETWEEN ?1 AND ?2 ORDER BY key")
            .map_err(failed)?;
        let mut rows = statement.query([from, newest]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            let key = key_seq(row.get(0).map_err(failed)?);
            let data = row.get_ref(1).and_then(|data| Ok(data.as_blob()?)).map_err(failed)?;
            let damaged = |error| JournalError::ChunkDamaged {
                path: path.to_owned(),
                what: gap(&source, key),
                source: error,
            };
            let header = chunk::check(data).map_err(damaged)?;
            let last = Seq(key.0 + u64::from(header.label.count) - 1);
            for (name, value) in chunk::positions(data, &header).map_err(damaged)? {
                // Appends that share a chunk stand in it in their order. A row of the table with the chunk's last seq is
                // younger than the chunk.
                let newer = positions.get(&name).is_none_or(|known: &PositionState| {
                    known.seq < last || (known.seq == last && !known.stored)
                });
                if newer {
                    positions.insert(name, PositionState { value, seq: last, stored: false });
                }
            }
            next_seq = Some(last.next());
            chunks_unchecked += 1;
        }
    }
    Ok(StreamState {
        source,
        // The newest chunk may be lost, and what it was told to be is then known from the checkpoint.
        next_seq: next_seq.map_or(checked.next(), |next| next.max(checked.next())),
        positions,
        chunks_unchecked: chunks_unchecked.min(POSITIONS_CHECKPOINT_CHUNKS),
        released: Seq(0),
        deletes_left: true,
    })
}

fn lanes(
    connection: &Connection,
    path: &Path,
) -> Result<HashMap<LaneNumber, LaneRow>, JournalError> {
    let failed = |source| JournalError::sqlite(path, "reading the lanes", source);
    let mut statement = connection
        .prepare(
            "SELECT number, name, stream, pipeline, sink, dropped_at IS NOT NULL, start_seq,
                    sealed_seq, next_batch, delivered, dropped, dead_lettered, lost, not_taken,
                    outputs_delivered FROM lanes",
        )
        .map_err(failed)?;
    let mut rows = statement.query([]).map_err(failed)?;
    let mut lanes = HashMap::new();
    while let Some(row) = rows.next().map_err(failed)? {
        let number = LaneNumber(row.get(0).map_err(failed)?);
        let mut lane = lane_row(row).map_err(failed)?.ok_or_else(|| JournalError::Missing {
            path: path.to_owned(),
            what: format!("a proper pipeline or sink of lane {number}"),
        })?;
        lane.acked = acked_batches(connection, number).map_err(failed)?;
        (lane.replays, lane.unacked) = unacked(connection, number).map_err(failed)?;
        lane.follow_batches();
        lanes.insert(number, lane);
    }
    Ok(lanes)
}

fn lane_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<LaneRow>> {
    let text = |index| row.get::<_, String>(index);
    let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
    let (Ok(pipeline), Ok(sink)) = (text(3)?.parse(), text(4)?.parse()) else { return Ok(None) };
    Ok(Some(LaneRow {
        name: LaneName::stored(&text(1)?),
        stream: StreamNumber(row.get(2)?),
        pipeline,
        sink,
        dropped: row.get(5)?,
        start_seq: Seq(count(6)?),
        sealed_seq: Seq(count(7)?),
        next_batch: BatchNumber(count(8)?),
        unacked: VecDeque::new(),
        acked: Vec::new(),
        replays: VecDeque::new(),
        totals: LaneTotals {
            delivered: count(9)?,
            dropped: count(10)?,
            dead_lettered: count(11)?,
            lost: count(12)?,
            not_taken: count(13)?,
            outputs_delivered: count(14)?,
        },
        has_idle_letter_batches: true,
    }))
}

/// Replays and the others.
fn unacked(
    connection: &Connection,
    lane: LaneNumber,
) -> rusqlite::Result<(VecDeque<UnackedState>, VecDeque<UnackedState>)> {
    let batches = stored_batches(connection, lane)?;
    let (replays, others): (Vec<_>, Vec<_>) =
        batches.into_iter().partition(|(batch, _)| batch.variant.replay);
    let states = |batches: Vec<(StoredBatch, u64)>| {
        batches.iter().map(|(batch, inputs)| batch.unacked(*inputs)).collect()
    };
    Ok((states(replays), states(others)))
}

/// Whether the table `meta` or any other single value is there: one row, one column.
pub(super) fn value<T: rusqlite::types::FromSql>(
    connection: &Connection,
    query: &str,
    parameters: impl rusqlite::Params,
) -> rusqlite::Result<Option<T>> {
    connection.query_row(query, parameters, |row| row.get(0)).optional()
}
