use waystation_plugin::state;
use waystation_plugin::testing::{assert_page, assert_schema, forget, record, run, transform};

use super::*;

fn sampled(config: &str, payloads: &[&str]) -> Vec<String> {
    run(&mut transform::<Sample>(config).unwrap(), payloads)
}

fn error(config: &str) -> String {
    transform::<Sample>(config).err().expect(config)
}

/// Which of these records pass, all in one call.
fn passing(made: &mut Sample, records: &[Record]) -> Vec<bool> {
    let outcomes = made.process(0, records.to_vec()).unwrap();
    outcomes.iter().map(|outcome| matches!(outcome, Outcome::Keep)).collect()
}

/// Records of subjects `s0`, `s1`, …, one a second.
fn with_subjects(subjects: &[usize]) -> Vec<Record> {
    let records = subjects.iter().zip(1..).map(|(subject, seq)| Record {
        subject: format!("s{subject}"),
        ..record(seq, &format!(r#"{{"v":{}}}"#, seq / 3))
    });
    records.collect()
}

#[test]
fn the_first_record_passes_and_then_every_nth_of_its_key() {
    let config = "every = 3\nby = { field = 'd' }";
    let payloads = ["1", "1", "2", "1", "1", "2", "1", "1"].map(|d| format!(r#"{{"d":{d}}}"#));
    let mut made = transform::<Sample>(config).unwrap();
    let records: Vec<_> =
        payloads.iter().zip(1..).map(|(payload, seq)| record(seq, payload)).collect();
    assert_eq!(passing(&mut made, &records), [true, false, true, false, true, false, false, false]);
    assert_eq!(passing(&mut made, &records)[..2], [true, false]);
}

#[test]
fn one_record_passes_in_an_interval_by_the_records_own_time() {
    let mut made = transform::<Sample>("interval = '10s'").unwrap();
    let at = |seconds: i64| Record { time: seconds * 1_000_000_000, ..record(1, "no JSON") };
    let times = [0, 9, 10, 15, 19, 20, 14, 45, 44, 20];
    let records: Vec<_> = times.map(at).to_vec();
    // 14 is a late one. 20 after 45 is a clock that was set back; it must not silence the key until 55.
    assert_eq!(
        passing(&mut made, &records),
        [true, false, true, false, false, true, false, true, false, true]
    );
}

#[test]
fn a_number_passes_when_it_leaves_the_band_around_the_one_that_passed_last() {
    let numbers = |config: &str, values: &[&str]| {
        forget();
        let payloads: Vec<_> = values.iter().map(|value| format!(r#"{{"v":{value}}}"#)).collect();
        let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
        let out = sampled(&format!("on_change = [{{ field = 'v'{config} }}]"), &payloads);
        out.iter().map(|out| out[5..out.len() - 1].to_owned()).collect::<Vec<_>>()
    };
    // A slow drift adds up: the band lies around what passed, not around what came.
    let values = ["20.0", "20.4", "20.5", "20.6", "20.2", "20.0", "21.2"];
    assert_eq!(numbers(", absolute = 0.5", &values), ["20.0", "20.6", "20.0", "21.2"]);
    let values = ["100", "109", "110", "111", "100", "99", "0", "0.001"];
    assert_eq!(numbers(", percent = 10", &values), ["100", "111", "99", "0", "0.001"]);
    assert_eq!(numbers("", &["1", "1.0", "1e0", "1.5", "1.5"]), ["1", "1.5"]);
}

#[test]
fn other_values_pass_when_they_differ_and_a_field_may_come_and_go() {
    let config = "on_change = [{ field = 's.x', absolute = 5 }, { field = 't' }]";
    let long = format!(r#"{{"t":"{}"}}"#, "x".repeat(300));
    let other = format!(r#"{{"t":"{}y"}}"#, "x".repeat(300));
    let payloads = [
        r#"{"s":{"x":1}}"#,
        r#"{"s":{"x":3}}"#,
        r#"{"s":{"x":"1"}}"#,
        r#"{"s":{"x":null}}"#,
        r#"{"s":{}}"#,
        r#"{"s":7}"#,
        r#"{"t":"on"}"#,
        r#"{"t":"on"}"#,
        r#"{"t":"off"}"#,
        &long,
        &long,
        &other,
    ];
    let out = sampled(config, &payloads);
    let expected: Vec<&str> = [0, 2, 3, 4, 6, 8, 9, 11].map(|at| payloads[at]).to_vec();
    assert_eq!(out, expected);
}

#[test]
fn silence_ends_after_its_time_though_nothing_has_changed() {
    let config = "on_change = [{ field = 'v' }]\nmax_silence = '3s'";
    let payloads = [r#"{"v":1}"#; 8];
    assert_eq!(sampled(config, &payloads).len(), 3);
}

#[test]
fn records_without_a_key_belong_together_and_all_do_when_the_config_says_so() {
    assert_eq!(sampled("every = 2\nby = { field = 'd' }", &["{}", "{}", "{}"]).len(), 2);
    forget();
    let records = with_subjects(&[0, 1, 2, 3]);
    let count = |config: &str| {
        forget();
        let passed = passing(&mut transform::<Sample>(config).unwrap(), &records);
        passed.iter().filter(|passed| **passed).count()
    };
    assert_eq!(count("every = 4\nby = 'subject'"), 4);
    assert_eq!(count("every = 4\nby = 'all'"), 1);
    assert_eq!(count("every = 4\nby = { header = 'device' }"), 1);
    assert_eq!(count("every = 4\nby = { header = 'none' }"), 1);
}

#[test]
fn long_keys_are_told_apart() {
    let key = |end: &str| format!(r#"{{"d":"{}{end}"}}"#, "k".repeat(2000));
    let payloads = [key("a"), key("b"), key("a")];
    let payloads: Vec<&str> = payloads.iter().map(String::as_str).collect();
    assert_eq!(sampled("every = 9\nby = { field = 'd' }", &payloads).len(), 2);
    assert!(state::keys("", "", 10).iter().all(|key| key.len() <= 202));
}

#[test]
fn however_records_are_cut_into_calls_and_instances_the_same_ones_pass() {
    // A fixed sequence that looks like chance.
    let mut seed = 7_u32;
    let mut next = |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as usize % below as usize
    };
    let subjects: Vec<usize> = (0..600).map(|_| next(12)).collect();
    let records = with_subjects(&subjects);
    for config in [
        "every = 4",
        "interval = '30s'",
        "on_change = [{ field = 'v', absolute = 20 }]\nmax_silence = '2m'",
        "every = 4\nkeys_max = 6",
    ] {
        forget();
        let whole = passing(&mut transform::<Sample>(config).unwrap(), &records);
        assert!(whole.contains(&true) && whole.contains(&false), "{config}");
        for most in [1, 3, 50] {
            forget();
            let mut cut = Vec::new();
            while cut.len() < records.len() {
                let end = (cut.len() + 1 + next(most)).min(records.len());
                let mut made = transform::<Sample>(config).unwrap();
                cut.extend(passing(&mut made, &records[cut.len()..end]));
            }
            assert_eq!(cut, whole, "{config}, calls of at most {most}");
        }
    }
}

#[test]
fn a_call_whose_state_was_not_stored_leaves_nothing_behind() {
    let mut made = transform::<Sample>("every = 3").unwrap();
    let records = with_subjects(&[0, 0]);
    let first = passing(&mut made, &records);
    // The agent gives up the batch, and with it what the call has stored; the instance may live on.
    forget();
    assert_eq!(passing(&mut made, &records), first);
}

#[test]
fn keys_are_bounded_and_those_that_come_again_and_again_are_not_forgotten() {
    let mut made = transform::<Sample>("every = 1000\nkeys_max = 10").unwrap();
    // s0 comes after every third stranger.
    let subjects: Vec<usize> =
        (1..400).flat_map(|n| if n % 3 == 0 { vec![n, 0] } else { vec![n] }).collect();
    let records = with_subjects(&subjects);
    let mut passed = 0;
    for call in records.chunks(7) {
        let outcomes = passing(&mut made, call);
        let of_s0 =
            call.iter().zip(outcomes).filter(|(record, passed)| record.subject == "s0" && *passed);
        passed += of_s0.count();
        let keys = state::keys("", "", 1000).len();
        assert!(keys <= 11, "{keys} entries, one of which is the head");
    }
    assert_eq!(passed, 1);
    // A stranger of long ago is a stranger again.
    assert_eq!(passing(&mut made, &with_subjects(&[1])), [true]);
}

#[test]
fn a_record_that_is_no_object_has_a_named_outcome_where_one_is_needed() {
    for config in ["every = 2\nby = { field = 'a' }\n", "on_change = [{ field = 'a' }]\n"] {
        for payload in ["", "17", "[1]", "{", "{}{}"] {
            assert!(sampled(config, &[payload])[0].starts_with("reject: no JSON object"));
            assert_eq!(sampled(&format!("{config}not_json = 'keep'"), &[payload]), [payload]);
            assert!(sampled(&format!("{config}not_json = 'drop'"), &[payload]).is_empty());
        }
    }
    assert_eq!(sampled("every = 2", &["no JSON", "no JSON", "no JSON"]).len(), 2);
}

#[test]
fn each_mistake_in_the_config_is_told_with_its_key() {
    for (config, expected) in [
        ("", "every: it is missing, and `interval` and `on_change` too"),
        ("every = 2\ninterval = '1s'", "every: only one of `every`, `interval` and `on_change`"),
        ("every = 0", "every: 0 makes no sense"),
        ("every = -1", "config.every: invalid value, expected u64"),
        ("interval = 10", "config.interval: invalid type, expected a string"),
        ("interval = '10'", "config.interval: \"10\" is no time from 0s to 366d"),
        ("interval = '0s'", "interval: no time makes no sense"),
        ("every = 2\nmax_silence = '1s'", "max_silence: it belongs to `on_change`"),
        ("on_change = []", "on_change: there are 0, and 1 to 8 make sense"),
        ("on_change = [{ field = '*' }]", "on_change[0].field: a * cannot stand here"),
        (
            "on_change = [{ field = 'a', absolute = -1 }]",
            "on_change[0].absolute: it is less than 0",
        ),
        (
            "on_change = [{ field = 'a', absolute = 1, percent = 1 }]",
            "on_change[0].percent: `absolute` is there",
        ),
        (
            "on_change = [{ field = 'a', deadband = 1 }]",
            "config.on_change[0].deadband: unknown field",
        ),
        ("every = 2\nby = 'device'", "config.by: unknown variant"),
        ("every = 2\nby = { field = 'a.*' }", "by.field: a * cannot stand here"),
        ("every = 2\nkeys_max = 1", "keys_max: 1 is not 2 to 50000"),
        ("every = 2\nkeys = 1", "config.keys: unknown field"),
    ] {
        assert!(error(config).starts_with(expected), "{config}: {}", error(config));
    }
    let two = error("max_silence = '1s'\nkeys_max = 1");
    assert!(
        two.contains("max_silence") && two.contains("every") && two.contains("keys_max"),
        "{two}"
    );
}

#[test]
fn the_schema_is_that_of_the_config() {
    assert_schema::<Config>(include_str!("../schema.json"));
}

#[test]
fn the_page_tells_the_truth() {
    assert_page::<Sample>(include_str!("../README.md"), include_str!("../schema.json"));
}
