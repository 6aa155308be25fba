//! Three real nats-servers that are one JetStream cluster, on free ports.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::ClusterInfo;
use rustix::process::Signal;

use super::nats::{CONFIG, end, program, stream};
use super::{LONG, wait_for};

const NODES: usize = 3;
/// Below the ports that the kernel gives to clients, one of which could take a server's while that is away.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A running cluster. Dropping it ends it.
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    /// Goes with it.
    _directory: tempfile::TempDir,
}

struct Node {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = free_ports(2 * NODES);
        let (clients, routes) = ports.split_at(NODES);
        let all: Vec<_> =
            routes.iter().map(|port| format!("nats-route://127.0.0.1:{port}")).collect();
        let nodes = (0..NODES).map(|number| {
            let folder = directory.path().join(number.to_string());
            std::fs::create_dir(&folder).unwrap();
            let config = format!(
                "{CONFIG}server_name: n{number}\nlisten: \"127.0.0.1:{client}\"\n\
                 jetstream {{ store_dir: \"{store}\" }}\n\
                 cluster {{ name: edge, listen: \"127.0.0.1:{route}\", routes: [{all}] }}\n",
                client = clients[number],
                route = routes[number],
                store = folder.join("store").display(),
                all = all.join(", "),
            );
            std::fs::write(folder.join("server.conf"), config).unwrap();
            Node { port: clients[number], child: spawn(&folder), folder }
        });
        Self { nodes: nodes.collect(), _directory: directory }
    }

    /// The servers, as a config lists them.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("nats://127.0.0.1:{}", node.port)).collect()
    }

    pub(crate) async fn jetstream(&self) -> Context {
        let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
        async_nats::jetstream::new(options.connect(self.urls()).await.unwrap())
    }

    /// Makes a stream with a replica on each server, as soon as the cluster has come together.
    pub(crate) async fn make_stream(&self, context: &Context, name: &str, subject: &str) {
        let config =
            async_nats::jetstream::stream::Config { num_replicas: NODES, ..stream(name, subject) };
        let begun = Instant::now();
        while let Err(error) = context.create_stream(config.clone()).await {
            assert!(begun.elapsed() < LONG, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.wait_whole(context, name).await;
    }

    /// Waits until the stream has a leader and all its replicas are up to date.
    pub(crate) async fn wait_whole(&self, context: &Context, stream: &str) {
        wait_until(context, stream, |cluster| {
            let replicas = &cluster.replicas;
            cluster.leader.is_some()
                && replicas.len() == NODES - 1
                && replicas.iter().all(|peer| peer.current && !peer.offline)
        })
        .await;
    }

    /// Has the stream's leader step down, and waits until another one leads.
    pub(crate) async fn change_leader(&self, context: &Context, stream: &str) {
        let before = wait_until(context, stream, |cluster| cluster.leader.is_some()).await.leader;
        let subject = format!("STREAM.LEADER.STEPDOWN.{stream}");
        // What comes of it is seen below.
        let _asked: Result<serde_json::Value, _> =
            context.request(subject, &serde_json::json!({})).await;
        wait_until(context, stream, |now| now.leader.is_some() && now.leader != before).await;
    }

    /// The node that leads the stream.
    pub(crate) async fn leader(&self, context: &Context, stream: &str) -> usize {
        let leader = wait_until(context, stream, |cluster| cluster.leader.is_some()).await.leader;
        leader.unwrap().trim_start_matches('n').parse().unwrap()
    }

    /// Ends one server by a signal, and starts it again.
    pub(crate) fn restart(&mut self, node: usize, signal: Signal) {
        let node = &mut self.nodes[node];
        end(&mut node.child, signal);
        node.child = spawn(&node.folder);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            drop(node.child.kill());
            drop(node.child.wait());
        }
    }
}

/// Waits until `is_so` holds of what the cluster says of the stream.
async fn wait_until(
    context: &Context,
    stream: &str,
    is_so: impl Fn(&ClusterInfo) -> bool,
) -> ClusterInfo {
    let begun = Instant::now();
    loop {
        let seen = match context.get_stream(stream).await {
            Ok(found) => found.cached_info().cluster.clone(),
            Err(_) => None,
        };
        if let Some(cluster) = seen.as_ref().filter(|cluster| is_so(cluster)) {
            return cluster.clone();
        }
        assert!(begun.elapsed() < LONG, "stream {stream} stays as it is: {seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn spawn(folder: &Path) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("server.log"));
    Command::new(program())
        .arg("-c")
        .arg(folder.join("server.conf"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.unwrap())
        .spawn()
        .unwrap()
}

fn free_ports(count: usize) -> Vec<u16> {
    let mut taken = Vec::new();
    wait_for("free ports", LONG, || {
        // Kept until all are found, so that none is found twice.
        taken.extend(TcpListener::bind(("127.0.0.1", fastrand::u16(PORTS))).ok());
        (taken.len() == count).then_some(())
    });
    taken.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
