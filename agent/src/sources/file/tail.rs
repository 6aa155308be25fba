//! Reads the records of one file, from where it was left.
//!
//! Nothing of an unfinished record is kept in memory, only how far it was searched for its end; one that spans two blocks is
//! read again as a whole once its end is found (of an archive its first bytes are kept). So the memory of a file is bounded,
//! however long its lines are, and a long line that grows slowly is searched once.
//!
//! A file may be cut and written anew at any moment. So what was read before is looked at *after* each block was read: if it
//! is still there, the block follows it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::SeekFrom;
use tokio::sync::mpsc::Sender;

use super::identity::{Agreement, Check, FileId, Gone, Mark, Saved, Trail};
use super::input::Input;
use super::split::{Format, Search, is_space};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::journal::Append;
use crate::limits::{FILE_TURN_BYTES, READ_BLOCK_BYTES};
use crate::record::Headers;
use crate::sources::SourceCounters;
use crate::sources::collect::{Collector, Line};
use crate::tasks::Shutdown;

/// How long a file that is taken as a whole (an archive, or `framing = "whole"`) must have stayed as it is: whoever writes
/// it is let finish.
const SETTLED_AFTER: Duration = Duration::from_secs(2);
/// How long a file must have rested before the last of its records of several lines is taken for complete.
const LAST_LINES_AFTER: Duration = Duration::from_secs(2);
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What all files of a source share while one of them is read.
pub(super) struct Reading {
    pub(super) clock: SharedClock,
    pub(super) collector: Collector,
    pub(super) counters: std::sync::Arc<SourceCounters>,
    pub(super) once: bool,
    /// The block being read.
    pub(super) block: Vec<u8>,
    /// A record that does not stand in one block.
    pub(super) long: Vec<u8>,
    pub(super) format: Arc<Format>,
    /// Content that is not in its file any more, by the key of its position, which is set.
    pub(super) gone: Vec<(String, Saved)>,
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
    /// There are too few bytes to say what it is.
    Early,
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
    pub(super) fn parts(self) -> (u64, i64, i64) {
        (self.0, self.1, self.2)
    }

    pub(super) fn of(meta: &Metadata) -> Self {
        Self(meta.size(), meta.mtime(), meta.mtime_nsec())
    }
}

/// Whether it is settled that a file is no copy of content that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was not looked at.
    Open,
    /// It looks like a copy since then, or does not show yet what it is.
    Waiting(Monotonic, Option<Stamp>),
    /// It is read from its position.
    Settled,
}

/// One file that is followed.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) id: FileId,
    /// Where it was first seen.
    pub(super) first_path: String,
    /// Where it was last seen.
    pub(super) path: PathBuf,
    /// Where that led to, when it led over a link.
    pub(super) real: Option<String>,
    pub(super) subject: String,
    pub(super) input: Option<Input>,
    /// Start of the record that comes next.
    pub(super) offset: u64,
    /// No record ends between `offset` and here.
    searched: u64,
    search: Search,
    /// Of `offset`.
    pub(super) check: Check,
    /// The offset that was last set as position.
    positioned: Option<u64>,
    /// The mark of the last position.
    mark: Mark,
    /// How it was when it was last read to its end.
    pub(super) unchanged: Option<Stamp>,
    /// The same, of a file that ends and was read whole.
    pub(super) done: Option<Stamp>,
    /// How it was when the record of all of it became durable.
    pub(super) durable: Option<Stamp>,
    /// How it was when it was to be deleted or moved: that is tried once.
    pub(super) tried: Option<Stamp>,
    /// Since when it is as it is.
    settling: Option<(Stamp, Monotonic)>,
    /// Whether there may be something to read, so that it is worth opening.
    pub(super) due: bool,
    /// Whether there will be, after a while.
    pub(super) waits: bool,
    pub(super) verdict: Verdict,
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
        let done = saved.done.map(|(size, time, nanoseconds)| Stamp(size, time, nanoseconds));
        Self {
            id,
            first_path: saved.path,
            path,
            real: saved.real,
            subject,
            input: None,
            offset: saved.offset,
            searched: saved.offset,
            search: Search::default(),
            mark: saved.check.mark(saved.offset),
            check: saved.check,
            positioned: Some(saved.offset),
            unchanged: done,
            done,
            durable: None,
            tried: None,
            settling: None,
            due: true,
            waits: false,
            verdict: Verdict::Settled,
            until: None,
            matched: true,
            active: Monotonic(0),
            trouble: None,
        }
    }

    pub(super) fn saved(&self) -> Saved {
        Saved {
            path: self.first_path.clone(),
            offset: self.offset,
            check: self.check.clone(),
            real: self.real.clone(),
            gone: None,
            done: self.done.map(Stamp::parts),
        }
    }

    /// What was read, when it is not in this file any more: its key and position. `None` when nothing was.
    pub(super) fn gone(&self, cut: bool) -> Option<(String, Saved)> {
        if self.offset == 0 {
            return None;
        }
        let gone = Gone { path: self.path.to_string_lossy().into_owned(), cut };
        let saved = Saved { gone: Some(gone), done: None, ..self.saved() };
        Some((saved.content_key(self.id), saved))
    }

    /// Takes over where reading goes on in content that is known.
    pub(super) fn adopt(&mut self, saved: Saved, subject: String, collector: &mut Collector) {
        self.first_path = saved.path;
        self.subject = subject;
        self.begin_at(saved.offset, saved.check);
        self.set_position(collector);
        self.verdict = Verdict::Settled;
        self.due = true;
    }

    fn begin_at(&mut self, offset: u64, check: Check) {
        self.offset = offset;
        self.searched = offset;
        self.search = Search::default();
        self.mark = check.mark(offset);
        self.check = check;
        (self.positioned, self.unchanged, self.done) = (None, None, None);
    }

    pub(super) fn is_archive(&self) -> bool {
        self.input.as_ref().is_some_and(|input| input.coding.is_some())
    }

    pub(super) fn is_unpacking(&self) -> bool {
        self.input.as_ref().is_some_and(|input| input.unpacking.is_some())
    }

    /// Whether the file has stayed as it is for a while.
    pub(super) fn is_settled(&mut self, now: Stamp, reading: &Reading) -> bool {
        let time = reading.clock.monotonic();
        match self.settling {
            _ if reading.once => true,
            Some((stamp, since)) if stamp == now => time.since(since) >= SETTLED_AFTER,
            _ => {
                self.settling = Some((now, time));
                false
            }
        }
    }

    /// Reads up to one turn. Returns whether there may be more at once.
    pub(super) fn read(
        &mut self,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let Some(mut input) = self.input.take() else { return Ok(false) };
        let mut block = std::mem::take(&mut reading.block);
        let result = self.read_open(&mut input, &mut block, reading, outlet);
        reading.block = block;
        self.position(&mut reading.collector);
        self.input = Some(input);
        result
    }

    fn read_open(
        &mut self,
        input: &mut Input,
        block: &mut [u8],
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let meta = input.file.metadata()?;
        let now = Stamp::of(&meta);
        self.waits = false;
        if self.unchanged == Some(now) {
            return self.last_lines(input, reading, outlet).map(|()| false);
        }
        input.decide()?;
        let is_taken_whole = input.coding.is_some() || matches!(*reading.format, Format::Whole);
        if is_taken_whole && !self.is_settled(now, reading) {
            self.waits = true;
            return Ok(false);
        }
        self.active = reading.clock.monotonic();
        let read = self.begin(input, &meta, reading).and_then(|mut trail| {
            let read = self.read_turn(input, &mut trail, (now, block), reading, outlet);
            if let Some(unpacking) = &mut input.unpacking {
                unpacking.trail = trail;
            }
            read
        });
        match read {
            Err(Interrupted::Early) => Ok(false),
            Err(Interrupted::File(error)) if input.coding.is_some() => {
                input.unpacking = None;
                self.unchanged = Some(now);
                Err(Interrupted::File(self.damaged(&error)))
            }
            read => read,
        }
    }

    fn damaged(&self, error: &io::Error) -> io::Error {
        let at = self.searched;
        io::Error::other(if error.kind() == io::ErrorKind::UnexpectedEof {
            format!("the archive ends in the middle, behind {at} bytes of content")
        } else {
            format!("the archive is damaged behind {at} bytes of content: {error}")
        })
    }

    /// Makes sure that what was read is still there, and gives what stands in front of what comes next.
    fn begin(
        &mut self,
        input: &mut Input,
        meta: &Metadata,
        reading: &mut Reading,
    ) -> Result<Trail, Interrupted> {
        if input.coding.is_some() {
            return self.begin_archive(input, Stamp::of(meta), reading);
        }
        if matches!(*reading.format, Format::Whole) {
            // A file that was changed since it was read is another record.
            self.begin_at(0, Check::default());
        }
        if meta.size() < self.offset || !self.check.holds(&input.file, self.offset)? {
            return Err(self.restart(reading));
        }
        if meta.size() < self.searched {
            (self.searched, self.search) = (self.offset, Search::default());
        }
        self.until.get_or_insert(meta.size());
        let is_whole = matches!(*reading.format, Format::Whole);
        if input.is_undecided && self.offset == 0 && !reading.once && !is_whole {
            // One or two bytes: they may be the first ones of an archive.
            return Err(Interrupted::Early);
        }
        Trail::load(&input.file, self.searched).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => Interrupted::Cut,
            _ => Interrupted::File(error),
        })
    }

    fn begin_archive(
        &mut self,
        input: &mut Input,
        now: Stamp,
        reading: &mut Reading,
    ) -> Result<Trail, Interrupted> {
        if input.unpacking.as_ref().is_none_or(|unpacking| unpacking.stamp != now) {
            if matches!(*reading.format, Format::Whole) {
                self.begin_at(0, Check::default());
            }
            (self.searched, self.search) = (self.offset, Search::default());
            if input.agreement(&self.check, self.offset)? != Agreement::Everything {
                input.unpacking = None;
                return Err(self.restart(reading));
            }
        }
        let unpacking = input.unpacking.as_mut();
        Ok(unpacking.map(|unpacking| std::mem::take(&mut unpacking.trail)).unwrap_or_default())
    }

    fn read_turn(
        &mut self,
        input: &mut Input,
        trail: &mut Trail,
        (now, block): (Stamp, &mut [u8]),
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let is_whole = matches!(*reading.format, Format::Whole);
        let is_taken_whole = input.coding.is_some() || is_whole;
        for _ in 0..FILE_TURN_BYTES / READ_BLOCK_BYTES {
            let is_past = self.until.is_some_and(|until| reading.once && self.offset >= until);
            if outlet.shutdown.is_requested() || (is_past && !is_taken_whole) {
                return Ok(false);
            }
            let count = match input.read(block, self.searched) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            if input.coding.is_none() && !self.check.holds(&input.file, self.offset)? {
                return Err(self.restart(reading));
            }
            let block = &block[..count];
            if count > 0 && self.records(input, trail, block, reading, outlet)? {
                continue;
            }
            // Everything before this moment's end was read; a change since then is seen the next time.
            self.unchanged = Some(now);
            if reading.once || is_taken_whole {
                self.end(input, trail, block, reading, outlet)?;
            }
            if is_taken_whole {
                input.unpacking = None;
                (self.done, self.positioned) = (Some(now), None);
            }
            return Ok(false);
        }
        Ok(true)
    }

    /// It was cut, or is another file than it was: all of it is new.
    fn restart(&mut self, reading: &mut Reading) -> Interrupted {
        tracing::info!(path = %self.path.display(), "File was written anew and is read from its first byte");
        reading.counters.files_restarted.fetch_add(1, Ordering::Relaxed);
        if !matches!(*reading.format, Format::Whole) {
            // What was read may go on in a copy. It is remembered in the append in which this file's position is given up.
            if let Some((key, saved)) = self.gone(true) {
                reading.collector.position(key.clone(), Some(saved.to_bytes()));
                reading.gone.push((key, saved));
            }
            self.verdict = Verdict::Open;
        }
        self.begin_at(0, Check::default());
        self.until = None;
        self.set_position(&mut reading.collector);
        Interrupted::Cut
    }

    /// Takes the records that end in the block. Returns whether any of it was searched.
    fn records(
        &mut self,
        input: &mut Input,
        trail: &mut Trail,
        block: &[u8],
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<bool, Interrupted> {
        let (base, before) = (self.searched, self.offset);
        let place = Place { base, block, time: reading.clock.now() };
        let format = Arc::clone(&reading.format);
        let mut at = self.skip_hole(&place, reading);
        while let Some(found) = self.search.next(&format, base, block, &mut at) {
            self.record(input, trail, &place, found.end, reading, outlet)?;
            self.offset = found.next;
        }
        if self.offset != before {
            self.check = trail.check(place.before(self.offset), self.check.marks());
        }
        input.searched(&place, at, self.offset, reading.collector.record_bytes_max());
        trail.push(&block[..at]);
        self.searched = base + at as u64;
        if at == block.len() && self.offset == self.searched && is_hole(block) {
            self.leap(input, trail, reading);
        }
        Ok(at > 0)
    }

    /// The NULs at the start of a line are a hole: what a writer leaves that goes on at its old place in a file that was cut.
    /// Returns how many there are in the block.
    fn skip_hole(&mut self, place: &Place<'_>, reading: &Reading) -> usize {
        if self.offset != place.base || !of_lines(&reading.format) {
            return 0;
        }
        let hole = place.block.iter().take_while(|byte| **byte == 0).count();
        self.offset += hole as u64;
        reading.counters.hole_bytes.fetch_add(hole as u64, Ordering::Relaxed);
        hole
    }

    /// Passes the rest of a hole that takes no blocks on the disk.
    fn leap(&mut self, input: &Input, trail: &mut Trail, reading: &Reading) {
        if input.coding.is_some() || !of_lines(&reading.format) {
            return;
        }
        // Nobody uses the cursor.
        let Ok(data) = rustix::fs::seek(&*input.file, SeekFrom::Data(self.offset)) else { return };
        if data > self.offset {
            reading.counters.hole_bytes.fetch_add(data - self.offset, Ordering::Relaxed);
            trail.leap(data);
            (self.offset, self.searched) = (data, data);
            self.check = trail.check(&[], self.check.marks());
        }
    }

    /// Takes the record that ends at `end`.
    fn record(
        &mut self,
        input: &Input,
        trail: &Trail,
        place: &Place<'_>,
        end: u64,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let size = end - self.offset;
        let max = reading.collector.record_bytes_max();
        let head = usize::try_from(size).unwrap_or(usize::MAX).min(max);
        if !reading.collector.has_room(head, self.subject.len()) {
            // The position in front of the record.
            if self.offset >= place.base {
                self.check = trail.check(place.before(self.offset), self.check.marks());
            }
            self.position(&mut reading.collector);
            outlet.send(&mut reading.collector)?;
        }
        if self.offset >= place.base {
            let from = place.before(self.offset).len();
            self.emit(&place.block[from..from + head], size, place.time, reading);
            return Ok(());
        }
        let mut long = std::mem::take(&mut reading.long);
        long.resize(head, 0);
        let read = input.read_head(&mut long, self.offset, place);
        // What was searched before must still be one line; else it was written anew since.
        let is_line = !matches!(*reading.format, Format::Lines) || !long.contains(&b'\n');
        if read.is_ok() && is_line {
            self.emit(&long, size, place.time, reading);
        }
        // One long line must not hold its memory for ever.
        long.clear();
        long.shrink_to(READ_BLOCK_BYTES);
        reading.long = long;
        match read {
            Ok(()) if is_line => Ok(()),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
            Ok(()) | Err(_) => {
                self.unchanged = None;
                (self.searched, self.search) = (self.offset, Search::default());
                Err(Interrupted::Cut)
            }
        }
    }

    /// The end of what has one: what is left is a record, also without its mark. `rest` follows what was searched.
    fn end(
        &mut self,
        input: &Input,
        trail: &mut Trail,
        rest: &[u8],
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let place = Place { base: self.searched, block: rest, time: reading.clock.now() };
        let end = place.base + rest.len() as u64;
        if self.offset < place.base && self.search.starts_record(&reading.format, rest) {
            self.record(input, trail, &place, place.base - 1, reading, outlet)?;
            self.offset = place.base;
        }
        if self.offset < end {
            self.record(input, trail, &place, end, reading, outlet)?;
        }
        trail.push(rest);
        (self.offset, self.searched, self.search) = (end, end, Search::default());
        self.check = trail.check(&[], self.check.marks());
        Ok(())
    }

    /// The last record of several lines is complete when nothing has followed for a while.
    fn last_lines(
        &mut self,
        input: &mut Input,
        reading: &mut Reading,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let is_open = self.offset < self.searched && self.search.is_between_lines();
        if !is_open || !matches!(*reading.format, Format::Multiline(_)) {
            return Ok(());
        }
        if reading.clock.monotonic().since(self.active) < LAST_LINES_AFTER {
            self.waits = true;
            return Ok(());
        }
        let mut trail = Trail::load(&input.file, self.searched)?;
        if !self.check.holds(&input.file, self.offset)? {
            return Err(self.restart(reading));
        }
        let place = Place { base: self.searched, block: &[], time: reading.clock.now() };
        self.record(input, &trail, &place, self.searched - 1, reading, outlet)?;
        self.offset = self.searched;
        self.end(input, &mut trail, &[], reading, outlet)
    }

    /// Hands on what a record is, without what only marks its ends.
    fn emit(&self, head: &[u8], size: u64, time: Timestamp, reading: &mut Reading) {
        let is_all = head.len() as u64 == size;
        let mut content = head;
        if self.offset == 0 && !matches!(*reading.format, Format::Whole) {
            content = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content);
        }
        if of_lines(&reading.format) {
            let hole = content.iter().take_while(|byte| **byte == 0).count();
            content = &content[hole..];
            reading.counters.hole_bytes.fetch_add(hole as u64, Ordering::Relaxed);
            if is_all {
                content = content.strip_suffix(b"\r").unwrap_or(content);
            }
        }
        if matches!(*reading.format, Format::Json) {
            let is_content = |byte: &u8| !is_space(*byte);
            content = &content[content.iter().position(is_content).unwrap_or(content.len())..];
            if is_all {
                let end = content.iter().rposition(is_content).map_or(0, |last| last + 1);
                content = &content[..end];
            }
            if content.is_empty() {
                return;
            }
        }
        let size = size - (head.len() - content.len()) as u64;
        let headers = Headers::default();
        let line = Line { time, subject: &self.subject, headers, head: content, size };
        reading.collector.line(line, || format!("{}, byte {}", self.path.display(), self.offset));
    }

    /// Sets the position of everything up to `offset`, if that has moved.
    fn position(&mut self, collector: &mut Collector) {
        if self.positioned != Some(self.offset) {
            self.set_position(collector);
        }
    }

    fn set_position(&mut self, collector: &mut Collector) {
        let mark = std::mem::replace(&mut self.mark, self.check.mark(self.offset));
        self.check.keep(mark, self.offset);
        collector.position(self.id.key(), Some(self.saved().to_bytes()));
        self.positioned = Some(self.offset);
    }

    /// Begins at the end of the file as it is: what is in it is not wanted.
    pub(super) fn skip_to_end(&mut self, file: File, collector: &mut Collector) -> io::Result<()> {
        let meta = file.metadata()?;
        let input = Input::new(file)?;
        if input.coding.is_none() {
            let check = Trail::load(&input.file, meta.size())?.check(&[], &[]);
            self.begin_at(meta.size(), check);
        }
        // An archive gets nothing more.
        self.done = input.coding.map(|_| Stamp::of(&meta));
        self.unchanged = self.done;
        self.set_position(collector);
        Ok(())
    }
}

/// A block that was read, where it stands, and when that was.
pub(super) struct Place<'a> {
    pub(super) base: u64,
    pub(super) block: &'a [u8],
    pub(super) time: Timestamp,
}

impl<'a> Place<'a> {
    /// What of the block stands before an offset in it.
    pub(super) fn before(&self, offset: u64) -> &'a [u8] {
        let end = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX);
        &self.block[..end.min(self.block.len())]
    }
}

fn of_lines(format: &Format) -> bool {
    matches!(format, Format::Lines | Format::Multiline(_))
}

fn is_hole(block: &[u8]) -> bool {
    block.len() >= READ_BLOCK_BYTES && block.iter().all(|byte| *byte == 0)
}
