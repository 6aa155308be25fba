//! A `[sources.NAME]` table with `type = "journald"`.

use std::path::PathBuf;

use crate::limits::{JOURNALD_UNIT_BYTES_MAX, JOURNALD_UNITS_MAX};
use crate::settings::{Complaint, Table};
use crate::sources::config::{LineLimits, SourceKind, StartAt, read_start_at, read_subject};

/// The fields of the template `subject`, in the order in which an entry renders them.
pub(super) const SUBJECT_FIELDS: &[&str] = &["source", "unit"];

/// Settings of a source that reads what journald keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournaldSourceConfig {
    /// `units`: whose entries are taken, up to 64; default everybody's.
    pub units: Vec<String>,
    /// `directory`: where the files of journald are; default those of this host.
    pub directory: Option<PathBuf>,
    /// `start_at`: `"beginning"` (default) or `"end"`, when the source runs for the first time.
    pub start_at: StartAt,
    /// `subject`: a template with `{source}` and `{unit}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

impl JournaldSourceConfig {
    /// Reads what stands beside `type = "journald"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let doc = "Units whose entries are taken; default: everything.";
        let units = table
            .list_of("units", doc, "a list of units such as \"nginx.service\"", parse_unit)
            .at_least_one()
            .check(|list: &Vec<String>| {
                if list.len() > JOURNALD_UNITS_MAX {
                    let message = format!("`units` holds more than {JOURNALD_UNITS_MAX}");
                    return Err(Complaint::new(message).hint("make it several sources"));
                }
                Ok(())
            })
            .or(Vec::new());
        let doc = "Folder of the files of journald; default: those of this host.";
        let directory = table.file_path("directory", doc).optional();
        let doc = "Where the source begins when it runs for the first time.";
        let start_at = read_start_at(table, doc);
        let subject = read_subject(table, SUBJECT_FIELDS, "{source}");
        let limits = LineLimits::read(table);
        Some(SourceKind::Journald(Box::new(Self { units, directory, start_at, subject, limits })))
    }
}

fn parse_unit(text: &str) -> Result<String, Complaint> {
    if text.contains(['*', '?', '[']) {
        let message =
            format!("\"{text}\" is a pattern, and of those units that come later are missed");
        return Err(Complaint::new(message)
            .hint("name each unit, or take all and choose by subjects = […]"));
    }
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
    let is_name = !text.is_empty()
        && text.len() <= JOURNALD_UNIT_BYTES_MAX
        && text.bytes().all(is_of_name)
        && !text.starts_with('-');
    if is_name {
        return Ok(text.to_owned());
    }
    let complaint = Complaint::new(format!("\"{text}\" is no name of a unit"));
    Err(complaint.hint("write it as systemctl shows it, such as \"nginx.service\""))
}
