//! A task in which one worker follows another: the one that is there is asked to stop and waited for, then the next begins.
//!
//! So two of them never work at the same place at once, and what one relay waits for holds up no other.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::tasks::Shutdown;

/// What a worker does until it is asked to stop.
pub(super) type Work<T> =
    Box<dyn FnOnce(Shutdown) -> Pin<Box<dyn Future<Output = T> + Send>> + Send>;

/// Kept by each change that is under way, dropped when it is done.
pub(super) type UnderWay = mpsc::Sender<()>;

/// What follows.
pub(super) struct Turn<T> {
    /// The next worker; none: the place is given up.
    pub(super) work: Option<Work<T>>,
    /// How long the one before may take to stop.
    pub(super) grace: Duration,
    pub(super) under_way: UnderWay,
}

/// The way to a relay. One turn is under way at a time.
pub(super) type Turns<T> = mpsc::Sender<Turn<T>>;

/// A relay is told of one turn at a time.
pub(super) fn turns<T>() -> (Turns<T>, mpsc::Receiver<Turn<T>>) {
    mpsc::channel(1)
}

/// How a relay came to its end.
pub(super) struct Over<T> {
    /// What the last worker ended with, when it ended by itself; none when its place was given up.
    pub(super) end: Option<T>,
    /// The turn that came too late for the relay: somebody else has to take it.
    pub(super) missed: Option<Turn<T>>,
}

impl<T: fmt::Debug> fmt::Debug for Over<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Over").field("end", &self.end).finish_non_exhaustive()
    }
}

/// Works until the worker ends by itself or its place is given up.
pub(super) async fn run<T>(
    first: Work<T>,
    mut turns: mpsc::Receiver<Turn<T>>,
    shutdown: Shutdown,
) -> Over<T> {
    let mut work = first;
    loop {
        let stop = shutdown.child();
        let mut working = work(stop.clone());
        let turn = tokio::select! {
            end = &mut working => {
                // From here on a turn is refused at once.
                turns.close();
                return Over { end: Some(end), missed: turns.try_recv().ok() };
            }
            Some(turn) = turns.recv() => turn,
        };
        stop.request();
        if tokio::time::timeout(turn.grace, working).await.is_err() {
            tracing::warn!("Not at a boundary in time, taken over at once; nothing is lost");
        }
        drop(turn.under_way);
        match turn.work {
            Some(next) => work = next,
            None => return Over { end: None, missed: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn worker(log: &Log, name: [&'static str; 2], stops_after: Option<u64>) -> Work<u32> {
        let log = Arc::clone(log);
        Box::new(move |stop| {
            Box::pin(async move {
                log.lock().unwrap().push(name[0]);
                stop.requested().await;
                match stops_after {
                    Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                    None => std::future::pending().await,
                }
                log.lock().unwrap().push(name[1]);
                7
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_one_begins_when_the_one_before_has_ended_or_its_time_is_over() {
        let log = Log::default();
        let (sender, receiver) = turns();
        let shutdown = Shutdown::new();
        let first = worker(&log, ["first begins", "first ends"], Some(500));
        let mut group = crate::tasks::TaskGroup::default();
        group.spawn("relay", tracing::Span::none(), run(first, receiver, shutdown.clone()));
        let grace = Duration::from_secs(1);
        for (work, takes_ms) in [
            (Some(worker(&log, ["hung begins", "hung ends"], None)), 500),
            (Some(worker(&log, ["last begins", "last ends"], Some(0))), 1000),
            (None, 0),
        ] {
            tokio::task::yield_now().await;
            let begun = tokio::time::Instant::now();
            let (under_way, mut done) = mpsc::channel(1);
            assert!(sender.try_send(Turn { work, grace, under_way }).is_ok());
            assert_eq!(done.recv().await, None);
            let took = begun.elapsed().as_millis();
            assert!((takes_ms..takes_ms + 20).contains(&took), "{took}");
        }
        let over = group.next_ended().await.unwrap().result.unwrap();
        assert!(over.end.is_none() && over.missed.is_none());
        let told = log.lock().unwrap().clone();
        assert_eq!(told, ["first begins", "first ends", "hung begins", "last begins", "last ends"]);
        assert!(sender.is_closed(), "a place that was given up takes no turn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_of_everything_ends_it_with_what_its_worker_ends_with() {
        let log = Log::default();
        let (_sender, receiver) = turns();
        let shutdown = Shutdown::new();
        let only = worker(&log, ["begins", "ends"], Some(1));
        shutdown.request();
        assert_eq!(run(only, receiver, shutdown).await.end, Some(7));
    }

    #[tokio::test]
    async fn a_turn_that_comes_when_the_worker_has_ended_is_handed_back() {
        let (sender, receiver) = turns();
        let (under_way, _done) = mpsc::channel(1);
        let turn = Turn { work: None, grace: Duration::ZERO, under_way };
        let early: Work<u32> = Box::new(move |_| {
            Box::pin(async move {
                assert!(sender.try_send(turn).is_ok());
                7
            })
        });
        let over = run(early, receiver, Shutdown::new()).await;
        assert!(over.end == Some(7) && over.missed.is_some());
    }
}
