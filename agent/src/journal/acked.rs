//! Acks that cost one page of the WAL.
//!
//! An ack writes the row of its lane. The row of the batch and the ring of finished batches (`finished.rs`) stand on pages of
//! their own, so they are left as they are for a while: the lane's row says which batches are done and how that came, and a
//! fold moves them to the ring together. Whoever reads batches that wait asks [`stored_batches`](super::batches), which leaves
//! out those that are done.
//!
//! In the column `lanes.acked`: number of the batch, index of its [`Finish`], attempts and time, LEB128 each, for each; then
//! CRC-32C over the number of the lane and all of that, little-endian. The checksum is there because nothing else in the row
//! of a lane says of a batch that it need not be sent. What does not prove itself is damage, and a salvage then takes those
//! batches for unacked ones: the destination is asked again, nothing is lost.

use rusqlite::Connection;

use super::batches::{StoredBatch, every_batch};
use super::error::JournalError;
use super::finished::Finish;
use super::outcome::BatchKey;
use super::schema::has_column;
use super::writer::Writer;
use crate::clock::Timestamp;
use crate::limits::ACKED_ROWS_MAX;
use crate::record::codec::{read_varint, write_varint};
use crate::record::id::{BatchNumber, LaneNumber};

/// Bytes of the checksum.
const CRC_BYTES: usize = 4;

/// A batch that is done while its row is still there: a whole one of the lane's order, no half and no replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AckedBatch {
    pub(super) number: BatchNumber,
    pub(super) finish: Finish,
    pub(super) attempts: u32,
    pub(super) at: Timestamp,
}

impl AckedBatch {
    pub(super) fn is(&self, batch: &StoredBatch) -> bool {
        !batch.variant.replay && BatchKey::from(self.number) == batch.into()
    }
}

/// What a lane's row holds of them.
pub(super) fn to_bytes(lane: LaneNumber, acked: &[AckedBatch]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for batch in acked {
        write_varint(&mut bytes, batch.number.0);
        write_varint(&mut bytes, batch.finish.index());
        write_varint(&mut bytes, batch.attempts.into());
        write_varint(&mut bytes, batch.at.0.cast_unsigned());
    }
    if !bytes.is_empty() {
        let checksum = checksum(lane, &bytes);
        bytes.extend_from_slice(&checksum);
    }
    bytes
}

/// Takes them apart again; `None` when the bytes are not what was written.
pub(super) fn from_bytes(lane: LaneNumber, bytes: &[u8]) -> Option<Vec<AckedBatch>> {
    let mut acked = Vec::new();
    if bytes.is_empty() {
        return Some(acked);
    }
    let (mut rest, proof) = bytes.split_at_checked(bytes.len().checked_sub(CRC_BYTES)?)?;
    if checksum(lane, rest) != proof {
        return None;
    }
    while !rest.is_empty() {
        acked.push(AckedBatch {
            number: BatchNumber(read_varint(&mut rest)?),
            finish: Finish::of_index(read_varint(&mut rest)?)?,
            attempts: u32::try_from(read_varint(&mut rest)?).ok()?,
            at: Timestamp(read_varint(&mut rest)?.cast_signed()),
        });
    }
    Some(acked)
}

fn checksum(lane: LaneNumber, bytes: &[u8]) -> [u8; CRC_BYTES] {
    crc32c::crc32c_append(crc32c::crc32c(&lane.0.to_be_bytes()), bytes).to_le_bytes()
}

/// The list of a lane is not what was written.
#[derive(Debug, thiserror::Error)]
#[error("the list of acked batches of lane number {0} does not have its checksum")]
struct NotAsWritten(LaneNumber);

/// The batches of a lane that are done while their rows are there. A journal that is only looked into may be older than that.
pub(super) fn acked_batches(
    connection: &Connection,
    lane: LaneNumber,
) -> rusqlite::Result<Vec<AckedBatch>> {
    if !has_column(connection, "lanes", "acked")? {
        return Ok(Vec::new());
    }
    let query = "SELECT acked FROM lanes WHERE number = ?1";
    let bytes: Option<Vec<u8>> = super::state::value(connection, query, [lane.0])?;
    from_bytes(lane, &bytes.unwrap_or_default()).ok_or_else(|| {
        let kind = rusqlite::types::Type::Blob;
        rusqlite::Error::FromSqlConversionFailure(0, kind, Box::new(NotAsWritten(lane)))
    })
}

impl Writer {
    /// Leaves the row of a batch that is done for the next fold. The lane's row is written behind it.
    pub(super) fn keep_acked(
        &mut self,
        transaction: &Connection,
        number: LaneNumber,
        acked: AckedBatch,
    ) -> Result<(), JournalError> {
        let Some(lane) = self.state.lanes.get_mut(&number) else { return Ok(()) };
        lane.acked.push(acked);
        if lane.acked.len() < ACKED_ROWS_MAX {
            return Ok(());
        }
        let acked = std::mem::take(&mut lane.acked);
        let batches = every_batch(transaction, number)
            .map_err(|source| JournalError::sqlite(&self.path, "reading batches", source))?;
        for (batch, _) in batches {
            let Some(done) = acked.iter().find(|done| done.is(&batch)) else { continue };
            let row = batch.finished(done.finish, done.attempts);
            self.remember_finished(transaction, number, &row, done.at)?;
            self.delete_batch(transaction, number, &done.number.into())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked() -> Vec<AckedBatch> {
        let batch = |number, finish, attempts| AckedBatch {
            number: BatchNumber(number),
            finish,
            attempts,
            at: Timestamp(1_796_000_000_123),
        };
        vec![
            batch(7, Finish::Delivered, 1),
            batch(8, Finish::Already, u32::MAX),
            batch(1 << 36, Finish::Accepted, 0),
        ]
    }

    #[test]
    fn what_a_lane_says_of_its_acked_batches_comes_back_as_it_was() {
        let lane = LaneNumber(3);
        let bytes = to_bytes(lane, &acked());
        assert_eq!(from_bytes(lane, &bytes), Some(acked()));
        assert_eq!(to_bytes(lane, &[]), b"");
        assert_eq!(from_bytes(lane, b""), Some(Vec::new()));
    }

    #[test]
    fn no_flipped_bit_cut_or_row_of_another_lane_hides_a_batch() {
        let lane = LaneNumber(3);
        let bytes = to_bytes(lane, &acked());
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(from_bytes(lane, &flipped), None, "bit {bit}");
        }
        for length in 1..bytes.len() {
            assert_eq!(from_bytes(lane, &bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(from_bytes(LaneNumber(4), &bytes), None);
    }
}
