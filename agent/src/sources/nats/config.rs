//! A `[sources.NAME]` table with `type = "nats"`.

use crate::limits::NATS_SUBJECTS_MAX;
use crate::net::config::TlsConfig;
use crate::net::servers::{check_name, read_servers};
use crate::record::subject::SubjectPattern;
use crate::secret::Secret;
use crate::settings::{Complaint, Table};
use crate::sources::config::{LineLimits, SourceKind, read_subject};

/// Settings of a source that takes messages of NATS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsSourceConfig {
    /// `servers`: URLs, `nats://` or `tls://`; at least one.
    pub servers: Vec<String>,
    /// `credentials`: a `.creds` file's content; default none.
    pub credentials: Option<Secret>,
    /// `tls`: whom to trust and what to show; default: TLS when the server or its URL asks for it, with the authorities of the
    /// host and of `net.ca`. With it nothing is sent without TLS.
    pub tls: Option<TlsConfig>,
    /// `stream` and `consumer`, or `subjects`.
    pub from: From,
    /// `subject`: a template with `{source}` and `{subject}`; default `"{subject}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

/// Where its messages come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// A JetStream stream, through a durable consumer: each message once.
    Stream {
        /// `stream`: its name.
        stream: String,
        /// `consumer`: the name of the consumer, which is made where it is not there; default `waystation-AGENT-SOURCE`.
        consumer: Option<String>,
    },
    /// Subscriptions to subjects, up to 256: each message at most once.
    Subjects {
        /// `subjects`: may hold wildcards.
        subjects: Vec<String>,
    },
}

impl NatsSourceConfig {
    /// Reads what stands beside `type = "nats"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let servers = read_servers(table);
        let credentials = table.secret("credentials", "The content of a .creds file.").optional();
        let tls = TlsConfig::read(table);
        let stream = table
            .text("stream", "The JetStream stream whose messages are taken, each once.")
            .check(|text| check_name("stream", text))
            .optional();
        let consumer = table
            .text(
                "consumer",
                "Its consumer, made where it is not there; default: made of agent and source.",
            )
            .check(|text| check_name("consumer", text))
            .optional();
        let subjects = table
            .list_of(
                "subjects",
                "Subjects to subscribe to without JetStream: each message at most once.",
                "a list of subjects",
                |text| check_pattern(text).map(|()| text.to_owned()),
            )
            .at_least_one()
            .check(|list: &Vec<String>| {
                if list.len() > NATS_SUBJECTS_MAX {
                    let message = format!("`subjects` holds more than {NATS_SUBJECTS_MAX}");
                    return Err(Complaint::new(message));
                }
                Ok(())
            })
            .optional();
        let from = read_from(table, stream, consumer, subjects);
        let subject = read_subject(table, &["source", "subject"], "{subject}");
        let limits = LineLimits::read(table);
        let (servers, from) = (servers?, from?);
        let config = Self { servers, credentials, tls, from, subject, limits };
        Some(SourceKind::Nats(Box::new(config)))
    }
}

/// One of the two ways, and what has to be known of it.
fn read_from(
    table: &Table<'_>,
    stream: Option<String>,
    consumer: Option<String>,
    subjects: Option<Vec<String>>,
) -> Option<From> {
    let reading = table.reading();
    if reading.is_describing() {
        return None;
    }
    let place = |key: &str| reading.place(&table.path(key)).map(|place| place.key);
    match (place("stream"), place("subjects")) {
        (Some(_), Some(at)) => {
            let complaint = Complaint::new("`stream` and `subjects` exclude each other");
            let complaint =
                complaint.hint("keep `stream`, whose messages come each once, or `subjects`");
            reading.error(table.path("subjects"), Some(at), complaint);
            None
        }
        (None, None) => {
            let complaint = Complaint::new("`stream` is missing")
                .hint("add stream = \"NAME\", or subjects = [\"SUBJECT\"] without JetStream");
            reading.error(table.path("stream"), None, complaint);
            None
        }
        (Some(_), None) => Some(From::Stream { stream: stream?, consumer }),
        (None, Some(at)) => {
            if let Some(at) = place("consumer") {
                let complaint = Complaint::new("`consumer` is of no use without `stream`");
                reading.error(
                    table.path("consumer"),
                    Some(at),
                    complaint.hint("remove it, or name the stream"),
                );
            }
            let complaint = Complaint::new(
                "a subscription without JetStream takes each message at most once: what is published while the agent or the link \
                 is down, and what a full journal does not take, is gone",
            );
            let complaint =
                complaint.hint("name a `stream` that holds these subjects, if each message counts");
            reading.warning(table.path("subjects"), Some(at), complaint);
            Some(From::Subjects { subjects: subjects? })
        }
    }
}

fn check_pattern(text: &str) -> Result<(), Complaint> {
    let pattern = text.parse::<SubjectPattern>();
    pattern.map(drop).map_err(|error| {
        Complaint::new(error.to_string()).hint("write \"plant.*.temperature\" or \"plant.>\"")
    })
}
