//! Bytes from outside, made by damaging examples, for as long as `WAYSTATION_TEST_FUZZ_SECONDS` says.
//!
//! Each test of a decoder hands in examples and what must hold for any bytes. Here it is watched that none takes a second of
//! processor time, and that the whole keeps within 256 MiB. Proptest finds small inputs that break a rule; this is for quantity.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The longest that one input may take.
const ONE: Duration = Duration::from_secs(1);
/// The largest input.
const BYTES_MAX: usize = 64 * 1024;
const MEMORY_BYTES_MAX: u64 = 256 << 20;
/// Bytes that mean something to one decoder or another.
const WORDS: [&[u8]; 24] = [
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\x80",
    b"\x7f",
    b" ",
    b"=",
    b"<",
    b">",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b",",
    b":",
    b"-",
    b"0",
    b"9999999999999999999",
    b"18446744073709551615",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xc3\xbc",
];

/// Says what it was when the test fails.
struct Input(Vec<u8>);

impl Drop for Input {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input was b\"{}\"", self.0.escape_ascii());
        }
    }
}

/// Calls `check` with as many damaged examples as the time allows.
#[expect(clippy::disallowed_methods, reason = "how long a test takes is no setting of the agent")]
pub(crate) fn fuzz(examples: &[&[u8]], mut check: impl FnMut(&[u8])) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("WAYSTATION_TEST_SEED").unwrap_or_else(|| fastrand::u64(..));
    let budget = match number("WAYSTATION_TEST_FUZZ_SECONDS") {
        Some(seconds) => Duration::from_secs(seconds),
        None => Duration::from_millis(300),
    };
    let mut random = fastrand::Rng::with_seed(seed);
    let (began, mut inputs, mut worst) = (processor_time(), 0_u64, Duration::ZERO);
    eprintln!("seed: WAYSTATION_TEST_SEED={seed}");
    for example in examples {
        check(example);
    }
    while processor_time() - began < budget {
        let input = Input(damaged(examples, &mut random));
        let before = processor_time();
        check(&input.0);
        worst = worst.max(processor_time() - before);
        assert!(worst < ONE, "one input took {worst:?}");
        inputs += 1;
    }
    eprintln!("{inputs} inputs in {budget:?}, the slowest took {worst:?}");
    // Where each test is a process of its own, as nextest has it.
    if std::env::var_os("NEXTEST").is_some() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
        assert!(peak < MEMORY_BYTES_MAX, "{peak} bytes of memory");
    }
}

/// What this thread has used: a loaded machine makes nothing slower by it.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn damaged(examples: &[&[u8]], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = random.choice(examples).map(|example| example.to_vec()).unwrap_or_default();
    for _ in 0..random.usize(1..8) {
        damage(&mut bytes, examples, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn damage(bytes: &mut Vec<u8>, examples: &[&[u8]], random: &mut fastrand::Rng) {
    let at = random.usize(0..=bytes.len());
    let end = bytes.len().min(at + random.usize(0..=16));
    match random.u8(0..9) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.u8(0..8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.u8(..);
            }
        }
        2 => {
            let word = random.choice(WORDS).unwrap_or_default();
            bytes.splice(at..at, word.iter().copied());
        }
        3 => {
            let word = random.choice(WORDS).unwrap_or_default();
            bytes.splice(at..end, word.iter().copied());
        }
        4 => {
            let more: Vec<u8> = (0..random.usize(1..9)).map(|_| random.u8(..)).collect();
            bytes.splice(at..at, more);
        }
        5 => drop(bytes.drain(at..end)),
        6 => {
            let again = bytes[at..end].to_vec();
            for _ in 0..random.usize(1..64) {
                bytes.splice(at..at, again.iter().copied());
            }
        }
        7 => bytes.truncate(at),
        _ => {
            let other = random.choice(examples).copied().unwrap_or_default();
            let from = random.usize(0..=other.len());
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
    }
}
