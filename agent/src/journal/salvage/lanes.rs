//! Lanes of a salvaged journal: cursors, and sealed batches that prove their content by its hash.

use std::collections::BTreeSet;

use super::super::acked;
use super::super::chunk::{Decoder, Kind};
use super::super::error::JournalError;
use super::super::high_water::Marks;
use super::super::reader::Window;
use super::super::state::part_key;
use super::collect::Building;
use super::mend::{Stream, for_each_chunk};
use super::{LaneRange, LostRange, SalvageReport};
use crate::clock::Timestamp;
use crate::limits::BATCH_PARTS_MAX;
use crate::record::batch::{ContentHash, FrameBlock};
use crate::record::id::{BatchNumber, Epoch, LaneNumber, PipelineId, SinkId};

/// A lane's row, as far as it matters here.
struct Lane {
    number: u16,
    name: String,
    start: u64,
    sealed: u64,
    next_batch: u64,
    /// Records with an outcome.
    done: u64,
    /// Whether batches may stand in their table whose acks are not known by it.
    is_doubtful: bool,
}

impl Lane {
    /// Moves the cursors over batches that were sealed since the row was written, as a start does (`state.rs`).
    fn follow(&mut self, batches: &[Batch]) {
        for batch in batches.iter().filter(|batch| !batch.replay) {
            if batch.number == self.next_batch && batch.first == self.sealed + 1 {
                self.sealed = batch.last.max(self.sealed);
                self.next_batch += 1;
            }
        }
    }
}

/// A batch's row. What a tick made covers no record: its last seq is in front of its first one.
struct Batch {
    number: u64,
    suffix: String,
    epoch: String,
    first: u64,
    last: u64,
    inputs: u64,
    records: u64,
    parts: u64,
    sha256: Vec<u8>,
    first_record: u64,
    replay: bool,
}

impl Batch {
    fn is_of_tick(&self) -> bool {
        self.first > self.last
    }

    /// Whether its records were delivered when those up to `acked` were. What a tick made behind those may have been or not.
    fn is_behind(&self, acked: u64) -> bool {
        if self.is_of_tick() { self.last < acked } else { self.last <= acked }
    }

    /// What is lost with it: the records that it was made of, or those that a tick made.
    fn records_lost(&self) -> u64 {
        if self.is_of_tick() { self.records } else { self.inputs }
    }
}

pub(super) fn mend_lanes(
    building: &Building,
    marks: &Marks,
    streams: &mut [Stream],
    report: &mut SalvageReport,
    now: Timestamp,
) -> Result<(), JournalError> {
    drop_impossible(building)?;
    let doubtful = drop_acked(building)?;
    add_from_marks(building, marks, streams)?;
    for stream in streams.iter_mut() {
        for mut lane in lanes_of(building, stream.number)? {
            lane.is_doubtful |= doubtful.contains(&lane.number);
            let batches = batches_of(building, &lane)?;
            lane.follow(&batches);
            if let Some((sealed, next_batch)) = marks.lanes.get(&lane.name) {
                // A batch that is gone may have told more than the lane's own row.
                lane.sealed = lane.sealed.max(stream.head.min(*sealed));
                lane.next_batch = lane.next_batch.max(*next_batch);
            }
            // A cursor far beyond everything else that is known is no cursor but flipped bits.
            if lane.sealed > stream.head
                && building.is_complete("lanes")
                && lane.sealed - stream.head < 1 << 32
            {
                stream.head = lane.sealed;
            }
            lane.sealed = lane.sealed.min(stream.head);
            lane.start = lane.start.min(lane.sealed);
            mend_lane(building, marks, stream, &mut lane, batches, report, now)?;
            mend_replays(building, stream, &lane, report, now)?;
            building.execute(
                "UPDATE lanes SET sealed_seq = ?2, start_seq = ?3, next_batch = ?4 WHERE number = ?1",
                (
                    lane.number,
                    lane.sealed.cast_signed(),
                    lane.start.cast_signed(),
                    lane.next_batch.cast_signed(),
                ),
            )?;
            settle_totals(building, &lane)?;
        }
    }
    end_lost_replays(building, now)?;
    if !building.is_complete("letter_batches") {
        // Nobody knows how often letters of a batch were replayed: no number is used twice.
        building.execute("UPDATE letter_batches SET replays = replays + 1000", [])?;
        building.execute(
            "INSERT OR IGNORE INTO letter_batches
             SELECT DISTINCT lane, batch, 0, 0, 0, x'', '', 1000, '' FROM dead_letters
             WHERE lane IS NOT NULL AND batch IS NOT NULL",
            [],
        )?;
    }
    // Parts of no batch: of a run without a seal, or acked long ago.
    building.execute(
        "DELETE FROM batch_parts WHERE NOT EXISTS (SELECT 1 FROM batches
            WHERE lane = batch_parts.key >> 50
              AND number = (batch_parts.key >> 14) & ((1 << 36) - 1))",
        [],
    )?;
    Ok(())
}

/// Replays whose batches are not found end without an outcome: their letters are open again.
fn end_lost_replays(building: &Building, now: Timestamp) -> Result<(), JournalError> {
    let is_lost = |of: &str| {
        format!(
            "NOT EXISTS (SELECT 1 FROM batches WHERE batches.lane = {of}.lane
             AND batches.number = {of}.number)"
        )
    };
    let lost = is_lost("replaying");
    building.execute(&open_letters(&lost), [])?;
    building.execute(&format!("DELETE FROM replaying WHERE {lost}"), [])?;
    let end = format!("{ENDED_BY_DAMAGE} WHERE ended_at IS NULL AND {}", is_lost("replays"));
    building.execute(&end, [now.0]).map(drop)
}

/// Ends replays at ?1. Something of each is always left: nobody is told that it was applied.
const ENDED_BY_DAMAGE: &str =
    "UPDATE replays SET ended_at = ?1, class = 'damage', returned = max(letters - delivered, 1)";

/// The destination may have a part of what these letters were in, so nothing of it goes out again as what was one batch.
fn open_letters(which: &str) -> String {
    format!(
        "UPDATE dead_letters SET whole = 0 WHERE id IN (SELECT letter FROM replaying WHERE {which})"
    )
}

/// Each record behind the start of a lane has one outcome, or waits for it. What is done again has none yet: it is taken from
/// the counts of what a seal decides, then from the others. What nobody knows the outcome of counts as lost.
fn settle_totals(building: &Building, lane: &Lane) -> Result<(), JournalError> {
    const COUNTS: [&str; 5] = ["dropped", "dead_lettered", "not_taken", "delivered", "lost"];
    let failed = |error| building.failed(error);
    let query = format!(
        "SELECT coalesce((SELECT sum(inputs) FROM batches WHERE lane = lanes.number), 0), {}
         FROM lanes WHERE number = ?1",
        COUNTS.join(", ")
    );
    let (waiting, mut counts): (i64, [i64; 5]) = building
        .db
        .query_row(&query, [lane.number], |row| {
            let count = |index| row.get(index);
            Ok((count(0)?, [count(1)?, count(2)?, count(3)?, count(4)?, count(5)?]))
        })
        .map_err(failed)?;
    let sealed = (lane.sealed - lane.start).cast_signed();
    let mut surplus = counts.iter().sum::<i64>() + waiting - sealed;
    for count in &mut counts {
        let taken = surplus.clamp(0, (*count).max(0));
        *count -= taken;
        surplus -= taken;
    }
    let [.., lost] = &mut counts;
    *lost += (-surplus).max(0);
    for (name, count) in COUNTS.iter().zip(counts) {
        let update = format!("UPDATE lanes SET {name} = ?2 WHERE number = ?1");
        building.execute(&update, (lane.number, count))?;
    }
    Ok(())
}

/// Rows that no agent has written, whatever they look like.
fn drop_impossible(building: &Building) -> Result<(), JournalError> {
    let failed = |error| building.failed(error);
    let mut impossible = Vec::new();
    let mut query =
        building.db.prepare("SELECT number, name, pipeline, sink FROM lanes").map_err(failed)?;
    let mut rows = query.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let number: i64 = row.get(0).map_err(failed)?;
        let text = |index| row.get::<_, String>(index).unwrap_or_default();
        let is_possible = text(1).split('/').count() == 4
            && text(2).parse::<PipelineId>().is_ok()
            && text(3).parse::<SinkId>().is_ok()
            && number <= i64::from(crate::limits::LANES_MAX);
        if !is_possible {
            impossible.push(number);
        }
    }
    for number in impossible {
        building.execute("DELETE FROM lanes WHERE number = ?1", [number])?;
    }
    building.execute(
        "DELETE FROM batches WHERE lane NOT IN (SELECT number FROM lanes) OR first_seq < 1 - replay
            OR last_seq < first_seq - 1 OR parts < 0 OR parts > ?1 OR records < 1 OR inputs < 0
            OR inputs > last_seq + 1 - first_seq OR number >= 1 << 36 OR sealed_at IS NULL",
        [BATCH_PARTS_MAX.cast_signed()],
    )?;
    building
        .execute("DELETE FROM plugin_state WHERE lane NOT IN (SELECT number FROM lanes)", [])?;
    Ok(())
}

/// Drops the rows of batches that are done, where the lane's own row says so and proves it. Gives the lanes that do not.
fn drop_acked(building: &Building) -> Result<BTreeSet<u16>, JournalError> {
    let failed = |error| building.failed(error);
    let mut query = building.db.prepare("SELECT number, acked FROM lanes").map_err(failed)?;
    let lanes: Vec<(u16, Vec<u8>)> = query
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(failed)?;
    let mut doubtful = BTreeSet::new();
    for (lane, acked) in lanes {
        let Some(acked) = acked::from_bytes(LaneNumber(lane), &acked) else {
            doubtful.insert(lane);
            continue;
        };
        for done in acked {
            building.execute(
                "DELETE FROM batches WHERE lane = ?1 AND number = ?2 AND suffix = '' AND replay = 0",
                (lane, done.number.0.cast_signed()),
            )?;
        }
    }
    building.execute("UPDATE lanes SET acked = x''", [])?;
    Ok(doubtful)
}

/// Lanes that only the high-water file knows go on behind the last batch that was acked.
fn add_from_marks(
    building: &Building,
    marks: &Marks,
    streams: &[Stream],
) -> Result<(), JournalError> {
    for (name, (sealed, next_batch)) in &marks.lanes {
        let parts: Vec<_> = name.split('/').collect();
        let [_, source, pipeline, sink] = parts[..] else { continue };
        let sink = sink.split('~').next().unwrap_or(sink);
        let Some(stream) = streams.iter().find(|stream| stream.source == source) else { continue };
        let acked = marks.acked.get(name).copied().unwrap_or(*sealed).min(*sealed);
        building.execute(
            "INSERT INTO lanes (number, name, stream, pipeline, sink, start_seq, sealed_seq, next_batch)
             SELECT (SELECT coalesce(max(number), 0) + 1 FROM lanes), ?1, ?2, ?3, ?4, ?5, ?5, ?6
             WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE name = ?1)",
            (name, stream.number, pipeline, sink, acked.cast_signed(), next_batch.cast_signed()),
        )?;
    }
    Ok(())
}

fn lanes_of(building: &Building, stream: u16) -> Result<Vec<Lane>, JournalError> {
    let failed = |error| building.failed(error);
    let mut query = building
        .db
        .prepare(
            "SELECT number, name, start_seq, sealed_seq, next_batch,
                    delivered + dropped + dead_lettered + lost + not_taken
             FROM lanes WHERE stream = ?1 AND dropped_at IS NULL ORDER BY number",
        )
        .map_err(failed)?;
    query
        .query_map([stream], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok(Lane {
                number: row.get(0)?,
                name: row.get(1)?,
                start: count(2)?,
                sealed: count(3)?,
                next_batch: count(4)?,
                done: count(5)?,
                is_doubtful: !building.is_complete("lanes"),
            })
        })
        .and_then(Iterator::collect)
        .map_err(failed)
}

fn batches_of(building: &Building, lane: &Lane) -> Result<Vec<Batch>, JournalError> {
    let failed = |error| building.failed(error);
    let mut query = building
        .db
        .prepare_cached(
            "SELECT number, epoch, first_seq, last_seq, inputs, records, parts, sha256, suffix,
                    first_record, replay
             FROM batches WHERE lane = ?1 ORDER BY number, suffix",
        )
        .map_err(failed)?;
    query
        .query_map([lane.number], |row| {
            let count = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok(Batch {
                number: count(0)?,
                epoch: row.get(1)?,
                first: count(2)?,
                last: count(3)?,
                inputs: count(4)?,
                records: count(5)?,
                parts: count(6)?,
                sha256: row.get(7)?,
                suffix: row.get(8)?,
                first_record: count(9)?,
                replay: row.get(10)?,
            })
        })
        .and_then(Iterator::collect)
        .map_err(failed)
}

fn mend_lane(
    building: &Building,
    marks: &Marks,
    stream: &Stream,
    lane: &mut Lane,
    batches: Vec<Batch>,
    report: &mut SalvageReport,
    now: Timestamp,
) -> Result<(), JournalError> {
    let (replays, mut batches): (Vec<_>, Vec<_>) =
        batches.into_iter().partition(|batch| batch.replay);
    // A page may still hold what was cut beside what it was cut into.
    let halves: Vec<_> = batches.iter().map(|half| (half.number, half.suffix.clone())).collect();
    let was_cut = |batch: &mut Batch| {
        halves.iter().any(|(number, suffix)| {
            *number == batch.number
                && suffix.len() > batch.suffix.len()
                && suffix.starts_with(&batch.suffix)
        })
    };
    for cut in batches.extract_if(.., was_cut) {
        delete_batch(building, lane, &cut)?;
    }
    let mut decoder = Decoder::new();
    let is_found = !building.is_complete("batches");
    if is_found || lane.is_doubtful {
        // Pages may hold batches that were acked long ago.
        let acked = marks.acked.get(&lane.name).copied().unwrap_or(0);
        let is_old =
            |batch: &mut Batch| batch.is_behind(acked) || is_found && batch.last > lane.sealed;
        for old in batches.extract_if(.., is_old) {
            delete_batch(building, lane, &old)?;
        }
    }
    let numbers = batches.iter().chain(&replays).map(|batch| batch.number + 1);
    lane.next_batch = numbers.fold(lane.next_batch, u64::max);
    let open = lane.sealed - lane.start;
    let waiting: u64 = batches.iter().map(|batch| batch.inputs).sum();
    if open.saturating_sub(lane.done) > waiting {
        // Some batches are not found, and nobody knows which ranges they had.
        let oldest = stream.ranges.first().map_or(lane.sealed, |range| range.0 - 1);
        let acked = marks.acked.get(&lane.name).copied().unwrap_or(oldest);
        let again = acked.clamp(lane.start, lane.sealed);
        let mut ticks = TickBatches { building, stream, decoder: &mut decoder, report, now };
        return cut_again(&mut ticks, lane, &batches, again + 1);
    }
    for (index, batch) in batches.iter().enumerate() {
        if proves_itself(building, &mut decoder, stream, lane, batch)? {
            continue;
        }
        report.damaged_batches.insert((lane.number, batch.number));
        if batch.is_of_tick() {
            // Nothing makes it again: the state that it was made of is gone.
            lose(building, stream, lane, batch, report, now)?;
            continue;
        }
        let later = &batches[index..];
        // Records that are all there are sealed anew; a range that lost a chunk, around the gap.
        let is_range = later.iter().all(|batch| batch.parts == 0 || batch.is_of_tick());
        if is_range || stream.holds(batch.first, lane.sealed) {
            let mut ticks = TickBatches { building, stream, decoder: &mut decoder, report, now };
            return cut_again(&mut ticks, lane, later, batch.first);
        }
        lose(building, stream, lane, batch, report, now)?;
    }
    Ok(())
}

/// Whether the content of a batch is there and has the hash that was sealed.
fn proves_itself(
    building: &Building,
    decoder: &mut Decoder,
    stream: &Stream,
    lane: &Lane,
    batch: &Batch,
) -> Result<bool, JournalError> {
    // What a replay covers was sealed once, also where its lane is taken back to an earlier record.
    if batch.last > lane.sealed && !batch.replay || batch.number >= lane.next_batch {
        return Ok(false);
    }
    let (mut hash, mut records) = (ContentHash::default(), 0);
    let mut is_sound = true;
    if batch.parts == 0 {
        if !stream.holds(batch.first, batch.last) {
            return Ok(false);
        }
        for_each_chunk(building, Some(stream.number), |_, row| {
            let Ok((_, block)) = decoder.frames(row) else { return };
            let end = block.first_seq.0 + u64::from(block.count);
            if block.first_seq.0 <= batch.last && end > batch.first {
                is_sound &= add(&mut hash, &mut records, &block, (batch.first, batch.last));
            }
        })?;
    }
    let mut window = Window::new(!batch.suffix.is_empty(), batch.first_record, batch.records);
    for part in 0..batch.parts {
        let key = part_key(LaneNumber(lane.number), BatchNumber(batch.number), part);
        let Some(row) = building.data("batch_parts", key)? else { return Ok(false) };
        let Ok((header, block)) = decoder.frames(&row) else { return Ok(false) };
        let kind = Kind::Part {
            lane: lane.number,
            batch: batch.number,
            part: u32::try_from(part).unwrap_or(u32::MAX),
        };
        if header.label.kind != kind || batch.epoch.parse::<Epoch>() != Ok(header.label.epoch) {
            return Ok(false);
        }
        let Some(block) = window.trim(block) else { continue };
        is_sound &= add(&mut hash, &mut records, &block, (0, u64::MAX));
    }
    Ok(is_sound && records == batch.records && hash.finish().as_slice() == batch.sha256)
}

/// Takes the records within a range into the hash; says whether all could be decoded.
fn add(hash: &mut ContentHash, records: &mut u64, block: &FrameBlock, range: (u64, u64)) -> bool {
    for record in block.records() {
        let Ok(record) = record else { return false };
        if record.seq.0 >= range.0 && record.seq.0 <= range.1 {
            hash.update(&record);
            *records += 1;
        }
    }
    true
}

/// What is needed for batches that ticks made, where the lane that they stand in is taken back.
struct TickBatches<'a> {
    building: &'a Building,
    stream: &'a Stream,
    decoder: &'a mut Decoder,
    report: &'a mut SalvageReport,
    now: Timestamp,
}

impl TickBatches<'_> {
    /// Nothing makes such a batch again: where it proves itself it stays, at the place that its lane is taken back to.
    fn take_back(&mut self, lane: &Lane, batch: &Batch, first: u64) -> Result<(), JournalError> {
        let Self { building, stream, decoder, report, now } = self;
        if !proves_itself(building, decoder, stream, lane, batch)? {
            return lose(building, stream, lane, batch, report, *now);
        }
        let place = "UPDATE batches SET first_seq = ?4, last_seq = ?4 - 1
                     WHERE lane = ?1 AND number = ?2 AND suffix = ?3";
        let key = (lane.number, batch.number.cast_signed(), &batch.suffix, first.cast_signed());
        building.execute(place, key).map(drop)
    }
}

/// Takes a lane back to before `first`: its batches from there on are sealed anew.
fn cut_again(
    ticks: &mut TickBatches<'_>,
    lane: &mut Lane,
    batches: &[Batch],
    first: u64,
) -> Result<(), JournalError> {
    let building = ticks.building;
    let (of_ticks, again): (Vec<_>, Vec<_>) =
        batches.iter().filter(|batch| batch.last >= first).partition(|batch| batch.is_of_tick());
    // A batch that begins earlier goes back to its beginning.
    let first = again.iter().map(|batch| batch.first).fold(first, u64::min).max(lane.start + 1);
    for batch in of_ticks {
        ticks.take_back(lane, batch, first)?;
    }
    for batch in again {
        // What it had set aside or left out is decided anew. A letter that was replayed since, or whose record was replaced,
        // is more than that run has made of it, and stays.
        let identity = format!("{}/{}/b{}", lane.name, batch.epoch, batch.number);
        let letters = "FROM dead_letters WHERE lane = ?1 AND batch = ?2 AND seq BETWEEN ?3 AND ?4
            AND plugin_sha256 IS NOT NULL AND disposition IS NULL AND instr(record, '~') = 0
            AND id NOT IN (SELECT letter FROM replaying)";
        let range = (batch.first.cast_signed(), batch.last.cast_signed());
        let set_aside: i64 = building
            .db
            .query_row(
                &format!("SELECT count(DISTINCT seq) {letters}"),
                (lane.number, &identity, range.0, range.1),
                |row| row.get(0),
            )
            .map_err(|error| building.failed(error))?;
        let delete = format!("DELETE {letters}");
        building.execute(&delete, (lane.number, &identity, range.0, range.1))?;
        let left_out = (batch.last + 1 - batch.first - batch.inputs).cast_signed() - set_aside;
        building.execute(
            "UPDATE lanes SET dead_lettered = max(dead_lettered - ?2, 0),
                dropped = max(dropped - ?3, 0) WHERE number = ?1",
            (lane.number, set_aside, left_out.max(0)),
        )?;
        delete_batch(building, lane, batch)?;
    }
    if first <= lane.sealed {
        let range = LaneRange { lane: lane.name.clone(), first, last: lane.sealed };
        ticks.report.cut_again.push(range);
        lane.sealed = first - 1;
    }
    Ok(())
}

/// Replays that are not all there end without an outcome: their letters are, and are open again.
fn mend_replays(
    building: &Building,
    stream: &Stream,
    lane: &Lane,
    report: &mut SalvageReport,
    now: Timestamp,
) -> Result<(), JournalError> {
    let replays: Vec<_> =
        batches_of(building, lane)?.into_iter().filter(|batch| batch.replay).collect();
    let mut decoder = Decoder::new();
    let is_complete = building.is_complete("batches") && building.is_complete("replaying");
    let numbers: BTreeSet<_> = replays.iter().map(|batch| batch.number).collect();
    for number in numbers {
        let pieces = || replays.iter().filter(|batch| batch.number == number);
        let key = (lane.number, number.cast_signed());
        let query = "SELECT count(*) > 0 AND count(*) = count(dead_letters.id) FROM replaying
                     LEFT JOIN dead_letters ON id = letter
                     WHERE replaying.lane = ?1 AND number = ?2";
        let has_letters: bool = building
            .db
            .query_row(query, key, |row| row.get(0))
            .map_err(|error| building.failed(error))?;
        let mut is_sound = is_complete && has_letters;
        for piece in pieces() {
            is_sound = is_sound && proves_itself(building, &mut decoder, stream, lane, piece)?;
        }
        if is_sound {
            continue;
        }
        report.damaged_batches.insert((lane.number, number));
        if pieces().any(|piece| !piece.suffix.is_empty()) {
            building.execute(&open_letters("lane = ?1 AND number = ?2"), key)?;
        }
        for piece in pieces() {
            delete_batch(building, lane, piece)?;
        }
        building.execute("DELETE FROM replaying WHERE lane = ?1 AND number = ?2", key)?;
        let end = format!("{ENDED_BY_DAMAGE} WHERE ended_at IS NULL AND lane = ?2 AND number = ?3");
        building.execute(&end, (now.0, key.0, key.1))?;
    }
    Ok(())
}

/// A batch whose content is gone, and whose records are gone too.
fn lose(
    building: &Building,
    stream: &Stream,
    lane: &Lane,
    batch: &Batch,
    report: &mut SalvageReport,
    now: Timestamp,
) -> Result<(), JournalError> {
    delete_batch(building, lane, batch)?;
    building.execute(
        "UPDATE lanes SET lost = lost + ?2 WHERE number = ?1",
        (lane.number, batch.inputs.cast_signed()),
    )?;
    building.execute(
        "INSERT INTO losses (stream, lane, first_seq, last_seq, at, why)
         VALUES (?1, ?2, ?3, ?4, ?5, 'damage')",
        (stream.number, lane.number, batch.first.cast_signed(), batch.last.cast_signed(), now.0),
    )?;
    report.lose(LostRange {
        source: stream.source.clone(),
        lane: Some(lane.name.clone()),
        first: batch.first,
        last: batch.last,
        records: batch.records_lost(),
    });
    Ok(())
}

fn delete_batch(building: &Building, lane: &Lane, batch: &Batch) -> Result<(), JournalError> {
    building.execute(
        "DELETE FROM batches WHERE lane = ?1 AND number = ?2 AND suffix = ?3",
        (lane.number, batch.number.cast_signed(), &batch.suffix),
    )?;
    Ok(())
}

/// Batches that were found damaged, for counting their unreadable parts.
pub(super) type DamagedBatches = BTreeSet<(u16, u64)>;
