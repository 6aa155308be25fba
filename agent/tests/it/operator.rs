//! What an operator does with a running agent, through the real commands: pause, flush, decide, look into the dead letters.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::support::agent::{Agent, Home, files_below};
use super::support::http::{Server, status};
use super::support::{LONG, free_port, wait_for};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must succeed; gives what it prints.
pub(crate) fn done(home: &Home, arguments: &[&str]) -> String {
    let output = home.output(arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// Runs a command that must fail with this code; gives what it says.
pub(crate) fn failed(home: &Home, code: i32, arguments: &[&str]) -> String {
    let output = home.output(arguments);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{said}", stdout(&output));
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn append(home: &Home, lines: impl IntoIterator<Item = String>) {
    let mut file =
        std::fs::File::options().append(true).create(true).open(home.path("in")).unwrap();
    for line in lines {
        writeln!(file, "{line}").unwrap();
    }
}

/// All lines below a folder, in the order of the files' names.
fn lines(home: &Home, folder: &str) -> Vec<String> {
    let folder = home.path(folder);
    let texts = files_below(&folder).into_iter().map(|name| folder.join(name));
    let texts = texts.map(|path| std::fs::read_to_string(path).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

pub(crate) fn lane(home: &Home, sink: &str) -> Option<Value> {
    let status = home.status()?;
    status["lanes"].as_array()?.iter().find(|lane| lane["sink"] == sink).cloned()
}

fn wait_for_cause(home: &Home, sink: &str, cause: &str) -> Value {
    wait_for(cause, LONG, || lane(home, sink).filter(|lane| lane["trouble"]["cause"] == cause))
}

/// One source to two folders, the second of which waits for full batches.
fn two_lanes() -> Home {
    listening(free_port())
}

fn listening(port: u16) -> Home {
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [admin]
        listen = "127.0.0.1:{port}"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.quick]
        type = "file"
        root = "{{dir}}/quick"
        batch = {{ linger = "10ms" }}
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}
        [sinks.slow]
        type = "file"
        root = "{{dir}}/slow"
        root_must_exist = true
        batch = {{ records_max = 1_000_000, linger = "1h" }}
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["quick", "slow"]
        "#
    ));
    append(&home, []);
    home
}

#[test]
fn a_paused_lane_sends_nothing_until_it_is_resumed_and_the_status_says_how() {
    let home = two_lanes();
    let _agent = home.start(&["run"]);
    wait_for("the agent", LONG, || home.status());
    assert_eq!(done(&home, &["pause", "quick"]), "lane gw/in/p/quick is paused\n");
    append(&home, (0..5).map(|n| n.to_string()));
    wait_for_cause(&home, "quick", "paused");
    wait_for("the records", LONG, || lane(&home, "quick").filter(|lane| lane["queued"] == 5));
    let page = done(&home, &["status"]);
    assert!(page.contains("PAUSED 5 records"), "{page}");
    assert!(page.contains("`waystation resume in/p/quick` ends that"), "{page}");
    let listed = json_lines(&done(&home, &["lane", "list", "--json"]));
    let quick = listed.iter().find(|lane| lane["name"] == "gw/in/p/quick").unwrap();
    assert_eq!((&quick["state"], &quick["queued"]), (&"holding".into(), &5.into()), "{quick}");
    assert!(quick["oldest_at"].is_string(), "{quick}");
    // The status tells the same as of its last look, at most ten seconds ago.
    let known = wait_for("the look", LONG, || {
        lane(&home, "quick").filter(|lane| lane["oldest_at"].is_string())
    });
    // The list has it to the nanosecond.
    let oldest = known["oldest_at"].as_str().unwrap().trim_end_matches('Z');
    assert!(quick["oldest_at"].as_str().unwrap().starts_with(oldest), "{known} {quick}");
    assert!(known["queued_bytes"].as_u64().unwrap() > 0, "{known}");
    assert!(known["drain_seconds"].is_null(), "nothing goes out: {known}");
    assert!(lines(&home, "quick").is_empty());
    // Pausing twice is one pause, and resuming twice too.
    done(&home, &["pause", "p/quick"]);
    let resumed = done(&home, &["resume", "gw/in/p/quick", "--json"]);
    assert_eq!(resumed, "{\"lane\":\"gw/in/p/quick\",\"resumed\":true}\n");
    done(&home, &["resume", "quick"]);
    wait_for("delivery", LONG, || (lines(&home, "quick").len() == 5).then_some(()));
    let drained = wait_for("the ack", LONG, || lane(&home, "quick").filter(|l| l["queued"] == 0));
    let left = ["queued_bytes", "oldest_at", "drain_seconds"].map(|key| drained[key].clone());
    assert_eq!(left, [0.into(), serde_json::Value::Null, 0.0.into()], "{drained}");
    assert!(home.log().contains("Lane is paused as ordered"), "{}", home.log());
    assert!(home.log().contains("\"uid\":"), "{}", home.log());
}

#[test]
fn a_lane_that_is_not_there_and_an_agent_that_is_not_are_told_apart() {
    let home = two_lanes();
    for command in [&["pause", "quick"][..], &["resume", "quick"], &["flush"]] {
        let said = failed(&home, 1, command);
        assert!(
            said.contains("no agent answers on ") && said.contains("is the agent running?"),
            "{said}"
        );
    }
    let _agent = home.start(&["run"]);
    wait_for("the agent", LONG, || home.status());
    for command in
        [&["pause", "qick"][..], &["flush", "qick"], &["lane", "resolve", "qick", "--accept"]]
    {
        let said = failed(&home, 1, command);
        assert!(said.contains("there is no lane \"qick\""), "{said}");
        assert!(
            said.contains("did you mean gw/in/p/quick? there are gw/in/p/quick, gw/in/p/slow"),
            "{said}"
        );
    }
    let said = failed(&home, 1, &["lane", "resolve", "quick", "--dead-letter"]);
    assert!(said.contains("holds for nothing that is to be decided"), "{said}");
    assert!(failed(&home, 2, &["lane", "resolve", "quick"]).contains("--accept"));
}

#[test]
fn a_flush_delivers_what_was_accepted_and_says_what_is_not_upstream() {
    let home = two_lanes();
    let _agent = home.start(&["run"]);
    wait_for("the agent", LONG, || home.status());
    append(&home, (0..7).map(|n| n.to_string()));
    wait_for("the records", LONG, || lane(&home, "slow").filter(|lane| lane["queued"] == 7));
    // The mount is missing.
    let output = home.output(&["flush", "--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(
        said.starts_with("lane gw/in/p/slow: 7 records not upstream: holding: unreachable: "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    let left = home.output(&["flush", "slow", "--timeout", "200ms", "--json"]);
    let left = json_lines(&stdout(&left));
    assert_eq!((left.len(), &left[0]["queued"]), (1, &7.into()), "{left:?}");
    std::fs::create_dir(home.path("slow")).unwrap();
    let said = done(&home, &["flush", "slow"]);
    assert_eq!(said, "everything that was accepted before is upstream\n");
    assert_eq!(lines(&home, "slow").len(), 7);
    // The batch would have lingered for an hour.
    append(&home, (7..9).map(|n| n.to_string()));
    wait_for("the records", LONG, || lane(&home, "slow").filter(|lane| lane["queued"] == 2));
    done(&home, &["flush"]);
    assert_eq!(lines(&home, "slow").len(), 9);
}

#[test]
fn orders_over_tcp_are_refused_and_too_many_at_once_too() {
    let port = free_port();
    let home = listening(port);
    append(&home, ["x".to_owned()]);
    let _agent = home.start(&["run"]);
    wait_for("the agent", LONG, || lane(&home, "slow").filter(|lane| lane["queued"] == 1));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let body = r#"{"version":1,"lane":"gw/in/p/quick"}"#;
    let head = format!(
        "POST /orders/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains(r#""code":"socket_only""#), "{answer}");
    assert_ne!(lane(&home, "quick").unwrap()["trouble"]["cause"], "paused");
    // Flushes that wait for a mount that is not there.
    let mut waiting: Vec<_> = (0..8)
        .map(|_| {
            let mut command = home.command(&["flush", "slow", "--timeout", "1h"]);
            command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    wait_for("all of them", LONG, || {
        (home.log().matches("Flush is ordered").count() == 8).then_some(())
    });
    let said = failed(&home, 1, &["flush", "slow", "--timeout", "1ms"]);
    assert!(said.contains("as many orders as may be"), "{said}");
    // What waits for nothing is done all the same, and who goes away makes room.
    done(&home, &["pause", "quick"]);
    for child in &mut waiting {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_for("room", LONG, || {
        let output = home.output(&["flush", "slow", "--timeout", "1ms"]);
        stdout(&output).contains("not upstream").then_some(())
    });
}

/// A lane that holds for a conflict: a batch of three records under whose name lies another file.
fn conflict() -> (Home, Agent, PathBuf) {
    let (home, agent, file) = conflict_with("somebody else's\n");
    let lane = wait_for_cause(&home, "out", "conflict");
    assert_eq!(lane["queued"], 3);
    (home, agent, file)
}

/// A lane whose first batch, of the lines one, two and three, finds a file with this content under its name.
pub(crate) fn conflict_with(content: &str) -> (Home, Agent, PathBuf) {
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
        root = "{dir}/mount/out"
        root_must_exist = true
        batch = { linger = "10ms" }
        retry = { backoff = "10ms", backoff_max = "100ms" }
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
    );
    append(&home, ["one", "two", "three"].map(str::to_owned));
    let agent = home.start(&["run"]);
    let sealed = wait_for("a sealed batch", LONG, || {
        let journal = rusqlite::Connection::open(home.path("data/journal.db")).ok()?;
        let query = "SELECT fixed FROM batches WHERE last_seq = 3";
        journal.query_row(query, [], |row| row.get::<_, String>(0)).ok()
    });
    let fixed: Value = serde_json::from_str(&sealed).unwrap();
    let name = PathBuf::from(fixed["name"].as_str().unwrap());
    let file = home.path("other/out").join(&name);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, content).unwrap();
    std::fs::rename(home.path("other"), home.path("mount")).unwrap();
    (home, agent, PathBuf::from("mount/out").join(name))
}

pub(crate) fn settled(home: &Home) -> Value {
    wait_for("the outcome", LONG, || lane(home, "out").filter(|lane| lane["queued"] == 0))
}

#[test]
fn a_conflict_shows_both_hashes_and_is_accepted() {
    let (home, _agent, file) = conflict();
    let (listed, status) = (done(&home, &["lane", "list"]), done(&home, &["status"]));
    for page in [&listed, &status] {
        assert!(page.contains("waystation lane resolve"), "{page}");
        let hex = page.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() >= 16);
        assert!(hex.count() >= 2, "{page}");
    }
    let both = std::thread::scope(|scope| {
        let resolve = || home.output(&["lane", "resolve", "out", "--accept", "--json"]);
        let first = scope.spawn(resolve);
        let second = scope.spawn(resolve);
        [first.join().unwrap(), second.join().unwrap()]
    });
    let codes = both.each_ref().map(|output| output.status.code());
    assert!(codes.contains(&Some(0)) && codes.contains(&Some(1)), "one decides: {both:?}");
    let printed: String = both.iter().map(stdout).collect();
    assert_eq!(printed, "{\"lane\":\"gw/in/p/out\",\"resolution\":\"accept\"}\n");
    let lane = settled(&home);
    assert_eq!((&lane["delivered"], &lane["records_already"]), (&3.into(), &3.into()));
    assert_eq!(std::fs::read_to_string(home.path("").join(file)).unwrap(), "somebody else's\n");
}

#[test]
fn a_conflict_is_resolved_into_the_dead_letters() {
    let (home, _agent, file) = conflict();
    let said = done(&home, &["lane", "resolve", "p/out", "--dead-letter"]);
    assert!(said.starts_with("lane gw/in/p/out is resolved: "), "{said}");
    assert_eq!(settled(&home)["dead_lettered"], 3);
    let letters = json_lines(&done(&home, &["dlq", "list", "--class", "conflict", "--json"]));
    assert_eq!(letters.len(), 3, "{letters:?}");
    let exported = json_lines(&done(&home, &["dlq", "export"]));
    let payloads: Vec<_> =
        exported.iter().map(|letter| letter["payload"].as_str().unwrap()).collect();
    assert_eq!(payloads, ["one", "two", "three"]);
    let status = done(&home, &["status"]);
    assert!(
        status
            .contains("QUARANTINED 3 records of lane gw/in/p/out in the dead letters (3 conflict)"),
        "{status}"
    );
    assert_eq!(std::fs::read_to_string(home.path("").join(file)).unwrap(), "somebody else's\n");
    append(&home, ["four".to_owned()]);
    wait_for("the lane", LONG, || {
        lines(&home, "mount/out").contains(&"four".to_owned()).then_some(())
    });
}

#[test]
fn a_conflict_is_resolved_by_a_file_under_a_new_name() {
    let (home, _agent, file) = conflict();
    done(&home, &["lane", "resolve", "out", "--resend-as-new"]);
    assert_eq!(settled(&home)["delivered"], 3);
    assert_eq!(std::fs::read_to_string(home.path("").join(&file)).unwrap(), "somebody else's\n");
    let mut found = lines(&home, "mount/out");
    found.sort();
    assert_eq!(found, ["one", "somebody else's", "three", "two"]);
    assert_eq!(files_below(&home.path("mount/out")).len(), 2);
}

/// A server that takes JSON only, and 1000 lines of which every tenth is 1 KiB of something else.
fn poisoned(server: &Server) -> Home {
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "edge-oncall"
        runbook = "https://runbooks.example.org/edge"
        [dead_letters]
        max_bytes = "64KiB"
        storm = {{ share = 1.0 }}
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        subject = "plant.hall.temperature"
        [sinks.out]
        type = "http"
        url = "{}"
        format = "json"
        batch = {{ records_max = 10, linger = "10ms" }}
        retry = {{ backoff = "10ms", backoff_max = "100ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
        server.url("/in")
    ));
    let line = |n: u32| match n % 10 {
        5 => format!("poison {n} {}", "x".repeat(1024)),
        _ => format!("{{\"seq\":{n}}}"),
    };
    append(&home, (0..1000).map(line));
    home
}

#[test]
fn d_16_a_full_store_of_dead_letters_is_emptied_and_the_lane_goes_on_without_a_restart() {
    let server = Server::start(|_| status(200));
    let home = poisoned(&server);
    let mut agent = home.start(&["run"]);
    let mut seen = 0;
    let mut rounds = 0;
    while seen < 100 {
        let ended = wait_for("a full store or the end", LONG, || {
            let lane = lane(&home, "out")?;
            let is_full = lane["trouble"]["cause"] == "dead_letters";
            (is_full || lane["queued"] == 0 && lane["accepted"] == 1000).then_some(!is_full)
        });
        let status = home.status().unwrap();
        let letters = status["dead_letters"]["letters"].as_u64().unwrap();
        if !ended {
            assert!(status["dead_letters"]["write_failures"].as_u64().unwrap() > 0, "{status}");
            let page = done(&home, &["status"]);
            assert!(page.contains("make room with `waystation dlq discard`"), "{page}");
            assert!(home.output(&["flush", "--timeout", "1ms"]).status.code() == Some(1));
        }
        let exported = done(&home, &["dlq", "export", "--lane", "out"]);
        assert_eq!(json_lines(&exported).len() as u64, letters);
        let printed = done(
            &home,
            &[
                "dlq",
                "discard",
                "--lane",
                "p/out",
                "--older-than",
                "0s",
                "--yes",
                "--note",
                "known fault",
                "--json",
            ],
        );
        let discarded = json_lines(&printed)[0]["discarded"].as_u64().unwrap();
        assert_eq!(discarded, letters, "a lane that holds writes none meanwhile");
        println!("{letters} letters held the lane: {}", !ended);
        seen += discarded;
        rounds += 1;
    }
    assert_eq!(seen, 100);
    assert!(rounds >= 2, "the store was never full");
    let lane = settled(&home);
    let counts = ["accepted", "delivered", "dead_lettered"].map(|key| lane[key].as_u64().unwrap());
    assert_eq!(counts, [1000, 900, 100]);
    let shown = failed(&home, 1, &["dlq", "show", "1"]);
    assert!(
        shown.contains("dead letter 1 was discarded at ") && shown.contains("known fault"),
        "{shown}"
    );
    assert!(agent.stop().success());
    let sent: Vec<u64> = super::http::bodies(&server)
        .iter()
        .flat_map(|sent| serde_json::from_slice::<Vec<Value>>(&sent.content()).unwrap())
        .map(|record| record["seq"].as_u64().unwrap())
        .collect();
    assert!(sent.iter().copied().eq((0..1000).filter(|n| n % 10 != 5)), "{} records", sent.len());
}

/// What every look at a hundred letters of the lane tells; gives the list.
fn looks(home: &Home) -> Vec<Value> {
    let all = json_lines(&done(home, &["dlq", "list", "--json"]));
    let page = done(home, &["dlq", "list", "--limit", "3"]);
    let count = |arguments: &[&str]| {
        let arguments = [&["dlq", "list", "--json"], arguments].concat();
        json_lines(&done(home, &arguments)).len()
    };
    assert_eq!(all.len(), 100);
    assert_eq!(page.lines().count(), 4, "{page}");
    let counts = [
        count(&["--class", "rejected", "--stage", "out"]),
        count(&["--class", "exhausted"]),
        count(&["--subject", "plant.*.temperature"]),
        count(&["--subject", "plant.yard.>"]),
        count(&["--older-than", "1h"]),
        count(&["--newer-than", "1h", "--lane", "gw/in/p/out"]),
        count(&["--id", "1", "--id", "100", "--id", "4711"]),
    ];
    assert_eq!(counts, [100, 0, 100, 0, 0, 100, 2]);
    let shown = done(home, &["dlq", "show", "1"]);
    let words =
        ["rejected", "edge-oncall", "runbooks.example.org", "poison 5 xxx", "dlq discard --id 1"];
    for word in words {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let rest = json_lines(&done(home, &["dlq", "export", "--after", "98"]));
    assert_eq!(rest.len(), 2);
    assert_eq!((&rest[0]["id"], &rest[0]["owner"]), (&99.into(), &"edge-oncall".into()));
    let dry = done(home, &["dlq", "discard", "--class", "rejected", "--dry-run"]);
    assert!(
        dry.contains("and 80 more") && dry.contains("100 dead letters of gw/in/p/out, rejected"),
        "{dry}"
    );
    let said = failed(home, 2, &["dlq", "discard", "--class", "rejected"]);
    assert!(said.contains("no terminal to ask on") && said.contains("--yes"), "{said}");
    assert!(failed(home, 2, &["dlq", "discard", "--yes"]).contains("--all"));
    all
}

#[test]
fn dead_letters_are_read_beside_a_running_agent_and_on_a_stopped_one() {
    let server = Server::start(|_| status(200));
    let home = poisoned(&server);
    home.configure(&std::fs::read_to_string(home.config()).unwrap().replace("64KiB", "1MiB"));
    let mut agent = home.start(&["run"]);
    wait_for("delivery", LONG, || {
        lane(&home, "out").filter(|l| l["queued"] == 0 && l["accepted"] == 1000)
    });
    let running = looks(&home);
    assert!(agent.stop().success());
    assert_eq!(looks(&home), running);
    let said = failed(&home, 1, &["dlq", "list", "--lane", "p/uot"]);
    assert!(said.contains("did you mean gw/in/p/out?"), "{said}");
    // Without an agent the journal is opened for it, and an agent that starts finds it so.
    let printed = done(&home, &["dlq", "discard", "--id", "100", "--id", "7", "--yes"]);
    assert_eq!(printed, "2 dead letters discarded\n");
    assert!(!home.path("data/journal.db-wal").exists());
    append(&home, [format!("poison again {}", "x".repeat(1024))]);
    let mut agent = home.start(&["run"]);
    let metrics = wait_for("the next letter", LONG, || {
        let status = home.status()?;
        (status["dead_letters"]["letters"] == 99).then_some(status["dead_letters"].clone())
    });
    assert_eq!(metrics["by_class"][0]["letters"], 99, "{metrics}");
    assert!(metrics["oldest_at"].is_string(), "{metrics}");
    let ids: Vec<_> = json_lines(&done(&home, &["dlq", "list", "--json", "--newer-than", "1h"]))
        .iter()
        .map(|letter| letter["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids.last(), Some(&101), "an id is never given twice: {ids:?}");
    assert!(agent.stop().success());
}

#[test]
fn a_check_asks_each_destination_whether_it_would_take_a_batch_and_sends_nothing() {
    let server = Server::start(|sent| status(if sent.method == "HEAD" { 200 } else { 500 }));
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.files]
        type = "file"
        root = "{{dir}}/new/files"
        [sinks.mount]
        type = "file"
        root = "{{dir}}/mount"
        root_must_exist = true
        [sinks.web]
        type = "http"
        url = "{}"
        [sinks.nobody]
        type = "nats"
        servers = ["nats://127.0.0.1:1"]
        [pipelines.p]
        sources = ["in"]
        sinks = ["files", "mount", "web", "nobody"]
        "#,
        server.url("/in")
    ));
    let output = home.output(&["check", "--connect", "--timeout", "5s", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let asked = json_lines(&stdout(&output));
    let would: Vec<_> = asked[1..]
        .iter()
        .map(|asked| (asked["name"].as_str().unwrap(), asked["would_take"].as_bool().unwrap()))
        .collect();
    assert_eq!(would, [("files", true), ("mount", false), ("web", true), ("nobody", false)]);
    assert!(
        asked[1..].iter().filter(|a| a["would_take"] == false).all(|a| a["class"] == "unreachable")
    );
    done(&home, &["check", "--connect", "files"]);
    let page = stdout(&home.output(&["check", "--connect", "mount"]));
    assert!(page.contains("no") && page.contains("unreachable: cannot open"), "{page}");
    assert!(failed(&home, 1, &["check", "--connect", "flies"]).contains("it has files, mount"));
    // Nothing was made, nothing was sent.
    assert!(!home.path("new").exists() && !home.path("data").exists());
    assert!(server.sent().iter().all(|sent| sent.method == "HEAD"), "{:?}", server.sent());
}
