//! The sources that take frames of connections and datagrams, over TCP and UDP or a socket in the file system, and syslog messages
//! in any of them.
//!
//! Nobody is answered in these protocols: a sender does not learn what is durable. What is not yet durable is lost when the
//! machine loses power or the process is killed. That is, in this order on the way of a byte, at most
//!
//! 1. in the kernel: 512 KiB for each TCP connection (twice `SOCKET_KERNEL_BYTES`, as the kernel counts its own needs), and for
//!    a UDP source twice `DATAGRAMS_KERNEL_BYTES` (8 MiB; less where `net.core.rmem_max` is less); for a socket in the file system
//!    what its sender may have underway: for each connection `net.core.wmem_default` (208 KiB, as the kernel counts) unless it
//!    has asked for more, and of datagrams one more than `net.unix.max_dgram_qlen`;
//! 2. in the agent for each connection: 16 KiB that were read (`SOCKET_READ_BYTES`), 64 KiB of records that are gathered
//!    (`SOCKET_APPEND_BYTES`), and a frame that has not ended;
//! 3. in the agent for the whole source: eight appends on their way to the run (`SOCKET_APPENDS_WAITING_MAX`, 640 KiB), and
//!    4 MiB that the journal has been given and has not synced (`APPENDS_KEPT_BYTES_MAX`).
//!
//! A record that is larger than its bound stands for it. Below 1 the sender has bytes of its own in flight.
//!
//! While the process lives nothing of this is lost: what the journal fails on is kept and handed in again by the next run, and
//! the listener outlives a run. A journal that is full pushes back: connections are not read, so that their senders wait;
//! datagrams of UDP have no sender who would wait, and are dropped by the kernel, which is counted; those to a socket in the file
//! system have one. Asked to stop, the source takes
//! what it has read and closes; what the kernel still holds of a connection is not read, and its sender sees a reset.

pub mod config;
mod datagram;
mod frame;
mod gather;
mod peer;
mod stream;
mod syslog;
#[cfg(test)]
mod tests;
mod unix;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ipnet::IpNet;
use tokio::sync::{Semaphore, mpsc};

use self::config::{Endpoint, Framing, SocketSourceConfig};
use self::peer::Sender;
use super::config::LineLimits;
use super::feed::Feed;
use super::{Finished, Source, SourceCounters, SourceError, SourceOptions, Times};
use crate::clock::SharedClock;
use crate::journal::{Append, Appender};
use crate::limits::{SOCKET_APPENDS_WAITING_MAX, SOCKET_LARGE_BYTES, SOCKET_STOP_MS_MAX};
use crate::net::tls_server::ServerTls;
use crate::record::id::SourceId;
use crate::record::template::Template;
use crate::tasks::{Shutdown, TaskGroup};

pub(super) struct SocketSource {
    id: SourceId,
    config: SocketSourceConfig,
    shared: Arc<Shared>,
    appends: mpsc::Receiver<Append>,
    listener: Option<Listener>,
    /// Received and not handed over, or handed over in vain.
    unsaved: VecDeque<Append>,
}

/// What takes connections or datagrams. Dropping it ends it.
struct Listener {
    tasks: TaskGroup<()>,
    shutdown: Shutdown,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests ask for a free port"))]
    address: Option<SocketAddr>,
}

/// What all connections share.
struct Shared {
    subject: String,
    limits: LineLimits,
    framing: Framing,
    is_syslog: bool,
    clock: SharedClock,
    counters: Arc<SourceCounters>,
    times: Option<Arc<Times>>,
    /// Who may send; everybody where it is empty.
    peers: Vec<IpNet>,
    tls: Option<ServerTls>,
    /// Records wait here for the run.
    appends: mpsc::Sender<Append>,
    /// How many do.
    waiting: AtomicU64,
    /// Room for frames that are too large for each connection to have one.
    large: Arc<Semaphore>,
    /// Whether somebody was turned away and that was said.
    has_told: AtomicBool,
}

impl Shared {
    /// Whether this one may send. Who may not is counted.
    fn knows(&self, client: IpAddr) -> bool {
        let is_known =
            self.peers.is_empty() || self.peers.iter().any(|network| network.contains(&client));
        if !is_known {
            self.turn_away(Sender::Address(client), "it is not among `peers`");
        }
        is_known
    }

    fn turn_away(&self, client: Sender, why: &'static str) {
        self.counters.turned_away.fetch_add(1, Ordering::Relaxed);
        if self.has_told.swap(true, Ordering::Relaxed) {
            tracing::debug!(%client, why, "Client is turned away");
        } else {
            tracing::warn!(%client, why, "Client is turned away; others are counted without a word");
        }
    }
}

impl SocketSource {
    pub(super) fn new(
        id: SourceId,
        config: &SocketSourceConfig,
        options: &SourceOptions,
    ) -> Result<Self, SourceError> {
        if options.once {
            return Err(SourceError::Endless { source_id: id, hint: "" });
        }
        let subject = Template::parse(&config.subject, &["source"])
            .map_err(|error| SourceError::Subject { source_id: id.clone(), error })?
            .render(&[id.as_str()]);
        let (sender, appends) = mpsc::channel(SOCKET_APPENDS_WAITING_MAX);
        let large_frames = SOCKET_LARGE_BYTES / config.limits.record_bytes_max.as_usize();
        let shared = Shared {
            subject,
            limits: config.limits,
            framing: config.framing,
            is_syslog: config.is_syslog,
            clock: Arc::clone(&options.clock),
            counters: Arc::clone(&options.counters),
            times: options.times.clone(),
            peers: config.peers.clone(),
            tls: config.tls.clone().map(|files| ServerTls::new(files, &[])),
            appends: sender,
            waiting: AtomicU64::new(0),
            large: Arc::new(Semaphore::new(large_frames.max(1))),
            has_told: AtomicBool::new(false),
        };
        let (config, shared, unsaved) = (config.clone(), Arc::new(shared), VecDeque::new());
        Ok(Self { id, config, shared, appends, listener: None, unsaved })
    }

    /// Listens from now on.
    async fn listen(&self) -> Result<Listener, SourceError> {
        if let Some(tls) = &self.shared.tls {
            tls.current()
                .map_err(|error| SourceError::Tls { source_id: self.id.clone(), error })?;
        }
        let failed_at = |address| {
            move |error| SourceError::Listen { source_id: self.id.clone(), address, error }
        };
        let failed = |error| SourceError::SocketFile { source_id: self.id.clone(), error };
        let (mut tasks, shutdown) = (TaskGroup::default(), Shutdown::new());
        let (shared, stop) = (Arc::clone(&self.shared), shutdown.clone());
        let span = tracing::Span::current();
        let address = match &self.config.endpoint {
            Endpoint::Tcp(address) => {
                let listener = stream::bind(*address).map_err(failed_at(*address))?;
                let bound = listener.local_addr().map_err(failed_at(*address))?;
                tasks.spawn("listener", span, stream::serve(listener, shared, stop));
                Some(bound)
            }
            Endpoint::Udp(address) => {
                let socket = datagram::bind(*address).await.map_err(failed_at(*address))?;
                let bound = socket.local_addr().map_err(failed_at(*address))?;
                tasks.spawn("receiver", span, datagram::serve(socket, shared, stop));
                Some(bound)
            }
            Endpoint::Stream(path) => {
                let listener = unix::listen(path).await.map_err(failed)?;
                tasks.spawn("listener", span, stream::serve_local(listener, shared, stop));
                None
            }
            Endpoint::Datagram(path) => {
                let socket = unix::bind(path).await.map_err(failed)?;
                tasks.spawn("receiver", span, datagram::serve_local(socket, shared, stop));
                None
            }
        };
        let place = address.map_or_else(|| self.config.endpoint.to_string(), |at| at.to_string());
        let protocol = self.config.endpoint.protocol().word();
        tracing::info!(address = place, protocol, "Source listens");
        Ok(Listener { tasks, shutdown, address })
    }

    /// Hands everything in that comes, until asked to stop.
    async fn take(&mut self, feed: &mut Feed, shutdown: &Shutdown) -> Result<(), SourceError> {
        while let Some(append) = self.unsaved.pop_front() {
            feed.push(append).await?;
        }
        while !shutdown.is_requested() {
            tokio::select! {
                () = shutdown.requested() => break,
                settled = feed.settled() => settled?,
                Some(append) = self.appends.recv() => self.push(feed, append).await?,
            }
        }
        self.close(feed).await
    }

    /// Ends the listener, takes what it still had, and waits until that is durable.
    async fn close(&mut self, feed: &mut Feed) -> Result<(), SourceError> {
        if let Some(Listener { tasks, shutdown, .. }) = self.listener.take() {
            shutdown.request();
            let ended = tasks.drain(Duration::from_millis(SOCKET_STOP_MS_MAX));
            tokio::pin!(ended);
            loop {
                tokio::select! {
                    _ended = &mut ended => break,
                    Some(append) = self.appends.recv() => self.push(feed, append).await?,
                }
            }
        }
        while let Ok(append) = self.appends.try_recv() {
            self.push(feed, append).await?;
        }
        feed.drain().await
    }

    async fn push(&mut self, feed: &mut Feed, append: Append) -> Result<(), SourceError> {
        self.shared.waiting.fetch_sub(gather::count(&append), Ordering::Relaxed);
        feed.push(append).await
    }
}

#[async_trait]
impl Source for SocketSource {
    fn counters(&self) -> Arc<SourceCounters> {
        Arc::clone(&self.shared.counters)
    }

    fn unsaved(&self) -> u64 {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        self.unsaved.iter().map(gather::count).sum::<u64>() + waiting
    }

    async fn run(
        &mut self,
        appender: Appender,
        shutdown: Shutdown,
    ) -> Result<Finished, SourceError> {
        if self.listener.is_none() && !shutdown.is_requested() {
            self.listener = Some(self.listen().await?);
        }
        let mut feed = Feed::keeping(appender, Arc::clone(&self.shared.counters));
        let given_up = async {
            shutdown.requested().await;
            tokio::time::sleep(Duration::from_millis(2 * SOCKET_STOP_MS_MAX)).await;
        };
        let result = tokio::select! {
            biased;
            taken = self.take(&mut feed, &shutdown) => Some(taken),
            () = given_up => None,
        };
        let mut kept = feed.into_kept();
        kept.append(&mut self.unsaved);
        self.unsaved = kept;
        let Some(taken) = result else {
            let count = self.unsaved();
            tracing::warn!(count, "Records that came in are lost, the journal takes none");
            return Ok(Finished::Stopped);
        };
        taken.map(|()| Finished::Stopped)
    }
}
