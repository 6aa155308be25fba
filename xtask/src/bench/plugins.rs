//! What plugins cost: each figure beside its bar, and the table of the languages.
//!
//! Times are CPU time of the thread that runs the plugin, by `waystation plugin bench`. Two transforms that do the same work are
//! compared with their native selves: `test-serde-json` has the bar, since it is what somebody writes who knows serde_json
//! alone; `clean`, by the SDK's own `Object`, does much less for a record, natively too, so that the way into the guest and
//! back, which is the same for both, weighs more in its ratio.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::agent::{Agent, median, resident_bytes};
use super::bars::{self, Bar, bar};
use super::languages;
use crate::plugins;
use crate::process;
use crate::sensors;
use crate::ui::{self, Step};

/// Rounds of what is compared; they take turns.
const ROUNDS: usize = 5;
/// Plugins that are loaded together, and their config.
const SHIPPED: [(&str, &str); 5] = [
    ("clean", "{}"),
    ("json-filter", r#"{"conditions": [{"field": "a", "op": "missing"}]}"#),
    ("json-map", r#"{"steps": [{"do": "remove", "fields": ["a"]}]}"#),
    ("redact", r#"{"fields": [{"field": "a", "do": "mask"}]}"#),
    ("sample", r#"{"every": 10}"#),
];
/// Records of the neighbour, one every two milliseconds.
const NEIGHBOUR_RECORDS: u32 = 2000;
const NEIGHBOUR_EVERY: Duration = Duration::from_millis(2);
/// What the guests beside it do.
const HOSTILE: [&str; 8] = [
    "spin",
    "recurse",
    "allocate",
    "huge_payload",
    "log_forever",
    "state_forever",
    "keys_forever",
    "panic",
];
/// How long an agent may take to be where it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn measure(root: &Path, agent: Option<&Path>) -> Result<Value> {
    let step = Step::start("building the release binary and the plugins");
    if agent.is_none() {
        let mut build = process::cargo(root);
        process::run(build.args(["build", "--release", "--bin", "waystation", "--locked"]))?;
    }
    plugins::build(root, None)?;
    let mut native = process::cargo(root);
    let manifest = ["--manifest-path", "plugins/Cargo.toml"];
    process::run(
        native
            .args(["build", "--release", "-p", "test-serde-json", "--example", "native"])
            .args(manifest),
    )?;
    step.done();
    let folder = root.join("target/bench/plugins");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let bench = Bench {
        root,
        agent: std::path::absolute(agent.unwrap_or(&root.join("target/release/waystation")))?,
        folder,
    };
    let step = Step::start("measuring transforms");
    let mut bars = bench.transforms()?;
    step.done();
    let step = Step::start("measuring what loading takes");
    bars.push(bench.loading()?);
    bars.push(bench.memory()?);
    step.done();
    let step = Step::start("measuring a guest that spins, and a neighbour of hostile guests");
    bars.push(bench.spin()?);
    bars.push(bench.neighbour()?);
    step.done();
    eprint!("\n{}\n", bars::table(&bars));
    let languages = languages::measure(root, &bench.agent, &bench.folder)?;
    Ok(json!({ "bars": bars::json(&bars), "languages": languages }))
}

struct Bench<'r> {
    root: &'r Path,
    agent: PathBuf,
    folder: PathBuf,
}

impl Bench<'_> {
    fn plugin(&self, name: &str) -> PathBuf {
        self.root.join("target/plugins").join(name).with_extension("wasm")
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// What the next agent finds: nothing.
    fn clear(&self) -> Result<()> {
        for folder in [self.data(), self.folder.join("out")] {
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
        }
        Ok(())
    }

    /// What `waystation plugin bench` says of a plugin.
    fn figures(&self, name: &str, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new(&self.agent);
        command.args(["plugin", "bench", "--json"]).arg(self.plugin(name)).args(arguments);
        Ok(serde_json::from_str(&process::output(&mut command)?)?)
    }

    fn transforms(&self) -> Result<Vec<Bar>> {
        let (lines, cases) = (self.folder.join("lines.ndjson"), self.folder.join("cases.jsonl"));
        sensors::generate(&lines, 1000)?;
        let text = fs::read_to_string(&lines)?;
        let records: Vec<_> = text
            .lines()
            .map(|line| {
                let headers = json!({"site": "plant-7", "device": "press-07"});
                json!({"payload": line, "subject": "bench", "headers": headers})
            })
            .collect();
        let expect = vec!["keep"; records.len()];
        fs::write(&cases, format!("{}\n", json!({"records": records, "expect": expect})))?;
        let cases = cases.to_str().context("the path is no text")?;
        let native = self.root.join("plugins/target/release/examples/native");
        let compared = ["test-serde-json", "clean"];
        let mut costs = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        let (mut passes, mut singles) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (name, (guests, natives)) in compared.iter().zip(&mut costs) {
                let guest = self.figures(name, &[cases, "--time", "300ms"])?;
                let mut command = Command::new(&native);
                let printed = process::output(command.arg(name).arg(&lines).arg("0.3"))?;
                natives.push(printed.trim().parse::<f64>()? / 1000.0);
                guests.push(micros(&guest, 100, "per_batch_us")?);
            }
            let pass = ["--config", "{\"do\": \"pass\"}", "--time", "300ms", cases];
            let pass = self.figures("test-guests", &pass)?;
            let hundred = micros(&pass, 100, "reuse_us")?;
            passes.push(hundred);
            singles.push(micros(&pass, 1, "reuse_us")? / hundred);
        }
        let [plain, own] = costs.map(|(guests, natives)| (median(guests), median(natives)));
        for (name, (guest, native)) in compared.iter().zip([plain, own]) {
            let ratio = guest / native;
            ui::say(&format!(
                "{name}: {guest:.2} µs a record, {native:.2} µs natively: {ratio:.2} x"
            ));
        }
        Ok(vec![
            bar("Rust and serde_json against the same code native", plain.0 / plain.1, 2.5, "x"),
            bar("pass-through, in a batch of 100", median(passes), 0.8, "µs"),
            bar("a batch of one against that", median(singles), 2.5, "x"),
        ])
    }

    fn loading(&self) -> Result<Bar> {
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            let mut sum = 0.0;
            for (name, config) in SHIPPED {
                let figures = self.figures(name, &["--config", config, "--time", "10ms"])?;
                sum += figures["loaded_cpu_ms"].as_f64().context("no loaded_cpu_ms")?;
            }
            all.push(sum);
        }
        Ok(bar("loading 5 compiled plugins, CPU", median(all), 5.0, "ms"))
    }

    /// Agents with one plugin in their pipeline and with five, each of which has worked.
    fn memory(&self) -> Result<Bar> {
        let mut each = Vec::new();
        for _ in 0..3 {
            let (one, all) = (self.resident(1)?, self.resident(SHIPPED.len())?);
            each.push((all - one) / (SHIPPED.len() - 1) as f64);
        }
        Ok(bar("each further plugin, resident", median(each), 1.0, "MB"))
    }

    fn resident(&self, plugins: usize) -> Result<f64> {
        let used = SHIPPED.iter().take(plugins);
        let names: Vec<_> = used.clone().map(|(name, _)| *name).collect();
        let tables = used.map(|(name, config)| {
            // TOML in all but this.
            let config = config.replace("\": ", "\" = ");
            let plugin = self.plugin(name);
            format!("[transforms.{name}]\nplugin = \"{}\"\nconfig = {config}\n", plugin.display())
        });
        let config = format!(
            "[sources.in]\ntype = \"generate\"\nevery = \"1ms\"\n\
             [sinks.out]\ntype = \"file\"\nroot = \"{}\"\npath = \"{{pipeline}}/{{epoch}}-{{batch}}.ndjson\"\n\
             batch = {{ linger = \"100ms\" }}\n{}\
             [pipelines.p]\nsources = [\"in\"]\ntransforms = {names:?}\nsinks = [\"out\"]\n",
            self.folder.join("out").display(),
            tables.collect::<String>()
        );
        self.clear()?;
        // The first start compiles.
        drop(self.settled(&config)?);
        let (bytes, _agent) = self.settled(&config)?;
        Ok(bytes / 1e6)
    }

    /// An agent that has worked for a while, and what it holds in RAM.
    fn settled(&self, config: &str) -> Result<(f64, Agent)> {
        let mut agent = Agent::start(&self.agent, &self.folder, config, Stdio::null())?;
        let begun = Instant::now();
        let mut before = None;
        while begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(200));
            let Some(status) = agent.status()? else { continue };
            let lanes = status["lanes"].as_array().into_iter().flatten();
            let count = |lane: &Value, key: &str| lane[key].as_u64();
            let done =
                lanes.filter_map(|lane| Some(count(lane, "delivered")? + count(lane, "dropped")?));
            let Some(done) = done.min() else { continue };
            if done >= *before.get_or_insert(done) + 1000 {
                return Ok((resident_bytes(agent.child.id())?, agent));
            }
        }
        bail!("the agent does not deliver: {}", agent.config.display())
    }

    /// What a guest takes over its deadline until it is stopped: the whole command, with and without the spinning.
    fn spin(&self) -> Result<Bar> {
        let deadline = Duration::from_millis(500);
        let mut over = Vec::new();
        for _ in 0..ROUNDS {
            let time = |does: &str| -> Result<Duration> {
                let config = format!("{{\"do\": \"{does}\", \"all\": true}}");
                let arguments = [
                    "plugin",
                    "bench",
                    "--deadline",
                    "500ms",
                    "--config",
                    &config,
                    "--time",
                    "0ms",
                ];
                let mut command = Command::new(&self.agent);
                command.args(arguments).arg(self.plugin("test-hostile"));
                let begun = Instant::now();
                let output = command.output()?;
                let said = String::from_utf8_lossy(&output.stderr);
                if !said.contains("deadline: ") && !said.contains("trap: ") {
                    bail!("{said}");
                }
                Ok(begun.elapsed())
            };
            // Both compile and make an instance; one ends at once.
            let (spins, ends) = (time("spin")?, time("unreachable")?);
            over.push(spins.saturating_sub(ends + deadline).as_secs_f64() * 1000.0);
        }
        Ok(bar("a spinning guest, over its deadline", median(over), 50.0, "ms"))
    }

    /// How long the slowest of a hundred records takes through a lane that has hostile neighbours, and through one that has none.
    fn neighbour(&self) -> Result<Bar> {
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let alone = self.slowest(false)?;
            let beside = self.slowest(true)?;
            ui::say(&format!(
                "p99 {:.1} ms alone, {:.1} ms beside them",
                alone * 1e3,
                beside * 1e3
            ));
            ratios.push(beside / alone);
        }
        Ok(bar("p99 beside hostile guests", median(ratios), 2.0, "x"))
    }

    /// In seconds, the 99th percentile.
    fn slowest(&self, with_hostile: bool) -> Result<f64> {
        let bad = self.folder.join("bad");
        let bad_line = |seq: u64| {
            let x = if seq % 100 == 50 { "\"bad\"" } else { "1" };
            format!("{{\"seq\":{seq},\"x\":{x}}}\n")
        };
        fs::write(&bad, (0..1000).map(bad_line).collect::<String>())?;
        let hostile = HOSTILE.iter().map(|does| {
            let name = does.replace('_', "-");
            format!(
                "[transforms.{name}]\nplugin = \"{}\"\nconfig = {{ do = \"{does}\" }}\ndeadline = \"100ms\"\n\
                 [pipelines.{name}]\nsources = [\"bad\"]\ntransforms = [\"{name}\"]\nsinks = [\"out\"]\n",
                self.plugin("test-hostile").display()
            )
        });
        let hostile: String = if with_hostile { hostile.collect() } else { String::new() };
        let sources = if with_hostile {
            format!(
                "[sources.bad]\ntype = \"file\"\npaths = [\"{}\"]\n\
                     [sinks.out]\ntype = \"file\"\nroot = \"{}\"\npath = \"{{pipeline}}/{{epoch}}-{{batch}}.ndjson\"\n",
                bad.display(),
                self.folder.join("out").display()
            )
        } else {
            String::new()
        };
        let config = format!(
            "[sources.live]\ntype = \"stdin\"\n\
             [transforms.clean]\nplugin = \"{}\"\n\
             [sinks.well]\ntype = \"stdout\"\nbatch = {{ linger = \"10ms\" }}\n\
             [pipelines.good]\nsources = [\"live\"]\ntransforms = [\"clean\"]\nsinks = [\"well\"]\n{sources}{hostile}",
            self.plugin("clean").display()
        );
        self.clear()?;
        let mut agent = Agent::start(&self.agent, &self.folder, &config, Stdio::piped())?;
        let out = agent.child.stdout.take().context("no standard output")?;
        let mut reader = BufReader::new(out).lines();
        let begun = Instant::now();
        let mut input = agent.child.stdin.take().context("no standard input")?;
        // The first one waits for the compiler.
        writeln!(input, "{{}}")?;
        reader.next().context("the agent ended early")??;
        let writer = std::thread::spawn(move || -> Result<()> {
            for _ in 0..NEIGHBOUR_RECORDS {
                writeln!(input, "{{\"sent\":{}}}", begun.elapsed().as_nanos())?;
                std::thread::sleep(NEIGHBOUR_EVERY);
            }
            Ok(())
        });
        let mut taken = Vec::new();
        while taken.len() < NEIGHBOUR_RECORDS as usize
            && let Some(line) = reader.next()
        {
            let record: Value = serde_json::from_str(&line?)?;
            let sent = Duration::from_nanos(record["sent"].as_u64().context("no record of ours")?);
            taken.push(begun.elapsed().saturating_sub(sent).as_secs_f64());
        }
        writer.join().map_err(|_| anyhow::anyhow!("the writer died"))??;
        if taken.len() < NEIGHBOUR_RECORDS as usize {
            bail!("the agent ended early: {}", agent.config.display());
        }
        taken.sort_by(f64::total_cmp);
        taken.get(taken.len() * 99 / 100).copied().context("no record")
    }
}

fn micros(figures: &Value, records: u64, key: &str) -> Result<f64> {
    let batches = figures["batches"].as_array().into_iter().flatten();
    let mut found = batches.filter(|batch| batch["records"] == records);
    let found = found.next().and_then(|batch| batch[key].as_f64());
    found.with_context(|| format!("no {key} for {records} records"))
}
