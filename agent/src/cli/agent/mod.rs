//! The way to a running agent: where its socket is, how it is asked, and which lane somebody means.

mod ask;
pub(super) mod lanes;
pub(super) mod socket;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ExitCode, Failure};
use crate::admin::VERSION;
use crate::admin::status::StatusView;
use ask::Question;

/// Which agent is asked.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct AgentArgs {
    /// The config file of the agent, for where its socket is [default: /etc/waystation/waystation.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    pub(super) config: Option<PathBuf>,
    /// The agent's socket, without looking into a config
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

/// Where an agent's journal and socket are, for what is read from the one and done through the other.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PlaceArgs {
    /// The config file of the agent, for its data_dir and socket [default: /etc/waystation/waystation.toml]
    #[arg(short, long, value_name = "FILE", conflicts_with = "data_dir")]
    pub(super) config: Option<PathBuf>,
    /// The data directory, without looking into a config
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The agent's socket, where it is not in the data directory
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl PlaceArgs {
    pub(super) fn data_dir(&self) -> Result<PathBuf, Failure> {
        match &self.data_dir {
            Some(directory) => Ok(directory.clone()),
            None => socket::data_dir(self.config.as_deref()),
        }
    }

    pub(super) fn agent(&self) -> Result<Agent, Failure> {
        let sockets = match (&self.socket, &self.data_dir) {
            (Some(socket), _) => vec![socket.clone()],
            (None, Some(directory)) => vec![socket::in_data_dir(directory)],
            (None, None) => socket::candidates(self.config.as_deref())?,
        };
        Ok(Agent(sockets))
    }

    /// `agent.owner` and `agent.runbook`, where a config says them.
    pub(super) fn whom_to_ask(&self) -> (Option<String>, Option<String>) {
        if self.is_without_config() {
            return (None, None);
        }
        socket::whom_to_ask(self.config.as_deref())
    }

    /// Only a data directory is named.
    pub(super) fn is_without_config(&self) -> bool {
        self.data_dir.is_some()
    }
}

impl AgentArgs {
    pub(super) fn agent(&self) -> Result<Agent, Failure> {
        Ok(Agent(match &self.socket {
            Some(socket) => vec![socket.clone()],
            None => socket::candidates(self.config.as_deref())?,
        }))
    }
}

/// A running agent, by the sockets where it may answer.
#[derive(Debug)]
pub(super) struct Agent(pub(super) Vec<PathBuf>);

/// The one field that every version has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Agent {
    /// The status as it is told.
    pub(super) fn status_text(&self) -> anyhow::Result<Bytes> {
        let question = Question { path: "/status", order: None, patience: Duration::ZERO };
        ask::first_answer(&self.0, &question)
    }

    /// The status.
    pub(super) fn status(&self) -> anyhow::Result<StatusView> {
        read(&self.status_text()?)
    }

    /// Gives an order and waits for what it came to, for `patience` and a little.
    pub(super) fn order<T: DeserializeOwned>(
        &self,
        path: &'static str,
        order: &impl Serialize,
        patience: Duration,
    ) -> anyhow::Result<T> {
        let order = serde_json::to_vec(order).context("the order cannot be written")?;
        let question = Question { path, order: Some(order.into()), patience };
        read(&ask::first_answer(&self.0, &question)?)
    }
}

/// Reads an answer of the version that this program knows.
pub(super) fn read<T: DeserializeOwned>(answer: &[u8]) -> anyhow::Result<T> {
    let not_understood = |message: String| Failure {
        code: ExitCode::Failed,
        message,
        hint: Some("`status --json` prints what the agent says as it is".to_owned()),
    };
    let Versioned { version } = serde_json::from_slice(answer)
        .map_err(|error| not_understood(format!("the agent's answer is none of ours: {error}")))?;
    if version != VERSION {
        return Err(not_understood(format!(
            "the agent answers in version {version}, this program reads {VERSION}"
        ))
        .into());
    }
    serde_json::from_slice(answer).map_err(|error| {
        not_understood(format!("the agent's answer cannot be read: {error}")).into()
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
        let server =
            admin::serve(options, source, admin::tests::no_orders(), Shutdown::new()).unwrap();
        let agent = Agent(vec![directory.path().join("dead.sock"), socket]);
        assert_eq!(agent.status().unwrap(), StatusView::of(&admin::tests::status()));
        server.close();
        let told = agent.status().unwrap_err().to_string();
        assert_eq!(told.matches("there is no such file").count(), 2, "{told}");
    }

    #[test]
    fn another_version_is_named_and_the_way_around_it_too() {
        let read = |text: &[u8]| read::<StatusView>(text).unwrap_err().to_string();
        let told = read(br#"{"version":2,"agent":"gw"}"#);
        assert!(told.contains("in version 2, this program reads 1"), "{told}");
        assert!(read(b"<html>").contains("is none of ours"));
        assert!(read(br#"{"version":1}"#).contains("cannot be read"));
    }
}
