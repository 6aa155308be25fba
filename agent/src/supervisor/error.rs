//! Why an agent does not start, or ends before it was asked to.

use crate::journal::JournalError;
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
