//! When a record happened, and when it was taken: `time_from` and `stamp`, which every source has.
//!
//! With `time_from` a record's time is read from its payload or a header:
//!
//! - a text by RFC 3339, with `Z` or an offset; a time without either is none;
//! - a number, also as a text: of seconds since 1970 below 10^11, of milliseconds below 10^14, of microseconds below 10^17, else
//!   of nanoseconds, each also with a fraction. What counts is the size alone: milliseconds before 1973 are taken for seconds.
//!
//! Where there is no such time the record keeps the one that it has without the key (when it was taken, unless its source knows
//! better), which is counted, and said at most once in ten minutes. Nothing is refused for its time.
//!
//! With `stamp` a record says how far times are to be trusted: `waystation-accepted`, when the agent took it by the host's clock, and
//! `waystation-clock`: `synced`, `unsynced` or `unknown`, then the host's boot id and the seconds since that boot, by which the
//! time of an unsynced record can be told once the clock is right: `unsynced boot=0f9a… up=12.345678901`.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::SourceCounters;
use super::config::{TimeConfig, TimeFrom};
use crate::clock::{Monotonic, SharedClock, Timestamp};
use crate::limits::TIME_WARNINGS_EVERY_MS;
use crate::record::time::{parse_rfc3339, push_rfc3339};
use crate::record::{Headers, HeadersBuffer};

/// What both headers take, at most.
pub(super) const STAMP_BYTES_MAX: usize = 192;

/// The rules of one source. Shared by everything that makes records for it.
#[derive(Debug)]
pub struct Times {
    config: TimeConfig,
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    /// When it was said last that there is no time, in nanoseconds since the boot; 0 for never.
    told: AtomicU64,
}

impl Times {
    /// Those of a config; `None` when it says nothing, so that nothing is done for each record.
    pub(super) fn of(
        config: &TimeConfig,
        clock: &SharedClock,
        counters: &Arc<SourceCounters>,
    ) -> Option<Arc<Self>> {
        let says = *config != TimeConfig::default();
        says.then(|| Arc::new(Self::new(config.clone(), Arc::clone(clock), Arc::clone(counters))))
    }

    fn new(config: TimeConfig, clock: SharedClock, counters: Arc<SourceCounters>) -> Self {
        Self { config, clock, counters, told: AtomicU64::new(0) }
    }

    /// Bytes that the headers of a record get more.
    pub(super) fn stamp_bytes(&self) -> usize {
        if self.config.stamp { STAMP_BYTES_MAX } else { 0 }
    }

    /// The time of a record that has `otherwise` without `time_from`.
    pub(super) fn time_of(
        &self,
        otherwise: Timestamp,
        headers: Headers<'_>,
        payload: &[u8],
    ) -> Timestamp {
        let found = match &self.config.time_from {
            None => return otherwise,
            Some(TimeFrom::Header(name)) => headers.get(name).and_then(parse),
            Some(TimeFrom::Field(path)) => field(payload, path),
        };
        found.unwrap_or_else(|| {
            self.counters.times_missing.fetch_add(1, Ordering::Relaxed);
            self.tell();
            otherwise
        })
    }

    fn tell(&self) {
        let now = self.clock.monotonic();
        let told = self.told.load(Ordering::Relaxed);
        let every = Duration::from_millis(TIME_WARNINGS_EVERY_MS);
        if told == 0 || now.since(Monotonic(told)) >= every {
            self.told.store(now.0.max(1), Ordering::Relaxed);
            let count = self.counters.times_missing.load(Ordering::Relaxed);
            tracing::warn!(
                count,
                "Records have no time where `time_from` says, they keep that of their arrival"
            );
        }
    }

    /// Adds the two headers, if they are asked for.
    pub(super) fn stamp(&self, headers: &mut HeadersBuffer) {
        if !self.config.stamp {
            return;
        }
        let now = self.clock.now();
        let mut accepted = String::with_capacity(30);
        push_rfc3339(now, &mut accepted);
        headers.push("waystation-accepted", &accepted);
        let up = self.clock.monotonic().0;
        let (seconds, rest) = (up / 1_000_000_000, up % 1_000_000_000);
        let (quality, boot) = (self.clock.quality().word(), &*BOOT);
        headers.push("waystation-clock", &format!("{quality} boot={boot} up={seconds}.{rest:09}"));
    }
}

/// The boot id of the host, as the kernel writes it; `unknown` where it has none.
static BOOT: LazyLock<String> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = text.trim();
    let is_one = id.len() == 36 && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    if is_one { id.to_owned() } else { "unknown".to_owned() }
});

/// A time as a text, or as a number in a text.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    parse_number(text).or_else(|| parse_rfc3339(text))
}

/// A number of units that its size tells, with a fraction of any length.
fn parse_number(text: &str) -> Option<Timestamp> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || !is_digits(whole) || !is_digits(fraction) {
        return scientific(text);
    }
    let whole: i128 = whole.parse().ok()?;
    // How many nanoseconds one of it has, as a power of ten.
    let power = match whole {
        ..=99_999_999_999 => 9,
        100_000_000_000..=99_999_999_999_999 => 6,
        100_000_000_000_000..=99_999_999_999_999_999 => 3,
        _ => 0,
    };
    let mut nanoseconds = whole;
    for place in 0..power {
        let digit = fraction.as_bytes().get(place).map_or(0, |byte| byte - b'0');
        nanoseconds = nanoseconds * 10 + i128::from(digit);
    }
    i64::try_from(if is_negative { -nanoseconds } else { nanoseconds }).ok().map(Timestamp)
}

/// `1.7e9`, as some encoders write large numbers.
fn scientific(text: &str) -> Option<Timestamp> {
    let (mantissa, exponent) = text.split_once(['e', 'E'])?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let places = i32::try_from(fraction.len()).ok()?;
    if !(0..=19).contains(&exponent) || fraction.contains(['e', 'E', '-', '+']) {
        return None;
    }
    // The point is moved, so that nothing is rounded.
    let digits = format!("{whole}{fraction}");
    let moved = if exponent >= places {
        format!("{digits}{}", "0".repeat(usize::try_from(exponent - places).ok()?))
    } else {
        let at = digits.len().checked_sub(usize::try_from(places - exponent).ok()?)?;
        let (whole, fraction) = digits.split_at_checked(at)?;
        format!("{whole}.{fraction}")
    };
    if moved.contains(['e', 'E']) { None } else { parse_number(&moved) }
}

/// The time at a path of names in a JSON object. What stands behind it is not looked at.
fn field(payload: &[u8], path: &[String]) -> Option<Timestamp> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let seek = Seek { path, found: &mut found };
    // Finding it ends the search with an error, as the end of the object is not waited for.
    drop(seek.deserialize(&mut deserializer));
    found
}

/// Goes down one path of an object, and over everything beside it.
struct Seek<'p, 'f> {
    path: &'p [String],
    found: &'f mut Option<Timestamp>,
}

impl<'de> DeserializeSeed<'de> for Seek<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if !self.path.is_empty() {
            return deserializer.deserialize_map(self);
        }
        let value: &RawValue = serde::Deserialize::deserialize(deserializer)?;
        let text = value.get();
        *self.found = if text.starts_with('"') {
            serde_json::from_str::<Cow<'_, str>>(text).ok().and_then(|text| parse(&text))
        } else {
            parse_number(text)
        };
        Ok(())
    }
}

impl<'de> Visitor<'de> for Seek<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let Some((name, rest)) = self.path.split_first() else { return Ok(()) };
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if key == name.as_str() {
                map.next_value_seed(Seek { path: rest, found: self.found })?;
                return Err(M::Error::custom("the rest is of no interest"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::ManualClock;
    use crate::fuzz::fuzz;

    const MOMENT: i64 = 1_767_323_045_678_000_000;

    #[test]
    fn times_are_read_as_rfc_3339_and_as_numbers_whose_size_tells_their_unit() {
        for text in [
            "2026-01-02T03:04:05.678Z",
            "2026-01-02t04:04:05.678+01:00",
            "1767323045.678",
            "1767323045678",
            "1767323045678.0",
            "1767323045678000",
            "1767323045678000000",
            "1.767323045678e9",
            "1.767323045678E12",
            " 1767323045678 ",
        ] {
            assert_eq!(parse(text), Some(Timestamp(MOMENT)), "{text}");
        }
        assert_eq!(parse("10"), Some(Timestamp(10_000_000_000)), "a clock that starts in 1970");
        assert_eq!(parse("-1.5"), Some(Timestamp(-1_500_000_000)));
        assert_eq!(parse("1767323045.1234567891"), Some(Timestamp(1_767_323_045_123_456_789)));
        for text in [
            "",
            "now",
            "-",
            ".",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "99999999999999999999",
            "1e400",
            "1e-3",
            "0x10",
            "1 2",
            "9999-12-31T00:00:00Z",
            "NaN",
            "1ee3",
            "1e3e3",
            "--1",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn a_field_is_found_at_its_path_whatever_stands_beside_it() {
        let found = |payload: &str, at: &str| field(payload.as_bytes(), &path(at));
        let expected = Some(Timestamp(MOMENT));
        assert_eq!(found(r#"{"t":1767323045678}"#, "t"), expected);
        assert_eq!(
            found(r#"{"x":[{"t":1}],"a":{"y":{},"b":"1767323045.678"}, broken"#, "a.b"),
            expected
        );
        assert_eq!(found(r#"{"t":"2026-01-02T03:04:05.678Z"}"#, "t"), expected);
        for (payload, at) in [
            (r#"{"t":null}"#, "t"),
            (r#"{"t":true}"#, "t"),
            (r#"{"t":[1]}"#, "t"),
            (r#"{"t":{"u":1}}"#, "t"),
            (r#"{"t":1}"#, "t.u"),
            (r#"{"t":"soon"}"#, "t"),
            (r#"{"u":1}"#, "t"),
            ("[1]", "t"),
            ("1", "t"),
            ("", "t"),
            ("{\"t\":", "t"),
        ] {
            assert_eq!(found(payload, at), None, "{payload}");
        }
        assert_eq!(field(b"{\"\xff\":1,\"t\":1}", &path("t")), None);
    }

    fn times(config: TimeConfig, clock: &Arc<ManualClock>) -> Times {
        Times::new(config, Arc::<ManualClock>::clone(clock), Arc::default())
    }

    #[test]
    fn a_record_without_the_time_keeps_its_own_and_is_counted() {
        let clock = Arc::new(ManualClock::new(Timestamp(MOMENT)));
        let config =
            TimeConfig { time_from: Some(TimeFrom::Header("Date".to_owned())), stamp: false };
        let times = times(config, &clock);
        let mut headers = HeadersBuffer::default();
        headers.push("date", "1767323045678");
        let own = Timestamp(7);
        assert_eq!(times.time_of(own, headers.as_headers(), b""), Timestamp(MOMENT));
        assert_eq!(times.time_of(own, Headers::default(), b""), own);
        assert_eq!(times.counters.times_missing.load(Ordering::Relaxed), 1);
        let mut headers = HeadersBuffer::default();
        times.stamp(&mut headers);
        assert!(headers.as_headers().is_empty());
    }

    #[test]
    fn d_30_a_stamp_says_when_and_how_far_that_is_to_be_trusted() {
        let clock = Arc::new(ManualClock::new(Timestamp(10_000_000_000)));
        let times = times(TimeConfig { time_from: None, stamp: true }, &clock);
        let stamped = || {
            let mut headers = HeadersBuffer::default();
            times.stamp(&mut headers);
            assert!(headers.as_headers().as_bytes().len() <= STAMP_BYTES_MAX);
            let headers = headers.as_headers();
            let get = |name| headers.get(name).unwrap().to_owned();
            (get("waystation-accepted"), get("waystation-clock"))
        };
        let (accepted, quality) = stamped();
        assert_eq!(accepted, "1970-01-01T00:00:10.000000000Z");
        assert_eq!(quality, format!("unsynced boot={} up=1.000000000", *BOOT));
        clock.step(Timestamp(MOMENT));
        clock.sync(true);
        clock.advance(Duration::from_millis(1500));
        let (accepted, quality) = stamped();
        assert_eq!(accepted, "2026-01-02T03:04:07.178000000Z");
        assert!(
            quality.starts_with("synced ") && quality.ends_with(" up=2.500000000"),
            "{quality}"
        );
    }

    proptest! {
        /// No input is a panic, and a time that was printed is read back.
        #[test]
        fn any_text_is_a_time_or_none(text in ".{0,40}", time in any::<i64>()) {
            parse(&text);
            field(text.as_bytes(), &path("a.b"));
            let mut printed = String::new();
            push_rfc3339(Timestamp(time), &mut printed);
            prop_assert_eq!(parse(&printed), Some(Timestamp(time)));
        }
    }

    #[test]
    fn fuzzed_times_are_times_or_none() {
        let examples: [&[u8]; 4] = [
            b"2026-01-02T03:04:05.678Z",
            b"1767323045.678",
            br#"{"a":{"b":"2026-01-02T03:04:05+01:00"},"c":[1,{"a":2}]}"#,
            br#"{"a":{"b":1767323045678}}"#,
        ];
        fuzz(&examples, |bytes| {
            parse(&String::from_utf8_lossy(bytes));
            field(bytes, &path("a.b"));
        });
    }
}
