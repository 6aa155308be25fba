//! Carries out the requests of guests: only to what the config allows, through the agent's client, within the attempt's time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, Url};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::config::{AddedHeader, Origin, PluginSinkConfig};
use crate::error_chain::Chain;
use crate::limits::{HTTP_CONNECT_MS_MAX, PLUGIN_ANSWER_BYTES_MAX};
use crate::net::config::NetConfig;
use crate::net::http::{OWN_HEADERS, Unanswered, client, observe};
use crate::net::reach::{OutOfReach, Reach};
use crate::net::tls::{ClientTls, TlsError};
use crate::plugin::{HttpClient, HttpFailure, HttpRequest, HttpResponse};
use crate::secret::Value;
use crate::sinks::Throttle;

/// What the guest of a sink may reach, and the client that all its lanes share.
#[derive(Debug)]
pub(super) struct Reached {
    origins: Vec<Origin>,
    headers: Vec<AddedHeader>,
    reach: Reach,
    net: NetConfig,
    tls: ClientTls,
    connect_timeout: Duration,
    /// Made when it is first needed.
    client: Mutex<Option<Client>>,
}

/// What was seen of the last request of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// There was none.
    Nothing,
    /// It was answered with this status.
    Answer(u16),
    /// It was sent, and nothing was heard.
    Silence,
    /// It was not sent, or its connection broke.
    NoAnswer,
}

/// One attempt of one lane.
pub(super) struct Attempt {
    reached: Arc<Reached>,
    runtime: Handle,
    throttle: Throttle,
    begun: Instant,
    /// For how long the lane had waited for its limiter when the attempt began.
    held_before: Duration,
    time: Duration,
    is_over: AtomicBool,
    over: Notify,
    sent_bytes: AtomicU64,
    seen: Mutex<Seen>,
    secrets: Mutex<Vec<String>>,
}

impl Reached {
    pub(super) fn new(
        config: &PluginSinkConfig,
        net: NetConfig,
        attempt_timeout: Duration,
    ) -> Self {
        let proxy = net.proxy.as_ref().and_then(|proxy| proxy.url().host_str());
        Self {
            origins: config.origins.clone(),
            headers: config.headers.clone(),
            reach: Reach::new(&config.networks, proxy),
            tls: ClientTls::new(config.tls.as_ref(), &net),
            net,
            connect_timeout: Duration::from_millis(HTTP_CONNECT_MS_MAX).min(attempt_timeout / 2),
            client: Mutex::default(),
        }
    }

    /// Takes up TLS files that have changed. Blocks for as long as small files take.
    pub(super) fn refresh(&self) -> Result<(), Arc<TlsError>> {
        self.tls.refresh()
    }

    fn client(&self) -> Result<Client, HttpFailure> {
        let mut slot = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &*slot {
            return Ok(client.clone());
        }
        let made = client(&self.tls, &self.net, self.connect_timeout, Some(self.reach.clone()));
        let made = made.map_err(|error| HttpFailure::Network(Chain(&error).to_string()))?;
        Ok(slot.insert(made).clone())
    }

    /// The request as it may be sent, or why it may not.
    fn check(&self, request: HttpRequest) -> Result<Checked, String> {
        let HttpRequest { method, url, headers, body } = request;
        let method: Method = method
            .parse()
            .ok()
            .filter(|method| *method != Method::CONNECT)
            .ok_or_else(|| format!("{method:?} is no method for a request"))?;
        let url = Url::parse(&url).map_err(|error| format!("the URL makes no sense: {error}"))?;
        let origin = Origin::of(&url);
        if !matches!(url.scheme(), "http" | "https") || !self.origins.contains(&origin) {
            return Err(format!("{origin} is not in `allow.http` of the sink"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("the URL holds a user or password; send them in a header".to_owned());
        }
        // The client asks nobody about an address.
        let host = url.host_str().unwrap_or_default().to_owned();
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if let Ok(address) = literal
            && !self.reach.permits(address)
        {
            return Err(OutOfReach { host, address }.to_string());
        }
        let mut map = HeaderMap::with_capacity(headers.len());
        for (name, value) in headers {
            let known: HeaderName =
                name.parse().map_err(|_| format!("{name:?} is no name of a header"))?;
            if OWN_HEADERS.contains(&known.as_str()) || known.as_str().starts_with("proxy-") {
                return Err(format!("the header {known} is set by the agent itself"));
            }
            if self.added(&origin).any(|added| added.name == known) {
                return Err(format!("the header {known} is set by `headers` of the sink"));
            }
            let value = HeaderValue::from_str(&value)
                .map_err(|_| format!("the value of the header {known} cannot be sent"))?;
            map.append(known, value);
        }
        Ok(Checked { method, url, origin, headers: map, body })
    }

    fn added(&self, origin: &Origin) -> impl Iterator<Item = &AddedHeader> {
        self.headers.iter().filter(move |header| header.origin == *origin)
    }
}

/// A request that may be sent.
#[derive(Debug)]
struct Checked {
    method: Method,
    url: Url,
    origin: Origin,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Attempt {
    pub(super) fn new(
        reached: Arc<Reached>,
        runtime: Handle,
        throttle: Throttle,
        time: Duration,
    ) -> Self {
        let held_before = throttle.held();
        Self {
            reached,
            runtime,
            throttle,
            begun: Instant::now(),
            held_before,
            time,
            is_over: AtomicBool::new(false),
            over: Notify::new(),
            sent_bytes: AtomicU64::new(0),
            seen: Mutex::new(Seen::Nothing),
            secrets: Mutex::default(),
        }
    }

    /// Nobody waits any more: what is under way ends.
    pub(super) fn give_up(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.over.notify_waiters();
        // For a request that begins to wait only now.
        self.over.notify_one();
    }

    /// What is left of its time.
    pub(super) fn left(&self) -> Duration {
        self.until().saturating_duration_since(Instant::now())
    }

    /// Time that the lane waits for its limiter is its own doing.
    fn until(&self) -> Instant {
        self.begun + self.time + self.throttle.held().saturating_sub(self.held_before)
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn seen(&self) -> Seen {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, seen: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = seen;
    }

    /// Adds the headers of the config, with secrets as they are now.
    fn add_headers(&self, checked: &mut Checked) -> Result<(), String> {
        for AddedHeader { name, value, .. } in self.reached.added(&checked.origin) {
            let text = match value {
                Value::Plain(text) => text.clone(),
                Value::Secret(secret) => {
                    let text = secret.read().map_err(|error| {
                        let place = secret.place();
                        format!(
                            "the secret of the header {name} cannot be read from {place}: {error}"
                        )
                    })?;
                    self.keep_secret(&text);
                    text
                }
            };
            let mut value = HeaderValue::from_str(&text)
                .map_err(|_| format!("the value of the header {name} cannot be sent"))?;
            value.set_sensitive(true);
            checked.headers.insert(name.clone(), value);
        }
        Ok(())
    }

    fn keep_secret(&self, text: &str) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        if !secrets.iter().any(|known| known == text) {
            secrets.push(text.to_owned());
        }
    }

    async fn exchange(&self, checked: Checked) -> Result<HttpResponse, HttpFailure> {
        let Checked { method, url, headers, body, .. } = checked;
        let client = self.reached.client()?;
        let bytes = body.len() as u64;
        self.throttle.pay(bytes, 0).await;
        let until = self.until();
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
        // What is not heard of any more may have arrived.
        self.note(Seen::Silence);
        let request = client.request(method, url).headers(headers).body(body);
        let timed_out =
            || HttpFailure::Timeout("no answer within the time of the attempt".to_owned());
        let response = match timeout_at(until, request.send()).await {
            Err(_) => return Err(timed_out()),
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                if let Some(denied) = denied_by(&error) {
                    self.note(Seen::NoAnswer);
                    return Err(HttpFailure::Denied(denied));
                }
                let (seen, cause) = observe(&error);
                if seen == Unanswered::Silent {
                    return Err(HttpFailure::Timeout(cause));
                }
                self.note(Seen::NoAnswer);
                return Err(HttpFailure::Network(cause));
            }
        };
        let answer = timeout_at(until, read(response)).await;
        let answer = answer.map_err(|_| timed_out())?.map_err(|error| {
            self.note(Seen::NoAnswer);
            HttpFailure::Network(observe(&error).1)
        })?;
        self.note(Seen::Answer(answer.status));
        Ok(answer)
    }
}

/// Whether a name led where nothing may go.
fn denied_by(error: &reqwest::Error) -> Option<String> {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut links = std::iter::successors(Some(first), |link| link.source());
    links.find_map(|link| link.downcast_ref::<OutOfReach>()).map(ToString::to_string)
}

/// Reads an answer, of its body as much as a guest is given.
async fn read(mut response: Response) -> Result<HttpResponse, reqwest::Error> {
    let header = |(name, value): (&HeaderName, &HeaderValue)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let status = response.status().as_u16();
    let headers = response.headers().iter().map(header).collect();
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        let room = PLUGIN_ANSWER_BYTES_MAX - body.len();
        body.extend_from_slice(piece.get(..room).unwrap_or(&piece));
        if body.len() == PLUGIN_ANSWER_BYTES_MAX {
            break;
        }
    }
    Ok(HttpResponse { status, headers, body })
}

impl HttpClient for Attempt {
    fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpFailure> {
        let mut checked = self.reached.check(request).map_err(HttpFailure::Denied)?;
        let network = HttpFailure::Network;
        if checked.url.scheme() == "https" || self.reached.net.proxy.is_some() {
            self.reached.refresh().map_err(|error| network(Chain(&*error).to_string()))?;
        }
        self.add_headers(&mut checked).map_err(network)?;
        if self.is_over() {
            return Err(HttpFailure::Timeout("the attempt was given up".to_owned()));
        }
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.over.notified() => {
                    Err(HttpFailure::Timeout("the attempt was given up".to_owned()))
                }
                answer = self.exchange(checked) => answer,
            }
        })
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn secrets(&self) -> Vec<String> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
