//! The source that takes messages of NATS: of a JetStream stream, each once, or of subjects, each at most once.
//!
//! What holds with `stream`:
//!
//! - A message is acknowledged when the journal commit that holds it is synced, never before. What was not acknowledged the
//!   server delivers again.
//! - A message that is delivered again after it was stored is known by its sequence, and is stored once: the position holds the
//!   contiguous sequence up to which all is stored and the set above it, in the append of the messages themselves (`stored`).
//!   It belongs to the stream of that creation time, the consumer of that name and its filter: with another one it starts anew.
//! - The consumer is durable; one that is not there is made, behind what is stored and with the filter that it had. One that
//!   somebody else has made is used as it is, if it waits for each message to be acknowledged.
//! - No more is asked for than 2048 messages beside those that are not durable, and nothing while the journal is full. What was
//!   delivered and waits for the journal is kept from being delivered again by in-progress acknowledgements.
//! - A connection, a stream or a consumer that is gone, and heartbeats that are missing, end the session; the next one looks at
//!   everything again. Order: as the server delivers; what comes again stands behind what came first.
//!
//! What holds with `subjects` stands in `core`.
//!
//! The event time of a message of a stream is when the stream has taken it, that of a subscription when it came.
//!
//! Does not know what becomes of the records.

pub mod config;
mod consumer;
mod core;
mod error;
mod fetch;
mod message;
mod session;
mod stored;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Message, Subscriber};
use async_trait::async_trait;
use futures_util::stream::SelectAll;
use tokio::sync::watch;

pub use error::NatsSourceError;

use self::config::{From, NatsSourceConfig};
use self::consumer::{ANSWER_WAIT, Place};
use self::core::Core;
use self::fetch::Fetch;
use self::message::Renderer;
use self::session::{Keeping, Session, check};
use self::stored::{Origin, Stored};
use super::collect::Collector;
use super::intake::Intake;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::journal::Appender;
use crate::limits::NATS_COMMANDS_MAX;
use crate::net::nats::{LinkState, NatsLink};
use crate::net::tls::ClientTls;
use crate::record::id::{AgentId, SourceId};
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// How long a run waits for a connection that is being made, before it says that there is none.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long the last words of a session may take.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// Why a session comes to its orderly end.
enum Ending {
    Stopped,
    Failed(SourceError),
    Lost(NatsSourceError),
}

/// Subscriptions of one session, with the messages that the journal was not given yet.
struct Kept {
    session: u64,
    messages: SelectAll<Subscriber>,
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    overruns: u64,
}

pub(super) struct NatsSource {
    id: SourceId,
    config: NatsSourceConfig,
    /// As configured, or made of agent and source.
    consumer: String,
    renderer: Renderer,
    options: SourceOptions,
    /// `None` when neither `tls` nor `net.ca` says anything: TLS is the client's own then, when the server asks for it.
    tls: Option<Arc<ClientTls>>,
    /// Subscriptions that stand, and what waits of them, while a failure of the journal is got over.
    kept: Option<Kept>,
    /// Kept over all runs: it makes itself anew.
    link: Option<(NatsLink, Context)>,
    connected: watch::Sender<bool>,
}

impl NatsSource {
    pub(super) fn new(
        id: SourceId,
        config: &NatsSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let template = Template::parse(&config.subject, message::FIELDS)
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?;
        let own = config.tls.as_ref();
        let is_needed = own.is_some() || options.net.ca.is_some();
        Ok(Self {
            consumer: match &config.from {
                From::Stream { consumer: Some(consumer), .. } => consumer.clone(),
                _ => String::new(),
            },
            renderer: Renderer::new(template, id.as_str()),
            tls: is_needed.then(|| Arc::new(ClientTls::new(own, &options.net))),
            kept: None,
            link: None,
            connected: watch::channel(false).0,
            config: config.clone(),
            options: options.clone(),
            id,
        })
    }

    fn failed(&self, error: NatsSourceError) -> SourceError {
        SourceError::Nats { source_id: self.id.clone(), error }
    }

    /// The connection with a session on it, and what is known of it then.
    async fn connect(&mut self) -> Result<(NatsLink, Context, LinkState), NatsSourceError> {
        if let Some(tls) = self.tls.clone().filter(|tls| tls.is_required()) {
            let refreshed = tokio::task::spawn_blocking(move || tls.refresh()).await;
            refreshed.map_err(|_| NatsSourceError::Stuck)?.map_err(NatsSourceError::Tls)?;
        }
        let (link, context) = match &self.link {
            Some(link) => link.clone(),
            None => {
                let name = format!("waystation {}", self.id);
                let credentials = self.config.credentials.clone();
                let servers = &self.config.servers;
                let link = NatsLink::start(servers, credentials, self.tls.as_deref(), &name).await;
                let link = link.map_err(NatsSourceError::Setup)?;
                let context = ContextBuilder::new()
                    .timeout(ANSWER_WAIT)
                    .ack_timeout(ANSWER_WAIT)
                    .max_ack_inflight(NATS_COMMANDS_MAX)
                    .build(link.client().clone());
                self.link.insert((link, context)).clone()
            }
        };
        let state = link.wait_connected(CONNECT_WAIT).await;
        if state.connected {
            return Ok((link, context, state));
        }
        let reason = state.last_error.unwrap_or_else(|| "no server answers".to_owned());
        Err(NatsSourceError::NotConnected { reason })
    }

    fn running(&self) {
        if !self.connected.send_replace(true) {
            tracing::info!("The source takes messages of NATS");
        }
    }

    /// One session with a consumer.
    async fn consume(
        &mut self,
        stream: String,
        appender: &Arc<Appender>,
        intake: &mut Intake<async_nats::Subject>,
        shutdown: &Shutdown,
    ) -> Result<Ending, NatsSourceError> {
        let known: Option<(Origin, Stored)> = Stored::of(appender.positions());
        // A source that was renamed, with its positions, goes on with the consumer that was made for its old name.
        let before = known.as_ref().map(|(origin, _)| origin).filter(|o| o.stream == stream);
        let consumer = match (&self.config.from, before) {
            (From::Stream { consumer: None, .. }, Some(origin)) => origin.consumer.clone(),
            _ => self.consumer.clone(),
        };
        let open = async {
            let (link, context, began) = self.connect().await?;
            let place = Place { context, stream, consumer };
            let facts = guarded(&link, &began, place.open(known.as_ref())).await?;
            Ok::<_, NatsSourceError>((link, began, place, facts))
        };
        let (link, began, place, facts) = tokio::select! {
            () = shutdown.requested() => return Ok(Ending::Stopped),
            opened = open => opened?,
        };
        let is_other = |(origin, _): &&(Origin, Stored)| *origin != facts.origin;
        if let Some((origin, _)) = known.as_ref().filter(is_other) {
            let (is_remade, before) = (origin.created != facts.origin.created, &origin.stream);
            tracing::warn!(
                stream = facts.origin.stream,
                before,
                is_remade,
                "Another stream, consumer or filter than before, it is taken anew"
            );
        }
        let client = link.client();
        let inbox = client.new_inbox();
        let messages = client.subscribe(inbox.clone()).await;
        let messages = messages.map_err(|_| NatsSourceError::Stuck)?;
        self.running();
        let session = Session {
            link: &link,
            place: &place,
            counters: &self.options.counters,
            appender: Arc::clone(appender),
            intake,
            renderer: &mut self.renderer,
            stored: facts.stored(known),
            messages,
            fetch: Fetch::new(&facts, inbox, client.server_info().max_payload),
            state: Keeping::new(&facts),
            facts,
        };
        let result = session.run(&began, shutdown).await;
        // A server that is gone by now delivers again what it has not heard of.
        let _unsent = tokio::time::timeout(GOODBYE_WAIT, link.client().flush()).await;
        result
    }

    /// One session of subscriptions.
    async fn listen(
        &mut self,
        subjects: &[String],
        appender: &Arc<Appender>,
        intake: &mut Intake<()>,
        shutdown: &Shutdown,
    ) -> Result<Ending, NatsSourceError> {
        let (link, _, began) = tokio::select! {
            () = shutdown.requested() => return Ok(Ending::Stopped),
            connected = self.connect() => connected?,
        };
        let kept = match self.kept.take().filter(|kept| kept.session == began.sessions) {
            Some(kept) => kept,
            None => subscribe(&link, &began, subjects).await?,
        };
        self.running();
        let mut core = Core {
            link: &link,
            clock: &self.options.clock,
            counters: &self.options.counters,
            appender: Arc::clone(appender),
            intake,
            renderer: &mut self.renderer,
            messages: kept.messages,
            waiting: kept.waiting,
            waiting_bytes: kept.waiting_bytes,
            taken: 0,
            durable: 0,
            overruns: kept.overruns,
        };
        let result = core.run(&began, shutdown).await;
        if let Ok(Ending::Failed(_)) = &result {
            let Core { messages, waiting, waiting_bytes, overruns, .. } = core;
            let session = began.sessions;
            self.kept = Some(Kept { session, messages, waiting, waiting_bytes, overruns });
        }
        result
    }

    fn collector(&self) -> Collector {
        Collector::new(self.config.limits, Arc::clone(&self.options.counters))
            .timed(self.options.times.as_ref())
    }

    /// What the end of a session means, once what the journal has of it is counted.
    async fn close<A>(
        &self,
        intake: Intake<A>,
        result: Result<Ending, NatsSourceError>,
    ) -> Result<Finished, SourceError> {
        self.connected.send_replace(false);
        let error = match result {
            Ok(Ending::Stopped) => return Ok(Finished::Stopped),
            Ok(Ending::Failed(error)) => return Err(error),
            Ok(Ending::Lost(error)) | Err(error) => error,
        };
        // What the journal has is counted, and known to the next run, though it could not be acknowledged.
        intake.drain().await?;
        Err(self.failed(error))
    }
}

/// Subscribes to all of the subjects.
async fn subscribe(
    link: &NatsLink,
    began: &LinkState,
    subjects: &[String],
) -> Result<Kept, NatsSourceError> {
    let mut subscriptions = Vec::with_capacity(subjects.len());
    for subject in subjects {
        let subscription = link.client().subscribe(subject.clone()).await;
        subscriptions.push(subscription.map_err(|error| {
            let reason = crate::error_chain::Chain(&error).to_string();
            NatsSourceError::Refused { reason }
        })?);
    }
    let sent = tokio::time::timeout(ANSWER_WAIT, link.client().flush()).await;
    sent.map_err(|_| NatsSourceError::Stuck)?.map_err(|_| NatsSourceError::Stuck)?;
    Ok(Kept {
        session: began.sessions,
        messages: futures_util::stream::select_all(subscriptions),
        waiting: VecDeque::new(),
        waiting_bytes: 0,
        overruns: began.overruns,
    })
}

/// What the server answers, unless the session ends or the server refuses to be asked: then there is no answer.
async fn guarded<T>(
    link: &NatsLink,
    began: &LinkState,
    answer: impl Future<Output = Result<T, NatsSourceError>>,
) -> Result<T, NatsSourceError> {
    let mut watch = link.watch();
    tokio::pin!(answer);
    loop {
        tokio::select! {
            biased;
            changed = watch.changed() => check(&mut watch, changed.is_ok(), began)?,
            answer = &mut answer => return answer,
        }
    }
}

/// There is no session, or another one than before.
fn lost(state: &LinkState) -> NatsSourceError {
    let reason = state.last_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    NatsSourceError::Lost { reason }
}

#[async_trait]
impl Source for NatsSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.options.counters)
    }

    fn belongs_to(&mut self, agent: &AgentId) {
        if self.consumer.is_empty() {
            self.consumer = format!("waystation-{agent}-{}", self.id);
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
        let appender = Arc::new(appender);
        let counters = Arc::clone(&self.options.counters);
        match self.config.from.clone() {
            From::Stream { stream, .. } => {
                let mut intake = Intake::new(Arc::clone(&appender), self.collector(), counters);
                let session = self.consume(stream, &appender, &mut intake, &shutdown);
                let result = session.await;
                self.close(intake, result).await
            }
            From::Subjects { subjects } => {
                let mut intake = Intake::new(Arc::clone(&appender), self.collector(), counters);
                let session = self.listen(&subjects, &appender, &mut intake, &shutdown);
                let result = session.await;
                self.close(intake, result).await
            }
        }
    }
}
