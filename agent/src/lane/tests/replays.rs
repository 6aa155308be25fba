//! Dead letters go out again: under which identities, past what a lane holds for, and over crashes.

use super::delivery::Site;
use super::world::{Offer, World, refuse, silence};
use super::*;
use crate::journal::{LaneTotals, Replay};
use crate::lane::replay::{PlanBounds, ReplayError, Replayed, Selection, order, plan};
use crate::record::id::LaneName;

impl Site {
    fn letter_ids(&self) -> Vec<i64> {
        self.letters().iter().map(|letter| letter.id).collect()
    }

    /// Waits until the lane holds for a cause, while time passes.
    async fn held_soon(&self, cause: &str) {
        while !matches!(self.bench.status.state(), LaneState::Holding { cause: is, .. } if is == cause)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn order(&self, letters: Vec<i64>) -> Result<Replayed, ReplayError> {
        let selection = Selection { letters, payload: None };
        order(&self.desk, &self.bench.status, selection).await
    }

    /// Has all letters replayed, and waits for the outcomes.
    async fn replay_all(&self) -> Vec<Replay> {
        self.replay(self.letter_ids()).await
    }

    async fn replay(&self, letters: Vec<i64>) -> Vec<Replay> {
        let replayed = self.order(letters).await.unwrap();
        assert_eq!(replayed.left_out, []);
        self.outcomes(&replayed).await
    }

    async fn outcomes(&self, replayed: &Replayed) -> Vec<Replay> {
        loop {
            let replays = self.bench.journal.replays(0).unwrap();
            let ended = |id: i64| replays.iter().find(|r| r.id == id && r.ended_at.is_some());
            let outcomes: Vec<_> =
                replayed.sealed.iter().filter_map(|sealed| ended(sealed.id)).cloned().collect();
            if outcomes.len() == replayed.sealed.len() {
                return outcomes;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Identities of all offers, each as often as it came.
    fn offered(&self) -> Vec<String> {
        self.world.offers.lock().unwrap().iter().map(|(identity, ..)| identity.clone()).collect()
    }

    /// Waits until all that was appended has its outcome.
    async fn flushed(&self) {
        self.desk.flush().await.unwrap();
    }
}

fn is_bad(number: u64) -> bool {
    number % 10 == 3
}

fn bad(count: u64) -> Vec<u64> {
    (0..count).filter(|n| is_bad(*n)).collect()
}

fn assert_sums(totals: LaneTotals, queued: u64, accepted: u64) {
    let outcomes = totals.delivered + totals.dropped + totals.dead_lettered + totals.lost;
    assert_eq!(outcomes + queued, accepted, "{totals:?}");
}

#[tokio::test(start_paused = true)]
async fn named_records_go_out_as_a_replay_of_their_batch_with_their_own_identities() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..100, 0).await;
    site.flushed().await;
    assert_eq!(site.letter_numbers(), bad(100));
    let records: Vec<_> =
        site.letters().iter().map(|letter| letter.record.clone().unwrap()).collect();
    let batch = site.letters()[0].batch.clone().unwrap();
    site.world.change(World::take);
    let two = site.letter_ids()[..2].to_vec();
    let outcomes = site.replay(two).await;
    assert_eq!(outcomes.len(), 1);
    assert_eq!((outcomes[0].batch.clone(), outcomes[0].delivered), (format!("{batch}/r1"), 2));
    let rest = site.replay_all().await;
    assert_eq!(rest[0].batch, format!("{batch}/r2"));
    assert_eq!((rest[0].delivered, rest[0].already, rest[0].returned), (8, 0, 0));
    let order = site.world.order.lock().unwrap().clone();
    let again: Vec<_> = order[90..].iter().map(|(identity, _)| identity.clone()).collect();
    assert_eq!(again, records, "their identities are what they were");
    assert!(site.letters().is_empty());
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (100, 0, 0));
    assert_eq!(totals.outputs_delivered, 100);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fell_out_as_a_whole_goes_out_as_what_it_was_and_is_recognised() {
    let dir = tempfile::tempdir().unwrap();
    // The destination has it, and says that it has something else.
    let world = World::new(|world, offer| {
        world.take(offer).map(drop).unwrap();
        refuse(Class::Conflict, "other content")
    });
    let mut site = Site::new(dir.path(), world).await;
    site.parts.on_conflict = GiveUp::DeadLetter;
    site.parts.storm.share = 1.0;
    let _group = site.run(false);
    site.append(0..50, 0).await;
    site.flushed().await;
    assert!(site.letters().iter().all(|letter| letter.whole == 50));
    site.world.change(World::take);
    let outcomes = site.replay_all().await;
    let offered = site.offered();
    assert_eq!(offered[0], offered[1], "one identity for ever");
    assert_eq!((outcomes[0].delivered, outcomes[0].already), (50, 50));
    assert_eq!(site.world.numbers(), (0..50).collect::<Vec<_>>());
    assert!(site.letters().is_empty());
    // A part of it would be another batch.
    site.append(50..60, 0).await;
    site.flushed().await;
    assert_eq!(site.world.numbers().len(), 60);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_again_is_the_same_letter_and_goes_out_as_that_replay_if_it_was_all_of_it()
{
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..40, 0).await;
    site.flushed().await;
    let before = site.letters();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let outcomes = site.replay_all().await;
    assert_eq!((outcomes[0].delivered, outcomes[0].returned), (0, 4));
    assert_eq!(outcomes[0].class, "rejected");
    let after = site.letters();
    assert_eq!(site.letter_numbers(), bad(40));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!((before.id, &before.record), (after.id, &after.record), "updated, not doubled");
        assert_eq!((after.attempts, after.disposition.as_deref()), (2, Some("replayed")));
        assert_eq!((after.first_at, after.whole), (before.first_at, 4));
        assert!(after.last_at > before.last_at);
    }
    site.world.change(World::take);
    let again = site.replay(after.iter().map(|letter| letter.id).collect()).await;
    assert_eq!(again[0].batch, outcomes[0].batch, "nothing of it was delivered");
    assert_eq!((again[0].delivered, again[0].already), (4, 0));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (40, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_is_refused_as_a_whole_is_cut_until_the_record_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..80, 0).await;
    site.flushed().await;
    site.world.change(|world, offer| {
        if offer.has(|n| n == 43) { refuse(Class::Rejected, "400") } else { world.take(offer) }
    });
    let outcomes = site.replay_all().await;
    assert_eq!((outcomes[0].delivered, outcomes[0].returned), (7, 1));
    assert_eq!(site.letter_numbers(), [43]);
    let letter = &site.letters()[0];
    assert_eq!(letter.whole, 1);
    assert!(letter.batch.as_ref().unwrap().starts_with(&outcomes[0].batch), "{letter:?}");
    site.world.change(World::take);
    site.replay_all().await;
    let mut all = site.world.numbers();
    all.sort_unstable();
    assert_eq!(all, (0..80).collect::<Vec<_>>());
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (80, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn replays_pass_a_lane_that_holds_for_a_storm_and_leave_it_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    site.parts.batch.records_max = 50;
    let _group = site.run(false);
    site.append(0..50, 0).await;
    site.flushed().await;
    assert_eq!(site.letter_numbers(), bad(50));
    site.world.change(|world, offer| {
        if offer.has(|n| n >= 50) { refuse(Class::Rejected, "422") } else { world.take(offer) }
    });
    site.append(50..1000, 0).await;
    site.held_soon("storm").await;
    let ids: Vec<_> = site.letters().iter().take(5).map(|letter| letter.id).collect();
    // What is on its way to the journal comes there in real time, and so do the snapshots.
    tokio::time::resume();
    tokio::time::sleep(Duration::from_secs(3)).await;
    tokio::time::pause();
    let sealed = || site.bench.journal.snapshots().borrow().lanes[0].batches;
    let before = sealed();
    let outcomes = site.replay(ids).await;
    assert_eq!((outcomes[0].delivered, outcomes[0].returned), (5, 0));
    site.held_soon("storm").await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    site.held_soon("storm").await;
    assert!(sealed() <= before, "{} batches, {before} before", sealed());
    let mut first: Vec<_> = site.world.numbers().into_iter().filter(|n| *n < 50).collect();
    first.sort_unstable();
    assert_eq!(first, (0..50).collect::<Vec<_>>());
    let (totals, queued) = site.close().await;
    assert_sums(totals, queued, 1000);
    assert_eq!(totals.delivered, 50);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_holds_for_its_destination_takes_no_orders_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let mut group = site.run(false);
    site.append(0..20, 0).await;
    site.flushed().await;
    site.world.change(|_, _| refuse(Class::Unreachable, "connection refused"));
    site.append(20..21, 0).await;
    site.held_soon("unreachable").await;
    let refused = site.order(site.letter_ids()).await.unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("unreachable") && text.contains("connection refused"), "{text}");
    site.shutdown.request();
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Stopped));
    site.bench.status.set(LaneState::Stopped);
    assert_eq!(site.order(site.letter_ids()).await, Err(ReplayError::Ended));
    assert_eq!(site.letter_ids().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_meets_a_conflict_or_only_errors_holds_nobody_up() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..20, 0).await;
    site.flushed().await;
    let is_replay = |offer: &Offer| offer.identity.contains("/r");
    type Rule = (fn() -> super::world::Answer, &'static str);
    let rules: [Rule; 3] = [
        (|| refuse(Class::Conflict, "2c8b0 there"), "conflict"),
        (|| refuse(Class::Retryable, "500"), "exhausted"),
        (silence, "exhausted"),
    ];
    for (round, (answer, class)) in (0..).zip(rules) {
        site.world.change(
            move |world, offer| {
                if is_replay(offer) { answer() } else { world.take(offer) }
            },
        );
        let offers = site.offered().len();
        let outcomes = site.replay_all().await;
        assert_eq!((outcomes[0].returned, outcomes[0].class.as_str()), (2, class));
        let attempts = site.offered().len() - offers;
        assert_eq!(attempts, if class == "conflict" { 1 } else { 3 });
        assert_eq!(site.letters().len(), 2);
        assert!(site.letters().iter().all(|letter| letter.class == class));
        let next = 20 + round * 10;
        site.append(next..next + 10, 0).await;
        site.flushed().await;
        assert!(site.world.numbers().contains(&u64::from(next + 9)));
    }
    site.world.change(World::take);
    site.replay_all().await;
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (50, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_repaired_record_has_another_identity_and_another_payload() {
    let dir = tempfile::tempdir().unwrap();
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..10, 0).await;
    site.flushed().await;
    let letter = site.letters()[0].clone();
    let repair = |payload: &str| Selection {
        letters: vec![letter.id],
        payload: Some(payload.as_bytes().to_vec()),
    };
    // Still no good: the letter is the repaired record now.
    let replayed = order(&site.desk, &site.bench.status, repair("13 still bad")).await.unwrap();
    assert_eq!(site.outcomes(&replayed).await[0].returned, 1);
    let record = letter.record.clone().unwrap();
    assert_eq!(site.letters()[0].record, Some(format!("{record}~1")));
    assert_eq!(site.letter_numbers(), [13]);
    let replayed = order(&site.desk, &site.bench.status, repair("1000 good")).await.unwrap();
    assert_eq!(site.outcomes(&replayed).await[0].delivered, 1);
    let order = site.world.order.lock().unwrap().clone();
    assert_eq!(order.last(), Some(&(format!("{record}~2"), "1000 good".to_owned())));
    assert!(site.letters().is_empty());
    let too_many = Selection { letters: vec![1, 2], payload: Some(Vec::new()) };
    assert_eq!(too_many.check(), Err(ReplayError::PayloadForOne(2)));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (10, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_a_replay_would_be_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    site.parts.batch.records_max = 40;
    let _group = site.run(false);
    site.append(0..80, 0).await;
    site.flushed().await;
    let before = site.letters();
    let (total_bytes_max, batches_max) = (u64::MAX, u64::MAX);
    let bounds = PlanBounds { records_max: 3, bytes_max: 1 << 20, total_bytes_max, batches_max };
    let mut selection = Selection { letters: site.letter_ids(), payload: None };
    selection.letters.push(4711);
    let lane = LaneName::stored("gw/s/p/k");
    let planned = plan(&site.bench.journal, &lane, &[], bounds, &selection).unwrap();
    let of = |n: usize| before[n].batch.clone().unwrap();
    let identities: Vec<_> = planned.batches.iter().map(|b| b.identity.clone()).collect();
    assert_eq!(
        identities,
        [
            format!("{}/r1", of(0)),
            format!("{}/r2", of(0)),
            format!("{}/r1", of(7)),
            format!("{}/r2", of(7))
        ]
    );
    assert_eq!(planned.batches.iter().map(|b| b.letters.len()).collect::<Vec<_>>(), [3, 1, 3, 1]);
    assert_eq!(planned.left_out[0].letter, 4711);
    let one = PlanBounds { total_bytes_max: 1, ..bounds };
    let planned = plan(&site.bench.journal, &lane, &[], one, &selection).unwrap();
    assert_eq!((planned.batches.len(), planned.left_out.len()), (1, 6));
    let few = PlanBounds { batches_max: 2, ..bounds };
    let planned = plan(&site.bench.journal, &lane, &[], few, &selection).unwrap();
    let later = planned.left_out.iter().filter(|left| left.is_for_later).count();
    assert_eq!((planned.batches.len(), later), (2, 4));
    let other = LaneName::stored("gw/s/p/other");
    let planned = plan(&site.bench.journal, &other, &[], bounds, &selection).unwrap();
    assert!(planned.batches.is_empty());
    assert!(planned.left_out.iter().any(|out| out.reason.contains("of lane gw/s/p/k")));
    assert_eq!(site.letters(), before);
    assert!(site.bench.journal.replays(0).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_order_of_which_a_later_batch_fails_says_what_is_done_and_what_is_not() {
    let dir = tempfile::tempdir().unwrap();
    Bench::new(dir.path(), Script::default()).await.journal.close().await.unwrap();
    let fault = "CREATE TRIGGER fault BEFORE INSERT ON replays
                 WHEN (SELECT count(*) FROM replays) >= 1 BEGIN SELECT RAISE(ABORT, 'planted'); END";
    crate::journal::tamper(dir.path(), fault);
    let mut site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    site.parts.batch.records_max = 20;
    let _group = site.run(false);
    site.append(0..60, 0).await;
    site.flushed().await;
    let letters = site.letter_ids();
    assert_eq!(letters.len(), 6);
    site.world.change(World::take);
    let replayed = site.order(letters.clone()).await.unwrap();
    let sealed: Vec<_> =
        replayed.sealed.iter().map(|sealed| sealed.planned.letters.len()).collect();
    assert_eq!(sealed, [2], "one of three batches");
    let left: Vec<_> = replayed.left_out.iter().map(|left| left.letter).collect();
    assert_eq!(left, letters[2..]);
    assert!(replayed.left_out.iter().all(|left| left.reason.contains("commit failed")));
    let outcomes = site.outcomes(&replayed).await;
    assert_eq!((outcomes[0].delivered, site.letter_ids()), (2, letters[2..].to_vec()));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (56, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lane_runs_also_between_two_sessions_so_that_no_discard_cancels_its_replay() {
    let dir = tempfile::tempdir().unwrap();
    Bench::new(dir.path(), Script::default()).await.journal.close().await.unwrap();
    let fault = "CREATE TRIGGER fault BEFORE UPDATE OF delivered ON replays
                 BEGIN SELECT RAISE(ABORT, 'planted'); END";
    crate::journal::tamper(dir.path(), fault);
    let site =
        Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
    let _group = site.run(false);
    site.append(0..20, 0).await;
    site.flushed().await;
    let letters = site.letter_ids();
    site.world.change(World::take);
    // It is delivered, and its outcome cannot be recorded.
    site.order(letters.clone()).await.unwrap();
    site.held_soon("journal").await;
    let done = site.bench.journal.discard_letters(letters.clone(), None).await.unwrap();
    let left: Vec<_> = done.left.iter().map(|left| left.letter).collect();
    assert_eq!((done.discarded, left), (0, letters));
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_of_a_replay_loses_nothing_and_stores_nothing_twice() {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rule = |world: &World, offer: &Offer| {
        let is_replay = offer.identity.contains("/r");
        match is_replay {
            false => world.take_but(offer, is_bad),
            // Cut for one record; the answer to a piece is lost once.
            true if offer.has(|n| n == 23) => refuse(Class::Rejected, "400"),
            true if offer.number.is_multiple_of(2) => {
                world.take(offer).map(drop).unwrap();
                silence()
            }
            true => world.take(offer),
        }
    };
    let world = World::recording(dir.path(), images.path(), rule);
    let mut site = Site::new(dir.path(), world).await;
    site.parts.batch.records_max = 60;
    let group = site.run(false);
    site.append(0..60, 0).await;
    site.flushed().await;
    assert_eq!(site.letter_numbers(), bad(60));
    site.replay_all().await;
    assert_eq!(site.letter_numbers(), [23]);
    drop(group);
    let forks = std::mem::take(&mut *site.world.forks.lock().unwrap());
    println!("{} crashes", forks.len());
    assert!(forks.len() > 10);
    for (image, held, order) in forks {
        let copy = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(&image).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
        let site = Site::new(copy.path(), World::fork(held, order, rule)).await;
        let _group = site.run(false);
        site.flushed().await;
        // What was under way is settled first; then the rest goes out.
        loop {
            let letters = site.letters();
            if letters.iter().all(|letter| !letter.is_under_way) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        site.world.change(World::take);
        // The state is renewed a moment after the letters.
        while matches!(site.bench.status.state(), LaneState::Holding { .. }) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        site.replay_all().await;
        let mut all = site.world.numbers();
        all.sort_unstable();
        assert_eq!(all, (0..60).collect::<Vec<_>>(), "each is there once");
        assert!(site.letters().is_empty());
        let (totals, queued) = site.close().await;
        assert_eq!((totals.delivered, totals.dead_lettered, queued), (60, 0, 0));
    }
}

/// A lane that could not seal for want of room waits with no batch: neither a new session nor a replay in between may have it
/// wait for the outcome of one. In real time, because one that waits for nothing would stop the paused one.
#[tokio::test]
async fn a_lane_that_held_without_a_batch_goes_on_sealing_with_and_without_a_replay_in_between() {
    for has_order in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut site =
            Site::new(dir.path(), World::new(|world, offer| world.take_but(offer, is_bad))).await;
        let mut group = site.run(false);
        site.append(0..20, 0).await;
        site.flushed().await;
        site.shutdown.request();
        assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Stopped));
        // As a seal left it whose letters had no room.
        (site.desk, site.shutdown) = (Arc::default(), Shutdown::new());
        let since = site.parts.clock.now();
        site.bench.status.hold_since("dead_letters", "no room".to_owned(), since);
        site.world.change(World::take);
        let letters = if has_order { site.letter_ids() } else { Vec::new() };
        let goes_on = async {
            let ordered = async {
                match has_order {
                    true => Some(site.order(letters).await.unwrap()),
                    false => None,
                }
            };
            let run = async { site.run(false) };
            let (ordered, _group) = tokio::join!(ordered, run);
            if let Some(replayed) = ordered {
                assert_eq!(site.outcomes(&replayed).await[0].delivered, 2);
                // There is nothing that it could wait with.
                while matches!(site.bench.status.state(), LaneState::Holding { .. }) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            site.append(20..30, 0).await;
            site.flushed().await;
        };
        let went_on = tokio::time::timeout(Duration::from_secs(20), goes_on).await;
        assert!(went_on.is_ok(), "it waits for ever, with an order: {has_order}");
        assert!(site.world.numbers().contains(&29));
        assert!(!matches!(site.bench.status.state(), LaneState::Holding { .. }));
    }
}

/// Time passes here only while nobody is busy: a lane that tried again and again because of the order would stop it.
#[tokio::test(start_paused = true)]
async fn an_order_that_cannot_be_carried_out_has_the_lane_pause_between_its_tries() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::new(dir.path(), World::new(World::take)).await;
    site.bench.journal.close().await.unwrap();
    let _group = site.run(false);
    site.held_soon("journal").await;
    let waited = tokio::time::timeout(Duration::from_secs(60), site.order(vec![1])).await;
    assert!(waited.is_err(), "{waited:?}");
}
