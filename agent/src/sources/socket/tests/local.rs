//! Sockets in the file system.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;

use super::super::config::{FileMode, SocketPath};
use super::*;

/// A source at a path in a folder that goes with it.
struct Local {
    folder: tempfile::TempDir,
    fixture: Fixture,
}

impl Local {
    async fn new(
        protocol: Protocol,
        framing: Framing,
        more: impl FnOnce(&mut SocketSourceConfig),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = local(&folder, protocol, framing);
        more(&mut config);
        Self { fixture: Fixture::new(&config).await, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    async fn run(
        &mut self,
        send: impl FnOnce() + Send + 'static,
        is_done: impl Fn(&SourceCounters) -> bool,
    ) -> Vec<Record> {
        self.fixture.run_beside(send, is_done).await
    }
}

fn local(folder: &tempfile::TempDir, protocol: Protocol, framing: Framing) -> SocketSourceConfig {
    let path = SocketPath { path: folder.path().join("s"), mode: FileMode(0o600) };
    let endpoint = match protocol {
        Protocol::Datagram => Endpoint::Datagram(path),
        _ => Endpoint::Stream(path),
    };
    SocketSourceConfig { endpoint, ..config(Protocol::Tcp, framing) }
}

fn who() -> (String, String) {
    (std::process::id().to_string(), rustix::process::geteuid().as_raw().to_string())
}

fn assert_is_of_this_process(record: &Record) {
    let (pid, uid) = who();
    assert_eq!(header(record, "waystation-peer-pid"), Some(pid.as_str()));
    assert_eq!(header(record, "waystation-peer-uid"), Some(uid.as_str()));
    assert_eq!(header(record, "waystation-peer"), None);
}

#[tokio::test]
async fn connections_are_framed_as_over_tcp_and_say_which_process_they_are_of() {
    let cases: [(Framing, &[u8]); 3] = [
        (Framing::Lines, b"one\ntwo\n"),
        (Framing::OctetCounted, b"3 one3 two"),
        (Framing::LengthPrefixed, b"\0\0\0\x03one\0\0\0\x03two"),
    ];
    for (framing, bytes) in cases {
        let mut local = Local::new(Protocol::Stream, framing, |_| {}).await;
        let path = local.path();
        let send = move || UnixStream::connect(&path).unwrap().write_all(bytes).unwrap();
        let found = local.run(send, |counters| count(&counters.records) == 2).await;
        assert_eq!((&found[0].2[..], &found[1].2[..]), (&b"one"[..], &b"two"[..]));
        found.iter().for_each(assert_is_of_this_process);
        assert!(!local.path().exists(), "it goes with the source");
    }
}

/// Up to what a sender may send; over the limit, and over what is kept, its true size is told.
#[tokio::test]
async fn d_21_a_datagram_is_whole_or_says_what_it_was() {
    const SIZES: [usize; 4] = [1, 64 * 1024, 64 * 1024 + 1, 200_000];
    let more = |config: &mut SocketSourceConfig| {
        config.limits.on_oversize = OnOversize::Truncate;
    };
    let mut local = Local::new(Protocol::Datagram, Framing::Lines, more).await;
    let path = local.path();
    let send = move || {
        let socket = UnixDatagram::unbound().unwrap();
        for size in SIZES {
            assert_eq!(socket.send_to(&vec![b'x'; size], &path).unwrap(), size);
        }
        socket.send_to(b"", &path).unwrap();
        socket.send_to(b"a\nb\n", &path).unwrap();
    };
    let found = local.run(send, |counters| count(&counters.records) == 5).await;
    let told: Vec<_> =
        found.iter().map(|record| (record.2.len(), header(record, "waystation-size"))).collect();
    let wanted =
        [(1, None), (65_536, None), (65_536, Some("65537")), (65_536, Some("200000")), (4, None)];
    assert_eq!(told, wanted);
    found.iter().for_each(assert_is_of_this_process);
    assert_eq!(header(&found[3], "waystation-truncated"), Some("true"));
    assert_eq!(count(&local.fixture.source.counters().empty_lines), 1);
}

/// Under the limit of a record, and over what is kept of a datagram.
#[tokio::test]
async fn d_21_a_datagram_that_is_larger_than_what_is_kept_of_one_is_marked() {
    let more = |config: &mut SocketSourceConfig| {
        config.limits.record_bytes_max = ByteSize(8 << 20);
    };
    let mut local = Local::new(Protocol::Datagram, Framing::Lines, more).await;
    let path = local.path();
    let large = crate::limits::SOCKET_FILE_DATAGRAM_BYTES_MAX + 1000;
    let send = move || {
        let socket = UnixDatagram::unbound().unwrap();
        // As root it may have more than the others; where it may not, there is no such datagram.
        let forced = rustix::process::geteuid().is_root();
        set_send_buffer(&socket, 4 << 20, forced);
        let whole = socket.send_to(&vec![b'x'; large], &path);
        eprintln!("a datagram of {large} bytes: {whole:?}");
        if whole.is_err() {
            socket.send_to(b"none", &path).unwrap();
        }
    };
    let found = local.run(send, |counters| count(&counters.records) == 1).await;
    if found[0].2 != b"none" {
        assert_eq!(found[0].2.len(), crate::limits::SOCKET_FILE_DATAGRAM_BYTES_MAX);
        assert_eq!(header(&found[0], "waystation-truncated"), Some("true"));
        assert_eq!(header(&found[0], "waystation-size"), Some(large.to_string().as_str()));
    }
}

#[expect(unsafe_code, reason = "the option that ignores the host's limit is in no library")]
fn set_send_buffer(socket: &UnixDatagram, bytes: libc::c_int, forced: bool) {
    let option = if forced { libc::SO_SNDBUFFORCE } else { libc::SO_SNDBUF };
    // SAFETY: the value is a number of that length.
    let _code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const bytes).cast(),
            size_of::<libc::c_int>().try_into().unwrap(),
        )
    };
}

/// What a sender passes along is not taken: it would be a way to use up this process's handles.
#[tokio::test]
async fn open_files_that_are_passed_along_are_not_taken() {
    const TIMES: u64 = 50;
    let handles = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for protocol in [Protocol::Stream, Protocol::Datagram] {
        let mut local = Local::new(protocol, Framing::Lines, |_| {}).await;
        let path = local.path();
        let before = handles();
        let send = move || {
            let file = std::fs::File::open("/proc/self/status").unwrap();
            for _ in 0..TIMES {
                let kind = match protocol {
                    Protocol::Stream => socket2::Type::STREAM,
                    _ => socket2::Type::DGRAM,
                };
                let socket = socket2::Socket::new(socket2::Domain::UNIX, kind, None).unwrap();
                socket.connect(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
                let handle = file.as_raw_fd().to_ne_bytes();
                let control = control_message(libc::SCM_RIGHTS, &handle);
                let content = [std::io::IoSlice::new(b"line\n")];
                let message = socket2::MsgHdr::new().with_buffers(&content).with_control(&control);
                socket.sendmsg(&message, 0).unwrap();
            }
        };
        let found = local.run(send, |counters| count(&counters.records) == TIMES).await;
        found.iter().for_each(assert_is_of_this_process);
        assert!(handles() <= before + 5, "{before} handles and now {}", handles());
    }
}

/// One control message of a socket, as the kernel lays it out.
fn control_message(kind: libc::c_int, content: &[u8]) -> Vec<u8> {
    let length = size_of::<libc::cmsghdr>() + content.len();
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(content);
    bytes.resize(length.next_multiple_of(size_of::<usize>()), 0);
    bytes
}

/// Everything that was sent before the name went is there: a stop loses no datagram.
#[tokio::test]
async fn a_stop_takes_the_datagrams_that_the_kernel_still_has() {
    let folder = tempfile::tempdir().unwrap();
    let config = local(&folder, Protocol::Datagram, Framing::Lines);
    let socket = unix::bind(match &config.endpoint {
        Endpoint::Datagram(path) => path,
        _ => unreachable!(),
    });
    let socket = socket.await.unwrap();
    let mut fixture = Fixture::new(&super::config(Protocol::Tcp, Framing::Lines)).await;
    let shutdown = Shutdown::new();
    shutdown.request();
    let sender = UnixDatagram::unbound().unwrap();
    for number in 0..5 {
        sender.send_to(format!("{number}").as_bytes(), folder.path().join("s")).unwrap();
    }
    datagram::serve_local(socket, Arc::clone(&fixture.source.shared), shutdown).await;
    assert!(sender.send_to(b"late", folder.path().join("s")).is_err());
    let found = fixture.run_beside(|| {}, |counters| count(&counters.records) == 5).await;
    let payloads: Vec<_> = found.into_iter().map(|(_, _, payload)| payload).collect();
    assert_eq!(payloads, [b"0", b"1", b"2", b"3", b"4"]);
}

/// The file is in use: the run ends with an error that says so, and the next one tries again.
#[tokio::test]
async fn a_path_that_somebody_has_is_told_and_taken_when_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let living = UnixDatagram::bind(&path).unwrap();
    let journal = open(folder.path());
    let config = local(&folder, Protocol::Datagram, Framing::Lines);
    let mut source = SocketSource::new(source_id(), &config, &options(false)).unwrap();
    let appender = journal.appender(&source_id()).await.unwrap();
    let error = source.run(appender, Shutdown::new()).await.unwrap_err();
    let told = crate::error_chain::Chain(&error).to_string();
    assert!(told.contains("another process has the socket") && told.contains("/s"), "{told}");
    assert!(path.exists());
    drop(living);
    source.listener = Some(source.listen().await.unwrap());
    UnixDatagram::unbound().unwrap().send_to(b"x", &path).unwrap();
}
