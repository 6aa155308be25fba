//! How `max_bytes` is cut into parts, and how much of it, and of the volume, is left. Arithmetic only.
//!
//! ```text
//!  max_bytes (or the volume, where that is smaller)
//! ├─────────────── appends may fill this ────────────────┼─ ballast ─┼─ WAL ─┼─ its index ┤
//! ├──────────────────── max_page_count: seals, acks, letters may ────┤
//! ```
//!
//! The pages in use are counted, not those of the file: what is free in it is used first. The WAL counts as what it takes, and
//! at least as what it takes in good times.

use std::io;
use std::path::Path;

use rusqlite::Connection;

use super::hold;
use super::open::PAGE_BYTES;
use crate::limits::{
    BALLAST_BYTES, TRANSACTION_BYTES_MAX, WAL_CHECKPOINT_BYTES, WAL_EXTENT_BYTES, WAL_INDEX_BYTES,
};

/// Bytes of a page.
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that an append may touch beside those that its chunk fills: the table's tree, positions, the list of free pages.
const APPEND_PAGES: u64 = 6;
/// What small operations may need of WAL and database.
const SMALL_BYTES: u64 = 64 * 1024;

/// The parts of the limit, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Budget {
    /// What everything together may take.
    pub(super) limit: u64,
    /// The volume is smaller than `max_bytes`.
    pub(super) by_volume: bool,
    pub(super) ballast: u64,
    pub(super) wal_extent: u64,
    /// The WAL is checkpointed when it holds as much.
    pub(super) checkpoint: u64,
    /// A transaction takes no further operation behind this.
    pub(super) transaction: u64,
}

/// What stands on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    /// Pages of the database, those in the WAL included.
    pub(super) pages: u64,
    /// Of those, how many hold nothing.
    pub(super) pages_free: u64,
    pub(super) database_file: u64,
    pub(super) wal_file: u64,
    /// Bytes that the volume still gives us.
    pub(super) volume_free: u64,
}

/// What is left for appends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Below `max_bytes`.
    pub(super) quota: u64,
    /// On the volume.
    pub(super) volume: u64,
    /// What the volume has beyond what is committed; the ballast's share of it is not for appends.
    pub(super) spare: u64,
    /// Bytes that the volume lacks for what is committed already and for the WAL: the ballast's turn.
    pub(super) lacking: u64,
}

impl Room {
    /// What an append may take.
    pub(super) fn left(self) -> u64 {
        self.quota.min(self.volume)
    }
}

impl Budget {
    pub(super) fn new(max_bytes: u64, volume: u64) -> Self {
        let limit = max_bytes.min(volume);
        let transaction = (TRANSACTION_BYTES_MAX as u64).min(limit / 8);
        Self {
            limit,
            by_volume: volume < max_bytes,
            ballast: BALLAST_BYTES.min(limit / 8),
            wal_extent: WAL_EXTENT_BYTES.min(limit / 8).max(wal_least(transaction)),
            checkpoint: WAL_CHECKPOINT_BYTES.min(limit / 4),
            transaction,
        }
    }

    /// The same with the shortest WAL that will do, for a volume that is full.
    pub(super) fn with_short_wal(self) -> Self {
        Self { wal_extent: wal_least(self.transaction), ..self }
    }

    /// Whether a volume with so much room may be full before long.
    pub(super) fn is_scarce(self, volume_free: u64) -> bool {
        volume_free < 4 * (self.ballast + self.wal_extent)
    }

    /// What the WAL takes in good times: up to a checkpoint, and the transaction that makes one due.
    pub(super) fn wal_usual(self) -> u64 {
        let due = self.checkpoint + self.checkpoint / 8;
        self.wal_extent.max(due + self.transaction + self.transaction / 4)
    }

    /// What the pages in use may come to before appends stop.
    pub(super) fn appends_max(self, wal_file: u64) -> u64 {
        let beside = self.ballast + WAL_INDEX_BYTES + wal_file.max(self.wal_usual());
        self.limit.saturating_sub(beside)
    }

    /// `max_page_count` for a database that has `pages` now: the ballast's share lies above what appends may fill, and a
    /// database that is over its limit already can still seal.
    pub(super) fn pages_max(self, pages: u64) -> u64 {
        let usual = (self.appends_max(0) + self.ballast) / PAGE;
        usual.max(pages + self.ballast / PAGE)
    }

    /// What the journal takes as it is.
    pub(super) fn used(self, usage: Usage, ballast: u64) -> u64 {
        (usage.pages - usage.pages_free) * PAGE + usage.wal_file + WAL_INDEX_BYTES + ballast
    }

    /// What the database may grow by before its pages are moved out of the WAL: the ballast must be enough for them when the
    /// volume is filled from one moment to the next.
    pub(super) fn growth_max(self, tight: bool) -> u64 {
        // It is noticed behind the transaction that goes beyond it.
        let least = self.ballast / 4;
        let most = self.ballast.saturating_sub(self.transaction + self.transaction / 4);
        if tight { least } else { most.clamp(least, 3 * least) }
    }

    /// Free pages that the database shall have while the volume is short. A quarter of the ballast stays for the WAL.
    pub(super) fn claim(self) -> u64 {
        self.ballast / 4 * 3
    }

    /// Has the database's file take the room of the ballast, which was just given up, before anybody else does. `pages`: those
    /// that are committed.
    pub(super) fn hold(self, connection: &Connection, path: &Path, pages: u64) {
        let least = pages * PAGE;
        // Rows of that size take a little more than they hold.
        hold::hold(connection, path, least + self.claim() + self.claim() / 8, least);
    }

    /// `ballast_lacking`: bytes that the ballast has to get back first, so that no append takes what was given up for acks.
    pub(super) fn room(self, usage: Usage, ballast_lacking: u64) -> Room {
        let live = (usage.pages - usage.pages_free) * PAGE;
        let quota = self.appends_max(usage.wal_file).saturating_sub(live);
        // Pages that stand in the WAL only make the file longer at the next checkpoint.
        let growth = (usage.pages * PAGE).saturating_sub(usage.database_file);
        let committed = growth + self.wal_extent.saturating_sub(usage.wal_file);
        let lacking = committed.saturating_sub(usage.volume_free);
        let spare = usage.volume_free.saturating_sub(committed);
        let volume = if lacking > 0 {
            0
        } else {
            // Lanes go on a little beyond what stops appends before the ballast's turn comes.
            (spare + usage.pages_free * PAGE).saturating_sub(ballast_lacking + self.ballast / 2)
        };
        Room { quota, volume, spare, lacking }
    }

    /// When a full journal takes records again: not for the first page that comes free.
    pub(super) fn resume_at(self) -> u64 {
        self.transaction.min(self.appends_max(0) / 4)
    }
}

/// Twice a transaction: on a full volume the WAL cannot become longer, and is checkpointed as often.
fn wal_least(transaction: u64) -> u64 {
    2 * (transaction + transaction / 4)
}

/// What a chunk or part of so many bytes takes of the database, at most.
pub(super) fn row_bytes(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(PAGE - 4) * PAGE + APPEND_PAGES * PAGE
}

/// What operations other than appends and parts may take, all of a transaction together.
pub(super) fn small_bytes() -> u64 {
    SMALL_BYTES
}

/// Reads how things stand, from inside a transaction or outside.
pub(super) fn measure(connection: &Connection, path: &Path) -> rusqlite::Result<Usage> {
    let pragma = |query| -> rusqlite::Result<u64> {
        let value: i64 = connection.prepare_cached(query)?.query_row([], |row| row.get(0))?;
        Ok(value.cast_unsigned())
    };
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    Ok(Usage {
        pages: pragma("PRAGMA page_count")?,
        pages_free: pragma("PRAGMA freelist_count")?,
        database_file: length(path),
        wal_file: length(&super::open::wal_path(path)),
        // Where the volume does not say, SQLite finds out.
        volume_free: volume(path).map_or(u64::MAX / 2, |volume| volume.free),
    })
}

/// A file system, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Volume {
    pub(super) size: u64,
    pub(super) free: u64,
}

/// The volume that a file or directory lies on.
pub(super) fn volume(path: &Path) -> io::Result<Volume> {
    let directory = path.parent().filter(|_| !path.is_dir()).unwrap_or(path);
    let found = rustix::fs::statvfs(directory)?;
    // Some network file systems say nothing: zero blocks in all.
    let size = if found.f_blocks == 0 { u64::MAX / 2 } else { found.f_blocks * found.f_frsize };
    let free = if found.f_blocks == 0 { u64::MAX / 2 } else { found.f_bavail * found.f_frsize };
    Ok(Volume { size, free })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn the_parts_fit_their_limit_whatever_it_is() {
        for limit in [MIB, 2 * MIB, 16 * MIB, 100 * MIB, 2048 * MIB, 1 << 44] {
            let budget = Budget::new(limit, u64::MAX);
            let appends = budget.appends_max(0);
            assert!(appends >= limit / 4, "{limit}: {appends}");
            assert!(budget.pages_max(0) * PAGE + budget.wal_usual() <= limit, "{limit}");
            assert!(budget.resume_at() > 0 && budget.resume_at() < appends, "{limit}");
        }
        let small_volume = Budget::new(2048 * MIB, 16 * MIB);
        assert_eq!((small_volume.limit, small_volume.ballast), (16 * MIB, 2 * MIB));
        let large = Budget::new(2048 * MIB, u64::MAX);
        assert_eq!((large.ballast, large.checkpoint), (8 * MIB, 16 * MIB));
    }

    #[test]
    fn nothing_is_ever_less_than_nothing() {
        let budget = Budget::new(MIB, u64::MAX);
        // A limit that was lowered under a backlog, a WAL that a reader keeps, a volume that others have filled.
        let usage = Usage {
            pages: 10_000,
            pages_free: 3,
            database_file: 0,
            wal_file: 1 << 30,
            volume_free: 0,
        };
        let room = budget.room(usage, 0);
        assert_eq!(room.left(), 0);
        assert!(room.lacking > 0);
        assert!(budget.pages_max(10_000) > 10_000);
        assert!(budget.used(usage, 0) > budget.limit);
    }

    #[test]
    fn what_the_ballast_has_given_up_is_nothing_for_appends() {
        let budget = Budget::new(2048 * MIB, u64::MAX);
        let given_up = Usage { wal_file: 8 * MIB, volume_free: 8 * MIB, ..Usage::default() };
        assert!(budget.room(given_up, 0).volume > 3 * MIB);
        assert_eq!(budget.room(given_up, 8 * MIB).volume, 0);
        // Free pages need no room on the volume, but they stand in for what the ballast lacks first.
        let free = |pages| Usage {
            pages: 10_000,
            pages_free: pages,
            database_file: 10_000 * PAGE,
            ..given_up
        };
        let needed = 4 * MIB / PAGE;
        assert_eq!(budget.room(free(needed), 8 * MIB).volume, 0);
        assert_eq!(budget.room(free(needed + 10), 8 * MIB).volume, 10 * PAGE);
        assert_eq!(budget.room(free(10), 0).volume, 4 * MIB + 10 * PAGE);
    }

    #[test]
    fn free_pages_are_room_and_a_grown_wal_takes_some() {
        let budget = Budget::new(100 * MIB, u64::MAX);
        let usage = |pages_free, wal_file| Usage {
            pages: 10_000,
            pages_free,
            database_file: 10_000 * PAGE,
            wal_file,
            volume_free: 1 << 40,
        };
        let before = budget.room(usage(0, 0), 0).left();
        assert_eq!(budget.room(usage(100, 0), 0).left(), before + 100 * PAGE);
        let usual = budget.wal_usual();
        assert_eq!(budget.room(usage(0, usual), 0).left(), before);
        assert_eq!(budget.room(usage(0, usual + MIB), 0).left(), before - MIB);
    }
}
