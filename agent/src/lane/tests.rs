//! Lanes on a real journal, with a sink that follows a script.

mod clocks;
mod delivery;
mod orders;
mod replays;
mod world;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use async_trait::async_trait;

use super::*;
use crate::clock::{SystemClock, Timestamp};
use crate::journal::config::JournalConfig;
use crate::journal::{Append, Appender, JournalOptions};
use crate::record::Headers;
use crate::record::batch::{BatchFacts, SealedBatch};
use crate::record::id::write_record_identity;
use crate::sinks::config::GiveUp;
use crate::sinks::{Class, Delivered, Sink, SinkError};
use crate::tasks::TaskGroup;
use crate::units::ByteSize;

/// What one attempt brought: batch identity, and identity and payload of its records.
type Attempt = (String, Vec<(String, String)>);

/// Answers attempts and probes in order; when the script is over, everything succeeds.
#[derive(Debug, Default)]
struct Script {
    attempts: Mutex<VecDeque<Class>>,
    probes: Mutex<VecDeque<Class>>,
    seen: Mutex<Vec<Attempt>>,
    probed: Mutex<usize>,
}

#[derive(Debug, Clone)]
struct ScriptedSink(Arc<Script>);

impl SinkBuilder for ScriptedSink {
    fn kind(&self) -> &'static str {
        "scripted"
    }

    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        Ok(facts.identity().into())
    }

    fn takes(&self, _fixed: &str) -> bool {
        true
    }

    fn build(&self) -> Box<dyn Sink> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Sink for ScriptedSink {
    async fn deliver(&mut self, batch: &SealedBatch, _: u32) -> Result<Delivered, SinkError> {
        let (records, sha256) = read(batch).await;
        assert_eq!(sha256, batch.sha256, "what is read back is what was sealed");
        assert_eq!(&*batch.fixed, batch.facts.identity());
        let count = records.len() as u64;
        assert_eq!(count, batch.facts.records);
        self.0.seen.lock().unwrap().push((batch.facts.identity(), records));
        match self.0.attempts.lock().unwrap().pop_front() {
            Some(class) => Err(SinkError::new(class, "scripted")),
            None => Ok(Delivered { records: count, ..Delivered::default() }),
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        *self.0.probed.lock().unwrap() += 1;
        match self.0.probes.lock().unwrap().pop_front() {
            Some(class) => Err(SinkError::new(class, "scripted")),
            None => Ok(()),
        }
    }
}

/// The records of a batch, and the hash over them.
async fn read(batch: &SealedBatch) -> (Vec<(String, String)>, [u8; 32]) {
    let content = Arc::clone(&batch.content);
    let lane = batch.facts.place.lane.clone();
    let read = tokio::task::spawn_blocking(move || {
        let (mut reader, mut records) = (content.open(), Vec::new());
        let mut hash = crate::record::batch::ContentHash::default();
        while let Some(block) = reader.next_block().unwrap() {
            for record in block.records() {
                let record = record.unwrap();
                let mut identity = String::new();
                write_record_identity(&mut identity, &lane, &record);
                records.push((identity, String::from_utf8(record.payload.to_vec()).unwrap()));
                hash.update(&record);
            }
        }
        (records, hash.finish())
    });
    read.await.unwrap()
}

struct Bench {
    journal: Arc<Journal>,
    appender: Appender,
    script: Arc<Script>,
    status: Arc<LaneStatus>,
    epoch: Epoch,
}

impl Bench {
    async fn new(directory: &Path, script: Script) -> Self {
        Self::with(directory, script, JournalConfig::default()).await
    }

    async fn with(directory: &Path, script: Script, config: JournalConfig) -> Self {
        Self::clocked(directory, script, config, Arc::new(SystemClock)).await
    }

    async fn clocked(
        directory: &Path,
        script: Script,
        config: JournalConfig,
        clock: SharedClock,
    ) -> Self {
        let options = JournalOptions {
            directory: directory.to_owned(),
            config,
            agent: None,
            host: "gw".parse().unwrap(),
            clock,
        };
        let (journal, opening) = Journal::open(&options).unwrap();
        let appender = journal.appender(&"s".parse().unwrap()).await.unwrap();
        Self {
            journal: Arc::new(journal),
            appender,
            script: Arc::new(script),
            status: Arc::default(),
            epoch: opening.epoch,
        }
    }

    async fn append(&self, payloads: impl IntoIterator<Item = String>) {
        let mut append = Append::default();
        for payload in payloads {
            append.frames.push_new(Timestamp(1), "sub", Headers::default(), payload.as_bytes());
        }
        self.appender.append(append).await.unwrap();
    }

    fn parts(&self, records_max: u32) -> LaneParts {
        let (ms, backoff) = (Duration::from_millis, Backoff::new);
        LaneParts {
            spec: LaneSpec {
                agent: "gw".parse().unwrap(),
                source: "s".parse().unwrap(),
                pipeline: "p".parse().unwrap(),
                sink: "k".parse().unwrap(),
                start_now: false,
            },
            subjects: Arc::from([]),
            transforms: Vec::new(),
            sink: Arc::new(ScriptedSink(Arc::clone(&self.script))),
            batch: BatchConfig { records_max, bytes_max: ByteSize(1 << 20), linger: ms(20) },
            retry: RetryConfig {
                backoff: backoff(ms(1), ms(5), Jitter::None).unwrap(),
                attempt_timeout: ms(30_000),
                budget: ms(120_000),
                on_exhausted: GiveUp::DeadLetter,
            },
            on_conflict: GiveUp::Hold,
            storm: StormConfig::default(),
            served: Arc::default(),
            epoch: self.epoch,
            clock: Arc::new(SystemClock),
        }
    }

    /// Runs the lane until it has delivered all that is there.
    async fn drain(&self, records_max: u32) -> Vec<Attempt> {
        let control = LaneControl {
            shutdown: Shutdown::new(),
            drain: watch::channel(true).1,
            desk: Arc::default(),
        };
        let lane = run(
            self.parts(records_max),
            Arc::clone(&self.journal),
            control,
            Arc::clone(&self.status),
        );
        let end = tokio::time::timeout(Duration::from_secs(60), lane).await.unwrap();
        assert_eq!(end, LaneEnd::Drained);
        self.script.seen.lock().unwrap().drain(..).collect()
    }

    fn queued(&self) -> u64 {
        self.journal.snapshots().borrow().lanes.first().map_or(0, |lane| lane.queued)
    }
}

fn numbers(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|number| number.to_string())
}

#[tokio::test]
async fn records_go_out_in_batches_in_order_under_their_identities() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), Script::default()).await;
    bench.append(numbers(0..10)).await;
    bench.append(numbers(10..25)).await;
    let seen = bench.drain(10).await;
    let identities: Vec<_> = seen.iter().map(|(identity, _)| identity.clone()).collect();
    let batch = |number| format!("gw/s/p/k/{}/b{number}", bench.epoch);
    assert_eq!(identities, [batch(1), batch(2), batch(3)]);
    let records: Vec<_> = seen.into_iter().flat_map(|(_, records)| records).collect();
    let expected: Vec<_> =
        (0..25).map(|n| (format!("gw/s/p/k/{}/{}", bench.epoch, n + 1), n.to_string())).collect();
    assert_eq!(records, expected);
    bench.journal.close().await.unwrap();
    assert_eq!(bench.queued(), 0);
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_with_the_same_identity_and_content() {
    let dir = tempfile::tempdir().unwrap();
    let classes = [Class::Retryable, Class::Unreachable, Class::Conflict];
    let script = Script { attempts: Mutex::new(classes.into()), ..Script::default() };
    script.probes.lock().unwrap().extend([Class::Unreachable, Class::Unreachable]);
    let bench = Bench::new(dir.path(), script).await;
    bench.append(numbers(0..5)).await;
    let seen = bench.drain(3).await;
    assert_eq!(seen.len(), 5);
    assert!(seen[..4].iter().all(|attempt| *attempt == seen[0]), "{seen:?}");
    assert_eq!(*bench.script.probed.lock().unwrap(), 3);
    let failed = bench.status.counters.attempts_failed.each_ref();
    let failed = failed.map(|count| count.load(Ordering::Relaxed));
    assert_eq!(failed, [3, 1, 0, 1]);
}

#[tokio::test]
async fn what_was_sealed_before_a_stop_goes_first_and_unchanged_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let outage = Script::default();
    outage.attempts.lock().unwrap().push_back(Class::Unreachable);
    outage.probes.lock().unwrap().extend(std::iter::repeat_n(Class::Unreachable, 100_000));
    let bench = Bench::new(dir.path(), outage).await;
    bench.append(numbers(0..100)).await;
    let shutdown = Shutdown::new();
    let control = LaneControl {
        shutdown: shutdown.clone(),
        drain: watch::channel(false).1,
        desk: Arc::default(),
    };
    let mut group = TaskGroup::default();
    let (parts, journal) = (bench.parts(10), Arc::clone(&bench.journal));
    group.spawn(
        "lane",
        tracing::Span::none(),
        run(parts, journal, control, Arc::clone(&bench.status)),
    );
    let held = async {
        while *bench.script.probed.lock().unwrap() < 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), held).await.unwrap();
    assert!(matches!(bench.status.state(), LaneState::Holding { cause: "unreachable", .. }));
    shutdown.request();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Stopped));
    let before = bench.script.seen.lock().unwrap().clone();
    bench.journal.close().await.unwrap();
    let sealed = bench.journal.snapshots().borrow().lanes[0].batches;
    // Four ahead of the one under way, at most; nothing more once the lane holds.
    assert!((1..=5).contains(&sealed), "{sealed}");
    assert_eq!(bench.queued(), 100);
    drop(bench);

    let bench = Bench::new(dir.path(), Script::default()).await;
    // Other bounds now; what is sealed keeps its own.
    let seen = bench.drain(50).await;
    assert_eq!(seen[0], before[0]);
    let sizes: Vec<_> = seen.iter().map(|(_, records)| records.len()).collect();
    let sealed = usize::try_from(sealed).unwrap();
    assert!(sizes[..sealed].iter().all(|size| *size == 10), "{sizes:?}");
    let payloads: Vec<_> =
        seen.into_iter().flat_map(|(_, r)| r).map(|(_, payload)| payload).collect();
    assert_eq!(payloads, numbers(0..100).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_ends_at_its_bytes_but_takes_one_record_of_any_size() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), Script::default()).await;
    bench.append(["x".repeat(200_000)]).await;
    for _ in 0..10 {
        bench.append((0..10).map(|_| "y".repeat(20_000))).await;
    }
    bench.append(["z".repeat(3_000_000)]).await;
    bench.append(["end".to_owned()]).await;
    let seen = bench.drain(1000).await;
    let bytes: Vec<usize> =
        seen.iter().map(|(_, records)| records.iter().map(|(_, p)| p.len()).sum()).collect();
    let records: usize = seen.iter().map(|(_, records)| records.len()).sum();
    assert_eq!(records, 103);
    assert!(bytes.iter().all(|bytes| *bytes <= 1 << 20 || *bytes == 3_000_000), "{bytes:?}");
    assert!(bytes.contains(&3_000_000), "{bytes:?}");
}

#[tokio::test]
async fn lingering_gathers_and_a_full_batch_does_not_wait() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), Script::default()).await;
    let shutdown = Shutdown::new();
    let (drain, drained) = watch::channel(false);
    let control = LaneControl { shutdown, drain: drained, desk: Arc::default() };
    let mut parts = bench.parts(10);
    parts.batch.linger = Duration::from_secs(3600);
    let mut group = TaskGroup::default();
    let lane = run(parts, Arc::clone(&bench.journal), control, Arc::clone(&bench.status));
    group.spawn("lane", tracing::Span::none(), lane);
    let running = async {
        while bench.status.state() != LaneState::Running {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), running).await.unwrap();
    for part in [0..4, 4..8, 8..13] {
        bench.append(numbers(part)).await;
    }
    let full = async {
        while bench.script.seen.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), full).await.unwrap();
    drain.send_replace(true);
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    let sizes: Vec<_> = bench.script.seen.lock().unwrap().iter().map(|(_, r)| r.len()).collect();
    assert_eq!(sizes, [10, 3]);
}
