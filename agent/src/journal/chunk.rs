//! Chunks and batch parts as bytes: header, frames, positions. Knows no SQL.
//!
//! Both have the same form, so that either, found anywhere in a damaged file, can be accepted or refused by itself. Little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic `WAYS` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind: 1 chunk, 2 batch part |
//! | 6 | 1 | codec of the frames: 0 stored, 1 zstd |
//! | 7 | 1 | clock quality: 0 unknown, 1 synced, 2 unsynced |
//! | 8 | 5 | epoch, big-endian |
//! | 13 | 3 | zero |
//! | 16 | 4 | stream number of a chunk, lane number of a part |
//! | 20 | 4 | number of the part in its batch; 0 in a chunk |
//! | 24 | 8 | batch number; 0 in a chunk |
//! | 32 | 8 | first seq |
//! | 40 | 4 | number of frames |
//! | 44 | 4 | bytes of the frames |
//! | 48 | 4 | bytes of the frames as stored |
//! | 52 | 4 | bytes of the positions |
//! | 56 | 8 | accepted (sealed), nanoseconds since 1970 |
//! | 64 | 16 | boot id of the host |
//! | 80 | 8 | nanoseconds since that boot |
//! | 88 | 4 | zero |
//! | 92 | 4 | CRC-32C over all bytes before it and all behind it |
//! | 96 | | frames as stored, then positions |
//!
//! Positions: for each, LEB128 length and bytes of the key, one byte 1 and LEB128 length and bytes of the value, or one byte 0
//! where the position was removed. Frames are described in [`crate::record::codec`].

use bytes::Bytes;

use super::error::ChunkError;
use crate::clock::{ClockQuality, Monotonic, Timestamp};
use crate::limits::{
    CHUNK_BYTES_MAX, HEADERS_BYTES_MAX, POSITIONS_BYTES_MAX, RECORD_BYTES_MAX, SUBJECT_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
};
use crate::record::batch::FrameBlock;
use crate::record::id::{Epoch, Seq};

pub(super) const HEADER_BYTES: usize = 96;
pub(super) const MAGIC: [u8; 4] = *b"WAYS";
const VERSION: u8 = 1;
const CRC_AT: usize = 92;
const CODEC_STORED: u8 = 0;
const CODEC_ZSTD: u8 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Frames shorter than this are stored as they are: there is nothing to save.
const COMPRESSED_BYTES_MIN: usize = 256;
/// More than one record of the largest size needs; a length above it is no length of ours.
const FRAMES_BYTES_MAX: usize =
    RECORD_BYTES_MAX + SUBJECT_BYTES_MAX + HEADERS_BYTES_MAX + CHUNK_BYTES_MAX;

/// More than the appends of one transaction can bring.
const POSITIONS_ROW_BYTES_MAX: usize = POSITIONS_BYTES_MAX * TRANSACTION_OPERATIONS_MAX;

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Chunk { stream: u16 },
    Part { lane: u16, batch: u64, part: u32 },
}

/// When a row was made, as well as the host knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) wall: Timestamp,
    pub(super) boot: [u8; 16],
    pub(super) monotonic: Monotonic,
    /// How far `wall` was to be trusted.
    pub(super) quality: ClockQuality,
}

/// What a row's header says of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    pub(super) epoch: Epoch,
    pub(super) first_seq: Seq,
    pub(super) count: u32,
    pub(super) stamp: Stamp,
}

/// A position of a source: its key, and the value or its removal.
pub(super) type RowPosition = (String, Option<Vec<u8>>);

/// A header and where the rest stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) label: Label,
    codec: u8,
    frames_bytes: usize,
    stored_bytes: usize,
    positions_bytes: usize,
}

impl Header {
    /// Bytes of the whole row.
    pub(super) fn row_bytes(&self) -> usize {
        HEADER_BYTES + self.stored_bytes + self.positions_bytes
    }
}

/// Makes rows. Keeps its compressor and buffers, so one belongs to each thread that makes many.
pub(super) struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    compressed: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        let zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("level 1 exists in every zstd");
        Self { zstd, compressed: Vec::new() }
    }

    /// One row of these frames and positions.
    pub(super) fn encode(&mut self, label: Label, frames: &[u8], positions: &[u8]) -> Vec<u8> {
        let Label { kind, epoch, first_seq, count, stamp } = label;
        let saved = self.compress(frames);
        let (codec, stored) =
            if saved { (CODEC_ZSTD, self.compressed.as_slice()) } else { (CODEC_STORED, frames) };
        let (kind_byte, owner, part, batch) = match kind {
            Kind::Chunk { stream } => (1, u32::from(stream), 0, 0),
            Kind::Part { lane, batch, part } => (2, u32::from(lane), part, batch),
        };
        let length = |bytes: &[u8]| {
            u32::try_from(bytes.len())
                .expect("a chunk is bounded by its largest record")
                .to_le_bytes()
        };
        let mut row = Vec::with_capacity(HEADER_BYTES + stored.len() + positions.len());
        row.extend_from_slice(&MAGIC);
        let quality = match stamp.quality {
            ClockQuality::Unknown => 0,
            ClockQuality::Synced => 1,
            ClockQuality::Unsynced => 2,
        };
        row.extend_from_slice(&[VERSION, kind_byte, codec, quality]);
        row.extend_from_slice(&epoch.to_bytes());
        row.extend_from_slice(&[0; 3]);
        row.extend_from_slice(&owner.to_le_bytes());
        row.extend_from_slice(&part.to_le_bytes());
        row.extend_from_slice(&batch.to_le_bytes());
        row.extend_from_slice(&first_seq.0.to_le_bytes());
        row.extend_from_slice(&count.to_le_bytes());
        row.extend_from_slice(&length(frames));
        row.extend_from_slice(&length(stored));
        row.extend_from_slice(&length(positions));
        row.extend_from_slice(&stamp.wall.0.to_le_bytes());
        row.extend_from_slice(&stamp.boot);
        row.extend_from_slice(&stamp.monotonic.0.to_le_bytes());
        row.extend_from_slice(&[0; 8]);
        assert_eq!(row.len(), HEADER_BYTES);
        row.extend_from_slice(stored);
        row.extend_from_slice(positions);
        let crc = checksum(&row);
        row[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        row
    }

    /// Compresses into the buffer; says whether that saves at least a tenth.
    fn compress(&mut self, frames: &[u8]) -> bool {
        if frames.len() < COMPRESSED_BYTES_MIN {
            return false;
        }
        let worth = frames.len() - frames.len() / 10;
        self.compressed.clear();
        self.compressed.reserve(zstd::zstd_safe::compress_bound(frames.len()));
        // A failure here is no loss: the frames are stored as they are.
        self.zstd
            .compress_to_buffer(frames, &mut self.compressed)
            .is_ok_and(|compressed| compressed <= worth)
    }
}

/// Reads and checks the header and the checksum of a row.
pub(super) fn check(row: &[u8]) -> Result<Header, ChunkError> {
    let header = header(row)?;
    let expected = header.row_bytes();
    if row.len() != expected {
        return Err(ChunkError::Length { expected, found: row.len() });
    }
    let crc = u32_at(row, CRC_AT);
    if checksum(row) != crc {
        return Err(ChunkError::Checksum);
    }
    Ok(header)
}

/// Reads the header alone, without the checksum.
pub(super) fn header(row: &[u8]) -> Result<Header, ChunkError> {
    if row.len() < HEADER_BYTES {
        return Err(ChunkError::Length { expected: HEADER_BYTES, found: row.len() });
    }
    if row[..4] != MAGIC {
        return Err(ChunkError::Magic);
    }
    if row[4] != VERSION {
        return Err(ChunkError::Version(row[4]));
    }
    let owner = u16::try_from(u32_at(row, 16)).map_err(|_| ChunkError::Field("owner"))?;
    let kind = match row[5] {
        1 => Kind::Chunk { stream: owner },
        2 => Kind::Part { lane: owner, batch: u64_at(row, 24), part: u32_at(row, 20) },
        _ => return Err(ChunkError::Field("kind")),
    };
    let size = |at| usize::try_from(u32_at(row, at)).unwrap_or(usize::MAX);
    let label = Label {
        kind,
        epoch: Epoch::from_bytes([row[8], row[9], row[10], row[11], row[12]]),
        first_seq: Seq(u64_at(row, 32)),
        count: u32_at(row, 40),
        stamp: Stamp {
            wall: Timestamp(u64_at(row, 56).cast_signed()),
            boot: row[64..80].try_into().unwrap_or_default(),
            monotonic: Monotonic(u64_at(row, 80)),
            quality: match row[7] {
                1 => ClockQuality::Synced,
                2 => ClockQuality::Unsynced,
                _ => ClockQuality::Unknown,
            },
        },
    };
    let header = Header {
        label,
        codec: row[6],
        frames_bytes: size(44),
        stored_bytes: size(48),
        positions_bytes: size(52),
    };
    if header.frames_bytes > FRAMES_BYTES_MAX
        || header.stored_bytes > header.frames_bytes
        || header.codec > CODEC_ZSTD
    {
        return Err(ChunkError::Field("frames"));
    }
    if header.positions_bytes > POSITIONS_ROW_BYTES_MAX {
        return Err(ChunkError::Field("positions"));
    }
    Ok(header)
}

/// Decodes rows. Keeps its decompressor.
pub(super) struct Decoder {
    zstd: zstd::bulk::Decompressor<'static>,
}

impl Decoder {
    pub(super) fn new() -> Self {
        let zstd = zstd::bulk::Decompressor::new().expect("memory for one zstd context");
        Self { zstd }
    }

    /// Checks a row and gives its frames.
    pub(super) fn frames(&mut self, row: &[u8]) -> Result<(Header, FrameBlock), ChunkError> {
        let header = check(row)?;
        let stored = &row[HEADER_BYTES..HEADER_BYTES + header.stored_bytes];
        let bytes = if header.codec == CODEC_ZSTD {
            let frames = self.zstd.decompress(stored, header.frames_bytes);
            frames.map_err(|_| ChunkError::Field("frames"))?
        } else {
            stored.to_vec()
        };
        if bytes.len() != header.frames_bytes {
            return Err(ChunkError::Length { expected: header.frames_bytes, found: bytes.len() });
        }
        let block = FrameBlock {
            epoch: header.label.epoch,
            first_seq: header.label.first_seq,
            count: header.label.count,
            skip: 0,
            take: header.label.count,
            bytes: Bytes::from(bytes),
        };
        Ok((header, block))
    }
}

/// The positions of a checked row: key, and value or removal.
pub(super) fn positions(row: &[u8], header: &Header) -> Result<Vec<RowPosition>, ChunkError> {
    let mut rest = &row[HEADER_BYTES + header.stored_bytes..];
    let mut positions = Vec::new();
    while !rest.is_empty() {
        positions.push(read_position(&mut rest).ok_or(ChunkError::Field("positions"))?);
    }
    Ok(positions)
}

fn read_position(rest: &mut &[u8]) -> Option<RowPosition> {
    let key = read_bytes(rest)?;
    let key = String::from_utf8(key.to_vec()).ok()?;
    let (present, tail) = rest.split_first()?;
    *rest = tail;
    match present {
        0 => Some((key, None)),
        1 => Some((key, Some(read_bytes(rest)?.to_vec()))),
        _ => None,
    }
}

/// Adds one position to those of a row.
pub(super) fn write_position(out: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    write_bytes(out, key.as_bytes());
    match value {
        None => out.push(0),
        Some(value) => {
            out.push(1);
            write_bytes(out, value);
        }
    }
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    crate::record::codec::write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn read_bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(crate::record::codec::read_varint(rest)?).ok()?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

fn checksum(row: &[u8]) -> u32 {
    let head = crc32c::crc32c(&row[..CRC_AT]);
    crc32c::crc32c_append(head, &row[HEADER_BYTES..])
}

fn u32_at(row: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes of a checked length"))
}

fn u64_at(row: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes of a checked length"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Headers;
    use crate::record::codec::FrameBuffer;

    const STAMP: Stamp = Stamp {
        wall: Timestamp(1_700_000_000_000_000_000),
        boot: [7; 16],
        monotonic: Monotonic(5),
        quality: ClockQuality::Synced,
    };

    fn row(payload: &[u8], copies: usize) -> Vec<u8> {
        let mut frames = FrameBuffer::default();
        for _ in 0..copies {
            frames.push_new(Timestamp(1), "s", Headers::default(), payload);
        }
        let mut positions = Vec::new();
        write_position(&mut positions, "file", Some(b"123"));
        write_position(&mut positions, "gone", None);
        let kind = Kind::Chunk { stream: 3 };
        let (epoch, first_seq, count) = (Epoch::new(1, 2), Seq(10), frames.count());
        let label = Label { kind, epoch, first_seq, count, stamp: STAMP };
        Encoder::new().encode(label, frames.bytes(), &positions)
    }

    #[test]
    fn a_row_gives_back_records_and_positions_and_is_smaller_when_that_pays() {
        let row = row(&[b'x'; 300], 100);
        assert!(row.len() < 3000, "{}", row.len());
        let (header, block) = Decoder::new().frames(&row).unwrap();
        assert_eq!(header.label.kind, Kind::Chunk { stream: 3 });
        assert_eq!(header.label.stamp, STAMP);
        let seqs: Vec<_> = block.records().map(|record| record.unwrap().seq.0).collect();
        assert_eq!(seqs, (10..110).collect::<Vec<_>>());
        let expected = [("file".to_owned(), Some(b"123".to_vec())), ("gone".to_owned(), None)];
        assert_eq!(positions(&row, &header).unwrap(), expected);
    }

    #[test]
    fn every_flipped_bit_of_a_row_is_noticed() {
        let row = row(b"payload", 3);
        for bit in 0..row.len() * 8 {
            let mut damaged = row.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(check(&damaged).is_err(), "bit {bit}");
        }
        for length in 0..row.len() {
            assert!(check(&row[..length]).is_err(), "length {length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_calmly(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            like_ours in any::<bool>(),
        ) {
            if like_ours && bytes.len() > 8 {
                bytes[..7].copy_from_slice(b"WAYS\x01\x01\x01");
            }
            prop_assert!(Decoder::new().frames(&bytes).is_err());
        }
    }
}
