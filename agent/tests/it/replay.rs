//! Dead letters go out again, through the real commands, to real destinations.

use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use super::http::{bodies, seqs};
use super::support::agent::{Home, files_below};
use super::support::http::{Reply, Server, answer, status};
use super::support::{LONG, nats, plugin, wait_for};

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `dlq replay` of everything, or with these arguments; gives its exit code and what it says of each batch.
fn replay(home: &Home, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
    let arguments = [&["dlq", "replay", "--yes", "--json"], arguments].concat();
    let output = home.output(&arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    eprintln!("{arguments:?}: {} {stderr}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), lines(&output))
}

fn letters(home: &Home) -> Vec<Value> {
    lines(&home.output(&["dlq", "list", "--json"]))
}

fn lane(home: &Home) -> Option<Value> {
    Some(home.status()?["lanes"].as_array()?.first()?.clone())
}

/// Waits until the lane has so many dead letters and nothing waits.
fn settled(home: &Home, dead_lettered: u64) -> Value {
    wait_for("the outcomes", LONG, || {
        lane(home).filter(|lane| {
            lane["dead_lettered"] == dead_lettered && lane["queued"] == 0 && lane["accepted"] != 0
        })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn d_10_what_was_over_max_payload_is_stored_once_when_the_limit_is_raised() {
    let directory = tempfile::tempdir().unwrap();
    let server = nats::Server::start_with(directory, 0, "max_payload: 65536\n");
    server.make_stream("EDGE", "edge.>").await;
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
        servers = ["{}"]
        stream = "EDGE"
        subject = "edge.all"
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["cloud"]
        "#,
        server.url()
    ));
    let small = |n: usize| format!("{n:0100}");
    let mut all: Vec<_> = (0..10).map(small).collect();
    all.push("x".repeat(70_000));
    all.extend((10..20).map(small));
    // It fits alone and not with its headers.
    all.push("y".repeat(65_530));
    all.extend((20..30).map(small));
    std::fs::write(home.path("in"), all.join("\n") + "\n").unwrap();
    let mut agent = home.start(&["run"]);
    settled(&home, 2);
    let before = letters(&home);
    assert!(before.iter().all(|l| l["reason"].as_str().unwrap().contains("max_payload 65536")));
    // As long as the limit stands they come back, and are the same letters.
    let (code, _) = replay(&home, &["--all"]);
    assert_eq!(code, Some(1));
    let again = letters(&home);
    let ids = |letters: &[Value]| letters.iter().map(|l| l["record"].clone()).collect::<Vec<_>>();
    assert_eq!((ids(&again), &again[0]["attempts"]), (ids(&before), &2.into()));
    let (port, directory) = server.end();
    let server = nats::Server::start_with(directory, port, "max_payload: 1MB\n");
    wait_for("the lane", LONG, || {
        let outcomes = replay(&home, &["--all"]);
        (outcomes.0 == Some(0)).then_some(())
    });
    assert!(letters(&home).is_empty());
    let lane = settled(&home, 0);
    assert_eq!((&lane["delivered"], &lane["accepted"]), (&32.into(), &32.into()), "{lane}");
    let messages = server.messages("EDGE").await;
    let mut stored: Vec<_> = messages
        .iter()
        .map(|(_, _, payload)| String::from_utf8(payload.clone()).unwrap())
        .collect();
    let identities: Vec<_> = messages.iter().map(|(_, id, _)| id.clone()).collect();
    for record in ids(&before) {
        let count = identities.iter().filter(|id| **id == record.as_str().unwrap()).count();
        assert_eq!(count, 1, "{record}");
    }
    stored.sort();
    all.sort();
    assert_eq!(stored, all, "each is stored exactly once");
    assert!(agent.stop().success(), "{}", home.log());
}

#[test]
fn a_file_of_a_whole_batch_that_is_there_already_is_recognised() {
    let home = Home::new(
        r#"
        [agent]
        id = "gw"
        data_dir = "{dir}/data"
        [sources.in]
        type = "file"
        paths = ["{dir}/in"]
        [sinks.out]
        type = "file"
        root = "{dir}/out"
        path = "{epoch}-{batch}.ndjson"
        on_conflict = "dead_letter"
        batch = { linger = "10ms" }
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
    );
    std::fs::write(home.path("in"), "").unwrap();
    let mut agent = home.start(&["run"]);
    let running = wait_for("the agent", LONG, || home.status());
    let epoch = running["agent"]["epoch"].as_str().unwrap().to_owned();
    let name = home.path("out").join(format!("{epoch}-{:016}.ndjson", 1));
    std::fs::create_dir_all(home.path("out")).unwrap();
    std::fs::write(&name, "somebody else's\n").unwrap();
    std::fs::write(home.path("in"), "one\ntwo\nthree\n").unwrap();
    settled(&home, 3);
    assert!(letters(&home).iter().all(|letter| letter["class"] == "conflict"));
    let planned = lines(&home.output(&["dlq", "replay", "--all", "--dry-run", "--json"]));
    assert_eq!(planned[0]["batch"], format!("gw/in/p/out/{epoch}/b1"));
    // It is still in the way.
    let (code, outcomes) = replay(&home, &["--all"]);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(1), &"conflict".into()));
    // What belongs there is there.
    std::fs::write(&name, "one\ntwo\nthree\n").unwrap();
    let (code, outcomes) = replay(&home, &["--all"]);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(0), &"already applied".into()));
    assert_eq!((&outcomes[0]["delivered"], &outcomes[0]["already"]), (&3.into(), &3.into()));
    assert_eq!(files_below(&home.path("out")).len(), 1);
    settled(&home, 0);
    let shown = home.output(&["dlq", "show", "1"]);
    let said = String::from_utf8_lossy(&shown.stdout) + String::from_utf8_lossy(&shown.stderr);
    assert!(said.contains("replayed"), "{said}");
    assert!(agent.stop().success(), "{}", home.log());
}

#[test]
fn a_repaired_record_goes_out_under_a_new_key_and_a_kill_in_between_loses_nothing() {
    let mode = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&mode);
    let server = Server::start(move |sent| match now.load(Ordering::SeqCst) {
        // It has the batch, and never says so.
        1 if sent.key().contains("/r") => Reply::Stall,
        _ if sent.method == "HEAD" => status(405),
        _ => answer(200, &[], ""),
    });
    let home = super::http::home(
        &server.url("/in"),
        "format = \"json\"\nbatch = { linger = \"10ms\" }\nretry = { backoff = \"10ms\", backoff_max = \"100ms\", attempt_timeout = \"60s\" }",
        0,
    );
    std::fs::write(home.path("in"), "{\"seq\":0}\nno json\n{\"seq\":2}\nnor this\n").unwrap();
    let mut agent = home.start(&["run"]);
    settled(&home, 2);
    let before = letters(&home);
    let key = before[0]["batch"].as_str().unwrap().to_owned();
    std::fs::write(home.path("good"), "{\"seq\":1}").unwrap();
    let good = home.path("good");
    let two =
        home.output(&["dlq", "replay", "--all", "--yes", "--payload", good.to_str().unwrap()]);
    assert_eq!(two.status.code(), Some(2), "one at a time");
    mode.store(1, Ordering::SeqCst);
    let id = before[0]["id"].to_string();
    let arguments = ["--id", &id, "--payload", good.to_str().unwrap(), "--timeout", "1s"];
    let (code, outcomes) = replay(&home, &arguments);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(1), &"under way".into()));
    let repaired = format!("{}~1", before[0]["record"].as_str().unwrap());
    assert_eq!(letters(&home)[0]["record"], repaired.as_str());
    // Neither goes while it is under way.
    let (code, outcomes) = replay(&home, &["--id", &id]);
    assert_eq!(code, Some(1));
    assert!(outcomes[0]["left_out"].as_str().unwrap().contains("being replayed"), "{outcomes:?}");
    let discarded = home.output(&["dlq", "discard", "--id", &id, "--yes"]);
    assert_eq!(discarded.status.code(), Some(1));
    let said = String::from_utf8_lossy(&discarded.stderr).into_owned();
    assert!(said.contains("is being replayed as"), "{said}");
    agent.kill();
    mode.store(0, Ordering::SeqCst);
    let mut agent = home.start(&["run"]);
    settled(&home, 1);
    let replays: Vec<_> =
        bodies(&server).into_iter().filter(|sent| sent.key().contains("/r")).collect();
    assert!(replays.len() >= 2, "once before the kill, once behind it");
    for sent in &replays {
        assert_eq!(sent.key(), format!("{key}/r1"));
        assert_eq!(&*sent.body, &*replays[0].body, "the same bytes");
    }
    let body: Value = serde_json::from_slice(&replays[0].body).unwrap();
    assert_eq!(body, serde_json::json!([{"seq": 1}]));
    for record in [repaired.as_str(), repaired.trim_end_matches("~1")] {
        let told = &lines(&home.output(&["explain", record, "--json"]))[0];
        assert_eq!(told["outcome"], "replayed", "{told}");
    }
    // The other one is refused again, and stays.
    let (code, outcomes) = replay(&home, &["--all"]);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(1), &"rejected".into()));
    assert_eq!(letters(&home).len(), 1);
    assert!(agent.stop().success(), "{}", home.log());
}

#[test]
fn letters_under_way_in_a_lane_that_has_left_the_config_go_with_a_discard_of_all() {
    let server = Server::start(|sent| match sent.method.as_str() {
        "HEAD" => status(405),
        // It never says what becomes of a replay.
        _ if sent.key().contains("/r") => Reply::Stall,
        _ => answer(200, &[], ""),
    });
    let home = super::http::home(
        &server.url("/in"),
        "format = \"json\"\nbatch = { linger = \"10ms\" }\nretry = { attempt_timeout = \"60s\" }",
        0,
    );
    std::fs::write(home.path("in"), "no json\n{\"seq\":1}\nnor this\nnor that\n").unwrap();
    let mut agent = home.start(&["run"]);
    settled(&home, 3);
    let id = letters(&home)[0]["id"].to_string();
    std::fs::write(home.path("good"), "{\"seq\":0}").unwrap();
    let good = home.path("good");
    let arguments = ["--id", &id, "--payload", good.to_str().unwrap(), "--timeout", "1s"];
    assert_eq!(replay(&home, &arguments).1[0]["outcome"], "under way");
    // While its lane runs it is left, and keeps no other from going.
    let discard = || home.output(&["dlq", "discard", "--all", "--yes", "--json"]);
    let done = discard();
    assert_eq!((done.status.code(), &lines(&done)[0]["discarded"]), (Some(1), &2.into()));
    let left = &lines(&done)[0]["left_out"][0];
    assert_eq!(left["letter"].to_string(), id, "{left}");
    assert!(left["reason"].as_str().unwrap().contains("is being replayed as"), "{left}");
    agent.kill();
    let elsewhere = std::fs::read_to_string(home.config()).unwrap();
    let elsewhere =
        elsewhere.replace("[sinks.out]", "[sinks.other]").replace("[\"out\"]", "[\"other\"]");
    home.configure(&elsewhere);
    let mut agent = home.start(&["run"]);
    wait_for("the other lane", LONG, || {
        lane(&home).filter(|lane| lane["sink"] == "other" && lane["queued"] == 0)
    });
    assert_eq!(letters(&home)[0]["id"].to_string(), id);
    let done = discard();
    assert_eq!(done.status.code(), Some(0));
    assert_eq!(lines(&done)[0]["left_out"], serde_json::json!([]));
    assert!(letters(&home).iter().all(|letter| letter["lane"] != "gw/in/p/out"));
    assert!(agent.stop().success(), "{}", home.log());
}

#[test]
fn what_a_transform_gave_up_runs_again_from_there() {
    let server = Server::start(|_| status(200));
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [transforms.clean]
        plugin = "{plugin}"
        [transforms.again]
        plugin = "{plugin}"
        config = {{ drop_status = "worse", mark = "marked_by" }}
        [sinks.out]
        type = "http"
        url = "{url}"
        batch = {{ linger = "10ms" }}
        [pipelines.p]
        sources = ["in"]
        transforms = ["clean", "again"]
        sinks = ["out"]
        "#,
        plugin = plugin("clean").display(),
        url = server.url("/in"),
    ));
    std::fs::write(home.path("in"), "{\"seq\":0}\nno json\n{\"seq\":2}\nnor this\n").unwrap();
    let mut agent = home.start(&["run"]);
    settled(&home, 2);
    assert!(letters(&home).iter().all(|letter| letter["stage"] == "clean"));
    // As it is it is rejected again, and is the same letter.
    let (code, outcomes) = replay(&home, &["--all"]);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(1), &"rejected".into()));
    let again = letters(&home);
    assert_eq!((again.len(), &again[0]["attempts"]), (2, &2.into()));
    assert_eq!(again[0]["disposition"], "replayed");
    let with = |n: usize, payload: &str| {
        std::fs::write(home.path("payload"), payload).unwrap();
        let id = again[n]["id"].to_string();
        replay(&home, &["--id", &id, "--payload", home.path("payload").to_str().unwrap()])
    };
    let (code, outcomes) = with(0, r#"{"seq":1,"status":"fine"}"#);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(0), &"delivered".into()));
    // The second transform drops this one: its input is dropped.
    let (code, outcomes) = with(1, r#"{"seq":3,"status":"worse"}"#);
    assert_eq!((code, &outcomes[0]["outcome"]), (Some(0), &"dropped".into()));
    assert!(letters(&home).is_empty());
    let lane = settled(&home, 0);
    assert_eq!((&lane["delivered"], &lane["dropped"]), (&3.into(), &1.into()), "{lane}");
    let sent = bodies(&server);
    let all: Vec<u64> = sent.iter().flat_map(seqs).collect();
    assert_eq!(all, [0, 2, 1]);
    let last = String::from_utf8(sent.last().unwrap().content()).unwrap();
    assert!(last.contains("cleaned_by") && last.contains("marked_by"), "{last}");
    assert!(agent.stop().success(), "{}", home.log());
}
