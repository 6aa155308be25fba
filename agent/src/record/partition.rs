//! By what of its records a batch is taken apart: tokens of the subject, and headers.
//!
//! A record's *key* is its values, each escaped, with `/` between them. Two different lists of values never have one key:
//! - bytes other than letters, digits, `-` and `_` are written `%XX`, and so is a `-` at the beginning;
//! - a value that is longer than 100 bytes then keeps its beginning, with `~` and a hash of the whole behind it;
//! - `~missing` stands for a header or token that is not there, `~empty` for one without a character.

use std::collections::HashSet;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::RecordView;
use crate::limits::{PARTITION_VALUE_BYTES_MAX, SUBJECT_TOKENS_MAX};

/// Bytes of the hash that stands in for what is left out of a long value.
const HASH_BYTES: usize = 16;

/// One thing that records differ by.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    /// The token of the subject with this number, from 0.
    Token(usize),
    /// The first header of this name.
    Header(String),
}

/// What a key is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionBy {
    fields: Vec<Field>,
}

/// Why a placeholder names nothing that records differ by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// It begins with neither `subject.` nor `header.`.
    #[error("{{{0}}} is neither {{subject.N}} nor {{header.NAME}}")]
    Kind(String),
    /// The number of the token is none.
    #[error("{{{0}}} names no token: they are counted from 1 to {SUBJECT_TOKENS_MAX}")]
    Token(String),
    /// The name of the header is none.
    #[error("{{{0}}} names no header")]
    Header(String),
}

impl PartitionBy {
    /// Takes the fields as they are written in a template, `subject.N` (tokens are counted from 1) or `header.NAME`.
    ///
    /// # Errors
    /// Says which is none.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, FieldError> {
        let fields = names.into_iter().map(|name| {
            if let Some(number) = name.strip_prefix("subject.") {
                let number = number.parse().ok().filter(|n| (1..=SUBJECT_TOKENS_MAX).contains(n));
                number
                    .map(|n| Field::Token(n - 1))
                    .ok_or_else(|| FieldError::Token(name.to_owned()))
            } else if let Some(header) = name.strip_prefix("header.") {
                let is_name = !header.is_empty()
                    && header.bytes().all(|b| b.is_ascii_graphic() && !b"{}/:".contains(&b));
                let field = is_name.then(|| Field::Header(header.to_owned()));
                field.ok_or_else(|| FieldError::Header(name.to_owned()))
            } else {
                Err(FieldError::Kind(name.to_owned()))
            }
        });
        Ok(Self { fields: fields.collect::<Result<_, _>>()? })
    }

    /// Writes the key of a record into `out`, which is cleared first.
    pub fn write_key(&self, record: &RecordView<'_>, out: &mut String) {
        out.clear();
        for (index, field) in self.fields.iter().enumerate() {
            if index > 0 {
                out.push('/');
            }
            let value = match field {
                Field::Token(number) => record.subject.split('.').nth(*number),
                Field::Header(name) => record.headers.get(name),
            };
            escape(value, out);
        }
    }
}

fn escape(value: Option<&str>, out: &mut String) {
    let value = match value {
        None => return out.push_str("~missing"),
        Some("") => return out.push_str("~empty"),
        Some(value) => value,
    };
    let start = out.len();
    for byte in value.bytes() {
        let is_plain =
            byte.is_ascii_alphanumeric() || byte == b'_' || (byte == b'-' && out.len() > start);
        if is_plain {
            out.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ok = write!(out, "%{byte:02X}");
        }
    }
    if out.len() - start > PARTITION_VALUE_BYTES_MAX {
        let digest = Sha256::digest(value);
        let beginning = PARTITION_VALUE_BYTES_MAX - "~".len() - 2 * HASH_BYTES;
        out.truncate(start + beginning);
        out.push('~');
        for byte in digest.iter().take(HASH_BYTES) {
            let _ok = write!(out, "{byte:02x}");
        }
    }
}

/// The keys of a batch, in the order in which they come.
#[derive(Debug)]
pub struct Partitions {
    by: std::sync::Arc<PartitionBy>,
    known: HashSet<String>,
    keys: Vec<String>,
    key: String,
    last: String,
}

impl Partitions {
    /// None yet.
    #[must_use]
    pub fn new(by: std::sync::Arc<PartitionBy>) -> Self {
        let (key, last) = (String::new(), String::new());
        Self { by, known: HashSet::new(), keys: Vec::new(), key, last }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.known.clear();
        self.keys.clear();
        self.last.clear();
    }

    /// Takes in the key of a record; false when it is new and there are `keys_max` already.
    pub fn note(&mut self, record: &RecordView<'_>, keys_max: usize) -> bool {
        self.by.write_key(record, &mut self.key);
        // Records of one key mostly follow each other.
        if self.key == self.last && !self.keys.is_empty() {
            return true;
        }
        if !self.known.contains(&self.key) {
            if self.keys.len() >= keys_max {
                return false;
            }
            self.known.insert(self.key.clone());
            self.keys.push(self.key.clone());
        }
        self.last.clone_from(&self.key);
        true
    }

    /// The keys, taken out.
    pub fn take(&mut self) -> Vec<String> {
        let keys = std::mem::take(&mut self.keys);
        self.clear();
        keys
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Timestamp;
    use crate::record::id::{Epoch, Seq};
    use crate::record::{HeadersBuffer, Origin};

    fn key(by: &[&str], subject: &str, headers: &[(&str, &str)]) -> String {
        let mut buffer = HeadersBuffer::default();
        for (name, value) in headers {
            buffer.push(name, value);
        }
        let record = RecordView {
            epoch: Epoch::new(1, 2),
            seq: Seq(3),
            origin: Origin::default(),
            time: Timestamp(0),
            subject,
            headers: buffer.as_headers(),
            payload: b"",
        };
        let mut key = String::new();
        PartitionBy::parse(by.iter().copied()).unwrap().write_key(&record, &mut key);
        key
    }

    #[test]
    fn keys_are_these_for_ever() {
        let by = ["subject.2", "header.Device"];
        assert_eq!(key(&by, "plant.hall-7.x", &[("device", "a/b")]), "hall-7/a%2Fb");
        assert_eq!(key(&by, "plant", &[("device", "")]), "~missing/~empty");
        assert_eq!(key(&by, "p..x", &[("device", "-rf"), ("device", "other")]), "~empty/%2Drf");
        let long = key(&["header.d"], "", &[("d", &"x".repeat(300))]);
        assert_eq!(long.len(), PARTITION_VALUE_BYTES_MAX);
        assert!(long.starts_with("xxx") && long.contains('~'), "{long}");
        for bad in ["subject.0", "subject.x", "subject.65", "header.", "header.a b", "source"] {
            assert!(PartitionBy::parse([bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn d_33_no_two_values_share_a_key_and_none_is_a_way_out() {
        let long = ["x".repeat(300), "x".repeat(301), "x".repeat(PARTITION_VALUE_BYTES_MAX)];
        let mut values = vec![
            "../../etc/x",
            "/abs",
            "a/b",
            "a_b",
            "..",
            ".",
            "",
            "a\0b",
            "é",
            "e\u{301}",
            "A",
            "a",
            "%2e%2e%2f",
            "%2E%2E%2F",
            "x\n",
            "x.",
            " x",
            "-rf",
            "CON",
            "7",
            "{}",
            "~missing",
            "~empty",
            "missing",
            "%7Emissing",
        ];
        values.extend(long.iter().map(String::as_str));
        let mut keys: BTreeMap<String, &str> = BTreeMap::new();
        for value in &values {
            let key = key(&["header.d"], "", &[("d", value)]);
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_%~".contains(&b);
            assert!(key.bytes().all(plain) && !key.is_empty() && !key.starts_with('-'), "{key}");
            let other = keys.insert(key.clone(), value);
            assert_eq!(other, None, "{value:?} has the key {key}");
        }
        let missing = key(&["header.d"], "", &[]);
        assert!(!keys.contains_key(&missing));
    }

    proptest! {
        #[test]
        fn different_values_have_different_keys(
            one in ".{0,140}", another in ".{0,140}", third in "[a-z~%_-]{0,3}",
        ) {
            let by = ["header.a", "header.b"];
            let of = |a: &str, b: &str| key(&by, "", &[("a", a), ("b", b)]);
            prop_assert_eq!(of(&one, &third) == of(&another, &third), one == another);
            prop_assert_eq!(of(&one, &third) == of(&third, &one), one == third);
        }
    }
}
