//! The bytes of a file: as they stand there, or expanded when the file is an archive (gzip or zstd, by its first bytes).
//!
//! Plain bytes are read at an offset, so nothing of them is kept. Those of an archive come in order only: the first bytes of a
//! record that has not ended are kept, as many as a record may have.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use super::identity::{Agreement, Check, HEAD_BYTES_MAX, Trail, hash, hash_at};
use super::tail::{Place, Stamp};
use crate::limits::{FILE_ZSTD_WINDOW_LOG_MAX, READ_BLOCK_BYTES};

/// How a file's bytes are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Zstd,
}

impl Coding {
    const ALL: [(Self, &'static [u8]); 2] =
        [(Self::Gzip, b"\x1f\x8b\x08"), (Self::Zstd, b"\x28\xb5\x2f\xfd")];

    /// By the first bytes; `None` in it for a plain file. `None` when there are too few bytes to tell.
    fn detect(file: &File) -> io::Result<Option<Option<Self>>> {
        let mut first = [0; 4];
        let mut found = 0;
        while found < first.len() {
            match file.read_at(&mut first[found..], found as u64) {
                Ok(0) => break,
                Ok(count) => found += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let first = &first[..found];
        if let Some((coding, _)) = Self::ALL.iter().find(|(_, magic)| first.starts_with(magic)) {
            return Ok(Some(Some(*coding)));
        }
        let may_become_one = Self::ALL.iter().any(|(_, magic)| magic.starts_with(first));
        Ok((!may_become_one).then_some(None))
    }

    /// What an archive's name has more than that of its content.
    pub(super) const ENDINGS: [&'static str; 4] = [".gz", ".zst", ".gzip", ".zstd"];
}

/// Reads a file from its first byte, without its cursor.
struct FromStart {
    file: Arc<File>,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// An archive that is being expanded.
pub(super) struct Unpacking {
    decoder: Box<dyn Read + Send>,
    /// How the file was when it was begun.
    pub(super) stamp: Stamp,
    /// What follows the bytes that were searched.
    carry: Vec<u8>,
    /// The first bytes of the record that has not ended, and where it begins.
    kept: Vec<u8>,
    kept_at: u64,
    pub(super) trail: Trail,
    failed: Option<io::Error>,
}

impl std::fmt::Debug for Unpacking {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Unpacking").field("at", &self.trail.at()).finish_non_exhaustive()
    }
}

impl Unpacking {
    /// Fills the buffer, unless the content ends or fails before.
    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = self.carry.len().min(buffer.len());
        buffer[..filled].copy_from_slice(&self.carry[..filled]);
        self.carry.drain(..filled);
        while filled < buffer.len() && self.failed.is_none() {
            match self.decoder.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.failed = Some(error),
            }
        }
        match self.failed.take() {
            Some(error) if filled == 0 => Err(error),
            failed => {
                self.failed = failed;
                Ok(filled)
            }
        }
    }

    /// Goes forward to an offset. An end before it is `UnexpectedEof`, as is an archive that ends in the middle.
    fn forward(&mut self, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; READ_BLOCK_BYTES];
        while self.trail.at() < to {
            let missing = usize::try_from(to - self.trail.at()).unwrap_or(usize::MAX);
            let missing = missing.min(buffer.len());
            let count = self.fill(&mut buffer[..missing])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.trail.push(&buffer[..count]);
        }
        Ok(())
    }
}

/// An open file.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) file: Arc<File>,
    /// Set when it is an archive.
    pub(super) coding: Option<Coding>,
    /// Whether it has too few bytes to say what it is.
    pub(super) is_undecided: bool,
    /// Set while an archive is read.
    pub(super) unpacking: Option<Box<Unpacking>>,
}

impl Input {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let file = Arc::new(file);
        let mut input = Self { file, coding: None, is_undecided: true, unpacking: None };
        input.decide()?;
        Ok(input)
    }

    /// The same file, from its first byte.
    pub(super) fn again(&self) -> Self {
        let file = Arc::clone(&self.file);
        Self { file, unpacking: None, ..*self }
    }

    /// Looks whether it is an archive, if that is not known.
    pub(super) fn decide(&mut self) -> io::Result<()> {
        if self.is_undecided
            && let Some(coding) = Coding::detect(&self.file)?
        {
            (self.coding, self.is_undecided) = (coding, false);
        }
        Ok(())
    }

    /// Begins to expand an archive, from its first byte.
    pub(super) fn unpack(&mut self) -> io::Result<&mut Unpacking> {
        let stamp = Stamp::of(&self.file.metadata()?);
        let from_start = FromStart { file: Arc::clone(&self.file), at: 0 };
        let decoder: Box<dyn Read + Send> = match self.coding {
            Some(Coding::Zstd) => {
                let mut decoder = zstd::stream::read::Decoder::new(from_start)?;
                decoder.window_log_max(FILE_ZSTD_WINDOW_LOG_MAX)?;
                Box::new(decoder)
            }
            _ => {
                let buffered = io::BufReader::with_capacity(32 * 1024, from_start);
                Box::new(flate2::bufread::MultiGzDecoder::new(buffered))
            }
        };
        let unpacking = Unpacking {
            decoder,
            stamp,
            carry: Vec::new(),
            kept: Vec::new(),
            kept_at: 0,
            trail: Trail::default(),
            failed: None,
        };
        Ok(self.unpacking.insert(Box::new(unpacking)))
    }

    /// Compares its content with what was read up to `offset`. An archive then stands at `offset`, or at its end before it.
    pub(super) fn agreement(&mut self, check: &Check, offset: u64) -> io::Result<Agreement> {
        if self.coding.is_none() {
            return check.agreement(offset, &mut |end, bytes| hash_at(&self.file, end, bytes));
        }
        let unpacking = self.unpack()?;
        check.agreement(offset, &mut |end, bytes| {
            unpacking.forward(end)?;
            Ok(unpacking.trail.hash_before_or_head(end, bytes))
        })
    }

    /// Its first bytes, up to the length of a head.
    pub(super) fn head(&mut self) -> io::Result<Vec<u8>> {
        if self.coding.is_none() {
            let size = self.file.metadata()?.len();
            return Ok(Trail::load(&self.file, size.min(HEAD_BYTES_MAX))?.head().to_vec());
        }
        let unpacking = self.unpack()?;
        match unpacking.forward(HEAD_BYTES_MAX) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(unpacking.trail.head().to_vec()),
        }
    }

    /// What stands in front of an offset, up to which it was compared.
    pub(super) fn trail(&self, at: u64) -> io::Result<Trail> {
        match &self.unpacking {
            Some(unpacking) => Ok(unpacking.trail.clone()),
            None => Trail::load(&self.file, at),
        }
    }

    /// Reads what follows the bytes that were searched.
    pub(super) fn read(&mut self, block: &mut [u8], searched: u64) -> io::Result<usize> {
        match &mut self.unpacking {
            Some(unpacking) => unpacking.fill(block),
            None => self.file.read_at(block, searched),
        }
    }

    /// Takes note of a block: so much of it was searched, and the record that begins at `record` has not ended.
    pub(super) fn searched(&mut self, place: &Place<'_>, searched: usize, record: u64, max: usize) {
        let Some(unpacking) = &mut self.unpacking else { return };
        let block = place.block;
        unpacking.carry.splice(..0, block[searched..].iter().copied());
        if unpacking.kept_at != record {
            unpacking.kept.clear();
            unpacking.kept.shrink_to(READ_BLOCK_BYTES);
            unpacking.kept_at = record;
        }
        let from = place.before(record).len().min(searched);
        let missing = max.saturating_sub(unpacking.kept.len()).min(searched - from);
        unpacking.kept.extend_from_slice(&block[from..from + missing]);
    }

    /// The first bytes of a record that began before the block.
    pub(super) fn read_head(
        &self,
        head: &mut [u8],
        record: u64,
        place: &Place<'_>,
    ) -> io::Result<()> {
        let Some(unpacking) = &self.unpacking else {
            return self.file.read_exact_at(head, record);
        };
        let before = usize::try_from(place.base - record).unwrap_or(usize::MAX);
        let of_kept = head.len().min(before).min(unpacking.kept.len());
        head[..of_kept].copy_from_slice(&unpacking.kept[..of_kept]);
        let rest = head.len() - of_kept;
        head[of_kept..].copy_from_slice(&place.block[..rest]);
        Ok(())
    }
}

impl Trail {
    /// The hash of so many bytes before where it is; of the first ones, when that is asked for.
    fn hash_before_or_head(&self, end: u64, bytes: u64) -> String {
        if end == bytes {
            let whole = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.head().len());
            return hash(&self.head()[..whole]);
        }
        self.hash_before(bytes)
    }
}
