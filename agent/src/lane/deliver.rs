//! Sends what was sealed, one batch after the other: attempt, class, wait, until the destination has it.

use std::sync::Arc;
use std::time::Duration;

use super::retry::{Decision, decide};
use super::status::{LaneState, LaneStatus};
use crate::clock::{SharedClock, Timestamp};
use crate::error_chain::Chain;
use crate::record::batch::SealedBatch;
use crate::sinks::config::RetryConfig;
use crate::sinks::{Class, Delivered, Sink, SinkError, Throttle};
use crate::tasks::Shutdown;

/// The delivering half of a lane.
pub(super) struct Deliverer {
    pub(super) sink: Box<dyn Sink>,
    pub(super) retry: RetryConfig,
    pub(super) status: Arc<LaneStatus>,
    pub(super) clock: SharedClock,
    /// True while the lane holds: nothing more is sealed then.
    pub(super) holding: tokio::sync::watch::Sender<bool>,
    pub(super) failures: u32,
    pub(super) failing_since: Option<Timestamp>,
}

impl Deliverer {
    /// Delivers one batch, however long it takes. `None` when asked to stop before it was delivered, or when the sink says
    /// that nobody will take anything any more.
    pub(super) async fn deliver(
        &mut self,
        batch: &SealedBatch,
        shutdown: &Shutdown,
    ) -> Option<Delivered> {
        let mut attempt = 0;
        while !shutdown.is_requested() {
            attempt += 1;
            let error = match self.attempt(batch, attempt).await {
                Ok(delivered) => {
                    self.succeeded(&delivered);
                    return Some(delivered);
                }
                Err(error) if error.is_final => {
                    tracing::info!(reason = %error, "Lane ends, its records stay queued");
                    return None;
                }
                Err(error) => error,
            };
            let mut decision = self.failed(batch, &error);
            loop {
                let (Decision::Again(wait) | Decision::Probe(wait) | Decision::Hold(wait)) =
                    decision;
                if !shutdown.sleep(wait).await {
                    return None;
                }
                if !matches!(decision, Decision::Probe(_)) {
                    break;
                }
                match self.probe().await {
                    Ok(()) => break,
                    Err(error) => decision = self.failed(batch, &error),
                }
            }
        }
        None
    }

    async fn attempt(&mut self, batch: &SealedBatch, attempt: u32) -> Result<Delivered, SinkError> {
        let timeout = self.retry.attempt_timeout;
        let throttle = self.sink.throttle();
        let delivered = within(timeout, &throttle, self.sink.deliver(batch, attempt)).await?;
        // The batch stays as it is until its outcome can be recorded record by record.
        match delivered.refused.first() {
            None => Ok(delivered),
            Some(refused) => {
                Err(SinkError::new(Class::Rejected, refused.reason.clone()).answered())
            }
        }
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        within(self.retry.attempt_timeout, &Throttle::default(), self.sink.probe()).await
    }

    fn succeeded(&mut self, delivered: &Delivered) {
        self.status.counters.delivered(delivered);
        if let Some(since) = self.failing_since.take() {
            let outage_s = self.clock.now().since(since).as_secs();
            tracing::info!(failures = self.failures, outage_s, "Destination takes batches again");
        }
        self.failures = 0;
        self.status.set(LaneState::Running);
        self.holding.send_replace(false);
    }

    fn failed(&mut self, batch: &SealedBatch, error: &SinkError) -> Decision {
        self.failures = self.failures.saturating_add(1);
        self.status.counters.failed(error.class);
        let since = *self.failing_since.get_or_insert_with(|| self.clock.now());
        let decision = decide(error, self.failures, &self.retry.backoff);
        let reason = Chain(error).to_string();
        let state = match decision {
            Decision::Again(_) => LaneState::Retrying { class: error.class, reason, since },
            Decision::Probe(_) | Decision::Hold(_) => {
                LaneState::Holding { cause: error.class.as_str(), reason, since }
            }
        };
        let holds = matches!(state, LaneState::Holding { .. });
        let changed = self.status.set(state);
        self.holding.send_replace(holds);
        let batch = batch.facts.identity();
        if changed {
            let class = error.class.as_str();
            tracing::warn!(batch, class, error = %Chain(error), "Delivery failed, the batch stays queued");
        } else {
            tracing::debug!(batch, failures = self.failures, error = %Chain(error), "Delivery failed again");
        }
        decision
    }
}

async fn within<T>(
    timeout: Duration,
    throttle: &Throttle,
    attempt: impl Future<Output = Result<T, SinkError>>,
) -> Result<T, SinkError> {
    match throttle.within(timeout, attempt).await {
        Some(result) => result,
        None => {
            let timeout = crate::units::format_duration(timeout);
            let reason = format!("no answer within {timeout}, the outcome is unknown");
            Err(SinkError::new(Class::Retryable, reason).doubtful())
        }
    }
}
