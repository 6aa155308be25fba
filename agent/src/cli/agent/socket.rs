//! Where the agent's socket is, and what else somebody who is woken needs of its config.
//!
//! The file is not checked here, only looked into: whoever is woken must be answered also when the file was broken since, when
//! a secret is not in their own environment, or when they may not read what it refers to.

use std::path::{Path, PathBuf};

use super::super::{ExitCode, Failure};
use crate::config::{DATA_DIR_DEFAULT, Glimpse, PATH_DEFAULT, adopted, process_environment};

/// The name of the socket in the data directory.
const SOCKET_NAME: &str = "admin.sock";
/// Where the socket of the installed service is: systemd gives it a runtime directory that our own environment does not name.
const SERVICE_SOCKET: &str = "/run/waystation/admin.sock";

/// Paths to try, in this order. Without a file named, those of the installed service.
pub(in crate::cli) fn candidates(config: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    let looked = look_into(config, "--socket PATH asks the agent without a config")?;
    let of_the_service = looked.path == Path::new(PATH_DEFAULT);
    Ok(looked.sockets(of_the_service))
}

/// Paths to try for an agent with this data directory and its socket at the usual place.
pub(in crate::cli) fn in_data_dir(directory: &Path) -> PathBuf {
    directory.join(SOCKET_NAME)
}

/// Whom to ask and where to read on: `agent.owner` and `agent.runbook`. None where the config cannot be read.
pub(in crate::cli) fn whom_to_ask(config: Option<&Path>) -> (Option<String>, Option<String>) {
    let Ok(looked) = look_into(config, "") else { return (None, None) };
    (looked.text("agent", "owner"), looked.text("agent", "runbook"))
}

/// The data directory of a config, looked up in the same way.
pub(in crate::cli) fn data_dir(config: Option<&Path>) -> Result<PathBuf, Failure> {
    Ok(look_into(config, "--data-dir DIR looks there without a config")?.data_dir())
}

/// What can be read of a config, its absolute path, and the folder that its paths count from.
struct Looked {
    /// The file, and what an agent had adopted of it where that says more.
    glimpses: Vec<Glimpse>,
    path: PathBuf,
    base: PathBuf,
}

fn look_into(config: Option<&Path>, way_without: &str) -> Result<Looked, Failure> {
    let named = config.unwrap_or(Path::new(PATH_DEFAULT));
    let path = std::path::absolute(named).unwrap_or_else(|_| named.to_owned());
    let base = path.parent().unwrap_or(Path::new("/")).to_owned();
    let mut glimpses = Vec::new();
    let error = match Glimpse::of(named) {
        Ok(glimpse) => {
            glimpses.push(glimpse);
            None
        }
        Err(error) => Some(error),
    };
    // Its agent may run all the same, on what it had adopted of the file before that was broken or went away.
    if glimpses.iter().all(|glimpse| !glimpse.is_toml()) {
        let copy = adopted::find(named, &process_environment);
        glimpses.extend(copy.map(|copy| copy.glimpse()));
    }
    match error {
        // Nobody named it, and the agent may run on another one: what it would have by default is worth trying.
        Some(error) if config.is_some() && glimpses.is_empty() => Err(Failure {
            code: ExitCode::Config,
            message: format!("cannot read the config {}: {error}", named.display()),
            hint: Some(format!(
                "{way_without}; in {DATA_DIR_DEFAULT} no agent has kept a config of this name"
            )),
        }),
        _ => Ok(Looked { glimpses, path, base }),
    }
}

impl Looked {
    fn text(&self, table: &str, key: &str) -> Option<String> {
        self.glimpses.iter().find_map(|glimpse| glimpse.text(table, key))
    }

    fn data_dir(&self) -> PathBuf {
        let said = self.text("agent", "data_dir");
        said.map_or_else(|| DATA_DIR_DEFAULT.into(), |path| self.base.join(path))
    }

    fn sockets(&self, of_the_service: bool) -> Vec<PathBuf> {
        if let Some(socket) = self.text("admin", "socket") {
            return vec![self.base.join(socket)];
        }
        let own = self.data_dir().join(SOCKET_NAME);
        if of_the_service { vec![SERVICE_SOCKET.into(), own] } else { vec![own] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, of_the_service: bool) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("w.toml"), text).unwrap();
        let glimpse = Glimpse::of(&folder.path().join("w.toml")).unwrap();
        let (path, base) = ("/etc/w/w.toml".into(), "/etc/w".into());
        let looked = Looked { glimpses: vec![glimpse], path, base };
        let found = looked.sockets(of_the_service);
        found.iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_socket_is_where_the_config_says_even_when_the_rest_is_broken() {
        assert_eq!(at("[admin]\nsocket = \"run/a.sock\"\n", true), ["/etc/w/run/a.sock"]);
        assert_eq!(at("[agent]\ndata_dir = \"/data\"\n", false), ["/data/admin.sock"]);
        let broken =
            "[agent]\ndata_dir = \"/data\"\nid = = 3\nno such thing\n[sources.x]\ntype = 7\n";
        assert_eq!(at(broken, false), ["/data/admin.sock"]);
        let wrong_kind = "agent = 3\n[admin]\nsocket = 7\n";
        assert_eq!(at(wrong_kind, false), ["/var/lib/waystation/admin.sock"]);
    }

    #[test]
    fn the_runtime_directory_of_the_service_counts_for_its_own_config_only() {
        let both = ["/run/waystation/admin.sock", "/var/lib/waystation/admin.sock"];
        assert_eq!(at("", true), both);
        assert_eq!(at("", false), both[1..]);
    }

    #[test]
    fn a_config_that_was_named_and_is_not_there_is_an_error() {
        let failure = candidates(Some(Path::new("/nowhere/w.toml"))).unwrap_err();
        assert!(failure.message.starts_with("cannot read the config /nowhere/w.toml"));
        assert!(failure.hint.unwrap().starts_with("--socket PATH asks the agent without a config"));
        let failure = data_dir(Some(Path::new("/nowhere/w.toml"))).unwrap_err();
        assert!(failure.hint.unwrap().starts_with("--data-dir DIR looks there"));
    }

    #[test]
    fn a_drop_in_says_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.toml");
        std::fs::write(&file, "[agent]\nid = \"gw\"\n").unwrap();
        std::fs::create_dir(folder.path().join("w.d")).unwrap();
        std::fs::write(folder.path().join("w.d/10.toml"), "[agent]\ndata_dir = \"d\"\n").unwrap();
        assert_eq!(data_dir(Some(&file)).unwrap(), folder.path().join("d"));
        assert_eq!(candidates(Some(&file)).unwrap(), [folder.path().join("d/admin.sock")]);
    }
}
