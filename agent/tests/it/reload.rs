//! Another config under a running agent, and a start with a broken one.

use serde_json::Value;

use super::operator::{append, done, failed};
use super::support::agent::{Home, files_below};
use super::support::certificates::replace;
use super::support::reload::{
    Way, a_while, by_socket, config as config_of, refused, status as status_of, wait_adopted,
    wait_refused,
};
use super::support::{LONG, http, nats, plugin, size, wait_for};

/// One file to one folder, with an owner by which the config is known.
fn simple(owner: &str) -> String {
    with(owner, "", "")
}

fn with(owner: &str, sink: &str, more: &str) -> String {
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "{owner}"
        {more}
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        [sinks.out]
        type = "file"
        root = "{{dir}}/out"
        batch = {{ linger = "10ms" }}
        {sink}
        [pipelines.p]
        sources = ["in"]
        sinks = ["out"]
        "#
    )
}

fn reloads(home: &Home) -> u64 {
    wait_for("the status", LONG, || config_of(home))["reloads"].as_u64().unwrap()
}

fn plan(home: &Home) -> Value {
    serde_json::from_str(&done(home, &["reload", "--plan", "--json"])).unwrap()
}

/// The lanes of a plan with what happens to them.
fn lanes(plan: &Value) -> Vec<(String, String, u64)> {
    let lanes = plan["lanes"].as_array().unwrap().iter();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    lanes
        .map(|lane| (text(&lane["lane"]), text(&lane["change"]), lane["queued"].as_u64().unwrap()))
        .collect()
}

#[test]
fn d_25_every_way_to_save_is_seen_each_time_and_half_a_file_is_never_active() {
    let home = Home::new(&simple("v0"));
    append(&home, []);
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "v0");
    for way in Way::ALL {
        for time in 0..3 {
            let owner = format!("{way:?}{time}");
            way.put(&home, &simple(&owner));
            wait_adopted(&home, &owner);
        }
    }
    // The last of many wins, and few of them are read.
    let before = reloads(&home);
    for number in 0..50 {
        replace(&home.config(), &home.filled(&simple(&format!("many{number}"))));
        std::thread::sleep(std::time::Duration::from_millis(15));
    }
    wait_adopted(&home, "many49");
    assert!(reloads(&home) - before <= 5, "{} reloads", reloads(&home) - before);
    // Nothing has changed: nothing is done, on whatever occasion.
    let before = reloads(&home);
    agent.signal(rustix::process::Signal::HUP);
    home.configure(&simple("many49"));
    wait_for("both looks", LONG, || home.log().contains("nothing is reloaded").then_some(()));
    a_while();
    assert_eq!(reloads(&home), before);
    assert_eq!(done(&home, &["reload"]), "the config is as it was\n");
    assert!(agent.stop().success());
}

/// Takes every watch that the system gives this user; others that run meanwhile have to look, too.
fn all_watches() -> Vec<std::os::fd::OwnedFd> {
    use rustix::fs::inotify::{CreateFlags, init};

    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    std::iter::from_fn(|| init(CreateFlags::CLOEXEC).ok()).collect()
}

#[test]
fn d_25_without_a_watch_left_the_files_are_looked_at_and_each_change_is_seen() {
    let home = Home::new(&simple("v0"));
    append(&home, []);
    let watches = all_watches();
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "v0");
    wait_for("the warning", LONG, || home.log().contains("cannot be watched").then_some(()));
    for time in 1..=3 {
        let owner = format!("v{time}");
        Way::Renamed.put(&home, &simple(&owner));
        wait_adopted(&home, &owner);
    }
    assert!(agent.stop().success());
    drop(watches);
}

#[test]
fn an_invalid_config_changes_nothing_and_the_log_the_metric_and_the_status_say_why() {
    let home = Home::new(&simple("good"));
    append(&home, ["one".to_owned()]);
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "good");
    home.configure(&with("bad", "compresion = 3", ""));
    let reason = wait_refused(&home, 0);
    assert!(reason.contains("waystation.toml:14:") && reason.contains("compresion"), "{reason}");
    let page = done(&home, &["status"]);
    assert!(page.contains("the config is not taken up") && page.contains("goes on"), "{page}");
    assert!(home.log().contains("Config is not reloaded"), "{}", home.log());
    let said = failed(&home, 78, &["reload"]);
    assert!(said.contains("compresion") && said.contains("everything goes on as it was"), "{said}");
    let answer = home.output(&["reload", "--json"]);
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap();
    assert_eq!(answer["outcome"], "refused");
    append(&home, ["two".to_owned()]);
    wait_for("the delivery", LONG, || {
        (status_of(&home)?["lanes"][0]["delivered"] == 2).then_some(())
    });
    let status = status_of(&home).unwrap();
    assert_eq!(status["agent"]["owner"], "good");
    // Back to what runs: nothing is wrong any more.
    home.configure(&simple("good"));
    wait_adopted(&home, "good");
    assert!(agent.stop().success());
}

#[test]
fn keys_that_need_a_restart_are_refused_by_name_all_at_once() {
    let home = Home::new(&simple("good"));
    append(&home, []);
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "good");
    let more = "[journal]\nmax_bytes = \"1GiB\"\n[admin]\nlisten = \"127.0.0.1:1\"";
    let other = with("bad", "", more).replace("id = \"gw\"", "id = \"other\"");
    home.configure(&other.replace("{dir}/data", "{dir}/elsewhere"));
    wait_refused(&home, 0);
    let output = by_socket(&home, &["reload", "--plan"]);
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8(output.stderr).unwrap();
    for key in ["agent.id", "agent.data_dir", "journal.max_bytes", "admin.listen"] {
        assert!(
            said.contains(&format!("`{key}` cannot be changed while the agent runs")),
            "{said}"
        );
    }
    assert!(said.contains("start the agent anew"), "{said}");
    assert!(said.contains("waystation.toml:3:"), "{said}");
    assert!(!home.path("elsewhere").exists());
    assert!(agent.stop().success());
}

#[test]
fn a_new_plugin_is_tried_before_it_takes_over_and_one_that_is_no_good_never_does() {
    let with_plugin = |owner: &str, config: &str| {
        with(owner, "", "").replace("[pipelines.p]", &format!("[transforms.t]\nplugin = \"{{dir}}/t.wasm\"\nconfig = {{ {config} }}\n[pipelines.p]\ntransforms = [\"t\"]"))
    };
    let home = Home::new(&with_plugin("v0", "do = \"pass\""));
    std::fs::copy(plugin("test-guests"), home.path("t.wasm")).unwrap();
    append(&home, ["one".to_owned()]);
    let mut agent = home.start(&["run"]);
    let status = wait_adopted(&home, "v0");
    let digest = status["plugins"][0]["sha256"].clone();
    // Half of a component.
    let whole = std::fs::read(plugin("test-guests")).unwrap();
    std::fs::write(home.path("t.wasm"), &whole[..whole.len() / 2]).unwrap();
    let reason = wait_refused(&home, 0);
    assert!(reason.contains("waystation.toml:"), "{reason}");
    // Its `init` does not take this.
    std::fs::write(home.path("t.wasm"), &whole).unwrap();
    wait_adopted(&home, "v0");
    home.configure(&with_plugin("v1", "do = \"no such thing\""));
    let reason = wait_refused(&home, 1);
    assert!(reason.contains("transform \"t\" does not begin"), "{reason}");
    let status = status_of(&home).unwrap();
    assert_eq!(
        (&status["agent"]["owner"], &status["plugins"][0]["sha256"]),
        (&"v0".into(), &digest)
    );
    // Another component altogether.
    home.configure(&with_plugin("v2", ""));
    replace_bytes(&home, &std::fs::read(plugin("clean")).unwrap());
    let status = wait_adopted(&home, "v2");
    wait_for("the other plugin", LONG, || {
        (status_of(&home)?["plugins"][0]["sha256"] != digest).then_some(())
    });
    assert_eq!(status["lanes"][0]["lost"], 0);
    assert!(agent.stop().success());
}

fn replace_bytes(home: &Home, bytes: &[u8]) {
    std::fs::write(home.path("new.wasm"), bytes).unwrap();
    std::fs::rename(home.path("new.wasm"), home.path("t.wasm")).unwrap();
}

/// Sinks `a` and perhaps others, on a server that is away.
fn away(owner: &str, sinks: &[(&str, &str)]) -> String {
    let tables: String = sinks
        .iter()
        .map(|(name, more)| {
            format!(
                "[sinks.{name}]\ntype = \"http\"\nurl = \"http://127.0.0.1:{{port}}/\"\n{more}\n"
            )
        })
        .collect();
    let names: Vec<_> = sinks.iter().map(|(name, _)| name).collect();
    format!(
        r#"
        [agent]
        id = "gw"
        data_dir = "{{dir}}/data"
        owner = "{owner}"
        [sources.in]
        type = "file"
        paths = ["{{dir}}/in"]
        {tables}
        [pipelines.p]
        sources = ["in"]
        sinks = {names:?}
        "#
    )
}

#[test]
fn d_27_a_backlog_stays_with_its_lane_over_settings_renames_and_removals_and_goes_on_when_it_is_back()
 {
    let port = http::closed_port();
    let text = |owner: &str, sinks: &[(&str, &str)]| {
        away(owner, sinks).replace("{port}", &port.to_string())
    };
    let retry =
        "batch = { linger = \"10ms\" }\nretry = { backoff = \"20ms\", backoff_max = \"200ms\" }";
    let home = Home::new(&text("v0", &[("a", retry)]));
    append(&home, (0..5000).map(|n| n.to_string()));
    let mut agent = home.start(&["run"]);
    let queued = |lane: &str| {
        let status = status_of(&home)?;
        let lanes = status["lanes"].as_array()?.iter();
        lanes.chain(status["orphans"].as_array()?).find(|known| known["name"] == lane)?["queued"]
            .as_u64()
    };
    wait_for("5000 queued", LONG, || queued("gw/in/p/a").filter(|queued| *queued == 5000));
    // (1) Another batch size: the same queue.
    home.configure(&text("v1", &[("a", &retry.replace("10ms", "15ms"))]));
    wait_adopted(&home, "v1");
    assert_eq!(queued("gw/in/p/a"), Some(5000));
    // (2) Another name: the records stay with the old one, which the plan says before.
    let retry = retry.replace("10ms", "15ms");
    std::fs::write(home.path("next.toml"), home.filled(&text("v2", &[("b", &retry)]))).unwrap();
    replace(&home.config(), &std::fs::read_to_string(home.path("next.toml")).unwrap());
    wait_adopted(&home, "v2");
    assert_eq!(queued("gw/in/p/a"), Some(5000));
    let page = done(&home, &["status"]);
    assert!(
        page.contains("gw/in/p/a") && page.contains("5\u{2009}000")
            || page.contains("5 000")
            || page.contains("5,000")
            || page.contains("5000"),
        "{page}"
    );
    let listed = done(&home, &["lane", "list"]);
    assert!(listed.contains("orphaned"), "{listed}");
    assert!(home.log().contains("its records stay until it is back"), "{}", home.log());
    let names = lanes(&plan(&home));
    assert_eq!(names, [("gw/in/p/b".to_owned(), "kept".to_owned(), 5000)]);
    // (3) and (4): put back, it goes on where it was. The server is there now and takes everything, once from each lane.
    let server = http::Server::start_on(port, None, |_| http::status(200));
    wait_for("b", LONG, || queued("gw/in/p/b").filter(|queued| *queued == 0));
    let of_b = server.sent().len();
    home.configure(&text("v4", &[("b", &retry), ("a", &retry)]));
    wait_adopted(&home, "v4");
    wait_for("a", LONG, || queued("gw/in/p/a").filter(|queued| *queued == 0));
    let sent = server.sent();
    let lines = |sent: &[http::Sent]| -> Vec<u64> {
        let text = |sent: &http::Sent| String::from_utf8(sent.content()).unwrap();
        let numbers =
            |text: String| text.lines().map(|line| line.parse().unwrap()).collect::<Vec<_>>();
        sent.iter()
            .filter(|sent| sent.method == "POST")
            .flat_map(|sent| numbers(text(sent)))
            .collect()
    };
    assert!(lines(&sent[..of_b]).into_iter().eq(0..5000), "b has them in order, once");
    assert!(lines(&sent[of_b..]).into_iter().eq(0..5000), "a has them in order, once");
    assert!(
        sent[of_b..]
            .iter()
            .filter(|sent| sent.method == "POST")
            .all(|sent| sent.key().starts_with("gw/in/p/a/"))
    );
    // (5) Two of one name.
    home.configure(&text("v5", &[("a", &retry), ("a", &retry)]));
    let reason = wait_refused(&home, refused(&home) - u64::from(refused(&home) > 0));
    assert!(reason.contains("duplicate") || reason.contains("twice"), "{reason}");
    assert!(agent.stop().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_change_keeps_its_connection_over_reloads_of_something_else() {
    let directory = tempfile::tempdir().unwrap();
    let server = nats::Server::start_with(directory, 0, "http: \"127.0.0.1:-1\"\n");
    server.make_stream("EDGE", "edge.>").await;
    let text = |owner: &str, linger: &str, window: u32| {
        format!(
            r#"
            [agent]
            id = "gw"
            data_dir = "{{dir}}/data"
            owner = "{owner}"
            [sources.in]
            type = "file"
            paths = ["{{dir}}/in"]
            [sinks.kept]
            type = "nats"
            servers = ["{url}"]
            stream = "EDGE"
            subject = "edge.kept"
            batch = {{ linger = "{linger}" }}
            rate = {{ records_per_second = {window}000 }}
            [sinks.other]
            type = "nats"
            servers = ["{url}"]
            stream = "EDGE"
            subject = "edge.other"
            publish_window = {window}
            batch = {{ linger = "10ms" }}
            [pipelines.p]
            sources = ["in"]
            sinks = ["kept", "other"]
            "#,
            url = server.url()
        )
    };
    let home = Home::new(&text("v0", "10ms", 10));
    append(&home, ["0".to_owned()]);
    let mut agent = home.start(&["run"]);
    let delivered = |count: u64| {
        wait_for("the delivery", LONG, || {
            let status = status_of(&home)?;
            status["lanes"].as_array()?.iter().all(|lane| lane["delivered"] == count).then_some(())
        });
    };
    let number = |name: &str| {
        let name = format!("waystation {name}");
        wait_for(&name, LONG, || {
            let all: Vec<_> =
                server.connections().into_iter().filter(|(known, _)| *known == name).collect();
            // One that was replaced may be on its way out.
            (all.len() == 1).then(|| all[0].1)
        })
    };
    delivered(1);
    let (kept, mut other) = (number("kept"), number("other"));
    let reloads = u32::try_from(size("WAYSTATION_TEST_RELOADS", 30) / 3).unwrap();
    for reload in 1..=reloads {
        // The one is given other batches and another rate, the other another way to the server.
        let (owner, linger) = (format!("v{reload}"), format!("{}ms", 10 + reload));
        home.configure(&text(&owner, &linger, 10 + reload));
        wait_adopted(&home, &owner);
        append(&home, [reload.to_string()]);
        delivered(u64::from(reload) + 1);
        assert_eq!(number("kept"), kept, "reload {reload}");
        let now = number("other");
        assert_ne!(now, other, "reload {reload}: another publish_window is another sink");
        other = now;
    }
    assert!(agent.stop().success());
    assert_eq!(server.messages("EDGE").await.len(), 2 * (reloads as usize + 1));
    eprintln!("{reloads} reloads, connection {kept} all the while");
}

#[test]
fn a_destination_that_is_down_keeps_nothing_from_changing_and_a_bad_certificate_does() {
    let port = http::closed_port();
    let text =
        |owner: &str, more: &str| away(owner, &[("a", more)]).replace("{port}", &port.to_string());
    let home = Home::new(&text("v0", ""));
    append(&home, ["one".to_owned()]);
    let mut agent = home.start(&["run"]);
    let pid = agent.pid();
    wait_adopted(&home, "v0");
    // A server that accepts and never answers does not hold a reload up either.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let elsewhere = format!("127.0.0.1:{}", silent.local_addr().unwrap().port());
    let changed = text("v1", "").replace(&format!("127.0.0.1:{port}"), &elsewhere);
    home.configure(&changed);
    wait_adopted(&home, "v1");
    std::fs::write(home.path("bad.pem"), "no certificate").unwrap();
    let tls = "tls = { ca = \"{dir}/bad.pem\" }";
    home.configure(&text("v2", tls).replace("http://", "https://"));
    let reason = wait_refused(&home, 0);
    assert!(reason.contains("sink \"a\" cannot be used") && reason.contains("bad.pem"), "{reason}");
    assert_eq!(status_of(&home).unwrap()["agent"]["owner"], "v1");
    home.configure(&text("v3", "format = \"json\""));
    let status = wait_adopted(&home, "v3");
    assert_eq!(status["lanes"][0]["queued"], 1);
    assert!(agent.ended().is_none() && agent.pid() == pid);
    assert!(agent.stop().success());
}

/// The watch of the files begins when the agent runs, and it has read them before it compiled its plugin.
#[test]
fn what_is_saved_while_the_agent_starts_is_taken_up() {
    let with_plugin = |owner: &str| {
        let transform = format!("[transforms.t]\nplugin = {:?}\n", plugin("clean"));
        let text = simple(owner).replace("[pipelines.p]", &format!("{transform}[pipelines.p]"));
        text.replace("sources = [\"in\"]", "sources = [\"in\"]\ntransforms = [\"t\"]")
    };
    let home = Home::new(&with_plugin("v0"));
    append(&home, ["{}".to_owned()]);
    let mut agent = home.start(&["run"]);
    wait_for("the compiler", LONG, || home.log().contains("Compiling a plugin").then_some(()));
    home.configure(&with_plugin("v1"));
    wait_adopted(&home, "v1");
    assert!(agent.stop().success());
}

#[test]
fn a_start_with_a_broken_file_runs_what_the_last_run_had_adopted_and_says_so_loudly() {
    let home = Home::new(&simple("good"));
    append(&home, ["one".to_owned()]);
    // There is nothing to fall back on yet.
    home.configure(&with("bad", "nonsense = 1", ""));
    let said = failed(&home, 78, &["run"]);
    assert!(said.contains("nonsense"), "{said}");
    home.configure(&simple("good"));
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "good");
    // What was refused is not kept.
    home.configure(&with("bad", "nonsense = 1", ""));
    wait_refused(&home, 0);
    assert!(agent.stop().success());
    assert!(failed(&home, 78, &["run", "--strict"]).contains("nonsense"));
    assert!(failed(&home, 78, &["run", "--once"]).contains("nonsense"));
    // Also when hardly anything of it can be read.
    home.configure("[agent]\ndata_dir = \"{dir}/data\"\n[sources.in\ntype = = 3\n");
    let mut agent = home.start(&["run"]);
    let status = wait_for("the agent", LONG, || status_of(&home));
    assert_eq!(status["agent"]["owner"], "good", "{status}");
    assert_eq!(status["config"]["last_adopted"], true);
    assert!(
        status["config"]["trouble"]["reason"].as_str().unwrap().contains("waystation.toml:3:"),
        "{status}"
    );
    assert!(
        home.log().contains("the last one that a run has adopted runs in its place"),
        "{}",
        home.log()
    );
    assert!(done(&home, &["status"]).contains("the config could not be used at the start"));
    append(&home, ["two".to_owned()]);
    wait_for("the delivery", LONG, || {
        (status_of(&home)?["lanes"][0]["delivered"] == 2).then_some(())
    });
    // Mended, it is taken up by itself.
    home.configure(&simple("mended"));
    let status = wait_adopted(&home, "mended");
    assert_eq!(status["config"]["last_adopted"], false);
    assert!(agent.stop().success());
    // And that is what counts from now on.
    std::fs::remove_file(home.config()).unwrap();
    let mut command = home.command(&["run"]);
    command.env("STATE_DIRECTORY", home.path("data"));
    let log = std::fs::File::create(home.path("agent.log")).unwrap();
    let mut child = command.stdout(std::process::Stdio::null()).stderr(log).spawn().unwrap();
    let owner = wait_for("the agent", LONG, || Some(status_of(&home)?["agent"]["owner"].clone()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(owner, "mended");
}

#[test]
fn what_another_kind_of_sink_has_sealed_is_made_ready_anew_and_nothing_is_given_up() {
    let port = http::closed_port();
    let text = away("v0", &[("a", "batch = { records_max = 100, linger = \"10ms\" }")]);
    let home = Home::new(&text.replace("{port}", &port.to_string()));
    append(&home, (0..1000).map(|n| n.to_string()));
    let mut agent = home.start(&["run"]);
    wait_for("sealed batches", LONG, || {
        let lane = status_of(&home)?["lanes"][0].clone();
        (lane["batches_sealed"].as_u64()? > 1 && lane["queued"] == 1000).then_some(())
    });
    let url = format!("url = \"http://127.0.0.1:{port}/\"");
    let file = text.replace("{port}", &port.to_string()).replace(&url, "root = \"{dir}/out\"");
    home.configure(&file.replace("type = \"http\"", "type = \"file\"").replace("v0", "v1"));
    wait_adopted(&home, "v1");
    assert!(home.log().contains("sinks.a.type"), "{}", home.log());
    let lane = wait_for("the delivery", LONG, || {
        Some(status_of(&home)?["lanes"][0].clone()).filter(|lane| lane["queued"] == 0)
    });
    assert_eq!((&lane["delivered"], &lane["dead_lettered"]), (&1000.into(), &0.into()), "{lane}");
    assert!(agent.stop().success());
    let folder = home.path("out");
    let texts = files_below(&folder)
        .into_iter()
        .map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    let mut numbers: Vec<u64> = texts
        .flat_map(|text| text.lines().map(|line| line.parse().unwrap()).collect::<Vec<_>>())
        .collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..1000));
}

/// What must not be seen anywhere, joined here so that this file does not hold it.
fn canary() -> String {
    ["S3CR3T", "CANARY", "91f2"].join("-")
}

#[test]
fn d_29_no_secret_gets_out_of_a_config_that_is_read_refused_reloaded_or_kept() {
    let server = http::Server::start(|_| http::status(401));
    let canary = canary();
    let text = |owner: &str, more: &str| {
        away(owner, &[("a", "headers = { authorization = { file = \"{dir}/secrets/token\" }, x-env = { env = \"HOOK_TOKEN\" } }\nretry = { backoff = \"20ms\", backoff_max = \"100ms\" }")])
            .replace("{port}", &server.port.to_string())
            + more
    };
    let home = Home::new(&text("v0", ""));
    std::fs::create_dir(home.path("secrets")).unwrap();
    std::fs::write(home.path("secrets/token"), &canary).unwrap();
    append(&home, ["one".to_owned()]);
    let mut said = String::new();
    let log = std::fs::File::create(home.path("agent.log")).unwrap();
    let mut command = home.command(&["run"]);
    command.env("HOOK_TOKEN", &canary).stdout(std::process::Stdio::null()).stderr(log);
    let mut child = command.spawn().unwrap();
    wait_adopted(&home, "v0");
    wait_for("an answer", LONG, || (!server.sent().is_empty()).then_some(()));
    assert_eq!(server.sent()[0].header("authorization"), canary, "the secret is in use");
    // On the line with a mistake, above one, and where it must not stand.
    let broken = [
        format!("[x]\ntoken = \"{canary}\" \"\n"),
        format!("[x]\npassword = \"{canary}\"\nbroken = = 1\n"),
        format!("[sinks.b]\ntype = \"nats\"\nservers = [\"nats://user:{canary}@h:1\"]\n"),
        format!(
            "[sinks.b]\ntype = \"http\"\nurl = \"http://h/\"\nheaders = {{ authorization = \"{canary}\" }}\n"
        ),
        format!(
            "[log]\nlevel = \"debug\"\n[sinks.b]\ntype = \"nats\"\nservers = [\"nats://h:1\"]\ncredentials = \"{canary}\"\n"
        ),
    ];
    for more in broken {
        let before = refused(&home);
        home.configure(&text("bad", &more));
        said += &wait_refused(&home, before);
        for command in [
            &["reload"][..],
            &["reload", "--json"],
            &["check"],
            &["config", "show"],
            &["status"],
            &["status", "--json"],
        ] {
            let output = home.output(command);
            said += &String::from_utf8_lossy(&output.stdout);
            said += &String::from_utf8_lossy(&output.stderr);
        }
    }
    // A rotated file is taken up without a reload.
    let rotated = canary.replace("91f2", "rotated");
    replace(&home.path("secrets/token"), &rotated);
    wait_for("the other secret", LONG, || {
        server.sent().last().filter(|sent| sent.header("authorization") == rotated).map(drop)
    });
    home.configure(&text("v1", "[log]\nlevel = \"trace\"\n"));
    wait_adopted(&home, "v1");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!said.contains("CANARY"), "{said}");
    let log = home.log();
    assert!(!log.contains("CANARY"), "{log}");
    for name in files_below(&home.path("data")) {
        let bytes = std::fs::read(home.path("data").join(&name)).unwrap();
        let found = bytes.windows(6).any(|window| window == b"CANARY");
        assert!(!found, "{} holds a secret", name.display());
    }
    assert!(home.path("data/adopted.json").exists());
}
