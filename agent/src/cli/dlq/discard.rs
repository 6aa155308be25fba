//! `waystation dlq discard`: deletes dead letters for good, and remembers that and why.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use super::{FilterArgs, PlaceArgs, list, open, whose};
use crate::admin::VERSION;
use crate::admin::orders::{DiscardAnswer, DiscardOrder, LeftOutView};
use crate::cli::check::print_problems;
use crate::cli::journal::progress;
use crate::cli::status::counted;
use crate::cli::stopped::with_journal;
use crate::cli::{ExitCode, Failure};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{self, PATH_DEFAULT};
use crate::journal::config::JournalConfig;
use crate::limits::{LETTERS_PAGE_MAX, NOTE_BYTES_MAX};
use crate::record::id::AgentId;

/// How long the agent may take for one page of them.
const PATIENCE: Duration = Duration::from_secs(60);
/// Letters that are shown before they go.
const SHOWN: usize = 20;

/// Discard dead letters, for good
///
/// Their payloads are gone then; `dlq export` keeps them elsewhere before. What they were, when they were discarded and the
/// note are remembered for the newest thousand, and `dlq show ID` tells it. A lane that waits for room in the store of dead
/// letters goes on by itself.
///
/// What a running lane is replaying is left, and the command ends with 1. Where the lane does not run, because it is not in the
/// config any more or the agent is stopped, the replay is cancelled: its other letters stay, and what of it was sent is unknown.
///
/// Asks before it does it; without a terminal it wants --yes. On a stopped agent it opens the journal itself.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// All dead letters; without it at least one filter must be given
    #[arg(long)]
    all: bool,
    /// Why, for whoever asks later
    #[arg(long, value_name = "TEXT", value_parser = parse_note)]
    note: Option<String>,
    /// Only say which, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object; with --dry-run each letter, one object a line
    #[arg(long)]
    json: bool,
}

fn parse_note(text: &str) -> Result<String, String> {
    if text.len() > NOTE_BYTES_MAX {
        return Err(format!("a note has at most {NOTE_BYTES_MAX} bytes"));
    }
    Ok(text.to_owned())
}

pub(super) fn usage(message: &str, hint: &str) -> anyhow::Error {
    let (message, hint) = (message.to_owned(), Some(hint.to_owned()));
    Failure { code: ExitCode::Usage, message, hint }.into()
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.filter.is_empty() && !args.all {
        return Err(usage(
            "it is not said which dead letters are meant",
            "give a filter, or --all",
        ));
    }
    let chosen = choose(args)?;
    if args.dry_run || chosen.ids.is_empty() {
        return dry_run(args, &chosen);
    }
    if !args.yes {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(usage("there is no terminal to ask on", "--yes discards without asking"));
        }
        if !confirmed(&chosen)? {
            writeln!(std::io::stderr(), "nothing is discarded")?;
            return Ok(ExitCode::Failed);
        }
    }
    let mut done = Done { bar: progress("discarding"), discarded: 0, left: Vec::new() };
    let result = if chosen.agent_runs {
        through_the_agent(args, &chosen.ids, &mut done)
    } else {
        by_ourselves(args, &chosen.ids, &mut done)
    };
    done.bar.finish_and_clear();
    // What is done is done, also where a later page of them was not.
    show(args, &done)?;
    result?;
    Ok(if done.left.is_empty() { ExitCode::Done } else { ExitCode::Failed })
}

/// What the pages came to so far.
struct Done {
    bar: indicatif::ProgressBar,
    discarded: u64,
    left: Vec<LeftOutView>,
}

impl Done {
    fn add(&mut self, discarded: u64, left: impl IntoIterator<Item = LeftOutView>) {
        self.discarded += discarded;
        self.left.extend(left);
        self.bar.set_position(self.discarded);
    }
}

fn show(args: &Args, done: &Done) -> anyhow::Result<()> {
    if args.json {
        let left = done.left.iter();
        let left: Vec<_> =
            left.map(|left| json!({ "letter": left.letter, "reason": left.reason })).collect();
        let line = json!({ "discarded": done.discarded, "left_out": left });
        return crate::cli::print(format!("{line}\n").as_bytes());
    }
    crate::cli::print(
        format!("{} discarded\n", counted(done.discarded, "dead letter")).as_bytes(),
    )?;
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for left in &done.left {
        *reasons.entry(&left.reason).or_default() += 1;
    }
    for (reason, count) in reasons {
        writeln!(std::io::stderr(), "{} left: {reason}", counted(count, "dead letter"))?;
    }
    Ok(())
}

/// The letters that are meant, as they are now: what becomes one later is not discarded unseen.
struct Chosen {
    ids: Vec<i64>,
    shown: Vec<crate::journal::Letter>,
    /// By lane and class.
    kinds: BTreeMap<(String, String), u64>,
    agent_runs: bool,
}

fn choose(args: &Args) -> anyhow::Result<Chosen> {
    let inspection = open(&args.place)?;
    let agent_runs = inspection.agent_pid().is_some();
    let mut chosen =
        Chosen { ids: Vec::new(), shown: Vec::new(), kinds: BTreeMap::new(), agent_runs };
    args.filter.each(&inspection, 0, |letter| {
        if args.dry_run && args.json {
            crate::cli::print(&list::line(&letter)?)?;
        }
        chosen.ids.push(letter.id);
        *chosen.kinds.entry((whose(&letter), letter.class.clone())).or_default() += 1;
        if chosen.shown.len() < SHOWN {
            chosen.shown.push(letter);
        }
        Ok(true)
    })?;
    Ok(chosen)
}

fn dry_run(args: &Args, chosen: &Chosen) -> anyhow::Result<ExitCode> {
    if !args.json {
        crate::cli::print(described(chosen).as_bytes())?;
    } else if !args.dry_run {
        crate::cli::print(b"{\"discarded\":0,\"left_out\":[]}\n")?;
    }
    Ok(ExitCode::Done)
}

/// Which they are, and how many.
fn described(chosen: &Chosen) -> String {
    let mut text = list::page(&chosen.shown, SystemClock.now());
    let more = chosen.ids.len() - chosen.shown.len();
    if more > 0 {
        text.push_str(&format!("and {more} more\n"));
    }
    for ((lane, class), count) in &chosen.kinds {
        text.push_str(&format!("{} of {lane}, {class}\n", counted(*count, "dead letter")));
    }
    text
}

fn confirmed(chosen: &Chosen) -> anyhow::Result<bool> {
    let mut err = std::io::stderr();
    let count = counted(chosen.ids.len() as u64, "dead letter");
    write!(err, "{}Discard {count} for good? [y/N] ", described(chosen))?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn through_the_agent(args: &Args, ids: &[i64], done: &mut Done) -> anyhow::Result<()> {
    let agent = args.place.agent()?;
    for letters in ids.chunks(LETTERS_PAGE_MAX) {
        let (letters, note) = (letters.to_vec(), args.note.clone());
        let order = DiscardOrder { version: VERSION, letters, note };
        let answer: DiscardAnswer = agent.order("/orders/discard", &order, PATIENCE)?;
        done.add(answer.discarded, answer.left_out);
    }
    Ok(())
}

/// Opens the journal as an agent would.
fn by_ourselves(args: &Args, ids: &[i64], done: &mut Done) -> anyhow::Result<()> {
    let directory = args.place.data_dir()?;
    let Some((config, agent)) = settings(args)? else {
        return Err(Failure {
            code: ExitCode::Config,
            message: "the agent is stopped, and without its config the journal is not changed"
                .to_owned(),
            hint: None,
        }
        .into());
    };
    with_journal(directory, (config, agent), async |journal| {
        for letters in ids.chunks(LETTERS_PAGE_MAX) {
            let page = journal.discard_letters(letters.to_vec(), args.note.clone()).await?;
            done.add(page.discarded, page.left.iter().map(LeftOutView::under_way));
        }
        Ok(())
    })
}

/// The journal's limits and the agent's id, as its config says them; the defaults where only a directory is named.
fn settings(args: &Args) -> anyhow::Result<Option<(JournalConfig, Option<AgentId>)>> {
    if args.place.is_without_config() {
        return Ok(Some((JournalConfig::default(), None)));
    }
    let path = args.place.config.as_deref().unwrap_or(Path::new(PATH_DEFAULT));
    // What a plugin's file is like does not matter here.
    match config::load(path, &config::process_environment, &|_| Ok(Vec::new())) {
        Ok(loaded) => Ok(Some((loaded.config.journal, loaded.config.agent.id))),
        Err(problems) => {
            print_problems(&problems, args.json)?;
            Ok(None)
        }
    }
}
