//! An entry of journald as a record.
//!
//! The payload is `MESSAGE`, byte by byte; an entry without one is a record without content. Headers say the rest:
//!
//! | header | field |
//! |---|---|
//! | `journald-unit` | `_SYSTEMD_UNIT` |
//! | `journald-identifier` | `SYSLOG_IDENTIFIER` |
//! | `journald-priority` | `PRIORITY`, by its word: `emerg`, …, `debug` |
//! | `journald-pid`, `journald-uid` | `_PID`, `_UID` |
//! | `journald-hostname`, `journald-transport` | `_HOSTNAME`, `_TRANSPORT` |
//! | `journald-boot-id` | `_BOOT_ID` |
//!
//! A field of more than 4 KiB becomes no header, nor one that is no UTF-8 or holds a control character.

use super::export::{Entry, Name};
use crate::clock::Timestamp;
use crate::limits::SUBJECT_BYTES_MAX;
use crate::record::HeadersBuffer;
use crate::record::subject::push_token;
use crate::record::template::Template;

const PRIORITIES: [&str; 8] =
    ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

const HEADERS: [(&str, Name); 7] = [
    ("journald-unit", Name::Unit),
    ("journald-identifier", Name::Identifier),
    ("journald-pid", Name::Pid),
    ("journald-uid", Name::Uid),
    ("journald-hostname", Name::Host),
    ("journald-transport", Name::Transport),
    ("journald-boot-id", Name::Boot),
];

/// Writes the headers of an entry.
pub(super) fn write(entry: &Entry, headers: &mut HeadersBuffer) {
    headers.clear();
    for (header, name) in HEADERS {
        if let Some(text) = entry.text(name) {
            headers.push(header, text);
        }
    }
    let priority = entry.text(Name::Priority).and_then(|text| text.parse::<usize>().ok());
    if let Some(word) = priority.and_then(|number| PRIORITIES.get(number)) {
        headers.push("journald-priority", word);
    }
}

/// When journald has taken the entry.
pub(super) fn time(entry: &Entry) -> Option<Timestamp> {
    let microseconds: i64 = entry.text(Name::Realtime)?.parse().ok()?;
    microseconds.checked_mul(1000).map(Timestamp)
}

/// Makes the subject of an entry: its unit is one token, in which `_` stands for what none holds, also for dots.
pub(super) fn render(template: &Template, source: &str, entry: &Entry, subject: &mut String) {
    subject.clear();
    template.render_into(subject, |place, out| match place {
        0 => out.push_str(source),
        _ => {
            push_token(entry.text(Name::Unit).unwrap_or_default(), out);
        }
    });
    let end = subject.floor_char_boundary(SUBJECT_BYTES_MAX);
    subject.truncate(end);
}
