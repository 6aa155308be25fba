//! Bad input is answered in one clear message, with the right exit code.

use std::process::Output;

use super::support::agent::Home;
use super::support::{LONG, plugin, wait_for};

/// A sound config with a transform, to be spoilt.
fn config(plugin: &str) -> String {
    format!(
        r#"[agent]
id = "gw"
data_dir = "{{dir}}/data"

[sources.in]
type = "generate"
every = "10ms"

[transforms.clean]
plugin = "{plugin}"

[sinks.out]
type = "file"
root = "{{dir}}/out"

[pipelines.p]
sources = ["in"]
transforms = ["clean"]
sinks = ["out"]
"#
    )
}

fn sound() -> String {
    config(plugin("clean").to_str().unwrap())
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Both `check` and `run` must refuse with 78, and say all of these.
fn refused(home: &Home, words: &[&str]) {
    for arguments in [&["check"][..], &["run"]] {
        let output = home.output(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{arguments:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{arguments:?} does not say {word:?}:\n{said}");
        }
        assert!(!said.contains("panicked"), "{said}");
    }
    assert!(!home.path("data").exists(), "a refused config has made the data directory");
}

#[test]
fn an_unknown_key_and_a_wrong_type_are_told_together_with_their_places() {
    let text = sound().replace("every = \"10ms\"", "evry = \"10ms\"\nrecords = \"many\"");
    let home = Home::new(&text);
    refused(&home, &["waystation.toml:7:1", "evry", "every", "waystation.toml:8:11", "records"]);
}

#[test]
fn a_missing_plugin_is_told_with_its_resolved_path() {
    let home = Home::new(&config("plugins/none.wasm"));
    let resolved = home.path("plugins/none.wasm");
    refused(&home, &["waystation.toml:10:10", resolved.to_str().unwrap()]);
}

#[test]
fn a_core_module_is_told_from_a_component() {
    let home = Home::new(&config("core.wasm"));
    std::fs::write(home.path("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
    refused(&home, &["waystation.toml:10:10", "core module", "component"]);
}

#[test]
fn a_component_of_another_world_is_told_apart() {
    let home = Home::new(&config(plugin("test-sink").to_str().unwrap()));
    refused(&home, &["waystation.toml:10:10", "sink", "transform"]);
}

#[test]
fn a_data_directory_that_cannot_be_written_ends_with_74() {
    let home = Home::new(&sound());
    std::fs::write(home.path("data"), b"a file").unwrap();
    let output = home.output(&["run"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains(home.path("data").to_str().unwrap()), "{said}");
}

#[test]
fn the_second_agent_on_a_data_directory_ends_with_74_and_names_the_first() {
    let home = Home::new(&sound());
    let mut first = home.start(&["run"]);
    wait_for("the first agent", LONG, || home.status());
    let output = home.output(&["run"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(74), "{said}");
    assert!(said.contains(&format!("process {}", first.pid())), "{said}");
    assert!(first.stop().success());
}

#[test]
fn an_endless_source_is_refused_with_once() {
    let home = Home::new(&sound());
    let output = home.output(&["run", "--once"]);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(78), "{said}");
    assert!(said.contains("source \"in\"") && said.contains("once"), "{said}");
}

#[test]
fn a_sound_config_is_checked_without_side_effects() {
    let home = Home::new(&sound());
    let output = home.output(&["check"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("1 source") && said.contains("1 lane"), "{said}");
    assert!(!home.path("data").exists());
    let shown = home.output(&["config", "show", "--effective"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("stop_grace") && shown.contains("default"), "{shown}");
    assert!(shown.contains("waystation.toml:7"), "{shown}");
}

#[test]
fn a_status_without_an_agent_says_what_was_asked() {
    let home = Home::new(&sound());
    let output = home.output(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("admin.sock"), "{}", stderr(&output));
}

#[test]
fn version_names_what_is_built_in() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_waystation"))
        .arg("version")
        .env_clear()
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap().to_lowercase();
    let words: Vec<_> = said.split_whitespace().collect();
    let follows = |name: &str, start: &str| {
        words.windows(2).any(|pair| pair[0] == name && pair[1].starts_with(start))
    };
    assert!(follows("sqlite", "3.") && follows("wasmtime", "48."), "{said}");
}
