//! `waystation plugin test`: the author's cases, and what every plugin has to stand, in the agent's own host.

mod checks;
mod compare;
mod guest;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::cases::{self, Case, Expected};
use super::given::config_text;
use super::pool::{Pool, views};
use super::report::{self, Verdict, timed};
use super::settings::{guest_config, place, transform_config};
use crate::cli::journal::progress;
use crate::cli::workshop::Workshop;
use crate::cli::{ExitCode, print};
use crate::limits::PLUGIN_MEMORY_BYTES_DEFAULT;
use crate::plugin::config::InstanceLife;
use crate::telemetry::config::{Level, LogConfig, LogFormat};
use crate::units::{ByteSize, parse_duration};

use checks::{CHECKS, broken};
use guest::Guest;

/// Run a plugin's cases, and what every plugin has to stand, in the agent's own host
///
/// Besides the author's cases: an empty batch; payloads that are empty, no UTF-8, no JSON, and 1 MiB; 1000 records at once
/// against cuts of 1, 10 and 333; the same batch twice, by new instances and by one; two clocks (a difference is a warning);
/// 10 000 batches with flat memory. The records for that are those of the cases. Exits with 1 when something failed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
Cases are JSON objects, one a line; empty lines and those that begin with # are skipped:
  {\"name\": \"warm\", \"records\": [{\"payload\": {\"t\": 21}}], \"expect\": [{\"payload\": {\"t\": 69.8}}]}

  name      shown in the table
  config    the plugin's config; default that of --config, else {}
  now       what the plugin is told the time is: RFC 3339, or nanoseconds since 1970;
            default 2026-01-01T00:00:00Z
  records   what goes in, in one call, with seqs from 1; of each:
              payload (a text, or any other JSON value) or payload_base64
              subject, default \"test\"
              headers, {\"name\": \"value\"}, or [[\"name\", \"value\"], …] where names repeat
              time, as now
  expect    one for each record: \"keep\", \"drop\", {\"reject\": \"part of the reason\"}, a record,
            or a list of records. Of a record the keys that are given are compared; a payload
            that is no text as JSON, whatever the order of keys and the spelling of numbers
  error     instead of expect: part of the reason why the config is refused, or the call fails")]
pub(super) struct Args {
    /// The plugin
    file: PathBuf,
    /// The cases; without them only what every plugin has to stand is run
    #[arg(value_name = "CASES.jsonl")]
    cases: Option<PathBuf>,
    /// The plugin's config: a JSON object, or a TOML file, of which #TABLE names a table (waystation.toml#transforms.mine.config)
    #[arg(long, value_name = "JSON|FILE")]
    config: Option<String>,
    /// As instance of a transform: with per_batch, what shows only in one that is used again is a warning
    #[arg(long, value_name = "LIFE", value_parser = ["per_batch", "reuse"], default_value = "reuse")]
    instance: String,
    /// As memory_max of a transform
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT))]
    memory_max: ByteSize,
    /// As deadline of a transform
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    deadline: Duration,
    /// Print JSON, one object for each case and check
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cases = args.cases.as_deref().map(cases::read).transpose()?.unwrap_or_default();
    let given = args.config.as_deref().map(config_text).transpose()?;
    let log = LogConfig { level: Level::Warn, format: LogFormat::Text };
    let logging = crate::telemetry::init(&log);
    let bar = progress("compiling");
    let mut bench = Bench {
        args,
        workshop: Workshop::open()?,
        given: given.unwrap_or_else(|| "{}".to_owned()),
        guests: BTreeMap::new(),
    };
    let checked_config = bench.config_to_check(args.config.is_some(), &cases);
    // Whether it can be loaded at all is no case.
    bench.guest(&checked_config)?;
    let mut entries = Vec::new();
    for case in &cases {
        bar.set_message(case.name.clone());
        let config = case.config.clone().unwrap_or_else(|| bench.given.clone());
        let guest = bench.guest(&config)?;
        entries.push(timed("case", case.name.clone(), Some(case.line), || run_case(guest, case)));
    }
    // What a plugin says to payloads that nobody meant is of no interest, but for what it calls an error.
    logging.set_level(Level::Error);
    let good = cases.iter().filter(|case| matches!(case.expected, Expected::Each(_)));
    let good = good.filter(|case| *case.config.as_ref().unwrap_or(&bench.given) == checked_config);
    let pool = Pool::new(&good.map(|case| &case.records).collect::<Vec<_>>())?;
    let guest = bench.guest(&checked_config)?;
    for check in &CHECKS {
        bar.set_message(check.name);
        let verdict = || (check.run)(guest, &pool);
        entries.push(timed("check", check.name.to_owned(), None, verdict));
    }
    bar.finish_and_clear();
    let text = if args.json { report::json_lines(&entries) } else { report::page(&entries) };
    print(text.as_bytes())?;
    let failed = entries.iter().any(|entry| entry.verdict.is_failure());
    Ok(if failed { ExitCode::Failed } else { ExitCode::Done })
}

/// The plugin with each config that the cases name.
struct Bench<'a> {
    args: &'a Args,
    workshop: Workshop,
    /// For cases that name none.
    given: String,
    guests: BTreeMap<String, Guest>,
}

impl Bench<'_> {
    /// The config that the checks run with: the one on the command line, else that of the first case which expects no error.
    fn config_to_check(&self, is_given: bool, cases: &[Case]) -> String {
        let mut good = cases.iter().filter(|case| matches!(case.expected, Expected::Each(_)));
        let of_case = good.next().and_then(|case| case.config.clone());
        of_case.filter(|_| !is_given).unwrap_or_else(|| self.given.clone())
    }

    fn guest(&mut self, config: &str) -> anyhow::Result<&Guest> {
        Ok(match self.guests.entry(config.to_owned()) {
            MapEntry::Occupied(entry) => entry.into_mut(),
            MapEntry::Vacant(entry) => {
                let Args { file, memory_max, deadline, .. } = self.args;
                let guest = guest_config(file, config, *memory_max, *deadline)?;
                let life = match self.args.instance.as_str() {
                    "per_batch" => InstanceLife::PerBatch,
                    _ => InstanceLife::Reuse,
                };
                let settings = transform_config(guest, life)?;
                let plugin = self.workshop.host.load(&settings)?;
                entry.insert(Guest { plugin, config: settings, place: place()? })
            }
        })
    }
}

fn run_case(guest: &Guest, case: &Case) -> Verdict {
    let records = match views(&case.records) {
        Ok(records) => records,
        Err(error) => return Verdict::failed([format!("its records cannot be read: {error}")]),
    };
    match (guest.batch(case.now, &records, &mut Arc::default()), &case.expected) {
        (Ok(got), Expected::Each(expected)) => {
            let each = records.iter().zip(expected).zip(&got);
            let lines: Vec<_> = each
                .filter_map(|((record, expected), got)| compare::difference(record, expected, got))
                .flatten()
                .collect();
            if lines.is_empty() { Verdict::passed() } else { Verdict::failed(lines) }
        }
        (Ok(_), Expected::Error(part)) => Verdict::failed([
            format!("expected  an error: …{part}…"),
            "got       none: the call went well".to_owned(),
        ]),
        (Err(error), Expected::Error(part)) if error.to_string().contains(part) => {
            Verdict::passed()
        }
        (Err(error), Expected::Error(part)) => {
            Verdict::failed([format!("expected  an error: …{part}…"), format!("got       {error}")])
        }
        (Err(error), Expected::Each(_)) => Verdict::failed([broken(&error)]),
    }
}
