//! Whole pipelines through the real binary: bytes unchanged, every record accounted for, nothing waits for nothing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::agent::{Home, files_below};
use super::support::{LONG, nats, plugin, sensors, wait_for};

/// One file source, perhaps a transform, one file sink.
fn config(source: &str, transform: &str, sink: &str) -> String {
    let transforms: Vec<_> = Some(transform).into_iter().filter(|text| !text.is_empty()).collect();
    chain(source, &transforms, sink)
}

/// The guest of the tests, told what to do.
fn guest(config: &str) -> String {
    format!("plugin = \"{}\"\nconfig = {{ {config} }}", plugin("test-guests").display())
}

/// The same with any number of transforms.
fn chain(source: &str, transforms: &[&str], sink: &str) -> String {
    let tables: String =
        (0..).zip(transforms).map(|(n, table)| format!("[transforms.t{n}]\n{table}\n")).collect();
    let names: Vec<_> = (0..transforms.len()).map(|n| format!("t{n}")).collect();
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in/*"]
        {source}
        {tables}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        {sink}
        [pipelines.p]
        sources = ["in"]
        transforms = {names:?}
        sinks = ["out"]
        "#
    )
}

fn input(home: &Home, name: &str, content: &[u8]) {
    std::fs::create_dir_all(home.path("in")).unwrap();
    std::fs::write(home.path("in").join(name), content).unwrap();
}

/// All output, in the order of the names.
fn output(out: &Path) -> Vec<u8> {
    files_below(out).iter().flat_map(|name| std::fs::read(out.join(name)).unwrap()).collect()
}

/// A value from the journal of an agent that does not run.
fn journal_value<T: rusqlite::types::FromSql>(home: &Home, query: &str) -> T {
    let database = rusqlite::Connection::open(home.path("data/journal.db")).unwrap();
    database.query_row(query, [], |row| row.get(0)).unwrap()
}

#[test]
fn once_does_not_wait_for_a_linger_of_30_s() {
    let home = Home::new(&config("", "", r#"batch = { linger = "30s" }"#));
    input(&home, "a", b"one\ntwo\n");
    let begun = Instant::now();
    let summary = home.run_once();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(
        (&summary["records_in"], &summary["delivered"]),
        (&2.into(), &2.into()),
        "{summary}"
    );
    assert_eq!(output(&home.path("out")), b"one\ntwo\n");
}

#[test]
fn untidy_bytes_come_out_as_they_went_in_but_for_what_marks_the_ends_of_lines() {
    let home = Home::new(&config("", "", ""));
    let untidy =
        b"\xef\xbb\xbfbom\nnul\0in\0side\n\xff\xfe invalid\ncarriage\r\n\nno final newline";
    input(&home, "a", untidy);
    input(&home, "empty", b"");
    let summary = home.run_once();
    assert_eq!(summary["records_in"], 5, "{summary}");
    let out = b"bom\nnul\0in\0side\n\xff\xfe invalid\ncarriage\nno final newline\n";
    assert_eq!(output(&home.path("out")), out);
}

#[test]
fn a_half_written_line_is_a_record_of_once_and_its_rest_is_another() {
    let home = Home::new(&config("", "", ""));
    input(&home, "a", b"whole\nhal");
    assert_eq!(home.run_once()["records_in"], 2);
    input(&home, "a", b"whole\nhalf\nnext\n");
    assert_eq!(home.run_once()["records_in"], 2);
    assert_eq!(output(&home.path("out")), b"whole\nhal\nf\nnext\n");
}

#[test]
fn a_line_over_its_limit_becomes_a_letter_and_its_neighbours_go_on() {
    let home = Home::new(&config(r#"record_bytes_max = "1MiB""#, "", ""));
    let long = vec![b'x'; 2 << 20];
    input(&home, "a", &[b"before\n", long.as_slice(), b"\nafter\n"].concat());
    let summary = home.run_once();
    assert_eq!(
        (&summary["records_in"], &summary["delivered"]),
        (&2.into(), &2.into()),
        "{summary}"
    );
    assert_eq!(output(&home.path("out")), b"before\nafter\n");
    let size: i64 =
        journal_value(&home, "SELECT size_bytes FROM dead_letters WHERE stage = 'source'");
    let kept: i64 = journal_value(&home, "SELECT length(payload) FROM dead_letters");
    let place: String = journal_value(&home, "SELECT place FROM dead_letters");
    assert_eq!((size, kept), (2 << 20, 1 << 20));
    assert!(place.contains("in/a"), "{place}");
    // It is passed for good.
    assert_eq!(home.run_once()["records_in"], 0);
    let letters: i64 = journal_value(&home, "SELECT count(*) FROM dead_letters");
    assert_eq!(letters, 1);
}

#[test]
fn a_long_line_can_be_cut_or_left_out_instead() {
    for (action, expected) in [("truncate", &b"12345678\nshort\n"[..]), ("drop", b"short\n")] {
        let source = format!("record_bytes_max = \"8B\"\non_oversize = \"{action}\"");
        let home = Home::new(&config(&source, "", ""));
        input(&home, "a", b"123456789\nshort\n");
        home.run_once();
        assert_eq!(output(&home.path("out")), expected, "{action}");
        let letters: i64 = journal_value(&home, "SELECT count(*) FROM dead_letters");
        assert_eq!(letters, 0);
    }
}

#[test]
fn compressed_files_hold_the_same_records_and_json_carries_the_identity() {
    let sink = r#"
        format = "json"
        compression = { codec = "zstd", level = 3 }"#;
    let home = Home::new(&config(r#"subject = "plant.{file_stem}""#, "", sink));
    input(&home, "hall.log", b"one\n\xff\n");
    home.run_once();
    let text = zstd::decode_all(output(&home.path("out")).as_slice()).unwrap();
    let records: Vec<serde_json::Value> =
        text.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(records.len(), 2);
    assert_eq!(
        (&records[0]["payload"], &records[0]["subject"]),
        (&"one".into(), &"plant.hall".into())
    );
    assert_eq!(records[1]["payload_base64"], "/w==");
    let identity = records[1]["id"].as_str().unwrap();
    assert!(identity.starts_with("gw/in/p/out/00001") && identity.ends_with("/2"), "{identity}");
}

#[test]
fn every_record_has_one_outcome_whatever_the_plugin_does() {
    let transforms = [
        guest(r#"trap_on = "bomb""#),
        guest(r#"do = "reject", on = "poison""#),
        guest(r#"do = "drop", on = "noise""#),
    ];
    let transforms: Vec<_> = transforms.iter().map(String::as_str).collect();
    let home = Home::new(&chain("", &transforms, ""));
    let mut lines = String::new();
    for number in 0..1000 {
        let word = match number {
            333 | 700 => "bomb",
            n if n % 100 == 5 => "poison",
            n if n % 50 == 7 => "noise",
            _ => "good",
        };
        lines += &format!("{word} {number}\n");
    }
    input(&home, "a", lines.as_bytes());
    let summary = home.run_once();
    let outcomes = ["records_in", "delivered", "dropped", "dead_lettered"]
        .map(|key| summary[key].as_u64().unwrap());
    assert_eq!(outcomes, [1000, 968, 20, 12], "{summary}");
    let expected: String =
        lines.lines().filter(|l| l.starts_with("good")).fold(String::new(), |t, l| t + l + "\n");
    assert_eq!(String::from_utf8(output(&home.path("out"))).unwrap(), expected);
    let traps: i64 = journal_value(&home, "SELECT count(*) FROM dead_letters WHERE class = 'trap'");
    let payload: Vec<u8> = journal_value(
        &home,
        "SELECT payload FROM dead_letters WHERE class = 'trap' ORDER BY seq LIMIT 1",
    );
    assert_eq!((traps, payload.as_slice()), (2, &b"bomb 333"[..]));
}

#[test]
fn splits_are_numbered_by_stage_and_counted_once() {
    let (twice, thrice) = (guest(r#"do = "split", size = 2"#), guest(r#"do = "split", size = 3"#));
    let home = Home::new(&chain("", &[&twice, &thrice], r#"format = "json""#));
    input(&home, "a", b"one\ntwo\n");
    let summary = home.run_once();
    assert_eq!((&summary["delivered"], &summary["lanes"][0]["outputs"]), (&2.into(), &12.into()));
    let out = output(&home.path("out"));
    let ends: Vec<String> = out
        .split(|b| *b == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .map(|record| record["id"].as_str().unwrap().rsplit('/').next().unwrap().to_owned())
        .collect();
    let expected: Vec<String> = (1..=2)
        .flat_map(|seq| (0..2).flat_map(move |a| (0..3).map(move |b| format!("{seq}.{a}.{b}"))))
        .collect();
    assert_eq!(ends, expected);
}

#[test]
fn plugin_state_counts_every_record_once_over_restarts_and_faults() {
    let counter = guest(r#"do = "state""#);
    let trapping = guest(r#"trap_on = "bomb""#);
    let home = Home::new(&chain("", &[&counter, &trapping], "batch = { records_max = 7 }"));
    let mut text = String::new();
    for run in 0..3 {
        for number in 0..30 {
            text += if number == 11 { "bomb\n" } else { "fine\n" };
        }
        input(&home, "a", text.as_bytes());
        home.run_once();
        let seen: Vec<u8> =
            journal_value(&home, "SELECT value FROM plugin_state WHERE key = 'seen'");
        assert_eq!(String::from_utf8(seen).unwrap(), ((run + 1) * 30).to_string());
    }
}

#[test]
fn what_a_plugin_calls_permanent_follows_on_error() {
    for (on_error, [dropped, dead]) in [("dead_letter", [0, 3]), ("drop", [3, 0])] {
        let transform = format!("{}\non_error = \"{on_error}\"", guest(r#"do = "permanent""#));
        let home = Home::new(&config("", &transform, ""));
        input(&home, "a", b"one\ntwo\nthree\n");
        let summary = home.run_once();
        assert_eq!(
            (&summary["dropped"], &summary["dead_lettered"]),
            (&dropped.into(), &dead.into())
        );
        let letters: i64 =
            journal_value(&home, "SELECT count(*) FROM dead_letters WHERE class = 'permanent'");
        assert_eq!(letters, dead);
    }
    for (what, on_error) in [("permanent", "on_error = \"hold\""), ("count", ""), ("retryable", "")]
    {
        let transform = format!("{}\n{on_error}", guest(&format!("do = \"{what}\"")));
        let home = Home::new(&config("", &transform, ""));
        input(&home, "a", b"one\n");
        let output = home.output(&["run", "--once", "--timeout", "1s"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        if what == "count" {
            // One record is to blame for it, and goes to the dead letters.
            assert!(output.status.success(), "{stderr}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{what}: {stderr}");
        assert!(
            stderr.contains("in/p/out holds: plugin") && stderr.contains("t0"),
            "{what}: {stderr}"
        );
        let letters: i64 = journal_value(&home, "SELECT count(*) FROM dead_letters");
        assert_eq!(letters, 0, "{what}");
    }
}

#[test]
fn a_plugin_that_faults_on_everything_is_parked_and_nothing_is_lost() {
    let home = Home::new(&config("", &guest(r#"do = "trap""#), ""));
    let text: String = (0..50).map(|number| format!("{number}\n")).collect();
    input(&home, "a", text.as_bytes());
    let output = home.output(&["run", "--once", "--timeout", "2s"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is parked: trap") && stderr.contains("t0"), "{stderr}");
    let letters: i64 = journal_value(&home, "SELECT count(*) FROM dead_letters");
    assert_eq!(letters, 0);
    let fixed = config("", &guest(r#"do = "pass""#), "");
    home.configure(&fixed);
    assert_eq!(home.run_once()["delivered"], 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_absent_destination_keeps_nothing_from_starting_and_gets_all_when_it_is_there() {
    let server = nats::Server::start();
    server.make_stream("EDGE", "edge.>").await;
    let url = server.url();
    let (port, stored) = server.end();
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in/*"]
        [sinks.cloud]
        type = "nats"
        servers = ["{url}"]
        stream = "EDGE"
        subject = "edge.{{subject}}"
        batch = {{ linger = "10ms" }}
        retry = {{ backoff = "50ms", backoff_max = "200ms" }}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ linger = "10ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["cloud", "out"]
        "#
    ));
    input(&home, "a", b"one\ntwo\n");
    let mut agent = home.start(&["run"]);
    // The other lane goes on.
    wait_for("the files", LONG, || (output(&home.path("out")) == b"one\ntwo\n").then_some(()));
    let status = wait_for("a lane that holds", LONG, || {
        let status = home.status()?;
        let lanes = status["lanes"].as_array()?.clone();
        lanes.into_iter().find(|lane| lane["sink"] == "cloud" && lane["state"] == "holding")
    });
    assert_eq!(status["queued"], 2, "{status}");
    let server = nats::Server::start_in(stored, port);
    wait_for("delivery", LONG, || {
        let status = home.status()?;
        let done = status["lanes"].as_array()?.iter().all(|lane| lane["queued"] == 0);
        done.then_some(())
    });
    let messages = server.messages("EDGE").await;
    let payloads: Vec<_> = messages.iter().map(|(_, _, payload)| payload.as_slice()).collect();
    assert_eq!(payloads, [b"one", b"two"]);
    assert!(
        messages
            .iter()
            .all(|(subject, id, _)| subject == "edge.in" && id.starts_with("gw/in/p/cloud/"))
    );
    assert!(agent.stop().success(), "{}", home.log());
}

#[test]
fn a_stop_closes_the_journal_and_a_start_goes_on_where_it_was() {
    let home = Home::new(&config("", "", r#"batch = { linger = "10ms" }"#));
    input(&home, "a", b"");
    let mut written = String::new();
    for run in 0..3 {
        let mut agent = home.start(&["run"]);
        for number in 0..50 {
            let line = format!("{run} {number}\n");
            let mut file = std::fs::File::options().append(true).open(home.path("in/a")).unwrap();
            file.write_all(line.as_bytes()).unwrap();
            written += &line;
        }
        wait_for("delivery", LONG, || {
            (output(&home.path("out")) == written.as_bytes()).then_some(())
        });
        assert!(agent.stop().success(), "{}", home.log());
        assert!(!home.path("data/journal.db-wal").exists());
    }
    assert_eq!(output(&home.path("out")), written.as_bytes());
}

#[test]
fn generated_and_piped_records_come_through() {
    let home = Home::new(
        r#"
        [agent]
        id = "gw"
        data_dir = "{dir}/data"
        [sources.made]
        type = "generate"
        records = 1000
        every = "0ms"
        payload = "made {n}"
        [sources.piped]
        type = "stdin"
        [sinks.print]
        type = "stdout"
        [pipelines.p]
        sources = ["made", "piped"]
        sinks = ["print"]
        "#,
    );
    let mut child = home
        .command(&["run", "--once"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"hello\nworld\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let made: Vec<_> = text.lines().filter(|line| line.starts_with("made")).collect();
    let piped: Vec<_> = text.lines().filter(|line| !line.starts_with("made")).collect();
    assert_eq!(made, (1..=1000).map(|n| format!("made {n}")).collect::<Vec<_>>());
    assert_eq!(piped, ["hello", "world"]);
}

/// Standard input to standard output.
const PIPED: &str = r#"
    [agent]
    id = "gw"
    data_dir = "{dir}/data"
    [sources.piped]
    type = "stdin"
    [sinks.print]
    type = "stdout"
    batch = { linger = "10ms" }
    [pipelines.p]
    sources = ["piped"]
    sinks = ["print"]
    "#;

/// Changes the journal under a running agent.
fn tamper(home: &Home, sql: &str) {
    rusqlite::Connection::open(home.path("data/journal.db")).unwrap().execute_batch(sql).unwrap();
}

const FAULT: &str = "CREATE TRIGGER fault BEFORE INSERT ON chunks
    BEGIN SELECT RAISE(ABORT, 'planted'); END";

#[test]
fn piped_lines_survive_a_journal_that_fails_for_a_while_and_are_counted_once() {
    let home = Home::new(PIPED);
    let log = std::fs::File::create(home.path("agent.log")).unwrap();
    let mut child = home
        .command(&["run", "--once", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    wait_for("the first record", LONG, || {
        (home.status()?["lanes"][0]["delivered"] == 1).then_some(())
    });
    tamper(&home, FAULT);
    input.write_all(b"two\nthree\n").unwrap();
    // More often than a source that cannot hope is run again.
    wait_for("failures", LONG, || {
        (home.log().matches("Journal commit failed").count() > 6).then_some(())
    });
    tamper(&home, "DROP TRIGGER fault");
    input.write_all(b"four\n").unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", home.log());
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..4], ["one", "two", "three", "four"]);
    let summary: serde_json::Value = serde_json::from_str(lines[4]).unwrap();
    assert_eq!(summary["records_in"], 4, "{summary}");
}

#[test]
fn a_bounded_run_gives_a_failing_source_up_and_says_what_is_lost() {
    let home = Home::new(PIPED);
    home.run_once();
    tamper(&home, FAULT);
    let mut child = home
        .command(&["run", "--once", "--timeout", "1s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\nthree\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("source piped: 3 records that were read are lost"), "{stderr}");
}

#[test]
fn a_reader_that_has_seen_enough_ends_the_run_quietly_and_the_rest_stays_queued() {
    let home = Home::new(
        &PIPED
            .replace("type = \"stdin\"", "type = \"generate\"\nrecords = 500000\nevery = \"0ms\""),
    );
    for arguments in [&["run", "--once"][..], &["run"]] {
        let mut child = home
            .command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with(r#"{"n":"#), "{line}");
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("\"WARN\"") && !stderr.contains("\"ERROR\""), "{stderr}");
    }
    let info = home.output(&["journal", "info", "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert!(info["lanes"][0]["batches"].as_u64().unwrap() > 0, "{info}");
}

#[test]
fn what_cannot_be_read_once_is_left_undone_and_named() {
    let home = Home::new(&config("", "", ""));
    input(&home, "a", b"one\n");
    std::os::unix::fs::symlink("loop", home.path("in/loop")).unwrap();
    let output = home.output(&["run", "--once"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("source in: cannot look at") && stderr.contains("in/loop"), "{stderr}");
    let home = Home::new(&config("", "", ""));
    let output = home.output(&["run", "--once"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("Pattern finds no file") && stderr.contains("in/* finds"), "{stderr}");
}

#[test]
fn a_lane_that_holds_ends_a_bounded_run_with_1_and_says_so() {
    let home = Home::new(&config("", "", ""));
    input(&home, "a", b"one\n");
    // Where the root should be made there is a file.
    std::fs::write(home.path("out"), b"in the way").unwrap();
    let output = home.output(&["run", "--once", "--timeout", "1s", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("in/p/out") && stderr.contains("unreachable"), "{stderr}");
    std::fs::remove_file(home.path("out")).unwrap();
    assert_eq!(home.run_once()["delivered"], 1);
}

#[test]
fn a_reading_is_cleaned_as_the_plugin_says() {
    let transform = format!("plugin = \"{}\"", plugin("clean").display());
    let home = Home::new(&config("", &transform, ""));
    let mut text = String::new();
    (0..20).for_each(|seq| sensors::line(&mut text, seq));
    input(&home, "a", text.as_bytes());
    let summary = home.run_once();
    assert_eq!((&summary["delivered"], &summary["dropped"]), (&18.into(), &2.into()), "{summary}");
    let out = output(&home.path("out"));
    let seqs: Vec<_> =
        out.split(|b| *b == b'\n').filter(|l| !l.is_empty()).map(sensors::seq_of).collect();
    assert_eq!(seqs, sensors::kept(20));
}

#[test]
fn a_plugin_that_makes_much_of_little_gets_smaller_batches() {
    let transform = guest(r#"do = "output", size = 140000"#);
    let home =
        Home::new(&config("", &transform, r#"batch = { records_max = 400, bytes_max = "1MiB" }"#));
    let text: String = (0..400).map(|number| format!("{number}\n")).collect();
    input(&home, "a", text.as_bytes());
    let summary = home.run_once();
    assert_eq!(summary["delivered"], 400, "{summary}");
    // Sixteen MiB and more of output are cut into batches that each hold less.
    assert!(summary["files"].as_u64().unwrap() >= 4, "{summary}");
    let sizes = files_below(&home.path("out"))
        .into_iter()
        .map(|name| std::fs::metadata(home.path("out").join(name)).unwrap().len());
    assert!(sizes.clone().all(|size| size <= 16 << 20), "{:?}", sizes.collect::<Vec<_>>());
}

#[test]
fn a_plugin_that_spins_is_seen_in_the_status_and_does_not_hold_up_a_stop() {
    let transform = format!("{}\ndeadline = \"200ms\"", guest(r#"do = "spin""#));
    let home = Home::new(&config("", &transform, r#"batch = { linger = "10ms" }"#));
    let text: String = (0..500).map(|number| format!("{number}\n")).collect();
    input(&home, "a", text.as_bytes());
    let mut agent = home.start(&["run"]);
    let lane = wait_for("a lane that holds", LONG, || {
        let lanes = home.status()?["lanes"].as_array()?.clone();
        lanes.into_iter().find(|lane| lane["state"] == "holding")
    });
    let reason = lane["trouble"].to_string();
    assert!(reason.contains("plugin") && reason.contains("deadline"), "{reason}");
    let begun = Instant::now();
    assert!(agent.stop().success(), "{}", home.log());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    home.configure(&config("", "", ""));
    assert_eq!(home.run_once()["delivered"], 500);
}

#[test]
fn a_run_once_that_is_stopped_says_what_is_not_done() {
    let home = Home::new(&config("", "", ""));
    input(&home, "a", b"one\n");
    std::fs::write(home.path("out"), b"in the way").unwrap();
    let mut agent = home.start(&["run", "--once"]);
    wait_for("a lane that holds", LONG, || {
        let status = home.status()?;
        status["lanes"].as_array()?.iter().any(|lane| lane["state"] == "holding").then_some(())
    });
    assert_eq!(agent.stop().code(), Some(1), "{}", home.log());
    assert!(home.log().contains("Left undone"), "{}", home.log());
}

#[test]
fn a_hangup_and_a_taken_admin_port_keep_no_record_from_being_taken() {
    use std::os::unix::fs::PermissionsExt as _;

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = config("", "", r#"batch = { linger = "10ms" }"#);
    let home = Home::new(&format!("{text}\n[admin]\nlisten = \"127.0.0.1:{port}\"\n"));
    input(&home, "a", b"one\n");
    let mut agent = home.start(&["run"]);
    wait_for("delivery", LONG, || (output(&home.path("out")) == b"one\n").then_some(()));
    agent.signal(rustix::process::Signal::HUP);
    wait_for("the reload", LONG, || home.log().contains("nothing is reloaded").then_some(()));
    let mut file = std::fs::File::options().append(true).open(home.path("in/a")).unwrap();
    file.write_all(b"two\n").unwrap();
    wait_for("delivery", LONG, || (output(&home.path("out")) == b"one\ntwo\n").then_some(()));
    assert!(agent.stop().success());
    let log = home.log();
    assert!(log.contains(&port.to_string()), "{log}");
    let mode = std::fs::metadata(home.path("data")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
}
