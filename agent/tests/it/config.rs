//! Every file of `fixtures/config/` is read. A snapshot beside it holds what is said about it; its name is the rule it breaks.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use waystation::cli::config::show;
use waystation::config::{Loaded, describe, load};
use waystation::plugin::PluginUse;
use waystation::settings::{Problems, Severity};

use super::support::fuzz::fuzz;

const CANARY: &str = "CANARY";

fn environment(name: &str) -> Option<String> {
    match name {
        "WAYSTATION_TEST_SECRET" => Some("S3CR3T-CANARY".to_owned()),
        "WAYSTATION_TEST_EMPTY" => Some(String::new()),
        _ => None,
    }
}

fn inspect(used: PluginUse<'_>) -> Result<Vec<String>, Vec<String>> {
    if used.guest().plugin.ends_with("core.wasm") {
        return Err(vec!["this is a core module".to_owned(), "and something else".to_owned()]);
    }
    Ok(Vec::new())
}

fn read(path: &Path) -> Result<Loaded, Problems> {
    load(path, &environment, &inspect)
}

/// The fixtures of a kind, by paths relative to the package, which tests run in.
fn fixtures(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new("tests/fixtures/config").join(kind);
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    paths
}

fn snapshot(path: &Path, text: &str) {
    assert!(!text.contains(CANARY), "{}: a secret is shown:\n{text}", path.display());
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(Path::new("..").join("..").join(path.parent().unwrap()));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let text = text.replace(env!("CARGO_MANIFEST_DIR"), "[agent]");
    let name = path.file_stem().unwrap().to_str().unwrap();
    settings.bind(|| insta::assert_snapshot!(name, text));
}

#[test]
fn every_invalid_file_is_refused_with_a_message_of_its_own() {
    let paths = fixtures("invalid");
    assert!(paths.len() >= 60, "{} files", paths.len());
    for path in paths {
        let problems = read(&path).expect_err(path.to_str().unwrap());
        assert!(problems.has_errors(), "{}", path.display());
        let json = problems.json_lines();
        assert!(!json.contains(CANARY), "{}: {json}", path.display());
        assert!(!format!("{problems:?}").contains(CANARY), "{}", path.display());
        assert_eq!(json.lines().count(), problems.list().len());
        snapshot(&path, &problems.render(false));
    }
}

#[test]
fn every_valid_file_is_read_and_shows_all_its_values() {
    for path in fixtures("valid") {
        let loaded = read(&path).unwrap_or_else(|problems| panic!("{problems}"));
        let mut text = show(&loaded.listing, &path, true, false);
        if !loaded.warnings.is_empty() {
            text = format!("{text}\n{}", loaded.warnings.render(false));
        }
        let json = show(&loaded.listing, &path, true, true);
        assert!(!json.contains(CANARY), "{}: {json}", path.display());
        snapshot(&path, &text);
    }
}

#[test]
fn policies_that_do_not_hold_together_are_warned_of() {
    let loaded = read(Path::new("tests/fixtures/config/valid/warnings.toml")).unwrap();
    let warned = |start: &str, end: &str, text: &str| {
        let is = loaded.warnings.list().iter().any(|warning| {
            let key = &warning.key;
            key.starts_with(start) && key.ends_with(end) && warning.message.contains(text)
        });
        assert!(is, "{start}…{end}, {text}: {}", loaded.warnings.render(false));
    };
    warned("transforms.", "", "no pipeline uses transform");
    warned("sinks.", ".retry.budget", "the budget is shorter than `attempt_timeout`");
    warned("sinks.", ".batch.bytes_max", "behind the limiter, longer than `linger`");
    warned("sinks.", ".url", "two layers retry");
}

#[test]
fn all_keys_have_a_line_of_reference() {
    let keys: Vec<_> = describe().into_iter().map(|entry| (entry.path(), entry.doc)).collect();
    for key in [
        "agent.id",
        "sources.NAME.paths",
        "sinks.NAME.batch.linger",
        "sinks.NAME.compression.level",
    ] {
        assert!(keys.iter().any(|(known, _)| known == key), "{key} of {keys:?}");
    }
    assert!(keys.iter().all(|(_, doc)| doc.ends_with('.')), "{keys:?}");
}

#[test]
fn components_keep_the_order_of_the_file() {
    let loaded = read(Path::new("tests/fixtures/config/valid/order_of_the_file.toml")).unwrap();
    let names: Vec<_> = loaded.config.sources.iter().map(|source| source.id.as_str()).collect();
    assert_eq!(names, ["z", "y"]);
    let names: Vec<_> = loaded.config.sinks.iter().map(|sink| sink.id.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn what_is_effective_is_a_config_that_means_the_same() {
    // Comments are dropped, so only a config whose texts hold no secret comes back unchanged.
    let path = Path::new("tests/fixtures/config/valid/minimal.toml");
    let loaded = read(path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("waystation.toml");
    std::fs::write(&copy, show(&loaded.listing, path, true, false)).unwrap();
    assert_eq!(read(&copy).unwrap().config, loaded.config);
}

#[test]
fn relative_paths_begin_at_the_folder_of_the_file() {
    let loaded = read(Path::new("tests/fixtures/config/valid/everything_in_order.toml")).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/config/valid");
    assert_eq!(loaded.config.agent.data_dir, folder.join("data"));
    assert_eq!(loaded.config.admin.socket, folder.join("admin.sock"));
}

#[test]
fn the_socket_is_in_the_runtime_folder_that_systemd_names() {
    let path = Path::new("tests/fixtures/config/valid/minimal.toml");
    let under_systemd =
        |name: &str| (name == "RUNTIME_DIRECTORY").then(|| "/run/waystation:/run/other".to_owned());
    let loaded = load(path, &under_systemd, &inspect).unwrap();
    assert_eq!(loaded.config.admin.socket, Path::new("/run/waystation/admin.sock"));
    let loaded = read(path).unwrap();
    assert_eq!(loaded.config.admin.socket, Path::new("/var/lib/waystation/admin.sock"));
}

#[test]
fn a_file_that_cannot_be_read_is_one_problem() {
    for (path, expected) in [("no/such.toml", "cannot read the config"), ("tests", "cannot read")] {
        let problems = read(Path::new(path)).unwrap_err();
        assert_eq!(problems.list().len(), 1);
        assert!(problems.to_string().contains(expected), "{problems}");
    }
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.toml");
    std::fs::write(&large, vec![b'#'; 4 * 1024 * 1024 + 1]).unwrap();
    assert!(read(&large).unwrap_err().to_string().contains("larger than 4 MiB"));
}

/// Reads any bytes as a config.
fn read_bytes(bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any.toml");
    std::fs::write(&path, bytes).unwrap();
    match read(&path) {
        Ok(loaded) => {
            assert!(loaded.warnings.list().iter().all(|p| p.severity == Severity::Warning));
            let _listing = show(&loaded.listing, &path, true, false);
        }
        Err(problems) => {
            assert!(problems.has_errors());
            assert!(!problems.render(true).is_empty());
            assert_eq!(problems.json_lines().lines().count(), problems.list().len());
        }
    }
}

/// One character too much or too few anywhere but in the name of the secret's key, which is what it is known by.
#[test]
fn no_slip_of_the_pen_shows_a_secret() {
    let text = "[sources.s]\ntype = \"stdin\"\n\n[sinks.k]\ntype = \"nats\"\nservers = [\"nats://a\"]\n\
                credentials = \"S3CR3T-CANARY\"\nsubject = \"x\"\n\n[pipelines.p]\nsources = [\"s\"]\n";
    let name = text.find("credentials").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slip.toml");
    for at in (0..text.len()).filter(|at| !(name + 1..name + 11).contains(at)) {
        let with = |piece: &str| format!("{}{piece}{}", &text[..at], &text[at..]);
        let mut slips: Vec<String> =
            ["\"", "'", "\"\"\"", "[", "]", "{", "}", "=", "\n", ",", "#", "x", " "]
                .map(with)
                .into();
        slips.push(format!("{}{}", &text[..at], &text[at + 1..]));
        for slip in slips {
            std::fs::write(&path, &slip).unwrap();
            let problems = read(&path).unwrap_err();
            let shown = format!("{problems}\n{}", problems.json_lines());
            assert!(!shown.contains(CANARY), "{slip}\n\n{shown}");
        }
    }
}

#[test]
fn large_files_of_any_kind_are_read_in_bounded_time_and_memory() {
    for piece in [
        "words here\n",
        "x = [\n",
        "[a]\n",
        "a = \"\"\"\n",
        "[sources.%]\ntype = \"stdin\"\n",
        "t = { a = 1\n",
        "[[a]]\nb = 1\n",
        "\u{0}",
    ] {
        let mut text = String::new();
        let mut number = 0;
        while text.len() < 512 * 1024 {
            text.push_str(&piece.replace('%', &number.to_string()));
            number += 1;
        }
        read_bytes(text.as_bytes());
    }
}

/// A fixture with some bytes changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let files: Vec<Vec<u8>> = fixtures("valid")
        .into_iter()
        .chain(fixtures("invalid"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    let piece = prop_oneof![
        Just("\"".to_owned()),
        Just("\"\"\"".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("=".to_owned()),
        Just("\n".to_owned()),
        Just(".".to_owned()),
        Just("#".to_owned()),
        Just(",".to_owned()),
        Just("[sources.s]".to_owned()),
        Just("\u{e9}".to_owned()),
        "\\PC{0,3}",
    ];
    let change = (any::<prop::sample::Index>(), 0..4usize, piece);
    (prop::sample::select(files), prop::collection::vec(change, 1..6)).prop_map(
        |(mut bytes, changes)| {
            for (at, removed, piece) in changes {
                let at = at.index(bytes.len() + 1);
                let end = (at + removed).min(bytes.len());
                bytes.splice(at..end, piece.bytes());
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_give_a_config_or_a_problem(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        read_bytes(&bytes);
    }

    #[test]
    fn damaged_configs_give_a_config_or_a_problem(bytes in damaged()) {
        read_bytes(&bytes);
    }
}

#[test]
fn fuzzed_configs_give_a_config_or_a_problem() {
    let files: Vec<Vec<u8>> = fixtures("valid")
        .into_iter()
        .chain(fixtures("invalid"))
        .map(|path| std::fs::read(path).unwrap())
        .collect();
    let examples: Vec<&[u8]> = files.iter().map(Vec::as_slice).collect();
    fuzz(&examples, read_bytes);
}
