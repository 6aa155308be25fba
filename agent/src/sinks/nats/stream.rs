//! What the configured stream is: asked once for each session, where asking is permitted.

use std::sync::PoisonError;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{
    Context, GetStreamError, GetStreamErrorKind, RequestError, RequestErrorKind,
};
use async_nats::jetstream::stream::{Info, RetentionPolicy};

use super::{PROBE_WAIT, Shared};
use crate::net::nats::NatsLink;
use crate::record::subject::SubjectPattern;
use crate::sinks::{Class, SinkError};

/// What is known of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StreamFacts {
    pub(super) name: String,
    subjects: Vec<String>,
    /// Most bytes of a message, headers included.
    pub(super) message_bytes_max: Option<usize>,
    /// For how long it recognises a repeat.
    pub(super) duplicate_window: Duration,
    /// Whether messages stay when somebody has read them, so that they can be looked for.
    pub(super) keeps: bool,
    /// When it was made, in nanoseconds since 1970: another stream of the name has another time.
    pub(super) created: i64,
    /// Its last sequence when it was asked.
    pub(super) last_sequence: u64,
}

impl StreamFacts {
    fn new(info: &Info) -> Self {
        let config = &info.config;
        Self {
            name: config.name.clone(),
            subjects: config.subjects.clone(),
            // Zero and less stand for none.
            message_bytes_max: usize::try_from(config.max_message_size).ok().filter(|max| *max > 0),
            duplicate_window: config.duplicate_window,
            keeps: config.retention == RetentionPolicy::Limits,
            created: i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0),
            last_sequence: info.state.last_sequence,
        }
    }

    /// Whether it may take something that is published under the pattern.
    fn may_take(&self, wanted: &SubjectPattern) -> bool {
        // A mirror has no subjects of its own, and what the server writes there may be more than we know.
        let known = self.subjects.iter().map(|subject| subject.parse::<SubjectPattern>());
        self.subjects.is_empty()
            || known.into_iter().any(|taken| taken.map_or(true, |taken| taken.overlaps(wanted)))
    }
}

impl Shared {
    /// What the configured stream is; `None` when none is configured or asking is not permitted.
    pub(super) async fn facts(
        &self,
        link: &NatsLink,
        context: &Context,
        wanted: &SubjectPattern,
    ) -> Result<Option<StreamFacts>, SinkError> {
        let Some(stream) = &self.config.stream else { return Ok(None) };
        let session = link.watch().borrow().sessions;
        let known = self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let facts = match known {
            Some((of, facts)) if of == session => facts,
            _ => self.ask(link, context, stream, wanted).await?,
        };
        if let Some(facts) = facts.as_ref().filter(|facts| !facts.may_take(wanted)) {
            // It may be mended before the next attempt.
            self.forget_facts();
            let reason = format!(
                "stream {stream} takes {}, not {wanted}; add a subject that covers it",
                facts.subjects.join(", ")
            );
            return Err(SinkError::new(Class::Unreachable, reason).answered());
        }
        let remembered = Some((session, facts.clone()));
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = remembered;
        Ok(facts)
    }

    pub(super) fn forget_facts(&self) {
        *self.facts.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn ask(
        &self,
        link: &NatsLink,
        context: &Context,
        stream: &str,
        wanted: &SubjectPattern,
    ) -> Result<Option<StreamFacts>, SinkError> {
        let mut watch = link.watch();
        let before = watch.borrow().refusals;
        let refused = watch.wait_for(|state| state.refusals > before);
        tokio::select! {
            answer = tokio::time::timeout(PROBE_WAIT, context.get_stream(stream)) => match answer {
                Ok(Ok(found)) => Ok(Some(StreamFacts::new(found.cached_info()))),
                Ok(Err(error)) => Err(self.unusable(stream, wanted.as_str(), &error)),
                Err(_) => Err(SinkError::new(Class::Unreachable, "JetStream does not answer")),
            },
            // Credentials that may only publish are fine: whether the stream is there, only a delivery can tell.
            Ok(_) = refused => Ok(None),
        }
    }

    /// No stream has taken a subject: why.
    pub(super) async fn no_stream(&self, context: &Context, subject: &str) -> SinkError {
        let Some(stream) = &self.config.stream else {
            let reason = format!(
                "no stream on this server takes subject {subject}, or JetStream is off; create one with a subject that covers it"
            );
            return SinkError::new(Class::Unreachable, reason).answered();
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
        SinkError::new(Class::Unreachable, reason).answered()
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
