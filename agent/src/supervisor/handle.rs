//! What others hold of a running agent: its status, put together when asked, and the way of orders to its parts (`orders.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OnceCell, mpsc, oneshot, watch};

use super::assembly::{Assembly, make_plugin_host};
use super::error::{ReloadError, StartError};
use super::lane_orders::LaneWish;
use super::relay::Turns;
use super::reload::Reloaded;
use super::start::LoadConfig;
use super::status::{
    ConfigView, LaneView, LaneWaiting, OrphanView, PluginView, SourceState, SourceStatus, Status,
};
use super::waiting::Looks;
use super::{SourceOver, Switch};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::config::{self, LaneId, Loaded};
use crate::journal::config::Durability;
use crate::journal::{Journal, LaneSnapshot, LaneSpec, LaneTotals, Opening, Snapshot};
use crate::lane::status::{LaneCounters, LaneState, LaneStatus};
use crate::lane::{Desk, LaneEnd, LaneParts};
use crate::plugin::PluginHost;
use crate::record::id::{PipelineId, SinkId, SourceId};
use crate::sources::SourceCounters;
use crate::telemetry::Logging;

/// A running source, as the supervisor sees it.
#[derive(Debug)]
pub(super) struct SourceEntry {
    pub(super) id: SourceId,
    pub(super) kind: &'static str,
    pub(super) state: Mutex<SourceState>,
    /// Those of all its runs.
    pub(super) counters: Arc<SourceCounters>,
    /// Set when it has nothing more to give.
    pub(super) drain: Arc<watch::Sender<bool>>,
    pub(super) turns: Mutex<Turns<SourceOver>>,
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
    pub(super) turns: Mutex<Turns<LaneEnd>>,
}

impl LaneEntry {
    pub(super) fn id(&self) -> LaneId {
        let LaneSpec { source, pipeline, sink, .. } = self.parts.spec.clone();
        LaneId { source, pipeline, sink }
    }

    pub(super) fn is(&self, source: &SourceId, pipeline: &PipelineId, sink: &SinkId) -> bool {
        let spec = &self.parts.spec;
        (&spec.source, &spec.pipeline, &spec.sink) == (source, pipeline, sink)
    }
}

/// What somebody waits for, one at a time.
#[derive(Debug)]
pub(super) enum Wish {
    /// A reload.
    Reload(ReloadWish),
    /// Something about a lane that the config has not.
    Lane(LaneWish),
}

/// A reload that somebody waits for.
#[derive(Debug)]
pub(super) struct ReloadWish {
    pub(super) only_plan: bool,
    pub(super) answer: oneshot::Sender<Result<Reloaded, ReloadError>>,
}

/// How the config stands.
#[derive(Debug, Clone)]
pub(super) struct ConfigState {
    pub(super) file: PathBuf,
    pub(super) sha256: String,
    pub(super) adopted_at: Timestamp,
    /// Why the last adopted config runs, and not that of the file.
    pub(super) fallback: Option<String>,
    /// Why the config that was read last is not the one that runs, and since when.
    pub(super) refused: Option<(String, Timestamp)>,
    pub(super) reloads: u64,
    pub(super) reloads_refused: u64,
}

impl ConfigState {
    pub(super) fn at_start(loaded: &Loaded, fallback: Option<String>, now: Timestamp) -> Self {
        Self {
            file: loaded.file.clone(),
            sha256: config::adopted::digest(&loaded.text),
            adopted_at: now,
            refused: fallback.clone().map(|why| (why, now)),
            fallback,
            reloads: 0,
            reloads_refused: 0,
        }
    }
}

/// What lasts as long as the agent runs; only the assembly and the state of the config are others after a reload.
#[derive(Debug)]
pub(super) struct Face {
    pub(super) opening: Opening,
    pub(super) started_at: Timestamp,
    pub(super) started: Monotonic,
    pub(super) assembly: Mutex<Arc<Assembly>>,
    pub(super) config: Mutex<ConfigState>,
    /// What waits in the lanes.
    pub(super) looks: Mutex<Looks>,
    pub(super) journal: Arc<Journal>,
    /// The journal before this run has done anything.
    pub(super) before: Arc<Snapshot>,
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(super) stopping: crate::tasks::Shutdown,
    /// Reloads and orders that somebody waits for.
    pub(super) wishes: mpsc::Sender<Wish>,
    /// A reload that nobody waits for.
    pub(super) hangup: Notify,
    pub(super) switches: mpsc::Sender<Switch>,
    /// Made for the first plugin.
    pub(super) plugin_host: OnceCell<Arc<PluginHost>>,
    pub(super) load: LoadConfig,
    pub(super) logging: Option<Logging>,
    pub(super) once: bool,
    pub(super) compiler: PathBuf,
    pub(super) clock: SharedClock,
}

impl Face {
    /// What runs now.
    pub(super) fn assembly(&self) -> Arc<Assembly> {
        Arc::clone(&self.assembly.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn go_over(&self, next: Assembly) {
        *self.assembly.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    pub(super) fn config(&self) -> MutexGuard<'_, ConfigState> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn looks(&self) -> MutexGuard<'_, Looks> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last adopted config runs, if it does.
    pub(super) fn fallback(&self) -> Option<String> {
        self.config().fallback.clone()
    }

    pub(super) async fn plugin_host(&self) -> Result<Arc<PluginHost>, StartError> {
        let made = self.plugin_host.get_or_try_init(|| make_plugin_host(self)).await;
        made.map(Arc::clone)
    }
}

/// Asks a running agent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle(pub(super) Arc<Face>);

impl Handle {
    /// How the journal stood before this run has done anything.
    #[must_use]
    pub fn before(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.before)
    }

    /// How the agent is now. Waits for nobody.
    #[must_use]
    pub fn status(&self) -> Status {
        let face = &*self.0;
        let assembly = face.assembly();
        let agent = &assembly.config().agent;
        let journal = Snapshot::clone(&face.snapshots.borrow());
        let looks = face.looks();
        let mut known: BTreeMap<_, _> = journal
            .lanes
            .iter()
            .map(|lane| ((&lane.source, &lane.pipeline, &lane.sink), lane))
            .collect();
        let mut lanes: Vec<_> = assembly
            .lanes
            .iter()
            .map(|entry| {
                let spec = &entry.parts.spec;
                let lane = known.remove(&(&spec.source, &spec.pipeline, &spec.sink));
                lane_view(entry, lane, &looks)
            })
            .collect();
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        let orphans = known
            .into_values()
            .map(|lane| OrphanView {
                name: lane.name.to_string(),
                queued: lane.queued,
                waiting: looks.of(&lane.name, lane.queued),
            })
            .collect();
        drop(looks);
        let sources: Vec<_> =
            assembly.sources.iter().map(|entry| source_status(entry, &journal)).collect();
        Status {
            agent: face.opening.agent.clone(),
            epoch: face.opening.epoch,
            start_case: face.opening.case,
            salvaged: face.opening.salvaged.clone(),
            started_at: face.started_at,
            uptime: face.clock.monotonic().since(face.started),
            owner: agent.owner.clone(),
            runbook: agent.runbook.clone(),
            relaxed: assembly.config().journal.durability == Durability::Relaxed,
            config: config_view(&face.config()),
            not_ready: not_ready(face, &journal, &sources, &lanes),
            sources,
            lanes,
            orphans,
            plugins: plugin_views(&assembly),
            journal,
        }
    }
}

fn config_view(state: &ConfigState) -> ConfigView {
    let ConfigState { file, sha256, adopted_at, fallback, refused, reloads, reloads_refused } =
        state.clone();
    let is_fallback = fallback.is_some();
    ConfigView { file, sha256, adopted_at, is_fallback, refused, reloads, reloads_refused }
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
        match &source.state {
            SourceState::Failed { reason, .. } => {
                reasons.push(format!("source {}: {reason}", source.id));
            }
            SourceState::Connecting => {
                reasons.push(format!("source {}: it is connecting", source.id));
            }
            SourceState::Running | SourceState::Finished | SourceState::Stopped => {}
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
        refused: count(&counters.refused_requests),
        sessions_lost: count(&counters.sessions_lost),
        turned_away: count(&counters.turned_away),
        datagrams_dropped: count(&counters.datagrams_dropped),
        times_missing: count(&counters.times_missing),
        messages_known: count(&counters.messages_known),
        messages_dropped: count(&counters.messages_dropped),
        gaps: count(&counters.gaps),
        hole_bytes: count(&counters.hole_bytes),
        files_restarted: count(&counters.files_restarted),
        files_lost: count(&counters.files_lost),
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

fn lane_view(entry: &LaneEntry, journal: Option<&LaneSnapshot>, looks: &Looks) -> LaneView {
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
        waiting: journal.map_or_else(LaneWaiting::default, |lane| looks.of(&lane.name, queued)),
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

fn plugin_views(assembly: &Assembly) -> Vec<PluginView> {
    let transforms = assembly.transforms.iter().map(|transform| &transform.plugin);
    let transforms = transforms.map(|plugin| PluginView {
        part: "transform",
        id: plugin.id().to_string(),
        sha256: plugin.digest(),
        calls: plugin.calls(),
        log_lines_left_out: plugin.log_lines_left_out(),
    });
    let sinks = assembly.ways.iter().filter_map(|way| way.guest.as_ref());
    let sinks = sinks.map(|plugin| PluginView {
        part: "sink",
        id: plugin.id().to_string(),
        sha256: plugin.digest(),
        calls: plugin.calls(),
        log_lines_left_out: plugin.log_lines_left_out(),
    });
    transforms.chain(sinks).collect()
}
