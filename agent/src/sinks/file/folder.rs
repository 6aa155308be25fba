//! Folders below the root: opened without ever leaving it, made when missing, and synced.
//!
//! The kernel resolves the whole path below the root's descriptor (`openat2`, `RESOLVE_BENEATH`), so a symbolic link that
//! leads outside is refused at the moment of use. Kernels and sandboxes without that call get a walk that follows no link.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const FOLDERS_REMEMBERED_MAX: usize = 256;
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);

/// A failed step and the path that it concerned.
#[derive(Debug)]
pub(super) struct Failed {
    /// The verb, as in "cannot VERB PATH".
    pub(super) verb: &'static str,
    /// On what.
    pub(super) path: PathBuf,
    /// Why.
    pub(super) error: io::Error,
}

impl Failed {
    pub(super) fn new(verb: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self { verb, path: path.to_path_buf(), error: error.into() }
    }
}

/// The root, opened. Made first, with its parents, unless it must exist.
pub(super) fn open_root(root: &Path, must_exist: bool) -> Result<OwnedFd, Failed> {
    match rustix::fs::openat(CWD, root, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) if !must_exist => make_root(root)?,
        other => return other.map_err(|error| Failed::new("open", root, error)),
    }
    rustix::fs::openat(CWD, root, FOLDER, Mode::empty())
        .map_err(|error| Failed::new("open", root, error))
}

/// Makes the root and its missing parents, and syncs every folder that got a new entry.
fn make_root(root: &Path) -> Result<(), Failed> {
    let failed = |error| Failed::new("make", root, error);
    let missing: Vec<&Path> = root.ancestors().take_while(|path| !path.exists()).collect();
    std::fs::create_dir_all(root).map_err(failed)?;
    for made in missing {
        let parent = match made.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let synced = std::fs::File::open(parent).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Failed::new("sync", parent, error))?;
    }
    Ok(())
}

/// Folders that are known to be there for good. A folder that is merely found may have been made by an attempt that was cut
/// off before it could sync it; so each is synced once by each run.
#[derive(Debug, Default)]
pub(super) struct Synced(Mutex<HashSet<PathBuf>>);

impl Synced {
    fn has(&self, path: &Path) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
    }

    fn note(&self, path: PathBuf) {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Names with an hour in them make new folders for ever; the old ones are not asked for again.
        if paths.len() >= FOLDERS_REMEMBERED_MAX {
            paths.clear();
        }
        paths.insert(path);
    }

    /// Syncs the entry of a root that was found.
    pub(super) fn settle_root(&self, root: &Path) {
        if !self.has(root) {
            // Not every root has a parent that is ours to open; then it was not made by us either.
            let parent = root.parent().unwrap_or(root);
            let _not_ours = std::fs::File::open(parent).and_then(|folder| folder.sync_all());
            self.note(root.to_path_buf());
        }
    }
}

/// The folder at `relative` below the root, made when missing.
pub(super) fn open_below(
    root: &OwnedFd,
    root_path: &Path,
    relative: &Path,
    synced: &Synced,
) -> Result<OwnedFd, Failed> {
    let mut parent = root.try_clone().map_err(|error| Failed::new("open", root_path, error))?;
    let mut way = PathBuf::new();
    for part in relative.components() {
        way.push(part);
        let path = root_path.join(&way);
        let mut is_settled = synced.has(&path);
        let folder = match open_beneath(root, &way, FOLDER) {
            Err(Errno::NOENT) => {
                is_settled = false;
                match rustix::fs::mkdirat(&parent, part.as_os_str(), FOLDER_MODE) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(Failed::new("make", &path, error)),
                }
                open_beneath(root, &way, FOLDER)
            }
            other => other,
        };
        let folder = folder.map_err(|error| match error {
            Errno::XDEV | Errno::LOOP | Errno::MLINK => Failed::new(
                "open",
                &path,
                io::Error::other("a symbolic link on the way leads out of the root"),
            ),
            error => Failed::new("open", &path, error),
        })?;
        if !is_settled {
            sync(&parent).map_err(|error| Failed::new("sync the folder of", &path, error))?;
            synced.note(path);
        }
        parent = folder;
    }
    Ok(parent)
}

/// Opens what lies below `root` without leaving it.
fn open_beneath(root: &OwnedFd, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(root, relative, flags, Mode::empty(), resolve) {
        // EPERM: sandboxes that do not know the call refuse it so.
        Err(Errno::NOSYS | Errno::PERM) => open_without_links(root, relative, flags),
        other => other,
    }
}

fn open_without_links(root: &OwnedFd, relative: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut folder = None;
    for part in relative.components() {
        let at = folder.as_ref().unwrap_or(root);
        let opened =
            rustix::fs::openat(at, part.as_os_str(), flags | OFlags::NOFOLLOW, Mode::empty());
        // A link is ENOTDIR here, because a folder is asked for; say what it is.
        folder = Some(match opened {
            Err(Errno::NOTDIR) if is_link(at, part.as_os_str()) => return Err(Errno::LOOP),
            other => other?,
        });
    }
    folder.ok_or(Errno::INVAL)
}

fn is_link(folder: &OwnedFd, name: &std::ffi::OsStr) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink
    })
}

/// Syncs a folder. File systems that cannot do that say EINVAL, and have nothing to sync.
pub(super) fn sync(folder: &OwnedFd) -> io::Result<()> {
    match rustix::fs::fsync(folder) {
        Err(Errno::INVAL) => Ok(()),
        other => other.map_err(io::Error::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(root: &OwnedFd, relative: &str) -> [Result<(), Errno>; 2] {
        let relative = Path::new(relative);
        [
            open_beneath(root, relative, FOLDER).map(drop),
            open_without_links(root, relative, FOLDER).map(drop),
        ]
    }

    #[test]
    fn links_that_lead_outside_are_refused_with_and_without_openat2() {
        let outside = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("absolute")).unwrap();
        std::os::unix::fs::symlink("..", root.path().join("up")).unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::os::unix::fs::symlink("a", root.path().join("inside")).unwrap();
        let fd = open_root(root.path(), true).unwrap();
        assert_eq!(both(&fd, "a/b"), [Ok(()), Ok(())]);
        assert_eq!(both(&fd, "inside/b"), [Ok(()), Err(Errno::LOOP)]);
        assert_eq!(both(&fd, "absolute"), [Err(Errno::XDEV), Err(Errno::LOOP)]);
        assert_eq!(both(&fd, "up"), [Err(Errno::XDEV), Err(Errno::LOOP)]);
    }

    #[test]
    fn a_missing_root_is_made_unless_it_must_exist() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("a/b/c");
        assert_eq!(open_root(&root, true).unwrap_err().error.kind(), io::ErrorKind::NotFound);
        let fd = open_root(&root, false).unwrap();
        open_below(&fd, &root, Path::new("d/e"), &Synced::default()).unwrap();
        assert!(root.join("d/e").is_dir());
    }
}
