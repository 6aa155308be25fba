//! What is done to a value.

use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use sha2::Sha256;
use waystation_plugin::json::to_text;

use crate::find::decoded;

/// Fewest bytes of a key: a shorter one can be guessed.
const KEY_BYTES_MIN: usize = 16;
/// Most bytes of a key.
const KEY_BYTES_MAX: usize = 1024;
/// Hex digits of a whole hash.
const LENGTH_MAX: u8 = 64;
/// Fewest hex digits: with half as many, two of 100 000 values would likely have the same.
const LENGTH_MIN: u8 = 16;
/// Most characters that a mask leaves.
const KEEP_LAST_MAX: u8 = 16;
/// Most bytes of what stands in place of a value.
const WITH_BYTES_MAX: usize = 64;
const WITH: &str = "***";

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Do {
    /// It is taken out, with its name.
    Remove,
    /// A fixed text stands in its place.
    Mask,
    /// Its keyed hash stands in its place.
    Hash,
}

/// What a rule says about its action.
pub(crate) struct Spec {
    pub(crate) r#do: Do,
    pub(crate) with: Option<String>,
    pub(crate) keep_last: Option<u8>,
    pub(crate) length: Option<u8>,
}

pub(crate) enum Action {
    Remove,
    Mask { with: String, keep_last: usize },
    Hash { hasher: Hasher, length: usize },
}

/// HMAC-SHA-256 with the key taken in.
#[derive(Clone)]
pub(crate) struct Hasher(Hmac<Sha256>);

impl Hasher {
    /// # Errors
    /// What is wrong with the key, which is not told.
    pub(crate) fn new(key: &str) -> Result<Self, String> {
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(format!(
                "it has {} bytes, and {KEY_BYTES_MIN} to {KEY_BYTES_MAX} are needed",
                key.len()
            ));
        }
        Ok(Self::of(key.as_bytes()))
    }

    /// Stands in for one whose key is wrong, so that other mistakes can be looked for.
    pub(crate) fn unusable() -> Self {
        Self::of(&[])
    }

    fn of(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC takes a key of any length"))
    }

    fn hash(&self, text: &str, length: usize) -> String {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut mac = self.0.clone();
        mac.update(text.as_bytes());
        let bytes = mac.finalize().into_bytes();
        let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.take(length).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }
}

impl Action {
    /// # Errors
    /// The key that is wrong, and why.
    pub(crate) fn new(spec: Spec, hasher: Option<&Hasher>) -> Result<Self, String> {
        let Spec { r#do, with, keep_last, length } = spec;
        let of_mask = [("with", with.is_some()), ("keep_last", keep_last.is_some())];
        let misplaced = of_mask.into_iter().filter(|_| r#do != Do::Mask);
        let misplaced = misplaced.chain([("length", length.is_some() && r#do != Do::Hash)]);
        if let Some((key, _)) = misplaced.into_iter().find(|(_, is_there)| *is_there) {
            let of = if key == "length" { "hash" } else { "mask" };
            return Err(format!("{key}: it belongs to \"{of}\""));
        }
        match r#do {
            Do::Remove => Ok(Self::Remove),
            Do::Mask => {
                let with = with.unwrap_or_else(|| WITH.to_owned());
                let keep_last = keep_last.unwrap_or(0);
                if with.len() > WITH_BYTES_MAX {
                    return Err(format!("with: it is longer than {WITH_BYTES_MAX} bytes"));
                }
                if keep_last > KEEP_LAST_MAX {
                    return Err(format!("keep_last: {keep_last} is more than {KEEP_LAST_MAX}"));
                }
                Ok(Self::Mask { with, keep_last: usize::from(keep_last) })
            }
            Do::Hash => {
                let length = length.unwrap_or(LENGTH_MAX);
                if !(LENGTH_MIN..=LENGTH_MAX).contains(&length) {
                    return Err(format!("length: {length} is not {LENGTH_MIN} to {LENGTH_MAX}"));
                }
                let hasher = hasher.cloned().ok_or("do: \"hash\" needs a `key`")?;
                Ok(Self::Hash { hasher, length: usize::from(length) })
            }
        }
    }

    /// What stands in place of a text; none when it is taken out.
    pub(crate) fn on_text(&self, text: &str) -> Option<String> {
        match self {
            Self::Remove => None,
            Self::Mask { with, keep_last } => Some(format!("{with}{}", end(text, *keep_last))),
            Self::Hash { hasher, length } => Some(hasher.hash(text, *length)),
        }
    }

    /// The same for a JSON value, in JSON. A null says nothing about anybody, and stays where it is not removed.
    pub(crate) fn on_value(&self, value: &str) -> Option<String> {
        match value.as_bytes().first() {
            _ if matches!(self, Self::Remove) => None,
            Some(b'n') => Some(value.to_owned()),
            Some(b'"') => self.on_text(&decoded(value)).map(|text| to_text(&text)),
            // The end of an object or array is no part of anything.
            Some(b'{' | b'[') if matches!(self, Self::Mask { .. }) => {
                self.on_text("").map(|text| to_text(&text))
            }
            _ => self.on_text(value).map(|text| to_text(&text)),
        }
    }
}

/// The last characters, when at least as many stand before them.
fn end(text: &str, count: usize) -> &str {
    if count == 0 || text.chars().count() < 2 * count {
        return "";
    }
    text.char_indices().rev().nth(count - 1).map_or("", |(at, _)| &text[at..])
}
