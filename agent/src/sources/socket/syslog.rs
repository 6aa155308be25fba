//! What the head of a syslog message says, as headers of its record.
//!
//! RFC 5424 is read as it stands: `<PRI>1 TIMESTAMP HOSTNAME APP-NAME PROCID MSGID STRUCTURED-DATA MSG`, where `-` is nothing.
//! Of an RFC 3164 message only `<PRI>` is read: what follows is whatever its sender makes of it, and its time has neither a
//! year nor a zone. The payload is the message as it came, with its head. What has no `<PRI>` is marked
//! `waystation-syslog: unparsed`, and so is what begins like RFC 5424 and does not go on like it, though its `<PRI>` counts.
//!
//! | header | of |
//! |---|---|
//! | `syslog-facility` | PRI: `kern`, `user`, …, `local7` |
//! | `syslog-severity` | PRI: `emerg`, `alert`, `crit`, `err`, `warning`, `notice`, `info`, `debug` |
//! | `syslog-hostname`, `syslog-app`, `syslog-process`, `syslog-message-id` | the fields of those names |
//! | `syslog-structured-data` | the elements as they stand in the message |
//!
//! A field that is longer than its RFC allows (255, 48, 128 and 32 bytes), or structured data of more than 8 KiB, becomes no
//! header; nor does what is no UTF-8 or holds a control character. The time of the record is that of the message where RFC 5424
//! gives one, which always has an offset; otherwise the time of arrival.

use crate::clock::Timestamp;
use crate::limits::SYSLOG_STRUCTURED_DATA_BYTES_MAX;
use crate::record::HeadersBuffer;

const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv",
    "ftp", "ntp", "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4",
    "local5", "local6", "local7",
];
const SEVERITIES: [&str; 8] =
    ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// The fields behind the time, with their longest length by RFC 5424.
const FIELDS: [(&str, usize); 4] = [
    ("syslog-hostname", 255),
    ("syslog-app", 48),
    ("syslog-process", 128),
    ("syslog-message-id", 32),
];

/// Writes the headers of a message; gives the time that it names.
pub(super) fn write(message: &[u8], headers: &mut HeadersBuffer) -> Option<Timestamp> {
    let Some((priority, rest)) = priority(message) else {
        headers.push("waystation-syslog", "unparsed");
        return None;
    };
    let (facility, severity) = (usize::from(priority / 8), usize::from(priority % 8));
    if let (Some(facility), Some(severity)) = (FACILITIES.get(facility), SEVERITIES.get(severity)) {
        headers.push("syslog-facility", facility);
        headers.push("syslog-severity", severity);
    }
    let head = rest.strip_prefix(b"1 ")?;
    let Some(head) = Head::parse(head) else {
        headers.push("waystation-syslog", "unparsed");
        return None;
    };
    for ((name, length_max), value) in FIELDS.into_iter().zip(head.fields) {
        push(headers, name, value, length_max);
    }
    push(headers, "syslog-structured-data", head.structured_data, SYSLOG_STRUCTURED_DATA_BYTES_MAX);
    head.time
}

fn push(headers: &mut HeadersBuffer, name: &str, value: &[u8], length_max: usize) {
    if value == b"-" || value.is_empty() || value.len() > length_max {
        return;
    }
    let text = std::str::from_utf8(value).ok().filter(|text| !text.contains(char::is_control));
    if let Some(text) = text {
        headers.push(name, text);
    }
}

/// The number of `<PRI>`, 0 to 191 without leading zeros, and what follows it.
fn priority(message: &[u8]) -> Option<(u8, &[u8])> {
    let rest = message.strip_prefix(b"<")?;
    let end = rest.iter().take(4).position(|byte| *byte == b'>')?;
    let (digits, rest) = (rest.get(..end)?, rest.get(end + 1..)?);
    let is_number = !digits.is_empty()
        && digits.iter().all(u8::is_ascii_digit)
        && (digits.len() == 1 || digits[0] != b'0');
    let number: u8 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    (number <= 191).then_some((number, rest))
}

/// What stands between the version and the text, by RFC 5424.
struct Head<'m> {
    time: Option<Timestamp>,
    fields: [&'m [u8]; 4],
    structured_data: &'m [u8],
}

impl<'m> Head<'m> {
    fn parse(mut rest: &'m [u8]) -> Option<Self> {
        let time = match word(&mut rest)? {
            b"-" => None,
            text => Some(time(text)?),
        };
        let mut fields = [&b""[..]; 4];
        for field in &mut fields {
            *field = word(&mut rest)?;
        }
        let structured_data = structured_data(rest)?;
        Some(Self { time, fields, structured_data })
    }
}

/// The bytes up to the next space, which is taken with them; never none.
fn word<'m>(rest: &mut &'m [u8]) -> Option<&'m [u8]> {
    let end = memchr::memchr(b' ', rest).filter(|end| *end > 0)?;
    let (word, behind) = (rest.get(..end)?, rest.get(end + 1..)?);
    *rest = behind;
    Some(word)
}

/// A date and a time with an offset: RFC 3339 with a `T`, and at most six digits of a second.
fn time(text: &[u8]) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let has_offset = text.ends_with('Z') || text.get(19..)?.contains(['+', '-']);
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"-+:.TZ".contains(&byte));
    if !has_offset || !is_plain || text.as_bytes().get(10) != Some(&b'T') {
        return None;
    }
    let found: jiff::Timestamp = text.parse().ok()?;
    i64::try_from(found.as_nanosecond()).ok().map(Timestamp)
}

/// `-`, or elements in brackets; a space or the end behind it.
fn structured_data(rest: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    if rest.first() == Some(&b'-') {
        at = 1;
    } else {
        while rest.get(at) == Some(&b'[') {
            at = element_end(rest, at + 1)?;
        }
    }
    let is_whole = at > 0 && rest.get(at).is_none_or(|byte| *byte == b' ');
    rest.get(..at).filter(|_| is_whole)
}

/// Where an element ends whose content begins at `at`. A bracket within quotes is none, nor is what a backslash stands before.
fn element_end(rest: &[u8], mut at: usize) -> Option<usize> {
    let mut is_quoted = false;
    loop {
        match rest.get(at)? {
            b'\\' if is_quoted => at += 1,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted => return Some(at + 1),
            _ => {}
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz::fuzz;

    fn parsed(message: &[u8]) -> (Vec<(String, String)>, Option<Timestamp>) {
        let mut headers = HeadersBuffer::default();
        let time = write(message, &mut headers);
        let headers = headers.as_headers();
        (headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(), time)
    }

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// The examples of RFC 5424, 6.5.
    #[test]
    fn the_examples_of_rfc_5424_say_who_and_when() {
        let (found, time) = parsed(
            b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed for lonvick on /dev/pts/8",
        );
        let expected = headers(&[
            ("syslog-facility", "auth"),
            ("syslog-severity", "crit"),
            ("syslog-hostname", "mymachine.example.com"),
            ("syslog-app", "su"),
            ("syslog-message-id", "ID47"),
        ]);
        assert_eq!((found, time), (expected, Some(Timestamp(1_065_910_455_003_000_000))));

        let (found, time) = parsed(
            b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
        );
        let expected = headers(&[
            ("syslog-facility", "local4"),
            ("syslog-severity", "notice"),
            ("syslog-hostname", "192.0.2.1"),
            ("syslog-app", "myproc"),
            ("syslog-process", "8710"),
        ]);
        assert_eq!((found, time), (expected, Some(Timestamp(1_061_727_255_000_003_000))));

        let data = r#"[exampleSDID@32473 iut="3" eventSource="Appli\"]cation" eventID="1011"][examplePriority@32473 class="high"]"#;
        let message = format!("<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 {data}");
        assert_eq!(parsed(message.as_bytes()).0.last().unwrap().1, data);
        let (with_text, _) = parsed(format!("{message} text [x").as_bytes());
        assert_eq!(with_text.last().unwrap().1, data);
    }

    #[test]
    fn of_rfc_3164_the_priority_counts_and_the_time_does_not() {
        let bytes = b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8";
        let expected = headers(&[("syslog-facility", "auth"), ("syslog-severity", "crit")]);
        assert_eq!(parsed(bytes), (expected, None));
        let expected = headers(&[("syslog-facility", "kern"), ("syslog-severity", "emerg")]);
        assert_eq!(parsed(b"<0>"), (expected, None));
        let expected = headers(&[("syslog-facility", "local7"), ("syslog-severity", "debug")]);
        assert_eq!(parsed(b"<191>1"), (expected, None));
    }

    #[test]
    fn what_is_no_syslog_is_kept_and_says_so() {
        let unparsed = headers(&[("waystation-syslog", "unparsed")]);
        for bad in
            [&b""[..], b"text", b"<192>x", b"<>x", b"<01>x", b"<1234>x", b"<1", b"<a>", b"\xff<1>"]
        {
            assert_eq!(parsed(bad), (unparsed.clone(), None), "{bad:?}");
        }
    }

    #[test]
    fn what_begins_like_rfc_5424_and_is_none_keeps_its_priority_only() {
        let expected = headers(&[
            ("syslog-facility", "user"),
            ("syslog-severity", "notice"),
            ("waystation-syslog", "unparsed"),
        ]);
        for rest in [
            "",
            "-",
            "- - - - -",
            "- h a p m",
            "- h a p m x",
            "- h a p m [x",
            "- h a p m [x a=\"]",
            "- h a p m -x",
            "- h  a p m -",
            "2003-10-11T22:14:15 h a p m -",
            "2003-10-11 22:14:15Z h a p m -",
            "2003-13-11T22:14:15Z h a p m -",
            "Oct h a p m -",
        ] {
            assert_eq!(
                parsed(format!("<13>1 {rest}").as_bytes()),
                (expected.clone(), None),
                "{rest}"
            );
        }
    }

    #[test]
    fn fields_that_are_too_long_or_no_text_become_no_headers() {
        let long = "x".repeat(49);
        let message = format!("<13>1 - h\u{7} {long} p m -");
        let names: Vec<_> =
            parsed(message.as_bytes()).0.into_iter().map(|(name, _)| name).collect();
        let expected =
            ["syslog-facility", "syslog-severity", "syslog-process", "syslog-message-id"];
        assert_eq!(names, expected);
        let data = format!("<13>1 - h a p m [x a=\"{}\"] t", "y".repeat(8192));
        assert_eq!(parsed(data.as_bytes()).0.last().unwrap().0, "syslog-message-id");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_write_more_than_it_may(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            text in "(<[0-9]{0,4}>)?1? ?[0-9TZ:+. -]{0,30}[ -~\\[\\]\"]{0,60}",
        ) {
            for message in [&bytes[..], text.as_bytes()] {
                let mut headers = HeadersBuffer::default();
                write(message, &mut headers);
                prop_assert!(headers.as_headers().as_bytes().len() < message.len() + 300);
            }
        }
    }

    #[test]
    fn fuzzed_messages_have_headers_within_their_bounds() {
        let examples: [&[u8]; 3] = [
            b"<165>1 2003-08-24T05:14:15.000003-07:00 h app 8710 ID [x@1 a=\"\\]\"][y] one",
            b"<34>Oct 11 22:14:15 mymachine su: two",
            b"<191>1 - - - - - -",
        ];
        fuzz(&examples, |message| {
            let mut headers = HeadersBuffer::default();
            write(message, &mut headers);
            assert!(headers.as_headers().as_bytes().len() < message.len() + 300);
        });
    }
}
