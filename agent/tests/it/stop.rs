//! Stopping while nothing moves: destinations that never answer, and a batch that is not full.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::support::agent::{Home, files_below};
use super::support::{LONG, seed, size, wait_for};

/// A lane to a pipe that nobody reads, one to a server that never answers, one to a mount that is not there, and one whose
/// batch never fills.
fn config(nats: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        stop_grace = "500ms"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in/*"]
        [sinks.pipe]
        type = "stdout"
        batch = {{ linger = "1ms" }}
        [sinks.mount]
        type = "file"
        root = "{{dir}}/mount"
        root_must_exist = true
        batch = {{ linger = "1ms" }}
        retry = {{ backoff = "5ms", backoff_max = "50ms" }}
        [sinks.half]
        type = "file"
        root = "{{dir}}/half"
        batch = {{ records_max = 1_000_000, bytes_max = "1GiB", linger = "1h" }}
        {nats}
        [pipelines.p]
        sources = ["in"]
        sinks = ["pipe", "mount", "half"{}]
        "#,
        if nats.is_empty() { "" } else { ", \"cloud\"" }
    )
}

/// A server that takes connections and never says anything.
fn silent_server() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn lines(home: &Home, folder: &str) -> Vec<String> {
    let folder = home.path(folder);
    let files = files_below(&folder);
    let texts = files.iter().map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn d_28_a_stop_ends_in_time_while_nothing_moves_and_loses_nothing() {
    let stops = size("WAYSTATION_TEST_STOPS", 50);
    let mut random = fastrand::Rng::with_seed(seed());
    let server = silent_server();
    let port = server.local_addr().unwrap().port();
    let nats = format!(
        "[sinks.cloud]\ntype = \"nats\"\nservers = [\"nats://127.0.0.1:{port}\"]\nbatch = {{ linger = \"1ms\" }}"
    );
    let home = Home::new(&config(&nats));
    std::fs::create_dir_all(home.path("in")).unwrap();
    let mut written = Vec::new();
    let mut append = |count: usize| {
        let mut file =
            std::fs::File::options().append(true).create(true).open(home.path("in/a")).unwrap();
        for _ in 0..count {
            // Few of them fill a pipe.
            let line = format!("{:0100}", written.len());
            writeln!(file, "{line}").unwrap();
            written.push(line);
        }
    };
    append(1500);
    let mut longest = Duration::ZERO;
    for stop in 0..stops {
        append(37);
        let log = std::fs::File::create(home.path("agent.log")).unwrap();
        let mut child = home
            .command(&["run"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        wait_for("the start", LONG, || home.log().contains("Agent starts").then_some(()));
        std::thread::sleep(Duration::from_millis(random.u64(0..700)));
        let asked = Instant::now();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = wait_for("the end", LONG, || child.try_wait().unwrap());
        longest = longest.max(asked.elapsed());
        assert_eq!(status.code(), Some(0), "stop {stop}: {status}\n{}", home.log());
        assert!(!home.path("data/journal.db-wal").exists(), "stop {stop}: not checkpointed");
    }
    println!("{stops} stops, the longest took {longest:?} with a grace of 500 ms");
    // The grace and a second, and what a loaded machine adds.
    assert!(longest < Duration::from_secs(15), "{longest:?}");
    // Now everything moves: what was queued or half a batch is there once and in order.
    std::fs::create_dir(home.path("mount")).unwrap();
    home.configure(&config(""));
    let mut child = home
        .command(&["run", "--once"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(lines(&home, "half"), written);
    assert_eq!(lines(&home, "mount"), written);
    // A pipe recognises no repeat: what was under way at a stop may be printed again, and nothing is missing.
    let rest: Vec<_> = printed.lines().collect();
    assert_eq!(rest.last(), written.last().map(String::as_str).as_ref());
}

#[test]
fn a_second_signal_ends_a_stop_at_once_and_what_is_queued_stays() {
    let server = silent_server();
    let port = server.local_addr().unwrap().port();
    let nats = format!("[sinks.cloud]\ntype = \"nats\"\nservers = [\"nats://127.0.0.1:{port}\"]");
    let home = Home::new(&config(&nats).replace("500ms", "1h"));
    std::fs::create_dir_all(home.path("in")).unwrap();
    std::fs::write(home.path("in/a"), format!("{:0100}\n", 7).repeat(1500)).unwrap();
    let mut child = home
        .command(&["run"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(home.path("agent.log")).unwrap())
        .spawn()
        .unwrap();
    // The lane is stuck in a write once the pipe is full.
    wait_for("a full pipe", LONG, || {
        let held = rustix::io::ioctl_fionread(child.stdout.as_ref().unwrap()).unwrap();
        (held >= 64 * 1024).then_some(())
    });
    let pid = rustix::process::Pid::from_child(&child);
    let term = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    term();
    wait_for("the stop", LONG, || home.log().contains("Stopping").then_some(()));
    assert!(child.try_wait().unwrap().is_none(), "{}", home.log());
    // Signals right behind the first are one wish with it.
    let status = wait_for("the end", LONG, || {
        term();
        child.try_wait().unwrap()
    });
    assert_eq!(status.code(), Some(1), "{}", home.log());
    assert!(home.log().contains("Second signal"), "{}", home.log());
    std::fs::create_dir(home.path("mount")).unwrap();
    home.configure(&config(""));
    // The lane that is not stuck may have drained between the two signals.
    let delivered = home.run_once()["delivered"].as_u64().unwrap();
    assert!(delivered == 3 * 1500 || delivered == 2 * 1500, "{delivered}");
    assert_eq!((lines(&home, "half").len(), lines(&home, "mount").len()), (1500, 1500));
}
