//! The NATS source against a real nats-server: what a stream has is stored once, whatever ends in between.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{AckPolicy, Info, PullConsumer, pull};
use rustix::process::Signal;
use serde_json::Value;

use super::support::agent::Home;
use super::support::arrivals::{
    arrived, header, home_with, payload, the_source, wait_arrived, wait_failed, wait_state,
};
use super::support::nats::Server;
use super::support::proxy::Proxy;
use super::support::{LONG, seed, size, wait_for};

/// The stream, and what is published to it.
const STREAM: &str = "PLANT";
const SUBJECT: &str = "plant.>";

fn source(url: &str, keys: &str) -> String {
    format!("[sources.in]\ntype = \"nats\"\nservers = [\"{url}\"]\n{keys}\n")
}

fn home(url: &str, keys: &str) -> Home {
    home_with(&source(url, keys), "\"in\"", "")
}

const KEYS: &str = "stream = \"PLANT\"\nconsumer = \"c\"";

/// A server with the stream.
async fn server() -> Server {
    let server = Server::start();
    server.make_stream(STREAM, SUBJECT).await;
    server
}

/// A consumer that delivers again after a short time, so that a test need not wait for long.
async fn make_consumer(server: &Server, ack_wait: Duration, filter: &str) {
    let config = pull::Config {
        durable_name: Some("c".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        max_ack_pending: 10_000,
        filter_subject: filter.to_owned(),
        ..pull::Config::default()
    };
    let stream = server.jetstream().await.get_stream(STREAM).await.unwrap();
    stream.create_consumer(config).await.unwrap();
}

async fn info(server: &Server) -> Option<Info> {
    let stream = server.jetstream().await.get_stream(STREAM).await.ok()?;
    let mut consumer: PullConsumer = stream.get_consumer("c").await.ok()?;
    consumer.info().await.ok().cloned()
}

/// Waits until the consumer is as it should be.
async fn wait_info(server: &Server, what: &str, is: impl Fn(&Info) -> bool) -> Info {
    let begun = Instant::now();
    loop {
        if let Some(info) = info(server).await.filter(|info| is(info)) {
            return info;
        }
        assert!(begun.elapsed() < LONG, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Publishes numbers and waits until the stream has them.
async fn publish(server: &Server, subject: &str, numbers: std::ops::Range<u64>) {
    let context = server.jetstream().await;
    let mut answers = Vec::new();
    for number in numbers {
        let answer = context.publish(subject.to_owned(), number.to_string().into()).await.unwrap();
        answers.push(answer);
        if answers.len() == 500 {
            for answer in answers.drain(..) {
                answer.await.unwrap();
            }
        }
    }
    for answer in answers {
        answer.await.unwrap();
    }
}

/// The same in kilobytes that no compression makes small.
async fn publish_noise(server: &Server, numbers: std::ops::Range<u64>) {
    let context = server.jetstream().await;
    for number in numbers {
        let noise: String = (0..1000).map(|_| fastrand::alphanumeric()).collect();
        let answer = context.publish("plant.x", format!("{number} {noise}").into()).await;
        answer.unwrap().await.unwrap();
    }
}

/// How often each number is there.
fn counts(records: &[Value]) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    for record in records {
        let number = payload(record).split(' ').next().unwrap().parse().unwrap();
        *counts.entry(number).or_insert(0) += 1;
    }
    counts
}

/// Waits until all of the numbers are there, and gives what is.
fn wait_numbers(home: &Home, numbers: std::ops::Range<u64>) -> Vec<Value> {
    wait_for("all numbers", LONG, || {
        let records = arrived(home);
        let counts = counts(&records);
        numbers.clone().all(|number| counts.contains_key(&number)).then_some(records)
    })
}

fn assert_each_once(records: &[Value], count: u64) {
    let counts = counts(records);
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "stored more than once: {twice:?}");
    assert_eq!(counts.len() as u64, count);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_message_of_a_stream_is_stored_once_through_sigkill_under_load() {
    let kills = size("WAYSTATION_TEST_NATS_KILLS", 20);
    let mut random = fastrand::Rng::with_seed(seed());
    let server = server().await;
    make_consumer(&server, Duration::from_secs(1), "").await;
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn({
        let (stop, context) = (Arc::clone(&stop), server.jetstream().await);
        async move {
            let mut count: u64 = 0;
            while !stop.load(Ordering::SeqCst) {
                for _ in 0..10 {
                    // The answer says that the stream has it.
                    let answer = context.publish("plant.x", count.to_string().into()).await;
                    answer.unwrap().await.unwrap();
                    count += 1;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            count
        }
    });
    let mut again = 0;
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.u64(50..300))).await;
        agent.kill();
        again += info(&server).await.map_or(0, |info| info.num_ack_pending);
        agent = home.start(&["run"]);
    }
    stop.store(true, Ordering::SeqCst);
    let sent = load.await.unwrap();
    wait_numbers(&home, 0..sent);
    wait_info(&server, "all acknowledgements", |info| info.num_ack_pending == 0).await;
    let known = the_source(&home).unwrap()["messages_known"].clone();
    assert!(agent.stop().success());
    let records = arrived(&home);
    eprintln!(
        "{kills} kills, {sent} taken by the stream, {} stored; {again} were not acknowledged at a kill, {known} came again to the last run",
        records.len()
    );
    assert_each_once(&records, sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_are_committed_and_not_acknowledged_at_a_kill_are_stored_once() {
    let server = server().await;
    make_consumer(&server, Duration::from_secs(2), "").await;
    let proxy = Proxy::start(server.port);
    let home = home(&proxy.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    wait_info(&server, "a request", |info| info.num_waiting > 0).await;
    // From now on no acknowledgement arrives.
    proxy.deafen(true);
    publish(&server, "plant.x", 0..100).await;
    wait_for("the commit", LONG, || (the_source(&home)?["records"] == 100).then_some(()));
    agent.kill();
    let pending = info(&server).await.unwrap().num_ack_pending;
    assert_eq!(pending, 100, "none was acknowledged");
    proxy.deafen(false);
    let mut agent = home.start(&["run"]);
    wait_info(&server, "the acknowledgements", |info| info.num_ack_pending == 0).await;
    publish(&server, "plant.x", 100..101).await;
    let records = wait_numbers(&home, 0..101);
    let known = the_source(&home).unwrap()["messages_known"].as_u64().unwrap();
    assert!(agent.stop().success());
    eprintln!("{known} of 100 came again, {} records of 101", records.len());
    assert_eq!(known, 100);
    assert_each_once(&records, 101);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_deleted_and_made_again_starts_anew() {
    let server = server().await;
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    publish(&server, "plant.x", 0..50).await;
    wait_numbers(&home, 0..50);
    let remake = async || {
        server.jetstream().await.delete_stream(STREAM).await.unwrap();
        server.make_stream(STREAM, SUBJECT).await;
    };
    remake().await;
    // The same sequences, other messages.
    publish(&server, "plant.x", 50..100).await;
    wait_numbers(&home, 0..100);
    assert!(agent.stop().success());
    remake().await;
    publish(&server, "plant.x", 100..150).await;
    let mut agent = home.start(&["run"]);
    let records = wait_numbers(&home, 0..150);
    // With a consumer of the name, made by somebody else while nobody looks, that has delivered nothing yet.
    assert!(agent.stop().success());
    remake().await;
    make_consumer(&server, Duration::from_secs(30), "").await;
    publish(&server, "plant.x", 150..200).await;
    let mut agent = home.start(&["run"]);
    assert_eq!(records.len(), 150);
    assert_each_once(&wait_numbers(&home, 0..200), 200);
    assert!(agent.stop().success());
    assert!(home.log().contains("it is taken anew"));
}

/// While the journal is full nothing is asked for, so nobody tells the source; what it asks for later comes from the new ones,
/// under sequences that it knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_again_while_nothing_is_asked_for_loses_nothing() {
    let server = server().await;
    let context = server.jetstream().await;
    let make = async || {
        let config = pull::Config {
            durable_name: Some("c".to_owned()),
            ack_policy: AckPolicy::Explicit,
            max_expires: Duration::from_secs(1),
            ..pull::Config::default()
        };
        let stream = context.get_stream(STREAM).await.unwrap();
        stream.create_consumer(config).await.unwrap();
    };
    make().await;
    let more = "root_must_exist = true\n[journal]\nmax_bytes = \"1MiB\"";
    let home = home_with(&source(&server.url(), KEYS), "\"in\"", more);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    publish_noise(&server, 0..3000).await;
    wait_for("a full journal", LONG, || {
        home.status()?["not_ready"].to_string().contains("full").then_some(())
    });
    wait_info(&server, "no request", |info| info.num_waiting == 0).await;
    context.delete_stream(STREAM).await.unwrap();
    server.make_stream(STREAM, SUBJECT).await;
    make().await;
    publish(&server, "plant.x", 10_000..10_100).await;
    assert_eq!(the_source(&home).unwrap()["state"], "running", "it has not heard of it");
    std::fs::create_dir_all(home.path("out")).unwrap();
    let records = wait_numbers(&home, 10_000..10_100);
    assert!(agent.stop().success());
    let twice: Vec<_> = counts(&records).into_iter().filter(|(_, count)| *count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_deleted_is_made_again_behind_what_is_stored() {
    let server = server().await;
    make_consumer(&server, Duration::from_secs(30), "plant.mine").await;
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    for number in 0..100 {
        publish(&server, "plant.mine", number..number + 1).await;
        // Holes for ever, as the consumer sees it.
        publish(&server, "plant.other", 1000..1002).await;
    }
    wait_numbers(&home, 0..100);
    wait_info(&server, "the acknowledgements", |info| info.num_ack_pending == 0).await;
    let stream = server.jetstream().await.get_stream(STREAM).await.unwrap();
    for (round, begin) in [(1, 100), (2, 150)] {
        stream.delete_consumer("c").await.unwrap();
        publish(&server, "plant.mine", begin..begin + 50).await;
        wait_numbers(&home, 0..begin + 50);
        let info =
            wait_info(&server, "the acknowledgements", |info| info.num_ack_pending == 0).await;
        assert_eq!(info.config.filter_subjects, ["plant.mine"], "it has the filter that it had");
        let delivered = info.delivered.consumer_sequence;
        eprintln!("round {round}: the new consumer has delivered {delivered} messages");
        assert_eq!(delivered, 50, "it began behind what was stored, over all holes");
    }
    assert!(agent.stop().success());
    assert_each_once(&arrived(&home), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_and_comes_back_delivers_everything_once() {
    let mut server = server().await;
    make_consumer(&server, Duration::from_secs(1), "").await;
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    let mut next = 0;
    for _ in 0..3 {
        publish(&server, "plant.x", next..next + 300).await;
        next += 300;
        let (port, directory) = server.end();
        wait_failed(&home, "NATS");
        server = Server::start_in(directory, port);
        wait_state(&home, "running");
    }
    publish(&server, "plant.x", next..next + 10).await;
    wait_numbers(&home, 0..next + 10);
    wait_info(&server, "all acknowledgements", |info| info.num_ack_pending == 0).await;
    assert!(agent.stop().success());
    assert_each_once(&arrived(&home), next + 10);
}

/// The server lives and says nothing; the connection alone would not tell for a minute.
#[tokio::test(flavor = "multi_thread")]
async fn missing_heartbeats_end_a_session_and_the_next_one_goes_on() {
    let server = server().await;
    let proxy = Proxy::start(server.port);
    let home = home(&proxy.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    publish(&server, "plant.x", 0..10).await;
    wait_numbers(&home, 0..10);
    proxy.swallow(true);
    let reason = wait_failed(&home, "not even a heartbeat");
    eprintln!("{reason}");
    proxy.swallow(false);
    // What it has swallowed of the stream of bytes is not told by either end; another connection is.
    proxy.down(true);
    proxy.down(false);
    publish(&server, "plant.x", 10..20).await;
    assert_each_once(&wait_numbers(&home, 0..20), 20);
    assert!(agent.stop().success());
}

/// The destination is away and the journal is small.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_journal_asks_for_nothing_and_has_nothing_delivered_again() {
    for on_full in ["block", "reject"] {
        let server = server().await;
        make_consumer(&server, Duration::from_secs(4), "").await;
        let more = format!(
            "root_must_exist = true\n[journal]\nmax_bytes = \"1MiB\"\non_full = \"{on_full}\""
        );
        let home = home_with(&source(&server.url(), KEYS), "\"in\"", &more);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        let count: u64 = 3000;
        publish_noise(&server, 0..count).await;
        wait_for("a full journal", LONG, || {
            home.status()?["not_ready"].to_string().contains("full").then_some(())
        });
        let before = info(&server).await.unwrap();
        // Twice what the consumer waits for a word.
        tokio::time::sleep(Duration::from_secs(8)).await;
        let after = info(&server).await.unwrap();
        let source = the_source(&home).unwrap();
        eprintln!(
            "{on_full}: {} of {count} stored, {} delivered and not acknowledged, {} delivered again",
            source["records"], after.num_ack_pending, after.num_redelivered
        );
        assert!(source["records"].as_u64().unwrap() < count);
        assert!(after.delivered.stream_sequence < count, "not all was asked for");
        let deliveries = after.delivered.consumer_sequence - before.delivered.consumer_sequence;
        if on_full == "block" {
            assert_eq!((after.num_redelivered, deliveries), (0, 0));
        } else {
            assert_eq!(deliveries, 0, "what was refused waits at the server");
        }
        std::fs::create_dir_all(home.path("out")).unwrap();
        assert_each_once(&wait_numbers(&home, 0..count), count);
        let at_end = wait_info(&server, "the acknowledgements", |info| info.num_ack_pending == 0);
        let deliveries = at_end.await.delivered.consumer_sequence;
        // Nothing is delivered again before it is asked for: only here it shows that the consumer was told of the work.
        eprintln!("{on_full}: {deliveries} deliveries of {count}");
        if on_full == "block" {
            assert_eq!(deliveries as u64, count);
        }
        assert!(agent.stop().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_and_expired_messages_leave_no_hole_that_stays_open() {
    let server = server().await;
    make_consumer(&server, Duration::from_secs(1), "").await;
    publish(&server, "plant.x", 0..1000).await;
    let stream = server.jetstream().await.get_stream(STREAM).await.unwrap();
    for sequence in (2..=1000).step_by(2) {
        stream.delete_message(sequence).await.unwrap();
    }
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    wait_arrived(&home, 500);
    wait_info(&server, "the acknowledgements", |info| info.num_ack_pending == 0).await;
    stream.delete_consumer("c").await.unwrap();
    publish(&server, "plant.x", 1000..1001).await;
    wait_arrived(&home, 501);
    assert!(agent.stop().success());
    // The floor is the stream's end, so no sequence above it had to be remembered.
    let made: Vec<_> =
        home.log().lines().filter(|l| l.contains("is made")).map(str::to_owned).collect();
    assert!(made.last().unwrap().contains("\"behind\":999"), "{made:?}");
    assert_each_once(&arrived(&home), 501);
}

#[tokio::test(flavor = "multi_thread")]
async fn subject_headers_and_the_time_of_the_stream_stay() {
    let server = server().await;
    let context = server.jetstream().await;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", "id-7");
    headers.insert("unit", "K");
    headers.insert("Waystation-Forged", "x");
    let answer = context.publish_with_headers("plant.7.temp", headers, "1".into()).await.unwrap();
    answer.await.unwrap();
    let stream = context.get_stream(STREAM).await.unwrap();
    let stored = stream.get_raw_message(1).await.unwrap();
    // Its time is that of the stream, not that of the agent.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let keys = format!("{KEYS}\nsubject = \"{{source}}.{{subject}}\"");
    let home = home(&server.url(), &keys);
    let mut agent = home.start(&["run"]);
    let record = wait_arrived(&home, 1).remove(0);
    assert!(agent.stop().success());
    assert_eq!(record["subject"], "in.plant.7.temp");
    assert_eq!(
        (header(&record, "Nats-Msg-Id"), header(&record, "unit")),
        (Some("id-7"), Some("K"))
    );
    assert_eq!(header(&record, "Waystation-Forged"), None);
    assert_eq!(header(&record, "waystation-headers-left-out"), Some("1"));
    let time: jiff::Timestamp = record["time"].as_str().unwrap().parse().unwrap();
    assert_eq!(time.as_nanosecond(), stored.time.unix_timestamp_nanos());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_stream_from_being_read_is_said() {
    let server = Server::start();
    let home = home(&server.url(), KEYS);
    let mut agent = home.start(&["run"]);
    let mut reasons = vec![wait_failed(&home, "stream PLANT does not exist")];
    server.make_stream(STREAM, SUBJECT).await;
    let stream = server.jetstream().await.get_stream(STREAM).await.unwrap();
    wait_state(&home, "running");
    let unfit = pull::Config {
        durable_name: Some("c".to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    assert!(agent.stop().success());
    stream.delete_consumer("c").await.unwrap();
    stream.create_consumer(unfit).await.unwrap();
    let mut agent = home.start(&["run"]);
    reasons.push(wait_failed(&home, "ack policy is not explicit"));
    stream.delete_consumer("c").await.unwrap();
    wait_state(&home, "running");
    assert!(agent.stop().success());
    drop(server);
    let mut agent = home.start(&["run"]);
    reasons.push(wait_failed(&home, "no server can be reached"));
    agent.signal(Signal::TERM);
    assert!(agent.wait().success());
    eprintln!("{reasons:#?}");
    let output = home.output(&["run", "--once"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("never ends"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_takes_what_is_published_while_it_stands() {
    let server = Server::start();
    let home = home(&server.url(), "subjects = [\"plant.>\", \"site.*\"]");
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    let client = async_nats::connect(server.url()).await.unwrap();
    for number in 0..1000 {
        let subject = ["plant.a.b", "site.c", "elsewhere"][number % 3];
        client.publish(subject, number.to_string().into()).await.unwrap();
    }
    client.flush().await.unwrap();
    wait_arrived(&home, 667);
    assert!(agent.stop().success());
    let records = arrived(&home);
    let subjects: BTreeSet<_> = records.iter().map(|r| r["subject"].as_str().unwrap()).collect();
    assert_eq!((records.len(), subjects.len()), (667, 2), "{subjects:?}");
    let check = home.output(&["check"]);
    let told = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(told.contains("takes each message at most once"), "{told}");
}

/// Nobody waits for the journal then: what it does not take is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_drops_and_counts_what_a_full_journal_does_not_take() {
    for on_full in ["block", "reject"] {
        let server = Server::start();
        let more = format!(
            "root_must_exist = true\n[journal]\nmax_bytes = \"1MiB\"\non_full = \"{on_full}\""
        );
        let sources = source(&server.url(), "subjects = [\"plant.>\"]");
        let home = home_with(&sources, "\"in\"", &more);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        let client = async_nats::connect(server.url()).await.unwrap();
        let sent: u64 = 10_000;
        for number in 0..sent {
            let noise: String = (0..1000).map(|_| fastrand::alphanumeric()).collect();
            client.publish("plant.x", format!("{number} {noise}").into()).await.unwrap();
            if number % 100 == 0 {
                client.flush().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        client.flush().await.unwrap();
        let dropped = wait_for("what is dropped", LONG, || {
            let dropped = the_source(&home)?["messages_dropped"].as_u64()?;
            (dropped > 0 && home.status()?["not_ready"].to_string().contains("full"))
                .then_some(dropped)
        });
        std::fs::create_dir_all(home.path("out")).unwrap();
        let records = wait_for("the rest", LONG, || {
            let dropped = the_source(&home)?["messages_dropped"].as_u64()?;
            let records = arrived(&home);
            (records.len() as u64 + dropped >= sent).then_some(records)
        });
        let after = the_source(&home).unwrap()["messages_dropped"].as_u64().unwrap();
        assert!(agent.stop().success());
        eprintln!(
            "{on_full}: {sent} sent, {} stored, {after} dropped ({dropped} at first)",
            records.len()
        );
        assert_eq!(records.len() as u64 + after, sent);
    }
}

/// A measure, not a limit: how fast a stream that waits is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_waits_is_taken_at_this_rate() {
    let count = size("WAYSTATION_TEST_NATS_RATE", 100_000) as u64;
    let server = server().await;
    let context = server.jetstream().await;
    let text = "x".repeat(200);
    let mut answers = Vec::new();
    for number in 0..count {
        let payload = format!("{number} {text}");
        answers.push(context.publish("plant.x", payload.into()).await.unwrap());
        if answers.len() == 1000 {
            for answer in answers.drain(..) {
                answer.await.unwrap();
            }
        }
    }
    for answer in answers {
        answer.await.unwrap();
    }
    let home = home(&server.url(), KEYS);
    let begun = Instant::now();
    let mut agent = home.start(&["run"]);
    wait_for("all records", LONG, || {
        (the_source(&home)?["records"].as_u64()? >= count).then_some(())
    });
    let took = begun.elapsed();
    wait_info(&server, "all acknowledgements", |info| info.num_ack_pending == 0).await;
    let redelivered = info(&server).await.unwrap().num_redelivered;
    assert!(agent.stop().success());
    #[expect(clippy::cast_precision_loss, reason = "it is shown")]
    let rate = count as f64 / took.as_secs_f64();
    eprintln!(
        "{count} messages in {took:?} with the start: {rate:.0} records/s; {redelivered} delivered again"
    );
    assert_eq!(redelivered, 0);
}
