//! Datagrams, of UDP or of a socket in the file system: each is a record.
//!
//! For UDP, the buffer is larger than any datagram of UDP, which has at most 65 507 bytes of content over IPv4 and 65 527 over IPv6; so
//! nothing is cut. One that fills the buffer all the same was longer, and is marked as cut.
//!
//! What comes while the kernel's buffer is full is dropped by the kernel, which counts it; the count is taken from
//! `/proc/net/udp` now and then. What was dropped on its way here nobody counts.
//!
//! A sender to a socket in the file system waits when it is not taken, so the kernel drops nothing; asked to stop, the source
//! takes what the kernel still holds. The kernel tells the true size of a datagram that the buffer has no room for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use socket2::SockRef;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::gather::{Gather, Gone, Piece};
use super::peer::{Peer, Sender};
use super::unix::{self, Named, Received};
use crate::limits::{
    DATAGRAM_BYTES_MAX, DATAGRAMS_KERNEL_BYTES, DATAGRAMS_LOOK_MS, SOCKET_FILE_DATAGRAM_BYTES_MAX,
    SOCKET_FILE_LAST_DATAGRAMS_MAX,
};
use crate::tasks::Shutdown;

/// When the kernel is not to be asked.
const NEVER_MS: u64 = 24 * 60 * 60 * 1000;
/// Wait after a datagram could not be received.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address).await?;
    // The kernel gives what `net.core.rmem_max` allows.
    SockRef::from(&socket).set_recv_buffer_size(DATAGRAMS_KERNEL_BYTES)?;
    Ok(socket)
}

/// Receives until asked to stop; then hands over what it has.
pub(super) async fn serve(socket: UdpSocket, shared: Arc<Shared>, shutdown: Shutdown) {
    let dropped = Dropped::of(&socket);
    let mut receiving = Receiving::new(Socket::Udp(socket), dropped, &shared);
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    // Nobody is left to be told.
    let _gone = receiving.run(&mut buffer, &shutdown).await;
    receiving.dropped.look(&receiving.shared).await;
}

/// The same for a socket in the file system.
pub(super) async fn serve_local(
    socket: Named<UnixDatagram>,
    shared: Arc<Shared>,
    shutdown: Shutdown,
) {
    let mut receiving = Receiving::new(Socket::Local(socket), Dropped::never(), &shared);
    // One more than a record may have: a newline at the end of a syslog message is none of it.
    let record_bytes_max = shared.limits.record_bytes_max.as_usize();
    let mut buffer = vec![0; (record_bytes_max + 1).min(SOCKET_FILE_DATAGRAM_BYTES_MAX)];
    if receiving.run(&mut buffer, &shutdown).await.is_ok() {
        let _gone = receiving.take_last(&mut buffer).await;
    }
}

enum Socket {
    Udp(UdpSocket),
    Local(Named<UnixDatagram>),
}

impl Socket {
    /// # Cancel safety
    /// Can be dropped; no datagram is lost.
    async fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Self::Udp(socket) => {
                let (size, peer) = socket.recv_from(buffer).await?;
                Ok(Received { size, sender: Sender::Address(peer.ip().to_canonical()) })
            }
            Self::Local(named) => unix::receive(&named.socket, buffer).await,
        }
    }
}

struct Receiving {
    socket: Socket,
    gather: Gather,
    dropped: Dropped,
    shared: Arc<Shared>,
    /// Who sent last.
    peer: Peer,
    failing: bool,
}

impl Receiving {
    fn new(socket: Socket, dropped: Dropped, shared: &Arc<Shared>) -> Self {
        let (gather, peer) = (Gather::new(shared), Peer::new(Sender::Unknown));
        Self { socket, gather, dropped, shared: Arc::clone(shared), peer, failing: false }
    }

    async fn run(&mut self, buffer: &mut [u8], shutdown: &Shutdown) -> Result<(), Gone> {
        while !shutdown.is_requested() {
            if Instant::now() >= self.dropped.look_at {
                self.dropped.look(&self.shared).await;
            }
            let ready = self.socket.receive(buffer).now_or_never();
            let received = match ready {
                Some(received) => received,
                None => {
                    self.gather.flush().await?;
                    tokio::select! {
                        () = shutdown.requested() => break,
                        () = sleep_until(self.dropped.look_at) => continue,
                        received = self.socket.receive(buffer) => received,
                    }
                }
            };
            match received {
                Ok(received) => {
                    self.failing = false;
                    self.datagram(buffer, received).await?;
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "Datagrams cannot be received");
                    }
                    shutdown.sleep(PAUSE).await;
                }
            }
        }
        self.gather.flush().await
    }

    /// Asked to stop: what was sent before the name went.
    async fn take_last(&mut self, buffer: &mut [u8]) -> Result<(), Gone> {
        if let Socket::Local(named) = &mut self.socket {
            named.remove();
        }
        for _ in 0..SOCKET_FILE_LAST_DATAGRAMS_MAX {
            let Socket::Local(named) = &self.socket else { break };
            let Ok(received) = unix::try_receive(&named.socket, buffer) else { break };
            self.datagram(buffer, received).await?;
        }
        self.gather.flush().await
    }

    async fn datagram(&mut self, buffer: &[u8], received: Received) -> Result<(), Gone> {
        let Received { mut size, sender } = received;
        if let Sender::Address(client) = sender
            && !self.shared.knows(client)
        {
            return Ok(());
        }
        self.peer.become_sender(sender);
        let mut content = &buffer[..size.min(buffer.len())];
        let is_cut = match self.socket {
            Socket::Udp(_) => size >= buffer.len(),
            Socket::Local(_) => size > buffer.len(),
        };
        // Many senders of syslog end a datagram as they would a line.
        if self.shared.is_syslog
            && !is_cut
            && let Some(line) = content.strip_suffix(b"\n")
        {
            (content, size) = (line, size - 1);
        }
        let max = self.shared.limits.record_bytes_max.as_usize();
        let piece = Piece {
            head: &content[..content.len().min(max)],
            size: size as u64,
            peer: &self.peer,
            at: None,
            is_unterminated: false,
            is_cut,
        };
        self.gather.take(piece).await
    }
}

/// What the kernel has dropped of one socket of UDP.
struct Dropped {
    /// The socket's number in the kernel's tables.
    inode: Option<u64>,
    known: u64,
    look_at: Instant,
}

impl Dropped {
    fn of(socket: &UdpSocket) -> Self {
        let inode = socket
            .as_fd()
            .try_clone_to_owned()
            .ok()
            .and_then(|fd: OwnedFd| rustix::fs::fstat(&fd).ok().map(|found| found.st_ino));
        Self { inode, known: 0, look_at: Instant::now() + Duration::from_millis(DATAGRAMS_LOOK_MS) }
    }

    /// Of a socket of which the kernel drops nothing.
    fn never() -> Self {
        Self { inode: None, known: 0, look_at: Instant::now() }
    }

    /// Counts what was dropped since the last look, and says when it has begun.
    async fn look(&mut self, shared: &Shared) {
        let every = if self.inode.is_some() { DATAGRAMS_LOOK_MS } else { NEVER_MS };
        self.look_at = Instant::now() + Duration::from_millis(every);
        let Some(inode) = self.inode else { return };
        let reading = tokio::task::spawn_blocking(move || {
            ["/proc/net/udp", "/proc/net/udp6"].into_iter().find_map(|path| {
                let table = std::fs::read_to_string(path).ok()?;
                drops(&table, inode)
            })
        });
        let Ok(Some(now)) = reading.await else { return };
        let new = now.saturating_sub(self.known);
        if new > 0 {
            shared.counters.datagrams_dropped.fetch_add(new, Ordering::Relaxed);
            tracing::warn!(
                count = new,
                "Datagrams were dropped, as they came faster than they were taken"
            );
        }
        self.known = now;
    }
}

/// The last column of the socket's row.
fn drops(table: &str, inode: u64) -> Option<u64> {
    let inode = inode.to_string();
    table.lines().skip(1).find_map(|row| {
        let columns: Vec<_> = row.split_whitespace().collect();
        let is_its = columns.get(9).is_some_and(|column| **column == *inode);
        is_its.then(|| columns.last()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_found_in_its_table() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n  \
                     362: 0100007F:0202 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0000000000000000 17\n  \
                     363: 0100007F:0203 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4712 2 0000000000000000 3\n";
        assert_eq!(
            (drops(table, 4711), drops(table, 4712), drops(table, 47)),
            (Some(17), Some(3), None)
        );
        assert_eq!(drops("", 1), None);
    }

    #[tokio::test]
    async fn the_kernel_knows_the_socket() {
        let socket = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let dropped = Dropped::of(&socket);
        let table = std::fs::read_to_string("/proc/net/udp").unwrap();
        assert_eq!(drops(&table, dropped.inode.unwrap()), Some(0));
    }
}
