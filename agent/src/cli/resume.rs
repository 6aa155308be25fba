//! `waystation resume`: end the pause of a lane, or have it try again at once.

use super::agent::lanes::{LaneArgs, order};

/// End the pause of a lane, or have it try again at once
///
/// A lane that waits before its next attempt, because the destination is down or it holds, tries at once.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    lane: LaneArgs,
}

/// Runs `waystation resume`.
///
/// # Errors
/// When no agent answers, or it has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    order(&args.lane, "/orders/resume", "resumed")
}
