//! The high-water file: a hint beside the database of how far streams and lanes had come.
//!
//! Written at most once a second, when something changed, and not synced. A journal that knows less than it was taken back
//! in time (a restored backup, a cloned card); identities stay unique all the same, because every start draws an epoch.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::quota::QuotaSnapshot;
use super::state::State;
use super::wear::Wear;

const FILE_NAME: &str = "high-water.json";

/// What the file holds.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Marks {
    /// Head of each stream, by source.
    pub(super) streams: BTreeMap<String, u64>,
    /// Cursors of each lane, by name: sealed seq and next batch.
    pub(super) lanes: BTreeMap<String, (u64, u64)>,
    /// The last seq of each lane in front of its oldest unacked batch.
    pub(super) acked: BTreeMap<String, u64>,
    /// What the journal has cost the disk.
    pub(super) wear: Wear,
    /// How full it was.
    pub(super) quota: QuotaMark,
}

/// How full the journal was, for whoever looks into it without the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QuotaMark {
    /// What the journal takes on disk: pages in use, WAL and reserve.
    pub used_bytes: u64,
    /// `max_bytes`, or the volume's size where that is less.
    pub limit_bytes: u64,
    /// `on_full`.
    pub on_full: String,
}

impl Marks {
    pub(super) fn of(state: &State) -> Self {
        let streams = state.streams.values();
        let lanes = || state.lanes.values().filter(|lane| !lane.dropped);
        Self {
            streams: streams.map(|s| (s.source.to_string(), s.next_seq.0 - 1)).collect(),
            lanes: lanes()
                .map(|lane| (lane.name.to_string(), (lane.sealed_seq.0, lane.next_batch.0)))
                .collect(),
            acked: lanes().map(|lane| (lane.name.to_string(), lane.acked().0)).collect(),
            ..Self::default()
        }
    }

    pub(super) fn with(self, wear: Wear, quota: &QuotaSnapshot) -> Self {
        let on_full = quota.on_full.as_str().to_owned();
        let QuotaSnapshot { used_bytes, limit_bytes, .. } = *quota;
        Self { wear, quota: QuotaMark { used_bytes, limit_bytes, on_full }, ..self }
    }

    /// Whether these say less than `later` about any stream that both know.
    pub(super) fn are_behind(&self, later: &Self) -> bool {
        later.streams.iter().any(|(source, head)| self.streams.get(source).unwrap_or(&0) < head)
    }
}

/// Keeps the file.
#[derive(Debug)]
pub(super) struct HighWater {
    path: PathBuf,
}

impl HighWater {
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { path: directory.join(FILE_NAME) }
    }

    /// What the last run left; nothing when the file is missing or makes no sense: it is a hint.
    pub(super) fn read(&self) -> Marks {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Writes through a temporary name, so that the file is whole or the old one. A failure costs the hint only.
    pub(super) fn write(&self, marks: &Marks) {
        let temporary = self.path.with_extension("json.new");
        let text = serde_json::to_string(marks).unwrap_or_default();
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &self.path));
        if let Err(error) = written {
            tracing::debug!(error = %error, "High-water file cannot be written");
        }
    }
}
