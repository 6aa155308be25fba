//! Measures the journal against a raw log with the same framing and sync: `cargo xtask bench journal`.
//!
//! Every figure is the median of five rounds, and the rounds of the journal and of the raw log take turns, so that a noisy
//! machine disturbs both. JSON on standard output, a table on standard error.
//!
//! What is written is counted at the block device, so the file system has its say. On ext4 with its journal a commit of one page
//! is two blocks. Where ext4 has none, and the kernel gives time stamps finely (since 6.13), each commit writes a block of the
//! inode table more. The folder to measure in may be named: `cargo xtask bench journal -- /mnt/place`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a measuring program: it stops at the first failure, prints, and reads the clock itself"
)]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystation::clock::{SystemClock, Timestamp};
use waystation::journal::config::JournalConfig;
use waystation::journal::{
    Append, Appender, Finish, Journal, JournalOptions, LaneSpec, Seal, StoredBatch, Variant,
};
use waystation::limits::CHUNK_BYTES_MAX;
use waystation::record::Headers;
use waystation::record::codec::FrameBuffer;
use waystation::record::id::{BatchNumber, Epoch, Seq};
use waystation::tasks::TaskGroup;

const ROUNDS: usize = 5;
const LARGE_COMMITS: usize = 120;
const PRODUCERS: usize = 64;

fn main() {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "target/bench".to_owned());
    std::fs::create_dir_all(&directory).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let figures = runtime.block_on(measure(Path::new(&directory)));
    eprintln!("{:<46} {:>12}  bar", "journal", "measured");
    for (name, value, bar) in &figures {
        eprintln!("{name:<46} {value:>12.2}  {bar}");
    }
    let figures: serde_json::Map<_, _> =
        figures.into_iter().map(|(name, value, _)| (name.to_owned(), value.into())).collect();
    println!("{}", serde_json::Value::Object(figures));
}

type Figure = (&'static str, f64, &'static str);

async fn measure(directory: &Path) -> Vec<Figure> {
    let (mut raw, mut large, mut waiting, mut syncs, mut alone, mut read) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    let (mut small_bytes, mut large_bytes) = (vec![], vec![]);
    let (mut paced, mut small_batches, mut large_batches) = (vec![], vec![], vec![]);
    let mut commit_syncs = vec![];
    // First, while little memory was ever used.
    let place = tempfile::tempdir_in(directory).unwrap();
    let growth = backlog_memory(&place.path().join("backlog")).await;
    drop(place);
    for round in 0..ROUNDS {
        let place = tempfile::tempdir_in(directory).unwrap();
        let block = frames(round as u64, CHUNK_BYTES_MAX - 400);
        raw.push(raw_log(&place.path().join("raw"), &block));
        syncs.push(raw_syncs(&place.path().join("syncs")));
        let (rate, written) = large_commits(&place.path().join("large"), &block).await;
        large.push(rate);
        large_bytes.push(written);
        let (written, flushes) = one_record_commits(&place.path().join("small")).await;
        small_bytes.push(written);
        commit_syncs.push(flushes);
        paced.push(paced_records(&place.path().join("paced")).await);
        small_batches.push(amplification(&place.path().join("few"), 100).await);
        large_batches.push(amplification(&place.path().join("many"), 4000).await);
        waiting.push(producers(&place.path().join("waiting")).await);
        alone.push(one_producer(&place.path().join("alone")).await);
        read.push(reading(&place.path().join("reading"), &block).await);
    }
    let ratios: Vec<f64> = large.iter().zip(&raw).map(|(ours, raw)| ours / raw).collect();
    let shared: Vec<f64> = waiting.iter().zip(&syncs).map(|(ours, raw)| ours / raw).collect();
    vec![
        ("raw log, 256 KiB writes, MB/s", median(raw) / 1e6, ""),
        ("journal, 256 KiB commits, MB/s", median(large) / 1e6, ""),
        ("256 KiB commits against the raw log", median(ratios), ">= 0.80, never under 0.5"),
        ("written per stored byte at 256 KiB", median(large_bytes), "<= 2.3"),
        ("raw syncs a second", median(syncs), ""),
        ("64 waiting producers, records/s", median(waiting), ">= 15000 where >= 250 syncs/s"),
        ("64 waiting producers against raw syncs", median(shared), ">= 40"),
        ("one producer that does not wait, records/s", median(alone), ">= 100000"),
        ("written for a one-record commit, KB", median(small_bytes) / 1e3, "<= 12"),
        (
            "block flushes per one-record commit",
            median(commit_syncs),
            "<= 1.05, 0 where the disk has no cache",
        ),
        ("written for a paced record, ingest to acked, KB", median(paced) / 1e3, "<= 24"),
        ("written per payload byte to acked, 100 a batch", median(small_batches), ""),
        ("written per payload byte to acked, 4000 a batch", median(large_batches), ""),
        ("memory more for a 256 MiB backlog, MB", growth / 1e6, "<= 8"),
        ("reading compressed, warm, records/s", median(read), ">= 1000000"),
    ]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Readings that compress like those of real sensors do, up to this many bytes.
fn frames(seed: u64, bytes: usize) -> FrameBuffer {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut frames = FrameBuffer::with_capacity(CHUNK_BYTES_MAX);
    while frames.len() < bytes {
        push(&mut frames, &mut random);
    }
    frames
}

fn push(frames: &mut FrameBuffer, random: &mut fastrand::Rng) {
    let payload = format!(
        r#"{{"seq":{},"ts":"2026-01-01T00:00:17Z","site":"plant-7","device":"press-{:02}","sensor":"temp-2","status":"ok","temperature_c":{:.2},"humidity":{:.1},"pressure_hpa":1013.2,"vibration_mm_s":0.82,"battery_v":3.61,"fw":"2.4.1"}}"#,
        random.u32(..),
        random.u32(..40),
        random.f64() * 40.0,
        random.f64() * 100.0
    );
    frames.push_new(Timestamp(0), "sensors.press", Headers::default(), payload.as_bytes());
}

/// Bytes a second, of frames, into a file that is synced after each block.
fn raw_log(path: &Path, block: &FrameBuffer) -> f64 {
    let mut file = File::create(path).unwrap();
    let mut zstd = zstd::bulk::Compressor::new(1).unwrap();
    let begun = Instant::now();
    for _ in 0..LARGE_COMMITS {
        let mut row = zstd.compress(block.bytes()).unwrap();
        let crc = crc32c::crc32c(&row);
        row.extend_from_slice(&crc.to_le_bytes());
        file.write_all(&row).unwrap();
        file.sync_data().unwrap();
    }
    (LARGE_COMMITS * block.len()) as f64 / begun.elapsed().as_secs_f64()
}

fn raw_syncs(path: &Path) -> f64 {
    let mut file = File::create(path).unwrap();
    let begun = Instant::now();
    let mut count = 0.0;
    while begun.elapsed() < Duration::from_millis(500) {
        file.write_all(&[1; 4096]).unwrap();
        file.sync_data().unwrap();
        count += 1.0;
    }
    count / begun.elapsed().as_secs_f64()
}

async fn open(directory: &Path) -> (Journal, Appender) {
    let options = JournalOptions {
        directory: directory.to_owned(),
        config: JournalConfig::default(),
        agent: None,
        host: "bench".parse().unwrap(),
        clock: Arc::new(SystemClock),
    };
    let (journal, _) = Journal::open(&options).unwrap();
    let appender = journal.appender(&"s".parse().unwrap()).await.unwrap();
    (journal, appender)
}

/// Bytes written to the block device that the directory lies on, by anybody: run it on a machine that does little else. What
/// the kernel counts for a process alone is too much where file systems use large folios.
fn written_bytes(directory: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt as _;

    let device = std::fs::metadata(directory).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
    let sectors: f64 = text.split_whitespace().nth(6).unwrap().parse().unwrap();
    sectors * 512.0
}

async fn large_commits(directory: &Path, block: &FrameBuffer) -> (f64, f64) {
    let (journal, appender) = open(directory).await;
    let before = written_bytes(directory);
    let begun = Instant::now();
    for _ in 0..LARGE_COMMITS {
        let append = Append { frames: block.clone(), ..Append::default() };
        appender.append(append).await.unwrap();
    }
    let elapsed = begun.elapsed().as_secs_f64();
    let written = written_bytes(directory) - before;
    journal.close().await.unwrap();
    let stored = std::fs::metadata(directory.join("journal.db")).unwrap().len() as f64;
    ((LARGE_COMMITS * block.len()) as f64 / elapsed, written / stored)
}

/// Flushes that the device was asked for: syncs, where it has a cache that must be told.
fn flushes(directory: &Path) -> f64 {
    use std::os::unix::fs::MetadataExt as _;

    let device = std::fs::metadata(directory).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap();
    // Kernels before 5.5 do not tell.
    text.split_whitespace().nth(15).and_then(|count| count.parse().ok()).unwrap_or(f64::NAN)
}

/// Bytes of memory that are resident now.
fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
}

fn lane_spec() -> LaneSpec {
    LaneSpec {
        agent: "bench".parse().unwrap(),
        source: "s".parse().unwrap(),
        pipeline: "p".parse().unwrap(),
        sink: "k".parse().unwrap(),
        start_now: false,
    }
}

/// The batch of a lane without transforms, from behind the last one to the head.
fn range(number: BatchNumber, first: Seq, last: Seq) -> Seal {
    let batch = StoredBatch {
        number,
        epoch: Epoch::new(1, 1),
        first_seq: first,
        last_seq: last,
        sealed_at: Timestamp(0),
        records: last.0 + 1 - first.0,
        parts: 0,
        sha256: [0; 32],
        fixed: "{}".to_owned(),
        variant: Variant::default(),
    };
    Seal {
        batch,
        dropped: 0,
        not_taken: 0,
        dead_lettered: 0,
        letters: Vec::new(),
        state: Vec::new(),
    }
}

/// What a lane's backlog of 256 MiB that does not compress takes of memory, written and then read.
async fn backlog_memory(directory: &Path) -> f64 {
    const BLOCKS: usize = 1024;
    let (journal, appender) = open(directory).await;
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let mut payload = vec![0; CHUNK_BYTES_MAX - 1000];
    fastrand::Rng::with_seed(1).fill(&mut payload);
    let mut block = FrameBuffer::default();
    block.push_new(Timestamp(0), "s", Headers::default(), &payload);
    // What every journal takes, and the newest in memory.
    for _ in 0..32 {
        appender.append(Append { frames: block.clone(), ..Append::default() }).await.unwrap();
    }
    let before = resident();
    for _ in 0..BLOCKS {
        appender.append(Append { frames: block.clone(), ..Append::default() }).await.unwrap();
    }
    let head = lane.head().borrow().seq;
    let read = tokio::task::spawn_blocking(move || {
        let mut next = Seq(1);
        while next < head {
            for block in lane.read(next).unwrap() {
                next = block.first_seq.plus(u64::from(block.count));
            }
        }
    });
    read.await.unwrap();
    let growth = resident() - before;
    journal.close().await.unwrap();
    growth
}

/// One record every 5 ms, sealed, acked one by one and remembered for `explain`, as a sensor and a fast link do. Enough of them
/// that the stop does not count.
async fn paced_records(directory: &Path) -> f64 {
    const RECORDS: u64 = 300;
    let (journal, appender) = open(directory).await;
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let before = written_bytes(directory);
    for number in 1..=RECORDS {
        let mut append = Append::default();
        push(&mut append.frames, &mut random);
        appender.append(append).await.unwrap();
        let seal = range(BatchNumber(number), Seq(number), Seq(number));
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    journal.close().await.unwrap();
    (written_bytes(directory) - before) / RECORDS as f64
}

/// Bytes written from ingest to acked, for each byte of payload: 40 batches, each appended, sealed and acked, with a stop.
async fn amplification(directory: &Path, records: usize) -> f64 {
    const BATCHES: u64 = 40;
    let (journal, appender) = open(directory).await;
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let (mut payload, mut next) = (0, Seq(1));
    let before = written_bytes(directory);
    for number in 1..=BATCHES {
        let mut left = records;
        while left > 0 {
            let mut append = Append::default();
            while left > 0 && append.frames.len() < CHUNK_BYTES_MAX - 400 {
                push(&mut append.frames, &mut random);
                left -= 1;
            }
            payload += append.frames.len();
            appender.append(append).await.unwrap();
        }
        let head = lane.head().borrow().seq;
        let seal = range(BatchNumber(number), next, head);
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
        next = head.next();
    }
    journal.close().await.unwrap();
    (written_bytes(directory) - before) / payload as f64
}

async fn one_record_commits(directory: &Path) -> (f64, f64) {
    const COMMITS: usize = 200;
    let (journal, appender) = open(directory).await;
    let mut random = fastrand::Rng::with_seed(1);
    let (before, flushes_before) = (written_bytes(directory), flushes(directory));
    for _ in 0..COMMITS {
        let mut append = Append::default();
        push(&mut append.frames, &mut random);
        appender.append(append).await.unwrap();
    }
    let written = written_bytes(directory) - before;
    let flushed = flushes(directory) - flushes_before;
    journal.close().await.unwrap();
    (written / COMMITS as f64, flushed / COMMITS as f64)
}

async fn producers(directory: &Path) -> f64 {
    const RECORDS: usize = 200;
    let (journal, appender) = open(directory).await;
    let appender = Arc::new(appender);
    let begun = Instant::now();
    let mut group = TaskGroup::default();
    for producer in 0..PRODUCERS {
        let appender = Arc::clone(&appender);
        group.spawn("producer", tracing::Span::none(), async move {
            let mut random = fastrand::Rng::with_seed(producer as u64);
            for _ in 0..RECORDS {
                let mut append = Append::default();
                push(&mut append.frames, &mut random);
                appender.append(append).await.unwrap();
            }
        });
    }
    while group.next_ended().await.is_some() {}
    let rate = (PRODUCERS * RECORDS) as f64 / begun.elapsed().as_secs_f64();
    journal.close().await.unwrap();
    rate
}

/// One record an append, handed over one after the other without waiting.
async fn one_producer(directory: &Path) -> f64 {
    const RECORDS: usize = 100_000;
    let (journal, appender) = open(directory).await;
    let mut random = fastrand::Rng::with_seed(1);
    let mut one = FrameBuffer::default();
    push(&mut one, &mut random);
    let begun = Instant::now();
    let mut last = None;
    for _ in 0..RECORDS {
        let append = Append { frames: one.clone(), ..Append::default() };
        last = Some(appender.submit(append).await.unwrap());
    }
    last.unwrap().durable().await.unwrap();
    let rate = RECORDS as f64 / begun.elapsed().as_secs_f64();
    journal.close().await.unwrap();
    rate
}

async fn reading(directory: &Path, block: &FrameBuffer) -> f64 {
    let (journal, appender) = open(directory).await;
    for _ in 0..LARGE_COMMITS {
        let append = Append { frames: block.clone(), ..Append::default() };
        drop(appender.submit(append).await.unwrap());
    }
    appender.append(Append { frames: frames(1, 1), ..Append::default() }).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let head = lane.head().borrow().seq;
    let reader = lane.clone();
    let read = tokio::task::spawn_blocking(move || {
        let mut rate = 0.0;
        // The second pass is the warm one.
        for _ in 0..2 {
            let begun = Instant::now();
            let (mut next, mut records) = (Seq(1), 0_u32);
            while next < head {
                for block in reader.read(next).unwrap() {
                    for record in block.records() {
                        records += u32::from(!record.unwrap().payload.is_empty());
                    }
                    next = block.first_seq.plus(u64::from(block.count));
                }
            }
            rate = f64::from(records) / begun.elapsed().as_secs_f64();
        }
        rate
    });
    let rate = read.await.unwrap();
    journal.close().await.unwrap();
    rate
}
