//! Which records pass, by what is known of their key.

use serde::Deserialize;
use waystation_plugin::json::{Object, Path, as_number};
use waystation_plugin::stable_hash;
use waystation_plugin::time::Span;

/// Most fields that are watched.
const FIELDS_MAX: usize = 8;
/// Longest text of a value that is remembered as it is; of a longer one its hash is.
const TEXT_BYTES_MAX: usize = 64;
/// Stands for the length of a value that is not there.
const ABSENT: u8 = u8::MAX;

/// A field that is watched for changes.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Watch {
    /// Its path, such as `temperature_c` or `readings.pressure`.
    field: Path,
    /// A number has changed when it differs by more than this from the one that passed last.
    absolute: Option<f64>,
    /// The same in percent of the one that passed last.
    percent: Option<f64>,
}

pub(crate) enum Rule {
    Every(u64),
    Interval(u64),
    Change { watches: Vec<Watch>, max_silence: Option<u64> },
}

impl Rule {
    /// None when there are problems.
    pub(crate) fn new(
        every: Option<u64>,
        interval: Option<Span>,
        on_change: Option<Vec<Watch>>,
        max_silence: Option<Span>,
        problems: &mut Vec<String>,
    ) -> Option<Self> {
        if max_silence.is_some() && on_change.is_none() {
            problems.push("max_silence: it belongs to `on_change`".to_owned());
        }
        for (key, span) in [("interval", interval), ("max_silence", max_silence)] {
            if span == Some(Span(0)) {
                problems.push(format!("{key}: no time makes no sense; 1ms is the least"));
            }
        }
        match (every, interval, on_change) {
            (Some(0), None, None) => {
                problems.push("every: 0 makes no sense; 1 passes all".to_owned());
                None
            }
            (Some(every), None, None) => Some(Self::Every(every)),
            (None, Some(Span(nanos)), None) => Some(Self::Interval(nanos)),
            (None, None, Some(watches)) => {
                check(&watches, problems);
                Some(Self::Change { watches, max_silence: max_silence.map(|span| span.0) })
            }
            (None, None, None) => {
                problems
                    .push("every: it is missing, and `interval` and `on_change` too".to_owned());
                None
            }
            _ => {
                let problem = "every: only one of `every`, `interval` and `on_change` may be there";
                problems.push(problem.to_owned());
                None
            }
        }
    }

    /// Whether it looks into the payload.
    pub(crate) fn needs_json(&self) -> bool {
        matches!(self, Self::Change { .. })
    }

    /// Whether a record passes, by what is known of its key, which is brought up to date. Empty: nothing is known. What
    /// another rule has left says nothing either.
    pub(crate) fn passes(&self, known: &mut Vec<u8>, time: i64, object: &Object<'_>) -> bool {
        match self {
            Self::Every(every) => {
                let count = number(known, b'n').map(u64::from_le_bytes);
                let passes = count.is_none_or(|count| count >= *every);
                let count = if passes { 1 } else { count.unwrap_or(0) + 1 };
                write(known, b'n', count.to_le_bytes());
                passes
            }
            Self::Interval(interval) => {
                let last = number(known, b't').map(i64::from_le_bytes);
                let passes = last.is_none_or(|last| time.abs_diff(last) >= *interval);
                if passes {
                    write(known, b't', time.to_le_bytes());
                }
                passes
            }
            Self::Change { watches, max_silence } => {
                let values: Vec<Option<String>> =
                    watches.iter().map(|watch| object.at(&watch.field).map(remembered)).collect();
                let passes = match decode(known, watches.len()) {
                    None => true,
                    Some((last, before)) => {
                        max_silence.is_some_and(|silence| time.abs_diff(last) >= silence)
                            || watches.iter().zip(before).zip(&values).any(
                                |((watch, before), value)| {
                                    watch.has_changed(before, value.as_deref())
                                },
                            )
                    }
                };
                if passes {
                    write(known, b'c', time.to_le_bytes());
                    for value in &values {
                        match value {
                            None => known.push(ABSENT),
                            Some(text) => {
                                known.push(u8::try_from(text.len()).unwrap_or(ABSENT));
                                known.extend_from_slice(text.as_bytes());
                            }
                        }
                    }
                }
                passes
            }
        }
    }
}

fn check(watches: &[Watch], problems: &mut Vec<String>) {
    if !(1..=FIELDS_MAX).contains(&watches.len()) {
        let count = watches.len();
        problems.push(format!("on_change: there are {count}, and 1 to {FIELDS_MAX} make sense"));
    }
    for (at, Watch { field, absolute, percent }) in watches.iter().enumerate() {
        if field.has_star() {
            problems.push(format!(
                "on_change[{at}].field: a * cannot stand here; \\* is a star that belongs to a name"
            ));
        }
        if absolute.is_some() && percent.is_some() {
            problems.push(format!("on_change[{at}].percent: `absolute` is there already"));
        }
        for (key, band) in [("absolute", absolute), ("percent", percent)] {
            if band.is_some_and(|band| band < 0.0) {
                problems.push(format!("on_change[{at}].{key}: it is less than 0"));
            }
        }
    }
}

impl Watch {
    fn has_changed(&self, before: Option<&str>, now: Option<&str>) -> bool {
        let (Some(before), Some(now)) = (before, now) else { return before != now };
        let (Some(old), Some(new)) = (as_number(before), as_number(now)) else {
            return before != now;
        };
        let band = match (self.absolute, self.percent) {
            (Some(absolute), _) => absolute,
            (None, Some(percent)) => old.abs() * percent / 100.0,
            (None, None) => 0.0,
        };
        (new - old).abs() > band
    }
}

fn remembered(value: &str) -> String {
    if value.len() <= TEXT_BYTES_MAX {
        value.to_owned()
    } else {
        format!("#{:032x}", stable_hash(value))
    }
}

fn write(known: &mut Vec<u8>, mark: u8, number: [u8; 8]) {
    known.clear();
    known.push(mark);
    known.extend_from_slice(&number);
}

fn number(known: &[u8], mark: u8) -> Option<[u8; 8]> {
    match known.split_first() {
        Some((first, rest)) if *first == mark => rest.first_chunk().copied(),
        _ => None,
    }
}

/// The time of the last record that passed, and its values.
fn decode(known: &[u8], count: usize) -> Option<(i64, Vec<Option<&str>>)> {
    let last = i64::from_le_bytes(number(known, b'c')?);
    let mut rest = known.get(9..)?;
    let mut values = Vec::with_capacity(count);
    while let Some((length, after)) = rest.split_first() {
        let length = if *length == ABSENT { None } else { Some(usize::from(*length)) };
        let (text, after) = after.split_at_checked(length.unwrap_or(0))?;
        let text = std::str::from_utf8(text).ok()?;
        values.push(length.map(|_| text));
        rest = after;
    }
    (values.len() == count).then_some((last, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_damaged_or_of_another_rule_is_as_good_as_nothing() {
        let mut known = Vec::new();
        let object = Object::parse(br#"{"a":1}"#).unwrap();
        let watch = || Watch { field: Path::field("a"), absolute: None, percent: None };
        let change = Rule::Change { watches: vec![watch()], max_silence: None };
        assert!(change.passes(&mut known, 0, &object) && !change.passes(&mut known, 0, &object));
        for length in 0..known.len() {
            assert!(change.passes(&mut known[..length].to_vec(), 0, &object), "{length}");
        }
        let two = Rule::Change { watches: vec![watch(), watch()], max_silence: None };
        assert!(two.passes(&mut known.clone(), 0, &object));
        assert!(Rule::Every(9).passes(&mut known, 0, &object));
        assert!(Rule::Interval(9).passes(&mut known, 0, &object));
    }
}
