//! A real mosquitto on a free port, and a producer of messages whose answers are counted.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rumqttc::v5::mqttbytes::v5::PublishProperties;
use rumqttc::{Client, Connection, Event, MqttOptions, Outgoing, Packet, QoS};
use rustix::process::Signal;

use super::{LONG, wait_for};

/// A running broker. Dropping it ends it.
pub(crate) struct Broker {
    child: Child,
    pub(crate) port: u16,
    directory: tempfile::TempDir,
}

/// What all brokers here have in common: they keep as much for a session as it takes.
const CONFIG: &str = "max_queued_messages 0\nlog_type all\nlog_dest stderr\nuser root\n";

impl Broker {
    /// A broker that lets everybody in and keeps nothing when it ends.
    pub(crate) fn start() -> Self {
        Self::start_with("allow_anonymous true\n")
    }

    /// One with this in its config; `{dir}` stands for its directory.
    pub(crate) fn start_with(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), free_port(), config)
    }

    /// One in a directory that has its files already.
    pub(crate) fn start_in(directory: tempfile::TempDir, port: u16, config: &str) -> Self {
        let path = directory.path().to_str().unwrap();
        // What comes first belongs to the first listener.
        let config =
            format!("{CONFIG}listener {port} 127.0.0.1\n{}", config.replace("{dir}", path));
        let file = directory.path().join("mosquitto.conf");
        std::fs::write(&file, config).unwrap();
        let mut log = std::fs::File::options();
        let log = log.create(true).append(true).open(directory.path().join("broker.log")).unwrap();
        let child = Command::new(program())
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut broker = Self { child, port, directory };
        wait_for("the broker", LONG, || {
            assert!(broker.child.try_wait().unwrap().is_none(), "{}", broker.log());
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        broker
    }

    /// SIGKILL; gives what it takes to start it again on the same port.
    pub(crate) fn kill(mut self) -> (tempfile::TempDir, u16) {
        super::nats::end(&mut self.child, Signal::KILL);
        let empty = tempfile::tempdir().unwrap();
        (std::mem::replace(&mut self.directory, empty), self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.path("broker.log")).unwrap_or_default()
    }

    /// How often clients with this id were let in.
    pub(crate) fn connections(&self, client_id: &str) -> usize {
        let end = format!(" as {client_id} (");
        self.log().lines().filter(|line| line.contains(&end)).count()
    }

    /// Publishes with QoS 1 until the broker has answered everything.
    pub(crate) fn publish(&self, topic: &str, payloads: impl Iterator<Item = String>) {
        self.publish_as(QoS::AtLeastOnce, false, topic, payloads);
    }

    /// The same with another QoS, and perhaps to be kept by the broker.
    pub(crate) fn publish_as(
        &self,
        qos: QoS,
        retain: bool,
        topic: &str,
        payloads: impl Iterator<Item = String>,
    ) {
        let payloads: Vec<String> = payloads.collect();
        let (client, mut connection) = self.producer();
        let topic = topic.to_owned();
        let count = payloads.len();
        let sender = std::thread::spawn(move || {
            for payload in payloads {
                client.publish(&topic, qos, retain, payload).unwrap();
            }
            client
        });
        let mut answered = 0;
        for event in connection.iter() {
            match (qos, event.unwrap()) {
                (QoS::AtMostOnce, Event::Outgoing(Outgoing::Publish(_)))
                | (QoS::AtLeastOnce, Event::Incoming(Packet::PubAck(_)))
                | (QoS::ExactlyOnce, Event::Incoming(Packet::PubComp(_))) => answered += 1,
                _ => {}
            }
            if answered == count {
                break;
            }
        }
        assert_eq!(answered, count, "answers of the broker");
        sender.join().unwrap().disconnect().unwrap();
        // Until the connection is closed.
        connection.iter().take_while(Result::is_ok).for_each(drop);
    }

    /// Publishes one message by MQTT 5.
    pub(crate) fn publish_five(&self, topic: &str, payload: &str, properties: PublishProperties) {
        use rumqttc::v5;

        let id = format!("producer-{}", fastrand::u64(..));
        let mut options = v5::MqttOptions::new(id, "127.0.0.1", self.port);
        options.set_keep_alive(Duration::from_secs(30));
        let (client, mut connection) = v5::Client::new(options, 10);
        let qos = v5::mqttbytes::QoS::AtLeastOnce;
        let payload = payload.to_owned();
        client.publish_with_properties(topic, qos, false, payload, properties).unwrap();
        let answered = connection.iter().any(|event| {
            matches!(event.unwrap(), v5::Event::Incoming(v5::mqttbytes::v5::Packet::PubAck(_)))
        });
        assert!(answered);
    }

    /// A producer with a session of its own.
    pub(crate) fn producer(&self) -> (Client, Connection) {
        let id = format!("producer-{}", fastrand::u64(..));
        let mut options = MqttOptions::new(id, "127.0.0.1", self.port);
        options.set_keep_alive(Duration::from_secs(30));
        // mosquitto ends a connection with more than 20 of QoS 2 in flight.
        options.set_inflight(10);
        options.set_max_packet_size(64 << 20, 64 << 20);
        Client::new(options, 100)
    }
}

/// Debian's, which is in no user's path.
fn program() -> PathBuf {
    ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.exists())
        .expect("mosquitto is missing: run `cargo xtask test`")
}

/// A port that nobody has now.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
