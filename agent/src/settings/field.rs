//! One key being asked for: its type, bounds and checks, then its value.

use std::fmt;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::DeValue;

use super::listing::Shape;
use super::problem::Complaint;
use super::reading::Reading;
use super::table::{Facts, Table};

/// A value in the file, on its way to its type.
pub(super) struct Input<'r> {
    pub(super) reading: &'r Reading<'r>,
    pub(super) path: String,
    pub(super) value: &'r Spanned<DeValue<'r>>,
}

impl Input<'_> {
    /// Complains about the value.
    pub(super) fn complain(&self, complaint: Complaint) {
        self.reading.error(self.path.as_str(), Some(self.value.span()), complaint);
    }
}

type ParseValue<'r, T> = Box<dyn Fn(&Input<'r>) -> Option<T> + 'r>;

/// How a value becomes a `T`, and how a `T` is shown. `parse` complains itself when it gives nothing.
pub(super) struct Parse<'r, T> {
    pub(super) expected: String,
    pub(super) shape: Shape,
    pub(super) parse: ParseValue<'r, T>,
    pub(super) show: Box<dyn Fn(&T) -> toml::Value + 'r>,
}

type Check<'t, T> = Box<dyn Fn(&T) -> Result<(), Complaint> + 't>;

/// A key that is being asked for. Nothing happens before [`required`](Self::required), [`or`](Self::or) or
/// [`optional`](Self::optional).
#[must_use = "the key counts as unknown until it is read"]
pub struct Field<'t, 'r, T> {
    table: &'t Table<'r>,
    key: &'static str,
    doc: &'static str,
    parse: Parse<'r, T>,
    bounds: Option<(String, String)>,
    checks: Vec<Check<'t, T>>,
}

impl<'t, 'r, T> Field<'t, 'r, T> {
    pub(super) fn new(
        table: &'t Table<'r>,
        key: &'static str,
        doc: &'static str,
        parse: Parse<'r, T>,
    ) -> Self {
        Self { table, key, doc, parse, bounds: None, checks: Vec::new() }
    }

    /// Refuses values outside.
    pub fn within(mut self, range: RangeInclusive<T>) -> Self
    where
        T: PartialOrd + 't,
    {
        let (low, high) = (
            (self.parse.show)(range.start()).to_string(),
            (self.parse.show)(range.end()).to_string(),
        );
        let message = format!("`{}` must be between {low} and {high}", self.key);
        self.bounds = Some((low, high));
        self.check(move |value| {
            if range.contains(value) { Ok(()) } else { Err(Complaint::new(message.clone())) }
        })
    }

    /// Refuses what `check` complains about.
    pub fn check(mut self, check: impl Fn(&T) -> Result<(), Complaint> + 't) -> Self {
        self.checks.push(Box::new(check));
        self
    }

    /// The value, which must be there. `None` was reported.
    #[must_use]
    pub fn required(self) -> Option<T> {
        let value = self.read();
        let is_present = self.table.value(self.key).is_some();
        if !is_present {
            let path = self.table.path(self.key);
            let table = self.table.path("");
            let message = if table.is_empty() {
                format!("`{}` is missing", self.key)
            } else {
                format!("`{}` is missing in [{table}]", self.key)
            };
            let hint = format!("add {} = …, {}", self.key, self.parse.expected);
            self.table.reading().missing(
                path,
                self.table.own_place(),
                Complaint::new(message).hint(hint),
            );
        }
        self.show(value.as_ref(), true);
        value
    }

    /// The value, or this one if the file has none; also if it has one that was reported.
    #[must_use]
    pub fn or(self, default: T) -> T {
        let value = self.read().unwrap_or(default);
        self.show(Some(&value), false);
        value
    }

    /// The value if the file has one. `None` if it was reported, too.
    #[must_use]
    pub fn optional(self) -> Option<T> {
        let value = self.read();
        self.show(value.as_ref(), false);
        value
    }

    fn read(&self) -> Option<T> {
        let (_, value) = self.table.value(self.key)?;
        let input = Input { reading: self.table.reading(), path: self.table.path(self.key), value };
        let parsed = (self.parse.parse)(&input)?;
        let complaints: Vec<_> =
            self.checks.iter().filter_map(|check| check(&parsed).err()).collect();
        if complaints.is_empty() {
            return Some(parsed);
        }
        for complaint in complaints {
            input.complain(complaint);
        }
        None
    }

    fn show(&self, value: Option<&T>, is_required: bool) {
        let span = self.table.value(self.key).map(|(name, _)| name.span());
        let shown = value.map(|value| (self.parse.show)(value));
        let facts = Facts {
            expected: self.parse.expected.clone(),
            shape: self.parse.shape.clone(),
            is_required,
            doc: self.doc,
            bounds: self.bounds.clone(),
        };
        self.table.list(self.key, facts, shown, span.as_ref());
    }
}

impl<T> Field<'_, '_, Vec<T>> {
    /// Refuses an empty list.
    pub fn at_least_one(self) -> Self {
        let message = format!("`{}` must hold at least one element", self.key);
        self.check(
            move |list: &Vec<T>| {
                if list.is_empty() { Err(Complaint::new(message.clone())) } else { Ok(()) }
            },
        )
    }
}

impl<T> fmt::Debug for Field<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Field").field(&self.table.path(self.key)).finish()
    }
}
