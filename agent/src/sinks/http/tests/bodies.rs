//! What stands in a body, and that it is always the same.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::server::{answer, status};
use super::*;
use crate::limits::{HTTP_PIECE_BYTES, HTTP_REFUSED_MAX};
use crate::record::batch::{BatchContent, BlockReader, FrameBlock, ReadError};
use crate::record::codec::FrameBuffer;
use crate::record::{Headers as RecordHeaders, Origin, RecordView};
use crate::sinks::SinkBuilder;

/// The only request that came.
fn only(server: &Server) -> Sent {
    let sent = server.sent();
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent[0].clone()
}

#[tokio::test]
async fn ndjson_is_payload_and_newline_under_the_identity_of_the_batch() {
    let server = always(status(200));
    let keys = "method = \"PUT\"\nheaders = { x-site = \"turbine-7\" }";
    let fixture = fixture(&server.url("/in?a=b"), keys);
    let delivered = fixture.deliver(&[b"{\"a\":1}", b"", b"two\r"]).await.unwrap();
    let expected = Delivered { records: 3, bytes: 14, ..Delivered::default() };
    assert_eq!(delivered, expected);
    let sent = only(&server);
    assert_eq!((sent.method.as_str(), sent.target.as_str()), ("PUT", "/in?a=b"));
    assert_eq!(&sent.body[..], b"{\"a\":1}\n\ntwo\r\n");
    assert_eq!(sent.key(), facts(1, 3).identity());
    assert_eq!(sent.header("content-type"), "application/x-ndjson");
    assert_eq!(sent.header("content-length"), "14");
    assert_eq!(sent.header("x-site"), "turbine-7");
    assert_eq!(sent.header("user-agent"), concat!("waystation/", env!("CARGO_PKG_VERSION")));
    assert_eq!(sent.header("content-encoding"), "");
}

#[tokio::test]
async fn json_is_one_array_and_what_does_not_fit_is_refused_by_name() {
    let server = always(status(200));
    let fixture = fixture(&server.url("/"), "format = \"json\"");
    let payloads: [&[u8]; 8] =
        [b"no", b"{\"a\":\n1}", b"", b" 2 ", b"{}{}", b"\"\xff\"", b"S3CR3T", b"null"];
    let delivered = fixture.deliver(&payloads).await.unwrap();
    let value: serde_json::Value = serde_json::from_slice(&only(&server).body).unwrap();
    assert_eq!(value, serde_json::json!([{"a": 1}, 2, null]));
    assert_eq!(only(&server).header("content-type"), "application/json");
    let refused: Vec<u64> = delivered.refused.iter().map(|refused| refused.index).collect();
    assert_eq!((delivered.records, refused), (3, vec![0, 2, 4, 5, 6]));
    let reason = &delivered.refused[4].reason;
    assert!(reason.contains("/16 is no JSON") && !reason.contains("S3CR3T"), "{reason}");
}

#[tokio::test]
async fn a_newline_is_refused_by_name_in_ndjson_and_kept_in_an_envelope() {
    let server = always(status(200));
    let plain = fixture(&server.url("/"), "");
    let delivered = plain.deliver(&[b"a", b"b\nc", b"d"]).await.unwrap();
    assert_eq!(delivered.records, 2);
    assert_eq!(delivered.refused.len(), 1);
    assert_eq!(delivered.refused[0].index, 1);
    assert!(delivered.refused[0].reason.contains("/11 holds a newline"));
    assert_eq!(&server.sent()[0].body[..], b"a\nd\n");
    for format in ["ndjson", "json"] {
        let keys = format!("format = \"{format}\"\nenvelope = true");
        let fixture = fixture(&server.url("/"), &keys);
        let delivered = fixture.deliver(&[b"b\nc", b"\xff"]).await.unwrap();
        assert_eq!((delivered.records, delivered.refused.len()), (2, 0));
        let body = server.sent().last().unwrap().body.clone();
        let records: Vec<serde_json::Value> = if format == "json" {
            serde_json::from_slice(&body).unwrap()
        } else {
            let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
        };
        assert_eq!(records[0]["payload"], "b\nc");
        assert_eq!(records[0]["subject"], "s.t");
        assert!(records[0]["id"].as_str().unwrap().ends_with("/10"));
        assert_eq!(records[1]["payload_base64"], "/w==");
    }
}

#[tokio::test]
async fn a_batch_of_which_nothing_fits_is_no_request() {
    let server = always(status(200));
    let fixture = fixture(&server.url("/"), "format = \"json\"");
    let delivered = fixture.deliver(&[b"x", b"y"]).await.unwrap();
    assert_eq!((delivered.records, delivered.bytes, delivered.refused.len()), (0, 0, 2));
    assert!(server.sent().is_empty());
    // So many are not named one by one.
    let payloads = vec![&b"x"[..]; HTTP_REFUSED_MAX + 1];
    let error = fixture.deliver(&payloads).await.unwrap_err();
    assert_eq!(error.class, Class::Rejected);
    assert!(error.reason.starts_with("too many records do not fit; the first: "), "{error}");
}

#[tokio::test]
async fn compressed_bodies_hold_the_same_and_say_how_they_are_compressed() {
    let server = always(status(200));
    let payloads = vec![&b"the same again and again"[..]; 4000];
    let whole = b"the same again and again\n".repeat(4000);
    for codec in ["zstd", "gzip"] {
        let keys = format!("compression = {{ codec = \"{codec}\", level = 5 }}");
        let delivered = fixture(&server.url("/"), &keys).deliver(&payloads).await.unwrap();
        let sent = server.sent().last().unwrap().clone();
        assert_eq!(sent.header("content-encoding"), codec);
        assert_eq!(sent.content(), whole);
        assert_eq!(delivered.bytes, sent.body.len() as u64);
        assert!(sent.body.len() < whole.len() / 20);
        assert_eq!(sent.header("content-length"), sent.body.len().to_string());
    }
}

/// An answer that is lost after the server has stored the batch: the repeat is recognised by its key, and is the same to the
/// byte, although the agent was reconfigured and the journal cuts the batch into other blocks.
#[tokio::test]
async fn a_repeat_has_the_same_key_and_bytes_whatever_was_reloaded() {
    let stored = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let seen = Arc::clone(&stored);
    let server = Server::start(move |sent| {
        let is_new = seen.lock().unwrap().insert(sent.key().to_owned());
        if is_new { Reply::Close } else { status(200) }
    });
    for keys in ["", "format = \"json\"\nenvelope = true", "compression = { codec = \"gzip\" }"] {
        for codec in ["", "compression = { codec = \"zstd\", level = 7 }"] {
            if keys.contains("compression") && !codec.is_empty() {
                continue;
            }
            stored.lock().unwrap().clear();
            let before = fixture(&server.url("/old"), &format!("{keys}\n{codec}"));
            let now = fixture(&server.url("/new"), "compression = { codec = \"zstd\", level = 1 }");
            let (few, many) =
                (random_batch(&before.builder, 7), random_batch(&before.builder, 1000));
            let from = server.sent().len();
            let error = before.builder.build().deliver(&few, 1).await.unwrap_err();
            assert_eq!(error.class, Class::Retryable, "{error}");
            let delivered = now.builder.build().deliver(&many, 2).await.unwrap();
            assert_eq!(delivered.records, 3000);
            let sent = server.sent().split_off(from);
            assert_eq!(sent.len(), 2);
            assert_eq!(sent[0].key(), sent[1].key());
            assert_eq!(sent[0].target, "/old");
            assert_eq!(sent[1].target, "/new");
            assert!(sent[0].body.len() > 2 * HTTP_PIECE_BYTES || !codec.is_empty());
            assert!(sent[0].body == sent[1].body, "{keys} {codec}: other bytes");
            for name in ["content-type", "content-encoding"] {
                assert_eq!(sent[0].header(name), sent[1].header(name));
            }
        }
    }
}

/// 3000 records that compress badly, in blocks of so many.
fn random_batch(builder: &dyn SinkBuilder, block_records: usize) -> SealedBatch {
    let facts = facts(3, 3000);
    let mut random = fastrand::Rng::with_seed(7);
    let payloads: Vec<String> =
        (0..3000).map(|_| (0..200).map(|_| random.alphanumeric()).collect()).collect();
    let mut seq = facts.first_seq;
    let mut blocks = Vec::new();
    for part in payloads.chunks(block_records) {
        let first_seq = seq;
        let mut frames = FrameBuffer::default();
        for payload in part {
            frames.push(&RecordView {
                epoch: facts.epoch,
                seq,
                origin: Origin::default(),
                time: Timestamp(5),
                subject: "s",
                headers: RecordHeaders::default(),
                payload: payload.as_bytes(),
            });
            seq = seq.next();
        }
        blocks.push(FrameBlock {
            epoch: facts.epoch,
            first_seq,
            count: frames.count(),
            skip: 0,
            take: frames.count(),
            bytes: frames.bytes().to_vec().into(),
        });
    }
    let fixed = builder.fix(&facts).unwrap();
    SealedBatch {
        facts,
        fixed,
        sha256: [0; 32],
        earlier: false,
        note: None,
        content: Arc::new(Blocks(blocks)),
    }
}

#[derive(Debug)]
struct Blocks(Vec<FrameBlock>);

impl BatchContent for Blocks {
    fn open(&self) -> Box<dyn BlockReader> {
        Box::new(Reader(self.0.clone().into_iter()))
    }
}

struct Reader(std::vec::IntoIter<FrameBlock>);

impl BlockReader for Reader {
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError> {
        Ok(self.0.next())
    }
}

/// A batch of `blocks` times one block, made as it is read. Fails or ends before block `flawed_at` of the `flawed` reading.
#[derive(Debug, Clone)]
struct Large {
    block: FrameBlock,
    blocks: u64,
    readings: Arc<std::sync::atomic::AtomicU64>,
    flaw: Option<(u64, u64, Flaw)>,
}

#[derive(Debug, Clone, Copy)]
enum Flaw {
    Unreadable,
    Short,
}

struct LargeReader {
    large: Large,
    reading: u64,
    at: u64,
}

impl BatchContent for Large {
    fn open(&self) -> Box<dyn BlockReader> {
        let reading = self.readings.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::new(LargeReader { large: self.clone(), reading, at: 0 })
    }
}

impl BlockReader for LargeReader {
    fn next_block(&mut self) -> Result<Option<FrameBlock>, ReadError> {
        match self.large.flaw {
            Some((reading, at, flaw)) if (reading, at) == (self.reading, self.at) => match flaw {
                Flaw::Unreadable => Err("the disk is gone".into()),
                Flaw::Short => Ok(None),
            },
            _ if self.at == self.large.blocks => Ok(None),
            _ => {
                self.at += 1;
                Ok(Some(self.large.block.clone()))
            }
        }
    }
}

/// `blocks` blocks of 1000 records of 256 bytes.
fn large_batch(
    builder: &dyn SinkBuilder,
    blocks: u64,
    flaw: Option<(u64, u64, Flaw)>,
) -> SealedBatch {
    let facts = facts(4, blocks * 1000);
    let mut frames = FrameBuffer::default();
    for _ in 0..1000 {
        frames.push(&RecordView {
            epoch: facts.epoch,
            seq: facts.first_seq,
            origin: Origin::default(),
            time: Timestamp(5),
            subject: "s",
            headers: RecordHeaders::default(),
            payload: &[b'x'; 255],
        });
    }
    let block = FrameBlock {
        epoch: facts.epoch,
        first_seq: facts.first_seq,
        count: frames.count(),
        skip: 0,
        take: frames.count(),
        bytes: frames.bytes().to_vec().into(),
    };
    let fixed = builder.fix(&facts).unwrap();
    let content = Large { block, blocks, readings: Arc::default(), flaw };
    SealedBatch {
        facts,
        fixed,
        sha256: [0; 32],
        earlier: false,
        note: None,
        content: Arc::new(content),
    }
}

/// What a process has in use, in bytes.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// The body is far larger than what is kept: it is made as it is sent, with its length known, and not held. The server
/// counts what comes and keeps nothing.
#[tokio::test]
async fn a_long_body_is_streamed_with_its_length_and_not_held() {
    use std::io::{Read as _, Write as _};

    let (sender, receiver) = std::sync::mpsc::sync_channel(2);
    let port = super::server::raw(move |mut stream| {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
        let length: u64 = length.parse().unwrap();
        let mut most = 0;
        let (mut left, mut buffer) = (length, vec![0; 1 << 20]);
        while left > 0 {
            let read = stream.read(&mut buffer).unwrap();
            assert!(read > 0, "{left} of {length} bytes are missing");
            left -= read as u64;
            most = most.max(resident_bytes());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        sender.send((length, most)).unwrap();
    });
    let fixture = fixture(&format!("http://127.0.0.1:{port}/"), "");
    let batch = large_batch(&fixture.builder, 1000, None);
    let before = resident_bytes();
    let delivered = fixture.builder.build().deliver(&batch, 1).await.unwrap();
    let (length, most) = receiver.recv().unwrap();
    assert_eq!((delivered.records, delivered.bytes), (1_000_000, 256_000_000));
    assert_eq!(length, 256_000_000);
    let grown = most.saturating_sub(before) >> 20;
    eprintln!("a body of 256 MB: {grown} MiB more in use");
    // Other tests of this process may run beside it; the body would be 244.
    assert!(grown < 120, "{grown} MiB");
}

#[tokio::test]
async fn a_long_body_is_measured_once_for_all_attempts_and_never_two_contents_in_one() {
    let server = Server::start(|sent| if sent.number == 0 { status(500) } else { status(200) });
    let fixture = fixture(&server.url("/"), "");
    let batch = large_batch(&fixture.builder, 8, None);
    let mut sink = fixture.builder.build();
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert_eq!(error.class, Class::Retryable);
    let delivered = sink.deliver(&batch, 2).await.unwrap();
    assert_eq!((delivered.records, delivered.bytes), (8000, 8 * 256_000));
    let bodies: Vec<Bytes> = server.sent().into_iter().map(|sent| sent.body).collect();
    assert!(bodies[0] == bodies[1] && bodies[0].len() == 8 * 256_000);
    let content = format!("{:?}", batch.content);
    // Measured once, sent twice.
    assert!(content.contains("readings: 3"), "measured more than once");
}

#[tokio::test]
async fn a_batch_that_cannot_be_read_is_retryable_and_never_arrives_in_part() {
    let server = always(status(200));
    let fixture = fixture(&server.url("/"), "");
    for reading in [0, 1] {
        for (flaw, expected) in [
            (Flaw::Unreadable, "cannot read batch"),
            (Flaw::Short, "has 5000 of its 8000 records in the journal"),
        ] {
            let batch = large_batch(&fixture.builder, 8, Some((reading, 5, flaw)));
            let error = fixture.builder.build().deliver(&batch, 1).await.unwrap_err();
            assert_eq!((error.class, error.answered), (Class::Retryable, false), "{error}");
            assert!(error.reason.contains(expected), "{error}");
        }
    }
    assert_eq!(server.sent().len(), 0);
}

#[tokio::test]
async fn a_fixed_part_of_an_unknown_kind_is_rejected() {
    let server = always(answer(200, &[], ""));
    let fixture = fixture(&server.url("/"), "");
    for fixed in [
        "",
        "{\"format\":\"xml\",\"envelope\":false,\"codec\":null,\"level\":null}",
        "{\"format\":\"json\",\"envelope\":false,\"codec\":\"br\",\"level\":1}",
        "{\"name\":\"a\",\"format\":\"lines\"}",
    ] {
        let mut batch = batch(&fixture.builder, facts(1, 1), &[b"1"]);
        batch.fixed = fixed.into();
        let error = fixture.builder.build().deliver(&batch, 1).await.unwrap_err();
        assert_eq!(error.class, Class::Rejected, "{fixed}");
    }
    // What is written today must be read by every later version.
    let fixed = fixture.builder.fix(&facts(1, 1)).unwrap();
    assert_eq!(&*fixed, "{\"format\":\"ndjson\",\"envelope\":false,\"codec\":null,\"level\":null}");
}
