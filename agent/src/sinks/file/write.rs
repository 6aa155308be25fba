//! Writes one batch as one file, or as one for each value in it, on a blocking thread.
//!
//! 1. Open the folder below the root; make and sync what is missing.
//! 2. A file with content under the final name: compare (step 6).
//! 3. Open `.NAME.part` beside it, lock it, empty it: what an attempt before left there is overwritten.
//! 4. Stream the records into it, compressed if so fixed; sync it.
//! 5. Give it the final name without replacing; sync the folder. Done.
//! 6. The name was taken: the same uncompressed content is a repeat, and synced for good; other content is a conflict.
//!
//! A batch with several files goes through these steps for each, one after the other, reading the batch as often: memory stays
//! that of one file, whatever their number. What an earlier attempt has written is found in 2.
//!
//! A crash before 5 leaves a `.part` at most. A crash after it leaves the file, which the next attempt finds in 2.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::Fixed;
use super::folder::{self, Failed, Synced};
use super::publish::Way;
use crate::limits::FILE_WRITE_BYTES;
use crate::record::batch::{ReadError, SealedBatch};
use crate::record::partition::PartitionBy;
use crate::sinks::format::LineEncoder;
use crate::sinks::{Class, Delivered, Refused, SinkError, Throttle};

/// What all files of a sink have in common.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) root: PathBuf,
    pub(super) root_must_exist: bool,
    pub(super) way: Way,
    pub(super) synced: Synced,
}

/// What an attempt goes by on its blocking thread.
pub(super) struct Attempt {
    pub(super) throttle: Throttle,
    /// Where it waits for the limiter.
    pub(super) runtime: Handle,
    /// Told to stop; then it does so between two blocks.
    pub(super) cancelled: CancellationToken,
}

impl Attempt {
    /// Blocks until this much may be written.
    fn pay(&self, bytes: u64, records: u64) -> io::Result<()> {
        if !self.throttle.is_limited() {
            return Ok(());
        }
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                // Not "interrupted", which writers repeat by themselves.
                () = self.cancelled.cancelled() => {
                    Err(io::Error::new(io::ErrorKind::TimedOut, "the attempt was given up"))
                }
                () = self.throttle.pay(bytes, records) => Ok(()),
            }
        })
    }
}

/// One file to write.
struct Job<'a> {
    batch: &'a SealedBatch,
    fixed: &'a Fixed,
    path: PathBuf,
    folder: OwnedFd,
    name: &'a str,
    /// Which of the records, when the batch has several files.
    only: Option<Only<'a>>,
    attempt: &'a Attempt,
}

/// The records of one of several files.
#[derive(Clone, Copy)]
struct Only<'a> {
    /// For each record of the batch, the number of its file.
    files: &'a [usize],
    number: usize,
}

/// What a pass over a batch has written.
#[derive(Default)]
struct Written {
    records: u64,
    refused: Vec<Refused>,
}

/// Delivers a batch. Stops between blocks when the attempt is given up.
pub(super) fn deliver(
    place: &Place,
    batch: &SealedBatch,
    fixed: &Fixed,
    attempt: &Attempt,
) -> Result<Delivered, SinkError> {
    if fixed.files.is_empty() {
        return deliver_file(place, batch, fixed, &fixed.name, None, attempt);
    }
    let files = files_of_records(batch, fixed)?;
    let mut all = Delivered::default();
    for (number, file) in fixed.files.iter().enumerate() {
        let only = Some(Only { files: &files, number });
        let one = deliver_file(place, batch, fixed, &file.name, only, attempt)?;
        all.records += one.records;
        all.already += one.already;
        all.bytes += one.bytes;
        all.files += one.files;
        all.refused.extend(one.refused);
    }
    all.refused.sort_by_key(|refused| refused.index);
    Ok(all)
}

/// For each record of a batch, which of its files it belongs to.
fn files_of_records(batch: &SealedBatch, fixed: &Fixed) -> Result<Vec<usize>, SinkError> {
    let unusable = |reason: String| {
        let batch = batch.facts.identity();
        SinkError::new(
            Class::Rejected,
            format!("the files of batch {batch} are unusable: {reason}"),
        )
    };
    let by = PartitionBy::parse(fixed.by.iter().map(String::as_str))
        .map_err(|error| unusable(error.to_string()))?;
    let numbers: HashMap<&str, usize> =
        fixed.files.iter().enumerate().map(|(number, file)| (file.key.as_str(), number)).collect();
    let mut files = Vec::new();
    let mut key = String::new();
    let mut reader = batch.content.open();
    while let Some(block) = reader.next_block().map_err(|error| unreadable(batch, error))? {
        for record in block.records() {
            let record = record.map_err(|error| unreadable(batch, error.into()))?;
            by.write_key(&record, &mut key);
            let number = numbers.get(key.as_str());
            files.push(*number.ok_or_else(|| unusable("a record has none".to_owned()))?);
        }
    }
    Ok(files)
}

fn unreadable(batch: &SealedBatch, error: ReadError) -> SinkError {
    let reason = format!("cannot read batch {}", batch.facts.identity());
    SinkError::new(Class::Retryable, reason).caused_by(error)
}

fn deliver_file(
    place: &Place,
    batch: &SealedBatch,
    fixed: &Fixed,
    file: &str,
    only: Option<Only<'_>>,
    attempt: &Attempt,
) -> Result<Delivered, SinkError> {
    let relative = Path::new(file);
    let name = relative
        .file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| SinkError::new(Class::Rejected, format!("\"{file}\" is no file name")))?;
    let root = folder::open_root(&place.root, place.root_must_exist)?;
    let parents = relative.parent().unwrap_or(Path::new(""));
    place.synced.settle_root(&place.root);
    let folder = folder::open_below(&root, &place.root, parents, &place.synced)?;
    let path = place.root.join(relative);
    let job = Job { batch, fixed, path, folder, name, only, attempt };
    if job.is_taken()? {
        return job.compare();
    }
    let (part, mut delivered) = job.write()?;
    if delivered.records == 0 {
        // All of them were refused: there is nothing to name.
        job.remove(&part);
        return Ok(delivered);
    }
    match place.way.publish(&job.folder, &part, name) {
        Ok(()) => {
            folder::sync(&job.folder)
                .map_err(|error| Failed::new("sync the folder of", &job.path, error))?;
            delivered.files = 1;
            Ok(delivered)
        }
        Err(Errno::EXIST) => {
            job.remove(&part);
            job.compare()
        }
        Err(error) => {
            job.remove(&part);
            Err(Failed::new("rename to", &job.path, error).into())
        }
    }
}

impl Job<'_> {
    /// Whether something with content has the final name. An empty file counts only when it cannot be taken over.
    fn is_taken(&self) -> Result<bool, SinkError> {
        match rustix::fs::statat(&self.folder, self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                Ok(stat.st_size != 0
                    || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(Failed::new("look at", &self.path, error).into()),
        }
    }

    /// Writes and syncs the temporary. Removes it again when that fails, so that a full disk is not kept full.
    fn write(&self) -> Result<(String, Delivered), SinkError> {
        let part = format!(".{}.part", self.name);
        let file = self.open_part(&part)?;
        match self.fill(file) {
            Ok(delivered) => Ok((part, delivered)),
            Err(error) => {
                self.remove(&part);
                Err(error)
            }
        }
    }

    fn open_part(&self, part: &str) -> Result<File, SinkError> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = self.path.with_file_name(part);
        let mode = Mode::from_raw_mode(0o644);
        let file = rustix::fs::openat(&self.folder, part, flags, mode)
            .map_err(|error| Failed::new("create", &path, error))?;
        // An attempt that was given up may still be at it on a thread of its own. Its lock ends with it, also in a crash.
        // File systems without locks: the attempts of one lane wait for each other anyway.
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        if locked == Err(Errno::WOULDBLOCK) {
            let reason = format!("an earlier attempt is still writing {}", path.display());
            return Err(SinkError::new(Class::Retryable, reason));
        }
        self.check_still_there(&file, part)?;
        rustix::fs::ftruncate(&file, 0).map_err(|error| Failed::new("empty", &path, error))?;
        Ok(File::from(file))
    }

    /// The one who held the lock may have renamed or removed the file between our opening and locking it.
    fn check_still_there(&self, file: &OwnedFd, part: &str) -> Result<(), SinkError> {
        let path = self.path.with_file_name(part);
        let failed = |error| SinkError::from(Failed::new("look at", &path, error));
        let ours = rustix::fs::fstat(file).map_err(failed)?;
        match rustix::fs::statat(&self.folder, part, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if (stat.st_dev, stat.st_ino) == (ours.st_dev, ours.st_ino) => Ok(()),
            Ok(_) | Err(Errno::NOENT) => Err(SinkError::new(
                Class::Retryable,
                format!("an earlier attempt has just ended with {}", path.display()),
            )),
            Err(error) => Err(failed(error)),
        }
    }

    fn fill(&self, file: File) -> Result<Delivered, SinkError> {
        let failed = |error| SinkError::from(Failed::new("write", &self.path, error));
        let counted = Counted { inner: file, attempt: self.attempt, bytes: 0 };
        let (written, counted) = if let Some(level) = self.fixed.zstd_level() {
            let buffered = BufWriter::with_capacity(FILE_WRITE_BYTES, counted);
            let mut encoder = zstd::stream::write::Encoder::new(buffered, level).map_err(failed)?;
            encoder.include_checksum(true).map_err(failed)?;
            let written = self.stream(&mut encoder, true)?;
            let buffered = encoder.finish().map_err(failed)?;
            (written, buffered.into_inner().map_err(|error| failed(error.into_error()))?)
        } else {
            let mut counted = counted;
            (self.stream(&mut counted, true)?, counted)
        };
        counted.inner.sync_all().map_err(|error| Failed::new("sync", &self.path, error))?;
        let Written { records, refused } = written;
        Ok(Delivered { records, bytes: counted.bytes, refused, ..Delivered::default() })
    }

    /// Writes the uncompressed content into `out`, in pieces of at least 64 KiB; pays for its records if they go out.
    fn stream(&self, out: &mut impl Write, goes_out: bool) -> Result<Written, SinkError> {
        let facts = &self.batch.facts;
        let failed = |error| SinkError::from(Failed::new("write", &self.path, error));
        let mut encoder = LineEncoder::new(self.fixed.format(), &facts.place.lane);
        let mut buffer = Vec::with_capacity(2 * FILE_WRITE_BYTES);
        let mut reader = self.batch.content.open();
        let mut written = Written::default();
        let mut index = 0;
        let mut paid = 0;
        let mut pay = |records| {
            let unpaid = records - std::mem::replace(&mut paid, records);
            if goes_out { self.attempt.pay(0, unpaid) } else { Ok(()) }
        };
        while let Some(block) =
            reader.next_block().map_err(|error| unreadable(self.batch, error))?
        {
            if self.attempt.cancelled.is_cancelled() {
                return Err(SinkError::new(Class::Retryable, "the attempt was given up"));
            }
            for record in block.records() {
                let record = record.map_err(|error| unreadable(self.batch, error.into()))?;
                index += 1;
                if !self.takes(index - 1) {
                    continue;
                }
                match encoder.encode(&record, &mut buffer) {
                    Ok(()) => written.records += 1,
                    Err(error) => written
                        .refused
                        .push(Refused { index: index as u64 - 1, reason: error.reason }),
                }
                if buffer.len() >= FILE_WRITE_BYTES {
                    pay(written.records).and_then(|()| out.write_all(&buffer)).map_err(failed)?;
                    buffer.clear();
                }
            }
        }
        pay(written.records).and_then(|()| out.write_all(&buffer)).map_err(failed)?;
        if index as u64 == facts.records {
            return Ok(written);
        }
        Err(SinkError::new(
            Class::Retryable,
            format!(
                "batch {} has {index} of its {} records in the journal",
                facts.identity(),
                facts.records
            ),
        ))
    }

    /// Whether the record at this place of the batch goes into this file.
    fn takes(&self, index: usize) -> bool {
        self.only.is_none_or(|only| only.files.get(index) == Some(&only.number))
    }

    fn remove(&self, part: &str) {
        // A temporary that stays is overwritten by the next attempt.
        let _stays = rustix::fs::unlinkat(&self.folder, part, AtFlags::empty());
    }

    /// Settles whether the file under the final name is this batch.
    fn compare(&self) -> Result<Delivered, SinkError> {
        let mut expected = Hashing::default();
        let Written { records, refused } = self.stream(&mut expected, false)?;
        let (found, size, file) = self.hash_found()?;
        let expected = expected.sha.finalize();
        if found[..] == expected[..] {
            // It may be the work of an attempt that was cut off before its last sync.
            file.sync_all().map_err(|error| Failed::new("sync", &self.path, error))?;
            folder::sync(&self.folder)
                .map_err(|error| Failed::new("sync the folder of", &self.path, error))?;
            return Ok(Delivered {
                records,
                already: records,
                bytes: size,
                refused,
                ..Delivered::default()
            });
        }
        Err(SinkError::new(
            Class::Conflict,
            format!(
                "{} holds other content than batch {}: its sha256 is {}, the batch's {}",
                self.path.display(),
                self.batch.facts.identity(),
                hex(&found),
                hex(&expected)
            ),
        ))
    }

    /// SHA-256 of the uncompressed content of what has the final name; of its bytes when it cannot be decompressed.
    fn hash_found(&self) -> Result<([u8; 32], u64, File), SinkError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let open = || match rustix::fs::openat(&self.folder, self.name, flags, Mode::empty()) {
            Ok(file) => Ok(File::from(file)),
            Err(Errno::LOOP | Errno::MLINK) => Err(self.no_file()),
            Err(error) => Err(Failed::new("open", &self.path, error).into()),
        };
        let file = open()?;
        let failed = |error| SinkError::from(Failed::new("read", &self.path, error));
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(self.no_file());
        }
        if self.fixed.zstd_level().is_some() {
            let mut hashing = Hashing::default();
            let decoder = zstd::stream::read::Decoder::new(&file).map_err(failed)?;
            if self.copy(decoder, &mut hashing).is_ok() {
                return Ok((hashing.sha.finalize().into(), meta.len(), file));
            }
        }
        let mut hashing = Hashing::default();
        self.copy(&open()?, &mut hashing).map_err(failed)?;
        Ok((hashing.sha.finalize().into(), meta.len(), file))
    }

    fn no_file(&self) -> SinkError {
        let reason = format!(
            "{} is no regular file, batch {} cannot have its name",
            self.path.display(),
            self.batch.facts.identity()
        );
        SinkError::new(Class::Conflict, reason)
    }

    fn copy(&self, mut from: impl io::Read, to: &mut Hashing) -> io::Result<()> {
        let mut buffer = vec![0; FILE_WRITE_BYTES];
        loop {
            if self.attempt.cancelled.is_cancelled() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match from.read(&mut buffer)? {
                0 => return Ok(()),
                count => to.sha.update(&buffer[..count]),
            }
        }
    }
}

#[derive(Default)]
struct Hashing {
    sha: Sha256,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sha.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What goes into the file: paid for before it is written, and counted.
struct Counted<'a> {
    inner: File,
    attempt: &'a Attempt,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.attempt.pay(bytes.len() as u64, 0)?;
        self.inner.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ok = write!(text, "{byte:02x}");
        text
    })
}
