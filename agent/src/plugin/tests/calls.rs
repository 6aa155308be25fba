//! Calls: what goes in and comes out, and each limit.

use super::*;
use crate::telemetry::captured::Captured;

#[test]
fn a_kept_record_is_not_touched_and_a_thousand_have_a_thousand_outcomes() {
    let host = TestHost::new();
    let payloads: Vec<_> = (0..1000).map(|n| format!("payload {n}")).collect();
    let texts: Vec<_> = payloads.iter().map(String::as_str).collect();
    let outcomes = run(&host.guest("{}"), &texts).unwrap();
    assert_eq!(outcomes.len(), 1000);
    assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Keep));
    assert_eq!(run(&host.guest("{}"), &[]).unwrap(), []);
}

#[test]
fn every_outcome_arrives_as_the_guest_made_it() {
    let host = TestHost::new();
    let one = |config: &str| run(&host.guest(config), &["abc"]).unwrap().remove(0);
    assert_eq!(one(r#"{"do":"drop"}"#), Outcome::Drop);
    assert_eq!(one(r#"{"do":"payload"}"#), Outcome::Payload(b"ABC".to_vec()));
    assert_eq!(one(r#"{"do":"reject"}"#), Outcome::Reject("seq 1 is refused".to_owned()));
    let draft = |part: usize, time| Draft {
        time,
        subject: format!("sensors.hall.{part}"),
        headers: [("content-type", "application/json"), ("x", "1"), ("sink", "archive")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        payload: b"abc".to_vec(),
    };
    assert_eq!(one(r#"{"do":"replace"}"#), Outcome::Replace(draft(0, Some(Timestamp(77)))));
    let parts = vec![draft(0, None), draft(1, None), draft(2, None)];
    assert_eq!(one(r#"{"do":"split","size":3}"#), Outcome::Split(parts));
    assert_eq!(one(r#"{"do":"split","size":0}"#), Outcome::Split(vec![]));
}

#[test]
fn any_bytes_go_in_and_come_out_as_they_are() {
    let host = TestHost::new();
    let all: Vec<u8> = (0..=255).filter(|byte: &u8| !byte.is_ascii_lowercase()).collect();
    let payloads = [&all[..], b"", b"\0", b"\xff\xfe", &[b'X'; 1 << 20]];
    let records = Records::new(payloads);
    let plugin = host.guest(r#"{"do":"payload"}"#);
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let outcomes = instance.process(Timestamp(0), &records.views()).unwrap();
    for (outcome, payload) in outcomes.into_iter().zip(payloads) {
        assert_eq!(outcome, Outcome::Payload(payload.to_vec()));
    }
}

#[test]
fn what_the_plugin_says_of_a_whole_call_is_no_fault_and_the_instance_lives_on() {
    let host = TestHost::new();
    let plugin = host.guest(r#"{"do":"retryable","on":"later"}"#);
    let records = Records::new(["now", "later"]);
    let views = records.views();
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let error = instance.process(Timestamp(0), &views).unwrap_err();
    assert!(matches!(&error, CallError::Retryable(why) if why == "come back later"), "{error}");
    assert_eq!(instance.process(Timestamp(0), &views[..1]).unwrap(), [Outcome::Keep]);
    let error = run(&host.guest(r#"{"do":"permanent"}"#), &["x"]).unwrap_err();
    assert!(matches!(&error, CallError::Permanent(why) if why == "never again"), "{error}");
}

#[test]
fn a_trap_is_a_fault_and_its_instance_is_dead() {
    let host = TestHost::new();
    let plugin = host.guest(r#"{"trap_on":"poison"}"#);
    let records = Records::new(["good", "poison"]);
    let views = records.views();
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    assert_eq!(instance.process(Timestamp(0), &views[..1]).unwrap(), [Outcome::Keep]);
    let (kind, text) = fault(instance.process(Timestamp(0), &views));
    assert_eq!(kind, FaultKind::Trap, "{text}");
    let error = instance.process(Timestamp(0), &views[..1]).unwrap_err();
    assert!(matches!(error, CallError::Host(_)), "{error}");
    let mut fresh = plugin.instantiate(&place(), StateView::default()).unwrap();
    assert_eq!(fresh.process(Timestamp(0), &views[..1]).unwrap(), [Outcome::Keep]);
}

#[test]
fn a_spinning_guest_is_stopped_soon_after_its_deadline() {
    let host = TestHost::new();
    let plugin = host.guest_with(r#"{"do":"spin"}"#, |config| {
        config.guest.deadline = Duration::from_millis(100);
    });
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let records = Records::new(["x"]);
    let started = SystemClock.monotonic();
    let (kind, text) = fault(instance.process(Timestamp(0), &records.views()));
    let elapsed = SystemClock.monotonic().since(started);
    assert_eq!((kind, text.as_str()), (FaultKind::Deadline, "it took longer than its 100 ms"));
    // The upper bound leaves room for a busy machine; on an idle one it is some 15 ms over.
    assert!(elapsed >= Duration::from_millis(100), "{elapsed:?}");
    assert!(elapsed < Duration::from_millis(1000), "{elapsed:?}");
}

#[test]
fn a_memory_bomb_is_stopped_and_the_fault_names_memory() {
    let host = TestHost::new();
    let plugin = host.guest_with(r#"{"do":"memory"}"#, |config| {
        config.guest.memory_max = ByteSize(16 << 20);
        config.guest.deadline = Duration::from_secs(60);
    });
    let (kind, text) = fault(run(&plugin, &["x"]));
    assert_eq!(kind, FaultKind::Memory);
    assert!(text.contains("memory") && text.contains("memory_max is 16MiB"), "{text}");
}

#[test]
fn a_guest_that_needs_more_memory_than_it_may_does_not_start() {
    let host = TestHost::new();
    let plugin = host.guest_with("{}", |config| config.guest.memory_max = ByteSize(64 << 10));
    let error = plugin.instantiate(&place(), StateView::default()).unwrap_err();
    let CallError::Fault(fault) = error else { panic!("{error}") };
    assert_eq!(fault.kind, FaultKind::Memory);
    assert!(fault.text.starts_with("in init: memory"), "{}", fault.text);
}

#[test]
fn endless_recursion_is_stopped() {
    let host = TestHost::new();
    let (kind, text) = fault(run(&host.guest(r#"{"do":"stack"}"#), &["x"]));
    assert_eq!(kind, FaultKind::Stack, "{text}");
}

#[test]
fn output_over_the_limit_is_a_fault_and_output_within_it_is_not() {
    let host = TestHost::new();
    let bytes = |size: usize| {
        let plugin = host.guest_with(&format!(r#"{{"do":"output","size":{size}}}"#), |config| {
            config.guest.memory_max = ByteSize(256 << 20);
            config.guest.deadline = Duration::from_secs(60);
        });
        run(&plugin, &["x"])
    };
    assert!(bytes(16 << 20).is_ok());
    let (kind, text) = fault(bytes(17 << 20));
    assert_eq!(
        (kind, text.as_str()),
        (FaultKind::Output, "it handed over more than 16.0 MiB at once")
    );
}

#[test]
fn one_string_for_the_log_cannot_make_the_host_allocate_without_end() {
    let host = TestHost::new();
    let plugin = host.guest_with(r#"{"do":"host_call","size":20000000}"#, |config| {
        config.guest.deadline = Duration::from_secs(60);
    });
    assert_eq!(fault(run(&plugin, &["x"])).0, FaultKind::Output);
}

#[test]
fn a_draft_beyond_the_bounds_of_records_is_a_fault() {
    let host = TestHost::new();
    let mut headers = HeadersBuffer::default();
    headers.push("large", &"v".repeat(crate::limits::HEADERS_BYTES_MAX - 16));
    let mut frames = FrameBuffer::default();
    frames.push_new(Timestamp(0), "s", headers.as_headers(), b"x");
    let records = Records(frames);
    let plugin = host.guest(r#"{"do":"replace"}"#);
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let (kind, text) = fault(instance.process(Timestamp(0), &records.views()));
    assert_eq!(kind, FaultKind::Output);
    assert!(text.contains("seq 1 has headers of"), "{text}");
}

#[test]
fn a_wrong_number_of_outcomes_is_a_fault() {
    let host = TestHost::new();
    let (kind, text) = fault(run(&host.guest(r#"{"do":"count"}"#), &["a", "b", "c"]));
    assert_eq!((kind, text.as_str()), (FaultKind::WrongCount, "2 outcomes for 3 records"));
}

#[test]
fn what_goes_wrong_in_init_is_said_as_such() {
    let host = TestHost::new();
    let init = |config: &str| {
        let plugin = host.guest(config);
        match plugin.instantiate(&place(), StateView::default()) {
            Err(CallError::Fault(fault)) => (fault.kind, fault.text),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        init(r#"{"do":"init_error"}"#),
        (FaultKind::InitError, "no use in telemetry".to_owned())
    );
    let (kind, text) = init(r#"{"do":"init_trap"}"#);
    assert_eq!(kind, FaultKind::Trap);
    assert!(text.starts_with("in init: "), "{text}");
    let (kind, text) = init(r#"{"doo":1}"#);
    assert_eq!(kind, FaultKind::InitError);
    assert!(text.contains("unknown field `doo`"), "{text}");
    let (kind, text) = init(r#"{"do":"init_state"}"#);
    assert_eq!(
        (kind, text.as_str()),
        (FaultKind::InitError, "the state is read-only in init and probe")
    );
    assert_eq!(init(r#"{"do":"init_delete"}"#).0, FaultKind::Contract);
}

#[test]
fn a_guest_that_spins_in_init_is_stopped() {
    let host = TestHost::new();
    let plugin = host.guest(r#"{"do":"init_spin"}"#);
    let error = plugin.instantiate(&place(), StateView::default()).unwrap_err();
    assert_eq!(error.to_string(), "deadline: in init: it took longer than its 10000 ms");
}

#[test]
fn state_is_seen_changed_and_handed_back_as_a_delta() {
    let host = TestHost::new();
    let stored: BTreeMap<String, Arc<[u8]>> =
        [("seen", "41"), ("gone", "x"), ("record/000", "zero"), ("record/009", "nine")]
            .map(|(key, value)| (key.to_owned(), value.as_bytes().into()))
            .into();
    let base = Arc::new(State::new(stored));
    let plugin = host.guest(r#"{"do":"state"}"#);
    let view = StateView::new(Arc::clone(&base), StateDelta::new());
    let mut instance = plugin.instantiate(&place(), view).unwrap();
    let records = Records::new(["one", "two", "three"]);
    let outcomes = instance.process(Timestamp(0), &records.views()).unwrap();
    let answers: Vec<_> =
        ["42 record/009", "43 record/002 record/009", "44 record/002 record/003 record/009"]
            .map(|text| Outcome::Payload(text.into()))
            .into();
    assert_eq!(outcomes, answers);
    let delta = instance.into_state().into_delta();
    let value = |text: &str| Some(Arc::from(text.as_bytes()));
    let expected: StateDelta = [
        ("gone", None),
        ("record/001", value("one")),
        ("record/002", value("two")),
        ("record/003", value("three")),
        ("seen", value("44")),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    assert_eq!(delta, expected);
    assert_eq!(base.entries().len(), 4, "what is stored did not change");
}

#[test]
fn a_guest_is_told_which_limit_of_the_state_it_met() {
    let host = TestHost::new();
    let outcomes = run(&host.guest(r#"{"do":"state_size","size":1048577}"#), &["x"]).unwrap();
    let reason = "a value of 1048577 bytes is over the limit of 1048576".to_owned();
    assert_eq!(outcomes, [Outcome::Reject(reason)]);
    let outcomes = run(&host.guest(r#"{"do":"state_size","size":1048576}"#), &["x"]).unwrap();
    assert_eq!(outcomes, [Outcome::Keep]);
}

#[test]
fn a_flood_of_log_lines_is_bounded_counted_and_said_once() {
    let host = TestHost::new();
    let log = Captured::default();
    tracing::subscriber::with_default(log.subscriber(), || {
        let plugin = host.guest(r#"{"do":"log","size":250}"#);
        run(&plugin, &["a", "b"]).unwrap();
        assert_eq!(plugin.log_lines_left_out(), 400);
        host.clock.advance(Duration::from_secs(1));
        run(&plugin, &["c"]).unwrap();
        assert_eq!(plugin.log_lines_left_out(), 550);
    });
    let text = log.text();
    assert_eq!(text.matches("of 1 plugin=guest lane=gw-1/sensors/telemetry/archive").count(), 200);
    let said: Vec<_> = text.lines().filter(|line| line.contains("left out")).collect();
    assert!(said[0].contains("count=400") && said[1].contains("count=150"), "{said:?}");
    assert_eq!(said.len(), 2);
    assert!(text.contains("line 0 of 1"), "a line break in a message starts no new line");
}

#[test]
fn calls_are_counted_with_their_time_and_those_that_broke_down() {
    let host = TestHost::new();
    let good = host.guest("{}");
    assert_eq!(good.calls(), PluginCalls::default());
    run(&good, &["a", "b"]).unwrap();
    let PluginCalls { count, time, broken } = good.calls();
    assert_eq!((count, broken), (2, 0), "one of init and one of process");
    assert!(time > Duration::ZERO);
    let spinning = host.guest_with(r#"{"do":"spin"}"#, |config| {
        config.guest.deadline = Duration::from_millis(50);
    });
    fault(run(&spinning, &["x"]));
    let PluginCalls { count, time, broken } = spinning.calls();
    assert_eq!((count, broken), (2, 1));
    assert!(time >= Duration::from_millis(50), "{time:?}");
}

#[test]
fn a_plugin_of_the_sdk_says_where_it_has_panicked_and_not_why() {
    let host = TestHost::new();
    let log = Captured::default();
    tracing::subscriber::with_default(log.subscriber(), || {
        fault(run(&host.guest(r#"{"do":"trap"}"#), &["x"]));
    });
    let text = log.text();
    assert!(
        text.contains("ERROR") && text.contains("the plugin panicked at test-guests/src/lib.rs:")
    );
    assert!(!text.contains("planted"), "{text}");
}

#[test]
fn an_instance_can_be_used_on_another_thread_than_the_one_that_made_it() {
    let host = TestHost::new();
    let plugin = host.guest("{}");
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let records = Records::new(["x"]);
    let outcomes = std::thread::scope(|scope| {
        scope.spawn(|| instance.process(Timestamp(0), &records.views()).unwrap()).join().unwrap()
    });
    assert_eq!(outcomes, [Outcome::Keep]);
}

#[test]
fn a_spinning_guest_does_not_stop_its_neighbours() {
    let host = TestHost::new();
    let spinning = host.guest_with(r#"{"do":"spin"}"#, |config| {
        config.guest.deadline = Duration::from_millis(200);
    });
    let good = host.guest_with("{}", |config| config.guest.deadline = Duration::from_secs(10));
    std::thread::scope(|scope| {
        let spinner = scope.spawn(|| fault(run(&spinning, &["x"])).0);
        while !spinner.is_finished() {
            assert_eq!(run(&good, &["x"]).unwrap(), [Outcome::Keep]);
        }
        assert_eq!(spinner.join().unwrap(), FaultKind::Deadline);
    });
}

#[test]
fn ten_thousand_batches_leave_no_memory_behind() {
    let host = TestHost::new();
    let plugin = host.guest(r#"{"do":"payload"}"#);
    let payload = "x".repeat(10_000);
    let batches = |count: usize| (0..count).for_each(|_| drop(run(&plugin, &[&payload]).unwrap()));
    batches(500);
    let before = resident_bytes();
    batches(10_000);
    let more = resident_bytes().saturating_sub(before);
    // Other tests run in this process too; a leak of an instance a batch would be a gigabyte.
    assert!(more < 256 << 20, "{more} bytes more");
}

fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// The fault of a tick, or what it made.
fn tick(plugin: &Plugin) -> Result<Vec<Draft>, CallError> {
    plugin.instantiate(&place(), StateView::default())?.tick(Timestamp(77))
}

#[test]
fn a_tick_gives_drafts_and_its_changes_and_keeps_them_apart_from_those_of_records() {
    let host = TestHost::new();
    let plugin = host.guest(r#"{"tick":"emit","size":2}"#);
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let made = instance.tick(Timestamp(77)).unwrap();
    let payloads: Vec<_> = made.iter().map(|draft| draft.payload.as_slice()).collect();
    assert_eq!(payloads, [b"tick 1.0", b"tick 1.1"]);
    assert_eq!((made[0].time, made[0].subject.as_str()), (None, "ticks"));
    let delta = instance.into_state().into_delta();
    assert_eq!(delta.keys().collect::<Vec<_>>(), ["ticks"]);
    assert_eq!(tick(&host.guest("{}")).unwrap(), []);
}

#[test]
fn a_tick_meets_the_limits_of_a_call_and_one_of_its_own() {
    let host = TestHost::new();
    let fault = |config: &str| match tick(&host.guest(config)) {
        Err(CallError::Fault(fault)) => (fault.kind, fault.text),
        other => panic!("no fault: {other:?}"),
    };
    assert_eq!(fault(r#"{"tick":"trap"}"#).0, FaultKind::Trap);
    let (kind, text) = fault(r#"{"tick":"emit","size":10001}"#);
    assert_eq!(kind, FaultKind::Output);
    assert!(text.contains("10001 records of one tick are over the limit of 10000"), "{text}");
    let slow = host.guest_with(r#"{"tick":"spin"}"#, |settings| {
        settings.guest.deadline = Duration::from_millis(50);
    });
    assert!(
        matches!(tick(&slow), Err(CallError::Fault(fault)) if fault.kind == FaultKind::Deadline)
    );
    let said = tick(&host.guest(r#"{"tick":"retryable"}"#)).unwrap_err();
    assert!(matches!(said, CallError::Retryable(_)), "{said}");
}
