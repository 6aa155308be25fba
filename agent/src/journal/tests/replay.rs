//! Dead letters on their way again: what a replay changes, and that nothing of it is lost or counted twice.

use super::model::letter_record;
use super::*;
use crate::journal::config::{LettersConfig, LettersOnFull};
use crate::journal::letters::LettersState;
use crate::limits::LETTERS_BYTES_MIN;
use crate::units::ByteSize;

/// A lane whose first batch has left letters.
struct Bench {
    journal: Journal,
    lane: LaneJournal,
    opened: OpenedLane,
}

fn sink_letters(letters: Vec<LetterRecord>, class: LetterClass) -> SinkLetters {
    let (first_at, last_at, state) = (Timestamp(3), Timestamp(4), Vec::new());
    SinkLetters { class, attempts: 2, first_at, last_at, letters, state }
}

fn given_up(seqs: &[u64], payload: &[u8]) -> Vec<LetterRecord> {
    let letter =
        |seq: &u64| letter_record(*seq, format!("gw/s/p/k/0000100001/{seq}"), payload.to_vec());
    seqs.iter().map(letter).collect()
}

impl Bench {
    /// Four records in one batch, of which these are letters.
    async fn new(directory: &Path, seqs: &[u64]) -> Self {
        Self::with(directory, JournalConfig::default(), seqs).await
    }

    async fn with(directory: &Path, config: JournalConfig, seqs: &[u64]) -> Self {
        let options = JournalOptions { config, ..options(directory) };
        let journal = Journal::open(&options).unwrap().0;
        let appender = journal.appender(&source()).await.unwrap();
        appender.append(records(&["a", "b", "c", "d"])).await.unwrap();
        let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
        let seal = range_batch(&opened, 1, 4);
        lane.seal(seal.clone()).await.unwrap().durable().await.unwrap();
        let letters = sink_letters(given_up(seqs, b"payload"), LetterClass::Rejected);
        lane.ack_with_letters(&seal.batch, letters).await.unwrap();
        let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
        Self { journal, lane, opened }
    }

    fn letters(&self) -> Vec<Letter> {
        self.journal.letters(&LettersFilter { limit: 1000, ..Default::default() }).unwrap()
    }

    /// The open letters with these ids as a replay.
    fn replay(&self, letters: &[i64], number: u64, replays: u64) -> ReplaySeal {
        let of = "gw/s/p/k/0000100001/b1".to_owned();
        let mut shown = Shown::of_identity(self.lane.name(), &of).unwrap();
        if replays > 0 {
            shown.suffix = format!("/r{replays}");
        }
        let mut batch = range_batch(&self.opened, 1, 4).batch;
        (batch.number, batch.records) = (BatchNumber(number), letters.len() as u64);
        batch.parts = 1;
        batch.variant = Variant { shown: Some(shown), replay: true, ..Variant::default() };
        ReplaySeal {
            batch,
            stage: "k".to_owned(),
            of,
            replays,
            letters: letters.to_vec(),
            without_output: Vec::new(),
            returned: Vec::new(),
            further: Vec::new(),
            repair: None,
            state: Vec::new(),
            made_bytes: 0,
        }
    }

    async fn store(&self, batch: &StoredBatch) {
        let mut frames = FrameBuffer::default();
        for n in 0..batch.records {
            let payload = n.to_string();
            frames.push_new(Timestamp(5), "sub", Headers::default(), payload.as_bytes());
        }
        let place = PartPlace {
            batch: batch.number,
            epoch: batch.epoch,
            part: 0,
            first_seq: batch.first_seq,
        };
        let mut encoder = PartEncoder::default();
        self.lane.store_part(&mut encoder, place, frames.count(), frames.bytes()).await.unwrap();
    }

    async fn seal(&self, seal: &ReplaySeal) -> i64 {
        self.store(&seal.batch).await;
        self.lane.seal_replay(seal.clone()).await.unwrap()
    }

    /// Cuts off its first record.
    async fn cut(&self, batch: &StoredBatch) -> [StoredBatch; 2] {
        let half = |number: u64, records| {
            let mut half = batch.clone();
            half.records = records;
            half.variant.suffix.push_str(&format!(".{number}"));
            half.variant.first_record += number;
            half
        };
        let halves = [half(0, 1), half(1, batch.records - 1)];
        let both = Halves { halves: halves.clone(), first_inputs: 0 };
        self.lane.cut(batch, both).await.unwrap();
        halves
    }

    fn totals(&self) -> LaneTotals {
        self.journal.snapshots().borrow().lanes[0].totals
    }

    async fn settled(&self) -> LaneTotals {
        self.journal.appender(&source()).await.unwrap();
        let mut snapshots = self.journal.snapshots();
        snapshots.mark_unchanged();
        self.journal.appender(&source()).await.unwrap();
        drop(tokio::time::timeout(std::time::Duration::from_secs(5), snapshots.changed()).await);
        self.totals()
    }
}

#[tokio::test]
async fn what_a_replay_delivers_goes_and_counts_as_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[2, 3]).await;
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered, totals.outputs_delivered), (2, 2, 2));
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let seal = bench.replay(&ids, 2, 1);
    let id = bench.seal(&seal).await;
    assert!(bench.letters().iter().all(|letter| letter.is_under_way));
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (2, 2), "not before its outcome");
    let left = bench.journal.discard_letters(vec![ids[1]], None).await.unwrap();
    assert_eq!(left.discarded, 0);
    let why = left.left[0].to_string();
    assert!(why.contains("is being replayed as gw/s/p/k/0000100001/b1/r1"), "{why}");
    let replay = &bench.journal.replays(0).unwrap()[0];
    assert_eq!((replay.id, replay.letters, replay.ended_at), (id, 2, None));
    let nothing = sink_letters(Vec::new(), LetterClass::Rejected);
    bench.lane.ack_replay(&seal.batch, nothing, 1).await.unwrap();
    assert!(bench.letters().is_empty());
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered, totals.outputs_delivered), (4, 0, 4));
    let replay = &bench.journal.replays(0).unwrap()[0];
    assert_eq!((replay.delivered, replay.already, replay.returned), (2, 1, 0));
    assert!(replay.ended_at.is_some());
    assert_eq!(bench.journal.letters_room().borrow().bytes, 0);
    assert_eq!(bench.journal.letter_batch("gw/s/p/k", &seal.of).unwrap(), None);
}

#[tokio::test]
async fn what_a_replay_does_not_deliver_is_the_same_letter_with_another_reason() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[1, 2, 3, 4]).await;
    let letters = bench.letters();
    assert!(letters.iter().all(|letter| letter.whole == 4));
    let known = bench.journal.letter_batch("gw/s/p/k", "gw/s/p/k/0000100001/b1").unwrap().unwrap();
    assert_eq!((known.first_seq, known.last_seq, known.replays), (Seq(1), Seq(4), 0));
    assert_eq!(
        (known.sealed_at, known.fixed.as_str(), known.sha256),
        (Timestamp(9), "{}", [1; 32])
    );
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    let seal = bench.replay(&ids[..3], 2, 1);
    bench.seal(&seal).await;
    let mut again = given_up(&[1, 2, 3], b"payload");
    again.iter_mut().for_each(|letter| letter.reason = "still no".to_owned());
    bench
        .lane
        .ack_replay(&seal.batch, sink_letters(again, LetterClass::Conflict), 0)
        .await
        .unwrap();
    let returned = bench.letters();
    assert_eq!(returned.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids);
    for letter in &returned[..3] {
        assert_eq!((letter.class.as_str(), letter.reason.as_str()), ("conflict", "still no"));
        assert_eq!((letter.attempts, letter.whole), (4, 3));
        assert_eq!(letter.batch.as_deref(), Some("gw/s/p/k/0000100001/b1/r1"));
        assert_eq!((letter.disposition.as_deref(), letter.is_under_way), (Some("replayed"), false));
    }
    assert_eq!(returned[3], letters[3]);
    // They were all of that replay, and may go out as it was.
    let known = bench.journal.letter_batch("gw/s/p/k", "gw/s/p/k/0000100001/b1/r1").unwrap();
    assert!(known.is_some_and(|batch| batch.first_seq == Seq(1)));
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (0, 4));
    let counted = LettersState::load(&open::connect_reader(bench.journal.path()).unwrap());
    assert_eq!(bench.journal.letters_room().borrow().bytes, counted.unwrap().bytes);
}

#[tokio::test]
async fn a_replay_survives_a_crash_and_its_letters_are_in_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[2]).await;
    let id = bench.letters()[0].id;
    let seal = bench.replay(&[id], 2, 1);
    bench.seal(&seal).await;
    let copy = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let journal = open(copy.path()).0;
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.replays.len(), 1);
    assert_eq!(opened.replays[0], seal.batch);
    assert_eq!((opened.unacked.len(), opened.next_batch), (0, BatchNumber(3)));
    let bench = Bench { journal, lane, opened };
    let second = bench.replay(&[id], 3, 2);
    bench.store(&second.batch).await;
    let refused = bench.lane.seal_replay(second).await.unwrap_err();
    assert!(matches!(refused, JournalError::Misfit { .. }), "{refused}");
    let nothing = sink_letters(Vec::new(), LetterClass::Rejected);
    bench.lane.ack_replay(&seal.batch, nothing, 0).await.unwrap();
    assert!(bench.letters().is_empty());
    let (_, opened) = bench.journal.lane(lane_spec()).await.unwrap();
    assert!(opened.replays.is_empty());
}

#[tokio::test]
async fn letters_of_a_lane_that_does_not_run_are_freed_and_their_replay_is_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[1, 2, 3, 4]).await;
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let seal = bench.replay(&ids[..3], 2, 1);
    let id = bench.seal(&seal).await;
    let [first, second] = bench.cut(&seal.batch).await;
    let nothing = || sink_letters(Vec::new(), LetterClass::Rejected);
    bench.lane.ack_replay(&first, nothing(), 0).await.unwrap();
    // As long as the lane runs it is waited for, and the others go.
    let done = bench.journal.discard_letters(ids.clone(), None).await.unwrap();
    let left: Vec<_> = done.left.iter().map(|left| left.letter).collect();
    assert_eq!((done.discarded, left.as_slice()), (1, &ids[..3]));
    let Bench { journal, lane, opened } = bench;
    drop(lane);
    let done = journal.discard_letters(vec![ids[0], ids[0]], None).await.unwrap();
    assert_eq!((done.discarded, done.left), (1, Vec::new()));
    let replay = &journal.replays(0).unwrap()[0];
    assert_eq!((replay.id, replay.class.as_str(), replay.returned), (id, "cancelled", 3));
    assert!(replay.ended_at.is_some());
    // What was in it with that one is open, and no more all of a batch: a piece of it is delivered.
    let filter = LettersFilter { limit: 10, ..Default::default() };
    let open = journal.letters(&filter).unwrap();
    assert_eq!(open.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids[1..3]);
    assert!(open.iter().all(|letter| !letter.is_under_way && letter.whole == 0), "{open:?}");
    journal.close().await.unwrap();
    let (journal, _) = super::open(dir.path());
    let (lane, again) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!((again.replays, again.next_batch), (Vec::new(), BatchNumber(3)));
    let parts = open::connect_reader(journal.path()).unwrap();
    let parts: i64 =
        parts.query_row("SELECT count(*) FROM batch_parts", [], |row| row.get(0)).unwrap();
    assert_eq!(parts, 0);
    // An ack that is on its way is nobody's.
    lane.ack_replay(&second, nothing(), 0).await.unwrap_err();
    let bench = Bench { journal, lane, opened };
    let seal = bench.replay(&ids[1..3], 3, 2);
    bench.seal(&seal).await;
    bench.lane.ack_replay(&seal.batch, nothing(), 0).await.unwrap();
    assert!(bench.letters().is_empty());
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (2, 2));
}

#[tokio::test]
async fn what_may_have_been_sent_keeps_the_note_of_its_sink_over_replays_and_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a", "b", "c", "d"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let note = async |lane: &LaneJournal, text: &str| lane.keep_note(text, true).await.unwrap();
    note(&lane, "then").await;
    let seal = range_batch(&opened, 1, 4);
    lane.seal(seal.clone()).await.unwrap().durable().await.unwrap();
    let letters = sink_letters(given_up(&[1, 2], b"payload"), LetterClass::Exhausted);
    lane.ack_with_letters(&seal.batch, letters).await.unwrap();
    note(&lane, "later").await;
    let bench = Bench { journal, lane, opened };
    let noted = |of: &str| bench.journal.letter_batch("gw/s/p/k", of).unwrap().unwrap().sink_note;
    let of = "gw/s/p/k/0000100001/b1".to_owned();
    assert_eq!(noted(&of).as_deref(), Some("then"));
    // Given up again in a batch of another name: where it may be has not come nearer.
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let first = bench.replay(&ids, 2, 1);
    bench.seal(&first).await;
    let again = sink_letters(given_up(&[1, 2], b"payload"), LetterClass::Exhausted);
    bench.lane.ack_replay(&first.batch, again, 0).await.unwrap();
    let of = bench.letters()[0].batch.clone().unwrap();
    assert_eq!((of.as_str(), noted(&of).as_deref()), ("gw/s/p/k/0000100001/b1/r1", Some("then")));
    let mut second = bench.replay(&ids, 3, 1);
    second.of = of.clone();
    second.batch.variant.shown = Shown::of_identity(bench.lane.name(), &format!("{of}/r1"));
    bench.seal(&second).await;
    bench.journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.replays[0].variant.sink_note.as_deref(), Some("then"));
    let nothing = sink_letters(Vec::new(), LetterClass::Rejected);
    lane.ack_replay(&opened.replays[0], nothing, 0).await.unwrap();
    assert_eq!(journal.letter_batch("gw/s/p/k", &of).unwrap(), None);
}

#[tokio::test]
async fn an_input_is_dead_lettered_as_long_as_there_is_a_letter_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[2, 2, 3, 3]).await;
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (2, 2));
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let nothing = || sink_letters(Vec::new(), LetterClass::Rejected);
    let seal = bench.replay(&ids[..1], 2, 1);
    bench.seal(&seal).await;
    bench.lane.ack_replay(&seal.batch, nothing(), 0).await.unwrap();
    assert_eq!(bench.settled().await.dead_lettered, 2, "the other of its two is left");
    let seal = bench.replay(&ids[1..2], 3, 2);
    bench.seal(&seal).await;
    bench.lane.ack_replay(&seal.batch, nothing(), 0).await.unwrap();
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (3, 1));
    // One of which a letter was discarded stays what it is.
    bench.journal.discard_letters(vec![ids[2]], None).await.unwrap();
    let seal = bench.replay(&ids[3..], 4, 3);
    bench.seal(&seal).await;
    bench.lane.ack_replay(&seal.batch, nothing(), 0).await.unwrap();
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (3, 1));
    assert!(bench.letters().is_empty());
}

/// A batch of two inputs that waits, behind a transform that gave these up. The first of them has left a record in it too.
async fn set_aside(directory: &Path, seqs: &[u64]) -> Bench {
    let (journal, _) = open(directory);
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["a", "b"])).await.unwrap();
    let (lane, opened) = journal.lane(lane_spec()).await.unwrap();
    let bench = Bench { journal, lane, opened };
    let mut seal = range_batch(&bench.opened, 1, 2);
    (seal.batch.parts, seal.dead_lettered) = (1, 1);
    seal.batch.variant.counted = vec![Seq(seqs[0])];
    let letter = |(n, seq): (usize, &u64)| {
        super::model::letter(*seq, format!("gw/s/p/k/0000100001/{seq}.{n}"), b"x".to_vec())
    };
    seal.letters = seqs.iter().enumerate().map(letter).collect();
    bench.store(&seal.batch).await;
    bench.lane.seal(seal).await.unwrap().durable().await.unwrap();
    bench
}

#[tokio::test]
async fn an_input_of_which_a_letter_was_discarded_stays_dead_lettered_whatever_rows_follow() {
    let dir = tempfile::tempdir().unwrap();
    let bench = set_aside(dir.path(), &[2, 2]).await;
    let nothing = || sink_letters(Vec::new(), LetterClass::Rejected);
    let discard = async |id| bench.journal.discard_letters(vec![id], None).await.unwrap();
    discard(bench.letters()[0].id).await;
    // The other one becomes a new row: the sink refuses what the transform makes of it now.
    let replay = |number, replays, letter: &Letter| {
        let mut replay = bench.replay(&[letter.id], number, replays);
        (replay.batch.first_seq, replay.batch.last_seq) = (Seq(2), Seq(2));
        replay.of = letter.batch.clone().unwrap();
        replay.batch.variant.shown =
            Shown::of_identity(bench.lane.name(), &format!("{}/r{replays}", replay.of));
        replay
    };
    let first = replay(2, 1, &bench.letters()[0]);
    bench.seal(&first).await;
    let refused = vec![letter_record(2, "gw/s/p/k/0000100001/2.1.0".to_owned(), b"y".to_vec())];
    let refused = sink_letters(refused, LetterClass::Rejected);
    bench.lane.ack_replay(&first.batch, refused, 0).await.unwrap();
    assert_eq!((bench.letters().len(), bench.letters()[0].stage.as_str()), (1, "k"));
    let second = replay(3, 1, &bench.letters()[0]);
    bench.seal(&second).await;
    bench.lane.ack_replay(&second.batch, nothing(), 0).await.unwrap();
    assert!(bench.letters().is_empty());
    assert_eq!(bench.settled().await.dead_lettered, 1, "one of its letters was discarded");
    // So does one of which a record is given up later than that.
    let waiting = bench.opened.next_batch;
    let batch = range_batch(&bench.opened, 1, 2).batch;
    assert_eq!(batch.number, waiting);
    let late = vec![letter_record(2, "gw/s/p/k/0000100001/2.9".to_owned(), b"z".to_vec())];
    let late = sink_letters(late, LetterClass::Rejected);
    bench.lane.ack_with_letters(&batch, late).await.unwrap();
    let third = replay(4, 1, &bench.letters()[0]);
    bench.seal(&third).await;
    bench.lane.ack_replay(&third.batch, nothing(), 0).await.unwrap();
    let totals = bench.settled().await;
    assert_eq!((totals.delivered, totals.dead_lettered), (1, 1), "{totals:?}");
}

#[tokio::test]
async fn an_input_that_still_waits_in_the_order_is_given_back_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let bench = set_aside(dir.path(), &[2]).await;
    let id = bench.letters()[0].id;
    let mut replay = bench.replay(&[id], 2, 1);
    (replay.batch.first_seq, replay.batch.last_seq) = (Seq(2), Seq(2));
    replay.stage = "clean".to_owned();
    bench.seal(&replay).await;
    let nothing = || sink_letters(Vec::new(), LetterClass::Rejected);
    bench.lane.ack_replay(&replay.batch, nothing(), 0).await.unwrap();
    let snapshot = |bench: &Bench| bench.journal.snapshots().borrow().lanes[0].clone();
    bench.settled().await;
    let lane = snapshot(&bench);
    assert_eq!((lane.queued, lane.totals.dead_lettered, lane.totals.delivered), (2, 0, 0));
    let (again, opened) = bench.journal.lane(lane_spec()).await.unwrap();
    assert!(opened.unacked[0].variant.counted.is_empty());
    again.ack(&opened.unacked[0], Finish::Delivered, 1).await.unwrap();
    bench.settled().await;
    // What was counted of its letters goes with the batch, and not only when the lane is opened again.
    let database = open::connect_reader(bench.journal.path()).unwrap();
    let kept: i64 =
        database.query_row("SELECT count(*) FROM letter_batches", [], |row| row.get(0)).unwrap();
    assert_eq!(kept, 0);
    let lane = snapshot(&bench);
    assert_eq!((lane.queued, lane.totals.dead_lettered, lane.totals.delivered), (0, 0, 2));
}

#[tokio::test]
async fn letters_that_are_under_way_make_no_room_and_need_none() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Some(ByteSize(LETTERS_BYTES_MIN));
    let letters = LettersConfig { max_bytes: bytes, on_full: LettersOnFull::DropOldest };
    let config = JournalConfig { letters, ..JournalConfig::default() };
    let bench = Bench::with(dir.path(), config, &[1, 2]).await;
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let seal = bench.replay(&ids[..1], 2, 1);
    bench.seal(&seal).await;
    let appender = bench.journal.appender(&source()).await.unwrap();
    let letter = |bytes: usize| SourceLetter {
        reason: "too large".to_owned(),
        size_bytes: 1 << 20,
        place: "f".to_owned(),
        subject: "sub".to_owned(),
        time: Timestamp(1),
        payload: vec![b'x'; bytes],
    };
    let with = |bytes| Append { letters: vec![letter(bytes)], ..Append::default() };
    appender.append(with(60_000)).await.unwrap();
    appender.append(with(60_000)).await.unwrap();
    let left: Vec<_> =
        bench.letters().iter().map(|letter| (letter.id, letter.is_under_way)).collect();
    assert_eq!((left.len(), left[0]), (2, (ids[0], true)), "{left:?}");
    // What comes back is taken, however full the store is.
    let again =
        vec![LetterRecord { reason: "r".repeat(9000), ..given_up(&[1], b"payload").remove(0) }];
    bench
        .lane
        .ack_replay(&seal.batch, sink_letters(again, LetterClass::Rejected), 0)
        .await
        .unwrap();
    assert_eq!(bench.letters()[0].reason.len(), 9000);
    let room = *bench.journal.letters_room().borrow();
    assert!(room.bytes > room.bytes_max, "{room:?}");
}

#[tokio::test]
async fn letters_under_way_in_a_lane_that_does_not_run_make_room_last() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Some(ByteSize(LETTERS_BYTES_MIN));
    let letters = LettersConfig { max_bytes: bytes, on_full: LettersOnFull::DropOldest };
    let config = JournalConfig { letters, ..JournalConfig::default() };
    let bench = Bench::with(dir.path(), config, &[1]).await;
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let seal = bench.replay(&ids, 2, 1);
    let id = bench.seal(&seal).await;
    let appender = bench.journal.appender(&source()).await.unwrap();
    let letter = |bytes: usize| SourceLetter {
        reason: "r".to_owned(),
        size_bytes: 1,
        place: "p".to_owned(),
        subject: "s".to_owned(),
        time: Timestamp(1),
        payload: vec![b'x'; bytes],
    };
    let with = |bytes| Append { letters: vec![letter(bytes)], ..Append::default() };
    let Bench { journal, lane, .. } = bench;
    drop(lane);
    // Enough room comes of another one, and the replay is left alone.
    appender.append(with(60_000)).await.unwrap();
    appender.append(with(60_000)).await.unwrap();
    assert!(journal.replays(0).unwrap()[0].ended_at.is_none());
    // Now it does not.
    let most = usize::try_from(LETTERS_BYTES_MIN - crate::limits::LETTER_ROW_BYTES).unwrap() - 3;
    appender.append(with(most)).await.unwrap();
    let replay = &journal.replays(0).unwrap()[0];
    assert_eq!((replay.id, replay.class.as_str()), (id, "cancelled"));
    let filter = LettersFilter { limit: 10, ..Default::default() };
    let left: Vec<_> =
        journal.letters(&filter).unwrap().iter().map(|letter| letter.payload_bytes).collect();
    assert_eq!(left, [most as u64]);
    journal.close().await.unwrap();
}

#[tokio::test]
async fn what_plugins_make_of_letters_never_brings_the_store_over_its_limit() {
    for on_full in [LettersOnFull::Hold, LettersOnFull::DropOldest] {
        let dir = tempfile::tempdir().unwrap();
        let letters = LettersConfig { max_bytes: Some(ByteSize(LETTERS_BYTES_MIN)), on_full };
        let config = JournalConfig { letters, ..JournalConfig::default() };
        let bench = Bench::with(dir.path(), config, &[1]).await;
        // Of another run: set aside by a transform, 20 kB of it.
        bench.journal.appender(&source()).await.unwrap().append(records(&["e"])).await.unwrap();
        let mut seal = range_batch(&bench.opened, 5, 5);
        (seal.batch.records, seal.dead_lettered) = (0, 1);
        let of = format!("gw/s/p/k/0000100001/b{}", seal.batch.number);
        let record = "gw/s/p/k/0000100001/5".to_owned();
        seal.letters = vec![super::model::letter(5, record, vec![b'x'; 20_000])];
        bench.lane.seal(seal).await.unwrap().durable().await.unwrap();
        let own = bench.letters()[1].id;
        let appender = bench.journal.appender(&source()).await.unwrap();
        let letter = |bytes: usize| SourceLetter {
            reason: "too large".to_owned(),
            size_bytes: 1 << 20,
            place: "f".to_owned(),
            subject: "sub".to_owned(),
            time: Timestamp(1),
            payload: vec![b'x'; bytes],
        };
        let with = |bytes| Append { letters: vec![letter(bytes)], ..Append::default() };
        appender.append(with(20_000)).await.unwrap();
        let room = || *bench.journal.letters_room().borrow();
        // It splits into five, which are as large as a letter each.
        let split = |number: u64, count: u64, made_bytes| {
            let mut replay = bench.replay(&[own], number, 1);
            (replay.batch.first_seq, replay.batch.last_seq) = (Seq(5), Seq(5));
            (replay.batch.records, replay.made_bytes) = (count, made_bytes);
            replay.batch.variant.shown = Shown::of_identity(bench.lane.name(), &format!("{of}/r1"));
            (replay.stage, replay.of) = ("clean".to_owned(), of.clone());
            replay
        };
        let too_much = split(3, 5, 100_000);
        bench.store(&too_much.batch).await;
        let refused = bench.lane.seal_replay(too_much).await.unwrap_err();
        assert!(refused.is_letters_full(), "{refused}");
        assert!(bench.letters().iter().all(|letter| !letter.is_under_way));
        bench.lane.discard_parts().await.unwrap();
        // What fits, in the place of the letter and of what is left.
        let replay = split(3, 2, 40_000);
        let id = bench.seal(&replay).await;
        // Something else has come in before its outcome.
        appender.append(with(9_000)).await.unwrap();
        let made =
            |n: u64| letter_record(5, format!("gw/s/p/k/0000100001/5.{n}"), vec![b'y'; 18_000]);
        let both = || sink_letters(vec![made(0), made(1)], LetterClass::Rejected);
        let answer = bench.lane.ack_replay(&replay.batch, both(), 0).await;
        if on_full == LettersOnFull::Hold {
            assert!(answer.unwrap_err().is_letters_full());
            assert_eq!(bench.journal.replays(id - 1).unwrap()[0].ended_at, None);
            let youngest = bench.letters().last().unwrap().id;
            bench.journal.discard_letters(vec![youngest], None).await.unwrap();
            bench.lane.ack_replay(&replay.batch, both(), 0).await.unwrap();
        } else {
            answer.unwrap();
        }
        assert!(room().bytes <= room().bytes_max, "{:?}", room());
        let made: Vec<_> = bench.letters().into_iter().filter(|l| l.seq == Some(5)).collect();
        assert_eq!(made.len(), 2, "{made:?}");
        assert!(made.iter().all(|letter| letter.id != own && letter.stage == "k"));
        let counted = LettersState::load(&open::connect_reader(bench.journal.path()).unwrap());
        assert_eq!(room().bytes, counted.unwrap().bytes);
    }
}

#[tokio::test]
async fn the_outcome_of_a_replay_is_there_however_many_were_sealed_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = JournalConfig { max_bytes: ByteSize(1 << 20), ..JournalConfig::default() };
    let rows = 128;
    let bench = Bench::with(dir.path(), config, &vec![2; rows + 20]).await;
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let mut sealed = Vec::new();
    for (id, number) in ids.iter().zip(1..) {
        let seal = bench.replay(&[*id], number + 1, number);
        sealed.push((bench.seal(&seal).await, seal));
    }
    let ended = || {
        let replays = bench.journal.replays(0).unwrap();
        replays.into_iter().filter(|r| r.ended_at.is_some()).map(|r| r.id).collect::<Vec<_>>()
    };
    for (number, (id, seal)) in sealed.iter().enumerate() {
        let nothing = sink_letters(Vec::new(), LetterClass::Rejected);
        bench.lane.ack_replay(&seal.batch, nothing, 0).await.unwrap();
        let there = ended();
        assert_eq!(there.last(), Some(id), "what has just ended");
        assert_eq!(there.len(), rows.min(number + 1));
    }
    let pace = bench.journal.pace();
    assert!(pace.replays_max * 2 < rows as u64, "{pace:?}");
}

/// Most of the pages that letters need in one transaction are those of the largest.
#[tokio::test]
async fn letters_come_back_of_a_replay_into_a_journal_that_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let letters = LettersConfig { max_bytes: Some(ByteSize(900 << 10)), ..Default::default() };
    let config =
        JournalConfig { max_bytes: ByteSize(2 << 20), letters, ..JournalConfig::default() };
    let bench = Bench::with(dir.path(), config, &[]).await;
    let appender = bench.journal.appender(&source()).await.unwrap();
    appender.append(records(&["e", "f"])).await.unwrap();
    let batch = range_batch(&bench.opened, 5, 6);
    bench.lane.seal(batch.clone()).await.unwrap().durable().await.unwrap();
    let large = |n| letter_record(5, format!("gw/s/p/k/0000100001/5.{n}"), vec![b'x'; 10_000]);
    let large = || sink_letters((0..40).map(large).collect(), LetterClass::Rejected);
    bench.lane.ack_with_letters(&batch.batch, large()).await.unwrap();
    let ids: Vec<_> = bench.letters().iter().map(|letter| letter.id).collect();
    let mut replay = bench.replay(&ids, 3, 1);
    replay.of = bench.letters()[0].batch.clone().unwrap();
    bench.seal(&replay).await;
    // Records take all that is left for them.
    let mut seed = 0;
    loop {
        seed += 1;
        let mut pending = std::pin::pin!(appender.append(super::full::noise(seed, 8_000)));
        let full = super::full::snapshot_when(&bench.journal, "full", |s| s.quota.full.is_some());
        tokio::select! {
            result = &mut pending => result.unwrap(),
            _ = full => break,
        }
    }
    let again = bench.lane.ack_replay(&replay.batch, large(), 0).await;
    again.unwrap();
    let there = bench.letters();
    assert!(there.len() == 40 && there.iter().all(|letter| !letter.is_under_way));
}

#[tokio::test]
async fn a_repaired_letter_is_another_record_with_the_seal() {
    let dir = tempfile::tempdir().unwrap();
    let bench = Bench::new(dir.path(), &[2]).await;
    let id = bench.letters()[0].id;
    let mut seal = bench.replay(&[id], 2, 1);
    let identity = "gw/s/p/k/0000100001/2~1".to_owned();
    seal.repair =
        Some(Repair { letter: id, identity: identity.clone(), payload: b"good".to_vec() });
    bench.seal(&seal).await;
    let (letter, payload) = bench.journal.letter(id).unwrap().unwrap();
    assert_eq!((letter.record, payload), (Some(identity.clone()), b"good".to_vec()));
    let again = vec![letter_record(2, identity.clone(), b"good".to_vec())];
    bench
        .lane
        .ack_replay(&seal.batch, sink_letters(again, LetterClass::Rejected), 0)
        .await
        .unwrap();
    let letters = bench.letters();
    assert_eq!((letters.len(), letters[0].record.clone()), (1, Some(identity)));
    let counted = LettersState::load(&open::connect_reader(bench.journal.path()).unwrap());
    assert_eq!(bench.journal.letters_room().borrow().bytes, counted.unwrap().bytes);
}
