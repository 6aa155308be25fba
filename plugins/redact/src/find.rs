//! Finds what is known by its look, in every text of a JSON value.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use waystation_plugin::json::{as_text, to_text};

use crate::action::Action;

/// Digits of a card's number.
const CARD_DIGITS: Range<usize> = 13..20;

#[derive(Deserialize, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Find {
    /// Addresses of e-mail.
    Email,
    /// Numbers of payment cards: 13 to 19 digits, with single blanks or dashes between them, whose check digit is right.
    Card,
}

/// The JSON with these patterns redacted in its texts; none when there is nothing to redact. Names of fields stay.
pub(crate) fn redact(json: &str, patterns: &[(Find, Action)]) -> Option<String> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(begin) = json[at..].find('"').map(|found| at + found) {
        let end = end_of_string(json, begin);
        at = end;
        let is_name = json[end..].trim_start().starts_with(':');
        let string = &json[begin..end];
        if is_name || !may_hold(string) {
            continue;
        }
        let text = decoded(string);
        let redacted =
            patterns.iter().fold(Cow::Borrowed(&*text), |text, (find, action)| {
                match find.replaced(&text, action) {
                    Some(new) => Cow::Owned(new),
                    None => text,
                }
            });
        if redacted != text {
            out.push_str(&json[copied..begin]);
            out.push_str(&to_text(&*redacted));
            copied = end;
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(&json[copied..]);
    Some(out)
}

/// A quick look at what can be in a string at all.
fn may_hold(string: &str) -> bool {
    string.bytes().any(|byte| matches!(byte, b'@' | b'\\'))
        || string.bytes().filter(u8::is_ascii_digit).count() >= CARD_DIGITS.start
}

/// Where the string that begins here has ended.
fn end_of_string(json: &str, begin: usize) -> usize {
    let mut bytes = json.bytes().enumerate().skip(begin + 1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    json.len()
}

/// What a JSON string says. Half of a surrogate pair, which no text can have, does not hide the rest.
pub(crate) fn decoded(string: &str) -> Cow<'_, str> {
    if let Some(text) = as_text(string) {
        return text;
    }
    let inner = string.trim_matches('"');
    let mut units: Vec<u16> = Vec::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        let escaped = match character {
            '\\' => characters.next(),
            _ => None,
        };
        match escaped {
            None => units.extend(character.encode_utf16(&mut [0; 2]).iter()),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
                units.push(u16::from_str_radix(&digits, 16).unwrap_or(0xfffd));
            }
            Some(other) => units.push(match other {
                'n' => 10,
                't' => 9,
                'r' => 13,
                'b' => 8,
                'f' => 12,
                other => u16::try_from(u32::from(other)).unwrap_or(0xfffd),
            }),
        }
    }
    Cow::Owned(String::from_utf16_lossy(&units))
}

impl Find {
    fn replaced(self, text: &str, action: &Action) -> Option<String> {
        let found = match self {
            Self::Email => emails(text),
            Self::Card => cards(text),
        };
        if found.is_empty() {
            return None;
        }
        let mut out = String::with_capacity(text.len());
        let mut copied = 0;
        for Range { start, end } in found {
            out.push_str(&text[copied..start]);
            out.push_str(&action.on_text(&text[start..end]).unwrap_or_default());
            copied = end;
        }
        out.push_str(&text[copied..]);
        Some(out)
    }
}

fn emails(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    // Letters of other scripts may be in both parts.
    let is_local = |c: char| c.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~.".contains(c);
    let is_domain = |c: char| c.is_alphanumeric() || c == '-' || c == '.';
    for (at, _) in text.match_indices('@') {
        let free = found.last().map_or(0, |last| last.end);
        let Some(before) = text.get(free..at) else { continue };
        let start = at
            - before.chars().rev().take_while(|c| is_local(*c)).map(char::len_utf8).sum::<usize>();
        let after = &text[at + 1..];
        let length: usize = after.chars().take_while(|c| is_domain(*c)).map(char::len_utf8).sum();
        let domain = after[..length].trim_end_matches(['.', '-']);
        let has_dot = domain
            .rsplit_once('.')
            .is_some_and(|(host, top)| !host.is_empty() && top.chars().count() >= 2);
        if start < at && has_dot {
            found.push(start..at + 1 + domain.len());
        }
    }
    found
}

fn cards(text: &str) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        let mut digits = Vec::new();
        let mut end = at;
        // A run of digits with single separators.
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'0'..=b'9' => {
                    digits.push(byte - b'0');
                    end = at + 1;
                }
                b' ' | b'-' if at == end => {}
                _ => break,
            }
            at += 1;
        }
        if CARD_DIGITS.contains(&digits.len()) && (2..=6).contains(&digits[0]) && has_luhn(&digits)
        {
            found.push(start..end);
        }
    }
    found
}

/// Whether the last digit is the check digit of those before it (ISO/IEC 7812-1, annex B).
fn has_luhn(digits: &[u8]) -> bool {
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| {
            let digit = u32::from(*digit);
            match at % 2 {
                0 => digit,
                _ if digit > 4 => digit * 2 - 9,
                _ => digit * 2,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}
