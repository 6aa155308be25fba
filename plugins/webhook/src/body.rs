//! How records stand in a body.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::value::RawValue;
use waystation_plugin::sink::Outgoing;
use waystation_plugin::time::rfc3339;

/// Whether a payload may stand in a JSON array as it is.
pub(super) fn check(payload: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<&RawValue>(payload) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "no JSON: line {}, column {}; `envelope` takes any payload",
            error.line(),
            error.column()
        )),
    }
}

/// The record as an object with `id`, `time`, `subject`, `headers`, and `payload` or `payload_base64`, as the other sinks of
/// the agent write it.
pub(super) fn envelope(record: &Outgoing, out: &mut Vec<u8>) {
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let headers: Vec<_> = record
        .headers
        .iter()
        .map(|header| format!("[{},{}]", text(&header.name), text(&header.value)))
        .collect();
    let payload = match std::str::from_utf8(&record.payload) {
        Ok(payload) => format!("\"payload\":{}", text(payload)),
        Err(_) => format!("\"payload_base64\":\"{}\"", STANDARD.encode(&record.payload)),
    };
    let object = format!(
        "{{\"id\":{},\"time\":\"{}\",\"subject\":{},\"headers\":[{}],{payload}}}",
        text(&record.id),
        rfc3339(record.time),
        text(&record.subject),
        headers.join(",")
    );
    out.extend_from_slice(object.as_bytes());
}
