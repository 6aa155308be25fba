//! After an I/O error: what is on disk is found out anew instead of being believed.
//!
//! A sync that failed may have thrown away what it could not write, while reads still show it; a later sync succeeds without
//! it. Hence, when a group fails with an I/O error:
//!
//! 1. The old connection says how many frames the WAL had at the last good commit, and is dropped without a checkpoint.
//! 2. The checksum chain up to there is read; if it does not hold, acknowledged commits are damaged.
//! 3. What stands behind it, the failed group, is cut off and the cut synced: its records were refused, so they must not
//!    come back; and what a failed sync left unwritten is never built upon.
//! 4. SQLite opens the files anew, the state is loaded and compared with what was published as durable.
//! 5. Work goes on. When the next group fails too, or one of these steps does, the journal is *held*: it has no connection,
//!    everything is refused at once, and the steps from 2 on are tried again with backoff.
//!
//! Readers keep their connections: what they see ends at the last good commit too.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::appender::SharedError;
use super::checkpoint;
use super::config::Durability;
use super::error::{JournalError, gap};
use super::open::{connect, wal_path};
use super::state::State;
use super::wal::{self, WalCheck};
use super::writer::Writer;
use crate::backoff::{Backoff, Jitter};
use crate::clock::Monotonic;
use crate::error_chain::Chain;
use crate::record::id::Seq;

/// Pauses between two tries to open a held journal.
const HELD_BACKOFF_MS: (u64, u64) = (500, 30_000);

/// What the writer knows of I/O errors since the last commit.
#[derive(Debug)]
pub(super) struct Trouble {
    durability: Durability,
    backoff: Backoff,
    /// Groups and reopenings that failed since the last commit.
    failures: u32,
    /// Good frames of the WAL, when the connection that knew them is gone.
    good_frames: Option<u64>,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    error: SharedError,
    until: Monotonic,
}

impl Trouble {
    pub(super) fn new(durability: Durability) -> Self {
        let (base, max) = HELD_BACKOFF_MS;
        let (base, max) = (Duration::from_millis(base), Duration::from_millis(max));
        let backoff = Backoff::new(base, max, Jitter::None).expect("the constants are in order");
        Self { durability, backoff, failures: 0, good_frames: None, held: None }
    }

    /// A commit came through.
    pub(super) fn is_over(&mut self) {
        self.failures = 0;
    }
}

impl Writer {
    /// Whether a group may be tried. A held journal is opened anew when its pause is over.
    pub(super) fn ready(&mut self) -> Result<(), SharedError> {
        let Some(held) = &self.trouble.held else { return Ok(()) };
        if self.clock.monotonic() < held.until {
            return Err(Arc::clone(&held.error));
        }
        match self.reopen() {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "Journal was opened anew, writing is tried again");
                self.trouble.held = None;
                Ok(())
            }
            Err(error) => {
                self.trouble.failures += 1;
                Err(self.hold(Arc::new(error)))
            }
        }
    }

    /// After a failed group: the state is what the database says, which after an I/O error is found out from the files.
    pub(super) fn recover(&mut self, error: &SharedError) {
        let mut error = Arc::clone(error);
        if !error.is_io() {
            let Some(connection) = &self.connection else { return };
            match State::load(connection, &self.path) {
                Ok(state) => {
                    self.state = state;
                    return;
                }
                Err(unread) => error = Arc::new(unread),
            }
        }
        self.trouble.failures += 1;
        self.drop_connection();
        if self.trouble.failures > 1 {
            self.hold(error);
            return;
        }
        match self.reopen() {
            Ok(()) => tracing::warn!(
                path = %self.path.display(),
                "Journal was opened anew after an I/O error, all acknowledged records are there"
            ),
            Err(error) => {
                self.trouble.failures += 1;
                self.hold(Arc::new(error));
            }
        }
    }

    /// Lets go of the connection and remembers what only it knows. Nothing is written: not even what closing would.
    fn drop_connection(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        match good_frames(&connection) {
            Ok(frames) => self.trouble.good_frames = Some(frames),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "Length of the good WAL is not known, all of its chain is kept");
            }
        }
        if let Err(error) =
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        {
            tracing::debug!(error = %Chain(&error), "Connection may checkpoint when it closes");
        }
    }

    /// Steps 2 to 4.
    fn reopen(&mut self) -> Result<(), JournalError> {
        let wal_path = wal_path(&self.path);
        let file = |doing| {
            let path = wal_path.clone();
            move |source| JournalError::File { path, doing, source }
        };
        let found = wal::check(&wal_path).map_err(file("read"))?;
        match (found, self.trouble.good_frames) {
            (WalCheck::Damaged { frame, commits_behind }, good)
                if good.is_none_or(|good| frame <= good) =>
            {
                return Err(JournalError::WalDamaged { path: wal_path, frame, commits_behind });
            }
            (WalCheck::Good { frames }, Some(good)) if frames < good => {
                let (frame, commits_behind) = (frames + 1, 1);
                return Err(JournalError::WalDamaged { path: wal_path, frame, commits_behind });
            }
            (WalCheck::Empty, Some(good)) if good > 0 => {
                let (frame, commits_behind) = (1, 1);
                return Err(JournalError::WalDamaged { path: wal_path, frame, commits_behind });
            }
            // A new generation of the log had begun: the database holds everything.
            (_, Some(0)) => wal::empty(&wal_path).map_err(file("empty"))?,
            (_, Some(good)) => wal::cut(&wal_path, good).map_err(file("cut the end of"))?,
            (WalCheck::Good { frames }, None) => {
                wal::cut(&wal_path, frames).map_err(file("cut the end of"))?;
            }
            (_, None) => {}
        }
        let connection = connect(&self.path, self.trouble.durability)?;
        let state = State::load(&connection, &self.path)?;
        self.compare(&state)?;
        checkpoint::extend(&wal_path, self.quota.budget.wal_extent)?;
        self.connection = Some(connection);
        self.state = state;
        self.trouble.good_frames = None;
        Ok(())
    }

    /// Every record that was published as durable must be there.
    fn compare(&self, state: &State) -> Result<(), JournalError> {
        for (number, durable) in self.published.durable() {
            let Some(stream) = state.streams.get(&number) else { continue };
            if stream.next_seq <= durable {
                let what = gap(&stream.source, Seq(durable.0));
                return Err(JournalError::Missing { path: self.path.clone(), what });
            }
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, cause: SharedError) -> SharedError {
        self.published.damage.note(&cause);
        let failures = self.trouble.failures;
        let pause = self.trouble.backoff.wait(failures);
        tracing::error!(
            error = %Chain(&*cause),
            failures,
            elapsed_ms = pause.as_millis(),
            "Journal is held, nothing is accepted until its files can be opened anew"
        );
        let path = self.path.clone();
        let error = Arc::new(JournalError::Held { path, failures, source: cause });
        let nanoseconds = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let until = Monotonic(self.clock.monotonic().0.saturating_add(nanoseconds));
        self.trouble.held = Some(Held { error: Arc::clone(&error), until });
        error
    }
}

/// Frames of the WAL up to the last commit, as the connection knows them; reads no file.
fn good_frames(connection: &Connection) -> rusqlite::Result<u64> {
    let frames: i64 = connection.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get(1))?;
    Ok(u64::try_from(frames).unwrap_or(0))
}
