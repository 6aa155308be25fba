//! The sink that publishes records to NATS JetStream, with the record identity as `Nats-Msg-Id`.
//!
//! A message is the record: payload as it is, headers as NATS headers, subject from the template. The lanes of one sink share
//! a connection, which is made when the first of them needs it.
//!
//! | what happens | class |
//! |---|---|
//! | no connection, refused, TLS, credentials, permission; no stream for the subject, another stream than configured, JetStream off, stream full or sealed, no resources; any other refusal that is not about the message | unreachable |
//! | no answer while the session lasts; the batch cannot be read from the journal | retryable |
//! | headers and payload over the server's `max_payload` or the stream's `max_msg_size`; a subject, header name or header value that NATS cannot carry; a header that is a command to the server | the record is named as refused, the others are delivered |
//!
//! There is no conflict: a stream recognises a repeat by its identity and does not compare contents.

pub mod config;
mod lookup;
mod message;
mod progress;
mod publish;
mod stream;
mod subject;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

pub use subject::{SUBJECT_FIELDS, parse_subject_template};

use self::config::{NatsSinkConfig, OnUnknown, Order};
use self::lookup::{Looked, Lookup, Mark};
use self::message::{Messages, SizeBounds};
use self::progress::Progress;
use self::publish::{Publisher, lost};
use self::stream::StreamFacts;
use super::config::RetryConfig;
use super::{Class, Delivered, Memory, Sink, SinkBuilder, SinkError, Throttle};
use crate::clock::SharedClock;
use crate::limiter::Limiter;
use crate::limits::NATS_COMMANDS_MAX;
use crate::net::config::NetConfig;
use crate::net::nats::{LinkState, NatsLink};
use crate::net::tls::ClientTls;
use crate::record::batch::{BatchFacts, BlockReader, FrameBlock, SealedBatch};
use crate::record::id::SinkId;
use crate::record::subject::SubjectPattern;
use crate::record::template::Template;
use crate::secret::Secret;
use crate::units::format_duration;

/// How long an attempt waits for a connection that is being made.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long a probe waits for an answer.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// For how long a stream recognises a repeat when nobody has said otherwise, and it cannot be asked.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);
/// A lookup of `lookup_max` messages is this many times as long as one that begins at the newest mark.
const MARKS_A_LOOKUP: u64 = 10;

/// What is fixed for a batch when it is sealed. Stored: fields may be added, none may change.
#[derive(Debug, Serialize, Deserialize)]
struct Fixed {
    /// The template with all fields but `{subject}` filled in.
    subject: String,
}

/// The connection and the settings, shared by the lanes.
#[derive(Debug)]
struct Shared {
    id: SinkId,
    config: NatsSinkConfig,
    retry: RetryConfig,
    /// `None` when neither `tls` nor `net.ca` says anything: TLS is the client's own then, when the server asks for it.
    tls: Option<Arc<ClientTls>>,
    clock: SharedClock,
    limiter: Option<Arc<Limiter>>,
    link: OnceCell<(NatsLink, Context)>,
    /// What the stream is, with the session in which it was asked.
    facts: Mutex<Option<(u64, Option<StreamFacts>)>>,
}

impl Shared {
    async fn link(&self) -> Result<&(NatsLink, Context), SinkError> {
        let start = || async {
            let name = format!("waystation {}", self.id);
            let credentials = self.config.credentials.clone();
            let tls = self.tls.as_deref();
            let link = NatsLink::start(&self.config.servers, credentials, tls, &name).await?;
            let context = ContextBuilder::new()
                // The publisher watches for silence itself; this only bounds a wait that nobody is in any more.
                .timeout(self.retry.attempt_timeout.max(PROBE_WAIT))
                .ack_timeout(PROBE_WAIT)
                .max_ack_inflight(NATS_COMMANDS_MAX)
                .build(link.client().clone());
            Ok((link, context))
        };
        self.link.get_or_try_init(start).await.map_err(|error: crate::net::nats::LinkError| {
            SinkError::new(Class::Unreachable, "cannot connect to NATS").caused_by(error)
        })
    }

    /// The connection with a session on it.
    async fn connected(&self, at_most: Duration) -> Result<&(NatsLink, Context), SinkError> {
        if let Some(tls) = self.tls.clone().filter(|tls| tls.is_required()) {
            let refreshed = tokio::task::spawn_blocking(move || tls.refresh());
            refreshed.await.map_err(died)?.map_err(|error| {
                SinkError::new(Class::Unreachable, "cannot connect to NATS over TLS")
                    .caused_by(error)
            })?;
        }
        let link = self.link().await?;
        let state = link.0.wait_connected(at_most).await;
        if state.connected { Ok(link) } else { Err(lost(&state)) }
    }
}

/// A configured JetStream sink.
#[derive(Debug)]
pub(super) struct NatsSinkBuilder {
    shared: Arc<Shared>,
}

impl NatsSinkBuilder {
    pub(super) fn new(
        id: SinkId,
        config: NatsSinkConfig,
        net: &NetConfig,
        retry: RetryConfig,
        clock: SharedClock,
        limiter: Option<Arc<Limiter>>,
    ) -> Self {
        let own = config.tls.as_ref();
        let tls = (own.is_some() || net.ca.is_some()).then(|| Arc::new(ClientTls::new(own, net)));
        let (link, facts) = (OnceCell::new(), Mutex::new(None));
        let shared = Shared { id, config, retry, tls, clock, limiter, link, facts };
        Self { shared: Arc::new(shared) }
    }
}

impl SinkBuilder for NatsSinkBuilder {
    fn kind(&self) -> &'static str {
        "nats"
    }

    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        let template = parse_subject_template(&self.shared.config.subject).map_err(|reason| {
            let batch = facts.identity();
            SinkError::new(Class::Rejected, format!("batch {batch} gets no subject: {reason}"))
        })?;
        let fixed = Fixed { subject: subject::fix(&template, facts) };
        Ok(serde_json::to_string(&fixed).expect("a string is always JSON").into())
    }

    fn takes(&self, fixed: &str) -> bool {
        serde_json::from_str::<Fixed>(fixed).is_ok()
    }

    fn check(&self) -> Result<(), SinkError> {
        if let Some(tls) = &self.shared.tls {
            tls.refresh().map_err(|error| {
                SinkError::new(Class::Unreachable, "its TLS cannot be set up").caused_by(error)
            })?;
        }
        let credentials = self.shared.config.credentials.as_ref().map(Secret::read).transpose();
        credentials.map(drop).map_err(|error| {
            SinkError::new(Class::Unreachable, "its credentials cannot be read").caused_by(error)
        })
    }

    fn build(&self) -> Box<dyn Sink> {
        let throttle = Throttle::new(self.shared.limiter.clone());
        Box::new(NatsSink {
            shared: Arc::clone(&self.shared),
            throttle,
            memory: None,
            mark: None,
            sequence: (0, 0),
            progress: None,
        })
    }
}

struct NatsSink {
    shared: Arc<Shared>,
    throttle: Throttle,
    memory: Option<Arc<dyn Memory>>,
    /// Where a lookup would begin, as it was kept last.
    mark: Option<Mark>,
    /// When the stream was made, and the highest of its sequences that was answered.
    sequence: (i64, u64),
    progress: Option<Progress>,
}

impl NatsSink {
    /// Takes up the progress of this batch: that of the attempts before, or a new one. Says whether it is new.
    fn begin(&mut self, batch: &SealedBatch) -> Result<bool, SinkError> {
        let identity = batch.facts.identity();
        if self.progress.as_ref().is_some_and(|progress| progress.is_of(&identity)) {
            return Ok(false);
        }
        let records = usize::try_from(batch.facts.records).map_err(|error| {
            SinkError::new(Class::Retryable, "the batch is too large").caused_by(error)
        })?;
        self.progress = Some(Progress::new(identity, records));
        Ok(true)
    }

    fn progress(&mut self) -> &mut Progress {
        self.progress.as_mut().expect("a delivery begins with making it")
    }

    /// Keeps where a lookup for what is sent from now on would begin: durably before the first publish, and now and then later.
    async fn keep_mark(
        &mut self,
        earlier: bool,
        facts: Option<&StreamFacts>,
    ) -> Result<(), SinkError> {
        let known = facts.filter(|facts| facts.created == self.sequence.0);
        let now = Mark::now(facts, known.map_or(0, |_| self.sequence.1));
        let durable = match &self.mark {
            Some(mark) if mark.is_beside(&now) => {
                let step = (self.shared.config.lookup_max / MARKS_A_LOOKUP).max(1);
                // A batch that may have been sent is behind the mark that there is.
                if earlier || mark.distance(&now) < step {
                    return Ok(());
                }
                false
            }
            _ => true,
        };
        if let Some(memory) = &self.memory {
            let note = serde_json::to_string(&now).expect("texts and numbers are always JSON");
            memory.keep(note.into(), durable).await.map_err(|error| {
                let reason = "cannot keep where a lookup would begin";
                SinkError::new(Class::Retryable, reason).caused_by(error)
            })?;
        }
        self.mark = Some(now);
        Ok(())
    }

    /// Looks for a batch in the stream where a repeat may not be recognised.
    async fn look(
        &mut self,
        batch: &SealedBatch,
        link: &NatsLink,
        context: &Context,
        subjects: &SubjectPattern,
        facts: Option<&StreamFacts>,
    ) -> Result<(), SinkError> {
        let shared = Arc::clone(&self.shared);
        // What was given up may have been sent in front of where the mark has come to since.
        let noted = batch.note.as_deref().and_then(|note| serde_json::from_str(note).ok());
        // Without a mark nothing was ever published.
        let Some(mark) = noted.or_else(|| self.mark.clone()) else { return Ok(()) };
        let progress = self.progress();
        let window = facts.map_or(DUPLICATE_WINDOW, |facts| facts.duplicate_window);
        let now = shared.clock.monotonic();
        let is_late = progress.unknown_since().is_some_and(|since| now.since(since) > window / 2);
        if !is_late && (progress.looked || !batch.earlier) {
            return Ok(());
        }
        let looked = match (mark.start(facts), &shared.config.stream) {
            (Ok(after), Some(stream)) => {
                let (lane, messages_max) = (&batch.facts.place.lane, shared.config.lookup_max);
                Lookup { link, context, stream, after, subjects, lane, messages_max }.run().await?
            }
            (Ok(_), None) => Looked::Impossible("no `stream` is named".to_owned()),
            (Err(why), _) => Looked::Impossible(why),
        };
        let identity = batch.facts.identity();
        let progress = self.progress();
        match looked {
            Looked::Found(found) => {
                tracing::debug!(batch = identity, found = found.len(), "Looked into the stream");
                progress.found = Some(found);
                progress.checked_for = None;
            }
            Looked::Impossible(why) if shared.config.on_unknown == OnUnknown::Hold => {
                let reason = format!(
                    "what stream has of batch {identity} is unknown and cannot be looked up: {why}; on_unknown = \"hold\""
                );
                let error = SinkError::new(Class::Unreachable, reason);
                // It is the fault of this batch alone that its records lie so far back.
                return Err(if batch.note.is_some() { error.doubtful() } else { error });
            }
            Looked::Impossible(why) => {
                let count = if batch.earlier && !progress.looked {
                    progress.open()
                } else {
                    progress.unknown()
                };
                tracing::warn!(
                    batch = identity,
                    count,
                    why,
                    "Records are sent again that the stream may have, which cannot be looked up"
                );
                progress.resent += count;
            }
        }
        progress.looked = true;
        progress.settle_unknown();
        Ok(())
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn deliver(
        &mut self,
        batch: &SealedBatch,
        _attempt: u32,
    ) -> Result<Delivered, SinkError> {
        let (shared, throttle) = (Arc::clone(&self.shared), self.throttle.clone());
        let unusable = || SinkError::new(Class::Rejected, "what was fixed for NATS is unusable");
        let fixed: Fixed = serde_json::from_str(&batch.fixed).map_err(|_| unusable())?;
        let template = subject::parse_fixed(&fixed.subject).map_err(|_| unusable())?;
        let subjects = subject::pattern(&fixed.subject);
        let is_new = self.begin(batch)?;
        // The attempt before may have been cut off in the middle.
        self.progress().settle();
        let (link, context) = shared.connected(CONNECT_WAIT).await?;
        let facts = shared.facts(link, context, &subjects).await?;
        self.look(batch, link, context, &subjects, facts.as_ref()).await?;
        if is_new || self.mark.is_none() {
            self.keep_mark(batch.earlier, facts.as_ref()).await?;
        }
        let progress = self.progress();
        check(link, batch, &template, facts.as_ref(), &shared, progress).await?;
        let window = match shared.config.order {
            Order::Window => usize::from(shared.config.publish_window.max(1)),
            Order::Strict => 1,
        };
        let publisher = Publisher::new(
            context,
            link.watch(),
            throttle,
            Arc::clone(&shared.clock),
            shared.config.stream.as_deref(),
            window,
            // Shorter than the whole attempt may take, so that silence is told from slowness.
            shared.retry.attempt_timeout.mul_f64(0.7),
        );
        let result = send(&shared, publisher, batch, &template, progress).await;
        progress.settle();
        if let Some(subject) = progress.no_stream_for.take() {
            shared.forget_facts();
            return Err(shared.no_stream(context, &subject).await);
        }
        result?;
        if !progress.is_complete() {
            return Err(unreadable(batch, "there are fewer records than were sealed".into()));
        }
        let refused = progress.refused();
        let delivered = Delivered {
            records: batch.facts.records - refused.len() as u64,
            already: progress.already,
            bytes: progress.bytes,
            reordered: progress.reordered,
            resent: progress.resent,
            refused,
            ..Delivered::default()
        };
        if let Some(facts) = &facts {
            let before = if self.sequence.0 == facts.created { self.sequence.1 } else { 0 };
            self.sequence = (facts.created, before.max(self.progress().sequence));
        }
        self.progress = None;
        Ok(delivered)
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let (link, context) = self.shared.connected(CONNECT_WAIT).await?;
        if self.shared.config.stream.is_some() {
            self.shared.forget_facts();
            let subjects = subject::pattern(&self.shared.config.subject);
            return self.shared.facts(link, context, &subjects).await.map(drop);
        }
        let watch = link.watch();
        let before: LinkState = watch.borrow().clone();
        let asked = async {
            context.query_account().await.map(drop).map_err(|error| {
                let reason = format!("JetStream does not answer: {error}");
                SinkError::new(Class::Unreachable, reason)
            })
        };
        let refused = async {
            // Credentials that may only publish are fine: the server is there, and more cannot be asked.
            let mut watch = watch.clone();
            watch.wait_for(|state| state.refusals > before.refusals).await.is_ok()
        };
        tokio::select! {
            answer = tokio::time::timeout(PROBE_WAIT, asked) => match answer {
                Ok(result) => result,
                Err(_) => Err(SinkError::new(Class::Unreachable, "JetStream does not answer")),
            },
            true = refused => Ok(()),
        }
    }

    fn doubts(&self) -> Vec<String> {
        let known = self.shared.facts.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(stream), Some((_, facts))) = (&self.shared.config.stream, &*known) else {
            return Vec::new();
        };
        let why = match facts {
            None => "the credentials may not ask about it".to_owned(),
            Some(facts) if !facts.keeps => {
                let window = format_duration(facts.duplicate_window);
                format!(
                    "it does not keep what was read (its retention is not \"limits\"), and recognises a repeat for {window} only"
                )
            }
            Some(_) => return Vec::new(),
        };
        vec![format!(
            "what may have arrived cannot be looked up in stream {stream}: {why}; a backlog may be older"
        )]
    }

    fn remember(&mut self, memory: Arc<dyn Memory>) {
        // A note that is none of ours, of another kind of sink, tells of no publish of ours.
        self.mark = memory.recall().and_then(|note| serde_json::from_str(&note).ok());
        self.memory = Some(memory);
    }

    fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }
}

/// Checks every record before the first is sent, and notes which are refused and which the stream has.
async fn check(
    link: &NatsLink,
    batch: &SealedBatch,
    template: &Template,
    facts: Option<&StreamFacts>,
    shared: &Shared,
    progress: &mut Progress,
) -> Result<(), SinkError> {
    let stream_max =
        facts.and_then(|facts| facts.message_bytes_max.map(|max| (max, facts.name.clone())));
    let bounds = SizeBounds { server: link.client().max_payload(), stream: stream_max };
    if progress.checked_for.as_ref() == Some(&bounds) {
        return Ok(());
    }
    let (batch, template, stream) = (batch.clone(), template.clone(), shared.config.stream.clone());
    let (checked_for, found) = (bounds.clone(), progress.found.take().unwrap_or_default());
    let checked = tokio::task::spawn_blocking(move || {
        let mut messages = Messages::new(&template, &batch.facts.place.lane, stream.as_deref());
        let mut reader = batch.content.open();
        let (mut index, mut refused, mut there) = (0, Vec::new(), Vec::new());
        while let Some(block) = reader.next_block().map_err(|error| unreadable(&batch, error))? {
            for record in block.records() {
                let record = record.map_err(|error| unreadable(&batch, error.into()))?;
                if let Err(reason) = messages.check(&record, &bounds) {
                    refused.push((index, reason));
                } else if !found.is_empty() && found.contains(messages.identity_in_lane(&record)) {
                    there.push(index);
                }
                index += 1;
            }
        }
        Ok::<_, SinkError>((refused, there))
    });
    let (refused, there) = checked.await.map_err(died)??;
    progress.forget_refused();
    for (index, reason) in refused {
        progress.refuse(index, reason);
    }
    for index in there {
        progress.confirm(index, true);
    }
    // An earlier attempt has stored them, perhaps behind one that it has not.
    progress.settle();
    progress.checked_for = Some(checked_for);
    Ok(())
}

async fn send(
    shared: &Shared,
    mut publisher: Publisher<'_>,
    batch: &SealedBatch,
    template: &Template,
    progress: &mut Progress,
) -> Result<(), SinkError> {
    let stream = shared.config.stream.as_deref();
    let mut messages = Messages::new(template, &batch.facts.place.lane, stream);
    let mut reader = batch.content.open();
    let mut index = 0;
    let mut going = true;
    while going {
        let (used, block) = next_block(reader).await?;
        reader = used;
        let Some(block) = block.map_err(|error| unreadable(batch, error))? else { break };
        for record in block.records() {
            let record = record.map_err(|error| unreadable(batch, error.into()))?;
            if !progress.is_settled(index) {
                let message = messages.make(&record, &block.bytes)?;
                going = publisher.send(index, message, progress).await;
                if !going {
                    break;
                }
            }
            index += 1;
        }
    }
    publisher.finish(progress).await
}

type Block = Result<Option<FrameBlock>, crate::record::batch::ReadError>;

async fn next_block(
    mut reader: Box<dyn BlockReader>,
) -> Result<(Box<dyn BlockReader>, Block), SinkError> {
    let read = tokio::task::spawn_blocking(move || {
        let block = reader.next_block();
        (reader, block)
    });
    read.await.map_err(died)
}

fn unreadable(batch: &SealedBatch, error: crate::record::batch::ReadError) -> SinkError {
    let reason = format!("cannot read batch {}", batch.facts.identity());
    SinkError::new(Class::Retryable, reason).caused_by(error)
}

fn died(error: tokio::task::JoinError) -> SinkError {
    SinkError::new(Class::Retryable, "the reading thread died").caused_by(error)
}

#[cfg(test)]
mod tests;
