//! Which messages of a stream are stored, by their sequences: everything up to a floor, and a set above it.
//!
//! A sequence is closed when its message is stored, or is known never to come: the stream has deleted it, or the consumer's
//! filter leaves it out. Three things close them:
//!
//! 1. a message that is stored closes its own;
//! 2. a consumer numbers its deliveries without a gap, and delivers messages for the first time in the order of the stream. So
//!    between two first deliveries with nothing missed between them, nothing is left to come ([`Deliveries`]);
//! 3. what the consumer counts as acknowledged, without exception up to its ack floor, was stored before that was said.
//!
//! What is open is a message that somebody has been given and has not acknowledged: it comes again. The set has at most
//! `NATS_STORED_PIECES_MAX` pieces; what would make one more is not taken, unless it is the lowest, which the floor waits for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::NATS_STORED_PIECES_MAX;

/// The position's key.
const KEY: &str = "jetstream";

/// Of which stream, as which consumer: what is stored is known for this and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub(super) stream: String,
    /// When the stream was made, in nanoseconds since 1970: another one of the name has another time, and other messages.
    pub(super) created: i64,
    pub(super) consumer: String,
    /// What the consumer is given of the stream; empty for all of it.
    pub(super) filters: Vec<String>,
}

/// As a position. Stored: fields may be added, none may change.
#[derive(Debug, Serialize, Deserialize)]
struct Position {
    #[serde(flatten)]
    origin: Origin,
    floor: u64,
    /// From the floor on, in turn: how many are open, how many are closed behind them.
    above: Vec<u64>,
}

/// What is closed of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Stored {
    /// Everything up to this one.
    floor: u64,
    /// First and last of each piece above it; there is something open between any two.
    above: BTreeMap<u64, u64>,
}

impl Stored {
    /// Everything up to `floor`.
    pub(super) fn up_to(floor: u64) -> Self {
        Self { floor, above: BTreeMap::new() }
    }

    /// What the positions tell of.
    pub(super) fn of(positions: &BTreeMap<String, Vec<u8>>) -> Option<(Origin, Self)> {
        let position: Position = serde_json::from_slice(positions.get(KEY)?).ok()?;
        let mut stored = Self::up_to(position.floor);
        let mut end = position.floor;
        for [open, closed] in position.above.as_chunks().0 {
            let first = end.saturating_add(*open).saturating_add(1);
            end = end.saturating_add(*open).saturating_add(*closed);
            stored.close(first, end);
        }
        Some((position.origin, stored))
    }

    /// As a position.
    pub(super) fn position(&self, origin: &Origin) -> (String, Option<Vec<u8>>) {
        let mut end = self.floor;
        let mut above = Vec::with_capacity(2 * self.above.len());
        for (first, last) in &self.above {
            above.extend([first - end - 1, last - first + 1]);
            end = *last;
        }
        let position = Position { origin: origin.clone(), floor: self.floor, above };
        (KEY.to_owned(), serde_json::to_vec(&position).ok())
    }

    /// Up to where everything is closed.
    pub(super) fn floor(&self) -> u64 {
        self.floor
    }

    /// The highest that is closed.
    pub(super) fn top(&self) -> u64 {
        self.above.last_key_value().map_or(self.floor, |(_, last)| *last)
    }

    /// How many pieces there are above the floor.
    pub(super) fn pieces(&self) -> usize {
        self.above.len()
    }

    /// Whether it is stored, or was known not to come.
    pub(super) fn has(&self, sequence: u64) -> bool {
        sequence <= self.floor
            || self.above.range(..=sequence).next_back().is_some_and(|(_, last)| sequence <= *last)
    }

    /// Whether these may be closed within the bound of the set.
    pub(super) fn has_room(&self, first: u64) -> bool {
        self.above.len() < NATS_STORED_PIECES_MAX
            || self.has(first.saturating_sub(1))
            || self.above.first_key_value().is_some_and(|(lowest, _)| first < *lowest)
    }

    /// Closes all from `first` to `last`.
    pub(super) fn close(&mut self, first: u64, last: u64) {
        if last < first || last <= self.floor {
            return;
        }
        let (mut first, mut last) = (first.max(self.floor + 1), last);
        // Whatever begins in it, or right behind it, becomes a part of it; so does what reaches into it.
        while let Some((start, end)) = self
            .above
            .range(..=last.saturating_add(1))
            .next_back()
            .map(|(start, end)| (*start, *end))
            .filter(|(_, end)| end.saturating_add(1) >= first)
        {
            self.above.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        if first == self.floor + 1 {
            self.floor = last;
        } else {
            self.above.insert(first, last);
        }
    }

    /// Forgets what is above `last`: a stream that was set back gives these to other messages.
    pub(super) fn set_back(&mut self, last: u64) {
        self.floor = self.floor.min(last);
        self.above.split_off(&last.saturating_add(1));
        if let Some(mut piece) = self.above.last_entry() {
            let end = (*piece.get()).min(last);
            piece.insert(end);
        }
    }
}

/// What a message says of its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    /// The consumer's number of it.
    pub(super) number: u64,
    /// The stream's sequence of the message.
    pub(super) sequence: u64,
    /// How often the message was delivered, with this.
    pub(super) times: i64,
}

/// What was seen of a consumer's deliveries, without a gap so far.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    /// The consumer's number of the newest.
    newest: u64,
    /// The stream's sequence of the newest that was delivered for the first time, since the last gap.
    first: Option<u64>,
}

impl Deliveries {
    /// Goes on behind these, the consumer's number and the stream's sequence: whatever came before them, to whomever.
    pub(super) fn behind(newest: u64, sequence: u64) -> Self {
        Self { newest, first: Some(sequence) }
    }

    /// Takes note of a delivery. Gives the first of the sequences that it closes up to its own; `None` when the consumer
    /// counts backwards, as another one of the name would.
    pub(super) fn note(&mut self, delivery: Delivery) -> Option<u64> {
        let Delivery { number, sequence, times } = delivery;
        if number <= self.newest {
            return None;
        }
        if number != self.newest + 1 {
            self.first = None;
        }
        self.newest = number;
        if times > 1 {
            return Some(sequence);
        }
        let before = self.first.replace(sequence);
        Some(before.filter(|before| *before < sequence).map_or(sequence, |before| before + 1))
    }

    /// One was given up, and is to come again: nothing behind it says anything of what is before.
    pub(super) fn interrupt(&mut self) {
        self.first = None;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    fn origin() -> Origin {
        Origin {
            stream: "EDGE".to_owned(),
            created: 7,
            consumer: "c".to_owned(),
            filters: vec!["a.>".to_owned()],
        }
    }

    fn reread(stored: &Stored) -> Stored {
        let (key, value) = stored.position(&origin());
        let (known, reread) = Stored::of(&BTreeMap::from([(key, value.unwrap())])).unwrap();
        assert_eq!(known, origin());
        reread
    }

    #[test]
    fn a_position_is_this_json_for_ever() {
        let mut stored = Stored::up_to(10);
        stored.close(12, 13);
        stored.close(20, 20);
        let (key, value) = stored.position(&origin());
        let text = r#"{"stream":"EDGE","created":7,"consumer":"c","filters":["a.>"],"floor":10,"above":[1,2,6,1]}"#;
        assert_eq!((key.as_str(), value.as_deref()), ("jetstream", Some(text.as_bytes())));
        assert_eq!(reread(&stored), stored);
        assert!(Stored::of(&BTreeMap::from([(key, b"?".to_vec())])).is_none());
    }

    #[test]
    fn the_largest_set_fits_a_position() {
        let mut stored = Stored::up_to(u64::MAX / 2);
        for piece in 0..NATS_STORED_PIECES_MAX as u64 {
            let first =
                u64::MAX / 2 + 2 + piece * (u64::MAX / 2 / NATS_STORED_PIECES_MAX as u64 - 1);
            stored.close(first, first + 1);
        }
        assert_eq!(stored.pieces(), NATS_STORED_PIECES_MAX);
        let (_, value) = stored.position(&origin());
        assert!(value.unwrap().len() < crate::limits::POSITIONS_BYTES_MAX / 2);
        assert_eq!(reread(&stored), stored);
    }

    #[test]
    fn a_full_set_takes_what_makes_no_further_piece_and_what_the_floor_waits_for() {
        let mut stored = Stored::up_to(10);
        for piece in 0..NATS_STORED_PIECES_MAX as u64 {
            stored.close(100 + 2 * piece, 100 + 2 * piece);
        }
        let top = stored.top();
        assert!(!stored.has_room(top + 2));
        assert!(stored.has_room(top + 1), "it makes the last piece longer");
        assert!(stored.has_room(50), "it is the lowest");
        stored.close(11, 99);
        assert_eq!((stored.floor(), stored.pieces()), (100, NATS_STORED_PIECES_MAX - 1));
        assert!(stored.has_room(top + 2));
    }

    #[test]
    fn a_stream_that_was_set_back_gives_sequences_to_other_messages() {
        let mut stored = Stored::up_to(10);
        stored.close(12, 20);
        stored.close(30, 40);
        stored.set_back(15);
        assert_eq!((stored.floor(), stored.top(), stored.has(16)), (10, 15, false));
        stored.set_back(5);
        assert_eq!(stored, Stored::up_to(5));
    }

    fn info(number: u64, sequence: u64, times: i64) -> Delivery {
        Delivery { number, sequence, times }
    }

    #[test]
    fn first_deliveries_without_a_gap_close_what_lies_between_them() {
        let mut deliveries = Deliveries::behind(3, 10);
        assert_eq!(deliveries.note(info(4, 15, 1)), Some(11), "11 to 14 are not for this consumer");
        assert_eq!(deliveries.note(info(5, 12, 2)), Some(12), "one that comes again");
        assert_eq!(deliveries.note(info(6, 18, 1)), Some(16));
        assert_eq!(deliveries.note(info(8, 25, 1)), Some(25), "number 7 went elsewhere");
        assert_eq!(deliveries.note(info(9, 30, 1)), Some(26));
        deliveries.interrupt();
        assert_eq!(deliveries.note(info(10, 35, 1)), Some(35));
        assert_eq!(deliveries.note(info(10, 36, 1)), None, "another consumer counts");
    }

    proptest! {
        /// The pieces are the same set of numbers that was put in, in as few pieces as there are.
        #[test]
        fn pieces_are_the_set_that_was_closed(
            floor in 0_u64..20,
            closed in proptest::collection::vec((1_u64..120, 0_u64..6), 0..60),
        ) {
            let mut stored = Stored::up_to(floor);
            let mut model: BTreeSet<u64> = (1..=floor).collect();
            for (first, more) in closed {
                stored.close(first, first + more);
                model.extend(first..=first + more);
                for sequence in 1..130 {
                    prop_assert_eq!(stored.has(sequence), model.contains(&sequence));
                }
                let gaps = (1..130).filter(|n| !model.contains(n) && model.contains(&(n + 1)));
                prop_assert_eq!(stored.pieces(), gaps.count());
                prop_assert_eq!(&reread(&stored), &stored);
            }
        }
    }

    #[test]
    fn fuzzed_positions_are_read_or_left_aside() {
        let text = br#"{"stream":"EDGE","created":7,"consumer":"c","filters":["a.>"],"floor":10,"above":[1,2,6,1]}"#;
        fuzz(&[text], |bytes| {
            let positions = BTreeMap::from([(KEY.to_owned(), bytes.to_vec())]);
            if let Some((_, stored)) = Stored::of(&positions) {
                assert!(stored.top() >= stored.floor());
                assert_eq!(reread(&stored), stored);
            }
        });
    }
}
