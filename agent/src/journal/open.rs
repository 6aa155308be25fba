//! Opening: the lock, the checks before SQLite sees a byte, the pragmas, and the table of start-up cases.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};

use super::ballast::Ballast;
use super::budget::{self, Budget};
use super::checkpoint::{self, Checkpointer};
use super::claim;
use super::config::{Durability, JournalConfig};
use super::error::JournalError;
use super::quota::Quota;
use super::schema;
use super::shrink;
use super::wal::{self, WalCheck};
use crate::clock::Clock;
use crate::record::id::{AgentId, Epoch};

/// The database file in the data directory.
pub(super) const DATABASE_NAME: &str = "journal.db";
pub(super) const LOCK_NAME: &str = "agent.lock";
/// Payloads and dead letters are nobody else's to read.
const DIRECTORY_MODE: u32 = 0o750;
pub(super) const PAGE_BYTES: usize = 4096;
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const SQLITE_MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// What an opening found. The cases that refuse are errors: [`JournalError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartCase {
    /// There was no journal.
    New,
    /// The last run closed it.
    Clean,
    /// The last run did not; at most one commit that nobody was told about is gone.
    Unclean,
    /// The high-water file knows more records than the journal: the files were taken back in time.
    GoneBack,
    /// The journal was damaged; what was good of it is in a new one, and the damaged files are kept aside.
    Salvaged,
}

impl StartCase {
    /// The word in logs and status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Clean => "clean",
            Self::Unclean => "unclean",
            Self::GoneBack => "gone_back",
            Self::Salvaged => "salvaged",
        }
    }
}

/// Holds the data directory for one agent. Dropping it lets it go.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _file: File,
}

/// An opened database, checked and migrated, and its budget.
pub(super) struct OpenedJournal {
    pub(super) connection: Connection,
    pub(super) case: StartCase,
    pub(super) epoch: Epoch,
    pub(super) agent: AgentId,
    pub(super) quota: Quota,
}

/// An opened database, checked and migrated.
struct Opened {
    connection: Connection,
    case: StartCase,
    epoch: Epoch,
    agent: AgentId,
}

/// Makes the data directory where it is missing and takes it for this process.
pub(super) fn lock_directory(directory: &Path) -> Result<DirectoryLock, JournalError> {
    let refused = |source| JournalError::DataDirectory { path: directory.to_owned(), source };
    make_directory(directory).map_err(refused)?;
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(directory.join(LOCK_NAME))
        .map_err(refused)?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut pid = String::new();
            // The number is a help only; without it the message still says what is wrong.
            let _unread = file.take(32).read_to_string(&mut pid);
            let pid = pid.trim();
            let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
            return Err(JournalError::Locked { path: directory.to_owned(), pid });
        }
        Err(errno) => return Err(refused(errno.into())),
    }
    file.set_len(0).map_err(refused)?;
    file.rewind().map_err(refused)?;
    writeln!(file, "{}", std::process::id()).map_err(refused)?;
    Ok(DirectoryLock { _file: file })
}

/// Makes a directory with those above it, for our user and group only, and syncs where they stand: a power cut must not take
/// the journal away with the directory's name.
fn make_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    make_directory(parent)?;
    fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory)?;
    File::open(parent)?.sync_all()
}

/// Opens or makes the database. On a full volume that has the ballast, the ballast is given up for it.
pub(super) fn open_database(
    directory: &Path,
    config: &JournalConfig,
    agent: Option<&AgentId>,
    host: &AgentId,
    clock: &dyn Clock,
) -> Result<OpenedJournal, JournalError> {
    // A volume that does not tell its size is taken for a large one.
    let volume = budget::volume(directory).map_or(u64::MAX / 2, |volume| volume.size);
    let mut budget = Budget::new(config.max_bytes.0, volume);
    let mut ballast = Ballast::in_directory(directory, budget.ballast);
    let free = budget::volume(directory).map_or(u64::MAX / 2, |volume| volume.free);
    let is_short = free < budget.wal_extent && ballast.give_up();
    if is_short {
        tracing::warn!(free_bytes = free, "Volume of the journal is full");
        budget = budget.with_short_wal();
    }
    let opened = open_with(directory, config, budget, agent, host, clock)?;
    let Opened { mut connection, case, epoch, agent } = opened;
    let path = directory.join(DATABASE_NAME);
    let checkpointer = Checkpointer::new(&path, BUSY_TIMEOUT);
    let failed = |source| JournalError::sqlite(&path, "measuring", source);
    if is_short
        && let Err(error) = claim::claim(&connection, &path, budget, &checkpointer, &mut ballast)
            .and_then(|()| claim::release(&connection).map_err(failed))
    {
        tracing::warn!(error = %crate::error_chain::Chain(&error), "Not all of the ballast went into the database");
    }
    let mut usage = budget::measure(&connection, &path).map_err(failed)?;
    if shrink::is_worth_it(usage, ballast.lacking()) {
        connection = shrink_at_start(connection, &path, config.durability, &checkpointer, budget)?;
        usage = budget::measure(&connection, &path).map_err(failed)?;
    }
    let pages_max = budget.pages_max(usage.pages);
    if ballast.held() < budget.ballast && usage.volume_free >= budget.ballast + budget.wal_usual() {
        ballast.restore();
        usage = budget::measure(&connection, &path).map_err(failed)?;
    } else if ballast.held() > budget.ballast {
        ballast.restore();
    }
    let quota = Quota {
        usage,
        pages_max,
        claimed: is_short.then(|| clock.monotonic()),
        ..Quota::new(config, budget, ballast, checkpointer)
    };
    Ok(OpenedJournal { connection, case, epoch, agent, quota })
}

/// The last run left a file that is mostly free: what it holds is copied, and the rest given back.
fn shrink_at_start(
    connection: Connection,
    path: &Path,
    durability: Durability,
    checkpointer: &Checkpointer,
    budget: Budget,
) -> Result<Connection, JournalError> {
    let shrink::Shrunk { connection, error } =
        shrink::shrink(connection, path, durability, checkpointer);
    match (connection, error) {
        (Some(connection), error) => {
            if let Some(error) = error {
                tracing::warn!(error = %crate::error_chain::Chain(&error), "Journal was not made smaller");
            }
            // SQLite makes the WAL with the first look at the database.
            let looked = connection.query_row("SELECT count(*) FROM meta", [], |_| Ok(()));
            looked.map_err(|source| JournalError::sqlite(path, "opening", source))?;
            checkpoint::extend(&wal_path(path), budget.wal_extent)?;
            Ok(connection)
        }
        (None, error) => Err(error.unwrap_or(JournalError::Closed)),
    }
}

/// Opens or makes the database:
///
/// 1. a file that is no SQLite database is foreign; one of another application too;
/// 2. the WAL's checksum chain is read: damage in front of acknowledged commits is an error;
/// 3. a newer schema is refused before anything is written;
/// 4. the tables are looked through (`soundness.rs`), through a connection that cannot write;
/// 5. what a torn commit left is cut off; SQLite opens the file, recovers the WAL, and gets its pragmas;
///    an older schema is migrated;
/// 6. the start is counted and the epoch drawn, in one durable transaction.
fn open_with(
    directory: &Path,
    config: &JournalConfig,
    budget: Budget,
    agent: Option<&AgentId>,
    host: &AgentId,
    clock: &dyn Clock,
) -> Result<Opened, JournalError> {
    let path = directory.join(DATABASE_NAME);
    let wal_path = wal_path(&path);
    let is_new = !holds_database(&path)?;
    let read_wal = wal::check(&wal_path).map_err(|source| JournalError::File {
        path: wal_path.clone(),
        doing: "read",
        source,
    })?;
    let case = match read_wal {
        WalCheck::Empty if is_new => StartCase::New,
        _ if is_new => return Err(JournalError::DatabaseLost { path }),
        WalCheck::Damaged { frame, commits_behind } => {
            return Err(JournalError::WalDamaged { path: wal_path, frame, commits_behind });
        }
        WalCheck::Empty => StartCase::Clean,
        WalCheck::Good { .. } => StartCase::Unclean,
    };
    refuse_foreign(&path, is_new)?;
    if !is_new {
        super::soundness::check(&path, clock)?;
    }
    cut_torn_tail(&wal_path, read_wal)?;
    let mut connection = connect(&path, config.durability)?;
    let found = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|source| JournalError::sqlite(&path, "reading the schema", source))?;
    if found < schema::version() {
        schema::migrate(&mut connection, &path, found)?;
    }
    if budget::volume(directory).is_ok_and(|volume| volume.free < budget.wal_extent) {
        // The WAL may be as long as it can become: what it holds goes into the database, and it begins anew.
        Checkpointer::new(&path, BUSY_TIMEOUT).begin_anew(&connection)?;
    }
    let (agent, epoch) = begin_epoch(&mut connection, &path, directory, agent, host)?;
    if let Err(error) = wal::extend(&wal_path, budget.wal_extent) {
        // Commits cost more then, and nothing else.
        tracing::warn!(path = %wal_path.display(), %error, "WAL cannot be extended in advance");
    }
    Ok(Opened { connection, case, epoch, agent })
}

/// The remains of a torn commit stay in the file until something is written over them; a second power cut must not find
/// them behind other torn ones.
fn cut_torn_tail(wal_path: &Path, read: WalCheck) -> Result<(), JournalError> {
    let frames = match read {
        WalCheck::Good { frames } => frames,
        _ => 0,
    };
    wal::cut(wal_path, frames).map_err(|source| JournalError::File {
        path: wal_path.to_owned(),
        doing: "cut the torn end of",
        source,
    })
}

/// The writer's connection with every pragma that matters, explicitly.
pub(super) fn connect(path: &Path, durability: Durability) -> Result<Connection, JournalError> {
    let failed = |source| JournalError::sqlite(path, "opening", source);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[expect(clippy::disallowed_methods, reason = "this is the place that sets the pragmas")]
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Relaxed => "NORMAL",
    };
    let page_bytes = PAGE_BYTES.to_string();
    let pragmas = [
        ("page_size", page_bytes.as_str()),
        ("auto_vacuum", "NONE"),
        ("synchronous", synchronous),
        ("wal_autocheckpoint", "0"),
        ("journal_size_limit", "-1"),
        ("mmap_size", "0"),
        ("cache_size", "-2048"),
        ("temp_store", "MEMORY"),
        ("foreign_keys", "OFF"),
        ("trusted_schema", "OFF"),
    ];
    for (name, value) in pragmas {
        connection.pragma_update(None, name, value).map_err(failed)?;
    }
    set_wal_mode(&connection).map_err(failed)?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

/// Switches the database to WAL. A new one is written and committed with that, behind the row that names the new mode: what
/// stops at the row (`pragma_update` too) takes a failed sync for success, and readers then find no database.
fn set_wal_mode(connection: &Connection) -> Result<(), rusqlite::Error> {
    let mut statement = connection.prepare("PRAGMA journal_mode = WAL")?;
    let mut rows = statement.query([])?;
    let mut mode = String::new();
    while let Some(row) = rows.next()? {
        mode = row.get(0)?;
    }
    if mode == "wal" {
        return Ok(());
    }
    let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR);
    let why = format!("the database stays in mode {mode} instead of WAL");
    Err(rusqlite::Error::SqliteFailure(code, Some(why)))
}

/// Ends a whole database that was made beside ours: it is in WAL mode from the first byte that is synced. Where its first opening
/// had to switch it, a crash in the middle would leave a page to be rolled back, which the checks of a start, who only read,
/// cannot do. The two bytes are the versions of who may write and read, 2 for WAL
/// (<https://sqlite.org/fileformat2.html#file_format_version_numbers>).
pub(super) fn end_copy(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&[2, 2], 18)?;
    file.sync_all()
}

/// A connection that only reads.
pub(super) fn connect_reader(path: &Path) -> Result<Connection, JournalError> {
    let failed = |source| JournalError::sqlite(path, "opening", source);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[expect(clippy::disallowed_methods, reason = "this is the place that sets the pragmas")]
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    for (name, value) in [("mmap_size", "0"), ("cache_size", "-256"), ("query_only", "ON")] {
        connection.pragma_update(None, name, value).map_err(failed)?;
    }
    Ok(connection)
}

/// A connection that reads a database that may be damaged or belong to another process, and takes nothing with it when it is
/// closed: the last connection would otherwise write the WAL into the database and delete it.
pub(super) fn connect_bystander(path: &Path) -> Result<Connection, JournalError> {
    let connection = connect_reader(path)?;
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(|source| JournalError::sqlite(path, "opening", source))?;
    Ok(connection)
}

/// A connection to a database that nobody has open and that has no WAL: nothing is made beside it, and nothing is locked.
pub(super) fn connect_immutable(path: &Path) -> Result<Connection, JournalError> {
    let failed = |source| JournalError::sqlite(path, "opening", source);
    let mut name = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                name.push(char::from(*byte));
            }
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    name.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_URI;
    #[expect(clippy::disallowed_methods, reason = "this is the place that sets the pragmas")]
    let connection = Connection::open_with_flags(name, flags).map_err(failed)?;
    for (pragma, value) in [("mmap_size", "0"), ("query_only", "ON")] {
        connection.pragma_update(None, pragma, value).map_err(failed)?;
    }
    Ok(connection)
}

/// A connection that fills a new database that nobody else knows of: it is synced as a whole at the end, and forgotten when
/// that is not reached.
pub(super) fn connect_builder(path: &Path) -> Result<Connection, JournalError> {
    let failed = |source| JournalError::sqlite(path, "opening", source);
    #[expect(clippy::disallowed_methods, reason = "this is the place that sets the pragmas")]
    let connection = Connection::open(path).map_err(failed)?;
    let page_bytes = PAGE_BYTES.to_string();
    let pragmas = [
        ("page_size", page_bytes.as_str()),
        ("auto_vacuum", "NONE"),
        ("journal_mode", "OFF"),
        ("synchronous", "OFF"),
        ("mmap_size", "0"),
        ("cache_size", "-2048"),
        ("temp_store", "MEMORY"),
        ("foreign_keys", "OFF"),
        ("trusted_schema", "OFF"),
    ];
    for (name, value) in pragmas {
        connection.pragma_update(None, name, value).map_err(failed)?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// The name that SQLite gives the WAL of this database.
pub(super) fn wal_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Whether there is a database. An empty file is none, and neither is one page of zeros: what a power cut leaves of the very
/// first write, which is taken away here because SQLite would call it foreign.
fn holds_database(path: &Path) -> Result<bool, JournalError> {
    let failed = |source| JournalError::File { path: path.to_owned(), doing: "read", source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(failed(error)),
    };
    let mut page = Vec::new();
    file.take(PAGE_BYTES as u64 + 1).read_to_end(&mut page).map_err(failed)?;
    if !page.is_empty() && page.len() <= PAGE_BYTES && page.iter().all(|byte| *byte == 0) {
        File::options().write(true).open(path).and_then(|f| f.set_len(0)).map_err(failed)?;
        return Ok(false);
    }
    page.truncate(SQLITE_MAGIC.len());
    match page.as_slice() {
        [] => Ok(false),
        magic if magic == SQLITE_MAGIC => Ok(true),
        _ => Err(JournalError::Foreign { path: path.to_owned() }),
    }
}

/// Looks at the marks of an existing database through a connection that cannot write.
pub(super) fn refuse_foreign(path: &Path, is_new: bool) -> Result<(), JournalError> {
    if is_new {
        return Ok(());
    }
    let failed = |source| JournalError::sqlite(path, "reading the schema", source);
    let connection = match connect_reader(path) {
        Err(error) if is_first_write(path, &error) => return Ok(()),
        connected => connected?,
    };
    let pragma = |name| -> Result<i64, JournalError> {
        connection.pragma_query_value(None, name, |row| row.get(0)).map_err(failed)
    };
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    // The first transaction of a new journal may not have come through: then there are no tables yet.
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(failed)?;
    if application != schema::APPLICATION_ID && !(application == 0 && tables == 0) {
        return Err(JournalError::Foreign { path: path.to_owned() });
    }
    if version > schema::version() && super::soundness::is_plausible(version, tables) {
        let (path, known) = (path.to_owned(), schema::version());
        return Err(JournalError::NewerSchema { path, found: version, known });
    }
    Ok(())
}

/// Whether a power cut ended the write of the first page, before there was a WAL: it is yet to be rolled back, which a
/// connection that only reads cannot do. Nothing is in such a file.
pub(super) fn is_first_write(path: &Path, error: &JournalError) -> bool {
    let JournalError::ReadOnly { source: rusqlite::Error::SqliteFailure(failure, _), .. } = error
    else {
        return false;
    };
    failure.extended_code == rusqlite::ffi::SQLITE_READONLY_ROLLBACK
        && fs::metadata(path).is_ok_and(|metadata| metadata.len() <= PAGE_BYTES as u64)
}

/// Counts this start and draws its epoch; fixes whose journal this is.
fn begin_epoch(
    connection: &mut Connection,
    path: &Path,
    directory: &Path,
    agent: Option<&AgentId>,
    host: &AgentId,
) -> Result<(AgentId, Epoch), JournalError> {
    let failed = |source| JournalError::sqlite(path, "counting the start", source);
    let transaction = connection.transaction().map_err(failed)?;
    let stored = |key: &str| -> Result<Option<String>, JournalError> {
        transaction
            .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
            .optional()
            .map_err(failed)
    };
    let starts = stored("starts")?.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0) + 1;
    let stored_agent = stored("agent")?.and_then(|text| text.parse::<AgentId>().ok());
    let agent = match (stored_agent, agent) {
        (Some(stored), Some(configured)) if stored != *configured => {
            let (path, configured) = (directory.to_owned(), configured.clone());
            return Err(JournalError::OtherAgent { path, stored, configured });
        }
        (Some(stored), _) => stored,
        (None, Some(configured)) => configured.clone(),
        (None, None) => host.clone(),
    };
    claim::release(&transaction).map_err(failed)?;
    let put = "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = ?2";
    transaction.execute(put, ["starts", &starts.to_string()]).map_err(failed)?;
    transaction.execute(put, ["agent", agent.as_str()]).map_err(failed)?;
    transaction.commit().map_err(failed)?;
    let mut drawn = [0; 4];
    getrandom::fill(&mut drawn).map_err(|error| JournalError::File {
        path: "/dev/urandom".into(),
        doing: "read",
        source: std::io::Error::other(error),
    })?;
    Ok((agent, Epoch::new(starts, u32::from_le_bytes(drawn))))
}

/// The host's boot id; zeros where there is none.
pub(super) fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).unwrap_or_default()
}
