//! Other processes at the database, the WAL and its cap, and the file that becomes small again.

#![expect(
    clippy::disallowed_methods,
    reason = "other processes and threads are waited for by the real clock"
)]

use std::time::Duration;

use rusqlite::Connection;

use super::full::{deliver_all, disk_bytes, limited, noise, snapshot_when, wait_for_unlock};
use super::*;
use crate::journal::budget::Budget;
use crate::journal::config::OnFull;

const MIB: u64 = 1024 * 1024;

/// A connection that is none of the agent's.
fn foreign(directory: &Path) -> Connection {
    Connection::open(directory.join("journal.db")).unwrap()
}

fn wal_bytes(directory: &Path) -> u64 {
    std::fs::metadata(directory.join("journal.db-wal")).map_or(0, |file| file.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn d_07_the_wal_keeps_its_cap_while_our_own_readers_read() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 16 * MIB, OnFull::DropOldest)).unwrap();
    let usual = Budget::new(16 * MIB, u64::MAX).wal_usual();
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    appender.append(noise(0, 20_000)).await.unwrap();
    let mut readers = tokio::task::JoinSet::new();
    let stop = crate::tasks::Shutdown::new();
    for reader in 0..3_u64 {
        let (lane, stop) = (lane.clone(), stop.clone());
        readers.spawn_blocking(move || {
            let mut random = fastrand::Rng::with_seed(reader);
            while !stop.is_requested() {
                let head = lane.head().borrow().seq.0;
                let floor = lane.floor().0.min(head - 1);
                // What was dropped meanwhile is an answer too.
                let _read = lane.read(Seq(random.u64(floor + 1..=head)));
            }
        });
    }
    let mut largest = 0;
    for number in 0..700 {
        appender.append(noise(number, 40_000)).await.unwrap();
        largest = largest.max(wal_bytes(dir.path()));
    }
    stop.request();
    while readers.join_next().await.is_some() {}
    assert!(largest <= usual + 2 * MIB, "{largest} of {usual}");
    assert!(disk_bytes(dir.path()) <= 18 * MIB, "{}", disk_bytes(dir.path()));
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!(snapshot.quota.checkpoint_blocked, Duration::ZERO);
    journal.close().await.unwrap();
}

/// What piles up while the writer cannot write is written together.
#[tokio::test(flavor = "multi_thread")]
async fn small_appends_that_wait_share_their_commits() {
    const APPENDS: u64 = 250;
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(noise(0, 200)).await.unwrap();
    let before = snapshot_when(&journal, "the first commit", |s| s.streams[0].head.0 == 1).await;
    let lock = foreign(dir.path());
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut pending = Vec::new();
    for number in 1..=APPENDS {
        pending.push(appender.submit(noise(number, 200)).await.unwrap());
    }
    lock.execute_batch("COMMIT").unwrap();
    for pending in pending {
        pending.durable().await.unwrap();
    }
    let after =
        snapshot_when(&journal, "the last commit", |s| s.streams[0].head.0 == 1 + APPENDS).await;
    // The one that met the lock, and the rest.
    let commits = after.commits - before.commits;
    assert!(commits <= 3, "{commits} commits");
    journal.close().await.unwrap();
}

/// A record is appended and all of the WAL can be moved and begun anew: nobody is in the middle of reading.
async fn nobody_reads(appender: &Appender, database: &Connection, place: &str) {
    appender.append(noise(1, 2_000)).await.unwrap();
    let busy: i64 =
        database.query_row("PRAGMA wal_checkpoint(RESTART)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0, "a read transaction is open {place}");
}

#[tokio::test(flavor = "multi_thread")]
async fn d_07_no_reader_of_ours_keeps_a_transaction_from_one_read_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    // Each is a chunk of its own; together they are more than what stays in memory.
    for number in 0..12 {
        appender.append(noise(number, 250_000)).await.unwrap();
    }
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let seal = range_batch(&opened, 1, 8);
    let batch = seal.batch.clone();
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    let database = foreign(dir.path());
    database.busy_timeout(Duration::from_millis(500)).unwrap();

    lane.read(Seq(9)).unwrap();
    nobody_reads(&appender, &database, "behind a read of a lane").await;
    let mut content = lane.open_batch(&batch);
    let mut blocks = 0;
    while content.next_block().unwrap().is_some() {
        blocks += 1;
        nobody_reads(&appender, &database, "between blocks of a batch").await;
    }
    assert!(blocks > 1, "{blocks}");
    journal.letters(&LettersFilter { limit: 10, ..Default::default() }).unwrap();
    journal.letter(1).unwrap();
    nobody_reads(&appender, &database, "behind a look at dead letters").await;

    let inspection = inspect::Inspection::open(dir.path()).unwrap();
    nobody_reads(&appender, &database, "behind the opening of an inspection").await;
    inspection.info().unwrap();
    nobody_reads(&appender, &database, "behind an inspection's overview").await;
    let probe = |place: &str| {
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| {
            runtime.block_on(nobody_reads(&appender, &database, place));
        });
    };
    let mut looks = 0;
    inspection
        .verify(false, |_| {
            looks += 1;
            probe("while verifying");
        })
        .unwrap();
    let stream = inspection.lane("gw/s/p/k").unwrap().unwrap().stream();
    inspection
        .each_chunk::<JournalError>(stream, Seq(1), |block| {
            looks += 1;
            probe("while chunks are exported");
            Ok(block?.first_seq < Seq(12))
        })
        .unwrap();
    let lane = inspection.lane("gw/s/p/k").unwrap().unwrap();
    inspection
        .each_batch_block(&lane, &lane.batches[0], |_| {
            looks += 1;
            probe("while a batch is exported");
        })
        .unwrap();
    assert!(looks > 20, "{looks}");
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d_07_a_foreign_reader_is_reported_counts_against_the_limit_and_is_got_over() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 16 * MIB, OnFull::Block)).unwrap();
    let usual = Budget::new(16 * MIB, u64::MAX).wal_usual();
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    appender.append(noise(0, 20_000)).await.unwrap();
    let reader = foreign(dir.path());
    reader.execute_batch("BEGIN; SELECT count(*) FROM chunks").unwrap();
    // Everything is delivered at once, so that only the WAL fills the journal.
    let mut number = 1;
    let mut waiting = loop {
        let pending = appender.submit(noise(number, 100_000)).await.unwrap();
        number += 1;
        let mut waiting = Box::pin(pending.durable());
        let full = snapshot_when(&journal, "full", |s| s.quota.full.is_some());
        tokio::select! {
            result = &mut waiting => result.unwrap(),
            _ = full => break waiting,
        }
        deliver_all(&journal).await;
        assert!(number < 1000, "the WAL does not count: {}", wal_bytes(dir.path()));
    };
    assert!(disk_bytes(dir.path()) <= 18 * MIB, "{}", disk_bytes(dir.path()));
    let snapshot =
        snapshot_when(&journal, "the report", |s| !s.quota.checkpoint_blocked.is_zero()).await;
    let reason = snapshot.quota.full.unwrap().reason;
    assert!(reason.contains("the WAL has grown") && reason.contains("reader"), "{reason}");
    reader.execute_batch("COMMIT").unwrap();
    let released = std::time::Instant::now();
    tokio::time::timeout(Duration::from_secs(10), &mut waiting).await.unwrap().unwrap();
    snapshot_when(&journal, "room", |s| {
        s.quota.full.is_none() && s.quota.checkpoint_blocked.is_zero() && s.wal_bytes <= usual
    })
    .await;
    assert!(released.elapsed() < Duration::from_secs(10), "{:?}", released.elapsed());
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d_07_a_foreign_lock_is_reported_and_waited_for_and_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a"])).await.unwrap();
    let other = foreign(dir.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let pending = appender.submit(records(&["b"])).await.unwrap();
    let snapshot = snapshot_when(&journal, "the lock", |s| !s.quota.write_blocked.is_zero()).await;
    assert_eq!(snapshot.quota.trouble().unwrap().0, "locked");
    other.execute_batch("COMMIT").unwrap();
    pending.durable().await.unwrap();
    snapshot_when(&journal, "its end", |s| s.quota.write_blocked.is_zero()).await;
    // A lock that stays does not keep the agent from stopping; what was not written is refused.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let pending = appender.submit(records(&["c"])).await.unwrap();
    snapshot_when(&journal, "the lock", |s| !s.quota.write_blocked.is_zero()).await;
    let begun = std::time::Instant::now();
    drop(journal.close().await);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    pending.durable().await.unwrap_err();
    other.execute_batch("ROLLBACK").unwrap();
    wait_for_unlock(dir.path());
    let (journal, _) = open(dir.path());
    assert_eq!(journal.snapshots().borrow().streams[0].head, Seq(2));
}

/// Not a test of its own: the next one starts it as another process.
#[test]
#[ignore = "the other process of the next test"]
fn hold_a_read_transaction_for_the_parent() {
    let Ok(directory) = std::env::var("WAYSTATION_TEST_HOLD") else { return };
    let reader = foreign(Path::new(&directory));
    reader.execute_batch("BEGIN; SELECT count(*) FROM chunks").unwrap();
    std::fs::write(Path::new(&directory).join("held"), "").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

#[tokio::test]
async fn a_process_that_holds_a_lock_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    journal.appender(&source()).await.unwrap().append(records(&["a"])).await.unwrap();
    let path = dir.path().join("journal.db");
    assert_eq!(checkpoint::holders(&path), Vec::<u32>::new());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored"])
        .arg("journal::tests::foreign::hold_a_read_transaction_for_the_parent")
        .env("WAYSTATION_TEST_HOLD", dir.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let begun = std::time::Instant::now();
    while !dir.path().join("held").exists() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    let expected = [child.id()];
    // The kernel's list may leave one out while it changes.
    let mut found = checkpoint::holders(&path);
    while found != expected && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
        found = checkpoint::holders(&path);
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    if std::fs::read_to_string("/proc/locks").is_ok_and(|text| text.contains("POSIX")) {
        assert_eq!(found, expected);
    } else {
        eprintln!("skipped: this kernel shows no locks in /proc/locks");
    }
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn d_08_checkpoints_forced_every_5_ms_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = Arc::new(journal.appender(&source()).await.unwrap());
    let stop = crate::tasks::Shutdown::new();
    let (path, stopped) = (dir.path().to_owned(), stop.clone());
    // The old fault needed two connections, one that writes and one that checkpoints, at the same instant.
    let forcing = tokio::task::spawn_blocking(move || {
        let other = foreign(&path);
        let mut done = 0;
        while done < 60 {
            let mode = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][done % 4];
            let pragma = format!("PRAGMA wal_checkpoint({mode})");
            // One that finds the writer at work is busy, which is an answer.
            drop(other.query_row(&pragma, [], |row| row.get::<_, i64>(0)));
            done += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        stopped.request();
    });
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4_u64 {
        let (appender, stop) = (Arc::clone(&appender), stop.clone());
        writers.spawn(async move {
            let mut written = 0;
            while !stop.is_requested() {
                appender.append(noise(writer * 100_000 + written, 3000)).await.unwrap();
                written += 1;
            }
            written
        });
    }
    let mut written = 0;
    while let Some(ended) = writers.join_next().await {
        written += ended.unwrap();
    }
    forcing.await.unwrap();
    eprintln!("{written} records");
    let seen = deliver_all(&journal).await;
    assert!(seen == (1..=written).collect::<Vec<_>>(), "{} of {written}", seen.len());
    journal.close().await.unwrap();
    let check: String =
        foreign(dir.path()).query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

#[tokio::test]
async fn d_04_a_position_is_never_ahead_of_its_lines_whatever_a_crash_leaves() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 2 * MIB, OnFull::DropOldest)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    let mut accepted = 0;
    for copy_number in 0..60 {
        let mut last = None;
        for _ in 0..random.u64(1..6) {
            accepted += 1;
            let mut append = noise(accepted, random.usize(10..9000));
            append.positions = vec![position("f", Some(&accepted.to_string()))];
            last = Some(appender.submit(append).await.unwrap());
        }
        last.unwrap().durable().await.unwrap();
        // As a crash leaves it: the files of this moment, the WAL's tail cut or spoilt behind any byte.
        let copy = tempfile::tempdir().unwrap();
        let database = std::fs::read(dir.path().join("journal.db")).unwrap();
        let mut wal = std::fs::read(dir.path().join("journal.db-wal")).unwrap();
        let filled = wal.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        let keeps = random.usize(filled.saturating_sub(6000).max(1)..=filled);
        wal.truncate(keeps);
        if copy_number % 3 == 0 {
            wal.extend((0..random.usize(0..5000)).map(|_| random.u8(..)));
        }
        std::fs::write(copy.path().join("journal.db"), database).unwrap();
        std::fs::write(copy.path().join("journal.db-wal"), wal).unwrap();
        let opened = Journal::open(&limited(copy.path(), 2 * MIB, OnFull::DropOldest));
        // More than one commit torn off is damage, which is another story.
        let Ok((crashed, _)) = opened else { continue };
        let appender = crashed.appender(&source()).await.unwrap();
        let head = crashed.snapshots().borrow().streams[0].head.0;
        let stored = appender.positions().get("f").map_or("0", |at| str::from_utf8(at).unwrap());
        assert_eq!(stored, head.to_string(), "copy {copy_number} of {accepted} records");
        crashed.close().await.unwrap();
    }
    journal.close().await.unwrap();
}

#[tokio::test]
async fn the_file_is_small_again_after_a_backlog_and_everything_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(crate::clock::ManualClock::new(Timestamp(1_800_000_000_000_000_000)));
    let idle = JournalOptions { clock: Arc::clone(&clock) as _, ..options(dir.path()) };
    let (journal, _) = Journal::open(&idle).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    let mut append = noise(0, 100);
    append.positions = vec![position("f", Some("here"))];
    appender.append(append).await.unwrap();
    for number in 0..300 {
        drop(appender.submit(noise(number, 200_000)).await.unwrap());
    }
    appender.append(noise(1, 100)).await.unwrap();
    assert_eq!(deliver_all(&journal).await.len(), 302);
    let large = snapshot_when(&journal, "the backlog", |s| s.database_bytes > 40 * MIB).await;
    let mut snapshots = journal.snapshots();
    let small = loop {
        let changed = snapshots.wait_for(|snapshot| snapshot.database_bytes < 2 * MIB);
        match tokio::time::timeout(Duration::from_secs(2), changed).await {
            Ok(small) => break Snapshot::clone(&small.unwrap()),
            // It was not idle for long enough yet.
            Err(_) => clock.advance(Duration::from_secs(3600)),
        }
    };
    assert_eq!(small.lanes[0].totals.delivered, 302);
    assert_eq!(small.streams, large.streams);
    assert!(!dir.path().join("journal.db.new").exists());
    // It goes on in the new file, with readers that see it.
    appender.append(noise(2, 100)).await.unwrap();
    assert_eq!(deliver_all(&journal).await, [303]);
    journal.close().await.unwrap();
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.case, StartCase::Clean);
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!((snapshot.streams[0].head, snapshot.lanes[0].totals.delivered), (Seq(303), 303));
    assert_eq!(journal.appender(&source()).await.unwrap().positions()["f"], b"here");
}

#[tokio::test]
async fn a_start_gives_space_back_but_not_under_a_foreign_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    for number in 0..300 {
        drop(appender.submit(noise(number, 200_000)).await.unwrap());
    }
    appender.append(noise(1, 100)).await.unwrap();
    deliver_all(&journal).await;
    snapshot_when(&journal, "the deletes", |s| s.quota.used_bytes < 30 * MIB).await;
    journal.close().await.unwrap();
    let size = || std::fs::metadata(dir.path().join("journal.db")).unwrap().len();
    let large = size();
    assert!(large > 40 * MIB);
    let reader = foreign(dir.path());
    reader.execute_batch("BEGIN; SELECT count(*) FROM chunks").unwrap();
    let (journal, _) = open(dir.path());
    assert_eq!(size(), large, "the file was taken from under a reader");
    drop(reader);
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    assert!(size() < 2 * MIB, "{}", size());
    assert_eq!(journal.snapshots().borrow().lanes[0].totals.delivered, 301);
    // And it works.
    journal.appender(&source()).await.unwrap().append(records(&["a"])).await.unwrap();
    assert_eq!(deliver_all(&journal).await, [302]);
}
