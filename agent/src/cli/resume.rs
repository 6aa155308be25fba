//! `waystation resume`: end the pause of a lane, or have it try again at once.

use std::time::Duration;

use super::agent::{AgentArgs, lanes};
use crate::admin::VERSION;
use crate::admin::orders::{DoneAnswer, LaneOrder};

/// End the pause of a lane, or have it try again at once
///
/// A lane that waits before its next attempt, because the destination is down or it holds, tries at once.
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

/// Runs `waystation resume`.
///
/// # Errors
/// When no agent answers, or it has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let agent = args.agent.agent()?;
    let status = agent.status()?;
    let lane = lanes::of(&status, &args.lane)?.name.clone();
    let order = LaneOrder { version: VERSION, lane: lane.clone() };
    let DoneAnswer { .. } = agent.order("/orders/resume", &order, Duration::ZERO)?;
    let text = if args.json {
        format!("{}\n", serde_json::json!({ "lane": lane, "resumed": true }))
    } else {
        format!("lane {lane} is resumed\n")
    };
    super::print(text.as_bytes())
}
