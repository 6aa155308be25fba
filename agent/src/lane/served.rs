//! Whether a destination serves anybody: what tells an outage from a batch that is at fault itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often a configured sink has taken a batch in this run, counted over all its lanes. One for each sink.
#[derive(Debug, Default)]
pub struct Served(AtomicU64);

impl Served {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
