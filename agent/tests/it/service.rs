//! What the agent tells a service manager over its socket.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::support::agent::Home;
use super::support::{LONG, wait_for};

const CONFIG: &str = r#"
[agent]
id = "gw"
data_dir = "{dir}/data"
[sources.in]
type = "file"
paths = ["{dir}/in"]
[sinks.out]
type = "file"
root = "{dir}/out"
[pipelines.p]
sources = ["in"]
sinks = ["out"]
"#;

/// A service manager with one service, which is killed when it is dropped.
struct Manager {
    socket: UnixDatagram,
    child: Child,
}

impl Manager {
    fn start(home: &Home, arguments: &[&str]) -> Self {
        let path = home.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let child = home
            .command(arguments)
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", "200000")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { socket, child }
    }

    /// The lines of the next message.
    fn heard(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).unwrap();
        let text = std::str::from_utf8(&bytes[..length]).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for a message with this line, and returns what was said before it.
    fn hears(&self, line: &str) -> Vec<String> {
        let mut before = Vec::new();
        loop {
            let heard = self.heard();
            if heard.iter().any(|heard| heard == line) {
                return before;
            }
            before.extend(heard);
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn a_service_manager_hears_that_the_agent_is_ready_alive_and_stopping() {
    let home = Home::new(CONFIG);
    let mut manager = Manager::start(&home, &["run"]);
    manager.hears("READY=1");
    assert!(home.status().is_some(), "ready, and the socket does not answer");
    for _ in 0..3 {
        manager.hears("WATCHDOG=1");
    }
    manager.signal(rustix::process::Signal::TERM);
    manager.hears("STOPPING=1");
    let status = wait_for("the agent's end", LONG, || manager.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_service_manager_that_does_not_read_keeps_the_agent_from_nothing() {
    let home = Home::new(CONFIG);
    let mut manager = Manager::start(&home, &["run"]);
    manager.hears("READY=1");
    // The socket takes about ten messages, one each 100 ms; what comes then would block.
    std::thread::sleep(Duration::from_secs(3));
    let status = home.status().expect("the agent answers");
    assert_eq!(status["ready"], true);
    manager.signal(rustix::process::Signal::TERM);
    let status = wait_for("the agent's end", LONG, || manager.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_start_that_fails_is_never_called_ready() {
    let home = Home::new(&CONFIG.replace("sinks = [\"out\"]", "sinks = [\"nowhere\"]"));
    let mut manager = Manager::start(&home, &["run", "--strict"]);
    let status = wait_for("the agent's end", LONG, || manager.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(78));
    manager.socket.set_nonblocking(true).unwrap();
    let mut bytes = [0; 4096];
    while let Ok(length) = manager.socket.recv(&mut bytes) {
        let said = String::from_utf8_lossy(&bytes[..length]);
        assert!(!said.contains("READY"), "{said}");
    }
}
