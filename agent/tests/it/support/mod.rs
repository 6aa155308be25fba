//! What the tests of the real binary have in common: an agent process, servers, input, and what came out.

pub(crate) mod agent;
pub(crate) mod arrivals;
pub(crate) mod certificates;
pub(crate) mod cluster;
#[path = "../../../src/fuzz.rs"]
pub(crate) mod fuzz;
pub(crate) mod http;
pub(crate) mod journald;
pub(crate) mod mqtt;
pub(crate) mod nats;
pub(crate) mod proxy;
pub(crate) mod reload;
pub(crate) mod sensors;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(path)
}

/// A guest that `cargo xtask plugins` has built.
pub(crate) fn plugin(name: &str) -> PathBuf {
    let path = repository("target/plugins").join(name).with_extension("wasm");
    assert!(path.exists(), "{} is missing: run `cargo xtask plugins`", path.display());
    path
}

/// Waits until `condition` gives something, at most `bound`.
pub(crate) fn wait_for<T>(
    what: &str,
    bound: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(begun.elapsed() < bound, "waited {bound:?} for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port that nobody listens on, below those that the kernel gives to clients: none of the many connections of other tests
/// takes it meanwhile.
pub(crate) fn free_port() -> u16 {
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(10_000..32_000)).find(is_free).unwrap()
}

/// A bound that a loaded machine keeps too.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// A seed that is printed, so that a failure can be repeated: set `WAYSTATION_TEST_SEED`.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("WAYSTATION_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed: WAYSTATION_TEST_SEED={seed}");
    seed
}

/// A number that the environment may set, as the full run does.
pub(crate) fn size(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
