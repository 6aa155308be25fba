//! Sends records to an HTTP endpoint. `README.md` beside this file is the manual.

mod body;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Deserialize;
use waystation_plugin::sink::{self, Batch, Outgoing, Rejection, Sink, SinkError, http};
use waystation_plugin::{Place, about, export_sink};

/// The `config` table of the sink. `url` is needed.
#[derive(Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where requests go; its origin stands in `allow.http` of the sink.
    url: Option<String>,
    /// The request's method.
    #[serde(default)]
    method: Method,
    /// What makes a request.
    #[serde(default)]
    each: Each,
    /// Send records with identity, time, subject and headers instead of their payload alone.
    #[serde(default)]
    envelope: bool,
    /// Sent as `Authorization: Bearer …`.
    token: Option<String>,
    /// The secret that bodies are signed with.
    key: Option<String>,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "UPPERCASE")]
enum Method {
    #[default]
    Post,
    Put,
    Patch,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "snake_case")]
enum Each {
    /// A batch is one request, a JSON array.
    #[default]
    Batch,
    /// Each record is a request.
    Record,
}

struct Webhook {
    url: String,
    method: &'static str,
    each: Each,
    envelope: bool,
    token: Option<String>,
    key: Option<Hmac<sha2::Sha256>>,
    /// Of the batch that failed last: how many of its records have their outcome, and those that were refused.
    done: Option<(String, usize, Vec<Rejection>)>,
}

impl Sink for Webhook {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        let mut problems = Vec::new();
        let url = config.url.unwrap_or_default();
        if url.is_empty() {
            problems.push("config.url: it is missing; write \"https://HOST/PATH\"".to_owned());
        } else if !url.starts_with("https://") && !url.starts_with("http://") {
            problems.push("config.url: it begins with https:// or http://".to_owned());
        }
        for (name, value) in [("token", &config.token), ("key", &config.key)] {
            if value.as_deref() == Some("") {
                problems.push(format!("config.{name}: it is empty"));
            }
        }
        if config.token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            problems.push("config.token: it holds white space or control characters".to_owned());
        }
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        let method = match config.method {
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
        };
        // A key of HMAC may have any length.
        let key = config.key.and_then(|key| Hmac::new_from_slice(key.as_bytes()).ok());
        let Config { each, envelope, token, .. } = config;
        Ok(Self { url, method, each, envelope, token, key, done: None })
    }

    fn probe(&mut self, _now: i64) -> Result<(), SinkError> {
        sink::is_there(&http::send(&self.request("HEAD"))?)
    }

    fn deliver(&mut self, batch: Batch) -> Result<Vec<Rejection>, SinkError> {
        match self.each {
            Each::Batch => self.deliver_whole(&batch),
            Each::Record => self.deliver_records(&batch),
        }
    }
}

impl Webhook {
    fn request(&self, method: &str) -> http::Request {
        let mut request = http::request(method, &self.url);
        if let Some(token) = &self.token {
            http::header(&mut request, "authorization", &format!("Bearer {token}"));
        }
        request
    }

    /// Sends a body under its identity, and says what that came to.
    fn send(&self, id: &str, content_type: &str, body: Vec<u8>) -> Result<(), SinkError> {
        let mut request = self.request(self.method);
        http::header(&mut request, "content-type", content_type);
        http::header(&mut request, "idempotency-key", id);
        if let Some(key) = &self.key {
            let mut mac = key.clone();
            mac.update(&body);
            let digest = mac.finalize().into_bytes();
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            http::header(&mut request, "x-signature-256", &format!("sha256={hex}"));
        }
        request.body = body;
        sink::is_taken(&http::send(&request)?)
    }

    fn deliver_whole(&self, batch: &Batch) -> Result<Vec<Rejection>, SinkError> {
        let mut rejections = Vec::new();
        let mut body = vec![b'['];
        for (index, record) in (0..).zip(&batch.records) {
            let start = body.len();
            if start > 1 {
                body.push(b',');
            }
            if self.envelope {
                body::envelope(record, &mut body);
            } else if let Err(reason) = body::check(&record.payload) {
                body.truncate(start);
                rejections.push(Rejection { index, reason });
            } else {
                body.extend_from_slice(&record.payload);
            }
        }
        body.push(b']');
        // A batch of which nothing fits is not worth a request.
        if rejections.len() < batch.records.len() {
            self.send(&batch.id, "application/json", body)?;
        }
        Ok(rejections)
    }

    /// One request a record, in their order. A batch that failed goes on behind what had its outcome; where that is not known
    /// any more, the destination recognises what it has by its identity.
    fn deliver_records(&mut self, batch: &Batch) -> Result<Vec<Rejection>, SinkError> {
        let known = self.done.take().filter(|(id, ..)| *id == batch.id);
        let (first, mut rejections) = known.map_or((0, Vec::new()), |(_, at, list)| (at, list));
        for (at, record) in batch.records.iter().enumerate().skip(first) {
            let (content_type, body) = self.one(record);
            match self.send(&record.id, content_type, body) {
                Ok(()) => {}
                Err(SinkError::Rejected(reason)) => {
                    let index = u32::try_from(at).unwrap_or(u32::MAX);
                    rejections.push(Rejection { index, reason });
                }
                Err(error) => {
                    self.done = Some((batch.id.clone(), at, rejections));
                    return Err(error);
                }
            }
        }
        Ok(rejections)
    }

    fn one(&self, record: &Outgoing) -> (&'static str, Vec<u8>) {
        if self.envelope {
            let mut body = Vec::new();
            body::envelope(record, &mut body);
            return ("application/json", body);
        }
        let is_json = body::check(&record.payload).is_ok();
        let content_type = if is_json { "application/json" } else { "application/octet-stream" };
        (content_type, record.payload.clone())
    }
}

export_sink!(Webhook, about!().config_schema(include_str!("../schema.json")));

#[cfg(test)]
mod tests;
