//! A plugin host for the time of one command: the agent's own, with a folder that goes with it.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::clock::SystemClock;
use crate::plugin::config::{GuestConfig, InstanceLife, OnError, TransformConfig};
use crate::plugin::{CompiledDigests, HostOptions, PluginHost};
use crate::record::batch::LanePlace;
use crate::record::id::LaneName;
use crate::secret::SecretJson;
use crate::units::ByteSize;

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

/// Where the plugin believes to be: each part is called what it is.
pub(in crate::cli) fn place() -> anyhow::Result<LanePlace> {
    let agent = "agent".parse()?;
    let (source, pipeline, sink) = ("source".parse()?, "pipeline".parse()?, "sink".parse()?);
    let lane = LaneName::new(&agent, &source, &pipeline, &sink);
    Ok(LanePlace { lane, agent, source, pipeline, sink })
}

/// The plugin as its author gives it: the file, and its config as JSON text.
pub(super) fn guest_config(
    file: &Path,
    config: &str,
    memory_max: ByteSize,
    deadline: Duration,
) -> anyhow::Result<GuestConfig> {
    Ok(GuestConfig {
        plugin: file.to_owned(),
        sha256: None,
        config: SecretJson::new(&serde_json::from_str(config)?, Vec::new()),
        memory_max,
        deadline,
    })
}

/// A transform with what the config has where it says nothing.
pub(super) fn transform_config(
    guest: GuestConfig,
    instance: InstanceLife,
) -> anyhow::Result<TransformConfig> {
    Ok(TransformConfig {
        id: "plugin".parse()?,
        guest,
        tick: None,
        on_error: OnError::default(),
        instance,
        call_records_max: 1000,
        call_bytes_max: ByteSize(1 << 20),
    })
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
