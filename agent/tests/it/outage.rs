//! All destinations go away for a while and come back.

use std::io::Write as _;

use super::http::{bodies, seqs};
use super::support::agent::{Home, files_below};
use super::support::http::{Server, status};
use super::support::{LONG, nats, wait_for};

/// What is delivered before, arrives during, and comes after the outage.
const PART: u64 = 1001;

fn config(nats: &str, http: &str) -> String {
    let common =
        "batch = { linger = \"10ms\" }\nretry = { backoff = \"20ms\", backoff_max = \"200ms\" }";
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.stream]
        type = "nats"
        servers = ["{nats}"]
        stream = "EDGE"
        subject = "edge.{{subject}}"
        {common}
        [sinks.endpoint]
        type = "http"
        url = "{http}"
        {common}
        [sinks.files]
        type = "file"
        root = "{{dir}}/mount"
        root_must_exist = true
        {common}
        [pipelines.p]
        sources = ["in"]
        sinks = ["stream", "endpoint", "files"]
        "#
    )
}

fn append(home: &Home, part: u64) {
    let mut file =
        std::fs::File::options().append(true).create(true).open(home.path("in")).unwrap();
    let numbers = part * PART..(part + 1) * PART;
    let lines: String = numbers.map(|seq| format!("{{\"seq\":{seq}}}\n")).collect();
    file.write_all(lines.as_bytes()).unwrap();
}

/// Waits until the lanes are in this state and have this many records queued.
fn wait_for_lanes(home: &Home, what: &str, state: &str, queued: u64) {
    wait_for(what, LONG, || {
        let status = home.status()?;
        let is_so = |lane: &serde_json::Value| lane["state"] == state && lane["queued"] == queued;
        let taken = status["sources"][0]["head"].as_u64()?;
        (taken.is_multiple_of(PART) && taken > 0 && status["lanes"].as_array()?.iter().all(is_so))
            .then_some(())
    });
}

fn seq(line: &[u8]) -> u64 {
    serde_json::from_slice::<serde_json::Value>(line).unwrap()["seq"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_times_1001_records_around_an_outage_are_3003_in_order_and_the_journal_is_empty() {
    let server = nats::Server::start();
    server.make_stream("EDGE", "edge.>").await;
    let endpoint = Server::start(|_| status(200));
    let home = Home::new(&config(&server.url(), &endpoint.url("/in")));
    std::fs::create_dir(home.path("mount")).unwrap();
    append(&home, 0);
    let mut agent = home.start(&["run"]);
    wait_for_lanes(&home, "the first part", "running", 0);
    let mut sent = bodies(&endpoint);
    let http_port = endpoint.port;
    drop(endpoint);
    std::fs::rename(home.path("mount"), home.path("away")).unwrap();
    let (port, stored) = server.end();
    append(&home, 1);
    wait_for_lanes(&home, "the outage", "holding", PART);
    std::fs::rename(home.path("away"), home.path("mount")).unwrap();
    let endpoint = Server::start_on(http_port, None, |_| status(200));
    let server = nats::Server::start_in(stored, port);
    append(&home, 2);
    wait_for_lanes(&home, "the rest", "running", 0);
    let lanes = home.status().unwrap()["lanes"].clone();
    assert!(agent.stop().success(), "{}", home.log());
    for lane in lanes.as_array().unwrap() {
        assert_eq!((&lane["delivered"], &lane["dead_lettered"]), (&3003.into(), &0.into()));
    }
    let all: Vec<u64> = (0..3 * PART).collect();
    let stream = server.messages("EDGE").await;
    assert_eq!(stream.iter().map(|(.., payload)| seq(payload)).collect::<Vec<_>>(), all);
    sent.extend(bodies(&endpoint));
    assert_eq!(sent.iter().flat_map(seqs).collect::<Vec<_>>(), all);
    let mount = home.path("mount");
    let files = files_below(&mount).into_iter().map(|name| std::fs::read(mount.join(name)));
    let text = files.collect::<Result<Vec<_>, _>>().unwrap().concat();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    assert_eq!(lines.map(seq).collect::<Vec<_>>(), all);
    let journal = rusqlite::Connection::open(home.path("data/journal.db")).unwrap();
    let rows = |table: &str| {
        let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        journal.query_row(&format!("SELECT count(*) FROM {table}"), [], count).unwrap()
    };
    // Rows of acked batches stay a while, and their lane names them.
    let waiting = "batches WHERE lane NOT IN (SELECT number FROM lanes WHERE acked <> x'')";
    for table in [waiting, "batch_parts", "dead_letters", "losses"] {
        assert_eq!(rows(table), 0, "{table}");
    }
    // A stream's newest chunk stays, delivered as it is, and tells where the stream ends.
    assert_eq!(rows("chunks"), 1);
}
