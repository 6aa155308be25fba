//! `waystation plugin certify` and `bench`: what authors see of a sink that is well, and of each thing that sinks get wrong.

use std::process::{Command, Output};

use serde_json::Value;

use super::support::plugin;

fn tool(command: &str, name: &str, arguments: &[&str]) -> Output {
    let mut all = Command::new(env!("CARGO_BIN_EXE_waystation"));
    all.args(["plugin", command]).arg(plugin(name)).args(arguments);
    all.env_clear().current_dir("/").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Result and name of each scenario that did not pass, and everything that was said of it.
fn troubles(name: &str, config: &str) -> (Vec<(String, String)>, String) {
    let arguments = ["--config", config, "--attempt-timeout", "700ms", "--json"];
    let output = tool("certify", name, &arguments);
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(!errors.contains("thread '"), "{errors}");
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{errors}");
    let word = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
    let troubles: Vec<_> = lines
        .iter()
        .map(|line| (word(line, "result"), word(line, "name")))
        .filter(|(result, _)| result != "passed")
        .collect();
    let has_failed = troubles.iter().any(|(result, _)| result == "failed");
    assert_eq!(output.status.code(), Some(i32::from(has_failed)), "{said}");
    (troubles, said)
}

#[test]
fn the_webhook_is_certified_in_each_of_its_ways() {
    for more in ["", r#", "each": "record""#, r#", "envelope": true, "key": "k", "token": "t""#] {
        let config = format!("{{\"url\": \"{{url}}/in?a=1\"{more}}}");
        let (troubles, said) = troubles("webhook", &config);
        assert_eq!(troubles, [], "{config}: {said}");
        assert_eq!(said.lines().count(), 17, "{said}");
    }
    let page = text(&tool("certify", "webhook", &[]).stdout);
    assert!(page.contains("1 request, 254 B") && page.ends_with("17 passed, 0 failed\n"), "{page}");
}

/// Scenarios that fail with each mode of the guest, and a part of what is said.
const WRONG: &[(&str, &[&str], &str)] = &[
    // Its requests tell the attempt in a header, which is no fault.
    ("", &[], "the header x-attempt has another value each time"),
    (
        "swallows",
        &[
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "400, 413 and 422",
            "a redirect",
            "one record that is refused",
        ],
        "the destination has not taken it: the records are lost",
    ),
    (
        "gives_up",
        &[
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "a redirect",
        ],
        "the batch is good, and would be given up",
    ),
    (
        "tries_for_ever",
        &["400, 413 and 422", "one record that is refused"],
        "what is never taken would be sent for ever",
    ),
    (
        "changes",
        &[
            "the same batch again",
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "an instance that is lost in the middle of a batch",
            "an agent that stops in the middle of a batch",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "a redirect",
        ],
        "differs at byte 1",
    ),
    (
        "leaves_out",
        &[
            "the same batch again",
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "an instance that is lost in the middle of a batch",
            "an agent that stops in the middle of a batch",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "a redirect",
            "one record that is refused",
        ],
        "another attempt sends something else",
    ),
    (
        "assumes",
        &[
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "an instance that is lost in the middle of a batch",
            "an agent that stops in the middle of a batch",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "a redirect",
            "one record that is refused",
        ],
        "it says delivered, and the destination has never taken",
    ),
    (
        "insists",
        &["400, 413 and 422", "one record that is refused"],
        "it sends a request that failed again by itself",
    ),
    (
        "panics",
        &[
            "an answer that is lost",
            "an answer that breaks off",
            "no answer in time",
            "500, 502, 503 and 504",
            "429 and 503 with Retry-After",
            "401, 403 and 404",
            "400, 413 and 422",
            "a redirect",
            "one record that is refused",
            "answers that nobody expects",
        ],
        "its plugin breaks down: trap",
    ),
    ("leaks", &["2000 batches by one instance, flat memory"], "its memory grew by"),
    ("name_beyond", &["a batch, and nothing goes wrong"], "without a batch that is delivered"),
];

#[test]
fn what_sinks_get_wrong_fails_the_scenario_that_is_about_it() {
    for (mode, expected, part) in WRONG {
        let config = format!("{{\"url\": \"{{url}}/in\", \"do\": \"{mode}\"}}");
        let (troubles, said) = troubles("test-sink", &config);
        let failed = troubles.iter().filter(|(result, _)| result == "failed");
        let mut failed: Vec<_> = failed.map(|(_, name)| name.as_str()).collect();
        let mut expected = expected.to_vec();
        failed.sort_unstable();
        expected.sort_unstable();
        assert_eq!(failed, expected, "{mode}: {said}");
        assert!(said.contains(part), "{mode}: {part}: {said}");
    }
}

/// What a sink keeps in its memory only is lost with its instance.
#[test]
fn a_batch_that_depends_on_what_the_instance_remembers_is_told() {
    let config = "{\"url\": \"{url}/in\", \"do\": \"remembers\"}";
    let (troubles, said) = troubles("test-sink", config);
    let has_failed = |name: &str| troubles.contains(&("failed".to_owned(), name.to_owned()));
    assert!(has_failed("the same batch again"), "{said}");
    assert!(has_failed("an instance that is lost in the middle of a batch"), "{said}");
    assert!(said.contains("a new instance: another attempt sends something else"), "{said}");
    assert!(!said.contains("the same instance: "), "{said}");
    assert!(!has_failed("500, 502, 503 and 504"), "{said}");
}

#[test]
fn what_cannot_be_certified_is_told() {
    let said = |name: &str, arguments: &[&str]| {
        let output = tool("certify", name, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        text(&output.stderr)
    };
    let nowhere = said("webhook", &["--config", "{\"url\": \"http://127.0.0.1:1\"}"]);
    assert!(nowhere.contains("--config names no {url}"), "{nowhere}");
    let transform = said("redact", &[]);
    assert!(
        transform.contains("redact.wasm") && transform.contains("a transform, used as a sink"),
        "{transform}"
    );
    let empty = said("webhook", &["--records", "/dev/null"]);
    assert!(empty.contains("/dev/null holds no record"), "{empty}");
    let output = tool("certify", "webhook", &["--config", "{\"url\": \"{url}\", \"no\": 1}"]);
    assert!(text(&output.stdout).contains("unknown field `no`"), "{output:?}");
}

#[test]
fn a_transform_is_measured_in_batches_of_four_sizes() {
    let arguments =
        ["--config", "{\"fields\": [{\"field\": \"device\", \"do\": \"mask\"}]}", "--time", "20ms"];
    let output = tool("bench", "redact", &[&arguments[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    let batches = figures["batches"].as_array().unwrap();
    let sizes: Vec<_> = batches.iter().map(|figure| figure["records"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 10, 100, 1000]);
    for key in ["compiled_ms", "loaded_ms", "instance_us", "memory_bytes", "record_bytes"] {
        assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
    }
    // A new instance for a single record costs what a thousand records share.
    let per_batch = |at: usize| batches[at]["per_batch_us"].as_f64().unwrap();
    assert!(per_batch(0) > per_batch(3) && per_batch(3) > 0.0, "{figures}");
    let page = tool("bench", "redact", &arguments);
    assert!(text(&page.stdout).contains("records in a batch"), "{page:?}");
    let sink = tool("bench", "webhook", &[]);
    assert_eq!(sink.status.code(), Some(1), "{sink:?}");
}
