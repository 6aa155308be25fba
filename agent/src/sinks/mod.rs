//! Sinks deliver sealed batches. They know nothing of retries, cursors or the journal: they report what they saw.

pub mod config;
mod error;
pub mod file;
pub mod nats;

use std::sync::Arc;

use async_trait::async_trait;

pub use error::{Class, SinkError};

use crate::record::batch::{BatchFacts, SealedBatch};

/// What a delivery achieved: everything in the batch is durable at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "a batch counts as delivered only through this"]
pub struct Delivered {
    /// Records of the batch.
    pub records: u64,
    /// Records (or, for a file, all of them) that the destination had already: a repeat that it recognised.
    pub already: u64,
    /// Bytes that went out, as they were on the wire or in the file.
    pub bytes: u64,
    /// Files written; zero for sinks that write none.
    pub files: u64,
    /// Records stored behind one that failed at first, inside one publish window.
    pub reordered: u64,
}

/// One lane's way to a destination. Made by [`SinkBuilder::build`], used by one lane only.
#[async_trait]
pub trait Sink: Send {
    /// Delivers the whole batch or reports why not. The same batch may come again, after any outcome but success.
    ///
    /// # Errors
    /// Of one of the four classes; what was delivered before the error stays delivered.
    ///
    /// # Cancel safety
    /// Dropping the future leaves an attempt with an unknown outcome, which the next attempt settles.
    async fn deliver(&mut self, batch: &SealedBatch, attempt: u32) -> Result<Delivered, SinkError>;

    /// Asks cheaply whether the destination would take a batch now.
    ///
    /// # Errors
    /// With the class that a delivery would meet.
    async fn probe(&mut self) -> Result<(), SinkError>;
}

/// One configured sink: shared by the lanes that use it.
#[async_trait]
pub trait SinkBuilder: Send + Sync + std::fmt::Debug {
    /// The word for `type` in the config.
    fn kind(&self) -> &'static str;

    /// What is fixed for a batch when it is sealed (file name, format, encoding, subject template), as JSON. Pure: it is
    /// stored with the batch and given back with every attempt, whatever the config says by then.
    ///
    /// # Errors
    /// [`Class::Rejected`] when no valid name can be made.
    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError>;

    /// Makes one lane's instance. Connects to nothing: an absent destination must not keep the agent from starting.
    fn build(&self) -> Box<dyn Sink>;
}
