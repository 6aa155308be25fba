//! How the process ends. The numbers are an interface: service managers and scripts go by them.

/// The exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// What was asked for is done.
    Done = 0,
    /// It failed; the same may work later.
    Failed = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// A fault of Waystation itself.
    Internal = 70,
    /// The journal cannot be used; starting again does not help.
    Journal = 74,
    /// The config cannot be used; starting again does not help.
    Config = 78,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}
