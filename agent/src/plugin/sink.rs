//! Instances of sinks and the calls on them. An instance lives on from batch to batch, since what it has fetched, such as a
//! token, belongs into its memory; what it changes in its state counts once the batch that it changed it for has its outcome.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::Store;

use super::SinkPlugin;
use super::bindings::exports::waystation::plugin::sink as wit;
use super::error::{CallError, Fault, FaultKind};
use super::guest::{CallLimits, classify, header_params, open, output_bytes_max, set_deadline};
use super::host::HostState;
use super::http::{GivenUp, HttpClient};
use super::state::{StateDelta, StateView};
use crate::clock::Timestamp;
use crate::record::RecordView;
use crate::record::batch::LanePlace;

/// What `deliver` is called with.
#[derive(Debug, Clone, Copy)]
pub struct SinkCall<'a> {
    /// The batch's identity, the same for every attempt.
    pub id: &'a str,
    /// 1 for the first attempt.
    pub attempt: u32,
    /// The host's clock.
    pub now: Timestamp,
    /// What is left for the attempt.
    pub left: Duration,
    /// Identities of the records, in their order.
    pub ids: &'a [String],
    /// The records.
    pub records: &'a [RecordView<'a>],
}

/// A record that the destination will never take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// Its place in the call, from 0.
    pub index: u32,
    /// Why, in up to 1 KiB on one line.
    pub reason: String,
}

/// Why a batch is not delivered.
#[derive(Debug)]
pub enum SinkFailure {
    /// The destination takes nothing from anybody now.
    Unreachable(String),
    /// The attempt failed or its outcome is unknown.
    Retryable {
        /// Why.
        reason: String,
        /// What the destination asked for.
        retry_after: Option<Duration>,
    },
    /// The destination refuses the batch for good.
    Rejected(String),
    /// The destination holds other content under this identity.
    Conflict(String),
    /// The guest broke down or met a limit. Its instance is of no use any more.
    Fault(Fault),
    /// Nobody waited for the outcome any more. The instance is of no use any more.
    GivenUp,
}

/// One instance of a sink, after its `init`. Belongs to one thread at a time. After a fault it refuses every further call.
pub struct SinkInstance {
    plugin: SinkPlugin,
    store: Store<HostState>,
    guest: wit::Guest,
    dead: bool,
}

impl std::fmt::Debug for SinkInstance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SinkInstance").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl SinkInstance {
    /// Instantiates and calls `init`, both within 10 s.
    pub(super) fn new(
        plugin: SinkPlugin,
        place: &LanePlace,
        state: StateView,
    ) -> Result<Self, CallError> {
        let inner = &plugin.inner;
        let (store, guest) = open(&inner.guest, place, state, |store, instance, call| {
            let guest = inner.sink.load(&mut *store, instance)?;
            let answer = guest.call_init(&mut *store, call.config, call.place)?;
            Ok((guest, answer))
        })?;
        Ok(Self { plugin, store, guest, dead: false })
    }

    /// Whether an earlier call broke it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead
    }

    /// Has the guest deliver a batch, working on this state. Gives the records that are refused, in their order, and what the
    /// guest has changed in the state.
    ///
    /// # Errors
    /// What the guest said of the batch, or how it broke down. What it has changed in the state does not count then.
    pub fn deliver(
        &mut self,
        call: SinkCall<'_>,
        state: StateView,
        http: Arc<dyn HttpClient>,
    ) -> Result<(Vec<Rejection>, StateDelta), SinkFailure> {
        let input_bytes = call.records.iter().map(RecordView::size_bytes).sum();
        let limits = self.begin(input_bytes, state, true, http)?;
        let (headers, ranges) = header_params(call.records);
        let records: Vec<_> = call
            .records
            .iter()
            .zip(call.ids)
            .zip(&ranges)
            .map(|((record, id), range)| wit::Outgoing {
                id,
                seq: record.seq.0,
                time: record.time.0,
                subject: record.subject,
                headers: headers.get(range.clone()).unwrap_or_default(),
                payload: record.payload,
            })
            .collect();
        let batch = wit::Batch {
            id: call.id,
            attempt: call.attempt,
            now: call.now.0,
            deadline_ms: u32::try_from(call.left.as_millis()).unwrap_or(u32::MAX),
            records: &records,
        };
        let guest = &self.plugin.inner.guest;
        let answer = guest.call(|| self.guest.call_deliver(&mut self.store, batch));
        let rejections = self.answered(answer, limits)?;
        let rejections = self.checked(rejections, call.records.len())?;
        let state = std::mem::take(&mut self.store.data_mut().state);
        Ok((rejections, state.into_delta()))
    }

    /// Asks the guest whether the destination would take a batch now. `state` is read-only for it.
    ///
    /// # Errors
    /// As [`Self::deliver`].
    pub fn probe(
        &mut self,
        now: Timestamp,
        state: StateView,
        http: Arc<dyn HttpClient>,
    ) -> Result<(), SinkFailure> {
        let limits = self.begin(0, state, false, http)?;
        let guest = &self.plugin.inner.guest;
        let answer = guest.call(|| self.guest.call_probe(&mut self.store, now.0));
        self.answered(answer, limits)
    }

    /// Linear memory that the guest has come to; it never shrinks.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.store.data().limiter.memory_bytes()
    }

    /// Sets the limits of a call. Until the guest has answered well the instance counts as broken.
    fn begin(
        &mut self,
        input_bytes: usize,
        state: StateView,
        state_writable: bool,
        http: Arc<dyn HttpClient>,
    ) -> Result<CallLimits, SinkFailure> {
        if self.dead {
            let text = "this instance broke down in an earlier call";
            return Err(SinkFailure::Fault(Fault::new(FaultKind::Contract, text)));
        }
        self.dead = true;
        let deadline = self.plugin.inner.guest.deadline;
        let limits = CallLimits {
            deadline_ms: deadline.as_millis(),
            output_bytes: output_bytes_max(input_bytes),
        };
        let host = self.store.data_mut();
        (host.state, host.state_writable, host.http) = (state, state_writable, Some(http));
        self.store.set_hostcall_fuel(limits.output_bytes);
        set_deadline(&mut self.store, deadline);
        Ok(limits)
    }

    /// What the guest says, which leaves it well, or how it broke down.
    fn answered<T>(
        &mut self,
        answer: wasmtime::Result<Result<T, wit::Error>>,
        limits: CallLimits,
    ) -> Result<T, SinkFailure> {
        self.store.data_mut().http = None;
        let host = self.store.data();
        let answer = answer.map_err(|error| {
            if error.is::<GivenUp>() {
                return SinkFailure::GivenUp;
            }
            SinkFailure::Fault(classify(&error, limits, host))
        })?;
        self.dead = false;
        answer.map_err(|error| match error {
            wit::Error::Unreachable(reason) => SinkFailure::Unreachable(host.shown(&reason)),
            wit::Error::Retryable(later) => SinkFailure::Retryable {
                reason: host.shown(&later.reason),
                retry_after: later.retry_after_ms.map(|ms| Duration::from_millis(ms.into())),
            },
            wit::Error::Rejected(reason) => SinkFailure::Rejected(host.shown(&reason)),
            wit::Error::Conflict(reason) => SinkFailure::Conflict(host.shown(&reason)),
        })
    }

    /// The rejections in their order; those that make no sense are the guest's fault.
    fn checked(
        &mut self,
        rejections: Vec<wit::Rejection>,
        records: usize,
    ) -> Result<Vec<Rejection>, SinkFailure> {
        let host = self.store.data();
        let shown = |rejection: wit::Rejection| Rejection {
            index: rejection.index,
            reason: host.shown(&rejection.reason),
        };
        let mut rejections: Vec<_> = rejections.into_iter().map(shown).collect();
        rejections.sort_by_key(|rejection| rejection.index);
        let twice = rejections.windows(2).find(|pair| pair[0].index == pair[1].index);
        let beyond = rejections.last().filter(|last| last.index as usize >= records);
        let problem = match (twice, beyond) {
            (_, Some(last)) => format!("it rejects record {} of {records}", last.index),
            (Some(pair), None) => format!("it rejects record {} twice", pair[0].index),
            (None, None) => return Ok(rejections),
        };
        self.dead = true;
        Err(SinkFailure::Fault(Fault::new(FaultKind::Contract, problem)))
    }
}
