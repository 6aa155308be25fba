//! A `[sources.NAME]` table with `type = "mqtt"`.

use std::fmt;
use std::time::Duration;

use super::filter;
use crate::limits::{MQTT_CLIENT_ID_BYTES_MAX, MQTT_TOPICS_MAX};
use crate::net::authority::host_and_port;
use crate::net::config::TlsConfig;
use crate::secret::Secret;
use crate::settings::{Complaint, Table};
use crate::sources::config::{LineLimits, SourceKind, read_subject};

/// Settings of an MQTT source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MqttSourceConfig {
    /// `url`: `mqtt://HOST[:PORT]` (1883), or `mqtts://HOST[:PORT]` (8883) with TLS.
    pub url: Broker,
    /// `topics`: filters to subscribe to, also `$share/GROUP/FILTER`; 1 to 256.
    pub topics: Vec<String>,
    /// `qos`: how surely the broker delivers, 0, 1 or 2; default 1. A broker that grants less is refused.
    pub qos: u8,
    /// `version`, default `"3.1.1"`.
    pub version: Version,
    /// `client_id`: names the session that the broker keeps, 1 to 256 bytes; default `waystation-AGENT-SOURCE`.
    pub client_id: Option<String>,
    /// `credentials = { username, password }`; default none.
    pub credentials: Option<Credentials>,
    /// `keep_alive`: how often a silent connection is tried; default 30 s, 1 s to 18 h.
    pub keep_alive: Duration,
    /// `subject`: a template with `{source}` and `{topic}`; default `"{topic}"`.
    pub subject: String,
    /// `tls`, for `mqtts://`: whom to trust and what to show; default: the authorities of the host and of `net.ca`.
    pub tls: Option<TlsConfig>,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

/// The versions of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// 3.1.1. The default: every broker speaks it, also those that know nothing newer.
    #[default]
    V3,
    /// 5, with properties as headers, a bound on what is in flight, and reasons for what the broker refuses.
    V5,
}

/// What the client names itself with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `credentials.username`.
    pub username: String,
    /// `credentials.password`: read again for every connection; default none.
    pub password: Option<Secret>,
}

/// Where a broker is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broker {
    /// A name or an address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it is spoken to by TLS.
    pub tls: bool,
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "mqtts" } else { "mqtt" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl Broker {
    fn parse(url: &str) -> Result<Self, Complaint> {
        let wrong = |message: String| {
            Err(Complaint::new(message).hint("write \"mqtt://HOST:PORT\" or \"mqtts://HOST:PORT\""))
        };
        if url.contains('@') {
            let hint = "use credentials = { username = \"NAME\", password = { file = \"PATH\" } }";
            return Err(Complaint::new("secrets do not stand in URLs").hint(hint));
        }
        let Some((scheme, authority)) = url.split_once("://") else {
            return wrong(format!("\"{url}\" is no URL"));
        };
        let tls = match scheme {
            "mqtt" => false,
            "mqtts" => true,
            _ => {
                return wrong(format!(
                    "a broker's URL begins with mqtt:// or mqtts://, not {scheme}://"
                ));
            }
        };
        let (host, port) = match host_and_port(url, authority) {
            Ok((host, port)) => (host, port.unwrap_or(if tls { 8883 } else { 1883 })),
            Err(message) => return wrong(message),
        };
        Ok(Self { host: host.to_owned(), port, tls })
    }
}

impl MqttSourceConfig {
    /// Reads what stands beside `type = "mqtt"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<SourceKind> {
        let url = table
            .parsed(
                "url",
                "The broker: mqtt://HOST:PORT, mqtts:// for TLS.",
                "a URL",
                Broker::parse,
            )
            .required();
        let topics = table
            .list_of(
                "topics",
                "Topic filters to subscribe to.",
                "a list of topic filters",
                |text| filter::check(text).map(|()| text.to_owned()),
            )
            .at_least_one()
            .check(|list: &Vec<String>| {
                if list.len() > MQTT_TOPICS_MAX {
                    let message = format!("`topics` holds more than {MQTT_TOPICS_MAX} filters");
                    return Err(Complaint::new(message));
                }
                Ok(())
            })
            .required();
        let qos = table.integer("qos", "How surely the broker delivers.").within(0..=2).or(1_u8);
        let words = [("3.1.1", Version::V3), ("5", Version::V5)];
        let version =
            table.choice("version", "The version of the protocol.", &words).or(Version::default());
        let client_id = table
            .text(
                "client_id",
                "Names the session that the broker keeps; default: made of agent and source.",
            )
            .check(|text| check_client_id(text))
            .optional();
        let credentials = Credentials::read(table);
        let keep_alive = table
            .duration("keep_alive", "How often a silent connection is tried.")
            .within(Duration::from_secs(1)..=Duration::from_hours(18))
            .or(Duration::from_secs(30));
        let subject = read_subject(table, &["source", "topic"], "{topic}");
        let tls = TlsConfig::read(table);
        let limits = LineLimits::read(table);
        let url = url?;
        if tls.is_some() && !url.tls && !table.reading().is_describing() {
            let path = table.path("tls");
            let place = table.reading().place(&path).map(|place| place.key);
            let complaint = Complaint::new("`tls` is of no use with mqtt://");
            table.reading().error(path, place, complaint.hint("write mqtts:// in `url`"));
        }
        Some(SourceKind::Mqtt(Box::new(Self {
            url,
            topics: topics?,
            qos,
            version,
            client_id,
            credentials,
            keep_alive,
            subject,
            tls,
            limits,
        })))
    }
}

impl Credentials {
    /// Reads the table `credentials` in `table`; `None` when the file does not have it, or what is wrong was reported.
    fn read(table: &Table<'_>) -> Option<Self> {
        let table = table.optional_table("credentials", "What the client names itself with.")?;
        let username = table
            .text("username", "Name at the broker.")
            .check(|text| match text.len() {
                1..=0xffff => Ok(()),
                _ => Err(Complaint::new("`username` must have 1 to 65535 bytes")),
            })
            .required();
        let password = table.secret("password", "Password at the broker.").optional();
        Some(Self { username: username?, password })
    }
}

fn check_client_id(text: &str) -> Result<(), Complaint> {
    if text.is_empty() || text.len() > MQTT_CLIENT_ID_BYTES_MAX || text.contains(char::is_control) {
        let message = format!(
            "`client_id` must have 1 to {MQTT_CLIENT_ID_BYTES_MAX} bytes and no control character"
        );
        return Err(Complaint::new(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_perhaps_a_port() {
        let shown = |url: &str| Broker::parse(url).map(|broker| broker.to_string()).ok();
        let known = |text: &str| Some(text.to_owned());
        assert_eq!(shown("mqtt://broker"), known("mqtt://broker:1883"));
        assert_eq!(shown("mqtts://10.0.0.1/"), known("mqtts://10.0.0.1:8883"));
        assert_eq!(shown("mqtts://[::1]:99"), known("mqtts://[::1]:99"));
        for bad in [
            "broker:1883",
            "tcp://broker",
            "mqtt://",
            "mqtt://a b",
            "mqtt://a:0",
            "mqtt://a:x",
            "mqtt://a/b",
            "mqtt://user:pw@a",
            "mqtt://a:65536",
        ] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
