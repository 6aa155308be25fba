//! Starts, watches and stops the parts of an agent, and carries orders to them.
//!
//! Start: journal, plugins, sinks, lanes, sources. Stop, in the order that loses nothing: not ready, sources, lanes (each
//! between two batches), journal. A destination that is down never keeps the agent from starting.

mod digests;
mod error;
mod handle;
mod orders;
mod source;
mod start;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

pub use error::{OrderError, StartError};
pub use handle::Handle;
pub use start::StartOptions;

use crate::journal::Journal;
use crate::lane::status::LaneState;
use crate::lane::{LaneControl, LaneEnd};
use crate::record::id::SourceId;
use crate::tasks::{Ended, Shutdown, TaskGroup};
use handle::Face;
use source::{SourceEnd, SourceTask};
use status::{SourceState, Status};

/// A started agent.
#[derive(Debug)]
pub struct Supervisor {
    journal: Arc<Journal>,
    face: Arc<Face>,
    sources: TaskGroup<SourceEnd>,
    lanes: TaskGroup<LaneEnd>,
    /// One for each source: set when it has nothing more to give.
    drains: Vec<(SourceId, watch::Sender<bool>)>,
    /// How long a source of a finite run may fail before it is given up.
    patience: watch::Sender<Option<Duration>>,
    source_shutdown: Shutdown,
    lane_shutdown: Shutdown,
    once: bool,
    stop_grace: Duration,
}

/// How a run ended.
#[derive(Debug)]
pub struct RunEnd {
    /// The status at the end, before the journal was closed but with everything in it.
    pub status: Status,
    /// What is left undone, one line each; empty when all is well.
    pub undone: Vec<String>,
    /// The damage of the journal for which it ended; a start anew salvages what is good.
    pub damage: Option<String>,
}

impl Supervisor {
    /// Starts everything that a config names.
    ///
    /// # Errors
    /// See [`StartError`]; what was started until then is stopped.
    pub async fn start(options: StartOptions) -> Result<Self, StartError> {
        let started = start::start(&options).await?;
        let source_shutdown = Shutdown::new();
        let lane_shutdown = Shutdown::new();
        let mut sources = TaskGroup::default();
        let mut lanes = TaskGroup::default();
        let drains: Vec<_> = started
            .sources
            .iter()
            .map(|(entry, _)| (entry.id.clone(), watch::channel(false).0))
            .collect();
        for entry in &started.lanes {
            let spec = &entry.parts.spec;
            let drain = drains.iter().find(|(source, _)| *source == spec.source);
            let none = || watch::channel(false).1;
            let drain = drain.map_or_else(none, |(_, drain)| drain.subscribe());
            let (shutdown, desk) = (lane_shutdown.clone(), Arc::clone(&entry.desk));
            let control = LaneControl { shutdown, drain, desk };
            let name = format!("{}/{}/{}", spec.source, spec.pipeline, spec.sink);
            let span = tracing::error_span!("lane", id = %name);
            let (parts, journal) = (entry.parts.clone(), Arc::clone(&started.journal));
            let lane = crate::lane::run(parts, journal, control, Arc::clone(&entry.status));
            lanes.spawn(format!("lane {name}"), span, lane);
        }
        let patience = watch::Sender::new(None);
        let mut entries = Vec::new();
        for (entry, source) in started.sources {
            entries.push(Arc::clone(&entry));
            let span = tracing::error_span!("source", id = %entry.id);
            let name = entry.id.to_string();
            let task = SourceTask {
                source,
                entry,
                journal: Arc::clone(&started.journal),
                once: options.once,
                patience: patience.subscribe(),
                clock: Arc::clone(&options.clock),
                shutdown: source_shutdown.clone(),
            };
            sources.spawn(name, span, task.run());
        }
        let face = Arc::new(Face {
            opening: started.opening,
            started_at: options.clock.now(),
            started: options.clock.monotonic(),
            owner: options.config.agent.owner.clone(),
            runbook: options.config.agent.runbook.clone(),
            relaxed: started.relaxed,
            sources: entries,
            lanes: started.lanes,
            plugins: started.plugins,
            snapshots: started.journal.snapshots(),
            journal: Arc::clone(&started.journal),
            stopping: source_shutdown.clone(),
            clock: Arc::clone(&options.clock),
        });
        Ok(Self {
            journal: started.journal,
            face,
            sources,
            lanes,
            drains,
            patience,
            source_shutdown,
            lane_shutdown,
            once: options.once,
            stop_grace: options.config.agent.stop_grace,
        })
    }

    /// What others ask the agent through.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.face))
    }

    /// Runs until all sources have ended and all lanes are drained, `timeout` after the last source has ended, until the
    /// journal turns out to be damaged, or until asked to stop; then stops everything and closes the journal. A source that
    /// fails for as long as `timeout` has ended. Without a lane there is nothing to do: a run whose last lane ends, ends.
    pub async fn run(mut self, timeout: Option<Duration>, shutdown: &Shutdown) -> RunEnd {
        self.patience.send_replace(timeout);
        let mut undone = Vec::new();
        let journal = Arc::clone(&self.journal);
        let mut met = journal.damage();
        let mut damage = None;
        let ended = tokio::select! {
            () = shutdown.requested() => {
                tracing::info!("Stopping");
                false
            }
            Ok(found) = met.wait_for(Option::is_some) => {
                damage.clone_from(&found);
                false
            }
            () = journal.writer_ended() => {
                tracing::error!("Journal writer broke down");
                undone.push("journal: its writer broke down".to_owned());
                true
            }
            () = self.run_to_end(timeout, &mut undone) => true,
        };
        // Whoever asked for everything to be done is told what is not; a service that is stopped keeps it for its next start.
        if self.once && !ended {
            self.name_unread(&mut undone);
        }
        if self.once || ended {
            self.name_undelivered(&mut undone);
        }
        if let Some(damage) = &damage {
            tracing::error!(damage, "Journal is damaged, everything stops for its salvage");
        }
        RunEnd { damage, ..self.stop(undone).await }
    }

    /// Waits until every source and lane has ended. A panic of one ends the wait: the process stops and says so, rather
    /// than going on without a part that nobody misses.
    async fn run_to_end(&mut self, timeout: Option<Duration>, undone: &mut Vec<String>) {
        let mut deadline = None;
        let mut sources_left = true;
        loop {
            tokio::select! {
                ended = self.sources.next_ended(), if sources_left => match ended {
                    Some(ended) if !self.source_ended(&ended, undone) => return,
                    Some(_) => {}
                    None => {
                        sources_left = false;
                        deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
                    }
                },
                ended = self.lanes.next_ended() => match ended {
                    Some(ended) if ended.result.is_none() => {
                        tracing::error!(task = %ended.name, "Lane ended in a panic");
                        undone.push(format!("{}: it ended in a panic", ended.name));
                        return;
                    }
                    Some(_) => {}
                    None => break,
                },
                () = sleep_until(deadline) => break,
            }
        }
    }

    /// Sources that are not at their end.
    fn name_unread(&self, undone: &mut Vec<String>) {
        for entry in &self.face.sources {
            if entry.state() == SourceState::Running {
                undone.push(format!("source {} is not at its end", entry.id));
            }
        }
    }

    /// Lanes that are not done, and why.
    fn name_undelivered(&self, undone: &mut Vec<String>) {
        for entry in &self.face.lanes {
            let state = entry.status.state();
            let spec = &entry.parts.spec;
            let name = format!("{}/{}/{}", spec.source, spec.pipeline, spec.sink);
            if let Some((cause, reason, _)) = state.trouble() {
                undone.push(format!("lane {name} holds: {cause}: {reason}"));
            // Nobody has asked to stop yet: one that has stopped will never deliver more, and that is no failure.
            } else if !matches!(state, LaneState::Drained | LaneState::Stopped) {
                undone.push(format!("lane {name} is not done"));
            }
        }
    }

    /// Lets the lanes of a source that has ended drain. False when it ended in a panic.
    fn source_ended(&self, ended: &Ended<SourceEnd>, undone: &mut Vec<String>) -> bool {
        let sound = note_source(ended, undone);
        let drain = self.drains.iter().find(|(id, _)| sound && id.as_str() == ended.name);
        if let Some((_, drain)) = drain {
            drain.send_replace(true);
        }
        sound
    }

    async fn stop(self, mut undone: Vec<String>) -> RunEnd {
        let begun = tokio::time::Instant::now();
        self.source_shutdown.request();
        let (ended, late) = self.sources.drain(self.stop_grace / 2).await;
        for source in &ended {
            note_source(source, &mut undone);
        }
        aborted("Sources", &late);
        self.lane_shutdown.request();
        let (_, late) = self.lanes.drain(self.stop_grace.saturating_sub(begun.elapsed())).await;
        aborted("Lanes", &late);
        let handle = Handle(Arc::clone(&self.face));
        if let Err(error) = self.journal.close().await {
            let error = crate::error_chain::Chain(&error).to_string();
            tracing::error!(error, "Journal was not closed cleanly");
            undone.push(format!("journal: {error}"));
        }
        RunEnd { status: handle.status(), undone, damage: None }
    }
}

/// Notes what a source that has ended leaves undone. False when it ended in a panic.
fn note_source(ended: &Ended<SourceEnd>, undone: &mut Vec<String>) -> bool {
    let name = &ended.name;
    match &ended.result {
        Some(SourceEnd::Finished | SourceEnd::Stopped) => {}
        Some(SourceEnd::Partly(unread)) => {
            undone.extend(unread.iter().map(|what| format!("source {name}: {what}")));
        }
        Some(SourceEnd::Failed(reason)) => undone.push(format!("source {name}: {reason}")),
        None => {
            tracing::error!(source = %name, "Source ended in a panic");
            undone.push(format!("source {name}: it ended in a panic"));
        }
    }
    ended.result.is_some()
}

/// Says who was still at work when the time was over. What they were at stays in the journal.
fn aborted(what: &'static str, late: &[String]) {
    if !late.is_empty() {
        tracing::warn!(what, ?late, "Not stopped in time, ended at once; nothing is lost");
    }
}

/// Sleeps for ever without a deadline.
async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
