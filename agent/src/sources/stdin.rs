//! The source that reads lines from standard input, to its end.
//!
//! Standard input cannot be read twice. What was read is kept, up to a bound, until it is durable: after a failure of the
//! journal the next run hands it in again. Only lines that were not durable when the agent ends are gone, and their producer
//! was never told otherwise. A last line without a newline is a record. Asked to stop, it leaves an unfinished line alone.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::collect::{Collector, Line};
use super::config::StdinSourceConfig;
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions};
use crate::clock::{SharedClock, Timestamp};
use crate::journal::{Append, Appender};
use crate::limits::READ_BLOCK_BYTES;
use crate::record::Headers;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// How long a wait for input takes no notice of a request to stop.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

pub(super) struct StdinSource {
    id: SourceId,
    counters: Arc<SourceCounters>,
    /// `None` while its thread has it, and when that has died with it.
    reader: Option<Reader>,
    /// Read and not handed over, or handed over in vain.
    unsaved: VecDeque<Append>,
    ended: bool,
}

impl StdinSource {
    pub(super) fn new(
        id: SourceId,
        config: &StdinSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        let opened = io::stdin().as_fd().try_clone_to_owned();
        let input = opened.map_err(|error| SourceError::Read { source_id: id.clone(), error })?;
        Self::on(input, id, config, options)
    }

    fn on(
        input: OwnedFd,
        id: SourceId,
        config: &StdinSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        let subject = Template::parse(&config.subject, &["source"])
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?
            .render(&[id.as_str()]);
        let counters = Arc::clone(&options.counters);
        let reader = Reader {
            input,
            clock: Arc::clone(&options.clock),
            subject,
            collector: Collector::new(config.limits, Arc::clone(&counters))
                .timed(options.times.as_ref()),
            buffer: vec![0; READ_BLOCK_BYTES],
            carry: Vec::new(),
            size: 0,
            read: 0,
            ready: Vec::new(),
        };
        let (reader, unsaved) = (Some(reader), VecDeque::new());
        Ok(Self { id, counters, reader, unsaved, ended: false })
    }

    async fn read(
        &mut self,
        feed: &mut Feed,
        shutdown: &Shutdown,
    ) -> Result<Finished, SourceError> {
        loop {
            while let Some(append) = self.unsaved.pop_front() {
                feed.push(append).await?;
            }
            if self.ended {
                feed.drain().await?;
                return Ok(Finished::End);
            }
            match self.step(shutdown).await? {
                // Nobody is waiting behind these lines: have them counted.
                Step::Waited if self.unsaved.is_empty() => feed.drain().await?,
                Step::Waited | Step::Read => {}
                Step::End => self.ended = true,
                Step::Stopped => {
                    while let Some(append) = self.unsaved.pop_front() {
                        feed.push(append).await?;
                    }
                    feed.drain().await?;
                    return Ok(Finished::Stopped);
                }
            }
        }
    }

    /// One step on a thread of its own; what it has read is unsaved.
    async fn step(&mut self, shutdown: &Shutdown) -> Result<Step, SourceError> {
        let failed = |error| SourceError::Read { source_id: self.id.clone(), error };
        let Some(mut reader) = self.reader.take() else {
            return Err(failed(io::Error::other("the thread that read it has died")));
        };
        let stop = shutdown.clone();
        let step = tokio::task::spawn_blocking(move || {
            let step = reader.step(&stop);
            (reader, step)
        });
        let (mut reader, step) =
            step.await.map_err(|error| SourceError::Died { source_id: self.id.clone(), error })?;
        let step = step.map_err(failed);
        self.unsaved.extend(reader.ready.drain(..));
        self.reader = Some(reader);
        step
    }
}

#[async_trait]
impl Source for StdinSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }

    fn unsaved(&self) -> u64 {
        let count =
            |append: &Append| u64::from(append.frames.count()) + append.letters.len() as u64;
        self.unsaved.iter().map(count).sum()
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let mut feed = Feed::keeping(appender, Arc::clone(&self.counters));
        let result = self.read(&mut feed, &shutdown).await;
        let mut kept = feed.into_kept();
        kept.append(&mut self.unsaved);
        self.unsaved = kept;
        result
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Read,
    Waited,
    End,
    Stopped,
}

struct Reader {
    input: OwnedFd,
    clock: SharedClock,
    subject: String,
    collector: Collector,
    buffer: Vec<u8>,
    /// The line that has begun: its first bytes, never more than the limit, and how many there were.
    carry: Vec<u8>,
    size: u64,
    /// Bytes read so far.
    read: u64,
    ready: Vec<Append>,
}

impl Reader {
    /// Reads what is there, one block at least, or waits a little for something to come.
    fn step(&mut self, stop: &Shutdown) -> io::Result<Step> {
        let mut wait = POLL;
        loop {
            if stop.is_requested() {
                self.flush();
                return Ok(Step::Stopped);
            }
            if !self.is_readable(&wait)? {
                let waited = wait == POLL;
                self.flush();
                return Ok(if waited { Step::Waited } else { Step::Read });
            }
            match rustix::io::read(&self.input, &mut self.buffer) {
                Err(Errno::INTR | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
                Ok(0) => {
                    self.finish();
                    return Ok(Step::End);
                }
                Ok(count) => self.take(count),
            }
            if !self.ready.is_empty() {
                return Ok(Step::Read);
            }
            wait = NOW;
        }
    }

    fn is_readable(&self, wait: &Timespec) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        match poll(&mut fds, Some(wait)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, count: usize) {
        let time = self.clock.now();
        let block = std::mem::take(&mut self.buffer);
        let mut at = 0;
        for end in memchr::memchr_iter(b'\n', &block[..count]) {
            self.end_line(&block[at..end], time, self.read + end as u64);
            at = end + 1;
        }
        self.keep(&block[at..count]);
        self.read += count as u64;
        self.buffer = block;
    }

    /// A line ends with these bytes.
    fn end_line(&mut self, bytes: &[u8], time: Timestamp, end: u64) {
        if self.size == 0 {
            // The usual case: the line stands in the block as a whole.
            self.line(bytes, bytes.len() as u64, time, end);
        } else {
            self.keep(bytes);
            let carry = std::mem::take(&mut self.carry);
            self.line(&carry, self.size, time, end);
            self.carry = carry;
            self.carry.clear();
            // One long line must not hold its memory for ever.
            self.carry.shrink_to(READ_BLOCK_BYTES);
            self.size = 0;
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.collector.record_bytes_max().saturating_sub(self.carry.len());
        self.carry.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.size += bytes.len() as u64;
    }

    fn line(&mut self, head: &[u8], size: u64, time: Timestamp, end: u64) {
        if !self.collector.has_room(head.len(), self.subject.len()) {
            self.flush();
        }
        let head = &head[..head.len().min(self.collector.record_bytes_max())];
        let headers = Headers::default();
        let line = Line { time, subject: &self.subject, headers, head, size };
        self.collector.line(line, || format!("standard input, byte {}", end - size));
    }

    fn finish(&mut self) {
        if self.size > 0 {
            let time = self.clock.now();
            self.end_line(&[], time, self.read);
        }
        self.flush();
    }

    fn flush(&mut self) {
        self.ready.extend(self.collector.take());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::sources::config::{LineLimits, OnOversize};
    use crate::sources::tests::{open, options, payloads, source_id};
    use crate::units::ByteSize;

    fn source(input: OwnedFd) -> Box<StdinSource> {
        let config = StdinSourceConfig {
            subject: "in.{source}".to_owned(),
            limits: LineLimits {
                record_bytes_max: ByteSize(1 << 20),
                on_oversize: OnOversize::DeadLetter,
            },
        };
        Box::new(StdinSource::on(input, source_id(), &config, &options(true)).unwrap())
    }

    #[tokio::test]
    async fn a_pipe_is_read_to_its_end_byte_for_byte() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let (input, output) = io::pipe().unwrap();
        let long = vec![b'y'; 700_000];
        let over = vec![b'z'; 2 << 20];
        let writer = std::thread::spawn({
            let (long, over) = (long.clone(), over.clone());
            move || {
                let mut output = output;
                output.write_all(b"one\r\n\n\xff\0two\n").unwrap();
                output.write_all(&long).unwrap();
                output.write_all(b"\n").unwrap();
                output.write_all(&over).unwrap();
                output.write_all(b"\nlast without newline").unwrap();
            }
        });
        let mut source = source(input.into());
        let counters = source.counters();
        let appender = journal.appender(&source_id()).await.unwrap();
        assert_eq!(source.run(appender, Shutdown::new()).await.unwrap(), Finished::End);
        writer.join().unwrap();
        assert_eq!(
            payloads(&journal).await,
            [b"one\r".to_vec(), b"\xff\0two".to_vec(), long, b"last without newline".to_vec()]
        );
        let count = |counter: &std::sync::atomic::AtomicU64| {
            counter.load(std::sync::atomic::Ordering::Relaxed)
        };
        assert_eq!(count(&counters.records), 4);
        assert_eq!((count(&counters.empty_lines), count(&counters.oversize_dead_lettered)), (1, 1));
    }

    #[tokio::test]
    async fn what_a_run_could_not_save_is_handed_in_first_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let (input, output) = io::pipe().unwrap();
        let lines: String = (0..100_000).map(|n| format!("line {n}\n")).collect();
        let expected: Vec<_> = lines.lines().map(|line| line.as_bytes().to_vec()).collect();
        let writer = std::thread::spawn(move || {
            let mut output = output;
            output.write_all(lines.as_bytes()).unwrap();
        });
        let mut source = source(input.into());
        let appender = journal.appender(&source_id()).await.unwrap();
        journal.close().await.unwrap();
        source.run(appender, Shutdown::new()).await.unwrap_err();
        assert!(source.unsaved() > 0);
        drop(journal);
        let journal = open(folder.path());
        let appender = journal.appender(&source_id()).await.unwrap();
        assert_eq!(source.run(appender, Shutdown::new()).await.unwrap(), Finished::End);
        writer.join().unwrap();
        assert_eq!(source.unsaved(), 0);
        assert!(payloads(&journal).await == expected);
    }

    #[tokio::test]
    async fn an_open_pipe_stops_when_asked_and_what_came_is_durable() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let (input, output) = io::pipe().unwrap();
        let mut output = output;
        output.write_all(b"one\ntw").unwrap();
        let mut source = source(input.into());
        let counters = source.counters();
        let appender = journal.appender(&source_id()).await.unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let ask = async {
            while counters.records.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                tokio::task::yield_now().await;
            }
            asked.request();
        };
        let (finished, ()) = tokio::join!(source.run(appender, shutdown), ask);
        assert_eq!(finished.unwrap(), Finished::Stopped);
        assert_eq!(payloads(&journal).await, [b"one"]);
    }
}
