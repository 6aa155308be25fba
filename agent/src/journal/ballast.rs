//! A file that takes room so that there is some when the volume is full: for the seals, acks and deletes that empty it.
//!
//! In WAL mode a full volume lets SQLite neither delete nor checkpoint. The file is really allocated, given up when the volume
//! lacks room for such work, and made again when there is enough.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file's name in the data directory.
const FILE_NAME: &str = "journal.ballast";

/// Keeps the file.
#[derive(Debug)]
pub(super) struct Ballast {
    path: PathBuf,
    wanted: u64,
    held: u64,
    /// It could not be made, which was said.
    failed: bool,
}

impl Ballast {
    /// What an earlier run left, or nothing.
    pub(super) fn in_directory(directory: &Path, wanted: u64) -> Self {
        let path = directory.join(FILE_NAME);
        let held = fs::metadata(&path).map_or(0, |metadata| metadata.len());
        Self { path, wanted, held, failed: false }
    }

    /// Bytes that it holds.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Bytes that it lacks.
    pub(super) fn lacking(&self) -> u64 {
        self.wanted.saturating_sub(self.held)
    }

    /// Gives the room back to the volume; says whether there was any.
    pub(super) fn give_up(&mut self) -> bool {
        if self.held == 0 {
            return false;
        }
        // Cut first: that needs no room, also where removing a name does.
        let cut = File::options().write(true).open(&self.path).and_then(|file| file.set_len(0));
        if let Err(error) = cut.and_then(|()| fs::remove_file(&self.path)) {
            tracing::warn!(path = %self.path.display(), error = %error, "Ballast cannot be given up");
        }
        self.held = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        tracing::info!(
            size_bytes = self.wanted,
            "Ballast was given up for seals, acks and deletes"
        );
        true
    }

    /// Makes it as large as it should be; a failure costs the reserve only.
    pub(super) fn restore(&mut self) {
        self.make(self.wanted);
    }

    /// At the end of a run: takes over the room that the WAL had too, as far as there is any, because a start on a volume that
    /// is full by then makes its WAL of it.
    pub(super) fn keep_for_start(&mut self, wal_bytes: u64, volume_free: u64) {
        let size = (self.wanted + wal_bytes).min(self.held + volume_free);
        if size > self.held {
            self.make(size);
        }
    }

    fn make(&mut self, size_bytes: u64) {
        if self.held == size_bytes {
            return;
        }
        match allocate(&self.path, size_bytes) {
            Ok(()) => {
                self.held = size_bytes;
                self.failed = false;
                tracing::debug!(size_bytes, "Ballast is there");
            }
            Err(error) => {
                // What there was stays; what came on top goes back.
                let cut = File::options().write(true).open(&self.path);
                drop(cut.and_then(|file| file.set_len(self.held)));
                self.held = fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
                if !std::mem::replace(&mut self.failed, true) {
                    let path = self.path.display();
                    tracing::warn!(%path, error = %error, "Ballast cannot be made, a full disk may stop deliveries");
                }
            }
        }
    }
}

/// A file of this size whose blocks are its own.
fn allocate(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(false).open(path)?;
    file.set_len(bytes.min(file.metadata()?.len()))?;
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes) {
        Ok(()) => {}
        Err(rustix::io::Errno::OPNOTSUPP) => {
            write_noise(&mut file, bytes)?;
            // Only then does the file system know whether it has the blocks.
            file.sync_all()?;
        }
        Err(errno) => return Err(errno.into()),
    }
    // One that a power cut takes away is made again.
    Ok(())
}

/// What no file system compresses away or leaves out.
fn write_noise(file: &mut File, bytes: u64) -> io::Result<()> {
    let mut random = fastrand::Rng::with_seed(bytes);
    let mut block = vec![0; 64 * 1024];
    let mut left = bytes;
    while left > 0 {
        random.fill(&mut block);
        let step = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        file.write_all(&block[..step])?;
        left -= step as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn its_blocks_are_its_own_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut ballast = Ballast::in_directory(dir.path(), 1 << 20);
        assert!(!ballast.give_up());
        ballast.restore();
        let file = fs::metadata(dir.path().join(FILE_NAME)).unwrap();
        assert_eq!((ballast.held(), file.len()), (1 << 20, 1 << 20));
        assert!(file.blocks() * 512 >= 1 << 20, "{} blocks: it is sparse", file.blocks());
        // The next run finds it, and a smaller limit makes it smaller.
        let mut next = Ballast::in_directory(dir.path(), 1 << 19);
        assert_eq!(next.held(), 1 << 20);
        next.restore();
        assert_eq!(fs::metadata(dir.path().join(FILE_NAME)).unwrap().len(), 1 << 19);
        assert!(next.give_up());
        assert!(!dir.path().join(FILE_NAME).exists());
    }

    #[test]
    fn noise_fills_the_size_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::create(dir.path().join("x")).unwrap();
        write_noise(&mut file, 200_001).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 200_001);
    }
}
