//! The integration tests, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "helpers of tests stand outside of what clippy takes for tests"
)]

/// The corpus of configs, and what is said about each.
mod config;
/// What clippy cannot see: import order, file length, leftovers, examples that parse.
mod tidy;
