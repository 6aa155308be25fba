//! The wire to a broker: packets in both directions.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::config::{Broker, Version};
use super::error::MqttError;
use super::packet::{Answer, Encoder, Fault, Packet, decode};
use crate::limits::{MQTT_ANSWERS_BYTES_MAX, MQTT_CONNECT_MS_MAX, MQTT_READ_BYTES};
use crate::net::stream::Stream;
use crate::net::tls::ClientTls;

/// How long connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(MQTT_CONNECT_MS_MAX);
/// A read buffer that one large packet has made larger than this is given back.
const BUFFER_KEPT_BYTES_MAX: usize = 16 * MQTT_READ_BYTES;

/// Opens the stream.
pub(super) async fn open(
    broker: &Broker,
    tls: Option<&Arc<ClientTls>>,
    version: Version,
    packet_bytes_max: usize,
) -> Result<(Incoming, Outgoing), MqttError> {
    let late = |_| MqttError::Late { broker: broker.to_string(), what: "a connection" };
    let open = Stream::open(&broker.host, broker.port, tls);
    let opened = tokio::time::timeout(CONNECT_TIMEOUT, open).await.map_err(late)?;
    let failed = |error| MqttError::Connect { broker: broker.to_string(), error };
    let (reader, writer) = tokio::io::split(opened.map_err(failed)?);
    let incoming = Incoming {
        reader,
        stream: BytesMut::new(),
        version,
        bytes_max: packet_bytes_max,
        broker: broker.to_string(),
    };
    let outgoing = Outgoing {
        writer,
        waiting: BytesMut::new(),
        is_flushed: true,
        encoder: Encoder(version),
        broker: broker.to_string(),
    };
    Ok((incoming, outgoing))
}

/// What the broker sends.
pub(super) struct Incoming {
    reader: tokio::io::ReadHalf<Stream>,
    stream: BytesMut,
    version: Version,
    bytes_max: usize,
    broker: String,
}

impl Incoming {
    /// The next packet of what was read.
    pub(super) fn next(&mut self) -> Result<Option<Packet>, MqttError> {
        decode(self.version, &mut self.stream, self.bytes_max).map_err(|fault| {
            let broker = self.broker.clone();
            match fault {
                Fault::TooLarge { bytes } => {
                    MqttError::TooLarge { broker, bytes, bytes_max: self.bytes_max }
                }
                Fault::Malformed(what) => MqttError::Malformed { broker, what },
            }
        })
    }

    /// Waits for more bytes and reads what is there of them, up to a bound.
    ///
    /// # Cancel safety
    /// Can be dropped: nothing was read then.
    pub(super) async fn fill(&mut self) -> Result<(), MqttError> {
        if self.stream.is_empty() && self.stream.capacity() > BUFFER_KEPT_BYTES_MAX {
            self.stream = BytesMut::new();
        }
        self.stream.reserve(MQTT_READ_BYTES);
        match self.reader.read_buf(&mut self.stream).await {
            Ok(0) => Err(MqttError::Closed { broker: self.broker.clone() }),
            Ok(_) => Ok(()),
            Err(error) => Err(broken(&self.broker, error)),
        }
    }

    /// The next packet.
    pub(super) async fn packet(&mut self) -> Result<Packet, MqttError> {
        loop {
            if let Some(packet) = self.next()? {
                return Ok(packet);
            }
            self.fill().await?;
        }
    }
}

/// What the broker is sent.
pub(super) struct Outgoing {
    writer: tokio::io::WriteHalf<Stream>,
    waiting: BytesMut,
    is_flushed: bool,
    encoder: Encoder,
    broker: String,
}

impl Outgoing {
    /// Puts a packet behind those that wait.
    pub(super) fn push(&mut self, write: impl FnOnce(Encoder, &mut BytesMut)) {
        write(self.encoder, &mut self.waiting);
    }

    /// Puts an answer behind what waits.
    pub(super) fn answer(&mut self, answer: Answer) {
        self.encoder.answer(answer, &mut self.waiting);
    }

    /// Whether there is something to send.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.is_flushed
    }

    /// Whether the broker takes so little that nothing more should be read of it.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= MQTT_ANSWERS_BYTES_MAX
    }

    /// Sends all that waits.
    ///
    /// # Cancel safety
    /// Can be dropped: what is not sent still waits.
    pub(super) async fn flush(&mut self) -> Result<(), MqttError> {
        let broken = |error| broken(&self.broker, error);
        while !self.waiting.is_empty() {
            self.is_flushed = false;
            self.writer.write_buf(&mut self.waiting).await.map_err(broken)?;
        }
        self.writer.flush().await.map_err(broken)?;
        self.is_flushed = true;
        Ok(())
    }
}

/// A broker that is done with a client need not say so first.
fn broken(broker: &str, error: std::io::Error) -> MqttError {
    let broker = broker.to_owned();
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            MqttError::Closed { broker }
        }
        _ => MqttError::Broken { broker, error },
    }
}
