//! The order for a reload, and what it came to.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use serde::{Deserialize, Serialize};

use super::VERSION;
use super::error::ApiError;
use super::orders::{Desk, Peer, UnderWay, read};
use super::status::OrphanStatus;
use crate::config::{Change, Plan, Planned};
use crate::error_chain::Chain;
use crate::supervisor::{Backlog, Outcome, ReloadError, Reloaded};

/// Read the config again, and go over to it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReloadOrder {
    /// [`VERSION`].
    pub version: u32,
    /// Say what it would change, and change nothing.
    #[serde(default)]
    pub only_plan: bool,
}

/// What a reload came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// `adopted`, `unchanged`, `planned`, or `refused`: then everything is as it was.
    pub outcome: String,
    /// Why it is refused, on one line.
    pub reason: Option<String>,
    /// All problems of the config and their places, for people: errors, or warnings where it is taken.
    pub problems: Option<String>,
    /// What happens to sources, transforms, sinks and limiters that do not just go on.
    pub parts: Vec<ChangeView>,
    /// What happens to each lane.
    pub lanes: Vec<LaneChangeView>,
    /// Keys of the agent itself that are taken up.
    pub live: Vec<String>,
    /// Lanes of the journal in which records wait, and that the config has not before or after.
    #[serde(default)]
    pub orphans: Vec<OrphanStatus>,
}

/// What happens to one part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeView {
    /// Its table, such as `sinks.cloud`.
    pub part: String,
    /// `added`, `adjusted`, `restarted` or `removed`.
    pub change: String,
    /// What of the config has changed for it.
    pub because: Vec<String>,
}

/// What happens to one lane and to what waits in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneChangeView {
    /// Its name.
    pub lane: String,
    /// `added`, `kept`, `restarted` or `removed`.
    pub change: String,
    /// What of the config has changed for it.
    pub because: Vec<String>,
    /// Records without an outcome.
    pub queued: u64,
    /// Batches that are sealed and have no outcome.
    pub batches_sealed: u64,
    /// What becomes of those.
    pub backlog: String,
}

/// Carries out `POST /orders/reload`.
pub(super) async fn reload(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<ReloadAnswer>, ApiError> {
    let ReloadOrder { only_plan, .. } = read(&body)?;
    let _place = desk.place(under_way)?;
    if !only_plan {
        tracing::info!(uid, "Reload is ordered");
    }
    let answer = match (desk.agent)().reload(only_plan).await {
        Ok(reloaded) => ReloadAnswer::of(&reloaded),
        Err(error) => ReloadAnswer::refused(&error),
    };
    Ok(Json(answer))
}

impl ReloadAnswer {
    fn of(reloaded: &Reloaded) -> Self {
        let Reloaded { outcome, plan, backlogs, orphans, warnings } = reloaded;
        let Plan { sources, transforms, sinks, limiters, lanes, live } = plan;
        let outcome = match outcome {
            Outcome::Adopted => "adopted",
            Outcome::Unchanged => "unchanged",
            Outcome::Planned => "planned",
        };
        let parts = changes("sources", sources)
            .chain(changes("transforms", transforms))
            .chain(changes("sinks", sinks))
            .chain(changes("limiters", limiters));
        let lanes = lanes.iter().zip(backlogs).map(|(planned, backlog)| {
            let Backlog { lane, queued, sealed, fate } = backlog.clone();
            LaneChangeView {
                lane,
                change: planned.change.as_str().to_owned(),
                because: planned.because.clone(),
                queued,
                batches_sealed: sealed,
                backlog: fate.to_owned(),
            }
        });
        Self {
            version: VERSION,
            outcome: outcome.to_owned(),
            reason: None,
            problems: (!warnings.is_empty()).then(|| warnings.render(false)),
            parts: parts.collect(),
            lanes: lanes.collect(),
            live: live.iter().map(|key| (*key).to_owned()).collect(),
            orphans: orphans.iter().map(OrphanStatus::of).collect(),
        }
    }

    fn refused(error: &ReloadError) -> Self {
        let problems = match error {
            ReloadError::Config(problems) => Some(problems.render(false)),
            _ => None,
        };
        Self {
            version: VERSION,
            outcome: "refused".to_owned(),
            reason: Some(Chain(error).to_string()),
            problems,
            ..Self::default()
        }
    }
}

fn changes<'p, I: std::fmt::Display>(
    table: &'p str,
    parts: &'p [Planned<I>],
) -> impl Iterator<Item = ChangeView> + 'p {
    let changed = parts.iter().filter(|part| part.change != Change::Kept);
    changed.map(move |part| ChangeView {
        part: format!("{table}.{}", part.id),
        change: part.change.as_str().to_owned(),
        because: part.because.clone(),
    })
}
