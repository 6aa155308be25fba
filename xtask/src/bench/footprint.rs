//! What the agent takes of a machine while nothing happens, and how long it takes to be ready.
//!
//! Idle means a source that watches an empty folder, a lane and a sink, with the journal open. Each agent that is measured is a
//! second start: the first one made the journal and compiled the plugin. Ready is what the agent tells a service manager.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::agent::{Agent, median, resident_bytes};
use super::bars::{self, bar};
use crate::notify::Notify;
use crate::ui::{self, Step};
use crate::{dist, plugins, process};

/// Starts that are measured of each config.
const STARTS: usize = 5;
/// For how long an idle agent is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// How long it has for coming to rest before that.
const REST: Duration = Duration::from_secs(3);

/// What one agent took.
struct Idle {
    ready_ms: f64,
    resident_mib: f64,
    cpu_percent: f64,
}

pub(super) fn measure(root: &Path, agent: Option<&Path>) -> Result<Value> {
    let step = Step::start("building the release binaries, the plugins and the package");
    // Of a given agent there is no other build to compare with.
    let minimal = if agent.is_none() { Some(dist::minimal::build(root)?) } else { None };
    let package = dist::sizes(root, agent)?;
    plugins::build(root, Some(&["clean"]))?;
    step.done();
    let binary = std::path::absolute(agent.unwrap_or(&root.join("target/release/waystation")))?;
    let folder = root.join("target/bench/footprint");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bench = Bench { folder };
    let component = root.join("target/plugins/clean.wasm");
    let step = Step::start("measuring idle agents");
    let without = bench.idle(&binary, "")?;
    let with = bench.idle(&binary, &format!("plugin = \"{}\"", component.display()))?;
    let compiled = bench.compiled(&binary, &component)?;
    let of_minimal = minimal.map(|minimal| -> Result<_> {
        Ok((fs::metadata(&minimal)?.len(), bench.idle(&minimal, &compiled)?))
    });
    let of_minimal = of_minimal.transpose()?;
    step.done();
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let mut bars = vec![
        bar("binary, stripped", megabytes(package.binary), 28.0, "MB"),
        bar("idle with one plugin, resident", with.resident_mib, 16.0, "MiB"),
        bar("idle with one plugin, CPU", with.cpu_percent, 0.05, "%"),
        bar("ready with one plugin", with.ready_ms, 100.0, "ms"),
    ];
    if let Some((bytes, _)) = of_minimal {
        bars.push(bar("binary without the compiler", megabytes(bytes), 12.0, "MB"));
    }
    eprint!("\n{}\n", bars::table(&bars));
    ui::say(&format!("without a plugin: {}", without.shown()));
    if let Some((_, idle)) = &of_minimal {
        ui::say(&format!("without the compiler, one compiled plugin: {}", idle.shown()));
    }
    let (deb, tarball) = (megabytes(package.deb), megabytes(package.tarball));
    ui::say(&format!("Debian package {deb:.1} MB, tarball {tarball:.1} MB"));
    Ok(json!({
        "bars": bars::json(&bars),
        "without_plugin": without.json(),
        "with_plugin": with.json(),
        "minimal_with_compiled_plugin": of_minimal.as_ref().map(|(_, idle)| idle.json()),
        "bytes": {
            "binary": package.binary,
            "minimal": of_minimal.as_ref().map(|(bytes, _)| bytes),
            "deb": package.deb,
            "tarball": package.tarball,
        },
    }))
}

impl Idle {
    fn shown(&self) -> String {
        let Self { ready_ms, resident_mib, cpu_percent } = self;
        format!("{resident_mib:.1} MiB, {cpu_percent:.2} % CPU, ready in {ready_ms:.0} ms")
    }

    fn json(&self) -> Value {
        let Self { ready_ms, resident_mib, cpu_percent } = self;
        json!({"resident_mib": resident_mib, "cpu_percent": cpu_percent, "ready_ms": ready_ms})
    }
}

struct Bench {
    folder: PathBuf,
}

impl Bench {
    /// With these keys of a transform, if there are any.
    fn config(&self, plugin: &str) -> Result<String> {
        let (inputs, out) = (self.folder.join("in"), self.folder.join("out"));
        fs::create_dir_all(&inputs)?;
        let (transform, transforms) = match plugin {
            "" => (String::new(), "[]"),
            plugin => (format!("[transforms.clean]\n{plugin}\n"), "[\"clean\"]"),
        };
        Ok(format!(
            "{transform}[sources.in]\ntype = \"file\"\npaths = [\"{}/*.log\"]\n\
             [sinks.out]\ntype = \"file\"\nroot = \"{}\"\n\
             [pipelines.p]\nsources = [\"in\"]\ntransforms = {transforms}\nsinks = [\"out\"]\n",
            inputs.display(),
            out.display()
        ))
    }

    /// The keys of a transform whose plugin is compiled beforehand.
    fn compiled(&self, agent: &Path, component: &Path) -> Result<String> {
        let code = self.folder.join("clean.code");
        if code.exists() {
            fs::remove_file(&code)?;
        }
        let mut compile = Command::new(agent);
        compile.args(["plugin", "compile"]).arg(component).arg("--output").arg(&code);
        let digest = process::output(&mut compile)?;
        Ok(format!("plugin = \"{}\"\nsha256 = \"{}\"", code.display(), digest.trim()))
    }

    fn idle(&self, binary: &Path, plugin: &str) -> Result<Idle> {
        let data = self.folder.join("data");
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let config = self.config(plugin)?;
        drop(self.ready(binary, &config)?);
        let (mut ready, mut last) = (Vec::new(), None);
        for _ in 0..STARTS {
            drop(last.take());
            let (took, agent) = self.ready(binary, &config)?;
            ready.push(took.as_secs_f64() * 1e3);
            last = Some(agent);
        }
        let mut agent = last.context("no agent was started")?;
        std::thread::sleep(REST);
        let (begun, before) = (Instant::now(), cpu_seconds(agent.child.id())?);
        std::thread::sleep(WATCHED);
        let used = cpu_seconds(agent.child.id())? - before;
        agent.runs()?;
        Ok(Idle {
            ready_ms: median(ready),
            resident_mib: resident_bytes(agent.child.id())? / f64::from(1 << 20),
            cpu_percent: used / begun.elapsed().as_secs_f64() * 100.0,
        })
    }

    /// An agent, and how long it took to say that it is ready.
    fn ready(&self, binary: &Path, config: &str) -> Result<(Duration, Agent)> {
        let notify = Notify::bind(&self.folder)?;
        let environment = [notify.variable()];
        let mut agent =
            Agent::start_with(binary, &self.folder, config, Stdio::null(), &environment)?;
        let took = notify.ready(|| agent.runs())?;
        Ok((took, agent))
    }
}

/// CPU time that a process has used.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Its name may hold anything but the last parenthesis.
    let (_, rest) = stat.rsplit_once(") ").context("no process stat")?;
    let fields: Vec<_> = rest.split(' ').collect();
    let ticks = |index: usize| -> Result<f64> {
        Ok(fields.get(index).context("a short process stat")?.parse::<f64>()?)
    };
    let per_second = process::output(Command::new("getconf").arg("CLK_TCK"))?;
    Ok((ticks(11)? + ticks(12)?) / per_second.trim().parse::<f64>()?)
}
