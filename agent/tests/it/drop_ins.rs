//! A config in several files: put together, each problem in its own, and watched like the one that is named.

use serde_json::Value;

use super::operator::{append, done, failed};
use super::support::agent::Home;
use super::support::certificates::replace;
use super::support::reload::{by_socket, status as status_of, wait_adopted, wait_refused};
use super::support::{LONG, wait_for};

const MAIN: &str = r#"
[agent]
id = "gw"
data_dir = "{dir}/data"
[sources.in]
type = "file"
paths = ["{dir}/in"]
"#;

const SINK: &str = r#"
[sinks.out]
type = "file"
root = "{dir}/out"
batch = { linger = "10ms" }
[pipelines.p]
sources = ["in"]
sinks = ["out"]
"#;

fn drop_in(home: &Home, name: &str, text: &str) {
    let folder = home.path("waystation.d");
    std::fs::create_dir_all(&folder).unwrap();
    replace(&folder.join(name), &home.filled(text));
}

/// A file without a sink, and the sink in a drop-in.
fn home() -> Home {
    let home = Home::new(MAIN);
    append(&home, ["one".to_owned()]);
    drop_in(&home, "20-sink.toml", SINK);
    home
}

#[test]
fn drop_ins_are_put_together_in_the_order_of_their_names_and_each_value_names_its_file() {
    let home = home();
    drop_in(&home, "10-owner.toml", "\u{feff}[agent]\nowner = \"me\"\n");
    drop_in(&home, ".30.toml", "[agent]\nowner = \"an editor\"\n");
    drop_in(&home, "notes.txt", "no config at all\n");
    assert!(done(&home, &["check"]).contains("1 source, 0 transforms, 1 pipeline, 1 sink, 1 lane"));
    let shown = done(&home, &["config", "show", "--effective"]);
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.starts_with(key));
        line.unwrap_or_else(|| panic!("{key} in {shown}")).to_owned()
    };
    assert!(line("id =").ends_with("# waystation.toml:3"), "{shown}");
    assert!(line("owner =").ends_with("# waystation.d/10-owner.toml:2"), "{shown}");
    assert!(line("root =").ends_with("# waystation.d/20-sink.toml:4"), "{shown}");
    assert!(line("stop_grace =").ends_with("# default"), "{shown}");
    let json = done(&home, &["config", "show", "--json"]);
    let entries = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let root = entries.into_iter().find(|entry| entry["key"] == "sinks.out.root").unwrap();
    assert!(root["file"].as_str().unwrap().ends_with("waystation.d/20-sink.toml"), "{root}");
    assert_eq!(root["line"], 4);
    home.run_once();
}

#[test]
fn each_problem_is_shown_in_the_file_that_it_is_in_and_what_is_said_twice_in_both() {
    let home = home();
    // The line before the end of this file is open, and opens nothing in the next.
    home.configure(&format!("{MAIN}\nowner = \"me\ncompresion = 1"));
    drop_in(&home, "20-sink.toml", &format!("{SINK}\nbatches = 3\n"));
    drop_in(&home, "30-again.toml", "[sinks.out]\nroot = \"x\"\npassword = \"S3CR3T-CANARY\"\n");
    let said = failed(&home, 78, &["check"]);
    assert!(said.contains("waystation.d/20-sink.toml:10:1"), "{said}");
    assert!(said.contains("batches = 3"), "{said}");
    assert!(said.contains("waystation.d/30-again.toml:2:1"), "{said}");
    assert!(said.contains("`sinks.out.root` is set in two files"), "{said}");
    assert!(said.contains("waystation.d/20-sink.toml:4, too"), "{said}");
    assert!(said.contains("waystation.toml:9:"), "{said}");
    assert!(!said.contains("CANARY"), "{said}");
    let output = home.output(&["check", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let problems: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let twice = problems.iter().find(|problem| problem["key"] == "sinks.out.root").unwrap();
    assert!(twice["file"].as_str().unwrap().ends_with("30-again.toml"), "{twice}");
    assert_eq!((&twice["line"], &twice["column"]), (&2.into(), &1.into()));
    assert!(!said.contains("CANARY"), "{said}");
}

#[test]
fn drop_ins_that_come_change_and_go_are_taken_up_and_a_broken_one_changes_nothing() {
    let home = home();
    let mut agent = home.start(&["run"]);
    wait_for("the agent", LONG, || status_of(&home));
    for owner in ["came", "changed"] {
        drop_in(&home, "10-owner.toml", &format!("[agent]\nowner = \"{owner}\"\n"));
        wait_adopted(&home, owner);
    }
    drop_in(&home, "10-owner.toml", "[agent]\nowner = \"broken\"\nnonsense = 1\n");
    let reason = wait_refused(&home, 0);
    assert!(reason.contains("waystation.d/10-owner.toml:3:1"), "{reason}");
    assert_eq!(status_of(&home).unwrap()["agent"]["owner"], "changed");
    // A key that needs a restart is named where it stands.
    drop_in(&home, "10-owner.toml", "\n\n[journal]\nmax_bytes = \"1GiB\"\n");
    let reason = wait_refused(&home, 1);
    assert!(reason.contains("waystation.d/10-owner.toml:4:1"), "{reason}");
    std::fs::remove_file(home.path("waystation.d/10-owner.toml")).unwrap();
    wait_for("the owner to go", LONG, || {
        let status = status_of(&home)?;
        let is = status["agent"]["owner"].is_null() && status["config"]["trouble"].is_null();
        is.then_some(())
    });
    // A folder that is made while the agent runs is seen, too.
    std::fs::rename(home.path("waystation.d"), home.path("away")).unwrap();
    wait_refused(&home, 2);
    std::fs::rename(home.path("away"), home.path("waystation.d")).unwrap();
    wait_for("the config to be back", LONG, || {
        status_of(&home)?["config"]["trouble"].is_null().then_some(())
    });
    assert!(agent.stop().success());
}

#[test]
fn a_start_with_a_broken_drop_in_runs_what_was_adopted_and_commands_find_the_agent() {
    let home = home();
    drop_in(&home, "10-owner.toml", "[agent]\nowner = \"good\"\n");
    let mut agent = home.start(&["run"]);
    wait_adopted(&home, "good");
    assert!(agent.stop().success());
    drop_in(&home, "10-owner.toml", "[agent]\nowner = \"bad\"\nnonsense = 1\n");
    failed(&home, 78, &["run", "--strict"]);
    let mut agent = home.start(&["run"]);
    let status = wait_for("the agent", LONG, || home.status());
    assert_eq!(
        (&status["agent"]["owner"], &status["config"]["last_adopted"]),
        (&"good".into(), &true.into())
    );
    assert!(agent.stop().success());
}

#[test]
fn commands_find_an_agent_whose_config_is_broken_or_gone_or_say_what_to_pass() {
    let home = home();
    let mut agent = home.start(&["run"]);
    wait_for("the agent", LONG, || home.status());
    // Not a key is left to read: what the agent has adopted says where it is.
    std::fs::write(home.config(), "agent = [\n").unwrap();
    let with_state = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.env("STATE_DIRECTORY", home.path("data")).output().unwrap()
    };
    let asked = with_state(&["status", "--json"]);
    assert!(asked.status.success(), "{asked:?}");
    std::fs::remove_file(home.config()).unwrap();
    for arguments in [&["status"][..], &["lane", "list"], &["pause", "p/out"], &["journal", "info"]]
    {
        let asked = with_state(arguments);
        assert!(asked.status.success(), "{arguments:?}: {asked:?}");
    }
    let said = failed(&home, 78, &["status"]);
    assert!(said.contains("--socket PATH"), "{said}");
    let said = failed(&home, 78, &["journal", "info"]);
    assert!(said.contains("--data-dir DIR"), "{said}");
    assert!(by_socket(&home, &["status"]).status.success());
    assert!(agent.stop().success());
}
