//! Gives a finished temporary its final name, without ever replacing a file.
//!
//! In this order, the first that the file system can do; which one that is, is found out once:
//! 1. `renameat2` with `RENAME_NOREPLACE`;
//! 2. a hard link, then removing the temporary;
//! 3. creating the name exclusively, empty, then renaming over it. An empty file is never a batch's, so one that a crash
//!    leaves behind is taken for what it is and renamed over.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Which of the ways the file system takes, shared by the lanes of a sink.
#[derive(Debug, Default)]
pub(super) struct Way(AtomicU8);

const RENAME: u8 = 0;
const LINK: u8 = 1;
const CLAIM: u8 = 2;

impl Way {
    /// Renames `part` to `name` in `folder`.
    ///
    /// # Errors
    /// `EXIST` when there is such a file already; it is untouched.
    pub(super) fn publish(&self, folder: &OwnedFd, part: &str, name: &str) -> Result<(), Errno> {
        loop {
            let way = self.0.load(Ordering::Relaxed);
            let (result, next) = match way {
                RENAME => {
                    let flags = RenameFlags::NOREPLACE;
                    (rustix::fs::renameat_with(folder, part, folder, name, flags), LINK)
                }
                LINK => (link(folder, part, name), CLAIM),
                _ => return claim(folder, part, name),
            };
            match result {
                // What file systems answer to what they cannot do; EPERM is the answer to a link on FAT.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::MLINK) => {}
                Err(Errno::PERM) if way == LINK => {}
                other => return other,
            }
            self.0.store(next, Ordering::Relaxed);
        }
    }
}

fn link(folder: &OwnedFd, part: &str, name: &str) -> Result<(), Errno> {
    rustix::fs::linkat(folder, part, folder, name, AtFlags::empty())?;
    // The file has its name; a temporary that cannot be removed is overwritten or left, never read.
    let _left = rustix::fs::unlinkat(folder, part, AtFlags::empty());
    Ok(())
}

fn claim(folder: &OwnedFd, part: &str, name: &str) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o644)) {
        Ok(_) => {}
        Err(Errno::EXIST) => {
            let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let file = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            if stat.st_size != 0 || file != rustix::fs::FileType::RegularFile {
                return Err(Errno::EXIST);
            }
        }
        Err(error) => return Err(error),
    }
    rustix::fs::renameat(folder, part, folder, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_publishes_and_none_replaces() {
        for way in [RENAME, LINK, CLAIM] {
            let dir = tempfile::tempdir().unwrap();
            let fd = super::super::folder::open_root(dir.path(), true).unwrap();
            let way = Way(AtomicU8::new(way));
            std::fs::write(dir.path().join(".a.part"), "new").unwrap();
            way.publish(&fd, ".a.part", "a").unwrap();
            assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "new");
            assert!(!dir.path().join(".a.part").exists());
            std::fs::write(dir.path().join(".a.part"), "other").unwrap();
            assert_eq!(way.publish(&fd, ".a.part", "a"), Err(Errno::EXIST));
            assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "new");
        }
    }

    #[test]
    fn an_empty_claim_of_a_crash_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let fd = super::super::folder::open_root(dir.path(), true).unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        std::fs::write(dir.path().join(".a.part"), "new").unwrap();
        Way(AtomicU8::new(CLAIM)).publish(&fd, ".a.part", "a").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("a")).unwrap(), "new");
    }
}
