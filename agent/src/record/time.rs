//! Times as text: RFC 3339 in UTC, always with nine digits, so that equal times are equal texts.

use jiff::fmt::temporal::DateTimePrinter;

use crate::clock::Timestamp;

const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(9));

/// Appends a time such as `2026-01-02T03:04:05.000000006Z` to a `String` or a `Vec<u8>`.
pub fn push_rfc3339(time: Timestamp, out: impl jiff::fmt::Write) {
    PRINTER.print_timestamp(&to_jiff(time), out).expect("strings and vectors take all");
}

/// The time that a text names, with `Z` or an offset; `None` when it is none that can be kept.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    let time: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(time.as_nanosecond()).ok().map(Timestamp)
}

/// The UTC day and hour, `2026-01-02` and `03`.
#[must_use]
pub fn day_and_hour(time: Timestamp) -> (String, String) {
    let time = jiff::tz::Offset::UTC.to_datetime(to_jiff(time));
    (
        format!("{:04}-{:02}-{:02}", time.year(), time.month(), time.day()),
        format!("{:02}", time.hour()),
    )
}

fn to_jiff(time: Timestamp) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(time.0))
        .expect("every 64-bit number of nanoseconds is a year between 1677 and 2262")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_utc_with_nine_digits() {
        let mut text = String::new();
        push_rfc3339(Timestamp(1_500_000_000_000_000_007), &mut text);
        assert_eq!(text, "2017-07-14T02:40:00.000000007Z");
        for extreme in [i64::MIN, i64::MAX, 0, -1] {
            push_rfc3339(Timestamp(extreme), &mut Vec::new());
        }
        let (day, hour) = day_and_hour(Timestamp(1_500_000_000_000_000_007));
        assert_eq!((day.as_str(), hour.as_str()), ("2017-07-14", "02"));
    }
}
