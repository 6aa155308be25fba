//! What is wrong in a config file, and where.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::mask;
use crate::limits::CONFIG_PROBLEMS_MAX;

/// How bad a problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but hardly means what it says.
    Warning,
}

impl Severity {
    /// The word in messages.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// Why a value is refused, without its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// What is wrong: lower case, no full stop.
    pub message: String,
    /// What to do about it, if that can be known.
    pub hint: Option<String>,
}

impl Complaint {
    /// A complaint without a hint.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The dotted key it is about; empty when it is about the file.
    pub key: String,
    /// Where it stands, in bytes of the file; `None` when it is about something that is not there.
    pub span: Option<Range<usize>>,
    /// What is wrong.
    pub message: String,
    /// What to do about it, if that can be known.
    pub hint: Option<String>,
}

impl Problem {
    /// Makes a problem of a complaint. User information in URLs and control characters do not get into it.
    pub fn new(
        severity: Severity,
        key: impl Into<String>,
        span: Option<Range<usize>>,
        complaint: Complaint,
    ) -> Self {
        let clean = |text: String| printable(&mask::urls(&text));
        Self {
            severity,
            key: printable(&key.into()),
            span,
            message: clean(complaint.message),
            hint: complaint.hint.map(clean),
        }
    }
}

/// The text with control characters escaped: what is printed on a terminal must not steer it.
fn printable(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

/// A file, and where it begins in the text of all files of a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its name, as it is shown.
    pub name: Arc<str>,
    /// The offset of its first byte.
    pub start: usize,
}

/// All problems of a config, with what is needed to show them. Its files stand behind one another in one text.
#[derive(Clone, PartialEq, Eq)]
pub struct Problems {
    /// The first is the one that was named.
    pub(super) parts: Vec<Part>,
    pub(super) text: Arc<str>,
    /// Spans whose text is a secret, found by what was expected there.
    pub(super) secrets: Vec<Range<usize>>,
    list: Vec<Problem>,
    /// Problems beyond the bound.
    more: usize,
}

impl Problems {
    /// None yet, in a file of this name with this text.
    pub fn new(file: impl Into<Arc<str>>, text: impl Into<Arc<str>>) -> Self {
        Self::in_files(vec![Part { name: file.into(), start: 0 }], text)
    }

    /// None yet, in these files, which begin in the text where they say.
    pub fn in_files(parts: Vec<Part>, text: impl Into<Arc<str>>) -> Self {
        Self { parts, text: text.into(), secrets: Vec::new(), list: Vec::new(), more: 0 }
    }

    /// Adds one. Beyond [`CONFIG_PROBLEMS_MAX`] they are only counted.
    pub fn push(&mut self, problem: Problem) {
        if self.list.len() < CONFIG_PROBLEMS_MAX {
            if !self.list.contains(&problem) {
                self.list.push(problem);
            }
        } else {
            self.more += 1;
        }
    }

    /// Brings them into the order of the file; what has no place comes last.
    pub fn sort(&mut self) {
        self.list.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |s| s.start));
    }

    /// The file that a problem is in, or the one that was named.
    #[must_use]
    pub fn file(&self, problem: &Problem) -> &str {
        let part = problem.span.as_ref().map_or(self.parts.first(), |span| self.part(span.start));
        part.map_or("", |part| &part.name)
    }

    /// The file that holds this byte.
    pub(super) fn part(&self, offset: usize) -> Option<&Part> {
        let behind = self.parts.partition_point(|part| part.start <= offset);
        self.parts.get(behind.saturating_sub(1))
    }

    /// Where a byte stands, for people: `waystation.toml:12`.
    #[must_use]
    pub fn shown_place(&self, offset: usize) -> String {
        let name = self.part(offset).map_or("", |part| &part.name);
        format!("{name}:{}", self.line_at(offset).0)
    }

    /// The bytes of the line that holds this one, without the space around it.
    #[must_use]
    pub fn line(&self, offset: usize) -> Range<usize> {
        let (_, range) = self.line_at(offset);
        let line = self.text.get(range.clone()).unwrap_or_default();
        let begin = range.start + (line.len() - line.trim_start().len());
        begin..begin + line.trim().len()
    }

    /// The problems.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// How many more there were than [`list`](Self::list) holds.
    #[must_use]
    pub fn more(&self) -> usize {
        self.more
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the file cannot be used.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.more > 0 || self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Line and column of a problem in its file, both from 1, the column in characters.
    #[must_use]
    pub fn position(&self, problem: &Problem) -> Option<(usize, usize)> {
        let start = problem.span.as_ref()?.start;
        let (line, range) = self.line_at(start);
        let before = self.text.get(range.start..start).unwrap_or_default();
        Some((line, before.trim_start_matches('\u{feff}').chars().count() + 1))
    }

    /// The number in its file (from 1) and the range, without its end, of the line that holds this byte.
    pub(super) fn line_at(&self, offset: usize) -> (usize, Range<usize>) {
        let bytes = self.text.as_bytes();
        let offset = offset.min(bytes.len());
        let start = memchr::memrchr(b'\n', &bytes[..offset]).map_or(0, |at| at + 1);
        let end = memchr::memchr(b'\n', &bytes[offset..]).map_or(bytes.len(), |at| offset + at);
        let file = self.part(offset).map_or(0, |part| part.start).min(start);
        let line = memchr::memchr_iter(b'\n', &bytes[file..start]).count() + 1;
        let end = if end > start && bytes[end - 1] == b'\r' { end - 1 } else { end };
        (line, start..end)
    }
}

/// Prints the problems, not the file.
impl fmt::Debug for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Problems")
            .field("files", &self.parts)
            .field("list", &self.list)
            .field("more", &self.more)
            .finish_non_exhaustive()
    }
}

/// Prints all problems with their places, without colour.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}
