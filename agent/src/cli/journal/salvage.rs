//! `waystation journal salvage`: what a start does with a damaged journal, on demand.

use std::fmt::Write as _;

use super::{Place, counted, progress};
use crate::cli::ExitCode;
use crate::clock::SystemClock;
use crate::journal::{SalvageReport, salvage_stopped};

/// Make a new journal out of what is good of this one
///
/// A start of the agent does this by itself when it finds the journal damaged, so there is seldom a reason to do it by hand:
/// to see beforehand what would be saved (--dry-run), or because `verify` finds damage that a start does not look for.
///
/// Chunks and parts are believed by their checksum, sealed batches by the hash of their content. The damaged files are moved
/// into a folder `journal.corrupt-TIME` beside the new journal, with a report.json of all that is known. Nothing of them is
/// changed. It needs as much room again as the good part of the journal takes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only say what would be saved; the journal stays as it is
    #[arg(long)]
    dry_run: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let directory = args.place.directory()?;
    let bar = progress("reading what is there");
    let report = salvage_stopped(&directory, args.dry_run, &SystemClock);
    bar.finish_and_clear();
    let report = report?;
    let text = if args.json {
        format!("{}\n", serde_json::to_string(&report)?)
    } else {
        page(&report, args.dry_run)
    };
    crate::cli::print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

fn page(report: &SalvageReport, dry_run: bool) -> String {
    let (would, are) =
        if dry_run { ("would be saved", "would be lost") } else { ("saved", "lost") };
    let mut text = format!(
        "{} in {}, {} and {} {would}; {} {are}, {} unreadable\n",
        counted(report.records, "record"),
        counted(report.chunks, "chunk"),
        counted(report.batches, "sealed batch").replace("batchs", "batches"),
        counted(report.dead_letters, "dead letter"),
        counted(report.lost_records, "record"),
        counted(report.unreadable, "chunk or part").replace("parts", "part"),
    );
    for lost in &report.lost {
        let lane = lost.lane.as_ref().map(|lane| format!(", lane {lane}")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ok = writeln!(
            text,
            "lost: source {}{lane}, records {} to {} ({})",
            lost.source, lost.first, lost.last, lost.records
        );
    }
    for range in &report.cut_again {
        let _ok = writeln!(
            text,
            "sealed again: lane {}, records {} to {}, perhaps twice at the destination",
            range.lane, range.first, range.last
        );
    }
    if !dry_run {
        let _ok = writeln!(text, "the damaged files are in {}", report.kept.display());
    }
    text
}
