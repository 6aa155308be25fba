//! `waystation status`: asks a running agent how it is, and says it in the order in which somebody who was woken needs it.

mod ask;
mod page;
pub(super) mod socket;
mod verdict;

use std::io::IsTerminal as _;
use std::path::PathBuf;

use serde::Deserialize;

use super::{ExitCode, Failure};
use crate::admin::status::{StatusView, VERSION};
use crate::clock::{Clock as _, SystemClock};

/// Ask the running agent how it is
///
/// The first line says the worst: what waits and why, since when, and what to do.
/// Then come the lanes, one for each source, pipeline and sink:
///
///   queued        not at the destination yet: delayed, not lost
///   delivered     at the destination
///   already       there before, from an attempt whose answer was lost
///   dropped       left out by a plugin
///   dead letters  given up and kept: quarantined
///   lost          gone, by a policy that says so or by damage
///
/// Columns that hold nothing but zeros are left out. With --json, scripts get
/// all of it; fields may be added, and "version" tells when one changes.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// The config file of the agent, for where its socket is [default: /etc/waystation/waystation.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The agent's socket, without looking into a config
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the status as one JSON object
    #[arg(long)]
    json: bool,
}

/// The one field that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Runs `waystation status`.
///
/// # Errors
/// When no agent answers, or not in a way that this version understands.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let sockets = match &args.socket {
        Some(socket) => vec![socket.clone()],
        None => socket::candidates(args.config.as_deref())?,
    };
    let answer = ask::first_answer(&sockets)?;
    if args.json {
        return super::print(&[&answer[..], b"\n"].concat());
    }
    let status = read(&answer)?;
    let coloured = std::io::stdout().is_terminal();
    super::print(page::page(&status, SystemClock.now(), coloured).as_bytes())
}

fn read(answer: &[u8]) -> anyhow::Result<StatusView> {
    let not_understood = |message: String| Failure {
        code: ExitCode::Failed,
        message,
        hint: Some("--json prints it as it is".to_owned()),
    };
    let Versioned { version } = serde_json::from_slice(answer)
        .map_err(|error| not_understood(format!("the agent's answer is no status: {error}")))?;
    if version != VERSION {
        return Err(not_understood(format!(
            "the agent tells its status in version {version}, this program reads {VERSION}"
        ))
        .into());
    }
    serde_json::from_slice(answer).map_err(|error| {
        not_understood(format!("the agent's status cannot be read: {error}")).into()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::admin::{self, AdminOptions};
    use crate::tasks::Shutdown;

    #[test]
    fn a_running_server_is_asked_also_when_the_first_socket_is_dead() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("admin.sock");
        let options = AdminOptions { socket: socket.clone(), listen: None };
        let source = Arc::new(admin::tests::status);
        let server = admin::serve(options, source, Shutdown::new()).unwrap();
        let sockets = [directory.path().join("dead.sock"), socket];
        let answer = ask::first_answer(&sockets).unwrap();
        assert_eq!(read(&answer).unwrap(), StatusView::of(&admin::tests::status()));
        server.close();
        let told = ask::first_answer(&sockets).unwrap_err().to_string();
        assert_eq!(told.matches("there is no such file").count(), 2, "{told}");
    }

    #[test]
    fn another_version_is_named_and_the_way_around_it_too() {
        let error = read(br#"{"version":2,"agent":"gw"}"#).unwrap_err();
        assert!(error.to_string().contains("in version 2, this program reads 1"), "{error}");
        assert!(read(b"<html>").unwrap_err().to_string().contains("is no status"));
        assert!(read(br#"{"version":1}"#).unwrap_err().to_string().contains("cannot be read"));
    }
}
