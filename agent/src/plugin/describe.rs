//! What a component says of itself, through its optional interface `about`.

use std::path::Path;
use std::sync::Arc;

use wasmtime::component::{Component, ComponentType, Lift};

use super::error::PluginError;
use super::guest::new_store;
use super::host::LogGate;
use super::runtime::Runtime;
use super::{PluginHost, Role, component, contract, inspect, sha256};
use crate::limits::PLUGIN_MEMORY_BYTES_DEFAULT;
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
        let (_, exports) = component::top_level(&bytes)
            .map_err(|error| PluginError::unfit(path, error.to_string()))?;
        if !exports.contains(&about) {
            return Ok(None);
        }
        let is_sink = exports.iter().any(|export| contract::is(export, contract::SINK.name));
        let role = if is_sink { Role::Sink } else { Role::Transform };
        let (runtime, component) = self.compiled_by_child(path, &bytes, sha256(&bytes), role)?;
        self.call_describe(runtime, &component, &about, role, place).map(Some).map_err(|error| {
            PluginError::unfit(path, format!("it cannot say what it is: {error:#}"))
        })
    }

    fn call_describe(
        &self,
        runtime: &Runtime,
        component: &Component,
        about: &str,
        role: Role,
        place: &LanePlace,
    ) -> wasmtime::Result<Description> {
        let log = Arc::new(LogGate::new("about".to_owned(), Arc::clone(&self.clock)));
        let memory_max = ByteSize(PLUGIN_MEMORY_BYTES_DEFAULT);
        let mut store = new_store(&runtime.engine, memory_max, place, log);
        let ticker = runtime.ticker().map_err(wasmtime::Error::new)?;
        let running = ticker.run();
        let instance = runtime.linker(role).instantiate(&mut store, component)?;
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
