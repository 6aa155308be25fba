//! Masks, hashes or removes what must not leave the site. `README.md` beside this file is the manual.

mod action;
mod find;

use serde::Deserialize;
use waystation_plugin::json::{Edit, NotJson, Object, Path};
use waystation_plugin::{
    Draft, Header, Outcome, Place, Record, Transform, about, export_transform,
};

use action::{Action, Do, Hasher, Spec};
use find::Find;

/// Most rules of a kind.
const RULES_MAX: usize = 100;

/// The `config` table of the transform. At least one of `fields`, `headers` and `patterns` is needed.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// The secret key of `hash`, 16 to 1024 bytes.
    key: Option<Key>,
    /// What is done to fields.
    #[serde(default)]
    fields: Vec<FieldRule>,
    /// What is done to headers.
    #[serde(default)]
    headers: Vec<HeaderRule>,
    /// What is done to parts of texts, in whatever field they are.
    #[serde(default)]
    patterns: Vec<PatternRule>,
    /// What becomes of a record that is no JSON object, where `fields` or `patterns` need one.
    #[serde(default)]
    not_json: NotJson,
}

/// The secret itself. A reference to one that comes here has not been filled in.
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde::de::Visitor<'_> for Text {
            type Value = Key;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the secret itself as a text; the agent has not filled in a reference")
            }

            fn visit_str<E>(self, text: &str) -> Result<Key, E> {
                Ok(Key(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct FieldRule {
    /// The path of the field, such as `user.email` or `users.*.email`.
    field: Path,
    r#do: Do,
    /// `mask`: the text that stands in place of the value.
    with: Option<String>,
    /// `mask`: so many characters at the end stay.
    keep_last: Option<u8>,
    /// `hash`: so many hex digits.
    length: Option<u8>,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct HeaderRule {
    /// Its name; small and capital letters are the same.
    header: String,
    r#do: Do,
    /// `mask`: the text that stands in place of the value.
    with: Option<String>,
    /// `mask`: so many characters at the end stay.
    keep_last: Option<u8>,
    /// `hash`: so many hex digits.
    length: Option<u8>,
}

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct PatternRule {
    find: Find,
    r#do: Do,
    /// `mask`: the text that stands in place of the value.
    with: Option<String>,
    /// `mask`: so many characters at the end stay.
    keep_last: Option<u8>,
    /// `hash`: so many hex digits.
    length: Option<u8>,
}

struct Redact {
    fields: Vec<(Path, Action)>,
    headers: Vec<(String, Action)>,
    patterns: Vec<(Find, Action)>,
    not_json: NotJson,
}

impl Transform for Redact {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        let Config { key, fields, headers, patterns, not_json } = config;
        let mut problems = Vec::new();
        if fields.is_empty() && headers.is_empty() && patterns.is_empty() {
            problems.push("fields: there are none, nor `headers` or `patterns`".to_owned());
        }
        for (name, count) in
            [("fields", fields.len()), ("headers", headers.len()), ("patterns", patterns.len())]
        {
            if count > RULES_MAX {
                problems.push(format!("{name}: there are {count}, and at most {RULES_MAX} may be"));
            }
        }
        let hasher = match key.map(|Key(key)| Hasher::new(&key)).transpose() {
            Ok(hasher) => hasher,
            Err(problem) => {
                problems.push(format!("key: {problem}"));
                // Whoever uses the key has no second mistake in that.
                Some(Hasher::unusable())
            }
        };
        let hasher = hasher.as_ref();
        let fields = fields.into_iter().map(|rule| {
            let FieldRule { field, r#do, with, keep_last, length } = rule;
            (field, Spec { r#do, with, keep_last, length })
        });
        let fields = compile("fields", fields, hasher, &mut problems);
        let headers = headers.into_iter().map(|rule| {
            let HeaderRule { header, r#do, with, keep_last, length } = rule;
            (header, Spec { r#do, with, keep_last, length })
        });
        let headers = compile("headers", headers, hasher, &mut problems);
        let patterns = patterns.into_iter().map(|rule| {
            let PatternRule { find, r#do, with, keep_last, length } = rule;
            (find, Spec { r#do, with, keep_last, length })
        });
        let patterns = compile("patterns", patterns, hasher, &mut problems);
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        Ok(Self { fields, headers, patterns, not_json })
    }

    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let payload = match self.payload(&record.payload) {
            Ok(payload) => payload,
            Err(outcome) => return outcome,
        };
        let Some(headers) = self.redacted_headers(&record.headers) else {
            return payload.map_or(Outcome::Keep, Outcome::Payload);
        };
        let payload = payload.unwrap_or(record.payload);
        Outcome::Replace(Draft { time: None, subject: record.subject, headers, payload })
    }
}

/// The rules of one kind that can be used; the mistakes in the others become problems.
fn compile<T>(
    kind: &str,
    rules: impl Iterator<Item = (T, Spec)>,
    hasher: Option<&Hasher>,
    problems: &mut Vec<String>,
) -> Vec<(T, Action)> {
    let mut compiled = Vec::new();
    for (at, (target, spec)) in rules.enumerate() {
        match Action::new(spec, hasher) {
            Ok(action) => compiled.push((target, action)),
            Err(problem) => problems.push(format!("{kind}[{at}].{problem}")),
        }
    }
    compiled
}

impl Redact {
    /// The new payload; none when it stays. The error is what becomes of the record instead.
    fn payload(&self, payload: &[u8]) -> Result<Option<Vec<u8>>, Outcome> {
        if self.fields.is_empty() && self.patterns.is_empty() {
            return Ok(None);
        }
        let mut object = match Object::parse(payload) {
            Ok(object) => object,
            Err(reason) => {
                return match self.not_json.outcome(reason) {
                    // The headers are redacted all the same.
                    Outcome::Keep => Ok(None),
                    outcome => Err(outcome),
                };
            }
        };
        let mut changed = false;
        for (field, action) in &self.fields {
            let edited = object.edit_at(field, &mut |value| match action.on_value(value) {
                None => Edit::Remove,
                Some(text) if text == value => Edit::Keep,
                Some(text) => Edit::Replace(text),
            });
            changed |= edited.map_err(Outcome::Reject)?;
        }
        let fields_done = changed.then(|| object.to_bytes());
        if self.patterns.is_empty() {
            return Ok(fields_done);
        }
        let text = String::from_utf8_lossy(fields_done.as_deref().unwrap_or(payload));
        let found = find::redact(&text, &self.patterns).map(String::into_bytes);
        Ok(found.or(fields_done))
    }

    fn header_rules<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r (String, Action)> {
        self.headers.iter().filter(move |(header, _)| header.eq_ignore_ascii_case(name))
    }

    /// The new headers; none when they stay.
    fn redacted_headers(&self, headers: &[Header]) -> Option<Vec<Header>> {
        if !headers.iter().any(|header| self.header_rules(&header.name).next().is_some()) {
            return None;
        }
        let redacted = headers.iter().filter_map(|Header { name, value }| {
            let mut rules = self.header_rules(name);
            let value =
                rules.try_fold(value.clone(), |value, (_, action)| action.on_text(&value))?;
            Some(Header { name: name.clone(), value })
        });
        Some(redacted.collect())
    }
}

export_transform!(Redact, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
