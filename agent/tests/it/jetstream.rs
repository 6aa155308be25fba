//! JetStream servers that go away, come back, and change their minds, with records coming in all the while.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::Context;
use futures_util::StreamExt as _;
use rustix::process::Signal;

use super::support::agent::Home;
use super::support::cluster::Cluster;
use super::support::nats::{self, Message};
use super::support::proxy::Proxy;
use super::support::{LONG, size, wait_for};

/// One file, one JetStream sink with these servers and keys.
fn home(servers: &[String], keys: &str) -> Home {
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.cloud]
        type = "nats"
        servers = {servers:?}
        subject = "edge.{{subject}}"
        batch = {{ linger = "10ms" }}
        {keys}
        [pipelines.p]
        sources = ["in"]
        sinks = ["cloud"]
        "#
    ));
    append(&home, 0..0);
    home
}

/// The stream's name, and retries that suit a test.
const EDGE: &str = "stream = \"EDGE\"\n\
    retry = { backoff = \"20ms\", backoff_max = \"500ms\", attempt_timeout = \"3s\" }";

/// Appends a line for each number.
fn append(home: &Home, numbers: std::ops::Range<u64>) {
    let mut file =
        std::fs::File::options().append(true).create(true).open(home.path("in")).unwrap();
    let lines: String = numbers.map(|number| format!("{number}\n")).collect();
    file.write_all(lines.as_bytes()).unwrap();
}

/// The agent's only lane.
fn lane(home: &Home) -> Option<serde_json::Value> {
    Some(home.status()?["lanes"][0].clone())
}

fn wait_delivered(home: &Home, count: u64) -> serde_json::Value {
    wait_for("the delivery", LONG, || {
        lane(home).filter(|lane| lane["delivered"] == count && lane["queued"] == 0)
    })
}

/// The numbers in the payloads, in the order of the stream.
fn numbers(messages: &[Message]) -> Vec<u64> {
    let text = |(_, _, payload): &Message| String::from_utf8(payload.clone()).unwrap();
    messages.iter().map(|message| text(message).parse().unwrap()).collect()
}

/// Each of the first `count` numbers is there once, under an identity of its own. Gives how many stand behind a later one.
fn assert_each_once(messages: &[Message], count: u64) -> usize {
    let identities: BTreeSet<_> = messages.iter().map(|(_, id, _)| id).collect();
    assert_eq!(identities.len(), messages.len(), "an identity is stored twice");
    let found = numbers(messages);
    let unordered = found.windows(2).filter(|pair| pair[0] > pair[1]).count();
    let mut sorted = found;
    sorted.sort_unstable();
    let missing = (0..count).find(|number| sorted.binary_search(number).is_err());
    assert_eq!((sorted.len() as u64, missing), (count, None), "records, and the first missing");
    unordered
}

/// What stands in the stream out of order was counted.
fn assert_reordered(lane: &serde_json::Value, unordered: usize) {
    let counted = lane["records_reordered"].as_u64().unwrap();
    assert!(counted >= unordered as u64, "{counted} of {unordered}: {lane}");
}

/// Appends lines for as long as it lives, some thousand a second.
struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Load {
    fn start(path: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut file = std::fs::File::options().append(true).open(path).unwrap();
            let mut count = 0;
            while !stopped.load(Ordering::SeqCst) {
                let lines: String = (count..count + 10).map(|n| format!("{n}\n")).collect();
                file.write_all(lines.as_bytes()).unwrap();
                count += 10;
                std::thread::sleep(Duration::from_millis(10));
            }
            count
        });
        Self { stop, thread }
    }

    /// Ends it; gives how many lines it has written.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

/// Waits until the stream has this many messages more.
async fn wait_for_more(context: &Context, more: u64) {
    let count = || async {
        let stream = context.get_stream("EDGE").await.ok()?;
        Some(stream.cached_info().state.messages)
    };
    let (begun, mut first) = (Instant::now(), None);
    loop {
        let now = count().await;
        first = first.or(now);
        if now.zip(first).is_some_and(|(now, first)| now >= first + more) {
            return;
        }
        assert!(begun.elapsed() < LONG, "nothing more than {first:?} arrives");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// While no stream takes the subject the server answers "no responders", or that the named stream is not there: that is
/// somebody's to mend, and no reason to knock all the time or to give a record up.
#[tokio::test(flavor = "multi_thread")]
async fn d_12_a_missing_stream_is_waited_for_without_a_tight_loop_and_nothing_is_given_up() {
    for keys in ["", "stream = \"EDGE\"\n"] {
        let server = nats::Server::start();
        let context = server.jetstream().await;
        let mut asked = context.client().subscribe("$JS.API.>").await.unwrap();
        context.client().flush().await.unwrap();
        // A tenth of what a sink begins with.
        let retry = "retry = { backoff = \"20ms\", backoff_max = \"3s\" }";
        let home = home(&[server.url()], &format!("{keys}{retry}"));
        append(&home, 0..100);
        let mut agent = home.start(&["run"]);
        let first = tokio::time::timeout(LONG, asked.next()).await.unwrap();
        assert!(first.is_some());
        // Each try asks the server once before it sends.
        let until = tokio::time::Instant::now() + Duration::from_secs(3);
        let mut tries = 1;
        while let Ok(Some(_)) = tokio::time::timeout_at(until, asked.next()).await {
            tries += 1;
        }
        eprintln!("{keys}{tries} tries in 3 s");
        // Half of them are expected; with full jitter some runs have a few more.
        assert!(tries <= 20, "{tries} tries in 3 s");
        let seen = lane(&home).unwrap();
        assert_eq!((&seen["state"], &seen["queued"]), (&"holding".into(), &100.into()), "{seen}");
        assert_eq!(seen["trouble"]["cause"], "unreachable");
        let reason = seen["trouble"]["reason"].as_str().unwrap();
        assert!(reason.contains("create"), "{reason}");
        context.create_stream(nats::stream("EDGE", "edge.>")).await.unwrap();
        let seen = wait_delivered(&home, 100);
        assert_eq!((&seen["dead_lettered"], &seen["batches_cut"]), (&0.into(), &0.into()));
        assert!(agent.stop().success());
        let messages = server.messages("EDGE").await;
        assert_eq!(assert_each_once(&messages, 100), 0);
    }
}

/// The server has stored what it was sent, its answers are lost, and the connection is gone for longer than the server
/// remembers identities.
#[tokio::test(flavor = "multi_thread")]
async fn d_12_a_cut_of_5_s_behind_a_duplicate_window_of_1_s_stores_nothing_twice() {
    let server = nats::Server::start();
    let context = server.jetstream().await;
    let config = async_nats::jetstream::stream::Config {
        duplicate_window: Duration::from_secs(1),
        ..nats::stream("EDGE", "edge.>")
    };
    context.create_stream(config).await.unwrap();
    let proxy = Proxy::start(server.port);
    // Nobody gives up waiting before the cut.
    let keys = "stream = \"EDGE\"\nretry = { backoff = \"20ms\", backoff_max = \"500ms\" }";
    let home = home(&[proxy.url()], keys);
    append(&home, 0..10);
    let mut agent = home.start(&["run"]);
    wait_delivered(&home, 10);
    proxy.swallow(true);
    append(&home, 10..60);
    wait_for_more(&context, 50).await;
    proxy.down(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(lane(&home).unwrap()["queued"], 50);
    proxy.swallow(false);
    proxy.down(false);
    append(&home, 60..70);
    let seen = wait_delivered(&home, 70);
    assert!(agent.stop().success());
    // All that was stored was found by looking, and is no repeat that could be one twice.
    assert_eq!(seen["records_already"], 50, "{seen}");
    let messages = server.messages("EDGE").await;
    assert_eq!(assert_each_once(&messages, 70), 0);
}

/// In lame duck mode a server shuts JetStream down, then sends its clients away one by one, then ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_lame_or_ends_under_load_gets_each_record_once_when_it_is_back() {
    let mut server = nats::Server::start();
    server.make_stream("EDGE", "edge.>").await;
    let home = home(&[server.url()], EDGE);
    let mut agent = home.start(&["run"]);
    let load = Load::start(home.path("in"));
    for signal in [Signal::USR2, Signal::TERM, Signal::KILL, Signal::USR2] {
        wait_for_more(&server.jetstream().await, 300).await;
        let (port, stored) = server.end_by(signal);
        tokio::time::sleep(Duration::from_millis(300)).await;
        server = nats::Server::start_in(stored, port);
    }
    wait_for_more(&server.jetstream().await, 300).await;
    let count = load.end();
    let seen = wait_delivered(&home, count);
    assert!(agent.stop().success());
    let messages = server.messages("EDGE").await;
    let unordered = assert_each_once(&messages, count);
    eprintln!("{count} records, {unordered} out of order, {seen}");
    assert_reordered(&seen, unordered);
    assert_eq!(seen["dead_lettered"], 0);
}

/// A stream with three replicas. Its leader is changed, and single servers are ended and started, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn leader_changes_and_restarts_in_a_cluster_under_load_lose_nothing_and_store_nothing_twice()
{
    let leader_changes = size("WAYSTATION_TEST_LEADER_CHANGES", 2);
    let restarts = size("WAYSTATION_TEST_NODE_RESTARTS", 2);
    let mut cluster = Cluster::start();
    let context = cluster.jetstream().await;
    cluster.make_stream(&context, "EDGE", "edge.>").await;
    let home = home(&cluster.urls(), EDGE);
    let mut agent = home.start(&["run"]);
    let load = Load::start(home.path("in"));
    wait_for_more(&context, 300).await;
    for _ in 0..leader_changes {
        cluster.change_leader(&context, "EDGE").await;
        wait_for_more(&context, 300).await;
    }
    for restart in 0..restarts {
        // Every other time it is the leader that goes.
        let leader = cluster.leader(&context, "EDGE").await;
        let node = if restart % 4 < 2 { leader } else { (leader + 1) % 3 };
        let signal = if restart % 2 == 0 { Signal::TERM } else { Signal::KILL };
        cluster.restart(node, signal);
        wait_for_more(&context, 300).await;
        cluster.wait_whole(&context, "EDGE").await;
    }
    let count = load.end();
    let seen = wait_delivered(&home, count);
    assert!(agent.stop().success());
    let messages = nats::messages(&context, "EDGE").await;
    let unordered = assert_each_once(&messages, count);
    eprintln!(
        "{leader_changes} leader changes, {restarts} restarts, {count} records, {unordered} out of order, {seen}"
    );
    assert_reordered(&seen, unordered);
    assert_eq!(seen["dead_lettered"], 0);
}

/// A record in a hundred is larger than the stream takes.
#[tokio::test(flavor = "multi_thread")]
async fn one_poisoned_record_in_a_hundred_becomes_a_letter_and_the_others_are_delivered_in_order() {
    const COUNT: u64 = 5000;
    let is_poison = |number: u64| number % 100 == 50;
    let server = nats::Server::start();
    let context = server.jetstream().await;
    let config = async_nats::jetstream::stream::Config {
        max_message_size: 400,
        ..nats::stream("EDGE", "edge.>")
    };
    context.create_stream(config).await.unwrap();
    let home = home(&[server.url()], EDGE);
    let line = |number: u64| {
        let padding = if is_poison(number) { " ".repeat(400) } else { String::new() };
        format!("{number}{padding}\n")
    };
    std::fs::write(home.path("in"), (0..COUNT).map(line).collect::<String>()).unwrap();
    let summary = home.run_once();
    let bad: Vec<_> = (0..COUNT).filter(|number| is_poison(*number)).collect();
    let counts = (&summary["delivered"], &summary["dead_lettered"]);
    assert_eq!(counts, (&4950.into(), &50.into()), "{summary}");
    let good: Vec<_> = (0..COUNT).filter(|number| !is_poison(*number)).collect();
    assert_eq!(numbers(&server.messages("EDGE").await), good);
    let journal = rusqlite::Connection::open(home.path("data/journal.db")).unwrap();
    let mut letters = journal.prepare("SELECT payload FROM dead_letters ORDER BY id").unwrap();
    let payloads = letters.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let number = |payload: Vec<u8>| String::from_utf8(payload).unwrap().trim().parse().unwrap();
    let found: Vec<u64> = payloads.map(|payload| number(payload.unwrap())).collect();
    assert_eq!(found, bad);
}
