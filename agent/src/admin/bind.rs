//! Takes the two ways in. What is at the socket's path is replaced only when it is a socket on which nobody answers.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::error::AdminError;
use crate::limits::SOCKET_PATH_BYTES_MAX;

/// Owner and group may ask, nobody else.
const SOCKET_MODE: u32 = 0o660;

/// The TCP listener and the address it got.
pub(super) async fn tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), AdminError> {
    let failed = |source| AdminError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// A socket with the file that it made. Dropping it removes the file, if it is still this one.
#[derive(Debug)]
pub(super) struct BoundSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode: an agent that came later may have put its own socket there.
    identity: (u64, u64),
}

impl BoundSocket {
    pub(super) async fn bind(path: &Path) -> Result<Self, AdminError> {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(AdminError::SocketPathTooLong { path: path.to_owned(), bytes });
        }
        let failed =
            |doing| move |source| AdminError::Socket { path: path.to_owned(), doing, source };
        make_way(path).await?;
        let listener = UnixListener::bind(path).map_err(failed("bind"))?;
        // Nothing is served before this: who connects in between waits and is then asked like everybody.
        let permissions = fs::Permissions::from_mode(SOCKET_MODE);
        fs::set_permissions(path, permissions).map_err(failed("set the mode of"))?;
        let identity = identity(path).map_err(failed("look at"))?;
        Ok(Self { listener, path: path.to_owned(), identity })
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "Admin socket cannot be removed");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

async fn make_way(path: &Path) -> Result<(), AdminError> {
    let failed = |doing| move |source| AdminError::Socket { path: path.to_owned(), doing, source };
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(AdminError::SocketPathTaken { path: path.to_owned() });
    }
    match UnixStream::connect(path).await {
        // A full queue is the sign of somebody who is there and slow.
        Ok(_) => Err(AdminError::SocketInUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(AdminError::SocketInUse { path: path.to_owned() })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(failed("replace"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("ask")(error)),
    }
}
