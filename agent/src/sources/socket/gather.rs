//! Makes records of frames and hands them to the source's run, a bounded number of bytes at a time.
//!
//! Each connection has one of these, and so has the receiver of datagrams. Waits while the run does, which is how a full
//! journal reaches a sender.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::peer::Peer;
use super::{Shared, syslog};
use crate::journal::Append;
use crate::limits::SOCKET_APPEND_BYTES;
use crate::record::HeadersBuffer;
use crate::sources::collect::{Collector, Line};

/// One frame or datagram, on its way to be a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    /// The whole of it, or its first `record_bytes_max` bytes.
    pub(super) head: &'a [u8],
    pub(super) size: u64,
    /// Who sent it.
    pub(super) peer: &'a Peer,
    /// Where its content begins in the stream of its connection; `None` for a datagram.
    pub(super) at: Option<u64>,
    /// The connection has ended in the middle of it.
    pub(super) is_unterminated: bool,
    /// The kernel may have more of it, which is gone.
    pub(super) is_cut: bool,
}

/// The source is no more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

pub(super) struct Gather {
    shared: Arc<Shared>,
    collector: Collector,
    headers: HeadersBuffer,
}

impl Gather {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            collector: collector(shared),
            headers: HeadersBuffer::default(),
        }
    }

    /// Takes a piece; waits for the run when enough is gathered.
    pub(super) async fn take(&mut self, piece: Piece<'_>) -> Result<(), Gone> {
        let Piece { head, size, peer, at, is_unterminated, is_cut } = piece;
        let shared = Arc::clone(&self.shared);
        let mut time = shared.clock.now();
        self.headers.clear();
        peer.write(&mut self.headers);
        if is_unterminated {
            self.headers.push("waystation-unterminated", "true");
        }
        // What is over the limit besides is marked by whoever cuts it there.
        if is_cut && size <= shared.limits.record_bytes_max.0 {
            self.headers.push("waystation-truncated", "true");
            if size > head.len() as u64 {
                self.headers.push("waystation-size", &size.to_string());
            }
        }
        if let Some(own) =
            shared.is_syslog.then(|| syslog::write(head, &mut self.headers)).flatten()
        {
            time = own;
        }
        let beside = shared.subject.len() + self.headers.as_headers().as_bytes().len();
        if !self.collector.has_room(head.len(), beside) {
            self.flush().await?;
        }
        let headers = self.headers.as_headers();
        let line = Line { time, subject: &shared.subject, headers, head, size };
        self.collector.line(line, || match at {
            Some(at) => format!("connection of {peer}, byte {at}"),
            None => format!("datagram of {peer}"),
        });
        if self.collector.gathered_bytes() >= SOCKET_APPEND_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Hands everything over that was taken.
    ///
    /// # Cancel safety
    /// What was being handed over is gone when this is dropped.
    pub(super) async fn flush(&mut self) -> Result<(), Gone> {
        let Some(append) = self.collector.take() else { return Ok(()) };
        self.shared.waiting.fetch_add(count(&append), Ordering::Relaxed);
        self.shared.appends.send(append).await.map_err(|_| Gone)
    }

    /// Gives memory back before a long wait.
    pub(super) fn rest(&mut self) {
        self.collector = collector(&self.shared);
    }
}

fn collector(shared: &Shared) -> Collector {
    let collector = Collector::new(shared.limits, Arc::clone(&shared.counters));
    collector.timed(shared.times.as_ref())
}

/// Records and dead letters of an append.
pub(super) fn count(append: &Append) -> u64 {
    u64::from(append.frames.count()) + append.letters.len() as u64
}
