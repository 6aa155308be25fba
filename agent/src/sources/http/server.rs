//! Accepts connections under limits and serves requests on them.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::Shared;
use super::answer::Refusal;
use crate::limits::{
    INGEST_CONNECTIONS_MAX, INGEST_CONNECTIONS_PER_CLIENT_MAX, INGEST_HEAD_BYTES_MAX,
    INGEST_HEAD_MS_MAX, INGEST_STOP_MS_MAX, INGEST_TURNED_AWAY_MAX,
};
use crate::net::clients::{self, ClientLimits, Full};
use crate::tasks::{Shutdown, TaskGroup};

const LIMITS: ClientLimits = ClientLimits {
    all: INGEST_CONNECTIONS_MAX,
    per_client: INGEST_CONNECTIONS_PER_CLIENT_MAX,
    turned_away: INGEST_TURNED_AWAY_MAX,
    stop: Duration::from_millis(INGEST_STOP_MS_MAX),
};
/// How long those that are turned away are listened to.
const TURNED_AWAY: Duration = Duration::from_secs(2);

/// A listener that serves. Dropping it ends it with all its connections.
pub(super) struct Server {
    tasks: TaskGroup<()>,
    address: SocketAddr,
    shutdown: Shutdown,
}

impl Server {
    pub(super) async fn start(address: SocketAddr, shared: &Arc<Shared>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (mut tasks, shutdown) = (TaskGroup::default(), Shutdown::new());
        let serving = serve(listener, Arc::clone(shared), shutdown.clone());
        tasks.spawn("listener", tracing::Span::current(), serving);
        Ok(Self { tasks, address, shutdown })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections and lets requests that are on their way end.
    pub(super) async fn stop(self) {
        self.shutdown.request();
        // Its connections have their time; a moment more for itself.
        let grace = 2 * LIMITS.stop;
        let _cut_off = self.tasks.drain(grace).await;
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, shutdown: Shutdown) {
    let stop = shutdown.clone();
    clients::accept(listener, LIMITS, shutdown, move |stream, client, full| {
        let refusal = full.map(|full| match full {
            Full::Client => Refusal::Client,
            Full::All => Refusal::Connections,
        });
        Some(connection(Arc::clone(&shared), stream, client, refusal, stop.clone()))
    })
    .await;
}

async fn connection(
    shared: Arc<Shared>,
    stream: TcpStream,
    client: IpAddr,
    refusal: Option<Refusal>,
    shutdown: Shutdown,
) {
    // Answers are small, and their reader waits for each.
    let _answers_wait = stream.set_nodelay(true);
    let Some(tls) = &shared.tls else {
        return requests(Arc::clone(&shared), stream, client, refusal, shutdown).await;
    };
    let config = match tls.current() {
        Ok(config) => config,
        Err(error) => {
            return tracing::warn!(error = %crate::error_chain::Chain(&*error), "TLS cannot be set up");
        }
    };
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let head = Duration::from_millis(INGEST_HEAD_MS_MAX);
    match timeout(head, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            requests(Arc::clone(&shared), stream, client, refusal, shutdown).await;
        }
        Ok(Err(error)) => tracing::debug!(%client, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%client, "TLS handshake took too long"),
    }
}

async fn requests<S>(
    shared: Arc<Shared>,
    stream: S,
    client: IpAddr,
    refusal: Option<Refusal>,
    shutdown: Shutdown,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let turned_away = refusal.is_some();
    let service = service_fn(move |request| {
        let (shared, refusal) = (Arc::clone(&shared), refusal.clone());
        async move {
            Ok::<_, Infallible>(match refusal {
                None => shared.answer(request, client).await,
                Some(refusal) => {
                    let (head, mut body) = request.into_parts();
                    shared.refuse(&refusal, &head.headers, &mut body).await
                }
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(INGEST_HEAD_MS_MAX))
        .max_buf_size(INGEST_HEAD_BYTES_MAX)
        .keep_alive(!turned_away)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    if turned_away {
        let _heard_or_not = timeout(TURNED_AWAY, connection).await;
        return;
    }
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.requested() => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%client, %error, "Connection of a client failed");
    }
}
