//! The JSON Schema of the config against the config itself: files that are read, files that are refused, and the reference.

use std::path::{Path, PathBuf};

use serde_json::Value;
use waystation::config::schema;

/// What of JSON Schema the schema uses; what only explains is in front.
const KEYWORDS: [&str; 17] = [
    "$schema",
    "title",
    "description",
    "default",
    "type",
    "enum",
    "const",
    "properties",
    "additionalProperties",
    "propertyNames",
    "required",
    "items",
    "uniqueItems",
    "minimum",
    "maximum",
    "oneOf",
    "pattern",
];

/// Whether a value is as a schema says; the places where it is not. Draft 2020-12, as far as the schema goes.
fn wrong(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let Value::Object(keywords) = schema else {
        return if *schema == Value::Bool(false) {
            vec![format!("{place} is unknown")]
        } else {
            Vec::new()
        };
    };
    let mut found = Vec::new();
    let mut expect = |is: bool, what: &str| {
        if !is {
            found.push(format!("{place}: {what} of {value}"));
        }
    };
    for (keyword, rule) in keywords {
        assert!(KEYWORDS.contains(&keyword.as_str()), "{keyword}");
        match keyword.as_str() {
            "type" => expect(is_of_type(rule.as_str().unwrap(), value), "type"),
            "enum" => expect(rule.as_array().unwrap().contains(value), "enum"),
            "const" => expect(rule == value, "const"),
            "minimum" => expect(value.as_f64() >= rule.as_f64(), "minimum"),
            "maximum" => expect(value.as_f64() <= rule.as_f64(), "maximum"),
            "oneOf" => {
                let fits = |branch: &&Value| wrong(branch, value, place).is_empty();
                expect(rule.as_array().unwrap().iter().filter(fits).count() == 1, "oneOf");
            }
            "uniqueItems" => {
                let items = value.as_array().map_or(&[][..], Vec::as_slice);
                let is_new = |(index, item): (usize, &Value)| !items[..index].contains(item);
                expect(items.iter().enumerate().all(is_new), "uniqueItems");
            }
            _ => {}
        }
    }
    if let (Value::Array(items), Some(rule)) = (value, keywords.get("items")) {
        found.extend(items.iter().flat_map(|item| wrong(rule, item, &format!("{place}[]"))));
    }
    let Value::Object(members) = value else { return found };
    for key in keywords.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !members.contains_key(key.as_str().unwrap()) {
            found.push(format!("{place} lacks {key}"));
        }
    }
    for (key, member) in members {
        let of_key = keywords.get("properties").and_then(|properties| properties.get(key));
        let rule = of_key.or_else(|| keywords.get("additionalProperties"));
        found.extend(
            rule.into_iter().flat_map(|rule| wrong(rule, member, &format!("{place}.{key}"))),
        );
    }
    found
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        other => panic!("{other}"),
    }
}

fn fixture(path: &Path) -> Option<Value> {
    let text = std::fs::read_to_string(path).ok()?;
    let table: toml::Table = text.trim_start_matches('\u{feff}').parse().ok()?;
    serde_json::to_value(table).ok()
}

fn files(folder: &str, name: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![super::support::repository(folder)];
    while let Some(next) = open.pop() {
        for entry in next.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.to_str().unwrap().ends_with(name) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{folder}");
    found
}

#[test]
fn every_valid_config_and_every_example_is_as_the_schema_says() {
    let schema = schema();
    let examples = files("examples", ".toml").into_iter().filter(|path| {
        std::fs::read_to_string(path).unwrap().lines().any(|line| line.starts_with("[pipelines."))
    });
    for path in files("agent/tests/fixtures/config/valid", ".toml").into_iter().chain(examples) {
        let value = fixture(&path).unwrap_or_else(|| panic!("{}", path.display()));
        assert_eq!(wrong(&schema, &value, ""), [""; 0], "{}", path.display());
    }
}

#[test]
fn an_unknown_key_and_a_value_of_another_type_are_not() {
    let schema = schema();
    let folder = super::support::repository("agent/tests/fixtures/config");
    let good = fixture(&folder.join("valid/everything_in_order.toml")).unwrap();
    let mut tables = Vec::new();
    collect_tables(&good, "", &mut tables);
    assert!(tables.len() > 20, "{tables:?}");
    let mut planted = 0;
    for place in &tables {
        let mut bad = good.clone();
        bad.pointer_mut(place).unwrap()["bogus"] = 1.into();
        // What is handed to a plugin, and names of headers, are the user's own.
        let is_own = place.ends_with("/config") || place.contains("/config/");
        let is_own = is_own || place.ends_with("/headers") || place.ends_with("/filter");
        if !is_own {
            assert!(!wrong(&schema, &bad, "").is_empty(), "bogus in {place}");
            planted += 1;
        }
    }
    assert!(planted > 20, "{planted}");
    for name in [
        "key_of_other_type",
        "choice_unknown",
        "duration_as_number",
        "integer_as_text",
        "integer_out_of_range",
        "boolean_as_text",
        "list_as_text",
        "list_element_twice",
        "array_of_tables",
        "http_method_unknown",
        "compression_codec_missing",
    ] {
        let value = fixture(&folder.join(format!("invalid/{name}.toml"))).unwrap();
        assert!(!wrong(&schema, &value, "").is_empty(), "{name}");
    }
}

fn collect_tables(value: &Value, place: &str, found: &mut Vec<String>) {
    let Value::Object(members) = value else { return };
    found.push(place.to_owned());
    for (key, member) in members {
        let key = key.replace('~', "~0").replace('/', "~1");
        collect_tables(member, &format!("{place}/{key}"), found);
    }
}

/// All keys of a schema, without the tables around them.
fn keys_of(schema: &Value, keys: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::Object(properties)) = members.get("properties") {
                keys.extend(properties.keys().cloned());
            }
            members.values().for_each(|member| keys_of(member, keys));
        }
        Value::Array(items) => items.iter().for_each(|item| keys_of(item, keys)),
        _ => {}
    }
}

#[test]
fn each_key_that_the_reference_names_is_in_the_schema() {
    let mut known = Vec::new();
    keys_of(&schema(), &mut known);
    let mut seen = 0;
    // The reference are the docs of the structs that hold settings: "`key`: what it is".
    let parts = files("agent/src", "/config.rs")
        .into_iter()
        .filter(|path| !path.ends_with("cli/config.rs"));
    for path in parts.chain([super::support::repository("agent/src/config/mod.rs")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("    /// `")) {
            let Some((named, rest)) = line.split_once('`') else { continue };
            let is_key = rest.starts_with([':', ',', '.', ';']) || rest.starts_with(" of");
            let is_plain =
                named.bytes().all(|b| b.is_ascii_lowercase() || b"_.0123456789".contains(&b));
            if is_key && is_plain {
                for key in named.split('.') {
                    assert!(
                        known.iter().any(|known| known == key),
                        "{named} of {}",
                        path.display()
                    );
                }
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen} keys");
}
