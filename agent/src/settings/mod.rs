//! Reads a TOML file so that every problem is found at once, with its place.
//!
//! A part's `config.rs` asks a [`Table`] for its keys, one call each: name, one line of doc, bounds, default. The call gives the
//! value, and tells the [`Reading`] that the key is known (others are errors when the table goes), what its value is and
//! where that came from ([`Entry`]), and where it stands ([`Place`], for checks across parts). Nothing is named twice: the
//! effective listing, the hints and the "known keys" come from the calls.
//!
//! A config may have several files ([`merge()`]): they stand behind one another in one text, so that a place is one offset, and each
//! problem is shown in its own file.
//!
//! A reading without a document ([`Reading::describing`]) runs the same calls and yields all keys with docs, bounds and
//! defaults.
//!
//! Invariants: a value that was complained about never reaches the config, because a reading with errors gives none; no
//! problem shows a secret ([`mask`]). This module does not know any key of the agent.

mod document;
mod field;
mod listing;
pub mod mask;
mod merge;
mod problem;
mod reading;
mod render;
mod table;
pub mod template;
mod value;

pub use document::Document;
pub use field::Field;
pub use listing::{Entry, Origin, Shape};
pub use merge::merge;
pub use problem::{Complaint, Part, Problem, Problems, Severity};
pub use reading::{Place, Reading};
pub use table::{Kind, Table, nearest};
pub use value::WordOrPath;
