//! Hands messages to the journal, and gives back the answers to those that are durable, in the order of the messages.
//!
//! Like a feed (`sources/feed.rs`), but nothing here waits in place: the connection's pings, and the answers to what is durable
//! already, go on while the journal takes nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::SourceCounters;
use super::collect::{Collector, Line};
use crate::journal::{Append, AppendError, Appender, Pending};
use crate::limits::APPENDS_PENDING_MAX;

/// What an append counts, and what its messages are answered when it is durable.
struct Account<A> {
    records: u64,
    bytes: u64,
    answers: Vec<A>,
}

/// An append that is being handed over, and one that is to become durable.
type Leaving<A> = (BoxFuture<'static, Result<Pending, AppendError>>, Account<A>);
type Underway<A> = (BoxFuture<'static, Result<(), AppendError>>, Account<A>);

/// What is on its way, with an answer `A` for each message that waits for one.
pub(super) struct Intake<A> {
    appender: Arc<Appender>,
    counters: Arc<SourceCounters>,
    /// What is gathered, and its answers.
    collector: Collector,
    answers: Vec<A>,
    /// What is being handed over, while the journal is behind or full.
    leaving: Option<Leaving<A>>,
    underway: VecDeque<Underway<A>>,
    /// Answers to what had nothing to store, with nothing before it.
    ready: Vec<A>,
}

impl<A> Intake<A> {
    pub(super) fn new(
        appender: Arc<Appender>,
        collector: Collector,
        counters: Arc<SourceCounters>,
    ) -> Self {
        Self {
            appender,
            counters,
            collector,
            answers: Vec::new(),
            leaving: None,
            underway: VecDeque::new(),
            ready: Vec::new(),
        }
    }

    /// Whether a message of this size still fits what is gathered, with so many bytes of subject and headers.
    pub(super) fn has_room(&self, payload_bytes: usize, beside: usize) -> bool {
        self.collector.has_room(payload_bytes, beside)
    }

    /// Takes a message, to be answered when it is durable.
    pub(super) fn message(
        &mut self,
        line: Line<'_>,
        place: impl FnOnce() -> String,
        answer: Option<A>,
    ) {
        self.collector.message(line, place);
        self.answers.extend(answer);
    }

    /// Sets a position as of behind the last message.
    pub(super) fn position(&mut self, key: String, value: Option<Vec<u8>>) {
        self.collector.position(key, value);
    }

    /// Answers once everything before is durable.
    #[cfg(feature = "mqtt")]
    pub(super) fn answer(&mut self, answer: A) {
        self.answers.push(answer);
    }

    /// Whether [`Self::hand_over`] would begin now, if something was gathered.
    pub(super) fn is_ready(&self) -> bool {
        self.leaving.is_none() && self.underway.len() < APPENDS_PENDING_MAX
    }

    /// The answers that wait for the journal, oldest last.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = &A> {
        let leaving = self.leaving.iter().flat_map(|(_, account)| &account.answers);
        let underway = self.underway.iter().flat_map(|(_, account)| &account.answers);
        self.answers.iter().chain(leaving).chain(underway)
    }

    /// Begins to hand over what is gathered; false when there is nothing, or something is being handed over already.
    pub(super) fn hand_over(&mut self) -> bool {
        if !self.is_ready() {
            return false;
        }
        let answers = std::mem::take(&mut self.answers);
        let Some(append) = self.collector.take() else {
            match self.underway.back_mut() {
                Some((_, account)) => account.answers.extend(answers),
                None => self.ready.extend(answers),
            }
            return false;
        };
        let account = account(&append, answers);
        let appender = Arc::clone(&self.appender);
        let leaving = async move { appender.submit(append).await }.boxed();
        self.leaving = Some((leaving, account));
        true
    }

    /// Whether everything that was taken is durable and answered.
    pub(super) fn is_idle(&self) -> bool {
        let is_behind = self.leaving.is_some() || !self.underway.is_empty();
        !is_behind && self.ready.is_empty() && self.answers.is_empty()
    }

    /// Waits until something is handed over or durable; gives the answers that can be sent.
    ///
    /// # Cancel safety
    /// Can be dropped.
    pub(super) async fn step(&mut self) -> Result<Vec<A>, AppendError> {
        if !self.ready.is_empty() {
            return Ok(std::mem::take(&mut self.ready));
        }
        tokio::select! {
            biased;
            result = next(&mut self.underway) => {
                // When one fails, so do all behind it.
                result.inspect_err(|_| self.underway.clear())?;
                Ok(self.settle())
            }
            result = handed(&mut self.leaving) => {
                let leaving = self.leaving.take();
                let pending = result?;
                if let Some((_, account)) = leaving {
                    self.underway.push_back((pending.durable().boxed(), account));
                }
                Ok(Vec::new())
            }
        }
    }

    /// Gives up what the journal was not given, or has refused; what it has goes on.
    pub(super) fn give_up(&mut self) {
        self.leaving = None;
        self.answers.clear();
        drop(self.collector.take());
    }

    /// Waits for what the journal has, so that it is counted. What was not handed over is given up, and so are the answers.
    pub(super) async fn drain(mut self) -> Result<(), AppendError> {
        self.give_up();
        while !self.underway.is_empty() {
            next(&mut self.underway).await?;
            let _unsent = self.settle();
        }
        Ok(())
    }

    fn settle(&mut self) -> Vec<A> {
        let Some((_, account)) = self.underway.pop_front() else { return Vec::new() };
        self.counters.records.fetch_add(account.records, Ordering::Relaxed);
        self.counters.bytes.fetch_add(account.bytes, Ordering::Relaxed);
        account.answers
    }
}

fn account<A>(append: &Append, answers: Vec<A>) -> Account<A> {
    let records = u64::from(append.frames.count());
    Account { records, bytes: append.frames.len() as u64, answers }
}

/// The first of what is under way; for ever when nothing is.
async fn next<A>(underway: &mut VecDeque<Underway<A>>) -> Result<(), AppendError> {
    match underway.front_mut() {
        Some((durable, _)) => durable.await,
        None => std::future::pending().await,
    }
}

/// What is being handed over; for ever when nothing is.
async fn handed<A>(leaving: &mut Option<Leaving<A>>) -> Result<Pending, AppendError> {
    match leaving {
        Some((leaving, _)) => leaving.await,
        None => std::future::pending().await,
    }
}
