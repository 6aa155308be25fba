//! Rates that are changed while records go out, as their receiver sees it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::operator::{append, done};
use super::support::agent::Home;
use super::support::http::{Server, status};
use super::support::reload::wait_adopted;
use super::support::{LONG, wait_for};

/// Bytes of one record on the wire: one a request.
const ITEM: usize = 1000;

fn config(port: u16, rate: &str, owner: &str, is_shared: bool) -> String {
    let (own, shared) = if is_shared {
        (
            "limiter = \"uplink\"".to_owned(),
            format!("[limiters.uplink]\n{}", rate.replace(", ", "\n")),
        )
    } else {
        (format!("rate = {{ {rate} }}"), String::new())
    };
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "{owner}"
        {shared}
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.cloud]
        type = "http"
        url = "http://127.0.0.1:{port}/"
        batch = {{ records_max = 1, linger = "1ms" }}
        {own}
        [pipelines.p]
        sources = ["in"]
        sinks = ["cloud"]
        "#
    )
}

/// When a rate began to be possible, and when it was the only one.
struct Phase {
    rate: f64,
    burst: f64,
    from: Instant,
    to: Instant,
}

/// The most that may arrive in a window: the highest rate that may be in force at each moment.
fn allowed(phases: &[Phase], from: Instant, to: Instant) -> f64 {
    let mut edges: Vec<_> = phases.iter().flat_map(|phase| [phase.from, phase.to]).collect();
    edges.extend([from, to]);
    edges.retain(|at| (from..=to).contains(at));
    edges.sort();
    let parts = edges.windows(2).map(|edge| {
        let during = phases.iter().filter(|phase| phase.from <= edge[0] && phase.to >= edge[1]);
        let rate = during.map(|phase| phase.rate).fold(0.0, f64::max);
        rate * (edge[1] - edge[0]).as_secs_f64()
    });
    let burst = phases.iter().map(|phase| phase.burst).fold(0.0, f64::max);
    parts.sum::<f64>() + burst
}

/// `rates` in bytes a second, one after the other; a waiter is stuck behind the first for longer than the test lasts.
fn change_under_flow(is_shared: bool) {
    let arrived: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let seen = Arc::clone(&arrived);
    let server = Server::start(move |_| {
        seen.lock().unwrap().push(Instant::now());
        status(200)
    });
    let text = |rate: u64, burst: u64, owner: &str| {
        let rate = format!("bytes_per_second = \"{rate}B\", burst = \"{burst}B\"");
        config(server.port, &rate, owner, is_shared)
    };
    let rates = [(1, 2_000), (20_000, 2_000), (100_000, 5_000), (10_000, 1_000), (60_000, 20_000)];
    let home = Home::new(&text(rates[0].0, rates[0].1, "v0"));
    append(&home, (0..600).map(|n| format!("{n:0width$}", width = ITEM - 1)));
    let mut agent = home.start(&["run"]);
    let begun = Instant::now();
    wait_for("records that wait", LONG, || {
        home.status().filter(|status| status["lanes"][0]["queued"] == 600)
    });
    let mut phases = Vec::new();
    let mut from = begun;
    let delivered = || arrived.lock().unwrap().len();
    assert_eq!(delivered(), 0, "a byte a second lets none through");
    for (number, (rate, burst)) in rates.into_iter().enumerate().skip(1) {
        let before = rates[number - 1];
        let owner = format!("v{number}");
        let changing = Instant::now();
        home.configure(&text(rate, burst, &owner));
        done(&home, &["reload"]);
        wait_adopted(&home, &owner);
        phases.push(Phase {
            rate: before.0 as f64,
            burst: before.1 as f64,
            from,
            to: Instant::now(),
        });
        from = changing;
        // Each is in force for a while; the last until everything is there.
        let until = if number == rates.len() - 1 { 600 } else { delivered() + 50 };
        wait_for("more records", LONG, || (delivered() >= until).then_some(()));
    }
    let last = rates[rates.len() - 1];
    phases.push(Phase { rate: last.0 as f64, burst: last.1 as f64, from, to: Instant::now() });
    let arrived = arrived.lock().unwrap().clone();
    let mut worst: f64 = 0.0;
    for first in 0..arrived.len() {
        for last in first..arrived.len() {
            let came = ((last - first) * ITEM) as f64;
            // The first of them may have waited on its way.
            let may = allowed(&phases, arrived[first], arrived[last]) + ITEM as f64;
            worst = worst.max(came / may);
            assert!(came <= may * 1.02, "{came} bytes in records {first} to {last}, at most {may}");
        }
    }
    eprintln!(
        "{} records over {} rates, at most {worst:.3} of what may be",
        arrived.len(),
        rates.len()
    );
    // The last acks ride with the next commit.
    wait_for("the acks", LONG, || {
        let lane = home.status()?["lanes"][0].clone();
        (lane["delivered"] == 600 && lane["queued"] == 0).then_some(())
    });
    // The lane went on all the while: its connection is the one that it began with.
    assert_eq!(server.connections(), 1);
    assert!(!home.log().contains("changes a lane"), "{}", home.log());
    assert!(agent.stop().success());
    let mut bodies: Vec<_> = server.sent().into_iter().map(|sent| sent.body).collect();
    assert_eq!(bodies.len(), 600);
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), 600, "one came twice");
}

#[test]
fn a_sinks_rate_is_changed_live_and_its_receiver_never_sees_more_than_the_rates_allow() {
    change_under_flow(false);
}

#[test]
fn a_shared_limiter_is_changed_live_and_its_receiver_never_sees_more_than_the_rates_allow() {
    change_under_flow(true);
}
