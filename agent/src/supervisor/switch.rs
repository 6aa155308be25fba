//! Going over to another config that was made ready: at once for the agent, between two batches for each lane.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::assembly::{Assembly, NewSource, Prepared};
use super::handle::{LaneEntry, SourceEntry};
use super::relay::{self, Turn, Turns, UnderWay, Work};
use super::source::SourceTask;
use super::status::SourceState;
use super::{SourceOver, Supervisor};
use crate::config::{Change, LaneId, Plan};
use crate::lane::{LaneControl, LaneEnd, LaneParts};

impl Supervisor {
    /// Goes over. Nothing of it waits, and nothing of it can fail; `under_way` is dropped when the last part has gone over.
    pub(super) fn switch(&mut self, prepared: Prepared, under_way: &UnderWay) {
        let Prepared { loaded, plan, sources, transforms, ways, limiters, rates, lanes } = prepared;
        let old = self.face.assembly();
        for (limiter, rate) in &rates {
            limiter.set(*rate);
        }
        let grace = loaded.config.agent.stop_grace;
        // Those that go make room first; what takes their place waits for nobody.
        for entry in &old.lanes {
            if Plan::of(&plan.lanes, &entry.id()) == Change::Removed {
                give_up(&entry.turns, grace, under_way);
            }
        }
        for entry in &old.sources {
            if Plan::of(&plan.sources, &entry.id) == Change::Removed {
                give_up(&entry.turns, grace, under_way);
            }
        }
        let kept = old.sources.iter().filter(|entry| {
            matches!(Plan::of(&plan.sources, &entry.id), Change::Kept | Change::Adjusted)
        });
        let mut entries: Vec<_> = kept.cloned().collect();
        let placed: Vec<_> = sources
            .into_iter()
            .map(|new| {
                let before = old.sources.iter().find(|entry| entry.id == new.id);
                self.next_source(new, before, grace, under_way)
            })
            .collect();
        let restarted: Vec<_> = placed.iter().map(|(entry, _)| entry.id.clone()).collect();
        entries.extend(placed.iter().map(|(entry, _)| Arc::clone(entry)));
        // In the order of the config.
        let place = |entry: &Arc<SourceEntry>| {
            plan.sources.iter().position(|planned| planned.id == entry.id)
        };
        entries.sort_by_key(place);
        let lanes = lanes
            .into_iter()
            .map(|(id, parts)| {
                let before = old.lanes.iter().find(|entry| entry.id() == id);
                // One that ended with its source goes on with it.
                let is_over = before.is_some_and(|entry| {
                    restarted.contains(&id.source) && held(&entry.turns).is_closed()
                });
                match before {
                    Some(entry) if Plan::of(&plan.lanes, &id) == Change::Kept && !is_over => {
                        Arc::clone(entry)
                    }
                    _ => self.place_lane(&id, parts, before, &entries, grace, under_way),
                }
            })
            .collect();
        // Behind their lanes: a new lane that begins now begins before its source does.
        for (entry, turn) in placed {
            self.place_source(&entry, turn);
        }
        if let Some(logging) = &self.face.logging
            && plan.live.contains(&"log.level")
        {
            logging.set_level(loaded.config.log.level);
        }
        let next = Assembly { loaded, sources: entries, transforms, ways, limiters, lanes };
        self.face.go_over(next);
    }

    /// A source that is to run, and its turn.
    fn next_source(
        &self,
        new: NewSource,
        before: Option<&Arc<SourceEntry>>,
        grace: Duration,
        under_way: &UnderWay,
    ) -> (Arc<SourceEntry>, Turn<SourceOver>) {
        let NewSource { id, kind, mut source } = new;
        source.belongs_to(&self.face.opening.agent);
        let drain =
            before.map_or_else(|| Arc::new(watch::channel(false).0), |b| Arc::clone(&b.drain));
        drain.send_replace(false);
        let entry = Arc::new(SourceEntry {
            state: Mutex::new(match source.connected() {
                Some(_) => SourceState::Connecting,
                None => SourceState::Running,
            }),
            counters: source.counters(),
            turns: Mutex::new(before.map_or_else(|| relay::turns().0, |b| held(&b.turns))),
            drain,
            id,
            kind,
        });
        let task = SourceTask {
            source,
            entry: Arc::clone(&entry),
            journal: Arc::clone(&self.journal),
            once: self.face.once,
            patience: self.patience.subscribe(),
            clock: Arc::clone(&self.face.clock),
        };
        let whose = Arc::clone(&entry);
        let work: Work<SourceOver> =
            Box::new(move |stop| Box::pin(async move { (whose, task.run(stop).await) }));
        // Half of the time is for the lanes, as in a stop.
        (entry, Turn { work: Some(work), grace: grace / 2, under_way: under_way.clone() })
    }

    fn place_source(&mut self, entry: &Arc<SourceEntry>, turn: Turn<SourceOver>) {
        let missed = held(&entry.turns).try_send(turn).err();
        if let Some(turn) = missed {
            self.begin_source(entry, turn.into_inner());
        }
    }

    fn begin_source(&mut self, entry: &Arc<SourceEntry>, turn: Turn<SourceOver>) {
        let Some(work) = turn.work else { return };
        let (turns, receiver) = relay::turns();
        set(&entry.turns, turns);
        let span = tracing::error_span!("source", id = %entry.id);
        let relay = relay::run(work, receiver, self.source_shutdown.clone());
        self.sources.spawn(entry.id.to_string(), span, relay);
    }

    /// A turn came when the source's relay had ended by itself.
    pub(super) fn take_up_source(&mut self, name: &str, turn: Turn<SourceOver>) {
        let assembly = self.face.assembly();
        if let Some(entry) = assembly.sources.iter().find(|entry| entry.id.as_str() == name) {
            self.begin_source(entry, turn);
        }
    }

    fn place_lane(
        &mut self,
        id: &LaneId,
        parts: LaneParts,
        before: Option<&Arc<LaneEntry>>,
        sources: &[Arc<SourceEntry>],
        grace: Duration,
        under_way: &UnderWay,
    ) -> Arc<LaneEntry> {
        let entry = Arc::new(LaneEntry {
            // What was ordered, and what was counted, is the lane's.
            status: before.map(|entry| Arc::clone(&entry.status)).unwrap_or_default(),
            desk: before.map(|entry| Arc::clone(&entry.desk)).unwrap_or_default(),
            turns: Mutex::new(before.map_or_else(|| relay::turns().0, |b| held(&b.turns))),
            parts: parts.clone(),
        });
        let drain = sources.iter().find(|source| source.id == id.source);
        let drain =
            drain.map_or_else(|| watch::channel(false).1, |source| source.drain.subscribe());
        let (journal, status) = (Arc::clone(&self.journal), Arc::clone(&entry.status));
        let desk = Arc::clone(&entry.desk);
        let work: Work<LaneEnd> = Box::new(move |shutdown| {
            Box::pin(crate::lane::run(
                parts,
                journal,
                LaneControl { shutdown, drain, desk },
                status,
            ))
        });
        let turn = Turn { work: Some(work), grace, under_way: under_way.clone() };
        let missed = held(&entry.turns).try_send(turn).err();
        if let Some(turn) = missed {
            self.begin_lane(&entry, turn.into_inner());
        }
        entry
    }

    fn begin_lane(&mut self, entry: &Arc<LaneEntry>, turn: Turn<LaneEnd>) {
        let Some(work) = turn.work else { return };
        let (turns, receiver) = relay::turns();
        set(&entry.turns, turns);
        let name = entry.id().to_string();
        let span = tracing::error_span!("lane", id = %name);
        let (shutdown, desk) = (self.lane_shutdown.clone(), Arc::clone(&entry.desk));
        self.lanes.spawn(name, span, async move {
            let over = relay::run(work, receiver, shutdown).await;
            // Whoever waits for it hears of it, unless it goes on.
            if over.missed.is_none() {
                desk.end();
            }
            over
        });
    }

    /// A turn came when the lane's relay had ended by itself.
    pub(super) fn take_up_lane(&mut self, name: &str, turn: Turn<LaneEnd>) {
        let assembly = self.face.assembly();
        if let Some(entry) = assembly.lanes.iter().find(|entry| entry.id().to_string() == name) {
            self.begin_lane(entry, turn);
        }
    }
}

/// Has the worker stop, for good. One that has ended by itself hears nothing.
fn give_up<T>(turns: &Mutex<Turns<T>>, grace: Duration, under_way: &UnderWay) {
    let turn = Turn { work: None, grace, under_way: under_way.clone() };
    let _ended = held(turns).try_send(turn);
}

fn held<T>(turns: &Mutex<Turns<T>>) -> Turns<T> {
    turns.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn set<T>(turns: &Mutex<Turns<T>>, new: Turns<T>) {
    *turns.lock().unwrap_or_else(PoisonError::into_inner) = new;
}
