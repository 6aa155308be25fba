//! Logs that are rotated in every way while the agent reads them, is killed and starts again.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::agent::{Home, files_below};
use super::support::{LONG, seed, size, wait_for};

/// Rotations of each log.
const ROTATIONS: usize = 20;
/// Kills of the agent meanwhile.
const KILLS: usize = 20;

fn config() -> Home {
    let home = Home::new(
        r#"
        [agent]
        id = "gw"
        data_dir = "{dir}/data"
        [sources.in]
        type = "file"
        paths = ["{dir}/log/a.log*"]
        [sinks.out]
        type = "file"
        root = "{dir}/out"
        batch = { linger = "50ms" }
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
    );
    std::fs::create_dir_all(home.path("log/d")).unwrap();
    home
}

/// Writes numbered lines through the path, opening it anew for each few, until it is told to stop.
fn write(path: &Path, stop: &AtomicBool) -> usize {
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        // A link that is being pointed elsewhere is always there.
        let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
        let lines: String = (next..next + 10).map(|n| format!("line {n} of the log\n")).collect();
        file.write_all(lines.as_bytes()).unwrap();
        next += 10;
        std::thread::sleep(Duration::from_millis(10));
    }
    next
}

fn shift(log: &Path, ending: &str) {
    let name = |n: usize| log.with_file_name(format!("a.log.{n}{ending}"));
    for n in (1..=ROTATIONS).rev().filter(|n| name(*n).exists()) {
        std::fs::rename(name(n), name(n + 1)).unwrap();
    }
}

fn copy_and_cut(log: &Path, _: usize) {
    shift(log, "");
    std::fs::copy(log, log.with_file_name("a.log.1")).unwrap();
    std::fs::File::options().write(true).open(log).unwrap().set_len(0).unwrap();
}

fn rename(log: &Path, _: usize) {
    shift(log, "");
    std::fs::rename(log, log.with_file_name("a.log.1")).unwrap();
}

fn rename_and_compress(log: &Path, _: usize) {
    shift(log, ".gz");
    let one = log.with_file_name("a.log.1");
    std::fs::rename(log, &one).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(Command::new("gzip").arg(one).status().unwrap().success());
}

fn point_elsewhere(log: &Path, n: usize) {
    let new = log.with_file_name("new");
    std::os::unix::fs::symlink(format!("d/{n}"), &new).unwrap();
    // The target is there before the link points to it.
    std::fs::File::options()
        .append(true)
        .create(true)
        .open(log.with_file_name(format!("d/{n}")))
        .unwrap();
    std::fs::rename(new, log).unwrap();
}

/// The numbers of the lines in a file, which may be an archive.
fn numbers(path: &Path) -> Vec<usize> {
    let bytes = std::fs::read(path).unwrap();
    let text = if bytes.starts_with(b"\x1f\x8b") {
        std::io::read_to_string(flate2::read::MultiGzDecoder::new(&bytes[..])).unwrap()
    } else {
        String::from_utf8(bytes).unwrap()
    };
    let number = |line: &str| {
        let number = line.strip_prefix("line ").and_then(|rest| rest.strip_suffix(" of the log"));
        number.unwrap_or_else(|| panic!("{line:?}")).parse().unwrap()
    };
    text.lines().map(number).collect()
}

fn all_numbers(folder: &Path) -> Vec<usize> {
    let mut names: Vec<PathBuf> = files_below(folder);
    names.retain(|name| !folder.join(name).is_symlink());
    names.iter().flat_map(|name| numbers(&folder.join(name))).collect()
}

/// Rotates a log under a writer and an agent that is killed again and again; then compares.
fn rotate(kind: &str, rotation: fn(&Path, usize), every: Duration) {
    let home = config();
    let log = home.path("log/a.log");
    if kind == "link" {
        rotation(&log, 0);
    }
    let kills = size("WAYSTATION_TEST_KILLS", KILLS);
    let mut random = fastrand::Rng::with_seed(seed());
    let (stop, stop_kills) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut killed = 0;
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&log, &stop));
        let rotator = scope.spawn(|| {
            wait_for("the log", LONG, || log.metadata().is_ok_and(|m| m.len() > 0).then_some(()));
            for n in 1..=ROTATIONS {
                std::thread::sleep(every);
                if kind == "link" {
                    // A target that nobody has seen behind the link is nobody's.
                    wait_for("the target to be seen", LONG, || {
                        let found: BTreeSet<_> = delivered(&home).into_iter().collect();
                        numbers(&log).iter().any(|n| found.contains(n)).then_some(())
                    });
                }
                rotation(&log, n);
            }
            stop_kills.store(true, Ordering::Relaxed);
        });
        while !stop_kills.load(Ordering::Relaxed) || killed < kills {
            let mut agent = home.start(&["run"]);
            std::thread::sleep(Duration::from_millis(random.u64(50..2500)));
            agent.kill();
            killed += 1;
        }
        rotator.join().unwrap();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });

    let in_files = all_numbers(&home.path("log"));
    let wanted: BTreeSet<_> = in_files.iter().copied().collect();
    assert_eq!(wanted.len(), in_files.len(), "the files have a line twice");
    let mut agent = home.start(&["run"]);
    wait_for("all lines", LONG, || {
        let found: BTreeSet<_> = delivered(&home).into_iter().collect();
        (wanted.is_subset(&found) || agent.ended().is_some()).then_some(())
    });
    // What would come twice would come now.
    std::thread::sleep(Duration::from_secs(4));
    assert!(agent.stop().success(), "{}", home.log());
    let mut found = delivered(&home);
    found.sort_unstable();
    let twice: Vec<_> = found.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
    let set: BTreeSet<_> = found.iter().copied().collect();
    let missing: Vec<_> = wanted.difference(&set).collect();
    eprintln!(
        "{kind}: {killed} kills, {written} lines written, {} in the files, {} delivered",
        wanted.len(),
        found.len()
    );
    let range = |numbers: &[usize]| format!("{:?} to {:?}", numbers.first(), numbers.last());
    assert!(
        twice.is_empty() && missing.is_empty(),
        "{} twice, {}; missing {missing:?}\n{}",
        twice.len(),
        range(&twice),
        home.log()
    );
    assert!(set.last() < Some(&written));
}

/// The lines that were delivered. Files that are being written are left out.
fn delivered(home: &Home) -> Vec<usize> {
    let out = home.path("out");
    let mut names = files_below(&out);
    names.retain(|name| !name.file_name().unwrap().to_str().unwrap().starts_with('.'));
    names.iter().flat_map(|name| numbers(&out.join(name))).collect()
}

#[test]
fn d_17_a_log_that_is_copied_and_cut_is_delivered_once_through_sigkill() {
    rotate("copy", copy_and_cut, Duration::from_millis(900));
}

#[test]
fn d_17_a_log_that_is_renamed_is_delivered_once_through_sigkill() {
    rotate("rename", rename, Duration::from_millis(700));
}

#[test]
fn d_17_a_log_that_is_renamed_and_compressed_is_delivered_once_through_sigkill() {
    rotate("compress", rename_and_compress, Duration::from_millis(400));
}

#[test]
fn d_17_a_link_that_is_pointed_elsewhere_is_delivered_once_through_sigkill() {
    rotate("link", point_elsewhere, Duration::from_millis(300));
}
