//! Posts that carried an `Idempotency-Key`: what is remembered of each travels as a position with its records, so that a
//! post whose answer was lost is stored once, also through a power cut.
//!
//! A post that takes several appends is remembered with each of them, and one that is sent again goes on behind the last
//! that is durable. Age is counted by the monotonic clock, and anew at each start: no step of the wall clock forgets a key.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::answer::{Accepted, Refusal};
use super::config::IdempotencyConfig;
use crate::clock::{Monotonic, SharedClock};
use crate::journal::Position;
use crate::limits::IDEMPOTENCY_FORGOTTEN_MAX;

/// What position keys begin with.
const PREFIX: &str = "key:";
/// The version of a position's value.
const VERSION: u8 = 1;
/// Bytes of a position's value.
const VALUE_BYTES: usize = 1 + 8 + DIGEST_BYTES + 8 + 8 + 8 + 1;
/// Bytes of the digest of a body.
const DIGEST_BYTES: usize = 16;

/// Tells bodies apart: the first half of their SHA-256.
pub(super) type Digest = [u8; DIGEST_BYTES];

/// How far a post is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    /// In the order of the posts, over all runs.
    number: u64,
    digest: Digest,
    /// Records of the post that are dealt with.
    items: u64,
    accepted: u64,
    rejected: u64,
    is_whole: bool,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<String, (Stored, Monotonic)>,
    /// Keys by number: the oldest first.
    order: BTreeMap<u64, String>,
    next: u64,
    busy: HashSet<String>,
}

/// The keys of one source.
#[derive(Debug)]
pub(super) struct Keys {
    config: IdempotencyConfig,
    clock: SharedClock,
    state: Mutex<State>,
}

/// What a key says about a post.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is stored already.
    Done(Accepted),
    /// It is to be stored, behind the first `skip` records.
    Open { post: Post, skip: u64 },
}

/// A post with a key that is being stored. Others with this key are refused until it is dropped.
#[derive(Debug)]
pub(super) struct Post {
    keys: Arc<Keys>,
    key: String,
    number: u64,
    digest: Digest,
}

impl Keys {
    pub(super) fn new(config: IdempotencyConfig, clock: SharedClock) -> Self {
        Self { config, clock, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is durable, instead of what was known.
    pub(super) fn load(&self, positions: &BTreeMap<String, Vec<u8>>) {
        let now = self.clock.monotonic();
        let mut state = self.state();
        let old = std::mem::take(&mut state.known);
        state.order.clear();
        for (key, value) in positions {
            let Some(key) = key.strip_prefix(PREFIX) else { continue };
            // One that cannot be read is of a later version, and taken over by the next post with its key.
            let Some(stored) = Stored::parse(value) else { continue };
            let since = old.get(key).map_or(now, |(_, since)| *since);
            state.order.insert(stored.number, key.to_owned());
            state.next = state.next.max(stored.number.saturating_add(1));
            state.known.insert(key.to_owned(), (stored, since));
        }
    }

    /// Looks a key up, and takes it for this post.
    pub(super) fn begin(self: &Arc<Self>, key: &str, digest: Digest) -> Result<Begun, Refusal> {
        let mut state = self.state();
        if state.busy.contains(key) {
            return Err(Refusal::KeyBusy);
        }
        let now = self.clock.monotonic();
        let known = state.known.get(key).filter(|(_, since)| now.since(*since) < self.config.keep);
        let (number, skip) = match known {
            Some((stored, _)) if stored.digest != digest => return Err(Refusal::KeyOfOther),
            Some((stored, _)) if stored.is_whole => {
                let Stored { accepted, rejected, .. } = *stored;
                return Ok(Begun::Done(Accepted { accepted, rejected, replayed: true }));
            }
            Some((stored, _)) => (stored.number, stored.items),
            None => {
                let number = state.next;
                state.next += 1;
                (number, 0)
            }
        };
        state.busy.insert(key.to_owned());
        let post = Post { keys: Arc::clone(self), key: key.to_owned(), number, digest };
        Ok(Begun::Open { post, skip })
    }

    /// Keys that are over their time or their number, as positions to remove. They are forgotten here and now.
    fn forget(&self, state: &mut State) -> Vec<Position> {
        let now = self.clock.monotonic();
        let mut gone = Vec::new();
        while gone.len() < IDEMPOTENCY_FORGOTTEN_MAX {
            let Some((number, key)) = state.order.first_key_value() else { break };
            let is_old = |(_, since): &(Stored, Monotonic)| now.since(*since) >= self.config.keep;
            let is_over = state.order.len() as u64 > self.config.keys_max;
            if state.busy.contains(key) || !is_over && !state.known.get(key).is_none_or(is_old) {
                break;
            }
            let (number, key) = (*number, key.clone());
            state.order.remove(&number);
            state.known.remove(&key);
            gone.push(Position { key: format!("{PREFIX}{key}"), value: None });
        }
        gone
    }
}

impl Post {
    /// The positions of an append behind which so many records of the post are dealt with; the counts are those of them all.
    pub(super) fn positions(&self, items: u64, counts: Accepted, is_whole: bool) -> Vec<Position> {
        let stored = self.stored(items, counts, is_whole);
        let mut positions = self.keys.forget(&mut self.keys.state());
        positions.push(Position {
            key: format!("{PREFIX}{}", self.key),
            value: Some(stored.to_bytes()),
        });
        positions
    }

    /// Remembers what has become durable.
    pub(super) fn durable(&self, items: u64, counts: Accepted, is_whole: bool) {
        let stored = self.stored(items, counts, is_whole);
        let mut state = self.keys.state();
        let now = self.keys.clock.monotonic();
        let before = state.known.insert(self.key.clone(), (stored, now));
        if let Some((before, _)) = before
            && before.number != self.number
        {
            state.order.remove(&before.number);
        }
        state.order.insert(self.number, self.key.clone());
    }

    fn stored(&self, items: u64, counts: Accepted, is_whole: bool) -> Stored {
        let Accepted { accepted, rejected, .. } = counts;
        let (number, digest) = (self.number, self.digest);
        Stored { number, digest, items, accepted, rejected, is_whole }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.keys.state().busy.remove(&self.key);
    }
}

impl Stored {
    fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(VALUE_BYTES);
        out.push(VERSION);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.digest);
        for count in [self.items, self.accepted, self.rejected] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.push(u8::from(self.is_whole));
        out
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; VALUE_BYTES] = bytes.try_into().ok()?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let mut digest = [0; DIGEST_BYTES];
        digest.copy_from_slice(&bytes[9..9 + DIGEST_BYTES]);
        let counts = 9 + DIGEST_BYTES;
        (bytes[0] == VERSION).then(|| Self {
            number: number(1),
            digest,
            items: number(counts),
            accepted: number(counts + 8),
            rejected: number(counts + 16),
            is_whole: bytes[counts + 24] == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use crate::fuzz::fuzz;

    const COUNTS: Accepted = Accepted { accepted: 3, rejected: 1, replayed: false };

    struct Rig {
        keys: Arc<Keys>,
        clock: Arc<ManualClock>,
        durable: BTreeMap<String, Vec<u8>>,
    }

    impl Rig {
        fn new(keys_max: u64) -> Self {
            let clock = Arc::new(ManualClock::new(Timestamp(0)));
            let config = IdempotencyConfig { keep: Duration::from_secs(60), keys_max };
            let keys = Arc::new(Keys::new(config, Arc::<ManualClock>::clone(&clock)));
            Self { keys, clock, durable: BTreeMap::new() }
        }

        fn apply(&mut self, positions: Vec<Position>) {
            for position in positions {
                match position.value {
                    Some(value) => drop(self.durable.insert(position.key, value)),
                    None => drop(self.durable.remove(&position.key)),
                }
            }
        }

        fn post(&mut self, key: &str, digest: u8, is_whole: bool) {
            let Begun::Open { post, .. } = self.keys.begin(key, [digest; 16]).unwrap() else {
                panic!("{key} is known")
            };
            let positions = post.positions(4, COUNTS, is_whole);
            self.apply(positions);
            post.durable(4, COUNTS, is_whole);
        }

        /// Whether a key is known, and with how many records to go on behind.
        fn known(&self, key: &str, digest: u8) -> Option<Option<u64>> {
            match self.keys.begin(key, [digest; 16]).unwrap() {
                Begun::Done(counts) => {
                    assert_eq!(counts, Accepted { replayed: true, ..COUNTS });
                    Some(None)
                }
                Begun::Open { skip: 0, .. } => None,
                Begun::Open { skip, .. } => Some(Some(skip)),
            }
        }
    }

    #[test]
    fn a_key_is_known_with_its_body_also_after_a_start() {
        let mut rig = Rig::new(10);
        rig.post("a", 1, true);
        rig.post("b", 2, false);
        for _ in 0..2 {
            assert_eq!(rig.known("a", 1), Some(None));
            assert_eq!(rig.known("b", 2), Some(Some(4)));
            assert_eq!(rig.known("c", 3), None);
            assert_eq!(rig.keys.begin("a", [9; 16]).unwrap_err(), Refusal::KeyOfOther);
            rig.keys.load(&rig.durable);
        }
    }

    #[test]
    fn two_posts_with_one_key_are_not_stored_at_once() {
        let rig = Rig::new(10);
        let first = rig.keys.begin("a", [1; 16]).unwrap();
        assert_eq!(rig.keys.begin("a", [1; 16]).unwrap_err(), Refusal::KeyBusy);
        drop(first);
        assert_eq!(rig.known("a", 1), None);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_and_all_when_their_time_is_over() {
        let mut rig = Rig::new(3);
        for (key, index) in ["a", "b", "c", "d", "e", "f"].into_iter().zip(0..) {
            rig.post(key, index, true);
        }
        assert!(rig.durable.len() <= 4, "{:?}", rig.durable.keys());
        assert_eq!(rig.known("f", 5), Some(None));
        assert_eq!(rig.known("a", 0), None);
        // A wall clock that steps is nothing to them.
        rig.clock.step(Timestamp(4_000_000_000_000_000_000));
        assert_eq!(rig.known("f", 5), Some(None));
        rig.clock.advance(Duration::from_secs(59));
        assert_eq!(rig.known("f", 5), Some(None));
        rig.clock.advance(Duration::from_secs(1));
        assert_eq!(rig.known("f", 5), None);
        rig.post("g", 7, true);
        assert_eq!(rig.durable.len(), 1, "{:?}", rig.durable.keys());
    }

    #[test]
    fn a_start_counts_the_time_anew() {
        let mut rig = Rig::new(3);
        rig.post("a", 1, true);
        let keys = Arc::new(Keys::new(rig.keys.config, Arc::<ManualClock>::clone(&rig.clock)));
        rig.clock.advance(Duration::from_secs(59));
        keys.load(&rig.durable);
        rig.clock.advance(Duration::from_secs(59));
        rig.keys = keys;
        assert_eq!(rig.known("a", 1), Some(None));
    }

    #[test]
    fn values_of_other_versions_are_left_alone() {
        let stored = Stored {
            number: 7,
            digest: [3; 16],
            items: 1 << 40,
            accepted: 2,
            rejected: 5,
            is_whole: true,
        };
        let bytes = stored.to_bytes();
        assert_eq!(Stored::parse(&bytes), Some(stored));
        let mut other = bytes.clone();
        other[0] = 2;
        for bytes in [&other[..], &bytes[1..], &[]] {
            assert_eq!(Stored::parse(bytes), None);
        }
    }

    #[test]
    fn fuzzed_positions_are_read_or_left_aside() {
        let stored = Stored { is_whole: true, ..Stored::parse(&zeros()).unwrap() };
        fuzz(&[&stored.to_bytes(), b"", b"\x01"], |bytes| {
            if let Some(stored) = Stored::parse(bytes) {
                assert_eq!(stored.to_bytes().len(), bytes.len());
            }
            let rig = Rig::new(10);
            rig.keys.load(&BTreeMap::from([(format!("{PREFIX}k"), bytes.to_vec())]));
        });
    }

    fn zeros() -> Vec<u8> {
        let mut bytes = vec![0; VALUE_BYTES];
        bytes[0] = VERSION;
        bytes
    }
}
