//! One HTTP client, and what can be seen of a request that got no answer.
//!
//! The client follows no redirect, repeats nothing by itself, knows no proxy but the configured one, and keeps few idle
//! connections for less time than servers and balancers usually do. It speaks HTTP/2 where TLS agrees on it, else HTTP/1.1.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, NoProxy, Proxy, Url, redirect, retry};
use rustls::CertificateError;

use super::config::NetConfig;
use super::reach::Reach;
use super::tls::ClientTls;
use crate::limits::{HTTP_CONNECTIONS_IDLE_MAX, HTTP_IDLE_MS_MAX, HTTP_PING_MS};
use crate::secret::Value;
use crate::settings::{Complaint, mask};

/// Destinations that a proxy has no way to.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";
/// What is offered to a server in TLS, the best first.
#[cfg(feature = "http2")]
const PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];
#[cfg(not(feature = "http2"))]
const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Headers that the client sets by itself.
pub const OWN_HEADERS: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A URL to connect to. It prints without its query, which may be secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Endpoint(Url);

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The client refuses the options.
    #[error("cannot set up the client")]
    Setup(#[source] reqwest::Error),
}

/// What became of a request that got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unanswered {
    /// It was never sent: refused, no such name, no route, no TLS, a proxy that is away, or too long in connecting. What a
    /// server says in TLS against our certificate counts here, although it comes after the handshake.
    NotConnected,
    /// Nothing was heard for too long.
    Silent,
    /// The connection broke.
    Broken,
}

/// Whether a header of the config can be sent with every request; `more` are those that the agent sets besides.
///
/// # Errors
/// What is wrong with its name or value, or that a secret stands in the file.
pub fn check_header(name: &str, value: &Value, more: &[&str]) -> Result<(), Complaint> {
    let Ok(known) = name.parse::<HeaderName>() else {
        return Err(Complaint::new(format!("\"{name}\" is no name of a header")));
    };
    if OWN_HEADERS.contains(&known.as_str()) || more.contains(&known.as_str()) {
        let message = format!("the header {known} is set by the agent itself");
        return Err(Complaint::new(message).hint("remove it"));
    }
    match value {
        Value::Plain(_) if matches!(known.as_str(), "authorization" | "cookie") => {
            Err(Complaint::new(format!("`{name}` is a secret and must not stand in this file"))
                .hint("write { env = \"NAME\" } or { file = \"PATH\" }"))
        }
        Value::Plain(text) if HeaderValue::from_str(text).is_err() => {
            Err(Complaint::new(format!("the value of the header {known} cannot be sent"))
                .hint("it holds a control character"))
        }
        Value::Plain(_) | Value::Secret(_) => Ok(()),
    }
}

/// Makes a client, which connects to what is in reach only; without one to everything. Connects to nothing and reads no file.
///
/// # Errors
/// When the settings make no client, which a checked config rules out.
pub fn client(
    tls: &ClientTls,
    net: &NetConfig,
    connect_timeout: Duration,
    reach: Option<Reach>,
) -> Result<Client, ClientError> {
    let tls = tls.config(PROTOCOLS).map_err(ClientError::Tls)?;
    let ping = Duration::from_millis(HTTP_PING_MS);
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("waystation/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .no_proxy()
        .connect_timeout(connect_timeout)
        .pool_max_idle_per_host(HTTP_CONNECTIONS_IDLE_MAX)
        .pool_idle_timeout(Duration::from_millis(HTTP_IDLE_MS_MAX))
        .tcp_keepalive(ping);
    #[cfg(feature = "http2")]
    {
        // Streams of a dead link would share its connection for ever.
        builder = builder.http2_keep_alive_interval(ping).http2_keep_alive_timeout(ping / 2);
    }
    if let Some(reach) = reach {
        builder = builder.dns_resolver(std::sync::Arc::new(reach));
    }
    if let Some(proxy) = &net.proxy {
        let proxy = Proxy::all(proxy.url().clone()).map_err(ClientError::Setup)?;
        builder = builder.proxy(proxy.no_proxy(NoProxy::from_string(LOOPBACK)));
    }
    builder.build().map_err(ClientError::Setup)
}

/// What the error of a request shows, and its cause in words that hold no URL.
#[must_use]
pub fn observe(error: &reqwest::Error) -> (Unanswered, String) {
    let seen = if error.is_connect() || links(error).any(|link| link.is::<rustls::Error>()) {
        Unanswered::NotConnected
    } else if error.is_timeout() {
        Unanswered::Silent
    } else {
        Unanswered::Broken
    };
    let is_not_trusted = links(error).any(|link| {
        matches!(
            link.downcast_ref(),
            Some(rustls::Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature
            ))
        )
    });
    // The first link is the client's own words with the URL; the last is what happened.
    let cause = links(error).skip(1).last().map_or("the request failed".to_owned(), text);
    let hint = if is_not_trusted { "; name its authority with `tls.ca` or [net] `ca`" } else { "" };
    (seen, format!("{cause}{hint}"))
}

fn text(error: &(dyn Error + 'static)) -> String {
    error.to_string()
}

/// The error and all its causes, also those that an I/O error wraps and does not name as its source.
fn links<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |link| {
        let error: &'e (dyn Error + 'static) = *link;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        match wrapped {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

impl Endpoint {
    /// Reads a URL; `key` names what it stands under in complaints.
    ///
    /// # Errors
    /// When it is no URL, not of HTTP, or holds what does not belong there.
    pub fn parse(text: &str, key: &str) -> Result<Self, Complaint> {
        let example = "write \"https://HOST/PATH\"";
        // The text is left out where it may hold a password in a place that nobody looks for it.
        let url = Url::parse(text)
            .map_err(|error| Complaint::new(format!("`{key}` is no URL: {error}")).hint(example))?;
        if !matches!(url.scheme(), "http" | "https") {
            let message = format!("`{key}` begins with http:// or https://, not {}:", url.scheme());
            return Err(Complaint::new(message).hint(example));
        }
        if !url.username().is_empty() || url.password().is_some() {
            let message = "secrets do not stand in URLs";
            let hint = "leave out user and password; `headers` may refer to a secret";
            return Err(Complaint::new(message).hint(hint));
        }
        if url.fragment().is_some() {
            let message = format!("`{key}` has a fragment, which is never sent");
            return Err(Complaint::new(message).hint("remove what follows #"));
        }
        Ok(Self(url))
    }

    /// The URL itself.
    #[must_use]
    pub fn url(&self) -> &Url {
        &self.0
    }

    /// Whether it is spoken to over TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether anybody on the way can read what goes there.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.is_tls() && !self.is_local()
    }

    /// Whether it is on this host.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default();
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match address {
            Ok(address) => address.is_loopback(),
            Err(_) => host == "localhost" || host.ends_with(".localhost"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask::urls(self.0.as_str()))
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_endpoints_are_checked_and_shown_without_their_query() {
        let told = |text| Endpoint::parse(text, "url").unwrap_err().message;
        assert_eq!(told("ftp://h/x"), "`url` begins with http:// or https://, not ftp:");
        assert_eq!(told("h/x"), "`url` is no URL: relative URL without a base");
        assert_eq!(told("https://u:p@h/"), "secrets do not stand in URLs");
        assert_eq!(told("https://h/#a"), "`url` has a fragment, which is never sent");
        let url = Endpoint::parse("https://h:8443/a?token=b", "url").unwrap();
        assert_eq!(format!("{url} {url:?}"), "https://h:8443/a?*** Endpoint(https://h:8443/a?***)");
    }

    #[test]
    fn what_is_on_this_host_is_known() {
        for (url, local) in [
            ("http://example.org/", false),
            ("http://192.0.2.1/", false),
            ("https://localhost/", true),
            ("http://collector.localhost:1/", true),
            ("http://127.1.2.3/", true),
            ("http://[::1]:80/", true),
        ] {
            assert_eq!(Endpoint::parse(url, "url").unwrap().is_local(), local, "{url}");
        }
    }
}
