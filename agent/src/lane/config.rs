//! A `[pipelines.NAME]` table.

use crate::record::id::{PipelineId, SinkId, SourceId, TransformId};

/// Where a new lane begins in a stream that has records already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// At the oldest record that the journal still holds.
    #[default]
    Earliest,
    /// Behind the newest one.
    Now,
}

/// Settings of one pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineConfig {
    /// The table's name.
    pub id: PipelineId,
    /// `sources`: at least one.
    pub sources: Vec<SourceId>,
    /// `transforms`, in order; default none. Each at most once.
    pub transforms: Vec<TransformId>,
    /// `sinks`: at least one.
    pub sinks: Vec<SinkId>,
    /// `start`, default `"earliest"`.
    pub start: Start,
}
