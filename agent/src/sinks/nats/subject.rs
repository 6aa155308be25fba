//! Subjects of messages: a template, and values escaped so that none can change the subject's shape.
//!
//! In every value `.`, `*`, `>`, `%`, white space and control characters become `%XX`, and an empty value is `_`. A record's
//! subject is a whole subject: its dots stay, and each of its tokens is escaped on its own.

use crate::record::batch::BatchFacts;
use crate::record::subject::SubjectPattern;
use crate::record::template::{Piece, Template};

/// The fields of `subject`.
pub const SUBJECT_FIELDS: &[&str] = &["subject", "agent", "source", "pipeline", "sink"];
const SUBJECT: usize = 0;

/// Checks and parses a `subject` template.
///
/// # Errors
/// Says what is wrong: an unknown field, an empty token, a wildcard, white space.
pub fn parse_subject_template(text: &str) -> Result<Template, String> {
    let template = Template::parse(text, SUBJECT_FIELDS).map_err(|error| error.to_string())?;
    for piece in template.pieces() {
        if let Piece::Text(text) = piece
            && let Some(bad) =
                text.chars().find(|c| c.is_whitespace() || c.is_control() || "*>".contains(*c))
        {
            return Err(format!("a subject cannot hold {bad:?}"));
        }
    }
    let filled = template.render(&["x"; 5]);
    if filled.split('.').any(str::is_empty) {
        return Err(format!("the subject \"{text}\" has an empty token"));
    }
    Ok(template)
}

/// The template with everything but the records' subjects filled in: what is fixed for a batch.
pub(super) fn fix(template: &Template, facts: &BatchFacts) -> String {
    let place = &facts.place;
    let mut out = String::new();
    template.render_into(&mut out, |field, out| {
        // Component names need no escaping, but that is their rule, not the subject's.
        match field {
            SUBJECT => out.push_str("{subject}"),
            1 => escape_token(place.agent.as_str(), out),
            2 => escape_token(place.source.as_str(), out),
            3 => escape_token(place.pipeline.as_str(), out),
            _ => escape_token(place.sink.as_str(), out),
        }
    });
    out
}

/// Parses what [`fix`] made.
pub(super) fn parse_fixed(text: &str) -> Result<Template, String> {
    Template::parse(text, &SUBJECT_FIELDS[..=SUBJECT]).map_err(|error| error.to_string())
}

/// Writes the subject of a record into `out`, which is cleared first.
pub(super) fn write_subject(template: &Template, subject: &str, out: &mut String) {
    out.clear();
    template.render_into(out, |_, out| {
        for (index, token) in subject.split('.').enumerate() {
            if index > 0 {
                out.push('.');
            }
            escape_token(token, out);
        }
    });
}

/// The subjects that a template can make, as a pattern: from `{subject}` on, which may be several tokens, anything; for other
/// fields, any token.
pub(super) fn pattern(template: &str) -> SubjectPattern {
    let mut tokens = Vec::new();
    for token in template.split('.') {
        if token.contains("{subject}") {
            tokens.push(">");
            break;
        }
        tokens.push(if token.contains('{') { "*" } else { token });
    }
    let pattern = tokens.join(".").parse();
    pattern.unwrap_or_else(|_| ">".parse().expect("this is a pattern"))
}

fn escape_token(token: &str, out: &mut String) {
    use std::fmt::Write as _;

    if token.is_empty() {
        out.push('_');
    }
    for c in token.chars() {
        if c.is_whitespace() || c.is_control() || ".*>%".contains(c) {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a String cannot fail.
                let _ok = write!(out, "%{byte:02X}");
            }
        } else {
            out.push(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::facts;

    fn subject(template: &str, value: &str) -> String {
        let fixed = fix(&parse_subject_template(template).unwrap(), &facts(1, 1));
        let mut out = String::new();
        write_subject(&parse_fixed(&fixed).unwrap(), value, &mut out);
        out
    }

    #[test]
    fn values_cannot_change_the_shape_of_a_subject() {
        assert_eq!(subject("edge.{agent}.{subject}", "hall.7"), "edge.gw-1.hall.7");
        assert_eq!(subject("{subject}", "a.*.>.b c.%"), "a.%2A.%3E.b%20c.%25");
        assert_eq!(subject("e.{subject}", ""), "e._");
        assert_eq!(subject("{subject}.x", "a..b."), "a._.b._.x");
        assert_eq!(subject("{subject}", "a\r\nPUB\u{a0}ü"), "a%0D%0APUB%C2%A0ü");
    }

    #[test]
    fn the_pattern_of_a_template_covers_what_it_makes() {
        for (template, expected) in [
            ("edge.gw.{subject}", "edge.gw.>"),
            ("{subject}", ">"),
            ("edge.{agent}.x", "edge.*.x"),
            ("a.b-{subject}.c", "a.>"),
            ("a.b", "a.b"),
        ] {
            assert_eq!(pattern(template).as_str(), expected);
            let made = subject(template, "hall.7");
            assert!(pattern(template).matches(&made), "{template} {made}");
        }
    }

    #[test]
    fn templates_that_make_no_subject_are_refused() {
        for bad in ["", "a..b", ".a", "a.", "a b", "a.*", "a.>", "{x}", "a\n"] {
            assert!(parse_subject_template(bad).is_err(), "{bad:?}");
        }
    }
}
