//! A `[sources.NAME]` table with `type = "metrics"`.

use std::fmt;
use std::time::Duration;

use crate::settings::{Complaint, Table, nearest};
use crate::sources::config::{SourceKind, read_subject};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// How busy the processors are.
    Cpu,
    /// Memory and swap.
    Memory,
    /// Space of each file system on a disk.
    Disk,
    /// What went over each network interface.
    Network,
    /// Each temperature sensor.
    Temperature,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Cpu, Self::Memory, Self::Disk, Self::Network, Self::Temperature];

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::Temperature => "temperature",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Settings of a source that measures its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsSourceConfig {
    /// `every`: time between two rounds; default `"10s"`, 1 s to 24 h.
    pub every: Duration,
    /// `collect`: what is measured, `"cpu"`, `"memory"`, `"disk"`, `"network"` and `"temperature"`; default all.
    pub collect: Vec<Metric>,
    /// `subject`: a template with `{source}` and `{metric}`; default `"{source}.{metric}"`.
    pub subject: String,
}

impl MetricsSourceConfig {
    /// Reads what stands beside `type = "metrics"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let every = table
            .duration("every", "Time between two rounds.")
            .within(Duration::from_secs(1)..=Duration::from_hours(24))
            .or(Duration::from_secs(10));
        let collect = table
            .list_of(
                "collect",
                "What is measured: cpu, memory, disk, network, temperature.",
                "a list of words",
                parse_metric,
            )
            .at_least_one()
            .or(Metric::ALL.to_vec());
        let subject = read_subject(table, &["source", "metric"], "{source}.{metric}");
        Some(SourceKind::Metrics(Self { every, collect, subject }))
    }
}

fn parse_metric(word: &str) -> Result<Metric, Complaint> {
    let words = Metric::ALL.map(Metric::word);
    Metric::ALL.into_iter().find(|metric| metric.word() == word).ok_or_else(|| {
        let hint = match nearest(word, words) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("there are: {}", words.join(", ")),
        };
        Complaint::new(format!("\"{word}\" is nothing that can be measured")).hint(hint)
    })
}
