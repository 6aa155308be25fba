//! The sink against a scripted server: what goes out, and what each answer is taken for.

/// What stands in a body, and that it is always the same.
mod bodies;
/// One test a row of the table in the module's doc.
mod classes;
/// Tokens, secrets, and what may not be shown.
mod secrets;
/// Certificates and authorities, also replaced ones.
mod tls;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::{ManualClock, Timestamp};
use crate::settings::{Document, Problems, Reading};
use crate::sinks::config::{SinkConfig, SinkKind};
use crate::sinks::server::{self, Reply, Sent, Server};
use crate::sinks::tests::{batch, facts};

/// A configured sink with its clock.
struct Fixture {
    builder: HttpSinkBuilder,
    clock: Arc<ManualClock>,
}

fn environment(name: &str) -> Option<String> {
    (name == "CANARY").then(|| "S3CR3T-CANARY-91f2".to_owned())
}

/// Reads `keys` as an HTTP sink's table.
fn sink_config(keys: &str) -> (HttpSinkConfig, RetryConfig) {
    let text = format!("type = \"http\"\n{keys}");
    let document = Document::new(text.as_bytes());
    let table = document.table();
    let problems = Problems::new("t", document.text.as_str());
    let reading = Reading::new(&table, Path::new("/"), &environment, problems);
    let read = SinkConfig::read(Some("hook".parse().unwrap()), &reading.root());
    let (problems, _) = reading.finish();
    assert!(!problems.has_errors(), "{problems}");
    let SinkConfig { kind, retry, .. } = read.unwrap();
    match kind {
        SinkKind::Http(http) => (*http, retry),
        other => panic!("{other:?}"),
    }
}

/// A sink that sends to `url`, with `keys` in its table.
fn fixture_in(net: &NetConfig, url: &str, keys: &str) -> Fixture {
    let (config, retry) = sink_config(&format!("url = \"{url}\"\n{keys}"));
    let clock = Arc::new(ManualClock::new(Timestamp(1_500_000_000_000_000_000)));
    let shared: SharedClock = Arc::<ManualClock>::clone(&clock);
    let builder = HttpSinkBuilder::new(config, net, retry, shared, None);
    Fixture { builder, clock }
}

/// The same without a proxy.
fn fixture(url: &str, keys: &str) -> Fixture {
    fixture_in(&NetConfig::default(), url, keys)
}

impl Fixture {
    /// Sends a batch of these payloads.
    async fn deliver(&self, payloads: &[&[u8]]) -> Result<Delivered, SinkError> {
        let facts = facts(1, payloads.len() as u64);
        let batch = batch(&self.builder, facts, payloads);
        self.builder.build().deliver(&batch, 1).await
    }

    /// Sends a batch of one record, which must arrive.
    async fn delivers(&self, payload: &[u8]) {
        assert_eq!(self.deliver(&[payload]).await.unwrap().records, 1);
    }

    async fn probe(&self) -> Result<(), SinkError> {
        self.builder.build().probe().await
    }
}

/// A server that always answers the same.
fn always(reply: Reply) -> Server {
    Server::start(move |_| reply.clone())
}

fn is_batch(sent: &Sent) -> bool {
    sent.method != "HEAD"
}
