//! For the tests of plugins, with the feature `testing`: records, what comes of them, and checks that a plugin's page and the
//! schema of its config say what is true.
//!
//! Everything here panics where a test should fail.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::sink::{Batch, Outgoing, Sink, http};
use crate::{Draft, Header, Outcome, Place, Record, Slot, Ticks, Transform, state};

/// The time of the first record: 2026-01-01T00:00:00Z.
pub const FIRST: i64 = 1_767_225_600_000_000_000;
const TEN_SECONDS: i64 = 10_000_000_000;
/// The subject of all records.
pub const SUBJECT: &str = "plant.hall.temperature";

/// Where the plugin stands.
#[must_use]
pub fn place() -> Place {
    let [agent, source, pipeline, sink] =
        ["gw", "sensors", "telemetry", "archive"].map(str::to_owned);
    Place { agent, source, pipeline, sink }
}

/// Makes a plugin as the agent does, with this `config` table in TOML.
///
/// # Errors
/// What the operator is shown.
pub fn transform<T: Transform>(config: &str) -> Result<T, String> {
    let config: toml::Table = toml::from_str(config).expect("the config of a test is TOML");
    from_json(&serde_json::to_string(&config).expect("TOML fits into JSON"))
}

fn from_json<T: Transform>(config: &str) -> Result<T, String> {
    let slot = Slot::empty();
    slot.init(config, place())?;
    Ok(slot.0.take().expect("a slot is filled by init"))
}

/// Makes a sink as the agent does, with this `config` table in TOML.
///
/// # Errors
/// What the operator is shown.
pub fn sink<T: Sink>(config: &str) -> Result<T, String> {
    let config: toml::Table = toml::from_str(config).expect("the config of a test is TOML");
    let slot = Slot::empty();
    slot.init_sink(&serde_json::to_string(&config).expect("TOML fits into JSON"), place())?;
    Ok(slot.0.take().expect("a slot is filled by init"))
}

/// The batch `gw/b1` of records with these payloads, whose identities end with their seq.
#[must_use]
pub fn batch(payloads: &[&str]) -> Batch {
    let records = payloads.iter().zip(1..).map(|(payload, seq)| {
        let Record { seq, time, subject, headers, payload } = record(seq, payload);
        Outgoing { id: format!("gw/{seq}"), seq, time, subject, headers, payload }
    });
    let (id, records) = ("gw/b1".to_owned(), records.collect());
    Batch { id, attempt: 1, now: FIRST, deadline_ms: 27_000, records }
}

/// The record number `seq`. They are a second apart.
#[must_use]
pub fn record(seq: u64, payload: &str) -> Record {
    let seconds = i64::try_from(seq).expect("tests are short") - 1;
    Record {
        seq,
        time: FIRST + seconds * 1_000_000_000,
        subject: SUBJECT.to_owned(),
        headers: vec![Header { name: "device".to_owned(), value: "press-07".to_owned() }],
        payload: payload.as_bytes().to_vec(),
    }
}

/// Runs records with these payloads in one call, and returns the payloads that come out; a refused one is `reject: REASON`.
pub fn run<T: Transform>(transform: &mut T, payloads: &[&str]) -> Vec<String> {
    let records: Vec<Record> =
        payloads.iter().zip(1..).map(|(payload, seq)| record(seq, payload)).collect();
    run_records(transform, FIRST, &records)
}

/// As [`run`], with records of your own and this time of the host.
pub fn run_records<T: Transform>(transform: &mut T, now: i64, records: &[Record]) -> Vec<String> {
    let outcomes = transform.process(now, records.to_vec()).expect("the call does not fail");
    assert_eq!(outcomes.len(), records.len(), "one outcome for each record");
    let outs = outcomes.into_iter().zip(records).map(|(outcome, record)| match outcome {
        Outcome::Keep => vec![text(record.payload.clone())],
        Outcome::Drop => vec![],
        Outcome::Payload(payload) => vec![text(payload)],
        Outcome::Replace(draft) => vec![text(draft.payload)],
        Outcome::Split(drafts) => drafts.into_iter().map(|draft| text(draft.payload)).collect(),
        Outcome::Reject(reason) => vec![format!("reject: {reason}")],
    });
    outs.flatten().collect()
}

fn text(payload: Vec<u8>) -> String {
    String::from_utf8(payload).expect("what comes out is text")
}

/// Ticks so often, `every` nanoseconds apart and the first one at `now`, and returns the payloads that come out.
pub fn run_ticks<T: Ticks>(transform: &mut T, now: i64, every: i64, count: i64) -> Vec<String> {
    let ticks = (0..count).map(|n| transform.tick(now + n * every));
    let drafts = ticks.flat_map(|drafts: Result<Vec<Draft>, _>| drafts.expect("no tick fails"));
    drafts.map(|draft| text(draft.payload)).collect()
}

/// Checks that a committed schema is that of the config. The config derives `schemars::JsonSchema` in tests only, so that the
/// component carries a text and not what makes it.
pub fn assert_schema<C: JsonSchema>(committed: &str) {
    let schema = SchemaGenerator::default().into_root_schema_for::<C>();
    let text = serde_json::to_string_pretty(&schema).expect("a schema is JSON");
    assert!(text == committed.trim_end(), "schema.json is not the schema of the config:\n{text}\n");
}

/// Checks a plugin's page: each example gives what it says, and each key of the schema has a place.
///
/// An example is a block `toml` with a `[transforms.NAME]`, then a block `json in` with one payload a line, and a block
/// `json out` with what [`run`] returns for them.
pub fn assert_page<T: Transform>(page: &str, schema: &str) {
    assert_page_with(page, schema, transformed::<T>(run));
}

/// As [`assert_page`]; what comes out at the ticks of the ten minutes that follow stands in `json out`, too.
pub fn assert_page_with_ticks<T: Ticks>(page: &str, schema: &str) {
    let run = transformed::<T>(|transform, payloads| {
        let mut out = run(transform, payloads);
        out.extend(run_ticks(transform, FIRST + TEN_SECONDS, TEN_SECONDS, 60));
        out
    });
    assert_page_with(page, schema, run);
}

/// As [`assert_page`] for a sink: an example begins with a `[sinks.NAME]`, and `json out` has the bodies of the requests, which
/// are all taken, and `reject: REASON` for a record that is refused.
pub fn assert_sink_page<T: Sink>(page: &str, schema: &str) {
    assert_page_with(page, schema, |config, payloads| {
        let slot = Slot::<T>::empty();
        let made = slot.init_sink(config, place());
        made.unwrap_or_else(|error| panic!("{error}\n{config}"));
        let bodies = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&bodies);
        http::answer_with(move |request| {
            noted.borrow_mut().push(text(request.body.clone()));
            Ok(http::Response { status: 200, headers: Vec::new(), body: Vec::new() })
        });
        let refused = slot.deliver(batch(payloads)).expect("every request is taken");
        let mut out = bodies.take();
        out.extend(refused.into_iter().map(|refused| format!("reject: {}", refused.reason)));
        out
    });
}

/// Makes a transform of a config and runs it.
fn transformed<T: Transform>(
    run: impl Fn(&mut T, &[&str]) -> Vec<String>,
) -> impl Fn(&str, &[&str]) -> Vec<String> {
    move |config, payloads| {
        let made = from_json::<T>(config);
        forget();
        let mut made = made.unwrap_or_else(|error| panic!("{error}\n{config}"));
        run(&mut made, payloads)
    }
}

fn assert_page_with(page: &str, schema: &str, run: impl Fn(&str, &[&str]) -> Vec<String>) {
    let mut config: Option<String> = None;
    let mut input: Option<Vec<&str>> = None;
    let mut count = 0;
    for (kind, lines) in blocks(page) {
        match kind {
            "toml" => config = Some(config_of(&lines.join("\n"))),
            "json in" => input = Some(lines),
            "json out" => {
                let config = config.as_deref().expect("a config stands before each example");
                let input = input.take().expect("an input stands before each output");
                assert_eq!(run(config, &input), lines, "{config}");
                count += 1;
            }
            _ => {}
        }
    }
    assert!(count > 0, "the page has no example");
    let schema: Value = serde_json::from_str(schema).expect("the schema is JSON");
    let mut keys = BTreeSet::new();
    collect_keys(&schema, &mut keys);
    let missing: Vec<_> = keys.iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "the page does not tell of {missing:?}");
}

/// All that is in the state of this thread's plugins.
#[must_use]
pub fn snapshot() -> Vec<(String, Vec<u8>)> {
    let keys = state::keys("", "", u32::MAX).into_iter();
    keys.filter_map(|key| state::get(&key).map(|value| (key, value))).collect()
}

/// Puts a [`snapshot`] in place of the state, as the agent does when a batch is run again.
pub fn restore(snapshot: &[(String, Vec<u8>)]) {
    forget();
    for (key, value) in snapshot {
        state::set(key, value).expect("the state of tests has no limits");
    }
}

/// Empties the state of this thread's plugins.
pub fn forget() {
    state::keys("", "", u32::MAX).iter().for_each(|key| state::delete(key));
}

fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, Vec<&str>)> = None;
    for line in page.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(kind), None) => open = Some((kind, Vec::new())),
            (None, Some((kind, mut lines))) => {
                lines.push(line);
                open = Some((kind, lines));
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The `config` of the one transform or sink in this part of a config file, as JSON.
fn config_of(text: &str) -> String {
    let file: toml::Table = toml::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let parts = file.get("transforms").or_else(|| file.get("sinks"));
    let part = parts.and_then(toml::Value::as_table).and_then(|parts| parts.values().next());
    match part.and_then(|part| part.get("config")) {
        Some(config) => serde_json::to_string(config).expect("TOML fits into JSON"),
        None => "{}".to_owned(),
    }
}

fn collect_keys(schema: &Value, keys: &mut BTreeSet<String>) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                if let ("properties", Value::Object(properties)) = (key.as_str(), value) {
                    keys.extend(properties.keys().cloned());
                }
                collect_keys(value, keys);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_keys(item, keys)),
        _ => {}
    }
}
