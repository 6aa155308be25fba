//! Journals of earlier schemas are taken over, whole and damaged ones.

use std::path::PathBuf;

use super::*;

/// A data directory with the database of an earlier agent.
fn of_schema(version: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/journal");
    std::fs::copy(folder.join(format!("schema-{version}.db")), dir.path().join("journal.db"))
        .unwrap();
    dir
}

/// What a batch of the fixture sends.
fn sends(lane: &LaneJournal, batch: &StoredBatch) -> Vec<String> {
    let (mut reader, mut found) = (lane.open_batch(batch), Vec::new());
    while let Some(block) = reader.next_block().unwrap() {
        found.extend(payloads(&[block]).into_iter().map(|(_, payload)| payload));
    }
    found
}

async fn check(journal: &Journal) {
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let sent: Vec<_> = opened.unacked.iter().flat_map(|batch| sends(&lane, batch)).collect();
    let expected: Vec<_> = (1..=10).map(|n| format!("{{\"n\":{n}}}")).collect();
    assert_eq!(sent, expected);
    assert!(opened.unacked.iter().all(|batch| batch.variant == Variant::default()));
    assert!(opened.unacked[0].fixed.contains("0000000000000001"), "{}", opened.unacked[0].fixed);
    let letters = journal.letters(&LettersFilter { limit: 10, ..Default::default() }).unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].stage.as_str(), letters[0].size_bytes), ("source", 34));
    let room = *journal.letters_room().borrow();
    assert_eq!(room.count, 1);
}

#[tokio::test]
async fn a_journal_of_schema_1_keeps_its_batches_and_letters_and_can_cut() {
    let dir = of_schema(1);
    let looked_into = inspect::Inspection::open(dir.path()).unwrap();
    assert_eq!(looked_into.info().unwrap().schema, 1);
    assert!(looked_into.verify(true, |_| ()).unwrap().problems.is_empty());
    drop(looked_into);
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.case, StartCase::Clean);
    check(&journal).await;
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let batch = opened.unacked[0].clone();
    let half = |suffix: &str, first: u64| StoredBatch {
        first_seq: Seq(first),
        last_seq: Seq(first + 1),
        records: 2,
        variant: Variant { suffix: suffix.to_owned(), ..Variant::default() },
        ..batch.clone()
    };
    let halves = [half(".0", 1), half(".1", 3)];
    lane.cut(&batch, Halves { halves: halves.clone(), first_inputs: 2 }).await.unwrap();
    lane.ack(&halves[0], Finish::Delivered, 1).await.unwrap();
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.unacked[0], halves[1]);
    assert_eq!(sends(&lane, &halves[1]), ["{\"n\":3}", "{\"n\":4}"]);
    assert_eq!(journal.snapshots().borrow().lanes[0].totals.delivered, 2);
}

#[tokio::test]
async fn a_damaged_journal_of_schema_1_is_salvaged_row_by_row() {
    let dir = of_schema(1);
    let path = dir.path().join("journal.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // The first page with the schema is lost: only the pages themselves tell what they hold.
    bytes[..4096].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.case, StartCase::Salvaged);
    check(&journal).await;
}
