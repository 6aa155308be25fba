//! A `[sinks.NAME]` table with `type = "plugin"`.

use std::fmt;
use std::net::SocketAddr;

use ipnet::IpNet;
use reqwest::Url;
use reqwest::header::HeaderName;

use crate::limits::{HTTP_HEADERS_MAX, PLUGIN_NETWORKS_MAX, PLUGIN_ORIGINS_MAX};
use crate::net::config::TlsConfig;
use crate::net::http::{Endpoint, check_header};
use crate::net::reach::parse_network;
use crate::plugin::config::GuestConfig;
use crate::secret::Value;
use crate::settings::{Complaint, Table};
use crate::sinks::config::{BatchConfig, SinkKind};

/// Scheme, host and port, such as `https://hooks.example.org`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    /// The origin of a URL.
    #[must_use]
    pub fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }

    /// The origin of a server at this address that speaks HTTP without TLS.
    #[must_use]
    pub fn at(address: SocketAddr) -> Self {
        Self(format!("http://{address}"))
    }

    /// Whether anybody on the way can read what goes there.
    fn is_open(&self) -> bool {
        Endpoint::parse(&self.0, "allow.http").is_ok_and(|endpoint| endpoint.is_open())
    }

    fn parse(text: &str) -> Result<Self, Complaint> {
        let endpoint = Endpoint::parse(text, "allow.http")?;
        let url = endpoint.url();
        if url.path() != "/" || url.query().is_some() {
            let message = format!("\"{text}\" is more than scheme, host and port");
            let hint = format!("write \"{}\"", Self::of(url));
            return Err(Complaint::new(message).hint(hint));
        }
        Ok(Self::of(url))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A header that the agent adds, and the guest does not see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedHeader {
    /// To which requests.
    pub origin: Origin,
    /// Its name.
    pub name: HeaderName,
    /// Its value; a secret is read anew for every request.
    pub value: Value,
}

/// Settings of a sink that is a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSinkConfig {
    /// What every plugin has.
    pub guest: GuestConfig,
    /// `allow.http`: the origins that the plugin may send requests to, up to 32; default none.
    pub origins: Vec<Origin>,
    /// `allow.networks`: networks that it may reach although their addresses are not public, such as `"10.0.0.0/8"`, up to 32;
    /// default none.
    pub networks: Vec<IpNet>,
    /// `headers` that the agent adds to the plugin's requests, texts or secrets, which the plugin never sees; default none.
    /// A name goes to the only origin of `allow.http`; where there are several, the key is `"ORIGIN NAME"`.
    pub headers: Vec<AddedHeader>,
    /// `tls`; default: the authorities of the host and of `net.ca`, no client certificate.
    pub tls: Option<TlsConfig>,
}

impl PluginSinkConfig {
    /// Reads what stands beside `type = "plugin"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<(SinkKind, BatchConfig)> {
        let guest = GuestConfig::read(table);
        let allow = table.table("allow");
        let origins = allow
            .list_of(
                "http",
                "Origins that the plugin may send requests to.",
                "a list of origins such as \"https://hooks.example.org\"",
                Origin::parse,
            )
            .check(|list| within("http", list.len(), PLUGIN_ORIGINS_MAX))
            .or(Vec::new());
        let networks = allow
            .list_of(
                "networks",
                "Networks that it may reach although they are not public.",
                "a list of networks such as \"10.0.0.0/8\"",
                parse_network,
            )
            .check(|list| within("networks", list.len(), PLUGIN_NETWORKS_MAX))
            .or(Vec::new());
        let headers = table
            .values("headers", "Headers that the agent adds to its requests.", |key, value| {
                check_added(key, value)
            })
            .check(|list| within("headers", list.len(), HTTP_HEADERS_MAX))
            .or(Vec::new());
        let tls = TlsConfig::read(table);
        let batch = BatchConfig::read(&table.table("batch"), BatchConfig::STREAM);
        let headers = added(table, &origins, headers);
        for origin in origins.iter().filter(|origin| origin.is_open()) {
            let path = allow.path("http");
            let place = table.reading().place(&path).map(|place| place.value);
            let message = format!("everybody on the way can read and change what goes to {origin}");
            let complaint = Complaint::new(message).hint("write https://");
            table.reading().warning(path, place, complaint);
        }
        let config = Self { guest: guest?, origins, networks, headers: headers?, tls };
        Some((SinkKind::Plugin(Box::new(config)), batch))
    }
}

fn within(key: &str, count: usize, most: usize) -> Result<(), Complaint> {
    if count > most {
        return Err(Complaint::new(format!("`{key}` holds more than {most}")));
    }
    Ok(())
}

/// The origin that a key of `headers` names, and the header.
fn parts(key: &str) -> (Option<&str>, &str) {
    match key.rsplit_once(' ') {
        Some((origin, name)) => (Some(origin), name),
        None => (None, key),
    }
}

fn check_added(key: &str, value: &Value) -> Result<(), Complaint> {
    let (origin, name) = parts(key);
    if let Some(origin) = origin {
        Origin::parse(origin)?;
    }
    check_header(name, value, &[])
}

/// Gives each header its origin. `None` when one has none, which is reported.
fn added(
    table: &Table<'_>,
    origins: &[Origin],
    headers: Vec<(String, Value)>,
) -> Option<Vec<AddedHeader>> {
    let reading = table.reading();
    let mut list: Vec<AddedHeader> = Vec::new();
    let mut is_good = true;
    let mut complain = |key: &str, complaint| {
        let path = table.path("headers");
        let place = reading.place(&path).map(|place| place.value);
        reading.error(format!("{path}.{key}"), place, complaint);
        is_good = false;
    };
    for (key, value) in headers {
        let (origin, name) = parts(&key);
        let origin = match origin.map(Origin::parse) {
            Some(origin) => origin.ok().filter(|origin| origins.contains(origin)),
            None => origins.first().filter(|_| origins.len() == 1).cloned(),
        };
        let (Some(origin), Ok(name)) = (origin, name.parse::<HeaderName>()) else {
            let message = format!("`headers` does not say to which origin \"{key}\" goes");
            let hint = match origins {
                [] => "list the origin in `allow.http` first".to_owned(),
                [first, ..] => format!("write \"{first} {name}\", with an origin of `allow.http`"),
            };
            complain(&key, Complaint::new(message).hint(hint));
            continue;
        };
        if list.iter().any(|known| known.origin == origin && known.name == name) {
            complain(&key, Complaint::new(format!("the header {name} is given twice")));
            continue;
        }
        list.push(AddedHeader { origin, name, value });
    }
    is_good.then_some(list)
}
