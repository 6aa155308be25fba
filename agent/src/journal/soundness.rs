//! What a start looks at before it trusts a database: damage is found here, while everything is as the last run left it, and
//! not in the middle of the work.
//!
//! The keys of the large tables are read in order, which goes through every leaf and interior page but not through the
//! content; that proves itself when it is read. Large journals are not read to their end: what is damaged there is met by the
//! lane that comes to it.

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use super::error::JournalError;
use super::open::{connect_bystander, is_first_write};
use super::schema;
use super::state::State;
use crate::clock::Clock;
use crate::limits::{BATCH_PARTS_MAX, START_CHECK_MS_MAX};

/// Schema numbers above this are no newer agent's but flipped bits.
const SCHEMA_PLAUSIBLE_MAX: i64 = 10_000;
/// Keys between two looks at the clock.
const KEYS_A_LOOK: usize = 1024;
/// SQLite's code for a file that ends inside a page.
const SHORT_READ: i32 = rusqlite::ffi::SQLITE_IOERR_SHORT_READ;

/// Looks through a database that exists and is ours.
///
/// # Errors
/// [`JournalError::Damaged`], [`JournalError::Implausible`] or what else says that a salvage is due.
pub(super) fn check(path: &Path, clock: &dyn Clock) -> Result<(), JournalError> {
    let connection = match connect_bystander(path) {
        Err(error) if is_first_write(path, &error) => return Ok(()),
        connected => connected?,
    };
    let failed = |source| JournalError::sqlite(path, "looking through the tables", source);
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if !is_plausible(version, tables) {
        return Err(implausible(path, format!("its schema number {version}")));
    }
    if version != schema::version() {
        // An older one is migrated first; one without tables was never begun.
        return Ok(());
    }
    let begun = clock.monotonic();
    for table in ["chunks", "batch_parts"] {
        walk(&connection, path, table, &mut || {
            clock.monotonic().since(begun).as_millis() < u128::from(START_CHECK_MS_MAX)
        })?;
    }
    let state = State::load(&connection, path)?;
    match what_cannot_be(&state) {
        Some(what) => Err(implausible(path, what)),
        None => Ok(()),
    }
}

/// Whether a schema number can be that of some agent, past or future.
pub(super) fn is_plausible(version: i64, tables: i64) -> bool {
    if tables == 0 { version == 0 } else { (1..=SCHEMA_PLAUSIBLE_MAX).contains(&version) }
}

fn implausible(path: &Path, what: String) -> JournalError {
    JournalError::Implausible { path: path.to_owned(), what }
}

fn walk(
    connection: &Connection,
    path: &Path,
    table: &str,
    has_time: &mut impl FnMut() -> bool,
) -> Result<(), JournalError> {
    let failed = |source| JournalError::sqlite(path, "looking through the tables", source);
    let mut query =
        connection.prepare(&format!("SELECT key FROM {table} ORDER BY key")).map_err(failed)?;
    let mut rows = query.query([]).map_err(failed)?;
    let (mut before, mut read) = (0, 0);
    while let Some(row) = rows.next().map_err(failed)? {
        let key: i64 = row.get(0).map_err(failed)?;
        if key <= before {
            return Err(implausible(path, format!("the order of the keys in {table}")));
        }
        before = key;
        read += 1;
        if read % KEYS_A_LOOK == 0 && !has_time() {
            break;
        }
    }
    Ok(())
}

/// Numbers without a checksum that contradict each other.
pub(super) fn what_cannot_be(state: &State) -> Option<String> {
    for lane in state.lanes.values() {
        let Some(stream) = state.streams.get(&lane.stream) else {
            return Some(format!("lane {} without its stream", lane.name));
        };
        let head = stream.next_seq.before();
        if lane.start_seq > lane.sealed_seq || lane.sealed_seq > head {
            return Some(format!(
                "lane {} from {} at {} with a head of {head}",
                lane.name, lane.start_seq, lane.sealed_seq
            ));
        }
        let totals = lane.totals;
        let counts = [totals.delivered, totals.dropped, totals.dead_lettered, totals.lost];
        let is_too_much = |count: &u64| *count >= 1 << 47;
        let batch = lane.unacked.iter().find(|batch| {
            batch.number >= lane.next_batch
                || batch.first_seq > lane.sealed_seq.next()
                || batch.first_seq > batch.last_seq.next()
                || batch.first_seq.0 == 0
                || batch.parts > BATCH_PARTS_MAX
                || is_too_much(&batch.inputs)
        });
        if let Some(batch) = batch {
            return Some(format!("batch {} of lane {}", batch.number, lane.name));
        }
        if counts.iter().any(is_too_much) {
            return Some(format!("the totals of lane {}", lane.name));
        }
    }
    None
}

/// Whether an error of a start says that the files are damaged.
pub(super) fn is_damage(error: &JournalError) -> bool {
    match error {
        JournalError::Damaged { .. }
        | JournalError::WalDamaged { .. }
        | JournalError::ChunkDamaged { .. }
        | JournalError::Implausible { .. }
        | JournalError::DatabaseLost { .. }
        | JournalError::DamageMet { .. }
        | JournalError::Missing { .. } => true,
        // What reads a table finds no table, or other things in it than were put there.
        JournalError::Sqlite { source, .. } => match source.sqlite_error() {
            None => true,
            Some(error) => error.code == ErrorCode::Unknown || error.extended_code == SHORT_READ,
        },
        _ => false,
    }
}
