//! The files as they lie on a machine, below `target/dist/tree`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{PLUGINS, Parts, empty_folder, notices, text, write};
use crate::process;

/// The file that a machine's owner edits: kept when a package is upgraded.
pub(super) const CONFIG: &str = "/etc/waystation/waystation.toml";
/// The documents beside the copyright.
const DOC: &str = "usr/share/doc/waystation";
/// What completes our commands, for each shell as Debian finds it.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/waystation"),
    ("zsh", "usr/share/zsh/vendor-completions/_waystation"),
    ("fish", "usr/share/fish/vendor_completions.d/waystation.fish"),
];
/// What is installed as it lies in the checkout.
const COPIED: [(&str, &str); 6] = [
    ("packaging/waystation.toml", "etc/waystation/waystation.toml"),
    ("packaging/waystation.service", "usr/lib/systemd/system/waystation.service"),
    ("packaging/tmpfiles.conf", "usr/lib/tmpfiles.d/waystation.conf"),
    ("packaging/debian/copyright", "usr/share/doc/waystation/copyright"),
    ("packaging/debian/lintian-overrides", "usr/share/lintian/overrides/waystation"),
    ("wit/plugin.wit", "usr/share/waystation/wit/plugin.wit"),
];

/// Makes the tree anew, and returns its folder.
pub(super) fn make(parts: &Parts) -> Result<PathBuf> {
    let tree = parts.out.join("tree");
    empty_folder(&tree)?;
    copy(&parts.binary, &tree.join("usr/bin/waystation"))?;
    for (from, to) in COPIED {
        copy(&parts.root.join(from), &tree.join(to))?;
    }
    let drop_ins = tree.join("etc/waystation/waystation.d");
    fs::create_dir_all(&drop_ins).with_context(|| format!("cannot make {}", drop_ins.display()))?;
    for plugin in PLUGINS {
        let name = format!("{plugin}.wasm");
        copy(&parts.plugins.join(&name), &tree.join("usr/share/waystation/plugins").join(&name))?;
    }
    generated(parts, &tree)?;
    documents(parts, &tree)?;
    modes(&tree, &tree)?;
    checked(parts, &tree)?;
    Ok(tree)
}

/// What the commands themselves know: man pages, completions, the schema of the config.
fn generated(parts: &Parts, tree: &Path) -> Result<()> {
    let of_agent = |arguments: &[&str]| process::output(parts.agent().args(arguments));
    for (shell, file) in COMPLETIONS {
        write(&tree.join(file), of_agent(&["completions", shell])?.as_bytes())?;
    }
    let schema = of_agent(&["config", "schema"])?;
    write(&tree.join("usr/share/waystation/waystation.schema.json"), schema.as_bytes())?;
    let pages = tree.join("usr/share/man/man1");
    fs::create_dir_all(&pages).with_context(|| format!("cannot make {}", pages.display()))?;
    process::run(parts.agent().arg("man").arg(&pages))?;
    for page in super::entries(&pages)? {
        compress(&page)?;
    }
    ensure!(pages.join("waystation.1.gz").is_file(), "the binary has written no man page");
    Ok(())
}

/// The documents that a package has, long ones compressed, as Debian wants them.
fn documents(parts: &Parts, tree: &Path) -> Result<()> {
    let doc = tree.join(DOC);
    let third_party = notices::collect(&parts.root)?;
    let of_debian = format!(
        "waystation ({}-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- {}  {}\n",
        parts.version,
        super::deb::MAINTAINER,
        process::output(Command::new("date").env("LC_ALL", "C").args([
            "--utc",
            "--rfc-email",
            &format!("--date=@{}", parts.epoch)
        ]))?
        .trim()
    );
    let long = [
        ("README.md", text(&parts.root.join("README.md"))?),
        ("changelog", text(&parts.root.join("CHANGELOG.md"))?),
        ("changelog.Debian", of_debian),
        ("third-party.txt", third_party),
        ("rust-library.html", notices::rust_library()?),
    ];
    for (name, text) in long {
        let file = doc.join(name);
        write(&file, text.as_bytes())?;
        compress(&file)?;
    }
    Ok(())
}

/// The same bytes for the same file: neither its name nor its time is kept in it.
fn compress(file: &Path) -> Result<()> {
    process::run(Command::new("gzip").args(["--best", "--no-name", "--force"]).arg(file))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    write(to, &bytes)
}

/// Whatever the umask of whoever builds: programs 0755, files 0644.
fn modes(tree: &Path, folder: &Path) -> Result<()> {
    set_mode(folder, 0o755)?;
    for entry in super::entries(folder)? {
        if entry.is_dir() {
            modes(tree, &entry)?;
        } else {
            let is_program = entry.starts_with(tree.join("usr/bin"));
            set_mode(&entry, if is_program { 0o755 } else { 0o644 })?;
        }
    }
    Ok(())
}

/// Changes the mode of a file or a folder.
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot change {}", path.display()))
}

/// The default config is one that runs.
fn checked(parts: &Parts, tree: &Path) -> Result<()> {
    let config = tree.join(CONFIG.trim_start_matches('/'));
    let mut check = parts.agent();
    check.args(["check", "--deny-warnings", "--config"]).arg(&config);
    process::output(&mut check).context("the default config is not in order").map(drop)
}
