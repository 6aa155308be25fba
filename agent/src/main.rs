//! The `waystation` binary.

fn main() -> std::process::ExitCode {
    waystation::memory::bound_arenas();
    waystation::cli::run(std::env::args_os()).into()
}
