//! The MQTT source against a real mosquitto: what it answered is in the journal, and what it did not comes again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rumqttc::v5::mqttbytes::v5::PublishProperties;
use rumqttc::{Event, Packet, QoS};
use rustix::process::Signal;
use serde_json::Value;

use super::support::agent::{Agent, Home};
use super::support::arrivals::{
    arrived, header, home_with, payload, the_source, wait_arrived, wait_failed, wait_state,
};
use super::support::certificates::{Authority, replace};
use super::support::mqtt::{Broker, free_port};
use super::support::{LONG, seed, size, wait_for};

/// Both versions of the protocol.
const VERSIONS: [&str; 2] = ["3.1.1", "5"];
/// Who reads from a broker in these tests.
const CLIENT: &str = "waystation-gw-in";

fn source(url: &str, keys: &str) -> String {
    format!("[sources.in]\ntype = \"mqtt\"\nurl = \"{url}\"\n{keys}\n")
}

fn home(url: &str, keys: &str) -> Home {
    home_with(&source(url, keys), "\"in\"", "")
}

/// How often each number has arrived, and that only a message that came again is there twice.
fn assert_repeats_are_marked(records: &[Value]) -> BTreeMap<u64, usize> {
    let mut counts = BTreeMap::new();
    let mut unmarked = BTreeSet::new();
    for record in records {
        let number: u64 = payload(record).parse().unwrap();
        *counts.entry(number).or_insert(0) += 1;
        if header(record, "waystation-redelivered").is_none() {
            assert!(unmarked.insert(number), "{number} is there twice as a new message");
        }
    }
    counts
}

/// The broker is killed and forgets everything; the source must hear what is published after that.
#[test]
fn d_24_a_broker_that_has_forgotten_the_session_is_subscribed_to_again_each_time() {
    let kills = size("WAYSTATION_TEST_BROKER_KILLS", 20);
    for (version, kills) in VERSIONS.into_iter().zip([kills, kills.div_ceil(4)]) {
        let mut broker = Broker::start();
        let keys = format!("topics = [\"t/#\"]\nversion = \"{version}\"");
        let home = home(&broker.url(), &keys);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        for kill in 1..=kills {
            let (directory, port) = broker.kill();
            broker = Broker::start_in(directory, port, "allow_anonymous true\npersistence false\n");
            wait_for("the session", LONG, || {
                let source = the_source(&home)?;
                (source["sessions_lost"] == kill && source["state"] == "running").then_some(())
            });
            broker.publish("t/x", (0..10).map(|n| format!("{}", kill * 10 + n)));
            wait_arrived(&home, kill * 10);
        }
        assert!(agent.stop().success());
        let records = arrived(&home);
        let numbers: BTreeSet<u64> = records.iter().map(|r| payload(r).parse().unwrap()).collect();
        eprintln!("{version}: {kills} kills, {} of {} arrived", numbers.len(), kills * 10);
        assert_eq!((numbers.len(), records.len()), (kills * 10, kills * 10));
        let warned = home.log().matches("The broker has lost the session").count();
        assert_eq!(warned, kills, "one warning for each lost session");
    }
}

/// mosquitto refuses subscriptions by its plugin alone.
fn with_permissions(directory: &tempfile::TempDir, filter: &str) -> Option<String> {
    let libraries = std::path::Path::new("/usr/lib").read_dir().unwrap();
    let plugin = libraries
        .map(|entry| entry.unwrap().path().join("mosquitto_dynamic_security.so"))
        .find(|path| path.exists())?;
    let permissions = serde_json::json!({
        "defaultACLAccess": {
            "publishClientSend": true, "publishClientReceive": true, "subscribe": false, "unsubscribe": true
        },
        "clients": [],
        "groups": [{ "groupname": "all", "roles": [{ "rolename": "r" }], "clients": [] }],
        "roles": [{ "rolename": "r", "acls": [
            { "acltype": "subscribePattern", "topic": filter, "priority": 0, "allow": true }
        ] }],
        "anonymousGroup": "all"
    });
    std::fs::write(directory.path().join("permissions.json"), permissions.to_string()).unwrap();
    Some(format!(
        "allow_anonymous true\nplugin {}\nplugin_opt_config_file {{dir}}/permissions.json\n",
        plugin.display()
    ))
}

#[test]
fn d_24_a_refused_subscription_is_a_failure_until_the_broker_allows_it() {
    for version in VERSIONS {
        let directory = tempfile::tempdir().unwrap();
        let Some(config) = with_permissions(&directory, "good/#") else {
            panic!("mosquitto's plugin for permissions is missing");
        };
        let port = free_port();
        let broker = Broker::start_in(directory, port, &config);
        let keys = format!("topics = [\"good/#\", \"bad/#\"]\nversion = \"{version}\"");
        let home = home(&broker.url(), &keys);
        let mut agent = home.start(&["run"]);
        let reason = wait_failed(&home, "refuses the subscription to \"bad/#\"");
        eprintln!("{version}: {reason}");
        std::thread::sleep(Duration::from_secs(1));
        let status = home.status().unwrap();
        assert_eq!(status["sources"][0]["state"], "failed", "{status}");
        assert!(status["not_ready"].to_string().contains("bad/#"), "{}", status["not_ready"]);
        let tries = broker.connections(CLIENT);
        assert!(tries <= 20, "{tries} tries in about a second");
        let (directory, port) = broker.kill();
        let config = with_permissions(&directory, "#").unwrap();
        let broker = Broker::start_in(directory, port, &config);
        wait_state(&home, "running");
        broker.publish("bad/x", ["1".to_owned()].into_iter());
        wait_arrived(&home, 1);
        assert!(agent.stop().success());
    }
}

/// Each throws the other out, so that both must wait longer and longer, and say why.
#[test]
fn d_24_two_agents_with_one_client_id_say_so_and_do_not_spin() {
    for version in VERSIONS {
        let broker = Broker::start();
        let keys = format!("topics = [\"t/#\"]\nversion = \"{version}\"\nclient_id = \"the-same\"");
        let homes = [home(&broker.url(), &keys), home(&broker.url(), &keys)];
        let mut agents: Vec<Agent> = homes.iter().map(|home| home.start(&["run"])).collect();
        let stop = Arc::new(AtomicBool::new(false));
        // Records that come in meanwhile must not make each try a first one.
        let (producer, mut connection) = broker.producer();
        let events = std::thread::spawn(move || {
            for event in connection.iter() {
                if event.is_err() {
                    break;
                }
            }
        });
        let load = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                for number in 0..u64::MAX {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    producer.publish("t/x", QoS::AtLeastOnce, false, number.to_string()).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
                producer.disconnect().unwrap();
            }
        });
        // By 3.1.1 a broker has no words for it, and by 5 they may be lost with the connection.
        let words = "another client took over the client id \"the-same\"";
        let told = wait_for("the reason", LONG, || {
            homes.iter().find_map(|home| {
                let reason = the_source(home)?["trouble"]["reason"].as_str()?.to_owned();
                reason.contains(words).then_some(reason)
            })
        });
        let before = broker.connections("the-same");
        std::thread::sleep(Duration::from_secs(4));
        let tries = broker.connections("the-same") - before;
        eprintln!(
            "{version}: {before} connections until it was told, {tries} in the next 4 s: {told}"
        );
        assert!(before <= 40 && tries <= 40, "{before}, then {tries}");
        stop.store(true, Ordering::SeqCst);
        load.join().unwrap();
        events.join().unwrap();
        // The one that is left is well.
        agents[0].kill();
        wait_state(&homes[1], "running");
        agents[1].kill();
    }
}

/// What was read and handed to the journal, which waits for its next commit, is not answered.
#[test]
fn d_24_an_agent_killed_with_50_unanswered_messages_gets_them_again() {
    for (version, qos) in VERSIONS.into_iter().zip([1, 2]) {
        let broker = Broker::start_with("allow_anonymous true\nmax_inflight_messages 0\n");
        let keys = format!("topics = [\"t/#\"]\nversion = \"{version}\"\nqos = {qos}");
        let sources = source(&broker.url(), &keys);
        let slow = "[journal]\ncommit_interval = \"5s\"\n";
        let home = home_with(&sources, "\"in\"", slow);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        let sent = if qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        broker.publish_as(sent, false, "t/x", (0..50).map(|n| n.to_string()));
        let deliveries = || broker.log().matches("Sending PUBLISH to waystation-gw-in").count();
        wait_for("the deliveries", LONG, || (deliveries() >= 50).then_some(()));
        std::thread::sleep(Duration::from_millis(500));
        agent.kill();
        let unanswered = broker.log();
        let answered = unanswered.matches("Received PUBACK from waystation-gw-in").count()
            + unanswered.matches("Received PUBREC from waystation-gw-in").count();
        assert_eq!(answered, 0, "nothing was durable yet");
        home.configure(&std::fs::read_to_string(home.config()).unwrap().replace("5s", "0ms"));
        let mut agent = home.start(&["run"]);
        let records = wait_arrived(&home, 50);
        assert!(agent.stop().success());
        let counts = assert_repeats_are_marked(&records);
        assert_eq!(counts.len(), 50);
        let again = records.iter().filter(|r| header(r, "waystation-redelivered").is_some());
        let again = again.count();
        eprintln!("{version}, QoS {qos}: {} records of 50, {again} came again", records.len());
        assert!(counts.values().all(|count| *count == 1) && again == 50);
    }
}

/// All that the broker has answered to the producer is there. A message of QoS 1 may be there twice when it came again, one
/// of QoS 2 never.
#[test]
fn nothing_that_the_broker_has_taken_is_missing_after_sigkill_under_load() {
    let kills = size("WAYSTATION_TEST_MQTT_KILLS", 20);
    let mut random = fastrand::Rng::with_seed(seed());
    for (version, qos, kills) in [("3.1.1", 1, kills), ("5", 1, kills / 2), ("5", 2, kills)] {
        let broker = Broker::start();
        let keys = format!("topics = [\"t/#\"]\nversion = \"{version}\"\nqos = {qos}");
        let home = home(&broker.url(), &keys);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        let stop = Arc::new(AtomicBool::new(false));
        let (producer, mut connection) = broker.producer();
        let load = std::thread::spawn({
            let stop = Arc::clone(&stop);
            let sent = if qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            move || {
                let mut count = 0;
                while !stop.load(Ordering::SeqCst) {
                    producer.publish("t/x", sent, false, format!("{count}")).unwrap();
                    count += 1;
                    std::thread::sleep(Duration::from_micros(500));
                }
                (producer, count)
            }
        });
        let answers = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut answered: u64 = 0;
                loop {
                    match connection.recv_timeout(Duration::from_millis(500)) {
                        Ok(Ok(Event::Incoming(Packet::PubAck(_) | Packet::PubComp(_)))) => {
                            answered += 1;
                        }
                        Ok(event) => drop(event.unwrap()),
                        Err(_) if stop.load(Ordering::SeqCst) => return answered,
                        Err(_) => {}
                    }
                }
            }
        });
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(random.u64(50..300)));
            agent.kill();
            agent = home.start(&["run"]);
        }
        stop.store(true, Ordering::SeqCst);
        let (_producer, sent) = load.join().unwrap();
        let answered = answers.join().unwrap();
        assert_eq!(answered, sent, "the broker has answered all of it");
        let records = wait_for("all messages", LONG, || {
            let records = arrived(&home);
            let numbers: BTreeSet<_> = records.iter().map(|r| payload(r).to_owned()).collect();
            (numbers.len() as u64 >= sent).then_some(records)
        });
        assert!(agent.stop().success());
        let counts = assert_repeats_are_marked(&records);
        let repeats = records.len() - counts.len();
        let again = broker.log().matches("Sending PUBLISH to waystation-gw-in (d1,").count();
        eprintln!(
            "{version}, QoS {qos}: {kills} kills, {sent} taken by the broker, {again} sent again by it, {repeats} stored twice"
        );
        assert_eq!(counts.len() as u64, sent);
        assert!(repeats <= if qos == 2 { 0 } else { again }, "{repeats} repeats");
    }
}

#[test]
fn every_qos_arrives_by_both_versions_with_topic_flags_and_properties() {
    let broker = Broker::start();
    let kept = |topic: &str| {
        broker.publish_as(QoS::AtLeastOnce, true, topic, ["kept".to_owned()].into_iter());
    };
    kept("plant/1.5//temp");
    let mut sources = String::new();
    let mut names = Vec::new();
    for (index, version) in VERSIONS.into_iter().enumerate() {
        for qos in 0..=2 {
            let name = format!("v{index}q{qos}");
            let url = broker.url();
            sources += &format!(
                "[sources.{name}]\ntype = \"mqtt\"\nurl = \"{url}\"\ntopics = [\"load/+/x\", \"plant/#\"]\nqos = {qos}\n\
                 version = \"{version}\"\nsubject = \"{{source}}.{{topic}}\"\nrecord_bytes_max = \"20B\"\n\
                 on_oversize = \"truncate\"\n"
            );
            names.push(name);
        }
    }
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let home = home_with(&sources, &quoted.join(", "), "");
    let mut agent = home.start(&["run"]);
    wait_for("all sources", LONG, || {
        let status = home.status()?;
        let sources = status["sources"].as_array()?.clone();
        sources.iter().all(|source| source["state"] == "running").then_some(())
    });
    for (qos, topic) in [
        (QoS::AtMostOnce, "load/0/x"),
        (QoS::AtLeastOnce, "load/1/x"),
        (QoS::ExactlyOnce, "load/2/x"),
    ] {
        broker.publish_as(qos, false, topic, (0..100).map(|n| n.to_string()));
    }
    let properties = PublishProperties {
        content_type: Some("text/plain".to_owned()),
        response_topic: Some("answers/here".to_owned()),
        user_properties: vec![("unit".to_owned(), "°C".to_owned())],
        ..PublishProperties::default()
    };
    broker.publish_five("plant/long", &"x".repeat(21), properties);
    // 300 messages, the kept one and the long one, for each of six sources.
    let records = wait_arrived(&home, 6 * 302);
    assert!(agent.stop().success());
    assert_eq!(records.len(), 6 * 302);
    assert_all_qos(&names, &records);
}

/// What each of the sources, three by 3.1.1 and three by 5, has made of the same messages.
fn assert_all_qos(names: &[String], records: &[Value]) {
    for (index, name) in names.iter().enumerate() {
        let of = |subject: &str| -> Vec<&Value> {
            let subject = format!("{name}.{subject}");
            records.iter().filter(|record| record["subject"] == subject.as_str()).collect()
        };
        for qos in 0..=2 {
            let found: BTreeSet<u64> = of(&format!("load.{qos}.x"))
                .iter()
                .map(|record| payload(record).parse().unwrap())
                .collect();
            assert_eq!(found, (0..100).collect(), "{name}, sent with QoS {qos}");
        }
        let kept = of("plant.1_5._.temp");
        assert_eq!(kept.len(), 1, "{name}");
        assert_eq!(header(kept[0], "waystation-retained"), Some("true"));
        assert_eq!(header(kept[0], "waystation-topic"), Some("plant/1.5//temp"));
        let long = of("plant.long");
        assert_eq!((payload(long[0]).len(), header(long[0], "waystation-size")), (20, Some("21")));
        assert_eq!(header(long[0], "waystation-topic"), None);
        let of_five = if index < 3 {
            [None; 3]
        } else {
            [Some("text/plain"), Some("answers/here"), Some("°C")]
        };
        let names = ["waystation-content-type", "waystation-response-topic", "unit"];
        assert_eq!(names.map(|name| header(long[0], name)), of_five);
    }
}

#[test]
fn agents_of_one_group_share_the_messages_of_a_shared_subscription() {
    let broker = Broker::start();
    let homes = ["one", "two"].map(|id| {
        let keys =
            format!("topics = [\"$share/agents/t/#\"]\nversion = \"5\"\nclient_id = \"{id}\"");
        home(&broker.url(), &keys)
    });
    let mut agents = homes.each_ref().map(|home| home.start(&["run"]));
    for home in &homes {
        wait_state(home, "running");
    }
    broker.publish("t/x", (0..200).map(|n| n.to_string()));
    let counts = wait_for("all messages", LONG, || {
        let counts = homes.each_ref().map(|home| arrived(home).len());
        (counts.iter().sum::<usize>() >= 200).then_some(counts)
    });
    for agent in &mut agents {
        assert!(agent.stop().success());
    }
    eprintln!("{counts:?} of 200");
    assert!(counts.iter().all(|count| *count > 0));
    let mut all: Vec<u64> = Vec::new();
    for home in &homes {
        all.extend(arrived(home).iter().map(|record| payload(record).parse::<u64>().unwrap()));
    }
    all.sort_unstable();
    assert_eq!(all, (0..200).collect::<Vec<_>>());
}

/// A reload goes over to other topics in the same session, which must forget the old ones.
#[test]
fn topics_that_are_not_in_the_config_any_more_are_left_in_a_session_that_stays() {
    let broker = Broker::start();
    let config =
        |topics: &str| source(&broker.url(), &format!("topics = [{topics}]\nversion = \"5\""));
    let home = home_with(&config("\"old/#\", \"both/#\""), "\"in\"", "");
    let mut agent = home.start(&["run"]);
    wait_state(&home, "running");
    broker.publish("old/x", ["1".to_owned()].into_iter());
    wait_arrived(&home, 1);
    let text = std::fs::read_to_string(home.config()).unwrap();
    home.configure(&text.replace("\"old/#\", \"both/#\"", "\"both/#\", \"new/#\""));
    let reload = home.output(&["reload"]);
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    wait_for("the subscription", LONG, || {
        let is_subscribed = broker.log().contains("Received UNSUBSCRIBE from waystation-gw-in");
        (is_subscribed && the_source(&home)?["state"] == "running").then_some(())
    });
    for topic in ["old/x", "both/x", "new/x"] {
        broker.publish(topic, [topic.len().to_string()].into_iter());
    }
    let records = wait_arrived(&home, 3);
    std::thread::sleep(Duration::from_millis(300));
    assert!(agent.stop().success());
    let subjects: Vec<_> =
        arrived(&home).iter().map(|r| r["subject"].as_str().unwrap().to_owned()).collect();
    assert_eq!(records.len(), 3, "{subjects:?}");
    assert!(subjects.contains(&"both.x".to_owned()) && subjects.contains(&"new.x".to_owned()));
    assert!(!home.log().contains("The broker has lost the session"));
}

#[test]
fn tls_with_client_certificates_is_tried_again_with_the_files_as_they_are_then() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, stranger) = (Authority::new(), Authority::new());
    let server = authority.pair();
    let file =
        |name: &str, content: &str| std::fs::write(directory.path().join(name), content).unwrap();
    file("ca.pem", &authority.pem);
    file("server.pem", &server.certificate);
    file("server.key", &server.key);
    let port = free_port();
    let plain = free_port();
    let tls = format!(
        "allow_anonymous true\nlistener {port} 127.0.0.1\nallow_anonymous true\ncafile {{dir}}/ca.pem\n\
         certfile {{dir}}/server.pem\nkeyfile {{dir}}/server.key\nrequire_certificate true\n"
    );
    let broker = Broker::start_in(directory, plain, &tls);
    let url = format!("mqtts://127.0.0.1:{port}");
    let keys = "topics = [\"t/#\"]\nversion = \"5\"\n\
        tls = { ca = \"{dir}/ca.pem\", certificate = \"{dir}/client.pem\", key = \"{dir}/client.key\" }";
    let home = home(&url, keys);
    let wrong = stranger.pair();
    replace(&home.path("ca.pem"), &authority.pem);
    replace(&home.path("client.pem"), &wrong.certificate);
    replace(&home.path("client.key"), &wrong.key);
    let mut agent = home.start(&["run"]);
    let reason = wait_failed(&home, "127.0.0.1");
    eprintln!("a stranger: {reason}");
    let right = authority.pair();
    replace(&home.path("client.pem"), &right.certificate);
    replace(&home.path("client.key"), &right.key);
    wait_state(&home, "running");
    broker.publish("t/x", ["over TLS".to_owned()].into_iter());
    assert_eq!(payload(&wait_arrived(&home, 1)[0]), "over TLS");
    assert!(agent.stop().success());
}

#[test]
fn a_password_file_is_read_again_for_each_try_and_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let passwords = directory.path().join("passwords");
    let made = std::process::Command::new("mosquitto_passwd")
        .args(["-c", "-b"])
        .arg(&passwords)
        .args(["gw", "S3CR3T-right"])
        .status();
    assert!(made.unwrap().success());
    let port = free_port();
    let config = "allow_anonymous false\npassword_file {dir}/passwords\n";
    let broker = Broker::start_in(directory, port, config);
    for version in VERSIONS {
        let keys = format!(
            "topics = [\"t/#\"]\nversion = \"{version}\"\n\
             credentials = {{ username = \"gw\", password = {{ file = \"{{dir}}/password\" }} }}"
        );
        let home = home(&broker.url(), &keys);
        let mut agent = home.start(&["run"]);
        wait_failed(&home, "password cannot be read");
        replace(&home.path("password"), "S3CR3T-wrong\n");
        let reason = wait_failed(&home, "look at `credentials`");
        eprintln!("{version}: {reason}");
        replace(&home.path("password"), "S3CR3T-right\n");
        wait_state(&home, "running");
        let status = home.status().unwrap().to_string();
        assert!(agent.stop().success());
        assert!(!home.log().contains("S3CR3T") && !status.contains("S3CR3T"));
    }
}

/// The destination is away and the journal is small.
#[test]
fn a_full_journal_leaves_messages_at_the_broker_and_takes_them_when_there_is_room() {
    for on_full in ["block", "reject"] {
        let broker = Broker::start();
        let keys = "topics = [\"t/#\"]\nkeep_alive = \"1s\"";
        let more = format!(
            "root_must_exist = true\n[journal]\nmax_bytes = \"1MiB\"\non_full = \"{on_full}\""
        );
        let home = home_with(&source(&broker.url(), keys), "\"in\"", &more);
        let mut agent = home.start(&["run"]);
        wait_state(&home, "running");
        let count = 1500;
        // Nothing that compression makes small.
        let text = |n: u64| {
            let noise: String = (0..1000).map(|_| fastrand::alphanumeric()).collect();
            format!("{n} {noise}")
        };
        broker.publish("t/x", (0..count).map(text));
        wait_for("a full journal", LONG, || {
            home.status()?["not_ready"].to_string().contains("full").then_some(())
        });
        let connections = broker.connections(CLIENT);
        // Three times what the broker waits for a sign of life.
        std::thread::sleep(Duration::from_secs(4));
        let more = broker.connections(CLIENT) - connections;
        let taken = the_source(&home).unwrap()["records"].as_u64().unwrap();
        eprintln!("{on_full}: {taken} of {count} taken, {more} further connections in 4 s");
        assert!(taken < count);
        if on_full == "block" {
            assert_eq!(more, 0, "the connection stays");
        } else {
            assert!(more <= 20, "{more} connections in 4 s");
            wait_failed(&home, "full");
        }
        std::fs::create_dir_all(home.path("out")).unwrap();
        let records = wait_for("all messages", LONG, || {
            let records = arrived(&home);
            (distinct(&records) >= count).then_some(records)
        });
        assert!(agent.stop().success());
        let repeats = records.len() as u64 - count;
        eprintln!("{on_full}: {} records, {repeats} stored twice", records.len());
        assert!(on_full == "reject" || repeats == 0);
    }
}

fn distinct(records: &[Value]) -> u64 {
    let numbers: BTreeSet<_> =
        records.iter().map(|r| payload(r).split(' ').next().unwrap().to_owned()).collect();
    numbers.len() as u64
}

#[test]
fn once_is_refused_because_a_broker_has_no_end() {
    let home = home("mqtt://127.0.0.1:1", "topics = [\"t\"]");
    let output = home.output(&["run", "--once"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("never ends"), "{stderr}");
}

/// Until there is a connection the source does not count as running, and a stop does not wait for one.
#[test]
fn a_broker_that_is_not_there_is_said_so_and_does_not_keep_the_agent_from_stopping() {
    let port = free_port();
    let home = home(&format!("mqtt://127.0.0.1:{port}"), "topics = [\"t\"]");
    let mut agent = home.start(&["run"]);
    let reason = wait_failed(&home, "cannot connect to mqtt://127.0.0.1");
    eprintln!("{reason}");
    agent.signal(Signal::TERM);
    let begun = Instant::now();
    assert!(agent.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    // Somebody who takes connections and says nothing.
    let silent = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut agent = home.start(&["run"]);
    let taken = silent.accept().unwrap();
    assert_eq!(wait_state(&home, "connecting")["trouble"], Value::Null);
    assert!(agent.stop().success());
    drop(taken);
}
