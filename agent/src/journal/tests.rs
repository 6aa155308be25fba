//! Part tests on a real database in a directory of their own.

mod drive;
mod explained;
mod faults;
mod foreign;
mod full;
mod images;
mod lane_orders;
mod letters;
mod model;
mod property;
mod replay;
mod replay_drive;
mod upgrade;
pub(super) mod vfs;

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::clock::{SystemClock, Timestamp};
use crate::limits::HOT_TAIL_BYTES_MAX;
use crate::record::Headers;
use crate::record::codec::FrameBuffer;
use crate::record::id::{BatchNumber, Seq};

fn options(directory: &Path) -> JournalOptions {
    JournalOptions {
        directory: directory.to_owned(),
        config: JournalConfig::default(),
        agent: None,
        host: "gw".parse().unwrap(),
        clock: Arc::new(SystemClock),
    }
}

fn open(directory: &Path) -> (Journal, Opening) {
    Journal::open(&options(directory)).unwrap()
}

fn source() -> SourceId {
    "s".parse().unwrap()
}

fn lane_spec() -> LaneSpec {
    LaneSpec {
        agent: "gw".parse().unwrap(),
        source: source(),
        pipeline: "p".parse().unwrap(),
        sink: "k".parse().unwrap(),
        start_now: false,
    }
}

fn records(payloads: &[&str]) -> Append {
    let mut append = Append::default();
    for payload in payloads {
        append.frames.push_new(Timestamp(5), "sub", Headers::default(), payload.as_bytes());
    }
    append
}

fn position(key: &str, value: Option<&str>) -> Position {
    Position { key: key.to_owned(), value: value.map(|text| text.as_bytes().to_vec()) }
}

fn payloads(blocks: &[crate::record::batch::FrameBlock]) -> Vec<(u64, String)> {
    let records = blocks.iter().flat_map(|block| {
        block.records().map(|record| {
            let record = record.unwrap();
            (record.seq.0, String::from_utf8(record.payload.to_vec()).unwrap())
        })
    });
    records.collect()
}

fn range_batch(opened: &OpenedLane, first: u64, last: u64) -> Seal {
    Seal {
        batch: StoredBatch {
            number: opened.next_batch,
            epoch: Epoch::new(1, 1),
            first_seq: Seq(first),
            last_seq: Seq(last),
            sealed_at: Timestamp(9),
            records: last + 1 - first,
            parts: 0,
            sha256: [1; 32],
            fixed: "{}".to_owned(),
            variant: Variant::default(),
        },
        dropped: 0,
        not_taken: 0,
        dead_lettered: 0,
        letters: Vec::new(),
        state: Vec::new(),
    }
}

/// Changes the database while no agent has it.
pub(crate) fn tamper(directory: &Path, sql: &str) {
    #[expect(clippy::disallowed_methods, reason = "the test plants a fault")]
    let database = rusqlite::Connection::open(directory.join("journal.db")).unwrap();
    database.execute_batch(sql).unwrap();
}

#[tokio::test]
async fn an_append_is_there_after_a_restart_with_seqs_and_positions() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, first) = open(dir.path());
    assert_eq!(first.case, StartCase::New);
    let appender = journal.appender(&source()).await.unwrap();
    let mut append = records(&["a", "b"]);
    append.positions = vec![position("f", Some("2")), position("g", Some("x"))];
    appender.append(append).await.unwrap();
    let mut append = records(&["c"]);
    append.positions = vec![position("f", Some("3")), position("g", None)];
    appender.append(append).await.unwrap();
    journal.close().await.unwrap();
    assert!(!dir.path().join("journal.db-wal").exists());

    let (journal, second) = open(dir.path());
    assert_eq!(second.case, StartCase::Clean);
    assert!(second.epoch > first.epoch);
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(
        appender.positions().iter().collect::<Vec<_>>(),
        [(&"f".to_owned(), &b"3".to_vec())]
    );
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.name.as_str(), "gw/s/p/k");
    appender.append(records(&["d"])).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(4));
    let read = payloads(&lane.read(Seq(1)).unwrap());
    assert_eq!(read.first(), Some(&(1, "a".to_owned())));
    let read = payloads(&lane.read(Seq(4)).unwrap());
    assert_eq!(read.last(), Some(&(4, "d".to_owned())));
}

#[tokio::test]
async fn a_killed_writer_leaves_every_acknowledged_record() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    for number in 0..20 {
        appender.append(records(&[&number.to_string()])).await.unwrap();
    }
    // As a power cut finds the files: database and WAL as they are now.
    let copy = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let (journal, opening) = open(copy.path());
    assert_eq!(opening.case, StartCase::Unclean);
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let mut next = Seq(1);
    let mut seen = Vec::new();
    while next <= lane.head().borrow().seq {
        for block in lane.read(next).unwrap() {
            next = block.first_seq.plus(u64::from(block.count));
            seen.extend(payloads(&[block]));
        }
    }
    let expected: Vec<_> = (0..20).map(|n| (n + 1, n.to_string())).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_sealed_batch_waits_for_its_ack_over_a_restart_and_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a", "b", "c"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let mut frames = FrameBuffer::default();
    for block in lane.read(Seq(1)).unwrap() {
        for record in block.records() {
            frames.push(&record.unwrap());
        }
    }
    let place =
        PartPlace { batch: opened.next_batch, epoch: opening.epoch, part: 0, first_seq: Seq(1) };
    let mut encoder = PartEncoder::default();
    lane.store_part(&mut encoder, place, 3, frames.bytes()).await.unwrap();
    let mut seal = range_batch(&opened, 1, 3);
    seal.batch.parts = 1;
    seal.batch.records = 2;
    seal.dropped = 1;
    let change = |value: &[u8]| StateChange {
        component: "clean".to_owned(),
        key: "n".to_owned(),
        value: Some(value.to_vec()),
    };
    seal.state = vec![change(b"7")];
    let sealed = seal.batch.clone();
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    journal.close().await.unwrap();

    let (journal, _) = open(dir.path());
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.unacked, std::slice::from_ref(&sealed));
    assert_eq!(opened.sealed_seq, Seq(3));
    let lane_there = journal.snapshots().borrow().lanes[0].clone();
    let waiting = journal.waiting(&lane_there).unwrap();
    assert!(waiting.bytes > 0, "its part waits, and no chunk");
    assert_eq!(waiting.oldest, Some(Timestamp(9)), "it was sealed then");
    assert_eq!(opened.plugin_state["clean"]["n"], b"7");
    let mut reader = lane.open_batch(&sealed);
    let block = reader.next_block().unwrap().unwrap();
    assert_eq!(payloads(&[block]).len(), 3);
    assert!(reader.next_block().unwrap().is_none());
    lane.ack(&sealed, Finish::Delivered, 1).await.unwrap();
    journal.close().await.unwrap();

    let (journal, _) = open(dir.path());
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!(snapshot.lanes[0].totals.delivered, 2);
    assert_eq!(snapshot.lanes[0].totals.dropped, 1);
    assert_eq!((snapshot.lanes[0].queued, snapshot.lanes[0].batches), (0, 0));
    let (_, opened) = journal.lane(lane_spec()).await.unwrap();
    assert!(opened.unacked.is_empty());
}

#[tokio::test]
async fn parts_without_a_seal_are_gone_when_the_lane_opens_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let place =
        PartPlace { batch: opened.next_batch, epoch: opening.epoch, part: 0, first_seq: Seq(1) };
    let mut encoder = PartEncoder::default();
    lane.store_part(&mut encoder, place, 1, b"frames").await.unwrap();
    let (newer, opened) = journal.lane(lane_spec()).await.unwrap();
    // The first session has ended; its seal is refused.
    let refused = lane.seal(range_batch(&opened, 1, 1)).await.unwrap().durable().await;
    assert!(matches!(refused, Err(JournalError::SessionEnded(_))), "{refused:?}");
    // A seal that counts on the discarded part does not fit.
    let mut seal = range_batch(&opened, 1, 1);
    seal.batch.parts = 1;
    let refused = newer.seal(seal).await.unwrap().durable().await;
    assert!(matches!(refused, Err(JournalError::Misfit { .. })), "{refused:?}");
    newer.seal(range_batch(&opened, 1, 1)).await.unwrap().durable().await.unwrap();
}

#[tokio::test]
async fn a_failed_commit_takes_nothing_and_nothing_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    open(dir.path()).0.close().await.unwrap();
    let fault = "CREATE TRIGGER fault BEFORE INSERT ON chunks
                 WHEN (SELECT count(*) FROM chunks) >= 2 BEGIN SELECT RAISE(ABORT, 'planted'); END";
    tamper(dir.path(), fault);
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    for payload in ["a", "b"] {
        let mut append = records(&[payload]);
        append.positions = vec![position("f", Some(payload))];
        appender.append(append).await.unwrap();
    }
    let mut append = records(&["lost"]);
    append.positions = vec![position("f", Some("lost"))];
    let first = appender.submit(append).await.unwrap();
    let second = appender.submit(records(&["behind"])).await.unwrap();
    assert!(matches!(
        first.durable().await,
        Err(AppendError::Journal { source: JournalError::Group(_), .. })
    ));
    assert!(second.durable().await.is_err());
    // The session is over, even for appends that would succeed.
    let positions_only = Append { positions: vec![position("f", Some("z"))], ..Append::default() };
    assert!(matches!(
        appender.append(positions_only).await,
        Err(AppendError::Journal { source: JournalError::SessionEnded(_), .. })
    ));
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions()["f"], b"b");
    journal.close().await.unwrap();
    tamper(dir.path(), "DROP TRIGGER fault");
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions()["f"], b"b");
    appender.append(records(&["c"])).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(3));
}

#[tokio::test]
async fn passed_chunks_are_deleted_but_the_newest_and_no_position_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    for number in 0..10 {
        let mut append = records(&["x"]);
        let (old, new) = (format!("old{number}"), number.to_string());
        append.positions = vec![position(&old, Some("kept")), position("f", Some(&new))];
        appender.append(append).await.unwrap();
    }
    let seal = range_batch(&opened, 1, 10);
    let batch = seal.batch.clone();
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    journal.close().await.unwrap();
    let count = |sql: &str| -> i64 {
        let path = dir.path().join("journal.db");
        let database = open::connect_reader(&path).unwrap();
        database.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM chunks"), 1);
    assert_eq!(count("SELECT count(*) FROM batches"), 1, "acked, for the next fold");
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions().len(), 11);
    assert_eq!(appender.positions()["f"], b"9");
    appender.append(records(&["next"])).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(11));
}

#[tokio::test]
async fn a_new_lane_misses_nothing_of_the_commit_that_it_is_made_in() {
    let dir = tempfile::tempdir().unwrap();
    // With an interval the operations below wait for each other and share a commit.
    let config = JournalConfig {
        commit_interval: std::time::Duration::from_millis(300),
        ..Default::default()
    };
    let (journal, _) = Journal::open(&JournalOptions { config, ..options(dir.path()) }).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let first = appender.submit(records(&["a"])).await.unwrap();
    let second = appender.submit(records(&["b"])).await.unwrap();
    let (_, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.sealed_seq, Seq(0));
    first.durable().await.unwrap();
    second.durable().await.unwrap();
}

#[tokio::test]
async fn of_appends_that_share_a_commit_the_last_position_counts_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    // With an interval the operations below wait for each other and share a commit.
    let config = JournalConfig {
        commit_interval: std::time::Duration::from_millis(300),
        ..Default::default()
    };
    let (journal, _) = Journal::open(&JournalOptions { config, ..options(dir.path()) }).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let mut pending = Vec::new();
    for number in 1..=3 {
        let mut append = records(&["a"]);
        append.positions = vec![position("f", Some(&number.to_string()))];
        pending.push(appender.submit(append).await.unwrap());
    }
    // One without records in the middle, and a record that moves nothing behind it.
    let positions = vec![position("f", Some("4")), position("g", Some("1"))];
    let append = Append { positions, ..Append::default() };
    pending.push(appender.submit(append).await.unwrap());
    pending.push(appender.submit(records(&["b"])).await.unwrap());
    for pending in pending {
        pending.durable().await.unwrap();
    }
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions()["f"], b"4");
    assert_eq!(appender.positions()["g"], b"1");
}

#[tokio::test]
async fn old_chunks_are_read_from_disk_and_new_ones_from_memory_alike() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let payload = "p".repeat(1000);
    let count = 3 * HOT_TAIL_BYTES_MAX / 1000;
    for _ in 0..count / 100 {
        let many: Vec<&str> = std::iter::repeat_n(payload.as_str(), 100).collect();
        appender.append(records(&many)).await.unwrap();
    }
    let head = lane.head().borrow().seq;
    for start in [1, 2, 150, head.0 - 1, head.0] {
        let blocks = lane.read(Seq(start)).unwrap();
        let block = cut(blocks[0].clone(), Seq(start), head);
        assert_eq!(payloads(&[block])[0], (start, payload.clone()), "from {start}");
    }
    assert!(matches!(lane.read(head.next()), Err(JournalError::Missing { .. })));
}

#[tokio::test]
async fn many_producers_share_commits_and_each_gets_its_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = Arc::new(journal.appender(&source()).await.unwrap());
    let mut group = crate::tasks::TaskGroup::default();
    for producer in 0..64 {
        let appender = Arc::clone(&appender);
        group.spawn("producer", tracing::Span::none(), async move {
            for _ in 0..20 {
                appender.append(records(&[&format!("p{producer}")])).await.unwrap();
            }
        });
    }
    while let Some(ended) = group.next_ended().await {
        assert!(ended.result.is_some());
    }
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(64 * 20));
    journal.close().await.unwrap();
}

#[tokio::test]
async fn a_refused_record_becomes_a_letter_with_the_position_that_passes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let letter = SourceLetter {
        reason: "too large".to_owned(),
        size_bytes: 2_000_000,
        place: "a.log:0".to_owned(),
        subject: "s".to_owned(),
        time: Timestamp(1),
        payload: b"begin".to_vec(),
    };
    let positions = vec![position("f", Some("2000001"))];
    let append = Append { positions, letters: vec![letter], ..Append::default() };
    appender.append(append).await.unwrap();
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    assert_eq!(journal.appender(&source()).await.unwrap().positions()["f"], b"2000001");
    let database = open::connect_reader(journal.path()).unwrap();
    let row: (String, i64, Vec<u8>) = database
        .query_row("SELECT stage, size_bytes, payload FROM dead_letters", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(row, ("source".to_owned(), 2_000_000, b"begin".to_vec()));
}

#[test]
fn the_second_agent_is_told_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (_journal, _) = open(dir.path());
    let refused = Journal::open(&options(dir.path())).unwrap_err();
    assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
}

#[test]
fn what_is_not_ours_or_newer_is_refused_and_untouched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal.db");
    std::fs::write(&path, b"not a database at all").unwrap();
    assert!(matches!(Journal::open(&options(dir.path())), Err(JournalError::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"not a database at all");

    std::fs::remove_file(&path).unwrap();
    tamper(dir.path(), "CREATE TABLE photos (x); PRAGMA user_version = 3");
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(Journal::open(&options(dir.path())), Err(JournalError::Foreign { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), before);

    std::fs::remove_file(&path).unwrap();
    drop(open(dir.path()));
    wait_for_lock(dir.path());
    tamper(dir.path(), "PRAGMA journal_mode = DELETE; PRAGMA user_version = 99");
    let before = std::fs::read(&path).unwrap();
    let refused = Journal::open(&options(dir.path()));
    assert!(matches!(refused, Err(JournalError::NewerSchema { found: 99, .. })));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// A dropped journal closes on its own thread; last of all it lets go of its lock.
fn wait_for_lock(directory: &Path) {
    for _ in 0..500 {
        if super::open::lock_directory(directory).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the journal did not close");
}

#[tokio::test]
async fn a_flipped_bit_in_the_wal_in_front_of_commits_is_noticed_and_what_is_behind_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    for _ in 0..10 {
        appender.append(records(&["a"])).await.unwrap();
    }
    let copy = tempfile::tempdir().unwrap();
    let mut wal = std::fs::read(dir.path().join("journal.db-wal")).unwrap();
    wal[5000] ^= 1;
    std::fs::write(copy.path().join("journal.db-wal"), &wal).unwrap();
    std::fs::copy(dir.path().join("journal.db"), copy.path().join("journal.db")).unwrap();
    let (journal, opening) = Journal::open(&options(copy.path())).unwrap();
    assert_eq!(opening.case, StartCase::Salvaged);
    let report = opening.salvaged.unwrap();
    assert!(report.cause.contains("frame 2 is broken"), "{report:?}");
    assert_eq!((report.records, report.lost_records), (10, 0), "{report:?}");
    assert_eq!(std::fs::read(report.kept.join("journal.db-wal")).unwrap(), wal);
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(10));
}

#[tokio::test]
async fn files_that_went_back_in_time_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a"])).await.unwrap();
    journal.close().await.unwrap();
    let backup = std::fs::read(dir.path().join("journal.db")).unwrap();
    let (journal, first) = open(dir.path());
    journal.appender(&source()).await.unwrap().append(records(&["b"])).await.unwrap();
    journal.close().await.unwrap();
    std::fs::write(dir.path().join("journal.db"), backup).unwrap();
    let (_journal, second) = open(dir.path());
    assert_eq!(second.case, StartCase::GoneBack);
    assert_ne!(second.epoch, first.epoch);
}

#[tokio::test]
async fn the_journal_keeps_the_agent_id_and_refuses_another() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.agent.as_str(), "gw");
    journal.close().await.unwrap();
    let other = JournalOptions { agent: Some("b".parse().unwrap()), ..options(dir.path()) };
    let refused = Journal::open(&other).unwrap_err();
    assert!(matches!(refused, JournalError::OtherAgent { .. }), "{refused}");
    let renamed_host = JournalOptions { host: "b".parse().unwrap(), ..options(dir.path()) };
    assert_eq!(Journal::open(&renamed_host).unwrap().1.agent.as_str(), "gw");
}

#[tokio::test]
async fn a_closed_journal_refuses_calmly() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    journal.close().await.unwrap();
    assert!(appender.append(records(&["a"])).await.is_err());
    assert!(lane.ack(&range_batch(&opened, 1, 1).batch, Finish::Delivered, 1).await.is_err());
    assert_eq!(opened.sealed_seq, Seq(0));
}

#[test]
fn the_bundled_sqlite_is_free_of_the_wal_reset_fault() {
    // 3.51.3 fixed it: https://sqlite.org/wal.html#walresetbug
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}
