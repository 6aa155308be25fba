//! Tokens by the client credentials of OAuth 2.0, shared by the lanes of a sink.
//!
//! A token is asked for before the first request, replaced before it ends, and once more when the endpoint refuses it
//! (401). One request is on its way at a time; the other lanes wait for its answer. Neither the secret nor a token is ever
//! shown; of a refusal the error code is.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::super::{Class, SinkError};
use super::config::OAuth2Config;
use super::{CLIENT_SECRET, secret_text};
use crate::clock::{Monotonic, SharedClock};
use crate::limits::{HTTP_ANSWER_BYTES_MAX, HTTP_TOKEN_BYTES_MAX, HTTP_TOKEN_MARGIN_MS_MAX};
use crate::net::http::observe;

/// A token, to be shown to the endpoint.
#[derive(Clone)]
pub(super) struct Token {
    /// The value of `Authorization`.
    pub(super) header: HeaderValue,
    /// The token alone, so that it can be kept out of errors.
    pub(super) secret: String,
    /// When it is to be replaced; `None` when the server does not say how long it lives.
    good_until: Option<Monotonic>,
}

/// Where tokens come from, and the one in use.
pub(super) struct Tokens {
    config: OAuth2Config,
    clock: SharedClock,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    token: Option<Arc<Token>>,
    /// The server takes the client's credentials in the body only.
    in_body: bool,
}

/// What a server answers (RFC 6749, sections 5.1 and 5.2).
#[derive(Deserialize, Default)]
struct TokenAnswer {
    access_token: Option<String>,
    token_type: Option<String>,
    /// Seconds; a number, which some servers write as a text.
    expires_in: Option<serde_json::Value>,
    error: Option<String>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Tokens {
    pub(super) fn new(config: OAuth2Config, clock: SharedClock, timeout: Duration) -> Self {
        Self { config, clock, timeout, state: Mutex::default() }
    }

    /// A token to use now; another one than `refused`, which the endpoint did not take.
    ///
    /// # Errors
    /// When none can be had: that holds back everything, as an endpoint does that is away.
    ///
    /// # Cancel safety
    /// Can be dropped; a token that was on its way is lost.
    pub(super) async fn get(
        &self,
        client: &Client,
        refused: Option<&Arc<Token>>,
    ) -> Result<Arc<Token>, SinkError> {
        let mut state = self.state.lock().await;
        let now = self.clock.monotonic();
        if let Some(token) = &state.token
            && token.good_until.is_none_or(|until| now < until)
            && refused.is_none_or(|refused| refused.secret != token.secret)
        {
            return Ok(Arc::clone(token));
        }
        state.token = None;
        let fetched = tokio::time::timeout(self.timeout, self.fetch(client, &mut state.in_body));
        let token = fetched.await.unwrap_or_else(|_| {
            let reason = format!("{} does not answer", self.name());
            Err(SinkError::new(Class::Unreachable, reason))
        })?;
        let token = Arc::new(token);
        state.token = Some(Arc::clone(&token));
        Ok(token)
    }

    /// Asks with the credentials in the header, which every server must take, or in the body, which some prefer.
    async fn fetch(&self, client: &Client, in_body: &mut bool) -> Result<Token, SinkError> {
        let secret = secret_text(&self.config.client_secret, CLIENT_SECRET).await?;
        let (status, answer) = self.ask(client, &secret, *in_body).await?;
        if status.is_success() {
            return self.token(answer);
        }
        let is_refused = matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED);
        if is_refused && !*in_body {
            let (second, answer) = self.ask(client, &secret, true).await?;
            if second.is_success() {
                *in_body = true;
                return self.token(answer);
            }
        }
        let code = answer.error.unwrap_or_default();
        let is_code = !code.is_empty()
            && code.len() <= 64
            && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !code.contains(&secret);
        let code = if is_code { format!(" ({code})") } else { String::new() };
        let reason = format!("{} answers {status}{code}; check `auth`", self.name());
        Err(SinkError::new(Class::Unreachable, reason))
    }

    async fn ask(
        &self,
        client: &Client,
        secret: &str,
        in_body: bool,
    ) -> Result<(StatusCode, TokenAnswer), SinkError> {
        let OAuth2Config { token_url, client_id, scopes, .. } = &self.config;
        let mut form = vec![("grant_type", "client_credentials".to_owned())];
        if !scopes.is_empty() {
            form.push(("scope", scopes.join(" ")));
        }
        let mut request = client
            .post(token_url.url().clone())
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(reqwest::header::ACCEPT, "application/json");
        if in_body {
            form.push(("client_id", client_id.clone()));
            form.push(("client_secret", secret.to_owned()));
        } else {
            let pair = format!("{}:{}", encoded(client_id), encoded(secret));
            let text = format!("Basic {}", STANDARD.encode(pair));
            let mut header = HeaderValue::from_str(&text).expect("base64 can stand in a header");
            header.set_sensitive(true);
            request = request.header(AUTHORIZATION, header);
        }
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        let sent = request.body(body).send().await;
        let mut response = sent.map_err(|error| {
            let reason = format!("{} cannot be asked: {}", self.name(), observe(&error).1);
            SinkError::new(Class::Unreachable, reason)
        })?;
        let status = response.status();
        let mut text = Vec::new();
        while let Ok(Some(piece)) = response.chunk().await {
            text.extend_from_slice(&piece);
            if text.len() > HTTP_ANSWER_BYTES_MAX {
                break;
            }
        }
        Ok((status, serde_json::from_slice(&text).unwrap_or_default()))
    }

    fn token(&self, answer: TokenAnswer) -> Result<Token, SinkError> {
        let unusable = |what: &str| {
            let reason = format!("{} answers without {what}", self.name());
            SinkError::new(Class::Unreachable, reason)
        };
        let secret = answer
            .access_token
            .filter(|token| !token.is_empty() && token.len() <= HTTP_TOKEN_BYTES_MAX)
            .ok_or_else(|| unusable("a token"))?;
        if answer.token_type.is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            return Err(unusable("a bearer token, which is the only kind that can be used"));
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {secret}"))
            .map_err(|_| unusable("a token that can be sent"))?;
        header.set_sensitive(true);
        let life = answer.expires_in.as_ref().and_then(|life| match life {
            serde_json::Value::String(text) => text.parse().ok(),
            life => life.as_u64(),
        });
        let good_until = life.map(|seconds: u64| {
            let life = Duration::from_secs(seconds.min(u64::from(u32::MAX)));
            let margin = (life / 10).min(Duration::from_millis(HTTP_TOKEN_MARGIN_MS_MAX));
            let good = u64::try_from((life - margin).as_nanos()).unwrap_or(u64::MAX);
            Monotonic(self.clock.monotonic().0.saturating_add(good))
        });
        Ok(Token { header, secret, good_until })
    }

    fn name(&self) -> String {
        format!("the token endpoint {}", self.config.token_url)
    }
}

/// As forms and RFC 6749 (section 2.3.1) have it.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
