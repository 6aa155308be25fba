//! The sink that prints records to standard output, for pipes and for trying things out.
//!
//! "Delivered" means written and flushed: standard output has no identity to recognise a repeat by, so an attempt that failed
//! in the middle prints its records again.
//!
//! When its reader is gone (`waystation run --once | head`), nobody will read more, and that is no failure: the lane ends
//! quietly, what is not delivered stays queued in the journal, and an agent that has no other lane ends, with 0.
//!
//! | what happens | class |
//! |---|---|
//! | the reader of the pipe is gone | unreachable, for good |
//! | any other I/O error | unreachable |
//! | the batch cannot be read from the journal | retryable |
//! | a payload with a newline under `format = "lines"` | rejected |

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::config::{LineFormat, StdoutSinkConfig};
use super::format::LineEncoder;
use super::{Class, Delivered, Sink, SinkBuilder, SinkError};
use crate::limits::FILE_WRITE_BYTES;
use crate::record::batch::{BatchFacts, SealedBatch};

type Output = Arc<Mutex<dyn Write + Send>>;

/// What is fixed for a batch when it is sealed. Stored: fields may be added, none may change.
#[derive(Debug, Serialize, Deserialize)]
struct Fixed {
    format: String,
}

pub(super) struct StdoutSinkBuilder {
    format: LineFormat,
    output: Output,
}

impl std::fmt::Debug for StdoutSinkBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StdoutSinkBuilder").field("format", &self.format).finish_non_exhaustive()
    }
}

impl StdoutSinkBuilder {
    pub(super) fn new(config: StdoutSinkConfig) -> Self {
        Self::to(config.format, Arc::new(Mutex::new(io::stdout())))
    }

    fn to(format: LineFormat, output: Output) -> Self {
        Self { format, output }
    }
}

impl SinkBuilder for StdoutSinkBuilder {
    fn kind(&self) -> &'static str {
        "stdout"
    }

    fn fix(&self, _facts: &BatchFacts) -> Result<Arc<str>, SinkError> {
        let fixed = Fixed { format: self.format.as_str().to_owned() };
        Ok(serde_json::to_string(&fixed).expect("a string is always JSON").into())
    }

    fn takes(&self, fixed: &str) -> bool {
        serde_json::from_str(fixed)
            .is_ok_and(|fixed: Fixed| LineFormat::from_word(&fixed.format).is_some())
    }

    fn build(&self) -> Box<dyn Sink> {
        Box::new(StdoutSink { output: Arc::clone(&self.output) })
    }
}

struct StdoutSink {
    output: Output,
}

#[async_trait]
impl Sink for StdoutSink {
    async fn deliver(
        &mut self,
        batch: &SealedBatch,
        _attempt: u32,
    ) -> Result<Delivered, SinkError> {
        let (output, batch) = (Arc::clone(&self.output), batch.clone());
        tokio::task::spawn_blocking(move || print(&output, &batch)).await.unwrap_or_else(|error| {
            Err(SinkError::new(Class::Retryable, "the printing thread died").caused_by(error))
        })
    }

    async fn probe(&mut self) -> Result<(), SinkError> {
        let output = Arc::clone(&self.output);
        let flushed = tokio::task::spawn_blocking(move || {
            output.lock().unwrap_or_else(PoisonError::into_inner).flush()
        });
        match flushed.await {
            Ok(result) => result.map_err(unwritable),
            Err(error) => {
                Err(SinkError::new(Class::Retryable, "the printing thread died").caused_by(error))
            }
        }
    }
}

fn unwritable(error: io::Error) -> SinkError {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return SinkError::new(Class::Unreachable, "nobody reads standard output any more")
            .for_good();
    }
    SinkError::new(Class::Unreachable, "cannot write to standard output").caused_by(error)
}

/// Holds the output for the whole batch, so that lines of two lanes do not mix.
fn print(output: &Output, batch: &SealedBatch) -> Result<Delivered, SinkError> {
    let facts = &batch.facts;
    let unreadable = |error| {
        SinkError::new(Class::Retryable, format!("cannot read batch {}", facts.identity()))
            .caused_by(error)
    };
    let fixed: Option<Fixed> = serde_json::from_str(&batch.fixed).ok();
    let format = fixed.and_then(|fixed| LineFormat::from_word(&fixed.format)).ok_or_else(|| {
        SinkError::new(Class::Rejected, "what was fixed for standard output is unusable")
    })?;
    let mut encoder = LineEncoder::new(format, &facts.place.lane);
    let mut buffer = Vec::with_capacity(2 * FILE_WRITE_BYTES);
    let mut delivered = Delivered::default();
    let mut reader = batch.content.open();
    let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(block) = reader.next_block().map_err(unreadable)? {
        for record in block.records() {
            let record = record.map_err(|error| unreadable(error.into()))?;
            encoder.encode(&record, &mut buffer)?;
            delivered.records += 1;
            if buffer.len() >= FILE_WRITE_BYTES {
                output.write_all(&buffer).map_err(unwritable)?;
                delivered.bytes += buffer.len() as u64;
                buffer.clear();
            }
        }
    }
    output.write_all(&buffer).and_then(|()| output.flush()).map_err(unwritable)?;
    delivered.bytes += buffer.len() as u64;
    Ok(delivered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::tests::{batch, facts};

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[tokio::test]
    async fn lines_are_printed_and_flushed() {
        let output = Arc::new(Mutex::new(Vec::new()));
        let builder = StdoutSinkBuilder::to(LineFormat::Lines, output.clone());
        let batch = batch(&builder, facts(1, 2), &[b"one", b"two"]);
        let mut sink = builder.build();
        let delivered = sink.deliver(&batch, 1).await.unwrap();
        assert_eq!((delivered.records, delivered.bytes), (2, 8));
        assert_eq!(&*output.lock().unwrap(), b"one\ntwo\n");
    }

    #[tokio::test]
    async fn a_broken_pipe_is_unreachable_for_good() {
        let builder = StdoutSinkBuilder::to(LineFormat::Lines, Arc::new(Mutex::new(Broken)));
        let batch = batch(&builder, facts(1, 1), &[b"one"]);
        let mut sink = builder.build();
        let error = sink.deliver(&batch, 1).await.unwrap_err();
        assert_eq!((error.class, error.is_final), (Class::Unreachable, true));
        assert_eq!(sink.probe().await.unwrap_err().class, Class::Unreachable);
    }
}
