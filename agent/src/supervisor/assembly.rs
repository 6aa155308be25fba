//! The parts of one config as they run, and those of another one made ready beside them.
//!
//! Every start and every reload goes this way; a start begins from nothing. What a plan keeps is taken over as it is, with
//! its connections. Nothing that runs is touched here.

use std::sync::Arc;
use std::time::Duration;

use super::error::StartError;
use super::handle::{Face, LaneEntry, SourceEntry};
use crate::clock::SharedClock;
use crate::config::{
    Change, Config, LaneId, Loaded, PaysAt, Plan, used_sinks, used_sources, used_transforms,
};
use crate::journal::{JournalError, LaneSpec};
use crate::lane::config::{PipelineConfig, Start};
use crate::lane::{LaneParts, Served, Transform};
use crate::limiter::{Limiter, Rate};
use crate::plugin::config::GuestConfig;
use crate::plugin::{HostOptions, PluginHost, SinkPlugin};
use crate::record::id::{SinkId, SourceId};
use crate::sinks::SinkBuilder;
use crate::sinks::config::{LimitConfig, SinkConfig, SinkKind};
use crate::sources::{Source, SourceOptions};

/// The folder of compiled plugins in the data directory.
const COMPILED_FOLDER: &str = "compiled";

/// A config and all that runs of it.
#[derive(Debug)]
pub(super) struct Assembly {
    pub(super) loaded: Arc<Loaded>,
    pub(super) sources: Vec<Arc<SourceEntry>>,
    pub(super) transforms: Vec<Transform>,
    pub(super) ways: Vec<Way>,
    pub(super) limiters: Vec<(PaysAt, Arc<Limiter>)>,
    pub(super) lanes: Vec<Arc<LaneEntry>>,
}

/// A configured sink and what its lanes share of it.
#[derive(Debug, Clone)]
pub(super) struct Way {
    pub(super) sink: SinkId,
    pub(super) builder: Arc<dyn SinkBuilder>,
    /// Of a sink that is a plugin.
    pub(super) guest: Option<SinkPlugin>,
    served: Arc<Served>,
}

/// A source that is made and does not run.
pub(super) struct NewSource {
    pub(super) id: SourceId,
    pub(super) kind: &'static str,
    pub(super) source: Box<dyn Source>,
}

/// Everything of a config that is needed to go over to it.
pub(super) struct Prepared {
    pub(super) loaded: Arc<Loaded>,
    pub(super) plan: Plan,
    /// Those that are added or restarted.
    pub(super) sources: Vec<NewSource>,
    pub(super) transforms: Vec<Transform>,
    pub(super) ways: Vec<Way>,
    pub(super) limiters: Vec<(PaysAt, Arc<Limiter>)>,
    /// What is set when they change over.
    pub(super) rates: Vec<(Arc<Limiter>, Rate)>,
    pub(super) lanes: Vec<(LaneId, LaneParts)>,
}

impl Assembly {
    /// Nothing runs yet.
    pub(super) fn empty(loaded: Arc<Loaded>) -> Self {
        Self {
            loaded,
            sources: Vec::new(),
            transforms: Vec::new(),
            ways: Vec::new(),
            limiters: Vec::new(),
            lanes: Vec::new(),
        }
    }

    pub(super) fn config(&self) -> &Config {
        &self.loaded.config
    }

    /// Makes the sources that a plan adds or restarts. Opens nothing.
    ///
    /// # Errors
    /// When one makes no sense as it is set.
    pub(super) fn make_sources(
        &self,
        config: &Config,
        plan: &Plan,
        once: bool,
        clock: &SharedClock,
    ) -> Result<Vec<NewSource>, StartError> {
        let wanted = used_sources(config).into_iter().filter(|source| {
            matches!(Plan::of(&plan.sources, &source.id), Change::Added | Change::Restarted)
        });
        let make = |source: &crate::sources::config::SourceConfig| {
            let before = self.sources.iter().find(|entry| entry.id == source.id);
            let options = SourceOptions {
                once,
                clock: Arc::clone(clock),
                counters: before.map(|entry| Arc::clone(&entry.counters)).unwrap_or_default(),
                net: config.net.clone(),
                times: None,
            };
            match crate::sources::build(source, &options) {
                Ok(made) => {
                    let (id, kind) = (source.id.clone(), source.kind.word());
                    Ok(NewSource { id, kind, source: made })
                }
                Err(error) => {
                    Err(StartError::Source { source_id: source.id.clone(), source: error })
                }
            }
        };
        wanted.map(make).collect()
    }

    /// Makes everything else that a plan adds or restarts, and takes over what it keeps.
    ///
    /// # Errors
    /// When a plugin cannot be loaded.
    pub(super) async fn prepare(
        &self,
        face: &Face,
        loaded: Arc<Loaded>,
        plan: Plan,
        sources: Vec<NewSource>,
    ) -> Result<Prepared, StartError> {
        let config = &loaded.config;
        let transforms = self.load_transforms(face, config, &plan).await?;
        let guests = self.load_sinks(face, config, &plan).await?;
        let (limiters, rates) = self.limiters(config, &face.clock);
        let ways: Vec<Way> = used_sinks(config)
            .into_iter()
            .map(|sink| self.way(sink, config, &plan, &limiters, &guests, &face.clock))
            .collect();
        let lanes = lanes(face, config, &transforms, &ways);
        Ok(Prepared { plan, sources, transforms, ways, limiters, rates, lanes, loaded })
    }

    async fn load_transforms(
        &self,
        face: &Face,
        config: &Config,
        plan: &Plan,
    ) -> Result<Vec<Transform>, StartError> {
        let kept = |id| {
            let kept = Plan::of(&plan.transforms, id) == Change::Kept;
            self.transforms.iter().find(|known| kept && known.config.id == *id).cloned()
        };
        let wanted: Vec<_> = used_transforms(config)
            .into_iter()
            .map(|part| (part.clone(), kept(&part.id)))
            .collect();
        if wanted.iter().all(|(_, kept)| kept.is_some()) {
            return Ok(wanted.into_iter().filter_map(|(_, kept)| kept).collect());
        }
        let host = face.plugin_host().await?;
        let load = move || {
            let load = |(config, kept): (crate::plugin::config::TransformConfig, Option<_>)| {
                let transform = config.id.clone();
                match kept {
                    Some(kept) => Ok(kept),
                    None => match host.load(&config) {
                        Ok(plugin) => Ok(Transform { config, plugin }),
                        Err(source) => Err(StartError::Plugin { transform, source }),
                    },
                }
            };
            wanted.into_iter().map(load).collect()
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        loaded.unwrap_or(Err(StartError::Journal(JournalError::Closed)))
    }

    /// Loads the plugins of the sinks that a plan adds or restarts.
    async fn load_sinks(
        &self,
        face: &Face,
        config: &Config,
        plan: &Plan,
    ) -> Result<Vec<SinkPlugin>, StartError> {
        let is_new = |sink: &&SinkConfig| !self.goes_on(plan, &sink.id);
        let guest = |sink: &SinkConfig| match &sink.kind {
            SinkKind::Plugin(plugin) => Some((sink.id.clone(), plugin.guest.clone())),
            _ => None,
        };
        let wanted: Vec<_> =
            used_sinks(config).into_iter().filter(is_new).filter_map(guest).collect();
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let host = face.plugin_host().await?;
        let load = move || {
            let load = |(sink, config): (SinkId, GuestConfig)| {
                let loaded = host.load_sink(&sink, &config);
                loaded.map_err(|source| StartError::SinkPlugin { sink, source })
            };
            wanted.into_iter().map(load).collect()
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        loaded.unwrap_or(Err(StartError::Journal(JournalError::Closed)))
    }

    /// Whether a way to a destination stays as it is.
    fn goes_on(&self, plan: &Plan, sink: &SinkId) -> bool {
        matches!(Plan::of(&plan.sinks, sink), Change::Kept | Change::Adjusted)
            && self.ways.iter().any(|way| way.sink == *sink)
    }

    /// The limiters of a config, those that are there already among them, and what is set for those later.
    #[expect(clippy::type_complexity, reason = "two lists that belong to one another")]
    fn limiters(
        &self,
        config: &Config,
        clock: &SharedClock,
    ) -> (Vec<(PaysAt, Arc<Limiter>)>, Vec<(Arc<Limiter>, Rate)>) {
        let shared = config
            .limiters
            .iter()
            .map(|limiter| (PaysAt::Shared(limiter.id.clone()), limiter.rate));
        let own = used_sinks(config).into_iter().filter_map(|sink| match sink.limit {
            Some(LimitConfig::Own(rate)) => Some((PaysAt::Own(sink.id.clone()), rate)),
            _ => None,
        });
        let (mut limiters, mut rates) = (Vec::new(), Vec::new());
        for (place, rate) in shared.chain(own) {
            let known = self.limiters.iter().find(|(known, _)| *known == place);
            let limiter = match known {
                Some((_, known)) => {
                    rates.push((Arc::clone(known), rate));
                    Arc::clone(known)
                }
                None => new_limiter(rate, clock),
            };
            limiters.push((place, limiter));
        }
        (limiters, rates)
    }

    fn way(
        &self,
        sink: &SinkConfig,
        config: &Config,
        plan: &Plan,
        limiters: &[(PaysAt, Arc<Limiter>)],
        guests: &[SinkPlugin],
        clock: &SharedClock,
    ) -> Way {
        let goes_on = self.goes_on(plan, &sink.id);
        if let Some(known) = self.ways.iter().find(|way| goes_on && way.sink == sink.id) {
            return known.clone();
        }
        let place = PaysAt::of(sink);
        let limiter = limiters.iter().find(|(known, _)| Some(known) == place.as_ref());
        let limiter = limiter.map(|(_, limiter)| Arc::clone(limiter));
        let guest = guests.iter().find(|guest| *guest.id() == sink.id).cloned();
        let clock = Arc::clone(clock);
        let builder = crate::sinks::build(sink, &config.net, clock, limiter, guest.clone());
        Way { sink: sink.id.clone(), builder, guest, served: Arc::default() }
    }
}

fn new_limiter(rate: Rate, clock: &SharedClock) -> Arc<Limiter> {
    let clock = Arc::clone(clock);
    Arc::new(Limiter::new(rate, Arc::new(move || Duration::from_nanos(clock.monotonic().0))))
}

/// Makes the host of plugins, once for each run: for the first plugin.
pub(super) async fn make_plugin_host(face: &Face) -> Result<Arc<PluginHost>, StartError> {
    let options = HostOptions {
        store_dir: face.assembly().config().agent.data_dir.join(COMPILED_FOLDER),
        compiler: face.compiler.clone(),
        clock: Arc::clone(&face.clock),
        digests: Arc::new(super::digests::JournalDigests {
            journal: Arc::clone(&face.journal),
            runtime: tokio::runtime::Handle::current(),
        }),
    };
    let made = tokio::task::spawn_blocking(move || PluginHost::new(options)).await;
    let made = made.map_err(|_| StartError::Journal(JournalError::Closed))?;
    made.map(Arc::new).map_err(StartError::Host)
}

/// One lane for each source, pipeline and sink that the pipelines bring together.
fn lanes(
    face: &Face,
    config: &Config,
    transforms: &[Transform],
    ways: &[Way],
) -> Vec<(LaneId, LaneParts)> {
    let mut lanes = Vec::new();
    for pipeline in &config.pipelines {
        let transforms: Vec<Transform> = pipeline
            .transforms
            .iter()
            .filter_map(|id| transforms.iter().find(|transform| transform.config.id == *id))
            .cloned()
            .collect();
        for source in &pipeline.sources {
            for sink in &pipeline.sinks {
                let sink = config.sinks.iter().find(|known| known.id == *sink);
                let way = ways.iter().find(|way| Some(&way.sink) == sink.map(|sink| &sink.id));
                // The config is validated: every name that a pipeline says exists.
                let (Some(sink), Some(way)) = (sink, way) else { continue };
                let id = LaneId {
                    source: source.clone(),
                    pipeline: pipeline.id.clone(),
                    sink: sink.id.clone(),
                };
                let parts = lane_parts(face, config, &id, pipeline, sink, way, &transforms);
                lanes.push((id, parts));
            }
        }
    }
    lanes
}

fn lane_parts(
    face: &Face,
    config: &Config,
    id: &LaneId,
    pipeline: &PipelineConfig,
    sink: &SinkConfig,
    way: &Way,
    transforms: &[Transform],
) -> LaneParts {
    LaneParts {
        spec: LaneSpec {
            agent: face.opening.agent.clone(),
            source: id.source.clone(),
            pipeline: id.pipeline.clone(),
            sink: id.sink.clone(),
            start_now: pipeline.start == Start::Now,
        },
        subjects: pipeline.subjects.as_slice().into(),
        transforms: transforms.to_vec(),
        sink: Arc::clone(&way.builder),
        batch: sink.batch,
        retry: sink.retry,
        on_conflict: sink.on_conflict,
        storm: config.storm,
        served: Arc::clone(&way.served),
        epoch: face.opening.epoch,
        clock: Arc::clone(&face.clock),
    }
}
