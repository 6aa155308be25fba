//! The whole configuration: what `waystation.toml` says, read, checked and complete.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::journal::config::JournalConfig;
use crate::lane::config::PipelineConfig;
use crate::plugin::config::TransformConfig;
use crate::record::id::AgentId;
use crate::sinks::config::SinkConfig;
use crate::sources::config::SourceConfig;
use crate::telemetry::config::LogConfig;

/// The `[agent]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// `id`; default: the one that the journal holds, at the first start the host name made to fit.
    pub id: Option<AgentId>,
    /// `data_dir`, already resolved against the folder of the config file; default `/var/lib/waystation`.
    pub data_dir: PathBuf,
    /// `stop_grace`: how long a stop may take; default `"10s"`.
    pub stop_grace: Duration,
    /// `owner`: free text for whoever is woken; default none.
    pub owner: Option<String>,
    /// `runbook`: free text or a URL; default none.
    pub runbook: Option<String>,
}

/// The `[admin]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// `socket`; default `$RUNTIME_DIRECTORY/admin.sock` under systemd, else `DATA_DIR/admin.sock`.
    pub socket: PathBuf,
    /// `listen`; default none. On a loopback address.
    pub listen: Option<SocketAddr>,
}

/// A configuration that was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `[agent]`.
    pub agent: AgentConfig,
    /// `[journal]`.
    pub journal: JournalConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// `[admin]`.
    pub admin: AdminConfig,
    /// `[sources.*]`, in the order of the file.
    pub sources: Vec<SourceConfig>,
    /// `[transforms.*]`, in the order of the file.
    pub transforms: Vec<TransformConfig>,
    /// `[sinks.*]`, in the order of the file.
    pub sinks: Vec<SinkConfig>,
    /// `[pipelines.*]`, in the order of the file.
    pub pipelines: Vec<PipelineConfig>,
}
