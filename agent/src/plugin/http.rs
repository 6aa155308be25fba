//! `http` as a guest sees it. Who carries the requests out is up to whoever calls the guest.

use super::bindings::waystation::plugin::{http, types};
use super::host::HostState;

/// A request of a guest, unchecked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// The method, as the guest wrote it.
    pub method: String,
    /// The URL, as the guest wrote it.
    pub url: String,
    /// Names and values, as the guest wrote them.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// What the server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// The body, as much of it as a guest is given.
    pub body: Vec<u8>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HttpFailure {
    /// The config does not allow it, or it makes no sense: repeating cannot help.
    Denied(String),
    /// Nothing was heard for too long.
    Timeout(String),
    /// DNS, connection, TLS or protocol.
    Network(String),
}

/// Carries out the requests that a guest makes in one call. Its calls block.
pub trait HttpClient: Send + Sync {
    /// Sends a request and gives its answer.
    ///
    /// # Errors
    /// What keeps it from having one.
    fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpFailure>;

    /// Whether nobody waits for the call any more: the guest is stopped as soon as it is seen.
    fn is_over(&self) -> bool;

    /// What it has added to requests, and the guest must not repeat where people read it.
    fn secrets(&self) -> Vec<String>;
}

/// Nobody waits for the outcome of the guest's call any more.
#[derive(Debug, thiserror::Error)]
#[error("the attempt was given up")]
pub(super) struct GivenUp;

impl http::Host for HostState {
    fn send(
        &mut self,
        request: http::Request,
    ) -> wasmtime::Result<Result<http::Response, http::Failure>> {
        let Some(client) = self.http.clone() else {
            let text = "requests are made in deliver and probe only".to_owned();
            return Ok(Err(http::Failure::Denied(text)));
        };
        let pairs = |headers: Vec<types::HeaderResult>| {
            headers.into_iter().map(|header| (header.name, header.value)).collect()
        };
        let http::Request { method, url, headers, body } = request;
        // What passes here is the server's time, not the guest's.
        let answer = self
            .outside(|| client.send(HttpRequest { method, url, headers: pairs(headers), body }));
        if client.is_over() {
            return Err(GivenUp.into());
        }
        for secret in client.secrets() {
            if !self.secrets.contains(&secret) {
                self.secrets.push(secret);
            }
        }
        Ok(match answer {
            Ok(HttpResponse { status, headers, body }) => {
                let header = |(name, value)| types::HeaderResult { name, value };
                let headers = headers.into_iter().map(header).collect();
                Ok(http::Response { status, headers, body })
            }
            Err(HttpFailure::Denied(text)) => Err(http::Failure::Denied(text)),
            Err(HttpFailure::Timeout(text)) => Err(http::Failure::Timeout(text)),
            Err(HttpFailure::Network(text)) => Err(http::Failure::Network(text)),
        })
    }
}
