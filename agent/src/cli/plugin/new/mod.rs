//! `waystation plugin new`: a project that builds, with its cases and a pipeline to try it in.

mod templates;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::cli::{ExitCode, Failure, print};
use templates::{NAME, Template};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The language
    #[arg(long, value_enum)]
    lang: Language,
    /// Name of the plugin; default that of the folder
    #[arg(long)]
    name: Option<String>,
    /// Where the project goes: a folder that is not there yet, or empty
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Language {
    Rust,
    C,
    #[value(alias = "js")]
    Javascript,
    Python,
    Go,
}

impl Language {
    fn template(self) -> &'static Template {
        match self {
            Self::Rust => &templates::RUST,
            Self::C => &templates::C,
            Self::Javascript => &templates::JAVASCRIPT,
            Self::Python => &templates::PYTHON,
            Self::Go => &templates::GO,
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let name = name(args)?;
    let template = args.lang.template();
    check_empty(folder)?;
    for (path, bytes) in template.files(&name) {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, bytes))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let (shown, needs, options) = (folder.display(), template.needs, template.test_options);
    let text = format!(
        "{name} is in {shown}; README.md there says more. Next:\n  \
         cd {shown}\n  \
         sh build.sh   # needs {needs}\n  \
         waystation plugin test {name}.wasm cases.jsonl{options}\n  \
         waystation run --once -c waystation.toml < readings.ndjson\n"
    );
    print(text.as_bytes())?;
    Ok(ExitCode::Done)
}

/// A name that is good as a package in every language, and as the name of a transform.
fn name(args: &Args) -> anyhow::Result<String> {
    let of_folder = || args.folder.file_name()?.to_str();
    let name = args.name.as_deref().or_else(of_folder).unwrap_or_default();
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_good = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(good)
        && name.len() <= NAME_BYTES_MAX;
    if is_good {
        return Ok(name.to_owned());
    }
    Err(Failure {
        code: ExitCode::Usage,
        message: format!(
            "\"{name}\" is no name for a plugin: a small letter, then up to {} small letters, digits and hyphens",
            NAME_BYTES_MAX - 1
        ),
        hint: args.name.is_none().then(|| format!("name it, for example with --name {NAME}")),
    }
    .into())
}

const NAME_BYTES_MAX: usize = 40;

fn check_empty(folder: &Path) -> anyhow::Result<()> {
    let not = |what: &str| Failure {
        code: ExitCode::Failed,
        message: format!("{} is {what}; nothing was written", folder.display()),
        hint: Some("name a folder that is not there yet".to_owned()),
    };
    match fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(not("not empty").into()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(not("no folder").into()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", folder.display())),
    }
}
