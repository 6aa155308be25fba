//! The sink that publishes records to NATS JetStream, with the record identity as `Nats-Msg-Id`.
//!
//! A message is the record: payload as it is, headers as NATS headers, subject from the template. The lanes of one sink share
//! a connection, which is made when the first of them needs it.
//!
//! | what happens | class |
//! |---|---|
//! | no connection, refused, TLS, credentials, permission; no stream for the subject, another stream than configured, JetStream off, stream full or sealed, no resources; any other refusal that is not about the message | unreachable |
//! | no answer while the session lasts; the batch cannot be read from the journal | retryable |
//! | headers and payload over the server's `max_payload` or the stream's `max_msg_size`; a subject, header name or header value that NATS cannot carry; a header that is a command to the server | rejected |
//!
//! There is no conflict: a stream recognises a repeat by its identity and does not compare contents.

pub mod config;
mod message;
mod progress;
mod publish;
mod subject;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    Context, ContextBuilder, GetStreamError, GetStreamErrorKind, RequestError, RequestErrorKind,
};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

pub use subject::{SUBJECT_FIELDS, parse_subject_template};

use self::config::NatsSinkConfig;
use self::message::Messages;
use self::progress::Progress;
use self::publish::{Publisher, lost};
use super::config::RetryConfig;
use super::{Class, Delivered, Sink, SinkBuilder, SinkError, Throttle};
use crate::limiter::Limiter;
use crate::limits::NATS_COMMANDS_MAX;
use crate::net::nats::{LinkState, NatsLink};
use crate::record::batch::{BatchFacts, BlockReader, FrameBlock, SealedBatch};
use crate::record::id::SinkId;
use crate::record::template::Template;

/// How long an attempt waits for a connection that is being made.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long a probe waits for an answer.
const PROBE_WAIT: Duration = Duration::from_secs(5);

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
    limiter: Option<Arc<Limiter>>,
    link: OnceCell<(NatsLink, Context)>,
}

impl Shared {
    async fn link(&self) -> Result<&(NatsLink, Context), SinkError> {
        let start = || async {
            let name = format!("waystation {}", self.id);
            let credentials = self.config.credentials.clone();
            let link = NatsLink::start(&self.config.servers, credentials, &name).await?;
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
        let link = self.link().await?;
        let state = link.0.wait_connected(at_most).await;
        if state.connected { Ok(link) } else { Err(lost(&state)) }
    }

    /// No stream has taken a subject: why.
    async fn no_stream(&self, context: &Context, subject: &str) -> SinkError {
        let Some(stream) = &self.config.stream else {
            let reason = format!(
                "no stream on this server takes subject {subject}, or JetStream is off; create one with a subject that covers it"
            );
            return SinkError::new(Class::Unreachable, reason);
        };
        let reason = match tokio::time::timeout(PROBE_WAIT, context.get_stream(stream)).await {
            Ok(Ok(found)) => format!(
                "stream {stream} takes {}, not {subject}; add a subject that covers it",
                found.cached_info().config.subjects.join(", ")
            ),
            Ok(Err(error)) => return self.unusable(stream, subject, &error),
            // It may not ask.
            Err(_) => {
                format!("stream {stream} does not exist on this server or does not take {subject}")
            }
        };
        SinkError::new(Class::Unreachable, reason)
    }

    /// What the answer to a question about the stream means; `subject` is what it is to take.
    fn unusable(&self, stream: &str, subject: &str, error: &GetStreamError) -> SinkError {
        let code = match error.kind() {
            GetStreamErrorKind::JetStream(answer) => Some(answer.error_code()),
            _ => None,
        };
        let off = [ErrorCode::JETSTREAM_NOT_ENABLED, ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT];
        let no_responders = std::error::Error::source(error)
            .and_then(|source| source.downcast_ref::<RequestError>())
            .is_some_and(|error| error.kind() == RequestErrorKind::NoResponders);
        let reason = if code == Some(ErrorCode::STREAM_NOT_FOUND) {
            format!(
                "stream {stream} does not exist on this server; create it with a subject that covers {subject}"
            )
        } else if no_responders || code.is_some_and(|code| off.contains(&code)) {
            format!(
                "JetStream is off on this server or for this account; stream {stream} is to take {subject}"
            )
        } else {
            format!("JetStream does not answer for stream {stream}: {error}")
        };
        SinkError::new(Class::Unreachable, reason)
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
        retry: RetryConfig,
        limiter: Option<Arc<Limiter>>,
    ) -> Self {
        Self { shared: Arc::new(Shared { id, config, retry, limiter, link: OnceCell::new() }) }
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

    fn build(&self) -> Box<dyn Sink> {
        let throttle = Throttle::new(self.shared.limiter.clone());
        Box::new(NatsSink { shared: Arc::clone(&self.shared), throttle, progress: None })
    }
}

struct NatsSink {
    shared: Arc<Shared>,
    throttle: Throttle,
    progress: Option<Progress>,
}

impl NatsSink {
    /// The progress of this batch: that of the attempts before, or a new one.
    fn progress(&mut self, batch: &SealedBatch) -> Result<&mut Progress, SinkError> {
        let identity = batch.facts.identity();
        if !self.progress.as_ref().is_some_and(|progress| progress.is_of(&identity)) {
            let records = usize::try_from(batch.facts.records).map_err(|error| {
                SinkError::new(Class::Retryable, "the batch is too large").caused_by(error)
            })?;
            self.progress = Some(Progress::new(identity, records));
        }
        Ok(self.progress.as_mut().expect("was made above when it was not there"))
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
        let fixed: Option<Fixed> = serde_json::from_str(&batch.fixed).ok();
        let template =
            fixed.and_then(|fixed| subject::parse_fixed(&fixed.subject).ok()).ok_or_else(|| {
                SinkError::new(Class::Rejected, "what was fixed for NATS is unusable")
            })?;
        let progress = self.progress(batch)?;
        // The attempt before may have been cut off in the middle.
        progress.settle();
        let (link, context) = shared.connected(CONNECT_WAIT).await?;
        check(&shared, link, batch, &template, progress).await?;
        let publisher = Publisher::new(
            context,
            link.watch(),
            throttle,
            shared.config.stream.as_deref(),
            usize::from(shared.config.publish_window.max(1)),
            // Shorter than the whole attempt may take, so that silence is told from slowness.
            shared.retry.attempt_timeout.mul_f64(0.7),
        );
        let result = send(&shared, publisher, batch, &template, progress).await;
        progress.settle();
        if let Some(subject) = progress.no_stream_for.take() {
            return Err(shared.no_stream(context, &subject).await);
        }
        result?;
        if !progress.is_complete() {
            return Err(unreadable(batch, "there are fewer records than were sealed".into()));
        }
        let delivered = Delivered {
            records: batch.facts.records,
            already: progress.already,
            bytes: progress.bytes,
            files: 0,
            reordered: progress.reordered,
            refused: Vec::new(),
        };
        self.progress = None;
        Ok(delivered)
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let (link, context) = self.shared.connected(CONNECT_WAIT).await?;
        let watch = link.watch();
        let before: LinkState = watch.borrow().clone();
        let asked = async {
            match &self.shared.config.stream {
                Some(stream) => context.get_stream(stream).await.map(drop).map_err(|error| {
                    self.shared.unusable(stream, &self.shared.config.subject, &error)
                }),
                None => context.query_account().await.map(drop).map_err(|error| {
                    let reason = format!("JetStream does not answer: {error}");
                    SinkError::new(Class::Unreachable, reason)
                }),
            }
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

    fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }
}

/// Checks every record before the first is sent, so that nothing of a batch that cannot be sent as a whole is.
async fn check(
    shared: &Shared,
    link: &NatsLink,
    batch: &SealedBatch,
    template: &Template,
    progress: &mut Progress,
) -> Result<(), SinkError> {
    let payload_max = link.client().max_payload();
    if progress.checked_for == Some(payload_max) {
        return Ok(());
    }
    let (batch, template, stream) = (batch.clone(), template.clone(), shared.config.stream.clone());
    let checked = tokio::task::spawn_blocking(move || {
        let mut messages = Messages::new(&template, &batch.facts.place.lane, stream.as_deref());
        let mut reader = batch.content.open();
        while let Some(block) = reader.next_block().map_err(|error| unreadable(&batch, error))? {
            for record in block.records() {
                let record = record.map_err(|error| unreadable(&batch, error.into()))?;
                messages.check(&record, payload_max)?;
            }
        }
        Ok::<(), SinkError>(())
    });
    checked.await.map_err(died)??;
    progress.checked_for = Some(payload_max);
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
            if !progress.is_confirmed(index) {
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
