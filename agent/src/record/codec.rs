//! Frames: the one encoding of records, in chunks, in batch parts and in memory.
//!
//! A block of frames is read from its front; each frame says only what differs from the one before it:
//!
//! 1. flags, one byte; if `MORE`, a second one;
//! 2. if `EPOCH`: five bytes, big-endian; otherwise the epoch of the frame before (of the block, for the first);
//! 3. if `SEQ`: zigzag LEB128, the difference to the seq of the frame before; otherwise that seq plus one;
//! 4. if `TICK`: LEB128, the batch whose tick made the record;
//! 5. if `PATH`: LEB128 length and bytes of the split numbers, each LEB128; if `REPAIR`: LEB128, how often its payload was
//!    replaced;
//! 6. time: eight bytes, little-endian, if `TIME`; otherwise zigzag LEB128, the difference to the frame before;
//! 7. if `SUBJECT`: LEB128 length and bytes, UTF-8; otherwise the subject of the frame before;
//! 8. if `HEADERS`: LEB128 length and bytes of all headers, each LEB128 length and bytes, UTF-8, of name and value; otherwise
//!    the headers of the frame before;
//! 9. payload: LEB128 length and bytes.
//!
//! The first frame that a [`FrameBuffer`] makes carries `TIME`, `SUBJECT` and `HEADERS`, so the frames of several buffers may
//! stand one behind the other in one block. Nothing here is trusted: a decoder answers any bytes with records or an error.

use super::id::{Epoch, Seq};
use super::{Headers, Origin, Path, RecordView};
use crate::clock::Timestamp;

const EPOCH: u8 = 1;
const SEQ: u8 = 1 << 1;
const TICK: u8 = 1 << 2;
const PATH: u8 = 1 << 3;
const TIME: u8 = 1 << 4;
const SUBJECT: u8 = 1 << 5;
const HEADERS: u8 = 1 << 6;
const MORE: u8 = 1 << 7;
// In the second byte of flags.
const REPAIR: u8 = 1;

/// Why a block of frames cannot be decoded. The frames before are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The block ends inside a frame, or a length points behind it.
    #[error("frame {index} is cut short")]
    Short {
        /// Which frame, from 0.
        index: u32,
    },
    /// A flag that this version does not know.
    #[error("frame {index} has unknown flags {flags:#04x}")]
    Flags {
        /// Which frame, from 0.
        index: u32,
        /// Its second byte.
        flags: u8,
    },
    /// A subject or header that is not UTF-8.
    #[error("frame {index} has a subject or header that is not UTF-8")]
    Text {
        /// Which frame, from 0.
        index: u32,
    },
    /// There are bytes behind the last frame.
    #[error("there are {0} bytes behind the last frame")]
    Behind(usize),
}

/// What frames of a block are read against, and what the next one is written against.
#[derive(Debug, Clone, Copy)]
struct Before<'a> {
    epoch: Epoch,
    seq: Seq,
    time: Timestamp,
    subject: &'a str,
    headers: Headers<'a>,
}

/// Frames being put together.
#[derive(Debug, Clone, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    count: u32,
    // The frame before: where its subject and headers stand in `bytes`, so that repeats cost nothing.
    subject: (usize, usize),
    headers: (usize, usize),
    time: Timestamp,
    seq: Seq,
    epoch: Option<Epoch>,
}

impl FrameBuffer {
    /// An empty buffer with room for `bytes`.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a new record, whose seq and epoch come from where it will stand.
    pub fn push_new(
        &mut self,
        time: Timestamp,
        subject: &str,
        headers: Headers<'_>,
        payload: &[u8],
    ) {
        let flags_at = self.begin();
        let flags = self.push_content(time, subject, headers, payload);
        self.bytes[flags_at] = flags;
        self.count += 1;
    }

    /// Adds a record with its own epoch, seq and origin.
    pub fn push(&mut self, record: &RecordView<'_>) {
        let flags_at = self.begin();
        let mut flags = 0;
        if record.origin.repair > 0 {
            flags |= MORE;
            self.bytes.push(REPAIR);
        }
        if self.epoch != Some(record.epoch) {
            flags |= EPOCH;
            self.bytes.extend_from_slice(&record.epoch.to_bytes());
            self.epoch = Some(record.epoch);
        }
        if self.count == 0 || record.seq != self.seq.next() {
            flags |= SEQ;
            write_varint(
                &mut self.bytes,
                zigzag(record.seq.0.wrapping_sub(self.seq.0).cast_signed()),
            );
        }
        self.seq = record.seq;
        if let Some(batch) = record.origin.tick {
            flags |= TICK;
            write_varint(&mut self.bytes, batch);
        }
        if !record.origin.path.0.is_empty() {
            flags |= PATH;
            write_slice(&mut self.bytes, record.origin.path.0);
        }
        if record.origin.repair > 0 {
            write_varint(&mut self.bytes, record.origin.repair);
        }
        flags |= self.push_content(record.time, record.subject, record.headers, record.payload);
        self.bytes[flags_at] = flags;
        self.count += 1;
    }

    /// Number of frames.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of all frames.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The frames.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frames, leaving the buffer empty with new memory of the same size.
    #[must_use]
    pub fn take(&mut self) -> Vec<u8> {
        let capacity = self.bytes.capacity();
        std::mem::replace(self, Self::with_capacity(capacity)).bytes
    }

    /// Forgets all frames, keeping the memory.
    pub fn clear(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        *self = Self { bytes, ..Self::default() };
    }

    fn begin(&mut self) -> usize {
        self.bytes.push(0);
        self.bytes.len() - 1
    }

    fn push_content(
        &mut self,
        time: Timestamp,
        subject: &str,
        headers: Headers<'_>,
        payload: &[u8],
    ) -> u8 {
        let first = self.count == 0;
        let mut flags = 0;
        if first {
            flags |= TIME;
            self.bytes.extend_from_slice(&time.0.to_le_bytes());
        } else {
            write_varint(&mut self.bytes, zigzag(time.0.wrapping_sub(self.time.0)));
        }
        self.time = time;
        if first || &self.bytes[self.subject.0..self.subject.1] != subject.as_bytes() {
            flags |= SUBJECT;
            self.subject = write_slice(&mut self.bytes, subject.as_bytes());
        }
        if first || &self.bytes[self.headers.0..self.headers.1] != headers.0 {
            flags |= HEADERS;
            self.headers = write_slice(&mut self.bytes, headers.0);
        }
        write_slice(&mut self.bytes, payload);
        flags
    }
}

/// Reads a block of frames. Ends after the first error.
#[derive(Debug, Clone)]
pub struct FrameReader<'a> {
    rest: &'a [u8],
    before: Before<'a>,
    index: u32,
    count: u32,
}

impl<'a> FrameReader<'a> {
    /// Reads `count` frames of a block whose first record has this epoch and seq, unless its frame says otherwise.
    #[must_use]
    pub fn new(bytes: &'a [u8], count: u32, epoch: Epoch, first_seq: Seq) -> Self {
        let before = Before {
            epoch,
            seq: Seq(first_seq.0.wrapping_sub(1)),
            time: Timestamp(0),
            subject: "",
            headers: Headers(&[]),
        };
        Self { rest: bytes, before, index: 0, count }
    }

    fn frame(&mut self) -> Result<RecordView<'a>, CodecError> {
        let index = self.index;
        let short = CodecError::Short { index };
        let text = CodecError::Text { index };
        let rest = &mut self.rest;
        let [flags] = *take::<1>(rest).ok_or(short)?;
        let [more] = if flags & MORE != 0 { *take::<1>(rest).ok_or(short)? } else { [0] };
        if more & !REPAIR != 0 {
            return Err(CodecError::Flags { index, flags: more });
        }
        let before = &mut self.before;
        if flags & EPOCH != 0 {
            before.epoch = Epoch::from_bytes(*take::<{ Epoch::BYTES }>(rest).ok_or(short)?);
        }
        before.seq = if flags & SEQ != 0 {
            let difference = unzigzag(read_varint(rest).ok_or(short)?);
            // The writer counts from zero at the start of a block; the reader stands one before the block's first seq.
            let base = if index == 0 { 0 } else { before.seq.0 };
            Seq(base.wrapping_add_signed(difference))
        } else {
            Seq(before.seq.0.wrapping_add(1))
        };
        let tick = if flags & TICK != 0 { Some(read_varint(rest).ok_or(short)?) } else { None };
        let path = if flags & PATH != 0 { read_slice(rest).ok_or(short)? } else { &[] };
        let repair = if more & REPAIR != 0 { read_varint(rest).ok_or(short)? } else { 0 };
        before.time = if flags & TIME != 0 {
            Timestamp(i64::from_le_bytes(*take::<8>(rest).ok_or(short)?))
        } else {
            let difference = unzigzag(read_varint(rest).ok_or(short)?);
            Timestamp(before.time.0.wrapping_add(difference))
        };
        if flags & SUBJECT != 0 {
            let bytes = read_slice(rest).ok_or(short)?;
            before.subject = std::str::from_utf8(bytes).map_err(|_| text)?;
        }
        if flags & HEADERS != 0 {
            let bytes = read_slice(rest).ok_or(short)?;
            before.headers = checked_headers(bytes).ok_or(text)?;
        }
        let payload = read_slice(rest).ok_or(short)?;
        Ok(RecordView {
            epoch: before.epoch,
            seq: before.seq,
            origin: Origin { tick, path: Path(path), repair },
            time: before.time,
            subject: before.subject,
            headers: before.headers,
            payload,
        })
    }
}

impl<'a> Iterator for FrameReader<'a> {
    type Item = Result<RecordView<'a>, CodecError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index == self.count {
            let behind = std::mem::take(&mut self.rest).len();
            return (behind > 0).then_some(Err(CodecError::Behind(behind)));
        }
        let frame = self.frame();
        if frame.is_ok() {
            self.index += 1;
        } else {
            self.rest = &[];
            self.count = self.index;
        }
        Some(frame)
    }
}

pub(super) fn checked_headers(bytes: &[u8]) -> Option<Headers<'_>> {
    let mut rest = bytes;
    while !rest.is_empty() {
        read_text(&mut rest)?;
        read_text(&mut rest)?;
    }
    Some(Headers(bytes))
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

fn read_slice<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(read_varint(rest)?).ok()?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

pub(super) fn read_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(read_slice(rest)?).ok()
}

pub(crate) fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[expect(clippy::cast_possible_truncation, reason = "the low seven bits are meant")]
pub(crate) fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Returns where the bytes stand in `out`.
fn write_slice(out: &mut Vec<u8>, bytes: &[u8]) -> (usize, usize) {
    write_varint(out, bytes.len() as u64);
    let start = out.len();
    out.extend_from_slice(bytes);
    (start, out.len())
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -((value & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{HeadersBuffer, PathBuffer};

    type Owned =
        (u64, u64, Option<u64>, (Vec<u64>, u64), i64, String, Vec<(String, String)>, Vec<u8>);

    fn records() -> impl Strategy<Value = Vec<Owned>> {
        let record = (
            0u64..1 << 40,
            any::<u64>(),
            proptest::option::of(any::<u64>()),
            (
                proptest::collection::vec(any::<u64>(), 0..3),
                prop_oneof![3 => Just(0), 1 => any::<u64>()],
            ),
            any::<i64>(),
            "[a-c]{0,2}",
            proptest::collection::vec(("[x-z]{0,2}".prop_map(String::from), any::<String>()), 0..2),
            proptest::collection::vec(any::<u8>(), 0..40),
        );
        proptest::collection::vec(record, 0..8)
    }

    proptest! {
        #[test]
        fn what_is_pushed_is_read_back(records in records()) {
            let mut frames = FrameBuffer::default();
            let mut expected = Vec::new();
            for (epoch, seq, tick, (path, repair), time, subject, headers, payload) in &records {
                let mut encoded = HeadersBuffer::default();
                for (name, value) in headers {
                    encoded.push(name, value);
                }
                let mut numbers = PathBuffer::default();
                for number in path {
                    let parent = numbers.clone();
                    numbers.set(parent.as_path(), *number);
                }
                frames.push(&RecordView {
                    epoch: Epoch::new(epoch >> 20, u32::try_from(epoch & 0xfffff).unwrap()),
                    seq: Seq(*seq),
                    origin: Origin { tick: *tick, path: numbers.as_path(), repair: *repair },
                    time: Timestamp(*time),
                    subject,
                    headers: encoded.as_headers(),
                    payload,
                });
                expected.push((*seq, *tick, (path.clone(), *repair), *time, subject.clone(), headers.clone(), payload.clone()));
            }
            let read: Vec<_> = FrameReader::new(frames.bytes(), frames.count(), Epoch::default(), Seq(9))
                .map(|record| {
                    let record = record.unwrap();
                    let headers = record.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
                    (
                        record.seq.0,
                        record.origin.tick,
                        (record.origin.path.numbers().collect(), record.origin.repair),
                        record.time.0,
                        record.subject.to_owned(),
                        headers,
                        record.payload.to_owned(),
                    )
                })
                .collect();
            prop_assert_eq!(read, expected);
        }

        #[test]
        fn any_bytes_are_answered_with_records_or_one_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            count in 0u32..9,
        ) {
            let answers: Vec<_> = FrameReader::new(&bytes, count, Epoch::default(), Seq(1)).collect();
            prop_assert!(answers.len() <= count as usize + 1);
            prop_assert!(answers.iter().rev().skip(1).all(Result::is_ok));
        }
    }

    #[test]
    fn frames_of_two_buffers_make_one_block() {
        let mut first = FrameBuffer::default();
        first.push_new(Timestamp(1000), "a", Headers::default(), b"one");
        first.push_new(Timestamp(1001), "a", Headers::default(), b"two");
        let mut second = FrameBuffer::default();
        second.push_new(Timestamp(5), "b", Headers::default(), b"three");
        let block = [first.bytes(), second.bytes()].concat();
        let read: Vec<_> = FrameReader::new(&block, 3, Epoch::new(1, 2), Seq(7))
            .map(|record| record.map(|r| (r.seq.0, r.time.0, r.subject, r.payload)))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(
            read,
            [(7, 1000, "a", &b"one"[..]), (8, 1001, "a", b"two"), (9, 5, "b", b"three")]
        );
    }

    #[test]
    fn a_repeated_subject_costs_no_bytes() {
        let mut frames = FrameBuffer::default();
        frames.push_new(Timestamp(0), "sensors.hall-7", Headers::default(), b"x");
        let first = frames.len();
        frames.push_new(Timestamp(1), "sensors.hall-7", Headers::default(), b"x");
        assert_eq!(frames.len() - first, 4);
    }
}
