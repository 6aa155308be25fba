//! Steps of the wall clock under a lane that waits, retries and keeps records of a certain age at most.

use std::sync::atomic::AtomicI64;

use super::delivery::Site;
use super::world::{TokioClock, World, silence};
use super::*;
use crate::clock::{Clock, Monotonic};

const SECOND: i64 = 1_000_000_000;
/// What the wall clock says when tests begin, in the world of [`TokioClock`].
const NOW: i64 = 1_700_000_000 * SECOND;

/// A wall clock that is set, beside a monotonic one that is not.
#[derive(Debug, Default)]
struct SteppedClock {
    base: TokioClock,
    ahead: AtomicI64,
}

impl SteppedClock {
    fn set(&self, to: i64) {
        self.ahead.store(to - NOW, Ordering::SeqCst);
    }
}

impl Clock for SteppedClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.base.now().0 + self.ahead.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Monotonic {
        self.base.monotonic()
    }
}

/// 1970, then now, an hour back, ten years on, and back again. Each step comes while a batch waits in its backoff, after which
/// the next hundred records wait for their batch to be sealed.
#[tokio::test(start_paused = true)]
async fn d_30_steps_of_the_clock_delay_expire_repeat_and_reorder_nothing() {
    let (hour, year) = (3600 * SECOND, 365 * 24 * 3600 * SECOND);
    let phases = [10 * SECOND, NOW, NOW - hour, NOW + 10 * year, NOW - hour];
    let clock = Arc::new(SteppedClock::default());
    clock.set(phases[0]);
    let offered = Mutex::new(std::collections::BTreeSet::new());
    let next = Mutex::new(phases[1..].to_vec());
    let world = World::new({
        let clock = Arc::clone(&clock);
        move |world, offer| {
            if !offered.lock().unwrap().insert(offer.identity.clone()) {
                return world.take(offer);
            }
            let mut next = next.lock().unwrap();
            if !next.is_empty() {
                clock.set(next.remove(0));
            }
            silence()
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let config =
        JournalConfig { max_age: Some(Duration::from_hours(7 * 24)), ..JournalConfig::default() };
    let shared: SharedClock = Arc::<SteppedClock>::clone(&clock);
    let bench = Bench::clocked(dir.path(), Script::default(), config, Arc::clone(&shared)).await;
    let site = Site::on(bench, Arc::clone(&world), shared);
    for phase in 0..5 {
        site.append(phase * 100..(phase + 1) * 100, 0).await;
        site.drain().await;
    }
    let offers = world.offers.lock().unwrap().clone();
    assert_eq!(offers.len(), 10, "each batch was tried twice and no more: {offers:?}");
    for pair in offers.chunks(2) {
        let [(first, _, at), (second, _, again)] = pair else { panic!("{pair:?}") };
        assert_eq!(first, second, "the same batch is tried again under its identity");
        let waited = *again - *at;
        let (least, most) = (Duration::from_millis(200), Duration::from_millis(1200));
        assert!((least..=most).contains(&waited), "{waited:?} in backoff");
    }
    assert_eq!(world.numbers(), (0..500).collect::<Vec<_>>(), "in the order of their seqs");
    let (totals, queued) = site.close().await;
    assert_eq!((totals.delivered, totals.lost, totals.dead_lettered, queued), (500, 0, 0, 0));
}
