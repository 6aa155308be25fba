//! The journal: where a record is safe. Owns the database in the data directory; nothing else in the agent speaks SQL.
//!
//! # What it promises
//!
//! 1. An append is answered after its commit was synced (`durability = "full"`), never before.
//! 2. Records of a stream are numbered from 1 without a gap, whatever crashes in between.
//! 3. A source's positions become durable with the records that moved them, in the same row under the same checksum.
//! 4. A batch is sealed as a whole: output, plugin state, dead letters and cursor in one transaction, or nothing of it.
//! 5. A chunk is deleted when every lane has passed it, a batch when it is acked; never earlier.
//! 6. A cut of a batch is durable before a half is sent, and the end of a batch and its dead letters are one transaction
//!    (`outcome.rs`). A dead letter that has no room in their store keeps what it belongs to from happening (`letters.rs`).
//!    One that goes out again stays until that has its outcome (`replay.rs`).
//! 7. Nothing of a failed transaction is believed, and nothing queued behind it in the same session is taken. After an I/O
//!    error the files are opened anew from the last good commit; a second one in a row holds the journal (`reopen.rs`).
//!
//! # Tables
//!
//! `schema.rs` has them. Records lie in `chunks` (one row of up to 256 KiB of frames, `chunk.rs`), what lanes made of them in
//! `batches` and `batch_parts`. Nothing changes on every commit but what the commit is about: heads come from the newest
//! chunk (which therefore always stays), positions from the chunks behind the checkpoint in `positions`. Two rings are for people
//! only: `finished` has the newest batches with their outcome (`finished.rs`, `explain.rs`), `dispositions` what somebody decided
//! about dead letters that are gone (`letters.rs`).
//!
//! # Order
//!
//! - write: queue → transaction → COMMIT and sync → answer, head, hot tail (`writer.rs`)
//! - read: hot tail, else a query of a few rows on a read-only connection (`reader.rs`)
//! - seal: parts in ordinary transactions, then the batch row, state, letters and cursor in one (`lanes.rs`)
//! - ack: with whatever commits next, a second later at the latest
//! - look: how much waits for a lane, by the sizes of rows (`waiting.rs`)
//! - delete: in the writer's transactions, at most 64 chunks each (`apply.rs`)
//! - checkpoint: by the writer, behind a commit (`checkpoint.rs`)
//!
//! # Room
//!
//! `max_bytes` counts pages in use, WAL and reserve (`budget.rs`). At the limit, or on a full volume, appends wait, are refused,
//! or have the oldest chunks given up for them (`quota.rs`, `losses.rs`); seals, acks and deletes go on, out of pages above
//! the limit and a ballast file (`ballast.rs`), so that the journal empties with no byte free. Space of a past backlog goes
//! back to the volume when nothing is going on (`shrink.rs`).
//!
//! # Opening
//!
//! | case | what is found | what is done |
//! |---|---|---|
//! | new | no database, or an empty file | it is made |
//! | clean | no frames in the WAL | |
//! | unclean | a good WAL, perhaps with a torn tail | the tail is cut, SQLite recovers the rest; at most one commit that nobody was told about is gone |
//! | gone back | the high-water file knows more | a warning; identities stay unique through the epoch |
//! | WAL damaged | commits behind a broken frame | salvaged: `salvage/` |
//! | database damaged | SQLite cannot read it, or what it reads contradicts itself | salvaged |
//! | database lost | a WAL with commits and no database | salvaged |
//! | wiped | no database, but chunks of ours inside; or nothing but zeros or ones | salvaged |
//! | newer schema | a larger `user_version` | refused, untouched |
//! | foreign file | another application's database, or none | refused, untouched |
//! | locked | another agent holds the directory | refused, names its process |
//! | full disk | the volume has no room to begin | the ballast is given up for it; without one, refused, and the agent waits for room |
//! | full disk, damaged | what is good has no room beside the damaged one | nothing is touched; the agent says what to free, and waits for it |
//! | read-only | SQLite or the directory cannot write | refused |

mod acked;
mod appender;
mod apply;
mod ballast;
mod batches;
mod budget;
mod checkpoint;
mod chunk;
mod claim;
pub mod config;
mod error;
mod explain;
mod finished;
mod gaps;
mod high_water;
mod hold;
pub mod inspect;
mod lane_orders;
mod lanes;
mod letters;
mod losses;
mod mailbox;
mod notes;
mod open;
mod outcome;
mod page_scan;
mod quota;
mod reader;
mod reopen;
mod replay;
mod returns;
mod salvage;
mod schema;
mod shrink;
mod snapshot;
mod soundness;
mod state;
mod waiting;
mod wal;
mod wear;
mod writer;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::tamper;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

pub use appender::{Append, Appender, Pending, Position, SourceLetter};
pub use batches::{LetterClass, Shown, StoredBatch, Variant};
pub use error::{AppendError, ChunkError, Disposition, JournalError};
pub use explain::{
    ExplainedBatch, ExplainedDisposition, ExplainedLoss, ExplainedRecord, Explanation,
};
pub use finished::Finish;
pub use high_water::QuotaMark;
pub use lane_orders::{LaneOrderError, LaneOrdered, LaneTarget};
pub use lanes::{
    LaneJournal, LaneSpec, OpenedLane, PartEncoder, PartPlace, PendingSeal, PluginState, Seal,
    StageLetter, StateChange,
};
pub use letters::{
    Discarded, LetterRecord, LetterUnderWay, LettersCount, LettersRoom, LettersSnapshot,
};
pub use mailbox::{Disposed, Letter, LettersFilter};
pub use open::StartCase;
pub use outcome::{BatchKey, Halves, SinkLetters};
pub use quota::{FullState, Pace, QuotaSnapshot};
pub use reader::cut;
pub use replay::{LetterBatch, Repair, Replay, ReplaySeal};
pub use salvage::{LaneRange, LostRange, SalvageReport, salvage_stopped};
pub use snapshot::{LaneSnapshot, Snapshot, StreamSnapshot};
pub use state::LaneTotals;
pub use waiting::Waiting;
pub use wear::{COMMIT_MICROS_BOUNDS, CommitTimes, Wear};
pub use writer::Head;

use crate::clock::{Monotonic, SharedClock};
use crate::error_chain::Chain;
use crate::record::id::{AgentId, Epoch, SourceId};
use chunk::Encoder;
use config::JournalConfig;
use high_water::{HighWater, Marks};
use letters::DiscardOperation;
use reader::Readers;
use state::State;
use wear::WearMeter;
use writer::{Operation, Published, Writer, WriterHandle};

/// The version of the SQLite library that this binary runs.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// What opening needs to know.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// The data directory.
    pub directory: PathBuf,
    /// `[journal]`.
    pub config: JournalConfig,
    /// `agent.id`, if the config says one.
    pub agent: Option<AgentId>,
    /// The host's name made to fit, for a new journal without a configured id.
    pub host: AgentId,
    /// Time.
    pub clock: SharedClock,
}

/// What opening found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Which case.
    pub case: StartCase,
    /// This run.
    pub epoch: Epoch,
    /// Whose journal it is.
    pub agent: AgentId,
    /// What the salvage did, in the case of one.
    pub salvaged: Option<SalvageReport>,
}

/// An open journal. Dropping it without [`Self::close`] is an unclean stop.
#[derive(Debug)]
pub struct Journal {
    writer: WriterHandle,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    readers: Arc<Readers>,
    published: Arc<Published>,
    clock: SharedClock,
    boot: [u8; 16],
    path: PathBuf,
}

impl Journal {
    /// Opens or makes the journal in a data directory. Blocks.
    ///
    /// # Errors
    /// One for each start-up case that refuses; the files are as they were then.
    pub fn open(options: &JournalOptions) -> Result<(Self, Opening), JournalError> {
        let JournalOptions { directory, config, clock, .. } = options;
        let lock = open::lock_directory(directory)?;
        let path = directory.join(open::DATABASE_NAME);
        let (opened, state, salvaged) = open_or_salvage(options)?;
        let high_water = HighWater::in_directory(directory);
        let marks = high_water.read();
        let case = if salvaged.is_some() {
            StartCase::Salvaged
        } else if Marks::of(&state).are_behind(&marks) {
            StartCase::GoneBack
        } else {
            opened.case
        };
        let published = Arc::new(Published::new(directory));
        let boot = open::boot_id();
        let readers = Arc::new(Readers::new(path.clone(), Arc::clone(&published)));
        let writer = Writer {
            connection: Some(opened.connection),
            path: path.clone(),
            state,
            sessions: HashMap::new(),
            running: HashMap::new(),
            encoder: Encoder::new(),
            epoch: opened.epoch,
            boot,
            clock: Arc::clone(clock),
            published: Arc::clone(&published),
            commit_interval: config.commit_interval,
            trouble: reopen::Trouble::new(config.durability),
            wear: WearMeter::new(marks.wear),
            high_water,
            last_commit: Monotonic(0),
            last_housekeeping: None,
            dirty: true,
            quota: opened.quota,
            letters: letters::LettersQuota {
                bytes_max: config.letters_bytes_max().0,
                on_full: config.letters.on_full,
                ..Default::default()
            },
            readers: Arc::clone(&readers),
            _lock: lock,
        };
        published.snapshot.send_replace(Arc::new(writer.snapshot()));
        writer.publish_room();
        writer.publish_letters();
        let (handle, queue) = writer::queue();
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|source| JournalError::File {
                path: path.clone(),
                doing: "start the writer of",
                source,
            })?;
        let clock = Arc::clone(clock);
        let journal = Self {
            writer: handle,
            thread: Mutex::new(Some(thread)),
            readers,
            published,
            clock,
            boot,
            path,
        };
        let opening = Opening { case, epoch: opened.epoch, agent: opened.agent, salvaged };
        Ok((journal, opening))
    }

    /// The database file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How the journal stands, now and later.
    #[must_use]
    pub fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.published.snapshot.subscribe()
    }

    /// What damage was met since this run began; then a start anew is due, which salvages what is good.
    #[must_use]
    pub fn damage(&self) -> watch::Receiver<Option<String>> {
        self.published.damage.subscribe()
    }

    /// A new appender for a source, whose stream is made when it is new.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed.
    pub async fn appender(&self, source: &SourceId) -> Result<Appender, JournalError> {
        let name = source.clone();
        let opened = self.writer.ask(|reply| Operation::OpenStream { source: name, reply }).await?;
        Ok(Appender {
            writer: self.writer.clone(),
            source: source.clone(),
            stream: opened.number,
            session: opened.session,
            positions: opened.positions,
            clock: Arc::clone(&self.clock),
            admission: self.published.admission.subscribe(),
            path: self.path.clone(),
        })
    }

    /// Opens a lane, which is made when it is new; discards what a run left without a seal.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed.
    pub async fn lane(&self, spec: LaneSpec) -> Result<(LaneJournal, OpenedLane), JournalError> {
        let source = spec.source.clone();
        let runs = Arc::new(());
        let weak = Arc::downgrade(&runs);
        let open = |reply| Operation::OpenLane { spec, runs: weak, reply };
        let opened = self.writer.ask(open).await?;
        let journal = LaneJournal {
            writer: self.writer.clone(),
            readers: Arc::clone(&self.readers),
            number: opened.number,
            session: opened.session,
            _runs: runs,
            stream: opened.stream,
            source,
            head: self.published.head(opened.stream),
            clock: Arc::clone(&self.clock),
            boot: self.boot,
            name: opened.name.clone(),
            pace: self.published.pace.subscribe(),
            letters_room: self.published.letters.subscribe(),
        };
        Ok((journal, opened))
    }

    /// How full the store of dead letters is, now and later.
    #[must_use]
    pub fn letters_room(&self) -> watch::Receiver<LettersRoom> {
        self.published.letters.subscribe()
    }

    /// Deletes dead letters by their ids, durably, and keeps the note and the time in their place. What waits for room in
    /// their store goes on. Those that a running lane is replaying are left; the replay of a lane that does not run is cancelled.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed.
    pub async fn discard_letters(
        &self,
        ids: Vec<i64>,
        note: Option<String>,
    ) -> Result<Discarded, JournalError> {
        let discard = |reply| DiscardOperation { ids, note, reply };
        self.writer.ask(|reply| Operation::DiscardLetters(discard(reply))).await
    }

    /// The digest of a file that our own compiler made, if it made one under this key. Blocks.
    ///
    /// # Errors
    /// When the journal cannot be read.
    pub fn compiled_digest(&self, key: &str) -> Result<Option<[u8; 32]>, JournalError> {
        self.readers.compiled_digest(key)
    }

    /// Keeps such a digest, durably.
    ///
    /// # Errors
    /// When the journal cannot commit or is closed.
    pub async fn keep_compiled_digest(
        &self,
        key: &str,
        sha256: [u8; 32],
    ) -> Result<(), JournalError> {
        let key = key.to_owned();
        self.writer.ask(|reply| Operation::PutCompiled { key, sha256, reply }).await
    }

    /// Waits until the writer has ended, which it does by itself only when it breaks down.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn writer_ended(&self) {
        self.writer.closed().await;
    }

    /// Commits what is queued, checkpoints, and closes the database without a WAL. Appenders and lanes that still exist are
    /// refused from now on.
    ///
    /// # Errors
    /// When the last commit or the checkpoint fails; what was acknowledged is durable all the same.
    pub async fn close(&self) -> Result<(), JournalError> {
        self.readers.close();
        self.published.closing.store(true, std::sync::atomic::Ordering::Relaxed);
        let closed = self.writer.ask(|reply| Operation::Stop { reply }).await;
        let thread = self.thread.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("Journal writer ended in a panic");
            }
        }
        closed
    }
}

/// Opens the database, out of a salvage where it is damaged. A second failure is told: nothing is salvaged twice in a row.
fn open_or_salvage(
    options: &JournalOptions,
) -> Result<(open::OpenedJournal, State, Option<SalvageReport>), JournalError> {
    let JournalOptions { directory, config, agent, host, clock } = options;
    let path = directory.join(open::DATABASE_NAME);
    let mut salvaged = salvage::finish_interrupted(directory)?;
    let open_and_load = || {
        if let Some(what) = gaps::marked(directory) {
            return Err(JournalError::DamageMet { path: path.clone(), what });
        }
        let opened = open::open_database(directory, config, agent.as_ref(), host, &**clock)?;
        let state = State::load(&opened.connection, &path)?;
        Ok((opened, state))
    };
    let (opened, state) = match open_and_load() {
        Err(error) if salvage::can_help(directory, &error)? => {
            salvaged = Some(salvage::salvage(directory, &Chain(&error).to_string(), &**clock)?);
            open_and_load()?
        }
        other => other?,
    };
    Ok((opened, state, salvaged))
}
