//! Configs that change under a running agent.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::agent::Home;
use super::certificates::replace;
use super::{LONG, wait_for};

/// How a config gets into its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The file is written over.
    InPlace,
    /// Another one is renamed over it.
    Renamed,
    /// It is a link, which is turned to another file.
    Linked,
    /// It goes, and comes back after a while.
    Gone,
    /// It is written in two halves with a while in between.
    Halves,
}

impl Way {
    pub(crate) const ALL: [Self; 5] =
        [Self::InPlace, Self::Renamed, Self::Linked, Self::Gone, Self::Halves];

    /// Puts a text there. One that is a link is written through otherwise, so it is made a file first.
    pub(crate) fn put(self, home: &Home, text: &str) {
        let path = home.config();
        let text = home.filled(text);
        if self != Self::Linked && path.is_symlink() {
            replace(&path, &std::fs::read_to_string(&path).unwrap());
        }
        match self {
            Self::InPlace => std::fs::write(&path, text).unwrap(),
            Self::Renamed => replace(&path, &text),
            Self::Linked => link(home, &path, &text),
            Self::Gone => {
                let before = refused(home);
                std::fs::remove_file(&path).unwrap();
                wait_for("the agent to miss it", LONG, || (refused(home) > before).then_some(()));
                std::fs::write(&path, text).unwrap();
            }
            Self::Halves => {
                let before = refused(home);
                // In the middle of a key, which is nothing by itself.
                let half = text.rfind("sinks = ").unwrap() + 3;
                std::fs::write(&path, &text[..half]).unwrap();
                wait_for("half of it", LONG, || (refused(home) > before).then_some(()));
                std::fs::write(&path, text).unwrap();
            }
        }
    }
}

fn link(home: &Home, path: &Path, text: &str) {
    let version = home.path(&format!("versions/{:016x}", fastrand::u64(..)));
    std::fs::create_dir_all(&version).unwrap();
    std::fs::write(version.join("w.toml"), text).unwrap();
    let link = home.path("new-link");
    std::os::unix::fs::symlink(version.join("w.toml"), &link).unwrap();
    std::fs::rename(link, path).unwrap();
}

/// A command to the agent, which is found also while its config is broken or away.
pub(crate) fn by_socket(home: &Home, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_waystation"));
    command.args(arguments).arg("--socket").arg(home.path("data/admin.sock"));
    command.env_clear().current_dir("/").output().unwrap()
}

/// The status, also then.
pub(crate) fn status(home: &Home) -> Option<Value> {
    serde_json::from_slice(&by_socket(home, &["status", "--json"]).stdout).ok()
}

/// What the status says of the config.
pub(crate) fn config(home: &Home) -> Option<Value> {
    Some(status(home)?["config"].clone())
}

/// Reloads that were refused so far.
pub(crate) fn refused(home: &Home) -> u64 {
    let status = wait_for("the status", LONG, || config(home));
    status["reloads_refused"].as_u64().unwrap()
}

/// Less than the time after which files are looked at in any case: somebody has told of the change.
const SEEN: Duration = Duration::from_secs(25);

/// Waits until the config with this owner runs, and nothing is wrong with it.
pub(crate) fn wait_adopted(home: &Home, owner: &str) -> Value {
    wait_for(&format!("config {owner}"), SEEN, || {
        let status = status(home)?;
        let is = status["agent"]["owner"] == owner && status["config"]["trouble"].is_null();
        is.then_some(status)
    })
}

/// Waits until one more was refused than `before`; gives why.
pub(crate) fn wait_refused(home: &Home, before: u64) -> String {
    wait_for("a refusal", LONG, || {
        let config = config(home)?;
        let is = config["reloads_refused"].as_u64()? > before;
        is.then(|| config["trouble"]["reason"].as_str().unwrap_or_default().to_owned())
    })
}

/// A moment in which nothing is expected to happen.
pub(crate) fn a_while() {
    std::thread::sleep(Duration::from_millis(1500));
}

/// How often the head is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Looks at the head of the first source all the time, under a flow that never stops.
pub(crate) struct Ingest {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Duration>,
}

impl Ingest {
    pub(crate) fn watch(home: &Home) -> Self {
        let socket = home.path("data/admin.sock");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut before, mut since, mut longest) = (None, Instant::now(), Duration::ZERO);
            while !stopped.load(Ordering::SeqCst) {
                let head = head(&socket);
                if head.is_some() && head != before {
                    longest = longest.max(since.elapsed());
                    (before, since) = (head, Instant::now());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            longest.max(since.elapsed())
        });
        Self { stop, thread }
    }

    /// The longest time in which nothing was taken in.
    pub(crate) fn longest_pause(self) -> Duration {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn head(socket: &Path) -> Option<u64> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream
        .write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str::<Value>(body).ok()?["sources"][0]["head"].as_u64()
}
