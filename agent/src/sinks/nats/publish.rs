//! Publishes one batch through a window of unanswered messages.
//!
//! At the first refusal or silence nothing more is sent, the outstanding answers are waited for, and the error of the
//! foremost record is reported. The next attempt sends what is not confirmed.
//!
//! The window ends with its batch: the last answers are waited for before the next batch begins. Running on into that would
//! leave parts of several batches under way when one fails, and gain little. Over a link of 20 ms each way, batches of 1000
//! records (the default) go at 0.98 of the rate of a window that is never emptied, batches of 100 at 0.81 (`cargo xtask bench
//! delivery`). Whoever wants more of a slow link takes larger batches, and a larger window.

use std::future::IntoFuture as _;
use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::context::{Context, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, ErrorCode};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::watch;

use super::message::Message;
use super::progress::Progress;
use crate::clock::SharedClock;
use crate::net::nats::LinkState;
use crate::sinks::{Class, SinkError, Throttle};

/// How long outstanding answers are waited for after a failure.
const DRAIN: Duration = Duration::from_secs(5);
/// How long silence may last once the server has sent an error: what it refused so gets no answer.
const AFTER_REFUSAL: Duration = Duration::from_secs(2);

/// What a message takes on the wire beside its subject, headers and payload: the command with its sizes and line ends, and
/// the inbox for the answer.
const COMMAND_BYTES: u64 = 80;

type Answer = (Sent, Result<PublishAck, PublishError>);

/// A message that was sent.
struct Sent {
    index: usize,
    subject: Subject,
    /// Headers and payload.
    size: usize,
}

/// What ended a wait.
enum Woke {
    Answer(Box<Answer>),
    Changed,
    Silence,
}

/// One attempt.
pub(super) struct Publisher<'a> {
    pub(super) context: &'a Context,
    pub(super) link: watch::Receiver<LinkState>,
    /// The session in which the attempt began.
    pub(super) began: LinkState,
    throttle: Throttle,
    clock: SharedClock,
    pub(super) stream: Option<&'a str>,
    pub(super) window: usize,
    /// Time without any answer after which the attempt has failed.
    pub(super) silence: Duration,
    outstanding: FuturesUnordered<BoxFuture<'static, Answer>>,
    failure: Option<(usize, SinkError)>,
    /// Whether answers were waited for long enough.
    silent: bool,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(
        context: &'a Context,
        link: watch::Receiver<LinkState>,
        throttle: Throttle,
        clock: SharedClock,
        stream: Option<&'a str>,
        window: usize,
        silence: Duration,
    ) -> Self {
        let began = link.borrow().clone();
        Self {
            context,
            link,
            began,
            throttle,
            clock,
            stream,
            window,
            silence,
            outstanding: FuturesUnordered::new(),
            failure: None,
            silent: false,
        }
    }

    /// Sends one message when the window has room. Returns false once the attempt has failed.
    pub(super) async fn send(
        &mut self,
        index: usize,
        message: Message,
        progress: &mut Progress,
    ) -> bool {
        while let Some(Some(answer)) = self.outstanding.next().now_or_never() {
            self.note(answer, progress);
        }
        while self.failure.is_none() && self.outstanding.len() >= self.window {
            self.wait(progress).await;
        }
        if self.failure.is_some() {
            return false;
        }
        let bytes = message.bytes;
        let sent = Sent { index, subject: message.subject.clone(), size: message.size };
        self.throttle.pay(bytes + COMMAND_BYTES, 1).await;
        let publish = PublishMessage::build().payload(message.payload).headers(message.headers);
        progress.asked(index, self.clock.monotonic());
        match self.context.send_publish(message.subject, publish).await {
            Ok(answer) => {
                let answer = answer.into_future();
                self.outstanding.push(async move { (sent, answer.await) }.boxed());
                progress.bytes += bytes;
            }
            Err(error) => self.note((sent, Err(error)), progress),
        }
        self.failure.is_none()
    }

    /// Waits for the outstanding answers.
    ///
    /// # Errors
    /// The failure of the foremost record.
    pub(super) async fn finish(mut self, progress: &mut Progress) -> Result<(), SinkError> {
        while self.failure.is_none() && !self.outstanding.is_empty() {
            self.wait(progress).await;
        }
        // Answers to what was sent in an ended session do not come any more.
        let deadline = tokio::time::Instant::now() + DRAIN;
        while !self.silent && self.session_lasts() && !self.outstanding.is_empty() {
            match tokio::time::timeout_at(deadline, self.outstanding.next()).await {
                Ok(Some(answer)) => self.note(answer, progress),
                Ok(None) | Err(_) => break,
            }
        }
        match self.failure {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn session_lasts(&self) -> bool {
        let now = self.link.borrow();
        now.connected && now.sessions == self.began.sessions
    }

    /// Waits for the next answer, the end of the session, or too much silence.
    async fn wait(&mut self, progress: &mut Progress) {
        let refused = self.link.borrow().refusals > self.began.refusals;
        let limit = if refused { AFTER_REFUSAL.min(self.silence) } else { self.silence };
        let sessions = self.began.sessions;
        let refusals = self.link.borrow().refusals;
        let changed = self.link.wait_for(|state| {
            !state.connected || state.sessions != sessions || state.refusals != refusals
        });
        let woke = tokio::select! {
            biased;
            Some(answer) = self.outstanding.next() => Woke::Answer(Box::new(answer)),
            _ = changed => Woke::Changed,
            () = tokio::time::sleep(limit) => Woke::Silence,
        };
        match woke {
            Woke::Answer(answer) => self.note(*answer, progress),
            // A new refusal shortens the limit: look again.
            Woke::Changed if self.session_lasts() => {}
            Woke::Changed => {
                let error = lost(&self.link.borrow());
                self.fail(usize::MAX, error);
            }
            Woke::Silence => {
                self.silent = true;
                let error = match &self.link.borrow().last_error {
                    Some(error) if refused => SinkError::new(
                        Class::Unreachable,
                        format!("the NATS server refuses to take messages: {error}"),
                    ),
                    _ => SinkError::new(
                        Class::Retryable,
                        format!("no answer from JetStream for {} s", limit.as_secs()),
                    )
                    .doubtful(),
                };
                self.fail(usize::MAX, error);
            }
        }
    }

    fn note(&mut self, (sent, result): Answer, progress: &mut Progress) {
        let index = sent.index;
        let error = match result {
            Ok(ack) => match self.check(&ack) {
                Ok(duplicate) => {
                    progress.sequence = progress.sequence.max(ack.sequence);
                    progress.confirm(index, duplicate);
                    return;
                }
                Err(error) => error,
            },
            Err(error) => {
                if error.kind() == PublishErrorKind::StreamNotFound {
                    progress.no_stream_for.get_or_insert(sent.subject);
                }
                classify(&error)
            }
        };
        if error.answered {
            progress.not_taken(index);
        }
        // The others of the batch are taken none the less.
        if error.class == Class::Rejected {
            let size = sent.size;
            progress.refuse(index, format!("{} (size incl. headers {size})", error.reason));
        } else {
            self.fail(index, error);
        }
    }

    /// Whether the answer says that the message is stored, and whether it was before.
    fn check(&self, ack: &PublishAck) -> Result<bool, SinkError> {
        if ack.stream.is_empty() || ack.sequence == 0 {
            return Err(SinkError::new(
                Class::Unreachable,
                "something answered that is not JetStream: its answer names no stream and sequence",
            ));
        }
        if let Some(stream) = self.stream
            && ack.stream != stream
        {
            return Err(SinkError::new(
                Class::Unreachable,
                format!("stream {} took the message instead of {stream}", ack.stream),
            ));
        }
        Ok(ack.duplicate)
    }

    fn fail(&mut self, index: usize, error: SinkError) {
        if self.failure.as_ref().is_none_or(|(foremost, _)| index < *foremost) {
            self.failure = Some((index, error));
        }
    }
}

/// There is no session, or another one than before.
pub(super) fn lost(state: &LinkState) -> SinkError {
    let why = match &state.last_error {
        _ if state.connected => "the connection to NATS was lost in between".to_owned(),
        Some(error) => format!("not connected to NATS: {error}"),
        None => "not connected to NATS".to_owned(),
    };
    SinkError::new(Class::Unreachable, why)
}

/// What a failed publish means; see the table of the module above.
fn classify(error: &PublishError) -> SinkError {
    use std::error::Error as _;

    let answer = error.source().and_then(|source| source.downcast_ref::<jetstream::Error>());
    if let Some(answer) = answer {
        let class = match answer.error_code() {
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM
            | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => Class::Rejected,
            _ => Class::Unreachable,
        };
        return SinkError::new(class, format!("JetStream refused a message: {answer}")).answered();
    }
    match error.kind() {
        PublishErrorKind::StreamNotFound => {
            SinkError::new(Class::Unreachable, "no stream takes the subject, or JetStream is off")
                .answered()
        }
        PublishErrorKind::TimedOut => {
            SinkError::new(Class::Retryable, "no answer from JetStream").doubtful()
        }
        // The client has not sent it.
        PublishErrorKind::MaxPayloadExceeded => {
            SinkError::new(Class::Rejected, "exceeds server max_payload").answered()
        }
        PublishErrorKind::BrokenPipe => {
            SinkError::new(Class::Unreachable, "the connection to NATS was lost")
        }
        _ => SinkError::new(Class::Retryable, format!("cannot publish: {error}")),
    }
}
