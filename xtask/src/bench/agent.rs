//! An agent that is measured.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// A running agent. Ends with this value.
pub(super) struct Agent {
    pub(super) child: Child,
    pub(super) config: PathBuf,
    binary: PathBuf,
}

impl Agent {
    /// Starts one with this config below `[agent]`, in a folder that holds its data in `data` and its log.
    pub(super) fn start(binary: &Path, folder: &Path, config: &str, out: Stdio) -> Result<Self> {
        Self::start_with(binary, folder, config, out, &[])
    }

    /// The same with variables in its environment.
    pub(super) fn start_with(
        binary: &Path,
        folder: &Path,
        config: &str,
        out: Stdio,
        environment: &[(&str, &Path)],
    ) -> Result<Self> {
        let path = folder.join("waystation.toml");
        let data = folder.join("data");
        let head = format!("[agent]\nid = \"bench\"\ndata_dir = \"{}\"\n", data.display());
        fs::write(&path, head + config)?;
        let log = File::create(folder.join("log"))?;
        let mut command = Command::new(binary);
        command.args(["run", "-c"]).arg(&path).stdin(Stdio::piped()).stdout(out).stderr(log);
        command.envs(environment.iter().copied());
        let child =
            command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        Ok(Self { child, config: path, binary: binary.to_owned() })
    }

    /// Fails when it has ended, which none that is measured may.
    pub(super) fn runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the agent ended ({status}); its log is beside {}", self.config.display());
        }
        Ok(())
    }

    /// What `status --json` says, once it says something.
    pub(super) fn status(&mut self) -> Result<Option<Value>> {
        self.runs()?;
        let mut ask = Command::new(&self.binary);
        let asked = ask.args(["status", "--json", "-c"]).arg(&self.config).output()?;
        Ok(serde_json::from_slice(&asked.stdout).ok())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // One that has ended by itself is not there to be killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a process has in RAM.
pub(super) fn resident_bytes(process: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0)
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
