//! Damage of all kinds to a journal, and what is left of it.

mod acked;
mod full;
mod lanes;
mod replays;
mod ticks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::super::config::{Durability, JournalConfig};
use super::super::*;
use super::*;
use crate::clock::SystemClock;
use crate::record::Headers;
use crate::record::batch::{ContentHash, FrameBlock};
use crate::record::codec::FrameBuffer;
use crate::record::id::{AgentId, BatchNumber, LaneNumber, Seq};

const PAGE: usize = open::PAGE_BYTES;
const FRAME: usize = 24 + PAGE;
const RECORDS: u64 = 20_000;
const RECORDS_A_CHUNK: u64 = 50;

fn options(directory: &Path) -> JournalOptions {
    JournalOptions {
        directory: directory.to_owned(),
        // Nothing here cuts the power.
        config: JournalConfig { durability: Durability::Relaxed, ..JournalConfig::default() },
        agent: None,
        host: "gw".parse().unwrap(),
        clock: Arc::new(SystemClock),
    }
}

fn source() -> SourceId {
    "s".parse().unwrap()
}

fn spec(sink: &str) -> LaneSpec {
    LaneSpec {
        agent: "gw".parse::<AgentId>().unwrap(),
        source: source(),
        pipeline: "p".parse().unwrap(),
        sink: sink.parse().unwrap(),
        start_now: false,
    }
}

/// The payload of a record: it cannot be compressed and tells its seq.
fn payload(seq: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seq);
    let mut bytes = seq.to_le_bytes().to_vec();
    let length = 80 + random.usize(..100);
    bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(length));
    bytes
}

async fn append(appender: &Appender, from: u64, to: u64) {
    let mut first = from;
    while first <= to {
        let last = to.min(first + RECORDS_A_CHUNK - 1);
        let mut append = Append::default();
        for seq in first..=last {
            append.frames.push_new(Timestamp(5), "sub", Headers::default(), &payload(seq));
        }
        let value = Some(last.to_string().into_bytes());
        append.positions = vec![Position { key: "file".to_owned(), value }];
        appender.append(append).await.unwrap();
        first = last + 1;
    }
}

/// The records of a range, as one buffer of frames and their hash.
fn content(lane: &LaneJournal, first: u64, last: u64) -> (FrameBuffer, [u8; 32]) {
    let (mut frames, mut hash) = (FrameBuffer::default(), ContentHash::default());
    let mut next = Seq(first);
    while next.0 <= last {
        for block in lane.read(next).unwrap() {
            if next.0 > last {
                break;
            }
            let block = cut(block, next, Seq(last));
            for record in block.records() {
                let record = record.unwrap();
                frames.push(&record);
                hash.update(&record);
            }
            next = next.plus(u64::from(block.take));
        }
    }
    (frames, hash.finish())
}

/// Seals a range, as itself or in parts.
async fn seal(
    lane: &LaneJournal,
    number: BatchNumber,
    epoch: Epoch,
    range: (u64, u64),
    in_parts: bool,
) -> StoredBatch {
    try_seal(lane, number, epoch, range, in_parts).await.unwrap()
}

async fn try_seal(
    lane: &LaneJournal,
    number: BatchNumber,
    epoch: Epoch,
    range: (u64, u64),
    in_parts: bool,
) -> Result<StoredBatch, JournalError> {
    let (first, last) = range;
    let (frames, sha256) = content(lane, first, last);
    let mut parts = 0;
    if in_parts {
        let place = PartPlace { batch: number, epoch, part: 0, first_seq: Seq(first) };
        let mut encoder = PartEncoder::default();
        lane.store_part(&mut encoder, place, frames.count(), frames.bytes()).await.unwrap();
        parts = 1;
    }
    let batch = StoredBatch {
        number,
        epoch,
        first_seq: Seq(first),
        last_seq: Seq(last),
        sealed_at: Timestamp(9),
        records: last + 1 - first,
        parts,
        sha256,
        fixed: "{}".to_owned(),
        variant: Variant::default(),
    };
    let change = StateChange {
        component: "c".to_owned(),
        key: "n".to_owned(),
        value: Some(last.to_string().into_bytes()),
    };
    let state = if in_parts { vec![change] } else { Vec::new() };
    let (letters, sealed) = (Vec::new(), batch.clone());
    let seal = Seal { batch, dropped: 0, not_taken: 0, dead_lettered: 0, letters, state };
    lane.seal(seal).await?.durable().await?;
    Ok(sealed)
}

/// A journal of [`RECORDS`] records, half of them in the database and half in the WAL, as a killed agent leaves it. Lane `all`
/// has sealed nothing, `range` two batches of ranges, `parts` two with stored parts; of both the first was acked.
async fn killed() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    append(&appender, 1, RECORDS / 2).await;
    journal.lane(spec("all")).await.unwrap();
    for (sink, in_parts) in [("range", false), ("parts", true)] {
        let (lane, opened) = journal.lane(spec(sink)).await.unwrap();
        let batch = seal(&lane, opened.next_batch, opening.epoch, (1, 1000), in_parts).await;
        lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    }
    journal.close().await.unwrap();
    let (journal, opening) = Journal::open(&options(dir.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    append(&appender, RECORDS / 2 + 1, RECORDS - 5000).await;
    for (sink, in_parts) in [("range", false), ("parts", true)] {
        let (lane, opened) = journal.lane(spec(sink)).await.unwrap();
        seal(&lane, opened.next_batch, opening.epoch, (1001, 1900), in_parts).await;
    }
    append(&appender, RECORDS - 4999, RECORDS).await;
    let copy = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal", "high-water.json"] {
        fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    copy
}

/// What reading a damaged journal to its end came to.
#[derive(Debug, Default)]
struct Read {
    /// Seqs, each with the right content.
    seqs: BTreeSet<u64>,
    report: Option<SalvageReport>,
    /// How often it had to be opened.
    opens: usize,
    lost: u64,
    head: u64,
}

/// Opens the journal and takes lane `all` to its end, as an agent does: over gaps, and anew after damage.
async fn read_all(directory: &Path) -> Read {
    let mut read = Read::default();
    loop {
        read.opens += 1;
        assert!(read.opens <= 3, "it is salvaged again and again: {:?}", read.report);
        let (journal, opening) = Journal::open(&options(directory)).unwrap();
        if opening.salvaged.is_some() {
            assert_eq!(opening.case, StartCase::Salvaged);
            read.report = opening.salvaged;
        }
        let (lane, opened) = match journal.lane(spec("all")).await {
            Ok(opened) => opened,
            Err(error) => {
                // What the start's look did not come to: the agent begins anew, and so does this.
                assert!(journal.damage().borrow().is_some(), "{error}");
                drop(journal.close().await);
                continue;
            }
        };
        let mut next = opened.sealed_seq.next();
        let head = lane.head().borrow().seq;
        read.seqs.clear();
        let damaged = loop {
            if next > head {
                break false;
            }
            match lane.read(next) {
                Ok(blocks) => {
                    for block in blocks {
                        next = check(&block, &mut read.seqs).max(next);
                    }
                }
                Err(JournalError::Missing { .. }) => {
                    // Only a lane that has sealed what stands in front of a gap can step over it.
                    let (lane, _) = journal.lane(spec("all")).await.unwrap();
                    let runtime = tokio::runtime::Handle::current();
                    let gap = tokio::task::spawn_blocking(move || lane.step_over(next, &runtime));
                    next = match gap.await.unwrap() {
                        Ok((last, pending)) => {
                            // It has not, but the way there is the same.
                            drop(pending.durable().await);
                            last.next()
                        }
                        Err(error) => panic!("{error}"),
                    };
                }
                Err(_) => break true,
            }
        };
        read.head = head.0;
        read.lost = head.0 - opened.sealed_seq.0 - read.seqs.len() as u64;
        // Closing may fail on what is damaged; the next opening sees to it.
        let closed = journal.close().await;
        if !damaged {
            closed.unwrap();
            return read;
        }
    }
}

/// Takes all lanes to the end of a journal that was read through before: every record is delivered or lost. Damage that is met
/// only by who writes ends the run, and the next one salvages it, as an agent does.
async fn deliver_all(directory: &Path) {
    for _ in 0..3 {
        if deliver(directory).await {
            return;
        }
    }
    panic!("it is salvaged again and again");
}

async fn deliver(directory: &Path) -> bool {
    let (journal, opening) = Journal::open(&options(directory)).unwrap();
    for sink in ["all", "range", "parts"] {
        let (lane, opened) = journal.lane(spec(sink)).await.unwrap();
        for batch in &opened.unacked {
            let mut reader = lane.open_batch(batch);
            let mut hash = ContentHash::default();
            while let Some(block) = reader.next_block().unwrap() {
                block.records().for_each(|record| hash.update(&record.unwrap()));
            }
            assert_eq!(hash.finish(), batch.sha256, "{batch:?}");
            lane.ack(batch, Finish::Delivered, 1).await.unwrap();
        }
        let (mut next, mut number) = (opened.sealed_seq.next(), opened.next_batch);
        let head = lane.head().borrow().seq;
        while next <= head {
            let blocks = match lane.read(next) {
                Ok(blocks) => blocks,
                Err(JournalError::Missing { .. }) => {
                    let (own, runtime) = (lane.clone(), tokio::runtime::Handle::current());
                    let gap = tokio::task::spawn_blocking(move || own.step_over(next, &runtime));
                    let (last, pending) = gap.await.unwrap().unwrap();
                    pending.durable().await.unwrap();
                    next = last.next();
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let last = blocks.last().unwrap();
            let last = last.first_seq.plus(last.count.into()).before();
            let batch = match try_seal(&lane, number, opening.epoch, (next.0, last.0), false).await
            {
                Ok(batch) => batch,
                Err(JournalError::Group(cause)) if soundness::is_damage(&cause) => {
                    drop(journal.close().await);
                    return false;
                }
                Err(error) => panic!("{error:?}"),
            };
            lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
            (next, number) = (last.next(), BatchNumber(number.0 + 1));
        }
    }
    if journal.close().await.is_err() {
        return false;
    }
    let (journal, _) = Journal::open(&options(directory)).unwrap();
    let snapshot = journal.snapshots().borrow().clone();
    for lane in &snapshot.lanes {
        let totals = lane.totals;
        let head = snapshot.streams.iter().find(|stream| stream.source == lane.source);
        let outcomes = totals.delivered + totals.dropped + totals.dead_lettered + totals.lost;
        assert_eq!(outcomes, head.unwrap().head.0 - lane.start.0, "{lane:?}");
        assert_eq!(lane.queued, 0, "{lane:?}");
    }
    true
}

/// Whether all records of a block are what was appended; gives the next seq.
fn check(block: &FrameBlock, seqs: &mut BTreeSet<u64>) -> Seq {
    for record in block.records() {
        let record = record.unwrap();
        assert_eq!(record.payload, payload(record.seq.0), "record {} was changed", record.seq);
        seqs.insert(record.seq.0);
    }
    block.first_seq.plus(u64::from(block.count))
}

/// Where the bytes of each chunk stand in the undamaged files: for each of its pages, all copies of it.
struct Places(Vec<(u64, Vec<Vec<Place>>)>);

/// A run of bytes in the database or the WAL.
#[derive(Debug, Clone, Copy)]
struct Place {
    in_wal: bool,
    from: usize,
    to: usize,
}

impl Places {
    fn find(directory: &Path) -> Self {
        let files = [
            fs::read(directory.join("journal.db")).unwrap(),
            fs::read(directory.join("journal.db-wal")).unwrap(),
        ];
        // Pages by what an overflow page begins with behind its pointer, and places of headers.
        let (mut overflow, mut headers) = (HashMap::<Vec<u8>, Vec<Place>>::new(), BTreeMap::new());
        for (in_wal, bytes) in [false, true].into_iter().zip(&files) {
            let (begin, step, lead) = if in_wal { (32, FRAME, 24) } else { (0, PAGE, 0) };
            for from in (begin..bytes.len().saturating_sub(step - 1)).step_by(step) {
                let page = &bytes[from + lead..from + step];
                let place = Place { in_wal, from, to: from + step };
                overflow.entry(page[4..68].to_vec()).or_default().push(place);
                for at in memchr::memmem::find_iter(page, b"WAYS\x01\x01") {
                    let Some(Ok(header)) = page.get(at..at + 96).map(chunk::header) else {
                        continue;
                    };
                    let seq = header.label.first_seq.0;
                    let known: &mut Vec<_> = headers.entry(seq).or_default();
                    known.push((place, from + lead + at));
                }
            }
        }
        let database = open::connect_reader(&directory.join("journal.db")).unwrap();
        let mut query = database.prepare("SELECT key, data FROM chunks").unwrap();
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let chunks = rows.map(|row| {
            let (key, data): (i64, Vec<u8>) = row.unwrap();
            let seq = state::key_seq(key).0;
            let mut pages = Vec::new();
            let found: &Vec<(Place, usize)> = &headers[&seq];
            let local = local(data.len());
            pages.push(
                found
                    .iter()
                    .map(|(place, at)| {
                        let head = if place.in_wal { place.from } else { at - 16 };
                        Place { from: head, to: at + local + 4, ..*place }
                    })
                    .collect(),
            );
            for piece in data[local..].chunks(PAGE - 4).filter(|piece| piece.len() >= 64) {
                pages.push(overflow[&piece[..64]].clone());
            }
            (seq, pages)
        });
        Self(chunks.collect())
    }

    /// Seqs whose bytes are all still where they were, in one copy at least.
    fn undamaged(&self, before: &[Vec<u8>; 2], after: &[Vec<u8>; 2]) -> BTreeSet<u64> {
        let is_same = |place: &Place| {
            let file = usize::from(place.in_wal);
            let range = place.from..place.to;
            after[file].get(range.clone()) == before[file].get(range)
        };
        let whole = self
            .0
            .iter()
            .filter(|(_, pages)| pages.iter().all(|copies| copies.iter().any(is_same)));
        whole.flat_map(|(seq, _)| *seq..*seq + RECORDS_A_CHUNK).collect()
    }
}

/// How much of a chunk stands beside its header: SQLite's rule for a record of this size.
fn local(chunk: usize) -> usize {
    let kind_bytes = if chunk * 2 + 12 < 1 << 14 { 2 } else { 3 };
    let record = 2 + kind_bytes + chunk;
    let surplus = 489 + (record - 489) % 4092;
    let on_page = if record <= 4061 {
        record
    } else if surplus <= 4061 {
        surplus
    } else {
        489
    };
    on_page - 2 - kind_bytes
}

fn files(directory: &Path) -> [Vec<u8>; 2] {
    ["journal.db", "journal.db-wal"].map(|name| fs::read(directory.join(name)).unwrap_or_default())
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for name in ["journal.db", "journal.db-wal", "high-water.json"] {
        fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    to
}

const KINDS: [&str; 14] = [
    "flip db", "flip wal", "shm", "cut db", "cut wal", "zero db", "ones db", "zero wal",
    "ones wal", "swap db", "swap wal", "no db", "no wal", "head db",
];

/// Plants damage of one kind.
fn damage(kind: &str, directory: &Path, random: &mut fastrand::Rng) {
    let [mut database, mut log] = files(directory);
    let pages = database.len() / PAGE;
    let frames = {
        // The rest of the WAL was extended in advance.
        let written = log.iter().rposition(|byte| *byte != 0).unwrap();
        (written - 32) / FRAME
    };
    let page = random.usize(0..pages) * PAGE;
    let frame = 32 + random.usize(0..frames) * FRAME;
    let other_page = random.usize(0..pages) * PAGE;
    let other_frame = 32 + random.usize(0..frames) * FRAME;
    let flips = random.usize(1..4);
    match kind {
        "flip db" => {
            for _ in 0..flips {
                let at = random.usize(0..database.len());
                database[at] ^= 1 << random.u8(0..8);
            }
        }
        "flip wal" => {
            for _ in 0..flips {
                let at = random.usize(0..32 + frames * FRAME);
                log[at] ^= 1 << random.u8(0..8);
            }
        }
        "shm" => {
            let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(32768).collect();
            fs::write(directory.join("journal.db-shm"), noise).unwrap();
        }
        "cut db" => database.truncate(random.usize(0..database.len())),
        "cut wal" => log.truncate(random.usize(0..32 + frames * FRAME)),
        "zero db" => database[page..page + PAGE].fill(0),
        "ones db" => database[page..page + PAGE].fill(0xff),
        "zero wal" => log[frame..frame + FRAME].fill(0),
        "ones wal" => log[frame + 24..frame + FRAME].fill(0xff),
        "swap db" => (0..PAGE).for_each(|at| database.swap(page + at, other_page + at)),
        "swap wal" => (0..FRAME).for_each(|at| log.swap(frame + at, other_frame + at)),
        "head db" => database[..100].fill(0),
        _ => {}
    }
    fs::write(directory.join("journal.db"), database).unwrap();
    fs::write(directory.join("journal.db-wal"), log).unwrap();
    match kind {
        "no db" => fs::remove_file(directory.join("journal.db")).unwrap(),
        "no wal" => fs::remove_file(directory.join("journal.db-wal")).unwrap(),
        _ => {}
    }
}

fn setting(name: &str) -> Option<u64> {
    #[expect(
        clippy::disallowed_methods,
        reason = "how large a test is does not belong into a config"
    )]
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_damaged_it_opens_changes_no_record_and_recovers_what_is_whole() {
    let trials = setting("WAYSTATION_TEST_DAMAGE").unwrap_or(50);
    let seed = setting("WAYSTATION_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed: WAYSTATION_TEST_SEED={seed}");
    let base = killed().await;
    let places = Places::find(copy(base.path()).path());
    let before = files(base.path());
    assert_eq!(places.undamaged(&before, &before).len() as u64, RECORDS);
    let (mut whole, mut missed, mut salvaged) = (0, 0, 0);
    for trial in 0..trials {
        let kind = KINDS[usize::try_from(trial).unwrap() % KINDS.len()];
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(trial));
        let damaged = copy(base.path());
        damage(kind, damaged.path(), &mut random);
        let undamaged = places.undamaged(&before, &files(damaged.path()));
        let read = read_all(damaged.path()).await;
        deliver_all(damaged.path()).await;
        let lost = undamaged.difference(&read.seqs).count();
        whole += undamaged.len();
        missed += lost;
        assert!(
            lost * 100 <= undamaged.len(),
            "trial {trial}, {kind}: {lost} of {} undamaged records are gone: {read:?}",
            undamaged.len()
        );
        let Some(report) = &read.report else { continue };
        salvaged += 1;
        assert_eq!(report.records, read.seqs.len() as u64, "trial {trial}, {kind}: {report:?}");
        let of_streams: u64 =
            report.lost.iter().filter(|l| l.lane.is_none()).map(|l| l.records).sum();
        assert_eq!(of_streams, read.lost, "trial {trial}, {kind}: {report:?}");
        assert!(report.kept.join("report.json").exists(), "{report:?}");
    }
    eprintln!("{trials} trials, {salvaged} salvages, {missed} of {whole} undamaged records missed");
    assert!(missed * 100 <= whole && salvaged > 0);
}

/// A lane with its cursors as a start finds them: behind the batches that were sealed since its row was written.
const LANE_COLUMNS: &str = "number, name, stream, pipeline, sink, dropped_at, start_seq,
    (SELECT max(sealed_seq, coalesce(max(last_seq), 0)) FROM batches WHERE lane = lanes.number),
    (SELECT max(next_batch, coalesce(max(number) + 1, 0)) FROM batches WHERE lane = lanes.number),
    delivered, dropped, dead_lettered, lost, not_taken, outputs_delivered";

/// What the tables say of lanes, batches that wait, state, positions: everything but chunks and parts.
fn tables(directory: &Path) -> Vec<String> {
    let database = open::connect_bystander(&directory.join("journal.db")).unwrap();
    let mut rows = Vec::new();
    for table in ["streams", "lanes", "batches", "plugin_state"] {
        let columns = match table {
            "streams" => "number, source",
            "lanes" => LANE_COLUMNS,
            _ => "*",
        };
        let mut query = database.prepare(&format!("SELECT {columns} FROM {table}")).unwrap();
        let count = query.column_count();
        let mut found = query.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values: Vec<rusqlite::types::Value> =
                (0..count).map(|index| row.get(index).unwrap()).collect();
            if table == "batches" {
                let (lane, number) =
                    (LaneNumber(row.get(0).unwrap()), row.get::<_, i64>(1).unwrap());
                let acked = crate::journal::acked::acked_batches(&database, lane).unwrap();
                if acked.iter().any(|done| done.number.0.cast_signed() == number) {
                    continue;
                }
            }
            rows.push(format!("{table} {values:?}"));
        }
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_first_page_a_journal_keeps_records_names_cursors_batches_and_state() {
    let base = killed().await;
    let before = tables(copy(base.path()).path());
    assert_eq!(before.len(), 1 + 3 + 2 + 1, "{before:?}");
    let wiped = copy(base.path());
    for name in ["journal.db", "journal.db-wal"] {
        let path = wiped.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        if name == "journal.db" {
            bytes[..PAGE].fill(0);
        } else {
            // Page 1 in the WAL, wherever it stands there.
            let frames = (bytes.len() - 32) / FRAME;
            for frame in (0..frames).map(|frame| 32 + frame * FRAME) {
                if bytes[frame..frame + 4] == [0, 0, 0, 1] {
                    bytes[frame + 24..frame + FRAME].fill(0);
                }
            }
        }
        fs::write(&path, bytes).unwrap();
    }
    let read = read_all(wiped.path()).await;
    let report = read.report.unwrap();
    eprintln!("{} ms", report.elapsed_ms);
    assert_eq!(read.seqs.len() as u64, RECORDS, "{report:?}");
    assert_eq!((report.lost_records, report.unreadable, report.batches), (0, 0, 2), "{report:?}");
    assert!(report.elapsed_ms < 10_000, "{report:?}");
    assert_eq!(tables(wiped.path()), before);
    let (journal, _) = Journal::open(&options(wiped.path())).unwrap();
    let appender = journal.appender(&source()).await.unwrap();
    assert_eq!(appender.positions()["file"], RECORDS.to_string().into_bytes());
    drop(appender);
    journal.close().await.unwrap();
    deliver_all(wiped.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_salvage_is_finished_or_begun_anew() {
    let base = killed().await;
    let damaged = copy(base.path());
    fs::write(damaged.path().join("journal.damaged"), "planted").unwrap();
    let clock = SystemClock;
    let build_whole = || {
        let mut report = build(damaged.path(), "planted", &clock).unwrap();
        report.kept = damaged.path().join("journal.corrupt-x");
        let text = serde_json::to_string(&report).unwrap();
        fs::write(damaged.path().join(REPORT_NAME), text).unwrap();
    };
    // Before the new database is whole: it is forgotten.
    build_whole();
    fs::rename(damaged.path().join(REPORT_NAME), damaged.path().join("later.json")).unwrap();
    assert_eq!(finish_interrupted(damaged.path()).unwrap(), None);
    assert!(!damaged.path().join(BUILDING_NAME).exists());
    // When it is whole: after each step of the swap.
    let steps = ["", "journal.db-wal", "journal.db"];
    for count in 1..=steps.len() {
        let at = tempfile::tempdir().unwrap();
        build_whole();
        fs::rename(damaged.path().join(BUILDING_NAME), at.path().join(WHOLE_NAME)).unwrap();
        for name in ["journal.db", "journal.db-wal", "journal.damaged"] {
            fs::copy(damaged.path().join(name), at.path().join(name)).unwrap();
        }
        let kept = at.path().join("journal.corrupt-x");
        let text = fs::read_to_string(damaged.path().join(REPORT_NAME)).unwrap();
        let mut report: SalvageReport = serde_json::from_str(&text).unwrap();
        report.kept.clone_from(&kept);
        fs::write(at.path().join(REPORT_NAME), serde_json::to_string(&report).unwrap()).unwrap();
        fs::create_dir(&kept).unwrap();
        for name in steps[..count].iter().filter(|name| !name.is_empty()) {
            fs::rename(at.path().join(name), kept.join(name)).unwrap();
        }
        let read = read_all(at.path()).await;
        assert_eq!(read.seqs.len() as u64, RECORDS, "step {count}");
        assert_eq!((read.opens, read.report.unwrap().kept), (1, kept.clone()), "step {count}");
        for name in ["journal.db", "journal.db-wal", "report.json"] {
            assert!(kept.join(name).exists(), "step {count}: {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_database_is_ours_and_a_newer_one_is_refused_also_when_it_is_damaged() {
    let base = killed().await;
    for byte in [0, 0xff] {
        let wiped = copy(base.path());
        fs::remove_file(wiped.path().join("journal.db-wal")).unwrap();
        let length = fs::metadata(wiped.path().join("journal.db")).unwrap().len();
        let bytes = vec![byte; usize::try_from(length).unwrap()];
        fs::write(wiped.path().join("journal.db"), bytes).unwrap();
        let (journal, opening) = Journal::open(&options(wiped.path())).unwrap();
        assert_eq!(opening.case, StartCase::Salvaged);
        // The high-water file still knows the names, and which seqs were given.
        let snapshot = journal.snapshots().borrow().clone();
        assert_eq!(snapshot.lanes.len(), 3);
        assert!(snapshot.streams[0].head.0 >= RECORDS / 2, "{snapshot:?}");
        journal.close().await.unwrap();
        deliver_all(wiped.path()).await;
    }
    let newer = copy(base.path());
    {
        let (journal, _) = Journal::open(&options(newer.path())).unwrap();
        journal.close().await.unwrap();
        let path = newer.path().join("journal.db");
        let mut bytes = fs::read(&path).unwrap();
        bytes[60..64].copy_from_slice(&99u32.to_be_bytes());
        bytes[50 * PAGE..51 * PAGE].fill(0xff);
        fs::write(&path, bytes).unwrap();
    }
    let before = files(newer.path());
    let refused = Journal::open(&options(newer.path())).unwrap_err();
    assert!(matches!(refused, JournalError::NewerSchema { found: 99, .. }), "{refused}");
    assert!(salvage_stopped(newer.path(), false, &SystemClock).is_err());
    assert!(before == files(newer.path()));
}
