//! Subjects as NATS has them: tokens between dots. Patterns over them, with its wildcards: `*` for one token, `>` at the end for
//! one or more.

use std::fmt;
use std::str::FromStr;

use crate::limits::SUBJECT_BYTES_MAX;

/// A pattern such as `plant.*.temperature` or `plant.>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SubjectPattern(String);

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There is nothing, or nothing between two dots.
    #[error("\"{0}\" has an empty part")]
    Empty(String),
    /// A wildcard that is not a whole part, or `>` before the end.
    #[error("\"{0}\" has a wildcard that is no part by itself, or a \">\" before its end")]
    Wildcard(String),
    /// White space or a control character.
    #[error("a pattern holds no space and no control character")]
    Character,
    /// It is longer than a subject may be.
    #[error("a pattern has at most {SUBJECT_BYTES_MAX} bytes")]
    Length,
}

impl FromStr for SubjectPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.len() > SUBJECT_BYTES_MAX {
            return Err(PatternError::Length);
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(PatternError::Character);
        }
        let mut tokens = text.split('.').peekable();
        while let Some(token) = tokens.next() {
            let is_wildcard = token == "*" || (token == ">" && tokens.peek().is_none());
            if token.is_empty() {
                return Err(PatternError::Empty(text.to_owned()));
            }
            if !is_wildcard && token.contains(['*', '>']) {
                return Err(PatternError::Wildcard(text.to_owned()));
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SubjectPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl SubjectPattern {
    /// The pattern as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a subject is one of those that are meant. Allocates nothing.
    #[must_use]
    pub fn matches(&self, subject: &str) -> bool {
        let mut tokens = subject.split('.');
        for wanted in self.0.split('.') {
            let Some(token) = tokens.next() else { return false };
            match wanted {
                ">" => return true,
                "*" => {}
                _ if wanted == token => {}
                _ => return false,
            }
        }
        tokens.next().is_none()
    }

    /// Whether some subject is meant by both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.0.split('.'), other.0.split('.'));
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
                (Some(one), Some(another)) if one == another || one == "*" || another == "*" => {}
                _ => return false,
            }
        }
    }
}

/// Appends a text as one token of a subject, with `_` for each character that none holds, and where there is none at all.
/// False when something was replaced.
pub fn push_token(text: &str, subject: &mut String) -> bool {
    let is_refused = |c: char| matches!(c, '.' | '*' | '>') || c.is_whitespace() || c.is_control();
    let is_plain = !text.is_empty() && !text.contains(is_refused);
    if text.is_empty() {
        subject.push('_');
    } else if is_plain {
        subject.push_str(text);
    } else {
        subject.extend(text.chars().map(|c| if is_refused(c) { '_' } else { c }));
    }
    is_plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> SubjectPattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_match_as_in_nats() {
        for (text, subject, expected) in [
            ("a.b", "a.b", true),
            ("a.b", "a.b.c", false),
            ("a.b", "a", false),
            ("a.*", "a.b", true),
            ("a.*", "a.b.c", false),
            ("*.b", "a.b", true),
            ("a.>", "a.b", true),
            ("a.>", "a.b.c", true),
            ("a.>", "a", false),
            (">", "a", true),
            (">", "", true),
            ("*", "", true),
            ("b.*.c", "b.x.c", true),
            ("b.*.c", "b.x.d", false),
            ("A", "a", false),
        ] {
            assert_eq!(pattern(text).matches(subject), expected, "{text} {subject}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for bad in ["", "a.", ".a", "a..b", "a*", "a.>.b", "a.b>", "a b", "a\n", "**"] {
            assert!(bad.parse::<SubjectPattern>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(SUBJECT_BYTES_MAX + 1).parse::<SubjectPattern>().is_err());
    }

    #[test]
    fn patterns_overlap_when_a_subject_can_be_meant_by_both() {
        for (one, other, expected) in [
            ("a.>", "a.b", true),
            ("a.>", "b.>", false),
            ("a.*.c", "a.b.>", true),
            ("a.*", "a", false),
            ("a.b", "a.b", true),
            ("*.b", "a.*", true),
            ("a", "a.>", false),
        ] {
            assert_eq!(pattern(one).overlaps(&pattern(other)), expected, "{one} {other}");
            assert_eq!(pattern(other).overlaps(&pattern(one)), expected, "{other} {one}");
        }
    }

    #[test]
    fn any_text_is_one_token() {
        let mut subject = String::new();
        for (text, is_plain) in [("valve-7", true), ("ä", true), ("", false), ("a.b c", false)] {
            assert_eq!(push_token(text, &mut subject), is_plain, "{text}");
            subject.push('.');
        }
        push_token("*>\n", &mut subject);
        assert_eq!(subject, "valve-7.ä._.a_b_c.___");
    }
}
