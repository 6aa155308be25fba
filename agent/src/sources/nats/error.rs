//! Why a NATS source is not connected, or does not get messages.

use std::sync::Arc;
use std::time::Duration;

use crate::net::nats::LinkError;
use crate::net::tls::TlsError;

/// A failure between the source and its server.
#[derive(Debug, thiserror::Error)]
pub enum NatsSourceError {
    /// No connection can even be tried.
    #[error("cannot connect to NATS")]
    Setup(#[source] LinkError),
    /// The files of TLS cannot be used.
    #[error("cannot connect to NATS over TLS")]
    Tls(#[source] Arc<TlsError>),
    /// There is no session yet.
    #[error("no connection to NATS: {reason}")]
    NotConnected {
        /// What the last try has met.
        reason: String,
    },
    /// The session has ended.
    #[error("the connection to NATS was lost{reason}")]
    Lost {
        /// Why, after a separator; or nothing.
        reason: String,
    },
    /// The server refuses something inside the session.
    #[error("the server refuses: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// There is no such stream.
    #[error("stream {stream} does not exist on this server; create it, or mend `stream`")]
    NoStream {
        /// The stream.
        stream: String,
    },
    /// JetStream does not answer, or answers with an error.
    #[error("JetStream does not {what}: {reason}")]
    JetStream {
        /// What was asked of it.
        what: String,
        /// Its answer, or that there is none.
        reason: String,
    },
    /// The consumer is none that a message can be acknowledged to after it is stored.
    #[error(
        "consumer {consumer} of stream {stream} {why}; use another `consumer`, or delete it: it is made anew as it has to be"
    )]
    Unfit {
        /// The stream.
        stream: String,
        /// The consumer.
        consumer: String,
        /// What it is like.
        why: &'static str,
    },
    /// The server has ended the requests for messages.
    #[error("the server ended the requests to consumer {consumer}: {reason}")]
    Ended {
        /// The consumer.
        consumer: String,
        /// Its words.
        reason: String,
    },
    /// Neither messages nor heartbeats come.
    #[error("nothing was heard of consumer {consumer} for {} s, not even a heartbeat", after.as_secs())]
    Silent {
        /// The consumer.
        consumer: String,
        /// For how long.
        after: Duration,
    },
    /// The stream is another one than when the session began.
    #[error("stream {stream} was made anew")]
    Remade {
        /// The stream.
        stream: String,
    },
    /// The consumer is another one than when the session began.
    #[error("consumer {consumer} was made anew")]
    ConsumerRemade {
        /// The consumer.
        consumer: String,
    },
    /// What is sent does not leave.
    #[error("the connection to NATS takes nothing any more")]
    Stuck,
}
