//! A stream and its durable consumer: looked at, judged, and the consumer made where it is not there.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, Info as ConsumerInfo, pull};
use async_nats::jetstream::context::{ConsumerInfoErrorKind, Context, GetStreamErrorKind};
use async_nats::jetstream::stream::{Info as StreamInfo, RetentionPolicy, Stream};
use async_nats::jetstream::{ErrorCode, Message};

use super::error::NatsSourceError;
use super::stored::{Deliveries, Delivery, Origin, Stored};
use crate::clock::Timestamp;
use crate::limits::NATS_UNANSWERED_MAX;

/// How long the server may take to answer.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// After so long without a word the server delivers a message again, of a consumer that is made here.
const ACK_WAIT: Duration = Duration::from_secs(30);

/// What the two are at one moment.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) origin: Origin,
    /// When the consumer was made, in nanoseconds since 1970.
    pub(super) consumer_created: i128,
    /// The stream's last sequence.
    pub(super) last: u64,
    /// Everything up to this sequence is acknowledged or is none of the consumer's.
    pub(super) ack_floor: u64,
    /// Number and sequence of the newest delivery.
    delivered: (u64, u64),
    /// How long the consumer waits for a word.
    pub(super) ack_wait: Duration,
    /// What one request may ask for, where the consumer bounds it.
    pub(super) batch_max: Option<usize>,
    pub(super) bytes_max: Option<usize>,
    pub(super) expires_max: Option<Duration>,
}

impl Facts {
    fn new(stream: &StreamInfo, consumer: &ConsumerInfo) -> Self {
        let config = &consumer.config;
        let positive = |value: i64| usize::try_from(value).ok().filter(|value| *value > 0);
        let mut filters = config.filter_subjects.clone();
        filters.extend(Some(config.filter_subject.clone()).filter(|filter| !filter.is_empty()));
        // The shortest of what it waits counts, if it waits longer each time.
        let ack_wait = config.backoff.iter().copied().min().unwrap_or(config.ack_wait);
        Self {
            origin: Origin {
                stream: stream.config.name.clone(),
                created: i64::try_from(stream.created.unix_timestamp_nanos()).unwrap_or(0),
                consumer: consumer.name.clone(),
                filters,
            },
            consumer_created: consumer.created.unix_timestamp_nanos(),
            last: stream.state.last_sequence,
            ack_floor: consumer.ack_floor.stream_sequence,
            delivered: (consumer.delivered.consumer_sequence, consumer.delivered.stream_sequence),
            ack_wait: if ack_wait.is_zero() { ACK_WAIT } else { ack_wait },
            batch_max: positive(config.max_batch),
            bytes_max: positive(config.max_bytes),
            expires_max: Some(config.max_expires).filter(|max| !max.is_zero()),
        }
    }

    #[cfg(test)]
    pub(super) fn for_test(origin: Origin) -> Self {
        Self {
            origin,
            consumer_created: 0,
            last: 0,
            ack_floor: 0,
            delivered: (0, 0),
            ack_wait: ACK_WAIT,
            batch_max: None,
            bytes_max: None,
            expires_max: None,
        }
    }

    /// What is stored of this stream, by what was known before.
    pub(super) fn stored(&self, known: Option<(Origin, Stored)>) -> Stored {
        let Some((origin, mut stored)) = known.filter(|(origin, _)| *origin == self.origin) else {
            return Stored::up_to(self.ack_floor);
        };
        if stored.top() > self.last {
            tracing::warn!(
                stream = origin.stream,
                last = self.last,
                stored = stored.top(),
                "The stream was set back to an earlier state, what it gives the same sequences to is taken"
            );
            stored.set_back(self.last);
        }
        stored.close(1, self.ack_floor.min(self.last));
        stored
    }

    /// What comes next comes behind what was delivered by now.
    pub(super) fn deliveries(&self) -> Deliveries {
        let (number, sequence) = self.delivered;
        Deliveries::behind(number, sequence)
    }
}

/// Where the two are, and how they are asked.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) context: Context,
    pub(super) stream: String,
    pub(super) consumer: String,
}

impl Place {
    /// Looks at both; the consumer is made if it is not there, behind what is known to be stored.
    pub(super) async fn open(
        &self,
        known: Option<&(Origin, Stored)>,
    ) -> Result<Facts, NatsSourceError> {
        let stream = self.stream().await?;
        let info = match self.consumer(&stream).await? {
            Some(info) => info,
            None => self.make(&stream, known).await?,
        };
        self.judge(&info)?;
        Ok(Facts::new(stream.cached_info(), &info))
    }

    /// Looks at both again, which are to be there.
    pub(super) async fn look(self) -> Result<Facts, NatsSourceError> {
        let stream = self.stream().await?;
        let info = self.consumer(&stream).await?.ok_or_else(|| NatsSourceError::Ended {
            consumer: self.consumer.clone(),
            reason: "it was deleted".to_owned(),
        })?;
        Ok(Facts::new(stream.cached_info(), &info))
    }

    async fn stream(&self) -> Result<Stream, NatsSourceError> {
        let what = || format!("tell of stream {}", self.stream);
        let answer = tokio::time::timeout(ANSWER_WAIT, self.context.get_stream(&self.stream)).await;
        answer.map_err(|_| late(what()))?.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(answer)
                if answer.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                NatsSourceError::NoStream { stream: self.stream.clone() }
            }
            _ => failed(what(), &error),
        })
    }

    async fn consumer(&self, stream: &Stream) -> Result<Option<ConsumerInfo>, NatsSourceError> {
        let what = || format!("tell of consumer {}", self.consumer);
        let answer = tokio::time::timeout(ANSWER_WAIT, stream.consumer_info(&self.consumer)).await;
        match answer.map_err(|_| late(what()))? {
            Ok(info) => Ok(Some(info)),
            Err(error) if matches!(error.kind(), ConsumerInfoErrorKind::NotFound) => Ok(None),
            Err(error) => Err(failed(what(), &error)),
        }
    }

    async fn make(
        &self,
        stream: &Stream,
        known: Option<&(Origin, Stored)>,
    ) -> Result<ConsumerInfo, NatsSourceError> {
        let info = stream.cached_info();
        let created = i64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0);
        let known = known.filter(|(origin, _)| {
            (&origin.stream, origin.created, &origin.consumer)
                == (&self.stream, created, &self.consumer)
        });
        // A stream that was set back has other messages behind its end.
        let floor = known.map_or(0, |(_, stored)| stored.floor().min(info.state.last_sequence));
        let deliver_policy = match floor {
            0 => DeliverPolicy::All,
            // Such a stream lets its consumers begin at its first message only; what was acknowledged is gone from it.
            _ if info.config.retention == RetentionPolicy::WorkQueue => DeliverPolicy::All,
            _ => DeliverPolicy::ByStartSequence { start_sequence: floor + 1 },
        };
        let config = pull::Config {
            durable_name: Some(self.consumer.clone()),
            deliver_policy,
            ack_policy: AckPolicy::Explicit,
            ack_wait: ACK_WAIT,
            max_deliver: -1,
            max_ack_pending: i64::try_from(2 * NATS_UNANSWERED_MAX).unwrap_or(i64::MAX),
            filter_subjects: known.map(|(origin, _)| origin.filters.clone()).unwrap_or_default(),
            ..pull::Config::default()
        };
        let what = || format!("make consumer {}", self.consumer);
        let made = tokio::time::timeout(ANSWER_WAIT, stream.create_consumer(config)).await;
        let made = made.map_err(|_| late(what()))?.map_err(|error| failed(what(), &error))?;
        tracing::info!(
            stream = self.stream,
            consumer = self.consumer,
            behind = floor,
            "The consumer was not there and is made"
        );
        Ok(made.cached_info().clone())
    }

    /// Whether a message may be acknowledged to it when it is stored, and comes again until then.
    fn judge(&self, info: &ConsumerInfo) -> Result<(), NatsSourceError> {
        let config = &info.config;
        let why = if config.deliver_subject.is_some() {
            "sends by itself and cannot be asked for messages (it is a push consumer)"
        } else if config.ack_policy != AckPolicy::Explicit {
            "does not wait for each message to be acknowledged (its ack policy is not explicit)"
        } else if config.headers_only {
            "gives headers without payloads"
        } else {
            if config.max_deliver > 0 {
                tracing::warn!(
                    consumer = self.consumer,
                    times = config.max_deliver,
                    "The consumer gives a message up that was delivered so often and not stored"
                );
            }
            return Ok(());
        };
        let (stream, consumer) = (self.stream.clone(), self.consumer.clone());
        Err(NatsSourceError::Unfit { stream, consumer, why })
    }
}

/// What a message says of its delivery, and when the stream has taken it; `None` when it does not come from a consumer.
pub(super) fn delivery(message: &Message) -> Option<(Delivery, Timestamp)> {
    let info = message.info().ok()?;
    let delivery = Delivery {
        number: info.consumer_sequence,
        sequence: info.stream_sequence,
        times: info.delivered,
    };
    let published = i64::try_from(info.published.unix_timestamp_nanos()).ok()?;
    Some((delivery, Timestamp(published)))
}

fn late(what: String) -> NatsSourceError {
    NatsSourceError::JetStream { what, reason: "no answer came".to_owned() }
}

fn failed(what: String, error: &(dyn std::error::Error + 'static)) -> NatsSourceError {
    NatsSourceError::JetStream { what, reason: crate::error_chain::Chain(error).to_string() }
}
