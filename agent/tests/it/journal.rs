//! Damaged journals through the real binary (cases D-01 and D-03), and `waystation journal`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::support::agent::{Agent, Home, files_below};
use super::support::{LONG, wait_for};

/// A file source and a file sink whose root cannot be made while `block` is a file.
const CONFIG: &str = r#"
    [agent]
    id = "gw"
    data_dir = "{dir}/data"

    [sources.in]
    type = "file"
    paths = ["{dir}/in.txt"]

    [sinks.out]
    type = "file"
    root = "{dir}/block/out"
    batch = { linger = "50ms" }
    retry = { backoff = "10ms", backoff_max = "100ms" }

    [pipelines.p]
    sources = ["in"]
    sinks = ["out"]
"#;

fn home() -> Home {
    let home = Home::new(CONFIG);
    std::fs::write(home.path("block"), b"").unwrap();
    home
}

/// A line that compresses badly, so that the journal has some pages.
fn line(number: u64) -> String {
    let mut random = fastrand::Rng::with_seed(number);
    let noise: String = std::iter::repeat_with(|| random.alphanumeric()).take(200).collect();
    format!("{number} {noise}")
}

fn add_lines(home: &Home, from: u64, to: u64) {
    use std::io::Write as _;

    let text: String = (from..to).map(|number| line(number) + "\n").collect();
    let mut file =
        std::fs::File::options().create(true).append(true).open(home.path("in.txt")).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn wait_for_status(
    home: &Home,
    what: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    wait_for(what, LONG, || home.status().filter(&is_so))
}

/// An agent whose destination is down, with these lines in its journal.
fn agent_with(home: &Home, lines: u64) -> Agent {
    add_lines(home, 0, lines);
    let agent = home.start(&["run"]);
    wait_for_status(home, "the lines in the journal", |s| s["sources"][0]["head"] == lines);
    agent
}

fn destination_up(home: &Home) {
    std::fs::remove_file(home.path("block")).unwrap();
}

/// The numbers of the lines at the destination; each must be a whole line of ours.
fn delivered(home: &Home) -> Vec<u64> {
    let out = home.path("block/out");
    let mut numbers = Vec::new();
    for name in files_below(&out) {
        if name.file_name().unwrap().to_str().unwrap().starts_with('.') {
            continue;
        }
        let text = std::fs::read_to_string(out.join(&name)).unwrap();
        for found in text.lines() {
            let number: u64 = found.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(found, line(number), "a record was changed");
            numbers.push(number);
        }
    }
    numbers
}

/// The report of the only salvage, and the folder of the damaged files.
fn kept(home: &Home) -> Option<(serde_json::Value, std::path::PathBuf)> {
    let entries = std::fs::read_dir(home.path("data")).unwrap().flatten();
    let mut folders = entries
        .filter(|entry| entry.file_name().to_str().unwrap().starts_with("journal.corrupt-"))
        .map(|entry| entry.path());
    let folder = folders.next()?;
    assert_eq!(folders.next(), None, "it was salvaged twice");
    let report = std::fs::read_to_string(folder.join("report.json")).ok()?;
    Some((serde_json::from_str(&report).unwrap(), folder))
}

fn database(home: &Home) -> rusqlite::Connection {
    rusqlite::Connection::open(home.path("data/journal.db")).unwrap()
}

#[test]
fn d_01_one_undecodable_record_stops_no_start() {
    let damages = [
        ("oldest", "x'00ff'"),
        ("oldest", "x''"),
        ("oldest", "CAST(substr(data, 1, 4) || x'02' || substr(data, 6) AS BLOB)"),
        ("oldest", "CAST(substr(data, 1, 130) || x'00' || substr(data, 132) AS BLOB)"),
        ("middle", "x'00ff'"),
        ("newest", "x'00ff'"),
    ];
    for (which, new) in damages {
        let home = home();
        let mut agent = home.start(&["run"]);
        for step in 0..5 {
            add_lines(&home, step * 20, step * 20 + 20);
            wait_for_status(&home, "the lines", |s| s["sources"][0]["head"] == step * 20 + 20);
        }
        assert!(agent.stop().success());
        let chunks = database(&home);
        let keys: Vec<i64> = chunks
            .prepare("SELECT key FROM chunks ORDER BY key")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert_eq!(keys.len(), 5);
        let key = match which {
            "oldest" => keys[0],
            "middle" => keys[2],
            _ => keys[4],
        };
        let update = format!("UPDATE chunks SET data = {new} WHERE key = ?1");
        assert_eq!(chunks.execute(&update, [key]).unwrap(), 1);
        let raw: Vec<u8> = chunks
            .query_row("SELECT data FROM chunks WHERE key = ?1", [key], |r| r.get(0))
            .unwrap();
        chunks.close().unwrap();
        destination_up(&home);

        let begun = Instant::now();
        let mut agent = home.start(&["run"]);
        wait_for_status(&home, "the start", |_| true);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        // What the source still has comes again: its position went back with the newest chunk.
        let expected = if which == "newest" { 100 } else { 80 };
        wait_for("the other records", LONG, || (delivered(&home).len() == expected).then_some(()));
        wait_for_status(&home, "an empty lane", |s| s["lanes"][0]["queued"] == 0);
        let status = home.status().unwrap();
        assert_eq!(status["agent"]["start_case"], "salvaged", "{status}");
        assert_eq!(status["lanes"][0]["lost"], 20, "{which} {new}: {status}");
        assert_eq!(status["journal"]["salvaged"]["lost_records"], 20, "{status}");
        let found = delivered(&home);
        assert!(found.is_sorted(), "{which} {new}: {found:?}");
        let (report, folder) = kept(&home).unwrap();
        assert_eq!((&report["unreadable"], &report["lost_records"]), (&1.into(), &20.into()));
        let aside = rusqlite::Connection::open(folder.join("journal.db")).unwrap();
        let stored: Vec<u8> =
            aside.query_row("SELECT data FROM chunks WHERE key = ?1", [key], |r| r.get(0)).unwrap();
        assert_eq!(stored, raw, "the raw bytes are kept");
        assert!(home.log().contains("they count as lost"), "{}", home.log());
        assert!(agent.stop().success());

        let mut agent = home.start(&["run"]);
        wait_for_status(&home, "the second start", |s| s["agent"]["start_case"] == "clean");
        assert!(agent.stop().success());
        assert!(kept(&home).is_some());
        assert_eq!(delivered(&home).len(), expected);
    }
}

/// Damages a stopped journal; says whether a WAL must be there for it.
type Damage = (&'static str, bool, fn(&Path));

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

const DAMAGES: [Damage; 7] = [
    ("ones in page N/2", false, |data| {
        change(&data.join("journal.db"), |bytes| {
            let page = bytes.len() / 4096 / 2 * 4096;
            bytes[page..page + 4096].fill(0xff);
        });
    }),
    ("no header", false, |data| {
        change(&data.join("journal.db"), |bytes| bytes[..100].fill(0));
    }),
    ("WAL cut by ten bytes", true, |data| {
        change(&data.join("journal.db-wal"), |bytes| bytes.truncate(bytes.len() - 10));
    }),
    ("no shm", true, |data| std::fs::remove_file(data.join("journal.db-shm")).unwrap()),
    ("no WAL", true, |data| std::fs::remove_file(data.join("journal.db-wal")).unwrap()),
    ("cut at 60 %", false, |data| {
        change(&data.join("journal.db"), |bytes| bytes.truncate(bytes.len() * 6 / 10));
    }),
    ("two pages swapped", false, |data| {
        change(&data.join("journal.db"), |bytes| {
            let (one, other) = (bytes.len() / 4096 / 3 * 4096, bytes.len() / 4096 / 2 * 4096);
            (0..4096).for_each(|at| bytes.swap(one + at, other + at));
        });
    }),
];

#[test]
fn d_03_a_damaged_region_blocks_nothing_else() {
    for (name, killed, damage) in DAMAGES {
        let home = home();
        let mut agent = agent_with(&home, 20_000);
        if killed {
            agent.kill();
        } else {
            assert!(agent.stop().success());
            let pages = std::fs::metadata(home.path("data/journal.db")).unwrap().len() / 4096;
            assert!(pages >= 500, "{pages} pages");
        }
        damage(&home.path("data"));
        destination_up(&home);

        let begun = Instant::now();
        let mut agent = home.start(&["run"]);
        add_lines(&home, 20_000, 21_000);
        wait_for_status(&home, "the start", |_| true);
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
        wait_for("the new records", LONG, || {
            let status = home.status()?;
            let done = status["lanes"][0]["queued"] == 0 && status["sources"][0]["head"] != 0;
            (done && delivered(&home).contains(&20_999)).then_some(())
        });
        let status = home.status().unwrap();
        let found = delivered(&home);
        let set: BTreeSet<_> = found.iter().copied().collect();
        assert!((20_000..21_000).all(|number| set.contains(&number)), "{name}");
        let missing = 21_000 - set.len() as u64;
        let lost = status["lanes"][0]["lost"].as_u64().unwrap();
        assert!(missing <= lost, "{name}: {missing} are missing, {lost} counted: {status}");
        let report = kept(&home);
        eprintln!(
            "{name}: {missing} missing, {lost} lost, {} twice, {}",
            found.len() - set.len(),
            report.as_ref().map_or("not salvaged".to_owned(), |(r, _)| r["cause"].to_string())
        );
        match name {
            "ones in page N/2" | "two pages swapped" => {
                let (report, _) = report.unwrap();
                // A page of a chunk costs that chunk, of some 1200 records.
                let unreadable = report["unreadable"].as_u64().unwrap();
                assert!((1..=2).contains(&unreadable), "{report}");
                assert!(lost <= 1300 * unreadable, "{name}: {lost}");
            }
            "no header" => assert_eq!((missing, lost), (0, 0), "{:?}", report.unwrap()),
            "cut at 60 %" => assert!(report.is_some() && lost > 0),
            _ => assert_eq!((missing, lost), (0, 0), "{name}"),
        }
        let begun = Instant::now();
        assert!(agent.stop().success(), "{name}: {}", home.log());
        assert!(begun.elapsed() < Duration::from_secs(15), "{name}: SIGTERM is obeyed");
        assert!(!home.log().contains("panicked"), "{}", home.log());
    }
}

fn stdout(home: &Home, arguments: &[&str]) -> String {
    let output = home.output(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn json(home: &Home, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&stdout(home, arguments)).unwrap()
}

/// Asks everything that can be asked of a journal with 500 lines in one sealed batch.
fn look(home: &Home, running: bool) {
    let info = json(home, &["journal", "info", "--json"]);
    assert_eq!(info["running_pid"].is_u64(), running, "{info}");
    assert_eq!(info["streams"][0]["head"], 500, "{info}");
    let lane = &info["lanes"][0];
    assert_eq!((&lane["queued"], &lane["batches"]), (&500.into(), &1.into()), "{info}");
    assert!(lane["queued_bytes"].as_u64().unwrap() > 10_000 && lane["oldest_at"].is_string());
    assert!(stdout(home, &["journal", "info"]).contains("gw/in/p/out"));
    let verified = json(home, &["journal", "verify", "--json"]);
    assert_eq!(
        (&verified["records"], &verified["batches"]),
        (&500.into(), &1.into()),
        "{verified}"
    );
    assert_eq!(verified["structure_checked"], !running, "{verified}");
    let all = stdout(home, &["journal", "export", "--stream", "in"]);
    let payloads: Vec<_> = all
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|record| record["payload"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(payloads, (0..500).map(line).collect::<Vec<_>>());
    let some = stdout(home, &["journal", "export", "--from", "11", "--to", "12"]);
    assert_eq!(some.lines().count(), 2, "{some}");
    let later = ["journal", "export", "--since", "2199-01-01T00:00:00Z"];
    assert_eq!(stdout(home, &later), "");
    let unacked = ["journal", "export", "--unacked", "--lane", "gw/in/p/out"];
    let unacked = stdout(home, &unacked);
    assert_eq!(unacked.lines().count(), 500);
    let first: serde_json::Value = serde_json::from_str(unacked.lines().next().unwrap()).unwrap();
    let is_named = |key: &str, end: &str| {
        let text = first[key].as_str().unwrap();
        text.starts_with("gw/in/p/out/") && text.ends_with(end)
    };
    assert!(is_named("id", "/1") && is_named("batch", "/b1"), "{first}");
    let refused = home.output(&["journal", "export", "--lane", "none"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("it has gw/in/p/out"));
}

#[test]
fn the_journal_is_looked_into_beside_a_running_agent_and_on_a_stopped_one() {
    let home = home();
    let mut agent = agent_with(&home, 500);
    wait_for_status(&home, "a sealed batch", |s| s["lanes"][0]["batches_sealed"] == 1);
    look(&home, true);
    let refused = home.output(&["journal", "salvage"]);
    assert_eq!(refused.status.code(), Some(74), "{refused:?}");
    assert!(agent.stop().success());
    let untouched = |what: &dyn Fn()| {
        let data = home.path("data");
        let all = || -> Vec<_> {
            let names = files_below(&data).into_iter().filter(|name| !name.ends_with("admin.sock"));
            // SQLite's index of the WAL is made anew by whoever opens it first.
            let content = |name: &Path| {
                let is_index = name.ends_with("journal.db-shm");
                if is_index { Vec::new() } else { std::fs::read(data.join(name)).unwrap() }
            };
            names.map(|name| (content(&name), name)).collect()
        };
        let before = all();
        what();
        assert!(before == all(), "looking changed the files");
    };
    untouched(&|| look(&home, false));
    let mut agent = home.start(&["run"]);
    wait_for_status(&home, "the agent", |s| s["lanes"][0]["batches_sealed"] == 1);
    agent.kill();
    // What a killed agent left stays as it is too.
    untouched(&|| look(&home, false));
    let tried = json(&home, &["journal", "salvage", "--dry-run", "--json"]);
    assert_eq!((&tried["records"], &tried["batches"]), (&500.into(), &1.into()), "{tried}");
    assert!(kept(&home).is_none());
    let done = json(&home, &["journal", "salvage", "--json"]);
    assert_eq!((&done["records"], &done["lost_records"]), (&500.into(), &0.into()), "{done}");
    assert!(kept(&home).is_some());
    change(&home.path("data/journal.db"), |bytes| {
        let at = memchr::memmem::find(bytes, b"WAYS\x01\x01").unwrap();
        bytes[at + 200] ^= 1;
    });
    let found = home.output(&["journal", "verify"]);
    assert_eq!(found.status.code(), Some(1));
    let said = String::from_utf8(found.stdout).unwrap();
    assert!(said.contains("WRONG") && said.contains("checksum"), "{said}");
    let partly = home.output(&["journal", "export"]);
    assert_eq!(partly.status.code(), Some(1), "{partly:?}");
}
