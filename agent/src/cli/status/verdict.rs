//! What is wrong, worst first, a sentence each: what waits and why, since when, what to do next.

use std::time::Duration;

use crate::admin::status::{LaneStatusView, StatusView, Trouble};
use crate::clock::Timestamp;
use crate::units::human_duration;

/// How bad it is; later is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    /// As it should be.
    Ok,
    /// Something lies there for when there is time.
    Note,
    /// It goes on by itself.
    Delayed,
    /// A part does not do its work, and tries.
    Failing,
    /// Nothing goes on before somebody acts.
    Blocked,
}

/// One sentence with the word in front that says of which kind it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) grade: Grade,
    pub(super) word: &'static str,
    pub(super) sentence: String,
}

/// All that there is to say, worst first; never empty.
pub(super) fn verdicts(status: &StatusView, now: Timestamp) -> Vec<Verdict> {
    let mut all = Vec::new();
    all.extend(status.lanes.iter().filter_map(|lane| lane_verdict(lane, now)));
    for source in &status.sources {
        if let Some(trouble) = &source.trouble {
            all.push(Verdict {
                grade: Grade::Failing,
                word: "FAILED",
                sentence: format!(
                    "source {} is down for {}: {}; it starts anew by itself after a pause",
                    source.id,
                    since(trouble, now),
                    trouble.reason
                ),
            });
        }
    }
    all.extend(config_verdict(status, now));
    all.extend(journal_verdict(status, now));
    all.extend(letters_verdict(status, now));
    all.extend(other_reasons(status));
    all.extend(notes(status, now));
    // Stable: what is alike stays in the order of the status.
    all.sort_by_key(|verdict| std::cmp::Reverse(verdict.grade));
    if all.first().is_none_or(|worst| worst.grade < Grade::Delayed) {
        all.insert(0, all_is_well(status));
    }
    all
}

fn lane_verdict(lane: &LaneStatusView, now: Timestamp) -> Option<Verdict> {
    let trouble = lane.trouble.as_ref()?;
    let (grade, word, why, _) = cause_words(&trouble.cause);
    Some(Verdict {
        grade,
        word,
        sentence: format!(
            "{} of lane {} for {}: {why} ({}); {}",
            waiting(lane.queued),
            short_name(lane),
            since(trouble, now),
            trouble.reason,
            what_next(&trouble.cause, &short_name(lane))
        ),
    })
}

/// What to do about a lane that retries or holds for a cause.
pub(in crate::cli) fn what_next(cause: &str, lane: &str) -> String {
    cause_words(cause).3.replace("LANE", lane)
}

/// What a cause is: how bad, a word, what is going on, and what to do next.
fn cause_words(cause: &str) -> (Grade, &'static str, &'static str, &'static str) {
    match cause {
        "unreachable" => (
            Grade::Delayed,
            "DELAYED",
            "the destination takes nothing",
            "nothing is lost, and it goes on by itself when the destination is back",
        ),
        "retryable" => (
            Grade::Delayed,
            "DELAYED",
            "attempts fail",
            "nothing is lost, and the same batch is sent again until it is taken",
        ),
        "exhausted" => (
            Grade::Blocked,
            "BLOCKED",
            "the destination fails on a record for longer than retry.budget",
            "nothing is lost, and it is tried now and then: correct the destination, or decide about the record with `waystation lane resolve LANE --dead-letter` or `--accept`",
        ),
        "storm" => (
            Grade::Blocked,
            "BLOCKED",
            "the destination refuses so many records that something else is wrong",
            "nothing is lost, and it goes on by itself when they are taken: correct the destination, the sink's config or the transform, then `waystation resume LANE` tries at once; or give them up with `waystation lane resolve LANE --dead-letter`",
        ),
        "dead_letters" => (
            Grade::Blocked,
            "BLOCKED",
            "its dead letters have no room",
            "nothing is lost, and it goes on by itself when there is room: look with `waystation dlq list`, send again with `waystation dlq replay` what is taken by now, keep what matters with `waystation dlq export`, make room with `waystation dlq discard`, or raise dead_letters.max_bytes",
        ),
        "paused" => (
            Grade::Delayed,
            "PAUSED",
            "it is paused",
            "nothing is lost, and `waystation resume LANE` ends that",
        ),
        "conflict" => (
            Grade::Blocked,
            "BLOCKED",
            "the destination holds other content under an identity of ours",
            "nothing is overwritten: see what wrote it and move it away, or decide with `waystation lane resolve LANE` and `--accept` (the destination's is right), `--resend-as-new` (ours is, beside it) or `--dead-letter`",
        ),
        "plugin" => (
            Grade::Blocked,
            "BLOCKED",
            "a plugin breaks down",
            "nothing is lost: see the log for the fault, and replace or correct the plugin",
        ),
        "journal" => (
            Grade::Blocked,
            "BLOCKED",
            "the journal does not work",
            "see the log, and whether the volume of the data directory is full or read-only",
        ),
        "name" => (
            Grade::Blocked,
            "BLOCKED",
            "its sink finds no name for a batch",
            "nothing is lost: correct the sink's config",
        ),
        _ => (Grade::Blocked, "BLOCKED", "it holds", "see the log"),
    }
}

/// What the file holds is not what runs.
fn config_verdict(status: &StatusView, now: Timestamp) -> Option<Verdict> {
    let config = &status.config;
    let trouble = config.trouble.as_ref()?;
    let (what, instead) = if config.last_adopted {
        ("could not be used at the start", "what the last run had adopted runs in its place")
    } else {
        ("is not taken up", "what was there before goes on")
    };
    Some(Verdict {
        grade: Grade::Failing,
        word: "CONFIG",
        sentence: format!(
            "for {} the config {what}, and {instead}: {}; correct {}, then it is taken up by itself",
            since(trouble, now),
            trouble.reason,
            config.file
        ),
    })
}

fn journal_verdict(status: &StatusView, now: Timestamp) -> Option<Verdict> {
    let trouble = status.journal.trouble.as_ref()?;
    let (grade, word, next) = match (trouble.cause.as_str(), status.journal.on_full.as_str()) {
        ("full", "drop_oldest") => {
            (Grade::Failing, "LOSING", "see why lanes do not deliver, or raise journal.max_bytes")
        }
        ("full", _) => (
            Grade::Failing,
            "FULL",
            "deliveries go on, and records are taken again by itself when they have made room",
        ),
        ("locked", _) => {
            (Grade::Blocked, "BLOCKED", "end that process; the log names it where the kernel does")
        }
        _ => (Grade::Delayed, "NOTICE", "end that process; the log names it where the kernel does"),
    };
    let (reason, since) = (&trouble.reason, since(trouble, now));
    Some(Verdict { grade, word, sentence: format!("the journal, for {since}: {reason}; {next}") })
}

/// Dead letters that have no room, where no lane says so: a source waits with one.
fn letters_verdict(status: &StatusView, now: Timestamp) -> Option<Verdict> {
    let trouble = status.dead_letters.trouble.as_ref()?;
    let is_said = status
        .lanes
        .iter()
        .any(|lane| lane.trouble.as_ref().is_some_and(|trouble| trouble.cause == "dead_letters"));
    (!is_said).then(|| Verdict {
        grade: Grade::Blocked,
        word: "FULL",
        sentence: format!("for {}: {}", since(trouble, now), trouble.reason),
    })
}

/// A lane within one agent.
pub(super) fn short_name(lane: &LaneStatusView) -> String {
    format!("{}/{}/{}", lane.source, lane.pipeline, lane.sink)
}

fn waiting(queued: u64) -> String {
    match queued {
        0 => "nothing waits in front".to_owned(),
        1 => "1 record waits in front".to_owned(),
        _ => format!("{} records wait in front", grouped(queued)),
    }
}

/// Reasons for not being ready that no part's own trouble says already.
fn other_reasons(status: &StatusView) -> Vec<Verdict> {
    let troubled_lanes = status.lanes.iter().filter(|lane| lane.trouble.is_some());
    let troubled_sources = status.sources.iter().filter(|source| source.trouble.is_some());
    let said: Vec<_> = troubled_lanes
        .map(|lane| format!("lane {}:", lane.name))
        .chain(troubled_sources.map(|source| format!("source {}:", source.id)))
        .chain(status.journal.trouble.as_ref().map(|_| "journal:".to_owned()))
        .collect();
    status
        .not_ready
        .iter()
        .filter(|reason| !said.iter().any(|prefix| reason.starts_with(prefix.as_str())))
        .map(|reason| Verdict {
            grade: Grade::Delayed,
            word: "NOT READY",
            sentence: reason.clone(),
        })
        .collect()
}

/// What has happened, or lies there, and keeps nothing from going on.
fn notes(status: &StatusView, now: Timestamp) -> Vec<Verdict> {
    let mut notes = Vec::new();
    let mut note = |word, sentence| notes.push(Verdict { grade: Grade::Note, word, sentence });
    if let Some(salvaged) = &status.journal.salvaged {
        note(
            "SALVAGED",
            format!(
                "the journal was damaged when the agent started: {} saved, {} lost; the damaged files are in {}",
                counted(salvaged.records, "record"),
                counted(salvaged.lost_records, "record"),
                salvaged.kept
            ),
        );
    }
    for lane in &status.lanes {
        let name = short_name(lane);
        if lane.lost > 0 {
            let lost = counted(lane.lost, "record");
            note("LOST", format!("{lost} of lane {name} since it was made"));
        }
    }
    notes.extend(quarantined(status));
    let mut note = |word, sentence| notes.push(Verdict { grade: Grade::Note, word, sentence });
    if status.dead_letters.dropped > 0 {
        let dropped = counted(status.dead_letters.dropped, "dead letter");
        note("DROPPED", format!("{dropped} to make room for younger ones, since this run began"));
    }
    for orphan in status.orphans.iter().filter(|orphan| orphan.queued > 0) {
        let kept = counted(orphan.queued, "record");
        let age = age_of(orphan.oldest_at.as_deref(), now);
        note(
            "ORPHANED",
            format!(
                "{kept} of lane {name}, which the config no longer has{age}; with its source, pipeline and sink back, it goes on; \
                 `waystation lane move {name} TO` has another lane go on with them, `waystation lane drop {name}` gives them up",
                name = orphan.name
            ),
        );
    }
    if status.agent.durability == "relaxed" {
        note(
            "RELAXED",
            "journal.durability is relaxed: a power cut may lose the last accepted records"
                .to_owned(),
        );
    }
    notes
}

/// How old the oldest record is, where that is known: goes on behind what is counted.
pub(in crate::cli) fn age_of(oldest_at: Option<&str>, now: Timestamp) -> String {
    let age = oldest_at.and_then(|at| age(at, now)).map(human_duration);
    age.map_or_else(String::new, |age| format!(", the oldest {age} old"))
}

/// How long ago it was, when that is a time.
pub(super) fn age(at: &str, now: Timestamp) -> Option<Duration> {
    let at = at.parse::<jiff::Timestamp>().ok()?;
    Some(now.since(Timestamp(i64::try_from(at.as_nanosecond()).ok()?)))
}

/// The dead letters that lie there, by lane or, for what was refused at the door, by source.
fn quarantined(status: &StatusView) -> Vec<Verdict> {
    let mut all: Vec<(String, String, u64, Vec<String>)> = Vec::new();
    for count in &status.dead_letters.by_class {
        let (whose, option) = match &count.lane {
            Some(lane) => (format!("lane {lane}"), format!("--lane {lane}")),
            None => (format!("source {}", count.source), "--stage source".to_owned()),
        };
        let class = format!("{} {}", grouped(count.letters), count.class);
        match all.iter_mut().find(|(known, ..)| *known == whose) {
            Some((_, _, letters, classes)) => {
                *letters += count.letters;
                classes.push(class);
            }
            None => all.push((whose, option, count.letters, vec![class])),
        }
    }
    let verdict = |(whose, option, letters, classes): (String, String, u64, Vec<String>)| {
        let (letters, classes) = (counted(letters, "record"), classes.join(", "));
        let sentence = format!(
            "{letters} of {whose} in the dead letters ({classes}); `waystation dlq list {option}` shows them"
        );
        Verdict { grade: Grade::Note, word: "QUARANTINED", sentence }
    };
    all.into_iter().map(verdict).collect()
}

fn all_is_well(status: &StatusView) -> Verdict {
    let queued: u64 = status.lanes.iter().map(|lane| lane.queued).sum();
    let lanes = counted(status.lanes.len() as u64, "lane");
    let rest = match queued {
        0 => "nothing waits".to_owned(),
        1 => "1 record is on its way".to_owned(),
        _ => format!("{} records are on their way", grouped(queued)),
    };
    Verdict { grade: Grade::Ok, word: "OK", sentence: format!("{lanes}, no trouble; {rest}") }
}

pub(in crate::cli) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// A number in groups of three digits.
pub(in crate::cli) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// For how long, by our own clock: the agent is on the same host.
pub(in crate::cli) fn since(trouble: &Trouble, now: Timestamp) -> String {
    let begun = trouble.since.parse::<jiff::Timestamp>().ok();
    let begun = begun.and_then(|time| i64::try_from(time.as_nanosecond()).ok());
    match begun {
        Some(begun) => human_duration(now.since(Timestamp(begun))),
        None => "an unknown time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin;
    use crate::admin::status::{DeadLettersStatus, LettersCountView, StatusView};
    use crate::lane::status::HOLD_CAUSES;

    fn now() -> Timestamp {
        Timestamp(1_700_000_000_000_000_000 + 185_000_000_000)
    }

    fn sample() -> StatusView {
        let mut status = StatusView::of(&admin::tests::status());
        status.orphans.clear();
        status.sources.truncate(1);
        status.not_ready.clear();
        status.config.trouble = None;
        status.dead_letters = DeadLettersStatus::default();
        for lane in &mut status.lanes {
            (lane.lost, lane.dead_lettered, lane.trouble) = (0, 0, None);
        }
        status
    }

    fn lines(status: &StatusView) -> Vec<String> {
        let all = verdicts(status, now());
        all.iter().map(|verdict| format!("{}: {}", verdict.word, verdict.sentence)).collect()
    }

    #[test]
    fn a_full_journal_is_said_once_with_what_becomes_of_records() {
        let mut status = StatusView::of(&admin::tests::status());
        let reason = "full: 2.0 GiB are in use of max_bytes = 2GiB; sources wait".to_owned();
        status.not_ready = vec![format!("journal: {reason}")];
        status.lanes.clear();
        status.sources.clear();
        status.config.trouble = None;
        let since = "2023-11-14T22:13:20Z".to_owned();
        status.journal.trouble = Some(Trouble { cause: "full".to_owned(), reason, since });
        let now = Timestamp(1_700_000_000_000_000_000 + 60_000_000_000);
        let all = verdicts(&status, now);
        assert_eq!((all[0].word, all[0].grade), ("FULL", Grade::Failing));
        assert_eq!(
            all[0].sentence,
            "the journal, for 1 min 0 s: full: 2.0 GiB are in use of max_bytes = 2GiB; sources wait; \
             deliveries go on, and records are taken again by itself when they have made room"
        );
        assert!(all[1..].iter().all(|verdict| verdict.grade < Grade::Delayed), "{all:?}");
        status.journal.on_full = "drop_oldest".to_owned();
        assert_eq!(verdicts(&status, now)[0].word, "LOSING");
    }

    #[test]
    fn without_trouble_it_is_ok_and_says_what_is_on_its_way() {
        let mut status = sample();
        assert_eq!(lines(&status), ["OK: 2 lanes, no trouble; 400 records are on their way"]);
        status.lanes.truncate(1);
        status.lanes[0].queued = 0;
        assert_eq!(lines(&status), ["OK: 1 lane, no trouble; nothing waits"]);
    }

    #[test]
    fn notes_do_not_take_the_first_line_from_ok() {
        let mut status = sample();
        let letters = |lane: Option<&str>, class: &str, letters| LettersCountView {
            source: "sensors".to_owned(),
            lane: lane.map(str::to_owned),
            class: class.to_owned(),
            letters,
        };
        let lane = Some("gw/sensors/telemetry/archive");
        status.dead_letters.by_class = vec![
            letters(None, "rejected", 1),
            letters(lane, "exhausted", 2),
            letters(lane, "rejected", 3),
        ];
        status.agent.durability = "relaxed".to_owned();
        let lines = lines(&status);
        assert!(lines[0].starts_with("OK: "), "{lines:?}");
        assert_eq!(
            lines[1],
            "QUARANTINED: 1 record of source sensors in the dead letters (1 rejected); \
             `waystation dlq list --stage source` shows them"
        );
        assert_eq!(
            lines[2],
            "QUARANTINED: 5 records of lane gw/sensors/telemetry/archive in the dead letters \
             (2 exhausted, 3 rejected); `waystation dlq list --lane gw/sensors/telemetry/archive` shows them"
        );
        assert!(lines[3].starts_with("RELAXED: "), "{lines:?}");
    }

    #[test]
    fn what_needs_somebody_comes_before_what_heals_by_itself() {
        let mut status = sample();
        let trouble = |cause: &str| {
            Some(Trouble {
                cause: cause.to_owned(),
                reason: "seen".to_owned(),
                since: "2023-11-14T22:14:20.000Z".to_owned(),
            })
        };
        status.lanes[0].trouble = trouble("unreachable");
        status.lanes[1].trouble = trouble("conflict");
        status.sources[0].trouble = trouble("failed");
        status.not_ready = vec![
            "source sensors: seen".to_owned(),
            "lane gw/sensors/telemetry/cloud: conflict: seen".to_owned(),
            "agent: it is stopping".to_owned(),
        ];
        let words: Vec<_> = verdicts(&status, now()).into_iter().map(|v| v.word).collect();
        assert_eq!(words, ["BLOCKED", "FAILED", "DELAYED", "NOT READY"]);
        assert_eq!(
            lines(&status)[0],
            "BLOCKED: 200 records wait in front of lane sensors/telemetry/cloud for 2 min 5 s: the destination \
             holds other content under an identity of ours (seen); nothing is overwritten: see what wrote it and \
             move it away, or decide with `waystation lane resolve sensors/telemetry/cloud` and `--accept` (the \
             destination's is right), `--resend-as-new` (ours is, beside it) or `--dead-letter`"
        );
    }

    #[test]
    fn every_cause_of_a_lane_has_its_own_sentence() {
        let mut status = sample();
        let mut seen = std::collections::BTreeSet::new();
        for cause in HOLD_CAUSES.into_iter().chain(["retryable"]) {
            status.lanes[0].trouble = Some(Trouble {
                cause: cause.to_owned(),
                reason: "seen".to_owned(),
                since: "no time".to_owned(),
            });
            let line = lines(&status).remove(0);
            assert!(line.contains("for an unknown time"), "{line}");
            assert!(seen.insert(line));
        }
    }

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 999, 1000, 12_345, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "12,345", "1,234,567"]);
    }
}
