//! Licence expressions: whether one can be met with the licences of a list.
//!
//! ```text
//! any  = all { ("OR" | "/") all }
//! all  = one { "AND" one }
//! one  = "(" any ")" | licence [ "WITH" exception ]
//! ```

use anyhow::{Result, bail};

/// Whether the expression is met when exactly the licences in `allowed` may be used. A licence with an exception
/// (`Apache-2.0 WITH LLVM-exception`) is one entry of the list.
pub(crate) fn is_met(expression: &str, allowed: &[String]) -> Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect(), next: 0, allowed };
    let met = words.any()?;
    match words.peek() {
        None => Ok(met),
        Some(word) => bail!("`{word}` is not expected in the licence expression `{expression}`"),
    }
}

struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
    allowed: &'a [String],
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(word);
        self.next += usize::from(is_next);
        is_next
    }

    fn any(&mut self) -> Result<bool> {
        let mut met = self.all()?;
        while self.take("OR") {
            met |= self.all()?;
        }
        Ok(met)
    }

    fn all(&mut self) -> Result<bool> {
        let mut met = self.one()?;
        while self.take("AND") {
            met &= self.one()?;
        }
        Ok(met)
    }

    fn one(&mut self) -> Result<bool> {
        if self.take("(") {
            let met = self.any()?;
            if !self.take(")") {
                bail!("a closing parenthesis is missing in a licence expression");
            }
            return Ok(met);
        }
        let licence = self.name()?;
        let licence =
            if self.take("WITH") { format!("{licence} WITH {}", self.name()?) } else { licence };
        Ok(self.allowed.contains(&licence))
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(word) if !["OR", "AND", "WITH", "(", ")"].contains(&word) => {
                self.next += 1;
                Ok(word.to_owned())
            }
            Some(word) => bail!("a licence is expected where `{word}` stands"),
            None => bail!("a licence expression ends too early"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_evaluated_with_their_precedence() {
        let allowed = ["MIT", "BSD-3-Clause", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let cases = [
            ("MIT", true),
            ("MIT OR GPL-3.0-only", true),
            ("MIT/Apache-2.0", true),
            ("GPL-3.0-only", false),
            ("MIT AND BSD-3-Clause", true),
            ("MIT AND GPL-3.0-only", false),
            ("(Apache-2.0 OR MIT) AND BSD-3-Clause", true),
            ("GPL-3.0-only AND MIT OR MIT", true),
            ("GPL-3.0-only AND (MIT OR MIT)", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
        ];
        for (expression, met) in cases {
            assert_eq!(is_met(expression, &allowed).unwrap(), met, "{expression}");
        }
    }

    #[test]
    fn what_is_no_expression_is_an_error() {
        for expression in ["", "MIT OR", "(MIT", "MIT MIT", "OR MIT", "MIT)", "MIT WITH"] {
            assert!(is_met(expression, &[]).is_err(), "{expression}");
        }
    }
}
