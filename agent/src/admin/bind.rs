//! Takes the two ways in. What is at the socket's path is replaced only when it is a socket that nobody has.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;

use tokio::net::{TcpListener, UnixListener};

use super::error::AdminError;
use crate::limits::ADMIN_SOCKET_BACKLOG;
use crate::net::socket_file::{Carries, SocketFile, SocketFileError};

/// Owner and group may ask, nobody else.
const SOCKET_MODE: u32 = 0o660;
const CARRIES: Carries = Carries::Connections { backlog: ADMIN_SOCKET_BACKLOG };

/// The TCP listener and the address it got.
pub(super) async fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), AdminError> {
    let failed = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// A socket with the name that it has. Dropping it removes the name first.
#[derive(Debug)]
pub(super) struct BoundSocket {
    _file: SocketFile,
    pub(super) listener: UnixListener,
}

impl BoundSocket {
    pub(super) async fn bind(path: &Path) -> Result<Self, AdminError> {
        let (file, socket) = SocketFile::claim(path, SOCKET_MODE, CARRIES).await.map_err(told)?;
        let listener = UnixListener::from_std(StdListener::from(OwnedFd::from(socket)));
        let failed = |source| AdminError::Socket { path: path.to_owned(), doing: "serve", source };
        Ok(Self { _file: file, listener: listener.map_err(failed)? })
    }
}

fn told(error: SocketFileError) -> AdminError {
    match error {
        SocketFileError::TooLong { path, bytes } => AdminError::SocketPathTooLong { path, bytes },
        SocketFileError::Taken { path } => AdminError::SocketPathTaken { path },
        SocketFileError::InUse { path } => AdminError::SocketInUse { path },
        SocketFileError::Locked { path } => {
            let source = io::Error::new(io::ErrorKind::ResourceBusy, "its folder is locked");
            AdminError::Socket { path, doing: "bind", source }
        }
        SocketFileError::System { path, doing, source } => {
            AdminError::Socket { path, doing, source }
        }
    }
}
