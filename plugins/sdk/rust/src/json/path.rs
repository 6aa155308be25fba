//! Paths to fields inside of other fields, and what can be done at their ends.
//!
//! Only what stands on the way is parsed; everything beside it is copied as it is written.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{Object, to_text};

/// Most names of a path. Each is a level of nesting, and a step of recursion.
const NAMES_MAX: usize = 16;

/// The way to a field: `site.name` is the field `name` in the object `site`, `readings.0` the first element of an array.
///
/// `*` alone between dots stands for every field or element, where the plugin takes that. A backslash takes a dot, a star or a
/// backslash for what it is: `a\.b` is one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    names: Vec<Name>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    One(String),
    Every,
}

impl Path {
    /// Reads a path.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut names = Vec::new();
        let mut name = String::new();
        let mut escaped = false;
        let mut characters = text.chars();
        loop {
            match characters.next() {
                Some('\\') => match characters.next() {
                    Some(character @ ('.' | '*' | '\\')) => {
                        name.push(character);
                        escaped = true;
                    }
                    _ => {
                        return Err(format!(
                            "in the path \"{text}\" a backslash stands before something else than a dot, a star or a backslash"
                        ));
                    }
                },
                end @ (Some('.') | None) => {
                    if name.is_empty() {
                        return Err(format!(
                            "the path \"{text}\" has an empty name; a dot that belongs to a name is written \\."
                        ));
                    }
                    let name = std::mem::take(&mut name);
                    let every = name == "*" && !escaped;
                    names.push(if every { Name::Every } else { Name::One(name) });
                    escaped = false;
                    if end.is_none() {
                        break;
                    }
                }
                Some(character) => name.push(character),
            }
        }
        if names.len() > NAMES_MAX {
            return Err(format!("the path \"{text}\" has more than {NAMES_MAX} names"));
        }
        Ok(Self { names })
    }

    /// The path to a field of the object itself.
    #[must_use]
    pub fn field(name: &str) -> Self {
        Self { names: vec![Name::One(name.to_owned())] }
    }

    /// Whether a `*` stands in it.
    #[must_use]
    pub fn has_star(&self) -> bool {
        self.names.contains(&Name::Every)
    }

    /// The field's name, when it is one of the object itself.
    #[must_use]
    pub fn single(&self) -> Option<&str> {
        match &self.names[..] {
            [Name::One(name)] => Some(name),
            _ => None,
        }
    }

    /// The last name, when everything before it is the same in both paths.
    #[must_use]
    pub fn sibling<'p>(&self, other: &'p Self) -> Option<&'p str> {
        let ((_, mine), (last, others)) = (self.names.split_last()?, other.names.split_last()?);
        match last {
            Name::One(name) if mine == others => Some(name),
            _ => None,
        }
    }

    /// Whether this path leads to `other` or to something around it.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        other.names.starts_with(&self.names)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.names.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "." })?;
            match name {
                Name::Every => f.write_str("*")?,
                Name::One(name) if name == "*" => f.write_str("\\*")?,
                Name::One(name) => {
                    f.write_str(&name.replace('\\', "\\\\").replace('.', "\\."))?;
                }
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Path {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "testing")]
impl schemars::JsonSchema for Path {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Path".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "minLength": 1 })
    }
}

/// What becomes of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// It stays.
    Keep,
    /// It is taken out, with its name.
    Remove,
    /// This JSON text stands in its place.
    Replace(String),
}

impl<'a> Object<'a> {
    /// The value at the end of a path as JSON text. Of fields that have the same name, the first counts. A star finds nothing.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&str> {
        let (first, rest) = path.names.split_first()?;
        let Name::One(name) = first else { return None };
        rest.iter().try_fold(self.get(name)?, |text, name| step(text, name))
    }

    /// Lets `edit` decide about each value that the path leads to: about all fields that have the same name. Says whether
    /// something has changed.
    ///
    /// # Errors
    /// A reason for [`crate::Outcome::Reject`] when an object on the way cannot be read, so that nobody can say what is in
    /// it: one of its names has half of a surrogate pair.
    pub fn edit_at(
        &mut self,
        path: &Path,
        edit: &mut dyn FnMut(&str) -> Edit,
    ) -> Result<bool, String> {
        self.edit(&path.names, edit)
    }

    /// Takes out what the path leads to, and says whether there was anything.
    ///
    /// # Errors
    /// As of [`Object::edit_at`].
    pub fn remove_at(&mut self, path: &Path) -> Result<bool, String> {
        self.edit_at(path, &mut |_| Edit::Remove)
    }

    /// Sets the value at the end of a path: where it stands, or at the end of its object. Objects that are missing on the way
    /// are made. Says whether it could: not where something else than an object is on the way, where an array has no such
    /// element, or at a star.
    pub fn set_at<T: Serialize + ?Sized>(&mut self, path: &Path, value: &T) -> bool {
        self.set_text_at(path, &to_text(value))
    }

    /// Sets the value at the end of a path to JSON text, as [`Object::set_at`] does. The text has to be one JSON value.
    pub fn set_text_at(&mut self, path: &Path, text: &str) -> bool {
        let Some((Name::One(name), rest)) = path.names.split_first() else { return false };
        let Some(value) = with_value(self.get(name), rest, text) else { return false };
        self.place(name, name, Cow::Owned(value));
        true
    }

    /// Gives the field at the end of a path another name, in its place. A field that has the name already makes way.
    pub fn rename_at(&mut self, path: &Path, name: &str) -> bool {
        let Some((last, before)) = path.names.split_last() else { return false };
        let Name::One(old) = last else { return false };
        if before.is_empty() {
            return self.rename(old, name);
        }
        let renamed = self.edit(before, &mut |text| match Object::parse(text.as_bytes()) {
            Ok(mut object) => match object.rename(old, name) {
                true => Edit::Replace(object.write()),
                false => Edit::Keep,
            },
            Err(_) => Edit::Keep,
        });
        renamed.unwrap_or(false)
    }

    /// Leaves only what these paths lead to.
    pub fn keep_only(&mut self, paths: &[Path]) -> bool {
        let names: Vec<&[Name]> = paths.iter().map(|path| &path.names[..]).collect();
        self.project(&names)
    }

    fn rename(&mut self, old: &str, name: &str) -> bool {
        let Some(at) = self.position(old) else { return false };
        let value = self.fields[at].1.clone();
        self.place(old, name, value);
        true
    }

    fn project(&mut self, paths: &[&[Name]]) -> bool {
        let mut changed = false;
        self.fields.retain_mut(|(key, value)| {
            let rests = paths.iter().filter_map(|path| match path.split_first() {
                Some((Name::Every, rest)) => Some(rest),
                Some((Name::One(name), rest)) if name == key => Some(rest),
                _ => None,
            });
            let rests: Vec<&[Name]> = rests.collect();
            if rests.is_empty() {
                changed = true;
                return false;
            }
            if rests.iter().any(|rest| rest.is_empty()) {
                return true;
            }
            match Object::parse(value.as_bytes()) {
                Ok(mut inner) => {
                    if inner.project(&rests) {
                        let text = inner.write();
                        *value = Cow::Owned(text);
                        changed = true;
                    }
                    true
                }
                // What is no object has nothing inside that could stay.
                Err(_) => {
                    changed = true;
                    false
                }
            }
        });
        changed
    }

    fn edit(&mut self, names: &[Name], edit: &mut dyn FnMut(&str) -> Edit) -> Result<bool, String> {
        let Some((first, rest)) = names.split_first() else { return Ok(false) };
        let mut changed = false;
        let mut longer = 0;
        let mut failed = None;
        self.fields.retain_mut(|(key, value)| {
            if failed.is_some() || matches!(first, Name::One(name) if name != key) {
                return true;
            }
            match edit_text(value, rest, edit) {
                Ok(Edit::Keep) => return true,
                Ok(Edit::Remove) => {
                    changed = true;
                    return false;
                }
                Ok(Edit::Replace(text)) => {
                    longer += text.len();
                    *value = Cow::Owned(text);
                    changed = true;
                }
                Err(reason) => failed = Some(reason),
            }
            true
        });
        self.length += longer;
        failed.map_or(Ok(changed), Err)
    }
}

/// What a name leads to in the text of a value.
fn step<'t>(text: &'t str, name: &Name) -> Option<&'t str> {
    let Name::One(name) = name else { return None };
    match text.as_bytes().first()? {
        b'{' => {
            let object = Object::parse(text.as_bytes()).ok()?;
            let at = object.position(name)?;
            match object.fields.into_iter().nth(at)?.1 {
                Cow::Borrowed(value) => Some(value),
                Cow::Owned(_) => None,
            }
        }
        b'[' => elements(text)?.get(index(name)?).copied(),
        _ => None,
    }
}

fn elements(text: &str) -> Option<Vec<&str>> {
    let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(elements.into_iter().map(RawValue::get).collect())
}

/// A name that is the index of an element: digits without a sign or a zero in front.
fn index(name: &str) -> Option<usize> {
    let plain = name.bytes().all(|byte| byte.is_ascii_digit())
        && (name.len() == 1 || !name.starts_with('0'));
    if plain { name.parse().ok() } else { None }
}

fn edit_text(
    text: &str,
    names: &[Name],
    edit: &mut dyn FnMut(&str) -> Edit,
) -> Result<Edit, String> {
    let Some((first, rest)) = names.split_first() else { return Ok(edit(text)) };
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut object = Object::parse(text.as_bytes())?;
            let changed = object.edit(names, edit)?;
            Ok(if changed { Edit::Replace(object.write()) } else { Edit::Keep })
        }
        Some(b'[') => {
            let Some(elements) = elements(text) else { return Ok(Edit::Keep) };
            let only = match first {
                Name::Every => None,
                Name::One(name) => match index(name) {
                    Some(index) => Some(index),
                    None => return Ok(Edit::Keep),
                },
            };
            let mut changed = false;
            let mut left: Vec<Cow<'_, str>> = Vec::with_capacity(elements.len());
            for (at, element) in elements.into_iter().enumerate() {
                let is_meant = only.is_none_or(|only| only == at);
                let edit = if is_meant { edit_text(element, rest, edit)? } else { Edit::Keep };
                changed |= edit != Edit::Keep;
                match edit {
                    Edit::Keep => left.push(Cow::Borrowed(element)),
                    Edit::Remove => {}
                    Edit::Replace(text) => left.push(Cow::Owned(text)),
                }
            }
            Ok(if changed { Edit::Replace(format!("[{}]", left.join(","))) } else { Edit::Keep })
        }
        _ => Ok(Edit::Keep),
    }
}

/// The text of a value with another value inside of it, or none where that cannot be.
fn with_value(text: Option<&str>, names: &[Name], value: &str) -> Option<String> {
    let Some((first, rest)) = names.split_first() else { return Some(value.to_owned()) };
    let Name::One(name) = first else { return None };
    let text = text.unwrap_or("{}");
    match text.as_bytes().first()? {
        b'{' => {
            let mut object = Object::parse(text.as_bytes()).ok()?;
            let inner = with_value(object.get(name), rest, value)?;
            object.place(name, name, Cow::Owned(inner));
            Some(object.write())
        }
        b'[' => {
            let elements = elements(text)?;
            let at = index(name)?;
            let inner = with_value(Some(elements.get(at)?), rest, value)?;
            let mut elements: Vec<&str> = elements;
            *elements.get_mut(at)? = &inner;
            Some(format!("[{}]", elements.join(",")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"a":{"b.c":1.50,"d":[10,{"e":"x"}, 30]},"*":7,"0":8,"u":{"\u0065":1}}"#;

    fn path(text: &str) -> Path {
        Path::parse(text).unwrap()
    }

    #[test]
    fn a_path_finds_fields_of_fields_elements_and_names_with_dots() {
        let object = Object::parse(TEXT.as_bytes()).unwrap();
        for (text, value) in [
            (r"a.b\.c", Some("1.50")),
            ("a.d.0", Some("10")),
            ("a.d.1.e", Some(r#""x""#)),
            ("a.d.2", Some("30")),
            (r"\*", Some("7")),
            ("0", Some("8")),
            ("u.e", Some("1")),
            ("a.d.3", None),
            ("a.d.01", None),
            ("a.d.+1", None),
            ("a.x.y", None),
            ("0.a", None),
            ("a.*", None),
        ] {
            assert_eq!(object.at(&path(text)), value, "{text}");
            assert_eq!(path(text).to_string(), text);
        }
    }

    #[test]
    fn a_path_that_says_nothing_is_refused() {
        for text in ["", ".", "a.", ".a", "a..b", r"a\b", "a\\"] {
            let error = Path::parse(text).unwrap_err();
            assert!(error.contains(&format!("\"{text}\"")), "{error}");
        }
        assert!(Path::parse(&["a"; 16].join(".")).is_ok());
        assert!(Path::parse(&["a"; 17].join(".")).unwrap_err().ends_with("more than 16 names"));
    }

    #[test]
    fn an_edit_touches_what_the_path_leads_to_and_copies_the_rest_as_it_is_written() {
        let edited = |text: &str, at: &str, edit: Edit| {
            let mut object = Object::parse(text.as_bytes()).unwrap();
            let changed = object.edit_at(&path(at), &mut |_| edit.clone()).unwrap();
            (changed, String::from_utf8(object.to_bytes()).unwrap())
        };
        let new = || Edit::Replace("9".to_owned());
        let text = r#"{"a":{"b": 1.0, "c":[{"x":1},{"x":2,"y":1e2}]},"b":1}"#;
        for (at, edit, expected) in [
            ("a.b", new(), r#"{"a":{"b":9,"c":[{"x":1},{"x":2,"y":1e2}]},"b":1}"#),
            ("a.c.1.x", new(), r#"{"a":{"b":1.0,"c":[{"x":1},{"x":9,"y":1e2}]},"b":1}"#),
            ("a.c.*.x", new(), r#"{"a":{"b":1.0,"c":[{"x":9},{"x":9,"y":1e2}]},"b":1}"#),
            ("a.c.0", Edit::Remove, r#"{"a":{"b":1.0,"c":[{"x":2,"y":1e2}]},"b":1}"#),
            ("a.*", Edit::Remove, r#"{"a":{},"b":1}"#),
            ("*", Edit::Remove, "{}"),
        ] {
            assert_eq!(edited(text, at, edit), (true, expected.to_owned()), "{at}");
        }
        for at in ["c", "b.c", "a.c.x", "a.c.2"] {
            assert_eq!(edited(text, at, new()), (false, text.to_owned()), "{at}");
        }
    }

    #[test]
    fn an_edit_finds_every_field_of_a_name_however_it_is_written() {
        let mut object = Object::parse(br#"{"k":1,"\u006b":2,"a":{"k":3,"k":4}}"#).unwrap();
        assert_eq!(object.remove_at(&path("k")), Ok(true));
        assert_eq!(object.remove_at(&path("a.k")), Ok(true));
        assert_eq!(object.to_bytes(), br#"{"a":{}}"#);
    }

    #[test]
    fn an_object_that_cannot_be_read_is_not_passed_over() {
        let mut object = Object::parse(br#"{"a":{"\ud800":1,"k":2}}"#).unwrap();
        assert!(object.remove_at(&path("a.k")).is_err());
        assert!(object.remove_at(&path("*.k")).is_err());
    }

    #[test]
    fn a_value_is_set_where_it_stands_and_objects_on_the_way_are_made() {
        let set = |at: &str| {
            let mut object = Object::parse(br#"{"a":{"b":1},"l":[1,{"x":2}],"n":5}"#).unwrap();
            let set = object.set_at(&path(at), "v");
            set.then(|| String::from_utf8(object.to_bytes()).unwrap())
        };
        for (at, expected) in [
            ("a.b", Some(r#"{"a":{"b":"v"},"l":[1,{"x":2}],"n":5}"#)),
            ("a.c.d", Some(r#"{"a":{"b":1,"c":{"d":"v"}},"l":[1,{"x":2}],"n":5}"#)),
            ("l.1.x", Some(r#"{"a":{"b":1},"l":[1,{"x":"v"}],"n":5}"#)),
            ("z", Some(r#"{"a":{"b":1},"l":[1,{"x":2}],"n":5,"z":"v"}"#)),
            ("n.x", None),
            ("l.2", None),
            ("l.x", None),
            ("a.*", None),
        ] {
            assert_eq!(set(at).as_deref(), expected, "{at}");
        }
    }

    #[test]
    fn a_renamed_field_keeps_its_place_and_its_digits() {
        let mut object = Object::parse(br#"{"a":1.0,"b":{"c":2.50,"d":3},"z":4}"#).unwrap();
        assert!(object.rename_at(&path("a"), "z") && object.rename_at(&path("b.c"), "e"));
        assert!(!object.rename_at(&path("b.x"), "y"));
        assert_eq!(object.to_bytes(), br#"{"z":1.0,"b":{"e":2.50,"d":3}}"#);
    }

    #[test]
    fn only_what_is_listed_is_kept() {
        let mut object = Object::parse(br#"{"a":1.0,"b":{"c":2,"d":3},"e":[1],"f":4}"#).unwrap();
        assert!(object.keep_only(&[path("b.d"), path("a"), path("e.x")]));
        assert_eq!(object.to_bytes(), br#"{"a":1.0,"b":{"d":3}}"#);
        assert!(!object.keep_only(&[path("*")]));
    }
}
