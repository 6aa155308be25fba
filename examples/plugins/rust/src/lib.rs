//! Drops bad readings, converts °C to °F, and adds the site that the config names.

use serde::Deserialize;
use waystation_plugin::json::Object;
use waystation_plugin::{Outcome, Place, Record, Transform, about, export_transform};

/// The `config` table of the transform.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Config {
    site: String,
}

impl Default for Config {
    fn default() -> Self {
        Self { site: "plant".to_owned() }
    }
}

struct MyPlugin {
    config: Config,
}

impl Transform for MyPlugin {
    type Config = Config;

    /// An error is shown to the operator, and the transform does not start.
    fn new(config: Config, _place: Place) -> Result<Self, String> {
        Ok(Self { config })
    }

    /// `now` is the only clock there is. What has to outlive a batch belongs into `waystation_plugin::state`.
    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let mut reading = match Object::parse(&record.payload) {
            Ok(reading) => reading,
            Err(reason) => return Outcome::Reject(reason),
        };
        if reading.text("status").as_deref() == Some("bad") {
            return Outcome::Drop;
        }
        if let Some(celsius) = reading.number("temperature_c") {
            let fahrenheit = ((celsius * 1.8 + 32.0) * 1000.0).round() / 1000.0;
            reading.replace("temperature_c", "temperature_f", &fahrenheit);
        }
        reading.set("site", &self.config.site);
        Outcome::Payload(reading.to_bytes())
    }
}

export_transform!(MyPlugin, about!().config_schema(include_str!("../schema.json")));
