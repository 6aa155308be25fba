//! Finds chunks, batch parts and rows of the small tables in the pages of a damaged database and of its WAL, without SQLite.
//!
//! Works where SQLite reads nothing: page 1 lost, interior pages lost, commits behind a broken WAL frame. A chunk or part is
//! believed by its own checksum, so it does not matter what its page says of itself. Rows of the small tables have none; they
//! are recognised by their shape, and whoever uses them checks what they say.
//!
//! A cell that holds a chunk is: varint length of the record, varint key, then the record: its header (length, type of the
//! key, type of the blob), then the blob. What does not fit the page goes on in overflow pages, four bytes with the number of
//! the next one in front. Key and length are known from the chunk's own header, so every byte in front of it is known too;
//! that, not the mark alone, tells a chunk from a payload that holds the bytes of one.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rusqlite::types::Value;

use super::chunk::{self, HEADER_BYTES, Kind};
use super::open::PAGE_BYTES;
use super::state::{chunk_key, part_key};
use super::wal;
use crate::limits::{BATCH_PARTS_MAX, SALVAGED_ROW_BYTES_MAX};
use crate::record::id::{BatchNumber, LaneNumber, StreamNumber};

const LEAF_TABLE: u8 = 0x0d;
const LEAF_INDEX: u8 = 0x0a;
const INTERIOR_INDEX: u8 = 0x02;
/// Bytes of page 1 that stand in front of its cells.
const FILE_HEADER_BYTES: usize = 100;
/// Least bytes of a record that stay on its page when it overflows, and most of a table's and of an index's.
const LOCAL_MIN: usize = (PAGE_BYTES - 12) * 32 / 255 - 23;
const TABLE_LOCAL_MAX: usize = PAGE_BYTES - 35;
const INDEX_LOCAL_MAX: usize = (PAGE_BYTES - 12) * 64 / 255 - 23;
const OVERFLOW_BYTES: usize = PAGE_BYTES - 4;

type Page = [u8; PAGE_BYTES];

/// What was found.
pub(super) enum Found {
    /// A chunk or part whose checksum is right.
    Row { key: i64, row: Vec<u8> },
    /// A chunk or part that is there and cannot be believed.
    Unreadable { key: i64, kind: Kind },
    /// A row of some table: the key of a rowid table, and its columns as stored.
    Record { rowid: Option<i64>, values: Vec<Value> },
}

/// Where a page is looked for.
#[derive(Debug, Clone, Copy)]
enum View {
    /// As of the commit that holds this frame.
    Commit(usize),
    /// The newest there is.
    Newest,
    /// In the database file alone.
    Database,
}

/// The pages of a database and its WAL. Both are only read.
pub(super) struct Images {
    database: Option<File>,
    pages: u64,
    log: Option<File>,
    frames: Vec<wal::FramePlace>,
    by_page: HashMap<u32, Vec<usize>>,
}

impl Images {
    /// Opens what is there of both.
    pub(super) fn open(database: &Path, log: &Path) -> io::Result<Self> {
        let database = open_if_there(database)?;
        let bytes = database.as_ref().map_or(Ok(0), |file| file.metadata().map(|m| m.len()))?;
        let log = open_if_there(log)?;
        let frames = log.as_ref().map_or_else(|| Ok(Vec::new()), wal::frames)?;
        let mut by_page: HashMap<u32, Vec<usize>> = HashMap::new();
        for (index, frame) in frames.iter().enumerate() {
            by_page.entry(frame.page).or_default().push(index);
        }
        Ok(Self { database, pages: bytes.div_ceil(PAGE_BYTES as u64), log, frames, by_page })
    }

    /// Pages to go through, for progress.
    pub(super) fn len(&self) -> u64 {
        self.pages + self.frames.len() as u64
    }

    /// Goes through all pages, oldest first: the database, then the WAL in the order of its commits. `Break` from `found` ends
    /// it early. With `records`, the rows of small tables are told too.
    pub(super) fn scan<E>(
        &self,
        records: bool,
        mut found: impl FnMut(u64, Found) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut page = [0; PAGE_BYTES];
        let mut done = 0;
        for number in 1..=self.pages {
            done += 1;
            let Ok(number) = u32::try_from(number) else { break };
            if self.database_page(number, &mut page) {
                let views = [View::Database, View::Newest];
                self.scan_page(number, &page, &views, records, &mut |f| found(done, f))?;
            }
        }
        for index in 0..self.frames.len() {
            done += 1;
            if self.frame_page(index, &mut page) {
                let views = [View::Commit(index), View::Newest, View::Database];
                let number = self.frames[index].page;
                self.scan_page(number, &page, &views, records, &mut |f| found(done, f))?;
            }
        }
        Ok(())
    }

    /// Whether any chunk or part of ours is in there.
    pub(super) fn hold_ours(&self) -> bool {
        self.scan(false, |_, _| Err(())).is_err()
    }

    fn database_page(&self, number: u32, page: &mut Page) -> bool {
        let Some(file) = &self.database else { return false };
        read_page(file, (u64::from(number) - 1) * PAGE_BYTES as u64, page)
    }

    fn frame_page(&self, index: usize, page: &mut Page) -> bool {
        let Some(file) = &self.log else { return false };
        read_page(file, self.frames[index].offset, page)
    }

    fn page(&self, number: u32, view: View, page: &mut Page) -> bool {
        if number == 0 {
            return false;
        }
        let newest = self.by_page.get(&number).and_then(|frames| match view {
            View::Database => None,
            View::Newest => frames.last(),
            View::Commit(index) => {
                let end = self.frames[index].commit_end;
                frames.iter().rev().find(|frame| **frame <= end)
            }
        });
        match newest {
            Some(index) => self.frame_page(*index, page),
            None => self.database_page(number, page),
        }
    }

    fn scan_page<E>(
        &self,
        number: u32,
        page: &Page,
        views: &[View],
        records: bool,
        found: &mut impl FnMut(Found) -> Result<(), E>,
    ) -> Result<(), E> {
        let header_at = if number == 1 { FILE_HEADER_BYTES } else { 0 };
        // The first byte of an overflow page is zero: it would be page 16 777 216 that follows.
        if page[0] == 0 && number != 1 {
            return Ok(());
        }
        let mut from = header_at;
        for at in memchr::memmem::find_iter(page.as_slice(), &chunk::MAGIC) {
            if at < from {
                continue;
            }
            let Some(cell) = ChunkCell::at(page, at) else { continue };
            let first = page.get(at..at + cell.local).unwrap_or_default();
            let next = page.get(at + cell.local..at + cell.local + 4).map_or(0, be32);
            let whole = views.iter().find_map(|view| {
                let row = self.follow(first, next, cell.bytes, *view)?;
                chunk::check(&row).is_ok().then_some(row)
            });
            // What stands inside of a whole chunk is payload. A broken one may be what is left of a cell that was freed, and a
            // later one may begin where it had its content.
            if whole.is_some() {
                from = at + cell.local;
            }
            let (key, kind) = (cell.key, cell.kind);
            found(whole.map_or(Found::Unreadable { key, kind }, |row| Found::Row { key, row }))?;
        }
        if records {
            for (rowid, values) in self.records(page, header_at, views) {
                found(Found::Record { rowid, values })?;
            }
        }
        Ok(())
    }

    /// `bytes` bytes that begin with `first` and go on in overflow pages.
    fn follow(&self, first: &[u8], next: u32, bytes: usize, view: View) -> Option<Vec<u8>> {
        let mut row = first.to_vec();
        row.truncate(bytes);
        let mut next = next;
        let mut page = [0; PAGE_BYTES];
        // Each turn adds bytes, so a chain that bites its tail ends too.
        while row.len() < bytes {
            if !self.page(next, view, &mut page) {
                return None;
            }
            let wanted = (bytes - row.len()).min(OVERFLOW_BYTES);
            row.extend_from_slice(&page[4..4 + wanted]);
            next = be32(&page[..4]);
        }
        Some(row)
    }

    /// The cells of a leaf page, or of an interior page of an index, that can be decoded.
    fn records(
        &self,
        page: &Page,
        header_at: usize,
        views: &[View],
    ) -> Vec<(Option<i64>, Vec<Value>)> {
        let (kind, first) = (page[header_at], header_at + 8);
        let first = match kind {
            LEAF_TABLE | LEAF_INDEX => first,
            INTERIOR_INDEX => first + 4,
            _ => return Vec::new(),
        };
        let count = usize::from(u16::from_be_bytes([page[header_at + 3], page[header_at + 4]]));
        let pointers = page[first..].chunks_exact(2).take(count.min(PAGE_BYTES / 4));
        let cells = pointers.filter_map(|pointer| {
            let mut at = usize::from(u16::from_be_bytes([pointer[0], pointer[1]]));
            if kind == INTERIOR_INDEX {
                at += 4;
            }
            let bytes = usize::try_from(read_varint(page, &mut at)?).ok()?;
            let rowid = match kind {
                LEAF_TABLE => Some(read_varint(page, &mut at)?.cast_signed()),
                _ => None,
            };
            let local_max = if kind == LEAF_TABLE { TABLE_LOCAL_MAX } else { INDEX_LOCAL_MAX };
            let local = local_bytes(bytes, local_max);
            if bytes > SALVAGED_ROW_BYTES_MAX {
                return None;
            }
            let begin = page.get(at..at + local)?;
            let next = page.get(at + local..at + local + 4).map_or(0, be32);
            let values = views
                .iter()
                .find_map(|view| decode_record(&self.follow(begin, next, bytes, *view)?))?;
            Some((rowid, values))
        });
        cells.collect()
    }
}

/// A cell that holds a chunk or part, as its header says.
struct ChunkCell {
    key: i64,
    kind: Kind,
    /// Bytes of the whole chunk, and of it on this page.
    bytes: usize,
    local: usize,
}

impl ChunkCell {
    /// The cell whose blob begins at `at`, if every byte in front of it is as it must be.
    fn at(page: &Page, at: usize) -> Option<Self> {
        let header = chunk::header(page.get(at..at + HEADER_BYTES)?).ok()?;
        let label = header.label;
        let key = match label.kind {
            Kind::Chunk { stream } if label.first_seq.0 > 0 && label.first_seq.0 < 1 << 47 => {
                chunk_key(StreamNumber(stream), label.first_seq)
            }
            Kind::Part { lane, batch, part }
                if batch < 1 << 36 && u64::from(part) < BATCH_PARTS_MAX =>
            {
                part_key(LaneNumber(lane), BatchNumber(batch), part.into())
            }
            _ => return None,
        };
        let bytes = header.row_bytes();
        let mut record_header = vec![0, 0];
        push_varint(&mut record_header, bytes as u64 * 2 + 12);
        record_header[0] = u8::try_from(record_header.len()).ok()?;
        let mut before = Vec::new();
        push_varint(&mut before, (record_header.len() + bytes) as u64);
        push_varint(&mut before, key.cast_unsigned());
        before.extend_from_slice(&record_header);
        if page.get(at.checked_sub(before.len())?..at)? != before.as_slice() {
            return None;
        }
        let record = record_header.len() + bytes;
        let local = local_bytes(record, TABLE_LOCAL_MAX) - record_header.len();
        Some(Self { key, kind: label.kind, bytes, local })
    }
}

fn open_if_there(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a page; a file that ends inside of it leaves the rest zero. A place that the disk cannot read is no page.
fn read_page(file: &File, offset: u64, page: &mut Page) -> bool {
    page.fill(0);
    let mut filled = 0;
    while filled < PAGE_BYTES {
        match file.read_at(&mut page[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
    filled > 0
}

/// How much of a record stays on its page.
fn local_bytes(record: usize, local_max: usize) -> usize {
    if record <= local_max {
        return record;
    }
    let surplus = LOCAL_MIN + (record - LOCAL_MIN) % OVERFLOW_BYTES;
    if surplus <= local_max { surplus } else { LOCAL_MIN }
}

/// SQLite's varint: up to eight bytes of seven bits, then one of eight, the highest first.
fn read_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0;
    for index in 0..9 {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if index == 8 {
            return Some(value << 8 | u64::from(byte));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some(value)
}

fn push_varint(out: &mut Vec<u8>, value: u64) {
    if value >= 1 << 56 {
        out.extend((0..8).map(|index| 0x80 | low_byte(value >> (57 - 7 * index) & 0x7f)));
        out.push(low_byte(value));
        return;
    }
    let groups = (1..8).take_while(|group| value >> (7 * group) != 0).count();
    for group in (0..=groups).rev() {
        let more = if group > 0 { 0x80 } else { 0 };
        out.push(more | low_byte(value >> (7 * group) & 0x7f));
    }
}

fn low_byte(value: u64) -> u8 {
    value.to_le_bytes()[0]
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.try_into().map_or(0, u32::from_be_bytes)
}

/// The columns of a record. `None` when its lengths do not add up.
fn decode_record(record: &[u8]) -> Option<Vec<Value>> {
    let mut at = 0;
    let header_end = usize::try_from(read_varint(record, &mut at)?).ok()?;
    let mut types = Vec::new();
    while at < header_end {
        types.push(read_varint(record, &mut at)?);
    }
    if at != header_end {
        return None;
    }
    let mut rest = record.get(at..)?;
    let mut values = Vec::with_capacity(types.len());
    for kind in types {
        let integer_bytes = match kind {
            1..=4 => usize::try_from(kind).ok()?,
            5 => 6,
            6 => 8,
            _ => 0,
        };
        values.push(match kind {
            0 => Value::Null,
            1..=6 => {
                let bytes = take(&mut rest, integer_bytes)?;
                let sign = if bytes[0] & 0x80 == 0 { 0 } else { -1i64 };
                Value::Integer(bytes.iter().fold(sign, |value, byte| value << 8 | i64::from(*byte)))
            }
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            kind if kind >= 12 => {
                let bytes = take(&mut rest, usize::try_from((kind - 12) / 2).ok()?)?.to_vec();
                if kind % 2 == 0 {
                    Value::Blob(bytes)
                } else {
                    Value::Text(String::from_utf8(bytes).ok()?)
                }
            }
            // No table of ours has a fraction.
            _ => return None,
        });
    }
    rest.is_empty().then_some(values)
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (head, tail) = rest.split_at_checked(bytes)?;
    *rest = tail;
    Some(head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_read_back(value in any::<u64>(), bits in 0u32..64) {
            let value = value >> bits;
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            let mut at = 0;
            prop_assert_eq!(read_varint(&bytes, &mut at), Some(value));
            prop_assert_eq!(at, bytes.len());
        }

        #[test]
        fn any_bytes_are_no_record_or_one_whose_lengths_add_up(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            decode_record(&bytes);
        }
    }

    #[test]
    fn all_kinds_of_columns_are_decoded_as_sqlite_wrote_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        #[expect(clippy::disallowed_methods, reason = "a database of the test's own")]
        let db = rusqlite::Connection::open(&path).unwrap();
        db.pragma_update(None, "page_size", 4096).unwrap();
        db.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)").unwrap();
        let numbers = [0i64, 1, -1, 127, -32768, 8_000_000, -2_000_000_000, 1 << 40, i64::MIN];
        for (id, number) in (1i64..).zip(numbers) {
            let blob = vec![7u8; usize::try_from(id).unwrap() * 1500];
            db.execute("INSERT INTO t VALUES (?1, ?2, ?3, NULL)", (id, number, &blob)).unwrap();
        }
        db.close().unwrap();
        let images = Images::open(&path, &dir.path().join("none")).unwrap();
        let mut found = Vec::new();
        images
            .scan(true, |_, row| {
                if let Found::Record { rowid: Some(id), values } = row
                    && let [Value::Null, Value::Integer(a), Value::Blob(b), Value::Null] =
                        values.as_slice()
                {
                    found.push((id, *a, b.len()));
                }
                Ok::<_, ()>(())
            })
            .unwrap();
        found.sort_unstable();
        let expected: Vec<_> = (1i64..)
            .zip(numbers)
            .map(|(id, n)| (id, n, usize::try_from(id).unwrap() * 1500))
            .collect();
        assert_eq!(found, expected);
    }
}
