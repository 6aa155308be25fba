//! The sink against a real server, which `cargo xtask test` installs.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures_util::StreamExt as _;
use rustix::process::{Pid, Signal, kill_process};

mod lookups;
mod renewals;

use super::*;
use crate::backoff::{Backoff, Jitter};
use crate::record::{Headers, HeadersBuffer};
use crate::sinks::config::GiveUp;
use crate::sinks::tests::{batch, batch_of, facts};

/// A server of its own, killed at the end.
struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    config: String,
}

impl Server {
    async fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Self::spawn(folder.path(), "-1", config);
        let mut server = Self { child, port: 0, folder, config: config.to_owned() };
        server.port = server.wait_for_port().await;
        server
    }

    fn spawn(folder: &Path, port: &str, config: &str) -> Child {
        let binary = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/nats-server");
        let file = folder.join("server.conf");
        std::fs::write(&file, config).unwrap();
        Command::new(&binary)
            .args(["-a", "127.0.0.1", "-js", "-p", port])
            .arg("-sd")
            .arg(folder)
            .arg("--ports_file_dir")
            .arg(folder)
            .arg("-c")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; `cargo xtask test` installs it", binary.display())
            })
    }

    async fn wait_for_port(&self) -> u16 {
        let path = self.folder.path().join(format!("nats-server_{}.ports", self.child.id()));
        for _ in 0..500 {
            if let Ok(text) = std::fs::read_to_string(&path)
                && let Ok(ports) = serde_json::from_str::<serde_json::Value>(&text)
                && let Some(url) = ports["nats"][0].as_str()
            {
                return url.rsplit(':').next().unwrap().parse().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the server did not start");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on its port, with what it has stored.
    fn restart(&mut self) {
        self.child = Self::spawn(self.folder.path(), &self.port.to_string(), &self.config);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    async fn context(&self, user: &str) -> Context {
        let options = async_nats::ConnectOptions::new().retry_on_initial_connect();
        let options = match user {
            "" => options,
            user => options.user_and_password(user.to_owned(), user.to_owned()),
        };
        async_nats::jetstream::new(options.connect(self.url()).await.unwrap())
    }

    fn builder(
        &self,
        change: impl FnOnce(&mut NatsSinkConfig, &mut RetryConfig),
    ) -> NatsSinkBuilder {
        let mut config = NatsSinkConfig {
            servers: vec![self.url()],
            credentials: None,
            stream: Some("EDGE".to_owned()),
            subject: "edge.{agent}.{subject}".to_owned(),
            tls: None,
            publish_window: 16,
            order: Order::Window,
            on_unknown: OnUnknown::Resend,
            lookup_max: 100_000,
        };
        let mut retry = RetryConfig {
            backoff: Backoff::new(Duration::from_millis(1), Duration::from_secs(1), Jitter::Full)
                .unwrap(),
            attempt_timeout: Duration::from_secs(10),
            budget: Duration::from_secs(120),
            on_exhausted: GiveUp::DeadLetter,
        };
        change(&mut config, &mut retry);
        let clock = Arc::new(crate::clock::SystemClock);
        let net = NetConfig::default();
        NatsSinkBuilder::new("cloud".parse().unwrap(), config, &net, retry, clock, None)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already dead and reaped in the tests that kill it on purpose.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn edge() -> Config {
    Config { name: "EDGE".to_owned(), subjects: vec!["edge.>".to_owned()], ..Config::default() }
}

fn payloads(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("record {n}").into_bytes()).collect()
}

fn sealed(builder: &NatsSinkBuilder, payloads: &[Vec<u8>]) -> SealedBatch {
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    batch(builder, facts(1, payloads.len() as u64), &payloads)
}

/// What the stream holds, in its order.
async fn stored(context: &Context) -> Vec<Vec<u8>> {
    let mut stream = context.get_stream("EDGE").await.unwrap();
    let state = stream.info().await.unwrap().state.clone();
    let mut found = Vec::new();
    if state.messages == 0 {
        return found;
    }
    for sequence in state.first_sequence..=state.last_sequence {
        found.push(stream.get_raw_message(sequence).await.unwrap().payload.to_vec());
    }
    found
}

#[tokio::test]
async fn records_arrive_with_identity_subject_and_headers_and_repeats_are_recognised() {
    let server = Server::start("").await;
    let context = server.context("").await;
    let stream = context.create_stream(edge()).await.unwrap();
    let mut subscription = context.client().subscribe("edge.>").await.unwrap();
    context.client().flush().await.unwrap();
    let builder = server.builder(|_, _| {});
    let mut headers = HeadersBuffer::default();
    headers.push("a", "1");
    headers.push("a", "2");
    let records =
        [("hall.7", headers.as_headers(), &b"\xff\0one"[..]), ("", Headers::default(), b"")];
    let batch = batch_of(&builder, facts(1, 2), &records);
    let mut sink = builder.build();
    sink.probe().await.unwrap();
    let delivered = sink.deliver(&batch, 1).await.unwrap();
    assert_eq!((delivered.records, delivered.already, delivered.reordered), (2, 0, 0));
    let first = stream.get_raw_message(1).await.unwrap();
    assert_eq!(first.subject.as_str(), "edge.gw-1.hall.7");
    assert_eq!(&first.payload[..], b"\xff\0one");
    assert_eq!(
        first.headers.get("Nats-Msg-Id").unwrap().as_str(),
        "gw-1/src/pipe/files/00001abcde/10"
    );
    // Read from a live subscription: the client's reader of stored messages keeps only the last of repeated headers.
    let live = subscription.next().await.unwrap();
    let values = live.headers.as_ref().unwrap().get_all("a").map(|value| value.as_str());
    assert_eq!(values.collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(stream.get_raw_message(2).await.unwrap().subject.as_str(), "edge.gw-1._");
    let again = builder.build().deliver(&batch, 1).await.unwrap();
    assert_eq!((again.records, again.already), (2, 2));
    assert_eq!(stored(&context).await.len(), 2);
}

#[tokio::test]
async fn a_full_stream_is_unreachable_and_what_it_took_is_not_sent_again() {
    let server = Server::start("").await;
    let context = server.context("").await;
    let full = Config { max_messages: 50, discard: DiscardPolicy::New, ..edge() };
    context.create_stream(full).await.unwrap();
    let builder = server.builder(|_, _| {});
    let payloads = payloads(200);
    let batch = sealed(&builder, &payloads);
    let mut sink = builder.build();
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    assert_eq!(stored(&context).await, payloads[..50]);
    let more = Config { max_messages: 1000, discard: DiscardPolicy::New, ..edge() };
    context.update_stream(more).await.unwrap();
    let delivered = sink.deliver(&batch, 2).await.unwrap();
    assert_eq!((delivered.records, delivered.already, delivered.reordered), (200, 0, 0));
    assert_eq!(stored(&context).await, payloads);
}

#[tokio::test]
async fn no_stream_and_another_stream_are_unreachable() {
    let server = Server::start("").await;
    let context = server.context("").await;
    let builder = server.builder(|_, _| {});
    let batch = sealed(&builder, &payloads(3));
    let mut sink = builder.build();
    let error = sink.probe().await.unwrap_err();
    let missing = "stream EDGE does not exist on this server; create it with a subject that covers";
    assert_eq!(error.class, Class::Unreachable);
    assert_eq!(error.reason, format!("{missing} edge.*.>"));
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    assert_eq!(error.reason, format!("{missing} edge.gw-1.>"));
    let elsewhere = Config { subjects: vec!["a.>".to_owned(), "b".to_owned()], ..edge() };
    context.create_stream(elsewhere).await.unwrap();
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    let narrow = "stream EDGE takes a.>, b, not edge.gw-1.>; add a subject that covers it";
    assert_eq!((error.class, error.reason.as_str()), (Class::Unreachable, narrow));
    assert_eq!(sink.probe().await.unwrap_err().class, Class::Unreachable);
    context.delete_stream("EDGE").await.unwrap();
    context.create_stream(Config { name: "OTHER".to_owned(), ..edge() }).await.unwrap();
    let error = sink.deliver(&batch, 2).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    let state = context.get_stream("OTHER").await.unwrap().get_info().await.unwrap().state;
    assert_eq!(state.messages, 0);
    let any = server.builder(|config, _| config.stream = None);
    assert_eq!(any.build().deliver(&sealed(&any, &payloads(3)), 1).await.unwrap().records, 3);
}

#[tokio::test]
async fn d_10_what_is_over_max_payload_is_refused_by_name_and_the_others_are_delivered_in_order() {
    let server = Server::start("max_payload: 65536").await;
    let context = server.context("").await;
    context.create_stream(edge()).await.unwrap();
    let builder = server.builder(|_, _| {});
    let small = |number: usize| format!("{number:0100}").into_bytes();
    let mut payloads: Vec<_> = (0..10).map(small).collect();
    payloads.push(vec![b'x'; 70_000]);
    payloads.extend((10..20).map(small));
    // It fits alone and not with its headers.
    payloads.push(vec![b'x'; 65_530]);
    payloads.extend((20..30).map(small));
    let batch = sealed(&builder, &payloads);
    let mut sink = builder.build();
    let delivered = sink.deliver(&batch, 1).await.unwrap();
    let refused: Vec<_> = delivered.refused.iter().map(|refused| refused.index).collect();
    assert_eq!((delivered.records, delivered.already), (30, 0));
    assert_eq!(refused, [10, 21]);
    for (refused, size) in delivered.refused.iter().zip([70_000, 65_530]) {
        let expected = "exceeds server max_payload 65536 (size incl. headers ";
        println!("{}", refused.reason);
        let told = refused.reason.strip_prefix(expected).unwrap().trim_end_matches(')');
        let told: usize = told.parse().unwrap();
        assert!(told > size + 50 && told < size + 200, "{}", refused.reason);
    }
    assert_eq!(stored(&context).await, (0..30).map(small).collect::<Vec<_>>());
    // The connection was never cut.
    let link = &builder.shared.link.get().unwrap().0;
    assert_eq!(link.watch().borrow().sessions, 1);
}

#[tokio::test]
async fn what_nats_or_the_stream_cannot_take_is_refused_by_name() {
    let server = Server::start("").await;
    let context = server.context("").await;
    context.create_stream(Config { max_message_size: 1000, ..edge() }).await.unwrap();
    let builder = server.builder(|_, _| {});
    let long = "s".repeat(4000);
    let header = |name: &str, value: &str| {
        let mut headers = HeadersBuffer::default();
        headers.push(name, value);
        headers
    };
    let headers = [("Nats-Rollup", "all"), ("a b", "1"), ("a", "1\r\nb: 2"), ("", "1")]
        .map(|(name, value)| header(name, value));
    let large = vec![b'x'; 950];
    let none = Headers::default();
    let mut records = vec![("s", none, &b"1"[..])];
    records.extend(headers.iter().map(|headers| ("s", headers.as_headers(), &b"2"[..])));
    records.extend([(long.as_str(), none, &b"2"[..]), ("s", none, &large), ("s", none, b"3")]);
    let batch = batch_of(&builder, facts(1, records.len() as u64), &records);
    let delivered = builder.build().deliver(&batch, 1).await.unwrap();
    assert_eq!(delivered.records, 2);
    let reasons: Vec<_> = delivered.refused.iter().map(|refused| refused.reason.as_str()).collect();
    assert_eq!(delivered.refused.iter().map(|r| r.index).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(reasons[5].starts_with("exceeds max_msg_size 1000 of stream EDGE"), "{}", reasons[5]);
    assert_eq!(stored(&context).await, [b"1", b"3"]);
    // A bound that is not known beforehand is told by the stream.
    let unaware = server.builder(|config, _| config.stream = None);
    let batch = sealed(&unaware, &[b"4".to_vec(), large, b"5".to_vec()]);
    let delivered = unaware.build().deliver(&batch, 1).await.unwrap();
    assert_eq!((delivered.refused.len(), delivered.refused[0].index), (1, 1));
    assert!(delivered.refused[0].reason.contains("10054"), "{:?}", delivered.refused);
}

#[tokio::test]
async fn d_11_a_full_stream_keeps_the_order_strictly_and_takes_the_rest_when_there_is_room() {
    let new = DiscardPolicy::New;
    for config in [
        Config { max_messages: 5, discard: new, ..edge() },
        Config { max_messages: 5, max_bytes: 10_000, discard: new, ..edge() },
        Config {
            max_messages_per_subject: 5,
            discard_new_per_subject: true,
            discard: new,
            ..edge()
        },
    ] {
        let server = Server::start("").await;
        let context = server.context("").await;
        context.create_stream(config).await.unwrap();
        let builder = server.builder(|config, _| config.order = Order::Strict);
        let payloads = payloads(20);
        let batch = sealed(&builder, &payloads);
        let mut sink = builder.build();
        for attempt in 1..4 {
            let error = sink.deliver(&batch, attempt).await.unwrap_err();
            assert_eq!((error.class, error.answered), (Class::Unreachable, true), "{error}");
            assert!(error.reason.contains("maximum messages"), "{error}");
            assert_eq!(stored(&context).await, payloads[..5]);
        }
        let mut all = Vec::new();
        let delivered = loop {
            all.extend(stored(&context).await);
            context.get_stream("EDGE").await.unwrap().purge().await.unwrap();
            match sink.deliver(&batch, 9).await {
                Ok(delivered) => break delivered,
                Err(error) => assert_eq!(error.class, Class::Unreachable, "{error}"),
            }
        };
        all.extend(stored(&context).await);
        assert_eq!((delivered.records, delivered.reordered), (20, 0));
        assert_eq!(all, payloads);
    }
}

#[tokio::test]
async fn strict_order_sends_nothing_behind_a_failure_and_a_window_counts_what_it_stored_there() {
    for (order, stored_behind) in [(Order::Strict, 0), (Order::Window, 2)] {
        let server = Server::start("").await;
        let context = server.context("").await;
        let one_each = Config {
            max_messages_per_subject: 1,
            discard_new_per_subject: true,
            discard: DiscardPolicy::New,
            ..edge()
        };
        context.create_stream(one_each).await.unwrap();
        let builder = server.builder(|config, _| config.order = order);
        let none = Headers::default();
        let records =
            [("a", none, &b"1"[..]), ("a", none, b"2"), ("b", none, b"3"), ("c", none, b"4")];
        let batch = batch_of(&builder, facts(1, 4), &records);
        let mut sink = builder.build();
        let error = sink.deliver(&batch, 1).await.unwrap_err();
        assert_eq!((error.class, error.answered), (Class::Unreachable, true), "{error}");
        let stream = context.get_stream("EDGE").await.unwrap();
        assert_eq!(stream.get_info().await.unwrap().state.messages, 1 + stored_behind);
        stream.purge().filter("edge.gw-1.a").await.unwrap();
        let delivered = sink.deliver(&batch, 2).await.unwrap();
        assert_eq!((delivered.records, delivered.reordered), (4, stored_behind));
    }
}

#[tokio::test]
async fn a_killed_server_is_unreachable_and_gets_each_record_once_when_it_is_back() {
    let mut server = Server::start("").await;
    let context = server.context("").await;
    context.create_stream(edge()).await.unwrap();
    let builder = server.builder(|config, _| config.publish_window = 64);
    let payloads = payloads(20_000);
    let batch = sealed(&builder, &payloads);
    let mut sink = builder.build();
    let attempt = async {
        let error = sink.deliver(&batch, 1).await.unwrap_err();
        assert_eq!(error.class, Class::Unreachable, "{error}");
    };
    let killer = async {
        while context.get_stream("EDGE").await.unwrap().get_info().await.unwrap().state.messages
            < 500
        {}
    };
    let killed = async {
        killer.await;
        server.kill();
    };
    tokio::join!(attempt, killed);
    server.restart();
    let mut attempts = 1;
    let delivered = loop {
        attempts += 1;
        match sink.deliver(&batch, attempts).await {
            Ok(delivered) => break delivered,
            Err(error) => assert_ne!(error.class, Class::Rejected, "{error}"),
        }
        assert!(attempts < 20);
    };
    assert_eq!(delivered.records, 20_000);
    assert_eq!(stored(&context).await.len(), 20_000);
}

#[tokio::test]
async fn messages_wait_for_the_limiter_one_by_one_and_keep_their_order() {
    let server = Server::start("").await;
    let context = server.context("").await;
    context.create_stream(edge()).await.unwrap();
    let limited = |rate: u64| {
        let begun = tokio::time::Instant::now();
        let rate = crate::limiter::Rate { bytes: Some((rate, 500)), records: None };
        let limiter = Limiter::new(rate, Arc::new(move || begun.elapsed()));
        let mut builder = server.builder(|_, _| {});
        Arc::get_mut(&mut builder.shared).unwrap().limiter = Some(Arc::new(limiter));
        builder
    };
    let payloads = payloads(100);
    let builder = limited(50_000);
    let batch = sealed(&builder, &payloads);
    let mut sink = builder.build();
    let begun = tokio::time::Instant::now();
    let delivered = sink.deliver(&batch, 1).await.unwrap();
    let least = (delivered.bytes as f64 - 500.0) / 50_000.0;
    let took = begun.elapsed().as_secs_f64();
    println!("{} bytes at 50 000 B/s took {took:.2} s", delivered.bytes);
    assert!(took >= least, "{took} < {least}");
    assert!(sink.throttle().held().as_secs_f64() > 0.5 * least);
    assert_eq!(stored(&context).await, payloads);
}

#[tokio::test]
async fn a_silent_server_is_retryable_and_what_it_had_stored_is_recognised() {
    let server = Server::start("").await;
    let context = server.context("").await;
    context.create_stream(edge()).await.unwrap();
    let builder = server.builder(|_, retry| retry.attempt_timeout = Duration::from_secs(1));
    let mut sink = builder.build();
    sink.probe().await.unwrap();
    let payloads = payloads(40);
    let batch = sealed(&builder, &payloads);
    server.signal(Signal::STOP);
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert_eq!(error.class, Class::Retryable, "{error}");
    server.signal(Signal::CONT);
    let delivered = sink.deliver(&batch, 2).await.unwrap();
    assert_eq!((delivered.records, delivered.already), (40, 16));
    assert_eq!(stored(&context).await, payloads);
}

#[tokio::test]
async fn a_probe_says_of_a_stream_that_keeps_nothing_that_repeats_may_be_stored_twice() {
    use async_nats::jetstream::stream::{Config, RetentionPolicy};

    let server = Server::start("").await;
    let context = server.context("").await;
    let mut sink = server.builder(|_, _| {}).build();
    context.create_stream(edge()).await.unwrap();
    sink.probe().await.unwrap();
    assert_eq!(sink.doubts(), Vec::<String>::new());
    context.delete_stream("EDGE").await.unwrap();
    let queue = Config { retention: RetentionPolicy::WorkQueue, ..edge() };
    context.create_stream(queue).await.unwrap();
    sink.probe().await.unwrap();
    let doubts = sink.doubts();
    assert!(doubts.len() == 1 && doubts[0].contains("a repeat for 2m only"), "{doubts:?}");
}

#[tokio::test]
async fn a_missing_permission_and_missing_credentials_are_unreachable() {
    let users = "{user: a, password: a}, \
        {user: b, password: b, permissions: {publish: [\"other.>\"], subscribe: \">\"}}";
    let server =
        Server::start(&format!("authorization {{ users = [{users}] }}\nno_auth_user: b")).await;
    let context = server.context("a").await;
    context.create_stream(edge()).await.unwrap();
    let builder = server.builder(|_, _| {});
    let mut sink = builder.build();
    // It may not ask, but it is there: whether it takes messages, only a delivery can tell.
    sink.probe().await.unwrap();
    assert!(sink.doubts()[0].contains("may not ask about it"), "{:?}", sink.doubts());
    let error = sink.deliver(&sealed(&builder, &payloads(3)), 1).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    assert!(error.reason.to_lowercase().contains("permissions violation"), "{error}");
    let server = Server::start(&format!("authorization {{ users = [{users}] }}")).await;
    let builder = server.builder(|_, _| {});
    let error = builder.build().deliver(&sealed(&builder, &payloads(3)), 1).await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    let expected = "authorization violation: the server asks for credentials; set `credentials`";
    assert_eq!(error.reason, format!("not connected to NATS: {expected}"));
}

#[tokio::test]
async fn a_cut_off_attempt_is_gone_on_with() {
    let server = Server::start("").await;
    let context = server.context("").await;
    context.create_stream(edge()).await.unwrap();
    let builder = server.builder(|_, _| {});
    let payloads = payloads(5_000);
    let batch = sealed(&builder, &payloads);
    let mut sink = builder.build();
    let mut attempt = 0;
    let delivered = loop {
        attempt += 1;
        let limit = Duration::from_millis(20 * u64::from(attempt));
        if let Ok(result) = tokio::time::timeout(limit, sink.deliver(&batch, attempt)).await {
            break result.unwrap();
        }
    };
    assert!(attempt > 1);
    assert_eq!(delivered.records, 5_000);
    assert_eq!(stored(&context).await.len(), 5_000);
}
