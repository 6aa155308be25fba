//! What waits for a lane: how much it takes, and since when.

use rusqlite::Connection;

use super::Journal;
use super::chunk;
use super::error::JournalError;
use super::snapshot::LaneSnapshot;
use super::state::{LaneRow, State, chunk_key, part_key};
use crate::clock::Timestamp;
use crate::record::id::{BatchNumber, LaneNumber, Seq, StreamNumber};

/// What waits for a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Bytes of the chunks and parts that hold it, compressed as they are stored. What several lanes wait for counts for each.
    pub bytes: u64,
    /// When the oldest record of it was accepted. Of records that a transform has made it is known when their batch was sealed,
    /// which is later.
    pub oldest: Option<Timestamp>,
}

/// The rows that a lane needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Needed {
    lane: LaneNumber,
    stream: StreamNumber,
    /// Chunks up to this record are not needed.
    released: Seq,
    /// The newest record of the stream.
    head: Seq,
    /// Its oldest batch, when the content of that lies in parts.
    oldest_made: Option<BatchNumber>,
}

impl Needed {
    /// None where nothing waits.
    pub(super) fn by(state: &State, number: LaneNumber, lane: &LaneRow) -> Option<Self> {
        let head = state.streams.get(&lane.stream).map_or(Seq(0), |s| s.next_seq.before());
        let released = lane.released();
        let is_idle = lane.unacked.is_empty() && lane.replays.is_empty() && released >= head;
        let oldest = lane.unacked.front().filter(|batch| batch.parts > 0);
        let oldest_made = oldest.map(|batch| batch.number);
        let needed = Self { lane: number, stream: lane.stream, released, head, oldest_made };
        (!lane.dropped && !is_idle).then_some(needed)
    }

    /// Looks at the sizes of rows, not at their content.
    pub(super) fn look(self, connection: &Connection) -> rusqlite::Result<Waiting> {
        let sum = |query: &str, from: i64, to: i64| {
            let mut statement = connection.prepare_cached(query)?;
            statement.query_row([from, to], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
        };
        let mut found = Waiting::default();
        if self.released < self.head {
            let (from, to) =
                (chunk_key(self.stream, self.released.next()), chunk_key(self.stream, self.head));
            // The chunk that holds the first record may begin in front of it.
            let mut before = connection
                .prepare_cached("SELECT max(key) FROM chunks WHERE key BETWEEN ?1 AND ?2")?;
            let before: Option<i64> =
                before.query_row([chunk_key(self.stream, Seq(0)), from], |row| row.get(0))?;
            let from = before.unwrap_or(from);
            found.bytes += sum(
                "SELECT coalesce(sum(length(data)), 0) FROM chunks WHERE key BETWEEN ?1 AND ?2",
                from,
                to,
            )?;
            found.oldest = accepted_at(connection, from, to)?;
        }
        let first = |lane: LaneNumber| part_key(lane, BatchNumber(0), 0);
        found.bytes += sum(
            "SELECT coalesce(sum(length(data)), 0) FROM batch_parts WHERE key BETWEEN ?1 AND ?2",
            first(self.lane),
            first(LaneNumber(self.lane.0 + 1)) - 1,
        )?;
        if let Some(batch) = self.oldest_made {
            let query = "SELECT min(sealed_at) FROM batches WHERE lane = ?1 AND number = ?2";
            let mut sealed = connection.prepare_cached(query)?;
            let sealed: Option<i64> = sealed
                .query_row([i64::from(self.lane.0), batch.0.cast_signed()], |row| row.get(0))?;
            let sealed = sealed.map(Timestamp);
            found.oldest = [found.oldest, sealed].into_iter().flatten().min();
        }
        Ok(found)
    }
}

/// When the records of the first chunk between two keys were accepted.
pub(super) fn accepted_at(
    connection: &Connection,
    from: i64,
    to: i64,
) -> rusqlite::Result<Option<Timestamp>> {
    let query =
        "SELECT substr(data, 1, 96) FROM chunks WHERE key BETWEEN ?1 AND ?2 ORDER BY key LIMIT 1";
    let mut statement = connection.prepare_cached(query)?;
    let mut rows = statement.query([from, to])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let head: Vec<u8> = row.get(0)?;
    Ok(chunk::header(&head).ok().map(|header| header.label.stamp.wall))
}

impl Journal {
    /// What waits for a lane, as of a snapshot. Blocks; takes a millisecond for each gigabyte.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn waiting(&self, lane: &LaneSnapshot) -> Result<Waiting, JournalError> {
        match lane.needed {
            Some(needed) => self.readers.ask(|connection| needed.look(connection)),
            None => Ok(Waiting::default()),
        }
    }
}
