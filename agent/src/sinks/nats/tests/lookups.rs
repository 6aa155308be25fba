//! Lost answers, cut connections and restarts, with the server behind a proxy that fails on purpose.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[path = "../../../../tests/it/support/proxy.rs"]
mod proxy;

use proxy::Proxy;

/// A note that outlives the sink.
#[derive(Debug, Default)]
struct Kept {
    note: Mutex<Option<Arc<str>>>,
    durably: Mutex<u32>,
    /// Set when the first note is kept, which is right before the first publish.
    then: Mutex<Option<Arc<AtomicBool>>>,
}

#[async_trait]
impl Memory for Kept {
    fn recall(&self) -> Option<Arc<str>> {
        self.note.lock().unwrap().clone()
    }

    async fn keep(
        &self,
        note: Arc<str>,
        durable: bool,
    ) -> Result<(), crate::record::batch::ReadError> {
        *self.note.lock().unwrap() = Some(note);
        *self.durably.lock().unwrap() += u32::from(durable);
        if let Some(flag) = self.then.lock().unwrap().take() {
            flag.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// A stream that forgets identities after a second, the proxy in front of it, and what a lane keeps.
struct Bench {
    server: Server,
    context: Context,
    proxy: Proxy,
    kept: Arc<Kept>,
}

impl Bench {
    async fn new(config: Config) -> Self {
        let server = Server::start("").await;
        let context = server.context("").await;
        context.create_stream(config).await.unwrap();
        let proxy = Proxy::start(server.port);
        Self { server, context, proxy, kept: Arc::default() }
    }

    fn builder(&self, change: impl FnOnce(&mut NatsSinkConfig)) -> NatsSinkBuilder {
        self.server.builder(|config, retry| {
            config.servers = vec![self.proxy.url()];
            retry.attempt_timeout = Duration::from_secs(1);
            change(config);
        })
    }

    /// A sink as after a start.
    fn sink(&self, builder: &NatsSinkBuilder) -> Box<dyn Sink> {
        let mut sink = builder.build();
        sink.remember(Arc::clone(&self.kept) as _);
        sink
    }

    /// Has a batch stored whose answers never come, and waits until the stream has forgotten its identities.
    async fn lose_answers(&self, sink: &mut dyn Sink, batch: &SealedBatch, stored: u64) {
        *self.kept.then.lock().unwrap() = Some(Arc::clone(&self.proxy.swallows));
        let attempt = sink.deliver(batch, 1);
        let swallowing = async { while self.messages().await < stored {} };
        let (result, ()) = tokio::join!(attempt, swallowing);
        let error = result.unwrap_err();
        assert!(matches!(error.class, Class::Retryable | Class::Unreachable), "{error}");
        self.proxy.down(true);
        self.proxy.swallow(false);
    }

    async fn messages(&self) -> u64 {
        let mut stream = self.context.get_stream("EDGE").await.unwrap();
        stream.info().await.unwrap().state.messages
    }

    async fn come_back(&self) {
        self.proxy.down(false);
    }
}

fn forgetful() -> Config {
    Config { duplicate_window: Duration::from_secs(1), ..edge() }
}

/// Longer than the stream remembers, by the server's clock.
async fn forget() {
    tokio::time::sleep(Duration::from_millis(2500)).await;
}

/// Delivers as a lane does: again after each failure.
async fn deliver(sink: &mut dyn Sink, batch: &SealedBatch) -> Delivered {
    for attempt in 2..200 {
        match sink.deliver(batch, attempt).await {
            Ok(delivered) => return delivered,
            Err(error) => assert_ne!(error.class, Class::Rejected, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it is never delivered");
}

#[tokio::test]
async fn d_12_lost_answers_within_the_duplicate_window_are_recognised_by_the_stream() {
    let bench = Bench::new(edge()).await;
    let builder = bench.builder(|_| {});
    let payloads = payloads(10);
    let batch = sealed(&builder, &payloads);
    let mut sink = bench.sink(&builder);
    bench.lose_answers(&mut *sink, &batch, 10).await;
    bench.come_back().await;
    let delivered = deliver(&mut *sink, &batch).await;
    assert_eq!(delivered.records, 10);
    assert_eq!((delivered.resent, delivered.refused.len()), (0, 0));
    assert!(delivered.already > 0);
    assert_eq!(stored(&bench.context).await, payloads);
}

#[tokio::test]
async fn d_12_lost_answers_behind_the_duplicate_window_are_looked_up_and_nothing_is_stored_twice() {
    let bench = Bench::new(forgetful()).await;
    // What stood there before is not ours.
    for number in 0..7 {
        bench.context.publish(format!("edge.other.{number}"), "x".into()).await.unwrap();
    }
    let builder = bench.builder(|_| {});
    let payloads = payloads(40);
    let batch = sealed(&builder, &payloads);
    let mut sink = bench.sink(&builder);
    // The first window of 16 is stored.
    bench.lose_answers(&mut *sink, &batch, 7 + 16).await;
    assert_eq!(*bench.kept.durably.lock().unwrap(), 1);
    forget().await;
    bench.come_back().await;
    let delivered = deliver(&mut *sink, &batch).await;
    println!("{} of {} records were found by the lookup", delivered.already, delivered.records);
    assert_eq!((delivered.records, delivered.resent), (40, 0));
    assert!(delivered.already > 0);
    assert_eq!(stored(&bench.context).await[7..], payloads);
}

#[tokio::test]
async fn d_12_after_a_restart_what_an_earlier_run_has_sent_is_looked_up() {
    let bench = Bench::new(forgetful()).await;
    let builder = bench.builder(|_| {});
    let payloads = payloads(40);
    let mut batch = sealed(&builder, &payloads);
    {
        let mut sink = bench.sink(&builder);
        bench.lose_answers(&mut *sink, &batch, 16).await;
    }
    forget().await;
    bench.come_back().await;
    batch.earlier = true;
    let builder = bench.builder(|_| {});
    let mut sink = bench.sink(&builder);
    let delivered = deliver(&mut *sink, &batch).await;
    assert_eq!((delivered.records, delivered.already, delivered.resent), (40, 16, 0));
    assert_eq!(stored(&bench.context).await, payloads);
}

#[tokio::test]
async fn what_was_given_up_is_looked_for_from_where_the_mark_was_then() {
    let bench = Bench::new(forgetful()).await;
    // The mark follows each batch.
    let builder = bench.builder(|config| config.lookup_max = 10);
    let mut sink = bench.sink(&builder);
    let first = sealed(&builder, &payloads(3));
    bench.lose_answers(&mut *sink, &first, 3).await;
    bench.come_back().await;
    let noted = bench.kept.recall();
    // It is given up, and the lane goes on behind it.
    let mut sink = bench.sink(&builder);
    let other = |number| {
        let mut facts = facts(number, 2);
        (facts.first_seq.0, facts.last_seq.0) = (100 * number, 100 * number + 1);
        batch(&builder, facts, &[b"x", b"y"])
    };
    for number in 2..4 {
        assert_eq!(deliver(&mut *sink, &other(number)).await.records, 2);
    }
    assert_ne!(bench.kept.recall(), noted, "the mark has moved on");
    forget().await;
    let before = bench.messages().await;
    // Its records go out again, in a batch of another name.
    let mut replay = first.clone();
    replay.facts.suffix = "/r1".into();
    (replay.earlier, replay.note) = (true, noted);
    let delivered = deliver(&mut *bench.sink(&builder), &replay).await;
    assert_eq!((delivered.records, delivered.already), (3, 3));
    assert_eq!(bench.messages().await, before, "nothing is stored twice");
}

#[tokio::test]
async fn what_cannot_be_looked_up_is_resent_and_counted_or_holds() {
    for (on_unknown, config, lookup_max, expected) in [
        (OnUnknown::Resend, forgetful(), 15, "16 messages to look at"),
        (OnUnknown::Hold, forgetful(), 15, "16 messages to look at"),
        (
            OnUnknown::Hold,
            Config {
                retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
                ..forgetful()
            },
            100,
            "does not keep what was read",
        ),
    ] {
        let bench = Bench::new(config).await;
        let change = |config: &mut NatsSinkConfig| {
            (config.on_unknown, config.lookup_max) = (on_unknown, lookup_max);
        };
        let builder = bench.builder(change);
        let payloads = payloads(16);
        let mut batch = sealed(&builder, &payloads);
        {
            let mut sink = bench.sink(&builder);
            bench.lose_answers(&mut *sink, &batch, 16).await;
        }
        forget().await;
        bench.come_back().await;
        batch.earlier = true;
        let builder = bench.builder(change);
        let mut sink = bench.sink(&builder);
        if on_unknown == OnUnknown::Resend {
            let delivered = deliver(&mut *sink, &batch).await;
            assert_eq!((delivered.records, delivered.resent, delivered.already), (16, 16, 0));
            assert_eq!(bench.messages().await, 32);
            continue;
        }
        let mut error = sink.deliver(&batch, 1).await.unwrap_err();
        for _ in 0..100 {
            if error.reason.contains(expected) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            error = sink.deliver(&batch, 1).await.unwrap_err();
        }
        assert_eq!(error.class, Class::Unreachable);
        assert!(error.reason.contains(expected), "{error}");
        assert_eq!(bench.messages().await, 16);
    }
}

#[tokio::test]
async fn another_stream_of_the_name_is_not_looked_into_and_a_fresh_batch_needs_no_lookup() {
    let bench = Bench::new(forgetful()).await;
    let builder = bench.builder(|config| config.on_unknown = OnUnknown::Hold);
    let mut batch = sealed(&builder, &payloads(3));
    let mut sink = bench.sink(&builder);
    assert_eq!(deliver(&mut *sink, &batch).await.records, 3);
    bench.context.delete_stream("EDGE").await.unwrap();
    bench.context.create_stream(forgetful()).await.unwrap();
    let builder = bench.builder(|config| config.on_unknown = OnUnknown::Hold);
    let mut sink = bench.sink(&builder);
    batch.earlier = true;
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert!(error.reason.contains("is not the one that was published to"), "{error}");
    let mut fresh = sealed(&builder, &payloads(3));
    fresh.facts.number.0 += 1;
    assert_eq!(deliver(&mut *sink, &fresh).await.resent, 0);
    // From here on a lookup begins in the new one.
    assert_eq!(*bench.kept.durably.lock().unwrap(), 2);
}

#[tokio::test]
async fn what_was_never_sent_is_not_looked_for() {
    let bench = Bench::new(forgetful()).await;
    let builder = bench.builder(|config| {
        config.on_unknown = OnUnknown::Hold;
        config.stream = None;
    });
    let mut batch = sealed(&builder, &payloads(3));
    batch.earlier = true;
    // Without a note there was no publish, however old the batch is.
    let mut sink = bench.sink(&builder);
    assert_eq!(deliver(&mut *sink, &batch).await.records, 3);
    // Now there is one, and a stream without a name cannot be asked.
    let mut sink = bench.sink(&builder);
    let error = sink.deliver(&batch, 1).await.unwrap_err();
    assert!(error.reason.contains("name it in `stream`"), "{error}");
}
