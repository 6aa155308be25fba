//! The records that plugins are tried and measured with.

use super::cases::NOW;
use crate::clock::Timestamp;
use crate::limits::{PLUGIN_TEST_POOL_RECORD_BYTES_MAX, PLUGIN_TEST_RECORDS};
use crate::record::codec::{CodecError, FrameBuffer, FrameReader};
use crate::record::id::{Epoch, Seq};
use crate::record::{HeadersBuffer, RecordView};

/// Records to run: those of the author's cases, over and over.
pub(super) struct Pool {
    records: FrameBuffer,
}

impl Pool {
    /// Made of the records of cases; of one of our own where there is none.
    pub(super) fn new(cases: &[&FrameBuffer]) -> Result<Self, CodecError> {
        let mut own = FrameBuffer::default();
        let payload = br#"{"device":"a","status":"ok","temperature_c":21.5}"#;
        own.push_new(NOW, "test", HeadersBuffer::default().as_headers(), payload);
        let mut models = Vec::new();
        for frames in cases {
            let views = views(frames)?;
            let small = views
                .into_iter()
                .filter(|record| record.size_bytes() <= PLUGIN_TEST_POOL_RECORD_BYTES_MAX);
            models.extend(small);
        }
        if models.is_empty() {
            models = views(&own)?;
        }
        let mut records = FrameBuffer::default();
        for (index, model) in (0..).zip(models.iter().cycle()).take(PLUGIN_TEST_RECORDS) {
            // A millisecond apart, as from a quick sensor.
            let time = Timestamp(model.time.0.saturating_add(index * 1_000_000));
            records.push_new(time, model.subject, model.headers, model.payload);
        }
        Ok(Self { records })
    }

    pub(super) fn views(&self) -> Vec<RecordView<'_>> {
        views(&self.records).unwrap_or_default()
    }
}

/// The records in a buffer, with seqs from 1.
pub(super) fn views(frames: &FrameBuffer) -> Result<Vec<RecordView<'_>>, CodecError> {
    FrameReader::new(frames.bytes(), frames.count(), Epoch::new(1, 1), Seq(1)).collect()
}
