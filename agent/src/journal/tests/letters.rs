//! The store of dead letters: its limit, who waits for room in it, and that discarding makes some without a restart.

use super::model::letter_record;
use super::*;
use crate::journal::config::{LettersConfig, LettersOnFull, OnFull};
use crate::limits::LETTERS_BYTES_MIN;
use crate::units::ByteSize;

/// A journal with the smallest store.
fn small(directory: &Path, on_full: OnFull) -> Journal {
    let bytes = Some(ByteSize(LETTERS_BYTES_MIN));
    let letters = LettersConfig { max_bytes: bytes, on_full: LettersOnFull::Hold };
    let config = JournalConfig { on_full, letters, ..JournalConfig::default() };
    Journal::open(&JournalOptions { config, ..options(directory) }).unwrap().0
}

fn with_letter(bytes: usize) -> Append {
    let letter = SourceLetter {
        reason: "too large".to_owned(),
        size_bytes: 1 << 20,
        place: "f, byte 0".to_owned(),
        subject: "sub".to_owned(),
        time: Timestamp(1),
        payload: vec![b'x'; bytes],
    };
    Append { letters: vec![letter], ..records(&["r"]) }
}

fn all(journal: &Journal) -> Vec<Letter> {
    journal.letters(&LettersFilter { limit: 1000, ..LettersFilter::default() }).unwrap()
}

#[tokio::test]
async fn a_source_waits_with_a_letter_that_has_no_room_and_goes_on_when_some_are_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let journal = small(dir.path(), OnFull::Block);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(60_000)).await.unwrap();
    assert_eq!(appender.full(), None);
    let mut waiting = appender.submit(with_letter(10_000)).await.unwrap();
    let durable = tokio::time::timeout(std::time::Duration::from_millis(300), waiting.durable());
    assert!(durable.await.is_err(), "it has no room");
    assert!(appender.full().unwrap().contains("dead letters are full"), "{:?}", appender.full());
    let ids = all(&journal).iter().map(|letter| letter.id).collect::<Vec<_>>();
    assert_eq!(ids.len(), 1);
    assert_eq!(journal.discard_letters(ids, None).await.unwrap().discarded, 1);
    // What waited is there without anybody's doing, in its order.
    waiting = appender.submit(records(&["behind"])).await.unwrap();
    waiting.durable().await.unwrap();
    let letters = all(&journal);
    assert_eq!((letters.len(), letters[0].payload_bytes), (1, 10_000));
    assert_eq!(appender.full(), None);
    let (lane, _) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(lane.head().borrow().seq, Seq(3));
}

#[tokio::test]
async fn a_letter_without_room_is_refused_when_a_full_journal_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let journal = small(dir.path(), OnFull::Reject);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(60_000)).await.unwrap();
    let error = appender.append(with_letter(10_000)).await.unwrap_err();
    let text = crate::error_chain::Chain(&error).to_string();
    assert!(text.contains("dead_letters.max_bytes"), "{text}");
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["without a letter"])).await.unwrap();
    assert_eq!(all(&journal).len(), 1);
}

#[tokio::test]
async fn an_id_is_not_given_again_when_the_oldest_made_room_for_what_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let bytes = Some(ByteSize(LETTERS_BYTES_MIN));
        let letters = LettersConfig { max_bytes: bytes, on_full: LettersOnFull::DropOldest };
        // Appends wait for each other and share a commit.
        let commit_interval = std::time::Duration::from_secs(2);
        let on_full = OnFull::Reject;
        let config = JournalConfig { on_full, letters, commit_interval, ..Default::default() };
        Journal::open(&JournalOptions { config, ..options(dir.path()) }).unwrap().0
    };
    let journal = open();
    let appender = journal.appender(&source()).await.unwrap();
    for _ in 0..3 {
        appender.append(with_letter(15_000)).await.unwrap();
    }
    assert_eq!(all(&journal).last().unwrap().id, 3);
    // All make room for the first; the second never has any, and nothing of its session is taken with it.
    let _busy = appender.submit(records(&["r"])).await.unwrap();
    let first = appender.submit(with_letter(60_000)).await.unwrap();
    let second = appender.submit(with_letter(70_000)).await.unwrap();
    second.durable().await.unwrap_err();
    first.durable().await.unwrap_err();
    journal.close().await.unwrap();
    let journal = open();
    assert!(all(&journal).is_empty());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(10)).await.unwrap();
    assert_eq!(all(&journal)[0].id, 4);
}

#[tokio::test]
async fn who_waits_for_room_still_does_when_a_commit_fails_that_had_some() {
    let dir = tempfile::tempdir().unwrap();
    small(dir.path(), OnFull::Block).close().await.unwrap();
    let fault = "CREATE TRIGGER fault BEFORE INSERT ON dead_letters WHEN new.stage = 'clean'
                 BEGIN SELECT RAISE(ABORT, 'planted'); END";
    tamper(dir.path(), fault);
    let journal = small(dir.path(), OnFull::Block);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(50_000)).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let _waiting = appender.submit(with_letter(30_000)).await.unwrap();
    super::full::snapshot_when(&journal, "a full store", |s| s.letters.full.is_some()).await;
    let letter = super::model::letter(1, "gw/s/p/k/x/1".to_owned(), vec![b'y'; 10]);
    let mut seal = range_batch(&opened, 1, 1);
    (seal.batch.records, seal.dead_lettered, seal.letters) = (0, 1, vec![letter]);
    let error = lane.seal(seal).await.unwrap().durable().await.unwrap_err();
    assert!(matches!(error, JournalError::Group(_)), "{error}");
    assert!(appender.full().unwrap().contains("dead letters are full"), "{:?}", appender.full());
    journal.close().await.unwrap();
    assert!(journal.snapshots().borrow().letters.full.is_some());
}

#[tokio::test]
async fn a_seal_whose_letters_have_no_room_does_not_happen() {
    let dir = tempfile::tempdir().unwrap();
    let journal = small(dir.path(), OnFull::Block);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(60_000)).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let letter = StageLetter {
        stage: "clean".to_owned(),
        plugin_sha256: [3; 32],
        class: "rejected",
        record: letter_record(1, "gw/s/p/k/x/1".to_owned(), vec![b'y'; 10_000]),
    };
    let mut seal = range_batch(&opened, 1, 1);
    (seal.batch.records, seal.dead_lettered, seal.letters) = (0, 1, vec![letter]);
    let error = lane.seal(seal.clone()).await.unwrap().durable().await.unwrap_err();
    assert!(error.is_letters_full(), "{error}");
    assert_eq!(error.disposition(), Disposition::Retry);
    let ids = all(&journal).iter().map(|letter| letter.id).collect();
    journal.discard_letters(ids, None).await.unwrap();
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    assert_eq!(all(&journal)[0].stage, "clean");
    journal.close().await.unwrap();
    assert_eq!(journal.snapshots().borrow().lanes[0].totals.dead_lettered, 1);
}

#[tokio::test]
async fn d_16_rows_that_make_no_sense_neither_stop_a_start_nor_are_hidden() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(with_letter(10)).await.unwrap();
    journal.close().await.unwrap();
    tamper(
        dir.path(),
        "INSERT INTO dead_letters (stage, source, lane, seq, class, reason, attempts, first_at,
            last_at, time, subject, headers, payload, size_bytes)
         VALUES ('', '', 77, -1, '', '', 0, 0, 0, 0, '', x'ff', x'', 0)",
    );
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.case, StartCase::Clean);
    let letters = all(&journal);
    assert_eq!(letters.len(), 2);
    assert_eq!(journal.letters_room().borrow().count, 2);
    journal.discard_letters(vec![letters[1].id, 4711], None).await.unwrap();
    assert_eq!(all(&journal), letters[..1]);
}

#[tokio::test]
async fn a_list_of_letters_comes_in_pages_and_by_what_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    for n in 0..25 {
        appender.append(with_letter(n)).await.unwrap();
    }
    let (mut after, mut sizes) = (0, Vec::new());
    loop {
        let filter = LettersFilter { after, limit: 10, ..LettersFilter::default() };
        let page = journal.letters(&filter).unwrap();
        let Some(last) = page.last() else { break };
        after = last.id;
        sizes.push(page.len());
    }
    assert_eq!(sizes, [10, 10, 5]);
    let of = |stage: &str| {
        let stage = Some(stage.to_owned());
        journal.letters(&LettersFilter { stage, limit: 100, ..Default::default() }).unwrap().len()
    };
    assert_eq!((of("source"), of("clean")), (25, 0));
    let lane = Some("gw/s/p/k".to_owned());
    let filter = LettersFilter { lane, limit: 100, ..Default::default() };
    assert!(journal.letters(&filter).unwrap().is_empty());
    let (letter, payload) = journal.letter(after).unwrap().unwrap();
    assert_eq!((letter.id, payload), (after, vec![b'x'; 24]));
    assert_eq!(journal.letter(after + 1).unwrap(), None);
}

#[tokio::test]
async fn what_a_sink_changes_is_stored_with_the_outcome_of_its_batch_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let journal = small(dir.path(), OnFull::Block);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a", "b"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let seals = [1, 2].map(|number| {
        let mut seal = range_batch(&opened, number, number);
        seal.batch.number = BatchNumber(number);
        seal
    });
    for seal in &seals {
        lane.seal(seal.clone()).await.unwrap().durable().await.unwrap();
    }
    let change = |value: &[u8]| StateChange {
        component: "@sink".to_owned(),
        key: "k".to_owned(),
        value: Some(value.to_vec()),
    };
    let [first, second] = seals.map(|seal| seal.batch);
    let ack = lane.ack_with_state(&first, Finish::Delivered, 1, vec![change(b"one")]);
    ack.await.unwrap();
    // Letters without room are no outcome.
    let (class, at) = (LetterClass::Rejected, Timestamp(3));
    let letter = letter_record(2, "gw/s/p/k/x/2".to_owned(), vec![b'x'; 70_000]);
    let (letters, state) = (vec![letter], vec![change(b"two")]);
    let refused = SinkLetters { class, attempts: 1, first_at: at, last_at: at, letters, state };
    let error = lane.ack_with_letters(&second, refused).await.unwrap_err();
    assert!(error.is_letters_full(), "{error}");
    drop(lane);
    journal.close().await.unwrap();
    let journal = small(dir.path(), OnFull::Block);
    let (_lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.plugin_state["@sink"]["k"], b"one");
    let waiting: Vec<_> = opened.unacked.iter().map(|batch| batch.number.0).collect();
    assert_eq!(waiting, [2]);
}
