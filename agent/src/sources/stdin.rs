//! The source that reads lines from standard input, to its end.
//!
//! Standard input cannot be read twice: lines that were read but not durable when the agent dies are gone, and their producer
//! was never told otherwise. A last line without a newline is a record. Asked to stop, it leaves an unfinished line alone.

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
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::Shutdown;

/// How long a wait for input takes no notice of a request to stop.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

pub(super) struct StdinSource {
    id: SourceId,
    counters: Arc<SourceCounters>,
    reader: Reader,
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
        let counters = Arc::new(SourceCounters::default());
        let reader = Reader {
            input,
            clock: Arc::clone(&options.clock),
            subject,
            collector: Collector::new(config.limits, Arc::clone(&counters)),
            buffer: vec![0; READ_BLOCK_BYTES],
            carry: Vec::new(),
            size: 0,
            read: 0,
            ready: Vec::new(),
        };
        Ok(Self { id, counters, reader })
    }
}

#[async_trait]
impl Source for StdinSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.counters)
    }

    async fn run(
        self: Box<Self>,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        let Self { id, counters, mut reader } = *self;
        let mut feed = Feed::new(appender, counters);
        loop {
            let stop = shutdown.clone();
            let step = tokio::task::spawn_blocking(move || {
                let step = reader.step(&stop);
                (reader, step)
            });
            let (used, step) =
                step.await.map_err(|error| SourceError::Died { source_id: id.clone(), error })?;
            reader = used;
            let step = step.map_err(|error| SourceError::Read { source_id: id.clone(), error })?;
            for append in reader.ready.drain(..) {
                feed.push(append).await?;
            }
            let finished = match step {
                Step::Waited => {
                    // Nobody is waiting behind these lines: have them counted.
                    feed.drain().await?;
                    continue;
                }
                Step::Read => continue,
                Step::End => Finished::End,
                Step::Stopped => Finished::Stopped,
            };
            feed.drain().await?;
            return Ok(finished);
        }
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
        if !self.collector.has_room(head.len(), &self.subject) {
            self.flush();
        }
        let head = &head[..head.len().min(self.collector.record_bytes_max())];
        let line = Line { time, subject: &self.subject, head, size };
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
        let source = source(input.into());
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
    async fn an_open_pipe_stops_when_asked_and_what_came_is_durable() {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let (input, output) = io::pipe().unwrap();
        let mut output = output;
        output.write_all(b"one\ntw").unwrap();
        let source = source(input.into());
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
