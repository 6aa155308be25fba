//! A guest of the `sink-plugin` world that behaves as its config says, for the tests of the host.
//!
//! `{"url": …}` alone posts a batch's payloads, one a line, under the batch's identity, and gives what the SDK makes of the
//! answer. `do` names a mode; some of them go off with the record whose payload is `bad`, the others always.

use std::fmt::Write as _;

use waystation_plugin::sink::{self, Batch, Later, Rejection, Sink, SinkError, http};
use waystation_plugin::{Place, log, state};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    url: String,
    #[serde(default)]
    r#do: String,
    #[serde(default)]
    header: Option<(String, String)>,
    #[serde(default)]
    secret: String,
}

/// The config, and the first attempt that this instance has seen.
struct Guest(Config, Option<u32>);

impl Sink for Guest {
    type Config = Config;

    fn new(config: Config, _place: Place) -> Result<Self, String> {
        match config.r#do.as_str() {
            "init_refuses" => Err(format!("the secret is {}", config.secret)),
            "init_traps" => panic!("in init"),
            "init_sends" => match http::send(&http::request("GET", &config.url)) {
                Err(http::Failure::Denied(reason)) => Err(reason),
                _ => Err("the request was sent".to_owned()),
            },
            "init_writes" => match state::set("k", b"v") {
                Err(reason) => Err(reason),
                Ok(()) => Err("the state was changed".to_owned()),
            },
            _ => Ok(Self(config, None)),
        }
    }

    fn probe(&mut self, _now: i64) -> Result<(), SinkError> {
        match self.0.r#do.as_str() {
            "probe_writes" => match state::set("k", b"v") {
                Err(reason) => Err(SinkError::Unreachable(reason)),
                Ok(()) => Ok(()),
            },
            "probe_deletes" => {
                state::delete("k");
                Ok(())
            }
            _ if self.0.url.is_empty() => Ok(()),
            _ => sink::is_there(&http::send(&http::request("HEAD", &self.0.url))?),
        }
    }

    fn deliver(&mut self, batch: Batch) -> Result<Vec<Rejection>, SinkError> {
        self.1.get_or_insert(batch.attempt);
        let bad = batch.records.iter().position(|record| record.payload == b"bad");
        let refuse = |index: u32| Rejection { index, reason: "it is bad".to_owned() };
        match (self.0.r#do.as_str(), bad) {
            ("trap", Some(_)) => panic!("on a record"),
            ("loop", Some(_)) => loop {
                std::hint::black_box(());
            },
            ("memory", Some(_)) => {
                let mut all = Vec::new();
                loop {
                    all.push(std::hint::black_box(vec![1u8; 1 << 20]));
                }
            }
            ("trap_always", _) => panic!("always"),
            ("name", Some(index)) => {
                self.send(&batch, Some(index))?;
                Ok(vec![refuse(u32::try_from(index).unwrap_or(0))])
            }
            ("name_beyond", _) => Ok(vec![refuse(u32::MAX)]),
            ("name_twice", _) => Ok(vec![refuse(0), refuse(0)]),
            ("reject", Some(_)) => Err(SinkError::Rejected("one of them is bad".to_owned())),
            ("conflict", _) => Err(SinkError::Conflict("other content".to_owned())),
            ("later", _) => {
                let later = Later { reason: "not now".to_owned(), retry_after_ms: Some(50) };
                Err(SinkError::Retryable(later))
            }
            ("say_secret", _) => {
                log::warn(&format!("the secret is {}", self.0.secret));
                Err(SinkError::Unreachable(format!("no way with {}", self.0.secret)))
            }
            ("echo", _) => {
                let response = http::send(&self.request(&batch))?;
                let said = String::from_utf8_lossy(&response.body).into_owned();
                Err(SinkError::Unreachable(said))
            }
            // Counts the batches that had their outcome, and tells how many there were before.
            ("count", _) => {
                let before = state::get("batches").map_or(0, |bytes| bytes.len());
                let counted = state::set("batches", &vec![b'x'; before + 1]);
                counted.map_err(SinkError::Rejected)?;
                let mut request = self.request(&batch);
                http::header(&mut request, "x-before", &before.to_string());
                sink::is_taken(&http::send(&request)?)?;
                Ok(Vec::new())
            }
            (mode, _) => self.badly(mode, &batch),
        }
    }
}

impl Guest {
    /// Well, but for what sinks get wrong about destinations that fail.
    fn badly(&self, mode: &str, batch: &Batch) -> Result<Vec<Rejection>, SinkError> {
        let later = |reason| SinkError::Retryable(Later { reason, retry_after_ms: None });
        let told = |result: Result<(), SinkError>| match result {
            Err(SinkError::Unreachable(reason) | SinkError::Rejected(reason)) => reason,
            _ => "it failed".to_owned(),
        };
        let sent = match mode {
            "changes" => self.send_behind(&format!("{}\n", batch.now), batch, None),
            "remembers" => self.send_behind(&format!("{:?}\n", self.1), batch, None),
            "assumes" if batch.attempt > 1 => Ok(()),
            "leaves_out" if batch.attempt > 1 => self.send(batch, Some(0)),
            "insists" => loop {
                if let Ok(()) = self.send(batch, None) {
                    break Ok(());
                }
            },
            "leaks" => {
                std::mem::forget(std::hint::black_box(vec![1u8; 4096]));
                self.send(batch, None)
            }
            _ => self.send(batch, None),
        };
        match (mode, sent) {
            ("swallows", _) | (_, Ok(())) => Ok(Vec::new()),
            ("gives_up", failed) => Err(SinkError::Rejected(told(failed))),
            ("tries_for_ever", failed) => Err(later(told(failed))),
            ("panics", Err(_)) => panic!("an answer that nobody expects"),
            (_, Err(error)) => Err(error),
        }
    }

    fn request(&self, batch: &Batch) -> http::Request {
        let mut request = http::request("POST", &self.0.url);
        http::header(&mut request, "idempotency-key", &batch.id);
        if let Some((name, value)) = &self.0.header {
            http::header(&mut request, name, value);
        }
        let mut about = String::new();
        for record in &batch.records {
            // Writing to a String cannot fail.
            let _ok = write!(about, "{} ", record.id);
        }
        http::header(&mut request, "x-ids", about.trim_end());
        http::header(&mut request, "x-attempt", &batch.attempt.to_string());
        request
    }

    fn send(&self, batch: &Batch, without: Option<usize>) -> Result<(), SinkError> {
        self.send_behind("", batch, without)
    }

    /// The records behind a text.
    fn send_behind(
        &self,
        begin: &str,
        batch: &Batch,
        without: Option<usize>,
    ) -> Result<(), SinkError> {
        let mut request = self.request(batch);
        request.body.extend_from_slice(begin.as_bytes());
        for (index, record) in batch.records.iter().enumerate() {
            if Some(index) != without {
                request.body.extend_from_slice(&record.payload);
                request.body.push(b'\n');
            }
        }
        sink::is_taken(&http::send(&request)?)
    }
}

waystation_plugin::export_sink!(Guest);
