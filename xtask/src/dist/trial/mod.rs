//! `cargo xtask dist --test`: the package on a fresh Debian, from its installation to its purge.

mod calls;
mod machine;
mod service;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Package, deb, tree};
use crate::ui::{self, Step};
use crate::{install, process};
use machine::Machine;
use service::{Service, Unit};

/// Lines that wait for their destination while the package is upgraded, and lines that come while that goes on.
const LINES: usize = 2_000;
const LINES_LATER: usize = 500;
/// `systemd-analyze security` gives a unit from 0.0 (confined) to 10.0; it is to stay below this.
const EXPOSURE_MAX: &str = "2.5";
const DROP_IN_FILE: &str = "/etc/waystation/waystation.d/50-trial.toml";
/// A second pipeline, whose destination is a mount that is not there.
const DROP_IN: &str = r#"
[sources.trial]
type = "file"
paths = ["/srv/in/*.ndjson"]

[transforms.clean]
plugin = "/usr/share/waystation/plugins/clean.wasm"
config = { drop_status = "bad" }

[sinks.archive]
type = "file"
root = "/srv/archive"
root_must_exist = true
batch = { records_max = 100, linger = "100ms" }
retry = { backoff = "100ms", backoff_max = "1s" }

[pipelines.trial]
sources = ["trial"]
transforms = ["clean"]
sinks = ["archive"]
"#;

/// Runs all of it, with `previous` as the package that is upgraded; the first thing that is wrong ends it.
pub(super) fn run(root: &Path, package: &Package, previous: &Path) -> Result<()> {
    let machine = Machine::new(root)?;
    let before = machine.files()?;
    step("installing", || installed(&machine, &package.deb))?;
    step("looking at the unit", || unit(&machine))?;
    step("starting, reloading, stopping", || started(&machine))?;
    step("holding system calls against the unit", || traced(&machine))?;
    let later = variant(package, 2, None)?;
    step("installing what is upgraded", || replaced(&machine, previous))?;
    step("upgrading with a backlog", || upgraded(&machine, &later))?;
    step("an upgrade that fails", || upgrade_fails(&machine, package, &later))?;
    step("removing and purging", || removed(&machine, &before))?;
    step("lintian", || lintian(&package.deb))?;
    install::remove_dir(&machine.tree)
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let step = Step::start(name);
    work().with_context(|| name.to_owned())?;
    step.done();
    Ok(())
}

/// Every file is root's and none is writable for others; the data directory is the service's own.
fn installed(machine: &Machine, deb: &Path) -> Result<()> {
    machine.install(deb)?;
    let data = machine.run(&["stat", "-c", "%U:%G %a", "/var/lib/waystation"])?;
    ensure!(data.trim() == "waystation:waystation 750", "the data directory is {data}");
    let of_service = machine.files_of("waystation")?;
    ensure!(of_service == ["/var/lib/waystation"], "these belong to the service: {of_service:?}");
    let listed = machine.run(&["dpkg", "--listfiles", "waystation"])?;
    let files: Vec<&str> = listed.lines().filter(|line| *line != "/.").collect();
    let owners = machine.run(&[&["stat", "-c", "%U:%G %a %n"][..], &files].concat())?;
    for line in owners.lines() {
        let is_good =
            ["root:root 755 ", "root:root 644 "].iter().any(|good| line.starts_with(good));
        ensure!(is_good, "a wrong owner or mode: {line}");
    }
    for file in [
        "/usr/bin/waystation",
        "/usr/share/man/man1/waystation.1.gz",
        "/usr/share/man/man1/waystation-journal-info.1.gz",
        "/usr/share/bash-completion/completions/waystation",
        "/usr/lib/systemd/system/waystation.service",
        "/usr/share/waystation/plugins/clean.wasm",
        "/usr/share/waystation/wit/plugin.wit",
        "/usr/share/waystation/waystation.schema.json",
        "/usr/share/doc/waystation/copyright",
        "/usr/share/doc/waystation/third-party.txt.gz",
        tree::CONFIG,
    ] {
        ensure!(files.contains(&file), "{file} is not installed");
    }
    machine.run(&["dpkg", "--verify", "waystation"])?;
    machine.run(&["waystation", "check"])?;
    machine.run(&["bash", "-n", "/usr/share/bash-completion/completions/waystation"])?;
    let enabled = machine.path("/etc/systemd/system/multi-user.target.wants/waystation.service");
    ensure!(enabled.is_symlink(), "the unit does not start with the machine");
    Ok(())
}

/// What systemd itself says of the unit.
fn unit(machine: &Machine) -> Result<()> {
    let unit = "/usr/lib/systemd/system/waystation.service";
    let output = machine
        .command(None, &["systemd-analyze", "verify", "--man=no", unit])
        .output()
        .context("cannot start unshare")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let of_unit: Vec<&str> = said.lines().filter(|line| line.contains("waystation")).collect();
    ensure!(output.status.success() && of_unit.is_empty(), "systemd-analyze verify: {said}");
    let analyzed =
        machine.run(&["systemd-analyze", "security", "--offline=true", "--no-pager", unit])?;
    let overall = analyzed.lines().find(|line| line.contains("Overall exposure level"));
    let overall = overall.context("systemd-analyze says no level")?;
    ui::say(overall.trim_start_matches(|character: char| !character.is_alphabetic()));
    let level = overall.split(": ").nth(1).and_then(|rest| rest.split(' ').next());
    let number = |text: &str| text.parse::<f64>().context("systemd-analyze says no number");
    ensure!(number(level.unwrap_or_default())? < number(EXPOSURE_MAX)?, "too exposed: {overall}");
    Ok(())
}

/// The default config runs as it is, a reload goes over to another, and one that is broken changes nothing.
fn started(machine: &Machine) -> Result<()> {
    let mut agent = Service::start(machine)?;
    agent.hears("WATCHDOG=1")?;
    agent.wait("records of the host", |agent| {
        let records = agent.status()?["sources"][0]["records"].as_u64();
        Ok(records.filter(|records| *records > 0))
    })?;
    let unit = Unit::read(machine)?;
    let config = machine.path(tree::CONFIG);
    let good = super::text(&config)?;
    super::write(&config, good.replace("[pipelines.metrics]", "[pipelines.metrics").as_bytes())?;
    ensure!(!unit.reload(machine)?, "a reload of a broken config succeeds");
    super::write(&config, good.as_bytes())?;
    edit_config(machine)?;
    ensure!(unit.reload(machine)?, "a reload of a config in order fails");
    agent.wait("files of the default config", |_| {
        let files = files_below(&machine.path("/var/lib/waystation/out"));
        Ok((!files.is_empty()).then_some(()))
    })?;
    agent.stop()
}

/// What an operator may change in the default config: it measures and writes more often.
fn edit_config(machine: &Machine) -> Result<()> {
    let config = machine.path(tree::CONFIG);
    let good = super::text(&config)?;
    let edited = good.replace("every = \"30s\"", "every = \"1s\"").replace("\"15m\"", "\"1s\"");
    ensure!(edited != good, "the default config has other values");
    super::write(&config, edited.as_bytes())
}

/// Another package on the same machine, as if it had been the first one: its agent need not read what a later one has written.
fn replaced(machine: &Machine, previous: &Path) -> Result<()> {
    machine.run(&["dpkg", "--purge", "waystation"])?;
    machine.install(previous)?;
    edit_config(machine)?;
    super::write(&machine.path(DROP_IN_FILE), DROP_IN.as_bytes())
}

/// A pipeline with a plugin, whose destination is not there. What the agent calls meanwhile is what the unit lets it call.
fn traced(machine: &Machine) -> Result<()> {
    install::strace()?;
    super::write(&machine.path(DROP_IN_FILE), DROP_IN.as_bytes())?;
    super::write(&machine.path("/srv/in/one.ndjson"), lines(0..LINES).as_bytes())?;
    let trace = machine.path("/packages/trace");
    let mut agent = Service::start_traced(machine, &trace)?;
    wait_for_backlog(&mut agent, LINES)?;
    agent.stop()?;
    calls::check(machine, &Unit::read(machine)?, &trace)
}

/// An agent with a backlog is upgraded while it runs, as dpkg does it, and started anew: what waited arrives, once.
fn upgraded(machine: &Machine, later: &Path) -> Result<()> {
    let mut agent = Service::start(machine)?;
    wait_for_backlog(&mut agent, LINES)?;
    let config = machine.path(tree::CONFIG);
    let edited = super::text(&config)?;
    machine.install(later)?;
    ensure!(super::text(&config)? == edited, "an upgrade has overwritten a config that was edited");
    let offered = machine.path(&format!("{}.dpkg-dist", tree::CONFIG));
    ensure!(offered.is_file(), "an upgrade with another config has not offered it");
    let later = lines(LINES..LINES + LINES_LATER);
    super::write(&machine.path("/srv/in/two.ndjson"), later.as_bytes())?;
    wait_for_backlog(&mut agent, LINES + LINES_LATER)?;
    agent.stop()?;
    // From here on the journal alone has them: a source that read its files again would hide that it was lost.
    for file in files_below(&machine.path("/srv/in")) {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    let mut agent = Service::start(machine)?;
    mount(machine)?;
    wait_for_arrival(machine, &mut agent, LINES + LINES_LATER)?;
    agent.stop()
}

/// A new package whose script fails: dpkg says so, and the former one can be installed over it and goes on.
fn upgrade_fails(machine: &Machine, package: &Package, later: &Path) -> Result<()> {
    let broken = "#!/bin/sh\necho 'no room for the upgrade' >&2\nexit 1\n";
    let deb = machine.bring(&variant(package, 3, Some(broken))?)?;
    let said = machine.fails(&["dpkg", "--force-confdef", "--force-confold", "--install", &deb])?;
    ensure!(said.contains("no room for the upgrade"), "dpkg fails with: {said}");
    // The new files are in place and not configured: the agent of this state has the data, too.
    Service::start(machine)?.stop()?;
    machine.install(later)?;
    let state = machine.run(&["dpkg-query", "-W", "-f", "${Status} ${Version}", "waystation"])?;
    ensure!(
        state.starts_with("install ok installed") && state.ends_with("-2"),
        "after that: {state}"
    );
    let all = LINES + LINES_LATER;
    super::write(&machine.path("/srv/in/three.ndjson"), lines(all..all + 1).as_bytes())?;
    let mut agent = Service::start(machine)?;
    wait_for_arrival(machine, &mut agent, all + 1)?;
    agent.stop()
}

/// A removal keeps the data and the config; a purge leaves nothing behind.
fn removed(machine: &Machine, before: &std::collections::BTreeSet<String>) -> Result<()> {
    machine.run(&["dpkg", "--remove", "waystation"])?;
    ensure!(!machine.path("/usr/bin/waystation").exists(), "a removal leaves the binary");
    for kept in [tree::CONFIG, "/var/lib/waystation/journal.db", "/var/lib/waystation/out"] {
        ensure!(machine.path(kept).exists(), "a removal takes {kept}");
    }
    machine.run(&["dpkg", "--purge", "waystation"])?;
    for of_trial in ["/srv/in", "/srv/archive", "/run/trial"] {
        install::remove_dir(&machine.path(of_trial))?;
    }
    let after = machine.files()?;
    let changed: Vec<&String> = after.symmetric_difference(before).collect();
    ensure!(changed.is_empty(), "a purge leaves behind: {changed:#?}");
    let owned = machine.files_of("waystation")?;
    ensure!(owned.is_empty(), "a purge leaves files of the service: {owned:?}");
    Ok(())
}

/// Debian's own check; what it objects to and we do not change is argued in the overrides.
fn lintian(deb: &Path) -> Result<()> {
    if !process::works("lintian", &["--version"]) {
        install::apt(&["lintian"], "it checks a package by Debian's rules")?;
    }
    let mut command = Command::new("lintian");
    command.args(["--allow-root", "--display-info", "--pedantic", "--show-overrides"]).arg(deb);
    let output = command.output().context("cannot start lintian")?;
    // 2: there are tags, overridden ones too.
    ensure!(
        matches!(output.status.code(), Some(0 | 2)),
        "lintian: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().filter(|line| !line.starts_with("N:")).for_each(ui::say);
    let is_objection = |line: &&str| line.starts_with("E: ") || line.starts_with("W: ");
    let objections = said.lines().filter(is_objection).count();
    ensure!(objections == 0, "lintian has {objections} objections");
    Ok(())
}

/// The package once more, as a later one: with another default config, and perhaps with another script.
fn variant(package: &Package, revision: u32, postinst: Option<&str>) -> Result<PathBuf> {
    let tree = package.parts.out.join("later");
    install::remove_dir(&tree)?;
    process::run(Command::new("cp").arg("-a").arg(&package.tree).arg(&tree))?;
    let config = tree.join(tree::CONFIG.trim_start_matches('/'));
    let text = super::text(&config)?;
    super::write(&config, format!("{text}\n# A later default.\n").as_bytes())?;
    let deb = deb::build(
        &package.parts,
        &tree,
        &deb::Variant { revision, postinst, compression: deb::NOT_COMPRESSED },
    )?;
    install::remove_dir(&tree)?;
    Ok(deb)
}

fn lines(numbers: std::ops::Range<usize>) -> String {
    numbers.map(|number| format!("{{\"n\":{number},\"status\":\"ok\"}}\n")).collect()
}

/// The mount that was missing: a folder that the service may write into.
fn mount(machine: &Machine) -> Result<()> {
    let owner = ["-o", "waystation", "-g", "waystation"];
    machine.run(&[&["install", "-d"][..], &owner, &["/srv/archive"]].concat()).map(drop)
}

fn wait_for_backlog(agent: &mut Service<'_>, records: usize) -> Result<()> {
    agent.wait("a backlog", |agent| {
        let status = agent.status()?;
        let lanes = status["lanes"].as_array().context("the status has no lanes")?;
        let lane = lanes.iter().find(|lane| lane["sink"] == "archive");
        let queued = lane.and_then(|lane| lane["queued"].as_u64());
        Ok((queued == u64::try_from(records).ok()).then_some(()))
    })
}

/// Waits until that many lines have arrived; each has to be there once.
fn wait_for_arrival(machine: &Machine, agent: &mut Service<'_>, records: usize) -> Result<()> {
    let folder = machine.path("/srv/archive");
    let found = agent.wait("what waited", |_| {
        let mut found: BTreeMap<u64, usize> = BTreeMap::new();
        for file in files_below(&folder) {
            for line in super::text(&file)?.lines() {
                let value: serde_json::Value = serde_json::from_str(line)?;
                *found
                    .entry(value["n"].as_u64().context("a line without its number")?)
                    .or_default() += 1;
            }
        }
        Ok((found.len() >= records).then_some(found))
    })?;
    let twice = found.values().filter(|count| **count > 1).count();
    let last = found.keys().next_back().copied();
    ensure!(
        twice == 0 && last == u64::try_from(records - 1).ok(),
        "{twice} lines are there twice; the last is {last:?}"
    );
    Ok(())
}

/// The finished files below a folder, which need not be there.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            found.extend(files_below(&path));
        } else if path
            .to_str()
            .is_some_and(|name| name.contains(".ndjson") && !name.contains(".part"))
        {
            found.push(path);
        }
    }
    found
}
