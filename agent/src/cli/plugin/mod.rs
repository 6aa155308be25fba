//! `waystation plugin`: what plugin authors and the agent itself need around a plugin's file.

mod bench;
mod cases;
mod certify;
mod given;
mod inspect;
mod new;
mod pack;
mod pool;
mod report;
mod settings;
mod test;

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use rustix::process::{
    Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit,
};

use super::ExitCode;
use crate::limits::{COMPILE_ADDRESS_SPACE_BYTES_MAX, COMPILED_BYTES_MAX};
use crate::plugin::{self, PluginError};

/// Arguments of `waystation plugin`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Begin a plugin: a project that builds, with its cases and a pipeline to try it in
    ///
    /// Nothing is fetched. The project's README.md says what has to be installed to build it; `sh build.sh` does.
    New(new::Args),
    /// Make a component of a core module
    ///
    /// What compilers make of most languages is a core module; the agent runs components. Everything needed is built in: the
    /// WIT of this version, and a stub for what a runtime asks of WASI at its start. Prints the SHA-256 of the component, which
    /// a config can pin.
    Pack(pack::Args),
    /// Show what a plugin's file is, and everything that keeps it from being used
    ///
    /// A component that can be used is asked for its name, version, summary and the schema of its config, within the usual
    /// limits. Exits with 1 when the file cannot be used.
    Inspect(inspect::Args),
    Test(test::Args),
    Certify(certify::Args),
    Bench(bench::Args),
    /// Compile a plugin to machine code for this machine and this version of the agent
    ///
    /// The agent does this by itself, in a process of its own, when it meets a new plugin. By hand it is of use for a fleet of
    /// equal machines: name the compiled file as `plugin` in the config, and pin it with the printed digest as `sha256`.
    Compile(Compile),
}

#[derive(Debug, clap::Args)]
struct Compile {
    /// The plugin, a WebAssembly component
    file: PathBuf,
    /// Where the machine code goes; a file that exists is not replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Refuse the plugin when its SHA-256 is another
    #[arg(long, value_name = "HEX", value_parser = parse_digest)]
    sha256: Option<Digest>,
}

/// A SHA-256 on the command line. A type of its own: clap takes a bare array for a list of values.
#[derive(Debug, Clone, Copy)]
struct Digest([u8; 32]);

/// Runs `waystation plugin`.
///
/// # Errors
/// Says what failed, with the file.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::New(args) => new::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Test(args) => test::run(args),
        Command::Certify(args) => certify::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Compile(args) => compile(args),
    }
}

fn compile(compile: &Compile) -> anyhow::Result<ExitCode> {
    bound_this_process().context("cannot set the bounds of this process")?;
    let pinned = compile.sha256.map(|digest| digest.0);
    let digest = plugin::compile_file(&compile.file, &compile.output, pinned)?;
    match writeln!(std::io::stdout(), "{}", plugin::hex(&digest)) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::Done),
    }
}

/// Problems behind what they keep from working: one on the same line, several below each other.
fn listed(what: &str, problems: &[String]) -> String {
    match problems {
        [problem] => format!("{what}: {problem}"),
        _ => problems.iter().fold(format!("{what}:"), |text, problem| text + "\n  - " + problem),
    }
}

/// Tells the person at the terminal; standard output is for data.
fn on_stderr(text: &str) {
    // Without a standard error there is nobody to tell.
    let _closed = writeln!(std::io::stderr().lock(), "{text}");
}

/// A compiler is fed by strangers. It gets a bounded address space, writes no huge file, leaves no core, and ends with whoever
/// started it.
fn bound_this_process() -> Result<(), PluginError> {
    let bounds = [
        (Resource::As, COMPILE_ADDRESS_SPACE_BYTES_MAX),
        (Resource::Fsize, COMPILED_BYTES_MAX),
        (Resource::Core, 0),
    ];
    for (resource, bound) in bounds {
        let lower = |limit: Option<u64>| Some(limit.map_or(bound, |limit| limit.min(bound)));
        let now = getrlimit(resource);
        let limit = Rlimit { current: lower(now.current), maximum: lower(now.maximum) };
        setrlimit(resource, limit).map_err(|error| PluginError::Bound(error.into()))?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| PluginError::Bound(error.into()))
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    let mut digest = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err("a SHA-256 has 64 hexadecimal digits".to_owned());
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        let value = pair.iter().fold(0, |value, digit| {
            value * 16 + char::from(*digit).to_digit(16).unwrap_or_default()
        });
        *byte = u8::try_from(value).unwrap_or_default();
    }
    Ok(Digest(digest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn the_arguments_are_those_that_the_plugin_host_uses() {
        let digest = plugin::hex(&[0xa7; 32]);
        let cli = Cli::try_parse_from([
            "plugin", "compile", "in.wasm", "--sha256", &digest, "--output", "out",
        ]);
        let Command::Compile(compile) = cli.unwrap().args.command else { panic!() };
        assert_eq!(compile.file, PathBuf::from("in.wasm"));
        assert_eq!(compile.output, PathBuf::from("out"));
        assert_eq!(compile.sha256.unwrap().0, [0xa7; 32]);
        for bad in ["", "a7", &"x".repeat(64)] {
            let cli =
                Cli::try_parse_from(["plugin", "compile", "in", "-o", "out", "--sha256", bad]);
            assert!(cli.is_err(), "{bad}");
        }
    }

    /// What the tests of the plugin host run as their compiler: arguments come in a file, since a test has none of its own.
    #[test]
    #[ignore = "run in a process of its own by the tests of the plugin host"]
    fn child_compiles() {
        let arguments = std::fs::read_to_string("arguments").unwrap();
        let cli = Cli::try_parse_from(arguments.lines());
        run(&cli.unwrap().args).unwrap();
        assert_eq!(getrlimit(Resource::As).current, Some(COMPILE_ADDRESS_SPACE_BYTES_MAX));
        assert_eq!(getrlimit(Resource::Core).maximum, Some(0));
    }
}
