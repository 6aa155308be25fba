//! One connection to a NATS server or cluster, which is never given up.
//!
//! The client reconnects for ever, with jitter, and reads the credentials again before every try, so that a rotated file
//! counts. What it sees is kept in [`LinkState`]; nothing is logged here beyond changes of state. Secrets do not stand
//! in addresses; yet one that cannot be parsed is not shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Auth, AuthError, Client, ClientError, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;

use super::tls::ClientTls;
use crate::backoff::{Backoff, Jitter};
use crate::error_chain::Chain;
use crate::limits::{NATS_COMMANDS_MAX, NATS_SUBSCRIPTION_MESSAGES_MAX};
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
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
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
    /// Times that no server could be connected to.
    pub failures: u64,
    /// Messages, at least, that came faster than they were taken and were dropped by the client.
    pub overruns: u64,
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
        tls: Option<&ClientTls>,
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
        let backoff = Backoff::new(RECONNECT_BASE, RECONNECT_MAX, Jitter::Full)
            .expect("the cap lies over the base");
        let notes = Arc::new(Notes {
            state: sender,
            has_credentials: credentials.is_some(),
            noted: AtomicBool::new(false),
        });
        let options = match credentials {
            Some(secret) => {
                let notes = Arc::clone(&notes);
                ConnectOptions::with_auth_callback(move |nonce| {
                    let (secret, notes) = (secret.clone(), Arc::clone(&notes));
                    async move {
                        let answer =
                            tokio::task::spawn_blocking(move || authenticate(&secret, &nonce));
                        let reason = match answer.await {
                            Ok(Ok(auth)) => return Ok(auth),
                            Ok(Err(error)) => Chain(&error).to_string(),
                            Err(error) => error.to_string(),
                        };
                        notes.credentials_failed(reason.clone());
                        Err(AuthError::new(reason))
                    }
                })
            }
            None => ConnectOptions::new(),
        };
        let options = match tls {
            Some(tls) => {
                let config = tls.config(&[]).map_err(LinkError::Tls)?;
                options.tls_client_config(config).require_tls(tls.is_required())
            }
            None => options,
        };
        let client = options
            .name(name)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .client_capacity(NATS_COMMANDS_MAX)
            .subscription_capacity(NATS_SUBSCRIPTION_MESSAGES_MAX)
            .reconnect_delay_callback(move |attempts| {
                backoff.wait(u32::try_from(attempts).unwrap_or(u32::MAX))
            })
            .event_callback(move |event| {
                notes.event(&event);
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

    /// Waits for a session, until a try to make one has failed, for at most this long; returns the state then.
    ///
    /// # Cancel safety
    /// Can be dropped.
    pub async fn wait_connected(&self, at_most: Duration) -> LinkState {
        let mut state = self.state.clone();
        let failures = state.borrow().failures;
        let settled = state.wait_for(|state| state.connected || state.failures > failures);
        if let Ok(Ok(state)) = tokio::time::timeout(at_most, settled).await {
            return state.clone();
        }
        self.state.borrow().clone()
    }
}

/// Writes down what happens to a connection.
struct Notes {
    state: watch::Sender<LinkState>,
    has_credentials: bool,
    /// The reason of the failure that the client is about to report is noted already, better than the client can.
    noted: AtomicBool,
}

impl Notes {
    /// The client makes "failed signing nonce" of this and knows no more.
    fn credentials_failed(&self, reason: String) {
        self.noted.store(true, Ordering::SeqCst);
        self.state.send_modify(|state| state.last_error = Some(reason));
    }

    fn event(&self, event: &Event) {
        match event {
            Event::Connected => tracing::info!("Connected to NATS"),
            Event::Disconnected => tracing::warn!("Disconnected from NATS"),
            _ => {}
        }
        self.state.send_if_modified(|state| {
            let before = state.clone();
            match event {
                Event::Connected => {
                    self.noted.store(false, Ordering::SeqCst);
                    state.connected = true;
                    state.sessions += 1;
                    state.last_error = None;
                }
                Event::Disconnected | Event::Closed => state.connected = false,
                Event::ServerError(error) => {
                    state.refusals += 1;
                    state.last_error = Some(error.to_string());
                }
                Event::ClientError(error) => {
                    state.failures += u64::from(!state.connected);
                    if !self.noted.swap(false, Ordering::SeqCst) {
                        state.last_error = Some(self.explain(error));
                    }
                }
                Event::SlowConsumer(_) => state.overruns += 1,
                Event::LameDuckMode | Event::Draining => {}
            }
            *state != before
        });
    }

    /// What the client says, and what to do about it where that is known.
    fn explain(&self, error: &ClientError) -> String {
        // The client tells kinds of failure by their text only.
        let text = match error {
            ClientError::Other(text) => text.clone(),
            error => error.to_string(),
        };
        match text.as_str() {
            "authorization violation" if self.has_credentials => {
                "authorization violation: the server refuses the credentials; renew the file that `credentials` names".to_owned()
            }
            "authorization violation" => {
                "authorization violation: the server asks for credentials; set `credentials`".to_owned()
            }
            "IO error" => "no server can be reached".to_owned(),
            "TLS error" => "TLS cannot be set up with the server".to_owned(),
            "DNS error" => "no server's name can be resolved".to_owned(),
            "timed out" => "no server answers".to_owned(),
            _ => text,
        }
    }
}

/// Why the server's challenge cannot be answered. Holds no secret.
#[derive(Debug, thiserror::Error)]
enum CredentialsError {
    #[error("the credentials in {place} cannot be read")]
    Read { place: String, source: std::io::Error },
    #[error("{place} holds no user JWT and seed, as a .creds file does")]
    Content { place: String },
    #[error("the seed in {place} is none")]
    Seed { place: String, source: nkeys::error::Error },
}

/// Answers the server's challenge with the credentials as they are now.
fn authenticate(secret: &Secret, nonce: &[u8]) -> Result<Auth, CredentialsError> {
    let place = || match secret {
        Secret::File(path) => path.display().to_string(),
        Secret::Environment { name, .. } => format!("the variable {name}"),
    };
    let text = secret.read().map_err(|source| CredentialsError::Read { place: place(), source })?;
    let (jwt, seed) =
        parse_credentials(&text).ok_or_else(|| CredentialsError::Content { place: place() })?;
    let sign = || nkeys::KeyPair::from_seed(seed)?.sign(nonce);
    let signature = sign().map_err(|source| CredentialsError::Seed { place: place(), source })?;
    let mut auth = Auth::new();
    auth.jwt = Some(jwt.to_owned());
    auth.signature = Some(signature);
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
        let failure =
            |secret: &Secret| Chain(&authenticate(secret, b"nonce").err().unwrap()).to_string();
        let error = failure(&secret(&damaged));
        assert!(!error.contains("SUAX") && error.contains("the variable C"), "{error}");
        let error = failure(&Secret::File("/nowhere/cloud.creds".into()));
        let expected = "the credentials in /nowhere/cloud.creds cannot be read: No such file";
        assert!(error.starts_with(expected), "{error}");
    }

    #[tokio::test]
    async fn starting_needs_no_server_and_a_bad_address_is_told_by_number() {
        let servers = ["nats://127.0.0.1:1".to_owned()];
        let link = NatsLink::start(&servers, None, None, "test").await.unwrap();
        assert!(!link.wait_connected(Duration::from_millis(1)).await.connected);
        // A port that refuses is known at once, at the first try and later.
        for _ in 0..2 {
            let wait = link.wait_connected(Duration::from_secs(60));
            let state = tokio::time::timeout(Duration::from_secs(3), wait).await.unwrap();
            assert_eq!(state.last_error.as_deref(), Some("no server can be reached"));
        }
        let servers = ["nats://127.0.0.1:1".to_owned(), "nats://user:pw@:x".to_owned()];
        let error = NatsLink::start(&servers, None, None, "test").await.unwrap_err();
        assert_eq!(error.to_string(), "server address 2 is none");
    }
}
