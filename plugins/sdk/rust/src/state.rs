//! Bytes by key, kept over restarts and reloads, for this transform in its lane alone.
//!
//! What the calls of a batch change is stored together with that batch, or not at all. Read-only while an instance is made.

pub use imported::{delete, get, keys, set};

#[cfg(target_arch = "wasm32")]
use crate::bindings::waystation::plugin::state as imported;

/// Stands in for the agent where a plugin is tested natively: one map per thread, without limits.
#[cfg(not(target_arch = "wasm32"))]
mod imported {
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    thread_local! {
        static VALUES: RefCell<BTreeMap<String, Vec<u8>>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// The value under a key.
    #[must_use]
    pub fn get(key: &str) -> Option<Vec<u8>> {
        VALUES.with_borrow(|values| values.get(key).cloned())
    }

    /// Stores a value.
    ///
    /// # Errors
    /// Says which limit it would break; nothing is changed then.
    pub fn set(key: &str, value: &[u8]) -> Result<(), String> {
        VALUES.with_borrow_mut(|values| values.insert(key.to_owned(), value.to_owned()));
        Ok(())
    }

    /// Removes a value, if there is one.
    pub fn delete(key: &str) {
        VALUES.with_borrow_mut(|values| values.remove(key));
    }

    /// Up to `limit` keys greater than `after` that start with `prefix`, in byte order.
    #[must_use]
    pub fn keys(prefix: &str, after: &str, limit: u32) -> Vec<String> {
        VALUES.with_borrow(|values| {
            values
                .keys()
                .filter(|key| key.as_str() > after && key.starts_with(prefix))
                .take(limit as usize)
                .cloned()
                .collect()
        })
    }
}
