//! From the file to a checked [`Config`]: read, put together, validate.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{drop_in_folder, drop_ins, read_bounded};
use super::{AdminConfig, AgentConfig, Config, validate};
use crate::journal::config::JournalConfig;
use crate::lane::config::{PipelineConfig, StormConfig};
use crate::limits::CONFIG_BYTES_MAX;
use crate::net::config::NetConfig;
use crate::plugin::PluginUse;
use crate::plugin::config::TransformConfig;
use crate::record::id::NameError;
use crate::settings::{
    Complaint, Document, Entry, Part, Problem, Problems, Reading, Severity, Table, merge,
};
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
    /// Its drop-ins, in their order.
    pub drop_ins: Vec<DropIn>,
    /// The text of all of them, one behind the other, which holds no secret.
    pub text: String,
}

impl Loaded {
    /// An empty list of problems, for more of them.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let drop_ins = self.drop_ins.iter().map(|part| (&part.file, part.start));
        let parts = [(&self.file, 0)].into_iter().chain(drop_ins);
        let parts =
            parts.map(|(file, start)| Part { name: file.display().to_string().into(), start });
        Problems::in_files(parts.collect(), self.text.as_str())
    }
}

/// A further file of a config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropIn {
    /// The file, absolute.
    pub(super) file: PathBuf,
    /// Where it begins in the text of all files.
    pub(super) start: usize,
}

/// What a plugin is inspected with: gives all that keeps it from being used so, or else what to warn of.
pub type InspectPlugin<'a> = &'a dyn Fn(PluginUse<'_>) -> Result<Vec<String>, Vec<String>>;

/// A variable of the environment that the process was started with, if it is UTF-8.
#[must_use]
pub fn process_environment(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
    std::env::var(name).ok()
}

/// Reads and checks the file and its drop-ins. Has no side effects.
///
/// # Errors
/// All that is wrong with it, warnings included.
pub fn load(
    path: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
    inspect_plugin: InspectPlugin<'_>,
) -> Result<Loaded, Problems> {
    let texts = gather(path).map_err(|complaints| {
        let mut problems = Problems::new(path.display().to_string(), "");
        for complaint in complaints {
            problems.push(Problem::new(Severity::Error, "", None, complaint));
        }
        problems
    })?;
    // What a folder is called must not depend on where the process goes later.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    read(&texts, &absolute, environment, inspect_plugin)
}

/// The content of one file of a config.
#[derive(Debug)]
pub(super) struct Text {
    /// As problems call it.
    pub(super) shown: String,
    pub(super) file: PathBuf,
    pub(super) bytes: Vec<u8>,
}

/// Reads all files: the one that is named, and its drop-ins.
fn gather(path: &Path) -> Result<Vec<Text>, Vec<Complaint>> {
    let bytes = read_bounded(path).map_err(|error| {
        let complaint = Complaint::new(format!("cannot read the config: {error}"));
        vec![match error.kind() {
            io::ErrorKind::NotFound => complaint.hint("name the file with -c FILE"),
            _ => complaint,
        }]
    })?;
    let mut texts = vec![Text { shown: path.display().to_string(), file: path.to_owned(), bytes }];
    let mut complaints = Vec::new();
    let folder = drop_in_folder(path);
    let names = drop_ins(path).unwrap_or_else(|error| {
        let message = format!("cannot read the folder of drop-ins {}: {error}", folder.display());
        complaints.push(Complaint::new(message));
        Vec::new()
    });
    for file in names {
        let shown = file.display().to_string();
        match read_bounded(&file) {
            Ok(bytes) => texts.push(Text { shown, file, bytes }),
            Err(error) => {
                let complaint = Complaint::new(format!("cannot read the drop-in {shown}: {error}"));
                complaints.push(complaint.hint("give it to the agent's user, or move it away"));
            }
        }
    }
    let size: usize = texts.iter().map(|text| text.bytes.len()).sum();
    if size as u64 > CONFIG_BYTES_MAX {
        let what = if texts.len() > 1 { "and its drop-ins are" } else { "is" };
        let message = format!("the config {what} larger than {} MiB", CONFIG_BYTES_MAX >> 20);
        complaints.push(Complaint::new(message));
    }
    if complaints.is_empty() { Ok(texts) } else { Err(complaints) }
}

/// Parses all files, one behind the other in one text.
fn parse(texts: &[Text]) -> (Vec<Document>, Vec<usize>, String) {
    let (mut documents, mut starts, mut whole) = (Vec::new(), Vec::new(), String::new());
    for text in texts {
        if !whole.is_empty() && !whole.ends_with('\n') {
            whole.push('\n');
        }
        let document = Document::behind(&whole, &text.bytes);
        starts.push(whole.len());
        whole.push_str(document.text.get(whole.len()..).unwrap_or_default());
        documents.push(document);
    }
    (documents, starts, whole)
}

/// Reads and checks these files, of which the first is `absolute`.
pub(super) fn read(
    texts: &[Text],
    absolute: &Path,
    environment: &dyn Fn(&str) -> Option<String>,
    inspect_plugin: InspectPlugin<'_>,
) -> Result<Loaded, Problems> {
    let (documents, starts, text) = parse(texts);
    let named = || texts.iter().zip(&starts);
    let parts =
        named().map(|(text, start)| Part { name: text.shown.as_str().into(), start: *start });
    let mut problems = Problems::in_files(parts.collect(), text.as_str());
    for problem in documents.iter().flat_map(|document| &document.syntax) {
        problems.push(problem.clone());
    }
    let mut tables = documents.iter().map(Document::table);
    let mut table = tables.next().unwrap_or_default();
    for more in tables {
        merge(&mut table, more, &mut problems);
    }
    let base = absolute.parent().unwrap_or(Path::new("/"));
    let reading = Reading::new(&table, base, environment, problems);
    let parts = Parts::read(&reading);
    validate::check(&parts, &reading, inspect_plugin);
    let (problems, listing) = reading.finish();
    if problems.has_errors() {
        return Err(problems);
    }
    let drop_ins = named().skip(1).map(|(text, start)| {
        let file = std::path::absolute(&text.file).unwrap_or_else(|_| text.file.clone());
        DropIn { file, start: *start }
    });
    let (file, drop_ins) = (absolute.to_owned(), drop_ins.collect());
    Ok(Loaded { config: parts.config, warnings: problems, listing, file, drop_ins, text })
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
