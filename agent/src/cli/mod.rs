//! The command line: one file per command, with its `Args` and its `run`.
//!
//! Data goes to standard output, everything else to standard error. A command returns how the process ends or an error; errors
//! are printed in one place, `report.rs`.

mod agent;
pub mod check;
pub mod completions;
pub mod config;
pub mod dlq;
mod exit;
pub mod explain;
pub mod flush;
pub mod journal;
pub mod lane;
pub mod man;
pub mod pause;
#[cfg(feature = "compiler")]
pub mod plugin;
pub mod reload;
mod report;
pub mod resume;
pub mod run;
mod service;
mod signals;
pub mod status;
mod stopped;
pub mod version;
mod workshop;

use std::ffi::OsString;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context as _;
use clap::Parser as _;

use crate::plugin::PluginUse;

pub use exit::ExitCode;
pub use report::Failure;

/// Takes records in where they arise, keeps them safe, and delivers them when the link allows
///
/// Records are in a local journal on disk before whoever sent them hears "accepted". WebAssembly plugins transform them, and
/// they leave for an upstream at the rate that the link allows, each under one identity, so that nothing is counted twice.
/// Sources, transforms, sinks and the pipelines between them are in one TOML file.
#[derive(Debug, clap::Parser)]
#[command(
    name = "waystation",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    after_long_help = "\
Files:
  /etc/waystation/waystation.toml   the config, unless -c names another
  /var/lib/waystation               the data directory, unless the config names another

Exit codes:
   0  done
   1  failed; the same may work later
   2  wrong usage
  70  a fault of waystation itself
  74  the journal cannot be used
  78  the config cannot be used"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Status(status::Args),
    Reload(reload::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Flush(flush::Args),
    Lane(lane::Args),
    Explain(explain::Args),
    Dlq(dlq::Args),
    Journal(journal::Args),
    /// Work with a plugin's file
    #[cfg(feature = "compiler")]
    Plugin(plugin::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    Man(man::Args),
    Version(version::Args),
}

/// Runs the command that the arguments name, the program's own name first. Prints its error, if it has one.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help that nobody reads to its end has done what it could.
            let _closed = error.print();
            // Help and version were asked for, everything else is wrong usage.
            return if error.use_stderr() { ExitCode::Usage } else { ExitCode::Done };
        }
    };
    // The hook has printed the panic. What it may have left behind half done goes with the process.
    match catch_unwind(AssertUnwindSafe(|| dispatch(&cli.command))) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => report::report(&error),
        Err(_) => ExitCode::Internal,
    }
}

fn dispatch(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => return run::run(args),
        Command::Check(args) => return check::run(args, &inspect_plugin),
        Command::Config(args) => return config::run(args),
        Command::Journal(args) => return journal::run(args),
        Command::Flush(args) => return flush::run(args),
        Command::Reload(args) => return reload::run(args),
        Command::Explain(args) => return explain::run(args),
        #[cfg(feature = "compiler")]
        Command::Plugin(args) => return plugin::run(args),
        Command::Dlq(args) => return dlq::run(args),
        Command::Lane(args) => return lane::run(args),
        Command::Status(args) => status::run(args)?,
        Command::Pause(args) => pause::run(args)?,
        Command::Resume(args) => resume::run(args)?,
        Command::Completions(args) => completions::run(args)?,
        Command::Man(args) => man::run(args)?,
        Command::Version(args) => version::run(args)?,
    }
    Ok(ExitCode::Done)
}

/// Looks at a transform's component as a start would, but compiles nothing.
fn inspect_plugin(used: PluginUse<'_>) -> Result<Vec<String>, Vec<String>> {
    crate::plugin::check(used).map(|inspection| inspection.warnings(used))
}

/// Writes data to standard output, to its end: what is left to the end of the process could fail without a word.
fn print(data: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(data).and_then(|()| out.flush()).context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn help_of(command: &mut clap::Command, path: &str, out: &mut Vec<(String, String)>) {
        let name = format!("{path}{}", command.get_name());
        // Only a built command knows its full name and its inherited settings.
        let mut alone = command.clone().bin_name(name.replace('-', " "));
        out.push((name.clone(), alone.render_long_help().to_string()));
        let is_shown =
            |child: &&mut clap::Command| child.get_name() != "help" && !child.is_hide_set();
        for child in command.get_subcommands_mut().filter(is_shown) {
            help_of(child, &format!("{name}-"), out);
        }
    }

    #[test]
    fn the_help_of_every_command_is_this() {
        let mut pages = Vec::new();
        help_of(&mut Cli::command().term_width(100), "", &mut pages);
        assert!(pages.len() >= 5, "{}", pages.len());
        for (name, help) in pages {
            insta::assert_snapshot!(format!("help-{name}"), help);
        }
    }

    #[test]
    fn the_commands_fit_together() {
        Cli::command().debug_assert();
    }

    fn run(arguments: &[&str]) -> ExitCode {
        super::run(arguments.iter().map(OsString::from))
    }

    #[test]
    fn wrong_usage_ends_with_2_and_help_with_0() {
        assert_eq!(run(&["waystation"]), ExitCode::Usage);
        assert_eq!(run(&["waystation", "fly"]), ExitCode::Usage);
        assert_eq!(run(&["waystation", "status", "--socket"]), ExitCode::Usage);
        assert_eq!(run(&["waystation", "--help"]), ExitCode::Done);
        assert_eq!(run(&["waystation", "--version"]), ExitCode::Done);
    }
}
