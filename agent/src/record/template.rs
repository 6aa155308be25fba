//! Templates of the config: text with `{field}` in it, for subjects, names and made-up payloads.
//!
//! A template is parsed once against the fields that exist where it stands; what is in a field and how it is escaped is the
//! caller's. There is no escape for a brace: names and subjects have no use for one, and payloads are parsed leniently.

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text that stands as it is.
    Text(String),
    /// The field with this place in the list that the template was parsed with.
    Field(usize),
}

/// Why a text is no template. Says what could stand there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its counterpart.
    #[error("\"{text}\" has a brace that does not belong to a field; the fields are {known}")]
    Brace {
        /// The whole template.
        text: String,
        /// The fields that exist.
        known: String,
    },
    /// A field that does not exist here.
    #[error("\"{{{field}}}\" is no field here; the fields are {known}")]
    Field {
        /// What stands between the braces.
        field: String,
        /// The fields that exist.
        known: String,
    },
}

impl Template {
    /// Parses a template in which every brace belongs to one of the `known` fields.
    ///
    /// # Errors
    /// Names the field or brace, and what could stand there.
    pub fn parse(text: &str, known: &[&str]) -> Result<Self, TemplateError> {
        let listed =
            || known.iter().map(|name| format!("{{{name}}}")).collect::<Vec<_>>().join(", ");
        let brace = || TemplateError::Brace { text: text.to_owned(), known: listed() };
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if before.contains('}') {
                return Err(brace());
            }
            let (field, behind) = after.split_once('}').ok_or_else(brace)?;
            let place = known
                .iter()
                .position(|name| *name == field)
                .ok_or_else(|| TemplateError::Field { field: field.to_owned(), known: listed() })?;
            push_text(&mut pieces, before);
            pieces.push(Piece::Field(place));
            rest = behind;
        }
        if rest.contains('}') {
            return Err(brace());
        }
        push_text(&mut pieces, rest);
        Ok(Self { pieces })
    }

    /// Parses a template in which braces that make no `known` field are text, as in JSON.
    #[must_use]
    pub fn parse_lenient(text: &str, known: &[&str]) -> Self {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            plain.push_str(before);
            let field = known.iter().enumerate().find_map(|(place, name)| {
                Some((place, after.strip_prefix(name)?.strip_prefix('}')?))
            });
            if let Some((place, behind)) = field {
                push_text(&mut pieces, &std::mem::take(&mut plain));
                pieces.push(Piece::Field(place));
                rest = behind;
            } else {
                plain.push('{');
                rest = after;
            }
        }
        plain.push_str(rest);
        push_text(&mut pieces, &plain);
        Self { pieces }
    }

    /// Its parts in order; two texts never follow each other, and none is empty.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Appends the template to `out`; `write` appends the field with this place in the list.
    pub fn render_into(&self, out: &mut String, mut write: impl FnMut(usize, &mut String)) {
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Field(place) => write(*place, out),
            }
        }
    }

    /// The template with these values in the fields' places.
    #[must_use]
    pub fn render(&self, values: &[&str]) -> String {
        let mut out = String::new();
        self.render_into(&mut out, |place, out| {
            out.push_str(values.get(place).copied().unwrap_or_default());
        });
        out
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_filled_in_where_they_stand() {
        let template = Template::parse("edge.{agent}.{subject}", &["subject", "agent"]).unwrap();
        assert_eq!(template.render(&["a.b", "gw"]), "edge.gw.a.b");
        assert_eq!(Template::parse("", &[]).unwrap().render(&[]), "");
    }

    #[test]
    fn unknown_fields_and_stray_braces_are_named() {
        let parse = |text| Template::parse(text, &["a", "b"]).unwrap_err().to_string();
        assert_eq!(parse("x{c}"), "\"{c}\" is no field here; the fields are {a}, {b}");
        for stray in ["{a", "a}", "{{a}}", "{a}}"] {
            assert!(!parse(stray).is_empty(), "{stray}");
        }
    }

    #[test]
    fn a_lenient_template_keeps_the_braces_of_json() {
        let template = Template::parse_lenient(r#"{"n":{n},"t":"{time}","x":{}}"#, &["n", "time"]);
        assert_eq!(template.render(&["7", "now"]), r#"{"n":7,"t":"now","x":{}}"#);
        assert_eq!(Template::parse_lenient("{{n}{", &["n"]).render(&["1"]), "{1{");
    }
}
