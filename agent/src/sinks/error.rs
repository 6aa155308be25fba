//! Why a delivery failed, and of which class that is.

/// What a failed attempt means for the lane. The observation is the sink's; what is done about it is the lane's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The destination takes nothing from anybody now: hold and probe. Spends no budget.
    Unreachable,
    /// This attempt failed, or nobody knows its outcome: the same batch again.
    Retryable,
    /// The destination refuses this content for good.
    Rejected,
    /// The destination holds other content under this identity.
    Conflict,
}

impl Class {
    /// The word in logs, metrics and status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Retryable => "retryable",
            Self::Rejected => "rejected",
            Self::Conflict => "conflict",
        }
    }
}

/// A failed attempt. The text holds no payload and no secret.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct SinkError {
    /// What the lane goes by.
    pub class: Class,
    /// What failed, with its path, subject or address.
    pub reason: String,
    /// What the destination asked to wait, if it did.
    pub retry_after: Option<std::time::Duration>,
    /// Whether nobody will take anything any more while this process lives, as behind a broken pipe: the lane ends.
    pub is_final: bool,
    /// Whether the destination itself answered: only answers spend the retry budget.
    pub answered: bool,
    /// Whether this may be an outage or the batch's own fault (502, 503, 504, silence): an outage, as long as the destination
    /// has not meanwhile served anybody else.
    pub doubtful: bool,
    /// What caused it, if that says more.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SinkError {
    /// A failure of a class without a deeper cause.
    pub fn new(class: Class, reason: impl Into<String>) -> Self {
        Self {
            class,
            reason: reason.into(),
            retry_after: None,
            is_final: false,
            answered: false,
            doubtful: false,
            source: None,
        }
    }

    /// The same as an answer of the destination itself.
    #[must_use]
    pub fn answered(mut self) -> Self {
        self.answered = true;
        self
    }

    /// The same, of which nobody can tell whether the destination is away or the batch is at fault.
    #[must_use]
    pub fn doubtful(mut self) -> Self {
        self.doubtful = true;
        self
    }

    /// The same for good.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        self.is_final = true;
        self
    }

    /// The same with its cause.
    #[must_use]
    pub fn caused_by(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }
}
