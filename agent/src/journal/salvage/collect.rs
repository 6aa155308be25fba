//! The two passes of a salvage: what SQLite still reads row by row, and what stands in the pages; united by key in a new
//! database.
//!
//! Chunks and parts are taken when their checksum is right. Where two say something of the same key, the one that was written
//! later is right: a seq is used again only after its first use was rolled back. Rows of the small tables have no checksum:
//! SQLite's word counts where it reads a table to its end; only then what has their shape in the pages is looked at.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::super::chunk::{self, Header, Kind};
use super::super::error::JournalError;
use super::super::open::{connect_builder, connect_bystander};
use super::super::page_scan::{Found, Images};
use super::super::schema;
use super::super::state::value;
use crate::clock::{Clock, Monotonic};
use crate::limits::{SALVAGE_LISTED_MAX, SALVAGE_PROGRESS_MS};
use crate::record::id::Epoch;

/// A small table, and which of two rows of it is the later one.
struct SmallTable {
    name: &'static str,
    columns: usize,
    /// Those of its first schema: what later ones added has a default.
    columns_least: usize,
    is_row: fn(&[Value]) -> bool,
    /// What of the new database is older than a found row, whose columns are ?1, ?2 and so on.
    older: &'static str,
}

/// Whose journal it is, how many starts it had, and the largest id of a dead letter.
const META: [&str; 3] = ["agent", "starts", "letters"];

/// `compiled` is left out: a plugin whose digest is not known is compiled again.
const SMALL_TABLES: [SmallTable; 12] = [
    SmallTable {
        name: "meta",
        columns: 2,
        columns_least: 2,
        is_row: |row| matches!(row, [Value::Text(key), Value::Text(_)] if META.contains(&key.as_str())),
        older: "key = ?1 AND key <> 'agent' AND CAST(value AS INTEGER) < CAST(?2 AS INTEGER)",
    },
    SmallTable {
        name: "streams",
        columns: 3,
        columns_least: 3,
        is_row: |row| matches!(row, [Value::Integer(1..), Value::Text(_), Value::Integer(0..)]),
        older: "number = ?1 AND positions_seq < ?3",
    },
    SmallTable {
        name: "positions",
        columns: 4,
        columns_least: 4,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..),
                    Value::Text(_),
                    Value::Integer(0..),
                    Value::Blob(_) | Value::Null
                ]
            )
        },
        older: "stream = ?1 AND key = ?2 AND seq < ?3",
    },
    SmallTable {
        name: "lanes",
        columns: 16,
        columns_least: 15,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..), Value::Text(_), Value::Integer(1..), Value::Text(_),
                    Value::Text(_), Value::Integer(_) | Value::Null, rest @ ..
                ] if rest.split_at_checked(9).is_some_and(|(counts, acked)| {
                    counts.iter().all(|value| matches!(value, Value::Integer(0..)))
                        && matches!(acked, [] | [Value::Blob(_)])
                })
            )
        },
        older: "number = ?1 AND (next_batch, delivered + dropped + dead_lettered + lost)
                < (?9, ?10 + ?11 + ?12 + ?13)",
    },
    SmallTable {
        name: "batches",
        columns: 18,
        columns_least: 12,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..), Value::Integer(1..), Value::Text(_), Value::Text(epoch),
                    _, _, _, _, _, _, Value::Blob(sha256), Value::Text(_), ..
                ] if epoch.len() == 10 && sha256.len() == 32
            )
        },
        older: "0",
    },
    SmallTable {
        name: "plugin_state",
        columns: 4,
        columns_least: 4,
        is_row: |row| {
            matches!(row, [Value::Integer(1..), Value::Text(_), Value::Text(_), Value::Blob(_)])
        },
        older: "lane = ?1 AND component = ?2 AND key = ?3",
    },
    SmallTable {
        name: "dead_letters",
        columns: 24,
        columns_least: 21,
        is_row: |row| {
            matches!(row, [Value::Integer(1..), Value::Text(_), Value::Text(_), ..])
                && matches!(row.get(14..17), Some([Value::Text(_), Value::Blob(_), Value::Blob(_)]))
        },
        older: "0",
    },
    SmallTable {
        name: "letter_batches",
        columns: 9,
        columns_least: 8,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..), Value::Text(batch), Value::Integer(0..),
                    Value::Integer(0..), Value::Integer(_), Value::Blob(_), Value::Text(_),
                    Value::Integer(0..), ..
                ] if batch.contains("/b")
            )
        },
        older: "lane = ?1 AND batch = ?2 AND replays < ?8",
    },
    // Rows in the pages look like those of indexes: only what SQLite reads counts.
    SmallTable {
        name: "replaying",
        columns: 2,
        columns_least: 3,
        is_row: |row| {
            matches!(row, [Value::Integer(1..), Value::Integer(1..), Value::Integer(1..)])
        },
        older: "0",
    },
    SmallTable {
        name: "replays",
        columns: 13,
        columns_least: 13,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..),
                    Value::Integer(1..),
                    Value::Integer(1..),
                    Value::Text(_),
                    Value::Text(_),
                    ..
                ]
            )
        },
        older: "0",
    },
    SmallTable {
        name: "losses",
        columns: 7,
        columns_least: 7,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..),
                    Value::Integer(1..),
                    Value::Integer(_) | Value::Null,
                    Value::Integer(1..),
                    Value::Integer(1..),
                    Value::Integer(_),
                    Value::Text(_)
                ]
            )
        },
        older: "0",
    },
    SmallTable {
        name: "dispositions",
        columns: 8,
        columns_least: 8,
        is_row: |row| {
            matches!(
                row,
                [
                    Value::Integer(1..),
                    Value::Integer(1..),
                    Value::Integer(_) | Value::Null,
                    Value::Text(_) | Value::Null,
                    Value::Text(_),
                    Value::Text(_),
                    Value::Integer(_),
                    Value::Text(_) | Value::Null
                ]
            )
        },
        older: "0",
    },
];

/// The new database while it is put together.
pub(super) struct Building {
    pub(super) db: Connection,
    pub(super) path: std::path::PathBuf,
    /// Chunks and parts that were met and cannot be believed.
    pub(super) unreadable: BTreeMap<i64, Kind>,
    /// More of them than are remembered.
    pub(super) unreadable_more: u64,
    /// The latest run that wrote anything.
    pub(super) epoch: Epoch,
    /// Small tables that SQLite read to their end.
    complete: HashSet<&'static str>,
}

impl Building {
    pub(super) fn new(path: &Path) -> Result<Self, JournalError> {
        let mut db = connect_builder(path)?;
        schema::migrate(&mut db, path, 0)?;
        let building = Self {
            db,
            path: path.to_owned(),
            unreadable: BTreeMap::new(),
            unreadable_more: 0,
            epoch: Epoch::default(),
            complete: HashSet::new(),
        };
        building.db.execute_batch("BEGIN").map_err(|error| building.failed(error))?;
        Ok(building)
    }

    pub(super) fn failed(&self, error: rusqlite::Error) -> JournalError {
        JournalError::sqlite(&self.path, "salvaging", error)
    }

    /// Whether SQLite read this table to its end.
    pub(super) fn is_complete(&self, table: &str) -> bool {
        self.complete.contains(table)
    }

    pub(super) fn execute(
        &self,
        statement: &str,
        parameters: impl rusqlite::Params,
    ) -> Result<usize, JournalError> {
        let run = || self.db.prepare_cached(statement)?.execute(parameters);
        run().map_err(|error| self.failed(error))
    }

    /// First pass: what SQLite reads. A table ends at the first error; what stands behind it is left to the second pass.
    pub(super) fn collect_by_sql(&mut self, database: &Path) -> Result<(), JournalError> {
        let damaged = match connect_bystander(database) {
            Ok(damaged) => damaged,
            // The index of the WAL has no room, which says nothing of the tables.
            Err(error) if error.is_full() => return Err(error),
            Err(_) => return Ok(()),
        };
        for table in &SMALL_TABLES {
            if self.copy_table(&damaged, table)? {
                self.complete.insert(table.name);
            }
        }
        for table in ["chunks", "batch_parts"] {
            let query = format!("SELECT key, data FROM {table} ORDER BY key");
            let Ok(mut statement) = damaged.prepare(&query) else { continue };
            let Ok(mut rows) = statement.query([]) else { continue };
            while let Ok(Some(row)) = rows.next() {
                let (Ok(key), Ok(data)) = (row.get::<_, i64>(0), row.get_ref(1)) else { continue };
                // Its type is no part of what is proven.
                let data = data.as_bytes().unwrap_or_default();
                match chunk::check(data) {
                    Ok(header) if key_of(&header) == Some(key) => self.take(key, &header, data)?,
                    _ => {
                        let kind = chunk::header(data).map(|header| header.label.kind);
                        self.note_unreadable(key, kind.unwrap_or(kind_of_key(table, key)));
                    }
                }
            }
        }
        Ok(())
    }

    fn copy_table(&self, damaged: &Connection, table: &SmallTable) -> Result<bool, JournalError> {
        let Ok(mut statement) = damaged.prepare(&format!("SELECT * FROM {}", table.name)) else {
            return Ok(false);
        };
        let columns = statement.column_count();
        let names = statement.column_names().collect::<Vec<_>>().join(", ");
        let insert = format!(
            "INSERT OR IGNORE INTO {} ({names}) VALUES ({})",
            table.name,
            placeholders(columns)
        );
        let Ok(mut rows) = statement.query([]) else { return Ok(false) };
        loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => return Ok(true),
                Err(_) => return Ok(false),
            };
            let values: Result<Vec<Value>, _> = (0..columns).map(|index| row.get(index)).collect();
            // Text that is none any more: the row is not believed.
            let Ok(values) = values else { continue };
            if values.len() >= table.columns_least && (table.is_row)(&values) {
                self.execute(&insert, params_from_iter(values))?;
            }
        }
    }

    /// Second pass: what stands in the pages.
    pub(super) fn collect_from_pages(
        &mut self,
        images: &Images,
        clock: &dyn Clock,
    ) -> Result<(), JournalError> {
        let wanted = SMALL_TABLES.iter().any(|table| !self.is_complete(table.name));
        let pages = images.len();
        let mut told = clock.monotonic();
        images.scan(wanted, |done, found| {
            told = tell_progress(clock, told, done, pages);
            match found {
                Found::Row { key, row } => {
                    let header = chunk::check(&row);
                    header.map_or(Ok(()), |header| self.take(key, &header, &row))
                }
                Found::Unreadable { key, kind } => {
                    self.note_unreadable(key, kind);
                    Ok(())
                }
                Found::Record { rowid, values } => self.take_record(rowid, values),
            }
        })
    }

    /// Takes a checked chunk or part, unless a later one stands under its key.
    fn take(&mut self, key: i64, header: &Header, row: &[u8]) -> Result<(), JournalError> {
        let table = match header.label.kind {
            Kind::Chunk { .. } => "chunks",
            Kind::Part { .. } => "batch_parts",
        };
        let epoch = header.label.epoch;
        if plausible(epoch) {
            self.epoch = self.epoch.max(epoch);
        }
        let known = self.data(table, key)?;
        if let Some(known) = &known {
            if *known == row {
                return Ok(());
            }
            let is_later = chunk::header(known).is_ok_and(|known| rank(&known) >= rank(header));
            if is_later {
                return Ok(());
            }
        }
        self.execute(&format!("INSERT OR REPLACE INTO {table} VALUES (?1, ?2)"), (key, row))?;
        Ok(())
    }

    /// One chunk or part of the new database.
    pub(super) fn data(&self, table: &str, key: i64) -> Result<Option<Vec<u8>>, JournalError> {
        let query = format!("SELECT data FROM {table} WHERE key = ?1");
        value(&self.db, &query, [key]).map_err(|error| self.failed(error))
    }

    fn take_record(&self, rowid: Option<i64>, mut values: Vec<Value>) -> Result<(), JournalError> {
        // In a rowid table the first column is the key, which stands outside of the record.
        if let (Some(rowid), Some(first @ Value::Null)) = (rowid, values.first_mut()) {
            *first = Value::Integer(rowid);
        }
        let table = SMALL_TABLES.iter().find(|table| {
            (table.columns_least..=table.columns).contains(&values.len())
                && !self.is_complete(table.name)
                && (table.is_row)(&values)
        });
        let Some(table) = table else { return Ok(()) };
        let used = (1..=values.len()).filter(|n| table.older.contains(&format!("?{n}"))).max();
        if let Some(used) = used {
            let delete = format!("DELETE FROM {} WHERE {}", table.name, table.older);
            self.execute(&delete, params_from_iter(&values[..used]))?;
        }
        let names = self.column_names(table.name, values.len())?;
        let insert = format!(
            "INSERT OR IGNORE INTO {} ({names}) VALUES ({})",
            table.name,
            placeholders(values.len())
        );
        self.execute(&insert, params_from_iter(values))?;
        Ok(())
    }

    /// The names of the first columns of a table: a row that an older schema wrote has no more.
    fn column_names(&self, table: &str, count: usize) -> Result<String, JournalError> {
        let read = || {
            let mut query = self.db.prepare_cached("SELECT name FROM pragma_table_info(?1)")?;
            let names = query.query_map([table], |row| row.get::<_, String>(0))?;
            names.take(count).collect::<Result<Vec<_>, _>>()
        };
        Ok(read().map_err(|error| self.failed(error))?.join(", "))
    }

    fn note_unreadable(&mut self, key: i64, kind: Kind) {
        if self.unreadable.len() < SALVAGE_LISTED_MAX || self.unreadable.contains_key(&key) {
            self.unreadable.insert(key, kind);
        } else {
            self.unreadable_more += 1;
        }
    }
}

fn tell_progress(clock: &dyn Clock, told: Monotonic, done: u64, pages: u64) -> Monotonic {
    let now = clock.monotonic();
    if now.since(told).as_millis() < u128::from(SALVAGE_PROGRESS_MS) {
        return told;
    }
    tracing::info!(pages_done = done, pages, "Salvage of the journal goes on");
    now
}

/// Which of two rows under one key was written later.
pub(super) fn rank(header: &Header) -> (Epoch, u64, i64) {
    let label = header.label;
    (label.epoch, label.stamp.monotonic.0, label.stamp.wall.0)
}

/// How many starts an epoch counts.
pub(super) fn starts_of(epoch: Epoch) -> u64 {
    let [a, b, c, ..] = epoch.to_bytes();
    u64::from_be_bytes([0, 0, 0, 0, 0, a, b, c]) >> 4
}

/// The largest number of starts is where counting stops; only a fault would come near.
fn plausible(epoch: Epoch) -> bool {
    starts_of(epoch) < (1 << 20) - 1
}

fn key_of(header: &Header) -> Option<i64> {
    use super::super::state::{chunk_key, part_key};
    use crate::record::id::{BatchNumber, LaneNumber, StreamNumber};

    match header.label.kind {
        Kind::Chunk { stream } if header.label.first_seq.0 < 1 << 47 => {
            Some(chunk_key(StreamNumber(stream), header.label.first_seq))
        }
        Kind::Part { lane, batch, part } if batch < 1 << 36 && part < 1 << 14 => {
            Some(part_key(LaneNumber(lane), BatchNumber(batch), part.into()))
        }
        _ => None,
    }
}

fn kind_of_key(table: &str, key: i64) -> Kind {
    let bits = |shift: u32, width: u32| (key.cast_unsigned() >> shift) & ((1 << width) - 1);
    if table == "chunks" {
        Kind::Chunk { stream: u16::try_from(bits(47, 16)).unwrap_or(0) }
    } else {
        Kind::Part {
            lane: u16::try_from(bits(50, 13)).unwrap_or(0),
            batch: bits(14, 36),
            part: u32::try_from(bits(0, 14)).unwrap_or(0),
        }
    }
}

fn placeholders(count: usize) -> String {
    let all: Vec<_> = (1..=count).map(|number| format!("?{number}")).collect();
    all.join(", ")
}
