//! `waystation check --connect`: opens the plugins, and asks the destinations whether they would take a batch, as a lane that
//! holds does. Sends nothing, and leaves nothing behind: plugins are compiled into a folder that goes with the command.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use crate::cli::journal::progress;
use crate::cli::status::{ALWAYS, Column, WHEN_NOT_ZERO, printable, table};
use crate::cli::workshop::Workshop;
use crate::cli::{ExitCode, Failure};
use crate::clock::{Clock as _, Monotonic, SystemClock};
use crate::config::Config;
use crate::error_chain::Chain;
use crate::lane::config::PipelineConfig;
use crate::plugin::{SinkPlugin, StateView};
use crate::record::batch::LanePlace;
use crate::record::id::LaneName;
use crate::sinks::config::{SinkConfig, SinkKind};
use crate::units::human_duration;

/// What a destination or a plugin says.
#[derive(Debug, Serialize)]
struct Asked {
    /// `sink` or `transform`.
    part: &'static str,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    would_take: bool,
    /// Of which class a delivery would fail.
    class: Option<&'static str>,
    reason: Option<String>,
    /// What does not keep it from taking one, but from recognising every repeat.
    doubts: Vec<String>,
    took_ms: u64,
}

/// Asks one sink, or all; gives 1 when one of them would not take a batch.
pub(super) fn run(
    config: &Config,
    sink: Option<&str>,
    timeout: Duration,
    json: bool,
) -> anyhow::Result<ExitCode> {
    if let Some(wanted) = sink
        && !config.sinks.iter().any(|known| known.id.as_str() == wanted)
    {
        let known: Vec<_> = config.sinks.iter().map(|known| known.id.as_str()).collect();
        return Err(Failure {
            code: ExitCode::Failed,
            message: format!("the config has no sink \"{wanted}\""),
            hint: Some(format!("it has {}", known.join(", "))),
        }
        .into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let bar = progress("opening the plugins");
    let wanted: Vec<_> = config
        .sinks
        .iter()
        .filter(|known| sink.is_none_or(|sink| known.id.as_str() == sink))
        .collect();
    let opener = Opener(Workshop::open()?);
    let mut asked = if sink.is_none() { opener.transforms(config) } else { Vec::new() };
    let opened: Vec<_> = wanted.into_iter().map(|sink| (sink, opener.guest(sink))).collect();
    bar.set_message("asking the destinations");
    asked.extend(runtime.block_on(ask(config, opened, timeout)));
    bar.finish_and_clear();
    // Looking at a mount that hangs must not keep the process.
    runtime.shutdown_background();
    let text = if json {
        asked
            .iter()
            .map(|asked| serde_json::to_string(asked).map(|line| line + "\n"))
            .collect::<Result<_, _>>()?
    } else {
        page(&asked)
    };
    crate::cli::print(text.as_bytes())?;
    Ok(if asked.iter().all(|asked| asked.would_take) { ExitCode::Done } else { ExitCode::Failed })
}

/// Opens plugins as a run would, and forgets them.
struct Opener(Workshop);

impl Opener {
    /// The plugin of a sink, if it is one; the reason when it cannot be opened.
    fn guest(&self, sink: &SinkConfig) -> Result<Option<SinkPlugin>, String> {
        match &sink.kind {
            SinkKind::Plugin(plugin) => {
                let loaded = self.0.host.load_sink(&sink.id, &plugin.guest);
                loaded.map(Some).map_err(|error| Chain(&error).to_string())
            }
            _ => Ok(None),
        }
    }

    /// Has each transform begin, with its config and at a place that it runs at.
    fn transforms(&self, config: &Config) -> Vec<Asked> {
        let used = config.transforms.iter().filter_map(|transform| {
            let runs = |pipeline: &&PipelineConfig| pipeline.transforms.contains(&transform.id);
            Some((transform, config.pipelines.iter().find(runs)?))
        });
        let asked = used.map(|(transform, pipeline)| {
            let begun = SystemClock.monotonic();
            let opened = self.0.host.load(transform).map_err(|error| Chain(&error).to_string());
            let opened = opened.and_then(|plugin| {
                let Some(place) = place(config, pipeline) else { return Ok(()) };
                let made = plugin.instantiate(&place, StateView::default());
                made.map(drop).map_err(|error| Chain(&error).to_string())
            });
            Asked::of("transform", transform.id.to_string(), "plugin", begun, opened.err())
        });
        asked.collect()
    }
}

/// The first lane of a pipeline.
fn place(config: &Config, pipeline: &PipelineConfig) -> Option<LanePlace> {
    let agent = config.agent.id.clone().or_else(|| "check".parse().ok())?;
    let (source, sink) = (pipeline.sources.first()?.clone(), pipeline.sinks.first()?.clone());
    let pipeline = pipeline.id.clone();
    let lane = LaneName::new(&agent, &source, &pipeline, &sink);
    Some(LanePlace { lane, agent, source, pipeline, sink })
}

impl Asked {
    /// `failed`: why it would not take a batch.
    fn of(
        part: &'static str,
        name: String,
        kind: &'static str,
        begun: Monotonic,
        failed: Option<String>,
    ) -> Self {
        let took = SystemClock.monotonic().since(begun);
        Self {
            part,
            name,
            kind,
            would_take: failed.is_none(),
            class: failed.as_ref().map(|_| "unreachable"),
            reason: failed,
            doubts: Vec::new(),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

async fn ask(
    config: &Config,
    sinks: Vec<(&SinkConfig, Result<Option<SinkPlugin>, String>)>,
    timeout: Duration,
) -> Vec<Asked> {
    let asked = sinks.into_iter().map(|(sink, guest)| async move {
        let begun = SystemClock.monotonic();
        let guest = match guest {
            Ok(guest) => guest,
            Err(reason) => {
                let (name, kind) = (sink.id.to_string(), sink.kind.word());
                return Asked::of("sink", name, kind, begun, Some(reason));
            }
        };
        let builder = crate::sinks::build(sink, &config.net, Arc::new(SystemClock), None, guest);
        let mut way = builder.build();
        let seen = match tokio::time::timeout(timeout, way.probe()).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some((error.class.as_str(), Chain(&error).to_string())),
            Err(_) => {
                let timeout = crate::units::format_duration(timeout);
                Some(("unreachable", format!("no answer within {timeout}")))
            }
        };
        let doubts = if seen.is_none() { way.doubts() } else { Vec::new() };
        let (class, reason) = seen.unzip();
        let asked = Asked::of("sink", sink.id.to_string(), builder.kind(), begun, reason);
        Asked { class, doubts, ..asked }
    });
    join_all(asked).await
}

fn page(asked: &[Asked]) -> String {
    let columns = [
        Column("part", ALWAYS),
        Column("name", ALWAYS),
        Column("type", ALWAYS),
        Column("would take a batch", ALWAYS),
        Column("asked for", ALWAYS),
        Column("why not", WHEN_NOT_ZERO),
        Column("but", WHEN_NOT_ZERO),
    ];
    let rows = asked.iter().map(|asked| {
        let reason = asked.reason.as_deref().unwrap_or_default();
        let why = asked.class.map(|class| format!("{class}: {reason}")).unwrap_or_default();
        vec![
            asked.part.to_owned(),
            asked.name.clone(),
            asked.kind.to_owned(),
            if asked.would_take { "yes" } else { "no" }.to_owned(),
            human_duration(Duration::from_millis(asked.took_ms)),
            printable(&why).replace('\n', " "),
            printable(&asked.doubts.join("; ")).replace('\n', " "),
        ]
    });
    table(&columns, rows.collect())
}
