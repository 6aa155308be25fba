//! What a guest may grow to: memory and tables, over all that its component holds.
//!
//! Units are bytes and table elements. A refusal is a trap with this error, not a `-1` for the guest: a guest that handles it
//! is rare, one that dies of it somewhere else is the rule, and the operator shall read the cause.

use wasmtime::ResourceLimiter;

use crate::limits::{
    PLUGIN_INSTANCES_MAX, PLUGIN_MEMORIES_MAX, PLUGIN_TABLE_ELEMENTS_MAX, PLUGIN_TABLES_MAX,
};
use crate::units::{ByteSize, human_bytes};

/// A limit that a guest has met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitError {
    #[error(
        "memory: it wanted {}, and memory_max is {limit}", human_bytes(*desired as u64)
    )]
    Memory { desired: usize, limit: ByteSize },
    #[error("memory: it wanted more than its module or this host allows: {0}")]
    MemoryDenied(String),
    #[error("tables: it wanted {desired} elements, and {PLUGIN_TABLE_ELEMENTS_MAX} is the limit")]
    Table { desired: usize },
    #[error("tables: it wanted more than its module or this host allows: {0}")]
    TableDenied(String),
}

/// Counts what one instance holds.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_max: ByteSize,
    memory_bytes: usize,
    table_elements: usize,
}

impl Limiter {
    pub(super) fn new(memory_max: ByteSize) -> Self {
        Self { memory_max, memory_bytes: 0, table_elements: 0 }
    }

    /// All memories of the instance together.
    pub(super) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let all = self.memory_bytes.saturating_sub(current).saturating_add(desired);
        if all > self.memory_max.as_usize() {
            return Err(LimitError::Memory { desired: all, limit: self.memory_max }.into());
        }
        self.memory_bytes = all;
        Ok(true)
    }

    fn memory_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(LimitError::MemoryDenied(format!("{error:#}")).into())
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let all = self.table_elements.saturating_sub(current).saturating_add(desired);
        if all > PLUGIN_TABLE_ELEMENTS_MAX {
            return Err(LimitError::Table { desired: all }.into());
        }
        self.table_elements = all;
        Ok(true)
    }

    fn table_grow_failed(&mut self, error: wasmtime::Error) -> wasmtime::Result<()> {
        Err(LimitError::TableDenied(format!("{error:#}")).into())
    }

    fn instances(&self) -> usize {
        PLUGIN_INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        PLUGIN_TABLES_MAX
    }

    fn memories(&self) -> usize {
        PLUGIN_MEMORIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_all_memories_of_an_instance_together() {
        let mut limiter = Limiter::new(ByteSize(300));
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        assert!(limiter.memory_growing(0, 100, None).unwrap());
        assert!(limiter.memory_growing(100, 200, None).unwrap());
        let error = limiter.memory_growing(100, 101, None).unwrap_err();
        assert!(error.to_string().contains("memory_max is 300B"), "{error}");
    }

    #[test]
    fn tables_are_counted_too() {
        let mut limiter = Limiter::new(ByteSize(0));
        assert!(limiter.table_growing(0, PLUGIN_TABLE_ELEMENTS_MAX, None).unwrap());
        assert!(limiter.table_growing(0, 1, None).is_err());
    }
}
