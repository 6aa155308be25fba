//! Any sequence of operations leaves the journal as the model has it.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::drive::{Driver, operation, scratch};
use super::images::seed;
use super::model::Model;
use super::*;
use crate::units::ByteSize;

/// A number that the environment may set, as the full run does.
pub(super) fn size(name: &str, default: u32) -> u32 {
    #[expect(clippy::disallowed_methods, reason = "the size of a test is no config of the agent")]
    let set = std::env::var(name).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn any_sequence_of_operations_leaves_what_the_model_says() {
    let cases = size("WAYSTATION_TEST_CASES", 500);
    let length = size("WAYSTATION_TEST_OPERATIONS", 100) as usize;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let threads = u32::try_from(threads).unwrap();
    let seed = seed();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || run(cases.div_ceil(threads), length, (seed, thread)));
        }
    });
    eprintln!("{cases} cases of {length} operations");
}

/// Runs some cases. Each thread has its own, which follow from the seed and its number.
fn run(cases: u32, length: usize, (seed, thread): (u64, u32)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..12].copy_from_slice(&thread.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &key);
    let mut runner = TestRunner::new_with_rng(config, random);
    let operations = proptest::collection::vec(operation(true), length);
    // Far more than what is appended, and little to allocate anew at each of thousands of starts.
    let journal = JournalConfig { max_bytes: ByteSize(16 << 20), ..JournalConfig::default() };
    let result = runner.run(&operations, |operations| {
        runtime.block_on(async {
            let dir = scratch();
            let mut driver = Driver::new(dir.path(), journal.clone(), Model::default());
            driver.open().unwrap();
            for operation in &operations {
                driver.apply(operation).await.unwrap();
            }
            driver.settle().await.unwrap();
            driver.compare().await.unwrap();
        });
        Ok(())
    });
    result.unwrap();
}
