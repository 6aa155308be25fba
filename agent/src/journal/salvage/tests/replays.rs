//! Replays of dead letters in a journal that is salvaged: sealed ones stay, damaged ones end and give their letters back.

use super::*;

/// A letter of a transform that gave this record up.
fn set_aside(seq: u64) -> StageLetter {
    StageLetter {
        stage: "clean".to_owned(),
        plugin_sha256: [3; 32],
        class: "rejected",
        record: letter_record(seq),
    }
}

fn letter_record(seq: u64) -> LetterRecord {
    LetterRecord {
        reason: "no".to_owned(),
        identity: format!("gw/s/p/parts/0000100001/{seq}"),
        seq: Seq(seq),
        is_of_tick: false,
        time: Timestamp(2),
        subject: "sub".to_owned(),
        headers: Vec::new(),
        payload: payload(seq),
    }
}

fn sink_letters(letters: Vec<LetterRecord>) -> SinkLetters {
    let (first_at, last_at) = (Timestamp(3), Timestamp(4));
    let (class, state) = (LetterClass::Rejected, Vec::new());
    SinkLetters { class, attempts: 1, first_at, last_at, letters, state }
}

/// Seals a replay of one letter: what the transform makes of its record now.
async fn seal_replay(lane: &LaneJournal, number: u64, epoch: Epoch, letter: &Letter) {
    let seq = letter.seq.unwrap();
    let (frames, sha256) = content(lane, seq, seq);
    let number = BatchNumber(number);
    let place = PartPlace { batch: number, epoch, part: 0, first_seq: Seq(seq) };
    let mut encoder = PartEncoder::default();
    lane.store_part(&mut encoder, place, frames.count(), frames.bytes()).await.unwrap();
    let of = letter.batch.clone().unwrap();
    let replays = lane.letter_batch(&of).unwrap().map_or(1, |batch| batch.replays + 1);
    let shown = Shown::of_identity(lane.name(), &format!("{of}/r{replays}"));
    let batch = StoredBatch {
        number,
        epoch,
        first_seq: Seq(seq),
        last_seq: Seq(seq),
        sealed_at: Timestamp(9),
        records: 1,
        parts: 1,
        sha256,
        fixed: "{}".to_owned(),
        variant: Variant { shown, replay: true, ..Variant::default() },
    };
    let (returned, further, state) = (Vec::new(), Vec::new(), Vec::new());
    let seal = ReplaySeal {
        batch,
        stage: letter.stage.clone(),
        of,
        replays,
        letters: vec![letter.id],
        without_output: Vec::new(),
        returned,
        further,
        repair: None,
        state,
        made_bytes: 0,
    };
    lane.seal_replay(seal).await.unwrap();
}

fn letters(journal: &Journal) -> Vec<Letter> {
    journal.letters(&LettersFilter { limit: 100, ..Default::default() }).unwrap()
}

/// A journal with one lane, whose first batch waits: a transform has given records 10, 20 and 30 up. The letter of 10 is
/// under way in a replay, that of 20 has come back of one, that of 30 is as it was.
async fn replaying() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    append(&appender, 1, 1000).await;
    // It keeps the records.
    journal.lane(spec("all")).await.unwrap();
    let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
    let (frames, sha256) = content(&lane, 1, 97);
    let (number, epoch) = (opened.next_batch, opening.epoch);
    let place = PartPlace { batch: number, epoch, part: 0, first_seq: Seq(1) };
    let mut encoder = PartEncoder::default();
    lane.store_part(&mut encoder, place, frames.count(), frames.bytes()).await.unwrap();
    let batch = StoredBatch {
        number,
        epoch,
        first_seq: Seq(1),
        last_seq: Seq(100),
        sealed_at: Timestamp(9),
        records: 97,
        parts: 1,
        sha256,
        fixed: "{}".to_owned(),
        variant: Variant::default(),
    };
    let aside = [10, 20, 30].map(set_aside).to_vec();
    let state = Vec::new();
    let seal = Seal { batch, dropped: 0, not_taken: 0, dead_lettered: 3, letters: aside, state };
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    let [ten, twenty, _] = &letters(&journal)[..] else { panic!("three letters") };
    seal_replay(&lane, 2, epoch, twenty).await;
    let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
    // Its transform's record is refused by the sink now: another letter of the same input.
    let back = sink_letters(vec![letter_record(20)]);
    lane.ack_replay(&opened.replays[0], back, 0).await.unwrap();
    seal_replay(&lane, 3, epoch, ten).await;
    journal.close().await.unwrap();
    dir
}

fn plant(directory: &Path, sql: &str) {
    #[expect(clippy::disallowed_methods, reason = "the test plants a fault")]
    let database = rusqlite::Connection::open(directory.join("journal.db")).unwrap();
    database.execute_batch(sql).unwrap();
    fs::write(directory.join("journal.damaged"), "planted").unwrap();
}

/// Changes one byte of the parts of a batch.
fn spoil_part(number: u64) -> String {
    format!(
        "UPDATE batch_parts SET data = CAST(substr(data, 1, 100) || iif(substr(data, 101, 1) = x'00', x'01', x'00')
           || substr(data, 102) AS BLOB) WHERE (key >> 14) & ((1 << 36) - 1) = {number}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_replay_is_delivered_after_a_salvage_for_damage_elsewhere() {
    let damaged = replaying().await;
    plant(damaged.path(), &spoil_part(1));
    let (journal, opening) = Journal::open(&options(damaged.path())).unwrap();
    let report = opening.salvaged.unwrap();
    let again = LaneRange { lane: "gw/s/p/parts".to_owned(), first: 1, last: 100 };
    assert_eq!((&report.cut_again, report.lost_records), (&vec![again], 0), "{report:?}");
    // What the damaged batch had set aside and nobody has touched is decided anew; the others are more than that.
    let there: Vec<_> =
        letters(&journal).iter().map(|l| (l.seq.unwrap(), l.is_under_way)).collect();
    assert_eq!(there, [(10, true), (20, false)]);
    let replay = journal.replays(0).unwrap().pop().unwrap();
    assert_eq!((replay.ended_at, replay.class.as_str()), (None, ""));
    let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
    assert_eq!((opened.sealed_seq, opened.unacked.len(), opened.replays.len()), (Seq(0), 0, 1));
    let mut reader = lane.open_batch(&opened.replays[0]);
    let block = reader.next_block().unwrap().unwrap();
    assert_eq!(block.records().next().unwrap().unwrap().payload, payload(10));
    lane.ack_replay(&opened.replays[0], sink_letters(Vec::new()), 0).await.unwrap();
    let replay = journal.replays(0).unwrap().pop().unwrap();
    assert_eq!((replay.delivered, replay.already, replay.returned), (1, 0, 0));
    assert_eq!(letters(&journal).len(), 1);
    // All that was accepted still has one outcome, or waits for it.
    let batch = seal(&lane, opened.next_batch, opening.epoch, (1, 1000), false).await;
    lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    journal.close().await.unwrap();
    let snapshot = journal.snapshots().borrow().clone();
    let lane = snapshot.lanes.iter().find(|lane| lane.name.as_str() == "gw/s/p/parts").unwrap();
    let (totals, queued) = (lane.totals, lane.queued);
    let sum = totals.delivered + totals.dropped + totals.dead_lettered + totals.lost;
    assert_eq!((sum, queued), (1000, 0), "{totals:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_that_is_damaged_ends_so_and_its_letter_is_open_again() {
    for fault in [spoil_part(3), "DELETE FROM batches WHERE number = 3".to_owned()] {
        let damaged = replaying().await;
        plant(damaged.path(), &fault);
        let (journal, opening) = Journal::open(&options(damaged.path())).unwrap();
        assert_eq!(opening.salvaged.unwrap().cut_again, Vec::new());
        let there: Vec<_> =
            letters(&journal).iter().map(|l| (l.seq.unwrap(), l.is_under_way)).collect();
        assert_eq!(there, [(10, false), (30, false), (20, false)], "{fault}");
        let replay = journal.replays(0).unwrap().pop().unwrap();
        assert_eq!((replay.class.as_str(), replay.delivered, replay.returned), ("damage", 0, 1));
        assert!(replay.ended_at.is_some());
        let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
        assert_eq!((opened.unacked.len(), opened.replays.len()), (1, 0));
        assert_eq!(opened.next_batch, BatchNumber(4));
        let ten = letters(&journal).remove(0);
        seal_replay(&lane, 4, opening.epoch, &ten).await;
        let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
        let identity = opened.replays[0].identity(lane.name());
        assert!(identity.ends_with("/b1/r3"), "no identity is used twice: {identity}");
        journal.close().await.unwrap();
    }
}
