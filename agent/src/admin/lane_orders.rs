//! Orders about lanes that the config has not.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Extension, State};
use serde::{Deserialize, Serialize};

use super::VERSION;
use super::error::ApiError;
use super::orders::{Desk, LaneOrder, Peer, UnderWay, read};
use crate::journal::LaneOrdered;

/// Have a lane go on as another one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MoveOrder {
    /// [`VERSION`].
    pub version: u32,
    /// The lane, which the config has not.
    pub lane: String,
    /// The lane of the config that it goes on as.
    pub to: String,
}

/// What an order about such a lane came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOrderedAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// Its name, which it keeps.
    pub lane: String,
    /// Records that waited in it.
    pub records: u64,
    /// Batches among them that were sealed.
    pub batches: u64,
}

impl LaneOrderedAnswer {
    pub(crate) fn of(ordered: &LaneOrdered) -> Self {
        let LaneOrdered { name, queued, batches } = ordered;
        Self { version: VERSION, lane: name.to_string(), records: *queued, batches: *batches }
    }
}

/// Carries out `POST /orders/lane/drop`.
pub(super) async fn drop_lane(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<LaneOrderedAnswer>, ApiError> {
    let LaneOrder { lane, .. } = read(&body)?;
    let _place = desk.place(under_way)?;
    let dropped = (desk.agent)().drop_lane(&lane).await?;
    let (records, batches) = (dropped.queued, dropped.batches);
    tracing::warn!(lane, uid, records, batches, "Lane is dropped as ordered");
    Ok(Json(LaneOrderedAnswer::of(&dropped)))
}

/// Carries out `POST /orders/lane/move`.
pub(super) async fn move_lane(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<LaneOrderedAnswer>, ApiError> {
    let MoveOrder { lane, to, .. } = read(&body)?;
    let _place = desk.place(under_way)?;
    let moved = (desk.agent)().move_lane(&lane, &to).await?;
    let (records, batches) = (moved.queued, moved.batches);
    tracing::info!(lane, to, uid, records, batches, "Lane is moved as ordered");
    Ok(Json(LaneOrderedAnswer::of(&moved)))
}
