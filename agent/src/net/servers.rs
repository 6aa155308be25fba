//! Where NATS servers are, and what a stream may be called: the keys that the source and the sink have in common.

use super::authority::host_and_port;
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
    host_and_port(url, authority).map(drop).or_else(wrong)
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
