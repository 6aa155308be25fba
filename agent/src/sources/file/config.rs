//! A `[sources.NAME]` table with `type = "file"`.

use std::path::{Path, PathBuf};

use crate::settings::{Complaint, Table, WordOrPath};
use crate::sources::config::{LineLimits, SourceKind, StartAt, read_start_at, read_subject};

/// What a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// A line; or several, with `multiline`.
    #[default]
    Lines,
    /// A JSON document.
    Json,
    /// A file.
    Whole,
}

/// What becomes of a file whose record is durable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AfterRead {
    /// It stays.
    #[default]
    Keep,
    /// It is deleted.
    Delete,
    /// It is moved to this folder.
    Move(PathBuf),
}

/// Settings of a file source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSourceConfig {
    /// `paths`: glob patterns, already resolved against the folder of the config file; at least one.
    pub paths: Vec<String>,
    /// `start_at`, default `"beginning"`.
    pub start_at: StartAt,
    /// `framing`: `"lines"` (default), `"json"` or `"whole"`.
    pub framing: Framing,
    /// `multiline.start` (lines): a regular expression that the first line of each record matches; default none.
    pub multiline: Option<String>,
    /// `after_read` (whole): `"keep"` (default), `"delete"` or `{ move = DIR }`.
    pub after_read: AfterRead,
    /// `subject`: a template with `{file_stem}`, `{file_name}` and `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

impl FileSourceConfig {
    /// Reads what stands beside `type = "file"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let reading = table.reading();
        let paths = table
            .list_of(
                "paths",
                "Glob patterns of the files to read.",
                "a list of paths",
                move |text| resolve(reading.base(), text),
            )
            .at_least_one()
            .required();
        let start_at =
            read_start_at(table, "Where a file that was never seen before is read from.");
        let words = [("lines", Framing::Lines), ("json", Framing::Json), ("whole", Framing::Whole)];
        let framing = table.choice("framing", "What a record is.", &words).or(Framing::default());
        let multiline = read_multiline(table);
        let after_read = read_after_read(table);
        let of_framing =
            [("multiline", Framing::Lines, "lines"), ("after_read", Framing::Whole, "whole")];
        for (key, wanted, word) in of_framing {
            let path = table.path(key);
            let is_set = match key {
                "multiline" => multiline.is_some(),
                _ => after_read != AfterRead::Keep,
            };
            if is_set && framing != wanted && !reading.is_describing() {
                let complaint = Complaint::new(format!("`{key}` is for framing = \"{word}\""));
                let place = reading.place(&path).map(|place| place.key);
                reading.error(path, place, complaint);
            }
        }
        let subject = read_subject(table, &["file_stem", "file_name", "source"], "{source}");
        let limits = LineLimits::read(table);
        let paths = paths?;
        Some(SourceKind::File(Self {
            paths,
            start_at,
            framing,
            multiline,
            after_read,
            subject,
            limits,
        }))
    }
}

fn read_multiline(table: &Table<'_>) -> Option<String> {
    let doc = "Records of several lines; without it each line is one.";
    let table = table.optional_table("multiline", doc)?;
    let doc = "A regular expression that the first line of a record matches.";
    let start = table.text("start", doc).check(|text| match regex::bytes::Regex::new(text) {
        Ok(_) => Ok(()),
        // The last line says what; those before it show where, in the whole expression.
        Err(error) => {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error: ");
            Err(Complaint::new(format!("this is no regular expression: {reason}")))
        }
    });
    start.required()
}

fn read_after_read(table: &Table<'_>) -> AfterRead {
    let doc = "What becomes of a file that was read as a whole, once its record is durable.";
    let read = table.word_or_path("after_read", doc, &["keep", "delete"], "move");
    match read.or(WordOrPath::Word("keep")) {
        WordOrPath::Word("delete") => AfterRead::Delete,
        WordOrPath::Word(_) => AfterRead::Keep,
        WordOrPath::Path(folder) => AfterRead::Move(folder),
    }
}

/// The pattern below the folder of the config file, whose own name is no pattern.
fn resolve(base: &Path, pattern: &str) -> Result<String, Complaint> {
    if pattern.is_empty() || pattern.contains('\0') {
        return Err(Complaint::new("a path must not be empty or hold a NUL"));
    }
    if let Err(error) = glob::Pattern::new(pattern) {
        let message = format!("\"{pattern}\" is no pattern: {}", error.msg);
        return Err(Complaint::new(message).hint("write [[] for a bracket that is meant as such"));
    }
    if Path::new(pattern).is_absolute() {
        return Ok(pattern.to_owned());
    }
    let Some(base) = base.to_str() else {
        let message = format!("the folder {} has no UTF-8 name", base.display());
        return Err(Complaint::new(message).hint("use an absolute path"));
    };
    let base = glob::Pattern::escape(base);
    Ok(format!("{}/{pattern}", base.trim_end_matches('/')))
}
