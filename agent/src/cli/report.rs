//! Prints an error once, with its chain and a hint, and says how the process ends.

use std::error::Error;
use std::io::{self, Write as _};

use super::ExitCode;
use crate::error_chain::Chain;
use crate::journal::JournalError;

/// A failure of a command that knows its exit code, or what to do next.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// How the process ends.
    pub code: ExitCode,
    /// What failed.
    pub message: String,
    /// What to do next, if we can know it.
    pub hint: Option<String>,
}

/// Prints the error to standard error; gives the exit code that belongs to it.
pub(super) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output has seen enough.
        return ExitCode::Done;
    }
    let mut text = format!("error: {}\n", Chain(error.as_ref()));
    if let Some(hint) = hint(error) {
        text.push_str(&format!("hint: {hint}\n"));
    }
    // Without a standard error there is nobody to tell.
    let _closed = io::stderr().lock().write_all(text.as_bytes());
    code(error)
}

fn find<E: Error + 'static>(error: &anyhow::Error) -> Option<&E> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    find::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn code(error: &anyhow::Error) -> ExitCode {
    if let Some(failure) = find::<Failure>(error) {
        failure.code
    } else if find::<JournalError>(error).is_some() {
        ExitCode::Journal
    } else {
        ExitCode::Failed
    }
}

fn hint(error: &anyhow::Error) -> Option<&str> {
    if let Some(failure) = find::<Failure>(error) {
        return failure.hint.as_deref();
    }
    match find::<JournalError>(error)? {
        JournalError::Locked { .. } => {
            Some("stop that agent first, or give this one another data_dir in [agent]")
        }
        JournalError::DataDirectory { .. } => {
            Some("the user that runs the agent must own it; [agent] data_dir names another")
        }
        JournalError::WalDamaged { .. } | JournalError::Damaged { .. } => {
            Some("copy the data directory away before anything else is done to it")
        }
        JournalError::Full { .. } => {
            Some("make room on the volume, or move the data directory to a larger one")
        }
        JournalError::ReadOnly { .. } => {
            Some("the volume is mounted read-only, or the file belongs to another user")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_failure_keeps_its_code_and_hint_under_any_context() {
        let failure = Failure {
            code: ExitCode::Config,
            message: "the config has 2 errors".to_owned(),
            hint: Some("see above".to_owned()),
        };
        let error = Err::<(), _>(failure).context("cannot start").unwrap_err();
        assert_eq!((code(&error), hint(&error)), (ExitCode::Config, Some("see above")));
        assert_eq!(Chain(error.as_ref()).to_string(), "cannot start: the config has 2 errors");
    }

    #[test]
    fn a_journal_that_cannot_be_used_ends_with_74_and_says_what_to_do() {
        let locked = JournalError::Locked { path: "/data".into(), pid: "17".to_owned() };
        let error = anyhow::Error::new(locked).context("cannot open the journal");
        assert_eq!(code(&error), ExitCode::Journal);
        assert!(hint(&error).unwrap().contains("stop that agent first"));
    }

    #[test]
    fn a_broken_pipe_is_no_failure() {
        let error = anyhow::Error::new(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(report(&error.context("cannot write")), ExitCode::Done);
    }
}
