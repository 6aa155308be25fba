//! What is known of each key, in the agent's state.
//!
//! There are two generations of keys, the younger and the older. A key that comes is in the younger one from then on. When that
//! is half of what may be remembered, the older one is forgotten, the younger one is the older one now, and a new one begins.
//! So the half that came last is always known, and a key that comes now and then is never pushed out by those that come once.
//! An exact order of use would cost a second entry for each record.

use std::collections::BTreeMap;

use waystation_plugin::state;

/// Where it stands which generation is the younger one, and how many keys it has. No key begins so.
const HEAD: &str = "=";
/// How many keys are listed at once.
const LISTED: u32 = 1000;

pub(crate) struct Memory {
    /// Most keys of a generation.
    half: u32,
    head: Head,
    stored_head: Option<Head>,
    /// Keys of the younger generation that this call has met.
    met: BTreeMap<String, Entry>,
}

struct Entry {
    known: Vec<u8>,
    stored: Option<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
struct Head {
    younger: u8,
    count: u32,
}

impl Head {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (younger, count) = bytes.split_first()?;
        let count = u32::from_le_bytes(count.try_into().ok()?);
        matches!(younger, b'a' | b'b').then_some(Self { younger: *younger, count })
    }

    fn older(self) -> u8 {
        if self.younger == b'a' { b'b' } else { b'a' }
    }
}

fn name(generation: u8, key: &str) -> String {
    format!("{}{key}", char::from(generation))
}

impl Memory {
    pub(crate) fn open(keys_max: u32) -> Self {
        let stored_head = state::get(HEAD).as_deref().and_then(Head::decode);
        let head = stored_head.unwrap_or(Head { younger: b'a', count: 0 });
        Self { half: keys_max / 2, head, stored_head, met: BTreeMap::new() }
    }

    /// What is known of a key; empty when nothing is.
    ///
    /// # Errors
    /// Which limit of the state stands in the way.
    pub(crate) fn entry(&mut self, key: String) -> Result<&mut Vec<u8>, String> {
        if !self.met.contains_key(&key) {
            let entry = match state::get(&name(self.head.younger, &key)) {
                Some(known) => Entry { stored: Some(known.clone()), known },
                None => {
                    // What the older generation holds of it stays there until that is forgotten; the younger one is asked first.
                    let known = state::get(&name(self.head.older(), &key));
                    if self.head.count >= self.half {
                        self.forget_the_older()?;
                    }
                    self.head.count += 1;
                    Entry { known: known.unwrap_or_default(), stored: None }
                }
            };
            self.met.insert(key.clone(), entry);
        }
        let entry = self.met.entry(key);
        Ok(&mut entry.or_insert(Entry { known: Vec::new(), stored: None }).known)
    }

    /// Stores what has changed.
    ///
    /// # Errors
    /// Which limit of the state stands in the way.
    pub(crate) fn store(&mut self) -> Result<(), String> {
        for (key, Entry { known, stored }) in &mut self.met {
            if stored.as_ref() != Some(known) {
                state::set(&name(self.head.younger, key), known)?;
                *stored = Some(known.clone());
            }
        }
        if self.stored_head != Some(self.head) {
            let mut bytes = vec![self.head.younger];
            bytes.extend_from_slice(&self.head.count.to_le_bytes());
            state::set(HEAD, &bytes)?;
            self.stored_head = Some(self.head);
        }
        Ok(())
    }

    fn forget_the_older(&mut self) -> Result<(), String> {
        self.store()?;
        self.met.clear();
        let prefix = char::from(self.head.older()).to_string();
        loop {
            let keys = state::keys(&prefix, "", LISTED);
            if keys.is_empty() {
                break;
            }
            keys.iter().for_each(|key| state::delete(key));
        }
        self.head = Head { younger: self.head.older(), count: 0 };
        Ok(())
    }
}
