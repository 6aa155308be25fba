//! What a lane does about refusals, outages and conflicts, and that it holds over crashes.

use std::collections::BTreeSet;

use super::world::{Answer, Offer, TokioClock, World, WorldSink, refuse, silence};
use super::*;
use crate::journal::config::{LettersConfig, LettersOnFull};
use crate::journal::{LaneTotals, Letter, LettersFilter};

/// A lane to a made-up destination.
pub(super) struct Site {
    pub(super) bench: Bench,
    pub(super) world: Arc<World>,
    pub(super) parts: LaneParts,
    pub(super) desk: Arc<Desk>,
    pub(super) shutdown: Shutdown,
    drain: watch::Sender<bool>,
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Site {
    pub(super) async fn new(directory: &Path, world: Arc<World>) -> Self {
        Self::with(directory, world, JournalConfig::default()).await
    }

    pub(super) async fn with(directory: &Path, world: Arc<World>, config: JournalConfig) -> Self {
        let bench = Bench::with(directory, Script::default(), config).await;
        Self::on(bench, world, Arc::new(TokioClock::default()))
    }

    pub(super) fn on(bench: Bench, world: Arc<World>, clock: SharedClock) -> Self {
        let mut parts =
            LaneParts { sink: Arc::new(WorldSink(Arc::clone(&world))), clock, ..bench.parts(1000) };
        parts.retry.backoff = Backoff::new(ms(200), ms(30_000), Jitter::None).unwrap();
        Self {
            bench,
            world,
            parts,
            desk: Arc::default(),
            shutdown: Shutdown::new(),
            drain: watch::channel(false).0,
        }
    }

    /// With patterns a lane stores what it takes in parts; without them the range is all that a batch is.
    fn stores_its_output(&mut self) {
        self.parts.subjects = Arc::from(["sub".parse().unwrap()]);
    }

    pub(super) async fn append(&self, range: std::ops::Range<u32>, padding: usize) {
        for first in range.clone().step_by(100) {
            let part = first..range.end.min(first + 100);
            self.bench.append(part.map(|n| format!("{n} {}", "x".repeat(padding)))).await;
        }
    }

    pub(super) fn run(&self, drain: bool) -> TaskGroup<LaneEnd> {
        self.drain.send_replace(drain);
        let control = LaneControl {
            shutdown: self.shutdown.clone(),
            drain: self.drain.subscribe(),
            desk: Arc::clone(&self.desk),
        };
        let (parts, journal) = (self.parts.clone(), Arc::clone(&self.bench.journal));
        let mut group = TaskGroup::default();
        let lane = run(parts, journal, control, Arc::clone(&self.bench.status));
        let desk = Arc::clone(&self.desk);
        group.spawn("lane", tracing::Span::none(), async move {
            let end = lane.await;
            desk.end();
            end
        });
        group
    }

    pub(super) async fn drain(&self) {
        // Without a timer: paused time would run to its end whenever the journal's thread is waited for.
        let mut group = self.run(true);
        assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    }

    /// Waits until the lane holds for a cause.
    pub(super) async fn held(&self, cause: &str) {
        while !matches!(self.bench.status.state(), LaneState::Holding { cause: is, .. } if is == cause)
        {
            tokio::task::yield_now().await;
        }
    }

    pub(super) fn letters(&self) -> Vec<Letter> {
        let filter = LettersFilter { limit: 1000, ..LettersFilter::default() };
        self.bench.journal.letters(&filter).unwrap()
    }

    /// The numbers of the payloads in the dead letters.
    pub(super) fn letter_numbers(&self) -> Vec<u64> {
        let letters = self.letters();
        let payloads = letters.iter().map(|letter| {
            let (_, payload) = self.bench.journal.letter(letter.id).unwrap().unwrap();
            super::world::number(std::str::from_utf8(&payload).unwrap())
        });
        payloads.collect()
    }

    /// Totals and queued records, as they are durable at the end.
    pub(super) async fn close(&self) -> (LaneTotals, u64) {
        self.bench.journal.close().await.unwrap();
        let snapshot = self.bench.journal.snapshots().borrow().clone();
        (snapshot.lanes[0].totals, snapshot.lanes[0].queued)
    }
}

fn is_poison(number: u64) -> bool {
    number % 100 == 50
}

fn poison(count: u64) -> Vec<u64> {
    (0..count).filter(|n| is_poison(*n)).collect()
}

fn good(count: u64) -> Vec<u64> {
    (0..count).filter(|n| !is_poison(*n)).collect()
}

#[tokio::test(start_paused = true)]
async fn d_13_records_that_are_refused_by_name_become_letters_at_the_first_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| world.take_but(offer, is_poison));
    let site = Site::new(dir.path(), world).await;
    site.append(0..1000, 0).await;
    site.drain().await;
    assert_eq!(site.world.numbers(), good(1000));
    assert_eq!(site.letter_numbers(), poison(1000));
    let letters = site.letters();
    for letter in &letters {
        let number = letter.seq.unwrap() - 1;
        let batch = letter.batch.clone().unwrap();
        assert_eq!(letter.record, Some(format!("gw/s/p/k/{}/{}", site.bench.epoch, number + 1)));
        assert!(batch.starts_with(&format!("gw/s/p/k/{}/b", site.bench.epoch)), "{batch}");
        assert_eq!((letter.stage.as_str(), letter.class.as_str()), ("k", "rejected"));
        assert_eq!(letter.reason, format!("{number} is refused"));
        assert_eq!((letter.attempts, letter.whole), (1, 0));
        assert_eq!((letter.source.as_str(), letter.lane.as_deref()), ("s", Some("gw/s/p/k")));
        assert_eq!(letter.time, Timestamp(1));
    }
    let offers = site.world.offers.lock().unwrap().len();
    let identities: BTreeSet<_> =
        site.world.offers.lock().unwrap().iter().map(|(identity, ..)| identity.clone()).collect();
    assert_eq!(offers, identities.len(), "each batch goes out once");
    let (totals, queued) = site.close().await;
    println!("{offers} attempts, {totals:?}");
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (990, 10, 0));
    assert_eq!(totals.outputs_delivered, 990);
}

#[tokio::test(start_paused = true)]
async fn d_13_a_destination_that_names_no_record_gets_halves_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| {
        if offer.has(is_poison) { refuse(Class::Rejected, "400") } else { world.take(offer) }
    });
    let site = Site::new(dir.path(), world).await;
    site.append(0..1000, 0).await;
    site.drain().await;
    assert_eq!(site.world.numbers(), good(1000));
    assert_eq!(site.letter_numbers(), poison(1000));
    assert!(site.letters().iter().all(|letter| letter.whole == 1 && letter.attempts == 1));
    let offers = site.world.offers.lock().unwrap().len();
    let (totals, queued) = site.close().await;
    println!("{offers} attempts, {totals:?}");
    // A binary search for each: at most two offers for each halving.
    assert!(offers <= 10 * 2 * 10 + 10, "{offers}");
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (990, 10, 0));
    assert_eq!(site.bench.status.counters.letters[0].load(Ordering::Relaxed), 10);
}

#[tokio::test(start_paused = true)]
async fn d_13_halves_of_what_is_stored_are_cut_out_of_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| {
        if offer.has(is_poison) { refuse(Class::Rejected, "400") } else { world.take(offer) }
    });
    let mut site = Site::new(dir.path(), world).await;
    site.stores_its_output();
    // A batch is of several parts.
    site.append(0..1000, 700).await;
    site.drain().await;
    assert_eq!(site.world.numbers(), good(1000));
    assert_eq!(site.letter_numbers(), poison(1000));
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (990, 10, 0));
}

#[tokio::test(start_paused = true)]
async fn d_13_a_destination_that_refuses_everybody_empties_nothing_into_the_letters() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Unreachable, "404"));
    let site = Site::new(dir.path(), world).await;
    site.append(0..1000, 0).await;
    let mut group = site.run(true);
    site.held("unreachable").await;
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!(site.letters().is_empty());
    site.world.change(World::take);
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.world.numbers(), (0..1000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn d_13_a_record_that_always_fails_is_exhausted_and_the_others_are_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| {
        if offer.has(|n| n == 333) { refuse(Class::Retryable, "500") } else { world.take(offer) }
    });
    let site = Site::new(dir.path(), world).await;
    site.append(0..500, 0).await;
    let begun = tokio::time::Instant::now();
    site.drain().await;
    let all_but: Vec<_> = (0..500).filter(|n| *n != 333).collect();
    assert_eq!(site.world.numbers(), all_but);
    assert_eq!(site.letter_numbers(), [333]);
    let letter = &site.letters()[0];
    assert_eq!((letter.class.as_str(), letter.attempts), ("exhausted", 3));
    println!("given up after {:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_secs(120), "not before the budget is spent");
    assert_eq!(site.bench.status.counters.budgets_spent.load(Ordering::Relaxed), 1);
}

/// Base and cap of the case, without jitter, and the times at which the destination was tried.
async fn tried(outages: &'static [(u64, u64)], until_s: u64) -> (Vec<f64>, Vec<f64>) {
    let dir = tempfile::tempdir().unwrap();
    let is_out =
        |at: Duration| outages.iter().any(|(from, to)| (*from..*to).contains(&at.as_secs()));
    let world = World::new(move |world, offer| {
        if is_out(offer.at) { refuse(Class::Retryable, "refused") } else { world.take(offer) }
    });
    let mut site = Site::new(dir.path(), world).await;
    site.parts.retry.backoff = Backoff::new(ms(500), ms(60_000), Jitter::None).unwrap();
    site.parts.retry.budget = Duration::from_hours(24);
    site.parts.batch.linger = ms(1);
    let _group = site.run(false);
    let begun = tokio::time::Instant::now();
    let mut number = 0;
    while begun.elapsed().as_secs() < until_s {
        site.append(number..number + 1, 0).await;
        number += 1;
        tokio::time::sleep(ms(1000)).await;
    }
    let offers = site.world.offers.lock().unwrap().clone();
    let times: Vec<f64> = offers.iter().map(|(.., at)| at.as_secs_f64()).collect();
    let failed: Vec<f64> = offers
        .iter()
        .map(|(.., at)| *at)
        .filter(|at| is_out(*at))
        .map(|at| at.as_secs_f64())
        .collect();
    (times, failed)
}

#[tokio::test(start_paused = true)]
async fn d_14_the_backoff_begins_anew_after_a_delivery_and_never_passes_its_cap() {
    let (times, failed) = tried(&[(0, 180), (200, 230)], 260).await;
    let second = failed.iter().position(|at| *at >= 200.0).unwrap();
    let waits: Vec<f64> = failed.windows(2).map(|pair| pair[1] - pair[0]).collect();
    println!(
        "waits of the first outage {:?}, of the second {:?}",
        &waits[..second - 1],
        &waits[second..]
    );
    assert!(waits[second] <= 0.5 * 1.5, "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 90.0), "{waits:?}");
    assert!(waits[second - 2] > 30.0, "the first outage reached long waits: {waits:?}");
    assert!(times.len() > failed.len());
}

#[tokio::test(start_paused = true)]
async fn d_12_a_stream_that_is_missing_for_30_s_is_tried_at_most_10_times_and_gets_everything() {
    let dir = tempfile::tempdir().unwrap();
    // The server is there, so that each probe succeeds; nobody takes the subject.
    let world = World::new(|world, offer| match offer.at.as_secs() {
        0..30 => refuse(Class::Unreachable, "no responders"),
        _ => world.take(offer),
    });
    let site = Site::new(dir.path(), world).await;
    site.append(0..100, 0).await;
    site.drain().await;
    let offers = site.world.offers.lock().unwrap().clone();
    let early = offers.iter().filter(|(.., at)| at.as_secs() < 30).count();
    println!("{early} tries in 30 s of {offers:?}");
    assert!((5..=10).contains(&early), "{offers:?}");
    assert_eq!(site.world.numbers(), (0..100).collect::<Vec<_>>());
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (100, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn d_14_accepting_a_connection_and_closing_it_sets_no_backoff_back() {
    // Probes succeed and attempts fail: only a confirmed delivery counts.
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Unreachable, "closed"));
    let mut site = Site::new(dir.path(), world).await;
    site.parts.retry.backoff = Backoff::new(ms(500), ms(60_000), Jitter::None).unwrap();
    site.append(0..1, 0).await;
    let _group = site.run(false);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let offers = site.world.offers.lock().unwrap().len();
    assert!(offers <= 18, "{offers} attempts in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn d_14_a_fleet_that_lost_its_server_comes_back_spread_out() {
    let backoff = Backoff::new(ms(500), ms(60_000), Jitter::Full).unwrap();
    let mut firsts = Vec::new();
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let world = World::new(|_, _| refuse(Class::Retryable, "busy"));
        let mut site = Site::new(dir.path(), world).await;
        site.parts.retry.backoff = backoff;
        site.append(0..1, 0).await;
        let _group = site.run(false);
        while site.world.offers.lock().unwrap().len() < 2 {
            tokio::time::sleep(ms(1)).await;
        }
        let offers = site.world.offers.lock().unwrap();
        firsts.push((offers[1].2 - offers[0].2).as_secs_f64());
    }
    let (least, most) =
        (firsts.iter().copied().fold(1.0, f64::min), firsts.iter().copied().fold(0.0, f64::max));
    println!("first waits from {least:.3} s to {most:.3} s");
    assert!(most - least >= 0.25, "{firsts:?}");
}

/// Payloads of 1 KiB, every eleventh of which is refused: 100 among 1000 good ones.
fn is_eleventh(number: u64) -> bool {
    number % 11 == 5
}

fn small_store(on_full: LettersOnFull) -> JournalConfig {
    let letters = LettersConfig { max_bytes: Some(ByteSize(64 * 1024)), on_full };
    JournalConfig { letters, ..JournalConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn d_16_a_full_store_holds_the_lane_until_letters_are_discarded_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| world.take_but(offer, is_eleventh));
    let mut site = Site::with(dir.path(), world, small_store(LettersOnFull::Hold)).await;
    site.parts.batch.records_max = 110;
    site.append(0..1100, 1024).await;
    let mut group = site.run(true);
    let mut discarded = 0;
    for _ in 0..2 {
        site.held("dead_letters").await;
        let letters = site.letters();
        let room = *site.bench.journal.letters_room().borrow();
        println!("{} letters, {} of {} bytes", letters.len(), room.bytes, room.bytes_max);
        assert!(room.bytes <= 64 * 1024 && room.count == letters.len() as u64, "{room:?}");
        // Nothing that has no room is acknowledged, however long it takes.
        tokio::time::sleep(Duration::from_hours(1)).await;
        assert_eq!(site.letters(), letters);
        let ids = letters.iter().map(|letter| letter.id).collect();
        discarded += site.bench.journal.discard_letters(ids, None).await.unwrap().discarded;
    }
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    let left = site.letters().len() as u64;
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (1000, 100, 0));
    assert_eq!(discarded + left, 100, "every letter was there");
}

#[tokio::test(start_paused = true)]
async fn d_16_the_oldest_letters_make_room_when_the_config_says_so_and_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|world, offer| world.take_but(offer, is_eleventh));
    let mut site = Site::with(dir.path(), world, small_store(LettersOnFull::DropOldest)).await;
    site.parts.batch.records_max = 110;
    site.append(0..1100, 1024).await;
    site.drain().await;
    let kept = site.letter_numbers();
    let all: Vec<_> = (0..1100).filter(|n| is_eleventh(*n)).collect();
    assert_eq!(kept, all[all.len() - kept.len()..], "the youngest stay");
    let (totals, _) = site.close().await;
    let letters = site.bench.journal.snapshots().borrow().letters.clone();
    println!("kept {}, dropped {}, {:?}", kept.len(), letters.dropped, letters.room);
    assert_eq!(letters.dropped + kept.len() as u64, 100);
    assert!(letters.room.bytes <= 64 * 1024);
    assert_eq!(totals.dead_lettered, 100);
}

/// Gone at 0 ms, refusing connections from 30 ms, back at 330 ms; the first answer after that is lost.
async fn timeline(budget: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let lost = std::sync::atomic::AtomicBool::new(false);
    let world = World::new(move |world, offer| match offer.at.as_millis() {
        0..30 => silence(),
        30..330 => Err(SinkError::new(Class::Unreachable, "connection refused")),
        _ if !lost.swap(true, Ordering::SeqCst) => {
            world.take(offer).map(drop).unwrap();
            silence()
        }
        _ => world.take(offer),
    });
    let mut site = Site::new(dir.path(), world).await;
    site.parts.retry.budget = budget;
    site.parts.retry.backoff = Backoff::new(ms(20), ms(100), Jitter::None).unwrap();
    site.append(0..1, 0).await;
    site.drain().await;
    let offers = site.world.offers.lock().unwrap().clone();
    println!("{offers:?}");
    assert!(offers.iter().any(|(.., at)| (30..330).contains(&at.as_millis())), "{offers:?}");
    assert_eq!(offers.iter().filter(|(.., at)| at.as_millis() >= 330).count(), 2);
    let identities: BTreeSet<_> = offers.iter().map(|(identity, ..)| identity).collect();
    assert_eq!(identities.len(), 1, "one identity for ever");
    assert_eq!(site.world.numbers(), [0]);
    assert_eq!(site.bench.status.counters.records_already.load(Ordering::Relaxed), 1);
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.dead_lettered, queued), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_behind_an_outage_is_one_record_and_one_outcome() {
    timeline(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_outage_ends_the_same_under_a_budget_of_two_minutes() {
    timeline(Duration::from_secs(120)).await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_hours_spends_no_budget_and_silence_with_others_served_none_either() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| silence());
    let mut site = Site::new(dir.path(), world).await;
    site.parts.retry.budget = Duration::from_secs(1);
    site.append(0..10, 0).await;
    let mut group = site.run(true);
    site.held("unreachable").await;
    tokio::time::sleep(Duration::from_hours(2)).await;
    // Another lane of the same sink is served: now it is this batch that fails, and still nobody answers.
    site.parts.served.add();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(matches!(
        site.bench.status.state(),
        LaneState::Retrying { class: Class::Retryable, .. }
    ));
    assert_eq!(site.bench.status.counters.batches_cut.load(Ordering::Relaxed), 0);
    site.world.change(World::take);
    assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
    assert_eq!(site.world.numbers().len(), 10);
}

#[tokio::test(start_paused = true)]
async fn when_everything_is_rejected_the_breaker_holds_and_the_store_has_its_share_at_most() {
    for is_named in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let rule = move |world: &World, offer: &Offer| -> Answer {
            if is_named { world.take_but(offer, |_| true) } else { refuse(Class::Rejected, "422") }
        };
        let mut site = Site::new(dir.path(), World::new(rule)).await;
        site.parts.batch.records_max = 10;
        site.append(0..1000, 0).await;
        let mut group = site.run(true);
        site.held("storm").await;
        tokio::time::sleep(Duration::from_hours(2)).await;
        let letters = site.letters().len();
        println!("named {is_named}: {letters} letters of 1000 records, then a hold");
        assert_eq!(letters, 20, "a fifth of the least that is looked at");
        let LaneState::Holding { cause: "storm", reason, .. } = site.bench.status.state() else {
            panic!("{:?}", site.bench.status.state())
        };
        assert!(reason.contains("too many of the recent ones"), "{reason}");
        // The destination is put right: it goes on by itself.
        site.world.change(World::take);
        assert_eq!(group.next_ended().await.unwrap().result, Some(LaneEnd::Drained));
        assert_eq!(site.letters().len(), 20);
        let (totals, queued) = site.close().await;
        assert_eq!((totals.delivered, totals.dead_lettered, queued), (980, 20, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn letters_that_are_too_many_bytes_for_one_ack_are_cut_first() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(|_, _| refuse(Class::Conflict, "other content"));
    let mut site = Site::new(dir.path(), world).await;
    site.parts.on_conflict = GiveUp::DeadLetter;
    site.parts.storm.share = 1.0;
    site.parts.batch.bytes_max = ByteSize(64 << 20);
    for n in 0..40 {
        site.append(n..n + 1, 500_000).await;
    }
    site.drain().await;
    assert_eq!(site.letter_numbers(), (0..40).collect::<Vec<_>>());
    assert!(site.letters().iter().all(|letter| letter.class == "conflict"));
    let offers = site.world.offers.lock().unwrap().clone();
    let cut = site.bench.status.counters.batches_cut.load(Ordering::Relaxed);
    println!("{cut} cuts, {offers:?}");
    assert!(cut >= 3, "20 MB in acks of 8 MiB");
    assert!(offers.iter().all(|(identity, ..)| !identity.contains(".0")), "halves are not sent");
    let (totals, _) = site.close().await;
    assert_eq!(totals.dead_lettered, 40);
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_of_cuts_and_letters_changes_nothing_of_the_outcome() {
    crash_at_any_step(false).await;
}

#[tokio::test(start_paused = true)]
async fn nor_does_it_where_the_output_is_stored() {
    crash_at_any_step(true).await;
}

async fn crash_at_any_step(stored: bool) {
    let (dir, images) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let rule = |world: &World, offer: &Offer| match offer.identity.contains("/b2") {
        // The first batch is cut, the second refuses by name, the third one's answer is lost once.
        false if offer.has(|n| n == 3 || n == 17) => refuse(Class::Rejected, "400"),
        true => world.take_but(offer, |n| n == 25 || n == 39),
        _ if offer.has(|n| n == 45) && offer.number.is_multiple_of(2) => {
            world.take(offer).map(drop).unwrap();
            silence()
        }
        _ => world.take(offer),
    };
    let world = World::recording(dir.path(), images.path(), rule);
    let mut site = Site::new(dir.path(), world).await;
    site.parts.batch.records_max = 20;
    if stored {
        site.stores_its_output();
    }
    site.append(0..60, 0).await;
    site.drain().await;
    let bad = [3, 17, 25, 39];
    assert_eq!(site.letter_numbers(), bad);
    let forks = std::mem::take(&mut *site.world.forks.lock().unwrap());
    println!("{} crashes", forks.len());
    assert!(forks.len() > 30);
    for (image, held, order) in forks {
        // The destination takes everything by now but what it refused by name, whatever it said before.
        for takes_all in [false, true] {
            let copy = tempfile::tempdir().unwrap();
            for entry in std::fs::read_dir(&image).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
            let world = if takes_all {
                World::fork(held.clone(), order.clone(), |world, offer| {
                    match offer.identity.contains("/b2") {
                        true => world.take_but(offer, |n| n == 25 || n == 39),
                        false => world.take(offer),
                    }
                })
            } else {
                World::fork(held.clone(), order.clone(), rule)
            };
            let mut site = Site::new(copy.path(), world).await;
            if stored {
                site.stores_its_output();
            }
            site.drain().await;
            let letters = site.letter_numbers();
            let mut all = site.world.numbers();
            assert!(all.is_sorted(), "{all:?}");
            all.extend(&letters);
            all.sort_unstable();
            assert_eq!(all, (0..60).collect::<Vec<_>>(), "each has one outcome");
            if !takes_all {
                assert_eq!(letters, bad);
            }
            let (totals, queued) = site.close().await;
            let dead = letters.len() as u64;
            assert_eq!((totals.delivered, totals.dead_lettered, queued), (60 - dead, dead, 0));
        }
    }
}
