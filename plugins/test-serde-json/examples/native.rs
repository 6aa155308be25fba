//! What a transform costs without WebAssembly: `native NAME LINES.ndjson SECONDS` prints nanoseconds of CPU time a record.

use std::time::Duration;

use clean::Clean;
use test_serde_json::Plain;
use waystation_plugin::{Header, Place, Record, Transform};

/// As many as the agent hands over in the batch that is compared.
const BATCH: usize = 100;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("clean or test-serde-json")?;
    let lines = std::fs::read_to_string(arguments.next().ok_or("a file of lines")?)?;
    let time = Duration::from_secs_f64(arguments.next().ok_or("seconds")?.parse()?);
    let records: Vec<_> = lines.lines().zip(1..).map(|(line, seq)| record(seq, line)).collect();
    let nanoseconds = match name.as_str() {
        "clean" => measure::<Clean>(&records, time)?,
        "test-serde-json" => measure::<Plain>(&records, time)?,
        _ => return Err(format!("there is no {name}").into()),
    };
    println!("{nanoseconds}");
    Ok(())
}

fn measure<T: Transform>(
    records: &[Record],
    time: Duration,
) -> Result<f64, Box<dyn std::error::Error>> {
    let name = || "bench".to_owned();
    let place = Place { agent: name(), source: name(), pipeline: name(), sink: name() };
    let mut transform = T::new(waystation_plugin::json::parse(b"{}")?, place)?;
    let (mut spent, mut count) = (Duration::ZERO, 0_u32);
    while spent < time {
        for batch in records.chunks(BATCH) {
            // The copies are not part of it: in the agent the host makes them.
            let batch = batch.to_vec();
            let begun = cpu_time()?;
            let outcomes = transform.process(0, batch).map_err(|error| format!("{error:?}"))?;
            spent += cpu_time()? - begun;
            count += u32::try_from(std::hint::black_box(outcomes).len())?;
        }
    }
    Ok(spent.as_secs_f64() * 1e9 / f64::from(count))
}

fn record(seq: u64, line: &str) -> Record {
    let header =
        |name: &str, value: &str| Header { name: name.to_owned(), value: value.to_owned() };
    Record {
        seq,
        time: 0,
        subject: "bench".to_owned(),
        headers: vec![header("site", "plant-7"), header("device", "press-07")],
        payload: line.as_bytes().to_vec(),
    }
}

/// Of this thread.
fn cpu_time() -> std::io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0);
    Ok(Duration::from_nanos(nanos))
}
