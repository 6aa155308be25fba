//! Looks into a component, and finds everything that stands in its way.
//!
//! wasmtime's own answer would be its first error. Here the operator gets all problems, in words that say what to do.

use wasmparser::component_types::{
    ComponentDefinedType, ComponentEntityType, ComponentInstanceType, ComponentValType,
};
use wasmparser::types::TypesRef;
use wasmparser::{Encoding, Parser, Payload, Validator};

use super::contract::{self, Interface, VERSION};
use super::engine::FEATURES;
use super::inspect::Role;

/// The interfaces that a component imports and exports; without a role it is taken for what it says that it is.
///
/// # Errors
/// All problems at once.
pub(super) fn inspect(
    bytes: &[u8],
    role: Option<Role>,
) -> Result<(Vec<String>, Vec<String>), Vec<String>> {
    let one = |problem: String| vec![problem];
    check_kind(bytes, role).map_err(one)?;
    let types = Validator::new_with_features(FEATURES).validate_all(bytes).map_err(|error| {
        vec![format!(
            "it is damaged or cut short, or uses something that plugins may not: {} at byte {} of {}; build it anew or copy it again",
            error.message(),
            error.offset(),
            bytes.len()
        )]
    })?;
    let (imports, exports) = top_level(bytes).map_err(|error| vec![error.to_string()])?;
    let mut problems = Vec::new();
    let is_sink = exports.iter().any(|name| contract::is(name, "sink"));
    let role = role.unwrap_or(if is_sink { Role::Sink } else { Role::Transform });
    check_exports(types.as_ref(), &exports, role, &mut problems);
    check_imports(types.as_ref(), &imports, role, &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok((imports, exports))
}

/// Tells a component from everything else by its first bytes.
fn check_kind(bytes: &[u8], role: Option<Role>) -> Result<(), String> {
    if bytes.is_empty() {
        return Err("it is empty; build it anew or copy it again".to_owned());
    }
    if !bytes.starts_with(b"\0asm") {
        return Err("it is no WebAssembly; a plugin is a component (.wasm)".to_owned());
    }
    match Parser::new(0).parse(bytes, true) {
        Ok(wasmparser::Chunk::Parsed {
            payload: Payload::Version { encoding: Encoding::Module, .. },
            ..
        }) => {
            let world = match role {
                Some(Role::Sink) => "sink-plugin",
                _ => "transform-plugin",
            };
            Err(format!(
                "it is a core module; make it a component of the world waystation:plugin/{world}@{VERSION}: `waystation plugin pack`"
            ))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "it is damaged or cut short: {}; build it anew or copy it again",
            error.message()
        )),
    }
}

pub(super) fn top_level(
    bytes: &[u8],
) -> Result<(Vec<String>, Vec<String>), wasmparser::BinaryReaderError> {
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0u32;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    imports.push(import?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    exports.push(export?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok((imports, exports))
}

fn check_exports(types: TypesRef<'_>, exports: &[String], role: Role, problems: &mut Vec<String>) {
    let (wanted, other, misused) = match role {
        Role::Transform => (
            &contract::TRANSFORM,
            &contract::SINK,
            "it is a sink, used as a transform here; use it in a [sinks.NAME] table with type = \"plugin\"",
        ),
        Role::Sink => (
            &contract::SINK,
            &contract::TRANSFORM,
            "it is a transform, used as a sink here; use it in a [transforms.NAME] table",
        ),
    };
    if role == Role::Transform && exports.contains(&contract::TICKS.full_name()) {
        check_functions(types, &contract::TICKS, true, problems);
    }
    if exports.contains(&wanted.full_name()) {
        check_functions(types, wanted, true, problems);
    } else if let Some(found) = exports.iter().find(|name| contract::is(name, wanted.name)) {
        problems.push(format!(
            "it exports {found}, and this agent runs {}; build it with a matching version of the SDK",
            wanted.full_name()
        ));
    } else if exports.iter().any(|name| contract::is(name, other.name)) {
        problems.push(misused.to_owned());
    } else {
        problems.push(format!(
            "it does not export {}, so there is nothing to run; it exports {}",
            wanted.full_name(),
            if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") }
        ));
    }
}

fn check_imports(types: TypesRef<'_>, imports: &[String], role: Role, problems: &mut Vec<String>) {
    let http = (role == Role::Sink).then_some(&contract::HTTP);
    let offered = || contract::IMPORTS.iter().chain(http);
    for name in imports {
        if let Some(interface) = offered().find(|known| known.full_name() == *name) {
            check_functions(types, interface, false, problems);
        } else if http.is_none() && contract::is(name, "http") {
            problems.push(format!("it imports {name}, which is for sinks only"));
        } else if let Some(known) = offered().find(|known| contract::is(name, known.name)) {
            problems.push(format!(
                "it imports {name}, and this agent offers {}; build it with a matching version of the SDK",
                known.full_name()
            ));
        } else if name.starts_with("wasi:") {
            problems.push(format!(
                "it imports {name}, which plugins are not given: no files, sockets, clock, randomness or environment; build it for wasm32-unknown-unknown or with WASI stubbed"
            ));
        } else {
            problems.push(format!("it imports {name}, which this agent does not know"));
        }
    }
}

/// Compares the functions of an interface with what the contract says of them.
///
/// An export must have all of them; an import may leave out what the guest does not use.
fn check_functions(
    types: TypesRef<'_>,
    interface: &Interface,
    exported: bool,
    problems: &mut Vec<String>,
) {
    let full_name = interface.full_name();
    let (verb, item) = if exported {
        ("exports", types.component_item_for_export(&full_name))
    } else {
        ("imports", types.component_item_for_import(&full_name))
    };
    let Some(ComponentEntityType::Instance(id)) = item.map(|item| item.ty) else {
        problems.push(format!("it {verb} {full_name}, but not as an interface"));
        return;
    };
    let instance = &types[id];
    for (function, wanted) in interface.functions {
        match signature(types, instance, function) {
            Some(found) if found == *wanted => {}
            Some(found) => problems.push(format!(
                "it {verb} the function {function} of {full_name} as {found}, and this agent has it as {wanted}"
            )),
            None if exported => {
                problems.push(format!("it does not export the function {function} of {full_name}"));
            }
            None => {}
        }
    }
    if !exported {
        for (name, item) in &instance.exports {
            let known = interface.functions.iter().any(|(function, _)| function == name);
            if matches!(item.ty, ComponentEntityType::Func(_)) && !known {
                problems.push(format!(
                    "it imports the function {name} of {full_name}, which this agent does not know"
                ));
            }
        }
    }
}

fn signature(
    types: TypesRef<'_>,
    instance: &ComponentInstanceType,
    function: &str,
) -> Option<String> {
    let item = instance.exports.get(function)?;
    let ComponentEntityType::Func(id) = item.ty else { return Some("no function".to_owned()) };
    let ty = &types[id];
    let mut text = String::from(if ty.async_ { "async func(" } else { "func(" });
    for (at, (name, value)) in ty.params.iter().enumerate() {
        text.push_str(if at == 0 { "" } else { ", " });
        text.push_str(name);
        text.push_str(": ");
        describe(types, *value, &mut text);
    }
    text.push(')');
    if let Some(result) = ty.result {
        text.push_str(" -> ");
        describe(types, result, &mut text);
    }
    Some(text)
}

/// Writes a type as the WIT would have it, with the names of named types replaced by what they stand for.
fn describe(types: TypesRef<'_>, ty: ComponentValType, out: &mut String) {
    let id = match ty {
        ComponentValType::Primitive(primitive) => {
            out.push_str(&primitive.to_string());
            return;
        }
        ComponentValType::Type(id) => id,
    };
    match &types[id] {
        ComponentDefinedType::Primitive(primitive) => out.push_str(&primitive.to_string()),
        ComponentDefinedType::Record(record) => {
            let fields = record.fields.iter().map(|(name, ty)| (name.as_str(), Some(*ty)));
            describe_list(types, "record", fields, out);
        }
        ComponentDefinedType::Variant(variant) => {
            let cases = variant.cases.iter().map(|(name, case)| (name.as_str(), case.ty));
            describe_list(types, "variant", cases, out);
        }
        ComponentDefinedType::Enum(names) => {
            let names = names.iter().map(|name| (name.as_str(), None));
            describe_list(types, "enum", names, out);
        }
        ComponentDefinedType::List { element, .. } => {
            let parts = [("", Some(*element))];
            describe_list(types, "list", parts.into_iter(), out);
        }
        ComponentDefinedType::Option { ty, .. } => {
            let parts = [("", Some(*ty))];
            describe_list(types, "option", parts.into_iter(), out);
        }
        ComponentDefinedType::Result { ok, err, .. } => {
            let parts = [("ok", *ok), ("err", *err)];
            describe_list(types, "result", parts.into_iter(), out);
        }
        // The contract has none of these, so a name is all that a message needs.
        ComponentDefinedType::Tuple(_) => out.push_str("tuple"),
        ComponentDefinedType::Flags(_) => out.push_str("flags"),
        _ => out.push_str("another type"),
    }
}

fn describe_list<'a>(
    types: TypesRef<'_>,
    kind: &str,
    parts: impl Iterator<Item = (&'a str, Option<ComponentValType>)>,
    out: &mut String,
) {
    out.push_str(kind);
    out.push('<');
    for (at, (name, ty)) in parts.enumerate() {
        out.push_str(if at == 0 { "" } else { ", " });
        out.push_str(name);
        if let Some(ty) = ty {
            out.push_str(if name.is_empty() { "" } else { ": " });
            describe(types, ty, out);
        }
    }
    out.push('>');
}
