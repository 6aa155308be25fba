//! The Debian package: the tree, and a folder `DEBIAN` with what dpkg has to know and run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Parts, empty_folder, text, tree, write};
use crate::{install, process};

/// Who answers for the package.
pub(super) const MAINTAINER: &str = "Waystation maintainers <waystation@users.noreply.github.com>";
/// How small a package is made: as small as it goes, or, where it goes nowhere, not at all.
pub(super) const COMPRESSED: &str = "-Zxz";
pub(super) const NOT_COMPRESSED: &str = "-Znone";
/// What dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// What makes one package of a tree differ from another.
pub(super) struct Variant<'a> {
    /// The number behind the version.
    pub(super) revision: u32,
    /// Another script than that of the checkout.
    pub(super) postinst: Option<&'a str>,
    pub(super) compression: &'static str,
}

/// Makes the package, and returns its path.
pub(super) fn build(parts: &Parts, tree: &Path, variant: &Variant<'_>) -> Result<PathBuf> {
    let version = format!("{}-{}", parts.version, variant.revision);
    let folder = parts.out.join("deb");
    empty_folder(&folder)?;
    process::run(Command::new("cp").arg("-a").arg(tree.join(".")).arg(&folder))?;
    // The sums first: they are of the files alone.
    let sums = sums(&folder)?;
    let control = folder.join("DEBIAN");
    write(&control.join("md5sums"), sums.as_bytes())?;
    write(&control.join("conffiles"), format!("{}\n", tree::CONFIG).as_bytes())?;
    let depends = depends(parts)?;
    let described = describe(parts, &version, &depends, installed_kib(&folder)?);
    write(&control.join("control"), described.as_bytes())?;
    for script in SCRIPTS {
        let of_checkout = text(&parts.root.join("packaging/debian").join(script))?;
        let of_variant = variant.postinst.filter(|_| script == "postinst");
        let file = control.join(script);
        write(&file, of_variant.unwrap_or(&of_checkout).as_bytes())?;
    }
    // Whatever the umask of whoever builds.
    tree::set_mode(&control, 0o755)?;
    for file in super::entries(&control)? {
        let is_script = SCRIPTS.iter().any(|script| file.ends_with(script));
        tree::set_mode(&file, if is_script { 0o755 } else { 0o644 })?;
    }
    let deb = parts.out.join(format!("waystation_{version}_{}.deb", parts.architecture));
    // One thread: the compressed bytes depend on how the work is cut up.
    process::output(
        Command::new("dpkg-deb")
            .env("SOURCE_DATE_EPOCH", parts.epoch.to_string())
            .args(["--root-owner-group", variant.compression, "--threads-max=1", "--build"])
            .args([&folder, &deb]),
    )?;
    install::remove_dir(&folder)?;
    Ok(deb)
}

fn describe(parts: &Parts, version: &str, depends: &str, installed_kib: u64) -> String {
    let Parts { architecture, .. } = parts;
    format!(
        "Package: waystation\n\
         Version: {version}\n\
         Architecture: {architecture}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {installed_kib}\n\
         Depends: {depends}\n\
         Recommends: ca-certificates\n\
         Section: net\n\
         Priority: optional\n\
         Homepage: https://github.com/waystation/waystation\n\
         Description: edge agent that never loses an accepted record\n \
         Takes records in from files, sockets, HTTP, MQTT and the host itself, keeps\n \
         them in a journal on disk before anything else happens to them, runs them\n \
         through WebAssembly plugins, and delivers them to NATS JetStream, HTTP or\n \
         files when the link allows, each under one identity that never changes.\n"
    )
}

/// The shared libraries that the binary is linked to, in the versions that its symbols need, and what the scripts call.
fn depends(parts: &Parts) -> Result<String> {
    let folder = parts.out.join("shlibdeps");
    empty_folder(&folder)?;
    // It refuses to work outside of a source package.
    write(
        &folder.join("debian/control"),
        b"Source: waystation\n\nPackage: waystation\nArchitecture: any\n",
    )?;
    let binary = fs::canonicalize(&parts.binary)
        .with_context(|| format!("cannot find {}", parts.binary.display()))?;
    let said = process::output(
        Command::new("dpkg-shlibdeps")
            .env("DEB_HOST_ARCH", &parts.architecture)
            .current_dir(&folder)
            .args(["-O", "-e"])
            .arg(&binary),
    )?;
    install::remove_dir(&folder)?;
    let libraries = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    let libraries = libraries.with_context(|| format!("dpkg-shlibdeps says: {said}"))?;
    ensure!(libraries.contains("libc6 (>="), "no version of libc6 is needed: {libraries}");
    Ok(format!("{libraries}, adduser"))
}

/// A line for each file, as `md5sum` writes it.
fn sums(folder: &Path) -> Result<String> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in super::entries(&next)? {
            if entry.is_dir() { &mut open } else { &mut files }.push(entry);
        }
    }
    let names: Vec<&Path> =
        files.iter().filter_map(|file| file.strip_prefix(folder).ok()).collect();
    let mut names: Vec<&Path> = names
        .into_iter()
        .filter(|name| Path::new(tree::CONFIG).strip_prefix("/").ok() != Some(*name))
        .collect();
    names.sort();
    process::output(Command::new("md5sum").current_dir(folder).args(names))
}

fn installed_kib(folder: &Path) -> Result<u64> {
    let said = process::output(Command::new("du").args(["-sk", "--apparent-size"]).arg(folder))?;
    let number = said.split_whitespace().next().and_then(|number| number.parse().ok());
    number.with_context(|| format!("du says: {said}"))
}
