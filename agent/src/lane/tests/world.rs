//! A destination in memory that goes by batch identities, as an HTTP endpoint with idempotency keys does, and answers as told.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::*;

/// Identity and payload.
pub(super) type Records = Vec<(String, String)>;

/// A batch that is offered.
pub(super) struct Offer {
    pub(super) identity: String,
    pub(super) records: Records,
    /// Which offer of all it is, from 0.
    pub(super) number: usize,
    /// When, since the world began.
    pub(super) at: Duration,
}

impl Offer {
    /// Whether a payload of it is one of those that `is_bad` means.
    pub(super) fn has(&self, is_bad: fn(u64) -> bool) -> bool {
        self.records.iter().any(|(_, payload)| is_bad(number(payload)))
    }
}

/// The number that a test payload begins with.
pub(super) fn number(payload: &str) -> u64 {
    payload.split(' ').next().unwrap().parse().unwrap()
}

pub(super) type Answer = Result<Delivered, SinkError>;
pub(super) type Rule = Box<dyn Fn(&World, &Offer) -> Answer + Send + Sync>;

/// A copy of a journal, and what the destination held then: by identity, and in the order in which it came.
pub(super) type Fork = (PathBuf, BTreeMap<String, Records>, Records);

/// What it holds and has seen.
pub(super) struct World {
    begun: tokio::time::Instant,
    rule: Mutex<Arc<Rule>>,
    held: Mutex<BTreeMap<String, Records>>,
    /// All that it holds, in the order in which it came.
    pub(super) order: Mutex<Records>,
    /// Identity, records and time of each offer.
    pub(super) offers: Mutex<Vec<(String, usize, Duration)>>,
    /// When it was asked whether it would take anything.
    pub(super) probes: Mutex<Vec<Duration>>,
    /// Where copies of a journal's files are kept, one before and one behind each offer, with what is held then.
    images: Option<(PathBuf, PathBuf)>,
    pub(super) forks: Mutex<Vec<Fork>>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl World {
    pub(super) fn new(rule: impl Fn(&Self, &Offer) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self::made(Box::new(rule), BTreeMap::new(), Vec::new(), None))
    }

    fn made(
        rule: Rule,
        held: BTreeMap<String, Records>,
        order: Records,
        images: Option<(PathBuf, PathBuf)>,
    ) -> Self {
        Self {
            begun: tokio::time::Instant::now(),
            rule: Mutex::new(Arc::new(rule)),
            held: Mutex::new(held),
            order: Mutex::new(order),
            offers: Mutex::default(),
            probes: Mutex::default(),
            images,
            forks: Mutex::default(),
        }
    }

    /// One that copies the journal in `directory` before and behind each offer, below `images`.
    pub(super) fn recording(
        directory: &Path,
        images: &Path,
        rule: impl Fn(&Self, &Offer) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        let images = Some((directory.to_owned(), images.to_owned()));
        Arc::new(Self::made(Box::new(rule), BTreeMap::new(), Vec::new(), images))
    }

    /// One that holds what another held.
    pub(super) fn fork(
        held: BTreeMap<String, Records>,
        order: Records,
        rule: impl Fn(&Self, &Offer) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self::made(Box::new(rule), held, order, None))
    }

    /// Answers otherwise from now on.
    pub(super) fn change(&self, rule: impl Fn(&Self, &Offer) -> Answer + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Arc::new(Box::new(rule));
    }

    /// Takes all of an offer.
    pub(super) fn take(&self, offer: &Offer) -> Answer {
        self.take_but(offer, |_| false)
    }

    /// Takes an offer without the records that `is_bad` means, which are refused by name.
    pub(super) fn take_but(&self, offer: &Offer, is_bad: fn(u64) -> bool) -> Answer {
        let bad = |(_, payload): &&(String, String)| is_bad(number(payload));
        let good: Records = offer.records.iter().filter(|r| !bad(r)).cloned().collect();
        let refused = offer.records.iter().zip(0..).filter(|(record, _)| bad(record));
        let refused = refused
            .map(|((_, payload), index)| crate::sinks::Refused {
                index,
                reason: format!("{} is refused", number(payload)),
            })
            .collect();
        let mut held = self.held.lock().unwrap();
        let mut already = 0;
        if let Some(known) = held.get(&offer.identity) {
            assert_eq!(*known, good, "the same identity has the same content");
            already = good.len() as u64;
        } else if !good.is_empty() {
            let mut order = self.order.lock().unwrap();
            for record in &good {
                assert!(
                    !order.contains(record),
                    "{record:?} is there twice, now in {}",
                    offer.identity
                );
            }
            order.extend(good.clone());
            held.insert(offer.identity.clone(), good.clone());
        }
        Ok(Delivered { records: good.len() as u64, already, refused, ..Delivered::default() })
    }

    /// The numbers that it holds, in the order in which they came.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.order.lock().unwrap().iter().map(|(_, payload)| number(payload)).collect()
    }

    fn copy(&self) {
        let Some((from, images)) = &self.images else { return };
        let mut forks = self.forks.lock().unwrap();
        let to = images.join(forks.len().to_string());
        std::fs::create_dir(&to).unwrap();
        for name in ["journal.db", "journal.db-wal"] {
            if from.join(name).exists() {
                std::fs::copy(from.join(name), to.join(name)).unwrap();
            }
        }
        forks.push((to, self.held.lock().unwrap().clone(), self.order.lock().unwrap().clone()));
    }
}

/// A refusal of the whole batch.
pub(super) fn refuse(class: Class, reason: &str) -> Answer {
    Err(SinkError::new(class, reason).answered())
}

/// No answer at all.
pub(super) fn silence() -> Answer {
    Err(SinkError::new(Class::Retryable, "silence").doubtful())
}

#[derive(Debug, Clone)]
pub(super) struct WorldSink(pub(super) Arc<World>);

impl SinkBuilder for WorldSink {
    fn kind(&self) -> &'static str {
        "world"
    }

    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        Ok(facts.identity().into())
    }

    fn takes(&self, _fixed: &str) -> bool {
        true
    }

    fn fix_half(&self, facts: &BatchFacts, parent: &str) -> Result<Arc<str>, SinkError> {
        let identity = facts.identity();
        assert_eq!(identity.rsplit_once('.').unwrap().0, parent, "a half of it");
        Ok(facts.identity().into())
    }

    fn build(&self) -> Box<dyn Sink> {
        Box::new(self.clone())
    }
}

#[async_trait]
impl Sink for WorldSink {
    async fn deliver(&mut self, batch: &SealedBatch, _: u32) -> Result<Delivered, SinkError> {
        let (records, sha256) = super::read(batch).await;
        assert_eq!(sha256, batch.sha256, "what is read back is what was sealed");
        assert_eq!(&*batch.fixed, batch.facts.identity());
        assert_eq!(records.len() as u64, batch.facts.records);
        let is_replay = batch.facts.suffix.contains("/r");
        assert!(batch.earlier || !is_replay, "what was given up may have arrived");
        let at = self.0.begun.elapsed();
        let identity = batch.facts.identity();
        let number = {
            let mut offers = self.0.offers.lock().unwrap();
            offers.push((identity.clone(), records.len(), at));
            offers.len() - 1
        };
        self.0.copy();
        let rule = Arc::clone(&self.0.rule.lock().unwrap());
        let answer = rule(&self.0, &Offer { identity, records, number, at });
        self.0.copy();
        answer
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        self.0.probes.lock().unwrap().push(self.0.begun.elapsed());
        Ok(())
    }
}

/// tokio's time, which a test may have paused.
#[derive(Debug)]
pub(super) struct TokioClock(tokio::time::Instant);

impl Default for TokioClock {
    fn default() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl crate::clock::Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.0.elapsed().as_nanos()).unwrap();
        Timestamp(1_700_000_000_000_000_000 + elapsed)
    }

    fn monotonic(&self) -> crate::clock::Monotonic {
        let elapsed = u64::try_from(self.0.elapsed().as_nanos()).unwrap();
        crate::clock::Monotonic(1_000_000_000 + elapsed)
    }
}
