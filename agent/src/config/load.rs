//! From the file to a checked [`Config`]: read, put together, validate.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{AdminConfig, AgentConfig, Config, validate};
use crate::journal::config::JournalConfig;
use crate::lane::config::{PipelineConfig, StormConfig};
use crate::limits::CONFIG_BYTES_MAX;
use crate::net::config::NetConfig;
use crate::plugin::config::TransformConfig;
use crate::record::id::NameError;
use crate::settings::{Complaint, Document, Entry, Problem, Problems, Reading, Severity, Table};
use crate::sinks::config::{LimiterConfig, SinkConfig};
use crate::sources::config::SourceConfig;
use crate::telemetry::config::LogConfig;

/// Where the config is if the command line does not say.
pub const PATH_DEFAULT: &str = "/etc/waystation/waystation.toml";

/// A config that can be used, and what else was learned while reading it.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The config.
    pub config: Config,
    /// What hardly means what it says; no errors.
    pub warnings: Problems,
    /// Every key with its value and origin, secrets replaced.
    pub listing: Vec<Entry>,
    /// The file, absolute.
    pub file: PathBuf,
    /// Its text, which holds no secret.
    pub text: String,
}

/// What a component is inspected with: gives all that keeps it from being a transform.
pub type InspectPlugin<'a> = &'a dyn Fn(&Path) -> Result<(), Vec<String>>;

/// A variable of the environment that the process was started with, if it is UTF-8.
#[must_use]
pub fn process_environment(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    std::env::var(name).ok()
}

/// Reads and checks the file. Has no side effects.
///
/// # Errors
/// All that is wrong with it, warnings included.
pub fn load(
    path: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
    inspect_plugin: InspectPlugin<'_>,
) -> Result<Loaded, Problems> {
    let file = path.display().to_string();
    let refuse = |complaint: Complaint| {
        let mut problems = Problems::new(file.as_str(), "");
        problems.push(Problem::new(Severity::Error, "", None, complaint));
        problems
    };
    let bytes = read_bounded(path).map_err(|error| {
        let complaint = Complaint::new(format!("cannot read the config: {error}"));
        refuse(match error.kind() {
            io::ErrorKind::NotFound => complaint.hint("name the file with -c FILE"),
            _ => complaint,
        })
    })?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(refuse(Complaint::new(format!(
            "the config is larger than {} MiB",
            CONFIG_BYTES_MAX >> 20
        ))));
    }
    // What a folder is called must not depend on where the process goes later.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    read(&bytes, &file, &absolute, environment, inspect_plugin)
}

pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads and checks the content of the file `absolute`, which problems call `shown`.
pub(super) fn read(
    bytes: &[u8],
    shown: &str,
    absolute: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
    inspect_plugin: InspectPlugin<'_>,
) -> Result<Loaded, Problems> {
    let document = Document::new(bytes);
    let table = document.table();
    let problems = document.problems(shown);
    let base = absolute.parent().unwrap_or(Path::new("/"));
    let reading = Reading::new(&table, &document.text, base, environment, problems);
    let parts = Parts::read(&reading);
    validate::check(&parts, &reading, inspect_plugin);
    let (problems, listing) = reading.finish();
    if problems.has_errors() {
        return Err(problems);
    }
    let (file, text) = (absolute.to_owned(), document.text.clone());
    Ok(Loaded { config: parts.config, warnings: problems, listing, file, text })
}

/// What could be read. Not checked across parts, and without what was wrong by itself.
pub(super) struct Parts {
    pub(super) config: Config,
    /// All names, also of what could not be read: referring to that is no second mistake.
    pub(super) names: Names,
}

/// The names of all tables.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) sources: Vec<String>,
    pub(super) transforms: Vec<String>,
    pub(super) sinks: Vec<String>,
    pub(super) pipelines: Vec<String>,
    pub(super) limiters: Vec<String>,
}

impl Parts {
    pub(super) fn read(reading: &Reading<'_>) -> Self {
        let root = reading.root();
        let mut names = Names::default();
        let agent = AgentConfig::read(&root.table("agent"));
        let dead_letters = root.table("dead_letters");
        let journal = JournalConfig::read(&root.table("journal"), &dead_letters);
        let storm = StormConfig::read(&dead_letters.table("storm"));
        let sources = named(&root, "sources", &mut names.sources, SourceConfig::read);
        let transforms = named(&root, "transforms", &mut names.transforms, TransformConfig::read);
        let sinks = named(&root, "sinks", &mut names.sinks, SinkConfig::read);
        let pipelines = named(&root, "pipelines", &mut names.pipelines, PipelineConfig::read);
        let limiters = named(&root, "limiters", &mut names.limiters, LimiterConfig::read);
        let net = NetConfig::read(&root.table("net"));
        let admin = AdminConfig::read(&root.table("admin"), &agent.data_dir, reading);
        let log = LogConfig::read(&root.table("log"));
        let config = Config {
            agent,
            journal,
            storm,
            log,
            net,
            admin,
            sources,
            transforms,
            sinks,
            pipelines,
            limiters,
        };
        Self { config, names }
    }
}

/// Reads all tables below `key` whose names and contents are right.
fn named<I, T>(
    root: &Table<'_>,
    key: &'static str,
    names: &mut Vec<String>,
    read: impl Fn(Option<I>, &Table<'_>) -> Option<T>,
) -> Vec<T>
where
    I: std::str::FromStr<Err = NameError>,
{
    let mut parts = Vec::new();
    for (name, table) in root.named_tables(key) {
        if let Some(table) = table {
            let id = name.parse().map_err(|error: NameError| {
                let place = root.reading().place(&table.path("")).map(|place| place.key);
                root.reading().error(table.path(""), place, Complaint::new(error.to_string()));
            });
            parts.extend(read(id.ok(), &table));
        }
        names.push(name);
    }
    parts
}

/// All keys there are, with docs, bounds and defaults; `NAME` stands for a name of the user's.
#[must_use]
pub fn describe() -> Vec<Entry> {
    let reading = Reading::describing();
    let _parts = Parts::read(&reading);
    reading.finish().1
}

/// The path that a command uses: the one on the command line or the default.
#[must_use]
pub fn path_or_default(path: Option<&Path>) -> PathBuf {
    path.map_or_else(|| PathBuf::from(PATH_DEFAULT), Path::to_owned)
}
