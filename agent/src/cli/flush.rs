//! `waystation flush`: waits until what was accepted is upstream.

use std::time::Duration;

use super::agent::{AgentArgs, lanes};
use super::status::{counted, what_next};
use super::{ExitCode, journal};
use crate::admin::VERSION;
use crate::admin::orders::{FlushAnswer, FlushOrder};
use crate::admin::status::LaneStatusView;
use crate::limits::ADMIN_FLUSH_MS_MAX;
use crate::units::parse_duration;

/// Wait until all that was accepted before is durable upstream
///
/// Seals what there is without waiting for full batches, and waits until every record has its outcome: delivered, left out by
/// a plugin, or in the dead letters. Says what is left when the time is over, and why it waits; the exit code is 1 then.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lane, by its full name or an end of it that no other has; all lanes when none is named
    lane: Option<String>,
    /// For how long to wait, at most an hour
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_timeout)]
    timeout: Duration,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print each lane that is left as JSON, one object a line
    #[arg(long)]
    json: bool,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text).map_err(|error| error.to_string())?;
    if timeout > Duration::from_millis(ADMIN_FLUSH_MS_MAX) {
        return Err("it is at most an hour".to_owned());
    }
    Ok(timeout)
}

/// Runs `waystation flush`.
///
/// # Errors
/// When no agent answers, or it has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let agent = args.agent.agent()?;
    let lane = match &args.lane {
        None => None,
        Some(wanted) => Some(lanes::of(&agent.status()?, wanted)?.name.clone()),
    };
    let timeout_ms = u64::try_from(args.timeout.as_millis()).unwrap_or(ADMIN_FLUSH_MS_MAX);
    let order = FlushOrder { version: VERSION, lane, timeout_ms };
    let bar = journal::progress("waiting for the lanes");
    let answer = agent.order("/orders/flush", &order, args.timeout);
    bar.finish_and_clear();
    let FlushAnswer { left, .. } = answer?;
    let text: String = if args.json {
        left.iter()
            .map(|lane| serde_json::to_string(lane).map(|line| line + "\n"))
            .collect::<Result<_, _>>()?
    } else if left.is_empty() {
        "everything that was accepted before is upstream\n".to_owned()
    } else {
        left.iter().map(line).collect()
    };
    super::print(text.as_bytes())?;
    Ok(if left.is_empty() { ExitCode::Done } else { ExitCode::Failed })
}

fn line(lane: &LaneStatusView) -> String {
    let (name, records) = (&lane.name, counted(lane.queued, "record"));
    let why = match &lane.trouble {
        Some(trouble) => format!(
            "{}: {}: {}; {}",
            lane.state,
            trouble.cause,
            trouble.reason,
            what_next(&trouble.cause, name)
        ),
        None => format!("it is {} and needs more time", lane.state),
    };
    super::status::printable(&format!("lane {name}: {records} not upstream: {why}"))
        .replace('\n', " ")
        + "\n"
}
