//! Accepts connections and answers one request on each.
//!
//! hyper is driven directly: axum's own loop bounds neither the number of connections nor their life.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::bind::BoundSocket;
use super::{StatusSource, routes};
use crate::limits::{
    ADMIN_CONNECTIONS_MAX, ADMIN_HEAD_BYTES_MAX, ADMIN_REQUEST_MS_MAX, ADMIN_STOP_MS_MAX,
};
use crate::tasks::{Shutdown, TaskGroup};

/// Connections of one way in: those over TCP cannot shut out who asks over the socket.
const CONNECTIONS_MAX: usize = ADMIN_CONNECTIONS_MAX / 2;

/// Wait after a connection could not be accepted, most likely for want of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves on what was bound until it is asked to stop.
pub(super) async fn run(
    socket: Option<BoundSocket>,
    tcp: Option<(TcpListener, SocketAddr)>,
    status: StatusSource,
    shutdown: Shutdown,
) {
    let over_socket = async {
        if let Some(socket) = &socket {
            let routes = routes::local(StatusSource::clone(&status));
            serve(&socket.listener, routes, &shutdown).await;
        }
    };
    let over_tcp = async {
        if let Some((listener, address)) = &tcp {
            let routes = routes::remote(StatusSource::clone(&status), *address);
            serve(listener, routes, &shutdown).await;
        }
    };
    tokio::join!(over_socket, over_tcp, shutdown.requested());
}

/// A listener of either kind.
trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// # Cancel safety
    /// Can be dropped; no connection is lost.
    async fn accept(&self) -> io::Result<Self::Stream>;
}

impl Listener for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

async fn serve<L: Listener>(listener: &L, routes: Router, shutdown: &Shutdown) {
    let mut connections = TaskGroup::default();
    let mut open = 0_usize;
    let mut accept_failing = false;
    loop {
        tokio::select! {
            () = shutdown.requested() => break,
            Some(_) = connections.next_ended(), if open > 0 => open -= 1,
            accepted = listener.accept(), if open < CONNECTIONS_MAX => match accepted {
                Ok(stream) => {
                    accept_failing = false;
                    open += 1;
                    let answered = answer(stream, routes.clone());
                    connections.spawn("admin connection", tracing::Span::none(), answered);
                }
                Err(error) => {
                    if !std::mem::replace(&mut accept_failing, true) {
                        tracing::warn!(%error, "Admin connection cannot be accepted");
                    }
                    shutdown.sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Who is cut off here has waited for a second in vain.
    let _cut_off = connections.drain(Duration::from_millis(ADMIN_STOP_MS_MAX)).await;
}

/// Answers one request. A client that sends or reads too slowly is cut off.
async fn answer<S>(stream: S, routes: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(ADMIN_HEAD_BYTES_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(ADMIN_REQUEST_MS_MAX / 2))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    match tokio::time::timeout(Duration::from_millis(ADMIN_REQUEST_MS_MAX), connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "Admin connection failed"),
        Err(_) => tracing::debug!("Admin connection took too long"),
    }
}
