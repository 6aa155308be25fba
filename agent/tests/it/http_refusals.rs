//! What an HTTP endpoint refuses goes to the dead letters, and only that.
//!
//! These need a lane that names refused records, cuts batches and writes dead letters.

use super::http::{FAST, bodies, home, seqs, seqs_by_first_arrival};
use super::support::http::{Sent, Server, answer, status};

fn holds(sent: &Sent, is_bad: impl Fn(u64) -> bool) -> bool {
    seqs(sent).into_iter().any(is_bad)
}

fn is_bad(seq: u64) -> bool {
    seq % 100 == 50
}

#[test]
fn d_13_a_permanent_refusal_costs_one_attempt_and_one_record() {
    for code in [400, 413, 422] {
        let server = Server::start(move |sent| {
            if holds(sent, is_bad) { answer(code, &[], "too old") } else { status(200) }
        });
        let keys = format!("{FAST}\nbatch = {{ records_max = 1 }}");
        let summary = home(&server.url("/in"), &keys, 1000).run_once();
        assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&990.into(), &10.into()));
        // Each came once, the good and the bad.
        assert_eq!(bodies(&server).len(), 1000);
        assert!(seqs_by_first_arrival(&server).into_iter().eq(0..1000));
    }
}

#[test]
fn d_13_a_batch_with_a_bad_record_is_cut_until_only_that_is_refused() {
    let server = Server::start(|sent| {
        if holds(sent, |seq| seq == 17) { answer(400, &[], "bad") } else { status(200) }
    });
    let keys = format!("{FAST}\nbatch = {{ records_max = 50 }}");
    let summary = home(&server.url("/in"), &keys, 50).run_once();
    assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&49.into(), &1.into()));
    let taken = bodies(&server).into_iter().filter(|sent| !holds(sent, |seq| seq == 17));
    let taken: Vec<u64> = taken.flat_map(|sent| seqs(&sent)).collect();
    assert!(taken.iter().copied().eq((0..50).filter(|seq| *seq != 17)), "{taken:?}");
    // No two contents under one key.
    assert!(server.by_key().values().all(|all| all.iter().all(|body| *body == all[0])));
}

#[test]
fn d_13_cut_batches_find_each_of_many_bad_records_in_at_most_20_requests() {
    const COUNT: u64 = 5000;
    let server =
        Server::start(
            |sent| {
                if holds(sent, is_bad) { answer(400, &[], "bad") } else { status(200) }
            },
        );
    let home = home(&server.url("/in"), FAST, COUNT);
    let summary = home.run_once();
    let counts = (&summary["delivered"], &summary["dead_lettered"]);
    assert_eq!(counts, (&4950.into(), &50.into()), "{summary}");
    let requests = bodies(&server);
    let taken = requests.iter().filter(|sent| !holds(sent, is_bad)).flat_map(seqs);
    assert!(taken.eq((0..COUNT).filter(|seq| !is_bad(*seq))));
    eprintln!("{} requests for 50 bad records among {COUNT}", requests.len());
    assert!(requests.len() <= 20 * 50, "{}", requests.len());
    let journal = rusqlite::Connection::open(home.path("data/journal.db")).unwrap();
    let mut letters = journal.prepare("SELECT payload FROM dead_letters ORDER BY id").unwrap();
    let payloads = letters.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    let seq = |payload: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&payload).unwrap();
    let found: Vec<u64> =
        payloads.map(|payload| seq(payload.unwrap())["seq"].as_u64().unwrap()).collect();
    assert!(found.iter().copied().eq((0..COUNT).filter(|seq| is_bad(*seq))), "{found:?}");
}

#[test]
fn d_13_a_record_that_always_fails_costs_its_budget_and_nobody_else() {
    let server = Server::start(|sent| status(if holds(sent, |seq| seq == 17) { 500 } else { 200 }));
    let keys = "retry = { backoff = \"10ms\", backoff_max = \"100ms\", budget = \"1s\" }\n\
                batch = { records_max = 50 }";
    let summary = home(&server.url("/in"), keys, 1000).run_once();
    assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&999.into(), &1.into()));
}

#[test]
fn what_does_not_fit_into_the_format_is_refused_by_name_in_one_request() {
    let server = Server::start(|_| status(200));
    let home = home(&server.url("/in"), "format = \"json\"", 0);
    std::fs::write(home.path("in"), "{\"seq\":0}\nno json\n{\"seq\":1}\n").unwrap();
    let summary = home.run_once();
    assert_eq!((&summary["delivered"], &summary["dead_lettered"]), (&2.into(), &1.into()));
    let sent = bodies(&server);
    assert_eq!(sent.len(), 1);
    let value: serde_json::Value = serde_json::from_slice(&sent[0].body).unwrap();
    assert_eq!(value, serde_json::json!([{"seq": 0}, {"seq": 1}]));
}
