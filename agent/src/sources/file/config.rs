//! A `[sources.NAME]` table with `type = "file"`.

use crate::settings::{Complaint, Table};
use crate::sources::config::{SourceKind, read_subject};
use std::path::Path;

use crate::sources::config::LineLimits;

/// Where a file that was never seen before is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// Its first byte.
    #[default]
    Beginning,
    /// Its end at that moment.
    End,
}

/// Settings of a file source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSourceConfig {
    /// `paths`: glob patterns, already resolved against the folder of the config file; at least one.
    pub paths: Vec<String>,
    /// `start_at`, default `"beginning"`.
    pub start_at: StartAt,
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
        let words = [("beginning", StartAt::Beginning), ("end", StartAt::End)];
        let start_at = table
            .choice("start_at", "Where a file that was never seen before is read from.", &words)
            .or(StartAt::default());
        let subject = read_subject(table, &["file_stem", "file_name", "source"], "{source}");
        let limits = LineLimits::read(table);
        Some(SourceKind::File(Self { paths: paths?, start_at, subject, limits }))
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
