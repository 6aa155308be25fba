//! `waystation journal info`: what is in the journal.

use std::fmt::Write as _;

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::{Place, counted, display};
use crate::cli::ExitCode;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::journal::inspect::{Inspection, JournalInfo};
use crate::units::{human_bytes, human_duration};

/// Show streams, lanes, backlog and sizes
///
/// A stream holds the records of one source, a lane takes them through a pipeline to a sink. "queued" are the records of a
/// lane without an outcome, "oldest" is how long ago the first of them was accepted. A chunk stays until every lane of its
/// stream has passed it, so the lane with the oldest record is the one that fills the disk.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let info = Inspection::open(&args.place.directory()?)?.info()?;
    let text = if args.json {
        format!("{}\n", serde_json::to_string(&info)?)
    } else {
        page(&info, SystemClock.now())
    };
    crate::cli::print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

fn page(info: &JournalInfo, now: Timestamp) -> String {
    let mut text = String::new();
    let state = match info.running_pid {
        Some(pid) => format!("open in process {pid}"),
        None => "not open".to_owned(),
    };
    let agent = info.agent.as_deref().unwrap_or("unknown");
    // Writing to a String cannot fail.
    let _ok = writeln!(
        text,
        "journal {}, agent {agent}, schema {}, {state}\ndatabase {} ({} free in it), wal {}, {}, {}",
        display(&info.path),
        info.schema,
        human_bytes(info.database_bytes),
        human_bytes(info.free_bytes),
        human_bytes(info.wal_bytes),
        counted(info.dead_letters, "dead letter"),
        counted(info.losses, "noted loss").replace("losss", "losses"),
    );
    text.push_str(&cost(info));
    let mut streams = table(&["stream", "oldest", "newest", "chunks", "bytes"]);
    for stream in &info.streams {
        streams.add_row([
            stream.source.clone(),
            stream.oldest.map(|seq| seq.to_string()).unwrap_or_default(),
            stream.head.to_string(),
            stream.chunks.to_string(),
            human_bytes(stream.bytes),
        ]);
    }
    let mut lanes = table(&[
        "lane",
        "queued",
        "bytes",
        "oldest",
        "sealed",
        "batches",
        "delivered",
        "dropped",
        "dead letters",
        "lost",
    ]);
    for lane in &info.lanes {
        let age = lane.oldest.filter(|_| lane.queued > 0);
        let name =
            if lane.dropped { format!("{} (dropped)", lane.name) } else { lane.name.clone() };
        lanes.add_row([
            name,
            lane.queued.to_string(),
            human_bytes(lane.queued_bytes),
            age.map(|oldest| human_duration(now.since(oldest))).unwrap_or_default(),
            lane.sealed.to_string(),
            lane.batches.to_string(),
            lane.delivered.to_string(),
            lane.dropped_records.to_string(),
            lane.dead_lettered.to_string(),
            lane.lost.to_string(),
        ]);
    }
    for table in [streams, lanes] {
        for line in table.lines() {
            let _ok = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
    }
    for report in &info.salvages {
        let _ok = writeln!(text, "salvaged {}: {}: {}", report.at, report.cause, report.summary());
    }
    text
}

/// What it has cost, and how full it is.
fn cost(info: &JournalInfo) -> String {
    let wear = info.wear;
    let mut text = format!(
        "since it was made: {}, {} taken in, {} written to the disk",
        counted(wear.commits, "commit"),
        human_bytes(wear.appended_bytes),
        human_bytes(wear.written_bytes),
    );
    // Writing to a String cannot fail.
    if let Some(times) = info.write_amplification {
        let _ok = write!(text, " ({times:.2} times)");
    }
    let quota = &info.quota;
    if quota.limit_bytes > 0 {
        let (used, limit) = (human_bytes(quota.used_bytes), human_bytes(quota.limit_bytes));
        let _ok =
            write!(text, "\nof its limit {used} of {limit} are taken, on_full = {}", quota.on_full);
    }
    text.push_str("\n\n");
    text
}

fn table(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(columns);
    table
}
