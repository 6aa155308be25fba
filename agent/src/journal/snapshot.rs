//! What others see of the journal without asking it: renewed by the writer whenever it has nothing else to do, and once a
//! second under load.

use std::path::Path;

use super::letters::LettersSnapshot;
use super::open::wal_path;
use super::quota::QuotaSnapshot;
use super::state::LaneTotals;
use super::waiting::Needed;
use super::wear::{CommitTimes, Wear};
use super::writer::Writer;
use crate::record::id::{LaneName, LaneNumber, PipelineId, Seq, SinkId, SourceId};

/// A stream as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSnapshot {
    /// Its source.
    pub source: SourceId,
    /// Its newest record.
    pub head: Seq,
}

/// A lane as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSnapshot {
    /// Its number.
    pub number: LaneNumber,
    /// Its name.
    pub name: LaneName,
    /// Its source.
    pub source: SourceId,
    /// Its pipeline.
    pub pipeline: PipelineId,
    /// Its sink.
    pub sink: SinkId,
    /// The records in front of it that were never its own.
    pub start: Seq,
    /// The last record that it sealed.
    pub sealed: Seq,
    /// The last record in front of its oldest batch without an outcome.
    pub acked: Seq,
    /// Input records whose outcome is open: not sealed, or sealed and not acked.
    pub queued: u64,
    /// Batches that are sealed and not acked.
    pub batches: u64,
    /// Outcomes since the lane was made.
    pub totals: LaneTotals,
    /// The rows that it waits with, if it does.
    pub(super) needed: Option<Needed>,
}

/// The journal as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// All streams, by source.
    pub streams: Vec<StreamSnapshot>,
    /// All lanes that were not dropped, by name.
    pub lanes: Vec<LaneSnapshot>,
    /// Commits since the start.
    pub commits: u64,
    /// How long they took.
    pub commit_times: CommitTimes,
    /// What the journal has cost the disk, over all its runs.
    pub wear: Wear,
    /// Bytes of the database file.
    pub database_bytes: u64,
    /// Bytes of the WAL file.
    pub wal_bytes: u64,
    /// How full it is.
    pub quota: QuotaSnapshot,
    /// The store of dead letters.
    pub letters: LettersSnapshot,
}

impl Writer {
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut streams: Vec<_> = self
            .state
            .streams
            .values()
            .map(|s| StreamSnapshot { source: s.source.clone(), head: Seq(s.next_seq.0 - 1) })
            .collect();
        streams.sort_by(|a, b| a.source.cmp(&b.source));
        let mut lanes: Vec<_> = self
            .state
            .lanes
            .iter()
            .filter_map(|(number, lane)| {
                let stream = self.state.streams.get(&lane.stream).filter(|_| !lane.dropped)?;
                let unacked: u64 = lane.unacked.iter().map(|batch| batch.inputs).sum();
                Some(LaneSnapshot {
                    number: *number,
                    name: lane.name.clone(),
                    source: stream.source.clone(),
                    pipeline: lane.pipeline.clone(),
                    sink: lane.sink.clone(),
                    start: lane.start_seq,
                    sealed: lane.sealed_seq,
                    acked: lane.acked(),
                    queued: stream.next_seq.0 - 1 - lane.sealed_seq.0 + unacked,
                    batches: (lane.unacked.len() + lane.replays.len()) as u64,
                    totals: lane.totals,
                    needed: Needed::by(&self.state, *number, lane),
                })
            })
            .collect();
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        Snapshot {
            streams,
            lanes,
            commits: self.wear.commits(),
            commit_times: self.wear.commit_times(),
            wear: self.wear.wear(),
            database_bytes: file_bytes(&self.path),
            wal_bytes: file_bytes(&wal_path(&self.path)),
            quota: self.quota.snapshot(&*self.clock),
            letters: self.letters_snapshot(),
        }
    }
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
