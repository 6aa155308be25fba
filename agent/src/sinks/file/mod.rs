//! The sink that writes one file per batch, or one for each value in it, under names that follow from the batch alone.
//!
//! A file appears under its final name complete and synced, and is never replaced. What it does not know: other batches, the
//! config of the time when the batch was sealed (that is in what [`SinkBuilder::fix`] wrote), and retries.
//!
//! | what happens | class |
//! |---|---|
//! | the root is missing, no folder, read-only, full, over quota, not ours to write, or a link leads out of it; any other I/O error | unreachable |
//! | an interrupted or timed-out call; an earlier attempt is still at the same file; the batch cannot be read from the journal | retryable |
//! | a payload with a newline under `format = "lines"`; a name that no file can have | rejected |
//! | other content, or something that is no file, under the batch's name | conflict |

pub mod config;
mod folder;
mod name;
mod publish;
mod write;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use rustix::fs::{Access, AtFlags};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use name::{known_fields, parse_path_template, partition_by};

use self::config::FileSinkConfig;
use self::folder::{Failed, Synced};
use self::publish::Way;
use self::write::{Attempt, Place};
use super::config::LineFormat;
use super::{Class, Delivered, Sink, SinkBuilder, SinkError, Throttle};
use crate::limiter::Limiter;
use crate::record::batch::{BatchFacts, SealedBatch};
use crate::record::partition::PartitionBy;

/// What is fixed for a batch when it is sealed. Stored: fields may be added, none may change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Fixed {
    /// The name of the one file; empty when there are several.
    name: String,
    format: String,
    compression: Option<Compression>,
    /// By what fields the batch is taken apart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    by: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<FixedFile>,
    /// Of a half or a replay: where in the name the suffix of its halves goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suffix_at: Option<usize>,
}

/// One of several files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FixedFile {
    /// The key of its records.
    key: String,
    name: String,
    /// Of a half or a replay: where in the name the suffix of its halves goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suffix_at: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Compression {
    codec: String,
    level: i32,
}

const ZSTD: &str = "zstd";

impl Fixed {
    fn parse(text: &str) -> Result<Self, SinkError> {
        let unusable = |reason: String| {
            SinkError::new(
                Class::Rejected,
                format!("what was fixed for the file is unusable: {reason}"),
            )
        };
        let fixed: Self =
            serde_json::from_str(text).map_err(|error| unusable(error.to_string()))?;
        if fixed.files.is_empty() {
            name::check_relative(&fixed.name).map_err(unusable)?;
        }
        for file in &fixed.files {
            name::check_relative(&file.name).map_err(unusable)?;
        }
        if LineFormat::from_word(&fixed.format).is_none() {
            return Err(unusable(format!("unknown format \"{}\"", fixed.format)));
        }
        if let Some(compression) = &fixed.compression
            && compression.codec != ZSTD
        {
            return Err(unusable(format!("unknown codec \"{}\"", compression.codec)));
        }
        Ok(fixed)
    }

    fn format(&self) -> LineFormat {
        LineFormat::from_word(&self.format).unwrap_or_default()
    }

    fn zstd_level(&self) -> Option<i32> {
        self.compression.as_ref().map(|compression| compression.level)
    }
}

/// A configured file sink.
#[derive(Debug)]
pub(super) struct FileSinkBuilder {
    config: FileSinkConfig,
    place: Arc<Place>,
    partition_by: Option<Arc<PartitionBy>>,
    limiter: Option<Arc<Limiter>>,
}

impl FileSinkBuilder {
    pub(super) fn new(config: FileSinkConfig, limiter: Option<Arc<Limiter>>) -> Self {
        let place = Place {
            root: config.root.clone(),
            root_must_exist: config.root_must_exist,
            way: Way::default(),
            synced: Synced::default(),
        };
        // A template that is none was refused when it was read, and fixes no name here either.
        let partition_by = partition_by(&config.path).ok().flatten().map(Arc::new);
        Self { config, place: Arc::new(place), partition_by, limiter }
    }
}

impl SinkBuilder for FileSinkBuilder {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn fix(&self, facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        let nameless = |reason: String| {
            let batch = facts.identity();
            SinkError::new(Class::Rejected, format!("batch {batch} gets no file name: {reason}"))
        };
        let path = &self.config.path;
        let template = parse_path_template(path).map_err(nameless)?;
        let render =
            |key: Option<&str>| name::render(path, &template, facts, key).map_err(nameless);
        let ((name, suffix_at), by, files) = if self.partition_by.is_none() {
            (render(None)?, Vec::new(), Vec::new())
        } else {
            let file = |key: &String| {
                let (name, suffix_at) = render(Some(key.as_str()))?;
                Ok(FixedFile { key: key.clone(), name, suffix_at })
            };
            let files: Vec<_> =
                facts.partitions.iter().map(file).collect::<Result<_, SinkError>>()?;
            let names: BTreeSet<_> = files.iter().map(|file| &file.name).collect();
            if names.len() != files.len() {
                return Err(nameless("two of its values have one name".to_owned()));
            }
            let by = name::record_fields(path).into_iter().map(str::to_owned);
            ((String::new(), None), by.collect(), files)
        };
        let fixed = Fixed {
            name,
            by,
            files,
            format: self.config.format.as_str().to_owned(),
            compression: self
                .config
                .zstd_level
                .map(|level| Compression { codec: ZSTD.to_owned(), level }),
            suffix_at,
        };
        Ok(serde_json::to_string(&fixed).expect("strings and a number are always JSON").into())
    }

    fn partition_by(&self) -> Option<Arc<PartitionBy>> {
        self.partition_by.clone()
    }

    fn takes(&self, fixed: &str) -> bool {
        Fixed::parse(fixed).is_ok()
    }

    fn fix_half(&self, facts: &BatchFacts, parent_fixed: &str) -> Result<Arc<str>, SinkError> {
        let half = |name: &mut String, suffix_at: &mut Option<usize>| -> Result<(), SinkError> {
            let named = name::half(facts, name, *suffix_at).map_err(|reason| {
                let half = facts.identity();
                SinkError::new(Class::Rejected, format!("half {half} gets no file name: {reason}"))
            });
            (*name, *suffix_at) = named?;
            Ok(())
        };
        let mut fixed = Fixed::parse(parent_fixed)?;
        if fixed.files.is_empty() {
            half(&mut fixed.name, &mut fixed.suffix_at)?;
        }
        for file in &mut fixed.files {
            half(&mut file.name, &mut file.suffix_at)?;
        }
        Ok(serde_json::to_string(&fixed).expect("strings and numbers are always JSON").into())
    }

    fn build(&self) -> Box<dyn Sink> {
        let throttle = Throttle::new(self.limiter.clone());
        Box::new(FileSink { place: Arc::clone(&self.place), throttle, running: None })
    }
}

/// An attempt on its blocking thread. Dropping the sink tells it to stop at the next block.
#[derive(Debug)]
struct Running {
    handle: JoinHandle<Result<Delivered, SinkError>>,
    cancelled: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cancelled.cancel();
    }
}

#[derive(Debug)]
struct FileSink {
    place: Arc<Place>,
    throttle: Throttle,
    running: Option<Running>,
}

impl FileSink {
    /// Waits for an attempt whose future was dropped: its thread goes on until it notices.
    async fn wait_for_earlier(&mut self) {
        if let Some(running) = &mut self.running {
            running.cancelled.cancel();
            // Whatever came of it, the next attempt finds it on the disk.
            let _settled_on_disk = (&mut running.handle).await;
            self.running = None;
        }
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn deliver(
        &mut self,
        batch: &SealedBatch,
        _attempt: u32,
    ) -> Result<Delivered, SinkError> {
        self.wait_for_earlier().await;
        let fixed = Fixed::parse(&batch.fixed)?;
        let cancelled = CancellationToken::new();
        let attempt = Attempt {
            throttle: self.throttle.clone(),
            runtime: tokio::runtime::Handle::current(),
            cancelled: cancelled.clone(),
        };
        let (place, batch) = (Arc::clone(&self.place), batch.clone());
        let handle =
            tokio::task::spawn_blocking(move || write::deliver(&place, &batch, &fixed, &attempt));
        let running = self.running.insert(Running { handle, cancelled });
        let result = (&mut running.handle).await;
        self.running = None;
        result.unwrap_or_else(|error| {
            Err(SinkError::new(Class::Retryable, "the writing thread died").caused_by(error))
        })
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let place = Arc::clone(&self.place);
        tokio::task::spawn_blocking(move || probe(&place)).await.unwrap_or_else(|error| {
            Err(SinkError::new(Class::Retryable, "the probing thread died").caused_by(error))
        })
    }

    fn throttle(&self) -> Throttle {
        self.throttle.clone()
    }
}

/// Writes nothing: a probe that did would wear the flash of a host whose disk is full for a week.
fn probe(place: &Place) -> Result<(), SinkError> {
    // A root that is missing is made by the first delivery, as the agent's user; here it counts whether that can be.
    let found = place.root.ancestors().find(|path| path.exists());
    let folder = found.filter(|_| !place.root_must_exist).unwrap_or(&place.root);
    let root = folder::open_root(folder, true)?;
    let failed = |error| SinkError::from(Failed::new("write to", folder, error));
    rustix::fs::accessat(&root, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(failed)?;
    let stat = rustix::fs::fstatvfs(&root).map_err(failed)?;
    // File systems without a size of their own say zero blocks of zero, and those that make inodes as they need them no files.
    let is_full = stat.f_blocks > 0 && stat.f_bavail == 0;
    if is_full || (stat.f_files > 0 && stat.f_favail == 0) {
        return Err(failed(rustix::io::Errno::NOSPC));
    }
    Ok(())
}

impl From<Failed> for SinkError {
    fn from(failed: Failed) -> Self {
        let class = match failed.error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                Class::Retryable
            }
            _ => Class::Unreachable,
        };
        let reason = format!("cannot {} {}", failed.verb, failed.path.display());
        Self::new(class, reason).caused_by(failed.error)
    }
}

#[cfg(test)]
mod partitioned;

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use super::*;
    use crate::sinks::tests::{batch, facts};

    const NAME: &str = "src/2027-01-15/0000000000000001.ndjson";
    const PART: &str = "src/2027-01-15/.0000000000000001.ndjson.part";

    fn builder(root: &Path) -> FileSinkBuilder {
        let config = FileSinkConfig {
            root: root.to_path_buf(),
            path: "{source}/{date}/{batch}.ndjson".to_owned(),
            format: LineFormat::Lines,
            zstd_level: None,
            root_must_exist: false,
        };
        FileSinkBuilder::new(config, None)
    }

    fn zstd_builder(root: &Path) -> FileSinkBuilder {
        let mut config = builder(root).config;
        config.zstd_level = Some(3);
        FileSinkBuilder::new(config, None)
    }

    async fn deliver(
        builder: &FileSinkBuilder,
        payloads: &[&[u8]],
    ) -> Result<Delivered, SinkError> {
        let batch = batch(builder, facts(1, payloads.len() as u64), payloads);
        builder.build().deliver(&batch, 1).await
    }

    fn files(root: &Path) -> Vec<String> {
        let mut found: Vec<_> = glob::glob(&format!("{}/**/*", root.display()))
            .unwrap()
            .map(|path| path.unwrap())
            .filter(|path| !path.is_dir())
            .map(|path| path.strip_prefix(root).unwrap().display().to_string())
            .collect();
        found.sort();
        found
    }

    #[tokio::test]
    async fn a_batch_becomes_one_file_and_a_repeat_is_recognised() {
        let root = tempfile::tempdir().unwrap();
        let builder = builder(&root.path().join("made/here"));
        let root = root.path().join("made/here");
        let delivered = deliver(&builder, &[b"one", b"two\r", b"\xff\0"]).await.unwrap();
        assert_eq!((delivered.records, delivered.already, delivered.files), (3, 0, 1));
        assert_eq!(delivered.bytes, 12);
        assert_eq!(std::fs::read(root.join(NAME)).unwrap(), b"one\ntwo\r\n\xff\0\n");
        let again = deliver(&builder, &[b"one", b"two\r", b"\xff\0"]).await.unwrap();
        assert_eq!((again.records, again.already, again.files), (3, 3, 0));
        assert_eq!(files(&root), [NAME]);
    }

    #[tokio::test]
    async fn other_content_under_the_name_is_a_conflict_that_shows_both_hashes() {
        let root = tempfile::tempdir().unwrap();
        let builder = builder(root.path());
        deliver(&builder, &[b"one"]).await.map(drop).unwrap();
        let error = deliver(&builder, &[b"two"]).await.unwrap_err();
        assert_eq!(error.class, Class::Conflict);
        for hash in ["2c8b08da5ce60398", "27dd8ed44a83ff94"] {
            assert!(error.reason.contains(hash), "{}", error.reason);
        }
        assert_eq!(std::fs::read(root.path().join(NAME)).unwrap(), b"one\n");
        std::fs::remove_file(root.path().join(NAME)).unwrap();
        std::fs::create_dir(root.path().join(NAME)).unwrap();
        assert_eq!(deliver(&builder, &[b"two"]).await.unwrap_err().class, Class::Conflict);
    }

    #[tokio::test]
    async fn zstd_files_decompress_to_the_lines_and_repeats_compare_by_them() {
        let root = tempfile::tempdir().unwrap();
        let payloads: Vec<String> =
            (0..50_000).map(|n| format!("{{\"n\":{n},\"x\":\"yyyyyyyyyy\"}}")).collect();
        let payloads: Vec<&[u8]> = payloads.iter().map(|payload| payload.as_bytes()).collect();
        let mut expected = payloads.join(&b'\n');
        expected.push(b'\n');
        let delivered = deliver(&zstd_builder(root.path()), &payloads).await.unwrap();
        let path = root.path().join(NAME);
        assert_eq!(delivered.bytes, path.metadata().unwrap().len());
        assert!(delivered.bytes * 4 < expected.len() as u64);
        let mut content = Vec::new();
        let file = std::fs::File::open(&path).unwrap();
        zstd::stream::read::Decoder::new(file).unwrap().read_to_end(&mut content).unwrap();
        assert!(content == expected);
        // Another level, the same content: it is the lines that count.
        std::fs::write(&path, zstd::encode_all(&expected[..], 1).unwrap()).unwrap();
        let again = deliver(&zstd_builder(root.path()), &payloads).await.unwrap();
        assert_eq!(again.already, 50_000);
        std::fs::write(&path, b"no zstd at all").unwrap();
        let error = deliver(&zstd_builder(root.path()), &payloads).await.unwrap_err();
        assert_eq!(error.class, Class::Conflict);
    }

    #[tokio::test]
    async fn what_a_crash_left_is_overwritten() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("src/2027-01-15")).unwrap();
        std::fs::write(root.path().join(PART), "half of a longer fi").unwrap();
        deliver(&builder(root.path()), &[b"one"]).await.map(drop).unwrap();
        assert_eq!(std::fs::read(root.path().join(NAME)).unwrap(), b"one\n");
        assert_eq!(files(root.path()), [NAME]);
    }

    #[tokio::test]
    async fn a_part_that_somebody_still_writes_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("src/2027-01-15")).unwrap();
        std::fs::write(root.path().join(PART), "busy").unwrap();
        let held = std::fs::File::open(root.path().join(PART)).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let error = deliver(&builder(root.path()), &[b"one"]).await.unwrap_err();
        assert_eq!(error.class, Class::Retryable);
        assert_eq!(std::fs::read(root.path().join(PART)).unwrap(), b"busy");
        drop(held);
        deliver(&builder(root.path()), &[b"one"]).await.map(drop).unwrap();
    }

    #[tokio::test]
    async fn a_dropped_attempt_is_settled_by_the_next() {
        let root = tempfile::tempdir().unwrap();
        let builder = builder(root.path());
        let payloads = vec![&b"some line of text"[..]; 20_000];
        let batch = batch(&builder, facts(1, 20_000), &payloads);
        let mut sink = builder.build();
        for _ in 0..20 {
            let attempt = sink.deliver(&batch, 1);
            let cut = tokio::time::timeout(std::time::Duration::from_micros(300), attempt).await;
            if let Ok(result) = cut {
                result.map(drop).unwrap();
            }
        }
        assert_eq!(sink.deliver(&batch, 2).await.unwrap().records, 20_000);
        assert_eq!(files(root.path()), [NAME]);
        assert_eq!(std::fs::read(root.path().join(NAME)).unwrap().len(), 20_000 * 18);
    }

    #[tokio::test]
    async fn what_is_written_waits_for_the_limiter_and_a_wait_that_is_given_up_leaves_no_file() {
        let root = tempfile::tempdir().unwrap();
        let limited = |rate| {
            let begun = tokio::time::Instant::now();
            let rate = crate::limiter::Rate { bytes: Some((rate, rate)), records: Some(50_000) };
            let limiter = Limiter::new(rate, Arc::new(move || begun.elapsed()));
            FileSinkBuilder::new(builder(root.path()).config, Some(Arc::new(limiter)))
        };
        let slow = limited(1);
        let batch_of_one = batch(&slow, facts(1, 1), &[b"one"]);
        let mut sink = slow.build();
        // On a busy host an attempt may be given up before it comes to its wait.
        for _ in 0..200 {
            let attempt = sink.deliver(&batch_of_one, 1);
            let cut = tokio::time::timeout(std::time::Duration::from_millis(50), attempt).await;
            assert!(!matches!(cut, Ok(Ok(_))), "nothing held it back");
            if sink.throttle().held() > std::time::Duration::ZERO {
                break;
            }
        }
        assert!(sink.throttle().held() > std::time::Duration::ZERO);
        drop(sink);
        let builder = limited(1_000_000);
        let payloads = vec![&b"some line of text"[..]; 20_000];
        let batch = batch(&builder, facts(1, 20_000), &payloads);
        let mut sink = builder.build();
        let begun = tokio::time::Instant::now();
        // The attempt before may be about to notice that it is over.
        let delivered = loop {
            match sink.deliver(&batch, 1).await {
                Err(error) if error.class == Class::Retryable => {}
                result => break result.unwrap(),
            }
        };
        assert_eq!((delivered.records, delivered.bytes), (20_000, 360_000));
        // The records are the slower of the two.
        assert!(begun.elapsed().as_secs_f64() > 0.39, "{:?}", begun.elapsed());
        assert_eq!(files(root.path()), [NAME]);
    }

    #[tokio::test]
    async fn a_link_that_leads_out_of_the_root_is_refused() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), root.path().join("src")).unwrap();
        let error = deliver(&builder(root.path()), &[b"one"]).await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable);
        assert!(files(outside.path()).is_empty());
        // Neither is one in the place of the file or of its temporary followed.
        std::fs::remove_file(root.path().join("src")).unwrap();
        std::fs::create_dir_all(root.path().join("src/2027-01-15")).unwrap();
        let target = outside.path().join("target");
        std::fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, root.path().join(PART)).unwrap();
        assert!(deliver(&builder(root.path()), &[b"one"]).await.is_err());
        std::fs::remove_file(root.path().join(PART)).unwrap();
        std::os::unix::fs::symlink(&target, root.path().join(NAME)).unwrap();
        let error = deliver(&builder(root.path()), &[b"one"]).await.unwrap_err();
        assert_eq!(error.class, Class::Conflict);
        assert_eq!(std::fs::read(&target).unwrap(), b"untouched");
    }

    #[tokio::test]
    async fn records_with_a_newline_are_refused_by_name_and_the_others_are_written() {
        let root = tempfile::tempdir().unwrap();
        let payloads: [&[u8]; 4] = [b"one", b"t\nwo", b"three", b"\n"];
        let delivered = deliver(&builder(root.path()), &payloads).await.unwrap();
        let refused: Vec<_> = delivered.refused.iter().map(|refused| refused.index).collect();
        assert_eq!((delivered.records, refused), (2, vec![1, 3]));
        assert!(delivered.refused[0].reason.contains("holds a newline"), "{delivered:?}");
        assert_eq!(std::fs::read(root.path().join(NAME)).unwrap(), b"one\nthree\n");
        let again = deliver(&builder(root.path()), &payloads).await.unwrap();
        assert_eq!((again.records, again.already, again.refused.len()), (2, 2, 2));
        let other = tempfile::tempdir().unwrap();
        let delivered = deliver(&builder(other.path()), &[b"\n", b"\n"]).await.unwrap();
        assert_eq!((delivered.records, delivered.files, delivered.refused.len()), (0, 0, 2));
        assert!(files(other.path()).is_empty());
    }

    #[tokio::test]
    async fn a_missing_or_unusable_root_is_unreachable() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = builder(&folder.path().join("mount")).config;
        config.root_must_exist = true;
        let missing = FileSinkBuilder::new(config, None);
        assert_eq!(missing.build().probe().await.unwrap_err().class, Class::Unreachable);
        assert_eq!(deliver(&missing, &[b"one"]).await.unwrap_err().class, Class::Unreachable);
        std::fs::write(folder.path().join("file"), "").unwrap();
        let file = builder(&folder.path().join("file"));
        assert_eq!(file.build().probe().await.unwrap_err().class, Class::Unreachable);
        let under = builder(&folder.path().join("file/below"));
        assert_eq!(deliver(&under, &[b"one"]).await.unwrap_err().class, Class::Unreachable);
        builder(folder.path()).build().probe().await.unwrap();
    }

    /// A file system of one mebibyte; `None` where this process may not mount.
    struct Mount(tempfile::TempDir);

    impl Mount {
        fn new(options: &str) -> Option<Self> {
            let folder = tempfile::tempdir().unwrap();
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(folder.path());
            mount.stderr(std::process::Stdio::null());
            mount.status().is_ok_and(|status| status.success()).then(|| Self(folder))
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            std::process::Command::new("umount").arg(self.0.path()).status().unwrap();
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_unreachable_and_taken_again_when_there_is_room() {
        let Some(mount) = Mount::new("size=1m") else { return };
        let root = mount.0.path();
        std::fs::write(root.join("ballast"), vec![0; 900 * 1024]).unwrap();
        let payload = vec![b'x'; 300 * 1024];
        let error = deliver(&builder(root), &[&payload]).await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable);
        assert_eq!(files(root), ["ballast"]);
        std::fs::write(root.join("filler"), vec![0; 200 * 1024]).unwrap_err();
        assert_eq!(builder(root).build().probe().await.unwrap_err().class, Class::Unreachable);
        std::fs::remove_file(root.join("filler")).unwrap();
        std::fs::remove_file(root.join("ballast")).unwrap();
        builder(root).build().probe().await.unwrap();
        assert_eq!(deliver(&builder(root), &[&payload]).await.unwrap().files, 1);
    }

    #[tokio::test]
    async fn a_disk_without_a_free_inode_is_unreachable_and_taken_again_when_there_is_one() {
        let Some(mount) = Mount::new("size=1m,nr_inodes=6") else { return };
        let root = mount.0.path();
        for number in 0.. {
            if std::fs::write(root.join(format!("filler{number}")), "").is_err() {
                break;
            }
        }
        let error = deliver(&builder(root), &[b"one"]).await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable, "{error}");
        let error = builder(root).build().probe().await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable, "{error}");
        // Two folders and a file.
        for number in 0..3 {
            std::fs::remove_file(root.join(format!("filler{number}"))).unwrap();
        }
        builder(root).build().probe().await.unwrap();
        assert_eq!(deliver(&builder(root), &[b"one"]).await.unwrap().files, 1);
    }

    #[tokio::test]
    async fn a_read_only_file_system_is_unreachable() {
        let Some(mount) = Mount::new("size=1m,ro") else { return };
        let error = deliver(&builder(mount.0.path()), &[b"one"]).await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable);
        let error = builder(mount.0.path()).build().probe().await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable);
    }

    #[tokio::test]
    async fn what_was_fixed_counts_and_not_the_config_of_today() {
        let root = tempfile::tempdir().unwrap();
        let batch = batch(&builder(root.path()), facts(1, 1), &[b"one"]);
        assert_eq!(
            &*batch.fixed,
            format!(r#"{{"name":"{NAME}","format":"lines","compression":null}}"#)
        );
        let mut config = zstd_builder(root.path()).config;
        config.path = "other/{epoch}-{batch}".to_owned();
        config.format = LineFormat::Json;
        FileSinkBuilder::new(config, None).build().deliver(&batch, 1).await.map(drop).unwrap();
        assert_eq!(std::fs::read(root.path().join(NAME)).unwrap(), b"one\n");
    }
}
