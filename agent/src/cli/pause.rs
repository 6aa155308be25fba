//! `waystation pause`: hold a lane, as long as the agent runs.

use std::time::Duration;

use super::agent::{AgentArgs, lanes};
use crate::admin::VERSION;
use crate::admin::orders::{DoneAnswer, LaneOrder};

/// Hold a lane, as long as the agent runs
///
/// The attempt that is under way is finished first. Nothing is lost: records of the lane are kept in the journal until it is
/// resumed. The other lanes are not touched. A restart of the agent ends the pause.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The lane, by its full name or an end of it that no other has, such as `pipeline/sink`
    lane: String,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation pause`.
///
/// # Errors
/// When no agent answers, or it has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let agent = args.agent.agent()?;
    let status = agent.status()?;
    let lane = lanes::of(&status, &args.lane)?.name.clone();
    let order = LaneOrder { version: VERSION, lane: lane.clone() };
    let DoneAnswer { .. } = agent.order("/orders/pause", &order, Duration::ZERO)?;
    let text = if args.json {
        format!("{}\n", serde_json::json!({ "lane": lane, "paused": true }))
    } else {
        format!("lane {lane} is paused\n")
    };
    super::print(text.as_bytes())
}
