//! Makes what was found fit together: streams, heads, positions, cursors, batches; what is missing becomes a loss.
//!
//! Where it is not known what a lane had done, it does it again: a record twice, under the same identity, is better than one
//! that is gone.

use std::collections::BTreeMap;

use super::super::chunk::{self, Kind};
use super::super::error::JournalError;
use super::super::high_water::Marks;
use super::super::state::{chunk_key, key_seq};
use super::collect::{Building, rank, starts_of};
use super::lanes::mend_lanes;
use super::{LostRange, SalvageReport};
use crate::clock::Timestamp;
use crate::record::id::{LaneName, Seq, SourceId, StreamNumber};

/// Seqs above this are no seqs of ours: bits that flipped.
const SEQ_PLAUSIBLE_MAX: u64 = 1 << 46;

/// A stream as it was found.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) number: u16,
    pub(super) source: String,
    /// Seqs that are there, in ascending ranges that do not touch.
    pub(super) ranges: Vec<(u64, u64)>,
    /// The last seq that was ever given, as far as anything knows.
    pub(super) head: u64,
}

impl Stream {
    /// Whether all of a range is there.
    pub(super) fn holds(&self, first: u64, last: u64) -> bool {
        self.ranges.iter().any(|range| range.0 <= first && last <= range.1)
    }

    /// What of the seqs behind `after` is not there.
    fn gaps(&self, after: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = after + 1;
        for (first, last) in &self.ranges {
            if *first > next {
                gaps.push((next, first - 1));
            }
            next = next.max(last + 1);
        }
        if next <= self.head {
            gaps.push((next, self.head));
        }
        gaps
    }
}

/// Mends the new database, inside its one transaction.
pub(super) fn mend(
    building: &Building,
    marks: &Marks,
    now: Timestamp,
) -> Result<SalvageReport, JournalError> {
    let mut report = SalvageReport::default();
    drop_superseded(building)?;
    let mut streams = find_streams(building, marks)?;
    for stream in &mut streams {
        let saved = walk(building, stream)?;
        fold_positions(building, stream.number, saved)?;
    }
    mend_lanes(building, marks, &mut streams, &mut report, now)?;
    for stream in &streams {
        let number = StreamNumber(stream.number);
        building.execute(
            "INSERT INTO streams (number, source, positions_seq) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET source = ?2, positions_seq = ?3",
            (stream.number, &stream.source, stream.head.cast_signed()),
        )?;
        let needed = needed_after(building, stream)?;
        delete_passed(building, number, needed)?;
        note_gaps(building, stream, needed, &mut report, now)?;
    }
    mend_meta(building)?;
    count(building, &streams, &mut report)?;
    Ok(report)
}

/// Of chunks that overlap, the one that was written later is right: the other was rolled back.
fn drop_superseded(building: &Building) -> Result<(), JournalError> {
    loop {
        let mut losers = Vec::new();
        let mut before: Option<(i64, u64, _)> = None;
        for_each_chunk(building, None, |key, row| {
            let Ok(header) = chunk::header(row) else { return };
            let last = key_seq(key).0 + u64::from(header.label.count).saturating_sub(1);
            let rank = rank(&header);
            match before {
                Some((loser, end, other))
                    if same_stream(loser, key) && key_seq(key).0 <= end && other <= rank =>
                {
                    losers.push(loser);
                    before = Some((key, last, rank));
                }
                Some((other, end, _)) if same_stream(other, key) && key_seq(key).0 <= end => {
                    losers.push(key);
                }
                _ => before = Some((key, last, rank)),
            }
        })?;
        if losers.is_empty() {
            return Ok(());
        }
        for key in losers {
            building.execute("DELETE FROM chunks WHERE key = ?1", [key])?;
        }
    }
}

fn same_stream(one: i64, other: i64) -> bool {
    one.cast_unsigned() >> 47 == other.cast_unsigned() >> 47
}

/// Goes through chunks in the order of their keys.
pub(super) fn for_each_chunk(
    building: &Building,
    stream: Option<u16>,
    mut each: impl FnMut(i64, &[u8]),
) -> Result<(), JournalError> {
    let failed = |error| building.failed(error);
    let range = match stream {
        None => (0, i64::MAX),
        Some(number) => stream_keys(number),
    };
    let query = "SELECT key, data FROM chunks WHERE key BETWEEN ?1 AND ?2 ORDER BY key";
    let mut statement = building.db.prepare_cached(query).map_err(failed)?;
    let mut rows = statement.query(range).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let data = row.get_ref(1).and_then(|data| Ok(data.as_blob()?)).map_err(failed)?;
        each(row.get(0).map_err(failed)?, data);
    }
    Ok(())
}

fn stream_keys(number: u16) -> (i64, i64) {
    let first = chunk_key(StreamNumber(number), Seq(0));
    (first, first | ((1 << 47) - 1))
}

/// Streams of the table and those that only chunks or lanes know.
fn find_streams(building: &Building, marks: &Marks) -> Result<Vec<Stream>, JournalError> {
    let failed = |error| building.failed(error);
    let mut sources: BTreeMap<u16, Option<String>> = BTreeMap::new();
    let mut heads = BTreeMap::new();
    let mut query = building
        .db
        .prepare("SELECT number, source, positions_seq FROM streams WHERE number < 65536")
        .map_err(failed)?;
    let mut rows = query.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let number: u16 = row.get(0).map_err(failed)?;
        let source: String = row.get(1).map_err(failed)?;
        sources.insert(number, source.parse::<SourceId>().is_ok().then_some(source));
        heads.insert(number, row.get::<_, i64>(2).map_err(failed)?.cast_unsigned());
    }
    for_each_chunk(building, None, |key, _| {
        let number = u16::try_from(key.cast_unsigned() >> 47).unwrap_or(0);
        sources.entry(number).or_default();
    })?;
    let mut query = building.db.prepare("SELECT stream, name FROM lanes").map_err(failed)?;
    let mut rows = query.query([]).map_err(failed)?;
    while let Some(row) = rows.next().map_err(failed)? {
        let (Ok(number), Ok(name)) = (row.get::<_, u16>(0), row.get::<_, String>(1)) else {
            continue;
        };
        let source = name.split('/').nth(1).filter(|part| part.parse::<SourceId>().is_ok());
        let known = sources.entry(number).or_default();
        if known.is_none() {
            *known = source.map(str::to_owned);
        }
    }
    let mut free: Vec<_> = marks
        .streams
        .keys()
        .filter(|name| !sources.values().flatten().any(|known| known == *name))
        .cloned()
        .collect();
    let unnamed = sources.values().filter(|source| source.is_none()).count();
    let mut streams = Vec::new();
    for (number, source) in sources {
        // The high-water file names sources, not their numbers: it helps where there is one of each.
        let by_mark = || if unnamed == 1 && free.len() == 1 { free.pop() } else { None };
        let source = source.or_else(by_mark).unwrap_or_else(|| format!("salvaged-{number}"));
        let mark = marks.streams.get(&source).copied().unwrap_or(0);
        let head = heads.get(&number).copied().unwrap_or(0).max(mark);
        let head = if head < SEQ_PLAUSIBLE_MAX { head } else { 0 };
        streams.push(Stream { number, source, ranges: Vec::new(), head });
    }
    // A source without a number left nothing but its name: its seqs go on behind those that it had.
    for (source, number) in free.into_iter().zip(
        (1..u16::MAX)
            .filter(|number| !streams.iter().any(|stream: &Stream| stream.number == *number))
            .collect::<Vec<_>>(),
    ) {
        let head = marks.streams.get(&source).copied().unwrap_or(0);
        if source.parse::<SourceId>().is_ok() && head < SEQ_PLAUSIBLE_MAX {
            streams.push(Stream { number, source, ranges: Vec::new(), head });
        }
    }
    Ok(streams)
}

type SavedPositions = BTreeMap<String, (u64, Option<Vec<u8>>)>;

/// Notes which seqs of a stream are there; gives the positions that its chunks hold.
fn walk(building: &Building, stream: &mut Stream) -> Result<SavedPositions, JournalError> {
    let mut positions = SavedPositions::new();
    let (ranges, mut head) = (&mut stream.ranges, stream.head);
    for_each_chunk(building, Some(stream.number), |key, row| {
        let Ok(header) = chunk::header(row) else { return };
        let first = key_seq(key).0;
        let last = first + u64::from(header.label.count).saturating_sub(1);
        match ranges.last_mut() {
            Some(range) if range.1 + 1 == first => range.1 = last,
            _ => ranges.push((first, last)),
        }
        head = head.max(last);
        for (name, value) in chunk::positions(row, &header).unwrap_or_default() {
            positions.insert(name, (last, value));
        }
    })?;
    stream.head = head;
    Ok(positions)
}

/// All positions go to their table: the chunks that hold them may be passed already.
fn fold_positions(
    building: &Building,
    stream: u16,
    positions: SavedPositions,
) -> Result<(), JournalError> {
    for (name, (seq, value)) in positions {
        building.execute(
            "INSERT INTO positions (stream, key, seq, value) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET seq = ?3, value = ?4 WHERE seq < ?3",
            (stream, name, seq.cast_signed(), value),
        )?;
    }
    Ok(())
}

/// The seq behind which some lane still needs records: all of them where there is no lane.
fn needed_after(building: &Building, stream: &Stream) -> Result<u64, JournalError> {
    let query = "SELECT min(coalesce(
            (SELECT min(first_seq) - 1 FROM batches WHERE lane = lanes.number AND parts = 0),
            sealed_seq)) FROM lanes WHERE stream = ?1 AND dropped_at IS NULL";
    let needed: Option<i64> = building
        .db
        .query_row(query, [stream.number], |row| row.get(0))
        .map_err(|error| building.failed(error))?;
    let oldest = stream.ranges.first().map_or(stream.head, |range| range.0 - 1);
    Ok(needed.map_or(oldest, i64::cast_unsigned))
}

/// Old pages hold chunks that every lane has passed long ago. The newest one stays, as ever.
fn delete_passed(
    building: &Building,
    number: StreamNumber,
    needed_after: u64,
) -> Result<(), JournalError> {
    building.execute(
        "DELETE FROM chunks WHERE key >= ?1 AND key <
            (SELECT max(key) FROM chunks WHERE key BETWEEN ?1 AND ?2)",
        [chunk_key(number, Seq(0)), chunk_key(number, Seq(needed_after + 1))],
    )?;
    Ok(())
}

fn note_gaps(
    building: &Building,
    stream: &Stream,
    needed_after: u64,
    report: &mut SalvageReport,
    now: Timestamp,
) -> Result<(), JournalError> {
    for (first, last) in stream.gaps(needed_after) {
        let known = "INSERT INTO losses (stream, lane, first_seq, last_seq, at, why)
            SELECT ?1, NULL, ?2, ?3, ?4, 'damage' WHERE NOT EXISTS
            (SELECT 1 FROM losses WHERE stream = ?1 AND first_seq <= ?2 AND last_seq >= ?3)";
        let range = (stream.number, first.cast_signed(), last.cast_signed(), now.0);
        building.execute(known, range)?;
        report.lose(LostRange {
            source: stream.source.clone(),
            lane: None,
            first,
            last,
            records: last + 1 - first,
        });
    }
    Ok(())
}

/// The agent's id, and a count of starts that no epoch was given under.
fn mend_meta(building: &Building) -> Result<(), JournalError> {
    let failed = |error| building.failed(error);
    let name: Option<String> = building
        .db
        .query_row("SELECT min(name) FROM lanes", [], |row| row.get(0))
        .map_err(failed)?;
    let agent = name.map(|name| LaneName::stored(&name));
    if let Some(agent) = agent.as_ref().and_then(|name| name.as_str().split('/').next()) {
        building.execute("INSERT OR IGNORE INTO meta VALUES ('agent', ?1)", [agent])?;
    }
    let starts = starts_of(building.epoch).to_string();
    building.execute(
        "INSERT INTO meta VALUES ('starts', ?1) ON CONFLICT DO UPDATE SET value = ?1
         WHERE CAST(value AS INTEGER) < CAST(?1 AS INTEGER)",
        [&starts],
    )?;
    if !building.is_complete("dead_letters") || !building.is_complete("dispositions") {
        // Nobody knows how many more there were: no id is given twice.
        building.execute(
            "INSERT INTO meta SELECT 'letters', CAST(1000 + max(
                coalesce((SELECT max(id) FROM dead_letters WHERE id < 1 << 48), 0),
                coalesce((SELECT max(letter) FROM dispositions WHERE letter < 1 << 48), 0),
                coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'letters'), 0)
             ) AS TEXT) WHERE true ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [],
        )?;
    }
    Ok(())
}

fn count(
    building: &Building,
    streams: &[Stream],
    report: &mut SalvageReport,
) -> Result<(), JournalError> {
    for_each_chunk(building, None, |_, row| {
        if let Ok(header) = chunk::header(row) {
            report.chunks += 1;
            report.records += u64::from(header.label.count);
        }
    })?;
    let rows = |table: &str| -> Result<u64, JournalError> {
        let query = format!("SELECT count(*) FROM {table}");
        let count: i64 = building
            .db
            .query_row(&query, [], |row| row.get(0))
            .map_err(|error| building.failed(error))?;
        Ok(count.cast_unsigned())
    };
    report.batches = rows("batches")?;
    report.dead_letters = rows("dead_letters")?;
    report.unreadable = building.unreadable_more;
    for (key, kind) in &building.unreadable {
        // What was found whole elsewhere, or passed by all lanes, is missed by nobody.
        let is_missed = match kind {
            Kind::Chunk { stream } => streams.iter().any(|s| {
                let seq = key_seq(*key).0;
                s.number == *stream
                    && !s.holds(seq, seq)
                    && needed_after(building, s).is_ok_and(|n| seq > n)
            }),
            Kind::Part { lane, batch, .. } => report.damaged_batches.contains(&(*lane, *batch)),
        };
        report.unreadable += u64::from(is_missed);
    }
    Ok(())
}
