//! What a component says of itself, through its optional interface `about`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use wasmtime::Store;
use wasmtime::component::{Component, ComponentType, Lift};

use super::call::{look_at_the_clock, set_deadline};
use super::error::PluginError;
use super::host::{HostState, LogGate};
use super::limiter::Limiter;
use super::state::StateView;
use super::{PluginHost, contract, inspect, sha256};
use crate::clock::Monotonic;
use crate::limits::{PLUGIN_INIT_MS_MAX, PLUGIN_MEMORY_BYTES_DEFAULT, PLUGIN_OUTPUT_BYTES_MIN};
use crate::record::batch::LanePlace;
use crate::units::ByteSize;

/// What a component says of itself.
#[derive(Debug, Clone, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// JSON Schema of the `config` table, as text; empty when anything goes.
    #[component(name = "config-schema")]
    pub config_schema: String,
}

impl PluginHost {
    /// Has a component say what it is, within the limits of an `init`. `None` when it does not export `about`. Compiles it first.
    ///
    /// # Errors
    /// When it cannot be read or compiled, or breaks down.
    pub fn describe(
        &self,
        path: &Path,
        place: &LanePlace,
    ) -> Result<Option<Description>, PluginError> {
        let source = |source| PluginError::File { verb: "read", path: path.to_owned(), source };
        let bytes = inspect::read(path).map_err(source)?;
        let about = format!("waystation:plugin/about@{}", contract::VERSION);
        let (_, exports) = inspect::top_level(&bytes)
            .map_err(|error| PluginError::unfit(path, error.to_string()))?;
        if !exports.contains(&about) {
            return Ok(None);
        }
        let component = self.compiled_by_child(path, &bytes, sha256(&bytes))?;
        self.call_describe(&component, &about, place).map(Some).map_err(|error| {
            PluginError::unfit(path, format!("it cannot say what it is: {error:#}"))
        })
    }

    fn call_describe(
        &self,
        component: &Component,
        about: &str,
        place: &LanePlace,
    ) -> wasmtime::Result<Description> {
        let id = "about".parse().map_err(|_| wasmtime::Error::msg("no name for its log"))?;
        let state = HostState {
            limiter: Limiter::new(ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT)),
            state: StateView::default(),
            state_writable: false,
            lane: place.lane.clone(),
            log: Arc::new(LogGate::new(id, Arc::clone(&self.clock))),
            deadline: Monotonic::default(),
        };
        let mut store = Store::new(&self.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(PLUGIN_OUTPUT_BYTES_MIN);
        store.epoch_deadline_callback(look_at_the_clock);
        set_deadline(&mut store, Duration::from_millis(PLUGIN_INIT_MS_MAX));
        let ticker = self.tickers.get(&self.engine).map_err(wasmtime::Error::new)?;
        let running = ticker.run();
        let instance = self.linker.instantiate(&mut store, component)?;
        let missing = || wasmtime::Error::msg("the function describe is not there");
        let interface = instance.get_export_index(&mut store, None, about).ok_or_else(missing)?;
        let function = instance
            .get_export_index(&mut store, Some(&interface), "describe")
            .ok_or_else(missing)?;
        let function = instance.get_typed_func::<(), (Description,)>(&mut store, &function)?;
        let (description,) = function.call(&mut store, ())?;
        drop(running);
        Ok(description)
    }
}
