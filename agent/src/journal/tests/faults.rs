//! Writes, syncs and reads that fail: nothing is acknowledged that is not there, and work goes on when the fault is gone.

use std::time::Duration;

use super::drive::{Driver, scratch};
use super::images::{build, seed, workload};
use super::model::{Model, View};
use super::property::size;
use super::vfs::{Disk, Failure, Fault, Kind};
use super::*;

/// Most tries until a journal without a fault must answer.
const TRIES_MAX: u32 = 20;
/// Tries to compare behind a refused operation; a journal that is held opens itself with the second.
const RECOVERY_TRIES: u32 = 3;
/// Most operations on files that a journal may need for one refused operation while everything fails: no spinning.
const OPERATIONS_MAX: u64 = 2_000;

const FAULTS: [(Kind, Failure); 8] = [
    (Kind::Write, Failure::Io),
    (Kind::Sync, Failure::Io),
    (Kind::Write, Failure::Full),
    (Kind::Sync, Failure::IoUnseen),
    (Kind::Write, Failure::Short),
    (Kind::Read, Failure::Io),
    (Kind::Truncate, Failure::Io),
    (Kind::Delete, Failure::Io),
];

/// How many operations of each kind the workload has.
async fn count_operations(run_seed: u64) -> Vec<(Kind, u64)> {
    let dir = scratch();
    let disk = Disk::watch(dir.path());
    let mut driver = Driver::new(dir.path(), JournalConfig::default(), Model::default());
    driver.open().unwrap();
    for operation in workload(run_seed, LENGTH) {
        driver.apply(&operation).await.unwrap();
        driver.settle().await.unwrap();
    }
    let counts = FAULTS.iter().map(|(kind, _)| (*kind, disk.count(*kind))).collect();
    disk.forget();
    counts
}

const LENGTH: usize = 42;

/// Opens the journal if it is not open; false when that fails, which must say something of a path.
fn is_open(driver: &mut Driver) -> bool {
    if driver.journal.is_some() {
        return true;
    }
    match driver.open() {
        Ok(()) => true,
        Err(error) => {
            let text = crate::error_chain::Chain(&error).to_string();
            assert!(text.contains("journal.db"), "{text}");
            false
        }
    }
}

/// One workload with one fault. Gives whether the fault was met.
async fn one_fault(run_seed: u64, fault: Fault) -> bool {
    let dir = scratch();
    let disk = Disk::watch(dir.path());
    let mut driver = Driver::new(dir.path(), JournalConfig::default(), Model::default());
    let clock = Arc::clone(&disk);
    driver.now = Box::new(move || clock.now());
    disk.arm(fault);
    let mut failures = 0;
    // What a refused operation left is known: the model is what the journal holds.
    let mut is_certain = true;
    for operation in workload(run_seed, LENGTH) {
        let mut tries = 0;
        loop {
            tries += 1;
            assert!(tries < TRIES_MAX, "{fault:?}: {operation:?} does not come through");
            driver.pass_time(Duration::from_secs(40));
            let refused = if !is_certain {
                "cannot be compared".to_owned()
            } else if is_open(&mut driver) {
                match attempt(&mut driver, &operation).await {
                    Ok(()) => break,
                    Err(refused) => refused,
                }
            } else {
                "cannot be opened".to_owned()
            };
            failures += 1;
            // A persistent fault is met twice, so that the journal is held, and a third time while it is.
            if failures >= 3 {
                let before = all_operations(&disk);
                let known = driver.model().streams.keys().next().cloned();
                if is_open(&mut driver)
                    && let Some(known) = known
                {
                    let journal = driver.journal.as_ref().unwrap();
                    let more = journal.appender(&known.parse().unwrap()).await;
                    if disk_is_broken(fault) {
                        assert!(more.is_err(), "{fault:?} {refused}");
                    }
                }
                let spent = all_operations(&disk) - before;
                assert!(spent < OPERATIONS_MAX, "{fault:?}: {spent} operations for nothing");
                disk.disarm();
            }
            is_certain = recover(&mut driver).await;
        }
    }
    let met = disk.disarm() > 0 || failures > 0;
    finish(&mut driver, &disk, fault).await;
    met
}

/// Whether nothing at all can be committed while the fault lasts.
fn disk_is_broken(fault: Fault) -> bool {
    fault.persistent && fault.kind == Kind::Sync
}

fn all_operations(disk: &Disk) -> u64 {
    [Kind::Read, Kind::Write, Kind::Sync].iter().map(|kind| disk.count(*kind)).sum()
}

/// Applies one operation to its end. A refused one leaves nothing in the model.
async fn attempt(driver: &mut Driver, operation: &super::drive::Operation) -> Result<(), String> {
    let result = match driver.apply(operation).await {
        Ok(()) => driver.confirm().await,
        failed => failed,
    };
    result.map_err(|error| {
        // It says more than that something failed, and never that all is well.
        let text = crate::error_chain::Chain(&*error).to_string();
        assert!(!text.is_empty());
        text
    })
}

/// Waits for a while until the journal answers and compares; what it holds then is where the workload goes on. False while a
/// persistent fault lasts: then nobody can tell yet what a refused operation left.
async fn recover(driver: &mut Driver) -> bool {
    driver.forget_sessions();
    for _ in 0..RECOVERY_TRIES {
        driver.pass_time(Duration::from_secs(40));
        if is_open(driver) && driver.compare().await.is_ok() {
            return true;
        }
    }
    false
}

/// After the fault: the journal as it runs, after a restart, and after a power cut now, holds what was acknowledged.
async fn finish(driver: &mut Driver, disk: &Disk, fault: Fault) {
    for _ in 0..TRIES_MAX {
        driver.pass_time(Duration::from_secs(40));
        if is_open(driver) && driver.compare().await.is_ok() {
            break;
        }
    }
    driver.compare().await.unwrap();
    let cut = scratch();
    let mut random = fastrand::Rng::with_seed(1);
    build(&disk.events(), disk.now(), &mut random, cut.path());
    let expected = driver.model().view();
    let (journal, _) = Journal::open(&options(cut.path())).unwrap();
    let found = View::of(&journal).await.unwrap();
    assert!(found == expected, "{fault:?}, power cut: {}", expected.differences(&found));
    driver.forget_sessions();
    driver.journal.take().unwrap().close().await.unwrap();
    driver.open().unwrap();
    driver.compare().await.unwrap();
    disk.forget();
}

#[tokio::test]
async fn no_io_fault_makes_the_journal_lie_or_stop() {
    let points = size("WAYSTATION_TEST_FAULTS", 60);
    let mut random = fastrand::Rng::with_seed(seed());
    let (mut run_seed, mut counts) = (0, Vec::new());
    let mut met = 0;
    for point in 0..points {
        if point % 60 == 0 {
            run_seed = random.u64(..);
            counts = count_operations(run_seed).await;
        }
        let place = usize::try_from(point).unwrap() % FAULTS.len();
        let (kind, failure) = FAULTS[place];
        let count = counts[place].1.max(1);
        let persistent = point / 8 % 2 == 1;
        // Evenly over the workload, each time from another point on.
        let nth = 1 + (u64::from(point / 16) * count / 4 + random.u64(..count)) % count;
        let fault = Fault { kind, nth, failure, persistent };
        eprintln!("point {point}, run {run_seed}: {fault:?}");
        met += u32::from(one_fault(run_seed, fault).await);
    }
    eprintln!("{points} points, {met} met");
    assert!(met * 2 > points, "only {met} of {points} faults were met");
}

/// A journal with one record, and the disk under it.
async fn one_record(directory: &Path) -> (Arc<Disk>, Journal, Arc<crate::clock::ManualClock>) {
    let disk = Disk::watch(directory);
    let clock = Arc::new(crate::clock::ManualClock::new(Timestamp(1)));
    let shared: crate::clock::SharedClock = Arc::clone(&clock) as _;
    let options = JournalOptions { clock: shared, ..options(directory) };
    let (journal, _) = Journal::open(&options).unwrap();
    journal.appender(&source()).await.unwrap().append(records(&["a"])).await.unwrap();
    (disk, journal, clock)
}

const FAILED_SYNC: Fault =
    Fault { kind: Kind::Sync, nth: 1, failure: Failure::Io, persistent: false };

#[tokio::test]
async fn a_new_journal_with_a_failed_sync_is_refused_or_whole() {
    let (mut refusals, mut nth) = (0, 0);
    loop {
        nth += 1;
        let dir = scratch();
        let disk = Disk::watch(dir.path());
        disk.arm(Fault { nth, ..FAILED_SYNC });
        let opened = Journal::open(&options(dir.path()));
        let met = disk.disarm() > 0;
        refusals += u32::from(opened.is_err());
        let (journal, _) = opened.or_else(|_| Journal::open(&options(dir.path()))).unwrap();
        journal.appender(&source()).await.unwrap().append(records(&["a"])).await.unwrap();
        let (lane, _) = journal.lane(lane_spec()).await.unwrap();
        assert_eq!(payloads(&lane.read(Seq(1)).unwrap()), [(1, "a".to_owned())], "sync {nth}");
        // Through a connection of its own, where the newest record comes from memory.
        View::of(&journal).await.unwrap();
        journal.close().await.unwrap();
        disk.forget();
        if !met {
            break;
        }
    }
    assert!(refusals >= 3, "{refusals} of {nth} failed syncs were told");
}

#[tokio::test]
async fn after_a_failed_sync_the_files_are_opened_anew_and_the_refused_record_is_not_there() {
    for failure in [Failure::Io, Failure::IoUnseen] {
        after_a_failed_sync(failure).await;
    }
}

async fn after_a_failed_sync(failure: Failure) {
    let dir = scratch();
    let (disk, journal, _) = one_record(dir.path()).await;
    let appender = journal.appender(&source()).await.unwrap();
    let opened = disk.opened("journal.db");
    disk.arm(Fault { failure, ..FAILED_SYNC });
    let refused = appender.append(records(&["refused"])).await.unwrap_err();
    let text = crate::error_chain::Chain(&refused).to_string();
    assert!(
        text.contains("source \"s\"") && text.contains("while committing: disk I/O error"),
        "{text}"
    );
    assert!(disk.opened("journal.db") > opened, "the old connection is still in use");
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["b"])).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    let expected = [(1, "a".to_owned()), (2, "b".to_owned())];
    assert_eq!(payloads(&lane.read(Seq(1)).unwrap()), expected);
    // From the disk too, as it is after a power cut.
    let cut = scratch();
    build(&disk.events(), disk.now(), &mut fastrand::Rng::with_seed(3), cut.path());
    let (journal, _) = open(cut.path());
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(payloads(&lane.read(Seq(1)).unwrap()), expected);
    disk.forget();
}

#[tokio::test]
async fn a_second_failed_sync_holds_the_journal_until_it_can_be_opened_anew() {
    let dir = scratch();
    let (disk, journal, clock) = one_record(dir.path()).await;
    // Each fails once: opening anew succeeds in between.
    disk.arm(FAILED_SYNC);
    journal.appender(&source()).await.unwrap().append(records(&["refused"])).await.unwrap_err();
    disk.arm(FAILED_SYNC);
    journal.appender(&"new".parse().unwrap()).await.unwrap_err();
    // Refused at once, by name, without touching a file.
    let before = all_operations(&disk);
    let begun = tokio::time::Instant::now();
    for _ in 0..100 {
        let refused = journal.appender(&source()).await.unwrap_err();
        let text = crate::error_chain::Chain(&refused).to_string();
        assert!(text.contains("is held after 2 failures in a row"), "{text}");
        assert_eq!(refused.disposition(), Disposition::Retry);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(all_operations(&disk), before);
    let shown = journal.snapshots().borrow().streams.len();
    assert_eq!(shown, 1, "a source that was refused is shown");
    disk.disarm();
    journal.appender(&source()).await.unwrap_err();
    clock.advance(Duration::from_secs(40));
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["b"])).await.unwrap();
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(2));
    journal.close().await.unwrap();
    disk.forget();
}
