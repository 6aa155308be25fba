//! The source that reads lines of files: to their end once, or following them.
//!
//! - A file is read from where its position says, which moves in the same append as its records.
//! - Following, a line counts when its newline is there. With `--once`, a last line without one is a record; its position
//!   stands behind it, so what is added to that line later becomes a record of its own.
//! - A renamed file stays the same file, and is read to its end if it stays in its folder, or was open. One that was cut, or written anew in place, is read from its first byte. A copy is
//!   another file.
//! - `start_at = "end"` is about the files that are there when the source runs for the first time. Files that come later
//!   begin at their first byte, so that a rotation loses nothing.
//! - A pattern without a file is warned of at the start. With `--once` it is something left undone, as is a file that cannot
//!   be read.
//! - The subject comes from the path under which a file was first seen, also after it was renamed.
//! - The time of a record is when it was read.

pub mod config;
mod follow;
mod identity;
mod renamed;
mod tail;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::config::FileSourceConfig;
use self::follow::{Follower, SUBJECT_FIELDS};
use self::tail::{Interrupted, Outlet, Reading};
use super::collect::Collector;
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::journal::Appender;
use crate::limits::READ_BLOCK_BYTES;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// How often open files are looked at when there was nothing to read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Appends that may be gathered while one is being handed over.
const APPENDS_AHEAD: usize = 2;

pub(super) struct FileSource {
    id: SourceId,
    config: FileSourceConfig,
    patterns: Vec<glob::Pattern>,
    subject: Template,
    options: SourceOptions,
    counters: Arc<SourceCounters>,
}

impl FileSource {
    pub(super) fn new(
        id: SourceId,
        config: &FileSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        let parse = |pattern: &String| {
            glob::Pattern::new(pattern).map_err(|error| SourceError::Pattern {
                source_id: id.clone(),
                pattern: pattern.clone(),
                error,
            })
        };
        let patterns = config.paths.iter().map(parse).collect::<Result<_, _>>()?;
        let subject = Template::parse(&config.subject, SUBJECT_FIELDS)
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?;
        let (config, options) = (config.clone(), options.clone());
        let counters = Arc::clone(&options.counters);
        Ok(Self { id, config, patterns, subject, options, counters })
    }

    fn follower(&self, appender: &Appender) -> Follower {
        let reading = Reading {
            clock: Arc::clone(&self.options.clock),
            collector: Collector::new(self.config.limits, Arc::clone(&self.counters))
                .timed(self.options.times.as_ref()),
            counters: Arc::clone(&self.counters),
            once: self.options.once,
            block: vec![0; READ_BLOCK_BYTES],
            long: Vec::new(),
        };
        Follower::new(
            self.id.clone(),
            self.patterns.clone(),
            self.subject.clone(),
            self.config.start_at,
            reading,
            appender.positions(),
        )
    }
}

#[async_trait]
impl Source for FileSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        // The files of the run before are looked at anew.
        self.counters.files_in_trouble.store(0, Ordering::Relaxed);
        let mut follower = self.follower(&appender);
        let mut feed = Feed::new(appender, Arc::clone(&self.counters));
        loop {
            let (sender, mut appends) = mpsc::channel(APPENDS_AHEAD);
            let (stop, span) = (shutdown.clone(), tracing::Span::current());
            let pass = tokio::task::spawn_blocking(move || {
                let outlet = Outlet { appends: &sender, shutdown: &stop };
                let more = span.in_scope(|| follower.pass(&outlet));
                (follower, more)
            });
            // When the journal takes nothing more, dropping the receiver ends the pass.
            while let Some(append) = appends.recv().await {
                feed.push(append).await?;
            }
            let (used, more) = pass
                .await
                .map_err(|error| SourceError::Died { source_id: self.id.clone(), error })?;
            follower = used;
            if shutdown.is_requested() {
                feed.drain().await?;
                return Ok(Finished::Stopped);
            }
            match more {
                Ok(true) => continue,
                Ok(false) | Err(Interrupted::Cut | Interrupted::File(_)) => {}
                // Only when the receiver is dropped, and it was not.
                Err(Interrupted::Closed) => continue,
            }
            feed.drain().await?;
            if self.options.once {
                let unread = follower.unread();
                return Ok(if unread.is_empty() {
                    Finished::End
                } else {
                    Finished::Partly(unread)
                });
            }
            shutdown.sleep(LOOK_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests;
