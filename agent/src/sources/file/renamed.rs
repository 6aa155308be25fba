//! Finds a closed file again after it was renamed: by its inode, in the folder where it was.
//!
//! A file that went to another folder is not looked for.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};

use super::follow::open;
use super::identity::FileId;
use super::tail::{Stamp, Tail};

/// Which inode has which path, by folder: each folder is listed once a scan, when a file is missed in it.
#[derive(Debug, Default)]
pub(super) struct Folders(HashMap<PathBuf, HashMap<u64, PathBuf>>);

impl Folders {
    /// Where the inode stands in this folder. A folder that cannot be listed holds nothing.
    fn find(&mut self, folder: &Path, inode: u64) -> Option<&Path> {
        if !self.0.contains_key(folder) {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let inodes = entries.map(|entry| (entry.ino(), entry.path())).collect();
            self.0.insert(folder.to_owned(), inodes);
        }
        self.0.get(folder)?.get(&inode).map(PathBuf::as_path)
    }
}

impl Tail {
    /// Opens this file under its new name in its folder, if it has something unread. `None` when it has not.
    ///
    /// # Errors
    /// When it is not to be found there or cannot be opened, and may have something unread.
    pub(super) fn find_renamed(&mut self, folders: &mut Folders) -> io::Result<Option<File>> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let found = folders.find(folder, self.id.inode).map(Path::to_path_buf);
        let opened = match &found {
            Some(path) => open(path, self.id),
            None => Ok(None),
        };
        let file = match opened {
            Ok(Some(file)) if self.check.holds(&file, self.offset)? => file,
            // Another file has its inode: it was removed.
            Ok(_) if self.may_have_more() => return Err(io::ErrorKind::NotFound.into()),
            Ok(_) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.path = found.unwrap_or_default();
        let unread = self.unchanged != Some(Stamp::of(&file.metadata()?));
        Ok(unread.then_some(file))
    }

    /// Whether a closed file that is not found any more may have something unread: it was to be read, or another file has
    /// taken its path, so that somebody writes there.
    fn may_have_more(&self) -> bool {
        self.due || std::fs::metadata(&self.path).is_ok_and(|meta| FileId::of(&meta) != self.id)
    }
}
