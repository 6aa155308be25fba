//! `waystation journal export`: records as lines of JSON.
//!
//! ```json
//! {"source":"s","epoch":"00001abcde","seq":42,"time":"2026-01-02T03:04:05.000000006Z","subject":"s","headers":[["n","v"]],"payload":"text"}
//! ```
//!
//! With a lane there is `id`, the record's identity in it, and with `--unacked` also `batch`, the identity of the sealed batch.

use std::io::{BufWriter, Write as _};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Place, progress};
use crate::cli::{ExitCode, Failure};
use crate::clock::Timestamp;
use crate::error_chain::Chain;
use crate::journal::JournalError;
use crate::journal::inspect::{InspectedLane, Inspection};
use crate::record::RecordView;
use crate::record::batch::FrameBlock;
use crate::record::id::{LaneName, Seq, write_record_identity};
use crate::record::time::push_rfc3339;

/// Print records as JSON, one a line
///
/// Without options: all records that the journal still holds, stream by stream. With --lane: those that this lane has not
/// delivered, with the identities under which it delivers them. With --lane and --unacked: what is sealed and waits for its
/// ack, as it will be sent, with the identity of its batch.
///
/// A payload that is not UTF-8 is in "payload_base64". A damaged chunk is told on standard error and left out; the exit code
/// is 1 then. The journal is not changed, and what is exported stays queued.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    place: Place,
    /// Only the stream of this source
    #[arg(long, value_name = "SOURCE", conflicts_with = "lane")]
    stream: Option<String>,
    /// Only what this lane has not delivered; its full name, as `journal info` shows it
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// Sealed batches that wait for their ack, as they will be sent
    #[arg(long, requires = "lane")]
    unacked: bool,
    /// From this seq on
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Up to and with this seq
    #[arg(long, value_name = "SEQ")]
    to: Option<u64>,
    /// Only records with an event time from this on, e.g. 2026-01-02T03:04:05Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// Only records with an event time before this
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
    /// For uniformity with other commands: the output is JSON in any case
    #[arg(long)]
    json: bool,
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "a time looks like 2026-01-02T03:04:05Z".to_owned())?;
    i64::try_from(time.as_nanosecond()).map(Timestamp).map_err(|_| "it is too far away".to_owned())
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let inspection = Inspection::open(&args.place.directory()?)?;
    let lane = args.lane.as_deref().map(|name| find_lane(&inspection, name)).transpose()?;
    let streams = inspection.streams()?;
    if let Some(wanted) = &args.stream
        && !streams.iter().any(|(_, source)| source.as_str() == wanted)
    {
        let names = streams.iter().map(|(_, source)| source.to_string()).collect();
        return Err(not_found("stream", wanted, names).into());
    }
    let bar = progress("exporting");
    let mut export = Export {
        out: BufWriter::new(std::io::stdout().lock()),
        args,
        records: 0,
        damaged: 0,
        bar: bar.clone(),
        identity: String::new(),
    };
    for (number, source) in &streams {
        let is_wanted = match (&lane, &args.stream) {
            (Some(lane), _) => lane.stream() == *number,
            (None, Some(wanted)) => source.as_str() == wanted,
            (None, None) => true,
        };
        if !is_wanted {
            continue;
        }
        match &lane {
            Some(lane) if args.unacked => export.batches(&inspection, source.as_str(), lane)?,
            _ => {
                let after = lane.as_ref().map_or(Seq(0), InspectedLane::acked);
                let from = after.next().max(Seq(args.from.unwrap_or(1)));
                let name = lane.as_ref().map(InspectedLane::name);
                inspection.each_chunk(*number, from, |block| {
                    export.block(source.as_str(), name, None, from, block)
                })?;
            }
        }
    }
    export.out.flush().context("cannot write to standard output")?;
    bar.finish_and_clear();
    Ok(if export.damaged == 0 { ExitCode::Done } else { ExitCode::Failed })
}

fn find_lane(inspection: &Inspection, name: &str) -> anyhow::Result<InspectedLane> {
    if let Some(lane) = inspection.lane(name)? {
        return Ok(lane);
    }
    let names = inspection.info()?.lanes.into_iter().map(|lane| lane.name).collect();
    Err(not_found("lane", name, names).into())
}

fn not_found(what: &str, name: &str, known: Vec<String>) -> Failure {
    let hint = if known.is_empty() {
        format!("the journal has no {what}")
    } else {
        format!("it has {}", known.join(", "))
    };
    Failure {
        code: ExitCode::Failed,
        message: format!("the journal has no {what} \"{name}\""),
        hint: Some(hint),
    }
}

struct Export<'a> {
    out: BufWriter<std::io::StdoutLock<'static>>,
    args: &'a Args,
    records: u64,
    damaged: u64,
    bar: indicatif::ProgressBar,
    identity: String,
}

impl Export<'_> {
    /// The records of a chunk. False when nothing that is wanted can follow.
    fn block(
        &mut self,
        source: &str,
        lane: Option<&LaneName>,
        batch: Option<&str>,
        from: Seq,
        block: Result<FrameBlock, JournalError>,
    ) -> anyhow::Result<bool> {
        let block = match block {
            Ok(block) => block,
            Err(error) => {
                self.damage(&error)?;
                return Ok(true);
            }
        };
        let to = self.args.to.unwrap_or(u64::MAX);
        for record in block.records() {
            let record = match record {
                Ok(record) => record,
                Err(error) => {
                    self.damage(&error)?;
                    break;
                }
            };
            let is_wanted = record.seq >= from
                && record.seq.0 <= to
                && self.args.since.is_none_or(|since| record.time >= since)
                && self.args.until.is_none_or(|until| record.time < until);
            if is_wanted {
                self.record(source, lane, batch, &record)?;
            }
        }
        self.bar.set_position(self.records);
        Ok(block.first_seq.plus(block.count.into()).0 <= to)
    }

    fn batches(
        &mut self,
        inspection: &Inspection,
        source: &str,
        lane: &InspectedLane,
    ) -> anyhow::Result<()> {
        let from = Seq(self.args.from.unwrap_or(1));
        for batch in &lane.batches {
            let identity = batch.identity(lane.name());
            let mut written = Ok(true);
            let read = inspection.each_batch_block(lane, batch, |block| {
                if written.is_ok() {
                    written =
                        self.block(source, Some(lane.name()), Some(&identity), from, Ok(block));
                }
            });
            written?;
            if let Err(error) = read {
                self.damage(&error)?;
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        source: &str,
        lane: Option<&LaneName>,
        batch: Option<&str>,
        record: &RecordView<'_>,
    ) -> anyhow::Result<()> {
        let mut line = Map::new();
        if let Some(lane) = lane {
            write_record_identity(&mut self.identity, lane, record);
            line.insert("id".to_owned(), self.identity.clone().into());
        }
        if let Some(batch) = batch {
            line.insert("batch".to_owned(), batch.into());
        }
        line.insert("source".to_owned(), source.into());
        line.insert("epoch".to_owned(), record.epoch.to_string().into());
        line.insert("seq".to_owned(), record.seq.0.into());
        let mut time = String::new();
        push_rfc3339(record.time, &mut time);
        line.insert("time".to_owned(), time.into());
        line.insert("subject".to_owned(), record.subject.into());
        let headers: Vec<_> =
            record.headers.iter().map(|(name, value)| json!([name, value])).collect();
        line.insert("headers".to_owned(), headers.into());
        match std::str::from_utf8(record.payload) {
            Ok(text) => line.insert("payload".to_owned(), text.into()),
            Err(_) => {
                line.insert("payload_base64".to_owned(), STANDARD.encode(record.payload).into())
            }
        };
        let mut line = serde_json::to_vec(&Value::Object(line))?;
        line.push(b'\n');
        self.out.write_all(&line).context("cannot write to standard output")?;
        self.records += 1;
        Ok(())
    }

    fn damage(&mut self, error: &(dyn std::error::Error + 'static)) -> anyhow::Result<()> {
        self.damaged += 1;
        writeln!(std::io::stderr(), "left out: {}", Chain(error))
            .context("cannot write to standard error")
    }
}
