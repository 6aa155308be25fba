//! The package of the commit before this one, made of its own sources by its own commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::ui::Step;
use crate::{install, process};

/// Where it is made, below the root. A finished package stays for the next run.
const FOLDER: &str = "target/previous";

pub(super) fn build(root: &Path) -> Result<PathBuf> {
    let commit = process::output(git(root).args(["rev-parse", "--verify", "HEAD~1"])).context(
        "there is no commit before this one here (is the checkout shallow?); name a package with --previous",
    )?;
    let commit = commit.trim();
    let folder = root.join(FOLDER);
    let kept = folder.join(format!("{commit}.deb"));
    if kept.exists() {
        return Ok(kept);
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let step = Step::start("making the package of the commit before");
    let source = folder.join("source");
    install::remove_dir(&source)?;
    process::run(git(root).args(["worktree", "prune"]))?;
    process::run(
        git(root).args(["worktree", "add", "--quiet", "--detach"]).arg(&source).arg(commit),
    )?;
    let deb = package(root, &source, &folder)?;
    fs::rename(&deb, &kept).with_context(|| format!("cannot keep {}", deb.display()))?;
    process::run(git(root).args(["worktree", "remove", "--force"]).arg(&source))?;
    step.done();
    Ok(kept)
}

fn package(root: &Path, source: &Path, folder: &Path) -> Result<PathBuf> {
    // What both are made of is compiled once.
    let target = root.join("target");
    let mut build = process::cargo(source);
    build.env("CARGO_TARGET_DIR", &target);
    process::run(build.args(["build", "--release", "--bin", "waystation", "--locked"]))?;
    // This commit's goes to the same place.
    let (made, binary) = (target.join("release/waystation"), folder.join("waystation"));
    fs::copy(&made, &binary).with_context(|| format!("cannot copy {}", made.display()))?;
    let mut dist = process::cargo(source);
    dist.env("CARGO_TARGET_DIR", &target);
    process::run(dist.args(["xtask", "dist", "--binary"]).arg(&binary))?;
    let out = source.join(super::FOLDER);
    super::entries(&out)?
        .into_iter()
        .find(|file| file.extension().is_some_and(|extension| extension == "deb"))
        .with_context(|| format!("no package was made in {}", out.display()))
}

fn git(root: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(root);
    command
}
