//! Where the records of a file begin and end. Keeps nothing of their bytes.
//!
//! - **Lines**: a record ends at `\n`.
//! - **Multiline**: a record begins at a line that matches, and ends before the next one that does.
//! - **Json**: a record is one document: an object, an array, a text, or a word up to the next space. Documents are told
//!   apart by their brackets; whether one is valid is not looked at. Space between them belongs to none.
//! - **Whole**: the file is the record.

use regex::bytes::Regex;

use crate::limits::READ_BLOCK_BYTES;

/// How the bytes of a file become records.
#[derive(Debug, Clone)]
pub(super) enum Format {
    Lines,
    Multiline(Regex),
    Json,
    Whole,
}

/// A record's end, and where the next one begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) end: u64,
    pub(super) next: u64,
}

/// What is known of the record that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Search {
    /// Multiline: its first line has been passed.
    begun: bool,
    /// Multiline: the block ended in the middle of a line longer than itself.
    inside: bool,
    /// Json: open brackets.
    depth: u64,
    in_text: bool,
    escaped: bool,
    in_word: bool,
}

impl Search {
    /// Searches a block, which stands at `base`, from `at` on, for the end of the record. Moves `at` behind what need not be searched
    /// again: a block that follows begins there.
    pub(super) fn next(
        &mut self,
        format: &Format,
        base: u64,
        block: &[u8],
        at: &mut usize,
    ) -> Option<Found> {
        match format {
            Format::Lines => {
                let end = memchr::memchr(b'\n', &block[*at..]).map(|end| *at + end);
                *at = end.map_or(block.len(), |end| end + 1);
                end.map(|end| Found { end: base + end as u64, next: base + end as u64 + 1 })
            }
            Format::Multiline(start) => self.next_start(start, base, block, at),
            Format::Json => {
                let found = self.next_document(block, at)?;
                *self = Self::default();
                Some(Found { end: base + found as u64, next: base + found as u64 })
            }
            Format::Whole => {
                *at = block.len();
                None
            }
        }
    }

    /// Multiline: whether all lines so far have ended.
    pub(super) fn is_between_lines(&self) -> bool {
        !self.inside
    }

    /// Multiline: whether the last line of a file, which has no end, begins a record behind the one that is open.
    pub(super) fn starts_record(&self, format: &Format, line: &[u8]) -> bool {
        match format {
            Format::Multiline(start) => self.begun && !self.inside && start.is_match(line),
            _ => false,
        }
    }

    fn next_start(
        &mut self,
        start: &Regex,
        base: u64,
        block: &[u8],
        at: &mut usize,
    ) -> Option<Found> {
        while *at < block.len() {
            let line = *at;
            let end = memchr::memchr(b'\n', &block[line..]).map(|end| line + end);
            // A line is looked at when all of it is there, or as much as there is room for.
            let is_too_long = line == 0 && block.len() >= READ_BLOCK_BYTES;
            if end.is_none() && !self.inside && !is_too_long {
                return None;
            }
            let text = &block[line..end.unwrap_or(block.len())];
            if self.begun && !self.inside && start.is_match(text) {
                *self = Self::default();
                let next = base + line as u64;
                return Some(Found { end: next.saturating_sub(1), next });
            }
            self.begun = true;
            self.inside = end.is_none();
            *at = end.map_or(block.len(), |end| end + 1);
        }
        None
    }

    fn next_document(&mut self, block: &[u8], at: &mut usize) -> Option<usize> {
        while let Some(byte) = block.get(*at).copied() {
            if self.in_text {
                if self.text(block, at) && self.depth == 0 {
                    return Some(*at);
                }
                continue;
            }
            if self.in_word && (is_space(byte) || matches!(byte, b'{' | b'[' | b'"')) {
                return Some(*at);
            }
            *at += 1;
            match byte {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                b'}' | b']' if self.depth > 0 => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(*at);
                    }
                }
                _ => self.in_word |= self.depth == 0 && !is_space(byte),
            }
        }
        None
    }

    /// Passes the rest of a text. Returns whether it has ended.
    fn text(&mut self, block: &[u8], at: &mut usize) -> bool {
        if std::mem::take(&mut self.escaped) {
            *at += 1;
            return false;
        }
        let Some(found) = memchr::memchr2(b'"', b'\\', &block[*at..]) else {
            *at = block.len();
            return false;
        };
        *at += found + 1;
        self.escaped = block[*at - 1] == b'\\';
        self.in_text = self.escaped;
        !self.in_text
    }
}

/// What stands between documents: JSON's white space, NUL, and the separator of RFC 7464.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0 | 0x1e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::fuzz;

    /// The records of the text, given in blocks of a size, and what follows the last of them.
    fn split(format: &Format, text: &str, size: usize) -> (Vec<String>, String) {
        let bytes = text.as_bytes();
        let (mut search, mut offset, mut searched) = (Search::default(), 0, 0);
        let mut found = Vec::new();
        let mut room = size;
        while searched < bytes.len() {
            let block = &bytes[searched..bytes.len().min(searched + room)];
            let mut at = 0;
            while let Some(record) = search.next(format, searched as u64, block, &mut at) {
                let end = usize::try_from(record.end).unwrap();
                found.push(String::from_utf8_lossy(&bytes[offset..end]).into_owned());
                offset = usize::try_from(record.next).unwrap();
            }
            if at == 0 && searched + room >= bytes.len() {
                break;
            }
            // What was not searched is given again, with more behind it.
            room = if at == 0 { room + 1 } else { size };
            searched += at;
        }
        (found, String::from_utf8_lossy(&bytes[offset..]).into_owned())
    }

    fn in_all_sizes(format: &Format, text: &str) -> (Vec<String>, String) {
        let whole = split(format, text, text.len());
        for size in 1..text.len() {
            assert_eq!(split(format, text, size), whole, "blocks of {size}");
        }
        whole
    }

    #[test]
    fn lines_end_at_newlines() {
        let (found, rest) = in_all_sizes(&Format::Lines, "a\n\nbb\r\nc");
        assert_eq!(found, ["a", "", "bb\r"]);
        assert_eq!(rest, "c");
    }

    #[test]
    fn a_record_of_several_lines_ends_before_the_next_start() {
        let format = Format::Multiline(Regex::new("^[0-9]+ ").unwrap());
        let text = "before\n first\n1 one\n  at x\n\n  at y\n2 two\n3 three\n  at z\n";
        let (found, rest) = in_all_sizes(&format, text);
        assert_eq!(found, ["before\n first", "1 one\n  at x\n\n  at y", "2 two"]);
        assert_eq!(rest, "3 three\n  at z\n");
    }

    #[test]
    fn documents_are_told_apart_by_their_brackets() {
        let text = "{\"a\":[1,{\"b\":\"}\\\"{\\\\\"}]}\n\n[1,\n2]{\"c\":2} \"x y\\\"\" 12 true{}]\n{\"open\":[";
        let (found, rest) = in_all_sizes(&Format::Json, text);
        let trimmed: Vec<_> = found.iter().map(|text| text.trim()).collect();
        let expected = [
            "{\"a\":[1,{\"b\":\"}\\\"{\\\\\"}]}",
            "[1,\n2]",
            "{\"c\":2}",
            "\"x y\\\"\"",
            "12",
            "true",
            "{}",
            "]",
        ];
        assert_eq!(trimmed, expected);
        assert_eq!(rest.trim(), "{\"open\":[");
    }

    #[test]
    fn fuzzed_content_gives_the_same_records_in_blocks_of_any_size() {
        let formats = [
            Format::Lines,
            Format::Multiline(Regex::new("^[0-9]+ ").unwrap()),
            Format::Json,
            Format::Whole,
        ];
        let examples: [&[u8]; 3] = [
            b"a\n\nbb\r\nc",
            b"before\n1 one\n  at x\n\n2 two\n",
            b"{\"a\":[1,{\"b\":\"}\\\"{\"}]}\n[1,\n2] \"x\" 12 true{}]\n{\"open\":[",
        ];
        fuzz(&examples, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let text = text.get(..text.floor_char_boundary(300)).unwrap_or_default();
            for format in &formats {
                let whole = split(format, text, text.len().max(1));
                for size in [1, 3, 10] {
                    assert_eq!(split(format, text, size), whole, "blocks of {size}");
                }
            }
        });
    }
}
