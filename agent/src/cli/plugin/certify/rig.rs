//! A sink as a lane has it, with a destination that does what a scenario wants.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::destination::{Answer, Destination, Sent};
use crate::clock::{SharedClock, SystemClock, Timestamp};
use crate::limits::PLUGIN_CERTIFY_ATTEMPTS_MAX;
use crate::net::config::NetConfig;
use crate::plugin::SinkPlugin;
use crate::record::batch::{BatchFacts, BlocksInMemory, FrameBlock, LanePlace, SealedBatch};
use crate::record::codec::FrameBuffer;
use crate::record::id::{BatchNumber, Epoch, Seq};
use crate::record::{HeadersBuffer, Origin, RecordView};
use crate::sinks::config::SinkConfig;
use crate::sinks::plugin::BREAKS_DOWN;
use crate::sinks::{self, Class, Delivered, Sink, SinkBuilder, SinkError, SinkState};

/// 2026-01-01T00:00:00Z: a time that is the same in every run.
const SEALED_AT: Timestamp = Timestamp(1_767_225_600_000_000_000);
/// The subject of all records.
const SUBJECT: &str = "test";
/// What an attempt ends with that took too long.
pub(super) const GIVEN_UP: &str = "the attempt was given up: its time was over";

/// What every scenario works with.
pub(super) struct Rig {
    pub(super) destination: Destination,
    pub(super) plugin: SinkPlugin,
    pub(super) payloads: Vec<Vec<u8>>,
    pub(super) place: Arc<LanePlace>,
    pub(super) attempt_timeout: Duration,
    /// What the destination answers when all is well.
    pub(super) good: Answer,
    builder: Arc<dyn SinkBuilder>,
    /// Behind the destination, which ends on it.
    runtime: Runtime,
}

/// The sink of one lane, and what the lane keeps for it.
pub(super) struct Lane<'r> {
    pub(super) rig: &'r Rig,
    sink: Box<dyn Sink>,
    state: SinkState,
    attempt: u32,
}

impl Rig {
    pub(super) fn new(
        (runtime, destination): (Runtime, Destination),
        plugin: SinkPlugin,
        config: &SinkConfig,
        place: LanePlace,
        good: Answer,
        payloads: Vec<Vec<u8>>,
    ) -> Self {
        let clock: SharedClock = Arc::new(SystemClock);
        let net = NetConfig::default();
        let builder = sinks::build(config, &net, clock, None, Some(plugin.clone()));
        let (place, attempt_timeout) = (Arc::new(place), config.retry.attempt_timeout);
        Self { destination, plugin, payloads, place, attempt_timeout, good, builder, runtime }
    }

    /// A lane with a state of its own, and the script for what it sends.
    pub(super) fn lane(&self, script: impl Fn(&Sent) -> Answer + Send + 'static) -> Lane<'_> {
        self.destination.answers(script);
        let mut lane =
            Lane { rig: self, sink: self.builder.build(), state: SinkState::new(), attempt: 0 };
        lane.lose_instance();
        lane
    }

    /// A lane whose destination takes everything.
    pub(super) fn good_lane(&self) -> Lane<'_> {
        let good = self.good.clone();
        self.lane(move |_| good.clone())
    }

    /// The batch that all scenarios are about.
    pub(super) fn batch(&self) -> SealedBatch {
        let all: Vec<_> =
            (0..).zip(&self.payloads).map(|(at, payload)| (at, &payload[..])).collect();
        self.batch_of(1, "", &all)
    }

    /// A batch of these records; the numbers are added to the first seq.
    pub(super) fn batch_of(
        &self,
        number: u64,
        suffix: &str,
        records: &[(u64, &[u8])],
    ) -> SealedBatch {
        let epoch = Epoch::new(1, 0x5e_ed);
        let seq = |at: Option<&(u64, &[u8])>| Seq(1 + at.map_or(0, |(at, _)| *at));
        let mut frames = FrameBuffer::default();
        let headers = HeadersBuffer::default();
        for record in records {
            frames.push(&RecordView {
                epoch,
                seq: seq(Some(record)),
                origin: Origin::default(),
                time: SEALED_AT,
                subject: SUBJECT,
                headers: headers.as_headers(),
                payload: record.1,
            });
        }
        let facts = BatchFacts {
            place: Arc::clone(&self.place),
            epoch,
            number: BatchNumber(number),
            first_seq: seq(records.first()),
            last_seq: seq(records.last()),
            sealed_at: SEALED_AT,
            records: records.len() as u64,
            partitions: Vec::new(),
            suffix: suffix.into(),
        };
        let block = FrameBlock {
            epoch,
            first_seq: facts.first_seq,
            count: frames.count(),
            skip: 0,
            take: frames.count(),
            bytes: frames.take().into(),
        };
        // Of a plugin nothing is fixed but that it is one.
        let fixed = self.builder.fix(&facts).unwrap_or_default();
        let content = Arc::new(BlocksInMemory(vec![block]));
        SealedBatch { facts, fixed, sha256: [0; 32], earlier: false, note: None, content }
    }
}

impl Lane<'_> {
    /// One attempt, for as long as a lane gives it. What a good one changes in the state is kept.
    pub(super) fn deliver(&mut self, batch: &SealedBatch) -> Result<Delivered, SinkError> {
        self.attempt += 1;
        let attempt = self.sink.deliver(batch, self.attempt);
        let delivered = self.rig.runtime.block_on(async {
            let given_up = || SinkError::new(Class::Retryable, GIVEN_UP).doubtful();
            let ended = tokio::time::timeout(self.rig.attempt_timeout, attempt).await;
            ended.unwrap_or_else(|_| Err(given_up()))
        })?;
        for (key, value) in delivered.state.clone() {
            match value {
                Some(value) => drop(self.state.insert(key, value)),
                None => drop(self.state.remove(&key)),
            }
        }
        self.sink.keep(delivered.state.clone());
        Ok(delivered)
    }

    /// An attempt that ends, from outside, as soon as the destination has heard of it.
    pub(super) fn deliver_and_stop(&mut self, batch: &SealedBatch) -> bool {
        self.attempt += 1;
        let attempt = self.sink.deliver(batch, self.attempt);
        let destination = &self.rig.destination;
        let heard = async {
            while destination.sent().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        self.rig.runtime.block_on(async {
            tokio::select! {
                _ = attempt => false,
                ended = tokio::time::timeout(self.rig.attempt_timeout, heard) => ended.is_ok(),
            }
        })
    }

    pub(super) fn probe(&mut self) -> Result<(), SinkError> {
        let probe = self.sink.probe();
        self.rig.runtime.block_on(async {
            let given_up = || SinkError::new(Class::Retryable, GIVEN_UP).doubtful();
            let ended = tokio::time::timeout(self.rig.attempt_timeout, probe).await;
            ended.unwrap_or_else(|_| Err(given_up()))
        })
    }

    /// As after a restart, or when the instance broke down: a new one that knows the state and nothing else.
    pub(super) fn lose_instance(&mut self) {
        self.sink = self.rig.builder.build();
        self.sink.join(&self.rig.place, self.state.clone());
    }

    /// Has the destination take everything from now on, and the batch delivered.
    pub(super) fn settle(&mut self, batch: &SealedBatch) -> Result<(), String> {
        let good = self.rig.good.clone();
        self.rig.destination.answers_from_now(move |_| good.clone());
        let mut last = None;
        for _ in 0..PLUGIN_CERTIFY_ATTEMPTS_MAX {
            match self.deliver(batch) {
                Ok(delivered) if delivered.refused.is_empty() => return Ok(()),
                other => last = Some(said(&other)),
            }
        }
        let last = last.unwrap_or_default();
        Err(format!("when the destination is well again it does not deliver the batch: {last}"))
    }
}

/// What the sink said, for people.
pub(super) fn said(result: &Result<Delivered, SinkError>) -> String {
    match result {
        Ok(delivered) if delivered.refused.is_empty() => "delivered".to_owned(),
        Ok(delivered) => {
            let first = delivered.refused.first().map_or("", |refused| refused.reason.as_str());
            let count = delivered.refused.len();
            format!("delivered but for {count} that it rejects: {first}")
        }
        Err(error) if broke_down(error) => error.to_string(),
        Err(error) => format!("{}: {error}", error.class.as_str()),
    }
}

pub(super) fn broke_down(error: &SinkError) -> bool {
    error.reason.starts_with(BREAKS_DOWN)
}
