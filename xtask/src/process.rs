//! Running other programs, with errors that say which one failed and how.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What `cargo run` sets for us. Some build scripts look at it, so that a cargo that inherited it would build crates anew
/// that a cargo called by hand has built, and the other way round.
const VARIABLES_OF_CARGO_RUN: [&str; 4] =
    ["CARGO_BIN_", "CARGO_CRATE_", "CARGO_MANIFEST_", "CARGO_PKG_"];

/// `cargo` in the root of the workspace, as if called by hand.
pub(crate) fn cargo(root: &Path) -> Command {
    cargo_at(Path::new("cargo"), root)
}

/// The same with another cargo.
pub(crate) fn cargo_at(program: &Path, root: &Path) -> Command {
    let mut command = Command::new(program);
    by_hand(command.current_dir(root));
    command
}

/// Takes from a command that leads to a cargo what would tell it that it was not called by hand.
pub(crate) fn by_hand(command: &mut Command) -> &mut Command {
    command.env_remove("CARGO");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if VARIABLES_OF_CARGO_RUN.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs it with our standard streams; an exit code other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs it and returns its standard output; what it says on standard error goes into the error, if there is one.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed: {}\n{}", shown(command), output.status, said.trim_end());
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("the output of {} is not UTF-8", shown(command)))
}

/// Whether the program can be started and says its version.
pub(crate) fn works(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs it, passes its output on line by line as it comes, and gives each line to `look` as well, without colours.
/// Returns whether it exited with 0.
pub(crate) fn watch(command: &mut Command, mut look: impl FnMut(&str) + Send) -> Result<bool> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {}", shown(command)))?;
    let stdout = child.stdout.take().expect("it was asked for");
    let stderr = child.stderr.take().expect("it was asked for");
    let (sender, lines) = std::sync::mpsc::sync_channel::<String>(64);
    std::thread::scope(|scope| {
        let other = sender.clone();
        scope.spawn(move || pass_on(stdout, &other));
        scope.spawn(move || pass_on(stderr, &sender));
        for line in lines {
            eprintln!("{line}");
            look(&without_colours(&line));
        }
    });
    let status = child.wait().with_context(|| format!("cannot wait for {}", shown(command)))?;
    Ok(status.success())
}

/// Sends each line. An error of the pipe is its end.
fn pass_on(stream: impl Read, lines: &std::sync::mpsc::SyncSender<String>) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
        if lines.send(line).is_err() {
            return;
        }
    }
}

/// The text without terminal escape sequences of the form `ESC [ … letter`.
pub(crate) fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\u{1b}' {
            plain.push(character);
            continue;
        }
        if characters.next() == Some('[') {
            for inner in characters.by_ref() {
                if inner.is_ascii_alphabetic() {
                    break;
                }
            }
        }
    }
    plain
}

/// The command as one would type it, near enough to repeat it.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo no room >&2; exit 3"]));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("sh -c") && text.contains("3") && text.contains("no room"), "{text}");
    }

    #[test]
    fn every_line_of_both_streams_is_seen_without_colours() {
        let script = r"printf 'one\n\033[32mtwo\033[0m\n'; echo three >&2; exit 1";
        let mut lines = Vec::new();
        let good =
            watch(Command::new("sh").args(["-c", script]), |line| lines.push(line.to_owned()));
        lines.sort();
        assert_eq!(
            (good.unwrap(), lines),
            (false, ["one", "three", "two"].map(str::to_owned).into())
        );
    }
}
