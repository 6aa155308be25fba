//! What holds for any records, however they are cut into calls and wherever ticks and restarts fall between them.

use super::*;

/// A fixed sequence that looks like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, most: i64) -> i64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(self.0 >> 33).unwrap() % most
    }
}

/// One run of the plugin or one tick of the host.
#[derive(Clone, Debug)]
enum Step {
    Records(i64, Vec<Record>),
    Tick(i64),
}

#[derive(Default)]
struct Told {
    /// What came out, in its order; the records themselves are not in it.
    summaries: Vec<String>,
    rejected: usize,
}

/// Runs the steps, each by a new instance and each twice from the state before it: as the agent does after a crash.
fn told_by(config: &str, steps: &[Step]) -> Told {
    forget();
    let mut told = Told::default();
    for step in steps {
        let before = snapshot();
        let once = step_told(config, step);
        let after = snapshot();
        restore(&before);
        assert_eq!(step_told(config, step), once, "a step that is run again gives the same");
        assert_eq!(snapshot(), after, "and leaves the same behind");
        let (summaries, rejected) = once;
        told.summaries.extend(summaries);
        told.rejected += rejected;
    }
    told
}

fn step_told(config: &str, step: &Step) -> (Vec<String>, usize) {
    let mut made = window(config);
    let out = match step {
        Step::Records(now, records) => run_records(&mut made, *now, records),
        Step::Tick(now) => run_ticks(&mut made, *now, 0, 1),
    };
    let (rejected, summaries): (Vec<_>, Vec<_>) =
        out.into_iter().partition(|out| out.starts_with("reject"));
    (summaries, rejected.len())
}

/// The same steps with the records cut elsewhere.
fn cut(steps: &[Step], chance: &mut Chance) -> Vec<Step> {
    let mut out = Vec::new();
    for step in steps {
        match step {
            Step::Tick(_) => out.push(step.clone()),
            Step::Records(now, records) => {
                let mut rest = &records[..];
                while !rest.is_empty() {
                    let length = 1 + chance.below(rest.len() as i64) as usize;
                    let (call, after) = rest.split_at(length);
                    out.push(Step::Records(*now, call.to_vec()));
                    rest = after;
                }
            }
        }
    }
    out
}

/// The ticks of a quiet hour, and then of one that lets nothing stay open.
fn settle(now: i64) -> impl Iterator<Item = Step> {
    let ticks = (0..20).map(move |n| Step::Tick(now + n * 600 * SECOND));
    ticks.chain((1..5).map(move |n| Step::Tick(now + n * 400 * 86_400 * SECOND)))
}

/// One record: its time, key, and value in quarters, whose sums are exact.
fn make(time: i64, device: i64, quarters: i64) -> Record {
    let payload = format!(r#"{{"d":{device},"v":{}}}"#, quarters as f64 / 4.0);
    Record { time, ..record(1, &payload) }
}

/// The summaries of these records, computed at once.
fn computed(records: &[Record], size: i64, every: i64) -> Vec<String> {
    let mut windows: BTreeMap<(i64, String), Vec<(i64, f64)>> = BTreeMap::new();
    for record in records {
        let object = Object::parse(&record.payload).unwrap();
        let (device, value) = (object.get("d").unwrap().to_owned(), object.number("v").unwrap());
        let earliest = (record.time - size).div_euclid(every) + 1;
        for n in earliest..=record.time.div_euclid(every) {
            let window = windows.entry((n * every, device.clone())).or_default();
            window.push((record.time, value));
        }
    }
    let number = |value: f64| waystation_plugin::json::number_text(value).unwrap();
    let summaries = windows.into_iter().map(|((start, device), values)| {
        let all = || values.iter().map(|(_, value)| *value);
        let sum: f64 = all().sum();
        let mean = sum / values.len() as f64;
        let mean = waystation_plugin::json::significant(mean);
        // Of the same time, the first and the last that came.
        let first = values.iter().min_by_key(|(time, _)| *time).unwrap().1;
        let last = values.iter().max_by_key(|(time, _)| *time).unwrap().1;
        format!(
            r#"{{"key":{device},"start":"{}","end":"{}","count":{},"values":{{"v":{{"count":{},"min":{},"max":{},"sum":{},"mean":{},"first":{},"last":{}}}}}}}"#,
            rfc3339(start),
            rfc3339(start + size),
            values.len(),
            values.len(),
            number(all().fold(f64::INFINITY, f64::min)),
            number(all().fold(f64::NEG_INFINITY, f64::max)),
            number(sum),
            number(mean),
            number(first),
            number(last),
        )
    });
    let mut summaries: Vec<String> = summaries.collect();
    summaries.sort();
    summaries
}

const EVERYTHING: &str = "by = { field = 'd' }\nvalues = [{ field = 'v', stats = ['count', 'min', 'max', 'sum', 'mean', 'first', 'last'] }]\n";

/// Records of a source whose disorder stays within a lateness of 20 s, live or out of a backlog, with ticks between.
fn punctual(chance: &mut Chance) -> Vec<Step> {
    let lag = [0, 1, 9 * 3600][chance.below(3) as usize] * SECOND;
    let mut steps = Vec::new();
    let mut time = FIRST;
    for _ in 0..60 {
        let mut records = Vec::new();
        for _ in 0..1 + chance.below(12) {
            time += chance.below(4) * SECOND + chance.below(2);
            let early = chance.below(20) * SECOND;
            records.push(make(time - early, chance.below(5), chance.below(400) - 200));
        }
        // Each batch moves the watermark.
        time += SECOND;
        records.push(make(time, 0, 1));
        steps.push(Step::Records(time + lag, records));
        for _ in 0..chance.below(2) {
            steps.push(Step::Tick(time + lag));
        }
    }
    steps.extend(settle(time + lag));
    steps
}

#[test]
fn summaries_are_those_computed_at_once_however_calls_ticks_and_restarts_fall() {
    for seed in 0..12 {
        let mut chance = Chance(seed);
        let every = [20, 60, 7][seed as usize % 3];
        let config = format!(
            "size = '60s'\nevery = '{every}s'\nlateness = '20s'\nopen_max = {}\n{EVERYTHING}",
            if seed % 2 == 0 { 2000 } else { 110 }
        );
        let steps = punctual(&mut chance);
        let records: Vec<Record> = steps
            .iter()
            .flat_map(|step| match step {
                Step::Records(_, records) => records.clone(),
                Step::Tick(_) => Vec::new(),
            })
            .collect();
        let expected = computed(&records, 60 * SECOND, every * SECOND);
        let whole = told_by(&config, &steps);
        assert_eq!(whole.rejected, 0, "seed {seed}");
        let mut summaries = whole.summaries.clone();
        summaries.sort();
        assert_eq!(summaries, expected, "seed {seed}");
        let cut = told_by(&config, &cut(&steps, &mut chance));
        assert_eq!(cut.summaries, whole.summaries, "seed {seed}");
        assert_eq!(state::keys("", "", 9), ["="], "seed {seed}: nothing is left open");
    }
}

/// Stragglers, clocks that are ahead, pauses and hosts whose clock is not set.
fn wild(chance: &mut Chance) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut now = if chance.below(4) == 0 { 1000 * SECOND } else { FIRST };
    let mut time = FIRST;
    for _ in 0..80 {
        match chance.below(6) {
            0 => steps.push(Step::Tick(now)),
            1 => {
                now += chance.below(300) * SECOND;
                steps.push(Step::Tick(now));
            }
            _ => {
                now = now.max(if chance.below(9) == 0 { time } else { now });
                let records = (0..1 + chance.below(15)).map(|_| {
                    time += chance.below(7) * SECOND;
                    let off = match chance.below(40) {
                        0..4 => -chance.below(400) * SECOND,
                        4 => chance.below(4000) * SECOND,
                        _ => -chance.below(30) * SECOND,
                    };
                    make(time + off, chance.below(4), chance.below(9))
                });
                let records: Vec<_> = records.collect();
                now += chance.below(40) * SECOND;
                steps.push(Step::Records(now, records));
            }
        }
    }
    steps.extend(settle(now.max(time)));
    steps
}

#[test]
fn each_record_is_counted_once_or_said_to_be_late_and_no_window_comes_twice() {
    let (mut late, mut counted) = (0, 0);
    for seed in 100..120 {
        let mut chance = Chance(seed);
        let config = format!("size = '60s'\nlateness = '15s'\nlate = 'reject'\n{EVERYTHING}");
        let steps = wild(&mut chance);
        let records: usize = steps
            .iter()
            .map(|step| if let Step::Records(_, records) = step { records.len() } else { 0 })
            .sum();
        let whole = told_by(&config, &steps);
        let counts = whole.summaries.iter().map(|payload| {
            Object::parse(payload.as_bytes()).unwrap().number("count").unwrap() as usize
        });
        let counts: usize = counts.sum();
        assert_eq!(counts + whole.rejected, records, "seed {seed}");
        let mut windows: Vec<&str> = whole
            .summaries
            .iter()
            .map(|payload| payload.split_once(r#","count""#).unwrap().0)
            .collect();
        windows.sort_unstable();
        let with_twins = windows.len();
        windows.dedup();
        assert_eq!(windows.len(), with_twins, "seed {seed}");
        let cut = told_by(&config, &cut(&steps, &mut chance));
        assert_eq!((cut.summaries, cut.rejected), (whole.summaries, whole.rejected), "seed {seed}");
        assert_eq!(state::keys("", "", 9), ["="], "seed {seed}: nothing is left open");
        late += whole.rejected;
        counted += counts;
    }
    assert!(late > 500 && counted > 500, "both happen: {late} late, {counted} counted");
}

#[test]
fn open_windows_are_bounded_and_those_that_had_to_make_way_come_once_too() {
    for seed in 200..208 {
        let mut chance = Chance(seed);
        let config = format!("size = '10s'\nlateness = '5s'\nopen_max = 7\n{EVERYTHING}");
        let steps = punctual(&mut chance);
        let mut made = window(&config);
        forget();
        let (mut summaries, mut rejected, mut given) = (Vec::new(), 0, 0);
        for step in &steps {
            if let Step::Records(now, records) = step {
                for record in records {
                    let out = run_records(&mut made, *now, std::slice::from_ref(record));
                    assert!(state::keys("w", "", 99).len() <= 7, "seed {seed}");
                    assert_eq!(Open::load().head.count as usize, state::keys("w", "", 99).len());
                    rejected += out.iter().filter(|out| out.starts_with("reject")).count();
                    summaries.extend(out.into_iter().filter(|out| out.starts_with('{')));
                    given += 1;
                }
            } else if let Step::Tick(now) = step {
                summaries.extend(run_ticks(&mut made, *now, 0, 1));
            }
        }
        let counts = summaries.iter().map(|payload| told(payload).1).sum::<u64>() as usize;
        assert!(counts + rejected <= given, "seed {seed}: the others are late");
        assert!(rejected * 2 < given, "seed {seed}: {rejected} of {given}");
        let mut windows: Vec<&str> =
            summaries.iter().map(|out| out.split_once(r#","count""#).unwrap().0).collect();
        windows.sort_unstable();
        assert!(windows.windows(2).all(|pair| pair[0] != pair[1]), "seed {seed}");
    }
}
