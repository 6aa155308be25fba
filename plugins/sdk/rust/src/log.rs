//! Lines in the agent's log, under the plugin's name. The agent cuts them at 1 KiB and takes 100 a second.

/// For whoever looks for a fault.
pub fn debug(message: &str) {
    imported::log(imported::Level::Debug, message);
}

/// Worth knowing.
pub fn info(message: &str) {
    imported::log(imported::Level::Info, message);
}

/// Degraded, but it goes on.
pub fn warn(message: &str) {
    imported::log(imported::Level::Warn, message);
}

/// Somebody must act.
pub fn error(message: &str) {
    imported::log(imported::Level::Error, message);
}

#[cfg(target_arch = "wasm32")]
use crate::bindings::waystation::plugin::log as imported;

#[cfg(not(target_arch = "wasm32"))]
mod imported {
    pub(super) use crate::bindings::waystation::plugin::log::Level;

    pub(super) fn log(level: Level, message: &str) {
        eprintln!("{level:?}: {message}");
    }
}
