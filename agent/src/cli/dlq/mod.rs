//! `waystation dlq`: the dead letters, which are records that a lane or a source gave up and kept.
//!
//! They are read out of the journal, beside a running agent and on a stopped one; what changes them goes through the agent
//! where one runs.

mod discard;
mod export;
mod list;
mod replay;
mod show;

use anyhow::Context as _;
use serde_json::{Map, Value, json};

use super::ExitCode;
use super::agent::{PlaceArgs, lanes};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::journal::inspect::Inspection;
use crate::journal::{Letter, LettersFilter};
use crate::limits::LETTERS_PAGE_MAX;
use crate::record::Headers;
use crate::record::subject::SubjectPattern;
use crate::record::time::push_rfc3339;
use crate::units::parse_duration;

/// Look at the dead letters, send them again, keep them elsewhere, and discard them
///
/// A dead letter is a record that was given up and kept, with all that is needed to decide about it: what a destination
/// refuses for good, what a plugin rejects or breaks down on, what is over the limit of its source.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Replay(replay::Args),
    Discard(discard::Args),
    Export(export::Args),
}

/// Runs `waystation dlq`.
///
/// # Errors
/// When the journal cannot be read, or the agent does not answer.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::List(args) => list::run(args),
        Command::Show(args) => show::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Discard(args) => discard::run(args),
        Command::Export(args) => export::run(args),
    }
}

/// Which letters are meant: those for which all of it is true.
#[derive(Debug, Clone, clap::Args)]
struct FilterArgs {
    /// Only of this lane, by its full name or an end of it that no other has
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// Only of this class: `rejected`, `exhausted`, `conflict`, or the name of a plugin's fault
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,
    /// Only what was given up there: the name of a transform or sink, or `source`
    #[arg(long, value_name = "STAGE")]
    stage: Option<String>,
    /// Only those that became letters longer ago than this, e.g. 7d
    #[arg(long, value_name = "DURATION", value_parser = parse_age)]
    older_than: Option<Age>,
    /// Only those that became letters within this time, e.g. 1h
    #[arg(long, value_name = "DURATION", value_parser = parse_age)]
    newer_than: Option<Age>,
    /// Only with a subject of this pattern, with `*` and `>` as in NATS
    #[arg(long, value_name = "PATTERN", value_parser = str::parse::<SubjectPattern>)]
    subject: Option<SubjectPattern>,
    /// Only the letter with this id; may be given several times
    #[arg(long, value_name = "ID")]
    id: Vec<i64>,
}

/// How long ago.
#[derive(Debug, Clone, Copy)]
struct Age(std::time::Duration);

fn parse_age(text: &str) -> Result<Age, String> {
    parse_duration(text).map(Age).map_err(|error| error.to_string())
}

impl FilterArgs {
    fn is_empty(&self) -> bool {
        let Self { lane, class, stage, older_than, newer_than, subject, id } = self;
        let ages = older_than.is_none() && newer_than.is_none();
        lane.is_none()
            && class.is_none()
            && stage.is_none()
            && ages
            && subject.is_none()
            && id.is_empty()
    }

    /// Gives the letters that are meant behind `after`, oldest first, until `each` says false.
    fn each(
        &self,
        inspection: &Inspection,
        after: i64,
        mut each: impl FnMut(Letter) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let now = SystemClock.now();
        let ago = |age: Age| {
            let nanoseconds = i64::try_from(age.0.as_nanos()).unwrap_or(i64::MAX);
            Timestamp(now.0.saturating_sub(nanoseconds))
        };
        let lane = match &self.lane {
            None => None,
            Some(wanted) => {
                let names = inspection.lane_names()?;
                let names: Vec<_> = names.iter().map(String::as_str).collect();
                Some(lanes::meant(wanted, &names)?.to_owned())
            }
        };
        let mut filter = LettersFilter {
            lane,
            stage: self.stage.clone(),
            class: self.class.clone(),
            before: self.older_than.map(ago),
            since: self.newer_than.map(ago),
            after,
            limit: LETTERS_PAGE_MAX,
        };
        loop {
            let page = inspection.letters(&filter)?;
            let Some(last) = page.last() else { return Ok(()) };
            filter.after = last.id;
            for letter in page {
                let subject = self.subject.as_ref();
                let is_meant = (self.id.is_empty() || self.id.contains(&letter.id))
                    && subject.is_none_or(|pattern| pattern.matches(&letter.subject));
                if is_meant && !each(letter)? {
                    return Ok(());
                }
            }
        }
    }
}

fn open(place: &PlaceArgs) -> anyhow::Result<Inspection> {
    let directory = place.data_dir()?;
    Inspection::open(&directory).context("cannot read the dead letters")
}

fn rfc3339(time: Timestamp) -> String {
    let mut text = String::new();
    push_rfc3339(time, &mut text);
    text
}

/// All that is known of a letter but its payload, as it is exported.
fn fields(letter: &Letter) -> Map<String, Value> {
    let headers: Vec<_> =
        Headers(&letter.headers).iter().map(|pair| json!([pair.0, pair.1])).collect();
    let digest = letter.plugin_sha256.as_deref().and_then(|digest| digest.try_into().ok());
    let value = json!({
        "id": letter.id,
        "lane": letter.lane,
        "source": letter.source,
        "stage": letter.stage,
        "class": letter.class,
        "reason": letter.reason,
        "record": letter.record,
        "batch": letter.batch,
        "seq": letter.seq,
        "place": letter.place,
        "plugin_sha256": digest.map(|digest: [u8; 32]| crate::plugin::hex(&digest)),
        "attempts": letter.attempts,
        "first_at": rfc3339(letter.first_at),
        "last_at": rfc3339(letter.last_at),
        "time": rfc3339(letter.time),
        "subject": letter.subject,
        "headers": headers,
        "payload_bytes": letter.payload_bytes,
        "size_bytes": letter.size_bytes,
        "disposition": letter.disposition,
    });
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// What a source refused has no lane.
fn whose(letter: &Letter) -> String {
    letter.lane.clone().unwrap_or_else(|| format!("(source {})", letter.source))
}
