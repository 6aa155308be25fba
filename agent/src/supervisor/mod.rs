//! Starts, watches and stops the parts of an agent, and carries orders to them.
//!
//! Start: journal, and then a reload from nothing: plugins, sinks, lanes, sources. A reload makes everything new ready beside
//! the old (`assembly`), then each part goes over at its own boundary (`switch`). Stop, in the order that loses nothing: not
//! ready, sources, lanes (each between two batches), journal. A destination that is down never keeps the agent from starting.

mod assembly;
mod digests;
mod error;
mod handle;
mod lane_orders;
mod orders;
mod relay;
mod reload;
mod source;
mod start;
pub mod status;
mod switch;
mod waiting;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

pub use error::{OrderError, ReloadError, StartError};
pub use handle::Handle;
pub use reload::{Backlog, Outcome, Reloaded};
pub use start::{LoadConfig, StartOptions};

use crate::config::Loaded;
use crate::journal::Journal;
use crate::lane::LaneEnd;
use crate::lane::status::LaneState;
use crate::tasks::{Ended, Shutdown, TaskGroup};
use assembly::Prepared;
use handle::{Face, SourceEntry, Wish};
use relay::{Over, UnderWay};
use source::SourceEnd;
use status::{SourceState, Status};

/// Whose end it is, and how it ended.
type SourceOver = (Arc<SourceEntry>, SourceEnd);

/// A started agent.
#[derive(Debug)]
pub struct Supervisor {
    journal: Arc<Journal>,
    face: Arc<Face>,
    sources: TaskGroup<Over<SourceOver>>,
    lanes: TaskGroup<Over<LaneEnd>>,
    /// Reloads that are prepared.
    switches: mpsc::Receiver<Switch>,
    /// Reloads that somebody waits for; taken when the run begins.
    wishes: Option<mpsc::Receiver<Wish>>,
    /// How long a source of a finite run may fail before it is given up.
    patience: tokio::sync::watch::Sender<Option<Duration>>,
    source_shutdown: Shutdown,
    lane_shutdown: Shutdown,
}

/// Another config to go over to, now.
struct Switch {
    prepared: Prepared,
    /// Dropped when every part has gone over.
    under_way: UnderWay,
    taken: oneshot::Sender<()>,
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
    /// The config that ran last, and why it is not that of its file.
    pub config: (Arc<Loaded>, Option<String>),
}

impl Supervisor {
    /// Starts everything that a config names.
    ///
    /// # Errors
    /// See [`StartError`]; what was started until then is stopped.
    pub async fn start(options: StartOptions) -> Result<Self, StartError> {
        start::start(options).await
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
        let (agent, wishes) = (self.handle(), self.wishes.take());
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
            () = reloads(agent, wishes) => true,
            () = waiting::watch(Arc::clone(&self.face)) => true,
            () = self.run_to_end(timeout, &mut undone) => true,
        };
        // Whoever asked for everything to be done is told what is not; a service that is stopped keeps it for its next start.
        let once = self.face.once;
        if once && !ended {
            self.name_unread(&mut undone);
        }
        if once || ended {
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
                    Some(ended) => {
                        if !self.source_ended(ended, undone) {
                            return;
                        }
                    }
                    None => {
                        sources_left = false;
                        deadline = timeout.map(|timeout| tokio::time::Instant::now() + timeout);
                    }
                },
                ended = self.lanes.next_ended() => match ended {
                    Some(ended) => {
                        if !self.lane_ended(ended, undone) {
                            return;
                        }
                    }
                    None => break,
                },
                Some(Switch { prepared, under_way, taken }) = self.switches.recv() => {
                    self.switch(prepared, &under_way);
                    sources_left = true;
                    // Whoever asked may have given up waiting.
                    let _unheard = taken.send(());
                }
                () = sleep_until(deadline) => break,
            }
        }
    }

    /// Sources that are not at their end.
    fn name_unread(&self, undone: &mut Vec<String>) {
        for entry in &self.face.assembly().sources {
            if entry.state() == SourceState::Running {
                undone.push(format!("source {} is not at its end", entry.id));
            }
        }
    }

    /// Lanes that are not done, and why.
    fn name_undelivered(&self, undone: &mut Vec<String>) {
        for entry in &self.face.assembly().lanes {
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
    fn source_ended(&mut self, ended: Ended<Over<SourceOver>>, undone: &mut Vec<String>) -> bool {
        let Some(Over { end, missed }) = ended.result else {
            note_panic("source", &ended.name, undone);
            return false;
        };
        if let Some(turn) = missed {
            self.take_up_source(&ended.name, turn);
        } else if let Some((entry, end)) = end {
            note_source(&entry, &end, undone);
            // Another one may have taken its place since.
            if self.face.assembly().sources.iter().any(|now| Arc::ptr_eq(now, &entry)) {
                entry.drain.send_replace(true);
            }
        }
        true
    }

    /// False when a lane ended in a panic.
    fn lane_ended(&mut self, ended: Ended<Over<LaneEnd>>, undone: &mut Vec<String>) -> bool {
        match ended.result {
            None => {
                note_panic("lane", &ended.name, undone);
                return false;
            }
            Some(Over { missed: Some(turn), .. }) => self.take_up_lane(&ended.name, turn),
            Some(_) => {}
        }
        true
    }

    async fn stop(self, mut undone: Vec<String>) -> RunEnd {
        let begun = tokio::time::Instant::now();
        let grace = self.face.assembly().config().agent.stop_grace;
        self.source_shutdown.request();
        let (ended, late) = self.sources.drain(grace / 2).await;
        for source in ended {
            match source.result {
                Some(Over { end, .. }) => {
                    if let Some((entry, end)) = end {
                        note_source(&entry, &end, &mut undone);
                    }
                }
                None => note_panic("source", &source.name, &mut undone),
            }
        }
        aborted("Sources", &late);
        self.lane_shutdown.request();
        let (_, late) = self.lanes.drain(grace.saturating_sub(begun.elapsed())).await;
        aborted("Lanes", &late);
        let handle = Handle(Arc::clone(&self.face));
        if let Err(error) = self.journal.close().await {
            let error = crate::error_chain::Chain(&error).to_string();
            tracing::error!(error, "Journal was not closed cleanly");
            undone.push(format!("journal: {error}"));
        }
        let loaded = Arc::clone(&self.face.assembly().loaded);
        let config = (loaded, self.face.fallback());
        RunEnd { status: handle.status(), undone, damage: None, config }
    }
}

/// Carries out reloads. A finite run keeps the config that it began with.
async fn reloads(agent: Handle, wishes: Option<mpsc::Receiver<Wish>>) {
    match wishes {
        Some(wishes) if !agent.0.once => watch::run(agent, wishes).await,
        _ => std::future::pending().await,
    }
}

/// Notes what a source that has ended leaves undone.
fn note_source(entry: &SourceEntry, end: &SourceEnd, undone: &mut Vec<String>) {
    let name = &entry.id;
    match end {
        SourceEnd::Finished | SourceEnd::Stopped => {}
        SourceEnd::Partly(unread) => {
            undone.extend(unread.iter().map(|what| format!("source {name}: {what}")));
        }
        SourceEnd::Failed(reason) => undone.push(format!("source {name}: {reason}")),
    }
}

fn note_panic(kind: &'static str, name: &str, undone: &mut Vec<String>) {
    tracing::error!(kind, task = %name, "A task ended in a panic");
    undone.push(format!("{kind} {name}: it ended in a panic"));
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
