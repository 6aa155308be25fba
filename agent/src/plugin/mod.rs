//! The plugin host: loads components, and has them transform records within bounds.
//!
//! A guest gets what its world imports and nothing else: no files, no environment, no sockets, no clock, no randomness. Bounded
//! are its time (wall time of each call), memory, tables, stack, what it hands over, its log lines and its state; each limit
//! has its [`FaultKind`], and an instance that met one is not used again. Everything here blocks: it belongs on threads for
//! that, never on async ones.
//!
//! From the outside in: [`PluginHost`] loads a [`Plugin`] (inspection, compiled code, linking), a plugin makes an [`Instance`]
//! for each batch, an instance processes calls. A [`SinkPlugin`] makes a [`SinkInstance`], which delivers, and whose requests go
//! through an [`HttpClient`] of whoever calls it. What an instance changes in the state is in its [`StateView`], and counts only
//! when the lane stores it. The host knows neither lanes nor the journal; digests of compiled code are kept through
//! [`CompiledDigests`].

pub mod config;

mod bindings;
mod call;
#[cfg(feature = "compiler")]
mod compiled;
#[cfg(feature = "compiler")]
mod component;
#[cfg_attr(not(feature = "compiler"), expect(dead_code, reason = "inspections compare signatures"))]
mod contract;
#[cfg(feature = "compiler")]
mod describe;
mod engine;
mod error;
mod guest;
mod host;
mod http;
mod inspect;
mod limiter;
mod memory;
#[cfg(feature = "compiler")]
mod pack;
#[cfg(feature = "compiler")]
mod report;
mod runtime;
mod sink;
mod state;
#[cfg(feature = "compiler")]
#[cfg(test)]
pub(crate) mod tests;
#[cfg(feature = "compiler")]
mod wasi_stub;

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

use crate::clock::{SharedClock, Timestamp};
use crate::record::batch::LanePlace;
use crate::record::id::{SinkId, TransformId};

pub use call::Instance;
#[cfg(feature = "compiler")]
pub use compiled::compile_file;
#[cfg(feature = "compiler")]
pub use describe::Description;
pub use error::{CallError, Fault, FaultKind, PluginError};
pub use guest::PluginCalls;
pub use http::{HttpClient, HttpFailure, HttpRequest, HttpResponse};
pub use inspect::{Inspection, Role, inspect};
#[cfg(feature = "compiler")]
pub use pack::{WIT, WORLDS, pack};
#[cfg(feature = "compiler")]
pub use report::{FileKind, Report, report};
pub use sink::{Rejection, SinkCall, SinkFailure, SinkInstance};
pub use state::{State, StateDelta, StateError, StateView};

use bindings::exports::waystation::plugin::{sink as sink_exports, ticks, transform};
#[cfg(feature = "compiler")]
use compiled::CompiledStore;
use config::{GuestConfig, TransformConfig};
use engine::Memories;
use guest::{Guest, Meter};
use host::{HostState, LogGate};
use runtime::Runtime;

/// The version of the engine that runs plugins.
pub const WASMTIME_VERSION: &str = wasmtime_environ::VERSION;

/// The version of `waystation:plugin` that plugins are written against.
pub const WIT_VERSION: &str = contract::VERSION;

/// What became of one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Passed on as it is.
    Keep,
    /// Left out on purpose.
    Drop,
    /// Passed on with this payload.
    Payload(Vec<u8>),
    /// This record in its place.
    Replace(Draft),
    /// These records, in this order, in its place.
    Split(Vec<Draft>),
    /// It cannot be processed, for this reason, which has up to 1 KiB on one line.
    Reject(String),
}

/// A record that a plugin made. Within the bounds of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// `None`: the time of the record that it was made from, or of the tick.
    pub time: Option<Timestamp>,
    /// Routing string.
    pub subject: String,
    /// Name and value.
    pub headers: Vec<(String, String)>,
    /// The content.
    pub payload: Vec<u8>,
}

/// The SHA-256 of each file of compiled code, by the file's key. Only what the agent's own child wrote is ever run.
pub trait CompiledDigests: Send + Sync + fmt::Debug {
    /// The digest under a key, `None` when it is not known or cannot be read.
    fn get(&self, key: &str) -> Option<[u8; 32]>;

    /// Stores a digest, in place of an older one.
    ///
    /// # Errors
    /// When it cannot be stored. The code is used all the same, and compiled again at the next start.
    fn put(&self, key: &str, digest: [u8; 32]) -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// Where the host keeps and makes compiled code.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// `DATA_DIR/compiled`; made with mode 0700. Its parent exists.
    pub store_dir: PathBuf,
    /// The `waystation` binary, whose `plugin compile` is run as a child. `/proc/self/exe` is the running version also when a
    /// package manager has replaced the file.
    pub compiler: PathBuf,
    /// For log rates and elapsed times.
    pub clock: SharedClock,
    /// Who keeps the digests.
    pub digests: Arc<dyn CompiledDigests>,
}

/// Loads plugins. One for each agent.
pub struct PluginHost {
    /// For most plugins.
    kept: Runtime,
    /// For those that bring much data.
    mapped: Runtime,
    #[cfg(feature = "compiler")]
    store: CompiledStore,
    clock: SharedClock,
}

impl fmt::Debug for PluginHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginHost").finish_non_exhaustive()
    }
}

impl PluginHost {
    /// Makes the engines, and takes over the folder of compiled code.
    ///
    /// # Errors
    /// When the machine does not suit, or the folder cannot be made or belongs to somebody else.
    pub fn new(options: HostOptions) -> Result<Self, PluginError> {
        let kept = Runtime::new(Memories::Kept)?;
        let mapped = Runtime::new(Memories::Mapped)?;
        let clock = Arc::clone(&options.clock);
        #[cfg(feature = "compiler")]
        let store = CompiledStore::open(options, [&kept, &mapped].map(Runtime::compatibility))?;
        Ok(Self {
            kept,
            mapped,
            #[cfg(feature = "compiler")]
            store,
            clock,
        })
    }

    /// Loads the plugin of a transform. Takes milliseconds when it was compiled before, and up to two minutes otherwise.
    ///
    /// # Errors
    /// When the file is unfit or not the pinned one, or cannot be compiled.
    pub fn load(&self, config: &TransformConfig) -> Result<Plugin, PluginError> {
        let find = |pre: &_| {
            let ticks = ticks::GuestIndices::new(pre).ok();
            Ok((transform::GuestIndices::new(pre)?, ticks))
        };
        let name = config.id.to_string();
        let (guest, (transform, ticks)) =
            self.load_guest(name, &config.guest, Role::Transform, find)?;
        if config.tick.is_some() && ticks.is_none() {
            return Err(PluginError::unfit(&config.guest.plugin, TICK_WITHOUT_TIMER));
        }
        let inner = PluginInner { id: config.id.clone(), guest, transform, ticks };
        Ok(Plugin { inner: Arc::new(inner) })
    }

    /// Loads the plugin of a sink. Takes as long as that of a transform.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_sink(&self, id: &SinkId, config: &GuestConfig) -> Result<SinkPlugin, PluginError> {
        let find = |pre: &_| sink_exports::GuestIndices::new(pre);
        let (guest, sink) = self.load_guest(id.to_string(), config, Role::Sink, find)?;
        Ok(SinkPlugin { inner: Arc::new(SinkInner { id: id.clone(), guest, sink }) })
    }

    /// Loads and links a component, and finds its functions.
    fn load_guest<F>(
        &self,
        name: String,
        config: &GuestConfig,
        role: Role,
        find: impl FnOnce(&InstancePre<HostState>) -> wasmtime::Result<F>,
    ) -> Result<(Guest, F), PluginError> {
        let path = &config.plugin;
        let bytes = inspect::read(path).map_err(|source| PluginError::File {
            verb: "read",
            path: path.clone(),
            source,
        })?;
        let digest = sha256(&bytes);
        if let Some(pinned) = config.sha256
            && pinned != digest
        {
            return Err(PluginError::Pin { path: path.clone(), found: digest, pinned });
        }
        let (runtime, component) = if Engine::detect_precompiled(&bytes).is_some() {
            self.compiled_by_hand(config, &bytes)?
        } else {
            self.compiled_by_child(path, &bytes, digest, role)?
        };
        let linked = runtime.linker(role).instantiate_pre(&component).and_then(|pre| {
            let functions = find(&pre)?;
            Ok((pre, functions))
        });
        let (pre, functions) =
            linked.map_err(|error| match inspect::inspect_bytes(&bytes, Some(role)) {
                Err(problems) => PluginError::Unfit { path: path.clone(), problems },
                Ok(_) => PluginError::unfit(path, format!("{error:#}")),
            })?;
        let guest = Guest {
            digest,
            pre,
            config: config.config.clone(),
            memory_max: config.memory_max,
            deadline: config.deadline,
            ticker: runtime.ticker()?,
            log: Arc::new(LogGate::new(name, Arc::clone(&self.clock))),
            meter: Meter::default(),
        };
        Ok((guest, functions))
    }

    #[cfg(not(feature = "compiler"))]
    fn compiled_by_child(
        &self,
        path: &Path,
        _bytes: &[u8],
        _digest: [u8; 32],
        _role: Role,
    ) -> Result<(&Runtime, Component), PluginError> {
        Err(PluginError::unfit(path, WITHOUT_COMPILER))
    }

    /// Code that an operator has compiled with `plugin compile` and pinned.
    fn compiled_by_hand(
        &self,
        config: &GuestConfig,
        code: &[u8],
    ) -> Result<(&Runtime, Component), PluginError> {
        if config.sha256.is_none() {
            return Err(PluginError::unfit(&config.plugin, COMPILED_WITHOUT_PIN));
        }
        let copied = self.kept.copy(code).map(|component| (&self.kept, component));
        let copied = copied.or_else(|error| {
            // What suits neither is told of the one that suits most.
            let component = self.mapped.copy(code).map_err(|_| error)?;
            Ok((&self.mapped, component))
        });
        copied.map_err(|error: wasmtime::Error| {
            let problem = format!("it was compiled for another version of the agent or another machine: {error:#}; compile it again");
            PluginError::unfit(&config.plugin, problem)
        })
    }
}

/// A plugin that is loaded and linked. Cheap to clone.
#[derive(Clone)]
pub struct Plugin {
    inner: Arc<PluginInner>,
}

struct PluginInner {
    id: TransformId,
    guest: Guest,
    transform: transform::GuestIndices,
    /// Where it has a timer.
    ticks: Option<ticks::GuestIndices>,
}

/// The plugin of a sink, loaded and linked. Cheap to clone.
#[derive(Clone)]
pub struct SinkPlugin {
    inner: Arc<SinkInner>,
}

struct SinkInner {
    id: SinkId,
    guest: Guest,
    sink: sink_exports::GuestIndices,
}

impl fmt::Debug for SinkPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkPlugin").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl SinkPlugin {
    /// The sink that it was loaded for.
    #[must_use]
    pub fn id(&self) -> &SinkId {
        &self.inner.id
    }

    /// SHA-256 of the plugin's file.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.inner.guest.digest
    }

    /// Log lines that were left out so far, for metrics.
    #[must_use]
    pub fn log_lines_left_out(&self) -> u64 {
        self.inner.guest.log.left_out()
    }

    /// Calls so far, for metrics.
    #[must_use]
    pub fn calls(&self) -> PluginCalls {
        self.inner.guest.calls()
    }

    /// Makes an instance at a place, with the sink's config and this state, which its `init` may read.
    ///
    /// # Errors
    /// When the guest's `init` refuses, breaks down, or meets a limit.
    pub fn instantiate(
        &self,
        place: &LanePlace,
        state: StateView,
    ) -> Result<SinkInstance, CallError> {
        SinkInstance::new(self.clone(), place, state)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugin").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Plugin {
    /// The transform that it was loaded for.
    #[must_use]
    pub fn id(&self) -> &TransformId {
        &self.inner.id
    }

    /// SHA-256 of the plugin's file.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        self.inner.guest.digest
    }

    /// Log lines that were left out so far, for metrics.
    #[must_use]
    pub fn log_lines_left_out(&self) -> u64 {
        self.inner.guest.log.left_out()
    }

    /// Calls so far, for metrics.
    #[must_use]
    pub fn calls(&self) -> PluginCalls {
        self.inner.guest.calls()
    }

    /// Makes an instance at a place, with the transform's config and this state.
    ///
    /// # Errors
    /// When the guest's `init` refuses, breaks down, or meets a limit.
    pub fn instantiate(&self, place: &LanePlace, state: StateView) -> Result<Instance, CallError> {
        Instance::new(self.clone(), place, state)
    }
}

/// The SHA-256 of a plugin's file. Blocks.
///
/// # Errors
/// When it cannot be read or is larger than a plugin may be.
pub fn digest_of(path: &Path) -> std::io::Result<[u8; 32]> {
    inspect::read(path).map(|bytes| sha256(&bytes))
}

/// A plugin as a config uses it.
#[derive(Debug, Clone, Copy)]
pub enum PluginUse<'a> {
    /// In a `[transforms.NAME]` table.
    Transform(&'a TransformConfig),
    /// In a `[sinks.NAME]` table.
    Sink {
        /// What every plugin has.
        guest: &'a GuestConfig,
        /// Whether the table lets it send requests to anybody.
        may_send: bool,
    },
}

impl<'a> PluginUse<'a> {
    /// What every plugin has.
    #[must_use]
    pub fn guest(self) -> &'a GuestConfig {
        match self {
            Self::Transform(config) => &config.guest,
            Self::Sink { guest, .. } => guest,
        }
    }

    fn role(self) -> Role {
        match self {
            Self::Transform(_) => Role::Transform,
            Self::Sink { .. } => Role::Sink,
        }
    }

    fn has_tick(self) -> bool {
        matches!(self, Self::Transform(config) if config.tick.is_some())
    }
}

/// Checks the file of a plugin as far as that goes without compiling it: for `check`, and before a reload.
///
/// # Errors
/// All problems at once, each one a sentence about the file that does not repeat its path.
pub fn check(used: PluginUse<'_>) -> Result<Inspection, Vec<String>> {
    let config = used.guest();
    let bytes = inspect::read(&config.plugin)
        .map_err(|error| vec![format!("it cannot be read: {error}")])?;
    let mut problems = Vec::new();
    let found = sha256(&bytes);
    if let Some(pinned) = config.sha256
        && pinned != found
    {
        problems.push(format!(
            "it has the SHA-256 {}, and the config pins {}; a changed plugin needs a changed pin",
            hex(&found),
            hex(&pinned)
        ));
    }
    match inspect::inspect_bytes(&bytes, Some(used.role())) {
        Ok(inspection) if inspection.compiled && config.sha256.is_none() => {
            problems.push(COMPILED_WITHOUT_PIN.to_owned());
        }
        Ok(inspection) if used.has_tick() && !inspection.compiled && !inspection.has_ticks() => {
            problems.push(TICK_WITHOUT_TIMER.to_owned());
        }
        Ok(inspection) if problems.is_empty() => return Ok(inspection),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(problems)
}

const TICK_WITHOUT_TIMER: &str = "it has no timer (it does not export the interface ticks), so `tick` has nothing to call; remove the key, or build the plugin for the world windowed-plugin";
#[cfg(not(feature = "compiler"))]
const WITHOUT_COMPILER: &str = "this agent has no compiler; compile it with `waystation plugin compile` of an agent of this version that has one, and name and pin what that writes";
const COMPILED_WITHOUT_PIN: &str = "it is compiled already, and such a file is run only with a sha256 that pins it; `waystation plugin compile` prints the digest";

/// A digest as people write it.
pub(crate) fn hex(digest: &[u8; 32]) -> String {
    use fmt::Write as _;

    digest.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ok = write!(text, "{byte:02x}");
        text
    })
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;

    sha2::Sha256::digest(bytes).into()
}
