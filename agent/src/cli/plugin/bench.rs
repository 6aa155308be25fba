//! `waystation plugin bench`: what a transform costs, in batches of several sizes.

use std::path::PathBuf;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

use super::cases::{self, Expected, NOW};
use super::given::config_text;
use super::pool::Pool;
use super::settings::{guest_config, place, transform_config};
use crate::cli::journal::progress;
use crate::cli::status::{ALWAYS, Column, table};
use crate::cli::workshop::Workshop;
use crate::cli::{ExitCode, print};
use crate::clock::{Clock as _, SystemClock};
use crate::limits::{PLUGIN_BENCH_ROUNDS, PLUGIN_MEMORY_BYTES_DEFAULT, PLUGIN_TEST_RECORDS};
use crate::plugin::config::{InstanceLife, TransformConfig};
use crate::plugin::{CallError, Instance, Plugin, StateView};
use crate::record::RecordView;
use crate::record::batch::LanePlace;
use crate::telemetry::config::{Level, LogConfig, LogFormat};
use crate::units::{ByteSize, human_bytes, parse_duration};

/// Sizes of the batches that are measured, in records.
const BATCHES: [usize; 4] = [1, 10, 100, PLUGIN_TEST_RECORDS];

/// Measure what a transform costs, in batches of 1, 10, 100 and 1000 records
///
/// Figures are CPU time of the thread that runs the plugin, the median of five rounds: of a record, by a new instance for each
/// batch and by one that is used again, and of an instance with its init.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The plugin
    file: PathBuf,
    /// Cases as `plugin test` takes them, of which the records are run; default one small JSON object, over and over
    #[arg(value_name = "CASES.jsonl")]
    cases: Option<PathBuf>,
    /// The plugin's config: a JSON object, or a TOML file, of which #TABLE names a table (waystation.toml#transforms.mine.config)
    #[arg(long, value_name = "JSON|FILE")]
    config: Option<String>,
    /// For how long each figure is measured
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    time: Duration,
    /// As memory_max of a transform
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT))]
    memory_max: ByteSize,
    /// As deadline of a transform
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    deadline: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// CPU time of a record in batches of one size.
#[derive(Debug)]
struct Figure {
    batch: usize,
    per_batch: Duration,
    reuse: Duration,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cases = args.cases.as_deref().map(cases::read).transpose()?.unwrap_or_default();
    let given = args.config.as_deref().map(config_text).transpose()?;
    let mut good = cases.iter().filter(|case| matches!(case.expected, Expected::Each(_)));
    let of_case = good.clone().next().and_then(|case| case.config.clone());
    let config = given.or(of_case.clone()).unwrap_or_else(|| "{}".to_owned());
    let log = LogConfig { level: Level::Error, format: LogFormat::Text };
    let _logging = crate::telemetry::init(&log);
    let bar = progress("compiling");
    let settings = settings(args, &config)?;
    let workshop = Workshop::open()?;
    let compiling = SystemClock.monotonic();
    let plugin = workshop.host.load(&settings)?;
    let compiled_in = SystemClock.monotonic().since(compiling);
    let (loading, cpu) = (SystemClock.monotonic(), thread_time());
    let loaded = workshop.host.load(&settings).map(drop);
    let (loaded_in, loading_cpu) =
        (SystemClock.monotonic().since(loading), thread_time().saturating_sub(cpu));
    loaded?;
    // Those with the config that is measured.
    let own = good.by_ref().filter(|case| case.config == of_case).map(|case| &case.records);
    let pool = Pool::new(&own.collect::<Vec<_>>())?;
    let bench = Bench { plugin, place: place()?, records: pool.views() };
    bar.set_message("measuring");
    let instance = bench.instance_time(args.time)?;
    let mut figures = Vec::new();
    for batch in BATCHES {
        bar.set_message(format!("batches of {batch}"));
        figures.push(bench.figure(batch, args.time)?);
    }
    let memory = bench.memory_bytes()?;
    bar.finish_and_clear();
    let bytes: usize = bench.records.iter().map(RecordView::size_bytes).sum();
    let record_bytes = bytes / bench.records.len().max(1);
    let text = if args.json {
        let figures: Vec<_> = figures.iter().map(Figure::object).collect();
        let object = json!({
            "compiled_ms": millis(compiled_in),
            "loaded_ms": millis(loaded_in),
            "loaded_cpu_ms": millis(loading_cpu),
            "instance_us": micros(instance),
            "memory_bytes": memory,
            "record_bytes": record_bytes,
            "batches": figures,
        });
        format!("{object}\n")
    } else {
        let mut page = format!(
            "compiled in {:.0} ms, once for each version of the agent; loaded in {:.1} ms at each start\n\
             an instance takes {:.1} µs with its init; {} of guest memory after a batch\n\
             records of {record_bytes} B:\n\n",
            millis(compiled_in),
            millis(loaded_in),
            micros(instance),
            human_bytes(memory as u64),
        );
        let columns = [
            Column("records in a batch", ALWAYS),
            Column("µs a record, per_batch", ALWAYS),
            Column("reuse", ALWAYS),
            Column("records/s on one core, per_batch", ALWAYS),
        ];
        page.push_str(&table(&columns, figures.iter().map(Figure::row).collect()));
        page
    };
    print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

fn settings(args: &Args, config: &str) -> anyhow::Result<TransformConfig> {
    let guest = guest_config(&args.file, config, args.memory_max, args.deadline)?;
    transform_config(guest, InstanceLife::PerBatch)
}

/// A plugin, and what it is measured with.
struct Bench<'r> {
    plugin: Plugin,
    place: LanePlace,
    records: Vec<RecordView<'r>>,
}

impl Bench<'_> {
    fn instance(&self) -> Result<Instance, CallError> {
        self.plugin.instantiate(&self.place, StateView::default())
    }

    fn instance_time(&self, time: Duration) -> Result<Duration, CallError> {
        median(time, || {
            drop(self.instance()?);
            Ok(1)
        })
    }

    fn figure(&self, batch: usize, time: Duration) -> Result<Figure, CallError> {
        let per_batch = median(time, || {
            for records in self.records.chunks(batch) {
                self.instance()?.process(NOW, records)?;
            }
            Ok(self.records.len())
        })?;
        let mut instance = self.instance()?;
        let reuse = median(time, || {
            for records in self.records.chunks(batch) {
                drop(instance.replace_state(StateView::default()));
                instance.process(NOW, records)?;
            }
            Ok(self.records.len())
        })?;
        Ok(Figure { batch, per_batch, reuse })
    }

    fn memory_bytes(&self) -> Result<usize, CallError> {
        let mut instance = self.instance()?;
        instance.process(NOW, &self.records)?;
        Ok(instance.memory_bytes())
    }
}

/// CPU time of one thing: the median of rounds that take this long together. `work` says how many things it has done.
fn median(
    time: Duration,
    mut work: impl FnMut() -> Result<usize, CallError>,
) -> Result<Duration, CallError> {
    // What is done for the first time is not meant.
    work()?;
    let round = time / PLUGIN_BENCH_ROUNDS;
    let mut rounds = Vec::new();
    for _ in 0..PLUGIN_BENCH_ROUNDS {
        let (begun, mut done, mut taken) = (thread_time(), 0, Duration::ZERO);
        while taken < round || done == 0 {
            done += work()?;
            taken = thread_time().saturating_sub(begun);
        }
        rounds.push(taken / u32::try_from(done).unwrap_or(u32::MAX));
    }
    rounds.sort();
    Ok(rounds.get(rounds.len() / 2).copied().unwrap_or_default())
}

/// CPU time of this thread. What other threads and programs do does not count.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Figure {
    fn row(&self) -> Vec<String> {
        vec![
            self.batch.to_string(),
            format!("{:.2}", micros(self.per_batch)),
            format!("{:.2}", micros(self.reuse)),
            format!("{:.0}", self.per_batch.as_secs_f64().recip()),
        ]
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "records": self.batch,
            "per_batch_us": micros(self.per_batch),
            "reuse_us": micros(self.reuse),
        })
    }
}
