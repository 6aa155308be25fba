//! `waystation plugin pack`, `inspect` and `test`: what authors see of their plugin, and each fault that is planted in one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::support::{plugin, repository};

fn tool(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_waystation"));
    command.arg("plugin").args(arguments).env_clear().current_dir("/").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A core module that `cargo xtask plugins` has left behind.
fn core_module(name: &str) -> PathBuf {
    let built = |toolchain: &str| {
        let folder = format!("target/guests/{toolchain}/wasm32-unknown-unknown/release");
        repository(&folder).join(name).with_extension("wasm")
    };
    let mut found = ["rustup", "debian"].map(built).into_iter();
    found.find(|path| path.exists()).expect("run `cargo xtask plugins`")
}

fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_core_module_is_packed_once_and_replaced_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let (core, out) = (core_module("clean"), folder.path().join("clean.wasm"));
    let pack = |more: &[&str]| tool(&[&["pack", shown(&core), "-o", shown(&out)], more].concat());
    let output = pack(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("clean.wasm is a component of 1"), "{output:?}");
    let inspected = tool(&["inspect", shown(&out), "--json"]);
    let report: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!(report["sha256"], text(&output.stdout).trim(), "{report}");

    std::fs::write(&out, "mine").unwrap();
    let output = pack(&[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("clean.wasm exists\nhint: --force replaces it"), "{said}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "mine");
    assert!(pack(&["--force"]).status.success());
    assert!(std::fs::read(&out).unwrap() == std::fs::read(plugin("clean")).unwrap());
    let left: Vec<_> = folder.path().read_dir().unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn what_cannot_be_packed_is_told_with_everything_that_is_wrong_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (core, out) = (folder.path().join("core.wasm"), folder.path().join("out.wasm"));
    std::fs::write(&core, wat::parse_str(r#"(module (import "env" "abort" (func)))"#).unwrap())
        .unwrap();
    let arguments = ["pack", shown(&core), "--world", "transform-plugin", "-o", shown(&out)];
    let output = tool(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    for part in [
        "core.wasm cannot be packed:\n  - it does not export waystation:plugin/transform@0.1.0#init",
        "\n  - it does not export waystation:plugin/transform@0.1.0#process",
        "\n  - it imports abort from env: no library that it was linked with has it",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = tool(&["pack", shown(&plugin("clean")), "-o", shown(&out)]);
    assert!(text(&output.stderr).contains("it is a component already"), "{output:?}");
    let output = tool(&["pack", shown(&core), "--world", "mine", "-o", shown(&out)]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = tool(&["pack", "/nowhere.wasm", "-o", shown(&out)]);
    assert!(text(&output.stderr).contains("/nowhere.wasm cannot be packed: it cannot be read"));
    assert!(!out.exists());
}

#[test]
fn an_inspection_tells_what_a_plugin_is_and_what_config_it_takes() {
    let file = plugin("json-filter");
    let output = tool(&["inspect", shown(&file), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["kind"], "component");
    assert_eq!(report["worlds"], serde_json::json!(["transform-plugin"]));
    assert_eq!(report["interface_versions"], serde_json::json!(["0.1.0"]));
    assert_eq!(report["about"]["name"], "json-filter");
    assert!(report["about"]["config_schema"]["properties"]["conditions"].is_object(), "{report}");
    let page = text(&tool(&["inspect", shown(&file)]).stdout);
    for line in ["kind       component", "worlds     transform-plugin", "name       json-filter"] {
        assert!(page.lines().any(|of_page| of_page == line), "{line}: {page}");
    }
}

#[test]
fn an_inspection_lists_everything_that_keeps_a_file_from_being_used() {
    let core = core_module("clean");
    let output = tool(&["inspect", shown(&core)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("kind       core module\n"), "{output:?}");
    let said = text(&output.stderr);
    assert!(said.contains("cannot be used: it is a core module"), "{said}");
    assert!(said.contains("`waystation plugin pack`"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let code = folder.path().join("clean.code");
    assert!(tool(&["compile", shown(&plugin("clean")), "-o", shown(&code)]).status.success());
    let output = tool(&["inspect", shown(&code), "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["kind"]), (Some(0), &Value::from("compiled")));
    let output = tool(&["inspect", "/nowhere.wasm"]);
    assert!(text(&output.stderr).contains("/nowhere.wasm cannot be read"), "{output:?}");
}

/// Runs `plugin test --json` on the guest of the tests, and gives its lines.
fn tested(config: &str) -> (Option<i32>, Vec<Value>) {
    tested_as(config, "reuse")
}

fn tested_as(config: &str, instance: &str) -> (Option<i32>, Vec<Value>) {
    let guest = plugin("test-guests");
    let output =
        tool(&["test", shown(&guest), "--json", "--config", config, "--instance", instance]);
    let lines = text(&output.stdout);
    let lines: Vec<_> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 10, "{}", text(&output.stderr));
    (output.status.code(), lines)
}

/// The names and details of what ended so.
fn ended(lines: &[Value], result: &str) -> Vec<(String, String)> {
    let ended = lines.iter().filter(|line| line["result"] == result);
    ended.map(|line| (line["name"].as_str().unwrap().into(), line["details"].to_string())).collect()
}

#[test]
fn a_plugin_that_stands_everything_passes() {
    for config in ["{}", r#"{"do":"state"}"#, r#"{"do":"reject"}"#] {
        let (code, lines) = tested(config);
        assert_eq!((code, ended(&lines, "passed").len()), (Some(0), 10), "{config}: {lines:#?}");
    }
}

#[test]
fn a_counter_in_the_memory_of_an_instance_is_found() {
    let (code, lines) = tested(r#"{"do":"counter"}"#);
    let failed = ended(&lines, "failed");
    let names: Vec<_> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "1000 records at once, and in cuts of 1, 10 and 333",
            "the same batch twice, by one instance"
        ]
    );
    assert!(failed[0].1.contains("record 2 differs"), "{failed:?}");
    assert!(failed[0].1.contains("belongs into the state"), "{failed:?}");
    assert!(failed[1].1.contains("record 1 differs"), "{failed:?}");
    assert_eq!(code, Some(1));
}

#[test]
fn a_leak_is_found() {
    let (code, lines) = tested(r#"{"do":"leak","size":20}"#);
    let failed = ended(&lines, "failed");
    assert_eq!(failed.len(), 1, "{lines:#?}");
    assert_eq!(failed[0].0, "10 000 batches, flat memory");
    assert!(failed[0].1.contains("the memory of a used instance grew by "), "{failed:?}");
    assert_eq!(code, Some(1));
    // With a new instance for each batch nothing of it stays.
    let (code, lines) = tested_as(r#"{"do":"leak","size":20}"#, "per_batch");
    let warnings = ended(&lines, "warning");
    assert_eq!((code, warnings.len()), (Some(0), 1), "{lines:#?}");
    assert!(warnings[0].1.contains("not fit for instance = "), "{warnings:?}");
}

#[test]
fn an_output_that_depends_on_the_clock_is_warned_of_with_the_reason() {
    let (code, lines) = tested(r#"{"do":"clock"}"#);
    let warnings = ended(&lines, "warning");
    assert_eq!((code, warnings.len(), ended(&lines, "failed").len()), (Some(0), 1, 0));
    assert_eq!(warnings[0].0, "two clocks");
    assert!(warnings[0].1.contains("run again after a crash"), "{warnings:?}");
}

#[test]
fn a_plugin_that_breaks_down_on_what_nobody_meant_is_found() {
    let (code, lines) = tested(r#"{"trap_on":"oops"}"#);
    let failed = ended(&lines, "failed");
    assert_eq!((code, failed.len()), (Some(1), 1), "{lines:#?}");
    assert_eq!(failed[0].0, "a payload that is no JSON");
    assert!(failed[0].1.contains("it broke down: trap"), "{failed:?}");
    let (_, lines) = tested(r#"{"do":"permanent","on":"xxx"}"#);
    let failed = ended(&lines, "failed");
    assert_eq!((failed.len(), failed[0].0.as_str()), (1, "a payload of 1 MiB"));
    assert!(failed[0].1.contains("for one bad record there is reject"), "{failed:?}");
}

#[test]
fn a_case_that_fails_shows_what_was_expected_and_what_came_line_by_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases.jsonl");
    let lines = [
        r#"{"name":"good","records":[{"payload":{"temperature_c":100}}],"expect":[{"payload":{"cleaned_by":"pipeline","temperature_f":212}}]}"#,
        r#"{"name":"not so","records":[{"payload":{"status":"bad"}},{"payload":{"a":1},"subject":"hall"}],"expect":["keep",[{"payload":"{}"},{"subject":"x"}]]}"#,
        r#"{"name":"refused","config":{"drop_status":7},"error":"drop_status"}"#,
        r#"{"name":"not refused","error":"drop_status"}"#,
    ];
    std::fs::write(&cases, lines.join("\n")).unwrap();
    let output = tool(&["test", shown(&plugin("clean")), shown(&cases)]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let time = "time 2026-01-01T00:00:00Z";
    let expected = format!(
        r#"FAILED: not so (line 2)
  record 1
    expected  {{"status":"bad"}} (subject test, {time})
    got       dropped
  record 2
    expected  {{}}
              a record (subject x)
    got       {{"a":1,"cleaned_by":"pipeline"}} (subject hall, {time})

FAILED: not refused (line 4)
  expected  an error: …drop_status…
  got       none: the call went well
"#
    );
    assert!(said.starts_with(&expected), "{said}");
    assert!(said.ends_with("\n12 passed, 2 failed\n"), "{said}");
    assert!(said.contains(" 1 MiB") && said.contains("of guest memory"), "{said}");
}

#[test]
fn what_is_wrong_with_the_cases_or_the_config_is_told_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases.jsonl");
    std::fs::write(&cases, "{\"expekt\":[]}\n{\"name\":\"b\",\"error\":1}\n").unwrap();
    let guest = plugin("clean");
    let output = tool(&["test", shown(&guest), shown(&cases)]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    for part in [
        "cases.jsonl cannot be used:\n  - line 1: expekt: there is no such key; did you mean expect?",
        "\n  - line 2: error: must be a text\n",
        "hint: `waystation plugin test --help` says what a case is made of",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let config = folder.path().join("waystation.toml");
    std::fs::write(&config, "[transforms.a]\nconfig = { drop_status = \"off\" }\n").unwrap();
    let of = |table: &str| format!("{}#{table}", shown(&config));
    let test = |config: &str| tool(&["test", shown(&guest), "--config", config]);
    assert!(test(&of("transforms.a.config")).status.success());
    let said = text(&test(&of("transforms.b")).stderr);
    assert!(said.contains("has no table \"transforms.b\""), "{said}");
    assert!(text(&test("{").stderr).contains("--config is no JSON object"));
    // The whole table is no config of this plugin.
    let output = test(&of("transforms.a"));
    assert!(text(&output.stdout).contains("unknown field `config`"), "{output:?}");
    let output = tool(&["test", shown(&core_module("clean"))]);
    assert!(text(&output.stderr).contains("`waystation plugin pack`"), "{output:?}");
}
