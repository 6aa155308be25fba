//! Why an agent does not start, and why it does not do what an operator orders.

use crate::journal::JournalError;
use crate::lane::ResolveError;
use crate::lane::replay::ReplayError;
use crate::plugin::PluginError;
use crate::record::id::{SourceId, TransformId};
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
    /// A source cannot be made, for instance an endless one with `--once`.
    #[error("source \"{source_id}\" cannot be started")]
    Source {
        /// The source.
        source_id: SourceId,
        /// Why.
        source: SourceError,
    },
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
    /// The journal did not commit it.
    #[error("the journal failed")]
    Journal(#[from] JournalError),
}
