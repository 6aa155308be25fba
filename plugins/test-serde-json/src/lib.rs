//! The work of the plugin `clean` as somebody writes it who knows serde_json alone: what WebAssembly costs such a transform is
//! measured with it.

use serde_json::{Map, Value};
use waystation_plugin::{NoConfig, Outcome, Place, Record, Transform, export_transform};

/// The transform, public for whoever runs it natively.
pub struct Plain(Place);

impl Transform for Plain {
    type Config = NoConfig;

    fn new(_config: NoConfig, place: Place) -> Result<Self, String> {
        Ok(Self(place))
    }

    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let mut object: Map<String, Value> = match serde_json::from_slice(&record.payload) {
            Ok(object) => object,
            Err(error) => return Outcome::Reject(error.to_string()),
        };
        if object.get("status").and_then(Value::as_str) == Some("bad") {
            return Outcome::Drop;
        }
        if let Some(celsius) = object.remove("temperature_c").as_ref().and_then(Value::as_f64) {
            let fahrenheit = ((celsius * 1.8 + 32.0) * 1000.0).round() / 1000.0;
            object.insert("temperature_f".to_owned(), fahrenheit.into());
        }
        object.insert("cleaned_by".to_owned(), self.0.pipeline.clone().into());
        match serde_json::to_vec(&object) {
            Ok(bytes) => Outcome::Payload(bytes),
            Err(error) => Outcome::Reject(error.to_string()),
        }
    }
}

export_transform!(Plain);
