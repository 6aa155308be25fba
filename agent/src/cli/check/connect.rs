//! `waystation check --connect`: asks the destinations whether they would take a batch, as a lane that holds does. Sends nothing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use crate::cli::journal::progress;
use crate::cli::status::{ALWAYS, Column, WHEN_NOT_ZERO, printable, table};
use crate::cli::{ExitCode, Failure};
use crate::clock::{Clock as _, SystemClock};
use crate::config::Config;
use crate::error_chain::Chain;
use crate::units::human_duration;

/// What a destination says.
#[derive(Debug, Serialize)]
struct Asked {
    sink: String,
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
    let bar = progress("asking the destinations");
    let asked = runtime.block_on(ask(config, sink, timeout));
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

async fn ask(config: &Config, sink: Option<&str>, timeout: Duration) -> Vec<Asked> {
    let wanted =
        config.sinks.iter().filter(|known| sink.is_none_or(|sink| known.id.as_str() == sink));
    let asked = wanted.map(|sink| async move {
        let builder = crate::sinks::build(sink, &config.net, Arc::new(SystemClock), None);
        let begun = SystemClock.monotonic();
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
        Asked {
            sink: sink.id.to_string(),
            kind: builder.kind(),
            would_take: class.is_none(),
            class,
            reason,
            doubts,
            took_ms: u64::try_from(SystemClock.monotonic().since(begun).as_millis())
                .unwrap_or(u64::MAX),
        }
    });
    join_all(asked).await
}

fn page(asked: &[Asked]) -> String {
    let columns = [
        Column("sink", ALWAYS),
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
            asked.sink.clone(),
            asked.kind.to_owned(),
            if asked.would_take { "yes" } else { "no" }.to_owned(),
            human_duration(Duration::from_millis(asked.took_ms)),
            printable(&why).replace('\n', " "),
            printable(&asked.doubts.join("; ")).replace('\n', " "),
        ]
    });
    table(&columns, rows.collect())
}
