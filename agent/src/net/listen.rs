//! How a listener is reached, and by whom: its address, its TLS, the tokens that open it.
//!
//! What listens off loopback asks who is there (tokens, or certificates of clients), and a token crosses a network inside TLS
//! only; `insecure = true` is how somebody says that the network itself is trusted.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::config::ServerTlsConfig;
use crate::clock::{Monotonic, SharedClock};
use crate::limits::{TOKENS_FRESH_MS, TOKENS_MAX};
use crate::secret::Secret;
use crate::settings::{Complaint, Field, Table};

/// The keys that all listeners have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenConfig {
    /// `listen`: address and port; required. Port 0 takes a free one, which the log names.
    pub address: SocketAddr,
    /// `tls`: how it shows itself, and whose certificates it asks for; default none.
    pub tls: Option<ServerTlsConfig>,
    /// `tokens`: secrets of which a client must send one; default none. Read again when they change.
    pub tokens: Vec<Secret>,
}

impl ListenConfig {
    /// Reads `listen`, `tls`, `tokens` and `insecure`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<Self> {
        let address = read_address(table);
        let tls = ServerTlsConfig::read(table);
        let tokens = table.secrets("tokens", "Tokens of which a client must send one.", TOKENS_MAX);
        let tokens = tokens.or(Vec::new());
        let insecure = table
            .boolean("insecure", "Whether the network itself is trusted, off loopback.")
            .or(false);
        let address = address?;
        let asks = !tokens.is_empty() || tls.as_ref().is_some_and(|tls| tls.ca.is_some());
        let reading = table.reading();
        // What was complained about is there, and is no reason for another complaint.
        let has = |key: &str| reading.place(&table.path(key)).is_some();
        if !insecure && !address.ip().is_loopback() {
            let path = table.path("listen");
            let place = reading.place(&path).map(|place| place.value);
            let who = format!("`listen` is reached from other hosts at {address}");
            if !asks && !has("tokens") && !has("tls") {
                let complaint =
                    Complaint::new(format!("{who}, and nobody has to say who they are"));
                reading.error(path, place, complaint.hint(HINT_ASK));
            } else if !asks && !has("tokens") {
                let complaint = Complaint::new(format!("{who}, and takes what anybody sends"));
                reading.error(path, place, complaint.hint(HINT_ASK));
            } else if !tokens.is_empty() && !has("tls") {
                let complaint =
                    Complaint::new(format!("{who}, and tokens would cross in the open"));
                reading.error(path, place, complaint.hint(HINT_TLS));
            }
        }
        Some(Self { address, tls, tokens })
    }
}

/// Reads `listen`, which must be there.
#[must_use]
pub fn read_address(table: &Table<'_>) -> Option<SocketAddr> {
    address(table).required()
}

/// `listen`.
pub fn address<'t, 'r>(table: &'t Table<'r>) -> Field<'t, 'r, SocketAddr> {
    table.parsed("listen", "Address and port to listen on.", "an address", |text| {
        text.parse::<SocketAddr>().map_err(|_| {
            Complaint::new(format!("\"{text}\" is no address with a port"))
                .hint("write \"127.0.0.1:8080\", or \"[::]:8080\" for all addresses")
        })
    })
}

const HINT_ASK: &str = "add tokens = [{ file = \"PATH\" }] with tls = { certificate = \"FILE\", key = \"FILE\" }, or ask \
                        for certificates with tls.ca; insecure = true if the network is trusted";
const HINT_TLS: &str = "add tls = { certificate = \"FILE\", key = \"FILE\" }, or insecure = true if the network is trusted";

/// The tokens of a listener, read again from time to time.
#[derive(Debug)]
pub struct Tokens {
    secrets: Vec<Secret>,
    clock: SharedClock,
    state: Mutex<Read>,
}

/// Tokens as they were read last. What is kept are digests: a token is compared in time that says nothing of it.
#[derive(Debug, Default)]
struct Read {
    at: Option<Monotonic>,
    digests: Arc<HashSet<[u8; 32]>>,
    unreadable: bool,
}

impl Tokens {
    /// Reads none yet.
    #[must_use]
    pub fn new(secrets: Vec<Secret>, clock: SharedClock) -> Self {
        Self { secrets, clock, state: Mutex::default() }
    }

    /// Whether a client must send one.
    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Whether this is one of them. Blocks for as long as small files take, once a second at most.
    #[must_use]
    pub fn accept(&self, token: &str) -> bool {
        !token.is_empty() && self.current().contains(&digest(token))
    }

    fn current(&self) -> Arc<HashSet<[u8; 32]>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        let fresh = Duration::from_millis(TOKENS_FRESH_MS);
        if state.at.is_some_and(|at| now.since(at) < fresh) {
            return Arc::clone(&state.digests);
        }
        let mut digests = HashSet::new();
        let mut unreadable = false;
        for secret in &self.secrets {
            match secret.read() {
                Ok(token) if !token.is_empty() => {
                    digests.insert(digest(&token));
                }
                Ok(_) => unreadable = true,
                Err(error) => {
                    unreadable = true;
                    if !state.unreadable {
                        let place = secret.place();
                        tracing::warn!(place, %error, "Token cannot be read, nobody is let in with it");
                    }
                }
            }
        }
        *state = Read { at: Some(now), digests: Arc::new(digests), unreadable };
        Arc::clone(&state.digests)
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    #[test]
    fn a_replaced_token_counts_within_a_second_and_the_old_one_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "first\n").unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let tokens =
            Tokens::new(vec![Secret::File(file.clone())], Arc::<ManualClock>::clone(&clock));
        assert!(tokens.accept("first") && !tokens.accept("first\n") && !tokens.accept(""));
        std::fs::write(&file, "second").unwrap();
        clock.advance(Duration::from_millis(TOKENS_FRESH_MS));
        assert!(tokens.accept("second") && !tokens.accept("first"));
        std::fs::write(&file, "").unwrap();
        clock.advance(Duration::from_millis(TOKENS_FRESH_MS));
        assert!(!tokens.accept("second") && !tokens.accept(""));
        std::fs::remove_file(&file).unwrap();
        clock.advance(Duration::from_millis(TOKENS_FRESH_MS));
        assert!(!tokens.accept("second"));
    }
}
