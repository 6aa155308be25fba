//! All that can be said of a plugin's file without running it, for `waystation plugin inspect`.

use std::io;
use std::path::Path;

use wasmparser::{Encoding, Parser, Payload};

use super::component::top_level;
use super::inspect::{inspect_bytes, read};
use super::{contract, sha256};

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// What a plugin should be.
    Component,
    /// What languages make; `plugin pack` makes a component of it.
    CoreModule,
    /// Machine code for one machine and one version of the agent.
    Compiled,
    /// No WebAssembly, or not enough of it.
    Other,
}

impl FileKind {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::CoreModule => "core module",
            Self::Compiled => "compiled",
            Self::Other => "no WebAssembly",
        }
    }
}

/// What there is to say of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What it is.
    pub kind: FileKind,
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// Its size.
    pub size_bytes: u64,
    /// The worlds that it has the exports of.
    pub worlds: Vec<&'static str>,
    /// The versions of `waystation:plugin` that its imports and exports name; more than one hardly ever.
    pub interface_versions: Vec<String>,
    /// The interfaces that it imports.
    pub imports: Vec<String>,
    /// The interfaces that it exports.
    pub exports: Vec<String>,
    /// What keeps it from being used.
    pub problems: Vec<String>,
}

/// Reports on a file.
///
/// # Errors
/// When it cannot be read.
pub fn report(path: &Path) -> io::Result<Report> {
    Ok(report_bytes(&read(path)?))
}

fn report_bytes(bytes: &[u8]) -> Report {
    let kind = kind(bytes);
    let found = match kind {
        FileKind::Component => top_level(bytes).unwrap_or_default(),
        _ => Default::default(),
    };
    let (imports, exports) = found;
    let worlds = worlds(&exports);
    let problems = inspect_bytes(bytes, None).err().unwrap_or_default();
    Report {
        kind,
        sha256: sha256(bytes),
        size_bytes: bytes.len() as u64,
        interface_versions: versions(imports.iter().chain(&exports)),
        worlds,
        imports,
        exports,
        problems,
    }
}

fn kind(bytes: &[u8]) -> FileKind {
    if wasmtime::Engine::detect_precompiled(bytes).is_some() {
        return FileKind::Compiled;
    }
    match Parser::new(0).parse(bytes, true) {
        Ok(wasmparser::Chunk::Parsed { payload: Payload::Version { encoding, .. }, .. }) => {
            match encoding {
                Encoding::Component => FileKind::Component,
                Encoding::Module => FileKind::CoreModule,
            }
        }
        _ => FileKind::Other,
    }
}

fn worlds(exports: &[String]) -> Vec<&'static str> {
    let has = |interface: &str| exports.iter().any(|export| contract::is(export, interface));
    let worlds = [
        ("transform-plugin", has("transform")),
        ("windowed-plugin", has("transform") && has("ticks")),
        ("sink-plugin", has("sink")),
    ];
    worlds.into_iter().filter(|(_, fits)| *fits).map(|(world, _)| world).collect()
}

fn versions<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let ours = names.filter_map(|name| name.strip_prefix("waystation:plugin/"));
    let mut versions: Vec<_> =
        ours.filter_map(|rest| Some(rest.split_once('@')?.1.to_owned())).collect();
    versions.sort_unstable();
    versions.dedup();
    versions
}
