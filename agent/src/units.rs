//! Sizes and durations as people write them: `"64MiB"`, `"250ms"`.
//!
//! Numbers in the config always carry their unit, so that nobody has to look up whether a bare `5` meant seconds. Units are
//! case-sensitive; `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024, `kB`, `MB`, `GB`, `TB` powers of 1000.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("MB", 1000 * 1000),
    ("GB", 1000 * 1000 * 1000),
    ("TB", 1000 * 1000 * 1000 * 1000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

const DURATION_UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1000),
    ("ms", 1000 * 1000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("d", 86_400 * 1_000_000_000),
];

/// Why a text is no size or duration. The message says what would be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnitError(String);

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// The number as a `usize`, as large as that can be.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(
            text,
            SIZE_UNITS,
            "a size such as \"64MiB\" (B, kB, MB, GB, TB, KiB, MiB, GiB or TiB)",
        )
        .map(Self)
    }
}

/// Prints the largest binary unit that divides the number, so that parsing it again gives the same number.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, factor) in
            [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
        {
            if self.0 >= factor && self.0.is_multiple_of(factor) {
                return write!(f, "{}{unit}", self.0 / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

/// Parses a duration such as `"250ms"` or `"2m"`; one number and one unit, up to 292 years.
///
/// # Errors
/// Says what a duration looks like.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let example = "a duration such as \"250ms\" (ns, us, ms, s, m, h or d)";
    let nanoseconds = parse(text, DURATION_UNITS, example)?;
    if i64::try_from(nanoseconds).is_err() {
        return Err(UnitError(format!("\"{text}\" is longer than 292 years")));
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// Prints a duration with the largest unit that divides it, so that parsing it again gives the same duration.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    if nanoseconds == 0 {
        return "0ms".to_owned();
    }
    let (unit, factor) = DURATION_UNITS
        .iter()
        .rev()
        .find(|(_, factor)| nanoseconds.is_multiple_of(u128::from(*factor)))
        .unwrap_or(&DURATION_UNITS[0]);
    format!("{}{unit}", nanoseconds / u128::from(*factor))
}

/// A size for people: three significant digits and a binary unit.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    #[expect(clippy::cast_precision_loss, reason = "for display, with three digits")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let name = NAMES[unit];
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {name}")
    } else {
        format!("{value:.1} {name}")
    }
}

/// A duration for people: its two largest units.
#[must_use]
pub fn human_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds}.{} s", duration.subsec_millis() / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

fn parse(text: &str, units: &[(&str, u64)], example: &str) -> Result<u64, UnitError> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start_matches(' ');
    if number.is_empty() {
        return Err(UnitError(format!("\"{text}\" is not {example}")));
    }
    if unit.is_empty() {
        return Err(UnitError(format!("\"{text}\" has no unit; write {example}")));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(UnitError(format!("\"{unit}\" is no unit here; write {example}")));
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(*factor))
        .ok_or_else(|| UnitError(format!("\"{text}\" is too large")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_survive_printing_and_parsing() {
        for bytes in [0, 1, 1000, 1024, 1536, 64 << 20, 3 << 40, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
        for nanoseconds in [0, 1, 1500, 250_000_000, 90_000_000_000, 86_400_000_000_000] {
            let duration = Duration::from_nanos(nanoseconds);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
    }

    #[test]
    fn a_bare_number_and_an_unknown_unit_are_explained() {
        assert!("64".parse::<ByteSize>().unwrap_err().to_string().contains("has no unit"));
        assert!(
            "64 mib".parse::<ByteSize>().unwrap_err().to_string().contains("\"mib\" is no unit")
        );
        assert!(parse_duration("1.5s").unwrap_err().to_string().contains("is no unit"));
        assert!(parse_duration("-1s").unwrap_err().to_string().contains("is not a duration"));
        assert!(parse_duration("110000d").unwrap_err().to_string().contains("292 years"));
        assert!(
            "99999999999TiB".parse::<ByteSize>().unwrap_err().to_string().contains("too large")
        );
    }
}
