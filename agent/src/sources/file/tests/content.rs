//! What a record is, archives, and what becomes of files that were read as a whole.

use std::io::Write as _;

use super::*;
use crate::limits::READ_BLOCK_BYTES;

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 3).unwrap()
}

/// Reads once, and returns what was not read.
async fn unread(bench: &Bench) -> Vec<String> {
    let mut source = bench.source(true);
    let appender = bench.journal.appender(&source_id()).await.unwrap();
    match source.run(appender, Shutdown::new()).await.unwrap() {
        Finished::Partly(unread) => unread,
        finished => {
            assert_eq!(finished, Finished::End);
            Vec::new()
        }
    }
}

#[tokio::test]
async fn archives_are_expanded_by_what_they_are_and_not_by_their_names() {
    let mut bench = Bench::new();
    bench.config.limits.record_bytes_max = ByteSize(READ_BLOCK_BYTES as u64 + 1000);
    let long = "x".repeat(READ_BLOCK_BYTES + 500);
    let longer = "y".repeat(3 * READ_BLOCK_BYTES);
    let content = format!("{}{long}\n{longer}\n{}last", numbered(0, 5000), numbered(5000, 5010));
    bench.write("a.log", gzip(content.as_bytes()));
    bench.write("b.log", zstd(content.as_bytes()));
    // Two members in one file are one content.
    bench.write("c.log", [gzip(b"1\n2"), gzip(b"3\n4\n")].concat());
    bench.write("d.log", gzip(b""));
    let counters = bench.once().await;
    assert_eq!(count(&counters.oversize_dead_lettered), 2);
    let wanted: Vec<_> = content.lines().filter(|line| line.len() < 3 * READ_BLOCK_BYTES).collect();
    let found = bench.payloads().await;
    assert_eq!(found.len(), 2 * wanted.len() + 3);
    assert!(found[..wanted.len()] == wanted && found[wanted.len()..2 * wanted.len()] == wanted);
    assert_eq!(found[2 * wanted.len()..], ["1", "23", "4"]);
    assert_eq!(count(&bench.once().await.records), 0);
    // Another member behind it is what it has got.
    bench.write("c.log", [gzip(b"1\n2"), gzip(b"3\n4\n"), gzip(b"5\n")].concat());
    bench.once().await;
    assert_eq!(bench.payloads().await[2 * wanted.len() + 3..], ["5"]);
}

#[tokio::test]
async fn of_a_damaged_archive_the_good_part_is_kept_once_and_the_trouble_is_named() {
    for (pack, what) in [(gzip as fn(&[u8]) -> Vec<u8>, "damaged"), (zstd, "damaged")] {
        let bench = Bench::new();
        let content = numbered(0, 200_000);
        let good = pack(content.as_bytes());
        // Its end is missing.
        bench.write("a.log", &good[..good.len() / 2]);
        let trouble = unread(&bench).await;
        assert_eq!(trouble.len(), 1);
        assert!(
            trouble[0].contains("a.log: the archive ends in the middle, behind"),
            "{trouble:?}"
        );
        let kept = bench.payloads().await.len();
        assert!(kept > 1000 && kept < 200_000, "{kept}");
        assert_eq!(unread(&bench).await.len(), 1);
        assert_eq!(bench.payloads().await.len(), kept);
        // It was still being written.
        bench.write("a.log", &good);
        assert_eq!(unread(&bench).await, Vec::<String>::new());
        assert!(bench.payloads().await == lines(&content));
        // Damaged in the middle.
        let mut damaged = good.clone();
        let middle = good.len() / 2;
        damaged[middle..middle + 64].fill(0xff);
        bench.write("b.log", &damaged);
        let trouble = unread(&bench).await;
        assert!(trouble[0].contains(what) || trouble[0].contains("ends"), "{trouble:?}");
        let more = bench.payloads().await.len() - 200_000;
        assert!(more < 200_000, "{more}");
        unread(&bench).await;
        assert_eq!(bench.payloads().await.len(), 200_000 + more);
    }
}

#[tokio::test]
async fn an_archive_goes_on_where_it_was_left_through_stops_in_the_middle() {
    let bench = Bench::new();
    let content = numbered(0, 300_000);
    bench.write("a.log", gzip(content.as_bytes()));
    // It has not changed for long enough by the clock of each run.
    let clock = Arc::new(ManualClock::new(Timestamp(0)));
    for _ in 0..4 {
        let of_clock = SourceOptions { clock: Arc::clone(&clock) as _, ..options(false) };
        let source = Box::new(FileSource::new(source_id(), &bench.config, &of_clock).unwrap());
        bench
            .follow_with(source, |counters| {
                let clock = &clock;
                async move {
                    let counted = async {
                        while count(&counters.records) == 0 {
                            clock.advance(Duration::from_secs(3));
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    };
                    let _late = tokio::time::timeout(Duration::from_secs(3), counted).await;
                }
            })
            .await;
    }
    bench.once().await;
    assert!(bench.payloads().await == lines(&content));
}

#[tokio::test]
async fn a_record_of_several_lines_ends_with_the_next_start_or_when_nothing_follows() {
    let mut bench = Bench::new();
    bench.config.multiline = Some(r"^\d{4}-\d\d".to_owned());
    let long = "  at z\n".repeat(2 * READ_BLOCK_BYTES / 7);
    let first = format!("2026-01 one\r\n  at x\n2026-02 two\n{long}2026-03 three\n");
    bench.write("a.log", &first);
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 3).await;
                bench.add("a.log", "2026-04 four\n  at");
                tokio::time::sleep(Duration::from_millis(500)).await;
                bench.add("a.log", " y\n2026-05 five\n");
                records_are(&counters, 5).await;
            }
        })
        .await;
    bench.add("a.log", "2026-06 six\n  at x\n2026-07 seven");
    bench.once().await;
    assert_eq!(count(&bench.once().await.records), 0);
    let two = format!("2026-02 two\n{}", long.trim_end_matches('\n'));
    let wanted = [
        "2026-01 one\r\n  at x",
        &two,
        "2026-03 three",
        "2026-04 four\n  at y",
        "2026-05 five",
        "2026-06 six\n  at x",
        "2026-07 seven",
    ];
    assert!(bench.payloads().await == wanted);
}

#[tokio::test]
async fn json_documents_are_records_also_over_several_lines_and_blocks() {
    let mut bench = Bench::new();
    bench.config.framing = Framing::Json;
    let large = format!("{{\"text\":\"{}\"}}", "{\\\"".repeat(READ_BLOCK_BYTES));
    let documents = ["{\n \"a\": [1, 2]\n}", &large, "[true]", "\"x y\"", "12"];
    bench.write("a.log", format!("\u{feff}{} \n", documents.join("\n\n")));
    bench.write("b.log", gzip(documents.join("\n").as_bytes()));
    bench.once().await;
    assert!(bench.payloads().await == [documents, documents].concat());
    bench.add("a.log", "{\"open\":");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                tokio::time::sleep(LOOK_EVERY + LOOK_EVERY_MAX).await;
                bench.add("a.log", "1}\n");
                records_are(&counters, 1).await;
            }
        })
        .await;
    assert_eq!(bench.payloads().await[10..], ["{\"open\":1}"]);
}

#[tokio::test]
async fn a_file_is_a_record_and_one_that_was_changed_is_another() {
    let mut bench = Bench::new();
    bench.config.framing = Framing::Whole;
    bench.config.limits.record_bytes_max = ByteSize(100);
    bench.write("a.log", b"\xef\xbb\xbf\0one\r\ntwo\n\n");
    bench.write("b.log", gzip(b"packed"));
    bench.write("c.log", vec![b'x'; 101]);
    bench.write("d.log", "");
    let counters = bench.once().await;
    assert_eq!((count(&counters.records), count(&counters.oversize_dead_lettered)), (2, 1));
    assert_eq!(payloads(&bench.journal).await, [&b"\xef\xbb\xbf\0one\r\ntwo\n\n"[..], b"packed"]);
    assert_eq!(count(&bench.once().await.records), 0);
    bench.write("a.log", "three");
    bench.add("d.log", "four");
    bench.once().await;
    bench.add("a.log", "more");
    bench.once().await;
    assert_eq!(bench.payloads().await[2..], ["three", "four", "threemore"]);
}

#[tokio::test]
async fn a_file_is_deleted_or_moved_when_its_record_is_durable_and_never_before() {
    let mut bench = Bench::new();
    bench.config.framing = Framing::Whole;
    bench.config.after_read = AfterRead::Delete;
    bench.write("a.log", "1");
    bench.write("empty.log", "");
    bench.write("bad.log", &gzip(b"bad")[..15]);
    assert_eq!(unread(&bench).await.len(), 1);
    let names = || {
        let entries = std::fs::read_dir(bench.folder.path().join("in")).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["bad.log"]);
    std::fs::remove_file(bench.path("bad.log")).unwrap();
    // The same name with the same content is another file.
    bench.write("a.log", "1");
    assert!(unread(&bench).await.is_empty());
    assert!(names().is_empty());
    assert_eq!(bench.payloads().await, ["1", "1"]);

    // A crash before the rest was done leaves a file that was read.
    bench.config.after_read = AfterRead::Keep;
    bench.write("b.log", "2");
    bench.once().await;
    bench.config.after_read = AfterRead::Move(bench.folder.path().join("done"));
    bench.once().await;
    bench.write("b.log", "3");
    bench
        .follow(|counters| {
            let bench = &bench;
            async move {
                records_are(&counters, 1).await;
                until(|| !bench.path("b.log").exists()).await;
            }
        })
        .await;
    let moved = |name: &str| std::fs::read_to_string(bench.folder.path().join("done").join(name));
    assert_eq!((moved("b.log").unwrap(), moved("b.log.1").unwrap()), ("2".into(), "3".into()));
    assert_eq!(bench.payloads().await[2..], ["2", "3"]);

    // Where it would be read again it is not moved to.
    bench.config.after_read = AfterRead::Move(bench.folder.path().join("in"));
    bench.write("c.log", "4");
    let trouble = unread(&bench).await;
    assert!(trouble[0].contains("would be read again"), "{trouble:?}");
    assert_eq!(bench.payloads().await[4..], ["4"]);
}
