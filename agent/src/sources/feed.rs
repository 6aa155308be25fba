//! Hands appends to the journal without waiting for each to be durable, and counts what is.
//!
//! After an error a feed takes nothing more. One that keeps then has everything that is not durable, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{SourceCounters, SourceError};
use crate::journal::{Append, AppendError, Appender, Pending};
use crate::limits::{APPENDS_KEPT_BYTES_MAX, APPENDS_PENDING_MAX};

/// An append on its way, with what it counts.
struct Underway {
    durable: BoxFuture<'static, Result<(), AppendError>>,
    records: u64,
    bytes: u64,
    kept: Option<Append>,
}

pub(super) struct Feed {
    appender: Appender,
    counters: Arc<SourceCounters>,
    underway: VecDeque<Underway>,
    keeps: bool,
    kept_bytes: usize,
}

impl Feed {
    pub(super) fn new(appender: Appender, counters: Arc<SourceCounters>) -> Self {
        Self { appender, counters, underway: VecDeque::new(), keeps: false, kept_bytes: 0 }
    }

    /// One that keeps each append until it is durable, for a source that cannot read it again.
    pub(super) fn keeping(appender: Appender, counters: Arc<SourceCounters>) -> Self {
        Self { keeps: true, ..Self::new(appender, counters) }
    }

    /// What is not durable: after a failure, everything that is to be handed in again.
    pub(super) fn into_kept(self) -> VecDeque<Append> {
        self.underway.into_iter().filter_map(|underway| underway.kept).collect()
    }

    /// Submits an append, waiting while the journal is behind. An error may be one of an append before.
    pub(super) async fn push(&mut self, append: Append) -> Result<(), SourceError> {
        let (records, bytes) = (u64::from(append.frames.count()), append.frames.len() as u64);
        let kept = self.keeps.then(|| copy(&append));
        let submitted = self.submit(append).await;
        let (durable, result) = match submitted {
            Ok(pending) => (pending.durable().boxed(), Ok(())),
            // It was not handed over, only kept.
            Err(error) => (std::future::pending().boxed(), Err(error)),
        };
        self.kept_bytes += kept.as_ref().map_or(0, size);
        self.underway.push_back(Underway { durable, records, bytes, kept });
        result
    }

    async fn submit(&mut self, append: Append) -> Result<Pending, SourceError> {
        self.settle_ready()?;
        let kept_bytes = if self.keeps { size(&append) } else { 0 };
        while self.underway.len() >= APPENDS_PENDING_MAX
            || (self.kept_bytes > 0 && self.kept_bytes + kept_bytes > APPENDS_KEPT_BYTES_MAX)
        {
            self.settle_next().await?;
        }
        Ok(self.appender.submit(append).await?)
    }

    /// Waits until everything that was pushed is durable.
    pub(super) async fn drain(&mut self) -> Result<(), SourceError> {
        while !self.underway.is_empty() {
            self.settle_next().await?;
        }
        Ok(())
    }

    /// Waits until the oldest append is durable; for ever when nothing is on its way.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    #[cfg(any(feature = "journald", feature = "sockets"))]
    pub(super) async fn settled(&mut self) -> Result<(), SourceError> {
        if self.underway.is_empty() {
            return std::future::pending().await;
        }
        self.settle_next().await
    }

    fn settle_ready(&mut self) -> Result<(), SourceError> {
        while let Some(first) = self.underway.front_mut() {
            let Some(result) = (&mut first.durable).now_or_never() else { break };
            self.settle(result)?;
        }
        Ok(())
    }

    async fn settle_next(&mut self) -> Result<(), SourceError> {
        if let Some(first) = self.underway.front_mut() {
            let result = (&mut first.durable).await;
            self.settle(result)?;
        }
        Ok(())
    }

    fn settle(&mut self, result: Result<(), AppendError>) -> Result<(), SourceError> {
        // One that failed stays, for `into_kept`.
        result?;
        if let Some(done) = self.underway.pop_front() {
            self.kept_bytes -= done.kept.as_ref().map_or(0, size);
            self.counters.records.fetch_add(done.records, Ordering::Relaxed);
            self.counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn size(append: &Append) -> usize {
    append.frames.len() + append.letters.iter().map(|letter| letter.payload.len()).sum::<usize>()
}

fn copy(append: &Append) -> Append {
    Append {
        frames: append.frames.clone(),
        positions: append.positions.clone(),
        letters: append.letters.clone(),
    }
}
