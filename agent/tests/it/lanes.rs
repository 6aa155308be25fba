//! Lanes that the config has not any more: named wherever one looks, moved to another place, or dropped.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use serde_json::Value;

use super::operator::{append, done, failed};
use super::support::agent::Home;
use super::support::http::{self, Sent};
use super::support::reload::wait_adopted;
use super::support::{LONG, size, wait_for};

const RECORDS: u64 = 500;

/// One file by one pipeline to an endpoint.
fn config(owner: &str, source: &str, pipeline: &str, port: u16, more: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "{owner}"
        [sources.{source}]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.a]
        type = "http"
        url = "http://127.0.0.1:{port}/"
        batch = {{ records_max = 100, linger = "10ms" }}
        retry = {{ backoff = "20ms", backoff_max = "200ms" }}
        [pipelines.{pipeline}]
        sources = ["{source}"]
        sinks = ["a"]
        {more}
        "#
    )
}

/// A home whose stopped agent has all records queued for an endpoint that is away.
fn with_backlog(port: u16) -> Home {
    let home = Home::new(&config("old", "in", "p", port, ""));
    append(&home, (0..RECORDS).map(|n| n.to_string()));
    let mut agent = home.start(&["run"]);
    wait_for("the backlog", LONG, || (queued(&home, "gw/in/p/a")? == RECORDS).then_some(()));
    assert!(agent.stop().success());
    home
}

fn listed(home: &Home) -> Vec<Value> {
    let text = done(home, &["lane", "list", "--json"]);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn queued(home: &Home, name: &str) -> Option<u64> {
    let status = home.status()?;
    let lanes = status["lanes"].as_array()?.iter();
    let mut all = lanes.chain(status["orphans"].as_array()?);
    all.find(|lane| lane["name"] == name)?["queued"].as_u64()
}

/// The numbers of all lines that arrived, in their order, each batch once.
fn arrived(sent: &[Sent]) -> Vec<u64> {
    let mut known = BTreeMap::new();
    let mut numbers = Vec::new();
    for sent in sent.iter().filter(|sent| sent.method == "POST") {
        if let Some(before) = known.insert(sent.key().to_owned(), sent.body.clone()) {
            assert!(before == sent.body, "{} has two contents", sent.key());
            continue;
        }
        let text = String::from_utf8(sent.content()).unwrap();
        numbers.extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
    }
    numbers
}

/// Runs an agent until everything is upstream; checks that it is so once and in order, under names of this lane alone.
fn all_arrive_by(home: &Home, port: u16, name: &str, records: u64) {
    let server = http::Server::start_on(port, None, |_| http::status(200));
    let mut agent = home.start(&["run"]);
    wait_for("the delivery", LONG, || (queued(home, name)? == 0).then_some(()));
    assert!(agent.stop().success());
    let sent = server.sent();
    assert!(arrived(&sent).into_iter().eq(0..records), "{:?}", arrived(&sent));
    let is_of_lane = |sent: &Sent| sent.key().starts_with(&format!("{name}/"));
    assert!(sent.iter().filter(|sent| sent.method == "POST").all(is_of_lane));
}

#[test]
fn a_renamed_pipeline_goes_on_with_what_waits_and_nothing_is_lost_or_sent_twice() {
    let port = http::closed_port();
    let home = with_backlog(port);
    home.configure(&config("new", "in", "renamed", port, ""));
    let said = done(&home, &["lane", "move", "p/a", "renamed/a", "--dry-run"]);
    assert!(said.contains("500 records") && said.contains("the oldest accepted"), "{said}");
    let said = failed(&home, 2, &["lane", "move", "p/a", "renamed/a"]);
    assert!(said.contains("--yes"), "{said}");
    let said = done(&home, &["lane", "move", "p/a", "renamed/a", "--yes"]);
    assert!(said.starts_with("500 records in lane gw/in/p/a go on"), "{said}");
    append(&home, [RECORDS.to_string()]);
    all_arrive_by(&home, port, "gw/in/p/a", RECORDS + 1);
}

#[test]
fn a_renamed_source_goes_on_where_the_old_one_stopped_reading() {
    let port = http::closed_port();
    let home = with_backlog(port);
    home.configure(&config("new", "lines", "p", port, ""));
    done(&home, &["lane", "move", "gw/in/p/a", "lines/p/a", "--yes"]);
    append(&home, [RECORDS.to_string()]);
    all_arrive_by(&home, port, "gw/in/p/a", RECORDS + 1);
}

/// `lane move` or `lane drop` under `strace`, which ends it in front of one call on a file of the journal.
fn ended_at(home: &Home, order: &[&str], call: &str, file: &str, hit: usize) -> bool {
    let command = home.command(order);
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-e", &format!("trace={call}"), "-P"]).arg(home.path(file));
    traced.args(["-e", &format!("inject={call}:signal=SIGKILL:when={hit}")]);
    traced.arg("-o").arg(home.path("trace"));
    traced.arg(command.get_program()).args(command.get_args()).env_clear().current_dir("/");
    let output = traced.output().expect("strace is installed");
    let is_ended = output.status.signal() == Some(9);
    assert!(is_ended || output.status.success(), "{output:?}");
    is_ended
}

#[test]
fn an_end_at_any_write_of_a_move_or_a_drop_leaves_it_undone_or_done() {
    let hits = size("WAYSTATION_TEST_LANE_ORDER_HITS", 4);
    let port = http::closed_port();
    let (mut undone, mut finished) = (0, 0);
    for (call, file) in [("pwrite64", "data/journal.db-wal"), ("fdatasync", "data/journal.db-wal")]
    {
        for hit in 1..=hits {
            let home = with_backlog(port);
            home.configure(&config("new", "in", "renamed", port, ""));
            let order = ["lane", "move", "p/a", "renamed/a", "--yes"];
            if !ended_at(&home, &order, call, file, hit) {
                break;
            }
            let verified = home.output(&["journal", "verify"]);
            assert!(verified.status.success(), "{call} {hit}: {verified:?}");
            // Lists the same records under the one name, whichever place it has.
            let lanes = listed(&home);
            assert_eq!(lanes.len(), 1, "{call} {hit}: {lanes:?}");
            assert_eq!(
                (&lanes[0]["name"], &lanes[0]["queued"]),
                (&"gw/in/p/a".into(), &RECORDS.into())
            );
            let again = home.output(&order);
            if again.status.success() {
                undone += 1;
            } else {
                let said = String::from_utf8_lossy(&again.stderr).into_owned();
                assert!(said.contains("is in the config"), "{call} {hit}: {said}");
                finished += 1;
            }
            all_arrive_by(&home, port, "gw/in/p/a", RECORDS);
            let home = with_backlog(port);
            home.configure(&config("new", "in", "renamed", port, ""));
            let order = ["lane", "drop", "p/a", "--yes"];
            if !ended_at(&home, &order, call, file, hit) {
                break;
            }
            let left: Vec<_> = listed(&home).iter().map(|lane| lane["queued"].clone()).collect();
            assert!(left.is_empty() || left == [Value::from(RECORDS)], "{call} {hit}: {left:?}");
            let verified = home.output(&["journal", "verify"]);
            assert!(verified.status.success(), "{call} {hit}: {verified:?}");
        }
    }
    eprintln!("moves that were undone: {undone}, done: {finished}");
    assert!(undone > 0, "some end in front of the commit");
}

#[test]
fn an_orphan_is_named_with_its_age_and_the_commands_and_a_lane_in_use_is_not_dropped() {
    let port = http::closed_port();
    let home = with_backlog(port);
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "old");
    for order in [&["lane", "drop", "p/a", "--yes"][..], &["lane", "move", "p/a", "p/a", "--yes"]] {
        let said = failed(&home, 1, order);
        assert!(said.contains("pipeline \"p\" delivers to sink \"a\""), "{said}");
    }
    home.configure(&config("new", "in", "renamed", port, ""));
    wait_adopted(&home, "new");
    let page = done(&home, &["status"]);
    assert!(page.contains("waystation lane drop gw/in/p/a"), "{page}");
    assert!(page.contains("waystation lane move gw/in/p/a"), "{page}");
    let status = home.status().unwrap();
    assert!(status["orphans"][0]["oldest_at"].is_string(), "{status}");
    let log = home.log();
    assert!(log.contains("\"oldest_s\":") && log.contains("`waystation lane drop`"), "{log}");
    assert!(log.contains("looks like lane gw/in/p/a under another name"), "{log}");
    let plan = done(&home, &["reload", "--plan"]);
    assert!(plan.contains("nothing would change"), "{plan}");
    assert!(
        plan.contains("500 records wait in lane gw/in/p/a, which the config has not"),
        "{plan}"
    );
    // The new lane has begun with all that the journal holds: together they would send it twice.
    wait_for("the new lane", LONG, || {
        let status = home.status()?;
        (status["lanes"][0]["batches_sealed"].as_u64()? > 0).then_some(())
    });
    let said = failed(&home, 1, &["lane", "move", "p/a", "renamed/a", "--yes"]);
    assert!(said.contains("has begun by itself, in front of"), "{said}");
    let said = done(&home, &["lane", "drop", "p/a", "--yes", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["lane"], &said["records"]), (&"gw/in/p/a".into(), &RECORDS.into()));
    wait_for("the end of the orphan", LONG, || {
        home.status()?["orphans"].as_array()?.is_empty().then_some(())
    });
    let said = failed(&home, 1, &["lane", "drop", "gw/in/p/a", "--yes"]);
    assert!(said.contains("there is no lane"), "{said}");
    assert!(agent.stop().success());
    all_arrive_by(&home, port, "gw/in/renamed/a", RECORDS);
}

#[test]
fn a_renamed_part_is_warned_of_by_a_check_and_at_the_start_with_the_command_to_type() {
    let port = http::closed_port();
    let home = with_backlog(port);
    let looks = "this looks like lane gw/in/p/a under another name, in which 500 records wait";
    let check = |home: &Home| String::from_utf8(home.output(&["check"]).stderr).unwrap();
    assert!(!check(&home).contains(looks), "it has its name");
    // Pipeline and source have other names at once; the files and the endpoint are the same.
    home.configure(&config("new", "lines", "renamed", port, ""));
    let said = check(&home);
    assert!(said.contains(looks), "{said}");
    assert!(said.contains("`waystation lane move gw/in/p/a lines/renamed/a`"), "{said}");
    assert!(
        said.contains("[pipelines.renamed]") || said.contains("sources = [\"lines\"]"),
        "{said}"
    );
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "new");
    let log = home.log();
    assert!(log.contains(looks) && log.contains("lane move gw/in/p/a lines/renamed/a"), "{log}");
    assert!(agent.stop().success());
}

#[test]
fn a_running_agent_takes_up_what_is_moved_to_a_lane_that_has_not_begun() {
    let port = http::closed_port();
    let home = with_backlog(port);
    // A lane that begins now has nothing to do while nothing comes.
    home.configure(&config("new", "in", "renamed", port, "start = \"now\""));
    let server = http::Server::start_on(port, None, |_| http::status(200));
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "new");
    assert_eq!(queued(&home, "gw/in/p/a"), Some(RECORDS));
    done(&home, &["lane", "move", "p/a", "renamed/a", "--yes"]);
    wait_for("the backlog to go out", LONG, || (queued(&home, "gw/in/p/a")? == 0).then_some(()));
    append(&home, [RECORDS.to_string()]);
    wait_for("what came behind it", LONG, || {
        (arrived(&server.sent()).len() as u64 == RECORDS + 1).then_some(())
    });
    assert!(arrived(&server.sent()).into_iter().eq(0..=RECORDS));
    let status = home.status().unwrap();
    assert_eq!(status["orphans"].as_array().unwrap().len(), 0, "{status}");
    assert_eq!(status["lanes"][0]["pipeline"], "renamed");
    assert!(agent.stop().success());
}
