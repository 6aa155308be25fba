//! The socket sources of the real binary: frames and datagrams, and what is there after a kill.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use super::support::agent::{Agent, Home, files_below};
use super::support::certificates::{Authority, Pair};
use super::support::{LONG, free_port, seed, wait_for};

/// A source of these keys, to files.
pub(crate) fn config(source: &str, more: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        stop_grace = "5s"
        [sources.in]
        {source}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        format = "json"
        path = "{{epoch}}-{{batch}}.ndjson"
        batch = {{ linger = "50ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        {more}
        "#
    )
}

pub(crate) fn tcp(port: u16, keys: &str) -> String {
    config(&format!("type = \"tcp\"\nlisten = \"127.0.0.1:{port}\"\n{keys}"), "")
}

/// A connection, as soon as the source listens.
pub(crate) fn connect(port: u16) -> TcpStream {
    let stream = wait_for("the source", LONG, || TcpStream::connect(("127.0.0.1", port)).ok());
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// One of the source's numbers, once the agent answers.
pub(crate) fn number(home: &Home, key: &str) -> u64 {
    let status = home.status();
    status.and_then(|status| status["sources"][0][key].as_u64()).unwrap_or_default()
}

pub(crate) fn wait_for_records(home: &Home, records: u64) {
    wait_for("the records", LONG, || (number(home, "records") >= records).then_some(()));
}

/// Waits until the lane has nothing open, and stops the agent.
pub(crate) fn settle(home: &Home, mut agent: Agent) {
    wait_for("everything to be delivered", LONG, || {
        let status = home.status()?;
        let lane = &status["lanes"][0];
        (lane["queued"] == 0 && lane["accepted"] == status["sources"][0]["head"]).then_some(())
    });
    assert!(agent.stop().success());
}

/// Payload and headers of what was delivered, in order.
pub(crate) fn delivered(home: &Home) -> Vec<(Vec<u8>, serde_json::Value)> {
    let mut records = Vec::new();
    for name in files_below(&home.path("out")) {
        let content = std::fs::read_to_string(home.path("out").join(name)).unwrap();
        for line in content.lines() {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            let id = record["id"].as_str().unwrap();
            let seq: u64 = id.rsplit('/').next().unwrap().parse().unwrap();
            records.push((seq, record));
        }
    }
    records.sort_by_key(|(seq, _)| *seq);
    records.into_iter().map(|(_, record)| (payload(&record), record["headers"].clone())).collect()
}

fn payload(record: &serde_json::Value) -> Vec<u8> {
    use base64::Engine as _;

    match (&record["payload"], &record["payload_base64"]) {
        (serde_json::Value::String(text), _) => text.as_bytes().to_vec(),
        (_, serde_json::Value::String(text)) => {
            base64::engine::general_purpose::STANDARD.decode(text).unwrap()
        }
        (value, _) => value.to_string().into_bytes(),
    }
}

pub(crate) fn texts(home: &Home) -> Vec<String> {
    delivered(home).into_iter().map(|(payload, _)| String::from_utf8(payload).unwrap()).collect()
}

/// Clock ticks of processor time that the process has used.
fn processor_ticks(agent: &Agent) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", agent.pid())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Everything that a decoder has been seen to stumble over, one connection each.
#[test]
fn d_20_broken_framing_ends_its_connection_with_one_line_and_nobody_elses() {
    let port = free_port();
    let home = Home::new(&tcp(port, "framing = \"octet_counted\""));
    let agent = home.start(&["run"]);
    let broken: [(&[u8], u64); 6] = [
        (b"1 <23>4\n1 <23>4\n", 3),
        (b"99999999999999999999 <13>1 - -", 0),
        (b"-5 <13>1 - -", 0),
        (b"019 <13>1 - -", 0),
        (b"19<13>1 - - - - - - A", 0),
        (b"22 <13>1 - - - - - - A\nBC<13>1 a line\n", 25),
    ];
    for (bytes, _) in broken {
        let mut stream = connect(port);
        stream.write_all(bytes).unwrap();
        let mut rest = Vec::new();
        // It is closed, with or without a reset.
        drop(stream.read_to_end(&mut rest));
    }
    let log = home.log();
    let warnings: Vec<_> =
        log.lines().filter(|line| line.contains("no octet count at byte")).collect();
    assert_eq!(warnings.len(), broken.len(), "{log}");
    for (line, (_, at)) in warnings.iter().zip(broken) {
        assert!(line.contains(&format!("no octet count at byte {at}")), "{line}");
    }
    let before = processor_ticks(&agent);
    std::thread::sleep(Duration::from_secs(1));
    let used = processor_ticks(&agent) - before;
    eprintln!("{used} ticks in the second after it");
    assert!(used < 50, "{used} ticks");

    // Two frames with a pause at each point where they can be cut.
    let two = b"19 <13>1 - - - - - - A19 <13>1 - - - - - - B";
    std::thread::scope(|scope| {
        for at in 1..two.len() {
            scope.spawn(move || {
                let (first, second) = two.split_at(at);
                let mut stream = connect(port);
                stream.write_all(first).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                stream.write_all(second).unwrap();
            });
        }
    });
    wait_for_records(&home, 2 + 2 * 43);
    settle(&home, agent);
    let found = texts(&home);
    let times = |text: &str| found.iter().filter(|found| *found == text).count();
    let whole = ["<13>1 - - - - - - A", "<13>1 - - - - - - B", "<13>1 - - - - - - A\nBC", "<"];
    assert_eq!(whole.map(times), [43, 43, 1, 1]);
}

/// A line of 50 MB between two short ones: it is counted, they arrive, and memory stays.
#[test]
fn d_21_a_line_without_end_costs_no_memory_and_its_neighbours_arrive() {
    let port = free_port();
    let keys = "record_bytes_max = \"64KiB\"\non_oversize = \"truncate\"";
    let home = Home::new(&tcp(port, keys));
    let agent = home.start(&["run"]);
    let mut stream = connect(port);
    stream.write_all(b"0123456789\n").unwrap();
    wait_for_records(&home, 1);
    let before = agent.memory("VmHWM");
    let block = vec![b'x'; 1 << 20];
    for _ in 0..50 {
        stream.write_all(&block).unwrap();
    }
    stream.write_all(b"\n9876543210\n").unwrap();
    wait_for_records(&home, 3);
    let grown = agent.memory("VmHWM").saturating_sub(before);
    eprintln!("a line of 50 MiB: {grown} bytes more");
    assert!(grown < 4 << 20, "{grown} bytes more");
    stream.write_all(b"still the same connection\n").unwrap();
    wait_for_records(&home, 4);
    assert_eq!(number(&home, "oversize"), 1);
    settle(&home, agent);
    let found = delivered(&home);
    let sizes: Vec<_> = found.iter().map(|(payload, _)| payload.len()).collect();
    assert_eq!(sizes, [10, 65_536, 10, 25]);
    assert!(found[1].1.to_string().contains("52428800"), "{}", found[1].1);
}

#[test]
fn d_21_datagrams_of_every_size_arrive_whole() {
    const SIZES: [usize; 5] = [1, 2048, 2049, 8193, 65_507];
    let port = free_port();
    let home = Home::new(&config(&format!("type = \"udp\"\nlisten = \"127.0.0.1:{port}\""), ""));
    let agent = home.start(&["run"]);
    wait_for("the source", LONG, || home.log().contains("Source listens").then_some(()));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for size in SIZES {
        let content = vec![b'a' + u8::try_from(size % 26).unwrap(); size];
        socket.send_to(&content, ("127.0.0.1", port)).unwrap();
    }
    wait_for_records(&home, SIZES.len() as u64);
    settle(&home, agent);
    let found = delivered(&home);
    assert_eq!(found.len(), SIZES.len());
    for ((payload, headers), size) in found.iter().zip(SIZES) {
        assert!(*payload == vec![b'a' + u8::try_from(size % 26).unwrap(); size], "{size}");
        assert!(headers.to_string().contains("127.0.0.1"), "{headers}");
    }
}

/// What a sender to a source with TLS is: whose server it trusts, and what it shows.
fn client(servers: &Authority, shown: Option<&Pair>) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(servers.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shown {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![pair.certificate_der()], key).unwrap()
        }
    })
}

#[test]
fn tls_takes_what_a_known_certificate_sends_and_nothing_else() {
    let (servers, clients, strangers) = (Authority::new(), Authority::new(), Authority::new());
    let port = free_port();
    let keys = "tls = { certificate = \"{dir}/server.pem\", key = \"{dir}/server.key\", ca = \"{dir}/clients.pem\" }";
    let home = Home::new(&tcp(port, keys));
    let pair = servers.pair();
    std::fs::write(home.path("server.pem"), &pair.certificate).unwrap();
    std::fs::write(home.path("server.key"), &pair.key).unwrap();
    std::fs::write(home.path("clients.pem"), &clients.pem).unwrap();
    let agent = home.start(&["run"]);
    let send = |shown: Option<&Pair>, line: &[u8]| {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(client(&servers, shown), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, connect(port));
        // Who is refused may hear so at any of these steps.
        drop(stream.write_all(line));
        drop(stream.flush());
        stream.conn.send_close_notify();
        drop(stream.flush());
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).is_ok()
    };
    assert!(!send(None, b"nobody\n"));
    assert!(!send(Some(&strangers.pair()), b"stranger\n"));
    send(Some(&clients.pair()), b"known\n");
    // In the open nothing is taken, either.
    connect(port).write_all(b"open\n").unwrap();
    wait_for_records(&home, 1);
    settle(&home, agent);
    assert_eq!(texts(&home), ["known"]);
}

/// A journal without room: the sender has to wait, and everything arrives once, in order, when there is room.
#[test]
fn a_full_journal_pushes_back_and_goes_on() {
    const LINES: usize = 120;
    let port = free_port();
    let text = tcp(port, "").replace(
        "format = \"json\"",
        "format = \"json\"\nroot_must_exist = true\nretry = { backoff_max = \"500ms\" }",
    );
    let home = Home::new(&format!("{text}\n[journal]\nmax_bytes = \"4MiB\"\n"));
    let agent = home.start(&["run"]);
    let mut random = fastrand::Rng::with_seed(seed());
    let lines: Vec<String> = (0..LINES)
        .map(|number| {
            let rest = std::iter::repeat_with(|| random.alphanumeric()).take(100_000);
            format!("{number} {}\n", rest.collect::<String>())
        })
        .collect();
    let mut stream = connect(port);
    socket2::SockRef::from(&stream).set_send_buffer_size(64 * 1024).unwrap();
    let sent = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in &lines {
                stream.write_all(line.as_bytes()).unwrap();
                sent.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        });
        wait_for("a full journal", LONG, || {
            let log = home.log();
            log.to_lowercase().contains("full").then_some(())
        });
        // The sender stands still now, long before its end.
        let mut last = (sent.load(std::sync::atomic::Ordering::SeqCst), Instant::now());
        wait_for("the sender to stand still", LONG, || {
            let now = sent.load(std::sync::atomic::Ordering::SeqCst);
            if now != last.0 {
                last = (now, Instant::now());
            }
            (last.1.elapsed() > Duration::from_millis(500)).then_some(())
        });
        eprintln!("{} of {LINES} lines were sent when it stood still", last.0);
        assert!(last.0 < LINES);
        std::fs::create_dir(home.path("out")).unwrap();
    });
    wait_for_records(&home, LINES as u64);
    settle(&home, agent);
    let found = texts(&home);
    assert_eq!(found.len(), LINES);
    assert!(found.iter().zip(&lines).all(|(found, line)| *found == line.trim_end()));
}

/// SIGKILL under load: what is missing is the end of what was sent, and no more of it than the source may hold.
#[test]
fn a_kill_loses_no_more_than_the_stated_bound_and_keeps_the_order() {
    const SEND_BYTES: usize = 128 * 1024;
    // What the module says: the kernel, the connection, the run; and what the sender's kernel had not sent.
    const BOUND: usize = 512 * 1024 + (16 + 64) * 1024 + 640 * 1024 + 4 * 1024 * 1024 + SEND_BYTES;
    let mut random = fastrand::Rng::with_seed(seed());
    let port = free_port();
    let home = Home::new(&tcp(port, ""));
    let mut worst = 0;
    for round in 0..3 {
        let mut agent = home.start(&["run"]);
        let stream = connect(port);
        socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BYTES / 2).unwrap();
        let sender = std::thread::spawn(move || {
            let mut stream = stream;
            let mut sent = 0_usize;
            // Until the other end is no more.
            while stream.write_all(format!("{round} {sent:0>100}\n").as_bytes()).is_ok() {
                sent += 1;
            }
            sent
        });
        let before = number(&home, "records");
        wait_for("records", LONG, || (number(&home, "records") > before + 1000).then_some(()));
        std::thread::sleep(Duration::from_millis(random.u64(0..200)));
        agent.kill();
        let sent = sender.join().unwrap();
        let agent = home.start(&["run"]);
        connect(port);
        settle(&home, agent);
        let found = texts(&home);
        let found: Vec<_> =
            found.iter().filter(|line| line.starts_with(&format!("{round} "))).collect();
        for (index, line) in found.iter().enumerate() {
            assert_eq!(**line, format!("{round} {index:0>100}"), "order");
        }
        let missing = (sent - found.len()) * 103;
        worst = worst.max(missing);
        assert!(missing <= BOUND, "{missing} bytes of {sent} lines are missing");
    }
    eprintln!("3 kills: at most {worst} bytes were lost, the bound is {BOUND}");
}

/// Of two senders one is listed: the other one is counted, and one line says so.
#[test]
fn peers_that_are_not_listed_are_ignored_and_counted() {
    let port = free_port();
    let keys = format!(
        "type = \"udp\"\nlisten = \"0.0.0.0:{port}\"\npeers = [\"127.0.0.2\", \"10.0.0.0/8\"]"
    );
    let home = Home::new(&config(&keys, ""));
    let agent = home.start(&["run"]);
    wait_for("the source", LONG, || home.log().contains("Source listens").then_some(()));
    for (from, content) in [("127.0.0.1", "no"), ("127.0.0.3", "no"), ("127.0.0.2", "yes")] {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        socket.send_to(content.as_bytes(), ("127.0.0.1", port)).unwrap();
    }
    wait_for_records(&home, 1);
    assert_eq!(number(&home, "turned_away"), 2);
    settle(&home, agent);
    assert_eq!(texts(&home), ["yes"]);
    assert_eq!(home.log().matches("Client is turned away").count(), 1);
}

/// Messages over UDP and TCP, of both standards and of none, counted and in lines on one connection.
#[test]
fn d_20_syslog_of_either_framing_keeps_its_message_and_says_what_its_head_says() {
    let port = free_port();
    let listen = |protocol: &str| {
        format!("type = \"syslog\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:{port}\"")
    };
    let messages = [
        ("<165>1 2003-08-24T05:14:15.000003-07:00 h app 8710 ID - one", "notice"),
        ("<34>Oct 11 22:14:15 mymachine su: two", "crit"),
        ("three", "unparsed"),
    ];
    let home = Home::new(&config(&listen("tcp"), ""));
    let agent = home.start(&["run"]);
    let mut stream = connect(port);
    for (index, (message, _)) in messages.iter().enumerate() {
        let frame = match index {
            1 => format!("{} {message}", message.len()),
            _ => format!("{message}\n"),
        };
        stream.write_all(frame.as_bytes()).unwrap();
    }
    // The report's bytes, on a connection of their own.
    let mut broken = connect(port);
    broken.write_all(b"1 <23>4\n1 <23>4\n").unwrap();
    drop(broken.read_to_end(&mut Vec::new()));
    wait_for_records(&home, 4);
    home.configure(&config(&listen("udp"), ""));
    wait_for("the other protocol", LONG, || {
        (home.log().matches("Source listens").count() == 2).then_some(())
    });
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (message, _) in messages {
        socket.send_to(format!("{message}\n").as_bytes(), ("127.0.0.1", port)).unwrap();
    }
    wait_for("the records", LONG, || (home.status()?["sources"][0]["head"] == 7).then_some(()));
    settle(&home, agent);
    let found = delivered(&home);
    assert_eq!(found.len(), 7);
    for (message, word) in messages {
        let of = |(payload, _): &&(Vec<u8>, serde_json::Value)| payload == message.as_bytes();
        let found: Vec<_> = found.iter().filter(of).collect();
        assert_eq!(found.len(), 2, "{message}");
        assert!(found.iter().all(|(_, headers)| headers.to_string().contains(word)), "{found:?}");
    }
}
