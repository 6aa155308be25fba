//! A `[sources.NAME]` table with `type = "tcp"`, `"udp"`, `"unix"` or `"syslog"`.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::limits::{PEERS_MAX, SOCKET_PATH_BYTES_MAX};
use crate::net::config::ServerTlsConfig;
use crate::net::listen;
use crate::net::reach::parse_network;
use crate::settings::{Complaint, Field, Table};
use crate::sources::config::{LineLimits, SourceKind, read_subject};

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Connections, of which each is a stream of frames.
    Tcp,
    /// Datagrams, of which each is a record.
    Udp,
    /// The same as TCP over a socket in the file system.
    Stream,
    /// The same as UDP over a socket in the file system.
    Datagram,
}

impl Protocol {
    /// Its word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Stream => "stream",
            Self::Datagram => "datagram",
        }
    }
}

/// How frames are told from one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Framing {
    /// A newline ends each.
    #[default]
    Lines,
    /// `LENGTH SP CONTENT`, the length in decimal digits.
    OctetCounted,
    /// Four bytes of length, the most significant first.
    LengthPrefixed,
    /// Counted or ended by a newline, for each frame as it begins.
    Detected,
}

/// The permissions of a file, shown as `chmod` takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl fmt::Display for FileMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// A socket in the file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketPath {
    /// `socket`: where it is made, at most 107 bytes.
    pub path: PathBuf,
    /// `mode`: who may send, in octal digits; default `"0600"`, the agent's own user.
    pub mode: FileMode,
}

/// Where a source listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `listen`: a port for connections. Port 0 takes a free one, which the log names.
    Tcp(SocketAddr),
    /// `listen`: a port for datagrams.
    Udp(SocketAddr),
    /// `socket`: connections.
    Stream(SocketPath),
    /// `socket`: datagrams.
    Datagram(SocketPath),
}

impl Endpoint {
    /// What carries the bytes there.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        match self {
            Self::Tcp(_) => Protocol::Tcp,
            Self::Udp(_) => Protocol::Udp,
            Self::Stream(_) => Protocol::Stream,
            Self::Datagram(_) => Protocol::Datagram,
        }
    }

    /// Whether both cannot be at once. The ports of TCP and UDP are apart; port 0 is another one each time.
    #[must_use]
    pub fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(two)) | (Self::Udp(one), Self::Udp(two)) => {
                one == two && one.port() != 0
            }
            (Self::Stream(one) | Self::Datagram(one), Self::Stream(two) | Self::Datagram(two)) => {
                one.path == two.path
            }
            _ => false,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Udp(address) => write!(f, "{address}"),
            Self::Stream(socket) | Self::Datagram(socket) => write!(f, "{}", socket.path.display()),
        }
    }
}

/// Settings of a source that takes what is sent to a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketSourceConfig {
    /// `listen`, or `socket` and `mode`; with `protocol` for syslog (`"udp"` or, with `socket`, `"datagram"` by default) and unix
    /// (`"stream"` by default).
    pub endpoint: Endpoint,
    /// Whether records are syslog messages, whose heads are read.
    pub is_syslog: bool,
    /// `framing` (connections): `"lines"` (default), `"octet_counted"` or `"length_prefixed"`; syslog tells by each frame.
    pub framing: Framing,
    /// `tls` (over TCP): how it shows itself, and whose certificates it asks for; default none.
    pub tls: Option<ServerTlsConfig>,
    /// `peers` (over TCP and UDP): networks that may send, up to 256; default everybody, which off loopback needs `tls.ca` or
    /// `insecure = true`.
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
        let address = listen::read_address(table);
        let framing = framing(table).or(Framing::default());
        let tls = ServerTlsConfig::read(table);
        let peers = read_peers(table, address.map(Endpoint::Tcp).as_ref(), tls.as_ref());
        let config = Self::read(table, address.map(Endpoint::Tcp), framing, tls, peers)?;
        Some(SourceKind::Tcp(Box::new(config)))
    }

    /// Reads what stands beside `type = "udp"`.
    #[must_use]
    pub fn read_udp(table: &Table<'_>) -> Option<SourceKind> {
        let address = listen::read_address(table);
        let peers = read_peers(table, address.map(Endpoint::Udp).as_ref(), None);
        let endpoint = address.map(Endpoint::Udp);
        let config = Self::read(table, endpoint, Framing::default(), None, peers)?;
        Some(SourceKind::Udp(Box::new(config)))
    }

    /// Reads what stands beside `type = "unix"`.
    #[must_use]
    pub fn read_unix(table: &Table<'_>) -> Option<SourceKind> {
        let path = socket(table).required();
        let mode = read_mode(table);
        let words = [("stream", Protocol::Stream), ("datagram", Protocol::Datagram)];
        let protocol = table
            .choice("protocol", "Whether it takes connections or datagrams.", &words)
            .or(Protocol::Stream);
        let framing = framing(table).or(Framing::default());
        if protocol == Protocol::Datagram {
            useless(table, &["framing"], "with datagrams, of which each is a record", REMOVE);
        }
        let endpoint = path.map(|path| local(SocketPath { path, mode }, protocol));
        let config = Self::read(table, endpoint, framing, None, Vec::new())?;
        Some(SourceKind::Unix(Box::new(config)))
    }

    /// Reads what stands beside `type = "syslog"`.
    #[must_use]
    pub fn read_syslog(table: &Table<'_>) -> Option<SourceKind> {
        table.later(&["framing"]);
        let endpoint = read_either(table);
        let tls = ServerTlsConfig::read(table);
        let peers = read_peers(table, endpoint.as_ref(), tls.as_ref());
        match endpoint.as_ref().map(Endpoint::protocol) {
            Some(Protocol::Udp) => {
                useless(table, &["tls"], "over udp", "add protocol = \"tcp\"");
            }
            Some(Protocol::Stream | Protocol::Datagram) => {
                let keys = ["tls", "peers", "insecure"];
                useless(table, &keys, "with `socket`, whose `mode` says who may send", REMOVE);
            }
            Some(Protocol::Tcp) | None => {}
        }
        let config = Self::read(table, endpoint, Framing::Detected, tls, peers)?;
        Some(SourceKind::Syslog(Box::new(Self { is_syslog: true, ..config })))
    }

    /// Reads what all have.
    fn read(
        table: &Table<'_>,
        endpoint: Option<Endpoint>,
        framing: Framing,
        tls: Option<ServerTlsConfig>,
        peers: Vec<IpNet>,
    ) -> Option<Self> {
        let subject = read_subject(table, &["source"], "{source}");
        let limits = LineLimits::read(table);
        let endpoint = endpoint?;
        Some(Self { endpoint, is_syslog: false, framing, tls, peers, subject, limits })
    }
}

const REMOVE: &str = "remove it";

fn local(socket: SocketPath, protocol: Protocol) -> Endpoint {
    match protocol {
        Protocol::Datagram => Endpoint::Datagram(socket),
        _ => Endpoint::Stream(socket),
    }
}

fn framing<'t, 'r>(table: &'t Table<'r>) -> Field<'t, 'r, Framing> {
    let words = [
        ("lines", Framing::Lines),
        ("octet_counted", Framing::OctetCounted),
        ("length_prefixed", Framing::LengthPrefixed),
    ];
    table.choice("framing", "How records are told from one another.", &words)
}

fn socket<'t, 'r>(table: &'t Table<'r>) -> Field<'t, 'r, PathBuf> {
    table.file_path("socket", "Path of the socket in the file system.").check(|path| {
        let bytes = path.as_os_str().as_bytes().len();
        if bytes <= SOCKET_PATH_BYTES_MAX {
            return Ok(());
        }
        let message = format!(
            "{} has {bytes} bytes, and the path of a socket at most {SOCKET_PATH_BYTES_MAX}",
            path.display()
        );
        Err(Complaint::new(message).hint("name a shorter one, such as \"/run/waystation/in.sock\""))
    })
}

fn read_mode(table: &Table<'_>) -> FileMode {
    let doc = "Permissions of the socket's file, in octal digits: who may write to it may send.";
    let parse = |text: &str| {
        let is_octal = (3..=4).contains(&text.len())
            && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        mode.map(FileMode).ok_or_else(|| {
            let complaint = Complaint::new(format!("\"{text}\" is no mode of a file"));
            complaint.hint("write \"0600\" for the agent's own user, \"0660\" for its group, too")
        })
    };
    table.parsed("mode", doc, "octal digits such as \"0660\"", parse).or(FileMode(0o600))
}

/// Reads `listen` or `socket`, and what carries messages there.
fn read_either(table: &Table<'_>) -> Option<Endpoint> {
    let address = listen::address(table).optional();
    let path = socket(table).optional();
    let mode = read_mode(table);
    let words = [Protocol::Udp, Protocol::Tcp, Protocol::Datagram, Protocol::Stream]
        .map(|protocol| (protocol.word(), protocol));
    let doc = "What carries the messages; default: \"udp\", with `socket` \"datagram\".";
    let protocol = table.choice("protocol", doc, &words).optional();
    let reading = table.reading();
    if reading.is_describing() {
        return None;
    }
    let place = |key: &str| reading.place(&table.path(key)).map(|place| place.key);
    let (is_of_network, expected) = match (place("listen"), place("socket")) {
        (Some(_), Some(at)) => {
            let complaint = Complaint::new("`listen` and `socket` exclude each other");
            let complaint = complaint.hint("keep one; another source can have the other");
            reading.error(table.path("socket"), Some(at), complaint);
            return None;
        }
        (None, None) => {
            let complaint = Complaint::new("`listen` is missing");
            let hint = "add listen = \"ADDRESS:PORT\", or socket = \"PATH\" in the file system";
            reading.missing(table.path("listen"), None, complaint.hint(hint));
            return None;
        }
        (Some(_), None) => {
            useless(table, &["mode"], "without `socket`", REMOVE);
            (true, "\"udp\" or \"tcp\"")
        }
        (None, Some(_)) => (false, "\"datagram\" or \"stream\""),
    };
    let default = if is_of_network { Protocol::Udp } else { Protocol::Datagram };
    let protocol = protocol.unwrap_or(default);
    if matches!(protocol, Protocol::Udp | Protocol::Tcp) != is_of_network {
        let with = if is_of_network { "listen" } else { "socket" };
        let complaint =
            Complaint::new(format!("protocol \"{}\" is not for `{with}`", protocol.word()));
        let path = table.path("protocol");
        let at = reading.place(&path).map(|place| place.value);
        reading.error(path, at, complaint.hint(format!("write {expected}")));
        return None;
    }
    match (address, path) {
        (Some(address), _) if protocol == Protocol::Tcp => Some(Endpoint::Tcp(address)),
        (Some(address), _) => Some(Endpoint::Udp(address)),
        (None, Some(path)) => Some(local(SocketPath { path, mode }, protocol)),
        (None, None) => None,
    }
}

/// Complains about keys that change nothing.
fn useless(table: &Table<'_>, keys: &[&str], why: &str, hint: &str) {
    let reading = table.reading();
    if reading.is_describing() {
        return;
    }
    for key in keys {
        let path = table.path(key);
        if let Some(place) = reading.place(&path) {
            let complaint = Complaint::new(format!("`{key}` is of no use {why}"));
            reading.error(path, Some(place.key), complaint.hint(hint));
        }
    }
}

/// Reads `peers` and `insecure`, and complains about a listener off loopback that takes what anybody sends.
fn read_peers(
    table: &Table<'_>,
    endpoint: Option<&Endpoint>,
    tls: Option<&ServerTlsConfig>,
) -> Vec<IpNet> {
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
    let insecure =
        table.boolean("insecure", "Whether the network itself is trusted, off loopback.").or(false);
    if let Some(Endpoint::Tcp(address) | Endpoint::Udp(address)) = endpoint
        && !insecure
        && !address.ip().is_loopback()
    {
        let hint = if matches!(endpoint, Some(Endpoint::Tcp(_))) { HINT_TCP } else { HINT_UDP };
        check_reach(table, *address, hint, tls);
    }
    peers
}

fn check_reach(
    table: &Table<'_>,
    address: SocketAddr,
    hint: &'static str,
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
    reading.error(path, place, Complaint::new(message).hint(hint));
}

const HINT_TCP: &str = "ask for certificates with tls.ca, or name who may send in peers = [\"192.168.1.0/24\"]; \
                        insecure = true if the network is trusted";
const HINT_UDP: &str =
    "name who may send in peers = [\"192.168.1.0/24\"]; insecure = true if the network is trusted";
