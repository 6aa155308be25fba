//! The HTTP source of the real binary: what it answers, and what is there afterwards.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use waystation::net::config::{IdentityFiles, NetConfig, TlsConfig};
use waystation::net::tls::ClientTls;

use super::support::agent::{Agent, Home, files_below};
use super::support::certificates::{Authority, replace};
use super::support::{LONG, free_port, plugin, seed, size, wait_for};

/// Posts to a port, `keys` in the source's table, to files.
fn config(port: u16, keys: &str, more: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        stop_grace = "1s"
        [sources.in]
        type = "http"
        listen = "127.0.0.1:{port}"
        {keys}
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ linger = "50ms" }}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        {more}
        "#
    )
}

/// A connection that stays, as long as it can.
struct Client {
    port: u16,
    stream: Option<BufReader<TcpStream>>,
}

/// An answer: its status, its head in lower case, its body.
struct Told(u16, String, Value);

impl Client {
    fn new(port: u16) -> Self {
        Self { port, stream: None }
    }

    fn post(&mut self, headers: &str, body: &[u8]) -> io::Result<Told> {
        let length = format!("Content-Length: {}\r\n", body.len());
        self.send(&[headers, &length].concat(), body)
    }

    /// Sends a request with these headers, each ended, and this body; reads the answer.
    fn send(&mut self, headers: &str, body: &[u8]) -> io::Result<Told> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(("127.0.0.1", self.port))?;
                stream.set_read_timeout(Some(LONG))?;
                stream.set_nodelay(true)?;
                BufReader::new(stream)
            }
        };
        let head = format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        stream.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let told = read_answer(&mut stream)?;
        if !told.1.contains("connection: close") {
            self.stream = Some(stream);
        }
        Ok(told)
    }

    /// Waits until the source answers.
    fn ready(port: u16) -> Self {
        let mut client = Self::new(port);
        wait_for("the source", LONG, || {
            // An empty post is refused, by one who is there.
            client.post("", b"").ok().filter(|told| told.0 == 400)
        });
        client
    }
}

fn read_answer(stream: &mut BufReader<TcpStream>) -> io::Result<Told> {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line == "\r\n" {
            break;
        }
        head.push_str(&line.to_ascii_lowercase());
    }
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body)?;
    Ok(Told(status, head, serde_json::from_slice(&body).unwrap()))
}

const NDJSON: &str = "Content-Type: application/x-ndjson\r\n";

/// How often each line is in the files of the sink.
fn delivered(home: &Home) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for name in files_below(&home.path("out")) {
        // One that is being written is not there yet, one that was may be renamed by now.
        if name.file_name().unwrap().to_str().unwrap().starts_with('.') {
            continue;
        }
        let Ok(content) = std::fs::read(home.path("out").join(name)) else { continue };
        let content = match content.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            true => zstd::decode_all(&content[..]).unwrap(),
            false => content,
        };
        for line in String::from_utf8(content).unwrap().lines() {
            *found.entry(line.to_owned()).or_default() += 1;
        }
    }
    found
}

/// Waits until the lane has nothing open, and stops the agent.
fn settle(home: &Home, mut agent: Agent) {
    wait_for("everything to be delivered", LONG, || {
        let status = home.status()?;
        let lane = &status["lanes"][0];
        (lane["queued"] == 0 && lane["accepted"] == status["sources"][0]["head"]).then_some(())
    });
    assert!(agent.stop().success());
}

/// Ten bombs of either kind at once, in pieces of unknown length, and what else a decoder has to stand.
#[test]
fn d_22_a_compressed_body_is_no_bomb() {
    const BODY_MAX: u64 = 16 << 20;
    let port = free_port();
    let home = Home::new(&config(port, "", ""));
    let agent = home.start(&["run"]);
    let mut client = Client::ready(port);
    let before = agent.memory("VmHWM");

    let zeros = vec![0; 16 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&zeros).unwrap();
    // 1 GiB in 1 MiB, and 512 MiB that ask for the largest window.
    let gzip = gzip.finish().unwrap().repeat(64);
    let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    zstd.window_log(23).unwrap();
    for _ in 0..32 {
        zstd.write_all(&zeros).unwrap();
    }
    let zstd = zstd.finish().unwrap();
    let chunked = |bytes: &[u8]| {
        let pieces = bytes
            .chunks(50_000)
            .map(|piece| [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
        [pieces.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
    };
    let bombs = [("gzip", chunked(&gzip)), ("zstd", chunked(&zstd))];
    let mut slowest = Duration::ZERO;
    for (coding, body) in &bombs {
        let headers = format!("Content-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n");
        std::thread::scope(|scope| {
            let bomb = || {
                let begun = Instant::now();
                let told = Client::new(port).send(&headers, body).unwrap();
                assert_eq!(told.0, 413, "{}", told.2);
                begun.elapsed()
            };
            let bombs: Vec<_> = (0..10).map(|_| scope.spawn(bomb)).collect();
            slowest =
                bombs.into_iter().map(|bomb| bomb.join().unwrap()).max().unwrap().max(slowest);
        });
    }
    let grown = agent.memory("VmHWM") - before;
    eprintln!("20 bombs: the slowest was refused in {slowest:?}, {} MiB more", grown >> 20);
    assert!(grown <= BODY_MAX + (32 << 20), "{} MiB more", grown >> 20);

    let pack = |text: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        gzip.finish().unwrap()
    };
    let coded = format!("{NDJSON}Content-Encoding: gzip\r\n");
    let whole = pack(b"cut-1\ncut-2\n");
    assert_eq!(client.post(&coded, &whole[..whole.len() - 8]).unwrap().0, 400);
    let two = [pack(b"member-1\n"), pack(b"member-2\n")].concat();
    assert_eq!(client.post(&coded, &two).unwrap().2["accepted"], 2);
    for coding in ["gzip, gzip", "br"] {
        let headers = format!("Content-Encoding: {coding}\r\n");
        assert_eq!(client.post(&headers, &pack(&whole)).unwrap().0, 415);
    }
    settle(&home, agent);
    let expected = [("member-1".to_owned(), 1), ("member-2".to_owned(), 1)];
    assert_eq!(delivered(&home), BTreeMap::from(expected));
}

/// 200 connections at a byte in ten seconds, in bodies and in heads: they are cut off, and others are served meanwhile.
#[test]
fn d_22_slow_clients_time_out_and_hold_nobody_up() {
    let port = free_port();
    let home = Home::new(&config(port, "", ""));
    let agent = home.start(&["run"]);
    let mut client = Client::ready(port);
    let slow: Vec<_> = (0..200)
        .map(|index| {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let (head, rest): (&[u8], &[u8]) = match index % 2 {
                0 => (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n", b"x"),
                _ => (b"POST / HTTP/1.1\r\nHost: x\r\nX-Sl", b"o"),
            };
            stream.write_all(head).unwrap();
            stream.write_all(rest).unwrap();
            stream
        })
        .collect();
    let done = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut served = 0_u64;
            while !done.load(Ordering::SeqCst) {
                assert_eq!(client.post(NDJSON, format!("{served}\n").as_bytes()).unwrap().0, 202);
                served += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            served
        });
        let slow: Vec<_> = slow
            .into_iter()
            .enumerate()
            .map(|(index, stream)| {
                scope.spawn(move || match index % 2 {
                    0 => read_answer(&mut BufReader::new(stream)).unwrap().0,
                    _ => {
                        let mut rest = Vec::new();
                        let mut stream = stream;
                        // It is closed, with or without a word.
                        drop(stream.read_to_end(&mut rest));
                        408
                    }
                })
            })
            .collect();
        for slow in slow {
            assert_eq!(slow.join().unwrap(), 408);
        }
        done.store(true, Ordering::SeqCst);
        others.join().unwrap()
    });
    eprintln!("{served} posts of others while 200 clients were slow");
    assert!(served > 100, "{served}");
    settle(&home, agent);
    assert_eq!(delivered(&home).len() as u64, served);
}

/// A record that a plugin traps on was accepted all the same: it is a dead letter, and the others go on.
#[test]
fn d_23_what_a_plugin_rejects_later_is_a_dead_letter_with_its_reason() {
    let port = free_port();
    let more = format!(
        "transforms = [\"guest\"]\n[transforms.guest]\nplugin = \"{}\"\nconfig = {{ trap_on = \"bad\" }}\n",
        plugin("test-guests").display()
    );
    let home = Home::new(&config(port, "", &more));
    let agent = home.start(&["run"]);
    let mut client = Client::ready(port);
    for number in 0..100 {
        // No more than a batch may have: how many are in one depends on how long the plugin takes to be compiled.
        let word = if number % 20 == 3 { "bad" } else { "good" };
        let body = format!("{{\"{word}\":{number}}}");
        let told = client.post("Content-Type: application/json\r\n", body.as_bytes()).unwrap();
        assert_eq!((told.0, &told.2["accepted"]), (202, &1.into()));
    }
    let lines: String = (100..110)
        .map(|number| format!("{{\"{}\":{number}}}\n", if number == 105 { "bad" } else { "good" }))
        .collect();
    let told = client.post(NDJSON, lines.as_bytes()).unwrap();
    assert_eq!((told.0, &told.2["accepted"], &told.2["rejected"]), (202, &10.into(), &0.into()));
    settle(&home, agent);
    assert_eq!(delivered(&home).len(), 104);
    let letters = home.output(&["dlq", "list", "--json"]);
    let letters = String::from_utf8(letters.stdout).unwrap();
    assert_eq!(letters.lines().count(), 6, "{letters}");
    assert!(letters.lines().all(|letter| letter.contains("trap")), "{letters}");
}

/// SIGKILL right behind each answer: what was answered with 202 is there.
#[test]
fn d_23_an_answer_of_202_survives_a_kill_right_behind_it() {
    let kills = size("WAYSTATION_TEST_INGEST_KILLS", 20);
    let port = free_port();
    let home = Home::new(&config(port, "", ""));
    for number in 0..kills {
        let mut agent = home.start(&["run"]);
        let mut client = Client::ready(port);
        assert_eq!(client.post(NDJSON, format!("n{number}\n").as_bytes()).unwrap().0, 202);
        agent.kill();
    }
    let agent = home.start(&["run"]);
    Client::ready(port);
    settle(&home, agent);
    let expected: BTreeMap<_, _> = (0..kills).map(|number| (format!("n{number}"), 1)).collect();
    assert_eq!(delivered(&home), expected);
    eprintln!("{kills} kills, nothing lost");
}

/// While the journal's disk fails, posts are refused with 503; no such post is half there later, and all others are there.
#[test]
fn d_23_a_failing_disk_is_answered_with_503_and_leaves_nothing_half_done() {
    let port = free_port();
    let home = Home::new(&config(port, "", ""));
    let run = home.command(&["run"]);
    let mut command = std::process::Command::new("strace");
    command.args(["-f", "-qq", "-e", "trace=fdatasync", "-e"]);
    command.arg("inject=fdatasync:error=EIO:when=15..34");
    command.arg("-P").arg(home.path("data/journal.db-wal")).arg("-o").arg(home.path("trace"));
    command.arg(run.get_program()).args(run.get_args()).env_clear().current_dir("/");
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    command.stderr(std::fs::File::create(home.path("agent.log")).unwrap());
    let mut agent = command.spawn().expect("strace is installed");
    let mut client = Client::ready(port);
    let mut told: Vec<(String, u16)> = Vec::new();
    let mut healed = 0;
    for number in 0..10_000 {
        let line = format!("n{number}");
        let status = client.post(NDJSON, line.as_bytes()).unwrap().0;
        assert!(matches!(status, 202 | 503), "{status}");
        let is_refused = status == 503;
        healed = if is_refused || told.iter().all(|(_, status)| *status == 202) {
            0
        } else {
            healed + 1
        };
        told.push((line, status));
        if healed == 20 {
            break;
        }
        if is_refused {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(healed, 20, "it never came back:\n{}", home.log());
    // SIGTERM to strace is none to the agent.
    let children = format!("/proc/{0}/task/{0}/children", agent.id());
    let children = std::fs::read_to_string(children).unwrap();
    let pid: i64 = children.trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("the agent's end", LONG, || agent.try_wait().unwrap());
    let agent = home.start(&["run"]);
    Client::ready(port);
    settle(&home, agent);
    let accepted = told.iter().filter(|(_, status)| *status == 202);
    let expected: BTreeMap<_, _> = accepted.map(|(line, _)| (line.clone(), 1)).collect();
    assert_eq!(delivered(&home), expected);
    let refused = told.iter().filter(|(_, status)| *status == 503).count();
    eprintln!("{} posts taken, {refused} refused while the disk failed", expected.len());
    assert!(refused > 0, "the fault was not felt");
}

/// 20 SIGKILLs under load: whoever posts again under its key has each record stored once; without a key at least once.
#[test]
fn through_sigkill_what_is_posted_under_a_key_is_stored_once() {
    const THREADS: u64 = 4;
    const LINES: u64 = 20;
    let kills = size("WAYSTATION_TEST_INGEST_LOAD_KILLS", 20);
    let port = free_port();
    let home = Home::new(&config(port, "", ""));
    let mut random = fastrand::Rng::with_seed(seed());
    let stop = Arc::new(AtomicBool::new(false));
    let posts = Arc::new(AtomicU64::new(0));
    let unsure = Arc::new(Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..=THREADS)
        .map(|thread| {
            let (stop, posts, unsure) =
                (Arc::clone(&stop), Arc::clone(&posts), Arc::clone(&unsure));
            std::thread::spawn(move || {
                let mut client = Client::new(port);
                let mut taken = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let post = taken.len() as u64;
                    let lines: String =
                        (0..LINES).map(|line| format!("{thread}/{post}/{line}\n")).collect();
                    // The last thread has no keys.
                    let key = format!("{NDJSON}Idempotency-Key: {thread}-{post}\r\n");
                    let headers = if thread < THREADS { key.as_str() } else { NDJSON };
                    let mut tries = 0;
                    // One that is begun is brought to its end: the last run takes it.
                    while !matches!(client.post(headers, lines.as_bytes()), Ok(Told(202, ..))) {
                        client.stream = None;
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    if tries > 0 && thread == THREADS {
                        unsure.lock().unwrap().push(post);
                    }
                    taken.push(lines);
                    posts.fetch_add(1, Ordering::SeqCst);
                }
                taken
            })
        })
        .collect();
    for _ in 0..kills {
        let mut agent = home.start(&["run"]);
        let before = posts.load(Ordering::SeqCst);
        wait_for("posts", LONG, || (posts.load(Ordering::SeqCst) > before + 20).then_some(()));
        std::thread::sleep(Duration::from_millis(random.u64(0..60)));
        agent.kill();
    }
    let agent = home.start(&["run"]);
    stop.store(true, Ordering::SeqCst);
    let taken: Vec<Vec<String>> =
        clients.into_iter().map(|client| client.join().unwrap()).collect();
    settle(&home, agent);
    let found = delivered(&home);
    let unsure = unsure.lock().unwrap();
    let mut expected = 0;
    for (thread, posts) in taken.iter().enumerate() {
        for line in posts.iter().flat_map(|post| post.lines()) {
            expected += 1;
            let times = found.get(line).copied().unwrap_or_default();
            let post = line.split('/').nth(1).unwrap().parse().unwrap();
            let may_repeat = thread as u64 == THREADS && unsure.contains(&post);
            assert!(times == 1 || may_repeat && times > 1, "{line} is there {times} times");
        }
    }
    assert_eq!(found.len(), expected, "there is what nobody has posted");
    eprintln!("{kills} kills, {expected} records posted, none lost, none twice under a key");
}

#[tokio::test]
async fn tls_asks_for_certificates_and_takes_up_new_ones() {
    let (servers, clients, strangers) = (Authority::new(), Authority::new(), Authority::new());
    let port = free_port();
    let keys = "tls = { certificate = \"{dir}/server.pem\", key = \"{dir}/server.key\", ca = \"{dir}/clients.pem\" }";
    let home = Home::new(&config(port, keys, ""));
    let write = |name: &str, content: &str| replace(&home.path(name), content);
    let pair = servers.pair();
    write("server.pem", &pair.certificate);
    write("server.key", &pair.key);
    write("clients.pem", &clients.pem);
    write("servers.pem", &servers.pem);
    let client = |of: Option<&Authority>, name: &str| {
        let identity = of.map(|authority| {
            let pair = authority.pair();
            write(&format!("{name}.pem"), &pair.certificate);
            write(&format!("{name}.key"), &pair.key);
            let path = |extension: &str| home.path(&format!("{name}.{extension}"));
            IdentityFiles { certificate: path("pem"), key: path("key") }
        });
        let tls = TlsConfig { ca: Some(home.path("servers.pem")), identity };
        let tls = ClientTls::new(Some(&tls), &NetConfig::default());
        waystation::net::http::client(&tls, &NetConfig::default(), LONG, None).unwrap()
    };
    let known = client(Some(&clients), "known");
    let url = format!("https://127.0.0.1:{port}/");
    let agent = home.start(&["run"]);
    let posted = async |client: &reqwest::Client, body: &'static str| {
        client.post(&url).body(body).send().await.map(|answer| answer.status().as_u16())
    };
    let begun = Instant::now();
    while posted(&known, "first").await.ok() != Some(202) {
        assert!(begun.elapsed() < LONG);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(posted(&client(None, "nobody"), "no").await.is_err());
    assert!(posted(&client(Some(&strangers), "stranger"), "no").await.is_err());
    // Both authorities are replaced under it: who was known is a stranger from the next connection on.
    let (servers, clients) = (Authority::new(), Authority::new());
    let pair = servers.pair();
    write("server.pem", &pair.certificate);
    write("server.key", &pair.key);
    write("clients.pem", &clients.pem);
    write("servers.pem", &servers.pem);
    assert!(posted(&client(None, "nobody"), "no").await.is_err());
    let newly_known = client(Some(&clients), "newly");
    assert_eq!(posted(&newly_known, "second").await.unwrap(), 202);
    settle(&home, agent);
    assert_eq!(delivered(&home).into_keys().collect::<Vec<_>>(), ["first", "second"]);
}

/// Another address after a reload, and the port of one that is removed is free.
#[test]
fn a_reload_moves_the_listener_and_keeps_what_came() {
    let (first, second) = (free_port(), free_port());
    let home = Home::new(&config(first, "", ""));
    let agent = home.start(&["run"]);
    let mut client = Client::ready(first);
    assert_eq!(client.post(NDJSON, b"one\n").unwrap().0, 202);
    home.configure(&config(second, "idempotency = { keep = \"1h\" }", ""));
    let mut client = Client::ready(second);
    wait_for("the old port", LONG, || {
        TcpStream::connect(("127.0.0.1", first)).is_err().then_some(())
    });
    assert_eq!(client.post(NDJSON, b"two\n").unwrap().0, 202);
    settle(&home, agent);
    assert_eq!(delivered(&home).into_keys().collect::<Vec<_>>(), ["one", "two"]);
}

/// A journal without room: whoever posts hears so at once, and later the records that fit are taken.
#[test]
fn a_full_journal_is_answered_with_503_and_room_with_202() {
    let port = free_port();
    let keys = "[journal]\nmax_bytes = \"1MiB\"\n";
    let blocked = config(port, "", keys).replace(
        "type = \"file\"\n        root = \"{dir}/out\"",
        "type = \"file\"\n        root = \"{dir}/out\"\n        root_must_exist = true",
    );
    let home = Home::new(&blocked);
    let agent = home.start(&["run"]);
    let mut client = Client::ready(port);
    let mut random = fastrand::Rng::with_seed(5);
    let mut line =
        || -> String { std::iter::repeat_with(|| random.alphanumeric()).take(20_000).collect() };
    let mut taken = Vec::new();
    let refused = wait_for("a full journal", LONG, || {
        let line = line();
        let told = client.post(NDJSON, line.as_bytes()).unwrap();
        if told.0 == 202 {
            taken.push(line);
            return None;
        }
        Some(told)
    });
    assert_eq!((refused.0, refused.1.contains("retry-after: 10")), (503, true), "{}", refused.2);
    assert!(refused.2["detail"].as_str().unwrap().contains("full"), "{}", refused.2);
    std::fs::create_dir(home.path("out")).unwrap();
    wait_for("room", LONG, || {
        let line = line();
        let is_taken = client.post(NDJSON, line.as_bytes()).unwrap().0 == 202;
        is_taken.then(|| taken.push(line))
    });
    settle(&home, agent);
    let expected: BTreeMap<_, _> = taken.into_iter().map(|line| (line, 1)).collect();
    assert!(delivered(&home) == expected);
}
