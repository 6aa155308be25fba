//! x
pub mod config;
