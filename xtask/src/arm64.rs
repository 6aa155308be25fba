//! Building for arm64 on another machine, and running what was built.
//!
//! Debian's Rust builds it: the standard library for the foreign architecture is a package, where rustup may not be able to add
//! a target. qemu-user runs it. So that the programs which a program starts run too, the kernel is told what to do with arm64's
//! (`binfmt_misc`), in a user namespace of our own: nothing changes for the machine, and nobody has to be root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::suite::{self, Counts};
use crate::ui::Step;
use crate::{install, process};

/// The target in Rust's words.
const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// Debian's word for it.
pub(crate) const DEBIAN: &str = "arm64";
/// What builds for it. The foreign packages bring the libraries of C that the programs need where they run.
const PACKAGES: [&str; 6] = [
    "rustc-web",
    "cargo-web",
    "libstd-rust-web-dev:arm64",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user-static",
];
const CARGO: &str = "/usr/bin/cargo";
const QEMU: &str = "/usr/bin/qemu-aarch64-static";
/// How the kernel tells a program of arm64: the first 20 bytes of its ELF header, and which bits of them count.
const BINFMT: &str = r":waystation-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:";

/// Tests that are not run under emulation, and why.
const NOT_EMULATED: [(&str, &[&str]); 3] = [
    (
        "they would take hours, and ask what the processor has no say in",
        &[
            "images",
            "any_sequence_of_operations",
            "fuzzed",
            "no_io_fault_makes",
            "whatever_is_damaged",
            "whenever_it_is_looked_at",
        ],
    ),
    (
        "they would see qemu-user: its own program, its answer to a call that it does not know and to a program that is not there, and its own buffer for what is passed along, of twice the size",
        &[
            "the_program_runs_on_without_its_pages",
            "links_that_lead_outside_are_refused_with_and_without_openat2",
            "a_plugin_is_compiled_once_and_anew",
            "what_a_compiler_says_or_how_it_ended_is_told",
            "what_journalctl_ends_with_is_said_and_no_child_stays",
            "open_files_that_are_passed_along_are_not_taken",
        ],
    ),
    (
        "they measure time",
        &[
            "what_is_written_waits_for_the_limiter_and_a_wait_that_is_given_up_leaves_no_file",
            "a_connect_timeout_is_unreachable_and_not_doubtful",
            "a_guest_that_breaks_down_twice_on_a_batch_has_it_cut",
            "a_file_that_is_made_anew_with_the_bytes_of_a_removed_one_is_read_again",
        ],
    ),
];

/// Installs what is missing.
fn prepare() -> Result<()> {
    if is_there() {
        return Ok(());
    }
    process::run(Command::new("dpkg").args(["--add-architecture", DEBIAN]))
        .context("only root can have dpkg take packages of arm64")?;
    install::apt(&PACKAGES, "they build the agent for arm64, and run it here")?;
    ensure!(
        is_there(),
        "the packages are installed, and what they bring is not where it is looked for"
    );
    Ok(())
}

fn is_there() -> bool {
    let files = ["/usr/bin/aarch64-linux-gnu-gcc", QEMU, CARGO];
    let mut library = Command::new("/usr/bin/rustc");
    let library = process::output(library.args(["--print", "target-libdir", "--target", TRIPLE]));
    files.iter().all(|file| Path::new(file).is_file())
        && library.is_ok_and(|folder| Path::new(folder.trim()).is_dir())
}

/// Where it is built: objects of another compiler than this machine's own.
fn target(root: &Path) -> PathBuf {
    root.join("target").join(DEBIAN)
}

/// Makes a command of Debian's cargo build for arm64.
fn building<'c>(root: &Path, cargo: &'c mut Command) -> &'c mut Command {
    // rustup's variables would lead Debian's cargo to rustup's compiler.
    for variable in ["RUSTUP_TOOLCHAIN", "RUSTUP_HOME", "RUSTC_WRAPPER"] {
        cargo.env_remove(variable);
    }
    cargo
        .env("CARGO", CARGO)
        .env("RUSTC", "/usr/bin/rustc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .args(["--locked", "--package", "waystation", "--target", TRIPLE, "--target-dir"])
        .arg(target(root))
}

/// Builds the agent as it is released, and returns its binary.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    prepare()?;
    let step = Step::start("building the agent for arm64");
    let mut cargo = process::cargo_at(Path::new(CARGO), root);
    cargo.args(["build", "--release", "--bin", "waystation"]);
    process::run(building(root, &mut cargo))?;
    step.done();
    Ok(target(root).join(TRIPLE).join("release/waystation"))
}

/// Runs the agent's unit tests under emulation.
pub(crate) fn tests(root: &Path) -> Result<Counts> {
    prepare()?;
    ensure!(
        process::works("cargo", &["nextest", "--version"]),
        "cargo-nextest is not installed; it runs the tests for arm64"
    );
    let step = Step::start("building the tests for arm64, and running them under qemu");
    let mut cargo = program_that_starts_others(Path::new(CARGO));
    process::by_hand(cargo.current_dir(root));
    cargo.args(["nextest", "run", "--no-fail-fast", "--status-level", "slow"]);
    let mut left_out = String::from("all()");
    for test in NOT_EMULATED.iter().flat_map(|(_, tests)| *tests) {
        left_out.push_str(&format!(" - test({test})"));
    }
    let counts = suite::counted(building(root, &mut cargo).args(["--lib", "-E", &left_out]))?;
    step.done();
    Ok(counts)
}

/// A program of arm64 that starts no other one.
pub(crate) fn program(binary: &Path) -> Command {
    let mut command = Command::new(QEMU);
    command.arg(binary);
    command
}

/// The same in a user namespace in which programs of arm64 run like any other: it may start some.
pub(crate) fn program_that_starts_others(binary: &Path) -> Command {
    let script = format!(
        "mount -t binfmt_misc none /proc/sys/fs/binfmt_misc && printf '%s' '{BINFMT}{QEMU}:F' > /proc/sys/fs/binfmt_misc/register && exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script, "sh"]).arg(binary);
    command
}
