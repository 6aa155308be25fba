//! Lanes that the config has not: one is dropped, or goes on as a lane that the config has.
//!
//! Carried out between reloads, by the task that carries those out: no lane comes to the config, or goes, meanwhile.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::Handle;
use super::error::OrderError;
use super::handle::{Face, LaneEntry, Wish, lane_name};
use super::status::OrphanView;
use crate::config::{self, Change, Plan};
use crate::journal::{LaneOrdered, LaneSnapshot, LaneTarget};

/// What is to be done about a lane, and who waits for it.
#[derive(Debug)]
pub(super) struct LaneWish {
    lane: String,
    /// The lane that it is to go on as; none: it is dropped.
    target: Option<String>,
    answer: oneshot::Sender<Result<LaneOrdered, OrderError>>,
}

impl Handle {
    /// Drops a lane that the config has not, for good; what waits in it is lost.
    ///
    /// # Errors
    /// When the config has it, there is no such lane, or the journal fails.
    ///
    /// # Cancel safety
    /// Dropped, it is carried out all the same.
    pub async fn drop_lane(&self, lane: &str) -> Result<LaneOrdered, OrderError> {
        self.order_lane(lane, None).await
    }

    /// Has a lane that the config has not go on as one that the config has, and that has not begun.
    ///
    /// # Errors
    /// When the config has it or has no such target, the target has begun, or the journal fails.
    ///
    /// # Cancel safety
    /// Dropped, it is carried out all the same.
    pub async fn move_lane(&self, lane: &str, target: &str) -> Result<LaneOrdered, OrderError> {
        self.order_lane(lane, Some(target.to_owned())).await
    }

    async fn order_lane(
        &self,
        lane: &str,
        target: Option<String>,
    ) -> Result<LaneOrdered, OrderError> {
        if self.0.once {
            return Err(OrderError::Once);
        }
        let (answer, answered) = oneshot::channel();
        let wish = Wish::Lane(LaneWish { lane: lane.to_owned(), target, answer });
        self.0.wishes.send(wish).await.map_err(|_| OrderError::Stopping)?;
        answered.await.unwrap_or(Err(OrderError::Stopping))
    }
}

/// Carries out an order, and answers it.
pub(super) async fn carry_out(face: &Face, wish: LaneWish) {
    let LaneWish { lane, target, answer } = wish;
    let ordered = match target {
        None => drop_lane(face, &lane).await,
        Some(target) => move_lane(face, &lane, &target).await,
    };
    // Whoever asked may have given up waiting.
    let _unheard = answer.send(ordered);
}

async fn drop_lane(face: &Face, lane: &str) -> Result<LaneOrdered, OrderError> {
    let _known = orphan(face, lane)?;
    Ok(face.journal.drop_lane(lane).await?)
}

async fn move_lane(face: &Face, lane: &str, target: &str) -> Result<LaneOrdered, OrderError> {
    let known = orphan(face, lane)?;
    let Some(entry) = entry(face, target) else {
        return Err(OrderError::NoTarget(target.to_owned()));
    };
    let id = entry.id();
    if id.source != known.source {
        let (old, new) = (known.source, id.source);
        return Err(OrderError::OtherSource { lane: lane.to_owned(), old, new });
    }
    let target = LaneTarget { source: id.source, pipeline: id.pipeline, sink: id.sink };
    let moved = face.journal.move_lane(lane, target).await?;
    // The lane that runs there opens itself anew, and finds what has been moved to it.
    let assembly = face.assembly();
    let mut plan = config::plan(assembly.config(), assembly.config(), &BTreeSet::new())
        .expect("a config does not differ from itself");
    for planned in plan.lanes.iter_mut().filter(|planned| planned.id == entry.id()) {
        planned.change = Change::Restarted;
    }
    let prepared = assembly.prepare(face, Arc::clone(&assembly.loaded), plan, Vec::new()).await;
    let gone_over = match prepared {
        Ok(prepared) => super::reload::go_over(face, prepared).await.is_ok(),
        Err(_) => false,
    };
    if !gone_over {
        tracing::warn!(lane, "Lane is moved, and goes on when the agent starts anew");
    }
    Ok(moved)
}

/// A lane of the journal that the config has not.
fn orphan(face: &Face, lane: &str) -> Result<LaneSnapshot, OrderError> {
    if let Some(entry) = entry(face, lane) {
        let id = entry.id();
        let (pipeline, sink) = (id.pipeline, id.sink);
        return Err(OrderError::InConfig { lane: lane.to_owned(), pipeline, sink });
    }
    let snapshot = face.snapshots.borrow().clone();
    let known = snapshot.lanes.iter().find(|known| known.name.as_str() == lane);
    known.cloned().ok_or_else(|| OrderError::UnknownLane(lane.to_owned()))
}

/// The lane of the config that has this name.
fn entry(face: &Face, lane: &str) -> Option<Arc<LaneEntry>> {
    let snapshot = face.snapshots.borrow().clone();
    let assembly = face.assembly();
    let is = |entry: &&Arc<LaneEntry>| {
        let mut known = snapshot.lanes.iter();
        let known = known.find(|known| entry.is(&known.source, &known.pipeline, &known.sink));
        lane_name(entry, known) == lane
    };
    assembly.lanes.iter().find(is).cloned()
}

/// Lanes in which records wait, and that a plan does not know.
pub(super) fn orphans(face: &Face, plan: &Plan) -> Vec<OrphanView> {
    let snapshot = face.snapshots.borrow().clone();
    let looks = face.looks();
    let is_planned = |lane: &LaneSnapshot| {
        let place = (&lane.source, &lane.pipeline, &lane.sink);
        plan.lanes
            .iter()
            .any(|known| (&known.id.source, &known.id.pipeline, &known.id.sink) == place)
    };
    let orphans = snapshot.lanes.iter().filter(|lane| lane.queued > 0 && !is_planned(lane));
    let views = orphans.map(|lane| OrphanView {
        name: lane.name.to_string(),
        queued: lane.queued,
        waiting: looks.of(&lane.name, lane.queued),
    });
    views.collect()
}

/// Looks up since when the records of lanes without a config wait, and says which lanes those are.
pub(super) async fn name_orphans(face: &Face) {
    let assembly = face.assembly();
    let snapshot = face.snapshots.borrow().clone();
    let runs = |lane: &LaneSnapshot| {
        assembly.lanes.iter().any(|entry| entry.is(&lane.source, &lane.pipeline, &lane.sink))
    };
    let orphans: Vec<_> =
        snapshot.lanes.iter().filter(|lane| lane.queued > 0 && !runs(lane)).cloned().collect();
    super::waiting::look(face).await;
    let looks = face.looks();
    for lane in &orphans {
        let oldest = looks.of(&lane.name, lane.queued).oldest;
        let age = oldest.map(|oldest| face.clock.now().since(oldest));
        tracing::warn!(
            lane = %lane.name, queued = lane.queued, oldest_s = age.map(|age| age.as_secs()),
            "Lane is in the journal and not in the config: its records stay until it is back, or \
             `waystation lane move` or `waystation lane drop` deals with it"
        );
    }
}
