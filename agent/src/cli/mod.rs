//! The command line.

pub mod check;
pub mod config;
pub mod plugin;
