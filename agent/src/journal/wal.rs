//! Reads the checksum chain of a WAL before SQLite does, and extends the file in advance.
//!
//! SQLite stops at the first frame whose checksum is wrong and forgets everything behind it without a word. After a crash
//! that is right for a torn tail, at most one commit that nobody was told about; anything more is damage in front of
//! acknowledged commits, and must be noticed while the evidence exists. Format: <https://www.sqlite.org/fileformat2.html#walformat>.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;

/// What the chain of a WAL says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalCheck {
    /// There is no WAL, or none that holds a frame.
    Empty,
    /// Every commit is whole; at most one unfinished one stands behind them.
    Good { frames: u64 },
    /// `frame` (from 1) is broken and this many commits stand behind it.
    Damaged { frame: u64, commits_behind: u64 },
}

/// Reads the whole file. A WAL that is not there is empty.
pub(super) fn check(path: &Path) -> io::Result<WalCheck> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(WalCheck::Empty),
        Err(error) => return Err(error),
    };
    let mut file = BufReader::with_capacity(256 * 1024, file);
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut file, &mut header)? {
        return Ok(WalCheck::Empty);
    }
    let big = match be32(&header, 0) {
        MAGIC_BIG => true,
        MAGIC_LITTLE => false,
        // An extended file whose first frame was never written.
        0 if header == [0; HEADER_BYTES] => return Ok(WalCheck::Empty),
        _ => return behind_a_broken_header(file),
    };
    let mut sum = Sum::default();
    sum.add(&header[..24], big);
    let page = usize::try_from(be32(&header, 8)).unwrap_or(0);
    if !sum.is(be32(&header, 24), be32(&header, 28)) || !(512..=65536).contains(&page) {
        return behind_a_broken_header(file);
    }
    let salts: [u8; 8] = header[16..24].try_into().unwrap_or_default();
    chain(&mut file, sum, big, page, salts)
}

fn chain(
    file: &mut impl Read,
    mut sum: Sum,
    big: bool,
    page: usize,
    salts: [u8; 8],
) -> io::Result<WalCheck> {
    let mut frame = vec![0; FRAME_HEADER_BYTES + page];
    let mut good = 0;
    let mut broken = None;
    let mut commits_behind = 0;
    while fill(file, &mut frame)? {
        let ours = frame[8..16] == salts;
        if broken.is_none() && ours {
            sum.add(&frame[..8], big);
            sum.add(&frame[FRAME_HEADER_BYTES..], big);
            if sum.is(be32(&frame, 16), be32(&frame, 20)) {
                good += 1;
                continue;
            }
        }
        broken.get_or_insert(good + 1);
        // A frame of this generation with a database size ends a commit. Older generations have other salts.
        if ours && be32(&frame, 4) != 0 {
            commits_behind += 1;
        }
    }
    match broken {
        Some(frame) if commits_behind >= 2 => Ok(WalCheck::Damaged { frame, commits_behind }),
        _ if good == 0 => Ok(WalCheck::Empty),
        _ => Ok(WalCheck::Good { frames: good }),
    }
}

/// The header is written and synced before any commit, so that a broken one in front of content is damage.
fn behind_a_broken_header(mut file: impl Read) -> io::Result<WalCheck> {
    let mut commits_behind = 0;
    // The page size stands in the header; ours is always this.
    let mut frame = vec![0; FRAME_HEADER_BYTES + super::open::PAGE_BYTES];
    while fill(&mut file, &mut frame)? {
        commits_behind += u64::from(be32(&frame, 4) != 0 && be32(&frame, 0) != 0);
    }
    if commits_behind == 0 {
        Ok(WalCheck::Empty)
    } else {
        Ok(WalCheck::Damaged { frame: 0, commits_behind })
    }
}

/// Takes what a failed or torn transaction left behind the first `frames` frames out of the chain, durably. Its frames have
/// the salts of the log, so that they would look like lost commits as soon as newer frames stood in front of them. They are
/// one transaction's at most, because each opening and each failure cuts: cut off in the middle, this leaves no damage.
pub(super) fn cut(path: &Path, frames: u64) -> io::Result<()> {
    let file = match File::options().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::with_capacity(256 * 1024, &file);
    let mut header = [0; HEADER_BYTES];
    if !fill(&mut reader, &mut header)? || !matches!(be32(&header, 0), MAGIC_BIG | MAGIC_LITTLE) {
        return Ok(());
    }
    let mut frame = vec![0; FRAME_HEADER_BYTES + super::open::PAGE_BYTES];
    let mut offset = HEADER_BYTES as u64 + frames * frame.len() as u64;
    reader.seek(SeekFrom::Start(offset))?;
    let mut is_changed = false;
    while fill(&mut reader, &mut frame)? {
        if frame[8..16] == header[16..24] {
            write(&file, path, offset, &[0; FRAME_HEADER_BYTES])?;
            is_changed = true;
        }
        offset += frame.len() as u64;
    }
    if is_changed { sync(&file, path) } else { Ok(()) }
}

/// Makes a WAL one without frames, durably: a single sector changes. Right only when the database holds all of them.
pub(super) fn empty(path: &Path) -> io::Result<()> {
    let file = match File::options().write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() < HEADER_BYTES as u64 {
        return Ok(());
    }
    write(&file, path, 0, &[0; HEADER_BYTES])?;
    sync(&file, path)
}

/// Where a page stands in a WAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FramePlace {
    pub(super) page: u32,
    /// Where its content begins in the file.
    pub(super) offset: u64,
    /// The frame that ends its commit, as an index into the same list.
    pub(super) commit_end: usize,
}

/// All frames of a WAL whatever their checksums say, oldest first: those of earlier generations, which stand behind the
/// newest one in the file, then that one. For whoever believes only content that proves itself.
pub(super) fn frames(file: &File) -> io::Result<Vec<FramePlace>> {
    let mut header = [0; HEADER_BYTES];
    if file.read_at(&mut header, 0)? < HEADER_BYTES {
        return Ok(Vec::new());
    }
    let step = FRAME_HEADER_BYTES + super::open::PAGE_BYTES;
    let count = file.metadata()?.len().saturating_sub(HEADER_BYTES as u64) / step as u64;
    let (mut current, mut earlier) = (Vec::new(), Vec::new());
    for number in 0..count {
        let at = HEADER_BYTES as u64 + number * step as u64;
        let mut frame = [0; FRAME_HEADER_BYTES];
        // A place that the disk cannot read is no frame.
        if file.read_exact_at(&mut frame, at).is_err() || be32(&frame, 0) == 0 {
            continue;
        }
        let generation = if frame[8..16] == header[16..24] { &mut current } else { &mut earlier };
        let offset = at + FRAME_HEADER_BYTES as u64;
        generation.push((be32(&frame, 0), offset, be32(&frame, 4) != 0));
    }
    earlier.append(&mut current);
    let mut end = earlier.len().saturating_sub(1);
    let mut places = Vec::with_capacity(earlier.len());
    for (index, (page, offset, ends_commit)) in earlier.into_iter().enumerate().rev() {
        if ends_commit {
            end = index;
        }
        places.push(FramePlace { page, offset, commit_end: end });
    }
    places.reverse();
    Ok(places)
}

/// Makes the WAL at least `bytes` long, with zeros, so that a commit writes into blocks that exist and its sync has no
/// metadata to write. SQLite takes zeros for the end of the log: their salts are wrong.
pub(super) fn extend(path: &Path, bytes: u64) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let mut length = file.metadata()?.len();
    let zeros = vec![0; 64 * 1024];
    while length < bytes {
        let step = zeros.len().min(usize::try_from(bytes - length).unwrap_or(usize::MAX));
        write(&file, path, length, &zeros[..step])?;
        length += step as u64;
    }
    sync(&file, path)
}

/// The writes beside SQLite's; tests record them and let them fail.
fn write(file: &File, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
    #[cfg(test)]
    super::tests::vfs::outside_write(path, offset, bytes)?;
    #[cfg(not(test))]
    let _ = path;
    file.write_all_at(bytes, offset)
}

fn sync(file: &File, path: &Path) -> io::Result<()> {
    #[cfg(test)]
    super::tests::vfs::outside_sync(path)?;
    #[cfg(not(test))]
    let _ = path;
    file.sync_all()
}

/// SQLite's checksum: two sums over pairs of 32-bit words.
#[derive(Debug, Clone, Copy, Default)]
struct Sum(u32, u32);

impl Sum {
    fn add(&mut self, bytes: &[u8], big: bool) {
        let (pairs, _) = bytes.as_chunks::<8>();
        for [a, b, c, d, e, f, g, h] in pairs {
            let (first, second) = if big {
                (u32::from_be_bytes([*a, *b, *c, *d]), u32::from_be_bytes([*e, *f, *g, *h]))
            } else {
                (u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h]))
            };
            self.0 = self.0.wrapping_add(first).wrapping_add(self.1);
            self.1 = self.1.wrapping_add(second).wrapping_add(self.0);
        }
    }

    fn is(self, first: u32, second: u32) -> bool {
        self.0 == first && self.1 == second
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes of a fixed header"))
}

/// Fills the buffer; false when the file ends before that.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A WAL of five commits, copied while its connection is open.
    fn wal() -> (tempfile::TempDir, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.db");
        #[expect(clippy::disallowed_methods, reason = "a database of the test's own")]
        let db = rusqlite::Connection::open(&path).unwrap();
        db.pragma_update(None, "page_size", 4096).unwrap();
        db.pragma_update(None, "journal_mode", "WAL").unwrap();
        db.execute_batch("CREATE TABLE t (x)").unwrap();
        for number in 0..4 {
            db.execute("INSERT INTO t VALUES (?1)", [number]).unwrap();
        }
        let bytes = std::fs::read(dir.path().join("x.db-wal")).unwrap();
        (dir, bytes)
    }

    fn check_bytes(dir: &tempfile::TempDir, bytes: &[u8]) -> WalCheck {
        let path = dir.path().join("copy-wal");
        std::fs::write(&path, bytes).unwrap();
        check(&path).unwrap()
    }

    #[test]
    fn a_torn_tail_is_normal_and_a_broken_middle_is_damage() {
        let (dir, bytes) = wal();
        let frames = (bytes.len() - HEADER_BYTES) / (FRAME_HEADER_BYTES + 4096);
        let WalCheck::Good { frames: good } = check_bytes(&dir, &bytes) else {
            panic!("a whole WAL is good");
        };
        assert_eq!(good, frames as u64);
        // Torn anywhere in the last commit.
        assert_eq!(
            check_bytes(&dir, &bytes[..bytes.len() - 100]),
            WalCheck::Good { frames: good - 1 }
        );
        let mut torn = bytes.clone();
        let last = torn.len() - 5;
        torn[last] ^= 1;
        assert_eq!(check_bytes(&dir, &torn), WalCheck::Good { frames: good - 1 });
        // One flipped bit in any frame with two commits behind it.
        for frame in 1..=frames - 3 {
            let mut damaged = bytes.clone();
            damaged[HEADER_BYTES + (frame - 1) * (FRAME_HEADER_BYTES + 4096) + 1000] ^= 4;
            let found = check_bytes(&dir, &damaged);
            assert!(
                matches!(found, WalCheck::Damaged { frame: f, .. } if f == frame as u64),
                "frame {frame}: {found:?}"
            );
        }
        let mut header = bytes;
        header[17] ^= 1;
        assert!(matches!(check_bytes(&dir, &header), WalCheck::Damaged { frame: 0, .. }));
    }

    #[test]
    fn zeros_behind_the_frames_change_nothing() {
        let (dir, mut bytes) = wal();
        let before = check_bytes(&dir, &bytes);
        bytes.resize(bytes.len() + 100_000, 0);
        assert_eq!(check_bytes(&dir, &bytes), before);
        assert_eq!(check_bytes(&dir, &[0; 70_000]), WalCheck::Empty);
        assert_eq!(check(&dir.path().join("none")).unwrap(), WalCheck::Empty);
    }
}
