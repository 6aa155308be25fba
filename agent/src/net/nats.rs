//! One connection to a NATS server or cluster, which is never given up.
//!
//! The client reconnects for ever, with jitter, and reads the credentials again before every try, so that a rotated file
//! counts. What it sees is kept in [`LinkState`]; nothing is logged here beyond changes of state. Secrets do not stand
//! in addresses; yet one that cannot be parsed is not shown.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use crate::backoff::{Backoff, Jitter};
use crate::limits::NATS_COMMANDS_MAX;
use crate::secret::Secret;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Two unanswered pings end a connection, so a dead link is noticed within a minute also when nothing is sent.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const RECONNECT_BASE: Duration = Duration::from_millis(100);
const RECONNECT_MAX: Duration = Duration::from_secs(15);

/// Why no connection can even be tried.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// An address that cannot be parsed. Its text is left out, because it may hold a password.
    #[error("server address {number} is none")]
    Address {
        /// Which of the addresses, from 1.
        number: usize,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The client refuses the options.
    #[error("cannot set up the connection")]
    Setup(#[source] async_nats::ConnectError),
}

/// What is known of the connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkState {
    /// Whether there is a session now.
    pub connected: bool,
    /// Sessions so far. Answers to what was sent in one never come in the next.
    pub sessions: u64,
    /// Errors that the server has sent inside a session, such as a violated permission.
    pub refusals: u64,
    /// What went wrong last, since the session began or the one before ended.
    pub last_error: Option<String>,
}

/// A connection shared by everybody who clones it.
#[derive(Debug, Clone)]
pub struct NatsLink {
    client: Client,
    state: watch::Receiver<LinkState>,
}

impl NatsLink {
    /// Starts connecting and returns at once, also when no server is there.
    ///
    /// # Errors
    /// When an address or the options make no sense. A server that is down is no error.
    pub async fn start(
        servers: &[String],
        credentials: Option<Secret>,
        name: &str,
    ) -> Result<Self, LinkError> {
        let mut addresses = Vec::with_capacity(servers.len());
        for (index, server) in servers.iter().enumerate() {
            addresses.push(
                server
                    .parse::<ServerAddr>()
                    .map_err(|source| LinkError::Address { number: index + 1, source })?,
            );
        }
        let (sender, state) = watch::channel(LinkState::default());
        let sender = Arc::new(sender);
        let backoff = Backoff::new(RECONNECT_BASE, RECONNECT_MAX, Jitter::Full)
            .expect("the cap lies over the base");
        let options = match credentials {
            Some(secret) => ConnectOptions::with_auth_callback(move |nonce| {
                let secret = secret.clone();
                async move {
                    let read = tokio::task::spawn_blocking(move || authenticate(&secret, &nonce));
                    read.await.map_err(AuthError::new)?
                }
            }),
            None => ConnectOptions::new(),
        };
        let client = options
            .name(name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(NATS_COMMANDS_MAX)
            .reconnect_delay_callback(move |attempts| {
                backoff.wait(u32::try_from(attempts).unwrap_or(u32::MAX))
            })
            .event_callback(move |event| {
                note(&sender, &event);
                async {}
            })
            .connect(addresses)
            .await
            .map_err(LinkError::Setup)?;
        Ok(Self { client, state })
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A view of the state that can be waited on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }

    /// Waits for a session, for at most this long, and returns the state then.
    ///
    /// # Cancel safety
    /// Can be dropped.
    pub async fn wait_connected(&self, at_most: Duration) -> LinkState {
        let mut state = self.state.clone();
        let connected = state.wait_for(|state| state.connected);
        if let Ok(Ok(state)) = tokio::time::timeout(at_most, connected).await {
            return state.clone();
        }
        self.state.borrow().clone()
    }
}

fn note(sender: &watch::Sender<LinkState>, event: &Event) {
    match event {
        Event::Connected => tracing::info!("Connected to NATS"),
        Event::Disconnected => tracing::warn!("Disconnected from NATS"),
        _ => {}
    }
    sender.send_if_modified(|state| {
        let before = state.clone();
        match event {
            Event::Connected => {
                state.connected = true;
                state.sessions += 1;
                state.last_error = None;
            }
            Event::Disconnected | Event::Closed => state.connected = false,
            Event::ServerError(error) => {
                state.refusals += 1;
                state.last_error = Some(error.to_string());
            }
            Event::ClientError(error) => state.last_error = Some(error.to_string()),
            Event::LameDuckMode | Event::Draining | Event::SlowConsumer(_) => {}
        }
        *state != before
    });
}

/// Answers the server's challenge with the credentials as they are now.
fn authenticate(secret: &Secret, nonce: &[u8]) -> Result<Auth, AuthError> {
    let text = secret.read().map_err(AuthError::new)?;
    let (jwt, seed) = parse_credentials(&text)
        .ok_or_else(|| AuthError::new("the credentials hold no user JWT and seed"))?;
    let key = nkeys::KeyPair::from_seed(seed).map_err(AuthError::new)?;
    let mut auth = Auth::new();
    auth.jwt = Some(jwt.to_owned());
    auth.signature = Some(key.sign(nonce).map_err(AuthError::new)?);
    Ok(auth)
}

/// The two blocks of a `.creds` file, each one line between dashed lines.
fn parse_credentials(text: &str) -> Option<(&str, &str)> {
    let mut lines = text.lines().map(str::trim);
    let mut block = || {
        lines.find(|line| line.starts_with("---") && line.contains("BEGIN"))?;
        lines.find(|line| !line.is_empty()).filter(|line| !line.starts_with('-'))
    };
    Some((block()?, block()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "-----BEGIN NATS USER JWT-----\r\neyJ0.abc-_\r\n------END NATS USER JWT------\r\n\
        \r\n*** IMPORTANT ***\r\n-----BEGIN USER NKEY SEED-----\r\n\
        SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\r\n------END USER NKEY SEED------\r\n";

    #[test]
    fn both_blocks_of_credentials_are_found() {
        let (jwt, seed) = parse_credentials(CREDENTIALS).unwrap();
        assert_eq!(jwt, "eyJ0.abc-_");
        assert!(seed.starts_with("SUACSS"));
        assert_eq!(parse_credentials("token"), None);
        assert_eq!(parse_credentials("-----BEGIN A-----\n-----END A-----\n"), None);
    }

    #[test]
    fn the_challenge_is_signed_and_errors_hold_no_secret() {
        let secret =
            |value: &str| Secret::Environment { name: "C".to_owned(), value: value.to_owned() };
        let auth = authenticate(&secret(CREDENTIALS), b"nonce").unwrap();
        assert_eq!(auth.jwt.as_deref(), Some("eyJ0.abc-_"));
        assert_eq!(auth.signature.map(|signature| signature.len()), Some(64));
        let damaged = CREDENTIALS.replace("SUACSS", "SUAXXX");
        let error = authenticate(&secret(&damaged), b"nonce").err().unwrap().to_string();
        assert!(!error.contains("SUAX"), "{error}");
    }

    #[tokio::test]
    async fn starting_needs_no_server_and_a_bad_address_is_told_by_number() {
        let servers = ["nats://127.0.0.1:1".to_owned()];
        let link = NatsLink::start(&servers, None, "test").await.unwrap();
        assert!(!link.wait_connected(Duration::from_millis(1)).await.connected);
        let servers = ["nats://127.0.0.1:1".to_owned(), "nats://user:pw@:x".to_owned()];
        let error = NatsLink::start(&servers, None, "test").await.unwrap_err();
        assert_eq!(error.to_string(), "server address 2 is none");
    }
}
