//! Instances of transforms and the calls on them: what goes in, what comes out, and what became of a call that failed.

use std::ops::Range;

use wasmtime::Store;

use super::bindings::exports::waystation::plugin::{ticks, transform as wit};
use super::bindings::waystation::plugin::types;
use super::error::{CallError, Fault, FaultKind};
use super::guest::{CallLimits, classify, header_params, open, output_bytes_max, set_deadline};
use super::host::HostState;
use super::state::StateView;
use super::{Draft, Outcome, Plugin};
use crate::clock::Timestamp;
use crate::limits::{
    HEADERS_BYTES_MAX, PLUGIN_TICK_RECORDS_MAX, RECORD_BYTES_MAX, SUBJECT_BYTES_MAX,
};
use crate::record::RecordView;
use crate::record::batch::LanePlace;
use crate::record::id::Seq;
use crate::units::human_bytes;

/// What an outcome counts beside the bytes it holds: the list that it comes in is host memory too.
const OUTCOME_BYTES: usize = 256;

/// One instance of a guest, after its `init`. Belongs to one thread at a time. After a fault it refuses every further call.
pub struct Instance {
    plugin: Plugin,
    store: Store<HostState>,
    guest: wit::Guest,
    ticks: Option<ticks::Guest>,
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
        let (store, (guest, ticks)) = open(&inner.guest, place, state, |store, instance, call| {
            let guest = inner.transform.load(&mut *store, instance)?;
            let ticks = inner.ticks.as_ref();
            let ticks = ticks.map(|ticks| ticks.load(&mut *store, instance)).transpose()?;
            let answer = guest.call_init(&mut *store, call.config, call.place)?;
            Ok(((guest, ticks), answer))
        })?;
        Ok(Self { plugin, store, guest, ticks, dead: false })
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
        let input_bytes = records.iter().map(RecordView::size_bytes).sum();
        let limits = self.begin(input_bytes, records.len())?;
        let (headers, ranges) = header_params(records);
        let params = record_params(records, &headers, &ranges);
        let guest = &self.plugin.inner.guest;
        let answer = guest.call(|| self.guest.call_process(&mut self.store, now.0, &params));
        let outcomes = self.answered(answer, limits)?;
        if outcomes.len() != records.len() {
            let text = format!("{} outcomes for {} records", outcomes.len(), records.len());
            return Err(CallError::Fault(Fault::new(FaultKind::WrongCount, text)));
        }
        let outcomes = outcomes
            .into_iter()
            .zip(records)
            .map(|(outcome, record)| outcome_of(outcome, Of::Seq(record.seq), self.store.data()))
            .collect::<Result<_, _>>()
            .map_err(CallError::Fault)?;
        self.dead = false;
        Ok(outcomes)
    }

    /// Calls a guest with a timer between two batches, for the records that it has to give by itself.
    ///
    /// # Errors
    /// As [`Self::process`].
    pub fn tick(&mut self, now: Timestamp) -> Result<Vec<Draft>, CallError> {
        let limits = self.begin(0, PLUGIN_TICK_RECORDS_MAX)?;
        let Some(ticks) = &self.ticks else {
            return Err(CallError::Host("the plugin has no timer".into()));
        };
        let answer = self.plugin.inner.guest.call(|| ticks.call_tick(&mut self.store, now.0));
        let drafts = self.answered(answer, limits)?;
        if drafts.len() > PLUGIN_TICK_RECORDS_MAX {
            let text = format!(
                "{} records of one tick are over the limit of {PLUGIN_TICK_RECORDS_MAX}",
                drafts.len()
            );
            return Err(CallError::Fault(Fault::new(FaultKind::Output, text)));
        }
        let drafts = drafts.into_iter().map(|draft| draft_of(draft, Of::Tick));
        let drafts = drafts.collect::<Result<_, _>>().map_err(CallError::Fault)?;
        self.dead = false;
        Ok(drafts)
    }

    /// Sets the limits of a call. Until the guest has answered well the instance counts as broken.
    fn begin(&mut self, input_bytes: usize, outcomes: usize) -> Result<CallLimits, CallError> {
        if self.dead {
            let text = "this instance broke down in an earlier call";
            return Err(CallError::Host(text.into()));
        }
        self.dead = true;
        let deadline = self.plugin.inner.guest.deadline;
        let limits = CallLimits {
            deadline_ms: deadline.as_millis(),
            output_bytes: output_bytes_max(input_bytes),
        };
        self.store.set_hostcall_fuel(limits.output_bytes + outcomes * OUTCOME_BYTES);
        set_deadline(&mut self.store, deadline);
        Ok(limits)
    }

    /// What the guest says of a whole call, which leaves it well, or how it broke down.
    fn answered<T>(
        &mut self,
        answer: wasmtime::Result<Result<T, wit::Error>>,
        limits: CallLimits,
    ) -> Result<T, CallError> {
        let host = self.store.data();
        let answer = answer.map_err(|error| CallError::Fault(classify(&error, limits, host)))?;
        answer.map_err(|error| {
            self.dead = false;
            match error {
                wit::Error::Retryable(reason) => CallError::Retryable(host.shown(&reason)),
                wit::Error::Permanent(reason) => CallError::Permanent(host.shown(&reason)),
            }
        })
    }

    /// Gives the instance the state of another batch, and back the one that it had.
    #[must_use]
    pub fn replace_state(&mut self, state: StateView) -> StateView {
        std::mem::replace(&mut self.store.data_mut().state, state)
    }

    /// Linear memory that the guest has come to; it never shrinks.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.store.data().limiter.memory_bytes()
    }

    /// The state with what the calls changed.
    #[must_use]
    pub fn into_state(self) -> StateView {
        self.store.into_data().state
    }
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

/// What something was made of, for the texts of faults.
#[derive(Debug, Clone, Copy)]
enum Of {
    Seq(Seq),
    Tick,
}

impl Of {
    /// Checks a size of what was made.
    fn within(self, what: &str, bytes: usize, limit: usize) -> Result<(), Fault> {
        if bytes <= limit {
            return Ok(());
        }
        let (bytes, limit) = (human_bytes(bytes as u64), human_bytes(limit as u64));
        let of = match self {
            Self::Seq(seq) => format!("what it made of seq {seq}"),
            Self::Tick => "what its tick made".to_owned(),
        };
        let text = format!("{of} has {what} of {bytes}, over the limit of {limit}");
        Err(Fault::new(FaultKind::Output, text))
    }

    fn payload(self, payload: Vec<u8>) -> Result<Vec<u8>, Fault> {
        self.within("a payload", payload.len(), RECORD_BYTES_MAX)?;
        Ok(payload)
    }
}

fn draft_of(draft: wit::Draft, of: Of) -> Result<Draft, Fault> {
    of.within("a subject", draft.subject.len(), SUBJECT_BYTES_MAX)?;
    let header_bytes = |header: &types::HeaderResult| header.name.len() + header.value.len() + 6;
    let headers_bytes = draft.headers.iter().map(header_bytes).sum();
    of.within("headers", headers_bytes, HEADERS_BYTES_MAX)?;
    Ok(Draft {
        time: draft.time.map(Timestamp),
        subject: draft.subject,
        headers: draft.headers.into_iter().map(|header| (header.name, header.value)).collect(),
        payload: of.payload(draft.payload)?,
    })
}

fn outcome_of(outcome: wit::Outcome, of: Of, host: &HostState) -> Result<Outcome, Fault> {
    Ok(match outcome {
        wit::Outcome::Keep => Outcome::Keep,
        wit::Outcome::Drop => Outcome::Drop,
        wit::Outcome::Payload(bytes) => Outcome::Payload(of.payload(bytes)?),
        wit::Outcome::Replace(one) => Outcome::Replace(draft_of(one, of)?),
        wit::Outcome::Split(parts) => {
            let drafts = parts.into_iter().map(|draft| draft_of(draft, of));
            Outcome::Split(drafts.collect::<Result<_, _>>()?)
        }
        wit::Outcome::Reject(reason) => Outcome::Reject(host.shown(&reason)),
    })
}
