//! `waystation config`: `schema` for editors; `show`, what the config says, and with `--effective` also what it leaves to the defaults.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::ExitCode;
use super::check::print_problems;
use crate::config;
use crate::settings::{Entry, Origin};

/// Show the config, or what may be in one.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What can be done with the config.
#[derive(Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Print every value with where it came from; secrets are left out
    Show(ShowArgs),
    /// Print the JSON Schema of the config, by which editors complete keys and check values
    ///
    /// With `waystation config schema > waystation.schema.json`, a first line `#:schema ./waystation.schema.json` in the config
    /// names it to editors that know Taplo. What holds between keys and tables only `waystation check` knows.
    Schema,
}

/// Arguments of `config show`.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The config file
    #[arg(short = 'c', long = "config", value_name = "FILE", default_value = config::PATH_DEFAULT)]
    pub config: PathBuf,
    /// Also what the file leaves to the defaults
    #[arg(long)]
    pub effective: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Runs the command; gives the exit code.
///
/// # Errors
/// When standard output or standard error cannot be written.
pub fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    let args = match &args.command {
        ConfigCommand::Show(args) => args,
        ConfigCommand::Schema => {
            let text = serde_json::to_string_pretty(&config::schema())?;
            super::print(format!("{text}\n").as_bytes())?;
            return Ok(ExitCode::Done);
        }
    };
    // What a plugin file is like does not change what the config says.
    let loaded = config::load(&args.config, &config::process_environment, &|_| Ok(Vec::new()));
    let (problems, listing) = match loaded {
        Ok(loaded) => (loaded.warnings, Some(loaded.listing)),
        Err(problems) => (problems, None),
    };
    print_problems(&problems, args.json)?;
    let Some(listing) = listing else { return Ok(ExitCode::Config) };
    let shown = show(&listing, &args.config, args.effective, args.json);
    std::io::stdout().lock().write_all(shown.as_bytes())?;
    Ok(ExitCode::Done)
}

/// The listing as TOML with comments, or as JSON, one object a line.
#[must_use]
pub fn show(listing: &[Entry], file: &Path, effective: bool, json: bool) -> String {
    let entries =
        || listing.iter().filter(|e| effective || matches!(e.origin, Origin::File { .. }));
    if json {
        return entries().map(json_line).collect();
    }
    let folder = file.parent().map(|folder| folder.display().to_string() + "/");
    let folder = folder.filter(|folder| folder != "/").unwrap_or_default();
    let lines: Vec<_> = entries().map(|entry| (entry, assignment(entry))).collect();
    let width = lines.iter().map(|(_, line)| line.chars().count()).filter(|w| *w <= 60).max();
    let width = width.unwrap_or(0);
    let mut out = String::new();
    let mut section = "";
    for (entry, line) in &lines {
        if entry.section != section || out.is_empty() {
            let gap = if out.is_empty() { "" } else { "\n" };
            section = &entry.section;
            // Writing to a String cannot fail.
            let _ok = writeln!(out, "{gap}[{section}]");
        }
        let origin = match &entry.origin {
            Origin::File { name, line, .. } => {
                format!("{}:{line}", name.strip_prefix(folder.as_str()).unwrap_or(name))
            }
            Origin::Default => "default".to_owned(),
            Origin::Unset => "not set".to_owned(),
        };
        let _ok = writeln!(out, "{line:width$}  # {origin}");
    }
    out
}

fn assignment(entry: &Entry) -> String {
    match &entry.value {
        Some(value) => format!("{} = {value}", entry.key),
        None => format!("# {}", entry.key),
    }
}

fn json_line(entry: &Entry) -> String {
    let (origin, place) = match &entry.origin {
        Origin::File { name, line, .. } => ("file", Some((name, line))),
        Origin::Default => ("default", None),
        Origin::Unset => ("unset", None),
    };
    let (name, line) = place.unzip();
    let object = json!({
        "key": entry.path(),
        "value": entry.value,
        "origin": origin,
        "file": name.map(AsRef::as_ref).map(str::to_owned),
        "line": line,
    });
    format!("{object}\n")
}
