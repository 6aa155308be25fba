//! Transforms with a timer, through the real binary: what a tick makes is sealed with the state that it came from.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::support::agent::{Home, files_below};
use super::support::{LONG, plugin, seed, size, wait_for};

/// One file source, transforms with their keys, one file sink that shows identities.
fn config(transforms: &[String]) -> String {
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
        paths = ["{{dir}}/in.txt"]
        {tables}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        format = "json"
        batch = {{ linger = "50ms" }}
        [pipelines.p]
        sources = ["in"]
        transforms = {names:?}
        sinks = ["out"]
        "#
    )
}

fn guest(tick: &str, config: &str) -> String {
    let tick = if tick.is_empty() { String::new() } else { format!("tick = \"{tick}\"\n") };
    format!("plugin = \"{}\"\n{tick}config = {{ {config} }}", plugin("test-guests").display())
}

/// All records, in the order of the files' names.
fn delivered(home: &Home) -> Vec<Value> {
    let files = files_below(&home.path("out")).into_iter().filter(|name| {
        // What is still being written has a dot in front.
        !name.file_name().unwrap().to_str().unwrap().starts_with('.')
    });
    let texts = files.map(|file| std::fs::read_to_string(home.path("out").join(file)).unwrap());
    let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
}

fn payloads(home: &Home) -> Vec<String> {
    delivered(home).iter().map(|record| record["payload"].as_str().unwrap().to_owned()).collect()
}

fn append(home: &Home, text: &str) {
    let file = std::fs::File::options().create(true).append(true).open(home.path("in.txt"));
    file.unwrap().write_all(text.as_bytes()).unwrap();
}

fn lane(home: &Home) -> Option<Value> {
    Some(home.status()?["lanes"][0].clone())
}

fn wait_for_trouble(home: &Home, cause: &str) -> Value {
    wait_for(&format!("a hold for {cause}"), LONG, || {
        lane(home).filter(|lane| lane["trouble"]["cause"] == cause)
    })
}

#[test]
fn what_a_tick_makes_has_its_own_identity_passes_the_later_transforms_and_is_found_by_explain() {
    let home = Home::new(&config(&[
        guest("1h", "tick = \"emit\", size = 2"),
        guest("", "do = \"payload\", on = \"tick\""),
    ]));
    append(&home, "one\ntwo\n");
    let summary = home.run_once();
    assert_eq!(
        (&summary["records_in"], &summary["delivered"]),
        (&2.into(), &2.into()),
        "{summary}"
    );
    // One tick when it begins, one behind the last record.
    assert_eq!(
        payloads(&home),
        ["TICK 1.0", "TICK 1.1", "one", "two", "TICK 2.0", "TICK 2.1"],
        "{}",
        home.log()
    );
    let records = delivered(&home);
    let identity = |index: usize| records[index]["id"].as_str().unwrap().to_owned();
    assert!(identity(0).ends_with("/t1.0") && identity(1).ends_with("/t1.1"), "{}", identity(0));
    assert!(identity(2).ends_with("/1") && identity(5).ends_with("/t3.1"), "{}", identity(5));
    assert_eq!(records[0]["subject"], "ticks");
    let explained = home.output(&["explain", &identity(5), "--json"]);
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(explained["outcome"], "delivered", "{explained}");
    assert_eq!(explained["batch"]["records"], 2, "{explained}");
}

#[test]
fn a_tick_without_output_and_change_leaves_no_trace_and_one_that_changes_something_takes_a_number()
{
    for (what, name) in [("nothing", "-00000001-"), ("store", "-00000002-")] {
        let home = Home::new(&config(&[guest("1h", &format!("tick = \"{what}\""))]));
        append(&home, "one\n");
        let _summary = home.run_once();
        let names = files_below(&home.path("out"));
        let name_of =
            |file: &std::path::Path| file.file_name().unwrap().to_str().unwrap().to_owned();
        assert_eq!(names.len(), 1, "{names:?}");
        let found = name_of(&names[0]);
        assert!(found.contains(name.trim_matches('-').trim_start_matches('0')), "{what}: {found}");
        // What it had stored is there for the next run: a guest that counts its ticks goes on counting.
        home.configure(&config(&[guest("1h", "tick = \"emit\", size = 1")]));
        let _summary = home.run_once();
        let next = if what == "store" { "tick 3.0" } else { "tick 1.0" };
        assert!(payloads(&home).contains(&next.to_owned()), "{what}: {:?}", payloads(&home));
    }
}

#[test]
fn ticks_go_on_without_records_and_do_not_keep_a_batch_from_its_linger() {
    let table = guest("100ms", "tick = \"emit\", size = 1");
    // The linger is longer than the time between two ticks.
    let config = config(&[table]).replace("linger = \"50ms\"", "linger = \"400ms\"");
    let home = Home::new(&config);
    append(&home, "one\n");
    let mut agent = home.start(&["run"]);
    wait_for("the record", LONG, || payloads(&home).contains(&"one".to_owned()).then_some(()));
    let before = payloads(&home).len();
    wait_for("more ticks", LONG, || (payloads(&home).len() >= before + 3).then_some(()));
    assert!(agent.stop().success(), "{}", home.log());
    let ticks: Vec<_> = payloads(&home).into_iter().filter(|p| p.starts_with("tick")).collect();
    let expected: Vec<_> = (1..=ticks.len()).map(|n| format!("tick {n}.0")).collect();
    assert_eq!(ticks, expected);
}

#[test]
fn a_tick_that_breaks_down_parks_its_lane_and_goes_on_when_the_plugin_is_repaired() {
    for (what, words) in [("trap", "unreachable"), ("spin", "took longer")] {
        let table = |what: &str| {
            guest("1h", &format!("tick = \"{what}\", size = 1")) + "\ndeadline = \"200ms\""
        };
        let home = Home::new(&config(&[table(what)]));
        append(&home, "one\n");
        let mut agent = home.start(&["run"]);
        let held = wait_for_trouble(&home, "plugin");
        let reason = held["trouble"]["reason"].as_str().unwrap();
        assert!(reason.contains("t0") && reason.contains(words), "{reason}");
        home.configure(&config(&[table("once")]));
        wait_for("both", LONG, || (payloads(&home) == ["tick 1.0", "one"]).then_some(()));
        assert!(agent.stop().success(), "{}", home.log());
    }
}

#[test]
fn a_tick_that_fails_for_good_changes_nothing_and_a_later_one_is_tried_again() {
    let home = Home::new(&config(&[guest("1h", "tick = \"permanent\"")]));
    append(&home, "one\n");
    let _summary = home.run_once();
    assert_eq!(payloads(&home), ["one"]);
    home.configure(&config(&[guest("1h", "tick = \"once\", size = 1")]));
    let _summary = home.run_once();
    assert_eq!(payloads(&home), ["one", "tick 1.0"]);
}

#[test]
fn records_of_a_tick_that_a_later_transform_refuses_are_letters_of_no_input_and_can_be_replayed() {
    let second = |what: &str| guest("", &format!("do = \"{what}\", on = \"tick 1.1\""));
    let first = guest("1h", "tick = \"once\", size = 3");
    let home = Home::new(&config(&[first.clone(), second("reject")]));
    append(&home, "one\n");
    let mut agent = home.start(&["run"]);
    wait_for("the others", LONG, || (payloads(&home).len() == 3).then_some(()));
    let state = wait_for("the ack", LONG, || lane(&home).filter(|lane| lane["queued"] == 0));
    assert_eq!((&state["delivered"], &state["dead_lettered"]), (&1.into(), &0.into()), "{state}");
    let letters = home.output(&["dlq", "list", "--json"]);
    let letters = String::from_utf8(letters.stdout).unwrap();
    let letter: Value = serde_json::from_str(letters.lines().next().unwrap()).unwrap();
    assert!(letter["record"].as_str().unwrap().ends_with("/t1.1"), "{letter}");

    home.configure(&config(&[first, second("pass")]));
    wait_for("the reload", LONG, || {
        let replayed = home.output(&["dlq", "replay", "--all", "--yes", "--json"]);
        let _told = replayed.status;
        payloads(&home).contains(&"tick 1.1".to_owned()).then_some(())
    });
    let state = wait_for("the outcome", LONG, || lane(&home).filter(|lane| lane["letters"] != 1));
    assert_eq!((&state["delivered"], &state["dead_lettered"]), (&1.into(), &0.into()), "{state}");
    assert!(agent.stop().success(), "{}", home.log());
    let mut all = payloads(&home);
    all.sort();
    assert_eq!(all, ["one", "tick 1.0", "tick 1.1", "tick 1.2"]);
}

#[test]
fn a_tick_for_a_plugin_without_a_timer_is_an_error_of_the_config() {
    let table = format!("plugin = \"{}\"\ntick = \"10s\"", plugin("clean").display());
    let home = Home::new(&config(&[table]));
    let output = home.output(&["check"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    assert!(stderr.contains("it has no timer"), "{stderr}");
}

/// Kills through windows, in the run of a change.
const KILLS: usize = 20;

#[test]
fn through_sigkill_each_record_is_counted_in_one_window_and_each_window_arrives_once() {
    let kills = size("WAYSTATION_TEST_WINDOW_KILLS", KILLS);
    let mut random = fastrand::Rng::with_seed(seed());
    let table = format!(
        "plugin = \"{}\"\ntick = \"100ms\"\nconfig = {{ size = \"1s\", lateness = \"0s\", by = \"all\" }}",
        plugin("window").display()
    );
    let home = Home::new(&config(&[table]));
    let mut count = 0;
    for kill in 0..kills {
        let mut agent = home.start(&["run"]);
        if kill % 2 == 0 {
            // A busy machine may have done nothing yet; every other kill comes when it has, whatever the others meet.
            append(&home, "x\n");
            count += 1;
            let accepted = || home.status()?["lanes"][0]["accepted"].as_u64();
            wait_for("records", LONG, || (accepted()? == count).then_some(()));
        }
        // Windows open and close while it works, and in the time between.
        let ends = std::time::Instant::now() + Duration::from_millis(random.u64(200..1500));
        while std::time::Instant::now() < ends {
            let lines = random.u64(1..200);
            append(&home, &"x\n".repeat(usize::try_from(lines).unwrap()));
            count += lines;
            std::thread::sleep(Duration::from_millis(random.u64(1..50)));
        }
        assert!(agent.ended().is_none(), "{}", home.log());
        agent.kill();
    }
    let mut agent = home.start(&["run"]);
    let counted = |windows: &[Value]| {
        windows.iter().map(|window| window["count"].as_u64().unwrap()).sum::<u64>()
    };
    let windows = || -> Vec<Value> {
        payloads(&home).iter().map(|payload| serde_json::from_str(payload).unwrap()).collect()
    };
    wait_for("all windows", LONG, || (counted(&windows()) >= count).then_some(()));
    assert!(agent.stop().success(), "{}", home.log());
    let windows = windows();
    let mut seen = BTreeMap::new();
    for window in &windows {
        let start = window["start"].as_str().unwrap().to_owned();
        assert!(seen.insert(start, window).is_none(), "twice: {window}");
    }
    eprintln!("{kills} kills, {count} records in {} windows", windows.len());
    assert_eq!(counted(&windows), count);
    assert!(windows.len() > 1, "{windows:?}");
    let mut identities: Vec<_> =
        delivered(&home).iter().map(|record| record["id"].as_str().unwrap().to_owned()).collect();
    let all = identities.len();
    identities.sort();
    identities.dedup();
    assert_eq!(identities.len(), all, "an identity is there twice");
}
