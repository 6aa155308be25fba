//! `waystation completions`: what a shell needs to complete our commands.

use clap::CommandFactory as _;

use super::Cli;

/// Print the completions for a shell
///
/// For bash, for example:
///   waystation completions bash > /etc/bash_completion.d/waystation
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Which shell
    shell: clap_complete::Shell,
}

/// Runs `waystation completions`.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    // Through memory: the generator panics where it cannot write.
    super::print(&script(args.shell))
}

fn script(shell: clap_complete::Shell) -> Vec<u8> {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_commands() {
        for shell in clap_complete::Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            assert!(script.contains("status") && script.contains("plugin"), "{shell}");
        }
    }
}
