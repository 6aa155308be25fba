//! Looks for a batch's messages in the stream before they are sent again.
//!
//! A stream recognises a repeat by its identity, within its duplicate window. When it is not sure that a repeat would come
//! within it, what the stream has is looked up instead:
//!
//! 1. Before the first publish of a lane, a [`Mark`] is kept durably: the stream, when it was made, and its last sequence. What
//!    the lane sends stands behind it. From then on the mark follows the lane from time to time, before a new batch is sent.
//!    Records that are given up keep the mark of that time, and are looked for from there when they are sent again.
//! 2. A batch of which an attempt is unknown for longer than half the window, and one that an earlier session may have sent, is
//!    looked for: a consumer in memory, of headers only, without acks, filtered to the lane's subjects, reads from the mark to
//!    the end of that moment.
//! 3. What carries an identity of the batch is delivered; the rest is sent.
//!
//! A crash between 1 and the next mark makes a lookup longer, never wrong.

use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::context::Context;
use async_nats::jetstream::stream::ConsumerErrorKind;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use super::message::MESSAGE_ID;
use super::stream::StreamFacts;
use crate::limits::NATS_LOOKUP_MESSAGES;
use crate::net::nats::NatsLink;
use crate::record::id::LaneName;
use crate::record::subject::SubjectPattern;
use crate::sinks::{Class, SinkError};

/// How long one piece of a lookup waits.
const PIECE_WAIT: Duration = Duration::from_secs(5);
/// A consumer that nobody reads any more goes by itself after this.
const CONSUMER_IDLE: Duration = Duration::from_secs(30);

/// Where a lookup begins. Stored as the lane's note: fields may be added, none may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    /// The stream; `None` when it could not be asked.
    stream: Option<String>,
    /// When it was made, in nanoseconds since 1970.
    created: i64,
    /// The last sequence that was there before.
    sequence: u64,
}

impl Mark {
    /// In front of everything that is sent from now on; `sequence` is the highest that is known.
    pub(super) fn now(facts: Option<&StreamFacts>, sequence: u64) -> Self {
        match facts {
            Some(facts) => Self {
                stream: Some(facts.name.clone()),
                created: facts.created,
                sequence: facts.last_sequence.max(sequence),
            },
            None => Self { stream: None, created: 0, sequence: 0 },
        }
    }

    /// Whether both are about one stream.
    pub(super) fn is_beside(&self, other: &Self) -> bool {
        (&self.stream, self.created) == (&other.stream, other.created)
    }

    /// How many sequences lie between this one and a later one.
    pub(super) fn distance(&self, later: &Self) -> u64 {
        later.sequence.saturating_sub(self.sequence)
    }

    /// Where to begin in the stream as it is now.
    ///
    /// # Errors
    /// Why nothing can be looked up there.
    pub(super) fn start(&self, facts: Option<&StreamFacts>) -> Result<u64, String> {
        let Some(facts) = facts else {
            return Err("the stream cannot be asked; name it in `stream`, and permit it".to_owned());
        };
        let name = &facts.name;
        if self.stream.is_none() {
            return Err(format!("stream {name} could not be asked before the first publish"));
        }
        if self.stream.as_ref() != Some(name) || self.created != facts.created {
            return Err(format!("stream {name} is not the one that was published to"));
        }
        if self.sequence > facts.last_sequence {
            return Err(format!("stream {name} was set back to an earlier state"));
        }
        if !facts.keeps {
            return Err(format!("stream {name} does not keep what was read from it"));
        }
        Ok(self.sequence)
    }
}

/// What a lookup has brought.
pub(super) enum Looked {
    /// Identities within the lane that the stream has.
    Found(HashSet<String>),
    /// Why it is not possible.
    Impossible(String),
}

/// One lookup.
pub(super) struct Lookup<'a> {
    pub(super) link: &'a NatsLink,
    pub(super) context: &'a Context,
    pub(super) stream: &'a str,
    /// The last sequence that is not looked at.
    pub(super) after: u64,
    pub(super) subjects: &'a SubjectPattern,
    pub(super) lane: &'a LaneName,
    /// Most messages that are looked at.
    pub(super) messages_max: u64,
}

impl Lookup<'_> {
    /// Looks. An error is one that another try may not meet.
    pub(super) async fn run(self) -> Result<Looked, SinkError> {
        let mut watch = self.link.watch();
        let before = watch.borrow().refusals;
        let refused = watch.wait_for(|state| state.refusals > before);
        tokio::select! {
            looked = self.look() => looked,
            Ok(_) = refused => {
                let why = format!("reading stream {} is not permitted", self.stream);
                Ok(Looked::Impossible(why))
            }
        }
    }

    async fn look(&self) -> Result<Looked, SinkError> {
        let failed = |error: &dyn std::fmt::Display| {
            let reason = format!("cannot look into stream {}: {error}", self.stream);
            SinkError::new(Class::Unreachable, reason)
        };
        let stream = self.context.get_stream_no_info(self.stream);
        let stream = stream.await.map_err(|error| failed(&error))?;
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.after + 1 },
            ack_policy: AckPolicy::None,
            filter_subject: self.subjects.to_string(),
            headers_only: true,
            memory_storage: true,
            num_replicas: 1,
            inactive_threshold: CONSUMER_IDLE,
            ..pull::Config::default()
        };
        let created = stream.create_consumer(config).await;
        let consumer = match created {
            Ok(consumer) => consumer,
            Err(error) => {
                return match error.kind() {
                    // What the server answers to the request itself, and not for want of resources.
                    ConsumerErrorKind::JetStream(answer) if answer.code() == 400 => {
                        Ok(Looked::Impossible(format!("the server refuses to read: {answer}")))
                    }
                    _ => Err(failed(&error)),
                };
            }
        };
        let (name, pending) = (&consumer.cached_info().name, consumer.cached_info().num_pending);
        let looked = if pending > self.messages_max {
            let max = self.messages_max;
            Ok(Looked::Impossible(format!(
                "there are {pending} messages to look at, more than `lookup_max` {max}"
            )))
        } else {
            self.read(&consumer, pending).await.map(Looked::Found)
        };
        // One that stays goes by itself.
        let _gone = tokio::time::timeout(PIECE_WAIT, stream.delete_consumer(name)).await;
        looked
    }

    async fn read(
        &self,
        consumer: &async_nats::jetstream::consumer::PullConsumer,
        pending: u64,
    ) -> Result<HashSet<String>, SinkError> {
        let failed = |error: &dyn std::fmt::Display| {
            let reason = format!("cannot read stream {}: {error}", self.stream);
            SinkError::new(Class::Unreachable, reason)
        };
        let mut found = HashSet::new();
        let mut left = pending;
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(NATS_LOOKUP_MESSAGES);
            let batch = consumer.batch().max_messages(wanted).expires(PIECE_WAIT).messages();
            let mut messages = batch.await.map_err(|error| failed(&error))?;
            let mut read = 0;
            while let Some(message) = messages.next().await {
                let message = message.map_err(|error| failed(&error))?;
                read += 1;
                let id = message.headers.as_ref().and_then(|headers| headers.get(MESSAGE_ID));
                let ours = id.and_then(|id| id.as_str().strip_prefix(self.lane.as_str()));
                if let Some(within) = ours.and_then(|rest| rest.strip_prefix('/')) {
                    found.insert(within.to_owned());
                }
                // What the stream has let go meanwhile does not come.
                if message.info().map_err(|error| failed(&error))?.pending == 0 {
                    return Ok(found);
                }
            }
            if read == 0 {
                return Err(failed(&"it stopped answering"));
            }
            left = left.saturating_sub(read);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_this_json_for_ever() {
        let mark = Mark { stream: Some("EDGE".to_owned()), created: 7, sequence: 42 };
        let text = r#"{"stream":"EDGE","created":7,"sequence":42}"#;
        assert_eq!(serde_json::to_string(&mark).unwrap(), text);
        assert_eq!(serde_json::from_str::<Mark>(text).unwrap(), mark);
    }
}
