//! `waystation dlq export`: dead letters with all that is known of them, as lines of JSON.

use std::io::{BufWriter, Write as _};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::{FilterArgs, PlaceArgs, fields, open};
use crate::cli::ExitCode;
use crate::cli::journal::progress;
use crate::journal::Letter;

/// Print dead letters as JSON with their payloads, one a line
///
/// A payload that is not UTF-8 is in "payload_base64". They come in the order of their ids, which are never given twice: an
/// export goes on where an earlier one has ended with `--after` and the last id of that. What is exported stays where it is.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only letters with a larger id than this
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    /// For uniformity with other commands: the output is JSON in any case
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = open(&args.place)?;
    let whom = args.place.whom_to_ask();
    let bar = progress("exporting");
    let mut out = BufWriter::new(std::io::stdout().lock());
    args.filter.each(&inspection, args.after, |letter| {
        // One that is discarded meanwhile is left out.
        if let Some((letter, payload)) = inspection.letter(letter.id)? {
            let mut line = serde_json::to_vec(&Value::Object(whole(&letter, &payload, &whom)))?;
            line.push(b'\n');
            out.write_all(&line).context("cannot write to standard output")?;
        }
        bar.inc(1);
        Ok(true)
    })?;
    out.flush().context("cannot write to standard output")?;
    bar.finish_and_clear();
    Ok(ExitCode::Done)
}

/// Everything of a letter, and whom to ask.
pub(super) fn whole(
    letter: &Letter,
    payload: &[u8],
    (owner, runbook): &(Option<String>, Option<String>),
) -> Map<String, Value> {
    let mut whole = fields(letter);
    match std::str::from_utf8(payload) {
        Ok(text) => whole.insert("payload".to_owned(), text.into()),
        Err(_) => whole.insert("payload_base64".to_owned(), STANDARD.encode(payload).into()),
    };
    whole.insert("owner".to_owned(), owner.clone().into());
    whole.insert("runbook".to_owned(), runbook.clone().into());
    whole
}
