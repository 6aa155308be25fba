//! Which file is which, and which content is which.
//!
//! A file is known by device and inode, its content by what stood in the part that was read. A renamed file keeps device and
//! inode. A new file may get the inode of a deleted one, and a file may be cut and written anew in place; neither has the
//! bytes that were read under the old position. So a position holds, beside the offset, hashes of the first (up to 1 KiB) and
//! the last (up to 256 B) bytes before it, and a file that does not have them is read from its first byte. Devices may be
//! numbered anew at a boot: the same inode under the same path with the same bytes is the same file.
//!
//! The hashes are of the bytes as they were read ([`Trail`]), never of what stands there later: a file may be cut at any
//! moment.
//!
//! A position also holds a few earlier marks, each an offset and the hash before it, ever farther apart. With them a copy that was made
//! before the last bytes were read is recognised, too: it agrees as far as it goes ([`Check::agreement`]).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::limits::FILE_MARKS_MAX;

pub(super) const HEAD_BYTES_MAX: u64 = 1024;
pub(super) const TAIL_BYTES_MAX: u64 = 256;

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

/// The first bytes of a file, and the last ones before the place where it is read, as they were read.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail {
    head: Vec<u8>,
    before: Vec<u8>,
    at: u64,
}

impl Trail {
    /// What stands in front of an offset now.
    pub(super) fn load(file: &File, at: u64) -> io::Result<Self> {
        let mut trail =
            Self { head: room(at.min(HEAD_BYTES_MAX)), before: room(at.min(TAIL_BYTES_MAX)), at };
        file.read_exact_at(&mut trail.head, 0)?;
        let before_at = at - trail.before.len() as u64;
        file.read_exact_at(&mut trail.before, before_at)?;
        Ok(trail)
    }

    /// Takes note of the bytes that follow.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.at == self.head.len() as u64 {
            let missing = room_left(&self.head, HEAD_BYTES_MAX).min(bytes.len());
            self.head.extend_from_slice(&bytes[..missing]);
        }
        self.before = last(&self.before, bytes);
        self.at += bytes.len() as u64;
    }

    /// Takes note of NULs up to an offset.
    pub(super) fn leap(&mut self, to: u64) {
        let zeros = [0; 1024];
        for _ in 0..2 {
            let missing = usize::try_from(to - self.at).unwrap_or(usize::MAX);
            self.push(&zeros[..missing.min(zeros.len())]);
        }
        self.at = to;
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The hash of the bytes in front of where it is.
    pub(super) fn hash_before(&self, bytes: u64) -> String {
        let from = self.before.len().saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        hash(&self.before[from..])
    }

    /// The check of the place behind `bytes`, which follow.
    pub(super) fn check(&self, bytes: &[u8], marks: &[Mark]) -> Check {
        let mut head = std::borrow::Cow::from(&self.head);
        if self.at == head.len() as u64 {
            let missing = room_left(&head, HEAD_BYTES_MAX).min(bytes.len());
            head.to_mut().extend_from_slice(&bytes[..missing]);
        }
        let tail = last(&self.before, bytes);
        Check {
            head_bytes: head.len() as u64,
            head: hash(&head),
            tail_bytes: tail.len() as u64,
            tail: hash(&tail),
            marks: marks.to_vec(),
        }
    }
}

fn room(bytes: u64) -> Vec<u8> {
    vec![0; usize::try_from(bytes).unwrap_or_default()]
}

fn room_left(bytes: &[u8], max: u64) -> usize {
    usize::try_from(max).unwrap_or_default().saturating_sub(bytes.len())
}

/// The last bytes of both together.
fn last(first: &[u8], second: &[u8]) -> Vec<u8> {
    let max = usize::try_from(TAIL_BYTES_MAX).unwrap_or_default();
    let of_second = second.len().min(max);
    let of_first = first.len().min(max - of_second);
    [&first[first.len() - of_first..], &second[second.len() - of_second..]].concat()
}

/// An offset up to which was read once, and the hash of up to 256 B in front of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark(pub(super) u64, pub(super) String);

/// What stood before an offset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Check {
    head: String,
    head_bytes: u64,
    tail: String,
    tail_bytes: u64,
    /// Earlier ones, in ascending order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    marks: Vec<Mark>,
}

/// How much of what was read some content has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Agreement {
    /// It is other content.
    Nothing,
    /// It ends before the offset, and has what was read up to there.
    Shorter,
    /// It has all of it.
    Everything,
}

impl Check {
    /// Whether the file has what stood before `offset`.
    pub(super) fn holds(&self, file: &File, offset: u64) -> io::Result<bool> {
        let whole = Self { marks: Vec::new(), ..self.clone() };
        Ok(whole.agreement(offset, &mut |end, bytes| hash_at(file, end, bytes))?
            == Agreement::Everything)
    }

    /// Compares content with what was read up to `offset`. `hash_before` gives the hash of so many bytes in front of an offset, and is asked
    /// in ascending order of offsets.
    pub(super) fn agreement(
        &self,
        offset: u64,
        hash_before: &mut dyn FnMut(u64, u64) -> io::Result<String>,
    ) -> io::Result<Agreement> {
        if !self.is_plausible(offset) {
            return Ok(Agreement::Nothing);
        }
        let mut stops = vec![(self.head_bytes, self.head_bytes, &self.head)];
        stops.extend(self.marks.iter().map(|Mark(at, hash)| (*at, TAIL_BYTES_MAX.min(*at), hash)));
        stops.push((offset, self.tail_bytes, &self.tail));
        stops.sort_unstable();
        let mut agrees = false;
        for (end, bytes, hash) in stops.into_iter().filter(|(_, bytes, _)| *bytes > 0) {
            match hash_before(end, bytes) {
                Ok(found) if found == *hash => agrees = true,
                Ok(_) => return Ok(Agreement::Nothing),
                // It ends before.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(if agrees { Agreement::Shorter } else { Agreement::Nothing });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Agreement::Everything)
    }

    /// Positions come from the disk: what they ask to be read has a bound.
    fn is_plausible(&self, offset: u64) -> bool {
        self.head_bytes <= HEAD_BYTES_MAX.min(offset)
            && self.tail_bytes <= TAIL_BYTES_MAX.min(offset)
            && self.marks.len() <= FILE_MARKS_MAX
            && self.marks.iter().all(|mark| mark.0 <= offset)
    }

    pub(super) fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The mark of this check.
    pub(super) fn mark(&self, offset: u64) -> Mark {
        Mark(offset, self.tail.clone())
    }

    /// Keeps a mark from before `offset`, and of all marks those that are each about twice as far from it as the next.
    pub(super) fn keep(&mut self, mark: Mark, offset: u64) {
        // Where the whole head does not tell it from others, a mark does not either.
        if mark.0 == 0 || self.marks.last().is_some_and(|last| last.0 >= mark.0) {
            return;
        }
        self.marks.push(mark);
        let mut index = self.marks.len().saturating_sub(2);
        while index > 0 {
            let (older, newer) = (self.marks[index - 1].0, self.marks[index + 1].0);
            if offset - older <= 2 * (offset - newer) {
                self.marks.remove(index);
            }
            index -= 1;
        }
        if self.marks.len() > FILE_MARKS_MAX {
            self.marks.remove(0);
        }
    }
}

/// The hash of so many bytes in front of an offset.
pub(super) fn hash_at(file: &File, end: u64, bytes: u64) -> io::Result<String> {
    let mut buffer = room(bytes.min(HEAD_BYTES_MAX));
    file.read_exact_at(&mut buffer, end - bytes)?;
    Ok(hash(&buffer))
}

pub(super) fn hash(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return String::new();
    }
    let digest = Sha256::digest(bytes);
    let (first, _) = digest.split_at(8);
    first.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What became of a file whose content is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gone {
    /// Where it stood last.
    pub(super) path: String,
    /// It was cut or written anew, so that its content may go on in a copy; else it was removed.
    pub(super) cut: bool,
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
    /// Where the path led to, when it led over a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) real: Option<String>,
    /// Set when the content is not in its file any more; then it is kept under [`Saved::content_key`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) gone: Option<Gone>,
    /// How the file was when all of it had been read, of one that ends (an archive): size and time of change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<(u64, i64, i64)>,
}

impl Saved {
    /// The position of a file of which nothing was read.
    pub(super) fn new(path: String) -> Self {
        Self { path, offset: 0, check: Check::default(), real: None, gone: None, done: None }
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers are always JSON")
    }

    /// The key of content that is not in its file any more.
    pub(super) fn content_key(&self, of: FileId) -> String {
        format!("was-{}-{:x}-{}", of.key(), self.offset, self.check.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::fuzz;

    fn content(bytes: usize) -> Vec<u8> {
        (0_u32..).flat_map(|n| n.to_le_bytes()).take(bytes).collect()
    }

    fn compare(check: &Check, offset: u64, content: &[u8]) -> Agreement {
        let mut hash_before = |end: u64, bytes: u64| {
            let part = usize::try_from(end - bytes).unwrap()..usize::try_from(end).unwrap();
            content.get(part).map(hash).ok_or(io::ErrorKind::UnexpectedEof.into())
        };
        check.agreement(offset, &mut hash_before).unwrap()
    }

    #[test]
    fn a_check_is_the_same_however_the_content_was_cut_into_pieces() {
        let content = content(5000);
        for end in [1, 255, 256, 257, 1023, 1024, 1025, 5000] {
            let whole = Trail::default().check(&content[..end], &[]);
            for piece in [1, 100, 700, 3000] {
                let mut trail = Trail::default();
                let (front, rest) = content[..end].split_at(end - end % piece.min(end));
                front.chunks(piece).for_each(|chunk| trail.push(chunk));
                assert_eq!(trail.check(rest, &[]), whole, "{end} {piece}");
            }
            assert_eq!(compare(&whole, end as u64, &content), Agreement::Everything);
            let mut other = content.clone();
            other[end - 1] ^= 1;
            assert_eq!(compare(&whole, end as u64, &other), Agreement::Nothing);
        }
    }

    #[test]
    fn content_that_ends_before_agrees_as_far_as_it_goes_and_no_other_does() {
        let content = content(100_000);
        let mut trail = Trail::default();
        let (mut check, mut at) = (Check::default(), 0);
        for chunk in content.chunks(100) {
            let before = check.mark(at);
            at += chunk.len() as u64;
            check = trail.check(chunk, check.marks());
            check.keep(before, at);
            trail.push(chunk);
            assert!(check.marks().len() <= FILE_MARKS_MAX);
        }
        assert_eq!(compare(&check, at, &content), Agreement::Everything);
        for shorter in [2000, 50_000, 99_500, 99_999] {
            assert_eq!(compare(&check, at, &content[..shorter]), Agreement::Shorter, "{shorter}");
        }
        // It is near the end that a copy is told from a file that only begins alike.
        let mut other = content;
        other[99_790] ^= 1;
        assert_eq!(compare(&check, at, &other[..99_950]), Agreement::Nothing);
        other[0] ^= 1;
        assert_eq!(compare(&check, at, &other[..5000]), Agreement::Nothing);
    }

    #[test]
    fn positions_survive_being_stored_and_damaged_ones_are_none() {
        let before =
            br#"{"path":"/a","offset":7,"head":"00","head_bytes":1,"tail":"","tail_bytes":0}"#;
        let old = Saved::parse(before).unwrap();
        assert_eq!(old.to_bytes(), before);
        let mut check = Trail::default().check(b"1234567", &[]);
        check.keep(Mark(3, hash(b"123")), 7);
        let saved = Saved {
            check,
            real: Some("/b".to_owned()),
            gone: Some(Gone { path: "/c".to_owned(), cut: true }),
            done: Some((1, 2, 3)),
            ..old
        };
        assert_eq!(Saved::parse(&saved.to_bytes()), Some(saved));
        assert_eq!(Saved::parse(b"{}"), None);
        let id = FileId { device: 0xfd01, inode: 77 };
        assert_eq!(FileId::of_key(&id.key()), Some(id));
        let wild = Check { head_bytes: u64::MAX, tail_bytes: u64::MAX, ..Check::default() };
        assert_eq!(compare(&wild, u64::MAX, b"x"), Agreement::Nothing);
    }

    #[test]
    fn fuzzed_positions_are_read_or_left_aside() {
        let mut saved = Saved::new("/var/log/a.log".to_owned());
        saved.offset = 5000;
        saved.check = Trail::default().check(&content(5000), &[]);
        saved.gone = Some(Gone { path: "x".to_owned(), cut: true });
        saved.done = Some((5000, 1, 2));
        let other = Saved::new("ü".to_owned()).to_bytes();
        let bytes = content(6000);
        fuzz(&[&saved.to_bytes(), &other, b"1-2", b"was-1-2-3-4"], |value| {
            if let Some(saved) = Saved::parse(value) {
                assert_eq!(Saved::parse(&saved.to_bytes()).as_ref(), Some(&saved));
                let mut hash_before = |end: u64, count: u64| {
                    let range = usize::try_from(end.checked_sub(count).unwrap_or(end)).unwrap()
                        ..usize::try_from(end).unwrap();
                    bytes.get(range).map(hash).ok_or(io::ErrorKind::UnexpectedEof.into())
                };
                // Whatever it says of a content, comparing it is an answer or an error.
                drop(saved.check.agreement(saved.offset, &mut hash_before));
                saved.content_key(FileId::of_key("1-2").unwrap());
            }
            FileId::of_key(&String::from_utf8_lossy(value));
        });
    }
}
