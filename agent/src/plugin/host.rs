//! What a guest can call: `log` and `state`; `http` is in `http.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{debug, error, info, warn};

use super::bindings::waystation::plugin::{log, state, types};
use super::http::HttpClient;
use super::limiter::Limiter;
use super::state::StateView;
use crate::clock::{Clock as _, Monotonic, SharedClock, SystemClock};
use crate::limits::{PLUGIN_LOG_LINES_PER_SECOND_MAX, PLUGIN_TEXT_BYTES_MAX};
use crate::record::id::LaneName;
use crate::settings::mask;

/// Everything that belongs to one instance of a guest.
pub(super) struct HostState {
    pub(super) limiter: Limiter,
    pub(super) state: StateView,
    /// False during `init` and `probe`.
    pub(super) state_writable: bool,
    pub(super) lane: LaneName,
    pub(super) log: Arc<LogGate>,
    /// When the running call is stopped.
    pub(super) deadline: Monotonic,
    /// Who carries out the requests of the running call, in those that may make any.
    pub(super) http: Option<Arc<dyn HttpClient>>,
    /// What was filled into the config, and must not be seen.
    pub(super) secrets: Vec<String>,
}

impl HostState {
    /// A guest's text as people may read it: up to 1 KiB, on one line, without secrets.
    pub(super) fn shown(&self, text: &str) -> String {
        if self.secrets.is_empty() {
            return bounded_text(text);
        }
        bounded_text(&mask::hidden(text.to_owned(), &self.secrets))
    }

    /// Does what is not on the guest's time.
    pub(super) fn outside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = SystemClock.monotonic();
        let done = work();
        let spent = SystemClock.monotonic().0.saturating_sub(begun.0);
        self.deadline = Monotonic(self.deadline.0.saturating_add(spent));
        done
    }
}

impl types::Host for HostState {}

/// An import that was used where it may not be.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Misuse(&'static str);

impl log::Host for HostState {
    fn log(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        if self.log.admit() {
            self.log.line(level, &self.lane, &self.shown(&message));
        }
        Ok(())
    }
}

impl state::Host for HostState {
    fn get(&mut self, key: String) -> wasmtime::Result<Option<Vec<u8>>> {
        Ok(self.state.get(&key).map(|value| value.to_vec()))
    }

    fn set(&mut self, key: String, value: Vec<u8>) -> wasmtime::Result<Result<(), String>> {
        if !self.state_writable {
            return Ok(Err("the state is read-only in init and probe".to_owned()));
        }
        Ok(self.state.set(key, value).map_err(|error| error.to_string()))
    }

    fn delete(&mut self, key: String) -> wasmtime::Result<()> {
        if !self.state_writable {
            // There is no error to return, and going on as if it had worked would be worse.
            let text = "state.delete was called in init or probe, where the state is read-only";
            return Err(Misuse(text).into());
        }
        self.state.delete(key);
        Ok(())
    }

    fn keys(&mut self, prefix: String, after: String, limit: u32) -> wasmtime::Result<Vec<String>> {
        Ok(self.state.keys(&prefix, &after, limit as usize))
    }
}

/// Lets through what a plugin may log, over all its instances.
#[derive(Debug)]
pub(super) struct LogGate {
    /// The transform or sink, as the config names it.
    plugin: String,
    clock: SharedClock,
    window: Mutex<Window>,
    left_out: AtomicU64,
}

#[derive(Debug, Default)]
struct Window {
    start: Monotonic,
    lines: u32,
    left_out: u64,
}

impl LogGate {
    pub(super) fn new(plugin: String, clock: SharedClock) -> Self {
        let window = Mutex::new(Window { start: clock.monotonic(), ..Window::default() });
        Self { plugin, clock, window, left_out: AtomicU64::new(0) }
    }

    /// Lines left out so far.
    pub(super) fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn line(&self, level: log::Level, lane: &LaneName, message: &str) {
        let plugin = &self.plugin;
        match level {
            log::Level::Debug => debug!(%plugin, %lane, "{message}"),
            log::Level::Info => info!(%plugin, %lane, "{message}"),
            log::Level::Warn => warn!(%plugin, %lane, "{message}"),
            log::Level::Error => error!(%plugin, %lane, "{message}"),
        }
    }

    fn admit(&self) -> bool {
        let now = self.clock.monotonic();
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(window.start).as_secs() >= 1 {
            let over = std::mem::replace(&mut *window, Window { start: now, ..Window::default() });
            self.say_left_out(over.left_out);
        }
        if window.lines < PLUGIN_LOG_LINES_PER_SECOND_MAX {
            window.lines += 1;
            return true;
        }
        window.left_out += 1;
        self.left_out.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn say_left_out(&self, count: u64) {
        if count > 0 {
            let plugin = &self.plugin;
            warn!(%plugin, count, "Log lines of a plugin were left out, over 100 a second");
        }
    }
}

/// What the last second left out is said when nobody can log any more.
impl Drop for LogGate {
    fn drop(&mut self) {
        let window = self.window.get_mut().unwrap_or_else(PoisonError::into_inner);
        let count = std::mem::take(&mut window.left_out);
        self.say_left_out(count);
    }
}

/// A guest's text as it may stand in a log or dead letter: up to 1 KiB, on one line.
pub(super) fn bounded_text(text: &str) -> String {
    let end = text.floor_char_boundary(PLUGIN_TEXT_BYTES_MAX);
    let (head, rest) = text.split_at(end);
    let mut out: String = head.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if !rest.is_empty() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};
    use std::time::Duration;

    #[test]
    fn a_hundred_lines_a_second_pass_and_the_rest_is_counted() {
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let gate = LogGate::new("clean".to_owned(), clock.clone());
        assert_eq!((0..250).filter(|_| gate.admit()).count(), 100);
        assert_eq!(gate.left_out(), 150);
        clock.advance(Duration::from_secs(1));
        assert_eq!((0..50).filter(|_| gate.admit()).count(), 50);
        assert_eq!(gate.left_out(), 150);
    }

    #[test]
    fn a_text_is_cut_between_characters_and_stays_on_one_line() {
        assert_eq!(bounded_text("a\nb\u{1b}[1m"), "a b [1m");
        let long = bounded_text(&"é".repeat(PLUGIN_TEXT_BYTES_MAX));
        assert_eq!(long.chars().count(), PLUGIN_TEXT_BYTES_MAX / 2 + 1);
    }
}
