//! The real journalctl on real files; stand-ins for what it does when it fails.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use tokio::task::yield_now;

use super::*;
use crate::error_chain::Chain;
use crate::journal::Journal;
use crate::sources::config::{LineLimits, OnOversize, StartAt};
use crate::sources::tests::{Record, open, options, records, source_id};
use crate::units::ByteSize;

#[path = "../../../tests/it/support/journald.rs"]
mod journald;

use journald::{BOOTS, Journald};

struct Fixture {
    folder: tempfile::TempDir,
    journal: Journal,
    config: JournaldSourceConfig,
    program: PathBuf,
    counters: Arc<SourceCounters>,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("journald")).unwrap();
        let journal = open(folder.path());
        let config = JournaldSourceConfig {
            units: Vec::new(),
            directory: Some(folder.path().join("journald")),
            start_at: StartAt::Beginning,
            subject: "j.{unit}".to_owned(),
            limits: LineLimits {
                record_bytes_max: ByteSize(64 * 1024),
                on_oversize: OnOversize::DeadLetter,
            },
        };
        let program = PathBuf::from("journalctl");
        Self { folder, journal, config, program, counters: Arc::default() }
    }

    fn directory(&self) -> PathBuf {
        self.folder.path().join("journald")
    }

    fn write(&self, name: &str, first: u64) -> Journald {
        Journald::write(&self.directory(), name, first)
    }

    fn source(&self) -> JournaldSource {
        let options = SourceOptions { counters: Arc::clone(&self.counters), ..options(false) };
        let mut source = JournaldSource::new(source_id(), &self.config, &options).unwrap();
        source.program.clone_from(&self.program);
        source
    }

    /// One run, ended when `is_done` by its counters.
    async fn run(
        &self,
        is_done: impl Fn(&SourceCounters) -> bool,
    ) -> Result<Finished, SourceError> {
        let mut source = self.source();
        let appender = self.journal.appender(&source_id()).await.unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let ask = async {
            while !is_done(&self.counters) {
                yield_now().await;
            }
            asked.request();
        };
        let run = source.run(appender, shutdown);
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => return ended,
            () = ask => {}
        }
        run.await
    }

    async fn run_to(&self, records: u64) {
        let is_done = |counters: &SourceCounters| count(&counters.records) >= records;
        assert_eq!(self.run(is_done).await.unwrap(), Finished::Stopped);
    }

    async fn records(&self) -> Vec<Record> {
        records(&self.journal).await
    }

    async fn payloads(&self) -> Vec<String> {
        let records = self.records().await.into_iter();
        records.map(|(_, _, payload)| String::from_utf8(payload).unwrap()).collect()
    }

    /// A stand-in that says nothing of its own accord, in place of journalctl.
    fn stand_in(&mut self, script: &str) {
        self.program = self.folder.path().join("stand-in");
        std::fs::write(&self.program, format!("#!/bin/sh\n{script}\n")).unwrap();
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&self.program, executable).unwrap();
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(std::sync::atomic::Ordering::Relaxed)
}

fn header<'r>(record: &'r Record, name: &str) -> Option<&'r str> {
    record.1.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Children of this process, also those that have ended and were not waited for.
fn children() -> usize {
    let own = std::process::id().to_string();
    let stats = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path().join("stat")).ok());
    stats.filter(|stat| stat.rsplit(')').next().unwrap().split(' ').nth(2) == Some(&own)).count()
}

#[tokio::test]
async fn entries_of_all_boots_are_records_with_what_journald_knows_of_them() {
    let fixture = Fixture::new();
    let mut writer = fixture.write("system", 0);
    writer.entry(
        0,
        &[
            ("MESSAGE", b"one"),
            ("PRIORITY", b"3"),
            ("_SYSTEMD_UNIT", b"nginx.service"),
            ("SYSLOG_IDENTIFIER", b"nginx"),
            ("_PID", b"12"),
            ("_UID", b"33"),
            ("_HOSTNAME", b"gw"),
            ("_TRANSPORT", b"stdout"),
            ("OTHER", b"not asked for"),
        ],
    );
    writer.entry(1, &[("MESSAGE", b"two\nlines \xff\0"), ("PRIORITY", b"9")]);
    writer.entry(1, &[("PRIORITY", b"7"), ("_SYSTEMD_UNIT", b"a b.service")]);
    writer.end();
    fixture.run_to(3).await;
    let found = fixture.records().await;
    let payloads: Vec<_> = found.iter().map(|(_, _, payload)| payload.as_slice()).collect();
    assert_eq!(payloads, [&b"one"[..], b"two\nlines \xff\0", b""]);
    let subjects: Vec<_> = found.iter().map(|(subject, ..)| subject.as_str()).collect();
    assert_eq!(subjects, ["j.nginx_service", "j._", "j.a_b_service"]);
    for (name, value) in [
        ("journald-unit", "nginx.service"),
        ("journald-identifier", "nginx"),
        ("journald-priority", "err"),
        ("journald-pid", "12"),
        ("journald-uid", "33"),
        ("journald-hostname", "gw"),
        ("journald-transport", "stdout"),
        ("journald-boot-id", BOOTS[0]),
    ] {
        assert_eq!(header(&found[0], name), Some(value), "{name}");
    }
    assert_eq!(header(&found[1], "journald-boot-id"), Some(BOOTS[1]));
    assert_eq!(header(&found[1], "journald-priority"), None);
    assert_eq!(header(&found[2], "journald-priority"), Some("debug"));
}

#[tokio::test]
async fn each_entry_comes_once_over_many_runs_and_those_of_other_units_never() {
    let mut fixture = Fixture::new();
    fixture.config.units = vec!["a.service".to_owned(), "b.service".to_owned()];
    let mut writer = fixture.write("system", 0);
    let mut wanted = Vec::new();
    for round in 1..=4 {
        for number in 0..50 {
            let unit = ["a.service", "b.service", "c.service"][number % 3];
            let message = format!("{round} {number} {unit}");
            writer.entry(
                round % 2,
                &[("MESSAGE", message.as_bytes()), ("_SYSTEMD_UNIT", unit.as_bytes())],
            );
            wanted.extend((number % 3 < 2).then_some(message));
        }
        fixture.run_to(wanted.len() as u64).await;
    }
    assert_eq!(fixture.payloads().await, wanted);
    assert_eq!(count(&fixture.counters.gaps), 0);
}

#[tokio::test]
async fn with_start_at_end_only_what_comes_later_is_read_also_what_comes_between_two_runs() {
    for is_empty in [false, true] {
        let mut fixture = Fixture::new();
        fixture.config.start_at = StartAt::End;
        let mut writer = fixture.write("system", 0);
        if !is_empty {
            writer.message("before");
            writer.end();
            writer = fixture.write("system", 1);
        }
        // A run that reads nothing: its place is stored all the same.
        let has_begun = std::cell::Cell::new(0);
        let waited = |_: &SourceCounters| {
            has_begun.set(has_begun.get() + 1);
            children() > 1 && has_begun.get() > 200
        };
        fixture.run(waited).await.unwrap();
        writer.message("between");
        writer.message("later");
        fixture.run_to(2).await;
        assert_eq!(fixture.payloads().await, ["between", "later"]);
    }
}

#[tokio::test]
async fn a_place_that_journald_has_given_up_is_told_and_it_goes_on_with_what_there_is() {
    let fixture = Fixture::new();
    let mut writer = fixture.write("system", 0);
    writer.message("old");
    writer.end();
    fixture.run_to(1).await;
    std::fs::remove_file(fixture.directory().join("system.journal")).unwrap();
    let mut writer = fixture.write("system", 10);
    writer.message("new 1");
    writer.message("new 2");
    writer.end();
    fixture.run_to(3).await;
    fixture.run(|counters| count(&counters.records) == 3).await.unwrap();
    assert_eq!(fixture.payloads().await, ["old", "new 1", "new 2"]);
    assert_eq!(count(&fixture.counters.gaps), 1);
}

#[tokio::test]
async fn a_message_over_the_limit_is_a_letter_and_its_neighbours_are_records() {
    let fixture = Fixture::new();
    let mut writer = fixture.write("system", 0);
    let long = vec![b'x'; 500_000];
    for message in [&b"before"[..], &long, b"behind"] {
        writer.entry(0, &[("MESSAGE", message)]);
    }
    writer.end();
    fixture.run_to(2).await;
    assert_eq!(fixture.payloads().await, ["before", "behind"]);
    assert_eq!(count(&fixture.counters.oversize_dead_lettered), 1);
}

/// The journal fails in the middle: the next run has the rest, and nothing twice.
#[tokio::test]
async fn what_was_not_durable_is_read_again_and_nothing_twice() {
    const ENTRIES: u64 = 3000;
    let mut fixture = Fixture::new();
    let mut writer = fixture.write("system", 0);
    let messages: Vec<_> = (0..ENTRIES).map(|number| format!("{number:0>400}")).collect();
    let (first, rest) = messages.split_at(1000);
    first.iter().for_each(|message| writer.message(message));
    fixture.run_to(1000).await;
    rest.iter().for_each(|message| writer.message(message));
    writer.end();
    let appender = fixture.journal.appender(&source_id()).await.unwrap();
    fixture.journal.close().await.unwrap();
    let error = fixture.source().run(appender, Shutdown::new()).await.unwrap_err();
    assert!(matches!(error, SourceError::Append(_)), "{error}");
    drop(fixture.journal);
    fixture.journal = open(fixture.folder.path());
    assert_eq!(fixture.records().await.len(), 1000);
    fixture.counters = Arc::default();
    fixture.run_to(ENTRIES - 1000).await;
    assert!(fixture.payloads().await == messages);
}

#[tokio::test]
async fn what_journalctl_ends_with_is_said_and_no_child_stays() {
    let before = children();
    let mut fixture = Fixture::new();
    let told = |result: Result<Finished, SourceError>| Chain(&result.unwrap_err()).to_string();
    fixture.program = Path::new("/nowhere/journalctl").to_owned();
    let error = told(fixture.run(|_| false).await);
    assert!(error.contains("cannot start /nowhere/journalctl"), "{error}");

    fixture.stand_in("echo 'No files: Permission denied' >&2; exit 3");
    let error = told(fixture.run(|_| false).await);
    assert!(error.contains("exit status: 3") && error.contains("systemd-journal"), "{error}");

    // It says more than is kept, and would wait for ever if nobody took it.
    fixture.stand_in("head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1");
    let error = told(fixture.run(|_| false).await);
    assert!(error.len() < 2000 && error.contains("exit status: 1"), "{error}");

    fixture.stand_in("echo '-- Boot --'; sleep 100");
    let error = told(fixture.run(|_| false).await);
    assert!(error.contains("no name of a field at byte 1"), "{error}");

    fixture
        .stand_in("printf '__CURSOR=c\\nMESSAGE=whole\\n\\n__CURSOR=d\\nMESSAGE=half'; kill -9 $$");
    let error = told(fixture.run(|_| false).await);
    assert!(error.contains("signal: 9"), "{error}");
    assert_eq!(fixture.payloads().await, ["whole"]);

    fixture.stand_in("exec sleep 1000");
    let began = std::cell::Cell::new(0);
    let asked = |_: &SourceCounters| {
        began.set(began.get() + 1);
        children() > before && began.get() > 20
    };
    assert_eq!(fixture.run(asked).await.unwrap(), Finished::Stopped);
    assert_eq!(children(), before);
}

#[test]
fn what_never_ends_is_refused_where_it_is_to_be_read_once() {
    let fixture = Fixture::new();
    let refused = JournaldSource::new(source_id(), &fixture.config, &options(true)).err().unwrap();
    assert!(refused.to_string().contains("never ends"), "{refused}");
}
