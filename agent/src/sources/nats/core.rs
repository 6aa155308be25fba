//! Subscriptions without JetStream: each message at most once.
//!
//! Nobody is told what was stored, and nothing comes again. Lost are messages that are published while the source is not
//! connected, those that are not durable when the process is killed, and those for which there is no room: while the journal
//! takes nothing 4 MiB wait (`NATS_WAITING_BYTES_MAX`), and what comes then is dropped and counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures_util::stream::SelectAll;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, sleep};

use super::Ending;
use super::error::NatsSourceError;
use super::message::Renderer;
use super::session::{ROOM_LOOK, check, ticks};
use crate::clock::SharedClock;
use crate::journal::Appender;
use crate::limits::{NATS_STOP_MS_MAX, NATS_WAITING_BYTES_MAX};
use crate::net::nats::{LinkState, NatsLink};
use crate::sources::SourceCounters;
use crate::sources::collect::Line;
use crate::sources::intake::Intake;
use crate::tasks::Shutdown;

/// Messages that are taken out of the client at once.
const TURN: usize = 256;

/// Subscriptions, and what belongs to them.
pub(super) struct Core<'s> {
    pub(super) link: &'s NatsLink,
    pub(super) clock: &'s SharedClock,
    pub(super) counters: &'s SourceCounters,
    pub(super) appender: Arc<Appender>,
    pub(super) intake: &'s mut Intake<()>,
    pub(super) renderer: &'s mut Renderer,
    pub(super) messages: SelectAll<Subscriber>,
    pub(super) waiting: VecDeque<Message>,
    pub(super) waiting_bytes: usize,
    /// Messages that were gathered, and those of them that are durable.
    pub(super) taken: u64,
    pub(super) durable: u64,
    /// What the client itself had dropped when it was looked at last.
    pub(super) overruns: u64,
}

impl Core<'_> {
    /// Takes messages until asked to stop or the session ends; then what was taken is handed over. What the journal fails on is
    /// dropped; what was not given to it yet still waits then, and the subscriptions stand.
    pub(super) async fn run(
        &mut self,
        began: &LinkState,
        shutdown: &Shutdown,
    ) -> Result<Ending, NatsSourceError> {
        let mut link = self.link.watch();
        let mut room = ticks(ROOM_LOOK);
        let mut ending: Option<Ending> = None;
        let mut deadline = Box::pin(sleep(Duration::MAX));
        let stop_wait = Duration::from_millis(NATS_STOP_MS_MAX);
        loop {
            let is_failing = matches!(ending, Some(Ending::Failed(_)));
            if !is_failing {
                self.take_in();
            }
            let is_open = ending.is_none();
            let is_taken = is_failing || self.waiting.is_empty();
            if !is_open && is_taken && self.intake.is_idle() {
                self.dropped(self.taken - self.durable);
                return Ok(ending.unwrap_or(Ending::Stopped));
            }
            let mut ends = None;
            tokio::select! {
                biased;
                () = shutdown.requested(), if is_open => ends = Some(Ending::Stopped),
                changed = link.changed(), if is_open => {
                    let result = check(&mut link, changed.is_ok(), began);
                    self.overrun(link.borrow().overruns);
                    ends = result.err().map(Ending::Lost);
                }
                answers = self.intake.step() => match answers {
                    Ok(answers) => self.durable += answers.len() as u64,
                    // What stands before it may be durable, and counts then.
                    Err(error) => {
                        self.intake.give_up();
                        ends = Some(Ending::Failed(error.into()));
                    }
                },
                () = &mut deadline, if !is_open => {
                    let waiting = self.waiting.len() as u64;
                    self.dropped(waiting + self.taken - self.durable);
                    return Ok(ending.unwrap_or(Ending::Stopped));
                }
                _ = room.tick(), if self.appender.full().is_some() => {}
                message = self.messages.next(), if is_open => match message {
                    Some(message) => self.arrived(message),
                    None => ends = Some(Ending::Lost(NatsSourceError::Stuck)),
                },
            }
            if let Some(reason) = ends {
                ending = Some(reason);
                deadline.as_mut().reset(Instant::now() + stop_wait);
            }
        }
    }

    fn arrived(&mut self, first: Message) {
        let mut next = Some(first);
        for _ in 0..TURN {
            let Some(message) = next else { return };
            let bytes = message.payload.len();
            // One is always let through, however large.
            if !self.waiting.is_empty() && self.waiting_bytes + bytes > NATS_WAITING_BYTES_MAX {
                self.dropped(1);
            } else {
                self.waiting_bytes += bytes;
                self.waiting.push_back(message);
            }
            next = self.messages.next().now_or_never().flatten();
        }
    }

    /// Gathers what waits, as far as it fits, and hands it over.
    fn take_in(&mut self) {
        loop {
            while let Some(message) = self.waiting.pop_front() {
                let bytes = message.payload.len();
                let beside = self.renderer.render(&message);
                if !self.intake.has_room(bytes, beside) {
                    self.waiting.push_front(message);
                    break;
                }
                self.waiting_bytes -= bytes;
                let line = Line {
                    time: self.clock.now(),
                    subject: &self.renderer.subject,
                    headers: self.renderer.headers.as_headers(),
                    head: &message.payload,
                    size: bytes as u64,
                };
                let place = || format!("NATS subject {}", message.subject);
                self.intake.message(line, place, Some(()));
                self.taken += 1;
            }
            // What a full journal would refuse waits here, and what comes then is dropped and counted.
            let is_full = self.appender.full().is_some();
            if is_full || !self.intake.hand_over() || self.waiting.is_empty() {
                return;
            }
        }
    }

    /// The client has dropped messages, which came faster than they were taken out of it.
    fn overrun(&mut self, now: u64) {
        let new = now.saturating_sub(self.overruns);
        self.overruns = now;
        self.dropped(new);
    }

    fn dropped(&self, count: u64) {
        let before = self.counters.messages_dropped.fetch_add(count, Ordering::Relaxed);
        if count > 0 && before == 0 {
            tracing::warn!(
                "Messages of a subscription are dropped, the journal does not take them; others are counted without a word"
            );
        }
    }
}
