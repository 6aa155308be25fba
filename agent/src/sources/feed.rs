//! Hands appends to the journal without waiting for each to be durable, and counts what is.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::{SourceCounters, SourceError};
use crate::journal::{Append, AppendError, Appender};
use crate::limits::APPENDS_PENDING_MAX;

/// An append on its way, with what it counts.
struct Underway {
    durable: BoxFuture<'static, Result<(), AppendError>>,
    records: u64,
    bytes: u64,
}

pub(super) struct Feed {
    appender: Appender,
    counters: Arc<SourceCounters>,
    underway: VecDeque<Underway>,
}

impl Feed {
    pub(super) fn new(appender: Appender, counters: Arc<SourceCounters>) -> Self {
        Self { appender, counters, underway: VecDeque::new() }
    }

    /// Submits an append, waiting while the journal is behind. An error may be one of an append before.
    pub(super) async fn push(&mut self, append: Append) -> Result<(), SourceError> {
        self.settle_ready()?;
        while self.underway.len() >= APPENDS_PENDING_MAX {
            self.settle_next().await?;
        }
        let (records, bytes) = (u64::from(append.frames.count()), append.frames.len() as u64);
        let pending = self.appender.submit(append).await?;
        self.underway.push_back(Underway { durable: pending.durable().boxed(), records, bytes });
        Ok(())
    }

    /// Waits until everything that was pushed is durable.
    pub(super) async fn drain(&mut self) -> Result<(), SourceError> {
        while !self.underway.is_empty() {
            self.settle_next().await?;
        }
        Ok(())
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
        let done = self.underway.pop_front();
        result?;
        if let Some(done) = done {
            self.counters.records.fetch_add(done.records, Ordering::Relaxed);
            self.counters.bytes.fetch_add(done.bytes, Ordering::Relaxed);
        }
        Ok(())
    }
}
