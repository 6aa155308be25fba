//! The sink with a real guest (`plugins/test-sink`) against a scripted server.

use std::path::Path;

use tokio::time::Instant;

use super::super::server::{Reply, Sent, Server, answer, closed_port, status};
use super::*;
use crate::clock::{ManualClock, SystemClock, Timestamp};
use crate::limiter::Rate;
use crate::plugin::tests::{Digests, compiled};
use crate::plugin::{HostOptions, PluginHost};
use crate::settings::{Document, Problems, Reading};
use crate::sinks::config::{SinkConfig, SinkKind};
use crate::sinks::tests::{batch, facts};

const SECRET: &str = "S3CR3T-CANARY-91f2";

/// A configured sink, and what its plugin is loaded by.
struct Fixture {
    builder: PluginSinkBuilder,
    _dir: tempfile::TempDir,
}

fn environment(name: &str) -> Option<String> {
    (name == "CANARY").then(|| SECRET.to_owned())
}

/// Reads `keys` as the table of a sink that is a plugin.
fn read_config(keys: &str) -> Result<(PluginSinkConfig, RetryConfig), String> {
    let (path, digest) = compiled("test-sink");
    let digest = crate::plugin::hex(&digest);
    let path = path.display();
    let text = format!("type = \"plugin\"\nplugin = \"{path}\"\nsha256 = \"{digest}\"\n{keys}");
    let document = Document::new(text.as_bytes());
    let table = document.table();
    let problems = Problems::new("t", document.text.as_str());
    let reading = Reading::new(&table, Path::new("/"), &environment, problems);
    let read = SinkConfig::read(Some("hook".parse().unwrap()), &reading.root());
    let (problems, _) = reading.finish();
    if problems.has_errors() {
        return Err(problems.to_string());
    }
    let SinkConfig { kind, retry, .. } = read.unwrap();
    match kind {
        SinkKind::Plugin(plugin) => Ok((*plugin, retry)),
        other => panic!("{other:?}"),
    }
}

fn fixture_with(keys: &str, limiter: Option<Arc<Limiter>>) -> Fixture {
    let (config, retry) = read_config(keys).unwrap_or_else(|problems| panic!("{problems}"));
    let dir = tempfile::tempdir().unwrap();
    let host = PluginHost::new(HostOptions {
        store_dir: dir.path().join("compiled"),
        compiler: dir.path().join("compiler"),
        clock: Arc::new(SystemClock),
        digests: Arc::new(Digests::default()),
    });
    let id: SinkId = "hook".parse().unwrap();
    let guest = host.unwrap().load_sink(&id, &config.guest).unwrap();
    let clock: SharedClock = Arc::new(SystemClock);
    let parts = Parts { guest: Some(guest), net: NetConfig::default(), retry, clock };
    Fixture { builder: PluginSinkBuilder::new(id, config, parts, limiter), _dir: dir }
}

fn fixture(keys: &str) -> Fixture {
    fixture_with(keys, None)
}

/// A guest that may send to this server, and whose config has these keys beside its URL.
fn sending(server: &Server, config: &str, keys: &str) -> Fixture {
    fixture(&keys_for(server, config, keys))
}

fn keys_for(server: &Server, config: &str, keys: &str) -> String {
    let (url, origin) = (server.url("/in"), server.url(""));
    format!(
        "allow = {{ http = [\"{origin}\"], networks = [\"127.0.0.0/8\"] }}\n\
         config = {{ url = \"{url}\"{config} }}\n{keys}"
    )
}

fn always(reply: Reply) -> Server {
    Server::start(move |_| reply.clone())
}

impl Fixture {
    fn batch(&self, number: u64, payloads: &[&[u8]]) -> SealedBatch {
        batch(&self.builder, facts(number, payloads.len() as u64), payloads)
    }

    /// Sends a batch of these payloads with a new sink.
    async fn deliver(&self, payloads: &[&[u8]]) -> Result<Delivered, SinkError> {
        self.builder.build().deliver(&self.batch(1, payloads), 1).await
    }

    async fn fails(&self) -> SinkError {
        self.deliver(&[b"good", b"bad"]).await.unwrap_err()
    }
}

/// Class, answered, doubtful.
fn seen(error: &SinkError) -> (Class, bool, bool) {
    (error.class, error.answered, error.doubtful)
}

#[tokio::test]
async fn a_batch_arrives_under_identities_that_every_attempt_repeats() {
    let server = Server::start(|sent| status(if sent.number == 0 { 500 } else { 200 }));
    let fixture = sending(&server, "", "");
    let mut sink = fixture.builder.build();
    let batch = fixture.batch(7, &[b"a", b"b"]);
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert_eq!(seen(&error), (Class::Retryable, true, false), "{error}");
    let delivered = sink.deliver(&batch, 2).await.unwrap();
    assert_eq!((delivered.records, delivered.bytes), (2, 4));
    let sent = server.sent();
    let told = |sent: &Sent| {
        let header = |name| sent.header(name).to_owned();
        (header("idempotency-key"), header("x-ids"), sent.body.to_vec())
    };
    assert_eq!(told(&sent[0]), told(&sent[1]));
    assert_eq!(sent[1].key(), batch.facts.identity());
    assert_eq!(sent[1].header("x-ids").split(' ').count(), 2);
    assert!(sent[1].header("x-ids").starts_with("gw-1/src/pipe/files/00001abcde/10 "));
    assert_eq!((sent[0].header("x-attempt"), sent[1].header("x-attempt")), ("1", "2"));
    // One connection, and one guest: it lives on.
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn what_the_guest_says_and_what_its_requests_met_make_the_class() {
    for (code, expected) in [
        (503, (Class::Unreachable, false, true)),
        (404, (Class::Unreachable, false, false)),
        (429, (Class::Retryable, true, false)),
        (500, (Class::Retryable, true, false)),
        (413, (Class::Rejected, true, false)),
        (422, (Class::Rejected, true, false)),
    ] {
        let server = always(answer(code, &[], "go away"));
        let error = sending(&server, "", "").fails().await;
        assert_eq!(seen(&error), expected, "{error}");
        assert_eq!(error.reason, format!("the server answered {code}: go away"));
    }
    let server = always(status(200));
    let error = sending(&server, ", do = \"conflict\"", "").fails().await;
    assert_eq!(seen(&error), (Class::Conflict, true, false));
    let error = sending(&server, ", do = \"later\"", "").fails().await;
    assert_eq!(seen(&error), (Class::Retryable, true, false));
    assert_eq!(error.retry_after, Some(Duration::from_millis(50)));
    let server = always(answer(503, &[("retry-after", "7")], ""));
    let error = sending(&server, "", "").fails().await;
    assert_eq!(seen(&error), (Class::Retryable, true, true), "{error}");
    assert_eq!(error.retry_after, Some(Duration::from_secs(7)));
}

#[tokio::test]
async fn a_server_that_is_away_breaks_off_or_says_nothing_keeps_the_batch() {
    let port = closed_port();
    let keys = format!(
        "allow = {{ http = [\"http://127.0.0.1:{port}\"], networks = [\"127.0.0.1\"] }}\n\
         config = {{ url = \"http://127.0.0.1:{port}/\" }}"
    );
    let error = fixture(&keys).fails().await;
    assert_eq!(seen(&error), (Class::Unreachable, false, false));
    assert!(error.reason.contains("Connection refused"), "{error}");
    let server = always(Reply::Close);
    let error = sending(&server, "", "").fails().await;
    assert_eq!(seen(&error), (Class::Unreachable, false, false), "{error}");
    let server = always(Reply::Stall);
    let error = sending(&server, "", "retry = { attempt_timeout = \"300ms\" }").fails().await;
    assert_eq!(seen(&error), (Class::Unreachable, false, true), "{error}");
    assert!(error.reason.contains("within the time of the attempt"), "{error}");
}

#[tokio::test]
async fn records_that_the_guest_names_are_refused_and_the_others_delivered() {
    let server = always(status(200));
    let fixture = sending(&server, ", do = \"name\"", "");
    let delivered = fixture.deliver(&[b"a", b"bad", b"c"]).await.unwrap();
    let refused = Refused { index: 1, reason: "it is bad".to_owned() };
    assert_eq!((delivered.records, delivered.refused), (2, vec![refused]));
    assert_eq!(&server.sent()[0].body[..], b"a\nc\n");
    let error = sending(&server, ", do = \"reject\"", "").fails().await;
    assert_eq!(seen(&error), (Class::Rejected, true, false));
    for (mode, text) in [
        ("name_beyond", "it rejects record 4294967295 of 2"),
        ("name_twice", "it rejects record 0 twice"),
    ] {
        let error = sending(&server, &format!(", do = \"{mode}\""), "").fails().await;
        assert!(error.reason.contains(text), "{error}");
    }
}

/// It is tried once more before its batch is cut, so that one bad moment costs no record.
#[tokio::test]
async fn a_guest_that_breaks_down_twice_on_a_batch_has_it_cut() {
    let server = always(status(200));
    let slow = "deadline = \"50ms\"";
    for (mode, kind) in [
        ("trap", "wasm `unreachable` instruction executed"),
        ("loop", "longer than its 50 ms"),
        ("memory", "memory_max is 64MiB"),
    ] {
        let keys = if mode == "loop" { slow } else { "deadline = \"10s\"" };
        let fixture = sending(&server, &format!(", do = \"{mode}\""), keys);
        let mut sink = fixture.builder.build();
        let (good, bad) = (fixture.batch(1, &[b"good"]), fixture.batch(2, &[b"a", b"bad"]));
        assert_eq!(sink.deliver(&good, 1).await.unwrap().records, 1);
        let error = sink.deliver(&bad, 1).await.unwrap_err();
        assert_eq!(seen(&error), (Class::Retryable, false, false), "{error}");
        assert!(error.reason.contains(kind), "{error}");
        assert_eq!(sink.deliver(&bad, 2).await.unwrap_err().class, Class::Rejected, "{mode}");
        // Another batch has another chance, and a new guest is well.
        let other = fixture.batch(3, &[b"bad"]);
        assert_eq!(sink.deliver(&other, 1).await.unwrap_err().class, Class::Retryable);
        assert_eq!(sink.deliver(&good, 1).await.unwrap().records, 1);
    }
}

#[tokio::test]
async fn a_guest_that_does_not_begin_holds_the_lane_and_says_why() {
    let server = always(status(200));
    for (mode, text) in [
        ("init_refuses", "its plugin does not begin: the secret is ***"),
        ("init_traps", "its plugin does not begin: trap: in init: "),
        ("init_sends", "requests are made in deliver and probe only"),
        ("init_writes", "the state is read-only in init and probe"),
    ] {
        let config = format!(", do = \"{mode}\", secret = {{ env = \"CANARY\" }}");
        let fixture = sending(&server, &config, "");
        let error = fixture.fails().await;
        assert_eq!(seen(&error), (Class::Unreachable, false, false), "{mode}");
        assert!(error.reason.contains(text), "{mode}: {error}");
        // A reload that brings it is refused.
        assert!(fixture.builder.check().unwrap_err().reason.contains(text), "{mode}");
    }
    assert!(server.sent().is_empty());
}

#[tokio::test]
async fn only_what_the_config_allows_is_sent() {
    let server = always(status(200));
    let (url, other) = (server.url("/in"), always(status(200)));
    let loopback = "networks = [\"127.0.0.0/8\"]";
    let denied = |keys: String| async move {
        let error = fixture(&keys).fails().await;
        assert_eq!(seen(&error), (Class::Unreachable, false, false), "{error}");
        let prefix = "the request is not allowed: ";
        error.reason.strip_prefix(prefix).unwrap_or_else(|| panic!("{error}")).to_owned()
    };
    // No origin, another port, and an address that no network lists.
    let config = format!("config = {{ url = \"{url}\" }}");
    let told = denied(config.clone()).await;
    assert_eq!(told, format!("{} is not in `allow.http` of the sink", server.url("")));
    let told =
        denied(format!("allow = {{ http = [\"{}\"], {loopback} }}\n{config}", other.url("")));
    assert!(told.await.contains("is not in `allow.http`"));
    let told = denied(format!("allow = {{ http = [\"{}\"] }}\n{config}", server.url(""))).await;
    assert!(told.contains("127.0.0.1 is 127.0.0.1, which is not a public address"), "{told}");
    // A name is looked at by the addresses that it stands for.
    let named = format!("http://localhost:{}", server.port);
    let keys = |networks: &str| {
        format!(
            "allow = {{ http = [\"{named}\"], networks = [{networks}] }}\n\
             config = {{ url = \"{named}/in\" }}"
        )
    };
    let told = denied(keys("\"10.0.0.0/8\"")).await;
    assert!(told.starts_with("localhost is ") && told.contains("allow.networks"), "{told}");
    assert!(server.sent().is_empty() && other.sent().is_empty());
    assert_eq!(fixture(&keys("\"127.0.0.0/8\"")).deliver(&[b"a"]).await.unwrap().records, 1);
    // Headers that are the client's own, or the config's.
    for name in ["Host", "content-length", "Proxy-Anything", "TE", "no name"] {
        let config = format!(", header = [\"{name}\", \"x\"]");
        let told = denied(keys_for(&server, &config, "")).await;
        assert!(told.contains("header"), "{told}");
    }
    let own = "headers = { X-Api = { env = \"CANARY\" } }";
    let told = denied(keys_for(&server, ", header = [\"x-api\", \"x\"]", own)).await;
    assert_eq!(told, "the header x-api is set by `headers` of the sink");
    assert_eq!(server.sent().len(), 1);
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_leads_nowhere_that_is_denied() {
    let other = always(status(200));
    let target = other.url("/stolen");
    let server = Server::start(move |_| answer(307, &[("location", target.as_str())], ""));
    let error = sending(&server, "", "").fails().await;
    assert_eq!(seen(&error), (Class::Unreachable, false, false), "{error}");
    assert!(other.sent().is_empty() && server.sent().len() == 1);
}

#[tokio::test]
async fn headers_of_the_config_go_to_their_origin_and_the_guest_never_shows_them() {
    let echo = |sent: &Sent| answer(500, &[], format!("you said {}", sent.header("x-api")));
    let server = Server::start(echo);
    let keys = "headers = { X-Api = { env = \"CANARY\" }, X-Site = \"plant-7\" }";
    let error = sending(&server, ", do = \"echo\"", keys).fails().await;
    assert_eq!(server.sent()[0].header("x-api"), SECRET);
    assert_eq!(server.sent()[0].header("x-site"), "plant-7");
    assert_eq!(error.reason, "you said ***");
    // With two origins the key says which is meant.
    let (one, two) = (Server::start(echo), always(status(200)));
    let keys = format!(
        "allow = {{ http = [\"{one}\", \"{two}\"], networks = [\"127.0.0.0/8\"] }}\n\
         config = {{ url = \"{two}/in\" }}\n\
         headers = {{ \"{one} X-Api\" = {{ env = \"CANARY\" }} }}",
        one = one.url(""),
        two = two.url("")
    );
    assert_eq!(fixture(&keys).deliver(&[b"a"]).await.unwrap().records, 1);
    assert_eq!(two.sent()[0].header("x-api"), "");
}

#[tokio::test]
async fn secrets_in_the_config_reach_the_guest_and_nobody_else() {
    let server = always(status(200));
    let config = ", do = \"say_secret\", secret = { env = \"CANARY\" }";
    let error = sending(&server, config, "").fails().await;
    assert_eq!(error.reason, "no way with ***");
    // A file is read anew for each guest.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    let config = format!(", do = \"init_refuses\", secret = {{ file = \"{}\" }}", file.display());
    let fixture = sending(&server, &config, "");
    let error = fixture.fails().await;
    assert!(error.reason.contains("its plugin cannot be begun"), "{error}");
    assert!(error.reason.contains("`/secret` cannot be read from"), "{error}");
    std::fs::write(&file, "first\n").unwrap();
    assert!(fixture.fails().await.reason.ends_with("the secret is ***"));
}

#[tokio::test]
async fn what_a_call_changes_in_the_state_counts_when_the_lane_says_so() {
    let server = Server::start(|sent| status(if sent.number == 0 { 500 } else { 200 }));
    let fixture = sending(&server, ", do = \"count\"", "");
    let mut sink = fixture.builder.build();
    let place = Arc::clone(&facts(1, 1).place);
    let stored: SinkState = [("batches".to_owned(), Arc::from(*b"xx"))].into();
    sink.join(&place, stored);
    let (first, second) = (fixture.batch(1, &[b"a"]), fixture.batch(2, &[b"b"]));
    // Of a call that fails nothing counts; of one that is not stored neither.
    sink.deliver(&first, 1).await.unwrap_err();
    let delivered = sink.deliver(&first, 2).await.unwrap();
    let changes: StateChanges = [("batches".to_owned(), Some(Arc::from(*b"xxx")))].into();
    assert_eq!(delivered.state, changes);
    assert_eq!(sink.deliver(&first, 3).await.unwrap().records, 1);
    sink.keep(delivered.state);
    assert_eq!(sink.deliver(&second, 1).await.unwrap().records, 1);
    let before: Vec<_> =
        server.sent().iter().map(|sent| sent.header("x-before").to_owned()).collect();
    assert_eq!(before, ["2", "2", "2", "3"]);
    for mode in ["probe_writes", "probe_deletes"] {
        let mut sink = sending(&server, &format!(", do = \"{mode}\""), "").builder.build();
        let error = sink.probe().await.unwrap_err();
        assert!(
            error.reason.contains("read-only in init and probe")
                || error.reason.contains("the state is read-only"),
            "{error}"
        );
    }
}

/// The request ends with the attempt, and the guest with it: it does nothing more behind anybody's back.
#[tokio::test]
async fn an_attempt_that_is_given_up_ends_its_request_and_its_guest() {
    let server = Server::start(|sent| match sent.number {
        0 => Reply::Stall,
        _ => status(200),
    });
    let fixture = sending(&server, "", "retry = { attempt_timeout = \"60s\" }");
    let mut sink = fixture.builder.build();
    let batch = fixture.batch(1, &[b"a"]);
    tokio::select! {
        ended = sink.deliver(&batch, 1) => panic!("{ended:?}"),
        () = until(|| !server.sent().is_empty()) => {}
    }
    assert_eq!(sink.deliver(&batch, 2).await.unwrap().records, 1);
    assert_eq!(server.sent().len(), 2);
    // The thread was not left waiting for the minute: the runtime of this test ends at once.
}

#[tokio::test]
async fn a_guest_that_insists_sends_nothing_more_when_its_attempt_was_given_up() {
    let server = Server::start(|sent| match sent.number {
        0 => Reply::Stall,
        _ => status(200),
    });
    let keys = "retry = { attempt_timeout = \"60s\" }";
    let fixture = sending(&server, ", do = \"insists\"", keys);
    let mut sink = fixture.builder.build();
    let batch = fixture.batch(1, &[b"a"]);
    tokio::select! {
        ended = sink.deliver(&batch, 1) => panic!("{ended:?}"),
        () = until(|| !server.sent().is_empty()) => {}
    }
    // The call holds it as long as it runs.
    until(|| Arc::strong_count(&fixture.builder.shared.reached) == 1).await;
    assert_eq!(server.sent().len(), 1);
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_guest_that_has_lived_for_an_hour_is_begun_anew() {
    let server = always(status(200));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "first\n").unwrap();
    let config = format!(", secret = {{ file = \"{}\" }}", file.display());
    let mut fixture = sending(&server, &config, "");
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    Arc::get_mut(&mut fixture.builder.shared).unwrap().clock = clock.clone();
    let (mut sink, batch) = (fixture.builder.build(), fixture.batch(1, &[b"a"]));
    assert_eq!(sink.deliver(&batch, 1).await.unwrap().records, 1);
    // Only a new one has to read it.
    std::fs::remove_file(&file).unwrap();
    clock.advance(Duration::from_millis(PLUGIN_SINK_INSTANCE_MS_MAX - 1));
    assert_eq!(sink.deliver(&batch, 1).await.unwrap().records, 1);
    clock.advance(Duration::from_millis(1));
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert!(error.reason.contains("its plugin cannot be begun"), "{error}");
}

/// Time in the server is not the guest's.
#[tokio::test]
async fn a_slow_server_does_not_use_up_the_deadline_of_the_guest() {
    let server = Server::start(|_| {
        std::thread::sleep(Duration::from_millis(400));
        status(200)
    });
    let fixture = sending(&server, "", "deadline = \"100ms\"");
    assert_eq!(fixture.deliver(&[b"a"]).await.unwrap().records, 1);
}

#[tokio::test]
async fn requests_are_paid_for_at_the_limiter() {
    let server = always(status(200));
    let begun = Instant::now();
    let rate = Rate { bytes: Some((100_000, 10_000)), records: None };
    let limiter = Arc::new(Limiter::new(rate, Arc::new(move || begun.elapsed())));
    let fixture = fixture_with(&keys_for(&server, "", ""), Some(limiter));
    let payload = vec![b'x'; 30_000];
    let delivered = fixture.deliver(&[&payload]).await.unwrap();
    assert_eq!(delivered.bytes, 30_001);
    // A limiter begins empty.
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_probe_asks_and_a_sink_without_its_plugin_says_so() {
    let server = always(status(405));
    let fixture = sending(&server, "", "");
    fixture.builder.build().probe().await.unwrap();
    assert_eq!(server.sent()[0].method, "HEAD");
    let away = always(status(503));
    let error = sending(&away, "", "").builder.build().probe().await.unwrap_err();
    assert_eq!(seen(&error), (Class::Unreachable, false, true));
    let (config, retry) = read_config("").unwrap();
    let clock: SharedClock = Arc::new(SystemClock);
    let parts = Parts { guest: None, net: NetConfig::default(), retry, clock };
    let builder = PluginSinkBuilder::new("hook".parse().unwrap(), config, parts, None);
    let error = builder.build().probe().await.unwrap_err();
    assert_eq!(error.reason, "its plugin is not loaded");
}

#[test]
fn what_is_sealed_is_the_same_whatever_the_plugin() {
    let fixture = fixture("");
    let fixed = fixture.builder.fix(&facts(1, 1)).unwrap();
    assert!(fixture.builder.takes(&fixed) && !fixture.builder.takes("{}"));
    assert_eq!(fixture.builder.kind(), "plugin");
}

#[test]
fn mistakes_in_what_is_allowed_are_told_with_what_to_write() {
    let told = |keys: &str| read_config(keys).unwrap_err();
    for (keys, text) in [
        ("allow = { http = [\"https://h.example/path\"] }", "more than scheme, host and port"),
        ("allow = { http = [\"ftp://h.example\"] }", "begins with http:// or https://"),
        ("allow = { http = [\"https://u:p@h.example\"] }", "secrets do not stand in URLs"),
        ("allow = { networks = [\"10.0.0.0/33\"] }", "is no network"),
        ("allow = { other = [] }", "other"),
        ("headers = { X-Api = \"v\" }", "does not say to which origin"),
        ("headers = { Authorization = \"v\" }", "is a secret"),
        ("headers = { Host = { env = \"CANARY\" } }", "is set by the agent itself"),
        ("config = { a = { b = [{ env = \"MISSING\" }] } }", "MISSING is not set"),
    ] {
        assert!(told(keys).contains(text), "{keys}:\n{}", told(keys));
    }
    let two = "allow = { http = [\"https://a.example\", \"https://b.example:8443\"] }";
    let text = told(&format!("{two}\nheaders = {{ X-Api = \"v\" }}"));
    assert!(text.contains("\"https://a.example X-Api\""), "{text}");
    let good = format!("{two}\nheaders = {{ \"https://b.example:8443 X-Api\" = \"v\" }}");
    assert_eq!(
        read_config(&good).unwrap().0.headers[0].origin.to_string(),
        "https://b.example:8443"
    );
    // A default port is none.
    let (config, _) = read_config("allow = { http = [\"https://a.example:443\"] }").unwrap();
    assert_eq!(config.origins[0].to_string(), "https://a.example");
}
