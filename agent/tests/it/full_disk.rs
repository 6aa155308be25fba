//! A data directory on a volume without a byte left, and starts with a journal that holds nothing.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::support::agent::{Agent, Home, files_below};
use super::support::{LONG, plugin, seed, size, wait_for};

/// A small file system of its own. Dropping it unmounts it.
struct Volume<'h>(&'h Path);

impl<'h> Volume<'h> {
    /// `None`, and said so, where mounting is not allowed.
    fn mount(at: &'h Path, size: &str) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(at)
            .status()
            .is_ok_and(|status| status.success());
        if !mounted {
            eprintln!("SKIPPED: a tmpfs cannot be mounted here, which takes root");
            return None;
        }
        Some(Self(at))
    }

    fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(self.0).unwrap();
        found.f_bavail * found.f_frsize
    }

    /// Takes every byte, also those that come free until the given value is dropped: as a log file does that filled the volume.
    fn keep_full(&self) -> Filler {
        self.fill();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let path = self.0.join("filler");
        let thread = std::thread::spawn(move || {
            let mut file = std::fs::File::options().append(true).open(path).unwrap();
            let pause = Duration::from_micros(500);
            while stopped.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                for size in [64 * 1024, 4096] {
                    while file.write(&vec![1; size]).is_ok_and(|written| written > 0) {}
                }
            }
        });
        Filler(Some((stop, thread)))
    }

    /// Takes the last byte.
    fn fill(&self) {
        let mut file =
            std::fs::File::options().append(true).create(true).open(self.0.join("filler")).unwrap();
        for size in [64 * 1024, 4096, 1] {
            while file.write(&vec![1; size]).is_ok_and(|written| written > 0) {}
        }
        assert_eq!(self.free(), 0);
    }

    fn unfill(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

/// Ends with this value.
struct Filler(Option<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)>);

impl Drop for Filler {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // Its panic would be one of the test's own making.
            drop(thread.join());
        }
    }
}

impl Drop for Volume<'_> {
    fn drop(&mut self) {
        // The agent that had it open was dropped before.
        drop(Command::new("umount").arg("-l").arg(self.0).status());
    }
}

/// Lines of 1 KiB that do not compress, each beginning with its number.
fn lines(from: u64, to: u64, random: &mut fastrand::Rng) -> String {
    let mut text = String::new();
    for number in from..to {
        text.push_str(&format!("{number:08} "));
        text.extend((0..1014).map(|_| random.alphanumeric()));
        text.push('\n');
    }
    text
}

fn numbers(out: &Path) -> Vec<u64> {
    let files = files_below(out);
    let finished = files.iter().filter(|name| !name.to_str().unwrap().contains(".part"));
    let mut numbers = Vec::new();
    for name in finished {
        let text = std::fs::read_to_string(out.join(name)).unwrap();
        numbers.extend(text.lines().map(|line| line[..8].parse::<u64>().unwrap()));
    }
    numbers
}

fn two_lanes() -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [journal]
        max_bytes = "1GiB"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in/*"]
        [transforms.keep]
        plugin = "{}"
        tick = "100ms"
        config = {{ do = "drop", on = "nothing has this", tick = "store" }}
        [sinks.plain]
        type = "file"
        root = "{{dir}}/plain"
        root_must_exist = true
        batch = {{ linger = "100ms" }}
        retry = {{ backoff = "50ms", backoff_max = "200ms" }}
        [sinks.through]
        type = "file"
        root = "{{dir}}/through"
        root_must_exist = true
        batch = {{ linger = "100ms" }}
        retry = {{ backoff = "50ms", backoff_max = "200ms" }}
        [pipelines.a]
        sources = ["in"]
        sinks = ["plain"]
        [pipelines.b]
        sources = ["in"]
        transforms = ["keep"]
        sinks = ["through"]
        "#,
        plugin("test-guests").display()
    )
}

fn trouble(home: &Home) -> Option<String> {
    let status = home.status()?;
    Some(status["journal"]["trouble"]["reason"].as_str()?.to_owned())
}

fn wait_until_full(home: &Home) -> String {
    wait_for("a full journal", LONG, || trouble(home).filter(|reason| reason.starts_with("full")))
}

/// Both destinations have the lines up to `count`, in order and each once.
fn wait_for_lines(home: &Home, count: u64) {
    let expected: Vec<u64> = (0..count).collect();
    for sink in ["plain", "through"] {
        let out = home.path(sink);
        let bound = Duration::from_secs(60);
        let begun = std::time::Instant::now();
        let mut found = numbers(&out);
        while found.len() < expected.len() {
            assert!(
                begun.elapsed() < bound,
                "{sink}: {} of {count} lines\n{:#}\n{}",
                found.len(),
                home.status().unwrap_or_default(),
                home.log()
            );
            std::thread::sleep(Duration::from_millis(50));
            found = numbers(&out);
        }
        assert!(found == expected, "{sink}: {} lines of {count}", found.len());
    }
}

fn start(home: &Home) -> Agent {
    home.start(&["run"])
}

/// Volumes that are filled one after the other: what takes every byte begins at another moment each time.
const VOLUMES: usize = 1;

#[test]
fn d_05_a_full_volume_is_drained_with_no_byte_free_and_ingest_resumes() {
    let mut random = fastrand::Rng::with_seed(seed());
    for _ in 0..size("WAYSTATION_TEST_FULL_VOLUMES", VOLUMES) {
        drain_a_full_volume(&mut random);
    }
}

fn drain_a_full_volume(random: &mut fastrand::Rng) {
    let home = Home::new(&two_lanes());
    let data = home.path("data");
    let Some(volume) = Volume::mount(&data, "16m") else { return };
    // Something else on the volume, so that it is full long before the journal's own limit.
    std::fs::write(data.join("other"), vec![1; 5 << 20]).unwrap();
    std::fs::create_dir_all(home.path("in")).unwrap();
    let file = home.path("in/a");
    std::fs::write(&file, lines(0, 14_000, random)).unwrap();
    let mut agent = start(&home);
    let reason = wait_until_full(&home);
    assert!(reason.contains("the volume of"), "{reason}");
    let filler = volume.keep_full();
    // For a while nothing happens, and nothing is said twice.
    std::thread::sleep(Duration::from_secs(2));
    assert!(agent.ended().is_none(), "{}", home.log());
    assert_eq!(home.log().matches("Journal is full").count(), 1, "{}", home.log());
    let ready = home.status().unwrap();
    assert_eq!(ready["ready"], false);
    assert!(ready["not_ready"].to_string().contains("journal: full"), "{ready}");
    // The destinations come back, the volume stays full.
    for sink in ["plain", "through"] {
        std::fs::create_dir(home.path(sink)).unwrap();
    }
    wait_for_lines(&home, 14_000);
    assert_eq!(volume.free(), 0);
    drop(filler);
    // There is room again: the reserve too, without anybody's doing.
    volume.unfill();
    wait_for("room", LONG, || trouble(&home).is_none().then_some(()));
    let more = lines(14_000, 15_000, random);
    std::fs::File::options().append(true).open(&file).unwrap().write_all(more.as_bytes()).unwrap();
    wait_for_lines(&home, 15_000);
    wait_for("the ballast", LONG, || {
        let ballast = std::fs::metadata(data.join("journal.ballast")).ok()?;
        (ballast.len() == 2 << 20).then_some(())
    });
    assert_eq!(home.log().matches("commit failed").count(), 0, "{}", home.log());
    assert!(agent.stop().success());
    let database = rusqlite::Connection::open(data.join("journal.db")).unwrap();
    let text = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
    assert_eq!(database.query_row("PRAGMA integrity_check", [], text).unwrap(), "ok");
    // Rows of acked batches stay a while, and their lane names them.
    let waiting = "batches WHERE lane NOT IN (SELECT number FROM lanes WHERE acked <> x'')";
    for table in [waiting, "batch_parts"] {
        let query = format!("SELECT count(*) FROM {table}");
        let rows: i64 = database.query_row(&query, [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    drop(database);
}

#[test]
fn where_there_is_room_records_are_taken_also_without_the_reserve() {
    let home = Home::new(&two_lanes().replace("root_must_exist = true", ""));
    // In its place, so that it cannot be made.
    std::fs::create_dir_all(home.path("data/journal.ballast")).unwrap();
    std::fs::create_dir_all(home.path("in")).unwrap();
    let text = lines(0, 5_000, &mut fastrand::Rng::with_seed(seed()));
    std::fs::write(home.path("in/a"), text).unwrap();
    let mut agent = start(&home);
    wait_for_lines(&home, 5_000);
    assert!(agent.stop().success());
    assert!(home.log().contains("Ballast cannot be made"), "{}", home.log());
    assert!(!home.log().contains("commit failed"), "{}", home.log());
}

#[test]
fn d_05_an_agent_starts_on_a_volume_without_a_byte_and_empties_its_journal() {
    for stops in [false, true] {
        let mut random = fastrand::Rng::with_seed(seed());
        let home = Home::new(&two_lanes());
        let data = home.path("data");
        let Some(volume) = Volume::mount(&data, "16m") else { return };
        std::fs::create_dir_all(home.path("in")).unwrap();
        std::fs::write(home.path("in/a"), lines(0, 12_000, &mut random)).unwrap();
        let mut agent = start(&home);
        wait_until_full(&home);
        if stops {
            assert!(agent.stop().success());
        } else {
            agent.kill();
        }
        volume.fill();
        let mut agent = start(&home);
        wait_until_full(&home);
        // What a start frees is the agent's by then: nobody else gets a byte that it needs.
        let _filler = volume.keep_full();
        for sink in ["plain", "through"] {
            std::fs::create_dir(home.path(sink)).unwrap();
        }
        wait_for_lines(&home, 12_000);
        assert!(agent.stop().success());
    }
}

/// Both lanes hold the lines up to `count`.
fn wait_until_queued(home: &Home, agent: &mut Agent, count: u64) {
    wait_for("the backlog", LONG, || {
        assert!(agent.ended().is_none(), "{}", home.log());
        let status = home.status()?;
        let queued = |lane: &serde_json::Value| lane["queued"] == count;
        let lanes = status["lanes"].as_array()?;
        (lanes.len() == 2 && lanes.iter().all(queued)).then_some(())
    });
}

fn make_sinks(home: &Home) {
    for sink in ["plain", "through"] {
        std::fs::create_dir(home.path(sink)).unwrap();
    }
}

#[test]
fn a_damaged_journal_on_a_full_volume_waits_unaltered_and_is_salvaged_when_there_is_room() {
    let mut random = fastrand::Rng::with_seed(seed());
    let home = Home::new(&two_lanes());
    let data = home.path("data");
    let Some(volume) = Volume::mount(&data, "16m") else { return };
    std::fs::create_dir_all(home.path("in")).unwrap();
    std::fs::write(home.path("in/a"), lines(0, 3_000, &mut random)).unwrap();
    let mut agent = start(&home);
    wait_until_queued(&home, &mut agent, 3_000);
    assert!(agent.stop().success());
    // Without its first page SQLite reads nothing of it; every record is in the others.
    let path = data.join("journal.db");
    let mut damaged = std::fs::read(&path).unwrap();
    damaged[..100].fill(0);
    std::fs::write(&path, &damaged).unwrap();
    volume.fill();
    for stops in [true, false] {
        let mut agent = start(&home);
        let said = "no room for what is good of it";
        let times = 1 + usize::from(!stops);
        wait_for("what is missing", LONG, || {
            assert!(agent.ended().is_none(), "{}", home.log());
            (home.log().matches(said).count() >= times).then_some(())
        });
        // It is said once, however often it is tried.
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(home.log().matches(said).count(), times, "{}", home.log());
        assert!(home.log().contains("journal.db is damaged, and its volume has"), "{}", home.log());
        assert!(std::fs::read(&path).unwrap() == damaged, "the damaged file was altered");
        assert!(!data.join("journal.salvaging.db").exists());
        if stops {
            assert!(agent.stop().success());
            let once = home.output(&["run", "--once"]);
            assert_eq!(once.status.code(), Some(1), "{once:?}");
            continue;
        }
        make_sinks(&home);
        volume.unfill();
        wait_for_lines(&home, 3_000);
        assert!(agent.stop().success());
    }
    let kept = files_below(&data);
    let kept = kept.iter().find(|name| {
        let name = name.to_str().unwrap();
        name.starts_with("journal.corrupt-") && name.ends_with("/journal.db")
    });
    assert!(std::fs::read(data.join(kept.unwrap())).unwrap() == damaged);
}

#[test]
fn d_09_an_emptied_journal_sends_nothing_again_over_restarts_and_kills() {
    for (count, rejects) in [(100, false), (1, false), (100, true)] {
        let guest = plugin("test-guests");
        // The last record becomes a dead letter, or nothing does.
        let on = if rejects { "00000099" } else { "nothing has this" };
        let home = Home::new(&format!(
            r#"
            [agent]
            id = "gw"
            data_dir = "{{dir}}/data"
            [sources.in]
            type = "file"
            paths = ["{{dir}}/in/*"]
            [transforms.t]
            plugin = "{}"
            config = {{ do = "reject", on = "{on} " }}
            [sinks.out]
            type = "file"
            root = "{{dir}}/out"
            batch = {{ linger = "10ms" }}
            [pipelines.p]
            sources = ["in"]
            transforms = ["t"]
            sinks = ["out"]
            "#,
            guest.display()
        ));
        std::fs::create_dir_all(home.path("in")).unwrap();
        let text = lines(0, count, &mut fastrand::Rng::with_seed(count));
        std::fs::write(home.path("in/a"), text).unwrap();
        let done = |agent: &mut Agent, log: &Home| {
            wait_for("an empty journal", LONG, || {
                assert!(agent.ended().is_none(), "{}", log.log());
                let status = log.status()?;
                let lane = &status["lanes"][0];
                (lane["accepted"] == count && lane["queued"] == 0).then_some(status)
            })
        };
        let mut agent = start(&home);
        done(&mut agent, &home);
        assert!(agent.stop().success());
        let files = |home: &Home| -> Vec<_> {
            let out = home.path("out");
            let names = files_below(&out).into_iter();
            names.map(|name| (name.clone(), std::fs::read(out.join(name)).unwrap())).collect()
        };
        let before = files(&home);
        let delivered = numbers(&home.path("out")).len() as u64;
        assert_eq!(delivered, count - u64::from(rejects));
        for round in 0..10 {
            let mut agent = start(&home);
            let status = done(&mut agent, &home);
            assert_eq!(status["lanes"][0]["records_already"], 0, "round {round}: sent again");
            assert_eq!(status["lanes"][0]["bytes_delivered"], 0, "round {round}: sent again");
            if round % 2 == 0 {
                assert!(agent.stop().success());
            } else {
                agent.kill();
            }
            assert!(files(&home) == before, "round {round}");
        }
        let letters: i64 = rusqlite::Connection::open(home.path("data/journal.db"))
            .unwrap()
            .query_row("SELECT count(*) FROM dead_letters", [], |row| row.get(0))
            .unwrap();
        assert_eq!(letters, i64::from(rejects));
    }
}
