//! Lets the plugin host keep its digests in the journal. The two know nothing of each other.

use std::error::Error;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::journal::Journal;
use crate::plugin::CompiledDigests;

/// The digests of compiled plugins, as the journal has them. Its calls block.
#[derive(Debug)]
pub(super) struct JournalDigests {
    pub(super) journal: Arc<Journal>,
    pub(super) runtime: Handle,
}

impl CompiledDigests for JournalDigests {
    fn get(&self, key: &str) -> Option<[u8; 32]> {
        self.journal.compiled_digest(key).ok().flatten()
    }

    fn put(&self, key: &str, digest: [u8; 32]) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(self.runtime.block_on(self.journal.keep_compiled_digest(key, digest))?)
    }
}
