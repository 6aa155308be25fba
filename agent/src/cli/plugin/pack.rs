//! `waystation plugin pack`: a component out of what a language's compiler makes.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{listed, on_stderr};
use crate::cli::{ExitCode, Failure, print};
use crate::plugin;
use crate::units::human_bytes;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The core module
    #[arg(value_name = "CORE.wasm")]
    file: PathBuf,
    /// Where the component goes
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The world, for a module that does not say which it is of
    #[arg(long, value_name = "WORLD", value_parser = plugin::WORLDS)]
    world: Option<String>,
    /// Replace the output if it exists
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // Said before the work; what appears meanwhile is not replaced either.
    if !args.force && args.output.symlink_metadata().is_ok() {
        return Err(exists(&args.output).into());
    }
    let component = plugin::pack(&args.file, args.world.as_deref()).map_err(|problems| {
        let file = args.file.display();
        Failure {
            code: ExitCode::Failed,
            message: listed(&format!("{file} cannot be packed"), &problems),
            hint: None,
        }
    })?;
    write(&args.output, &component, args.force)?;
    let size = human_bytes(component.len() as u64);
    on_stderr(&format!("{} is a component of {size}", args.output.display()));
    print(format!("{}\n", plugin::hex(&plugin::digest_of(&args.output)?)).as_bytes())?;
    Ok(ExitCode::Done)
}

fn exists(path: &Path) -> Failure {
    Failure {
        code: ExitCode::Failed,
        message: format!("{} exists", path.display()),
        hint: Some("--force replaces it".to_owned()),
    }
}

/// Writes a file beside its place and renames it, so that nobody ever sees half of it.
fn write(path: &Path, bytes: &[u8], force: bool) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let failed = || format!("cannot write {}", path.display());
    let mut part = tempfile::Builder::new()
        .prefix(".waystation-pack-")
        // The umask has its say.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .with_context(failed)?;
    part.write_all(bytes).and_then(|()| part.as_file().sync_all()).with_context(failed)?;
    if force {
        part.persist(path).with_context(failed)?;
    } else if let Err(error) = part.persist_noclobber(path) {
        if error.error.kind() == std::io::ErrorKind::AlreadyExists {
            return Err(exists(path).into());
        }
        return Err(error).with_context(failed);
    }
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(failed)
}
