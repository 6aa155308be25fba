//! What a sink is given: the facts of a sealed batch, and its content block by block.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::RecordView;
use super::codec::{CodecError, FrameReader};
use super::id::{AgentId, BatchNumber, Epoch, LaneName, PipelineId, Seq, SinkId, SourceId};
use crate::clock::Timestamp;

/// Frames in memory, decompressed, of which some are meant.
#[derive(Debug, Clone)]
pub struct FrameBlock {
    /// The epoch of the records, unless a frame says otherwise.
    pub epoch: Epoch,
    /// The seq of the first frame, unless it says otherwise.
    pub first_seq: Seq,
    /// Frames in `bytes`.
    pub count: u32,
    /// Leading frames that are not meant.
    pub skip: u32,
    /// Frames that are meant, after those.
    pub take: u32,
    /// The frames.
    pub bytes: Bytes,
}

impl FrameBlock {
    /// The records that are meant.
    pub fn records(&self) -> impl Iterator<Item = Result<RecordView<'_>, CodecError>> {
        FrameReader::new(&self.bytes, self.count, self.epoch, self.first_seq)
            .skip(self.skip as usize)
            .take(self.take as usize)
    }
}

/// Why the content of a batch cannot be read. Says which batch or chunk, and why.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// Reads a batch from front to back, once. Blocks: not for async threads.
pub trait BlockReader: Send {
    /// The next block, or `None` at the end.
    ///
    /// # Errors
    /// When the journal cannot be read or does not hold what was sealed.
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError>;
}

/// The content of a sealed batch. Can be read any number of times.
pub trait BatchContent: Send + Sync + fmt::Debug {
    /// Starts reading at the front.
    fn open(&self) -> Box<dyn BlockReader>;
}

/// Content that is in memory as a whole: small, and made by hand.
#[derive(Debug, Clone)]
pub struct BlocksInMemory(pub Vec<FrameBlock>);

impl BatchContent for BlocksInMemory {
    fn open(&self) -> Box<dyn BlockReader> {
        Box::new(Self(self.0.iter().rev().cloned().collect()))
    }
}

/// From the last to the first.
impl BlockReader for BlocksInMemory {
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError> {
        Ok(self.0.pop())
    }
}

/// Names of the parts that make a lane, and the lane's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanePlace {
    /// The lane's name, which may be older than the names of its parts.
    pub lane: LaneName,
    /// The agent.
    pub agent: AgentId,
    /// The source.
    pub source: SourceId,
    /// The pipeline.
    pub pipeline: PipelineId,
    /// The sink.
    pub sink: SinkId,
}

/// What is known of a batch when it is sealed; names and identities are made from nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchFacts {
    /// Where it belongs.
    pub place: Arc<LanePlace>,
    /// The run that sealed it.
    pub epoch: Epoch,
    /// Its number in the lane.
    pub number: BatchNumber,
    /// First seq of its range.
    pub first_seq: Seq,
    /// Last seq of its range.
    pub last_seq: Seq,
    /// When it was sealed, by the lane's steady time.
    pub sealed_at: Timestamp,
    /// Output records.
    pub records: u64,
    /// The keys that the sink takes the batch apart by, in the order of their first records; empty when it does not, and when
    /// the batch is delivered, as the sink has fixed what it made of them.
    pub partitions: Vec<String>,
    /// What stands behind the number: `.0` or `.1` for each cut, `/rN` for a replay; empty for a batch as it was sealed.
    pub suffix: Arc<str>,
}

impl BatchFacts {
    /// The batch identity, `LANE/EPOCH/bBATCH` and the suffix.
    #[must_use]
    pub fn identity(&self) -> String {
        format!("{}/{}/b{}{}", self.place.lane, self.epoch, self.number, self.suffix)
    }
}

/// A sealed batch on its way out.
#[derive(Debug, Clone)]
pub struct SealedBatch {
    /// What is known of it.
    pub facts: BatchFacts,
    /// What the sink fixed for it when it was sealed, as the sink wrote it.
    pub fixed: Arc<str>,
    /// SHA-256 over the output, see [`ContentHash`].
    pub sha256: [u8; 32],
    /// Whether it was sealed before the lane's session began: it may have been sent already, and nobody knows how far.
    pub earlier: bool,
    /// What the sink had noted, with [`Memory`](crate::sinks::Memory), when it gave these records up: they may have been sent as
    /// long ago. None where what it notes now counts.
    pub note: Option<Arc<str>>,
    /// Its records.
    pub content: Arc<dyn BatchContent>,
}

/// The hash of a batch's output: SHA-256 over each record's identity within the lane, time, subject, headers and payload.
///
/// The same records give the same hash however they are cut into blocks.
#[derive(Debug, Clone, Default)]
pub struct ContentHash {
    sha: sha2::Sha256,
    head: Vec<u8>,
}

impl ContentHash {
    /// Takes in the next record.
    pub fn update(&mut self, record: &RecordView<'_>) {
        use sha2::Digest as _;

        let head = &mut self.head;
        head.clear();
        head.extend_from_slice(&record.epoch.to_bytes());
        head.extend_from_slice(&record.seq.0.to_le_bytes());
        head.extend_from_slice(&record.origin.tick.unwrap_or(0).to_le_bytes());
        head.extend_from_slice(&record.time.0.to_le_bytes());
        if record.origin.repair > 0 {
            // No part is that long.
            head.extend_from_slice(&u64::MAX.to_le_bytes());
            head.extend_from_slice(&record.origin.repair.to_le_bytes());
        }
        for part in [record.origin.path.0, record.subject.as_bytes(), record.headers.0] {
            head.extend_from_slice(&(part.len() as u64).to_le_bytes());
            head.extend_from_slice(part);
        }
        head.extend_from_slice(&(record.payload.len() as u64).to_le_bytes());
        self.sha.update(&*head);
        self.sha.update(record.payload);
    }

    /// The hash of all records so far.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        use sha2::Digest as _;

        self.sha.finalize().into()
    }
}
