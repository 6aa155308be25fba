//! What an operator may order a running agent to do. What is ordered is not kept over a stop: a pause ends with the process.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Handle;
use super::error::OrderError;
use super::handle::{LaneEntry, lane_name};
use super::status::LaneView;
use crate::journal::{Discarded, JournalError, LaneSnapshot};
use crate::lane::replay::{self, Plan, PlanBounds, Replayed, Selection};
use crate::lane::{Resolution, ResolveError};
use crate::record::id::LaneName;

impl Handle {
    /// Has a lane hold after the attempt that is under way, until it is resumed or the agent ends.
    ///
    /// # Errors
    /// [`OrderError::UnknownLane`].
    pub fn pause(&self, lane: &str) -> Result<(), OrderError> {
        self.entry(lane)?.desk.pause();
        Ok(())
    }

    /// Ends a pause, and has a lane that waits try again at once.
    ///
    /// # Errors
    /// [`OrderError::UnknownLane`].
    pub fn resume(&self, lane: &str) -> Result<(), OrderError> {
        self.entry(lane)?.desk.resume();
        Ok(())
    }

    /// Decides about the batch that a lane holds for.
    ///
    /// # Errors
    /// When there is no such lane, or it holds for nothing that is to be decided.
    pub async fn resolve(&self, lane: &str, resolution: Resolution) -> Result<(), OrderError> {
        let resolved = self.entry(lane)?.desk.resolve(resolution).await;
        resolved.map_err(|source| OrderError::Lane { lane: lane.to_owned(), source })
    }

    /// Waits until all that one lane, or every lane, has taken before has its outcome; seals it without waiting for more.
    /// Gives the lanes of which that is not so when `timeout` is over, as they are then.
    ///
    /// # Errors
    /// [`OrderError::UnknownLane`].
    ///
    /// # Cancel safety
    /// Dropped, the records are sealed and delivered all the same.
    pub async fn flush(
        &self,
        lane: Option<&str>,
        timeout: Duration,
    ) -> Result<Vec<LaneView>, OrderError> {
        let entries = match lane {
            Some(lane) => vec![self.entry(lane)?],
            None => self.0.assembly().lanes.clone(),
        };
        let flushes = entries.iter().map(|entry| async move {
            let flushed = tokio::time::timeout(timeout, entry.desk.flush()).await;
            (entry, flushed.unwrap_or(Err(ResolveError::Ended)).is_ok())
        });
        let done = join_all(flushes).await;
        let left: Vec<_> = done.into_iter().filter(|(_, is_done)| !is_done).collect();
        let status = self.status();
        let is_left = |view: &LaneView| {
            let is = |entry: &LaneEntry| entry.is(&view.source, &view.pipeline, &view.sink);
            // A lane that has ended because it delivered everything has nothing left.
            view.queued > 0 && left.iter().any(|(entry, _)| is(entry))
        };
        Ok(status.lanes.into_iter().filter(is_left).collect())
    }

    /// Deletes dead letters by their ids, durably, and remembers who wanted it why. What a running lane is replaying is left.
    ///
    /// # Errors
    /// When the journal does not commit.
    pub async fn discard(
        &self,
        ids: Vec<i64>,
        note: Option<String>,
    ) -> Result<Discarded, OrderError> {
        Ok(self.0.journal.discard_letters(ids, note).await?)
    }

    /// Has a lane send dead letters again. Answered when they are sealed durably; what comes of them stands in the journal.
    ///
    /// # Errors
    /// When there is no such lane, it takes no replays now, or the journal fails.
    ///
    /// # Cancel safety
    /// Dropped, the order is carried out or not.
    pub async fn replay(&self, lane: &str, selection: Selection) -> Result<Replayed, OrderError> {
        // What is not to be sent at all need not wait for the lane.
        let plan = self.plan_replay(lane, selection.clone()).await?;
        if plan.batches.is_empty() {
            return Ok(Replayed { sealed: Vec::new(), left_out: plan.left_out });
        }
        let entry = self.entry(lane)?;
        let replayed = replay::order(&entry.desk, &entry.status, selection).await;
        replayed.map_err(|source| OrderError::Replay { lane: lane.to_owned(), source })
    }

    /// What such an order would come to now; nothing is changed.
    ///
    /// # Errors
    /// When there is no such lane, or the journal cannot be read.
    pub async fn plan_replay(&self, lane: &str, selection: Selection) -> Result<Plan, OrderError> {
        let entry = self.entry(lane)?;
        let checked = selection.check();
        checked.map_err(|source| OrderError::Replay { lane: lane.to_owned(), source })?;
        let journal = Arc::clone(&self.0.journal);
        let transforms = entry.parts.transforms.iter();
        let transforms: Vec<_> = transforms.map(|stage| stage.config.id.to_string()).collect();
        let bounds = PlanBounds::new(entry.parts.batch, journal.pace());
        let name = LaneName::stored(lane);
        let plan = move || replay::plan(&journal, &name, &transforms, bounds, &selection);
        let planned = tokio::task::spawn_blocking(plan).await;
        Ok(planned.unwrap_or(Err(JournalError::Closed))?)
    }

    fn entry(&self, lane: &str) -> Result<Arc<LaneEntry>, OrderError> {
        let snapshot = self.0.snapshots.borrow().clone();
        let assembly = self.0.assembly();
        let entry = assembly.lanes.iter().find(|entry| {
            let is = |known: &&LaneSnapshot| entry.is(&known.source, &known.pipeline, &known.sink);
            lane_name(entry, snapshot.lanes.iter().find(is)) == lane
        });
        entry.cloned().ok_or_else(|| OrderError::UnknownLane(lane.to_owned()))
    }
}
