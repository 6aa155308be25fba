//! What can go wrong at the admin server: when it starts, and with a request.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::error_chain::Chain;
use crate::limits::SOCKET_PATH_BYTES_MAX;
use crate::supervisor::OrderError;

/// Why the server does not serve, or not on one of its ways in.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Its thread or runtime cannot be started.
    #[error("cannot start the admin server")]
    Start(#[source] io::Error),
    /// The TCP address cannot be bound.
    #[error("cannot listen on {address} for [admin] listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The path does not fit into a socket address.
    #[error(
        "the path of the admin socket {path} has {bytes} bytes, a socket's path can have {SOCKET_PATH_BYTES_MAX}; set a shorter [admin] socket"
    )]
    SocketPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Somebody serves on the socket.
    #[error("another process answers on the admin socket {path}; it was not touched")]
    SocketInUse {
        /// The path.
        path: PathBuf,
    },
    /// At the path is something that we did not make.
    #[error("at the path of the admin socket {path} is something else; it was not touched")]
    SocketPathTaken {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {doing} the admin socket {path}")]
    Socket {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// Why a request is not answered. The codes are an interface: they stay.
#[derive(Debug)]
pub(super) enum ApiError {
    /// There is no such endpoint.
    NotFound,
    /// The endpoint takes other methods.
    MethodNotAllowed,
    /// The request came under a name that is not ours.
    HostNotAllowed,
    /// The answer could not be made: a fault of ours.
    Internal,
    /// An order came over TCP.
    SocketOnly,
    /// An order that cannot be read, or asks for more than one may.
    BadOrder(String),
    /// As many orders are being carried out as may be.
    Busy,
    /// The agent does not do it.
    Order(OrderError),
}

impl ApiError {
    fn parts(&self) -> (StatusCode, &'static str, String) {
        let (status, code, detail) = match self {
            Self::NotFound => (
                StatusCode::NOT_FOUND,
                "not_found",
                "there is no such endpoint; there are /health, /ready, /metrics and /status, and over the socket /orders",
            ),
            Self::MethodNotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "what is told is read-only: use GET; orders are POSTed",
            ),
            Self::HostNotAllowed => (
                StatusCode::FORBIDDEN,
                "host_not_allowed",
                "the Host of the request is neither a loopback name nor the address listened on",
            ),
            Self::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal", "the answer could not be made")
            }
            Self::SocketOnly => (
                StatusCode::FORBIDDEN,
                "socket_only",
                "orders are taken over the Unix socket only, never over TCP",
            ),
            Self::BadOrder(why) => (StatusCode::BAD_REQUEST, "bad_order", why.as_str()),
            Self::Busy => (
                StatusCode::SERVICE_UNAVAILABLE,
                "busy",
                "as many orders as may be are being carried out; ask again when one is done",
            ),
            Self::Order(error) => {
                let (status, code) = match error {
                    OrderError::UnknownLane(_) => (StatusCode::NOT_FOUND, "unknown_lane"),
                    OrderError::Lane { .. }
                    | OrderError::Replay { .. }
                    | OrderError::OtherSource { .. }
                    | OrderError::Refused(_)
                    | OrderError::Once => (StatusCode::CONFLICT, "wrong_state"),
                    OrderError::InConfig { .. } => (StatusCode::CONFLICT, "lane_in_config"),
                    OrderError::NoTarget(_) => (StatusCode::NOT_FOUND, "unknown_lane"),
                    OrderError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping"),
                    OrderError::Journal(_) => (StatusCode::SERVICE_UNAVAILABLE, "journal"),
                };
                return (status, code, Chain(error).to_string());
            }
        };
        (status, code, detail.to_owned())
    }
}

impl From<OrderError> for ApiError {
    fn from(error: OrderError) -> Self {
        Self::Order(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code, detail) = self.parts();
        let body = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "code": code,
            "detail": detail,
        });
        (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(body)).into_response()
    }
}
