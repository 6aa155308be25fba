//! Reads the corpus of config files.

#[path = "it/config.rs"]
mod corpus;
