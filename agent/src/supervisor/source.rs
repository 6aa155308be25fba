//! One source as a task: run, and after an early end run anew from the positions that are durable.

use std::sync::Arc;
use std::time::Duration;

use super::handle::SourceEntry;
use super::status::SourceState;
use crate::backoff::{Backoff, Jitter};
use crate::clock::SharedClock;
use crate::error_chain::Chain;
use crate::journal::Journal;
use crate::sources::config::SourceConfig;
use crate::sources::{Finished, SourceError, SourceOptions};
use crate::tasks::Shutdown;

const BACKOFF_MS: (u64, u64) = (200, 30_000);
/// With `--once` somebody waits for the end: after this many failures in a row the source is given up.
const ONCE_FAILURES_MAX: u32 = 5;

/// How a source ended.
#[derive(Debug)]
pub(super) enum SourceEnd {
    /// It was read to its end, and everything is durable.
    Finished,
    /// It was asked to stop.
    Stopped,
    /// With `--once`: it failed too often.
    Failed(String),
}

/// Everything that one source's task owns.
pub(super) struct SourceTask {
    pub(super) config: SourceConfig,
    pub(super) entry: Arc<SourceEntry>,
    pub(super) journal: Arc<Journal>,
    pub(super) once: bool,
    pub(super) clock: SharedClock,
    pub(super) shutdown: Shutdown,
}

impl SourceTask {
    pub(super) async fn run(self) -> SourceEnd {
        let (base, max) = BACKOFF_MS;
        let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
        let backoff = Backoff::new(base, max, Jitter::Full).expect("the constants are in order");
        let mut failures = 0;
        loop {
            let error = match self.session().await {
                Ok(Finished::End) => {
                    self.entry.set(SourceState::Finished);
                    return SourceEnd::Finished;
                }
                Ok(Finished::Stopped) => {
                    self.entry.set(SourceState::Stopped);
                    return SourceEnd::Stopped;
                }
                Err(error) => error,
            };
            // One that has brought something in begins with the shortest pause.
            if self.entry.records() > 0 {
                failures = 0;
            }
            failures += 1;
            let reason = Chain(&*error).to_string();
            let failed = SourceState::Failed { reason: reason.clone(), since: self.clock.now() };
            if self.entry.set(failed) {
                tracing::error!(
                    error = reason,
                    "Source failed, it starts anew from what is durable"
                );
            }
            if self.once && failures >= ONCE_FAILURES_MAX {
                return SourceEnd::Failed(reason);
            }
            if !self.shutdown.sleep(backoff.wait(failures)).await {
                return SourceEnd::Stopped;
            }
        }
    }

    async fn session(&self) -> Result<Finished, Box<dyn std::error::Error + Send + Sync>> {
        let appender = self.journal.appender(&self.config.id).await?;
        let options = SourceOptions { once: self.once, clock: Arc::clone(&self.clock) };
        let source = crate::sources::build(&self.config, &options)?;
        self.entry.count_with(source.counters());
        self.entry.set(SourceState::Running);
        let ran: Result<Finished, SourceError> = source.run(appender, self.shutdown.clone()).await;
        Ok(ran?)
    }
}
