//! What a message says beside its payload, as headers of its record.
//!
//! - `waystation-topic`: the topic, when it cannot be told from the subject (see `subject`);
//! - `waystation-retained: true`: the broker had kept the message from before;
//! - `waystation-redelivered: true`: the broker says that it may have delivered the message before;
//! - MQTT 5: `waystation-content-type` and `waystation-response-topic`, then the user properties under their own names.
//!
//! User properties that cannot be headers are left out (see `sources/headers.rs`): then `waystation-properties-left-out: N`
//! says how many.

use super::packet::Message;
use crate::limits::HEADERS_BYTES_MAX;
use crate::record::HeadersBuffer;
use crate::sources::headers::push_foreign;

/// What one text of a message may take.
const TEXT_BYTES_MAX: usize = HEADERS_BYTES_MAX / 8;

/// Writes the headers of a message. Without `is_plain` its topic is one of them.
pub(super) fn write(message: &Message, is_plain: bool, headers: &mut HeadersBuffer) {
    headers.clear();
    if !is_plain {
        headers.push("waystation-topic", cut(&message.topic));
    }
    if message.retained {
        headers.push("waystation-retained", "true");
    }
    if message.duplicate {
        headers.push("waystation-redelivered", "true");
    }
    let texts = [
        ("waystation-content-type", &message.content_type),
        ("waystation-response-topic", &message.response_topic),
    ];
    for (name, text) in texts {
        if let Some(text) = text.as_ref().filter(|text| !text.contains(char::is_control)) {
            headers.push(name, cut(text));
        }
    }
    let properties = message.properties.iter().map(|(name, value)| (&**name, &**value));
    push_foreign(properties, "waystation-properties-left-out", headers);
}

/// The text, or its first bytes where it is longer than a header should be.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(TEXT_BYTES_MAX)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::FOREIGN_HEADERS_MAX;

    fn headers_of(message: &Message, is_plain: bool) -> Vec<(String, String)> {
        let mut headers = HeadersBuffer::default();
        write(message, is_plain, &mut headers);
        let headers = headers.as_headers();
        assert!(headers.as_bytes().len() <= HEADERS_BYTES_MAX);
        headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn flags_and_properties_become_headers_and_nobody_can_forge_ours() {
        let plain = Message { topic: "a/b".to_owned(), ..Message::default() };
        assert_eq!(headers_of(&plain, true), []);
        let message = Message {
            topic: "a//b".to_owned(),
            retained: true,
            duplicate: true,
            content_type: Some("text/plain".to_owned()),
            response_topic: Some("r".to_owned()),
            properties: pairs(&[
                ("unit", "°C"),
                ("Waystation-Retained", "false"),
                ("two words", "x"),
                ("", "x"),
                ("line", "a\nb"),
                ("unit", "K"),
            ]),
            ..plain
        };
        let expected = pairs(&[
            ("waystation-topic", "a//b"),
            ("waystation-retained", "true"),
            ("waystation-redelivered", "true"),
            ("waystation-content-type", "text/plain"),
            ("waystation-response-topic", "r"),
            ("unit", "°C"),
            ("unit", "K"),
            ("waystation-properties-left-out", "4"),
        ]);
        assert_eq!(headers_of(&message, false), expected);
    }

    #[test]
    fn headers_stay_within_their_bounds_whatever_is_sent() {
        let long = "ü".repeat(32_000);
        let mut message = Message {
            topic: long.clone(),
            content_type: Some(long.clone()),
            response_topic: Some(long.clone()),
            properties: vec![("n".to_owned(), long.clone()); 3],
            ..Message::default()
        };
        let headers = headers_of(&message, false);
        assert_eq!(headers[0].1.len(), TEXT_BYTES_MAX);
        assert_eq!(headers.last().unwrap().1, "3");
        message.properties = pairs(&[("n", "v"); 100]);
        let headers = headers_of(&message, true);
        assert_eq!(headers.iter().filter(|(name, _)| name == "n").count(), FOREIGN_HEADERS_MAX);
        assert_eq!(headers.last().unwrap().1, "36");
    }
}
