//! A `[pipelines.NAME]` table.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use crate::record::id::{PipelineId, SinkId, SourceId, TransformId};
use crate::record::subject::{PatternError, SubjectPattern};
use crate::settings::{Complaint, Field, Table};

/// Where a new lane begins in a stream that has records already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At the oldest record that the journal still holds.
    #[default]
    Earliest,
    /// Behind the newest one.
    Now,
}

/// `[dead_letters] storm`: when a lane holds instead of writing dead letters, because so many at once are an outage in disguise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StormConfig {
    /// `share`: what of the recent records may become dead letters at delivery; default 0.2, 0 to 1. With 1 a lane never holds.
    pub share: f64,
    /// `window`: which records are recent; default `"1m"`, 1 s to 24 h.
    pub window: Duration,
    /// `records_min`: the last so many records are always recent, and fewer count as so many; default 100, 1 to 1 000 000.
    pub records_min: u32,
}

impl Default for StormConfig {
    fn default() -> Self {
        Self { share: 0.2, window: Duration::from_secs(60), records_min: 100 }
    }
}

impl StormConfig {
    /// Reads `dead_letters.storm`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        let default = Self::default();
        Self {
            share: table
                .number("share", "More than this share of recent records: the lane holds instead.")
                .within(0.0..=1.0)
                .or(default.share),
            window: table
                .duration("window", "Which records are recent.")
                .within(Duration::from_secs(1)..=Duration::from_hours(24))
                .or(default.window),
            records_min: table
                .integer("records_min", "The last so many records are always recent.")
                .within(1..=1_000_000)
                .or(default.records_min),
        }
    }
}

/// Settings of one pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineConfig {
    /// The table's name.
    pub id: PipelineId,
    /// `sources`: at least one.
    pub sources: Vec<SourceId>,
    /// `subjects`: patterns as in NATS (`*` for a token, `>` at the end for one or more); default all. What none of them means
    /// counts as not taken.
    pub subjects: Vec<SubjectPattern>,
    /// `transforms`, in order; default none. Each at most once.
    pub transforms: Vec<TransformId>,
    /// `sinks`: at least one.
    pub sinks: Vec<SinkId>,
    /// `start`, default `"earliest"`.
    pub start: Start,
}

impl PipelineConfig {
    /// Reads `[pipelines.ID]`. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(id: Option<PipelineId>, table: &Table<'_>) -> Option<Self> {
        let sources =
            names(table, "sources", "Where its records come from.").at_least_one().required();
        let subjects = table
            .list_of("subjects", "Which of their records it takes.", "a list of patterns", |text| {
                text.parse().map_err(|error: PatternError| {
                    Complaint::new(error.to_string())
                        .hint("write \"plant.>\" or \"plant.*.temperature\"")
                })
            })
            .at_least_one()
            .optional()
            .unwrap_or_default();
        let transforms = names(table, "transforms", "What its records go through, in this order.")
            .or(Vec::new());
        let sinks = names(table, "sinks", "Where its records go to.").at_least_one().required();
        let words = [("earliest", Start::Earliest), ("now", Start::Now)];
        let start = table
            .choice(
                "start",
                "Where a new lane begins in a stream that has records already.",
                &words,
            )
            .or(Start::default());
        Some(Self { id: id?, sources: sources?, subjects, transforms, sinks: sinks?, start })
    }
}

fn names<'t, 'r, T>(
    table: &'t Table<'r>,
    key: &'static str,
    doc: &'static str,
) -> Field<'t, 'r, Vec<T>>
where
    T: FromStr + Display + 'r,
    T::Err: Display,
{
    table.list_of(key, doc, "a list of names", |text| {
        text.parse().map_err(|error: T::Err| Complaint::new(error.to_string()))
    })
}
