//! `waystation check`: reads the config as `run` does, and says what is wrong with it.

mod connect;

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::ExitCode;
use crate::config;
use crate::journal::inspect::Inspection;
use crate::settings::Problems;
use crate::units::parse_duration;

/// Check the config and the plugins it names, without any side effect.
///
/// With --connect the destinations are asked, too, whether they would take a batch: connected to, logged in to, the stream or
/// folder looked at. Nothing is sent. The exit code is 1 when one would not.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// The config file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = config::PATH_DEFAULT)]
    pub config: PathBuf,
    /// Fail on warnings, too
    #[arg(long)]
    pub deny_warnings: bool,
    /// Ask the destination of this sink, or without a name of all, whether it would take a batch
    #[arg(long, value_name = "SINK", num_args = 0..=1)]
    pub connect: Option<Option<String>>,
    /// With --connect: for how long each destination may take
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, requires = "connect")]
    pub timeout: Duration,
    /// Print problems, and what destinations say, as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When standard output or standard error cannot be written.
pub fn run(
    args: &CheckArgs,
    inspect_plugin: config::InspectPlugin<'_>,
) -> anyhow::Result<ExitCode> {
    let mut loaded = match config::load(&args.config, &config::process_environment, inspect_plugin)
    {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems, args.json)?;
            return Ok(ExitCode::Config);
        }
    };
    warn_of_renames(&mut loaded);
    print_problems(&loaded.warnings, args.json)?;
    if args.deny_warnings && !loaded.warnings.is_empty() {
        return Ok(ExitCode::Config);
    }
    writeln!(std::io::stdout(), "{}", summary(&args.config, &loaded, args.json))?;
    match &args.connect {
        None => Ok(ExitCode::Done),
        Some(sink) => connect::run(&loaded.config, sink.as_deref(), args.timeout, args.json),
    }
}

/// Where a journal is there and may be read, its lanes are looked at, too.
fn warn_of_renames(loaded: &mut config::Loaded) {
    let directory = loaded.config.agent.data_dir.clone();
    let Ok(info) = Inspection::open(&directory).and_then(|inspection| inspection.info()) else {
        return;
    };
    let lanes = info.lanes.into_iter().filter(|lane| !lane.dropped).filter_map(|lane| {
        let id = config::LaneId {
            source: lane.source.parse().ok()?,
            pipeline: lane.pipeline.parse().ok()?,
            sink: lane.sink.parse().ok()?,
        };
        Some(config::KnownLane { id, name: lane.name, queued: lane.queued })
    });
    let old = config::adopted::kept(&directory);
    let old =
        old.and_then(|copy| copy.load(&config::process_environment, &|_| Ok(Vec::new())).ok());
    config::warn_of_renames(
        loaded,
        old.as_ref().map(|old| &old.config),
        &lanes.collect::<Vec<_>>(),
    );
}

/// Prints problems to standard error, for people or one JSON object a line.
///
/// # Errors
/// When standard error cannot be written.
pub fn print_problems(problems: &Problems, json: bool) -> std::io::Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    let mut out = std::io::stderr().lock();
    if json {
        return out.write_all(problems.json_lines().as_bytes());
    }
    let coloured = out.is_terminal();
    writeln!(out, "{}", problems.render(coloured))
}

fn summary(path: &Path, loaded: &config::Loaded, json: bool) -> String {
    let config = &loaded.config;
    let counts = [
        ("source", config.sources.len()),
        ("transform", config.transforms.len()),
        ("pipeline", config.pipelines.len()),
        ("sink", config.sinks.len()),
        ("lane", config.lanes_count()),
    ];
    if json {
        let mut object = serde_json::Map::new();
        object.insert("ok".to_owned(), true.into());
        object.insert("file".to_owned(), path.display().to_string().into());
        object.extend(counts.map(|(noun, count)| (format!("{noun}s"), count.into())));
        object.insert("warnings".to_owned(), loaded.warnings.list().len().into());
        return serde_json::Value::Object(object).to_string();
    }
    let plural = |(noun, count): (&str, usize)| {
        if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
    };
    format!("{} is ok: {}", path.display(), counts.map(plural).join(", "))
}
