//! What ends a connection to a broker. Nothing here holds a password or a payload.

use crate::limits::{MQTT_CONNECT_MS_MAX, MQTT_SUBSCRIBE_MS_MAX};
use crate::net::stream::StreamError;

/// Why an MQTT source has no connection any more, or never had one. It tries again, with growing waits.
#[derive(Debug, thiserror::Error)]
pub enum MqttError {
    /// The broker cannot be reached, or TLS cannot be agreed on with it.
    #[error("cannot connect to {broker}")]
    Connect {
        /// Its URL.
        broker: String,
        /// Why.
        #[source]
        error: StreamError,
    },
    /// It took too long.
    #[error("{broker} gave no answer to {what} within {} s", if *what == "SUBSCRIBE" { MQTT_SUBSCRIBE_MS_MAX } else { MQTT_CONNECT_MS_MAX } / 1000)]
    Late {
        /// Its URL.
        broker: String,
        /// What was asked.
        what: &'static str,
    },
    /// The password cannot be read.
    #[error("the password in {place} cannot be read")]
    Password {
        /// Where it should be.
        place: String,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// The broker has refused the client.
    #[error("{broker} refuses the connection: {reason}")]
    Refused {
        /// Its URL.
        broker: String,
        /// What it said, and what to do about it where that is known.
        reason: String,
    },
    /// The broker has refused a subscription.
    #[error("{broker} refuses the subscription to \"{filter}\": {reason}")]
    Subscription {
        /// Its URL.
        broker: String,
        /// The filter.
        filter: String,
        /// What it said.
        reason: String,
    },
    /// The broker would deliver with less care than was asked for.
    #[error(
        "{broker} grants QoS {granted} for \"{filter}\", not {qos}; set qos = {granted} if that is enough"
    )]
    Downgraded {
        /// Its URL.
        broker: String,
        /// The filter.
        filter: String,
        /// What it grants.
        granted: u8,
        /// What was asked for.
        qos: u8,
    },
    /// Another client has connected under the same client id; the broker says so (MQTT 5).
    #[error(
        "another client took over the client id \"{client_id}\"; give each a `client_id` of its own"
    )]
    TakenOver {
        /// The id.
        client_id: String,
    },
    /// The broker has closed one connection after the other soon after it was made, and kept the session: by 3.1.1 that is all
    /// that it says when two clients have one id.
    #[error(
        "{broker} closes each connection soon after it is made; perhaps another client took over the client id \"{client_id}\", \
         give each a `client_id` of its own"
    )]
    Contested {
        /// Its URL.
        broker: String,
        /// The id.
        client_id: String,
    },
    /// The broker has ended the connection with a reason.
    #[error("{broker} ended the connection: {reason}")]
    Ended {
        /// Its URL.
        broker: String,
        /// The reason.
        reason: String,
    },
    /// The broker has closed the connection without a word.
    #[error("{broker} closed the connection")]
    Closed {
        /// Its URL.
        broker: String,
    },
    /// The connection broke.
    #[error("the connection to {broker} broke")]
    Broken {
        /// Its URL.
        broker: String,
        /// How.
        #[source]
        error: std::io::Error,
    },
    /// The broker has not answered pings.
    #[error("{broker} does not answer pings")]
    Silent {
        /// Its URL.
        broker: String,
    },
    /// A packet over the limit. It is not read; the broker will offer it again.
    #[error(
        "{broker} sends a message of {bytes} bytes, at most {bytes_max} are read; raise `record_bytes_max`, or have the broker \
         refuse such messages and give up this one"
    )]
    TooLarge {
        /// Its URL.
        broker: String,
        /// Bytes of the packet.
        bytes: usize,
        /// Bytes that are read.
        bytes_max: usize,
    },
    /// What came is no MQTT of the version that was agreed on.
    #[error("what {broker} sends is no MQTT: {what}")]
    Malformed {
        /// Its URL.
        broker: String,
        /// What is wrong with it.
        what: String,
    },
}

impl MqttError {
    /// Whether two clients seem to have one id. Then records that came in meanwhile do not make the next try a first one:
    /// each throws the other out.
    #[must_use]
    pub fn is_contest(&self) -> bool {
        matches!(self, Self::TakenOver { .. } | Self::Contested { .. })
    }
}
