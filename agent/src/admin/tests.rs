//! The server in this process, asked over both ways in about a made-up status.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use super::status::StatusView;
use super::*;
use crate::clock::Timestamp;
use crate::journal::config::LettersOnFull;
use crate::journal::{
    CommitTimes, LettersCount, LettersRoom, LettersSnapshot, QuotaSnapshot, Snapshot, StartCase,
};
use crate::lane::status::{Attempt, CurrentBatch, LaneState};
use crate::plugin::PluginCalls;
use crate::record::id::Epoch;
use crate::sinks::Class;
use crate::supervisor::status::{
    ConfigView, Drain, LaneView, LaneWaiting, OrphanView, PluginView, SourceState, SourceStatus,
};

const STARTED: Timestamp = Timestamp(1_700_000_000_000_000_000);

/// What holds does not get away.
fn waiting(state: &LaneState) -> LaneWaiting {
    let is_running = *state == LaneState::Running;
    let drain = if is_running { Drain::In(Duration::from_millis(92_500)) } else { Drain::Never };
    LaneWaiting { bytes: 40_000, oldest: Some(STARTED), drain: Some(drain) }
}

fn lane(sink: &str, state: LaneState) -> LaneView {
    LaneView {
        name: format!("gw/sensors/telemetry/{sink}"),
        source: "sensors".parse().unwrap(),
        pipeline: "telemetry".parse().unwrap(),
        sink: sink.parse().unwrap(),
        state: state.clone(),
        accepted: 1500,
        queued: 200,
        waiting: waiting(&state),
        delivered: 1000,
        dropped: 250,
        dead_lettered: 40,
        lost: 10,
        not_taken: 77,
        outputs_delivered: 1003,
        batches_sealed: 2,
        batch: Some(CurrentBatch {
            identity: format!("gw/sensors/telemetry/{sink}/00003abcde/b7"),
            attempts: 20,
            recent: [None, Some((Class::Retryable, "503".to_owned()))]
                .map(|failure| Attempt { at: STARTED, took: Duration::from_millis(41), failure })
                .into(),
        }),
        records_already: 5,
        records_reordered: 6,
        records_resent: 2,
        bytes_delivered: 7_000_000_000,
        files_written: 8,
        attempts_failed: [9, 10, 11, 12],
        plugin_faults: 13,
        limited: Duration::from_millis(1500),
        records_refused: 14,
        batches_cut: 15,
        budgets_spent: 16,
        letters: [17, 18, 19],
        holds: [31, 32, 33, 34, 35, 36, 37, 38, 39, 40],
    }
}

fn letters() -> LettersSnapshot {
    LettersSnapshot {
        room: LettersRoom { bytes: 51_000, bytes_max: 65_536, count: 52 },
        on_full: LettersOnFull::Hold,
        full: None,
        dropped: 53,
        discarded: 54,
        write_failures: 55,
        oldest: Some(Timestamp(STARTED.0 - 86_400_000_000_000)),
        by_class: vec![LettersCount {
            source: "sensors".to_owned(),
            lane: Some("gw/sensors/telemetry/cloud".to_owned()),
            class: "rejected".to_owned(),
            letters: 52,
        }],
    }
}

fn config(since: Timestamp) -> ConfigView {
    ConfigView {
        file: "/etc/waystation/waystation.toml".into(),
        sha256: "c0ffee".to_owned(),
        adopted_at: STARTED,
        is_fallback: true,
        refused: Some(("w.toml:3:1: there is no sink".to_owned(), since)),
        reloads: 61,
        reloads_refused: 62,
    }
}

fn orphan() -> OrphanView {
    OrphanView {
        name: "gw/sensors/old/cloud".to_owned(),
        queued: 17,
        waiting: LaneWaiting { bytes: 1700, oldest: Some(STARTED), drain: None },
    }
}

fn source(id: &str, kind: &'static str) -> SourceStatus {
    SourceStatus {
        id: id.parse().unwrap(),
        kind,
        state: SourceState::Running,
        records: 0,
        bytes: 0,
        oversize: 0,
        refused: 0,
        sessions_lost: 0,
        turned_away: 0,
        datagrams_dropped: 0,
        times_missing: 0,
        messages_known: 0,
        messages_dropped: 0,
        gaps: 0,
        hole_bytes: 0,
        files_restarted: 0,
        files_lost: 0,
        head: 0,
    }
}

fn sources(since: Timestamp) -> Vec<SourceStatus> {
    vec![
        SourceStatus {
            records: 1500,
            bytes: 345_000,
            oversize: 2,
            refused: 3,
            hole_bytes: 4096,
            files_restarted: 8,
            files_lost: 9,
            head: 4500,
            ..source("sensors", "file")
        },
        SourceStatus {
            state: SourceState::Failed { reason: "cannot connect".to_owned(), since },
            sessions_lost: 3,
            ..source("modbus", "mqtt")
        },
        SourceStatus {
            records: 20,
            bytes: 400,
            turned_away: 5,
            datagrams_dropped: 6,
            head: 21,
            ..source("meters", "udp")
        },
        SourceStatus { records: 30, bytes: 600, gaps: 7, head: 31, ..source("system", "journald") },
        SourceStatus { messages_known: 10, messages_dropped: 11, ..source("orders", "nats") },
    ]
}

fn plugin(
    part: &'static str,
    id: &str,
    digest: u8,
    (count, ms, broken): (u64, u64, u64),
    log_lines_left_out: u64,
) -> PluginView {
    let calls = PluginCalls { count, time: Duration::from_millis(ms), broken };
    PluginView { part, id: id.to_owned(), sha256: [digest; 32], calls, log_lines_left_out }
}

/// A status in which every field has a value of its own.
pub(crate) fn status() -> Status {
    let since = Timestamp(STARTED.0 + 60_000_000_000);
    Status {
        agent: "gw".parse().unwrap(),
        epoch: Epoch::new(3, 0xabcde),
        start_case: StartCase::Unclean,
        salvaged: None,
        started_at: STARTED,
        uptime: Duration::from_millis(3_725_250),
        owner: Some("edge-oncall".to_owned()),
        runbook: Some("https://runbooks.example.org/edge".to_owned()),
        relaxed: false,
        config: config(since),
        not_ready: vec!["source modbus: cannot connect".to_owned()],
        journal: Snapshot {
            commits: 77,
            commit_times: CommitTimes {
                counts: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
                sum: Duration::from_millis(1234),
            },
            database_bytes: 123_456_789,
            wal_bytes: 8_388_608,
            quota: QuotaSnapshot {
                used_bytes: 131_000_000,
                limit_bytes: 2_147_483_648,
                appends_waiting: 21,
                appends_refused: 22,
                dropped_full: 23,
                dropped_aged: 24,
                ..QuotaSnapshot::default()
            },
            letters: letters(),
            ..Snapshot::default()
        },
        sources: sources(since),
        lanes: vec![
            lane("archive", LaneState::Running),
            lane(
                "cloud",
                LaneState::Holding {
                    cause: Class::Unreachable.as_str(),
                    reason: "cannot connect to nats.example.org:4222".to_owned(),
                    since,
                },
            ),
        ],
        orphans: vec![orphan()],
        plugins: vec![
            plugin("transform", "clean", 0xa7, (70, 71, 72), 4),
            plugin("sink", "hook", 0xb8, (73, 74, 75), 5),
        ],
    }
}

/// For tests in which no order is carried out.
pub(crate) fn no_orders() -> OrdersSource {
    Arc::new(|| unreachable!("an order was carried out"))
}

struct Fixture {
    directory: tempfile::TempDir,
    admin: Admin,
}

impl Fixture {
    fn new(status: Status) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let admin = start(&directory.path().join("admin.sock"), Some("127.0.0.1:0"), status);
        Self { directory, admin: admin.unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("admin.sock")
    }

    fn over_socket(&self, request: &str) -> String {
        exchange(UnixStream::connect(self.socket()).unwrap(), request)
    }

    fn over_tcp(&self, request: &str) -> String {
        exchange(TcpStream::connect(self.admin.listen().unwrap()).unwrap(), request)
    }
}

fn start(socket: &Path, listen: Option<&str>, status: Status) -> Result<Admin, AdminError> {
    let options = AdminOptions {
        socket: socket.to_owned(),
        listen: listen.map(|address| address.parse().unwrap()),
    };
    serve(options, Arc::new(move || status.clone()), no_orders(), Shutdown::new())
}

fn exchange(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn every_endpoint_answers_alike_on_both_ways_in() {
    let fixture = Fixture::new(status());
    for (path, expected) in
        [("/health", "200"), ("/ready", "503"), ("/metrics", "200"), ("/status", "200")]
    {
        let (socket, tcp) = (fixture.over_socket(&get(path)), fixture.over_tcp(&get(path)));
        assert_eq!(code(&socket), expected, "{path}");
        assert_eq!(body(&socket), body(&tcp), "{path}");
        assert!(tcp.to_lowercase().contains("cache-control: no-store"), "{tcp}");
        assert!(!tcp.to_lowercase().contains("access-control"), "{tcp}");
    }
    assert_eq!(body(&fixture.over_socket(&get("/health"))), "ok\n");
    assert_eq!(
        body(&fixture.over_socket(&get("/ready"))),
        r#"{"ready":false,"reasons":["source modbus: cannot connect"]}"#
    );
}

#[test]
fn ready_is_200_without_reasons() {
    let fixture = Fixture::new(Status { not_ready: Vec::new(), ..status() });
    let answer = fixture.over_tcp(&get("/ready"));
    assert_eq!((code(&answer), body(&answer)), ("200", r#"{"ready":true,"reasons":[]}"#));
}

#[test]
fn the_status_is_this_json_and_reads_back() {
    let text = serde_json::to_string_pretty(&StatusView::of(&status())).unwrap();
    insta::assert_snapshot!(text);
    let fixture = Fixture::new(status());
    let answer = fixture.over_socket(&get("/status"));
    assert!(answer.contains("content-type: application/json"));
    let read: StatusView = serde_json::from_str(body(&answer)).unwrap();
    assert_eq!(read, StatusView::of(&status()));
}

#[test]
fn the_metrics_are_these_and_the_accepted_records_add_up() {
    let fixture = Fixture::new(status());
    let answer = fixture.over_tcp(&get("/metrics"));
    assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
    insta::assert_snapshot!(body(&answer));
}

#[test]
fn an_agent_without_parts_has_metrics_and_a_status_too() {
    let empty = Status {
        sources: Vec::new(),
        lanes: Vec::new(),
        orphans: Vec::new(),
        plugins: Vec::new(),
        ..status()
    };
    let fixture = Fixture::new(empty);
    assert!(body(&fixture.over_tcp(&get("/metrics"))).contains("\nwaystation_agent_ready 0\n"));
    assert!(body(&fixture.over_tcp(&get("/status"))).contains(r#""lanes":[]"#));
}

#[test]
fn what_is_not_there_or_not_a_get_is_a_problem_with_a_code() {
    let fixture = Fixture::new(status());
    let missing = fixture.over_socket(&get("/nothing"));
    assert_eq!(code(&missing), "404");
    assert!(missing.contains("content-type: application/problem+json"), "{missing}");
    insta::assert_snapshot!(body(&missing), @r#"{"type":"about:blank","title":"Not Found","status":404,"code":"not_found","detail":"there is no such endpoint; there are /health, /ready, /metrics and /status, and over the socket /orders"}"#);
    let posted =
        fixture.over_socket("POST /status HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    assert_eq!(code(&posted), "405");
    assert!(posted.contains("allow: GET,HEAD"), "{posted}");
    assert!(posted.contains(r#""code":"method_not_allowed""#), "{posted}");
    let head = fixture.over_socket("HEAD /status HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((code(&head), body(&head)), ("200", ""));
}

fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[test]
fn orders_over_tcp_are_refused_whatever_they_are() {
    let fixture = Fixture::new(status());
    for path in ["pause", "resume", "resolve", "flush", "discard", "reload", "anything/else"] {
        let path = format!("/orders/{path}");
        let body = r#"{"version":1,"lane":"gw/sensors/telemetry/cloud"}"#;
        for request in [post(&path, body), get(&path)] {
            let answer = fixture.over_tcp(&request);
            assert_eq!(code(&answer), "403", "{answer}");
            assert!(answer.contains(r#""code":"socket_only""#), "{answer}");
            assert!(answer.contains("content-type: application/problem+json"), "{answer}");
        }
    }
    let foreign = post("/orders/pause", "{}").replace("localhost", "evil.example");
    assert!(fixture.over_tcp(&foreign).contains(r#""code":"host_not_allowed""#));
}

#[test]
fn an_order_that_cannot_be_read_or_asks_for_too_much_is_told_so() {
    let fixture = Fixture::new(status());
    let many: Vec<_> = (0..=crate::limits::LETTERS_PAGE_MAX).map(|id| id.to_string()).collect();
    let many = format!(r#"{{"version":1,"letters":[{}]}}"#, many.join(","));
    let note = "x".repeat(crate::limits::NOTE_BYTES_MAX + 1);
    let note = format!(r#"{{"version":1,"letters":[1],"note":"{note}"}}"#);
    for (path, body, why) in [
        ("pause", "", "cannot be read"),
        ("pause", "{\"lane\":\"a\"}", "missing field `version`"),
        ("pause", r#"{"version":2,"lane":"a"}"#, "of version 2, this agent takes 1"),
        ("resolve", r#"{"version":1,"lane":"a","resolution":"burn"}"#, "unknown variant `burn`"),
        ("flush", r#"{"version":1,"timeout_ms":3600001}"#, "timeout_ms is at most 3600000"),
        ("discard", &many, "at most 1000 letters"),
        ("discard", &note, "a note has at most 512 bytes"),
    ] {
        let answer = fixture.over_socket(&post(&format!("/orders/{path}"), body));
        assert_eq!(code(&answer), "400", "{answer}");
        assert!(answer.contains(r#""code":"bad_order""#) && answer.contains(why), "{answer}");
    }
    let asked = fixture.over_socket(&get("/orders/pause"));
    assert_eq!(code(&asked), "405", "{asked}");
    let large = "x".repeat(crate::limits::ADMIN_BODY_BYTES_MAX + 1);
    assert_eq!(code(&fixture.over_socket(&post("/orders/pause", &large))), "413");
}

#[test]
fn over_tcp_a_foreign_host_is_refused_whatever_it_asks() {
    let fixture = Fixture::new(status());
    for request in [
        "GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "GET /nothing HTTP/1.1\r\nHost: evil.example:9611\r\n\r\n",
        "GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /health HTTP/1.0\r\n\r\n",
    ] {
        let answer = fixture.over_tcp(request);
        assert_eq!(code(&answer), "403", "{request}");
        assert!(answer.contains(r#""code":"host_not_allowed""#), "{answer}");
    }
    let port = fixture.admin.listen().unwrap().port();
    let own = format!("GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    assert_eq!(code(&fixture.over_tcp(&own)), "200");
    let any = "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    assert_eq!(code(&fixture.over_socket(any)), "200", "whoever may open the socket may ask");
}

#[test]
fn a_connection_carries_one_request() {
    let fixture = Fixture::new(status());
    let twice = format!("{}{}", get("/health"), get("/health"));
    let answer = fixture.over_socket(&twice);
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
}

#[test]
fn silent_clients_over_tcp_do_not_shut_out_the_socket() {
    let fixture = Fixture::new(status());
    let address = fixture.admin.listen().unwrap();
    let silent: Vec<_> = (0..crate::limits::ADMIN_CONNECTIONS_MAX)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    assert_eq!(code(&fixture.over_socket(&get("/health"))), "200");
    drop(silent);
    assert_eq!(code(&fixture.over_tcp(&get("/health"))), "200");
}

#[test]
fn the_socket_is_for_owner_and_group_and_goes_at_the_end() {
    let fixture = Fixture::new(status());
    let socket = fixture.socket();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    fixture.admin.close();
    assert!(!socket.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    drop(UnixListener::bind(&socket).unwrap());
    let mut first = start(&socket, None, status()).unwrap();
    assert!(first.take_socket_error().is_none());

    let mut second = start(&socket, Some("127.0.0.1:0"), status()).unwrap();
    let error = second.take_socket_error().unwrap();
    assert!(matches!(error, AdminError::SocketInUse { .. }), "{error}");
    let health = exchange(TcpStream::connect(second.listen().unwrap()).unwrap(), &get("/health"));
    assert_eq!(code(&health), "200", "it serves over TCP all the same");
    second.close();
    let health = exchange(UnixStream::connect(&socket).unwrap(), &get("/health"));
    assert_eq!(code(&health), "200", "the first was not touched");
}

#[test]
fn a_successor_keeps_the_socket_that_it_put_in_the_place_of_ours() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let first = start(&socket, None, status()).unwrap();
    std::fs::remove_file(&socket).unwrap();
    let second = start(&socket, None, status()).unwrap();
    first.close();
    assert_eq!(code(&exchange(UnixStream::connect(&socket).unwrap(), &get("/health"))), "200");
    second.close();
}

#[test]
fn what_is_no_socket_and_what_cannot_be_one_is_told_and_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("notes.txt");
    std::fs::write(&file, "mine").unwrap();
    let error = |path: &Path| {
        let mut admin = start(path, None, status()).unwrap();
        admin.take_socket_error().unwrap()
    };
    assert!(matches!(error(&file), AdminError::SocketPathTaken { .. }));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");

    let long = directory.path().join("x".repeat(108));
    let told = error(&long).to_string();
    assert!(told.contains("a socket's path can have 107"), "{told}");

    let nowhere = error(&directory.path().join("missing/admin.sock"));
    assert!(nowhere.to_string().starts_with("cannot bind the admin socket"), "{nowhere}");
}

#[test]
fn a_taken_tcp_address_is_an_error_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let error = start(&socket, Some(&address), status()).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen on {address} for [admin] listen"));
    assert!(!socket.exists());
}

#[test]
fn a_request_to_stop_is_enough_to_stop() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("admin.sock");
    let options = AdminOptions { socket: socket.clone(), listen: None };
    let shutdown = Shutdown::new();
    let mut admin = serve(options, Arc::new(status), no_orders(), shutdown.clone()).unwrap();
    shutdown.request();
    admin.thread.take().unwrap().join().unwrap();
    assert!(!socket.exists());
}
