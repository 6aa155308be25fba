//! Reads the lines of one file, from where it was left.
//!
//! Nothing of an unfinished line is kept in memory, only how far it was searched for its end; a line that spans two blocks
//! is read again as a whole once its end is found. So the memory of a file is bounded, however long its lines are, and a
//! long line that grows slowly is searched once.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc::Sender;

use super::identity::{Check, FileId, Saved};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::journal::Append;
use crate::limits::{FILE_TURN_BYTES, READ_BLOCK_BYTES};
use crate::record::Headers;
use crate::sources::SourceCounters;
use crate::sources::collect::{Collector, Line};
use crate::tasks::Shutdown;

/// What all files of a source share while one of them is read.
pub(super) struct Reading {
    pub(super) clock: SharedClock,
    pub(super) collector: Collector,
    pub(super) counters: std::sync::Arc<SourceCounters>,
    pub(super) once: bool,
    /// The block being read.
    pub(super) block: Vec<u8>,
    /// A line that does not stand in one block.
    pub(super) long: Vec<u8>,
}

/// Where appends go, and who may end the reading.
pub(super) struct Outlet<'a> {
    pub(super) appends: &'a Sender<Append>,
    pub(super) shutdown: &'a Shutdown,
}

/// Why a file is not read on for now.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// Its own trouble; the other files go on.
    File(io::Error),
    /// It was cut while it was read; the next look at it starts anew.
    Cut,
    /// Nobody takes appends any more.
    Closed,
}

impl From<io::Error> for Interrupted {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl Outlet<'_> {
    /// Sends what was gathered; waits while the journal is behind.
    pub(super) fn send(&self, collector: &mut Collector) -> Result<(), Interrupted> {
        match collector.take() {
            Some(append) => self.appends.blocking_send(append).map_err(|_| Interrupted::Closed),
            None => Ok(()),
        }
    }
}

/// Size and time of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp(u64, i64, i64);

impl Stamp {
    pub(super) fn of(meta: &Metadata) -> Self {
        Self(meta.size(), meta.mtime(), meta.mtime_nsec())
    }
}

/// One file that is followed.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) id: FileId,
    /// Where it was first seen.
    pub(super) first_path: String,
    /// Where it was last seen.
    pub(super) path: PathBuf,
    pub(super) subject: String,
    pub(super) file: Option<File>,
    /// Start of the line that comes next.
    pub(super) offset: u64,
    /// There is no newline from `offset` to here.
    searched: u64,
    pub(super) check: Check,
    /// The offset that was last set as position.
    positioned: Option<u64>,
    /// How it was when it was last read to its end.
    pub(super) unchanged: Option<Stamp>,
    /// Whether there may be something to read, so that it is worth opening.
    pub(super) due: bool,
    /// Reading once: where the file ended when it was first looked at.
    until: Option<u64>,
    /// Whether the last scan has found it.
    pub(super) matched: bool,
    /// When it last gave a byte, or was opened.
    pub(super) active: Monotonic,
    /// The trouble that was last warned of.
    pub(super) trouble: Option<String>,
}

impl Tail {
    /// A file at a position. Whether the position is this file's is settled when it is read.
    pub(super) fn new(id: FileId, path: PathBuf, subject: String, saved: Saved) -> Self {
        Self {
            id,
            first_path: saved.path,
            path,
            subject,
            file: None,
            offset: saved.offset,
            searched: saved.offset,
            check: saved.check,
            positioned: Some(saved.offset),
            unchanged: None,
            due: true,
            until: None,
            matched: true,
            active: Monotonic(0),
            trouble: None,
        }
    }

    pub(super) fn saved(&self) -> Saved {
        Saved { path: self.first_path.clone(), offset: self.offset, check: self.check.clone() }
    }

    /// Reads up to one turn. Returns whether there may be more at once.
    pub(super) fn read(
        &mut self,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let Some(file) = self.file.take() else { return Ok(false) };
        let result = self.read_turn(&file, reading, outlet);
        self.position(&file, &mut reading.collector);
        self.file = Some(file);
        result
    }

    fn read_turn(
        &mut self,
        file: &File,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let meta = file.metadata()?;
        let now = Stamp::of(&meta);
        if self.unchanged == Some(now) {
            return Ok(false);
        }
        if meta.size() < self.offset || !self.check.holds(file, self.offset)? {
            self.restart(reading);
        }
        if meta.size() < self.searched {
            self.searched = self.offset;
        }
        let until = *self.until.get_or_insert(meta.size());
        self.active = reading.clock.monotonic();
        for _ in 0..FILE_TURN_BYTES / READ_BLOCK_BYTES {
            if outlet.shutdown.is_requested() || (reading.once && self.offset >= until) {
                return Ok(false);
            }
            let mut block = std::mem::take(&mut reading.block);
            let read = match file.read_at(&mut block, self.searched) {
                Ok(0) => {
                    // Everything before this moment's end was read; a change since then is seen the next time.
                    self.unchanged = Some(now);
                    if reading.once {
                        self.unfinished(file, reading, outlet).map(|()| 0)
                    } else {
                        Ok(0)
                    }
                }
                Ok(count) => self.lines(file, &block[..count], reading, outlet).map(|()| count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(1),
                Err(error) => Err(error.into()),
            };
            reading.block = block;
            if read? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// It was cut, or is another file than it was: all of it is new.
    fn restart(&mut self, reading: &Reading) {
        tracing::info!(path = %self.path.display(), "File was written anew and is read from its first byte");
        reading.counters.files_restarted.fetch_add(1, Ordering::Relaxed);
        self.offset = 0;
        self.searched = 0;
        self.check = Check::default();
    }

    fn lines(
        &mut self,
        file: &File,
        block: &[u8],
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let time = reading.clock.now();
        let base = self.searched;
        let mut ends = memchr::memchr_iter(b'\n', block);
        let mut at = 0;
        if self.offset < base {
            let Some(end) = ends.next() else {
                self.searched = base + block.len() as u64;
                return Ok(());
            };
            self.long_line(file, base + end as u64, time, reading, outlet)?;
            at = end + 1;
            self.offset = base + at as u64;
        }
        for end in ends {
            let line = &block[at..end];
            self.room(file, line.len(), reading, outlet)?;
            self.line(line, line.len() as u64, time, &mut reading.collector);
            at = end + 1;
            self.offset = base + at as u64;
        }
        self.searched = base + block.len() as u64;
        Ok(())
    }

    /// A line that began before the block: from `offset` to `end`.
    fn long_line(
        &mut self,
        file: &File,
        end: u64,
        time: Timestamp,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let size = end - self.offset;
        let head = usize::try_from(size).unwrap_or(usize::MAX);
        let head = head.min(reading.collector.record_bytes_max());
        self.room(file, head, reading, outlet)?;
        let mut long = std::mem::take(&mut reading.long);
        long.resize(head, 0);
        let read = file.read_exact_at(&mut long, self.offset);
        // What was searched before must still be one line; else it was written anew since.
        let read = read.map(|()| memchr::memchr(b'\n', &long).is_none());
        if matches!(read, Ok(true)) {
            self.line(&long, size, time, &mut reading.collector);
        }
        // One long line must not hold its memory for ever.
        long.clear();
        long.shrink_to(READ_BLOCK_BYTES);
        reading.long = long;
        match read {
            Ok(true) => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
            Ok(false) | Err(_) => {
                self.unchanged = None;
                self.searched = self.offset;
                Err(Interrupted::Cut)
            }
        }
    }

    /// Reading once: a last line without a newline is a record.
    fn unfinished(
        &mut self,
        file: &File,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        if self.searched > self.offset {
            let (end, time) = (self.searched, reading.clock.now());
            self.long_line(file, end, time, reading, outlet)?;
            self.offset = end;
        }
        Ok(())
    }

    /// Makes room for a line, with the position in front of it.
    fn room(
        &mut self,
        file: &File,
        line_bytes: usize,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        if !reading.collector.has_room(line_bytes, self.subject.len()) {
            self.position(file, &mut reading.collector);
            outlet.send(&mut reading.collector)?;
        }
        Ok(())
    }

    fn line(&self, line: &[u8], size: u64, time: Timestamp, collector: &mut Collector) {
        let head = &line[..line.len().min(collector.record_bytes_max())];
        let headers = Headers::default();
        let line = Line { time, subject: &self.subject, headers, head, size };
        collector.line(line, || format!("{}, byte {}", self.path.display(), self.offset));
    }

    /// Sets the position of everything up to `offset`, if that has moved.
    fn position(&mut self, file: &File, collector: &mut Collector) {
        if self.positioned == Some(self.offset) {
            return;
        }
        self.check = match Check::of(file, self.offset, &self.check) {
            Ok(check) => check,
            // It was cut since: a check that never holds makes it read from its first byte.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.unchanged = None;
                Check::never()
            }
            // The lines are on their way, so their position must be, too.
            Err(_) => self.check.without_tail(),
        };
        collector.position(self.id.key(), Some(self.saved().to_bytes()));
        self.positioned = Some(self.offset);
    }

    /// Begins at the end of the file as it is: what is in it is not wanted.
    pub(super) fn skip_to_end(&mut self, file: &File, collector: &mut Collector) -> io::Result<()> {
        self.offset = file.metadata()?.len();
        self.searched = self.offset;
        self.positioned = None;
        self.position(file, collector);
        Ok(())
    }
}
