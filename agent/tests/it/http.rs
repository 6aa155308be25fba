//! The HTTP sink through the real binary: a scripted server that says what it likes.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::support::agent::Home;
use super::support::http::{Reply, Sent, Server, answer, status};
use super::support::{LONG, wait_for};

/// One file source, one HTTP sink that sends to `url`, with `keys` in its table.
pub(crate) fn home(url: &str, keys: &str, records: u64) -> Home {
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        stop_grace = "1s"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.out]
        type = "http"
        url = "{url}"
        {keys}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#
    ));
    let lines: String = (0..records).map(|seq| format!("{{\"seq\":{seq}}}\n")).collect();
    std::fs::write(home.path("in"), lines).unwrap();
    home
}

pub(crate) const FAST: &str = "retry = { backoff = \"10ms\", backoff_max = \"100ms\" }";

/// The seqs in a body, in order.
pub(crate) fn seqs(sent: &Sent) -> Vec<u64> {
    let content = sent.content();
    let lines = content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_slice::<serde_json::Value>(line).unwrap()["seq"].as_u64())
        .map(|seq| seq.unwrap())
        .collect()
}

pub(crate) fn bodies(server: &Server) -> Vec<Sent> {
    server.sent().into_iter().filter(|sent| sent.method == "POST").collect()
}

/// The seqs of the first time that each batch came, in the order in which they came.
pub(crate) fn seqs_by_first_arrival(server: &Server) -> Vec<u64> {
    let mut keys = BTreeSet::new();
    let first = bodies(server).into_iter().filter(|sent| keys.insert(sent.key().to_owned()));
    first.flat_map(|sent| seqs(&sent)).collect()
}

#[test]
fn all_records_arrive_once_and_in_order() {
    for keys in ["", "compression = { codec = \"zstd\" }", "compression = { codec = \"gzip\" }"] {
        let server = Server::start(|_| status(200));
        let home = home(&server.url("/in"), keys, 10_000);
        let summary = home.run_once();
        assert_eq!(summary["delivered"], 10_000, "{summary}");
        let all: Vec<u64> = bodies(&server).iter().flat_map(seqs).collect();
        assert!(all.iter().copied().eq(0..10_000), "{} records", all.len());
        assert_eq!(server.connections(), 1);
    }
}

/// The server stores batches and its answers are lost; then the agent is killed; then the server is away for a while. What
/// comes again comes under the key that the server knows, and is the same to the byte.
#[test]
fn a_lost_answer_a_kill_and_an_outage_repeat_batches_under_their_keys() {
    let mode = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&mode);
    let script = move |sent: &Sent| match now.load(Ordering::SeqCst) {
        _ if sent.method == "HEAD" => status(405),
        0 if sent.number % 3 == 2 => Reply::Close,
        1 => Reply::Stall,
        _ => status(200),
    };
    let server = Server::start_on(0, None, script.clone());
    let keys =
        format!("{FAST}\ncompression = {{ codec = \"zstd\" }}\nbatch = {{ records_max = 100 }}");
    let home = home(&server.url("/in"), &keys, 20_000);
    let mut agent = home.start(&["run", "--once"]);
    wait_for("some batches", LONG, || (server.by_key().len() > 30).then_some(()));
    mode.store(1, Ordering::SeqCst);
    let stalled = server.by_key().len();
    wait_for("a stalled batch", LONG, || (server.by_key().len() > stalled).then_some(()));
    agent.kill();
    let mut seen = vec![bodies(&server)];
    let port = server.port;
    drop(server);
    // The agent starts while nobody is there.
    let before = home.log().len();
    let mut agent = home.start(&["run", "--once"]);
    wait_for("a failed attempt", LONG, || {
        home.log()[before..].contains("Lane holds").then_some(())
    });
    mode.store(0, Ordering::SeqCst);
    let server = Server::start_on(port, None, script);
    let ended = agent.wait();
    assert!(ended.success(), "{ended}\n{}", home.log());
    seen.push(bodies(&server));
    let all: Vec<Sent> = seen.into_iter().flatten().collect();
    let mut known = std::collections::BTreeMap::new();
    let mut repeated = 0;
    let mut order = Vec::new();
    for sent in &all {
        match known.insert(sent.key(), sent.body.clone()) {
            Some(before) => {
                assert!(before == sent.body, "{} came with two contents", sent.key());
                repeated += 1;
            }
            None => order.extend(seqs(sent)),
        }
    }
    eprintln!("{} batches, {repeated} repeats", known.len());
    assert!(repeated > 10);
    assert!(order.iter().copied().eq(0..20_000), "{} records", order.len());
}

/// The destination asks for five seconds and gets them.
#[test]
fn d_13_429_waits_as_long_as_it_is_asked_to() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    let server = Server::start(move |_| {
        let mut times = noted.lock().unwrap();
        times.push(Instant::now());
        if times.len() == 1 { answer(429, &[("retry-after", "5")], "slow") } else { status(200) }
    });
    let home = home(&server.url("/in"), FAST, 10);
    let summary = home.run_once();
    assert_eq!(summary["delivered"], 10, "{summary}");
    let times = times.lock().unwrap();
    let waited = times[1] - times[0];
    eprintln!("waited {waited:?}");
    assert!(waited >= Duration::from_secs(5), "{waited:?}");
}

/// An endpoint that is not there, or does not let us in, is no reason to give up records.
#[test]
fn d_13_404_and_401_hold_the_lane_and_lose_nothing() {
    for code in [404, 401] {
        let is_back = Arc::new(AtomicBool::new(false));
        let back = Arc::clone(&is_back);
        let server = Server::start(move |_| {
            if back.load(Ordering::SeqCst) { status(200) } else { answer(code, &[], "who are you") }
        });
        let home = home(&server.url("/in"), FAST, 1000);
        let mut agent = home.start(&["run"]);
        let trouble = wait_for("the hold", LONG, || {
            let lane = home.status()?["lanes"][0].clone();
            (lane["state"] == "holding").then(|| lane["trouble"]["reason"].to_string())
        });
        assert!(trouble.contains(&format!("answered {code}")), "{trouble}");
        assert!(trouble.contains("who are you"), "{trouble}");
        is_back.store(true, Ordering::SeqCst);
        wait_for("the delivery", LONG, || {
            let lane = home.status()?["lanes"][0].clone();
            (lane["delivered"] == 1000 && lane["dead_lettered"] == 0).then_some(())
        });
        assert!(agent.stop().success());
        assert!(seqs_by_first_arrival(&server).into_iter().eq(0..1000));
    }
}

#[test]
fn no_secret_gets_into_log_status_or_metrics() {
    const CANARY: &str = "S3CR3T-CANARY-91f2";
    let codes = [401, 302, 400, 503];
    let server = Server::start(move |sent| {
        answer(codes[sent.number % 4], &[], format!("{:?}", sent.headers))
    });
    let url = server.url(&format!("/in?key={CANARY}"));
    let keys = format!("headers = {{ authorization = {{ file = \"{{dir}}/token\" }} }}\n{FAST}");
    let home = home(&url, &keys, 10);
    std::fs::write(home.path("token"), CANARY).unwrap();
    let mut agent = home.start(&["run"]);
    wait_for("failures", LONG, || (server.sent().len() >= 8).then_some(()));
    let shown = home.output(&["status"]);
    let listed = home.output(&["config", "show", "--effective"]);
    assert!(agent.stop().success());
    for text in [shown.stdout, listed.stdout, home.log().into_bytes()] {
        let text = String::from_utf8(text).unwrap();
        assert!(!text.is_empty() && !text.contains(CANARY), "{text}");
    }
}

/// An attempt may take 30 s; a stop takes its grace of one.
#[test]
fn d_28_a_stop_does_not_wait_for_a_server_that_never_answers() {
    let server = Server::start(|_| Reply::Stall);
    let home = home(&server.url("/in"), "", 37);
    let mut agent = home.start(&["run"]);
    wait_for("the request", LONG, || (!server.sent().is_empty()).then_some(()));
    let begun = Instant::now();
    assert!(agent.stop().success(), "{}", home.log());
    let took = begun.elapsed();
    eprintln!("stopped in {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    // What was cut off comes again under its key.
    let first = bodies(&server)[0].clone();
    let port = server.port;
    drop(server);
    let server = Server::start_on(port, None, |_| status(200));
    assert_eq!(home.run_once()["delivered"], 37);
    let again = bodies(&server)[0].clone();
    assert_eq!((first.key(), &first.body), (again.key(), &again.body));
}
