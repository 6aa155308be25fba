//! More files than anybody should have.

use super::*;

/// Open handles of this process on files of the bench, at most over a while.
fn open_files(bench: &Bench) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_ours = |entry: std::io::Result<std::fs::DirEntry>| {
        // One that was closed meanwhile is nobody's.
        let path = entry.and_then(|entry| std::fs::read_link(entry.path()));
        path.is_ok_and(|path| path.starts_with(bench.folder.path().join("in")))
    };
    open.map(is_ours).filter(|is_ours| *is_ours).count()
}

/// R18: each is read once, with no more handles than are stated, during the first reading and after it.
#[tokio::test]
async fn ten_thousand_files_are_read_once_with_a_bounded_number_of_handles() {
    const FILES: u64 = 10_000;
    let bench = Bench::new();
    for n in 0..FILES {
        bench.write(&format!("{n:05}.log"), format!("{n}\n"));
    }
    let most = std::cell::Cell::new(0);
    let read = |counters: Arc<SourceCounters>| {
        let (bench, most) = (&bench, &most);
        async move {
            let all = || {
                most.set(most.get().max(open_files(bench)));
                count(&counters.records) >= FILES
            };
            // A machine with other work to do takes its time.
            let bound = Duration::from_secs(120);
            drop(tokio::time::timeout(bound, until_true(&all)).await);
            assert_eq!(count(&counters.records), FILES);
            // Two more looks at all of them.
            tokio::time::sleep(Duration::from_secs(2)).await;
            all();
        }
    };
    bench.follow(read).await;
    eprintln!("{FILES} files: at most {} open at once", most.get());
    assert!(most.get() > 0 && most.get() <= FILES_OPEN_MAX + 16, "{}", most.get());
    let mut found: Vec<u64> =
        bench.payloads().await.iter().map(|payload| payload.parse().unwrap()).collect();
    found.sort_unstable();
    assert!(found.into_iter().eq(0..FILES));
    assert_eq!(count(&bench.once().await.records), 0);
}

async fn until_true(what: &impl Fn() -> bool) {
    while !what() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
