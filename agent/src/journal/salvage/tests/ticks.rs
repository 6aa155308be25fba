//! What ticks made, in a journal that is salvaged: nothing makes it again.

use super::*;

/// Seals what a tick made behind a seq: so many records, whose payloads are their numbers.
async fn tick(
    lane: &LaneJournal,
    number: u64,
    epoch: Epoch,
    sealed: u64,
    records: u64,
) -> StoredBatch {
    let (mut frames, mut hash) = (FrameBuffer::default(), ContentHash::default());
    for n in 0..records {
        let payload = n.to_string();
        let mut path = crate::record::PathBuffer::default();
        path.set(crate::record::Path::default(), n);
        let record = crate::record::RecordView {
            epoch,
            seq: Seq(sealed),
            origin: crate::record::Origin { tick: Some(number), path: path.as_path(), repair: 0 },
            time: Timestamp(5),
            subject: "ticks",
            headers: Headers::default(),
            payload: payload.as_bytes(),
        };
        frames.push(&record);
        hash.update(&record);
    }
    let (batch, first_seq) = (BatchNumber(number), Seq(sealed + 1));
    let place = PartPlace { batch, epoch, part: 0, first_seq };
    let mut encoder = PartEncoder::default();
    lane.store_part(&mut encoder, place, frames.count(), frames.bytes()).await.unwrap();
    let batch = StoredBatch {
        number: batch,
        epoch,
        first_seq,
        last_seq: Seq(sealed),
        sealed_at: Timestamp(9),
        records,
        parts: 1,
        sha256: hash.finish(),
        fixed: "{}".to_owned(),
        variant: Variant::default(),
    };
    let (letters, state, sealed) = (Vec::new(), Vec::new(), batch.clone());
    let seal = Seal { batch, dropped: 0, not_taken: 0, dead_lettered: 0, letters, state };
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    sealed
}

/// A journal whose lane `parts` has, none of them acked: what a tick made before the first record, a batch of 50, what a tick
/// made behind it, another batch and what a tick made behind that.
async fn with_ticks() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    let (lane, _) = journal.lane(spec("parts")).await.unwrap();
    // Another lane keeps the records.
    journal.lane(spec("all")).await.unwrap();
    append(&appender, 1, 100).await;
    let epoch = opening.epoch;
    tick(&lane, 1, epoch, 0, 2).await;
    seal(&lane, BatchNumber(2), epoch, (1, 50), true).await;
    tick(&lane, 3, epoch, 50, 3).await;
    seal(&lane, BatchNumber(4), epoch, (51, 100), true).await;
    tick(&lane, 5, epoch, 100, 4).await;
    journal.close().await.unwrap();
    fs::write(dir.path().join("journal.damaged"), "planted").unwrap();
    dir
}

/// Spoils the checksum of each copy of a part of this batch: pages keep what was written over elsewhere.
fn spoil(directory: &Path, batch: u64) {
    let path = directory.join("journal.db");
    let mut bytes = fs::read(&path).unwrap();
    let is_part = |at: &usize| {
        let header = &bytes[*at..];
        header.starts_with(b"WAYS\x01\x02") && header[24..32] == batch.to_le_bytes()
    };
    let found: Vec<_> = (0..bytes.len() - 96).filter(is_part).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|at| bytes[at + 92] ^= 1);
    fs::write(path, bytes).unwrap();
}

/// Number, range and records of what waits.
fn waiting(opened: &OpenedLane) -> Vec<(u64, u64, u64, u64)> {
    let batches = opened.unacked.iter();
    batches.map(|b| (b.number.0, b.first_seq.0, b.last_seq.0, b.records)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ticks_made_is_kept_where_it_proves_itself() {
    let dir = with_ticks().await;
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert_eq!(
        (report.lost_records, report.cut_again.len(), report.batches),
        (0, 0, 5),
        "{report:?}"
    );
    let (_, opened) = journal.lane(spec("parts")).await.unwrap();
    let all = [(1, 1, 0, 2), (2, 1, 50, 50), (3, 51, 50, 3), (4, 51, 100, 50), (5, 101, 100, 4)];
    assert_eq!(waiting(&opened), all);
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tick_made_and_is_damaged_is_lost_and_told_and_nothing_else_is() {
    let dir = with_ticks().await;
    spoil(dir.path(), 3);
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert_eq!((report.lost_records, report.cut_again.len()), (3, 0), "{report:?}");
    let (_, opened) = journal.lane(spec("parts")).await.unwrap();
    assert_eq!(
        waiting(&opened),
        [(1, 1, 0, 2), (2, 1, 50, 50), (4, 51, 100, 50), (5, 101, 100, 4)]
    );
    let totals =
        journal.snapshots().borrow().lanes.iter().map(|lane| lane.totals.lost).sum::<u64>();
    assert_eq!(totals, 0, "they were no input");
    journal.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ticks_made_behind_a_batch_that_is_sealed_again_goes_in_front_of_it() {
    let dir = with_ticks().await;
    spoil(dir.path(), 2);
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let report = opening.salvaged.unwrap();
    assert_eq!((report.lost_records, report.cut_again.len()), (0, 1), "{report:?}");
    let (lane, opened) = journal.lane(spec("parts")).await.unwrap();
    assert_eq!(waiting(&opened), [(1, 1, 0, 2), (3, 1, 0, 3), (5, 1, 0, 4)]);
    assert_eq!((opened.sealed_seq, opened.next_batch), (Seq(0), BatchNumber(6)));
    seal(&lane, BatchNumber(6), opening.epoch, (1, 100), true).await;
    journal.close().await.unwrap();
    // A start finds nothing wrong with it.
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    assert!(opening.salvaged.is_none(), "{:?}", opening.salvaged);
    let (_, opened) = journal.lane(spec("parts")).await.unwrap();
    assert_eq!(waiting(&opened).len(), 4);
    journal.close().await.unwrap();
}
