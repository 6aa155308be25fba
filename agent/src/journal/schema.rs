//! Tables and migrations. `user_version` is the schema's number; `application_id` marks the file as ours.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::error::JournalError;

/// `WAYS`, big-endian, in the header of the database file.
pub(super) const APPLICATION_ID: i64 = 0x5741_5953;

/// The steps from one schema to the next. Never changed once released, only added to.
const MIGRATIONS: &[&str] = &[
    // 1
    "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

    CREATE TABLE streams (
        number INTEGER PRIMARY KEY,
        source TEXT NOT NULL UNIQUE,
        -- every position set by a record up to this seq stands in positions
        positions_seq INTEGER NOT NULL DEFAULT 0
    );

    -- key: stream number << 47 | first seq; data: chunk.rs
    CREATE TABLE chunks (key INTEGER PRIMARY KEY, data BLOB NOT NULL);

    -- the checkpoint of what the chunks hold; seq: the last record when it was set
    CREATE TABLE positions (
        stream INTEGER NOT NULL,
        key TEXT NOT NULL,
        seq INTEGER NOT NULL,
        value BLOB,
        PRIMARY KEY (stream, key)
    ) WITHOUT ROWID;

    CREATE TABLE lanes (
        number INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        stream INTEGER NOT NULL,
        pipeline TEXT NOT NULL,
        sink TEXT NOT NULL,
        dropped_at INTEGER,
        start_seq INTEGER NOT NULL,
        sealed_seq INTEGER NOT NULL,
        next_batch INTEGER NOT NULL DEFAULT 1,
        delivered INTEGER NOT NULL DEFAULT 0,
        dropped INTEGER NOT NULL DEFAULT 0,
        dead_lettered INTEGER NOT NULL DEFAULT 0,
        lost INTEGER NOT NULL DEFAULT 0,
        not_taken INTEGER NOT NULL DEFAULT 0,
        outputs_delivered INTEGER NOT NULL DEFAULT 0
    );

    -- sealed; parts = 0: the range of the stream itself is the content
    CREATE TABLE batches (
        lane INTEGER NOT NULL,
        number INTEGER NOT NULL,
        suffix TEXT NOT NULL DEFAULT '',
        epoch TEXT NOT NULL,
        first_seq INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        sealed_at INTEGER NOT NULL,
        inputs INTEGER NOT NULL,
        records INTEGER NOT NULL,
        parts INTEGER NOT NULL,
        sha256 BLOB NOT NULL,
        fixed TEXT NOT NULL,
        PRIMARY KEY (lane, number, suffix)
    ) WITHOUT ROWID;

    -- key: lane << 50 | batch << 14 | part; data: chunk.rs
    CREATE TABLE batch_parts (key INTEGER PRIMARY KEY, data BLOB NOT NULL);

    CREATE TABLE plugin_state (
        lane INTEGER NOT NULL,
        component TEXT NOT NULL,
        key TEXT NOT NULL,
        value BLOB NOT NULL,
        PRIMARY KEY (lane, component, key)
    ) WITHOUT ROWID;

    -- the digest of each file that our own compiler made
    CREATE TABLE compiled (key TEXT PRIMARY KEY, sha256 BLOB NOT NULL) WITHOUT ROWID;

    CREATE TABLE dead_letters (
        id INTEGER PRIMARY KEY,
        stage TEXT NOT NULL,
        source TEXT NOT NULL,
        lane INTEGER,
        batch TEXT,
        record TEXT,
        seq INTEGER,
        plugin_sha256 BLOB,
        class TEXT NOT NULL,
        reason TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        first_at INTEGER NOT NULL,
        last_at INTEGER NOT NULL,
        time INTEGER NOT NULL,
        subject TEXT NOT NULL,
        headers BLOB NOT NULL,
        payload BLOB NOT NULL,
        -- of the record, where the payload is only its beginning
        size_bytes INTEGER NOT NULL,
        place TEXT,
        disposition TEXT,
        note TEXT
    );

    CREATE TABLE losses (
        id INTEGER PRIMARY KEY,
        stream INTEGER NOT NULL,
        lane INTEGER,
        first_seq INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        at INTEGER NOT NULL,
        why TEXT NOT NULL
    );
    ",
    // 2
    "
    -- batches that are acked while their rows are there: acked.rs
    ALTER TABLE lanes ADD COLUMN acked BLOB NOT NULL DEFAULT x'';
    -- what a lane's sink keeps over restarts
    CREATE TABLE sink_notes (lane INTEGER PRIMARY KEY, note TEXT NOT NULL);
    -- a half: where it begins among the output records of its parts
    ALTER TABLE batches ADD COLUMN first_record INTEGER NOT NULL DEFAULT 0;
    -- seqs, LEB128 each: inputs of its records that were counted as dead-lettered before
    ALTER TABLE batches ADD COLUMN counted BLOB NOT NULL DEFAULT x'';
    -- cut because the retry budget was spent
    ALTER TABLE batches ADD COLUMN spent INTEGER NOT NULL DEFAULT 0;
    -- the class as which its records go to the dead letters without being sent again
    ALTER TABLE batches ADD COLUMN verdict TEXT NOT NULL DEFAULT '';
    -- EPOCH/bNUMBER and a suffix, where it goes out under another identity than its own
    ALTER TABLE batches ADD COLUMN shown TEXT NOT NULL DEFAULT '';

    -- records of its batch, when all of them were given up together and nothing of it was delivered
    ALTER TABLE dead_letters ADD COLUMN whole INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX dead_letters_by_input ON dead_letters (lane, seq);

    -- made of dead letters: outside the order of its lane
    ALTER TABLE batches ADD COLUMN replay INTEGER NOT NULL DEFAULT 0;
    -- another letter of its input was given up for good, so the input stays dead-lettered
    ALTER TABLE dead_letters ADD COLUMN stays INTEGER NOT NULL DEFAULT 0;
    -- a tick made its record: seq is the last one before it, and no input
    ALTER TABLE dead_letters ADD COLUMN of_tick INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX dead_letters_by_batch ON dead_letters (lane, batch);
    -- batches that letters fell out of: what those were that did so as a whole, and replays of some letters of each
    CREATE TABLE letter_batches (
        lane INTEGER NOT NULL,
        batch TEXT NOT NULL,
        first_seq INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        sealed_at INTEGER NOT NULL,
        sha256 BLOB NOT NULL,
        fixed TEXT NOT NULL,
        replays INTEGER NOT NULL,
        -- the note of the lane's sink when it gave them up, where it may have sent them
        sink_note TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (lane, batch)
    ) WITHOUT ROWID;
    -- letters that are on their way again: in which batch of their lane
    CREATE TABLE replaying (letter INTEGER PRIMARY KEY, lane INTEGER NOT NULL, number INTEGER NOT NULL);
    CREATE INDEX replaying_by_batch ON replaying (lane, number);
    -- replays that are under way, and what came of the last ones
    CREATE TABLE replays (
        id INTEGER PRIMARY KEY,
        lane INTEGER NOT NULL,
        number INTEGER NOT NULL,
        batch TEXT NOT NULL,
        stage TEXT NOT NULL,
        letters INTEGER NOT NULL,
        began_at INTEGER NOT NULL,
        ended_at INTEGER,
        delivered INTEGER NOT NULL DEFAULT 0,
        already INTEGER NOT NULL DEFAULT 0,
        dropped INTEGER NOT NULL DEFAULT 0,
        returned INTEGER NOT NULL DEFAULT 0,
        class TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX replays_by_batch ON replays (lane, number);
    -- what somebody decided about dead letters, the newest of it; letter: the id that it had
    CREATE TABLE dispositions (
        id INTEGER PRIMARY KEY,
        letter INTEGER NOT NULL,
        lane INTEGER,
        record TEXT,
        class TEXT NOT NULL,
        what TEXT NOT NULL,
        at INTEGER NOT NULL,
        note TEXT
    );

    -- batches with their outcome, the newest of them, for people; batch: EPOCH/bNUMBER and what stands behind it
    CREATE TABLE finished (
        id INTEGER PRIMARY KEY,
        lane INTEGER NOT NULL,
        batch TEXT NOT NULL,
        first_seq INTEGER NOT NULL,
        last_seq INTEGER NOT NULL,
        records INTEGER NOT NULL,
        finish TEXT NOT NULL,
        attempts INTEGER NOT NULL,
        sealed_at INTEGER NOT NULL,
        at INTEGER NOT NULL
    );
    ",
];

/// The schema of this agent.
pub(super) fn version() -> i64 {
    i64::try_from(MIGRATIONS.len()).expect("a handful of migrations")
}

/// Brings a database from `found` to our schema, in one transaction.
pub(super) fn migrate(
    connection: &mut Connection,
    path: &Path,
    found: i64,
) -> Result<(), JournalError> {
    let failed = |source| JournalError::sqlite(path, "making the tables", source);
    let done = usize::try_from(found).unwrap_or(0);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    for step in &MIGRATIONS[done..] {
        transaction.execute_batch(step).map_err(failed)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(failed)?;
    transaction.pragma_update(None, "user_version", version()).map_err(failed)?;
    transaction.commit().map_err(failed)
}

/// Whether a database has a table: one that is only looked into may be of an older schema.
pub(super) fn has_table(connection: &Connection, name: &str) -> rusqlite::Result<bool> {
    let query = "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
    connection.prepare_cached(query)?.query_row([name], |row| row.get(0))
}

/// The same of a column.
pub(super) fn has_column(
    connection: &Connection,
    table: &str,
    column: &str,
) -> rusqlite::Result<bool> {
    let query = "SELECT count(*) > 0 FROM pragma_table_info(?1) WHERE name = ?2";
    connection.prepare_cached(query)?.query_row([table, column], |row| row.get(0))
}
