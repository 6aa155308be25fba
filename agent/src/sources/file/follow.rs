//! Finds the files of a source, keeps apart which is which, and reads them in turns. Blocks.
//!
//! A pass gives every file with something to read one turn. The patterns are looked at again every second.
//!
//! A file that the patterns find stays open, because only an open file is read to its end after it was renamed or removed.
//! At most `FILES_OPEN_MAX` are open: beyond that the one that has rested longest is closed. When a closed file is found no
//! more, it is looked for by its inode in its folder, and what it has got since is read there; so is, at the start, a file
//! that was renamed while no agent ran. A file that is gone with something unread is warned of and counted. A renamed file
//! is closed once its writer has had time to open the new one.
//!
//! A position goes when its file was not found for an hour although its folder is there, on its device: an unmounted volume
//! keeps its positions. What was read of a file that was removed or cut is remembered for as long, because a copy of it
//! may turn up (`copies.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::config::{AfterRead, FileSourceConfig};
use super::identity::{FileId, Saved};
use super::input::Input;
use super::renamed::Folders;
use super::split::Format;
use super::tail::{Interrupted, Outlet, Reading, Stamp, Tail, Verdict};
use crate::clock::Monotonic;
use crate::limits::{
    FILE_CONTENTS_KEPT_MAX, FILES_FOLLOWED_MAX, FILES_OPEN_MAX, FILES_UNREAD_NAMED_MAX,
};
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::sources::config::StartAt;

/// The fields of `subject`.
pub(super) const SUBJECT_FIELDS: &[&str] = &["source", "file_stem", "file_name"];
/// Marks that the files of the first scan were told from those that came later; see [`StartAt::End`].
const STARTED: &str = "started";

const SCAN_EVERY: Duration = Duration::from_secs(1);
/// How long a renamed file may rest before nobody is expected to write to it any more.
const RENAMED_CLOSED_AFTER: Duration = Duration::from_secs(300);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3600);

/// A position without a file.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) saved: Saved,
    since: Monotonic,
}

pub(super) struct Follower {
    source: SourceId,
    pub(super) patterns: Vec<glob::Pattern>,
    pub(super) after_read: AfterRead,
    /// For each pattern, whether it has ever found a file.
    found_any: Vec<bool>,
    subject: Template,
    pub(super) reading: Reading,
    /// Followed files in the order in which they were found.
    pub(super) tails: BTreeMap<u64, Tail>,
    pub(super) places: HashMap<FileId, u64>,
    /// The files that are open, and some that were: not every opening looks through all files.
    open: BTreeSet<u64>,
    next_place: u64,
    pub(super) known: BTreeMap<String, Known>,
    /// Files that are there now are skipped to their end.
    skipping: bool,
    scanned: Option<Monotonic>,
    /// Paths that cannot be looked at or opened, with the trouble that was warned of.
    trouble: HashMap<PathBuf, String>,
    too_many: bool,
}

impl Follower {
    pub(super) fn new(
        source: SourceId,
        patterns: Vec<glob::Pattern>,
        subject: Template,
        config: &FileSourceConfig,
        reading: Reading,
        positions: &BTreeMap<String, Vec<u8>>,
    ) -> Self {
        let since = reading.clock.monotonic();
        let known = positions.iter().filter_map(|(key, value)| {
            Some((key.clone(), Known { saved: Saved::parse(value)?, since }))
        });
        Self {
            source,
            found_any: vec![false; patterns.len()],
            patterns,
            after_read: config.after_read.clone(),
            subject,
            tails: BTreeMap::new(),
            places: HashMap::new(),
            open: BTreeSet::new(),
            next_place: 0,
            known: known.collect(),
            skipping: config.start_at == StartAt::End && positions.is_empty(),
            scanned: None,
            trouble: HashMap::new(),
            too_many: false,
            reading,
        }
    }

    /// Gives each file one turn. Returns whether there may be more to read at once.
    ///
    /// # Errors
    /// Only when nobody takes appends any more.
    pub(super) fn pass(&mut self, outlet: &Outlet<'_>) -> Result<bool, Interrupted> {
        self.after_read(outlet)?;
        let scanned = self.scan(outlet)?;
        let mut more = false;
        let places: Vec<u64> = self.tails.keys().copied().collect();
        for place in places {
            if outlet.shutdown.is_requested() {
                break;
            }
            more |= self.turn(place, outlet)?;
        }
        // After the turns, in which a file that was copied and cut is found to be cut.
        more |= self.judge(scanned, outlet)?;
        outlet.send(&mut self.reading.collector)?;
        Ok(more)
    }

    /// Looks at the patterns when that is due. Returns whether it was.
    fn scan(&mut self, outlet: &Outlet<'_>) -> Result<bool, Interrupted> {
        let now = self.reading.clock.monotonic();
        if self.scanned.is_some_and(|scanned| now.since(scanned) < SCAN_EVERY) {
            return Ok(false);
        }
        let first = self.scanned.is_none();
        self.scanned = Some(now);
        for tail in self.tails.values_mut() {
            tail.matched = false;
        }
        let mut trouble = HashMap::new();
        for (index, pattern) in self.patterns.clone().iter().enumerate() {
            let found = self.scan_pattern(pattern, now, outlet, &mut trouble)?;
            self.found_any[index] |= found;
            if first && !found {
                tracing::warn!(%pattern, "Pattern finds no file");
            }
        }
        self.report(trouble);
        if first && self.skipping {
            // From here on a new file is one that came after us, and begins at its first byte.
            self.skipping = false;
            self.reading.collector.position(STARTED.to_owned(), Some(b"1".to_vec()));
        }
        let mut folders = Folders::default();
        if first {
            self.find_renamed(now, &mut folders);
        }
        self.leave_unmatched(now, &mut folders, outlet)?;
        self.forget(now, outlet)?;
        Ok(true)
    }

    /// Returns whether it finds a file.
    fn scan_pattern(
        &mut self,
        pattern: &glob::Pattern,
        now: Monotonic,
        outlet: &Outlet<'_>,
        trouble: &mut HashMap<PathBuf, String>,
    ) -> Result<bool, Interrupted> {
        // The pattern was parsed when the source was built.
        let Ok(paths) = glob::glob(pattern.as_str()) else { return Ok(false) };
        let mut found_any = false;
        for found in paths {
            let looked_at = match found {
                Ok(path) => match std::fs::metadata(&path) {
                    Ok(meta) if meta.is_file() => Ok((path, meta)),
                    // Folders and pipes that a pattern happens to match are nobody's mistake.
                    Ok(_) => continue,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => Err((path, error)),
                },
                Err(error) => Err((error.path().to_path_buf(), error.into())),
            };
            match looked_at {
                Ok((path, meta)) => {
                    found_any = true;
                    self.found(path, &meta, now);
                    outlet.send_if_full(&mut self.reading.collector)?;
                }
                Err((path, error)) => {
                    trouble.insert(path, error.to_string());
                }
            }
        }
        Ok(found_any)
    }

    fn found(&mut self, path: PathBuf, meta: &Metadata, now: Monotonic) {
        let id = FileId::of(meta);
        if let Some(tail) = self.places.get(&id).and_then(|place| self.tails.get_mut(place)) {
            tail.matched = true;
            tail.due |= tail.unchanged != Some(Stamp::of(meta));
            if tail.path != path {
                tail.path = path;
            }
            return;
        }
        if self.tails.len() >= FILES_FOLLOWED_MAX {
            if !std::mem::replace(&mut self.too_many, true) {
                tracing::warn!(count = FILES_FOLLOWED_MAX, path = %path.display(), "Too many files match, the rest is left out");
            }
            return;
        }
        let saved = self.position_of(id, &path);
        let is_new = saved.is_none();
        let is_unread = saved.as_ref().is_none_or(|saved| saved.offset == 0);
        let saved = saved.unwrap_or_else(|| Saved::new(path.to_string_lossy().into_owned()));
        let subject = self.subject_of(Path::new(&saved.path));
        let real = std::fs::canonicalize(&path).ok().filter(|real| *real != path);
        let mut tail = Tail::new(id, path, subject, saved);
        tail.active = now;
        tail.real = real.map(|real| real.to_string_lossy().into_owned());
        if is_new && self.skipping {
            self.skip(&mut tail);
        } else if is_unread && !matches!(*self.reading.format, Format::Whole) {
            tail.verdict = Verdict::Open;
        }
        self.places.insert(id, self.next_place);
        self.tails.insert(self.next_place, tail);
        self.next_place += 1;
    }

    fn skip(&mut self, tail: &mut Tail) {
        let skipped = open(&tail.path, tail.id).and_then(|file| match file {
            Some(file) => tail.skip_to_end(file, &mut self.reading.collector),
            None => Ok(()),
        });
        if let Err(error) = skipped {
            note_trouble(tail, &error, &self.reading);
        }
    }

    /// The position of a file, by device and inode, or by inode and path when devices were numbered anew.
    fn position_of(&mut self, id: FileId, path: &Path) -> Option<Saved> {
        let key = id.key();
        if let Some(known) = self.known.remove(&key) {
            return Some(known.saved);
        }
        let path = path.to_string_lossy();
        let same = |(key, known): (&String, &Known)| {
            let inode = FileId::of_key(key).map(|id| id.inode);
            (inode == Some(id.inode) && known.saved.path == path).then(|| key.clone())
        };
        let old = self.known.iter().find_map(same)?;
        let known = self.known.remove(&old)?;
        self.reading.collector.position(old, None);
        self.reading.collector.position(key, Some(known.saved.to_bytes()));
        Some(known.saved)
    }

    pub(super) fn subject_of(&self, path: &Path) -> String {
        let text = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_string_lossy().into_owned()
        };
        let (stem, name) = (text(path.file_stem()), text(path.file_name()));
        self.subject.render(&[self.source.as_str(), &stem, &name])
    }

    /// One turn of one file.
    fn turn(&mut self, place: u64, outlet: &Outlet<'_>) -> Result<bool, Interrupted> {
        let Some(tail) = self.tails.get(&place) else { return Ok(false) };
        if tail.verdict != Verdict::Settled || (tail.input.is_none() && !self.open(place)) {
            return Ok(false);
        }
        if self.is_held_up(place) {
            return Ok(false);
        }
        let Some(tail) = self.tails.get_mut(&place) else { return Ok(false) };
        let more = match tail.read(&mut self.reading, outlet) {
            Ok(more) => {
                if tail.input.is_some() {
                    clear_trouble(tail, &self.reading);
                }
                more
            }
            Err(Interrupted::Cut) => true,
            Err(Interrupted::Early) => false,
            Err(Interrupted::File(error)) => {
                note_trouble(tail, &error, &self.reading);
                tail.input = None;
                false
            }
            Err(Interrupted::Closed) => return Err(Interrupted::Closed),
        };
        tail.due = more || tail.waits;
        let now = self.reading.clock.monotonic();
        for (key, saved) in std::mem::take(&mut self.reading.gone) {
            self.known.insert(key, Known { saved, since: now });
        }
        outlet.send_if_full(&mut self.reading.collector)?;
        if !more {
            self.rest(place);
        }
        Ok(more)
    }

    /// One archive is expanded at a time: the decoder is what takes memory.
    fn is_held_up(&mut self, place: u64) -> bool {
        let Some(tail) = self.tails.get(&place) else { return false };
        if !tail.is_archive() || tail.is_unpacking() || tail.unchanged.is_some() {
            return false;
        }
        let is_held_up = self.is_unpacking_another(place);
        if let Some(tail) = self.tails.get_mut(&place) {
            tail.due |= is_held_up;
        }
        is_held_up
    }

    pub(super) fn is_unpacking_another(&self, place: u64) -> bool {
        self.tails.iter().any(|(other, tail)| *other != place && tail.is_unpacking())
    }

    /// Opens a file that has changed since it was last read. Returns whether there is something to read.
    fn open(&mut self, place: u64) -> bool {
        let Some(tail) = self.tails.get_mut(&place) else { return false };
        if !tail.matched || !tail.due {
            return false;
        }
        // Whatever comes of it, the next try is after the next scan.
        tail.due = false;
        let opened = open(&tail.path, tail.id).and_then(|file| file.map(Input::new).transpose());
        match opened {
            Ok(input) => tail.input = input,
            // Renamed or removed since the scan: the next one tells.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => note_trouble(tail, &error, &self.reading),
        }
        let opened = tail.input.is_some();
        if opened {
            tail.active = self.reading.clock.monotonic();
            self.close_surplus(place);
        }
        opened
    }

    /// Takes note of a file that was opened, and closes the one that has rested longest when too many are open.
    pub(super) fn close_surplus(&mut self, opened: u64) {
        self.open.insert(opened);
        if self.open.len() <= FILES_OPEN_MAX {
            return;
        }
        let tails = &mut self.tails;
        self.open.retain(|place| tails.get(place).is_some_and(|tail| tail.input.is_some()));
        if self.open.len() <= FILES_OPEN_MAX {
            return;
        }
        // One that is found under its path is found again at least cost; one that is due has something to read.
        let others = self.open.iter().filter(|place| **place != opened);
        let others = others.filter_map(|place| Some((place, tails.get(place)?)));
        let oldest = others.min_by_key(|(_, tail)| (!tail.matched, tail.due, tail.active));
        let oldest = oldest.map(|(place, _)| *place);
        if let Some(tail) = oldest.and_then(|place| tails.get_mut(&place)) {
            tail.input = None;
        }
    }

    /// A file at its end: only its content is remembered when it was removed; closed when it was renamed and has rested, and
    /// when it is an archive.
    fn rest(&mut self, place: u64) {
        let now = self.reading.clock.monotonic();
        let Some(tail) = self.tails.get_mut(&place) else { return };
        let Some(input) = &tail.input else { return };
        let removed = input.file.metadata().is_ok_and(|meta| meta.nlink() == 0);
        if removed && !tail.matched && tail.unchanged.is_some() {
            self.places.remove(&tail.id);
            self.reading.collector.position(tail.id.key(), None);
            clear_trouble(tail, &self.reading);
            let gone = self.tails.remove(&place).and_then(|tail| tail.gone(false));
            if let Some((key, saved)) = gone.filter(|_| self.remembers_content()) {
                self.reading.collector.position(key.clone(), Some(saved.to_bytes()));
                self.known.insert(key, Known { saved, since: now });
            }
        } else if tail.unchanged.is_some() && tail.is_archive()
            || !tail.matched && now.since(tail.active) > RENAMED_CLOSED_AFTER
        {
            tail.input = None;
        }
    }

    fn remembers_content(&self) -> bool {
        !matches!(*self.reading.format, Format::Whole)
    }

    /// Closed files that no pattern finds any more: a renamed one is read to its end, the others are positions only.
    fn leave_unmatched(
        &mut self,
        now: Monotonic,
        folders: &mut Folders,
        outlet: &Outlet<'_>,
    ) -> Result<(), Interrupted> {
        let gone: Vec<u64> = self
            .tails
            .iter()
            .filter(|(_, tail)| !tail.matched && tail.input.is_none())
            .map(|(place, _)| *place)
            .collect();
        for place in gone {
            let Some(tail) = self.tails.get_mut(&place) else { continue };
            match tail.find_renamed(folders) {
                Ok(Some(input)) => {
                    tail.input = Some(input);
                    (tail.due, tail.active) = (true, now);
                    self.close_surplus(place);
                    continue;
                }
                Ok(None) => {}
                Err(error) => {
                    let error = error.to_string();
                    tracing::warn!(path = %tail.path.display(), offset = tail.offset, error, "File is gone, what it has got since it was last looked at is not read");
                    self.reading.counters.files_lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            if let Some(mut tail) = self.tails.remove(&place) {
                clear_trouble(&mut tail, &self.reading);
                self.places.remove(&tail.id);
                // Of a new file nothing is known that could be wanted again.
                if tail.verdict == Verdict::Settled {
                    self.known.insert(tail.id.key(), Known { saved: tail.saved(), since: now });
                }
            }
        }
        outlet.send_if_full(&mut self.reading.collector)
    }

    /// Files that were renamed while no agent ran: what they got before that is read. A position whose file is not in the
    /// folder any more stays one.
    fn find_renamed(&mut self, now: Monotonic, folders: &mut Folders) {
        let positions: Vec<FileId> =
            self.known.keys().filter_map(|key| FileId::of_key(key)).collect();
        for id in positions {
            let Some(known) = self.known.get(&id.key()) else { continue };
            // Nothing was read of it, so nothing shows that it is this file.
            if known.saved.offset == 0 || self.tails.len() >= FILES_FOLLOWED_MAX {
                continue;
            }
            let subject = self.subject_of(Path::new(&known.saved.path));
            let path = PathBuf::from(&known.saved.path);
            let mut tail = Tail::new(id, path, subject, known.saved.clone());
            (tail.matched, tail.active) = (false, now);
            // Under its own path it is a file that the patterns do not find any more, because they are others.
            let renamed = tail.find_renamed(folders);
            if let Ok(Some(input)) = renamed
                && tail.path != Path::new(&tail.first_path)
            {
                tail.input = Some(input);
                self.known.remove(&id.key());
                self.places.insert(id, self.next_place);
                self.tails.insert(self.next_place, tail);
                self.next_place += 1;
                self.close_surplus(self.next_place - 1);
            }
        }
    }

    /// Drops the positions of files that are gone for good.
    fn forget(&mut self, now: Monotonic, outlet: &Outlet<'_>) -> Result<(), Interrupted> {
        let is_gone = |key: &String, known: &Known| {
            now.since(known.since) > FORGOTTEN_AFTER
                && (known.saved.gone.is_some()
                    || Path::new(&known.saved.path).parent().is_some_and(|folder| {
                        let device = FileId::of_key(key).map(|id| id.device);
                        std::fs::metadata(folder).is_ok_and(|meta| Some(meta.dev()) == device)
                    }))
        };
        let mut gone: Vec<String> = self
            .known
            .iter()
            .filter(|(key, known)| is_gone(key, known))
            .map(|(key, _)| key.clone())
            .collect();
        let mut contents: Vec<_> =
            self.known.iter().filter(|(_, known)| known.saved.gone.is_some()).collect();
        let surplus = contents.len().saturating_sub(FILE_CONTENTS_KEPT_MAX);
        if surplus > 0 {
            contents.sort_by_key(|(_, known)| known.since);
            gone.extend(contents[..surplus].iter().map(|(key, _)| (*key).clone()));
        }
        for key in gone {
            self.known.remove(&key);
            self.reading.collector.position(key, None);
            outlet.send_if_full(&mut self.reading.collector)?;
        }
        Ok(())
    }

    /// What a reading to the end has left out, a line for each.
    pub(super) fn unread(&self) -> Vec<String> {
        let patterns = self.patterns.iter().zip(&self.found_any).filter(|(_, found)| !**found);
        let patterns = patterns.map(|(pattern, _)| format!("{pattern} finds no file"));
        let paths = self.trouble.iter();
        let paths =
            paths.map(|(path, error)| format!("cannot look at {}: {error}", path.display()));
        let files = self.tails.values().filter_map(|tail| match &tail.trouble {
            Some(error) => Some(format!("cannot read {}: {error}", tail.path.display())),
            None if tail.due || tail.verdict != Verdict::Settled => {
                Some(format!("{} is not read to its end", tail.path.display()))
            }
            None => None,
        });
        let too_many = format!("more than {FILES_FOLLOWED_MAX} files match, the rest is left out");
        let too_many = self.too_many.then_some(too_many).into_iter();
        let mut unread: Vec<_> = patterns.chain(paths).chain(files).chain(too_many).collect();
        let more = unread.len().saturating_sub(FILES_UNREAD_NAMED_MAX);
        if more > 0 {
            unread.truncate(FILES_UNREAD_NAMED_MAX);
            unread.push(format!("{more} more are not read"));
        }
        unread
    }

    /// Warns of paths whose trouble is new or another one.
    fn report(&mut self, trouble: HashMap<PathBuf, String>) {
        for (path, error) in &trouble {
            if self.trouble.get(path) != Some(error) {
                tracing::warn!(path = %path.display(), %error, "Path cannot be looked at");
            }
        }
        self.trouble = trouble;
    }
}

impl Outlet<'_> {
    /// Sends what was gathered once it is much.
    pub(super) fn send_if_full(
        &self,
        collector: &mut crate::sources::collect::Collector,
    ) -> Result<(), Interrupted> {
        if collector.has_room(0, 0) { Ok(()) } else { self.send(collector) }
    }
}

/// Opens a path if it is still this file. Never waits: a pipe may have taken its place.
pub(super) fn open(path: &Path, id: FileId) -> io::Result<Option<File>> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let meta = file.metadata()?;
    Ok((FileId::of(&meta) == id && meta.is_file()).then_some(file))
}

pub(super) fn note_trouble(tail: &mut Tail, error: &io::Error, reading: &Reading) {
    let error = error.to_string();
    if tail.trouble.is_none() {
        reading.counters.files_in_trouble.fetch_add(1, Ordering::Relaxed);
    }
    if tail.trouble.as_ref() != Some(&error) {
        tracing::warn!(path = %tail.path.display(), %error, "File cannot be read");
        tail.trouble = Some(error);
    }
}

fn clear_trouble(tail: &mut Tail, reading: &Reading) {
    if tail.trouble.take().is_some() {
        tracing::info!(path = %tail.path.display(), "File is in trouble no longer");
        reading.counters.files_in_trouble.fetch_sub(1, Ordering::Relaxed);
    }
}
