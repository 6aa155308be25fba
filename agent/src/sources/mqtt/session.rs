//! One connection, from its subscriptions to its end: messages in, answers out.
//!
//! One task does it all and waits for nothing in particular, so that each of these goes on while another cannot:
//!
//! 1. What was read is taken apart; messages are gathered into an append.
//! 2. As soon as nothing else is being handed to the journal, what is gathered is. A journal that is behind makes appends
//!    larger that way; one that is full has nothing taken, and then nothing is read any more: the broker keeps the rest.
//! 3. When an append is durable its messages are answered, in their order.
//! 4. Pings go out, also while nothing is read; only then is nobody blamed for not answering them.
//!
//! A subscription that the broker refuses, and an append that the journal refuses, end the connection in an orderly manner:
//! what is durable is answered first, else each new try would take the same messages again.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::config::MqttSourceConfig;
use super::connection::{Incoming, Outgoing};
use super::error::MqttError;
use super::headers;
use super::packet::{Answer, Message, Packet};
use super::remembered::{Subscription, Taken};
use super::subject::Subjects;
use crate::clock::SharedClock;
use crate::limits::{MQTT_STOP_MS_MAX, MQTT_SUBSCRIBE_MS_MAX};
use crate::record::HeadersBuffer;
use crate::record::id::SourceId;
use crate::sources::collect::Line;
use crate::sources::intake::Intake;
use crate::sources::{Finished, SourceError};
use crate::tasks::Shutdown;

const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(MQTT_SUBSCRIBE_MS_MAX);
const STOP_WAIT: Duration = Duration::from_millis(MQTT_STOP_MS_MAX);
/// How long the last packets of a connection may take.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);
/// Ids of what is asked of the broker; they are not those of its messages.
const SUBSCRIBE_ID: u16 = 1;
const UNSUBSCRIBE_ID: u16 = 2;
/// Pings without an answer after which a broker counts as gone. There are two in each `keep_alive`.
const PINGS_MAX: u32 = 2;

/// Why a session comes to its orderly end.
enum Ending {
    Stopped,
    Failed(SourceError),
}

/// What is still to be heard of the broker before the source counts as connected.
struct Asked {
    subscription: Subscription,
    /// Whether that is what was remembered.
    is_known: bool,
    subscribed: bool,
    unsubscribed: bool,
}

/// A connection that the broker has let in.
pub(super) struct Session<'s> {
    pub(super) source_id: &'s SourceId,
    pub(super) config: &'s MqttSourceConfig,
    pub(super) client_id: &'s str,
    pub(super) clock: &'s SharedClock,
    pub(super) connected: &'s watch::Sender<bool>,
    pub(super) subjects: &'s mut Subjects,
    pub(super) incoming: Incoming,
    pub(super) outgoing: Outgoing,
    pub(super) intake: &'s mut Intake<Answer>,
    pub(super) taken: Taken,
    pub(super) headers: HeadersBuffer,
    /// A message that what is gathered has no room for. Nothing is read while there is one.
    pub(super) held: Option<Message>,
    pub(super) keep_alive: Duration,
}

impl Session<'_> {
    /// Subscribes, and takes messages until it is asked to stop or the connection ends.
    pub(super) async fn run(
        mut self,
        known: Option<&Subscription>,
        session_present: bool,
        shutdown: &Shutdown,
    ) -> Result<Finished, SourceError> {
        let mut asked = self.subscribe(known, session_present);
        let ending = self.serve(&mut asked, shutdown).await?;
        self.outgoing.push(|encoder, out| encoder.disconnect(out));
        // A broker that is gone by now will offer again what it has not heard of.
        let _unsent = tokio::time::timeout(GOODBYE_WAIT, self.outgoing.flush()).await;
        match ending {
            Ending::Stopped => Ok(Finished::Stopped),
            Ending::Failed(error) => Err(error),
        }
    }

    /// Asks for all topics, also of a session that has them: whether it does is not for us to know.
    fn subscribe(&mut self, known: Option<&Subscription>, session_present: bool) -> Asked {
        let subscription = Subscription {
            broker: self.config.url.to_string(),
            client_id: self.client_id.to_owned(),
            filters: self.config.topics.clone(),
            qos: self.config.qos,
        };
        let known = known.filter(|known| session_present && known.is_of(&subscription));
        let gone: Vec<String> = known.map_or_else(Vec::new, |known| {
            let gone = known.filters.iter().filter(|filter| !self.config.topics.contains(filter));
            gone.cloned().collect()
        });
        if known.is_none() {
            for (key, value) in self.taken.forget() {
                self.intake.position(key, value);
            }
        }
        if !gone.is_empty() {
            self.outgoing.push(|encoder, out| encoder.unsubscribe(UNSUBSCRIBE_ID, &gone, out));
        }
        let (filters, qos) = (&self.config.topics, self.config.qos);
        self.outgoing.push(|encoder, out| encoder.subscribe(SUBSCRIBE_ID, filters, qos, out));
        let is_known = known.is_some_and(|known| *known == subscription);
        Asked { subscription, is_known, subscribed: false, unsubscribed: gone.is_empty() }
    }

    async fn serve(
        &mut self,
        asked: &mut Asked,
        shutdown: &Shutdown,
    ) -> Result<Ending, SourceError> {
        let mut pings = interval(self.keep_alive / PINGS_MAX);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        pings.reset();
        let mut unanswered = 0;
        let (mut ending, mut is_paused) = (None, false);
        let mut deadline = Box::pin(sleep(SUBSCRIBE_TIMEOUT));
        loop {
            if ending.is_none() {
                let took = self.take_in(asked, &mut unanswered).map_err(|e| self.failed(e))?;
                if let Some(error) = took {
                    ending = Some(Ending::Failed(self.failed(error)));
                    deadline.as_mut().reset(Instant::now() + STOP_WAIT);
                }
            } else {
                self.intake.hand_over();
            }
            if self.intake.is_idle()
                && let Some(ending) = ending.take()
            {
                return Ok(ending);
            }
            let is_open = ending.is_none();
            let may_read = is_open && self.held.is_none() && !self.outgoing.is_full();
            let may_send = self.outgoing.is_waiting();
            // While nothing is read no answer can be late.
            let is_late = !is_open || (may_read && !asked.is_answered());
            if is_open && !may_read {
                is_paused = true;
            } else if std::mem::take(&mut is_paused) && is_open {
                deadline.as_mut().reset(Instant::now() + SUBSCRIBE_TIMEOUT);
            }
            tokio::select! {
                biased;
                () = shutdown.requested(), if is_open => {
                    ending = Some(Ending::Stopped);
                    deadline.as_mut().reset(Instant::now() + STOP_WAIT);
                }
                answers = self.intake.step() => match answers {
                    Ok(answers) => answers.into_iter().for_each(|one| self.outgoing.answer(one)),
                    // What stands before it may be durable, and is answered then.
                    Err(error) if is_open => {
                        self.intake.give_up();
                        ending = Some(Ending::Failed(error.into()));
                        deadline.as_mut().reset(Instant::now() + STOP_WAIT);
                    }
                    Err(_) => return Ok(ending.take().unwrap_or(Ending::Stopped)),
                },
                sent = self.outgoing.flush(), if may_send => sent.map_err(|e| self.broken(e))?,
                _ = pings.tick() => {
                    // Answers are not read while nothing is.
                    unanswered = if may_read { unanswered + 1 } else { 0 };
                    if unanswered > PINGS_MAX {
                        let broker = self.config.url.to_string();
                        return Err(self.failed(MqttError::Silent { broker }));
                    }
                    self.outgoing.push(|encoder, out| encoder.ping(out));
                }
                () = &mut deadline, if is_late => match ending.take() {
                    // The journal takes nothing: what it was not given has no answer, and comes again.
                    Some(ending) => return Ok(ending),
                    None => {
                        let broker = self.config.url.to_string();
                        return Err(self.failed(MqttError::Late { broker, what: "SUBSCRIBE" }));
                    }
                },
                read = self.incoming.fill(), if may_read => read.map_err(|e| self.failed(e))?,
            }
        }
    }

    fn ended(&self, reason: String, taken_over: bool) -> MqttError {
        if taken_over {
            return MqttError::TakenOver { client_id: self.client_id.to_owned() };
        }
        MqttError::Ended { broker: self.config.url.to_string(), reason }
    }

    /// A connection that breaks under a write: the broker may have said why, which is not read yet.
    fn broken(&mut self, error: MqttError) -> SourceError {
        while let Some(Ok(())) = self.incoming.fill().now_or_never() {
            while let Ok(Some(packet)) = self.incoming.next() {
                if let Packet::Ended { reason, taken_over } = packet {
                    return self.failed(self.ended(reason, taken_over));
                }
            }
        }
        self.failed(error)
    }

    fn failed(&self, error: MqttError) -> SourceError {
        SourceError::Mqtt { source_id: self.source_id.clone(), error }
    }

    /// Takes what was read apart and hands over what it makes. Gives why the session is to end, if that is how it is.
    fn take_in(
        &mut self,
        asked: &mut Asked,
        unanswered: &mut u32,
    ) -> Result<Option<MqttError>, MqttError> {
        loop {
            if let Some(message) = self.held.take() {
                self.message(message);
            }
            while self.held.is_none() {
                let Some(packet) = self.incoming.next()? else { break };
                *unanswered = 0;
                let refused = self.packet(packet, asked)?;
                if refused.is_some() {
                    self.intake.hand_over();
                    return Ok(refused);
                }
            }
            if !self.intake.hand_over() || self.held.is_none() {
                return Ok(None);
            }
        }
    }

    fn packet(
        &mut self,
        packet: Packet,
        asked: &mut Asked,
    ) -> Result<Option<MqttError>, MqttError> {
        match packet {
            Packet::Message(message) => self.message(message),
            Packet::Released(id) => {
                if let Some((key, value)) = self.taken.release(id) {
                    self.intake.position(key, value);
                }
                self.intake.answer(Answer::Complete(id));
            }
            Packet::Subscribed(granted) => {
                if let Some(error) = self.refusal(&granted) {
                    return Ok(Some(error));
                }
                asked.subscribed = true;
                self.note(asked);
            }
            Packet::Unsubscribed => {
                asked.unsubscribed = true;
                self.note(asked);
            }
            Packet::Ended { reason, taken_over } => return Err(self.ended(reason, taken_over)),
            Packet::Welcome { .. } | Packet::Refused { .. } | Packet::Other => {}
        }
        Ok(None)
    }

    /// Why a subscription is not what was asked for. A broker that answers for fewer filters has refused the others.
    fn refusal(&self, granted: &[Result<u8, String>]) -> Option<MqttError> {
        let nothing = Err("it gives no answer".to_owned());
        let broker = || self.config.url.to_string();
        self.config.topics.iter().enumerate().find_map(|(index, filter)| {
            let filter = filter.clone();
            match granted.get(index).unwrap_or(&nothing) {
                Ok(granted) if *granted >= self.config.qos => None,
                Ok(granted) => Some(MqttError::Downgraded {
                    broker: broker(),
                    filter,
                    granted: *granted,
                    qos: self.config.qos,
                }),
                Err(reason) => {
                    let reason = reason.clone();
                    Some(MqttError::Subscription { broker: broker(), filter, reason })
                }
            }
        })
    }

    /// Remembers what is subscribed to, once the broker has answered all of it.
    fn note(&mut self, asked: &Asked) {
        if !asked.is_answered() {
            return;
        }
        if !asked.is_known {
            let (key, value) = asked.subscription.position();
            self.intake.position(key, value);
        }
        if !self.connected.send_replace(true) {
            tracing::info!(broker = %self.config.url, "Connected to the MQTT broker");
        }
    }

    /// Takes a message, or holds it when what is gathered has no room for it.
    fn message(&mut self, message: Message) {
        if message.qos == 2 && self.taken.has(&message) {
            self.intake.answer(Answer::Received(message.id));
            return;
        }
        let (subject, is_plain) = self.subjects.render(&message.topic);
        headers::write(&message, is_plain, &mut self.headers);
        let headers = self.headers.as_headers();
        let beside = subject.len() + headers.as_bytes().len();
        if !self.intake.has_room(message.payload.len(), beside) {
            self.held = Some(message);
            return;
        }
        let answer = match message.qos {
            0 => None,
            1 => Some(Answer::Taken(message.id)),
            _ => {
                let (key, value) = self.taken.take(&message);
                self.intake.position(key, value);
                Some(Answer::Received(message.id))
            }
        };
        let (head, size) = (&message.payload[..], message.payload.len() as u64);
        let line = Line { time: self.clock.now(), subject, headers, head, size };
        self.intake.message(line, || format!("MQTT topic {}", message.topic), answer);
    }
}

impl Asked {
    fn is_answered(&self) -> bool {
        self.subscribed && self.unsubscribed
    }
}
