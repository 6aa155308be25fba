//! JSON in and out.
//!
//! [`Object`] changes some fields and leaves the others as they were written, in their order, digit for digit; a [`Path`] leads
//! to a field inside of another. For everything else there are [`parse`] and [`payload`] with types of your own.

mod number;
mod path;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use number::{number_text, significant};
pub use path::{Edit, Path};

use crate::Outcome;

/// Reads a payload into a type of your own.
///
/// # Errors
/// A reason for [`Outcome::Reject`].
pub fn parse<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| reason(&error))
}

/// The outcome that passes the record on with this value as its payload.
#[must_use]
pub fn payload<T: Serialize>(value: &T) -> Outcome {
    match serde_json::to_vec(value) {
        Ok(bytes) => Outcome::Payload(bytes),
        Err(error) => Outcome::Reject(error.to_string()),
    }
}

/// What is wrong, without the value that is wrong: reasons and errors are shown, and payloads and secrets must not be.
pub(crate) fn reason(error: &serde_json::Error) -> String {
    const ABOUT_NAMES: [&str; 3] = ["unknown field", "missing field", "duplicate field"];
    let text = error.to_string();
    if error.classify() != serde_json::error::Category::Data
        || ABOUT_NAMES.iter().any(|about| text.starts_with(about))
    {
        return text;
    }
    // "invalid type: string \"VALUE\", expected u64 at line 1 column 9"
    match (text.split([':', '`']).next(), text.rfind(", expected ")) {
        (Some(what), Some(at)) => format!("{}{}", what.trim_end(), &text[at..]),
        _ => text,
    }
}

/// What becomes of a record that is no JSON object: the type of a key that plugins for JSON have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
pub enum NotJson {
    /// It goes to the dead letters.
    #[default]
    Reject,
    /// It is passed on as it is.
    Keep,
    /// It is left out.
    Drop,
}

impl NotJson {
    /// The outcome of such a record.
    #[must_use]
    pub fn outcome(self, reason: String) -> Outcome {
        match self {
            Self::Reject => Outcome::Reject(reason),
            Self::Keep => Outcome::Keep,
            Self::Drop => Outcome::Drop,
        }
    }
}

/// The text of a JSON value that is a string.
#[must_use]
pub fn as_text(value: &str) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        return serde_json::from_str(value).ok().map(Cow::Owned);
    }
    Some(Cow::Borrowed(inner))
}

/// The number of a JSON value that is one.
#[must_use]
pub fn as_number(value: &str) -> Option<f64> {
    serde_json::from_str(value).ok()
}

/// A value as JSON text. One that cannot be written, such as a map with keys that are no strings, becomes null rather than a
/// trap.
#[must_use]
pub fn to_text<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

/// A JSON object whose fields are kept as they are written.
#[derive(Debug, Clone, Default)]
pub struct Object<'a> {
    /// What it was read from.
    text: &'a str,
    fields: Vec<Field<'a>>,
    length: usize,
}

/// A name and the JSON text of its value.
type Field<'a> = (Cow<'a, str>, Cow<'a, str>);

impl<'a> Object<'a> {
    /// Reads a payload that is one JSON object.
    ///
    /// # Errors
    /// A reason for [`Outcome::Reject`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(payload).map_err(|_| "not UTF-8".to_owned())?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = deserializer.deserialize_map(ObjectVisitor(text));
        read.and_then(|object| deserializer.end().map(|()| object))
            .map_err(|error| format!("no JSON object: {}", reason(&error)))
    }

    /// The value of a field as JSON text.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.position(name).map(|at| &*self.fields[at].1)
    }

    /// The value of a field that is a string.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        as_text(self.get(name)?)
    }

    /// The value of a field that is a number.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<f64> {
        as_number(self.get(name)?)
    }

    /// Sets a field: where it stands, or at the end.
    pub fn set<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) {
        self.replace(name, name, value);
    }

    /// Puts a field with another name and value in the place of `old`, or at the end.
    pub fn replace<T: Serialize + ?Sized>(&mut self, old: &str, name: &str, value: &T) {
        self.place(old, name, Cow::Owned(to_text(value)));
    }

    /// Puts a field whose value is JSON text in the place of `old`, or at the end. No second field has one of these names then.
    fn place(&mut self, old: &str, name: &str, value: Cow<'a, str>) {
        self.length += name.len() + value.len() + 4;
        let is_one = |key: &str| key == old || key == name;
        let field = (Cow::Owned(name.to_owned()), value);
        let Some(at) = self.position(old) else {
            self.fields.retain(|(key, _)| !is_one(key));
            self.fields.push(field);
            return;
        };
        self.fields[at] = field;
        let mut others = self.fields.iter().enumerate();
        if others.any(|(other, (key, _))| other != at && is_one(key)) {
            let mut other = 0..;
            self.fields.retain(|(key, _)| other.next() == Some(at) || !is_one(key));
        }
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: &str) {
        self.fields.retain(|(key, _)| key != name);
    }

    /// The names of the fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// The object as JSON text, without white space between its fields.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.write().into_bytes()
    }

    /// What stands behind each other in the text, as it is to stand, is copied at once.
    fn write(&self) -> String {
        let mut out = String::with_capacity(self.length + 2);
        out.push('{');
        let mut run = 0..0;
        for field in &self.fields {
            let written = self.as_written(field).unwrap_or(0..0);
            if !run.is_empty() && written.start == run.end + 1 {
                run.end = written.end;
                continue;
            }
            self.copy(&mut out, run);
            if written.is_empty() {
                begin_field(&mut out);
                write_name(&mut out, &field.0);
                out.push(':');
                out.push_str(&field.1);
            }
            run = written;
        }
        self.copy(&mut out, run);
        out.push('}');
        out
    }

    fn copy(&self, out: &mut String, run: Range<usize>) {
        if !run.is_empty() {
            begin_field(out);
            out.push_str(self.text.get(run).unwrap_or_default());
        }
    }

    /// Where a field stands in the text, when it stands there as it is, without white space between name and value.
    fn as_written(&self, field: &Field<'a>) -> Option<Range<usize>> {
        let (Cow::Borrowed(name), Cow::Borrowed(value)) = field else { return None };
        let name = place_in(self.text, name)?;
        let value = place_in(self.text, value)?;
        (name.start > 0 && value.start == name.end + "\":".len())
            .then(|| name.start - "\"".len()..value.end)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|(key, _)| key == name)
    }
}

/// Separates a field from the one in front of it.
fn begin_field(out: &mut String) {
    if out.len() > "{".len() {
        out.push(',');
    }
}

/// Where a part of a text lies in it.
fn place_in(text: &str, part: &str) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(text.as_ptr() as usize)?;
    let end = start + part.len();
    (end <= text.len()).then_some(start..end)
}

fn write_name(out: &mut String, name: &str) {
    if name.bytes().any(|byte| byte < b' ' || byte == b'"' || byte == b'\\') {
        out.push_str(&to_text(name));
        return;
    }
    out.push('"');
    out.push_str(name);
    out.push('"');
}

struct ObjectVisitor<'de>(&'de str);

impl<'de> Visitor<'de> for ObjectVisitor<'de> {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Object<'de>, M::Error> {
        let mut fields = Vec::with_capacity(16);
        while let Some(Name(name)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            fields.push((name, Cow::Borrowed(value.get())));
        }
        Ok(Object { text: self.0, fields, length: self.0.len() })
    }
}

/// A field's name, borrowed unless it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a field name")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stay_as_they_are_written_and_where_they_stand() {
        let text =
            br#" {"a": 1.50, "b\"\u00e9" : [1, {"x":2}], "n":12345678901234567890123, "c":null}"#;
        let mut object = Object::parse(text).unwrap();
        object.replace("a", "z", &2.5);
        object.set("c", "new");
        object.set("d", &true);
        let out = String::from_utf8(object.to_bytes()).unwrap();
        assert_eq!(
            out,
            r#"{"z":2.5,"b\"é":[1, {"x":2}],"n":12345678901234567890123,"c":"new","d":true}"#
        );
    }

    #[test]
    fn what_stands_as_it_is_to_be_written_is_copied_and_the_rest_is_put_between() {
        let text = r#"{"a":1,"b": 2,"c":3, "d":4,"e\n":5,"f":6,"g":"é","h":8}"#;
        let mut object = Object::parse(text.as_bytes()).unwrap();
        assert_eq!(
            object.write(),
            r#"{"a":1,"b":2,"c":3,"d":4,"e\n":5,"f":6,"g":"é","h":8}"#,
            "white space between fields goes"
        );
        object.remove("f");
        assert_eq!(object.write(), r#"{"a":1,"b":2,"c":3,"d":4,"e\n":5,"g":"é","h":8}"#);
        object.remove("a");
        object.replace("h", "i", &0);
        object.set("z", "");
        assert_eq!(object.write(), r#"{"b":2,"c":3,"d":4,"e\n":5,"g":"é","i":0,"z":""}"#);
        for name in ["b", "c", "d", "e\n", "g", "i", "z"] {
            object.remove(name);
        }
        assert_eq!(object.write(), "{}");
        // A value and a name that stand in another order than they did.
        let mut object = Object::parse(br#"{"a":1,"b":2}"#).unwrap();
        object.fields.swap(0, 1);
        assert_eq!(object.write(), r#"{"b":2,"a":1}"#);
    }

    #[test]
    fn a_replacement_leaves_no_second_field_of_its_name() {
        let mut object = Object::parse(br#"{"f":1,"c":2}"#).unwrap();
        object.replace("c", "f", &3);
        assert_eq!(object.to_bytes(), br#"{"f":3}"#);
        object.remove("f");
        assert_eq!(object.to_bytes(), b"{}");
        let mut object = Object::parse(br#"{"c":1,"x":2,"c":3,"f":4}"#).unwrap();
        object.set("c", &5);
        assert_eq!(object.to_bytes(), br#"{"c":5,"x":2,"f":4}"#);
        let mut object = Object::parse(br#"{"c":1,"x":2,"c":3,"f":4}"#).unwrap();
        object.replace("c", "f", &5);
        assert_eq!(object.to_bytes(), br#"{"f":5,"x":2}"#);
    }

    #[test]
    fn what_is_no_object_has_a_reason() {
        for bad in [&b"[1]"[..], b"", b"{", b"{} x", b"17", b"\xff", br#"{"a":}"#] {
            assert!(Object::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_reason_says_what_was_expected_and_not_what_was_there() {
        let error = Object::parse(br#""s3cret, expected x""#).unwrap_err();
        assert_eq!(error, "no JSON object: invalid type, expected an object at line 1 column 20");
        let error = parse::<Vec<u8>>(br#"["s3cret"]"#).unwrap_err();
        assert_eq!(error, "invalid type, expected u8 at line 1 column 9");
        assert_eq!(
            parse::<Vec<u8>>(b"[1").unwrap_err(),
            "EOF while parsing a list at line 1 column 2"
        );
    }
}
