//! The only `wasmtime::Config`, and the clock that stops guests.
//!
//! The settings are part of what a compiled plugin is: the agent and `plugin compile` both take them from here.

#[cfg(feature = "compiler")]
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::{Config, Engine, WasmFeatures};

use super::error::PluginError;
use crate::limits::{PLUGIN_STACK_BYTES, PLUGIN_TICK_MS};

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

/// Makes an engine. Two engines of one build run each other's compiled plugins.
///
/// # Errors
/// When this machine cannot run what the compiler makes.
pub(super) fn engine() -> Result<Engine, PluginError> {
    let mut config = Config::new();
    config
        .wasm_features(WasmFeatures::all().difference(FEATURES), false)
        .wasm_features(FEATURES, true)
        .concurrency_support(false)
        .relaxed_simd_deterministic(true)
        .epoch_interruption(true)
        .max_wasm_stack(PLUGIN_STACK_BYTES)
        .memory_init_cow(true)
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

/// Far above any number of calls.
const ENDED: usize = 1 << (usize::BITS - 1);

impl Ticker {
    fn start(engine: &Engine) -> Result<Self, PluginError> {
        let shared = Arc::new(Shared::default());
        let watched = Arc::clone(&shared);
        let engine = engine.weak();
        let thread = std::thread::Builder::new()
            .name("plugin-ticker".to_owned())
            .spawn(move || {
                loop {
                    match watched.calls.load(Ordering::SeqCst) {
                        0 => std::thread::park(),
                        ENDED.. => return,
                        _ => {
                            std::thread::sleep(Duration::from_millis(PLUGIN_TICK_MS));
                            let Some(engine) = engine.upgrade() else { return };
                            engine.increment_epoch();
                        }
                    }
                }
            })
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
    pub(super) fn get(&self, engine: &Engine) -> Result<Arc<Ticker>, PluginError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ticker) = slot.upgrade() {
            return Ok(ticker);
        }
        let ticker = Arc::new(Ticker::start(engine)?);
        *slot = Arc::downgrade(&ticker);
        Ok(ticker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_suit_this_machine_and_make_one_compatibility() {
        let (one, two) = (engine().unwrap(), engine().unwrap());
        assert_eq!(compatibility(&one), compatibility(&two));
    }

    #[test]
    fn the_clock_is_looked_at_before_the_deadline() {
        assert_eq!(first_look_ticks(Duration::from_millis(10)), 1);
        assert_eq!(first_look_ticks(Duration::from_secs(1)), 93);
    }

    #[test]
    fn the_ticker_is_shared_and_ends_with_its_last_holder() {
        let engine = engine().unwrap();
        let slot = TickerSlot::default();
        let one = slot.get(&engine).unwrap();
        let two = slot.get(&engine).unwrap();
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
