//! The source that reads what journald keeps, by `journalctl`: each entry once.
//!
//! journalctl is the interface that systemd keeps stable: its files have changed from version to version, and its library is
//! another one on each host. It is asked for the export format, in which a field is what it is, however large and whatever
//! bytes it holds; its JSON leaves large fields out, or makes five bytes of each byte that is no text.
//!
//! 1. The cursor of the last entry of an append travels with it. A run begins with the entry that it names, which must be the first
//!    to come, and is left out. When another one comes first, journald has given that entry up, and perhaps others behind it: this
//!    is said and counted, and it goes on with what there is.
//! 2. `start_at = "end"` stores the newest cursor before anything is read; an empty one where there is no entry yet.
//! 3. journalctl is asked for all boots by `--merge`: with `--follow` alone it shows the last one only. That would bring other
//!    hosts' entries as well, where they are kept here, so it is asked for this machine's, unless `directory` says where.
//! 4. When the journal is full nothing is read, and journalctl waits. It is killed and waited for when the run ends. When the agent
//!    is killed it finds its output closed.

mod child;
pub mod config;
mod entry;
mod error;
mod export;
mod reader;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

pub use self::error::JournaldError;

use self::config::{JournaldSourceConfig, SUBJECT_FIELDS};
use self::reader::{Outlet, Reader};
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::journal::Appender;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// The key of the one position: the cursor of the last entry that is stored.
const KEY: &str = "cursor";
/// Appends that the reader may be ahead.
const APPENDS_AHEAD: usize = 2;

pub(super) struct JournaldSource {
    id: SourceId,
    config: JournaldSourceConfig,
    subject: Template,
    options: SourceOptions,
    program: PathBuf,
}

impl JournaldSource {
    pub(super) fn new(
        id: SourceId,
        config: &JournaldSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let subject = Template::parse(&config.subject, SUBJECT_FIELDS)
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?;
        let (config, options) = (config.clone(), options.clone());
        Ok(Self { id, config, subject, options, program: PathBuf::from("journalctl") })
    }
}

#[async_trait]
impl Source for JournaldSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.options.counters)
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let saved = appender.positions().get(KEY).cloned();
        let mut reader = Reader::new(
            &self.id,
            &self.config,
            self.subject.clone(),
            &self.options,
            self.program.clone(),
        );
        let mut feed = Feed::new(appender, Arc::clone(&self.options.counters));
        let (sender, mut appends) = mpsc::channel(APPENDS_AHEAD);
        let span = tracing::Span::current();
        let reading = tokio::task::spawn_blocking(move || {
            let outlet = Outlet { appends: sender, shutdown };
            span.in_scope(|| reader.run(saved, &outlet))
        });
        // When the journal takes nothing more, dropping the receiver ends the reader.
        loop {
            tokio::select! {
                append = appends.recv() => match append {
                    Some(append) => feed.push(append).await?,
                    None => break,
                },
                settled = feed.settled() => settled?,
            }
        }
        feed.drain().await?;
        let read = reading
            .await
            .map_err(|error| SourceError::Died { source_id: self.id.clone(), error })?;
        read.map_err(|error| SourceError::Journald { source_id: self.id.clone(), error })?;
        Ok(Finished::Stopped)
    }
}
