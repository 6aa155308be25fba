//! `cargo xtask bench`: runs one of the agent's measuring examples and keeps its figures.

mod agent;
mod bars;
mod footprint;
mod languages;
mod mqtt;
mod plugins;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ui::{self, Step};
use crate::{install, process};

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure.
    #[arg(value_parser = ["journal", "pipeline", "delivery", "plugins", "sources", "footprint"])]
    name: String,
    /// Print the figures as JSON on standard output too.
    #[arg(long)]
    json: bool,
    /// Measure this agent, rather than building one; for plugins, sources and footprint.
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    /// Arguments for the measuring program, after `--`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Measures, shows tables on standard error, and keeps the figures.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let figures = match arguments.name.as_str() {
        "plugins" => plugins::measure(root, arguments.agent.as_deref())?,
        "footprint" => footprint::measure(root, arguments.agent.as_deref())?,
        "sources" => sources::measure(root, arguments.agent.as_deref())?,
        _ => run_example(root, arguments)?,
    };
    let folder = root.join("target/bench");
    let file = folder.join(format!("{}.json", arguments.name));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&file, format!("{figures:#}\n")))
        .with_context(|| format!("cannot write {}", file.display()))?;
    ui::say(&format!("figures: target/bench/{}.json", arguments.name));
    if arguments.json {
        println!("{figures}");
    }
    Ok(())
}

/// Runs the example `bench_NAME` of the agent in a release build. It prints its table on standard error and its JSON on
/// standard output.
fn run_example(root: &Path, arguments: &Arguments) -> Result<Value> {
    if arguments.name == "delivery" {
        install::nats_server(root, "the records go to a real JetStream server")?;
    }
    let example = format!("bench_{}", arguments.name);
    let step = Step::start("building the release binaries");
    process::run(
        process::cargo(root)
            .args(["build", "--release", "--bin", "waystation", "--example"])
            .arg(&example),
    )?;
    step.done();
    let step = Step::start(format!("measuring: {}", arguments.name));
    let mut command = process::cargo(root);
    command.args(["run", "--quiet", "--release", "--example", &example, "--"]);
    let output = command
        .args(&arguments.arguments)
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", process::shown(&command)))?;
    if !output.status.success() {
        bail!("{} failed: {}", process::shown(&command), output.status);
    }
    let figures = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what {example} printed is not JSON"))?;
    step.done();
    Ok(figures)
}
