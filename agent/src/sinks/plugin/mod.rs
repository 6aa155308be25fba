//! The sink that is a guest: a WebAssembly component of the world `sink-plugin`.
//!
//! The guest delivers a whole batch in one call, under identities that are the same for every attempt. It says what came of it;
//! what it says is believed, and completed by what the host has seen of its requests:
//!
//! | what happens | class | answered |
//! |---|---|---|
//! | `ok` | delivered, but for the records that it rejects by name | |
//! | `unreachable`; its `init` refuses or breaks down; a secret that cannot be read | unreachable, doubtful behind 502, 503, 504 or silence | |
//! | `retryable` | retryable, doubtful as above | unless its last request had no answer |
//! | `rejected` | rejected, the batch as a whole | yes |
//! | `conflict` | conflict | yes |
//! | it breaks down or meets a limit | retryable the first time; rejected when it does so again with the same batch, which is cut until the record is found that it breaks down on | |
//! | the batch cannot be read from the journal; the attempt is given up | retryable | |
//!
//! An instance lives until it breaks down, until a reload, or for an hour. The time that its requests take is not on its
//! `deadline` but on the `attempt_timeout`. An attempt that is given up ends the request that it waits for, and the guest.
//! What a call changes in the guest's state is stored with the batch's outcome, or not at all: of calls that fail it is not.

pub mod config;
mod http;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;

pub use crate::plugin::SinkPlugin;

use self::config::PluginSinkConfig;
use self::http::{Attempt, Reached, Seen};
use super::config::RetryConfig;
use super::{
    Class, Delivered, Refused, Sink, SinkBuilder, SinkError, SinkState, StateChanges, Throttle,
};
use crate::clock::{Monotonic, SharedClock};
use crate::error_chain::Chain;
use crate::limiter::Limiter;
use crate::limits::{PLUGIN_SINK_INSTANCE_MS_MAX, RETRY_AFTER_MS_MAX};
use crate::net::config::NetConfig;
use crate::plugin::{
    CallError, Fault, FaultKind, SinkCall, SinkFailure, SinkInstance, State, StateDelta, StateView,
};
use crate::record::batch::{BatchFacts, FrameBlock, LanePlace, SealedBatch};
use crate::record::id::{AgentId, LaneName, PipelineId, SinkId, SourceId, write_record_identity};
use crate::secret::Value;

/// What a plugin fixes for a batch: nothing. Whoever has sealed it may be known by it.
const FIXED: &str = r#"{"plugin":{}}"#;
/// What a failure begins with when the guest broke down or met a limit.
pub const BREAKS_DOWN: &str = "its plugin breaks down";
/// The part of an attempt's time after which a request has failed, before the lane gives the attempt up.
const SILENCE_SHARE: f64 = 0.9;

/// What a sink is made with beside its settings.
#[derive(Debug)]
pub(super) struct Parts {
    /// `None` when it was not loaded.
    pub(super) guest: Option<SinkPlugin>,
    pub(super) net: NetConfig,
    pub(super) retry: RetryConfig,
    pub(super) clock: SharedClock,
}

/// A configured sink that is a plugin.
#[derive(Debug)]
pub(super) struct PluginSinkBuilder {
    shared: Arc<Shared>,
    limiter: Option<Arc<Limiter>>,
}

/// What the lanes of a sink share.
#[derive(Debug)]
struct Shared {
    id: SinkId,
    config: PluginSinkConfig,
    guest: Option<SinkPlugin>,
    reached: Arc<Reached>,
    attempt_time: Duration,
    clock: SharedClock,
}

impl PluginSinkBuilder {
    pub(super) fn new(
        id: SinkId,
        config: PluginSinkConfig,
        parts: Parts,
        limiter: Option<Arc<Limiter>>,
    ) -> Self {
        let Parts { guest, net, retry, clock } = parts;
        let reached = Arc::new(Reached::new(&config, net, retry.attempt_timeout));
        let attempt_time = retry.attempt_timeout.mul_f64(SILENCE_SHARE);
        let shared = Shared { id, config, guest, reached, attempt_time, clock };
        Self { shared: Arc::new(shared), limiter }
    }
}

impl SinkBuilder for PluginSinkBuilder {
    fn kind(&self) -> &'static str {
        "plugin"
    }

    fn fix(&self, _facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        Ok(FIXED.into())
    }

    fn takes(&self, fixed: &str) -> bool {
        fixed == FIXED
    }

    fn check(&self) -> Result<(), SinkError> {
        let Shared { config, reached, .. } = &*self.shared;
        let unreachable = |reason: String| SinkError::new(Class::Unreachable, reason);
        if config.tls.is_some() {
            reached.refresh().map_err(|error| {
                unreachable("its TLS cannot be set up".to_owned()).caused_by(error)
            })?;
        }
        config.guest.config.fill().map_err(|error| {
            unreachable("its `config` cannot be made ready".to_owned()).caused_by(error)
        })?;
        for header in &config.headers {
            let Value::Secret(secret) = &header.value else { continue };
            secret.read().map_err(|error| {
                let reason = format!("the secret of its header {} cannot be read", header.name);
                unreachable(reason).caused_by(error)
            })?;
        }
        if let Some(guest) = &self.shared.guest {
            let place = stranger(&self.shared.id);
            begin(guest, &place, StateView::default())?;
        }
        Ok(())
    }

    fn build(&self) -> Box<dyn Sink> {
        Box::new(PluginSink {
            shared: Arc::clone(&self.shared),
            throttle: Throttle::new(self.limiter.clone()),
            place: None,
            state: Arc::default(),
            instance: None,
            broke_on: None,
        })
    }
}

/// One lane's guest.
struct PluginSink {
    shared: Arc<Shared>,
    throttle: Throttle,
    place: Option<Arc<LanePlace>>,
    state: Arc<State>,
    instance: Option<Living>,
    /// The batch on which it broke down last.
    broke_on: Option<String>,
}

/// An instance, and since when it lives.
struct Living {
    instance: SinkInstance,
    since: Monotonic,
}

/// A call that a thread for blocking work makes. The attempt that it belongs to is over when the future that waits for it goes.
struct Call {
    plugin: SinkPlugin,
    place: Arc<LanePlace>,
    living: Option<Living>,
    state: Arc<State>,
    clock: SharedClock,
    attempt: Arc<Attempt>,
}

/// Ends an attempt with whoever waits for it.
struct OverWhenDropped(Arc<Attempt>);

impl Drop for OverWhenDropped {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Call {
    /// The instance that lives, or a new one.
    fn instance(&mut self) -> Result<&mut Living, SinkError> {
        if self.living.is_none() {
            let since = self.clock.monotonic();
            let state = StateView::new(Arc::clone(&self.state), StateDelta::new());
            let instance = begin(&self.plugin, &self.place, state)?;
            self.living = Some(Living { instance, since });
        }
        self.living.as_mut().ok_or_else(not_loaded)
    }

    fn deliver(
        mut self,
        batch: &SealedBatch,
        number: u32,
    ) -> (Option<Living>, Result<Delivered, Failed>) {
        let result = self.deliver_with(batch, number);
        (self.living.filter(|living| !living.instance.is_dead()), result)
    }

    fn deliver_with(&mut self, batch: &SealedBatch, number: u32) -> Result<Delivered, Failed> {
        let blocks = read(batch)?;
        let records = blocks.iter().flat_map(FrameBlock::records).collect::<Result<Vec<_>, _>>();
        let records = records.map_err(|error| unreadable(error.into()))?;
        let ids: Vec<_> = records
            .iter()
            .map(|record| {
                let mut id = String::new();
                write_record_identity(&mut id, &self.place.lane, record);
                id
            })
            .collect();
        let id = batch.facts.identity();
        let (now, attempt) = (self.clock.now(), Arc::clone(&self.attempt));
        let state = StateView::new(Arc::clone(&self.state), StateDelta::new());
        let living = self.instance()?;
        let call = SinkCall {
            id: &id,
            attempt: number,
            now,
            left: attempt.left(),
            ids: &ids,
            records: &records,
        };
        let made = living.instance.deliver(call, state, Arc::<Attempt>::clone(&attempt));
        let (rejections, state) = made.map_err(|failure| self.attempt.judge(failure))?;
        let refused: Vec<_> = rejections
            .into_iter()
            .map(|rejection| Refused { index: rejection.index.into(), reason: rejection.reason })
            .collect();
        let records = records.len() as u64 - refused.len() as u64;
        let bytes = attempt.sent_bytes();
        Ok(Delivered { records, bytes, refused, state, ..Delivered::default() })
    }

    fn probe(mut self) -> (Option<Living>, Result<(), Failed>) {
        let state = StateView::new(Arc::clone(&self.state), StateDelta::new());
        let (now, attempt) = (self.clock.now(), Arc::clone(&self.attempt));
        let result = match self.instance() {
            Ok(living) => living
                .instance
                .probe(now, state, attempt)
                .map_err(|failure| self.attempt.judge(failure)),
            Err(error) => Err(error.into()),
        };
        (self.living.filter(|living| !living.instance.is_dead()), result)
    }
}

/// Makes an instance.
fn begin(
    plugin: &SinkPlugin,
    place: &LanePlace,
    state: StateView,
) -> Result<SinkInstance, SinkError> {
    plugin.instantiate(place, state).map_err(|error| {
        let reason = match error {
            CallError::Host(source) => format!("its plugin cannot be begun: {}", Chain(&*source)),
            CallError::Fault(Fault { kind: FaultKind::InitError, text }) => {
                format!("its plugin does not begin: {text}")
            }
            other => format!("its plugin does not begin: {other}"),
        };
        SinkError::new(Class::Unreachable, reason)
    })
}

/// Whom a call without a lane speaks for.
fn stranger(sink: &SinkId) -> Arc<LanePlace> {
    let name = "probe";
    let agent: AgentId = name.parse().expect("a name");
    let (source, pipeline): (SourceId, PipelineId) =
        (name.parse().expect("a name"), name.parse().expect("a name"));
    let lane = LaneName::new(&agent, &source, &pipeline, sink);
    Arc::new(LanePlace { lane, agent, source, pipeline, sink: sink.clone() })
}

/// A failure, and whether it is the guest's own.
#[derive(Debug)]
struct Failed {
    error: SinkError,
    broke_down: bool,
}

impl From<SinkError> for Failed {
    fn from(error: SinkError) -> Self {
        Self { error, broke_down: false }
    }
}

impl Attempt {
    /// What a failure of the guest means, after what was seen of its requests.
    fn judge(&self, failure: SinkFailure) -> Failed {
        let seen = self.seen();
        let doubt = |error: SinkError| match seen {
            Seen::Silence | Seen::Answer(502..=504) => error.doubtful(),
            _ => error,
        };
        let error = match failure {
            SinkFailure::Unreachable(reason) => doubt(SinkError::new(Class::Unreachable, reason)),
            SinkFailure::Retryable { reason, retry_after } => {
                let error = doubt(SinkError::new(Class::Retryable, reason));
                let longest = Duration::from_millis(RETRY_AFTER_MS_MAX);
                let retry_after = retry_after.map(|wait| wait.min(longest));
                let error = SinkError { retry_after, ..error };
                if matches!(seen, Seen::Nothing | Seen::Answer(_)) {
                    error.answered()
                } else {
                    error
                }
            }
            SinkFailure::Rejected(reason) => SinkError::new(Class::Rejected, reason).answered(),
            SinkFailure::Conflict(reason) => SinkError::new(Class::Conflict, reason).answered(),
            SinkFailure::Fault(fault) => {
                let reason = format!("{BREAKS_DOWN}: {fault}");
                return Failed {
                    error: SinkError::new(Class::Retryable, reason),
                    broke_down: true,
                };
            }
            SinkFailure::GivenUp => {
                SinkError::new(Class::Retryable, "the attempt was given up").doubtful()
            }
        };
        error.into()
    }
}

fn read(batch: &SealedBatch) -> Result<Vec<FrameBlock>, SinkError> {
    let mut reader = batch.content.open();
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block().map_err(unreadable)? {
        blocks.push(block);
    }
    Ok(blocks)
}

fn unreadable(error: Box<dyn std::error::Error + Send + Sync>) -> SinkError {
    let reason = "the batch cannot be read from the journal";
    SinkError::new(Class::Retryable, reason).caused_by(error)
}

fn not_loaded() -> SinkError {
    SinkError::new(Class::Unreachable, "its plugin is not loaded")
}

impl PluginSink {
    /// A call with the instance that lives, if it may go on. The sink has none until it comes back.
    fn call(&mut self, place: Arc<LanePlace>) -> Result<(Call, OverWhenDropped), SinkError> {
        let shared = &self.shared;
        let plugin = shared.guest.clone().ok_or_else(not_loaded)?;
        let now = shared.clock.monotonic();
        let oldest = Duration::from_millis(PLUGIN_SINK_INSTANCE_MS_MAX);
        let living = self.instance.take().filter(|living| now.since(living.since) < oldest);
        let attempt = Arc::new(Attempt::new(
            Arc::clone(&shared.reached),
            Handle::current(),
            self.throttle.clone(),
            shared.attempt_time,
        ));
        let call = Call {
            plugin,
            place,
            living,
            state: Arc::clone(&self.state),
            clock: Arc::clone(&shared.clock),
            attempt: Arc::clone(&attempt),
        };
        Ok((call, OverWhenDropped(attempt)))
    }
}

/// The thread that made the call died.
fn died(error: tokio::task::JoinError) -> SinkError {
    SinkError::new(Class::Retryable, "the thread of its plugin died").caused_by(error)
}

#[async_trait]
impl Sink for PluginSink {
    async fn deliver(&mut self, batch: &SealedBatch, attempt: u32) -> Result<Delivered, SinkError> {
        self.throttle.pay(0, batch.facts.records).await;
        let (call, over) = self.call(Arc::clone(&batch.facts.place))?;
        let whole = batch.clone();
        let made = tokio::task::spawn_blocking(move || call.deliver(&whole, attempt)).await;
        let (living, result) = made.map_err(died)?;
        drop(over);
        self.instance = living;
        match result {
            Ok(delivered) => {
                self.broke_on = None;
                Ok(delivered)
            }
            Err(Failed { mut error, broke_down }) => {
                let identity = batch.facts.identity();
                let again = self.broke_on.as_ref() == Some(&identity);
                if broke_down && again {
                    error.class = Class::Rejected;
                }
                self.broke_on = (broke_down && !again).then_some(identity);
                Err(error)
            }
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let place = self.place.clone().unwrap_or_else(|| stranger(&self.shared.id));
        let (call, over) = self.call(place)?;
        let made = tokio::task::spawn_blocking(move || call.probe()).await;
        let (living, result) = made.map_err(died)?;
        drop(over);
        self.instance = living;
        result.map_err(|failed| failed.error)
    }

    fn join(&mut self, place: &Arc<LanePlace>, state: SinkState) {
        self.place = Some(Arc::clone(place));
        self.state = Arc::new(State::new(state));
    }

    fn keep(&mut self, changes: StateChanges) {
        if !changes.is_empty() {
            Arc::make_mut(&mut self.state).apply(changes);
        }
    }

    fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }
}

#[cfg(test)]
mod tests;
