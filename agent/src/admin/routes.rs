//! From a request to an answer.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use serde_json::json;

use super::error::ApiError;
use super::status::StatusView;
use super::{OrdersSource, StatusSource, metrics, orders};
use crate::limits::ADMIN_BODY_BYTES_MAX;
use crate::telemetry;

/// The endpoints for who could open the socket.
pub(super) fn local(status: StatusSource, agent: OrdersSource) -> Router {
    finished(told(status).merge(orders::routes(agent)))
}

/// What is told, for whoever reaches the address under a name that nobody else can give to it.
pub(super) fn remote(status: StatusSource, address: SocketAddr) -> Router {
    let refused = || async { ApiError::SocketOnly };
    finished(told(status).route("/orders/{*order}", any(refused)))
        .layer(middleware::from_fn_with_state(address.ip(), check_host))
}

fn told(status: StatusSource) -> Router {
    Router::new()
        .route("/health", get(|| async { "ok\n" }))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics_text))
        .route("/status", get(status_json))
        .with_state(status)
}

fn finished(routes: Router) -> Router {
    routes
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed })
        .layer(DefaultBodyLimit::max(ADMIN_BODY_BYTES_MAX))
        .layer(middleware::map_response(never_kept))
}

async fn ready(State(status): State<StatusSource>) -> Response {
    let reasons = status().not_ready;
    let ready = reasons.is_empty();
    let code = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(json!({ "ready": ready, "reasons": reasons }))).into_response()
}

async fn metrics_text(State(status): State<StatusSource>) -> Result<Response, ApiError> {
    let text = metrics::text(status()).map_err(|_| {
        tracing::error!("Metrics cannot be written");
        ApiError::Internal
    })?;
    Ok(([(header::CONTENT_TYPE, telemetry::CONTENT_TYPE)], text).into_response())
}

async fn status_json(State(status): State<StatusSource>) -> Json<StatusView> {
    Json(StatusView::of(&status()))
}

/// What is true now is not true a moment later.
async fn never_kept(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn check_host(
    State(listen): State<IpAddr>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    // A target in absolute form says the host, too; whoever sends one means it.
    let host = request.uri().host().or_else(|| header.map(without_port));
    if host.is_some_and(|host| is_ours(host, listen)) {
        Ok(next.run(request).await)
    } else {
        Err(ApiError::HostNotAllowed)
    }
}

/// The port does not matter: it differs for who comes through a tunnel.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_ours(host: &str, listen: IpAddr) -> bool {
    let address = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || address == listen,
        Err(_) => host.trim_end_matches('.').eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_and_the_own_address_are_ours() {
        let listen = "192.0.2.7".parse().unwrap();
        for ours in [
            "localhost",
            "LocalHost:9611",
            "localhost.",
            "127.0.0.1:1",
            "127.8.0.1",
            "[::1]:9611",
            "[::1]",
            "192.0.2.7:80",
        ] {
            assert!(is_ours(without_port(ours), listen), "{ours}");
        }
        for foreign in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "192.0.2.8",
            "[::2]",
            "0x7f.1",
            "user@localhost",
        ] {
            assert!(!is_ours(without_port(foreign), listen), "{foreign}");
        }
    }
}
