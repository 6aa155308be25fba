//! What others hold of a running agent: its status, put together when asked, and the way of orders to its parts (`orders.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::status::{LaneView, OrphanView, PluginView, SourceState, SourceStatus, Status};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::journal::{Journal, LaneSnapshot, LaneTotals, Opening, Snapshot};
use crate::lane::status::{LaneCounters, LaneState, LaneStatus};
use crate::lane::{Desk, LaneParts};
use crate::plugin::Plugin;
use crate::record::id::{PipelineId, SinkId, SourceId};
use crate::sources::SourceCounters;

/// A running source, as the supervisor sees it.
#[derive(Debug)]
pub(super) struct SourceEntry {
    pub(super) id: SourceId,
    pub(super) kind: &'static str,
    pub(super) state: Mutex<SourceState>,
    /// Those of all its runs.
    pub(super) counters: Arc<SourceCounters>,
}

impl SourceEntry {
    pub(super) fn set(&self, new: SourceState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }

    pub(super) fn state(&self) -> SourceState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A running lane, as the supervisor sees it.
#[derive(Debug)]
pub(super) struct LaneEntry {
    pub(super) parts: LaneParts,
    pub(super) status: Arc<LaneStatus>,
    pub(super) desk: Arc<Desk>,
}

impl LaneEntry {
    pub(super) fn is(&self, source: &SourceId, pipeline: &PipelineId, sink: &SinkId) -> bool {
        let spec = &self.parts.spec;
        (&spec.source, &spec.pipeline, &spec.sink) == (source, pipeline, sink)
    }
}

/// What does not change while the agent runs.
#[derive(Debug)]
pub(super) struct Face {
    pub(super) opening: Opening,
    pub(super) started_at: Timestamp,
    pub(super) started: Monotonic,
    pub(super) owner: Option<String>,
    pub(super) runbook: Option<String>,
    pub(super) relaxed: bool,
    pub(super) sources: Vec<Arc<SourceEntry>>,
    pub(super) lanes: Vec<LaneEntry>,
    pub(super) plugins: Vec<Plugin>,
    pub(super) journal: Arc<Journal>,
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stopping: crate::tasks::Shutdown,
    pub(super) clock: SharedClock,
}

/// Asks a running agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(pub(super) Arc<Face>);

impl Handle {
    /// How the agent is now. Waits for nobody.
    #[must_use]
    pub fn status(&self) -> Status {
        let face = &*self.0;
        let journal = Snapshot::clone(&face.snapshots.borrow());
        let mut known: BTreeMap<_, _> = journal
            .lanes
            .iter()
            .map(|lane| ((&lane.source, &lane.pipeline, &lane.sink), lane))
            .collect();
        let mut lanes: Vec<_> = face
            .lanes
            .iter()
            .map(|entry| {
                let spec = &entry.parts.spec;
                lane_view(entry, known.remove(&(&spec.source, &spec.pipeline, &spec.sink)))
            })
            .collect();
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        let orphans = known
            .into_values()
            .map(|lane| OrphanView { name: lane.name.to_string(), queued: lane.queued })
            .collect();
        let sources: Vec<_> =
            face.sources.iter().map(|entry| source_status(entry, &journal)).collect();
        Status {
            agent: face.opening.agent.clone(),
            epoch: face.opening.epoch,
            start_case: face.opening.case,
            salvaged: face.opening.salvaged.clone(),
            started_at: face.started_at,
            uptime: face.clock.monotonic().since(face.started),
            owner: face.owner.clone(),
            runbook: face.runbook.clone(),
            relaxed: face.relaxed,
            not_ready: not_ready(face, &journal, &sources, &lanes),
            sources,
            lanes,
            orphans,
            plugins: face.plugins.iter().map(plugin_view).collect(),
            journal,
        }
    }
}

/// A lane that holds for its destination does not make the agent unready: it takes records and keeps them.
fn not_ready(
    face: &Face,
    journal: &Snapshot,
    sources: &[SourceStatus],
    lanes: &[LaneView],
) -> Vec<String> {
    let mut reasons = Vec::new();
    if face.stopping.is_requested() {
        reasons.push("agent: it is stopping".to_owned());
    }
    // A reader in the way makes the WAL grow, and nothing else yet.
    let trouble = journal.quota.trouble().filter(|(cause, ..)| *cause != "reader");
    if let Some((_, reason, _)) = trouble {
        reasons.push(format!("journal: {reason}"));
    }
    for source in sources {
        if let SourceState::Failed { reason, .. } = &source.state {
            reasons.push(format!("source {}: {reason}", source.id));
        }
    }
    for lane in lanes {
        match &lane.state {
            LaneState::Starting => reasons.push(format!("lane {}: it is starting", lane.name)),
            LaneState::Holding {
                cause: cause @ ("plugin" | "journal" | "dead_letters" | "storm"),
                reason,
                ..
            } => {
                reasons.push(format!("lane {}: {cause}: {reason}", lane.name));
            }
            _ => {}
        }
    }
    reasons
}

fn source_status(entry: &SourceEntry, journal: &Snapshot) -> SourceStatus {
    let head = journal.streams.iter().find(|stream| stream.source == entry.id);
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &entry.counters;
    SourceStatus {
        id: entry.id.clone(),
        kind: entry.kind,
        state: entry.state(),
        records: count(&counters.records),
        bytes: count(&counters.bytes),
        oversize: count(&counters.oversize_dead_lettered)
            + count(&counters.oversize_truncated)
            + count(&counters.oversize_dropped),
        head: head.map_or(0, |stream| stream.head.0),
    }
}

/// The lane's name; until it is opened for the first time, the one that it will most likely get.
pub(super) fn lane_name(entry: &LaneEntry, journal: Option<&LaneSnapshot>) -> String {
    let spec = &entry.parts.spec;
    journal.map_or_else(
        || format!("{}/{}/{}/{}", spec.agent, spec.source, spec.pipeline, spec.sink),
        |lane| lane.name.to_string(),
    )
}

fn lane_view(entry: &LaneEntry, journal: Option<&LaneSnapshot>) -> LaneView {
    let spec = &entry.parts.spec;
    let LaneCounters {
        records_already,
        bytes_delivered,
        files_written,
        records_reordered,
        records_resent,
        attempts_failed,
        plugin_faults,
        records_refused,
        batches_cut,
        budgets_spent,
        letters,
        holds,
        records_delivered: _,
    } = &entry.status.counters;
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let totals = journal.map_or_else(LaneTotals::default, |lane| lane.totals);
    let queued = journal.map_or(0, |lane| lane.queued);
    let LaneTotals { delivered, dropped, dead_lettered, lost, not_taken, outputs_delivered } =
        totals;
    LaneView {
        name: lane_name(entry, journal),
        source: spec.source.clone(),
        pipeline: spec.pipeline.clone(),
        sink: spec.sink.clone(),
        state: entry.status.state(),
        accepted: queued + delivered + dropped + dead_lettered + lost,
        queued,
        delivered,
        dropped,
        dead_lettered,
        lost,
        not_taken,
        outputs_delivered,
        batches_sealed: journal.map_or(0, |lane| lane.batches),
        batch: entry.status.batch(),
        records_already: count(records_already),
        records_reordered: count(records_reordered),
        records_resent: count(records_resent),
        bytes_delivered: count(bytes_delivered),
        files_written: count(files_written),
        attempts_failed: attempts_failed.each_ref().map(count),
        plugin_faults: count(plugin_faults),
        limited: entry.status.limited(),
        records_refused: count(records_refused),
        batches_cut: count(batches_cut),
        budgets_spent: count(budgets_spent),
        letters: letters.each_ref().map(count),
        holds: holds.each_ref().map(count),
    }
}

fn plugin_view(plugin: &Plugin) -> PluginView {
    PluginView {
        id: plugin.id().clone(),
        sha256: plugin.digest(),
        log_lines_left_out: plugin.log_lines_left_out(),
    }
}
