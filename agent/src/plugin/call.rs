//! Instances of guests and the calls on them: what goes in, what comes out, and what became of a call that failed.

use std::ops::Range;
use std::time::Duration;

use wasmtime::{Store, StoreContextMut, Trap, UpdateDeadline};

use super::bindings::TransformPlugin;
use super::bindings::exports::waystation::plugin::transform as wit;
use super::bindings::waystation::plugin::types;
use super::engine::first_look_ticks;
use super::error::{CallError, Fault, FaultKind};
use super::host::{HostState, Misuse, bounded_text};
use super::limiter::{LimitError, Limiter};
use super::state::StateView;
use super::{Draft, Outcome, Plugin};
use crate::clock::{Clock as _, Monotonic, SystemClock, Timestamp};
use crate::limits::{
    HEADERS_BYTES_MAX, PLUGIN_INIT_MS_MAX, PLUGIN_OUTPUT_BYTES_MIN, PLUGIN_OUTPUT_FACTOR,
    RECORD_BYTES_MAX, SUBJECT_BYTES_MAX,
};
use crate::record::RecordView;
use crate::record::batch::LanePlace;
use crate::units::human_bytes;

/// What an outcome counts beside the bytes it holds: the list that it comes in is host memory too.
const OUTCOME_BYTES: usize = 256;

/// One instance of a guest, after its `init`. Belongs to one thread at a time. After a fault it refuses every further call.
pub struct Instance {
    plugin: Plugin,
    store: Store<HostState>,
    guest: TransformPlugin,
    dead: bool,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").field("plugin", &self.plugin).finish_non_exhaustive()
    }
}

impl Instance {
    /// Instantiates and calls `init`, both within 10 s.
    pub(super) fn new(
        plugin: Plugin,
        place: &LanePlace,
        state: StateView,
    ) -> Result<Self, CallError> {
        let inner = &plugin.inner;
        let mut store = Store::new(
            inner.pre.engine(),
            HostState {
                limiter: Limiter::new(inner.memory_max),
                state,
                state_writable: false,
                lane: place.lane.clone(),
                log: inner.log.clone(),
                deadline: Monotonic::default(),
            },
        );
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(PLUGIN_OUTPUT_BYTES_MIN);
        store.epoch_deadline_callback(look_at_the_clock);
        set_deadline(&mut store, Duration::from_millis(PLUGIN_INIT_MS_MAX));
        let running = inner.ticker.run();
        let place = wit::Place {
            agent: place.agent.as_str(),
            source: place.source.as_str(),
            pipeline: place.pipeline.as_str(),
            sink: place.sink.as_str(),
        };
        let guest = inner.pre.instantiate(&mut store).and_then(|guest| {
            let answer =
                guest.waystation_plugin_transform().call_init(&mut store, &inner.config, place)?;
            Ok((guest, answer))
        });
        drop(running);
        let limits = CallLimits {
            deadline_ms: u128::from(PLUGIN_INIT_MS_MAX),
            output_bytes: PLUGIN_OUTPUT_BYTES_MIN,
        };
        match guest {
            Ok((guest, Ok(()))) => {
                store.data_mut().state_writable = true;
                Ok(Self { plugin, store, guest, dead: false })
            }
            Ok((_, Err(reason))) => {
                Err(CallError::Fault(Fault::new(FaultKind::InitError, bounded_text(&reason))))
            }
            Err(error) => {
                let fault = classify(&error, limits);
                Err(CallError::Fault(Fault { text: format!("in init: {}", fault.text), ..fault }))
            }
        }
    }

    /// Has the guest process records: one outcome for each, in the same order.
    ///
    /// # Errors
    /// What the guest said of the whole call, or how it broke down. The changes that it has made to the state until then are
    /// still in it: a run that did not go through is repeated from its first state.
    pub fn process(
        &mut self,
        now: Timestamp,
        records: &[RecordView<'_>],
    ) -> Result<Vec<Outcome>, CallError> {
        if self.dead {
            let text = "this instance broke down in an earlier call";
            return Err(CallError::Host(text.into()));
        }
        // Until the guest has answered well.
        self.dead = true;
        let inner = &self.plugin.inner;
        let input_bytes = records.iter().map(RecordView::size_bytes).sum();
        let limits = CallLimits {
            deadline_ms: inner.deadline.as_millis(),
            output_bytes: output_bytes_max(input_bytes),
        };
        self.store.set_hostcall_fuel(limits.output_bytes + records.len() * OUTCOME_BYTES);
        set_deadline(&mut self.store, inner.deadline);
        let (headers, ranges) = header_params(records);
        let params = record_params(records, &headers, &ranges);
        let running = inner.ticker.run();
        let answer =
            self.guest.waystation_plugin_transform().call_process(&mut self.store, now.0, &params);
        drop(running);
        let outcomes = match answer.map_err(|error| CallError::Fault(classify(&error, limits)))? {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.dead = false;
                return Err(match error {
                    wit::Error::Retryable(reason) => CallError::Retryable(bounded_text(&reason)),
                    wit::Error::Permanent(reason) => CallError::Permanent(bounded_text(&reason)),
                });
            }
        };
        if outcomes.len() != records.len() {
            let text = format!("{} outcomes for {} records", outcomes.len(), records.len());
            return Err(CallError::Fault(Fault::new(FaultKind::WrongCount, text)));
        }
        let outcomes = outcomes
            .into_iter()
            .zip(records)
            .map(|(outcome, record)| outcome_of(outcome, record))
            .collect::<Result<_, _>>()
            .map_err(CallError::Fault)?;
        self.dead = false;
        Ok(outcomes)
    }

    /// Gives the instance the state of another batch, and back the one that it had.
    #[must_use]
    pub fn replace_state(&mut self, state: StateView) -> StateView {
        std::mem::replace(&mut self.store.data_mut().state, state)
    }

    /// The state with what the calls changed.
    #[must_use]
    pub fn into_state(self) -> StateView {
        self.store.into_data().state
    }
}

/// A guest runs in real time, whatever the agent's clock says.
fn set_deadline(store: &mut Store<HostState>, deadline: Duration) {
    store.set_epoch_deadline(first_look_ticks(deadline));
    let nanoseconds = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
    store.data_mut().deadline = Monotonic(SystemClock.monotonic().0.saturating_add(nanoseconds));
}

fn look_at_the_clock(store: StoreContextMut<'_, HostState>) -> wasmtime::Result<UpdateDeadline> {
    if SystemClock.monotonic() >= store.data().deadline {
        return Err(Trap::Interrupt.into());
    }
    Ok(UpdateDeadline::Continue(1))
}

/// What a call was allowed, for the texts of faults.
#[derive(Debug, Clone, Copy)]
struct CallLimits {
    deadline_ms: u128,
    output_bytes: usize,
}

fn output_bytes_max(input_bytes: usize) -> usize {
    input_bytes.saturating_mul(PLUGIN_OUTPUT_FACTOR).max(PLUGIN_OUTPUT_BYTES_MIN)
}

/// All headers of a call in one list, and where those of each record stand in it.
///
/// Records that lie behind each other in a block often share their headers, down to where they lie.
fn header_params<'a>(
    records: &[RecordView<'a>],
) -> (Vec<types::HeaderParam<'a>>, Vec<Range<usize>>) {
    let mut headers = Vec::new();
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(records.len());
    let mut before: Option<&RecordView<'a>> = None;
    for record in records {
        let range = match (before, ranges.last()) {
            (Some(before), Some(range)) if std::ptr::eq(before.headers.0, record.headers.0) => {
                range.clone()
            }
            _ => {
                let start = headers.len();
                headers.extend(
                    record.headers.iter().map(|(name, value)| types::HeaderParam { name, value }),
                );
                start..headers.len()
            }
        };
        ranges.push(range);
        before = Some(record);
    }
    (headers, ranges)
}

fn record_params<'a>(
    records: &[RecordView<'a>],
    headers: &'a [types::HeaderParam<'a>],
    ranges: &[Range<usize>],
) -> Vec<wit::Record<'a>> {
    records
        .iter()
        .zip(ranges)
        .map(|(record, range)| wit::Record {
            seq: record.seq.0,
            time: record.time.0,
            subject: record.subject,
            headers: headers.get(range.clone()).unwrap_or_default(),
            payload: record.payload,
        })
        .collect()
}

fn outcome_of(outcome: wit::Outcome, record: &RecordView<'_>) -> Result<Outcome, Fault> {
    let over = |what: &str, bytes: usize, limit: usize| {
        let (seq, bytes, limit) =
            (record.seq, human_bytes(bytes as u64), human_bytes(limit as u64));
        Fault::new(
            FaultKind::Output,
            format!("what it made of seq {seq} has {what} of {bytes}, over the limit of {limit}"),
        )
    };
    let payload = |bytes: Vec<u8>| {
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(over("a payload", bytes.len(), RECORD_BYTES_MAX));
        }
        Ok(bytes)
    };
    let draft = |draft: wit::Draft| {
        if draft.subject.len() > SUBJECT_BYTES_MAX {
            return Err(over("a subject", draft.subject.len(), SUBJECT_BYTES_MAX));
        }
        let header_bytes =
            |header: &types::HeaderResult| header.name.len() + header.value.len() + 6;
        let headers_bytes = draft.headers.iter().map(header_bytes).sum();
        if headers_bytes > HEADERS_BYTES_MAX {
            return Err(over("headers", headers_bytes, HEADERS_BYTES_MAX));
        }
        Ok(Draft {
            time: draft.time.map(Timestamp),
            subject: draft.subject,
            headers: draft.headers.into_iter().map(|header| (header.name, header.value)).collect(),
            payload: payload(draft.payload)?,
        })
    };
    Ok(match outcome {
        wit::Outcome::Keep => Outcome::Keep,
        wit::Outcome::Drop => Outcome::Drop,
        wit::Outcome::Payload(bytes) => Outcome::Payload(payload(bytes)?),
        wit::Outcome::Replace(one) => Outcome::Replace(draft(one)?),
        wit::Outcome::Split(parts) => {
            Outcome::Split(parts.into_iter().map(draft).collect::<Result<_, _>>()?)
        }
        wit::Outcome::Reject(reason) => Outcome::Reject(bounded_text(&reason)),
    })
}

/// What became of a guest whose call did not return.
fn classify(error: &wasmtime::Error, limits: CallLimits) -> Fault {
    if let Some(limit) = error.downcast_ref::<LimitError>() {
        return Fault::new(FaultKind::Memory, limit.to_string());
    }
    if let Some(misuse) = error.downcast_ref::<Misuse>() {
        return Fault::new(FaultKind::Contract, misuse.to_string());
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => {
            let text = format!("it took longer than its {} ms", limits.deadline_ms);
            Fault::new(FaultKind::Deadline, text)
        }
        Some(Trap::StackOverflow) => {
            Fault::new(FaultKind::Stack, "it used more than 512 KiB of stack")
        }
        Some(trap) => Fault::new(FaultKind::Trap, trap.to_string()),
        None => {
            let text = format!("{error:#}");
            // wasmtime has no public type for this one.
            if text.contains("fuel allocated for hostcalls has been exhausted") {
                let limit = human_bytes(limits.output_bytes as u64);
                let text = format!("it handed over more than {limit} at once");
                return Fault::new(FaultKind::Output, text);
            }
            Fault::new(FaultKind::Contract, bounded_text(&text))
        }
    }
}
