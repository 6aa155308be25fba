//! An agent on its whole way: from a file through the journal and a plugin into files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::{empty_folder, entries, write};
use crate::notify::Notify;
use crate::{process, sensors, ui};

const RECORDS: u64 = 1000;
/// Of ten records the plugin drops the one whose status is bad.
const DELIVERED: usize = 900;

pub(super) struct Way {
    folder: PathBuf,
    config: PathBuf,
}

impl Way {
    /// Laid out in an empty folder. `plugin` are the keys that say which plugin the transform is.
    pub(super) fn lay(folder: &Path, plugin: &str) -> Result<Self> {
        empty_folder(folder)?;
        let folder = fs::canonicalize(folder).context("it was just made")?;
        sensors::generate(&folder.join("in.ndjson"), RECORDS)?;
        let shown = folder.display();
        let config = format!(
            "[agent]\nid = \"way\"\ndata_dir = \"{shown}/data\"\n\
             [sources.in]\ntype = \"file\"\npaths = [\"{shown}/in.ndjson\"]\n\
             [transforms.clean]\n{plugin}\nconfig = {{ drop_status = \"bad\" }}\n\
             [sinks.out]\ntype = \"file\"\nroot = \"{shown}/out\"\npath = \"{{epoch}}-{{batch}}.ndjson\"\n\
             [pipelines.p]\nsources = [\"in\"]\ntransforms = [\"clean\"]\nsinks = [\"out\"]\n",
        );
        let file = folder.join("waystation.toml");
        write(&file, config.as_bytes())?;
        Ok(Self { folder, config: file })
    }

    /// Runs the agent to the end of the file, and counts what has arrived.
    pub(super) fn run(&self, mut agent: Command) -> Result<()> {
        process::output(agent.args(["run", "--once", "--config"]).arg(&self.config))?;
        let mut delivered = 0;
        for file in entries(&self.folder.join("out"))? {
            delivered += super::text(&file)?.lines().count();
        }
        ensure!(
            delivered == DELIVERED,
            "{delivered} records arrived, and {DELIVERED} were to come"
        );
        ui::say(&format!("{RECORDS} records in, {delivered} delivered"));
        Ok(())
    }

    /// Starts it again, and returns how long it took to be ready, its plugin compiled and its journal there. Then it is killed.
    pub(super) fn ready(&self, mut agent: Command) -> Result<Duration> {
        let notify = Notify::bind(&self.folder)?;
        agent.args(["run", "--config"]).arg(&self.config).envs([notify.variable()]);
        agent.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = agent.spawn().context("cannot start the agent")?;
        let took = notify.ready(|| match child.try_wait()? {
            Some(status) => bail!("the agent ended ({status})"),
            None => Ok(()),
        });
        child.kill().and_then(|()| child.wait()).context("cannot end the agent")?;
        took
    }
}
