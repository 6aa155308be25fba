//! Renames, sets, removes and converts fields, step by step. `README.md` beside this file is the manual.

mod number;
mod origin;
mod step;
mod units;

use serde::Deserialize;
use waystation_plugin::json::{NotJson, Object};
use waystation_plugin::{Outcome, Place, Record, Transform, about, export_transform};

use step::{Job, Step};

/// Most steps.
const STEPS_MAX: usize = 200;

/// The `config` table of the transform.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// What is done, one after the other. At least one, at most 200.
    steps: Vec<Step>,
    /// What becomes of a value that cannot be converted.
    #[serde(default)]
    unconvertible: Unconvertible,
    /// What becomes of a record that is no JSON object.
    #[serde(default)]
    not_json: NotJson,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unconvertible {
    /// The record goes to the dead letters.
    #[default]
    Reject,
    /// The value stays as it is.
    Keep,
    /// The field is removed.
    Remove,
}

struct Map {
    jobs: Vec<Job>,
    unconvertible: Unconvertible,
    not_json: NotJson,
    place: Place,
}

impl Transform for Map {
    type Config = Config;

    fn new(config: Config, place: Place) -> Result<Self, String> {
        let count = config.steps.len();
        if count == 0 || count > STEPS_MAX {
            return Err(format!("steps: there are {count}, and 1 to {STEPS_MAX} make sense"));
        }
        let mut jobs = Vec::with_capacity(count);
        let mut problems = Vec::new();
        for (at, step) in config.steps.into_iter().enumerate() {
            match step.compile() {
                Ok(job) => jobs.push(job),
                Err(problem) => problems.push(format!("steps[{at}].{problem}")),
            }
        }
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let Config { unconvertible, not_json, .. } = config;
        Ok(Self { jobs, unconvertible, not_json, place })
    }

    fn record(&mut self, _now: i64, record: Record) -> Outcome {
        let mut object = match Object::parse(&record.payload) {
            Ok(object) => object,
            Err(reason) => return self.not_json.outcome(reason),
        };
        let mut changed = false;
        for job in &self.jobs {
            match job.run(&mut object, &record, &self.place, self.unconvertible) {
                Ok(has_changed) => changed |= has_changed,
                Err(reason) => return Outcome::Reject(reason),
            }
        }
        if changed { Outcome::Payload(object.to_bytes()) } else { Outcome::Keep }
    }
}

export_transform!(Map, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
