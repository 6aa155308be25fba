//! The `[log]` table.

use crate::settings::Table;

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Someone must act.
    Error,
    /// Degraded, the agent carries on.
    Warn,
    /// Life-cycle.
    #[default]
    Info,
    /// Decisions.
    Debug,
    /// Everything, down to single records' identities.
    Trace,
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Settings of the log, which goes to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogConfig {
    /// `level`, default `"info"`.
    pub level: Level,
    /// `format`, default `"auto"`.
    pub format: LogFormat,
}

impl LogConfig {
    /// Reads `[log]`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        let levels = [
            ("error", Level::Error),
            ("warn", Level::Warn),
            ("info", Level::Info),
            ("debug", Level::Debug),
            ("trace", Level::Trace),
        ];
        let formats =
            [("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)];
        Self {
            level: table.choice("level", "How much is logged.", &levels).or(Level::default()),
            format: table
                .choice(
                    "format",
                    "How a line looks; \"auto\" is text on a terminal and JSON otherwise.",
                    &formats,
                )
                .or(LogFormat::default()),
        }
    }
}
