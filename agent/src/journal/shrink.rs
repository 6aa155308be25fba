//! Gives space back to the volume after an outage, when most of the file is free and little is in use.
//!
//! A database never becomes smaller by deletes, and `auto_vacuum` writes more than it gives back. So what is in use, which is
//! little then, is copied, and the copy takes the place of the file:
//!
//! 1. `VACUUM INTO` a file beside it, synced. A leftover of an earlier attempt goes first.
//! 2. Our readers' connections are closed, the WAL is emptied, and the last connection removes it. Where it stays, somebody
//!    else has the database open: the copy is thrown away, and the file stays as it is.
//! 3. The copy is renamed over the file, and the directory synced.
//! 4. The database is opened again.
//!
//! A crash before 3 leaves the old file, whole, with its WAL or without; one behind it leaves the new one, which needs none.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::budget::{PAGE, Usage, measure};
use super::checkpoint::{self, Checkpointer};
use super::config::Durability;
use super::error::JournalError;
use super::open::{connect, end_copy, wal_path};
use super::writer::Writer;
use crate::clock::Monotonic;
use crate::error_chain::Chain;
use crate::limits::{SHRINK_FREE_BYTES_MIN, SHRINK_LIVE_BYTES_MAX};

/// A journal that has committed nothing for so long is idle.
const IDLE: Duration = Duration::from_secs(5);
/// One that never is gives space back when it was worth it for so long: the pause is short, since little is copied.
const PATIENCE: Duration = Duration::from_secs(30);
/// Looks at a journal that is not idle.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The pause after an attempt, whatever came of it.
const AGAIN_AFTER: Duration = Duration::from_mins(10);

/// Whether it is worth it, and there is room for the copy. On a small volume it is when the ballast can be made of it.
pub(super) fn is_worth_it(usage: Usage, ballast_lacking: u64) -> bool {
    let free = usage.pages_free * PAGE;
    let live = (usage.pages - usage.pages_free) * PAGE;
    (free >= SHRINK_FREE_BYTES_MIN || ballast_lacking > 0 && free >= ballast_lacking)
        && usage.pages_free * 4 >= usage.pages * 3
        && live <= SHRINK_LIVE_BYTES_MAX
        && usage.volume_free > 2 * live
}

/// When the writer thought of it last.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    /// It looked whether it is worth it.
    looked: Option<Monotonic>,
    /// Since when it is.
    wanted: Option<Monotonic>,
    /// It tried.
    done: Option<Monotonic>,
}

/// What making it smaller came to.
pub(super) struct Shrunk {
    /// The connection, the old one or to the new file; `None` when it cannot be opened again.
    pub(super) connection: Option<Connection>,
    /// Why the file is as it was, or cannot be opened.
    pub(super) error: Option<JournalError>,
}

/// Takes the steps above, but for our readers: theirs are closed already.
pub(super) fn shrink(
    connection: Connection,
    path: &Path,
    durability: Durability,
    checkpointer: &Checkpointer,
) -> Shrunk {
    if let Err(error) = copy(&connection, path) {
        drop(fs::remove_file(copy_path(path)));
        return Shrunk { connection: Some(connection), error: Some(error) };
    }
    let swapped = swap(connection, path, checkpointer);
    drop(fs::remove_file(copy_path(path)));
    match (connect(path, durability), swapped) {
        (Ok(connection), swapped) => Shrunk { connection: Some(connection), error: swapped.err() },
        (Err(error), _) => Shrunk { connection: None, error: Some(error) },
    }
}

fn copy_path(path: &Path) -> PathBuf {
    path.with_extension("db.new")
}

fn copy(connection: &Connection, path: &Path) -> Result<(), JournalError> {
    let copy = copy_path(path);
    let doing = "make a smaller copy of";
    let failed = |source| JournalError::File { path: path.to_owned(), doing, source };
    match fs::remove_file(&copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let name = copy.to_str().ok_or_else(|| failed(std::io::ErrorKind::InvalidFilename.into()))?;
    connection
        .execute("VACUUM INTO ?1", [name])
        .map_err(|source| JournalError::sqlite(path, "copying", source))?;
    end_copy(&copy).map_err(failed)
}

fn swap(
    connection: Connection,
    path: &Path,
    checkpointer: &Checkpointer,
) -> Result<(), JournalError> {
    let doing = "put a smaller copy in the place of";
    let failed = |source| JournalError::File { path: path.to_owned(), doing, source };
    let in_use = || failed(std::io::Error::other("another process has it open"));
    if !checkpointer.everything(&connection)? {
        return Err(in_use());
    }
    connection.close().map_err(|(_, source)| JournalError::sqlite(path, "closing", source))?;
    // Frames in a WAL that outlived the last connection would be taken for ones of the new file.
    if wal_path(path).exists() {
        return Err(in_use());
    }
    fs::rename(copy_path(path), path).map_err(failed)?;
    let directory = path.parent().unwrap_or(path);
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

impl Writer {
    /// Whether that was looked at in this pause, in which nothing changes.
    pub(super) fn has_looked_idly(&self) -> bool {
        self.quota.shrinking.looked.is_some_and(|last| last.since(self.last_commit) >= IDLE)
    }

    /// Makes the file smaller when it is worth it and nothing is going on, or something always is.
    pub(super) fn shrink_when_worth_it(&mut self) {
        let now = self.clock.monotonic();
        let waits =
            |last: Option<Monotonic>, pause| last.is_some_and(|last| now.since(last) < pause);
        let is_idle = !waits(Some(self.last_commit), IDLE);
        let looked = waits(self.quota.shrinking.looked, LOOK_EVERY);
        if waits(self.quota.shrinking.done, AGAIN_AFTER) || looked && !is_idle {
            return;
        }
        self.quota.shrinking.looked = Some(now);
        // A journal that is held for an I/O error has none.
        let Some(connection) = self.connection.take() else { return };
        let usage = measure(&connection, &self.path).unwrap_or_default();
        if self.quota.full.is_some() || !is_worth_it(usage, self.quota.ballast.lacking()) {
            self.connection = Some(connection);
            self.quota.shrinking.wanted = None;
            return;
        }
        let wanted = *self.quota.shrinking.wanted.get_or_insert(now);
        if !is_idle && now.since(wanted) < PATIENCE {
            self.connection = Some(connection);
            return;
        }
        (self.quota.shrinking.wanted, self.quota.shrinking.done) = (None, Some(now));
        let readers = std::sync::Arc::clone(&self.readers);
        let Some(paused) = readers.pause() else {
            // They are busy after all.
            self.connection = Some(connection);
            return;
        };
        let checkpointer = &self.quota.checkpointer;
        let shrunk = shrink(connection, &self.path, self.quota.durability, checkpointer);
        drop(paused);
        if shrunk.connection.is_none() {
            // The next group opens it again, or says why it cannot.
            let error = shrunk.error.unwrap_or(JournalError::Closed);
            tracing::error!(error = %Chain(&error), "Journal cannot be opened again, writing waits");
            self.hold(std::sync::Arc::new(error));
            return;
        }
        self.connection = shrunk.connection;
        self.after_shrinking(usage, shrunk.error);
    }

    fn after_shrinking(&mut self, before: Usage, error: Option<JournalError>) {
        if let Some(error) = error {
            tracing::warn!(error = %Chain(&error), "Journal was not made smaller");
        }
        let Some(connection) = &self.connection else { return };
        if let Ok(usage) = measure(connection, &self.path) {
            self.quota.pages_max = self.quota.budget.pages_max(usage.pages);
            let (from, to) = (before.database_file, usage.database_file);
            tracing::info!(from_bytes = from, to_bytes = to, "Journal gave space back");
        }
        let extended = checkpoint::extend(&wal_path(&self.path), self.quota.budget.wal_extent);
        if let Err(error) = extended {
            tracing::debug!(error = %Chain(&error), "WAL is not extended");
        }
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::super::open::{DATABASE_NAME, connect_immutable};
    use super::super::schema;
    use super::*;

    /// Where the first opening had to switch the copy, a power cut in the middle would leave a page to be rolled back.
    #[test]
    fn a_copy_is_whole_and_in_wal_mode_before_it_takes_the_place_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_NAME);
        let mut connection = connect(&path, Durability::Full).unwrap();
        schema::migrate(&mut connection, &path, 0).unwrap();
        connection.execute("INSERT INTO meta VALUES ('test', 'stays')", []).unwrap();
        // A leftover of an earlier attempt.
        fs::write(copy_path(&path), "half a copy").unwrap();
        copy(&connection, &path).unwrap();
        let header = fs::read(copy_path(&path)).unwrap();
        // https://sqlite.org/fileformat2.html#file_format_version_numbers
        assert_eq!(header[18..20], [2, 2]);
        let copied = connect_immutable(&copy_path(&path)).unwrap();
        let text = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let query = "SELECT value FROM meta WHERE key = 'test'";
        assert_eq!(copied.query_row(query, [], text).unwrap(), "stays");
        assert_eq!(copied.query_row("PRAGMA integrity_check", [], text).unwrap(), "ok");
    }
}
