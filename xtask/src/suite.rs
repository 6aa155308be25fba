//! Running tests: with nextest where it is installed, with `cargo test` otherwise, and counting them.

use std::path::Path;

use anyhow::{Result, bail};

use crate::ui::{self, Step};
use crate::{install, languages, plugins, process};

/// How many tests passed and failed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl Counts {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { passed: self.passed + other.passed, failed: self.failed + other.failed }
    }

    /// The line that ends a run.
    pub(crate) fn line(self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

/// `cargo xtask test`: prepares, runs the tests that the filter names, and returns whether all passed.
pub(crate) fn run_all(root: &Path, filter: &[String]) -> Result<bool> {
    prepare(root)?;
    let step = Step::start("running the tests");
    let counts = agent(root, filter, &[])?;
    step.done();
    eprintln!("{}", counts.line());
    Ok(counts.failed == 0)
}

/// Installs and builds what the tests use.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    install::nats_server(root, "the tests deliver to a real JetStream server")?;
    install::strace()?;
    install::mosquitto("the tests of the MQTT source subscribe to a real broker")?;
    install::journal_remote()?;
    languages::quick(root)?;
    let step = Step::start("building the guests that the tests load");
    plugins::build(root, None)?;
    step.done();
    Ok(())
}

/// The tests of the agent and of xtask. Without a filter the examples in the documentation run too.
pub(crate) fn agent(root: &Path, filter: &[String], sizes: &[Size]) -> Result<Counts> {
    let counts = run_sized(root, Build::Quick, &["--workspace"], filter, sizes)?;
    if !filter.is_empty() {
        return Ok(counts);
    }
    Ok(counts.and(documentation(root, &["--workspace"])?))
}

/// The examples in the documentation, which nextest does not run.
pub(crate) fn documentation(root: &Path, selection: &[&str]) -> Result<Counts> {
    counted(process::cargo(root).args(["test", "--quiet", "--doc"]).args(selection))
}

/// Runs the tests of a workspace.
pub(crate) fn run(root: &Path, selection: &[&str], filter: &[String]) -> Result<Counts> {
    run_sized(root, Build::Quick, selection, filter, &[])
}

/// A variable of the environment that sets the size of a test, and its value.
pub(crate) type Size = (&'static str, &'static str);

/// How tests are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// As for a change.
    Quick,
    /// As what is released, for what is reported.
    Optimised,
}

/// Runs tests in these sizes.
pub(crate) fn run_sized(
    root: &Path,
    build: Build,
    selection: &[&str],
    filter: &[String],
    sizes: &[Size],
) -> Result<Counts> {
    let mut command = process::cargo(root);
    command.envs(sizes.iter().copied());
    if process::works("cargo", &["nextest", "--version"]) {
        command.args(["nextest", "run", "--no-fail-fast", "--no-tests", "warn"]);
        command.args(["--status-level", "slow"]).args(selection).args(filter);
        if build == Build::Optimised {
            command.args(["--profile", "full", "--cargo-profile", "full"]);
        }
    } else {
        ui::say("cargo-nextest is not installed: `cargo test` does the same, more slowly");
        command.args(["test", "--no-fail-fast", "--tests"]).args(selection);
        if build == Build::Optimised {
            command.args(["--profile", "full"]);
        }
        command.arg("--").args(filter);
    }
    counted(&mut command)
}

/// Runs a command that runs tests, and counts them.
pub(crate) fn counted(command: &mut std::process::Command) -> Result<Counts> {
    let mut counts = Counts::default();
    let good = process::watch(command, |line| {
        if let Some(of_line) = counts_of_line(line) {
            counts = counts.and(of_line);
        }
    })?;
    if !good && counts.failed == 0 {
        bail!("{} failed before it ran all tests", process::shown(command));
    }
    Ok(counts)
}

/// What a summary line of nextest (`Summary [ 1.2s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 0 skipped`)
/// or of `cargo test` (`test result: ok. 3 passed; 0 failed; …`) counts. What nextest repeats of a failed test's own
/// output is indented, and is not counted again.
fn counts_of_line(line: &str) -> Option<Counts> {
    let parts = if line.trim_start().starts_with("Summary [") {
        line.split_once(" run: ")?.1
    } else {
        line.strip_prefix("test result: ")?.split_once(". ")?.1
    };
    let mut counts = Counts::default();
    // What stands in parentheses (slow, flaky, leaky) is counted outside them already.
    for part in without_parentheses(parts).split([',', ';']) {
        let Some((number, word)) = part.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match word.trim() {
            "passed" => counts.passed += number,
            "failed" | "timed out" | "exec failed" => counts.failed += number,
            _ => {}
        }
    }
    Some(counts)
}

fn without_parentheses(text: &str) -> String {
    let mut depth = 0_u32;
    let outside = |character: &char| {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    text.chars().filter(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nextest_and_of_cargo_test_are_counted() {
        let cases = [
            (
                "     Summary [   0.050s] 97 tests run: 97 passed (1 slow, 2 flaky), 0 skipped",
                97,
                0,
            ),
            ("Summary [ 1.2s] 5 tests run: 3 passed, 1 failed, 1 timed out, 0 skipped", 3, 2),
            ("Summary [ 1.2s] 1/5 tests run: 0 passed, 1 exec failed, 4 skipped", 0, 1),
            ("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out", 12, 0),
            ("test result: FAILED. 1 passed; 2 failed; 0 ignored; finished in 0.00s", 1, 2),
        ];
        for (line, passed, failed) in cases {
            assert_eq!(counts_of_line(line), Some(Counts { passed, failed }), "{line}");
        }
        let others =
            ["        PASS [   0.004s] xtask x", "    test result: ok. 1 passed; 0 failed;"];
        assert_eq!(others.map(counts_of_line), [None, None]);
    }
}
