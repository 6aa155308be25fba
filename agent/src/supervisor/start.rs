//! From a config to parts that can be run: journal, plugins, sinks, lanes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::digests::JournalDigests;
use super::error::StartError;
use super::handle::{LaneEntry, SourceEntry};
use super::status::SourceState;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::journal::config::Durability;
use crate::journal::{Journal, JournalOptions, LaneSpec, Opening, StartCase};
use crate::lane::config::Start;
use crate::lane::status::LaneStatus;
use crate::lane::{Desk, LaneParts, Served, Transform};
use crate::limiter::{Limiter, Rate};
use crate::plugin::{HostOptions, Plugin, PluginHost};
use crate::record::id::{AgentId, LimiterId, Name, SinkId};
use crate::sinks::SinkBuilder;
use crate::sinks::config::LimitConfig;
use crate::sources::config::SourceConfig;
use crate::sources::{Source, SourceOptions};

/// The folder of compiled plugins in the data directory.
const COMPILED_FOLDER: &str = "compiled";

/// What a start needs.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The config.
    pub config: Config,
    /// Read finite sources to their end, then stop.
    pub once: bool,
    /// The `waystation` binary, whose child compiles plugins.
    pub compiler: PathBuf,
    /// Time.
    pub clock: SharedClock,
}

/// A configured sink and what its lanes share of it.
type SharedSink = (SinkId, Arc<dyn SinkBuilder>, Arc<Served>);

/// What a start made.
pub(super) struct Started {
    pub(super) journal: Arc<Journal>,
    pub(super) opening: Opening,
    pub(super) relaxed: bool,
    pub(super) sources: Vec<(Arc<SourceEntry>, Box<dyn Source>)>,
    pub(super) lanes: Vec<LaneEntry>,
    pub(super) plugins: Vec<Plugin>,
}

pub(super) async fn start(options: &StartOptions) -> Result<Started, StartError> {
    let config = &options.config;
    // A source that no pipeline names would fill the journal for nobody.
    let sources = config
        .sources
        .iter()
        .filter(|source| config.pipelines.iter().any(|p| p.sources.contains(&source.id)))
        .map(|source| build_source(source, options))
        .collect::<Result<_, _>>()?;
    let (journal, opening) = open_journal(options).await?;
    tracing::info!(
        agent = %opening.agent, epoch = %opening.epoch, case = opening.case.as_str(),
        data_dir = %config.agent.data_dir.display(), "Journal is open"
    );
    let transforms = load_plugins(options, &journal).await?;
    let limiters: BTreeMap<&LimiterId, Arc<Limiter>> = config
        .limiters
        .iter()
        .map(|shared| (&shared.id, limiter(shared.rate, &options.clock)))
        .collect();
    let sinks: Vec<SharedSink> = config
        .sinks
        .iter()
        .map(|sink| {
            let limiter = match &sink.limit {
                None => None,
                Some(LimitConfig::Own(rate)) => Some(limiter(*rate, &options.clock)),
                Some(LimitConfig::Shared(shared)) => limiters.get(shared).cloned(),
            };
            let clock = Arc::clone(&options.clock);
            let builder = crate::sinks::build(sink, &config.net, clock, limiter);
            (sink.id.clone(), builder, Arc::default())
        })
        .collect();
    let lanes = lanes(options, &opening, &transforms, &sinks);
    Ok(Started {
        relaxed: config.journal.durability == Durability::Relaxed,
        sources,
        lanes,
        plugins: transforms.into_iter().map(|transform| transform.plugin).collect(),
        journal,
        opening,
    })
}

fn limiter(rate: Rate, clock: &SharedClock) -> Arc<Limiter> {
    let clock = Arc::clone(clock);
    Arc::new(Limiter::new(rate, Arc::new(move || Duration::from_nanos(clock.monotonic().0))))
}

fn build_source(
    config: &SourceConfig,
    options: &StartOptions,
) -> Result<(Arc<SourceEntry>, Box<dyn Source>), StartError> {
    let source_options = SourceOptions { once: options.once, clock: Arc::clone(&options.clock) };
    let source = crate::sources::build(config, &source_options)
        .map_err(|source| StartError::Source { source_id: config.id.clone(), source })?;
    let entry = SourceEntry {
        id: config.id.clone(),
        kind: config.kind.word(),
        state: Mutex::new(SourceState::Running),
        counters: source.counters(),
    };
    Ok((Arc::new(entry), source))
}

async fn open_journal(options: &StartOptions) -> Result<(Arc<Journal>, Opening), StartError> {
    let uname = rustix::system::uname();
    let node = uname.nodename().to_string_lossy();
    let host = Name::made_to_fit(&node);
    let fitted = host.as_str() != node;
    let journal_options = JournalOptions {
        directory: options.config.agent.data_dir.clone(),
        config: options.config.journal.clone(),
        agent: options.config.agent.id.clone(),
        host: AgentId(host),
        clock: Arc::clone(&options.clock),
    };
    let opened = tokio::task::spawn_blocking(move || Journal::open(&journal_options)).await;
    let (journal, opening) =
        opened.unwrap_or(Err(crate::journal::JournalError::Closed)).map_err(StartError::Journal)?;
    if opening.case == StartCase::New && options.config.agent.id.is_none() {
        let (id, host) = (&opening.agent, &node);
        tracing::info!(%id, %host, fitted, "The agent's id is taken from the host name, from now on");
    }
    Ok((Arc::new(journal), opening))
}

async fn load_plugins(
    options: &StartOptions,
    journal: &Arc<Journal>,
) -> Result<Vec<Transform>, StartError> {
    let config = &options.config;
    // One that no pipeline names is not loaded: it would cost memory for nothing.
    let used: Vec<_> = config
        .transforms
        .iter()
        .filter(|t| config.pipelines.iter().any(|p| p.transforms.contains(&t.id)))
        .cloned()
        .collect();
    if used.is_empty() {
        return Ok(Vec::new());
    }
    let host_options = HostOptions {
        store_dir: config.agent.data_dir.join(COMPILED_FOLDER),
        compiler: options.compiler.clone(),
        clock: Arc::clone(&options.clock),
        digests: Arc::new(JournalDigests {
            journal: Arc::clone(journal),
            runtime: tokio::runtime::Handle::current(),
        }),
    };
    let load = move || {
        let host = PluginHost::new(host_options).map_err(StartError::Host)?;
        let load = |config: crate::plugin::config::TransformConfig| {
            let transform = config.id.clone();
            match host.load(&config) {
                Ok(plugin) => Ok(Transform { config, plugin }),
                Err(source) => Err(StartError::Plugin { transform, source }),
            }
        };
        used.into_iter().map(load).collect()
    };
    let loaded = tokio::task::spawn_blocking(load).await;
    loaded.unwrap_or(Err(StartError::Journal(crate::journal::JournalError::Closed)))
}

/// One lane for each source, pipeline and sink that the pipelines bring together.
fn lanes(
    options: &StartOptions,
    opening: &Opening,
    transforms: &[Transform],
    sinks: &[SharedSink],
) -> Vec<LaneEntry> {
    let mut lanes = Vec::new();
    for pipeline in &options.config.pipelines {
        let transforms: Vec<Transform> = pipeline
            .transforms
            .iter()
            .filter_map(|id| transforms.iter().find(|transform| transform.config.id == *id))
            .cloned()
            .collect();
        for source in &pipeline.sources {
            for sink in &pipeline.sinks {
                let config = options.config.sinks.iter().find(|config| config.id == *sink);
                let builder = sinks.iter().find(|(id, ..)| id == sink);
                // The config is validated: every name that a pipeline says exists.
                let (Some(config), Some((_, builder, served))) = (config, builder) else {
                    continue;
                };
                let spec = LaneSpec {
                    agent: opening.agent.clone(),
                    source: source.clone(),
                    pipeline: pipeline.id.clone(),
                    sink: sink.clone(),
                    start_now: pipeline.start == Start::Now,
                };
                let parts = LaneParts {
                    spec,
                    subjects: pipeline.subjects.as_slice().into(),
                    transforms: transforms.clone(),
                    sink: Arc::clone(builder),
                    batch: config.batch,
                    retry: config.retry,
                    on_conflict: config.on_conflict,
                    storm: options.config.storm,
                    served: Arc::clone(served),
                    epoch: opening.epoch,
                    clock: Arc::clone(&options.clock),
                };
                let desk = Arc::new(Desk::default());
                lanes.push(LaneEntry { parts, status: Arc::new(LaneStatus::default()), desk });
            }
        }
    }
    lanes
}
