//! The source with a real journal, over real sockets.

use std::io::Write as _;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::config::IdempotencyConfig;
use super::*;
use crate::clock::SystemClock;
use crate::journal::config::JournalConfig;
use crate::journal::{Journal, JournalOptions};
use crate::limits::CHUNK_BYTES_MAX;
use crate::net::listen::ListenConfig;
use crate::sources::config::OnOversize;
use crate::sources::tests::{open, options, payloads, records, source_id};
use crate::units::ByteSize;

fn config() -> HttpSourceConfig {
    HttpSourceConfig {
        listen: ListenConfig {
            address: "127.0.0.1:0".parse().unwrap(),
            tls: None,
            tokens: Vec::new(),
        },
        path: "/".to_owned(),
        body_max: ByteSize(1 << 20),
        idempotency: IdempotencyConfig { keep: Duration::from_secs(60), keys_max: 100 },
        subject: "in.{source}".to_owned(),
        limits: LineLimits {
            record_bytes_max: ByteSize(400_000),
            on_oversize: OnOversize::DeadLetter,
        },
    }
}

/// A source that listens and takes what comes into a journal.
struct Rig {
    journal: Journal,
    source: HttpSource,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Rig {
    async fn new(config: &HttpSourceConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let journal = open(folder.path());
        Self::on(journal, folder, config).await
    }

    async fn on(journal: Journal, folder: tempfile::TempDir, config: &HttpSourceConfig) -> Self {
        let mut source = HttpSource::new(source_id(), config, &options(false)).unwrap();
        let server = source.listen().await.unwrap();
        let address = server.address();
        source.server = Some(server);
        Self { journal, source, address, _folder: folder }
    }

    /// Runs the source while `client` does its work.
    async fn with<T>(&mut self, client: impl Future<Output = T>) -> T {
        let appender = self.journal.appender(&source_id()).await.unwrap();
        tokio::select! {
            ended = self.source.run(appender, Shutdown::new()) => panic!("{ended:?}"),
            result = client => result,
        }
    }
}

struct Told {
    status: u16,
    head: String,
    body: Value,
}

/// Sends a request and reads the answer.
async fn send(address: SocketAddr, head: &str, body: &[u8]) -> Told {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head =
        format!("{head}\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // One that refuses may close before everything is there.
    let _unread = stream.write_all(body).await;
    told(stream).await
}

async fn told(mut stream: TcpStream) -> Told {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = serde_json::from_str(body).unwrap();
    Told { status, head: head.to_ascii_lowercase(), body }
}

async fn post(address: SocketAddr, headers: &str, body: &[u8]) -> Told {
    send(address, &format!("POST / HTTP/1.1{headers}"), body).await
}

const NDJSON: &str = "\r\nContent-Type: application/x-ndjson";

#[tokio::test]
async fn a_post_is_answered_when_it_is_in_the_journal_and_each_kind_makes_its_records() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    rig.with(async {
        let told = post(address, NDJSON, b"one\n\ntwo\n").await;
        assert_eq!(
            (told.status, &told.body["accepted"], &told.body["rejected"]),
            (202, &2.into(), &0.into())
        );
        let json = "\r\nContent-Type: application/json";
        assert_eq!(post(address, json, b"[{\"a\":1}, 2]").await.body["accepted"], 2);
        assert_eq!(post(address, "\r\nContent-Type: image/png", b"\x89\n\xff").await.status, 202);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"three\nfour").unwrap();
        let coded = format!("{NDJSON}\r\nContent-Encoding: gzip");
        assert_eq!(post(address, &coded, &gzip.finish().unwrap()).await.body["accepted"], 2);
    })
    .await;
    let found = records(&rig.journal).await;
    let expected: [&[u8]; 7] =
        [b"one", b"two", b"{\"a\":1}", b"2", b"\x89\n\xff", b"three", b"four"];
    assert_eq!(
        found.iter().map(|(_, _, payload)| payload.as_slice()).collect::<Vec<_>>(),
        expected
    );
    assert!(found.iter().all(|(subject, _, _)| subject == "in.src"));
    assert_eq!(found[4].1, [("content-type".to_owned(), "image/png".to_owned())]);
    assert!(found[0].1.is_empty());
    assert_eq!(rig.source.counters().records.load(Ordering::Relaxed), 7);
}

#[tokio::test]
async fn a_post_with_a_key_is_stored_once_also_after_a_start() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    let key = format!("{NDJSON}\r\nIdempotency-Key: k-1");
    rig.with(async {
        assert_eq!(post(address, &key, b"one\ntwo").await.status, 202);
        let again = post(address, &key, b"one\ntwo").await;
        assert_eq!((again.status, &again.body["accepted"]), (202, &2.into()));
        assert!(again.head.contains("idempotency-replayed: true"), "{}", again.head);
        assert_eq!(post(address, &key, b"other").await.status, 422);
    })
    .await;
    let shared = Arc::clone(&rig.source.shared);
    let appender = rig.journal.appender(&source_id()).await.unwrap();
    let keys = Arc::new(Keys::new(config().idempotency, Arc::clone(&shared.clock)));
    keys.load(appender.positions());
    assert!(matches!(keys.begin("k-1", digest(b"one\ntwo")), Ok(Begun::Done(_))));
    assert_eq!(payloads(&rig.journal).await, [b"one", b"two"]);
}

/// The client loses its patience while the commit is waited for, and sends it again.
#[tokio::test]
async fn a_post_whose_client_has_gone_is_stored_once_when_it_is_sent_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal =
        JournalConfig { commit_interval: Duration::from_millis(800), ..JournalConfig::default() };
    let journal = JournalOptions {
        directory: folder.path().join("data"),
        config: journal,
        agent: None,
        host: "gw".parse().unwrap(),
        clock: Arc::new(SystemClock),
    };
    let journal = Journal::open(&journal).unwrap().0;
    let mut rig = Rig::on(journal, folder, &config()).await;
    let address = rig.address;
    rig.with(async {
        assert_eq!(post(address, "", b"first").await.status, 202);
        // Its commit comes later than its client's patience lasts.
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head =
            b"POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 6\r\n\r\nsecond";
        stream.write_all(head).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(stream);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let again = loop {
            let told = post(address, "\r\nIdempotency-Key: k", b"second").await;
            // The first one is being stored.
            if told.status != 409 {
                break told;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!((again.status, &again.body["accepted"]), (202, &1.into()));
    })
    .await;
    assert_eq!(payloads(&rig.journal).await, [&b"first"[..], b"second"]);
}

#[tokio::test]
async fn a_post_of_several_chunks_goes_on_where_a_failure_has_left_it() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    let lines: Vec<Vec<u8>> = (0..9).map(|n| vec![b'a' + n; 100_000]).collect();
    let body = lines.join(&b'\n');
    let shared = Arc::clone(&rig.source.shared);
    let appender = Arc::new(rig.journal.appender(&source_id()).await.unwrap());
    // As if the agent had died behind the first append.
    let begun = shared.keys.begin("k", digest(&body)).unwrap();
    let Begun::Open { post: begun, .. } = begun else { panic!() };
    let (counters, time) = (Arc::default(), shared.clock.now());
    let splitting = Splitting {
        limits: shared.limits,
        counters: &counters,
        times: None,
        subject: "in.src",
        time,
        client: "x",
        skip: 0,
    };
    let mut parts = split::split(&body, &Media::Ndjson, &splitting).unwrap();
    assert!(parts.steps.len() > 2, "{}", parts.steps.len());
    let first = parts.steps.remove(0);
    let (items, counts) = (first.items, first.counts);
    assert!(first.append.frames.len() <= CHUNK_BYTES_MAX && items < 9);
    let mut append = first.append;
    append.positions = begun.positions(items, counts, false);
    appender.append(append).await.unwrap();
    drop((begun, appender));
    rig.with(async {
        let key = format!("{NDJSON}\r\nIdempotency-Key: k");
        let told = post(address, &key, &body).await;
        assert_eq!((told.status, &told.body["accepted"]), (202, &9.into()));
        assert!(!told.head.contains("idempotency-replayed"), "{}", told.head);
    })
    .await;
    assert!(payloads(&rig.journal).await == lines);
}

#[tokio::test]
async fn what_is_refused_leaves_nothing_and_says_why() {
    let mut config = config();
    config.path = "/in".to_owned();
    let mut rig = Rig::new(&config).await;
    let address = rig.address;
    let in_post = async |headers: &str, body: &[u8]| {
        send(address, &format!("POST /in HTTP/1.1{headers}"), body).await
    };
    rig.with(async {
        for (told, status, words) in [
            (send(address, "POST / HTTP/1.1", b"x").await, 404, "nothing is served"),
            (send(address, "GET /in HTTP/1.1", b"").await, 405, "by POST"),
            (in_post("", b"").await, 400, "empty"),
            (in_post("\r\nContent-Encoding: br", b"x").await, 415, "\"br\""),
            (in_post("\r\nContent-Encoding: gzip, gzip", b"x").await, 415, "\"gzip, gzip\""),
            (
                in_post("\r\nContent-Encoding: gzip\r\nContent-Encoding: gzip", b"x").await,
                415,
                "gzip, gzip",
            ),
            (in_post("\r\nContent-Encoding: gzip", b"no gzip at all").await, 400, "gzip"),
            (in_post("\r\nContent-Type: application/json", b"[1,").await, 400, "JSON array"),
            (in_post("\r\nIdempotency-Key: a b", b"x").await, 400, "Idempotency-Key"),
            (in_post("\r\nIdempotency-Key: ", b"x").await, 400, "Idempotency-Key"),
            (in_post("", &vec![b'x'; (1 << 20) + 1]).await, 413, "1048576"),
        ] {
            assert_eq!(told.status, status, "{}", told.body);
            assert_eq!(told.body["status"], status);
            let detail = told.body["detail"].as_str().unwrap();
            assert!(detail.contains(words), "{detail}");
            assert!(told.head.contains("content-type: application/problem+json"), "{}", told.head);
        }
        assert!(send(address, "GET /in HTTP/1.1", b"").await.head.contains("allow: post"));
    })
    .await;
    assert!(payloads(&rig.journal).await.is_empty());
    assert_eq!(rig.source.counters().refused_requests.load(Ordering::Relaxed), 12);
}

/// A client that sends all of a large body before it reads sees the answer, not a broken connection.
#[tokio::test]
async fn a_body_of_unknown_length_is_cut_off_at_the_limit_and_its_client_sees_the_answer() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    rig.with(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head).await.unwrap();
        let chunk = [b"10000\r\n".to_vec(), vec![b'x'; 65_536], b"\r\n".to_vec()].concat();
        // The limit, and 960 KiB more.
        for _ in 0..31 {
            stream.write_all(&chunk).await.unwrap();
        }
        assert_eq!(told(stream).await.status, 413);
    })
    .await;
    assert!(payloads(&rig.journal).await.is_empty());
}

#[tokio::test]
async fn a_body_that_breaks_off_is_not_stored() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    rig.with(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nHost: x{NDJSON}\r\nContent-Length: 100\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"one\ntwo\nthree").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert_eq!(post(address, NDJSON, b"after").await.status, 202);
    })
    .await;
    assert_eq!(payloads(&rig.journal).await, [b"after"]);
}

#[tokio::test]
async fn tokens_open_the_door() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let mut config = config();
    config.listen.tokens = vec![crate::secret::Secret::File(file)];
    let mut rig = Rig::new(&config).await;
    let address = rig.address;
    rig.with(async {
        for header in [
            "",
            "\r\nAuthorization: Bearer other",
            "\r\nAuthorization: Basic s3cret",
            "\r\nAuthorization: Bearer ",
        ] {
            let told = post(address, header, b"no").await;
            assert_eq!(told.status, 401, "{header}");
            assert!(told.head.contains("www-authenticate: bearer"), "{}", told.head);
        }
        assert_eq!(post(address, "\r\nAuthorization: bearer s3cret", b"yes").await.status, 202);
    })
    .await;
    assert_eq!(payloads(&rig.journal).await, [b"yes"]);
}

#[tokio::test]
async fn while_the_journal_takes_nothing_clients_are_told_so_and_later_it_goes_on() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    let appender = rig.journal.appender(&source_id()).await.unwrap();
    // A newer session ends this one: its next append fails.
    let newer = rig.journal.appender(&source_id()).await.unwrap();
    let (ended, told) =
        tokio::join!(rig.source.run(appender, Shutdown::new()), post(address, "", b"lost"));
    assert!(matches!(ended, Err(SourceError::Append(_))), "{ended:?}");
    assert_eq!(told.status, 503);
    assert!(told.head.contains("retry-after: 1"), "{}", told.head);
    // Between two runs the listener is there.
    let told = post(address, "", b"lost").await;
    assert_eq!(told.status, 503);
    drop(newer);
    rig.with(async { assert_eq!(post(address, "", b"kept").await.status, 202) }).await;
    assert_eq!(payloads(&rig.journal).await, [b"kept"]);
}

#[tokio::test]
async fn a_stop_lets_requests_end_and_frees_the_port() {
    let mut rig = Rig::new(&config()).await;
    let address = rig.address;
    let appender = rig.journal.appender(&source_id()).await.unwrap();
    let shutdown = Shutdown::new();
    let asked = shutdown.clone();
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nla";
        stream.write_all(head).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        asked.request();
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(b"te").await.unwrap();
        told(stream).await
    };
    let (ended, told) = tokio::join!(rig.source.run(appender, shutdown), client);
    assert_eq!((ended.unwrap(), told.status), (Finished::Stopped, 202));
    assert_eq!(payloads(&rig.journal).await, [b"late"]);
    assert!(TcpStream::connect(address).await.is_err());
}

/// What the document promises is what the code does: its statuses, their headers, the types of content, the limits.
#[test]
fn the_description_of_the_interface_is_true() {
    let document: Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
    let post = &document["paths"]["/"]["post"];
    let resolve = |value: &Value| match value["$ref"].as_str() {
        Some(path) => document.pointer(path.trim_start_matches('#')).unwrap().clone(),
        None => value.clone(),
    };
    let responses = post["responses"].as_object().unwrap();
    let mut described: Vec<u16> = responses.keys().map(|status| status.parse().unwrap()).collect();
    let mut made: Vec<u16> =
        Refusal::all().iter().map(|refusal| refusal.status().as_u16()).chain([202]).collect();
    made.sort_unstable();
    made.dedup();
    described.sort_unstable();
    assert_eq!(described, made);
    for refusal in Refusal::all() {
        let answer = refusal.answer(false);
        let response = resolve(&responses[answer.status().as_str()]);
        assert!(response["content"]["application/problem+json"].is_object(), "{refusal:?}");
        let described = response["headers"].as_object().cloned().unwrap_or_default();
        let described: Vec<_> = described.keys().map(|name| name.to_ascii_lowercase()).collect();
        let sent = answer.headers().keys().map(|name| name.as_str());
        let sent: Vec<_> = sent.filter(|name| *name != "content-type").collect();
        assert_eq!(described, sent, "{refusal:?}");
    }
    for parameter in post["parameters"].as_array().unwrap() {
        match parameter["name"].as_str().unwrap() {
            "Idempotency-Key" => {
                assert_eq!(parameter["schema"]["maxLength"], IDEMPOTENCY_KEY_BYTES_MAX);
            }
            "Content-Encoding" => {
                for coding in parameter["schema"]["enum"].as_array().unwrap() {
                    Coding::parse(coding.as_str().unwrap()).unwrap();
                }
            }
            other => panic!("{other}"),
        }
    }
    for media in post["requestBody"]["content"].as_object().unwrap().keys() {
        let parsed = Media::parse(Some(media));
        match media.as_str() {
            "application/json" => assert_eq!(parsed, Media::Json),
            "*/*" => assert!(matches!(parsed, Media::Other(_))),
            _ => assert_eq!(parsed, Media::Ndjson, "{media}"),
        }
    }
    let counts = Accepted { replayed: true, ..Accepted::default() }.answer();
    assert!(counts.headers().contains_key(answer::REPLAYED));
    let described = &document["components"]["schemas"]["Counts"]["required"];
    assert_eq!(described, &serde_json::json!(["accepted", "rejected"]));
}
