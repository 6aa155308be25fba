//! The demo's input: readings of made-up sensors, the same ones on every machine.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

/// The seed of the numbers; a fixed one, so that two people see the same file.
const SEED: u64 = 0x5741_5953_5441_5449;
/// 2026-01-01T00:00:00Z, the time of the record before the first.
const BEGIN_UNIX_SECONDS: u64 = 1_767_225_600;

/// What a generated file holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Generated {
    /// All records; `seq` counts them from 1.
    pub(crate) records: u64,
    /// The `seq` of those with `"status":"bad"`, ascending: one at a random place in each ten.
    pub(crate) bad: Vec<u64>,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

/// Writes `records` lines to `path`.
pub(crate) fn generate(path: &Path, records: u64) -> Result<Generated> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::with_capacity(256 * 1024, File::create(path).with_context(failed)?);
    let generated = write(&mut file, records).with_context(failed)?;
    file.flush().with_context(failed)?;
    Ok(generated)
}

fn write(output: &mut impl Write, records: u64) -> std::io::Result<Generated> {
    let mut numbers = Numbers(SEED);
    let mut generated = Generated { records, bad: Vec::new(), bytes: 0 };
    let mut bad_place = 0;
    let mut line = Vec::with_capacity(256);
    for seq in 1..=records {
        let place = (seq - 1) % 10;
        if place == 0 {
            bad_place = numbers.below(10);
        }
        let is_bad = place == bad_place;
        if is_bad {
            generated.bad.push(seq);
        }
        line.clear();
        write_line(&mut line, seq, is_bad, &mut numbers)?;
        output.write_all(&line)?;
        generated.bytes += line.len() as u64;
    }
    Ok(generated)
}

fn write_line(
    line: &mut Vec<u8>,
    seq: u64,
    is_bad: bool,
    numbers: &mut Numbers,
) -> std::io::Result<()> {
    let time = rfc3339(BEGIN_UNIX_SECONDS + seq);
    let device = 1 + numbers.below(5);
    let sensor = 1 + numbers.below(3);
    let status = if is_bad { "bad" } else { "ok" };
    let temperature = 1_800 + numbers.below(900);
    let humidity = 350 + numbers.below(300);
    let pressure = 10_000 + numbers.below(300);
    let vibration = numbers.below(250);
    let battery = 330 + numbers.below(60);
    writeln!(
        line,
        "{{\"seq\":{seq},\"ts\":\"{time}\",\"site\":\"plant-7\",\"device\":\"press-{device:02}\",\
         \"sensor\":\"temp-{sensor}\",\"status\":\"{status}\",\"temperature_c\":{},\"humidity\":{},\
         \"pressure_hpa\":{},\"vibration_mm_s\":{},\"battery_v\":{},\"fw\":\"2.4.1\"}}",
        hundredths(temperature),
        tenths(humidity),
        tenths(pressure),
        hundredths(vibration),
        hundredths(battery),
    )
}

fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// `2026-01-01T00:00:17Z`.
fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Days are counted from 0000-03-01, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// SplitMix64: numbers good enough for readings of sensors, from a seed.
struct Numbers(u64);

impl Numbers {
    /// A number from 0 to `end` - 1.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)) % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_bad_and_two_runs_are_equal() {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        let generated = write(&mut one, 1_000).unwrap();
        assert_eq!(generated, write(&mut two, 1_000).unwrap());
        assert_eq!(one, two);
        assert_eq!((generated.bad.len(), generated.bytes), (100, one.len() as u64));
    }

    #[test]
    fn each_line_is_an_object_with_its_seq_and_about_215_bytes() {
        let mut text = Vec::new();
        let generated = write(&mut text, 1_000).unwrap();
        let text = String::from_utf8(text).unwrap();
        for (seq, line) in (1..).zip(text.lines()) {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["seq"], seq);
            assert_eq!(value["status"] == "bad", generated.bad.binary_search(&seq).is_ok());
        }
        let mean = text.len() / 1_000;
        assert!((200..=230).contains(&mean), "{mean} bytes a line");
    }

    #[test]
    fn times_follow_the_calendar() {
        let times = [0, 951_782_400, BEGIN_UNIX_SECONDS + 17, 1_772_323_199].map(rfc3339);
        let expected = [
            "1970-01-01T00:00:00Z",
            "2000-02-29T00:00:00Z",
            "2026-01-01T00:00:17Z",
            "2026-02-28T23:59:59Z",
        ];
        assert_eq!(times, expected);
    }
}
