//! Inspection: each problem in words, and all of them at once.

use super::*;

fn problems(bytes: &[u8]) -> Vec<String> {
    inspect::inspect_bytes(bytes, Some(Role::Transform)).unwrap_err()
}

/// Encodes a component of a world in the package `test:guest` that may name the interfaces of the contract.
fn component_of(world: &str) -> Vec<u8> {
    dummy(&contract_text(), world)
}

fn contract_text() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("wit/plugin.wit");
    fs::read_to_string(path).unwrap()
}

fn dummy(contract: &str, world: &str) -> Vec<u8> {
    dummy_with(contract, "package test:none;", world)
}

fn dummy_with(contract: &str, other: &str, world: &str) -> Vec<u8> {
    use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
    use wit_parser::{ManglingAndAbi, Resolve};

    let mut resolve = Resolve::default();
    resolve.push_str("plugin.wit", contract).unwrap();
    resolve.push_str("other.wit", other).unwrap();
    let guest = format!(
        "package test:guest;
         interface mailbox {{ post: func(letter: string); }}
         interface transform {{ init: func(); }}
         world guest {{ {world} }}"
    );
    let package = resolve.push_str("guest.wit", &guest).unwrap();
    let world = resolve.select_world(&[package], Some("guest")).unwrap();
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&module).unwrap().encode().unwrap()
}

const TRANSFORM: &str = "export waystation:plugin/transform@0.1.0;";
const SINK: &str = "export waystation:plugin/sink@0.1.0;";

#[test]
fn the_guests_that_are_built_here_pass() {
    let inspection = inspect(&component("test-guests"), None).unwrap();
    let exports = ["waystation:plugin/transform@0.1.0", "waystation:plugin/ticks@0.1.0"];
    assert_eq!(inspection.exports, exports);
    assert!(inspection.has_ticks());
    for import in ["log", "state"] {
        let name = format!("waystation:plugin/{import}@0.1.0");
        assert!(inspection.imports.contains(&name), "{:?}", inspection.imports);
    }
    assert!(!inspection.compiled);
    assert!(!inspect(&component("clean"), Some(Role::Transform)).unwrap().has_ticks());
}

#[test]
fn the_plugins_that_are_shipped_say_what_they_are_and_what_config_they_take() {
    let about = "waystation:plugin/about@0.1.0";
    for name in ["json-filter", "json-map", "redact", "sample", "webhook", "window"] {
        let inspection = inspect(&component(name), None).unwrap();
        assert!(inspection.exports.iter().any(|export| export == about), "{inspection:?}");
        assert!(inspection.size_bytes < 400 * 1024, "{name}: {} bytes", inspection.size_bytes);
    }
    let [(_, name), (_, version), (_, summary), (_, schema)] = &describe("sample")[..] else {
        panic!()
    };
    assert_eq!((name.as_str(), version.as_str()), ("sample", "0.1.0"));
    assert!(summary.starts_with("Passes on every n-th record"), "{summary}");
    let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
    assert!(schema["properties"]["max_silence"].is_object(), "{schema}");
}

/// What the interface `about` of a component says.
fn describe(name: &str) -> Vec<(String, String)> {
    use wasmtime::Store;
    use wasmtime::component::{Component, Linker, Val};

    let engine = Runtime::new(Memories::Kept).unwrap().engine;
    let component = Component::new(&engine, fs::read(component(name)).unwrap()).unwrap();
    let mut linker = Linker::new(&engine);
    linker.define_unknown_imports_as_traps(&component).unwrap();
    let mut store = Store::new(&engine, ());
    store.set_epoch_deadline(1_000_000);
    let instance = linker.instantiate(&mut store, &component).unwrap();
    let about =
        instance.get_export_index(&mut store, None, "waystation:plugin/about@0.1.0").unwrap();
    let describe = instance.get_export_index(&mut store, Some(&about), "describe").unwrap();
    let mut results = [Val::Bool(false)];
    let describe = instance.get_func(&mut store, describe).unwrap();
    describe.call(&mut store, &[], &mut results).unwrap();
    let [Val::Record(fields)] = results else { panic!("{results:?}") };
    fields
        .into_iter()
        .map(|(name, value)| match value {
            Val::String(text) => (name, text),
            other => panic!("{name}: {other:?}"),
        })
        .collect()
}

#[test]
fn the_contract_in_the_code_is_that_of_the_wit() {
    let all = "import waystation:plugin/log@0.1.0; import waystation:plugin/state@0.1.0;";
    let bytes = component_of(&format!("{all} {TRANSFORM}"));
    let inspection = inspect::inspect_bytes(&bytes, None).unwrap();
    assert_eq!(inspection.imports.len(), 3, "{:?}", inspection.imports);
}

#[test]
fn the_contract_of_sinks_in_the_code_is_that_of_the_wit() {
    let all = "import waystation:plugin/log@0.1.0; import waystation:plugin/state@0.1.0; import waystation:plugin/http@0.1.0;";
    let bytes = component_of(&format!("{all} {SINK}"));
    for role in [None, Some(Role::Sink)] {
        let inspection = inspect::inspect_bytes(&bytes, role).unwrap();
        assert_eq!(inspection.imports.len(), 4, "{:?}", inspection.imports);
    }
}

#[test]
fn what_keeps_a_file_from_being_a_sink_is_said_all_at_once() {
    let told = |bytes: &[u8]| inspect::inspect_bytes(bytes, Some(Role::Sink)).unwrap_err();
    let [problem] = &told(&component_of(TRANSFORM))[..] else { panic!() };
    assert!(problem.starts_with("it is a transform, used as a sink here"), "{problem}");
    let more = "import mailbox; import waystation:plugin/http@0.1.0;";
    let problems = told(&component_of(&format!("{TRANSFORM} {more}")));
    assert_eq!(problems.len(), 2, "{problems:?}");
    let old = contract_text().replace("plugin@0.1.0", "plugin@0.0.9");
    let world = "import waystation:plugin/http@0.0.9; export waystation:plugin/sink@0.0.9;";
    let problems = told(&dummy(&old, world));
    assert!(problems[0].contains("this agent runs waystation:plugin/sink@0.1.0"), "{problems:?}");
    assert!(problems.iter().any(|p| p.contains("plugin/http@0.0.9")), "{problems:?}");
    let [problem] = &told(b"\0asm\x01\0\0\0")[..] else { panic!() };
    assert!(problem.contains("waystation:plugin/sink-plugin@"), "{problem}");
}

#[test]
fn a_world_with_ticks_and_about_is_a_transform_too() {
    let more = "export waystation:plugin/ticks@0.1.0; export waystation:plugin/about@0.1.0;";
    inspect::inspect_bytes(&component_of(&format!("{TRANSFORM} {more}")), None).unwrap();
}

#[test]
fn a_core_module_is_told_from_a_component() {
    let [problem] = &problems(b"\0asm\x01\0\0\0")[..] else { panic!() };
    assert!(
        problem.starts_with("it is a core module; make it a component of the world"),
        "{problem}"
    );
}

#[test]
fn what_is_empty_or_no_wasm_is_said_so() {
    assert_eq!(problems(b""), ["it is empty; build it anew or copy it again"]);
    assert!(problems(b"#!/bin/sh\n")[0].starts_with("it is no WebAssembly"));
    assert!(problems(b"\0asm")[0].contains("damaged or cut short"));
    assert!(problems(b"\0asm\x63\0\x01\0")[0].contains("damaged or cut short"));
}

#[test]
fn a_file_that_is_missing_or_no_file_is_said_so() {
    assert!(
        inspect(Path::new("/nowhere/x.wasm"), None).unwrap_err()[0]
            .starts_with("it cannot be read")
    );
    assert!(inspect(Path::new("/tmp"), None).unwrap_err()[0].contains("no regular file"));
}

#[test]
fn a_file_cut_or_flipped_anywhere_is_never_accepted_as_something_else() {
    let bytes = fs::read(component("test-sink")).unwrap();
    for length in (0..bytes.len()).step_by(997) {
        let problems = problems(&bytes[..length]);
        assert_eq!(problems.len(), 1, "{length}: {problems:?}");
        assert!(problems[0].contains("again"), "{length}: {problems:?}");
    }
    let mut flipped = fs::read(component("clean")).unwrap();
    for at in (8..flipped.len()).step_by(4099) {
        flipped[at] ^= 0x55;
        // Some bytes mean nothing to a validator, such as constants; it only must not panic.
        let _either = inspect::inspect_bytes(&flipped, None);
        flipped[at] ^= 0x55;
    }
}

#[test]
fn a_sink_used_as_a_transform_is_explained_with_all_that_follows() {
    let problems = inspect(&component("test-sink"), Some(Role::Transform)).unwrap_err();
    assert!(problems[0].starts_with("it is a sink, used as a transform here"), "{problems:?}");
    assert_eq!(problems[1..], ["it imports waystation:plugin/http@0.1.0, which is for sinks only"]);
}

/// What an operator has compiled is not looked through before it is linked.
#[test]
fn a_compiled_transform_is_not_linked_with_what_is_for_sinks() {
    let host = TestHost::new();
    let load = |imports: &str| {
        let component = component_of(&format!("{imports} {TRANSFORM}"));
        let code = precompiled(&component);
        let file = host.dir.path().join("code");
        fs::write(&file, &code).unwrap();
        let mut settings = settings(file);
        settings.guest.sha256 = Some(sha256(&code));
        host.host.load(&settings).map(drop)
    };
    load("import waystation:plugin/state@0.1.0;").unwrap();
    let error = load("import waystation:plugin/http@0.1.0;").unwrap_err().to_string();
    assert!(error.contains("waystation:plugin/http@0.1.0"), "{error}");
}

#[test]
fn another_version_of_the_interface_is_named_wanted_against_offered() {
    let newer = contract_text().replace("@0.1.0", "@0.2.0");
    let world = "import waystation:plugin/log@0.2.0; export waystation:plugin/transform@0.2.0;";
    let problems = problems(&dummy(&newer, world));
    assert!(problems[0].contains(
        "exports waystation:plugin/transform@0.2.0, and this agent runs waystation:plugin/transform@0.1.0"
    ));
    assert!(
        problems.iter().any(|problem| problem.contains(
            "imports waystation:plugin/log@0.2.0, and this agent offers waystation:plugin/log@0.1.0"
        )),
        "{problems:?}"
    );
}

#[test]
fn unknown_imports_and_missing_exports_are_all_told_at_once() {
    let problems =
        problems(&component_of("import mailbox; import post: func(); export transform;"));
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].contains("does not export waystation:plugin/transform@0.1.0"));
    assert!(problems[0].ends_with("it exports test:guest/transform"));
    assert!(problems.iter().any(|problem| problem.starts_with("it imports test:guest/mailbox")));
    assert!(problems.iter().any(|problem| problem.starts_with("it imports post")));
}

#[test]
fn wasi_is_explained() {
    let wasi = "package wasi:clocks@0.2.0; interface wall-clock { now: func() -> u64; }";
    let world = format!("import wasi:clocks/wall-clock@0.2.0; {TRANSFORM}");
    let problems = problems(&dummy_with(&contract_text(), wasi, &world));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .starts_with("it imports wasi:clocks/wall-clock@0.2.0, which plugins are not given")
    );
}

#[test]
fn functions_that_differ_are_named_with_both_signatures() {
    let other = contract_text()
        .replace("log: func(level: level, message: string)", "log: func(message: string)")
        .replace("delete: func(key: string)", "delete: func(key: string); sync: func()")
        .replace("process: func(now: s64, records", "process: func(records");
    let world = format!(
        "import waystation:plugin/log@0.1.0; import waystation:plugin/state@0.1.0; {TRANSFORM}"
    );
    let problems = problems(&dummy(&other, &world));
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with(
        "it exports the function process of waystation:plugin/transform@0.1.0 as func(records: "
    ));
    assert!(problems[0].contains("and this agent has it as func(now: s64, records: "));
    assert!(
        problems[1]
            .contains("the function log of waystation:plugin/log@0.1.0 as func(message: string)")
    );
    assert!(problems[2].contains(
        "the function sync of waystation:plugin/state@0.1.0, which this agent does not know"
    ));
}
