//! Compiled plugins: made by a child process, kept in a folder, and believed only when they are what the child wrote.
//!
//! A compiler's heap never comes back, so the agent does not compile in its own process. What is kept is machine code that
//! the agent will run, hence the folder belongs to the agent alone (mode 0700), and a file in it counts only when
//! 1. it is opened without following a link, is a regular file of the agent's own user, and nobody else may write it;
//! 2. its SHA-256, taken through the descriptor through which it is then mapped, is the one in the journal.
//!
//! Whatever else is found is compiled anew. A file's name is the component's SHA-256 and what distinguishes engines. It is mapped,
//! not read, so that only what a plugin runs of it is in RAM; a file that is replaced or removed stays what it was where it is
//! mapped.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use tracing::{info, warn};
use wasmtime::component::Component;

use super::engine::{self, Memories};
use super::error::PluginError;
use super::memory::KeptMemories;
use super::runtime::Runtime;
use super::{HostOptions, PluginHost, Role, hex, inspect, sha256};
use crate::clock::SharedClock;
use crate::limits::{COMPILE_MS_MAX, COMPILE_THREADS_MAX, COMPILED_BYTES_MAX, COMPILED_FILES_MAX};

/// How often a compiling child is looked at.
const POLL: Duration = Duration::from_millis(10);
/// What is kept of a child's error.
const CHILD_STDERR_BYTES_MAX: u64 = 4096;
/// Read at once of a file that is hashed.
const READ_BYTES: usize = 64 << 10;
const CODE_EXTENSION: &str = "code";
const PART_EXTENSION: &str = "part";

/// The folder of compiled plugins.
#[derive(Debug)]
pub(super) struct CompiledStore {
    options: HostOptions,
    /// Tell files of these engines from those of others.
    compatibilities: [u64; 2],
    /// One compilation at a time: each may take hundreds of megabytes.
    compiling: Mutex<()>,
}

impl CompiledStore {
    /// Makes or takes over the folder, and clears it of what no engine of this build will use.
    pub(super) fn open(
        options: HostOptions,
        compatibilities: [u64; 2],
    ) -> Result<Self, PluginError> {
        let store = Self { options, compatibilities, compiling: Mutex::new(()) };
        store.take_over().map_err(|source| store.error(source))?;
        Ok(store)
    }

    /// The machine code of a component, when it is in the folder and is what was written.
    fn find(&self, key: &str) -> Option<File> {
        let path = self.path(key);
        match open_own(&path) {
            Ok((code, digest)) if self.options.digests.get(key) == Some(digest) => Some(code),
            Ok(_) => {
                warn!(path = %path.display(), "A compiled plugin is not what was written, and is compiled anew");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                warn!(path = %path.display(), %error, "A compiled plugin is not trusted, and is compiled anew");
                None
            }
        }
    }

    /// Compiles a component in a child and takes the code into the folder, in place of what may be there.
    fn compile(&self, path: &Path, component: [u8; 32], key: &str) -> Result<File, PluginError> {
        let _one = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        info!(plugin = %path.display(), "Compiling a plugin");
        let started = self.options.clock.monotonic();
        // A name of its own: a child whose agent was killed may still be at work.
        let part = format!("{key}-{:016x}.{PART_EXTENSION}", fastrand::u64(..));
        let part = self.options.store_dir.join(part);
        let child = self.spawn(path, component, &part)?;
        let result = wait(child, &self.options.clock, Duration::from_millis(COMPILE_MS_MAX))
            .map_err(|reason| PluginError::Compile { path: path.to_owned(), reason })
            .and_then(|()| self.keep(&part, key).map_err(|source| self.error(source)));
        if result.is_err() {
            let _gone = fs::remove_file(&part);
        } else {
            let elapsed = self.options.clock.monotonic().since(started);
            info!(plugin = %path.display(), elapsed_ms = elapsed.as_millis(), "Compiled a plugin");
        }
        result
    }

    fn spawn(&self, path: &Path, component: [u8; 32], part: &Path) -> Result<Child, PluginError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Command::new(&self.options.compiler)
            .args(["plugin", "compile"])
            .arg(path)
            .arg("--sha256")
            .arg(hex(&component))
            .arg("--output")
            .arg(part)
            .env_clear()
            // Threads and the allocator's arenas for them take address space, which is bounded.
            .env("RAYON_NUM_THREADS", threads.min(COMPILE_THREADS_MAX).to_string())
            .env("MALLOC_ARENA_MAX", "2")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| PluginError::Compile {
                path: path.to_owned(),
                reason: format!("{} cannot be started: {error}", self.options.compiler.display()),
            })
    }

    /// Takes what the child wrote into the folder.
    fn keep(&self, part: &Path, key: &str) -> io::Result<File> {
        let (code, digest) = open_own(part)?;
        fs::rename(part, self.path(key))?;
        File::open(&self.options.store_dir)?.sync_all()?;
        if let Err(error) = self.options.digests.put(key, digest) {
            // It is good to use now; without its digest it is only compiled again at the next start.
            warn!(key, error, "The digest of a compiled plugin cannot be stored");
        }
        self.prune()?;
        Ok(code)
    }

    fn take_over(&self) -> io::Result<()> {
        let folder = &self.options.store_dir;
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = fs::symlink_metadata(folder)?;
        if !metadata.is_dir() {
            return Err(io::Error::other("it is no folder"));
        }
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        if metadata.mode() & 0o777 != 0o700 {
            fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        let suffixes = self
            .compatibilities
            .map(|compatibility| format!("-{compatibility:016x}.{CODE_EXTENSION}"));
        for (_, path) in self.files()? {
            let path_text = path.to_string_lossy();
            if !suffixes.iter().any(|suffix| path_text.ends_with(suffix)) {
                remove_old(&path);
            }
        }
        Ok(())
    }

    /// What is in the folder under names of ours, newest first.
    fn files(&self) -> io::Result<Vec<(SystemTime, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.options.store_dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == CODE_EXTENSION || end == PART_EXTENSION) {
                files.push((fs::symlink_metadata(&path)?.modified()?, path));
            }
        }
        files.sort_unstable_by(|one, two| two.cmp(one));
        Ok(files)
    }

    /// Keeps the newest files.
    fn prune(&self) -> io::Result<()> {
        self.files()?.iter().skip(COMPILED_FILES_MAX).for_each(|(_, path)| remove_old(path));
        Ok(())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.options.store_dir.join(format!("{key}.{CODE_EXTENSION}"))
    }

    fn error(&self, source: io::Error) -> PluginError {
        PluginError::Store { path: self.options.store_dir.clone(), source }
    }
}

impl PluginHost {
    /// What is in the store was inspected before it was compiled; that is not repeated at every start.
    pub(super) fn compiled_by_child(
        &self,
        path: &Path,
        bytes: &[u8],
        digest: [u8; 32],
        role: Role,
    ) -> Result<(&Runtime, Component), PluginError> {
        let runtime = match Memories::of(bytes) {
            Memories::Kept => &self.kept,
            Memories::Mapped => &self.mapped,
        };
        let key = key(digest, runtime.compatibility());
        if let Some(code) = self.store.find(&key)
            && let Ok(component) = map(runtime, &code)
        {
            return Ok((runtime, component));
        }
        let inspected = inspect::inspect_bytes(bytes, Some(role));
        inspected.map_err(|problems| PluginError::Unfit { path: path.to_owned(), problems })?;
        let code = self.store.compile(path, digest, &key)?;
        let component = map(runtime, &code).map_err(PluginError::engine)?;
        Ok((runtime, component))
    }
}

/// Takes code from the store. It is mapped through the descriptor through which it was hashed.
#[expect(unsafe_code, reason = "machine code can only be believed, not checked")]
fn map(runtime: &Runtime, code: &File) -> wasmtime::Result<Component> {
    let path = format!("/proc/self/fd/{}", code.as_raw_fd());
    // SAFETY: the file is what `precompile_component` made: its SHA-256 is the one that was stored when this agent's own child
    // had written it. It stays so: nobody but the agent's user can reach or write it, and the agent never writes one again.
    unsafe { Component::deserialize_file(&runtime.engine, path) }
}

/// The name of a component's code for an engine.
pub(super) fn key(component: [u8; 32], compatibility: u64) -> String {
    format!("{}-{compatibility:016x}", hex(&component))
}

fn remove_old(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        warn!(path = %path.display(), %error, "An old compiled plugin cannot be removed");
    }
}

/// Opens a file of our own, with its SHA-256.
fn open_own(path: &Path) -> io::Result<(File, [u8; 32])> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("others own it or may write it"));
    }
    if metadata.len() > COMPILED_BYTES_MAX {
        return Err(io::Error::other("it is too large"));
    }
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; READ_BYTES];
    let mut rest = (&file).take(COMPILED_BYTES_MAX);
    loop {
        match rest.read(&mut chunk)? {
            0 => break,
            read => hasher.update(chunk.get(..read).unwrap_or_default()),
        }
    }
    Ok((file, hasher.finalize().into()))
}

/// Waits for a child, for so long; then it is killed. The error is what it said, or how it ended.
fn wait(mut child: Child, clock: &SharedClock, limit: Duration) -> Result<(), String> {
    let started = clock.monotonic();
    let mut waited = Duration::ZERO;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            // The waits are counted beside the clock, which a test or a sleeping host may hold back.
            Ok(None) if waited.max(clock.monotonic().since(started)) < limit => {
                std::thread::sleep(POLL);
                waited += POLL;
            }
            Ok(None) => {
                let _ended_meanwhile = child.kill();
                let _reaped = child.wait();
                return Err(format!("it took longer than {} s and was stopped", limit.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        // What it said is an extra; how it ended is known anyway.
        let _short = stderr.take(CHILD_STDERR_BYTES_MAX).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    let said = said.trim();
    if said.is_empty() {
        Err(format!("the compiler ended with {status}"))
    } else {
        Err(said.to_owned())
    }
}

/// Compiles a component into a new file, and returns the SHA-256 of what was written.
///
/// The file is synced and belongs to its user alone. With `sha256`, the component must have that digest: it is read anew here,
/// and may have changed since somebody else looked at it.
///
/// # Errors
/// When the component cannot be read, is unfit or not the pinned one, does not compile, or the output exists or cannot be written.
pub fn compile_file(
    input: &Path,
    output: &Path,
    pinned: Option<[u8; 32]>,
) -> Result<[u8; 32], PluginError> {
    let file_error = |verb, path: &Path| {
        let path = path.to_owned();
        move |source| PluginError::File { verb, path, source }
    };
    let component = inspect::read(input).map_err(file_error("read", input))?;
    let found = sha256(&component);
    if let Some(pinned) = pinned
        && pinned != found
    {
        return Err(PluginError::Pin { path: input.to_owned(), found, pinned });
    }
    let inspection = inspect::inspect_bytes(&component, None)
        .map_err(|problems| PluginError::Unfit { path: input.to_owned(), problems })?;
    if inspection.compiled {
        return Err(PluginError::unfit(input, "it is compiled already"));
    }
    let engine = engine::engine(Memories::of(&component), &KeptMemories::default())?;
    let code = engine.precompile_component(&component).map_err(|error| PluginError::Compile {
        path: input.to_owned(),
        reason: format!("{error:#}"),
    })?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(output)
        .map_err(file_error("write", output))?;
    file.write_all(&code).and_then(|()| file.sync_all()).map_err(file_error("write", output))?;
    Ok(sha256(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use std::sync::Arc;

    #[test]
    fn a_child_that_takes_too_long_is_killed() {
        let child = Command::new("sleep").arg("600").stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let clock: SharedClock = Arc::new(SystemClock);
        let said = wait(child, &clock, Duration::from_millis(30)).unwrap_err();
        assert_eq!(said, "it took longer than 0 s and was stopped");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "it was reaped");
    }
}
