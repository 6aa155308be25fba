//! Rows of batches that are acked, in a journal that is salvaged: neither lost nor sent again.

use super::*;

/// A journal whose lane `range` has 5 acked batches with their rows still there, and one that waits; `all` needs nothing.
async fn acked_and_waiting() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, mut opened) = journal.lane(spec("range")).await.unwrap();
    for round in 0..6 {
        let (first, last) = (round * RECORDS_A_CHUNK + 1, (round + 1) * RECORDS_A_CHUNK);
        append(&appender, first, last).await;
        let batch = seal(&lane, opened.next_batch, opening.epoch, (first, last), false).await;
        if round < 5 {
            lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
        }
        opened.next_batch = BatchNumber(batch.number.0 + 1);
    }
    journal.close().await.unwrap();
    let database = open::connect_bystander(&dir.path().join("journal.db")).unwrap();
    let count = |sql: &str| database.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM batches"), 6);
    assert!(count("SELECT count(*) FROM chunks") < 3, "what was delivered is gone");
    dir
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_that_are_acked_while_their_rows_are_there_are_neither_lost_nor_sent_again() {
    let base = acked_and_waiting().await;
    // Damage elsewhere; and a list of acked batches that is not what was written: the high-water file knows them too.
    for planted in ["UPDATE meta SET value = value", "UPDATE lanes SET acked = x'0700010299'"] {
        let dir = copy(base.path());
        crate::journal::tests::tamper(dir.path(), planted);
        fs::write(dir.path().join("journal.damaged"), "planted").unwrap();
        let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
        let report = opening.salvaged.unwrap();
        let outcome = (report.lost_records, report.cut_again.len(), report.batches);
        assert_eq!(outcome, (0, 0, 1), "{planted}: {report:?}");
        let (_, opened) = journal.lane(spec("range")).await.unwrap();
        let numbers: Vec<_> = opened.unacked.iter().map(|batch| batch.number.0).collect();
        assert_eq!(numbers, [6], "{planted}");
        let totals = journal.snapshots().borrow().lanes[0].totals;
        assert_eq!((totals.delivered, totals.lost), (5 * RECORDS_A_CHUNK, 0), "{planted}");
        journal.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_acked_batches_that_is_not_what_was_written_is_damage() {
    let dir = acked_and_waiting().await;
    crate::journal::tests::tamper(dir.path(), "UPDATE lanes SET acked = x'0700010299'");
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    assert!(opening.salvaged.unwrap().cause.contains("acked batches of lane number 1"));
    journal.close().await.unwrap();
}
