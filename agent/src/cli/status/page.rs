//! The status as a page for people.

use std::fmt::Write as _;
use std::time::Duration;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};

use super::verdict::{Grade, age, grouped, short_name, since, verdicts};
use crate::admin::status::{LaneStatusView, StatusView};
use crate::clock::Timestamp;
use crate::units::{human_bytes, human_duration};

/// What takes less is not said of a lane that works.
const WORTH_TELLING: Duration = Duration::from_secs(10);

/// The whole page, by the time `now`.
pub(super) fn page(status: &StatusView, now: Timestamp, coloured: bool) -> String {
    let mut rest = about(status);
    for section in [lanes(status, now), sources(status, now), journal(status)] {
        rest.push('\n');
        rest.push_str(&section);
    }
    let mut text = verdict_lines(status, now, coloured);
    text.push_str(&printable(&rest));
    text
}

fn verdict_lines(status: &StatusView, now: Timestamp, coloured: bool) -> String {
    let mut text = String::new();
    for verdict in verdicts(status, now) {
        let colour = match verdict.grade {
            Grade::Ok => "32",
            Grade::Note | Grade::Delayed => "33",
            Grade::Failing | Grade::Blocked => "31",
        };
        let word = verdict.word;
        let sentence = printable(&verdict.sentence.replace('\n', " "));
        let _ok = if coloured {
            writeln!(text, "\u{1b}[1;{colour}m{word}\u{1b}[0m {sentence}")
        } else {
            writeln!(text, "{word} {sentence}")
        };
    }
    text
}

fn about(status: &StatusView) -> String {
    let agent = &status.agent;
    let uptime = human_duration(Duration::from_secs(agent.uptime_seconds));
    let mut text = format!(
        "\nagent {}, waystation {}, up {uptime}, start {} ({})\n",
        agent.id, agent.software, agent.start_case, agent.epoch
    );
    for (what, value) in [("owner", &agent.owner), ("runbook", &agent.runbook)] {
        if let Some(value) = value {
            let _ok = writeln!(text, "{what} {value}");
        }
    }
    text
}

/// A column: its title, and whether it is left out when there is nothing in it but zeros.
pub(in crate::cli) struct Column(pub(in crate::cli) &'static str, pub(in crate::cli) bool);

pub(in crate::cli) const ALWAYS: bool = false;
pub(in crate::cli) const WHEN_NOT_ZERO: bool = true;

fn lanes(status: &StatusView, now: Timestamp) -> String {
    let columns = [
        Column("lane", ALWAYS),
        Column("state", ALWAYS),
        Column("for", WHEN_NOT_ZERO),
        Column("accepted", ALWAYS),
        Column("queued", ALWAYS),
        Column("stored in", WHEN_NOT_ZERO),
        Column("oldest", WHEN_NOT_ZERO),
        Column("gone in", WHEN_NOT_ZERO),
        Column("delivered", ALWAYS),
        Column("already", WHEN_NOT_ZERO),
        Column("dropped", WHEN_NOT_ZERO),
        Column("dead letters", WHEN_NOT_ZERO),
        Column("lost", WHEN_NOT_ZERO),
        Column("sent", ALWAYS),
        Column("files", WHEN_NOT_ZERO),
        Column("failed attempts", WHEN_NOT_ZERO),
        Column("plugin faults", WHEN_NOT_ZERO),
    ];
    let rows = status.lanes.iter().map(|lane| {
        let failed = &lane.attempts_failed;
        vec![
            short_name(lane),
            lane.state.clone(),
            lane.trouble.as_ref().map(|trouble| since(trouble, now)).unwrap_or_default(),
            grouped(lane.accepted),
            grouped(lane.queued),
            if lane.queued_bytes > 0 { human_bytes(lane.queued_bytes) } else { String::new() },
            oldest(lane, now),
            gone_in(lane),
            grouped(lane.delivered),
            grouped(lane.records_already),
            grouped(lane.dropped),
            grouped(lane.dead_lettered),
            grouped(lane.lost),
            human_bytes(lane.bytes_delivered),
            grouped(lane.files_written),
            grouped(failed.unreachable + failed.retryable + failed.rejected + failed.conflict),
            grouped(lane.plugin_faults),
        ]
    });
    table(&columns, rows.collect())
}

/// The age of what is waited for longest. What is gone within seconds is no news.
fn oldest(lane: &LaneStatusView, now: Timestamp) -> String {
    let age = lane.oldest_at.as_deref().and_then(|at| age(at, now));
    age.filter(|age| *age >= WORTH_TELLING).map(human_duration).unwrap_or_default()
}

/// How long what waits takes at the rate of the last minute.
fn gone_in(lane: &LaneStatusView) -> String {
    let seconds = lane.drain_seconds.map(Duration::try_from_secs_f64);
    let time = seconds.and_then(Result::ok).map(|time| Duration::from_secs(time.as_secs()));
    let time = time.filter(|time| *time >= WORTH_TELLING);
    time.map(|time| format!("~{}", human_duration(time))).unwrap_or_default()
}

fn sources(status: &StatusView, now: Timestamp) -> String {
    let columns = [
        Column("source", ALWAYS),
        Column("type", ALWAYS),
        Column("state", ALWAYS),
        Column("for", WHEN_NOT_ZERO),
        Column("newest", ALWAYS),
        Column("this run", ALWAYS),
        Column("bytes", ALWAYS),
        Column("oversize", WHEN_NOT_ZERO),
        Column("refused", WHEN_NOT_ZERO),
        Column("sessions lost", WHEN_NOT_ZERO),
        Column("turned away", WHEN_NOT_ZERO),
        Column("dropped", WHEN_NOT_ZERO),
        Column("files lost", WHEN_NOT_ZERO),
        Column("gaps", WHEN_NOT_ZERO),
        Column("known", WHEN_NOT_ZERO),
        Column("no time", WHEN_NOT_ZERO),
    ];
    let rows = status.sources.iter().map(|source| {
        vec![
            source.id.clone(),
            source.kind.clone(),
            source.state.clone(),
            source.trouble.as_ref().map(|trouble| since(trouble, now)).unwrap_or_default(),
            grouped(source.head),
            grouped(source.records),
            human_bytes(source.bytes),
            grouped(source.oversize),
            grouped(source.refused),
            grouped(source.sessions_lost),
            grouped(source.turned_away),
            grouped(source.datagrams_dropped + source.messages_dropped),
            grouped(source.files_lost),
            grouped(source.gaps),
            grouped(source.messages_known),
            grouped(source.times_missing),
        ]
    });
    table(&columns, rows.collect())
}

fn journal(status: &StatusView) -> String {
    let columns = [
        Column("journal", ALWAYS),
        Column("wal", ALWAYS),
        Column("commits", ALWAYS),
        Column("durability", ALWAYS),
        Column("in use", ALWAYS),
        Column("limit", ALWAYS),
        Column("when full", ALWAYS),
        Column("waiting", WHEN_NOT_ZERO),
        Column("refused", WHEN_NOT_ZERO),
        Column("given up", WHEN_NOT_ZERO),
    ];
    let journal = &status.journal;
    let row = vec![
        human_bytes(status.journal.database_bytes),
        human_bytes(status.journal.wal_bytes),
        grouped(status.journal.commits),
        status.agent.durability.clone(),
        human_bytes(journal.used_bytes),
        human_bytes(journal.limit_bytes),
        journal.on_full.clone(),
        grouped(journal.appends_waiting),
        grouped(journal.appends_refused),
        grouped(journal.records_dropped_full + journal.records_dropped_aged),
    ];
    table(&columns, vec![row])
}

/// A table without lines. Columns of numbers are to the right.
pub(in crate::cli) fn table(columns: &[Column], rows: Vec<Vec<String>>) -> String {
    let is_shown = |index: usize, column: &Column| {
        let says_something = |row: &Vec<String>| !matches!(row[index].as_str(), "" | "0");
        !column.1 || rows.iter().any(says_something)
    };
    let shown: Vec<_> = (0..columns.len()).filter(|&i| is_shown(i, &columns[i])).collect();
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(shown.iter().map(|&i| columns[i].0));
    for row in &rows {
        table.add_row(shown.iter().map(|&i| row[i].as_str()));
    }
    for (place, &index) in shown.iter().enumerate() {
        let Some(column) = table.column_mut(place) else { continue };
        column.set_padding((0, 2));
        let starts_with_digit =
            |row: &Vec<String>| row[index].starts_with(|c: char| c.is_ascii_digit() || c == '~');
        if rows.iter().any(starts_with_digit) && !matches!(columns[index].0, "lane" | "source") {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut text = String::new();
    for line in table.lines() {
        let _ok = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// What comes from a destination or a config is shown, never obeyed by the terminal.
pub(in crate::cli) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin;

    fn now() -> Timestamp {
        Timestamp(1_700_000_000_000_000_000 + 3_725_000_000_000)
    }

    #[test]
    fn the_page_is_this() {
        let status = StatusView::of(&admin::tests::status());
        insta::assert_snapshot!(page(&status, now(), false));
    }

    #[test]
    fn a_calm_agent_has_a_short_page() {
        let mut status = StatusView::of(&admin::tests::status());
        status.config.trouble = None;
        status.orphans.clear();
        status.not_ready.clear();
        status.dead_letters = admin::status::DeadLettersStatus::default();
        status.sources.truncate(1);
        (status.sources[0].oversize, status.sources[0].refused) = (0, 0);
        status.sources[0].files_lost = 0;
        for lane in &mut status.lanes {
            "running".clone_into(&mut lane.state);
            lane.trouble = None;
            (lane.queued_bytes, lane.oldest_at, lane.drain_seconds) = (0, None, Some(0.0));
            (lane.queued, lane.dead_lettered, lane.lost, lane.records_already) = (0, 0, 0, 0);
            (lane.files_written, lane.plugin_faults, lane.accepted) = (0, 0, 1250);
            lane.attempts_failed = admin::status::AttemptsFailed {
                unreachable: 0,
                retryable: 0,
                rejected: 0,
                conflict: 0,
            };
        }
        insta::assert_snapshot!(page(&status, now(), false));
    }

    #[test]
    fn what_a_destination_says_cannot_steer_the_terminal() {
        let mut status = StatusView::of(&admin::tests::status());
        if let Some(trouble) = &mut status.lanes[1].trouble {
            trouble.reason = "\u{1b}]0;gotcha\u{7}\nOK all is well".to_owned();
        }
        status.agent.owner = Some("\u{1b}[2J".to_owned());
        let plain = page(&status, now(), false);
        assert!(plain.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(!plain.lines().any(|line| line.starts_with("OK ")));
        let coloured = page(&status, now(), true);
        assert!(coloured.starts_with("\u{1b}[1;31mFAILED\u{1b}[0m "), "{coloured}");
        assert!(!coloured.contains("\u{1b}]") && !coloured.contains("\u{1b}[2J"));
    }
}
