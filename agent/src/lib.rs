//! Waystation, an edge agent: records come in from local sources, are safe in a local journal before their producer hears
//! "accepted", are transformed by WebAssembly plugins, and leave for an upstream when the link allows.
//!
//! The modules stand here in layer order; each imports only from those above it (`ARCHITECTURE.md`).

// layer 0: leaves
pub mod backoff;
pub mod clock;
pub mod error_chain;
#[cfg(test)]
mod fuzz;
pub mod limiter;
pub mod limits;
pub mod memory;
pub mod secret;
pub mod tasks;
pub mod units;

// layer 1: vocabulary
pub mod record;
pub mod settings;
pub mod telemetry;

// layer 2: mechanisms
pub mod journal;
pub mod net;
pub mod plugin;

// layer 3: the edges
pub mod sinks;
pub mod sources;

// layer 4
pub mod lane;

// layer 5
pub mod config;

// layer 6
pub mod supervisor;

// layer 7
pub mod admin;

// layer 8
pub mod cli;
