//! What the people who work on Waystation run: `cargo xtask plugins`.

mod plugins;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("plugins") => {
            let names: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
            plugins::run(root, &names)
        }
        _ => Err(anyhow::anyhow!("usage: cargo xtask plugins [NAME…]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            plugins::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
