//! Passes on every n-th record, one in an interval, or those that bring a change. `README.md` beside this file is the manual.

mod memory;
mod rule;

use serde::Deserialize;
use waystation_plugin::json::{NotJson, Object};
use waystation_plugin::time::Span;
use waystation_plugin::{
    By, Error, Outcome, Place, Record, Transform, about, export_transform, stable_hash,
};

use memory::Memory;
use rule::{Rule, Watch};

/// Limits of `keys_max`. What is remembered of that many keys fits into the state that the agent keeps for a lane.
const KEYS_MAX: std::ops::RangeInclusive<u32> = 2..=50_000;
/// What `keys_max` is when it is not there.
const KEYS_MAX_DEFAULT: u32 = 10_000;
/// Longest name of a key; a longer one is remembered by its hash.
const KEY_BYTES_MAX: usize = 200;

/// The `config` table of the transform. One of `every`, `interval` and `on_change` is needed.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// Of each key the first record passes, and then every n-th.
    every: Option<u64>,
    /// Of each key one record passes in this time, by the records' own times.
    interval: Option<Span>,
    /// Of each key a record passes when one of these fields has changed.
    on_change: Option<Vec<Watch>>,
    /// With `on_change`: a record passes also when the last one did so long ago.
    max_silence: Option<Span>,
    /// What makes records belong together.
    #[serde(default)]
    by: By,
    /// How many keys are remembered, 2 to 50 000.
    keys_max: Option<u32>,
    /// What becomes of a record that is no JSON object, where one is needed.
    #[serde(default)]
    not_json: NotJson,
}

struct Sample {
    rule: Rule,
    by: By,
    keys_max: u32,
    not_json: NotJson,
}

impl Transform for Sample {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        let Config { every, interval, on_change, max_silence, by, keys_max, not_json } = config;
        let mut problems = Vec::new();
        let rule = Rule::new(every, interval, on_change, max_silence, &mut problems);
        problems.extend(by.problem());
        let keys_max = keys_max.unwrap_or(KEYS_MAX_DEFAULT);
        if !KEYS_MAX.contains(&keys_max) {
            let (least, most) = (KEYS_MAX.start(), KEYS_MAX.end());
            problems.push(format!("keys_max: {keys_max} is not {least} to {most}"));
        }
        match rule {
            Some(rule) if problems.is_empty() => Ok(Self { rule, by, keys_max, not_json }),
            _ => Err(problems.join("; ")),
        }
    }

    fn record(&mut self, now: i64, record: Record) -> Outcome {
        match self.process(now, vec![record]) {
            Ok(outcomes) => outcomes.into_iter().next().unwrap_or(Outcome::Drop),
            Err(Error::Retryable(reason) | Error::Permanent(reason)) => Outcome::Reject(reason),
        }
    }

    fn process(&mut self, _now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        // Read anew for each call: what an earlier call has left in memory may never have been stored.
        let mut memory = Memory::open(self.keys_max);
        let outcomes = records.iter().map(|record| self.judge(&mut memory, record));
        let outcomes = outcomes.collect::<Result<_, _>>().map_err(Error::Permanent)?;
        memory.store().map_err(Error::Permanent)?;
        Ok(outcomes)
    }
}

impl Sample {
    fn judge(&self, memory: &mut Memory, record: &Record) -> Result<Outcome, String> {
        let object = if self.rule.needs_json() || self.by.needs_json() {
            match Object::parse(&record.payload) {
                Ok(object) => object,
                Err(reason) => return Ok(self.not_json.outcome(reason)),
            }
        } else {
            Object::default()
        };
        let known = memory.entry(self.key(record, &object))?;
        let passes = self.rule.passes(known, record.time, &object);
        Ok(if passes { Outcome::Keep } else { Outcome::Drop })
    }

    fn key(&self, record: &Record, object: &Object<'_>) -> String {
        match self.by.key(record, object) {
            // Records that have no key belong together.
            None => "?".to_owned(),
            Some(name) if name.len() <= KEY_BYTES_MAX => format!(":{name}"),
            Some(name) => format!("#{:032x}", stable_hash(name)),
        }
    }
}

export_transform!(Sample, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
