//! What the journal should hold, kept in memory, and the same view of a real journal, to be compared.

use std::collections::BTreeMap;

use super::super::*;
use crate::clock::Timestamp;
use crate::record::batch::{BlockReader, FrameBlock};
use crate::record::id::{BatchNumber, Seq};

/// A record as far as it is compared: its seq, and length and checksum of its payload.
pub(super) type Print = (u64, usize, u32);

pub(super) fn print(seq: u64, payload: &[u8]) -> Print {
    (seq, payload.len(), crc32c::crc32c(payload))
}

type LetterView = (String, Option<i64>, String, Vec<u8>, bool);

/// Everything that a journal says of itself and that must be as the model has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct View {
    pub(super) streams: BTreeMap<String, StreamView>,
    pub(super) lanes: BTreeMap<String, LaneView>,
    /// Stage, seq, place or record identity, payload, and whether they are under way again; in the order in which they were
    /// kept.
    pub(super) letters: Vec<LetterView>,
    /// Rows of parts.
    pub(super) parts: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StreamView {
    pub(super) head: u64,
    pub(super) positions: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaneView {
    pub(super) start: u64,
    pub(super) sealed: u64,
    pub(super) next_batch: u64,
    pub(super) unacked: Vec<(StoredBatch, Vec<Print>)>,
    pub(super) replays: Vec<(StoredBatch, Vec<Print>)>,
    pub(super) state: PluginState,
    pub(super) totals: LaneTotals,
    pub(super) queued: u64,
    /// Records that are not sealed.
    pub(super) waiting: Vec<Print>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) streams: BTreeMap<String, StreamModel>,
    /// By source and sink.
    pub(super) lanes: BTreeMap<(String, String), LaneModel>,
    pub(super) letters: Vec<LetterModel>,
}

#[derive(Debug, Clone)]
pub(super) struct LetterModel {
    /// Source and sink of its lane; none for what a source refused.
    pub(super) lane: Option<(String, String)>,
    pub(super) stage: String,
    pub(super) seq: Option<i64>,
    pub(super) is_of_tick: bool,
    /// Place or record identity.
    pub(super) name: String,
    pub(super) payload: Vec<u8>,
    /// The number of the replay that it is in.
    pub(super) under_way: Option<u64>,
    /// Another letter of its input was discarded.
    pub(super) stays: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct StreamModel {
    /// All that were ever appended.
    pub(super) records: Vec<Print>,
    /// First seq of each append, which may be the first of a chunk.
    pub(super) positions: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Clone)]
pub(super) struct LaneModel {
    pub(super) start: u64,
    pub(super) sealed: u64,
    pub(super) next_batch: u64,
    pub(super) unacked: Vec<(StoredBatch, Vec<Print>, u64)>,
    /// With the names of their letters, one for each record.
    pub(super) replays: Vec<(StoredBatch, Vec<Print>, Vec<String>)>,
    pub(super) state: PluginState,
    pub(super) totals: LaneTotals,
}

impl LaneModel {
    /// Cuts the oldest batch behind `at` of its records; gives what the journal is to be told.
    pub(super) fn cut_first(&mut self, at: u64) -> Halves {
        let (batch, content, inputs) = self.unacked.remove(0);
        let is_range = batch.parts == 0;
        // Of made-up parts nobody knows which input a record is of: their ranges meet in the middle.
        let last = if is_range {
            batch.first_seq.0 + at - 1
        } else {
            u64::midpoint(batch.first_seq.0, batch.last_seq.0)
        };
        let begins = if last == batch.last_seq.0 { last } else { last + 1 };
        let begins = if batch.is_of_tick() { batch.first_seq.0 } else { begins };
        let first_inputs = if is_range { inputs_of(&batch, at) } else { inputs / 2 };
        let half = |number: u64, range: (u64, u64), records| {
            let mut half = batch.clone();
            (half.first_seq, half.last_seq, half.records) = (Seq(range.0), Seq(range.1), records);
            half.variant.suffix = format!("{}.{number}", batch.variant.suffix);
            half.variant.counted.retain(|seq| (range.0..=range.1).contains(&seq.0));
            if number == 1 && !is_range {
                half.variant.first_record += at;
            }
            half.fixed = format!("{{\"half\":\"{}\"}}", half.variant.suffix);
            half
        };
        let halves = [
            half(0, (batch.first_seq.0, last), at),
            half(1, (begins, batch.last_seq.0), batch.records - at),
        ];
        let (head, tail) = content.split_at(usize::try_from(at).unwrap());
        let contents = [(head, first_inputs), (tail, inputs - first_inputs)];
        for (half, (content, inputs)) in halves.iter().zip(contents).rev() {
            self.unacked.insert(0, (half.clone(), content.to_vec(), inputs));
        }
        Halves { halves, first_inputs }
    }

    /// Acks the oldest batch without its first `count` records; gives their inputs, or nothing where that would count an input
    /// that nobody counts.
    pub(super) fn refuse_first(&mut self, count: u64) -> Option<Vec<u64>> {
        let batch = self.unacked[0].0.clone();
        let first = batch.first_seq.0;
        let seqs: Vec<u64> = if batch.parts == 0 {
            (first..first + count).collect()
        } else {
            // All of the input that the half behind it may share.
            vec![batch.last_seq.0; usize::try_from(count).unwrap()]
        };
        let mut distinct = seqs.clone();
        distinct.dedup();
        let mut unacked = self.unacked.clone();
        let mut dead = 0;
        if batch.is_of_tick() {
            distinct.clear();
        }
        for seq in distinct.into_iter().map(Seq) {
            if unacked[0].0.variant.counted.contains(&seq) {
                continue;
            }
            let sharing = unacked[1..]
                .iter()
                .filter(|(half, ..)| half.number == batch.number && half.first_seq <= seq)
                .count();
            let counting = &mut unacked[sharing].2;
            *counting = counting.checked_sub(1)?;
            dead += 1;
            for (half, ..) in &mut unacked[1..=sharing] {
                if !half.variant.counted.contains(&seq) {
                    half.variant.counted.push(seq);
                    half.variant.counted.sort();
                }
            }
        }
        let (_, _, inputs) = unacked.remove(0);
        self.unacked = unacked;
        self.totals.delivered += inputs;
        self.totals.dead_lettered += dead;
        self.totals.outputs_delivered += batch.records - count;
        Some(seqs)
    }
}

/// Inputs of the first `at` records of a range that were not counted before.
fn inputs_of(batch: &StoredBatch, at: u64) -> u64 {
    let counted = batch.variant.counted.iter();
    at - counted.filter(|seq| seq.0 < batch.first_seq.0 + at).count() as u64
}

impl Model {
    /// Whether other letters of its input say that the input stays dead-lettered; none when there are none.
    pub(super) fn stays(&self, letter: &LetterModel) -> Option<bool> {
        self.letters
            .iter()
            .filter(|other| other.shares_input(letter))
            .map(|other| other.stays)
            .max()
    }

    /// A replay ends without an outcome.
    pub(super) fn cancel(&mut self, key: &(String, String), number: u64) {
        let replays = &mut self.lanes.get_mut(key).unwrap().replays;
        replays.retain(|(batch, ..)| batch.number.0 != number);
        let of = |letter: &&mut LetterModel| {
            letter.lane.as_ref() == Some(key) && letter.under_way == Some(number)
        };
        self.letters.iter_mut().filter(of).for_each(|letter| letter.under_way = None);
    }

    /// Letters of a lane go for what a replay made of them, those that `is_gone` means.
    pub(super) fn take_away(
        &mut self,
        key: &(String, String),
        is_delivered: bool,
        is_gone: impl Fn(&LetterModel) -> bool,
    ) {
        let (gone, left): (Vec<_>, Vec<_>) = self
            .letters
            .drain(..)
            .partition(|letter| letter.lane.as_ref() == Some(key) && is_gone(letter));
        self.letters = left;
        let mut inputs: BTreeMap<i64, bool> = BTreeMap::new();
        for letter in gone.into_iter().filter(|letter| !letter.is_of_tick) {
            *inputs.entry(letter.seq.unwrap()).or_default() |= letter.stays;
        }
        let lane = self.lanes.get_mut(key).unwrap();
        for (seq, stays) in inputs {
            let is_left = |letter: &LetterModel| {
                letter.lane.as_ref() == Some(key) && letter.seq == Some(seq) && !letter.is_of_tick
            };
            if stays || self.letters.iter().any(is_left) {
                continue;
            }
            let seq = Seq(seq.cast_unsigned());
            lane.totals.dead_lettered -= 1;
            let mut counting = None;
            for (at, (batch, ..)) in lane.unacked.iter_mut().enumerate() {
                let counted = &mut batch.variant.counted;
                if let Some(place) = counted.iter().position(|counted| *counted == seq) {
                    counted.remove(place);
                    counting = Some(at);
                }
            }
            match counting {
                Some(at) => lane.unacked[at].2 += 1,
                None if is_delivered => lane.totals.delivered += 1,
                None => lane.totals.dropped += 1,
            }
        }
    }

    pub(super) fn head(&self, source: &str) -> u64 {
        self.streams.get(source).map_or(0, |stream| stream.records.len() as u64)
    }

    pub(super) fn records(&self, source: &str, first: u64, last: u64) -> Vec<Print> {
        let Some(stream) = self.streams.get(source) else { return Vec::new() };
        let place = |seq: u64| usize::try_from(seq).unwrap();
        stream.records[place(first - 1)..place(last)].to_vec()
    }

    pub(super) fn view(&self) -> View {
        let streams = self.streams.iter().map(|(name, stream)| {
            let (head, positions) = (stream.records.len() as u64, stream.positions.clone());
            (name.clone(), StreamView { head, positions })
        });
        let lanes = self.lanes.iter().map(|((source, sink), lane)| {
            let head = self.head(source);
            let open: u64 = lane.unacked.iter().map(|(_, _, inputs)| inputs).sum();
            let unacked = lane.unacked.iter().map(|(b, content, _)| (b.clone(), content.clone()));
            let replays = lane.replays.iter().map(|(b, content, _)| (b.clone(), content.clone()));
            let view = LaneView {
                start: lane.start,
                sealed: lane.sealed,
                next_batch: lane.next_batch,
                unacked: unacked.collect(),
                replays: replays.collect(),
                state: lane.state.clone(),
                totals: lane.totals,
                queued: head - lane.sealed + open,
                waiting: self.records(source, lane.sealed + 1, head),
            };
            (format!("gw/{source}/p/{sink}"), view)
        });
        // Halves share the parts of their batch.
        let parts = self.lanes.values().map(|lane| {
            let batches = lane.unacked.iter().map(|(batch, ..)| (batch.number, batch.parts));
            let replays = lane.replays.iter().map(|(batch, ..)| (batch.number, batch.parts));
            batches.chain(replays).collect::<BTreeMap<_, _>>().values().sum::<u64>()
        });
        let parts: u64 = parts.sum();
        View {
            streams: streams.collect(),
            lanes: lanes.collect(),
            letters: self.letters.iter().map(LetterModel::view).collect(),
            parts: parts.cast_signed(),
        }
    }
}

impl LetterModel {
    /// Whether both are of the same input.
    pub(super) fn shares_input(&self, other: &Self) -> bool {
        let is_of_input = self.lane.is_some() && !self.is_of_tick && !other.is_of_tick;
        is_of_input && (&self.lane, self.seq) == (&other.lane, other.seq)
    }

    fn view(&self) -> LetterView {
        let (stage, name, payload) = (&self.stage, &self.name, &self.payload);
        (stage.clone(), self.seq, name.clone(), payload.clone(), self.under_way.is_some())
    }
}

impl View {
    /// Reads everything. Ends the sessions of all sources and lanes.
    pub(super) async fn of(journal: &Journal) -> Result<Self, Box<dyn std::error::Error>> {
        let mut view = Self::default();
        let snapshot = settled(journal).await;
        for stream in &snapshot.streams {
            let appender = journal.appender(&stream.source).await?;
            let (head, positions) = (stream.head.0, appender.positions().clone());
            view.streams.insert(stream.source.to_string(), StreamView { head, positions });
        }
        for lane in &snapshot.lanes {
            let spec = spec(lane.source.as_str(), lane.sink.as_str());
            let (handle, opened) = journal.lane(spec).await?;
            let head = handle.head().borrow().seq.0;
            let mut unacked = Vec::new();
            for batch in opened.unacked {
                let content = content(&mut *handle.open_batch(&batch))?;
                unacked.push((batch, content));
            }
            let mut replays = Vec::new();
            for batch in opened.replays {
                let content = content(&mut *handle.open_batch(&batch))?;
                replays.push((batch, content));
            }
            let mut waiting = Vec::new();
            while opened.sealed_seq.0 + (waiting.len() as u64) < head {
                let next = Seq(opened.sealed_seq.0 + waiting.len() as u64 + 1);
                for block in handle.read(next)? {
                    let next = Seq(opened.sealed_seq.0 + waiting.len() as u64 + 1);
                    waiting.extend(prints(&cut(block, next, Seq(head)))?);
                }
            }
            let lane_view = LaneView {
                start: lane.start.0,
                sealed: opened.sealed_seq.0,
                next_batch: opened.next_batch.0,
                unacked,
                replays,
                state: opened.plugin_state,
                totals: lane.totals,
                queued: lane.queued,
                waiting,
            };
            view.lanes.insert(opened.name.to_string(), lane_view);
        }
        let database = open::connect_reader(journal.path())?;
        view.parts =
            database.query_row("SELECT count(*) FROM batch_parts", [], |row| row.get(0))?;
        let query =
            "SELECT stage, seq, coalesce(record, place), payload, id IN (SELECT letter FROM replaying)
             FROM dead_letters ORDER BY id";
        let mut statement = database.prepare(query)?;
        let rows = statement.query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })?;
        view.letters = rows.collect::<Result<_, _>>()?;
        // What is kept in mind is what stands in the table.
        let counted = super::super::letters::LettersState::load(&database)?;
        let room = *journal.letters_room().borrow();
        assert_eq!((room.bytes, room.count), (counted.bytes, counted.count));
        Ok(view)
    }

    /// What differs, for messages.
    pub(super) fn differences(&self, found: &Self) -> String {
        let mut text = String::new();
        let mut note = |what: &str, expected: String, found: String| {
            if expected != found {
                text.push_str(&format!("\n{what}:\n  expected {expected}\n  found    {found}"));
            }
        };
        for name in self.streams.keys().chain(found.streams.keys()) {
            let (expected, found) = (self.streams.get(name), found.streams.get(name));
            note(&format!("stream {name}"), format!("{expected:?}"), format!("{found:?}"));
        }
        for name in self.lanes.keys().chain(found.lanes.keys()) {
            let (expected, found) = (self.lanes.get(name), found.lanes.get(name));
            note(&format!("lane {name}"), format!("{expected:?}"), format!("{found:?}"));
        }
        note("letters", format!("{:?}", self.letters), format!("{:?}", found.letters));
        note("parts", self.parts.to_string(), found.parts.to_string());
        text
    }

    /// Accepted is delivered, dropped, dead-lettered, lost and queued together, in every lane.
    pub(super) fn check_sums(&self) -> Result<(), String> {
        for (name, lane) in &self.lanes {
            let totals = lane.totals;
            let outcomes = totals.delivered
                + totals.dropped
                + totals.dead_lettered
                + totals.lost
                + totals.not_taken;
            let source = name.split('/').nth(1).unwrap();
            let accepted = self.streams[source].head - lane.start;
            if accepted != outcomes + lane.queued {
                return Err(format!(
                    "{name}: accepted {accepted}, queued {}, {totals:?}",
                    lane.queued
                ));
            }
        }
        Ok(())
    }
}

/// A snapshot of everything that was queued before it: an operation behind that is answered after its commit.
async fn settled(journal: &Journal) -> Arc<Snapshot> {
    let mut snapshots = journal.snapshots();
    let known = snapshots.borrow().streams.first().map(|stream| stream.source.clone());
    // What was queued is committed with the first answer; the snapshot is renewed some time after each.
    if let Some(source) = known
        && journal.appender(&source).await.is_ok()
    {
        snapshots.mark_unchanged();
        if journal.appender(&source).await.is_ok() {
            let renewed = snapshots.changed();
            drop(tokio::time::timeout(std::time::Duration::from_secs(5), renewed).await);
        }
    }
    journal.snapshots().borrow().clone()
}

pub(super) fn spec(source: &str, sink: &str) -> LaneSpec {
    LaneSpec {
        agent: "gw".parse().unwrap(),
        source: source.parse().unwrap(),
        pipeline: "p".parse().unwrap(),
        sink: sink.parse().unwrap(),
        start_now: false,
    }
}

fn prints(block: &FrameBlock) -> Result<Vec<Print>, Box<dyn std::error::Error>> {
    let mut prints = Vec::new();
    for record in block.records() {
        let record = record?;
        prints.push(print(record.seq.0, record.payload));
    }
    Ok(prints)
}

fn content(reader: &mut dyn BlockReader) -> Result<Vec<Print>, Box<dyn std::error::Error>> {
    let mut content = Vec::new();
    while let Some(block) = reader.next_block().map_err(|error| error.to_string())? {
        content.extend(prints(&block)?);
    }
    Ok(content)
}

/// A batch without what only its kind says.
pub(super) fn batch(number: u64, first: u64, last: u64) -> StoredBatch {
    StoredBatch {
        number: BatchNumber(number),
        epoch: Epoch::new(1, 1),
        first_seq: Seq(first),
        last_seq: Seq(last),
        sealed_at: Timestamp(i64::try_from(number).unwrap()),
        records: last + 1 - first,
        parts: 0,
        sha256: [u8::try_from(number % 251).unwrap(); 32],
        fixed: format!("{{\"n\":{number}}}"),
        variant: Variant::default(),
    }
}

pub(super) fn letter_model(
    lane: Option<&(String, String)>,
    stage: &str,
    seq: Option<u64>,
    name: &str,
    payload: &[u8],
) -> LetterModel {
    LetterModel {
        lane: lane.cloned(),
        stage: stage.to_owned(),
        seq: seq.map(u64::cast_signed),
        is_of_tick: false,
        name: name.to_owned(),
        payload: payload.to_vec(),
        under_way: None,
        stays: false,
    }
}

pub(super) fn letter(seq: u64, identity: String, payload: Vec<u8>) -> StageLetter {
    StageLetter {
        stage: "clean".to_owned(),
        plugin_sha256: [3; 32],
        class: "rejected",
        record: letter_record(seq, identity, payload),
    }
}

pub(super) fn letter_record(seq: u64, identity: String, payload: Vec<u8>) -> LetterRecord {
    LetterRecord {
        reason: "no".to_owned(),
        identity,
        seq: Seq(seq),
        is_of_tick: false,
        time: Timestamp(2),
        subject: "sub".to_owned(),
        headers: Vec::new(),
        payload,
    }
}

pub(super) fn apply_changes(
    state: &mut PluginState,
    changes: &[(u8, Option<u8>)],
) -> Vec<StateChange> {
    let changes = changes.iter().map(|(number, value)| {
        let change = StateChange {
            component: format!("c{}", number % 2),
            key: format!("k{number}"),
            value: value.map(|value| vec![value; 40]),
        };
        apply_change(state, &change);
        change
    });
    changes.collect()
}

/// What a sink changes for a batch of the model: it counts those that had their outcome, and forgets them at times.
pub(super) fn of_sink(state: &mut PluginState) -> Vec<StateChange> {
    let (component, key) = ("@sink".to_owned(), "outcomes".to_owned());
    let before = state.get(&component).and_then(|keys| keys.get(&key)).map_or(0, Vec::len);
    let value = (before < 5).then(|| vec![b'x'; before + 1]);
    let change = StateChange { component, key, value };
    apply_change(state, &change);
    vec![change]
}

fn apply_change(state: &mut PluginState, change: &StateChange) {
    let StateChange { component, key, value } = change;
    match value {
        Some(value) => {
            state.entry(component.clone()).or_default().insert(key.clone(), value.clone());
        }
        None => {
            if let Some(keys) = state.get_mut(component) {
                keys.remove(key);
                if keys.is_empty() {
                    state.remove(component);
                }
            }
        }
    }
}
