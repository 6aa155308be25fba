//! Every key with its value and where that came from, as the reading functions named it.

use std::sync::Arc;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file, on this line.
    File {
        /// Its name, as it is shown.
        name: Arc<str>,
        /// From 1.
        line: usize,
        /// The offset of the key in the text of all files.
        at: usize,
    },
    /// Not in the file: the default.
    Default,
    /// Not in the file, and there is no default.
    Unset,
}

/// What a value may look like, for machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// A text.
    Text,
    /// One of these texts.
    Words(Vec<String>),
    /// One of these texts, or a table with a path under this key.
    WordsOrPath(Vec<String>, String),
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list of texts, none twice.
    Texts,
    /// A list of whole numbers.
    Numbers,
    /// A reference to a secret.
    Secret,
    /// A list of such references.
    Secrets,
    /// A table of texts and secrets under names of the user's.
    Values,
    /// Any table.
    Table,
}

/// One key.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// The table that it is shown under, such as `sinks.cloud`.
    pub section: String,
    /// The key inside that, dotted for inline tables, such as `batch.linger`.
    pub key: String,
    /// The value, with everything secret replaced; `None` when it is not set.
    pub value: Option<toml::Value>,
    /// Where it came from.
    pub origin: Origin,
    /// What it is: "a duration such as …".
    pub expected: String,
    /// The same for machines.
    pub shape: Shape,
    /// Whether its table must have it.
    pub is_required: bool,
    /// The `type` of its table that it belongs to, where keys are described; none: every type has it.
    pub kind: Option<&'static str>,
    /// One line of reference.
    pub doc: &'static str,
    /// The smallest and the largest value, if it is bounded.
    pub bounds: Option<(String, String)>,
}

impl Entry {
    /// The whole dotted key.
    #[must_use]
    pub fn path(&self) -> String {
        join(&self.section, &self.key)
    }
}

/// Joins two dotted keys, either of which may be empty.
pub(super) fn join(first: &str, second: &str) -> String {
    match (first.is_empty(), second.is_empty()) {
        (true, _) => second.to_owned(),
        (_, true) => first.to_owned(),
        _ => format!("{first}.{second}"),
    }
}
