//! Counts and summarises records by key and window of time. `README.md` beside this file is the manual.

mod clock;
mod open;
mod subject;
mod summary;

use serde::Deserialize;
use waystation_plugin::json::{NotJson, Object};
use waystation_plugin::time::Span;
use waystation_plugin::{
    By, Draft, Error, Outcome, Place, Record, Ticks, Transform, about, export_windowed, stable_hash,
};

use clock::Clock;
use open::{Id, Open, Room};
use subject::Template;
use summary::{Summary, Value};

/// Most windows that a record may lie in.
const OVERLAP_MAX: i64 = 60;
/// Most fields that are summarised.
const VALUES_MAX: usize = 8;
/// Limits of `open_max`. Summaries of that many windows fit into the state that the agent keeps for a lane.
const OPEN_MAX: std::ops::RangeInclusive<u32> = 1..=20_000;
/// What `open_max` is when it is not there.
const OPEN_MAX_DEFAULT: u32 = 10_000;
/// What `lateness` and `ahead_max` are when they are not there. They are the same, so that a device whose clock is ahead makes
/// no punctual record of another one late.
const TOLERANCE_DEFAULT: Span = Span(10_000_000_000);
/// Longest name of a key: with the window's end before it, it is a key of the state.
const KEY_BYTES_MAX: usize = 400;
/// Most summaries that one tick emits.
const TICK_RECORDS_MAX: u32 = 2000;

/// The `config` table of the transform. `size` is needed.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// How long a window is.
    size: Option<Span>,
    /// A window begins every so often; they overlap when this is less than `size`, which it is when nothing is said.
    every: Option<Span>,
    /// What makes records belong together.
    #[serde(default)]
    by: By,
    /// The fields that are summarised, at most 8.
    #[serde(default)]
    values: Vec<Value>,
    /// A window closes when the time of the records is so far past its end.
    lateness: Option<Span>,
    /// What becomes of a record whose windows are closed.
    #[serde(default)]
    late: Late,
    /// A record that is further ahead of the host's clock closes no window.
    ahead_max: Option<Span>,
    /// What becomes of the records that were counted.
    #[serde(default)]
    records: Records,
    /// The subject of the summaries, with the placeholders {subject} and {key}.
    subject: Option<String>,
    /// How many windows may be open, 1 to 20 000.
    open_max: Option<u32>,
    /// What becomes of a record that is no JSON object, where one is needed.
    #[serde(default)]
    not_json: NotJson,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
enum Late {
    /// It is left out; the log says how many.
    #[default]
    Drop,
    /// It goes to the dead letters.
    Reject,
    /// It is passed on as it is.
    Keep,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
enum Records {
    /// They are left out.
    #[default]
    Drop,
    /// They are passed on beside the summaries.
    Keep,
}

struct Window {
    size: i64,
    every: i64,
    by: By,
    values: Vec<Value>,
    clock: Clock,
    late: Late,
    records: Records,
    subject: Template,
    open_max: u32,
    not_json: NotJson,
    /// Of what decides which window a record belongs to and what is summarised in it.
    config_hash: u32,
}

impl Transform for Window {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        let mut problems = Vec::new();
        let size = config.size.unwrap_or_else(|| {
            problems.push("size: it is missing; write it as 10s, 1m or 1h".to_owned());
            Span(1)
        });
        let every = config.every.unwrap_or(size);
        for (key, span) in [("size", Some(size)), ("every", config.every)] {
            if span == Some(Span(0)) {
                problems.push(format!("{key}: no time makes no sense; 1ms is the least"));
            }
        }
        // The longest span is a year, so it fits.
        let nanos = |span: Span| i64::try_from(span.0).unwrap_or(i64::MAX).max(1);
        let (size, every) = (nanos(size), nanos(every));
        if config.size.is_some() && every > size {
            problems
                .push("every: it is more than `size`, and records would be left out".to_owned());
        }
        let overlap = (size - 1) / every + 1;
        if overlap > OVERLAP_MAX {
            problems.push(format!(
                "every: a record would lie in {overlap} windows, and at most {OVERLAP_MAX} may be"
            ));
        }
        problems.extend(config.by.problem());
        summary::check(&config.values, &mut problems);
        let open_max = config.open_max.unwrap_or(OPEN_MAX_DEFAULT);
        if !OPEN_MAX.contains(&open_max) {
            let (least, most) = (OPEN_MAX.start(), OPEN_MAX.end());
            problems.push(format!("open_max: {open_max} is not {least} to {most}"));
        } else if overlap <= OVERLAP_MAX && i64::from(open_max) < overlap {
            problems.push(format!("open_max: one record lies in {overlap} windows"));
        }
        let subject = Template::parse(config.subject.as_deref().unwrap_or("{subject}"))
            .unwrap_or_else(|problem| {
                problems.push(format!("subject: {problem}"));
                Template::default()
            });
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let Config { by, values, late, records, not_json, .. } = config;
        let clock = Clock {
            lateness: nanos_or_none(config.lateness.unwrap_or(TOLERANCE_DEFAULT)),
            ahead_max: nanos_or_none(config.ahead_max.unwrap_or(TOLERANCE_DEFAULT)),
        };
        let hash = stable_hash(&format!("{size} {every} {by:?} {values:?}"));
        let config_hash = (hash & u128::from(u32::MAX)) as u32;
        Ok(Self {
            size,
            every,
            by,
            values,
            clock,
            late,
            records,
            subject,
            open_max,
            not_json,
            config_hash,
        })
    }

    fn record(&mut self, now: i64, record: Record) -> Outcome {
        match self.process(now, vec![record]) {
            Ok(outcomes) => outcomes.into_iter().next().unwrap_or(Outcome::Drop),
            Err(Error::Retryable(reason) | Error::Permanent(reason)) => Outcome::Reject(reason),
        }
    }

    fn process(&mut self, now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        // Read anew for each call: what an earlier call has left in memory may never have been stored.
        let mut open = Open::load();
        self.clock.set(&mut open.head, now);
        let outcomes = records.into_iter().map(|record| self.take(&mut open, now, record));
        let outcomes = outcomes.collect::<Result<_, _>>().map_err(Error::Permanent)?;
        open.store().map_err(Error::Permanent)?;
        Ok(outcomes)
    }
}

impl Ticks for Window {
    fn tick(&mut self, now: i64) -> Result<Vec<Draft>, Error> {
        let mut open = Open::load();
        open.tell_of_late_ones();
        if open.head.count == 0 {
            open.store().map_err(Error::Permanent)?;
            return Ok(Vec::new());
        }
        self.clock.set(&mut open.head, now);
        let ids = open::first(TICK_RECORDS_MAX);
        self.clock.tick(&mut open.head, now, ids.iter().map(|id| id.end));
        let due: Vec<Id> = ids.into_iter().filter(|id| id.end <= open.head.closed).collect();
        let drafts = due.iter().filter_map(|id| Some(self.draft(id, &open.remove(id)?))).collect();
        open.store().map_err(Error::Permanent)?;
        Ok(drafts)
    }
}

impl Window {
    /// Counts a record in its windows, and says what becomes of it.
    fn take(&self, open: &mut Open, now: i64, record: Record) -> Result<Outcome, String> {
        let object = if self.by.needs_json() || !self.values.is_empty() {
            match Object::parse(&record.payload) {
                Ok(object) => object,
                Err(reason) => return Ok(self.not_json.outcome(reason)),
            }
        } else {
            Object::default()
        };
        let key = self.by.key(&record, &object);
        if let Some(bytes) = key.map(str::len).filter(|bytes| *bytes > KEY_BYTES_MAX) {
            let reason = format!("its key has {bytes} bytes, and at most {KEY_BYTES_MAX} may be");
            return Ok(Outcome::Reject(reason));
        }
        self.clock.see(&mut open.head, now, record.time);
        let Some(ends) = self.ends(record.time) else {
            return Ok(Outcome::Reject("its time lies in no window".to_owned()));
        };
        let ids = ends.into_iter().filter(|end| *end > open.head.closed);
        let ids: Vec<Id> = ids.map(|end| self.id(end, key)).collect();
        if ids.is_empty() {
            return Ok(self.late(open));
        }
        let mut emitted = Vec::new();
        let ahead = self.clock.ahead(now).map(|time| time.saturating_add(self.size));
        match open.make_room(&ids, self.open_max, ahead) {
            Room::There => {}
            Room::Full => {
                let reason = format!("{} windows are open, as many as `open_max`", self.open_max);
                return Ok(Outcome::Reject(reason));
            }
            Room::After(closing) => {
                for id in &closing {
                    emitted.extend(open.remove(id).map(|summary| self.draft(id, &summary)));
                }
            }
        }
        for id in &ids {
            let summary = open.entry(id, || self.begin(id, &record));
            summary.add(&self.values, record.time, &object);
        }
        Ok(match (self.records, emitted.is_empty()) {
            (Records::Drop, true) => Outcome::Drop,
            (Records::Keep, true) => Outcome::Keep,
            (Records::Drop, false) => Outcome::Split(emitted),
            (Records::Keep, false) => {
                let Record { subject, headers, payload, .. } = record;
                emitted.push(Draft { time: None, subject, headers, payload });
                Outcome::Split(emitted)
            }
        })
    }

    fn late(&self, open: &mut Open) -> Outcome {
        match self.late {
            Late::Drop => {
                open.head.late += 1;
                Outcome::Drop
            }
            Late::Reject => Outcome::Reject("it came after its window was closed".to_owned()),
            Late::Keep => Outcome::Keep,
        }
    }

    /// The ends of the windows in which a time lies. They begin at multiples of `every` from 1970 on.
    fn ends(&self, time: i64) -> Option<Vec<i64>> {
        let last = time.div_euclid(self.every).checked_mul(self.every)?;
        let mut ends = Vec::new();
        let mut start = last;
        loop {
            let end = start.checked_add(self.size)?;
            if end <= time {
                return Some(ends);
            }
            ends.push(end);
            start = start.checked_sub(self.every)?;
        }
    }

    fn id(&self, end: i64, key: Option<&str>) -> Id {
        let key = match (key, &self.by) {
            (None, _) => "?".to_owned(),
            // Between the parts of an array or object; inside of texts they are written otherwise.
            (Some(json), By::Field(_)) => format!("={}", json.replace(['\n', '\r'], "")),
            (Some(text), _) => format!(":{text}"),
        };
        Id { end, config: self.config_hash, key }
    }

    fn begin(&self, id: &Id, record: &Record) -> Summary {
        let subject = (self.by != By::Subject).then(|| record.subject.clone());
        Summary::new(id.end - self.size, subject, &self.values)
    }

    /// The record that tells of a window. Its time is the window's start, so that it lies in the larger window around this one.
    fn draft(&self, id: &Id, summary: &Summary) -> Draft {
        let key = id.key_text();
        let subject = summary.subject.as_deref().or(key.as_deref()).unwrap_or_default();
        let subject = self.subject.fill(subject, key.as_deref());
        let payload = summary.payload(&id.key_json(), id.end).into_bytes();
        Draft { time: Some(summary.start), subject, headers: Vec::new(), payload }
    }
}

/// A span that may be none. The longest is a year, so it fits.
fn nanos_or_none(span: Span) -> i64 {
    i64::try_from(span.0).unwrap_or(i64::MAX)
}

export_windowed!(Window, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
