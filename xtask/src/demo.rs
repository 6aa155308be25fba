//! `cargo xtask demo`: 100 000 records from a file through the journal and a plugin into files, and with `--nats` into a
//! JetStream stream too. What the agent says at the end is compared with what really lies there.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::nats::Server;
use crate::sensors::{self, Generated};
use crate::ui::{self, Align, Step, thousands};
use crate::{install, plugins, process};

/// The server that `examples/quickstart/nats.toml` names; the demo puts its own server's port there.
const NATS_URL_IN_EXAMPLE: &str = "nats://127.0.0.1:4222";
/// The stream that it names.
const STREAM: &str = "EDGE";

/// Arguments of `demo`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Deliver to a real nats-server with JetStream as well.
    #[arg(long)]
    nats: bool,
    /// How many records to make.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    records: u64,
    /// Run this agent, rather than building one.
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
}

/// What the agent printed at its end.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    /// Records that the sources took in, each once.
    records_in: u64,
    /// Over all lanes, as are the following.
    dropped: u64,
    delivered: u64,
    dead_lettered: u64,
    files: u64,
    elapsed_ms: u64,
    lanes: u64,
}

/// What was found at the destinations.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    files: u64,
    lines: u64,
    /// Messages in the stream, with `--nats`.
    messages: Option<u64>,
}

/// Runs the whole demo.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    let folder = root.join("target/demo");
    let step = Step::start("clearing what an earlier demo left in target/demo/");
    install::remove_dir(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    step.done();

    let nats_server = if arguments.nats {
        Some(install::nats_server(root, "--nats delivers to a real JetStream server")?)
    } else {
        None
    };
    let agent = build(root, arguments.agent.as_deref())?;

    let step = Step::start(format!("making {} records", thousands(arguments.records)));
    let generated = sensors::generate(&folder.join("sensors.ndjson"), arguments.records)?;
    ui::say(&format!("target/demo/sensors.ndjson, {} bytes", thousands(generated.bytes)));
    step.done();

    let server = nats_server.map(|binary| start_nats(&binary, &folder)).transpose()?;
    let config = config(root, &folder, server.as_ref())?;
    let summary = run_agent(root, &agent, &config)?;

    let step = Step::start("looking at what arrived");
    let found = Found {
        messages: server.as_ref().map(|server| server.messages(STREAM)).transpose()?,
        ..count(&folder.join("out"), &generated)?
    };
    compare(&summary, &found, &generated)?;
    step.done();
    print!("\n{}", table(&summary, &found));
    println!("\n  {}", next(root, &config, arguments.nats));
    Ok(())
}

/// Builds the agent and the plugin at the same time: each leaves a core idle while it links.
fn build(root: &Path, agent: Option<&Path>) -> Result<PathBuf> {
    let step = Step::start("building the agent and the plugin `clean`");
    ui::say(
        "the first time this takes some minutes: SQLite, the WebAssembly engine and 300 crates",
    );
    let built = thread::scope(|scope| {
        let guest = scope.spawn(|| plugins::build(root, Some(&["clean"])));
        let built = match agent {
            Some(agent) => {
                agent.canonicalize().with_context(|| format!("no agent at {}", agent.display()))
            }
            // Optimising the agent's own code takes a minute of the newcomer's time, and saves seconds of the run.
            None => process::run(
                process::cargo(root)
                    .args(["build", "--bin", "waystation"])
                    .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0")
                    .env("CARGO_INCREMENTAL", "0"),
            )
            .map(|()| root.join("target/debug/waystation")),
        };
        let guest = guest.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        guest.context("cannot build the plugin `clean`").and(built)
    })?;
    step.done();
    Ok(built)
}

fn start_nats(binary: &Path, folder: &Path) -> Result<Server> {
    let step = Step::start("starting nats-server");
    let store = folder.join("nats");
    fs::create_dir_all(&store).with_context(|| format!("cannot make {}", store.display()))?;
    let server = Server::start(binary, &store)?;
    server.create_stream(STREAM, &["edge.>"])?;
    ui::say(&format!("stream {STREAM} on nats://127.0.0.1:{}", server.port));
    step.done();
    Ok(server)
}

/// The config to run. With a server it is a copy of the example with the server's port; the copy lies as deep in the
/// tree as the example, so that its relative paths mean the same.
fn config(root: &Path, folder: &Path, server: Option<&Server>) -> Result<PathBuf> {
    let examples = root.join("examples/quickstart");
    let Some(server) = server else { return Ok(examples.join("waystation.toml")) };
    let example = examples.join("nats.toml");
    let text = fs::read_to_string(&example)
        .with_context(|| format!("cannot read {}", example.display()))?;
    if !text.contains(NATS_URL_IN_EXAMPLE) {
        bail!("{} does not name {NATS_URL_IN_EXAMPLE}", example.display());
    }
    let copy = folder.join("nats.toml");
    let url = format!("nats://127.0.0.1:{}", server.port);
    fs::write(&copy, text.replace(NATS_URL_IN_EXAMPLE, &url))
        .with_context(|| format!("cannot write {}", copy.display()))?;
    Ok(copy)
}

fn run_agent(root: &Path, agent: &Path, config: &Path) -> Result<Summary> {
    let step = Step::start("running the agent");
    let mut command = std::process::Command::new(agent);
    command.current_dir(root).args(["run", "--once", "--json", "-c"]).arg(below(root, config));
    let arguments = process::shown(&command);
    ui::say(arguments.trim_start_matches(&format!("{}/", root.display())));
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}", agent.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("the agent failed: {}\n{text}", output.status);
    }
    let summary = summary(&text)?;
    step.done();
    Ok(summary)
}

/// Reads the summary from the last line of the agent's output.
fn summary(output: &str) -> Result<Summary> {
    let line = output.lines().last().context("the agent printed no summary")?;
    let value: Value = serde_json::from_str(line)
        .with_context(|| format!("the agent's last line is not a JSON summary: {line}"))?;
    let number = |key: &str| {
        let number = value.get(key).and_then(Value::as_u64);
        number.with_context(|| format!("the agent's summary has no number {key}: {line}"))
    };
    Ok(Summary {
        records_in: number("records_in")?,
        dropped: number("dropped")?,
        delivered: number("delivered")?,
        dead_lettered: number("dead_lettered")?,
        files: number("files")?,
        elapsed_ms: number("elapsed_ms")?,
        lanes: value.get("lanes").and_then(Value::as_array).map_or(0, Vec::len) as u64,
    })
}

/// Reads all files below `out`, and checks that each record that is not bad is there once, in order.
fn count(out: &Path, generated: &Generated) -> Result<Found> {
    let mut files = Vec::new();
    list(out, &mut files)?;
    files.sort();
    let mut found = Found { files: files.len() as u64, lines: 0, messages: None };
    let mut last = 0;
    for file in &files {
        let place = || format!("in {}", file.display());
        let text = fs::read_to_string(file).with_context(place)?;
        for line in text.lines() {
            let seq = seq(line).with_context(place)?;
            if seq <= last || seq > generated.records {
                bail!("record {seq} stands behind record {last} {}", place());
            }
            if generated.bad.binary_search(&seq).is_ok() {
                bail!("record {seq} has the status `bad` and was delivered {}", place());
            }
            last = seq;
            found.lines += 1;
        }
    }
    Ok(found)
}

/// The record's number, by the look of it: a parser would take longer here than the agent took for everything.
fn seq(line: &str) -> Result<u64> {
    let is_object = line.starts_with('{') && line.ends_with('}');
    let number = line.split_once("\"seq\":").filter(|_| is_object).map(|(_, rest)| {
        let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        rest.split_at(end).0.parse()
    });
    number.and_then(Result::ok).with_context(|| format!("a line without a seq: {line}"))
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let path = entry.path();
        if entry.file_type().with_context(failed)?.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ndjson") {
            files.push(path);
        } else {
            bail!("an unfinished or foreign file: {}", path.display());
        }
    }
    Ok(())
}

/// Fails when the agent's own figures, what was found and what was to be expected are not the same.
fn compare(summary: &Summary, found: &Found, generated: &Generated) -> Result<()> {
    let bad = generated.bad.len() as u64;
    let good = generated.records - bad;
    let lanes = 1 + u64::from(found.messages.is_some());
    let pairs = [
        ("records in, by the agent", summary.records_in, generated.records),
        ("lanes, by the agent", summary.lanes, lanes),
        ("dropped by the plugin, by the agent", summary.dropped, bad * lanes),
        ("delivered, by the agent", summary.delivered, good * lanes),
        ("dead letters, by the agent", summary.dead_lettered, 0),
        ("files, by the agent", summary.files, found.files),
        ("lines in the files", found.lines, good),
        ("messages in the stream", found.messages.unwrap_or(good), good),
    ];
    let wrong: Vec<String> = pairs
        .iter()
        .filter(|(_, is, expected)| is != expected)
        .map(|(what, is, expected)| format!("{what}: {is}, expected {expected}"))
        .collect();
    if !wrong.is_empty() {
        bail!("the demo went wrong:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

fn table(summary: &Summary, found: &Found) -> String {
    let lanes =
        if summary.lanes > 1 { format!("in {} lanes", summary.lanes) } else { String::new() };
    let mut arrived = format!("{} lines counted in the files", thousands(found.lines));
    if let Some(messages) = found.messages {
        arrived = format!("{arrived}, {} messages in stream {STREAM}", thousands(messages));
    }
    let row = |name: &str, figure: String, note: String| [name.to_owned(), figure, note];
    let rows = [
        row("records in", thousands(summary.records_in), String::new()),
        row("dropped by the plugin", thousands(summary.dropped), lanes),
        row("delivered", thousands(summary.delivered), arrived),
        row("files written", thousands(summary.files), "target/demo/out/".to_owned()),
        row("elapsed", ui::seconds(Duration::from_millis(summary.elapsed_ms)), String::new()),
    ];
    ui::table([Align::Left, Align::Right, Align::Left], &rows)
}

/// The path as seen from the root.
fn below<'a>(root: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}

fn next(root: &Path, config: &Path, nats: bool) -> String {
    let config = below(root, config).display();
    if nats {
        format!("next: read {config}, then point `servers` in a copy of it at your own NATS server")
    } else {
        format!(
            "next: change {config} and run the demo again, or let it deliver to a NATS server too: \
             cargo xtask demo --nats"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"records_in":10,"dropped":2,"delivered":18,"dead_lettered":0,"files":1,"elapsed_ms":1500,"lanes":[{},{}]}"#;

    fn ten() -> Generated {
        Generated { records: 10, bad: vec![4], bytes: 2_150 }
    }

    #[test]
    fn the_summary_is_the_last_line_of_the_output() {
        let summary = summary(&format!("something else\n{LINE}\n")).unwrap();
        assert_eq!((summary.records_in, summary.delivered, summary.lanes), (10, 18, 2));
        assert!(super::summary("").is_err());
        let error = super::summary(r#"{"records_in":1}"#).unwrap_err().to_string();
        assert!(error.contains("dropped"), "{error}");
    }

    #[test]
    fn the_table_holds_the_figures_that_agree() {
        let summary = summary(LINE).unwrap();
        let found = Found { files: 1, lines: 9, messages: Some(9) };
        compare(&summary, &found, &ten()).unwrap();
        let text = table(&summary, &found);
        assert_eq!(text.lines().count(), 5, "{text}");
        for part in
            ["9 lines counted in the files, 9 messages in stream EDGE", "in 2 lanes", "1.5 s"]
        {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn all_figures_that_disagree_are_named() {
        let summary = summary(LINE).unwrap();
        let found = Found { files: 2, lines: 8, messages: Some(9) };
        let error = compare(&summary, &found, &ten()).unwrap_err().to_string();
        assert!(error.contains("files, by the agent: 1, expected 2"), "{error}");
        assert!(error.contains("lines in the files: 8, expected 9"), "{error}");
    }

    #[test]
    fn repeated_misplaced_bad_and_unfinished_output_is_found() {
        let folder = std::env::temp_dir().join(format!("xtask-demo-{}", std::process::id()));
        let files = [
            ("good", "a.ndjson", "{\"seq\":1}\n{\"seq\":2}\n", None),
            ("twice", "a.ndjson", "{\"seq\":1}\n{\"seq\":1}\n", Some("record 1 stands behind")),
            ("bad", "a.ndjson", "{\"seq\":4}\n", Some("was delivered")),
            ("text", "a.ndjson", "seq\n", Some("a.ndjson")),
            ("part", ".a.ndjson.part", "", Some("unfinished")),
        ];
        for (name, file, text, expected) in files {
            let out = folder.join(name);
            fs::create_dir_all(out.join("2026")).unwrap();
            fs::write(out.join("2026").join(file), text).unwrap();
            match (count(&out, &ten()), expected) {
                (Ok(found), None) => assert_eq!((found.files, found.lines), (1, 2)),
                (Err(error), Some(part)) => {
                    assert!(format!("{error:#}").contains(part), "{error:#}");
                }
                (result, _) => panic!("{name}: {result:?}"),
            }
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
