//! The tarball, for machines without dpkg: the tree below one folder, with the licence.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Parts, empty_folder, text, tree, write};
use crate::{install, process};

/// Makes it, and returns its path.
pub(super) fn build(parts: &Parts, files: &Path) -> Result<PathBuf> {
    let name = format!("waystation-{}-linux-{}", parts.version, parts.architecture);
    let above = parts.out.join("tarball");
    empty_folder(&above)?;
    let folder = above.join(&name);
    process::run(Command::new("cp").arg("-a").arg(files).arg(&folder))?;
    install::remove_dir(&folder.join("usr/share/lintian"))?;
    write(&folder.join("LICENSE"), text(&parts.root.join("LICENSE"))?.as_bytes())?;
    tree::set_mode(&folder.join("LICENSE"), 0o644)?;
    let tar = parts.out.join(format!("{name}.tar"));
    process::run(
        Command::new("tar")
            .args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["--format=gnu", "--mode=go-w", &format!("--mtime=@{}", parts.epoch)])
            .arg("--file")
            .arg(&tar)
            .arg("--directory")
            .arg(&above)
            .arg(&name),
    )?;
    process::run(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(&tar))?;
    install::remove_dir(&above).context("the tarball is made")?;
    Ok(parts.out.join(format!("{name}.tar.gz")))
}
