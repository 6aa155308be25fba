//! Cursors, batches and counts of a lane in a journal that is salvaged.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_with_a_damaged_part_is_cut_again_where_its_records_are_there_and_lost_where_not() {
    let base = killed().await;
    let damaged = copy(base.path());
    {
        let (journal, _) = Journal::open(&options(damaged.path())).unwrap();
        journal.close().await.unwrap();
    }
    let spoil = |directory: &Path, sql: &str| {
        #[expect(clippy::disallowed_methods, reason = "the test plants a fault")]
        let database = rusqlite::Connection::open(directory.join("journal.db")).unwrap();
        database.execute_batch(sql).unwrap();
        fs::write(directory.join("journal.damaged"), "planted").unwrap();
    };
    let part = "UPDATE batch_parts SET data =
        CAST(substr(data, 1, 500) || x'00' || substr(data, 502) AS BLOB)";
    spoil(damaged.path(), part);
    let (journal, opening) = Journal::open(&options(damaged.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert!(report.cause.contains("planted"), "{report:?}");
    let again = LaneRange { lane: "gw/s/p/parts".to_owned(), first: 1001, last: 1900 };
    assert_eq!((&report.cut_again, report.lost_records), (&vec![again], 0), "{report:?}");
    assert_eq!(report.unreadable, 1, "{report:?}");
    let (_, opened) = journal.lane(spec("parts")).await.unwrap();
    assert_eq!((opened.sealed_seq, opened.unacked.len()), (Seq(1000), 0));
    assert_eq!(opened.next_batch, BatchNumber(3), "a number is not given twice");
    let (_, opened) = journal.lane(spec("range")).await.unwrap();
    assert_eq!((opened.sealed_seq, opened.unacked.len()), (Seq(1900), 1));
    journal.close().await.unwrap();

    // The same where the records of the batch are gone.
    let damaged = copy(base.path());
    Journal::open(&options(damaged.path())).unwrap().0.close().await.unwrap();
    let gone = format!(
        "{part}; DELETE FROM lanes WHERE sink <> 'parts'; DELETE FROM batches WHERE lane NOT IN
         (SELECT number FROM lanes); DELETE FROM chunks WHERE key & ((1 << 47) - 1) BETWEEN 1001 AND 1850"
    );
    spoil(damaged.path(), &gone);
    fs::remove_file(damaged.path().join("high-water.json")).unwrap();
    let (journal, opening) = Journal::open(&options(damaged.path())).unwrap();
    let report = opening.salvaged.unwrap();
    let lost = report.lost.iter().find(|lost| lost.lane.as_deref() == Some("gw/s/p/parts"));
    assert_eq!(lost.map(|lost| (lost.first, lost.last, lost.records)), Some((1001, 1900, 900)));
    let snapshot = journal.snapshots().borrow().clone();
    assert_eq!((snapshot.lanes[0].totals.lost, snapshot.lanes[0].batches), (900, 0));
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_that_cannot_be_and_a_lost_head_are_noticed_and_no_seq_is_given_twice() {
    let base = killed().await;
    let spoilt = |sql: &str| {
        let dir = copy(base.path());
        #[expect(clippy::disallowed_methods, reason = "the test plants a fault")]
        let database = rusqlite::Connection::open(dir.path().join("journal.db")).unwrap();
        database.execute_batch(sql).unwrap();
        dir
    };
    let ahead = spoilt("UPDATE lanes SET sealed_seq = sealed_seq + (1 << 40) WHERE sink = 'range'");
    let (journal, opening) = Journal::open(&options(ahead.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert!(report.cause.contains("lane gw/s/p/range"), "{report:?}");
    assert_eq!((report.records, report.lost_records), (RECORDS, 0), "{report:?}");
    journal.close().await.unwrap();
    deliver_all(ahead.path()).await;

    let headless =
        spoilt("UPDATE chunks SET data = x'00' WHERE key = (SELECT max(key) FROM chunks)");
    let marks = format!(r#"{{"streams":{{"s":{RECORDS}}}}}"#);
    fs::write(headless.path().join("high-water.json"), marks).unwrap();
    let read = read_all(headless.path()).await;
    assert_eq!((read.head, read.lost), (RECORDS, RECORDS_A_CHUNK), "{:?}", read.report);
    assert_eq!(read.report.unwrap().lost_records, RECORDS_A_CHUNK);
    let (journal, _) = Journal::open(&options(headless.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    // Back to the last saved one: whoever can repeat, repeats.
    let position = (RECORDS - RECORDS_A_CHUNK).to_string().into_bytes();
    assert_eq!(appender.positions()["file"], position);
    append(&appender, RECORDS + 1, RECORDS + 1).await;
    let (lane, _) = journal.lane(spec("all")).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(RECORDS + 1));
    journal.close().await.unwrap();
    deliver_all(headless.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_again_has_no_outcome_yet() {
    let base = killed().await;
    // As if of the first 1000 some had been left out, and the batch behind them is not found.
    let dir = copy(base.path());
    {
        #[expect(clippy::disallowed_methods, reason = "the test plants a fault")]
        let database = rusqlite::Connection::open(dir.path().join("journal.db")).unwrap();
        let sql = "UPDATE lanes SET dropped = 400, dead_lettered = 5, delivered = 595 WHERE sink = 'parts';
                   UPDATE lanes SET dropped = 30, delivered = 1000 WHERE sink = 'range';
                   UPDATE batches SET inputs = 870 WHERE lane = 2;
                   UPDATE batches SET sha256 = zeroblob(32);
                   DELETE FROM batches WHERE lane = 3";
        database.execute_batch(sql).unwrap();
    }
    // That it had one is known from here only: the row of a lane is written with the ack.
    let marks = r#"{"lanes":{"gw/s/p/parts":[1900,3]},"acked":{"gw/s/p/parts":1000}}"#;
    fs::write(dir.path().join("high-water.json"), marks).unwrap();
    fs::write(dir.path().join("journal.damaged"), "planted").unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert_eq!(report.cut_again.len(), 2, "{report:?}");
    let snapshot = journal.snapshots().borrow().clone();
    for lane in &snapshot.lanes {
        let totals = lane.totals;
        let sum = totals.delivered + totals.dropped + totals.dead_lettered + totals.lost;
        assert_eq!(sum + lane.queued, RECORDS - lane.start.0, "{lane:?}");
        assert_eq!(totals.lost, 0, "{lane:?}");
    }
    journal.close().await.unwrap();
    deliver_all(dir.path()).await;
}
