//! The plugins that come with the agent, one after the other in one pipeline.

use super::support::agent::{Home, files_below};
use super::support::plugin;

/// Quiet machines and bad readings are left out, changes pass, what passes gets its final shape, and nobody can be read off it.
const TRANSFORMS: &str = r#"
    [transforms.filter]
    plugin = "{json-filter}"
    [transforms.filter.config]
    match = "all"
    conditions = [
        { field = "status", op = "in", value = ["ok", "warn"] },
        { field = "readings.temp", op = "type", value = "number" },
    ]

    [transforms.news]
    plugin = "{sample}"
    [transforms.news.config]
    by = { field = "device" }
    on_change = [{ field = "readings.temp", absolute = 0.5 }, { field = "status" }]

    [transforms.shape]
    plugin = "{json-map}"
    [transforms.shape.config]
    steps = [
        { do = "convert", field = "readings.temp", from = "C", to = "F", digits = 3 },
        { do = "rename", field = "readings.temp", to = "temperature_f" },
        { do = "set", field = "hall", from = "subject.2" },
        { do = "set", field = "cleaned_by", from = "pipeline" },
        { do = "remove", fields = ["debug"] },
    ]

    [transforms.privacy]
    plugin = "{redact}"
    [transforms.privacy.config]
    key = "a key of the test and nothing else"
    fields = [
        { field = "operator", do = "hash", length = 16 },
        { field = "badge", do = "mask", keep_last = 2 },
    ]
    patterns = [{ find = "email", do = "mask", with = "<address>" }]
"#;

fn config() -> String {
    let mut transforms = TRANSFORMS.to_owned();
    for name in ["json-filter", "sample", "json-map", "redact"] {
        transforms =
            transforms.replace(&format!("{{{name}}}"), &plugin(name).display().to_string());
    }
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.sensors]
        type = "file"
        paths = ["{{dir}}/in.ndjson"]
        subject = "plant.hall-3.temperature"
        {transforms}
        [sinks.archive]
        type = "file"
        root = "{{dir}}/out"
        [pipelines.telemetry]
        sources = ["sensors"]
        transforms = ["filter", "news", "shape", "privacy"]
        sinks = ["archive"]
        "#
    )
}

fn delivered(home: &Home) -> Vec<String> {
    let folder = home.path("out");
    let files = files_below(&folder).into_iter();
    let texts = files.map(|file| std::fs::read_to_string(folder.join(file)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn the_shipped_plugins_work_in_a_chain_and_a_restart_does_not_change_what_passes() {
    let home = Home::new(&config());
    let input = home.path("in.ndjson");
    let first = [
        r#"{"device":"a","status":"ok","readings":{"temp":21.53,"p":1013.20},"operator":"ann","badge":"004711","debug":{"heap":1}}"#,
        r#"{"device":"a","status":"ok","readings":{"temp":21.6,"p":1013.30}}"#,
        r#"{"device":"b","status":"bad","readings":{"temp":99}}"#,
        r#"{"device":"b","status":"ok","readings":{"temp":null}}"#,
        "no JSON",
        r#"{"device":"b","status":"ok","readings":{"temp":-40,"n":12345678901234567890123},"note":"call bob@example.org"}"#,
        r#"{"device":"a","status":"warn","readings":{"temp":21.7},"operator":"ann"}"#,
    ];
    std::fs::write(&input, first.map(|line| format!("{line}\n")).concat()).unwrap();
    let summary = home.run_once();
    let counts =
        ["records_in", "delivered", "dropped", "dead_lettered"].map(|key| summary[key].as_u64());
    assert_eq!(counts, [7, 3, 3, 1].map(Some), "{summary}");
    let expected = [
        r#"{"device":"a","status":"ok","readings":{"p":1013.20},"operator":"HASH","badge":"***11","temperature_f":70.754,"hall":"hall-3","cleaned_by":"telemetry"}"#,
        r#"{"device":"b","status":"ok","readings":{"n":12345678901234567890123},"note":"call <address>","temperature_f":-40,"hall":"hall-3","cleaned_by":"telemetry"}"#,
        r#"{"device":"a","status":"warn","readings":{},"operator":"HASH","temperature_f":71.06,"hall":"hall-3","cleaned_by":"telemetry"}"#,
    ];
    // HMAC-SHA-256 of "ann" under the key of the config.
    let expected = expected.map(|line| line.replace("HASH", "378bb437312e445f"));
    assert_eq!(delivered(&home), expected);

    let second = [
        // Within the band around what passed before the restart: 21.7 of a, -40 of b.
        r#"{"device":"a","status":"warn","readings":{"temp":22.2}}"#,
        r#"{"device":"b","status":"ok","readings":{"temp":-39.6}}"#,
        r#"{"device":"a","status":"warn","readings":{"temp":22.3}}"#,
        r#"{"device":"c","status":"ok","readings":{"temp":0}}"#,
    ];
    let more = first.into_iter().chain(second).map(|line| format!("{line}\n"));
    std::fs::write(&input, more.collect::<String>()).unwrap();
    let summary = home.run_once();
    assert_eq!(summary["delivered"], 2, "{summary}");
    let mut all = delivered(&home);
    all.drain(..expected.len());
    assert_eq!(
        all,
        [
            r#"{"device":"a","status":"warn","readings":{},"temperature_f":72.14,"hall":"hall-3","cleaned_by":"telemetry"}"#,
            r#"{"device":"c","status":"ok","readings":{},"temperature_f":32,"hall":"hall-3","cleaned_by":"telemetry"}"#,
        ]
    );
}
