//! What a client is told: 202 with counts once everything is durable, otherwise a problem (RFC 9457).

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{Response, StatusCode};
use serde_json::json;

/// What an answer is sent as.
pub(super) type Answer = Response<Full<Bytes>>;

/// Says that the answer is that of an earlier request with the same key.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// A post that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Accepted {
    /// Records in the journal.
    pub(super) accepted: u64,
    /// Records over `record_bytes_max`, which went where `on_oversize` says.
    pub(super) rejected: u64,
    /// Whether an earlier request with the same key had brought it.
    pub(super) replayed: bool,
}

/// Why a post was not taken. Nothing of it is in the journal, but where it says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("nothing is served at this path")]
    Path,
    #[error("records are taken by POST")]
    Method,
    #[error("a token is needed: Authorization: Bearer TOKEN")]
    Token,
    #[error("the body is empty")]
    Empty,
    #[error("the body does not come to its end: {0}")]
    Broken(String),
    #[error("the body is no {coding}: {error}")]
    Coding { coding: &'static str, error: String },
    #[error("the body is no JSON array: {0}")]
    Json(String),
    #[error("Idempotency-Key must be 1 to {max} visible ASCII characters", max = crate::limits::IDEMPOTENCY_KEY_BYTES_MAX)]
    Key,
    #[error("less than {bytes} bytes of the body came in {seconds} s")]
    Slow { bytes: usize, seconds: u64 },
    #[error("a request with this Idempotency-Key is being worked on")]
    KeyBusy,
    #[error("the body has more than {0} bytes")]
    Large(u64),
    #[error("no record of it has at most {0} bytes")]
    Records(u64),
    #[error("content is taken as it is, in gzip or in zstd, in one coding, not in \"{0}\"")]
    UnknownCoding(String),
    #[error("this Idempotency-Key was used for another body")]
    KeyOfOther,
    #[error("there are too many connections from this address")]
    Client,
    #[error("there are too many connections")]
    Connections,
    #[error("too many bodies are on their way")]
    Busy,
    #[error("the journal is full: {0}")]
    Full(Arc<str>),
    #[error("the journal cannot take records now: {0}")]
    Failing(String),
    #[error("it is not known whether it is stored, or how much of it: the journal took too long")]
    Unknown,
}

impl Refusal {
    /// One of each, so that the description of the interface can be held against them.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        vec![
            Self::Path,
            Self::Method,
            Self::Token,
            Self::Empty,
            Self::Broken(String::new()),
            Self::Coding { coding: "gzip", error: String::new() },
            Self::Json(String::new()),
            Self::Key,
            Self::Slow { bytes: 0, seconds: 0 },
            Self::KeyBusy,
            Self::Large(0),
            Self::Records(0),
            Self::UnknownCoding(String::new()),
            Self::KeyOfOther,
            Self::Client,
            Self::Connections,
            Self::Busy,
            Self::Full("".into()),
            Self::Failing(String::new()),
            Self::Unknown,
        ]
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Empty | Self::Broken(_) | Self::Coding { .. } | Self::Json(_) | Self::Key => {
                StatusCode::BAD_REQUEST
            }
            Self::Slow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::KeyBusy => StatusCode::CONFLICT,
            Self::Large(_) | Self::Records(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnknownCoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::KeyOfOther => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Client => StatusCode::TOO_MANY_REQUESTS,
            Self::Connections | Self::Busy | Self::Full(_) | Self::Failing(_) | Self::Unknown => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    /// Seconds after which the same may be taken.
    pub(super) fn retry_after(&self) -> Option<u32> {
        match self {
            Self::KeyBusy | Self::Client | Self::Connections | Self::Busy | Self::Failing(_) => {
                Some(1)
            }
            // Somebody has to make room, or the link has to come back.
            Self::Full(_) => Some(10),
            Self::Unknown => Some(5),
            _ => None,
        }
    }

    /// The answer. `close` ends the connection, whose request was not read to its end.
    pub(super) fn answer(&self, close: bool) -> Answer {
        let status = self.status();
        let problem = json!({
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": self.to_string(),
        });
        let mut answer = Response::new(Full::from(problem.to_string()));
        *answer.status_mut() = status;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        match self {
            Self::Method => headers.insert(ALLOW, HeaderValue::from_static("POST")),
            Self::Token => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            Self::UnknownCoding(_) => {
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd"))
            }
            _ => None,
        };
        if close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

impl Accepted {
    pub(super) fn answer(self) -> Answer {
        let counts = json!({ "accepted": self.accepted, "rejected": self.rejected });
        let mut answer = Response::new(Full::from(counts.to_string()));
        *answer.status_mut() = StatusCode::ACCEPTED;
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.replayed {
            headers.insert(REPLAYED, HeaderValue::from_static("true"));
        }
        answer
    }
}
