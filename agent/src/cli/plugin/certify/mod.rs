//! `waystation plugin certify`: a sink against a destination that fails in every way that destinations do.

mod destination;
mod rig;
mod scenarios;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use ipnet::{IpNet, Ipv4Net};

use super::given::config_text;
use super::report::{self, Entry, timed};
use super::settings::{guest_config, place};
use crate::backoff::{Backoff, Jitter};
use crate::cli::journal::progress;
use crate::cli::workshop::Workshop;
use crate::cli::{ExitCode, print};
use crate::limits::{
    PLUGIN_CERTIFY_RECORDS_MAX, PLUGIN_CERTIFY_REQUEST_BYTES_MAX, PLUGIN_MEMORY_BYTES_DEFAULT,
};
use crate::sinks::config::{BatchConfig, GiveUp, RetryConfig, SinkConfig, SinkKind};
use crate::sinks::plugin::config::{Origin, PluginSinkConfig};
use crate::telemetry::config::{Level, LogConfig, LogFormat};
use crate::units::{ByteSize, human_bytes, parse_duration};

use destination::{Answer, Destination};
use rig::Rig;
use scenarios::{SCENARIOS, clean};

/// What stands in a config for the address of the destination.
const URL: &str = "{url}";
/// What is delivered unless `--records` says otherwise.
const PAYLOADS: [&str; 5] = [
    r#"{"device":"press-07","seq":1,"temperature_c":21.5}"#,
    r#"{"device":"press-07","seq":2,"temperature_c":21.75}"#,
    r#"{"device":"oven-01","seq":3,"temperature_c":180}"#,
    r#"{"device":"press-07","seq":4,"temperature_c":22}"#,
    r#"{"device":"oven-01","seq":5,"temperature_c":181.25}"#,
];

/// Run a sink against a destination that fails in every way that destinations do
///
/// The destination is a server of the command's own on the loopback interface. A batch is delivered while all is well, and
/// again while answers are lost, break off, come too late, are 4xx and 5xx, at each request of the batch; while the instance is
/// lost and the agent stops in the middle. In the end the destination must have taken all that it is told when nothing goes
/// wrong, byte by byte, and nothing else. Exits with 1 when something failed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
  waystation plugin certify webhook.wasm --config '{\"url\": \"{url}/in\"}'

{url} in the config stands for http://127.0.0.1:PORT, where the destination listens.")]
pub(super) struct Args {
    /// The plugin
    file: PathBuf,
    /// The plugin's config: a JSON object, or a TOML file, of which #TABLE names a table (waystation.toml#sinks.mine.config)
    #[arg(long, value_name = "JSON|FILE", default_value = r#"{"url": "{url}"}"#)]
    config: String,
    /// A file of payloads to deliver, one a line; default five small JSON objects
    #[arg(long, value_name = "FILE")]
    records: Option<PathBuf>,
    /// The status by which the destination says that it takes a request
    #[arg(long, value_name = "STATUS", default_value_t = 200, value_parser = clap::value_parser!(u16).range(200..300))]
    status: u16,
    /// The body that it says so with
    #[arg(long, value_name = "TEXT", default_value = "")]
    answer: String,
    /// As retry.attempt_timeout of a sink
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    attempt_timeout: Duration,
    /// As memory_max of a sink
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT))]
    memory_max: ByteSize,
    /// As deadline of a sink
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    deadline: Duration,
    /// Print JSON, one object for each scenario
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = config_text(&args.config)?;
    if !config.contains(URL) {
        bail!("--config names no {URL}: the plugin has to send to the destination of this command");
    }
    let payloads = match &args.records {
        Some(path) => read_payloads(path)?,
        None => PAYLOADS.map(|text| text.as_bytes().to_vec()).to_vec(),
    };
    // What a plugin says of faults that were made on purpose is of no interest, but for what it calls an error.
    let log = LogConfig { level: Level::Error, format: LogFormat::Text };
    let _logging = crate::telemetry::init(&log);
    let bar = progress("compiling");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the destination")?;
    let destination = Destination::start(&runtime).context("cannot start the destination")?;
    let address = destination.address();
    let config =
        sink_config(args, &config.replace(URL, &format!("http://{address}")), &destination)?;
    let SinkKind::Plugin(settings) = &config.kind else { bail!("it is no plugin") };
    let plugin = Workshop::open()?.host.load_sink(&config.id, &settings.guest)?;
    let good = Answer::Status(args.status, None, args.answer.clone().into_bytes().into());
    let rig = Rig::new((runtime, destination), plugin, &config, place()?, good, payloads);
    let entries = run_all(&rig, |name| bar.set_message(name));
    bar.finish_and_clear();
    let text = if args.json { report::json_lines(&entries) } else { report::page(&entries) };
    print(text.as_bytes())?;
    let failed = entries.iter().any(|entry| entry.verdict.is_failure());
    Ok(if failed { ExitCode::Failed } else { ExitCode::Done })
}

/// Every scenario; only the first, where that leaves nothing to compare with.
fn run_all(rig: &Rig, say: impl Fn(&'static str)) -> Vec<Entry> {
    let name = "a batch, and nothing goes wrong";
    say(name);
    let mut sent = Vec::new();
    let first = timed("scenario", name.to_owned(), None, || {
        let (verdict, requests) = clean(rig);
        sent = requests;
        verdict
    });
    let mut entries = vec![first];
    if !sent.is_empty() {
        for scenario in &SCENARIOS {
            say(scenario.name);
            let verdict = || (scenario.run)(rig, &sent);
            entries.push(timed("scenario", scenario.name.to_owned(), None, verdict));
        }
    }
    entries
}

fn sink_config(args: &Args, config: &str, destination: &Destination) -> anyhow::Result<SinkConfig> {
    let guest = guest_config(&args.file, config, args.memory_max, args.deadline)?;
    let loopback = Ipv4Net::new([127, 0, 0, 0].into(), 8)?;
    let plugin = PluginSinkConfig {
        guest,
        origins: vec![Origin::at(destination.address())],
        networks: vec![IpNet::V4(loopback)],
        headers: Vec::new(),
        tls: None,
    };
    Ok(SinkConfig {
        id: "sink".parse()?,
        batch: BatchConfig::STREAM,
        retry: RetryConfig {
            backoff: Backoff::new(
                Duration::from_millis(1),
                Duration::from_millis(1),
                Jitter::None,
            )?,
            attempt_timeout: args.attempt_timeout,
            budget: Duration::from_secs(1),
            on_exhausted: GiveUp::DeadLetter,
        },
        limit: None,
        on_conflict: GiveUp::Hold,
        kind: SinkKind::Plugin(Box::new(plugin)),
    })
}

fn read_payloads(path: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let cannot = || format!("cannot read {}", path.display());
    let size = std::fs::metadata(path).with_context(cannot)?.len();
    if size > PLUGIN_CERTIFY_REQUEST_BYTES_MAX as u64 {
        let limit = human_bytes(PLUGIN_CERTIFY_REQUEST_BYTES_MAX as u64);
        bail!("{} is larger than {limit}", path.display());
    }
    let bytes = std::fs::read(path).with_context(cannot)?;
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let payloads: Vec<_> = lines.map(<[u8]>::to_vec).collect();
    match payloads.len() {
        0 => bail!("{} holds no record", path.display()),
        1..=PLUGIN_CERTIFY_RECORDS_MAX => Ok(payloads),
        more => bail!(
            "{} holds {more} records; a batch of up to {PLUGIN_CERTIFY_RECORDS_MAX} is delivered",
            path.display()
        ),
    }
}
