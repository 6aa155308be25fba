//! Orders about lanes that nobody runs: one is dropped for good, or its records go on as another lane's.
//!
//! Each is one transaction of the writer: a crash leaves the journal as it was before or as it is behind.
//!
//! **Drop.** What waits is lost on purpose: counted in the lane's row and kept as a range in `losses`. Batches, parts, plugin
//! state and the sink's note go; the row stays for its name, which is never given again. Dead letters stay.
//!
//! **Move.** The row gets another pipeline and sink, and keeps its name, cursors, batches and state: what was sealed goes out
//! under the identity that it was sealed under. A lane that was made for the new place and has done nothing gives way. One that
//! has begun does not: both would have sent the same records. Where the source is another, its stream is renamed with all its
//! lanes, and with its positions, so that the new source resumes where the old one stopped.

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::Journal;
use super::apply::Group;
use super::error::JournalError;
use super::losses::Why;
use super::state::{LaneRow, LaneTotals, part_key};
use super::writer::{Operation, Session, Writer};
use crate::record::id::{
    BatchNumber, LaneName, LaneNumber, PipelineId, Seq, SinkId, SourceId, StreamNumber,
};

/// The place in a config that a lane is moved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneTarget {
    /// The source.
    pub source: SourceId,
    /// The pipeline.
    pub pipeline: PipelineId,
    /// The sink.
    pub sink: SinkId,
}

/// What such an order came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneOrdered {
    /// The lane's name, which it keeps.
    pub name: LaneName,
    /// Records that waited in it.
    pub queued: u64,
    /// Batches among them that were sealed.
    pub batches: u64,
}

/// Why a lane is neither dropped nor moved; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneOrderError {
    /// There is no such lane.
    #[error("the journal has no lane \"{0}\"")]
    Unknown(String),
    /// Somebody delivers it.
    #[error("lane {0} still runs; wait until it has stopped")]
    Runs(LaneName),
    /// Its place is the one that it is moved to.
    #[error("lane {0} is there already")]
    There(LaneName),
    /// The lane at the new place sends the same records itself.
    #[error(
        "lane {target} has begun by itself, in front of what waits in lane {lane}, and sends those records under its own \
         identities; `waystation lane drop {lane}` ends the second copy"
    )]
    BegunInFront {
        /// The lane to move.
        lane: LaneName,
        /// The lane at the new place.
        target: LaneName,
    },
    /// The lane at the new place has passed some of the records.
    #[error(
        "lane {target} has begun by itself, behind what waits in lane {lane}: as one lane they would send records twice; put \
         the source, pipeline and sink of lane {lane} back into the config until it has delivered. A lane is moved before the \
         new one begins: stop the agent, change the config, move, start"
    )]
    BegunBehind {
        /// The lane to move.
        lane: LaneName,
        /// The lane at the new place.
        target: LaneName,
    },
    /// The new source has a stream of its own by now.
    #[error(
        "source \"{new}\" has begun by itself, so it cannot take over what source \"{old}\" has read; put source \"{old}\" back \
         into the config until lane {lane} has delivered"
    )]
    SourceBegun {
        /// The lane to move.
        lane: LaneName,
        /// Its source.
        old: SourceId,
        /// The other source.
        new: SourceId,
    },
}

/// An order on its way to the writer.
#[derive(Debug)]
pub(super) struct LaneOperation {
    pub(super) lane: String,
    /// Where it goes on; none: it is dropped.
    pub(super) target: Option<LaneTarget>,
    pub(super) reply: oneshot::Sender<Result<LaneOrdered, JournalError>>,
}

impl Journal {
    /// Drops a lane that does not run, durably: what waits in it is lost, its name stays taken.
    ///
    /// # Errors
    /// [`JournalError::LaneOrder`], or when the journal cannot commit or is closed.
    pub async fn drop_lane(&self, lane: &str) -> Result<LaneOrdered, JournalError> {
        let operation = |reply| LaneOperation { lane: lane.to_owned(), target: None, reply };
        self.writer.ask(|reply| Operation::Lane(operation(reply))).await
    }

    /// Has a lane that does not run go on as the one of another source, pipeline and sink, durably.
    ///
    /// # Errors
    /// [`JournalError::LaneOrder`], or when the journal cannot commit or is closed.
    pub async fn move_lane(
        &self,
        lane: &str,
        target: LaneTarget,
    ) -> Result<LaneOrdered, JournalError> {
        let lane = lane.to_owned();
        let operation = |reply| LaneOperation { lane, target: Some(target), reply };
        self.writer.ask(|reply| Operation::Lane(operation(reply))).await
    }
}

impl LaneRow {
    /// Whether the lane has never sealed, lost or given up anything.
    fn has_done_nothing(&self) -> bool {
        self.next_batch == BatchNumber(1)
            && self.sealed_seq == self.start_seq
            && self.unacked.is_empty()
            && self.replays.is_empty()
            && self.totals == LaneTotals::default()
    }
}

impl Writer {
    pub(super) fn order_lane(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: LaneOperation,
    ) -> Result<(), JournalError> {
        let LaneOperation { lane, target, reply } = operation;
        let ordered = self.idle_lane(&lane).and_then(|number| {
            let refused = target.as_ref().and_then(|target| self.cannot_move(number, target));
            refused.map_or(Ok(number), Err)
        });
        let number = match ordered {
            Ok(number) => number,
            Err(refused) => {
                // Whoever asked may have given up waiting.
                drop(reply.send(Err(JournalError::LaneOrder(refused))));
                return Ok(());
            }
        };
        let row = &self.state.lanes[&number];
        let ordered = LaneOrdered {
            name: row.name.clone(),
            queued: self.waiting_in(row),
            batches: (row.unacked.len() + row.replays.len()) as u64,
        };
        let done = match target {
            None => self.drop_lane(transaction, number),
            Some(target) => self.move_lane(transaction, number, target),
        };
        self.dirty = true;
        group.answer_with(reply, done.map(|()| ordered))
    }

    fn idle_lane(&self, name: &str) -> Result<LaneNumber, LaneOrderError> {
        let mut lanes = self.state.lanes.iter();
        let known = lanes.find(|(_, lane)| !lane.dropped && lane.name.as_str() == name);
        let Some((number, lane)) = known else {
            return Err(LaneOrderError::Unknown(name.to_owned()));
        };
        if self.runs(*number) {
            return Err(LaneOrderError::Runs(lane.name.clone()));
        }
        Ok(*number)
    }

    /// Inputs without an outcome.
    fn waiting_in(&self, lane: &LaneRow) -> u64 {
        let sealed: u64 = lane.unacked.iter().map(|batch| batch.inputs).sum();
        self.head(lane.stream).0.saturating_sub(lane.sealed_seq.0) + sealed
    }

    fn drop_lane(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
    ) -> Result<(), JournalError> {
        let mut replays: Vec<_> =
            self.state.lanes[&number].replays.iter().map(|batch| batch.number).collect();
        replays.dedup();
        for replay in replays {
            let name = &self.state.lanes[&number].name;
            let identity = format!("{name}, batch {replay}");
            self.cancel_replay(transaction, number, replay, &identity)?;
        }
        let row = &self.state.lanes[&number];
        let (stream, lost) = (row.stream, self.waiting_in(row));
        let range = (row.acked().next(), self.head(stream));
        if lost > 0 {
            self.write_loss(transaction, stream, Some(number), range, Why::LaneDropped)?;
        }
        let Some(row) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        row.totals.lost += lost;
        row.sealed_seq = range.1;
        row.unacked.clear();
        row.acked.clear();
        self.write_lane(transaction, number)?;
        self.retire(transaction, number)
    }

    /// Takes away all that a lane has but its row, which keeps its name from being given again.
    fn retire(&mut self, transaction: &Connection, number: LaneNumber) -> Result<(), JournalError> {
        let doing = "dropping a lane";
        for delete in [
            "DELETE FROM batches WHERE lane = ?1",
            "DELETE FROM plugin_state WHERE lane = ?1",
            "DELETE FROM sink_notes WHERE lane = ?1",
            "DELETE FROM letter_batches WHERE lane = ?1",
        ] {
            self.execute(transaction, doing, delete, [number.0])?;
        }
        let parts = "DELETE FROM batch_parts WHERE key >= ?1 AND key < ?2";
        let keys = [
            part_key(number, BatchNumber(0), 0),
            part_key(LaneNumber(number.0 + 1), BatchNumber(0), 0),
        ];
        self.execute(transaction, doing, parts, keys)?;
        let drop = "UPDATE lanes SET dropped_at = ?2 WHERE number = ?1";
        self.execute(transaction, doing, drop, params![number.0, self.clock.now().0])?;
        self.new_session(Session::Lane(number));
        let Some(row) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        row.dropped = true;
        let stream = row.stream;
        if self.state.update_released(stream)
            && let Some(stream) = self.state.streams.get_mut(&stream)
        {
            stream.deletes_left = true;
        }
        self.publish_room();
        Ok(())
    }

    fn lane_at(&self, stream: StreamNumber, target: &LaneTarget) -> Option<LaneNumber> {
        let mut lanes = self.state.lanes.iter();
        let is = |lane: &LaneRow| {
            !lane.dropped
                && lane.stream == stream
                && lane.pipeline == target.pipeline
                && lane.sink == target.sink
        };
        lanes.find(|(_, lane)| is(lane)).map(|(number, _)| *number)
    }

    fn stream_of(&self, source: &SourceId) -> Option<StreamNumber> {
        let mut streams = self.state.streams.iter();
        streams.find(|(_, stream)| stream.source == *source).map(|(number, _)| *number)
    }

    fn cannot_move(&self, number: LaneNumber, target: &LaneTarget) -> Option<LaneOrderError> {
        let row = &self.state.lanes[&number];
        let lane = row.name.clone();
        let stream = self.state.streams.get(&row.stream)?;
        if stream.source == target.source {
            let there = self.lane_at(row.stream, target)?;
            if there == number {
                return Some(LaneOrderError::There(lane));
            }
            let other = &self.state.lanes[&there];
            if other.has_done_nothing() {
                return None;
            }
            let target = other.name.clone();
            return Some(if other.start_seq <= row.acked() {
                LaneOrderError::BegunInFront { lane, target }
            } else {
                LaneOrderError::BegunBehind { lane, target }
            });
        }
        let other = self.stream_of(&target.source);
        let both = |lane: &LaneRow| lane.stream == row.stream || Some(lane.stream) == other;
        let running =
            self.state.lanes.iter().find(|(number, lane)| both(lane) && self.runs(**number));
        if let Some((_, running)) = running {
            return Some(LaneOrderError::Runs(running.name.clone()));
        }
        let other = self.state.streams.get(&other?)?;
        let has_begun =
            other.next_seq > Seq(1) || other.positions.values().any(|p| p.value.is_some());
        has_begun.then(|| LaneOrderError::SourceBegun {
            lane,
            old: stream.source.clone(),
            new: target.source.clone(),
        })
    }

    fn move_lane(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        target: LaneTarget,
    ) -> Result<(), JournalError> {
        let stream = self.state.lanes[&number].stream;
        if self.state.streams.get(&stream).is_some_and(|known| known.source != target.source) {
            self.rename_stream(transaction, stream, &target.source)?;
        } else if let Some(there) = self.lane_at(stream, &target) {
            self.retire(transaction, there)?;
        }
        let LaneTarget { pipeline, sink, .. } = target;
        let update = "UPDATE lanes SET pipeline = ?2, sink = ?3 WHERE number = ?1";
        let parameters = params![number.0, pipeline.as_str(), sink.as_str()];
        self.execute(transaction, "moving a lane", update, parameters)?;
        if let Some(row) = self.state.lanes.get_mut(&number) {
            (row.pipeline, row.sink) = (pipeline, sink);
        }
        Ok(())
    }

    /// Gives a stream to another source. One that the other has, and that is empty, takes the old name.
    fn rename_stream(
        &mut self,
        transaction: &Connection,
        stream: StreamNumber,
        source: &SourceId,
    ) -> Result<(), JournalError> {
        let Some(old) = self.state.streams.get(&stream).map(|known| known.source.clone()) else {
            return Ok(());
        };
        let doing = "renaming a stream";
        let update = "UPDATE streams SET source = ?2 WHERE number = ?1";
        if let Some(empty) = self.stream_of(source) {
            let lanes = self.state.lanes.iter();
            let unused = lanes.filter(|(_, lane)| lane.stream == empty && !lane.dropped);
            for number in unused.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.retire(transaction, number)?;
            }
            // No two may have one name, not even between two statements; no source can be called so.
            self.execute(transaction, doing, update, params![empty.0, "/"])?;
            self.execute(transaction, doing, update, params![stream.0, source.as_str()])?;
            self.execute(transaction, doing, update, params![empty.0, old.as_str()])?;
            self.new_session(Session::Stream(empty));
            if let Some(known) = self.state.streams.get_mut(&empty) {
                known.source = old;
            }
        } else {
            self.execute(transaction, doing, update, params![stream.0, source.as_str()])?;
        }
        self.new_session(Session::Stream(stream));
        if let Some(known) = self.state.streams.get_mut(&stream) {
            known.source = source.clone();
        }
        Ok(())
    }
}
