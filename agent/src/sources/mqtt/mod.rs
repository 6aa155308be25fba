//! The source that subscribes to topics of an MQTT broker, by 3.1.1 or 5.
//!
//! What holds:
//!
//! - A message is answered (QoS 1: PUBACK, QoS 2: PUBREC) when the journal commit that holds it is synced, never before. What was
//!   not answered the broker sends again to the next connection, which goes on with the same session: it is kept by the broker
//!   under `client_id`, without an end by MQTT 5, as long as the broker likes by 3.1.1.
//! - QoS 0 is not answered: what was sent and not stored when the agent or the connection ends is gone.
//! - QoS 1: a message is stored twice when the connection or the agent ends between its commit and the broker's reading of the
//!   answer. At most as many as the broker lets be unanswered (1024 by MQTT 5, or what the broker allows if that is less; by
//!   3.1.1 that alone) are stored again per ended connection, each with the header `waystation-redelivered`. mosquitto 2.0.11 was
//!   seen to have thousands unanswered by 3.1.1, for a session that comes back, whatever its `max_inflight_messages` is.
//! - QoS 2: a message is stored once in one session, also through crashes (see `remembered`). A session that the broker has lost
//!   takes that knowledge with it.
//! - A session that is gone (`session_present = 0`) is counted (`sessions_lost`) and warned of once: what was published in the
//!   gap, and was not answered, may be lost at the broker. All topics are subscribed to with every connection. By 3.1.1 the
//!   broker sends the messages that it keeps (retained) again each time, by MQTT 5 only for what is new to the session.
//! - A refused subscription, or one with less QoS than asked for, ends the connection with its reason: a source counts as
//!   running only while everything of it is subscribed to.
//! - While the journal takes nothing with `on_full = "block"`, nothing is read: the connection stays, pings go on, and the broker
//!   keeps what it can keep (its own limits of a session's queue hold, and what it drops then is lost to us). With `reject` the
//!   connection ends with the reason and is made again with growing waits, so long as nothing is taken.
//! - Order: as the broker sends, per connection. What it sends again stands behind what came first.
//!
//! Does not know what becomes of the records.

pub mod config;
mod connection;
mod error;
mod filter;
mod headers;
mod packet;
mod remembered;
mod session;
mod subject;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

pub use error::MqttError;

use self::config::MqttSourceConfig;
use self::connection::{CONNECT_TIMEOUT, Incoming, Outgoing};
use self::packet::{Answer, Hello, Packet};
use self::remembered::{Subscription, Taken};
use self::session::Session;
use self::subject::Subjects;
use super::collect::Collector;
use super::intake::Intake;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::clock::Monotonic;
use crate::journal::Appender;
use crate::limits::{MQTT_BESIDE_BYTES_MAX, MQTT_PACKET_BYTES_MIN, MQTT_RECEIVE_MAX};
use crate::net::tls::ClientTls;
use crate::record::HeadersBuffer;
use crate::record::id::{AgentId, SourceId};
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// A connection that the broker closes sooner after it was made is a short one.
const SHORT: Duration = Duration::from_secs(10);
/// Short connections in a row, to a broker that is there and has kept the session, that tell of another client with the id.
const SHORT_MAX: u32 = 3;

pub(super) struct MqttSource {
    id: SourceId,
    config: MqttSourceConfig,
    client_id: String,
    subjects: Subjects,
    options: SourceOptions,
    tls: Option<Arc<ClientTls>>,
    connected: watch::Sender<bool>,
    /// Short connections in a row.
    short: u32,
}

/// What the broker has said to CONNECT.
struct Welcome {
    incoming: Incoming,
    outgoing: Outgoing,
    session_present: bool,
    keep_alive: Duration,
}

impl MqttSource {
    pub(super) fn new(
        id: SourceId,
        config: &MqttSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let template = Template::parse(&config.subject, subject::FIELDS)
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?;
        let tls = config.url.tls.then(|| ClientTls::new(config.tls.as_ref(), &options.net));
        Ok(Self {
            client_id: config.client_id.clone().unwrap_or_default(),
            subjects: Subjects::new(template, id.as_str()),
            tls: tls.map(Arc::new),
            connected: watch::channel(false).0,
            short: 0,
            config: config.clone(),
            options: options.clone(),
            id,
        })
    }

    fn failed(&self, error: MqttError) -> SourceError {
        SourceError::Mqtt { source_id: self.id.clone(), error }
    }

    /// Connects and introduces the client.
    async fn connect(&self) -> Result<Welcome, MqttError> {
        let config = &self.config;
        let limit = config.limits.record_bytes_max.as_usize() + MQTT_BESIDE_BYTES_MAX;
        let packet_bytes_max = limit.max(MQTT_PACKET_BYTES_MIN);
        let login = self.login().await?;
        let (mut incoming, mut outgoing) =
            connection::open(&config.url, self.tls.as_ref(), config.version, packet_bytes_max)
                .await?;
        // Half a second more is no reason for the broker to end it.
        let keep_alive_s = config.keep_alive.as_secs().max(1);
        let keep_alive_s = u16::try_from(keep_alive_s).unwrap_or(u16::MAX);
        let hello = Hello {
            client_id: &self.client_id,
            login,
            keep_alive_s,
            receive_max: MQTT_RECEIVE_MAX,
        };
        outgoing.push(|encoder, out| encoder.connect(hello, out));
        let broker = || config.url.to_string();
        let introduce = async {
            outgoing.flush().await?;
            incoming.packet().await
        };
        let answer = tokio::time::timeout(CONNECT_TIMEOUT, introduce)
            .await
            .map_err(|_| MqttError::Late { broker: broker(), what: "CONNECT" })??;
        match answer {
            Packet::Welcome { session_present, keep_alive_s: wanted } => {
                let seconds = wanted.filter(|wanted| *wanted > 0).unwrap_or(keep_alive_s);
                let keep_alive = Duration::from_secs(seconds.into()).min(config.keep_alive);
                Ok(Welcome { incoming, outgoing, session_present, keep_alive })
            }
            Packet::Refused { reason } => Err(MqttError::Refused { broker: broker(), reason }),
            Packet::Ended { reason, .. } => Err(MqttError::Ended { broker: broker(), reason }),
            _ => Err(MqttError::Malformed {
                broker: broker(),
                what: "the answer to CONNECT is none".to_owned(),
            }),
        }
    }

    /// Name and password, as they are now.
    async fn login(&self) -> Result<Option<(String, String)>, MqttError> {
        let Some(credentials) = &self.config.credentials else { return Ok(None) };
        let username = credentials.username.clone();
        let Some(secret) = credentials.password.clone() else {
            return Ok(Some((username, String::new())));
        };
        let place = secret.place();
        let read = tokio::task::spawn_blocking(move || secret.read()).await;
        match read.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            Ok(password) => Ok(Some((username, password))),
            Err(error) => Err(MqttError::Password { place, error }),
        }
    }

    /// One connection.
    async fn session(
        &mut self,
        intake: &mut Intake<Answer>,
        known: Option<&Subscription>,
        taken: Taken,
        shutdown: &Shutdown,
    ) -> Result<Finished, SourceError> {
        let welcome = tokio::select! {
            () = shutdown.requested() => return Ok(Finished::Stopped),
            welcome = self.connect() => welcome.map_err(|error| {
                // One that is down is not one that somebody else is connected to.
                self.short = 0;
                self.failed(error)
            })?,
        };
        let began = self.options.clock.monotonic();
        let Welcome { incoming, outgoing, session_present, keep_alive } = welcome;
        let is_ours = known.is_some_and(|known| {
            known.broker == self.config.url.to_string() && known.client_id == self.client_id
        });
        if is_ours && !session_present {
            self.options.counters.sessions_lost.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                broker = %self.config.url,
                client_id = self.client_id,
                "The broker has lost the session, messages of the gap may be lost there"
            );
        }
        let session = Session {
            source_id: &self.id,
            config: &self.config,
            client_id: &self.client_id,
            clock: &self.options.clock,
            connected: &self.connected,
            subjects: &mut self.subjects,
            incoming,
            outgoing,
            intake,
            taken,
            headers: HeadersBuffer::default(),
            held: None,
            keep_alive,
        };
        let result = session.run(known, session_present, shutdown).await;
        result.map_err(|error| self.judge(error, began, session_present))
    }

    /// Says of a closed connection that another client may be behind it, when there were several.
    fn judge(
        &mut self,
        error: SourceError,
        began: Monotonic,
        session_present: bool,
    ) -> SourceError {
        let SourceError::Mqtt { error: MqttError::Closed { broker }, .. } = &error else {
            return error;
        };
        let is_short = self.options.clock.monotonic().since(began) < SHORT;
        self.short = if is_short && session_present { self.short + 1 } else { 0 };
        if self.short < SHORT_MAX {
            return error;
        }
        let (broker, client_id) = (broker.clone(), self.client_id.clone());
        self.failed(MqttError::Contested { broker, client_id })
    }
}

#[async_trait]
impl Source for MqttSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.options.counters)
    }

    fn belongs_to(&mut self, agent: &AgentId) {
        if self.config.client_id.is_none() {
            self.client_id = format!("waystation-{agent}-{}", self.id);
        }
    }

    fn connected(&self) -> Option<watch::Receiver<bool>> {
        Some(self.connected.subscribe())
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let known = Subscription::of(appender.positions());
        let taken = Taken::of(appender.positions());
        let counters = Arc::clone(&self.options.counters);
        let collector = Collector::new(self.config.limits, Arc::clone(&counters))
            .timed(self.options.times.as_ref());
        let mut intake = Intake::new(Arc::new(appender), collector, counters);
        let result = self.session(&mut intake, known.as_ref(), taken, &shutdown).await;
        self.connected.send_replace(false);
        if let Err(SourceError::Mqtt { .. }) = &result {
            // What the journal has is counted, and known to the next run, though it could not be answered.
            intake.drain().await?;
        }
        result
    }
}
