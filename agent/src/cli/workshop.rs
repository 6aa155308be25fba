//! A plugin host for the time of one command: the agent's own, with a folder that goes with it.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context as _;
use tempfile::TempDir;

use crate::clock::SystemClock;
use crate::plugin::{CompiledDigests, HostOptions, PluginHost};

/// The host and its folder.
pub(in crate::cli) struct Workshop {
    pub(in crate::cli) host: PluginHost,
    /// Removed with the command.
    _folder: TempDir,
}

impl Workshop {
    pub(in crate::cli) fn open() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("waystation-plugin-").tempdir();
        let folder = folder.context("cannot make a temporary folder")?;
        let host = PluginHost::new(HostOptions {
            store_dir: folder.path().join("compiled"),
            compiler: Path::new("/proc/self/exe").to_owned(),
            clock: Arc::new(SystemClock),
            digests: Arc::new(Digests::default()),
        })?;
        Ok(Self { host, _folder: folder })
    }
}

/// The digests of this command's compilations.
#[derive(Debug, Default)]
struct Digests(Mutex<HashMap<String, [u8; 32]>>);

impl CompiledDigests for Digests {
    fn get(&self, key: &str) -> Option<[u8; 32]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    fn put(&self, key: &str, digest: [u8; 32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), digest);
        Ok(())
    }
}
