//! Which pipeline takes a record, and which file it goes into.

use std::collections::BTreeMap;

use super::support::agent::{Home, files_below};
use super::support::{LONG, plugin, wait_for};

/// Lines of a source whose subject is made from the name of their file.
fn input(home: &Home, name: &str, lines: impl IntoIterator<Item = String>) {
    std::fs::create_dir_all(home.path("in")).unwrap();
    let text: String = lines.into_iter().map(|line| line + "\n").collect();
    std::fs::write(home.path("in").join(name), text).unwrap();
}

/// All lines below a folder, in the order of the files' names.
fn lines(home: &Home, folder: &str) -> Vec<String> {
    let folder = home.path(folder);
    let files = files_below(&folder);
    let texts = files.iter().map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn one_source_feeds_several_pipelines_and_each_takes_its_subjects() {
    let clean = plugin("clean");
    let home = Home::new(&format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in/*"]
        subject = "plant.{{file_stem}}.temperature"
        [transforms.clean]
        plugin = "{}"
        [sinks.hall]
        type = "file"
        root = "{{dir}}/hall"
        batch = {{ records_max = 7 }}
        [sinks.cleaned]
        type = "file"
        root = "{{dir}}/cleaned"
        batch = {{ records_max = 10 }}
        [sinks.rest]
        type = "file"
        root = "{{dir}}/rest"
        [sinks.all]
        type = "file"
        root = "{{dir}}/all"
        [pipelines.hall]
        sources = ["in"]
        subjects = ["plant.hall.*", "nothing.>"]
        sinks = ["hall"]
        [pipelines.cleaned]
        sources = ["in"]
        subjects = ["*.yard.>"]
        transforms = ["clean"]
        sinks = ["cleaned"]
        [pipelines.rest]
        sources = ["in"]
        subjects = ["other.>"]
        sinks = ["rest"]
        [pipelines.all]
        sources = ["in"]
        sinks = ["all"]
        "#,
        clean.display()
    ));
    let line = |place: &str, number: u32| {
        let status = if number.is_multiple_of(4) { "bad" } else { "ok" };
        format!(
            r#"{{"place":"{place}","n":{number},"status":"{status}","temperature_c":{number}}}"#
        )
    };
    for place in ["hall", "yard"] {
        input(&home, place, (0..40).map(|number| line(place, number)));
    }
    let summary = home.run_once();
    let lane = |pipeline: &str| {
        let lanes = summary["lanes"].as_array().unwrap();
        let name = format!("gw/in/{pipeline}/{pipeline}");
        lanes.iter().find(|lane| lane["name"] == name.as_str()).unwrap().clone()
    };
    let counts = |pipeline: &str| {
        ["delivered", "dropped", "queued"].map(|key| lane(pipeline)[key].as_u64().unwrap())
    };
    assert_eq!(counts("hall"), [40, 0, 0], "{summary}");
    assert_eq!(counts("cleaned"), [30, 10, 0], "{summary}");
    assert_eq!(counts("rest"), [0, 0, 0], "{summary}");
    assert_eq!(counts("all"), [80, 0, 0], "{summary}");
    assert_eq!(lines(&home, "hall"), (0..40).map(|n| line("hall", n)).collect::<Vec<_>>());
    let cleaned = lines(&home, "cleaned");
    assert_eq!(cleaned.len(), 30);
    assert!(cleaned.iter().all(|line| line.contains("yard")));
    assert_eq!(lines(&home, "all").len(), 80);
    assert!(files_below(&home.path("rest")).is_empty());
    let journal = rusqlite::Connection::open(home.path("data/journal.db")).unwrap();
    let totals = |pipeline: &str| -> (i64, i64) {
        let query =
            "SELECT not_taken, not_taken + delivered + dropped FROM lanes WHERE pipeline = ?1";
        journal.query_row(query, [pipeline], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
    };
    for (pipeline, not_taken) in [("hall", 40), ("cleaned", 40), ("rest", 80), ("all", 0)] {
        assert_eq!(totals(pipeline), (not_taken, 80), "{pipeline}");
    }
}

#[test]
fn a_batch_is_cut_where_it_would_have_more_than_a_hundred_files() {
    let home = Home::new(
        r#"
        [agent]
        id = "gw"
        data_dir = "{dir}/data"
        [sources.in]
        type = "file"
        paths = ["{dir}/in/*"]
        subject = "plant.{file_stem}"
        [sinks.out]
        type = "file"
        root = "{dir}/out"
        path = "{subject.2}/{epoch}-{batch}.ndjson"
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#,
    );
    for device in 0..250 {
        input(&home, &format!("d{device:03}.ndjson"), (0..4).map(|n| format!("{device} {n}")));
    }
    let summary = home.run_once();
    assert_eq!(summary["delivered"], 1000, "{summary}");
    let files = files_below(&home.path("out"));
    let mut batches: BTreeMap<String, usize> = BTreeMap::new();
    for file in &files {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        *batches.entry(name).or_default() += 1;
    }
    println!("files of each batch: {:?}", batches.values().collect::<Vec<_>>());
    assert!(batches.values().all(|count| *count <= 100), "{batches:?}");
    assert!(batches.len() >= 3 && files.len() >= 250, "{batches:?}");
    for device in 0..250 {
        let expected: Vec<_> = (0..4).map(|n| format!("{device} {n}")).collect();
        assert_eq!(lines(&home, &format!("out/d{device:03}")), expected);
    }
}

#[test]
fn a_limited_sink_takes_its_time_loses_nothing_and_tells_how_long_it_waited() {
    let home = Home::new(
        r#"
        [agent]
        id = "gw"
        data_dir = "{dir}/data"
        [admin]
        listen = "127.0.0.1:0"
        [sources.in]
        type = "file"
        paths = ["{dir}/in/*"]
        [sinks.one]
        type = "file"
        root = "{dir}/one"
        limiter = "uplink"
        batch = { linger = "10ms" }
        retry = { attempt_timeout = "100ms" }
        [sinks.two]
        type = "file"
        root = "{dir}/two"
        limiter = "uplink"
        batch = { linger = "10ms" }
        [limiters.uplink]
        bytes_per_second = "20kB"
        burst = "1kB"
        [pipelines.p]
        sources = ["in"]
        sinks = ["one", "two"]
        "#,
    );
    let all: Vec<_> = (0..1000).map(|n| format!("{n:09}")).collect();
    input(&home, "a", all.iter().cloned());
    let begun = std::time::Instant::now();
    let mut agent = home.start(&["run"]);
    wait_for("delivery", LONG, || {
        (lines(&home, "one") == all && lines(&home, "two") == all).then_some(())
    });
    // Twenty thousand bytes in all, less one burst; longer than an attempt may take.
    let took = begun.elapsed();
    println!("20 000 bytes at 20 kB/s over two sinks took {took:?}");
    assert!(took.as_secs_f64() > 0.94, "{took:?}");
    wait_for("the acks", LONG, || {
        let status = home.status()?;
        let lanes = status["lanes"].as_array()?.clone();
        let failed = |lane: &serde_json::Value| lane["attempts_failed"]["retryable"].as_u64();
        assert!(lanes.iter().all(|lane| failed(lane) == Some(0)), "{status}");
        lanes.iter().all(|lane| lane["queued"] == 0).then_some(())
    });
    assert!(agent.stop().success(), "{}", home.log());
}
