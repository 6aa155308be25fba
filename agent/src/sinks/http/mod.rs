//! The sink that sends each batch as one HTTP request, with the batch identity as `Idempotency-Key`.
//!
//! Any 2xx means that the destination has the batch for good; one that recognises the key answers a repeat in the same way.
//! The bytes of a body are fixed when the batch is sealed; the endpoint, its headers and its TLS are those of the
//! config. No redirect is followed: it would carry records and secrets to where nobody has sent them. The lanes of one sink
//! share a client and its connections. What this module does not know: retries, other than one with a new token.
//!
//! | what happens | class | answered |
//! |---|---|---|
//! | refused, no such name, no route, TLS (certificates replaced on disk are taken up by the next connection), connect timeout, no token to be had, a header's secret that cannot be read | unreachable | |
//! | 3xx; 401 (also with a new token), 403, 404, 405, 407, 410 | unreachable | |
//! | 502, 503, 504; silence | unreachable, doubtful | |
//! | 408, 425, 429, 500, other 5xx | retryable | yes |
//! | the connection breaks; the batch cannot be read from the journal | retryable | |
//! | 400, 413, 415, 422, other 4xx | rejected, the batch as a whole | yes |
//! | a newline in a payload under `format = "ndjson"`, a payload that is no JSON under `"json"` (with `envelope` neither matters) | the record is refused by name, the others are sent | |
//! | over [`HTTP_REFUSED_MAX`](crate::limits::HTTP_REFUSED_MAX) of those; a fixed part of an unknown kind | rejected, the batch as a whole | |
//! | a status of `conflict_status` | conflict | yes |
//!
//! The time of an attempt covers making the body, too: large batches with strong compression want a longer `attempt_timeout`.
//! `Retry-After` counts with every failure, in both forms, up to [`RETRY_AFTER_MS_MAX`](crate::limits::RETRY_AFTER_MS_MAX).
//! Errors show method, URL without query, status, and the first bytes of the answer without the secrets that were sent.

mod answer;
mod body;
pub mod config;
mod token;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use reqwest::{Client, RequestBuilder, StatusCode};
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use self::answer::Answer;
use self::body::{Encoding, Measured};
use self::config::HttpSinkConfig;
use self::token::{Token, Tokens};
use super::config::RetryConfig;
use super::{Class, Delivered, Sink, SinkBuilder, SinkError, Throttle};
use crate::clock::SharedClock;
use crate::limiter::Limiter;
use crate::limits::{HTTP_BODY_KEPT_BYTES_MAX, HTTP_CONNECT_MS_MAX, HTTP_TOKEN_MS_MAX};
use crate::net::config::NetConfig;
use crate::net::http::{Endpoint, Unanswered, client, observe};
use crate::net::tls::ClientTls;
use crate::record::batch::{BatchFacts, SealedBatch};
use crate::secret::{Secret, Value};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The part of an attempt's time after which silence is called so, before the lane gives the attempt up.
const SILENCE_SHARE: f64 = 0.9;

/// A configured HTTP sink.
#[derive(Debug)]
pub(super) struct HttpSinkBuilder {
    shared: Arc<Shared>,
    limiter: Option<Arc<Limiter>>,
}

impl HttpSinkBuilder {
    pub(super) fn new(
        config: HttpSinkConfig,
        net: &NetConfig,
        retry: RetryConfig,
        clock: SharedClock,
        limiter: Option<Arc<Limiter>>,
    ) -> Self {
        let at_most = |ms: u64| Duration::from_millis(ms).min(retry.attempt_timeout / 2);
        let tokens = config
            .oauth2
            .clone()
            .map(|oauth2| Tokens::new(oauth2, Arc::clone(&clock), at_most(HTTP_TOKEN_MS_MAX)));
        let shared = Shared {
            tls: Arc::new(ClientTls::new(config.tls.as_ref(), net)),
            net: net.clone(),
            connect_timeout: at_most(HTTP_CONNECT_MS_MAX),
            silence: retry.attempt_timeout.mul_f64(SILENCE_SHARE),
            client: OnceCell::new(),
            config,
            tokens,
            handshakes_answered: AtomicU64::new(0),
            clock,
        };
        Self { shared: Arc::new(shared), limiter }
    }
}

impl SinkBuilder for HttpSinkBuilder {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn fix(&self, _facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        Ok(Encoding::of_config(&self.shared.config).fix().into())
    }

    fn takes(&self, fixed: &str) -> bool {
        Encoding::fixed(fixed).is_ok()
    }

    fn check(&self) -> Result<(), SinkError> {
        let config = &self.shared.config;
        if config.tls.is_some() {
            self.shared.tls.refresh().map_err(|error| {
                SinkError::new(Class::Unreachable, "its TLS cannot be set up").caused_by(error)
            })?;
        }
        for (name, value) in &config.headers {
            let Value::Secret(secret) = value else { continue };
            secret.read().map_err(|error| {
                let reason = format!("the secret of its header {name} cannot be read");
                SinkError::new(Class::Unreachable, reason).caused_by(error)
            })?;
        }
        if let Some(oauth2) = &config.oauth2 {
            let secret = &oauth2.client_secret;
            secret.read().map_err(|error| unreadable(secret, CLIENT_SECRET, error))?;
        }
        Ok(())
    }

    fn build(&self) -> Box<dyn Sink> {
        let throttle = Throttle::new(self.limiter.clone());
        Box::new(HttpSink { shared: Arc::clone(&self.shared), throttle, long: None })
    }
}

/// What the lanes of a sink share.
#[derive(Debug)]
struct Shared {
    config: HttpSinkConfig,
    net: NetConfig,
    tls: Arc<ClientTls>,
    connect_timeout: Duration,
    silence: Duration,
    /// Made when it is first needed.
    client: OnceCell<Client>,
    tokens: Option<Tokens>,
    /// Of the handshakes in which the server has asked for a certificate, those before the last answer.
    handshakes_answered: AtomicU64,
    clock: SharedClock,
}

/// The headers of one request, and what of them must not be repeated.
struct Headers {
    map: HeaderMap,
    token: Option<Arc<Token>>,
    secrets: Vec<String>,
}

impl Shared {
    /// The client, with TLS files as they are now.
    async fn client(&self) -> Result<&Client, SinkError> {
        let over_tls = [Some(&self.config.url), self.net.proxy.as_ref()]
            .into_iter()
            .chain([self.config.oauth2.as_ref().map(|oauth2| &oauth2.token_url)])
            .flatten()
            .any(Endpoint::is_tls);
        if over_tls {
            let tls = Arc::clone(&self.tls);
            let refreshed = tokio::task::spawn_blocking(move || tls.refresh());
            let result = refreshed.await.map_err(|error| {
                SinkError::new(Class::Retryable, "the thread that reads TLS files died")
                    .caused_by(error)
            })?;
            result.map_err(|error| {
                let reason = format!("cannot connect to {} over TLS", self.config.url);
                SinkError::new(Class::Unreachable, reason).caused_by(error)
            })?;
        }
        let make = || async { client(&self.tls, &self.net, self.connect_timeout, None) };
        self.client.get_or_try_init(make).await.map_err(|error| {
            SinkError::new(Class::Unreachable, "there is no HTTP client").caused_by(error)
        })
    }

    /// Headers and authorization as they are now; `refused` is a token that the endpoint did not take.
    async fn headers(
        &self,
        client: &Client,
        refused: Option<&Arc<Token>>,
    ) -> Result<Headers, SinkError> {
        let mut map = HeaderMap::with_capacity(self.config.headers.len() + 4);
        let mut secrets = Vec::new();
        for (name, value) in &self.config.headers {
            let unusable = || {
                let reason = format!(
                    "the header {name} cannot be sent: its value holds a control character"
                );
                SinkError::new(Class::Unreachable, reason)
            };
            let value = match value {
                Value::Plain(text) => HeaderValue::from_str(text).map_err(|_| unusable())?,
                Value::Secret(secret) => {
                    let text = secret_text(secret, &format!("headers.{name}")).await?;
                    let mut value = HeaderValue::from_str(&text).map_err(|_| unusable())?;
                    value.set_sensitive(true);
                    secrets.push(text);
                    value
                }
            };
            map.insert(name.clone(), value);
        }
        let mut token = None;
        if let Some(tokens) = &self.tokens {
            let found = tokens.get(client, refused).await?;
            map.insert(AUTHORIZATION, found.header.clone());
            secrets.push(found.secret.clone());
            token = Some(found);
        }
        Ok(Headers { map, token, secrets })
    }

    /// Method and URL for errors.
    fn sent(&self, method: &str) -> String {
        format!("{method} {}", self.config.url)
    }

    /// Sends one request and reads its answer.
    async fn exchange(
        &self,
        request: RequestBuilder,
        sent: &str,
        secrets: &[String],
        deadline: Instant,
    ) -> Result<Answer, SinkError> {
        let Ok(response) = timeout_at(deadline, request.send()).await else {
            return Err(silent(sent));
        };
        let asked = self.tls.certificate_requests();
        match response {
            Ok(response) => {
                self.handshakes_answered.store(asked, Ordering::Relaxed);
                Ok(Answer::read(response, &*self.clock, secrets).await)
            }
            Err(error) => {
                let handshakes = self.tls.certificate_requests();
                let is_new = handshakes > self.handshakes_answered.load(Ordering::Relaxed);
                Err(unanswered(sent, &error, is_new))
            }
        }
    }

    /// Sends a batch whose body has been made once, again if a token turns out to be none any more.
    async fn send(
        &self,
        batch: &SealedBatch,
        encoding: Encoding,
        measured: &Measured,
        deadline: Instant,
    ) -> Result<(), SinkError> {
        let client = self.client().await?;
        let sent = self.sent(self.config.method.as_str());
        let mut refused = None;
        loop {
            let headers = self.headers(client, refused.as_ref());
            let Ok(headers) = timeout_at(deadline, headers).await else {
                return Err(silent(&sent));
            };
            let Headers { mut map, token, secrets } = headers?;
            map.insert(CONTENT_TYPE, HeaderValue::from_static(encoding.content_type()));
            if let Some(codec) = encoding.content_encoding() {
                map.insert(CONTENT_ENCODING, HeaderValue::from_static(codec));
            }
            let identity = batch.facts.identity();
            let key = HeaderValue::from_str(&identity).map_err(|_| {
                SinkError::new(Class::Rejected, format!("{identity} cannot stand in a header"))
            })?;
            map.insert(IDEMPOTENCY_KEY, key);
            let (body, failure) = measured.body(batch, encoding)?;
            let request = client
                .request(self.config.method.into(), self.config.url.url().clone())
                .headers(map)
                .body(body);
            let answer = self.exchange(request, &sent, &secrets, deadline).await;
            // What went wrong on our side says more than that the connection broke.
            let answer = match (answer, failure.take()) {
                (Err(_), Some(failure)) => return Err(failure),
                (answer, _) => answer?,
            };
            if answer.status == StatusCode::UNAUTHORIZED && token.is_some() && refused.is_none() {
                refused = token;
                continue;
            }
            return match answer.failure(&sent, &self.config.conflict_status) {
                None => Ok(()),
                Some(failure) => Err(failure),
            };
        }
    }
}

impl From<config::Method> for reqwest::Method {
    fn from(method: config::Method) -> Self {
        match method {
            config::Method::Post => Self::POST,
            config::Method::Put => Self::PUT,
            config::Method::Patch => Self::PATCH,
        }
    }
}

struct HttpSink {
    shared: Arc<Shared>,
    /// What is paid for is the body as it goes out.
    throttle: Throttle,
    /// The measures of a long body that an earlier attempt took, by batch identity.
    long: Option<(String, Encoding, Measured)>,
}

impl HttpSink {
    async fn measured(
        &mut self,
        batch: &SealedBatch,
        encoding: Encoding,
    ) -> Result<Measured, SinkError> {
        let identity = batch.facts.identity();
        if let Some((of, with, measured)) = &self.long
            && *of == identity
            && *with == encoding
        {
            return Ok(measured.clone());
        }
        self.long = None;
        let measured = Measured::make(batch, encoding).await?;
        if measured.length > HTTP_BODY_KEPT_BYTES_MAX {
            self.long = Some((identity, encoding, measured.clone()));
        }
        Ok(measured)
    }
}

#[async_trait]
impl Sink for HttpSink {
    async fn deliver(
        &mut self,
        batch: &SealedBatch,
        _attempt: u32,
    ) -> Result<Delivered, SinkError> {
        let begun = Instant::now();
        let encoding = Encoding::fixed(&batch.fixed)?;
        let measured = self.measured(batch, encoding).await?;
        // A batch of which nothing fits is not worth a request.
        if measured.records > 0 {
            let asked = Instant::now();
            self.throttle.pay(measured.length, measured.records).await;
            let deadline = begun + self.shared.silence + asked.elapsed();
            self.shared.send(batch, encoding, &measured, deadline).await?;
        }
        self.long = None;
        let Measured { length, records, refused, .. } = measured;
        Ok(Delivered {
            records,
            bytes: if records > 0 { length } else { 0 },
            refused,
            ..Delivered::default()
        })
    }

    fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }

    /// Sends `HEAD` with the headers of a batch. It shows whether the endpoint can be reached, over TLS and proxy, with a
    /// token, and whether what answers there is more than a gateway. It cannot show whether a batch would be taken: servers
    /// answer `HEAD` with 401, 404, 405 or a redirect where they take `POST`, so those count as "it is there", and the next
    /// batch shows the rest.
    async fn probe(&mut self) -> Result<(), SinkError> {
        let shared = &self.shared;
        let deadline = Instant::now() + shared.silence;
        let sent = shared.sent("HEAD");
        let client = shared.client().await?;
        let Ok(headers) = timeout_at(deadline, shared.headers(client, None)).await else {
            return Err(silent(&sent));
        };
        let Headers { map, secrets, .. } = headers?;
        let request = client.head(shared.config.url.url().clone()).headers(map);
        let answer = shared.exchange(request, &sent, &secrets, deadline).await?;
        answer.probe_failure(&sent).map_or(Ok(()), Err)
    }
}

fn silent(sent: &str) -> SinkError {
    let reason = format!("{sent} got no answer in time, its outcome is unknown");
    SinkError::new(Class::Unreachable, reason).doubtful()
}

/// What a request without an answer means. In TLS 1.3 a server refuses a client's certificate, or its want of one, after the
/// handshake by closing the connection, and how that shows is up to chance: `is_new` is whether no answer has come since a
/// server has asked for a certificate.
fn unanswered(sent: &str, error: &reqwest::Error, is_new: bool) -> SinkError {
    let (seen, cause) = observe(error);
    match seen {
        Unanswered::NotConnected => {
            SinkError::new(Class::Unreachable, format!("{sent} cannot be sent: {cause}"))
        }
        Unanswered::Silent => silent(sent),
        Unanswered::Broken if is_new => {
            let reason = format!(
                "{sent} was broken off by a server that has asked for a client certificate, check `tls`: {cause}"
            );
            SinkError::new(Class::Unreachable, reason)
        }
        Unanswered::Broken => {
            let reason = format!("{sent} was broken off, its outcome is unknown: {cause}");
            SinkError::new(Class::Retryable, reason)
        }
    }
}

/// The key of the one secret that is not read by [`Value`].
const CLIENT_SECRET: &str = "auth.oauth2.client_secret";

/// A secret as it is now; `key` is what refers to it.
async fn secret_text(secret: &Secret, key: &str) -> Result<String, SinkError> {
    let owned = secret.clone();
    let read = tokio::task::spawn_blocking(move || owned.read());
    let text = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    text.map_err(|error| unreadable(secret, key, error))
}

fn unreadable(secret: &Secret, key: &str, error: std::io::Error) -> SinkError {
    let place = match secret {
        Secret::File(path) => path.display().to_string(),
        Secret::Environment { name, .. } => format!("the variable {name}"),
    };
    let reason = format!("the secret `{key}` cannot be read from {place}");
    SinkError::new(Class::Unreachable, reason).caused_by(error)
}

#[cfg(test)]
mod tests;
