//! When the volume runs short: the ballast's room becomes free pages of the database, before anybody else can take it.
//!
//! Room that is given back to a full volume goes to whoever writes next, and that is rarely us: a log file that filled the
//! volume goes on growing. So the ballast is not kept until a seal needs it. As soon as the volume stops appends,
//!
//! 1. what is committed is checkpointed, which makes the database as long as it must be for that;
//! 2. the ballast is given up, the WAL made as long as it may have to be, and at once the database's file too (`hold.rs`);
//! 3. that room is written into the database, row by row, each with its checkpoint, so that the WAL stays as long as it is;
//! 4. the rows are deleted: their pages are free, and they lie in the file.
//!
//! Appends do not get these pages (`Budget::room` keeps as much back as the ballast lacks), so they are there for seals, acks
//! and deletes. A crash in between leaves rows that the next start deletes, and where they cannot be deleted it is tried
//! again. Later the ballast is made anew, and free pages that are too many are given back by `shrink.rs`.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, params};

use super::ballast::Ballast;
use super::budget::{Budget, PAGE, measure, row_bytes};
use super::checkpoint::{self, Checkpointer};
use super::error::JournalError;
use super::hold;
use super::open::wal_path;
use super::quota::{Quota, set_pages_max};
use super::writer::Writer;
use crate::error_chain::Chain;

/// What one row takes.
const ROW_BYTES: u64 = 256 * 1024;
/// Pauses between two claims.
const CLAIM_EVERY: Duration = Duration::from_secs(1);
/// Rows of `meta` that only take room begin like this.
const KEY_PREFIX: &str = "room/";

impl Writer {
    /// Takes the steps above when the volume is short and the database has not enough free pages as it is: once, and again
    /// where that gave little and the volume has as much by now. Where the ballast was given up within a transaction, what is
    /// left of its room is claimed.
    pub(super) fn claim_ballast(&mut self) {
        if self.quota.rows_left
            && let Some(connection) = &self.connection
        {
            self.quota.rows_left = release(connection).is_err();
        }
        let wanted = self.quota.budget.claim();
        let free = self.quota.usage.pages_free * PAGE;
        if free >= wanted || !self.quota.is_volume_short() || !self.may_claim(wanted, free) {
            return;
        }
        let Some(connection) = self.connection.take() else { return };
        let Quota { budget, ballast, checkpointer, pages_max, .. } = &mut self.quota;
        let failed = |source| JournalError::sqlite(&self.path, "claiming room", source);
        let claimed = set_pages_max(&connection, *pages_max)
            .map_err(failed)
            .and_then(|()| claim(&connection, &self.path, *budget, checkpointer, ballast));
        let released = release(&connection).map_err(failed);
        self.quota.claimed = Some(self.clock.monotonic());
        self.quota.rows_left = released.is_err();
        match claimed.and(released).and_then(|()| self.measure(&connection)) {
            Ok(()) => tracing::info!(
                bytes = (self.quota.usage.pages_free * PAGE).saturating_sub(free),
                "Ballast went into the database, for seals, acks and deletes"
            ),
            // What was claimed is there; for the rest the volume must do.
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "Not all of the ballast went into the database");
            }
        }
        self.connection = Some(connection);
        self.dirty = true;
    }

    fn may_claim(&self, wanted: u64, free: u64) -> bool {
        let Some(last) = self.quota.claimed else { return true };
        let is_over = self.clock.monotonic().since(last) >= CLAIM_EVERY;
        is_over && free < wanted / 2 && self.quota.usage.volume_free >= wanted
    }
}

/// Steps 1 to 3.
pub(super) fn claim(
    connection: &Connection,
    path: &Path,
    budget: Budget,
    checkpointer: &Checkpointer,
    ballast: &mut Ballast,
) -> Result<(), JournalError> {
    let failed = |source| JournalError::sqlite(path, "claiming room", source);
    let row = ROW_BYTES.min(budget.claim() / 4).max(PAGE);
    let first = checkpointer.begin_anew(connection);
    let usage = measure(connection, path).map_err(failed)?;
    ballast.give_up();
    let extended = checkpoint::extend(&wal_path(path), budget.wal_extent);
    budget.hold(connection, path, usage.pages);
    // Where the database had no room to grow, now it has.
    first.or_else(|_| checkpointer.begin_anew(connection))?;
    extended?;
    let insert = "INSERT INTO meta (key, value) VALUES (?1, zeroblob(?2))";
    let mut statement = connection.prepare_cached(insert).map_err(failed)?;
    for number in 0..budget.claim().div_ceil(row) {
        let usage = measure(connection, path).map_err(failed)?;
        let in_file = (usage.database_file / PAGE).saturating_sub(usage.pages);
        // What the file has no room for would stay in the WAL.
        if (in_file + usage.pages_free) * PAGE < row_bytes(row.try_into().unwrap_or(usize::MAX / 2))
        {
            break;
        }
        let parameters = params![format!("{KEY_PREFIX}{number}"), row.cast_signed()];
        statement.execute(parameters).map_err(failed)?;
        // Behind a reader that stays, each row would make the WAL longer and wait for it.
        if !checkpointer.begin_anew(connection)? {
            break;
        }
    }
    hold::let_go(connection);
    Ok(())
}

/// Step 4, and what a start does about an earlier run's rows.
pub(super) fn release(connection: &Connection) -> rusqlite::Result<()> {
    let delete = "DELETE FROM meta WHERE key >= ?1 AND key < ?1 || '~'";
    connection.prepare_cached(delete)?.execute([KEY_PREFIX]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::budget;
    use super::super::config::Durability;
    use super::super::open::{DATABASE_NAME, connect};
    use super::super::schema;
    use super::*;

    #[test]
    fn the_ballast_becomes_free_pages_and_a_wal_that_need_not_grow() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_NAME);
        let mut connection = connect(&path, Durability::Full).unwrap();
        schema::migrate(&mut connection, &path, 0).unwrap();
        let budget = Budget::new(16 << 20, u64::MAX);
        let mut ballast = Ballast::in_directory(dir.path(), budget.ballast);
        ballast.restore();
        let checkpointer = Checkpointer::new(&path, Duration::from_secs(1));
        // As a start leaves it on a volume without room.
        assert!(checkpointer.everything(&connection).unwrap());
        let before = budget::measure(&connection, &path).unwrap();
        assert!(before.wal_file < budget.wal_extent, "{before:?}");
        claim(&connection, &path, budget, &checkpointer, &mut ballast).unwrap();
        release(&connection).unwrap();
        let after = budget::measure(&connection, &path).unwrap();
        assert_eq!(ballast.held(), 0);
        assert_eq!(after.wal_file, budget.wal_extent, "{after:?}");
        assert!(after.pages_free * PAGE >= budget.claim(), "{after:?}");
        // They lie in the file: nothing of it is still to be made room for.
        assert!(after.database_file >= budget.claim(), "{after:?}");
    }
}
