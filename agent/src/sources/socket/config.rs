//! A `[sources.NAME]` table with `type = "tcp"`, `"udp"` or `"syslog"`.

use std::net::SocketAddr;

use ipnet::IpNet;

use super::frame::Framing;
use crate::limits::PEERS_MAX;
use crate::net::config::ServerTlsConfig;
use crate::net::listen::read_address;
use crate::net::reach::parse_network;
use crate::settings::{Complaint, Table};
use crate::sources::config::{LineLimits, SourceKind, read_subject};

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Connections, of which each is a stream of frames.
    Tcp,
    /// Datagrams, of which each is a record.
    Udp,
}

impl Transport {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Settings of a source that takes what is sent to a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSourceConfig {
    /// `listen`: address and port; required. Port 0 takes a free one, which the log names.
    pub address: SocketAddr,
    /// Which kind of port it is; for syslog `protocol`: `"udp"` (default) or `"tcp"`.
    pub transport: Transport,
    /// Whether records are syslog messages, whose heads are read.
    pub is_syslog: bool,
    /// `framing` (tcp): `"lines"` (default), `"octet_counted"` or `"length_prefixed"`; syslog tells by each frame.
    pub framing: Framing,
    /// `tls` (tcp, and syslog over tcp): how it shows itself, and whose certificates it asks for; default none.
    pub tls: Option<ServerTlsConfig>,
    /// `peers`: networks that may send, up to 256; default everybody, which off loopback needs `tls.ca` or `insecure = true`.
    pub peers: Vec<IpNet>,
    /// `subject`: a template with `{source}`; default `"{source}"`.
    pub subject: String,
    /// `record_bytes_max` and `on_oversize`.
    pub limits: LineLimits,
}

impl SocketSourceConfig {
    /// Reads what stands beside `type = "tcp"`.
    #[must_use]
    pub fn read_tcp(table: &Table<'_>) -> Option<SourceKind> {
        table.later(&["socket"]);
        let address = read_address(table);
        let words = [
            ("lines", Framing::Lines),
            ("octet_counted", Framing::OctetCounted),
            ("length_prefixed", Framing::LengthPrefixed),
        ];
        let framing = table
            .choice("framing", "How records are told from one another.", &words)
            .or(Framing::default());
        let tls = ServerTlsConfig::read(table);
        let config = Self::read(table, address, Transport::Tcp, framing, tls)?;
        Some(SourceKind::Tcp(Box::new(config)))
    }

    /// Reads what stands beside `type = "udp"`.
    #[must_use]
    pub fn read_udp(table: &Table<'_>) -> Option<SourceKind> {
        table.later(&["socket"]);
        let address = read_address(table);
        let config = Self::read(table, address, Transport::Udp, Framing::default(), None)?;
        Some(SourceKind::Udp(Box::new(config)))
    }

    /// Reads what stands beside `type = "syslog"`.
    #[must_use]
    pub fn read_syslog(table: &Table<'_>) -> Option<SourceKind> {
        table.later(&["socket", "framing"]);
        let words = [("udp", Transport::Udp), ("tcp", Transport::Tcp)];
        let transport =
            table.choice("protocol", "What carries the messages.", &words).or(Transport::Udp);
        let address = read_address(table);
        let tls = ServerTlsConfig::read(table);
        let reading = table.reading();
        let path = table.path("tls");
        let place = reading.place(&path);
        if transport == Transport::Udp && place.is_some() && !reading.is_describing() {
            let complaint = Complaint::new("`tls` is of no use over udp");
            let complaint = complaint.hint("add protocol = \"tcp\"");
            reading.error(path, place.map(|place| place.key), complaint);
        }
        let config = Self::read(table, address, transport, Framing::Detected, tls)?;
        Some(SourceKind::Syslog(Box::new(Self { is_syslog: true, ..config })))
    }

    /// Reads what all have.
    fn read(
        table: &Table<'_>,
        address: Option<SocketAddr>,
        transport: Transport,
        framing: Framing,
        tls: Option<ServerTlsConfig>,
    ) -> Option<Self> {
        let peers = table
            .list_of(
                "peers",
                "Networks that may send; default: everybody.",
                "a list of networks such as \"192.168.1.0/24\"",
                parse_network,
            )
            .at_least_one()
            .check(|list: &Vec<IpNet>| {
                if list.len() > PEERS_MAX {
                    let message = format!("`peers` holds more than {PEERS_MAX}");
                    return Err(Complaint::new(message));
                }
                Ok(())
            })
            .or(Vec::new());
        let insecure = table
            .boolean("insecure", "Whether the network itself is trusted, off loopback.")
            .or(false);
        let subject = read_subject(table, &["source"], "{source}");
        let limits = LineLimits::read(table);
        let address = address?;
        if !insecure && !address.ip().is_loopback() {
            check_reach(table, address, transport, tls.as_ref());
        }
        let is_syslog = false;
        Some(Self { address, transport, is_syslog, framing, tls, peers, subject, limits })
    }
}

/// Complains about a listener off loopback that takes what anybody sends.
fn check_reach(
    table: &Table<'_>,
    address: SocketAddr,
    transport: Transport,
    tls: Option<&ServerTlsConfig>,
) {
    let reading = table.reading();
    // What was complained about is there, and is no reason for another complaint.
    let has = |key: &str| reading.place(&table.path(key)).is_some();
    let asks = match tls {
        Some(tls) => tls.ca.is_some(),
        None => has("tls"),
    };
    if asks || has("peers") {
        return;
    }
    let path = table.path("listen");
    let place = reading.place(&path).map(|place| place.value);
    let message =
        format!("`listen` is reached from other hosts at {address}, and takes what anybody sends");
    let hint = match transport {
        Transport::Tcp => HINT_TCP,
        Transport::Udp => HINT_UDP,
    };
    reading.error(path, place, Complaint::new(message).hint(hint));
}

const HINT_TCP: &str = "ask for certificates with tls.ca, or name who may send in peers = [\"192.168.1.0/24\"]; \
                        insecure = true if the network is trusted";
const HINT_UDP: &str =
    "name who may send in peers = [\"192.168.1.0/24\"]; insecure = true if the network is trusted";
