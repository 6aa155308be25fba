//! Figures rather than judgements: run with `--ignored --nocapture`, optimised.

use super::*;

const BATCH: usize = 100;

fn lines() -> Vec<String> {
    let status = |n: usize| if n.is_multiple_of(10) { "bad" } else { "ok" };
    (0..BATCH)
        .map(|n| {
            format!(
                r#"{{"seq":{n},"ts":"2026-01-01T00:00:17Z","site":"plant-7","device":"press-03","sensor":"temp-2","status":"{}","temperature_c":21.53,"humidity":44.1,"pressure_hpa":1013.2,"vibration_mm_s":0.82,"battery_v":3.61,"fw":"2.4.1"}}"#,
                status(n)
            )
        })
        .collect()
}

/// Nanoseconds a record, the best of some rounds.
fn measure(mut batch: impl FnMut()) -> u128 {
    const BATCHES: u128 = 200;
    let round = |_| {
        let started = SystemClock.monotonic();
        (0..BATCHES).for_each(|_| batch());
        SystemClock.monotonic().since(started).as_nanos() / (BATCHES * BATCH as u128)
    };
    (0..5).map(round).min().unwrap()
}

/// What `clean` does, with serde_json's own types.
fn native(line: &str, out: &mut Vec<u8>) {
    let mut object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(line).unwrap();
    if object.get("status").and_then(|status| status.as_str()) == Some("bad") {
        return;
    }
    let fields = std::mem::take(&mut object).into_iter().map(|(name, value)| {
        match (name.as_str(), value.as_f64()) {
            ("temperature_c", Some(celsius)) => {
                ("temperature_f".to_owned(), ((celsius * 1.8 + 32.0) * 1000.0).round().into())
            }
            _ => (name, value),
        }
    });
    object = fields.collect();
    object.insert("cleaned_by".to_owned(), "telemetry".into());
    out.clear();
    serde_json::to_writer(out, &object).unwrap();
}

#[test]
#[ignore = "prints figures"]
fn nanoseconds_a_record() {
    let host = TestHost::new();
    let lines = lines();
    let records = Records::new(&lines);
    let views = records.views();
    let pass = host.guest("{}");
    let mut settings = settings(compiled("clean").0);
    settings.guest.sha256 = Some(compiled("clean").1);
    let clean = host.host.load(&settings).unwrap();
    for (name, plugin) in [("pass", &pass), ("clean", &clean)] {
        let fresh = measure(|| {
            let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
            assert_eq!(instance.process(Timestamp(0), &views).unwrap().len(), BATCH);
        });
        let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
        let reused = measure(|| {
            assert_eq!(instance.process(Timestamp(0), &views).unwrap().len(), BATCH);
        });
        println!(
            "{name}: {fresh} ns a record with an instance a batch, {reused} ns with one for all"
        );
    }
    let mut out = Vec::new();
    let ns = measure(|| lines.iter().for_each(|line| native(line, &mut out)));
    println!("native serde_json: {ns} ns a record");
}

#[test]
#[ignore = "prints figures"]
fn milliseconds_to_load_and_to_stop() {
    let host = TestHost::new();
    let settings = settings(component("clean"));
    let digest = sha256(&fs::read(&settings.guest.plugin).unwrap());
    let folder = host.dir.path().join("compiled");
    let key = compiled::key(digest, host.host.kept.compatibility());
    let code =
        compile_file(&settings.guest.plugin, &folder.join(format!("{key}.code")), None).unwrap();
    host.digests.put(&key, code).unwrap();
    let started = SystemClock.monotonic();
    let plugins: Vec<_> = (0..5).map(|_| host.host.load(&settings).unwrap()).collect();
    println!("5 compiled plugins loaded in {:?}", SystemClock.monotonic().since(started));
    drop(plugins);

    let plugin = host.guest(r#"{"do":"spin"}"#);
    let mut instance = plugin.instantiate(&place(), StateView::default()).unwrap();
    let records = Records::new(["x"]);
    let started = SystemClock.monotonic();
    fault(instance.process(Timestamp(0), &records.views()));
    println!("deadline 1 s, stopped after {:?}", SystemClock.monotonic().since(started));
}
