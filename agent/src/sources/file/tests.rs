//! The source on real files and a real journal.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::AfterRead;
use super::*;
use crate::clock::{ManualClock, Timestamp};
use crate::journal::{Append, Journal, Position};
use crate::limits::{CHUNK_BYTES_MAX, FILES_OPEN_MAX};
use crate::sources::config::{LineLimits, OnOversize, StartAt};
use crate::sources::tests::{open, options, payloads, records, source_id};
use crate::units::ByteSize;

mod content;
mod many;
mod rotation;

struct Bench {
    folder: tempfile::TempDir,
    journal: Journal,
    config: FileSourceConfig,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("in")).unwrap();
        let config = FileSourceConfig {
            paths: vec![folder.path().join("in/*.log").display().to_string()],
            start_at: StartAt::Beginning,
            framing: Framing::Lines,
            multiline: None,
            after_read: AfterRead::Keep,
            subject: "{source}.{file_stem}".to_owned(),
            limits: LineLimits {
                record_bytes_max: ByteSize(1 << 20),
                on_oversize: OnOversize::DeadLetter,
            },
        };
        Self { journal: open(folder.path()), folder, config }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("in").join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    fn add(&self, name: &str, content: impl AsRef<[u8]>) {
        let mut file = OpenOptions::new().append(true).create(true).open(self.path(name)).unwrap();
        file.write_all(content.as_ref()).unwrap();
    }

    fn source(&self, once: bool) -> Box<FileSource> {
        Box::new(FileSource::new(source_id(), &self.config, &options(once)).unwrap())
    }

    /// Reads everything once and returns what the run has counted.
    async fn once(&self) -> Arc<SourceCounters> {
        let mut source = self.source(true);
        let counters = source.counters();
        let appender = self.journal.appender(&source_id()).await.unwrap();
        assert_eq!(source.run(appender, Shutdown::new()).await.unwrap(), Finished::End);
        counters
    }

    /// Follows while `script` runs, which gets the counters; then asks to stop.
    async fn follow<F: Future<Output = ()>>(&self, script: impl FnOnce(Arc<SourceCounters>) -> F) {
        self.follow_with(self.source(false), script).await;
    }

    async fn follow_with<F: Future<Output = ()>>(
        &self,
        mut source: Box<FileSource>,
        script: impl FnOnce(Arc<SourceCounters>) -> F,
    ) {
        let counters = source.counters();
        let appender = self.journal.appender(&source_id()).await.unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let scripted = async {
            script(counters).await;
            asked.request();
        };
        let (finished, ()) = tokio::join!(source.run(appender, shutdown), scripted);
        assert_eq!(finished.unwrap(), Finished::Stopped);
    }

    async fn payloads(&self) -> Vec<String> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        payloads(&self.journal).await.into_iter().map(text).collect()
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not happen in 10 s");
}

async fn records_are(counters: &SourceCounters, expected: u64) {
    until(|| count(&counters.records) >= expected).await;
    assert_eq!(count(&counters.records), expected);
}

fn numbered(from: usize, to: usize) -> String {
    (from..to).map(|n| format!("line {n}\n")).collect()
}

fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

#[tokio::test]
async fn d_19_bytes_that_are_no_tidy_text_stay_as_they_are() {
    let bench = Bench::new();
    let input = b"\xef\xbb\xbfa1\r\nb\0\0b2\nc\xff\xfe\xc33\n\ne5-no-newline";
    assert_eq!(input.len(), 33);
    bench.write("a.log", input);
    bench.write("b.log", b"");
    bench.write("c.log", b"x");
    bench.write("d.log", b"\n\r\n");
    // What looks like the first byte of an archive.
    bench.write("e.log", b"(");
    bench.write("f.log", b"\ra\r\r\n\xef\xbb\xbfb\n");
    let counters = bench.once().await;
    let found = payloads(&bench.journal).await;
    let expected: [&[u8]; 8] = [
        b"a1",
        b"b\0\0b2",
        b"c\xff\xfe\xc33",
        b"e5-no-newline",
        b"x",
        b"(",
        b"\ra\r",
        b"\xef\xbb\xbfb",
    ];
    assert_eq!(found, expected);
    assert_eq!((count(&counters.records), count(&counters.empty_lines)), (8, 3));
    // Once more: nothing again. The rest of the unfinished line is a record of its own.
    bench.once().await;
    bench.add("a.log", "X\nY\n");
    let counters = bench.once().await;
    assert_eq!(count(&counters.records), 2);
    assert_eq!(payloads(&bench.journal).await[8..], [b"X", b"Y"]);
}

#[tokio::test]
async fn d_19_the_hole_of_a_writer_that_goes_on_behind_a_cut_is_skipped_and_counted() {
    let bench = Bench::new();
    let mut writer = std::fs::File::create(bench.path("a.log")).unwrap();
    let first: String = (0..1000).map(|n| format!("l{n:04}\n")).collect();
    bench
        .follow(|counters| {
            let (bench, writer, first) = (&bench, &mut writer, &first);
            async move {
                writer.write_all(first.as_bytes()).unwrap();
                records_are(&counters, 1000).await;
                OpenOptions::new()
                    .write(true)
                    .open(bench.path("a.log"))
                    .unwrap()
                    .set_len(0)
                    .unwrap();
                writer.write_all(b"after\n").unwrap();
                records_are(&counters, 1001).await;
                assert_eq!(count(&counters.hole_bytes), 6000);
            }
        })
        .await;
    assert_eq!(bench.payloads().await[1000..], ["after"]);
    // One that takes no blocks on the disk is passed without being read, also over a restart.
    let hole = 1 << 40;
    let file = OpenOptions::new().write(true).open(bench.path("a.log")).unwrap();
    file.set_len(0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"far\nbehind", hole).unwrap();
    let counters = bench.once().await;
    assert_eq!(count(&counters.hole_bytes), hole);
    bench.add("a.log", " it\n");
    assert_eq!(count(&bench.once().await.hole_bytes), 0);
    assert_eq!(bench.payloads().await[1001..], ["far", "behind", " it"]);
}

#[tokio::test]
async fn d_19_files_of_sizes_around_the_checked_parts_are_read_once_each() {
    let bench = Bench::new();
    for size in [1, 2, 255, 256, 257, 1023, 1024, 1025, 5000] {
        bench.write(&format!("{size:04}.log"), vec![b'x'; size]);
    }
    // Two files that look alike are two files.
    bench.write("twin-1.log", numbered(0, 500));
    bench.write("twin-2.log", numbered(0, 500));
    bench.once().await;
    bench.once().await;
    let mut sizes: Vec<_> = bench.payloads().await.iter().map(String::len).collect();
    assert_eq!(sizes.len(), 9 + 1000);
    sizes.truncate(9);
    assert_eq!(sizes, [1, 2, 255, 256, 257, 1023, 1024, 1025, 5000]);
}

#[tokio::test]
async fn d_21_a_line_over_the_limit_harms_no_neighbour() {
    for policy in [OnOversize::DeadLetter, OnOversize::Truncate, OnOversize::Drop] {
        let mut bench = Bench::new();
        bench.config.limits.on_oversize = policy;
        let mut content = b"before\n".to_vec();
        content.extend_from_slice("ü".repeat(1 << 20).as_bytes());
        content.extend_from_slice(b"\nat the limit follows\n");
        content.extend_from_slice(&[b'y'; 1 << 20]);
        content.extend_from_slice(b"\n");
        content.extend_from_slice(&[b'z'; (1 << 20) + 1]);
        bench.write("a.log", &content);
        let counters = bench.once().await;
        let found = records(&bench.journal).await;
        let sizes: Vec<_> = found.iter().map(|(_, _, payload)| payload.len()).collect();
        let kept = [6, 20, 1 << 20];
        match policy {
            OnOversize::DeadLetter => {
                assert_eq!(sizes, kept);
                assert_eq!(count(&counters.oversize_dead_lettered), 2);
            }
            OnOversize::Drop => {
                assert_eq!(sizes, kept);
                assert_eq!(count(&counters.oversize_dropped), 2);
            }
            OnOversize::Truncate => {
                assert_eq!(sizes, [6, 1 << 20, 20, 1 << 20, 1 << 20]);
                assert_eq!(count(&counters.oversize_truncated), 2);
                let headers = |index: usize| found[index].1.clone();
                assert_eq!(headers(1)[1], ("waystation-size".to_owned(), (2 << 20).to_string()));
                assert_eq!(headers(4)[0], ("waystation-truncated".to_owned(), "true".to_owned()));
                assert!(headers(3).is_empty());
            }
        }
        assert_eq!(count(&bench.once().await.records), 0);
    }
}

#[tokio::test]
async fn a_large_file_comes_in_order_through_stops_in_the_middle() {
    let bench = Bench::new();
    let content: String =
        (0..200_000).map(|n| format!("{{\"n\":{n},\"pad\":\"xxxxxxxxxxxxxxxxxxx\"}}\n")).collect();
    assert!(content.len() > 20 * CHUNK_BYTES_MAX);
    bench.write("a.log", &content);
    let mut stopped_early = 0;
    for _ in 0..5 {
        bench
            .follow(|counters| async move {
                let counted = async {
                    while count(&counters.records) == 0 {
                        tokio::task::yield_now().await;
                    }
                };
                // In the later rounds there may be nothing left to count.
                let _late = tokio::time::timeout(Duration::from_millis(300), counted).await;
            })
            .await;
        stopped_early += usize::from(bench.payloads().await.len() < 200_000);
    }
    assert!(stopped_early > 0);
    bench.once().await;
    assert!(bench.payloads().await == lines(&content));
}

#[tokio::test]
async fn a_line_that_grows_slowly_is_one_record_when_its_end_comes() {
    let bench = Bench::new();
    bench.write("a.log", "first\n");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 1).await;
                for _ in 0..3 {
                    bench.add("a.log", vec![b'x'; 300_000]);
                    tokio::time::sleep(LOOK_EVERY_MAX + Duration::from_millis(20)).await;
                }
                bench.add("a.log", "\nlast\nunfinished");
                records_are(&counters, 3).await;
            }
        })
        .await;
    let sizes: Vec<_> = bench.payloads().await.iter().map(String::len).collect();
    assert_eq!(sizes, [5, 900_000, 4]);
}

#[tokio::test]
async fn a_renamed_file_is_read_to_its_end_and_keeps_its_subject() {
    let bench = Bench::new();
    bench.write("app.log", "1\n");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 1).await;
                // Out of the patterns, and the writer goes on for a moment before it opens the new file.
                std::fs::rename(bench.path("app.log"), bench.path("app.log.1")).unwrap();
                bench.add("app.log.1", "2\n");
                bench.write("app.log", "3\n");
                records_are(&counters, 3).await;
                // Within the patterns: the same file under another name.
                std::fs::rename(bench.path("app.log"), bench.path("old.log")).unwrap();
                bench.add("old.log", "4\n");
                records_are(&counters, 4).await;
            }
        })
        .await;
    // Also when it is found under its new name after a restart.
    bench.add("old.log", "5\n");
    bench.once().await;
    let found = records(&bench.journal).await;
    let mut text: Vec<_> = found.iter().map(|(_, _, p)| String::from_utf8_lossy(p)).collect();
    text.sort();
    assert_eq!(text, ["1", "2", "3", "4", "5"]);
    assert!(found.iter().all(|(subject, _, _)| subject == "src.app"), "{found:?}");
}

#[tokio::test]
async fn lines_written_just_before_a_rotation_are_read_also_after_a_long_rest() {
    let bench = Bench::new();
    bench.write("app.log", numbered(0, 5));
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    let of_clock = SourceOptions { clock: Arc::clone(&clock) as _, ..options(false) };
    let source = Box::new(FileSource::new(source_id(), &bench.config, &of_clock).unwrap());
    bench
        .follow_with(source, |counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 5).await;
                // A day without a line: every look and scan that it takes to notice that.
                for _ in 0..3 {
                    clock.advance(Duration::from_hours(8));
                    tokio::time::sleep(LOOK_EVERY + LOOK_EVERY_MAX).await;
                }
                bench.add("app.log", numbered(5, 10));
                std::fs::rename(bench.path("app.log"), bench.path("app.log.1")).unwrap();
                bench.write("app.log", numbered(10, 15));
                clock.advance(Duration::from_secs(2));
                records_are(&counters, 15).await;
            }
        })
        .await;
    let mut found = bench.payloads().await;
    found.sort_by_key(|line| line.strip_prefix("line ").unwrap().parse::<u32>().unwrap());
    assert_eq!(found, lines(&numbered(0, 15)));
}

#[tokio::test]
async fn files_that_are_rotated_while_closed_are_found_again_in_their_folder() {
    let bench = Bench::new();
    let files = FILES_OPEN_MAX + 100;
    let name = |n: usize| format!("{n:04}.log");
    (0..files).for_each(|n| bench.write(&name(n), format!("{n} first\n")));
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, files as u64).await;
                for n in 0..files {
                    bench.add(&name(n), format!("{n} rest\n"));
                    let renamed = bench.path(&format!("{n:04}.old"));
                    std::fs::rename(bench.path(&name(n)), renamed).unwrap();
                    bench.write(&name(n), format!("{n} new\n"));
                }
                records_are(&counters, 3 * files as u64).await;
                assert_eq!(count(&counters.files_lost), 0);
            }
        })
        .await;
    let mut found = bench.payloads().await;
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 3 * files);
}

#[tokio::test]
async fn a_closed_file_that_left_its_folder_with_something_unread_is_counted() {
    let bench = Bench::new();
    let elsewhere = tempfile::tempdir_in(bench.folder.path()).unwrap();
    let files = FILES_OPEN_MAX + 1;
    let name = |n: usize| format!("{n:04}.log");
    (0..files).for_each(|n| bench.write(&name(n), "1\n"));
    bench
        .follow(|counters| {
            let (bench, elsewhere) = (&bench, &elsewhere);
            async move {
                records_are(&counters, files as u64).await;
                for n in 0..files {
                    bench.add(&name(n), "2\n");
                    std::fs::rename(bench.path(&name(n)), elsewhere.path().join(name(n))).unwrap();
                    bench.write(&name(n), "3\n");
                }
                until(|| count(&counters.files_lost) == 1).await;
                records_are(&counters, 3 * files as u64 - 1).await;
            }
        })
        .await;
}

#[tokio::test]
async fn a_file_that_was_renamed_while_no_agent_ran_is_read_to_its_end() {
    let mut bench = Bench::new();
    bench.write("app.log", "1\n");
    bench.once().await;
    bench.add("app.log", "2\n");
    std::fs::rename(bench.path("app.log"), bench.path("app.log.1")).unwrap();
    bench.write("app.log", "3\n");
    bench.once().await;
    bench.once().await;
    let mut found = bench.payloads().await;
    found.sort();
    assert_eq!(found, ["1", "2", "3"]);
    // One that the patterns leave out since they were changed is nobody's any more.
    bench.add("app.log", "4\n");
    bench.write("other", "5\n");
    bench.config.paths = vec![bench.path("other").display().to_string()];
    bench.once().await;
    assert_eq!(bench.payloads().await[3..], ["5"]);
}

#[tokio::test]
async fn a_file_that_is_cut_is_read_from_its_first_byte() {
    let bench = Bench::new();
    bench.write("a.log", numbered(0, 100));
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 100).await;
                bench.write("a.log", "");
                until(|| count(&counters.files_restarted) == 1).await;
                bench.add("a.log", numbered(100, 110));
                records_are(&counters, 110).await;
            }
        })
        .await;
    assert_eq!(bench.payloads().await, lines(&numbered(0, 110)));
}

#[tokio::test]
async fn d_18_a_file_written_anew_in_place_is_read_whole_whatever_its_size() {
    for (size, name) in [(30, "larger"), (9, "equal"), (3, "smaller")] {
        for restarted in [false, true] {
            let bench = Bench::new();
            bench.write("a.log", (0..9).map(|n| format!("old{n:02}\n")).collect::<String>());
            let inode = || bench.path("a.log").metadata().unwrap().ino();
            let before = inode();
            let new: String = (0..size).map(|n| format!("NEW{n:02}\n")).collect();
            if restarted {
                bench.once().await;
                bench.write("a.log", &new);
                bench.once().await;
            } else {
                bench
                    .follow(|counters| {
                        let (bench, new) = (&bench, &new);
                        async move {
                            records_are(&counters, 9).await;
                            bench.write("a.log", new);
                            records_are(&counters, 9 + size).await;
                        }
                    })
                    .await;
            }
            assert_eq!(inode(), before);
            assert_eq!(bench.payloads().await[9..], lines(&new), "{name}, restarted: {restarted}");
        }
    }
}

#[tokio::test]
async fn d_18_a_new_file_with_the_inode_and_the_first_kilobyte_of_an_old_one_is_new() {
    let bench = Bench::new();
    let header = "h".repeat(1500);
    bench.write("a.log", format!("{header}\nold\n"));
    bench.once().await;
    bench.write("a.log", format!("{header}\nnew\nmore\n"));
    bench.once().await;
    assert_eq!(bench.payloads().await, [&header, "old", &header, "new", "more"]);
}

#[tokio::test]
async fn a_removed_file_takes_its_position_along() {
    let bench = Bench::new();
    bench.write("a.log", "1\n");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 1).await;
                std::fs::remove_file(bench.path("a.log")).unwrap();
                // The next scan and look find that out; a record behind them shows that they have run.
                tokio::time::sleep(Duration::from_millis(1600)).await;
                bench.write("b.log", "2\n");
                records_are(&counters, 2).await;
            }
        })
        .await;
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    // What was in it is remembered, for an archive of it.
    let positions: Vec<_> = appender.positions().iter().collect();
    assert_eq!(positions.len(), 2, "{positions:?}");
    let text = |index: usize| String::from_utf8_lossy(positions[index].1);
    assert!(text(0).contains("b.log") && text(1).contains("a.log"), "{positions:?}");
    assert!(positions[1].0.starts_with("was-"));
}

#[tokio::test]
async fn starting_at_the_end_skips_only_what_was_there_at_the_very_first_start() {
    let mut bench = Bench::new();
    bench.config.start_at = StartAt::End;
    bench.write("a.log", "before\n");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                bench.add("a.log", "after\n");
                records_are(&counters, 1).await;
                bench.write("b.log", "came later\n");
                records_are(&counters, 2).await;
            }
        })
        .await;
    bench.write("c.log", "came while stopped\n");
    bench.once().await;
    assert_eq!(bench.payloads().await, ["after", "came later", "came while stopped"]);
}

#[tokio::test]
async fn one_path_in_trouble_does_not_stop_the_others() {
    let bench = Bench::new();
    std::os::unix::fs::symlink("loop.log", bench.path("loop.log")).unwrap();
    std::os::unix::fs::symlink("nowhere", bench.path("dangling.log")).unwrap();
    std::fs::create_dir(bench.path("folder.log")).unwrap();
    bench.write("z.log", "1\n");
    // One file under two names is one file.
    std::os::unix::fs::symlink("z.log", bench.path("link.log")).unwrap();
    std::fs::hard_link(bench.path("z.log"), bench.path("hard.log")).unwrap();
    let mut source = bench.source(true);
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    let Finished::Partly(unread) = source.run(appender, Shutdown::new()).await.unwrap() else {
        panic!("a path in trouble is something unread")
    };
    assert_eq!(unread.len(), 1);
    assert!(unread[0].contains("in/loop.log: Too many levels"), "{unread:?}");
    assert_eq!(bench.payloads().await, ["1"]);
}

#[tokio::test]
async fn a_pattern_that_finds_no_file_is_something_unread() {
    let mut bench = Bench::new();
    bench.write("a.log", "1\n");
    std::fs::create_dir(bench.path("folder")).unwrap();
    let patterns = ["*.log", "*.lgo", "folder"].map(|name| bench.path(name).display().to_string());
    bench.config.paths = patterns.to_vec();
    let mut source = bench.source(true);
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    let finished = source.run(appender, Shutdown::new()).await.unwrap();
    let unread = patterns[1..].iter().map(|pattern| format!("{pattern} finds no file")).collect();
    assert_eq!(finished, Finished::Partly(unread));
    assert_eq!(bench.payloads().await, ["1"]);
}

#[tokio::test]
async fn more_files_than_may_be_open_are_all_read() {
    let bench = Bench::new();
    let files = FILES_OPEN_MAX * 2 + 10;
    for n in 0..files {
        bench.write(&format!("{n:04}.log"), format!("{n}\n"));
    }
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, files as u64).await;
                for n in 0..files {
                    bench.add(&format!("{n:04}.log"), format!("{n} more\n"));
                }
                records_are(&counters, 2 * files as u64).await;
                let open = std::fs::read_dir("/proc/self/fd").unwrap();
                let of_ours = |path: &Path| path.starts_with(bench.folder.path().join("in"));
                let open = open.filter(|entry| {
                    std::fs::read_link(entry.as_ref().unwrap().path())
                        .is_ok_and(|path| of_ours(&path))
                });
                assert!(open.count() <= FILES_OPEN_MAX);
            }
        })
        .await;
    assert_eq!(bench.payloads().await.len(), 2 * files);
    assert_eq!(count(&bench.once().await.records), 0);
}

#[tokio::test]
async fn a_device_that_was_numbered_anew_changes_nothing() {
    let bench = Bench::new();
    bench.write("a.log", "1\n");
    bench.once().await;
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    let (key, value) = appender.positions().iter().next().unwrap();
    let (_, inode) = key.split_once('-').unwrap();
    let moved = vec![
        Position { key: key.clone(), value: None },
        Position { key: format!("ffff-{inode}"), value: Some(value.clone()) },
    ];
    appender.append(Append { positions: moved, ..Append::default() }).await.unwrap();
    bench.add("a.log", "2\n");
    bench.once().await;
    assert_eq!(bench.payloads().await, ["1", "2"]);
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    assert_eq!(appender.positions().keys().collect::<Vec<_>>(), [key]);
}

#[tokio::test]
async fn a_pattern_or_subject_that_makes_no_sense_is_refused() {
    let mut bench = Bench::new();
    bench.config.paths = vec!["a/***".to_owned()];
    let build = |config: &FileSourceConfig| {
        FileSource::new(source_id(), config, &options(true)).err().unwrap().to_string()
    };
    assert!(build(&bench.config).contains("a/***"));
    bench.config.paths = vec!["a/*".to_owned()];
    bench.config.multiline = Some("(".to_owned());
    assert!(build(&bench.config).contains("multiline"));
    bench.config.multiline = None;
    bench.config.subject = "{nothing}".to_owned();
    assert!(build(&bench.config).contains("subject"));
}
