//! Reads journalctl's output on a thread of its own, and makes appends of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::fs::{Access, access};
use tokio::sync::mpsc;

use super::KEY;
use super::child::{Journalctl, Output};
use super::config::JournaldSourceConfig;
use super::entry;
use super::error::JournaldError;
use super::export::{Decoder, Entry, Name};
use crate::clock::SharedClock;
use crate::journal::Append;
use crate::limits::{JOURNALD_APPEND_BYTES, JOURNALD_NEWEST_MS_MAX, JOURNALD_READ_BYTES};
use crate::record::HeadersBuffer;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::sources::collect::{Collector, Line};
use crate::sources::config::StartAt;
use crate::sources::{SourceCounters, SourceOptions};
use crate::tasks::Shutdown;

/// How long a wait for output takes no notice of a request to stop.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Where appends go, and what ends the reading.
pub(super) struct Outlet {
    pub(super) appends: mpsc::Sender<Append>,
    pub(super) shutdown: Shutdown,
}

impl Outlet {
    fn is_closed(&self) -> bool {
        self.shutdown.is_requested() || self.appends.is_closed()
    }
}

pub(super) struct Reader {
    source: String,
    config: JournaldSourceConfig,
    template: Template,
    program: PathBuf,
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    collector: Collector,
    headers: HeadersBuffer,
    subject: String,
    buffer: Vec<u8>,
    /// The cursor of the entry that must come first, until one has come.
    expected: Option<String>,
    /// The cursor of the last entry that was taken, until it is handed over.
    cursor: Option<String>,
}

impl Reader {
    pub(super) fn new(
        id: &SourceId,
        config: &JournaldSourceConfig,
        template: Template,
        options: &SourceOptions,
        program: PathBuf,
    ) -> Self {
        let counters = Arc::clone(&options.counters);
        Self {
            source: id.to_string(),
            config: config.clone(),
            template,
            program,
            clock: Arc::clone(&options.clock),
            collector: Collector::new(config.limits, Arc::clone(&counters))
                .timed(options.times.as_ref()),
            counters,
            headers: HeadersBuffer::default(),
            subject: String::new(),
            buffer: vec![0; JOURNALD_READ_BYTES],
            expected: None,
            cursor: None,
        }
    }

    /// Reads on from what is saved, until it is to end.
    pub(super) fn run(
        &mut self,
        saved: Option<Vec<u8>>,
        outlet: &Outlet,
    ) -> Result<(), JournaldError> {
        let saved = saved.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let saved = match saved {
            None if self.config.start_at == StartAt::End => {
                let Some(newest) = self.newest(outlet)? else { return Ok(()) };
                self.cursor = Some(newest.clone());
                self.flush(outlet);
                newest
            }
            saved => saved.unwrap_or_default(),
        };
        self.warn_of_what_is_out_of_reach();
        let mut arguments = self.arguments();
        arguments.extend(["--follow".to_owned(), "--no-tail".to_owned()]);
        if !saved.is_empty() {
            arguments.push(format!("--cursor={saved}"));
            self.expected = Some(saved);
        }
        let mut child = Journalctl::start(&self.program, &arguments)?;
        let result = self.follow(&mut child, outlet);
        self.flush(outlet);
        match result? {
            Output::End => Err(child.ended()),
            Output::Bytes(_) | Output::Nothing => Ok(()),
        }
    }

    /// What journalctl is always asked for.
    fn arguments(&self) -> Vec<String> {
        let mut arguments =
            ["--quiet", "--no-pager", "--output=export", "--merge"].map(str::to_owned).to_vec();
        let fields = super::export::NAMES.iter().map(|(name, _)| *name);
        let fields: Vec<_> = fields.filter(|name| !name.starts_with("__")).collect();
        arguments.push(format!("--output-fields={}", fields.join(",")));
        arguments.extend(self.config.units.iter().map(|unit| format!("--unit={unit}")));
        match &self.config.directory {
            Some(directory) => arguments.push(format!("--directory={}", directory.display())),
            None => arguments.extend(machine_id().map(|id| format!("_MACHINE_ID={id}"))),
        }
        arguments
    }

    /// Takes entries until it is to end, or the output has.
    fn follow(&mut self, child: &mut Journalctl, outlet: &Outlet) -> Result<Output, JournaldError> {
        let mut decoder = Decoder::new(self.collector.record_bytes_max());
        let mut buffer = std::mem::take(&mut self.buffer);
        let (mut wait, mut has_told) = (NOW, false);
        while !outlet.is_closed() {
            let output = child.read(&mut buffer, &wait).map_err(JournaldError::Read)?;
            if !has_told && !child.said().is_empty() {
                has_told = true;
                tracing::warn!(said = child.said(), "journalctl has something to say");
            }
            let Output::Bytes(count) = output else {
                self.flush(outlet);
                wait = POLL;
                if output == Output::End {
                    return Ok(output);
                }
                continue;
            };
            wait = NOW;
            let mut rest = buffer.get(..count).unwrap_or_default();
            while let Some(entry) = decoder.next(&mut rest).map_err(JournaldError::Export)? {
                self.entry(entry, outlet);
            }
        }
        Ok(Output::Nothing)
    }

    fn entry(&mut self, entry: &Entry, outlet: &Outlet) {
        let Some(cursor) = entry.text(Name::Cursor) else { return };
        match self.expected.take() {
            Some(expected) if expected == cursor => return,
            Some(_) => {
                self.counters.gaps.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    "journald has given up the entry that was read last, and perhaps others behind it; reading goes on with what it has"
                );
            }
            None => {}
        }
        entry::render(&self.template, &self.source, entry, &mut self.subject);
        entry::write(entry, &mut self.headers);
        let time = entry::time(entry).unwrap_or_else(|| self.clock.now());
        let (head, size) =
            entry.get(Name::Message).map_or((&[][..], 0), |found| (&found.head[..], found.size));
        let beside = self.subject.len() + self.headers.as_headers().as_bytes().len();
        if !self.collector.has_room(head.len(), beside) {
            self.flush(outlet);
        }
        let headers = self.headers.as_headers();
        let line = Line { time, subject: &self.subject, headers, head, size };
        self.collector.message(line, || format!("journald, {cursor}"));
        self.cursor = Some(cursor.to_owned());
        if self.collector.gathered_bytes() >= JOURNALD_APPEND_BYTES {
            self.flush(outlet);
        }
    }

    /// Hands over what was gathered, with the cursor of its last entry.
    fn flush(&mut self, outlet: &Outlet) {
        if let Some(cursor) = self.cursor.take() {
            self.collector.position(KEY.to_owned(), Some(cursor.into_bytes()));
        }
        if let Some(append) = self.collector.take() {
            // When nobody takes it any more, the reading ends, and the next run reads it again.
            let _closed = outlet.appends.blocking_send(append);
        }
    }

    /// The cursor of the newest entry, or nothing where there is none; `None` when it is to end.
    fn newest(&self, outlet: &Outlet) -> Result<Option<String>, JournaldError> {
        let mut arguments = self.arguments();
        arguments.push("--lines=1".to_owned());
        let mut child = Journalctl::start(&self.program, &arguments)?;
        let mut decoder = Decoder::new(0);
        let mut buffer = vec![0; JOURNALD_READ_BYTES];
        let mut cursor = String::new();
        let began = self.clock.monotonic();
        while !outlet.is_closed() {
            match child.read(&mut buffer, &POLL).map_err(JournaldError::Read)? {
                Output::Bytes(count) => {
                    let mut rest = buffer.get(..count).unwrap_or_default();
                    while let Some(entry) =
                        decoder.next(&mut rest).map_err(JournaldError::Export)?
                    {
                        cursor = entry.text(Name::Cursor).unwrap_or_default().to_owned();
                    }
                }
                Output::End => {
                    return if child.has_succeeded() {
                        Ok(Some(cursor))
                    } else {
                        Err(child.ended())
                    };
                }
                Output::Nothing => {
                    let most = Duration::from_millis(JOURNALD_NEWEST_MS_MAX);
                    if self.clock.monotonic().since(began) > most {
                        let error = std::io::ErrorKind::TimedOut.into();
                        return Err(JournaldError::Read(error));
                    }
                }
            }
        }
        Ok(None)
    }

    /// journalctl says nothing of files that it may not read while there are others that it may.
    fn warn_of_what_is_out_of_reach(&self) {
        let (None, Some(id)) = (&self.config.directory, machine_id()) else { return };
        for root in ["/var/log/journal", "/run/log/journal"] {
            let path = Path::new(root).join(&id).join("system.journal");
            if path.exists() && access(&path, Access::READ_OK).is_err() {
                tracing::warn!(
                    path = %path.display(),
                    "Only a part of journald's entries can be read: put the user of the agent into the group systemd-journal"
                );
                return;
            }
        }
    }
}

/// This machine's id, as its entries have it.
fn machine_id() -> Option<String> {
    let id = fs::read_to_string("/etc/machine-id").ok()?;
    let id = id.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}
