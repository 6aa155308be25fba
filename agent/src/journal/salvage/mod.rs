//! Salvage: out of a damaged journal, a new one with everything that can be proven good.
//!
//! 1. Two passes over the damaged files, which are only read, into a new database (`collect.rs`).
//! 2. What was found is made to fit together, and what is missing becomes a loss (`mend.rs`).
//! 3. The report is written, then the new database is synced and gets the name that says that it is whole.
//! 4. The damaged files move into a folder of their own, the new database takes their place, the report joins them.
//!
//! A crash before the end of 3 leaves the damaged files as they were, and the next start begins anew. A crash after it leaves
//! the whole new database under its own name, and the next start goes on with 4, every step of which may be repeated.
//!
//! A volume without room for the new database beside the damaged one ends it before the end of 3, and what was written is
//! removed. The ballast is not used for it: the new journal needs that when it is opened.

mod collect;
mod lanes;
mod mend;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ballast::Ballast;
use super::budget::{self, Budget};
use super::error::JournalError;
use super::gaps::{self, mark_path};
use super::high_water::HighWater;
use super::open::{DATABASE_NAME, end_copy, lock_directory, refuse_foreign, wal_path};
use super::page_scan::Images;
use super::soundness;
use crate::clock::{Clock, Timestamp};
use crate::limits::{SALVAGE_LISTED_MAX, WAL_INDEX_BYTES};
use collect::Building;

/// The new database while it is written, and when it is whole.
const BUILDING_NAME: &str = "journal.salvaging.db";
const WHOLE_NAME: &str = "journal.salvaged.db";
/// The report until the damaged files have their folder.
const REPORT_NAME: &str = "journal.salvaged.json";
/// The report in the folder.
const KEPT_REPORT_NAME: &str = "report.json";
/// What the folders of damaged files begin with.
const KEPT_PREFIX: &str = "journal.corrupt-";

/// What a salvage has done.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SalvageReport {
    /// When, RFC 3339 in UTC.
    pub at: String,
    /// What was wrong.
    pub cause: String,
    /// Where the damaged files are now; empty after a trial.
    pub kept: PathBuf,
    /// How long it took.
    pub elapsed_ms: u64,
    /// Chunks saved, of those that are still needed.
    pub chunks: u64,
    /// Records in them.
    pub records: u64,
    /// Sealed batches saved, of those that wait for their ack.
    pub batches: u64,
    /// Dead letters saved.
    pub dead_letters: u64,
    /// Chunks and parts that are there and whose checksum is wrong.
    pub unreadable: u64,
    /// Records that are missing, over all ranges of streams and all lost batches.
    pub lost_records: u64,
    /// Which; the first thousand.
    pub lost: Vec<LostRange>,
    /// Ranges that are sealed again under new batch identities, and may so be at their destination twice.
    pub cut_again: Vec<LaneRange>,
    /// Lane and number of the batches that did not prove themselves.
    #[serde(skip)]
    damaged_batches: lanes::DamagedBatches,
}

/// Records of a stream that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// The source.
    pub source: String,
    /// The lane whose batch is lost; none where the records themselves are.
    pub lane: Option<String>,
    /// First seq.
    pub first: u64,
    /// Last seq.
    pub last: u64,
    /// How many records of the range are lost.
    pub records: u64,
}

/// A range of a lane's stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRange {
    /// The lane.
    pub lane: String,
    /// First seq.
    pub first: u64,
    /// Last seq.
    pub last: u64,
}

impl SalvageReport {
    fn lose(&mut self, range: LostRange) {
        self.lost_records += range.records;
        if self.lost.len() < SALVAGE_LISTED_MAX {
            self.lost.push(range);
        }
    }

    /// In one sentence, for logs and status.
    #[must_use]
    pub fn summary(&self) -> String {
        format!(
            "{} records in {} chunks and {} batches were saved, {} records are lost, {} chunks or parts are unreadable; the damaged files are in {}",
            self.records,
            self.chunks,
            self.batches,
            self.lost_records,
            self.unreadable,
            self.kept.display()
        )
    }
}

/// Whether a start that failed with this can succeed after a salvage.
pub(super) fn can_help(directory: &Path, error: &JournalError) -> Result<bool, JournalError> {
    match error {
        JournalError::Foreign { .. } => is_ours_or_blank(directory),
        error => Ok(soundness::is_damage(error)),
    }
}

/// Whether the files hold anything that is ours without doubt, or nothing at all: a database that was wiped.
fn is_ours_or_blank(directory: &Path) -> Result<bool, JournalError> {
    let path = directory.join(DATABASE_NAME);
    let failed = |source| JournalError::File { path: path.clone(), doing: "read", source };
    let images = Images::open(&path, &wal_path(&path)).map_err(failed)?;
    Ok(images.hold_ours() || is_blank(&path).map_err(failed)?)
}

/// Whether all bytes of a file are zero, or all are ones.
fn is_blank(path: &Path) -> io::Result<bool> {
    use io::Read as _;

    let mut file = File::open(path)?;
    let mut block = vec![0; 256 * 1024];
    let mut first = None;
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok(matches!(first, Some(0 | 0xff)));
        }
        let first = *first.get_or_insert(block[0]);
        if block[..read].iter().any(|byte| *byte != first) {
            return Ok(false);
        }
    }
}

/// Goes on with a salvage whose new database is whole; forgets one that is not.
pub(super) fn finish_interrupted(directory: &Path) -> Result<Option<SalvageReport>, JournalError> {
    remove_if_there(&directory.join(BUILDING_NAME))?;
    if !directory.join(WHOLE_NAME).exists() {
        // Left over from before the new database was whole, or from the very last step.
        let report_path = directory.join(REPORT_NAME);
        if let Some(report) = read_report(&report_path)
            && report.kept.is_dir()
        {
            rename(&report_path, &report.kept.join(KEPT_REPORT_NAME))?;
        }
        remove_if_there(&report_path)?;
        return Ok(None);
    }
    let report = read_report(&directory.join(REPORT_NAME)).unwrap_or_default();
    swap_in(directory, report).map(Some)
}

fn read_report(path: &Path) -> Option<SalvageReport> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

/// Reports of earlier salvages that lie beside the journal, oldest first.
#[must_use]
pub(super) fn earlier_reports(directory: &Path) -> Vec<SalvageReport> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let folders = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.starts_with(KEPT_PREFIX))
    });
    let mut paths: Vec<_> = folders.map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().filter_map(|path| read_report(&path.join(KEPT_REPORT_NAME))).collect()
}

/// Salvages the journal in a data directory that this process has locked.
pub(super) fn salvage(
    directory: &Path,
    cause: &str,
    clock: &dyn Clock,
) -> Result<SalvageReport, JournalError> {
    tracing::error!(cause, "Journal is damaged, what is good of it is salvaged");
    let report = match prepare(directory, cause, clock) {
        Ok(report) => report,
        Err(error) => {
            // It may have taken the last byte of the volume, which others need too. What stays, the next start removes.
            drop(remove_if_there(&directory.join(BUILDING_NAME)));
            return Err(if error.is_full() { no_room(directory) } else { error });
        }
    };
    rename(&directory.join(BUILDING_NAME), &directory.join(WHOLE_NAME))?;
    sync_directory(directory)?;
    let report = swap_in(directory, report)?;
    tracing::warn!(
        chunks = report.chunks, records = report.records, batches = report.batches,
        unreadable = report.unreadable, lost_records = report.lost_records,
        elapsed_ms = report.elapsed_ms, kept = %report.kept.display(),
        "Journal was salvaged"
    );
    Ok(report)
}

/// Steps 1 to 3, up to the name.
fn prepare(
    directory: &Path,
    cause: &str,
    clock: &dyn Clock,
) -> Result<SalvageReport, JournalError> {
    let mut report = build(directory, cause, clock)?;
    if room_after(directory) < room_to_open(directory) {
        // In the damaged one's place it could not be opened.
        return Err(no_room(directory));
    }
    report.kept = free_name(directory, clock.now());
    let text = serde_json::to_string_pretty(&report).unwrap_or_default();
    let path = directory.join(REPORT_NAME);
    let write = || fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all());
    write().map_err(|source| file_error(&path, "write", source))?;
    Ok(report)
}

/// What the new journal finds when it is opened: the ballast is kept for it.
fn room_after(directory: &Path) -> u64 {
    let free = budget::volume(directory).map_or(u64::MAX / 2, |volume| volume.free);
    free + Ballast::in_directory(directory, 0).held()
}

/// What opening takes of a volume at least: the shortest WAL and its index.
fn room_to_open(directory: &Path) -> u64 {
    let volume = budget::volume(directory).map_or(u64::MAX / 2, |volume| volume.size);
    Budget::new(u64::MAX, volume).with_short_wal().wal_extent + WAL_INDEX_BYTES
}

fn no_room(directory: &Path) -> JournalError {
    let path = directory.join(DATABASE_NAME);
    let length = |path: &Path| fs::metadata(path).map_or(0, |file| file.len());
    // A copy of everything, were all of it needed.
    let most = length(&path) + length(&wal_path(&path)) + room_to_open(directory);
    let free = budget::volume(directory).map_or(0, |volume| volume.free);
    JournalError::NoRoomToSalvage { path, free, missing: most.saturating_sub(free) }
}

/// Salvages the journal of a stopped agent because somebody asks for it; with `dry_run` it only says what it would save.
///
/// # Errors
/// When an agent runs, or the journal is a newer one or none of ours.
pub fn salvage_stopped(
    directory: &Path,
    dry_run: bool,
    clock: &dyn Clock,
) -> Result<SalvageReport, JournalError> {
    let path = directory.join(DATABASE_NAME);
    if !directory.is_dir() {
        let source = io::ErrorKind::NotFound.into();
        return Err(JournalError::DataDirectory { path: directory.to_owned(), source });
    }
    if !path.exists() && !wal_path(&path).exists() && !directory.join(WHOLE_NAME).exists() {
        return Err(file_error(&path, "read", io::ErrorKind::NotFound.into()));
    }
    let _lock = lock_directory(directory)?;
    if !dry_run && let Some(report) = finish_interrupted(directory)? {
        return Ok(report);
    }
    match refuse_foreign(&path, !path.exists()) {
        Err(error @ JournalError::NewerSchema { .. }) => return Err(error),
        Err(error @ JournalError::Foreign { .. }) if !can_help(directory, &error)? => {
            return Err(error);
        }
        _ => {}
    }
    let cause = gaps::marked(directory).unwrap_or_else(|| "it was asked for".to_owned());
    if !dry_run {
        return salvage(directory, &cause, clock);
    }
    let report = build(directory, &cause, clock);
    remove_if_there(&directory.join(BUILDING_NAME))?;
    report
}

/// Makes the new database, synced.
fn build(directory: &Path, cause: &str, clock: &dyn Clock) -> Result<SalvageReport, JournalError> {
    let begun = clock.monotonic();
    let damaged = directory.join(DATABASE_NAME);
    let path = directory.join(BUILDING_NAME);
    remove_if_there(&path)?;
    let images = Images::open(&damaged, &wal_path(&damaged))
        .map_err(|source| file_error(&damaged, "read", source))?;
    let mut building = Building::new(&path)?;
    building.collect_by_sql(&damaged)?;
    building.collect_from_pages(&images, clock)?;
    let marks = HighWater::in_directory(directory).read();
    let mut report = mend::mend(&building, &marks, clock.now())?;
    building.execute("COMMIT", [])?;
    let Building { db, .. } = building;
    db.close().map_err(|(_, error)| JournalError::sqlite(&path, "closing", error))?;
    end_copy(&path).map_err(|source| file_error(&path, "sync", source))?;
    let mut at = String::new();
    crate::record::time::push_rfc3339(clock.now(), &mut at);
    report.at = at;
    cause.clone_into(&mut report.cause);
    let elapsed = clock.monotonic().since(begun).as_millis();
    report.elapsed_ms = u64::try_from(elapsed).unwrap_or(u64::MAX);
    Ok(report)
}

/// Step 4. Whatever of it was done before is found done.
fn swap_in(directory: &Path, report: SalvageReport) -> Result<SalvageReport, JournalError> {
    let mut report = report;
    if report.kept.parent() != Some(directory) {
        // The report was lost, or the whole directory was moved.
        report.kept = free_name(directory, Timestamp(0));
    }
    let kept = &report.kept;
    match fs::create_dir(kept) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(file_error(kept, "make", error));
        }
        _ => {}
    }
    let database = directory.join(DATABASE_NAME);
    let mut shared_memory = database.clone().into_os_string();
    shared_memory.push("-shm");
    for damaged in [wal_path(&database), shared_memory.into(), database.clone()] {
        if let Some(name) = damaged.file_name().filter(|_| damaged.exists()) {
            rename(&damaged, &kept.join(name))?;
        }
    }
    sync_directory(kept)?;
    sync_directory(directory)?;
    rename(&directory.join(WHOLE_NAME), &database)?;
    remove_if_there(&mark_path(directory))?;
    sync_directory(directory)?;
    let report_path = directory.join(REPORT_NAME);
    if report_path.exists() {
        rename(&report_path, &kept.join(KEPT_REPORT_NAME))?;
    }
    Ok(report)
}

/// A name for the folder of the damaged files, by UTC time to the second.
fn free_name(directory: &Path, now: Timestamp) -> PathBuf {
    let mut time = String::new();
    crate::record::time::push_rfc3339(now, &mut time);
    let digits: String = time.split('.').next().unwrap_or_default().replace(['-', ':'], "");
    let plain = directory.join(format!("{KEPT_PREFIX}{digits}Z"));
    let others = (2..).map(|copy| directory.join(format!("{KEPT_PREFIX}{digits}Z-{copy}")));
    std::iter::once(plain).chain(others).find(|path| !path.exists()).unwrap_or_default()
}

fn file_error(path: &Path, doing: &'static str, source: io::Error) -> JournalError {
    JournalError::File { path: path.to_owned(), doing, source }
}

fn rename(from: &Path, to: &Path) -> Result<(), JournalError> {
    fs::rename(from, to).map_err(|source| file_error(from, "rename", source))
}

fn sync_directory(path: &Path) -> Result<(), JournalError> {
    let sync = || File::open(path)?.sync_all();
    sync().map_err(|source| file_error(path, "sync", source))
}

fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file_error(path, "remove", error))
        }
        _ => Ok(()),
    }
}
