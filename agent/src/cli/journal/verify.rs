//! `waystation journal verify`: reads everything and checks it.

use super::{Place, counted, progress};
use crate::cli::ExitCode;
use crate::journal::inspect::{Inspection, Verification};

/// Read the whole journal and check it
///
/// Checks the checksum of every chunk and part, the hash of every sealed batch, cursors and positions, the WAL, and with
/// SQLite's own check the structure of the database. The latter holds a read transaction for as long as it takes, during
/// which the WAL of a running agent grows; beside one it is made only with --full.
///
/// Exits with 1 when something is wrong. A start of the agent then salvages what is good.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// SQLite's own check also beside a running agent
    #[arg(long)]
    full: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = Inspection::open(&args.place.directory()?)?;
    let structure = args.full || inspection.agent_pid().is_none();
    let bar = progress("reading the journal");
    let found = inspection.verify(structure, |rows| bar.set_position(rows));
    bar.finish_and_clear();
    let found = found?;
    let text =
        if args.json { format!("{}\n", serde_json::to_string(&found)?) } else { page(&found) };
    crate::cli::print(text.as_bytes())?;
    Ok(if found.problems.is_empty() { ExitCode::Done } else { ExitCode::Failed })
}

fn page(found: &Verification) -> String {
    let mut text: String =
        found.problems.iter().map(|problem| format!("WRONG {problem}\n")).collect();
    let structure = if found.structure_checked { "" } else { "; SQLite's own check was left out" };
    text.push_str(&format!(
        "{} with {}, {} and {} checked, {}{structure}\n",
        counted(found.chunks, "chunk"),
        counted(found.records, "record"),
        counted(found.parts, "part"),
        counted(found.batches, "sealed batch").replace("batchs", "batches"),
        match found.problems.len() {
            0 => "nothing is wrong".to_owned(),
            count => counted(count as u64, "problem"),
        }
    ));
    text
}
