//! The agent ends between two given steps, again and again: before the call that would be the next one. `strace` does it, so
//! the binary is the one that users run.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::http::{bodies, seqs};
use super::support::agent::{Home, files_below};
use super::support::http::{Sent, Server, status};
use super::support::{LONG, seed, size, wait_for};

const RECORDS: u64 = 5_000;

/// A place to end at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Point {
    /// The endpoint has answered, and the batch is not acked.
    Answered,
    /// Before a call on a file or folder of the home.
    Before(&'static str, &'static str),
}

/// The points of D-02, as the steps of this journal have it.
const POINTS: [(&str, Point); 6] = [
    ("P1: after the sink's ack, before the delete", Point::Answered),
    ("P2: inside of a transaction", Point::Before("pwrite64", "data/journal.db-wal")),
    (
        "P3: after all writes of a transaction, before its sync",
        Point::Before("fdatasync", "data/journal.db-wal"),
    ),
    ("P4: inside of a checkpoint", Point::Before("pwrite64", "data/journal.db")),
    ("P5: after the rename, before the folder's sync", Point::Before("fsync", "out")),
    ("P6: after the folder's sync, before the commit", Point::Before("close", "out")),
];

fn home(url: &str) -> Home {
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [journal]
        max_bytes = "4MiB"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.web]
        type = "http"
        url = "{url}"
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}
        batch = {{ records_max = 250, linger = "30s" }}
        [sinks.archive]
        type = "file"
        root = "{{dir}}/out"
        path = "{{source}}-{{epoch}}-{{batch}}.ndjson"
        batch = {{ records_max = 250, linger = "30s" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["web", "archive"]
        "#
    ));
    // What cannot be compressed, so that checkpoints come while it runs.
    let mut random = fastrand::Rng::with_seed(2);
    let filler = |random: &mut fastrand::Rng| -> String {
        std::iter::repeat_with(|| random.alphanumeric()).take(300).collect()
    };
    let lines: String = (0..RECORDS)
        .map(|seq| format!("{{\"seq\":{seq},\"x\":\"{}\"}}\n", filler(&mut random)))
        .collect();
    std::fs::write(home.path("in"), lines).unwrap();
    home
}

/// The agent under `strace`, which looks at one kind of call on one path.
fn traced(home: &Home, call: &str, path: &str, options: &[String]) -> Command {
    let agent = home.command(&["run", "--once", "--timeout", "2m"]);
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-e", &format!("trace={call}"), "-P"]);
    command.arg(home.path(path)).args(options).arg("-o").arg(home.path("trace"));
    command.arg(agent.get_program()).args(agent.get_args()).env_clear().current_dir("/");
    command
}

/// How often one thread comes to the point in a whole run, at most.
fn hits(home: &Home, call: &str, path: &str) -> u64 {
    let output = traced(home, call, path, &[]).output().expect("strace is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(home.path("trace")).unwrap();
    let mut by_thread: BTreeMap<&str, u64> = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains(&format!(" {call}("))) {
        *by_thread.entry(line.split_once(' ').unwrap().0).or_default() += 1;
    }
    by_thread.into_values().max().unwrap_or(0)
}

/// Runs the agent until it is ended at the point, at its `hit`-th time. False when it was done before.
fn is_ended_at(home: &Home, call: &str, path: &str, hit: u64) -> bool {
    let inject = ["-e".to_owned(), format!("inject={call}:signal=SIGKILL:when={hit}")];
    let output = traced(home, call, path, &inject).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_ended = output.status.signal() == Some(9);
    assert!(is_ended || output.status.success(), "{}\n{stderr}", output.status);
    is_ended
}

/// Runs the agent until the endpoint has answered the `hit`-th request. False when it was done before.
fn is_ended_when_answered(
    home: &Home,
    answered: &AtomicU64,
    hit: u64,
    random: &mut fastrand::Rng,
) -> bool {
    answered.store(0, Ordering::SeqCst);
    let mut agent = home.start(&["run", "--once"]);
    wait_for("an answer", LONG, || (answered.load(Ordering::SeqCst) >= hit).then_some(()));
    // Some of it on the way, some of it read, some of it acked.
    std::thread::sleep(Duration::from_micros(random.u64(0..3_000)));
    let is_done = agent.ended().is_some();
    agent.kill();
    !is_done
}

/// Every record is there: once in the files, in order; at the endpoint under one key that always carries the same.
fn check(what: &str, home: &Home, sent: &[Sent], files: &BTreeMap<PathBuf, Vec<u8>>) {
    let expected: Vec<u64> = (0..RECORDS).collect();
    let mut found = Vec::new();
    for name in files_below(&home.path("out")) {
        assert!(!name.to_str().unwrap().starts_with('.'), "{what}: {} is left", name.display());
        let content = std::fs::read(home.path("out").join(&name)).unwrap();
        if let Some(before) = files.get(&name) {
            assert!(*before == content, "{what}: {} has two contents", name.display());
        }
        for line in content.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let value: serde_json::Value = serde_json::from_slice(line).unwrap();
            found.push(value["seq"].as_u64().unwrap());
        }
    }
    assert!(found == expected, "{what}: {} records in the files", found.len());
    let mut known: BTreeMap<&str, &Sent> = BTreeMap::new();
    let mut order = Vec::new();
    for sent in sent {
        match known.insert(sent.key(), sent) {
            Some(before) => assert!(before.body == sent.body, "{what}: {} differs", sent.key()),
            None => order.extend(seqs(sent)),
        }
    }
    assert!(order == expected, "{what}: {} records at the endpoint", order.len());
}

#[test]
fn d_02_an_end_between_delivery_and_its_record_never_stops_a_start() {
    let runs = size("WAYSTATION_TEST_FAILPOINT_RUNS", 4);
    let mut random = fastrand::Rng::with_seed(seed());
    let mut restarts = 0;
    for (what, point) in POINTS {
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        let server = Server::start(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            status(200)
        });
        let most = match point {
            Point::Answered => 15,
            Point::Before(call, path) => hits(&home(&server.url("/in")), call, path),
        };
        assert!(most > 0, "{what} never happens");
        let mut ended_at = BTreeSet::new();
        for _ in 0..runs {
            let mut hit = random.u64(1..=most);
            let (home, before) = loop {
                let home = home(&server.url("/in"));
                let before = bodies(&server).len();
                let is_ended = match point {
                    Point::Answered => is_ended_when_answered(&home, &answered, hit, &mut random),
                    Point::Before(call, path) => is_ended_at(&home, call, path, hit),
                };
                if is_ended {
                    break (home, before);
                }
                // No thread came there as often this time.
                assert!(hit > 1, "{what} did not happen");
                hit /= 2;
            };
            ended_at.insert(hit);
            let out = home.path("out");
            let is_final = |name: &PathBuf| !name.to_str().unwrap().starts_with('.');
            let files = files_below(&out).into_iter().filter(is_final);
            let files = files.map(|name| (name.clone(), std::fs::read(out.join(name)).unwrap()));
            let files: BTreeMap<_, _> = files.collect();
            home.run_once();
            restarts += 1;
            let what = format!("{what}, at its {hit}. time");
            check(&what, &home, &bodies(&server)[before..], &files);
            let verified = home.output(&["journal", "verify"]);
            assert!(verified.status.success(), "{what}: {verified:?}");
        }
        eprintln!("{what}: of {most}, ended at {ended_at:?}");
    }
    eprintln!("{restarts} restarts");
}
