//! Power cuts of the whole agent: its directories as a disk may hold them, rebuilt from a trace of its system calls.
//!
//! What was synced is there; what was written since may be there or not; names come and go in order within a folder, and
//! are durable with a sync of that folder. From every such image the agent goes on, and every line arrives once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::support::agent::{Home, files_below};
use super::support::{seed, size};

const RECORDS: u64 = 2_000;

fn config(input: &Path, root: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{root}/data"

        [sources.lines]
        type = "file"
        paths = ["{}"]

        [sinks.archive]
        type = "file"
        root = "{root}/out"
        batch = {{ records_max = 400, bytes_max = "8MiB", linger = "30s" }}

        [pipelines.all]
        sources = ["lines"]
        sinks = ["archive"]
        "#,
        input.display()
    )
}

/// What the agent did to its files.
#[derive(Debug, Clone)]
enum Event {
    Folder(PathBuf),
    Create(PathBuf),
    Write { path: PathBuf, offset: Option<usize>, bytes: Vec<u8> },
    Truncate { path: PathBuf, length: usize },
    Rename { from: PathBuf, to: PathBuf },
    Remove(PathBuf),
    Sync { path: PathBuf, data_only: bool },
}

/// Runs `run --once` under strace and reads what it did below the home.
fn trace(home: &Home) -> Vec<Event> {
    let file = home.path("trace");
    let agent = home.command(&["run", "--once", "--timeout", "2m"]);
    let calls = "trace=openat,openat2,mkdir,mkdirat,write,writev,pwrite64,ftruncate,rename,renameat,\
                 renameat2,link,linkat,unlink,unlinkat,fsync,fdatasync";
    let output = Command::new("strace")
        .args(["-f", "-y", "-xx", "-s", "20000000", "-e", calls, "-o"])
        .arg(&file)
        .arg(agent.get_program())
        .args(agent.get_args())
        .env_clear()
        .current_dir("/")
        .output()
        .expect("strace is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(file).unwrap();
    let mut begun: BTreeMap<&str, String> = BTreeMap::new();
    let mut events = Vec::new();
    for line in text.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        let whole = if let Some(begin) = call.strip_suffix("<unfinished ...>") {
            begun.insert(thread, begin.to_owned());
            continue;
        } else if let Some((_, rest)) = call.split_once(" resumed>") {
            begun.remove(thread).unwrap_or_default() + rest
        } else {
            call.to_owned()
        };
        events.extend(event(&whole));
    }
    let below = |path: &Path| path.starts_with(home.path("")) && !path.ends_with("journal.db-shm");
    events.retain(|event| match event {
        Event::Folder(path) | Event::Create(path) | Event::Remove(path) => below(path),
        Event::Write { path, .. } | Event::Truncate { path, .. } | Event::Sync { path, .. } => {
            below(path)
        }
        Event::Rename { from, .. } => below(from),
    });
    events
}

/// Bytes of `\x61\x62…`.
fn unescape(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|byte| u8::from_str_radix(&byte[..2], 16).unwrap()).collect()
}

fn path_of(text: &str) -> PathBuf {
    String::from_utf8(unescape(text)).unwrap().into()
}

/// All `"…"` and all `<…>` of a call, in order.
fn parts(call: &str) -> (Vec<&str>, Vec<&str>) {
    let quoted = call.split('"').skip(1).step_by(2).collect();
    let paths = call.split('<').skip(1).filter_map(|rest| Some(rest.split_once('>')?.0)).collect();
    (quoted, paths)
}

fn event(call: &str) -> Option<Event> {
    let (name, rest) = call.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    if result.starts_with('-') {
        return None;
    }
    let (quoted, paths) = parts(arguments);
    // A name is meant from the folder of its descriptor; one that is absolute stands for itself.
    let at = |number: usize| -> Option<PathBuf> {
        let name = path_of(quoted.get(number)?);
        Some(match paths.get(number) {
            Some(folder) => path_of(folder).join(name),
            None => name,
        })
    };
    let last_number = || arguments.trim_end_matches([')', ' ']).rsplit(", ").next()?.parse().ok();
    Some(match name {
        "openat" | "openat2" if arguments.contains("O_CREAT") => {
            let path = path_of(result.split_once('<')?.1.strip_suffix('>')?);
            Event::Create(path)
        }
        "mkdir" | "mkdirat" => Event::Folder(at(0)?),
        "write" | "pwrite64" => Event::Write {
            path: path_of(paths.first()?),
            offset: if name == "pwrite64" { Some(last_number()?) } else { None },
            bytes: unescape(quoted.first()?),
        },
        "ftruncate" => Event::Truncate { path: path_of(paths.first()?), length: last_number()? },
        "rename" | "renameat" | "renameat2" => Event::Rename { from: at(0)?, to: at(1)? },
        "unlink" | "unlinkat" => Event::Remove(at(0)?),
        "fsync" | "fdatasync" => {
            Event::Sync { path: path_of(paths.first()?), data_only: name == "fdatasync" }
        }
        "link" | "linkat" | "writev" => panic!("not known to this test: {name}"),
        _ => return None,
    })
}

#[derive(Default)]
struct File {
    durable: Vec<u8>,
    seen: Vec<u8>,
    pending: Vec<Event>,
}

/// Names of one folder: what is durable, and what has changed since.
#[derive(Default)]
struct Disk {
    files: Vec<File>,
    names: BTreeMap<PathBuf, usize>,
    durable: BTreeMap<PathBuf, usize>,
    changes: Vec<(PathBuf, Event, usize)>,
}

/// Stands for a folder among the files.
const FOLDER: usize = usize::MAX;

fn apply(content: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Truncate { length, .. } => content.resize(*length, 0),
        Event::Write { offset, bytes, .. } => {
            let begin = offset.unwrap_or(content.len());
            content.resize(content.len().max(begin + bytes.len()), 0);
            content[begin..begin + bytes.len()].copy_from_slice(bytes);
        }
        _ => {}
    }
}

impl Disk {
    fn change_names(names: &mut BTreeMap<PathBuf, usize>, event: &Event, file: usize) {
        match event {
            Event::Folder(path) | Event::Create(path) => drop(names.insert(path.clone(), file)),
            Event::Remove(path) => drop(names.remove(path)),
            Event::Rename { from, to } => {
                names.remove(from);
                names.insert(to.clone(), file);
            }
            _ => {}
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Create(path) if self.names.contains_key(path) => {}
            Event::Folder(path) | Event::Create(path) => {
                let file =
                    if matches!(event, Event::Folder(_)) { FOLDER } else { self.files.len() };
                if file != FOLDER {
                    self.files.push(File::default());
                }
                self.name(path.clone(), event, file);
            }
            Event::Remove(path) | Event::Rename { from: path, .. } => {
                if let Some(file) = self.names.get(path).copied() {
                    self.name(path.clone(), event, file);
                }
            }
            Event::Write { path, .. } | Event::Truncate { path, .. } => {
                let Some(file) = self.names.get(path).copied() else { return };
                let file = &mut self.files[file];
                // One that appends writes where the file ends now.
                let mut event = event.clone();
                if let Event::Write { offset: offset @ None, .. } = &mut event {
                    *offset = Some(file.seen.len());
                }
                apply(&mut file.seen, &event);
                file.pending.push(event);
            }
            Event::Sync { path, .. } => {
                if let Some(file) = self.names.get(path).copied().filter(|file| *file != FOLDER) {
                    let File { durable, pending, .. } = &mut self.files[file];
                    pending.drain(..).for_each(|event| apply(durable, &event));
                } else {
                    let changes = std::mem::take(&mut self.changes);
                    for (changed, event, file) in changes {
                        if changed.parent() == Some(path) {
                            Self::change_names(&mut self.durable, &event, file);
                        } else {
                            self.changes.push((changed, event, file));
                        }
                    }
                }
            }
        }
    }

    fn name(&mut self, path: PathBuf, event: &Event, file: usize) {
        Self::change_names(&mut self.names, event, file);
        self.changes.push((path, event.clone(), file));
    }

    /// Writes an image below `to` for what lay below `from`; the power is gone.
    fn write(mut self, from: &Path, to: &Path, random: &mut fastrand::Rng) {
        let mut stuck = BTreeSet::new();
        for (path, event, file) in std::mem::take(&mut self.changes) {
            let folder = path.parent().unwrap().to_owned();
            if stuck.contains(&folder) || random.u8(0..3) == 0 {
                stuck.insert(folder);
            } else {
                Self::change_names(&mut self.durable, &event, file);
            }
        }
        for (path, file) in &self.durable {
            let Ok(below) = path.strip_prefix(from) else { continue };
            let target = to.join(below);
            // What lies in a folder whose own name is lost is lost.
            if !target.parent().unwrap().is_dir() {
                continue;
            }
            if *file == FOLDER {
                std::fs::create_dir(target).unwrap();
                continue;
            }
            let File { durable, pending, .. } = &mut self.files[*file];
            for event in pending.drain(..) {
                if random.bool() {
                    apply(durable, &event);
                }
            }
            std::fs::write(target, durable).unwrap();
        }
    }
}

/// All lines below `out` under final names, in the order of the names; every file must be whole.
fn delivered(out: &Path) -> Vec<u64> {
    let mut lines = Vec::new();
    for name in files_below(out) {
        if name.file_name().unwrap().to_str().unwrap().starts_with('.') {
            continue;
        }
        let content = std::fs::read_to_string(out.join(&name)).unwrap();
        let numbers: Vec<u64> = content.lines().map(|line| line.parse().unwrap()).collect();
        // The name ends in the range that the file holds.
        let stem = name.file_name().unwrap().to_str().unwrap().split('.').next().unwrap();
        let mut ends = stem.rsplit('-');
        let (last, first): (u64, u64) =
            (ends.next().unwrap().parse().unwrap(), ends.next().unwrap().parse().unwrap());
        assert_eq!(numbers, (first..=last).collect::<Vec<_>>(), "{}", name.display());
        lines.extend(numbers);
    }
    lines.sort_unstable();
    lines
}

#[test]
fn from_every_power_cut_each_line_arrives_whole_and_once() {
    let images = size("WAYSTATION_TEST_AGENT_IMAGES", 30);
    let mut random = fastrand::Rng::with_seed(seed());
    let input = tempfile::tempdir().unwrap();
    let file = input.path().join("lines");
    std::fs::write(&file, (1..=RECORDS).map(|n| format!("{n}\n")).collect::<String>()).unwrap();
    let home = Home::new(&config(&file, "{dir}"));
    let events = trace(&home);
    let all: Vec<u64> = (1..=RECORDS).collect();
    assert_eq!(delivered(&home.path("out")), all);
    for image in 0..images {
        let cut = random.usize(..=events.len());
        let mut disk = Disk::default();
        events[..cut].iter().for_each(|event| disk.happen(event));
        let copy = Home::new(&config(&file, "{dir}"));
        disk.write(&home.path(""), &copy.path(""), &mut random);
        let before = delivered(&copy.path("out"));
        copy.run_once();
        let after = delivered(&copy.path("out"));
        assert!(after == all, "image {image}, cut {cut}: {before:?} before, then {after:?}");
    }
    eprintln!("{images} images of {} events", events.len());
}

#[test]
fn in_steady_state_a_commit_is_one_fdatasync_of_the_wal() {
    let input = tempfile::tempdir().unwrap();
    let file = input.path().join("lines");
    std::fs::write(&file, (1..=RECORDS).map(|n| format!("{n}\n")).collect::<String>()).unwrap();
    let home = Home::new(&config(&file, "{dir}"));
    let events = trace(&home);
    let wal = home.path("data/journal.db-wal");
    // The ballast is made once, whenever there is time; the copy of the config too, with its folder.
    let once =
        ["data/journal.ballast", "data/adopted.json.part", "data"].map(|path| home.path(path));
    let syncs: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Sync { path, data_only } if path.starts_with(home.path("data")) => {
                Some((path.clone(), *data_only))
            }
            _ => None,
        })
        .collect();
    // Extending the WAL is the end of opening; closing checkpoints into the database.
    let opened = syncs.iter().position(|sync| *sync == (wal.clone(), false)).unwrap();
    let closing = syncs.iter().rposition(|(path, _)| *path == wal).unwrap();
    let steady = &syncs[opened + 1..=closing];
    for path in &once {
        let times = steady.iter().filter(|(synced, _)| synced == path).count();
        assert!(times <= 1, "{}: {steady:?}", path.display());
    }
    let steady: Vec<_> = steady.iter().filter(|(path, _)| !once.contains(path)).collect();
    assert!(steady.len() >= 5, "{syncs:?}");
    assert!(steady.iter().all(|sync| **sync == (wal.clone(), true)), "{steady:?}");
}
