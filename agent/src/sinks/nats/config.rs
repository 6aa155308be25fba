//! A `[sinks.NAME]` table with `type = "nats"`.

use crate::net::config::TlsConfig;
use crate::net::servers::{check_name, read_servers};
use crate::secret::Secret;
use crate::settings::{Complaint, Table, template};
use crate::sinks::config::{BatchConfig, SinkKind};

/// Settings of a JetStream sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsSinkConfig {
    /// `servers`: URLs, `nats://` or `tls://`; at least one.
    pub servers: Vec<String>,
    /// `credentials`: a `.creds` file's content; default none.
    pub credentials: Option<Secret>,
    /// `stream`: the stream that must have taken the messages; default any.
    pub stream: Option<String>,
    /// `subject`: a template with `{agent}`, `{source}`, `{pipeline}`, `{sink}` and `{subject}`; default `"{subject}"`.
    pub subject: String,
    /// `tls`: whom to trust and what to show; default: TLS when the server or its URL asks for it, with the authorities of the
    /// host and of `net.ca`. With it nothing is sent without TLS.
    pub tls: Option<TlsConfig>,
    /// `publish_window`: publishes without an answer yet; default 64, 1 to 4096. There are never more of
    /// them than records in a batch.
    pub publish_window: u16,
    /// `order`, default `"window"`.
    pub order: Order,
    /// `on_unknown`, default `"resend"`.
    pub on_unknown: OnUnknown,
    /// `lookup_max`: messages that one lookup reads at most; default 100 000, 1 to 10 000 000.
    pub lookup_max: u64,
}

/// What order is kept when a publish fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// What stands behind the failed one in the window may be stored before it; counted.
    #[default]
    Window,
    /// Strictly: one message at a time.
    Strict,
}

/// What happens to messages that may be in the stream when that cannot be looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnknown {
    /// They are sent again, and counted as possible duplicates.
    #[default]
    Resend,
    /// The lane holds.
    Hold,
}

impl NatsSinkConfig {
    /// Reads what stands beside `type = "nats"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<(SinkKind, BatchConfig)> {
        let servers = read_servers(table);
        let credentials = table.secret("credentials", "The content of a .creds file.").optional();
        let stream = table
            .text("stream", "The stream that must have taken the messages.")
            .check(|text| check_name("stream", text))
            .optional();
        let subject = table
            .text("subject", "The subject of messages, a template.")
            .check(|text| check_subject(text))
            .or("{subject}".to_owned());
        let tls = TlsConfig::read(table);
        let publish_window = table
            .integer("publish_window", "Publishes without an answer yet.")
            .within(1..=4096)
            .or(64);
        let order = table
            .choice(
                "order",
                "Whether messages behind a failed one may be stored before it.",
                &[("window", Order::Window), ("strict", Order::Strict)],
            )
            .or(Order::default());
        let on_unknown = table
            .choice(
                "on_unknown",
                "What to do with messages that may have arrived, when the stream cannot be looked into.",
                &[("resend", OnUnknown::Resend), ("hold", OnUnknown::Hold)],
            )
            .or(OnUnknown::default());
        let lookup_max = table
            .integer("lookup_max", "Messages that one lookup in the stream reads at most.")
            .within(1..=10_000_000)
            .or(100_000);
        let batch = BatchConfig::read(&table.table("batch"), BatchConfig::STREAM);
        let servers = servers?;
        let kind = Self {
            servers,
            credentials,
            stream,
            subject,
            tls,
            publish_window,
            order,
            on_unknown,
            lookup_max,
        };
        Some((SinkKind::Nats(kind), batch))
    }
}

fn check_subject(text: &str) -> Result<(), Complaint> {
    let known = ["agent", "source", "pipeline", "sink", "subject"];
    let template = template::parse(text, &known, &["header"])?;
    let refused = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>');
    if template.literals.iter().any(|literal| literal.contains(refused)) {
        let message = "a subject to publish to holds no space and no wildcard";
        return Err(Complaint::new(message).hint("remove spaces, \"*\" and \">\""));
    }
    if text.split('.').any(str::is_empty) {
        return Err(
            Complaint::new("a subject has no empty part").hint("put something between the dots")
        );
    }
    Ok(())
}
