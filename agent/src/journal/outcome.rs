//! What became of a sealed batch: delivered, cut in half, sent to the dead letters, or given another identity.
//!
//! # Cuts
//!
//! 1. A batch that a destination refuses as a whole is cut at one of its records. The row of the batch goes and two rows take
//!    its place, in one transaction that is durable before the first half is sent. A cut is never undone.
//! 2. Halves share the parts of their batch, each by a range of its records; a batch whose content is a range of the stream
//!    becomes two ranges. The parts go with the last half.
//! 3. An input whose records lie on both sides is counted by the half that holds its last one; if an earlier half gives it up,
//!    it is counted then, and the later ones are told (`counted`).
//!
//! # Acks
//!
//! One that gives up nothing rides with whatever commits next. One with dead letters is waited for: letters, totals and the
//! end of the batch are one transaction, or, where the letters have no room, nothing of it happens.

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::acked::AckedBatch;
use super::apply::Group;
use super::batches::{LetterClass, Shown, StoredBatch, stored_batches};
use super::error::JournalError;
use super::finished::{Finish, FinishedRow};
use super::lanes::{LaneJournal, StateChange};
use super::letters::{LetterRecord, LetterRow};
use super::state::{UnackedState, part_key};
use super::writer::{Operation, Writer};
use crate::clock::Timestamp;
use crate::limits::BATCH_PARTS_MAX;
use crate::record::id::{BatchNumber, Epoch, LaneNumber, Seq};

/// The records of one batch that are given up, in the order in which they stand in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkLetters {
    /// Why all of them are.
    pub class: LetterClass,
    /// How often the batch was sent.
    pub attempts: u32,
    /// When it was sent first.
    pub first_at: Timestamp,
    /// When it was sent last.
    pub last_at: Timestamp,
    /// The records.
    pub letters: Vec<LetterRecord>,
    /// What the sink has changed in its state for the batch.
    pub state: Vec<StateChange>,
}

/// Where a batch is cut, and what its halves are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halves {
    /// The halves, in order.
    pub halves: [StoredBatch; 2],
    /// Inputs that the first one counts: those whose last record it has. The others of the batch are the second one's.
    pub first_inputs: u64,
}

/// Which batch of a lane, by its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchKey {
    number: BatchNumber,
    suffix: String,
}

impl From<&StoredBatch> for BatchKey {
    fn from(batch: &StoredBatch) -> Self {
        Self { number: batch.number, suffix: batch.variant.suffix.clone() }
    }
}

/// A batch that was not cut.
impl From<BatchNumber> for BatchKey {
    fn from(number: BatchNumber) -> Self {
        Self { number, suffix: String::new() }
    }
}

impl BatchKey {
    pub(super) fn number(&self) -> BatchNumber {
        self.number
    }

    fn is(&self, batch: &UnackedState) -> bool {
        self.number == batch.number && self.suffix == batch.suffix
    }
}

type Reply<T> = oneshot::Sender<Result<T, JournalError>>;

#[derive(Debug)]
pub(super) struct AckOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    pub(super) batch: BatchKey,
    pub(super) identity: String,
    /// How it ended.
    pub(super) finished: FinishedRow,
    pub(super) letters: Option<(SinkLetters, Reply<()>)>,
    /// Of a replay: records that the destination had before.
    pub(super) already: u64,
    /// What the sink has changed in its state for this batch.
    pub(super) state: Vec<StateChange>,
}

impl AckOperation {
    /// Whether nobody waits for it.
    pub(super) fn can_wait(&self) -> bool {
        self.letters.is_none()
    }

    /// Bytes that its letters take.
    pub(super) fn letters_bytes(&self) -> u64 {
        self.letters.as_ref().map_or(0, |(letters, _)| letters.stored_bytes(&self.identity))
    }

    /// Bytes that its state takes.
    pub(super) fn state_bytes(&self) -> u64 {
        state_bytes(&self.state)
    }

    pub(super) fn refuse(self, error: JournalError) {
        if let Some((_, reply)) = self.letters {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(error)));
        }
    }
}

/// What changes of a plugin's state take of the database.
pub(super) fn state_bytes(state: &[StateChange]) -> u64 {
    let bytes = |change: &StateChange| {
        let value = change.value.as_ref().map_or(0, Vec::len);
        (change.component.len() + change.key.len() + value) as u64
    };
    state.iter().map(bytes).sum()
}

impl SinkLetters {
    /// Whether the destination may have some of them: what it refuses at once it has not.
    pub(super) fn may_be_sent(&self) -> bool {
        !self.letters.is_empty() && (self.class != LetterClass::Rejected || self.attempts > 1)
    }

    /// What they take of the store of dead letters.
    #[must_use]
    pub fn stored_bytes(&self, batch_identity: &str) -> u64 {
        self.letters.iter().map(|letter| letter.stored_bytes(batch_identity)).sum()
    }
}

#[derive(Debug)]
pub(super) struct CutOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    batch: BatchKey,
    halves: Halves,
    pub(super) reply: Reply<()>,
}

#[derive(Debug)]
pub(super) struct RenameOperation {
    pub(super) lane: LaneNumber,
    pub(super) session: u64,
    batch: BatchKey,
    epoch: Epoch,
    number: BatchNumber,
    fixed: String,
    pub(super) reply: Reply<()>,
}

impl LaneJournal {
    /// Records that a batch was delivered, and how that came. Rides with the next commit, after a second at the latest.
    ///
    /// # Errors
    /// When the journal is closed.
    pub async fn ack(
        &self,
        batch: &StoredBatch,
        finish: Finish,
        attempts: u32,
    ) -> Result<(), JournalError> {
        self.ack_with_state(batch, finish, attempts, Vec::new()).await
    }

    /// The same, with what the sink has changed in its state for the batch: both are durable, or neither.
    ///
    /// # Errors
    /// As [`Self::ack`].
    pub async fn ack_with_state(
        &self,
        batch: &StoredBatch,
        finish: Finish,
        attempts: u32,
        state: Vec<StateChange>,
    ) -> Result<(), JournalError> {
        let bytes = usize::try_from(state_bytes(&state)).unwrap_or(usize::MAX);
        let operation = AckOperation {
            lane: self.number,
            session: self.session,
            batch: batch.into(),
            identity: String::new(),
            finished: batch.finished(finish, attempts),
            letters: None,
            already: 0,
            state,
        };
        self.writer.send(Operation::Ack(Box::new(operation)), bytes).await
    }

    /// Records durably that a batch was delivered but for these records, which become dead letters. With none, it counts as
    /// delivered because somebody decided so.
    ///
    /// # Errors
    /// [`JournalError::LettersFull`] or [`JournalError::NoRoom`] when the letters have no room: nothing has changed then, and
    /// the same may be asked again. Others as ever.
    pub async fn ack_with_letters(
        &self,
        batch: &StoredBatch,
        letters: SinkLetters,
    ) -> Result<(), JournalError> {
        self.ack_and_wait(batch, letters, 0).await
    }

    pub(super) async fn ack_and_wait(
        &self,
        batch: &StoredBatch,
        mut letters: SinkLetters,
        already: u64,
    ) -> Result<(), JournalError> {
        let state = std::mem::take(&mut letters.state);
        let (reply, answer) = oneshot::channel();
        let finish = match letters.letters.len() as u64 {
            0 if batch.variant.replay && already < batch.records => Finish::Delivered,
            0 if batch.variant.replay => Finish::Already,
            0 => Finish::Accepted,
            count if count == batch.records => Finish::GivenUp,
            _ => Finish::Partly,
        };
        let operation = AckOperation {
            lane: self.number,
            session: self.session,
            batch: batch.into(),
            identity: batch.identity(&self.name),
            finished: batch.finished(finish, letters.attempts),
            letters: Some((letters, reply)),
            already,
            state,
        };
        let bytes = operation.letters_bytes() + operation.state_bytes();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.writer.send(Operation::Ack(Box::new(operation)), bytes).await?;
        answer.await.unwrap_or(Err(JournalError::Closed))
    }

    /// Cuts a batch in half, durably and for good.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed, or the halves do not make the batch.
    pub async fn cut(&self, batch: &StoredBatch, halves: Halves) -> Result<(), JournalError> {
        let (lane, session, batch) = (self.number, self.session, BatchKey::from(batch));
        self.writer
            .ask(|reply| {
                Operation::Cut(Box::new(CutOperation { lane, session, batch, halves, reply }))
            })
            .await
    }

    /// Gives a batch the next number of this run as its identity, and what the sink fixed for that. Its records keep theirs.
    /// The number is taken from those that seals get, so nothing is being sealed meanwhile.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed, or the number is not the next one.
    pub async fn rename(
        &self,
        batch: &StoredBatch,
        epoch: Epoch,
        number: BatchNumber,
        fixed: String,
    ) -> Result<(), JournalError> {
        let (lane, session, batch) = (self.number, self.session, BatchKey::from(batch));
        let rename = |reply| RenameOperation { lane, session, batch, epoch, number, fixed, reply };
        self.writer.ask(|reply| Operation::Rename(Box::new(rename(reply)))).await
    }
}

impl Writer {
    /// The oldest batch of a lane that waits for its outcome, or its oldest replay, when it is this one.
    fn oldest(&mut self, lane: LaneNumber, key: &BatchKey) -> Option<&UnackedState> {
        let lane = self.state.lanes.get_mut(&lane)?;
        lane.queue(key.number).front().filter(|batch| key.is(batch))
    }

    fn not_the_oldest(&self, lane: LaneNumber, key: &BatchKey) -> JournalError {
        let lane = self.state.lanes.get(&lane).map(|lane| lane.name.clone());
        let why = "it is not the oldest that waits for an outcome".to_owned();
        match lane {
            Some(lane) => JournalError::Misfit { lane, batch: key.number, why },
            None => JournalError::SessionEnded("a lane that is not there".to_owned()),
        }
    }

    pub(super) fn ack(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: AckOperation,
    ) -> Result<(), JournalError> {
        let Some(records) = self.oldest(operation.lane, &operation.batch).map(|b| b.records) else {
            let error = self.not_the_oldest(operation.lane, &operation.batch);
            tracing::error!(error = %error, "Ack of a batch that is not the oldest, not taken");
            operation.refuse(error);
            return Ok(());
        };
        if self.is_replay(operation.lane, operation.batch.number) {
            return self.settle_replay(transaction, group, operation);
        }
        let bytes = operation.letters_bytes();
        let AckOperation { lane: number, batch: key, identity, finished, letters, state, .. } =
            operation;
        let mut given_up = 0;
        if let Some((letters, reply)) = letters {
            let fit = self.make_letters_fit(transaction, bytes, letters.letters.len());
            if let Some(error) = fit? {
                // Whoever asked may have given up waiting.
                drop(reply.send(Err(error)));
                return Ok(());
            }
            group.answer(reply, ());
            given_up = letters.letters.len() as u64;
            let whole = given_up == records && given_up > 0;
            if whole {
                self.keep_letter_batch(transaction, number, key.number, &identity)?;
            }
            self.write_sink_letters(transaction, number, &identity, &letters, whole)?;
            if letters.may_be_sent() {
                self.note_letter_batch(transaction, number, &identity, None)?;
            }
            let seqs = letters.letters.iter().map(|letter| letter.seq);
            self.count_given_up(transaction, number, seqs)?;
        }
        self.change_states(transaction, number, &state)?;
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        let Some(done) = lane.unacked.pop_front() else { return Ok(()) };
        lane.totals.delivered += done.inputs;
        lane.totals.outputs_delivered += done.records.saturating_sub(given_up);
        let is_last = lane.unacked.front().is_none_or(|next| next.number != done.number);
        if is_last && done.parts > 0 {
            let last = part_key(number, done.number, BATCH_PARTS_MAX - 1);
            let keys = [part_key(number, done.number, 0), last];
            let delete = "DELETE FROM batch_parts WHERE key BETWEEN ?1 AND ?2";
            self.execute(transaction, "deleting parts", delete, keys)?;
        }
        let at = self.clock.now();
        let is_plain = given_up == 0 && done.parts == 0 && done.suffix.is_empty();
        if is_plain && self.quota.full.is_none() {
            let FinishedRow { finish, attempts, .. } = finished;
            let acked = AckedBatch { number: done.number, finish, attempts, at };
            self.keep_acked(transaction, number, acked)?;
        } else {
            self.delete_batch(transaction, number, &key)?;
            self.remember_finished(transaction, number, &finished, at)?;
        }
        if is_last && self.state.lanes[&number].has_idle_letter_batches {
            self.forget_letter_batches(transaction, number)?;
        }
        self.write_lane(transaction, number)
    }

    pub(super) fn delete_batch(
        &self,
        transaction: &Connection,
        lane: LaneNumber,
        key: &BatchKey,
    ) -> Result<(), JournalError> {
        let delete = "DELETE FROM batches WHERE lane = ?1 AND number = ?2 AND suffix = ?3";
        let parameters = params![lane.0, key.number.0.cast_signed(), key.suffix];
        self.execute(transaction, "deleting a batch", delete, parameters).map(drop)
    }

    fn write_sink_letters(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        identity: &str,
        letters: &SinkLetters,
        whole: bool,
    ) -> Result<(), JournalError> {
        let source = self.source_of(number);
        let stage = self.state.lanes.get(&number).map(|lane| lane.sink.to_string());
        let stage = stage.unwrap_or_default();
        for letter in &letters.letters {
            let row = LetterRow::of_sink(letter, letters, (&stage, &source, number), identity);
            let whole = if whole { letters.letters.len() as u64 } else { 0 };
            let oldest = self.state.lanes.get(&number).and_then(|lane| lane.unacked.front());
            let is_counted =
                oldest.is_some_and(|batch| batch.counted.binary_search(&letter.seq).is_ok());
            self.write_letter(transaction, &LetterRow { whole, is_counted, ..row })?;
        }
        Ok(())
    }

    /// Moves the inputs of records of the oldest batch that are given up to the dead-lettered ones, each once.
    fn count_given_up(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        seqs: impl Iterator<Item = Seq>,
    ) -> Result<(), JournalError> {
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        if lane.unacked.front().is_none_or(UnackedState::is_of_tick) {
            return Ok(());
        }
        let mut seqs: Vec<_> = seqs.collect();
        seqs.dedup();
        let mut changed = Vec::new();
        for seq in seqs {
            if lane.unacked[0].counted.binary_search(&seq).is_ok() {
                continue;
            }
            lane.totals.dead_lettered += 1;
            let batch = lane.unacked[0].number;
            let siblings = 1..lane.unacked.len();
            let sharing: Vec<_> = siblings
                .filter(|later| {
                    let later = &lane.unacked[*later];
                    later.number == batch && later.first_seq <= seq
                })
                .collect();
            // The half with the last of its records counts it.
            let counting = sharing.last().copied().unwrap_or(0);
            let inputs = &mut lane.unacked[counting].inputs;
            *inputs = inputs.saturating_sub(1);
            for later in sharing {
                let counted = &mut lane.unacked[later].counted;
                if let Err(place) = counted.binary_search(&seq) {
                    counted.insert(place, seq);
                }
                changed.push(later);
            }
        }
        changed.sort_unstable();
        changed.dedup();
        let changed: Vec<_> = changed.into_iter().map(|at| lane.unacked[at].clone()).collect();
        for half in changed {
            self.write_inputs(transaction, number, &half)?;
        }
        Ok(())
    }

    pub(super) fn cut(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: CutOperation,
    ) -> Result<(), JournalError> {
        let CutOperation { lane: number, batch: key, halves, reply, .. } = operation;
        let whole = self.oldest(number, &key).filter(|batch| makes(batch, &halves));
        let Some(whole) = whole.map(|batch| batch.inputs) else {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(self.not_the_oldest(number, &key))));
            return Ok(());
        };
        group.answer(reply, ());
        self.delete_batch(transaction, number, &key)?;
        let Halves { halves, first_inputs } = halves;
        let inputs = [first_inputs, whole - first_inputs];
        for (half, inputs) in halves.iter().zip(inputs) {
            self.insert_batch(transaction, number, half, inputs)?;
        }
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        let [first, second] = &halves;
        let queue = lane.queue(key.number);
        queue[0] = first.unacked(inputs[0]);
        queue.insert(1, second.unacked(inputs[1]));
        // Halves do not tell the lane's cursor, as the whole may have done.
        self.write_lane(transaction, number)
    }

    pub(super) fn rename(
        &mut self,
        transaction: &Connection,
        group: &mut Group,
        operation: RenameOperation,
    ) -> Result<(), JournalError> {
        let RenameOperation { lane: number, batch: key, epoch, number: new, fixed, reply, .. } =
            operation;
        let lane = self.state.lanes.get_mut(&number).filter(|lane| lane.next_batch == new);
        let Some(lane) = lane else {
            // Whoever asked may have given up waiting.
            drop(reply.send(Err(self.not_the_oldest(number, &key))));
            return Ok(());
        };
        lane.next_batch = BatchNumber(new.0 + 1);
        let stored = stored_batches(transaction, number)
            .map_err(|source| JournalError::sqlite(&self.path, "reading batches", source));
        let stored = match stored {
            Ok(stored) => stored,
            Err(error) => return group.answer_with(reply, Err(error)),
        };
        let is = |batch: &StoredBatch| BatchKey::from(batch) == key;
        if let Some((mut batch, inputs)) = stored.into_iter().find(|(batch, _)| is(batch)) {
            batch.variant.shown = Some(Shown { epoch, number: new, suffix: String::new() });
            batch.fixed = fixed;
            self.delete_batch(transaction, number, &key)?;
            self.insert_batch(transaction, number, &batch, inputs)?;
        }
        group.answer(reply, ());
        self.write_lane(transaction, number)
    }
}

/// Whether halves make a batch: all its records and all its inputs, in order.
fn makes(batch: &UnackedState, Halves { halves, first_inputs }: &Halves) -> bool {
    let [first, second] = halves;
    first.records > 0
        && second.records > 0
        && first.records + second.records == batch.records
        && *first_inputs <= batch.inputs
        && halves.iter().all(|half| half.number == batch.number && half.parts == batch.parts)
        && first.variant.suffix == format!("{}.0", batch.suffix)
        && second.variant.suffix == format!("{}.1", batch.suffix)
        && first.first_seq == batch.first_seq
        && second.last_seq == batch.last_seq
}
