//! What runs components: an engine, what their imports are linked with, and the clock that stops them.

use std::sync::Arc;

use wasmtime::Engine;
use wasmtime::component::{Component, HasSelf, Linker};

use super::bindings::waystation::plugin as imports;
use super::engine::{self, Memories, Ticker, TickerSlot};
use super::error::PluginError;
use super::host::HostState;
use super::inspect::Role;
use super::memory::KeptMemories;

/// Components of one kind of memory run in it.
pub(super) struct Runtime {
    pub(super) engine: Engine,
    transforms: Linker<HostState>,
    sinks: Linker<HostState>,
    memories: KeptMemories,
    tickers: TickerSlot,
}

impl Runtime {
    pub(super) fn new(memories: Memories) -> Result<Self, PluginError> {
        let kept = KeptMemories::default();
        let engine = engine::engine(memories, &kept)?;
        Ok(Self {
            transforms: linker(&engine, Role::Transform).map_err(PluginError::engine)?,
            sinks: linker(&engine, Role::Sink).map_err(PluginError::engine)?,
            engine,
            memories: kept,
            tickers: TickerSlot::default(),
        })
    }

    pub(super) fn linker(&self, role: Role) -> &Linker<HostState> {
        match role {
            Role::Transform => &self.transforms,
            Role::Sink => &self.sinks,
        }
    }

    /// The clock of this engine's guests.
    pub(super) fn ticker(&self) -> Result<Arc<Ticker>, PluginError> {
        self.tickers.get(&self.engine, &self.memories)
    }

    /// What distinguishes its compiled files from others.
    #[cfg(feature = "compiler")]
    pub(super) fn compatibility(&self) -> u64 {
        engine::compatibility(&self.engine)
    }

    /// Takes code that an operator has compiled. It is copied: the file may change at any time.
    #[expect(unsafe_code, reason = "machine code can only be believed, not checked")]
    pub(super) fn copy(&self, code: &[u8]) -> wasmtime::Result<Component> {
        // SAFETY: the bytes are what `precompile_component` made: they have the SHA-256 that the config pins.
        unsafe { Component::deserialize(&self.engine, code) }
    }
}

/// What guests of a role may import.
fn linker(engine: &Engine, role: Role) -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine);
    imports::types::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    imports::log::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    imports::state::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    if role == Role::Sink {
        imports::http::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)?;
    }
    Ok(linker)
}
