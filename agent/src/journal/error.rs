//! What can go wrong in the journal, and what its callers are to do about it.
//!
//! # What SQLite says, and what is done about it
//!
//! Nothing of a failed transaction is believed or acknowledged, whatever the code; the sessions in it end and begin anew.
//!
//! | SQLite's code | error here | callers | the writer |
//! |---|---|---|---|
//! | `FULL` | `Full` | repeat | rolls back, keeps the connection: what is on disk is known |
//! | `BUSY`, `LOCKED` | `Sqlite` | repeat | the same: somebody else holds a lock |
//! | `NOMEM`, `INTERRUPT`, `ABORT` | `Sqlite` | repeat | the same |
//! | `CONSTRAINT`, `MISMATCH`, `RANGE`, `MISUSE`, `TOOBIG`, `ERROR`, `INTERNAL`, `SCHEMA` | `Sqlite` | repeat | the same: a fault of ours |
//! | `READONLY`, `PERM` | `ReadOnly` | repeat | the same |
//! | `IOERR` and all its kinds, a failed sync among them | `Sqlite` | repeat | drops the connection, cuts the WAL behind the last good commit, opens anew, compares (`reopen.rs`); a second one in a row holds |
//! | `CANTOPEN`, `NOLFS`, `PROTOCOL` | `Sqlite` | repeat | the same as for `IOERR` |
//! | `CORRUPT` | `Damaged` | give up | rolls back |
//! | `NOTADB` | `Foreign` | give up | rolls back |
//! | `AUTH`, `FORMAT`, `NOTFOUND`, `EMPTY` | `Sqlite` | repeat | rolls back; SQLite does not give these to us |

use std::path::PathBuf;
use std::sync::Arc;

use super::budget::volume;
use super::lane_orders::LaneOrderError;
use crate::record::id::{AgentId, BatchNumber, LaneName, Seq, SourceId};
use crate::units::human_bytes;

/// What a caller does about a [`JournalError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// The same may work later, without anybody's doing: repeat with backoff.
    Retry,
    /// The journal cannot be used as it is: somebody must act.
    Fatal,
}

/// `SQLITE_IOERR_SHMSIZE`, see <https://www.sqlite.org/rescode.html#ioerr_shmsize>.
const IOERR_SHMSIZE: i32 = 4874;

/// Why a chunk or part cannot be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// It is shorter or longer than its header says.
    #[error("it has {found} bytes where {expected} belong")]
    Length {
        /// What the header (or the header's own size) asks for.
        expected: usize,
        /// What is there.
        found: usize,
    },
    /// It does not begin like one of ours.
    #[error("it does not begin with the mark of a chunk")]
    Magic,
    /// A newer agent wrote it.
    #[error("its format version is {0}, this agent knows 1")]
    Version(u8),
    /// A field holds what it never should.
    #[error("its field \"{0}\" makes no sense")]
    Field(&'static str),
    /// The bytes are not those that were written.
    #[error("its checksum does not match")]
    Checksum,
}

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The data directory cannot be made or written.
    #[error("cannot use the data directory {path}")]
    DataDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another agent has the data directory.
    #[error("the data directory {path} is in use by another agent, process {pid}")]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The process that holds it, as it wrote itself down.
        pid: String,
    },
    /// A newer agent made the journal. It was not touched.
    #[error(
        "{path} has journal schema {found}, this agent knows up to {known}; it was not touched, use a newer agent"
    )]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// Its schema.
        found: i64,
        /// Ours.
        known: i64,
    },
    /// The file is no journal. It was not touched.
    #[error(
        "{path} is no journal of Waystation; it was not touched, move it away or use another data_dir"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The WAL is damaged in front of commits that were acknowledged.
    #[error(
        "{path} is damaged: frame {frame} is broken and {commits_behind} commits stand behind it"
    )]
    WalDamaged {
        /// The WAL file.
        path: PathBuf,
        /// The first broken frame, from 1.
        frame: u64,
        /// Commits behind it.
        commits_behind: u64,
    },
    /// There is a WAL with commits, and no database that it belongs to.
    #[error("{path} is missing, and commits that belong to it are in its WAL")]
    DatabaseLost {
        /// The database file.
        path: PathBuf,
    },
    /// The tables contradict each other.
    #[error("{path} is damaged: {what} cannot be")]
    Implausible {
        /// The database file.
        path: PathBuf,
        /// What cannot be as it is.
        what: String,
    },
    /// An earlier run met damage and ended before it could salvage.
    #[error("{path} is damaged, as was seen while running: {what}")]
    DamageMet {
        /// The database file.
        path: PathBuf,
        /// What was seen.
        what: String,
    },
    /// SQLite calls the database malformed.
    #[error("{path} is damaged")]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// A chunk or part was read that is not what was written.
    #[error("{what} in {path} is damaged")]
    ChunkDamaged {
        /// The database file.
        path: PathBuf,
        /// Which stream or lane, and which seq or batch.
        what: String,
        /// What is wrong with it.
        source: ChunkError,
    },
    /// What must be there is not.
    #[error("{what} is missing in {path}")]
    Missing {
        /// The database file.
        path: PathBuf,
        /// Which stream or lane, and which seq or batch.
        what: String,
    },
    /// The volume or the quota is full.
    #[error("no room for {path}")]
    Full {
        /// The database file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// A damaged journal is still as it was, because what is good of it has no room beside it.
    #[error(
        "{path} is damaged, and its volume has {} left, which is no room for what is good of it; free {} there, then it is salvaged; it was not touched",
        human_bytes(*.free),
        human_bytes(*.missing)
    )]
    NoRoomToSalvage {
        /// The database file.
        path: PathBuf,
        /// What the volume has left, in bytes.
        free: u64,
        /// What it lacks at most, in bytes.
        missing: u64,
    },
    /// The quota or the volume has no room for an append, or could never have.
    #[error("no room for the append in {path}: {why}")]
    NoRoom {
        /// The database file.
        path: PathBuf,
        /// What is full.
        why: String,
    },
    /// The store of dead letters has no room for those of a batch, and nothing of the batch's outcome was recorded.
    #[error(
        "the dead letters are full: {why} (dead_letters.max_bytes = {bytes_max}); raise max_bytes"
    )]
    LettersFull {
        /// What is in use and what is needed.
        why: String,
        /// The limit.
        bytes_max: String,
    },
    /// Another process has kept a lock on the database for too long.
    #[error("another process (pid {pids}) keeps {path} locked")]
    Busy {
        /// The database file.
        path: PathBuf,
        /// Who, as far as the kernel tells.
        pids: String,
    },
    /// What a lane was working on was given up by a policy; the lane goes on behind it.
    #[error("record {seq} and those before it were given up for lane {lane}")]
    Overtaken {
        /// The lane.
        lane: LaneName,
        /// The last record that it will not see.
        seq: Seq,
    },
    /// The volume or file can only be read.
    #[error("{path} cannot be written")]
    ReadOnly {
        /// The database file.
        path: PathBuf,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// Any other answer of SQLite.
    #[error("SQLite failed on {path} while {doing}")]
    Sqlite {
        /// The database file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// A file beside the database failed.
    #[error("cannot {doing} {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The journal belongs to another agent id.
    #[error(
        "the journal in {path} belongs to agent \"{stored}\", the config says \"{configured}\"; identities hold the id, so keep it or use another data_dir"
    )]
    OtherAgent {
        /// The data directory.
        path: PathBuf,
        /// Whose it is.
        stored: AgentId,
        /// What the config says.
        configured: AgentId,
    },
    /// An operation belongs to a session whose earlier operation failed.
    #[error("an earlier write of {0} failed, nothing after it is taken")]
    SessionEnded(String),
    /// A seal does not fit what the journal holds: a fault of ours, nothing was changed.
    #[error("batch {batch} of lane {lane} does not fit the journal: {why}")]
    Misfit {
        /// The lane.
        lane: LaneName,
        /// The batch.
        batch: BatchNumber,
        /// What does not fit.
        why: String,
    },
    /// A lane is neither dropped nor moved as ordered.
    #[error(transparent)]
    LaneOrder(#[from] LaneOrderError),
    /// There are as many streams or lanes as keys have room for.
    #[error("the journal has no number left for {0}")]
    NoNumberLeft(String),
    /// The group of operations that this one was committed with failed.
    #[error("the commit failed")]
    Group(#[source] Arc<Self>),
    /// Writing failed twice in a row. Operations are refused at once; from time to time the files are opened anew.
    #[error(
        "{path} is held after {failures} failures in a row, nothing is written until it can be opened anew"
    )]
    Held {
        /// The database file.
        path: PathBuf,
        /// How often writing failed since the last commit.
        failures: u32,
        /// The last failure.
        source: Arc<Self>,
    },
    /// The writer has stopped.
    #[error("the journal is closed")]
    Closed,
}

impl JournalError {
    /// What the caller does about it.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Group(cause) | Self::Held { source: cause, .. } => cause.disposition(),
            Self::Full { .. }
            | Self::NoRoom { .. }
            | Self::NoRoomToSalvage { .. }
            | Self::LettersFull { .. }
            | Self::Busy { .. }
            | Self::Overtaken { .. }
            | Self::ReadOnly { .. }
            | Self::Sqlite { .. }
            | Self::File { .. }
            | Self::SessionEnded(_) => Disposition::Retry,
            _ => Disposition::Fatal,
        }
    }

    /// Whether the device or the files failed, so that what was written since the last good commit may be anything.
    pub(super) fn is_io(&self) -> bool {
        use rusqlite::ErrorCode;

        let Self::Sqlite { source, .. } = self else {
            return matches!(self, Self::File { .. });
        };
        matches!(
            source.sqlite_error_code(),
            Some(
                ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
                    | ErrorCode::NoLargeFileSupport
                    | ErrorCode::FileLockingProtocolFailed
            )
        )
    }

    /// Whether a full volume or quota is the cause.
    #[must_use]
    pub fn is_full(&self) -> bool {
        match self {
            Self::Group(cause) => cause.is_full(),
            Self::Full { .. } | Self::NoRoom { .. } | Self::NoRoomToSalvage { .. } => true,
            Self::File { source, .. } => source.kind() == std::io::ErrorKind::StorageFull,
            _ => false,
        }
    }

    /// Whether a start that failed with this for want of room may come further now.
    #[must_use]
    pub fn may_have_room(&self) -> bool {
        let Self::NoRoomToSalvage { path, free, missing } = self else { return true };
        // Each try writes until the volume is full, so it is not made for every byte that comes free.
        volume(path).is_ok_and(|volume| volume.free >= free + missing / 4)
    }

    /// Whether dead letters have no room in their store.
    #[must_use]
    pub fn is_letters_full(&self) -> bool {
        match self {
            Self::Group(cause) => cause.is_letters_full(),
            Self::LettersFull { .. } => true,
            _ => false,
        }
    }

    /// Whether the lane only has to begin anew, behind what was given up.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        match self {
            Self::Group(cause) => cause.is_overtaken(),
            Self::Overtaken { .. } => true,
            _ => false,
        }
    }

    /// Maps what SQLite says, in one place.
    pub(super) fn sqlite(
        path: &std::path::Path,
        doing: &'static str,
        source: rusqlite::Error,
    ) -> Self {
        use rusqlite::ErrorCode;

        let path = path.to_owned();
        if source.sqlite_error().is_some_and(|error| error.extended_code == IOERR_SHMSIZE) {
            // The one I/O error that a full volume shows where SQLite grows its shared memory.
            return Self::Full { path, source };
        }
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full { path, source },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                Self::ReadOnly { path, source }
            }
            Some(ErrorCode::NotADatabase) => Self::Foreign { path },
            Some(ErrorCode::DatabaseCorrupt) => Self::Damaged { path, source },
            _ => Self::Sqlite { path, doing, source },
        }
    }
}

/// Why an append is not durable, and none after it of the same appender.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// The journal refused or failed.
    #[error("source \"{source_id}\" cannot append")]
    Journal {
        /// The source.
        source_id: SourceId,
        /// Why.
        source: JournalError,
    },
    /// One append holds more than a chunk may.
    #[error("source \"{source_id}\" appends {bytes} bytes at once, a chunk holds {bytes_max}")]
    TooLarge {
        /// The source.
        source_id: SourceId,
        /// Bytes of its frames.
        bytes: usize,
        /// Bytes that are taken, unless it is a single record.
        bytes_max: usize,
    },
}

impl AppendError {
    /// What keeps the journal from having room, when that is why.
    #[must_use]
    pub fn no_room(&self) -> Option<&str> {
        match self {
            Self::Journal { source: JournalError::NoRoom { why, .. }, .. } => Some(why),
            Self::Journal { .. } | Self::TooLarge { .. } => None,
        }
    }
}

/// A gap in a stream: `expected` should follow and does not. For messages.
pub(super) fn gap(stream: &SourceId, expected: Seq) -> String {
    format!("record {expected} of source \"{stream}\"")
}
