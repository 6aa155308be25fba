//! A NATS message as a record: its subject, its headers, its place.
//!
//! - The subject is what `subject` makes of the message's. What no pipeline could ask for literally in it (`*`, `>`, control
//!   characters, empty tokens) becomes `_`; then the header `waystation-subject` has the message's own.
//! - Its headers stay, `Nats-Msg-Id` too, in the order of their names: the client does not tell the order that they came in.
//!   Which of them cannot be headers of a record says `sources/headers.rs`; `waystation-headers-left-out: N` counts them.

use async_nats::Message;

use crate::limits::{HEADERS_BYTES_MAX, SUBJECT_BYTES_MAX};
use crate::record::HeadersBuffer;
use crate::record::subject::push_token;
use crate::record::template::Template;
use crate::sources::headers::push_foreign;

/// The fields of the template, in the order of [`Renderer::render`].
pub(super) const FIELDS: &[&str] = &["source", "subject"];
/// What the message's own subject may take as a header.
const SUBJECT_SHOWN_BYTES_MAX: usize = HEADERS_BYTES_MAX / 8;

/// Makes subject and headers of one message after another.
#[derive(Debug)]
pub(super) struct Renderer {
    template: Template,
    source: String,
    token: String,
    pub(super) subject: String,
    pub(super) headers: HeadersBuffer,
}

impl Renderer {
    pub(super) fn new(template: Template, source: &str) -> Self {
        Self {
            template,
            source: source.to_owned(),
            token: String::new(),
            subject: String::new(),
            headers: HeadersBuffer::default(),
        }
    }

    /// Leaves subject and headers of the message's record in their fields. Gives the bytes that they take.
    pub(super) fn render(&mut self, message: &Message) -> usize {
        self.token.clear();
        let mut is_plain = push_tokens(&message.subject, &mut self.token);
        self.subject.clear();
        let (source, token) = (&self.source, &self.token);
        self.template.render_into(&mut self.subject, |place, out| {
            out.push_str(if place == 0 { source } else { token });
        });
        if self.subject.len() > SUBJECT_BYTES_MAX {
            self.subject.truncate(self.subject.floor_char_boundary(SUBJECT_BYTES_MAX));
            self.subject.truncate(self.subject.trim_end_matches('.').len());
            is_plain = false;
        }
        self.headers.clear();
        if !is_plain {
            let end = message.subject.floor_char_boundary(SUBJECT_SHOWN_BYTES_MAX);
            let shown: String =
                message.subject.chars().filter(|c| !c.is_control()).collect::<String>();
            self.headers
                .push("waystation-subject", shown.get(..end.min(shown.len())).unwrap_or(&shown));
        }
        if let Some(headers) = &message.headers {
            let mut pairs: Vec<(&str, &str)> = headers
                .iter()
                .flat_map(|(name, values)| {
                    values.iter().map(move |value| (name.as_ref(), value.as_str()))
                })
                .collect();
            // Stable, so that the values of one name keep their order.
            pairs.sort_by_key(|(name, _)| *name);
            push_foreign(pairs.into_iter(), "waystation-headers-left-out", &mut self.headers);
        }
        self.subject.len() + self.headers.as_headers().as_bytes().len()
    }
}

/// Appends the tokens of a subject; false when something of it had to be replaced.
fn push_tokens(subject: &str, out: &mut String) -> bool {
    let mut is_plain = true;
    for (index, token) in subject.split('.').enumerate() {
        if index > 0 {
            out.push('.');
        }
        is_plain &= push_token(token, out);
    }
    is_plain
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;

    use super::*;
    use crate::fuzz::fuzz;

    fn message(subject: &str, headers: Option<HeaderMap>) -> Message {
        let (reply, payload) = (None, "x".into());
        let (status, description, length) = (None, None, 0);
        Message { subject: subject.into(), reply, payload, headers, status, description, length }
    }

    fn rendered(template: &str, message: &Message) -> (String, Vec<(String, String)>) {
        let mut renderer = Renderer::new(Template::parse(template, FIELDS).unwrap(), "plant");
        renderer.render(message);
        let headers = renderer.headers.as_headers();
        let headers = headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        (renderer.subject.clone(), headers.collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_subject_stays_as_it_is_unless_no_pipeline_could_ask_for_it() {
        assert_eq!(rendered("{subject}", &message("a.b", None)), ("a.b".to_owned(), vec![]));
        let (subject, headers) = rendered("{source}.in.{subject}", &message("a..*x", None));
        assert_eq!(subject, "plant.in.a._._x");
        assert_eq!(headers, pairs(&[("waystation-subject", "a..*x")]));
        let long = "ü".repeat(SUBJECT_BYTES_MAX);
        let (subject, headers) = rendered("a.{subject}", &message(&long, None));
        assert!(
            subject.len() <= SUBJECT_BYTES_MAX && headers[0].1.len() <= SUBJECT_SHOWN_BYTES_MAX
        );
    }

    #[test]
    fn headers_come_in_the_order_of_their_names_and_nobody_can_forge_ours() {
        let mut headers = HeaderMap::new();
        headers.insert("Unit", "K");
        headers.append("Unit", "C");
        headers.insert("Nats-Msg-Id", "7");
        headers.insert("Waystation-Subject", "x");
        let expected = pairs(&[
            ("Nats-Msg-Id", "7"),
            ("Unit", "K"),
            ("Unit", "C"),
            ("waystation-headers-left-out", "1"),
        ]);
        assert_eq!(rendered("{subject}", &message("a", Some(headers))).1, expected);
    }

    #[test]
    fn fuzzed_headers_and_subjects_stay_within_their_bounds() {
        let examples: [&[u8]; 3] =
            [b"a.b\nUnit: K\nNats-Msg-Id: 7", b"a..*x\nwaystation-subject: x", b"\n:\n\x01: \x7f"];
        fuzz(&examples, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let mut lines = text.split('\n');
            let subject = lines.next().unwrap_or_default();
            let pairs = lines.filter_map(|line| line.split_once(": "));
            let mut headers = HeadersBuffer::default();
            push_foreign(pairs, "waystation-headers-left-out", &mut headers);
            assert!(headers.as_headers().as_bytes().len() <= HEADERS_BYTES_MAX);
            let (subject, headers) = rendered("{source}.{subject}", &message(subject, None));
            assert!(subject.len() <= SUBJECT_BYTES_MAX && !subject.contains(char::is_control));
            assert!(headers.iter().all(|(_, value)| !value.contains(char::is_control)));
        });
    }
}
