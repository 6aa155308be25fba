//! Makes a component of a core module, with nothing but what is built in: the WIT, and a stub for WASI.
//!
//! Bindings that `wit-bindgen` makes say in a custom section which world a module is of; for a module without it the author
//! names the world. The same module gives the same bytes.

use std::collections::BTreeSet;
use std::path::Path;

use wasmparser::{Encoding, Parser, Payload, Validator};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata, metadata};
use wit_parser::{
    Function, LiftLowerAbi, ManglingAndAbi, Resolve, WasmExport, WasmExportKind, WasmImport, World,
    WorldItem, WorldKey,
};

use super::engine::FEATURES;
use super::{inspect, wasi_stub};

/// The contract, as plugins are built against it.
pub const WIT: &str = include_str!("../../../wit/plugin.wit");

/// The worlds that a plugin may be of.
pub const WORLDS: [&str; 3] = ["transform-plugin", "windowed-plugin", "sink-plugin"];

/// How core modules name the functions of a world: two conventions, and tools use either.
const MANGLINGS: [ManglingAndAbi; 2] =
    [ManglingAndAbi::Legacy(LiftLowerAbi::Sync), ManglingAndAbi::Standard32];

/// Makes a component of the core module in a file. `world` is for one that does not say itself which it is of.
///
/// # Errors
/// All problems at once, each one a sentence about the file that does not repeat its path.
pub fn pack(path: &Path, world: Option<&str>) -> Result<Vec<u8>, Vec<String>> {
    let bytes = inspect::read(path).map_err(|error| vec![format!("it cannot be read: {error}")])?;
    pack_bytes(&bytes, world)
}

pub(super) fn pack_bytes(module: &[u8], world: Option<&str>) -> Result<Vec<u8>, Vec<String>> {
    let one = |problem: String| vec![problem];
    check_kind(module).map_err(one)?;
    Validator::new_with_features(FEATURES).validate_all(module).map_err(|error| {
        one(format!(
            "it is damaged or cut short, or uses something that plugins may not: {} at byte {} of {}; build it anew or copy it again",
            error.message(),
            error.offset(),
            module.len()
        ))
    })?;
    let surface = Surface::of(module).map_err(|error| one(error.to_string()))?;
    let module = match world {
        Some(world) => embed(module, world).map_err(one)?,
        None if surface.names_its_world => module.to_vec(),
        None => {
            return Err(one(format!(
                "it does not say which world it is of; name it, for example --world {}",
                WORLDS[0]
            )));
        }
    };
    let (_, bindings) = metadata::decode(&module).map_err(|error| {
        one(format!("what it says of its world cannot be read: {error:#}; build it with a matching version of wit-bindgen"))
    })?;
    let world = &bindings.resolve.worlds[bindings.world];
    let mut problems = surface.missing_exports(&bindings.resolve, world);
    problems.extend(surface.unanswered_imports(&bindings.resolve, world));
    if !problems.is_empty() {
        return Err(problems);
    }
    let wasi = surface.imports_of(wasi_stub::MODULE);
    let encoder = ComponentEncoder::default().validate(true).module(&module);
    let encoder = match encoder {
        Ok(encoder) if !wasi.is_empty() => {
            encoder.adapter(wasi_stub::MODULE, &wasi_stub::adapter(&wasi))
        }
        either => either,
    };
    encoder
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| one(format!("it does not fit the world it is of: {error:#}")))
}

/// Tells a core module from everything else by its first bytes.
fn check_kind(bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty; build it anew or copy it again".to_owned());
    }
    if wasmtime::Engine::detect_precompiled(bytes).is_some() {
        return Err("it is compiled already: there is nothing to pack".to_owned());
    }
    if !bytes.starts_with(b"\0asm") {
        return Err("it is no WebAssembly; what is packed is a core module (.wasm)".to_owned());
    }
    match Parser::new(0).parse(bytes, true) {
        Ok(wasmparser::Chunk::Parsed {
            payload: Payload::Version { encoding: Encoding::Component, .. },
            ..
        }) => Err("it is a component already: use it as it is".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "it is damaged or cut short: {}; build it anew or copy it again",
            error.message()
        )),
    }
}

/// Adds the section that says which world a module is of.
fn embed(module: &[u8], world: &str) -> Result<Vec<u8>, String> {
    let failed =
        |error: &dyn std::fmt::Display| format!("the world {world} cannot be added: {error}");
    let mut resolve = Resolve::default();
    let package = resolve.push_str("plugin.wit", WIT).map_err(|error| failed(&error))?;
    let id = resolve
        .select_world(&[package], Some(world))
        .map_err(|_| format!("there is no world \"{world}\"; there are {}", WORLDS.join(", ")))?;
    let mut module = module.to_vec();
    embed_component_metadata(&mut module, &resolve, id, StringEncoding::UTF8)
        .map_err(|error| failed(&format!("{error:#}")))?;
    Ok(module)
}

/// What a core module shows to the outside.
#[derive(Debug, Default)]
struct Surface<'a> {
    /// Module and name.
    imports: Vec<(&'a str, &'a str)>,
    exports: BTreeSet<&'a str>,
    names_its_world: bool,
}

impl<'a> Surface<'a> {
    fn of(module: &'a [u8]) -> Result<Self, wasmparser::BinaryReaderError> {
        let mut surface = Self::default();
        for payload in Parser::new(0).parse_all(module) {
            match payload? {
                Payload::ImportSection(section) => {
                    for import in section.into_imports() {
                        let import = import?;
                        surface.imports.push((import.module, import.name));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        surface.exports.insert(export?.name);
                    }
                }
                Payload::CustomSection(section) => {
                    surface.names_its_world |= section.name().starts_with("component-type");
                }
                _ => {}
            }
        }
        Ok(surface)
    }

    fn imports_of(&self, module: &str) -> Vec<&'a str> {
        let of_module = self.imports.iter().filter(|(of, _)| *of == module);
        of_module.map(|(_, name)| *name).collect()
    }

    fn missing_exports(&self, resolve: &Resolve, world: &World) -> Vec<String> {
        let mut problems = Vec::new();
        for (interface, func) in functions(resolve, &world.exports) {
            let [legacy, standard] = MANGLINGS.map(|mangling| {
                let kind = WasmExportKind::Normal;
                resolve.wasm_export_name(mangling, WasmExport::Func { interface, func, kind })
            });
            if !self.exports.contains(legacy.as_str()) && !self.exports.contains(standard.as_str())
            {
                problems.push(format!("it does not export {legacy}, which its world asks for"));
            }
        }
        let memory = [
            ("memory", "cm32p2_memory", "its memory"),
            ("cabi_realloc", "cm32p2_realloc", "the function that makes room for what it is given"),
        ];
        for (legacy, standard, what) in memory {
            if !self.exports.contains(legacy) && !self.exports.contains(standard) {
                problems.push(format!("it does not export {legacy}, {what}"));
            }
        }
        problems
    }

    fn unanswered_imports(&self, resolve: &Resolve, world: &World) -> Vec<String> {
        let mut known = BTreeSet::new();
        for (interface, func) in functions(resolve, &world.imports) {
            known.extend(MANGLINGS.map(|mangling| {
                resolve.wasm_import_name(mangling, WasmImport::Func { interface, func })
            }));
        }
        let mut problems = Vec::new();
        for (module, name) in &self.imports {
            let answered = match *module {
                wasi_stub::MODULE => wasi_stub::has(name),
                other if other.starts_with("wasi:") => false,
                _ => known.contains(&((*module).to_owned(), (*name).to_owned())),
            };
            if !answered {
                problems.push(format!("it imports {name} from {module}: {}", hint(module)));
            }
        }
        problems
    }
}

fn functions<'a>(
    resolve: &'a Resolve,
    items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
) -> Vec<(Option<&'a WorldKey>, &'a Function)> {
    let mut found = Vec::new();
    for (key, item) in items {
        match item {
            WorldItem::Interface { id, .. } => {
                let functions = resolve.interfaces[*id].functions.values();
                found.extend(functions.map(|function| (Some(key), function)));
            }
            WorldItem::Function(function) => found.push((None, function)),
            WorldItem::Type { .. } => {}
        }
    }
    found
}

/// What an author can do about an import that nothing answers.
fn hint(module: &str) -> &'static str {
    match module {
        "env" => {
            "no library that it was linked with has it; link the one that does, or do without it"
        }
        "gojs" | "go" => "it was built for a browser; build it with GOOS=wasip1",
        wasi_stub::MODULE => "this version of WASI has no such function",
        other if other.starts_with("__wbindgen") => {
            "it was built for a browser, with wasm-bindgen; use wit-bindgen"
        }
        other if other.starts_with("wasi:") => {
            "plugins are not given WASI: no files, sockets, clock, randomness or environment; build it for wasm32-unknown-unknown or wasm32-wasip1"
        }
        other if other.trim_start_matches("cm32p2|").starts_with("waystation:plugin/") => {
            "the world it is of has no such function; build it with the WIT of this version"
        }
        _ => "nothing answers that",
    }
}
