//! A JSON Schema of the config, for editors that complete keys and check values while somebody types.
//!
//! It is made of what the reading functions say when they describe themselves, so it cannot differ from what is read. It says
//! less than `waystation check`: what holds between keys and between tables, and what a text must look like, it does not know.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::load::describe;
use crate::settings::{Entry, Shape};

/// The version of JSON Schema that it is written in.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// What stands for a name of the user's in a description.
const NAME: &str = ".NAME";
/// The same as a pattern.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$";

/// The schema.
#[must_use]
pub fn schema() -> Value {
    let entries = describe();
    let mut sections: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
    for entry in &entries {
        sections.entry(entry.section.as_str()).or_default().push(entry);
    }
    let mut properties = Map::new();
    for (section, entries) in sections {
        let Some(key) = section.strip_suffix(NAME) else {
            properties.insert(section.to_owned(), Table::of(&entries).schema());
            continue;
        };
        let named = json!({
            "type": "object",
            "propertyNames": { "pattern": NAME_PATTERN },
            "additionalProperties": one_of_kinds(&entries),
        });
        properties.insert(key.to_owned(), named);
    }
    json!({
        "$schema": DIALECT,
        "title": "The config of Waystation",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// A table whose keys depend on its `type`, if it has one.
fn one_of_kinds(entries: &[&Entry]) -> Value {
    let mut kinds: Vec<&str> = entries.iter().filter_map(|entry| entry.kind).collect();
    kinds.dedup();
    if kinds.is_empty() {
        return Table::of(entries).schema();
    }
    let of_kind = |kind: &str| {
        let keys = entries.iter().filter(|entry| entry.kind.is_none_or(|known| known == kind));
        let mut table = Table::of(&keys.copied().collect::<Vec<_>>());
        if let Some(chosen) = table.keys.get_mut("type") {
            *chosen = json!({ "const": kind });
        }
        table.schema()
    };
    json!({ "oneOf": kinds.into_iter().map(of_kind).collect::<Vec<_>>() })
}

/// The keys of one table.
#[derive(Default)]
struct Table {
    keys: BTreeMap<String, Value>,
    tables: BTreeMap<String, Self>,
    required: Vec<String>,
}

impl Table {
    fn of(entries: &[&Entry]) -> Self {
        let mut root = Self::default();
        for entry in entries {
            let mut table = &mut root;
            let mut segments = entry.key.split('.').peekable();
            while let Some(segment) = segments.next() {
                if segments.peek().is_some() {
                    table = table.tables.entry(segment.to_owned()).or_default();
                    continue;
                }
                if entry.is_required && !table.required.iter().any(|known| known == segment) {
                    table.required.push(segment.to_owned());
                }
                table.keys.insert(segment.to_owned(), value(entry));
            }
        }
        root
    }

    fn schema(self) -> Value {
        let mut properties = Map::from_iter(self.keys);
        for (key, table) in self.tables {
            properties.insert(key, table.schema());
        }
        let mut schema = json!({
            "type": "object", "properties": properties, "additionalProperties": false,
        });
        if !self.required.is_empty() {
            schema["required"] = self.required.into();
        }
        schema
    }
}

fn value(entry: &Entry) -> Value {
    let place = |key: &str| {
        json!({
            "type": "object", "properties": { key: { "type": "string" } },
            "required": [key], "additionalProperties": false,
        })
    };
    let secret = || json!({ "oneOf": [place("env"), place("file")] });
    let mut schema = match &entry.shape {
        Shape::Text => json!({ "type": "string" }),
        Shape::Words(words) => json!({ "enum": words }),
        Shape::WordsOrPath(words, key) => {
            json!({ "oneOf": [{ "enum": words }, place(key)] })
        }
        Shape::Integer => json!({ "type": "integer" }),
        Shape::Number => json!({ "type": "number" }),
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Texts => {
            json!({ "type": "array", "items": { "type": "string" }, "uniqueItems": true })
        }
        Shape::Numbers => {
            json!({ "type": "array", "items": { "type": "integer" }, "uniqueItems": true })
        }
        Shape::Secret => secret(),
        Shape::Secrets => json!({ "type": "array", "items": secret() }),
        Shape::Values => json!({
            "type": "object",
            "additionalProperties": { "oneOf": [{ "type": "string" }, secret()] },
        }),
        Shape::Table => json!({ "type": "object" }),
    };
    let mut doc = format!("{} Expected: {}", entry.doc, entry.expected);
    if let Some((low, high)) = &entry.bounds {
        let is_number = matches!(entry.shape, Shape::Integer | Shape::Number);
        match (low.parse::<f64>(), high.parse::<f64>()) {
            (Ok(_), Ok(_)) if is_number => {
                for (key, bound) in [("minimum", low), ("maximum", high)] {
                    schema[key] = serde_json::from_str(bound).unwrap_or_default();
                }
            }
            _ => doc.push_str(&format!(", between {low} and {high}")),
        }
    }
    schema["description"] = doc.into();
    if let Some(default) = entry.value.as_ref().and_then(|value| serde_json::to_value(value).ok()) {
        schema["default"] = default;
    }
    schema
}
