//! Rust source as tokens: enough of the language to follow paths and braces, without comments and literals.

/// A word or a sign of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// An identifier, `::`, or one other character.
    pub(super) text: String,
    /// From 1.
    pub(super) line: usize,
}

/// The tokens of the source; comments, strings, characters and lifetimes leave none.
pub(super) fn tokens(source: &str) -> Vec<Token> {
    let characters: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(&character) = characters.get(at) {
        let rest = &characters[at..];
        let (length, text) = if let Some(length) = skipped(rest) {
            (length, None)
        } else if character.is_alphanumeric() || character == '_' {
            let length = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
            (length, Some(rest[..length].iter().collect()))
        } else if rest.starts_with(&[':', ':']) {
            (2, Some("::".to_owned()))
        } else {
            (1, (!character.is_whitespace()).then(|| character.to_string()))
        };
        tokens.extend(text.map(|text| Token { text, line }));
        line += rest[..length].iter().filter(|character| **character == '\n').count();
        at += length;
    }
    tokens
}

/// How many characters the comment, literal or lifetime is long that begins here, if one does.
fn skipped(rest: &[char]) -> Option<usize> {
    if rest.starts_with(&['/', '/']) {
        return Some(rest.iter().take_while(|character| **character != '\n').count());
    }
    if rest.starts_with(&['/', '*']) {
        return Some(block_comment(rest));
    }
    if rest[0] == '\'' {
        return Some(quote(rest));
    }
    let prefix = rest.iter().take_while(|character| "bcr".contains(**character)).count();
    let hashes = rest[prefix..].iter().take_while(|character| **character == '#').count();
    if prefix > 2 || rest.get(prefix + hashes) != Some(&'"') {
        return None;
    }
    let is_raw = rest[..prefix].contains(&'r');
    if hashes > 0 && !is_raw {
        return None;
    }
    Some(string(rest, prefix + hashes + 1, is_raw.then_some(hashes)))
}

/// Block comments nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// A character literal, or the quote of a lifetime.
fn quote(rest: &[char]) -> usize {
    if rest.get(1) == Some(&'\\') {
        let end = rest.iter().skip(3).position(|character| *character == '\'');
        return end.map_or(rest.len(), |end| end + 4);
    }
    if rest.get(2) == Some(&'\'') {
        return 3;
    }
    let is_word = |character: &&char| character.is_alphanumeric() || **character == '_';
    1 + rest[1..].iter().take_while(is_word).count()
}

/// A string whose content begins at `at`; a raw one ends with a quote and as many hashes.
fn string(rest: &[char], mut at: usize, raw_hashes: Option<usize>) -> usize {
    while let Some(character) = rest.get(at) {
        match (character, raw_hashes) {
            ('\\', None) => at += 1,
            ('"', None) => return at + 1,
            ('"', Some(hashes)) => {
                let found =
                    rest[at + 1..].iter().take_while(|character| **character == '#').count();
                if found >= hashes {
                    return at + 1 + hashes;
                }
            }
            _ => {}
        }
        at += 1;
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> String {
        tokens(source).into_iter().map(|token| token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_and_literals_leave_no_tokens() {
        let cases = [
            ("a // crate::b\n/* x /* y */ z */ c", "a c"),
            (r#"a("crate::b \" x", b"y", 'c', '\'', '\u{1b}') d"#, "a ( , , , , ) d"),
            ("r#\"crate::x \" y\"# br\"\\\" z", "z"),
            ("fn a<'long>(x: &'static str) {}", "fn a < > ( x : & str ) { }"),
            ("use crate::{a, b::c};", "use crate :: { a , b :: c } ;"),
            ("r#type bcr", "r # type bcr"),
        ];
        for (source, expected) in cases {
            assert_eq!(texts(source), expected, "{source}");
        }
    }

    #[test]
    fn lines_are_counted_through_what_is_skipped() {
        let tokens = tokens("a\n/* \n */ b \"\n\" c");
        assert_eq!(tokens.iter().map(|token| token.line).collect::<Vec<_>>(), [1, 3, 4]);
    }
}
