//! `waystation pause`: hold a lane, as long as the agent runs.

use super::agent::lanes::{LaneArgs, order};

/// Hold a lane, as long as the agent runs
///
/// The attempt that is under way is finished first. Nothing is lost: records of the lane are kept in the journal until it is
/// resumed. The other lanes are not touched. A restart of the agent ends the pause.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    lane: LaneArgs,
}

/// Runs `waystation pause`.
///
/// # Errors
/// When no agent answers, or it has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    order(&args.lane, "/orders/pause", "paused")
}
