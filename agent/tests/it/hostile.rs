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

fn one_transform(path: &std::path::Path) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [transforms.mine]
        plugin = "{}"
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ linger = "20ms" }}
        [pipelines.p]
        sources = ["in"]
        transforms = ["mine"]
        sinks = ["out"]
        "#,
        path.display()
    )
}

/// Each name in the component, those of the module in it too.
fn renamed(component: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "lengths stand in front of names");
    let mut bytes = component.to_vec();
    let places: Vec<_> = memchr::memmem::find_iter(component, from).collect();
    assert!(!places.is_empty(), "{from}");
    for at in places {
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    bytes
}

#[test]
fn d_32_a_plugin_of_another_version_or_kind_is_refused_by_check_reload_and_start_and_the_old_one_goes_on()
 {
    let home = Home::new(&one_transform(&plugin("clean")));
    std::fs::write(home.path("in"), "{\"seq\":0}\n").unwrap();
    let agent = home.start(&["run"]);
    let delivered = |count: u64| {
        wait_for("the records", LONG, || (count_of(&home, "delivered")? == count).then_some(()));
    };
    delivered(1);
    let whole = std::fs::read(plugin("clean")).unwrap();
    let cases: [(&str, Vec<u8>, &[&str]); 9] = [
        ("older.wasm", renamed(&whole, "@0.1.0", "@0.0.9"), &["0.0.9", "0.1.0"]),
        ("newer.wasm", renamed(&whole, "@0.1.0", "@2.0.0"), &["2.0.0", "0.1.0"]),
        (
            "import.wasm",
            renamed(&whole, "waystation:plugin/log@", "waystation:plugin/lug@"),
            &["waystation:plugin/lug@0.1.0"],
        ),
        (
            "export.wasm",
            renamed(&whole, "waystation:plugin/transform@", "waystation:plugin/transfirm@"),
            &["waystation:plugin/transform"],
        ),
        ("core.wasm", b"\0asm\x01\0\0\0".to_vec(), &["core module", "plugin pack"]),
        ("empty.wasm", Vec::new(), &["it is empty"]),
        ("cut.wasm", whole[..whole.len() / 2].to_vec(), &["damaged or cut short"]),
        ("elf.wasm", b"\x7fELF\x02\x01\x01".to_vec(), &["it is no WebAssembly"]),
        ("sink.wasm", std::fs::read(plugin("webhook")).unwrap(), &["a sink"]),
    ];
    for (name, bytes, parts) in &cases {
        let path = home.path(name);
        std::fs::write(&path, bytes).unwrap();
        home.configure(&one_transform(&path));
        let told = |what: &str, output: &std::process::Output| {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            for part in parts.iter().chain([name]) {
                assert!(said.contains(part), "{what}, {name}: {part}: {said}");
            }
            assert!(!said.contains("thread '"), "{what}, {name}: {said}");
        };
        let check = home.output(&["check"]);
        assert_eq!(check.status.code(), Some(78), "{name}: {check:?}");
        told("check", &check);
        let reload = home.output(&["reload"]);
        assert!(!reload.status.success(), "{name}");
        told("reload", &reload);
        // Without a config that has ever worked there is nothing to fall back on.
        let fresh = Home::new(&one_transform(&path));
        let start = fresh.output(&["run", "--once"]);
        assert_eq!(start.status.code(), Some(78), "{name}: {start:?}");
        told("start", &start);
    }
    let mut file = std::fs::File::options().append(true).open(home.path("in")).unwrap();
    std::io::Write::write_all(&mut file, b"{\"seq\":1}\n").unwrap();
    delivered(2);
    drop(agent);
}

fn count_of(home: &Home, key: &str) -> Option<u64> {
    home.status()?["lanes"][0][key].as_u64()
}
