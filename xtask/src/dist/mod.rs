//! `cargo xtask dist`: what is installed on a machine, as a Debian package and as a tarball.
//!
//! Both hold the same tree of files (`tree`). Made twice from one commit, they are the same bytes: times come from the commit
//! or from `$SOURCE_DATE_EPOCH`, names are sorted, owners are root.

mod deb;
mod emulated;
pub(crate) mod minimal;
mod notices;
mod previous;
mod tarball;
mod tree;
mod trial;
mod way;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::ui::{self, Step};
use crate::{arm64, install, plugins, process};

/// The folder that everything is made in, below the root.
const FOLDER: &str = "target/dist";
/// The plugins that come with the agent.
const PLUGINS: &[&str] =
    &["clean", "json-filter", "json-map", "redact", "sample", "webhook", "window"];

#[derive(Default, clap::Args)]
pub(crate) struct Arguments {
    /// Package this binary instead of building one.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// For arm64: built with Debian's cross compiler, and asked for what it knows of itself under qemu.
    #[arg(long, conflicts_with = "test")]
    arm64: bool,
    /// The agent for small machines instead, without a package: it runs compiled plugins, and has the sources file, generate,
    /// http, nats and stdin.
    #[arg(long, conflicts_with_all = ["arm64", "binary", "plugins", "test"])]
    minimal: bool,
    /// Package the plugins in this folder instead of building them.
    #[arg(long, value_name = "FOLDER")]
    plugins: Option<PathBuf>,
    /// Install, upgrade, remove and purge the package in a fresh Debian tree, too; needs root.
    #[arg(long)]
    test: bool,
    /// With --test: the package to upgrade from; otherwise that of the commit before is built.
    #[arg(long, value_name = "DEB", requires = "test")]
    previous: Option<PathBuf>,
}

/// What goes into the tree, and where it is made.
struct Parts {
    root: PathBuf,
    /// `target/dist`.
    out: PathBuf,
    binary: PathBuf,
    plugins: PathBuf,
    version: String,
    /// Debian's word for the processor.
    architecture: String,
    /// Whether programs for it do not run here by themselves.
    is_foreign: bool,
    /// Seconds since 1970, for every time in the packages.
    epoch: u64,
}

impl Parts {
    /// The agent, as a command of this machine.
    fn agent(&self) -> Command {
        if self.is_foreign { arm64::program(&self.binary) } else { Command::new(&self.binary) }
    }
}

/// Makes both packages, and tries what can be tried here of them when that is asked for.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<()> {
    if arguments.minimal {
        return minimal::run(root);
    }
    let previous = match &arguments.previous {
        None if arguments.test => Some(previous::build(root)?),
        given => given.clone(),
    };
    let package = make(root, arguments)?;
    if arguments.arm64 {
        emulated::run(&package.parts)?;
    }
    if let Some(previous) = previous {
        trial::run(root, &package, &previous)?;
    }
    Ok(())
}

/// Makes both packages and tries the Debian one.
pub(crate) fn run_with_trial(root: &Path) -> Result<()> {
    run(root, &Arguments { test: true, ..Arguments::default() })
}

/// Makes both packages for arm64.
pub(crate) fn run_for_arm64(root: &Path) -> Result<()> {
    run(root, &Arguments { arm64: true, ..Arguments::default() })
}

/// A package, and the tree that it was made of.
struct Package {
    parts: Parts,
    tree: PathBuf,
    deb: PathBuf,
    tarball: PathBuf,
}

/// What is made, in bytes.
pub(crate) struct Sizes {
    pub(crate) binary: u64,
    pub(crate) deb: u64,
    pub(crate) tarball: u64,
}

/// Makes both packages, of this binary where there is one, and tells how large they are.
pub(crate) fn sizes(root: &Path, binary: Option<&Path>) -> Result<Sizes> {
    let binary = binary.map(Path::to_owned);
    let package = make(root, &Arguments { binary, ..Arguments::default() })?;
    let Package { parts, deb, tarball, .. } = &package;
    Ok(Sizes { binary: bytes(&parts.binary)?, deb: bytes(deb)?, tarball: bytes(tarball)? })
}

fn make(root: &Path, arguments: &Arguments) -> Result<Package> {
    tools()?;
    let parts = parts(root, arguments)?;
    let step = Step::start("putting the files together");
    let tree = tree::make(&parts)?;
    step.done();
    let step = Step::start("making the Debian package and the tarball");
    let of_deb = deb::Variant { revision: 1, postinst: None, compression: deb::COMPRESSED };
    let deb = deb::build(&parts, &tree, &of_deb)?;
    let tarball = tarball::build(&parts, &tree)?;
    step.done();
    println!("binary    {}", size(&parts.binary)?);
    for package in [&deb, &tarball] {
        let shown = package.strip_prefix(root).unwrap_or(package);
        let sum = process::output(Command::new("sha256sum").arg(package))?;
        let sum = sum.split(' ').next().unwrap_or_default();
        println!("{}  {}  sha256 {sum}", shown.display(), size(package)?);
    }
    Ok(Package { parts, tree, deb, tarball })
}

fn size(file: &Path) -> Result<String> {
    Ok(format!("{} bytes", ui::thousands(bytes(file)?)))
}

fn bytes(file: &Path) -> Result<u64> {
    let metadata = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(metadata.len())
}

/// What Debian provides for making packages.
fn tools() -> Result<()> {
    let missing: Vec<&str> =
        [("dpkg-deb", "dpkg"), ("dpkg-shlibdeps", "dpkg-dev"), ("gzip", "gzip")]
            .into_iter()
            .filter(|(program, _)| !process::works(program, &["--version"]))
            .map(|(_, package)| package)
            .collect();
    if missing.is_empty() {
        return Ok(());
    }
    install::apt(&missing, "they make a Debian package")
}

fn parts(root: &Path, arguments: &Arguments) -> Result<Parts> {
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None if arguments.arm64 => arm64::build(root)?,
        None => {
            let step = Step::start("building the agent");
            process::run(process::cargo(root).args([
                "build",
                "--release",
                "--bin",
                "waystation",
                "--locked",
            ]))?;
            step.done();
            root.join("target/release/waystation")
        }
    };
    let plugins = match &arguments.plugins {
        Some(folder) => folder.clone(),
        None => {
            let step = Step::start("building the plugins");
            plugins::build(root, Some(PLUGINS))?;
            step.done();
            root.join("target/plugins")
        }
    };
    let out = root.join(FOLDER);
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let architecture = if arguments.arm64 {
        arm64::DEBIAN.to_owned()
    } else {
        process::output(Command::new("dpkg").arg("--print-architecture"))?
    };
    let mut parts = Parts {
        root: root.to_owned(),
        out,
        binary,
        plugins,
        version: String::new(),
        architecture: architecture.trim().to_owned(),
        is_foreign: arguments.arm64,
        epoch: epoch(root)?,
    };
    let said = process::output(parts.agent().arg("--version"))?;
    let version = said.trim().strip_prefix("waystation ").map(str::to_owned);
    parts.version =
        version.with_context(|| format!("the binary calls itself `{}`", said.trim()))?;
    Ok(parts)
}

/// `$SOURCE_DATE_EPOCH`, else the time of the commit.
fn epoch(root: &Path) -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => process::output(Command::new("git").current_dir(root).args([
            "log",
            "-1",
            "--format=%ct",
        ]))
        .context("outside of a checkout, SOURCE_DATE_EPOCH has to say the time of the release")?,
    };
    text.trim().parse().with_context(|| format!("`{}` is no time in seconds", text.trim()))
}

/// Makes an empty folder of this path.
fn empty_folder(folder: &Path) -> Result<()> {
    install::remove_dir(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

/// Writes a file, and the folders above it.
fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    let folder = file.parent().context("a file has a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(file, bytes))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Reads a text of the checkout.
fn text(file: &Path) -> Result<String> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(!text.is_empty(), "{} is empty", file.display());
    Ok(text)
}

/// What is in a folder, in the order of the names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = || -> std::io::Result<Vec<PathBuf>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
    };
    let mut entries = read().with_context(|| format!("cannot read {}", folder.display()))?;
    entries.sort();
    Ok(entries)
}
