//! Takes the Journal Export Format apart, which journalctl writes with `--output=export`.
//!
//! An entry is a number of fields and ends at an empty line. A field is `NAME=VALUE` and a newline; or, when the value holds any
//! byte, `NAME`, a newline, the value's length in eight bytes (the least significant first), the value, and a newline.
//!
//! Few fields are kept, and of each no more than its bound, with its true size: an entry may have gigabytes. A declared length
//! allocates nothing. What is not of the format ends the stream. Knows neither processes nor records.

use crate::limits::{JOURNALD_FIELD_BYTES_MAX, JOURNALD_NAME_BYTES_MAX};

/// The fields that are kept, by their names; the others are skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// Where the entry stands.
    Cursor,
    /// Microseconds since 1970 when journald took it.
    Realtime,
    Boot,
    Message,
    Priority,
    Identifier,
    Unit,
    Pid,
    Uid,
    Host,
    Transport,
}

/// Each with what it is called, in the order of [`Name`].
pub(super) const NAMES: [(&str, Name); 11] = [
    ("__CURSOR", Name::Cursor),
    ("__REALTIME_TIMESTAMP", Name::Realtime),
    ("_BOOT_ID", Name::Boot),
    ("MESSAGE", Name::Message),
    ("PRIORITY", Name::Priority),
    ("SYSLOG_IDENTIFIER", Name::Identifier),
    ("_SYSTEMD_UNIT", Name::Unit),
    ("_PID", Name::Pid),
    ("_UID", Name::Uid),
    ("_HOSTNAME", Name::Host),
    ("_TRANSPORT", Name::Transport),
];

/// A field: its first bytes, and how many it really has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) head: Vec<u8>,
    pub(super) size: u64,
    is_there: bool,
}

/// What is kept of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Entry {
    values: [Value; NAMES.len()],
}

impl Entry {
    /// A field, as far as it was kept.
    pub(super) fn get(&self, name: Name) -> Option<&Value> {
        self.values.get(name as usize).filter(|value| value.is_there)
    }

    /// A field that was kept whole and is a text without control characters.
    pub(super) fn text(&self, name: Name) -> Option<&str> {
        let value = self.get(name).filter(|value| value.size == value.head.len() as u64)?;
        let text = std::str::from_utf8(&value.head).ok()?;
        (!text.is_empty() && !text.contains(char::is_control)).then_some(text)
    }

    fn forget(&mut self) {
        for value in &mut self.values {
            value.head.clear();
            // One large message must not hold its memory for ever.
            value.head.shrink_to(JOURNALD_FIELD_BYTES_MAX);
            (value.size, value.is_there) = (0, false);
        }
    }
}

/// Bytes that are no export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at}")]
pub struct Malformed {
    what: &'static str,
    /// In bytes of the stream.
    at: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Within a field's name.
    Name,
    /// Within a value that ends at a newline.
    Text,
    /// So many bytes of the length have come, and give this.
    Length {
        bytes: u32,
        value: u64,
    },
    /// So many bytes of the value are to come.
    Binary {
        left: u64,
    },
    /// A newline has to come.
    BinaryEnd,
    /// An entry was given out, which is to be forgotten first.
    Given,
    Failed(Malformed),
}

/// Takes bytes in as they come and gives entries out.
#[derive(Debug)]
pub(super) struct Decoder {
    message_bytes_max: usize,
    state: State,
    name: Vec<u8>,
    /// The field whose value is coming, if it is kept.
    slot: Option<usize>,
    entry: Entry,
    has_fields: bool,
    /// Bytes taken so far.
    taken: u64,
}

impl Decoder {
    pub(super) fn new(message_bytes_max: usize) -> Self {
        Self {
            message_bytes_max,
            state: State::Name,
            name: Vec::new(),
            slot: None,
            entry: Entry::default(),
            has_fields: false,
            taken: 0,
        }
    }

    /// The next entry that is complete in these bytes, which are taken up to its end; `None` when they are used up.
    ///
    /// # Errors
    /// When something is not of the format; then and ever after.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<&Entry>, Malformed> {
        if self.state == State::Given {
            self.entry.forget();
            self.has_fields = false;
            self.state = State::Name;
        }
        while !bytes.is_empty() {
            let before = bytes.len();
            let result = self.step(bytes);
            self.taken += (before - bytes.len()) as u64;
            match result {
                Ok(false) => {}
                Ok(true) => {
                    self.state = State::Given;
                    return Ok(Some(&self.entry));
                }
                Err(what) => {
                    let error = Malformed { what, at: self.taken };
                    self.state = State::Failed(error);
                    return Err(error);
                }
            }
            if let State::Failed(error) = self.state {
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Takes some bytes, one at least; true when an entry has ended.
    fn step(&mut self, bytes: &mut &[u8]) -> Result<bool, &'static str> {
        match self.state {
            State::Name => return self.name(bytes),
            State::Text => match memchr::memchr(b'\n', bytes) {
                Some(end) => {
                    self.keep(bytes.get(..end).unwrap_or_default());
                    advance(bytes, end + 1);
                    self.state = State::Name;
                }
                None => {
                    self.keep(bytes);
                    advance(bytes, bytes.len());
                }
            },
            State::Length { bytes: count, value } => {
                let byte = first(bytes);
                let value = value | u64::from(byte) << (8 * count);
                self.state = match count {
                    7 if value == 0 => State::BinaryEnd,
                    7 => State::Binary { left: value },
                    _ => State::Length { bytes: count + 1, value },
                };
            }
            State::Binary { left } => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                self.keep(bytes.get(..count).unwrap_or_default());
                advance(bytes, count);
                let left = left - count as u64;
                self.state = if left == 0 { State::BinaryEnd } else { State::Binary { left } };
            }
            State::BinaryEnd if first(bytes) == b'\n' => self.state = State::Name,
            State::BinaryEnd => return Err("no newline behind a value"),
            State::Given => self.state = State::Name,
            State::Failed(_) => advance(bytes, bytes.len()),
        }
        Ok(false)
    }

    fn name(&mut self, bytes: &mut &[u8]) -> Result<bool, &'static str> {
        match first(bytes) {
            b'=' if !self.name.is_empty() => {
                self.begin_value();
                self.state = State::Text;
            }
            b'\n' if !self.name.is_empty() => {
                self.begin_value();
                self.state = State::Length { bytes: 0, value: 0 };
            }
            b'\n' if !self.has_fields => {}
            b'\n' if self.entry.text(Name::Cursor).is_none() => {
                return Err("an entry without a cursor");
            }
            b'\n' => return Ok(true),
            byte @ (b'A'..=b'Z' | b'0'..=b'9' | b'_')
                if self.name.len() < JOURNALD_NAME_BYTES_MAX =>
            {
                self.name.push(byte);
            }
            _ => return Err("no name of a field"),
        }
        Ok(false)
    }

    /// A field may stand in an entry several times: the first counts.
    fn begin_value(&mut self) {
        self.has_fields = true;
        let is_this = |(name, _): &(&str, Name)| name.as_bytes() == self.name;
        self.slot = NAMES.iter().position(is_this);
        self.name.clear();
        let value = self.slot.and_then(|slot| self.entry.values.get_mut(slot));
        match value {
            Some(value) if !value.is_there => value.is_there = true,
            _ => self.slot = None,
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let Some(slot) = self.slot else { return };
        let max = if slot == Name::Message as usize {
            self.message_bytes_max
        } else {
            JOURNALD_FIELD_BYTES_MAX
        };
        if let Some(value) = self.entry.values.get_mut(slot) {
            let room = max.saturating_sub(value.head.len()).min(bytes.len());
            value.head.extend_from_slice(bytes.get(..room).unwrap_or_default());
            value.size += bytes.len() as u64;
        }
    }
}

fn advance(bytes: &mut &[u8], count: usize) {
    *bytes = bytes.get(count..).unwrap_or_default();
}

/// Takes the first byte.
fn first(bytes: &mut &[u8]) -> u8 {
    let byte = bytes.first().copied().unwrap_or_default();
    advance(bytes, 1);
    byte
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    type Found = Vec<(String, Option<(Vec<u8>, u64)>)>;

    /// Cursor and message of each entry, from bytes that come in these pieces.
    fn decode(pieces: &[&[u8]], max: usize) -> Result<Found, Malformed> {
        let mut decoder = Decoder::new(max);
        let mut found = Vec::new();
        for piece in pieces {
            let mut rest = *piece;
            while let Some(entry) = decoder.next(&mut rest)? {
                let message =
                    entry.get(Name::Message).map(|value| (value.head.clone(), value.size));
                found.push((entry.text(Name::Cursor).unwrap().to_owned(), message));
            }
        }
        Ok(found)
    }

    fn binary(name: &str, value: &[u8]) -> Vec<u8> {
        let length = (value.len() as u64).to_le_bytes();
        [name.as_bytes(), b"\n", &length, value, b"\n"].concat()
    }

    #[test]
    fn an_entry_is_the_same_wherever_its_bytes_are_cut() {
        let bytes = [
            b"__CURSOR=s=1;i=1\n_PID=7\nMESSAGE=one = two\nMESSAGE=second\nX=y\n\n".to_vec(),
            b"__CURSOR=s=1;i=2\n".to_vec(),
            binary("MESSAGE", b"a\nb\n\n=\xff\0"),
            binary("OTHER", b""),
            b"\n\n__CURSOR=s=1;i=3\n\n".to_vec(),
        ]
        .concat();
        let wanted = [
            ("s=1;i=1".to_owned(), Some((b"one = two".to_vec(), 9))),
            ("s=1;i=2".to_owned(), Some((b"a\nb\n\n=\xff\0".to_vec(), 8))),
            ("s=1;i=3".to_owned(), None),
        ];
        for at in 0..bytes.len() {
            let (one, two) = bytes.split_at(at);
            assert_eq!(decode(&[one, two], 100).unwrap(), wanted, "{at}");
        }
    }

    #[test]
    fn what_is_over_its_bound_is_counted_and_not_kept() {
        let long = vec![b'x'; 100_000];
        let bytes =
            [&b"__CURSOR=c\nMESSAGE="[..], &long, b"\n_SYSTEMD_UNIT=", &long, b"\n\n"].concat();
        let mut decoder = Decoder::new(10);
        let entry = decoder.next(&mut &bytes[..]).unwrap().unwrap();
        let message = entry.get(Name::Message).unwrap();
        assert_eq!((message.head.len(), message.size), (10, 100_000));
        assert_eq!(entry.get(Name::Unit).unwrap().head.len(), JOURNALD_FIELD_BYTES_MAX);
        assert_eq!(entry.text(Name::Unit), None);
    }

    #[test]
    fn what_is_no_export_is_told_with_its_place_and_allocates_nothing() {
        let huge = [&b"__CURSOR=c\nMESSAGE\n"[..], &[0xff; 8], b"abc"].concat();
        assert_eq!(decode(&[&huge], 10), Ok(vec![]));
        let cases: [(&[u8], &str); 5] = [
            (b"-- Boot 0f9a --\n", "no name of a field at byte 1"),
            (b"MESSAGE=x\n\n", "an entry without a cursor at byte 11"),
            (b"=x\n", "no name of a field at byte 1"),
            (b"__CURSOR=c\nMESSAGE\n\x01\0\0\0\0\0\0\0ab", "no newline behind a value at byte 29"),
            (&[b'A'; 100], "no name of a field at byte 65"),
        ];
        for (bytes, told) in cases {
            assert_eq!(decode(&[bytes], 10).unwrap_err().to_string(), told);
        }
        let mut decoder = Decoder::new(10);
        decoder.next(&mut &b"-"[..]).unwrap_err();
        decoder.next(&mut &b"__CURSOR=c\n\n"[..]).unwrap_err();
    }

    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let words = prop_oneof![
            Just(b"__CURSOR=c\n".to_vec()),
            Just(b"MESSAGE=m\n".to_vec()),
            Just(b"MESSAGE\n\x03\0\0\0\0\0\0\0".to_vec()),
            Just(b"\n".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..40),
        ];
        proptest::collection::vec(words, 0..40)
    }

    proptest! {
        /// Any bytes in any pieces: the same entries and the same end as in one piece, and never more kept than the bounds.
        #[test]
        fn any_bytes_are_entries_or_an_error_wherever_they_are_cut(pieces in pieces()) {
            let all = pieces.concat();
            let parts: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            prop_assert_eq!(decode(&parts, 16), decode(&[&all], 16));
            let bytes: Vec<&[u8]> = all.chunks(1).collect();
            prop_assert_eq!(decode(&bytes, 16), decode(&[&all], 16));
        }

        /// Whatever a field holds comes out as it went in.
        #[test]
        fn a_message_comes_out_as_it_went_in(message in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = [b"__CURSOR=c\n".to_vec(), binary("MESSAGE", &message), b"\n".to_vec()].concat();
            let wanted = vec![("c".to_owned(), Some((message.clone(), message.len() as u64)))];
            prop_assert_eq!(decode(&[&bytes], 300).unwrap(), wanted);
        }
    }

    #[test]
    fn fuzzed_exports_are_entries_or_an_error_wherever_they_are_cut() {
        let examples: [&[u8]; 2] = [
            b"__CURSOR=s=1;i=1\n__REALTIME_TIMESTAMP=1\nMESSAGE=one\n_PID=1\n\n__CURSOR=s=1;i=2\n\n",
            b"__CURSOR=c\nMESSAGE\n\x03\0\0\0\0\0\0\0a\nb\nPRIORITY=6\n\n",
        ];
        fuzz(&examples, |bytes| {
            let cut: Vec<&[u8]> = bytes.chunks(5).collect();
            assert_eq!(decode(&cut, 16), decode(&[bytes], 16));
        });
    }
}
