//! Cuts a stream of bytes into frames.
//!
//! - **Lines**: a frame ends at `\n`, which is no part of it; all other bytes are content, `\r` too (RFC 6587, 3.4.2, names
//!   LF as the usual trailer).
//! - **Octet-counted** (RFC 6587, 3.4.1: `MSG-LEN SP MSG`): a count of 1 to 9 digits without a leading zero, one space, and as
//!   many bytes, of which any may be a newline. A newline where a count should begin is skipped: there are senders that add one.
//! - **Length-prefixed**: four bytes, the most significant first, and as many bytes as they say.
//! - **Detected**: for each frame by its first byte: 1 to 9 begins a count, anything else a line; newlines between are skipped.
//!   A connection may change from one to the other.
//!
//! What is no count ends the stream: where the next frame would begin is not known then. A declared length allocates nothing.
//! Of a frame its first bytes are kept, up to the limit, and its true size; of the rest nothing. So a frame over the limit
//! leaves its neighbours as they are.
//!
//! Knows neither sockets nor records.

use super::config::Framing;
use crate::limits::SOCKET_FRAME_KEPT_BYTES;

/// Digits of the longest octet count.
const COUNT_DIGITS_MAX: u32 = 9;

/// One frame: its first bytes, and how many it really has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// The whole of it, or its first bytes up to the limit.
    pub(super) head: &'a [u8],
    pub(super) size: u64,
    /// Where its content begins, in bytes of the stream.
    pub(super) at: u64,
    /// The stream has ended in the middle of it.
    pub(super) is_unterminated: bool,
}

/// Bytes that no frame can begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no octet count at byte {at}")]
pub(super) struct FrameError {
    /// Where the count should have begun, in bytes of the stream.
    pub(super) at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of the next frame has come.
    Begin,
    Line,
    /// So many digits have come, and give this; it began there.
    Count {
        digits: u32,
        value: u64,
        at: u64,
    },
    /// So many bytes of the length have come, and give this.
    Prefix {
        bytes: u32,
        value: u64,
    },
    /// So many bytes are to come.
    Body {
        left: u64,
    },
    /// A frame was given out, which is to be forgotten first.
    Given,
    Failed(FrameError),
}

/// Takes bytes in as they come and gives frames out.
#[derive(Debug)]
pub(super) struct Decoder {
    framing: Framing,
    frame_bytes_max: usize,
    state: State,
    /// What is kept of the frame that has begun.
    head: Vec<u8>,
    size: u64,
    /// Where its content begins.
    at: u64,
    /// Bytes taken so far.
    taken: u64,
}

impl Decoder {
    pub(super) fn new(framing: Framing, frame_bytes_max: usize) -> Self {
        let (head, state) = (Vec::new(), State::Begin);
        Self { framing, frame_bytes_max, state, head, size: 0, at: 0, taken: 0 }
    }

    /// Bytes kept of a frame that has begun.
    pub(super) fn kept_bytes(&self) -> usize {
        if self.state == State::Given { 0 } else { self.head.len() }
    }

    /// The next frame that is complete in these bytes, which are taken up to its end; `None` when they are used up.
    ///
    /// # Errors
    /// When no frame begins where one should; then and ever after.
    pub(super) fn next<'f, 'b: 'f>(
        &'f mut self,
        bytes: &mut &'b [u8],
    ) -> Result<Option<Frame<'f>>, FrameError> {
        if self.state == State::Given {
            self.forget();
        }
        while let Some(&first) = bytes.first() {
            let found = match self.state {
                State::Begin => self.begin(first, bytes),
                State::Count { digits, value, at } => self.count(first, digits, value, at, bytes),
                State::Prefix { bytes: have, value } => self.prefix(first, have, value, bytes),
                State::Line => self.line(bytes),
                State::Body { left } => self.body(left, bytes),
                State::Given => None,
                State::Failed(error) => return Err(error),
            };
            if let Some(whole) = found {
                self.state = State::Given;
                let head = match whole {
                    Whole::Here(head) => head,
                    Whole::Kept => &self.head,
                };
                let (size, at) = (self.size, self.at);
                return Ok(Some(Frame { head, size, at, is_unterminated: false }));
            }
        }
        match self.state {
            State::Failed(error) => Err(error),
            _ => Ok(None),
        }
    }

    /// What has come of a frame when the stream ends; `None` when that is nothing.
    pub(super) fn finish(&mut self) -> Option<Frame<'_>> {
        let has_begun = matches!(self.state, State::Line | State::Body { .. });
        if !has_begun || self.size == 0 {
            return None;
        }
        self.state = State::Given;
        let (head, size, at) = (&self.head[..], self.size, self.at);
        Some(Frame { head, size, at, is_unterminated: true })
    }

    fn forget(&mut self) {
        self.state = State::Begin;
        self.head.clear();
        // One long frame must not hold its memory for ever.
        self.head.shrink_to(SOCKET_FRAME_KEPT_BYTES);
        self.size = 0;
    }

    fn skip<'a>(&mut self, count: usize, bytes: &mut &'a [u8]) -> &'a [u8] {
        let (taken, rest) = bytes.split_at(count);
        *bytes = rest;
        self.taken += count as u64;
        taken
    }

    fn begin<'a>(&mut self, first: u8, bytes: &mut &'a [u8]) -> Option<Whole<'a>> {
        self.at = self.taken;
        let at = self.taken;
        self.state = match (self.framing, first) {
            (Framing::Lines, _) => State::Line,
            (Framing::LengthPrefixed, _) => State::Prefix { bytes: 0, value: 0 },
            (Framing::OctetCounted | Framing::Detected, b'\n') => {
                self.skip(1, bytes);
                State::Begin
            }
            (Framing::OctetCounted | Framing::Detected, b'1'..=b'9') => {
                State::Count { digits: 0, value: 0, at }
            }
            (Framing::OctetCounted, _) => State::Failed(FrameError { at }),
            (Framing::Detected, _) => State::Line,
        };
        None
    }

    fn count<'a>(
        &mut self,
        first: u8,
        digits: u32,
        value: u64,
        at: u64,
        bytes: &mut &'a [u8],
    ) -> Option<Whole<'a>> {
        self.state = match first {
            b'0'..=b'9' if digits < COUNT_DIGITS_MAX => {
                let value = value * 10 + u64::from(first - b'0');
                State::Count { digits: digits + 1, value, at }
            }
            b' ' => State::Body { left: value },
            _ => State::Failed(FrameError { at }),
        };
        if !matches!(self.state, State::Failed(_)) {
            self.skip(1, bytes);
            self.at = self.taken;
        }
        None
    }

    fn prefix<'a>(
        &mut self,
        first: u8,
        have: u32,
        value: u64,
        bytes: &mut &'a [u8],
    ) -> Option<Whole<'a>> {
        self.skip(1, bytes);
        self.at = self.taken;
        let value = value << 8 | u64::from(first);
        if have < 3 {
            self.state = State::Prefix { bytes: have + 1, value };
            return None;
        }
        self.state = State::Body { left: value };
        // A frame of nothing is complete with its length.
        (value == 0).then_some(Whole::Kept)
    }

    fn line<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<Whole<'a>> {
        let end = memchr::memchr(b'\n', bytes);
        let content = self.skip(end.unwrap_or(bytes.len()), bytes);
        let found = self.content(content, end.is_some());
        if end.is_some() {
            self.skip(1, bytes);
        }
        found
    }

    fn body<'a>(&mut self, left: u64, bytes: &mut &'a [u8]) -> Option<Whole<'a>> {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        let content = self.skip(here, bytes);
        let left = left - here as u64;
        self.state = State::Body { left };
        self.content(content, left == 0)
    }

    /// Takes content of the frame; gives where it is found when these are its last bytes.
    fn content<'a>(&mut self, content: &'a [u8], is_end: bool) -> Option<Whole<'a>> {
        if is_end && self.size == 0 {
            // The usual case: the frame stands in the bytes as a whole.
            self.size = content.len() as u64;
            return Some(Whole::Here(&content[..content.len().min(self.frame_bytes_max)]));
        }
        let room = self.frame_bytes_max - self.head.len();
        let kept = &content[..content.len().min(room)];
        let wanted = self.head.len() + kept.len();
        if wanted > self.head.capacity() {
            // Twice as much each time, as vectors do, but never more than the limit.
            let capacity = wanted.max(2 * self.head.capacity()).min(self.frame_bytes_max);
            self.head.reserve_exact(capacity - self.head.len());
        }
        self.head.extend_from_slice(kept);
        self.size += content.len() as u64;
        is_end.then_some(Whole::Kept)
    }
}

/// Where the bytes of a complete frame are.
enum Whole<'a> {
    /// In the bytes that came last.
    Here(&'a [u8]),
    /// With the decoder.
    Kept,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    /// Content, true size, where it begins, whether it is unterminated.
    type Found = (Vec<u8>, u64, u64, bool);

    struct Decoded {
        frames: Vec<Found>,
        error: Option<u64>,
        capacity: usize,
    }

    /// What comes of bytes that arrive in these pieces.
    fn decode<'b>(
        framing: Framing,
        max: usize,
        pieces: impl IntoIterator<Item = &'b [u8]>,
    ) -> Decoded {
        let mut decoder = Decoder::new(framing, max);
        let mut decoded = Decoded { frames: Vec::new(), error: None, capacity: 0 };
        let found =
            |frame: Frame<'_>| (frame.head.to_vec(), frame.size, frame.at, frame.is_unterminated);
        'pieces: for piece in pieces {
            let mut rest = piece;
            loop {
                match decoder.next(&mut rest) {
                    Ok(Some(frame)) => decoded.frames.push(found(frame)),
                    Ok(None) => break,
                    Err(error) => {
                        decoded.error = Some(error.at);
                        break 'pieces;
                    }
                }
            }
            decoded.capacity = decoded.capacity.max(decoder.head.capacity());
        }
        decoded.frames.extend(decoder.finish().map(found));
        decoded
    }

    fn contents(framing: Framing, bytes: &[u8]) -> Vec<Vec<u8>> {
        let decoded = decode(framing, 1 << 20, [bytes]);
        assert_eq!(decoded.error, None);
        decoded.frames.into_iter().map(|(content, ..)| content).collect()
    }

    const TWO: &[u8] = b"19 <13>1 - - - - - - A19 <13>1 - - - - - - B";

    /// The bytes of a report that made an endless loop: the second count is none.
    #[test]
    fn d_20_input_1_a_count_that_is_none_ends_the_stream_with_its_offset() {
        let bytes = b"1 <23>4\n1 <23>4\n";
        for framing in [Framing::Detected, Framing::OctetCounted] {
            let decoded = decode(framing, 1 << 20, [&bytes[..]]);
            assert_eq!(decoded.frames, [(b"<".to_vec(), 1, 2, false)]);
            assert_eq!(decoded.error, Some(3));
        }
        // It stays that way, whatever comes.
        let mut decoder = Decoder::new(Framing::Detected, 100);
        let mut rest = &b"5x"[..];
        assert_eq!(
            decoder.next(&mut rest).unwrap_err().to_string(),
            "there is no octet count at byte 0"
        );
        assert_eq!(decoder.next(&mut &b"line\n"[..]), Err(FrameError { at: 0 }));
        assert_eq!(decoder.finish(), None);
    }

    #[test]
    fn d_20_input_2_two_counted_frames_come_out_whole_wherever_they_are_cut() {
        let expected = [
            (b"<13>1 - - - - - - A".to_vec(), 19, 3, false),
            (b"<13>1 - - - - - - B".to_vec(), 19, 25, false),
        ];
        assert_eq!(TWO.len(), 44);
        for framing in [Framing::Detected, Framing::OctetCounted] {
            for at in 1..TWO.len() {
                let (first, second) = TWO.split_at(at);
                let decoded = decode(framing, 1 << 20, [first, second]);
                assert_eq!((&decoded.frames[..], decoded.error), (&expected[..], None), "{at}");
            }
            let decoded = decode(framing, 1 << 20, TWO.chunks(1));
            assert_eq!(decoded.frames, expected);
        }
    }

    #[test]
    fn d_20_input_3_a_newline_in_a_counted_frame_is_content() {
        let bytes = b"22 <13>1 - - - - - - A\nBC";
        assert_eq!(contents(Framing::Detected, bytes), [&b"<13>1 - - - - - - A\nBC"[..]]);
        assert_eq!(contents(Framing::OctetCounted, bytes), [&b"<13>1 - - - - - - A\nBC"[..]]);
    }

    #[test]
    fn d_20_input_4_what_is_no_count_is_refused_and_allocates_nothing() {
        for bad in [
            "99999999999999999999 <13>1 -",
            "-5 <13>",
            "019 <13>1",
            "19<13>1",
            "0 x",
            "1234567890 x",
        ] {
            let text = format!("3 abc{bad}");
            let decoded = decode(Framing::OctetCounted, 1 << 30, [text.as_bytes()]);
            assert_eq!(decoded.frames.len(), 1, "{bad}");
            assert_eq!(decoded.error, Some(5), "{bad}");
            assert_eq!(decoded.capacity, 0, "{bad}");
        }
        // A length that is one allocates nothing either, before as much has come.
        for (framing, bytes) in [
            (Framing::OctetCounted, &b"999999999 x"[..]),
            (Framing::LengthPrefixed, &b"\xff\xff\xff\xffx"[..]),
        ] {
            let decoded = decode(framing, 1 << 30, [bytes]);
            assert_eq!(decoded.error, None);
            assert!(decoded.capacity < 100, "{}", decoded.capacity);
        }
    }

    #[test]
    fn d_20_input_5_the_last_line_without_a_newline_is_there_and_marked() {
        for framing in [Framing::Lines, Framing::Detected] {
            let decoded = decode(framing, 100, [&b"<13>1 A\n<13>1 B"[..]]);
            let expected = [(b"<13>1 A".to_vec(), 7, 0, false), (b"<13>1 B".to_vec(), 7, 8, true)];
            assert_eq!(decoded.frames, expected);
        }
    }

    #[test]
    fn d_20_input_6_a_connection_may_change_its_framing_where_it_is_detected() {
        let bytes = b"3 one\n<13>two\n\n5 three<13>four\n3 six";
        let expected = [&b"one"[..], b"<13>two", b"three", b"<13>four", b"six"];
        assert_eq!(contents(Framing::Detected, bytes), expected);
        let decoded = decode(Framing::OctetCounted, 100, [&bytes[..]]);
        assert_eq!((decoded.frames.len(), decoded.error), (1, Some(6)));
    }

    #[test]
    fn d_21_a_frame_over_the_limit_leaves_its_neighbours_and_says_its_size() {
        let long = vec![b'x'; 200_000];
        let max = 64 * 1024;
        let lines = [b"0123456789\n", &long[..], b"\n0123456789\n"].concat();
        let counted = [b"10 0123456789200000 ", &long[..], b"10 0123456789"].concat();
        let prefixed =
            [b"\0\0\0\x0a0123456789\0\x03\x0d\x40", &long[..], b"\0\0\0\x0a0123456789"].concat();
        for (framing, bytes) in [
            (Framing::Lines, lines),
            (Framing::OctetCounted, counted),
            (Framing::LengthPrefixed, prefixed),
        ] {
            let decoded = decode(framing, max, bytes.chunks(4096));
            let sizes: Vec<_> =
                decoded.frames.iter().map(|(head, size, ..)| (head.len(), *size)).collect();
            assert_eq!(sizes, [(10, 10), (max, 200_000), (10, 10)]);
            assert!(decoded.capacity <= max, "{}", decoded.capacity);
        }
    }

    #[test]
    fn frames_of_nothing_have_the_size_nothing() {
        assert_eq!(contents(Framing::Lines, b"\n\na\r\n"), [&b""[..], b"", b"a\r"]);
        assert_eq!(contents(Framing::LengthPrefixed, b"\0\0\0\0\0\0\0\x01a"), [&b""[..], b"a"]);
        assert_eq!(decode(Framing::LengthPrefixed, 9, [&b"\0\0\0\x05"[..]]).frames, []);
        assert_eq!(decode(Framing::OctetCounted, 9, [&b"12"[..]]).frames, []);
    }

    fn framings() -> impl Strategy<Value = Framing> {
        prop_oneof![
            Just(Framing::Lines),
            Just(Framing::OctetCounted),
            Just(Framing::LengthPrefixed),
            Just(Framing::Detected),
        ]
    }

    /// Bytes of which many look like frames.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40),
            (0_usize..60).prop_map(|count| {
                [format!("{count} ").as_bytes(), &vec![b'c'; count]].concat()
            }),
            (0_u8..60).prop_map(|count| {
                [&[0, 0, 0, count][..], &vec![b'p'; usize::from(count)]].concat()
            }),
            "[a-z0-9 <>]{0,30}\n".prop_map(String::into_bytes),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn bytes_give_the_same_frames_however_they_are_cut(
            framing in framings(),
            bytes in streams(),
            max in 1_usize..50,
            cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..20),
        ) {
            let whole = decode(framing, max, [&bytes[..]]);
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]);
            let cut = decode(framing, max, pieces);
            prop_assert_eq!(&cut.frames, &whole.frames);
            prop_assert_eq!(cut.error, whole.error);
            prop_assert!(cut.capacity <= max);
            for (head, size, at, _) in whole.frames {
                let (at, size) = (usize::try_from(at).unwrap(), usize::try_from(size).unwrap());
                prop_assert_eq!(&head[..], &bytes[at..at + size.min(max)]);
            }
        }
    }

    #[test]
    fn fuzzed_streams_are_frames_of_their_own_bytes() {
        let examples: [&[u8]; 4] = [
            b"one\ntwo\r\n",
            b"3 one5 three\n12 ",
            b"\0\0\0\x03one\0\0\0\0",
            b"<13>x\n9 <13>y z \n",
        ];
        fuzz(&examples, |bytes| {
            for framing in
                [Framing::Lines, Framing::OctetCounted, Framing::LengthPrefixed, Framing::Detected]
            {
                let found = decode(framing, 100, bytes.chunks(7));
                assert!(found.capacity <= 100);
                for (head, size, at, _) in found.frames {
                    let (at, size) = (usize::try_from(at).unwrap(), usize::try_from(size).unwrap());
                    assert_eq!(&head[..], &bytes[at..at + size.min(100)]);
                }
            }
        });
    }
}
