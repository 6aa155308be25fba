//! Sockets in the file system: made with their mode, taken over from nobody who is there, removed by whoever made them.
//!
//! 1. The folder is locked, so that of two who come at once the second does not take the first one's new socket for a stale one.
//! 2. What is at the path is looked at. Anything but a socket is left alone, a link too. A socket is asked whether somebody has
//!    it: by the connect of a socket for datagrams, which sends nothing, and of which a server of connections sees nothing.
//! 3. One that nobody has (its process was killed) is removed.
//! 4. The new one has its mode before it has a name: it is never open to more than that. Then it is bound, and listens.
//!
//! At the end the name goes before the socket does: who comes then finds nothing, and nobody's new socket is removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::limits::{SOCKET_FILE_LOCK_MS_MAX, SOCKET_PATH_BYTES_MAX};

/// How often the folder's lock is tried.
const LOCK_EVERY: Duration = Duration::from_millis(20);

/// Why there is no socket at a path.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// The path does not fit into an address.
    #[error(
        "{path} has {bytes} bytes, a socket's path can have {SOCKET_PATH_BYTES_MAX}: name a shorter one"
    )]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Something else is there.
    #[error(
        "{path} is there and is no socket: remove it, or name another path; it was not touched"
    )]
    Taken {
        /// The path.
        path: PathBuf,
    },
    /// Somebody has it.
    #[error(
        "another process has the socket {path}: end it, or name another path; it was not touched"
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Somebody else works in the folder, and has not come to an end.
    #[error("another process keeps the folder of {path} locked")]
    Locked {
        /// The path.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("cannot {doing} the socket {path}")]
    System {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The name of a socket that is ours. Dropping it removes the file, if it is still this one.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode: somebody who came later may have put another socket there.
    identity: (u64, u64),
}

/// What a socket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// Connections, of which so many may wait to be accepted.
    Connections {
        /// How many.
        backlog: i32,
    },
    /// Datagrams, each with its sender's credentials.
    Datagrams,
}

impl SocketFile {
    /// Makes a socket at a path that does not block; whoever holds both drops the name first.
    ///
    /// # Errors
    /// When the path cannot be a socket's, is in use, or the system refuses.
    ///
    /// # Cancel safety
    /// Can be dropped: then nothing was done.
    pub async fn claim(
        path: &Path,
        mode: u32,
        carries: Carries,
    ) -> Result<(Self, Socket), SocketFileError> {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            return Err(SocketFileError::TooLong { path: path.to_owned(), bytes });
        }
        let _locked = lock(path).await?;
        make_way(path)?;
        let failed = |doing| move |source| system(path, doing, source);
        let kind = match carries {
            Carries::Connections { .. } => Type::STREAM,
            Carries::Datagrams => Type::DGRAM,
        };
        let socket = Socket::new(Domain::UNIX, kind, None).map_err(failed("make"))?;
        socket.set_nonblocking(true).map_err(failed("make"))?;
        // The kernel takes the mode of the file that it makes from the socket, less what the umask forbids.
        fchmod(&socket, Mode::from_raw_mode(mode))
            .map_err(|error| system(path, "set the mode of", error.into()))?;
        if carries == Carries::Datagrams {
            socket.set_passcred(true).map_err(failed("make"))?;
        }
        let address = SockAddr::unix(path).map_err(failed("bind"))?;
        socket.bind(&address).map_err(failed("bind"))?;
        let identity = identity(path).map_err(failed("look at"))?;
        let file = Self { path: path.to_owned(), identity };
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(failed("set the mode of"))?;
        if let Carries::Connections { backlog } = carries {
            socket.listen(backlog).map_err(failed("listen on"))?;
        }
        Ok((file, socket))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "Socket cannot be removed");
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

fn system(path: &Path, doing: &'static str, source: io::Error) -> SocketFileError {
    SocketFileError::System { path: path.to_owned(), doing, source }
}

/// Locks the folder of the path until the result is dropped; leaves nothing behind.
async fn lock(path: &Path) -> Result<File, SocketFileError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new(".")))
        .map_err(|source| system(path, "bind", source))?;
    let mut waited = Duration::ZERO;
    loop {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(Errno::WOULDBLOCK) if waited < Duration::from_millis(SOCKET_FILE_LOCK_MS_MAX) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(SocketFileError::Locked { path: path.to_owned() });
            }
            Err(error) => return Err(system(path, "bind", error.into())),
        }
        tokio::time::sleep(LOCK_EVERY).await;
        waited += LOCK_EVERY;
    }
}

/// Removes a socket that nobody has; refuses what else is there.
fn make_way(path: &Path) -> Result<(), SocketFileError> {
    let failed = |doing| move |source| system(path, doing, source);
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
    };
    if !found.file_type().is_socket() {
        return Err(SocketFileError::Taken { path: path.to_owned() });
    }
    let asking = Socket::new(Domain::UNIX, Type::DGRAM, None).map_err(failed("ask"))?;
    let address = SockAddr::unix(path).map_err(failed("ask"))?;
    let error = match asking.connect(&address) {
        Ok(()) => return Err(SocketFileError::InUse { path: path.to_owned() }),
        Err(error) => error,
    };
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::CONNREFUSED) => fs::remove_file(path).map_err(failed("replace")),
        Some(Errno::NOENT) => Ok(()),
        // It carries connections; or it is connected to somebody, and takes datagrams of nobody else.
        Some(Errno::PROTOTYPE | Errno::PERM) => {
            Err(SocketFileError::InUse { path: path.to_owned() })
        }
        _ => Err(failed("ask")(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

    use super::*;

    const STREAM: Carries = Carries::Connections { backlog: 8 };

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[tokio::test]
    async fn it_has_the_mode_that_it_was_given_whatever_the_umask_says_and_goes_with_its_owner() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for (bits, carries) in [(0o600, STREAM), (0o660, Carries::Datagrams), (0o666, STREAM)] {
            let (file, socket) = SocketFile::claim(&path, bits, carries).await.unwrap();
            assert_eq!(mode(&path), bits);
            drop((file, socket));
            assert!(!path.exists());
        }
    }

    /// What the file is between its birth and the change of its mode: only the umask can make it less.
    #[test]
    fn a_socket_is_born_with_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
        fchmod(&socket, Mode::from_raw_mode(0o600)).unwrap();
        socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        assert_eq!(mode(&path), 0o600);
    }

    #[tokio::test]
    async fn one_that_nobody_has_is_taken_over_and_one_that_somebody_has_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        for carries in [STREAM, Carries::Datagrams] {
            drop(UnixListener::bind(&path).unwrap());
            drop(SocketFile::claim(&path, 0o600, carries).await.unwrap());
            drop(UnixDatagram::bind(&path).unwrap());
            drop(SocketFile::claim(&path, 0o600, carries).await.unwrap());

            let living = UnixListener::bind(&path).unwrap();
            living.set_nonblocking(true).unwrap();
            let refused = SocketFile::claim(&path, 0o600, carries).await.unwrap_err();
            assert!(matches!(refused, SocketFileError::InUse { .. }), "{refused}");
            assert!(living.accept().is_err(), "it was not disturbed");
            drop(UnixStream::connect(&path).unwrap());
            fs::remove_file(&path).unwrap();

            let living = UnixDatagram::bind(&path).unwrap();
            living.set_nonblocking(true).unwrap();
            let refused = SocketFile::claim(&path, 0o600, carries).await.unwrap_err();
            assert!(matches!(refused, SocketFileError::InUse { .. }), "{refused}");
            assert!(living.recv(&mut [0]).is_err(), "it was not disturbed");
            fs::remove_file(&path).unwrap();
        }
    }

    #[tokio::test]
    async fn what_is_no_socket_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("s"), folder.path().join("other"));
        fs::write(&path, "mine").unwrap();
        let refused = SocketFile::claim(&path, 0o600, STREAM).await.unwrap_err();
        assert!(matches!(refused, SocketFileError::Taken { .. }), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        fs::remove_file(&path).unwrap();

        drop(UnixListener::bind(&other).unwrap());
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let refused = SocketFile::claim(&path, 0o600, STREAM).await.unwrap_err();
        assert!(matches!(refused, SocketFileError::Taken { .. }), "{refused}");
        assert!(fs::symlink_metadata(&other).unwrap().file_type().is_socket());
    }

    #[tokio::test]
    async fn of_many_who_come_at_once_one_gets_it_and_its_successor_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let claims = (0..8).map(|_| SocketFile::claim(&path, 0o600, STREAM));
        let claims = futures_util::future::join_all(claims).await;
        let mut got: Vec<_> = claims.into_iter().filter_map(Result::ok).collect();
        assert_eq!(got.len(), 1);
        let (file, socket) = got.pop().unwrap();
        fs::remove_file(&path).unwrap();
        let successor = UnixListener::bind(&path).unwrap();
        drop((file, socket));
        assert!(path.exists());
        drop(successor);
    }

    #[tokio::test(start_paused = true)]
    async fn while_somebody_works_in_the_folder_nothing_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        let stale = identity(&path).unwrap();
        let locked = lock(&path).await.unwrap();
        let refused = SocketFile::claim(&path, 0o600, STREAM).await.unwrap_err();
        assert!(matches!(refused, SocketFileError::Locked { .. }), "{refused}");
        assert_eq!(identity(&path).unwrap(), stale);
        drop(locked);
        drop(SocketFile::claim(&path, 0o600, STREAM).await.unwrap());
    }

    #[tokio::test]
    async fn a_path_of_107_bytes_is_taken_and_one_of_108_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let room = SOCKET_PATH_BYTES_MAX - folder.path().as_os_str().len() - 1;
        let path = folder.path().join("x".repeat(room));
        drop(SocketFile::claim(&path, 0o600, STREAM).await.unwrap());
        let path = folder.path().join("x".repeat(room + 1));
        let refused = SocketFile::claim(&path, 0o600, STREAM).await.unwrap_err();
        assert!(refused.to_string().contains("has 108 bytes"), "{refused}");
    }
}
