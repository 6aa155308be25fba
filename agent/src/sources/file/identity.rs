//! Which file is which: a file is known by device and inode, and by what stood in the part that was read.
//!
//! A renamed file keeps device and inode. A new file may get the inode of a deleted one, and a file may be cut and written
//! anew in place; neither has the bytes that were read under the old position. So a position holds, beside the offset, hashes
//! of the first (up to 1 KiB) and the last (up to 256 B) bytes before it, and a file that does not have them is read from
//! its first byte. Devices may be numbered anew at a boot: the same inode under the same path with the same bytes is the
//! same file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const HEAD_BYTES_MAX: u64 = 1024;
const TAIL_BYTES_MAX: u64 = 256;
/// Room for either.
const CHECKED_BYTES_MAX: usize = 1024;

/// Device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileId {
    pub(super) fn of(meta: &Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino() }
    }

    /// The key of its position.
    pub(super) fn key(self) -> String {
        format!("{:x}-{:x}", self.device, self.inode)
    }

    /// The file of a position's key.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        let (device, inode) = key.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { device: hex(device)?, inode: hex(inode)? })
    }
}

/// What stood before an offset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Check {
    head: String,
    head_bytes: u64,
    tail: String,
    tail_bytes: u64,
}

impl Check {
    /// Reads what stands before `offset` now. The head is taken over once it has its full length.
    pub(super) fn of(file: &File, offset: u64, before: &Self) -> io::Result<Self> {
        let mut check = before.clone();
        let head_bytes = offset.min(HEAD_BYTES_MAX);
        if check.head_bytes != head_bytes {
            check.head = hash(file, 0, head_bytes)?;
            check.head_bytes = head_bytes;
        }
        check.tail_bytes = offset.min(TAIL_BYTES_MAX);
        check.tail = hash(file, offset - check.tail_bytes, check.tail_bytes)?;
        Ok(check)
    }

    /// The part of it that does not depend on the offset, for when the file cannot be read.
    pub(super) fn without_tail(&self) -> Self {
        Self { tail: String::new(), tail_bytes: 0, ..self.clone() }
    }

    /// One that no file has.
    pub(super) fn never() -> Self {
        Self { head_bytes: u64::MAX, ..Self::default() }
    }

    /// Whether the file still has what stood before `offset`.
    pub(super) fn holds(&self, file: &File, offset: u64) -> io::Result<bool> {
        let tail_at = offset.checked_sub(self.tail_bytes);
        let Some(tail_at) = tail_at.filter(|_| self.are_plausible()) else { return Ok(false) };
        let held = || {
            Ok(hash(file, 0, self.head_bytes)? == self.head
                && hash(file, tail_at, self.tail_bytes)? == self.tail)
        };
        match held() {
            // It ends before.
            Err(error) if io::Error::kind(&error) == io::ErrorKind::UnexpectedEof => Ok(false),
            other => other,
        }
    }

    /// Positions come from the disk: what they ask to be read has a bound.
    fn are_plausible(&self) -> bool {
        self.head_bytes <= HEAD_BYTES_MAX && self.tail_bytes <= TAIL_BYTES_MAX
    }
}

fn hash(file: &File, at: u64, bytes: u64) -> io::Result<String> {
    if bytes == 0 {
        return Ok(String::new());
    }
    let mut buffer = [0; CHECKED_BYTES_MAX];
    let length = usize::try_from(bytes).unwrap_or(buffer.len()).min(buffer.len());
    let buffer = &mut buffer[..length];
    file.read_exact_at(buffer, at)?;
    let digest = Sha256::digest(&*buffer);
    let (first, _) = digest.split_at(8);
    Ok(first.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A position, as it stands in the journal (JSON): fields may be added, none may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Saved {
    /// The path under which the file was first seen; the subject comes from it.
    pub(super) path: String,
    /// The first byte that was not read.
    pub(super) offset: u64,
    #[serde(flatten)]
    pub(super) check: Check,
}

impl Saved {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are always JSON")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_check_holds_while_the_read_part_stays_and_grows_with_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one\ntwo\n").unwrap();
        let first = Check::of(&file, 4, &Check::default()).unwrap();
        assert!(first.holds(&file, 4).unwrap());
        file.write_all(&[b'x'; 5000]).unwrap();
        assert!(first.holds(&file, 4).unwrap());
        let second = Check::of(&file, 4000, &first).unwrap();
        assert!(second.holds(&file, 4000).unwrap());
        // The same head, another tail: a file with the same first lines and the inode of the old one.
        file.write_all_at(b"y", 3990).unwrap();
        assert!(!second.holds(&file, 4000).unwrap());
        file.set_len(100).unwrap();
        assert!(!second.holds(&file, 4000).unwrap());
        assert!(first.holds(&file, 4).unwrap());
    }

    #[test]
    fn positions_survive_being_stored_and_damaged_ones_are_none() {
        let saved = Saved {
            path: "/a/ü".to_owned(),
            offset: 7,
            check: Check {
                head: "00".to_owned(),
                head_bytes: 1,
                tail: String::new(),
                tail_bytes: 0,
            },
        };
        assert_eq!(Saved::parse(&saved.to_bytes()), Some(saved));
        assert_eq!(Saved::parse(b"{}"), None);
        let id = FileId { device: 0xfd01, inode: 77 };
        assert_eq!(FileId::of_key(&id.key()), Some(id));
        let file = tempfile::tempfile().unwrap();
        let wild = Check { head_bytes: u64::MAX, tail_bytes: u64::MAX, ..Check::default() };
        assert!(!wild.holds(&file, u64::MAX).unwrap());
    }
}
