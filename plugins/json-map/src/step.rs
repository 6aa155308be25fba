//! The steps.

use serde::Deserialize;
use serde_json::Value;
use waystation_plugin::json::{Edit, Object, Path, as_number, as_text, number_text, to_text};
use waystation_plugin::{Place, Record};

use crate::Unconvertible;
use crate::number::Rounding;
use crate::origin::Origin;
use crate::units::Conversion;

/// Most digits behind the point.
const DIGITS_MAX: u8 = 15;
/// Converted temperatures have this many digits behind the point: their zeros lie far apart, so that noise is large where
/// they are small.
const TEMPERATURE_DIGITS: i32 = 9;

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Gives a field another name, or moves it into another object.
    Rename { field: Path, to: Path },
    /// Sets a field to a constant, or to what is known of the record.
    Set {
        field: Path,
        value: Option<Value>,
        #[cfg_attr(test, schemars(with = "Option<String>"))]
        from: Option<Origin>,
        /// Whether a field that is there is set too.
        #[serde(default = "yes")]
        overwrite: bool,
    },
    /// Removes fields.
    Remove { fields: Vec<Path> },
    /// Removes all fields but these.
    Keep { fields: Vec<Path> },
    /// Converts a number from one unit to another.
    Convert { field: Path, from: String, to: String, digits: Option<u8> },
    /// Multiplies a number, then adds to it.
    Scale {
        field: Path,
        #[serde(default = "one")]
        factor: f64,
        #[serde(default)]
        offset: f64,
        digits: Option<u8>,
    },
    /// Rounds a number.
    Round { field: Path, digits: u8 },
    /// Makes a number of a text or a truth value.
    Number { field: Path },
    /// Makes a text of a number or a truth value.
    String { field: Path },
}

fn yes() -> bool {
    true
}

fn one() -> f64 {
    1.0
}

/// A step that can be run.
pub(crate) enum Job {
    Rename { field: Path, to: Path },
    Set { field: Path, what: What, overwrite: bool },
    Remove(Vec<Path>),
    Keep(Vec<Path>),
    Change { field: Path, change: Change },
}

pub(crate) enum What {
    /// JSON text.
    Constant(String),
    Origin(Origin),
}

/// What is done to a value.
pub(crate) enum Change {
    Linear { factor: f64, offset: f64, rounding: Rounding },
    Number,
    Text,
}

impl Step {
    /// # Errors
    /// The key that is wrong, and why.
    pub(crate) fn compile(self) -> Result<Job, String> {
        Ok(match self {
            Self::Rename { field, to } => {
                Job::Rename { field: plain("field", field)?, to: plain("to", to)? }
            }
            Self::Set { field, value, from, overwrite } => {
                let what = match (value, from) {
                    (Some(value), None) => What::Constant(value.to_string()),
                    (None, Some(origin)) => What::Origin(origin),
                    (None, None) => return Err("value: it is missing, and `from` too".to_owned()),
                    (Some(_), Some(_)) => return Err("from: `value` is there already".to_owned()),
                };
                Job::Set { field: plain("field", field)?, what, overwrite }
            }
            Self::Remove { fields } => Job::Remove(some(fields)?),
            Self::Keep { fields } => Job::Keep(some(fields)?),
            Self::Convert { field, from, to, digits } => {
                let Conversion { factor, offset } = Conversion::between(&from, &to)?;
                let unrounded = match offset {
                    0.0 => Rounding::Significant,
                    _ => Rounding::Digits(TEMPERATURE_DIGITS),
                };
                let rounding = rounding(digits)?.unwrap_or(unrounded);
                Job::Change { field, change: Change::Linear { factor, offset, rounding } }
            }
            Self::Scale { field, factor, offset, digits } => {
                let rounding = rounding(digits)?.unwrap_or(Rounding::Significant);
                Job::Change { field, change: Change::Linear { factor, offset, rounding } }
            }
            Self::Round { field, digits } => {
                let rounding = rounding(Some(digits))?.unwrap_or(Rounding::Significant);
                let change = Change::Linear { factor: 1.0, offset: 0.0, rounding };
                Job::Change { field, change }
            }
            Self::Number { field } => Job::Change { field, change: Change::Number },
            Self::String { field } => Job::Change { field, change: Change::Text },
        })
    }
}

fn plain(key: &str, path: Path) -> Result<Path, String> {
    if path.has_star() {
        return Err(format!("{key}: a * cannot stand here; \\* is a star that belongs to a name"));
    }
    Ok(path)
}

fn some(fields: Vec<Path>) -> Result<Vec<Path>, String> {
    if fields.is_empty() { Err("fields: there is none".to_owned()) } else { Ok(fields) }
}

fn rounding(digits: Option<u8>) -> Result<Option<Rounding>, String> {
    match digits {
        Some(digits) if digits > DIGITS_MAX => {
            Err(format!("digits: {digits} is more than {DIGITS_MAX}"))
        }
        digits => Ok(digits.map(|digits| Rounding::Digits(i32::from(digits)))),
    }
}

impl Job {
    /// Does it, and says whether something has changed.
    ///
    /// # Errors
    /// Why the record cannot be processed.
    pub(crate) fn run(
        &self,
        object: &mut Object<'_>,
        record: &Record,
        place: &Place,
        unconvertible: Unconvertible,
    ) -> Result<bool, String> {
        match self {
            Self::Rename { field, to } => rename(object, field, to),
            Self::Set { field, what, overwrite } => {
                if !overwrite && object.at(field).is_some() {
                    return Ok(false);
                }
                match what {
                    What::Constant(text) => set(object, field, text)?,
                    What::Origin(origin) => match origin.value(record, place) {
                        Some(text) => set(object, field, &text)?,
                        None => return Ok(false),
                    },
                }
                Ok(true)
            }
            Self::Remove(fields) => fields
                .iter()
                .try_fold(false, |changed, field| Ok(object.remove_at(field)? || changed)),
            Self::Keep(fields) => Ok(object.keep_only(fields)),
            Self::Change { field, change } => {
                let mut bad = false;
                let changed = object.edit_at(field, &mut |text| {
                    change.apply(text).unwrap_or_else(|| {
                        bad = true;
                        match unconvertible {
                            Unconvertible::Remove => Edit::Remove,
                            Unconvertible::Reject | Unconvertible::Keep => Edit::Keep,
                        }
                    })
                })?;
                if bad && matches!(unconvertible, Unconvertible::Reject) {
                    return Err(format!("the field {field} cannot be made {}", change.aim()));
                }
                Ok(changed)
            }
        }
    }
}

fn rename(object: &mut Object<'_>, field: &Path, to: &Path) -> Result<bool, String> {
    if let Some(name) = field.sibling(to) {
        return Ok(field != to && object.rename_at(field, name));
    }
    let Some(value) = object.at(field).map(str::to_owned) else { return Ok(false) };
    object.remove_at(field)?;
    set(object, to, &value)?;
    Ok(true)
}

fn set(object: &mut Object<'_>, field: &Path, text: &str) -> Result<(), String> {
    if object.set_text_at(field, text) {
        return Ok(());
    }
    Err(format!(
        "the field {field} cannot be set: something on the way is no object, or has no such element"
    ))
}

impl Change {
    /// None when it cannot be done. A null says that there is no value, and stays.
    fn apply(&self, text: &str) -> Option<Edit> {
        if text == "null" {
            return Some(Edit::Keep);
        }
        let new = match self {
            Self::Linear { factor, offset, rounding } => {
                let value = as_number(text)? * factor + offset;
                number_text(rounding.apply(value))?
            }
            Self::Number => match text {
                "true" => "1".to_owned(),
                "false" => "0".to_owned(),
                _ => {
                    let inner = as_text(text);
                    let digits = inner.as_deref().unwrap_or(text).trim();
                    as_number(digits)?;
                    digits.to_owned()
                }
            },
            Self::Text => match text.as_bytes().first() {
                Some(b'"') => return Some(Edit::Keep),
                Some(b'{' | b'[') => return None,
                _ => to_text(text),
            },
        };
        Some(if new == text { Edit::Keep } else { Edit::Replace(new) })
    }

    fn aim(&self) -> &'static str {
        match self {
            Self::Linear { .. } => "another number",
            Self::Number => "a number",
            Self::Text => "a text",
        }
    }
}
