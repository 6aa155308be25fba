//! SIGKILL at random moments: what was accepted is delivered exactly once, in order, under one identity.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::support::agent::{Agent, Home, files_below};
use super::support::{LONG, nats, plugin, seed, sensors, size, wait_for};

/// File → journal → plugin → files and two JetStream sinks into one stream.
fn config(server: &nats::Server) -> String {
    let (url, plugin) = (server.url(), plugin("clean"));
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"

        [sources.sensors]
        type = "file"
        paths = ["{{dir}}/sensors.ndjson"]

        [transforms.clean]
        plugin = "{plugin}"

        [sinks.archive]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ records_max = 3000, bytes_max = "8MiB", linger = "30s" }}

        [sinks.first]
        type = "nats"
        servers = ["{url}"]
        stream = "EDGE"
        subject = "edge.first.{{subject}}"
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}

        [sinks.second]
        type = "nats"
        servers = ["{url}"]
        stream = "EDGE"
        subject = "edge.second.{{subject}}"
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}

        [pipelines.telemetry]
        sources = ["sensors"]
        transforms = ["clean"]
        sinks = ["archive", "first", "second"]
        "#,
        plugin = plugin.display(),
    )
}

/// Final names and what they hold; a name that is there again must hold the same.
fn note_files(out: &Path, known: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for name in files_below(out) {
        if is_temporary(&name) {
            continue;
        }
        let content = std::fs::read(out.join(&name)).unwrap();
        assert!(content.ends_with(b"\n"), "{} is not whole", name.display());
        if let Some(earlier) = known.get(&name) {
            assert_eq!(*earlier, content, "{} has two contents", name.display());
        }
        known.insert(name, content);
    }
}

/// Waits until there are more files than so many, or the agent has ended.
fn wait_for_a_file(agent: &mut Agent, out: &Path, known: usize) {
    wait_for("a file", LONG, || {
        let more = files_below(out).iter().filter(|name| !is_temporary(name)).count() > known;
        (more || agent.ended().is_some()).then_some(())
    });
}

fn is_temporary(name: &Path) -> bool {
    name.file_name().unwrap().to_str().unwrap().starts_with('.')
}

/// Kills of one agent: as many as find it at work on what it has to do.
const KILLS_A_ROUND: usize = 20;
/// Longest that it works until the next one.
const KILL_MS_MAX: u64 = 400;
/// How many times as many records it may get in the end.
const MORE_RECORDS_MAX: u64 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn every_record_arrives_exactly_once_through_sigkill() {
    let kills = size("WAYSTATION_TEST_KILLS", KILLS_A_ROUND);
    let count = size("WAYSTATION_TEST_RECORDS", 200_000) as u64;
    let mut random = fastrand::Rng::with_seed(seed());
    // Kills that come sooner to find something left to do would find an agent that has only begun.
    for round in 0..kills.div_ceil(KILLS_A_ROUND) {
        let left = kills - round * KILLS_A_ROUND;
        kill_and_count(left.min(KILLS_A_ROUND), count, &mut random).await;
    }
}

/// An agent that is killed so often while it works, let finish then, and what came of its records.
///
/// One that is done before that is given half as many records again: how much a host does between kills is its own.
async fn kill_and_count(kills: usize, at_first: u64, random: &mut fastrand::Rng) {
    let mut count = at_first;
    let server = nats::Server::start();
    server.make_stream("EDGE", "edge.>").await;
    let home = Home::new(&config(&server));
    sensors::write(&home.path("sensors.ndjson"), count);
    let out = home.path("out");
    let mut files = BTreeMap::new();

    let mut killed = 0;
    let status = loop {
        let mut agent = home.start(&["run", "--once"]);
        if killed == kills {
            break agent.wait();
        }
        if killed % 2 == 0 {
            std::thread::sleep(Duration::from_millis(random.u64(20..KILL_MS_MAX)));
        } else {
            // On a busy host all of that may be spent before the first delivery.
            wait_for_a_file(&mut agent, &out, files.len());
            std::thread::sleep(Duration::from_millis(random.u64(..50)));
        }
        if let Some(status) = agent.ended() {
            assert!(status.success(), "{status}\n{}", home.log());
            assert!(count < at_first * MORE_RECORDS_MAX, "the agent is done again and again");
            sensors::append(&home.path("sensors.ndjson"), count..count + at_first / 2);
            count += at_first / 2;
            continue;
        }
        agent.kill();
        killed += 1;
        note_files(&out, &mut files);
    };
    eprintln!("{killed} kills, {count} records, {} files", files.len());
    assert!(status.success(), "{status}\n{}", home.log());
    assert!(killed < 2 || !files.is_empty(), "no kill found it delivering");
    note_files(&out, &mut files);

    let leftovers: Vec<_> =
        files_below(&out).into_iter().filter(|n| !files.contains_key(n)).collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
    let expected = sensors::kept(count);
    let lines = files.values().flat_map(|content| content.split(|byte| *byte == b'\n'));
    let seqs: Vec<_> = lines.filter(|line| !line.is_empty()).map(sensors::seq_of).collect();
    compare("files", seqs, &expected);

    let messages = server.messages("EDGE").await;
    let identities: BTreeSet<_> = messages.iter().map(|(_, id, _)| id.clone()).collect();
    assert_eq!(identities.len(), messages.len(), "an identity is stored twice");
    let mut subjects: HashMap<String, Vec<u64>> = HashMap::new();
    for (subject, _, payload) in messages {
        subjects.entry(subject).or_default().push(sensors::seq_of(&payload));
    }
    assert_eq!(subjects.len(), 2, "{:?}", subjects.keys());
    for (subject, seqs) in subjects {
        // Inside one publish window a message may be stored in front of one that had failed; a killed run leaves no more.
        let mut sorted = seqs.clone();
        sorted.sort_unstable();
        compare(&subject, sorted, &expected);
    }
    let status = home.output(&["run", "--once", "--timeout", "1m", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&summary["records_in"], &summary["delivered"]),
        (&0.into(), &0.into()),
        "{summary}"
    );
}

/// Compares without printing hundreds of thousands of numbers.
fn compare(what: &str, found: Vec<u64>, expected: &[u64]) {
    if found == expected {
        return;
    }
    let wanted: BTreeSet<_> = expected.iter().copied().collect();
    let got: BTreeSet<_> = found.iter().copied().collect();
    let missing: Vec<_> = wanted.difference(&got).take(10).collect();
    let strange: Vec<_> = got.difference(&wanted).take(10).collect();
    let disorder = found.windows(2).position(|pair| pair[0] >= pair[1]);
    panic!(
        "{what}: {} records, expected {}; missing {missing:?}, not expected {strange:?}, out of order at {disorder:?}",
        found.len(),
        expected.len()
    );
}
