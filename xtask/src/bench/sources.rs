//! How fast each source takes records into the journal, beside what `generate`, which reads nothing, puts there; and what slow
//! and hostile clients of the HTTP source do to the others.
//!
//! The one lane's destination is away, so that taking in is what is measured. What comes by a network comes from here, over
//! loopback, on the same cores.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read as _, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::agent::{Agent, median};
use super::mqtt::Broker;
use crate::nats;
use crate::ui::{self, Align, Step};
use crate::{install, process, sensors};

/// Records of each measurement.
const RECORDS: u64 = 300_000;
const ROUNDS: usize = 3;
/// How long an agent may take for them.
const PATIENCE: Duration = Duration::from_secs(120);
/// Messages that are published before the stream is asked whether it has them: what it cannot keep up with it drops.
const UNSTORED_MAX: usize = 5000;
/// Lines of a post, and clients that post at the same time.
const POST_LINES: usize = 1000;
const CLIENTS: usize = 4;
/// Posts of the client whose waits are measured, one every two milliseconds.
const POSTS: usize = 1500;
const POST_EVERY: Duration = Duration::from_millis(2);
/// Clients that send a byte in ten seconds, and those that send archives of nothing but zeros.
const SLOW_CLIENTS: usize = 200;
const BOMBS: usize = 10;
/// What a bomb expands to.
const BOMB_MIB: u64 = 256;

pub(super) fn measure(root: &Path, agent: Option<&Path>) -> Result<Value> {
    let server = install::nats_server(root, "one source takes messages of a JetStream server")?;
    let broker = install::mosquitto("one source takes messages of an MQTT broker")?;
    if agent.is_none() {
        let step = Step::start("building the release binary");
        let mut build = process::cargo(root);
        process::run(build.args(["build", "--release", "--bin", "waystation", "--locked"]))?;
        step.done();
    }
    let folder = root.join("target/bench/sources");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let agent = agent.unwrap_or(&root.join("target/release/waystation")).to_owned();
    let bench = Bench { agent: std::path::absolute(agent)?, server, broker, folder };
    let lines = bench.folder.join("lines.ndjson");
    sensors::generate(&lines, RECORDS)?;
    let mut rates = Vec::new();
    for (name, run) in SOURCES {
        let step = Step::start(format!("measuring {name}"));
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            bench.clear()?;
            all.push(run(&bench).with_context(|| format!("with {name}"))?);
        }
        rates.push((*name, median(all)));
        step.done();
    }
    let own = rates.first().map_or(f64::NAN, |(_, rate)| *rate);
    let rows = rates.iter().map(|(name, rate)| {
        [(*name).to_owned(), format!("{rate:.0}/s"), format!("{:.2}", rate / own)]
    });
    let rows: Vec<_> = rows.collect();
    eprint!("\n{}\n", ui::table([Align::Left, Align::Right, Align::Right], &rows));
    let step = Step::start("measuring a client of the HTTP source beside slow and hostile ones");
    let alone = bench.slowest_post(false)?;
    let beside = bench.slowest_post(true)?;
    step.done();
    let (alone, beside) = (alone * 1e3, beside * 1e3);
    ui::say(&format!(
        "p99 of a post: {alone:.1} ms alone, {beside:.1} ms beside them: {:.2} x (bar 2)",
        beside / alone
    ));
    let rates = rates.iter().map(
        |(name, rate)| json!({"source": name, "records_per_second": rate, "share": rate / own}),
    );
    Ok(json!({
        "records": RECORDS,
        "sources": rates.collect::<Vec<_>>(),
        "post_p99_ms": {"alone": alone, "beside_hostile_clients": beside},
    }))
}

type Measure = fn(&Bench) -> Result<f64>;
/// The first is what the others are compared with.
const SOURCES: &[(&str, Measure)] = &[
    ("generate", Bench::generate),
    ("file", Bench::file),
    ("stdin", Bench::stdin),
    ("http", Bench::http),
    ("tcp", Bench::tcp),
    ("syslog", Bench::syslog),
    ("nats", Bench::nats),
    ("mqtt", Bench::mqtt),
];

struct Bench {
    agent: PathBuf,
    server: PathBuf,
    broker: PathBuf,
    folder: PathBuf,
}

impl Bench {
    /// What the next agent finds: nothing.
    fn clear(&self) -> Result<()> {
        for folder in [self.folder.join("data"), self.folder.join("nats")] {
            if folder.exists() {
                fs::remove_dir_all(&folder)?;
            }
        }
        Ok(())
    }

    /// An agent with one source, whose table is this.
    fn start(&self, source: &str) -> Result<Agent> {
        // Nobody listens there: the lane holds.
        let config = format!(
            "[journal]\nmax_bytes = \"4GiB\"\n\
             [sources.in]\n{source}\n\
             [sinks.out]\ntype = \"http\"\nurl = \"http://127.0.0.1:9/\"\n\
             [pipelines.p]\nsources = [\"in\"]\nsinks = [\"out\"]\n"
        );
        Agent::start(&self.agent, &self.folder, &config, Stdio::null())
    }

    /// Records a second, from `begun` until all are durable.
    fn rate(&self, agent: &mut Agent, begun: Instant) -> Result<f64> {
        while begun.elapsed() < PATIENCE {
            if taken(agent)? >= RECORDS {
                return Ok(RECORDS as f64 / begun.elapsed().as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("{} records after {} s", taken(agent)?, PATIENCE.as_secs())
    }

    fn generate(&self) -> Result<f64> {
        let payload = "{\"seq\":{n},\"ts\":\"2026-01-01T00:00:00Z\",\"site\":\"plant-7\",\"device\":\"press-01\",\
            \"sensor\":\"temp-1\",\"status\":\"ok\",\"temperature_c\":21.53,\"humidity\":41.2,\"pressure_hpa\":1013.2,\
            \"vibration\":0.021,\"battery_v\":3.61,\"fw\":\"2.4.1\"}";
        let source = format!(
            "type = \"generate\"\nrecords = {RECORDS}\nevery = \"0ms\"\npayload = '{payload}'"
        );
        let begun = Instant::now();
        self.rate(&mut self.start(&source)?, begun)
    }

    fn file(&self) -> Result<f64> {
        let source = format!("type = \"file\"\npaths = [\"{}\"]", self.lines().display());
        let begun = Instant::now();
        self.rate(&mut self.start(&source)?, begun)
    }

    fn stdin(&self) -> Result<f64> {
        let mut agent = self.start("type = \"stdin\"")?;
        let mut input = agent.child.stdin.take().context("no standard input")?;
        let begun = Instant::now();
        std::io::copy(&mut File::open(self.lines())?, &mut input)?;
        // The end of it would end the source, and be seen in `status` as that.
        let rate = self.rate(&mut agent, begun);
        drop(input);
        rate
    }

    fn http(&self) -> Result<f64> {
        let port = free_port()?;
        let mut agent = self.start(&format!("type = \"http\"\nlisten = \"127.0.0.1:{port}\""))?;
        listening(&mut agent, port)?;
        let text = fs::read_to_string(self.lines())?;
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let posts: Vec<String> = lines.chunks(POST_LINES).map(|lines| lines.concat()).collect();
        let begun = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let clients = posts.chunks(posts.len().div_ceil(CLIENTS)).map(|posts| {
                scope.spawn(move || -> Result<()> {
                    let mut client = Client::connect(port)?;
                    posts.iter().try_for_each(|post| client.post(post.as_bytes()))
                })
            });
            let clients: Vec<_> = clients.collect();
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client died"))??;
            }
            Ok(())
        })?;
        self.rate(&mut agent, begun)
    }

    fn tcp(&self) -> Result<f64> {
        self.stream("tcp", fs::read(self.lines())?)
    }

    fn syslog(&self) -> Result<f64> {
        let text = fs::read_to_string(self.lines())?;
        let head = "<13>1 2026-01-01T00:00:00Z plant-7 press - - - ";
        let messages = text.lines().map(|line| format!("{head}{line}\n"));
        self.stream("syslog", messages.collect::<String>().into_bytes())
    }

    fn stream(&self, kind: &str, bytes: Vec<u8>) -> Result<f64> {
        let port = free_port()?;
        let protocol = if kind == "syslog" { "\nprotocol = \"tcp\"" } else { "" };
        let mut agent =
            self.start(&format!("type = \"{kind}\"\nlisten = \"127.0.0.1:{port}\"{protocol}"))?;
        let mut stream = listening(&mut agent, port)?;
        let begun = Instant::now();
        stream.write_all(&bytes)?;
        let rate = self.rate(&mut agent, begun);
        drop(stream);
        rate
    }

    /// The stream is full before the agent begins.
    fn nats(&self) -> Result<f64> {
        let folder = self.folder.join("nats");
        fs::create_dir_all(&folder)?;
        let server = nats::Server::start(&self.server, &folder)?;
        server.create_stream("BENCH", &["bench.>"])?;
        let text = fs::read_to_string(self.lines())?;
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port))?;
        let mut writer = BufWriter::new(stream.try_clone()?);
        writer.write_all(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n")?;
        let lines: Vec<&str> = text.lines().collect();
        for (number, lines) in (1..).zip(lines.chunks(UNSTORED_MAX)) {
            for line in lines {
                write!(writer, "PUB bench.in {}\r\n{line}\r\n", line.len())?;
            }
            writer.flush()?;
            let (begun, sent) = (Instant::now(), (number * UNSTORED_MAX as u64).min(RECORDS));
            while server.messages("BENCH")? < sent {
                ensure!(begun.elapsed() < PATIENCE, "the stream does not take the messages");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        drop((writer, stream));
        let port = server.port;
        let source =
            format!("type = \"nats\"\nservers = [\"nats://127.0.0.1:{port}\"]\nstream = \"BENCH\"");
        let begun = Instant::now();
        self.rate(&mut self.start(&source)?, begun)
    }

    /// The broker has everything for the session before the agent that is measured begins.
    fn mqtt(&self) -> Result<f64> {
        let port = free_port()?;
        let broker = Broker::start(&self.broker, &self.folder.join("mqtt"), port)?;
        let source =
            format!("type = \"mqtt\"\nurl = \"mqtt://127.0.0.1:{port}\"\ntopics = [\"bench/#\"]");
        let mut agent = self.start(&source)?;
        let begun = Instant::now();
        // Until it has subscribed, nothing comes.
        while taken(&mut agent)? == 0 {
            ensure!(begun.elapsed() < PATIENCE, "the agent does not subscribe");
            broker.publish(&["{}"])?;
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(agent);
        let text = fs::read_to_string(self.lines())?;
        broker.publish(&text.lines().collect::<Vec<_>>())?;
        let begun = Instant::now();
        self.rate(&mut self.start(&source)?, begun)
    }

    /// The 99th percentile of how long a post takes, in seconds.
    fn slowest_post(&self, with_hostile: bool) -> Result<f64> {
        self.clear()?;
        let port = free_port()?;
        let source = format!("type = \"http\"\nlisten = \"127.0.0.1:{port}\"\npath = \"/\"");
        let mut agent = self.start(&source)?;
        listening(&mut agent, port)?;
        let bomb = if with_hostile { bomb()? } else { Vec::new() };
        let ended = std::sync::atomic::AtomicBool::new(false);
        let mut slow = Vec::new();
        std::thread::scope(|scope| {
            if with_hostile {
                for _ in 0..SLOW_CLIENTS {
                    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
                    client.write_all(
                        b"POST / HTTP/1.1\r\nHost: bench\r\nContent-Length: 1000\r\n\r\n{",
                    )?;
                    slow.push(client);
                }
                for _ in 0..BOMBS {
                    scope.spawn(|| {
                        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                            // It is refused, sooner or later.
                            drop(Client::connect(port).map(|mut client| client.send_gzip(&bomb)));
                        }
                    });
                }
            }
            let waits = waits(port);
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            waits
        })
    }

    fn lines(&self) -> PathBuf {
        self.folder.join("lines.ndjson")
    }
}

fn waits(port: u16) -> Result<f64> {
    let mut client = Client::connect(port)?;
    let mut waits = Vec::with_capacity(POSTS);
    for number in 0..POSTS {
        let begun = Instant::now();
        client.post(format!("{{\"n\":{number}}}\n").as_bytes())?;
        waits.push(begun.elapsed().as_secs_f64());
        std::thread::sleep(POST_EVERY);
    }
    waits.sort_by(f64::total_cmp);
    waits.get(waits.len() * 99 / 100).copied().context("no post")
}

/// How many records are durable.
fn taken(agent: &mut Agent) -> Result<u64> {
    let status = agent.status()?;
    Ok(status.and_then(|status| status["sources"][0]["records"].as_u64()).unwrap_or(0))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A connection to an agent that begins to listen.
fn listening(agent: &mut Agent, port: u16) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        agent.runs()?;
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > PATIENCE => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Zeros, as gzip makes them small.
fn bomb() -> Result<Vec<u8>> {
    let mut gzip = std::process::Command::new("gzip");
    let mut child = gzip.arg("-9").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().context("no standard input")?;
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        (0..BOMB_MIB).try_for_each(|_| input.write_all(&[0; 1 << 20]))
    });
    let mut bytes = Vec::new();
    child.stdout.take().context("no standard output")?.read_to_end(&mut bytes)?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer died"))??;
    ensure!(child.wait()?.success(), "gzip failed");
    Ok(bytes)
}

/// The few words of HTTP that posts need.
struct Client {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> Result<Self> {
        let writer = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        writer.set_nodelay(true)?;
        writer.set_read_timeout(Some(PATIENCE))?;
        let reader = BufReader::new(writer.try_clone()?);
        Ok(Self { writer, reader })
    }

    /// Posts lines, and waits until they are durable.
    fn post(&mut self, body: &[u8]) -> Result<()> {
        let status = self.send(body, "")?;
        ensure!(status == 202, "a post was answered with {status}");
        Ok(())
    }

    fn send_gzip(&mut self, body: &[u8]) -> Result<u16> {
        self.send(body, "Content-Encoding: gzip\r\n")
    }

    fn send(&mut self, body: &[u8], header: &str) -> Result<u16> {
        let mut request = format!(
            "POST / HTTP/1.1\r\nHost: bench\r\nContent-Type: application/x-ndjson\r\n{header}Content-Length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.writer.write_all(&request)?;
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            ensure!(
                std::io::BufRead::read_line(&mut self.reader, &mut line)? > 0,
                "the agent closed the connection"
            );
            let line = line.trim_end().to_ascii_lowercase();
            if line.starts_with("http/") {
                let word = line.split(' ').nth(1).and_then(|word| word.parse().ok());
                status = word.context("no status")?;
            } else if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            } else if line.is_empty() {
                break;
            }
        }
        let mut rest = vec![0; length];
        self.reader.read_exact(&mut rest)?;
        Ok(status)
    }
}
