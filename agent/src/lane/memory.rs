//! What a lane's sink remembers over restarts, kept in the journal.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use crate::journal::LaneJournal;
use crate::record::batch::ReadError;
use crate::sinks::Memory;

/// The note of one lane's sink.
#[derive(Debug)]
pub(super) struct LaneMemory {
    lane: LaneJournal,
    note: Mutex<Option<Arc<str>>>,
}

impl LaneMemory {
    pub(super) fn new(lane: LaneJournal, note: Option<String>) -> Self {
        Self { lane, note: Mutex::new(note.map(Arc::from)) }
    }
}

#[async_trait]
impl Memory for LaneMemory {
    fn recall(&self) -> Option<Arc<str>> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn keep(&self, note: Arc<str>, durable: bool) -> Result<(), ReadError> {
        self.lane.keep_note(&note, durable).await?;
        *self.note.lock().unwrap_or_else(PoisonError::into_inner) = Some(note);
        Ok(())
    }
}
