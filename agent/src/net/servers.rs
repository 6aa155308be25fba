//! Where NATS servers are, and what a stream may be called: the keys that the source and the sink have in common.

use crate::settings::{Complaint, Table};

/// Reads `servers`.
#[must_use]
pub fn read_servers(table: &Table<'_>) -> Option<Vec<String>> {
    table
        .list_of("servers", "URLs of the servers.", "a list of URLs", |text| {
            check_server(text).map(|()| text.to_owned())
        })
        .at_least_one()
        .required()
}

/// A URL of scheme, host and perhaps port.
fn check_server(url: &str) -> Result<(), Complaint> {
    let wrong = |message: String| {
        Err(Complaint::new(message).hint("write \"nats://HOST:PORT\" or \"tls://HOST:PORT\""))
    };
    let Some((scheme, authority)) = url.split_once("://") else {
        return wrong(format!("\"{url}\" is no URL"));
    };
    if !matches!(scheme, "nats" | "tls") {
        return wrong(format!("a server's URL begins with nats:// or tls://, not {scheme}://"));
    }
    if authority.contains('@') {
        let message = "secrets do not stand in URLs";
        return Err(Complaint::new(message).hint("use credentials = { file = \"PATH\" }"));
    }
    let authority = authority.trim_end_matches('/');
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or(rest))),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let of_host = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '%');
    if host.is_empty() || !host.chars().all(of_host) {
        return wrong(format!("\"{url}\" names no host"));
    }
    match port.map(str::parse::<u16>) {
        None | Some(Ok(1..)) => Ok(()),
        Some(_) => wrong(format!("\"{url}\" has no valid port")),
    }
}

/// Whether it may be the name of a `what`, a stream or a consumer.
///
/// # Errors
/// What it must not hold.
pub fn check_name(what: &str, name: &str) -> Result<(), Complaint> {
    let refused = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    if name.is_empty() || name.contains(refused) {
        let message = format!("\"{name}\" is no name of a {what}");
        return Err(
            Complaint::new(message).hint("it has no space, \".\", \"*\", \">\", \"/\" or \"\\\"")
        );
    }
    Ok(())
}
