//! What the journal still knows of batches and letters that are gone: rings that are bounded, and ids that are never given twice.

use super::*;
use crate::journal::inspect::Inspection;
use crate::limits::{ACKED_ROWS_MAX, JOURNAL_BYTES_MIN, LETTERS_PAGE_MAX};
use crate::record::id::RecordId;
use crate::units::ByteSize;

/// A journal of the smallest size, whose rings have 128 rows.
fn smallest(directory: &Path) -> (Journal, Opening) {
    let config =
        JournalConfig { max_bytes: ByteSize(JOURNAL_BYTES_MIN), ..JournalConfig::default() };
    Journal::open(&JournalOptions { config, ..options(directory) }).unwrap()
}

fn letter() -> Append {
    let letter = SourceLetter {
        reason: "too large".to_owned(),
        size_bytes: 10,
        place: "f, byte 0".to_owned(),
        subject: "sub".to_owned(),
        time: Timestamp(1),
        payload: b"x".to_vec(),
    };
    Append { letters: vec![letter], ..records(&["r"]) }
}

fn ids(journal: &Journal) -> Vec<i64> {
    let filter = LettersFilter { limit: LETTERS_PAGE_MAX, ..LettersFilter::default() };
    journal.letters(&filter).unwrap().iter().map(|letter| letter.id).collect()
}

#[tokio::test]
async fn the_id_of_a_letter_is_never_given_again_and_the_note_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (mut journal, _) = smallest(dir.path());
    for round in 1..=3_i64 {
        let appender = journal.appender(&source()).await.unwrap();
        appender.append(letter()).await.unwrap();
        assert_eq!(ids(&journal), [round]);
        let note = Some(format!("round {round}"));
        let done = journal.discard_letters(vec![round, 99], note).await.unwrap();
        assert_eq!(done.discarded, 1);
        journal.close().await.unwrap();
        journal = smallest(dir.path()).0;
    }
    let inspection = Inspection::open(dir.path()).unwrap();
    let gone = inspection.dispositions(Some(2)).unwrap();
    assert_eq!((gone.len(), gone[0].note.as_deref()), (1, Some("round 2")));
    assert_eq!((gone[0].what.as_str(), gone[0].class.as_str()), ("discarded", "rejected"));
    assert!(gone[0].at > Timestamp(0));
}

#[tokio::test]
async fn the_rings_are_bounded_and_the_largest_id_is_known_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = smallest(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, mut opened) = journal.lane(lane_spec()).await.unwrap();
    for seq in 1..=400 {
        appender.append(letter()).await.unwrap();
        let seal = range_batch(&opened, seq, seq);
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 3).await.unwrap();
        opened.next_batch = BatchNumber(batch.number.0 + 1);
    }
    // The youngest goes first: its id must outlive its row in the ring.
    let mut youngest_first = ids(&journal);
    assert_eq!(youngest_first.len(), 400);
    youngest_first.reverse();
    for id in youngest_first {
        journal.discard_letters(vec![id], None).await.unwrap();
    }
    journal.close().await.unwrap();
    let inspection = Inspection::open(dir.path()).unwrap();
    assert_eq!(inspection.dispositions(None).unwrap().len(), 128 + 1);
    let known = |seq: u64| {
        let id: RecordId = format!("gw/s/p/k/{}/{seq}", opening.epoch).parse().unwrap();
        inspection.explain(&id).unwrap().unwrap()
    };
    let outcomes: Vec<_> = (1..=400).map(|seq| known(seq).outcome).collect();
    let kept = outcomes.iter().filter(|outcome| **outcome == "delivered").count();
    assert!((128..128 + 64 + ACKED_ROWS_MAX).contains(&kept), "{kept}");
    assert_eq!((outcomes[0], outcomes[399]), ("long_ago", "delivered"));
    let batch = known(399).batch.unwrap();
    assert_eq!((batch.attempts, batch.first_seq, batch.records), (Some(3), 399, 1));
    drop(inspection);
    let (journal, _) = smallest(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(letter()).await.unwrap();
    assert_eq!(ids(&journal), [401]);
}

/// The snapshot that counts so many letters, by class too. One is renewed within a second.
async fn counted(journal: &Journal, count: u64) -> Arc<Snapshot> {
    let mut snapshots = journal.snapshots();
    let has = |snapshot: &Arc<Snapshot>| {
        let letters = &snapshot.letters;
        let by_class: u64 = letters.by_class.iter().map(|kind| kind.letters).sum();
        (letters.room.count, by_class) == (count, count)
    };
    let renewed = tokio::time::timeout(std::time::Duration::from_secs(30), snapshots.wait_for(has));
    renewed.await.expect("it is counted").unwrap().clone()
}

#[tokio::test]
async fn letters_are_counted_by_class_and_the_oldest_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    for _ in 0..3 {
        appender.append(letter()).await.unwrap();
    }
    let full = counted(&journal, 3).await;
    let kind = &full.letters.by_class[0];
    assert_eq!((kind.source.as_str(), &kind.lane, kind.class.as_str()), ("s", &None, "rejected"));
    let oldest = full.letters.oldest.unwrap();
    journal.discard_letters(vec![1], None).await.unwrap();
    let left = counted(&journal, 2).await;
    assert!(left.letters.oldest.unwrap() > oldest);
    journal.discard_letters(vec![2, 3], None).await.unwrap();
    let none = counted(&journal, 0).await;
    assert_eq!((none.letters.oldest, none.letters.by_class.len()), (None, 0));
}

#[tokio::test]
async fn a_record_costs_three_pages_of_the_wal_from_append_to_ack() {
    const ROUNDS: u64 = 64;
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, mut opened) = journal.lane(lane_spec()).await.unwrap();
    let frames = || {
        let file = std::fs::File::open(dir.path().join("journal.db-wal")).unwrap();
        wal::frames(&file).unwrap().len() as u64
    };
    let begun = frames();
    for seq in 1..=ROUNDS {
        appender.append(records(&["r"])).await.unwrap();
        let seal = range_batch(&opened, seq, seq);
        let batch = seal.batch.clone();
        lane.seal(seal).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
        opened.next_batch = BatchNumber(batch.number.0 + 1);
    }
    let frames = frames() - begun;
    // Append: the chunks. Seal: the batches. Ack: the lane; with each 16th the batches and their ring.
    let folds = ROUNDS / ACKED_ROWS_MAX as u64;
    assert!((3 * ROUNDS - 2..=3 * ROUNDS + 2 * folds + 4).contains(&frames), "{frames} frames");
}

#[tokio::test]
async fn what_became_of_a_batch_is_known_before_it_is_in_the_ring_and_over_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, mut opened) = journal.lane(lane_spec()).await.unwrap();
    let rows = |table: &str| -> i64 {
        let database = open::connect_reader(&dir.path().join("journal.db")).unwrap();
        let query = format!("SELECT count(*) FROM {table}");
        database.query_row(&query, [], |row| row.get(0)).unwrap()
    };
    // One less than what a fold takes, and then that one.
    let most = ACKED_ROWS_MAX as u64;
    for seq in 1..=most {
        appender.append(records(&["r"])).await.unwrap();
        let seal = range_batch(&opened, seq, seq);
        let batch = StoredBatch { epoch: opening.epoch, ..seal.batch };
        lane.seal(Seal { batch: batch.clone(), ..seal }).await.unwrap().durable().await.unwrap();
        lane.ack(&batch, Finish::Already, u32::try_from(seq).unwrap()).await.unwrap();
        opened.next_batch = BatchNumber(batch.number.0 + 1);
        if seq == most - 1 {
            // Whatever was appended behind an ack is committed with it.
            appender.append(letter()).await.unwrap();
            assert_eq!((rows("batches"), rows("finished")), (most.cast_signed() - 1, 0));
            explained(dir.path(), &opening, seq);
        }
    }
    journal.close().await.unwrap();
    assert_eq!((rows("batches"), rows("finished")), (0, most.cast_signed()));
    for seq in 1..=most {
        explained(dir.path(), &opening, seq);
    }
}

/// By the record, and by the batch.
fn explained(directory: &Path, opening: &Opening, seq: u64) {
    let inspection = Inspection::open(directory).unwrap();
    for place in [seq.to_string(), format!("b{seq}")] {
        let id: RecordId = format!("gw/s/p/k/{}/{place}", opening.epoch).parse().unwrap();
        let found = inspection.explain(&id).unwrap().unwrap();
        let batch = found.batch.unwrap();
        assert_eq!((found.outcome, batch.first_seq), ("already", seq), "{place}");
        assert_eq!(batch.attempts, Some(u32::try_from(seq).unwrap()), "{place}");
        assert!(batch.finished_at.is_some());
    }
}
