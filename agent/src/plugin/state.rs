//! A plugin's state: bytes by key, for one transform in one lane.
//!
//! A lane owns the stored [`State`]. A run works on a [`StateView`]: the stored state, which does not change, and the changes
//! of the run, which become part of it only together with the batch that the run made. A view that is dropped changed nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::limits::{
    STATE_BYTES_MAX, STATE_ENTRY_BYTES, STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX,
};

/// What a run changed: the new value of each key, `None` for one that is gone.
pub type StateDelta = BTreeMap<String, Option<Arc<[u8]>>>;

/// What is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    entries: BTreeMap<String, Arc<[u8]>>,
    bytes: usize,
}

impl State {
    /// The state that a journal holds.
    #[must_use]
    pub fn new(entries: BTreeMap<String, Arc<[u8]>>) -> Self {
        let bytes = entries.iter().map(|(key, value)| entry_bytes(key, value)).sum();
        Self { entries, bytes }
    }

    /// Makes the changes of a run part of what is stored.
    pub fn apply(&mut self, delta: StateDelta) {
        for (key, value) in delta {
            self.bytes -= self.entries.get(&key).map_or(0, |old| entry_bytes(&key, old));
            match value {
                Some(value) => {
                    self.bytes += entry_bytes(&key, &value);
                    self.entries.insert(key, value);
                }
                None => drop(self.entries.remove(&key)),
            }
        }
    }

    /// The entries in byte order of their keys.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<String, Arc<[u8]>> {
        &self.entries
    }

    /// What counts towards the limit of 64 MiB.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }
}

/// Which limit a change would break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The key is too long.
    #[error("a key of {0} bytes is over the limit of {STATE_KEY_BYTES_MAX}")]
    Key(usize),
    /// The value is too long.
    #[error("a value of {0} bytes is over the limit of {STATE_VALUE_BYTES_MAX}")]
    Value(usize),
    /// There would be too much in all.
    #[error("the state would count {0} bytes, over the limit of {STATE_BYTES_MAX}")]
    All(usize),
}

/// The state as a run sees and changes it.
#[derive(Debug, Clone, Default)]
pub struct StateView {
    base: Arc<State>,
    delta: StateDelta,
    bytes: usize,
}

impl StateView {
    /// A view on what is stored with changes of earlier runs that are not stored yet; none for most.
    #[must_use]
    pub fn new(base: Arc<State>, delta: StateDelta) -> Self {
        let mut bytes = base.bytes;
        for (key, value) in &delta {
            bytes -= base.entries.get(key).map_or(0, |old| entry_bytes(key, old));
            bytes += value.as_ref().map_or(0, |new| entry_bytes(key, new));
        }
        Self { base, delta, bytes }
    }

    /// The value under a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Arc<[u8]>> {
        match self.delta.get(key) {
            Some(changed) => changed.as_ref(),
            None => self.base.entries.get(key),
        }
    }

    /// Stores a value.
    ///
    /// # Errors
    /// Which limit it would break; nothing is changed then.
    pub fn set(&mut self, key: String, value: impl Into<Arc<[u8]>>) -> Result<(), StateError> {
        let value = value.into();
        if key.len() > STATE_KEY_BYTES_MAX {
            return Err(StateError::Key(key.len()));
        }
        if value.len() > STATE_VALUE_BYTES_MAX {
            return Err(StateError::Value(value.len()));
        }
        let old = self.get(&key).map_or(0, |old| entry_bytes(&key, old));
        let bytes = self.bytes - old + entry_bytes(&key, &value);
        if bytes > STATE_BYTES_MAX {
            return Err(StateError::All(bytes));
        }
        self.bytes = bytes;
        self.delta.insert(key, Some(value));
        Ok(())
    }

    /// Removes a value, if there is one.
    pub fn delete(&mut self, key: String) {
        let Some(old) = self.get(&key) else { return };
        self.bytes -= entry_bytes(&key, old);
        if self.base.entries.contains_key(&key) {
            self.delta.insert(key, None);
        } else {
            self.delta.remove(&key);
        }
    }

    /// Up to `limit` keys greater than `after` that start with `prefix`, in byte order.
    #[must_use]
    pub fn keys(&self, prefix: &str, after: &str, limit: usize) -> Vec<String> {
        let from = if after < prefix { Bound::Included(prefix) } else { Bound::Excluded(after) };
        let range = (from, Bound::Unbounded);
        let merged = Merged {
            base: self.base.entries.range::<str, _>(range).peekable(),
            delta: self.delta.range::<str, _>(range).peekable(),
        };
        merged.take_while(|key| key.starts_with(prefix)).take(limit).cloned().collect()
    }

    /// What the run changed.
    #[must_use]
    pub fn into_delta(self) -> StateDelta {
        self.delta
    }
}

/// The keys of a state and its changes, in order.
struct Merged<'a> {
    base: Peekable<Range<'a, String, Arc<[u8]>>>,
    delta: Peekable<Range<'a, String, Option<Arc<[u8]>>>>,
}

impl<'a> Iterator for Merged<'a> {
    type Item = &'a String;

    fn next(&mut self) -> Option<&'a String> {
        loop {
            let base = self.base.peek().map(|(key, _)| *key);
            let delta = self.delta.peek().map(|(key, _)| *key);
            let changed = match (base, delta) {
                (Some(base), Some(delta)) => delta <= base,
                (_, delta) => delta.is_some(),
            };
            if !changed {
                return self.base.next().map(|(key, _)| key);
            }
            if base == delta {
                self.base.next();
            }
            if let Some((key, Some(_))) = self.delta.next() {
                return Some(key);
            }
        }
    }
}

fn entry_bytes(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + STATE_ENTRY_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Arc<[u8]> {
        text.as_bytes().into()
    }

    #[test]
    fn a_dropped_view_changes_nothing_and_an_applied_delta_everything() {
        let mut state =
            State::new([("a", "1"), ("b", "2")].map(|(k, v)| (k.into(), bytes(v))).into());
        let base = Arc::new(state.clone());
        let mut view = StateView::new(Arc::clone(&base), StateDelta::new());
        view.set("c".into(), *b"3").unwrap();
        view.delete("a".into());
        view.delete("nothing".into());
        assert_eq!(view.keys("", "", 10), ["b", "c"]);
        assert_eq!(base.entries().len(), 2);
        let delta = view.into_delta();
        assert_eq!(delta, [("a".into(), None), ("c".into(), Some(bytes("3")))].into());
        state.apply(delta);
        assert_eq!(state.entries().keys().collect::<Vec<_>>(), ["b", "c"]);
        assert_eq!(state.size_bytes(), 2 * (2 + STATE_ENTRY_BYTES));
    }

    #[test]
    fn each_limit_is_named_and_changes_nothing() {
        let mut view = StateView::default();
        let long = "k".repeat(STATE_KEY_BYTES_MAX + 1);
        assert_eq!(view.set(long, *b""), Err(StateError::Key(STATE_KEY_BYTES_MAX + 1)));
        let large = vec![0; STATE_VALUE_BYTES_MAX + 1];
        assert_eq!(view.set("k".into(), large), Err(StateError::Value(STATE_VALUE_BYTES_MAX + 1)));
        let value: Arc<[u8]> = vec![0; STATE_VALUE_BYTES_MAX].into();
        let mut stored = 0;
        let error = loop {
            match view.set(format!("{stored:03}"), Arc::clone(&value)) {
                Ok(()) => stored += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(stored, STATE_BYTES_MAX / (STATE_VALUE_BYTES_MAX + 1));
        assert!(matches!(error, StateError::All(_)));
        assert_eq!(view.keys("", "", 1000).len(), stored);
        view.delete("000".into());
        view.set("new".into(), value).unwrap();
    }

    proptest! {
        #[test]
        fn a_view_is_like_one_map(
            stored in proptest::collection::btree_map("[ab]{1,3}", 0u8..9, 0..8),
            changes in proptest::collection::vec(("[ab]{1,3}", proptest::option::of(0u8..9)), 0..20),
            prefix in "[ab]{0,2}",
            after in "[ab]{0,3}",
            limit in 0usize..6,
        ) {
            let entries = stored.iter().map(|(k, v)| (k.clone(), Arc::from([*v]))).collect();
            let mut model = stored;
            let mut state = State::new(entries);
            let mut view = StateView::new(Arc::new(state.clone()), StateDelta::new());
            for (at, (key, value)) in changes.into_iter().enumerate() {
                if at == 10 {
                    // A second run goes on where the first ended.
                    view = StateView::new(Arc::new(state.clone()), view.into_delta());
                }
                match value {
                    Some(value) => {
                        view.set(key.clone(), [value]).unwrap();
                        model.insert(key, value);
                    }
                    None => {
                        view.delete(key.clone());
                        model.remove(&key);
                    }
                }
            }
            let expected: Vec<_> = model
                .keys()
                .filter(|key| **key > after && key.starts_with(&prefix))
                .take(limit)
                .cloned()
                .collect();
            prop_assert_eq!(view.keys(&prefix, &after, limit), expected);
            let counted = view.bytes;
            state.apply(view.into_delta());
            prop_assert_eq!(state.size_bytes(), counted);
            let values: Vec<_> = state.entries().iter().map(|(k, v)| (k.clone(), v[0])).collect();
            prop_assert_eq!(values, model.into_iter().collect::<Vec<_>>());
        }
    }
}
