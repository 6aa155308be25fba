//! The `[net]` table and the `tls` tables: how clients get out, whom they trust, and what they show.

use std::path::{Path, PathBuf};

use super::http::Endpoint;
use crate::settings::{Complaint, Table};

/// Settings of all clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetConfig {
    /// `proxy`: URL of the HTTP proxy that HTTP clients go through, `http://` or `https://`; default none. Loopback is
    /// reached without it. The environment's proxies are not used.
    pub proxy: Option<Endpoint>,
    /// `ca`: a PEM file of authorities that are trusted beside those of the host; default none. Read again when it changes.
    pub ca: Option<PathBuf>,
}

/// A `tls` table of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsConfig {
    /// `ca`: a PEM file of the only authorities that are trusted; default: those of the host and of `net.ca`.
    pub ca: Option<PathBuf>,
    /// `certificate` and `key`: PEM files that the client shows itself with; both or neither, default neither.
    pub identity: Option<IdentityFiles>,
}

/// A `tls` table of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTlsConfig {
    /// `certificate` and `key`: PEM files that it shows itself with; both. Read again when they change.
    pub identity: IdentityFiles,
    /// `ca`: a PEM file of authorities; clients must show a certificate of theirs; default: none is asked for.
    pub ca: Option<PathBuf>,
}

/// The two files of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The certificate, then those that lead from it to the authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl NetConfig {
    /// Reads `[net]`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Self {
        let proxy = table
            .parsed("proxy", "The HTTP proxy that HTTP clients go through.", "a URL", check_proxy)
            .optional();
        let ca = pem_file(table, "ca", "PEM file of authorities to trust beside the host's.");
        Self { proxy, ca }
    }
}

fn check_proxy(text: &str) -> Result<Endpoint, Complaint> {
    let proxy = Endpoint::parse(text, "proxy")?;
    if proxy.url().path() != "/" || proxy.url().query().is_some() {
        let message = "a proxy is given by scheme, host and port alone";
        return Err(Complaint::new(message).hint("write \"http://HOST:PORT\""));
    }
    Ok(proxy)
}

impl TlsConfig {
    /// Reads the table `tls` in `table`; `None` when the file does not have it.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<Self> {
        let tls = table.optional_table("tls", "Whom to trust, and what to show.")?;
        let ca = pem_file(&tls, "ca", "PEM file of the only authorities that are trusted.");
        let certificate = pem_file(
            &tls,
            "certificate",
            "PEM file of the certificate to show, and those above it.",
        );
        let key = pem_file(&tls, "key", "PEM file of its private key.");
        let reading = table.reading();
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some(IdentityFiles { certificate, key }),
            (None, None) => None,
            (given, _) => {
                let (has, lacks) =
                    if given.is_some() { ("certificate", "key") } else { ("key", "certificate") };
                // One that was complained about is there.
                if reading.place(&tls.path(lacks)).is_none() {
                    let path = tls.path(has);
                    let place = reading.place(&path).map(|place| place.value);
                    let message = format!("`{has}` is of no use without `{lacks}`");
                    let hint = format!("add {lacks} = \"FILE\"");
                    reading.error(path, place, Complaint::new(message).hint(hint));
                }
                None
            }
        };
        Some(Self { ca, identity })
    }
}

impl ServerTlsConfig {
    /// Reads the table `tls` in `table`; `None` when the file does not have it, or when something is missing in it.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<Self> {
        let doc = "How it shows itself, and whose certificates it asks for.";
        let tls = table.optional_table("tls", doc)?;
        let ca =
            pem_file(&tls, "ca", "PEM file of authorities of which clients show a certificate.");
        let doc = "PEM file of the certificate to show, and those above it.";
        let certificate = tls.file_path("certificate", doc).required();
        let key = tls.file_path("key", "PEM file of its private key.").required();
        let (certificate, key) = (certificate?, key?);
        for (name, path) in [("certificate", &certificate), ("key", &key)] {
            warn_where_missing(&tls, name, path);
        }
        Some(Self { identity: IdentityFiles { certificate, key }, ca })
    }
}

/// The path of a file that is read when it is needed, so that it may come later.
fn pem_file(table: &Table<'_>, key: &'static str, doc: &'static str) -> Option<PathBuf> {
    let path = table.file_path(key, doc).optional()?;
    warn_where_missing(table, key, &path);
    Some(path)
}

fn warn_where_missing(table: &Table<'_>, key: &str, path: &Path) {
    if !path.is_file() {
        let message = format!("the file {} is not there", path.display());
        let complaint =
            Complaint::new(message).hint("it is read when it is needed, so it may come later");
        let key = table.path(key);
        let place = table.reading().place(&key).map(|place| place.value);
        table.reading().warning(key, place, complaint);
    }
}
