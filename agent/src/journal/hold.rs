//! Room in the database's file that is its own before a page lies there.
//!
//! A page is first written to the WAL, and makes the file longer only when it is checkpointed. On a volume that somebody else
//! fills, the room for that may be gone by then; the WAL can then never begin anew, and soon takes nothing any more. SQLite
//! lengthens its file at once when it is asked to, but cuts it back at the next checkpoint; it does not cut where the file grows
//! in chunks, and here the chunk is the file.
//!
//! Source: [SQLITE_FCNTL_CHUNK_SIZE and SQLITE_FCNTL_SIZE_HINT](https://www.sqlite.org/c3ref/c_fcntl_begin_atomic_write.html).

use std::ffi::{c_int, c_void};
use std::path::Path;

use rusqlite::{Connection, ffi};

use super::budget::PAGE;

/// SQLite takes a chunk as an `int`.
const CHUNK_BYTES_MAX: u64 = 1 << 30;

/// Makes the file so long, or as long as the volume lets it, and keeps it so until [`let_go`]. `least`: what its pages come to.
pub(super) fn hold(connection: &Connection, path: &Path, bytes: u64, least: u64) {
    let length = || std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let mut wanted = bytes;
    // What the volume has not given is not held: cutting back to that would leave a hole.
    for _ in 0..2 {
        let (chunk, whole) = chunks(wanted);
        if whole < least {
            break;
        }
        let (Ok(mut chunk), mut hint) = (c_int::try_from(chunk), whole.cast_signed()) else {
            break;
        };
        control(connection, ffi::SQLITE_FCNTL_CHUNK_SIZE, (&raw mut chunk).cast());
        control(connection, ffi::SQLITE_FCNTL_SIZE_HINT, (&raw mut hint).cast());
        if length() >= whole {
            return;
        }
        wanted = length();
    }
    let_go(connection);
}

/// From now on a checkpoint may cut the file back to its pages.
pub(super) fn let_go(connection: &Connection) {
    let mut none: c_int = 0;
    control(connection, ffi::SQLITE_FCNTL_CHUNK_SIZE, (&raw mut none).cast());
}

/// The size of a chunk, and of the whole file in such chunks: not more than `bytes`, and a few pages less at most. Where it is
/// several, the last is larger than whatever was added.
fn chunks(bytes: u64) -> (u64, u64) {
    let count = bytes.div_ceil(CHUNK_BYTES_MAX).max(1);
    let chunk = bytes / count / PAGE * PAGE;
    (chunk, chunk * count)
}

#[expect(unsafe_code, reason = "these orders have no other way in")]
fn control(connection: &Connection, operation: c_int, argument: *mut c_void) {
    // SAFETY: the connection is open, and used by this thread only as long as it is borrowed. Both operations read a number at
    // the address they are given, of the type that their callers above have. They are hints: what they came to is seen in the
    // length of the file.
    let _code = unsafe {
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), operation, argument)
    };
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint::Checkpointer;
    use super::super::config::Durability;
    use super::super::open::{DATABASE_NAME, connect};
    use super::super::{budget, schema};
    use super::*;

    #[test]
    fn chunks_are_no_more_than_the_file_and_little_less() {
        for bytes in
            [0, 1, PAGE, 5 * PAGE + 7, 1 << 30, (1 << 30) + PAGE, (7 << 30) + 12_345 * PAGE]
        {
            let (chunk, whole) = chunks(bytes);
            assert!(chunk <= CHUNK_BYTES_MAX && whole <= bytes, "{bytes}: {chunk} {whole}");
            assert!(bytes - whole < 9 * PAGE, "{bytes}: {chunk} {whole}");
            assert!(whole <= CHUNK_BYTES_MAX || chunk >= CHUNK_BYTES_MAX / 2 - PAGE, "{bytes}");
        }
    }

    #[test]
    fn what_is_held_outlives_checkpoints_and_is_used_by_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_NAME);
        let mut connection = connect(&path, Durability::Full).unwrap();
        schema::migrate(&mut connection, &path, 0).unwrap();
        let checkpointer = Checkpointer::new(&path, std::time::Duration::from_secs(1));
        assert!(checkpointer.everything(&connection).unwrap());
        let before = budget::measure(&connection, &path).unwrap();
        let (pages, target) = (before.pages * PAGE, before.pages * PAGE + (1 << 20));
        hold(&connection, &path, target, pages);
        let put = |connection: &Connection, key: &str| {
            let insert = "INSERT INTO meta (key, value) VALUES (?1, zeroblob(100000))";
            connection.execute(insert, [key]).unwrap();
            assert!(checkpointer.everything(connection).unwrap());
            budget::measure(connection, &path).unwrap()
        };
        let usage = put(&connection, "a");
        assert_eq!(usage.database_file, target);
        assert!(usage.pages > before.pages && usage.pages * PAGE < target, "{usage:?}");
        let check = |connection: &Connection| {
            let query = "PRAGMA integrity_check";
            let text: String = connection.query_row(query, [], |row| row.get(0)).unwrap();
            assert_eq!(text, "ok");
        };
        check(&connection);
        // Another connection finds its way in the longer file, and uses it.
        drop(connection);
        let connection = connect(&path, Durability::Full).unwrap();
        check(&connection);
        let next = put(&connection, "b");
        assert!(next.pages > usage.pages && next.database_file == target, "{next:?}");
        hold(&connection, &path, target + (1 << 20), next.pages * PAGE);
        assert_eq!(put(&connection, "c").database_file, target + (1 << 20));
        let_go(&connection);
        let last = put(&connection, "d");
        assert!(last.database_file >= last.pages * PAGE, "{last:?}");
        check(&connection);
    }
}
