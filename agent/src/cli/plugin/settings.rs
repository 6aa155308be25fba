//! What a plugin is told and given while its author tries it.

use std::path::Path;
use std::time::Duration;

use crate::plugin::config::{GuestConfig, InstanceLife, OnError, TransformConfig};
use crate::record::batch::LanePlace;
use crate::record::id::LaneName;
use crate::secret::SecretJson;
use crate::units::ByteSize;

/// Where the plugin believes to be: each part is called what it is.
pub(super) fn place() -> anyhow::Result<LanePlace> {
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
