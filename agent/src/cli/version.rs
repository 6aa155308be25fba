//! `waystation version`: what this binary is made of.

use serde_json::json;

use crate::{journal, plugin};

/// Print the version, and those of what it is made of
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `waystation version`.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    super::print(text(args.json).as_bytes())
}

fn text(json: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let (sqlite, wasmtime, wit) =
        (journal::sqlite_version(), plugin::WASMTIME_VERSION, plugin::WIT_VERSION);
    let target = target();
    if json {
        let all = json!({
            "waystation": version,
            "sqlite": sqlite,
            "wasmtime": wasmtime,
            "wit": wit,
            "target": target,
        });
        return format!("{all}\n");
    }
    format!(
        "waystation {version}\n\
         sqlite     {sqlite}\n\
         wasmtime   {wasmtime}\n\
         plugins    waystation:plugin@{wit}\n\
         target     {target}\n"
    )
}

/// Processor, system and C library.
fn target() -> String {
    let library = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-{}-{library}", std::env::consts::ARCH, std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_is_told_in_both_forms() {
        let object: serde_json::Value = serde_json::from_str(&text(true)).unwrap();
        let text = text(false);
        for part in ["waystation", "sqlite", "wasmtime", "wit", "target"] {
            let version = object[part].as_str().unwrap();
            assert!(!version.is_empty() && text.contains(version), "{part}");
        }
        assert!(object["wasmtime"].as_str().unwrap().starts_with("48."));
        assert!(object["sqlite"].as_str().unwrap().starts_with("3."));
    }
}
