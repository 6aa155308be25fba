//! An agent for another processor on its whole way, under emulation: from a file through the journal and a plugin, which it compiles
//! in a process of its own, into files.

use std::fs;

use anyhow::{Context as _, Result, ensure};

use super::{Parts, empty_folder, entries, write};
use crate::ui::{self, Step};
use crate::{arm64, process, sensors};

const RECORDS: u64 = 1000;
/// Of ten records the plugin drops the one whose status is bad.
const DELIVERED: usize = 900;

pub(super) fn run(parts: &Parts) -> Result<()> {
    let step = Step::start("running the agent for arm64 under qemu");
    let folder = parts.out.join("emulated");
    empty_folder(&folder)?;
    let folder = fs::canonicalize(&folder).context("it was just made")?;
    sensors::generate(&folder.join("in.ndjson"), RECORDS)?;
    let (shown, plugin) =
        (folder.display(), std::path::absolute(parts.plugins.join("clean.wasm"))?);
    let config = format!(
        "[agent]\nid = \"emulated\"\ndata_dir = \"{shown}/data\"\n\
         [sources.in]\ntype = \"file\"\npaths = [\"{shown}/in.ndjson\"]\n\
         [transforms.clean]\nplugin = \"{}\"\nconfig = {{ drop_status = \"bad\" }}\n\
         [sinks.out]\ntype = \"file\"\nroot = \"{shown}/out\"\npath = \"{{epoch}}-{{batch}}.ndjson\"\n\
         [pipelines.p]\nsources = [\"in\"]\ntransforms = [\"clean\"]\nsinks = [\"out\"]\n",
        plugin.display()
    );
    let file = folder.join("waystation.toml");
    write(&file, config.as_bytes())?;
    let mut agent = arm64::program_that_starts_others(&std::path::absolute(&parts.binary)?);
    process::output(agent.args(["run", "--once", "--config"]).arg(&file))?;
    let mut delivered = 0;
    for file in entries(&folder.join("out"))? {
        delivered += super::text(&file)?.lines().count();
    }
    ensure!(delivered == DELIVERED, "{delivered} records arrived, and {DELIVERED} were to come");
    step.done();
    ui::say(&format!("{RECORDS} records in, {delivered} delivered"));
    Ok(())
}
