//! The log: one subscriber for the whole process, to standard error.
//!
//! Text with colour on a terminal, one JSON object a line elsewhere. Libraries are heard from `warn` on, so that `info` holds
//! the agent's own life-cycle only; with `debug` and `trace` they say as much as the agent. The NATS client is not heard before
//! that: it repeats itself with every try to connect, and what matters of it stands in the lane's state.

use std::io::IsTerminal as _;

use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::config::{Level, LogConfig, LogFormat};

/// The crate whose events are the agent's own.
const OWN_TARGET: &str = "waystation";

/// The crate that repeats itself.
const NATS_TARGET: &str = "async_nats";

/// The log while it runs. Dropping it changes nothing; only the level can no longer be changed.
#[derive(Debug, Clone)]
pub struct Logging {
    filter: reload::Handle<Targets, Registry>,
}

impl Logging {
    /// Changes the level from the next event on. Without effect when another subscriber was there first.
    pub fn set_level(&self, level: Level) {
        // The handle is dead when the subscriber was never installed, and then there is nothing to change.
        let _gone = self.filter.reload(filter(level));
    }
}

/// Installs the log for the process. A subscriber that is there already stays, as in tests.
pub fn init(config: &LogConfig) -> Logging {
    let (filter, handle) = reload::Layer::new(filter(config.level));
    let terminal = std::io::stderr().is_terminal();
    let lines = lines(config.format, terminal, std::io::stderr);
    // Without a log there is nobody to tell that another one was there first.
    let _taken = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Logging { filter: handle }
}

/// What passes at a level.
fn filter(level: Level) -> Targets {
    let own = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let others = match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn | Level::Info => LevelFilter::WARN,
        Level::Debug | Level::Trace => own,
    };
    let nats = match level {
        Level::Error | Level::Warn | Level::Info => LevelFilter::OFF,
        Level::Debug | Level::Trace => own,
    };
    Targets::new().with_default(others).with_target(NATS_TARGET, nats).with_target(OWN_TARGET, own)
}

/// How lines look and where they go.
fn lines<S, W>(format: LogFormat, terminal: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // A standard error that nobody reads any more must not be answered with a second failure.
    let layer = fmt::layer().with_writer(writer).log_internal_errors(false);
    let text = match format {
        LogFormat::Auto => terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    if text {
        layer.with_ansi(terminal).with_target(false).boxed()
    } else {
        layer.json().flatten_event(true).with_span_list(false).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::captured::Captured;
    use super::*;

    fn logged(
        format: LogFormat,
        terminal: bool,
        level: Level,
        events: impl Fn(&Logging),
    ) -> String {
        let captured = Captured::default();
        let (filter, handle) = reload::Layer::new(filter(level));
        let lines = lines(format, terminal, captured.clone());
        let subscriber = tracing_subscriber::registry().with(filter).with(lines);
        let logging = Logging { filter: handle };
        tracing::subscriber::with_default(subscriber, || events(&logging));
        captured.text()
    }

    #[test]
    fn without_a_terminal_a_line_is_one_json_object_with_fields_and_span() {
        let text = logged(LogFormat::Auto, false, Level::Info, |_| {
            let span = tracing::info_span!("lane", id = "gw/s/p/k");
            span.in_scope(|| tracing::info!(count = 3, "Lane opened"));
        });
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line["message"], "Lane opened");
        assert_eq!(line["count"], 3);
        assert_eq!(line["level"], "INFO");
        assert_eq!(line["span"]["name"], "lane");
        assert_eq!(line["span"]["id"], "gw/s/p/k");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn colour_is_for_terminals_only() {
        let event = |_: &Logging| tracing::info!("Agent started");
        assert!(logged(LogFormat::Auto, true, Level::Info, event).contains("\u{1b}["));
        let plain = logged(LogFormat::Text, false, Level::Info, event);
        assert!(plain.contains("Agent started") && !plain.contains('\u{1b}'), "{plain}");
        assert!(logged(LogFormat::Json, true, Level::Info, event).starts_with('{'));
    }

    #[test]
    fn libraries_are_quiet_until_debug_and_the_level_can_be_changed() {
        let text = logged(LogFormat::Text, false, Level::Info, |logging| {
            tracing::info!(target: "hyper", "library info");
            tracing::error!(target: "async_nats::connector", "authorization violation");
            tracing::warn!(target: "hyper", "library warning");
            tracing::debug!("own debug, too early");
            logging.set_level(Level::Debug);
            tracing::debug!("own debug");
            tracing::debug!(target: "wasmtime", "library debug");
            tracing::debug!(target: "async_nats", "client debug");
            logging.set_level(Level::Error);
            tracing::warn!("own warning, too late");
        });
        let seen: Vec<_> = [
            "library info",
            "library warning",
            "too early",
            "own debug",
            "library debug",
            "authorization",
            "client debug",
            "too late",
        ]
        .into_iter()
        .filter(|what| text.contains(what))
        .collect();
        assert_eq!(seen, ["library warning", "own debug", "library debug", "client debug"]);
    }
}
