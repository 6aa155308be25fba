//! Changes to the journal of an agent that is stopped: it is opened here as the agent would.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;

use crate::clock::SystemClock;
use crate::journal::config::JournalConfig;
use crate::journal::{Journal, JournalOptions};
use crate::record::id::{AgentId, Name};

/// Opens the journal, works on it, and closes it, whatever came of the work.
pub(super) fn with_journal<T>(
    directory: PathBuf,
    (config, agent): (JournalConfig, Option<AgentId>),
    work: impl AsyncFnOnce(&Journal) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let host = AgentId(Name::made_to_fit(&rustix::system::uname().nodename().to_string_lossy()));
    let clock = Arc::new(SystemClock);
    let options = JournalOptions { directory, config, agent, host, clock };
    let (journal, _opening) = Journal::open(&options).context("cannot open the journal")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let worked = work(&journal).await;
        let closed = journal.close().await.context("cannot close the journal");
        worked.and_then(|worked| closed.map(|()| worked))
    })
}
