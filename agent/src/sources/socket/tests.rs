//! The source in process: real sockets, a real journal.

mod local;

use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};

use tokio::task::yield_now;

use super::config::Protocol;
use super::*;
use crate::journal::Journal;
use crate::sources::config::OnOversize;
use crate::sources::tests::{Record, open, options, records, source_id};
use crate::units::ByteSize;

fn config(protocol: Protocol, framing: Framing) -> SocketSourceConfig {
    let address = "127.0.0.1:0".parse().unwrap();
    let endpoint = match protocol {
        Protocol::Udp => Endpoint::Udp(address),
        _ => Endpoint::Tcp(address),
    };
    SocketSourceConfig {
        endpoint,
        is_syslog: false,
        framing,
        tls: None,
        peers: Vec::new(),
        subject: "in.{source}".to_owned(),
        limits: LineLimits {
            record_bytes_max: ByteSize(64 * 1024),
            on_oversize: OnOversize::DeadLetter,
        },
    }
}

/// A source that listens, with the journal that it feeds.
struct Fixture {
    _folder: tempfile::TempDir,
    journal: Journal,
    source: SocketSource,
}

impl Fixture {
    async fn new(config: &SocketSourceConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        let mut source = SocketSource::new(source_id(), config, &options(false)).unwrap();
        source.listener = Some(source.listen().await.unwrap());
        Self { _folder: folder, journal, source }
    }

    fn address(&self) -> SocketAddr {
        self.source.listener.as_ref().unwrap().address.unwrap()
    }

    /// Runs the source beside a sender on a thread of its own; ends it when `is_done` by its counters.
    async fn run(
        &mut self,
        send: impl FnOnce(SocketAddr) + Send + 'static,
        is_done: impl Fn(&SourceCounters) -> bool,
    ) -> Vec<Record> {
        let address = self.address();
        self.run_beside(move || send(address), is_done).await
    }

    async fn run_beside(
        &mut self,
        send: impl FnOnce() + Send + 'static,
        is_done: impl Fn(&SourceCounters) -> bool,
    ) -> Vec<Record> {
        let sender = std::thread::spawn(send);
        let counters = self.source.counters();
        let appender = self.journal.appender(&source_id()).await.unwrap();
        let shutdown = Shutdown::new();
        let asked = shutdown.clone();
        let ask = async {
            while !is_done(&counters) {
                yield_now().await;
            }
            asked.request();
        };
        let (finished, ()) = tokio::join!(self.source.run(appender, shutdown), ask);
        assert_eq!(finished.unwrap(), Finished::Stopped);
        sender.join().unwrap();
        records(&self.journal).await
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn send(address: SocketAddr, pieces: &[&[u8]]) {
    let mut stream = TcpStream::connect(address).unwrap();
    for piece in pieces {
        stream.write_all(piece).unwrap();
    }
}

fn header<'r>(record: &'r Record, name: &str) -> Option<&'r str> {
    record.1.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

#[test]
fn what_never_ends_is_refused_where_it_is_to_be_read_once() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let config = config(protocol, Framing::Lines);
        let refused = SocketSource::new(source_id(), &config, &options(true)).err().unwrap();
        assert!(matches!(refused, SourceError::Endless { .. }), "{refused}");
    }
}

#[tokio::test]
async fn lines_of_a_connection_are_records_with_their_peer_and_the_last_is_marked() {
    let mut fixture = Fixture::new(&config(Protocol::Tcp, Framing::Lines)).await;
    let send = |address| send(address, &[b"one\r\n\n\xff\0two\nlast"]);
    let found = fixture.run(send, |counters| count(&counters.records) == 3).await;
    let payloads: Vec<_> = found.iter().map(|(_, _, payload)| payload.as_slice()).collect();
    assert_eq!(payloads, [&b"one\r"[..], b"\xff\0two", b"last"]);
    assert!(found.iter().all(|(subject, ..)| subject == "in.src"));
    assert!(found.iter().all(|record| header(record, "waystation-peer") == Some("127.0.0.1")));
    let marked: Vec<_> =
        found.iter().map(|record| header(record, "waystation-unterminated")).collect();
    assert_eq!(marked, [None, None, Some("true")]);
    assert_eq!(count(&fixture.source.counters().empty_lines), 1);
}

/// A stream that is broken off, and connections that are silent, keep nobody else from sending.
#[tokio::test]
async fn d_20_a_broken_connection_is_closed_and_the_next_one_works() {
    let mut fixture = Fixture::new(&config(Protocol::Tcp, Framing::OctetCounted)).await;
    let send = |address| {
        use std::io::Read as _;
        let silent = TcpStream::connect(address).unwrap();
        let mut broken = TcpStream::connect(address).unwrap();
        broken.write_all(b"3 one019 <13>1").unwrap();
        let mut rest = Vec::new();
        // It is closed, with or without a reset.
        drop(broken.read_to_end(&mut rest));
        send(address, &[b"3 t", b"wo", b"5 three\n4 four"]);
        drop(silent);
    };
    let found = fixture.run(send, |counters| count(&counters.records) == 4).await;
    let payloads: Vec<_> = found.iter().map(|(_, _, payload)| payload.as_slice()).collect();
    assert_eq!(payloads, [&b"one"[..], b"two", b"three", b"four"]);
}

#[tokio::test]
async fn d_21_what_is_over_the_limit_goes_its_way_and_its_neighbours_theirs() {
    let long = vec![b'x'; 200_000];
    let lines = [b"0123456789\n", &long[..], b"\n9876543210\n"].concat();
    let counted = [b"10 0123456789200000 ", &long[..], b"10 9876543210"].concat();
    for (framing, bytes) in [(Framing::Lines, lines), (Framing::OctetCounted, counted)] {
        for on_oversize in [OnOversize::DeadLetter, OnOversize::Truncate, OnOversize::Drop] {
            let mut config = config(Protocol::Tcp, framing);
            config.limits.on_oversize = on_oversize;
            let mut fixture = Fixture::new(&config).await;
            let bytes = bytes.clone();
            let wanted = if on_oversize == OnOversize::Truncate { 3 } else { 2 };
            let send = move |address| send(address, &[&bytes]);
            let found = fixture.run(send, |counters| count(&counters.records) == wanted).await;
            let sizes: Vec<_> = found.iter().map(|(_, _, payload)| payload.len()).collect();
            let counters = fixture.source.counters();
            let counted = [
                &counters.oversize_dead_lettered,
                &counters.oversize_truncated,
                &counters.oversize_dropped,
            ]
            .map(count);
            match on_oversize {
                OnOversize::DeadLetter => {
                    assert_eq!((&sizes[..], counted), (&[10, 10][..], [1, 0, 0]));
                }
                OnOversize::Drop => assert_eq!((&sizes[..], counted), (&[10, 10][..], [0, 0, 1])),
                OnOversize::Truncate => {
                    assert_eq!((&sizes[..], counted), (&[10, 64 * 1024, 10][..], [0, 1, 0]));
                    assert_eq!(header(&found[1], "waystation-truncated"), Some("true"));
                    assert_eq!(header(&found[1], "waystation-size"), Some("200000"));
                    assert_eq!(header(&found[1], "waystation-peer"), Some("127.0.0.1"));
                }
            }
        }
    }
}

#[tokio::test]
async fn d_21_datagrams_of_every_size_arrive_whole() {
    const SIZES: [usize; 5] = [1, 2048, 2049, 8193, 65_507];
    let mut fixture = Fixture::new(&config(Protocol::Udp, Framing::Lines)).await;
    let send = |address| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for size in SIZES {
            let content: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
            assert_eq!(socket.send_to(&content, address).unwrap(), size);
        }
        socket.send_to(b"", address).unwrap();
        socket.send_to(b"a\nb\n", address).unwrap();
    };
    let found = fixture.run(send, |counters| count(&counters.records) == 6).await;
    for (record, size) in found.iter().zip(SIZES) {
        let content: Vec<u8> = (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect();
        assert!(record.2 == content, "{size}");
        assert_eq!(record.1, [("waystation-peer".to_owned(), "127.0.0.1".to_owned())]);
    }
    assert_eq!(found[5].2, b"a\nb\n");
    assert_eq!(count(&fixture.source.counters().empty_lines), 1);
}

#[tokio::test]
async fn d_21_a_datagram_over_the_limit_is_flagged() {
    let mut config = config(Protocol::Udp, Framing::Lines);
    config.limits =
        LineLimits { record_bytes_max: ByteSize(2048), on_oversize: OnOversize::Truncate };
    let mut fixture = Fixture::new(&config).await;
    let send = |address| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for size in [2048, 2049] {
            socket.send_to(&vec![b'x'; size], address).unwrap();
        }
    };
    let found = fixture.run(send, |counters| count(&counters.records) == 2).await;
    let told: Vec<_> =
        found.iter().map(|record| (record.2.len(), header(record, "waystation-size"))).collect();
    assert_eq!(told, [(2048, None), (2048, Some("2049"))]);
}

#[tokio::test]
async fn who_is_not_among_the_peers_is_counted_and_not_heard() {
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let mut config = config(protocol, Framing::Lines);
        config.peers = vec!["127.0.0.2/32".parse().unwrap(), "10.0.0.0/8".parse().unwrap()];
        let mut fixture = Fixture::new(&config).await;
        let send = move |address: SocketAddr| match protocol {
            Protocol::Udp => {
                for (from, content) in [("127.0.0.1:0", "no"), ("127.0.0.2:0", "yes")] {
                    let socket = UdpSocket::bind(from).unwrap();
                    socket.send_to(content.as_bytes(), address).unwrap();
                }
            }
            _ => {
                use std::io::Read as _;
                let mut refused = TcpStream::connect(address).unwrap();
                let mut rest = Vec::new();
                drop(refused.read_to_end(&mut rest));
                let from: SocketAddr = "127.0.0.2:0".parse().unwrap();
                let socket =
                    socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
                        .unwrap();
                socket.bind(&from.into()).unwrap();
                socket.connect(&address.into()).unwrap();
                TcpStream::from(socket).write_all(b"yes\n").unwrap();
            }
        };
        let found = fixture.run(send, |counters| count(&counters.records) == 1).await;
        assert_eq!(found[0].2, b"yes");
        assert_eq!(header(&found[0], "waystation-peer"), Some("127.0.0.2"));
        assert_eq!(count(&fixture.source.counters().turned_away), 1);
    }
}

/// The journal fails in the middle of a stream: its sender notices nothing, and nothing is missing or twice.
#[tokio::test]
async fn what_a_run_could_not_save_is_handed_in_first_by_the_next() {
    const LINES: u64 = 100_000;
    let mut fixture = Fixture::new(&config(Protocol::Tcp, Framing::Lines)).await;
    let address = fixture.address();
    let sender = std::thread::spawn(move || {
        let lines: String = (0..LINES).map(|number| format!("line {number}\n")).collect();
        send(address, &[lines.as_bytes()]);
    });
    let appender = fixture.journal.appender(&source_id()).await.unwrap();
    fixture.journal.close().await.unwrap();
    fixture.source.run(appender, Shutdown::new()).await.unwrap_err();
    assert!(fixture.source.unsaved() > 0);
    let Fixture { _folder: folder, journal, source } = fixture;
    drop(journal);
    let journal = open(folder.path());
    let mut fixture = Fixture { _folder: folder, journal, source };
    let found = fixture.run(|_| {}, |counters| count(&counters.records) == LINES).await;
    sender.join().unwrap();
    assert_eq!(fixture.source.unsaved(), 0);
    let expected = (0..LINES).map(|number| format!("line {number}").into_bytes());
    assert!(found.into_iter().map(|(_, _, payload)| payload).eq(expected));
}

/// Connections that stop in the middle of large frames: only so many are kept, and a stop takes what has come.
#[tokio::test]
async fn a_stop_takes_what_was_read_of_an_unfinished_frame() {
    let mut fixture = Fixture::new(&config(Protocol::Tcp, Framing::Lines)).await;
    let (done, wait) = std::sync::mpsc::sync_channel::<()>(0);
    let send = move |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"whole\npart").unwrap();
        // Open until the source has ended.
        wait.recv().unwrap_err();
    };
    let found = {
        let address = fixture.address();
        let sender = std::thread::spawn(move || send(address));
        let found = fixture.run(|_| {}, |counters| count(&counters.records) == 1).await;
        drop(done);
        sender.join().unwrap();
        found
    };
    assert_eq!((&found[0].2[..], &found[1].2[..]), (&b"whole"[..], &b"part"[..]));
    assert_eq!(header(&found[1], "waystation-unterminated"), Some("true"));
}
