//! A SQLite VFS that records what is written and synced below a directory, and fails what a test tells it to.
//!
//! It wraps the default VFS and takes its place, so that the product opens its files as ever. What the journal writes beside
//! SQLite (`wal.rs`) is told through [`outside_write`] and [`outside_sync`]. The shared memory is not recorded: a start makes
//! it anew.
#![expect(unsafe_code, reason = "a VFS is a table of C functions over structs of C")]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use rusqlite::ffi;

/// A file of a recording; another one under the same name has another number.
pub(in super::super) type FileId = usize;

/// What happened to the files of a directory, in order.
#[derive(Debug, Clone)]
pub(in super::super) enum Event {
    /// A file was made under a name. Durable with the directory's next sync.
    Create { file: FileId, name: String },
    /// Bytes were written.
    Write { file: FileId, offset: u64, bytes: Data },
    /// A file was cut or extended.
    Truncate { file: FileId, length: u64 },
    /// A sync came back; of the directory too, when it was the first of a new log.
    Sync { file: FileId, directory: bool },
    /// A sync failed: nobody knows what of the writes before it is on disk, and later syncs do not care for them.
    FailedSync { file: FileId },
    /// A name is gone.
    Delete { name: String },
}

/// What a write wrote.
#[derive(Debug, Clone)]
pub(in super::super) enum Data {
    Bytes(Vec<u8>),
    Zeros(usize),
}

impl Data {
    fn new(bytes: &[u8]) -> Self {
        if bytes.iter().all(|byte| *byte == 0) {
            Self::Zeros(bytes.len())
        } else {
            Self::Bytes(bytes.to_vec())
        }
    }

    pub(in super::super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Zeros(length) => *length,
        }
    }

    /// Writes a piece of it to the same piece of a file that lies in memory from `offset` on.
    pub(in super::super) fn copy_to(&self, range: std::ops::Range<usize>, target: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => target.copy_from_slice(&bytes[range]),
            Self::Zeros(_) => target.fill(0),
        }
    }
}

/// Kinds of operations that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in super::super) enum Kind {
    Read,
    Write,
    Sync,
    Truncate,
    Delete,
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Failure {
    /// EIO. Nothing is done; a sync loses what was not synced.
    Io,
    /// EIO of a sync whose writes are read as if they were there, until the power goes.
    IoUnseen,
    /// ENOSPC before the first byte.
    Full,
    /// ENOSPC in the middle of a write.
    Short,
}

/// Fails the `nth` operation of a kind from now on, and all after it when it is persistent.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Fault {
    pub(in super::super) kind: Kind,
    pub(in super::super) nth: u64,
    pub(in super::super) failure: Failure,
    pub(in super::super) persistent: bool,
}

/// A directory that is watched.
#[derive(Debug)]
pub(in super::super) struct Disk {
    directory: PathBuf,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    names: HashMap<String, FileId>,
    files: usize,
    /// New files whose first sync is one of the directory too.
    unsettled: HashSet<FileId>,
    counts: HashMap<Kind, u64>,
    fault: Option<Fault>,
    faults: u64,
    /// What lies under the writes since the last sync of each file, while a fault is armed.
    undo: HashMap<FileId, Vec<(u64, Vec<u8>)>>,
    skipped_syncs: bool,
    opened: HashMap<String, u64>,
}

static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());
static REGISTER: Once = Once::new();

impl Disk {
    /// Watches a directory, which is empty or holds files that are taken to be durable.
    pub(in super::super) fn watch(directory: &Path) -> Arc<Self> {
        REGISTER.call_once(register);
        let mut log = Log::default();
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let bytes = Data::new(&std::fs::read(entry.path()).unwrap());
            let file = log.create(&name);
            log.events.push(Event::Write { file, offset: 0, bytes });
            log.unsettled.remove(&file);
            log.events.push(Event::Sync { file, directory: true });
        }
        let disk = Arc::new(Self { directory: directory.to_owned(), log: Mutex::new(log) });
        DISKS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&disk));
        disk
    }

    /// Ends the recording of this directory.
    pub(in super::super) fn forget(&self) {
        let mut disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
        disks.retain(|disk| disk.directory != self.directory);
    }

    /// How much has happened.
    pub(in super::super) fn now(&self) -> usize {
        self.log().events.len()
    }

    /// Everything that has happened.
    pub(in super::super) fn events(&self) -> Vec<Event> {
        self.log().events.clone()
    }

    /// Operations of a kind so far.
    pub(in super::super) fn count(&self, kind: Kind) -> u64 {
        self.log().counts.get(&kind).copied().unwrap_or_default()
    }

    /// Times that a file was opened.
    pub(in super::super) fn opened(&self, name: &str) -> u64 {
        self.log().opened.get(name).copied().unwrap_or_default()
    }

    /// Arms a fault; operations are counted from here.
    pub(in super::super) fn arm(&self, fault: Fault) {
        let mut log = self.log();
        log.counts.clear();
        log.faults = 0;
        log.fault = Some(fault);
    }

    /// No more faults; gives how many operations failed.
    pub(in super::super) fn disarm(&self) -> u64 {
        let mut log = self.log();
        log.fault = None;
        log.faults
    }

    /// From now on syncs do nothing and say that they did: the disk lies.
    pub(in super::super) fn skip_syncs(&self) {
        self.log().skipped_syncs = true;
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn create(&mut self, name: &str) -> FileId {
        let file = self.files;
        self.files += 1;
        self.names.insert(name.to_owned(), file);
        self.unsettled.insert(file);
        self.events.push(Event::Create { file, name: name.to_owned() });
        file
    }

    /// Counts an operation and says how it is to fail.
    fn strikes(&mut self, kind: Kind) -> Option<Failure> {
        let count = self.counts.entry(kind).or_default();
        *count += 1;
        let count = *count;
        let fault = self.fault.filter(|fault| fault.kind == kind)?;
        let strikes = if fault.persistent { count >= fault.nth } else { count == fault.nth };
        if !strikes {
            return None;
        }
        self.faults += 1;
        Some(fault.failure)
    }

    fn note_write(&mut self, file: FileId, offset: u64, bytes: &[u8], under: Vec<u8>) {
        if self.fault.is_some() {
            self.undo.entry(file).or_default().push((offset, under));
        }
        self.events.push(Event::Write { file, offset, bytes: Data::new(bytes) });
    }

    fn note_sync(&mut self, file: FileId) {
        if !self.skipped_syncs {
            self.undo.remove(&file);
            let directory = self.unsettled.remove(&file);
            self.events.push(Event::Sync { file, directory });
        }
    }
}

/// The disk that watches this file, and the file's name there.
fn watched(path: &Path) -> Option<(Arc<Disk>, String)> {
    let disks = DISKS.lock().unwrap_or_else(PoisonError::into_inner);
    let disk = disks.iter().find(|disk| path.parent() == Some(&disk.directory))?;
    Some((Arc::clone(disk), path.file_name()?.to_str()?.to_owned()))
}

fn broken(failure: Failure) -> io::Error {
    let errno = match failure {
        Failure::Io | Failure::IoUnseen => rustix::io::Errno::IO,
        Failure::Full | Failure::Short => rustix::io::Errno::NOSPC,
    };
    errno.into()
}

/// A write of the journal that goes past SQLite.
pub(in super::super) fn outside_write(path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let Some((disk, name)) = watched(path) else { return Ok(()) };
    let mut log = disk.log();
    if let Some(failure) = log.strikes(Kind::Write) {
        return Err(broken(failure));
    }
    let Some(file) = log.names.get(&name).copied() else { return Ok(()) };
    let under =
        if log.fault.is_some() { read_under(path, offset, bytes.len()) } else { Vec::new() };
    log.note_write(file, offset, bytes, under);
    Ok(())
}

/// A sync of the journal that goes past SQLite.
pub(in super::super) fn outside_sync(path: &Path) -> io::Result<()> {
    let Some((disk, name)) = watched(path) else { return Ok(()) };
    let mut log = disk.log();
    if let Some(failure) = log.strikes(Kind::Sync) {
        return Err(broken(failure));
    }
    let Some(file) = log.names.get(&name).copied() else { return Ok(()) };
    log.note_sync(file);
    Ok(())
}

fn read_under(path: &Path, offset: u64, length: usize) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;

    let mut under = vec![0; length];
    if let Ok(file) = std::fs::File::open(path) {
        let read = file.read_at(&mut under, offset).unwrap_or(0);
        under.truncate(read);
    }
    under
}

/// Our file: SQLite's part, what we know of it, and behind it in memory the file of the wrapped VFS.
#[repr(C)]
struct ShimFile {
    base: ffi::sqlite3_file,
    watched: *mut WatchedFile,
}

struct WatchedFile {
    disk: Arc<Disk>,
    file: FileId,
}

/// The VFS that was the default one, to be passed to its own functions.
static WRAPPED: std::sync::atomic::AtomicPtr<ffi::sqlite3_vfs> =
    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());

fn wrapped() -> *mut ffi::sqlite3_vfs {
    WRAPPED.load(std::sync::atomic::Ordering::Acquire)
}

fn register() {
    // SAFETY: SQLite is initialised by the call; the default VFS lives for ever, and so does our copy, which is leaked. All
    // functions but ours are the default's own, none of which looks at the struct that it is called through.
    unsafe {
        assert_eq!(ffi::sqlite3_initialize(), ffi::SQLITE_OK);
        let default = ffi::sqlite3_vfs_find(std::ptr::null());
        WRAPPED.store(default, std::sync::atomic::Ordering::Release);
        let mut shim = *default;
        shim.szOsFile += c_int::try_from(size_of::<ShimFile>()).unwrap();
        shim.zName = c"recording".as_ptr();
        shim.pNext = std::ptr::null_mut();
        shim.xOpen = Some(open);
        shim.xDelete = Some(delete);
        let result = ffi::sqlite3_vfs_register(Box::leak(Box::new(shim)), 1);
        assert_eq!(result, ffi::SQLITE_OK);
    }
}

/// The file of the wrapped VFS.
///
/// # Safety
/// `file` is one that [`open`] was given, with room for both.
unsafe fn inner(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: `szOsFile` has room for the wrapped file behind ours, whose size is a multiple of the alignment.
    unsafe { file.cast::<ShimFile>().add(1).cast() }
}

/// The methods of the wrapped file.
///
/// # Safety
/// As [`inner`], and the file is open.
unsafe fn methods<'a>(file: *mut ffi::sqlite3_file) -> &'a ffi::sqlite3_io_methods {
    // SAFETY: an open file has methods, which are static.
    unsafe { &*(*inner(file)).pMethods }
}

/// What is watched of an open file.
///
/// # Safety
/// As [`methods`].
unsafe fn watched_file<'a>(file: *mut ffi::sqlite3_file) -> Option<&'a WatchedFile> {
    // SAFETY: null or a box of ours that `close` takes down.
    unsafe { (*file.cast::<ShimFile>()).watched.as_ref() }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives memory of `szOsFile` bytes and a name that lives as long as the file, or none.
    unsafe {
        (*file).pMethods = std::ptr::null();
        let path = (!name.is_null())
            .then(|| PathBuf::from(CStr::from_ptr(name).to_str().unwrap_or_default()));
        let existed = path.as_ref().is_some_and(|path| path.exists());
        let open = (*wrapped()).xOpen.expect("a VFS opens files");
        let result = open(wrapped(), name, inner(file), flags, out);
        if result != ffi::SQLITE_OK {
            return result;
        }
        let watched = path.as_deref().and_then(watched).map(|(disk, name)| {
            let mut log = disk.log();
            *log.opened.entry(name.clone()).or_default() += 1;
            let known = log.names.get(&name).copied().filter(|_| existed);
            let file = known.unwrap_or_else(|| log.create(&name));
            drop(log);
            Box::into_raw(Box::new(WatchedFile { disk, file }))
        });
        (*file.cast::<ShimFile>()).watched = watched.unwrap_or(std::ptr::null_mut());
        (*file).pMethods = &raw const METHODS;
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: SQLite gives a name that ends in zero.
    let path = PathBuf::from(unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default());
    let found = watched(&path);
    if let Some((disk, _)) = &found
        && disk.log().strikes(Kind::Delete).is_some()
    {
        return ffi::SQLITE_IOERR_DELETE;
    }
    // SAFETY: the wrapped VFS is called with itself and what we were given.
    let result = unsafe {
        let delete = (*wrapped()).xDelete.expect("a VFS deletes files");
        delete(wrapped(), name, sync)
    };
    if let Some((disk, name)) = found
        && result == ffi::SQLITE_OK
    {
        let mut log = disk.log();
        log.names.remove(&name);
        log.events.push(Event::Delete { name });
    }
    result
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes an open file once; the box is ours.
    unsafe {
        let result = (methods(file).xClose.expect("a file closes"))(inner(file));
        let shim = file.cast::<ShimFile>();
        if !(*shim).watched.is_null() {
            drop(Box::from_raw((*shim).watched));
            (*shim).watched = std::ptr::null_mut();
        }
        result
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    buffer: *mut c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: an open file of ours, and the buffer that SQLite gave for it.
    unsafe {
        if let Some(watched) = watched_file(file)
            && watched.disk.log().strikes(Kind::Read).is_some()
        {
            return ffi::SQLITE_IOERR_READ;
        }
        (methods(file).xRead.expect("a file reads"))(inner(file), buffer, amount, offset)
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    buffer: *const c_void,
    amount: c_int,
    offset: i64,
) -> c_int {
    // SAFETY: an open file of ours, and `amount` bytes in the buffer that SQLite gave for it.
    unsafe {
        let write = methods(file).xWrite.expect("a file writes");
        let Some(watched) = watched_file(file) else {
            return write(inner(file), buffer, amount, offset);
        };
        let mut log = watched.disk.log();
        let struck = log.strikes(Kind::Write);
        let length = match struck {
            Some(Failure::Io | Failure::IoUnseen) => return ffi::SQLITE_IOERR_WRITE,
            Some(Failure::Full) => return ffi::SQLITE_FULL,
            Some(Failure::Short) => amount / 2,
            None => amount,
        };
        let bytes = usize::try_from(length).unwrap_or(0);
        let mut under = Vec::new();
        if log.fault.is_some() {
            under = vec![0; bytes];
            let read = methods(file).xRead.expect("a file reads");
            let got = read(inner(file), under.as_mut_ptr().cast(), length, offset);
            // Behind the end of the file there is nothing to bring back; zeros are as good there.
            assert!(got == ffi::SQLITE_OK || got == ffi::SQLITE_IOERR_SHORT_READ);
        }
        let result = write(inner(file), buffer, length, offset);
        if result == ffi::SQLITE_OK {
            let content = std::slice::from_raw_parts(buffer.cast::<u8>(), bytes);
            log.note_write(watched.file, offset.cast_unsigned(), content, under);
        }
        if struck.is_some() { ffi::SQLITE_FULL } else { result }
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    // SAFETY: an open file of ours.
    unsafe {
        if let Some(watched) = watched_file(file) {
            let mut log = watched.disk.log();
            if log.strikes(Kind::Truncate).is_some() {
                return ffi::SQLITE_IOERR_TRUNCATE;
            }
            log.events.push(Event::Truncate { file: watched.file, length: length.cast_unsigned() });
        }
        (methods(file).xTruncate.expect("a file truncates"))(inner(file), length)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: an open file of ours.
    unsafe {
        let Some(watched) = watched_file(file) else {
            return (methods(file).xSync.expect("a file syncs"))(inner(file), flags);
        };
        let mut log = watched.disk.log();
        if let Some(failure) = log.strikes(Kind::Sync) {
            // What could not be written is marked clean and thrown away some time; here at once, or never.
            let write = methods(file).xWrite.expect("a file writes");
            let mut undo = log.undo.remove(&watched.file).unwrap_or_default();
            undo.retain(|_| failure == Failure::Io);
            for (offset, under) in undo.iter().rev() {
                let length = c_int::try_from(under.len()).unwrap_or(0);
                write(inner(file), under.as_ptr().cast(), length, offset.cast_signed());
            }
            log.events.push(Event::FailedSync { file: watched.file });
            return ffi::SQLITE_IOERR_FSYNC;
        }
        // Where images are made the real disk need not be waited for.
        log.note_sync(watched.file);
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    // SAFETY: an open file of ours; the same holds for all that only passes on.
    unsafe { (methods(file).xFileSize.expect("a file has a size"))(inner(file), size) }
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xLock.expect("a file locks"))(inner(file), level) }
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xUnlock.expect("a file unlocks"))(inner(file), level) }
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xCheckReservedLock.expect("a file locks"))(inner(file), out) }
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe {
        (methods(file).xFileControl.expect("a file has controls"))(inner(file), operation, argument)
    }
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xSectorSize.expect("a file has sectors"))(inner(file)) }
}

unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xDeviceCharacteristics.expect("a file lies on a device"))(inner(file)) }
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe {
        (methods(file).xShmMap.expect("a file maps memory"))(inner(file), region, size, extend, out)
    }
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    offset: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe {
        (methods(file).xShmLock.expect("a file locks memory"))(inner(file), offset, count, flags)
    }
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xShmBarrier.expect("a file maps memory"))(inner(file)) }
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    // SAFETY: as in `file_size`.
    unsafe { (methods(file).xShmUnmap.expect("a file maps memory"))(inner(file), delete) }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // Without xFetch: nothing here maps files.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
