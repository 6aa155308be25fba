//! The real binary with a directory of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use super::wait_for;

/// A directory with a config, from which agents are started.
pub(crate) struct Home {
    pub(crate) directory: tempfile::TempDir,
}

impl Home {
    /// A directory whose config is `config`; `{dir}` in it stands for the directory.
    pub(crate) fn new(config: &str) -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        home.configure(config);
        home
    }

    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.config(), self.filled(config)).unwrap();
    }

    /// The text with the directory where it says `{dir}`.
    pub(crate) fn filled(&self, text: &str) -> String {
        text.replace("{dir}", self.path("").to_str().unwrap().trim_end_matches('/'))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.path("waystation.toml")
    }

    /// `waystation ARGS`, with `-c` for those that take it.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_waystation"));
        command.args(arguments).arg("-c").arg(self.config()).env_clear().current_dir("/");
        command
    }

    /// Runs a command to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).stdin(Stdio::null()).output().unwrap()
    }

    /// `run --once --json`, which must succeed; gives the summary.
    pub(crate) fn run_once(&self) -> serde_json::Value {
        let output = self.output(&["run", "--once", "--timeout", "2m", "--json"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{stderr}", output.status);
        let stdout = String::from_utf8(output.stdout).unwrap();
        serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
    }

    /// Starts an agent whose log goes to `agent.log`.
    pub(crate) fn start(&self, arguments: &[&str]) -> Agent {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("agent.log"))
            .unwrap();
        let child = self
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { child }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("agent.log")).unwrap_or_default()
    }

    /// The status of a running agent.
    pub(crate) fn status(&self) -> Option<serde_json::Value> {
        let output = self.output(&["status", "--json"]);
        serde_json::from_slice(&output.stdout).ok()
    }
}

/// A running agent. Dropping it kills it.
pub(crate) struct Agent {
    child: Child,
}

impl Agent {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A line of `/proc/PID/status` in bytes: `VmRSS` is what is resident, `VmHWM` the most that it ever was.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<u64>().unwrap() * 1024
    }

    /// SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// SIGTERM, and waits for the end.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the agent's end", super::LONG, || self.child.try_wait().unwrap())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// All files below a directory, with their paths relative to it.
pub(crate) fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else { continue };
        for entry in entries {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            } else {
                found.push(entry.path().strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}
