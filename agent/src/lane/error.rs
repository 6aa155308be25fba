//! What stops a lane's session, and what is done about it.

use crate::journal::{Disposition, JournalError};
use crate::record::id::{BatchNumber, TransformId};
use crate::sinks::SinkError;

/// Why a session of a lane ended. Nothing is lost: the lane opens itself anew from what is durable.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    /// The journal failed.
    #[error("the journal failed")]
    Journal(#[from] JournalError),
    /// A record that the journal gave is not to be decoded.
    #[error("a chunk cannot be decoded")]
    Codec(#[from] crate::record::codec::CodecError),
    /// A plugin asked to try the same call later.
    #[error("transform \"{transform}\" asks to try again later: {reason}")]
    Later {
        /// The transform.
        transform: TransformId,
        /// What the plugin says.
        reason: String,
    },
    /// A plugin faults on too much, or says `permanent` where `on_error = "hold"`.
    #[error("transform \"{transform}\" is parked: {reason}")]
    Parked {
        /// The transform.
        transform: TransformId,
        /// The fault, with the record where one is to blame.
        reason: String,
    },
    /// The sink can fix no name for a batch.
    #[error("batch {batch} cannot be sealed")]
    Fix {
        /// The batch.
        batch: BatchNumber,
        /// Why.
        source: SinkError,
    },
    /// What was sealed is not what is read back.
    #[error("batch {batch} does not have the content that was sealed")]
    Content {
        /// The batch.
        batch: BatchNumber,
    },
    /// The blocking half of the lane broke down: a fault of ours.
    #[error("the lane's run broke down: {0}")]
    Broken(String),
}

impl LaneError {
    /// Whether the same may work later without anybody's doing.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Journal(error) => error.disposition(),
            Self::Later { .. } | Self::Fix { .. } | Self::Broken(_) => Disposition::Retry,
            Self::Codec(_) | Self::Parked { .. } | Self::Content { .. } => Disposition::Fatal,
        }
    }
}
