//! The destination of a certification: an HTTP server on the loopback interface that answers as a scenario wants.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::limits::PLUGIN_CERTIFY_REQUEST_BYTES_MAX;
use crate::tasks::TaskGroup;

/// A request as it came.
#[derive(Debug, Clone)]
pub(super) struct Sent {
    /// From 0, since the scenario began.
    pub(super) number: usize,
    pub(super) method: String,
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Bytes,
    /// Whether it was told that it is taken.
    pub(super) taken: bool,
}

impl Sent {
    /// What the destination makes records of.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.method, &self.url, &self.body) == (&other.method, &other.url, &other.body)
    }
}

/// What a request is answered.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    Status(u16, Option<(&'static str, &'static str)>, Bytes),
    /// The connection is closed when the request was read.
    Close,
    Silence,
    /// 200, and only the beginning of the body that it announces.
    BreakOff,
}

impl Answer {
    pub(super) fn status(status: u16) -> Self {
        Self::Status(status, None, Bytes::new())
    }

    fn is_taken(&self) -> bool {
        matches!(self, Self::Status(200..=299, ..))
    }
}

type Script = Box<dyn Fn(&Sent) -> Answer + Send>;

/// The server. Ends when it is dropped.
pub(super) struct Destination {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    _server: TaskGroup<()>,
}

struct State {
    script: Script,
    sent: Vec<Sent>,
}

/// The connection ends without an answer, or in the middle of one.
#[derive(Debug, thiserror::Error)]
#[error("as the scenario wants it")]
struct Ends;

impl Destination {
    pub(super) fn start(runtime: &Runtime) -> std::io::Result<Self> {
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let address = listener.local_addr()?;
        let state = State { script: Box::new(|_| Answer::status(200)), sent: Vec::new() };
        let state = Arc::new(Mutex::new(state));
        let serving = serve(listener, Arc::clone(&state));
        let _guard = runtime.enter();
        let mut server = TaskGroup::default();
        server.spawn("destination", tracing::Span::none(), serving);
        Ok(Self { address, state, _server: server })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a scenario: what was sent before is forgotten.
    pub(super) fn answers(&self, script: impl Fn(&Sent) -> Answer + Send + 'static) {
        *lock(&self.state) = State { script: Box::new(script), sent: Vec::new() };
    }

    /// Goes on with other answers.
    pub(super) fn answers_from_now(&self, script: impl Fn(&Sent) -> Answer + Send + 'static) {
        lock(&self.state).script = Box::new(script);
    }

    /// Everything since the scenario began.
    pub(super) fn sent(&self) -> Vec<Sent> {
        lock(&self.state).sent.clone()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = TaskGroup::default();
    // The only client is the agent's own, which has few connections and keeps them.
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        connections.spawn("connection", tracing::Span::none(), async move {
            let service = service_fn(|request| answer(&state, request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // One that ends is part of most scenarios.
            let _ended = connection.await;
        });
    }
}

async fn answer(
    state: &Mutex<State>,
    request: Request<Incoming>,
) -> Result<Response<BoxBody<Bytes, Ends>>, Ends> {
    let (head, body) = request.into_parts();
    let body = Limited::new(body, PLUGIN_CERTIFY_REQUEST_BYTES_MAX).collect().await;
    let body = body.map_err(|_| Ends)?.to_bytes();
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let answer = {
        let mut state = lock(state);
        let mut sent = Sent {
            number: state.sent.len(),
            method: head.method.to_string(),
            url: head.uri.to_string(),
            headers: head.headers.iter().map(header).collect(),
            body,
            taken: false,
        };
        let answer = (state.script)(&sent);
        sent.taken = answer.is_taken();
        state.sent.push(sent);
        answer
    };
    match answer {
        Answer::Status(status, header, body) => {
            let whole = Full::new(body).map_err(|never: Infallible| match never {});
            let mut response = Response::new(whole.boxed());
            *response.status_mut() = StatusCode::from_u16(status).map_err(|_| Ends)?;
            if let Some((name, value)) = header {
                let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| Ends)?;
                response.headers_mut().insert(HeaderName::from_static(name), value);
            }
            Ok(response)
        }
        Answer::Close => Err(Ends),
        Answer::Silence => std::future::pending().await,
        Answer::BreakOff => {
            let pieces = [Ok(Frame::data(Bytes::from_static(b"{\"ok\":"))), Err(Ends)];
            let mut response = Response::new(StreamBody::new(stream::iter(pieces)).boxed());
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("64"));
            Ok(response)
        }
    }
}
