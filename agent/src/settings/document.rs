//! From bytes to a table with places, as far as that is possible.
//!
//! The parser recovers inside a line but gives up the rest of the file at a line such as `type "file"`. So lines that are no
//! TOML are blanked out, keeping every offset, and what remains is parsed again: one mistake never hides the others.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use super::mask::begins_anew;
use super::problem::{Complaint, Problem, Severity};
use crate::limits::{CONFIG_PARSES_MAX, CONFIG_PROBLEMS_MAX};

const WRITE_VALUE: &str = "write KEY = VALUE";

/// What to do about an error of the parser, by the beginning of its message.
const HINTS: &[(&str, &str)] = &[
    ("string values must be quoted", "write text in quotes: KEY = \"value\""),
    ("invalid boolean", "write true or false, or text in quotes: KEY = \"value\""),
    ("key with no value", WRITE_VALUE),
    ("invalid basic string", "close the string with \" on the same line"),
    ("invalid literal string", "close the string with ' on the same line"),
    ("invalid multi-line", "close the string with the three quotes that opened it"),
    ("unclosed array", "close the list with ]"),
    ("unclosed inline table", "close the table with }"),
    ("unclosed table", "close the table's name with ]"),
    ("missing escaped value", "write \\\\ for a backslash, or use single quotes"),
    ("duplicate key", "keep one of the two: each key and each table stands once"),
];

/// The text of a config file and what is no TOML in it.
#[derive(Debug)]
pub struct Document {
    /// The text as it was, or with `?` for each byte that is no UTF-8; places are offsets into it.
    pub text: String,
    /// The text without the lines that are no TOML, of the same length.
    sound: String,
    /// What is no TOML, in the file's order.
    pub syntax: Vec<Problem>,
}

impl Document {
    /// Takes the content of a file.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        let (text, mut syntax) = decode(bytes);
        let mut sound = text.clone();
        for _ in 0..CONFIG_PARSES_MAX {
            let blocks = unsound(&sound, &mut syntax);
            if blocks.is_empty() {
                break;
            }
            sound = blank(&sound, &blocks);
        }
        syntax.sort_by_key(|problem| problem.span.as_ref().map(|span| span.start));
        syntax.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        Self { text, sound, syntax }
    }

    /// Takes the content of a file that stands behind `before` in one text: its places are offsets into the whole.
    #[must_use]
    pub fn behind(before: &str, bytes: &[u8]) -> Self {
        // Space is no TOML and costs the parser next to nothing.
        let mut padded = vec![b' '; before.len().saturating_sub(1)];
        padded.extend(std::iter::repeat_n(b'\n', before.len() - padded.len()));
        padded.extend_from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes));
        Self::new(&padded)
    }

    /// What can be read.
    #[must_use]
    pub fn table(&self) -> DeTable<'_> {
        DeTable::parse_recoverable(&self.sound).0.into_inner()
    }
}

/// Parses the text, adds what is no TOML to `syntax`, and gives the lines that have to go.
fn unsound(text: &str, syntax: &mut Vec<Problem>) -> Vec<Range<usize>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let values = values_over_lines(root.get_ref(), text);
    let mut errors: Vec<_> = errors.iter().map(|error| (place(error, text), error)).collect();
    errors.sort_by_key(|(span, _)| span.start);
    let mut blocks: Vec<Range<usize>> = Vec::new();
    // Up to here nothing is new. What an unclosed value swallowed is looked at in the next parse.
    let mut done = 0;
    for (index, (span, error)) in errors.iter().enumerate() {
        let at = span.start;
        if error.message() == "duplicate key" {
            push(syntax, text, span.clone(), error);
            continue;
        }
        if !blocks.is_empty() && at < done {
            continue;
        }
        let value = values.get(values.partition_point(|value| value.end < at));
        let block = match value.filter(|value| value.start <= at) {
            None => {
                push(syntax, text, span.clone(), error);
                open_block(text, at)
            }
            Some(value) => {
                let inside = errors.get(index..).unwrap_or_default().iter();
                let mut inside = inside.take_while(|(at, _)| at.start <= value.end);
                done = value.end + 1;
                if let Some((_, unclosed)) = inside.find(|(_, error)| is_unclosed(error)) {
                    let line = line_end(text, value.start);
                    let opening = text.get(value.start..line).unwrap_or_default().trim_end().len();
                    push(syntax, text, value.start..value.start + opening, unclosed);
                    open_block(text, value.start)
                } else {
                    push(syntax, text, span.clone(), error);
                    line_start(text, value.start)..line_end(text, value.end)
                }
            }
        };
        done = done.max(block.end + 1);
        blocks.push(block);
    }
    blocks
}

/// Whether the parser ran to the end of the file in search of something.
fn is_unclosed(error: &Error) -> bool {
    let message = error.message();
    ["unclosed array", "unclosed inline table", "invalid multi-line"]
        .iter()
        .any(|start| message.starts_with(start))
}

/// The lines that are lost with the one at `at`, without the last line's end: those after it that are neither empty nor
/// begin something new. With a table's header its whole table goes, so that its keys are not taken for those of the table
/// before.
fn open_block(text: &str, at: usize) -> Range<usize> {
    let start = line_start(text, at);
    let mut end = line_end(text, start);
    let is_header = text.get(start..end).is_some_and(|line| line.trim_start().starts_with('['));
    while let Some(next) = text.get(end + 1..) {
        let line = next.lines().next().unwrap_or_default();
        let stops = if is_header {
            line.trim_start().starts_with('[')
        } else {
            line.trim().is_empty() || line.trim_start().starts_with('#')
        };
        if stops || (!is_header && begins_anew(line)) {
            break;
        }
        end = line_end(text, end + 1);
    }
    start..end
}

/// The text with `?` for bytes that are no UTF-8, which keeps all offsets; each run of them is a problem.
fn decode(bytes: &[u8]) -> (String, Vec<Problem>) {
    let mut text = String::with_capacity(bytes.len());
    let mut problems = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let start = text.len();
        text.extend(chunk.invalid().iter().map(|_| '?'));
        if text.len() == start {
            continue;
        }
        if let Some(Problem { span: Some(last), .. }) = problems.last_mut()
            && last.end == start
        {
            last.end = text.len();
        } else if problems.len() < CONFIG_PROBLEMS_MAX {
            let complaint = Complaint::new("this is not UTF-8").hint("save the file as UTF-8");
            problems.push(Problem::new(Severity::Error, "", Some(start..text.len()), complaint));
        }
    }
    (text, problems)
}

fn push(syntax: &mut Vec<Problem>, text: &str, span: Range<usize>, error: &Error) {
    if syntax.len() > CONFIG_PROBLEMS_MAX {
        return;
    }
    let before = text.get(line_start(text, span.start)..span.start).unwrap_or_default();
    let complaint =
        if error.message().starts_with("invalid literal string") && !before.contains('\'') {
            // The parser takes nothing at all for a string without its quotes.
            Complaint::new("a value is missing").hint(WRITE_VALUE)
        } else {
            let message = error.message();
            let hint = HINTS.iter().find(|(start, _)| message.starts_with(start));
            let complaint = Complaint::new(message);
            hint.map_or_else(|| complaint.clone(), |(_, hint)| complaint.clone().hint(*hint))
        };
    syntax.push(Problem::new(Severity::Error, "", Some(span), complaint));
}

/// Where the parser says the error is; at the end of the file if it does not say.
fn place(error: &Error, text: &str) -> Range<usize> {
    let span = error.span().unwrap_or(text.len()..text.len());
    let start = text.floor_char_boundary(span.start.min(text.len()));
    start..text.ceil_char_boundary(span.end.clamp(start, text.len()))
}

/// Spans of the outermost values that go over several lines, in the file's order.
fn values_over_lines(root: &DeTable<'_>, text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    collect_over_lines(root, text, &mut found);
    found.sort_by_key(|span| span.start);
    found.dedup_by(|inner, outer| inner.end <= outer.end);
    found
}

fn collect_over_lines(table: &DeTable<'_>, text: &str, found: &mut Vec<Range<usize>>) {
    for value in table.values() {
        let span = value.span();
        match value.get_ref() {
            // The span of a table with a header is its header; what is below may have its own.
            DeValue::Table(inner) => {
                if text.as_bytes().get(span.start) == Some(&b'{') && is_over_lines(text, &span) {
                    found.push(span);
                }
                collect_over_lines(inner, text, found);
            }
            DeValue::Array(_) | DeValue::String(_) if is_over_lines(text, &span) => {
                found.push(span);
            }
            _ => {}
        }
    }
}

fn is_over_lines(text: &str, span: &Range<usize>) -> bool {
    text.get(span.clone()).is_some_and(|value| value.contains('\n'))
}

fn line_start(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    memchr::memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |newline| newline + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |newline| at + newline)
}

/// The text with spaces for everything in these ranges but line ends.
fn blank(text: &str, ranges: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in ranges {
        for byte in &mut bytes[range.clone()] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    // Ranges are whole lines, so no character was cut.
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::problem::Problems;
    use super::*;

    /// What is left, and line and message of each problem.
    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let document = Document::new(text.as_bytes());
        let mut problems = Problems::new("x.toml", document.text.as_str());
        document.syntax.iter().for_each(|problem| problems.push(problem.clone()));
        let told = problems
            .list()
            .iter()
            .map(|problem| {
                let (line, column) = problems.position(problem).unwrap();
                format!("{line}:{column} {}", problem.message)
            })
            .collect();
        let mut keys = Vec::new();
        for (name, value) in document.table() {
            keys.push(name.get_ref().to_string());
            if let DeValue::Table(table) = value.get_ref() {
                keys.extend(
                    table.keys().map(|key| format!("{}.{}", name.get_ref(), key.get_ref())),
                );
            }
        }
        (keys, told)
    }

    #[test]
    fn one_bad_line_hides_nothing_else() {
        let (keys, told) = read("[a]\ntype \"file\"\nx = 1\n[b]\ny=10s\nz=1\nwords here\nq=2\n");
        assert_eq!(keys, ["a", "a.x", "b", "b.q", "b.z"]);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[0], "2:6 key with no value, expected `=`");
    }

    #[test]
    fn an_array_that_is_not_closed_costs_its_own_lines_only() {
        let (keys, told) = read("[a]\nx = [\n  \"u\",\n  \"v\"\ny = 2\n[b]\nz = 1\n");
        assert_eq!(keys, ["a", "a.y", "b", "b.z"]);
        assert_eq!(told, ["2:5 unclosed array, expected `]`"]);
    }

    #[test]
    fn strings_and_tables_that_are_not_closed_cost_their_own_lines_only() {
        for text in [
            "[a]\nx = \"abc\ny = 2\n[b]\nz=1\n",
            "[a]\nx = \"\"\"abc\ny = 2\n[b]\nz=1\n",
            "[a]\nx = { b = 1\ny=1\n[b]\nz=1\n",
            "[a]\nx = \"-----BEGIN\neyJabc\neyabc==\n---END\"\ny=1\n[b]\nz=1",
        ] {
            let (keys, told) = read(text);
            assert_eq!(keys, ["a", "a.y", "b", "b.z"], "{text}");
            assert_eq!(told.len(), 1, "{text}: {told:?}");
            assert!(told[0].starts_with("2:"), "{text}: {told:?}");
        }
    }

    #[test]
    fn an_error_inside_a_closed_array_costs_the_array_only() {
        let (keys, told) = read("[a]\nx = [\n  \"u\" \"v\",\n  1,\n]\ny = 2\n");
        assert_eq!(keys, ["a", "a.y"]);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("3:"), "{told:?}");
    }

    #[test]
    fn a_broken_header_costs_its_table_and_nothing_of_it_is_given_to_another() {
        let (keys, told) = read("[a]\nx = 1\n[b\nx = 2\n\ny = 3\n[c]\nz = 1\n");
        assert_eq!(keys, ["a", "a.x", "c", "c.z"]);
        assert_eq!(told.len(), 1, "{told:?}");
    }

    #[test]
    fn bytes_that_are_no_text_are_placed_and_the_rest_is_read() {
        let document = Document::new(b"[a]\nx = \"\xff\xfe\"\ny = 1\n");
        assert_eq!(document.syntax.len(), 1);
        assert_eq!(document.syntax[0].span, Some(9..11));
        assert_eq!(document.table().len(), 1);
    }
}
