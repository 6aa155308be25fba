//! Lanes in the journal: their rows, and the transactions that seal a batch and record its outcome.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use rusqlite::{Connection, params};
use tokio::sync::{oneshot, watch};

use super::apply::Group;
use super::batches::{StoredBatch, stored_batches};
use super::chunk::{Encoder, Kind, Label, Stamp};
use super::error::JournalError;
use super::finished::Finish;
use super::letters::{LetterRecord, LetterRow, LettersRoom};
use super::quota::Pace;
use super::reader::Readers;
use super::state::{LaneRow, LaneTotals, chunk_key, key_seq, part_key};
use super::writer::{Head, Operation, Session, Writer, WriterHandle};
use crate::clock::SharedClock;
use crate::limits::{BATCH_PARTS_MAX, LANES_MAX};
use crate::record::id::{
    AgentId, BatchNumber, Epoch, LaneName, LaneNumber, PipelineId, Seq, SinkId, SourceId,
    StreamNumber,
};

/// Which lane to open, and where it begins when it is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSpec {
    /// The agent.
    pub agent: AgentId,
    /// The source, whose stream is made when it is new too.
    pub source: SourceId,
    /// The pipeline.
    pub pipeline: PipelineId,
    /// The sink.
    pub sink: SinkId,
    /// A new lane begins behind the newest record instead of at the oldest.
    pub start_now: bool,
}

/// State of the plugins of a lane: component, then key, then value.
pub type PluginState = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// What an opened lane tells its owner.
#[derive(Debug)]
pub struct OpenedLane {
    pub(super) number: LaneNumber,
    pub(super) session: u64,
    pub(super) stream: StreamNumber,
    /// The lane's name.
    pub name: LaneName,
    /// The last record that it sealed.
    pub sealed_seq: Seq,
    /// The number that the next batch gets.
    pub next_batch: BatchNumber,
    /// Sealed batches without an outcome, in order.
    pub unacked: Vec<StoredBatch>,
    /// Sealed replays without an outcome, in order.
    pub replays: Vec<StoredBatch>,
    /// The plugins' state as of the last sealed batch.
    pub plugin_state: PluginState,
    /// What the sink has kept.
    pub sink_note: Option<String>,
}

/// A record that a transform gave up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLetter {
    /// The transform.
    pub stage: String,
    /// Digest of its plugin.
    pub plugin_sha256: [u8; 32],
    /// `rejected` or the name of the fault.
    pub class: &'static str,
    /// The record, as it was in front of the transform.
    pub record: LetterRecord,
}

/// One change of a plugin's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// The component.
    pub component: String,
    /// The key.
    pub key: String,
    /// The new value; `None` removes it.
    pub value: Option<Vec<u8>>,
}

/// A batch to seal: everything that a run made, to be stored together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// The batch, as it will be read back.
    pub batch: StoredBatch,
    /// Input records that were left out.
    pub dropped: u64,
    /// Records of the range that the pipeline does not take.
    pub not_taken: u64,
    /// Input records of which something was given up.
    pub dead_lettered: u64,
    /// What was given up. Inputs of which something else is in the batch stand in its `variant.counted`.
    pub letters: Vec<StageLetter>,
    /// What the plugins changed.
    pub state: Vec<StateChange>,
}

#[derive(Debug)]
pub(super) struct PartOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    pub(super) batch: BatchNumber,
    pub(super) part: u64,
    pub(super) row: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct SealOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    pub(super) seal: Seal,
    pub(super) reply: oneshot::Sender<Result<(), JournalError>>,
}

/// One lane's way to the journal. There is one for each running lane; a new one ends the old one's session.
#[derive(Debug, Clone)]
pub struct LaneJournal {
    pub(super) writer: WriterHandle,
    pub(super) readers: Arc<Readers>,
    pub(super) number: LaneNumber,
    pub(super) session: u64,
    /// As long as somebody has this the lane runs.
    pub(super) _runs: Arc<()>,
    pub(super) stream: StreamNumber,
    pub(super) source: SourceId,
    pub(super) head: watch::Receiver<Head>,
    pub(super) clock: SharedClock,
    pub(super) boot: [u8; 16],
    pub(super) name: LaneName,
    pub(super) pace: watch::Receiver<Pace>,
    pub(super) letters_room: watch::Receiver<LettersRoom>,
}

/// A seal on its way to the disk.
#[derive(Debug)]
#[must_use = "a batch may be sent only when it is sealed durably"]
pub struct PendingSeal(oneshot::Receiver<Result<(), JournalError>>);

impl PendingSeal {
    pub(super) fn of(answer: oneshot::Receiver<Result<(), JournalError>>) -> Self {
        Self(answer)
    }

    /// Waits until the batch is sealed durably.
    ///
    /// # Errors
    /// When it is not; the lane opens itself anew.
    pub async fn durable(self) -> Result<(), JournalError> {
        self.0.await.unwrap_or(Err(JournalError::Closed))
    }
}

/// Makes part rows. Belongs to one run on one thread.
pub struct PartEncoder(Encoder);

impl Default for PartEncoder {
    fn default() -> Self {
        Self(Encoder::new())
    }
}

impl std::fmt::Debug for PartEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PartEncoder")
    }
}

/// Which part of which batch some frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlace {
    /// The batch.
    pub batch: BatchNumber,
    /// The run that seals it.
    pub epoch: Epoch,
    /// Its number, from 0.
    pub part: u64,
    /// The batch's first seq.
    pub first_seq: Seq,
}

impl LaneJournal {
    /// The lane's name.
    #[must_use]
    pub fn name(&self) -> &LaneName {
        &self.name
    }

    /// The newest record of the lane's stream, now and later.
    #[must_use]
    pub fn head(&self) -> watch::Receiver<Head> {
        self.head.clone()
    }

    /// What the lane may do ahead of its deliveries, now and later.
    #[must_use]
    pub fn pace(&self) -> watch::Receiver<Pace> {
        self.pace.clone()
    }

    /// How full the store of dead letters is, now and later.
    #[must_use]
    pub fn letters_room(&self) -> watch::Receiver<LettersRoom> {
        self.letters_room.clone()
    }

    /// The last record that a policy has moved the lane past in this run.
    #[must_use]
    pub fn floor(&self) -> Seq {
        self.readers.floor(self.number)
    }

    /// Stores one part of a batch that is yet to be sealed, and gives the bytes of its row. Not waited for: a part that is lost
    /// fails the seal.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn store_part(
        &self,
        encoder: &mut PartEncoder,
        place: PartPlace,
        count: u32,
        frames: &[u8],
    ) -> Result<u64, JournalError> {
        assert!(place.part < BATCH_PARTS_MAX, "a batch is cut before it has that many parts");
        let part = u32::try_from(place.part).expect("below the bound just checked");
        let kind = Kind::Part { lane: self.number.0, batch: place.batch.0, part };
        let (wall, monotonic) = (self.clock.now(), self.clock.monotonic());
        let stamp = Stamp { wall, boot: self.boot, monotonic, quality: self.clock.quality() };
        let label = Label { kind, epoch: place.epoch, first_seq: place.first_seq, count, stamp };
        let row = encoder.0.encode(label, frames, &[]);
        let bytes = row.len();
        let (lane, session, batch, part) = (self.number, self.session, place.batch, place.part);
        let operation = Operation::Part(PartOperation { lane, session, batch, part, row });
        self.writer.send(operation, bytes).await?;
        Ok(bytes as u64)
    }

    /// Forgets the parts of a batch that is run anew.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn discard_parts(&self) -> Result<(), JournalError> {
        let operation = Operation::DiscardParts { lane: self.number, session: self.session };
        self.writer.send(operation, 0).await
    }

    /// Seals a batch. One without output is acked with it.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn seal(&self, seal: Seal) -> Result<PendingSeal, JournalError> {
        let letters: usize = seal.letters.iter().map(|letter| letter.record.payload.len()).sum();
        let changes = seal.state.iter().map(|change| change.value.as_ref().map_or(0, Vec::len));
        let bytes = letters + changes.sum::<usize>();
        let (reply, answer) = oneshot::channel();
        let (lane, session) = (self.number, self.session);
        let operation = Operation::Seal(Box::new(SealOperation { lane, session, seal, reply }));
        self.writer.send(operation, bytes).await?;
        Ok(PendingSeal(answer))
    }
}

impl Writer {
    pub(super) fn open_lane(
        &mut self,
        transaction: &Connection,
        spec: LaneSpec,
        runs: Weak<()>,
    ) -> Result<OpenedLane, JournalError> {
        let stream = self
            .state
            .streams
            .iter()
            .find(|(_, stream)| stream.source == spec.source)
            .map(|(number, _)| *number);
        let stream = match stream {
            Some(number) => number,
            None => self.make_stream(transaction, spec.source.clone())?,
        };
        let known = self.state.lanes.iter().find(|(_, lane)| {
            !lane.dropped
                && lane.stream == stream
                && lane.pipeline == spec.pipeline
                && lane.sink == spec.sink
        });
        let number = match known {
            Some((number, _)) => *number,
            None => self.make_lane(transaction, stream, &spec)?,
        };
        self.discard_unsealed(transaction, number)?;
        self.forget_letter_batches(transaction, number)?;
        let session = self.new_session(Session::Lane(number));
        self.running.insert(number, runs);
        let failed = |source| JournalError::sqlite(&self.path, "reading a lane", source);
        let lane = &self.state.lanes[&number];
        let batches = stored_batches(transaction, number).map_err(failed)?.into_iter();
        let (mut replays, unacked): (Vec<StoredBatch>, _) =
            batches.map(|(batch, _)| batch).partition(|batch| batch.variant.replay);
        for replay in &mut replays {
            let note = super::replay::sink_note(transaction, number, replay.number);
            replay.variant.sink_note = note.map_err(failed)?;
        }
        Ok(OpenedLane {
            number,
            session,
            stream,
            name: lane.name.clone(),
            sealed_seq: lane.sealed_seq,
            next_batch: lane.next_batch,
            unacked,
            replays,
            plugin_state: plugin_state(transaction, number).map_err(failed)?,
            sink_note: super::notes::note(transaction, number).map_err(failed)?,
        })
    }

    fn make_lane(
        &mut self,
        transaction: &Connection,
        stream: StreamNumber,
        spec: &LaneSpec,
    ) -> Result<LaneNumber, JournalError> {
        let number = self.state.lanes.keys().map(|number| number.0).max().unwrap_or(0) + 1;
        let plain = LaneName::new(&spec.agent, &spec.source, &spec.pipeline, &spec.sink);
        if number > LANES_MAX {
            return Err(JournalError::NoNumberLeft(format!("lane {plain}")));
        }
        // A name is never given twice in one journal, also after a drop.
        let taken = |name: &LaneName| self.state.lanes.values().any(|lane| lane.name == *name);
        let name = (2..=u32::from(LANES_MAX) + 1)
            .map(|copy| LaneName::stored(&format!("{plain}~{copy}")))
            .find(|name| !taken(name))
            .filter(|_| taken(&plain))
            .unwrap_or(plain);
        let head = self.state.streams[&stream].next_seq.0 - 1;
        let start =
            if spec.start_now { head } else { self.before_oldest(transaction, stream, head)? };
        let insert =
            "INSERT INTO lanes (number, name, stream, pipeline, sink, start_seq, sealed_seq)
                      VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)";
        let (pipeline, sink) = (spec.pipeline.clone(), spec.sink.clone());
        let parameters = params![
            number,
            name.as_str(),
            stream.0,
            pipeline.as_str(),
            sink.as_str(),
            start.cast_signed()
        ];
        self.execute(transaction, "making a lane", insert, parameters)?;
        let lane = LaneRow {
            name,
            stream,
            pipeline,
            sink,
            dropped: false,
            start_seq: Seq(start),
            sealed_seq: Seq(start),
            next_batch: BatchNumber(1),
            unacked: std::collections::VecDeque::new(),
            acked: Vec::new(),
            replays: std::collections::VecDeque::new(),
            totals: LaneTotals::default(),
            has_idle_letter_batches: false,
        };
        self.state.lanes.insert(LaneNumber(number), lane);
        self.state.update_released(stream);
        self.publish_room();
        Ok(LaneNumber(number))
    }

    /// The seq in front of the oldest record that the journal holds.
    fn before_oldest(
        &self,
        transaction: &Connection,
        stream: StreamNumber,
        head: u64,
    ) -> Result<u64, JournalError> {
        let query = "SELECT min(key) FROM chunks WHERE key BETWEEN ?1 AND ?2";
        let keys = [chunk_key(stream, Seq(0)), chunk_key(stream, Seq(head))];
        let oldest: Option<Option<i64>> =
            self.value(transaction, "reading a stream", query, keys)?;
        Ok(oldest.flatten().map_or(head, |key| key_seq(key).0 - 1))
    }

    /// Parts without a batch row belong to a run that did not come to its seal.
    pub(super) fn discard_unsealed(
        &self,
        transaction: &Connection,
        number: LaneNumber,
    ) -> Result<(), JournalError> {
        let Some(lane) = self.state.lanes.get(&number) else { return Ok(()) };
        let from = part_key(number, lane.next_batch, 0);
        let to = part_key(LaneNumber(number.0 + 1), BatchNumber(0), 0);
        let delete = "DELETE FROM batch_parts WHERE key >= ?1 AND key < ?2";
        self.execute(transaction, "discarding parts", delete, [from, to])?;
        Ok(())
    }

    /// Above `max_page_count` a part would fail everybody's commit: its lane alone begins anew instead, with smaller ones.
    pub(super) fn store_or_refuse_part(
        &mut self,
        transaction: &Connection,
        part: &PartOperation,
    ) -> Result<(), JournalError> {
        let needed = super::budget::row_bytes(part.row.len());
        if needed > self.quota.parts_left {
            self.new_session(Session::Lane(part.lane));
            self.discard_unsealed(transaction, part.lane)?;
            self.becomes_full();
            return Ok(());
        }
        self.quota.parts_left -= needed;
        self.store_part(transaction, part)
    }

    fn store_part(
        &self,
        transaction: &Connection,
        part: &PartOperation,
    ) -> Result<(), JournalError> {
        let insert = "INSERT INTO batch_parts (key, data) VALUES (?1, ?2)";
        let key = part_key(part.lane, part.batch, part.part);
        self.execute(transaction, "storing a part", insert, params![key, part.row])?;
        Ok(())
    }

    pub(super) fn seal(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: SealOperation,
    ) -> Result<(), JournalError> {
        let SealOperation { lane: number, seal, reply, .. } = operation;
        let misfit = match self.misfit(transaction, number, &seal) {
            Ok(misfit) => misfit,
            Err(error) => return group.answer_with(reply, Err(error)),
        };
        let refused = match misfit {
            Some(error) => Some(error),
            None => {
                let name = &self.state.lanes[&number].name;
                let identity = seal.batch.identity(name);
                let letters = seal.letters.iter().map(|l| l.record.stored_bytes(&identity));
                self.make_letters_fit(transaction, letters.sum(), seal.letters.len())?
            }
        };
        if let Some(error) = refused {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(error)));
            return Ok(());
        }
        group.answer(reply, ());
        let Seal { batch, dropped, not_taken, dead_lettered: dead, letters, state } = seal;
        let identity = |lane: &LaneRow| batch.identity(&lane.name);
        let batch_identity = self.state.lanes.get(&number).map(identity).unwrap_or_default();
        let source = self.source_of(number);
        let taken = batch.last_seq.0 + 1 - batch.first_seq.0;
        assert!(dropped + dead + not_taken <= taken, "a record has one outcome");
        for letter in &letters {
            let row =
                LetterRow::of_stage(letter, &source, number, &batch_identity, batch.sealed_at);
            self.write_letter(transaction, &row)?;
        }
        self.change_states(transaction, number, &state)?;
        let inputs = taken - dropped - dead - not_taken;
        if batch.records > 0 {
            self.insert_batch(transaction, number, &batch, inputs)?;
        }
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        lane.sealed_seq = batch.last_seq;
        lane.next_batch = BatchNumber(batch.number.0 + 1);
        lane.totals.dropped += dropped;
        lane.totals.not_taken += not_taken;
        lane.totals.dead_lettered += dead;
        if batch.records > 0 {
            lane.unacked.push_back(batch.unacked(inputs));
            if inputs == taken {
                // Its row is the cursor until the lane's own is written, with its ack at the latest: a page less to write.
                self.look_for_released(number);
                return Ok(());
            }
        } else if batch.first_seq <= batch.last_seq {
            let row = batch.finished(Finish::Empty, 0);
            self.remember_finished(transaction, number, &row, self.clock.now())?;
        }
        self.write_lane(transaction, number)
    }

    /// What of a seal does not fit the journal; nothing was changed then.
    fn misfit(
        &self,
        transaction: &Connection,
        number: LaneNumber,
        seal: &Seal,
    ) -> Result<Option<JournalError>, JournalError> {
        let Some(lane) = self.state.lanes.get(&number) else {
            return Ok(Some(JournalError::SessionEnded(format!("lane number {number}"))));
        };
        let batch = &seal.batch;
        let query = "SELECT count(*) FROM batch_parts WHERE key BETWEEN ?1 AND ?2";
        let keys = [
            part_key(number, batch.number, 0),
            part_key(number, batch.number, BATCH_PARTS_MAX - 1),
        ];
        let parts: i64 = self.value(transaction, "counting parts", query, keys)?.unwrap_or(0);
        let head = self.head(lane.stream);
        let moved = self.quota.giving_up.moved.iter().any(|(moved, _)| *moved == number);
        let floor = self.published.floor(number);
        // What a policy gave up stands at the end of what is sealed, or the lane has sealed more since.
        if batch.first_seq <= lane.sealed_seq && (moved || batch.first_seq <= floor) {
            let (lane, seq) = (lane.name.clone(), lane.sealed_seq);
            return Ok(Some(JournalError::Overtaken { lane, seq }));
        }
        let why = if batch.number != lane.next_batch {
            format!("the next batch is {}", lane.next_batch)
        } else if batch.first_seq != lane.sealed_seq.next() || batch.last_seq > head {
            format!(
                "it covers {} to {}, sealed is {} and the head {head}",
                batch.first_seq, batch.last_seq, lane.sealed_seq
            )
        } else if parts.cast_unsigned() != batch.parts {
            format!("{parts} of its {} parts are stored", batch.parts)
        } else {
            return Ok(None);
        };
        let (lane, batch) = (lane.name.clone(), batch.number);
        Ok(Some(JournalError::Misfit { lane, batch, why }))
    }

    /// Writes cursors and totals, and works out which chunks may go.
    pub(super) fn write_lane(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
    ) -> Result<(), JournalError> {
        let Some(lane) = self.state.lanes.get(&number) else { return Ok(()) };
        let update =
            "UPDATE lanes SET sealed_seq = ?2, next_batch = ?3, delivered = ?4, dropped = ?5,
            dead_lettered = ?6, outputs_delivered = ?7, not_taken = ?8, lost = ?9, acked = ?10
            WHERE number = ?1";
        let parameters = params![
            number.0,
            lane.sealed_seq.0.cast_signed(),
            lane.next_batch.0.cast_signed(),
            lane.totals.delivered.cast_signed(),
            lane.totals.dropped.cast_signed(),
            lane.totals.dead_lettered.cast_signed(),
            lane.totals.outputs_delivered.cast_signed(),
            lane.totals.not_taken.cast_signed(),
            lane.totals.lost.cast_signed(),
            super::acked::to_bytes(number, &lane.acked),
        ];
        self.execute(transaction, "writing a lane", update, parameters)?;
        self.look_for_released(number);
        Ok(())
    }

    /// A cursor of the lane has moved: chunks may go.
    fn look_for_released(&mut self, number: LaneNumber) {
        let Some(lane) = self.state.lanes.get(&number) else { return };
        let stream = lane.stream;
        if self.state.update_released(stream)
            && let Some(stream) = self.state.streams.get_mut(&stream)
        {
            stream.deletes_left = true;
        }
    }

    pub(super) fn source_of(&self, lane: LaneNumber) -> String {
        let stream = self.state.lanes.get(&lane).and_then(|l| self.state.streams.get(&l.stream));
        stream.map(|stream| stream.source.to_string()).unwrap_or_default()
    }

    pub(super) fn change_states(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        changes: &[StateChange],
    ) -> Result<(), JournalError> {
        changes.iter().try_for_each(|change| self.change_state(transaction, lane, change))
    }

    fn change_state(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        change: &StateChange,
    ) -> Result<(), JournalError> {
        let StateChange { component, key, value } = change;
        match value {
            Some(value) => {
                let put = "INSERT INTO plugin_state VALUES (?1, ?2, ?3, ?4)
                           ON CONFLICT (lane, component, key) DO UPDATE SET value = ?4";
                let parameters = params![lane.0, component, key, value];
                self.execute(transaction, "keeping plugin state", put, parameters)?
            }
            None => {
                let delete =
                    "DELETE FROM plugin_state WHERE lane = ?1 AND component = ?2 AND key = ?3";
                let parameters = params![lane.0, component, key];
                self.execute(transaction, "forgetting plugin state", delete, parameters)?
            }
        };
        Ok(())
    }
}

fn plugin_state(transaction: &Connection, lane: LaneNumber) -> rusqlite::Result<PluginState> {
    let mut statement = transaction
        .prepare_cached("SELECT component, key, value FROM plugin_state WHERE lane = ?1")?;
    let mut rows = statement.query([lane.0])?;
    let mut state = PluginState::new();
    while let Some(row) = rows.next()? {
        state.entry(row.get(0)?).or_default().insert(row.get(1)?, row.get(2)?);
    }
    Ok(state)
}
