//! Sinks deliver sealed batches. They know nothing of retries, cursors or the journal: they report what they saw.

pub mod config;
mod error;
pub mod file;
mod format;
pub mod http;
pub mod nats;
pub mod plugin;
/// The scripted server of the tests.
#[cfg(test)]
#[path = "../../tests/it/support/http.rs"]
pub(crate) mod server;
mod stdout;
mod throttle;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;

pub use error::{Class, SinkError};
pub use throttle::Throttle;

use self::config::{SinkConfig, SinkKind};
use crate::clock::SharedClock;
use crate::limiter::Limiter;
use crate::net::config::NetConfig;
use crate::record::batch::{BatchFacts, LanePlace, ReadError, SealedBatch};
use crate::record::partition::PartitionBy;

/// Makes the builder of a configured sink, which pays for what goes out at `limiter`, its own or one that it shares. `guest`
/// is the plugin of a sink that is one; without it such a sink delivers nothing and says so. Touches nothing outside the
/// process.
#[must_use]
pub fn build(
    config: &SinkConfig,
    net: &NetConfig,
    clock: SharedClock,
    limiter: Option<Arc<Limiter>>,
    guest: Option<plugin::SinkPlugin>,
) -> Arc<dyn SinkBuilder> {
    match &config.kind {
        SinkKind::File(file) => Arc::new(file::FileSinkBuilder::new(file.clone(), limiter)),
        SinkKind::Http(http) => {
            let http = http.as_ref().clone();
            Arc::new(http::HttpSinkBuilder::new(http, net, config.retry, clock, limiter))
        }
        SinkKind::Nats(nats) => Arc::new(nats::NatsSinkBuilder::new(
            config.id.clone(),
            nats.clone(),
            net,
            config.retry,
            clock,
            limiter,
        )),
        SinkKind::Plugin(settings) => {
            let settings = settings.as_ref().clone();
            let parts = plugin::Parts { guest, net: net.clone(), retry: config.retry, clock };
            Arc::new(plugin::PluginSinkBuilder::new(config.id.clone(), settings, parts, limiter))
        }
        SinkKind::Stdout(stdout) => Arc::new(stdout::StdoutSinkBuilder::new(*stdout)),
    }
}

/// A record that the destination refuses for good, while it takes the others of the batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Its place in the batch, from 0.
    pub index: u64,
    /// Why, with the destination's words and without the payload.
    pub reason: String,
}

/// What a delivery achieved: everything in the batch that was not refused is durable at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use = "a batch counts as delivered only through this"]
pub struct Delivered {
    /// Records of the batch that the destination has.
    pub records: u64,
    /// Records (or, for a file, all of them) that the destination had already: a repeat that it recognised.
    pub already: u64,
    /// Bytes that went out, as they were on the wire or in the file.
    pub bytes: u64,
    /// Files written; zero for sinks that write none.
    pub files: u64,
    /// Records stored behind one that failed at first, inside one publish window.
    pub reordered: u64,
    /// Records that were sent again though the destination may have had them, and may not have recognised them.
    pub resent: u64,
    /// Records that are refused, in their order: they go to the dead letters.
    pub refused: Vec<Refused>,
    /// What it has changed in its state for the batch: durable together with the batch's outcome, or not at all.
    pub state: StateChanges,
}

/// What a sink keeps with its lane, by key.
pub type SinkState = BTreeMap<String, Arc<[u8]>>;

/// The new value of each key that has changed; `None` for one that is gone.
pub type StateChanges = BTreeMap<String, Option<Arc<[u8]>>>;

/// What a sink remembers for its lane over restarts: one short text. Kept by the lane.
#[async_trait]
pub trait Memory: Send + Sync + std::fmt::Debug {
    /// What was kept last.
    fn recall(&self) -> Option<Arc<str>>;

    /// Keeps another text instead. Returns once it is safe if it has to be `durable`; otherwise it is safe with whatever the
    /// lane keeps next.
    ///
    /// # Errors
    /// When it could not be kept.
    async fn keep(&self, note: Arc<str>, durable: bool) -> Result<(), ReadError>;
}

/// One lane's way to a destination. Made by [`SinkBuilder::build`], used by one lane only.
#[async_trait]
pub trait Sink: Send {
    /// Delivers the whole batch or reports why not. The same batch may come again, after any outcome but success.
    ///
    /// # Errors
    /// Of one of the four classes; what was delivered before the error stays delivered.
    ///
    /// # Cancel safety
    /// Dropping the future leaves an attempt with an unknown outcome, which the next attempt settles.
    async fn deliver(&mut self, batch: &SealedBatch, attempt: u32) -> Result<Delivered, SinkError>;

    /// Asks cheaply whether the destination would take a batch now.
    ///
    /// # Errors
    /// With the class that a delivery would meet.
    async fn probe(&mut self) -> Result<(), SinkError>;

    /// What the last probe has found that does not keep it from delivering, but from recognising every repeat.
    fn doubts(&self) -> Vec<String> {
        Vec::new()
    }

    /// Gives it what it may remember by, before its first delivery.
    fn remember(&mut self, _memory: Arc<dyn Memory>) {}

    /// Says before its first delivery whose it is, and what that lane holds of its state.
    fn join(&mut self, _place: &Arc<LanePlace>, _state: SinkState) {}

    /// Says that these changes are stored with the outcome of their batch.
    fn keep(&mut self, _changes: StateChanges) {}

    /// What its attempts pay through.
    fn throttle(&self) -> Throttle {
        Throttle::default()
    }
}

/// One configured sink: shared by the lanes that use it.
#[async_trait]
pub trait SinkBuilder: Send + Sync + std::fmt::Debug {
    /// The word for `type` in the config.
    fn kind(&self) -> &'static str;

    /// What is fixed for a batch when it is sealed (file name, format, encoding, subject template), as JSON. Pure: it is
    /// stored with the batch and given back with every attempt, whatever the config says by then.
    ///
    /// # Errors
    /// [`Class::Rejected`] when no valid name can be made.
    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError>;

    /// By what of its records a batch is taken apart, for [`BatchFacts::partitions`]; `None` when it stays whole.
    fn partition_by(&self) -> Option<Arc<PartitionBy>> {
        None
    }

    /// Whether this is what a sink of this kind has fixed. A batch that a sink of another kind has sealed is fixed anew.
    fn takes(&self, fixed: &str) -> bool;

    /// What is fixed for a half of a batch: what its parent has, with the half's own name where the sink gives names. Pure,
    /// and made from what was sealed, not from the config. `facts` are those of the half, `parent_fixed` of what was cut.
    ///
    /// # Errors
    /// [`Class::Rejected`] when no valid name can be made.
    fn fix_half(&self, _facts: &BatchFacts, parent_fixed: &str) -> Result<Arc<str>, SinkError> {
        Ok(parent_fixed.into())
    }

    /// Looks at what the sink needs of this machine, as its first attempt would: certificates, credentials. Connects to
    /// nothing, and blocks for as long as small files take.
    ///
    /// # Errors
    /// With what is wrong about that.
    fn check(&self) -> Result<(), SinkError> {
        Ok(())
    }

    /// Makes one lane's instance. Connects to nothing: an absent destination must not keep the agent from starting.
    fn build(&self) -> Box<dyn Sink>;
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::record::batch::{BlocksInMemory, FrameBlock};
    use crate::record::codec::FrameBuffer;
    use crate::record::id::{BatchNumber, Epoch, LaneName, Seq};
    use crate::record::partition::Partitions;
    use crate::record::{Headers, Origin, RecordView};

    /// Facts of batch `number` with `records` records from seq 10.
    pub(crate) fn facts(number: u64, records: u64) -> BatchFacts {
        let place = LanePlace {
            lane: LaneName::stored("gw-1/src/pipe/files"),
            agent: "gw-1".parse().unwrap(),
            source: "src".parse().unwrap(),
            pipeline: "pipe".parse().unwrap(),
            sink: "files".parse().unwrap(),
        };
        BatchFacts {
            place: Arc::new(place),
            epoch: Epoch::new(1, 0xabcde),
            number: BatchNumber(number),
            first_seq: Seq(10),
            last_seq: Seq(9 + records),
            sealed_at: Timestamp(1_800_000_000_000_000_007),
            records,
            partitions: Vec::new(),
            suffix: "".into(),
        }
    }

    /// A batch of these payloads under subject `s.t`, one block per 1000 records.
    pub(crate) fn batch(
        builder: &dyn SinkBuilder,
        facts: BatchFacts,
        payloads: &[&[u8]],
    ) -> SealedBatch {
        let records: Vec<_> =
            payloads.iter().map(|payload| ("s.t", Headers::default(), *payload)).collect();
        batch_of(builder, facts, &records)
    }

    /// A batch of these records.
    pub(crate) fn batch_of(
        builder: &dyn SinkBuilder,
        mut facts: BatchFacts,
        records: &[(&str, Headers<'_>, &[u8])],
    ) -> SealedBatch {
        let mut partitions = builder.partition_by().map(Partitions::new);
        let mut blocks = Vec::new();
        let mut seq = facts.first_seq;
        for part in records.chunks(1000) {
            let mut frames = FrameBuffer::default();
            let first_seq = seq;
            for (subject, headers, payload) in part {
                let record = RecordView {
                    epoch: facts.epoch,
                    seq,
                    origin: Origin::default(),
                    time: Timestamp(1_500_000_000_000_000_007),
                    subject,
                    headers: *headers,
                    payload,
                };
                if let Some(partitions) = &mut partitions {
                    assert!(partitions.note(&record, usize::MAX));
                }
                frames.push(&record);
                seq = seq.next();
            }
            blocks.push(FrameBlock {
                epoch: facts.epoch,
                first_seq,
                count: frames.count(),
                skip: 0,
                take: frames.count(),
                bytes: frames.bytes().to_vec().into(),
            });
        }
        facts.partitions = partitions.map(|mut partitions| partitions.take()).unwrap_or_default();
        let fixed = builder.fix(&facts).unwrap();
        let content = Arc::new(BlocksInMemory(blocks));
        SealedBatch { facts, fixed, sha256: [0; 32], earlier: false, note: None, content }
    }
}
