//! Lanes that are dropped, and lanes that go on as others.

use super::images::build;
use super::vfs::Disk;
use super::*;
use crate::clock::{Clock as _, SystemClock};
use crate::record::id::{LaneName, LaneNumber};

const NAME: &str = "gw/s/p/k";

fn spec_of(source: &str, pipeline: &str, sink: &str) -> LaneSpec {
    let (source, pipeline) = (source.parse().unwrap(), pipeline.parse().unwrap());
    LaneSpec { source, pipeline, sink: sink.parse().unwrap(), ..lane_spec() }
}

fn target(spec: &LaneSpec) -> LaneTarget {
    let LaneSpec { source, pipeline, sink, .. } = spec.clone();
    LaneTarget { source, pipeline, sink }
}

/// Ten records, of which a lane has sealed two batches of two and acked the first, with plugin state and a note.
async fn with_backlog(journal: &Journal) {
    let appender = journal.appender(&source()).await.unwrap();
    let mut append = records(&["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    append.positions = vec![position("file", Some("at 10"))];
    appender.append(append).await.unwrap();
    let (lane, mut opened) = journal.lane(lane_spec()).await.unwrap();
    let mut seal = range_batch(&opened, 1, 2);
    seal.state = vec![StateChange {
        component: "t".to_owned(),
        key: "k".to_owned(),
        value: Some(b"kept".to_vec()),
    }];
    let batch = seal.batch.clone();
    lane.seal(seal).await.unwrap().durable().await.unwrap();
    opened.next_batch = BatchNumber(2);
    lane.seal(range_batch(&opened, 3, 4)).await.unwrap().durable().await.unwrap();
    lane.ack(&batch, Finish::Delivered, 1).await.unwrap();
    lane.keep_note("from here", true).await.unwrap();
}

fn refusal(error: &JournalError) -> LaneOrderError {
    match error {
        JournalError::LaneOrder(refused) => refused.clone(),
        other => panic!("{other}"),
    }
}

async fn lanes_of(journal: &Journal) -> Vec<LaneSnapshot> {
    // An append that is durable is followed by a snapshot when there is nothing else to do.
    let mut snapshots = journal.snapshots();
    let quiet = std::time::Duration::from_millis(1500);
    while tokio::time::timeout(quiet, snapshots.changed()).await.is_ok() {}
    snapshots.borrow().lanes.clone()
}

fn count(directory: &Path, query: &str) -> i64 {
    #[expect(clippy::disallowed_methods, reason = "the test looks at the tables")]
    let database = rusqlite::Connection::open(directory.join("journal.db")).unwrap();
    database.query_row(query, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn what_waits_for_a_lane_is_what_its_chunks_hold_since_the_first_of_them_was_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    let begun = SystemClock.now();
    with_backlog(&journal).await;
    let lane = lanes_of(&journal).await.pop().unwrap();
    let chunks = count(dir.path(), "SELECT sum(length(data)) FROM chunks");
    let Waiting { bytes, oldest } = journal.waiting(&lane).unwrap();
    assert_eq!(bytes, chunks.cast_unsigned());
    let oldest = oldest.unwrap();
    assert!(begun <= oldest && oldest <= SystemClock.now(), "{oldest:?}");
    // A chunk behind it waits too; the first one still counts whole.
    let appender = journal.appender(&source()).await.unwrap();
    appender.append(records(&["10"])).await.unwrap();
    let lane = lanes_of(&journal).await.pop().unwrap();
    let more = journal.waiting(&lane).unwrap();
    let chunks = count(dir.path(), "SELECT sum(length(data)) FROM chunks");
    assert_eq!((more.bytes, more.oldest), (chunks.cast_unsigned(), Some(oldest)));
    journal.drop_lane(NAME).await.unwrap();
    let left = journal.waiting(&lane).unwrap().bytes;
    assert!(left < more.bytes, "what an old snapshot says is there may be gone: {left}");
}

#[tokio::test]
async fn a_dropped_lane_leaves_its_name_and_a_counted_loss_and_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    with_backlog(&journal).await;
    let dropped = journal.drop_lane(NAME).await.unwrap();
    let name = LaneName::stored(NAME);
    assert_eq!(dropped, LaneOrdered { name, queued: 8, batches: 1 });
    assert_eq!(lanes_of(&journal).await, []);
    // Back in the config it is another lane, and begins with what is there: the newest chunk always is.
    let (_lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!((opened.name.as_str(), opened.unacked.len()), ("gw/s/p/k~2", 0));
    assert!(opened.plugin_state.is_empty() && opened.sink_note.is_none());
    journal.close().await.unwrap();
    let lost = "SELECT lost FROM lanes WHERE name = 'gw/s/p/k' AND dropped_at IS NOT NULL";
    assert_eq!(count(dir.path(), lost), 8);
    let range = "SELECT count(*) FROM losses WHERE lane = 1 AND first_seq = 3 AND last_seq = 10
                 AND why = 'lane_dropped'";
    assert_eq!(count(dir.path(), range), 1);
    for table in ["batches", "plugin_state", "sink_notes", "batch_parts"] {
        let left = count(dir.path(), &format!("SELECT count(*) FROM {table}"));
        assert_eq!(left, 0, "{table}");
    }
    let (journal, opening) = open(dir.path());
    assert_eq!(opening.case, StartCase::Clean);
    assert_eq!(
        refusal(&journal.drop_lane(NAME).await.unwrap_err()),
        LaneOrderError::Unknown(NAME.to_owned())
    );
}

#[tokio::test]
async fn the_chunks_of_a_source_whose_lanes_are_all_dropped_go_and_those_of_another_lane_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    drop(journal.lane(lane_spec()).await.unwrap());
    drop(journal.lane(spec_of("s", "p", "other")).await.unwrap());
    let appender = journal.appender(&source()).await.unwrap();
    for _ in 0..20 {
        appender.append(records(&["one", "two"])).await.unwrap();
    }
    journal.drop_lane(NAME).await.unwrap();
    lanes_of(&journal).await;
    let chunks = "SELECT count(*) FROM chunks";
    assert_eq!(count(dir.path(), chunks), 20, "the other lane needs them");
    journal.drop_lane("gw/s/p/other").await.unwrap();
    lanes_of(&journal).await;
    assert_eq!(count(dir.path(), chunks), 1, "the newest always stays");
}

#[tokio::test]
async fn a_moved_lane_keeps_name_batches_and_state_and_a_new_one_that_did_nothing_gives_way() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    with_backlog(&journal).await;
    let new = spec_of("s", "renamed", "k");
    let (fresh, opened) = journal.lane(new.clone()).await.unwrap();
    let seal = range_batch(&opened, 1, 2);
    assert_eq!(journal.move_lane(NAME, target(&new)).await.unwrap().queued, 8);
    // Whoever had the new one open is told with the next seal, and finds the moved one.
    let refused = fresh.seal(seal).await.unwrap().durable().await.unwrap_err();
    assert!(matches!(refused, JournalError::SessionEnded(_)), "{refused}");
    drop(fresh);
    let mut journal = journal;
    for _ in 0..2 {
        let (_lane, opened) = journal.lane(new.clone()).await.unwrap();
        assert_eq!(opened.name.as_str(), NAME);
        assert_eq!((opened.sealed_seq, opened.next_batch), (Seq(4), BatchNumber(3)));
        assert_eq!(opened.unacked.len(), 1);
        assert_eq!(opened.unacked[0].identity(&opened.name), "gw/s/p/k/0000100001/b2");
        assert_eq!(opened.plugin_state["t"]["k"], b"kept");
        assert_eq!(opened.sink_note.as_deref(), Some("from here"));
        let lanes: Vec<_> = lanes_of(&journal).await.iter().map(|lane| lane.number).collect();
        assert_eq!(lanes, [LaneNumber(1)]);
        journal.close().await.unwrap();
        (journal, _) = open(dir.path());
    }
    // The old place makes a new lane, under a name that nobody had.
    let (_lane, opened) = journal.lane(lane_spec()).await.unwrap();
    assert_eq!(opened.name.as_str(), "gw/s/p/k~2");
}

#[tokio::test]
async fn a_lane_that_runs_or_is_there_or_whose_place_has_begun_is_not_moved() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    with_backlog(&journal).await;
    let refused =
        async |target: LaneTarget| refusal(&journal.move_lane(NAME, target).await.unwrap_err());
    let name = LaneName::stored(NAME);
    assert_eq!(refused(target(&lane_spec())).await, LaneOrderError::There(name.clone()));
    for (spec, is_in_front) in [
        (spec_of("s", "early", "k"), true),
        (LaneSpec { start_now: true, ..spec_of("s", "late", "k") }, false),
    ] {
        let (lane, opened) = journal.lane(spec.clone()).await.unwrap();
        if !is_in_front {
            let appender = journal.appender(&source()).await.unwrap();
            appender.append(records(&["10"])).await.unwrap();
        }
        let first = opened.sealed_seq.next().0;
        lane.seal(range_batch(&opened, first, first)).await.unwrap().durable().await.unwrap();
        let told = refused(target(&spec)).await;
        assert_eq!(matches!(told, LaneOrderError::BegunInFront { .. }), is_in_front, "{told}");
        assert_eq!(matches!(told, LaneOrderError::BegunBehind { .. }), !is_in_front, "{told}");
    }
    let (_running, _) = journal.lane(lane_spec()).await.unwrap();
    let free = target(&spec_of("s", "free", "k"));
    assert_eq!(refused(free).await, LaneOrderError::Runs(name.clone()));
    let dropped = journal.drop_lane(NAME).await.unwrap_err();
    assert_eq!(refusal(&dropped), LaneOrderError::Runs(name));
}

#[tokio::test]
async fn a_lane_that_moves_to_another_source_takes_its_stream_and_positions_along() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, _) = open(dir.path());
    with_backlog(&journal).await;
    drop(journal.lane(spec_of("s", "p", "second")).await.unwrap());
    // The new source exists already, and has read nothing.
    let new = spec_of("renamed", "p", "k");
    drop(journal.lane(new.clone()).await.unwrap());
    journal.move_lane(NAME, target(&new)).await.unwrap();
    journal.close().await.unwrap();
    let (journal, _) = open(dir.path());
    let appender = journal.appender(&new.source).await.unwrap();
    assert_eq!(appender.positions()["file"], b"at 10");
    appender.append(records(&["10"])).await.unwrap();
    let (lane, opened) = journal.lane(new).await.unwrap();
    assert_eq!((opened.name.as_str(), opened.sealed_seq), (NAME, Seq(4)));
    assert_eq!(lane.head().borrow().seq, Seq(11));
    let (_second, opened) = journal.lane(spec_of("renamed", "p", "second")).await.unwrap();
    assert_eq!(opened.name.as_str(), "gw/s/p/second", "the other lanes of the source came along");
    // A source that has read by itself is not written over.
    let old = journal.appender(&source()).await.unwrap();
    assert!(old.positions().is_empty());
    old.append(records(&["x"])).await.unwrap();
    drop((lane, _second));
    let back = journal.move_lane(NAME, target(&lane_spec())).await.unwrap_err();
    assert!(matches!(refusal(&back), LaneOrderError::SourceBegun { .. }), "{back}");
}

/// What an order is about, as the tables have it.
const ALL_OF_IT: &str = "
    SELECT 'stream', number, source, NULL FROM streams
    UNION ALL SELECT 'lane', lanes.number, name || ' ' || pipeline || ' ' || sink,
        CASE WHEN dropped_at IS NULL THEN 'runs' ELSE 'dropped' END FROM lanes
    UNION ALL SELECT 'batches', lane, count(*), NULL FROM batches GROUP BY lane
    UNION ALL SELECT 'state', lane, count(*), NULL FROM plugin_state GROUP BY lane
    UNION ALL SELECT 'note', lane, count(*), NULL FROM sink_notes GROUP BY lane
    UNION ALL SELECT 'loss', lane, first_seq || '-' || last_seq, why FROM losses";

fn all_of_it(directory: &Path) -> String {
    #[expect(clippy::disallowed_methods, reason = "the test looks at the tables")]
    let database = rusqlite::Connection::open(directory.join("journal.db")).unwrap();
    let mut statement = database.prepare(ALL_OF_IT).unwrap();
    let row = |row: &rusqlite::Row<'_>| {
        let values = (0..4).map(|at| row.get::<_, rusqlite::types::Value>(at));
        Ok(format!("{:?}", values.collect::<Result<Vec<_>, _>>()?))
    };
    let mut rows = statement.query_map([], row).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    rows.sort();
    rows.join("\n")
}

/// The power goes at every write and sync of an order, four times each.
async fn cut_at_every_write(target: Option<LaneTarget>, also_there: &LaneSpec) {
    let seed = super::images::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = super::drive::scratch();
    let disk = Disk::watch(dir.path());
    let (journal, _) = open(dir.path());
    with_backlog(&journal).await;
    drop(journal.lane(also_there.clone()).await.unwrap());
    lanes_of(&journal).await;
    let before = all_of_it(dir.path());
    let begin = disk.now();
    match target.clone() {
        Some(target) => journal.move_lane(NAME, target).await.map(drop).unwrap(),
        None => journal.drop_lane(NAME).await.map(drop).unwrap(),
    }
    let answered = disk.now();
    lanes_of(&journal).await;
    let after = all_of_it(dir.path());
    assert_ne!(before, after);
    let events = disk.events();
    disk.forget();
    let mut seen = [0; 2];
    for cut in (begin..=answered).flat_map(|cut| [cut; 4]) {
        let image = super::drive::scratch();
        build(&events, cut, &mut random, image.path());
        let (journal, _) = open(image.path());
        journal.close().await.unwrap();
        let found = all_of_it(image.path());
        let is_after = found == after;
        assert!(is_after || found == before, "cut {cut} of {begin}..={answered}:\n{found}");
        assert!(is_after || cut < answered, "it was answered, and is not there");
        seen[usize::from(is_after)] += 1;
    }
    eprintln!("{target:?}: {} writes and syncs, {seen:?} before and after", answered - begin);
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}

#[tokio::test]
async fn an_order_for_a_lane_is_there_as_a_whole_or_not_at_all_wherever_the_power_goes() {
    let place = spec_of("s", "renamed", "k");
    cut_at_every_write(Some(target(&place)), &place).await;
    let elsewhere = spec_of("renamed", "p", "k");
    cut_at_every_write(Some(target(&elsewhere)), &elsewhere).await;
    cut_at_every_write(None, &place).await;
}
