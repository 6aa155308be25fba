//! Connections: accepted under limits, those over TCP perhaps in TLS, each read into frames.
//!
//! A connection may be silent for as long as it likes between two frames; TCP keep-alive finds out about peers that are gone.
//! One that is in the middle of a large frame has to come on, as only so many large frames are kept at once.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout};

use super::Shared;
use super::frame::{Decoder, Frame};
use super::gather::{Gather, Gone, Piece};
use super::peer::{Peer, Sender};
use super::unix::Named;
use crate::limits::{
    SOCKET_BACKLOG, SOCKET_CONNECTIONS_MAX, SOCKET_CONNECTIONS_PER_CLIENT_MAX,
    SOCKET_FRAME_KEPT_BYTES, SOCKET_HANDSHAKE_MS_MAX, SOCKET_KEEPALIVE_EVERY_MS,
    SOCKET_KEEPALIVE_MS, SOCKET_KERNEL_BYTES, SOCKET_LARGE_LOOK_BYTES_MIN, SOCKET_LARGE_LOOK_MS,
    SOCKET_READ_BYTES, SOCKET_STOP_MS_MAX,
};
use crate::net::clients::{self, ClientLimits, Full};
use crate::tasks::Shutdown;

const LIMITS: ClientLimits = ClientLimits {
    all: SOCKET_CONNECTIONS_MAX,
    per_client: SOCKET_CONNECTIONS_PER_CLIENT_MAX,
    // There is no way to tell them: each is closed at once.
    turned_away: 1,
    stop: Duration::from_millis(SOCKET_STOP_MS_MAX),
};

/// Listens for connections, with buffers of the kernel that are as large as the module says.
pub(super) fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    // Connections inherit it. Set before listening, because the window's scale is agreed on at the start.
    socket.set_recv_buffer_size(SOCKET_KERNEL_BYTES)?;
    socket.bind(address)?;
    socket.listen(SOCKET_BACKLOG.unsigned_abs())
}

/// Accepts and reads connections until asked to stop; then each hands over what it has read.
pub(super) async fn serve(listener: TcpListener, shared: Arc<Shared>, shutdown: Shutdown) {
    let stop = shutdown.clone();
    clients::accept(listener, LIMITS, shutdown, move |stream, client, full| {
        if !shared.knows(client) {
            return None;
        }
        if let Some(full) = full {
            shared.turn_away(Sender::Address(client), why(full));
            return None;
        }
        Some(connection(Arc::clone(&shared), stream, client, stop.clone()))
    })
    .await;
}

/// The same over a socket in the file system.
pub(super) async fn serve_local(
    listener: Named<UnixListener>,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) {
    let stop = shutdown.clone();
    clients::accept(listener, LIMITS, shutdown, move |stream, sender, full| {
        if let Some(full) = full {
            shared.turn_away(sender, why(full));
            return None;
        }
        let (shared, stop) = (Arc::clone(&shared), stop.clone());
        Some(async move { read(&shared, stream, sender, &stop).await })
    })
    .await;
}

fn why(full: Full) -> &'static str {
    match full {
        Full::Client => "its client has too many connections",
        Full::All => "there are too many connections",
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, client: IpAddr, shutdown: Shutdown) {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_millis(SOCKET_KEEPALIVE_MS))
        .with_interval(Duration::from_millis(SOCKET_KEEPALIVE_EVERY_MS));
    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%client, %error, "Keep-alive cannot be set");
    }
    let Some(tls) = &shared.tls else {
        return read(&shared, stream, Sender::Address(client), &shutdown).await;
    };
    let config = match tls.current() {
        Ok(config) => config,
        Err(error) => {
            return tracing::warn!(error = %crate::error_chain::Chain(&*error), "TLS cannot be set up");
        }
    };
    let acceptor = tokio_rustls::TlsAcceptor::from(config);
    let handshake =
        timeout(Duration::from_millis(SOCKET_HANDSHAKE_MS_MAX), acceptor.accept(stream));
    let shaken = tokio::select! {
        () = shutdown.requested() => return,
        shaken = handshake => shaken,
    };
    match shaken {
        Ok(Ok(stream)) => read(&shared, stream, Sender::Address(client), &shutdown).await,
        Ok(Err(error)) => tracing::debug!(%client, %error, "TLS handshake failed"),
        Err(_) => tracing::debug!(%client, "TLS handshake took too long"),
    }
}

/// Reads a connection to its end, and hands over what is left of it.
async fn read<S>(shared: &Arc<Shared>, stream: S, sender: Sender, shutdown: &Shutdown)
where
    S: AsyncRead + Unpin,
{
    let peer = Peer::new(sender);
    let mut reading = Reading {
        stream,
        decoder: Decoder::new(shared.framing, shared.limits.record_bytes_max.as_usize()),
        gather: Gather::new(shared),
        peer,
        large: None,
        shared: Arc::clone(shared),
    };
    // Who is gone takes nothing more, and a later connection will say so, too.
    let _gone = reading.run(shutdown).await;
}

/// Leave to keep a large frame, and what has come since it was looked at last.
struct Large {
    _room: OwnedSemaphorePermit,
    look_at: Instant,
    bytes: usize,
}

struct Reading<S> {
    stream: S,
    decoder: Decoder,
    gather: Gather,
    peer: Peer,
    large: Option<Large>,
    shared: Arc<Shared>,
}

impl<S: AsyncRead + Unpin> Reading<S> {
    async fn run(&mut self, shutdown: &Shutdown) -> Result<(), Gone> {
        let mut buffer = vec![0; SOCKET_READ_BYTES];
        while !shutdown.is_requested() {
            let count = match self.some(&mut buffer, shutdown).await? {
                Some(Ok(0)) | None => break,
                Some(Ok(count)) => count,
                Some(Err(error)) => {
                    tracing::debug!(peer = %self.peer, %error, "Connection of a client failed");
                    break;
                }
            };
            let mut rest = &buffer[..count];
            loop {
                match self.decoder.next(&mut rest) {
                    Ok(Some(frame)) => self.gather.take(piece(frame, &self.peer)).await?,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(peer = %self.peer, %error, "Connection of a client is closed");
                        return self.gather.flush().await;
                    }
                }
            }
            if !self.comes_on(count, shutdown).await? {
                break;
            }
        }
        if let Some(frame) = self.decoder.finish() {
            self.gather.take(piece(frame, &self.peer)).await?;
        }
        self.gather.flush().await
    }

    /// Reads what is there, or waits for it after handing over what was; `None` when it is to end.
    async fn some(
        &mut self,
        buffer: &mut [u8],
        shutdown: &Shutdown,
    ) -> Result<Option<io::Result<usize>>, Gone> {
        if let Some(ready) = self.stream.read(buffer).now_or_never() {
            return Ok(Some(ready));
        }
        self.gather.flush().await?;
        self.gather.rest();
        loop {
            let look_at = self.large.as_ref().map(|large| large.look_at);
            let look = async {
                match look_at {
                    Some(look_at) => sleep_until(look_at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = shutdown.requested() => return Ok(None),
                read = self.stream.read(buffer) => return Ok(Some(read)),
                () = look => if self.is_slow() {
                    return Ok(None);
                },
            }
        }
    }

    /// Whether the connection is within a large frame and too little of it has come since the last look, if one is due.
    fn is_slow(&mut self) -> bool {
        let Some(large) = &mut self.large else { return false };
        let now = Instant::now();
        if now < large.look_at {
            return false;
        }
        let is_slow = large.bytes < SOCKET_LARGE_LOOK_BYTES_MIN;
        if is_slow {
            tracing::warn!(peer = %self.peer, "Client is too slow within a large frame");
        }
        large.look_at = now + Duration::from_millis(SOCKET_LARGE_LOOK_MS);
        large.bytes = 0;
        is_slow
    }

    /// After each read: whether the connection may go on. A large frame waits for room among those that are kept at once, and
    /// its connection has to come on then.
    async fn comes_on(&mut self, count: usize, shutdown: &Shutdown) -> Result<bool, Gone> {
        if self.decoder.kept_bytes() <= SOCKET_FRAME_KEPT_BYTES {
            self.large = None;
            return Ok(true);
        }
        let look = Duration::from_millis(SOCKET_LARGE_LOOK_MS);
        let Some(large) = &mut self.large else {
            self.gather.flush().await?;
            let room = Arc::clone(&self.shared.large).acquire_owned();
            let room = tokio::select! {
                () = shutdown.requested() => return Ok(false),
                room = room => room.map_err(|_| Gone)?,
            };
            self.large = Some(Large { _room: room, look_at: Instant::now() + look, bytes: 0 });
            return Ok(true);
        };
        large.bytes += count;
        Ok(!self.is_slow())
    }
}

fn piece<'a>(frame: Frame<'a>, peer: &'a Peer) -> Piece<'a> {
    let Frame { head, size, at, is_unterminated } = frame;
    Piece { head, size, peer, at: Some(at), is_unterminated, is_cut: false }
}
