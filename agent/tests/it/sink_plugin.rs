//! Sinks that are plugins, through the real binary, against a scripted server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::support::agent::Home;
use super::support::http::{Reply, Sent, Server, answer, status};
use super::support::{LONG, plugin, seed, size, wait_for};

const FAST: &str = "retry = { backoff = \"10ms\", backoff_max = \"100ms\" }";

/// One file source, and a sink with this plugin that may send to the server.
fn home(name: &str, server: &Server, config: &str, keys: &str, records: u64) -> Home {
    let home = Home::new(&config_of(name, server, config, keys));
    write(&home, (0..records).map(|seq| format!("{{\"seq\":{seq}}}")));
    home
}

fn config_of(name: &str, server: &Server, config: &str, keys: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        stop_grace = "1s"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.hook]
        type = "plugin"
        plugin = "{plugin}"
        config = {{ url = "{url}"{config} }}
        allow = {{ http = ["{origin}"], networks = ["127.0.0.0/8"] }}
        {keys}
        [pipelines.p]
        sources = ["in"]
        sinks = ["hook"]
        "#,
        plugin = plugin(name).display(),
        url = server.url("/in"),
        origin = server.url(""),
    )
}

fn write(home: &Home, lines: impl Iterator<Item = String>) {
    let text: String = lines.map(|line| line + "\n").collect();
    std::fs::write(home.path("in"), text).unwrap();
}

fn posts(server: &Server) -> Vec<Sent> {
    server.sent().into_iter().filter(|sent| sent.method == "POST").collect()
}

fn seqs(sent: &Sent) -> Vec<u64> {
    let records: Vec<serde_json::Value> = serde_json::from_slice(&sent.body).unwrap();
    records.iter().map(|record| record["seq"].as_u64().unwrap()).collect()
}

/// The same script as for the sink that is no plugin: each answer has the outcome that the page of the plugin tells, and every
/// attempt the same identity and bytes.
#[test]
fn a_webhook_meets_lost_answers_refusals_and_an_outage_and_delivers_every_record_once() {
    let server = Server::start(|sent| match sent.number {
        _ if sent.method == "HEAD" => status(405),
        1 => Reply::Close,
        3 => answer(503, &[("retry-after", "1")], "busy"),
        4 => status(500),
        6..9 => status(503),
        // Tokens that a proxy has lost on the way.
        11 => status(401),
        _ => status(204),
    });
    let keys = format!("{FAST}\nbatch = {{ records_max = 100 }}");
    let home = home("webhook", &server, ", token = \"t0p\"", &keys, 1000);
    let summary = home.run_once();
    assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&1000.into(), &0.into()));
    let mut known: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut all = Vec::new();
    for sent in posts(&server) {
        assert_eq!(sent.header("authorization"), "Bearer t0p");
        let body = sent.body.to_vec();
        match known.get(sent.key()) {
            Some(before) => assert_eq!(*before, body, "another attempt has other bytes"),
            None => {
                all.extend(seqs(&sent));
                known.insert(sent.key().to_owned(), body);
            }
        }
    }
    assert!(all.iter().copied().eq(0..1000), "{all:?}");
    assert!(posts(&server).len() > known.len(), "nothing was sent twice, so nothing was shown");
}

#[test]
fn what_the_destination_refuses_is_cut_out_of_its_batch_and_a_payload_that_does_not_fit_is_named() {
    let server = Server::start(|sent| {
        let is_poisoned = memchr::memmem::find(&sent.body, b"\"seq\":77}").is_some();
        status(if is_poisoned { 422 } else { 200 })
    });
    let keys = format!("{FAST}\nbatch = {{ records_max = 200 }}");
    let home = home("webhook", &server, "", &keys, 0);
    let line = |seq: u64| match seq {
        150 => "no json".to_owned(),
        _ => format!("{{\"seq\":{seq}}}"),
    };
    write(&home, (0..200).map(line));
    let summary = home.run_once();
    assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&198.into(), &2.into()));
    let output = home.output(&["dlq", "list", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("the server answered 422") && text.contains("no JSON: line 1"), "{text}");
}

/// Also 401, a redirect and an origin that the config does not allow: nothing is lost, and the lane says why it waits.
#[test]
fn what_only_an_operator_can_change_holds_the_lane_and_says_so() {
    let elsewhere = Server::start(|_| status(200));
    let target = elsewhere.url("/stolen");
    let server = Server::start(move |sent| match sent.method.as_str() {
        "HEAD" => status(502),
        _ => answer(307, &[("location", target.as_str())], ""),
    });
    let home = home("webhook", &server, "", FAST, 10);
    let agent = home.start(&["run"]);
    let trouble = |text: &'static str| {
        wait_for(text, LONG, || {
            let status = home.status()?;
            let reason = status["lanes"][0]["trouble"]["reason"].as_str()?.to_owned();
            reason.contains(text).then_some(())
        });
    };
    trouble("the server answered 502");
    assert!(elsewhere.sent().is_empty());
    // The config is reloaded to one that allows another server only.
    let other = config_of("webhook", &server, "", FAST)
        .replace(&format!("http = [\"{}\"]", server.url("")), "http = [\"https://h.invalid\"]");
    home.configure(&other);
    trouble("is not in `allow.http` of the sink");
    // And to one that delivers.
    let good = Server::start(|_| status(200));
    home.configure(&config_of("webhook", &good, "", FAST));
    wait_for("the batch", LONG, || (home.status()?["lanes"][0]["delivered"] == 10).then_some(()));
    assert_eq!(seqs(&posts(&good)[0]).len(), 10);
    drop(agent);
}

#[test]
fn d_32_a_sink_that_is_none_is_refused_by_check_start_and_reload_with_what_is_wrong() {
    let server = Server::start(|_| status(200));
    let home = home("webhook", &server, "", FAST, 1);
    let good = config_of("webhook", &server, "", FAST);
    let agent = home.start(&["run"]);
    wait_for("the batch", LONG, || (home.status()?["lanes"][0]["delivered"] == 1).then_some(()));
    let broken = |name: &str, bytes: &[u8]| {
        let path = home.path(name);
        std::fs::write(&path, bytes).unwrap();
        good.replace(&plugin("webhook").display().to_string(), path.to_str().unwrap())
    };
    let whole = std::fs::read(plugin("webhook")).unwrap();
    let as_transform = good.replace(
        &plugin("webhook").display().to_string(),
        &plugin("json-map").display().to_string(),
    );
    for (config, text) in [
        (broken("empty.wasm", b""), "it is empty"),
        (broken("core.wasm", b"\0asm\x01\0\0\0"), "it is a core module"),
        (broken("cut.wasm", &whole[..whole.len() / 2]), "damaged or cut short"),
        (broken("elf.wasm", b"\x7fELF\x02\x01\x01"), "it is no WebAssembly"),
        (as_transform, "it is a transform, used as a sink here"),
    ] {
        home.configure(&config);
        let check = home.output(&["check"]);
        assert_eq!(check.status.code(), Some(78));
        let said = String::from_utf8_lossy(&check.stderr).into_owned();
        assert!(said.contains(text), "{said}");
        let reload = home.output(&["reload"]);
        let said = String::from_utf8_lossy(&reload.stderr).into_owned();
        assert!(!reload.status.success() && said.contains(text), "{said}");
    }
    // What ran goes on.
    let more = std::fs::read_to_string(home.path("in")).unwrap() + "{\"seq\":1}\n";
    std::fs::write(home.path("in"), more).unwrap();
    wait_for("another", LONG, || (home.status()?["lanes"][0]["delivered"] == 2).then_some(()));
    drop(agent);
    let strict = home.output(&["run", "--strict", "--once"]);
    assert_eq!(strict.status.code(), Some(78));
}

#[test]
fn check_connect_opens_the_plugins_and_leaves_nothing_behind() {
    let server = Server::start(|_| status(405));
    let home = home("webhook", &server, "", "", 0);
    let output = home.output(&["check", "--connect", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let sink: serde_json::Value = serde_json::from_str(text.lines().next_back().unwrap()).unwrap();
    assert_eq!((&sink["name"], &sink["would_take"]), (&"hook".into(), &true.into()), "{text}");
    assert!(!home.path("data").exists());
    home.configure(&config_of("webhook", &server, ", tokn = 1", ""));
    let output = home.output(&["check", "--connect"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("does not begin") && text.contains("tokn"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// The guest counts batches in its state. Whatever a kill leaves, each batch is sent with the number of those that had their
/// outcome before it: state and outcome are stored together, or neither.
#[test]
fn through_sigkill_the_state_of_a_sink_is_that_of_the_batches_that_had_their_outcome() {
    let kills = size("WAYSTATION_TEST_SINK_KILLS", 10);
    let mut random = fastrand::Rng::with_seed(seed());
    let lost = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lost);
    let server = Server::start(move |sent| match sent.number % 7 {
        3 => {
            count.fetch_add(1, Ordering::SeqCst);
            Reply::Close
        }
        _ => status(200),
    });
    let keys = format!("{FAST}\nbatch = {{ records_max = 10, linger = \"10ms\" }}");
    let home = home("test-sink", &server, ", do = \"count\"", &keys, 20_000);
    for _ in 0..kills {
        let mut agent = home.start(&["run"]);
        std::thread::sleep(Duration::from_millis(random.u64(150..700)));
        agent.kill();
    }
    let summary = home.run_once();
    assert_eq!(summary["lanes"][0]["queued"], 0, "{summary}");
    let mut batches: Vec<(String, u64)> = Vec::new();
    for sent in posts(&server) {
        let before: u64 = sent.header("x-before").parse().unwrap();
        match batches.iter().find(|(key, _)| key == sent.key()) {
            Some((_, known)) => assert_eq!(before, *known, "{} was counted twice", sent.key()),
            None => batches.push((sent.key().to_owned(), before)),
        }
    }
    let counts: Vec<u64> = batches.iter().map(|(_, before)| *before).collect();
    assert!(counts.iter().copied().eq(0..counts.len() as u64), "{counts:?}");
    let attempts = posts(&server).len();
    eprintln!(
        "{kills} kills, {} batches, {attempts} attempts, {} lost answers",
        batches.len(),
        lost.load(Ordering::SeqCst)
    );
    assert!(attempts > batches.len() && batches.len() >= 2000);
}
