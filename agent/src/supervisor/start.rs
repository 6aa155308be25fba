//! The start of a run: the journal, and then everything that a config names, as a reload from nothing would make it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OnceCell, mpsc};

use super::assembly::Assembly;
use super::error::StartError;
use super::handle::{ConfigState, Face};
use super::{Supervisor, Switch};
use crate::clock::SharedClock;
use crate::config::{Config, Loaded};
use crate::journal::{Journal, JournalOptions, Opening, StartCase};
use crate::limits::ADMIN_ORDERS_MAX;
use crate::record::id::{AgentId, Name};
use crate::settings::Problems;
use crate::tasks::{Shutdown, TaskGroup};
use crate::telemetry::Logging;

/// Reads and checks the config as it is now. Blocks.
#[derive(Clone)]
pub struct LoadConfig(pub Arc<dyn Fn() -> Result<Loaded, Problems> + Send + Sync>);

impl fmt::Debug for LoadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LoadConfig")
    }
}

/// What a start needs.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The config.
    pub loaded: Loaded,
    /// Why it is not the one of its file, but the last that a run has adopted.
    pub fallback: Option<String>,
    /// Reads the config again, for a reload.
    pub load: LoadConfig,
    /// The log, whose level a reload may change.
    pub logging: Option<Logging>,
    /// Read finite sources to their end, then stop.
    pub once: bool,
    /// The `waystation` binary, whose child compiles plugins.
    pub compiler: PathBuf,
    /// Time.
    pub clock: SharedClock,
}

pub(super) async fn start(options: StartOptions) -> Result<Supervisor, StartError> {
    let StartOptions { mut loaded, fallback, load, logging, once, compiler, clock } = options;
    let nothing = loaded.config.without_parts();
    let plan = crate::config::plan(&nothing, &loaded.config, &BTreeSet::new())
        .expect("a config differs from itself without parts in its parts alone");
    let empty = Assembly::empty(Arc::new(loaded.clone()));
    // Before anything is opened: what cannot work leaves no trace.
    let sources = empty.make_sources(&loaded.config, &plan, once, &clock)?;
    let (journal, opening) = open_journal(&loaded.config, &clock).await?;
    tracing::info!(
        agent = %opening.agent, epoch = %opening.epoch, case = opening.case.as_str(),
        data_dir = %loaded.config.agent.data_dir.display(), "Journal is open"
    );
    loaded.config.agent.id = Some(opening.agent.clone());
    let loaded = Arc::new(loaded);
    let snapshots = journal.snapshots();
    let before = Arc::clone(&snapshots.borrow());
    let (switches, to_switch) = mpsc::channel::<Switch>(1);
    let (wishes, to_reload) = mpsc::channel(ADMIN_ORDERS_MAX);
    let source_shutdown = Shutdown::new();
    let face = Arc::new(Face {
        config: Mutex::new(ConfigState::at_start(&loaded, fallback, clock.now())),
        assembly: Mutex::new(Arc::new(empty)),
        looks: Mutex::default(),
        started_at: clock.now(),
        started: clock.monotonic(),
        before,
        snapshots,
        journal: Arc::clone(&journal),
        stopping: source_shutdown.clone(),
        wishes,
        hangup: Notify::new(),
        plugin_host: OnceCell::new(),
        switches,
        opening,
        load,
        logging,
        once,
        compiler,
        clock,
    });
    warn_of_renames(&face, &loaded).await;
    let prepared = face.assembly().prepare(&face, loaded, plan, sources).await?;
    let mut supervisor = Supervisor {
        journal,
        face,
        sources: TaskGroup::default(),
        lanes: TaskGroup::default(),
        switches: to_switch,
        wishes: Some(to_reload),
        patience: tokio::sync::watch::Sender::new(None),
        source_shutdown,
        lane_shutdown: Shutdown::new(),
    };
    supervisor.switch(prepared, &mpsc::channel(1).0);
    super::reload::adopted(&supervisor.face).await;
    Ok(supervisor)
}

/// Says which new parts look like old ones under another name, by the config that the last run had adopted.
async fn warn_of_renames(face: &Face, loaded: &Arc<Loaded>) {
    let (mut loaded, lanes) = (Loaded::clone(loaded), super::reload::known_lanes(face));
    let look = move || {
        let before = loaded.warnings.list().len();
        let copy = crate::config::adopted::kept(&loaded.config.agent.data_dir);
        // Secrets that were in the environment then are not needed to know what is the same.
        let set = |_: &str| Some("set".to_owned());
        let old = copy.and_then(|copy| copy.load(&set, &|_| Ok(Vec::new())).ok());
        crate::config::warn_of_renames(&mut loaded, old.as_ref().map(|old| &old.config), &lanes);
        loaded.warnings.list().get(before..).unwrap_or_default().to_vec()
    };
    for warning in tokio::task::spawn_blocking(look).await.unwrap_or_default() {
        let hint = warning.hint.unwrap_or_default();
        tracing::warn!(
            key = warning.key,
            warning = warning.message,
            hint,
            "Config renames a lane, as it seems"
        );
    }
}

async fn open_journal(
    config: &Config,
    clock: &SharedClock,
) -> Result<(Arc<Journal>, Opening), StartError> {
    let uname = rustix::system::uname();
    let node = uname.nodename().to_string_lossy();
    let host = Name::made_to_fit(&node);
    let fitted = host.as_str() != node;
    let journal_options = JournalOptions {
        directory: config.agent.data_dir.clone(),
        config: config.journal.clone(),
        agent: config.agent.id.clone(),
        host: AgentId(host),
        clock: Arc::clone(clock),
    };
    let opened = tokio::task::spawn_blocking(move || Journal::open(&journal_options)).await;
    let (journal, opening) =
        opened.unwrap_or(Err(crate::journal::JournalError::Closed)).map_err(StartError::Journal)?;
    if opening.case == StartCase::New && config.agent.id.is_none() {
        let (id, host) = (&opening.agent, &node);
        tracing::info!(%id, %host, fitted, "The agent's id is taken from the host name, from now on");
    }
    Ok((Arc::new(journal), opening))
}
