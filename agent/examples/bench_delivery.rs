//! Measures deliveries to a real JetStream server and to an HTTP endpoint: with and without one refused record in a hundred,
//! and over a slow link. `cargo xtask bench delivery`.
//!
//! Each run is a process of its own; runs that are compared take turns, so that a noisy machine disturbs both. Every figure is
//! the median of the rounds. The input, the server and the endpoint are on this machine too. JSON on standard output, a table
//! on standard error.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a measuring program: it stops at the first failure, prints, and reads the clock itself"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use axum::body::Bytes;
use axum::http::StatusCode;
use waystation::clock::SystemClock;
use waystation::supervisor::{LoadConfig, StartOptions, Supervisor};
use waystation::tasks::Shutdown;

#[path = "../tests/it/support/proxy.rs"]
mod proxy;

use proxy::Proxy;

const RECORDS_DEFAULT: u64 = 100_000;
const ROUNDS: usize = 3;
/// What the stream takes; a poisoned record is larger, and a good one smaller.
const MESSAGE_BYTES_MAX: i32 = 700;
/// What the endpoint refuses a body for.
const POISON: &[u8] = b"poison";
/// The slow link, in each direction.
const DELAY: Duration = Duration::from_millis(20);
/// One in so many records goes over the slow link.
const SLOW_SHARE: u64 = 5;

fn main() {
    waystation::memory::bound_arenas();
    let argument = std::env::args().nth(1);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if argument.as_deref() == Some("--run") {
        let config = std::env::args().nth(2).unwrap();
        return println!("{}", runtime.block_on(run(Path::new(&config))));
    }
    let records = argument.and_then(|text| text.parse().ok()).unwrap_or(RECORDS_DEFAULT);
    println!("{}", runtime.block_on(compare(records)));
}

/// The destinations, and the folder of it all.
struct Place {
    folder: PathBuf,
    server: Server,
    slow: Proxy,
    endpoint: String,
    requests: Arc<AtomicU64>,
}

/// A sink, and how it fares with poison.
struct Contest {
    name: &'static str,
    sink: fn(&Place) -> String,
}

const CONTESTS: [Contest; 3] = [
    Contest { name: "jetstream", sink: |place| jetstream_sink(&place.server.url(), 1000) },
    Contest { name: "http, one record a request", sink: |place| http_sink(&place.endpoint, 1) },
    Contest { name: "http, batches of 1000, cut", sink: |place| http_sink(&place.endpoint, 1000) },
];

/// Batches that go over the slow link.
const SLOW_BATCHES: [u64; 3] = [100, 1000, 10_000];

async fn compare(records: u64) -> serde_json::Value {
    let folder = std::path::absolute("target/bench/delivery").unwrap();
    std::fs::create_dir_all(&folder).unwrap();
    let server = Server::start(&folder.join("server"));
    let slow = Proxy::slow(server.port, DELAY);
    let requests = Arc::<AtomicU64>::default();
    let endpoint = serve(Arc::clone(&requests)).await;
    let place = Place { folder, server, slow, endpoint, requests };
    let mut all = serde_json::Map::new();
    all.insert("records".to_owned(), records.into());
    eprintln!(
        "{:<28} {:>12} {:>12} {:>7} {:>9} {:>16}   bar: 80 % where records are named or alone",
        "1 % refused", "clean rec/s", "good rec/s", "ratio", "letters", "requests/letter"
    );
    for contest in CONTESTS {
        all.insert(contest.name.to_owned(), poison(&place, &contest, records).await);
    }
    let slow_records = (records / SLOW_SHARE).max(1);
    eprintln!("\n{:<28} {:>12}", "jetstream, 20 ms each way", "records/s");
    for batch in SLOW_BATCHES {
        let sink = jetstream_sink(&place.slow.url(), batch);
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(round(&place, &sink, slow_records, false).await);
        }
        let rate = median(&rounds, "good_per_second");
        eprintln!("{:<28} {rate:>12.0}", format!("batches of {batch}"));
        all.insert(format!("slow link, batches of {batch}"), rate.into());
    }
    serde_json::Value::Object(all)
}

async fn poison(place: &Place, contest: &Contest, records: u64) -> serde_json::Value {
    let sink = (contest.sink)(place);
    let (mut clean, mut poisoned) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        clean.push(round(place, &sink, records, false).await);
        poisoned.push(round(place, &sink, records, true).await);
    }
    let letters = (0..records).filter(|n| is_poison(*n)).count() as u64;
    assert!(poisoned.iter().all(|round| round["letters"] == letters), "{poisoned:?}");
    let (before, with) = (median(&clean, "good_per_second"), median(&poisoned, "good_per_second"));
    let requests = median(&poisoned, "requests") / letters as f64;
    let ratio = with / before;
    eprintln!(
        "{:<28} {before:>12.0} {with:>12.0} {ratio:>7.2} {letters:>9} {requests:>16.1}",
        contest.name
    );
    serde_json::json!({
        "clean_per_second": before, "good_per_second": with, "ratio": ratio, "letters": letters,
        "requests_per_letter": requests, "clean": clean, "poisoned": poisoned,
    })
}

fn median(rounds: &[serde_json::Value], key: &str) -> f64 {
    let mut values: Vec<_> = rounds.iter().map(|round| round[key].as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Delivers all records with an empty journal into an empty stream.
async fn round(place: &Place, sink: &str, records: u64, is_poisoned: bool) -> serde_json::Value {
    let input = place.folder.join("input.ndjson");
    std::fs::write(&input, lines(records, is_poisoned)).unwrap();
    place.server.empty_stream().await;
    place.requests.store(0, Ordering::SeqCst);
    let data = place.folder.join("data");
    drop(std::fs::remove_dir_all(&data));
    let config = format!(
        r#"
        [agent]
        id = "bench"
        data_dir = "{data}"
        [sources.in]
        type = "file"
        paths = ["{input}"]
        {sink}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
        data = data.display(),
        input = input.display(),
    );
    let path = place.folder.join("waystation.toml");
    std::fs::write(&path, config).unwrap();
    let output =
        Command::new(std::env::current_exe().unwrap()).arg("--run").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (seconds, good) =
        (figures["seconds"].as_f64().unwrap(), figures["delivered"].as_f64().unwrap());
    figures["good_per_second"] = (good / seconds).into();
    figures["requests"] = place.requests.load(Ordering::SeqCst).into();
    figures
}

fn is_poison(number: u64) -> bool {
    number % 100 == 50
}

fn lines(records: u64, is_poisoned: bool) -> String {
    let mut text = String::new();
    for seq in 0..records {
        let status =
            if is_poisoned && is_poison(seq) { "poison ".repeat(100) } else { "ok".to_owned() };
        writeln!(
            text,
            r#"{{"seq":{seq},"ts":"2026-01-01T00:00:17Z","site":"plant-7","device":"press-{:02}","sensor":"temp-2","status":"{status}","temperature_c":{:.2},"humidity":44.1,"pressure_hpa":1013.2,"vibration_mm_s":0.82,"battery_v":3.61,"fw":"2.4.1"}}"#,
            seq % 40,
            (seq % 4000) as f64 / 100.0,
        )
        .unwrap();
    }
    text
}

fn jetstream_sink(url: &str, batch: u64) -> String {
    format!(
        "[sinks.out]\ntype = \"nats\"\nservers = [\"{url}\"]\nstream = \"EDGE\"\nsubject = \"edge.{{subject}}\"\n\
         batch = {{ records_max = {batch}, bytes_max = \"8MiB\" }}"
    )
}

fn http_sink(url: &str, batch: u64) -> String {
    format!("[sinks.out]\ntype = \"http\"\nurl = \"{url}\"\nbatch = {{ records_max = {batch} }}")
}

/// An endpoint that refuses what is poisoned, and counts.
async fn serve(requests: Arc<AtomicU64>) -> String {
    let take = move |body: Bytes| async move {
        requests.fetch_add(1, Ordering::SeqCst);
        match memchr::memmem::find(&body, POISON) {
            Some(_) => StatusCode::UNPROCESSABLE_ENTITY,
            None => StatusCode::OK,
        }
    };
    let router = axum::Router::new().route("/in", axum::routing::post(take));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://127.0.0.1:{port}/in")
}

/// A server with JetStream; ends with this.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(folder: &Path) -> Self {
        drop(std::fs::remove_dir_all(folder));
        std::fs::create_dir_all(folder).unwrap();
        let child = Command::new(".tools/nats-server")
            .args(["-a", "127.0.0.1", "-js", "-p", "-1", "--ports_file_dir"])
            .arg(folder)
            .arg("-sd")
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let file = folder.join(format!("nats-server_{}.ports", child.id()));
        let begun = Instant::now();
        let port = loop {
            if let Some(port) = std::fs::read_to_string(&file).ok().and_then(|text| port_in(&text))
            {
                break port;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "nats-server does not start");
            std::thread::sleep(Duration::from_millis(20));
        };
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    async fn empty_stream(&self) {
        let context = jetstream::new(async_nats::connect(self.url()).await.unwrap());
        // There is none before the first round.
        drop(context.delete_stream("EDGE").await);
        let config = jetstream::stream::Config {
            name: "EDGE".to_owned(),
            subjects: vec!["edge.>".to_owned()],
            max_message_size: MESSAGE_BYTES_MAX,
            ..Default::default()
        };
        context.create_stream(config).await.unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The port of the first client URL in a ports file.
fn port_in(text: &str) -> Option<u16> {
    let ports: serde_json::Value = serde_json::from_str(text).ok()?;
    ports["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
}

/// The measured process: what `waystation run --once` does.
async fn run(config: &Path) -> serde_json::Value {
    let config = config.to_owned();
    let load = move || {
        waystation::config::load(&config, &waystation::config::process_environment, &|_| {
            Ok(Vec::new())
        })
    };
    let options = StartOptions {
        loaded: load().unwrap(),
        fallback: None,
        load: LoadConfig(Arc::new(load)),
        logging: None,
        once: true,
        compiler: std::env::current_exe().unwrap(),
        clock: Arc::new(SystemClock),
    };
    let supervisor = Supervisor::start(options).await.unwrap();
    let begun = Instant::now();
    let end = supervisor.run(Some(Duration::from_secs(600)), &Shutdown::new()).await;
    assert!(end.undone.is_empty(), "{:?}", end.undone);
    let lanes = &end.status.lanes;
    serde_json::json!({
        "seconds": begun.elapsed().as_secs_f64(),
        "delivered": lanes.iter().map(|lane| lane.delivered).sum::<u64>(),
        "letters": lanes.iter().map(|lane| lane.dead_lettered).sum::<u64>(),
        "cuts": lanes.iter().map(|lane| lane.batches_cut).sum::<u64>(),
    })
}
