//! Guests that do all that they may not, through the real binary, each in a lane of its own and beside one that is well.

use std::time::Duration;

use serde_json::Value;

use super::support::agent::Home;
use super::support::{LONG, plugin, wait_for};

/// Records that each lane is given, and how many of them the guest does something with.
const RECORDS: u64 = 1000;
const BAD: [u64; 3] = [0, 500, 999];

/// What becomes of a lane.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The bad records are dead letters of this class, and all others are delivered.
    Letters(&'static str),
    /// Everything is delivered.
    Delivered,
    /// The lane holds with all records, and gives a reason with this in it.
    Holds(&'static str),
}

/// What the guest does, whether with every record, and what becomes of it.
const HOSTILE: &[(&str, bool, End)] = &[
    ("panic", false, End::Letters("trap")),
    ("unreachable", false, End::Letters("trap")),
    ("divide", false, End::Letters("trap")),
    ("index", false, End::Letters("trap")),
    ("spin", false, End::Letters("deadline")),
    ("recurse", false, End::Letters("stack")),
    ("allocate", false, End::Letters("memory")),
    ("grow", false, End::Letters("memory")),
    ("huge_payload", false, End::Letters("output")),
    ("huge_reason", false, End::Letters("output")),
    ("many_parts", false, End::Letters("output")),
    ("long_subject", false, End::Letters("output")),
    ("long_headers", false, End::Letters("output")),
    ("bad_utf8", false, End::Letters("contract")),
    ("bad_pointer", false, End::Letters("contract")),
    ("bad_length", false, End::Letters("contract")),
    ("log_huge", false, End::Letters("output")),
    ("log_flood", false, End::Delivered),
    ("log_forever", false, End::Letters("deadline")),
    ("state_forever", false, End::Letters("deadline")),
    ("keys_forever", false, End::Letters("deadline")),
    ("state_flood", false, End::Letters("rejected")),
    ("state_long_key", false, End::Letters("output")),
    ("none", false, End::Letters("wrong_count")),
    ("one_less", false, End::Letters("wrong_count")),
    ("one_more", false, End::Letters("wrong_count")),
    ("many_more", false, End::Letters("output")),
    ("panic", true, End::Holds("trap")),
    ("spin", true, End::Holds("deadline")),
    ("bad_utf8", true, End::Holds("contract")),
    ("never", false, End::Holds("xxxxxxxx")),
    ("init_trap", false, End::Holds("in init")),
    ("init_spin", false, End::Holds("in init")),
    ("init_refuse", false, End::Holds("no [31m!!!")),
    ("init_delete", false, End::Holds("read-only")),
];

fn name(number: usize) -> String {
    let (does, all, _) = HOSTILE[number];
    format!("{}-{}", does.replace('_', "-"), if all { "all" } else { "some" })
}

fn config() -> String {
    let tables = (0..HOSTILE.len()).map(|number| {
        let (name, (does, all, _)) = (name(number), HOSTILE[number]);
        // Guests that take all the time there is are many here.
        format!(
            r#"
            [transforms.{name}]
            plugin = "{plugin}"
            config = {{ do = "{does}", all = {all} }}
            deadline = "{deadline}"
            [pipelines.{name}]
            sources = ["in"]
            transforms = ["{name}"]
            sinks = ["out"]
            "#,
            plugin = plugin("test-hostile").display(),
            deadline =
                if does.contains("spin") || does.contains("forever") { "50ms" } else { "5s" },
        )
    });
    let tables: String = tables.collect();
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [dead_letters]
        storm = {{ share = 1.0 }}
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        path = "{{pipeline}}/{{epoch}}-{{batch}}.ndjson"
        batch = {{ linger = "100ms", records_max = 400 }}
        [transforms.clean]
        plugin = "{clean}"
        [pipelines.good]
        sources = ["in", "live"]
        transforms = ["clean"]
        sinks = ["well"]
        [sources.live]
        type = "generate"
        records = 2000
        every = "2ms"
        [sinks.well]
        type = "file"
        root = "{{dir}}/well"
        path = "{{source}}-{{epoch}}-{{batch}}.ndjson"
        batch = {{ linger = "20ms" }}
        {tables}
        "#,
        clean = plugin("clean").display()
    )
}

fn lane<'s>(status: &'s Value, pipeline: &str, source: &str) -> &'s Value {
    let lanes = status["lanes"].as_array().unwrap().iter();
    let mut found = lanes.filter(|lane| lane["pipeline"] == pipeline && lane["source"] == source);
    found.next().unwrap()
}

fn count(lane: &Value, key: &str) -> u64 {
    lane[key].as_u64().unwrap_or_else(|| panic!("{key} in {lane}"))
}

fn has_ended(lane: &Value, end: End) -> bool {
    match end {
        End::Letters(_) | End::Delivered => count(lane, "queued") == 0,
        End::Holds(reason) => {
            let trouble = &lane["trouble"];
            trouble["reason"].as_str().is_some_and(|text| text.contains(reason))
        }
    }
}

#[test]
fn d_31_thirty_five_hostile_guests_hurt_nobody_but_the_records_that_they_break_down_on() {
    assert!(HOSTILE.len() >= 25);
    let home = Home::new(&config());
    let line = |seq: u64| {
        let status = if BAD.contains(&seq) { "\"bad\"" } else { "1" };
        format!("{{\"seq\":{seq},\"x\":{status}}}\n")
    };
    std::fs::write(home.path("in"), (0..RECORDS).map(line).collect::<String>()).unwrap();
    let mut agent = home.start(&["run"]);
    let status = wait_for("the end of all hostile lanes", LONG * 4, || {
        assert!(agent.ended().is_none(), "{}", home.log());
        let status = home.status()?;
        let all = (0..HOSTILE.len())
            .all(|number| has_ended(lane(&status, &name(number), "in"), HOSTILE[number].2));
        if !all {
            std::thread::sleep(Duration::from_millis(200));
        }
        all.then_some(status)
    });
    for (number, &(_, _, end)) in HOSTILE.iter().enumerate() {
        let name = name(number);
        let lane = lane(&status, &name, "in");
        let told = [count(lane, "delivered"), count(lane, "dead_lettered"), count(lane, "queued")];
        let bad = BAD.len() as u64;
        let expected = match end {
            End::Letters(_) => [RECORDS - bad, bad, 0],
            End::Delivered => [RECORDS, 0, 0],
            End::Holds(_) => [0, 0, RECORDS],
        };
        // P2: nothing vanishes, whatever the guest.
        assert_eq!(told, expected, "{name}: {lane}");
        let letters =
            home.output(&["dlq", "list", "--json", "--lane", &format!("gw/in/{name}/out")]);
        let letters = String::from_utf8(letters.stdout).unwrap();
        match end {
            End::Letters(class) => {
                let classes: Vec<Value> =
                    letters.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                assert_eq!(classes.len(), BAD.len(), "{name}: {letters}");
                for letter in &classes {
                    assert_eq!(letter["class"], class, "{name}: {letter}");
                    let reason = letter["reason"].as_str().unwrap();
                    assert!(!reason.is_empty() && reason.len() <= 1100, "{name}: {reason}");
                }
            }
            End::Delivered => assert_eq!(letters, "", "{name}"),
            End::Holds(_) => {
                let trouble = &lane["trouble"];
                let reason = trouble["reason"].as_str().unwrap();
                assert!(reason.len() <= 1300 && !reason.contains('\u{1b}'), "{name}: {reason}");
            }
        }
    }
    // The neighbour went on all the while.
    wait_for("the neighbour", LONG, || {
        let status = home.status()?;
        let done = |source, records| count(lane(&status, "good", source), "delivered") == records;
        (done("in", RECORDS) && done("live", 2000)).then_some(())
    });
    assert!(agent.stop().success(), "{}", home.log());
    let log = home.log();
    assert!(!log.contains("panicked at agent") && !log.contains("thread '"), "{log}");
}
