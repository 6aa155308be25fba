//! `waystation man`: the man pages of all commands, for packages.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::Cli;

/// Write the man page of every command into a folder
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder, which has to exist
    folder: PathBuf,
}

/// Runs `waystation man`.
///
/// # Errors
/// When the folder cannot be written into.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    clap_mangen::generate_to(Cli::command(), &args.folder)
        .with_context(|| format!("cannot write the man pages into {}", args.folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_that_is_shown_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        run(&Args { folder: folder.path().to_owned() }).unwrap();
        let page = |name: &str| std::fs::read_to_string(folder.path().join(name));
        let main = page("waystation.1").unwrap();
        assert!(main.contains("the journal cannot be used"), "{main}");
        assert!(page("waystation-run.1").unwrap().contains("SIGTERM"));
        assert!(page("waystation-journal-info.1").is_ok());
        assert!(page("waystation-man.1").is_err());
    }
}
