//! What becomes of a file that was read as a whole: it stays, is deleted, or is moved to another folder.
//!
//! Nothing is done before its record is durable, and only to the file as it was read: one that was changed since is read
//! again. A crash in between leaves the file, and its position says that it was read, so that only the rest is done. What
//! cannot be deleted or moved is in trouble, and is tried again after the next start.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::RenameFlags;

use super::config::AfterRead;
use super::follow::{Follower, note_trouble, open};
use super::tail::{Interrupted, Outlet, Stamp, Tail};
use crate::limits::FILE_MOVED_NAMES_MAX;

impl Follower {
    /// Everything that was handed over is durable. Returns whether there is something to do because of that.
    pub(super) fn all_is_durable(&mut self) -> bool {
        let keeps = self.after_read == AfterRead::Keep;
        let mut any = false;
        for tail in self.tails.values_mut() {
            tail.durable = tail.done.filter(|done| !keeps && tail.tried != Some(*done));
            any |= tail.durable.is_some();
        }
        any
    }

    /// Deletes or moves files whose record is durable.
    pub(super) fn after_read(&mut self, outlet: &Outlet<'_>) -> Result<(), Interrupted> {
        let is_due = |tail: &Tail| tail.durable.is_some() && tail.durable == tail.done;
        let tails = self.tails.iter().filter(|(_, tail)| is_due(tail));
        let places: Vec<u64> = tails.map(|(place, _)| *place).collect();
        for place in places {
            let Some(tail) = self.tails.get_mut(&place) else { continue };
            tail.tried = tail.durable.take();
            let done = match is_as_it_was_read(tail) {
                Ok(false) => continue,
                Ok(true) => put_away(&tail.path, &self.after_read, &self.patterns),
                Err(error) => Err(error),
            };
            if let Err(error) = done {
                note_trouble(tail, &error, &self.reading);
                // While it is closed and does not change, the trouble stays known.
                tail.input = None;
                continue;
            }
            self.places.remove(&tail.id);
            self.reading.collector.position(tail.id.key(), None);
            self.tails.remove(&place);
            outlet.send_if_full(&mut self.reading.collector)?;
        }
        Ok(())
    }
}

fn is_as_it_was_read(tail: &Tail) -> io::Result<bool> {
    match open(&tail.path, tail.id) {
        Ok(Some(file)) => Ok(tail.done == Some(Stamp::of(&file.metadata()?))),
        // Another file by now, or none.
        Ok(None) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn put_away(path: &Path, after_read: &AfterRead, patterns: &[glob::Pattern]) -> io::Result<()> {
    match after_read {
        AfterRead::Keep => Ok(()),
        AfterRead::Delete => std::fs::remove_file(path)
            .map_err(|error| told(&error, "it was read and cannot be deleted")),
        AfterRead::Move(folder) => move_into(path, folder, patterns).map_err(|error| {
            told(&error, &format!("it was read and cannot be moved to {}", folder.display()))
        }),
    }
}

fn told(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Moves it under its name, or with a number behind that: what is there is never replaced.
fn move_into(path: &Path, folder: &Path, patterns: &[glob::Pattern]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default();
    for number in 0..FILE_MOVED_NAMES_MAX {
        let mut name = name.to_owned();
        if number > 0 {
            name.push(format!(".{number}"));
        }
        let to: PathBuf = folder.join(name);
        if patterns.iter().any(|pattern| pattern.matches_path(&to)) {
            let message = "`paths` find it there, so that it would be read again";
            return Err(io::Error::other(message));
        }
        let cwd = rustix::fs::CWD;
        match rustix::fs::renameat_with(cwd, path, cwd, &to, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
