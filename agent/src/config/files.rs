//! The files of a config: the one that is named, and the drop-ins in the folder beside it.
//!
//! For `waystation.toml` that folder is `waystation.d`. Its `*.toml` are taken in the order of their names; what begins with a
//! dot is an editor's.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::limits::{CONFIG_BYTES_MAX, CONFIG_DROP_INS_MAX};

/// The folder of a config's drop-ins.
#[must_use]
pub fn drop_in_folder(file: &Path) -> PathBuf {
    file.with_extension("d")
}

/// The drop-ins of a config, in their order; none where there is no folder.
///
/// # Errors
/// When the folder cannot be read, or holds too many.
pub fn drop_ins(file: &Path) -> io::Result<Vec<PathBuf>> {
    let folder = drop_in_folder(file);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        // A file of that name is nobody's folder.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let name = PathBuf::from(entry?.file_name());
        let is_hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
        if !is_hidden && name.extension().is_some_and(|extension| extension == "toml") {
            found.push(folder.join(name));
        }
    }
    if found.len() > CONFIG_DROP_INS_MAX {
        let message = format!("it holds more than {CONFIG_DROP_INS_MAX} files");
        return Err(io::Error::other(message));
    }
    found.sort();
    Ok(found)
}

/// All files of a config that are worth a look: one that is not there yet stands for what may come into the folder of drop-ins.
#[must_use]
pub fn files_of(file: &Path) -> Vec<PathBuf> {
    let mut files = vec![file.to_owned()];
    if drop_in_folder(file).is_dir() {
        files.push(drop_in_folder(file).join("*.toml"));
        files.extend(drop_ins(file).unwrap_or_default());
    }
    files
}

/// Reads one file, as far as its size makes sense.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
