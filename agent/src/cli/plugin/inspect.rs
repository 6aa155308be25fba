//! `waystation plugin inspect`: what a plugin's file is, and everything that keeps it from being used.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::listed;
use super::settings::place;
use crate::cli::workshop::Workshop;
use crate::cli::{ExitCode, Failure, print};
use crate::plugin::{self, Description, FileKind, Report};
use crate::units::human_bytes;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The plugin
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = args.file.display();
    let mut report =
        plugin::report(&args.file).with_context(|| format!("{file} cannot be read"))?;
    let is_fit = report.kind == FileKind::Component && report.problems.is_empty();
    let description = if is_fit {
        match Workshop::open()?.host.describe(&args.file, &place()?) {
            Ok(description) => description,
            Err(error) => {
                report.problems.push(crate::error_chain::Chain(&error).to_string());
                None
            }
        }
    } else {
        None
    };
    if args.json {
        print(format!("{}\n", object(args, &report, description.as_ref())).as_bytes())?;
    } else {
        print(page(args, &report, description.as_ref()).as_bytes())?;
    }
    match report.problems.is_empty() {
        true => Ok(ExitCode::Done),
        false if args.json => Ok(ExitCode::Failed),
        false => Err(Failure {
            code: ExitCode::Failed,
            message: listed(&format!("{file} cannot be used"), &report.problems),
            hint: None,
        }
        .into()),
    }
}

fn page(args: &Args, report: &Report, description: Option<&Description>) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let mut line = |what: &str, value: &str| {
        let _ok = writeln!(text, "{what:<10} {value}");
    };
    line("file", &args.file.display().to_string());
    line("kind", report.kind.as_str());
    line("size", &human_bytes(report.size_bytes));
    line("sha256", &plugin::hex(&report.sha256));
    let mut list = |what: &str, values: &[String]| {
        let heads = std::iter::once(what).chain(std::iter::repeat(""));
        heads.zip(values).for_each(|(head, value)| line(head, value));
    };
    list("worlds", &report.worlds.iter().map(ToString::to_string).collect::<Vec<_>>());
    let versions = report.interface_versions.iter();
    let versions: Vec<_> = versions.map(|version| format!("waystation:plugin@{version}")).collect();
    list("interface", &versions);
    list("imports", &report.imports);
    list("exports", &report.exports);
    if let Some(about) = description {
        line("name", &about.name);
        line("version", &about.version);
        line("summary", &about.summary);
        if !about.config_schema.is_empty() {
            let pretty = serde_json::from_str::<Value>(&about.config_schema)
                .and_then(|schema| serde_json::to_string_pretty(&schema));
            line("config", &pretty.unwrap_or_else(|_| about.config_schema.clone()));
        }
    }
    text
}

fn object(args: &Args, report: &Report, description: Option<&Description>) -> Value {
    let about = description.map(|about| {
        // A schema that is no JSON is shown as what it is.
        let schema = match about.config_schema.as_str() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        };
        json!({
            "name": about.name,
            "version": about.version,
            "summary": about.summary,
            "config_schema": schema,
        })
    });
    json!({
        "file": args.file.display().to_string(),
        "kind": report.kind.as_str(),
        "size_bytes": report.size_bytes,
        "sha256": plugin::hex(&report.sha256),
        "worlds": report.worlds,
        "interface_versions": report.interface_versions,
        "imports": report.imports,
        "exports": report.exports,
        "about": about,
        "problems": report.problems,
    })
}
