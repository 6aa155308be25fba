//! Drops bad readings, converts °C to °F, marks what it has seen, and keeps every other field as it is written.

use serde::Deserialize;
use waystation_plugin::json::Object;
use waystation_plugin::{Outcome, Place, Record, Transform, export_transform};

/// The `config` table of the transform. Every key is optional.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Records whose `status` is this are dropped.
    drop_status: String,
    /// The field to convert; one that is missing or no number is left alone.
    celsius: String,
    /// Its name after that, in the same place; rounded to thousandths.
    fahrenheit: String,
    /// The field that says which pipeline cleaned the record, at the end.
    mark: String,
}

impl Default for Config {
    fn default() -> Self {
        let [drop_status, celsius, fahrenheit, mark] =
            ["bad", "temperature_c", "temperature_f", "cleaned_by"].map(str::to_owned);
        Self { drop_status, celsius, fahrenheit, mark }
    }
}

/// The transform, public for whoever runs it natively.
pub struct Clean(Config, Place);

impl Transform for Clean {
    type Config = Config;

    fn new(config: Config, place: Place) -> Result<Self, String> {
        Ok(Self(config, place))
    }

    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let Self(config, place) = self;
        let mut object = match Object::parse(&record.payload) {
            Ok(object) => object,
            Err(reason) => return Outcome::Reject(reason),
        };
        if object.text("status").as_deref() == Some(&config.drop_status) {
            return Outcome::Drop;
        }
        if let Some(celsius) = object.number(&config.celsius) {
            let fahrenheit = ((celsius * 1.8 + 32.0) * 1000.0).round() / 1000.0;
            object.replace(&config.celsius, &config.fahrenheit, &fahrenheit);
        }
        object.set(&config.mark, &place.pipeline);
        Outcome::Payload(object.to_bytes())
    }
}

export_transform!(Clean);

#[cfg(test)]
mod tests;
