//! x
pub mod config;
pub mod file;
