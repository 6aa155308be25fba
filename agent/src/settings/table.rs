//! A table being read: hands out its keys, and complains about those that nobody asked for.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::Field;
use super::listing::{Entry, Shape, join};
use super::problem::Complaint;
use super::reading::{Place, Reading};

/// Names that a hint lists at most.
const NAMES_SHOWN_MAX: usize = 12;
/// Least similarity (Jaro-Winkler) of a name that a hint proposes.
const SIMILAR: f64 = 0.78;

/// One table. Reads like an empty one when the file does not have it. Dropping it reports the keys that were not asked for.
pub struct Table<'r> {
    reading: &'r Reading<'r>,
    /// The table it is listed under, dotted.
    section: String,
    /// The way from there to this table, dotted.
    prefix: String,
    table: Option<&'r DeTable<'r>>,
    known: RefCell<Vec<&'static str>>,
    later: RefCell<Vec<&'static str>>,
    /// Keys of other kinds, with the kind.
    foreign: RefCell<Vec<(&'static str, &'static str)>>,
    kind_known: Cell<bool>,
    /// The kind whose keys are being described.
    described: Cell<Option<&'static str>>,
}

/// What is known of a key without its value.
pub(super) struct Facts {
    pub(super) expected: String,
    pub(super) shape: Shape,
    pub(super) is_required: bool,
    pub(super) doc: &'static str,
    pub(super) bounds: Option<(String, String)>,
}

impl Facts {
    fn of(expected: &str, shape: Shape, doc: &'static str) -> Self {
        Self { expected: expected.to_owned(), shape, is_required: false, doc, bounds: None }
    }
}

/// One value of a `type` key and what reads the rest of its table.
pub struct Kind<K> {
    name: &'static str,
    is_built_in: bool,
    read: fn(&Table<'_>) -> Option<K>,
}

impl<K> Kind<K> {
    /// The kind of this `type`, and what reads the keys beside it.
    #[must_use]
    pub const fn of(name: &'static str, read: fn(&Table<'_>) -> Option<K>) -> Self {
        Self { name, is_built_in: true, read }
    }

    /// The same for a kind that an agent can be built without: its keys are known all the same, and its `type` is refused.
    #[must_use]
    pub const fn if_built_in(self, is_built_in: bool) -> Self {
        Self { is_built_in, ..self }
    }
}

impl<K> fmt::Debug for Kind<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kind").field(&self.name).finish()
    }
}

impl<'r> Table<'r> {
    pub(super) fn new(
        reading: &'r Reading<'r>,
        section: String,
        prefix: String,
        table: Option<&'r DeTable<'r>>,
    ) -> Self {
        Self {
            reading,
            section,
            prefix,
            table,
            known: RefCell::default(),
            later: RefCell::default(),
            foreign: RefCell::default(),
            kind_known: Cell::new(false),
            described: Cell::new(None),
        }
    }

    /// The pass that this belongs to.
    #[must_use]
    pub fn reading(&self) -> &'r Reading<'r> {
        self.reading
    }

    /// The dotted key of this table or of a key in it (`""` for the table).
    #[must_use]
    pub fn path(&self, key: &str) -> String {
        join(&join(&self.section, &self.prefix), key)
    }

    /// Whether the file has the table.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Keys of the design that this version does not have: still errors, explained as such.
    pub fn later(&self, keys: &[&'static str]) {
        self.later.borrow_mut().extend(keys);
    }

    /// A table inside this one, shown with dotted keys; one that the file does not have reads as empty.
    #[must_use]
    pub fn table(&self, key: &'static str) -> Self {
        let table = self.subtable(key);
        let (section, prefix) = if self.section.is_empty() {
            (key.to_owned(), String::new())
        } else {
            (self.section.clone(), join(&self.prefix, key))
        };
        let table = Self::new(self.reading, section, prefix, table);
        table.described.set(self.described.get());
        table
    }

    /// The same if the file has it (or everything is described).
    #[must_use]
    pub fn optional_table(&self, key: &'static str, doc: &'static str) -> Option<Self> {
        let table = self.table(key);
        if table.is_present() || self.reading.is_describing() {
            return Some(table);
        }
        self.list(key, Facts::of("a table", Shape::Table, doc), None, None);
        None
    }

    /// The tables in the table `key`, each under a name of the user's, in the order of the file; `None` for what is no
    /// table, which was reported.
    #[must_use]
    pub fn named_tables(&self, key: &'static str) -> Vec<(String, Option<Self>)> {
        if self.reading.is_describing() {
            return vec![("NAME".to_owned(), Some(self.named(key, "NAME", None)))];
        }
        let mut found = Vec::new();
        for (name, value) in in_order(self.subtable(key)) {
            let path = join(key, name.get_ref());
            let place = Place { key: name.span(), value: value.span() };
            self.reading.found(path.clone(), place);
            match value.get_ref() {
                DeValue::Table(table) => {
                    let table = self.named(key, name.get_ref(), Some(table));
                    found.push((name.get_ref().to_string(), Some(table)));
                }
                other => {
                    let complaint = Complaint::new(format!(
                        "`{path}` must be a table, not {}",
                        article(other.type_str())
                    ))
                    .hint(format!("begin it with [{path}]"));
                    self.reading.error(path, Some(value.span()), complaint);
                    found.push((name.get_ref().to_string(), None));
                }
            }
        }
        found
    }

    fn named(&self, key: &str, name: &str, table: Option<&'r DeTable<'r>>) -> Self {
        Self::new(self.reading, join(key, name), String::new(), table)
    }

    /// Reads `type` and, by it, the rest.
    #[must_use]
    pub fn kind<K>(&self, kinds: &[Kind<K>], doc: &'static str) -> Option<K> {
        let names: Vec<(&str, &'static str)> = kinds.iter().map(|k| (k.name, k.name)).collect();
        if self.reading.is_describing() {
            let words = names.iter().map(|(name, _)| (*name).to_owned()).collect();
            let facts = Facts::of("a kind", Shape::Words(words), doc);
            self.list("type", Facts { is_required: true, ..facts }, None, None);
            // Every kind's keys are learned; none is made.
            for kind in kinds {
                self.described.set(Some(kind.name));
                let _none = (kind.read)(self);
            }
            self.described.set(None);
            return None;
        }
        let left_out = |name: &&'static str| {
            if kinds.iter().any(|kind| kind.name == *name && !kind.is_built_in) {
                let message = format!("this agent is built without type \"{name}\"");
                let hint = "`waystation version` says what it is built with; the packages have all";
                return Err(Complaint::new(message).hint(hint));
            }
            Ok(())
        };
        let name = self.choice("type", doc, &names).check(left_out).required();
        let chosen = name.and_then(|name| kinds.iter().find(|kind| kind.name == name));
        self.kind_known.set(chosen.is_some());
        for kind in kinds {
            if chosen.is_some_and(|chosen| chosen.name == kind.name) {
                continue;
            }
            let scratch = Reading::describing();
            let table = scratch.root();
            let _none = (kind.read)(&table);
            let keys = table.known.borrow();
            self.foreign.borrow_mut().extend(keys.iter().map(|key| (*key, kind.name)));
        }
        chosen.and_then(|kind| (kind.read)(self))
    }

    /// A key of any type, to be asked for in the file's terms.
    pub(super) fn field<T: 'r>(
        &self,
        key: &'static str,
        doc: &'static str,
        field: super::field::Parse<'r, T>,
    ) -> Field<'_, 'r, T> {
        Field::new(self, key, doc, field)
    }

    /// The key and the value in the file; the key counts as known from now on.
    pub(super) fn value(
        &self,
        key: &'static str,
    ) -> Option<(&'r Spanned<std::borrow::Cow<'r, str>>, &'r Spanned<DeValue<'r>>)> {
        if !self.known.borrow().contains(&key) {
            self.known.borrow_mut().push(key);
        }
        let (name, value) = self.table?.get_key_value(key)?;
        self.reading.found(self.path(key), Place { key: name.span(), value: value.span() });
        Some((name, value))
    }

    /// Where to point when a key of this table is missing: at the table's name.
    pub(super) fn own_place(&self) -> Option<Range<usize>> {
        self.reading.place(&self.path("")).map(|place| place.key)
    }

    pub(super) fn list(
        &self,
        key: &str,
        facts: Facts,
        value: Option<toml::Value>,
        span: Option<&Range<usize>>,
    ) {
        let origin = self.reading.origin(span, value.is_some());
        let Facts { expected, shape, is_required, doc, bounds } = facts;
        self.reading.list(Entry {
            section: self.section.clone(),
            key: join(&self.prefix, key),
            value,
            origin,
            expected,
            shape,
            is_required,
            kind: self.described.get(),
            doc,
            bounds,
        });
    }

    fn subtable(&self, key: &'static str) -> Option<&'r DeTable<'r>> {
        let (_, value) = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(table),
            other => {
                let path = self.path(key);
                let found = article(other.type_str());
                let hint = match other {
                    DeValue::Array(array) if array.iter().all(|item| item.get_ref().is_table()) => {
                        format!("write [{path}] with single brackets")
                    }
                    _ if self.section.is_empty() => format!("begin it with [{path}]"),
                    _ => format!("write {key} = {{ … }}"),
                };
                let complaint = Complaint::new(format!("`{path}` must be a table, not {found}"));
                self.reading.error(path, Some(value.span()), complaint.hint(hint));
                None
            }
        }
    }

    fn unknown(&self, name: &Spanned<std::borrow::Cow<'_, str>>, value: &Spanned<DeValue<'_>>) {
        let key = name.get_ref().as_ref();
        let known = self.known.borrow();
        let shown = if key.chars().count() > 80 { "…" } else { key };
        let path = self.path(shown);
        let mut complaint = Complaint::new(format!("unknown key `{shown}`"));
        let foreign = self.foreign.borrow();
        let kinds: Vec<String> = foreign
            .iter()
            .filter(|(foreign, _)| *foreign == key)
            .map(|(_, kind)| format!("\"{kind}\""))
            .collect();
        if self.later.borrow().contains(&key) {
            complaint = complaint.hint(format!("`{shown}` is not in this version"));
        } else if !kinds.is_empty() {
            // Without a valid `type`, the keys of all kinds may be right.
            if !self.kind_known.get() {
                return;
            }
            complaint =
                complaint.hint(format!("`{shown}` belongs to type {}", kinds.join(" and ")));
        } else if let Some(near) = nearest(key, known.iter().copied()) {
            if super::mask::looks_secret(near) {
                super::value::hide(self.reading, value);
            }
            complaint = complaint.hint(format!("did you mean `{near}`?"));
        } else if !known.is_empty() && known.len() <= NAMES_SHOWN_MAX {
            complaint = complaint.hint(format!("known here: {}", known.join(", ")));
        }
        self.reading.error(path, Some(name.span()), complaint);
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        if self.reading.is_describing() {
            return;
        }
        for (name, value) in in_order(self.table) {
            if !self.known.borrow().contains(&name.get_ref().as_ref()) {
                self.unknown(name, value);
            }
        }
    }
}

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Table").field(&self.path("")).finish()
    }
}

/// Keys and values in the order of the file.
pub(super) fn in_order<'r>(
    table: Option<&'r DeTable<'r>>,
) -> Vec<(&'r Spanned<std::borrow::Cow<'r, str>>, &'r Spanned<DeValue<'r>>)> {
    let mut entries: Vec<_> = table.into_iter().flat_map(|table| table.iter()).collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

/// The name most like `key`, if one is like it.
#[must_use]
pub fn nearest<'n>(key: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let lower = key.to_ascii_lowercase();
    names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&lower, &name.to_ascii_lowercase()), name))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// "a string", "an integer".
pub(super) fn article(noun: &str) -> String {
    let vowel = noun.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {noun}", if vowel { "an" } else { "a" })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Document, Problems};
    use super::*;

    #[test]
    fn a_kind_that_is_not_built_in_is_known_and_refused_at_its_place() {
        let kinds = [
            Kind::of("there", |table| table.text("x", "").optional()),
            Kind::of("left_out", |table| table.text("y", "").optional()).if_built_in(false),
        ];
        let told = |text: &str| {
            let document = Document::new(text.as_bytes());
            let table = document.table();
            let problems = Problems::new("t.toml", document.text.as_str());
            let reading = Reading::new(&table, Path::new("/"), &|_| None, problems);
            let value = reading.root().kind(&kinds, "What it is.");
            (value, reading.finish().0.to_string())
        };
        let (value, problems) = told("x = \"1\"\ntype = \"there\"");
        assert_eq!((value.as_deref(), problems.as_str()), (Some("1"), ""));
        let (value, problems) = told("y = \"1\"\ntype = \"left_out\"");
        assert_eq!(value, None);
        assert!(problems.contains("this agent is built without type \"left_out\""), "{problems}");
        assert!(problems.contains("t.toml:2"), "{problems}");
        assert!(!problems.contains("unknown key"), "{problems}");
    }
}
