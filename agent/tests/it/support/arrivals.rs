//! What sources have taken, as a file sink delivers it, and what the status says of the first of them.

use serde_json::Value;

use super::agent::{Home, files_below};
use super::{LONG, wait_for};

/// An agent with these sources, and all that comes in in files of JSON lines.
pub(crate) fn home_with(sources: &str, names: &str, more: &str) -> Home {
    Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        {sources}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        format = "json"
        batch = {{ linger = "20ms" }}
        retry = {{ backoff = "20ms", backoff_max = "200ms" }}
        {more}
        [pipelines.p]
        sources = [{names}]
        sinks = ["out"]
        "#
    ))
}

/// All records that have arrived, in the order of their files.
pub(crate) fn arrived(home: &Home) -> Vec<Value> {
    let out = home.path("out");
    let names = files_below(&out).into_iter();
    let names = names.filter(|name| !name.file_name().unwrap().to_str().unwrap().starts_with('.'));
    let texts: Vec<_> =
        names.map(|name| std::fs::read_to_string(out.join(name)).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn payload(record: &Value) -> &str {
    record["payload"].as_str().unwrap()
}

pub(crate) fn header<'r>(record: &'r Value, name: &str) -> Option<&'r str> {
    let headers = record["headers"].as_array().unwrap().iter();
    headers.filter(|pair| pair[0] == name).find_map(|pair| pair[1].as_str())
}

/// Waits until this many records are there, and gives them.
pub(crate) fn wait_arrived(home: &Home, count: usize) -> Vec<Value> {
    wait_for("the records", LONG, || Some(arrived(home)).filter(|found| found.len() >= count))
}

pub(crate) fn the_source(home: &Home) -> Option<Value> {
    Some(home.status()?["sources"][0].clone())
}

pub(crate) fn wait_state(home: &Home, state: &str) -> Value {
    wait_for(state, LONG, || the_source(home).filter(|source| source["state"] == state))
}

/// Waits for a failure whose reason holds this.
pub(crate) fn wait_failed(home: &Home, part: &str) -> String {
    wait_for(part, LONG, || {
        let reason = the_source(home)?["trouble"]["reason"].as_str()?.to_owned();
        reason.contains(part).then_some(reason)
    })
}
