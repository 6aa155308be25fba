//! A mosquitto for a measurement, and the few words of MQTT 3.1.1 that fill a queue in it.

use std::fs;
use std::io::{BufWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How long the broker may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Messages that are sent before their answers are read.
const UNANSWERED_MAX: usize = 500;
const TOPIC: &str = "bench/in";
/// A client `bench` with a clean session that never has to show that it is alive.
const CONNECT: &[u8] = b"\x10\x11\0\x04MQTT\x04\x02\0\0\0\x05bench";
const PUBLISH_QOS_1: u8 = 0x32;

/// A running broker that keeps everything for subscribers that are away, in memory; dropped, it is killed.
pub(super) struct Broker {
    child: Child,
    pub(super) port: u16,
}

impl Broker {
    pub(super) fn start(binary: &Path, folder: &Path, port: u16) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let config = folder.join("mosquitto.conf");
        let text =
            format!("allow_anonymous true\nmax_queued_messages 0\nlistener {port} 127.0.0.1\n");
        fs::write(&config, text)?;
        let child = Command::new(binary)
            .arg("-c")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log"))?)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut broker = Self { child, port };
        let begun = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = broker.child.try_wait()? {
                bail!("mosquitto ended at once ({status}); its log is in {}", folder.display());
            }
            ensure!(begun.elapsed() < PATIENCE, "mosquitto does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(broker)
    }

    /// Publishes each line at QoS 1; returns when the broker has them all.
    pub(super) fn publish(&self, lines: &[&str]) -> Result<()> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut writer = BufWriter::new(stream.try_clone()?);
        writer.write_all(CONNECT)?;
        writer.flush()?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).context("mosquitto does not answer")?;
        ensure!(answer == [0x20, 2, 0, 0], "mosquitto refuses the producer: {answer:?}");
        for lines in lines.chunks(UNANSWERED_MAX) {
            for (id, line) in (1_u16..).zip(lines) {
                writer.write_all(&publish(id, line)?)?;
            }
            writer.flush()?;
            let mut answers = vec![0; lines.len() * 4];
            stream.read_exact(&mut answers).context("mosquitto does not take the messages")?;
        }
        Ok(())
    }
}

fn publish(id: u16, payload: &str) -> Result<Vec<u8>> {
    let mut packet = vec![PUBLISH_QOS_1];
    let mut length = 2 + TOPIC.len() + 2 + payload.len();
    // Seven bits a byte; the highest says that one more follows.
    while length > 0x7f {
        packet.push(u8::try_from(length & 0x7f)? | 0x80);
        length >>= 7;
    }
    packet.push(u8::try_from(length)?);
    packet.extend(u16::try_from(TOPIC.len())?.to_be_bytes());
    packet.extend(TOPIC.bytes());
    packet.extend(id.to_be_bytes());
    packet.extend(payload.bytes());
    Ok(packet)
}

impl Drop for Broker {
    fn drop(&mut self) {
        // One that has ended by itself is not there to be killed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
