//! Packing: what becomes a component, and everything that keeps a module from it.

use super::*;
use crate::limits::PLUGIN_KEPT_DATA_BYTES_MAX;

/// A core module of the world `transform-plugin` with these imports, by hand, that does not say which world it is of. Its `init`
/// ends with what `check` leaves on the stack: 0 is well, everything else a trap.
fn module(imports: &str, check: &str) -> Vec<u8> {
    module_with(&format!(r#"{imports} (memory (export "memory") 1)"#), check)
}

/// The same with what stands before its functions, a memory among it.
fn module_with(first: &str, check: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(module
            {first}
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 1024))
            (func (export "waystation:plugin/transform@0.1.0#init")
                (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
                (if {check} (then unreachable))
                (i32.const 0))
            (func (export "waystation:plugin/transform@0.1.0#process")
                (param i64 i32 i32) (result i32) (i32.const 0)))"#
    ))
    .unwrap()
}

const TRANSFORM: Option<&str> = Some("transform-plugin");

fn packed(module: &[u8]) -> Result<Vec<u8>, Vec<String>> {
    pack::pack_bytes(module, TRANSFORM)
}

fn problems(module: &[u8]) -> Vec<String> {
    packed(module).unwrap_err()
}

/// Has the agent run a component: instantiation, `init` and an empty call.
fn run_component(component: &[u8]) -> Result<Vec<Outcome>, CallError> {
    let host = TestHost::new();
    run(&load_component(&host, component), &[])
}

fn load_component(host: &TestHost, component: &[u8]) -> Plugin {
    let (file, code) = (host.dir.path().join("packed.wasm"), host.dir.path().join("code"));
    fs::write(&file, component).unwrap();
    let digest = compile_file(&file, &code, None).unwrap();
    let mut settings = settings(code);
    settings.guest.sha256 = Some(digest);
    host.host.load(&settings).unwrap()
}

#[test]
fn a_module_becomes_the_same_component_every_time_and_the_agent_runs_it() {
    let module = module("", "(i32.const 0)");
    let component = packed(&module).unwrap();
    assert_eq!(component, packed(&module).unwrap());
    let inspection = inspect::inspect_bytes(&component, None).unwrap();
    assert_eq!(inspection.exports, ["waystation:plugin/transform@0.1.0"]);
    assert_eq!(run_component(&component).unwrap(), []);
}

/// Its `init` traps where the memory is not what its module says, and leaves a mark in each page but the first, where its answers lie.
fn marking_module(data_bytes: usize) -> Vec<u8> {
    let imports = format!(
        r#"(memory (export "memory") 16)
           (data (i32.const 4096) "{}")
           (func $is_new (result i32)
               (local $at i32) (local $dirty i32)
               (local.set $at (i32.const 4096))
               (loop $pages
                   (local.set $dirty (i32.or (local.get $dirty) (i32.load8_u (local.get $at))))
                   (i32.store8 (local.get $at) (i32.const 1))
                   (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                   (br_if $pages (i32.lt_u (local.get $at) (i32.const 1048576))))
               (i32.or (local.get $dirty) (i32.ne (memory.size) (i32.const 16)))
               (drop (memory.grow (i32.const 1))))"#,
        "\\00".repeat(data_bytes)
    );
    module_with(&imports, "(call $is_new)")
}

#[test]
fn a_new_instance_finds_nothing_of_an_earlier_one_however_its_memory_is_made() {
    for (data_bytes, memories) in
        [(1000, Memories::Kept), (PLUGIN_KEPT_DATA_BYTES_MAX + 1, Memories::Mapped)]
    {
        let component = packed(&marking_module(data_bytes)).unwrap();
        assert_eq!(Memories::of(&component), memories);
        let host = TestHost::new();
        let plugin = load_component(&host, &component);
        for _ in 0..5 {
            assert_eq!(run(&plugin, &[]).unwrap(), []);
        }
    }
}

#[test]
fn a_module_that_says_which_world_it_is_of_needs_no_other_word() {
    let folder = target_folder().join("guests");
    let module = ["rustup", "debian"].iter().find_map(|toolchain| {
        let built = format!("{toolchain}/wasm32-unknown-unknown/release/clean.wasm");
        fs::read(folder.join(built)).ok()
    });
    let module = module.expect("run `cargo xtask plugins`");
    let component = pack::pack_bytes(&module, None).unwrap();
    // What `cargo xtask plugins` makes with the same crate.
    assert!(component == fs::read(super::component("clean")).unwrap(), "another component");
}

#[test]
fn one_that_does_not_say_it_is_asked_for_it() {
    let module = module("", "(i32.const 0)");
    let [problem] = &pack::pack_bytes(&module, None).unwrap_err()[..] else { panic!() };
    assert_eq!(
        problem,
        "it does not say which world it is of; name it, for example --world transform-plugin"
    );
    let [problem] = &pack::pack_bytes(&module, Some("source-plugin")).unwrap_err()[..] else {
        panic!()
    };
    assert_eq!(
        problem,
        "there is no world \"source-plugin\"; there are transform-plugin, windowed-plugin, sink-plugin"
    );
}

#[test]
fn the_stub_answers_what_a_runtime_asks_of_wasi_at_its_start() {
    let imports = r#"
        (import "wasi_snapshot_preview1" "args_sizes_get" (func $args (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
        (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;
    // Each writes over ones what it should, leaves the other bytes alone, and says so.
    let check = r"
        (block (result i32)
            (i64.store (i32.const 64) (i64.const -1))
            (i64.store (i32.const 72) (i64.const -1))
            (i64.store (i32.const 80) (i64.const -1))
            (i32.or (call $args (i32.const 64) (i32.const 68))
            (i32.or (call $clock (i32.const 0) (i64.const 1) (i32.const 72))
            (i32.or (call $random (i32.const 80) (i32.const 8))
            (i32.or (i32.ne (call $write (i32.const 1) (i32.const 0) (i32.const 0) (i32.const 96)) (i32.const 8))
            (i32.or (i64.ne (i64.load (i32.const 64)) (i64.const 0))
            (i32.or (i64.ne (i64.load (i32.const 72)) (i64.const 1000000000))
                    (i64.ne (i64.load (i32.const 80)) (i64.const -1)))))))))";
    let component = packed(&module(imports, check)).unwrap();
    let imported = inspect::inspect_bytes(&component, None).unwrap().imports;
    assert_eq!(imported, ["waystation:plugin/types@0.1.0"]);
    assert_eq!(run_component(&component).unwrap(), []);
    let exits = "(block (result i32) (call $exit (i32.const 0)) (i32.const 0))";
    let (kind, _) = fault(run_component(&packed(&module(imports, exits)).unwrap()));
    assert_eq!(kind, FaultKind::Trap);
}

#[test]
fn all_imports_that_nothing_answers_are_told_at_once() {
    let imports = r#"
        (import "env" "abort" (func))
        (import "gojs" "runtime.wasmExit" (func (param i32)))
        (import "wasi:cli/environment@0.2.0" "get-environment" (func (param i32)))
        (import "wasi_snapshot_preview1" "fd_fly" (func))
        (import "waystation:plugin/log@0.1.0" "shout" (func))
        (import "waystation:plugin/http@0.1.0" "send" (func))
        (import "waystation:plugin/log@0.1.0" "log" (func (param i32 i32 i32)))"#;
    let problems = problems(&module(imports, "(i32.const 0)"));
    let starts = [
        "it imports abort from env: no library that it was linked with has it",
        "it imports runtime.wasmExit from gojs: it was built for a browser; build it with GOOS=wasip1",
        "it imports get-environment from wasi:cli/environment@0.2.0: plugins are not given WASI",
        "it imports fd_fly from wasi_snapshot_preview1: this version of WASI has no such function",
        "it imports shout from waystation:plugin/log@0.1.0: the world it is of has no such function",
        "it imports send from waystation:plugin/http@0.1.0: the world it is of has no such function",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for (problem, start) in problems.iter().zip(starts) {
        assert!(problem.starts_with(start), "{problem}");
    }
}

#[test]
fn all_exports_that_are_missing_are_told_at_once() {
    let empty = wat::parse_str("(module)").unwrap();
    let problems = pack::pack_bytes(&empty, Some("windowed-plugin")).unwrap_err();
    let expected = [
        "it does not export waystation:plugin/transform@0.1.0#init, which its world asks for",
        "it does not export waystation:plugin/transform@0.1.0#process, which its world asks for",
        "it does not export waystation:plugin/ticks@0.1.0#tick, which its world asks for",
        "it does not export memory, its memory",
        "it does not export cabi_realloc, the function that makes room for what it is given",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn a_function_of_another_shape_is_named() {
    let other = wat::parse_str(
        r#"(module
            (memory (export "memory") 1)
            (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 0))
            (func (export "waystation:plugin/transform@0.1.0#init") (result i32) (i32.const 0))
            (func (export "waystation:plugin/transform@0.1.0#process") (result i32) (i32.const 0)))"#,
    );
    let [problem] = &problems(&other.unwrap())[..] else { panic!() };
    assert!(problem.starts_with("it does not fit the world it is of: "), "{problem}");
    assert!(problem.contains("transform@0.1.0#init"), "{problem}");
}

#[test]
fn what_is_no_core_module_is_said_so() {
    let component = packed(&module("", "(i32.const 0)")).unwrap();
    let [problem] = &problems(&component)[..] else { panic!() };
    assert_eq!(problem, "it is a component already: use it as it is");
    let code = precompiled(&component);
    assert_eq!(problems(&code), ["it is compiled already: there is nothing to pack"]);
    assert_eq!(problems(b""), ["it is empty; build it anew or copy it again"]);
    assert!(problems(b"#!/bin/sh\n")[0].starts_with("it is no WebAssembly"));
    let module = module("", "(i32.const 0)");
    for length in 1..module.len() {
        let problems = problems(&module[..length]);
        assert!(problems.len() == 1 || !problems[0].contains("again"), "{length}: {problems:?}");
    }
}

#[test]
fn the_worlds_that_can_be_named_are_those_of_the_wit() {
    let named = WIT.lines().filter_map(|line| line.strip_prefix("world ")?.split_once(' '));
    let named: Vec<_> = named.map(|(name, _)| name).collect();
    assert_eq!(named, WORLDS);
}

#[test]
fn a_report_says_what_a_file_is_and_which_worlds_it_fits() {
    let report_of = |name: &str| report(&component(name)).unwrap();
    let clean = report_of("clean");
    assert_eq!((clean.kind, &clean.worlds[..]), (FileKind::Component, &["transform-plugin"][..]));
    assert_eq!(clean.interface_versions, ["0.1.0"]);
    assert!(clean.problems.is_empty(), "{:?}", clean.problems);
    assert_eq!(report_of("window").worlds, ["transform-plugin", "windowed-plugin"]);
    let sink = report_of("test-sink");
    assert_eq!((&sink.worlds[..], &sink.problems[..]), (&["sink-plugin"][..], &[][..]));
    let core = TestHost::new();
    let file = core.dir.path().join("core.wasm");
    fs::write(&file, module("", "(i32.const 0)")).unwrap();
    let report = report(&file).unwrap();
    assert_eq!(report.kind, FileKind::CoreModule);
    assert!(report.problems[0].ends_with("`waystation plugin pack`"), "{:?}", report.problems);
}
