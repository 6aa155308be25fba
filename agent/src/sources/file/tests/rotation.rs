//! Rotations of every kind, with the source looking at them after each step or not, and never in the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;

use futures_util::StreamExt as _;

use super::*;
use crate::clock::Clock as _;

/// What is done to the files.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// Lines are added to a file, which is made if it is not there.
    Add(&'static str, usize),
    /// A file is copied, over the other one if that is there.
    CopyTo(&'static str, &'static str),
    Cut(&'static str),
    Rename(&'static str, &'static str),
    /// A file is replaced with an archive of it.
    Gzip(&'static str),
    Zstd(&'static str),
    /// A link gets another target.
    Point(&'static str, &'static str),
    Remove(&'static str),
}
use Step::{Add, CopyTo, Cut, Gzip, Point, Remove, Rename, Zstd};

/// Files with numbered lines, and what a source must have delivered of them.
struct Rotated {
    bench: Bench,
    clock: Arc<ManualClock>,
    files: BTreeMap<String, Vec<usize>>,
    lines: usize,
    /// Lines that were in a file when the source looked.
    wanted: BTreeSet<usize>,
}

fn line(n: usize) -> String {
    format!("line {n} of a log that is rotated\n")
}

impl Rotated {
    fn new(pattern: &str) -> Self {
        let mut bench = Bench::new();
        bench.config.paths = vec![bench.path(pattern).display().to_string()];
        std::fs::create_dir(bench.path("d")).unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        Self { bench, clock, files: BTreeMap::new(), lines: 0, wanted: BTreeSet::new() }
    }

    fn step(&mut self, step: Step) {
        let path = |name: &str| self.bench.path(name);
        let archive = |name: &str, ending: &str| format!("{name}.{ending}");
        match step {
            Add(name, count) => {
                let numbers = self.lines..self.lines + count;
                self.lines += count;
                self.bench.add(name, numbers.clone().map(line).collect::<String>());
                self.files.entry(name.to_owned()).or_default().extend(numbers);
            }
            CopyTo(from, to) => {
                std::fs::copy(path(from), path(to)).unwrap();
                self.files.insert(to.to_owned(), self.files[from].clone());
            }
            Cut(name) => {
                self.bench.write(name, "");
                self.files.insert(name.to_owned(), Vec::new());
            }
            Rename(from, to) => {
                std::fs::rename(path(from), path(to)).unwrap();
                let content = self.files.remove(from).unwrap();
                self.files.insert(to.to_owned(), content);
            }
            Gzip(name) => {
                let content = std::fs::read(path(name)).unwrap();
                std::fs::write(path(&archive(name, "gz")), gzip(&content)).unwrap();
                std::fs::remove_file(path(name)).unwrap();
                let content = self.files.remove(name).unwrap();
                self.files.insert(archive(name, "gz"), content);
            }
            Zstd(name) => {
                let content = std::fs::read(path(name)).unwrap();
                let packed = zstd::bulk::compress(&content, 3).unwrap();
                std::fs::write(path(&archive(name, "zst")), packed).unwrap();
                std::fs::remove_file(path(name)).unwrap();
                let content = self.files.remove(name).unwrap();
                self.files.insert(archive(name, "zst"), content);
            }
            Point(link, target) => {
                let new = path("new-link");
                std::os::unix::fs::symlink(path(target), &new).unwrap();
                std::fs::rename(new, path(link)).unwrap();
            }
            Remove(name) => {
                std::fs::remove_file(path(name)).unwrap();
                self.files.remove(name);
            }
        }
    }

    /// A run of the source, until it has read what is there, and a little longer.
    async fn look(&mut self) {
        self.wanted.extend(self.files.values().flatten());
        let of_clock = SourceOptions { clock: Arc::clone(&self.clock) as _, ..options(false) };
        let config = &self.bench.config;
        let source = Box::new(FileSource::new(source_id(), config, &of_clock).unwrap());
        let before = self.bench.payloads().await.len();
        let (wanted, clock) = (self.wanted.len() - before.min(self.wanted.len()), &self.clock);
        self.bench
            .follow_with(source, |counters| async move {
                let mut rests = 0;
                for _ in 0..400 {
                    // A scan a look; after four of them an archive has stayed as it is for long enough.
                    clock.advance(Duration::from_millis(1100));
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    rests += usize::from(count(&counters.records) >= wanted as u64);
                    if rests > 12 {
                        break;
                    }
                }
            })
            .await;
    }

    async fn delivered(&self) -> Vec<usize> {
        let number = |text: String| {
            let mut words = text.split(' ');
            let number = words.nth(1).unwrap().parse().unwrap();
            assert_eq!(format!("{text}\n"), line(number));
            number
        };
        self.bench.payloads().await.into_iter().map(number).collect()
    }
}

/// Takes the steps, with a look of the source after those whose bit is set, and one at the end.
async fn rotate(pattern: &str, steps: &[Step], looks: u32) -> Result<(), String> {
    let mut rotated = Rotated::new(pattern);
    for (index, step) in steps.iter().enumerate() {
        rotated.step(*step);
        if looks >> index & 1 == 1 || index + 1 == steps.len() {
            rotated.look().await;
        }
    }
    let mut found = rotated.delivered().await;
    found.sort_unstable();
    let wanted: Vec<_> = rotated.wanted.iter().copied().collect();
    if found == wanted {
        return Ok(());
    }
    let missing: Vec<_> = wanted.iter().filter(|n| !found.contains(n)).collect();
    let twice: Vec<_> = found.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
    Err(format!("looks {looks:b}: missing {missing:?}, twice {twice:?}"))
}

/// The steps with every choice of looks after those from `from` on, and one in front of them.
async fn in_all_ways(pattern: &str, steps: &[Step], from: usize) {
    let choices = 1_u32 << (steps.len() - from);
    let ways = (0..choices / 2).map(|way| way << from | 1 << (from - 1));
    let found: Vec<_> = futures_util::stream::iter(ways)
        .map(|looks| rotate(pattern, steps, looks))
        .buffer_unordered(16)
        .collect()
        .await;
    let ways = found.len();
    let wrong: Vec<_> = found.into_iter().filter_map(Result::err).collect();
    let shown = wrong.get(..wrong.len().min(5)).unwrap_or_default().join("\n");
    assert!(wrong.is_empty(), "{} of {ways} ways:\n{shown}", wrong.len());
    eprintln!("{ways} ways");
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

const LOG: &str = "a.log";
const ONE: &str = "a.log.1";

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_log_that_is_copied_and_cut_is_read_once_whenever_it_is_looked_at() {
    let steps = [
        Add(LOG, 40),
        Add(LOG, 20),
        CopyTo(LOG, ONE),
        Add(LOG, 3),
        Cut(LOG),
        Add(LOG, 100),
        Rename(ONE, "a.log.2"),
        CopyTo(LOG, ONE),
        Cut(LOG),
        Add(LOG, 5),
    ];
    in_all_ways("a.log*", &steps, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_copy_over_the_copy_before_is_read_once_whenever_it_is_looked_at() {
    let steps = [
        Add(LOG, 40),
        CopyTo(LOG, ONE),
        Cut(LOG),
        Add(LOG, 60),
        CopyTo(LOG, ONE),
        Add(LOG, 2),
        Cut(LOG),
        Add(LOG, 5),
    ];
    in_all_ways("a.log*", &steps, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_copy_that_is_compressed_is_read_once_whenever_it_is_looked_at() {
    let steps = [
        Add(LOG, 40),
        Add(LOG, 7),
        CopyTo(LOG, ONE),
        Cut(LOG),
        Add(LOG, 9),
        Gzip(ONE),
        Add(LOG, 5),
        Rename("a.log.1.gz", "a.log.2.gz"),
        CopyTo(LOG, ONE),
        Cut(LOG),
    ];
    in_all_ways("a.log*", &steps, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_renamed_log_that_is_compressed_is_read_once_whenever_it_is_looked_at() {
    let steps = [
        Add(LOG, 40),
        Rename(LOG, ONE),
        Add(ONE, 3),
        Add(LOG, 4),
        Gzip(ONE),
        Rename("a.log.1.gz", "a.log.2.gz"),
        Rename(LOG, ONE),
        Add(LOG, 5),
        Zstd(ONE),
    ];
    in_all_ways("a.log*", &steps, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_copy_shorter_than_what_was_read_is_known_by_its_marks() {
    // Less than a head, which alone would not tell.
    let steps = [Add(LOG, 5), CopyTo(LOG, ONE), Add(LOG, 3), Cut(LOG), Add(LOG, 1)];
    in_all_ways("a.log*", &steps, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_what_was_read_of_a_log_that_is_cut_or_removed_is_known_over_a_restart() {
    // Copy and archive come into sight after the source has seen that the log was cut or removed.
    let mut rotated = Rotated::new("a.log*");
    for step in [Add(LOG, 50), CopyTo(LOG, "hidden"), Add(LOG, 2)] {
        rotated.step(step);
    }
    rotated.look().await;
    rotated.step(Cut(LOG));
    rotated.look().await;
    rotated.step(Rename("hidden", ONE));
    rotated.step(Add(LOG, 50));
    rotated.look().await;
    assert_eq!(rotated.delivered().await, (0..102).collect::<Vec<_>>());
    // Removed while it is followed, so that its position goes.
    let source = rotated.bench.source(false);
    let bench = &rotated.bench;
    bench
        .follow_with(source, |counters| async move {
            bench.add(LOG, line(102));
            records_are(&counters, 1).await;
            let content = std::fs::read(bench.path(LOG)).unwrap();
            std::fs::write(bench.path("hidden"), gzip(&content)).unwrap();
            std::fs::remove_file(bench.path(LOG)).unwrap();
            tokio::time::sleep(Duration::from_millis(1600)).await;
            bench.write("a.log.x", line(103));
            records_are(&counters, 2).await;
        })
        .await;
    std::fs::rename(bench.path("hidden"), bench.path("a.log.1.gz")).unwrap();
    rotated.look().await;
    assert_eq!(rotated.delivered().await, (0..104).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_an_archive_is_known_while_the_inode_of_its_log_is_that_of_the_next_archive() {
    let rotated = Rotated::new("a.log*");
    let bench = &rotated.bench;
    let text = |numbers: std::ops::Range<usize>| numbers.map(line).collect::<String>();
    bench.write(LOG, text(0..50));
    bench.once().await;
    // As if the log had been removed, and the next archive had got its inode.
    bench.write(LOG, gzip(text(50..90).as_bytes()));
    std::fs::rename(bench.path(LOG), bench.path("hidden")).unwrap();
    bench.write("a.log.2.gz", gzip(text(0..50).as_bytes()));
    let of_clock = SourceOptions { clock: Arc::clone(&rotated.clock) as _, ..options(false) };
    let source = FileSource::new(source_id(), &bench.config, &of_clock).unwrap();
    let clock = &rotated.clock;
    bench
        .follow_with(Box::new(source), |counters| async move {
            for look in 0..5 {
                if look == 1 {
                    // When the first one has stayed as it is for long enough, this one has not.
                    std::fs::rename(bench.path("hidden"), bench.path("a.log.1.gz")).unwrap();
                }
                tokio::time::sleep(LOOK_EVERY_MAX + Duration::from_millis(50)).await;
                clock.advance(Duration::from_millis(1100));
            }
            records_are(&counters, 40).await;
        })
        .await;
    assert_eq!(rotated.delivered().await, (0..90).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn d_17_a_link_that_is_pointed_elsewhere_is_read_once_whenever_it_is_looked_at() {
    let steps = [
        Add("d/1", 10),
        Point(LOG, "d/1"),
        Add("d/1", 3),
        Point(LOG, "d/2"),
        Add("d/1", 4),
        Add("d/2", 5),
    ];
    // What stood in the first file before the link was pointed elsewhere is looked at in any case.
    in_all_ways(LOG, &steps, 3).await;
}

#[tokio::test]
async fn a_copy_of_a_log_that_stays_is_a_file_of_its_own_after_a_minute() {
    let mut rotated = Rotated::new("a.log*");
    rotated.step(Add(LOG, 10));
    rotated.look().await;
    rotated.step(CopyTo(LOG, ONE));
    rotated.step(Add(LOG, 2));
    rotated.look().await;
    assert_eq!(rotated.delivered().await, (0..12).collect::<Vec<_>>());
    // It waits by the clock of the run.
    let of_clock = SourceOptions { clock: Arc::clone(&rotated.clock) as _, ..options(false) };
    let source = FileSource::new(source_id(), &rotated.bench.config, &of_clock).unwrap();
    let clock = &rotated.clock;
    rotated
        .bench
        .follow_with(Box::new(source), |counters| async move {
            for _ in 0..400 {
                if count(&counters.records) >= 10 {
                    break;
                }
                clock.advance(Duration::from_millis(1100));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            assert!(clock.monotonic().0 >= 60_000_000_000);
            records_are(&counters, 10).await;
        })
        .await;
    // One that begins alike and goes on with other lines is another file at once.
    rotated.step(CopyTo(LOG, "a.log.2"));
    rotated.step(Add("a.log.2", 1));
    rotated.look().await;
    assert_eq!(rotated.delivered().await.len(), 12 + 10 + 13);
}

#[tokio::test]
async fn a_file_that_is_made_anew_with_the_bytes_of_a_removed_one_is_read_again() {
    let mut rotated = Rotated::new("a*.log");
    rotated.step(Add("a.log", 10));
    rotated.look().await;
    for name in ["a.log", "a-2.log"] {
        let content = std::fs::read(rotated.bench.path("a.log")).unwrap();
        // With the same inode, too, it would be the same file: one that is held open keeps it.
        let held = std::fs::File::open(rotated.bench.path("a.log")).unwrap();
        rotated.step(Remove("a.log"));
        rotated.look().await;
        std::fs::write(rotated.bench.path(name), &content).unwrap();
        rotated.look().await;
        drop(held);
        let copy = rotated.bench.path(name);
        if name != "a.log" {
            std::fs::rename(copy, rotated.bench.path("a.log")).unwrap();
        }
        rotated.files.insert("a.log".to_owned(), Vec::new());
    }
    assert_eq!(rotated.delivered().await.len(), 30);
}

#[tokio::test]
async fn content_that_is_gone_is_forgotten_after_an_hour() {
    let mut rotated = Rotated::new("a.log*");
    rotated.step(Add(LOG, 10));
    rotated.look().await;
    rotated.step(Cut(LOG));
    rotated.look().await;
    let contents = async |rotated: &Rotated| {
        let appender = rotated.bench.journal.appender(&source_id()).await.unwrap();
        appender.positions().keys().filter(|key| key.starts_with("was-")).count()
    };
    assert_eq!(contents(&rotated).await, 1);
    let of_clock = SourceOptions { clock: Arc::clone(&rotated.clock) as _, ..options(false) };
    let source = FileSource::new(source_id(), &rotated.bench.config, &of_clock).unwrap();
    let (bench, clock) = (&rotated.bench, &rotated.clock);
    bench
        .follow_with(Box::new(source), |counters| async move {
            tokio::time::sleep(LOOK_EVERY + LOOK_EVERY_MAX).await;
            clock.advance(Duration::from_secs(3601));
            tokio::time::sleep(LOOK_EVERY + LOOK_EVERY_MAX).await;
            clock.advance(Duration::from_secs(2));
            bench.add(LOG, "line\n");
            records_are(&counters, 1).await;
        })
        .await;
    assert_eq!(contents(&rotated).await, 0);
}
