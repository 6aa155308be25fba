//! The unit's commands, run as systemd would run them: as its user, with its folders, and with a socket that hears what the agent
//! says of itself.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::machine::Machine;

const UNIT: &str = "/usr/lib/systemd/system/waystation.service";
/// Where the socket lies in the tree.
const SOCKET: &str = "/run/trial/notify";
/// How long anything may take, on a machine that is busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// What the unit in the tree says.
pub(super) struct Unit(String);

impl Unit {
    pub(super) fn read(machine: &Machine) -> Result<Self> {
        let file = machine.path(UNIT);
        let text = fs::read_to_string(&file);
        Ok(Self(text.with_context(|| format!("cannot read {}", file.display()))?))
    }

    /// All values of a key.
    pub(super) fn all(&self, key: &str) -> Vec<&str> {
        let values = self.0.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.collect()
    }

    /// The value of a key that is there once.
    fn one(&self, key: &str) -> Result<&str> {
        match self.all(key)[..] {
            [value] => Ok(value),
            _ => bail!("the unit does not say {key} once"),
        }
    }

    /// A command of the unit, as it would be run.
    fn command(&self, machine: &Machine, line: &str) -> Result<Command> {
        let user = format!("{}:{}", self.one("User")?, self.one("Group")?);
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = machine.command(Some(&user), &words);
        command
            .env("STATE_DIRECTORY", format!("/var/lib/{}", self.one("StateDirectory")?))
            .env("RUNTIME_DIRECTORY", format!("/run/{}", self.one("RuntimeDirectory")?))
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Runs the unit's commands for a reload one after the other, and returns whether all succeed.
    pub(super) fn reload(&self, machine: &Machine) -> Result<bool> {
        let lines = self.all("ExecReload");
        ensure!(lines.len() == 2, "a reload checks, and then reloads");
        for line in lines {
            let output = self.command(machine, line)?.output().context("cannot start unshare")?;
            if !output.status.success() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The running agent; killed when it is dropped.
pub(super) struct Service<'a> {
    machine: &'a Machine,
    child: Child,
    socket: UnixDatagram,
    /// What was heard and not asked for yet.
    heard: Vec<String>,
}

impl<'a> Service<'a> {
    /// Starts the agent, and waits until it says that it is ready.
    pub(super) fn start(machine: &'a Machine) -> Result<Self> {
        Self::start_under(machine, |command| command)
    }

    /// The same, with every system call written into this file.
    pub(super) fn start_traced(machine: &'a Machine, trace: &Path) -> Result<Self> {
        // Detached: the process that we start stays the agent, and the tracer is beside it.
        Self::start_under(machine, |command| {
            let mut traced = Command::new("strace");
            traced.args(["--daemonize", "--follow-forks", "--quiet=attach", "--output"]).arg(trace);
            traced.arg(command.get_program()).args(command.get_args());
            traced.env_clear();
            let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
            traced.envs(set).stdin(Stdio::null());
            traced
        })
    }

    fn start_under(machine: &'a Machine, under: impl FnOnce(Command) -> Command) -> Result<Self> {
        let unit = Unit::read(machine)?;
        ensure!(unit.one("Type")? == "notify", "the unit does not wait for the agent to be ready");
        folders(machine, &unit)?;
        let socket = listen(machine)?;
        let log = machine.path("/run/trial/log");
        let log =
            File::options().create(true).append(true).open(&log).context("cannot make a log")?;
        let child = under(unit.command(machine, unit.one("ExecStart")?)?)
            .env("NOTIFY_SOCKET", SOCKET)
            .env("WATCHDOG_USEC", "400000")
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start unshare")?;
        let mut service = Self { machine, child, socket, heard: Vec::new() };
        service.hears("READY=1")?;
        Ok(service)
    }

    /// Waits for the agent to say this.
    pub(super) fn hears(&mut self, line: &str) -> Result<()> {
        self.wait(&format!("{line} from the agent"), |service| {
            let found = service.heard.iter().position(|heard| heard == line);
            Ok(found.map(|found| drop(service.heard.drain(..=found))))
        })
    }

    /// Takes what was said. A service manager does that all the time.
    fn listen(&mut self) {
        let mut bytes = [0; 4096];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(bytes.get(..length).unwrap_or_default());
            self.heard.extend(text.lines().map(str::to_owned));
        }
    }

    /// Asks the agent for its status, as an operator would at a shell of root.
    pub(super) fn status(&self) -> Result<Value> {
        let mut command = self.machine.command(None, &["waystation", "status", "--json"]);
        Ok(serde_json::from_str(&crate::process::output(&mut command)?)?)
    }

    /// Waits for something of the agent, for as long as it runs.
    pub(super) fn wait<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>>,
    ) -> Result<T> {
        let begun = Instant::now();
        loop {
            self.listen();
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait().context("cannot wait for the agent")? {
                bail!("waiting for {what}, and the agent has ended: {status}\n{}", self.log());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "waited for {what} in vain; status {}\n{}",
                self.status().map_or_else(|error| error.to_string(), |status| status.to_string()),
                self.log()
            );
            std::thread::sleep(PAUSE);
        }
    }

    /// SIGTERM; the agent has to say that it stops, and to end with 0.
    pub(super) fn stop(mut self) -> Result<()> {
        self.listen();
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)
            .context("cannot signal the agent")?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().context("cannot wait for the agent")? {
                break status;
            }
            ensure!(begun.elapsed() < PATIENCE, "the agent does not stop\n{}", self.log());
            self.listen();
            std::thread::sleep(PAUSE);
        };
        ensure!(
            status.success(),
            "the agent was asked to stop and ends with {status}\n{}",
            self.log()
        );
        // What was said is in the socket, whoever said it has gone.
        self.listen();
        ensure!(
            self.heard.iter().any(|line| line == "STOPPING=1"),
            "the agent stops without a word"
        );
        // systemd removes the folder of a service that has stopped.
        crate::install::remove_dir(&self.machine.path("/run/waystation"))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.machine.path("/run/trial/log")).unwrap_or_default()
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Makes what `StateDirectory=` and `RuntimeDirectory=` have systemd make.
fn folders(machine: &Machine, unit: &Unit) -> Result<()> {
    let (user, group) = (unit.one("User")?, unit.one("Group")?);
    for (above, key) in [("/var/lib", "StateDirectory"), ("/run", "RuntimeDirectory")] {
        let folder = format!("{above}/{}", unit.one(key)?);
        let mode = unit.one(&format!("{key}Mode"))?;
        machine.run(&["install", "-d", "-o", user, "-g", group, "-m", mode, &folder])?;
    }
    Ok(())
}

/// Binds the socket. Its path in the tree may be longer than an address can be: it is named through its open folder.
fn listen(machine: &Machine) -> Result<UnixDatagram> {
    let path = machine.path(SOCKET);
    let folder = path.parent().context("a socket has a folder")?;
    fs::create_dir_all(folder).context("cannot make the socket's folder")?;
    drop(fs::remove_file(&path));
    let open = File::open(folder).context("cannot open the socket's folder")?;
    let socket = UnixDatagram::bind(format!("/proc/self/fd/{}/notify", open.as_raw_fd()))
        .context("cannot bind the socket")?;
    socket.set_nonblocking(true)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777))?;
    Ok(socket)
}
