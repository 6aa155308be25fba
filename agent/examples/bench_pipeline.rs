//! Measures the whole job: a file of readings → journal → `clean` → files. `cargo xtask bench pipeline`.
//!
//! Each variant runs in a process of its own, so that its CPU time, peak memory and written bytes are its own. The plugin is
//! compiled before. JSON on standard output, a table on standard error.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    clippy::exit,
    reason = "a measuring program: it stops at the first failure, prints, and reads the clock itself"
)]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystation::clock::SystemClock;
use waystation::supervisor::{LoadConfig, StartOptions, Supervisor};
use waystation::tasks::Shutdown;

const RECORDS_DEFAULT: u64 = 1_000_000;
const ROUNDS: usize = 3;

fn main() {
    waystation::memory::bound_arenas();
    let arguments: Vec<_> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("plugin") => compile(&arguments),
        Some("--run") => run(Path::new(&arguments[2])),
        count => compare(count.and_then(|text| text.parse().ok()).unwrap_or(RECORDS_DEFAULT)),
    }
}

/// The agent compiles plugins in a child of its own program, which is this one here.
fn compile(arguments: &[String]) {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        plugin: waystation::cli::plugin::Args,
    }
    let line = <Line as clap::Parser>::parse_from(&arguments[1..]);
    if let Err(error) = waystation::cli::plugin::run(&line.plugin) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

fn compare(records: u64) {
    let directory = Path::new("target/bench/pipeline");
    std::fs::create_dir_all(directory).unwrap();
    let input = directory.join("input.ndjson");
    let input_bytes = write_input(&input, records);
    let variants = [("plain", ""), ("zstd", "compression = { codec = \"zstd\", level = 1 }")];
    let mut all = serde_json::Map::new();
    all.insert("records".to_owned(), records.into());
    all.insert("input_bytes".to_owned(), input_bytes.into());
    eprintln!(
        "{:<8} {:>10} {:>14} {:>10} {:>16}   bars: 6 CPU-s/M, 150 000/s, 40 MiB, 1.9x (zstd 1.1x)",
        "output", "records/s", "CPU-s/million", "peak MiB", "written/input"
    );
    for (name, compression) in variants {
        let mut rounds: Vec<_> = (0..ROUNDS)
            .map(|_| round(directory, &input, compression, records, input_bytes))
            .collect();
        rounds.sort_by(|a, b| {
            a["records_per_second"]
                .as_f64()
                .unwrap()
                .total_cmp(&b["records_per_second"].as_f64().unwrap())
        });
        let middle = rounds.swap_remove(ROUNDS / 2);
        let figure = |key: &str| middle[key].as_f64().unwrap();
        eprintln!(
            "{name:<8} {:>10.0} {:>14.2} {:>10.1} {:>16.2}",
            figure("records_per_second"),
            figure("cpu_seconds_per_million"),
            figure("peak_mib"),
            figure("written_per_input_byte")
        );
        all.insert(name.to_owned(), middle);
    }
    println!("{}", serde_json::Value::Object(all));
}

fn round(
    directory: &Path,
    input: &Path,
    compression: &str,
    records: u64,
    input_bytes: u64,
) -> serde_json::Value {
    let work = directory.join("work");
    drop(std::fs::remove_dir_all(work.join("out")));
    // The compiled plugin stays; the journal begins anew.
    for name in ["journal.db", "journal.db-wal", "journal.db-shm", "high-water.json"] {
        drop(std::fs::remove_file(work.join("data").join(name)));
    }
    drop(std::fs::remove_dir_all(work.join("data/compiled")));
    std::fs::create_dir_all(&work).unwrap();
    let absolute = |path: &Path| std::path::absolute(path).unwrap().display().to_string();
    let config = format!(
        r#"
        [agent]
        id = "bench"
        data_dir = "data"
        [sources.sensors]
        type = "file"
        paths = ["{input}"]
        [transforms.clean]
        plugin = "{plugin}"
        [sinks.archive]
        type = "file"
        root = "out"
        {compression}
        [pipelines.telemetry]
        sources = ["sensors"]
        transforms = ["clean"]
        sinks = ["archive"]
        "#,
        input = absolute(input),
        plugin = absolute(Path::new("target/plugins/clean.wasm")),
    );
    let path = work.join("waystation.toml");
    std::fs::write(&path, config).unwrap();
    let output =
        Command::new(std::env::current_exe().unwrap()).arg("--run").arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (seconds, cpu) =
        (figures["seconds"].as_f64().unwrap(), figures["cpu_seconds"].as_f64().unwrap());
    figures["records_per_second"] = (records as f64 / seconds).into();
    figures["cpu_seconds_per_million"] = (cpu * 1e6 / records as f64).into();
    figures["written_per_input_byte"] =
        (figures["written_bytes"].as_f64().unwrap() / input_bytes as f64).into();
    figures
}

fn write_input(path: &PathBuf, records: u64) -> u64 {
    let mut random = fastrand::Rng::with_seed(7);
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    for seq in 0..records {
        writeln!(
            file,
            r#"{{"seq":{seq},"ts":"2026-01-01T00:00:17Z","site":"plant-7","device":"press-{:02}","sensor":"temp-2","status":"{}","temperature_c":{:.2},"humidity":{:.1},"pressure_hpa":1013.2,"vibration_mm_s":0.82,"battery_v":3.61,"fw":"2.4.1"}}"#,
            random.u32(..40),
            if random.u8(..10) == 0 { "bad" } else { "ok" },
            random.f64() * 40.0,
            random.f64() * 100.0
        )
        .unwrap();
    }
    file.into_inner().unwrap().sync_all().unwrap();
    std::fs::metadata(path).unwrap().len()
}

/// The measured process: what `waystation run --once` does.
fn run(config: &Path) {
    let config = config.to_owned();
    let load = move || {
        waystation::config::load(&config, &waystation::config::process_environment, &|_| {
            Ok(Vec::new())
        })
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let figures = runtime.block_on(async {
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
        let seconds = begun.elapsed().as_secs_f64();
        serde_json::json!({
            "seconds": seconds,
            "cpu_seconds": cpu_seconds(),
            "peak_mib": peak_mib(),
            "written_bytes": written_bytes(),
            "delivered": end.status.lanes.iter().map(|lane| lane.delivered).sum::<u64>(),
        })
    });
    println!("{figures}");
}

/// User and system time of this process, without its children.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn peak_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

fn written_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: ")).unwrap();
    line.parse().unwrap()
}
