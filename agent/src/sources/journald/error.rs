//! Why nothing comes from journald.

use std::io;
use std::path::PathBuf;

use super::export::Malformed;

/// A failure of journalctl, or to read from it. The next try goes on behind what is durable.
#[derive(Debug, thiserror::Error)]
pub enum JournaldError {
    /// It cannot be started.
    #[error("cannot start {}, which comes with systemd and reads its files", program.display())]
    Start {
        /// What was to be started.
        program: PathBuf,
        /// Why it was not.
        #[source]
        error: io::Error,
    },
    /// It has ended, though it was to follow.
    #[error("journalctl has ended ({status}){said}")]
    Ended {
        /// Its exit status, or the signal.
        status: String,
        /// What it said, after a separator, and what to do about it; or nothing.
        said: String,
    },
    /// Its output cannot be read.
    #[error("cannot read what journalctl writes")]
    Read(#[source] io::Error),
    /// Its output is not of its format.
    #[error("journalctl has written what is no journal export")]
    Export(#[source] Malformed),
}
