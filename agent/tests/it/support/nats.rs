//! A real nats-server on a free port.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{LONG, repository, wait_for};

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

    /// Ends the server and keeps what it has stored.
    pub(crate) fn end(mut self) -> (u16, tempfile::TempDir) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let empty = tempfile::tempdir().unwrap();
        (self.port, std::mem::replace(&mut self.directory, empty))
    }

    /// Starts on what an earlier server has stored; on its port, so that agents find it again. A file `server.conf` in the
    /// directory is its config.
    pub(crate) fn start_in(directory: tempfile::TempDir, port: u16) -> Self {
        let program = repository(".tools/nats-server");
        assert!(program.exists(), "{} is missing: run `cargo xtask test`", program.display());
        let ports = directory.path().join("ports");
        std::fs::create_dir_all(&ports).unwrap();
        let wanted = if port == 0 { "-1".to_owned() } else { port.to_string() };
        let config = directory.path().join("server.conf");
        let mut command = Command::new(program);
        if config.exists() {
            command.arg("-c").arg(config);
        }
        let child = command
            .args(["-a", "127.0.0.1", "-js", "-p", &wanted, "--ports_file_dir"])
            .arg(&ports)
            .arg("-sd")
            .arg(directory.path().join("store"))
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

    pub(crate) async fn jetstream(&self) -> async_nats::jetstream::Context {
        let client = async_nats::connect(self.url()).await.unwrap();
        async_nats::jetstream::new(client)
    }

    /// Makes a stream that remembers identities for ten minutes.
    pub(crate) async fn make_stream(&self, name: &str, subject: &str) {
        let config = async_nats::jetstream::stream::Config {
            name: name.to_owned(),
            subjects: vec![subject.to_owned()],
            duplicate_window: Duration::from_secs(600),
            ..Default::default()
        };
        self.jetstream().await.create_stream(config).await.unwrap();
    }

    /// All messages of a stream: subject, `Nats-Msg-Id`, payload.
    pub(crate) async fn messages(&self, stream: &str) -> Vec<(String, String, Vec<u8>)> {
        use futures_util::StreamExt as _;

        let stream = self.jetstream().await.get_stream(stream).await.unwrap();
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
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
