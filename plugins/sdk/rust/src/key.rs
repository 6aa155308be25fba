//! What makes records belong together.

use serde::Deserialize;

use crate::Record;
use crate::json::{Object, Path};

/// Which records belong to one key: the type of a config's `by`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Their subject.
    #[default]
    Subject,
    /// All do.
    All,
    /// The value of this field.
    Field(Path),
    /// The value of this header.
    Header(String),
}

impl By {
    /// What is wrong with it, with the key of the config.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Field(path) if path.has_star() => Some(
                "by.field: a * cannot stand here; \\* is a star that belongs to a name".to_owned(),
            ),
            _ => None,
        }
    }

    /// Whether it looks into the payload.
    #[must_use]
    pub fn needs_json(&self) -> bool {
        matches!(self, Self::Field(_))
    }

    /// The key of a record: of a field its JSON text. None when it has no such field or header, and when all belong together.
    #[must_use]
    pub fn key<'r>(&self, record: &'r Record, object: &'r Object<'_>) -> Option<&'r str> {
        match self {
            Self::Subject => Some(&record.subject),
            Self::All => None,
            Self::Field(path) => object.at(path),
            Self::Header(name) => {
                let header = record.headers.iter().find(|header| header.name == *name);
                header.map(|header| &*header.value)
            }
        }
    }
}

/// FNV-1a with 128 bits: the same in every version of a plugin, as what goes into the state has to be.
#[must_use]
pub fn stable_hash(text: &str) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of the FNV authors for the empty text and for "a".
    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(stable_hash(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(stable_hash("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
