//! Power cuts: the directory as a disk may hold it at any moment, made from a recording, and opened.
//!
//! What was synced is there. Of what was written since, each piece may be there or not, whole or torn by sectors, in any
//! order. Names come and go in order, and are durable with a sync of the directory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::drive::{Driver, Failed, Operation, operation, scratch};
use super::model::{Model, View};
use super::property::size;
use super::vfs::{Data, Disk, Event, FileId, Kind};
use super::*;
use crate::journal::config::Durability;

/// A file on the disk that lost its power.
#[derive(Default)]
struct Content {
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: u64, bytes: Data },
    Truncate { length: u64 },
}

/// How the writes that were not synced fare.
#[derive(Debug, Clone, Copy)]
enum Fate {
    All,
    None,
    /// The first so many.
    Prefix,
    /// Each by itself.
    Some,
    /// Each sector of each by itself.
    Torn(usize),
    /// All but one.
    OneLost,
}

const FATES: [Fate; 8] = [
    Fate::All,
    Fate::None,
    Fate::Prefix,
    Fate::Some,
    Fate::Some,
    Fate::Torn(512),
    Fate::Torn(4096),
    Fate::OneLost,
];

impl Content {
    fn settle(&mut self, fate: Fate, random: &mut fastrand::Rng) {
        let changes = std::mem::take(&mut self.pending);
        let count = changes.len();
        let place = random.usize(0..=count);
        for (number, change) in changes.into_iter().enumerate() {
            let stays = match fate {
                Fate::All | Fate::Torn(_) => true,
                Fate::None => false,
                Fate::Prefix => number < place,
                Fate::Some => random.bool(),
                Fate::OneLost => number != place,
            };
            // A name for the length of a file that grew may be there without its content: then there are zeros.
            if stays {
                self.make(&change, fate, random);
            } else if let Change::Write { offset, bytes } = &change
                && random.u8(0..8) == 0
            {
                self.reach(place_of(*offset) + bytes.len());
            }
        }
    }

    fn reach(&mut self, length: usize) {
        if self.durable.len() < length {
            self.durable.resize(length, 0);
        }
    }

    fn make(&mut self, change: &Change, fate: Fate, random: &mut fastrand::Rng) {
        match change {
            Change::Truncate { length } => self.durable.resize(place_of(*length), 0),
            Change::Write { offset, bytes } => {
                let begin = place_of(*offset);
                let sector = if let Fate::Torn(sector) = fate { sector } else { usize::MAX };
                for piece in pieces(begin..begin + bytes.len(), sector) {
                    if sector == usize::MAX || random.bool() {
                        self.reach(piece.end);
                        let source = piece.start - begin..piece.end - begin;
                        bytes.copy_to(source, &mut self.durable[piece]);
                    }
                }
            }
        }
    }
}

fn place_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// Cuts a range of a file at the borders of sectors.
fn pieces(range: Range<usize>, sector: usize) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut begin = range.start;
    while begin < range.end {
        let end = (begin / sector).saturating_add(1).saturating_mul(sector).min(range.end);
        pieces.push(begin..end);
        begin = end;
    }
    pieces
}

/// Writes the files as they may be found when the power goes in front of event `cut`.
pub(super) fn build(events: &[Event], cut: usize, random: &mut fastrand::Rng, into: &Path) {
    let mut files: BTreeMap<FileId, Content> = BTreeMap::new();
    let mut names: BTreeMap<String, FileId> = BTreeMap::new();
    let mut moves: Vec<&Event> = Vec::new();
    let change_names = |names: &mut BTreeMap<String, FileId>, event: &Event| match event {
        Event::Create { file, name } => drop(names.insert(name.clone(), *file)),
        Event::Delete { name } => drop(names.remove(name)),
        _ => {}
    };
    for event in &events[..cut] {
        match event {
            Event::Create { .. } | Event::Delete { .. } => moves.push(event),
            Event::Write { file, offset, bytes } => {
                let change = Change::Write { offset: *offset, bytes: bytes.clone() };
                files.entry(*file).or_default().pending.push(change);
            }
            Event::Truncate { file, length } => {
                let change = Change::Truncate { length: *length };
                files.entry(*file).or_default().pending.push(change);
            }
            Event::Sync { file, directory } => {
                files.entry(*file).or_default().settle(Fate::All, random);
                if *directory {
                    moves.drain(..).for_each(|event| change_names(&mut names, event));
                }
            }
            Event::FailedSync { file } => {
                let fate = FATES[random.usize(..FATES.len())];
                files.entry(*file).or_default().settle(fate, random);
            }
        }
    }
    let kept = random.usize(0..=moves.len());
    moves.drain(..kept).for_each(|event| change_names(&mut names, event));
    let fate = FATES[random.usize(..FATES.len())];
    for (name, file) in names {
        let content = files.entry(file).or_default();
        content.settle(fate, random);
        std::fs::write(into.join(name), &content.durable).unwrap();
    }
}

/// Where power cuts tell most: in front of a sync, when most is at stake, and sometimes anywhere.
fn pick_cut(events: &[Event], begin: usize, random: &mut fastrand::Rng) -> usize {
    let is_sync = |at: &usize| matches!(events[*at], Event::Sync { .. });
    let syncs: Vec<_> = (begin..events.len()).filter(is_sync).collect();
    if syncs.is_empty() || random.u8(0..4) == 0 {
        return random.usize(begin..=events.len());
    }
    syncs[random.usize(..syncs.len())] + usize::from(random.u8(0..8) == 0)
}

/// A workload that is always the same for a seed.
pub(super) fn workload(seed: u64, length: usize) -> Vec<Operation> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let mut operations = vec![
        Operation::OpenLane { source: 0, sink: 0, now: false },
        Operation::OpenLane { source: 1, sink: 1, now: false },
    ];
    for number in 0..length {
        operations.push(match number % 40 {
            39 => Operation::Reopen,
            _ => operation(false).new_tree(&mut runner).unwrap().current(),
        });
    }
    operations
}

/// What a run on a recorded disk left: the recording, and what was to be there when.
struct Run {
    events: Vec<Event>,
    steps: Vec<super::drive::Step>,
    acknowledged: Vec<(usize, usize)>,
}

impl Run {
    /// Runs operations on the files of a directory, which hold `model`.
    async fn record(
        directory: &Path,
        durability: Durability,
        operations: &[Operation],
        model: Model,
        lie: bool,
    ) -> Result<(Self, usize), Failed> {
        let disk = Disk::watch(directory);
        if lie {
            disk.skip_syncs();
        }
        let begin = disk.now();
        let config = JournalConfig { durability, ..Default::default() };
        let mut driver = Driver::new(directory, config, model);
        let clock = Arc::clone(&disk);
        driver.now = Box::new(move || clock.now());
        let ran = async {
            driver.open()?;
            for operation in operations {
                driver.apply(operation).await?;
            }
            driver.settle().await
        };
        let ran = ran.await;
        let run =
            Self { events: disk.events(), steps: driver.steps, acknowledged: driver.acknowledged };
        disk.forget();
        ran.map(|()| (run, begin))
    }

    /// Whether the journal that was found after a cut is one that may be: all that was acknowledged before, and at most what
    /// had been handed over. Gives the step.
    fn judge(&self, cut: usize, view: &View) -> Result<usize, String> {
        let before = self.acknowledged.iter().rev().find(|(_, at)| *at <= cut);
        let certain = before.map_or(0, |(step, _)| *step);
        let steps = certain..self.steps.len();
        let possible = |step: &usize| *step == certain || self.steps[*step].handed_over <= cut;
        let found = steps.filter(possible).find(|step| self.steps[*step].model.view() == *view);
        found.ok_or_else(|| {
            let differences = self.steps[certain].model.view().differences(view);
            format!("not step {certain}, nor one behind it; against it:{differences}")
        })
    }
}

/// Opens an image and compares; gives the step that it holds.
async fn open_image(run: &Run, cut: usize, directory: &Path) -> Result<usize, String> {
    let opened = Journal::open(&options(directory));
    let (journal, _) = opened.map_err(|error| crate::error_chain::Chain(&error).to_string())?;
    let view = View::of(&journal).await.map_err(|error| error.to_string())?;
    view.check_sums()?;
    run.judge(cut, &view)
}

struct Outcome {
    images: u32,
    failures: Vec<String>,
}

/// Makes images of runs with different seeds; a third of them lose their power twice.
async fn power_cuts(images: u32, seed: u64, durability: Durability, lie: bool) -> Outcome {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut outcome = Outcome { images: 0, failures: Vec::new() };
    let per_run = 25;
    while outcome.images < images {
        let dir = scratch();
        let run_seed = random.u64(..);
        let operations = workload(run_seed, 60);
        let (run, begin) =
            Run::record(dir.path(), durability, &operations, Model::default(), lie).await.unwrap();
        for _ in 0..per_run.min(images - outcome.images) {
            outcome.images += 1;
            let cut = pick_cut(&run.events, begin, &mut random);
            let image = scratch();
            build(&run.events, cut, &mut random, image.path());
            let again = random.u8(0..3) == 0;
            let copy = again.then(|| copy_of(image.path()));
            let result = open_image(&run, cut, image.path()).await;
            let failed = |what: &str, error: String| {
                format!(
                    "seed {seed}, run {run_seed}, cut {cut} of {}, {what}: {error}",
                    run.events.len()
                )
            };
            let step = match result {
                Ok(step) => step,
                Err(error) => {
                    outcome.failures.push(failed("first cut", error));
                    continue;
                }
            };
            let Some(copy) = copy else { continue };
            let model = run.steps[step].model.clone();
            let operations = workload(random.u64(..), 4);
            // What was lost may be met only by who goes on with it.
            let second = Run::record(copy.path(), durability, &operations, model, lie).await;
            let (second, begin) = match second {
                Ok(second) => second,
                Err(error) => {
                    outcome.failures.push(failed("going on", error.to_string()));
                    continue;
                }
            };
            for _ in 0..2 {
                let cut = pick_cut(&second.events, begin, &mut random);
                let image = scratch();
                build(&second.events, cut, &mut random, image.path());
                if let Err(error) = open_image(&second, cut, image.path()).await {
                    outcome.failures.push(failed("second cut", error));
                }
            }
        }
    }
    outcome
}

fn copy_of(directory: &Path) -> tempfile::TempDir {
    let copy = scratch();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// A seed that is printed, so that a failure can be repeated.
pub(super) fn seed() -> u64 {
    let low = size("WAYSTATION_TEST_SEED", fastrand::u32(..));
    eprintln!("seed: WAYSTATION_TEST_SEED={low}");
    u64::from(low)
}

#[tokio::test]
async fn no_power_cut_loses_or_changes_what_was_acknowledged() {
    let images = size("WAYSTATION_TEST_IMAGES", 200);
    let outcome = power_cuts(images, seed(), Durability::Full, false).await;
    eprintln!("{} images, {} failures", outcome.images, outcome.failures.len());
    assert!(outcome.failures.is_empty(), "{}", outcome.failures.join("\n"));
}

#[tokio::test]
async fn a_power_cut_while_the_journal_is_made_leaves_one_that_starts() {
    let mut random = fastrand::Rng::with_seed(seed());
    let dir = scratch();
    let (run, _) =
        Run::record(dir.path(), Durability::Full, &[], Model::default(), false).await.unwrap();
    let is_extension = |event: &Event| matches!(event, Event::Write { bytes: Data::Zeros(_), .. });
    let made = run.events.iter().position(is_extension).unwrap();
    assert!(made > 20, "{made} events make a journal");
    for cut in (0..=made).flat_map(|cut| [cut; 4]) {
        let image = scratch();
        build(&run.events, cut, &mut random, image.path());
        open_image(&run, cut, image.path()).await.unwrap();
    }
}

#[tokio::test]
async fn the_same_power_cuts_find_what_a_relaxed_journal_and_a_lying_disk_lose() {
    for (durability, lie) in [(Durability::Relaxed, false), (Durability::Full, true)] {
        let outcome = power_cuts(150, seed(), durability, lie).await;
        eprintln!(
            "{durability:?}, lying {lie}: {} of {} lost",
            outcome.failures.len(),
            outcome.images
        );
        assert!(outcome.failures.len() > 5, "{durability:?}, lying {lie}");
    }
}

#[tokio::test]
async fn a_commit_syncs_the_wal_once_and_nothing_else() {
    let dir = scratch();
    let disk = Disk::watch(dir.path());
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["first"])).await.unwrap();
    let (begin, syncs) = (disk.now(), disk.count(Kind::Sync));
    for number in 0..50 {
        appender.append(records(&[&number.to_string()])).await.unwrap();
    }
    assert_eq!(disk.count(Kind::Sync) - syncs, 50);
    let events = disk.events();
    let wal = events.iter().find_map(|event| match event {
        Event::Create { file, name } if name.ends_with("-wal") => Some(*file),
        _ => None,
    });
    for event in &events[begin..] {
        let (Event::Write { file, .. } | Event::Sync { file, .. }) = event else {
            panic!("{event:?}");
        };
        assert_eq!(Some(*file), wal, "{event:?}");
    }
    disk.forget();
}
