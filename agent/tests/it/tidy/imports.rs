//! The order of the parts in `agent/src`: each imports only from rows below its own.
//!
//! ```text
//! main → cli → admin → supervisor → config → lane → { sources, sinks } → { journal, plugin, net }
//!      → { record, telemetry } → settings → leaves
//! ```
//!
//! Leaves are the files directly in `src/`; they import nothing of the crate. Tests may also import from their own row.

use std::collections::BTreeSet;

use super::lexer::{self, Token};
use super::{SourceFile, names_below_src};

/// The parts, row by row from the lowest; below them are the leaves.
const ROWS: [&[&str]; 10] = [
    &["settings"],
    &["record", "telemetry"],
    &["journal", "plugin", "net"],
    &["sources", "sinks"],
    &["lane"],
    &["config"],
    &["supervisor"],
    &["admin"],
    &["cli"],
    &["main"],
];

/// Crates that only some folders may name.
const CRATES: [(&str, &[&str]); 7] = [
    ("rusqlite", &["journal/"]),
    ("wasmtime", &["plugin/"]),
    ("async_nats", &["net/", "sources/nats", "sinks/nats"]),
    ("clap", &["cli/"]),
    ("reqwest", &["net/", "sinks/http", "sinks/plugin"]),
    ("rumqttc", &["sources/mqtt"]),
    ("rustls", &["net/"]),
];

/// What `sources` may name of `journal`: the appender and the types of its calls.
const JOURNAL_FOR_SOURCES: [&str; 6] =
    ["Append", "AppendError", "Appender", "Pending", "Position", "SourceLetter"];

/// A path of this crate that a file names.
#[derive(Debug, PartialEq, Eq)]
struct Reference {
    /// From the root of the crate.
    path: Vec<String>,
    line: usize,
    in_tests: bool,
}

/// All breaches of the order in the files of `agent/src`.
pub(super) fn check(files: &[SourceFile]) -> Vec<String> {
    let names = names_below_src(files);
    let test_files = test_files(files);
    let mut problems = Vec::new();
    for name in &names {
        let is_folder =
            files.iter().any(|file| file.path.starts_with(&format!("agent/src/{name}/")));
        if is_folder && row(name, &names).is_none_or(|row| row == 0) {
            problems.push(format!("agent/src/{name}/ has no place in the order of the parts"));
        }
    }
    for file in files.iter().filter(|file| file.is_rust() && file.path != "agent/src/lib.rs") {
        let Some(below) = file.path.strip_prefix("agent/src/") else { continue };
        let is_test = test_files.contains(&file.path);
        let tokens = lexer::tokens(&file.text);
        for reference in references(&tokens, &module_of(below), is_test) {
            if let Some(reason) = breach(below, &reference, &names) {
                problems.push(format!("{}:{}: {reason}", file.path, reference.line));
            }
        }
        problems.extend(foreign_crates(file, below, &tokens));
    }
    problems
}

/// The row of a part, 0 for a leaf.
fn row(name: &str, names: &BTreeSet<String>) -> Option<usize> {
    let row = ROWS.iter().position(|row| row.contains(&name)).map(|row| row + 1);
    row.or_else(|| names.contains(name).then_some(0))
}

/// Why the file `below` (`agent/src/`) may not name the path, if it may not.
fn breach(below: &str, reference: &Reference, names: &BTreeSet<String>) -> Option<String> {
    let from = part_of(below);
    let to = reference.path.first()?.as_str();
    if from == to {
        return None;
    }
    let (Some(from_row), Some(to_row)) = (row(from, names), row(to, names)) else {
        return Some(format!("crate::{to} is no part"));
    };
    let may_be_equal = reference.in_tests;
    if to_row > from_row || (to_row == from_row && !may_be_equal) {
        let row = if to_row > from_row { "above" } else { "beside" };
        return Some(format!("{from} imports {to}, which stands {row} it"));
    }
    if reference.in_tests {
        return None;
    }
    let item = reference.path.get(1).map_or("", String::as_str);
    match (from, to) {
        ("sinks", "journal") => Some("sinks do not know the journal".to_owned()),
        ("sinks", "plugin") if !below.starts_with("sinks/plugin/") => {
            Some("only sinks/plugin/ knows plugins".to_owned())
        }
        ("sources", "plugin") => Some("sources do not know plugins".to_owned()),
        ("sources", "journal") if !JOURNAL_FOR_SOURCES.contains(&item) => {
            Some(format!("sources know the journal's appender only, not journal::{item}"))
        }
        _ => None,
    }
}

/// The part, leaf or `main` that a file below `agent/src/` belongs to.
fn part_of(below: &str) -> &str {
    below.split_once('/').map_or_else(|| below.trim_end_matches(".rs"), |(part, _)| part)
}

/// `["sinks", "file"]` for `sinks/file/mod.rs`, with `write` added for `sinks/file/write.rs`.
fn module_of(below: &str) -> Vec<String> {
    let path = below.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').map(str::to_owned).collect()
}

/// The files of modules that are declared behind `#[cfg(test)]`, and of the modules in them.
fn test_files(files: &[SourceFile]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let stem = file.path.trim_end_matches(".rs");
        let folder =
            stem.strip_suffix("/mod").or_else(|| stem.strip_suffix("/lib")).unwrap_or(stem);
        let tokens = lexer::tokens(&file.text);
        for (at, token) in tokens.iter().enumerate() {
            let (Some(name), Some(end)) = (tokens.get(at + 1), tokens.get(at + 2)) else {
                continue;
            };
            if token.text == "mod" && end.text == ";" && is_behind_cfg_test(&tokens[..at]) {
                let module = format!("{folder}/{}", name.text);
                let inside = |path: &&String| {
                    **path == format!("{module}.rs") || path.starts_with(&format!("{module}/"))
                };
                found.extend(files.iter().map(|file| &file.path).filter(inside).cloned());
            }
        }
    }
    found
}

/// Whether the item that follows these tokens has `#[cfg(test)]` on it (or `#[cfg(all(test, …))]`).
fn is_behind_cfg_test(before: &[Token]) -> bool {
    let texts: Vec<&str> = before.iter().map(|token| token.text.as_str()).collect();
    let item = texts.iter().rposition(|text| [";", "}", "{"].contains(text)).map_or(0, |at| at + 1);
    texts[item..].windows(5).any(|window| {
        matches!(window, ["#", "[", "cfg", "(", "test"])
            || matches!(window, ["cfg", "(", "all" | "any", "(", "test"])
    })
}

/// Every path into the crate: from `crate`, from `waystation` (in `main.rs`), and from `super`.
fn references(tokens: &[Token], module: &[String], is_test: bool) -> Vec<Reference> {
    let mut found = Vec::new();
    // The inline modules around the place, with the depth of their braces and whether they are tests.
    let mut around: Vec<(String, usize, bool)> = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let text = |ahead: usize| tokens.get(at + ahead).map_or("", |token| token.text.as_str());
        let in_tests = is_test || around.last().is_some_and(|(_, _, test)| *test);
        let mut next = at + 1;
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth = depth.saturating_sub(1);
                if around.last().is_some_and(|(_, of_module, _)| *of_module == depth) {
                    around.pop();
                }
            }
            "mod" if text(2) == "{" => {
                let test = in_tests || is_behind_cfg_test(&tokens[..at]);
                around.push((text(1).to_owned(), depth, test));
            }
            first @ ("crate" | "waystation" | "super" | "self") if text(1) == "::" => {
                let here = module.iter().chain(around.iter().map(|(name, ..)| name));
                let base: Vec<String> = match first {
                    "super" | "self" => here.cloned().collect(),
                    _ => Vec::new(),
                };
                let mut paths = Vec::new();
                let up = usize::from(first == "super");
                let base = base[..base.len().saturating_sub(up)].to_vec();
                next = expand(tokens, at + 2, &base, &mut paths);
                found.extend(paths.into_iter().map(|(path, line)| Reference {
                    path,
                    line,
                    in_tests,
                }));
            }
            _ => {}
        }
        at = next;
    }
    found
}

/// Follows a path, or the tree of a `use`, from the token at `at`, puts each full path into `paths`, and returns where it
/// ends.
fn expand(
    tokens: &[Token],
    mut at: usize,
    base: &[String],
    paths: &mut Vec<(Vec<String>, usize)>,
) -> usize {
    let mut path = base.to_vec();
    let line = tokens.get(at).map_or(0, |token| token.line);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            "{" => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    let before = at;
                    at = expand(tokens, at, &path, paths);
                    // What stands behind a path in a tree: `as name` and the comma.
                    while tokens
                        .get(at)
                        .is_some_and(|token| ![",", "}"].contains(&token.text.as_str()))
                    {
                        at += 1;
                    }
                    at += usize::from(tokens.get(at).is_some_and(|token| token.text == ","));
                    assert!(at > before, "a tree of paths without an end in line {line}");
                }
                return at + 1;
            }
            "super" => drop(path.pop()),
            "self" => {}
            word if word.chars().all(|c| c.is_alphanumeric() || c == '_') => {
                path.push(word.to_owned());
            }
            _ => {
                paths.push((path, line));
                return at + 1;
            }
        }
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            paths.push((path, line));
            return at;
        }
        at += 1;
    }
    paths.push((path, line));
    at
}

/// Crates that are named outside of the folders that may.
fn foreign_crates(file: &SourceFile, below: &str, tokens: &[Token]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
        let before = if at == 0 { "" } else { text(at - 1) };
        let is_crate =
            text(at + 1) == "::" && before != "::" || before == "use" && text(at + 1) != "::";
        for (name, folders) in CRATES {
            let may = folders.iter().any(|folder| below.starts_with(folder));
            if token.text == name && is_crate && !may {
                let places = folders.join(", ");
                problems.push(format!(
                    "{}:{}: {name} belongs into {places} only",
                    file.path, token.line
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found when these files stand in a tree with one file of each part.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let parts = ROWS.iter().flat_map(|row| row.iter()).filter(|part| **part != "main");
        let mut tree: Vec<SourceFile> = parts
            .map(|part| (format!("agent/src/{part}/mod.rs"), String::new()))
            .chain([("agent/src/clock.rs".to_owned(), String::new())])
            .chain(
                files.iter().map(|(path, text)| (format!("agent/src/{path}"), (*text).to_owned())),
            )
            .map(|(path, text)| SourceFile { path, text })
            .collect();
        tree.sort_by(|one, two| one.path.cmp(&two.path));
        check(&tree)
    }

    #[test]
    fn planted_breaches_are_found() {
        let cases = [
            ("units.rs", "use crate::clock::Clock;", "units imports clock, which stands beside it"),
            ("units.rs", "use super::clock::Clock;", "units imports clock"),
            (
                "units.rs",
                "use crate::record::Record;",
                "units imports record, which stands above it",
            ),
            ("record/id.rs", "use crate::telemetry;", "record imports telemetry"),
            ("settings/a.rs", "use crate::record::Record;", "settings imports record"),
            ("journal/open.rs", "fn a() { crate::plugin::engine(); }", "journal imports plugin"),
            ("plugin/engine.rs", "use crate::journal::Journal;", "plugin imports journal"),
            ("journal/open.rs", "\n\nuse crate::lane::Lane;", "open.rs:3: journal imports lane"),
            ("sources/http.rs", "use crate::sinks::Sink;", "sources imports sinks"),
            ("sinks/a.rs", "use crate::{clock::Clock, journal::Journal};", "sinks do not know"),
            ("sinks/a.rs", "use crate::plugin::PluginHost;", "only sinks/plugin/"),
            ("sinks/file/a.rs", "use super::super::super::lane::Lane;", "sinks imports lane"),
            ("sources/a.rs", "use crate::journal::{Appender, Reader};", "not journal::Reader"),
            ("sources/a.rs", "use crate::journal;", "appender only"),
            ("sources/a.rs", "use crate::plugin::Plugin;", "sources do not know plugins"),
            ("config/load.rs", "use crate::supervisor::Handle;", "config imports supervisor"),
            ("admin/routes.rs", "use crate::cli::Cli;", "admin imports cli"),
            ("lane/a.rs", "use crate::units::ByteSize;", "crate::units is no part"),
            ("lane/a.rs", "use rusqlite::Connection;", "rusqlite belongs into journal/ only"),
            ("lane/a.rs", "use rusqlite as sql;", "rusqlite belongs"),
            ("lane/a.rs", "fn a(_: &wasmtime::Engine) {}", "wasmtime belongs into plugin/"),
            ("sinks/file/a.rs", "use async_nats::Client;", "async_nats belongs"),
            ("main.rs", "use clap::Parser;", "clap belongs into cli/"),
            ("extra/mod.rs", "", "agent/src/extra/ has no place"),
            ("lane/a.rs", "mod inner { use super::super::super::cli::Cli; }", "lane imports cli"),
            ("lane/a.rs", "#[cfg(test)] mod tests { use crate::cli::Cli; }", "lane imports cli"),
        ];
        for (path, text, expected) in cases {
            let problems = found(&[(path, text)]);
            let is_found = problems.len() == 1 && problems[0].contains(expected);
            assert!(is_found, "{path}: {text}: {expected}: {problems:?}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        let cases = [
            ("journal/open.rs", "use rusqlite::Connection;\nuse crate::record::Record;"),
            ("main.rs", "use waystation::cli; fn main() { waystation::cli::run(); }"),
            ("telemetry/config.rs", "use crate::settings::Table;"),
            ("sinks/plugin/mod.rs", "use crate::plugin::PluginHost;"),
            ("sinks/nats/publish.rs", "use async_nats::jetstream; use crate::net::nats;"),
            ("sources/a.rs", "use crate::journal::{Append, AppendError, Appender as Into};"),
            ("sources/file/a.rs", "use super::super::config::SourceConfig; use super::tail;"),
            ("lane/a.rs", "/// See [`crate::cli`].\nconst A: &str = \"crate::cli\"; // crate::cli"),
            (
                "lane/a.rs",
                "let wasmtime = a.rusqlite(); use crate::journal::{self, sql::rusqlite};",
            ),
            ("clock.rs", "#[cfg(test)]\nmod tests { use super::*; use crate::clock::Clock; }"),
            ("sinks/a.rs", "#[cfg(test)]\nmod tests { use crate::journal::Journal; }"),
            ("lane/a.rs", "pub(crate) fn a() {} pub(in crate::lane) struct B;"),
        ];
        for (path, text) in cases {
            let problems = found(&[(path, text)]);
            assert!(problems.is_empty(), "{path}: {text}: {problems:?}");
        }
    }

    #[test]
    fn tests_in_files_of_their_own_are_tests() {
        let parent = ("journal/writer.rs", "#[cfg(test)]\nmod tests;");
        let test = ("journal/writer/tests.rs", "use crate::plugin::Plugin;");
        assert!(found(&[parent, test]).is_empty());
        assert_eq!(found(&[("journal/writer.rs", "mod tests;"), test]).len(), 1);
    }
}
