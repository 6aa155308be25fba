//! Which lane somebody means: its full name, or an end of it that only one has.

use std::time::Duration;

use super::super::{ExitCode, Failure};
use super::AgentArgs;
use crate::admin::VERSION;
use crate::admin::orders::{DoneAnswer, LaneOrder};
use crate::admin::status::{LaneStatusView, StatusView};

/// Names that are shown where none fits.
const SHOWN_MAX: usize = 20;
/// From here on a name is near enough to be asked for.
const LIKENESS_MIN: f64 = 0.8;

/// What an order to one lane is given.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct LaneArgs {
    /// The lane, by its full name or an end of it that no other has, such as `pipeline/sink`
    lane: String,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Gives a running lane an order that is done at once, and says that it is `done`.
pub(in crate::cli) fn order(args: &LaneArgs, path: &'static str, done: &str) -> anyhow::Result<()> {
    let agent = args.agent.agent()?;
    let status = agent.status()?;
    let lane = of(&status, &args.lane)?.name.clone();
    let order = LaneOrder { version: VERSION, lane: lane.clone() };
    let DoneAnswer { .. } = agent.order(path, &order, Duration::ZERO)?;
    let text = if args.json {
        format!("{}\n", serde_json::json!({ "lane": lane, done: true }))
    } else {
        format!("lane {lane} is {done}\n")
    };
    crate::cli::print(text.as_bytes())
}

/// The running lane that is meant by `wanted`.
pub(in crate::cli) fn of<'a>(
    status: &'a StatusView,
    wanted: &str,
) -> Result<&'a LaneStatusView, Failure> {
    let known: Vec<_> = status.lanes.iter().map(|lane| lane.name.as_str()).collect();
    let name = meant(wanted, &known)?;
    let lane = status.lanes.iter().find(|lane| lane.name == name);
    lane.ok_or_else(|| unknown(wanted, &known))
}

/// The full name of the lane that is meant by `wanted`.
pub(in crate::cli) fn meant<'a>(wanted: &str, known: &[&'a str]) -> Result<&'a str, Failure> {
    if let Some(name) = known.iter().find(|name| **name == wanted) {
        return Ok(name);
    }
    let is_end =
        |name: &&&str| name.strip_suffix(wanted).is_some_and(|before| before.ends_with('/'));
    let ends: Vec<_> = known.iter().filter(is_end).copied().collect();
    match ends[..] {
        [one] => Ok(one),
        [] => Err(unknown(wanted, known)),
        _ => Err(Failure {
            code: ExitCode::Failed,
            message: format!("\"{wanted}\" is the end of {} lanes", ends.len()),
            hint: Some(format!("name more of it: {}", listed(&ends))),
        }),
    }
}

fn unknown(wanted: &str, known: &[&str]) -> Failure {
    // Whoever leaves out the front means the rest.
    let parts = wanted.split('/').count();
    let likeness = |name: &str| {
        let skipped = name.split('/').count().saturating_sub(parts);
        let end: Vec<_> = name.split('/').skip(skipped).collect();
        strsim::jaro_winkler(wanted, &end.join("/"))
    };
    let nearest = known
        .iter()
        .map(|name| (likeness(name), *name))
        .filter(|(likeness, _)| *likeness >= LIKENESS_MIN)
        .max_by(|one, other| one.0.total_cmp(&other.0));
    let hint = match nearest {
        _ if known.is_empty() => "there are no lanes".to_owned(),
        Some((_, name)) => format!("did you mean {name}? there are {}", listed(known)),
        None => format!("there are {}", listed(known)),
    };
    Failure {
        code: ExitCode::Failed,
        message: format!("there is no lane \"{wanted}\""),
        hint: Some(hint),
    }
}

fn listed(names: &[&str]) -> String {
    let shown = names.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 3] = ["gw/a/telemetry/cloud", "gw/a/telemetry/archive", "gw/b/raw/cloud"];

    #[test]
    fn a_full_name_or_an_end_that_one_lane_has_is_enough() {
        assert_eq!(meant("gw/b/raw/cloud", &KNOWN).unwrap(), KNOWN[2]);
        assert_eq!(meant("telemetry/cloud", &KNOWN).unwrap(), KNOWN[0]);
        assert_eq!(meant("archive", &KNOWN).unwrap(), KNOWN[1]);
        // A name that is the end of another is meant itself.
        assert_eq!(meant("x", &["x", "y/x"]).unwrap(), "x");
    }

    #[test]
    fn an_end_of_several_and_of_none_are_told_with_what_there_is() {
        let failure = meant("cloud", &KNOWN).unwrap_err();
        assert_eq!(failure.message, "\"cloud\" is the end of 2 lanes");
        assert_eq!(failure.hint.unwrap(), format!("name more of it: {}, {}", KNOWN[0], KNOWN[2]));
        let failure = meant("telemetri/cloud", &KNOWN).unwrap_err();
        assert_eq!(failure.message, "there is no lane \"telemetri/cloud\"");
        let hint = failure.hint.unwrap();
        assert!(hint.starts_with("did you mean gw/a/telemetry/cloud? there are "), "{hint}");
        let hint = meant("oud", &KNOWN).unwrap_err().hint.unwrap();
        assert!(hint.starts_with("there are gw/a"), "part of a name is none: {hint}");
        assert_eq!(meant("x", &[]).unwrap_err().hint.unwrap(), "there are no lanes");
    }
}
