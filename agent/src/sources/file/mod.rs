//! The source that reads files: to their end once, or following them.
//!
//! - A file is read from where its position says, which moves in the same append as its records.
//! - What a record is says `framing` (`split`): a line, several lines, a JSON document, or the whole file.
//! - Following, a line counts when its newline is there. With `--once`, a last line without one is a record; its position
//!   stands behind it, so what is added to that line later becomes a record of its own. A record of several lines is complete when the
//!   next one begins, or when nothing was added for two seconds.
//! - Of a line, what only marks its ends is left out: a carriage return in front of the newline, a byte order mark at the
//!   start of the file, and NULs at the start of the line, which are a hole that a writer left that goes on at its old place in a file that was cut.
//! - A file whose first bytes are those of gzip or zstd is expanded, once it has not changed for two seconds. One archive is expanded at a time. Of a
//!   damaged one the records before the damage are kept, once, and the file is in trouble until it changes.
//! - A renamed file stays the same file, and is read to its end if it stays in its folder, or was open. One that was cut, or written anew in place, is read from its first byte. A copy of
//!   a log that is then cut is read on where the log was read, and so is an archive of it (`copies`); other copies are other files.
//! - A removed file that is open is read to its end, and closed. At most `FILES_OPEN_MAX` are open, also while the journal takes nothing.
//! - A file that is taken as a whole is read once it has not changed for two seconds. One that was changed since is another record. `after_read` says what becomes of it (`after`).
//! - `start_at = "end"` is about the files that are there when the source runs for the first time. Files that come later
//!   begin at their first byte, so that a rotation loses nothing.
//! - A pattern without a file is warned of at the start. With `--once` it is something left undone, as is a file that cannot
//!   be read.
//! - The subject comes from the path under which a file was first seen, also after it was renamed.
//! - The time of a record is when it was read.

mod after;
pub mod config;
mod copies;
mod follow;
mod identity;
mod input;
mod renamed;
mod split;
mod tail;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;

use self::config::{FileSourceConfig, Framing};
use self::follow::{Follower, SUBJECT_FIELDS};
use self::split::Format;
use self::tail::{Interrupted, Outlet, Reading};
use super::collect::Collector;
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::journal::Appender;
use crate::limits::READ_BLOCK_BYTES;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// When open files are looked at again after there was something to read.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The most that this grows to while there is nothing: each look wakes the machine.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// Appends that may be gathered while one is being handed over.
const APPENDS_AHEAD: usize = 2;

pub(super) struct FileSource {
    id: SourceId,
    config: FileSourceConfig,
    patterns: Vec<glob::Pattern>,
    subject: Template,
    format: Arc<Format>,
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
        let format = match (&config.multiline, config.framing) {
            (Some(start), _) => {
                let start = regex::bytes::Regex::new(start).map_err(|error| {
                    SourceError::Multiline { source_id: id.clone(), error: Box::new(error) }
                })?;
                Format::Multiline(start)
            }
            (None, Framing::Lines) => Format::Lines,
            (None, Framing::Json) => Format::Json,
            (None, Framing::Whole) => Format::Whole,
        };
        let format = Arc::new(format);
        let (config, options) = (config.clone(), options.clone());
        let counters = Arc::clone(&options.counters);
        Ok(Self { id, config, patterns, subject, format, options, counters })
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
            format: Arc::clone(&self.format),
            gone: Vec::new(),
        };
        Follower::new(
            self.id.clone(),
            self.patterns.clone(),
            self.subject.clone(),
            &self.config,
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
        let mut pause = LOOK_EVERY;
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
                pause = LOOK_EVERY;
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
                Ok(false) | Err(Interrupted::Cut | Interrupted::Early | Interrupted::File(_)) => {}
                // Only when the receiver is dropped, and it was not.
                Err(Interrupted::Closed) => continue,
            }
            feed.drain().await?;
            // Reading once, there is another pass when files are to be deleted or moved.
            if follower.all_is_durable() && self.options.once {
                continue;
            }
            if self.options.once {
                let unread = follower.unread();
                return Ok(if unread.is_empty() {
                    Finished::End
                } else {
                    Finished::Partly(unread)
                });
            }
            shutdown.sleep(pause).await;
            pause = LOOK_EVERY_MAX.min(pause * 2);
        }
    }
}

#[cfg(test)]
mod tests;
