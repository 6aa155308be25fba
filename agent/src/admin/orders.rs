//! Orders: what a running agent is told over its Unix socket, as JSON in and JSON out.
//!
//! Every order and every answer holds `"version": 1`. A lane is meant by its full name.
//!
//! | endpoint | order | answer |
//! |---|---|---|
//! | `POST /orders/pause`, `/orders/resume` | `{"version":1,"lane":"…"}` | `{"version":1}` |
//! | `POST /orders/resolve` | `{"version":1,"lane":"…","resolution":"accept"}`, or `dead_letter`, `resend_as_new` | `{"version":1}` |
//! | `POST /orders/flush` | `{"version":1,"lane":"…","timeout_ms":60000}`; without `lane` all lanes | `{"version":1,"left":[…]}`: the lanes ([`LaneStatusView`]) of which not everything has its outcome |
//! | `POST /orders/replay` | `{"version":1,"lane":"…","letters":[7,8],"payload_base64":"…","dry_run":false}`; a payload for one letter | `{"version":1,"batches":[…],"left_out":[…]}`: the batches ([`ReplayBatchView`]) that were sealed, or would be |
//! | `POST /orders/discard` | `{"version":1,"letters":[7,8],"note":"…"}`, ids of dead letters | `{"version":1,"discarded":1,"left_out":[…]}`: those that are being replayed are left |
//! | `POST /orders/lane/drop` | `{"version":1,"lane":"…"}`, a lane that the config has not | `{"version":1,"lane":"…","records":17,"batches":1}`: what it held |
//! | `POST /orders/lane/move` | `{"version":1,"lane":"…","to":"…"}`, to a lane of the config that has not begun | the same |
//! | `POST /orders/reload` | `{"version":1,"only_plan":false}` | `{"version":1,"outcome":"adopted",…}` ([`ReloadAnswer`]); a config that cannot be used is `"refused"`, with the problems |
//!
//! A few orders are carried out at a time; more are refused at once. Who gave one, by the uid of the peer, is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, SemaphorePermit};

pub use super::lane_orders::{LaneOrderedAnswer, MoveOrder};
pub use super::reload::{ChangeView, LaneChangeView, ReloadAnswer, ReloadOrder};

use super::error::ApiError;
use super::status::LaneStatusView;
use super::{OrdersSource, VERSION};
use crate::journal::{Discarded, LetterUnderWay};
use crate::lane::Resolution;
use crate::lane::replay::{LeftOut, PlannedReplay, Selection};
use crate::limits::{
    ADMIN_FLUSH_MS_MAX, ADMIN_ORDERS_MAX, ADMIN_REPLAY_BODY_BYTES_MAX, LETTERS_PAGE_MAX,
    NOTE_BYTES_MAX,
};

/// An order for one lane.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaneOrder {
    /// [`VERSION`].
    pub version: u32,
    /// The lane.
    pub lane: String,
}

/// What becomes of the batch that a lane holds for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ResolveOrder {
    /// [`VERSION`].
    pub version: u32,
    /// The lane.
    pub lane: String,
    /// The decision.
    pub resolution: ResolutionWord,
}

/// A decision, as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolutionWord {
    /// [`Resolution::Accept`].
    Accept,
    /// [`Resolution::DeadLetter`].
    DeadLetter,
    /// [`Resolution::ResendAsNew`].
    ResendAsNew,
}

/// Wait until everything is upstream.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FlushOrder {
    /// [`VERSION`].
    pub version: u32,
    /// The lane; all of them when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// For how long to wait, in milliseconds; at most [`ADMIN_FLUSH_MS_MAX`].
    pub timeout_ms: u64,
}

/// What a flush came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlushAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// The lanes of which not everything has its outcome.
    pub left: Vec<LaneStatusView>,
}

/// Discard dead letters.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiscardOrder {
    /// [`VERSION`].
    pub version: u32,
    /// Their ids, at most [`LETTERS_PAGE_MAX`].
    pub letters: Vec<i64>,
    /// Why, at most [`NOTE_BYTES_MAX`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What a discard came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscardAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// How many of them were there and are gone.
    pub discarded: u64,
    /// Letters that are left.
    #[serde(default)]
    pub left_out: Vec<LeftOutView>,
}

/// Send dead letters again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplayOrder {
    /// [`VERSION`].
    pub version: u32,
    /// Their lane.
    pub lane: String,
    /// Their ids, at most [`REPLAY_LETTERS_MAX`](crate::limits::REPLAY_LETTERS_MAX).
    pub letters: Vec<i64>,
    /// What the payload of the one letter is replaced by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Say what it would come to, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// A batch of a replay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayBatchView {
    /// Its number, by which its outcome is found; none when it is only planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<i64>,
    /// The identity that it goes out under.
    pub batch: String,
    /// Where its letters were given up: a transform or the sink.
    pub stage: String,
    /// Its letters.
    pub letters: Vec<i64>,
}

/// A letter that an order leaves as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOutView {
    /// The letter.
    pub letter: i64,
    /// Why.
    pub reason: String,
    /// It goes with another order.
    #[serde(default)]
    pub later: bool,
}

impl LeftOutView {
    /// One that a running lane is replaying.
    pub(crate) fn under_way(letter: &LetterUnderWay) -> Self {
        Self { letter: letter.letter, reason: letter.to_string(), later: false }
    }
}

/// What an order for a replay came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayAnswer {
    /// [`VERSION`].
    pub version: u32,
    /// The batches.
    pub batches: Vec<ReplayBatchView>,
    /// Letters that are left out.
    pub left_out: Vec<LeftOutView>,
}

/// The answer to what is simply done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoneAnswer {
    /// [`VERSION`].
    pub version: u32,
}

const DONE: DoneAnswer = DoneAnswer { version: VERSION };

/// What the routes share.
#[derive(Clone)]
pub(super) struct Desk {
    pub(super) agent: OrdersSource,
    places: Arc<Semaphore>,
}

/// Who gives an order: the uid of the process at the other end, where the system tells it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) Option<u32>);

/// Whether an order is being carried out on a connection, which lives on meanwhile.
#[derive(Debug, Clone, Default)]
pub(super) struct UnderWay(Arc<AtomicBool>);

/// It is being carried out until this is dropped: when it is done, or whoever gave it has gone away.
pub(super) struct Working(UnderWay);

impl UnderWay {
    pub(super) fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn begin(self) -> Working {
        self.0.store(true, Ordering::Relaxed);
        Working(self)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

/// An order that is being carried out, one of those that may be at once.
pub(super) struct Place<'a> {
    _permit: SemaphorePermit<'a>,
    _working: Working,
}

impl Desk {
    pub(super) fn place(&self, under_way: UnderWay) -> Result<Place<'_>, ApiError> {
        let permit = self.places.try_acquire().map_err(|_| ApiError::Busy)?;
        Ok(Place { _permit: permit, _working: under_way.begin() })
    }
}

/// The endpoints of orders.
pub(super) fn routes(agent: OrdersSource) -> Router {
    let places = Arc::new(Semaphore::new(ADMIN_ORDERS_MAX));
    Router::new()
        .route("/orders/pause", post(pause))
        .route("/orders/resume", post(resume))
        .route("/orders/resolve", post(resolve))
        .route("/orders/flush", post(flush))
        .route("/orders/discard", post(discard))
        .route("/orders/lane/drop", post(super::lane_orders::drop_lane))
        .route("/orders/lane/move", post(super::lane_orders::move_lane))
        .route("/orders/reload", post(super::reload::reload))
        .route(
            "/orders/replay",
            post(replay).layer(DefaultBodyLimit::max(ADMIN_REPLAY_BODY_BYTES_MAX)),
        )
        .with_state(Desk { agent, places })
}

/// The one field that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

pub(super) fn read<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let unread =
        |error: serde_json::Error| ApiError::BadOrder(format!("the order cannot be read: {error}"));
    let Versioned { version } = serde_json::from_slice(body).map_err(unread)?;
    if version != VERSION {
        let why = format!("the order is of version {version}, this agent takes {VERSION}");
        return Err(ApiError::BadOrder(why));
    }
    serde_json::from_slice(body).map_err(unread)
}

async fn pause(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    body: Bytes,
) -> Result<Json<DoneAnswer>, ApiError> {
    let LaneOrder { lane, .. } = read(&body)?;
    (desk.agent)().pause(&lane)?;
    tracing::info!(lane, uid, "Lane is paused as ordered");
    Ok(Json(DONE))
}

async fn resume(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    body: Bytes,
) -> Result<Json<DoneAnswer>, ApiError> {
    let LaneOrder { lane, .. } = read(&body)?;
    (desk.agent)().resume(&lane)?;
    tracing::info!(lane, uid, "Lane is resumed as ordered");
    Ok(Json(DONE))
}

async fn resolve(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<DoneAnswer>, ApiError> {
    let ResolveOrder { lane, resolution, .. } = read(&body)?;
    let _place = desk.place(under_way)?;
    let decided = match resolution {
        ResolutionWord::Accept => Resolution::Accept,
        ResolutionWord::DeadLetter => Resolution::DeadLetter,
        ResolutionWord::ResendAsNew => Resolution::ResendAsNew,
    };
    (desk.agent)().resolve(&lane, decided).await?;
    tracing::info!(lane, uid, ?resolution, "Lane is resolved as ordered");
    Ok(Json(DONE))
}

async fn flush(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<FlushAnswer>, ApiError> {
    let FlushOrder { lane, timeout_ms, .. } = read(&body)?;
    if timeout_ms > ADMIN_FLUSH_MS_MAX {
        let why = format!("timeout_ms is at most {ADMIN_FLUSH_MS_MAX}");
        return Err(ApiError::BadOrder(why));
    }
    let _place = desk.place(under_way)?;
    tracing::info!(lane, uid, "Flush is ordered");
    let timeout = Duration::from_millis(timeout_ms);
    let left = (desk.agent)().flush(lane.as_deref(), timeout).await?;
    let left = left.iter().map(LaneStatusView::of).collect();
    Ok(Json(FlushAnswer { version: VERSION, left }))
}

async fn discard(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<DiscardAnswer>, ApiError> {
    let DiscardOrder { letters, note, .. } = read(&body)?;
    if letters.len() > LETTERS_PAGE_MAX {
        let why = format!("at most {LETTERS_PAGE_MAX} letters are discarded at once");
        return Err(ApiError::BadOrder(why));
    }
    if note.as_ref().is_some_and(|note| note.len() > NOTE_BYTES_MAX) {
        return Err(ApiError::BadOrder(format!("a note has at most {NOTE_BYTES_MAX} bytes")));
    }
    let _place = desk.place(under_way)?;
    let Discarded { discarded, left } = (desk.agent)().discard(letters, note.clone()).await?;
    let left_out: Vec<_> = left.iter().map(LeftOutView::under_way).collect();
    tracing::info!(
        discarded,
        left_out = left_out.len(),
        uid,
        note,
        "Dead letters are discarded as ordered"
    );
    Ok(Json(DiscardAnswer { version: VERSION, discarded, left_out }))
}

async fn replay(
    State(desk): State<Desk>,
    Extension(Peer(uid)): Extension<Peer>,
    Extension(under_way): Extension<UnderWay>,
    body: Bytes,
) -> Result<Json<ReplayAnswer>, ApiError> {
    let ReplayOrder { lane, letters, payload_base64, dry_run, .. } = read(&body)?;
    let payload = payload_base64.map(|text| STANDARD.decode(text)).transpose();
    let payload =
        payload.map_err(|_| ApiError::BadOrder("payload_base64 is no Base64".to_owned()))?;
    let _place = desk.place(under_way)?;
    let agent = (desk.agent)();
    let is_repair = payload.is_some();
    let selection = Selection { letters, payload };
    let (batches, left_out): (Vec<_>, _) = if dry_run {
        let plan = agent.plan_replay(&lane, selection).await?;
        (plan.batches.iter().map(|planned| batch_view(None, planned)).collect(), plan.left_out)
    } else {
        let done = agent.replay(&lane, selection).await?;
        let sealed = done.sealed.iter();
        (sealed.map(|sealed| batch_view(Some(sealed.id), &sealed.planned)).collect(), done.left_out)
    };
    if !dry_run {
        let (batches, left_out) = (batches.len(), left_out.len());
        tracing::info!(
            lane,
            uid,
            batches,
            left_out,
            is_repair,
            "Dead letters go out again as ordered"
        );
    }
    let left_out = left_out.into_iter().map(|LeftOut { letter, reason, is_for_later }| {
        LeftOutView { letter, reason, later: is_for_later }
    });
    Ok(Json(ReplayAnswer { version: VERSION, batches, left_out: left_out.collect() }))
}

fn batch_view(replay: Option<i64>, planned: &PlannedReplay) -> ReplayBatchView {
    ReplayBatchView {
        replay,
        batch: planned.identity.clone(),
        stage: planned.stage.clone(),
        letters: planned.letters.iter().map(|letter| letter.id).collect(),
    }
}
