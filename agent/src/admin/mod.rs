//! The admin server: how the agent is, asked over a Unix socket and, when the config says so, over TCP on loopback.
//!
//! | endpoint | answer |
//! |---|---|
//! | `GET /health` | 200 `ok`, as soon as it serves |
//! | `GET /ready` | 200, or 503 with the reasons: `{"ready":false,"reasons":["…"]}` |
//! | `GET /metrics` | Prometheus text |
//! | `GET /status` | JSON, `"version": 1` ([`status::StatusView`]) |
//!
//! | `POST /orders/…` | what an operator orders, over the socket only ([`orders`]) |
//!
//! Everything else is a problem in JSON (RFC 9457) with a stable `code`. What is told is the same on both ways in.
//!
//! It has a runtime of its own on a thread of its own: whoever asks why the agent is slow must be answered while the agent is
//! slow, and a wave of requests must not take time from the lanes. For the same reason each way in has its own share of
//! connections, a connection carries one request and lives for seconds (one with an order, until that is done), and the server
//! ends last. Over TCP the `Host` of a request must be a loopback name or the address listened on, so that a page in
//! somebody's browser cannot ask through a name that points here; no answer allows another origin.
//!
//! It knows [`Status`] and the orders that [`Handle`] takes, and nothing of the parts behind them.

mod bind;
mod error;
mod lane_orders;
mod metrics;
pub mod orders;
mod reload;
mod routes;
mod server;
pub mod status;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

pub use error::AdminError;

use crate::supervisor::Handle;
use crate::supervisor::status::Status;
use crate::tasks::Shutdown;
use bind::BoundSocket;

/// Where the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminOptions {
    /// The Unix socket.
    pub socket: PathBuf,
    /// The TCP address, if it listens on one.
    pub listen: Option<SocketAddr>,
}

/// Gives the status at the moment it is called. It must not wait for anybody.
pub type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

/// Gives the agent that takes orders at the moment it is called.
pub type OrdersSource = Arc<dyn Fn() -> Handle + Send + Sync>;

/// The version of this interface.
pub const VERSION: u32 = 1;

/// A running server. Dropping it asks it to stop and waits for its thread, a second at most.
pub struct Admin {
    thread: Option<JoinHandle<()>>,
    shutdown: Shutdown,
    listen: Option<SocketAddr>,
    socket_error: Option<AdminError>,
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl Admin {
    /// The TCP address it listens on, with the port that was given to it.
    #[must_use]
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Why there is no Unix socket, once. The agent runs without; the caller warns.
    pub fn take_socket_error(&mut self) -> Option<AdminError> {
        self.socket_error.take()
    }

    /// Stops it: answers that are on their way go out, the socket's file goes. Blocks for a second at most.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.shutdown.request();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("Admin server ended in a panic");
        }
    }
}

/// Binds and serves until `shutdown` is requested, which its owner does last of all. Blocks until it is bound.
///
/// # Errors
/// When the thread cannot be started or the TCP address cannot be bound. A socket that cannot be bound is no error here, see
/// [`Admin::take_socket_error`].
pub fn serve(
    options: AdminOptions,
    status: StatusSource,
    agent: OrdersSource,
    shutdown: Shutdown,
) -> Result<Admin, AdminError> {
    let (report, bound) = sync_channel(1);
    let asked = shutdown.clone();
    let thread = std::thread::Builder::new()
        .name("admin".to_owned())
        .spawn(move || run(&options, status, agent, asked, &report))
        .map_err(AdminError::Start)?;
    // The thread reports once; if it panicked instead, joining it is all that is left to do.
    let mut admin = Admin { thread: Some(thread), shutdown, listen: None, socket_error: None };
    let lost = || AdminError::Start(std::io::Error::other("its thread ended early"));
    let (listen, socket_error) = bound.recv().map_err(|_| lost())??;
    (admin.listen, admin.socket_error) = (listen, socket_error);
    Ok(admin)
}

/// What the thread tells when it serves: the TCP address, and why there is no socket.
type Report = Result<(Option<SocketAddr>, Option<AdminError>), AdminError>;

fn run(
    options: &AdminOptions,
    status: StatusSource,
    agent: OrdersSource,
    shutdown: Shutdown,
    report: &SyncSender<Report>,
) {
    // A caller that no longer listens has nothing to be told.
    let tell = |what| drop(report.send(what));
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(AdminError::Start(error))),
    };
    runtime.block_on(async {
        let tcp = match options.listen {
            None => None,
            Some(address) => match bind::tcp(address).await {
                Ok(bound) => Some(bound),
                Err(error) => return tell(Err(error)),
            },
        };
        let (socket, socket_error) = match BoundSocket::bind(&options.socket).await {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error)),
        };
        tell(Ok((tcp.as_ref().map(|(_, address)| *address), socket_error)));
        server::run(socket, tcp, status, agent, shutdown).await;
    });
}
