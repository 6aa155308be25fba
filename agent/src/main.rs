//! The `waystation` binary.

fn main() -> std::process::ExitCode {
    waystation::cli::run(std::env::args_os()).into()
}
