//! What the agent says about itself: the log, and the text in which metrics are told.
//!
//! It knows nothing of what is logged or counted; the parts and the admin server do.

#[cfg(test)]
pub(crate) mod captured;
pub mod config;
mod logging;
mod registry;

pub use logging::{Logging, init};
pub use registry::{CONTENT_TYPE, Families, exposition};
