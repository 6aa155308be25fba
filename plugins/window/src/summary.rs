//! What is known of one window, and how it is told.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use waystation_plugin::json::{Object, Path, as_number, number_text, significant, to_text};
use waystation_plugin::time::rfc3339;

use crate::VALUES_MAX;

/// Longest name of a value in a summary.
const NAME_BYTES_MAX: usize = 100;
/// Longest JSON text that `first` and `last` take.
const TEXT_BYTES_MAX: usize = 100;

/// A field that is summarised.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Value {
    /// Its path, such as `temperature_c` or `readings.pressure`.
    field: Path,
    /// What is told of it.
    #[serde(default = "Stat::usual")]
    stats: Vec<Stat>,
    /// Its name in the summary; the path, if nothing is said.
    name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stat {
    /// How many numbers there were.
    Count,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// All added up.
    Sum,
    /// The sum by the count.
    Mean,
    /// The value of the earliest record.
    First,
    /// The value of the latest record.
    Last,
}

impl Stat {
    const ALL: [(Self, &str); 7] = [
        (Self::Count, "count"),
        (Self::Min, "min"),
        (Self::Max, "max"),
        (Self::Sum, "sum"),
        (Self::Mean, "mean"),
        (Self::First, "first"),
        (Self::Last, "last"),
    ];

    fn usual() -> Vec<Self> {
        vec![Self::Count, Self::Min, Self::Max, Self::Mean]
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl Value {
    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.field.to_string())
    }
}

/// Finds the mistakes in `values`.
pub(crate) fn check(values: &[Value], problems: &mut Vec<String>) {
    if values.len() > VALUES_MAX {
        problems
            .push(format!("values: there are {}, and at most {VALUES_MAX} may be", values.len()));
    }
    let mut names = BTreeSet::new();
    for (at, value) in values.iter().enumerate() {
        if value.field.has_star() {
            problems.push(format!(
                "values[{at}].field: a * cannot stand here; \\* is a star that belongs to a name"
            ));
        }
        if value.stats.is_empty() {
            problems.push(format!("values[{at}].stats: there are none"));
        }
        if value.stats.iter().collect::<BTreeSet<_>>().len() < value.stats.len() {
            problems.push(format!("values[{at}].stats: one is there twice"));
        }
        let name = value.name();
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            problems.push(format!(
                "values[{at}].name: it has {} bytes, and 1 to {NAME_BYTES_MAX} may be",
                name.len()
            ));
        }
        if !names.insert(name) {
            problems.push(format!("values[{at}].name: another one has this name"));
        }
    }
}

/// A window of one key. It holds all that its record needs, so that a new config does not change what is being counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) start: i64,
    count: u64,
    /// The subject of the first record, where it is not the key.
    pub(crate) subject: Option<String>,
    tallies: Vec<Tally>,
}

/// What is known of one field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Tally {
    name: String,
    stats: u8,
    count: u64,
    range: Option<(f64, f64)>,
    sum: Option<Sum>,
    first: Option<(i64, String)>,
    last: Option<(i64, String)>,
}

/// A sum that keeps what rounding takes away (Neumaier): as exact as one with twice the digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        let sum = self.sum + value;
        let (large, small) =
            if self.sum.abs() >= value.abs() { (self.sum, value) } else { (value, self.sum) };
        self.lost += (large - sum) + small;
        self.sum = sum;
    }

    fn total(self) -> f64 {
        self.sum + self.lost
    }
}

impl Summary {
    pub(crate) fn new(start: i64, subject: Option<String>, values: &[Value]) -> Self {
        Self { start, count: 0, subject, tallies: values.iter().map(Tally::new).collect() }
    }

    /// Counts a record. The values are those that the window was begun with.
    pub(crate) fn add(&mut self, values: &[Value], time: i64, object: &Object<'_>) {
        self.count += 1;
        for (value, tally) in values.iter().zip(&mut self.tallies) {
            if let Some(text) = object.at(&value.field) {
                tally.add(time, text);
            }
        }
    }

    /// The summary as JSON text.
    pub(crate) fn payload(&self, key: &str, end: i64) -> String {
        let (start, end, count) = (rfc3339(self.start), rfc3339(end), self.count);
        let mut text = format!(r#"{{"key":{key},"start":"{start}","end":"{end}","count":{count}"#);
        if !self.tallies.is_empty() {
            let values = self.tallies.iter().map(Tally::to_json).collect::<Vec<_>>().join(",");
            text.push_str(&format!(r#","values":{{{values}}}"#));
        }
        text.push('}');
        text
    }
}

impl Tally {
    fn new(value: &Value) -> Self {
        let stats = value.stats.iter().fold(0, |bits, stat| bits | stat.bit());
        Self {
            name: value.name(),
            stats,
            count: 0,
            range: None,
            sum: None,
            first: None,
            last: None,
        }
    }

    fn tells(&self, stat: Stat) -> bool {
        self.stats & stat.bit() != 0
    }

    fn add(&mut self, time: i64, text: &str) {
        if let Some(number) = as_number(text) {
            self.count += 1;
            if self.tells(Stat::Min) || self.tells(Stat::Max) {
                let (min, max) = self.range.unwrap_or((number, number));
                self.range = Some((min.min(number), max.max(number)));
            }
            if self.tells(Stat::Sum) || self.tells(Stat::Mean) {
                self.sum.get_or_insert_default().add(number);
            }
        }
        if text.len() > TEXT_BYTES_MAX || text == "null" || text.starts_with(['{', '[']) {
            return;
        }
        if self.tells(Stat::First) && self.first.as_ref().is_none_or(|(first, _)| time < *first) {
            self.first = Some((time, text.to_owned()));
        }
        if self.tells(Stat::Last) && self.last.as_ref().is_none_or(|(last, _)| time >= *last) {
            self.last = Some((time, text.to_owned()));
        }
    }

    fn to_json(&self) -> String {
        let stats = Stat::ALL.iter().filter(|(stat, _)| self.tells(*stat)).map(|(stat, name)| {
            let text = match stat {
                Stat::Count => Some(self.count.to_string()),
                Stat::Min => self.range.and_then(|(min, _)| number_text(min)),
                Stat::Max => self.range.and_then(|(_, max)| number_text(max)),
                Stat::Sum => self.sum.and_then(|sum| result_text(sum.total())),
                Stat::Mean => self.sum.and_then(|sum| result_text(sum.total() / self.count as f64)),
                Stat::First => self.first.as_ref().map(|(_, text)| text.clone()),
                Stat::Last => self.last.as_ref().map(|(_, text)| text.clone()),
            };
            format!(r#""{name}":{}"#, text.as_deref().unwrap_or("null"))
        });
        let stats = stats.collect::<Vec<_>>().join(",");
        format!("{}:{{{stats}}}", to_text(&self.name))
    }
}

/// Whole numbers keep all their digits.
fn result_text(value: f64) -> Option<String> {
    number_text(if value.fract() == 0.0 { value } else { significant(value) })
}
