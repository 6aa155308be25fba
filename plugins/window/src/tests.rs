use std::collections::BTreeMap;

use waystation_plugin::state;
use waystation_plugin::testing::{
    FIRST, assert_page_with_ticks, assert_schema, forget, record, restore, run_records, run_ticks,
    snapshot, transform,
};
use waystation_plugin::time::rfc3339;

use super::*;

mod properties;

const SECOND: i64 = 1_000_000_000;
/// One minute by the subject, without lateness.
const MINUTE: &str = "size = '1m'\nlateness = '0s'\n";

fn window(config: &str) -> Window {
    transform::<Window>(config).unwrap()
}

fn error(config: &str) -> String {
    transform::<Window>(config).err().expect(config)
}

/// The time so many seconds after the first record's.
fn at(seconds: i64) -> i64 {
    FIRST + seconds * SECOND
}

fn record_at(seconds: i64, payload: &str) -> Record {
    Record { time: at(seconds), ..record(1, payload) }
}

/// Gives these records to a new instance, at the time of the last one.
fn give(config: &str, records: &[Record]) -> Vec<String> {
    let now = records.iter().map(|record| record.time).max().unwrap_or(FIRST);
    run_records(&mut window(config), now, records)
}

/// Ticks once, and returns start and count of each summary.
fn tick(config: &str, now: i64) -> Vec<(i64, u64)> {
    run_ticks(&mut window(config), now, 0, 1).iter().map(|payload| told(payload)).collect()
}

/// Ticks as often as a quiet source needs.
fn quiet(config: &str, now: i64) -> Vec<(i64, u64)> {
    let far = 1000 * 3600 * SECOND;
    run_ticks(&mut window(config), now, far, 9).iter().map(|payload| told(payload)).collect()
}

/// The start of a summary's window, in seconds after the first record, and its count.
fn told(payload: &str) -> (i64, u64) {
    let object = Object::parse(payload.as_bytes()).unwrap();
    let start = object.text("start").unwrap();
    // Times as texts sort as times.
    let (mut low, mut high) = (-1_000_000_000, 1_000_000_000);
    while low < high {
        let middle = low + (high - low) / 2;
        if *rfc3339(at(middle)) < *start { low = middle + 1 } else { high = middle }
    }
    assert_eq!(rfc3339(at(low)), start);
    (low, object.number("count").unwrap() as u64)
}

/// The statistics of the field `v` that come of these values, one record a second.
fn stats(stats: &str, values: &[&str]) -> String {
    forget();
    let config = format!("size = '1h'\nvalues = [{{ field = 'v', stats = {stats} }}]");
    let records: Vec<Record> = values
        .iter()
        .zip(0..)
        .map(|(value, seconds)| record_at(seconds, &format!(r#"{{"v":{value}}}"#)))
        .collect();
    give(&config, &records);
    let out = run_ticks(&mut window(&config), at(0), 3600 * SECOND, 4);
    let [payload] = &out[..] else { panic!("{out:?}") };
    let object = Object::parse(payload.as_bytes()).unwrap();
    object.at(&waystation_plugin::json::Path::parse("values.v").unwrap()).unwrap().to_owned()
}

#[test]
fn a_window_closes_when_the_records_are_past_its_end_by_the_lateness() {
    let config = "size = '1m'\nlateness = '5s'";
    give(config, &[record_at(3, ""), record_at(59, ""), record_at(60, ""), record_at(64, "")]);
    assert_eq!(tick(config, at(64)), []);
    give(config, &[record_at(58, ""), record_at(65, "")]);
    assert_eq!(tick(config, at(65)), [(0, 3)]);
    assert_eq!(quiet(config, at(70)), [(60, 3)]);
    assert_eq!(quiet(config, at(70)), []);
}

#[test]
fn a_summary_has_the_windows_start_as_its_time_and_the_subject_of_the_template() {
    for (more, expected) in [
        ("", "plant.hall.temperature"),
        ("by = 'all'", "plant.hall.temperature"),
        ("by = 'all'\nsubject = 'sum.{key}'", "sum._"),
        ("subject = 'sum.{key}'", "sum.plant%2Ehall%2Etemperature"),
        (
            "by = { header = 'device' }\nsubject = '{key}.of.{subject}'",
            "press-07.of.plant.hall.temperature",
        ),
        ("by = { field = 'd' }\nsubject = 'sum.{key}'", "sum.a%20b"),
        ("by = { field = 'n' }\nsubject = 'sum.{key}'", "sum.7"),
    ] {
        forget();
        let config = format!("{MINUTE}{more}");
        let payload = r#"{"d":"a b","n":7}"#;
        let other = Record { subject: "other".to_owned(), ..record_at(62, payload) };
        give(&config, &[record_at(1, payload), other]);
        let drafts = window(&config).tick(at(62)).unwrap();
        let [draft] = &drafts[..] else { panic!("{more}: {drafts:?}") };
        assert_eq!((&*draft.subject, draft.time), (expected, Some(at(0))), "{more}");
    }
}

#[test]
fn a_quiet_source_closes_its_windows_by_the_clock_and_a_second_tick_confirms_it() {
    give(MINUTE, &[record_at(50, "")]);
    // The clock's hour does not matter, only what passes between ticks: 50 s and 9 s are not a minute.
    assert_eq!(tick(MINUTE, at(1000)), []);
    assert_eq!(tick(MINUTE, at(1009)), []);
    assert_eq!(tick(MINUTE, at(1010)), []);
    assert_eq!(tick(MINUTE, at(1010)), [(0, 1)]);
    assert!(tick(MINUTE, at(1020)).is_empty());
    // What the clock has closed is closed for good.
    assert_eq!(give(&format!("{MINUTE}late = 'keep'"), &[record_at(55, "late")]), ["late"]);
}

#[test]
fn after_a_pause_records_of_a_window_that_nobody_has_opened_are_not_late() {
    give(MINUTE, &[record_at(50, "")]);
    assert_eq!(quiet(MINUTE, at(50)), [(0, 1)]);
    // A device that was cut off sends what it has kept.
    give(MINUTE, &[record_at(70, ""), record_at(130, "")]);
    assert_eq!(quiet(MINUTE, at(3600)), [(60, 1), (120, 1)]);
}

#[test]
fn the_clock_closes_no_window_of_a_backlog_that_is_being_worked_off() {
    let now = at(8 * 3600);
    let mut summaries = Vec::new();
    for minute in 0..30 {
        for second in (0..60).step_by(10) {
            run_records(&mut window(MINUTE), now, &[record_at(minute * 60 + second, "")]);
            summaries.extend(tick(MINUTE, now + minute * 60 * SECOND));
        }
    }
    // A hold: nothing runs for an hour, and then the tick comes before the records.
    assert_eq!(tick(MINUTE, now + 90 * 60 * SECOND), []);
    run_records(&mut window(MINUTE), now, &[record_at(29 * 60 + 55, "")]);
    summaries.extend(quiet(MINUTE, now + 91 * 60 * SECOND));
    let expected: Vec<_> =
        (0..30).map(|minute| (minute * 60, if minute == 29 { 7 } else { 6 })).collect();
    assert_eq!(summaries, expected);
}

#[test]
fn a_clock_that_is_not_set_closes_nothing() {
    let long_ago = 3600 * SECOND;
    let records = [record_at(1, ""), record_at(3000, "")];
    run_records(&mut window(MINUTE), long_ago, &records);
    for n in 0..9 {
        assert_eq!(tick(MINUTE, long_ago + n * 1000 * SECOND), []);
    }
    // It is set, and records come.
    run_records(&mut window(MINUTE), at(3001), &[record_at(3001, "")]);
    assert_eq!(tick(MINUTE, at(3001)), [(0, 1)]);
    assert_eq!(quiet(MINUTE, at(3001)), [(3000, 2)]);
}

#[test]
fn the_time_before_a_clock_is_set_is_no_pause_of_the_source() {
    give(MINUTE, &[record_at(50, "")]);
    assert_eq!(tick(MINUTE, at(51)), []);
    // The host starts again, and its clock stands at 1970 until a server tells the time.
    assert_eq!(tick(MINUTE, 10 * SECOND), []);
    for seconds in 55..59 {
        assert_eq!(tick(MINUTE, at(seconds)), [], "{seconds}");
    }
}

#[test]
fn the_jump_of_a_clock_that_is_set_closes_nothing_by_itself() {
    run_records(&mut window(MINUTE), 0, &[record_at(1, "")]);
    assert_eq!(tick(MINUTE, 5 * SECOND), []);
    assert_eq!(tick(MINUTE, at(2)), []);
    run_records(&mut window(MINUTE), at(3), &[record_at(3, "")]);
    assert_eq!(quiet(MINUTE, at(4)), [(0, 2)]);
}

#[test]
fn a_record_far_ahead_of_the_clock_closes_nothing_and_is_counted_in_its_own_window() {
    let records = [record_at(1, ""), record_at(300_000, ""), record_at(2, "")];
    run_records(&mut window(MINUTE), at(5), &records);
    assert_eq!(tick(MINUTE, at(5)), []);
    run_records(&mut window(MINUTE), at(61), &[record_at(61, "")]);
    assert_eq!(tick(MINUTE, at(61)), [(0, 2)]);
    assert_eq!(quiet(MINUTE, at(70)), [(60, 1), (300_000, 1)]);
}

#[test]
fn records_that_are_all_ahead_of_the_clock_close_by_it() {
    run_records(&mut window(MINUTE), at(0), &[record_at(100, "")]);
    assert_eq!(tick(MINUTE, at(10)), []);
    assert_eq!(tick(MINUTE, at(110)), []);
    assert_eq!(tick(MINUTE, at(120)), []);
    assert_eq!(tick(MINUTE, at(121)), [(60, 1)]);
}

#[test]
fn a_clock_that_was_ahead_makes_nothing_late_for_ever() {
    let year = 365 * 86_400;
    run_records(&mut window(MINUTE), at(year), &[record_at(year, "")]);
    // It is set back, and the records with it.
    run_records(&mut window(MINUTE), at(100), &[record_at(100, ""), record_at(130, "")]);
    let drafts = run_ticks(&mut window(MINUTE), at(140), 0, 1);
    assert!(drafts.is_empty(), "{drafts:?}");
    run_records(&mut window(MINUTE), at(190), &[record_at(190, "")]);
    assert_eq!(tick(MINUTE, at(190)), [(60, 1), (120, 1)]);
}

#[test]
fn late_records_are_dropped_rejected_or_kept_and_counted_nowhere() {
    for (late, expected) in [
        ("", vec![]),
        ("late = 'reject'", vec!["reject: it came after its window was closed"]),
        ("late = 'keep'", vec!["late"]),
    ] {
        forget();
        let config = format!("{MINUTE}{late}");
        give(&config, &[record_at(1, ""), record_at(60, "")]);
        assert_eq!(give(&config, &[record_at(59, "late")]), expected);
        assert_eq!(Open::load().head.late, u64::from(late.is_empty()));
        assert_eq!(tick(&config, at(60)), [(0, 1)]);
        // The log has told of it.
        assert_eq!(Open::load().head.late, 0);
    }
}

#[test]
fn overlapping_windows_count_a_record_in_each_that_is_open() {
    let config = "size = '3s'\nevery = '1s'\nlateness = '0s'";
    // 10 lies in those from 8, 9 and 10, and 11 in those from 9, 10 and 11. Once 12 has come, those from 8 and 9 are closed.
    give(config, &[record_at(10, ""), record_at(12, "")]);
    assert_eq!(tick(config, at(12)), [(8, 1), (9, 1)]);
    give(config, &[record_at(11, "")]);
    assert_eq!(quiet(config, at(13)), [(10, 3), (11, 2), (12, 1)]);
}

#[test]
fn windows_begin_at_multiples_of_their_size_before_1970_too() {
    let config = "size = '1d'\nby = 'all'";
    let of = |time: i64| window(config).ends(time).unwrap();
    let day = 86_400 * SECOND;
    assert_eq!(of(0), [day]);
    assert_eq!(of(-1), [0]);
    assert_eq!(of(-day), [0]);
    assert_eq!(of(day - 1), [day]);
    assert_eq!(window(config).ends(i64::MAX), None);
    assert_eq!(window(config).ends(i64::MIN), None);
    let before = Record { time: -5, ..record_at(0, "") };
    let records = [Record { time: i64::MIN, ..record_at(0, "") }, before.clone(), before];
    assert_eq!(
        run_records(&mut window(config), FIRST, &records),
        ["reject: its time lies in no window"]
    );
    let out = run_ticks(&mut window(config), FIRST, 400 * day, 3);
    assert_eq!(
        out,
        [r#"{"key":null,"start":"1969-12-31T00:00:00Z","end":"1970-01-01T00:00:00Z","count":2}"#]
    );
}

#[test]
fn statistics_take_numbers_and_what_is_none_is_not_counted() {
    let all = r#"["count", "min", "max", "sum", "mean", "first", "last"]"#;
    assert_eq!(
        stats(all, &["3", r#""12""#, "-1.5", "null", "[9]", "true", "1e999", "4"]),
        r#"{"count":3,"min":-1.5,"max":4,"sum":5.5,"mean":1.83333333333333,"first":3,"last":4}"#
    );
    let none = r#"{"count":0,"min":null,"max":null,"sum":null,"mean":null,"first":"a","last":"b"}"#;
    let long = format!("\"{}\"", "x".repeat(200));
    assert_eq!(stats(all, &[r#""a""#, r#""b""#, &long, "{}"]), none);
    assert_eq!(stats(r#"["last", "count"]"#, &["1", "2"]), r#"{"count":2,"last":2}"#);
}

#[test]
fn sums_keep_what_rounding_takes_away() {
    assert_eq!(stats(r#"["sum"]"#, &["1e16", "1", "1", "-1e16"]), r#"{"sum":2}"#);
    assert_eq!(stats(r#"["sum"]"#, &["1", "1e100", "1", "-1e100"]), r#"{"sum":2}"#);
    assert_eq!(stats(r#"["sum", "mean"]"#, &["0.1"; 10]), r#"{"sum":1,"mean":0.1}"#);
    assert_eq!(stats(r#"["sum"]"#, &["9007199254740990", "1"]), r#"{"sum":9007199254740991}"#);
    assert_eq!(stats(r#"["sum", "mean"]"#, &["1e308"; 3]), r#"{"sum":null,"mean":null}"#);
}

#[test]
fn first_and_last_are_those_of_the_records_times() {
    let config = "size = '1m'\nvalues = [{ field = 'v', stats = ['first', 'last'] }]";
    let of = |seconds, value: &str| record_at(seconds, &format!(r#"{{"v":"{value}"}}"#));
    give(
        config,
        &[of(5, "b"), of(5, "c"), of(3, "a"), of(9, "d"), of(9, "e"), of(7, "f"), of(3, "g")],
    );
    let out = run_ticks(&mut window(config), at(9), 3600 * SECOND, 4);
    assert!(out[0].ends_with(r#""values":{"v":{"first":"a","last":"e"}}}"#), "{out:?}");
}

#[test]
fn a_tick_emits_in_the_order_of_ends_and_keys_and_leaves_what_is_too_much_to_the_next() {
    let config = "size = '1m'\nlateness = '1m'\nby = { field = 'd' }";
    let device = |seconds, n| record_at(seconds, &format!(r#"{{"d":{n}}}"#));
    let records: Vec<_> = (0..2500).rev().map(|n| device(70 - i64::from(n % 2) * 60, n)).collect();
    give(config, &records);
    give(config, &[device(180, 1)]);
    let mut made = window(config);
    let first: Vec<String> = run_ticks(&mut made, at(180), 0, 1);
    assert_eq!(first.len(), TICK_RECORDS_MAX as usize);
    let second = run_ticks(&mut made, at(180), 0, 1);
    assert_eq!(second.len(), 500);
    let all: Vec<(i64, String)> = first
        .iter()
        .chain(&second)
        .map(|payload| {
            (
                told(payload).0,
                Object::parse(payload.as_bytes()).unwrap().get("key").unwrap().to_owned(),
            )
        })
        .collect();
    assert!(all.is_sorted());
    assert_eq!(state::keys("", "", 10).len(), 2);
}

#[test]
fn where_there_is_no_room_windows_that_are_closed_come_out_at_once() {
    let config = format!("{MINUTE}open_max = 2\nrecords = 'keep'");
    let out = give(&config, &[record_at(1, "a"), record_at(60, "b"), record_at(120, "c")]);
    assert_eq!(out[..2], ["a", "b"]);
    assert_eq!(out[2..4].iter().map(|out| told(out)).collect::<Vec<_>>(), [(0, 1), (60, 1)]);
    assert_eq!(out[4..], ["c"]);
    assert_eq!(quiet(&config, at(120)), [(120, 1)]);
}

#[test]
fn where_there_is_no_room_and_nothing_is_closed_the_record_is_rejected_and_counted_nowhere() {
    let config = format!("{MINUTE}open_max = 2");
    let of = |subject: &str| Record { subject: subject.to_owned(), ..record_at(1, "") };
    let out = give(&config, &[of("a"), of("b"), of("c"), of("a")]);
    assert_eq!(out, ["reject: 2 windows are open, as many as `open_max`"]);
    assert_eq!(quiet(&config, at(1)), [(0, 2), (0, 1)]);
}

#[test]
fn windows_of_a_clock_that_is_ahead_make_way_before_a_record_is_rejected() {
    let config = format!("{MINUTE}open_max = 3");
    let records = [9000, 12_000, 1, 130].map(|seconds| record_at(seconds, ""));
    let out = run_records(&mut window(&config), at(1), &records[..3]);
    assert!(out.is_empty());
    // The window of now stays, though it ends in the future.
    let of = Record { subject: "other".to_owned(), ..record_at(2, "") };
    let out = run_records(&mut window(&config), at(2), &[of]);
    assert_eq!(out.iter().map(|out| told(out)).collect::<Vec<_>>(), [(9000, 1), (12_000, 1)]);
    assert_eq!(quiet(&config, at(3)), [(0, 1), (0, 1)]);
}

#[test]
fn a_call_touches_only_the_windows_of_its_records() {
    let of = |subject: &str| Record { subject: subject.to_owned(), ..record_at(1, "") };
    give(MINUTE, &[of("a"), of("b")]);
    let name = state::keys("w", "", 9).into_iter().find(|name| name.ends_with(":b")).unwrap();
    // Whoever reads or writes it would leave something else behind.
    state::set(&name, b"unreadable").unwrap();
    give(MINUTE, &[of("a")]);
    assert_eq!(state::get(&name).unwrap(), b"unreadable");
    assert_eq!(quiet(MINUTE, at(1)), [(0, 2)]);
    assert!(snapshot().iter().all(|(key, _)| key == "="));
}

#[test]
fn windows_of_an_older_config_stay_what_they_are_until_they_close() {
    let old = format!("{MINUTE}values = [{{ field = 'v', stats = ['sum'] }}]");
    let new = "size = '30s'\nlateness = '0s'\nby = 'all'";
    let payload = r#"{"v":1}"#;
    give(&old, &[record_at(1, payload), record_at(31, payload)]);
    give(new, &[record_at(32, payload)]);
    let out = run_ticks(&mut window(new), at(40), 1000 * SECOND, 4);
    let (old, new): (Vec<_>, Vec<_>) = out.iter().partition(|out| out.contains("values"));
    assert_eq!(
        *old[0],
        r#"{"key":"plant.hall.temperature","start":"2026-01-01T00:00:00Z","end":"2026-01-01T00:01:00Z","count":2,"values":{"v":{"sum":2}}}"#
    );
    assert_eq!(
        *new[0],
        r#"{"key":null,"start":"2026-01-01T00:00:30Z","end":"2026-01-01T00:01:00Z","count":1}"#
    );
}

#[test]
fn keys_are_told_as_they_are_and_one_that_is_too_long_is_refused() {
    let config = format!("{MINUTE}by = {{ field = 'd' }}");
    let long = format!(r#"{{"d":"{}"}}"#, "k".repeat(500));
    let payloads = [r#"{"d":"a\"b"}"#, r#"{"d":1.50}"#, "{\"d\":[1,\n2]}", r#"{}"#, &long];
    let out = give(&config, &payloads.map(|payload| record_at(1, payload)));
    assert_eq!(out, ["reject: its key has 502 bytes, and at most 400 may be"]);
    let mut out = run_ticks(&mut window(&config), at(1), 1000 * SECOND, 4);
    out.sort();
    let keys: Vec<&str> = out.iter().map(|out| &out[7..out.find(",\"start").unwrap()]).collect();
    assert_eq!(keys, [r#""a\"b""#, "1.50", "[1,2]", "null"]);
}

#[test]
fn a_record_that_is_no_object_has_a_named_outcome_where_one_is_needed() {
    for more in ["by = { field = 'a' }\n", "values = [{ field = 'a' }]\n"] {
        for payload in ["", "17", "[1]", "{", "{}{}"] {
            let given = |not_json: &str| {
                forget();
                let out = give(&format!("{MINUTE}{more}{not_json}"), &[record_at(1, payload)]);
                assert!(state::keys("w", "", 1).is_empty(), "{payload}");
                out
            };
            assert!(given("")[0].starts_with("reject: no JSON object"));
            assert_eq!(given("not_json = 'keep'"), [payload]);
            assert!(given("not_json = 'drop'").is_empty());
        }
    }
}

#[test]
fn a_tick_without_open_windows_changes_nothing() {
    assert_eq!(tick(MINUTE, at(1)), []);
    assert!(snapshot().is_empty());
    give(MINUTE, &[record_at(1, "")]);
    assert_eq!(quiet(MINUTE, at(1)), [(0, 1)]);
    let before = snapshot();
    assert_eq!(tick(MINUTE, at(900)), []);
    assert_eq!(snapshot(), before);
}

#[test]
fn each_mistake_in_the_config_is_told_with_its_key() {
    for (config, expected) in [
        ("", "size: it is missing"),
        ("size = 10", "config.size: invalid type, expected a string"),
        ("size = '10'", "config.size: \"10\" is no time from 0s to 366d"),
        ("size = '0s'", "size: no time makes no sense"),
        ("size = '1m'\nevery = '0s'", "every: no time makes no sense"),
        ("size = '1m'\nevery = '2m'", "every: it is more than `size`"),
        ("size = '61s'\nevery = '1s'", "every: a record would lie in 61 windows, and at most 60"),
        ("size = '1m'\nby = 'device'", "config.by: unknown variant"),
        ("size = '1m'\nby = { field = 'a.*' }", "by.field: a * cannot stand here"),
        ("size = '1m'\nvalues = [{ field = '*' }]", "values[0].field: a * cannot stand here"),
        ("size = '1m'\nvalues = [{ field = 'a', stats = [] }]", "values[0].stats: there are none"),
        (
            "size = '1m'\nvalues = [{ field = 'a', stats = ['min', 'min'] }]",
            "values[0].stats: one is there twice",
        ),
        (
            "size = '1m'\nvalues = [{ field = 'a', stats = ['median'] }]",
            "config.values[0].stats[0]: unknown variant",
        ),
        (
            "size = '1m'\nvalues = [{ field = 'a' }, { field = 'a' }]",
            "values[1].name: another one has this name",
        ),
        ("size = '1m'\nvalues = [{ field = 'a', name = '' }]", "values[0].name: it has 0 bytes"),
        ("size = '1m'\nlateness = '-1s'", "config.lateness: \"-1s\" is no time"),
        ("size = '1m'\nlate = 'ignore'", "config.late: unknown variant"),
        ("size = '1m'\nrecords = 'pass'", "config.records: unknown variant"),
        ("size = '1m'\nsubject = '{device}'", "subject: {device} is no placeholder"),
        ("size = '1m'\nopen_max = 0", "open_max: 0 is not 1 to 20000"),
        ("size = '1m'\nevery = '1s'\nopen_max = 59", "open_max: one record lies in 60 windows"),
        ("size = '1m'\ntick = '10s'", "config.tick: unknown field"),
    ] {
        assert!(error(config).starts_with(expected), "{config}: {}", error(config));
    }
    let many = error(
        "every = '0s'\nopen_max = 0\nsubject = '{'\nby = { field = '*' }\nvalues = [{ field = 'a', stats = [] }]",
    );
    for key in ["size", "every", "open_max", "subject", "by.field", "values[0].stats"] {
        assert!(many.contains(&format!("{key}:")), "{key}: {many}");
    }
}

#[test]
fn the_schema_is_that_of_the_config() {
    assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_tells_the_truth() {
    assert_page_with_ticks::<Window>(include_str!("../README.md"), include_str!("../schema.json"));
}
