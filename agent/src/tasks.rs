//! The only place that spawns tasks.
//!
//! A [`TaskGroup`] owns named tasks. Stopping asks them all through one [`Shutdown`], waits up to a deadline while naming the
//! stragglers, and aborts what is left. A task that ends is reported by name, so that nobody ends unnoticed.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How often a stop names who is left.
const STRAGGLERS_EVERY: Duration = Duration::from_secs(5);

/// A request to stop that reaches every clone and child.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A request that nobody has made yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everybody to stop. Can be repeated.
    pub fn request(&self) {
        self.0.cancel();
    }

    /// Whether stopping was asked for.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until stopping is asked for.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// One that is asked when this one is, and can be asked alone.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Sleeps, or returns false at once when stopping is asked for meanwhile.
    ///
    /// # Cancel safety
    /// Can be dropped.
    pub async fn sleep(&self, duration: Duration) -> bool {
        tokio::select! {
            () = self.0.cancelled() => false,
            () = tokio::time::sleep(duration) => true,
        }
    }
}

/// How a task ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// The name it was spawned with.
    pub name: String,
    /// What it returned; `None` when it panicked or was aborted.
    pub result: Option<T>,
}

/// Named tasks that end together. Dropping it aborts them.
#[derive(Debug)]
pub struct TaskGroup<T> {
    tasks: JoinSet<T>,
    names: HashMap<Id, String>,
}

impl<T: Send + 'static> Default for TaskGroup<T> {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), names: HashMap::new() }
    }
}

impl<T: Send + 'static> TaskGroup<T> {
    /// Spawns a task under a name and a span.
    pub fn spawn<F>(&mut self, name: impl Into<String>, span: tracing::Span, future: F)
    where
        F: Future<Output = T> + Send + 'static,
    {
        let handle = self.tasks.spawn(future.instrument(span));
        self.names.insert(handle.id(), name.into());
    }

    /// Whether no task is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// The next task that ends, or `None` when none is left.
    ///
    /// # Cancel safety
    /// Can be dropped and called again; no end is missed.
    pub async fn next_ended(&mut self) -> Option<Ended<T>> {
        let (id, result) = match self.tasks.join_next_with_id().await? {
            Ok((id, value)) => (id, Some(value)),
            Err(error) => (error.id(), None),
        };
        let name = self.names.remove(&id).unwrap_or_default();
        Some(Ended { name, result })
    }

    /// Waits for all tasks up to `grace`, says every five seconds who is left, then aborts the rest.
    ///
    /// Returns how the tasks ended and the names of those that had to be aborted.
    pub async fn drain(mut self, grace: Duration) -> (Vec<Ended<T>>, Vec<String>) {
        let deadline = tokio::time::Instant::now() + grace;
        let mut ended = Vec::new();
        while !self.tasks.is_empty() {
            let wake = (tokio::time::Instant::now() + STRAGGLERS_EVERY).min(deadline);
            match tokio::time::timeout_at(wake, self.next_ended()).await {
                Ok(Some(one)) => ended.push(one),
                Ok(None) => break,
                Err(_) if wake >= deadline => break,
                Err(_) => tracing::warn!(waiting_for = ?self.left(), "Tasks are still stopping"),
            }
        }
        let aborted = self.left();
        self.tasks.shutdown().await;
        (ended, aborted)
    }

    fn left(&self) -> Vec<String> {
        let mut names: Vec<_> = self.names.values().cloned().collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_waits_for_the_willing_and_aborts_and_names_the_rest() {
        let shutdown = Shutdown::new();
        let mut group = TaskGroup::default();
        let asked = shutdown.clone();
        group.spawn("willing", tracing::Span::none(), async move {
            asked.requested().await;
            1
        });
        group.spawn("stuck", tracing::Span::none(), std::future::pending());
        shutdown.request();
        let (ended, aborted) = group.drain(Duration::from_secs(12)).await;
        assert_eq!(ended.len(), 1);
        assert_eq!((ended[0].name.as_str(), ended[0].result), ("willing", Some(1)));
        assert_eq!(aborted, ["stuck"]);
    }

    #[tokio::test]
    async fn a_panic_is_an_end_with_a_name_and_without_a_result() {
        let mut group = TaskGroup::<()>::default();
        group.spawn("broken", tracing::Span::none(), async { panic!("planted") });
        let ended = group.next_ended().await.unwrap();
        assert_eq!((ended.name.as_str(), ended.result), ("broken", None));
    }
}
