//! A `[sinks.NAME]` table with `type = "file"`.

use crate::settings::{Complaint, Table, template};
use crate::sinks::config::{BatchConfig, SinkKind};
use std::path::PathBuf;

use crate::sinks::config::LineFormat;

/// Settings of a file sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSinkConfig {
    /// `root`: the folder that all files lie in, already resolved against the folder of the config file.
    pub root: PathBuf,
    /// `path`: the name template below `root`, with `{agent}`, `{source}`, `{pipeline}`, `{sink}`, `{epoch}`, `{batch}`,
    /// `{first_seq}`, `{last_seq}`, `{date}` and `{hour}`; `{subject.N}` (tokens are counted from 1) and `{header.NAME}` give
    /// each value a file of its own, up to 100 a batch; default
    /// `"{source}/{date}/{source}-{epoch}-{batch}-{first_seq}-{last_seq}.ndjson"`, with `.zst` when compressed.
    pub path: String,
    /// `format`, default `"lines"`.
    pub format: LineFormat,
    /// `compression.level` with `compression.codec = "zstd"`, 1 to 19, default 3; without the table files are plain.
    pub zstd_level: Option<i32>,
    /// `root_must_exist`: a missing root is an absent mount, not a folder to make; default false.
    pub root_must_exist: bool,
}

/// What a name template may hold.
pub const PLACEHOLDERS: &[&str] = &[
    "agent",
    "source",
    "pipeline",
    "sink",
    "epoch",
    "batch",
    "first_seq",
    "last_seq",
    "date",
    "hour",
];

impl FileSinkConfig {
    /// Reads what stands beside `type = "file"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<(SinkKind, BatchConfig)> {
        let root = table.file_path("root", "The folder that all files lie in.").required();
        let format = LineFormat::read(table);
        let zstd_level = table
            .optional_table("compression", "How files are compressed; without it they are plain.")
            .map(|compression| {
                let _zstd =
                    compression.choice("codec", "The only one.", &[("zstd", ())]).required();
                compression
                    .integer::<i32>("level", "Higher is smaller and slower.")
                    .within(1..=19)
                    .or(3)
            });
        let suffix = if zstd_level.is_some() { ".zst" } else { "" };
        let path = table
            .text("path", "The name template of files below the root.")
            .check(|text| check_path(text))
            .or(format!("{{source}}/{{date}}/{{source}}-{{epoch}}-{{batch}}-{{first_seq}}-{{last_seq}}.ndjson{suffix}"));
        let root_must_exist = table
            .boolean("root_must_exist", "A missing root is an absent mount, not a folder to make.")
            .or(false);
        let batch = BatchConfig::read(&table.table("batch"), BatchConfig::FILE);
        let kind = SinkKind::File(Self { root: root?, path, format, zstd_level, root_must_exist });
        Some((kind, batch))
    }
}

/// Names must be unique for each batch of a lane and stay below the root.
fn check_path(text: &str) -> Result<(), Complaint> {
    if let Some(error) = super::partition_by(text).err() {
        let hint = "write {subject.1} for the first token, or {header.NAME}";
        return Err(Complaint::new(error.to_string()).hint(hint));
    }
    let fields = template::parse(text, &super::known_fields(text), &[])?.fields;
    let has = |field: &str| fields.contains(&field);
    if !has("epoch") || !(has("batch") || has("first_seq")) {
        let message = "`path` must hold {epoch}, and {batch} or {first_seq}";
        return Err(Complaint::new(message).hint("without them two batches would get one name"));
    }
    if text.starts_with('/') {
        let message = "`path` must not begin with /";
        return Err(Complaint::new(message).hint("it is a name below `root`"));
    }
    if text.chars().any(char::is_control) {
        return Err(Complaint::new("`path` must not hold control characters"));
    }
    for component in text.split('/') {
        if matches!(component, "" | "." | "..") {
            let message = format!("`path` must not hold \"{component}\" between slashes");
            return Err(Complaint::new(message).hint("files never leave `root`"));
        }
    }
    let name = text.rsplit('/').next().unwrap_or(text);
    if name.starts_with('.') && name.ends_with(".part") {
        let message = "file names must not begin with \".\" and end with \".part\"";
        return Err(Complaint::new(message).hint("files that are not complete are named so"));
    }
    // What the sink itself will say, so that no batch is ever without a name.
    super::parse_path_template(text).map(drop).map_err(Complaint::new)
}
