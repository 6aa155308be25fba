//! The writer's side of `max_bytes` and of a full volume: who is let in, who waits, and what others are told.
//!
//! 1. At the beginning of a transaction the pages in use, the WAL and the volume are looked at (`budget.rs`).
//! 2. Appends are let in, oldest first, as long as they fit below the limit and on the volume. What does not fit waits here
//!    (`block`), is refused (`reject`), or has the oldest chunks dropped for it (`drop_oldest`, `losses.rs`). Their order is
//!    kept: behind one that waits, all wait.
//! 3. Seals, acks, dead letters and deletes are always let in: pages above the limit and the ballast are theirs. When the
//!    volume is what keeps appends out, the ballast goes into the database for them (`claim.rs`); where it became short from
//!    one moment to the next, the ballast is given up before they begin.
//! 4. While the journal is full, lanes seal one small batch at a time ([`Pace`]), so that the ballast is enough for all.
//! 5. When there is room again, the ballast is made anew, and appends go on without anybody's doing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::appender::SourceLetter;
use super::ballast::Ballast;
use super::budget::{Budget, PAGE, Room, Usage, measure, row_bytes, small_bytes};
use super::checkpoint::{Checkpointer, holders, listed};
use super::config::{Durability, JournalConfig, OnFull};
use super::error::JournalError;
use super::shrink::Shrinking;
use super::writer::{AppendOperation, Operation, Session, Writer};
use crate::clock::{Clock, Monotonic, Timestamp};
use crate::limits::{CHUNK_BYTES_MAX, REPLAYS_MAX};
use crate::record::id::{LaneNumber, Seq, StreamNumber};
use crate::units::{ByteSize, human_bytes};

/// How often a full journal looks for room that others have made.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What lanes may do ahead of their deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// The journal is full: one batch at a time, and no lingering.
    pub tight: bool,
    /// Most input bytes of one batch.
    pub batch_bytes_max: u64,
    /// Stored bytes of batches sealed ahead, behind which none is begun.
    pub ahead_bytes_max: u64,
    /// Most replays of one order: their outcomes are looked for when all of them are over.
    pub replays_max: u64,
}

impl Default for Pace {
    fn default() -> Self {
        let max = u64::MAX;
        Self { tight: false, batch_bytes_max: max, ahead_bytes_max: max, replays_max: max }
    }
}

/// Why the journal takes no more records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullState {
    /// For people.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
}

/// How full the journal is, for status and metrics. Counters are since this run began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaSnapshot {
    /// What the journal takes on disk: pages in use, WAL and reserve.
    pub used_bytes: u64,
    /// `max_bytes`, or the volume's size where that is less.
    pub limit_bytes: u64,
    /// What lies ready for deliveries when the volume is full.
    pub ballast_bytes: u64,
    /// `on_full`.
    pub on_full: OnFull,
    /// The journal is full.
    pub full: Option<FullState>,
    /// Appends that wait for room.
    pub appends_waiting: u64,
    /// Appends that were refused.
    pub appends_refused: u64,
    /// Records dropped to make room.
    pub dropped_full: u64,
    /// Records dropped for their age.
    pub dropped_aged: u64,
    /// For how long a foreign reader has kept the WAL from being emptied.
    pub checkpoint_blocked: Duration,
    /// For how long a foreign process has kept the writer from writing.
    pub write_blocked: Duration,
    /// The wall time of this snapshot.
    pub at: Timestamp,
}

impl QuotaSnapshot {
    /// What is in the journal's way, worst first: a word, a sentence, and since when.
    #[must_use]
    pub fn trouble(&self) -> Option<(&'static str, String, Timestamp)> {
        let begun = |ago: Duration| {
            Timestamp(self.at.0.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX)))
        };
        if !self.write_blocked.is_zero() {
            let reason = "another process keeps the database locked; sources and lanes wait";
            return Some(("locked", reason.to_owned(), begun(self.write_blocked)));
        }
        if let Some(full) = &self.full {
            return Some(("full", full.reason.clone(), full.since));
        }
        if !self.checkpoint_blocked.is_zero() {
            let reason = "another process reads the database in one long transaction; the WAL grows meanwhile";
            return Some(("reader", reason.to_owned(), begun(self.checkpoint_blocked)));
        }
        None
    }
}

/// What appenders are told.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission {
    /// The journal is full, and why.
    pub(super) full: Option<Arc<str>>,
    /// New appends are refused meanwhile.
    pub(super) refuses: bool,
}

/// What a transaction gives up.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    /// Lanes that are moved, and the last record that each will not see.
    pub(super) moved: Vec<(LaneNumber, Seq)>,
    pub(super) full: u64,
    pub(super) aged: u64,
    /// Dead letters that made room, and that were discarded.
    pub(super) letters: u64,
    pub(super) discarded: u64,
}

/// Everything that the writer knows about room.
#[derive(Debug)]
pub(super) struct Quota {
    pub(super) budget: Budget,
    pub(super) on_full: OnFull,
    pub(super) max_age: Option<Duration>,
    pub(super) ballast: Ballast,
    /// When the ballast's room went into the database, as far as it could; it was not made again since.
    pub(super) claimed: Option<Monotonic>,
    /// Rows that took the room for the database are still to be deleted.
    pub(super) rows_left: bool,
    pub(super) checkpointer: Checkpointer,
    /// Appends that wait, in their order; what they hold of the queue's room bounds them.
    pub(super) waiting: VecDeque<AppendOperation>,
    pub(super) full: Option<FullState>,
    pub(super) usage: Usage,
    /// `max_page_count`, as it was worked out when the journal was opened.
    pub(super) pages_max: u64,
    /// Bytes that parts may still take in this transaction.
    pub(super) parts_left: u64,
    /// There may be room for those that wait.
    pub(super) look_again: bool,
    /// The first that waits brings a dead letter that has no room.
    pub(super) letters_block: bool,
    pub(super) last_look: Option<Monotonic>,
    pub(super) last_expiry: Option<Monotonic>,
    /// Something is over `max_age`, and goes with the next transaction.
    pub(super) expires: bool,
    /// The least that wall time was ahead of monotonic time in this run: a step forward makes nothing older.
    pub(super) wall_ahead_min: Option<i64>,
    pub(super) refused: u64,
    /// What this transaction gives up: told when it is committed, forgotten when it fails.
    pub(super) giving_up: GivenUp,
    pub(super) dropped_full: u64,
    pub(super) dropped_aged: u64,
    pub(super) write_blocked_since: Option<Monotonic>,
    /// For a connection that is made anew.
    pub(super) durability: Durability,
    pub(super) shrinking: Shrinking,
}

impl Quota {
    pub(super) fn new(
        config: &JournalConfig,
        budget: Budget,
        ballast: Ballast,
        checkpointer: Checkpointer,
    ) -> Self {
        Self {
            budget,
            on_full: config.on_full,
            max_age: config.max_age,
            ballast,
            claimed: None,
            rows_left: false,
            checkpointer,
            waiting: VecDeque::new(),
            full: None,
            usage: Usage::default(),
            pages_max: u64::MAX,
            parts_left: u64::MAX,
            look_again: false,
            letters_block: false,
            last_look: None,
            last_expiry: None,
            expires: false,
            wall_ahead_min: None,
            refused: 0,
            giving_up: GivenUp::default(),
            dropped_full: 0,
            dropped_aged: 0,
            write_blocked_since: None,
            durability: config.durability,
            shrinking: Shrinking::default(),
        }
    }

    /// Whether a transaction is due though nobody asked for one.
    pub(super) fn has_work(&self) -> bool {
        self.look_again && !self.waiting.is_empty()
    }

    fn room(&self) -> Room {
        self.budget.room(self.usage, self.ballast.lacking())
    }

    /// What the volume has for a longer database, in pages. Between a commit and its checkpoint somebody else may take that, and
    /// what then stands in the WAL, and can never be moved out of it, stops everything. The ballast makes it good. Without the
    /// ballast only as much counts as appends are let in for: nobody takes that from one moment to the next, as a rule.
    fn spare_pages(&self) -> u64 {
        let kept = match self.ballast.lacking() {
            0 => 0,
            lacking => lacking + self.budget.ballast / 2,
        };
        self.room().spare.saturating_sub(kept) / PAGE
    }

    /// Pages by which the database may become longer: below `max_page_count`, and where the file or the volume has room.
    fn growth_pages(&self) -> u64 {
        let in_file = (self.usage.database_file / PAGE).saturating_sub(self.usage.pages);
        self.pages_max.saturating_sub(self.usage.pages).min(in_file + self.spare_pages())
    }

    /// What `max_page_count` is to be: without the ballast no page for which there is no room.
    fn bound_pages(&self) -> u64 {
        if self.ballast.lacking() == 0 || self.spare_pages() > 0 {
            return self.pages_max;
        }
        self.usage.pages + self.growth_pages()
    }

    /// What parts may take.
    fn parts_room(&self) -> u64 {
        (self.growth_pages() + self.usage.pages_free) * PAGE
    }

    /// Whether it is the volume that keeps appends out, or what is committed has no room on it.
    pub(super) fn is_volume_short(&self) -> bool {
        let room = self.room();
        room.lacking > 0
            || self.full.is_some() && room.volume < room.quota.min(self.budget.resume_at())
    }

    /// `letters`: why dead letters have no room, if they have none.
    fn admission(&self, letters: Option<Arc<str>>) -> Admission {
        let full: Option<Arc<str>> = self.full.as_ref().map(|full| Arc::from(full.reason.as_str()));
        let refuses = full.is_some() && self.on_full == OnFull::Reject;
        Admission { full: full.or(letters.filter(|_| self.letters_block)), refuses }
    }

    pub(super) fn pace(&self, lanes: usize) -> Pace {
        let eighth = (self.budget.limit / 8).max(CHUNK_BYTES_MAX as u64);
        // Other lanes have orders meanwhile.
        let replays_max = super::letters::ring_rows(REPLAYS_MAX, self.budget.limit) / 4;
        if self.full.is_some() {
            // Each lane may keep one such batch for as long as its destination is away.
            let lanes = lanes.max(1) as u64;
            let batch_bytes_max = self.budget.ballast / 4 / lanes;
            Pace { tight: true, batch_bytes_max, ahead_bytes_max: 0, replays_max }
        } else {
            Pace { tight: false, batch_bytes_max: eighth, ahead_bytes_max: eighth, replays_max }
        }
    }

    pub(super) fn snapshot(&self, clock: &dyn Clock) -> QuotaSnapshot {
        let now = clock.monotonic();
        let ballast_bytes = self.ballast.held();
        QuotaSnapshot {
            used_bytes: self.budget.used(self.usage, ballast_bytes),
            limit_bytes: self.budget.limit,
            ballast_bytes,
            on_full: self.on_full,
            full: self.full.clone(),
            appends_waiting: self.waiting.len() as u64,
            appends_refused: self.refused,
            dropped_full: self.dropped_full,
            dropped_aged: self.dropped_aged,
            checkpoint_blocked: self.checkpointer.blocked(now).unwrap_or_default(),
            write_blocked: self.write_blocked_since.map(|s| now.since(s)).unwrap_or_default(),
            at: clock.now(),
        }
    }
}

/// What one transaction still lets in.
#[derive(Default)]
struct Gate {
    left: u64,
    taken: u64,
    /// What waits now waits for another transaction.
    closed: bool,
    /// Bytes of the frames and of the positions of the chunk that each stream is building.
    building: BTreeMap<StreamNumber, (usize, usize)>,
}

impl Gate {
    /// What one append takes of the database, at most, and what its stream's chunk holds then. The appends of a stream go
    /// into one chunk as long as it has room, as `apply.rs` does it: each for itself would be counted as many pages.
    fn cost(&self, append: &AppendOperation) -> (u64, (usize, usize)) {
        let frames = append.append.frames.len();
        let positions = append.append.positions.iter();
        let positions = positions.map(|p| p.key.len() + p.value.as_ref().map_or(0, Vec::len));
        let positions: usize = positions.sum();
        let before = self.building.get(&append.stream).copied();
        let before = before.filter(|(held, _)| held + frames <= CHUNK_BYTES_MAX);
        let (held, moved) = before.unwrap_or_default();
        let chunk = (held + frames, moved + positions);
        let without = before.map_or(0, |_| row_bytes(held + moved));
        let letters = usize::try_from(letters_bytes(append)).unwrap_or(usize::MAX / 2);
        let letters = if letters == 0 { 0 } else { row_bytes(letters) };
        (row_bytes(chunk.0 + chunk.1) - without + letters, chunk)
    }
}

/// Sets `max_page_count` of this connection.
pub(super) fn set_pages_max(connection: &Connection, pages: u64) -> rusqlite::Result<()> {
    let pragma = format!("PRAGMA max_page_count = {pages}");
    connection.prepare_cached(&pragma)?.query_row([], |_| Ok(()))
}

/// What one append takes of the database by itself, at most.
fn append_bytes(append: &AppendOperation) -> u64 {
    Gate::default().cost(append).0
}

/// What the dead letters of one append take of their store.
fn letters_bytes(append: &AppendOperation) -> u64 {
    append.append.letters.iter().map(SourceLetter::stored_bytes).sum()
}

impl Writer {
    /// Lets appends in and puts the others aside; sees to it that the volume has room for the rest.
    pub(super) fn admit(
        &mut self,
        transaction: &Connection,
        operations: &mut VecDeque<Operation>,
    ) -> Result<(), JournalError> {
        self.measure(transaction)?;
        let parts = operations.iter().map(|operation| match operation {
            Operation::Part(part) => row_bytes(part.row.len()),
            Operation::Ack(ack) => ack.letters_bytes() + ack.state_bytes(),
            _ => 0,
        });
        let parts = parts.sum();
        if operations.iter().any(|operation| !matches!(operation, Operation::Append(_))) {
            self.make_room_for_the_rest(transaction, parts)?;
        }
        self.bound_pages(transaction)?;
        self.quota.parts_left = self.quota.parts_room();
        self.quota.look_again = false;
        self.letters.admitted = 0;
        let mut gate = Gate { left: self.quota.room().left(), ..Gate::default() };
        let asked = std::mem::take(operations);
        // Those that waited come first; then everything in its order, so that a seal finds the append in front of it.
        self.let_in(transaction, operations, &mut gate)?;
        for operation in asked {
            match operation {
                Operation::Append(append) => {
                    self.quota.waiting.push_back(append);
                    self.let_in(transaction, operations, &mut gate)?;
                }
                other => operations.push_back(other),
            }
        }
        self.refuse_who_does_not_wait();
        Ok(())
    }

    /// In a journal that is full, those that were put aside and are not to wait are refused, also behind one that waits.
    fn refuse_who_does_not_wait(&mut self) {
        if self.quota.full.is_none() && !self.quota.letters_block {
            return;
        }
        let waiting = std::mem::take(&mut self.quota.waiting);
        for append in waiting {
            if append.waits {
                self.quota.waiting.push_back(append);
            } else {
                let needed = append_bytes(&append);
                self.refuse_append(append, needed);
            }
        }
    }

    /// SQLite's own bound, in case an estimate was wrong. A connection forgets it, so each transaction says it.
    fn bound_pages(&self, transaction: &Connection) -> Result<(), JournalError> {
        set_pages_max(transaction, self.quota.bound_pages())
            .map_err(|source| JournalError::sqlite(&self.path, "bounding", source))
    }

    pub(super) fn measure(&mut self, connection: &Connection) -> Result<(), JournalError> {
        self.quota.usage = measure(connection, &self.path)
            .map_err(|source| JournalError::sqlite(&self.path, "measuring", source))?;
        Ok(())
    }

    /// The ballast's turn, when the volume lacks what seals, acks and deletes may need.
    fn make_room_for_the_rest(
        &mut self,
        transaction: &Connection,
        parts: u64,
    ) -> Result<(), JournalError> {
        let room = self.quota.room();
        let needed = parts.saturating_sub(self.quota.usage.pages_free * PAGE);
        let lacks = room.lacking > 0 || needed + small_bytes() > room.spare;
        if lacks && self.quota.ballast.give_up() {
            self.quota.budget.hold(transaction, &self.path, self.quota.usage.pages);
            self.measure(transaction)?;
        }
        Ok(())
    }

    fn let_in(
        &mut self,
        transaction: &Connection,
        operations: &mut VecDeque<Operation>,
        gate: &mut Gate,
    ) -> Result<(), JournalError> {
        while !gate.closed
            && let Some(first) = self.quota.waiting.front()
        {
            let session = Session::Stream(first.stream);
            let (needed, chunk) = gate.cost(first);
            let ended = self.has_ended(session, first.session);
            if !ended && needed > gate.left {
                let alone = append_bytes(first);
                if alone <= self.quota.budget.appends_max(0) {
                    self.meet_limit(transaction, needed, gate)?;
                } else if let Some(append) = self.quota.waiting.pop_front() {
                    // It never has room.
                    self.refuse_append(append, alone);
                }
                continue;
            }
            if !ended && gate.taken >= self.quota.budget.transaction {
                // The rest comes with the next transaction.
                self.quota.look_again = true;
                gate.closed = true;
                continue;
            }
            if !ended && !self.admit_letters(transaction)? {
                gate.closed = self.quota.on_full != OnFull::Reject;
                continue;
            }
            let Some(append) = self.quota.waiting.pop_front() else { break };
            if !ended {
                gate.left -= needed;
                gate.taken += needed;
                if chunk.0 > 0 {
                    gate.building.insert(append.stream, chunk);
                }
            }
            // One whose session has ended is refused where it is applied.
            operations.push_back(Operation::Append(append));
        }
        Ok(())
    }

    /// Whether the dead letters of the first that waits have room, by the policy of their store. One that has none is refused
    /// here or stays in front.
    fn admit_letters(&mut self, transaction: &Connection) -> Result<bool, JournalError> {
        let Some(first) = self.quota.waiting.front() else { return Ok(true) };
        let (bytes, count) = (letters_bytes(first), first.append.letters.len());
        let Some(_full) = self.make_letters_fit(transaction, bytes, count)? else {
            // Written only later in this transaction.
            self.letters.admitted += bytes;
            if std::mem::take(&mut self.quota.letters_block) {
                self.publish_room();
            }
            return Ok(true);
        };
        if self.quota.on_full == OnFull::Reject {
            if let Some(append) = self.quota.waiting.pop_front() {
                self.refuse_append(append, bytes);
            }
        } else if !std::mem::replace(&mut self.quota.letters_block, true) {
            self.publish_room();
        }
        Ok(false)
    }

    /// What `on_full` says about the first that waits, which has no room.
    fn meet_limit(
        &mut self,
        transaction: &Connection,
        needed: u64,
        gate: &mut Gate,
    ) -> Result<(), JournalError> {
        self.becomes_full();
        match self.quota.on_full {
            OnFull::Block => gate.closed = true,
            OnFull::Reject => {
                if let Some(append) = self.quota.waiting.pop_front() {
                    self.refuse_append(append, needed);
                }
            }
            OnFull::DropOldest => {
                let more = self.drop_oldest(transaction, needed - gate.left)?;
                self.measure(transaction)?;
                gate.left = self.quota.room().left().saturating_sub(gate.taken);
                if needed > gate.left {
                    self.quota.look_again = more;
                    gate.closed = true;
                }
            }
        }
        Ok(())
    }

    /// Refuses one append; nothing that was submitted after it may become durable without it.
    fn refuse_append(&mut self, append: AppendOperation, needed: u64) {
        self.quota.refused += 1;
        let letters = self.letters.full.as_ref().filter(|_| !append.append.letters.is_empty());
        let why = match self.quota.full.as_ref().or(letters) {
            Some(full) if needed <= self.quota.budget.appends_max(0) => full.reason.clone(),
            _ => format!(
                "it may need {} and max_bytes leaves {} for records",
                human_bytes(needed),
                human_bytes(self.quota.budget.appends_max(0))
            ),
        };
        self.new_session(Session::Stream(append.stream));
        let error = JournalError::NoRoom { path: self.path.clone(), why };
        super::apply::refuse(Operation::Append(append), error);
    }

    /// Says once that the journal is full, and why.
    pub(super) fn becomes_full(&mut self) {
        if self.quota.full.is_some() {
            return;
        }
        let room = self.quota.room();
        let reason = self.full_reason(room);
        let on_full = self.quota.on_full.as_str();
        tracing::warn!(reason, on_full, "Journal is full");
        self.quota.full = Some(FullState { reason, since: self.clock.now() });
        self.quota.last_look = Some(self.clock.monotonic());
        self.quota.checkpointer.all_now = true;
        for stream in self.state.streams.values_mut() {
            // What else may go when room is short: newest chunks that every lane has passed.
            stream.deletes_left = true;
        }
        self.dirty = true;
        self.publish_room();
    }

    fn full_reason(&self, room: Room) -> String {
        let budget = self.quota.budget;
        let what = if room.volume < room.quota {
            let free = human_bytes(self.quota.usage.volume_free);
            format!("full: the volume of {} has {free} left", self.path.display())
        } else if self.quota.usage.wal_file > budget.wal_usual() + budget.transaction {
            let wal = human_bytes(self.quota.usage.wal_file);
            format!("full: the WAL has grown to {wal} because a reader keeps it from being emptied")
        } else {
            let used = budget.used(self.quota.usage, self.quota.ballast.held());
            let used = human_bytes(used);
            if budget.by_volume {
                let (path, size) = (self.path.display(), human_bytes(budget.limit));
                format!("full: {used} are in use, and the volume of {path} has {size} in all")
            } else {
                format!("full: {used} are in use of max_bytes = {}", ByteSize(budget.limit))
            }
        };
        let then = match self.quota.on_full {
            OnFull::Block => "sources wait",
            OnFull::Reject => "new records are refused",
            OnFull::DropOldest => "the oldest records are dropped",
        };
        format!("{what}; {then}")
    }

    /// Begins a transaction. Another process that holds the write lock is waited for and reported: what waits here waits
    /// durably queued at its producers, and nothing is refused. A journal that is being closed waits for a moment only.
    ///
    /// # Errors
    /// [`JournalError::Busy`] then.
    pub(super) fn begin<'c>(
        &mut self,
        connection: &'c Connection,
    ) -> Result<rusqlite::Transaction<'c>, JournalError> {
        use rusqlite::{ErrorCode, Transaction, TransactionBehavior};

        loop {
            let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
            let error = match begun {
                Ok(transaction) => {
                    if self.quota.write_blocked_since.take().is_some() {
                        tracing::info!("Journal can be written again");
                        self.dirty = true;
                    }
                    return Ok(transaction);
                }
                Err(error) => error,
            };
            let is_busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
            if !is_busy {
                return Err(JournalError::sqlite(&self.path, "beginning", error));
            }
            let pids = listed(&holders(&self.path));
            if self.quota.write_blocked_since.is_none() {
                // What was waited for until now is SQLite's own time for this.
                self.quota.write_blocked_since = Some(self.clock.monotonic());
                let path = self.path.display();
                tracing::warn!(pids, %path, "Another process keeps the journal locked, sources and lanes wait");
            }
            if self.published.closing.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(JournalError::Busy { path: self.path.clone(), pids });
            }
            self.published.snapshot.send_replace(Arc::new(self.snapshot()));
        }
    }

    /// Looks after a commit, and now and then, whether a full journal has room again; makes the ballast again.
    pub(super) fn look_for_room(&mut self) {
        let now = self.clock.monotonic();
        let due = self.quota.last_look.is_none_or(|last| now.since(last) >= LOOK_EVERY);
        if !due {
            return;
        }
        self.quota.last_look = Some(now);
        let Some(connection) = self.connection.take() else { return };
        let before = self.quota.usage;
        if let Err(error) = self.measure(&connection) {
            tracing::debug!(error = %crate::error_chain::Chain(&error), "Journal cannot be measured");
        }
        self.connection = Some(connection);
        self.dirty |= (before.pages, before.pages_free)
            != (self.quota.usage.pages, self.quota.usage.pages_free);
        let room = self.quota.room();
        let lacking = self.quota.ballast.lacking();
        if lacking > 0 && room.lacking == 0 {
            // With enough left that it is not given up again for the next seal.
            if room.spare >= lacking + self.quota.budget.ballast / 2 {
                self.quota.ballast.restore();
                self.quota.claimed = None;
                return;
            }
        }
        if self.quota.full.is_none() {
            return;
        }
        let first = self.quota.waiting.front().map_or(0, append_bytes);
        self.quota.look_again = first <= room.left() || self.quota.on_full == OnFull::DropOldest;
        if room.left() >= self.quota.budget.resume_at().max(first)
            && let Some(full) = self.quota.full.take()
        {
            let full_s = self.clock.now().since(full.since).as_secs();
            tracing::info!(full_s, "Journal has room again");
            self.dirty = true;
            self.publish_room();
        }
    }

    /// A transaction or checkpoint met a full volume after all. The ballast's turn comes with `claim_ballast`.
    pub(super) fn met_full(&mut self) {
        if let Some(connection) = self.connection.take() {
            // A WAL that cannot grow must begin anew, or no transaction comes through any more.
            if let Err(error) = self.quota.checkpointer.begin_anew(&connection) {
                let error = crate::error_chain::Chain(&error);
                tracing::warn!(%error, usage = ?self.quota.usage, "WAL cannot begin anew");
            }
            // Measured for the reason only; a failure leaves the last one.
            drop(self.measure(&connection));
            self.connection = Some(connection);
        }
        self.becomes_full();
    }

    /// Tells what a committed transaction has given up.
    pub(super) fn tell_given_up(&mut self) {
        let given_up = std::mem::take(&mut self.quota.giving_up);
        let GivenUp { moved, full, aged, letters, discarded } = given_up;
        self.letters.dropped += letters;
        self.letters.discarded += discarded;
        self.quota.dropped_full += full;
        self.quota.dropped_aged += aged;
        for (lane, seq) in moved {
            self.published.move_floor(lane, seq);
        }
    }

    pub(super) fn publish_room(&self) {
        let lanes = self.state.lanes.values().filter(|lane| !lane.dropped).count();
        let admission = self.quota.admission(self.letters_in_the_way());
        self.published.admission.send_replace(admission);
        self.published.pace.send_replace(self.quota.pace(lanes));
    }

    /// Keeps the WAL within its cap.
    pub(super) fn checkpoint_if_due(&mut self, committed: bool) {
        if !committed && !self.quota.checkpointer.is_due(self.clock.monotonic()) {
            return;
        }
        let Some(connection) = self.connection.take() else { return };
        let tight = self.quota.full.is_some() || self.quota.ballast.lacking() > 0;
        // Without the ballast nothing would make good what the volume loses until then.
        self.quota.checkpointer.all_now |= self.quota.ballast.lacking() > 0;
        let clock = Arc::clone(&self.clock);
        let budget = self.quota.budget;
        let result = self.quota.checkpointer.after_commit(&connection, budget, tight, &*clock);
        self.connection = Some(connection);
        match result {
            Ok(()) => {}
            Err(error) if error.is_full() => self.met_full(),
            Err(error) => {
                tracing::warn!(error = %crate::error_chain::Chain(&error), "Checkpoint failed, the WAL grows meanwhile");
            }
        }
        self.dirty |= self.quota.checkpointer.blocked(self.clock.monotonic()).is_some();
    }
}

#[cfg(test)]
mod tests {
    use super::super::open::DATABASE_NAME;
    use super::*;

    #[test]
    fn without_the_ballast_the_database_grows_only_where_its_file_has_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DATABASE_NAME);
        let budget = Budget::new(16 << 20, u64::MAX);
        let ballast = Ballast::in_directory(dir.path(), budget.ballast);
        let checkpointer = Checkpointer::new(&path, Duration::from_secs(1));
        let mut quota = Quota::new(&JournalConfig::default(), budget, ballast, checkpointer);
        // The file has 40 pages more than lie in it, and the volume 3 MiB that somebody else may take.
        quota.usage = Usage {
            pages: 1000,
            pages_free: 7,
            database_file: 1040 * PAGE,
            wal_file: budget.wal_extent,
            volume_free: 3 << 20,
        };
        assert_eq!((quota.growth_pages(), quota.parts_room()), (40, 47 * PAGE));
        assert_eq!(quota.bound_pages(), 1040);
        // A reserve that cannot be made costs nothing where there is room.
        quota.usage.volume_free = 8 << 20;
        assert_eq!(quota.parts_room(), 47 * PAGE + (5 << 20));
        assert_eq!(quota.parts_room() - 40 * PAGE, quota.room().volume);
        assert_eq!(quota.bound_pages(), u64::MAX);
        quota.ballast.restore();
        assert_eq!(quota.growth_pages(), 40 + (8 << 20) / PAGE);
        quota.pages_max = 1030;
        assert_eq!((quota.growth_pages(), quota.bound_pages()), (30, 1030));
    }
}
