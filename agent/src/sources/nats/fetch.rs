//! Requests for messages: how many are asked for, what has come of it, and what the server says about it.
//!
//! No more is asked for than there is room for beside what the journal has not made durable. So requests follow the journal's
//! speed, and stop with it; a request that stands has heartbeats, so that one that the server has forgotten is noticed.

use std::time::Duration;

use async_nats::jetstream::consumer::pull::BatchConfig;
use async_nats::{Client, Message, StatusCode};
use tokio::time::Instant;

use super::consumer::Facts;
use super::error::NatsSourceError;
use crate::limits::{NATS_FETCH_BYTES, NATS_FETCH_MS, NATS_HEARTBEAT_MS, NATS_UNANSWERED_MAX};

/// What a message may have on the wire beside what the server's `max_payload` bounds.
const BESIDE_BYTES: usize = 64 * 1024;
/// A request is worth its way when it asks for so many, or nothing stands.
const WORTH: usize = NATS_UNANSWERED_MAX / 4;

pub(super) struct Fetch {
    consumer: String,
    /// Where requests go to, and where messages come to.
    subject: String,
    inbox: String,
    batch_max: usize,
    bytes_max: usize,
    expires: Duration,
    heartbeat: Duration,
    /// Messages that were asked for, and whose request stands.
    wanted: usize,
    heard: Instant,
    /// Whether a request has ended because the next message was too large for it, and nothing came since.
    too_large: bool,
}

impl Fetch {
    pub(super) fn new(facts: &Facts, inbox: String, max_payload: usize) -> Self {
        let (stream, consumer) = (&facts.origin.stream, facts.origin.consumer.clone());
        let expires = Duration::from_millis(NATS_FETCH_MS);
        let expires = facts.expires_max.map_or(expires, |max| max.min(expires));
        let bytes_max = NATS_FETCH_BYTES.max(max_payload + BESIDE_BYTES);
        Self {
            subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            consumer,
            inbox,
            batch_max: facts.batch_max.unwrap_or(usize::MAX),
            bytes_max: facts.bytes_max.map_or(bytes_max, |max| max.min(bytes_max)),
            expires,
            // The server takes at most half of the time that the request stands.
            heartbeat: Duration::from_millis(NATS_HEARTBEAT_MS).min(expires / 3),
            wanted: 0,
            heard: Instant::now(),
            too_large: false,
        }
    }

    /// When the server counts as silent; `None` while nothing is asked for.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        (self.wanted > 0).then(|| self.heard + self.patience())
    }

    pub(super) fn silent(&self) -> NatsSourceError {
        NatsSourceError::Silent { consumer: self.consumer.clone(), after: self.patience() }
    }

    fn patience(&self) -> Duration {
        self.heartbeat * 2 + Duration::from_secs(1)
    }

    /// Asks for as many as there is room for beside those that are held; for none when that is not worth a request.
    pub(super) async fn ask(
        &mut self,
        client: &Client,
        held: usize,
    ) -> Result<(), NatsSourceError> {
        let room = NATS_UNANSWERED_MAX.saturating_sub(held + self.wanted);
        let batch = room.min(self.batch_max);
        if batch == 0 || (self.wanted > 0 && (self.wanted > WORTH || batch < WORTH)) {
            return Ok(());
        }
        let request = BatchConfig {
            batch,
            expires: Some(self.expires),
            max_bytes: self.bytes_max,
            idle_heartbeat: self.heartbeat,
            ..BatchConfig::default()
        };
        let request = serde_json::to_vec(&request).expect("numbers are always JSON");
        let (subject, inbox) = (self.subject.clone(), self.inbox.clone());
        let asked = client.publish_with_reply(subject, inbox, request.into()).await;
        asked.map_err(|_| NatsSourceError::Stuck)?;
        if self.wanted == 0 {
            self.heard = Instant::now();
        }
        self.wanted += batch;
        Ok(())
    }

    /// A message has come.
    pub(super) fn arrived(&mut self) {
        self.heard = Instant::now();
        self.wanted = self.wanted.saturating_sub(1);
        self.too_large = false;
    }

    /// The server says something about a request.
    ///
    /// # Errors
    /// When no further request makes sense before both are looked at again.
    pub(super) fn told(
        &mut self,
        status: StatusCode,
        message: &Message,
    ) -> Result<(), NatsSourceError> {
        self.heard = Instant::now();
        let text = message.description.as_deref().unwrap_or_default();
        match status {
            StatusCode::IDLE_HEARTBEAT => return Ok(()),
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => {}
            StatusCode::REQUEST_TERMINATED if text.starts_with("Batch Completed") => {}
            StatusCode::REQUEST_TERMINATED if text.starts_with("Message Size Exceeds") => {
                if std::mem::replace(&mut self.too_large, true) {
                    let bytes = self.bytes_max;
                    return Err(self.ended(format!(
                        "the next message is larger than the {bytes} bytes that a request to it may ask for (max_bytes of the consumer)"
                    )));
                }
            }
            StatusCode::NO_RESPONDERS => return Err(self.ended("nobody answers for it".to_owned())),
            _ => return Err(self.ended(format!("{status} {text}"))),
        }
        // The request has ended, and this is what it has not brought.
        let left =
            message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        let left = left.and_then(|left| left.as_str().parse().ok()).unwrap_or(self.wanted);
        self.wanted = self.wanted.saturating_sub(left);
        Ok(())
    }

    fn ended(&self, reason: String) -> NatsSourceError {
        NatsSourceError::Ended { consumer: self.consumer.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::nats::stored::Origin;

    fn fetch(wanted: usize) -> Fetch {
        let origin = Origin {
            stream: "S".to_owned(),
            created: 0,
            consumer: "c".to_owned(),
            filters: Vec::new(),
        };
        let facts = Facts::for_test(origin);
        Fetch { wanted, ..Fetch::new(&facts, "inbox".to_owned(), 1 << 20) }
    }

    fn told(fetch: &mut Fetch, code: u16, text: &str, left: Option<&str>) -> Result<(), String> {
        let mut headers = async_nats::HeaderMap::new();
        if let Some(left) = left {
            headers.insert("Nats-Pending-Messages", left);
        }
        let status = StatusCode::from_u16(code).unwrap();
        let message = Message {
            subject: "inbox".into(),
            reply: None,
            payload: "".into(),
            headers: Some(headers),
            status: Some(status),
            description: Some(text.to_owned()),
            length: 0,
        };
        fetch.told(status, &message).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_a_request_has_not_brought_is_not_waited_for_any_more() {
        let mut fetch = fetch(100);
        told(&mut fetch, 100, "Idle Heartbeat", None).unwrap();
        assert_eq!(fetch.wanted, 100);
        told(&mut fetch, 408, "Request Timeout", Some("40")).unwrap();
        assert_eq!(fetch.wanted, 60);
        told(&mut fetch, 409, "Message Size Exceeds MaxBytes", None).unwrap();
        assert_eq!((fetch.wanted, fetch.silent_at()), (0, None));
        let error = told(&mut fetch, 409, "Message Size Exceeds MaxBytes", None).unwrap_err();
        assert!(error.contains("larger than"), "{error}");
        for (code, text) in [(409, "Consumer Deleted"), (409, "Server Shutdown"), (503, "")] {
            told(&mut fetch, code, text, None).unwrap_err();
        }
    }
}
