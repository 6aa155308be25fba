//! `cargo xtask plugins`: builds the guests in `plugins/` and makes components of them, in `target/plugins/`.
//!
//! The guests are built for `wasm32-unknown-unknown`, whose standard library imports nothing. Where rustup has that target,
//! its toolchain is used. Where it has not and cannot get it, Debian's own toolchain builds the standard library from source.
//! Both keep their objects apart from the workspace's, in `target/guests/`; cargo decides there what needs to be built.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

const TARGET: &str = "wasm32-unknown-unknown";
/// The guests that become components, by their package names.
pub(crate) const GUESTS: &[&str] = &[
    "clean",
    "json-filter",
    "json-map",
    "redact",
    "sample",
    "test-guests",
    "test-hostile",
    "test-serde-json",
    "test-sink",
    "webhook",
    "window",
];
/// What builds a guest where rustup cannot.
const DEBIAN_PACKAGES: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "lld-19"];
/// Where those packages put what is needed.
const DEBIAN_FILES: &[&str] = &["/usr/bin/rustc", "/usr/bin/cargo", "/usr/bin/wasm-ld-19"];
/// Variables that stay as they are; whatever else cargo and rustup have set for this process would lead the other cargo astray.
const KEPT_VARIABLES: &[&str] = &["HOME", "PATH", "CARGO_HOME", "RUSTUP_HOME", "TERM", "LANG"];
const KEPT_PREFIXES: &[&str] =
    &["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "SSL_"];
const PROXIES: &[&str] = &["http_proxy", "https_proxy", "no_proxy", "all_proxy"];

/// A toolchain that can build guests.
enum Toolchain {
    /// The cargo of `rustup which`, whose standard library for the target is there.
    Rustup(PathBuf),
    /// Debian's, which builds the standard library.
    Debian,
}

/// Runs the command for these guests, for all when none is named.
///
/// # Errors
/// See [`build`].
pub(crate) fn run(root: &Path, names: &[&str]) -> Result<()> {
    let components = build(root, (!names.is_empty()).then_some(names))?;
    for path in components {
        let size = fs::metadata(&path)?.len();
        say(&format!(
            "{} ({} KiB)",
            path.strip_prefix(root).unwrap_or(&path).display(),
            size / 1024
        ));
    }
    Ok(())
}

/// Builds these guests, all of [`GUESTS`] without names, and returns the paths of their components.
///
/// # Errors
/// When a name is unknown, no toolchain is there or can be installed, a guest does not build, or it imports more than the
/// contract offers.
pub(crate) fn build(root: &Path, names: Option<&[&str]>) -> Result<Vec<PathBuf>> {
    let names = names.unwrap_or(GUESTS);
    for name in names {
        ensure!(
            GUESTS.contains(name),
            "there is no guest \"{name}\"; there are {}",
            GUESTS.join(", ")
        );
    }
    let toolchain = find_toolchain(root)?;
    let modules = compile(root, &toolchain, names)?;
    let out = root.join("target/plugins");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    names
        .iter()
        .map(|name| {
            let module = modules.join(format!("{}.wasm", name.replace('-', "_")));
            let component = out.join(format!("{name}.wasm"));
            encode(&module, &component)?;
            Ok(component)
        })
        .collect()
}

/// Makes a component of a core module that carries the description of its world. The file is touched only when it changes.
fn encode(module: &Path, component: &Path) -> Result<()> {
    let bytes = fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let encoded = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|mut encoder| encoder.encode())
        .with_context(|| format!("cannot make a component of {}", module.display()))?;
    if fs::read(component).is_ok_and(|old| old == encoded) {
        return Ok(());
    }
    // Renamed, so that a test that runs meanwhile never sees half a component.
    let part = component.with_extension("part");
    fs::write(&part, &encoded)
        .and_then(|()| fs::rename(&part, component))
        .with_context(|| format!("cannot write {}", component.display()))
}

/// Builds core modules and returns their folder.
fn compile(root: &Path, toolchain: &Toolchain, names: &[&str]) -> Result<PathBuf> {
    let (mut command, folder) = match toolchain {
        Toolchain::Rustup(cargo) => {
            let mut command = clean_command(cargo);
            // A cargo called by its own path has to be told which rustc is its own.
            command.env("RUSTC", cargo.with_file_name("rustc"));
            (command, "target/guests/rustup")
        }
        Toolchain::Debian => {
            let mut command = clean_command("/usr/bin/cargo");
            command
                .env("RUSTC", "/usr/bin/rustc")
                .env("RUSTC_BOOTSTRAP", "1")
                .env("RUSTFLAGS", "-C linker=wasm-ld-19 -C linker-flavor=wasm-ld");
            (command, "target/guests/debian")
        }
    };
    let folder = root.join(folder);
    if !folder.exists() {
        say(
            "Building the guests; the first time, with their standard library, takes a minute or two",
        );
    }
    command
        .current_dir(root.join("plugins"))
        .args(["build", "--quiet", "--locked", "--release", "--target", TARGET, "--target-dir"])
        .arg(&folder);
    if matches!(toolchain, Toolchain::Debian) {
        command.arg("-Zbuild-std=std,panic_abort");
    }
    for name in names {
        command.args(["--package", name]);
    }
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(status.success(), "the guests do not build ({status})");
    Ok(folder.join(TARGET).join("release"))
}

fn find_toolchain(root: &Path) -> Result<Toolchain> {
    if let Some(cargo) = rustup_cargo(root) {
        return Ok(Toolchain::Rustup(cargo));
    }
    if !DEBIAN_FILES.iter().all(|file| Path::new(file).exists()) || !debian_source_is_there() {
        install_debian_packages()?;
    }
    Ok(Toolchain::Debian)
}

/// The cargo of rustup's toolchain, when the target is installed for it or rustup can add it.
fn rustup_cargo(root: &Path) -> Option<PathBuf> {
    let cargo = first_line(clean_command("rustup").current_dir(root).args(["which", "cargo"]))?;
    let cargo = PathBuf::from(cargo);
    if has_target(&cargo) {
        return Some(cargo);
    }
    // It is tried once for each version of the toolchain: where it cannot work, the wait for a server that does not answer is not
    // repeated at every build.
    let version = first_line(clean_command(cargo.with_file_name("rustc")).arg("--version"))?;
    let tried = root.join("target/guests/rustup-cannot-add-target");
    if fs::read_to_string(&tried).is_ok_and(|text| text == version) {
        return None;
    }
    say(&format!("Adding the target {TARGET} with rustup, to build plugins for"));
    let added = output(clean_command("rustup").current_dir(root).args(["target", "add", TARGET]));
    if added.is_some_and(|output| output.status.success()) && has_target(&cargo) {
        return Some(cargo);
    }
    say("rustup cannot add it here; going on with Debian's toolchain");
    let noted =
        fs::create_dir_all(root.join("target/guests")).and_then(|()| fs::write(&tried, version));
    if let Err(error) = noted {
        say(&format!("cannot write {}: {error}", tried.display()));
    }
    None
}

fn has_target(cargo: &Path) -> bool {
    first_line(clean_command(cargo.with_file_name("rustc")).args([
        "--print",
        "target-libdir",
        "--target",
        TARGET,
    ]))
    .is_some_and(|folder| Path::new(&folder).is_dir())
}

fn debian_source_is_there() -> bool {
    first_line(clean_command("/usr/bin/rustc").args(["--print", "sysroot"])).is_some_and(
        |sysroot| Path::new(&sysroot).join("lib/rustlib/src/rust/library/std/Cargo.toml").exists(),
    )
}

fn install_debian_packages() -> Result<()> {
    let packages = DEBIAN_PACKAGES.join(" ");
    let by_hand =
        format!("run `rustup target add {TARGET}`, or as root `apt-get install {packages}`");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "no toolchain builds plugins for {TARGET} here, and there is no apt-get to install one; {by_hand}"
        );
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "no toolchain builds plugins for {TARGET} here, and only root can install one; {by_hand}"
        );
    }
    say(&format!(
        "Installing {packages} with apt-get: Debian's Rust toolchain, which can build plugins for {TARGET}"
    ));
    let mut install = apt_get();
    install.args(["install", "--yes", "--no-install-recommends"]).args(DEBIAN_PACKAGES);
    // The lists of a fresh machine are missing or old; they are fetched only when it does not work without.
    if !install.status().is_ok_and(|status| status.success()) {
        let updated = apt_get().arg("update").status().context("cannot start apt-get")?;
        ensure!(updated.success(), "apt-get update failed ({updated}); {by_hand}");
        let installed = install.status().context("cannot start apt-get")?;
        ensure!(installed.success(), "apt-get install failed ({installed}); {by_hand}");
    }
    ensure!(
        debian_source_is_there(),
        "{packages} are installed, but the sources of std are not where rustc looks"
    );
    Ok(())
}

fn apt_get() -> Command {
    let mut command = clean_command("/usr/bin/apt-get");
    command
        .args(["--quiet", "--quiet"])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(Stdio::null());
    command
}

/// A command that inherits nothing that the cargo and rustup of this process have set.
fn clean_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_kept(name)));
    command
}

fn is_kept(name: &OsString) -> bool {
    let Some(name) = name.to_str() else { return false };
    KEPT_VARIABLES.contains(&name)
        || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || PROXIES.iter().any(|proxy| proxy.eq_ignore_ascii_case(name))
}

fn output(command: &mut Command) -> Option<Output> {
    command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = output(command).filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}

/// Tells the person at the terminal; stdout is for data.
pub(crate) fn say(text: &str) {
    // Nobody is left to tell when stderr is gone.
    let _gone = writeln!(std::io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_and_rustup_set_reaches_no_inner_cargo() {
        let kept = |name: &str| is_kept(&OsString::from(name));
        for name in [
            "RUSTUP_TOOLCHAIN",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTFLAGS",
            "CARGO",
            "CARGO_TARGET_DIR",
            "CARGO_MANIFEST_DIR",
            "CARGO_BUILD_TARGET",
            "CARGO_ENCODED_RUSTFLAGS",
        ] {
            assert!(!kept(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_REGISTRIES_X_INDEX",
            "HTTPS_PROXY",
            "https_proxy",
            "SSL_CERT_FILE",
        ] {
            assert!(kept(name), "{name}");
        }
    }
}
