//! Plumbing that clients and listeners share: connections and their visible state. It makes no policy: what a lost connection means is
//! decided by whoever uses it.

pub mod authority;
pub mod clients;
pub mod config;
pub mod http;
pub mod listen;
pub mod nats;
pub mod reach;
pub mod servers;
pub mod socket_file;
pub mod stream;
pub mod tls;
pub mod tls_server;

#[cfg(test)]
#[path = "../../tests/it/support/certificates.rs"]
pub(crate) mod certificates;
