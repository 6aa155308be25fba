//! Keeps the WAL within its cap, from the writer's connection, and notices who is in the way.
//!
//! 1. When the WAL holds as much as `Budget::checkpoint`, or pages behind the end of the database that the ballast would not
//!    be enough for, a passive checkpoint moves its pages into the database; the next commit then begins at its start.
//! 2. Where a reader keeps it from beginning anew, the writer waits for the reader for a moment (`RESTART`). Our own reads
//!    are over in milliseconds.
//! 3. A reader that stays is foreign: it is reported, asked for again once a second, and the WAL it makes grow counts against
//!    the quota.
//! 4. Once it is gone, a WAL that grew past its usual size is cut back (`TRUNCATE`) and extended again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;

use super::budget::{Budget, PAGE};
use super::error::JournalError;
use super::open::wal_path;
use crate::clock::{Clock, Monotonic};

/// How long the writer waits for readers the first time: none of ours reads for longer.
const READER_WAIT_FIRST: Duration = Duration::from_secs(1);
/// How long it waits in each further attempt.
const READER_WAIT: Duration = Duration::from_millis(100);
/// Pauses between two attempts while a reader is in the way.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// A checkpoint that is kept for longer is not kept by us.
const FOREIGN_AFTER: Duration = Duration::from_secs(2);
/// A frame of the WAL: a page and its header.
const FRAME_BYTES: u64 = PAGE + 24;

/// What of the WAL is filled, and what of that stands in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Frames {
    filled: u64,
    moved: u64,
    busy: bool,
}

/// Decides when to checkpoint. Belongs to the writer.
#[derive(Debug)]
pub(super) struct Checkpointer {
    path: PathBuf,
    wal: PathBuf,
    busy_timeout: Duration,
    blocked_since: Option<Monotonic>,
    last_attempt: Option<Monotonic>,
    reported: bool,
    /// The volume has become full: what is to make the database larger shall do it while there is room left for it.
    pub(super) all_now: bool,
    /// Checkpoints that moved something since this run began.
    pub(super) done: u64,
}

impl Checkpointer {
    pub(super) fn new(path: &Path, busy_timeout: Duration) -> Self {
        Self {
            path: path.to_owned(),
            wal: wal_path(path),
            busy_timeout,
            blocked_since: None,
            last_attempt: None,
            reported: false,
            all_now: false,
            done: 0,
        }
    }

    /// For how long a reader has kept the WAL from being emptied, and whether it is none of ours.
    pub(super) fn blocked(&self, now: Monotonic) -> Option<Duration> {
        let since = self.blocked_since?;
        Some(now.since(since)).filter(|blocked| *blocked >= FOREIGN_AFTER)
    }

    /// Whether a reader keeps the WAL from being emptied.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_since.is_some()
    }

    /// Whether there is something to do without a commit.
    pub(super) fn is_due(&self, now: Monotonic) -> bool {
        self.blocked_since.is_some()
            && self.last_attempt.is_none_or(|last| now.since(last) >= ATTEMPT_EVERY)
    }

    /// Looks at the WAL after a commit, and does what is due. `tight`: the volume has no room for a longer one.
    ///
    /// # Errors
    /// When the database cannot take the pages: [`JournalError::Full`] where the volume is full.
    pub(super) fn after_commit(
        &mut self,
        connection: &Connection,
        budget: Budget,
        tight: bool,
        clock: &dyn Clock,
    ) -> Result<(), JournalError> {
        let now = clock.monotonic();
        if self.blocked_since.is_some() && !self.is_due(now) {
            return Ok(());
        }
        let frames = self.checkpoint(connection, "NOOP")?;
        let file = std::fs::metadata(&self.wal).map_or(0, |metadata| metadata.len());
        let bytes = if tight { budget.checkpoint.min(file / 2) } else { budget.checkpoint };
        let due = bytes / FRAME_BYTES;
        let pages: i64 = connection
            .prepare_cached("PRAGMA page_count")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(|source| JournalError::sqlite(&self.path, "measuring", source))?;
        let database = std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        let growth = (pages.cast_unsigned() * PAGE).saturating_sub(database);
        let grows = self.all_now && growth > 0 || growth > budget.growth_max(tight);
        if frames.filled < due && !grows && self.blocked_since.is_none() {
            return Ok(());
        }
        self.last_attempt = Some(now);
        let frames = self.checkpoint(connection, "PASSIVE")?;
        self.all_now = false;
        self.done += 1;
        // All is in the database, and there was no need to wait for anybody yet.
        let whole = frames.moved == frames.filled;
        if whole && frames.filled < due + due / 8 + 1 && self.blocked_since.is_none() {
            return Ok(());
        }
        let oversize = file > budget.wal_usual();
        let free = self.waiting(connection, if oversize { "TRUNCATE" } else { "RESTART" })?;
        if free {
            if oversize {
                extend(&self.wal, budget.wal_extent)?;
            }
            self.freed(now);
        } else {
            self.kept(now);
        }
        Ok(())
    }

    /// Moves what the WAL holds into the database and waits for readers for a moment, so that the next transaction begins at
    /// the start of the WAL instead of making it longer. False when a reader is still in the way.
    pub(super) fn begin_anew(&self, connection: &Connection) -> Result<bool, JournalError> {
        self.waiting(connection, "RESTART")
    }

    /// Checkpoints whatever there is, as a clean stop and making the file smaller do.
    pub(super) fn everything(&self, connection: &Connection) -> Result<bool, JournalError> {
        Ok(!self.checkpoint(connection, "TRUNCATE")?.busy)
    }

    fn waiting(&self, connection: &Connection, mode: &str) -> Result<bool, JournalError> {
        let failed = |source| JournalError::sqlite(&self.path, "checkpointing", source);
        let first = self.blocked_since.is_none();
        let wait = if first { READER_WAIT_FIRST } else { READER_WAIT };
        connection.busy_timeout(wait).map_err(failed)?;
        let result = self.checkpoint(connection, mode);
        connection.busy_timeout(self.busy_timeout).map_err(failed)?;
        Ok(!result?.busy)
    }

    fn checkpoint(&self, connection: &Connection, mode: &str) -> Result<Frames, JournalError> {
        let query = format!("PRAGMA wal_checkpoint({mode})");
        connection
            .prepare_cached(&query)
            .and_then(|mut statement| {
                statement.query_row([], |row| {
                    let count = |index| row.get::<_, i64>(index).map(|count| count.max(0));
                    Ok(Frames {
                        busy: count(0)? != 0,
                        filled: count(1)?.cast_unsigned(),
                        moved: count(2)?.cast_unsigned(),
                    })
                })
            })
            .map_err(|source| JournalError::sqlite(&self.path, "checkpointing", source))
    }

    fn freed(&mut self, now: Monotonic) {
        if let Some(since) = self.blocked_since.take()
            && std::mem::take(&mut self.reported)
        {
            let blocked_s = now.since(since).as_secs();
            tracing::info!(blocked_s, "Nobody keeps the WAL from being emptied any more");
        }
    }

    fn kept(&mut self, now: Monotonic) {
        let since = *self.blocked_since.get_or_insert(now);
        if !self.reported && now.since(since) >= FOREIGN_AFTER {
            self.reported = true;
            let pids = holders(&self.path);
            tracing::warn!(
                pids = %listed(&pids), path = %self.path.display(),
                "A read transaction of another process keeps the WAL from being emptied, it grows meanwhile"
            );
        }
    }
}

/// Extends the WAL, as far as the volume has room.
pub(super) fn extend(wal: &Path, bytes: u64) -> Result<(), JournalError> {
    super::wal::extend(wal, bytes).or_else(|source| {
        // Without the extension commits cost more, and that is all.
        if source.kind() == std::io::ErrorKind::StorageFull {
            return Ok(());
        }
        Err(JournalError::File { path: wal.to_owned(), doing: "extend", source })
    })
}

/// Processes that hold a lock on the database's index of the WAL, other than ours. The kernel's list is all we may look at:
/// opening that file here would drop our own locks on it.
pub(super) fn holders(database: &Path) -> Vec<u32> {
    use std::os::unix::fs::MetadataExt as _;

    let mut name = database.as_os_str().to_owned();
    name.push("-shm");
    let Ok(file) = std::fs::metadata(name) else { return Vec::new() };
    let wanted = format!(":{}", file.ino());
    let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let mut pids: Vec<u32> = text
        .lines()
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let [_, "POSIX", _, _, pid, file, start, ..] = fields.as_slice() else { return None };
            // Byte 128 says only that somebody has the database open.
            let holds = file.ends_with(&wanted) && *start != "128";
            pid.parse().ok().filter(|pid| holds && *pid != std::process::id())
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// For messages.
pub(super) fn listed(pids: &[u32]) -> String {
    if pids.is_empty() {
        return "unknown".to_owned();
    }
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
