//! The types that keys have.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::{Field, Input, Parse};
use super::listing::{Shape, join};
use super::mask;
use super::problem::Complaint;
use super::table::{Table, article, in_order, nearest};
use crate::secret::{Secret, SecretJson, Value};
use crate::units::{ByteSize, format_duration, parse_duration};

type Json = serde_json::Value;

/// A value of [`Table::word_or_path`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordOrPath {
    /// One of the words.
    Word(&'static str),
    /// The path.
    Path(PathBuf),
}

impl<'r> Table<'r> {
    /// A duration with its unit.
    pub fn duration(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, Duration> {
        let expected = "a duration such as \"10s\"";
        self.field(
            key,
            doc,
            texts(
                expected,
                "s",
                |text| parse_duration(text).map_err(|error| Complaint::new(error.to_string())),
                |value| format_duration(*value),
            ),
        )
    }

    /// A number of bytes with its unit.
    pub fn size(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, ByteSize> {
        let expected = "a size such as \"64MiB\"";
        self.field(
            key,
            doc,
            texts(
                expected,
                "B",
                |text| {
                    text.parse()
                        .map_err(|error: crate::units::UnitError| Complaint::new(error.to_string()))
                },
                ToString::to_string,
            ),
        )
    }

    /// Any text.
    pub fn text(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, String> {
        self.parsed(key, doc, "a text", |text| Ok(text.to_owned()))
    }

    /// A text that `parse` understands.
    pub fn parsed<T: Display + 'r>(
        &self,
        key: &'static str,
        doc: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Result<T, Complaint> + 'r,
    ) -> Field<'_, 'r, T> {
        self.field(
            key,
            doc,
            texts(expected, "", parse, |value| mask::urls(&value.to_string()).into_owned()),
        )
    }

    /// A path, below the folder of the file unless it is absolute.
    pub fn file_path(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, PathBuf> {
        let reading = self.reading();
        let parse = move |text: &str| match text {
            "" => Err(Complaint::new("a path must not be empty")),
            _ if text.contains('\0') => Err(Complaint::new("a path must not hold a NUL")),
            _ => Ok(reading.resolve(text)),
        };
        self.field(key, doc, texts("a path", "", parse, |path| path.display().to_string()))
    }

    /// One of some words, or a table with a path under `name`, below the folder of the file unless it is absolute.
    pub fn word_or_path(
        &self,
        key: &'static str,
        doc: &'static str,
        words: &'static [&'static str],
        name: &'static str,
    ) -> Field<'_, 'r, WordOrPath> {
        let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
        let expected = format!("{} or {{ {name} = \"PATH\" }}", quoted.join(", "));
        let wanted = expected.clone();
        let parse = move |input: &Input<'r>| {
            let refuse = |complaint: Complaint| {
                input.complain(complaint);
                None
            };
            match input.value.get_ref() {
                DeValue::String(text) => match words.iter().find(|word| *word == text) {
                    Some(word) => Some(WordOrPath::Word(word)),
                    None => refuse(Complaint::new(format!("`{key}` is {wanted}, not \"{text}\""))),
                },
                DeValue::Table(table) => {
                    let mut entries = table.iter().map(|(key, value)| (key.get_ref(), value));
                    match (entries.next(), entries.next()) {
                        (Some((key, value)), None) if key.as_ref() == name => {
                            match value.get_ref() {
                                DeValue::String(path)
                                    if !path.is_empty() && !path.contains('\0') =>
                                {
                                    Some(WordOrPath::Path(input.reading.resolve(path)))
                                }
                                _ => refuse(Complaint::new(format!("`{name}` must be a path"))),
                            }
                        }
                        _ => refuse(Complaint::new(format!("`{key}` is {wanted}"))),
                    }
                }
                _ => refuse(wrong_type(input, &wanted, "")),
            }
        };
        let show = move |value: &WordOrPath| match value {
            WordOrPath::Word(word) => toml::Value::String((*word).to_owned()),
            WordOrPath::Path(path) => {
                let path = toml::Value::String(path.display().to_string());
                toml::Value::Table([(name.to_owned(), path)].into_iter().collect())
            }
        };
        let described = words.iter().map(|word| (*word).to_owned()).collect();
        let shape = Shape::WordsOrPath(described, name.to_owned());
        self.field(
            key,
            doc,
            Parse { expected, shape, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// One of some words.
    pub fn choice<T: Copy + PartialEq + 'r>(
        &self,
        key: &'static str,
        doc: &'static str,
        words: &[(&'r str, T)],
    ) -> Field<'_, 'r, T> {
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let expected = match quoted.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => quoted.join(""),
        };
        let described = words.iter().map(|(word, _)| (*word).to_owned()).collect();
        let words = words.to_vec();
        let shown = words.clone();
        let wanted = expected.clone();
        let parse = move |text: &str| {
            if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
                return Ok(*value);
            }
            let complaint = Complaint::new(format!("`{key}` is {wanted}, not \"{text}\""));
            Err(match nearest(text, words.iter().map(|(word, _)| *word)) {
                Some(near) => complaint.hint(format!("did you mean \"{near}\"?")),
                None => complaint,
            })
        };
        let show = move |value: &T| {
            shown
                .iter()
                .find(|(_, v)| v == value)
                .map_or_else(String::new, |(w, _)| (*w).to_owned())
        };
        let described = Shape::Words(described);
        self.field(key, doc, Parse { shape: described, ..texts(&expected, "", parse, show) })
    }

    /// A whole number.
    pub fn integer<T>(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, T>
    where
        T: TryFrom<i128> + Copy + Into<i128> + 'r,
    {
        let parse = move |input: &Input<'r>| {
            let DeValue::Integer(integer) = input.value.get_ref() else {
                input.complain(wrong_type(input, "a whole number", ""));
                return None;
            };
            let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
            let number = number.and_then(|number| T::try_from(number).ok());
            if number.is_none() {
                input.complain(Complaint::new(format!("{integer} is out of range for `{key}`")));
            }
            number
        };
        let show = |value: &T| {
            let number: i128 = (*value).into();
            toml::Value::Integer(i64::try_from(number).unwrap_or(i64::MAX))
        };
        let expected = "a whole number".to_owned();
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Integer, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A number, with or without a fraction.
    pub fn number(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, f64> {
        let parse = |input: &Input<'r>| {
            let number = match input.value.get_ref() {
                DeValue::Float(float) => float.as_str().parse().ok(),
                DeValue::Integer(integer) => integer.as_str().parse().ok(),
                _ => None,
            };
            let number = number.filter(|number: &f64| number.is_finite());
            if number.is_none() {
                input.complain(wrong_type(input, "a number", ""));
            }
            number
        };
        let show = |value: &f64| toml::Value::Float(*value);
        let expected = "a number".to_owned();
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Number, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// `true` or `false`.
    pub fn boolean(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, bool> {
        let parse = |input: &Input<'r>| {
            let value = input.value.get_ref().as_bool();
            if value.is_none() {
                input.complain(wrong_type(input, "true or false", ""));
            }
            value
        };
        let show = |value: &bool| toml::Value::Boolean(*value);
        let expected = "true or false".to_owned();
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Boolean, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A list of texts that `parse` understands, none twice.
    pub fn list_of<T: Display + 'r>(
        &self,
        key: &'static str,
        doc: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Result<T, Complaint> + 'r,
    ) -> Field<'_, 'r, Vec<T>> {
        let parse = move |input: &Input<'r>| read_list(input, expected, &parse);
        let show = |list: &Vec<T>| {
            let text = |item: &T| toml::Value::String(mask::urls(&item.to_string()).into_owned());
            toml::Value::Array(list.iter().map(text).collect())
        };
        let expected = expected.to_owned();
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Texts, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A reference to a secret.
    pub fn secret(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, Secret> {
        let expected = "a secret: { env = \"NAME\" } or { file = \"PATH\" }".to_owned();
        let parse = Box::new(read_secret);
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Secret, parse, show: Box::new(show_secret) },
        )
    }

    /// A list of references to secrets, at most `count_max`.
    pub fn secrets(
        &self,
        key: &'static str,
        doc: &'static str,
        count_max: usize,
    ) -> Field<'_, 'r, Vec<Secret>> {
        let expected =
            "a list of secrets: [{ env = \"NAME\" }] or [{ file = \"PATH\" }]".to_owned();
        let wanted = expected.clone();
        let parse = move |input: &Input<'r>| {
            let DeValue::Array(array) = input.value.get_ref() else {
                hide(input.reading, input.value);
                let complaint = wrong_type(input, &wanted, "");
                input.complain(match input.value.get_ref() {
                    DeValue::Table(_) => complaint.hint(format!("write {key} = [{{ … }}]")),
                    _ => complaint,
                });
                return None;
            };
            if array.len() > count_max {
                let message = format!("this list holds more than {count_max} secrets");
                input.complain(Complaint::new(message));
                return None;
            }
            let secret = |(index, value)| {
                let path = format!("{}[{index}]", input.path);
                read_secret(&Input { reading: input.reading, path, value })
            };
            Some(array.iter().enumerate().filter_map(secret).collect())
        };
        let show = |list: &Vec<Secret>| toml::Value::Array(list.iter().map(show_secret).collect());
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Secrets, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A list of whole numbers in `range`, at most `count_max`, none twice.
    pub fn numbers(
        &self,
        key: &'static str,
        doc: &'static str,
        range: RangeInclusive<u16>,
        count_max: usize,
    ) -> Field<'_, 'r, Vec<u16>> {
        let (low, high) = (*range.start(), *range.end());
        let expected = format!("a list of whole numbers between {low} and {high}");
        let wanted = expected.clone();
        let parse = move |input: &Input<'r>| {
            let DeValue::Array(array) = input.value.get_ref() else {
                let complaint = wrong_type(input, &wanted, "");
                input.complain(match input.value.get_ref() {
                    DeValue::Integer(number) => complaint.hint(format!("write [{number}]")),
                    _ => complaint,
                });
                return None;
            };
            let mut list = Vec::new();
            for value in array {
                let number = match value.get_ref() {
                    DeValue::Integer(text) => u16::from_str_radix(text.as_str(), text.radix()).ok(),
                    _ => None,
                };
                let message = match number.filter(|number| range.contains(number)) {
                    None => format!("an element must be a whole number between {low} and {high}"),
                    Some(number) if list.contains(&number) => {
                        format!("{number} stands twice in this list")
                    }
                    Some(_) if list.len() == count_max => {
                        format!("this list holds more than {count_max} numbers")
                    }
                    Some(number) => {
                        list.push(number);
                        continue;
                    }
                };
                input.reading.error(
                    input.path.as_str(),
                    Some(value.span()),
                    Complaint::new(message),
                );
            }
            Some(list)
        };
        let show = |list: &Vec<u16>| {
            let number = |number: &u16| toml::Value::Integer(i64::from(*number));
            toml::Value::Array(list.iter().map(number).collect())
        };
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Numbers, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A table of texts and secrets under names of the user's, in the order of the file. `check` is asked about each; a text
    /// is never shown when its name looks like that of a secret.
    pub fn values(
        &self,
        key: &'static str,
        doc: &'static str,
        check: impl Fn(&str, &Value) -> Result<(), Complaint> + 'r,
    ) -> Field<'_, 'r, Vec<(String, Value)>> {
        let expected = "a table of texts and secrets".to_owned();
        let wanted = expected.clone();
        let parse = move |input: &Input<'r>| {
            let DeValue::Table(table) = input.value.get_ref() else {
                hide(input.reading, input.value);
                input.complain(
                    wrong_type(input, &wanted, "").hint(format!("write {key} = {{ … }}")),
                );
                return None;
            };
            let entries = in_order(Some(table)).into_iter();
            Some(
                entries
                    .filter_map(|(name, value)| read_entry(input, name, value, &check))
                    .collect(),
            )
        };
        let show = |list: &Vec<(String, Value)>| {
            let shown = |(name, value): &(String, Value)| {
                let value = match value {
                    Value::Secret(secret) => show_secret(secret),
                    Value::Plain(_) if mask::looks_secret(name) => {
                        toml::Value::String(mask::MASK.to_owned())
                    }
                    Value::Plain(text) => toml::Value::String(mask::urls(text).into_owned()),
                };
                (name.clone(), value)
            };
            toml::Value::Table(list.iter().map(shown).collect())
        };
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Values, parse: Box::new(parse), show: Box::new(show) },
        )
    }

    /// A table that is handed on as JSON. A table in it that has nothing but `env` or `file` refers to a secret.
    pub fn json(&self, key: &'static str, doc: &'static str) -> Field<'_, 'r, SecretJson> {
        let parse = |input: &Input<'r>| {
            let DeValue::Table(_) = input.value.get_ref() else {
                input.complain(wrong_type(input, "a table", ""));
                return None;
            };
            let mut secrets = Vec::new();
            let json = to_json(input, "", &mut secrets)?;
            Some(SecretJson::new(&json, secrets))
        };
        let show = |json: &SecretJson| {
            let json: Json = serde_json::from_str(json.text()).unwrap_or_default();
            to_shown_toml("", &json)
        };
        let expected = "a table".to_owned();
        self.field(
            key,
            doc,
            Parse { expected, shape: Shape::Table, parse: Box::new(parse), show: Box::new(show) },
        )
    }
}

/// One entry of [`Table::values`].
fn read_entry(
    input: &Input<'_>,
    name: &Spanned<std::borrow::Cow<'_, str>>,
    value: &Spanned<DeValue<'_>>,
    check: &impl Fn(&str, &Value) -> Result<(), Complaint>,
) -> Option<(String, Value)> {
    let name = name.get_ref().as_ref();
    if mask::looks_secret(name) {
        hide(input.reading, value);
    }
    let entry = Input { reading: input.reading, path: join(&input.path, name), value };
    let found = match value.get_ref() {
        DeValue::String(text) => Value::Plain(text.to_string()),
        DeValue::Table(_) => Value::Secret(read_secret(&entry)?),
        _ => {
            hide(input.reading, value);
            let expected = "a text or a secret: { env = \"NAME\" } or { file = \"PATH\" }";
            entry.complain(wrong_type(&entry, expected, ""));
            return None;
        }
    };
    check(name, &found).map_err(|complaint| entry.complain(complaint)).ok()?;
    Some((name.to_owned(), found))
}

fn show_secret(secret: &Secret) -> toml::Value {
    let (key, value) = match secret {
        Secret::File(path) => ("file", path.display().to_string()),
        Secret::Environment { name, .. } => ("env", name.clone()),
    };
    toml::Value::Table([(key.to_owned(), toml::Value::String(value))].into_iter().collect())
}

/// A type that is written as text. `unit` completes the hint for a bare number.
fn texts<'r, T>(
    expected: &str,
    unit: &'static str,
    parse: impl Fn(&str) -> Result<T, Complaint> + 'r,
    show: impl Fn(&T) -> String + 'r,
) -> Parse<'r, T> {
    let wanted = expected.to_owned();
    let parse = move |input: &Input<'r>| {
        let DeValue::String(text) = input.value.get_ref() else {
            input.complain(wrong_type(input, &wanted, unit));
            return None;
        };
        parse(text).map_err(|complaint| input.complain(complaint)).ok()
    };
    Parse {
        expected: expected.to_owned(),
        shape: Shape::Text,
        parse: Box::new(parse),
        show: Box::new(move |value| toml::Value::String(show(value))),
    }
}

fn wrong_type(input: &Input<'_>, expected: &str, unit: &str) -> Complaint {
    let value = input.value.get_ref();
    let key = input.path.rsplit('.').next().unwrap_or(&input.path);
    let found = article(value.type_str());
    let complaint = Complaint::new(format!("`{key}` must be {expected}, not {found}"));
    match value {
        DeValue::Integer(number) if !unit.is_empty() => {
            complaint.hint(format!("write it with its unit: \"{number}{unit}\""))
        }
        DeValue::String(text) => {
            let bare = text.parse::<i64>().is_ok() || matches!(text.as_ref(), "true" | "false");
            if bare { complaint.hint(format!("write {text} without quotes")) } else { complaint }
        }
        _ => complaint,
    }
}

fn read_list<'r, T>(
    input: &Input<'r>,
    expected: &str,
    parse: &impl Fn(&str) -> Result<T, Complaint>,
) -> Option<Vec<T>> {
    let DeValue::Array(array) = input.value.get_ref() else {
        let complaint = wrong_type(input, expected, "");
        input.complain(match input.value.get_ref() {
            DeValue::String(text) => complaint.hint(format!("write [\"{text}\"]")),
            _ => complaint,
        });
        return None;
    };
    let mut seen = HashSet::new();
    let mut list = Vec::new();
    for (index, value) in array.iter().enumerate() {
        let path = format!("{}[{index}]", input.path);
        let element = Input { reading: input.reading, path, value };
        let parsed = match value.get_ref() {
            DeValue::String(text) if !seen.insert(text.as_ref()) => {
                Err(Complaint::new(format!("\"{text}\" stands twice in this list")))
            }
            DeValue::String(text) => parse(text),
            other => {
                let found = article(other.type_str());
                Err(Complaint::new(format!("an element must be a string, not {found}")))
            }
        };
        match parsed {
            Ok(item) => {
                // Counted among those that are right, as whoever asks for the place sees the list.
                let place = super::Place { key: value.span(), value: value.span() };
                input.reading.found(format!("{}[{}]", input.path, list.len()), place);
                list.push(item);
            }
            Err(complaint) => element.complain(complaint),
        }
    }
    // What is right in it is still checked against other parts; a list that only lost elements is not called empty.
    (array.is_empty() || !list.is_empty()).then_some(list)
}

fn read_secret(input: &Input<'_>) -> Option<Secret> {
    let hint = "write { env = \"NAME\" } or { file = \"PATH\" }";
    let key = input.path.rsplit('.').next().unwrap_or(&input.path);
    let refuse = |message: String| {
        hide(input.reading, input.value);
        input.complain(Complaint::new(message).hint(hint));
        None
    };
    let DeValue::Table(table) = input.value.get_ref() else {
        return refuse(format!("`{key}` is a secret and must not stand in this file"));
    };
    let mut entries = table.iter();
    let (Some((name, value)), None) = (entries.next(), entries.next()) else {
        return refuse(format!("`{key}` must name one place that holds the secret"));
    };
    match (name.get_ref().as_ref(), value.get_ref()) {
        ("env", DeValue::String(variable)) if !variable.is_empty() => {
            match input.reading.variable(variable) {
                Some(held) if !held.is_empty() => {
                    Some(Secret::Environment { name: variable.to_string(), value: held })
                }
                held => {
                    let state = if held.is_some() { "empty" } else { "not set" };
                    let message = format!("the environment variable {variable} is {state}");
                    let complaint = Complaint::new(message).hint(format!(
                        "set {variable} where the agent is started, or use {{ file = \"PATH\" }}"
                    ));
                    input.reading.error(input.path.as_str(), Some(value.span()), complaint);
                    None
                }
            }
        }
        ("file", DeValue::String(path)) if !path.is_empty() => {
            let path = input.reading.resolve(path);
            if !path.is_file() {
                let message = format!("the secret file {} is not there", path.display());
                let hint = "it is read when it is needed, so it may come later";
                let complaint = Complaint::new(message).hint(hint);
                input.reading.warning(input.path.as_str(), Some(value.span()), complaint);
            }
            Some(Secret::File(path))
        }
        _ => refuse(format!("`{key}` must name the place that holds the secret")),
    }
}

/// Never shows what stands in the value. The span of a table with a header is its header, which is no secret.
pub(super) fn hide(reading: &super::Reading<'_>, value: &Spanned<DeValue<'_>>) {
    match value.get_ref() {
        DeValue::Table(table) => table.values().for_each(|value| hide(reading, value)),
        _ => reading.hide(value.span()),
    }
}

/// The value as JSON, its tables in the order of the file. Complains about what JSON does not have.
/// `pointer` is where the value stands in the whole; what refers to a secret stays as it is and is noted.
fn to_json(input: &Input<'_>, pointer: &str, secrets: &mut Vec<(String, Secret)>) -> Option<Json> {
    let complain = |message: &str| {
        input.complain(Complaint::new(message));
        None
    };
    match input.value.get_ref() {
        DeValue::String(text) => Some(Json::String(text.to_string())),
        DeValue::Boolean(value) => Some(Json::Bool(*value)),
        DeValue::Datetime(time) => Some(Json::String(time.to_string())),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Some(Json::from(number)),
            Err(_) => complain("the number is too large"),
        },
        DeValue::Float(float) => {
            let number = float.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            match number {
                Some(number) => Some(Json::Number(number)),
                None => complain("a plugin is given JSON, which has no such number"),
            }
        }
        DeValue::Array(array) => {
            let items: Vec<_> = array
                .iter()
                .enumerate()
                .map(|(index, value)| {
                    let item = inner(input, &format!("[{index}]"), value);
                    to_json(&item, &format!("{pointer}/{index}"), secrets)
                })
                .collect();
            items.into_iter().collect::<Option<Vec<_>>>().map(Json::Array)
        }
        DeValue::Table(table) => {
            if !pointer.is_empty() && is_reference(table) {
                secrets.push((pointer.to_owned(), read_secret(input)?));
            }
            let items: Vec<_> = in_order(Some(table))
                .into_iter()
                .map(|(name, value)| {
                    let key = name.get_ref().to_string();
                    let step = key.replace('~', "~0").replace('/', "~1");
                    let json =
                        to_json(&inner(input, &key, value), &format!("{pointer}/{step}"), secrets)?;
                    Some((key, json))
                })
                .collect();
            items.into_iter().collect::<Option<serde_json::Map<_, _>>>().map(Json::Object)
        }
    }
}

/// Whether a table names a place and nothing else.
fn is_reference(table: &DeTable<'_>) -> bool {
    let mut entries = table.iter();
    let is_place = |(name, value): (&Spanned<std::borrow::Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
        matches!(name.get_ref().as_ref(), "env" | "file")
            && matches!(value.get_ref(), DeValue::String(_))
    };
    entries.next().is_some_and(is_place) && entries.next().is_none()
}

fn inner<'r>(input: &Input<'r>, key: &str, value: &'r Spanned<DeValue<'r>>) -> Input<'r> {
    let path =
        if key.starts_with('[') { format!("{}{key}", input.path) } else { join(&input.path, key) };
    Input { reading: input.reading, path, value }
}

/// JSON as TOML for showing: what looks like a secret by its key is replaced.
fn to_shown_toml(key: &str, json: &Json) -> toml::Value {
    match json {
        Json::Object(object) => toml::Value::Table(
            object.iter().map(|(key, value)| (key.clone(), to_shown_toml(key, value))).collect(),
        ),
        Json::Array(array) => {
            toml::Value::Array(array.iter().map(|item| to_shown_toml(key, item)).collect())
        }
        _ if mask::looks_secret(key) => toml::Value::String(mask::MASK.to_owned()),
        Json::String(text) => toml::Value::String(mask::urls(text).into_owned()),
        Json::Bool(value) => toml::Value::Boolean(*value),
        Json::Number(number) => match number.as_i64() {
            Some(number) => toml::Value::Integer(number),
            None => toml::Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::Null => toml::Value::String(String::new()),
    }
}
