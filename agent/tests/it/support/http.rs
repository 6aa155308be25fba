//! An HTTP server on a free port that answers by a script and remembers what it was sent.
#![allow(dead_code, reason = "not every test binary needs all of it")]
#![allow(clippy::disallowed_methods, reason = "a server of a test spawns its own tasks")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    /// Which request it is, from 0.
    pub(crate) number: usize,
    /// Which connection it came over, from 0.
    pub(crate) connection: usize,
    pub(crate) version: Version,
    pub(crate) method: String,
    /// Path and query; the whole URL when the server is used as a proxy.
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The certificate that the client has shown.
    pub(crate) peer: Option<CertificateDer<'static>>,
}

impl Sent {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The batch that it carries.
    pub(crate) fn key(&self) -> &str {
        self.header("idempotency-key")
    }

    /// The body as it was before it was compressed.
    pub(crate) fn content(&self) -> Vec<u8> {
        use std::io::Read as _;

        let mut content = Vec::new();
        match self.header("content-encoding") {
            "" => content = self.body.to_vec(),
            "zstd" => content = zstd::decode_all(&*self.body).unwrap(),
            "gzip" => {
                flate2::read::GzDecoder::new(&*self.body).read_to_end(&mut content).unwrap();
            }
            other => panic!("unknown encoding {other}"),
        }
        content
    }
}

/// What the script wants done.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// An answer.
    Answer(Answer),
    /// Nothing, ever.
    Stall,
    /// The connection is closed without an answer.
    Close,
}

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

/// An empty answer with this status.
pub(crate) fn status(status: u16) -> Reply {
    answer(status, &[], "")
}

pub(crate) fn answer(
    status: u16,
    headers: &[(&'static str, &str)],
    body: impl Into<Bytes>,
) -> Reply {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Reply::Answer(Answer { status, headers, body: body.into() })
}

type Script = dyn Fn(&Sent) -> Reply + Send + Sync;

/// A running server, on threads of its own. Dropping it ends it.
pub(crate) struct Server {
    pub(crate) port: u16,
    is_tls: bool,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

struct Shared {
    script: Box<Script>,
    sent: Mutex<Vec<Sent>>,
    connections: AtomicUsize,
    /// Ends all connections that there are.
    cut: broadcast::Sender<()>,
}

impl Server {
    pub(crate) fn start(script: impl Fn(&Sent) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_on(0, None, script)
    }

    pub(crate) fn start_tls(
        tls: Arc<rustls::ServerConfig>,
        script: impl Fn(&Sent) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_on(0, Some(tls), script)
    }

    /// On a port that was free before, 0 for any.
    pub(crate) fn start_on(
        port: u16,
        tls: Option<Arc<rustls::ServerConfig>>,
        script: impl Fn(&Sent) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // The one before ends in the background.
        let bind = || std::net::TcpListener::bind(("127.0.0.1", port));
        let pause = std::time::Duration::from_millis(10);
        let tries = (0..500).find_map(|_| {
            bind().ok().or_else(|| {
                std::thread::sleep(pause);
                None
            })
        });
        let socket = tries.unwrap_or_else(|| bind().unwrap());
        socket.set_nonblocking(true).unwrap();
        let port = socket.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            sent: Mutex::default(),
            connections: AtomicUsize::new(0),
            cut: broadcast::channel(1).0,
        });
        let is_tls = tls.is_some();
        let acceptor = tls.map(TlsAcceptor::from);
        let accepting = Arc::clone(&shared);
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(socket).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&accepting);
                let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
                let mut cut = shared.cut.subscribe();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let serving = async {
                        let Some(acceptor) = acceptor else {
                            return serve(stream, shared, connection, None, false).await;
                        };
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        let session = stream.get_ref().1;
                        let peer =
                            session.peer_certificates().map(|all| all[0].clone().into_owned());
                        let is_two = session.alpn_protocol() == Some(b"h2");
                        serve(stream, shared, connection, peer, is_two).await;
                    };
                    tokio::select! {
                        () = serving => {}
                        _ = cut.recv() => {}
                    }
                });
            }
        });
        Self { port, is_tls, shared, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}{path}", self.port)
    }

    /// All requests so far, in the order in which their bodies were complete.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.shared.sent.lock().unwrap().clone()
    }

    /// All bodies so far, by the key of their batch.
    pub(crate) fn by_key(&self) -> BTreeMap<String, Vec<Bytes>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for sent in self.sent() {
            found.entry(sent.key().to_owned()).or_default().push(sent.body);
        }
        found
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Closes all connections that there are.
    pub(crate) fn cut(&self) {
        // There may be none.
        drop(self.shared.cut.send(()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: Arc<Shared>,
    connection: usize,
    peer: Option<CertificateDer<'static>>,
    is_two: bool,
) {
    let service = hyper::service::service_fn(move |request| {
        respond(request, Arc::clone(&shared), connection, peer.clone())
    });
    let io = TokioIo::new(stream);
    if is_two {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        drop(builder.serve_connection(io, service).await);
    } else {
        let builder = hyper::server::conn::http1::Builder::new();
        drop(builder.serve_connection(io, service).await);
    }
}

async fn respond(
    request: Request<Incoming>,
    shared: Arc<Shared>,
    connection: usize,
    peer: Option<CertificateDer<'static>>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let (sent, reply) = {
        let mut all = shared.sent.lock().unwrap();
        let sent = Sent {
            number: all.len(),
            connection,
            version: parts.version,
            method: parts.method.to_string(),
            target: parts.uri.to_string(),
            headers: parts.headers,
            body,
            peer,
        };
        all.push(sent.clone());
        let reply = (shared.script)(&sent);
        (sent, reply)
    };
    match reply {
        Reply::Stall => {
            let never: Infallible = std::future::pending().await;
            match never {}
        }
        Reply::Close => Err(std::io::Error::other(format!("request {} is cut", sent.number))),
        Reply::Answer(answer) => {
            let mut response = Response::builder().status(answer.status);
            for (name, value) in answer.headers {
                response = response.header(name, value);
            }
            Ok(response.body(Full::new(answer.body)).unwrap())
        }
    }
}

/// A server of bytes: `serve` is given each connection, on a thread. Gives the port.
pub(crate) fn raw(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// A port on which nobody listens.
pub(crate) fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
