//! `cargo xtask`: what the people who work on Waystation run.
//!
//! Every command installs what it needs, says what and why before it does, and shows what it is at and how long that
//! took. What is data goes to standard output, everything else to standard error.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a tool for the terminal: it prints, takes the time of its steps, and no agent code runs in it"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod arm64;
mod bench;
mod ci;
mod demo;
mod dist;
mod install;
mod languages;
mod licences;
mod nats;
mod notify;
mod plugins;
mod process;
mod sensors;
mod spdx;
mod suite;
mod ui;

/// What the people who work on Waystation run.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Show the whole way of 100 000 records, from a file through the journal and a plugin into files.
    Demo(demo::Arguments),
    /// Install what the tests need, build the guests, and run all tests.
    Test {
        /// Filters and options for `cargo nextest run` (or for `cargo test`, where nextest is not installed).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FILTER")]
        filter: Vec<String>,
    },
    /// Run everything that must be green before a change is taken.
    Ci(ci::Arguments),
    /// Build the plugins and the guests of the tests into target/plugins/.
    Plugins {
        /// The ones to build; all of them when none is named.
        names: Vec<String>,
    },
    /// Measure a part in a release build, and keep the figures in target/bench/NAME.json.
    Bench(bench::Arguments),
    /// Make the Debian package and the tarball in target/dist/.
    Dist(dist::Arguments),
}

fn main() -> ExitCode {
    let root = root();
    let result = match Arguments::parse().command {
        Task::Demo(arguments) => demo::run(&root, &arguments).map(|()| true),
        Task::Test { filter } => suite::run_all(&root, &filter),
        Task::Ci(arguments) => ci::run(&root, &arguments),
        Task::Plugins { names } => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            plugins::run(&root, &names).map(|()| true)
        }
        Task::Bench(arguments) => bench::run(&root, &arguments).map(|()| true),
        Task::Dist(arguments) => dist::run(&root, &arguments).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the checkout: the folder above this package.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in a folder of the workspace").to_owned()
}
