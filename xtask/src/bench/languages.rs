//! The examples of plugins in every language: built, measured by `waystation plugin bench`, and shown as the table that stands in
//! their README.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::ui::{self, Align, Step};
use crate::{languages, process};

/// A way to write a plugin.
struct Language {
    /// In the table.
    title: &'static str,
    /// For `plugin new --lang`, and the folder of the example.
    name: &'static str,
    build: &'static str,
    /// What `plugin bench` has to be told.
    options: &'static [&'static str],
    /// Below `.tools/`.
    node_modules: Option<&'static str>,
}

const LANGUAGES: [Language; 6] = [
    Language {
        title: "[Rust](rust/README.md)",
        name: "rust",
        build: "sh build.sh",
        options: &[],
        node_modules: None,
    },
    Language {
        title: "[C](c/README.md)",
        name: "c",
        build: "sh build.sh",
        options: &[],
        node_modules: None,
    },
    Language {
        title: "[JavaScript on QuickJS](javascript/README.md)",
        name: "javascript",
        build: "sh build.sh",
        options: &["--deadline", "5s"],
        node_modules: Some("node_modules"),
    },
    Language {
        title: "[JavaScript on StarlingMonkey](javascript/README.md)",
        name: "javascript",
        build: "node starlingmonkey.mjs",
        options: &["--deadline", "5s", "--memory-max", "128MiB"],
        node_modules: Some("starlingmonkey/node_modules"),
    },
    Language {
        title: "[Go](go/README.md)",
        name: "go",
        build: "sh build.sh",
        options: &[],
        node_modules: None,
    },
    Language {
        title: "[Python](python/README.md)",
        name: "python",
        build: "sh build.sh",
        options: &["--memory-max", "128MiB"],
        node_modules: None,
    },
];
/// Where the table stands, and what its first line begins with.
const PAGE: &str = "examples/plugins/README.md";
const TABLE_BEGINS: &str = "| | component |";

/// Builds and measures the examples, shows the table, and puts it into their README.
pub(super) fn measure(root: &Path, agent: &Path, folder: &Path) -> Result<Value> {
    languages::quick(root)?;
    languages::slow(root)?;
    let mut figures = Vec::new();
    for language in &LANGUAGES {
        let step = Step::start(format!("building and measuring {}", language.title));
        figures.push(language.measure(root, agent, folder)?);
        step.done();
    }
    let rows: Vec<_> = LANGUAGES.iter().zip(&figures).map(|(l, figures)| row(l, figures)).collect();
    eprint!(
        "\n{}\n",
        ui::table([Align::Left, Align::Right, Align::Right, Align::Right, Align::Right], &{
            let mut all =
                vec![["", "component", "an instance", "a record", "memory"].map(str::to_owned)];
            all.extend(rows.iter().cloned());
            all
        })
    );
    write_page(root, &figures, &rows)?;
    let named = LANGUAGES.iter().zip(figures);
    Ok(Value::Object(named.map(|(language, figures)| (plain(language.title), figures)).collect()))
}

impl Language {
    fn measure(&self, root: &Path, agent: &Path, folder: &Path) -> Result<Value> {
        let project = folder.join("my-plugin");
        if project.exists() {
            fs::remove_dir_all(&project)?;
        }
        let name = project.to_str().context("the path is no text")?;
        process::output(Command::new(agent).args(["plugin", "new", "--lang", self.name, name]))?;
        if let Some(modules) = self.node_modules {
            symlink(root.join(".tools").join(modules), project.join("node_modules"))?;
        }
        let mut build = Command::new("sh");
        build.args(["-euc", self.build]).current_dir(&project);
        let built = languages::on_path(root, &mut build)?
            .env("WAYSTATION", agent)
            .env("CARGO_TARGET_DIR", guests(root)?)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTC")
            .env_remove("CARGO")
            .output()?;
        if !built.status.success() {
            bail!("{}: {}", self.build, String::from_utf8_lossy(&built.stderr));
        }
        let component = project.join("my-plugin.wasm");
        let mut bench = Command::new(agent);
        bench.args(["plugin", "bench", "--json", "--time", "500ms"]).args(self.options);
        let printed = process::output(bench.arg(&component).arg(project.join("cases.jsonl")))?;
        let mut figures: Value = serde_json::from_str(&printed)?;
        figures["component_bytes"] = json!(fs::metadata(&component)?.len());
        Ok(figures)
    }
}

/// Where the guests of the repository were built: what they have in common with the example is not built again.
fn guests(root: &Path) -> Result<PathBuf> {
    let folders = ["target/guests/rustup", "target/guests/debian"].map(|folder| root.join(folder));
    let mut found = folders.into_iter().filter(|folder| folder.is_dir());
    found.next().context("the guests are not built: `cargo xtask plugins`")
}

fn plain(title: &str) -> String {
    title.trim_start_matches('[').split(']').next().unwrap_or(title).to_owned()
}

/// Of the batch of 100, by new instances.
fn record_us(figures: &Value) -> f64 {
    let batches = figures["batches"].as_array().into_iter().flatten();
    let mut hundred = batches.filter(|batch| batch["records"] == 100);
    hundred.next().and_then(|batch| batch["per_batch_us"].as_f64()).unwrap_or_default()
}

fn row(language: &Language, figures: &Value) -> [String; 5] {
    let number = |key: &str| figures[key].as_f64().unwrap_or_default();
    let time = |us: f64| match us {
        us if us >= 100.0 => format!("{:.2} ms", us / 1000.0),
        us if us >= 10.0 => format!("{us:.0} µs"),
        us => format!("{us:.1} µs"),
    };
    let mega = |bytes: f64| format!("{:.2} MB", bytes / 1e6);
    [
        language.title.to_owned(),
        mega(number("component_bytes")),
        time(number("instance_us")),
        time(record_us(figures)),
        mega(number("memory_bytes")),
    ]
}

fn write_page(root: &Path, figures: &[Value], rows: &[[String; 5]]) -> Result<()> {
    let path = root.join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    let bytes = figures.first().and_then(|one| one["record_bytes"].as_u64()).unwrap_or_default();
    let head =
        format!("{TABLE_BEGINS} an instance begins in | a record of {bytes} B takes | memory |");
    let mut table = vec![head, "|---|---|---|---|---|".to_owned()];
    table.extend(rows.iter().map(|row| format!("| {} |", row.join(" | "))));
    let mut lines: Vec<&str> = page.lines().collect();
    let is_head = |line: &&str| line.starts_with(TABLE_BEGINS);
    let begin = lines.iter().position(is_head).with_context(|| format!("{PAGE} has no table"))?;
    let length = lines.iter().skip(begin).take_while(|line| line.starts_with('|')).count();
    lines.splice(begin..begin + length, table.iter().map(String::as_str));
    let changed: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, changed).with_context(|| format!("cannot write {PAGE}"))
}
