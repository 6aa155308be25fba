//! The integration tests, in one binary.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::string_slice,
    clippy::disallowed_methods,
    reason = "helpers of tests stand outside of what clippy takes for tests"
)]

/// The book: its generated pages, its configs, its commands.
mod book;
/// Bad input on the command line.
mod certify;
mod cli;
/// The corpus of configs, and what is said about each.
mod config;
/// SIGKILL at random moments.
mod crash;
/// A config in several files.
mod drop_ins;
/// What became of one record.
mod explain;
/// An end between two given steps.
mod failpoints;
/// A volume without a byte left, and a journal that was emptied.
mod full_disk;
/// The HTTP sink against a scripted server.
mod hostile;
mod http;
/// What an HTTP endpoint refuses, and where it goes.
mod http_refusals;
/// Posts to the HTTP source: what is answered, and what is there after a kill.
mod ingest;
/// JetStream servers that end, go lame, change leaders, forget streams and identities.
mod jetstream;
/// Damaged journals, and the commands that look into one.
mod journal;
/// Entries of journald, once each.
mod journald;
/// Lanes that the config has not any more.
mod lanes;
/// A real MQTT broker that dies, forgets, refuses, and delivers twice.
mod mqtt;
/// JetStream streams and NATS subjects as a source: what was acknowledged is there once.
mod nats_source;
/// Orders to a running agent, and what an operator sees of dead letters and holds.
mod operator;
/// All destinations away for a while.
mod outage;
/// Whole pipelines through the real binary.
mod pipeline;
/// Projects that `plugin new` makes, in every language.
mod plugin_projects;
/// What authors see of their plugin.
mod plugin_tools;
/// Power cuts of the whole agent, rebuilt from its system calls.
mod power;
/// Another config under a running agent, and a start with a broken one.
mod reload;
/// Rates that are changed while records go out, as their receiver sees it.
mod reload_rates;
/// Many reloads in a row, under a flow of records.
mod reloads;
/// Dead letters that go out again.
mod replay;
/// Logs that are rotated in every way.
mod rotation;
/// Which pipeline takes a record, and which file it goes into.
mod routes;
/// The JSON Schema of the config.
mod schema;
/// What a service manager is told.
mod service;
/// The plugins that come with the agent.
mod shipped_plugins;
/// Stopping while nothing moves.
mod sink_plugin;
/// What is sent to sockets: frames, datagrams, and what is there after a kill.
mod sockets;
/// SIGKILL under load, however records are sent.
mod sockets_killed;
mod stop;
/// An agent process, a nats-server, input and output.
mod support;
/// Transforms with a timer.
mod ticks;
/// What clippy cannot see: import order, file length, leftovers, examples that parse.
mod tidy;
/// When records happened, and when they were taken.
mod times;
/// Sockets in the file system: who may send, and whose they are.
mod unix_sockets;
