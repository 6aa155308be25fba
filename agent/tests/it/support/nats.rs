//! A real nats-server on a free port.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::Context;
use rustix::process::{Pid, Signal, kill_process};

use super::{LONG, repository, wait_for};

/// What the tests' servers have in common. In lame duck mode (SIGUSR2) they give their clients a second.
pub(crate) const CONFIG: &str = "lame_duck_grace_period: \"1s\"\nlame_duck_duration: \"30s\"\n";

/// The server that `cargo xtask test` installs.
pub(crate) fn program() -> PathBuf {
    let program = repository(".tools/nats-server");
    assert!(program.exists(), "{} is missing: run `cargo xtask test`", program.display());
    program
}

/// Ends a server by a signal, and waits for its end.
pub(crate) fn end(child: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
    wait_for("the server's end", LONG, || child.try_wait().unwrap());
}

/// A running server with JetStream. Dropping it ends it.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), 0)
    }

    /// Kills the server and keeps what it has stored.
    pub(crate) fn end(self) -> (u16, tempfile::TempDir) {
        self.end_by(Signal::KILL)
    }

    /// Ends the server by a signal and keeps what it has stored.
    pub(crate) fn end_by(mut self, signal: Signal) -> (u16, tempfile::TempDir) {
        end(&mut self.child, signal);
        let empty = tempfile::tempdir().unwrap();
        (self.port, std::mem::replace(&mut self.directory, empty))
    }

    /// Starts on what an earlier server has stored; on its port, so that agents find it again.
    pub(crate) fn start_in(directory: tempfile::TempDir, port: u16) -> Self {
        Self::start_with(directory, port, "")
    }

    /// The same with more in its config.
    pub(crate) fn start_with(directory: tempfile::TempDir, port: u16, more: &str) -> Self {
        let config = directory.path().join("server.conf");
        std::fs::write(&config, format!("{CONFIG}{more}")).unwrap();
        let ports = directory.path().join("ports");
        std::fs::create_dir_all(&ports).unwrap();
        let wanted = if port == 0 { "-1".to_owned() } else { port.to_string() };
        let child = Command::new(program())
            .args(["-a", "127.0.0.1", "-js", "-p", &wanted, "--ports_file_dir"])
            .arg(&ports)
            .arg("-sd")
            .arg(directory.path().join("store"))
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(directory.path().join("server.log")).unwrap())
            .spawn()
            .unwrap();
        let file = ports.join(format!("nats-server_{}.ports", child.id()));
        let port = wait_for("the server's port", LONG, || {
            let text = std::fs::read_to_string(&file).ok()?;
            let ports: serde_json::Value = serde_json::from_str(&text).ok()?;
            let url = ports["nats"].as_array()?.first()?.as_str()?.to_owned();
            url.rsplit(':').next()?.parse().ok()
        });
        Self { child, port, directory }
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The numbers of the connections that clients have now, by the clients' names. Of a server that was started with
    /// `http: "127.0.0.1:-1"`.
    pub(crate) fn connections(&self) -> Vec<(String, u64)> {
        use std::io::{Read as _, Write as _};

        let ports = format!("ports/nats-server_{}.ports", self.child.id());
        let text = std::fs::read_to_string(self.directory.path().join(ports)).unwrap();
        let ports: serde_json::Value = serde_json::from_str(&text).unwrap();
        let url = ports["monitoring"][0].as_str().unwrap();
        let address = url.trim_start_matches("http://");
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let request =
            format!("GET /connz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let (begin, end) = (body.find('{').unwrap(), body.rfind('}').unwrap());
        let all: serde_json::Value = serde_json::from_str(&body[begin..=end]).unwrap();
        let connections = all["connections"].as_array().unwrap().iter();
        connections
            .map(|one| {
                (one["name"].as_str().unwrap_or_default().to_owned(), one["cid"].as_u64().unwrap())
            })
            .collect()
    }

    pub(crate) async fn jetstream(&self) -> Context {
        let client = async_nats::connect(self.url()).await.unwrap();
        async_nats::jetstream::new(client)
    }

    /// Makes a stream that remembers identities for ten minutes.
    pub(crate) async fn make_stream(&self, name: &str, subject: &str) {
        self.jetstream().await.create_stream(stream(name, subject)).await.unwrap();
    }

    /// All messages of a stream.
    pub(crate) async fn messages(&self, stream: &str) -> Vec<Message> {
        messages(&self.jetstream().await, stream).await
    }
}

/// Subject, `Nats-Msg-Id`, payload.
pub(crate) type Message = (String, String, Vec<u8>);

/// A stream that remembers identities for ten minutes.
pub(crate) fn stream(name: &str, subject: &str) -> async_nats::jetstream::stream::Config {
    async_nats::jetstream::stream::Config {
        name: name.to_owned(),
        subjects: vec![subject.to_owned()],
        duplicate_window: Duration::from_secs(600),
        ..Default::default()
    }
}

/// All messages of a stream, in its order.
pub(crate) async fn messages(context: &Context, stream: &str) -> Vec<Message> {
    use futures_util::StreamExt as _;

    let stream = context.get_stream(stream).await.unwrap();
    let count = stream.get_info().await.unwrap().state.messages;
    let config = async_nats::jetstream::consumer::pull::OrderedConfig::default();
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut messages = consumer.messages().await.unwrap();
    let mut all = Vec::new();
    while (all.len() as u64) < count {
        let message = messages.next().await.unwrap().unwrap();
        let id = message.headers.as_ref().and_then(|headers| headers.get("Nats-Msg-Id"));
        let id = id.map(|id| id.as_str().to_owned()).unwrap_or_default();
        all.push((message.subject.to_string(), id, message.payload.to_vec()));
    }
    all
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
