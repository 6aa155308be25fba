//! A volume without room: a salvage that cannot end leaves everything as it was, and a later one ends.

use super::super::super::tests::vfs::{Disk, Failure, Fault, Kind};
use super::*;

const RECORDS_FEW: u64 = 1000;

/// A journal of [`RECORDS_FEW`] records, a batch in parts among them, as a killed agent leaves it, without its first page.
async fn headless() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    append(&appender, 1, RECORDS_FEW).await;
    journal.lane(spec("all")).await.unwrap();
    let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
    seal(&lane, opened.next_batch, opening.epoch, (1, 200), true).await;
    journal.close().await.unwrap();
    let (journal, _) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    append(&appender, RECORDS_FEW + 1, RECORDS_FEW + 100).await;
    let headless = copy(dir.path());
    let mut database = fs::read(headless.path().join("journal.db")).unwrap();
    database[..100].fill(0);
    fs::write(headless.path().join("journal.db"), database).unwrap();
    headless
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_at_any_write_everything_stays_as_it_was_and_a_later_salvage_ends() {
    let base = headless().await;
    let (mut waited, mut swapped) = (0, 0);
    for nth in 1.. {
        assert!(nth < 5_000, "the writes have no end");
        let at = copy(base.path());
        let before = files(at.path());
        let disk = Disk::watch(at.path());
        let failure = if nth % 2 == 0 { Failure::Full } else { Failure::Short };
        disk.arm(Fault { kind: Kind::Write, nth, failure, persistent: true });
        let opened = Journal::open(&options(at.path()));
        let met = disk.disarm() > 0;
        match opened {
            Err(error @ JournalError::NoRoomToSalvage { .. }) => {
                waited += 1;
                assert!(met && error.is_full() && error.disposition() == Disposition::Retry);
                let text = error.to_string();
                assert!(text.contains("was not touched") && text.contains("free "), "{text}");
                assert!(files(at.path()) == before, "write {nth}: the damaged files were altered");
                assert!(!at.path().join(WHOLE_NAME).exists(), "write {nth}");
            }
            // The opening of the new one found no room.
            Err(error) => {
                swapped += 1;
                assert!(met, "write {nth}: {error:?}");
            }
            Ok((journal, _)) => drop(journal.close().await),
        }
        assert!(!at.path().join(BUILDING_NAME).exists(), "write {nth}: it still takes room");
        let read = read_all(at.path()).await;
        assert_eq!(read.seqs.len() as u64, RECORDS_FEW + 100, "write {nth}");
        let reports = earlier_reports(at.path());
        assert_eq!(reports.len(), 1, "write {nth}: {reports:?}");
        let report = &reports[0];
        assert_eq!((report.batches, report.lost_records), (1, 0), "write {nth}: {report:?}");
        for (name, bytes) in ["journal.db", "journal.db-wal"].into_iter().zip(&before) {
            let kept = fs::read(report.kept.join(name)).unwrap();
            assert!(kept == *bytes, "write {nth}: {name} is not kept as it was");
        }
        disk.forget();
        if !met {
            eprintln!("{nth} writes: {waited} before the new database was whole, {swapped} after");
            break;
        }
    }
    assert!(waited > 3 && swapped > 0, "{waited} and {swapped}");
}
