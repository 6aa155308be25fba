//! `waystation reload`: has the agent read its config again.

use std::time::Duration;

use super::agent::AgentArgs;
use super::status::{ALWAYS, Column, WHEN_NOT_ZERO, age_of, counted, grouped, printable, table};
use super::{ExitCode, journal};
use crate::admin::VERSION;
use crate::admin::orders::{ReloadAnswer, ReloadOrder};
use crate::clock::{Clock as _, SystemClock};
use crate::limits::{COMPILE_MS_MAX, RELOAD_READ_MS_MAX};

/// The longest that a `stop_grace` may be, which a lane may take to go over.
const GRACE_MAX: Duration = Duration::from_hours(1);

/// Have the agent read its config again and go over to it
///
/// The agent does so by itself when the config or a plugin changes on disk. All of it is taken up or nothing: what is new is made
/// and tried beside what runs, and then each lane goes over between two batches. What has not changed keeps its connections and
/// its place. A lane that is removed keeps its records in the journal until it is back.
///
/// With --plan it says what would change and what would become of each lane's records, and changes nothing. The exit code is 78
/// when the config cannot be used; everything goes on as it was then.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say what would change, and change nothing
    #[arg(long)]
    plan: bool,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation reload`.
///
/// # Errors
/// When no agent answers.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let agent = args.agent.agent()?;
    let order = ReloadOrder { version: VERSION, only_plan: args.plan };
    let patience = Duration::from_millis(RELOAD_READ_MS_MAX + COMPILE_MS_MAX) + GRACE_MAX;
    let bar = journal::progress("reading the config");
    let answer = agent.order("/orders/reload", &order, patience);
    bar.finish_and_clear();
    let answer: ReloadAnswer = answer?;
    let refused = answer.outcome == "refused";
    if args.json {
        super::print(format!("{}\n", serde_json::to_string(&answer)?).as_bytes())?;
    } else {
        complain(&answer, refused)?;
        if !refused {
            super::print(page(&answer).as_bytes())?;
        }
    }
    Ok(if refused { ExitCode::Config } else { ExitCode::Done })
}

/// What is wrong goes where `check` says it.
fn complain(answer: &ReloadAnswer, refused: bool) -> std::io::Result<()> {
    use std::io::Write as _;

    let mut out = std::io::stderr().lock();
    match (&answer.problems, &answer.reason) {
        // Made by the agent, line by line; control characters were taken out there.
        (Some(problems), _) => writeln!(out, "{problems}")?,
        (None, Some(reason)) => writeln!(out, "error: {}", printable(reason))?,
        (None, None) => {}
    }
    if refused {
        writeln!(out, "the config is not taken up; everything goes on as it was")?;
    }
    Ok(())
}

fn page(answer: &ReloadAnswer) -> String {
    let mut text = match answer.outcome.as_str() {
        "adopted" => "the config is taken up\n",
        "unchanged" => "the config is as it was\n",
        _ if answer.changes_nothing() => "nothing would change\n",
        _ => "this would change, and nothing has been done\n",
    }
    .to_owned();
    if !answer.changes_nothing() {
        text.push_str(&changes(answer));
    }
    for orphan in &answer.orphans {
        let (name, kept) = (&orphan.name, counted(orphan.queued, "record"));
        let age = age_of(orphan.oldest_at.as_deref(), SystemClock.now());
        text.push_str(&format!(
            "\n{kept} wait in lane {name}, which the config has not{age}; `waystation lane move {name} TO` has another lane go on \
             with them, `waystation lane drop {name}` gives them up\n"
        ));
    }
    printable(&text)
}

fn changes(answer: &ReloadAnswer) -> String {
    let mut text = String::new();
    let columns =
        [Column("part", ALWAYS), Column("change", ALWAYS), Column("because of", WHEN_NOT_ZERO)];
    let rows: Vec<_> = answer
        .parts
        .iter()
        .map(|part| vec![part.part.clone(), part.change.clone(), part.because.join(", ")])
        .chain(
            answer.live.iter().map(|key| vec![key.clone(), "adjusted".to_owned(), String::new()]),
        )
        .collect();
    if !rows.is_empty() {
        text.push('\n');
        text.push_str(&table(&columns, rows));
    }
    let columns = [
        Column("lane", ALWAYS),
        Column("change", ALWAYS),
        Column("queued", ALWAYS),
        Column("sealed batches", WHEN_NOT_ZERO),
        Column("its records", ALWAYS),
        Column("because of", WHEN_NOT_ZERO),
    ];
    let rows = answer.lanes.iter().map(|lane| {
        vec![
            lane.lane.clone(),
            lane.change.clone(),
            grouped(lane.queued),
            grouped(lane.batches_sealed),
            lane.backlog.clone(),
            lane.because.join(", "),
        ]
    });
    text.push('\n');
    text.push_str(&table(&columns, rows.collect()));
    text
}

impl ReloadAnswer {
    fn changes_nothing(&self) -> bool {
        self.parts.is_empty()
            && self.live.is_empty()
            && self.lanes.iter().all(|lane| lane.change == "kept")
    }
}
