//! `waystation journal`: looks into the journal, beside a running agent and on a stopped one.

mod export;
mod info;
mod salvage;
mod verify;

use std::path::{Path, PathBuf};

use super::ExitCode;
use super::agent::socket;

/// Look into the journal
///
/// The journal is the database in the data directory that keeps every record until all its lanes have delivered it. These
/// commands work beside a running agent and on a stopped one, and change nothing; only `salvage` does, and wants the agent
/// stopped.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Info(info::Args),
    Verify(verify::Args),
    Export(export::Args),
    Salvage(salvage::Args),
}

/// Where the journal is.
#[derive(Debug, clap::Args)]
struct Place {
    /// The config file of the agent, for its data_dir [default: /etc/waystation/waystation.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
    /// The data directory, without looking into a config
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl Place {
    fn directory(&self) -> anyhow::Result<PathBuf> {
        match &self.data_dir {
            Some(directory) => Ok(directory.clone()),
            None => Ok(socket::data_dir(self.config.as_deref())?),
        }
    }
}

/// Runs `waystation journal`.
///
/// # Errors
/// When the journal cannot be read.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Info(args) => info::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Export(args) => export::run(args),
        Command::Salvage(args) => salvage::run(args),
    }
}

/// For messages: a number with its noun.
fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Something to show on standard error while a command takes its time; nothing where that is no terminal.
pub(super) fn progress(what: &'static str) -> indicatif::ProgressBar {
    use std::io::IsTerminal as _;

    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let bar = indicatif::ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

fn display(path: &Path) -> String {
    path.display().to_string()
}
