//! The journald source of the real binary, on real files: what is there after kills, and what becomes of the child.

use std::time::Duration;

use super::sockets::{config, delivered, settle, texts};
use super::support::agent::{Agent, Home};
use super::support::journald::Journald;
use super::support::{LONG, seed, size, wait_for};

fn journald(keys: &str) -> String {
    config(&format!("type = \"journald\"\ndirectory = \"{{dir}}/journald\"\n{keys}"), "")
}

fn head(home: &Home) -> u64 {
    let status = home.status();
    status.and_then(|status| status["sources"][0]["head"].as_u64()).unwrap_or_default()
}

/// The processes that an agent has started.
fn children(agent: &Agent) -> Vec<u32> {
    let path = format!("/proc/{0}/task", agent.pid());
    let tasks = std::fs::read_dir(path).unwrap();
    let lists = tasks
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok());
    lists
        .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

fn lives(pid: u32) -> bool {
    // One that has ended and was not waited for has no command line.
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Entries come all the time, and the agent is killed again and again: each is there once, in order.
#[test]
fn each_entry_is_there_once_whatever_is_killed() {
    let kills = size("WAYSTATION_TEST_KILLS", 20).min(100);
    let mut random = fastrand::Rng::with_seed(seed());
    let home = Home::new(&journald(""));
    std::fs::create_dir(home.path("journald")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut writer = Journald::write(&home.path("journald"), "system", 0);
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                for _ in 0..20 {
                    writer.message(&format!("{number:0>200}"));
                    number += 1;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            writer.end();
            number
        });
        let mut orphans = Vec::new();
        for _ in 0..kills {
            let mut agent = home.start(&["run"]);
            let before = head(&home);
            wait_for("entries", LONG, || (head(&home) > before).then_some(()));
            std::thread::sleep(Duration::from_millis(random.u64(0..150)));
            orphans.extend(children(&agent));
            agent.kill();
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        // They find their output closed.
        wait_for("the children of the killed agents to end", LONG, || {
            orphans.iter().all(|pid| !lives(*pid)).then_some(())
        });
        writer.join().unwrap()
    });
    let agent = home.start(&["run"]);
    wait_for("the rest", LONG, || (head(&home) == written).then_some(()));
    let child = children(&agent);
    assert_eq!(child.len(), 1);
    settle(&home, agent);
    assert!(!lives(child[0]));
    let found = texts(&home);
    assert_eq!(found.len() as u64, written);
    for (line, number) in found.iter().zip(0..) {
        assert_eq!(*line, format!("{number:0>200}"));
    }
    eprintln!("{kills} kills, {written} entries: each once");
}

/// The child is killed instead: the source says so for a moment, and goes on.
#[test]
fn a_child_that_is_killed_is_started_again_and_nothing_is_missing_or_twice() {
    let home = Home::new(&journald("units = [\"a.service\"]"));
    std::fs::create_dir(home.path("journald")).unwrap();
    let mut writer = Journald::write(&home.path("journald"), "system", 0);
    let agent = home.start(&["run"]);
    for round in 1..=5_u64 {
        for unit in ["a.service", "b.service"] {
            let message = format!("{round} {unit}");
            let fields = [("MESSAGE", message.as_bytes()), ("_SYSTEMD_UNIT", unit.as_bytes())];
            writer.entry(0, &fields);
        }
        wait_for("the entry", LONG, || (head(&home) == round).then_some(()));
        for pid in children(&agent) {
            let pid = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
    }
    wait_for("the log", LONG, || {
        home.log().contains("journalctl has ended (signal: 9 (SIGKILL))").then_some(())
    });
    settle(&home, agent);
    assert_eq!(texts(&home), (1..=5).map(|round| format!("{round} a.service")).collect::<Vec<_>>());
    let (_, headers) = &delivered(&home)[0];
    assert!(headers.to_string().contains("journald-unit"), "{headers}");
}
