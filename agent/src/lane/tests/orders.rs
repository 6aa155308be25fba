//! What an operator tells a lane.

use super::delivery::Site;
use super::world::{World, refuse};
use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_conflict_that_is_accepted_counts_as_delivered_and_already_there() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Conflict, "2c8b0 there, 27dd8 here"));
    let site = Site::new(dir.path(), world).await;
    site.append(0..5, 0).await;
    assert_eq!(site.desk.resolve(Resolution::Accept).await, Err(ResolveError::NotHeld));
    let mut group = site.run(true);
    site.held("conflict").await;
    let LaneState::Holding { reason, .. } = site.bench.status.state() else { unreachable!() };
    assert!(reason.contains("2c8b0") && reason.contains("27dd8"), "{reason}");
    site.desk.resolve(Resolution::Accept).await.unwrap();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.bench.status.counters.records_already.load(Ordering::Relaxed), 5);
    assert_eq!(site.desk.resolve(Resolution::Accept).await, Err(ResolveError::NotHeld));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, queued), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_is_given_up_is_in_the_letters_as_a_whole() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Conflict, "other content"));
    let site = Site::new(dir.path(), world).await;
    site.append(0..50, 0).await;
    let mut group = site.run(true);
    site.held("conflict").await;
    site.desk.resolve(Resolution::DeadLetter).await.unwrap();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.letter_numbers(), (0..50).collect::<Vec<_>>());
    assert!(site.letters().iter().all(|l| l.class == "conflict" && l.whole == 50));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.dead_lettered, queued), (50, 0));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_that_is_sent_as_new_has_another_batch_identity_and_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| {
        if offer.identity.ends_with("/b1") {
            refuse(Class::Conflict, "other content")
        } else {
            world.take(offer)
        }
    });
    let mut site = Site::new(dir.path(), world).await;
    site.parts.batch.records_max = 10;
    site.append(0..30, 0).await;
    let mut group = site.run(true);
    site.held("conflict").await;
    site.desk.resolve(Resolution::ResendAsNew).await.unwrap();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.world.numbers(), (0..30).collect::<Vec<_>>());
    let order = site.world.order.lock().unwrap().clone();
    assert_eq!(order[0].0, format!("gw/s/p/k/{}/1", site.bench.epoch));
    let offers = site.world.offers.lock().unwrap().clone();
    let mut identities: Vec<_> = offers.iter().map(|(identity, ..)| identity.clone()).collect();
    identities.sort();
    let count = identities.len();
    identities.dedup();
    assert_eq!((count, identities.len()), (4, 4), "no identity twice: {offers:?}");
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, queued), (30, 0));
}

#[tokio::test(start_paused = true)]
async fn a_storm_that_is_resolved_lets_the_letters_of_its_batch_pass() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| {
        if offer.has(|n| n < 60) { refuse(Class::Rejected, "422") } else { world.take(offer) }
    });
    let site = Site::new(dir.path(), world).await;
    site.append(0..500, 0).await;
    let mut group = site.run(true);
    site.held("storm").await;
    site.desk.resolve(Resolution::DeadLetter).await.unwrap();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.letter_numbers(), (0..60).collect::<Vec<_>>());
    assert_eq!(site.world.numbers(), (60..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn resuming_tries_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Conflict, "other content"));
    let mut site = Site::new(dir.path(), world).await;
    site.parts.retry.backoff = Backoff::new(HOUR, HOUR, Jitter::None).unwrap();
    site.append(0..5, 0).await;
    let mut group = site.run(true);
    site.held("conflict").await;
    site.world.change(World::take);
    let begun = tokio::time::Instant::now();
    tokio::time::sleep(Duration::from_secs(1)).await;
    site.desk.resume();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert!(begun.elapsed() < HOUR / 2, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_paused_lane_sends_nothing_until_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::new(dir.path(), World::new(World::take)).await;
    site.parts.batch.linger = Duration::from_millis(1);
    let _group = site.run(false);
    site.desk.pause();
    site.held("paused").await;
    // Nothing of it is left, although it goes on nowhere.
    site.desk.flush().await.unwrap();
    site.append(0..5, 0).await;
    let begun = tokio::time::timeout(HOUR, site.desk.flush()).await;
    assert!(begun.is_err(), "what waits in a paused lane is not upstream");
    assert!(site.world.offers.lock().unwrap().is_empty());
    site.desk.resume();
    while site.world.numbers().len() < 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(site.bench.status.state(), LaneState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_flush_seals_without_lingering_and_is_done_when_it_is_delivered() {
    let dir = tempfile::tempdir().unwrap();
    // In real time: paused time would run through the linger while the journal's thread is waited for.
    tokio::time::resume();
    let mut site = Site::new(dir.path(), World::new(World::take)).await;
    site.parts.batch.linger = 24 * HOUR;
    let mut group = site.run(false);
    while site.bench.status.state() != LaneState::Running {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Nothing is there: it is done at once.
    site.desk.flush().await.unwrap();
    let begun = tokio::time::Instant::now();
    site.append(0..7, 0).await;
    site.desk.flush().await.unwrap();
    assert_eq!(site.world.numbers(), (0..7).collect::<Vec<_>>());
    assert!(begun.elapsed() < HOUR, "{:?}", begun.elapsed());
    // A lane that ends leaves nobody waiting.
    site.world.change(|_, _| refuse(Class::Unreachable, "gone"));
    site.append(7..8, 0).await;
    let stopping = async {
        site.held("unreachable").await;
        site.shutdown.request();
    };
    let (flushed, ()) = tokio::join!(site.desk.flush(), stopping);
    assert_eq!(flushed, Err(ResolveError::Ended));
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Stopped));
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_is_ordered_before_the_lane_is_open_is_carried_out_when_it_is() {
    use futures_util::FutureExt as _;

    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::new(dir.path(), World::new(World::take)).await;
    site.parts.batch.linger = 24 * HOUR;
    let mut flush = Box::pin(site.desk.flush());
    assert!(flush.as_mut().now_or_never().is_none());
    site.append(0..7, 0).await;
    let _group = site.run(false);
    flush.await.unwrap();
    assert_eq!(site.world.numbers(), (0..7).collect::<Vec<_>>());
}
