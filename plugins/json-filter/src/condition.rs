//! One condition on one field.

use std::cmp::Ordering;

use regex_lite::Regex;
use serde::Deserialize;
use serde_json::Value;
use waystation_plugin::json::{Object, Path, as_text};

/// Most values of a list.
const VALUES_MAX: usize = 1000;
/// Most bytes of a regular expression.
const PATTERN_BYTES_MAX: usize = 1024;

#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(crate) struct Condition {
    /// The path of the field, such as `status` or `site.name`.
    field: Path,
    op: Op,
    /// What the field is compared with. `exists` and `missing` take none, `in` and `not_in` a list.
    value: Option<Value>,
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Op {
    Exists,
    Missing,
    #[serde(rename = "==")]
    Equal,
    #[serde(rename = "!=")]
    NotEqual,
    #[serde(rename = "<")]
    Less,
    #[serde(rename = "<=")]
    AtMost,
    #[serde(rename = ">")]
    Greater,
    #[serde(rename = ">=")]
    AtLeast,
    In,
    NotIn,
    StartsWith,
    EndsWith,
    Contains,
    Matches,
    Type,
}

/// A condition that can be tested.
pub(crate) struct Test {
    field: Path,
    check: Check,
    /// What the check has to say.
    wanted: bool,
}

enum Check {
    Exists,
    In(Vec<Operand>),
    Order(fn(Ordering) -> bool, Operand),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
    Matches(Regex),
    Type(Kind),
}

enum Operand {
    Text(String),
    Number(Number),
    Bool(bool),
}

/// Whole numbers are compared digit for digit; floating point would take two long ids for the same.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Number,
    Bool,
    Object,
    Array,
    Null,
}

impl Condition {
    /// # Errors
    /// The key that is wrong, and why.
    pub(crate) fn compile(self) -> Result<Test, String> {
        if self.field.has_star() {
            return Err(
                "field: a * cannot stand here; \\* is a star that belongs to a name".to_owned()
            );
        }
        let wanted = !matches!(self.op, Op::Missing | Op::NotEqual | Op::NotIn);
        let check =
            Self::check(self.op, self.value).map_err(|problem| format!("value: {problem}"))?;
        Ok(Test { field: self.field, check, wanted })
    }

    fn check(op: Op, value: Option<Value>) -> Result<Check, String> {
        let value = match (op, value) {
            (Op::Exists | Op::Missing, None) => return Ok(Check::Exists),
            (Op::Exists | Op::Missing, Some(_)) => return Err("this op takes none".to_owned()),
            (_, None) => return Err("it is missing".to_owned()),
            (_, Some(value)) => value,
        };
        let text = |value: Value| match value {
            Value::String(text) => Ok(text),
            _ => Err("this op takes a text".to_owned()),
        };
        let ordered = |holds: fn(Ordering) -> bool, value: Value| match Operand::of(value)? {
            Operand::Bool(_) => Err("this op takes a number or a text".to_owned()),
            operand => Ok(Check::Order(holds, operand)),
        };
        Ok(match op {
            Op::Equal | Op::NotEqual => Check::In(vec![Operand::of(value)?]),
            Op::In | Op::NotIn => match value {
                Value::Array(values) if (1..=VALUES_MAX).contains(&values.len()) => {
                    Check::In(values.into_iter().map(Operand::of).collect::<Result<_, _>>()?)
                }
                _ => return Err(format!("this op takes a list of 1 to {VALUES_MAX} values")),
            },
            Op::Less => ordered(Ordering::is_lt, value)?,
            Op::AtMost => ordered(Ordering::is_le, value)?,
            Op::Greater => ordered(Ordering::is_gt, value)?,
            Op::AtLeast => ordered(Ordering::is_ge, value)?,
            Op::StartsWith => Check::StartsWith(text(value)?),
            Op::EndsWith => Check::EndsWith(text(value)?),
            Op::Contains => Check::Contains(text(value)?),
            Op::Matches => {
                let pattern = text(value)?;
                if pattern.len() > PATTERN_BYTES_MAX {
                    return Err(format!("the pattern is longer than {PATTERN_BYTES_MAX} bytes"));
                }
                let regex = Regex::new(&pattern);
                Check::Matches(regex.map_err(|error| format!("no regular expression: {error}"))?)
            }
            Op::Type => Check::Type(Kind::named(&text(value)?)?),
            Op::Exists | Op::Missing => Check::Exists,
        })
    }
}

impl Test {
    pub(crate) fn is_met(&self, object: &Object<'_>) -> bool {
        let holds = object.at(&self.field).is_some_and(|value| self.check.holds(value));
        holds == self.wanted
    }
}

impl Check {
    /// Whether it holds for a value, which is JSON text.
    fn holds(&self, value: &str) -> bool {
        let text = |test: &dyn Fn(&str) -> bool| as_text(value).is_some_and(|text| test(&text));
        match self {
            Self::Exists => true,
            Self::In(operands) => {
                operands.iter().any(|operand| operand.compare(value) == Some(Ordering::Equal))
            }
            Self::Order(holds, operand) => operand.compare(value).is_some_and(holds),
            Self::StartsWith(start) => text(&|text| text.starts_with(start)),
            Self::EndsWith(end) => text(&|text| text.ends_with(end)),
            Self::Contains(part) => text(&|text| text.contains(part)),
            Self::Matches(regex) => text(&|text| regex.is_match(text)),
            Self::Type(kind) => Kind::of(value) == *kind,
        }
    }
}

impl Operand {
    fn of(value: Value) -> Result<Self, String> {
        let none = || "a text, a number or a truth value is needed".to_owned();
        match value {
            Value::String(text) => Ok(Self::Text(text)),
            Value::Bool(value) => Ok(Self::Bool(value)),
            Value::Number(number) => {
                Number::parse(&number.to_string()).map(Self::Number).ok_or_else(none)
            }
            _ => Err(none()),
        }
    }

    /// How the value stands to this one; none when they are of different types.
    fn compare(&self, value: &str) -> Option<Ordering> {
        match self {
            Self::Text(text) => Some((*as_text(value)?).cmp(text)),
            Self::Number(number) => Number::parse(value)?.compare(*number),
            Self::Bool(wanted) => match value {
                "true" => Some(true.cmp(wanted)),
                "false" => Some(false.cmp(wanted)),
                _ => None,
            },
        }
    }
}

impl Number {
    fn parse(text: &str) -> Option<Self> {
        if Kind::of(text) != Kind::Number {
            return None;
        }
        text.parse().map(Self::Whole).or_else(|_| text.parse().map(Self::Float)).ok()
    }

    fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Whole(one), Self::Whole(two)) => Some(one.cmp(&two)),
            (one, two) => one.float().partial_cmp(&two.float()),
        }
    }

    fn float(self) -> f64 {
        match self {
            Self::Whole(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

impl Kind {
    fn named(name: &str) -> Result<Self, String> {
        Ok(match name {
            "string" => Self::Text,
            "number" => Self::Number,
            "boolean" => Self::Bool,
            "object" => Self::Object,
            "array" => Self::Array,
            "null" => Self::Null,
            _ => {
                return Err(
                    "a type is \"string\", \"number\", \"boolean\", \"object\", \"array\" or \"null\""
                        .to_owned(),
                );
            }
        })
    }

    fn of(value: &str) -> Self {
        match value.as_bytes().first() {
            Some(b'"') => Self::Text,
            Some(b'{') => Self::Object,
            Some(b'[') => Self::Array,
            Some(b't' | b'f') => Self::Bool,
            Some(b'n') | None => Self::Null,
            Some(_) => Self::Number,
        }
    }
}
