//! `explain`: what became of one record, told by the real commands beside a running agent and on a stopped one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::operator::{append, conflict_with, done, failed, lane, settled};
use super::support::agent::Home;
use super::support::http::{Server, status};
use super::support::{LONG, wait_for};

fn explained(home: &Home, id: &str) -> Value {
    serde_json::from_str(&done(home, &["explain", id, "--json"])).unwrap()
}

/// A home with four records, of which the second is refused, batches of three, and a server that fails as long as it is told.
fn four_records() -> (Home, Server, Arc<AtomicBool>) {
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let server =
        Server::start(move |_| status(if down.load(Ordering::Relaxed) { 500 } else { 200 }));
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [dead_letters]
        storm = {{ share = 1.0 }}
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        subject = "plant.hall"
        [sinks.out]
        type = "http"
        url = "{}"
        format = "json"
        batch = {{ records_max = 3, linger = "1h" }}
        retry = {{ backoff = "10ms", backoff_max = "50ms", budget = "1h" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
        server.url("/in")
    ));
    append(&home, ["{\"n\":1}", "no json", "{\"n\":3}", "{\"n\":4}"].map(str::to_owned));
    (home, server, is_down)
}

fn epoch(home: &Home) -> String {
    home.status().unwrap()["agent"]["epoch"].as_str().unwrap().to_owned()
}

#[test]
fn a_record_that_waits_is_explained_with_its_attempts_and_on_a_stopped_agent_without() {
    let (home, _server, _) = four_records();
    let mut agent = home.start(&["run"]);
    wait_for("attempts", LONG, || {
        lane(&home, "out").filter(|lane| lane["batch"]["attempts"].as_u64() > Some(9))
    });
    let epoch = epoch(&home);
    let id = |seq: u32| format!("gw/in/p/out/{epoch}/{seq}");
    let batch = format!("gw/in/p/out/{epoch}/b1");
    let first = explained(&home, &id(1));
    assert_eq!(
        (&first["outcome"], &first["batch"]["identity"]),
        (&"sealed".into(), &batch.as_str().into())
    );
    let record = &first["record"];
    assert!(record["accepted_at"].as_str().unwrap().ends_with('Z'), "{first}");
    assert_eq!((&record["source"], &record["subject"]), (&"in".into(), &"plant.hall".into()));
    let recent = first["attempts"]["recent"].as_array().unwrap();
    assert_eq!(recent.len(), 8, "{first}");
    let is_told = |attempt: &Value| attempt["class"] == "retryable" && attempt["took_ms"].is_u64();
    assert!(recent.iter().all(is_told), "{first}");
    let page = done(&home, &["explain", &id(1)]);
    assert!(page.starts_with("sealed       delayed: "), "{page}");
    assert!(page.contains(" ms: retryable: "), "{page}");
    assert_eq!(explained(&home, &id(4))["outcome"], "queued");
    assert_eq!(explained(&home, &batch)["outcome"], "sealed");
    agent.kill();
    let stopped = explained(&home, &id(1));
    assert_eq!((&stopped["outcome"], &stopped["batch"]), (&"sealed".into(), &first["batch"]));
    assert_eq!(explained(&home, &id(4))["outcome"], "queued");
    assert!(failed_with(&home, 1, &id(5)).contains("there is no such record yet"));
    // More than any stream can hold.
    let huge = format!("gw/in/p/out/{epoch}/9999999999999999999");
    assert!(failed(&home, 2, &["explain", &huge]).contains("is no identity"));
    assert_eq!(done(&home, &["journal", "export", "--from", "9999999999999999999"]), "");
    let other_run = id(1).replace(&epoch, "00009abcde");
    assert!(failed_with(&home, 1, &other_run).contains("another run"));
    let said = failed(&home, 1, &["explain", &id(1).replace("/out/", "/uot/")]);
    assert!(said.contains("did you mean gw/in/p/out?"), "{said}");
    let said = failed(&home, 2, &["explain", "gw/in/p/out/42"]);
    assert!(said.contains("is no identity") && said.contains("EPOCH/SEQ"), "{said}");
}

#[test]
fn a_record_is_explained_when_it_is_refused_discarded_and_delivered() {
    let (home, _server, is_down) = four_records();
    is_down.store(false, Ordering::Relaxed);
    let mut agent = home.start(&["run"]);
    wait_for("the batch", LONG, || {
        lane(&home, "out").filter(|lane| lane["queued"] == 1 && lane["accepted"] == 4)
    });
    let epoch = epoch(&home);
    let id = |seq: u32| format!("gw/in/p/out/{epoch}/{seq}");
    let partly = explained(&home, &id(1));
    assert_eq!((&partly["outcome"], &partly["batch"]["attempts"]), (&"partly".into(), &1.into()));
    let refused = explained(&home, &id(2));
    assert_eq!((&refused["outcome"], &refused["letters"][0]), (&"dead_letter".into(), &1.into()));
    let page = done(&home, &["explain", &id(2)]);
    assert!(page.contains("quarantined") && page.contains("`waystation dlq show 1`"), "{page}");
    done(&home, &["flush"]);
    wait_for("the ack", LONG, || {
        (explained(&home, &id(4))["outcome"] == "delivered").then_some(())
    });
    done(&home, &["dlq", "discard", "--id", "1", "--yes", "--note", "a test"]);
    assert!(agent.stop().success());
    let discarded = explained(&home, &id(2));
    let note = &discarded["disposition"]["note"];
    assert_eq!((&discarded["outcome"], note), (&"discarded".into(), &"a test".into()));
    assert_eq!(explained(&home, &id(4))["outcome"], "delivered");
}

/// What `explain` prints for an identity that it does not know.
fn failed_with(home: &Home, code: i32, id: &str) -> String {
    let output = home.output(&["explain", id]);
    assert_eq!(output.status.code(), Some(code));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn what_was_there_already_and_what_was_accepted_are_told_apart_from_delivered() {
    for (content, order, outcome) in [
        ("one\ntwo\nthree\n", None, "already"),
        ("somebody else's\n", Some("--accept"), "accepted"),
    ] {
        let (home, _agent, _) = conflict_with(content);
        if let Some(order) = order {
            wait_for("the conflict", LONG, || {
                lane(&home, "out").filter(|lane| lane["trouble"]["cause"] == "conflict")
            });
            done(&home, &["lane", "resolve", "out", order]);
        }
        settled(&home);
        let epoch = home.status().unwrap()["agent"]["epoch"].as_str().unwrap().to_owned();
        let found = wait_for("the ack", LONG, || {
            let found = explained(&home, &format!("gw/in/p/out/{epoch}/2"));
            (found["outcome"] != "sealed").then_some(found)
        });
        assert_eq!(found["outcome"], outcome, "{found}");
    }
}
