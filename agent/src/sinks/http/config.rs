//! A `[sinks.NAME]` table with `type = "http"`.

use reqwest::header::HeaderName;

use crate::limits::{HTTP_CONFLICTS_MAX, HTTP_HEADERS_MAX};
use crate::net::config::TlsConfig;
use crate::net::http::{Endpoint, check_header};
use crate::secret::{Secret, Value};
use crate::settings::{Complaint, Table, mask};
use crate::sinks::config::{BatchConfig, SinkKind};

/// The request's method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// `POST`.
    #[default]
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
}

impl Method {
    /// The word in the config and in the request.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
        }
    }
}

/// How records stand in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BodyFormat {
    /// One a line.
    #[default]
    Ndjson,
    /// The elements of one JSON array.
    Json,
}

impl BodyFormat {
    /// The word in the config and in what is fixed for a batch.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ndjson => "ndjson",
            Self::Json => "json",
        }
    }
}

/// How bodies are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// `codec = "zstd"`; `level` 1 to 19, default 3.
    Zstd {
        /// Higher is smaller and slower.
        level: u8,
    },
    /// `codec = "gzip"`; `level` 1 to 9, default 6.
    Gzip {
        /// Higher is smaller and slower.
        level: u8,
    },
}

impl Compression {
    /// The word for `codec`, which is that of `Content-Encoding` too, and the level.
    #[must_use]
    pub fn parts(self) -> (&'static str, u8) {
        match self {
            Self::Zstd { level } => ("zstd", level),
            Self::Gzip { level } => ("gzip", level),
        }
    }
}

/// `auth.oauth2`: tokens by the client credentials of OAuth 2.0 (RFC 6749, section 4.4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuth2Config {
    /// `token_url`: where tokens come from.
    pub token_url: Endpoint,
    /// `client_id`.
    pub client_id: String,
    /// `client_secret`.
    pub client_secret: Secret,
    /// `scopes`: what the token is to allow; default none, which is up to the server.
    pub scopes: Vec<String>,
}

/// Settings of an HTTP sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSinkConfig {
    /// `url`: the endpoint, `http://` or `https://`, without user and password.
    pub url: Endpoint,
    /// `method`, default `"POST"`.
    pub method: Method,
    /// `headers` of every request: texts, or secrets, which are read anew for every request; default none. Names that the
    /// sink sets itself are refused.
    pub headers: Vec<(HeaderName, Value)>,
    /// `format`, default `"ndjson"`.
    pub format: BodyFormat,
    /// `envelope`: send each record as an object with `id`, `time`, `subject`, `headers` and `payload` or `payload_base64`
    /// instead of the payload alone; default false.
    pub envelope: bool,
    /// `compression`; without the table bodies are plain.
    pub compression: Option<Compression>,
    /// `conflict_status`: statuses by which the destination says that it holds other content under the same
    /// `Idempotency-Key`, 400 to 499; default none.
    pub conflict_status: Vec<u16>,
    /// `auth.oauth2`; default none.
    pub oauth2: Option<OAuth2Config>,
    /// `tls`; default: the authorities of the host and of `net.ca`, no client certificate.
    pub tls: Option<TlsConfig>,
}

/// What the sink sets, beside the client.
const OWN_HEADERS: &[&str] = &["content-encoding", "content-type", "idempotency-key"];

impl HttpSinkConfig {
    /// Reads what stands beside `type = "http"`.
    #[must_use]
    pub fn read(table: &Table<'_>) -> Option<(SinkKind, BatchConfig)> {
        let url = table
            .parsed("url", "The endpoint that batches are sent to.", "a URL", |text| {
                Endpoint::parse(text, "url")
            })
            .required();
        let methods = [Method::Post, Method::Put, Method::Patch].map(|m| (m.as_str(), m));
        let method =
            table.choice("method", "The request's method.", &methods).or(Method::default());
        let headers = table
            .values("headers", "Headers of every request.", |name, value| {
                check_header(name, value, OWN_HEADERS)
            })
            .check(|headers| check_names(headers))
            .or(Vec::new());
        let formats = [BodyFormat::Ndjson, BodyFormat::Json].map(|f| (f.as_str(), f));
        let format = table
            .choice("format", "How records stand in a body.", &formats)
            .or(BodyFormat::default());
        let envelope = table
            .boolean("envelope", "Send records with identity, time, subject and headers.")
            .or(false);
        let compression = table
            .optional_table("compression", "How bodies are compressed; without it they are plain.")
            .and_then(|table| Compression::read(&table));
        let conflict_status = table
            .numbers(
                "conflict_status",
                "Statuses that say: other content under the same Idempotency-Key.",
                400..=499,
                HTTP_CONFLICTS_MAX,
            )
            .or(Vec::new());
        let oauth2 = OAuth2Config::read(&table.table("auth"));
        let tls = TlsConfig::read(table);
        let batch = BatchConfig::read(&table.table("batch"), BatchConfig::STREAM);
        let headers = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name.parse().ok()?, value)))
            .collect();
        let config = Self {
            url: url?,
            method,
            headers,
            format,
            envelope,
            compression,
            conflict_status,
            oauth2,
            tls,
        };
        config.check(table);
        Some((SinkKind::Http(Box::new(config)), batch))
    }

    /// What contradicts itself, or is hardly meant.
    fn check(&self, table: &Table<'_>) {
        let reading = table.reading();
        let place = |path: &str| reading.place(path).map(|place| place.value);
        let authorizes = self.headers.iter().any(|(name, _)| name.as_str() == "authorization");
        if self.oauth2.is_some() && authorizes {
            let path = table.path("headers");
            let message = "`auth` sets the header authorization, too";
            let complaint = Complaint::new(message).hint("remove the one that is not meant");
            reading.error(path.as_str(), place(&path), complaint);
        }
        if self.tls.is_some() && !self.url.is_tls() {
            let path = table.path("tls");
            let message = "`tls` is of no use with a URL that begins with http://";
            let complaint =
                Complaint::new(message).hint("write https:// in `url`, or remove `tls`");
            reading.error(path.as_str(), place(&path), complaint);
        }
        let token_url = self.oauth2.as_ref().map(|oauth2| &oauth2.token_url);
        for (key, url) in [("url", Some(&self.url)), ("auth.oauth2.token_url", token_url)] {
            if url.is_some_and(Endpoint::is_open) {
                let path = table.path(key);
                let message =
                    "everybody on the way can read and change what goes to an http:// URL";
                let complaint = Complaint::new(message).hint("write https://");
                reading.warning(path.as_str(), place(&path), complaint);
            }
        }
        for (name, value) in &self.headers {
            if matches!(value, Value::Plain(_)) && mask::looks_secret(name.as_str()) {
                let path = table.path("headers");
                let message = format!("the header {name} looks like a secret");
                let complaint = Complaint::new(message)
                    .hint("if it is one, write { env = \"NAME\" } or { file = \"PATH\" }");
                reading.warning(path.as_str(), place(&path), complaint);
            }
        }
    }
}

impl Compression {
    fn read(table: &Table<'_>) -> Option<Self> {
        let words = [("zstd", true), ("gzip", false)];
        let codec = table.choice("codec", "The codec.", &words).required();
        let (level_max, default) = if codec == Some(false) { (9, 6) } else { (19, 3) };
        let level = table
            .integer::<u8>("level", "Higher is smaller and slower.")
            .within(1..=level_max)
            .or(default);
        Some(if codec? { Self::Zstd { level } } else { Self::Gzip { level } })
    }
}

impl OAuth2Config {
    /// Reads the table `auth`.
    fn read(auth: &Table<'_>) -> Option<Self> {
        let table = auth.optional_table("oauth2", "Tokens by client credentials (OAuth 2.0).")?;
        let token_url = table
            .parsed("token_url", "Where tokens come from.", "a URL", |text| {
                Endpoint::parse(text, "token_url")
            })
            .required();
        let client_id =
            table.text("client_id", "Who asks for them.").check(|text| check_id(text)).required();
        let client_secret = table.secret("client_secret", "What proves it.").required();
        let scopes = table
            .list_of("scopes", "What a token is to allow.", "a list of scopes", check_scope)
            .or(Vec::new());
        Some(Self {
            token_url: token_url?,
            client_id: client_id?,
            client_secret: client_secret?,
            scopes,
        })
    }
}

fn check_id(text: &str) -> Result<(), Complaint> {
    if text.is_empty() { Err(Complaint::new("`client_id` must not be empty")) } else { Ok(()) }
}

fn check_scope(text: &str) -> Result<String, Complaint> {
    let is_token = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '\\');
    if text.is_empty() || !text.chars().all(is_token) {
        return Err(Complaint::new(format!("\"{text}\" is no scope"))
            .hint("write each scope by itself, without spaces"));
    }
    Ok(text.to_owned())
}

/// Header names are the same in any case.
fn check_names(headers: &[(String, Value)]) -> Result<(), Complaint> {
    if headers.len() > HTTP_HEADERS_MAX {
        let message = format!("there are more than {HTTP_HEADERS_MAX} headers");
        return Err(Complaint::new(message));
    }
    for (index, (name, _)) in headers.iter().enumerate() {
        if headers.iter().take(index).any(|(other, _)| other.eq_ignore_ascii_case(name)) {
            return Err(Complaint::new(format!("the header {name} is given twice")));
        }
    }
    Ok(())
}
