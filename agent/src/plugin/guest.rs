//! What all guests have in common, whatever they are for: a component that is loaded, its instances, and how a call fails.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use wasmtime::component::{Instance, InstancePre};
use wasmtime::{Engine, Store, StoreContextMut, Trap, UpdateDeadline};

use super::bindings::waystation::plugin::types;
use super::engine::{Ticker, first_look_ticks};
use super::error::{CallError, Fault, FaultKind};
use super::host::{HostState, LogGate, Misuse};
use super::http::GivenUp;
use super::limiter::{LimitError, Limiter};
use super::state::StateView;
use crate::clock::{Clock as _, Monotonic, SystemClock};
use crate::limits::{PLUGIN_INIT_MS_MAX, PLUGIN_OUTPUT_BYTES_MIN, PLUGIN_OUTPUT_FACTOR};
use crate::record::RecordView;
use crate::record::batch::LanePlace;
use crate::secret::SecretJson;
use crate::units::{ByteSize, human_bytes};

/// A component that is loaded and linked, with what its table says.
pub(super) struct Guest {
    pub(super) digest: [u8; 32],
    pub(super) pre: InstancePre<HostState>,
    pub(super) config: SecretJson,
    pub(super) memory_max: ByteSize,
    pub(super) deadline: Duration,
    pub(super) ticker: Arc<Ticker>,
    pub(super) log: Arc<LogGate>,
    pub(super) meter: Meter,
}

/// Calls of a guest's functions since it was loaded, `init` among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PluginCalls {
    /// All of them.
    pub count: u64,
    /// Wall time that they took.
    pub time: Duration,
    /// Those that ended in a trap or at a limit.
    pub broken: u64,
}

#[derive(Debug, Default)]
pub(super) struct Meter {
    count: AtomicU64,
    nanoseconds: AtomicU64,
    broken: AtomicU64,
}

impl Guest {
    /// Calls a function: the clock that stops guests runs meanwhile, and the call is counted.
    pub(super) fn call<T>(
        &self,
        call: impl FnOnce() -> wasmtime::Result<T>,
    ) -> wasmtime::Result<T> {
        let running = self.ticker.run();
        let begun = SystemClock.monotonic();
        let answer = call();
        drop(running);
        let spent = SystemClock.monotonic().0.saturating_sub(begun.0);
        self.meter.count.fetch_add(1, Ordering::Relaxed);
        self.meter.nanoseconds.fetch_add(spent, Ordering::Relaxed);
        if answer.as_ref().is_err_and(|error| !error.is::<GivenUp>()) {
            self.meter.broken.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    pub(super) fn calls(&self) -> PluginCalls {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PluginCalls {
            count: of(&self.meter.count),
            time: Duration::from_nanos(of(&self.meter.nanoseconds)),
            broken: of(&self.meter.broken),
        }
    }
}

/// What `init` is called with.
pub(super) struct InitCall<'a> {
    pub(super) config: &'a str,
    pub(super) place: types::Place<'a>,
}

/// A store for an instance, with the limits of its `init`.
pub(super) fn new_store(
    engine: &Engine,
    memory_max: ByteSize,
    place: &LanePlace,
    log: Arc<LogGate>,
) -> Store<HostState> {
    let state = HostState {
        limiter: Limiter::new(memory_max),
        state: StateView::default(),
        state_writable: false,
        lane: place.lane.clone(),
        log,
        deadline: Monotonic::default(),
        http: None,
        secrets: Vec::new(),
    };
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(PLUGIN_OUTPUT_BYTES_MIN);
    store.epoch_deadline_callback(look_at_the_clock);
    set_deadline(&mut store, Duration::from_millis(PLUGIN_INIT_MS_MAX));
    store
}

/// Makes an instance and calls its `init`, both within 10 s. `begin` finds the functions and makes the call.
pub(super) fn open<G>(
    guest: &Guest,
    place: &LanePlace,
    state: StateView,
    begin: impl FnOnce(
        &mut Store<HostState>,
        &Instance,
        InitCall<'_>,
    ) -> wasmtime::Result<(G, Result<(), String>)>,
) -> Result<(Store<HostState>, G), CallError> {
    // Read anew for each instance, so that a rotated secret counts.
    let config = guest.config.fill().map_err(|error| CallError::Host(error.into()))?;
    let log = Arc::clone(&guest.log);
    let mut store = new_store(guest.pre.engine(), guest.memory_max, place, log);
    let host = store.data_mut();
    (host.state, host.secrets) = (state, config.secrets);
    let call = InitCall {
        config: &config.text,
        place: types::Place {
            agent: place.agent.as_str(),
            source: place.source.as_str(),
            pipeline: place.pipeline.as_str(),
            sink: place.sink.as_str(),
        },
    };
    let begun = guest.call(|| {
        let instance = guest.pre.instantiate(&mut store)?;
        begin(&mut store, &instance, call)
    });
    let limits = CallLimits {
        deadline_ms: u128::from(PLUGIN_INIT_MS_MAX),
        output_bytes: PLUGIN_OUTPUT_BYTES_MIN,
    };
    match begun {
        Ok((functions, Ok(()))) => {
            store.data_mut().state_writable = true;
            Ok((store, functions))
        }
        Ok((_, Err(reason))) => {
            let reason = store.data().shown(&reason);
            Err(CallError::Fault(Fault::new(FaultKind::InitError, reason)))
        }
        Err(error) => {
            let fault = classify(&error, limits, store.data());
            Err(CallError::Fault(Fault { text: format!("in init: {}", fault.text), ..fault }))
        }
    }
}

/// A guest runs in real time, whatever the agent's clock says.
pub(super) fn set_deadline(store: &mut Store<HostState>, deadline: Duration) {
    store.set_epoch_deadline(first_look_ticks(deadline));
    let nanoseconds = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
    store.data_mut().deadline = Monotonic(SystemClock.monotonic().0.saturating_add(nanoseconds));
}

fn look_at_the_clock(store: StoreContextMut<'_, HostState>) -> wasmtime::Result<UpdateDeadline> {
    let host = store.data();
    if host.http.as_ref().is_some_and(|http| http.is_over()) {
        return Err(GivenUp.into());
    }
    if SystemClock.monotonic() >= host.deadline {
        return Err(Trap::Interrupt.into());
    }
    Ok(UpdateDeadline::Continue(1))
}

/// What a call was allowed, for the texts of faults.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallLimits {
    pub(super) deadline_ms: u128,
    pub(super) output_bytes: usize,
}

pub(super) fn output_bytes_max(input_bytes: usize) -> usize {
    input_bytes.saturating_mul(PLUGIN_OUTPUT_FACTOR).max(PLUGIN_OUTPUT_BYTES_MIN)
}

/// All headers of a call in one list, and where those of each record stand in it.
///
/// Records that lie behind each other in a block often share their headers, down to where they lie.
pub(super) fn header_params<'a>(
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

/// What became of a guest whose call did not return.
pub(super) fn classify(error: &wasmtime::Error, limits: CallLimits, host: &HostState) -> Fault {
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
            Fault::new(FaultKind::Contract, host.shown(&text))
        }
    }
}
