//! `cargo xtask ci`: everything that must be green before a change is taken.
//!
//! A section that fails does not keep the others from running. The last line is `N passed, N failed`: the tests, and one
//! more failure for each section that failed otherwise. One section can be run by itself.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::suite::{self, Build, Counts, Size};
use crate::ui::{self, Align, Step};
use crate::{arm64, dist, install, languages, licences, process};

/// The manifest of the guests' workspace.
const GUESTS: &str = "plugins/Cargo.toml";

/// One check.
struct Section {
    name: &'static str,
    /// Runs it; sections without tests count none.
    run: fn(&Path) -> Result<Counts>,
}

/// The sections, quick ones first.
const SECTIONS: [Section; 9] = [
    Section { name: "format", run: format },
    Section { name: "licences, duplicates", run: dependencies },
    Section { name: "clippy", run: clippy },
    Section { name: "documentation", run: documentation },
    Section { name: "test set-up, plugins", run: prepare },
    Section { name: "plugins: format", run: guests_format },
    Section { name: "plugins: clippy", run: guests_clippy },
    Section { name: "plugins: tests", run: guests_tests },
    Section { name: "tests", run: tests },
];

/// What only `--full` runs.
const FULL_SECTIONS: [Section; 7] = [
    Section { name: "release build", run: release },
    Section { name: "package", run: package },
    Section { name: "package for arm64", run: package_for_arm64 },
    Section { name: "agent for small machines", run: small_machines },
    Section { name: "tests for arm64", run: arm64::tests },
    Section { name: "plugins in slow languages", run: slow_languages },
    Section { name: "full sizes", run: full_sizes },
];

/// What is larger here than for `cargo xtask test`: decoders of bytes from outside are fuzzed for so long each.
const SIZES: [Size; 1] = [("WAYSTATION_TEST_FUZZ_SECONDS", "20")];

/// The sizes of the suites that are reported, in the profile `full`, a release build without link-time optimisation.
/// `WAYSTATION_TEST_SEED` repeats a run.
const FULL_SIZES: [Size; 11] = [
    ("WAYSTATION_TEST_KILLS", "500"),
    ("WAYSTATION_TEST_LEADER_CHANGES", "20"),
    ("WAYSTATION_TEST_NODE_RESTARTS", "20"),
    ("WAYSTATION_TEST_IMAGES", "10000"),
    ("WAYSTATION_TEST_FAULTS", "1000"),
    ("WAYSTATION_TEST_DAMAGE", "1000"),
    ("WAYSTATION_TEST_CASES", "20000"),
    ("WAYSTATION_TEST_OPERATIONS", "200"),
    ("WAYSTATION_TEST_RELOADS", "300"),
    ("WAYSTATION_TEST_FULL_VOLUMES", "40"),
    ("WAYSTATION_TEST_FUZZ_SECONDS", "20"),
];
/// Those suites, and where they are. One row after the other: servers and clients of the first share no machine with the second.
const FULL_SUITES: [(&str, &[&str]); 2] = [
    (
        "--test=it",
        &[
            "crash",
            "in_a_cluster",
            "d_26",
            "keeps_its_connection",
            "d_05_a_full_volume",
            "sockets_killed",
            "fuzzed",
        ],
    ),
    (
        "--lib",
        &[
            "any_sequence_of_operations_leaves_what_the_model_says",
            "no_power_cut_loses_or_changes_what_was_acknowledged",
            "no_io_fault_makes_the_journal_lie_or_stop",
            "whatever_is_damaged_it_opens",
            "fuzzed",
        ],
    ),
];

/// How a section ended.
struct Ended {
    name: &'static str,
    elapsed: Duration,
    result: Result<Counts>,
}

/// Which sections to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Run the long ones too: release builds, packages, arm64, slow languages and the full sizes of the suites.
    #[arg(long)]
    full: bool,
    /// Run this one only, long or not, by its name in the table; can be repeated.
    #[arg(long, value_name = "NAME")]
    section: Vec<String>,
}

/// The sections that are asked for, in their order.
fn selected(Arguments { full, section: names }: &Arguments) -> Result<Vec<&'static Section>> {
    let all = || SECTIONS.iter().chain(&FULL_SECTIONS);
    if names.is_empty() {
        return Ok(all().take(if *full { usize::MAX } else { SECTIONS.len() }).collect());
    }
    let known: Vec<_> = all().map(|section| section.name).collect();
    let unknown: Vec<_> =
        names.iter().filter(|name| !known.contains(&name.as_str())).map(String::as_str).collect();
    ensure!(
        unknown.is_empty(),
        "there is no section {}; there are: {}",
        unknown.join(", "),
        known.join(" · ")
    );
    Ok(all().filter(|section| names.iter().any(|name| name == section.name)).collect())
}

/// Runs the sections, prints a table of them, and returns whether all were good.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<bool> {
    let sections = selected(arguments)?;
    if let Err(error) = install::rust_components() {
        // The sections that need them fail by themselves; the others have something to say all the same.
        eprintln!("error: {error:#}");
    }
    let ended: Vec<Ended> = sections
        .into_iter()
        .map(|section| {
            let step = Step::start(section.name);
            let begin = Instant::now();
            let result = (section.run)(root);
            match &result {
                Ok(_) => step.done(),
                Err(error) => eprintln!("error: {error:#}"),
            }
            Ended { name: section.name, elapsed: begin.elapsed(), result }
        })
        .collect();
    eprint!("\n{}\n", table(&ended));
    let total = total(&ended);
    // Both streams may end up in one file: the count has to be its last line.
    eprintln!("{}", total.line());
    Ok(total.failed == 0)
}

fn table(ended: &[Ended]) -> String {
    let rows: Vec<[String; 4]> = ended
        .iter()
        .map(|Ended { name, elapsed, result }| {
            let (state, note) = match result {
                Ok(counts) if *counts == Counts::default() => ("ok", String::new()),
                Ok(counts) if counts.failed == 0 => ("ok", counts.line()),
                Ok(counts) => ("FAILED", counts.line()),
                Err(error) => ("FAILED", error.to_string().lines().next().unwrap_or("").to_owned()),
            };
            [(*name).to_owned(), state.to_owned(), ui::seconds(*elapsed), note]
        })
        .collect();
    ui::table([Align::Left, Align::Left, Align::Right, Align::Left], &rows)
}

fn total(ended: &[Ended]) -> Counts {
    ended.iter().fold(Counts::default(), |total, Ended { result, .. }| {
        total.and(match result {
            Ok(counts) => *counts,
            Err(_) => Counts { passed: 0, failed: 1 },
        })
    })
}

/// Runs a command that counts no tests.
fn plain(command: &mut std::process::Command) -> Result<Counts> {
    process::run(command).map(|()| Counts::default())
}

fn format(root: &Path) -> Result<Counts> {
    plain(process::cargo(root).args(["fmt", "--all", "--check"]))
}

fn dependencies(root: &Path) -> Result<Counts> {
    licences::check(root, &[Path::new("Cargo.toml"), Path::new(GUESTS)])?;
    Ok(Counts::default())
}

fn clippy(root: &Path) -> Result<Counts> {
    let mut command = process::cargo(root);
    command.args(["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]);
    plain(&mut command)?;
    let mut minimal = process::cargo(root);
    minimal.args(["clippy", "--package", "waystation", "--no-default-features", "--lib", "--bins"]);
    plain(minimal.args(["--locked", "--", "-D", "warnings"]))
}

fn documentation(root: &Path) -> Result<Counts> {
    let mut command = process::cargo(root);
    command.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"]);
    plain(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn prepare(root: &Path) -> Result<Counts> {
    suite::prepare(root)?;
    Ok(Counts::default())
}

fn guests_format(root: &Path) -> Result<Counts> {
    for manifest in [GUESTS, "examples/plugins/rust/Cargo.toml"] {
        let arguments = ["fmt", "--check", "--manifest-path", manifest];
        let all = (manifest == GUESTS).then_some("--all");
        plain(process::cargo(root).args(arguments).args(all))?;
    }
    Ok(Counts::default())
}

/// On the host's own target: what differs on the guests' is little, and their build shows it.
fn guests_clippy(root: &Path) -> Result<Counts> {
    let mut command = process::cargo(root);
    command.args(["clippy", "--workspace", "--all-targets", "--locked", "--manifest-path", GUESTS]);
    plain(command.args(["--", "-D", "warnings"]))
}

fn guests_tests(root: &Path) -> Result<Counts> {
    let counts = suite::run(root, &["--workspace", "--manifest-path", GUESTS], &[])?;
    Ok(counts
        .and(suite::documentation(root, &["-p", "waystation-plugin", "--manifest-path", GUESTS])?))
}

fn tests(root: &Path) -> Result<Counts> {
    let counts = suite::agent(root, &[], &SIZES)?;
    if counts.passed + counts.failed == 0 {
        bail!("no test was run");
    }
    Ok(counts)
}

fn release(root: &Path) -> Result<Counts> {
    plain(process::cargo(root).args(["build", "--release", "--bin", "waystation", "--locked"]))
}

/// The Debian package, installed, upgraded, removed and purged in a fresh Debian.
fn package(root: &Path) -> Result<Counts> {
    dist::run_with_trial(root)?;
    Ok(Counts::default())
}

/// Both packages for arm64, and the agent in them on its whole way under emulation.
fn package_for_arm64(root: &Path) -> Result<Counts> {
    dist::run_for_arm64(root)?;
    Ok(Counts::default())
}

/// The agent without what can be left out of it.
fn small_machines(root: &Path) -> Result<Counts> {
    dist::minimal::run(root)?;
    Ok(Counts::default())
}

/// The examples of plugins in languages whose tools are large and take their time.
fn slow_languages(root: &Path) -> Result<Counts> {
    languages::slow(root)?;
    let filter = ["a_plugin_in_".to_owned()];
    let sizes = [("WAYSTATION_TEST_SLOW_LANGUAGES", "1")];
    suite::run_sized(root, Build::Optimised, &["--workspace", "--test=it"], &filter, &sizes)
}

/// The suites that prove durability by faults, in the sizes that are reported.
fn full_sizes(root: &Path) -> Result<Counts> {
    FULL_SUITES.iter().try_fold(Counts::default(), |counts, (place, suites)| {
        let suites: Vec<_> = suites.iter().map(|suite| (*suite).to_owned()).collect();
        let selection = ["--workspace", place];
        let run = suite::run_sized(root, Build::Optimised, &selection, &suites, &FULL_SIZES)?;
        Ok(counts.and(run))
    })
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn ended(name: &'static str, result: Result<Counts>) -> Ended {
        Ended { name, elapsed: Duration::from_millis(1_500), result }
    }

    fn names(full: bool, section: &[&str]) -> Result<Vec<&'static str>> {
        let section = section.iter().map(|name| (*name).to_owned()).collect();
        let selected = selected(&Arguments { full, section })?;
        Ok(selected.into_iter().map(|section| section.name).collect())
    }

    #[test]
    fn a_section_is_run_by_its_name_and_one_that_is_not_there_is_said() {
        assert_eq!(names(false, &[]).unwrap().len(), SECTIONS.len());
        assert_eq!(names(true, &[]).unwrap().len(), SECTIONS.len() + FULL_SECTIONS.len());
        assert_eq!(names(false, &["full sizes", "clippy"]).unwrap(), ["clippy", "full sizes"]);
        let error = names(false, &["clipy", "tests", "pakage"]).unwrap_err().to_string();
        assert!(
            error.starts_with("there is no section clipy, pakage; there are: format · "),
            "{error}"
        );
    }

    #[test]
    fn a_failed_section_counts_beside_the_tests() {
        let ended = [
            ended("format", Err(anyhow!("cargo fmt failed\nwith more"))),
            ended("clippy", Ok(Counts::default())),
            ended("tests", Ok(Counts { passed: 17, failed: 1 })),
        ];
        assert_eq!(total(&ended).line(), "17 passed, 2 failed");
        assert_eq!(
            table(&ended),
            "  format  FAILED  1.5 s  cargo fmt failed\n  clippy  ok      1.5 s\n  \
             tests   FAILED  1.5 s  17 passed, 1 failed\n"
        );
    }
}
