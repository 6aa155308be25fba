//! `waystation lane`: the lanes, what they wait for, and the way out of a hold.

mod orders;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::ExitCode;
use super::agent::{AgentArgs, PlaceArgs, lanes};
use super::status::{ALWAYS, Column, WHEN_NOT_ZERO, grouped, printable, since, table, what_next};
use crate::admin::VERSION;
use crate::admin::orders::{DoneAnswer, ResolutionWord, ResolveOrder};
use crate::admin::status::{LaneStatusView, StatusView, Trouble};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::journal::inspect::{Inspection, JournalInfo, LaneInfo};
use crate::units::human_duration;

/// Look at the lanes, and decide about one that holds
///
/// A lane takes the records of one source through one pipeline to one sink.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(ListArgs),
    Resolve(ResolveArgs),
    Drop(orders::DropArgs),
    Move(orders::MoveArgs),
}

/// Show every lane: its state, its backlog, and what it holds for
///
/// Works on a stopped agent too, whose lanes are then "not running". A lane that the journal has and the config has not is
/// "orphaned": it keeps its records, and goes on when its source, pipeline and sink are back; `lane move` has them go on as
/// another lane's, `lane drop` gives them up.
#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Decide about the batch that a lane holds for
///
/// A lane holds for a decision when the destination has other content under the identity of a batch (conflict), fails on a
/// record for longer than retry.budget (exhausted), or refuses too many records at once (storm). `lane list` shows which,
/// for a conflict with the hashes of both contents.
#[derive(Debug, clap::Args)]
#[group(id = "resolution", required = true, multiple = false, args = ["accept", "dead_letter", "resend_as_new"])]
struct ResolveArgs {
    /// The lane, by its full name or an end of it that no other has, such as `pipeline/sink`
    lane: String,
    /// What the destination has is right: the batch counts as delivered
    #[arg(long)]
    accept: bool,
    /// The records of the batch go to the dead letters
    #[arg(long)]
    dead_letter: bool,
    /// The batch goes out once more, under a new identity that the destination does not know
    #[arg(long)]
    resend_as_new: bool,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation lane`.
///
/// # Errors
/// When neither the agent nor the journal answers, or there is no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list(args),
        Command::Resolve(args) => resolve(args),
        Command::Drop(args) => orders::drop_lane(args),
        Command::Move(args) => orders::move_lane(args),
    }
}

fn resolve(args: &ResolveArgs) -> anyhow::Result<ExitCode> {
    let agent = args.agent.agent()?;
    let status = agent.status()?;
    let known = lanes::of(&status, &args.lane)?;
    let lane = known.name.clone();
    let (resolution, done) = if args.accept {
        (ResolutionWord::Accept, "its batch counts as delivered")
    } else if args.dead_letter {
        (ResolutionWord::DeadLetter, "the records of its batch go to the dead letters")
    } else {
        (ResolutionWord::ResendAsNew, "its batch goes out under a new identity")
    };
    let order = ResolveOrder { version: VERSION, lane: lane.clone(), resolution };
    let DoneAnswer { .. } = agent.order("/orders/resolve", &order, Duration::ZERO)?;
    let text = if args.json {
        format!("{}\n", serde_json::json!({ "lane": lane, "resolution": resolution }))
    } else {
        format!("lane {lane} is resolved: {done}\n")
    };
    super::print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

/// A lane as it is listed.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    /// As in the status; `not_running` without an agent, `orphaned` without a config.
    state: String,
    queued: u64,
    /// When the oldest record without an outcome was accepted.
    oldest_at: Option<String>,
    trouble: Option<Trouble>,
    #[serde(skip)]
    oldest: Option<Timestamp>,
}

fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let status = args.place.agent()?.status();
    let info = args.place.data_dir().map_err(anyhow::Error::from);
    let info = info.and_then(|directory| Ok(Inspection::open(&directory)?.info()?));
    // The one who may not read the journal may still ask the agent, and the other way round.
    let (status, info) = match (status, info) {
        (Err(_), Err(error)) => return Err(error),
        (status, info) => (status.ok(), info.ok()),
    };
    let all = listed(status.as_ref(), info.as_ref());
    let text = if args.json {
        all.iter()
            .map(|lane| serde_json::to_string(lane).map(|line| line + "\n"))
            .collect::<Result<_, _>>()?
    } else {
        page(&all, SystemClock.now())
    };
    super::print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

fn listed(status: Option<&StatusView>, info: Option<&JournalInfo>) -> Vec<Listed> {
    let mut all = BTreeMap::new();
    for lane in info.into_iter().flat_map(|info| &info.lanes).filter(|lane| !lane.dropped) {
        all.insert(lane.name.clone(), Listed::stored(lane, status.is_some()));
    }
    for lane in status.into_iter().flat_map(|status| &status.lanes) {
        let stored = all.remove(&lane.name);
        all.insert(lane.name.clone(), Listed::running(lane, stored));
    }
    for orphan in status.into_iter().flat_map(|status| &status.orphans) {
        all.entry(orphan.name.clone()).or_insert_with(|| Listed {
            name: orphan.name.clone(),
            state: "orphaned".to_owned(),
            queued: orphan.queued,
            oldest: orphan.oldest_at.as_deref().and_then(parse_time),
            oldest_at: orphan.oldest_at.clone(),
            trouble: None,
        });
    }
    all.into_values().collect()
}

impl Listed {
    fn stored(lane: &LaneInfo, is_running: bool) -> Self {
        let oldest = lane.oldest.filter(|_| lane.queued > 0);
        Self {
            name: lane.name.clone(),
            state: if is_running { "orphaned" } else { "not_running" }.to_owned(),
            queued: lane.queued,
            oldest_at: lane.oldest_at.clone().filter(|_| oldest.is_some()),
            trouble: None,
            oldest,
        }
    }

    fn running(lane: &LaneStatusView, stored: Option<Self>) -> Self {
        let stored = stored.filter(|_| lane.queued > 0);
        Self {
            name: lane.name.clone(),
            state: lane.state.clone(),
            queued: lane.queued,
            oldest_at: stored.as_ref().and_then(|stored| stored.oldest_at.clone()),
            trouble: lane.trouble.clone(),
            oldest: stored.and_then(|stored| stored.oldest),
        }
    }
}

fn parse_time(text: &str) -> Option<Timestamp> {
    let time = text.parse::<jiff::Timestamp>().ok()?;
    i64::try_from(time.as_nanosecond()).ok().map(Timestamp)
}

fn page(all: &[Listed], now: Timestamp) -> String {
    let columns = [
        Column("lane", ALWAYS),
        Column("state", ALWAYS),
        Column("for", WHEN_NOT_ZERO),
        Column("queued", ALWAYS),
        Column("oldest", WHEN_NOT_ZERO),
        Column("cause", WHEN_NOT_ZERO),
    ];
    let rows = all.iter().map(|lane| {
        vec![
            lane.name.clone(),
            lane.state.replace('_', " "),
            lane.trouble.as_ref().map(|trouble| since(trouble, now)).unwrap_or_default(),
            grouped(lane.queued),
            lane.oldest.map(|oldest| human_duration(now.since(oldest))).unwrap_or_default(),
            lane.trouble.as_ref().map(|trouble| trouble.cause.clone()).unwrap_or_default(),
        ]
    });
    let mut text = table(&columns, rows.collect());
    for (lane, trouble) in all.iter().filter_map(|lane| Some((lane, lane.trouble.as_ref()?))) {
        let next = what_next(&trouble.cause, &lane.name);
        let sentence = format!("{}: {}: {}; {next}", lane.name, trouble.cause, trouble.reason);
        text.push_str(&format!("\n{}\n", sentence.replace('\n', " ")));
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin;

    #[test]
    fn the_list_without_a_journal_is_this() {
        let status = StatusView::of(&admin::tests::status());
        let now = Timestamp(1_700_000_000_000_000_000 + 185_000_000_000);
        insta::assert_snapshot!(page(&listed(Some(&status), None), now));
    }
}
