//! `waystation lane drop` and `waystation lane move`: what becomes of a lane that the config has not any more.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;

use crate::admin::VERSION;
use crate::admin::orders::{LaneOrder, LaneOrderedAnswer, MoveOrder};
use crate::admin::status::StatusView;
use crate::cli::agent::{PlaceArgs, lanes};
use crate::cli::check::print_problems;
use crate::cli::status::counted;
use crate::cli::stopped::with_journal;
use crate::cli::{ExitCode, Failure};
use crate::clock::{Clock as _, SystemClock};
use crate::config::{self, Loaded, PATH_DEFAULT};
use crate::journal::inspect::{Inspection, LaneInfo};
use crate::journal::{Journal, LaneTarget};
use crate::units::{human_bytes, human_duration};

/// How long the agent may take: a reload that is under way comes first.
const PATIENCE: Duration = Duration::from_secs(120);

/// Drop a lane that the config has not any more, for good
///
/// What waits in it is given up: it counts as lost, with the range and the time in the journal, and the disk space is free again.
/// The lane's dead letters stay. Its name is never given again in this journal: should its source, pipeline and sink come back,
/// they make a new lane, NAME~2.
///
/// A lane that the config has is refused: take it out of the config first. Asks before it does it; without a terminal it wants
/// --yes. On a stopped agent it opens the journal itself.
#[derive(Debug, clap::Args)]
pub(super) struct DropArgs {
    /// The lane, by its full name or an end of it that no other has, such as `pipeline/sink`
    lane: String,
    #[command(flatten)]
    how: HowArgs,
}

/// Have the records of a lane go on as another lane's
///
/// For a source, pipeline or sink that has another name now. FROM is a lane that the config has not any more, TO one that it
/// has: all that waits in FROM goes out by TO, and FROM's place in the stream and its plugins' state go on. The lane keeps its
/// first name, so what was sealed goes out under its identities, and nothing is lost or sent twice.
///
/// TO must not have begun: a new lane begins with what the journal holds, and both would send the same records. So: stop the
/// agent, change the config, move, start. Where TO is of another source, that source goes on where the old one stopped reading,
/// with all lanes of the old one; for that the agent must be stopped.
///
/// Asks before it does it; without a terminal it wants --yes.
#[derive(Debug, clap::Args)]
pub(super) struct MoveArgs {
    /// The lane whose records go on, by its full name or an end of it that no other has
    from: String,
    /// The lane of the config that they go on as, likewise
    to: String,
    #[command(flatten)]
    how: HowArgs,
}

#[derive(Debug, clap::Args)]
struct HowArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Only say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A lane of the config.
struct Configured {
    name: String,
    target: LaneTarget,
}

/// The lanes as they are, and who would change them.
struct Sight {
    /// Of the journal, dropped ones left out.
    known: Vec<LaneInfo>,
    configured: Vec<Configured>,
    /// The config that was read in the agent's place; none: the agent runs.
    stopped: Option<Box<Loaded>>,
}

pub(super) fn drop_lane(args: &DropArgs) -> anyhow::Result<ExitCode> {
    let Some(sight) = look(&args.how)? else { return Ok(ExitCode::Config) };
    let lane = sight.orphan(&args.lane)?;
    let what = format!("{} would be given up for good", counted(lane.queued, "record"));
    if !args.how.goes_on(lane, &what, "Drop this lane and give up its records? [y/N] ")? {
        return Ok(args.how.left_alone());
    }
    let answer: LaneOrderedAnswer = match &sight.stopped {
        None => {
            let order = LaneOrder { version: VERSION, lane: lane.name.clone() };
            args.how.place.agent()?.order("/orders/lane/drop", &order, PATIENCE)?
        }
        Some(loaded) => {
            let work = async |journal: &Journal| Ok(journal.drop_lane(&lane.name).await?);
            by_ourselves(&args.how, loaded, work)?
        }
    };
    args.how.tell(&answer, "drop", &format!("given up, lane {} is dropped", answer.lane))
}

pub(super) fn move_lane(args: &MoveArgs) -> anyhow::Result<ExitCode> {
    let Some(sight) = look(&args.how)? else { return Ok(ExitCode::Config) };
    let lane = sight.orphan(&args.from)?;
    let names: Vec<_> = sight.configured.iter().map(|lane| lane.name.as_str()).collect();
    let to = lanes::meant(&args.to, &names)?;
    let Some(Configured { target, .. }) = sight.configured.iter().find(|lane| lane.name == to)
    else {
        return Ok(ExitCode::Failed);
    };
    let LaneTarget { source, pipeline, sink } = target;
    let mut what = format!(
        "{} would go on by pipeline \"{pipeline}\" to sink \"{sink}\"; the lane keeps its name",
        counted(lane.queued, "record")
    );
    if lane.source != source.as_str() {
        sight.is_no_source_in_use(lane)?;
        let others = sight.known.iter().filter(|other| other.source == lane.source).count() - 1;
        what.push_str(&format!(
            "; source \"{source}\" would go on where source \"{}\" stopped reading, with {}",
            lane.source,
            counted(others as u64, "other lane")
        ));
    }
    if !args.how.goes_on(lane, &what, "Move this lane? [y/N] ")? {
        return Ok(args.how.left_alone());
    }
    let answer: LaneOrderedAnswer = match &sight.stopped {
        None => {
            let (lane, to) = (lane.name.clone(), to.to_owned());
            let order = MoveOrder { version: VERSION, lane, to };
            args.how.place.agent()?.order("/orders/lane/move", &order, PATIENCE)?
        }
        Some(loaded) => {
            let work =
                async |journal: &Journal| Ok(journal.move_lane(&lane.name, target.clone()).await?);
            by_ourselves(&args.how, loaded, work)?
        }
    };
    let done = format!("in lane {} go on by \"{pipeline}\" to \"{sink}\"", answer.lane);
    args.how.tell(&answer, "move", &done)
}

fn by_ourselves(
    how: &HowArgs,
    loaded: &Loaded,
    work: impl AsyncFnOnce(&Journal) -> anyhow::Result<crate::journal::LaneOrdered>,
) -> anyhow::Result<LaneOrderedAnswer> {
    let settings = (loaded.config.journal.clone(), loaded.config.agent.id.clone());
    let ordered = with_journal(how.place.data_dir()?, settings, work)?;
    Ok(LaneOrderedAnswer::of(&ordered))
}

/// Looks at journal and config. Without an agent, the config says which lanes are in use; one that is broken gives nothing.
fn look(how: &HowArgs) -> anyhow::Result<Option<Sight>> {
    let inspection = Inspection::open(&how.place.data_dir()?)?;
    let mut info = inspection.info()?;
    info.lanes.retain(|lane| !lane.dropped);
    let known = info.lanes;
    if inspection.agent_pid().is_some() {
        let status = how.place.agent()?.status()?;
        let configured = of_status(&status)?;
        return Ok(Some(Sight { known, configured, stopped: None }));
    }
    if how.place.is_without_config() {
        return Err(Failure {
            code: ExitCode::Usage,
            message: "the agent is stopped, and only its config says which lanes are in use"
                .to_owned(),
            hint: Some("name the config with -c FILE instead of the data directory".to_owned()),
        }
        .into());
    }
    let path = how.place.config.as_deref().unwrap_or(Path::new(PATH_DEFAULT));
    // What a plugin's file is like does not matter here.
    let loaded = match config::load(path, &config::process_environment, &|_| Ok(Vec::new())) {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems, how.json)?;
            return Ok(None);
        }
    };
    let agent = info.agent.unwrap_or_default();
    let configured = of_config(&loaded, &known, &agent);
    Ok(Some(Sight { known, configured, stopped: Some(Box::new(loaded)) }))
}

fn of_status(status: &StatusView) -> anyhow::Result<Vec<Configured>> {
    let lanes = status.lanes.iter().map(|lane| {
        let target = LaneTarget {
            source: lane.source.parse()?,
            pipeline: lane.pipeline.parse()?,
            sink: lane.sink.parse()?,
        };
        Ok(Configured { name: lane.name.clone(), target })
    });
    lanes
        .collect::<Result<_, crate::record::id::NameError>>()
        .context("the agent names its lanes oddly")
}

/// Under the names that they have in the journal, or would most likely get.
fn of_config(loaded: &Loaded, known: &[LaneInfo], agent: &str) -> Vec<Configured> {
    let mut lanes = Vec::new();
    for config::LaneId { source, pipeline, sink } in config::lane_ids(&loaded.config) {
        let is = |lane: &&LaneInfo| {
            [&lane.source, &lane.pipeline, &lane.sink]
                == [source.as_str(), pipeline.as_str(), sink.as_str()]
        };
        let name = known.iter().find(is).map_or_else(
            || format!("{agent}/{source}/{pipeline}/{sink}"),
            |lane| lane.name.clone(),
        );
        lanes.push(Configured { name, target: LaneTarget { source, pipeline, sink } });
    }
    lanes
}

impl Sight {
    /// The lane that is meant, which the config must not have.
    fn orphan(&self, wanted: &str) -> Result<&LaneInfo, Failure> {
        let is_configured = |name: &str| self.configured.iter().find(|lane| lane.name == name);
        let orphans: Vec<_> = self.known.iter().map(|lane| lane.name.as_str()).collect();
        let free: Vec<_> =
            orphans.iter().copied().filter(|name| is_configured(name).is_none()).collect();
        // An end that several have means the one that can be meant.
        let name = lanes::meant(wanted, &free).or_else(|_| lanes::meant(wanted, &orphans))?;
        if let Some(Configured { target, .. }) = is_configured(name) {
            return Err(Failure {
                code: ExitCode::Failed,
                message: format!(
                    "lane {name} is in the config: pipeline \"{}\" delivers to sink \"{}\"",
                    target.pipeline, target.sink
                ),
                hint: Some("take it out of the config first".to_owned()),
            });
        }
        self.known.iter().find(|lane| lane.name == name).ok_or_else(|| Failure {
            code: ExitCode::Failed,
            message: format!("there is no lane \"{wanted}\""),
            hint: None,
        })
    }

    /// A source takes all that it has read with it.
    fn is_no_source_in_use(&self, lane: &LaneInfo) -> Result<(), Failure> {
        let user = self.configured.iter().find(|used| used.target.source.as_str() == lane.source);
        let Some(user) = user else { return Ok(()) };
        Err(Failure {
            code: ExitCode::Failed,
            message: format!(
                "source \"{}\" is in the config, with lane {}: what it has read stays with it",
                lane.source, user.name
            ),
            hint: Some("move to a lane of the same source".to_owned()),
        })
    }
}

impl HowArgs {
    /// Says what there is and what would happen, and whether it is to happen.
    fn goes_on(&self, lane: &LaneInfo, what: &str, question: &str) -> anyhow::Result<bool> {
        let text = described(lane, what);
        if self.dry_run {
            let line = json!({
                "lane": lane.name, "records": lane.queued, "batches": lane.batches,
                "bytes": lane.queued_bytes, "oldest_at": lane.oldest_at, "would": what,
            });
            let text = if self.json { format!("{line}\n") } else { text };
            crate::cli::print(text.as_bytes())?;
            return Ok(false);
        }
        if self.yes {
            return Ok(true);
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(Failure {
                code: ExitCode::Usage,
                message: "there is no terminal to ask on".to_owned(),
                hint: Some(
                    "--yes does it without asking, --dry-run says what it would do".to_owned(),
                ),
            }
            .into());
        }
        let mut err = std::io::stderr();
        write!(err, "{text}{question}")?;
        err.flush()?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).context("cannot read the answer")?;
        let is_wanted = matches!(answer.trim(), "y" | "Y" | "yes");
        if !is_wanted {
            writeln!(err, "nothing is changed")?;
        }
        Ok(is_wanted)
    }

    fn left_alone(&self) -> ExitCode {
        if self.dry_run { ExitCode::Done } else { ExitCode::Failed }
    }

    fn tell(
        &self,
        answer: &LaneOrderedAnswer,
        order: &str,
        done: &str,
    ) -> anyhow::Result<ExitCode> {
        let LaneOrderedAnswer { lane, records, batches, .. } = answer;
        let text = if self.json {
            let line =
                json!({ "lane": lane, "order": order, "records": records, "batches": batches });
            format!("{line}\n")
        } else {
            format!("{} {done}\n", counted(*records, "record"))
        };
        crate::cli::print(text.as_bytes())?;
        Ok(ExitCode::Done)
    }
}

/// The lane and what waits in it.
fn described(lane: &LaneInfo, what: &str) -> String {
    let age = lane.oldest.filter(|_| lane.queued > 0);
    let age = age.map(|oldest| human_duration(SystemClock.now().since(oldest)));
    let age = age.map_or_else(String::new, |age| format!(", the oldest accepted {age} ago"));
    let sealed = match lane.batches {
        0 => String::new(),
        batches => format!(", {batches} of its batches sealed"),
    };
    format!(
        "lane {}: {} ({}) queued{sealed}{age}\n{what}\n",
        lane.name,
        counted(lane.queued, "record"),
        human_bytes(lane.queued_bytes)
    )
}
