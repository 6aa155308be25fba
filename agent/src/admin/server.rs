//! Accepts connections and answers one request on each.
//!
//! hyper is driven directly: axum's own loop bounds neither the number of connections nor their life.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::bind::BoundSocket;
use super::orders::{Peer, UnderWay};
use super::{OrdersSource, StatusSource, routes};
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
    agent: OrdersSource,
    shutdown: Shutdown,
) {
    let over_socket = async {
        if let Some(socket) = &socket {
            let routes = routes::local(StatusSource::clone(&status), agent);
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
    async fn accept(&self) -> io::Result<(Self::Stream, Peer)>;
}

impl Listener for UnixListener {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<(Self::Stream, Peer)> {
        let (stream, _) = Self::accept(self).await?;
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        Ok((stream, Peer(uid)))
    }
}

impl Listener for TcpListener {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<(Self::Stream, Peer)> {
        Self::accept(self).await.map(|(stream, _)| (stream, Peer(None)))
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
                Ok((stream, peer)) => {
                    accept_failing = false;
                    open += 1;
                    let answered = answer(stream, routes.clone().layer(Extension(peer)));
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

/// Answers one request. A client that sends or reads too slowly is cut off; one that waits for an order is not, however long
/// that takes.
async fn answer<S>(stream: S, routes: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let under_way = UnderWay::default();
    let routes = routes.layer(Extension(under_way.clone()));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(ADMIN_HEAD_BYTES_MAX)
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(ADMIN_REQUEST_MS_MAX / 2))
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    let mut connection = std::pin::pin!(connection);
    loop {
        let life = Duration::from_millis(ADMIN_REQUEST_MS_MAX);
        match tokio::time::timeout(life, &mut connection).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!(%error, "Admin connection failed"),
            Err(_) if under_way.is() => {}
            Err(_) => return tracing::debug!("Admin connection took too long"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::Instant;

    use super::*;

    fn routes() -> Router {
        let none = super::super::tests::no_orders();
        routes::local(std::sync::Arc::new(super::super::tests::status), none)
    }

    /// Serves one connection in virtual time; gives how long it lived.
    async fn life_of(server: tokio::io::DuplexStream) -> Duration {
        let begun = Instant::now();
        answer(server, routes()).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_says_nothing_is_cut_off() {
        let (mut client, server) = tokio::io::duplex(4096);
        assert!(life_of(server).await <= Duration::from_millis(ADMIN_REQUEST_MS_MAX));
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_ends_its_head_is_cut_off() {
        let (mut client, server) = tokio::io::duplex(64);
        let dribble = async {
            let line = b"GET /status HTTP/1.1\r\nX-Slow: ";
            client.write_all(line).await.unwrap();
            while client.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let (life, ()) = tokio::join!(life_of(server), dribble);
        assert!(life <= Duration::from_millis(ADMIN_REQUEST_MS_MAX), "{life:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_cut_off() {
        let (mut client, server) = tokio::io::duplex(64);
        let ask = async {
            client.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            client
        };
        let (life, _client) = tokio::join!(life_of(server), ask);
        assert_eq!(life, Duration::from_millis(ADMIN_REQUEST_MS_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_may_take_long_and_a_client_that_does_not_read_its_answer_may_not() {
        const LONG: Duration = Duration::from_secs(95);
        async fn order(Extension(under_way): Extension<UnderWay>) -> String {
            let _working = under_way.begin();
            tokio::time::sleep(LONG).await;
            "x".repeat(4096)
        }
        let routes = || Router::new().route("/order", axum::routing::post(order));
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let ask = async {
            client.write_all(b"POST /order HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut told = String::new();
            client.read_to_string(&mut told).await.unwrap();
            told
        };
        let (told, ()) = tokio::join!(ask, answer(server, routes()));
        assert!(told.starts_with("HTTP/1.1 200 ") && told.ends_with("xxx"), "{told}");
        let (mut client, server) = tokio::io::duplex(64);
        let begun = Instant::now();
        let ask = async {
            client.write_all(b"POST /order HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            client
        };
        let ((), _client) = tokio::join!(answer(server, routes()), ask);
        let life = begun.elapsed();
        let most = LONG + Duration::from_millis(ADMIN_REQUEST_MS_MAX);
        assert!(LONG < life && life <= most, "{life:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_that_is_too_large_is_refused() {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let head = format!("GET /status HTTP/1.1\r\nX: {}", "x".repeat(2 * ADMIN_HEAD_BYTES_MAX));
        client.write_all(head.as_bytes()).await.unwrap();
        assert!(life_of(server).await < Duration::from_secs(1));
        let mut told = String::new();
        client.read_to_string(&mut told).await.unwrap();
        assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
    }
}
