//! When records happened and when they were taken, as a destination sees it.

use super::support::agent::Home;
use super::support::arrivals::{arrived, header, home_with, payload, wait_arrived, wait_state};
use super::support::nats::Server;

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// Seconds since the boot, by the header of a record.
fn up(home: &Home, index: usize) -> f64 {
    let records = arrived(home);
    let clock = header(&records[index], "waystation-clock").unwrap().to_owned();
    clock.rsplit_once("up=").unwrap().1.parse().unwrap()
}

#[test]
fn d_30_records_say_when_they_happened_and_how_far_the_hosts_clock_is_to_be_trusted() {
    let source = "[sources.in]\ntype = \"file\"\npaths = [\"{dir}/in\"]\nstamp = true\n\
        time_from = { field = \"meta.t\" }";
    let home = home_with(source, "\"in\"", "");
    let lines = [
        r#"{"meta":{"t":"2026-01-02T04:04:05.678+01:00"}}"#,
        r#"{"n":1,"meta":{"t":1767323045678}}"#,
        r#"{"meta":{"t":10}}"#,
        r#"{"meta":{"t":"soon"}}"#,
        "no JSON",
    ];
    std::fs::write(home.path("in"), lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let begun = jiff::Timestamp::now();
    home.run_once();
    let ended = jiff::Timestamp::now();
    let records = arrived(&home);
    assert_eq!(records.len(), lines.len(), "each record is kept");
    let time = |index: usize| -> jiff::Timestamp {
        records[index]["time"].as_str().unwrap().parse().unwrap()
    };
    for index in 0..2 {
        assert_eq!(time(index).as_millisecond(), 1_767_323_045_678);
    }
    assert_eq!(time(2).as_second(), 10);
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(payload(&records[index]), *line);
        let accepted = header(&records[index], "waystation-accepted").unwrap();
        let accepted: jiff::Timestamp = accepted.parse().unwrap();
        assert!(begun <= accepted && accepted <= ended, "{begun} {accepted} {ended}");
        if index >= 3 {
            assert!(begun <= time(index) && time(index) <= ended, "{}", time(index));
        }
        let clock = header(&records[index], "waystation-clock").unwrap();
        let (quality, rest) = clock.split_once(' ').unwrap();
        assert!(["synced", "unsynced", "unknown"].contains(&quality), "{clock}");
        assert!(rest.starts_with(&format!("boot={} up=", boot_id())), "{clock}");
    }
    assert!(up(&home, 0) <= up(&home, 4) && up(&home, 0) > 0.0);
    println!("{}", header(&records[0], "waystation-clock").unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_says_when_a_message_happened_and_one_without_is_counted() {
    let server = Server::start();
    let source = format!(
        "[sources.in]\ntype = \"nats\"\nservers = [\"{}\"]\nsubjects = [\"a\"]\n\
         time_from = {{ header = \"When\" }}",
        server.url()
    );
    let home = home_with(&source, "\"in\"", "");
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    let client = async_nats::connect(server.url()).await.unwrap();
    for when in [Some("1767323045.678"), None] {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("x", "y");
        if let Some(when) = when {
            headers.insert("when", when);
        }
        client.publish_with_headers("a", headers, "m".into()).await.unwrap();
    }
    client.flush().await.unwrap();
    let records = wait_arrived(&home, 2);
    let status = wait_state(&home, "running");
    assert!(agent.stop().success());
    assert_eq!(records[0]["time"], "2026-01-02T03:04:05.678000000Z");
    assert_ne!(records[1]["time"], records[0]["time"]);
    assert_eq!(header(&records[0], "waystation-clock"), None, "nobody has asked for it");
    assert_eq!(status["times_missing"], 1);
    assert_eq!(home.log().matches("Records have no time").count(), 1);
}
