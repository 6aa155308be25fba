//! What authors give on the command line beside the plugin.

use anyhow::{Context as _, bail};
use serde_json::Value;

/// The config as JSON text: as it was given, or out of a TOML file.
pub(super) fn config_text(given: &str) -> anyhow::Result<String> {
    if given.trim_start().starts_with('{') {
        let object: Value = serde_json::from_str(given).context("--config is no JSON object")?;
        return Ok(object.to_string());
    }
    let (path, table) = given.split_once('#').unwrap_or((given, ""));
    let cannot = || format!("--config: cannot read {path}");
    let text = std::fs::read_to_string(path).with_context(cannot)?;
    let file: toml::Table = toml::from_str(&text).with_context(cannot)?;
    let mut found = toml::Value::Table(file);
    for name in table.split('.').filter(|name| !name.is_empty()) {
        let Some(inner) = found.as_table_mut().and_then(|table| table.remove(name)) else {
            bail!("--config: {path} has no table \"{table}\"");
        };
        found = inner;
    }
    if !found.is_table() {
        bail!("--config: \"{table}\" in {path} is no table");
    }
    Ok(json_of(found).to_string())
}

fn json_of(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => Value::from(number),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Datetime(time) => Value::String(time.to_string()),
        toml::Value::Array(values) => values.into_iter().map(json_of).collect(),
        toml::Value::Table(table) => {
            table.into_iter().map(|(key, value)| (key, json_of(value))).collect()
        }
    }
}
