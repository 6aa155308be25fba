//! Dead letters of a lane go out again: which, in what batches and under which identities, and how those are sealed.
//!
//! - A replay is of letters that fell out of one batch at one stage. Those of the sink go as they are; those of a transform
//!   run from that transform on, in today's plugins and with the lane's state, and what they change of it is sealed with them.
//! - It is made between two sessions of the lane: then nothing is being run or sealed, and state, numbers and cursor are those
//!   of the journal. An order ends the session where it waits or between two batches, and the next one begins with the replays.
//! - It is delivered before everything else, and holds nobody up for long: what is refused, in conflict, or answered three
//!   times in a row with an error, is a dead letter again, whatever `on_conflict` and `on_exhausted` say. It counts in no storm.
//! - A lane that holds for its destination, for a decision or for a pause takes no orders; one that holds for a storm, for room
//!   in the store of dead letters or for what keeps it from sealing does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::control::Desk;
use super::error::LaneError;
use super::output::Made;
use super::seal::Sealer;
use super::stage::SetAside;
use super::status::{LaneState, LaneStatus};
use super::transform::Input;
use crate::clock::Timestamp;
use crate::error_chain::Chain;
use crate::journal::{
    Journal, JournalError, LaneJournal, Letter, LetterBatch, Pace, Repair, ReplaySeal, Shown,
    StageLetter, StateChange, StoredBatch, Variant,
};
use crate::limits::{
    CHUNK_BYTES_MAX, LETTER_ROW_BYTES, PLUGIN_OUTPUT_BYTES_MIN, PLUGIN_OUTPUT_FACTOR,
    RECORD_BYTES_MAX, REPLAY_LETTERS_MAX,
};
use crate::plugin::StateDelta;
use crate::record::batch::{BatchFacts, FrameBlock};
use crate::record::codec::FrameBuffer;
use crate::record::id::{Epoch, LaneName, RecordIdentity, Seq};
use crate::record::{Headers, RecordView};
use crate::sinks::config::BatchConfig;

/// Which dead letters of a lane are to go out again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Their ids, up to [`REPLAY_LETTERS_MAX`].
    pub letters: Vec<i64>,
    /// What the payload of the one letter is replaced by.
    pub payload: Option<Vec<u8>>,
}

/// A batch that a replay makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedReplay {
    /// The identity that it goes out under.
    pub identity: String,
    /// The identity of the batch that its letters fell out of.
    pub of: String,
    /// Which replay of that batch's letters it is; 0 when it is that batch itself.
    pub replays: u64,
    /// Where they fell out: a transform or the sink.
    pub stage: String,
    /// That is a transform.
    pub is_of_transform: bool,
    /// Its letters, in order.
    pub letters: Vec<PlannedLetter>,
    /// What they take.
    pub bytes: u64,
}

/// A letter that goes out again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedLetter {
    /// The letter.
    pub id: i64,
    /// The identity of its record.
    pub record: String,
    /// The input that it was made from.
    pub seq: Seq,
}

/// A letter that does not go out again, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// The letter.
    pub letter: i64,
    /// Why, and what may help.
    pub reason: String,
    /// There is no more room in this order, and there may be in the next one.
    pub is_for_later: bool,
}

/// What a replay of some letters comes to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The batches, in order.
    pub batches: Vec<PlannedReplay>,
    /// Letters that are left out.
    pub left_out: Vec<LeftOut>,
}

/// Bounds of what one order makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanBounds {
    /// Letters of one batch.
    pub records_max: u64,
    /// Bytes of the letters of one batch; a single one is let through.
    pub bytes_max: u64,
    /// Bytes of the letters of all batches, behind which none is begun.
    pub total_bytes_max: u64,
    /// Batches; one is let through.
    pub batches_max: u64,
}

/// A replay that was sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedReplay {
    /// Its number, by which its outcome is found in [`Journal::replays`].
    pub id: i64,
    /// The batch as it was planned.
    pub planned: PlannedReplay,
}

/// What an order has come to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Replayed {
    /// The replays that were sealed.
    pub sealed: Vec<SealedReplay>,
    /// Letters that were left out.
    pub left_out: Vec<LeftOut>,
}

/// Why an order was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// It names too many letters.
    #[error("{0} dead letters are more than the {REPLAY_LETTERS_MAX} of one order")]
    TooMany(usize),
    /// A payload comes with other than one letter.
    #[error("a payload replaces that of one dead letter, and {0} are named")]
    PayloadForOne(usize),
    /// The payload is larger than a record may be.
    #[error("the payload has {0} bytes, a record has at most {RECORD_BYTES_MAX}")]
    PayloadTooLarge(usize),
    /// The lane holds for something that a replay would hold for too.
    #[error("the lane holds ({cause}): {reason}; replay when it delivers again")]
    Held {
        /// Why it holds, in a word.
        cause: String,
        /// What was seen.
        reason: String,
    },
    /// Other orders wait.
    #[error("other replays wait for this lane; try again when they are done")]
    Busy,
    /// The lane has ended, or ends.
    #[error("the lane has ended")]
    Ended,
    /// It could not be done.
    #[error("the replay failed: {0}")]
    Failed(String),
}

/// An order on the desk of a lane, and whom to answer.
pub(super) type Order = (Selection, oneshot::Sender<Result<Replayed, ReplayError>>);

/// Causes of a hold in which replays go out all the same.
const LETS_REPLAYS: [&str; 6] = ["storm", "dead_letters", "plugin", "name", "journal", "internal"];

/// Whether replays go out of a lane that holds for this cause.
pub(super) fn goes_while_held(cause: &str) -> bool {
    LETS_REPLAYS.contains(&cause)
}

impl PlanBounds {
    /// Those of a lane with these batches, as full as the journal is now.
    #[must_use]
    pub fn new(batch: BatchConfig, pace: Pace) -> Self {
        Self {
            records_max: u64::from(batch.records_max),
            bytes_max: batch.bytes_max.0.min(pace.batch_bytes_max),
            total_bytes_max: pace.ahead_bytes_max,
            batches_max: pace.replays_max,
        }
    }
}

impl Selection {
    /// Checks what can be checked without the lane.
    ///
    /// # Errors
    /// When it names too much, or a payload does not fit it.
    pub fn check(&self) -> Result<(), ReplayError> {
        let count = self.letters.len();
        match &self.payload {
            _ if count > REPLAY_LETTERS_MAX => Err(ReplayError::TooMany(count)),
            Some(_) if count != 1 => Err(ReplayError::PayloadForOne(count)),
            Some(payload) if payload.len() > RECORD_BYTES_MAX => {
                Err(ReplayError::PayloadTooLarge(payload.len()))
            }
            _ => Ok(()),
        }
    }
}

/// Has a lane send dead letters again. Answered when they are sealed durably; what comes of them stands in
/// [`Journal::replays`]. A lane that is between two attempts of a batch takes the order when the next one is over.
///
/// # Errors
/// When the lane takes no orders now, or the journal fails.
///
/// # Cancel safety
/// Dropped, the order is carried out or not.
pub async fn order(
    desk: &Desk,
    status: &LaneStatus,
    selection: Selection,
) -> Result<Replayed, ReplayError> {
    selection.check()?;
    if let LaneState::Holding { cause, reason, .. } = status.state()
        && !goes_while_held(cause)
    {
        return Err(ReplayError::Held { cause: cause.to_owned(), reason });
    }
    desk.replay(selection).await
}

/// Works out what a replay comes to, and changes nothing. Blocks.
///
/// # Errors
/// When the journal cannot be read.
pub fn plan(
    journal: &Journal,
    lane: &LaneName,
    transforms: &[String],
    bounds: PlanBounds,
    selection: &Selection,
) -> Result<Plan, JournalError> {
    let letters = journal.letters_of(&selection.letters)?;
    let is_repair = selection.payload.is_some();
    plan_of(lane, transforms, bounds, is_repair, letters, &selection.letters, |batch| {
        journal.letter_batch(lane.as_str(), batch)
    })
}

fn plan_of(
    lane: &LaneName,
    transforms: &[String],
    bounds: PlanBounds,
    is_repair: bool,
    letters: Vec<Letter>,
    asked: &[i64],
    batch_of: impl Fn(&str) -> Result<Option<LetterBatch>, JournalError>,
) -> Result<Plan, JournalError> {
    let mut plan = Plan::default();
    let found: BTreeSet<i64> = letters.iter().map(|letter| letter.id).collect();
    for letter in asked.iter().filter(|id| !found.contains(id)) {
        plan.leave_out(*letter, "there is no such dead letter".to_owned());
    }
    let mut groups: BTreeMap<(String, bool, String), Vec<Letter>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for letter in letters {
        if !seen.insert(letter.id) {
            continue;
        }
        match why_not(&letter, lane, transforms) {
            Some(reason) => plan.leave_out(letter.id, reason),
            None => {
                let batch = letter.batch.clone().unwrap_or_default();
                let key = (batch, letter.plugin_sha256.is_some(), letter.stage.clone());
                groups.entry(key).or_default().push(letter);
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, letters)| letters.iter().map(|letter| letter.id).min());
    let mut total = 0;
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for ((of, is_of_transform, stage), mut letters) in groups {
        letters.sort_by_key(|letter| (letter.seq, letter.id));
        let batch = batch_of(&of)?;
        let records = letters.len() as u64;
        let is_all = letters.iter().all(|letter| letter.whole == records);
        let known = batch.as_ref().is_some_and(|batch| batch.first_seq > Seq(0));
        let is_whole = is_all && known && !is_of_transform && !is_repair;
        let replays = counted.entry(of.clone()).or_insert(batch.map_or(0, |batch| batch.replays));
        for piece in pieces(letters, bounds, is_whole) {
            let is_full =
                total >= bounds.total_bytes_max || plan.batches.len() as u64 >= bounds.batches_max;
            if is_full && !plan.batches.is_empty() {
                plan.left_out.extend(piece.iter().map(|letter| LeftOut::for_later(letter.id)));
                continue;
            }
            let number = if is_whole { 0 } else { *replays + 1 };
            *replays = (*replays).max(number);
            let planned = planned(piece, &of, &stage, number);
            total += planned.bytes;
            plan.batches.push(planned);
        }
    }
    Ok(plan)
}

fn planned(letters: Vec<Letter>, of: &str, stage: &str, replays: u64) -> PlannedReplay {
    PlannedReplay {
        identity: if replays == 0 { of.to_owned() } else { format!("{of}/r{replays}") },
        of: of.to_owned(),
        replays,
        stage: stage.to_owned(),
        is_of_transform: letters.first().is_some_and(|letter| letter.plugin_sha256.is_some()),
        bytes: letters.iter().map(bytes_of).sum(),
        letters: letters
            .into_iter()
            .map(|letter| PlannedLetter {
                id: letter.id,
                record: letter.record.unwrap_or_default(),
                seq: Seq(letter.seq.unwrap_or_default()),
            })
            .collect(),
    }
}

fn bytes_of(letter: &Letter) -> u64 {
    letter.payload_bytes + (letter.subject.len() + letter.headers.len()) as u64
}

/// Letters within the bounds of a batch; all that a batch held stay together.
fn pieces(letters: Vec<Letter>, bounds: PlanBounds, is_whole: bool) -> Vec<Vec<Letter>> {
    if is_whole {
        return vec![letters];
    }
    let mut pieces: Vec<Vec<Letter>> = Vec::new();
    let (mut records, mut bytes) = (0, 0);
    for letter in letters {
        let size = bytes_of(&letter);
        records += 1;
        bytes += size;
        match pieces.last_mut() {
            Some(last) if records <= bounds.records_max && bytes <= bounds.bytes_max => {
                last.push(letter);
            }
            _ => {
                (records, bytes) = (1, size);
                pieces.push(vec![letter]);
            }
        }
    }
    pieces
}

/// Why a letter cannot go out again.
fn why_not(letter: &Letter, lane: &LaneName, transforms: &[String]) -> Option<String> {
    let Some(name) = &letter.lane else {
        return Some("a source refused it: it can be exported and discarded".to_owned());
    };
    if name != lane.as_str() {
        return Some(format!("it is of lane {name}"));
    }
    if letter.is_under_way {
        return Some("it is being replayed: wait for its outcome".to_owned());
    }
    let record = letter.record.as_deref().unwrap_or_default();
    let batch = letter.batch.as_deref().unwrap_or_default();
    if letter.seq.is_none()
        || RecordIdentity::parse(lane, record).is_none()
        || Shown::of_identity(lane, batch).is_none()
    {
        return Some("its row makes no sense: it can be exported and discarded".to_owned());
    }
    if letter.plugin_sha256.is_some() && !transforms.contains(&letter.stage) {
        let stage = &letter.stage;
        return Some(format!(
            "\"{stage}\", which gave it up, is no transform of the lane any more"
        ));
    }
    None
}

/// What an order has come to, for the lane.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// For whoever gave it.
    pub(super) replayed: Replayed,
    /// What is to be delivered now.
    pub(super) batches: Vec<StoredBatch>,
    /// Why the session cannot go on: what was sealed waits for the next one.
    pub(super) ended: Option<LaneError>,
}

impl Carried {
    fn leave_out(&mut self, planned: PlannedReplay, error: &LaneError) {
        let reason = Chain(error).to_string();
        self.replayed.left_out.extend(planned.letters.into_iter().map(|letter| LeftOut {
            letter: letter.id,
            reason: reason.clone(),
            is_for_later: false,
        }));
    }
}

impl LeftOut {
    fn for_later(letter: i64) -> Self {
        let reason = "one order has no room for more; it goes with the next one".to_owned();
        Self { letter, reason, is_for_later: true }
    }
}

impl Plan {
    fn leave_out(&mut self, letter: i64, reason: String) {
        self.left_out.push(LeftOut { letter, reason, is_for_later: false });
    }
}

impl Sealer {
    /// Seals what an order asks for. Blocks. The lane's session has not begun to run or deliver.
    ///
    /// # Errors
    /// When it cannot be worked out what that is. What goes wrong later leaves the letters concerned out.
    pub(super) fn replay(
        &mut self,
        selection: &Selection,
        journal: &Journal,
        bounds: PlanBounds,
    ) -> Result<Carried, LaneError> {
        let lane = self.place.lane.clone();
        let plan = plan(journal, &lane, &self.transform_names, bounds, selection)?;
        let mut carried = Carried::default();
        carried.replayed.left_out = plan.left_out;
        let mut to_seal: VecDeque<_> = plan.batches.into();
        while let Some(planned) = to_seal.pop_front() {
            let sealed = carried.replayed.sealed.len() as u64;
            if sealed > 0 && sealed >= bounds.batches_max {
                // What was cut has made more of them.
                let letters = planned.letters.iter().map(|letter| LeftOut::for_later(letter.id));
                carried.replayed.left_out.extend(letters);
                continue;
            }
            let payload = selection.payload.as_deref();
            let error = match self.seal_replay(&planned, payload) {
                Ok((id, batch)) => {
                    if batch.records > 0 {
                        carried.batches.push(batch);
                    }
                    carried.replayed.sealed.push(SealedReplay { id, planned });
                    continue;
                }
                Err(error) => error,
            };
            let ended = if ends_session(&error) { Err(error) } else { self.forget(error) };
            match ended {
                // What its plugins or its files make too much of goes in two.
                Ok(LaneError::OutputTooLarge | LaneError::TooManyPartitions { .. })
                    if planned.letters.len() > 1 && planned.replays > 0 =>
                {
                    cut(&mut to_seal, planned);
                }
                Ok(error) => carried.leave_out(planned, &error),
                Err(error) => {
                    // Nothing of what is left can be tried in this session.
                    to_seal.push_front(planned);
                    to_seal.into_iter().for_each(|planned| carried.leave_out(planned, &error));
                    carried.ended = Some(error);
                    break;
                }
            }
        }
        Ok(carried)
    }

    /// Forgets what was stored of a replay that came to nothing.
    fn forget(&mut self, error: LaneError) -> Result<LaneError, LaneError> {
        self.output.restart(0).map(|()| error)
    }

    fn seal_replay(
        &mut self,
        planned: &PlannedReplay,
        payload: Option<&[u8]>,
    ) -> Result<(i64, StoredBatch), LaneError> {
        let (now, _) = self.time.next(&*self.clock);
        let mut of = self.journal.letter_batch(&planned.of)?;
        let sink_note = of.as_mut().and_then(|of| of.sink_note.take());
        let known = match planned.replays {
            0 => Some(of.ok_or_else(gone)?),
            _ => None,
        };
        let seqs = || planned.letters.iter().map(|letter| letter.seq);
        let range = (seqs().min().unwrap_or_default(), seqs().max().unwrap_or_default());
        let (first_seq, last_seq) =
            known.as_ref().map_or(range, |batch| (batch.first_seq, batch.last_seq));
        self.output.begin(self.next_batch, self.epoch, first_seq);
        // What one letter makes cannot be cut shorter; nor is what was one batch.
        self.output.of_single_input(planned.letters.len() == 1 || planned.replays == 0);
        let repair = payload.map(|payload| self.repair(planned, payload)).transpose()?;
        let (aside, deltas) = self.run_letters(planned, repair.clone(), now)?;
        let mut made = self.output.finish()?;
        let base = Shown::of_identity(&self.place.lane, &planned.identity);
        let base = base.ok_or_else(|| LaneError::Broken("no identity of a batch".to_owned()))?;
        let sealed_at = known.as_ref().map_or(now, |batch| batch.sealed_at);
        let facts = BatchFacts {
            place: Arc::clone(&self.place),
            epoch: base.epoch,
            number: base.number,
            first_seq,
            last_seq,
            sealed_at,
            records: made.records,
            partitions: std::mem::take(&mut made.partitions),
            suffix: base.suffix.as_str().into(),
        };
        let fixed = match &known {
            Some(batch) if batch.sha256 == made.sha256 => batch.fixed.clone(),
            // Never other content under an identity that was used.
            Some(_) => return Err(LaneError::OtherContent { batch: planned.of.clone() }),
            None if made.records == 0 => String::new(),
            None => {
                let fixed = self.sink.fix(&facts);
                let batch = self.next_batch;
                fixed.map_err(|source| LaneError::Fix { batch, source })?.to_string()
            }
        };
        let sink_note = sink_note.filter(|_| !planned.is_of_transform);
        let variant = Variant { shown: Some(base), replay: true, sink_note, ..Variant::default() };
        let batch = StoredBatch {
            number: self.next_batch,
            epoch: self.epoch,
            first_seq,
            last_seq,
            sealed_at,
            records: made.records,
            parts: made.parts,
            sha256: made.sha256,
            fixed,
            variant,
        };
        let changes = state_changes(&self.transform_names, &deltas);
        let (inputs, aside) = (&made.inputs, aside.letters);
        let seal = replay_seal(planned, batch.clone(), inputs, aside, repair, changes);
        let seal = ReplaySeal { made_bytes: made_bytes(planned, &made), ..seal };
        let id = self.runtime.block_on(self.journal.seal_replay(seal))?;
        self.transforms.keep(deltas);
        self.next_batch = crate::record::id::BatchNumber(self.next_batch.0 + 1);
        Ok((id, batch))
    }

    /// Takes the records of letters into the output: through what is left of the transforms, or as they are.
    fn run_letters(
        &mut self,
        planned: &PlannedReplay,
        repair: Option<Repair>,
        now: Timestamp,
    ) -> Result<(SetAside, Vec<StateDelta>), LaneError> {
        let letters = Letters {
            journal: self.journal.clone(),
            ids: planned.letters.iter().map(|letter| letter.id).collect(),
            repair: repair.map(Arc::new),
        };
        let from = self.transform_names.iter().position(|name| *name == planned.stage);
        let Some(from) = from.filter(|_| planned.is_of_transform) else {
            self.output.restart(usize::MAX)?;
            for block in letters.blocks() {
                for record in block?.records() {
                    self.output.push(&record?)?;
                }
            }
            return Ok(Default::default());
        };
        let bytes = usize::try_from(planned.bytes).unwrap_or(usize::MAX);
        let bytes = bytes.saturating_mul(PLUGIN_OUTPUT_FACTOR).max(PLUGIN_OUTPUT_BYTES_MIN);
        let mut blocks = || -> Blocks { Box::new(letters.clone().blocks()) };
        let input = Input::Blocks { from: Some(from), blocks: &mut blocks };
        self.transforms.run(now, input, &mut self.output, bytes)
    }

    /// What the record of the one letter is with another payload.
    fn repair(&self, planned: &PlannedReplay, payload: &[u8]) -> Result<Repair, LaneError> {
        let PlannedLetter { id, record, .. } = planned.letters.first().ok_or_else(gone)?;
        let known = RecordIdentity::parse(&self.place.lane, record).ok_or_else(gone)?;
        let repaired = record.rsplit_once('~').filter(|_| known.repair > 0);
        let plain = repaired.map_or(record.as_str(), |(plain, _)| plain);
        let identity = format!("{plain}~{}", known.repair + 1);
        Ok(Repair { letter: *id, identity, payload: payload.to_vec() })
    }
}

/// Tells what became of each letter in the run.
fn replay_seal(
    planned: &PlannedReplay,
    batch: StoredBatch,
    inputs: &[Seq],
    aside: Vec<StageLetter>,
    repair: Option<Repair>,
    state: Vec<StateChange>,
) -> ReplaySeal {
    let repaired = repair.as_ref().map(|repair| repair.identity.as_str());
    let by_identity: BTreeMap<&str, i64> = planned
        .letters
        .iter()
        .map(|letter| (repaired.unwrap_or(&letter.record), letter.id))
        .collect();
    let (mut returned, mut further) = (Vec::new(), Vec::new());
    for letter in aside {
        let same = by_identity.get(letter.record.identity.as_str());
        match same.filter(|_| letter.stage == planned.stage) {
            Some(id) => returned.push((*id, letter)),
            None => further.push(letter),
        }
    }
    let again: BTreeSet<i64> = returned.iter().map(|(id, _)| *id).collect();
    let without_output = planned
        .letters
        .iter()
        .filter(|letter| inputs.binary_search(&letter.seq).is_err() && !again.contains(&letter.id));
    ReplaySeal {
        batch,
        stage: planned.stage.clone(),
        of: planned.of.clone(),
        replays: planned.replays,
        letters: planned.letters.iter().map(|letter| letter.id).collect(),
        without_output: without_output.map(|letter| letter.id).collect(),
        returned,
        further,
        repair,
        state,
        made_bytes: 0,
    }
}

/// What the records that transforms made would take as dead letters, but for the reasons.
fn made_bytes(planned: &PlannedReplay, made: &Made) -> u64 {
    // A record's identity is about as long as that of its batch.
    let names = 2 * planned.identity.len() as u64;
    let bytes = made.content_bytes + made.records * (LETTER_ROW_BYTES + names);
    if planned.is_of_transform { bytes } else { 0 }
}

/// Puts the halves of a replay that is too much in front; those of the same batch are numbered anew.
fn cut(to_seal: &mut VecDeque<PlannedReplay>, mut first: PlannedReplay) {
    let (of, from) = (first.of.clone(), first.replays);
    let letters = first.letters.split_off(first.letters.len() / 2);
    let second = PlannedReplay { letters, ..first.clone() };
    to_seal.push_front(second);
    to_seal.push_front(first);
    let same = to_seal.iter_mut().filter(|next| next.of == of && next.replays > 0);
    for (next, replays) in same.zip(from..) {
        next.replays = replays;
        next.identity = format!("{of}/r{replays}");
    }
}

fn gone() -> LaneError {
    LaneError::Broken("a dead letter is not there any more".to_owned())
}

/// Whether the lane has to open itself anew.
fn ends_session(error: &LaneError) -> bool {
    match error {
        LaneError::Journal(error) => !matches!(
            error,
            JournalError::Misfit { .. }
                | JournalError::LettersFull { .. }
                | JournalError::NoRoom { .. }
        ),
        LaneError::Interrupted => true,
        _ => false,
    }
}

/// What plugins changed, for a seal.
pub(super) fn state_changes(transforms: &[String], deltas: &[StateDelta]) -> Vec<StateChange> {
    let changes = transforms.iter().zip(deltas).flat_map(|(component, delta)| {
        delta.iter().map(|(key, value)| StateChange {
            component: component.clone(),
            key: key.clone(),
            value: value.as_ref().map(|value| value.to_vec()),
        })
    });
    changes.collect()
}

type Blocks = Box<dyn Iterator<Item = Result<FrameBlock, LaneError>>>;

/// The records of some letters.
#[derive(Clone)]
struct Letters {
    journal: LaneJournal,
    ids: Vec<i64>,
    repair: Option<Arc<Repair>>,
}

impl Letters {
    /// Reads them, a block at a time.
    fn blocks(self) -> impl Iterator<Item = Result<FrameBlock, LaneError>> {
        let mut ids = self.ids.clone().into_iter().peekable();
        std::iter::from_fn(move || {
            ids.peek()?;
            let mut frames = FrameBuffer::default();
            while frames.len() < CHUNK_BYTES_MAX
                && let Some(id) = ids.next()
            {
                if let Err(error) = self.push(&mut frames, id) {
                    return Some(Err(error));
                }
            }
            Some(Ok(FrameBlock {
                epoch: Epoch::default(),
                first_seq: Seq(0),
                count: frames.count(),
                skip: 0,
                take: frames.count(),
                bytes: frames.take().into(),
            }))
        })
    }

    fn push(&self, frames: &mut FrameBuffer, id: i64) -> Result<(), LaneError> {
        let (letter, payload) = self.journal.letter(id)?.ok_or_else(gone)?;
        let repair = self.repair.as_deref();
        let identity = repair.map(|repair| &repair.identity).or(letter.record.as_ref());
        let identity = identity.and_then(|text| RecordIdentity::parse(self.journal.name(), text));
        let identity = identity.ok_or_else(gone)?;
        frames.push(&RecordView {
            epoch: identity.epoch,
            seq: Seq(letter.seq.unwrap_or_default()),
            origin: identity.origin(),
            time: letter.time,
            subject: &letter.subject,
            headers: Headers::checked(&letter.headers).unwrap_or_default(),
            payload: repair.map_or(&payload, |repair| &repair.payload),
        });
        Ok(())
    }
}
