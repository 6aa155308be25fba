//! The only `wasmtime::Config`, and the clock that stops guests.
//!
//! The settings are part of what a compiled plugin is: the agent and `plugin compile` both take them from here. They differ in
//! how [`Memories`] come to their first content, so there are two engines.

#[cfg(feature = "compiler")]
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::{Config, Engine, EngineWeak, WasmFeatures};

use super::error::PluginError;
use super::memory::KeptMemories;
use crate::clock::{Clock as _, SystemClock};
#[cfg(feature = "compiler")]
use crate::limits::PLUGIN_KEPT_DATA_BYTES_MAX;
use crate::limits::{PLUGIN_KEPT_MS, PLUGIN_STACK_BYTES, PLUGIN_TICK_MS};

/// What guests may use of WebAssembly: nothing with threads, garbage collection, exceptions or 64-bit memories.
pub(super) const FEATURES: WasmFeatures = WasmFeatures::MUTABLE_GLOBAL
    .union(WasmFeatures::SATURATING_FLOAT_TO_INT)
    .union(WasmFeatures::SIGN_EXTENSION)
    .union(WasmFeatures::REFERENCE_TYPES)
    .union(WasmFeatures::MULTI_VALUE)
    .union(WasmFeatures::BULK_MEMORY)
    .union(WasmFeatures::BULK_MEMORY_OPT)
    .union(WasmFeatures::CALL_INDIRECT_OVERLONG)
    .union(WasmFeatures::SIMD)
    .union(WasmFeatures::RELAXED_SIMD)
    .union(WasmFeatures::TAIL_CALL)
    .union(WasmFeatures::FLOATS)
    .union(WasmFeatures::MULTI_MEMORY)
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL);

/// How the linear memories of a component's instances come to their first content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memories {
    /// It is written into memory that an earlier instance may have left.
    Kept,
    /// They are pages of the compiled file, copied where they are written: for components that bring much data.
    Mapped,
}

#[cfg(feature = "compiler")]
impl Memories {
    /// What suits a component that is not compiled.
    pub(super) fn of(component: &[u8]) -> Self {
        let data = wasmparser::Parser::new(0).parse_all(component).map_while(Result::ok);
        let data = data.map(|payload| match payload {
            wasmparser::Payload::DataSection(section) => section.range().len(),
            _ => 0,
        });
        if data.sum::<usize>() > PLUGIN_KEPT_DATA_BYTES_MAX { Self::Mapped } else { Self::Kept }
    }
}

/// Makes an engine. Two engines of one build, and for memories of one kind, run each other's compiled plugins.
///
/// # Errors
/// When this machine cannot run what the compiler makes.
pub(super) fn engine(memories: Memories, kept: &KeptMemories) -> Result<Engine, PluginError> {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all().difference(FEATURES), false)
        .wasm_features(FEATURES, true)
        .concurrency_support(false)
        .relaxed_simd_deterministic(true)
        .epoch_interruption(true)
        .max_wasm_stack(PLUGIN_STACK_BYTES)
        .memory_init_cow(memories == Memories::Mapped)
        // Names of a guest's functions in a trap are of no use to the operator, and their tables are not small.
        .generate_address_map(false)
        .wasm_backtrace_max_frames(None)
        // Nothing unwinds through a guest: it traps. Registering the tables is a part of what loading takes.
        .native_unwind_info(false);
    #[cfg(feature = "compiler")]
    config
        // What was seen on a device can be repeated on a laptop.
        .cranelift_nan_canonicalization(true)
        .cranelift_opt_level(wasmtime::OptLevel::Speed)
        .parallel_compilation(true);
    if memories == Memories::Kept {
        config.with_host_memory(Arc::new(kept.clone()));
    }
    Engine::new(&config).map_err(PluginError::engine)
}

/// What distinguishes the compiled files of one build and setting from those of another.
#[cfg(feature = "compiler")]
pub(super) fn compatibility(engine: &Engine) -> u64 {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    hasher.finish()
}

/// The tick of a call at which looking at the clock begins.
///
/// Ticks come late more often than early, so they are not counted up to the deadline: from here on each one asks the clock.
pub(super) fn first_look_ticks(deadline: Duration) -> u64 {
    let ticks = deadline.as_millis() * 15 / 16 / u128::from(PLUGIN_TICK_MS);
    u64::try_from(ticks).unwrap_or(u64::MAX).max(1)
}

/// The thread that advances the engine's epoch while guests run. It sleeps while none does, and ends with the last plugin.
#[derive(Debug)]
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    /// Calls that are running; [`ENDED`] on top when the thread is to end.
    calls: AtomicUsize,
}

impl Shared {
    /// Advances the epoch while calls run, and gives memory back when none has run for a while.
    fn tick(&self, engine: &EngineWeak, kept: &KeptMemories) {
        let kept_for = Duration::from_millis(PLUGIN_KEPT_MS);
        loop {
            match self.calls.load(Ordering::SeqCst) {
                0 => {
                    let begun = SystemClock.monotonic();
                    // A call that begins ends it, also one that has ended again by now.
                    std::thread::park_timeout(kept_for);
                    if SystemClock.monotonic().since(begun) >= kept_for {
                        kept.clear();
                        std::thread::park();
                    }
                }
                ENDED.. => return,
                _ => {
                    std::thread::sleep(Duration::from_millis(PLUGIN_TICK_MS));
                    let Some(engine) = engine.upgrade() else { return };
                    engine.increment_epoch();
                }
            }
        }
    }
}

/// Far above any number of calls.
const ENDED: usize = 1 << (usize::BITS - 1);

impl Ticker {
    fn start(engine: &Engine, kept: &KeptMemories) -> Result<Self, PluginError> {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let (engine, kept) = (engine.weak(), kept.clone());
        let thread = std::thread::Builder::new()
            .name("plugin-ticker".to_owned())
            .spawn(move || watched.tick(&engine, &kept))
            .map_err(PluginError::Ticker)?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    /// Makes time pass for as long as the guard lives.
    pub(super) fn run(&self) -> Running<'_> {
        if self.shared.calls.fetch_add(1, Ordering::SeqCst) == 0 {
            self.thread.unpark();
        }
        Running(self)
    }
}

/// The thread ends within a tick; it is not waited for, since the last plugin may be dropped on an async thread.
impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.calls.fetch_or(ENDED, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// A call that is running.
#[derive(Debug)]
pub(super) struct Running<'a>(&'a Ticker);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.shared.calls.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Hands out the one ticker, which exists while somebody holds it.
#[derive(Debug, Default)]
pub(super) struct TickerSlot(Mutex<Weak<Ticker>>);

impl TickerSlot {
    pub(super) fn get(
        &self,
        engine: &Engine,
        kept: &KeptMemories,
    ) -> Result<Arc<Ticker>, PluginError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ticker) = slot.upgrade() {
            return Ok(ticker);
        }
        let ticker = Arc::new(Ticker::start(engine, kept)?);
        *slot = Arc::downgrade(&ticker);
        Ok(ticker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_suit_this_machine_and_make_one_compatibility_for_each_kind_of_memory() {
        let of = |memories| compatibility(&engine(memories, &KeptMemories::default()).unwrap());
        assert_eq!(of(Memories::Kept), of(Memories::Kept));
        assert_eq!(of(Memories::Mapped), of(Memories::Mapped));
        assert_ne!(of(Memories::Kept), of(Memories::Mapped));
    }

    #[test]
    fn the_clock_is_looked_at_before_the_deadline() {
        assert_eq!(first_look_ticks(Duration::from_millis(10)), 1);
        assert_eq!(first_look_ticks(Duration::from_secs(1)), 93);
    }

    #[test]
    fn the_ticker_is_shared_and_ends_with_its_last_holder() {
        let kept = KeptMemories::default();
        let engine = engine(Memories::Kept, &kept).unwrap();
        let slot = TickerSlot::default();
        let one = slot.get(&engine, &kept).unwrap();
        let two = slot.get(&engine, &kept).unwrap();
        assert!(Arc::ptr_eq(&one, &two));
        drop(one.run());
        let watched = Arc::downgrade(&one.shared);
        drop((one, two));
        let ended = (0..1000).any(|_| {
            std::thread::park_timeout(Duration::from_millis(5));
            watched.upgrade().is_none()
        });
        assert!(ended, "the thread has let go of what it shared");
    }
}
