//! A look into a config that need not be a good one: what can still be read of it, without a check.

use std::io;
use std::path::Path;

use super::files::{drop_ins, read_bounded};
use crate::settings::Document;

/// What can be read of a config's files.
#[derive(Debug)]
pub struct Glimpse {
    documents: Vec<Document>,
}

impl Glimpse {
    /// Looks into a config and its drop-ins, as far as they can be read.
    ///
    /// # Errors
    /// When the file itself cannot be read.
    pub fn of(path: &Path) -> io::Result<Self> {
        let first = read_bounded(path)?;
        let others = drop_ins(path).unwrap_or_default();
        let others = others.iter().filter_map(|file| read_bounded(file).ok());
        Ok(Self::in_texts([first].into_iter().chain(others)))
    }

    pub(super) fn in_texts(texts: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { documents: texts.into_iter().map(|bytes| Document::new(&bytes)).collect() }
    }

    /// The text at a key of a table.
    #[must_use]
    pub fn text(&self, table: &str, key: &str) -> Option<String> {
        self.documents.iter().find_map(|document| {
            let root = document.table();
            let value = root.get(table)?.get_ref().get(key)?;
            value.get_ref().as_str().map(str::to_owned)
        })
    }

    /// Whether all of it is TOML: what is not there may otherwise have stood in a line that is none.
    #[must_use]
    pub fn is_toml(&self) -> bool {
        self.documents.iter().all(|document| document.syntax.is_empty())
    }
}
