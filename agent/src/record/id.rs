//! Who is who: component names, numbers in the journal, and the identities that destinations see.
//!
//! Identities are plain strings and stay as they are for ever:
//! - record: `AGENT/SOURCE/PIPELINE/SINK/EPOCH/SEQ`, with `.n` for each splitting stage,
//! - made by a tick: `AGENT/SOURCE/PIPELINE/SINK/EPOCH/tBATCH.n`,
//! - whose payload was replaced by hand: the same with `~n` at its end, for the n-th time,
//! - batch: `AGENT/SOURCE/PIPELINE/SINK/EPOCH/bBATCH`, with `.0` or `.1` for each cut in half, and `/rN` for the n-th replay
//!   of some of its dead letters.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;

use super::{Origin, PathBuffer, RecordView};
use crate::limits::NAME_BYTES_MAX;

/// Why a text is no component name or agent id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no name: use up to {NAME_BYTES_MAX} letters, digits, \"_\" and \"-\", beginning with a letter or digit"
)]
pub struct NameError(String);

/// A component name or agent id: `[A-Za-z0-9][A-Za-z0-9_-]{0,62}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a name out of any text, as for a host name: other characters become `-`.
    #[must_use]
    pub fn made_to_fit(text: &str) -> Self {
        let fit: String = text
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '-' })
            .skip_while(|c| !c.is_ascii_alphanumeric())
            .take(NAME_BYTES_MAX)
            .collect();
        Self(if fit.is_empty() { "agent".into() } else { fit.into() })
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let fits = text.len() <= NAME_BYTES_MAX
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if starts_well && fits { Ok(Self(text.into())) } else { Err(NameError(text.to_owned())) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Name);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                text.parse().map(Self)
            }
        }
    )*};
}

names! {
    /// The name of one agent among all that deliver to the same upstream.
    AgentId
    /// The name of a source in the config.
    SourceId
    /// The name of a transform in the config.
    TransformId
    /// The name of a sink in the config.
    SinkId
    /// The name of a pipeline in the config.
    PipelineId
    /// The name of a limiter in the config.
    LimiterId
}

/// The name of a lane, `agent/source/pipeline/sink`, fixed when the lane is made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneName(Arc<str>);

impl LaneName {
    /// The name that a lane of these parts gets, unless it was given before.
    #[must_use]
    pub fn new(agent: &AgentId, source: &SourceId, pipeline: &PipelineId, sink: &SinkId) -> Self {
        Self(format!("{agent}/{source}/{pipeline}/{sink}").into())
    }

    /// A name read back from the journal.
    #[must_use]
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LaneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of the agent: ten hex digits, five that count the starts and five drawn.
///
/// The drawn ones keep identities apart when files were taken back in time: a restored backup or a cloned card counts the
/// same start twice. Epochs of one journal sort by start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(u64);

const HALF_BITS: u32 = 20;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;

impl Epoch {
    /// Bytes of an epoch in frames and headers.
    pub const BYTES: usize = 5;

    /// The epoch of the `starts`-th start. Counting stops at the largest five hex digits.
    #[must_use]
    pub fn new(starts: u64, drawn: u32) -> Self {
        Self((starts.min(HALF_MASK) << HALF_BITS) | (u64::from(drawn) & HALF_MASK))
    }

    /// Big-endian, so that bytes sort like epochs.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let [_, _, _, bytes @ ..] = self.0.to_be_bytes();
        bytes
    }

    /// The epoch in these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [a, b, c, d, e] = bytes;
        Self(u64::from_be_bytes([0, 0, 0, a, b, c, d, e]))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:010x}", self.0)
    }
}

impl FromStr for Epoch {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(|bits| Self(bits & ((1 << (2 * HALF_BITS)) - 1)))
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($inner:ty))*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// A record's position in its stream, from 1, gapless. Zero stands for "before the first".
    Seq(u64)
    /// A stream's number in the journal.
    StreamNumber(u16)
    /// A lane's number in the journal.
    LaneNumber(u16)
    /// A batch's number in its lane, from 1.
    BatchNumber(u64)
}

impl Seq {
    /// The one after.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The one before. Zero has none before it.
    #[must_use]
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The one `count` after.
    #[must_use]
    pub fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// Writes the identity of a record of this lane into `out`, which is cleared first.
pub fn write_record_identity(out: &mut String, lane: &LaneName, record: &RecordView<'_>) {
    out.clear();
    out.push_str(lane.as_str());
    // Writing to a String cannot fail.
    let _ok = match record.origin.tick {
        None => write!(out, "/{}/{}", record.epoch, record.seq),
        Some(batch) => write!(out, "/{}/t{batch}", record.epoch),
    };
    for number in record.origin.path.numbers() {
        let _ok = write!(out, ".{number}");
    }
    if record.origin.repair > 0 {
        let _ok = write!(out, "~{}", record.origin.repair);
    }
}

/// What the identity of a record says beside its lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordIdentity {
    /// The run that appended it, or sealed it where a tick made it.
    pub epoch: Epoch,
    /// Its seq; none where a tick made it.
    pub seq: Option<Seq>,
    /// The batch whose tick made it.
    pub tick: Option<u64>,
    /// The numbers of its splits.
    pub path: PathBuffer,
    /// How often its payload was replaced by hand.
    pub repair: u64,
}

impl RecordIdentity {
    /// Takes an identity of a record of this lane apart; `None` when it is none.
    #[must_use]
    pub fn parse(lane: &LaneName, text: &str) -> Option<Self> {
        let rest = text.strip_prefix(lane.as_str())?.strip_prefix('/')?;
        let (epoch, rest) = rest.split_once('/')?;
        let (rest, repair) = match rest.split_once('~') {
            Some((rest, repair)) => (rest, repair.parse().ok().filter(|repair| *repair > 0)?),
            None => (rest, 0),
        };
        let mut numbers = rest.split('.');
        let first = numbers.next()?;
        let (seq, tick) = match first.strip_prefix('t') {
            Some(batch) => (None, Some(batch.parse().ok()?)),
            None => (Some(Seq(first.parse().ok()?)), None),
        };
        let mut path = PathBuffer::default();
        for number in numbers {
            let parent = path.clone();
            path.set(parent.as_path(), number.parse().ok()?);
        }
        Some(Self { epoch: epoch.parse().ok()?, seq, tick, path, repair })
    }

    /// Where the record comes from, beyond its seq.
    #[must_use]
    pub fn origin(&self) -> Origin<'_> {
        Origin { tick: self.tick, path: self.path.as_path(), repair: self.repair }
    }
}

/// The identity of a record or batch, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordId {
    /// The lane.
    pub lane: LaneName,
    /// The run that appended the record, or sealed the batch.
    pub epoch: Epoch,
    /// What stands behind the run, without the numbers of splits.
    pub place: RecordPlace,
    text: String,
}

/// What an identity names within a lane and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordPlace {
    /// A record that a source handed in, or a part of it.
    Seq(Seq),
    /// What the tick of this batch made.
    Tick(BatchNumber),
    /// A batch.
    Batch(BatchNumber),
}

/// Why a text is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no identity: that of a record is AGENT/SOURCE/PIPELINE/SINK/EPOCH/SEQ, with .N for each split, such as gw/sensors/telemetry/cloud/00001abcde/42 or …/42.0; that of a batch ends in EPOCH/bNUMBER"
)]
pub struct RecordIdError(String);

impl FromStr for RecordId {
    type Err = RecordIdError;

    fn from_str(text: &str) -> Result<Self, RecordIdError> {
        let parsed = || {
            // What a replay stands behind a batch's number, `/rN`, belongs to the number.
            let (front, last) = match text.rsplit_once('/')? {
                (front, replay) if replay.starts_with('r') => {
                    let (front, number) = front.rsplit_once('/')?;
                    (front, number)
                }
                parts => parts,
            };
            let (lane, epoch) = front.rsplit_once('/')?;
            let is_epoch = epoch.len() == 2 * Epoch::BYTES
                && epoch.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            if !is_epoch || lane.split('/').count() != 4 || lane.split('/').any(str::is_empty) {
                return None;
            }
            let (main, splits) = last.split_once('.').unwrap_or((last, "0"));
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            // A repaired record has `~N` behind it.
            let (main, repair) = main.split_once('~').unwrap_or((main, "0"));
            let splits_good = splits.split('.').all(|part| {
                let (part, repair) = part.split_once('~').unwrap_or((part, "0"));
                is_number(part) && is_number(repair)
            });
            let digits = main.trim_start_matches(['t', 'b']);
            if !splits_good || !is_number(repair) || !is_number(digits) {
                return None;
            }
            let number: u64 = digits.parse().ok()?;
            // As much as the keys of the journal have room for.
            let place = match main.len() - digits.len() {
                0 if number < 1 << 47 => RecordPlace::Seq(Seq(number)),
                0 | 1 if number >= 1 << 36 => return None,
                1 if main.starts_with('t') => RecordPlace::Tick(BatchNumber(number)),
                1 => RecordPlace::Batch(BatchNumber(number)),
                _ => return None,
            };
            let (lane, epoch) = (LaneName::stored(lane), epoch.parse().ok()?);
            Some(Self { lane, epoch, place, text: text.to_owned() })
        };
        parsed().ok_or_else(|| RecordIdError(text.to_owned()))
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rule_and_others_are_made_to_fit() {
        for good in ["a", "gw-0042", "A_b-9", &"x".repeat(63)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", "a/b", "a.b", "ä", &"x".repeat(64)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
        assert_eq!(Name::made_to_fit("gw.plant-7.example").as_str(), "gw-plant-7-example");
        assert_eq!(Name::made_to_fit("--ü").as_str(), "agent");
        assert!(Name::made_to_fit(&"é9".repeat(80)).as_str().parse::<Name>().is_ok());
    }

    #[test]
    fn identities_are_taken_apart_and_others_are_refused() {
        let parsed = |text: &str| text.parse::<RecordId>();
        let lane = "gw/s/p/k~2";
        for (rest, place) in [
            ("42", RecordPlace::Seq(Seq(42))),
            ("42.0.300", RecordPlace::Seq(Seq(42))),
            ("42~1", RecordPlace::Seq(Seq(42))),
            ("42.0~1", RecordPlace::Seq(Seq(42))),
            ("t7.1", RecordPlace::Tick(BatchNumber(7))),
            ("b7", RecordPlace::Batch(BatchNumber(7))),
            ("b7.0.1", RecordPlace::Batch(BatchNumber(7))),
            ("b7/r2", RecordPlace::Batch(BatchNumber(7))),
        ] {
            let text = format!("{lane}/00001abcde/{rest}");
            let id = parsed(&text).unwrap();
            assert_eq!((id.place, id.lane.as_str(), id.to_string()), (place, lane, text.clone()));
            assert_eq!(id.epoch, Epoch::new(1, 0xabcde));
        }
        for bad in [
            "",
            "42",
            "gw/s/p/k/42",
            "gw/s/p/00001abcde/42",
            "gw/s/p/k/00001ABCDE/42",
            "gw/s/p/k/00001abcde/",
            "gw/s/p/k/00001abcde/x42",
            "gw/s/p/k/00001abcde/42.",
            "gw/s/p/k/00001abcde/tb7",
            "gw/s//k/00001abcde/42",
            "gw/s/p/k/00001abcde/140737488355328",
            "gw/s/p/k/00001abcde/b68719476736",
        ] {
            assert!(parsed(bad).unwrap_err().to_string().contains("EPOCH/SEQ"), "{bad}");
        }
    }

    #[test]
    fn epochs_sort_by_start_and_survive_bytes_and_text() {
        let first = Epoch::new(1, 0xfffff);
        let second = Epoch::new(2, 0);
        assert!(first < second);
        assert!(first.to_bytes() < second.to_bytes());
        assert!(first.to_string() < second.to_string());
        assert_eq!(first.to_string(), "00001fffff");
        assert_eq!(Epoch::from_bytes(first.to_bytes()), first);
        assert_eq!("00001fffff".parse(), Ok(first));
    }

    #[test]
    fn record_identities_are_these_strings_for_ever() {
        let lane = LaneName::stored("gw/s/p/k");
        let mut path = PathBuffer::default();
        let mut record = RecordView {
            epoch: Epoch::new(1, 0xabcde),
            seq: Seq(42),
            origin: Origin::default(),
            time: crate::clock::Timestamp(0),
            subject: "",
            headers: crate::record::Headers::default(),
            payload: b"",
        };
        let mut text = String::new();
        write_record_identity(&mut text, &lane, &record);
        assert_eq!(text, "gw/s/p/k/00001abcde/42");
        path.set(crate::record::Path::default(), 0);
        let mut deeper = PathBuffer::default();
        deeper.set(path.as_path(), 300);
        record.origin = Origin { path: deeper.as_path(), ..Origin::default() };
        write_record_identity(&mut text, &lane, &record);
        assert_eq!(text, "gw/s/p/k/00001abcde/42.0.300");
        record.origin.tick = Some(7);
        write_record_identity(&mut text, &lane, &record);
        assert_eq!(text, "gw/s/p/k/00001abcde/t7.0.300");
        record.origin.repair = 2;
        write_record_identity(&mut text, &lane, &record);
        assert_eq!(text, "gw/s/p/k/00001abcde/t7.0.300~2");
        for text in ["7", "7.0.300", "t7.0", "7~1", "t7.1~12"] {
            let text = format!("gw/s/p/k/00001abcde/{text}");
            let parsed = RecordIdentity::parse(&lane, &text).unwrap();
            let seq = parsed.seq.unwrap_or_default();
            let record = RecordView { origin: parsed.origin(), seq, ..record };
            let mut again = String::new();
            write_record_identity(&mut again, &lane, &record);
            assert_eq!((again, parsed.epoch), (text, record.epoch));
        }
        for bad in [
            "gw/s/p/other/00001abcde/7",
            "gw/s/p/k/00001abcde/x",
            "gw/s/p/k/7",
            "gw/s/p/k/00001abcde/7~0",
        ] {
            assert_eq!(RecordIdentity::parse(&lane, bad), None, "{bad}");
        }
    }
}
