//! A reload: read, check, plan, make ready beside what runs, prove, and only then go over. Whatever fails before that leaves
//! everything as it was, and says why in the log, in `status` and in the metrics.
//!
//! 1. The config is read and checked as at a start, and compared with the one that runs.
//! 2. What is new is made: plugins are compiled and instantiated, sinks made and asked, bounded in time. A destination that
//!    is down is said and keeps nothing from changing, as it keeps nothing from starting.
//! 3. The agent goes over. What cannot wait for a boundary is cut off after `stop_grace`, which loses nothing.
//! 4. The config is kept as the last adopted one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use super::Switch;
use super::assembly::{Assembly, Prepared, Way};
use super::error::ReloadError;
use super::handle::{Face, Handle, ReloadWish, Wish};
use super::status::OrphanView;
use crate::config::{
    self, Change, KnownLane, LaneId, Loaded, Plan, Planned, used_sinks, used_transforms,
};
use crate::error_chain::Chain;
use crate::journal::LaneSnapshot;
use crate::lane::{LaneParts, Transform};
use crate::limits::{RELOAD_PROBE_MS_MAX, RELOAD_READ_MS_MAX};
use crate::plugin::config::GuestConfig;
use crate::plugin::{CallError, StateView};
use crate::record::batch::LanePlace;
use crate::record::id::LaneName;
use crate::settings::{Problem, Problems, Severity};
use crate::sinks::config::{SinkConfig, SinkKind};

/// What a reload came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The config is taken up.
    Adopted,
    /// It is as it was.
    Unchanged,
    /// It would be done so; nothing was done.
    Planned,
}

/// What a reload did, or would do.
#[derive(Debug, Clone)]
pub struct Reloaded {
    /// What came of it.
    pub outcome: Outcome,
    /// What changes.
    pub plan: Plan,
    /// What becomes of each lane's records, in the order of [`Plan::lanes`].
    pub backlogs: Vec<Backlog>,
    /// Lanes of the journal in which records wait, and that neither config has.
    pub orphans: Vec<OrphanView>,
    /// What hardly means what it says.
    pub warnings: Problems,
}

/// What becomes of the records that wait in a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The lane's name.
    pub lane: String,
    /// Records without an outcome.
    pub queued: u64,
    /// Batches that are sealed and have no outcome.
    pub sealed: u64,
    /// What becomes of them.
    pub fate: &'static str,
}

impl Handle {
    /// Reads the config again and goes over to it, or with `only_plan` says what that would do.
    ///
    /// # Errors
    /// When it cannot be used; then everything is as it was.
    ///
    /// # Cancel safety
    /// Dropped, it is carried out all the same.
    pub async fn reload(&self, only_plan: bool) -> Result<Reloaded, ReloadError> {
        if self.0.once {
            return Err(ReloadError::Once);
        }
        let (answer, answered) = oneshot::channel();
        let wish = Wish::Reload(ReloadWish { only_plan, answer });
        self.0.wishes.send(wish).await.map_err(|_| ReloadError::Stopping)?;
        answered.await.unwrap_or(Err(ReloadError::Stopping))
    }

    /// Has the config read again soon, changed or not.
    pub fn reload_soon(&self) {
        if self.0.once {
            tracing::warn!(
                "SIGHUP does nothing with --once: the run keeps the config that it began with"
            );
        }
        self.0.hangup.notify_one();
    }

    /// The files that a reload would read, drop-ins that have come or gone among them: those that are worth a look.
    pub(super) async fn files(&self) -> Vec<PathBuf> {
        let assembly = self.0.assembly();
        let config = assembly.config();
        let transforms = config.transforms.iter().map(|part| part.guest.plugin.clone());
        let sinks = config.sinks.iter().filter_map(|part| Some(guest_of(part)?.plugin.clone()));
        let plugins: Vec<_> = transforms.chain(sinks).collect();
        let look = move || {
            let mut files = config::files_of(&assembly.loaded.file);
            files.extend(plugins);
            files
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }
}

/// Reads the config, goes over to it unless only its plan is wanted, and notes how that went. One at a time. `is_again` when
/// nobody has changed anything since it was refused: the same refusal is no news then.
pub(super) async fn carry_out(
    face: &Face,
    only_plan: bool,
    is_again: bool,
) -> Result<Reloaded, ReloadError> {
    let result = reload(face, only_plan).await;
    if !only_plan {
        note(face, result.as_ref().map(|reloaded| reloaded.outcome), is_again);
    }
    result
}

/// Whether the files, those of plugins among them, hold something else than what runs. What runs in the place of files that cannot be used is none of theirs.
pub(super) async fn is_outdated(face: &Face) -> bool {
    if face.fallback().is_some() {
        return false;
    }
    let Ok(loaded) = read(face).await else { return true };
    let runs = face.assembly();
    loaded.text != runs.loaded.text
        || replaced_plugins(&runs, &loaded).await.map_or(true, |replaced| !replaced.is_empty())
}

async fn reload(face: &Face, only_plan: bool) -> Result<Reloaded, ReloadError> {
    let mut loaded = read(face).await?;
    let old = face.assembly();
    loaded.config.agent.id.get_or_insert_with(|| face.opening.agent.clone());
    let replaced = replaced_plugins(&old, &loaded).await?;
    let plan = config::plan(old.config(), &loaded.config, &replaced)
        .map_err(|fixed| ReloadError::Config(Box::new(not_live(&loaded, fixed))))?;
    let backlogs = plan.lanes.iter().map(|lane| backlog(face, lane)).collect();
    config::warn_of_renames(&mut loaded, Some(old.config()), &known_lanes(face));
    let warnings = loaded.warnings.clone();
    let orphans = super::lane_orders::orphans(face, &plan);
    if only_plan {
        let outcome = Outcome::Planned;
        return Ok(Reloaded { outcome, plan, backlogs, orphans, warnings });
    }
    let is_empty = plan.is_empty();
    let loaded = Arc::new(loaded);
    let sources = old.make_sources(&loaded.config, &plan, face.once, &face.clock)?;
    let prepared = old.prepare(face, loaded, plan.clone(), sources).await?;
    if !is_empty {
        prove(&prepared, &plan).await?;
        say(&plan, &warnings);
    }
    // Also when nothing changes: the file, and what it says of parts that nobody uses, may be others.
    go_over(face, prepared).await?;
    adopted(face).await;
    let outcome = if is_empty { Outcome::Unchanged } else { Outcome::Adopted };
    Ok(Reloaded { outcome, plan, backlogs, orphans, warnings })
}

/// The lanes of the journal.
pub(super) fn known_lanes(face: &Face) -> Vec<KnownLane> {
    let snapshot = face.snapshots.borrow().clone();
    let known = snapshot.lanes.iter().map(|lane| KnownLane {
        id: LaneId {
            source: lane.source.clone(),
            pipeline: lane.pipeline.clone(),
            sink: lane.sink.clone(),
        },
        name: lane.name.to_string(),
        queued: lane.queued,
    });
    known.collect()
}

async fn read(face: &Face) -> Result<Loaded, ReloadError> {
    let load = face.load.clone();
    let read = tokio::task::spawn_blocking(move || (load.0)());
    let limit = Duration::from_millis(RELOAD_READ_MS_MAX);
    match tokio::time::timeout(limit, read).await {
        Err(_) => Err(ReloadError::Slow),
        Ok(Err(_)) => Err(ReloadError::Stopping),
        Ok(Ok(read)) => read.map_err(|problems| ReloadError::Config(Box::new(problems))),
    }
}

/// The plugin of a sink that is one.
fn guest_of(sink: &SinkConfig) -> Option<&GuestConfig> {
    match &sink.kind {
        SinkKind::Plugin(plugin) => Some(&plugin.guest),
        _ => None,
    }
}

/// The tables whose plugin's file holds something else than what runs.
async fn replaced_plugins(
    old: &Assembly,
    loaded: &Loaded,
) -> Result<BTreeSet<String>, ReloadError> {
    let transforms = old.transforms.iter().filter_map(|known| {
        let id = &known.config.id;
        let used = used_transforms(&loaded.config);
        let now = used.into_iter().find(|part| part.id == *id)?;
        let path = now.guest.plugin.clone();
        Some((format!("transforms.{id}"), path, known.plugin.digest()))
    });
    let sinks = old.ways.iter().filter_map(|way| {
        let digest = way.guest.as_ref()?.digest();
        let used = used_sinks(&loaded.config);
        let now = used.into_iter().find(|part| part.id == way.sink)?;
        Some((format!("sinks.{}", way.sink), guest_of(now)?.plugin.clone(), digest))
    });
    let files: Vec<_> = transforms.chain(sinks).collect();
    let compare = move || {
        let differs = |(table, path, digest): (String, PathBuf, [u8; 32])| {
            // One that cannot be read was complained about, or is so when it is loaded.
            (crate::plugin::digest_of(&path).ok() != Some(digest)).then_some(table)
        };
        files.into_iter().filter_map(differs).collect()
    };
    tokio::task::spawn_blocking(compare).await.map_err(|_| ReloadError::Stopping)
}

/// Keys that only a start can change, where they stand.
fn not_live(loaded: &Loaded, fixed: Vec<(String, crate::settings::Complaint)>) -> Problems {
    let mut problems = loaded.problems();
    for (key, complaint) in fixed {
        let span = config::place_of(&loaded.listing, &key).map(|at| problems.line(at));
        problems.push(Problem::new(Severity::Error, key, span, complaint));
    }
    problems.sort();
    problems
}

/// Has new plugins and sinks show that they can be used.
async fn prove(prepared: &Prepared, plan: &Plan) -> Result<(), ReloadError> {
    for transform in &prepared.transforms {
        let id = &transform.config.id;
        if Plan::of(&plan.transforms, id) == Change::Kept {
            continue;
        }
        let is_in = |parts: &LaneParts| parts.transforms.iter().any(|part| part.config.id == *id);
        if let Some((_, parts)) = prepared.lanes.iter().find(|(_, parts)| is_in(parts)) {
            instantiate(transform.clone(), place(parts)).await?;
        }
    }
    let new =
        |way: &&Way| matches!(Plan::of(&plan.sinks, &way.sink), Change::Added | Change::Restarted);
    let ways: Vec<_> = prepared.ways.iter().filter(new).collect();
    for checked in join_all(ways.iter().map(|way| check(way))).await {
        checked?;
    }
    join_all(ways.iter().map(|way| probe(way))).await;
    Ok(())
}

fn place(parts: &LaneParts) -> LanePlace {
    let spec = &parts.spec;
    LanePlace {
        lane: LaneName::new(&spec.agent, &spec.source, &spec.pipeline, &spec.sink),
        agent: spec.agent.clone(),
        source: spec.source.clone(),
        pipeline: spec.pipeline.clone(),
        sink: spec.sink.clone(),
    }
}

/// An instance is made with the config, as for a batch; what `init` refuses or breaks down on is told before it counts.
async fn instantiate(transform: Transform, place: LanePlace) -> Result<(), ReloadError> {
    let id = transform.config.id.clone();
    let make = move || transform.plugin.instantiate(&place, StateView::default()).map(drop);
    match tokio::task::spawn_blocking(make).await {
        // What may pass is the lane's to wait for.
        Ok(Ok(()) | Err(CallError::Retryable(_) | CallError::Host(_))) => Ok(()),
        Ok(Err(source)) => Err(ReloadError::Plugin { transform: id, source }),
        Err(_) => Err(ReloadError::Stopping),
    }
}

/// What a sink needs of this machine is looked at.
async fn check(way: &Way) -> Result<(), ReloadError> {
    let (sink, builder) = (way.sink.clone(), Arc::clone(&way.builder));
    let looked = tokio::task::spawn_blocking(move || builder.check());
    match tokio::time::timeout(Duration::from_millis(RELOAD_READ_MS_MAX), looked).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(Ok(Err(source))) => Err(ReloadError::Sink { sink, source }),
        Ok(Err(_)) => Err(ReloadError::Stopping),
        Err(_) => Err(ReloadError::Slow),
    }
}

/// Connects, and says so when the destination would not take a batch now.
async fn probe(way: &Way) {
    let mut sink = way.builder.build();
    let limit = Duration::from_millis(RELOAD_PROBE_MS_MAX);
    let error = match tokio::time::timeout(limit, sink.probe()).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => "it does not answer at once".to_owned(),
    };
    tracing::warn!(sink = %way.sink, error, "The new destination would not take a batch now, its lanes will wait for it");
}

/// Hands what is prepared to the supervisor, and waits until every part has gone over.
pub(super) async fn go_over(face: &Face, prepared: Prepared) -> Result<(), ReloadError> {
    let (under_way, mut done) = mpsc::channel(1);
    let (taken, is_taken) = oneshot::channel();
    let switch = Switch { prepared, under_way, taken };
    face.switches.send(switch).await.map_err(|_| ReloadError::Stopping)?;
    is_taken.await.map_err(|_| ReloadError::Stopping)?;
    // Each of them is bounded by its grace.
    while done.recv().await.is_some() {}
    Ok(())
}

/// Keeps the config that runs as the last adopted one, and says of which lanes records stay behind. One that is kept already
/// and runs for want of a better one is no news.
pub(super) async fn adopted(face: &Face) {
    super::lane_orders::name_orphans(face).await;
    let assembly = face.assembly();
    let loaded = Arc::clone(&assembly.loaded);
    let keep = move || config::adopted::keep(&loaded.config.agent.data_dir, &loaded);
    match tokio::task::spawn_blocking(keep).await {
        Ok(Ok(())) | Err(_) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "The config cannot be kept for a start with a broken file");
        }
    }
}

/// Says in the log and in the status how a reload went.
fn note(face: &Face, result: Result<Outcome, &ReloadError>, is_again: bool) {
    let assembly = face.assembly();
    let mut state = face.config();
    match result {
        Ok(outcome) => {
            state.refused = None;
            state.fallback = None;
            state.file.clone_from(&assembly.loaded.file);
            state.sha256 = config::adopted::digest(&assembly.loaded.text);
            if outcome == Outcome::Adopted {
                state.adopted_at = face.clock.now();
                state.reloads += 1;
                tracing::info!(sha256 = state.sha256, "Config is reloaded");
            } else {
                tracing::info!(sha256 = state.sha256, "Config is as it was, nothing is reloaded");
            }
        }
        Err(error) => {
            let why = Chain(error).to_string();
            if is_again && state.refused.as_ref().is_some_and(|(before, _)| *before == why) {
                return;
            }
            let since = state.refused.take().map_or_else(|| face.clock.now(), |(_, since)| since);
            tracing::error!(error = why, "Config is not reloaded, everything goes on as it was");
            state.refused = Some((why, since));
            state.reloads_refused += 1;
        }
    }
}

/// Says in the log what changes, and what hardly means what it says.
fn say(plan: &Plan, warnings: &Problems) {
    for warning in warnings.list() {
        tracing::warn!(
            key = warning.key,
            warning = warning.message,
            "Config hardly means what it says"
        );
    }
    for lane in plan.lanes.iter().filter(|lane| lane.change != Change::Kept) {
        let (lane, change, because) = (&lane.id, lane.change.as_str(), &lane.because);
        tracing::info!(%lane, change, ?because, "Reload changes a lane");
    }
}

fn backlog(face: &Face, planned: &Planned<LaneId>) -> Backlog {
    let Planned { id, change, because } = planned;
    let is_other_type = because.contains(&format!("sinks.{}.type", id.sink));
    let snapshot = face.snapshots.borrow().clone();
    let is = |lane: &&LaneSnapshot| {
        (&lane.source, &lane.pipeline, &lane.sink) == (&id.source, &id.pipeline, &id.sink)
    };
    let known = snapshot.lanes.iter().find(is);
    let (queued, sealed) = known.map_or((0, 0), |lane| (lane.queued, lane.batches));
    let fate = match change {
        // Names, formats and subjects are the sink's own.
        Change::Restarted if is_other_type && sealed > 0 => {
            "they go on; the sink is of another type, so what is sealed is made ready anew for it"
        }
        Change::Restarted if is_other_type => "they go on, to a sink of another type",
        Change::Added if known.is_some() => {
            "it is known to the journal: its records go on where they were"
        }
        Change::Added => "it is new",
        Change::Kept | Change::Adjusted => "they go on",
        Change::Restarted if sealed > 0 => "they go on; what is sealed goes out as it was sealed",
        Change::Restarted => "they go on",
        Change::Removed if queued > 0 => {
            "they stay in the journal, and count against its limit, until the lane is back or `waystation lane drop` ends it"
        }
        Change::Removed => "nothing waits; its place stays in the journal",
    };
    let named =
        || LaneName::new(&face.opening.agent, &id.source, &id.pipeline, &id.sink).to_string();
    let lane = known.map_or_else(named, |lane| lane.name.to_string());
    Backlog { lane, queued, sealed, fate }
}
