//! A `[sources.NAME]` table: its kind, and what several kinds have in common.

use crate::settings::{Complaint, Kind, Table, template};
use std::time::Duration;

use super::file::config::FileSourceConfig;
use super::http::config::HttpSourceConfig;
use super::journald::config::JournaldSourceConfig;
use super::metrics::config::MetricsSourceConfig;
use super::mqtt::config::MqttSourceConfig;
use super::nats::config::NatsSourceConfig;
use super::socket::config::SocketSourceConfig;
use crate::limits::{
    RECORD_BYTES_MAX, RECORD_BYTES_MAX_DEFAULT, SUBJECT_BYTES_MAX, TIME_FROM_BYTES_MAX,
};
use crate::record::id::SourceId;
use crate::units::ByteSize;

/// What becomes of a record over its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOversize {
    /// Its first bytes become a dead letter of stage `source`, with true size and position.
    #[default]
    DeadLetter,
    /// Its first bytes go on, with the headers `waystation-truncated: true` and `waystation-size: N`.
    Truncate,
    /// It is left out and counted.
    Drop,
}

/// How long a line may be, and what happens to a longer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineLimits {
    /// `record_bytes_max`, default `"1MiB"`, 1 B to 64 MiB.
    pub record_bytes_max: ByteSize,
    /// `on_oversize`, default `"dead_letter"`.
    pub on_oversize: OnOversize,
}

/// Where a source begins with what it has never read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartAt {
    /// With the first that there is.
    #[default]
    Beginning,
    /// Behind the last that there is at that moment.
    End,
}

/// Settings of a source that makes records up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerateSourceConfig {
    /// `records`: how many, at least 1; default none, without end (refused with `--once`).
    pub records: Option<u64>,
    /// `every`: time between two; default `"1s"`; `"0ms"` makes them as fast as they are taken; at most 24 h.
    pub every: Duration,
    /// `payload`: a template with `{n}` (from 1) and `{time}` (RFC 3339); default `{"n":{n},"time":"{time}"}`.
    pub payload: String,
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
}

/// Settings of a source that reads lines from standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdinSourceConfig {
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

/// The kinds of source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// Lines, documents or wholes of files.
    File(FileSourceConfig),
    /// Made-up records.
    Generate(GenerateSourceConfig),
    /// Posts of HTTP clients.
    Http(HttpSourceConfig),
    /// Entries of journald.
    Journald(Box<JournaldSourceConfig>),
    /// What is measured of the host.
    Metrics(MetricsSourceConfig),
    /// Messages of an MQTT broker.
    Mqtt(Box<MqttSourceConfig>),
    /// Messages of NATS.
    Nats(Box<NatsSourceConfig>),
    /// Lines of standard input.
    Stdin(StdinSourceConfig),
    /// Syslog messages.
    Syslog(Box<SocketSourceConfig>),
    /// Frames of TCP connections.
    Tcp(Box<SocketSourceConfig>),
    /// Datagrams.
    Udp(Box<SocketSourceConfig>),
    /// Frames or datagrams of a socket in the file system.
    Unix(Box<SocketSourceConfig>),
}

impl SourceKind {
    /// The word for `type`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Generate(_) => "generate",
            Self::Http(_) => "http",
            Self::Journald(_) => "journald",
            Self::Metrics(_) => "metrics",
            Self::Mqtt(_) => "mqtt",
            Self::Nats(_) => "nats",
            Self::Stdin(_) => "stdin",
            Self::Syslog(_) => "syslog",
            Self::Tcp(_) => "tcp",
            Self::Udp(_) => "udp",
            Self::Unix(_) => "unix",
        }
    }
}

/// What every source may say of times.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TimeConfig {
    /// `time_from`: where a record says when it happened; default none: when it was taken, unless its source knows better.
    pub time_from: Option<TimeFrom>,
    /// `stamp`: whether records get the headers `waystation-accepted` and `waystation-clock`; default false.
    pub stamp: bool,
}

/// Where a record says when it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeFrom {
    /// `time_from.field`: names in a JSON object, one in the other.
    Field(Vec<String>),
    /// `time_from.header`: a header.
    Header(String),
}

/// Settings of one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The table's name.
    pub id: SourceId,
    /// What stands under it, by `type`.
    pub kind: SourceKind,
    /// `time_from` and `stamp`.
    pub time: TimeConfig,
}

/// The kinds of source, by the word for `type`.
const KINDS: &[Kind<SourceKind>] = &[
    Kind::of("file", FileSourceConfig::read),
    Kind::of("generate", GenerateSourceConfig::read),
    Kind::of("http", HttpSourceConfig::read),
    Kind::of("journald", JournaldSourceConfig::read).if_built_in(cfg!(feature = "journald")),
    Kind::of("metrics", MetricsSourceConfig::read).if_built_in(cfg!(feature = "metrics")),
    Kind::of("mqtt", MqttSourceConfig::read).if_built_in(cfg!(feature = "mqtt")),
    Kind::of("nats", NatsSourceConfig::read),
    Kind::of("stdin", StdinSourceConfig::read),
    Kind::of("syslog", SocketSourceConfig::read_syslog).if_built_in(cfg!(feature = "sockets")),
    Kind::of("tcp", SocketSourceConfig::read_tcp).if_built_in(cfg!(feature = "sockets")),
    Kind::of("udp", SocketSourceConfig::read_udp).if_built_in(cfg!(feature = "sockets")),
    Kind::of("unix", SocketSourceConfig::read_unix).if_built_in(cfg!(feature = "sockets")),
];

impl SourceConfig {
    /// Reads `[sources.ID]`. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(id: Option<SourceId>, table: &Table<'_>) -> Option<Self> {
        let kind = table.kind(KINDS, "What the source is.");
        let time = TimeConfig::read(table);
        Some(Self { id: id?, kind: kind?, time })
    }
}

impl TimeConfig {
    /// Reads `time_from` and `stamp`.
    fn read(table: &Table<'_>) -> Self {
        let stamp = table
            .boolean(
                "stamp",
                "Whether records say when they were taken and how good the clock was.",
            )
            .or(false);
        let time_from = table
            .optional_table("time_from", "Where a record says when it happened.")
            .and_then(|table| TimeFrom::read(&table));
        Self { time_from, stamp }
    }
}

impl TimeFrom {
    fn read(table: &Table<'_>) -> Option<Self> {
        let field = table
            .text("field", "Names in a JSON payload, from the outermost, with dots between.")
            .check(|text| {
                if text.len() > TIME_FROM_BYTES_MAX || text.split('.').any(str::is_empty) {
                    let message = format!("\"{text}\" is no path of names");
                    return Err(Complaint::new(message).hint("write \"time\" or \"meta.time\""));
                }
                Ok(())
            })
            .optional();
        let header = table
            .text("header", "The name of a header.")
            .check(|text| match text.len() {
                1..=TIME_FROM_BYTES_MAX => Ok(()),
                _ => Err(Complaint::new("`header` must name a header")),
            })
            .optional();
        let reading = table.reading();
        let has = |key: &str| reading.place(&table.path(key)).is_some();
        if has("field") == has("header") && !reading.is_describing() {
            let message = if has("field") {
                "`field` and `header` exclude each other"
            } else {
                "`field` or `header` is missing"
            };
            let place = reading.place(&table.path("")).map(|place| place.key);
            let hint = "write time_from = { field = \"time\" } or { header = \"NAME\" }";
            reading.error(table.path(""), place, Complaint::new(message).hint(hint));
            return None;
        }
        match (field, header) {
            (Some(path), _) => Some(Self::Field(path.split('.').map(str::to_owned).collect())),
            (None, header) => header.map(Self::Header),
        }
    }
}

impl GenerateSourceConfig {
    fn read(table: &Table<'_>) -> Option<SourceKind> {
        let records = table
            .integer::<u64>("records", "How many; without it there is no end.")
            .within(1..=u64::MAX >> 1)
            .optional();
        let every = table
            .duration("every", "Time between two; \"0ms\" makes them as fast as they are taken.")
            .within(Duration::ZERO..=Duration::from_hours(24))
            .or(Duration::from_secs(1));
        let payload = table
            .text("payload", "A template with {n} (from 1) and {time} (RFC 3339).")
            .or(r#"{"n":{n},"time":"{time}"}"#.to_owned());
        let subject = read_subject(table, &["source"], "{source}");
        Some(SourceKind::Generate(Self { records, every, payload, subject }))
    }
}

impl StdinSourceConfig {
    fn read(table: &Table<'_>) -> Option<SourceKind> {
        let subject = read_subject(table, &["source"], "{source}");
        Some(SourceKind::Stdin(Self { subject, limits: LineLimits::read(table) }))
    }
}

impl LineLimits {
    /// Reads `record_bytes_max` and `on_oversize`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        let words = [
            ("dead_letter", OnOversize::DeadLetter),
            ("truncate", OnOversize::Truncate),
            ("drop", OnOversize::Drop),
        ];
        Self {
            record_bytes_max: table
                .size("record_bytes_max", "Longest record.")
                .within(ByteSize(1)..=ByteSize(RECORD_BYTES_MAX as u64))
                .or(ByteSize(RECORD_BYTES_MAX_DEFAULT)),
            on_oversize: table
                .choice("on_oversize", "What becomes of a longer one.", &words)
                .or(OnOversize::default()),
        }
    }
}

/// Reads `start_at`.
pub(super) fn read_start_at(table: &Table<'_>, doc: &'static str) -> StartAt {
    let words = [("beginning", StartAt::Beginning), ("end", StartAt::End)];
    table.choice("start_at", doc, &words).or(StartAt::default())
}

/// Reads the template `subject`.
pub(super) fn read_subject(
    table: &Table<'_>,
    placeholders: &'static [&'static str],
    default: &str,
) -> String {
    table
        .text("subject", "The routing string of its records, a template.")
        .check(move |text| {
            if text.len() > SUBJECT_BYTES_MAX {
                let message =
                    format!("`subject` must not be longer than {SUBJECT_BYTES_MAX} bytes");
                return Err(crate::settings::Complaint::new(message));
            }
            template::parse(text, placeholders, &["field", "header"]).map(|_| ())
        })
        .or(default.to_owned())
}
