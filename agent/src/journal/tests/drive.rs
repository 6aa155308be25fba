//! Operations on a journal, made up at random, applied to a real one and to the model alike.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::model::{
    LaneModel, LetterModel, Model, Print, View, apply_changes, batch, letter, letter_model,
    letter_record, print, spec,
};
use super::options;
use crate::clock::{ManualClock, Timestamp};
use crate::record::Headers;
use crate::record::codec::FrameBuffer;
use crate::record::id::{BatchNumber, Seq};

pub(super) type Failed = Box<dyn std::error::Error>;

/// What may be done to a journal. Small numbers are taken modulo what there is.
#[derive(Debug, Clone)]
pub(super) enum Operation {
    Append {
        source: u8,
        sizes: Vec<usize>,
        positions: Vec<(u8, Option<u8>)>,
        letter: bool,
        wait: bool,
    },
    NewAppender {
        source: u8,
    },
    OpenLane {
        source: u8,
        sink: u8,
        now: bool,
    },
    LoosePart {
        lane: u8,
        size: usize,
    },
    Seal {
        lane: u8,
        eighths: u64,
        output: Output,
        dead: u64,
        changes: Vec<(u8, Option<u8>)>,
    },
    Tick {
        lane: u8,
        records: u8,
        dead: u8,
        changes: Vec<(u8, Option<u8>)>,
    },
    Ack {
        lane: u8,
    },
    Cut {
        lane: u8,
        at: u8,
    },
    Refuse {
        lane: u8,
        records: u8,
    },
    Discard {
        letter: u8,
    },
    Replay {
        letter: u8,
        count: u8,
        end: u8,
    },
    SettleReplay {
        lane: u8,
        returned: u8,
        cut: bool,
    },
    Reopen,
    Crash,
    Clock {
        seconds: i64,
    },
}

/// What a sealed batch sends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    Range,
    Parts(u64),
    Nothing,
}

const SOURCES: [&str; 3] = ["a", "b", "c"];
const SINKS: [&str; 2] = ["x", "y"];

/// One operation; `restarts` says whether they may be among them.
pub(super) fn operation(restarts: bool) -> impl Strategy<Value = Operation> {
    let size = prop_oneof![12 => 0..200usize, 3 => 200..20_000usize, 1 => 100_000..400_000usize];
    let small = prop_oneof![9 => 0..300usize, 1 => 300..5_000usize];
    let sizes = prop_oneof![
        6 => proptest::collection::vec(small, 0..6),
        2 => size.prop_map(|size| vec![size]),
    ];
    let changes = proptest::collection::vec((0..4u8, any::<Option<u8>>()), 0..3);
    let positions = changes.clone();
    let output =
        prop_oneof![Just(Output::Range), (1..4u64).prop_map(Output::Parts), Just(Output::Nothing)];
    let restart = u32::from(restarts);
    prop_oneof![
        30 => (0..3u8, sizes, positions, prop::bool::weighted(0.1), any::<bool>()).prop_map(
            |(source, sizes, positions, letter, wait)| {
                Operation::Append { source, sizes, positions, letter, wait }
            }
        ),
        2 => (0..3u8).prop_map(|source| Operation::NewAppender { source }),
        4 => (0..3u8, 0..2u8, any::<bool>())
            .prop_map(|(source, sink, now)| Operation::OpenLane { source, sink, now }),
        2 => (any::<u8>(), 1..3_000usize)
            .prop_map(|(lane, size)| Operation::LoosePart { lane, size }),
        18 => sealing(output, changes),
        10 => any::<u8>().prop_map(|lane| Operation::Ack { lane }),
        // Together one option: a union of more than ten takes no weight of nothing.
        16 => outcome(),
        2 * restart => Just(Operation::Reopen),
        2 * restart => Just(Operation::Crash),
        1 => (-100_000..100_000i64).prop_map(|seconds| Operation::Clock { seconds }),
    ]
}

/// What seals a batch: some of what waits, or a tick.
fn sealing(
    output: impl Strategy<Value = Output>,
    changes: impl Strategy<Value = Vec<(u8, Option<u8>)>> + Clone,
) -> impl Strategy<Value = Operation> {
    prop_oneof![
        14 => (any::<u8>(), 1..9u64, output, 0..3u64, changes.clone()).prop_map(
            |(lane, eighths, output, dead, changes)| {
                Operation::Seal { lane, eighths, output, dead, changes }
            }
        ),
        4 => (any::<u8>(), 0..4u8, 0..2u8, changes).prop_map(|(lane, records, dead, changes)| {
            Operation::Tick { lane, records, dead, changes }
        }),
    ]
}

/// What becomes of sealed batches and letters beside an ack.
fn outcome() -> impl Strategy<Value = Operation> {
    prop_oneof![
        5 => (any::<u8>(), any::<u8>()).prop_map(|(lane, at)| Operation::Cut { lane, at }),
        4 => (any::<u8>(), any::<u8>())
            .prop_map(|(lane, records)| Operation::Refuse { lane, records }),
        1 => any::<u8>().prop_map(|letter| Operation::Discard { letter }),
        4 => (any::<u8>(), any::<u8>(), 0..6u8)
            .prop_map(|(letter, count, end)| Operation::Replay { letter, count, end }),
        4 => (any::<u8>(), any::<u8>(), prop::bool::weighted(0.3)).prop_map(
            |(lane, returned, cut)| Operation::SettleReplay { lane, returned, cut }
        ),
    ]
}

/// The model after an operation, and when that operation was handed over.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub(super) model: Model,
    pub(super) handed_over: usize,
}

enum Waiting {
    Append(Pending),
    Seal(PendingSeal),
}

/// A journal and its model.
pub(super) struct Driver {
    pub(super) directory: PathBuf,
    pub(super) steps: Vec<Step>,
    /// The steps up to this one are acknowledged, since then.
    pub(super) acknowledged: Vec<(usize, usize)>,
    pub(super) journal: Option<Journal>,
    /// Tells the order of what happens: what a recording counts.
    pub(super) now: Box<dyn Fn() -> usize>,
    directories: Vec<tempfile::TempDir>,
    clock: Arc<ManualClock>,
    config: JournalConfig,
    appenders: BTreeMap<String, Appender>,
    pub(super) lanes: BTreeMap<(String, String), LaneJournal>,
    waiting: VecDeque<(usize, Waiting)>,
    payloads: u32,
}

/// A directory in memory, where there is one: these tests do not need the disk.
pub(super) fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

impl Driver {
    /// A driver for the journal of a directory, whose content is that of `model`.
    pub(super) fn new(directory: &Path, config: JournalConfig, model: Model) -> Self {
        Self {
            directory: directory.to_owned(),
            steps: vec![Step { model, handed_over: 0 }],
            acknowledged: vec![(0, 0)],
            journal: None,
            now: Box::new(|| 0),
            directories: Vec::new(),
            clock: Arc::new(ManualClock::new(Timestamp(1_700_000_000_000_000_000))),
            config,
            appenders: BTreeMap::new(),
            lanes: BTreeMap::new(),
            waiting: VecDeque::new(),
            payloads: 0,
        }
    }

    pub(super) fn open(&mut self) -> Result<(), JournalError> {
        let clock: crate::clock::SharedClock = Arc::clone(&self.clock) as _;
        let options =
            JournalOptions { clock, config: self.config.clone(), ..options(&self.directory) };
        let (journal, opening) = Journal::open(&options)?;
        assert_ne!(opening.case, StartCase::GoneBack, "the files are as the last run left them");
        self.journal = Some(journal);
        Ok(())
    }

    pub(super) fn model(&self) -> &Model {
        &self.steps.last().unwrap().model
    }

    /// Moves time on, as far as a held journal waits.
    pub(super) fn pass_time(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Remembers what an operation that is about to be handed over makes of the model.
    pub(super) fn step(&mut self, model: Model) -> usize {
        self.steps.push(Step { model, handed_over: (self.now)() });
        self.steps.len() - 1
    }

    pub(super) fn acknowledge(&mut self, step: usize) {
        if step > self.acknowledged.last().unwrap().0 {
            self.acknowledged.push((step, (self.now)()));
        }
    }

    /// Waits for everything that was handed over and is answered.
    pub(super) async fn settle(&mut self) -> Result<(), Failed> {
        while let Some((step, waiting)) = self.waiting.pop_front() {
            match waiting {
                Waiting::Append(pending) => pending.durable().await?,
                Waiting::Seal(pending) => pending.durable().await?,
            }
            self.acknowledge(step);
        }
        Ok(())
    }

    /// Waits for everything, and looks whether what is not answered is there: an ack that fails by itself is told to the
    /// session of its lane only.
    pub(super) async fn confirm(&mut self) -> Result<(), Failed> {
        self.settle().await?;
        if self.acknowledged.last().unwrap().0 + 1 < self.steps.len() {
            self.journal.as_ref().unwrap().discard_letters(Vec::new(), None).await?;
            self.compare().await?;
        }
        Ok(())
    }

    /// Forgets all sessions, as whoever restarts a source or lane.
    pub(super) fn forget_sessions(&mut self) {
        self.appenders.clear();
        self.lanes.clear();
        self.waiting.clear();
    }

    /// Compares the journal with the model. What is not acknowledged may be there or not, in order; then that is the truth.
    pub(super) async fn compare(&mut self) -> Result<(), Failed> {
        self.forget_sessions();
        let view = View::of(self.journal.as_ref().unwrap()).await?;
        view.check_sums().unwrap();
        let certain = self.acknowledged.last().unwrap().0;
        let found =
            (certain..self.steps.len()).rev().find(|step| self.steps[*step].model.view() == view);
        let Some(found) = found else {
            let last = self.steps.len() - 1;
            let differences = self.steps[certain].model.view().differences(&view);
            panic!("none of the steps {certain} to {last}; against the first:{differences}");
        };
        self.steps.truncate(found + 1);
        self.acknowledge(found);
        Ok(())
    }

    pub(super) async fn apply(&mut self, operation: &Operation) -> Result<(), Failed> {
        self.pass_time(Duration::from_millis(300));
        match operation {
            Operation::Append { source, sizes, positions, letter, wait } => {
                self.append(SOURCES[usize::from(*source)], sizes, positions, *letter).await?;
                if *wait { self.settle().await } else { Ok(()) }
            }
            Operation::NewAppender { source } => {
                self.settle().await?;
                self.open_appender(SOURCES[usize::from(*source)]).await
            }
            Operation::OpenLane { source, sink, now } => {
                self.settle().await?;
                self.open_lane(SOURCES[usize::from(*source)], SINKS[usize::from(*sink)], *now).await
            }
            Operation::LoosePart { lane, size } => self.loose_part(*lane, *size).await,
            Operation::Seal { lane, eighths, output, dead, changes } => {
                // A lane works on what is durable only; seals may overtake appends on their way.
                self.settle().await?;
                self.seal(*lane, *eighths, *output, *dead, changes).await
            }
            Operation::Tick { lane, records, dead, changes } => {
                self.settle().await?;
                self.tick(*lane, *records, *dead, changes).await
            }
            Operation::Ack { lane } => self.ack(*lane).await,
            Operation::Cut { lane, at } => self.cut(*lane, *at).await,
            Operation::Refuse { lane, records } => self.refuse(*lane, *records).await,
            Operation::Discard { letter } => self.discard(*letter).await,
            Operation::Replay { letter, count, end } => self.replay(*letter, *count, *end).await,
            Operation::SettleReplay { lane, returned, cut } => {
                self.settle_replay(*lane, *returned, *cut).await
            }
            Operation::Reopen => self.reopen().await,
            Operation::Crash => self.crash().await,
            Operation::Clock { seconds } => {
                self.clock.step(Timestamp(1_700_000_000_000_000_000 + seconds * 1_000_000_000));
                Ok(())
            }
        }
    }

    pub(super) fn payload(&mut self, size: usize) -> Vec<u8> {
        self.payloads += 1;
        let mut random = fastrand::Rng::with_seed(u64::from(self.payloads));
        let mut payload = format!("{}:", self.payloads).into_bytes();
        // Half of it does not compress.
        payload.extend((0..size).map(|at| if at % 2 == 0 { b'x' } else { random.u8(..) }));
        payload
    }

    async fn open_appender(&mut self, source: &str) -> Result<(), Failed> {
        let mut model = self.model().clone();
        model.streams.entry(source.to_owned()).or_default();
        let expected = model.streams[source].positions.clone();
        let step = self.step(model);
        let journal = self.journal.as_ref().unwrap();
        let appender = journal.appender(&source.parse().unwrap()).await?;
        self.acknowledge(step);
        assert_eq!(*appender.positions(), expected, "positions of {source}");
        self.appenders.insert(source.to_owned(), appender);
        Ok(())
    }

    async fn append(
        &mut self,
        source: &str,
        sizes: &[usize],
        positions: &[(u8, Option<u8>)],
        letter: bool,
    ) -> Result<(), Failed> {
        if !self.appenders.contains_key(source) {
            self.settle().await?;
            self.open_appender(source).await?;
        }
        let mut model = self.model().clone();
        let mut append = Append::default();
        let stream = model.streams.get_mut(source).unwrap();
        for size in sizes {
            let payload = self.payload(*size);
            append.frames.push_new(Timestamp(5), "sub", Headers::default(), &payload);
            stream.records.push(print(stream.records.len() as u64 + 1, &payload));
        }
        for (key, value) in positions {
            let (key, value) = (format!("k{key}"), value.map(|value| vec![value]));
            match &value {
                Some(value) => drop(stream.positions.insert(key.clone(), value.clone())),
                None => drop(stream.positions.remove(&key)),
            }
            append.positions.push(Position { key, value });
        }
        if letter {
            let payload = self.payload(3);
            let place = format!("place {}", self.payloads);
            model.letters.push(letter_model(None, "source", None, &place, &payload));
            append.letters.push(SourceLetter {
                reason: "too large".to_owned(),
                size_bytes: 9,
                place,
                subject: "s".to_owned(),
                time: Timestamp(1),
                payload,
            });
        }
        let step = self.step(model);
        let pending = self.appenders[source].submit(append).await?;
        self.waiting.push_back((step, Waiting::Append(pending)));
        Ok(())
    }

    pub(super) async fn open_lane(
        &mut self,
        source: &str,
        sink: &str,
        now: bool,
    ) -> Result<(), Failed> {
        let mut model = self.model().clone();
        model.streams.entry(source.to_owned()).or_default();
        let key = (source.to_owned(), sink.to_owned());
        let is_new = !model.lanes.contains_key(&key);
        let now = now || !is_new;
        if is_new {
            let start = model.head(source);
            let lane = LaneModel {
                start,
                sealed: start,
                next_batch: 1,
                unacked: Vec::new(),
                replays: Vec::new(),
                state: PluginState::new(),
                totals: LaneTotals::default(),
            };
            model.lanes.insert(key.clone(), lane);
        }
        let step = self.step(model);
        let spec = LaneSpec { start_now: now, ..spec(source, sink) };
        let (lane, opened) = self.journal.as_ref().unwrap().lane(spec).await?;
        // Which chunks are still there is the journal's affair; no lane's record may be missing.
        if is_new && !now {
            let (start, head) = (opened.sealed_seq.0, self.model().head(source));
            let others =
                self.model().lanes.iter().filter(|(other, _)| other.0 == source && **other != key);
            let needed = others.map(|(_, other)| other.sealed).min().unwrap_or(0);
            assert!(start <= needed && start <= head, "begins at {start}, {needed} is needed");
            let lane = self.steps[step].model.lanes.get_mut(&key).unwrap();
            (lane.start, lane.sealed) = (start, start);
        }
        self.acknowledge(step);
        let expected = &self.model().lanes[&key];
        assert_eq!(opened.sealed_seq.0, expected.sealed, "cursor of {key:?}");
        assert_eq!(opened.plugin_state, expected.state, "plugin state of {key:?}");
        self.lanes.insert(key, lane);
        Ok(())
    }

    /// The lane that a number means, opened, if there is any.
    pub(super) async fn lane(&mut self, number: u8) -> Result<Option<(String, String)>, Failed> {
        let lanes: Vec<_> = self.model().lanes.keys().cloned().collect();
        let Some(key) =
            (!lanes.is_empty()).then(|| lanes[usize::from(number) % lanes.len()].clone())
        else {
            return Ok(None);
        };
        if !self.lanes.contains_key(&key) {
            self.settle().await?;
            self.open_lane(&key.0, &key.1, false).await?;
        }
        Ok(Some(key))
    }

    async fn loose_part(&mut self, lane: u8, size: usize) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        let model = &self.model().lanes[&key];
        let (number, first) = (model.next_batch, model.sealed + 1);
        let payload = self.payload(size);
        self.store_parts(&key, number, first, &[vec![payload]]).await?;
        // Forgotten: the lane begins the batch anew, or opens itself anew.
        if size.is_multiple_of(2) {
            self.lanes[&key].discard_parts().await?;
        } else {
            self.lanes.remove(&key);
        }
        Ok(())
    }

    pub(super) async fn store_parts(
        &self,
        key: &(String, String),
        number: u64,
        first: u64,
        parts: &[Vec<Vec<u8>>],
    ) -> Result<Vec<Print>, Failed> {
        let (mut encoder, mut prints) = (PartEncoder::default(), Vec::new());
        for (part, payloads) in (0..).zip(parts) {
            let mut frames = FrameBuffer::default();
            for (payload, at) in payloads.iter().zip(0..) {
                frames.push_new(Timestamp(5), "sub", Headers::default(), payload);
                prints.push(print(first + at, payload));
            }
            let (batch, first_seq) = (BatchNumber(number), Seq(first));
            let place = PartPlace { batch, epoch: Epoch::new(1, 1), part, first_seq };
            let count = frames.count();
            self.lanes[key].store_part(&mut encoder, place, count, frames.bytes()).await?;
        }
        Ok(prints)
    }

    async fn seal(
        &mut self,
        lane: u8,
        eighths: u64,
        output: Output,
        dead: u64,
        changes: &[(u8, Option<u8>)],
    ) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        let (head, before) = (self.model().head(&key.0), self.model().lanes[&key].clone());
        if head == before.sealed {
            return Ok(());
        }
        let taken = ((head - before.sealed) * eighths / 8).max(1);
        let (first, last) = (before.sealed + 1, before.sealed + taken);
        let mut stored = batch(before.next_batch, first, last);
        let dead = if matches!(output, Output::Range) { 0 } else { dead.min(taken) };
        let (mut dropped, mut content) = (0, self.model().records(&key.0, first, last));
        match output {
            Output::Range => {}
            Output::Parts(count) => {
                // At least one input has an output; the rest of them share what is left.
                let parts: Vec<Vec<Vec<u8>>> = (0..usize::try_from(count).unwrap())
                    .map(|part| (0..=part).map(|n| self.payload(usize::from(lane) + n)).collect())
                    .collect();
                dropped = (taken - dead) / 4;
                content = self.store_parts(&key, before.next_batch, first, &parts).await?;
                (stored.parts, stored.records) = (count, content.len() as u64);
            }
            Output::Nothing => {
                dropped = taken - dead;
                (stored.records, content) = (0, Vec::new());
            }
        }
        let mut model = self.model().clone();
        let mut letters = Vec::new();
        for seq in first..first + dead {
            let payload = self.payload(2);
            let identity = format!("{}/{seq}.{}", key.1, self.payloads);
            model.letters.push(letter_model(Some(&key), "clean", Some(seq), &identity, &payload));
            letters.push(letter(seq, identity, payload));
        }
        let lane = model.lanes.get_mut(&key).unwrap();
        let state = apply_changes(&mut lane.state, changes);
        lane.sealed = last;
        lane.next_batch += 1;
        lane.totals.dropped += dropped;
        lane.totals.dead_lettered += dead;
        if stored.records > 0 {
            lane.unacked.push((stored.clone(), content, taken - dropped - dead));
        }
        let step = self.step(model);
        let seal =
            Seal { batch: stored, dropped, not_taken: 0, dead_lettered: dead, letters, state };
        let pending = self.lanes[&key].seal(seal).await?;
        self.waiting.push_back((step, Waiting::Seal(pending)));
        self.settle().await
    }

    /// Seals what a tick made: nothing of the stream.
    async fn tick(
        &mut self,
        lane: u8,
        records: u8,
        dead: u8,
        changes: &[(u8, Option<u8>)],
    ) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        let before = self.model().lanes[&key].clone();
        let (number, sealed) = (before.next_batch, before.sealed);
        let mut stored = batch(number, sealed + 1, sealed);
        let mut content = Vec::new();
        if records > 0 {
            let payloads: Vec<_> = (0..records).map(|n| self.payload(usize::from(n))).collect();
            content = self.store_parts(&key, number, sealed + 1, &[payloads]).await?;
            (stored.parts, stored.records) = (1, u64::from(records));
        }
        let mut model = self.model().clone();
        let mut letters = Vec::new();
        for n in 0..dead {
            let payload = self.payload(2);
            let name = format!("{}/t{number}.{n}.{}", key.1, self.payloads);
            let of = letter_model(Some(&key), "clean", Some(sealed), &name, &payload);
            model.letters.push(LetterModel { is_of_tick: true, ..of });
            let mut letter = letter(sealed, name, payload);
            letter.record.is_of_tick = true;
            letters.push(letter);
        }
        let lane = model.lanes.get_mut(&key).unwrap();
        let state = apply_changes(&mut lane.state, changes);
        lane.next_batch += 1;
        if records > 0 {
            lane.unacked.push((stored.clone(), content, 0));
        }
        let step = self.step(model);
        let seal =
            Seal { batch: stored, dropped: 0, not_taken: 0, dead_lettered: 0, letters, state };
        let pending = self.lanes[&key].seal(seal).await?;
        self.waiting.push_back((step, Waiting::Seal(pending)));
        self.settle().await
    }

    async fn ack(&mut self, lane: u8) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        let mut model = self.model().clone();
        let lane = model.lanes.get_mut(&key).unwrap();
        if lane.unacked.is_empty() {
            return Ok(());
        }
        let (batch, _, inputs) = lane.unacked.remove(0);
        lane.totals.delivered += inputs;
        lane.totals.outputs_delivered += batch.records;
        let state = super::model::of_sink(&mut lane.state);
        // Not answered: it is known to be there when something behind it is.
        self.step(model);
        self.lanes[&key].ack_with_state(&batch, Finish::Delivered, 1, state).await?;
        Ok(())
    }

    async fn cut(&mut self, lane: u8, at: u8) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        self.settle().await?;
        let mut model = self.model().clone();
        let lane = model.lanes.get_mut(&key).unwrap();
        let Some((batch, ..)) = lane.unacked.first().filter(|(batch, ..)| batch.records > 1) else {
            return Ok(());
        };
        let (batch, at) = (batch.clone(), 1 + u64::from(at) % (batch.records - 1));
        let halves = lane.cut_first(at);
        let step = self.step(model);
        self.lanes[&key].cut(&batch, halves).await?;
        self.acknowledge(step);
        Ok(())
    }

    /// Acks the oldest batch of a lane without some of its records.
    async fn refuse(&mut self, lane: u8, records: u8) -> Result<(), Failed> {
        let Some(key) = self.lane(lane).await? else { return Ok(()) };
        self.settle().await?;
        let mut model = self.model().clone();
        let lane = model.lanes.get_mut(&key).unwrap();
        let Some((batch, ..)) = lane.unacked.first() else { return Ok(()) };
        let batch = batch.clone();
        let refused = 1 + u64::from(records) % batch.records.min(3);
        let Some(seqs) = lane.refuse_first(refused) else { return Ok(()) };
        let state = super::model::of_sink(&mut lane.state);
        let mut letters = Vec::new();
        for seq in seqs {
            let payload = self.payload(2);
            let record = format!("{}/{seq}.{}", key.1, self.payloads);
            let mut letter = letter_model(Some(&key), &key.1, Some(seq), &record, &payload);
            letter.is_of_tick = batch.is_of_tick();
            // One that was counted before, and of which no letter is left, was given up for good.
            let counted = batch.variant.counted.contains(&Seq(seq));
            letter.stays = model.stays(&letter).unwrap_or(counted);
            model.letters.push(letter);
            let is_of_tick = batch.is_of_tick();
            letters.push(LetterRecord { is_of_tick, ..letter_record(seq, record, payload) });
        }
        let step = self.step(model);
        let (class, at) = (LetterClass::Rejected, Timestamp(3));
        let letters = SinkLetters { class, attempts: 1, first_at: at, last_at: at, letters, state };
        self.lanes[&key].ack_with_letters(&batch, letters).await?;
        self.acknowledge(step);
        Ok(())
    }

    async fn discard(&mut self, letter: u8) -> Result<(), Failed> {
        self.settle().await?;
        let journal = self.journal.as_ref().unwrap();
        // Read from the tables: what is queued is there with the answer to this.
        journal.discard_letters(Vec::new(), None).await?;
        let filter = LettersFilter { limit: 1000, ..LettersFilter::default() };
        let letters = journal.letters(&filter)?;
        let mut model = self.model().clone();
        if letters.is_empty() {
            return Ok(());
        }
        assert_eq!(letters.len(), model.letters.len());
        let at = usize::from(letter) % letters.len();
        let ids = vec![letters[at].id];
        if let Some(number) = model.letters[at].under_way {
            let key = model.letters[at].lane.clone().unwrap();
            if self.lanes.contains_key(&key) {
                let done = self.journal.as_ref().unwrap().discard_letters(ids, None).await?;
                assert_eq!((done.discarded, done.left[0].letter), (0, letters[at].id));
                return Ok(());
            }
            model.cancel(&key, number);
        }
        let gone = model.letters.remove(at);
        let siblings = model.letters.iter_mut();
        siblings.filter(|letter| letter.shares_input(&gone)).for_each(|letter| letter.stays = true);
        let step = self.step(model);
        let discarded = self.journal.as_ref().unwrap().discard_letters(ids, None).await?;
        assert_eq!((discarded.discarded, discarded.left), (1, Vec::new()));
        self.acknowledge(step);
        Ok(())
    }

    async fn reopen(&mut self) -> Result<(), Failed> {
        self.settle().await?;
        self.forget_sessions();
        self.journal.take().unwrap().close().await?;
        self.acknowledge(self.steps.len() - 1);
        self.open()?;
        self.compare().await
    }

    /// Goes on with a copy of the files as they are now.
    async fn crash(&mut self) -> Result<(), Failed> {
        self.settle().await?;
        let copy = scratch();
        for name in ["journal.db", "journal.db-wal", "high-water.json"] {
            let from = self.directory.join(name);
            if from.exists() {
                std::fs::copy(from, copy.path().join(name)).unwrap();
            }
        }
        self.forget_sessions();
        drop(self.journal.take());
        self.directory = copy.path().to_owned();
        self.directories.push(copy);
        self.open()?;
        self.compare().await
    }
}
