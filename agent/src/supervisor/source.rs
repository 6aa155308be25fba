//! One source as a task: run, and after an early end run again from what is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::handle::SourceEntry;
use super::status::SourceState;
use crate::backoff::{Backoff, Jitter};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::error_chain::Chain;
use crate::journal::{AppendError, Disposition, Journal};
use crate::sources::{Finished, Source, SourceError};
use crate::tasks::Shutdown;

const BACKOFF_MS: (u64, u64) = (200, 30_000);
/// A run that lasted this long is not counted with the failures before it.
const GOOD_RUN: Duration = Duration::from_secs(60);
/// With `--once` somebody waits for the end: after this many failures in a row that nothing but somebody's doing can change,
/// the source is given up.
const ONCE_FAILURES_MAX: u32 = 5;

/// How a source ended.
#[derive(Debug)]
pub(super) enum SourceEnd {
    /// It was read to its end, and everything is durable.
    Finished,
    /// The same, but for these.
    Partly(Vec<String>),
    /// It was asked to stop.
    Stopped,
    /// It was given up, or something that it read is not durable.
    Failed(String),
}

/// Everything that one source's task owns.
pub(super) struct SourceTask {
    /// Kept over all runs, with what it could not save.
    pub(super) source: Box<dyn Source>,
    pub(super) entry: Arc<SourceEntry>,
    pub(super) journal: Arc<Journal>,
    pub(super) once: bool,
    /// With `--once`: how long it may fail before it is given up; `None` is for ever.
    pub(super) patience: watch::Receiver<Option<Duration>>,
    pub(super) clock: SharedClock,
}

/// Failures in a row.
struct Failing {
    count: u32,
    since: Timestamp,
    began: Monotonic,
}

impl SourceTask {
    pub(super) async fn run(mut self, shutdown: Shutdown) -> SourceEnd {
        let (base, max) = BACKOFF_MS;
        let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
        let backoff = Backoff::new(base, max, Jitter::Full).expect("the constants are in order");
        let mut failing: Option<Failing> = None;
        loop {
            let (began, records) = (self.clock.monotonic(), self.records());
            let error = match self.session(&shutdown).await {
                Ok(finished) => return self.finished(finished),
                Err(error) => error,
            };
            let now = self.clock.monotonic();
            let is_progress = self.records() > records && !error.is_contest();
            if is_progress || now.since(began) > GOOD_RUN {
                failing = None;
            }
            let since = self.clock.now();
            let failing = failing.get_or_insert(Failing { count: 0, since, began: now });
            failing.count += 1;
            let reason = Chain(&error).to_string();
            self.entry.set(SourceState::Failed { reason: reason.clone(), since: failing.since });
            if failing.count == 1 {
                tracing::error!(error = reason, "Source failed, it goes on from what is durable");
            } else {
                tracing::debug!(error = reason, failures = failing.count, "Source failed again");
            }
            let left = self.patience.borrow().map(|p| p.saturating_sub(now.since(failing.began)));
            let hopeless = !may_pass(&error);
            if self.once
                && (left.is_some_and(|left| left.is_zero())
                    || hopeless && failing.count >= ONCE_FAILURES_MAX)
            {
                return self.failed(reason);
            }
            let wait = backoff.wait(failing.count);
            if !shutdown.sleep(left.map_or(wait, |left| left.min(wait))).await {
                return self.last_try(reason, &shutdown).await;
            }
        }
    }

    fn records(&self) -> u64 {
        self.entry.counters.records.load(Ordering::Relaxed)
    }

    fn finished(&self, finished: Finished) -> SourceEnd {
        let (state, end) = match finished {
            Finished::End => (SourceState::Finished, SourceEnd::Finished),
            Finished::Partly(unread) => (SourceState::Finished, SourceEnd::Partly(unread)),
            Finished::Stopped => (SourceState::Stopped, SourceEnd::Stopped),
        };
        self.entry.set(state);
        end
    }

    /// Asked to stop after a failure: what only the source still has is handed in once more.
    async fn last_try(mut self, reason: String, shutdown: &Shutdown) -> SourceEnd {
        if self.source.unsaved() == 0 {
            return self.finished(Finished::Stopped);
        }
        match self.session(shutdown).await {
            Ok(finished) => self.finished(finished),
            Err(_) => self.failed(reason),
        }
    }

    fn failed(&self, reason: String) -> SourceEnd {
        SourceEnd::Failed(match self.source.unsaved() {
            0 => reason,
            records => format!("{records} records that were read are lost: {reason}"),
        })
    }

    async fn session(&mut self, shutdown: &Shutdown) -> Result<Finished, SourceError> {
        let appender = self
            .journal
            .appender(&self.entry.id)
            .await
            .map_err(|source| AppendError::Journal { source_id: self.entry.id.clone(), source })?;
        let connected = self.source.connected();
        let run = self.source.run(appender, shutdown.clone());
        if let Some(mut connected) = connected {
            // Until then it is what it was before: connecting, or failed for a reason that still stands.
            tokio::pin!(run);
            tokio::select! {
                biased;
                result = &mut run => return result,
                Ok(_) = connected.wait_for(|connected| *connected) => {}
            }
            self.entry.set(SourceState::Running);
            return run.await;
        }
        self.entry.set(SourceState::Running);
        run.await
    }
}

/// Whether the same may work later without anybody's doing.
fn may_pass(error: &SourceError) -> bool {
    match error {
        SourceError::Append(AppendError::Journal { source, .. }) => {
            source.disposition() == Disposition::Retry
        }
        _ => false,
    }
}
