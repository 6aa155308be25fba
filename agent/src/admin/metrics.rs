//! The families of `GET /metrics`, written from one [`Status`], so that the numbers of a scrape belong together.
//!
//! Labels are names out of the config and words out of fixed sets. Names and labels are an interface: they stay.

use std::fmt;
use std::time::Duration;

use crate::journal::{COMMIT_MICROS_BOUNDS, LetterClass, LettersSnapshot, QuotaSnapshot};
use crate::lane::status::{HOLD_CAUSES, class_index};
use crate::sinks::Class;
use crate::supervisor::status::{ConfigView, Drain, LaneView, PluginView, SourceStatus, Status};
use crate::telemetry::{self, Families};

/// Every state of a source; one of them is 1.
const SOURCE_STATES: [&str; 5] = ["connecting", "running", "failed", "finished", "stopped"];
/// Every state of a lane; one of them is 1.
const LANE_STATES: [&str; 6] = ["starting", "running", "retrying", "holding", "drained", "stopped"];
/// Every class of failed attempts.
const CLASSES: [Class; 4] =
    [Class::Unreachable, Class::Retryable, Class::Rejected, Class::Conflict];

/// The exposition of a status.
pub(super) fn text(status: Status) -> Result<String, fmt::Error> {
    telemetry::exposition(move |families| {
        agent(families, &status)?;
        config(families, &status.config)?;
        journal(families, &status)?;
        sources(families, &status.sources)?;
        lane_outcomes(families, &status.lanes)?;
        lane_run(families, &status.lanes)?;
        lane_refusals(families, &status.lanes)?;
        lane_states(families, &status.lanes)?;
        lane_waiting(families, &status.lanes)?;
        orphans_and_plugins(families, &status)
    })
}

/// Labels of a series that has none.
const NONE: [(&str, &str); 0] = [];

fn agent(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    families.gauge("build_info", "The version that runs, always 1", [(version, 1_u64)])?;
    // Whom to ask and where to read on, for an alert's text. Both are bounded by the config.
    let owner = status.owner.as_deref().unwrap_or_default();
    let runbook = status.runbook.as_deref().unwrap_or_default();
    families.gauge(
        "agent_info",
        "agent.id, owner and runbook of the config, always 1",
        [([("agent", status.agent.as_str()), ("owner", owner), ("runbook", runbook)], 1_u64)],
    )?;
    families.gauge(
        "agent_uptime_seconds",
        "Time since this run began",
        [(NONE, status.uptime.as_secs_f64())],
    )?;
    families.gauge(
        "agent_ready",
        "1 when the agent does all that its config says",
        [(NONE, u64::from(status.not_ready.is_empty()))],
    )
}

fn config(families: &mut Families<'_>, config: &ConfigView) -> fmt::Result {
    families.gauge(
        "config_last_reload_ok",
        "0 while what the config's file holds cannot be used and is not what runs",
        [(NONE, u64::from(config.refused.is_none()))],
    )?;
    families.gauge(
        "config_last_adopted",
        "1 while the last adopted config runs because the file could not be used at the start",
        [(NONE, u64::from(config.is_fallback))],
    )?;
    families.gauge(
        "config_adopted_timestamp_seconds",
        "Unix time at which the config that runs was taken up",
        [(NONE, config.adopted_at.0.div_euclid(1_000_000_000))],
    )?;
    families.counter(
        "config_reloads",
        "Reloads since this run began, by what came of them",
        [
            ([("outcome", "adopted")], config.reloads),
            ([("outcome", "refused")], config.reloads_refused),
        ],
    )
}

fn journal(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    let journal = &status.journal;
    let (database, wal) = (journal.database_bytes, journal.wal_bytes);
    families.gauge("journal_database_bytes", "Size of the database file", [(NONE, database)])?;
    families.gauge("journal_wal_bytes", "Size of the WAL file", [(NONE, wal)])?;
    families.counter(
        "journal_commits",
        "Transactions committed since this run began",
        [(NONE, journal.commits)],
    )?;
    let times = &journal.commit_times;
    let bounds =
        COMMIT_MICROS_BOUNDS.iter().map(|micros| Duration::from_micros(*micros).as_secs_f64());
    let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(times.counts).collect();
    families.histogram(
        "journal_commit_seconds",
        "How long commits took: the WAL was written and synced",
        times.sum.as_secs_f64(),
        &buckets,
    )?;
    families.counter(
        "journal_appended_bytes",
        "Bytes of the records that were taken in since the journal was made",
        [(NONE, journal.wear.appended_bytes)],
    )?;
    families.counter(
        "journal_written_bytes",
        "Bytes that the journal's thread has sent to storage since the journal was made",
        [(NONE, journal.wear.written_bytes)],
    )?;
    quota(families, &journal.quota)?;
    dead_letters(families, &journal.letters)
}

fn quota(families: &mut Families<'_>, quota: &QuotaSnapshot) -> fmt::Result {
    families.gauge(
        "journal_used_bytes",
        "What of the limit is taken: pages in use, WAL and reserve",
        [(NONE, quota.used_bytes)],
    )?;
    families.gauge(
        "journal_limit_bytes",
        "max_bytes, or the size of the volume where that is less",
        [(NONE, quota.limit_bytes)],
    )?;
    families.gauge(
        "journal_full",
        "1 while the journal is full",
        [(NONE, u64::from(quota.full.is_some()))],
    )?;
    families.gauge(
        "journal_appends_waiting",
        "Appends that wait for room",
        [(NONE, quota.appends_waiting)],
    )?;
    families.counter(
        "journal_appends_refused",
        "Appends refused for want of room since this run began",
        [(NONE, quota.appends_refused)],
    )?;
    families.counter(
        "journal_records_given_up",
        "Records given up by a policy since this run began",
        [
            ([("why", "drop_oldest")], quota.dropped_full),
            ([("why", "max_age")], quota.dropped_aged),
        ],
    )?;
    families.gauge(
        "journal_checkpoint_blocked_seconds",
        "For how long a foreign reader has kept the WAL from being emptied",
        [(NONE, quota.checkpoint_blocked.as_secs_f64())],
    )?;
    families.gauge(
        "journal_write_blocked_seconds",
        "For how long a foreign process has kept the journal from being written",
        [(NONE, quota.write_blocked.as_secs_f64())],
    )
}

fn sources(families: &mut Families<'_>, sources: &[SourceStatus]) -> fmt::Result {
    let each = |value: fn(&SourceStatus) -> u64| {
        sources.iter().map(move |source| ([("source", source.id.as_str())], value(source)))
    };
    families.counter(
        "source_records",
        "Records handed to the journal since this run began",
        each(|source| source.records),
    )?;
    families.counter(
        "source_payload_bytes",
        "Bytes of the payloads of those records",
        each(|source| source.bytes),
    )?;
    families.counter(
        "source_oversize_records",
        "Records over record_bytes_max since this run began",
        each(|source| source.oversize),
    )?;
    families.counter(
        "source_times_missing",
        "Records without a time where time_from says, since this run began",
        each(|source| source.times_missing),
    )?;
    families.counter(
        "source_refused_requests",
        "Requests of producers that were answered with an error since this run began",
        each(|source| source.refused),
    )?;
    of_kinds(families, sources)?;
    families.gauge(
        "source_head_records",
        "Seq of the newest record in the journal, of all runs",
        each(|source| source.head),
    )?;
    families.gauge(
        "source_state",
        "1 for the state that the source is in",
        sources.iter().flat_map(|source| {
            SOURCE_STATES.map(|state| {
                let labels = [("source", source.id.as_str()), ("state", state)];
                (labels, u64::from(source.state.as_str() == state))
            })
        }),
    )
}

/// What only some kinds of source count.
fn of_kinds(families: &mut Families<'_>, sources: &[SourceStatus]) -> fmt::Result {
    families.counter(
        "source_mqtt_sessions_lost",
        "Sessions that the broker should have kept and has not, since this run began",
        sources
            .iter()
            .filter(|source| source.kind == "mqtt")
            .map(|source| ([("source", source.id.as_str())], source.sessions_lost)),
    )?;
    let of_sockets = |value: fn(&SourceStatus) -> u64, kinds: &'static [&'static str]| {
        let sources = sources.iter().filter(move |source| kinds.contains(&source.kind));
        sources.map(move |source| ([("source", source.id.as_str())], value(source)))
    };
    families.counter(
        "source_turned_away",
        "Connections and datagrams of those who may not send, and connections beyond the limits",
        of_sockets(|source| source.turned_away, &["tcp", "udp", "unix", "syslog"]),
    )?;
    families.counter(
        "source_datagrams_dropped",
        "Datagrams that the kernel has dropped, as they came faster than they were taken",
        of_sockets(|source| source.datagrams_dropped, &["udp", "syslog"]),
    )?;
    of_files(families, sources)?;
    let of_journald = sources.iter().filter(|source| source.kind == "journald");
    families.counter(
        "source_journald_gaps",
        "Times that journald had given up the entry that was read last, and perhaps others behind it, since this run began",
        of_journald.map(|source| ([("source", source.id.as_str())], source.gaps)),
    )?;
    let of_nats = |value: fn(&SourceStatus) -> u64| {
        let sources = sources.iter().filter(|source| source.kind == "nats");
        sources.map(move |source| ([("source", source.id.as_str())], value(source)))
    };
    families.counter(
        "source_nats_messages_known",
        "Messages that were delivered again and were stored already, since this run began",
        of_nats(|source| source.messages_known),
    )?;
    families.counter(
        "source_nats_messages_dropped",
        "Messages of a subscription without JetStream that the journal has not taken, since this run began",
        of_nats(|source| source.messages_dropped),
    )
}

/// What happens to files beside being read.
fn of_files(families: &mut Families<'_>, sources: &[SourceStatus]) -> fmt::Result {
    let of_files = |value: fn(&SourceStatus) -> u64| {
        let sources = sources.iter().filter(|source| source.kind == "file");
        sources.map(move |source| ([("source", source.id.as_str())], value(source)))
    };
    families.counter(
        "source_hole_bytes",
        "NULs at the start of lines, as a writer leaves them that goes on at its old place in a file that was cut; left out",
        of_files(|source| source.hole_bytes),
    )?;
    families.counter(
        "source_files_restarted",
        "Files that were cut or written anew and are read from their first byte again, since this run began",
        of_files(|source| source.files_restarted),
    )?;
    families.counter(
        "source_files_lost",
        "Files that went out of reach with something unread, since this run began",
        of_files(|source| source.files_lost),
    )
}

/// A lane is known by these three in the config; what is no longer there is an orphan.
fn labels(lane: &LaneView) -> [(&'static str, &str); 3] {
    [
        ("source", lane.source.as_str()),
        ("pipeline", lane.pipeline.as_str()),
        ("sink", lane.sink.as_str()),
    ]
}

/// The same and one more.
fn labels_and<'a>(
    lane: &'a LaneView,
    name: &'static str,
    value: &'static str,
) -> [(&'static str, &'a str); 4] {
    let [source, pipeline, sink] = labels(lane);
    [source, pipeline, sink, (name, value)]
}

/// What became of the records of each lane, since it was made: accepted is the sum of the five behind it.
fn lane_outcomes(families: &mut Families<'_>, lanes: &[LaneView]) -> fmt::Result {
    let each =
        |value: fn(&LaneView) -> u64| lanes.iter().map(move |lane| (labels(lane), value(lane)));
    // A gauge: it falls when a lane finds that records of the stream are not for it.
    families.gauge(
        "lane_accepted_records",
        "Records that the lane takes, since it was made",
        each(|lane| lane.accepted),
    )?;
    families.gauge(
        "lane_queued_records",
        "Accepted records with an open outcome",
        each(|lane| lane.queued),
    )?;
    families.counter(
        "lane_delivered_records",
        "Accepted records at the destination, since the lane was made",
        each(|lane| lane.delivered),
    )?;
    families.counter(
        "lane_dropped_records",
        "Accepted records left out by a plugin, since the lane was made",
        each(|lane| lane.dropped),
    )?;
    // No counter: a replay takes records out of them.
    families.gauge(
        "lane_dead_lettered_records",
        "Accepted records that ended in the dead letters, since the lane was made",
        each(|lane| lane.dead_lettered),
    )?;
    families.counter(
        "lane_lost_records",
        "Accepted records lost by a policy or by damage, since the lane was made",
        each(|lane| lane.lost),
    )?;
    families.counter(
        "lane_not_taken_records",
        "Records of the stream that the pipeline does not take, since the lane was made",
        each(|lane| lane.not_taken),
    )?;
    families.counter(
        "lane_output_records",
        "Records that the transforms made and the destination has, since the lane was made",
        each(|lane| lane.outputs_delivered),
    )
}

/// What waits in each lane.
fn lane_waiting(families: &mut Families<'_>, lanes: &[LaneView]) -> fmt::Result {
    families.gauge(
        "lane_queued_bytes",
        "Bytes that the queued records take in the journal; what several lanes wait for counts for each",
        lanes.iter().map(|lane| (labels(lane), lane.waiting.bytes)),
    )?;
    families.gauge(
        "lane_oldest_timestamp_seconds",
        "Unix time at which the oldest queued record was accepted; absent when none is queued or that is not known",
        lanes.iter().filter_map(|lane| {
            Some((labels(lane), lane.waiting.oldest?.0.div_euclid(1_000_000_000)))
        }),
    )?;
    families.gauge(
        "lane_drain_seconds",
        "Time that the queued records take at the rate of the last minute, infinite while nothing goes out; absent until that rate is known",
        lanes.iter().filter_map(|lane| {
            let seconds = match lane.waiting.drain? {
                Drain::In(time) => time.as_secs_f64(),
                Drain::Never => f64::INFINITY,
            };
            Some((labels(lane), seconds))
        }),
    )
}

/// What each lane did since this run began.
fn lane_run(families: &mut Families<'_>, lanes: &[LaneView]) -> fmt::Result {
    let each =
        |value: fn(&LaneView) -> u64| lanes.iter().map(move |lane| (labels(lane), value(lane)));
    families.gauge(
        "lane_sealed_batches",
        "Batches that are sealed and not acked",
        each(|lane| lane.batches_sealed),
    )?;
    families.counter(
        "lane_already_records",
        "Records that the destination had already, since this run began",
        each(|lane| lane.records_already),
    )?;
    families.counter(
        "lane_reordered_records",
        "Records stored behind one that failed at first, since this run began",
        each(|lane| lane.records_reordered),
    )?;
    families.counter(
        "lane_possible_duplicate_records",
        "Records sent again though the destination may have had them, since this run began",
        each(|lane| lane.records_resent),
    )?;
    families.counter(
        "lane_delivered_bytes",
        "Bytes that went out since this run began",
        each(|lane| lane.bytes_delivered),
    )?;
    families.counter(
        "lane_written_files",
        "Files written since this run began",
        each(|lane| lane.files_written),
    )?;
    families.counter(
        "lane_failed_attempts",
        "Failed attempts since this run began, by class",
        lanes.iter().flat_map(|lane| {
            CLASSES.map(|class| {
                let failed = lane.attempts_failed[class_index(class)];
                (labels_and(lane, "class", class.as_str()), failed)
            })
        }),
    )?;
    families.counter(
        "lane_plugin_faults",
        "Calls of plugins that broke down since this run began",
        each(|lane| lane.plugin_faults),
    )?;
    families.counter(
        "lane_limiter_wait_seconds",
        "Time that the lane waited for its limiter, since this run began",
        lanes.iter().map(|lane| (labels(lane), lane.limited.as_secs_f64())),
    )
}

/// What each lane gave up, and why it held, since this run began.
fn lane_refusals(families: &mut Families<'_>, lanes: &[LaneView]) -> fmt::Result {
    let each =
        |value: fn(&LaneView) -> u64| lanes.iter().map(move |lane| (labels(lane), value(lane)));
    families.counter(
        "lane_refused_records",
        "Records refused by name while the others of their batch were taken, since this run began",
        each(|lane| lane.records_refused),
    )?;
    families.counter(
        "lane_cut_batches",
        "Batches and halves cut in half since this run began",
        each(|lane| lane.batches_cut),
    )?;
    families.counter(
        "lane_spent_budgets",
        "Batches that spent their retry budget since this run began",
        each(|lane| lane.budgets_spent),
    )?;
    families.counter(
        "lane_letters",
        "Records that became dead letters at delivery since this run began, by class",
        lanes.iter().flat_map(|lane| {
            LetterClass::ALL.map(|class| {
                (labels_and(lane, "class", class.as_str()), lane.letters[class.index()])
            })
        }),
    )?;
    families.counter(
        "lane_holds",
        "Times that the lane began to hold since this run began, by cause",
        lanes.iter().flat_map(|lane| {
            let causes = HOLD_CAUSES.iter().zip(lane.holds);
            causes.map(|(cause, holds)| (labels_and(lane, "cause", cause), holds))
        }),
    )
}

fn dead_letters(families: &mut Families<'_>, letters: &LettersSnapshot) -> fmt::Result {
    let room = letters.room;
    families.gauge("dead_letters", "Dead letters in their store", [(NONE, room.count)])?;
    families.gauge("dead_letters_bytes", "Bytes of the dead letters", [(NONE, room.bytes)])?;
    families.gauge("dead_letters_limit_bytes", "max_bytes", [(NONE, room.bytes_max)])?;
    families.gauge(
        "dead_letters_full",
        "1 while something waits for room in the store",
        [(NONE, u64::from(letters.full.is_some()))],
    )?;
    families.gauge(
        "dead_letters_by_class",
        "Dead letters in their store; without lane what a source refused",
        letters.by_class.iter().map(|count| {
            let lane = count.lane.as_deref().unwrap_or_default();
            let labels = [
                ("source", count.source.as_str()),
                ("lane", lane),
                ("class", count.class.as_str()),
            ];
            (labels, count.letters)
        }),
    )?;
    families.gauge(
        "dead_letters_oldest_timestamp_seconds",
        "Unix time at which the oldest of them became one; absent when there is none",
        letters.oldest.iter().map(|oldest| (NONE, oldest.0.div_euclid(1_000_000_000))),
    )?;
    families.counter(
        "dead_letters_write_failures",
        "Times that letters had no room and what they belong to waited, since this run began",
        [(NONE, letters.write_failures)],
    )?;
    families.counter(
        "dead_letters_removed",
        "Dead letters removed since this run began: dropped to make room, or discarded as asked",
        [([("why", "drop_oldest")], letters.dropped), ([("why", "discarded")], letters.discarded)],
    )
}

fn lane_states(families: &mut Families<'_>, lanes: &[LaneView]) -> fmt::Result {
    families.gauge(
        "lane_state",
        "1 for the state that the lane is in",
        lanes.iter().flat_map(|lane| {
            LANE_STATES.map(|state| {
                let is = u64::from(lane.state.as_str() == state);
                (labels_and(lane, "state", state), is)
            })
        }),
    )?;
    families.gauge(
        "lane_trouble_since_timestamp_seconds",
        "Unix time since which the lane retries or holds, with the cause; absent when it does not",
        lanes.iter().filter_map(|lane| {
            let (cause, _, since) = lane.state.trouble()?;
            Some((labels_and(lane, "cause", cause), since.0.div_euclid(1_000_000_000)))
        }),
    )
}

fn orphans_and_plugins(families: &mut Families<'_>, status: &Status) -> fmt::Result {
    families.gauge(
        "orphan_queued_records",
        "Records kept for a lane that is no longer in the config",
        status.orphans.iter().map(|orphan| ([("lane", orphan.name.as_str())], orphan.queued)),
    )?;
    let plugins = &status.plugins;
    let each = |value: fn(&PluginView) -> u64| {
        plugins.iter().map(move |plugin| ([(plugin.part, plugin.id.as_str())], value(plugin)))
    };
    families.counter(
        "plugin_calls",
        "Calls of the plugin's functions by all lanes, since it was loaded",
        each(|plugin| plugin.calls.count),
    )?;
    families.counter(
        "plugin_call_seconds",
        "Wall time that those calls took",
        plugins
            .iter()
            .map(|plugin| ([(plugin.part, plugin.id.as_str())], plugin.calls.time.as_secs_f64())),
    )?;
    families.counter(
        "plugin_broken_calls",
        "Calls that ended in a trap or at a limit, since the plugin was loaded",
        each(|plugin| plugin.calls.broken),
    )?;
    families.counter(
        "plugin_log_lines_left_out",
        "Log lines of the plugin over its limit, since it was loaded",
        each(|plugin| plugin.log_lines_left_out),
    )
}
