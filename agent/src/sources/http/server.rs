//! Accepts connections under limits and serves requests on them.

use std::collections::HashMap;
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
    INGEST_HEAD_MS_MAX, INGEST_STOP_MS_MAX,
};
use crate::tasks::{Shutdown, TaskGroup};

/// Wait after a connection could not be accepted, most likely for want of file handles.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections over the limits that are told so; more are closed without a word.
const TURNED_AWAY_MAX: usize = 32;
/// How long they are listened to.
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
        let grace = Duration::from_millis(INGEST_STOP_MS_MAX) + ACCEPT_PAUSE;
        let _cut_off = self.tasks.drain(grace).await;
    }
}

/// Connections that are open.
#[derive(Default)]
struct Open {
    of: HashMap<IpAddr, usize>,
    served: usize,
    turned_away: usize,
}

/// Whether a connection is served, and the reason why not.
type Ticket = (IpAddr, Option<Refusal>);

impl Open {
    /// Counts a connection in; `None` when there is no room even to say no.
    fn enter(&mut self, client: IpAddr) -> Option<Ticket> {
        let of_client = self.of.get(&client).copied().unwrap_or_default();
        let refusal = if of_client >= INGEST_CONNECTIONS_PER_CLIENT_MAX {
            Some(Refusal::Client)
        } else if self.served >= INGEST_CONNECTIONS_MAX {
            Some(Refusal::Connections)
        } else {
            None
        };
        match refusal {
            None => {
                self.served += 1;
                *self.of.entry(client).or_default() += 1;
            }
            Some(_) if self.turned_away >= TURNED_AWAY_MAX => return None,
            Some(_) => self.turned_away += 1,
        }
        Some((client, refusal))
    }

    fn leave(&mut self, client: IpAddr, was_served: bool) {
        if !was_served {
            self.turned_away -= 1;
            return;
        }
        self.served -= 1;
        if let Some(count) = self.of.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.of.remove(&client);
            }
        }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, shutdown: Shutdown) {
    let mut connections = TaskGroup::default();
    let mut open = Open::default();
    let mut accept_failing = false;
    // One that panics leaves no result, and must be counted out all the same.
    let mut tickets: HashMap<String, (IpAddr, bool)> = HashMap::new();
    let mut number = 0_u64;
    loop {
        tokio::select! {
            () = shutdown.requested() => break,
            Some(ended) = connections.next_ended(), if !connections.is_empty() => {
                if let Some((client, was_served)) = tickets.remove(&ended.name) {
                    open.leave(client, was_served);
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    accept_failing = false;
                    let Some((client, refusal)) = open.enter(peer.ip()) else { continue };
                    number += 1;
                    let name = format!("connection {number}");
                    tickets.insert(name.clone(), (client, refusal.is_none()));
                    let (shared, shutdown) = (Arc::clone(&shared), shutdown.clone());
                    let answering = connection(shared, stream, client, refusal, shutdown);
                    connections.spawn(name, tracing::Span::current(), answering);
                }
                Err(error) => {
                    if !std::mem::replace(&mut accept_failing, true) {
                        tracing::warn!(%error, "Connection of a client cannot be accepted");
                    }
                    shutdown.sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let _cut_off = connections.drain(Duration::from_millis(INGEST_STOP_MS_MAX)).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn client(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn one_client_leaves_room_for_others_and_all_of_them_are_bounded() {
        let mut open = Open::default();
        for _ in 0..INGEST_CONNECTIONS_PER_CLIENT_MAX {
            assert_eq!(open.enter(client(1)), Some((client(1), None)));
        }
        assert_eq!(open.enter(client(1)), Some((client(1), Some(Refusal::Client))));
        let left = INGEST_CONNECTIONS_MAX - INGEST_CONNECTIONS_PER_CLIENT_MAX;
        for _ in 0..left {
            assert_eq!(open.enter(client(2)), Some((client(2), None)));
        }
        assert_eq!(open.enter(client(3)), Some((client(3), Some(Refusal::Connections))));
        for _ in 2..TURNED_AWAY_MAX {
            assert!(open.enter(client(3)).is_some());
        }
        assert_eq!(open.enter(client(3)), None);
        open.leave(client(3), false);
        open.leave(client(1), true);
        assert_eq!(open.enter(client(3)), Some((client(3), None)));
        for _ in 1..INGEST_CONNECTIONS_PER_CLIENT_MAX {
            open.leave(client(1), true);
        }
        assert!(!open.of.contains_key(&client(1)));
    }
}
