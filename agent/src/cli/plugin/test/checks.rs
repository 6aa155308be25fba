//! What every plugin has to stand, whatever its author has thought of.
//!
//! Each check says what it saw in the words of somebody who writes a plugin, and why that matters to the agent: it may run a
//! batch again, cut it elsewhere, in a new instance or in one that has worked before, and must get the same bytes.

use std::sync::Arc;

use super::super::cases::NOW;
use super::super::pool::{Pool, views};
use super::super::report::Verdict;
use super::compare::Got;
use super::guest::Guest;
use crate::clock::Timestamp;
use crate::limits::{
    PLUGIN_TEST_BATCHES, PLUGIN_TEST_GUEST_GROWTH_BYTES_MAX, PLUGIN_TEST_HOST_GROWTH_BYTES_MAX,
    PLUGIN_TEST_WARM_BATCHES,
};
use crate::plugin::config::InstanceLife;
use crate::plugin::{CallError, FaultKind, State, StateDelta, StateView};
use crate::record::HeadersBuffer;
use crate::record::codec::FrameBuffer;
use crate::units::human_bytes;

/// Cuts of a stream that must not matter.
const CUTS: [usize; 3] = [1, 10, 333];
/// Records of one batch where many are run.
const BATCH_RECORDS: usize = 10;
/// What the second clock is ahead: a day, and what a cut to seconds would hide.
const LATER_NS: i64 = 86_400_000_000_000 + 1_234_567_891;

/// One check.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) run: fn(&Guest, &Pool) -> Verdict,
}

/// The checks, in the order in which they are run.
pub(super) const CHECKS: [Check; 10] = [
    Check { name: "an empty batch", run: empty_batch },
    Check { name: "an empty payload", run: |guest, _| odd(guest, b"") },
    Check {
        name: "a payload that is no UTF-8",
        run: |guest, _| odd(guest, b"\xff\xfe{\"a\":1}\0\x80"),
    },
    Check { name: "a payload that is no JSON", run: |guest, _| odd(guest, b"{\"a\": 1, oops") },
    Check { name: "a payload of 1 MiB", run: |guest, _| odd(guest, &large()) },
    Check { name: "1000 records at once, and in cuts of 1, 10 and 333", run: cuts },
    Check { name: "the same batch twice, by new instances", run: repeated },
    Check { name: "the same batch twice, by one instance", run: reused },
    Check { name: "two clocks", run: clocks },
    Check { name: "10 000 batches, flat memory", run: memory },
];

fn large() -> Vec<u8> {
    // With its key and quotes a little over, so that no buffer of just 1 MiB will do.
    format!(r#"{{"pad":"{}"}}"#, "x".repeat(1 << 20)).into_bytes()
}

/// The verdict over what a plugin did, unless it broke down.
fn judged(result: Result<Verdict, CallError>) -> Verdict {
    result.unwrap_or_else(|error| Verdict::failed([broken(&error)]))
}

pub(super) fn broken(error: &CallError) -> String {
    match error {
        CallError::Fault(fault) => format!("it broke down: {fault}"),
        CallError::Permanent(reason) => {
            format!("the whole call failed: {reason} (for one bad record there is reject)")
        }
        CallError::Retryable(reason) => {
            format!("the call is to be repeated: {reason} (the lane would wait, and try for ever)")
        }
        CallError::Host(_) => error.to_string(),
    }
}

fn empty_batch(guest: &Guest, _pool: &Pool) -> Verdict {
    judged(guest.batch(NOW, &[], &mut Arc::default()).map(|_| Verdict::passed()))
}

/// Any outcome will do: only the record may come to grief, not the call.
fn odd(guest: &Guest, payload: &[u8]) -> Verdict {
    let mut frames = FrameBuffer::default();
    frames.push_new(NOW, "test", HeadersBuffer::default().as_headers(), payload);
    let records = views(&frames).unwrap_or_default();
    let run = || guest.batch(NOW, &records, &mut Arc::default());
    // As the lane does: the host may have been busy.
    let result = match run() {
        Err(CallError::Fault(fault)) if fault.kind == FaultKind::Deadline => run(),
        either => either,
    };
    judged(result.map(|_| Verdict::passed()))
}

fn cuts(guest: &Guest, pool: &Pool) -> Verdict {
    judged(try_cuts(guest, pool))
}

fn try_cuts(guest: &Guest, pool: &Pool) -> Result<Verdict, CallError> {
    let records = pool.views();
    let mut state_at_once = Arc::default();
    let at_once = guest.batch(NOW, &records, &mut state_at_once)?;
    for cut in CUTS {
        let mut state: Arc<State> = Arc::default();
        let mut got = Vec::with_capacity(records.len());
        for batch in records.chunks(cut) {
            got.extend(guest.batch(NOW, batch, &mut state)?);
        }
        let second = format!("in cuts of {cut}");
        if let Some(mut lines) = first_difference(&at_once, &got, "at once", &second) {
            lines.push(
                "what a later record depends on belongs into the state: a batch may end anywhere, and the next has a new instance"
                    .to_owned(),
            );
            return Ok(Verdict::failed(lines));
        }
        if *state != *state_at_once {
            return Ok(Verdict::failed([format!(
                "the state at the end differs: {} keys at once, {} {second}, or other values",
                state_at_once.entries().len(),
                state.entries().len()
            )]));
        }
    }
    Ok(Verdict::passed())
}

fn repeated(guest: &Guest, pool: &Pool) -> Verdict {
    let records = pool.views();
    let run = || guest.batch(NOW, &records, &mut Arc::default());
    judged(run().and_then(|first| Ok(same(&first, &run()?))))
}

fn reused(guest: &Guest, pool: &Pool) -> Verdict {
    used_again(guest, judged(try_reused(guest, pool)))
}

/// What shows only in an instance that is used again is no failure of a plugin that is not meant for it.
fn used_again(guest: &Guest, verdict: Verdict) -> Verdict {
    match guest.config.instance {
        InstanceLife::Reuse => verdict,
        InstanceLife::PerBatch => verdict.softened(
            "it is not fit for instance = \"reuse\"; with \"per_batch\" this does no harm",
        ),
    }
}

fn try_reused(guest: &Guest, pool: &Pool) -> Result<Verdict, CallError> {
    let records = pool.views();
    let mut instance = guest.instance(&Arc::default())?;
    let first = guest.calls(&mut instance, NOW, &records)?;
    // As for the next batch with instance = "reuse", and for the same batch after a crash.
    drop(instance.replace_state(StateView::default()));
    let second = guest.calls(&mut instance, NOW, &records)?;
    Ok(same(&first, &second))
}

fn same(first: &[Got], second: &[Got]) -> Verdict {
    match first_difference(first, second, "first", "then") {
        None => Verdict::passed(),
        Some(mut lines) => {
            lines.push(
                "the same records, state and time must give the same bytes: after a crash a batch is run again"
                    .to_owned(),
            );
            Verdict::failed(lines)
        }
    }
}

fn clocks(guest: &Guest, pool: &Pool) -> Verdict {
    let records = pool.views();
    let run = |now| guest.batch(now, &records, &mut Arc::default());
    judged(run(NOW).and_then(|now| {
        let later = run(Timestamp(NOW.0 + LATER_NS))?;
        let lines = first_difference(&now, &later, "now", "a day later");
        Ok(lines.map_or_else(Verdict::passed, |mut lines| {
            lines.push(
                "its output depends on now: a batch that is run again after a crash, or a dead letter that is replayed, comes out differently; where that matters use the time of the record"
                    .to_owned(),
            );
            Verdict::warning(lines)
        }))
    }))
}

/// Where two runs over the same records differ first, in words.
fn first_difference(
    one: &[Got],
    two: &[Got],
    name_one: &str,
    name_two: &str,
) -> Option<Vec<String>> {
    let (index, (one, two)) = one.iter().zip(two).enumerate().find(|(_, (one, two))| one != two)?;
    let width = name_one.len().max(name_two.len());
    let mut lines = vec![format!("record {} differs", index + 1)];
    for (name, got) in [(name_one, one), (name_two, two)] {
        let heads = std::iter::once(name).chain(std::iter::repeat(""));
        lines.extend(heads.zip(got.shown()).map(|(head, got)| format!("  {head:<width$}  {got}")));
    }
    Some(lines)
}

fn memory(guest: &Guest, pool: &Pool) -> Verdict {
    let records = pool.views();
    let records = records.get(..BATCH_RECORDS).unwrap_or(&records);
    let state: Arc<State> = Arc::default();
    let mut instance = match guest.instance(&state) {
        Ok(instance) => instance,
        Err(error) => return Verdict::failed([broken(&error)]),
    };
    let (mut guest_bytes, mut host_bytes) = (0, 0);
    for batch in 0..PLUGIN_TEST_BATCHES {
        if batch == PLUGIN_TEST_WARM_BATCHES {
            (guest_bytes, host_bytes) = (instance.memory_bytes(), resident_bytes());
        }
        drop(instance.replace_state(StateView::new(Arc::clone(&state), StateDelta::new())));
        if let Err(error) = guest.calls(&mut instance, NOW, records) {
            return Verdict::failed([format!("in batch {}: {}", batch + 1, broken(&error))]);
        }
    }
    let grown = |now: usize, before: usize, limit: usize, whose: &str| {
        let grown = now.saturating_sub(before);
        (grown > limit).then(|| {
            format!(
                "{whose} grew by {} from batch {PLUGIN_TEST_WARM_BATCHES} to {PLUGIN_TEST_BATCHES}, to {}",
                human_bytes(grown as u64),
                human_bytes(now as u64)
            )
        })
    };
    let now = instance.memory_bytes();
    let guest_grown = grown(
        now,
        guest_bytes,
        PLUGIN_TEST_GUEST_GROWTH_BYTES_MAX,
        "the memory of a used instance",
    );
    // What the guest has grown by is part of the process.
    let host = resident_bytes().saturating_sub(now.saturating_sub(guest_bytes));
    let host_grown = grown(host, host_bytes, PLUGIN_TEST_HOST_GROWTH_BYTES_MAX, "the host process");
    let note = format!("{} of guest memory", human_bytes(now as u64));
    match (host_grown, guest_grown) {
        (Some(host), guest) => Verdict::failed(Vec::from_iter([host].into_iter().chain(guest))),
        (None, Some(grown)) => used_again(guest, Verdict::failed([grown])),
        (None, None) => Verdict::passed().noted(note),
    }
}

/// Memory of this process that is in RAM; 0 where the kernel does not tell.
fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * rustix::param::page_size()
}
