//! The journal at its limit: who waits, who is refused, what is given up, and that it always comes back.

#![expect(
    clippy::disallowed_methods,
    reason = "other processes and threads are waited for by the real clock"
)]

use std::time::Duration;

use super::*;
use crate::clock::{Clock as _, ManualClock};
use crate::journal::config::OnFull;
use crate::units::ByteSize;

const MIB: u64 = 1024 * 1024;

pub(super) fn limited(directory: &Path, max_bytes: u64, on_full: OnFull) -> JournalOptions {
    let config = JournalConfig { max_bytes: ByteSize(max_bytes), on_full, ..Default::default() };
    JournalOptions { config, ..options(directory) }
}

/// One record that nothing compresses.
pub(super) fn noise(seed: u64, bytes: usize) -> Append {
    let mut payload = vec![0; bytes];
    fastrand::Rng::with_seed(seed).fill(&mut payload);
    let mut append = Append::default();
    append.frames.push_new(Timestamp(5), "sub", Headers::default(), &payload);
    append
}

/// Waits until the snapshot says so.
pub(super) async fn snapshot_when(
    journal: &Journal,
    what: &str,
    says: impl Fn(&Snapshot) -> bool,
) -> Snapshot {
    let mut snapshots = journal.snapshots();
    let found = snapshots.wait_for(|snapshot| says(snapshot));
    match tokio::time::timeout(Duration::from_secs(30), found).await {
        Ok(found) => Snapshot::clone(&found.unwrap()),
        Err(_) => panic!("waited for {what}: {:?}", journal.snapshots().borrow()),
    }
}

pub(super) fn disk_bytes(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).unwrap();
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

/// Appends until the journal is full; gives what was durable, and the append that waits.
async fn fill(journal: &Journal, appender: &Appender) -> (u64, Pending) {
    let mut durable = 0;
    loop {
        let pending = appender.submit(noise(durable, 20_000)).await.unwrap();
        let mut waiting = Box::pin(pending.durable());
        let full = snapshot_when(journal, "full", |s| s.quota.full.is_some());
        tokio::select! {
            result = &mut waiting => result.unwrap(),
            _ = full => break,
        }
        durable += 1;
    }
    let pending = appender.submit(noise(durable + 1, 20_000)).await.unwrap();
    (durable, pending)
}

/// Seals and acks everything that is there, as a lane without transforms does.
pub(super) async fn deliver_all(journal: &Journal) -> Vec<u64> {
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let head = lane.head().borrow().seq;
    let mut seqs = Vec::new();
    let mut next = opened.sealed_seq.next();
    while next <= head {
        for block in lane.read(next).unwrap() {
            let block = cut(block, next, head);
            seqs.extend(block.records().map(|record| record.unwrap().seq.0));
            next = next.plus(u64::from(block.take));
        }
    }
    if opened.sealed_seq < head {
        let seal = range_batch(&opened, opened.sealed_seq.0 + 1, head.0);
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    }
    seqs
}

#[tokio::test]
async fn with_block_appends_wait_and_go_on_in_order_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 4 * MIB, OnFull::Block)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let (_, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.sealed_seq, Seq(0));
    let (durable, pending) = fill(&journal, &appender).await;
    let snapshot = journal.snapshots().borrow().clone();
    let full = snapshot.quota.full.clone().unwrap();
    assert!(full.reason.contains("max_bytes = 4MiB") && full.reason.contains("wait"), "{full:?}");
    assert_eq!(appender.full().as_deref(), Some(full.reason.as_str()));
    assert!(disk_bytes(dir.path()) <= 4 * MIB + 64 * 1024, "{}", disk_bytes(dir.path()));
    assert!(durable > 50, "{durable} records of 20 kB in 4 MiB");
    // Deliveries go on, and make room; nobody has to do anything.
    let seen = deliver_all(&journal).await;
    assert_eq!(seen, (1..=durable).collect::<Vec<_>>());
    pending.durable().await.unwrap();
    snapshot_when(&journal, "room", |s| s.quota.full.is_none()).await;
    assert_eq!(appender.full(), None);
    // The one that met the limit, and the one behind it.
    assert_eq!(deliver_all(&journal).await, [durable + 1, durable + 2]);
    assert_eq!(journal.snapshots().borrow().quota.appends_refused, 0);
    journal.close().await.unwrap();
}

/// Somebody waits for an answer, and hears at once that there is no room: also behind those that wait, who lose nothing by it.
#[tokio::test]
async fn who_does_not_wait_is_refused_at_once_and_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 4 * MIB, OnFull::Block)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let other = journal.appender(&"other".parse().unwrap()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    let mut durable = 0;
    // The one that finds the journal full is refused like all behind it.
    let refused = loop {
        match appender.submit_at_once(noise(durable, 20_000)).await.unwrap().durable().await {
            Ok(()) => durable += 1,
            Err(error) => break error,
        }
    };
    let is_no_room = |error: &AppendError| {
        let AppendError::Journal { source, .. } = error else { return false };
        matches!(source, JournalError::NoRoom { why, .. } if why.contains("max_bytes = 4MiB"))
    };
    assert!(is_no_room(&refused), "{refused:?}");
    let waiting = other.submit(noise(1, 20_000)).await.unwrap();
    for _ in 0..3 {
        let refused = appender.submit_at_once(noise(durable, 20_000)).await.unwrap_err();
        assert!(is_no_room(&refused), "{refused:?}");
    }
    assert_eq!(deliver_all(&journal).await.len() as u64, durable);
    waiting.durable().await.unwrap();
    // Its session has ended with the refusal: nothing behind that may become durable.
    let ended = appender.submit_at_once(noise(0, 10)).await.unwrap().durable().await.unwrap_err();
    assert!(ended.to_string().contains("append"), "{ended}");
    let appender = journal.appender(&source()).await.unwrap();
    appender.submit_at_once(noise(0, 10)).await.unwrap().durable().await.unwrap();
    assert_eq!(deliver_all(&journal).await, [durable + 1]);
    journal.close().await.unwrap();
}

#[tokio::test]
async fn with_reject_appends_are_refused_with_the_reason_and_later_ones_taken() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 2 * MIB, OnFull::Reject)).unwrap();
    let mut appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    let mut durable = 0;
    let refused = loop {
        match appender.append(noise(durable, 20_000)).await {
            Ok(()) => durable += 1,
            Err(AppendError::Journal { source, .. }) => break source,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(matches!(&refused, JournalError::NoRoom { why, .. } if why.contains("refused")));
    assert_eq!(refused.disposition(), Disposition::Retry);
    // From now on at once, without a session that ends.
    let again = appender.submit(noise(1, 100)).await.unwrap_err();
    assert!(matches!(again, AppendError::Journal { source: JournalError::NoRoom { .. }, .. }));
    assert_eq!(deliver_all(&journal).await.len() as u64, durable);
    let begun = std::time::Instant::now();
    while appender.full().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(30), "still {:?}", appender.full());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    appender = journal.appender(&source()).await.unwrap();
    appender.append(noise(1, 20_000)).await.unwrap();
    assert_eq!(deliver_all(&journal).await, [durable + 1]);
    assert_eq!(journal.snapshots().borrow().quota.appends_refused, 1);
    journal.close().await.unwrap();
}

/// Every accepted record is accounted for.
fn sum(snapshot: &Snapshot) -> u64 {
    let lane = &snapshot.lanes[0];
    let totals = lane.totals;
    lane.queued + totals.delivered + totals.dropped + totals.dead_lettered + totals.lost
}

fn losses(directory: &Path) -> Vec<(i64, i64, String)> {
    let database = open::connect_reader(&directory.join("journal.db")).unwrap();
    let mut statement =
        database.prepare("SELECT first_seq, last_seq, why FROM losses ORDER BY id").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn drop_oldest_keeps_what_is_sealed_and_counts_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 2 * MIB, OnFull::DropOldest)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    for number in 0..5 {
        let mut append = noise(number, 20_000);
        append.positions = vec![position(&format!("p{number}"), Some("x"))];
        appender.append(append).await.unwrap();
    }
    // Sealed and not acked: the range itself is what will be sent.
    lane.seal(range_batch(&opened, 1, 5)).await.unwrap().durable().await.unwrap();
    for number in 5..200 {
        appender.append(noise(number, 20_000)).await.unwrap();
    }
    assert!(disk_bytes(dir.path()) <= 2 * MIB + 64 * 1024, "{}", disk_bytes(dir.path()));
    let sealed = &journal.lane(lane_spec()).await.unwrap().1.unacked[0];
    let mut reader = lane.open_batch(sealed);
    let mut kept = Vec::new();
    while let Some(block) = reader.next_block().unwrap() {
        kept.extend(block.records().map(|record| record.unwrap().seq.0));
    }
    assert_eq!(kept, [1, 2, 3, 4, 5]);
    journal.close().await.unwrap();

    let (journal, _) = Journal::open(&limited(dir.path(), 2 * MIB, OnFull::DropOldest)).unwrap();
    assert_eq!(sum(&journal.snapshots().borrow()), 200);
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let lost = opened.sealed_seq.0 - 5;
    assert!((100..195).contains(&lost), "{lost}");
    assert_eq!(journal.snapshots().borrow().lanes[0].totals.lost, lost);
    let first = 6;
    assert_eq!(
        losses(dir.path()),
        [(first, first + lost.cast_signed() - 1, "drop_oldest".to_owned())]
    );
    // The positions of chunks that are gone are not.
    assert_eq!(journal.appender(&source()).await.unwrap().positions().len(), 5);
    lane.ack(&opened.unacked[0], Finish::Delivered, 1).await.unwrap();
    let seen = deliver_all(&journal).await;
    assert_eq!(seen, (opened.sealed_seq.0 + 1..=200).collect::<Vec<_>>());
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!((sum(&snapshot), snapshot.lanes[0].queued), (200, 0));
}

#[tokio::test]
async fn a_lane_that_is_overtaken_hears_so_and_goes_on_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), 2 * MIB, OnFull::DropOldest)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    for number in 0..200 {
        appender.append(noise(number, 20_000)).await.unwrap();
    }
    let read = lane.read(Seq(1)).unwrap_err();
    assert!(read.is_overtaken(), "{read}");
    let sealed = lane.seal(range_batch(&opened, 1, 10)).await.unwrap().durable().await.unwrap_err();
    assert!(sealed.is_overtaken() && sealed.disposition() == Disposition::Retry, "{sealed}");
    let seen = deliver_all(&journal).await;
    assert_eq!(seen, (lane.floor().0 + 1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn one_that_never_fits_is_refused_whatever_the_policy() {
    for on_full in [OnFull::Block, OnFull::Reject, OnFull::DropOldest] {
        let dir = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(&limited(dir.path(), MIB, on_full)).unwrap();
        let appender = journal.appender(&source()).await.unwrap();
        let refused = appender.append(noise(1, 900_000)).await.unwrap_err();
        let AppendError::Journal { source: JournalError::NoRoom { why, .. }, .. } = refused else {
            panic!("{refused}")
        };
        assert!(why.contains("max_bytes leaves"), "{why}");
        let appender = journal.appender(&source()).await.unwrap();
        appender.append(noise(1, 1000)).await.unwrap();
        journal.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_least_limit_serves_several_streams_of_large_chunks_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&limited(dir.path(), MIB, OnFull::Block)).unwrap();
    for round in 0..12 {
        let source: SourceId = format!("s{}", round % 3).parse().unwrap();
        let appender = journal.appender(&source).await.unwrap();
        let spec = LaneSpec { source: source.clone(), ..lane_spec() };
        let (lane, _) = journal.lane(spec.clone()).await.unwrap();
        let pending = appender.submit(noise(round, 150_000)).await.unwrap();
        let durable = tokio::time::timeout(Duration::from_secs(20), pending.durable());
        durable.await.expect("newest chunks that were passed make room").unwrap();
        let (_, opened) = journal.lane(spec).await.unwrap();
        let head = lane.head().borrow().seq;
        let (lane, _) = journal.lane(LaneSpec { source, ..lane_spec() }).await.unwrap();
        let seal = range_batch(&opened, opened.sealed_seq.0 + 1, head.0);
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    }
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let heads: Vec<_> = journal.snapshots().borrow().streams.iter().map(|s| s.head.0).collect();
    assert_eq!(heads, [4, 4, 4]);
}

#[tokio::test]
async fn max_age_gives_up_the_old_and_believes_no_jump_of_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_800_000_000_000_000_000)));
    let config = JournalConfig { max_age: Some(Duration::from_secs(3600)), ..Default::default() };
    let aged = JournalOptions { config, clock: Arc::clone(&clock) as _, ..options(dir.path()) };
    let (journal, _) = Journal::open(&aged).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    appender.append(records(&["a", "b"])).await.unwrap();
    clock.advance(Duration::from_secs(1800));
    appender.append(records(&["c"])).await.unwrap();
    // A year forward, and the pause in which something could be given up.
    clock.step(Timestamp(clock.now().0 + 365 * 24 * 3_600_000_000_000));
    clock.advance(Duration::from_secs(2));
    appender.append(records(&["d"])).await.unwrap();
    assert_eq!(journal.snapshots().borrow().quota.dropped_aged, 0);
    clock.advance(Duration::from_secs(1799));
    let snapshot = snapshot_when(&journal, "age", |s| s.quota.dropped_aged > 0).await;
    assert_eq!((snapshot.quota.dropped_aged, snapshot.lanes[0].totals.lost), (2, 2));
    assert_eq!((snapshot.lanes[0].queued, sum(&snapshot)), (2, 4));
    assert_eq!(losses(dir.path()), [(1, 2, "max_age".to_owned())]);
    assert_eq!(deliver_all(&journal).await, [3, 4]);
    journal.close().await.unwrap();
}

#[tokio::test]
async fn a_stream_of_which_all_was_given_up_keeps_its_head_and_its_positions() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(ManualClock::new(Timestamp(1_800_000_000_000_000_000)));
    let config = JournalConfig { max_age: Some(Duration::from_secs(3600)), ..Default::default() };
    let aged = JournalOptions { config, clock: Arc::clone(&clock) as _, ..options(dir.path()) };
    let (journal, _) = Journal::open(&aged).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    journal.lane(lane_spec()).await.unwrap();
    let mut append = records(&["a", "b"]);
    append.positions = vec![position("f", Some("2"))];
    appender.append(append).await.unwrap();
    clock.advance(Duration::from_secs(3700));
    snapshot_when(&journal, "age", |s| s.quota.dropped_aged == 2).await;
    // As a kill leaves it: a clean stop would write positions down too. Nothing beside the database may be needed.
    let copy = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let killed = JournalOptions { directory: copy.path().to_owned(), ..aged };
    let (journal, opening) = Journal::open(&killed).unwrap();
    assert_eq!(opening.case, StartCase::Unclean, "{:?}", opening.salvaged);
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions()["f"], b"2");
    appender.append(records(&["c"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!((opened.sealed_seq, lane.head().borrow().seq), (Seq(2), Seq(3)));
    assert_eq!(deliver_all(&journal).await, [3]);
    journal.close().await.unwrap();
}

#[tokio::test]
async fn d_06_a_limit_below_the_backlog_starts_drains_and_takes_records_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut accepted = 0;
    let mut seed = 0;
    // Stopped without a word, over and over: what is reported is what is there.
    for round in 0..20 {
        let (journal, _) = Journal::open(&limited(dir.path(), 8 * MIB, OnFull::Block)).unwrap();
        let appender = journal.appender(&source()).await.unwrap();
        journal.lane(lane_spec()).await.unwrap();
        let snapshot = snapshot_when(&journal, "the lane", |s| !s.lanes.is_empty()).await;
        assert_eq!(sum(&snapshot), accepted, "round {round}");
        assert!(snapshot.quota.used_bytes <= 8 * MIB, "{snapshot:?}");
        for _ in 0..10 {
            appender.append(noise(seed, 30_000)).await.unwrap();
            seed += 1;
            accepted += 1;
        }
        if round == 3 || round == 10 {
            deliver_all(&journal).await;
        }
        drop((journal, appender));
        wait_for_unlock(dir.path());
    }
    let (journal, _) = Journal::open(&limited(dir.path(), MIB, OnFull::Block)).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!(sum(&snapshot), accepted);
    assert!(snapshot.lanes[0].queued >= 60, "{}", snapshot.lanes[0].queued);
    let pending = appender.submit(noise(seed, 20_000)).await.unwrap();
    let full = snapshot_when(&journal, "full", |s| s.quota.full.is_some()).await;
    assert!(full.quota.full.unwrap().reason.contains("max_bytes = 1MiB"));
    let queued = snapshot.lanes[0].queued;
    assert_eq!(deliver_all(&journal).await.len() as u64, queued);
    pending.durable().await.unwrap();
    assert_eq!(deliver_all(&journal).await, [accepted + 1]);
    let empty = snapshot_when(&journal, "empty", |s| s.lanes[0].totals.delivered > accepted).await;
    assert_eq!(sum(&empty), accepted + 1);
    journal.close().await.unwrap();
}

/// The writer thread of a journal that was dropped ends by itself.
pub(super) fn wait_for_unlock(directory: &Path) {
    let begun = std::time::Instant::now();
    while matches!(open::lock_directory(directory), Err(JournalError::Locked { .. })) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the directory stays locked");
        std::thread::sleep(Duration::from_millis(5));
    }
}
