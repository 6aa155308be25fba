//! What stops a lane's session, and what is done about it.

use crate::journal::{Disposition, JournalError};
use crate::record::id::{BatchNumber, Seq, TransformId};
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
    /// What is sealed cannot be read back.
    #[error("a sealed batch cannot be read")]
    Read(#[source] crate::record::batch::ReadError),
    /// The output of a run is larger than a batch may be; the range is run in smaller pieces.
    #[error("the plugins made more of a batch than a batch may hold")]
    OutputTooLarge,
    /// A record would be the first of one file too many; the range ends before it.
    #[error("the batch has more files than a batch may have")]
    TooManyPartitions {
        /// The record.
        seq: Seq,
    },
    /// Dead letters make other content than the batch that they fell out of had.
    #[error("dead letters of batch {batch} are not what it was sealed with")]
    OtherContent {
        /// The batch's identity.
        batch: String,
    },
    /// An order asks for what is done between two sessions: a new number for a batch, or a replay.
    #[error("it carries out an order")]
    Ordered,
    /// The lane was asked to stop in the middle of a run, which has changed nothing.
    #[error("the run was interrupted")]
    Interrupted,
    /// The blocking half of the lane broke down: a fault of ours.
    #[error("the lane's run broke down: {0}")]
    Broken(String),
}

impl LaneError {
    /// The word for why the lane holds, in status and metrics.
    #[must_use]
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Parked { .. } | Self::Later { .. } | Self::OutputTooLarge => "plugin",
            Self::Fix { .. } => "name",
            Self::Journal(error) if error.is_letters_full() => "dead_letters",
            Self::Journal(_) | Self::Codec(_) | Self::Read(_) => "journal",
            Self::TooManyPartitions { .. }
            | Self::Interrupted
            | Self::OtherContent { .. }
            | Self::Ordered
            | Self::Broken(_) => "internal",
        }
    }

    /// Whether the lane only has to begin anew: a policy has given up what it was working on, or an order is carried out.
    #[must_use]
    pub fn is_overtaken(&self) -> bool {
        match self {
            Self::Journal(error) => error.is_overtaken(),
            Self::Ordered => true,
            _ => false,
        }
    }

    /// Whether the same may work later without anybody's doing.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Journal(error) => error.disposition(),
            Self::Later { .. }
            | Self::Fix { .. }
            | Self::Read(_)
            | Self::OutputTooLarge
            | Self::TooManyPartitions { .. }
            | Self::Interrupted
            | Self::OtherContent { .. }
            | Self::Ordered
            | Self::Broken(_) => Disposition::Retry,
            Self::Codec(_) | Self::Parked { .. } => Disposition::Fatal,
        }
    }
}
