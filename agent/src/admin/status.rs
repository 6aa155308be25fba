//! What `GET /status` says: an interface of its own, apart from how the agent thinks of itself inside.
//!
//! Version 1 may gain fields; none changes its meaning or goes without another version. Times are RFC 3339 in UTC, counts and
//! sizes plain numbers. Whoever reads it ignores what it does not know.

use serde::{Deserialize, Serialize};

use super::VERSION;
use crate::clock::Timestamp;
use crate::journal::{LetterClass, LettersCount, LettersSnapshot, SalvageReport};
use crate::lane::status::{Attempt, CurrentBatch, class_index};
use crate::plugin;
use crate::sinks::Class;
use crate::supervisor::status::{
    ConfigView, Drain, LaneView, OrphanView, SourceState, SourceStatus, Status,
};

/// The whole agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    /// [`VERSION`]. First, so that a reader sees it first.
    pub version: u32,
    /// Who it is.
    pub agent: AgentStatus,
    /// Whether it does all that its config says.
    pub ready: bool,
    /// Why it does not, a line each.
    pub not_ready: Vec<String>,
    /// The config.
    #[serde(default)]
    pub config: ConfigStatus,
    /// The journal.
    pub journal: JournalStatus,
    /// The store of dead letters.
    #[serde(default)]
    pub dead_letters: DeadLettersStatus,
    /// Sources, in the order of the config.
    pub sources: Vec<SourceView>,
    /// Lanes of the config, by name.
    pub lanes: Vec<LaneStatusView>,
    /// Lanes that keep records and are no longer in the config.
    pub orphans: Vec<OrphanStatus>,
    /// Plugins.
    pub plugins: Vec<PluginStatus>,
}

/// Who the agent is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its id.
    pub id: String,
    /// The version of the software.
    pub software: String,
    /// This run.
    pub epoch: String,
    /// When this run began.
    pub started_at: String,
    /// For how long it has run.
    pub uptime_seconds: u64,
    /// What opening the journal found: `new`, `clean`, `unclean`, `gone_back`, `salvaged`.
    pub start_case: String,
    /// `full` or `relaxed`.
    pub durability: String,
    /// `agent.owner`.
    pub owner: Option<String>,
    /// `agent.runbook`.
    pub runbook: Option<String>,
}

/// Which config runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigStatus {
    /// Its file.
    pub file: String,
    /// Digest of its text.
    pub sha256: String,
    /// When it was taken up.
    pub adopted_at: String,
    /// The file could not be used at the start: the last config that a run has adopted runs in its place.
    pub last_adopted: bool,
    /// Why what the file holds is not what runs, and since when.
    pub trouble: Option<Trouble>,
    /// Reloads that were adopted since this run began.
    pub reloads: u64,
    /// Reloads that were refused since this run began.
    pub reloads_refused: u64,
}

/// The journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// Bytes of the database file.
    pub database_bytes: u64,
    /// Bytes of the WAL file.
    pub wal_bytes: u64,
    /// Commits since this run began.
    pub commits: u64,
    /// What of `limit_bytes` is taken: pages in use, WAL and reserve.
    #[serde(default)]
    pub used_bytes: u64,
    /// `journal.max_bytes`, or the volume's size where that is less.
    #[serde(default)]
    pub limit_bytes: u64,
    /// `block`, `reject` or `drop_oldest`.
    #[serde(default)]
    pub on_full: String,
    /// What is in its way, and since when.
    #[serde(default)]
    pub trouble: Option<Trouble>,
    /// Appends that wait for room.
    #[serde(default)]
    pub appends_waiting: u64,
    /// Appends that were refused since this run began.
    #[serde(default)]
    pub appends_refused: u64,
    /// Records dropped since this run began, to make room.
    #[serde(default)]
    pub records_dropped_full: u64,
    /// Records dropped since this run began, over `max_age`.
    #[serde(default)]
    pub records_dropped_aged: u64,
    /// What was salvaged when this run began, if the journal was damaged.
    #[serde(default)]
    pub salvaged: Option<SalvagedStatus>,
}

/// A damaged journal, out of which this run's was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SalvagedStatus {
    /// What was wrong.
    pub cause: String,
    /// Where the damaged files are, with a `report.json` of all that is known.
    pub kept: String,
    /// Records saved.
    pub records: u64,
    /// Records that are missing.
    pub lost_records: u64,
    /// Chunks and parts whose checksum is wrong.
    pub unreadable: u64,
}

/// Why a part does not just run, and since when.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trouble {
    /// Of the config `config`; of the journal `full`, `locked` or `reader`; of the dead letters `full`; of a lane that retries `retryable`, of one that
    /// holds `unreachable`, `conflict`, `exhausted`, `storm`, `dead_letters`, `paused`, `plugin`, `journal`, `name` or
    /// `internal`; of a source `failed`.
    pub cause: String,
    /// What was seen.
    pub reason: String,
    /// Since when.
    pub since: String,
}

/// One source. Counts are since this run began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SourceView {
    /// Its name.
    pub id: String,
    /// `type`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `connecting`, `running`, `failed`, `finished` or `stopped`.
    pub state: String,
    /// What keeps it from running.
    pub trouble: Option<Trouble>,
    /// Records it handed to the journal.
    pub records: u64,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Records over their limit.
    pub oversize: u64,
    /// Requests answered with an error, where producers wait for answers.
    pub refused: u64,
    /// Sessions that its broker should have kept and has not: messages may be lost there.
    pub sessions_lost: u64,
    /// Connections and datagrams of those who may not send, and connections beyond the limits.
    pub turned_away: u64,
    /// Datagrams that the kernel has dropped.
    pub datagrams_dropped: u64,
    /// Records without a time where `time_from` says; they have that of their arrival.
    #[serde(default)]
    pub times_missing: u64,
    /// Messages that were delivered again and were stored already.
    #[serde(default)]
    pub messages_known: u64,
    /// Messages of a NATS subscription without JetStream that the journal has not taken.
    #[serde(default)]
    pub messages_dropped: u64,
    /// Times that the place up to which journald was read was not there any more.
    #[serde(default)]
    pub gaps: u64,
    /// NULs at the start of lines of files, which are left out.
    #[serde(default)]
    pub hole_bytes: u64,
    /// Files that were cut or written anew and are read from their first byte again.
    #[serde(default)]
    pub files_restarted: u64,
    /// Files that went out of reach with something unread.
    #[serde(default)]
    pub files_lost: u64,
    /// Seq of its newest record, of all runs.
    pub head: u64,
}

/// One lane. The first six counts are since the lane was made, and at every moment `accepted` is the sum of the other five;
/// `outputs_delivered` is since then, too. The rest is since this run began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneStatusView {
    /// Its name.
    pub name: String,
    /// Its source.
    pub source: String,
    /// Its pipeline.
    pub pipeline: String,
    /// Its sink.
    pub sink: String,
    /// `starting`, `running`, `retrying`, `holding`, `drained` or `stopped`.
    pub state: String,
    /// Why it retries or holds.
    pub trouble: Option<Trouble>,
    /// Records that it takes.
    pub accepted: u64,
    /// Of those, with an open outcome.
    pub queued: u64,
    /// Bytes that those take in the journal, compressed; what several lanes wait for counts for each. This and the next two are
    /// looked at every ten seconds.
    #[serde(default)]
    pub queued_bytes: u64,
    /// When the oldest of those was accepted, where that is known.
    #[serde(default)]
    pub oldest_at: Option<String>,
    /// How long those take at the rate of the last minute; none while nothing goes out, or that rate is not known yet.
    #[serde(default)]
    pub drain_seconds: Option<f64>,
    /// Of those, at the destination.
    pub delivered: u64,
    /// Of those, left out by a plugin.
    pub dropped: u64,
    /// Of those, in the dead letters.
    pub dead_lettered: u64,
    /// Of those, lost by a policy or by damage.
    pub lost: u64,
    /// Output records at the destination.
    pub outputs_delivered: u64,
    /// Batches that are sealed and not acked.
    pub batches_sealed: u64,
    /// The batch that it is sending, once an attempt with it has ended.
    #[serde(default)]
    pub batch: Option<BatchView>,
    /// Records that the destination had already.
    pub records_already: u64,
    /// Records stored behind one that failed at first.
    pub records_reordered: u64,
    /// Bytes that went out.
    pub bytes_delivered: u64,
    /// Files that were written.
    pub files_written: u64,
    /// Failed attempts.
    pub attempts_failed: AttemptsFailed,
    /// Calls of plugins that broke down.
    pub plugin_faults: u64,
    /// Records that the destination refused by name.
    #[serde(default)]
    pub records_refused: u64,
    /// Batches, and halves, that were cut in half.
    #[serde(default)]
    pub batches_cut: u64,
    /// Batches that spent their retry budget.
    #[serde(default)]
    pub budgets_spent: u64,
    /// Records that became dead letters at delivery.
    #[serde(default)]
    pub letters: LettersWritten,
}

/// The batch that a lane is sending.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchView {
    /// Its identity.
    pub identity: String,
    /// Attempts since the lane began with it.
    pub attempts: u32,
    /// The latest of them, the oldest first.
    pub recent: Vec<AttemptView>,
}

/// An attempt that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptView {
    /// When it began.
    pub at: String,
    /// How long it took.
    pub took_ms: u64,
    /// Of which class its failure is; none when the batch was taken.
    pub class: Option<String>,
    /// What the sink saw.
    pub reason: Option<String>,
}

/// Records that became dead letters at delivery, by class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LettersWritten {
    /// The destination refuses them for good.
    pub rejected: u64,
    /// Their retry budget was spent.
    pub exhausted: u64,
    /// The destination holds other content under their batch's identity.
    pub conflict: u64,
}

/// The store of dead letters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeadLettersStatus {
    /// Letters in it.
    pub letters: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// `dead_letters.max_bytes`.
    pub limit_bytes: u64,
    /// `hold` or `drop_oldest`.
    pub on_full: String,
    /// What waits for room in it, and since when.
    pub trouble: Option<Trouble>,
    /// Letters dropped since this run began, to make room.
    pub dropped: u64,
    /// Letters discarded since this run began, as asked.
    pub discarded: u64,
    /// Times since this run began that letters had no room, and what they belong to waited.
    #[serde(default)]
    pub write_failures: u64,
    /// When the oldest became a letter.
    #[serde(default)]
    pub oldest_at: Option<String>,
    /// All of them by where they are from and why.
    #[serde(default)]
    pub by_class: Vec<LettersCountView>,
}

/// Dead letters of one lane, or of what a source refused, with one class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LettersCountView {
    /// Their source.
    pub source: String,
    /// The name of their lane; none for what a source refused.
    pub lane: Option<String>,
    /// Their class.
    pub class: String,
    /// How many.
    pub letters: u64,
}

/// Failed attempts by class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptsFailed {
    /// The destination took nothing from anybody.
    pub unreachable: u64,
    /// The attempt failed, or its outcome is unknown.
    pub retryable: u64,
    /// The destination refused the content.
    pub rejected: u64,
    /// The destination holds other content under the identity.
    pub conflict: u64,
}

/// A lane that is no longer in the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrphanStatus {
    /// Its name.
    pub name: String,
    /// Records that it still has to deliver.
    pub queued: u64,
    /// When the oldest of them was accepted, where that is known.
    #[serde(default)]
    pub oldest_at: Option<String>,
}

impl OrphanStatus {
    pub(super) fn of(orphan: &OrphanView) -> Self {
        let OrphanView { name, queued, waiting } = orphan.clone();
        Self { name, queued, oldest_at: waiting.oldest.map(rfc3339) }
    }
}

/// One loaded plugin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PluginStatus {
    /// What it is loaded for: `transform` or `sink`.
    pub part: String,
    /// The name of that.
    pub id: String,
    /// Digest of the component.
    pub sha256: String,
    /// Calls of its functions, by all lanes, since it was loaded.
    #[serde(default)]
    pub calls: u64,
    /// Wall time that they took.
    #[serde(default)]
    pub call_seconds: f64,
    /// Those that ended in a trap or at a limit.
    #[serde(default)]
    pub calls_broken: u64,
    /// Log lines over the limit.
    pub log_lines_left_out: u64,
}

impl StatusView {
    /// A status as it is shown.
    #[must_use]
    pub fn of(status: &Status) -> Self {
        let durability = if status.relaxed { "relaxed" } else { "full" };
        Self {
            version: VERSION,
            agent: AgentStatus {
                id: status.agent.to_string(),
                software: env!("CARGO_PKG_VERSION").to_owned(),
                epoch: status.epoch.to_string(),
                started_at: rfc3339(status.started_at),
                uptime_seconds: status.uptime.as_secs(),
                start_case: status.start_case.as_str().to_owned(),
                durability: durability.to_owned(),
                owner: status.owner.clone(),
                runbook: status.runbook.clone(),
            },
            ready: status.not_ready.is_empty(),
            not_ready: status.not_ready.clone(),
            config: ConfigStatus::of(&status.config),
            journal: JournalStatus::of(status),
            dead_letters: DeadLettersStatus::of(&status.journal.letters),
            sources: status.sources.iter().map(SourceView::of).collect(),
            lanes: status.lanes.iter().map(LaneStatusView::of).collect(),
            orphans: status.orphans.iter().map(OrphanStatus::of).collect(),
            plugins: status
                .plugins
                .iter()
                .map(|plugin| PluginStatus {
                    part: plugin.part.to_owned(),
                    id: plugin.id.clone(),
                    sha256: plugin::hex(&plugin.sha256),
                    calls: plugin.calls.count,
                    call_seconds: plugin.calls.time.as_secs_f64(),
                    calls_broken: plugin.calls.broken,
                    log_lines_left_out: plugin.log_lines_left_out,
                })
                .collect(),
        }
    }
}

impl ConfigStatus {
    fn of(config: &ConfigView) -> Self {
        let trouble = config.refused.as_ref();
        Self {
            file: config.file.display().to_string(),
            sha256: config.sha256.clone(),
            adopted_at: rfc3339(config.adopted_at),
            last_adopted: config.is_fallback,
            trouble: trouble.map(|(reason, since)| Trouble::new("config", reason, *since)),
            reloads: config.reloads,
            reloads_refused: config.reloads_refused,
        }
    }
}

impl JournalStatus {
    fn of(status: &Status) -> Self {
        let journal = &status.journal;
        let quota = &journal.quota;
        Self {
            database_bytes: journal.database_bytes,
            wal_bytes: journal.wal_bytes,
            commits: journal.commits,
            used_bytes: quota.used_bytes,
            limit_bytes: quota.limit_bytes,
            on_full: quota.on_full.as_str().to_owned(),
            trouble: quota
                .trouble()
                .map(|(cause, reason, since)| Trouble::new(cause, &reason, since)),
            appends_waiting: quota.appends_waiting,
            appends_refused: quota.appends_refused,
            records_dropped_full: quota.dropped_full,
            records_dropped_aged: quota.dropped_aged,
            salvaged: status.salvaged.as_ref().map(SalvagedStatus::of),
        }
    }
}

impl DeadLettersStatus {
    fn of(letters: &LettersSnapshot) -> Self {
        let trouble = letters.full.as_ref();
        Self {
            letters: letters.room.count,
            bytes: letters.room.bytes,
            limit_bytes: letters.room.bytes_max,
            on_full: letters.on_full.as_str().to_owned(),
            trouble: trouble.map(|full| Trouble::new("full", &full.reason, full.since)),
            dropped: letters.dropped,
            discarded: letters.discarded,
            write_failures: letters.write_failures,
            oldest_at: letters.oldest.map(rfc3339),
            by_class: letters.by_class.iter().map(LettersCountView::of).collect(),
        }
    }
}

impl LettersCountView {
    fn of(count: &LettersCount) -> Self {
        let LettersCount { source, lane, class, letters } = count.clone();
        Self { source, lane, class, letters }
    }
}

impl SalvagedStatus {
    fn of(report: &SalvageReport) -> Self {
        Self {
            cause: report.cause.clone(),
            kept: report.kept.display().to_string(),
            records: report.records,
            lost_records: report.lost_records,
            unreadable: report.unreadable,
        }
    }
}

impl Trouble {
    fn new(cause: &str, reason: &str, since: Timestamp) -> Self {
        Self { cause: cause.to_owned(), reason: reason.to_owned(), since: rfc3339(since) }
    }
}

impl SourceView {
    fn of(source: &SourceStatus) -> Self {
        let state = source.state.as_str();
        let trouble = match &source.state {
            SourceState::Failed { reason, since } => Some(Trouble::new(state, reason, *since)),
            SourceState::Connecting
            | SourceState::Running
            | SourceState::Finished
            | SourceState::Stopped => None,
        };
        Self {
            id: source.id.to_string(),
            kind: source.kind.to_owned(),
            state: state.to_owned(),
            trouble,
            records: source.records,
            bytes: source.bytes,
            oversize: source.oversize,
            refused: source.refused,
            sessions_lost: source.sessions_lost,
            turned_away: source.turned_away,
            datagrams_dropped: source.datagrams_dropped,
            times_missing: source.times_missing,
            messages_known: source.messages_known,
            messages_dropped: source.messages_dropped,
            gaps: source.gaps,
            hole_bytes: source.hole_bytes,
            files_restarted: source.files_restarted,
            files_lost: source.files_lost,
            head: source.head,
        }
    }
}

impl BatchView {
    fn of(batch: &CurrentBatch) -> Self {
        let attempt = |attempt: &Attempt| {
            let (class, reason) = attempt.failure.clone().unzip();
            AttemptView {
                at: rfc3339(attempt.at),
                took_ms: u64::try_from(attempt.took.as_millis()).unwrap_or(u64::MAX),
                class: class.map(|class| class.as_str().to_owned()),
                reason,
            }
        };
        Self {
            identity: batch.identity.clone(),
            attempts: batch.attempts,
            recent: batch.recent.iter().map(attempt).collect(),
        }
    }
}

impl LaneStatusView {
    pub(super) fn of(lane: &LaneView) -> Self {
        let failed = |class| lane.attempts_failed[class_index(class)];
        let letters = |class: LetterClass| lane.letters[class.index()];
        Self {
            name: lane.name.clone(),
            source: lane.source.to_string(),
            pipeline: lane.pipeline.to_string(),
            sink: lane.sink.to_string(),
            state: lane.state.as_str().to_owned(),
            trouble: lane
                .state
                .trouble()
                .map(|(cause, reason, since)| Trouble::new(cause, reason, since)),
            accepted: lane.accepted,
            queued: lane.queued,
            queued_bytes: lane.waiting.bytes,
            oldest_at: lane.waiting.oldest.map(rfc3339),
            drain_seconds: lane.waiting.drain.and_then(|drain| match drain {
                Drain::In(time) => Some(time.as_secs_f64()),
                Drain::Never => None,
            }),
            delivered: lane.delivered,
            dropped: lane.dropped,
            dead_lettered: lane.dead_lettered,
            lost: lane.lost,
            outputs_delivered: lane.outputs_delivered,
            batches_sealed: lane.batches_sealed,
            batch: lane.batch.as_ref().map(BatchView::of),
            records_already: lane.records_already,
            records_reordered: lane.records_reordered,
            bytes_delivered: lane.bytes_delivered,
            files_written: lane.files_written,
            attempts_failed: AttemptsFailed {
                unreachable: failed(Class::Unreachable),
                retryable: failed(Class::Retryable),
                rejected: failed(Class::Rejected),
                conflict: failed(Class::Conflict),
            },
            plugin_faults: lane.plugin_faults,
            records_refused: lane.records_refused,
            batches_cut: lane.batches_cut,
            budgets_spent: lane.budgets_spent,
            letters: LettersWritten {
                rejected: letters(LetterClass::Rejected),
                exhausted: letters(LetterClass::Exhausted),
                conflict: letters(LetterClass::Conflict),
            },
        }
    }
}

/// A time as it is written here: RFC 3339 in UTC, to the millisecond.
fn rfc3339(time: Timestamp) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(time.0)) {
        Ok(time) => format!("{time:.3}"),
        // 64 bits of nanoseconds end in 2262, far within what can be written.
        Err(_) => String::new(),
    }
}
