//! The source that measures its host: a flat JSON record for the processors, the memory, and each file system, network
//! interface and temperature sensor, in every round.
//!
//! | `metric` | what is in the record beside `time`, `host` and `metric` |
//! |---|---|
//! | `cpu` | `usage_ratio` since the round before (0 to 1, of all cores), `cores`, `load_1m`, `load_5m`, `load_15m`, `uptime_seconds` |
//! | `memory` | `total_bytes`, `available_bytes`, `used_bytes`, `swap_total_bytes`, `swap_used_bytes` |
//! | `disk` | `mount`, `device`, `file_system`, `total_bytes`, `available_bytes`, `read_only` |
//! | `network` | `interface`, and since it came up: `received_bytes`, `transmitted_bytes`, `received_packets`, `transmitted_packets`, `received_errors`, `transmitted_errors` |
//! | `temperature` | `sensor`, `celsius`, and `critical_celsius` where the sensor has it |
//!
//! A measurement that could not be stored is gone; the next one is another. A file system that does not answer (a dead network
//! mount) holds up this source alone, which says so.

pub mod config;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use sysinfo::{Components, Disks, Networks, System};
use tokio::task::JoinHandle;

use self::config::{Metric, MetricsSourceConfig};
use super::collect::{Collector, Line};
use super::config::{LineLimits, OnOversize};
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions, Times};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::journal::Appender;
use crate::limits::{METRICS_ENTRIES_MAX, METRICS_MS_MAX, RECORD_BYTES_MAX};
use crate::record::Headers;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::record::time::push_rfc3339;
use crate::tasks::Shutdown;
use crate::units::ByteSize;

const FIELDS: &[&str] = &["source", "metric"];
/// How long the processors are watched before the first round.
const FIRST_ROUND: Duration = Duration::from_secs(1);

/// What a round has found, and the host as it is kept for the next.
type Round = Result<(Host, Vec<(Metric, Value)>), sysinfo::Error>;

pub(super) struct MetricsSource {
    id: SourceId,
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    times: Option<Arc<Times>>,
    config: MetricsSourceConfig,
    subject: Template,
    /// `None` while its thread has it.
    host: Option<Host>,
    /// A round that has taken too long and is still waited for.
    measuring: Option<JoinHandle<Round>>,
}

impl MetricsSource {
    pub(super) fn new(
        id: SourceId,
        config: &MetricsSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let subject = Template::parse(&config.subject, FIELDS)
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?;
        Ok(Self {
            id,
            clock: Arc::clone(&options.clock),
            counters: Arc::clone(&options.counters),
            times: options.times.clone(),
            config: config.clone(),
            subject,
            host: None,
            measuring: None,
        })
    }

    /// One round on a thread of its own.
    async fn measure(&mut self) -> Result<Vec<(Metric, Value)>, SourceError> {
        let measuring = match &mut self.measuring {
            Some(measuring) => measuring,
            None => {
                let (host, collect) = (self.host.take(), self.config.collect.clone());
                self.measuring.insert(tokio::task::spawn_blocking(move || {
                    let mut host = host.map_or_else(Host::new, Ok)?;
                    let found = host.measure(&collect);
                    Ok((host, found))
                }))
            }
        };
        let most = Duration::from_millis(METRICS_MS_MAX);
        let Ok(ended) = tokio::time::timeout(most, measuring).await else {
            let error = io::Error::new(
                io::ErrorKind::TimedOut,
                format!(
                    "measuring takes longer than {} s: a file system may not answer",
                    most.as_secs()
                ),
            );
            return Err(SourceError::Read { source_id: self.id.clone(), error });
        };
        self.measuring = None;
        let round =
            ended.map_err(|error| SourceError::Died { source_id: self.id.clone(), error })?;
        let (host, found) = round.map_err(|error| SourceError::Read {
            source_id: self.id.clone(),
            error: io::Error::other(error.to_string()),
        })?;
        self.host = Some(host);
        Ok(found)
    }

    fn collect(&self, found: Vec<(Metric, Value)>, collector: &mut Collector) {
        let now = self.clock.now();
        let mut subject = String::new();
        for (metric, value) in found {
            let payload =
                record(now, self.host.as_ref().map_or("", |host| &host.name), metric, value);
            subject.clear();
            self.subject.render_into(&mut subject, |field, out| match field {
                0 => out.push_str(self.id.as_str()),
                _ => out.push_str(metric.word()),
            });
            let size = payload.len() as u64;
            let headers = Headers::default();
            let line =
                Line { time: now, subject: &subject, headers, head: payload.as_bytes(), size };
            collector.message(line, String::new);
        }
    }
}

#[async_trait]
impl Source for MetricsSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let limits = LineLimits {
            record_bytes_max: ByteSize(RECORD_BYTES_MAX as u64),
            on_oversize: OnOversize::Truncate,
        };
        let mut collector =
            Collector::new(limits, Arc::clone(&self.counters)).timed(self.times.as_ref());
        let mut feed = Feed::new(appender, Arc::clone(&self.counters));
        let every = self.config.every;
        // What is counted since the round before needs one before the first.
        if self.host.is_none() {
            self.measure().await?;
            if !shutdown.sleep(FIRST_ROUND.min(every)).await {
                return Ok(Finished::Stopped);
            }
        }
        loop {
            let began = self.clock.monotonic();
            let found = tokio::select! {
                found = self.measure() => found?,
                () = shutdown.requested() => return Ok(Finished::Stopped),
            };
            self.collect(found, &mut collector);
            if let Some(append) = collector.take() {
                feed.push(append).await?;
                feed.drain().await?;
            }
            // Rounds that a slow host or a sleep has swallowed are not made up for.
            if !shutdown.sleep(wait(every, began, self.clock.monotonic())).await {
                return Ok(Finished::Stopped);
            }
        }
    }
}

/// Until the next round.
fn wait(every: Duration, began: Monotonic, now: Monotonic) -> Duration {
    every.saturating_sub(now.since(began)).max(Duration::from_millis(1))
}

fn record(now: Timestamp, host: &str, metric: Metric, value: Value) -> String {
    let mut time = String::new();
    push_rfc3339(now, &mut time);
    let mut record = json!({ "time": time, "host": host, "metric": metric.word() });
    if let (Value::Object(record), Value::Object(value)) = (&mut record, value) {
        record.extend(value);
    }
    record.to_string()
}

/// What is kept between two rounds.
struct Host {
    name: String,
    system: System,
    disks: Disks,
    networks: Networks,
    components: Components,
    /// What has more entries than are taken, so that it is said once.
    told: BTreeSet<&'static str>,
}

impl Host {
    fn new() -> Result<Self, sysinfo::Error> {
        Ok(Self {
            name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            system: System::new()?,
            disks: Disks::new()?,
            networks: Networks::new()?,
            components: Components::new()?,
            told: BTreeSet::new(),
        })
    }

    /// Blocks for as long as the kernel takes.
    fn measure(&mut self, collect: &[Metric]) -> Vec<(Metric, Value)> {
        let mut found = Vec::new();
        for metric in collect.iter().copied() {
            let mut values = match metric {
                Metric::Cpu => vec![self.cpu()],
                Metric::Memory => vec![self.memory()],
                Metric::Disk => self.disks(),
                Metric::Network => self.networks(),
                Metric::Temperature => self.temperatures(),
            };
            if values.len() > METRICS_ENTRIES_MAX {
                if self.told.insert(metric.word()) {
                    let (metric, entries) = (metric.word(), values.len());
                    tracing::warn!(
                        metric,
                        entries,
                        taken = METRICS_ENTRIES_MAX,
                        "Too much to measure"
                    );
                }
                values.truncate(METRICS_ENTRIES_MAX);
            }
            found.extend(values.into_iter().map(|value| (metric, value)));
        }
        found
    }

    fn cpu(&mut self) -> Value {
        self.system.refresh_cpu_usage();
        let mut value = json!({
            "usage_ratio": rounded(f64::from(self.system.global_cpu_usage()) / 100.0),
            "cores": self.system.cpus().len(),
        });
        // What the kernel does not tell is left out.
        if let Ok(load) = System::load_average() {
            value["load_1m"] = load.one.into();
            value["load_5m"] = load.five.into();
            value["load_15m"] = load.fifteen.into();
        }
        if let Ok(uptime) = System::uptime() {
            value["uptime_seconds"] = uptime.into();
        }
        value
    }

    fn memory(&mut self) -> Value {
        self.system.refresh_memory();
        json!({
            "total_bytes": self.system.total_memory(),
            "available_bytes": self.system.available_memory(),
            "used_bytes": self.system.used_memory(),
            "swap_total_bytes": self.system.total_swap(),
            "swap_used_bytes": self.system.used_swap(),
        })
    }

    fn disks(&mut self) -> Vec<Value> {
        self.disks.refresh(true);
        let mut disks: Vec<_> = self.disks.iter().collect();
        disks.sort_by_key(|disk| disk.mount_point().to_owned());
        let value = |disk: &sysinfo::Disk| {
            json!({
                "mount": disk.mount_point().to_string_lossy(),
                "device": disk.name().to_string_lossy(),
                "file_system": disk.file_system().to_string_lossy(),
                "total_bytes": disk.total_space(),
                "available_bytes": disk.available_space(),
                "read_only": disk.is_read_only(),
            })
        };
        disks.into_iter().map(value).collect()
    }

    fn networks(&mut self) -> Vec<Value> {
        self.networks.refresh(true);
        let mut networks: Vec<_> = self.networks.iter().collect();
        networks.sort_by_key(|(name, _)| (*name).clone());
        let value = |(name, data): (&OsString, &sysinfo::NetworkData)| {
            json!({
                "interface": name.to_string_lossy(),
                "received_bytes": data.total_received(),
                "transmitted_bytes": data.total_transmitted(),
                "received_packets": data.total_packets_received(),
                "transmitted_packets": data.total_packets_transmitted(),
                "received_errors": data.total_errors_on_received(),
                "transmitted_errors": data.total_errors_on_transmitted(),
            })
        };
        networks.into_iter().map(value).collect()
    }

    fn temperatures(&mut self) -> Vec<Value> {
        self.components.refresh(true);
        let value = |component: &sysinfo::Component| {
            // One that cannot be read now says nothing.
            let celsius = component.temperature().filter(|celsius| celsius.is_finite())?;
            let mut value = json!({
                "sensor": component.label(),
                "celsius": rounded(f64::from(celsius)),
            });
            if let Some(critical) = component.critical().filter(|critical| critical.is_finite()) {
                value["critical_celsius"] = rounded(f64::from(critical)).into();
            }
            Some(value)
        };
        self.components.iter().filter_map(value).collect()
    }
}

/// To three places: what a sensor does not know need not be sent.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::sources::tests::{open, options, records, source_id};

    fn config(every: Duration, collect: &[Metric]) -> MetricsSourceConfig {
        let subject = "{source}.{metric}".to_owned();
        MetricsSourceConfig { every, collect: collect.to_vec(), subject }
    }

    #[tokio::test]
    async fn the_host_is_measured_in_rounds_and_each_record_says_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let config = config(Duration::from_millis(50), &Metric::ALL);
        let mut source = MetricsSource::new(source_id(), &config, &options(false)).unwrap();
        let appender = journal.appender(&source_id()).await.unwrap();
        let (shutdown, counters) = (Shutdown::new(), source.counters());
        let asked = shutdown.clone();
        let ask = async {
            let mut rounds = 0;
            let mut seen = 0;
            while rounds < 3 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let now = counters.records.load(Ordering::Relaxed);
                rounds += u32::from(now > seen);
                seen = now;
            }
            asked.request();
        };
        let (finished, ()) = tokio::join!(source.run(appender, shutdown), ask);
        assert_eq!(finished.unwrap(), Finished::Stopped);
        let mut found: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (subject, _, payload) in records(&journal).await {
            let record: Value = serde_json::from_slice(&payload).unwrap();
            assert_eq!(subject, format!("src.{}", record["metric"].as_str().unwrap()));
            assert!(record["time"].is_string() && record["host"].is_string(), "{record}");
            let flat = record.as_object().unwrap().values();
            assert!(
                flat.into_iter().all(|value| !value.is_object() && !value.is_array()),
                "{record}"
            );
            found.entry(subject).or_default().push(record);
        }
        // A machine may have no disk, no network and no sensor, but it has these.
        for cpu in &found["src.cpu"] {
            let usage = cpu["usage_ratio"].as_f64().unwrap();
            assert!((0.0..=1.0).contains(&usage) && cpu["cores"].as_u64().unwrap() > 0, "{cpu}");
        }
        let memory = &found["src.memory"][0];
        assert!(memory["total_bytes"].as_u64() > memory["available_bytes"].as_u64(), "{memory}");
        assert!(found["src.cpu"].len() >= 3);
    }

    #[test]
    fn only_what_is_asked_for_is_measured() {
        let found = Host::new().unwrap().measure(&[Metric::Memory]);
        let [(Metric::Memory, _)] = &found[..] else { panic!("{found:?}") };
    }

    #[test]
    fn a_round_that_takes_long_shortens_the_wait_and_none_is_made_up_for() {
        let second = Duration::from_secs(1);
        let at = |nanoseconds| Monotonic(nanoseconds);
        assert_eq!(wait(second, at(0), at(300_000_000)), Duration::from_millis(700));
        assert_eq!(wait(second, at(0), at(10_000_000_000)), Duration::from_millis(1));
    }

    #[tokio::test]
    async fn it_never_ends_which_once_cannot_wait_for() {
        let config = config(Duration::from_secs(1), &[Metric::Cpu]);
        let refused = MetricsSource::new(source_id(), &config, &options(true)).err().unwrap();
        assert!(refused.to_string().contains("never ends"), "{refused}");
    }
}
