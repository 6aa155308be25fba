//! A consumer's messages into the journal, from one look at the stream to the end of the session.
//!
//! 1. Messages are asked for as far as there is room (`fetch`), and for none while the journal is full.
//! 2. What comes is gathered into an append, together with the set of what is stored (`stored`); as soon as nothing else is being
//!    handed to the journal, that is. A journal that is behind makes appends larger that way.
//! 3. When an append is durable its messages are acknowledged. Until then the consumer is told that work on them goes on,
//!    three times as often as it would deliver them again.
//! 4. A message that is stored already is acknowledged too, but only after a look that shows that the stream and the consumer
//!    are those of the session: another stream of the name gives the same sequences to other messages.
//! 5. While something below what is stored is open, the consumer is asked from time to time how far everything is acknowledged.
//!
//! A crash between the commit of 2 and the acknowledgement of 3 has the message come again, and then it is known (4).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::{AckKind, Message};
use async_nats::{Subject, Subscriber};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};

use super::consumer::{ANSWER_WAIT, Facts, Place, delivery};
use super::error::NatsSourceError;
use super::fetch::Fetch;
use super::message::Renderer;
use super::stored::{Deliveries, Stored};
use super::{Ending, lost};
use crate::journal::Appender;
use crate::limits::{NATS_FETCH_BYTES, NATS_STOP_MS_MAX, NATS_STORED_PIECES_MAX};
use crate::net::nats::{LinkState, NatsLink};
use crate::sources::SourceCounters;
use crate::sources::collect::Line;
use crate::sources::intake::Intake;
use crate::tasks::Shutdown;

/// How often it is looked whether a full journal has room again.
pub(super) const ROOM_LOOK: Duration = Duration::from_millis(250);
/// How often the consumer is asked how far everything is acknowledged, while something is open.
const FLOOR_LOOK: Duration = Duration::from_secs(2);
/// Messages that are taken out of the client at once.
const TURN: usize = 256;

/// A consumer that was looked at, and what belongs to it.
pub(super) struct Session<'s> {
    pub(super) link: &'s NatsLink,
    pub(super) place: &'s Place,
    pub(super) counters: &'s SourceCounters,
    pub(super) appender: Arc<Appender>,
    pub(super) intake: &'s mut Intake<Subject>,
    pub(super) renderer: &'s mut Renderer,
    pub(super) facts: Facts,
    pub(super) stored: Stored,
    pub(super) messages: Subscriber,
    pub(super) fetch: Fetch,
    pub(super) state: Keeping,
}

/// What a session keeps in memory.
pub(super) struct Keeping {
    deliveries: Deliveries,
    /// Messages that what is gathered has no room for.
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    /// Messages that the journal was given and that are not acknowledged.
    unanswered: usize,
    /// Whether the set of what is stored has changed since it was gathered last.
    is_changed: bool,
    /// Messages that are stored already, which the next look confirms.
    known: Vec<Subject>,
    /// A look that goes on, and how many of those were there when it began.
    look: Option<(BoxFuture<'static, Result<Facts, NatsSourceError>>, usize)>,
    looked: Instant,
    /// Whether it was said that the set of what is stored is full.
    is_full_told: bool,
}

impl Keeping {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            deliveries: facts.deliveries(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            unanswered: 0,
            is_changed: false,
            known: Vec::new(),
            look: None,
            looked: Instant::now(),
            is_full_told: false,
        }
    }

    fn held(&self) -> usize {
        self.waiting.len() + self.unanswered + self.known.len()
    }
}

impl Session<'_> {
    /// Takes messages until asked to stop or the session ends.
    pub(super) async fn run(
        mut self,
        began: &LinkState,
        shutdown: &Shutdown,
    ) -> Result<Ending, NatsSourceError> {
        let mut link = self.link.watch();
        let mut progress = ticks(self.facts.ack_wait / 3);
        let mut room = ticks(ROOM_LOOK);
        let mut ending: Option<Ending> = None;
        let mut deadline = Box::pin(sleep(Duration::MAX));
        let stop_wait = Duration::from_millis(NATS_STOP_MS_MAX);
        loop {
            if ending.is_none() {
                self.take_in()?;
                self.ask().await?;
            } else {
                self.hand_over();
                if self.intake.is_idle() {
                    return Ok(ending.unwrap_or(Ending::Stopped));
                }
            }
            let is_open = ending.is_none();
            let silent_at = self.fetch.silent_at().filter(|_| is_open);
            tokio::select! {
                biased;
                () = shutdown.requested(), if is_open => {
                    self.give_back().await?;
                    ending = Some(Ending::Stopped);
                    deadline.as_mut().reset(Instant::now() + stop_wait);
                }
                changed = link.changed() => check(&mut link, changed.is_ok(), began)?,
                answers = self.intake.step() => match answers {
                    Ok(answers) => self.acknowledge(answers).await?,
                    // What stands before it may be durable, and is acknowledged then.
                    Err(error) if is_open => {
                        self.intake.give_up();
                        ending = Some(Ending::Failed(error.into()));
                        deadline.as_mut().reset(Instant::now() + stop_wait);
                    }
                    Err(_) => return Ok(ending.unwrap_or(Ending::Stopped)),
                },
                looked = look(&mut self.state.look) => self.looked(looked?).await?,
                // The journal takes nothing: what it was not given comes again.
                () = &mut deadline, if !is_open => return Ok(ending.unwrap_or(Ending::Stopped)),
                () = until(silent_at) => return Err(self.fetch.silent()),
                _ = progress.tick() => self.work_goes_on().await?,
                _ = room.tick(), if is_open && self.appender.full().is_some() => {}
                message = self.messages.next(), if is_open => self.arrived(message)?,
            }
        }
    }

    /// Takes what has come out of the client.
    fn arrived(&mut self, first: Option<async_nats::Message>) -> Result<(), NatsSourceError> {
        let mut next = first;
        for _ in 0..TURN {
            let Some(message) = next else { return Err(NatsSourceError::Stuck) };
            if let Some(status) = message.status {
                self.fetch.told(status, &message)?;
            } else {
                self.fetch.arrived();
                self.state.waiting_bytes += message.payload.len();
                let context = self.place.context.clone();
                self.state.waiting.push_back(Message { message, context });
            }
            match self.messages.next().now_or_never() {
                Some(ready) => next = ready,
                None => break,
            }
        }
        Ok(())
    }

    /// Gathers what waits, as far as it fits, and hands it over.
    fn take_in(&mut self) -> Result<(), NatsSourceError> {
        loop {
            while let Some(message) = self.state.waiting.pop_front() {
                let bytes = message.payload.len();
                let beside = self.renderer.render(&message.message);
                if !self.intake.has_room(bytes, beside) {
                    self.state.waiting.push_front(message);
                    break;
                }
                self.state.waiting_bytes -= bytes;
                self.take(message)?;
            }
            if !self.hand_over() || self.state.waiting.is_empty() {
                return Ok(());
            }
        }
    }

    fn hand_over(&mut self) -> bool {
        if !self.state.is_changed || !self.intake.is_ready() {
            return false;
        }
        let (key, value) = self.stored.position(&self.facts.origin);
        self.intake.position(key, value);
        self.state.is_changed = false;
        self.intake.hand_over()
    }

    /// Gathers a message that was rendered, unless it is stored already.
    fn take(&mut self, message: Message) -> Result<(), NatsSourceError> {
        let (Some((delivery, published)), Some(reply)) =
            (delivery(&message), message.message.reply.clone())
        else {
            return Err(self.ended("a message says nothing of its delivery".to_owned()));
        };
        let Some(first) = self.state.deliveries.note(delivery) else {
            return Err(self.ended("it counts its deliveries anew".to_owned()));
        };
        let sequence = delivery.sequence;
        if self.stored.has(sequence) {
            self.counters.messages_known.fetch_add(1, Ordering::Relaxed);
            self.state.known.push(reply);
            return Ok(());
        }
        if !self.stored.has_room(first) {
            self.state.deliveries.interrupt();
            if !std::mem::replace(&mut self.state.is_full_told, true) {
                tracing::warn!(
                    floor = self.stored.floor(),
                    "Too many messages above one that does not come are stored, others wait for it"
                );
            }
            return Ok(());
        }
        self.stored.close(first, sequence);
        self.state.is_changed = true;
        self.state.unanswered += 1;
        let payload = &message.payload;
        let line = Line {
            time: published,
            subject: &self.renderer.subject,
            headers: self.renderer.headers.as_headers(),
            head: payload,
            size: payload.len() as u64,
        };
        let stream = &self.facts.origin.stream;
        let place = || format!("NATS stream {stream}, sequence {sequence}");
        self.intake.message(line, place, Some(reply));
        Ok(())
    }

    /// Asks for more, and for a look where one is due.
    async fn ask(&mut self) -> Result<(), NatsSourceError> {
        let state = &mut self.state;
        if state.waiting_bytes < NATS_FETCH_BYTES && self.appender.full().is_none() {
            let held = state.held();
            let asked = self.fetch.ask(self.link.client(), held);
            tokio::time::timeout(ANSWER_WAIT, asked)
                .await
                .map_err(|_| NatsSourceError::Stuck)??;
        }
        let is_open = self.stored.pieces() > 0;
        let is_soon = self.stored.pieces() > NATS_STORED_PIECES_MAX / 2;
        let wait = if is_soon { FLOOR_LOOK / 10 } else { FLOOR_LOOK };
        let is_due = !state.known.is_empty() || is_open && state.looked.elapsed() >= wait;
        if state.look.is_none() && is_due {
            state.look = Some((self.place.clone().look().boxed(), state.known.len()));
        }
        Ok(())
    }

    /// Both are those of the session: what was known before the look is acknowledged, and what the consumer counts as
    /// acknowledged is closed.
    async fn looked(&mut self, facts: Facts) -> Result<(), NatsSourceError> {
        let (_, confirmed) = self.state.look.take().expect("it was waited for");
        self.state.looked = Instant::now();
        if facts.origin.created != self.facts.origin.created {
            return Err(NatsSourceError::Remade { stream: facts.origin.stream });
        }
        if facts.consumer_created != self.facts.consumer_created
            || facts.origin.filters != self.facts.origin.filters
        {
            return Err(NatsSourceError::ConsumerRemade { consumer: facts.origin.consumer });
        }
        self.stored.close(1, facts.ack_floor);
        let known: Vec<_> = self.state.known.drain(..confirmed).collect();
        self.say(known, AckKind::Ack).await
    }

    async fn acknowledge(&mut self, answers: Vec<Subject>) -> Result<(), NatsSourceError> {
        self.state.unanswered = self.state.unanswered.saturating_sub(answers.len());
        self.say(answers, AckKind::Ack).await
    }

    /// Tells the consumer not to deliver again what is being worked on.
    async fn work_goes_on(&mut self) -> Result<(), NatsSourceError> {
        let waiting = self.state.waiting.iter().filter_map(|message| message.message.reply.clone());
        let mut all: Vec<_> = waiting.chain(self.intake.unanswered().cloned()).collect();
        all.extend(self.state.known.iter().cloned());
        self.say(all, AckKind::Progress).await
    }

    /// Gives back what was not taken, so that it comes again at once and not only when the consumer has waited for it.
    async fn give_back(&mut self) -> Result<(), NatsSourceError> {
        let waiting: Vec<_> = self.state.waiting.drain(..).collect();
        let replies = waiting.into_iter().filter_map(|message| message.message.reply).collect();
        self.say(replies, AckKind::Nak(None)).await
    }

    async fn say(&mut self, to: Vec<Subject>, word: AckKind) -> Result<(), NatsSourceError> {
        let (client, word) = (self.link.client(), bytes::Bytes::from(word));
        let said = async {
            for reply in to {
                client.publish(reply, word.clone()).await.map_err(|_| NatsSourceError::Stuck)?;
            }
            Ok(())
        };
        tokio::time::timeout(ANSWER_WAIT, said).await.map_err(|_| NatsSourceError::Stuck)?
    }

    fn ended(&self, reason: String) -> NatsSourceError {
        NatsSourceError::Ended { consumer: self.place.consumer.clone(), reason }
    }
}

pub(super) fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.reset();
    ticks
}

/// Whether the connection is still that of the session, and the server refuses nothing.
pub(super) fn check(
    link: &mut watch::Receiver<LinkState>,
    is_there: bool,
    began: &LinkState,
) -> Result<(), NatsSourceError> {
    let state = link.borrow_and_update().clone();
    if !is_there || !state.connected || state.sessions != began.sessions {
        return Err(lost(&state));
    }
    if state.refusals > began.refusals {
        let reason = state.last_error.unwrap_or_default();
        return Err(NatsSourceError::Refused { reason });
    }
    Ok(())
}

/// A look that goes on; for ever when there is none.
async fn look(
    look: &mut Option<(BoxFuture<'static, Result<Facts, NatsSourceError>>, usize)>,
) -> Result<Facts, NatsSourceError> {
    match look {
        Some((look, _)) => look.await,
        None => std::future::pending().await,
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
