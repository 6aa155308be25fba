//! Sinks: plugins that deliver batches to somewhere outside, by requests that the agent makes for them.
//!
//! ```
//! use waystation_plugin::sink::{self, Batch, Rejection, Sink, SinkError, http};
//! use waystation_plugin::Place;
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     url: String,
//! }
//!
//! struct Post(Config);
//!
//! impl Sink for Post {
//!     type Config = Config;
//!
//!     fn new(config: Config, _place: Place) -> Result<Self, String> {
//!         Ok(Self(config))
//!     }
//!
//!     fn probe(&mut self, _now: i64) -> Result<(), SinkError> {
//!         sink::is_there(&http::send(&http::request("HEAD", &self.0.url))?)
//!     }
//!
//!     fn deliver(&mut self, batch: Batch) -> Result<Vec<Rejection>, SinkError> {
//!         let mut request = http::request("POST", &self.0.url);
//!         // The same for every attempt: the destination recognises a repeat by it.
//!         http::header(&mut request, "idempotency-key", &batch.id);
//!         for record in &batch.records {
//!             request.body.extend_from_slice(&record.payload);
//!             request.body.push(b'\n');
//!         }
//!         sink::is_taken(&http::send(&request)?)?;
//!         Ok(Vec::new())
//!     }
//! }
//!
//! waystation_plugin::export_sink!(Post, waystation_plugin::about!());
//! ```
//!
//! The sink of the config says what it may reach: `allow = { http = ["https://hooks.example.org"] }`.

use crate::Place;
pub use crate::bindings_sink::exports::waystation::plugin::sink::{
    Batch, Error as SinkError, Later, Outgoing, Rejection,
};
use http::{Failure, Response};

/// Delivers batches. An instance lives for many of them; keep what has to outlive it in [`state`](crate::state).
pub trait Sink: Sized {
    /// The `config` table of the sink. Let it deny unknown fields, so that a typing error is found when the agent starts.
    type Config: serde::de::DeserializeOwned;

    /// Makes an instance.
    ///
    /// # Errors
    /// The text is shown to the operator, and nothing is delivered.
    fn new(config: Self::Config, place: Place) -> Result<Self, String>;

    /// Asks cheaply whether the destination would take a batch now. `now` is nanoseconds since 1970.
    ///
    /// # Errors
    /// What a delivery would meet.
    fn probe(&mut self, now: i64) -> Result<(), SinkError>;

    /// Delivers the whole batch, but for the records that the destination will never take, which it returns. Do not repeat a
    /// request by yourself: the agent repeats the batch, with patience, under the same identities.
    ///
    /// # Errors
    /// Why it is not delivered, or why nobody knows.
    fn deliver(&mut self, batch: Batch) -> Result<Vec<Rejection>, SinkError>;
}

/// What an answer to a delivery means: nothing when it was taken. Reads `retry-after` in seconds.
///
/// | status | means |
/// |---|---|
/// | 2xx | taken |
/// | 3xx, 401, 403, 404, 405, 407, 410, 502, 503, 504 | unreachable: hold and probe |
/// | 408, 425, 429, other 5xx | retryable: the same batch again |
/// | 409 and other 4xx | rejected |
///
/// # Errors
/// What it means, unless it was taken.
pub fn is_taken(response: &Response) -> Result<(), SinkError> {
    let reason = reason(response);
    Err(match response.status {
        200..=299 => return Ok(()),
        300..=399 | 401 | 403 | 404 | 405 | 407 | 410 | 502..=504 => match retry_after(response) {
            // Only that error can carry the wish.
            Some(wait) => SinkError::Retryable(Later { reason, retry_after_ms: Some(wait) }),
            None => SinkError::Unreachable(reason),
        },
        408 | 425 | 429 | 500.. => {
            SinkError::Retryable(Later { reason, retry_after_ms: retry_after(response) })
        }
        _ => SinkError::Rejected(reason),
    })
}

/// What an answer to a probe means. A probe asks nothing to be stored, so that a server may answer it in ways that say nothing
/// about a batch; only what stands between here and the server is believed.
///
/// # Errors
/// When the destination would take nothing now.
pub fn is_there(response: &Response) -> Result<(), SinkError> {
    match response.status {
        407 | 502..=504 => Err(SinkError::Unreachable(reason(response))),
        429 => Err(SinkError::Retryable(Later {
            reason: reason(response),
            retry_after_ms: retry_after(response),
        })),
        _ => Ok(()),
    }
}

/// The status, and the beginning of what the server said.
fn reason(response: &Response) -> String {
    let said = String::from_utf8_lossy(&response.body);
    let said: String = said.trim().chars().take(200).collect();
    let colon = if said.is_empty() { "" } else { ": " };
    format!("the server answered {}{colon}{said}", response.status)
}

fn retry_after(response: &Response) -> Option<u32> {
    let wish = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case("retry-after"))?;
    let seconds: u64 = wish.value.trim().parse().ok()?;
    Some(u32::try_from(seconds.saturating_mul(1000)).unwrap_or(u32::MAX))
}

/// What a request without an answer means: one that was not allowed is unreachable until the config says otherwise, and so is a
/// destination that is silent or cannot be connected to.
impl From<Failure> for SinkError {
    fn from(failure: Failure) -> Self {
        Self::Unreachable(match failure {
            Failure::Denied(reason) => format!("the request is not allowed: {reason}"),
            Failure::Timeout(reason) | Failure::Network(reason) => reason,
        })
    }
}

/// Requests. Natively there is no server but the one that a test plays with [`answer_with`](http::answer_with).
pub mod http {
    pub use crate::bindings_sink::waystation::plugin::http::{Failure, Request, Response};

    use crate::Header;

    /// A request without headers and body.
    #[must_use]
    pub fn request(method: &str, url: &str) -> Request {
        let (method, url) = (method.to_owned(), url.to_owned());
        Request { method, url, headers: Vec::new(), body: Vec::new() }
    }

    /// Adds a header.
    pub fn header(request: &mut Request, name: &str, value: &str) {
        request.headers.push(Header { name: name.to_owned(), value: value.to_owned() });
    }

    #[cfg(target_arch = "wasm32")]
    pub use crate::bindings_sink::waystation::plugin::http::send;

    #[cfg(not(target_arch = "wasm32"))]
    pub use native::{answer_with, send};

    #[cfg(not(target_arch = "wasm32"))]
    mod native {
        use std::cell::RefCell;

        use super::{Failure, Request, Response};

        type Server = Box<dyn FnMut(&Request) -> Result<Response, Failure>>;

        thread_local! {
            static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
        }

        /// Has this thread's requests answered so.
        pub fn answer_with(server: impl FnMut(&Request) -> Result<Response, Failure> + 'static) {
            SERVER.with_borrow_mut(|known| *known = Some(Box::new(server)));
        }

        /// Sends a request and gives its answer.
        ///
        /// # Errors
        /// What keeps it from having one.
        pub fn send(request: &Request) -> Result<Response, Failure> {
            SERVER.with_borrow_mut(|server| match server {
                Some(server) => server(request),
                None => Err(Failure::Network("the test answers nothing".to_owned())),
            })
        }
    }
}

/// Makes the crate a component that exports this [`Sink`], and what it says [`about!`](crate::about!) itself, if it does.
#[macro_export]
macro_rules! export_sink {
    ($plugin:ty, $about:expr $(,)?) => {
        $crate::export_sink!($plugin);
        $crate::export_about!($about);
    };
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings_sink::exports::waystation::plugin::sink as interface;

            ::std::thread_local! {
                static SLOT: $crate::Slot<$plugin> = const { $crate::Slot::empty() };
            }

            struct Exported;

            impl interface::Guest for Exported {
                fn init(config: String, place: $crate::Place) -> Result<(), String> {
                    SLOT.with(|slot| slot.init_sink(&config, place))
                }

                fn probe(now: i64) -> Result<(), interface::Error> {
                    SLOT.with(|slot| slot.probe(now))
                }

                fn deliver(
                    batch: interface::Batch,
                ) -> Result<Vec<interface::Rejection>, interface::Error> {
                    SLOT.with(|slot| slot.deliver(batch))
                }
            }

    $crate::bindings_sink::export!(Exported with_types_in $crate::bindings_sink);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            const fn is_a_sink<T: $crate::sink::Sink>() {}
            is_a_sink::<$plugin>();
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Header;

    fn answer(status: u16, retry_after: Option<&str>) -> Response {
        let header =
            |value: &str| Header { name: "Retry-After".to_owned(), value: value.to_owned() };
        let headers = retry_after.map(header).into_iter().collect();
        Response { status, headers, body: b" no\n".to_vec() }
    }

    fn meaning(status: u16, retry_after: Option<&str>) -> &'static str {
        match is_taken(&answer(status, retry_after)) {
            Ok(()) => "taken",
            Err(SinkError::Unreachable(_)) => "unreachable",
            Err(SinkError::Retryable(later)) if later.retry_after_ms == Some(7000) => "in 7 s",
            Err(SinkError::Retryable(_)) => "retryable",
            Err(SinkError::Rejected(_)) => "rejected",
            Err(SinkError::Conflict(_)) => "conflict",
        }
    }

    #[test]
    fn each_status_means_what_the_table_says() {
        for (status, expected) in [
            (200, "taken"),
            (204, "taken"),
            (302, "unreachable"),
            (401, "unreachable"),
            (404, "unreachable"),
            (503, "unreachable"),
            (429, "retryable"),
            (500, "retryable"),
            (507, "retryable"),
            (400, "rejected"),
            (409, "rejected"),
            (413, "rejected"),
            (422, "rejected"),
        ] {
            assert_eq!(meaning(status, None), expected, "{status}");
        }
        assert_eq!(meaning(503, Some("7")), "in 7 s");
        assert_eq!(meaning(429, Some(" 7 ")), "in 7 s");
        assert_eq!(meaning(429, Some("soon")), "retryable");
        let Err(SinkError::Rejected(reason)) = is_taken(&answer(422, None)) else { panic!() };
        assert_eq!(reason, "the server answered 422: no");
        assert!(is_there(&answer(404, None)).is_ok() && is_there(&answer(502, None)).is_err());
    }
}
