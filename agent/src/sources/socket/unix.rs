//! Sockets in the file system: who connects or sends is a process of this host, and the kernel says which.
//!
//! A sender can pass open files along. Nobody here asks for them: connections are read without them, and a datagram with room
//! for its sender's credentials and nothing else. The kernel closes what is not taken.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::net::{UnixDatagram, UnixListener, UnixStream};

use super::config::SocketPath;
use super::peer::{Process, Sender};
use crate::limits::SOCKET_BACKLOG;
use crate::net::clients::Accept;
use crate::net::socket_file::{Carries, SocketFile, SocketFileError};

/// A socket and its name, which goes first.
pub(super) struct Named<S> {
    file: Option<SocketFile>,
    pub(super) socket: S,
}

impl<S> Named<S> {
    /// Takes the name away: nobody can come any more.
    pub(super) fn remove(&mut self) {
        self.file = None;
    }
}

/// Listens for connections.
pub(super) async fn listen(path: &SocketPath) -> Result<Named<UnixListener>, SocketFileError> {
    let carries = Carries::Connections { backlog: SOCKET_BACKLOG };
    let (file, socket) = SocketFile::claim(&path.path, path.mode.0, carries).await?;
    let socket = UnixListener::from_std(OwnedFd::from(socket).into());
    Ok(Named { file: Some(file), socket: socket.map_err(failed(path))? })
}

/// Takes datagrams.
pub(super) async fn bind(path: &SocketPath) -> Result<Named<UnixDatagram>, SocketFileError> {
    let (file, socket) = SocketFile::claim(&path.path, path.mode.0, Carries::Datagrams).await?;
    let socket = UnixDatagram::from_std(OwnedFd::from(socket).into());
    Ok(Named { file: Some(file), socket: socket.map_err(failed(path))? })
}

fn failed(path: &SocketPath) -> impl FnOnce(io::Error) -> SocketFileError + '_ {
    |source| SocketFileError::System { path: path.path.clone(), doing: "serve", source }
}

impl Accept for Named<UnixListener> {
    type Stream = UnixStream;
    type Client = Sender;

    async fn next(&self) -> io::Result<(UnixStream, Sender)> {
        let (stream, _) = self.socket.accept().await?;
        let sender = stream.peer_cred().map_or(Sender::Unknown, |found| {
            let pid = found.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid != 0);
            Sender::Process(Process { pid, uid: found.uid() })
        });
        Ok((stream, sender))
    }
}

/// A datagram whose first bytes are in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Its bytes, also those that the buffer had no room for.
    pub(super) size: usize,
    pub(super) sender: Sender,
}

/// The next datagram.
///
/// # Cancel safety
/// Can be dropped; no datagram is lost.
pub(super) async fn receive(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<Received> {
    socket.async_io(Interest::READABLE, || receive_now(socket.as_fd(), buffer)).await
}

/// The next datagram, if there is one.
pub(super) fn try_receive(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<Received> {
    receive_now(socket.as_fd(), buffer)
}

/// Exactly the room for credentials, as the type has it that they are in.
#[expect(clippy::cast_possible_truncation, reason = "a dozen bytes")]
const CREDENTIALS_BYTES: u32 = size_of::<libc::ucred>() as u32;
#[expect(unsafe_code, reason = "arithmetic that C has as a macro")]
// SAFETY: it computes.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(CREDENTIALS_BYTES) } as usize;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

#[expect(
    unsafe_code,
    reason = "no library of ours has a safe call that gives size and credentials"
)]
fn receive_now(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: a struct of numbers and pointers, of which zero is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES as _;
    // With MSG_TRUNC it gives the true size.
    let flags = libc::MSG_TRUNC | libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the pointers lead to a buffer and a control block that are borrowed here, of the lengths that are said.
    let size = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let size = usize::try_from(size).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled the block and said how much of it; the first header is within, or null.
    let credentials = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        let is_theirs = !header.is_null()
            && (*header).cmsg_level == libc::SOL_SOCKET
            && (*header).cmsg_type == libc::SCM_CREDENTIALS
            && (*header).cmsg_len as usize >= libc::CMSG_LEN(CREDENTIALS_BYTES) as usize;
        is_theirs.then(|| std::ptr::read_unaligned(libc::CMSG_DATA(header).cast::<libc::ucred>()))
    };
    let sender = credentials.map_or(Sender::Unknown, |found| {
        let pid = u32::try_from(found.pid).ok().filter(|pid| *pid != 0);
        Sender::Process(Process { pid, uid: found.uid })
    });
    Ok(Received { size, sender })
}
