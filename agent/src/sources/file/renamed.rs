//! Finds a closed file again after it was renamed: by its inode, in the folder where it was, also behind a link.
//!
//! A file that went to another folder is not looked for.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};

use super::follow::open;
use super::identity::{Agreement, FileId};
use super::input::Input;
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
    pub(super) fn find_renamed(&mut self, folders: &mut Folders) -> io::Result<Option<Input>> {
        let real = self.real.as_ref().map(PathBuf::from);
        let mut found = None;
        for path in [Some(&self.path), real.as_ref()].into_iter().flatten() {
            let folder = path.parent().unwrap_or(Path::new("/"));
            found = found.or_else(|| folders.find(folder, self.id.inode).map(Path::to_path_buf));
        }
        let opened = match &found {
            Some(path) => open(path, self.id)?,
            None => None,
        };
        let input = opened.map(Input::new).transpose()?;
        let is_it = |mut input: Input| {
            let agreement = match self.done {
                Some(_) => Agreement::Everything,
                None => input.agreement(&self.check, self.offset)?,
            };
            io::Result::Ok((agreement == Agreement::Everything).then_some(input))
        };
        let input = match input.map(is_it).transpose()?.flatten() {
            Some(input) => input,
            // Another file has its inode: it was removed.
            None if self.may_have_more() => return Err(io::ErrorKind::NotFound.into()),
            None => return Ok(None),
        };
        self.path = found.unwrap_or_default();
        let unread = self.unchanged != Some(Stamp::of(&input.file.metadata()?));
        Ok(unread.then_some(input))
    }

    /// Whether a closed file that is not found any more may have something unread: it was to be read, or another file has
    /// taken its path, so that somebody writes there.
    fn may_have_more(&self) -> bool {
        let is_new = |meta: std::fs::Metadata| FileId::of(&meta) != self.id;
        let is_read = self.done.is_some() && !self.due;
        !is_read && (self.due || std::fs::metadata(&self.path).is_ok_and(is_new))
    }
}
