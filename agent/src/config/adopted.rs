//! The last config that a run has adopted, kept in the data directory for a start whose own file is broken.
//!
//! What is kept is the text of the file and its drop-ins, which holds references to secrets and never one, and where they lay,
//! for relative paths. A copy is used only for the file that it is of. It is written when a run has taken a config up, never before, and
//! in one step: aside, synced, renamed, the folder synced.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use super::DATA_DIR_DEFAULT;
use super::glimpse::Glimpse;
use super::load::{DropIn, InspectPlugin, Loaded, Text, read};
use crate::limits::CONFIG_BYTES_MAX;
use crate::settings::Problems;

/// The copy, in the data directory.
const NAME: &str = "adopted.json";
/// Where it is written before it takes that name.
const ASIDE: &str = "adopted.json.part";
/// For our user alone: a config is nobody else's business.
const MODE: u32 = 0o600;
/// The version of the copy's form.
const VERSION: u32 = 1;
/// Most bytes of a copy: a text in which every byte is escaped.
const COPY_BYTES_MAX: u64 = 6 * CONFIG_BYTES_MAX + 64 * 1024;

/// A config that a run has adopted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copy {
    version: u32,
    /// The file that it was.
    file: PathBuf,
    /// Of the text, so that a damaged copy is not believed.
    sha256: String,
    /// Of all files, one behind the other.
    text: String,
    /// Where the files behind the first begin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    drop_ins: Vec<DropIn>,
}

/// The SHA-256 of a config's text, as people write it.
#[must_use]
pub fn digest(text: &str) -> String {
    let digest: [u8; 32] = sha2::Sha256::digest(text.as_bytes()).into();
    crate::plugin::hex(&digest)
}

/// Keeps a config as the last that a run has adopted. Blocks; does nothing when it is kept already.
///
/// # Errors
/// When it cannot be written; what was kept before stays.
pub fn keep(data_dir: &Path, loaded: &Loaded) -> io::Result<()> {
    let copy = Copy {
        version: VERSION,
        file: loaded.file.clone(),
        sha256: digest(&loaded.text),
        text: loaded.text.clone(),
        drop_ins: loaded.drop_ins.clone(),
    };
    if kept(data_dir).as_ref() == Some(&copy) {
        return Ok(());
    }
    // Always the same name: what a power cut leaves is written over by the next run.
    let aside = data_dir.join(ASIDE);
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(MODE).open(&aside)?;
    file.write_all(&serde_json::to_vec(&copy)?)?;
    file.sync_all()?;
    std::fs::rename(&aside, data_dir.join(NAME))?;
    File::open(data_dir)?.sync_all()
}

/// What is kept in a data directory, if it can be believed.
#[must_use]
pub fn kept(data_dir: &Path) -> Option<Copy> {
    let mut bytes = Vec::new();
    let file = File::open(data_dir.join(NAME)).ok()?;
    file.take(COPY_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let copy: Copy = serde_json::from_slice(&bytes).ok()?;
    (copy.version == VERSION && copy.sha256 == digest(&copy.text)).then_some(copy)
}

/// The last adopted state of a config file that cannot be used now: looked for in `$STATE_DIRECTORY`, in the `data_dir` that
/// can still be read in the file, and in the default one.
#[must_use]
pub fn find(path: &Path, environment: &dyn Fn(&str) -> Option<String>) -> Option<Copy> {
    let absolute = std::path::absolute(path).ok()?;
    let base = absolute.parent().unwrap_or(Path::new("/"));
    // systemd separates several by colons.
    let state = environment("STATE_DIRECTORY").and_then(|folders| {
        let first = folders.split(':').next().unwrap_or_default().to_owned();
        (!first.is_empty()).then(|| PathBuf::from(first))
    });
    let said = Glimpse::of(path).ok().and_then(|glimpse| glimpse.text("agent", "data_dir"));
    let said = said.map(|data_dir| base.join(data_dir));
    let folders = state.into_iter().chain(said).chain([PathBuf::from(DATA_DIR_DEFAULT)]);
    folders.filter_map(|folder| kept(&folder)).find(|copy| copy.file == absolute)
}

impl Copy {
    /// Reads and checks it as the file was.
    ///
    /// # Errors
    /// All that is wrong with it by now, such as a plugin that is gone.
    pub fn load(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
        inspect_plugin: InspectPlugin<'_>,
    ) -> Result<Loaded, Problems> {
        let texts = self.files().map(|(file, text)| Text {
            shown: format!("{} as it was adopted", file.display()),
            file: file.to_owned(),
            bytes: text.as_bytes().to_vec(),
        });
        read(&texts.collect::<Vec<_>>(), &self.file, environment, inspect_plugin)
    }

    /// What can be read of it.
    #[must_use]
    pub fn glimpse(&self) -> Glimpse {
        Glimpse::in_texts(self.files().map(|(_, text)| text.as_bytes().to_vec()))
    }

    /// The files with their texts.
    fn files(&self) -> impl Iterator<Item = (&Path, &str)> {
        let drop_ins = self.drop_ins.iter().map(|part| (part.file.as_path(), part.start));
        let files = [(self.file.as_path(), 0)].into_iter().chain(drop_ins);
        let ends = self.drop_ins.iter().map(|part| part.start).chain([self.text.len()]);
        let text = |start, end| self.text.get(start..end).unwrap_or_default();
        files.zip(ends).map(move |((file, start), end)| (file, text(start, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[agent]\ndata_dir = \"data\"\n[sources.in]\ntype = \"generate\"\n\
        [sinks.out]\ntype = \"stdout\"\n[pipelines.p]\nsources = [\"in\"]\nsinks = [\"out\"]\n";

    struct Place {
        directory: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let place = Self { directory: tempfile::tempdir().unwrap() };
            std::fs::create_dir(place.data()).unwrap();
            place
        }

        fn data(&self) -> PathBuf {
            self.directory.path().join("data")
        }

        fn file(&self) -> PathBuf {
            self.directory.path().join("w.toml")
        }

        fn adopt(&self, text: &str) -> Loaded {
            std::fs::write(self.file(), text).unwrap();
            let loaded = super::super::load(&self.file(), &|_| None, &|_| Ok(Vec::new())).unwrap();
            keep(&self.data(), &loaded).unwrap();
            loaded
        }
    }

    #[test]
    fn the_last_adopted_config_is_found_again_from_a_broken_file_that_names_its_data_dir() {
        let place = Place::new();
        let adopted = place.adopt(CONFIG);
        std::fs::write(place.file(), "[agent]\ndata_dir = \"data\"\nid = = 3\n[sources").unwrap();
        let copy = find(&place.file(), &|_| None).unwrap();
        let loaded = copy.load(&|_| None, &|_| Ok(Vec::new())).unwrap();
        assert_eq!(loaded.config, adopted.config);
        assert_eq!(loaded.config.agent.data_dir, place.data());
    }

    #[test]
    fn the_state_directory_names_it_where_the_file_says_nothing_and_other_files_get_nothing() {
        let place = Place::new();
        place.adopt(CONFIG);
        std::fs::remove_file(place.file()).unwrap();
        let state = format!("{}:/elsewhere", place.data().display());
        let environment = |name: &str| (name == "STATE_DIRECTORY").then(|| state.clone());
        assert!(find(&place.file(), &environment).is_some());
        assert!(find(&place.file(), &|_| None).is_none());
        let other = place.directory.path().join("other.toml");
        assert!(find(&other, &environment).is_none());
    }

    #[test]
    fn a_damaged_copy_is_not_believed_and_the_same_config_is_not_written_again() {
        let place = Place::new();
        let adopted = place.adopt(CONFIG);
        let path = place.data().join(NAME);
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        keep(&place.data(), &adopted).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("stdout", "stderr")).unwrap();
        assert!(kept(&place.data()).is_none());
        std::fs::write(&path, &text.as_bytes()[..text.len() / 2]).unwrap();
        assert!(find(&place.file(), &|_| None).is_none());
    }
}
