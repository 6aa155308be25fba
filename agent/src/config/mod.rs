//! The whole configuration: what `waystation.toml` says, read, checked and complete.
//!
//! Each part reads its own tables (`config.rs` beside its code); here they are put together ([`load`](load())) and checked
//! against each other (`validate`). A [`Config`] from here has passed all checks; nothing else leaves this module. What it
//! takes to go from one to another is a [`Plan`]; the last one that a run has taken up is kept ([`adopted`]). It does not know
//! how parts use their settings.

pub mod adopted;
mod files;
mod glimpse;
mod load;
mod plan;
mod renames;
mod schema;
mod validate;

pub use files::{drop_in_folder, drop_ins, files_of};
pub use glimpse::Glimpse;
pub use load::{
    DropIn, InspectPlugin, Loaded, PATH_DEFAULT, describe, load, path_or_default,
    process_environment,
};

pub use plan::{Change, LaneId, Plan, Planned, lane_ids, place_of, plan};
pub(crate) use plan::{PaysAt, used_sinks, used_sources, used_transforms};
pub use renames::{KnownLane, warn_of_renames};
pub use schema::schema;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::journal::config::JournalConfig;
use crate::lane::config::{PipelineConfig, StormConfig};
use crate::net::config::NetConfig;
use crate::plugin::config::TransformConfig;
use crate::record::id::{AgentId, NameError};
use crate::settings::{Complaint, Reading, Table};
use crate::sinks::config::{LimiterConfig, SinkConfig};
use crate::sources::config::SourceConfig;
use crate::telemetry::config::LogConfig;

/// The `[agent]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// `id`; default: the one that the journal holds, at the first start the host name made to fit.
    pub id: Option<AgentId>,
    /// `data_dir`, already resolved against the folder of the config file; default `/var/lib/waystation`.
    pub data_dir: PathBuf,
    /// `stop_grace`: how long a stop may take; default `"10s"`, 100 ms to 1 h.
    pub stop_grace: Duration,
    /// `owner`: free text for whoever is woken, up to 1024 bytes; default none.
    pub owner: Option<String>,
    /// `runbook`: free text or a URL, up to 1024 bytes; default none.
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
    /// `[dead_letters] storm`.
    pub storm: StormConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// `[net]`.
    pub net: NetConfig,
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
    /// `[limiters.*]`, in the order of the file.
    pub limiters: Vec<LimiterConfig>,
}

impl Config {
    /// The same agent with nothing to do: what every start begins from.
    #[must_use]
    pub fn without_parts(&self) -> Self {
        Self {
            sources: Vec::new(),
            transforms: Vec::new(),
            sinks: Vec::new(),
            pipelines: Vec::new(),
            limiters: Vec::new(),
            ..self.clone()
        }
    }

    /// How many lanes (source × pipeline × sink) there are.
    #[must_use]
    pub fn lanes_count(&self) -> usize {
        self.pipelines.iter().map(|pipeline| pipeline.sources.len() * pipeline.sinks.len()).sum()
    }
}

/// Where the data is if the config does not say.
pub const DATA_DIR_DEFAULT: &str = "/var/lib/waystation";
/// Most bytes of `owner` and of `runbook`.
const NOTE_BYTES_MAX: usize = 1024;

impl AgentConfig {
    /// Reads `[agent]`.
    fn read(table: &Table<'_>) -> Self {
        let id = table
            .parsed(
                "id",
                "This agent's name among all that deliver to one upstream.",
                "a name",
                |text| text.parse().map_err(|error: NameError| Complaint::new(error.to_string())),
            )
            .optional();
        let data_dir = table
            .file_path("data_dir", "Where the journal and all else that must last is kept.")
            .or(PathBuf::from(DATA_DIR_DEFAULT));
        let stop_grace = table
            .duration("stop_grace", "How long a stop may take.")
            .within(Duration::from_millis(100)..=Duration::from_hours(1))
            .or(Duration::from_secs(10));
        let owner = read_note(table, "owner", "Free text for whoever is woken.");
        let runbook = read_note(table, "runbook", "Free text or a URL for whoever is woken.");
        Self { id, data_dir, stop_grace, owner, runbook }
    }
}

fn read_note(table: &Table<'_>, key: &'static str, doc: &'static str) -> Option<String> {
    let check = move |text: &String| {
        if text.len() <= NOTE_BYTES_MAX {
            return Ok(());
        }
        Err(Complaint::new(format!("`{key}` must not be longer than {NOTE_BYTES_MAX} bytes")))
    };
    table.text(key, doc).check(check).optional()
}

impl AdminConfig {
    /// Reads `[admin]`.
    fn read(table: &Table<'_>, data_dir: &std::path::Path, reading: &Reading<'_>) -> Self {
        table.later(&["tokens", "tls"]);
        let folder = match reading.variable("RUNTIME_DIRECTORY") {
            // systemd separates several by colons.
            Some(folders) if !folders.is_empty() => {
                PathBuf::from(folders.split(':').next().unwrap_or(&folders))
            }
            _ => data_dir.to_owned(),
        };
        let socket = table
            .file_path("socket", "Where `waystation status` and the other commands ask.")
            .or(folder.join("admin.sock"));
        let listen = table
            .parsed(
                "listen",
                "Address for /metrics, /health, /ready and /status.",
                "an address",
                check_listen,
            )
            .optional();
        Self { socket, listen }
    }
}

fn check_listen(text: &str) -> Result<SocketAddr, Complaint> {
    let example = "write \"127.0.0.1:9611\"";
    let address: SocketAddr = text.parse().map_err(|_| {
        Complaint::new(format!("\"{text}\" is no address with a port")).hint(example)
    })?;
    if !address.ip().is_loopback() {
        let message = format!("`listen` must be a loopback address, not {}", address.ip());
        return Err(Complaint::new(message).hint(format!(
            "{example}; other addresses need tokens, which are not in this version"
        )));
    }
    Ok(address)
}
