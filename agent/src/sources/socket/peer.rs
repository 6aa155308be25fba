//! Who sends to a socket, as its records and the log say it.

use std::fmt;
use std::net::IpAddr;

use crate::record::HeadersBuffer;

/// A process of this host, as the kernel vouches for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Process {
    /// `None` when it cannot be seen from here.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
}

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sender {
    /// From this address.
    Address(IpAddr),
    /// On this host.
    Process(Process),
    /// On this host, and the kernel does not say which process.
    Unknown,
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Process(Process { pid: Some(pid), uid }) => {
                write!(f, "process {pid} of user {uid}")
            }
            Self::Process(Process { pid: None, uid }) => write!(f, "a process of user {uid}"),
            Self::Unknown => f.write_str("an unknown process"),
        }
    }
}

/// A sender with its texts, which are made once for many records.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    sender: Sender,
    text: String,
    headers: Vec<(&'static str, String)>,
}

impl Peer {
    pub(super) fn new(sender: Sender) -> Self {
        let headers = match sender {
            Sender::Address(address) => vec![("waystation-peer", address.to_string())],
            Sender::Process(Process { pid, uid }) => {
                let pid = pid.map(|pid| ("waystation-peer-pid", pid.to_string()));
                pid.into_iter().chain([("waystation-peer-uid", uid.to_string())]).collect()
            }
            Sender::Unknown => Vec::new(),
        };
        Self { sender, text: sender.to_string(), headers }
    }

    /// Becomes this sender, unless it is that already.
    pub(super) fn become_sender(&mut self, sender: Sender) {
        if self.sender != sender {
            *self = Self::new(sender);
        }
    }

    pub(super) fn write(&self, headers: &mut HeadersBuffer) {
        for (name, value) in &self.headers {
            headers.push(name, value);
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
