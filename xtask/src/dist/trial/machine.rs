//! A fresh Debian, in a folder: made once by debootstrap, copied for each trial.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::dist::{FOLDER, empty_folder};
use crate::ui::Step;
use crate::{install, process};

/// The release that is installed.
const RELEASE: &str = "bookworm";
/// What is in it beyond the least: systemd, for what it says of the unit. It is never started.
const INCLUDED: &str = "systemd,adduser";
/// What a package manager and its like write for themselves, beside what a package leaves behind.
const NOT_COMPARED: [&str; 12] = [
    "proc/",
    "dev/",
    "sys/",
    "tmp/",
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "packages/",
    // Locks and notes of adduser and systemctl, which a restart of the machine takes.
    "run/adduser ",
    "run/systemd/",
    // What adduser makes of the lists of accounts before it changes them.
    "etc/.pwd.lock",
    "var/lib/systemd/deb-systemd-helper-",
];
/// Runs a command in the tree. Its `/proc` is mounted for that command alone, so nothing has to be unmounted later.
const ENTER: &str = r#"mount -t proc proc "$1/proc" && shift && exec chroot "$@""#;

/// The tree.
pub(super) struct Machine {
    pub(super) tree: PathBuf,
}

impl Machine {
    /// Makes one anew.
    pub(super) fn new(root: &Path) -> Result<Self> {
        let base = base(root)?;
        let tree = root.join(FOLDER).join("trial");
        install::remove_dir(&tree)?;
        process::run(
            Command::new("cp").args(["--archive", "--reflink=auto"]).arg(&base).arg(&tree),
        )?;
        let machine = Self { tree };
        empty_folder(&machine.path("/packages"))?;
        Ok(machine)
    }

    /// A path of the tree, as we see it.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.tree.join(inside.trim_start_matches('/'))
    }

    /// A command that runs in the tree, as `user` (`name:group`) or else as root. It becomes the process that is started.
    pub(super) fn command(&self, user: Option<&str>, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--", "sh", "-c", ENTER, "sh"]).arg(&self.tree);
        if let Some(user) = user {
            command.arg(format!("--userspec={user}"));
        }
        command.arg(&self.tree).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Runs it as root, and returns what it says.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        process::output(&mut self.command(None, words))
    }

    /// Runs it as root; it has to fail. Returns all that it says.
    pub(super) fn fails(&self, words: &[&str]) -> Result<String> {
        let output = self.command(None, words).output().context("cannot start unshare")?;
        let said = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        ensure!(!output.status.success(), "{} succeeds: {}", words.join(" "), said.concat());
        Ok(said.concat())
    }

    /// `dpkg --install`, with what an unattended upgrade says about a config that was edited: keep it.
    pub(super) fn install(&self, deb: &Path) -> Result<String> {
        let inside = self.bring(deb)?;
        self.run(&["dpkg", "--force-confdef", "--force-confold", "--install", &inside])
    }

    /// Copies a package into the tree, and returns its path there.
    pub(super) fn bring(&self, deb: &Path) -> Result<String> {
        let name =
            deb.file_name().and_then(|name| name.to_str()).context("a package has a name")?;
        let inside = format!("/packages/{name}");
        fs::copy(deb, self.path(&inside))
            .with_context(|| format!("cannot copy {}", deb.display()))?;
        Ok(inside)
    }

    /// Everything in the tree with its kind, owner and mode, but for what [`NOT_COMPARED`] names.
    pub(super) fn files(&self) -> Result<BTreeSet<String>> {
        let listed = self.run(&["find", "/", "-xdev", "-printf", "%P %y %U:%G %m\n"])?;
        let is_compared = |line: &&str| {
            !line.is_empty() && !NOT_COMPARED.iter().any(|prefix| line.starts_with(prefix))
        };
        Ok(listed.lines().filter(is_compared).map(str::to_owned).collect())
    }

    /// What belongs to an account.
    pub(super) fn files_of(&self, user: &str) -> Result<Vec<String>> {
        let listed = self.run(&["find", "/", "-xdev", "-user", user, "-print"])?;
        Ok(listed.lines().map(str::to_owned).collect())
    }
}

/// The tree that trials are copied from.
fn base(root: &Path) -> Result<PathBuf> {
    let base = root.join(FOLDER).join(format!("debian-{RELEASE}"));
    if base.is_dir() {
        return Ok(base);
    }
    if !process::output(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0") {
        bail!("only root can make a Debian tree and enter it: run this again with sudo");
    }
    if !process::works("debootstrap", &["--version"]) {
        install::apt(&["debootstrap"], "the package is tried in a fresh Debian")?;
    }
    let step = Step::start(format!("making a Debian {RELEASE} in {FOLDER}, about 240 MB"));
    let part = base.with_extension("part");
    empty_folder(&part)?;
    process::output(
        Command::new("debootstrap")
            .args(["--variant=minbase", &format!("--include={INCLUDED}"), RELEASE])
            .arg(&part),
    )?;
    fs::rename(&part, &base).with_context(|| format!("cannot make {}", base.display()))?;
    step.done();
    Ok(base)
}
