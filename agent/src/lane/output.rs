//! What a run makes: counted, hashed, and stored in parts as it comes, so that memory is bounded by a part.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::error::LaneError;
use crate::journal::{LaneJournal, PartEncoder, PartPlace};
use crate::limits::{BATCH_PARTS_MAX, CHUNK_BYTES_MAX, PARTITIONS_MAX};
use crate::record::RecordView;
use crate::record::batch::ContentHash;
use crate::record::codec::FrameBuffer;
use crate::record::id::{BatchNumber, Epoch, Seq};
use crate::record::partition::{PartitionBy, Partitions};

/// The output of one run. Lives on the lane's blocking thread.
pub(super) struct Output {
    journal: LaneJournal,
    runtime: Handle,
    encoder: PartEncoder,
    frames: FrameBuffer,
    place: PartPlace,
    hash: ContentHash,
    records: u64,
    /// Payloads, headers and subjects of the records.
    content_bytes: u64,
    /// Bytes that the output may still have.
    bytes_left: usize,
    /// Input records that have an output: their seqs ascend, so each change is one.
    inputs: Vec<Seq>,
    stored_bytes: u64,
    /// What the sink takes the batch apart by.
    partitions: Option<Partitions>,
    /// Most keys of the batch.
    partitions_max: usize,
}

/// What the output came to.
pub(super) struct Made {
    pub(super) records: u64,
    /// Payloads, headers and subjects of the records.
    pub(super) content_bytes: u64,
    pub(super) parts: u64,
    pub(super) sha256: [u8; 32],
    pub(super) inputs: Vec<Seq>,
    /// What the parts take of the journal.
    pub(super) stored_bytes: u64,
    /// The keys that the sink takes the batch apart by.
    pub(super) partitions: Vec<String>,
}

impl Output {
    pub(super) fn new(
        journal: LaneJournal,
        runtime: Handle,
        partition_by: Option<Arc<PartitionBy>>,
    ) -> Self {
        let place = PartPlace {
            batch: BatchNumber(0),
            epoch: Epoch::default(),
            part: 0,
            first_seq: Seq(0),
        };
        Self {
            journal,
            runtime,
            encoder: PartEncoder::default(),
            frames: FrameBuffer::with_capacity(CHUNK_BYTES_MAX),
            place,
            hash: ContentHash::default(),
            records: 0,
            content_bytes: 0,
            bytes_left: 0,
            inputs: Vec::new(),
            stored_bytes: 0,
            partitions: partition_by.map(Partitions::new),
            partitions_max: PARTITIONS_MAX,
        }
    }

    /// A batch of a single input has as many files as that makes: it cannot be cut shorter.
    pub(super) fn of_single_input(&mut self, is_single: bool) {
        self.partitions_max = if is_single { usize::MAX } else { PARTITIONS_MAX };
    }

    /// Begins a batch.
    pub(super) fn begin(&mut self, batch: BatchNumber, epoch: Epoch, first_seq: Seq) {
        self.place = PartPlace { batch, epoch, part: 0, first_seq };
        self.forget();
    }

    /// Begins the same batch anew, with this much room.
    pub(super) fn restart(&mut self, bytes_max: usize) -> Result<(), LaneError> {
        if self.place.part > 0 {
            self.runtime.block_on(self.journal.discard_parts())?;
            self.place.part = 0;
        }
        self.forget();
        self.bytes_left = bytes_max;
        Ok(())
    }

    fn forget(&mut self) {
        self.frames.clear();
        self.hash = ContentHash::default();
        self.records = 0;
        self.content_bytes = 0;
        self.inputs.clear();
        self.stored_bytes = 0;
        if let Some(partitions) = &mut self.partitions {
            partitions.clear();
        }
    }

    /// Takes in the next record.
    pub(super) fn push(&mut self, record: &RecordView<'_>) -> Result<(), LaneError> {
        let bytes = record.size_bytes();
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(LaneError::OutputTooLarge)?;
        let fits = self.frames.len() + bytes <= CHUNK_BYTES_MAX;
        if !fits && !self.frames.is_empty() {
            self.store_part()?;
        }
        self.frames.push(record);
        self.count(record)
    }

    /// Takes in a record that the range itself keeps.
    pub(super) fn count(&mut self, record: &RecordView<'_>) -> Result<(), LaneError> {
        if let Some(partitions) = &mut self.partitions
            && !partitions.note(record, self.partitions_max)
        {
            return Err(LaneError::TooManyPartitions { seq: record.seq });
        }
        self.hash.update(record);
        self.records += 1;
        let bytes = record.payload.len() + record.headers.as_bytes().len() + record.subject.len();
        self.content_bytes += bytes as u64;
        if self.inputs.last() != Some(&record.seq) {
            self.inputs.push(record.seq);
        }
        Ok(())
    }

    /// Stores what is left.
    pub(super) fn finish(&mut self) -> Result<Made, LaneError> {
        if !self.frames.is_empty() {
            self.store_part()?;
        }
        Ok(Made {
            records: self.records,
            content_bytes: self.content_bytes,
            parts: self.place.part,
            sha256: std::mem::take(&mut self.hash).finish(),
            inputs: std::mem::take(&mut self.inputs),
            stored_bytes: self.stored_bytes,
            partitions: self.partitions.as_mut().map(Partitions::take).unwrap_or_default(),
        })
    }

    fn store_part(&mut self) -> Result<(), LaneError> {
        if self.place.part == BATCH_PARTS_MAX {
            return Err(LaneError::OutputTooLarge);
        }
        let (count, frames) = (self.frames.count(), self.frames.bytes());
        let stored = self.journal.store_part(&mut self.encoder, self.place, count, frames);
        self.stored_bytes += self.runtime.block_on(stored)?;
        self.place.part += 1;
        self.frames.clear();
        Ok(())
    }
}
