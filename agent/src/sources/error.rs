//! Why a source ends without having been asked to.

#[cfg(feature = "journald")]
use super::journald::JournaldError;
#[cfg(feature = "mqtt")]
use super::mqtt::MqttError;
use super::nats::NatsSourceError;
use crate::journal::AppendError;
use crate::net::socket_file::SocketFileError;
use crate::record::id::SourceId;
use crate::record::template::TemplateError;

/// A failure of a source. It resumes from its positions when it is run again.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// With `--once`, a source that never ends.
    #[error("source {source_id} never ends, which --once cannot wait for{hint}")]
    Endless {
        /// The source.
        source_id: SourceId,
        /// What to do about it, after a separator; or nothing.
        hint: &'static str,
    },
    /// A `paths` entry that is no glob pattern.
    #[error("source {source_id} has \"{pattern}\" in paths, which is no pattern")]
    Pattern {
        /// The source.
        source_id: SourceId,
        /// The entry.
        pattern: String,
        /// What is wrong with it.
        #[source]
        error: glob::PatternError,
    },
    /// A `multiline.start` that is no regular expression.
    #[error("source {source_id} has a multiline.start that is no regular expression")]
    Multiline {
        /// The source.
        source_id: SourceId,
        /// What is wrong with it.
        #[source]
        error: Box<regex::Error>,
    },
    /// A `subject` that is no template.
    #[error("source {source_id} has a subject that is no template")]
    Subject {
        /// The source.
        source_id: SourceId,
        /// What is wrong with it.
        #[source]
        error: TemplateError,
    },
    /// It cannot listen.
    #[error("source {source_id} cannot listen on {address}")]
    Listen {
        /// The source.
        source_id: SourceId,
        /// Where.
        address: std::net::SocketAddr,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// It cannot listen at a path.
    #[error("source {source_id} cannot listen")]
    SocketFile {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: SocketFileError,
    },
    /// A listener has no TLS that it could show.
    #[error("source {source_id} cannot set up its TLS")]
    Tls {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: std::sync::Arc<crate::net::tls::TlsError>,
    },
    /// The journal did not take an append: nothing of it, and nothing after it, is there.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The input itself cannot be read any more.
    #[error("source {source_id} cannot read its input")]
    Read {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// journalctl cannot be started, has ended, or makes no sense.
    #[cfg(feature = "journald")]
    #[error("source {source_id} reads nothing from journald")]
    Journald {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: JournaldError,
    },
    /// The broker cannot be reached, refuses something, or the connection has ended.
    #[cfg(feature = "mqtt")]
    #[error("source {source_id} is not connected")]
    Mqtt {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: MqttError,
    },
    /// The server cannot be reached, refuses something, or gives no messages any more.
    #[error("source {source_id} gets no messages of NATS")]
    Nats {
        /// The source.
        source_id: SourceId,
        /// Why.
        #[source]
        error: NatsSourceError,
    },
    /// The agent is built without it; a config that names it is refused before.
    #[error("source {source_id} is of type \"{kind}\", which this agent is built without")]
    LeftOut {
        /// The source.
        source_id: SourceId,
        /// The word for `type`.
        kind: &'static str,
    },
    /// The thread that reads has panicked.
    #[error("the reading thread of source {source_id} died")]
    Died {
        /// The source.
        source_id: SourceId,
        /// How.
        #[source]
        error: tokio::task::JoinError,
    },
}

impl SourceError {
    /// Whether records that came in before it say nothing about the next try.
    #[must_use]
    pub fn is_contest(&self) -> bool {
        match self {
            #[cfg(feature = "mqtt")]
            Self::Mqtt { error, .. } => error.is_contest(),
            _ => false,
        }
    }
}
