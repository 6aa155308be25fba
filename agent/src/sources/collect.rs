//! Gathers records, positions and refused records into appends of at most one chunk.
//!
//! Owns the rule for what is over its limit. Does not know where lines come from, nor the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SourceCounters;
use super::config::{LineLimits, OnOversize};
use super::times::Times;
use crate::clock::Timestamp;
use crate::journal::{Append, Position, SourceLetter};
use crate::limits::{CHUNK_BYTES_MAX, POSITIONS_BYTES_MAX};
use crate::record::codec::FrameBuffer;
use crate::record::{Headers, HeadersBuffer};

/// What a frame takes beyond subject, headers and payload, at most.
const FRAME_OVERHEAD: usize = 64;
/// What the headers of a cut record take, at most.
const TRUNCATED_OVERHEAD: usize = 96;

/// One line or message as it was found: its first bytes, and how many it really has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) time: Timestamp,
    pub(super) subject: &'a str,
    pub(super) headers: Headers<'a>,
    /// The whole of it, or its first `record_bytes_max` bytes when it is longer.
    pub(super) head: &'a [u8],
    pub(super) size: u64,
}

#[derive(Debug)]
pub(super) struct Collector {
    limits: LineLimits,
    counters: Arc<SourceCounters>,
    frames: FrameBuffer,
    positions: BTreeMap<String, Option<Vec<u8>>>,
    positions_bytes: usize,
    letters: Vec<SourceLetter>,
    letters_bytes: usize,
    headers: HeadersBuffer,
    times: Option<Arc<Times>>,
}

impl Collector {
    pub(super) fn new(limits: LineLimits, counters: Arc<SourceCounters>) -> Self {
        Self {
            limits,
            counters,
            frames: FrameBuffer::default(),
            positions: BTreeMap::new(),
            positions_bytes: 0,
            letters: Vec::new(),
            letters_bytes: 0,
            headers: HeadersBuffer::default(),
            times: None,
        }
    }

    /// One whose records get their time, and what stands beside it, by these rules.
    pub(super) fn timed(self, times: Option<&Arc<Times>>) -> Self {
        Self { times: times.cloned(), ..self }
    }

    pub(super) fn record_bytes_max(&self) -> usize {
        self.limits.record_bytes_max.as_usize()
    }

    /// Whether a line of this size still fits, with so many bytes of subject and headers beside it. If not, the append so far
    /// is to be taken first.
    pub(super) fn has_room(&self, line_bytes: usize, beside: usize) -> bool {
        let line_bytes = line_bytes.min(self.record_bytes_max());
        let stamp = self.times.as_ref().map_or(0, |times| times.stamp_bytes());
        let frame = line_bytes + beside + stamp + FRAME_OVERHEAD + TRUNCATED_OVERHEAD;
        let frames_fit = self.frames.is_empty() || self.frames.len() + frame <= CHUNK_BYTES_MAX;
        frames_fit
            && self.letters_bytes < CHUNK_BYTES_MAX
            && self.positions_bytes < POSITIONS_BYTES_MAX / 2
    }

    /// Bytes of the records and dead letters that were gathered.
    #[cfg(any(feature = "journald", feature = "sockets"))]
    pub(super) fn gathered_bytes(&self) -> usize {
        self.frames.len() + self.letters_bytes
    }

    /// Takes a line as a message, unless it is empty: then it is counted and left out.
    pub(super) fn line(&mut self, line: Line<'_>, place: impl FnOnce() -> String) {
        if line.size == 0 {
            self.counters.empty_lines.fetch_add(1, Ordering::Relaxed);
        } else {
            self.message(line, place);
        }
    }

    /// Takes a message: as a record, or as the limits say. `place` says where it stands, for a dead letter.
    pub(super) fn message(&mut self, line: Line<'_>, place: impl FnOnce() -> String) {
        let time = match &self.times {
            Some(times) => times.time_of(line.time, line.headers, line.head),
            None => line.time,
        };
        let line = Line { time, ..line };
        if line.size <= self.limits.record_bytes_max.0 {
            self.frame(line, line.head, false);
        } else {
            self.oversize(line, place);
        }
    }

    fn oversize(&mut self, line: Line<'_>, place: impl FnOnce() -> String) {
        let max = self.record_bytes_max();
        let head = &line.head[..line.head.len().min(max)];
        let counters = &self.counters;
        match self.limits.on_oversize {
            OnOversize::Drop => {
                counters.oversize_dropped.fetch_add(1, Ordering::Relaxed);
            }
            OnOversize::Truncate => {
                counters.oversize_truncated.fetch_add(1, Ordering::Relaxed);
                self.frame(line, cut_between_characters(head), true);
            }
            OnOversize::DeadLetter => {
                counters.oversize_dead_lettered.fetch_add(1, Ordering::Relaxed);
                self.letters_bytes += head.len();
                self.letters.push(SourceLetter {
                    reason: format!(
                        "the record has {} bytes, record_bytes_max is {max}",
                        line.size
                    ),
                    size_bytes: line.size,
                    place: place(),
                    subject: line.subject.to_owned(),
                    time: line.time,
                    payload: head.to_vec(),
                });
            }
        }
    }

    /// Adds a frame, with the headers that come to its own.
    fn frame(&mut self, line: Line<'_>, payload: &[u8], is_cut: bool) {
        if !is_cut && self.times.is_none() {
            return self.frames.push_new(line.time, line.subject, line.headers, payload);
        }
        self.headers.clear();
        for (name, value) in line.headers.iter() {
            self.headers.push(name, value);
        }
        if is_cut {
            self.headers.push("waystation-truncated", "true");
            self.headers.push("waystation-size", &line.size.to_string());
        }
        if let Some(times) = &self.times {
            times.stamp(&mut self.headers);
        }
        self.frames.push_new(line.time, line.subject, self.headers.as_headers(), payload);
    }

    /// Adds a record that no limit is on.
    pub(super) fn record(&mut self, time: Timestamp, subject: &str, payload: &[u8]) {
        let (headers, size) = (Headers::default(), payload.len() as u64);
        let line = Line { time, subject, headers, head: payload, size };
        let time = match &self.times {
            Some(times) => times.time_of(time, headers, payload),
            None => time,
        };
        self.frame(Line { time, ..line }, payload, false);
    }

    /// Sets where the source resumes, as of behind the last line.
    pub(super) fn position(&mut self, key: String, value: Option<Vec<u8>>) {
        self.positions_bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.positions.insert(key, value);
    }

    /// What was gathered, or `None` when that is nothing.
    pub(super) fn take(&mut self) -> Option<Append> {
        if self.frames.is_empty() && self.positions.is_empty() && self.letters.is_empty() {
            return None;
        }
        self.positions_bytes = 0;
        self.letters_bytes = 0;
        let positions = std::mem::take(&mut self.positions);
        // A source that is busy fills the next buffer as far as this one.
        let next = FrameBuffer::with_capacity(self.frames.len().min(CHUNK_BYTES_MAX));
        Some(Append {
            frames: std::mem::replace(&mut self.frames, next),
            positions: positions.into_iter().map(|(key, value)| Position { key, value }).collect(),
            letters: std::mem::take(&mut self.letters),
        })
    }
}

/// The text without a character that the cut has split; any other bytes as they are.
fn cut_between_characters(head: &[u8]) -> &[u8] {
    match std::str::from_utf8(head) {
        Err(error) if error.error_len().is_none() => &head[..error.valid_up_to()],
        _ => head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::codec::FrameReader;
    use crate::record::id::{Epoch, Seq};
    use crate::units::ByteSize;

    fn collector(on_oversize: OnOversize) -> Collector {
        let limits = LineLimits { record_bytes_max: ByteSize(4), on_oversize };
        Collector::new(limits, Arc::default())
    }

    fn push(collector: &mut Collector, bytes: &[u8]) {
        let head = &bytes[..bytes.len().min(4)];
        let size = bytes.len() as u64;
        let headers = Headers::default();
        let line = Line { time: Timestamp(1), subject: "s", headers, head, size };
        collector.line(line, || "here".to_owned());
    }

    type PayloadAndHeaders = (Vec<u8>, Vec<(String, String)>);

    fn read(append: &Append) -> Vec<PayloadAndHeaders> {
        FrameReader::new(append.frames.bytes(), append.frames.count(), Epoch::default(), Seq(1))
            .map(|record| {
                let record = record.unwrap();
                let headers = record.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned()));
                (record.payload.to_vec(), headers.collect())
            })
            .collect()
    }

    #[test]
    fn a_record_at_its_limit_is_whole_and_one_over_it_a_letter_with_its_true_size() {
        let mut collector = collector(OnOversize::DeadLetter);
        for line in [&b"1234"[..], b"", b"12345", b"6"] {
            push(&mut collector, line);
        }
        let append = collector.take().unwrap();
        assert_eq!(read(&append), [(b"1234".to_vec(), vec![]), (b"6".to_vec(), vec![])]);
        let letter = &append.letters[0];
        assert_eq!((letter.size_bytes, letter.place.as_str()), (5, "here"));
        assert_eq!(letter.payload, b"1234");
        assert!(collector.take().is_none());
        assert_eq!(collector.counters.empty_lines.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_cut_splits_no_character_and_says_that_it_was_made() {
        let mut collector = collector(OnOversize::Truncate);
        push(&mut collector, "abcü".as_bytes());
        push(&mut collector, b"ab\xff\xc3\xbc");
        let append = collector.take().unwrap();
        let headers = vec![
            ("waystation-truncated".to_owned(), "true".to_owned()),
            ("waystation-size".to_owned(), "5".to_owned()),
        ];
        assert_eq!(
            read(&append),
            [(b"abc".to_vec(), headers.clone()), (b"ab\xff\xc3".to_vec(), headers)]
        );
    }

    #[test]
    fn appends_hold_a_chunk_at_most_but_any_single_record() {
        let limits =
            LineLimits { record_bytes_max: ByteSize(1 << 20), on_oversize: OnOversize::Drop };
        let mut collector = Collector::new(limits, Arc::default());
        let large = vec![b'x'; CHUNK_BYTES_MAX];
        assert!(collector.has_room(large.len(), 1));
        collector.record(Timestamp(0), "s", &large);
        assert!(!collector.has_room(1, 1));
        collector.take().unwrap();
        while collector.has_room(100, 1) {
            collector.record(Timestamp(0), "s", &large[..100]);
        }
        let length = collector.take().unwrap().frames.len();
        assert!(length <= CHUNK_BYTES_MAX && length > CHUNK_BYTES_MAX - 1000, "{length}");
    }
}
