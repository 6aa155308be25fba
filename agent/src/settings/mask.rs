//! Finds what must not be printed: secrets by the name of their key, user information and queries in URLs.
//!
//! Works on text rather than on parsed values, because a line with a syntax error must not show a secret either. When in
//! doubt something is hidden: a hint that shows `***` is still a hint.

use std::borrow::Cow;
use std::ops::Range;

/// What stands for something hidden.
pub const MASK: &str = "***";

/// Whether a key of this name usually holds a secret.
#[must_use]
pub fn looks_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let part = |name: &str| key.split(['_', '-', '.']).any(|part| part == name);
    ["pass", "pwd", "secret", "token", "cred", "bearer", "jwt", "apikey", "nkey", "cookie"]
        .iter()
        .any(|word| key.contains(word))
        || ["key", "seed", "auth", "authorization", "sas", "pin", "pw"]
            .iter()
            .any(|name| part(name))
}

/// The text with what URLs carry beside their place replaced.
#[must_use]
pub fn urls(text: &str) -> Cow<'_, str> {
    let ranges = url_ranges(text);
    if ranges.is_empty() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(Replaced::new(text, 0..text.len(), ranges).text)
}

/// The text without these secrets.
#[must_use]
pub fn hidden(mut text: String, secrets: &[String]) -> String {
    for secret in secrets.iter().filter(|secret| !secret.is_empty()) {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), MASK);
        }
    }
    text
}

/// Where URLs in the text hold user information or a query.
#[must_use]
pub fn url_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let start = at + separator.len();
        let rest = text.get(start..).unwrap_or_default();
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | '`' | '<' | '>');
        let url = rest.get(..rest.find(ends).unwrap_or(rest.len())).unwrap_or_default();
        if let Some(user) = url.rfind('@') {
            ranges.push(start..start + user);
        }
        if let Some(query) = url.find('?') {
            ranges.push(start + query + 1..start + url.len());
        }
    }
    ranges
}

/// Where the text of a config file holds what looks like a secret by its key, or stands in a plugin's config.
///
/// Each line is looked at twice: as what the lines before make of it, and by itself, because in a broken file a quote too
/// many turns strings and what is between them around.
#[must_use]
pub fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut scan = Scan::default();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_end_matches(['\n', '\r']);
        let is_fresh = scan.open.is_none() && scan.stack.is_empty();
        scan.line(start, content);
        if !is_fresh {
            let mut alone = Scan { header_secret: scan.header_secret, ..Scan::default() };
            alone.walk(start, content, 0);
            scan.ranges.append(&mut alone.ranges);
        }
        start += line.len();
    }
    scan.ranges
}

/// Where a name of a secret ends in a line that is no TOML: nothing behind it can be trusted to be harmless.
#[must_use]
pub fn after_secret_name(line: &str) -> Option<usize> {
    let mut end = 0;
    for word in
        line.split_inclusive(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')))
    {
        let name =
            word.trim_end_matches(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-')));
        if hides(name) {
            let rest = line.get(end + name.len()..).unwrap_or_default();
            return Some(line.len() - rest.trim_start_matches([' ', '\t', '=', ':']).len());
        }
        end += word.len();
    }
    None
}

/// Whether a line begins a table or an assignment: where reading can go on after something broken.
#[must_use]
pub fn begins_anew(line: &str) -> bool {
    let line = line.trim_start();
    if let Some(header) = line.strip_prefix('[') {
        return header.trim_start_matches('[').starts_with(|c: char| c.is_ascii_alphanumeric());
    }
    let Some((key, value)) = line.split_once('=') else { return false };
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | ' ');
    !key.trim().is_empty()
        && key.chars().all(is_key)
        && value.trim_start().starts_with(|c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '"' | '\'' | '[' | '{' | '+' | '-')
        })
}

/// The state while going through a file line by line.
#[derive(Default)]
struct Scan {
    ranges: Vec<Range<usize>>,
    /// The table of the current header holds secrets.
    header_secret: bool,
    /// Open brackets, and whether what stands in them is secret.
    stack: Vec<(u8, bool)>,
    /// A string that its line did not close: what closes it, and whether it is secret.
    open: Option<(&'static str, bool)>,
}

impl Scan {
    fn line(&mut self, start: usize, line: &str) {
        let mut from = 0;
        if let Some((quote, secret)) = self.open {
            let closed = if quote.len() == 3 { line.find(quote) } else { None };
            if let Some(at) = closed {
                from = at + quote.len();
                self.open = None;
            } else if quote.len() == 1 && begins_anew(line) {
                self.open = None;
            } else {
                from = line.len();
            }
            if secret && from > 0 {
                self.ranges.push(start..start + from);
            }
        }
        if begins_anew(line) && from == 0 {
            // A bracket that was never closed must not make the rest of the file secret, or show a secret in it.
            self.stack.retain(|(_, secret)| *secret && !line.trim_start().starts_with('['));
            if line.trim_start().starts_with('[') {
                let name = line.trim().trim_matches(['[', ']']);
                self.header_secret = name.split('.').skip(2).any(hides);
                return;
            }
        }
        self.walk(start, line, from);
    }

    /// Goes through keys and values of one line.
    fn walk(&mut self, start: usize, line: &str, mut at: usize) {
        let bytes = line.as_bytes();
        let (mut key_secret, mut dotted_secret, mut reference) = (false, false, false);
        let mut comment = false;
        while at < bytes.len() {
            let around = self.stack.last().map_or(self.header_secret, |(_, secret)| *secret);
            let secret = key_secret || (around && !reference);
            let next = match bytes[at] {
                b'#' => {
                    comment = true;
                    at + 1
                }
                open @ (b'{' | b'[') => {
                    self.stack.push((open, secret));
                    (key_secret, reference) = (false, false);
                    at + 1
                }
                b'}' | b']' => {
                    self.stack.pop();
                    (key_secret, reference) = (false, false);
                    at + 1
                }
                b',' => {
                    (key_secret, reference) = (false, false);
                    at + 1
                }
                b'"' | b'\'' => {
                    let (end, open) = string_end(line, at);
                    if let (Some(quote), false) = (open, comment) {
                        self.open = Some((quote, secret));
                    }
                    end
                }
                byte if is_word(byte) => {
                    at + bytes[at..].iter().take_while(|byte| is_word(**byte)).count()
                }
                _ => at + 1,
            };
            let token = line.get(at..next).unwrap_or_default();
            let is_text = bytes[at] == b'"' || bytes[at] == b'\'' || is_word(bytes[at]);
            if is_text {
                let name = token.trim_matches(['"', '\'', ':']);
                let is_word = is_word(bytes[at]);
                match line.get(next..).unwrap_or_default().trim_start().bytes().next() {
                    // A word before a string, or with a colon, is a key whose "=" was forgotten.
                    next if next == Some(b'=')
                        || (is_word && matches!(next, Some(b'"' | b'\'')))
                        || (is_word && token.ends_with(':')) =>
                    {
                        key_secret = dotted_secret || hides(name);
                        reference = matches!(name, "env" | "file");
                        dotted_secret = false;
                    }
                    Some(b'.') => dotted_secret |= hides(name),
                    _ if secret && !is_plain(token) => {
                        self.ranges.push(start + at..start + next);
                    }
                    _ => {}
                }
            }
            at = next;
        }
    }
}

/// Whether values under a key of this name are not shown: secrets, and what plugins are given.
fn hides(name: &str) -> bool {
    name == "config" || looks_secret(name)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'/' | b':') || byte >= 0x80
}

/// Numbers and booleans are shown: `keys_max = 10` is no secret.
fn is_plain(token: &str) -> bool {
    matches!(token, "true" | "false")
        || (token.len() <= 9 && token.bytes().all(|b| b.is_ascii_digit() || b == b'_'))
}

/// Where the string that begins at `at` ends on its line, and what would close it if its line does not.
fn string_end(line: &str, at: usize) -> (usize, Option<&'static str>) {
    let rest = line.get(at..).unwrap_or_default();
    for quote in ["\"\"\"", "'''", "\"", "'"] {
        let Some(body) = rest.strip_prefix(quote) else { continue };
        let mut escaped = false;
        for (offset, c) in body.char_indices() {
            let here = body.get(offset..).unwrap_or_default();
            if !escaped && here.starts_with(quote) {
                return (at + quote.len() + offset + quote.len(), None);
            }
            escaped = c == '\\' && !escaped && quote.starts_with('"');
        }
        return (line.len(), Some(quote));
    }
    (line.len(), None)
}

/// A piece of text in which ranges were replaced by [`MASK`].
#[derive(Debug)]
pub struct Replaced {
    /// The result.
    pub text: String,
    part: Range<usize>,
    /// Replaced ranges of the original, in order, disjoint.
    hidden: Vec<Range<usize>>,
}

impl Replaced {
    /// Replaces the ranges, which are offsets into `whole` as `part` is.
    #[must_use]
    pub fn new(whole: &str, part: Range<usize>, mut ranges: Vec<Range<usize>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut hidden: Vec<Range<usize>> = Vec::new();
        for range in ranges {
            match hidden.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => hidden.push(range),
            }
        }
        let mut text = String::new();
        let mut at = part.start;
        for range in &hidden {
            text.push_str(whole.get(at..range.start).unwrap_or_default());
            text.push_str(MASK);
            at = range.end;
        }
        text.push_str(whole.get(at..part.end).unwrap_or_default());
        Self { text, part, hidden }
    }

    /// Where a place of the original is in the result; in something hidden, its start.
    #[must_use]
    pub fn offset(&self, original: usize) -> usize {
        let mut shift_back = 0;
        let mut shift_on = 0;
        for range in &self.hidden {
            if original >= range.end {
                shift_back += range.len();
                shift_on += MASK.len();
            } else if original > range.start {
                shift_back += original - range.start;
            }
        }
        (original.clamp(self.part.start, self.part.end) + shift_on)
            .saturating_sub(self.part.start + shift_back)
            .min(self.text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        let mut ranges = secret_ranges(text);
        ranges.extend(url_ranges(text));
        Replaced::new(text, 0..text.len(), ranges).text
    }

    #[test]
    fn what_stands_under_a_secret_name_is_hidden_and_references_are_not() {
        for (text, expected) in [
            ("password = \"S3\"", "password = ***"),
            ("token = S3CR3T", "token = ***"),
            (
                "credentials = { file = \"/etc/x.creds\" }",
                "credentials = { file = \"/etc/x.creds\" }",
            ),
            ("credentials = { value = \"S3\" }", "credentials = { value = *** }"),
            ("auth.token = \"S3\" # x", "auth.token = *** # ***"),
            ("x = 1 # token = \"S3\", don't", "x = 1 # token = ***, don't"),
            ("tokens = [\"S3\", \"S4\"]", "tokens = [***, ***]"),
            ("keys_max = 10", "keys_max = 10"),
            ("subject = \"s.{source}\"", "subject = \"s.{source}\""),
            (
                "[sinks.a.credentials]\nvalue = \"S3\"\nfile = \"x\"",
                "[sinks.a.credentials]\nvalue = ***\nfile = \"x\"",
            ),
            (
                "config = { drop = \"bad\" }\nplugin = \"x\"",
                "config = { drop = *** }\nplugin = \"x\"",
            ),
        ] {
            assert_eq!(masked(text), expected);
        }
    }

    #[test]
    fn a_secret_that_its_line_does_not_close_is_hidden_to_the_next_assignment() {
        assert_eq!(
            masked("credentials = \"-----BEGIN\neyJabc\nabc==\n-----END\"\nroot = \"x\""),
            "credentials = ***\n***\n***\n***\nroot = \"x\""
        );
        assert_eq!(
            masked("token = \"\"\"\nabc = 1\n\"\"\"\nroot = \"x\""),
            "token = ***\n***\n***\nroot = \"x\""
        );
        assert_eq!(
            masked("token = [\n  \"S3\",\n]\nroot = \"x\""),
            "token = [\n  ***,\n]\nroot = \"x\""
        );
    }

    #[test]
    fn urls_show_neither_user_information_nor_query() {
        assert_eq!(
            urls("tls://me:S3@host:1/x?t=S3 and nats://b"),
            "tls://***@host:1/x?*** and nats://b"
        );
        assert!(matches!(urls("nats://host:4222"), Cow::Borrowed(_)));
    }

    #[test]
    fn places_move_with_what_is_replaced_before_them() {
        let secret = Range { start: 3, end: 9 };
        let replaced = Replaced::new("ab SECRET cd", 0..12, Vec::from([secret]));
        assert_eq!(replaced.text, "ab *** cd");
        assert_eq!((replaced.offset(0), replaced.offset(3), replaced.offset(9)), (0, 3, 6));
        assert_eq!((replaced.offset(5), replaced.offset(12)), (3, 9));
    }
}
