//! `waystation dlq replay`: sends dead letters again, and says what came of them.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::discard::usage;
use super::{FilterArgs, PlaceArgs, open};
use crate::admin::VERSION;
use crate::admin::orders::{LeftOutView, ReplayAnswer, ReplayBatchView, ReplayOrder};
use crate::cli::agent::Agent;
use crate::cli::journal::progress;
use crate::cli::status::{ALWAYS, Column, WHEN_NOT_ZERO, counted, table};
use crate::cli::{ExitCode, Failure};
use crate::clock::{Clock as _, SystemClock};
use crate::journal::Replay;
use crate::journal::inspect::Inspection;
use crate::limits::{ADMIN_REPLAY_BODY_BYTES_MAX, REPLAY_LETTERS_MAX};
use crate::units::parse_duration;

/// How long the agent may take to seal what one order asks for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often the journal is looked into for what came of a replay.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Send dead letters again
///
/// They go out as batches of their own, past what waits, from where they fell out: what the destination refused goes as it
/// was sealed, what a transform gave up runs again from there. All of one batch go under that batch's identity, so that a
/// destination that has it recognises it; others as BATCH/rN. Records keep their identities.
///
/// What is refused again stays a dead letter, with the new reason. What a source refused cannot be sent again.
///
/// Goes through the running agent, and asks before; without a terminal it wants --yes. Ends with 1 when something is left.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// All dead letters; without it at least one filter must be given
    #[arg(long)]
    all: bool,
    /// Replace the payload of the one letter that is meant by the content of this file; the record's identity then ends with ~1
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// How long to wait for what comes of it; it goes on behind that
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = |text: &str| parse_duration(text))]
    timeout: Duration,
    /// Only say what would go out under which identities, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print JSON, one object a line: each batch, and each letter that is left out
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.filter.is_empty() && !args.all {
        return Err(usage(
            "it is not said which dead letters are meant",
            "give a filter, or --all",
        ));
    }
    let inspection = open(&args.place)?;
    let chosen = choose(args, &inspection)?;
    let payload = payload(args, &chosen)?;
    if inspection.agent_pid().is_none() {
        return Err(Failure {
            code: ExitCode::Failed,
            message: "the agent is stopped, and only a running one sends dead letters again"
                .to_owned(),
            hint: Some("start it, then replay".to_owned()),
        }
        .into());
    }
    let count = chosen.count();
    if !args.dry_run && !args.yes && count > 0 && !confirmed(count as u64)? {
        return Ok(ExitCode::Failed);
    }
    let bar = progress(if args.dry_run { "planning" } else { "replaying" });
    bar.set_length(count as u64);
    let work = Work { args, inspection, agent: args.place.agent()?, payload, bar };
    let mut done = Done::default();
    let meant = count + chosen.left_out.len();
    let result = work.all(chosen, &mut done);
    work.bar.finish_and_clear();
    // What is done is done, also where a later order was not.
    show(args, &done, result.is_ok())?;
    if result.is_err() {
        let told = done.batches.iter().map(|(batch, _)| batch.letters.len()).sum::<usize>()
            + done.left_out.len();
        let rest = meant.saturating_sub(told) as u64;
        writeln!(std::io::stderr(), "{} not ordered", counted(rest, "dead letter"))?;
    }
    result?;
    let is_left = !done.left_out.is_empty()
        || done.batches.iter().any(|(_, outcome)| !args.dry_run && !is_delivered(outcome.as_ref()));
    Ok(if is_left { ExitCode::Failed } else { ExitCode::Done })
}

fn is_delivered(outcome: Option<&Replay>) -> bool {
    outcome.is_some_and(|replay| replay.ended_at.is_some() && replay.returned == 0)
}

/// The letters that fell out of one batch at one stage, by those two: together they may be all of it.
type Groups = BTreeMap<(Option<String>, String), Vec<i64>>;

/// The letters that are meant, by lane, and those that cannot be sent.
#[derive(Default)]
struct Chosen {
    lanes: BTreeMap<String, Groups>,
    left_out: Vec<LeftOutView>,
}

fn choose(args: &Args, inspection: &Inspection) -> anyhow::Result<Chosen> {
    let mut chosen = Chosen::default();
    args.filter.each(inspection, 0, |letter| {
        match letter.lane {
            Some(lane) => {
                let groups = chosen.lanes.entry(lane).or_default();
                groups.entry((letter.batch, letter.stage)).or_default().push(letter.id);
            }
            None => chosen.left_out.push(LeftOutView {
                letter: letter.id,
                reason: "a source refused it: it can be exported and discarded".to_owned(),
                later: false,
            }),
        }
        Ok(true)
    })?;
    Ok(chosen)
}

impl Chosen {
    fn count(&self) -> usize {
        self.lanes.values().flat_map(BTreeMap::values).map(Vec::len).sum()
    }
}

/// Orders of as many letters as one may have, oldest first, without taking the letters of a batch apart.
fn orders(groups: Groups) -> Vec<Vec<i64>> {
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_unstable_by_key(|letters| letters.first().copied());
    let mut orders: Vec<Vec<i64>> = Vec::new();
    for group in groups {
        match orders.last_mut() {
            Some(order) if order.len() + group.len() <= REPLAY_LETTERS_MAX => order.extend(group),
            // One that is larger than an order goes out in parts.
            _ => orders.extend(group.chunks(REPLAY_LETTERS_MAX).map(<[i64]>::to_vec)),
        }
    }
    orders
}

fn payload(args: &Args, chosen: &Chosen) -> anyhow::Result<Option<String>> {
    let Some(path) = &args.payload else { return Ok(None) };
    let count = chosen.count();
    if count != 1 {
        let message = format!("--payload is for one dead letter, and {count} are meant");
        return Err(usage(&message, "--id ID means one"));
    }
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read the payload {}", path.display()))?;
    // Base64 takes four bytes for three, and the rest of the order some more.
    if bytes.len() > ADMIN_REPLAY_BODY_BYTES_MAX / 8 * 5 {
        let message = format!("the payload {} is too large for an order", path.display());
        return Err(Failure { code: ExitCode::Failed, message, hint: None }.into());
    }
    Ok(Some(STANDARD.encode(bytes)))
}

fn confirmed(count: u64) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(usage("there is no terminal to ask on", "--yes replays without asking"));
    }
    let mut err = std::io::stderr();
    write!(err, "Send {} again? [y/N] ", counted(count, "dead letter"))?;
    err.flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
    let is_wanted = matches!(answer.trim(), "y" | "Y" | "yes");
    if !is_wanted {
        writeln!(err, "nothing is sent")?;
    }
    Ok(is_wanted)
}

/// What came of it.
#[derive(Default)]
struct Done {
    batches: Vec<(ReplayBatchView, Option<Replay>)>,
    left_out: Vec<LeftOutView>,
}

struct Work<'a> {
    args: &'a Args,
    inspection: Inspection,
    agent: Agent,
    payload: Option<String>,
    bar: indicatif::ProgressBar,
}

impl Work<'_> {
    fn all(&self, chosen: Chosen, done: &mut Done) -> anyhow::Result<()> {
        let begun = SystemClock.monotonic();
        done.left_out = chosen.left_out;
        let orders_of =
            |(lane, groups)| orders(groups).into_iter().map(move |o| (String::clone(&lane), o));
        for (lane, mut rest) in chosen.lanes.into_iter().flat_map(orders_of) {
            while !rest.is_empty() {
                let ReplayAnswer { batches, left_out, .. } = self.order(&lane, rest)?;
                let is_any = !batches.is_empty();
                let ordered = done.batches.len();
                done.batches.extend(batches.into_iter().map(|batch| (batch, None)));
                for (batch, outcome) in &mut done.batches[ordered..] {
                    *outcome = self.outcome(batch, begun)?;
                    self.bar.inc(batch.letters.len() as u64);
                }
                // What has no room in one order has some in the next, when this one is done.
                let goes_on = is_any && !self.args.dry_run;
                let (again, out): (Vec<_>, Vec<_>) =
                    left_out.into_iter().partition(|left| left.later && goes_on);
                done.left_out.extend(out);
                rest = again.into_iter().map(|left| left.letter).collect();
            }
        }
        Ok(())
    }

    fn order(&self, lane: &str, letters: Vec<i64>) -> anyhow::Result<ReplayAnswer> {
        let order = ReplayOrder {
            version: VERSION,
            lane: lane.to_owned(),
            letters,
            payload_base64: self.payload.clone(),
            dry_run: self.args.dry_run,
        };
        self.agent.order("/orders/replay", &order, PATIENCE)
    }

    /// Waits until a batch has its outcome, or the time is over.
    fn outcome(
        &self,
        batch: &ReplayBatchView,
        begun: crate::clock::Monotonic,
    ) -> anyhow::Result<Option<Replay>> {
        let Some(id) = batch.replay else { return Ok(None) };
        loop {
            let replays = self.inspection.replays(id - 1)?;
            let found = replays.into_iter().find(|replay| replay.id == id);
            let is_over = found.as_ref().is_none_or(|replay| replay.ended_at.is_some());
            if is_over || SystemClock.monotonic().since(begun) > self.args.timeout {
                return Ok(found);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn show(args: &Args, done: &Done, is_all: bool) -> anyhow::Result<()> {
    if args.json {
        for (batch, outcome) in &done.batches {
            crate::cli::print(format!("{}\n", line(batch, outcome.as_ref())).as_bytes())?;
        }
        for left in &done.left_out {
            let line = json!({ "letter": left.letter, "left_out": left.reason });
            crate::cli::print(format!("{line}\n").as_bytes())?;
        }
        return Ok(());
    }
    let mut text = text(args, done);
    if text.is_empty() && is_all {
        text.push_str("no dead letters\n");
    }
    crate::cli::print(text.as_bytes())
}

fn line(batch: &ReplayBatchView, outcome: Option<&Replay>) -> serde_json::Value {
    let mut line = json!({ "batch": batch.batch, "stage": batch.stage, "letters": batch.letters });
    if let Some(replay) = outcome {
        line["replay"] = json!(replay.id);
        line["outcome"] = json!(word(replay));
        line["delivered"] = json!(replay.delivered);
        line["already"] = json!(replay.already);
        line["dropped"] = json!(replay.dropped);
        line["returned"] = json!(replay.returned);
    }
    line
}

/// What came of a batch, in a word.
fn word(replay: &Replay) -> &str {
    match replay {
        Replay { ended_at: None, .. } => "under way",
        Replay { returned: 1.., class, .. } => class,
        Replay { delivered: 0, dropped: 1.., .. } => "dropped",
        Replay { delivered, already, .. } if delivered == already => "already applied",
        _ => "delivered",
    }
}

fn text(args: &Args, done: &Done) -> String {
    let columns = [
        Column("batch", ALWAYS),
        Column("stage", ALWAYS),
        Column("letters", ALWAYS),
        Column("outcome", if args.dry_run { WHEN_NOT_ZERO } else { ALWAYS }),
        Column("delivered", WHEN_NOT_ZERO),
        Column("already", WHEN_NOT_ZERO),
        Column("dropped", WHEN_NOT_ZERO),
        Column("returned", WHEN_NOT_ZERO),
    ];
    let rows = done.batches.iter().map(|(batch, outcome)| {
        let number = |of: fn(&Replay) -> u64| outcome.as_ref().map_or(0, of).to_string();
        vec![
            batch.batch.clone(),
            batch.stage.clone(),
            batch.letters.len().to_string(),
            outcome.as_ref().map_or("", word).to_owned(),
            number(|replay| replay.delivered),
            number(|replay| replay.already),
            number(|replay| replay.dropped),
            number(|replay| replay.returned),
        ]
    });
    let mut text = match done.batches.is_empty() {
        true => String::new(),
        false => table(&columns, rows.collect()),
    };
    for left in &done.left_out {
        text.push_str(&format!("letter {} is left out: {}\n", left.letter, left.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_of_a_batch_stay_in_one_order() {
        let group = |batch: &str, ids: std::ops::Range<i64>| {
            ((Some(batch.to_owned()), "k".to_owned()), ids.collect::<Vec<_>>())
        };
        let max = i64::try_from(REPLAY_LETTERS_MAX).unwrap();
        let groups = Groups::from([
            group("b1", 0..max - 10),
            group("b2", max..max + 20),
            group("b3", max + 20..max + 30),
            group("b4", 3 * max..5 * max + 5),
        ]);
        let orders = orders(groups);
        let lengths: Vec<_> = orders.iter().map(Vec::len).collect();
        let whole = REPLAY_LETTERS_MAX;
        assert_eq!(lengths, [whole - 10, 30, whole, whole, 5]);
        assert_eq!((orders[1][0], orders[1][29]), (max, max + 29));
    }
}
