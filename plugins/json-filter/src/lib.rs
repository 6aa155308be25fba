//! Keeps or drops records by conditions on their fields. `README.md` beside this file is the manual.

mod condition;

use serde::Deserialize;
use waystation_plugin::json::{NotJson, Object};
use waystation_plugin::{Outcome, Place, Record, Transform, about, export_transform};

use condition::{Condition, Test};

/// Most conditions.
const CONDITIONS_MAX: usize = 100;

/// The `config` table of the transform.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// What becomes of a record that fits; the others get the opposite.
    #[serde(default)]
    action: Action,
    /// How many of the conditions a record has to meet to fit.
    #[serde(default)]
    r#match: Match,
    /// At least one, at most 100.
    conditions: Vec<Condition>,
    /// What becomes of a record that is no JSON object.
    #[serde(default)]
    not_json: NotJson,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Action {
    #[default]
    Keep,
    Drop,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
enum Match {
    #[default]
    All,
    Any,
    None,
}

struct Filter {
    tests: Vec<Test>,
    action: Action,
    matched: Match,
    not_json: NotJson,
}

impl Transform for Filter {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        let count = config.conditions.len();
        if count == 0 || count > CONDITIONS_MAX {
            return Err(format!(
                "conditions: there are {count}, and 1 to {CONDITIONS_MAX} make sense"
            ));
        }
        let mut tests = Vec::with_capacity(count);
        let mut problems = Vec::new();
        for (at, condition) in config.conditions.into_iter().enumerate() {
            match condition.compile() {
                Ok(test) => tests.push(test),
                Err(problem) => problems.push(format!("conditions[{at}].{problem}")),
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let Config { action, r#match: matched, not_json, .. } = config;
        Ok(Self { tests, action, matched, not_json })
    }

    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let object = match Object::parse(&record.payload) {
            Ok(object) => object,
            Err(reason) => return self.not_json.outcome(reason),
        };
        let mut tests = self.tests.iter();
        let fits = match self.matched {
            Match::All => tests.all(|test| test.is_met(&object)),
            Match::Any => tests.any(|test| test.is_met(&object)),
            Match::None => !tests.any(|test| test.is_met(&object)),
        };
        if fits == (self.action == Action::Keep) { Outcome::Keep } else { Outcome::Drop }
    }
}

export_transform!(Filter, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
