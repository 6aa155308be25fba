//! The source that takes records by HTTP: a post is answered with 202 once everything of it is durable.
//!
//! `POST PATH` with NDJSON (a record a line; an empty one is none, a `\r` before the `\n` is no part of it), with a JSON array
//! (a record an element), or with anything else (one record, with its `Content-Type` as the header `content-type`; one of
//! JSON goes without), as it is or in gzip or zstd. `openapi.json` beside this file describes the interface, and a test holds
//! it against the code.
//!
//! What can be relied on: 202 means stored, and an answer of another status means that nothing of the post is stored, with
//! two exceptions. A 503 that says so, and a connection that breaks before the answer, leave it open; a post of more than one
//! chunk (256 KiB) may be stored in part then. Whoever sends it again under the same `Idempotency-Key` has each of its
//! records stored once, also through a power cut; without one they are stored again.
//!
//! The listener outlives a run: while the journal fails, clients are told 503 and do not wait.

mod answer;
mod body;
pub mod config;
mod idempotency;
mod server;
mod split;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName};
use hyper::{Method, Request};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::answer::{Accepted, Answer, Refusal};
use self::body::{Coding, Room};
use self::config::HttpSourceConfig;
use self::idempotency::{Begun, Keys, Post};
use self::server::Server;
use self::split::{Media, Splitting, Step};
use super::config::LineLimits;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions, Times};
use crate::clock::SharedClock;
use crate::error_chain::Chain;
use crate::journal::{AppendError, Appender};
use crate::limits::{IDEMPOTENCY_KEY_BYTES_MAX, INGEST_COMMIT_MS_MAX};
use crate::net::listen::Tokens;
use crate::net::tls_server::ServerTls;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Bodies up to here are taken apart where they are; larger ones on a thread that may take its time.
const SPLIT_HERE_BYTES_MAX: usize = 64 * 1024;

pub(super) struct HttpSource {
    id: SourceId,
    config: HttpSourceConfig,
    shared: Arc<Shared>,
    failures: mpsc::Receiver<Failure>,
    server: Option<Server>,
}

/// A journal that took no append, and the session in which it was.
type Failure = (Arc<Appender>, AppendError);

/// What all requests share.
struct Shared {
    path: String,
    subject: String,
    limits: LineLimits,
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    times: Option<Arc<Times>>,
    tokens: Tokens,
    tls: Option<ServerTls>,
    room: Arc<Room>,
    keys: Arc<Keys>,
    /// Posts that are being stored: a client that goes away in the middle takes none of them along.
    stores: TaskTracker,
    /// Where records go; `None` while the journal takes none.
    appender: watch::Sender<Option<Arc<Appender>>>,
    failed: mpsc::Sender<Failure>,
}

impl HttpSource {
    pub(super) fn new(
        id: SourceId,
        config: &HttpSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let subject = Template::parse(&config.subject, &["source"])
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?
            .render(&[id.as_str()]);
        let clock = &options.clock;
        let (failed, failures) = mpsc::channel(1);
        let shared = Shared {
            path: config.path.clone(),
            subject,
            limits: config.limits,
            clock: Arc::clone(clock),
            counters: Arc::clone(&options.counters),
            times: options.times.clone(),
            tokens: Tokens::new(config.listen.tokens.clone(), Arc::clone(clock)),
            tls: config.listen.tls.clone().map(|files| ServerTls::new(files, &[b"http/1.1"])),
            room: Arc::new(Room::new(config.body_max.as_usize())),
            keys: Arc::new(Keys::new(config.idempotency, Arc::clone(clock))),
            stores: TaskTracker::new(),
            appender: watch::Sender::new(None),
            failed,
        };
        let (config, shared) = (config.clone(), Arc::new(shared));
        Ok(Self { id, config, shared, failures, server: None })
    }

    /// Listens from now on.
    async fn listen(&self) -> Result<Server, SourceError> {
        if let Some(tls) = &self.shared.tls {
            tls.current()
                .map_err(|error| SourceError::Tls { source_id: self.id.clone(), error })?;
        }
        let address = self.config.listen.address;
        let failed = |error| SourceError::Listen { source_id: self.id.clone(), address, error };
        let server = Server::start(address, &self.shared).await.map_err(failed)?;
        let scheme = if self.shared.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}{}", server.address(), self.config.path);
        tracing::info!(url, "Source takes posts");
        Ok(server)
    }
}

#[async_trait]
impl Source for HttpSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.shared.counters)
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let appender = Arc::new(appender);
        self.shared.keys.load(appender.positions());
        if self.server.is_none() {
            self.server = Some(self.listen().await?);
        }
        self.shared.appender.send_replace(Some(Arc::clone(&appender)));
        loop {
            tokio::select! {
                () = shutdown.requested() => {
                    if let Some(server) = self.server.take() {
                        server.stop().await;
                    }
                    return Ok(Finished::Stopped);
                }
                Some((session, error)) = self.failures.recv() => {
                    // One of a session before this is known already.
                    if Arc::ptr_eq(&session, &appender) {
                        self.shared.appender.send_replace(None);
                        return Err(error.into());
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Answers a request, whatever it is.
    async fn answer(self: &Arc<Self>, request: Request<Incoming>, client: IpAddr) -> Answer {
        let (head, mut body) = request.into_parts();
        match self.take(&head, &mut body, client).await {
            Ok(accepted) => accepted.answer(),
            Err(refusal) => self.refuse(&refusal, &head.headers, &mut body).await,
        }
    }

    /// Says no, in a way that the client hears.
    async fn refuse(&self, refusal: &Refusal, head: &HeaderMap, body: &mut Incoming) -> Answer {
        self.counters.refused_requests.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(status = refusal.status().as_u16(), %refusal, "Post refused");
        // Who waits to be asked for the body sends none; who was too slow is not waited for.
        let is_silent = head.contains_key(EXPECT) || matches!(refusal, Refusal::Slow { .. });
        let is_at_its_end = !is_silent && body::discard(body).await;
        refusal.answer(!is_at_its_end)
    }

    async fn take(
        self: &Arc<Self>,
        head: &hyper::http::request::Parts,
        body: &mut Incoming,
        client: IpAddr,
    ) -> Result<Accepted, Refusal> {
        if head.uri.path() != self.path {
            return Err(Refusal::Path);
        }
        let headers = &head.headers;
        if self.tokens.are_asked_for() && !self.knows(headers) {
            return Err(Refusal::Token);
        }
        if head.method != Method::POST {
            return Err(Refusal::Method);
        }
        let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let coding = coding(headers)?;
        let media = Media::parse(text(&CONTENT_TYPE));
        let key = headers.get(&IDEMPOTENCY_KEY).map(|_| text(&IDEMPOTENCY_KEY).unwrap_or(""));
        if key.is_some_and(|key| !is_key(key)) {
            return Err(Refusal::Key);
        }
        let appender = self.open()?;
        let received = self.room.receive(body).await?;
        let (bytes, held) = self.room.expand(coding, received).await?;
        let time = self.clock.now();
        let is_small = bytes.len() <= SPLIT_HERE_BYTES_MAX;
        let work = {
            let (keys, key) = (Arc::clone(&self.keys), key.map(str::to_owned));
            let (subject, limits) = (self.subject.clone(), self.limits);
            let (counters, times) = (Arc::clone(&self.counters), self.times.clone());
            let client = client.to_string();
            move || {
                let begun = key.map(|key| keys.begin(&key, digest(&bytes))).transpose()?;
                let (post, skip) = match begun {
                    Some(Begun::Done(accepted)) => return Ok(Err(accepted)),
                    Some(Begun::Open { post, skip }) => (Some(post), skip),
                    None => (None, 0),
                };
                let (counters, times) = (&counters, times.as_ref());
                let (subject, client) = (subject.as_str(), client.as_str());
                let splitting = Splitting { limits, counters, times, subject, time, client, skip };
                let parts = split::split(&bytes, &media, &splitting)?;
                Ok(Ok((parts, post)))
            }
        };
        let done: Result<_, Refusal> = if is_small {
            work()
        } else {
            let working = tokio::task::spawn_blocking(work);
            working.await.unwrap_or_else(|error| Err(Refusal::Failing(error.to_string())))
        };
        let (parts, post) = match done? {
            Ok(work) => work,
            Err(accepted) => return Ok(accepted),
        };
        let counts = parts.counts;
        let shared = Arc::clone(self);
        let storing = self.stores.spawn(async move {
            let _held = held;
            shared.store(&appender, parts.steps, post.as_ref()).await
        });
        let wait = Duration::from_millis(INGEST_COMMIT_MS_MAX);
        match timeout(wait, storing).await {
            Ok(Ok(stored)) => stored?,
            Ok(Err(error)) => return Err(Refusal::Failing(error.to_string())),
            Err(_) => return Err(Refusal::Unknown),
        }
        Ok(counts)
    }

    /// Whether the client has shown one of the tokens.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let parts = value.and_then(|value| value.split_once(' '));
        parts.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case("bearer") && self.tokens.accept(token.trim())
        })
    }

    /// Where records go now.
    fn open(&self) -> Result<Arc<Appender>, Refusal> {
        let appender = self.appender.borrow().clone();
        let appender =
            appender.ok_or_else(|| Refusal::Failing("it is being opened again".to_owned()))?;
        match appender.full() {
            Some(why) => Err(Refusal::Full(why)),
            None => Ok(appender),
        }
    }

    /// Hands everything in and waits until it is durable.
    async fn store(
        &self,
        appender: &Arc<Appender>,
        steps: Vec<Step>,
        post: Option<&Post>,
    ) -> Result<(), Refusal> {
        let last = steps.len().saturating_sub(1);
        let mut underway = Vec::with_capacity(steps.len());
        for (index, Step { mut append, items, counts }) in steps.into_iter().enumerate() {
            if let Some(post) = post {
                append.positions.extend(post.positions(items, counts, index == last));
            }
            let (records, bytes) = (u64::from(append.frames.count()), append.frames.len() as u64);
            let pending = appender.submit_at_once(append).await;
            let pending = pending.map_err(|error| self.failed(appender, error))?;
            underway.push((pending, records, bytes, items, counts));
        }
        for (index, (pending, records, bytes, items, counts)) in underway.into_iter().enumerate() {
            pending.durable().await.map_err(|error| self.failed(appender, error))?;
            self.counters.records.fetch_add(records, Ordering::Relaxed);
            self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            if let Some(post) = post {
                post.durable(items, counts, index == last);
            }
        }
        Ok(())
    }

    /// What the client is told, and the run with it, when the journal took no append.
    fn failed(&self, appender: &Arc<Appender>, error: AppendError) -> Refusal {
        let refusal = match error.no_room() {
            Some(why) => Refusal::Full(why.into()),
            None => Refusal::Failing(Chain(&error).to_string()),
        };
        // One that is reported already says the same.
        let _told = self.failed.try_send((Arc::clone(appender), error));
        refusal
    }
}

/// The coding of the body, in however many headers it is told.
fn coding(headers: &HeaderMap) -> Result<Coding, Refusal> {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    let Some(first) = codings.next() else { return Ok(Coding::Identity) };
    let text =
        |value: &hyper::header::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    match codings.next() {
        None => Coding::parse(&text(first)),
        Some(second) => Err(Refusal::UnknownCoding(format!("{}, {}", text(first), text(second)))),
    }
}

fn is_key(key: &str) -> bool {
    (1..=IDEMPOTENCY_KEY_BYTES_MAX).contains(&key.len())
        && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn digest(bytes: &[u8]) -> idempotency::Digest {
    let whole: [u8; 32] = Sha256::digest(bytes).into();
    let (half, _) = whole.split_at(size_of::<idempotency::Digest>());
    half.try_into().unwrap_or_default()
}
