//! What goes wrong with plugins: when one is loaded, and when one is called.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::hex;

/// Why a plugin cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file is no plugin that this agent can run as a transform. All problems are listed.
    #[error("plugin {} cannot be used: {}", path.display(), problems.join("; "))]
    Unfit {
        /// The file.
        path: PathBuf,
        /// Every problem, in words for an operator.
        problems: Vec<String>,
    },
    /// The file is another one than the config pins.
    #[error(
        "plugin {} has the SHA-256 {}, and the config pins {}; a changed plugin needs a changed pin",
        path.display(), hex(found), hex(pinned)
    )]
    Pin {
        /// The file.
        path: PathBuf,
        /// The digest that it has.
        found: [u8; 32],
        /// The digest that it should have.
        pinned: [u8; 32],
    },
    /// The process that compiles could not be started, failed, or ran over its limits.
    #[error("plugin {} cannot be compiled: {reason}", path.display())]
    Compile {
        /// The file.
        path: PathBuf,
        /// What the process said, or what became of it.
        reason: String,
    },
    /// The folder of compiled plugins, or a file in it, cannot be read or written, or belongs to somebody else.
    #[error("the compiled plugins cannot be kept in {}", path.display())]
    Store {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that `plugin compile` reads or writes.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// "read" or "write".
        verb: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The thread that stops guests in time cannot be started.
    #[error("the thread that watches over plugins cannot be started")]
    Ticker(#[source] io::Error),
    /// The process that compiles cannot be bounded.
    #[error("the process that compiles cannot be bounded")]
    Bound(#[source] io::Error),
    /// This machine cannot run what the compiler makes.
    #[error("plugins cannot be run on this machine: {0}")]
    Engine(String),
}

impl PluginError {
    #[expect(clippy::needless_pass_by_value, reason = "for map_err")]
    pub(super) fn engine(error: wasmtime::Error) -> Self {
        Self::Engine(format!("{error:#}"))
    }

    /// A file with one problem.
    pub(super) fn unfit(path: impl Into<PathBuf>, problem: impl Into<String>) -> Self {
        Self::Unfit { path: path.into(), problems: vec![problem.into()] }
    }
}

/// Why a call failed. The instance that it was made on is of no use any more, but for the first two.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The plugin said so: the same call may work later.
    #[error("the plugin asks to try again later: {0}")]
    Retryable(String),
    /// The plugin said so: repeating cannot help, and the transform's `on_error` decides.
    #[error("the plugin cannot process the call: {0}")]
    Permanent(String),
    /// The guest broke down or broke a limit.
    #[error("{0}")]
    Fault(Fault),
    /// The host failed; the plugin is not to blame.
    #[error("the plugin host failed: {0}")]
    Host(#[source] Box<dyn Error + Send + Sync>),
}

/// How a guest broke down or which limit it met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What the lane goes by, and what counts in metrics.
    pub kind: FaultKind,
    /// What happened, for people. Holds no payload.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.text)
    }
}

impl Fault {
    pub(super) fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// It executed a trap: a panic, a division by zero, an access out of bounds.
    Trap,
    /// It took longer than its `deadline`, or longer than 10 s for `init`.
    Deadline,
    /// It wanted more memory than `memory_max`, or more table elements than there may be.
    Memory,
    /// It used more than 512 KiB of stack.
    Stack,
    /// It handed over more than the call may, or a record beyond the bounds of records.
    Output,
    /// It did not answer with one outcome for each record.
    WrongCount,
    /// It handed over what the contract has no meaning for, or used an import where it may not.
    Contract,
    /// Its `init` returned an error.
    InitError,
}

impl FaultKind {
    /// The word in logs, metrics, dead letters and status.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trap => "trap",
            Self::Deadline => "deadline",
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::Output => "output",
            Self::WrongCount => "wrong_count",
            Self::Contract => "contract",
            Self::InitError => "init_error",
        }
    }
}
