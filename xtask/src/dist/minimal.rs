//! The agent for small machines: without the compiler of plugins and without the sources that can be left out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::way::Way;
use super::{FOLDER, empty_folder, write};
use crate::ui::{self, Step};
use crate::{plugins, process};

/// The kinds of source that it is built without, each with the keys that a config of it needs.
const LEFT_OUT: [(&str, &str); 7] = [
    ("journald", ""),
    ("metrics", ""),
    ("mqtt", "url = \"mqtt://127.0.0.1\"\ntopics = [\"t\"]"),
    ("syslog", "listen = \"127.0.0.1:5140\""),
    ("tcp", "listen = \"127.0.0.1:5141\""),
    ("udp", "listen = \"127.0.0.1:5142\""),
    ("unix", "socket = \"/run/waystation-minimal.sock\""),
];

/// Builds it, and returns its binary.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let mut build = process::cargo(root);
    build.args(["build", "--profile", "minimal", "--no-default-features", "--locked"]);
    process::run(build.args(["--package", "waystation", "--bin", "waystation"]))?;
    Ok(root.join("target/minimal/waystation"))
}

/// Builds it, has it run a plugin that the whole agent has compiled, and sees that it refuses what it does not have.
pub(crate) fn run(root: &Path) -> Result<()> {
    let step = Step::start("building the agent for small machines");
    let minimal = build(root)?;
    step.done();
    let step = Step::start("building the agent that compiles plugins, and one");
    process::run(process::cargo(root).args(["build", "--bin", "waystation", "--locked"]))?;
    plugins::build(root, Some(&["clean"]))?;
    step.done();
    let step = Step::start("running it");
    let folder = root.join(FOLDER).join("minimal");
    empty_folder(&folder)?;
    refuses(&minimal, &folder)?;
    let code = folder.join("clean.code");
    let mut compile = Command::new(root.join("target/debug/waystation"));
    compile.args(["plugin", "compile"]).arg(root.join("target/plugins/clean.wasm"));
    let digest = process::output(compile.arg("--output").arg(&code))?;
    let plugin = format!("plugin = \"{}\"\nsha256 = \"{}\"", code.display(), digest.trim());
    let way = Way::lay(&folder.join("way"), &plugin)?;
    way.run(Command::new(&minimal))?;
    let ready = way.ready(Command::new(&minimal))?;
    step.done();
    println!("binary    {}", super::size(&minimal)?);
    ui::say(&format!("ready in {} ms", ready.as_millis()));
    Ok(())
}

/// It says what it is built with, and that a config asks for more.
fn refuses(minimal: &Path, folder: &Path) -> Result<()> {
    let said = process::output(Command::new(minimal).args(["version", "--json"]))?;
    let said: Value = serde_json::from_str(&said).context("`version --json` is no JSON")?;
    ensure!(said["features"] == Value::Array(Vec::new()), "it is built with {}", said["features"]);
    let mut config = format!("[agent]\ndata_dir = \"{}\"\n", folder.join("data").display());
    for (kind, keys) in LEFT_OUT {
        config.push_str(&format!("[sources.{kind}]\ntype = \"{kind}\"\n{keys}\n"));
    }
    let file = folder.join("refused.toml");
    write(&file, config.as_bytes())?;
    let checked = Command::new(minimal).args(["check", "-c"]).arg(&file).output()?;
    let said = String::from_utf8_lossy(&checked.stderr) + String::from_utf8_lossy(&checked.stdout);
    ensure!(!checked.status.success(), "it takes a config of what it is built without");
    for (kind, _) in LEFT_OUT {
        let message = format!("this agent is built without type \"{kind}\"");
        ensure!(said.contains(&message), "it does not say: {message}\n{said}");
    }
    Ok(())
}
