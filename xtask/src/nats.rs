//! A nats-server of the demo's own, and the few words of the NATS protocol that the demo speaks with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long the server may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// A running server; dropped, it is killed.
pub(crate) struct Server {
    child: Child,
    /// The port on 127.0.0.1 that it chose.
    pub(crate) port: u16,
}

impl Server {
    /// Starts the server with JetStream on a free port, with its files in the empty folder `folder`.
    pub(crate) fn start(binary: &Path, folder: &Path) -> Result<Self> {
        let child = Command::new(binary)
            .args(["--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir"])
            .arg(folder)
            .arg("--ports_file_dir")
            .arg(folder)
            .arg("--log")
            .arg(folder.join("nats-server.log"))
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let mut server = Self { child, port: 0 };
        server.port = server.wait_for_port(folder)?;
        Ok(server)
    }

    /// The server writes the port that it chose into a file as soon as it listens.
    fn wait_for_port(&mut self, folder: &Path) -> Result<u16> {
        let file = folder.join(format!("nats-server_{}.ports", self.child.id()));
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(port) = fs::read_to_string(&file).ok().and_then(|text| port_in(&text)) {
                return Ok(port);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "nats-server ended at once ({status}); see nats-server.log in {}",
                    folder.display()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("nats-server did not start; see nats-server.log in {}", folder.display())
    }

    /// Makes a stream that takes these subjects.
    pub(crate) fn create_stream(&self, name: &str, subjects: &[&str]) -> Result<()> {
        let body = json!({ "name": name, "subjects": subjects, "storage": "file" });
        self.request(&format!("$JS.API.STREAM.CREATE.{name}"), &body.to_string()).map(drop)
    }

    /// How many messages the stream holds.
    pub(crate) fn messages(&self, stream: &str) -> Result<u64> {
        let info = self.request(&format!("$JS.API.STREAM.INFO.{stream}"), "")?;
        let count = info.pointer("/state/messages").and_then(Value::as_u64);
        count.with_context(|| format!("the server's answer counts no messages: {info}"))
    }

    fn request(&self, subject: &str, body: &str) -> Result<Value> {
        let answer = request(self.port, subject, body)
            .with_context(|| format!("request to nats-server failed: {subject}"))?;
        let value: Value = serde_json::from_slice(&answer).context("the answer is not JSON")?;
        if let Some(error) = value.get("error") {
            bail!("nats-server refused {subject}: {error}");
        }
        Ok(value)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; nothing is left to do then.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The port of the first client URL in a ports file.
fn port_in(text: &str) -> Option<u16> {
    let value: Value = serde_json::from_str(text).ok()?;
    let url = value.pointer("/nats/0")?.as_str()?;
    url.rsplit_once(':')?.1.parse().ok()
}

/// Publishes with a reply subject, and returns the payload of the answer.
fn request(port: u16, subject: &str, body: &str) -> Result<Vec<u8>> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut writer = TcpStream::connect_timeout(&address, PATIENCE)?;
    writer.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(writer.try_clone()?);
    let length = body.len();
    write!(
        writer,
        "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nSUB xtask.reply 1\r\n\
         PUB {subject} xtask.reply {length}\r\n{body}\r\n"
    )?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            bail!("the server closed the connection");
        }
        let line = line.trim_end();
        if line == "PING" {
            writer.write_all(b"PONG\r\n")?;
        } else if let Some(error) = line.strip_prefix("-ERR") {
            bail!("the server says {}", error.trim());
        } else if line.starts_with("MSG ") {
            let length = line.rsplit(' ').next().and_then(|word| word.parse::<usize>().ok());
            let length = length.with_context(|| format!("no length in {line}"))?;
            if length > ANSWER_BYTES_MAX {
                bail!("an answer of {length} bytes");
            }
            let mut answer = vec![0; length];
            reader.read_exact(&mut answer)?;
            return Ok(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_port_is_read_from_the_first_client_url() {
        let text = r#"{"nats":["nats://127.0.0.1:40123","nats://[::1]:40123"],"monitoring":[]}"#;
        assert_eq!(port_in(text), Some(40_123));
        assert_eq!(port_in(r#"{"nats":["#), None);
    }

    #[test]
    fn an_answer_is_found_behind_info_and_ping() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"INFO {}\r\nPING\r\nMSG xtask.reply 1 8\r\n{\"a\":17}\r\n").unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        });
        assert_eq!(request(port, "$JS.API.X", "{}").unwrap(), b"{\"a\":17}");
        let said = server.join().unwrap();
        assert!(said.contains("PUB $JS.API.X xtask.reply 2\r\n{}\r\n"), "{said}");
        assert!(said.ends_with("PONG\r\n"), "{said}");
    }

    #[test]
    fn an_error_of_the_server_is_an_error() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"INFO {}\r\n-ERR 'Authorization Violation'\r\n").unwrap();
            // It reads to the end, as a connection that is closed too early could swallow what was said.
            stream.read_to_end(&mut Vec::new()).unwrap();
        });
        let error = request(port, "$JS.API.X", "").unwrap_err().to_string();
        assert!(error.contains("Authorization Violation"), "{error}");
        server.join().unwrap();
    }
}
