//! The licences of everything that is linked into the binary and into the plugins that come with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::PLUGINS;
use crate::{licences, process};

/// What a file with a licence in it may begin with, in capitals.
const NAMES: [&str; 7] =
    ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE", "AUTHORS"];
/// Licences that are in a crate and are not those that we take it under.
const NOT_TAKEN: [(&str, &str, &str); 1] =
    [("zstd-sys", "zstd/COPYING", "zstd is BSD or GPL-2.0; we take BSD")];
/// Folders of a crate that nothing is linked from.
const NOT_LINKED: [&str; 5] = ["tests", "test", "benches", "examples", "fuzz"];
/// How deep in a crate a licence may lie: bundled C sources have a folder of their own.
const DEPTH_MAX: usize = 2;

/// A crate that is linked in.
struct Linked {
    licence: String,
    folder: PathBuf,
}

/// The document: first the crates with their licences, then each text once, with the crates that it came with.
pub(super) fn collect(root: &Path) -> Result<String> {
    let mut crates = BTreeMap::new();
    linked(root, "Cargo.toml", &["waystation"], &mut crates)?;
    linked(root, "plugins/Cargo.toml", PLUGINS, &mut crates)?;
    let mut document = String::from(
        "What is linked into Waystation and into the plugins that come with it\n\n\
         The licences first, the texts below. SQLite, which is in libsqlite3-sys, is in the public domain.\n\n",
    );
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for ((name, version), of_crate) in &crates {
        writeln!(document, "  {name} {version}: {}", of_crate.licence)?;
        let mut found = Vec::new();
        find(name, &of_crate.folder, &of_crate.folder, 0, &mut found)?;
        if found.is_empty() {
            without.push(format!("  {name} {version}: {}", of_crate.licence));
        }
        for file in found {
            // Latin-1 is met in names of authors.
            let bytes =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            texts.entry(text.trim().to_owned()).or_default().insert(format!("{name} {version}"));
        }
    }
    if !without.is_empty() {
        write!(
            document,
            "\nThese come without a file; the texts of their licences are below, with other crates:\n\n{}\n",
            without.join("\n")
        )?;
    }
    for (text, of) in &texts {
        let of: Vec<&str> = of.iter().map(String::as_str).collect();
        write!(document, "\n{}\n{}\n\n{text}\n", "-".repeat(79), of.join(", "))?;
    }
    Ok(document)
}

/// What Rust's own distribution says of its standard library, which is in every binary.
pub(super) fn rust_library() -> Result<String> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    super::text(&Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html"))
}

/// Adds what these packages of a workspace are made of: dependencies that are neither for tests, for building, nor macros.
fn linked(
    root: &Path,
    manifest: &str,
    packages: &[&str],
    crates: &mut BTreeMap<(String, String), Linked>,
) -> Result<()> {
    let metadata = licences::metadata(root, Path::new(manifest))?;
    let list = |value: &Value, key: &str| -> Vec<Value> {
        value.get(key).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let text = |value: &Value, key: &str| -> Option<String> {
        value.get(key).and_then(Value::as_str).map(str::to_owned)
    };
    let known: HashMap<String, Value> = list(&metadata, "packages")
        .into_iter()
        .filter_map(|package| Some((text(&package, "id")?, package)))
        .collect();
    let nodes: HashMap<String, Value> = list(&metadata["resolve"], "nodes")
        .into_iter()
        .filter_map(|node| Some((text(&node, "id")?, node)))
        .collect();
    let is_ours = |package: &Value| package.get("source").is_none_or(Value::is_null);
    let mut open: Vec<String> = known
        .iter()
        .filter(|(_, package)| {
            is_ours(package)
                && text(package, "name").is_some_and(|name| packages.contains(&name.as_str()))
        })
        .map(|(id, _)| id.clone())
        .collect();
    ensure!(open.len() == packages.len(), "{manifest} lacks one of {}", packages.join(", "));
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        let Some(package) = known.get(&id).filter(|_| seen.insert(id.clone())) else { continue };
        let is_macro = list(package, "targets")
            .iter()
            .any(|target| list(target, "kind").iter().any(|kind| kind == "proc-macro"));
        if is_macro {
            continue;
        }
        if !is_ours(package) {
            let (name, version) = (text(package, "name"), text(package, "version"));
            let folder = text(package, "manifest_path").map(PathBuf::from);
            let folder = folder.and_then(|file| file.parent().map(Path::to_owned));
            let licence = text(package, "license");
            let (Some(name), Some(version), Some(folder), Some(licence)) =
                (name, version, folder, licence)
            else {
                anyhow::bail!("{id} lacks a name, a folder or a licence");
            };
            crates.insert((name, version), Linked { licence, folder });
        }
        for dependency in nodes.get(&id).map(|node| list(node, "deps")).unwrap_or_default() {
            let is_linked =
                list(&dependency, "dep_kinds").iter().any(|kind| kind["kind"].is_null());
            open.extend(text(&dependency, "pkg").filter(|_| is_linked));
        }
    }
    Ok(())
}

/// Finds the files with licences of a crate.
fn find(
    name: &str,
    top: &Path,
    folder: &Path,
    depth: usize,
    found: &mut Vec<PathBuf>,
) -> Result<()> {
    for entry in super::entries(folder)? {
        let Some(of_entry) = entry.file_name().and_then(|name| name.to_str()) else { continue };
        let below = entry.strip_prefix(top).unwrap_or(&entry);
        if entry.is_dir() {
            if depth < DEPTH_MAX && !NOT_LINKED.contains(&of_entry) {
                find(name, top, &entry, depth + 1, found)?;
            }
        } else if is_licence(of_entry)
            && !NOT_TAKEN.iter().any(|(of, file, _)| *of == name && Path::new(file) == below)
        {
            found.push(entry);
        }
    }
    Ok(())
}

fn is_licence(file: &str) -> bool {
    let is_source = [".rs", ".c", ".h", ".toml"].iter().any(|ending| file.ends_with(ending));
    let capitals = file.to_ascii_uppercase();
    !is_source && NAMES.iter().any(|name| capitals.starts_with(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_known_by_the_name_of_its_file() {
        for name in ["LICENSE", "LICENSE-MIT", "license.txt", "COPYING", "NOTICE", "Copyright.md"] {
            assert!(is_licence(name), "{name}");
        }
        for name in ["license.rs", "README.md", "src", "Cargo.toml"] {
            assert!(!is_licence(name), "{name}");
        }
    }
}
