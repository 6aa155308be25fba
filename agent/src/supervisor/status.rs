//! How the agent is, at one moment: plain data for the admin server, the command line and the metrics.

use std::path::PathBuf;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::journal::{SalvageReport, Snapshot, StartCase};
use crate::lane::status::{CurrentBatch, HOLD_CAUSES, LaneState};
use crate::plugin::PluginCalls;
use crate::record::id::{AgentId, Epoch, PipelineId, SinkId, SourceId};

/// The whole agent.
#[derive(Debug, Clone)]
pub struct Status {
    /// Whose status it is.
    pub agent: AgentId,
    /// This run.
    pub epoch: Epoch,
    /// What opening the journal found.
    pub start_case: StartCase,
    /// What was salvaged then, if the journal was damaged.
    pub salvaged: Option<SalvageReport>,
    /// When this run began.
    pub started_at: Timestamp,
    /// For how long it has run.
    pub uptime: Duration,
    /// `agent.owner`.
    pub owner: Option<String>,
    /// `agent.runbook`.
    pub runbook: Option<String>,
    /// Whether `journal.durability` is `relaxed`, which weakens what "accepted" means.
    pub relaxed: bool,
    /// The config.
    pub config: ConfigView,
    /// Why it is not ready; ready when empty. One line each, with the part's name in front.
    pub not_ready: Vec<String>,
    /// The journal.
    pub journal: Snapshot,
    /// Sources, in the order of the config.
    pub sources: Vec<SourceStatus>,
    /// Lanes of the config, by name.
    pub lanes: Vec<LaneView>,
    /// Lanes that the journal has and the config has not: they keep their records.
    pub orphans: Vec<OrphanView>,
    /// Plugins.
    pub plugins: Vec<PluginView>,
}

/// Which config runs, and how the last reload went.
#[derive(Debug, Clone)]
pub struct ConfigView {
    /// Its file.
    pub file: PathBuf,
    /// Digest of its text.
    pub sha256: String,
    /// When it was taken up.
    pub adopted_at: Timestamp,
    /// Whether it is the last one that a run has adopted, because the file could not be used at the start.
    pub is_fallback: bool,
    /// Why what the file holds is not what runs, and since when.
    pub refused: Option<(String, Timestamp)>,
    /// Reloads that were adopted since this run began.
    pub reloads: u64,
    /// Reloads that were refused since this run began.
    pub reloads_refused: u64,
}

/// What a source is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceState {
    /// It has no connection yet.
    Connecting,
    /// It reads.
    Running,
    /// It ended early and starts anew after a pause.
    Failed {
        /// Why.
        reason: String,
        /// Since when.
        since: Timestamp,
    },
    /// It was read to its end.
    Finished,
    /// It was asked to stop.
    Stopped,
}

impl SourceState {
    /// The word in status and metrics.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Running => "running",
            Self::Failed { .. } => "failed",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
        }
    }
}

/// One source. Counts are since this run began.
#[derive(Debug, Clone)]
pub struct SourceStatus {
    /// Its name.
    pub id: SourceId,
    /// `type`.
    pub kind: &'static str,
    /// What it is doing.
    pub state: SourceState,
    /// Records it handed to the journal.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Records over their limit.
    pub oversize: u64,
    /// Requests answered with an error, where producers wait for answers.
    pub refused: u64,
    /// Sessions that its broker should have kept and has not.
    pub sessions_lost: u64,
    /// Connections and datagrams of those who may not send, and connections beyond the limits.
    pub turned_away: u64,
    /// Datagrams that the kernel has dropped.
    pub datagrams_dropped: u64,
    /// Records without a time where `time_from` says.
    pub times_missing: u64,
    /// Messages that were delivered again and were stored already.
    pub messages_known: u64,
    /// Messages of a core subscription that the journal has not taken.
    pub messages_dropped: u64,
    /// Times that the place up to which journald was read was not there any more.
    pub gaps: u64,
    /// NULs at the start of lines of files, which are left out.
    pub hole_bytes: u64,
    /// Files that were cut or written anew and are read from their first byte again.
    pub files_restarted: u64,
    /// Files that went out of reach with something unread.
    pub files_lost: u64,
    /// Its newest record, of all runs.
    pub head: u64,
}

/// One lane. Totals are since the lane was made, the rest since this run began.
#[derive(Debug, Clone)]
pub struct LaneView {
    /// Its name, which is its identity.
    pub name: String,
    /// Its source.
    pub source: SourceId,
    /// Its pipeline.
    pub pipeline: PipelineId,
    /// Its sink.
    pub sink: SinkId,
    /// What it is doing.
    pub state: LaneState,
    /// Records that it takes: those since it was made.
    pub accepted: u64,
    /// Of those, with an open outcome.
    pub queued: u64,
    /// What is known of those.
    pub waiting: LaneWaiting,
    /// Of those, at the destination.
    pub delivered: u64,
    /// Of those, left out by a plugin.
    pub dropped: u64,
    /// Of those, in the dead letters.
    pub dead_lettered: u64,
    /// Of those, lost by a policy or by damage.
    pub lost: u64,
    /// Records of the stream that the pipeline does not take; not among the accepted.
    pub not_taken: u64,
    /// Output records at the destination.
    pub outputs_delivered: u64,
    /// Batches that are sealed and not acked.
    pub batches_sealed: u64,
    /// The batch that it is sending, once an attempt with it has ended.
    pub batch: Option<CurrentBatch>,
    /// Records that the destination had already.
    pub records_already: u64,
    /// Records stored behind one that failed at first.
    pub records_reordered: u64,
    /// Records that were sent again though the destination may have had them.
    pub records_resent: u64,
    /// Bytes that went out.
    pub bytes_delivered: u64,
    /// Files that were written.
    pub files_written: u64,
    /// Failed attempts: unreachable, retryable, rejected, conflict.
    pub attempts_failed: [u64; 4],
    /// Calls of plugins that broke down.
    pub plugin_faults: u64,
    /// Time that it waited for its limiter.
    pub limited: Duration,
    /// Records that the destination refused by name.
    pub records_refused: u64,
    /// Batches, and halves, that were cut in half.
    pub batches_cut: u64,
    /// Batches that spent their retry budget.
    pub budgets_spent: u64,
    /// Records that became dead letters at delivery: rejected, exhausted, conflict.
    pub letters: [u64; 3],
    /// How often it began to hold, in the order of [`HOLD_CAUSES`].
    pub holds: [u64; HOLD_CAUSES.len()],
}

/// What waits in a lane, as of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneWaiting {
    /// Bytes that it takes in the journal, compressed. What several lanes wait for counts for each.
    pub bytes: u64,
    /// When the oldest record of it was accepted, where that is known.
    pub oldest: Option<Timestamp>,
    /// How long it will take, once that is known.
    pub drain: Option<Drain>,
}

/// How long what waits in a lane takes at the rate of the last minute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// So long.
    In(Duration),
    /// Nothing goes out.
    Never,
}

/// A lane without a config.
#[derive(Debug, Clone)]
pub struct OrphanView {
    /// Its name.
    pub name: String,
    /// Records that it still has to deliver.
    pub queued: u64,
    /// What is known of those.
    pub waiting: LaneWaiting,
}

/// One loaded plugin.
#[derive(Debug, Clone)]
pub struct PluginView {
    /// What it is loaded for: `transform` or `sink`.
    pub part: &'static str,
    /// The name of that.
    pub id: String,
    /// Digest of the component.
    pub sha256: [u8; 32],
    /// Calls of its functions, by all lanes, since it was loaded.
    pub calls: PluginCalls,
    /// Log lines over the limit.
    pub log_lines_left_out: u64,
}
