//! From bytes to a table with places, as far as that is possible.
//!
//! The parser recovers inside a line but gives up the rest of the file at a line such as `type "file"`. So lines that are no
//! TOML are blanked out, keeping every offset, and what remains is parsed again: one mistake never hides the others.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use super::mask::begins_anew;
use super::problem::{Complaint, Problem, Problems, Severity};
use crate::limits::CONFIG_PARSES_MAX;

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
            let (root, errors) = DeTable::parse_recoverable(&sound);
            let mut blanked: Vec<Range<usize>> = Vec::new();
            let mut values = Vec::new();
            spans_over_lines(root.get_ref(), &sound, &mut values);
            let mut errors: Vec<_> = errors.iter().map(|e| (place(e, &sound), e)).collect();
            errors.sort_by_key(|(span, _)| span.start);
            for (span, error) in errors {
                if error.message() == "duplicate key" {
                    push(&mut syntax, span, error);
                    continue;
                }
                if blanked.iter().any(|block| block.start <= span.start && span.start <= block.end)
                {
                    continue;
                }
                let block = block(&sound, &values, span.start, error);
                let unclosed = span.start > block.end || span.start >= sound.trim_end().len();
                let first = line_end(&sound, block.start);
                let shown = if unclosed { text_of_line(&sound, block.start..first) } else { span };
                push(&mut syntax, shown, error);
                blanked.push(block);
            }
            if blanked.is_empty() {
                break;
            }
            sound = blank(&sound, &blanked);
        }
        syntax.dedup_by(|a, b| a.span == b.span && a.message == b.message);
        Self { text, sound, syntax }
    }

    /// What can be read.
    #[must_use]
    pub fn table(&self) -> DeTable<'_> {
        DeTable::parse_recoverable(&self.sound).0.into_inner()
    }

    /// An empty list of problems for this text, or rather one with the syntax errors in it.
    #[must_use]
    pub fn problems(&self, file: &str) -> Problems {
        let mut problems = Problems::new(file, self.text.as_str());
        for problem in &self.syntax {
            problems.push(problem.clone());
        }
        problems
    }
}

/// The text with `?` for bytes that are no UTF-8, which keeps all offsets; each run of them is a problem.
fn decode(bytes: &[u8]) -> (String, Vec<Problem>) {
    let mut text = String::with_capacity(bytes.len());
    let mut problems = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let start = text.len();
        text.extend(chunk.invalid().iter().map(|_| '?'));
        if text.len() > start && problems.len() < crate::limits::CONFIG_PROBLEMS_MAX {
            let complaint = Complaint::new("this is not UTF-8").hint("save the file as UTF-8");
            problems.push(Problem::new(Severity::Error, "", Some(start..text.len()), complaint));
        }
    }
    (text, problems)
}

fn push(syntax: &mut Vec<Problem>, span: Range<usize>, error: &Error) {
    let message = error.message();
    let mut complaint = Complaint::new(message);
    let hints = [
        ("string values must be quoted", "write text in quotes: KEY = \"value\""),
        ("key with no value", "write KEY = VALUE"),
        ("invalid basic string", "close the string with \" on the same line"),
        ("invalid literal string", "close the string with ' on the same line"),
        ("invalid multi-line", "close the string with the three quotes that opened it"),
        ("unclosed array", "close the list with ]"),
        ("unclosed inline table", "close the table with }"),
        ("unclosed table", "close the table's name with ]"),
        ("duplicate key", "keep one of the two: each key and each table stands once"),
    ];
    if let Some((_, hint)) = hints.iter().find(|(start, _)| message.starts_with(start)) {
        complaint = complaint.hint(*hint);
    }
    syntax.push(Problem::new(Severity::Error, "", Some(span), complaint));
}

/// Where the parser says the error is; at the end of the file if it does not say.
fn place(error: &Error, text: &str) -> Range<usize> {
    let span = error.span().unwrap_or(text.len()..text.len());
    let start = text.floor_char_boundary(span.start.min(text.len()));
    start..text.ceil_char_boundary(span.end.clamp(start, text.len()))
}

/// Spans of the values that go over several lines, outermost first.
fn spans_over_lines(table: &DeTable<'_>, text: &str, found: &mut Vec<Range<usize>>) {
    for (_, value) in table {
        let span = value.span();
        match value.get_ref() {
            // The span of a table with a header is its header; what is below may have its own.
            DeValue::Table(inner) => {
                if text.as_bytes().get(span.start) == Some(&b'{') && is_over_lines(text, &span) {
                    found.push(span);
                }
                spans_over_lines(inner, text, found);
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

/// The lines that cannot be read because of an error at `at`, without the last line's end.
///
/// 1. From the first line of the value that the error is in.
/// 2. To the last line of that value, if it is closed.
/// 3. Else on over the lines that are neither empty nor begin something new.
fn block(text: &str, values: &[Range<usize>], at: usize, error: &Error) -> Range<usize> {
    let value = values.iter().find(|value| value.start <= at && at <= value.end);
    let start = line_start(text, value.map_or(at, |value| value.start));
    let closed = value.filter(|value| {
        !error.message().starts_with("unclosed")
            && text.get(..value.end).is_some_and(|text| text.ends_with([']', '}', '"', '\'']))
            && !text.get((*value).clone()).is_some_and(|value| {
                value.lines().skip(1).any(begins_anew) && !value.starts_with(['"', '\''])
            })
    });
    if let Some(value) = closed {
        return start..line_end(text, value.end);
    }
    let mut end = line_end(text, start);
    while let Some(next) = text.get(end + 1..) {
        let line = next.lines().next().unwrap_or_default();
        let stops = line.trim().is_empty() || line.trim_start().starts_with('#');
        if stops || begins_anew(line) {
            break;
        }
        end = line_end(text, end + 1);
    }
    start..end
}

fn line_start(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    memchr::memrchr(b'\n', &text.as_bytes()[..at]).map_or(0, |newline| newline + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len(), |newline| at + newline)
}

/// The part of a line without the white space around.
fn text_of_line(text: &str, line: Range<usize>) -> Range<usize> {
    let whole = text.get(line.clone()).unwrap_or_default();
    let lead = whole.len() - whole.trim_start().len();
    line.start + lead..line.start + lead + whole.trim().len()
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
    use super::*;

    /// What is left, and line and message of each problem.
    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let document = Document::new(text.as_bytes());
        let problems = document.problems("x.toml");
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
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].starts_with("2:1 "), "{told:?}");
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
    fn bytes_that_are_no_text_are_placed_and_the_rest_is_read() {
        let document = Document::new(b"[a]\nx = \"\xff\xfe\"\ny = 1\n");
        assert_eq!(document.syntax.len(), 2);
        assert_eq!(document.syntax[0].span, Some(9..10));
        assert_eq!(document.table().len(), 1);
    }
}
