//! Sources bring records in. They know the journal's [`Appender`] and nothing of lanes, pipelines or sinks.
//!
//! A source moves its positions in the same append as the records that it has read; so a crash neither repeats nor skips a
//! record. One whose producer waits for an answer (MQTT, JetStream) gives it when the append is durable. When an append fails, nothing after it was taken: the run ends with the error, and the next one begins at the
//! positions that are durable. Standard input has no positions: it keeps what is not durable yet and hands it in again.
//!
//! Lines (files and standard input) end at `\n`, which is not part of the record. All other bytes stay as they are, also NUL,
//! what is no UTF-8, and on standard input `\r`; what of a file's lines is left out, says `file`. An empty line is no record: it is skipped
//! and counted.

mod collect;
pub mod config;
mod error;
mod feed;
pub mod file;
mod generate;
mod headers;
pub mod http;
mod intake;
#[cfg(feature = "journald")]
pub mod journald;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "mqtt")]
pub mod mqtt;
pub mod nats;
#[cfg(feature = "sockets")]
pub mod socket;
mod stdin;
mod times;

/// The settings of `journald`. Of what the agent is built without they are all that there is: a config is checked by the same
/// rules, and told what is missing.
#[cfg(not(feature = "journald"))]
pub mod journald {
    pub mod config;
}
/// The settings of `metrics`.
#[cfg(not(feature = "metrics"))]
pub mod metrics {
    pub mod config;
}
/// The settings of `mqtt`.
#[cfg(not(feature = "mqtt"))]
pub mod mqtt {
    pub mod config;
    mod filter;
}
/// The settings of `syslog`, `tcp`, `udp` and `unix`.
#[cfg(not(feature = "sockets"))]
pub mod socket {
    pub mod config;
}

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use tokio::sync::watch;

pub use error::SourceError;

use self::config::{SourceConfig, SourceKind};
pub use self::times::Times;
use crate::clock::SharedClock;
use crate::journal::Appender;
use crate::net::config::NetConfig;
use crate::record::id::AgentId;
use crate::tasks::Shutdown;

/// How a source came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finished {
    /// A finite source was read to its end, and everything of it is durable.
    End,
    /// The same, but for what could not be read: a line for each.
    Partly(Vec<String>),
    /// It was asked to stop; what it had submitted is durable.
    Stopped,
}

/// What a source needs besides its settings.
#[derive(Debug, Clone)]
pub struct SourceOptions {
    /// Whether it is to be read to its end, once.
    pub once: bool,
    /// Time.
    pub clock: SharedClock,
    /// What is counted: those of the source that it takes the place of, if there is one.
    pub counters: Arc<SourceCounters>,
    /// `[net]`: whom clients trust.
    pub net: NetConfig,
    /// What the source's config says of times; set by [`build`].
    pub times: Option<Arc<Times>>,
}

/// What a source has done in all its runs, for status and metrics. Counted when durable; what is left out, when it is read.
#[derive(Debug, Default)]
pub struct SourceCounters {
    /// Records in the journal.
    pub records: AtomicU64,
    /// Bytes of their frames.
    pub bytes: AtomicU64,
    /// Records over their limit that went into the dead letters.
    pub oversize_dead_lettered: AtomicU64,
    /// Records over their limit that were cut.
    pub oversize_truncated: AtomicU64,
    /// Records over their limit that were left out.
    pub oversize_dropped: AtomicU64,
    /// Requests that were answered with an error.
    pub refused_requests: AtomicU64,
    /// Empty lines, which are left out.
    pub empty_lines: AtomicU64,
    /// Files that cannot be opened or read now.
    pub files_in_trouble: AtomicU64,
    /// Files that were cut or written anew and are read from their first byte again.
    pub files_restarted: AtomicU64,
    /// NULs at the start of lines, which are left out.
    pub hole_bytes: AtomicU64,
    /// Files that went out of reach with something unread.
    pub files_lost: AtomicU64,
    /// Times that the place up to which journald was read was not there any more.
    pub gaps: AtomicU64,
    /// Sessions that a broker should have kept and has not.
    pub sessions_lost: AtomicU64,
    /// Records without a time where `time_from` says; they keep that of their arrival.
    pub times_missing: AtomicU64,
    /// Messages that a consumer has delivered again, and that were stored already.
    pub messages_known: AtomicU64,
    /// Messages that nobody can send again and that the journal has not taken.
    pub messages_dropped: AtomicU64,
    /// Connections and datagrams of those who may not send, and connections beyond the limits.
    pub turned_away: AtomicU64,
    /// Datagrams that the kernel has dropped.
    pub datagrams_dropped: AtomicU64,
}

/// One configured source, ready to run.
#[async_trait]
pub trait Source: Send {
    /// What it does, readable while it runs.
    fn counters(&self) -> Arc<SourceCounters>;

    /// Records that were read, are not durable and cannot be read again. The next run hands them in first.
    fn unsaved(&self) -> u64 {
        0
    }

    /// Told once, before it runs: whose source it is.
    fn belongs_to(&mut self, _agent: &AgentId) {}

    /// Whether what it reads from is connected, for one that has to connect first. It counts as running only then.
    fn connected(&self) -> Option<watch::Receiver<bool>> {
        None
    }

    /// Reads until the end, or until asked to stop. After an error it can be run again, with a new appender.
    ///
    /// # Errors
    /// When the journal takes nothing more or the input cannot be read.
    ///
    /// # Cancel safety
    /// Can be dropped; what was submitted may still become durable, with the positions that belong to it.
    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError>;
}

/// Makes a configured source. Opens nothing.
///
/// # Errors
/// When it never ends but is to be read once, or a setting makes no sense.
pub fn build(
    config: &SourceConfig,
    options: &SourceOptions,
) -> Result<Box<dyn Source>, SourceError> {
    let id = config.id.clone();
    let times = Times::of(&config.time, &options.clock, &options.counters);
    let options = &SourceOptions { times, ..options.clone() };
    Ok(match &config.kind {
        SourceKind::File(file) => Box::new(file::FileSource::new(id, file, options)?),
        SourceKind::Generate(made) => Box::new(generate::GenerateSource::new(id, made, options)?),
        SourceKind::Http(http) => Box::new(http::HttpSource::new(id, http, options)?),
        #[cfg(feature = "journald")]
        SourceKind::Journald(read) => Box::new(journald::JournaldSource::new(id, read, options)?),
        #[cfg(feature = "metrics")]
        SourceKind::Metrics(made) => Box::new(metrics::MetricsSource::new(id, made, options)?),
        #[cfg(feature = "mqtt")]
        SourceKind::Mqtt(mqtt) => Box::new(mqtt::MqttSource::new(id, mqtt, options)?),
        SourceKind::Nats(nats) => Box::new(nats::NatsSource::new(id, nats, options)?),
        #[cfg(feature = "sockets")]
        SourceKind::Syslog(socket)
        | SourceKind::Tcp(socket)
        | SourceKind::Udp(socket)
        | SourceKind::Unix(socket) => Box::new(socket::SocketSource::new(id, socket, options)?),
        SourceKind::Stdin(stdin) => Box::new(stdin::StdinSource::new(id, stdin, options)?),
        #[cfg(not(all(
            feature = "journald",
            feature = "metrics",
            feature = "mqtt",
            feature = "sockets"
        )))]
        other => return Err(SourceError::LeftOut { source_id: id, kind: other.word() }),
    })
}

#[cfg(test)]
mod tests {
    //! What the tests of the sources have in common: a real journal, and what came into it.

    use std::path::Path;

    use super::*;
    use crate::clock::SystemClock;
    use crate::journal::config::JournalConfig;
    use crate::journal::{Journal, JournalOptions, LaneSpec};
    use crate::limits::CHUNK_BYTES_MAX;
    use crate::record::id::{Seq, SourceId};

    pub(super) fn source_id() -> SourceId {
        "src".parse().unwrap()
    }

    pub(super) fn options(once: bool) -> SourceOptions {
        let (counters, net) = (Arc::default(), NetConfig::default());
        SourceOptions { once, clock: Arc::new(SystemClock), counters, net, times: None }
    }

    pub(super) fn open(folder: &Path) -> Journal {
        let options = JournalOptions {
            directory: folder.join("data"),
            config: JournalConfig::default(),
            agent: None,
            host: "gw".parse().unwrap(),
            clock: Arc::new(SystemClock),
        };
        Journal::open(&options).unwrap().0
    }

    /// A record as it came in: subject, headers, payload.
    pub(super) type Record = (String, Vec<(String, String)>, Vec<u8>);

    /// Everything that the source has appended, in order.
    pub(super) async fn records(journal: &Journal) -> Vec<Record> {
        let spec = LaneSpec {
            agent: "gw".parse().unwrap(),
            source: source_id(),
            pipeline: "p".parse().unwrap(),
            sink: "k".parse().unwrap(),
            start_now: false,
        };
        let (lane, _) = journal.lane(spec).await.unwrap();
        let head = lane.head().borrow().seq;
        let mut next = Seq(1);
        let mut found = Vec::new();
        while next <= head {
            for block in lane.read(next).unwrap() {
                assert!(block.bytes.len() <= CHUNK_BYTES_MAX || block.count == 1);
                for record in block.records() {
                    let record = record.unwrap();
                    let headers = record.headers.iter().map(|(n, v)| (n.to_owned(), v.to_owned()));
                    if record.seq >= next {
                        next = record.seq.next();
                        found.push((
                            record.subject.to_owned(),
                            headers.collect(),
                            record.payload.to_vec(),
                        ));
                    }
                }
            }
        }
        found
    }

    pub(super) async fn payloads(journal: &Journal) -> Vec<Vec<u8>> {
        records(journal).await.into_iter().map(|(_, _, payload)| payload).collect()
    }
}
