//! What a source remembers of its session with a broker, as positions: what it has subscribed to, and which messages of
//! QoS 2 it has taken and the broker has not released.
//!
//! An id of QoS 2 is remembered in the append of its message, before the broker is told (PUBREC), and forgotten in an append
//! before the broker may use it for another one (PUBCOMP). So a message that comes again in the same session is known, also
//! after a crash at any point. Whether it is the same message is asked of its content as well: an id alone may be another
//! message's, when another client has used the session meanwhile, or a broker or a journal has gone back in time.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::packet::Message;

const SESSION: &str = "session";
const TAKEN: &str = "taken.";

/// What was subscribed to, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subscription {
    pub(super) broker: String,
    pub(super) client_id: String,
    pub(super) filters: Vec<String>,
    pub(super) qos: u8,
}

impl Subscription {
    /// The one that the positions tell of.
    pub(super) fn of(positions: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        serde_json::from_slice(positions.get(SESSION)?).ok()
    }

    /// As a position.
    pub(super) fn position(&self) -> (String, Option<Vec<u8>>) {
        (SESSION.to_owned(), serde_json::to_vec(self).ok())
    }

    /// Whether it belongs to the same session of the same broker.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        self.broker == other.broker && self.client_id == other.client_id
    }
}

/// Enough of a digest to tell messages apart.
type Content = [u8; 16];

/// Messages of QoS 2 that are taken and not released.
#[derive(Debug, Default)]
pub(super) struct Taken(HashMap<u16, Content>);

impl Taken {
    /// Those that the positions tell of.
    pub(super) fn of(positions: &BTreeMap<String, Vec<u8>>) -> Self {
        let known = positions.iter().filter_map(|(key, value)| {
            let id = key.strip_prefix(TAKEN)?.parse().ok()?;
            Some((id, value.as_slice().try_into().ok()?))
        });
        Self(known.collect())
    }

    /// Whether this message was taken already.
    pub(super) fn has(&self, message: &Message) -> bool {
        message.duplicate && self.0.get(&message.id).is_some_and(|known| *known == content(message))
    }

    /// Remembers a message; gives the position that does.
    pub(super) fn take(&mut self, message: &Message) -> (String, Option<Vec<u8>>) {
        let content = content(message);
        self.0.insert(message.id, content);
        (key(message.id), Some(content.to_vec()))
    }

    /// Forgets a message that will not come again; gives the position that does, if it was known.
    pub(super) fn release(&mut self, id: u16) -> Option<(String, Option<Vec<u8>>)> {
        self.0.remove(&id).map(|_| (key(id), None))
    }

    /// Forgets all of them: the session that they belonged to is gone.
    pub(super) fn forget(&mut self) -> Vec<(String, Option<Vec<u8>>)> {
        self.0.drain().map(|(id, _)| (key(id), None)).collect()
    }
}

fn key(id: u16) -> String {
    format!("{TAKEN}{id}")
}

fn content(message: &Message) -> Content {
    let mut hash = Sha256::new();
    // The length keeps topic and payload apart.
    hash.update((message.topic.len() as u64).to_le_bytes());
    hash.update(&message.topic);
    hash.update(&message.payload);
    let digest: [u8; 32] = hash.finalize().into();
    let (content, _) = digest.split_first_chunk().expect("half of a digest is in it");
    *content
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::fuzz;

    fn message(id: u16, payload: &'static str, duplicate: bool) -> Message {
        Message { id, payload: payload.into(), duplicate, qos: 2, ..Message::default() }
    }

    #[test]
    fn a_message_is_known_again_by_id_content_and_the_word_of_the_broker() {
        let mut taken = Taken::default();
        let (key, value) = taken.take(&message(7, "x", false));
        let positions = BTreeMap::from([(key.clone(), value.unwrap())]);
        let mut taken = Taken::of(&positions);
        assert!(taken.has(&message(7, "x", true)));
        assert!(!taken.has(&message(7, "y", true)), "the id is another message's now");
        assert!(!taken.has(&message(8, "x", true)));
        assert!(!taken.has(&message(7, "x", false)), "the broker has never sent this one before");
        assert_eq!(taken.release(7), Some((key, None)));
        assert_eq!(taken.release(7), None);
        assert!(!taken.has(&message(7, "x", true)));
    }

    #[test]
    fn a_subscription_comes_back_from_its_position() {
        let subscription = Subscription {
            broker: "mqtt://b:1883".to_owned(),
            client_id: "c".to_owned(),
            filters: vec!["a/#".to_owned()],
            qos: 1,
        };
        let (key, value) = subscription.position();
        let positions = BTreeMap::from([(key, value.unwrap())]);
        assert_eq!(Subscription::of(&positions), Some(subscription));
        assert_eq!(Subscription::of(&BTreeMap::new()), None);
    }

    #[test]
    fn fuzzed_positions_are_read_or_left_aside() {
        let subscription =
            br#"{"broker":"mqtt://b:1883","client_id":"c","filters":["a/#"],"qos":1}"#;
        fuzz(&[subscription, &[7; 16]], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let positions = BTreeMap::from([
                (SESSION.to_owned(), bytes.to_vec()),
                (format!("{TAKEN}7"), bytes.to_vec()),
                (format!("{TAKEN}{text}"), vec![1; 16]),
            ]);
            if let Some(subscription) = Subscription::of(&positions) {
                let (key, value) = subscription.position();
                let again = BTreeMap::from([(key, value.unwrap())]);
                assert_eq!(Subscription::of(&again), Some(subscription));
            }
            Taken::of(&positions);
        });
    }
}
