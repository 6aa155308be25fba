//! The `[log]` table.

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
