//! Prints an error with its sources once, for logs and the command line.

use std::error::Error;
use std::fmt;

/// Displays `error: source: source of the source`, leaving out a source whose text the one before already ends with.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            if !shown.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            shown = text;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    #[test]
    fn a_chain_is_printed_once_and_repeats_nothing() {
        let inner = Link { text: "disk full", source: None };
        let middle = Link { text: "writing: disk full", source: Some(Box::new(inner)) };
        let outer = Link { text: "cannot append", source: Some(Box::new(middle)) };
        assert_eq!(Chain(&outer).to_string(), "cannot append: writing: disk full");
    }
}
