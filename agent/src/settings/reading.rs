//! One pass over a config file: what it collects, and what the reading functions may ask.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::listing::{Entry, Origin};
use super::problem::{Complaint, Problem, Problems, Severity};
use super::table::Table;

/// Where a key and its value stand, in bytes of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The key's name; for an element of a list the element.
    pub key: Range<usize>,
    /// The value.
    pub value: Range<usize>,
}

/// One pass over a config file.
pub struct Reading<'d> {
    root: Option<&'d DeTable<'d>>,
    /// Where lines end.
    newlines: Vec<usize>,
    base: PathBuf,
    environment: &'d dyn Fn(&str) -> Option<String>,
    /// Lines were left out because they are no TOML: what is missing may have stood there.
    incomplete: bool,
    describing: bool,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    problems: Problems,
    entries: Vec<Entry>,
    places: BTreeMap<String, Place>,
}

impl<'d> Reading<'d> {
    /// Begins to read `root`, the table of the text of `problems`, which may hold syntax errors. Relative paths are below `base`.
    pub fn new(
        root: &'d DeTable<'d>,
        base: &Path,
        environment: &'d dyn Fn(&str) -> Option<String>,
        problems: Problems,
    ) -> Self {
        let incomplete = problems.has_errors();
        let newlines = memchr::memchr_iter(b'\n', problems.text.as_bytes()).collect();
        let state = State { problems, entries: Vec::new(), places: BTreeMap::new() };
        Self {
            root: Some(root),
            newlines,
            base: base.to_owned(),
            environment,
            incomplete,
            describing: false,
            state: RefCell::new(state),
        }
    }

    /// Begins to read nothing, to learn what could be read.
    #[must_use]
    pub fn describing() -> Self {
        let problems = Problems::new("", "");
        let state = State { problems, entries: Vec::new(), places: BTreeMap::new() };
        Self {
            root: None,
            newlines: Vec::new(),
            base: PathBuf::new(),
            environment: &|_| None,
            incomplete: true,
            describing: true,
            state: RefCell::new(state),
        }
    }

    /// The table of the whole file.
    #[must_use]
    pub fn root(&self) -> Table<'_> {
        Table::new(self, String::new(), String::new(), self.root)
    }

    /// Whether nothing is read and everything is described.
    #[must_use]
    pub fn is_describing(&self) -> bool {
        self.describing
    }

    /// A path of the file, below the folder of the file unless it is absolute.
    #[must_use]
    pub fn resolve(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    /// The folder of the file.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// A variable of the environment.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }

    /// Reports an error at a place.
    pub fn error(&self, key: impl Into<String>, span: Option<Range<usize>>, complaint: Complaint) {
        self.push(Problem::new(Severity::Error, key, span, complaint));
    }

    /// Reports something that hardly means what it says.
    pub fn warning(
        &self,
        key: impl Into<String>,
        span: Option<Range<usize>>,
        complaint: Complaint,
    ) {
        self.push(Problem::new(Severity::Warning, key, span, complaint));
    }

    /// Reports that something is not there, unless it may have stood in a line that is no TOML.
    pub fn missing(
        &self,
        key: impl Into<String>,
        span: Option<Range<usize>>,
        complaint: Complaint,
    ) {
        if !self.incomplete {
            self.error(key, span, complaint);
        }
    }

    /// Where a dotted key stands, if it is in the file; elements of lists are `KEY[0]`.
    #[must_use]
    pub fn place(&self, path: &str) -> Option<Place> {
        self.state.borrow().places.get(path).cloned()
    }

    /// Never shows this part of the file.
    pub(super) fn hide(&self, span: Range<usize>) {
        self.state.borrow_mut().problems.secrets.push(span);
    }

    pub(super) fn found(&self, path: String, place: Place) {
        self.state.borrow_mut().places.insert(path, place);
    }

    pub(super) fn list(&self, entry: Entry) {
        self.state.borrow_mut().entries.push(entry);
    }

    pub(super) fn origin(&self, span: Option<&Range<usize>>, is_set: bool) -> Origin {
        match span {
            Some(span) => {
                let state = self.state.borrow();
                let part = state.problems.part(span.start);
                let (name, start) =
                    part.map_or_else(Default::default, |part| (Arc::clone(&part.name), part.start));
                let lines_before =
                    |at: usize| self.newlines.partition_point(|newline| *newline < at);
                let line = lines_before(span.start) - lines_before(start) + 1;
                Origin::File { name, line, at: span.start }
            }
            None if is_set => Origin::Default,
            None => Origin::Unset,
        }
    }

    fn push(&self, problem: Problem) {
        self.state.borrow_mut().problems.push(problem);
    }

    /// Whether there is an error so far.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.state.borrow().problems.has_errors()
    }

    /// All that was found, the problems in the order of the file.
    #[must_use]
    pub fn finish(self) -> (Problems, Vec<Entry>) {
        let State { mut problems, entries, .. } = self.state.into_inner();
        problems.sort();
        (problems, entries)
    }
}

impl fmt::Debug for Reading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("state", &self.state).finish_non_exhaustive()
    }
}
