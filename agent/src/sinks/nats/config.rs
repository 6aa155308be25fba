//! A `[sinks.NAME]` table with `type = "nats"`.

use crate::secret::Secret;

/// Settings of a JetStream sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsSinkConfig {
    /// `servers`: URLs, `nats://` or `tls://`; at least one.
    pub servers: Vec<String>,
    /// `credentials`: a `.creds` file's content; default none.
    pub credentials: Option<Secret>,
    /// `stream`: the stream that must have taken the messages; default any.
    pub stream: Option<String>,
    /// `subject`: a template with `{agent}`, `{source}`, `{pipeline}`, `{sink}` and `{subject}`; default `"{subject}"`.
    pub subject: String,
    /// `publish_window`: publishes without an answer yet; default 64, 1 to 4096.
    pub publish_window: u16,
}
