//! A file of sensor readings as the demo makes it, and what the plugin `clean` is to make of it.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

/// Writes `count` readings with seqs from 0; every tenth has `"status":"bad"`.
pub(crate) fn write(path: &Path, count: u64) {
    std::fs::write(path, lines(0..count)).unwrap();
}

/// Puts readings with these seqs behind those that the file has.
pub(crate) fn append(path: &Path, seqs: Range<u64>) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(lines(seqs).as_bytes()).unwrap();
}

fn lines(seqs: Range<u64>) -> String {
    let mut text = String::new();
    for seq in seqs {
        line(&mut text, seq);
    }
    text
}

pub(crate) fn line(text: &mut String, seq: u64) {
    let status = if is_bad(seq) { "bad" } else { "ok" };
    let (device, celsius) = (seq % 7, 15.0 + (seq * 37 % 1000) as f64 / 100.0);
    writeln!(
        text,
        r#"{{"seq":{seq},"ts":"2026-01-01T00:00:00Z","site":"plant-7","device":"press-{device:02}","sensor":"temp-2","status":"{status}","temperature_c":{celsius},"humidity":44.1,"pressure_hpa":1013.2,"vibration_mm_s":0.82,"battery_v":3.61,"fw":"2.4.1"}}"#
    )
    .unwrap();
}

pub(crate) fn is_bad(seq: u64) -> bool {
    seq % 10 == 3
}

/// The seqs that `clean` keeps, in order.
pub(crate) fn kept(count: u64) -> Vec<u64> {
    (0..count).filter(|seq| !is_bad(*seq)).collect()
}

/// The seq of a record that `clean` has made, which must be one.
pub(crate) fn seq_of(record: &[u8]) -> u64 {
    let value: serde_json::Value = serde_json::from_slice(record).unwrap();
    assert!(value["temperature_f"].is_number() && value["cleaned_by"].is_string(), "{value}");
    assert_ne!(value["status"], "bad");
    value["seq"].as_u64().unwrap()
}
