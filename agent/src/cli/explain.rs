//! `waystation explain`: what became of one record.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::agent::{PlaceArgs, lanes};
use super::status::{counted, printable, what_next};
use super::{ExitCode, Failure};
use crate::admin::status::LaneStatusView;
use crate::journal::inspect::Inspection;
use crate::journal::{ExplainedBatch, Explanation};
use crate::record::id::RecordId;

/// Tell what became of one record
///
/// Reads the journal, so it works on a stopped agent, too; from a running one come the latest attempts of the batch. A record
/// that is queued, sealed or in the dead letters is told exactly. Of what was delivered, the newest batches are remembered by
/// their ranges.
///
/// Also takes the identity of a batch. Exits with 1 when the journal knows nothing of it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The identity, AGENT/SOURCE/PIPELINE/SINK/EPOCH/SEQ, with .N for each split
    #[arg(value_name = "RECORD-ID", value_parser = str::parse::<RecordId>)]
    id: RecordId,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation explain`.
///
/// # Errors
/// When the journal cannot be read, or has no such lane.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = Inspection::open(&args.place.data_dir()?)?;
    let Some(found) = inspection.explain(&args.id)? else {
        let names = inspection.lane_names()?;
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let failure = lanes::meant(args.id.lane.as_str(), &names).err();
        return Err(failure.unwrap_or_else(|| unknown(args)).into());
    };
    // Only what waits has attempts that somebody can still see.
    let is_open = matches!(found.outcome, "queued" | "sealed");
    let running = args.place.agent()?.status().ok().filter(|_| is_open);
    let lane = running
        .as_ref()
        .and_then(|status| status.lanes.iter().find(|lane| lane.name == found.lane));
    let text = if args.json {
        let mut value = serde_json::to_value(&found)?;
        if let (Value::Object(fields), Some(lane)) = (&mut value, lane) {
            fields.insert(
                "state".to_owned(),
                json!({ "state": lane.state, "trouble": lane.trouble }),
            );
            fields.insert("attempts".to_owned(), json!(current(&found, lane)));
        }
        format!("{value}\n")
    } else {
        printable(&page(&found, lane))
    };
    super::print(text.as_bytes())?;
    let is_known = !matches!(found.outcome, "not_there" | "unknown_run");
    Ok(if is_known { ExitCode::Done } else { ExitCode::Failed })
}

fn unknown(args: &Args) -> Failure {
    Failure {
        code: ExitCode::Failed,
        message: format!("there is no lane \"{}\"", args.id.lane),
        hint: None,
    }
}

/// The attempts with the record's batch, if that is the one that is being sent.
fn current<'a>(
    found: &Explanation,
    lane: &'a LaneStatusView,
) -> Option<&'a crate::admin::status::BatchView> {
    let identity = &found.batch.as_ref()?.identity;
    lane.batch.as_ref().filter(|batch| batch.identity == *identity)
}

fn page(found: &Explanation, lane: Option<&LaneStatusView>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let mut line = |what: &str, value: &str| {
        let _ok = writeln!(text, "{what:<12} {}", value.replace('\n', " "));
    };
    line(found.outcome.replace('_', " ").as_str(), meaning(found.outcome));
    line("id", &found.id);
    if let Some(record) = &found.record {
        line("accepted", &format!("{} from source {}", record.accepted_at, record.source));
        let bytes = record.payload_bytes;
        line(
            "record",
            &format!("subject {}, event time {}, {bytes} bytes", record.subject, record.time),
        );
    }
    if let Some(batch) = &found.batch {
        line("batch", &batch_line(batch));
        if let (Some(attempts), Some(at)) = (batch.attempts, &batch.finished_at) {
            line("finished", &format!("{at}, after {}", counted(attempts.into(), "attempt")));
        }
    }
    for letter in &found.letters {
        line("dead letter", &format!("{letter}; `waystation dlq show {letter}` shows it"));
    }
    if let Some(gone) = &found.disposition {
        let note = gone.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        line("letter", &format!("{} was {} at {}{note}", gone.letter, gone.what, gone.at));
    }
    if let Some(loss) = &found.loss {
        line("lost", &format!("{}: {}", loss.at, loss.why));
    }
    let Some(lane) = lane else { return text };
    if let Some(batch) = current(found, lane) {
        line("attempts", &batch.attempts.to_string());
        for attempt in &batch.recent {
            let outcome = match (&attempt.class, &attempt.reason) {
                (Some(class), Some(reason)) => format!("{class}: {reason}"),
                _ => "taken".to_owned(),
            };
            line("", &format!("{} in {} ms: {outcome}", attempt.at, attempt.took_ms));
        }
    }
    match &lane.trouble {
        Some(trouble) => {
            let next = what_next(&trouble.cause, &lane.name);
            line(
                "lane",
                &format!("{} ({}: {}); {next}", lane.state, trouble.cause, trouble.reason),
            );
        }
        None => line("lane", &lane.state),
    }
    text
}

fn batch_line(batch: &ExplainedBatch) -> String {
    format!(
        "{}, records {} to {}, {} sealed at {}",
        batch.identity,
        batch.first_seq,
        batch.last_seq,
        counted(batch.records, "output record"),
        batch.sealed_at
    )
}

/// What an outcome says, in a sentence.
fn meaning(outcome: &str) -> &'static str {
    match outcome {
        "queued" => "delayed: it is in the journal and not sealed yet",
        "sealed" => {
            "delayed: it is sealed and on its way, and goes out under this identity until the destination has it"
        }
        "dead_letter" => "quarantined: it was given up and kept",
        "discarded" => "it was given up, and somebody discarded it",
        "replayed" => "delivered: it was given up, and the destination has it from a replay",
        "delivered" => {
            "the destination took the batch of its range; a transform may have left the record out before"
        }
        "already" => {
            "already applied: the destination had the batch of its range from an earlier attempt"
        }
        "accepted" => "somebody decided that the batch of its range counts as delivered",
        "partly" => {
            "delivered: some of its batch became dead letters, and this one is none of them"
        }
        "given_up" => "its whole batch became dead letters, and its letter is gone since",
        "left_out" => "a transform left it out, or the pipeline does not take its subject",
        "lost" => "it is lost",
        "before_the_lane" => "it is older than the lane, which never took it",
        "unknown_run" => {
            "another run of the agent appended the record at that place: there is no such record"
        }
        "not_there" => "there is no such record yet",
        _ => "it has its outcome, too long ago to say which",
    }
}
