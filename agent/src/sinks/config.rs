//! A `[sinks.NAME]` table: its kind, and what all kinds have in common.

use crate::settings::{Complaint, Kind, Table};
use std::time::Duration;

use super::file::config::FileSinkConfig;
use super::http::config::HttpSinkConfig;
use super::nats::config::NatsSinkConfig;
use super::plugin::config::PluginSinkConfig;
use crate::backoff::{Backoff, Jitter};
use crate::limiter::{RATE_MAX, Rate};
use crate::limits::{BATCH_BYTES_MAX, BATCH_RECORDS_MAX};
use crate::record::id::{LimiterId, NameError, SinkId};
use crate::units::ByteSize;

/// When a lane stops adding to a batch. Whichever comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchConfig {
    /// `batch.records_max`: input records; default 1000, for files 50 000; 1 to 1 000 000.
    pub records_max: u32,
    /// `batch.bytes_max`: bytes of the input records; default `"1MiB"`, for files `"8MiB"`; 1 B to 1 GiB; one record is always taken.
    pub bytes_max: ByteSize,
    /// `batch.linger`: how long the first record may wait for more; default `"1s"`, for files `"30s"`; at most 24 h.
    pub linger: Duration,
}

/// How a lane repeats a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryConfig {
    /// `retry.backoff` (default `"200ms"`), `retry.backoff_max` (default `"30s"`) and `retry.jitter` (default `"full"`).
    /// Both waits 1 ms to 1 h.
    pub backoff: Backoff,
    /// `retry.attempt_timeout`: after this an attempt has failed with unknown outcome; default `"30s"`, 100 ms to 1 h.
    pub attempt_timeout: Duration,
    /// `retry.budget`: for how long the destination may answer to a batch without taking it, before the batch is cut; default
    /// `"2m"`, 1 s to 24 h. Time without answers does not count.
    pub budget: Duration,
    /// `retry.on_exhausted`: what becomes of a single record then; default `"dead_letter"`.
    pub on_exhausted: GiveUp,
}

/// What becomes of records that will not be delivered as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// They go to the dead letters.
    DeadLetter,
    /// The lane holds, until somebody decides or it works after all.
    Hold,
}

impl GiveUp {
    /// The words in the config.
    const WORDS: [(&'static str, Self); 2] =
        [("dead_letter", Self::DeadLetter), ("hold", Self::Hold)];
}

/// How fast records may go out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitConfig {
    /// `rate`: a limiter of the sink's own, shared by its lanes.
    Own(Rate),
    /// `limiter`: one that other sinks may share.
    Shared(LimiterId),
}

/// A `[limiters.NAME]` table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterConfig {
    /// The table's name.
    pub id: LimiterId,
    /// How much may pass. The keys are those of a sink's `rate`: `bytes_per_second` (1 B to 1 GiB) with `burst` (default one
    /// second's bytes, 1 B to 1 GiB), and `records_per_second` (1 to 1 073 741 824); at least one rate.
    pub rate: Rate,
}

/// How a record stands in a file or on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LineFormat {
    /// The payload and a newline.
    #[default]
    Lines,
    /// A JSON object with `id`, `time`, `subject`, `headers`, and `payload` or `payload_base64`.
    Json,
}

/// Settings of a sink that prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StdoutSinkConfig {
    /// `format`, default `"lines"`.
    pub format: LineFormat,
}

/// The kinds of sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkKind {
    /// Files.
    File(FileSinkConfig),
    /// HTTP requests.
    Http(Box<HttpSinkConfig>),
    /// NATS JetStream.
    Nats(NatsSinkConfig),
    /// A plugin.
    Plugin(Box<PluginSinkConfig>),
    /// Standard output.
    Stdout(StdoutSinkConfig),
}

impl SinkKind {
    /// The word for `type`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Http(_) => "http",
            Self::Nats(_) => "nats",
            Self::Plugin(_) => "plugin",
            Self::Stdout(_) => "stdout",
        }
    }
}

/// Settings of one sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SinkConfig {
    /// The table's name.
    pub id: SinkId,
    /// `batch`.
    pub batch: BatchConfig,
    /// `retry`.
    pub retry: RetryConfig,
    /// `rate` or `limiter`; default no limit. Not both.
    pub limit: Option<LimitConfig>,
    /// `on_conflict`: what becomes of a batch whose identity stands for other content at the destination; default `"hold"`.
    pub on_conflict: GiveUp,
    /// What stands under it, by `type`.
    pub kind: SinkKind,
}

/// The kinds of sink, by the word for `type`.
const KINDS: &[Kind<(SinkKind, BatchConfig)>] = &[
    Kind::of("file", FileSinkConfig::read),
    Kind::of("http", HttpSinkConfig::read),
    Kind::of("nats", NatsSinkConfig::read),
    Kind::of("plugin", PluginSinkConfig::read),
    Kind::of("stdout", StdoutSinkConfig::read),
];

/// What `retry.budget` is when the config does not say.
const BUDGET_DEFAULT: Duration = Duration::from_secs(120);

impl SinkConfig {
    /// Reads `[sinks.ID]`. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(id: Option<SinkId>, table: &Table<'_>) -> Option<Self> {
        let kind = table.kind(KINDS, "What the sink is.");
        let retry = RetryConfig::read(&table.table("retry"));
        let limit = LimitConfig::read(table);
        let on_conflict = table
            .choice(
                "on_conflict",
                "What becomes of a batch when the destination holds other content under its identity.",
                &GiveUp::WORDS,
            )
            .or(GiveUp::Hold);
        let (kind, batch) = kind?;
        Some(Self { id: id?, batch, retry, limit, on_conflict, kind })
    }
}

impl LimitConfig {
    fn read(table: &Table<'_>) -> Option<Self> {
        let own = table
            .optional_table("rate", "How much may go out; without it as much as the link takes.")
            .map(|rate| read_rate(&rate));
        let shared = table
            .parsed("limiter", "The limiter that the sink shares with others.", "a name", |text| {
                text.parse().map_err(|error: NameError| Complaint::new(error.to_string()))
            })
            .optional();
        match (own, shared) {
            (Some(_), Some(_)) => {
                let path = table.path("limiter");
                let place = table.reading().place(&path).map(|place| place.key);
                let complaint = Complaint::new("a sink has either `rate` or `limiter`")
                    .hint("a limiter is shared; remove the one that is not meant");
                table.reading().error(path, place, complaint);
                None
            }
            (Some(own), None) => own.map(Self::Own),
            (None, shared) => shared.map(Self::Shared),
        }
    }
}

impl LimiterConfig {
    /// Reads `[limiters.ID]`. `None` when something is missing, which was reported.
    #[must_use]
    pub fn read(id: Option<LimiterId>, table: &Table<'_>) -> Option<Self> {
        let rate = read_rate(table);
        Some(Self { id: id?, rate: rate? })
    }
}

/// Reads the keys of a rate. `None` when it limits nothing, which was reported.
fn read_rate(table: &Table<'_>) -> Option<Rate> {
    let size = |key: &'static str, doc: &'static str, why: &'static str| {
        let bound = ByteSize(RATE_MAX);
        let field = table.size(key, doc).check(move |size: &ByteSize| match size.0 {
            0 => Err(Complaint::new(format!("`{key}` must not be 0")).hint(why)),
            1..=RATE_MAX => Ok(()),
            _ => Err(Complaint::new(format!("`{key}` must not be more than {bound}"))),
        });
        field.optional()
    };
    let nothing = "nothing would ever go out; leave the key out for no limit";
    let bytes = size("bytes_per_second", "Bytes on the wire in a second.", nothing);
    let burst = size(
        "burst",
        "Bytes that may go out at once after a pause; without it what a second gives.",
        "nothing would ever go out; leave the key out for what a second gives",
    );
    let records = table
        .integer::<u64>("records_per_second", "Records in a second.")
        .check(move |records| match records {
            0 => Err(Complaint::new("`records_per_second` must not be 0").hint(nothing)),
            1..=RATE_MAX => Ok(()),
            _ => Err(Complaint::new(format!("`records_per_second` must not be over {RATE_MAX}"))),
        })
        .optional();
    let reading = table.reading();
    // A value that was reported counts as given.
    let given = |key: &str| reading.place(&table.path(key)).is_some();
    if given("burst") && !given("bytes_per_second") {
        let path = table.path("burst");
        let place = reading.place(&path).map(|place| place.key);
        let complaint = Complaint::new("`burst` needs `bytes_per_second`")
            .hint("add bytes_per_second = \"64KiB\", or as much as the link may have");
        reading.error(path, place, complaint);
    } else if !given("bytes_per_second") && !given("records_per_second") && !reading.is_describing()
    {
        let place = reading.place(&table.path("")).map(|place| place.key);
        let complaint = Complaint::new("this limits nothing")
            .hint("add bytes_per_second = \"64KiB\" or records_per_second = 1000");
        reading.error(table.path(""), place, complaint);
    }
    let bytes = bytes.map(|bytes| (bytes.0, burst.unwrap_or(bytes).0));
    (bytes.is_some() || records.is_some()).then_some(Rate { bytes, records })
}

impl BatchConfig {
    /// What most kinds begin with.
    pub const STREAM: Self =
        Self { records_max: 1000, bytes_max: ByteSize(1 << 20), linger: Duration::from_secs(1) };
    /// What files begin with: few large ones.
    pub const FILE: Self =
        Self { records_max: 50_000, bytes_max: ByteSize(8 << 20), linger: Duration::from_secs(30) };

    /// Reads `batch`.
    #[must_use]
    pub fn read(table: &Table<'_>, default: Self) -> Self {
        Self {
            records_max: table
                .integer("records_max", "Most records of a batch.")
                .within(1..=BATCH_RECORDS_MAX)
                .or(default.records_max),
            bytes_max: table
                .size("bytes_max", "Most bytes of a batch's records; one record is always taken.")
                .within(ByteSize(1)..=ByteSize(BATCH_BYTES_MAX))
                .or(default.bytes_max),
            linger: table
                .duration("linger", "How long the first record may wait for more.")
                .within(Duration::ZERO..=Duration::from_hours(24))
                .or(default.linger),
        }
    }
}

impl RetryConfig {
    fn read(table: &Table<'_>) -> Self {
        let bounds = Duration::from_millis(1)..=Duration::from_hours(1);
        let base = table
            .duration("backoff", "The wait after the first failure; it doubles with each.")
            .within(bounds.clone())
            .or(Duration::from_millis(200));
        let max = table
            .duration("backoff_max", "The longest wait.")
            .within(bounds)
            .or(Duration::from_secs(30).max(base));
        let jitter = table
            .choice(
                "jitter",
                "Whether a wait is drawn between nothing and its full length.",
                &[("full", Jitter::Full), ("none", Jitter::None)],
            )
            .or(Jitter::Full);
        let attempt_timeout = table
            .duration("attempt_timeout", "After this an attempt has failed with unknown outcome.")
            .within(Duration::from_millis(100)..=Duration::from_hours(1))
            .or(Duration::from_secs(30));
        let budget = table
            .duration(
                "budget",
                "For how long answers that take nothing are borne, before a batch is cut.",
            )
            .within(Duration::from_secs(1)..=Duration::from_hours(24))
            .or(BUDGET_DEFAULT);
        let on_exhausted = table
            .choice("on_exhausted", "What becomes of a single record then.", &GiveUp::WORDS)
            .or(GiveUp::DeadLetter);
        let backoff = Backoff::new(base, max.max(base), jitter)
            .expect("base is at least a millisecond and max no less");
        if max < base {
            let path = table.path("backoff_max");
            let place = table.reading().place(&path).map(|place| place.value);
            let message = "`backoff_max` must not be shorter than `backoff`";
            table.reading().error(path, place, Complaint::new(message));
        }
        Self { backoff, attempt_timeout, budget, on_exhausted }
    }
}

impl LineFormat {
    /// Reads `format`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        let words = [("lines", Self::Lines), ("json", Self::Json)];
        table.choice("format", "How a record stands in its line.", &words).or(Self::default())
    }
}

impl StdoutSinkConfig {
    fn read(table: &Table<'_>) -> Option<(SinkKind, BatchConfig)> {
        let format = LineFormat::read(table);
        let batch = BatchConfig::read(&table.table("batch"), BatchConfig::STREAM);
        Some((SinkKind::Stdout(Self { format }), batch))
    }
}
