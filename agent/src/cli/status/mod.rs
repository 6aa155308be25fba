//! `waystation status`: asks a running agent how it is, and says it in the order in which somebody who was woken needs it.

mod page;
mod verdict;

use std::io::IsTerminal as _;

use super::agent::{self, AgentArgs};
use crate::clock::{Clock as _, SystemClock};

pub(super) use page::{ALWAYS, Column, WHEN_NOT_ZERO, printable, table};
pub(super) use verdict::{age_of, counted, grouped, since, what_next};

/// Ask the running agent how it is
///
/// The first line says the worst: what waits and why, since when, and what to do.
/// Then come the lanes, one for each source, pipeline and sink:
///
///   queued        not at the destination yet: delayed, not lost
///   delivered     at the destination
///   already       there before, from an attempt whose answer was lost
///   dropped       left out by a plugin
///   dead letters  given up and kept: quarantined
///   lost          gone, by a policy that says so or by damage
///
/// Columns that hold nothing but zeros are left out. With --json, scripts get
/// all of it; fields may be added, and "version" tells when one changes.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    agent: AgentArgs,
    /// Print the status as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation status`.
///
/// # Errors
/// When no agent answers, or not in a way that this version understands.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let answer = args.agent.agent()?.status_text()?;
    if args.json {
        return super::print(&[&answer[..], b"\n"].concat());
    }
    let status = agent::read(&answer)?;
    let coloured = std::io::stdout().is_terminal();
    super::print(page::page(&status, SystemClock.now(), coloured).as_bytes())
}
