//! The book in `docs/` and the README: what is generated is of this build, every config checks, every command exists.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use toml::{Table, Value as Toml};
use waystation::config::schema;

use super::support::repository;

/// Set, the generated pages are written instead of compared.
const WRITE: &str = "WAYSTATION_WRITE_BOOK";
const METRICS: &str = "agent/src/admin/snapshots/waystation__admin__tests__the_metrics_are_these_and_the_accepted_records_add_up.snap";

/// A fenced block of a page.
struct Block {
    place: String,
    language: String,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let mut pages = vec![repository("README.md")];
    let mut folders = vec![repository("docs/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The blocks of all pages that are in this language.
fn blocks(language: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        let mut open: Option<Block> = None;
        for (number, line) in text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    let place = format!("{}:{}", page.display(), number + 1);
                    open =
                        Some(Block { place, language: language.to_owned(), text: String::new() });
                }
                (None, Some(block)) => writeln!(block.text, "{line}").unwrap(),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{} ends in a block", page.display());
    }
    blocks.retain(|block| block.language == language);
    blocks
}

#[test]
fn every_config_of_the_book_is_one_that_checks() {
    let dir = tempfile::tempdir().unwrap();
    let folder = repository("target/plugins");
    symlink(&folder, dir.path().join("plugins")).unwrap();
    // Some pages have the plugin beside the config.
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        symlink(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    symlink(folder.join("clean.wasm"), dir.path().join("mine.wasm")).unwrap();
    let (mut wrong, mut count) = (String::new(), 0);
    for block in blocks("toml") {
        let table = match block.text.parse::<Table>() {
            Ok(table) => completed(table),
            Err(error) => {
                writeln!(wrong, "{}: {error}", block.place).unwrap();
                continue;
            }
        };
        let text = toml::to_string(&table).unwrap();
        let text = text.replace("/usr/share/waystation/plugins/", "plugins/");
        let path = dir.path().join("waystation.toml");
        std::fs::write(&path, text).unwrap();
        let mut check = Command::new(cargo_bin("waystation"));
        let output = check.args(["check", "-c"]).arg(&path).output().unwrap();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            writeln!(wrong, "{}:\n{said}", block.place).unwrap();
        }
        count += 1;
    }
    eprintln!("{count} configs");
    assert!(count > 10 && wrong.is_empty(), "{wrong}");
}

/// A part of a config with what it leaves out: an agent, and what its pipelines or its parts need to be used.
fn completed(mut table: Table) -> Table {
    let keys = |table: &Table, section: &str| -> Vec<Toml> {
        let section = table.get(section).and_then(Toml::as_table);
        section.into_iter().flat_map(|section| section.keys().cloned().map(Toml::String)).collect()
    };
    if !table.contains_key("pipelines") {
        let mut pipeline = Table::new();
        for (section, fallback) in
            [("sources", Some("book")), ("transforms", None), ("sinks", Some("book"))]
        {
            let mut names = keys(&table, section);
            if names.is_empty() {
                names.extend(fallback.map(Toml::from));
            }
            pipeline.insert(section.to_owned(), Toml::Array(names));
        }
        let pipelines = Table::from_iter([("book".to_owned(), Toml::Table(pipeline))]);
        table.insert("pipelines".to_owned(), Toml::Table(pipelines));
    }
    let pipelines = table["pipelines"].as_table().unwrap().clone();
    for (section, kind) in [("sources", "generate"), ("sinks", "stdout")] {
        let used = pipelines.values().filter_map(|pipeline| pipeline.get(section)?.as_array());
        let used: Vec<_> = used.flatten().filter_map(Toml::as_str).collect();
        let parts = table.entry(section).or_insert_with(|| Toml::Table(Table::new()));
        let parts = parts.as_table_mut().unwrap();
        for name in used {
            let part = Table::from_iter([("type".to_owned(), Toml::from(kind))]);
            parts.entry(name).or_insert(Toml::Table(part));
        }
    }
    let agent = table.entry("agent").or_insert_with(|| Toml::Table(Table::new()));
    agent.as_table_mut().unwrap().entry("id").or_insert("book".into());
    table
}

#[test]
fn every_command_of_the_book_is_one() {
    let (mut wrong, mut count) = (String::new(), 0);
    for block in blocks("sh") {
        for line in block.text.lines() {
            for words in commands(line) {
                let mut command = Command::new(cargo_bin("waystation"));
                // Whatever is wrong in front of it is told first, and nothing is done.
                let output = command.args(&words).arg("--help").output().unwrap();
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr);
                    writeln!(wrong, "{}: {words:?}: {said}", block.place).unwrap();
                }
                count += 1;
            }
        }
    }
    eprintln!("{count} commands");
    assert!(count > 20 && wrong.is_empty(), "{wrong}");
}

/// The arguments of each call of the agent in a line for a shell: as far as our pages go, which have quotes and no escapes.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), String::new());
    let mut quote = None;
    let end_word = |words: &mut Vec<String>, word: &mut String| {
        if !word.is_empty() {
            words.push(std::mem::take(word));
        }
    };
    for character in line.chars() {
        match (character, quote) {
            (_, Some(open)) if character == open => quote = None,
            (_, Some(_)) => word.push(character),
            ('\'' | '"', None) => quote = Some(character),
            ('#', None) if word.is_empty() => break,
            (';' | '&' | '|' | '>' | '<', None) => {
                end_word(&mut words, &mut word);
                all.push(std::mem::take(&mut words));
            }
            (' ', None) => end_word(&mut words, &mut word),
            _ => word.push(character),
        }
    }
    end_word(&mut words, &mut word);
    all.push(words);
    // `2>` leaves its number behind.
    let ours = |words: &Vec<String>| words.first().is_some_and(|word| word == "waystation");
    let arguments = |words: Vec<String>| {
        words.into_iter().skip(1).filter(|word| word != "2").collect::<Vec<_>>()
    };
    all.into_iter().filter(ours).map(arguments).collect()
}

#[test]
fn the_keys_in_the_book_are_those_of_this_build() {
    let mut page = String::from(
        "# Every key of the config\n\n\
         Generated from the schema that `waystation config schema` prints; a test keeps it true. NAME stands for a name of yours.\n",
    );
    for (name, section) in schema()["properties"].as_object().unwrap() {
        keys_of(&mut page, name, section);
    }
    is_page("config.md", &page);
}

/// The tables below a section, each with its keys.
fn keys_of(page: &mut String, path: &str, schema: &Value) {
    if schema.get("propertyNames").is_some() {
        let part = &schema["additionalProperties"];
        let Some(kinds) = part["oneOf"].as_array() else {
            return keys_of(page, &format!("{path}.NAME"), part);
        };
        for kind in kinds {
            let word = kind["properties"]["type"]["const"].as_str().unwrap();
            writeln!(page, "\n## `[{path}.NAME]` with `type = \"{word}\"`\n").unwrap();
            rows(page, "", kind);
        }
        return;
    }
    writeln!(page, "\n## `[{path}]`\n").unwrap();
    rows(page, "", schema);
}

fn rows(page: &mut String, before: &str, table: &Value) {
    if before.is_empty() {
        page.push_str("| key | default | what it is |\n|---|---|---|\n");
    }
    let required = |name: &str| {
        table["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name))
    };
    for (name, key) in table["properties"].as_object().unwrap() {
        if key.get("const").is_some() {
            continue;
        }
        let path = format!("{before}{name}");
        if key.get("properties").is_some() {
            rows(page, &format!("{path}."), key);
            continue;
        }
        let default = match key.get("default") {
            Some(default) => format!("`{default}`"),
            None if required(name) && before.is_empty() => "required".to_owned(),
            None if required(name) => "required there".to_owned(),
            None => String::new(),
        };
        let text = key["description"].as_str().unwrap_or_default();
        let (about, expected) = text.split_once(" Expected: ").unwrap_or((text, ""));
        let bounds = match (key.get("minimum"), key.get("maximum")) {
            (Some(least), Some(most)) => format!(", {least} to {most}"),
            _ => String::new(),
        };
        let expected = expected.replace('|', "\\|");
        writeln!(page, "| `{path}` | {default} | {about} *{expected}{bounds}* |").unwrap();
    }
}

#[test]
fn the_metrics_in_the_book_are_those_of_this_build() {
    let mut page = String::from(
        "# Every metric\n\n\
         `/metrics` in the text format of Prometheus; generated, and a test keeps it true. Counters begin anew with each run, \
         unless they say otherwise.\n\n\
         | metric | type | labels | what it is |\n|---|---|---|---|\n",
    );
    let text = std::fs::read_to_string(repository(METRICS)).unwrap();
    let families = text.split("# HELP ").skip(1);
    for (name, rest) in families.filter_map(|family| family.split_once(' ')) {
        let mut lines = rest.lines();
        let about = lines.next().unwrap();
        let kind = lines.next().and_then(|line| line.rsplit_once(' ')).unwrap().1;
        // What some samples have and others have not, as `transform` and `sink`, is an alternative.
        let mut sets: Vec<String> = Vec::new();
        for set in lines.map(labels).filter(|set| !set.is_empty()) {
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
        writeln!(page, "| `{name}` | {kind} | {} | {about} |", sets.join(" or ")).unwrap();
    }
    is_page("metrics.md", &page);
}

/// The names of a sample's labels.
fn labels(sample: &str) -> String {
    let inside = sample.split_once('{').and_then(|(_, rest)| Some(rest.rsplit_once('}')?.0));
    let names = inside.into_iter().flat_map(|labels| labels.split("\","));
    let names = names.filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0)));
    names.filter(|label| label != "`le`").collect::<Vec<_>>().join(", ")
}

fn is_page(name: &str, text: &str) {
    let path = repository("docs/src/reference").join(name);
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let is_same = std::fs::read_to_string(&path).is_ok_and(|found| found == text);
    assert!(is_same, "{} is not of this build: run this test with {WRITE}=1", path.display());
}

#[test]
fn every_page_of_the_book_is_in_its_contents_and_every_link_leads_somewhere() {
    let book = repository("docs/src");
    let contents = std::fs::read_to_string(book.join("SUMMARY.md")).unwrap();
    let mut wrong = String::new();
    for page in pages() {
        if let Ok(name) = page.strip_prefix(&book)
            && name != Path::new("SUMMARY.md")
            && !contents.contains(&format!("({})", name.display()))
        {
            writeln!(wrong, "{} is not in SUMMARY.md", name.display()).unwrap();
        }
        let text = std::fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let file = target.split('#').next().unwrap_or_default();
            let is_ours = !file.is_empty() && !file.contains("://");
            if is_ours && !page.parent().unwrap().join(file).exists() {
                writeln!(wrong, "{}: {target} leads nowhere", page.display()).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
