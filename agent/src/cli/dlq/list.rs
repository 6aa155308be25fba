//! `waystation dlq list`: the dead letters, a line each.

use std::io::Write as _;

use serde_json::Value;

use super::{FilterArgs, PlaceArgs, fields, open, whose};
use crate::cli::ExitCode;
use crate::cli::status::{ALWAYS, Column, WHEN_NOT_ZERO, printable, table};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::journal::Letter;
use crate::units::{human_bytes, human_duration};

/// Lines for people, unless they ask for more.
const LINES_USUAL: usize = 1000;
/// Characters of a reason in a line.
const REASON_CHARACTERS: usize = 80;

/// List the dead letters, oldest first
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// At most so many; without it a thousand, with --json all
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Print JSON without payloads, one object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = open(&args.place)?;
    let limit = args.limit.unwrap_or(if args.json { usize::MAX } else { LINES_USUAL });
    let (mut shown, mut more) = (Vec::new(), 0_u64);
    let mut count = 0;
    args.filter.each(&inspection, 0, |letter| {
        count += 1;
        if count > limit {
            more += 1;
        } else if args.json {
            crate::cli::print(&line(&letter)?)?;
        } else {
            shown.push(letter);
        }
        Ok(!args.json || count < limit)
    })?;
    if !args.json {
        crate::cli::print(page(&shown, SystemClock.now()).as_bytes())?;
    }
    if more > 0 {
        writeln!(std::io::stderr(), "{more} more; --limit COUNT shows more of them")?;
    }
    Ok(ExitCode::Done)
}

/// A letter as a line of JSON.
pub(super) fn line(letter: &Letter) -> anyhow::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Value::Object(fields(letter)))?;
    line.push(b'\n');
    Ok(line)
}

/// Letters as a table.
pub(super) fn page(letters: &[Letter], now: Timestamp) -> String {
    if letters.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let columns = [
        Column("id", ALWAYS),
        Column("age", ALWAYS),
        Column("lane", ALWAYS),
        Column("stage", ALWAYS),
        Column("class", ALWAYS),
        Column("seq", WHEN_NOT_ZERO),
        Column("subject", ALWAYS),
        Column("size", ALWAYS),
        Column("reason", ALWAYS),
    ];
    let rows = letters.iter().map(|letter| {
        vec![
            letter.id.to_string(),
            human_duration(now.since(letter.last_at)),
            whose(letter),
            letter.stage.clone(),
            letter.class.clone(),
            letter.seq.map(|seq| seq.to_string()).unwrap_or_default(),
            printable(&letter.subject).replace('\n', " "),
            human_bytes(letter.size_bytes),
            short(&printable(&letter.reason).replace('\n', " ")),
        ]
    });
    table(&columns, rows.collect())
}

fn short(text: &str) -> String {
    if text.chars().count() <= REASON_CHARACTERS {
        return text.to_owned();
    }
    text.chars().take(REASON_CHARACTERS - 1).chain(['…']).collect()
}
