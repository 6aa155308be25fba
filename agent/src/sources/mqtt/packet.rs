//! What goes over the wire, of both versions of the protocol in one form.
//!
//! The encodings are rumqttc's; what is told apart here is what a source needs. Its event loop is not used: it answers and
//! reads in one step, so nothing could be left unread while the journal is full, and it ends each connection in which the
//! broker finishes a delivery of QoS 2 that an earlier connection has begun. A packet is cut out of the stream here, before
//! it is decoded: its length is known then, and one that is cut short inside is an error and not a wait for more.

use bytes::{Bytes, BytesMut};
use rumqttc::mqttbytes::{self, v4};
use rumqttc::v5::mqttbytes as five;
use rumqttc::v5::mqttbytes::v5;

use super::config::Version;

/// The first byte of that packet.
const DISCONNECT: u8 = 0xe0;

/// What a client introduces itself with.
pub(super) struct Hello<'a> {
    pub(super) client_id: &'a str,
    /// Name, and password or nothing.
    pub(super) login: Option<(String, String)>,
    pub(super) keep_alive_s: u16,
    /// Messages that may be without an answer, by MQTT 5.
    pub(super) receive_max: u16,
}

/// A message of a subscription.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) topic: String,
    pub(super) payload: Bytes,
    pub(super) qos: u8,
    /// What its answer refers to; 0 for QoS 0, which has none.
    pub(super) id: u16,
    pub(super) duplicate: bool,
    pub(super) retained: bool,
    pub(super) content_type: Option<String>,
    pub(super) response_topic: Option<String>,
    pub(super) properties: Vec<(String, String)>,
}

/// What a broker sends.
#[derive(PartialEq, Eq)]
pub(super) enum Packet {
    /// The client is let in.
    Welcome {
        session_present: bool,
        keep_alive_s: Option<u16>,
    },
    /// It is not.
    Refused {
        reason: String,
    },
    Message(Message),
    /// The second half of a delivery of QoS 2: the message with this id will not come again.
    Released(u16),
    /// For each filter of a subscription the QoS, or why there is none.
    Subscribed(Vec<Result<u8, String>>),
    /// A subscription is taken back.
    Unsubscribed,
    /// The connection ends.
    Ended {
        reason: String,
        taken_over: bool,
    },
    /// Nothing that a source acts on.
    Other,
}

/// An answer to a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// PUBACK: a message of QoS 1 is taken.
    Taken(u16),
    /// PUBREC: one of QoS 2 is.
    Received(u16),
    /// PUBCOMP: and its id is free again.
    Complete(u16),
}

/// Why bytes are no packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is longer than it may be.
    TooLarge { bytes: usize },
    /// It is none of this version.
    Malformed(String),
}

/// Takes the next whole packet out of the stream; `None` when there is none yet.
pub(super) fn decode(
    version: Version,
    stream: &mut BytesMut,
    bytes_max: usize,
) -> Result<Option<Packet>, Fault> {
    let Some((header, length)) = frame_length(stream)? else { return Ok(None) };
    if length > bytes_max {
        return Err(Fault::TooLarge { bytes: length });
    }
    if stream.len() < length {
        return Ok(None);
    }
    let mut frame = stream.split_to(length);
    // A broker that knows nothing newer than 3.1.1 refuses a client of MQTT 5 in its own form.
    if version == Version::V5 && matches!(frame[..], [0x20, 2, _, 1]) {
        let reason = "it does not know MQTT 5; set version = \"3.1.1\"".to_owned();
        return Ok(Some(Packet::Refused { reason }));
    }
    match version {
        Version::V3 => v4::Packet::read(&mut frame, length)
            .map_err(|error| Fault::Malformed(error.to_string()))
            .map(|packet| Some(of_v3(packet))),
        // Brokers leave out what the decoder insists on: the reason, or the length of properties that are none.
        Version::V5 if frame[0] == DISCONNECT => Ok(Some(ended(frame.get(header).copied()))),
        Version::V5 => v5::Packet::read(&mut frame, None)
            .map_err(|error| Fault::Malformed(error.to_string()))
            .and_then(of_v5)
            .map(Some),
    }
}

/// How long the packet is that the stream begins with, once that is known, and how much of that its header is.
fn frame_length(stream: &BytesMut) -> Result<Option<(usize, usize)>, Fault> {
    let mut length = 0;
    for (index, byte) in stream.iter().skip(1).take(4).enumerate() {
        length |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(Some((index + 2, length + index + 2)));
        }
    }
    if stream.len() >= 5 {
        return Err(Fault::Malformed("a length of more than four bytes".to_owned()));
    }
    Ok(None)
}

fn of_v3(packet: v4::Packet) -> Packet {
    match packet {
        v4::Packet::ConnAck(answer) => match answer.code {
            v4::ConnectReturnCode::Success => {
                let session_present = answer.session_present;
                Packet::Welcome { session_present, keep_alive_s: None }
            }
            code => Packet::Refused { reason: explain(&format!("{code:?}")) },
        },
        v4::Packet::Publish(message) => Packet::Message(Message {
            topic: message.topic,
            payload: message.payload,
            qos: message.qos as u8,
            id: message.pkid,
            duplicate: message.dup,
            retained: message.retain,
            ..Message::default()
        }),
        v4::Packet::PubRel(released) => Packet::Released(released.pkid),
        v4::Packet::SubAck(answer) => {
            let granted = answer.return_codes.into_iter().map(|code| match code {
                v4::SubscribeReasonCode::Success(qos) => Ok(qos as u8),
                v4::SubscribeReasonCode::Failure => Err("it gives no reason (0x80)".to_owned()),
            });
            Packet::Subscribed(granted.collect())
        }
        v4::Packet::UnsubAck(_) => Packet::Unsubscribed,
        _ => Packet::Other,
    }
}

fn of_v5(packet: v5::Packet) -> Result<Packet, Fault> {
    Ok(match packet {
        v5::Packet::ConnAck(answer) => match answer.code {
            v5::ConnectReturnCode::Success => Packet::Welcome {
                session_present: answer.session_present,
                keep_alive_s: answer.properties.and_then(|properties| properties.server_keep_alive),
            },
            code => Packet::Refused { reason: explain(&format!("{code:?}")) },
        },
        v5::Packet::Publish(message) => {
            let topic = String::from_utf8(message.topic.into())
                .map_err(|_| Fault::Malformed("a topic that is not UTF-8".to_owned()))?;
            // An alias was not offered, so there is none.
            if topic.is_empty() {
                return Err(Fault::Malformed("a message without a topic".to_owned()));
            }
            let properties = message.properties.unwrap_or_default();
            Packet::Message(Message {
                topic,
                payload: message.payload,
                qos: message.qos as u8,
                id: message.pkid,
                duplicate: message.dup,
                retained: message.retain,
                content_type: properties.content_type,
                response_topic: properties.response_topic,
                properties: properties.user_properties,
            })
        }
        v5::Packet::PubRel(released) => Packet::Released(released.pkid),
        v5::Packet::SubAck(answer) => {
            let granted = answer.return_codes.into_iter().map(|code| match code {
                v5::SubscribeReasonCode::Success(qos) => Ok(qos as u8),
                code => Err(words(&format!("{code:?}"))),
            });
            Packet::Subscribed(granted.collect())
        }
        v5::Packet::UnsubAck(_) => Packet::Unsubscribed,
        _ => Packet::Other,
    })
}

/// The end of a connection, with the reason that MQTT 5 has for it.
fn ended(reason: Option<u8>) -> Packet {
    let code = reason.map(v5::DisconnectReasonCode::try_from);
    let reason = match (&code, reason) {
        (Some(Ok(code)), _) => words(&format!("{code:?}")),
        (_, Some(byte)) => format!("reason {byte:#04x}"),
        (_, None) => "without a reason".to_owned(),
    };
    let taken_over = matches!(code, Some(Ok(v5::DisconnectReasonCode::SessionTakenOver)));
    Packet::Ended { reason, taken_over }
}

/// `NotAuthorized` → `not authorized`.
fn words(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(character.to_lowercase());
    }
    text
}

/// Why a broker does not let the client in, and what to do where that is known.
fn explain(code: &str) -> String {
    let hint = match code {
        "BadUserNamePassword" | "NotAuthorized" => "; look at `credentials` and `client_id`",
        "RefusedProtocolVersion" | "UnsupportedProtocolVersion" => "; try another `version`",
        "BadClientId" | "ClientIdentifierNotValid" => "; set another `client_id`",
        _ => "",
    };
    format!("{}{hint}", words(code))
}

/// Writes packets of one version.
#[derive(Debug, Clone, Copy)]
pub(super) struct Encoder(pub(super) Version);

impl Encoder {
    /// CONNECT, for a session that outlives the connection.
    pub(super) fn connect(self, hello: Hello<'_>, out: &mut BytesMut) {
        let client_id = hello.client_id.to_owned();
        let keep_alive = hello.keep_alive_s;
        match self.0 {
            Version::V3 => self.three(
                v4::Packet::Connect(v4::Connect {
                    protocol: mqttbytes::Protocol::V4,
                    keep_alive,
                    client_id,
                    clean_session: false,
                    last_will: None,
                    login: hello.login.map(|(username, password)| v4::Login { username, password }),
                }),
                out,
            ),
            Version::V5 => {
                let mut properties = v5::ConnectProperties::new();
                // It does not expire, as one of 3.1.1.
                properties.session_expiry_interval = Some(u32::MAX);
                properties.receive_maximum = Some(hello.receive_max);
                let connect = v5::Connect {
                    keep_alive,
                    client_id,
                    clean_start: false,
                    properties: Some(properties),
                };
                let login =
                    hello.login.map(|(username, password)| v5::Login { username, password });
                self.five(v5::Packet::Connect(connect, None, login), out);
            }
        }
    }

    /// SUBSCRIBE. By MQTT 5 kept messages come only for what is new.
    pub(super) fn subscribe(self, id: u16, filters: &[String], qos: u8, out: &mut BytesMut) {
        match self.0 {
            Version::V3 => {
                let qos = mqttbytes::qos(qos).unwrap_or(mqttbytes::QoS::AtLeastOnce);
                let filters =
                    filters.iter().map(|path| v4::SubscribeFilter { path: path.clone(), qos });
                let filters = filters.collect();
                self.three(v4::Packet::Subscribe(v4::Subscribe { pkid: id, filters }), out);
            }
            Version::V5 => {
                let qos = five::qos(qos).unwrap_or(five::QoS::AtLeastOnce);
                let filters = filters.iter().map(|path| v5::Filter {
                    // As by 3.1.1: the flag says that the broker had kept the message, not that its producer wanted that.
                    preserve_retain: false,
                    retain_forward_rule: v5::RetainForwardRule::OnNewSubscribe,
                    ..v5::Filter::new(path.clone(), qos)
                });
                let filters = filters.collect();
                let subscribe = v5::Subscribe { pkid: id, filters, properties: None };
                self.five(v5::Packet::Subscribe(subscribe), out);
            }
        }
    }

    /// UNSUBSCRIBE.
    pub(super) fn unsubscribe(self, id: u16, filters: &[String], out: &mut BytesMut) {
        let filters = filters.to_vec();
        match self.0 {
            Version::V3 => self
                .three(v4::Packet::Unsubscribe(v4::Unsubscribe { pkid: id, topics: filters }), out),
            Version::V5 => {
                let unsubscribe = v5::Unsubscribe { pkid: id, filters, properties: None };
                self.five(v5::Packet::Unsubscribe(unsubscribe), out);
            }
        }
    }

    /// An answer to a message.
    pub(super) fn answer(self, answer: Answer, out: &mut BytesMut) {
        match self.0 {
            Version::V3 => self.three(
                match answer {
                    Answer::Taken(id) => v4::Packet::PubAck(v4::PubAck::new(id)),
                    Answer::Received(id) => v4::Packet::PubRec(v4::PubRec::new(id)),
                    Answer::Complete(id) => v4::Packet::PubComp(v4::PubComp::new(id)),
                },
                out,
            ),
            Version::V5 => self.five(
                match answer {
                    Answer::Taken(id) => v5::Packet::PubAck(v5::PubAck::new(id, None)),
                    Answer::Received(id) => v5::Packet::PubRec(v5::PubRec::new(id, None)),
                    Answer::Complete(id) => v5::Packet::PubComp(v5::PubComp::new(id, None)),
                },
                out,
            ),
        }
    }

    /// PINGREQ.
    pub(super) fn ping(self, out: &mut BytesMut) {
        match self.0 {
            Version::V3 => self.three(v4::Packet::PingReq, out),
            Version::V5 => self.five(v5::Packet::PingReq(v5::PingReq), out),
        }
    }

    /// DISCONNECT, which keeps the session.
    pub(super) fn disconnect(self, out: &mut BytesMut) {
        match self.0 {
            Version::V3 => self.three(v4::Packet::Disconnect, out),
            Version::V5 => {
                let reason = v5::DisconnectReasonCode::NormalDisconnection;
                self.five(v5::Packet::Disconnect(v5::Disconnect::new(reason)), out);
            }
        }
    }

    #[expect(clippy::unused_self, reason = "it belongs to the version that was matched")]
    fn three(self, packet: v4::Packet, out: &mut BytesMut) {
        packet.write(out, usize::MAX).expect("no packet of ours is over the limit of the protocol");
    }

    #[expect(clippy::unused_self, reason = "it belongs to the version that was matched")]
    fn five(self, packet: v5::Packet, out: &mut BytesMut) {
        packet.write(out, None).expect("no packet of ours is over the limit of the protocol");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    fn read(version: Version, bytes: &[u8]) -> Result<Option<Packet>, Fault> {
        decode(version, &mut BytesMut::from(bytes), 1 << 20)
    }

    fn reason_of(bytes: &[u8]) -> (String, bool) {
        match read(Version::V5, bytes) {
            Ok(Some(Packet::Ended { reason, taken_over })) => (reason, taken_over),
            _ => panic!("{bytes:?} ends nothing"),
        }
    }

    #[test]
    fn the_reason_of_an_end_is_told_also_where_the_broker_leaves_out_the_rest() {
        assert_eq!(reason_of(&[0xe0, 0]), ("without a reason".to_owned(), false));
        assert_eq!(reason_of(&[0xe0, 1, 0x8e]), ("session taken over".to_owned(), true));
        assert_eq!(reason_of(&[0xe0, 2, 0x8b, 0]), ("server shutting down".to_owned(), false));
        assert_eq!(reason_of(&[0xe0, 1, 0x55]), ("reason 0x55".to_owned(), false));
    }

    #[test]
    fn a_broker_that_knows_only_the_older_version_is_understood() {
        let Ok(Some(Packet::Refused { reason })) = read(Version::V5, &[0x20, 2, 0, 1]) else {
            panic!("it is a refusal");
        };
        assert!(reason.contains("version = \"3.1.1\""), "{reason}");
    }

    #[test]
    fn a_packet_over_the_limit_is_refused_by_its_header_alone() {
        let header = [0x30, 0xff, 0xff, 0xff, 0x7f];
        for version in [Version::V3, Version::V5] {
            let bytes = 268_435_455 + 5;
            assert!(read(version, &header) == Err(Fault::TooLarge { bytes }));
        }
        assert!(matches!(
            read(Version::V3, &[0x30, 0xff, 0xff, 0xff, 0xff]),
            Err(Fault::Malformed(_))
        ));
        assert!(read(Version::V3, &header[..4]) == Ok(None));
    }

    /// The decoder calls it a lack of bytes, which would be waited for.
    #[test]
    fn a_packet_that_is_cut_short_inside_is_malformed_and_not_waited_for() {
        // The length of the properties goes on behind the end.
        let publish = [0x30, 4, 0, 1, b'a', 0x80];
        assert!(matches!(read(Version::V5, &publish), Err(Fault::Malformed(_))));
    }

    proptest! {
        /// A hostile broker makes nothing worse than an error.
        #[test]
        fn any_bytes_are_a_packet_an_error_or_not_enough(
            kind in 0_u8..=255,
            body in proptest::collection::vec(any::<u8>(), 0..100),
            five in any::<bool>(),
        ) {
            let version = if five { Version::V5 } else { Version::V3 };
            let length = u8::try_from(body.len()).unwrap();
            let mut stream = BytesMut::from(&[&[kind, length], &body[..]].concat()[..]);
            let decoded = decode(version, &mut stream, 1 << 20);
            prop_assert!(decoded != Ok(None));
            prop_assert!(stream.is_empty());
        }
    }

    #[test]
    fn fuzzed_packets_are_packets_errors_or_not_enough() {
        let examples: [&[u8]; 7] = [
            &[0x20, 2, 0, 0],
            &[0x20, 11, 0, 0, 8, 0x21, 0, 10, 0x27, 0, 0, 1, 0],
            &[0x30, 7, 0, 3, b'a', b'/', b'b', b'x', b'y'],
            &[
                0x32, 19, 0, 1, b'a', 0, 7, 12, 3, 0, 1, b't', 38, 0, 1, b'k', 0, 1, b'v', b'x',
                b'y',
            ],
            &[0x90, 3, 0, 1, 1],
            &[0x62, 2, 0, 7],
            &[0xe0, 2, 0x8b, 0],
        ];
        fuzz(&examples, |bytes| {
            for version in [Version::V3, Version::V5] {
                let mut stream = BytesMut::from(bytes);
                let mut left = stream.len();
                while let Ok(Some(_)) = decode(version, &mut stream, 1 << 20) {
                    assert!(stream.len() < left, "a packet takes bytes");
                    left = stream.len();
                }
            }
        });
    }
}
