//! The socket of a service manager, for one agent: when it says that it is ready.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// How long an agent may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Notify {
    path: PathBuf,
    socket: UnixDatagram,
    begun: Instant,
}

impl Notify {
    /// Binds it in a folder, just before the agent is started.
    pub(crate) fn bind(folder: &Path) -> Result<Self> {
        let path = folder.join("notify");
        if path.exists() {
            fs::remove_file(&path)?;
        }
        let socket = UnixDatagram::bind(&path)
            .with_context(|| format!("cannot bind a socket at {}", path.display()))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { path, socket, begun: Instant::now() })
    }

    /// What the agent needs in its environment.
    pub(crate) fn variable(&self) -> (&'static str, &Path) {
        ("NOTIFY_SOCKET", &self.path)
    }

    /// Waits for the agent, which `runs` looks at, and returns how long it took.
    pub(crate) fn ready(&self, mut runs: impl FnMut() -> Result<()>) -> Result<Duration> {
        let mut message = [0; 4096];
        while self.begun.elapsed() < PATIENCE {
            let length = self.socket.recv(&mut message);
            let took = self.begun.elapsed();
            runs()?;
            let said = message.get(..length.context("the agent is not ready")?);
            let said = String::from_utf8_lossy(said.unwrap_or_default());
            if said.lines().any(|line| line == "READY=1") {
                return Ok(took);
            }
        }
        bail!("the agent was not ready within {PATIENCE:?}")
    }
}
