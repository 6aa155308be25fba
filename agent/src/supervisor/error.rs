//! Why an agent does not start, and why it does not do what an operator orders.

use crate::journal::{JournalError, LaneOrderError};
use crate::lane::ResolveError;
use crate::lane::replay::ReplayError;
use crate::limits::RELOAD_READ_MS_MAX;
use crate::plugin::{CallError, PluginError};
use crate::record::id::{PipelineId, SinkId, SourceId, TransformId};
use crate::settings::{Problems, Severity};
use crate::sinks::SinkError;
use crate::sources::SourceError;

/// A failed start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal cannot be used.
    #[error("the journal cannot be opened")]
    Journal(#[from] JournalError),
    /// Plugins cannot be run at all.
    #[error("plugins cannot be run")]
    Host(#[source] PluginError),
    /// One plugin cannot be loaded.
    #[error("transform \"{transform}\" cannot be loaded")]
    Plugin {
        /// The transform.
        transform: TransformId,
        /// Why.
        source: PluginError,
    },
    /// The plugin of a sink cannot be loaded.
    #[error("sink \"{sink}\" cannot be loaded")]
    SinkPlugin {
        /// The sink.
        sink: SinkId,
        /// Why.
        source: PluginError,
    },
    /// A source cannot be made, for instance an endless one with `--once`.
    #[error("source \"{source_id}\" cannot be started")]
    Source {
        /// The source.
        source_id: SourceId,
        /// Why.
        source: SourceError,
    },
}

/// Why a config was not taken up; everything is as it was then.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// It cannot be used, or has changes that only a start can make.
    #[error("the config cannot be used: {}", first_of(.0))]
    Config(Box<Problems>),
    /// Its files cannot be read in time.
    #[error("the files of the config cannot be read within {} s", RELOAD_READ_MS_MAX / 1000)]
    Slow,
    /// A part cannot be made.
    #[error("a part cannot be made")]
    Start(#[from] StartError),
    /// A plugin does not begin.
    #[error("transform \"{transform}\" does not begin")]
    Plugin {
        /// The transform.
        transform: TransformId,
        /// Why.
        source: CallError,
    },
    /// A sink lacks something on this machine.
    #[error("sink \"{sink}\" cannot be used")]
    Sink {
        /// The sink.
        sink: SinkId,
        /// What.
        source: SinkError,
    },
    /// A run with `--once` reads its config once.
    #[error("a run with --once keeps the config that it began with")]
    Once,
    /// The agent stops.
    #[error("the agent is stopping")]
    Stopping,
}

/// The first problem with its place, and how many more there are.
fn first_of(problems: &Problems) -> String {
    let errors = || problems.list().iter().filter(|problem| problem.severity == Severity::Error);
    let Some(first) = errors().next() else { return "it has problems".to_owned() };
    let place = problems.position(first).map(|(line, column)| format!(":{line}:{column}"));
    let place = place.unwrap_or_default();
    let more = match errors().count() - 1 + problems.more() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("{}{place}: {}{more}", problems.file(first), first.message)
}

/// Why an order was not carried out; nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The config names no such lane.
    #[error("there is no lane \"{0}\"")]
    UnknownLane(String),
    /// The lane is not in the state that the order is for.
    #[error("lane {lane}")]
    Lane {
        /// Its name.
        lane: String,
        /// Why.
        source: ResolveError,
    },
    /// The lane does not take a replay, or it failed.
    #[error("lane {lane}")]
    Replay {
        /// Its name.
        lane: String,
        /// Why.
        source: ReplayError,
    },
    /// The config still has the lane.
    #[error(
        "lane {lane} is in the config: pipeline \"{pipeline}\" delivers to sink \"{sink}\"; take it out of the config first"
    )]
    InConfig {
        /// Its name.
        lane: String,
        /// The pipeline that makes it.
        pipeline: PipelineId,
        /// Its sink.
        sink: SinkId,
    },
    /// No lane of the config is called so.
    #[error("the config that runs makes no lane \"{0}\"; a lane moves to one that the config has")]
    NoTarget(String),
    /// A lane would move to another source.
    #[error(
        "lane {lane} is of source \"{old}\", the other of source \"{new}\": between sources a lane moves while the agent is \
         stopped, in front of the first start of \"{new}\""
    )]
    OtherSource {
        /// Its name.
        lane: String,
        /// Its source.
        old: SourceId,
        /// The other one.
        new: SourceId,
    },
    /// The journal does not do it as ordered.
    #[error(transparent)]
    Refused(LaneOrderError),
    /// A finite run takes no such orders.
    #[error("a run with --once takes no orders about lanes")]
    Once,
    /// The agent stops.
    #[error("the agent is stopping")]
    Stopping,
    /// The journal did not commit it.
    #[error("the journal failed")]
    Journal(#[source] JournalError),
}

impl From<JournalError> for OrderError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::LaneOrder(refused) => Self::Refused(refused),
            error => Self::Journal(error),
        }
    }
}
