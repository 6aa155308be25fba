//! `waystation version`: what this binary is made of.

use serde_json::json;

use crate::{journal, plugin};

/// What an agent can be built without, and whether this one has it.
const FEATURES: [(&str, bool); 6] = [
    ("compiler", cfg!(feature = "compiler")),
    ("http2", cfg!(feature = "http2")),
    ("journald", cfg!(feature = "journald")),
    ("metrics", cfg!(feature = "metrics")),
    ("mqtt", cfg!(feature = "mqtt")),
    ("sockets", cfg!(feature = "sockets")),
];

/// Print the version, those of what it is made of, and what it is built with
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
    let features: Vec<&str> =
        FEATURES.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name).collect();
    if json {
        let all = json!({
            "waystation": version,
            "sqlite": sqlite,
            "wasmtime": wasmtime,
            "wit": wit,
            "target": target,
            "features": features,
        });
        return format!("{all}\n");
    }
    let mut features = features.join(", ");
    if features.is_empty() {
        features.push_str("nothing that can be left out");
    }
    format!(
        "waystation {version}\n\
         sqlite     {sqlite}\n\
         wasmtime   {wasmtime}\n\
         plugins    waystation:plugin@{wit}\n\
         target     {target}\n\
         built with {features}\n"
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
        assert!(
            text.contains("built with compiler, http2, journald, metrics, mqtt, sockets\n"),
            "{text}"
        );
        let manifest = include_str!("../../Cargo.toml").parse::<toml::Table>().unwrap();
        let all = serde_json::to_value(&manifest["features"]["default"]).unwrap();
        assert_eq!(object["features"], all, "FEATURES lists what can be left out");
        assert!(object["wasmtime"].as_str().unwrap().starts_with("48."));
        assert!(object["sqlite"].as_str().unwrap().starts_with("3."));
    }
}
