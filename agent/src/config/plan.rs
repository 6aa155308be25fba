//! What it takes to go from one config to another. Pure: two configs in, a plan out.
//!
//! A part is *kept* when nothing that it is made of has changed; then it keeps its connections and its place. A lane is
//! restarted between two batches when something is different that it runs with; what it has sealed goes out as it was
//! sealed. A part that no pipeline uses is not there.

use std::collections::BTreeSet;
use std::fmt;

use super::Config;
use crate::lane::config::PipelineConfig;
use crate::plugin::config::TransformConfig;
use crate::record::id::{LimiterId, PipelineId, SinkId, SourceId, TransformId};
use crate::settings::{Complaint, Entry, Origin};
use crate::sinks::config::{LimitConfig, SinkConfig, SinkKind};
use crate::sources::config::{SourceConfig, SourceKind};

/// What happens to a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It was not there before.
    Added,
    /// It goes on as it is.
    Kept,
    /// It goes on, with a setting that it takes while it runs.
    Adjusted,
    /// Another one takes its place.
    Restarted,
    /// It goes.
    Removed,
}

impl Change {
    /// The word in plans.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Kept => "kept",
            Self::Adjusted => "adjusted",
            Self::Restarted => "restarted",
            Self::Removed => "removed",
        }
    }
}

/// What happens to one part, under its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned<I> {
    /// Its name; a lane is meant by its parts.
    pub id: I,
    /// What happens to it.
    pub change: Change,
    /// What of the config has changed for it, if it goes on or is replaced.
    pub because: Vec<String>,
}

/// Which lane: source, pipeline and sink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId {
    /// The source.
    pub source: SourceId,
    /// The pipeline.
    pub pipeline: PipelineId,
    /// The sink.
    pub sink: SinkId,
}

impl fmt::Display for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.source, self.pipeline, self.sink)
    }
}

/// The way from one config to another. Each list has the parts of the new config in its order, then those that go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Sources.
    pub sources: Vec<Planned<SourceId>>,
    /// Transforms.
    pub transforms: Vec<Planned<TransformId>>,
    /// Sinks: `Restarted` is a new way to the destination.
    pub sinks: Vec<Planned<SinkId>>,
    /// Shared limiters.
    pub limiters: Vec<Planned<LimiterId>>,
    /// Lanes.
    pub lanes: Vec<Planned<LaneId>>,
    /// Keys of the agent itself that are taken up while it runs.
    pub live: Vec<&'static str>,
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        fn kept<I>(parts: &[Planned<I>]) -> bool {
            parts.iter().all(|part| part.change == Change::Kept)
        }
        kept(&self.sources)
            && kept(&self.transforms)
            && kept(&self.sinks)
            && kept(&self.limiters)
            && kept(&self.lanes)
            && self.live.is_empty()
    }

    /// What happens to the part of this name; `Removed` when there is none.
    pub(crate) fn of<I: PartialEq>(parts: &[Planned<I>], id: &I) -> Change {
        parts.iter().find(|part| part.id == *id).map_or(Change::Removed, |part| part.change)
    }
}

/// Makes the plan from the config that runs to another one. `replaced` are the tables whose plugin's file is another by now, such
/// as `transforms.clean`.
///
/// # Errors
/// All keys that cannot be changed while the agent runs, each with why.
pub fn plan(
    old: &Config,
    new: &Config,
    replaced: &BTreeSet<String>,
) -> Result<Plan, Vec<(String, Complaint)>> {
    let fixed = fixed_keys(old, new);
    if !fixed.is_empty() {
        return Err(fixed);
    }
    let net = old.net != new.net;
    let sources = compare(
        &used_sources(old),
        &used_sources(new),
        |part| &part.id,
        |old, new| {
            let mut because = Vec::new();
            if old != new {
                because.push(format!("sources.{}", new.id));
            }
            let uses_net = match &new.kind {
                SourceKind::Mqtt(mqtt) => mqtt.url.tls,
                SourceKind::Nats(_) => true,
                _ => false,
            };
            if net && uses_net {
                because.push("net".to_owned());
            }
            restarted_if(!because.is_empty(), || because)
        },
    );
    let transforms = compare(
        &used_transforms(old),
        &used_transforms(new),
        |part| &part.id,
        |old, new| {
            let mut because = Vec::new();
            if old != new {
                because.push(format!("transforms.{}", new.id));
            }
            let table = format!("transforms.{}", new.id);
            if replaced.contains(&table) {
                because.push(format!("the file of {table}.plugin"));
            }
            restarted_if(!because.is_empty(), || because)
        },
    );
    let limiters = compare(
        &old.limiters,
        &new.limiters,
        |part| &part.id,
        |old, new| {
            if old.rate == new.rate {
                (Change::Kept, Vec::new())
            } else {
                (Change::Adjusted, vec![format!("limiters.{}", new.id)])
            }
        },
    );
    let sinks = compare(
        &used_sinks(old),
        &used_sinks(new),
        |part| &part.id,
        |old, new| sink_change(old, new, net, replaced),
    );
    let mut plan =
        Plan { sources, transforms, sinks, limiters, lanes: Vec::new(), live: live(old, new) };
    plan.lanes = lanes(old, new, &plan);
    Ok(plan)
}

/// A part with everything of the config that has changed for it.
fn restarted_if(is: bool, because: impl FnOnce() -> Vec<String>) -> (Change, Vec<String>) {
    if is { (Change::Restarted, because()) } else { (Change::Kept, Vec::new()) }
}

fn compare<T, I: PartialEq + Clone>(
    old: &[T],
    new: &[T],
    id: impl Fn(&T) -> &I,
    change: impl Fn(&T, &T) -> (Change, Vec<String>),
) -> Vec<Planned<I>> {
    let find = |parts: &[T], wanted: &T| parts.iter().position(|part| id(part) == id(wanted));
    let mut planned: Vec<_> = new
        .iter()
        .map(|part| {
            let before = find(old, part).map(|index| &old[index]);
            let (change, because) =
                before.map_or_else(|| (Change::Added, Vec::new()), |old| change(old, part));
            Planned { id: id(part).clone(), change, because }
        })
        .collect();
    let gone = old.iter().filter(|part| find(new, part).is_none());
    planned.extend(gone.map(|part| Planned {
        id: id(part).clone(),
        change: Change::Removed,
        because: Vec::new(),
    }));
    planned
}

/// The lanes of a config, in its order: each source, pipeline and sink that the pipelines bring together.
#[must_use]
pub fn lane_ids(config: &Config) -> Vec<LaneId> {
    all_lanes(config).into_iter().map(|lane| lane.id).collect()
}

/// The sources that some pipeline takes; another one would fill the journal for nobody.
pub(crate) fn used_sources(config: &Config) -> Vec<&SourceConfig> {
    let is_used = |id| config.pipelines.iter().any(|pipeline| pipeline.sources.contains(id));
    config.sources.iter().filter(|part| is_used(&part.id)).collect()
}

/// The transforms that some pipeline runs; another one would cost memory for nothing.
pub(crate) fn used_transforms(config: &Config) -> Vec<&TransformConfig> {
    let is_used = |id| config.pipelines.iter().any(|pipeline| pipeline.transforms.contains(id));
    config.transforms.iter().filter(|part| is_used(&part.id)).collect()
}

/// The sinks that some pipeline delivers to.
pub(crate) fn used_sinks(config: &Config) -> Vec<&SinkConfig> {
    let is_used = |id| config.pipelines.iter().any(|pipeline| pipeline.sinks.contains(id));
    config.sinks.iter().filter(|part| is_used(&part.id)).collect()
}

/// Which limiter a sink pays at: none, its own, or the one of this name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PaysAt {
    /// Its own.
    Own(SinkId),
    /// A shared one.
    Shared(LimiterId),
}

impl PaysAt {
    pub(crate) fn of(sink: &SinkConfig) -> Option<Self> {
        sink.limit.as_ref().map(|limit| match limit {
            LimitConfig::Own(_) => Self::Own(sink.id.clone()),
            LimitConfig::Shared(id) => Self::Shared(id.clone()),
        })
    }
}

/// What of a sink makes its way to the destination another one. What is not in it belongs to its lanes.
fn sink_change(
    old: &SinkConfig,
    new: &SinkConfig,
    net: bool,
    replaced: &BTreeSet<String>,
) -> (Change, Vec<String>) {
    let mut because = Vec::new();
    let mut note = |is: bool, key: &str| {
        if is {
            because.push(format!("sinks.{}{key}", new.id));
        }
        is
    };
    let is_other_type = old.kind.word() != new.kind.word();
    let mut is_other = note(is_other_type, ".type");
    is_other |= note(!is_other_type && old.kind != new.kind, "");
    is_other |= note(old.retry != new.retry, ".retry");
    is_other |= note(PaysAt::of(old) != PaysAt::of(new), ".limiter");
    let is_adjusted = !is_other && note(old.limit != new.limit, ".rate");
    let table = format!("sinks.{}", new.id);
    if replaced.contains(&table) {
        because.push(format!("the file of {table}.plugin"));
        is_other = true;
    }
    let goes_out = matches!(new.kind, SinkKind::Http(_) | SinkKind::Nats(_) | SinkKind::Plugin(_));
    if goes_out && net {
        because.push("net".to_owned());
        is_other = true;
    }
    let change = match (is_other, is_adjusted) {
        (true, _) => Change::Restarted,
        (false, true) => Change::Adjusted,
        (false, false) => Change::Kept,
    };
    (change, because)
}

/// A lane with all that it is made of.
struct Lane<'c> {
    id: LaneId,
    pipeline: &'c PipelineConfig,
    sink: &'c SinkConfig,
}

fn all_lanes(config: &Config) -> Vec<Lane<'_>> {
    let mut lanes = Vec::new();
    for pipeline in &config.pipelines {
        for source in &pipeline.sources {
            for sink in &pipeline.sinks {
                let Some(sink) = config.sinks.iter().find(|known| known.id == *sink) else {
                    continue;
                };
                let id = LaneId {
                    source: source.clone(),
                    pipeline: pipeline.id.clone(),
                    sink: sink.id.clone(),
                };
                lanes.push(Lane { id, pipeline, sink });
            }
        }
    }
    lanes
}

fn lanes(old: &Config, new: &Config, plan: &Plan) -> Vec<Planned<LaneId>> {
    compare(
        &all_lanes(old),
        &all_lanes(new),
        |lane| &lane.id,
        |was, is| {
            let mut because = Vec::new();
            let mut note = |differs: bool, key: String| {
                if differs {
                    because.push(key);
                }
            };
            let (pipeline, sink) = (&is.pipeline.id, &is.sink.id);
            note(
                was.pipeline.subjects != is.pipeline.subjects,
                format!("pipelines.{pipeline}.subjects"),
            );
            let other = was.pipeline.transforms != is.pipeline.transforms;
            note(other, format!("pipelines.{pipeline}.transforms"));
            for transform in &is.pipeline.transforms {
                let found = plan.transforms.iter().find(|part| part.id == *transform);
                let restarted = found.filter(|part| part.change == Change::Restarted);
                because.extend(restarted.into_iter().flat_map(|part| part.because.iter().cloned()));
            }
            let way = plan.sinks.iter().find(|part| part.id == *sink);
            let way = way.filter(|part| part.change == Change::Restarted);
            because.extend(way.into_iter().flat_map(|part| part.because.iter().cloned()));
            let mut note = |differs: bool, key: String| {
                if differs {
                    because.push(key);
                }
            };
            note(was.sink.batch != is.sink.batch, format!("sinks.{sink}.batch"));
            note(was.sink.on_conflict != is.sink.on_conflict, format!("sinks.{sink}.on_conflict"));
            note(old.storm != new.storm, "dead_letters.storm".to_owned());
            restarted_if(!because.is_empty(), || because)
        },
    )
}

/// Keys of the agent itself that are taken up while it runs.
fn live(old: &Config, new: &Config) -> Vec<&'static str> {
    let (was, is) = (&old.agent, &new.agent);
    let changed = [
        ("agent.stop_grace", was.stop_grace != is.stop_grace),
        ("agent.owner", was.owner != is.owner),
        ("agent.runbook", was.runbook != is.runbook),
        ("log.level", old.log.level != new.log.level),
    ];
    changed.into_iter().filter(|(_, is)| *is).map(|(key, _)| key).collect()
}

/// Keys that only a start can change.
fn fixed_keys(old: &Config, new: &Config) -> Vec<(String, Complaint)> {
    let (was, is) = (&old.journal, &new.journal);
    let changed = [
        // Without a word about it, it stays what it is.
        ("agent.id", new.agent.id.is_some() && old.agent.id != new.agent.id),
        ("agent.data_dir", old.agent.data_dir != new.agent.data_dir),
        ("journal.durability", was.durability != is.durability),
        ("journal.commit_interval", was.commit_interval != is.commit_interval),
        ("journal.max_bytes", was.max_bytes != is.max_bytes),
        ("journal.on_full", was.on_full != is.on_full),
        ("journal.max_age", was.max_age != is.max_age),
        ("dead_letters.max_bytes", was.letters_bytes_max() != is.letters_bytes_max()),
        ("dead_letters.on_full", was.letters.on_full != is.letters.on_full),
        ("admin.socket", old.admin.socket != new.admin.socket),
        ("admin.listen", old.admin.listen != new.admin.listen),
        ("log.format", old.log.format != new.log.format),
    ];
    let mut fixed: Vec<_> =
        changed.into_iter().filter(|(_, is)| *is).map(|(key, _)| key.to_owned()).collect();
    // A line that it has begun to read would be torn.
    fixed.extend(new.sources.iter().filter_map(|part| {
        let before = old.sources.iter().find(|known| known.id == part.id)?;
        let reads = |part: &SourceConfig| matches!(part.kind, SourceKind::Stdin(_));
        let torn = part != before && reads(part) && reads(before);
        torn.then(|| format!("sources.{}", part.id))
    }));
    let complain = |key: String| {
        let message = format!("`{key}` cannot be changed while the agent runs");
        let complaint =
            Complaint::new(message).hint("start the agent anew to change it, or put it back");
        (key, complaint)
    };
    fixed.into_iter().map(complain).collect()
}

/// Where a key, or the first below it, stands in the text of all files.
#[must_use]
pub fn place_of(listing: &[Entry], key: &str) -> Option<usize> {
    listing.iter().find_map(|entry| {
        let path = entry.path();
        let below = path.strip_prefix(key)?;
        match entry.origin {
            Origin::File { at, .. } if below.is_empty() || below.starts_with('.') => Some(at),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load;

    const CONFIG: &str = r#"
        [agent]
        id = "gw"
        data_dir = "data"
        [sources.one]
        type = "generate"
        [sources.two]
        type = "generate"
        [sources.idle]
        type = "generate"
        [transforms.clean]
        plugin = "clean.wasm"
        [sinks.cloud]
        type = "nats"
        servers = ["nats://127.0.0.1:1"]
        limiter = "uplink"
        [sinks.files]
        type = "file"
        root = "out"
        rate = { records_per_second = 10 }
        [limiters.uplink]
        bytes_per_second = "64KiB"
        [pipelines.p]
        sources = ["one"]
        transforms = ["clean"]
        sinks = ["cloud", "files"]
        [pipelines.q]
        sources = ["two"]
        sinks = ["cloud"]
    "#;

    fn config(text: &str) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("w.toml");
        std::fs::write(directory.path().join("clean.wasm"), "").unwrap();
        std::fs::write(&file, text).unwrap();
        let mut config = load(&file, &|_| None, &|_| Ok(Vec::new())).unwrap().config;
        // All of them lie in one folder.
        let moved =
            |path: &std::path::Path| path.strip_prefix(directory.path()).unwrap().to_owned();
        config.agent.data_dir = moved(&config.agent.data_dir);
        config.admin.socket = moved(&config.admin.socket);
        config.transforms.iter_mut().for_each(|part| part.guest.plugin = moved(&part.guest.plugin));
        for sink in &mut config.sinks {
            if let SinkKind::File(file) = &mut sink.kind {
                file.root = moved(&file.root);
            }
        }
        config
    }

    /// What is not kept, a word each.
    fn changes(plan: &Plan) -> Vec<String> {
        fn of<I: fmt::Display>(parts: &[Planned<I>]) -> impl Iterator<Item = String> {
            let changed = parts.iter().filter(|part| part.change != Change::Kept);
            changed.map(|part| format!("{} {}", part.id, part.change.as_str()))
        }
        of(&plan.sources)
            .chain(of(&plan.transforms))
            .chain(of(&plan.sinks))
            .chain(of(&plan.limiters))
            .chain(of(&plan.lanes))
            .chain(plan.live.iter().map(|key| format!("{key} live")))
            .collect()
    }

    /// The plan from the config above to the same with one text in another's place.
    fn replaced(old: &str, new: &str) -> Vec<String> {
        assert!(CONFIG.contains(old), "{old}");
        let other = config(&CONFIG.replace(old, new));
        changes(&plan(&config(CONFIG), &other, &BTreeSet::new()).unwrap())
    }

    #[test]
    fn the_same_config_changes_nothing_and_from_nothing_everything_is_added() {
        let same = config(CONFIG);
        assert!(plan(&same, &config(CONFIG), &BTreeSet::new()).unwrap().is_empty());
        let all = plan(&same.without_parts(), &same, &BTreeSet::new()).unwrap();
        let expected = [
            "one added",
            "two added",
            "clean added",
            "cloud added",
            "files added",
            "uplink added",
            "one/p/cloud added",
            "one/p/files added",
            "two/q/cloud added",
        ];
        assert_eq!(changes(&all), expected);
    }

    #[test]
    fn rates_are_adjusted_while_everything_goes_on() {
        assert_eq!(replaced("64KiB", "1KiB"), ["uplink adjusted"]);
        assert_eq!(
            replaced("records_per_second = 10", "records_per_second = 11"),
            ["files adjusted"]
        );
        // Another limiter is another way out.
        assert_eq!(
            replaced("limiter = \"uplink\"", "rate = { records_per_second = 1 }"),
            ["cloud restarted", "one/p/cloud restarted", "two/q/cloud restarted"]
        );
    }

    #[test]
    fn a_lane_is_restarted_for_what_it_runs_with_and_its_neighbours_are_not() {
        let batch = replaced("root = \"out\"", "root = \"out\"\nbatch = { records_max = 7 }");
        assert_eq!(batch, ["one/p/files restarted"]);
        let server = replaced("127.0.0.1:1", "127.0.0.1:2");
        assert_eq!(server, ["cloud restarted", "one/p/cloud restarted", "two/q/cloud restarted"]);
        let plugin = replaced("\"clean.wasm\"", "\"clean.wasm\"\ndeadline = \"2s\"");
        assert_eq!(plugin, ["clean restarted", "one/p/cloud restarted", "one/p/files restarted"]);
        let subjects = replaced("sources = [\"two\"]", "sources = [\"two\"]\nsubjects = [\"a.>\"]");
        assert_eq!(subjects, ["two/q/cloud restarted"]);
        assert_eq!(
            replaced("[sources.two]", "[net]\nproxy = \"http://p:1\"\n[sources.two]"),
            ["cloud restarted", "one/p/cloud restarted", "two/q/cloud restarted"]
        );
        // A lane reads its stream, not its source.
        let source = replaced("[sources.two]\n", "[sources.two]\nevery = \"2s\"\n");
        assert_eq!(source, ["two restarted"]);
        assert_eq!(replaced("[sources.idle]\n", "[sources.idle]\nevery = \"2s\"\n"), [""; 0]);
    }

    #[test]
    fn what_comes_and_goes_is_added_and_removed() {
        assert_eq!(
            replaced("sinks = [\"cloud\", \"files\"]", "sinks = [\"cloud\"]"),
            ["files removed", "one/p/files removed"]
        );
        assert_eq!(
            replaced("sources = [\"two\"]", "sources = [\"two\", \"idle\"]"),
            ["idle added", "idle/q/cloud added"]
        );
        let renamed = CONFIG.replace("pipelines.q", "pipelines.r");
        let plan = plan(&config(CONFIG), &config(&renamed), &BTreeSet::new()).unwrap();
        assert_eq!(changes(&plan), ["two/r/cloud added", "two/q/cloud removed"]);
    }

    #[test]
    fn a_replaced_plugin_restarts_the_lanes_that_run_it_and_says_why() {
        let replaced = BTreeSet::from(["transforms.clean".to_owned()]);
        let plan = plan(&config(CONFIG), &config(CONFIG), &replaced).unwrap();
        assert_eq!(
            changes(&plan),
            ["clean restarted", "one/p/cloud restarted", "one/p/files restarted"]
        );
        assert_eq!(plan.lanes[0].because, ["the file of transforms.clean.plugin"]);
    }

    #[test]
    fn what_only_a_start_can_change_is_named_all_at_once() {
        let other = CONFIG
            .replace("id = \"gw\"", "id = \"other\"")
            .replace("data_dir = \"data\"", "data_dir = \"elsewhere\"\nowner = \"me\"")
            .replace(
                "[sources.one]",
                "[journal]\nmax_bytes = \"1GiB\"\n[log]\nformat = \"json\"\n[sources.one]",
            );
        let fixed = plan(&config(CONFIG), &config(&other), &BTreeSet::new()).unwrap_err();
        let keys: Vec<_> = fixed.iter().map(|(key, _)| key.as_str()).collect();
        // The socket lies in the data directory, and what letters may take comes from the journal's limit.
        let expected = [
            "agent.id",
            "agent.data_dir",
            "journal.max_bytes",
            "dead_letters.max_bytes",
            "admin.socket",
            "log.format",
        ];
        assert_eq!(keys.iter().filter(|key| **key != "dead_letters.max_bytes").count(), 5);
        assert!(keys.iter().all(|key| expected.contains(key)), "{keys:?}");
        assert!(
            fixed.iter().all(|(_, why)| why.hint.as_ref().unwrap().contains("start the agent"))
        );
        // Without a word about it the id stays.
        let unnamed = CONFIG.replace("id = \"gw\"", "owner = \"me\"");
        let plan = plan(&config(CONFIG), &config(&unnamed), &BTreeSet::new()).unwrap();
        assert_eq!(changes(&plan), ["agent.owner live"]);
    }
}
