//! The subject of the summaries.

use std::fmt::Write as _;

/// Longest template. What stands for a placeholder is bounded by the agent.
const BYTES_MAX: usize = 200;

/// A subject with placeholders.
#[derive(Debug, Default)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug)]
enum Part {
    Text(String),
    Subject,
    Key,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty".to_owned());
        }
        if text.len() > BYTES_MAX {
            return Err(format!("it has {} bytes, and at most {BYTES_MAX} may be", text.len()));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| format!("in \"{text}\" a {{ has no }}"))?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(match name {
                "subject" => Part::Subject,
                "key" => Part::Key,
                _ => {
                    let known = "there are {subject} and {key}";
                    return Err(format!("{{{name}}} is no placeholder; {known}"));
                }
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        if parts.iter().any(|part| matches!(part, Part::Text(text) if text.contains('}'))) {
            return Err(format!("in \"{text}\" a }} has no {{"));
        }
        Ok(Self(parts))
    }

    pub(crate) fn fill(&self, subject: &str, key: Option<&str>) -> String {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Subject => filled.push_str(subject),
                Part::Key => push_token(&mut filled, key.unwrap_or_default()),
            }
        }
        filled
    }
}

/// Appends a text as one token of a subject, as the agent's sinks write values into subjects.
fn push_token(subject: &mut String, text: &str) {
    if text.is_empty() {
        subject.push('_');
    }
    for character in text.chars() {
        match character {
            '.' | '*' | '>' | '%' | ' ' | '\0'..='\x1f' | '\x7f' => {
                // Writing into a string does not fail.
                let _ok = write!(subject, "%{:02X}", u32::from(character));
            }
            _ => subject.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_token_whatever_is_in_it() {
        let template = Template::parse("sum.{key}.of.{subject}").unwrap();
        assert_eq!(template.fill("a.b", Some("x.y *>%\n")), "sum.x%2Ey%20%2A%3E%25%0A.of.a.b");
        assert_eq!(template.fill("a.b", None), "sum._.of.a.b");
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in ["", "{", "a.{key", "key}", "{key}}", "{Key}", "{}", &"x".repeat(201)] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
