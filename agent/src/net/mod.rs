//! Plumbing that clients share: connections and their visible state. It makes no policy: what a lost connection means is
//! decided by whoever uses it.

pub mod nats;
