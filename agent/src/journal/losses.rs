//! Records given up on purpose: the oldest to make room, and those over `max_age`.
//!
//! 1. Never taken: a chunk that a sealed batch is made of, and what such a batch's lane has sealed behind it.
//! 2. The others go from the oldest on. A lane that had not passed a chunk is moved past it and everything older: there is
//!    never a gap in front of a lane. What it loses so is counted in its row, and the range kept in `losses`.
//! 3. All in the writer's transaction, at most 64 chunks each.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::budget::row_bytes;
use super::chunk::{self, Stamp};
use super::error::JournalError;
use super::state::{LaneRow, chunk_key, key_seq};
use super::writer::Writer;
use crate::clock::{Monotonic, PLAUSIBLE, Timestamp};
use crate::limits::{DELETED_CHUNKS_MAX, LOSSES_MAX};
use crate::record::id::{LaneNumber, Seq, StreamNumber};

/// How often chunks are looked at for their age.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// Why records are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Full,
    Aged,
    Damage,
    LaneDropped,
}

impl Why {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "drop_oldest",
            Self::Aged => "max_age",
            Self::Damage => "damage",
            Self::LaneDropped => "lane_dropped",
        }
    }
}

/// A chunk that may be given up.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    stream: StreamNumber,
    first: Seq,
    last: Seq,
    bytes: usize,
    stamp: Stamp,
}

impl LaneRow {
    /// The records that its sealed batches are made of.
    fn held(&self) -> Option<(Seq, Seq)> {
        let first = self.unacked.iter().find(|batch| batch.parts == 0)?;
        Some((first.first_seq, self.sealed_seq))
    }
}

impl Writer {
    /// Drops oldest chunks until `wanted` bytes are free; says whether there may be more to drop.
    pub(super) fn drop_oldest(
        &mut self,
        transaction: &Connection,
        wanted: u64,
    ) -> Result<bool, JournalError> {
        let mut freed = 0;
        for _ in 0..DELETED_CHUNKS_MAX {
            if freed >= wanted {
                return Ok(true);
            }
            let streams: Vec<_> = self.state.streams.keys().copied().collect();
            let mut oldest: Option<Candidate> = None;
            for stream in streams {
                let found = self.candidate(transaction, stream)?;
                let older = |found: &Candidate| {
                    oldest.is_none_or(|oldest| found.stamp.wall < oldest.stamp.wall)
                };
                oldest = found.filter(older).or(oldest);
            }
            let Some(oldest) = oldest else { return Ok(false) };
            freed += row_bytes(oldest.bytes);
            self.give_up(transaction, oldest, Why::Full)?;
        }
        Ok(true)
    }

    /// Deletes all chunks of a stream that every lane has passed, the newest too: a full journal needs the room, and the head
    /// is kept beside the stream's positions.
    pub(super) fn delete_emptied(
        &mut self,
        transaction: &Connection,
        number: StreamNumber,
        keys: &[i64],
    ) -> Result<usize, JournalError> {
        self.checkpoint_positions(transaction, number)?;
        for key in keys {
            self.execute(transaction, "deleting", "DELETE FROM chunks WHERE key = ?1", [key])?;
        }
        if let Some(stream) = self.state.streams.get_mut(&number) {
            stream.deletes_left = false;
        }
        Ok(keys.len())
    }

    /// Whether it is time to look for chunks over `max_age`, and there is one.
    pub(super) fn has_aged(&mut self) -> bool {
        if self.quota.max_age.is_none() {
            return false;
        }
        let now = self.clock.monotonic();
        self.note_wall();
        if self.quota.last_expiry.is_some_and(|last| now.since(last) < EXPIRE_EVERY) {
            return false;
        }
        self.quota.last_expiry = Some(now);
        let Some(connection) = self.connection.take() else { return false };
        let streams: Vec<_> = self.state.streams.keys().copied().collect();
        let aged = streams.into_iter().any(|stream| {
            let found = self.candidate(&connection, stream);
            matches!(found, Ok(Some(chunk)) if self.is_aged(chunk.stamp))
        });
        self.connection = Some(connection);
        self.quota.expires = aged;
        aged
    }

    /// Gives up what is over `max_age`, as much as one transaction may.
    pub(super) fn expire(&mut self, transaction: &Connection) -> Result<(), JournalError> {
        if !std::mem::take(&mut self.quota.expires) {
            return Ok(());
        }
        let mut room = DELETED_CHUNKS_MAX;
        let streams: Vec<_> = self.state.streams.keys().copied().collect();
        for stream in streams {
            while room > 0
                && let Some(chunk) = self.candidate(transaction, stream)?
                && self.is_aged(chunk.stamp)
            {
                self.give_up(transaction, chunk, Why::Aged)?;
                room -= 1;
            }
        }
        if room == 0 {
            // The rest at once.
            self.quota.last_expiry = None;
        }
        Ok(())
    }

    fn note_wall(&mut self) {
        let ahead = self.wall_ahead();
        let least = self.quota.wall_ahead_min.map_or(ahead, |least| least.min(ahead));
        self.quota.wall_ahead_min = Some(least);
    }

    fn wall_ahead(&self) -> i64 {
        let monotonic = i64::try_from(self.clock.monotonic().0).unwrap_or(i64::MAX);
        self.clock.now().0.saturating_sub(monotonic)
    }

    /// Whether what was accepted then is over `max_age`. Within one boot the monotonic clock says it. Across boots it is at
    /// least as old as this boot; more is believed only of wall clocks that make sense, and no step forward in this run is.
    fn is_aged(&self, stamp: Stamp) -> bool {
        let Some(max_age) = self.quota.max_age else { return false };
        let now = self.clock.monotonic();
        if stamp.boot == self.boot && self.boot != [0; 16] {
            return now.since(stamp.monotonic) > max_age;
        }
        let uptime = now.since(Monotonic(0));
        let monotonic = i64::try_from(now.0).unwrap_or(i64::MAX);
        let wall =
            Timestamp(monotonic.saturating_add(self.quota.wall_ahead_min.unwrap_or(i64::MIN)));
        let by_wall = if stamp.wall >= PLAUSIBLE { wall.since(stamp.wall) } else { uptime };
        by_wall.max(uptime) > max_age
    }

    /// The oldest chunk of a stream that nothing sealed needs.
    fn candidate(
        &self,
        transaction: &Connection,
        number: StreamNumber,
    ) -> Result<Option<Candidate>, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "looking for old chunks", source);
        let mut from = chunk_key(number, Seq(0));
        let to = chunk_key(StreamNumber(number.0 + 1), Seq(0));
        let query = "SELECT key, substr(data, 1, 96), length(data) FROM chunks
                     WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT 1";
        let mut statement = transaction.prepare_cached(query).map_err(failed)?;
        loop {
            let mut rows = statement.query([from, to]).map_err(failed)?;
            let Some(row) = rows.next().map_err(failed)? else { return Ok(None) };
            let key: i64 = row.get(0).map_err(failed)?;
            let head = row.get_ref(1).and_then(|head| Ok(head.as_blob()?)).map_err(failed)?;
            let first = key_seq(key);
            // One that cannot be read is not ours to drop: reading it reports the damage.
            let Ok(header) = chunk::header(head) else { return Ok(None) };
            let last = Seq(first.0 + u64::from(header.label.count).max(1) - 1);
            let lanes = self.state.lanes.values().filter(|lane| lane.stream == number);
            let needed_to = lanes
                .filter(|lane| !lane.dropped)
                .filter_map(LaneRow::held)
                .filter(|(from, to)| first <= *to && *from <= last)
                .map(|(_, to)| to)
                .max();
            let Some(needed_to) = needed_to else {
                let bytes: i64 = row.get(2).map_err(failed)?;
                let bytes = usize::try_from(bytes).unwrap_or(0);
                let stamp = header.label.stamp;
                return Ok(Some(Candidate { stream: number, first, last, bytes, stamp }));
            };
            from = chunk_key(number, needed_to.max(last).next());
        }
    }

    fn give_up(
        &mut self,
        transaction: &Connection,
        chunk: Candidate,
        why: Why,
    ) -> Result<(), JournalError> {
        let Candidate { stream: number, first, last, .. } = chunk;
        let unstored = self.state.streams.get(&number).is_some_and(|stream| {
            let newest = last.next() == stream.next_seq;
            newest || stream.positions.values().any(|p| !p.stored && p.seq <= last)
        });
        if unstored {
            // Positions and the head outlive the chunk that brought them.
            self.checkpoint_positions(transaction, number)?;
        }
        let delete = "DELETE FROM chunks WHERE key = ?1";
        self.execute(transaction, "dropping", delete, [chunk_key(number, first)])?;
        let losers: Vec<_> = self
            .state
            .lanes
            .iter()
            .filter(|(_, lane)| lane.stream == number && !lane.dropped && lane.sealed_seq < last)
            .map(|(lane, _)| *lane)
            .collect();
        let has_lanes = self.state.lanes.values().any(|l| l.stream == number && !l.dropped);
        let mut lost = 0;
        for lane in losers {
            lost = lost.max(self.move_past(transaction, lane, last, why)?);
        }
        if !has_lanes {
            lost = last.0 + 1 - first.0;
            self.write_loss(transaction, number, None, (first, last), why)?;
        }
        match why {
            Why::Full => self.quota.giving_up.full += lost,
            Why::Aged => self.quota.giving_up.aged += lost,
            Why::Damage | Why::LaneDropped => {}
        }
        self.state.update_released(number);
        Ok(())
    }

    /// Moves a lane behind a record that it will not see; gives how many it loses so.
    fn move_past(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        last: Seq,
        why: Why,
    ) -> Result<u64, JournalError> {
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(0) };
        let (stream, first) = (lane.stream, lane.sealed_seq.next());
        let lost = last.0 - lane.sealed_seq.0;
        lane.sealed_seq = last;
        lane.totals.lost += lost;
        self.write_lane(transaction, number)?;
        self.write_loss(transaction, stream, Some(number), (first, last), why)?;
        self.quota.giving_up.moved.push((number, last));
        Ok(lost)
    }

    /// Keeps a range as a row; one that goes on where the newest of its lane ends makes that longer.
    pub(super) fn write_loss(
        &self,
        transaction: &Connection,
        stream: StreamNumber,
        lane: Option<LaneNumber>,
        (first, last): (Seq, Seq),
        why: Why,
    ) -> Result<(), JournalError> {
        let doing = "keeping a loss";
        let lane = lane.map(|lane| lane.0);
        let (first, last) = (first.0.cast_signed(), last.0.cast_signed());
        let (at, why) = (self.clock.now().0, why.as_str());
        let longer = "UPDATE losses SET last_seq = ?5, at = ?3 WHERE last_seq = ?4 - 1 AND why = ?6
                      AND id = (SELECT id FROM losses WHERE stream = ?1 AND lane IS ?2
                                ORDER BY id DESC LIMIT 1)";
        let parameters = params![stream.0, lane, at, first, last, why];
        if self.execute(transaction, doing, longer, parameters)? > 0 {
            return Ok(());
        }
        let insert = "INSERT INTO losses (stream, lane, at, first_seq, last_seq, why)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.execute(transaction, doing, insert, params![stream.0, lane, at, first, last, why])?;
        let oldest = "DELETE FROM losses WHERE id <= (SELECT max(id) FROM losses) - ?1";
        self.execute(transaction, doing, oldest, [LOSSES_MAX.cast_signed()])?;
        Ok(())
    }
}
