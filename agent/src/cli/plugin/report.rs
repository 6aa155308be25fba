//! What a run of cases, checks or scenarios came to, for people and for machines.

use std::time::Duration;

use serde_json::json;

use crate::cli::status::{ALWAYS, Column, WHEN_NOT_ZERO, printable, table};
use crate::clock::{Clock as _, SystemClock};

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Passed,
    /// Worth knowing; fails nothing.
    Warning,
    Failed,
}

/// How it ended, and why.
#[derive(Debug)]
pub(super) struct Verdict {
    ending: Ending,
    /// Of what did not pass.
    lines: Vec<String>,
    /// A figure for the table.
    note: String,
}

impl Verdict {
    pub(super) fn passed() -> Self {
        Self { ending: Ending::Passed, lines: Vec::new(), note: String::new() }
    }

    pub(super) fn failed(lines: impl Into<Vec<String>>) -> Self {
        Self { ending: Ending::Failed, lines: lines.into(), note: String::new() }
    }

    pub(super) fn warning(lines: impl Into<Vec<String>>) -> Self {
        Self { ending: Ending::Warning, ..Self::failed(lines) }
    }

    /// A failure as a warning, with the reason why it is none.
    pub(super) fn softened(mut self, reason: &str) -> Self {
        if self.ending == Ending::Failed {
            self.ending = Ending::Warning;
            self.lines.push(reason.to_owned());
        }
        self
    }

    pub(super) fn noted(self, note: String) -> Self {
        Self { note, ..self }
    }

    pub(super) fn is_failure(&self) -> bool {
        self.ending == Ending::Failed
    }
}

/// A case, check or scenario that was run.
#[derive(Debug)]
pub(super) struct Entry {
    /// "case", "check" or "scenario".
    pub(super) kind: &'static str,
    pub(super) name: String,
    /// Of the file of cases.
    pub(super) line: Option<usize>,
    pub(super) elapsed: Duration,
    pub(super) verdict: Verdict,
}

/// Runs a case, check or scenario, and takes the time.
pub(super) fn timed(
    kind: &'static str,
    name: String,
    line: Option<usize>,
    run: impl FnOnce() -> Verdict,
) -> Entry {
    let begun = SystemClock.monotonic();
    let verdict = run();
    Entry { kind, name, line, elapsed: SystemClock.monotonic().since(begun), verdict }
}

/// What did not pass, a table of everything, and the sum.
pub(super) fn page(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries.iter().filter(|entry| entry.verdict.ending != Ending::Passed) {
        let line = entry.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        text.push_str(&format!("{}: {}{line}\n", word(entry.verdict.ending), entry.name));
        entry.verdict.lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
        text.push('\n');
    }
    let columns = [
        Column("result", ALWAYS),
        Column("what", ALWAYS),
        Column("ms", ALWAYS),
        Column("note", WHEN_NOT_ZERO),
    ];
    let rows = entries.iter().map(|entry| {
        vec![
            word(entry.verdict.ending).to_owned(),
            format!("{} {}", entry.kind, entry.name.replace('\n', " ")),
            entry.elapsed.as_millis().to_string(),
            entry.verdict.note.clone(),
        ]
    });
    text.push_str(&table(&columns, rows.collect()));
    let count = |ending| entries.iter().filter(|entry| entry.verdict.ending == ending).count();
    let warnings = match count(Ending::Warning) {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        more => format!(", {more} warnings"),
    };
    let (passed, failed) = (count(Ending::Passed), count(Ending::Failed));
    text.push_str(&format!("\n{passed} passed, {failed} failed{warnings}\n"));
    printable(&text)
}

/// One object a line.
pub(super) fn json_lines(entries: &[Entry]) -> String {
    let line = |entry: &Entry| {
        let object = json!({
            "kind": entry.kind,
            "name": entry.name,
            "line": entry.line,
            "result": word(entry.verdict.ending).to_ascii_lowercase(),
            "elapsed_ms": u64::try_from(entry.elapsed.as_millis()).unwrap_or(u64::MAX),
            "details": entry.verdict.lines,
        });
        format!("{object}\n")
    };
    entries.iter().map(line).collect()
}

fn word(ending: Ending) -> &'static str {
    match ending {
        Ending::Passed => "passed",
        Ending::Warning => "warning",
        Ending::Failed => "FAILED",
    }
}
