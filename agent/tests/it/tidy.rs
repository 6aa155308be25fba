//! Rules of the tree that clippy cannot see: which part may import which, how long a file may be, what must not be left
//! behind, and that the examples and the README are in order.

mod imports;
mod lexer;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use lexer::Token;

/// Most lines of a source file.
const FILE_LINES_MAX: usize = 800;
/// Folders that hold nothing of ours, or what is broken on purpose.
const SKIPPED: [&str; 6] = [".git", ".tools", "target", "node_modules", "snapshots", "fixtures"];
/// Endings of the files that people wrote.
const TEXT: [&str; 14] = [
    "c", "go", "h", "js", "json", "md", "proto", "py", "rs", "service", "sh", "toml", "txt", "wit",
];

/// A file of the tree: its path from the root, with `/`, and its text.
struct SourceFile {
    path: String,
    text: String,
}

impl SourceFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// All text files below the root.
fn tree() -> Vec<SourceFile> {
    let root = root();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if kind.is_file() && is_text(&path) {
                let path_text = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                files
                    .push(SourceFile { path: path_text, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    files.sort_by(|one, two| one.path.cmp(&two.path));
    assert!(files.iter().any(|file| file.path == "agent/src/lib.rs"), "the tree is not found");
    files
}

fn is_text(path: &Path) -> bool {
    match path.extension() {
        Some(extension) => TEXT.iter().any(|text| extension == *text),
        None => path.ends_with(".ci/run") || path.ends_with("LICENSE"),
    }
}

fn assert_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n  {}", problems.len(), problems.join("\n  "));
}

/// Files that are too long or do not say what they are, and marks that must not stay.
fn check_file(file: &SourceFile) -> Vec<String> {
    let SourceFile { path, text } = file;
    let mut problems = leftovers(file);
    if !file.is_rust() {
        return problems;
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        problems.push(format!("{path}: {lines} lines, at most {FILE_LINES_MAX}"));
    }
    if !text.starts_with("//!") && !path.ends_with("/tests.rs") {
        problems.push(format!("{path}:1: a module opens with what it is (//!)"));
    }
    let tokens = lexer::tokens(text);
    for window in tokens.windows(4) {
        if let ["#", "[", "ignore", "]"] = texts(window)[..] {
            problems.push(format!("{path}:{}: a test ignored without a reason", window[0].line));
        }
    }
    problems
}

fn texts(tokens: &[Token]) -> Vec<&str> {
    tokens.iter().map(|token| token.text.as_str()).collect()
}

/// Marks without an issue, and paths of the machine that the text was written on.
fn leftovers(file: &SourceFile) -> Vec<String> {
    // Put together here, so that this file does not hold what it looks for.
    let marks = [["TO", "DO"], ["FIX", "ME"]].map(|parts| parts.concat());
    let paths = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["../sha", "red/"]]
        .map(|parts| parts.concat());
    let mut problems = Vec::new();
    for (line, number) in file.text.lines().zip(1..) {
        for mark in &marks {
            if has_bare_mark(line, mark) {
                problems.push(format!("{}:{number}: {mark} without (#issue)", file.path));
            }
        }
        for path in &paths {
            if has_path(line, path) {
                problems.push(format!("{}:{number}: the path of one machine: {path}", file.path));
            }
        }
    }
    problems
}

/// Whether the word stands in the line without a number of an issue behind it.
fn has_bare_mark(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let rest = &line[at + mark.len()..];
        let is_word = !before.is_some_and(is_word_character)
            && !rest.chars().next().is_some_and(is_word_character);
        let number = rest.strip_prefix("(#").and_then(|rest| rest.split_once(')'));
        is_word && number.is_none_or(|(number, _)| number.parse::<u32>().is_err())
    })
}

/// Whether an absolute path begins with `path`; `network/` or `C:/work/` does not.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|before| is_word_character(before) || "./:-*}".contains(before))
    })
}

fn is_word_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The blocks of a Markdown text that begin with three backticks and this language, with the line they begin at.
fn blocks<'a>(markdown: &'a str, language: &str) -> Vec<(usize, Vec<&'a str>)> {
    let mut blocks = Vec::new();
    let mut open: Option<(bool, usize, Vec<&str>)> = None;
    for (line, number) in markdown.lines().zip(1..) {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(named)) => open = Some((named.trim() == language, number, Vec::new())),
            (None, None) => {}
            (Some((_, _, lines)), None) => lines.push(line),
            (Some(_), Some(_)) => {
                if let Some((true, begin, lines)) = open.take() {
                    blocks.push((begin, lines));
                }
            }
        }
    }
    blocks
}

#[test]
fn parts_import_only_what_lies_below_them() {
    let files: Vec<SourceFile> =
        tree().into_iter().filter(|file| file.path.starts_with("agent/src/")).collect();
    let found = imports::check(&files);
    assert_none(&found);
}

#[test]
fn files_are_short_say_what_they_are_and_leave_nothing_behind() {
    let problems: Vec<String> = tree().iter().flat_map(check_file).collect();
    assert_none(&problems);
}

#[test]
fn examples_and_the_blocks_of_the_readme_are_toml() {
    let mut problems = Vec::new();
    let mut count = 0;
    for SourceFile { path, text } in tree() {
        let texts = if path.starts_with("examples/") && path.ends_with(".toml") {
            vec![(1, text)]
        } else if path == "README.md" {
            let blocks = blocks(&text, "toml").into_iter();
            blocks.map(|(line, lines)| (line, lines.join("\n"))).collect()
        } else {
            continue;
        };
        for (line, text) in texts {
            count += 1;
            if let Err(error) = toml::from_str::<toml::Table>(&text) {
                problems.push(format!("{path}:{line}: {error}"));
            }
        }
    }
    assert!(count >= 3, "only {count} examples are found");
    assert_none(&problems);
}

#[test]
fn the_changelog_has_a_place_for_what_comes_next() {
    let text = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    assert!(text.lines().any(|line| line == "## [Unreleased]"), "CHANGELOG.md: no [Unreleased]");
}

#[test]
fn files_that_break_a_rule_are_found() {
    let found = |path: &str, text: &str| {
        check_file(&SourceFile { path: path.to_owned(), text: text.to_owned() })
    };
    let mark = ["TO", "DO"].concat();
    let work = ["/wo", "rk/"].concat();
    let cases = [
        ("a.rs", "//! A.\n".repeat(801), "801 lines, at most 800"),
        ("a.rs", "fn a() {}\n".to_owned(), "a.rs:1: a module opens"),
        ("a.rs", format!("//! A.\n// {mark}: later\n"), "a.rs:2: "),
        ("a.md", format!("{mark} (#17)"), "without (#issue)"),
        ("a.rs", "//! A.\n#[test]\n#[ignore]\nfn a() {}\n".to_owned(), "a.rs:3: a test ign"),
        ("a.sh", format!("cd {work}main"), "a.sh:1: the path"),
        ("a.toml", format!("path = \"{work}main\""), "a.toml:1: the path"),
    ];
    for (path, text, expected) in cases {
        let problems = found(path, &text);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{expected}: {problems:?}");
    }
    let good = format!("//! A.\n// {mark}(#17): later, in net{work}x and {mark}S\nfn a() {{}}\n");
    assert!(found("a.rs", &good).is_empty(), "{:?}", found("a.rs", &good));
}

#[test]
fn blocks_of_other_languages_are_left_out() {
    let text = "a\n```toml\nx = 1\n```\n```sh\nls\n```\n  ```toml\n  y = 2\n  ```\n";
    assert_eq!(blocks(text, "toml"), [(2, vec!["x = 1"]), (8, vec!["  y = 2"])]);
}

/// The names of the parts and leaves in a set of files.
fn names_below_src(files: &[SourceFile]) -> BTreeSet<String> {
    let below = files.iter().filter_map(|file| file.path.strip_prefix("agent/src/"));
    below
        .filter_map(|path| match path.split_once('/') {
            Some((part, _)) => Some(part.to_owned()),
            None => path.strip_suffix(".rs").map(str::to_owned),
        })
        .collect()
}
