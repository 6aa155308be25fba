//! Many reloads in a row, under a flow of records: valid and invalid ones, half written, renamed, linked, with parts that go and
//! come back and a plugin that is replaced.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::support::agent::{Agent, Home, files_below};
use super::support::reload::{Ingest, Way, refused, status, wait_adopted, wait_refused};
use super::support::{LONG, plugin, seed, size, wait_for};

/// The longest that a reload may keep records out, on a machine that does much else: half a second is meant.
const INGEST_PAUSE_MAX: Duration = Duration::from_secs(20);

/// What an agent may have more at the end of the reloads than after the first tenth of them: allocators keep some of what was freed.
const MEMORY_GROWS_MAX: u64 = 24 << 20;

/// What a valid config may look like.
#[derive(Debug, Clone, Copy)]
struct Shape {
    /// Whether the second sink is there.
    has_extra: bool,
    records_max: u64,
    linger_ms: u64,
    backoff_ms: u64,
    records_per_second: Option<u64>,
    has_transform: bool,
}

fn config(shape: Shape, owner: &str) -> String {
    let Shape { has_extra, records_max, linger_ms, backoff_ms, records_per_second, has_transform } =
        shape;
    let rate = records_per_second
        .map_or_else(String::new, |rate| format!("rate = {{ records_per_second = {rate} }}"));
    let (extra, sinks) = if has_extra {
        (
            "[sinks.extra]\ntype = \"file\"\nroot = \"{dir}/extra\"\nbatch = { linger = \"20ms\" }",
            "\"out\", \"extra\"",
        )
    } else {
        ("", "\"out\"")
    };
    let transforms = if has_transform { "\"pass\"" } else { "" };
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "{owner}"
        stop_grace = "5s"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [transforms.pass]
        plugin = "{{dir}}/pass.wasm"
        config = {{ do = "pass" }}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ records_max = {records_max}, linger = "{linger_ms}ms" }}
        retry = {{ backoff = "{backoff_ms}ms" }}
        {rate}
        {extra}
        [pipelines.p]
        sources = ["in"]
        transforms = [{transforms}]
        sinks = [{sinks}]
        "#
    )
}

/// The guest with a section that nobody reads: another file that does the same.
fn another_plugin(number: usize) -> Vec<u8> {
    let mut bytes = std::fs::read(plugin("test-guests")).unwrap();
    let text = format!("version {number:04}");
    // A custom section: its number, its length, the length of its name, its name.
    bytes.push(0);
    bytes.push(u8::try_from(text.len() + 1).unwrap());
    bytes.push(u8::try_from(text.len()).unwrap());
    bytes.extend(text.as_bytes());
    bytes
}

/// Appends 2000 numbered lines a second for as long as it lives.
struct Flow {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Flow {
    fn start(path: PathBuf) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut file = std::fs::File::options().append(true).create(true).open(path).unwrap();
            let mut count = 0;
            while !stopped.load(Ordering::SeqCst) {
                let lines: String = (count..count + 20).map(|n| format!("{n:08}\n")).collect();
                file.write_all(lines.as_bytes()).unwrap();
                count += 20;
                std::thread::sleep(Duration::from_millis(10));
            }
            count
        });
        Self { stop, thread }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn numbers(home: &Home, folder: &str) -> Vec<u64> {
    let folder = home.path(folder);
    let texts =
        files_below(&folder).into_iter().map(|name| std::fs::read_to_string(folder.join(name)));
    texts
        .flat_map(|text| {
            text.unwrap().lines().map(|line| line.parse().unwrap()).collect::<Vec<_>>()
        })
        .collect()
}

/// The least of a few looks: files are opened and closed all the time.
fn handles(agent: &Agent) -> usize {
    let look = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    let looks = (0..20).map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        look()
    });
    looks.min().unwrap()
}

fn wait_drained(home: &Home, lanes: usize) {
    wait_for("everything delivered", LONG, || {
        let status = status(home)?;
        let all = status["lanes"].as_array()?;
        (all.len() == lanes && all.iter().all(|lane| lane["queued"] == 0)).then_some(())
    });
}

/// A config that cannot be used, with a mark by which it would be known.
fn invalid(random: &mut fastrand::Rng, good: &str) -> String {
    match random.u32(0..5) {
        0 => good.replace("type = \"file\"", "type = \"flie\""),
        1 => good.replace("[pipelines.p]", "[pipelines.p]\nbogus = 1"),
        2 => good.replace("{dir}/pass.wasm", "{dir}/nothing.wasm"),
        3 => good.replace("{dir}/data", "{dir}/other-data"),
        _ => String::new(),
    }
}

/// As it begins and as it ends.
const FIRST: Shape = Shape {
    has_extra: true,
    records_max: 100,
    linger_ms: 20,
    backoff_ms: 20,
    records_per_second: None,
    has_transform: true,
};

/// One reload after the other.
struct Course {
    home: Home,
    random: fastrand::Rng,
    shape: Shape,
    /// The owner of the config that runs.
    adopted: String,
    refusals: usize,
    plugins: usize,
    /// The longest that a valid config took from its last byte until it ran.
    longest: Duration,
}

impl Course {
    fn step(&mut self, number: usize) {
        if self.random.u32(0..4) == 0 {
            self.invalid(number);
        } else if self.random.u32(0..4) == 0 && self.shape.has_transform {
            self.another_plugin(number);
        } else {
            self.valid(number);
        }
    }

    fn invalid(&mut self, number: usize) {
        let home = &self.home;
        let count = refused(home);
        let bad = invalid(&mut self.random, &config(self.shape, &format!("bad{number}")));
        std::fs::remove_file(home.config()).unwrap();
        home.configure(&bad);
        wait_refused(home, count);
        // Whoever looks in between sees no file, which is refused, too.
        wait_for("the reason", LONG, || {
            let status = status(home)?;
            assert_eq!(status["agent"]["owner"], self.adopted.as_str(), "reload {number}");
            let reason = status["config"]["trouble"]["reason"].as_str()?.to_owned();
            (!reason.contains("cannot read")).then_some(())
        });
        self.refusals += 1;
    }

    fn another_plugin(&mut self, number: usize) {
        let home = &self.home;
        let digest = || Some(status(home)?["plugins"][0]["sha256"].clone());
        let was = digest();
        let new = home.path("new.wasm");
        std::fs::write(&new, another_plugin(number)).unwrap();
        std::fs::rename(new, home.path("pass.wasm")).unwrap();
        // Only where the config in its place can be used is a new plugin taken up.
        Way::Renamed.put(home, &config(self.shape, &self.adopted));
        wait_for("the plugin", LONG, || digest().filter(|now| Some(now) != was.as_ref()));
        self.plugins += 1;
    }

    fn valid(&mut self, number: usize) {
        let (shape, random) = (&mut self.shape, &mut self.random);
        match random.u32(0..6) {
            0 => shape.has_extra = !shape.has_extra,
            1 => shape.records_max = random.u64(1..300),
            2 => shape.linger_ms = random.u64(1..200),
            3 => shape.backoff_ms = random.u64(1..100),
            4 => shape.records_per_second = random.bool().then(|| random.u64(2500..5000)),
            _ => shape.has_transform = !shape.has_transform,
        }
        self.adopted = format!("v{number}");
        let way = Way::ALL[random.usize(0..Way::ALL.len())];
        way.put(&self.home, &config(self.shape, &self.adopted));
        let begun = Instant::now();
        wait_adopted(&self.home, &self.adopted);
        self.longest = self.longest.max(begun.elapsed());
    }
}

#[test]
fn d_26_reloads_under_a_flow_lose_nothing_and_repeat_nothing_and_no_invalid_one_is_ever_active() {
    let reloads = size("WAYSTATION_TEST_RELOADS", 30);
    let mut course = Course {
        home: Home::new(&config(FIRST, "v0")),
        random: fastrand::Rng::with_seed(seed()),
        shape: FIRST,
        adopted: "v0".to_owned(),
        refusals: 0,
        plugins: 0,
        longest: Duration::ZERO,
    };
    std::fs::write(course.home.path("pass.wasm"), another_plugin(0)).unwrap();
    let mut agent = course.home.start(&["run"]);
    wait_adopted(&course.home, "v0");
    let flow = Flow::start(course.home.path("in"));
    wait_for("the flow", LONG, || (!numbers(&course.home, "extra").is_empty()).then_some(()));
    let before = handles(&agent);
    let ingest = Ingest::watch(&course.home);
    let mut memory = 0;
    for number in 1..=reloads {
        course.step(number);
        if number == reloads / 10 {
            memory = agent.memory("VmRSS");
        }
        assert!(agent.ended().is_none(), "reload {number}: {}", course.home.log());
    }
    let Course { home, refusals, plugins, longest, .. } = course;
    Way::Renamed.put(&home, &config(FIRST, "last"));
    wait_adopted(&home, "last");
    let pause = ingest.longest_pause();
    let after = handles(&agent);
    let grown = agent.memory("VmRSS").saturating_sub(memory);
    let count = flow.end();
    wait_for("all records", LONG, || (status(&home)?["sources"][0]["head"] == count).then_some(()));
    wait_drained(&home, 2);
    eprintln!(
        "{reloads} reloads, {refusals} of them invalid, {plugins} of a plugin, {count} records; \
         {before} handles before, {after} after; {memory} bytes of memory after a tenth, {grown} more at \
         the end; a valid one ran after at most {longest:?}; the longest pause of ingest was {pause:?}"
    );
    assert!(grown < MEMORY_GROWS_MAX, "{grown} bytes more than after a tenth of the reloads");
    assert!(pause < INGEST_PAUSE_MAX, "nothing was taken in for {pause:?}");
    assert!(after <= before + 6, "{before} handles before, {after} after");
    assert!(agent.stop().success(), "{}", home.log());
    assert!(!home.log().contains("taken over at once"), "{}", home.log());
    let out = numbers(&home, "out");
    assert_eq!(out.len() as u64, count);
    assert!(out.iter().copied().eq(0..count), "out of order or twice");
    // While it was away its records were kept for it.
    let extra = numbers(&home, "extra");
    assert!(extra.iter().copied().eq(0..count), "{} of {count}", extra.len());
}
